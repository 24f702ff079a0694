//! `process_madvise(2)`: hints about another process's memory (Linux 5.10; mm/madvise.c).
//!
//! On others it needs the right to read them as `ptrace` does (`CAP_SYS_PTRACE`) and `CAP_SYS_NICE`
//! in the first user namespace. The process's `mmap_lock` is held for reading for the whole of each
//! range (7.x: of all ranges of a call), so a large one would keep it from mapping memory: [`Batch`]
//! cuts them up.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use omr_units::Bytes;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::Result;
use crate::actuate::{Actuator, Outcome, calls};
use crate::maps::Layout;
use crate::process::Process;
use crate::ranges::{Ranges, length};

pub use crate::actuate::{Advice, Advised};

/// Ranges that one call takes: `UIO_MAXIOV`, include/uapi/linux/uio.h.
pub const MOST_RANGES: usize = 1024;
/// Bytes that one call takes: the kernel cuts off silently what is beyond 2 GiB less a page. Half of it.
pub const MOST_BYTES: Bytes = Bytes::mib(1024);
/// Bytes in one range, and as a rule in one call: a huge page of x86. A process that maps memory meanwhile waits for its
/// `mmap_lock`, which is held for each range; a call cannot be interrupted, and a swap disk of 25 MB/s takes 80 ms for so much.
pub const CHUNK: Bytes = Bytes::mib(2);

/// A part of a process's memory, on page borders, and what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which part. A call costs time for memory that is there, and a batch for addresses: a reservation
    /// of terabytes is better given as the pages of it that [`crate::pagemap`] finds.
    pub range: Range<u64>,
    /// What is said.
    pub advice: Advice,
}

/// What came of one [`Hint`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// What the kernel went through, of what was mapped there when the batch ended. Not what it did:
    /// it passes over pages that others have mapped as well, or that are in use.
    pub done: Ranges,
    /// What the kernel refuses for the whole mapping: locked, huge pages, memory of a device; for
    /// [`Advice::Collapse`] what cannot have huge pages.
    pub refused: Ranges,
    /// The process has mapped something else in this range meanwhile, or unmapped some of it.
    pub changed: bool,
    /// How often the hint was given again for what was there then, [`RETRIES`] times at most.
    pub retried: u32,
}

impl Hinted {
    /// How it ended: [`Outcome::Done`], all of it; [`Outcome::Unsupported`], all that is mapped of it was
    /// refused; [`Outcome::Partial`], anything between. Where the batch ended early, see [`Batch::ended`].
    pub fn outcome(&self, hint: &Hint) -> Outcome {
        match (self.done.bytes() == length(&hint.range), self.done.is_empty() && !self.refused.is_empty()) {
            (true, _) => Outcome::Done,
            (_, true) => Outcome::Unsupported,
            _ => Outcome::Partial,
        }
    }
}

/// How often what has changed meanwhile is asked for again.
pub const RETRIES: u32 = 3;

/// Hints about one process's memory, given in calls of which each holds its `mmap_lock` for a chunk at
/// most. Between two calls the caller may wait, or stop.
///
/// No range of a call reaches over the border of a mapping, so that one that is refused or gone takes
/// nothing with it, nor over a multiple of the chunk, so that no huge page is split. When all are given,
/// the layout is looked at again: what has changed meanwhile is asked for anew.
///
/// ```no_run
/// # use omr_kernel::{Kernel, Result, actuate::{Actuator, Live}, madvise::{Advice, Batch, CHUNK, Hint}};
/// # use omr_kernel::{maps::Layout, process::Process};
/// # fn example(kernel: &Kernel, mut may_go_on: impl FnMut() -> bool) -> Result<()> {
/// let process = Process::open(kernel, 4711)?;
/// let mut layout = Layout::read(process.dir())?;
/// let range = layout.mappings()[0].range.clone();
/// let mut batch = Batch::new(&process, &mut layout, vec![Hint { range, advice: Advice::Cold }], CHUNK);
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
    results: Vec<Hinted>,
    chunk: u64,
    call: u64,
    /// Still to be given: the ranges, and of each which hint it belongs to and where its mapping begins.
    ranges: Vec<Range<u64>>,
    of: Vec<(usize, u64)>,
    at: usize,
    /// Where there was a hole since the layout was looked at. The rest was done; something like it may fill it by the next look.
    holes: Ranges,
    retries: u32,
    /// Calls were made since the layout was looked at.
    unchecked: bool,
    ended: Option<Outcome>,
}

