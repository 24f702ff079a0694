//! The arguments and results of an [`Actuator`](crate::Actuator).

use std::fmt::{self, Write as _};
use std::ops::Range;

use omr_units::Bytes;
use rustix::io::Errno;
use serde::Serialize;

/// The result of a write. A group or process that disappears meanwhile is an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The kernel did everything that was asked.
    Done,
    /// The kernel did less than asked (`EAGAIN`, `EBUSY`). This is normal for `memory.reclaim`, and
    /// the reclaimed memory stays reclaimed. For `lru_gen`: another writer was quicker (`EEXIST`).
    Partial,
    /// A signal ended the write (`EINTR`): omr's own, or the freezer's before suspend. Never
    /// retried.
    Interrupted,
    /// The group or process no longer exists (`ENOENT`, `ENODEV`, `ESRCH`), or DAMON's monitor has
    /// ended (`ECANCELED`, Linux 7.3).
    Gone,
    /// Not permitted (`EACCES`, `EPERM`, `EROFS`).
    Denied,
    /// This kernel does not know the file or its syntax (`EINVAL`, `EOPNOTSUPP`).
    Unsupported,
}

impl Outcome {
    pub(crate) fn of(err: Errno) -> Option<Self> {
        Some(match err {
            Errno::AGAIN | Errno::BUSY | Errno::EXIST => Outcome::Partial,
            Errno::INTR => Outcome::Interrupted,
            Errno::NOENT | Errno::NODEV | Errno::SRCH | Errno::CANCELED => Outcome::Gone,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Outcome::Denied,
            Errno::INVAL | Errno::OPNOTSUPP => Outcome::Unsupported,
            _ => return None,
        })
    }
}

/// The advice of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(i32)]
pub enum Advice {
    /// Prefetch: read the pages back from swap, or from their file. For other processes not in
    /// 5.10, but in 6.1.
    ///
    /// Pages come to the swap cache and are mapped when they are used, by a minor fault each. The
    /// kernel counts them as refaults and in `pswpin`. It skips a page whose group is at its limit.
    WillNeed = libc::MADV_WILLNEED,
    /// Deactivate: reclaim these pages before others. Linux 5.10.
    Cold = libc::MADV_COLD,
    /// Page out: reclaim these pages now, used or not. Linux 5.10.
    ///
    /// With swap on a disk a page leaves the page table, and stays in memory as swap cache until it
    /// is reclaimed there. The kernel skips a page that another process has mapped as well.
    PageOut = libc::MADV_PAGEOUT,
}

impl Advice {
    /// The kernel's name in lower case, without `MADV_`.
    pub fn name(self) -> &'static str {
        match self {
            Advice::WillNeed => "willneed",
            Advice::Cold => "cold",
            Advice::PageOut => "pageout",
        }
    }
}

/// The text of a hint for messages and transcripts: `willneed 1000-3000 5000-6000`.
pub(crate) fn text(advice: Advice, ranges: &[Range<u64>]) -> String {
    ranges.iter().fold(advice.name().to_owned(), |mut text, range| {
        let _ = write!(text, " {:x}-{:x}", range.start, range.end);
        text
    })
}

/// The result of one `process_madvise(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdviseResult {
    /// Bytes of the ranges that are done. A range counts as a whole.
    pub bytes: Bytes,
    /// The outcome for the first range that is not done. [`Outcome::Partial`]: a part of this range
    /// is not mapped, and the rest of it was done.
    /// [`Outcome::Unsupported`]: this range cannot have this hint.
    pub outcome: Outcome,
}

/// The new state of a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `swapoff(2)`: the kernel first reads the device's pages back to memory.
    Off,
    /// `swapon(2)` with this priority, 0 to 32767. Only the kernel gives negative ones: each later
    /// device gets a lower one.
    On {
        /// The priority, as `/proc/swaps` shows it.
        priority: u16,
    },
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Switch::Off => f.write_str("swapoff"),
            Switch::On { priority } => write!(f, "swapon, priority {priority}"),
        }
    }
}
