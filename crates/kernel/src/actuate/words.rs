//! The words of an [`Actuator`](super::Actuator): what is asked for, and how it ended.

use std::fmt::{self, Write as _};
use std::ops::Range;

use omr_units::Bytes;
use rustix::io::Errno;
use serde::Serialize;

/// How a write ended. A race with a group or process that goes away is an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All that was asked.
    Done,
    /// Less than asked (`EAGAIN`, `EBUSY`): normal for `memory.reclaim`; what was reclaimed stays so.
    /// Or somebody was quicker (`EEXIST`, of `lru_gen`).
    Partial,
    /// A signal ended it (`EINTR`): ours, or the freezer's before suspend. Never retried.
    Interrupted,
    /// The group or process is not there any more (`ENOENT`, `ENODEV`, `ESRCH`).
    Gone,
    /// Not permitted (`EACCES`, `EPERM`, `EROFS`).
    Denied,
    /// This kernel does not know the file or its syntax (`EINVAL`, `EOPNOTSUPP`).
    Unsupported,
}

impl Outcome {
    pub(super) fn of(err: Errno) -> Option<Self> {
        Some(match err {
            Errno::AGAIN | Errno::BUSY | Errno::EXIST => Outcome::Partial,
            Errno::INTR => Outcome::Interrupted,
            Errno::NOENT | Errno::NODEV | Errno::SRCH => Outcome::Gone,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Outcome::Denied,
            Errno::INVAL | Errno::OPNOTSUPP => Outcome::Unsupported,
            _ => return None,
        })
    }
}

/// include/uapi/asm-generic/mman-common.h; not every C library's header has it.
const MADV_COLLAPSE: i32 = 25;

/// What a hint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Will be needed soon: read it back from swap, or from its file. On others not in 5.10, but in 6.1.
    ///
    /// Pages come to the swap cache, and are mapped when they are used: a minor fault each. The kernel
    /// counts them as refaults and in `pswpin`. A page whose group is at its limit is passed over.
    WillNeed = libc::MADV_WILLNEED,
    /// Not used for a while: take it first. Linux 5.10.
    Cold = libc::MADV_COLD,
    /// Take it now. Linux 5.10.
    ///
    /// Used or not. On a swap disk it leaves the page table, and stays in memory as swap cache until
    /// somebody reclaims it there. Never what others have mapped as well.
    PageOut = libc::MADV_PAGEOUT,
    /// Make huge pages of it, now. Linux 6.1, and only where huge pages are possible.
    Collapse = MADV_COLLAPSE,
}

impl Advice {
    /// The kernel's name, in lower case and without `MADV_`.
    pub fn name(self) -> &'static str {
        match self {
            Advice::WillNeed => "willneed",
            Advice::Cold => "cold",
            Advice::PageOut => "pageout",
            Advice::Collapse => "collapse",
        }
    }
}

/// For messages and transcripts: `willneed 1000-3000 5000-6000`.
pub(super) fn text(advice: Advice, ranges: &[Range<u64>]) -> String {
    ranges.iter().fold(advice.name().to_owned(), |mut text, range| {
        let _ = write!(text, " {:x}-{:x}", range.start, range.end);
        text
    })
}

/// What came of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advised {
    /// Bytes of the ranges that are done; ranges count as a whole.
    pub bytes: Bytes,
    /// How it ended. [`Outcome::Partial`]: a part of the first range that is not done is not mapped, the
    /// rest of it was done; for [`Advice::Collapse`] there was no huge page for it at this moment.
    /// [`Outcome::Unsupported`]: that range cannot have this hint.
    pub outcome: Outcome,
}

/// What is to become of a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `swapoff(2)`: what it holds comes back to memory first.
    Off,
    /// `swapon(2)` with this priority, 0 to 32767. Others are the kernel's to give: whoever comes later gets a lower one.
    On {
        /// As `/proc/swaps` shows it.
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