impl<'a> Batch<'a> {
    /// Hints about what `layout` says, which is kept up to date. `chunk`: bytes of one range and of one call, of whole
    /// pages and better of whole huge pages; [`CHUNK`] is meant for it.
    pub fn new(process: &'a Process, layout: &'a mut Layout, hints: Vec<Hint>, chunk: Bytes) -> Self {
        let chunk = chunk.min(MOST_BYTES).0.max(1);
        let mut batch = Batch {
            process,
            layout,
            results: vec![Hinted::default(); hints.len()],
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

    /// The same with more bytes, and ranges, in each call: for a hint that waits for nothing.
    #[must_use]
    pub fn in_calls_of(self, bytes: Bytes) -> Self {
        Batch { call: bytes.min(MOST_BYTES).0.max(self.chunk), ..self }
    }

    /// Bytes of the next call. `None`: it is over, because all is done, or [`Batch::ended`].
    ///
    /// When all calls are made this looks at the layout, and finds more to do where that has changed.
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

    /// Makes that call. Returns what it did; a call that meets something it cannot do ends there, and the
    /// next one goes on behind it.
    pub fn call(&mut self, actuator: &mut dyn Actuator) -> Result<Bytes> {
        let (start, end) = (self.at, self.call_end());
        if start == end || self.ended.is_some() {
            return Ok(Bytes::ZERO);
        }
        let advice = self.hints[self.of[start].0].advice;
        self.unchecked = true;
        let Advised { bytes, outcome } = actuator.advise(self.process, advice, &self.ranges[start..end])?;
        let mut done = Bytes::ZERO;
        while self.at < end && done + length(&self.ranges[self.at]) <= bytes {
            let range = self.ranges[self.at].clone();
            done += length(&range);
            self.results[self.of[self.at].0].done.insert(range);
            self.at += 1;
        }
        match outcome {
            Outcome::Gone | Outcome::Denied | Outcome::Interrupted => self.ended = Some(outcome),
            // The kernel says why it stopped only when it has done nothing: ask again from there.
            _ if self.at > start => {}
            Outcome::Unsupported => {
                let refused = self.of[start];
                while self.of.get(self.at) == Some(&refused) {
                    self.results[refused.0].refused.insert(self.ranges[self.at].clone());
                    self.at += 1;
                }
            }
            // Something of it is not mapped any more: what is there at the next look is asked for again.
            Outcome::Partial if advice != Advice::Collapse => {
                self.holes.insert(self.ranges[start].clone());
                self.at += 1;
            }
            // No huge page for it: that stays so.
            _ => self.at += 1,
        }
        Ok(done)
    }

    /// What ended it early: [`Outcome::Gone`], [`Outcome::Denied`] or [`Outcome::Interrupted`] (a fatal signal).
    pub fn ended(&self) -> Option<Outcome> {
        self.ended
    }

    /// What came of each hint, in their order. Whoever stopped early finds in it what was done until then.
    pub fn end(mut self) -> Result<Vec<Hinted>> {
        if self.unchecked && self.ended.is_none() {
            self.check()?;
        }
        Ok(self.results)
    }

    /// Makes all calls for which `go_on`, which is told the bytes of each, says yes.
    pub fn run(mut self, actuator: &mut dyn Actuator, mut go_on: impl FnMut(Bytes) -> bool) -> Result<Vec<Hinted>> {
        while let Some(bytes) = self.next_call()? {
            if !go_on(bytes) {
                break;
            }
            self.call(actuator)?;
        }
        self.end()
    }

    /// Where the next call ends.
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

    /// Looks at the layout again: what has changed is not done any more.
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

    /// Cuts all hints, or what has `changed` of them, at the borders of mappings and chunks.
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

/// Gives this process a hint about none of its memory: tells whether the kernel knows the system
/// call and the hint, and changes nothing. `ENOSYS`: no such call; `EINVAL`: no such hint; `EPERM`:
/// up to 6.1 even a process's own memory needs `CAP_SYS_NICE`.
pub fn probe(advice: Advice) -> io::Result<()> {
    let own: OwnedFd = pidfd_open(getpid(), PidfdFlags::empty())?;
    calls::process_madvise(own.as_fd(), advice, &[])?;
    Ok(())
}
