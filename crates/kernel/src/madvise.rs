//! `process_madvise(2)`: hints about another process's memory (Linux 5.10; mm/madvise.c).
//!
//! On others it needs the right to read them as `ptrace` does (`CAP_SYS_PTRACE`) and `CAP_SYS_NICE`
//! in the first user namespace. The process's `mmap_lock` is held for reading for the whole of each
//! range, so a large range would keep it from mapping memory: [`calls`] cuts them up.

use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use omr_units::Bytes;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::Result;
use crate::actuate::{Actuator, Outcome};
use crate::process::Process;
use crate::ranges::length;

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
    PageOut = libc::MADV_PAGEOUT,
}

impl Advice {
    /// The kernel's name, in lower case and without `MADV_`.
    pub fn name(self) -> &'static str {
        match self {
            Advice::WillNeed => "willneed",
            Advice::Cold => "cold",
            Advice::PageOut => "pageout",
        }
    }
}

/// Ranges that one call takes: `UIO_MAXIOV`, include/uapi/linux/uio.h.
pub const MOST_RANGES: usize = 1024;
/// Bytes that one call takes: the kernel cuts off silently what is beyond 2 GiB less a page. Half of it.
pub const MOST_BYTES: Bytes = Bytes::mib(1024);

/// What came of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advised {
    /// Bytes of the ranges that are done; ranges count as a whole.
    pub bytes: Bytes,
    /// How it ended. [`Outcome::Partial`]: a part of the first range that is not done is not mapped, the
    /// rest of it was done. [`Outcome::Unsupported`]: that range cannot have this hint.
    pub outcome: Outcome,
}

/// Cuts ranges into calls: each of at most `chunk` bytes, which has to be a number of pages, and of at
/// most [`MOST_RANGES`] ranges.
pub fn calls(ranges: &[Range<u64>], chunk: Bytes) -> Vec<Vec<Range<u64>>> {
    let chunk = chunk.min(MOST_BYTES);
    let mut calls: Vec<Vec<Range<u64>>> = Vec::new();
    let mut left = 0;
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            if left == 0 || calls.last().is_none_or(|call| call.len() == MOST_RANGES) {
                calls.push(Vec::new());
                left = chunk.0.max(1);
            }
            let end = range.end.min(start.saturating_add(left));
            if let Some(call) = calls.last_mut() {
                call.push(start..end);
            }
            left -= end - start;
            start = end;
        }
    }
    calls
}

/// What came of a batch of ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the ranges that are done.
    pub advised: Bytes,
    /// Ranges that were refused, or of which a part is not mapped any more, and how.
    pub skipped: Vec<(Range<u64>, Outcome)>,
    /// What ended it before the last range: [`Outcome::Gone`], [`Outcome::Denied`],
    /// [`Outcome::Interrupted`]; else [`Outcome::Done`].
    pub outcome: Outcome,
}

/// Gives a hint about all of these ranges, and goes on behind one that is refused.
pub fn advise(actuator: &mut dyn Actuator, process: &Process, advice: Advice, ranges: &[Range<u64>]) -> Result<Report> {
    let mut report = Report { advised: Bytes::ZERO, skipped: Vec::new(), outcome: Outcome::Done };
    let mut rest = ranges;
    while let Some(first) = rest.first() {
        let Advised { bytes, outcome } = actuator.advise(process, advice, rest)?;
        let mut sum = Bytes::ZERO;
        let done = rest.iter().take_while(|range| {
            sum += length(range);
            sum <= bytes
        });
        let done = done.count();
        report.advised += rest[..done].iter().map(length).sum();
        match outcome {
            Outcome::Gone | Outcome::Denied | Outcome::Interrupted => {
                report.outcome = outcome;
                return Ok(report);
            }
            // The kernel says why it stopped only when it has done nothing: ask again from there.
            _ if done > 0 => rest = &rest[done..],
            _ => {
                report.skipped.push((first.clone(), outcome));
                rest = &rest[1..];
            }
        }
    }
    Ok(report)
}

/// For messages and transcripts: `willneed 1000-3000 5000-6000`.
pub(crate) fn text(advice: Advice, ranges: &[Range<u64>]) -> String {
    ranges.iter().fold(advice.name().to_owned(), |mut text, range| {
        let _ = write!(text, " {:x}-{:x}", range.start, range.end);
        text
    })
}

/// The system call: bytes of the ranges that are done, or why the first one was not.
pub(crate) fn call(process: BorrowedFd<'_>, advice: Advice, ranges: &[Range<u64>]) -> Result<Bytes, Errno> {
    let address = |address: u64| usize::try_from(address).map_err(|_| Errno::INVAL);
    let mut vectors = Vec::with_capacity(ranges.len());
    for range in ranges {
        let base = address(range.start)? as *mut libc::c_void;
        vectors.push(libc::iovec { iov_base: base, iov_len: address(length(range).0)? });
    }
    // SAFETY: the kernel reads `vectors.len()` vectors, which are all there. The addresses in them are
    // of another process, or hints about this one's that change nothing a program can see.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            vectors.as_ptr(),
            vectors.len(),
            advice as i32,
            0u32,
        )
    };
    match u64::try_from(done) {
        Ok(done) => Ok(Bytes(done)),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Gives this process a hint about none of its memory: tells whether the kernel knows the system
/// call and the hint, and changes nothing. `ENOSYS`: no such call; `EINVAL`: no such hint; `EPERM`:
/// up to 6.1 even a process's own memory needs `CAP_SYS_NICE`.
pub fn probe(advice: Advice) -> io::Result<()> {
    let own: OwnedFd = pidfd_open(getpid(), PidfdFlags::empty())?;
    call(own.as_fd(), advice, &[])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ranges::Ranges;

    const PAGE: u64 = 4096;

    proptest! {
        #[test]
        fn calls_cover_all_and_are_no_larger_than_the_kernel_takes(
            steps in proptest::collection::vec((1u64..4, 1u64..3000), 0..1500),
            chunk in 1u64..2000,
        ) {
            let mut at = 0;
            let ranges: Ranges = steps.into_iter().map(|(gap, length)| {
                let start = at + gap * PAGE;
                at = start + length * PAGE;
                start..at
            }).collect();
            let chunk = Bytes(chunk * PAGE);
            let calls = calls(ranges.as_slice(), chunk);
            for call in &calls {
                prop_assert!((1..=MOST_RANGES).contains(&call.len()));
                prop_assert!(call.iter().map(length).sum::<Bytes>() <= chunk);
                prop_assert!(call.iter().all(|range| range.start % PAGE == 0 && range.end % PAGE == 0));
            }
            let covered: Ranges = calls.into_iter().flatten().collect();
            prop_assert_eq!(covered, ranges);
        }
    }
}
