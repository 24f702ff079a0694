//! `process_madvise(2)`: hints about another process's memory (Linux 5.10). Source: mm/madvise.c.
//!
//! A hint about another process takes the right to read it by `ptrace` (`CAP_SYS_PTRACE`) and
//! `CAP_SYS_NICE` in the first user namespace. The kernel holds the process's `mmap_lock` for
//! reading for the whole of each range (7.x: of all ranges of a call), so a large range would keep
//! the process from mapping memory. [`Batch`] cuts ranges up.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use omr_units::Bytes;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use omr_kernel::Result;
use omr_kernel::maps::Layout;
use omr_kernel::process::Process;
use omr_kernel::ranges::{Ranges, length};

use crate::{Actuator, Advice, AdviseResult, Outcome, calls};

/// Upper bound on the ranges of one call: `UIO_MAXIOV`, include/uapi/linux/uio.h.
pub const MOST_RANGES: usize = 1024;
/// Upper bound on the bytes of one call. The kernel silently ignores bytes beyond 2 GiB less a
/// page; this is half of it.
pub const MOST_BYTES: Bytes = Bytes::mib(1024);
/// Bytes of one range, and usually of one call: a huge page of x86. The kernel holds `mmap_lock`
/// for each range, and a process that maps memory meanwhile waits. A call cannot be interrupted,
/// and a swap disk of 25 MB/s takes 80 ms for 2 MiB.
pub const CHUNK: Bytes = Bytes::mib(2);

/// A hint about a part of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The addresses, on page boundaries. The time of a call grows with the memory in the range,
    /// and the time of a batch grows with the addresses. For a reservation of terabytes it is
    /// better to hint only the pages that [`omr_kernel::pagemap`] finds.
    pub range: Range<u64>,
    /// The advice to the kernel.
    pub advice: Advice,
}

/// The result of one [`Hint`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintResult {
    /// Addresses that the kernel went through and that were still mapped when the batch ended. The
    /// kernel may have skipped pages among them that other processes have mapped as well, or that
    /// are in use.
    pub done: Ranges,
    /// Addresses of mappings that the kernel refuses as a whole: locked, huge pages, memory of a
    /// device.
    pub refused: Ranges,
    /// The process has mapped something else in this range meanwhile, or unmapped a part of it.
    pub changed: bool,
    /// Number of times that the hint was given again because mappings had changed; at most
    /// [`RETRIES`].
    pub retried: u32,
}

impl HintResult {
    /// The outcome for the whole hint. [`Outcome::Done`]: the whole range is done.
    /// [`Outcome::Unsupported`]: the kernel refused everything that is mapped.
    /// [`Outcome::Partial`]: anything between. For a batch that ended early see [`Batch::ended`].
    pub fn outcome(&self, hint: &Hint) -> Outcome {
        match (self.done.bytes() == length(&hint.range), self.done.is_empty() && !self.refused.is_empty()) {
            (true, _) => Outcome::Done,
            (_, true) => Outcome::Unsupported,
            _ => Outcome::Partial,
        }
    }
}

/// Upper bound on the number of times that hints are repeated for mappings that have changed
/// meanwhile.
pub const RETRIES: u32 = 3;

/// Hints about one process's memory. Each call holds the process's `mmap_lock` for a chunk at most.
/// Between two calls the caller may wait, or stop.
///
/// No range of a call crosses the boundary of a mapping, so that a mapping that is refused or gone
/// does not affect its neighbours. No range crosses a multiple of the chunk, so that no huge page
/// is split. After the last call the layout is read again, and the hints are repeated for addresses
/// that have changed.
///
/// ```no_run
/// # use omr_actuate::madvise::{Batch, CHUNK, Hint};
/// # use omr_actuate::{Advice, Live};
/// # use omr_kernel::{Kernel, Result, maps::Layout, process::Process};
/// # fn example(kernel: &Kernel, mut may_go_on: impl FnMut() -> bool) -> Result<()> {
/// let process = Process::open(kernel, 4711)?;
/// let mut layout = Layout::read(process.dir())?;
/// let range = layout.mappings()[0].range.clone();
/// let hints = vec![Hint { range, advice: Advice::Cold }];
/// let mut batch = Batch::new(&process, &mut layout, hints, CHUNK);
/// while let Some(_bytes) = batch.next_call()? {
///     if !may_go_on() {
///         break;
///     }
///     batch.call(&mut Live)?;
/// }
/// println!("{}", batch.end()?[0].done.bytes());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Batch<'a> {
    process: &'a Process,
    layout: &'a mut Layout,
    hints: Vec<Hint>,
    results: Vec<HintResult>,
    chunk: u64,
    call: u64,
    /// The ranges of all calls; those from `at` on are still to be given.
    ranges: Vec<Range<u64>>,
    /// For each range, the index of its hint and the start of its mapping.
    of: Vec<(usize, u64)>,
    at: usize,
    /// Ranges in which the kernel found a hole since the layout was last read; the rest of each was
    /// done. A new mapping of the same kind may fill the hole before the layout is read again.
    holes: Ranges,
    retries: u32,
    /// True if calls were made since the layout was last read.
    unchecked: bool,
    ended: Option<Outcome>,
}

impl<'a> Batch<'a> {
    /// A batch of hints about the mappings of `layout`, which the batch keeps up to date. `chunk`
    /// is the bytes of one range and of one call: whole pages, better whole huge pages. [`CHUNK`]
    /// is the usual value.
    pub fn new(process: &'a Process, layout: &'a mut Layout, hints: Vec<Hint>, chunk: Bytes) -> Self {
        let chunk = chunk.min(MOST_BYTES).0.max(1);
        let mut batch = Batch {
            process,
            layout,
            results: vec![HintResult::default(); hints.len()],
            hints,
            chunk,
            call: chunk,
            ranges: Vec::new(),
            of: Vec::new(),
            at: 0,
            holes: Ranges::new(),
            retries: 0,
            unchecked: false,
            ended: None,
        };
        batch.cut(None);
        batch
    }

    /// The same batch with more bytes, and so more ranges, in each call: for a hint that does not
    /// wait for a disk.
    #[must_use]
    pub fn in_calls_of(self, bytes: Bytes) -> Self {
        Batch { call: bytes.min(MOST_BYTES).0.max(self.chunk), ..self }
    }

    /// Bytes of the next call. `None`: the batch is over, because all calls were made or
    /// [`Batch::ended`].
    ///
    /// After the last call this reads the layout again, and adds calls for addresses that have
    /// changed.
    pub fn next_call(&mut self) -> Result<Option<Bytes>> {
        while self.at == self.ranges.len() && self.unchecked && self.ended.is_none() {
            let changed = self.check()?;
            if changed.is_empty() || self.retries == RETRIES {
                break;
            }
            self.retries += 1;
            self.cut(Some(&changed));
        }
        let next = &self.ranges[self.at..self.call_end()];
        Ok((!next.is_empty() && self.ended.is_none()).then(|| next.iter().map(length).sum()))
    }

    /// Makes the next call. Returns the bytes that it did. A call ends at the first range that the
    /// kernel cannot do, and the next call continues after this range.
    pub fn call(&mut self, actuator: &mut dyn Actuator) -> Result<Bytes> {
        let (start, end) = (self.at, self.call_end());
        if start == end || self.ended.is_some() {
            return Ok(Bytes::ZERO);
        }
        let advice = self.hints[self.of[start].0].advice;
        self.unchecked = true;
        let AdviseResult { bytes, outcome } = actuator.advise(self.process, advice, &self.ranges[start..end])?;
        let mut done = Bytes::ZERO;
        while self.at < end && done + length(&self.ranges[self.at]) <= bytes {
            let range = self.ranges[self.at].clone();
            done += length(&range);
            self.results[self.of[self.at].0].done.insert(range);
            self.at += 1;
        }
        match outcome {
            Outcome::Gone | Outcome::Denied | Outcome::Interrupted => self.ended = Some(outcome),
            // The kernel tells the reason only if it has done nothing: the next call starts here.
            _ if self.at > start => {}
            Outcome::Unsupported => {
                let refused = self.of[start];
                while self.of.get(self.at) == Some(&refused) {
                    self.results[refused.0].refused.insert(self.ranges[self.at].clone());
                    self.at += 1;
                }
            }
            // A part of the range is no longer mapped. The hint is repeated after the next read.
            Outcome::Partial => {
                self.holes.insert(self.ranges[start].clone());
                self.at += 1;
            }
            _ => self.at += 1,
        }
        Ok(done)
    }

    /// The outcome that ended the batch early: [`Outcome::Gone`], [`Outcome::Denied`] or
    /// [`Outcome::Interrupted`] (a fatal signal). `None`: it did not end early.
    pub fn ended(&self) -> Option<Outcome> {
        self.ended
    }

    /// The result of each hint, in the order of the hints. After a stop in between, the results
    /// show what was done until then.
    pub fn end(mut self) -> Result<Vec<HintResult>> {
        if self.unchecked && self.ended.is_none() {
            self.check()?;
        }
        Ok(self.results)
    }

    /// Makes calls until the batch is over, or until `go_on` says no. `go_on` gets the bytes of the
    /// next call.
    pub fn run(mut self, actuator: &mut dyn Actuator, mut go_on: impl FnMut(Bytes) -> bool) -> Result<Vec<HintResult>> {
        while let Some(bytes) = self.next_call()? {
            if !go_on(bytes) {
                break;
            }
            self.call(actuator)?;
        }
        self.end()
    }

    /// The index after the last range of the next call.
    fn call_end(&self) -> usize {
        let advice = |at: usize| self.hints[self.of[at].0].advice;
        let (mut end, mut bytes) = (self.at, 0);
        while end < self.ranges.len() && end - self.at < MOST_RANGES {
            bytes += length(&self.ranges[end]).0;
            if bytes > self.call && end > self.at || advice(end) != advice(self.at) {
                break;
            }
            end += 1;
        }
        end
    }

    /// Reads the layout again. Addresses that have changed no longer count as done or refused.
    fn check(&mut self) -> Result<Ranges> {
        self.unchecked = false;
        let changed = match self.layout.update() {
            Ok(changed) => changed.union(&std::mem::take(&mut self.holes)),
            Err(err) if err.is_gone() => {
                self.ended = Some(Outcome::Gone);
                return Ok(Ranges::new());
            }
            Err(err) if err.is_denied() => {
                self.ended = Some(Outcome::Denied);
                return Ok(Ranges::new());
            }
            Err(err) => return Err(err),
        };
        if !changed.is_empty() {
            for (hint, result) in self.hints.iter().zip(&mut self.results) {
                let here = changed.within(&hint.range);
                if !here.is_empty() {
                    result.changed = true;
                    result.done = result.done.without(&here);
                    result.refused = result.refused.without(&here);
                }
            }
        }
        Ok(changed)
    }

    /// Cuts all hints at the boundaries of mappings and chunks. With `changed`, only the addresses
    /// in it.
    fn cut(&mut self, changed: Option<&Ranges>) {
        (self.at, self.ranges, self.of) = (0, Vec::new(), Vec::new());
        let mappings = self.layout.mappings();
        for (number, hint) in self.hints.iter().enumerate() {
            let before = self.ranges.len();
            let first = mappings.partition_point(|mapping| mapping.range.end <= hint.range.start);
            for mapping in mappings[first..].iter().take_while(|mapping| mapping.range.start < hint.range.end) {
                let within = mapping.range.start.max(hint.range.start)..mapping.range.end.min(hint.range.end);
                let parts = match changed {
                    None => Ranges::from_iter([within]),
                    Some(changed) => changed.within(&within),
                };
                for part in parts.as_slice() {
                    let mut start = part.start;
                    while start < part.end {
                        let border = (start / self.chunk + 1).saturating_mul(self.chunk);
                        let end = part.end.min(border);
                        self.ranges.push(start..end);
                        self.of.push((number, mapping.range.start));
                        start = end;
                    }
                }
            }
            if changed.is_some() && self.ranges.len() > before {
                self.results[number].retried += 1;
            }
        }
    }
}

/// Gives a hint about an empty list of ranges of this process. This changes nothing, and tells
/// whether the kernel has the system call and the hint. `ENOSYS`: no such call; `EINVAL`: no such
/// hint; `EPERM`: up to 6.1 even a process's own memory takes `CAP_SYS_NICE`.
pub fn probe(advice: Advice) -> io::Result<()> {
    let own: OwnedFd = pidfd_open(getpid(), PidfdFlags::empty())?;
    calls::process_madvise(own.as_fd(), advice, &[])?;
    Ok(())
}
