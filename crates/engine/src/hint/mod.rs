//! Hints about the memory of processes: one process at a time, in calls between which it can be stopped,
//! and what came of them, measured.
//!
//! What is paged out to a disk stays in memory as swap cache, and the group's `memory.reclaim` has to
//! free it: asked for as many bytes as this job has put there. Which pages that takes is the kernel's choice.

mod plan;
mod subject;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::madvise::{Batch, CHUNK, Hint, MOST_RANGES};
use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_base::cancel::Flag;
use omr_config::BackendChoice;
use omr_kernel::maps::{self, Detail, Layout, Refusal};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::pagemap::{NEAR, Pagemap};
use omr_kernel::process::Capability;
use omr_kernel::ranges::{Ranges, length};
use omr_kernel::{Kernel, clock};
use omr_machine::groups::targets::SMALLEST;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::pace::{Job, WRITEBACK_OVER};
use omr_policy::{Config, End, swap_floor};
use omr_units::{Amount, Bytes, Limit, millis};
use serde::Serialize;

use self::plan::{Line, Part, Plan, detail, text};
use crate::reclaim::backend::Backend;
use crate::reclaim::limit_journal::{Borrowed, Journal};
use crate::reclaim::{Worker, swap_context};
use crate::warm;

pub use self::plan::{Selection, Skip, Skipped};
pub use self::subject::{Account, Ignore, Rules, Subject, descendants, name, open};

/// Writeback that does not fall for this long is somebody else's.
const WRITEBACK_PATIENCE: Duration = Duration::from_secs(2);
/// Falling or not, no wait is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// What was paged out must have arrived on the disk by then.
const WRITTEN_TIME: Duration = Duration::from_secs(30);
/// Rounds of paging out after which nothing has left that could.
const FUTILE: u32 = 8;
/// What freeing the swap cache may send to swap, however little there is to free.
const LEAST_EXCESS: Bytes = Bytes::mib(2);
/// Of memory that is only marked, so much in one call, which waits for nothing: 7.x holds the process's `mmap_lock` for all of it.
const MARKED: Bytes = Bytes::mib(8);
/// A report names so many ranges that were not hinted as asked; a process can have 65,530 mappings.
const MOST_NAMED: usize = 100;

/// What came of hinting one process.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its process id.
    pub pid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// Its group.
    pub group: String,
    /// What the kernel went through, or in a dry run would.
    pub hinted: Bytes,
    /// Of what was to be hinted, how much was in memory and is now; `None`: the process is gone. What is marked cold stays
    /// where it is, and is not looked at again.
    pub resident_before: Bytes,
    /// What was resident when the hint ended; `None`: not known.
    pub resident_after: Option<Bytes>,
    /// Of it, in swap now.
    pub swapped_out: Bytes,
    /// Where that was which was to be paged out, roughly.
    #[serde(skip)]
    pub places: Ranges,
    /// What the group's `memory.current` fell by, call by call.
    pub freed: Bytes,
    /// Of it, swap cache that `memory.reclaim` freed in the end.
    pub freed_behind: Bytes,
    /// Swap cache that this has made and that was left.
    pub left_cached: Bytes,
    /// Passed over.
    pub skipped: Skipped,
    /// Addresses asked for where nothing is mapped.
    pub not_mapped: Bytes,
    /// Whether the process changed its mappings meanwhile, where it was hinted.
    pub changed: bool,
    /// Ranges that were hinted again for that.
    pub retried: u32,
    /// Which ranges were not hinted as asked, and why: first those that changed, then what was refused, then the rest, 100 of them
    /// at most. None in a dry run, which shows all mappings. Where it ended early, what it did not come to is not among them.
    pub ranges: Vec<Exception>,
    /// How many more there were.
    pub more_ranges: u32,
    /// Calls of `process_madvise`.
    pub calls: u32,
    /// The longest call, in milliseconds.
    pub longest_call_ms: u64,
    /// Time from start to end.
    pub wall: Duration,
    /// CPU time of the calling thread.
    pub cpu: Duration,
    /// How it ended.
    pub end: End,
    /// What there is to know besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// In a dry run: each mapping.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Line>,
}

/// A range that was not hinted as asked.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Exception {
    /// Its addresses, in hexadecimal digits.
    pub range: String,
    /// Bytes that the hint was to be about.
    pub bytes: Bytes,
    /// The reason.
    pub why: Why,
    /// What the kernel went through all the same, of what is mapped there now.
    pub hinted: Bytes,
    /// How often it was hinted again.
    pub retried: u32,
}

/// Why a range was not hinted as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The process mapped something else there meanwhile, or nothing.
    Changed,
    /// It was passed over.
    #[serde(untagged)]
    Skipped(Skip),
}

/// How much is to be done to one process.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Of paging out: end when so much has left. A share is one of what is in memory.
    pub amount: Amount,
    /// Swap that stays free, where it is not the configuration's.
    pub swap_floor: Option<Amount>,
}

/// What hinting needs.
pub struct Hinter<'a> {
    /// The kernel to read from.
    pub kernel: &'a Kernel,
    /// The configuration of the policy.
    pub config: &'a Config,
    /// Every write goes through it.
    pub actuator: &'a mut dyn Actuator,
    /// Where changed limits are noted; without it what is sent to swap behind a hint has no hard bound.
    pub journal: Option<&'a Journal>,
    /// Ends the run when set.
    pub stop: &'a Flag,
    /// Told what was hinted so far.
    pub progress: &'a mut dyn FnMut(Bytes),
}

/// One process while it is hinted.
struct Work<'a> {
    subject: &'a Subject,
    advice: Advice,
    layout: Layout,
    pagemap: Pagemap,
    /// Swap that stays free.
    floor: Bytes,
    on_disk: bool,
    /// All that was refused.
    refused: Ranges,
    report: Report,
    buffer: Vec<u8>,
}

impl Hinter<'_> {
    /// Hints one process.
    pub fn run(&mut self, subject: &Subject, selection: &Selection, extent: Extent) -> Result<Report> {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let mut report = match self.look(subject, selection, extent) {
            Ok((work, plan)) => self.work(work, &plan, extent)?,
            Err(err) if is(&err, omr_kernel::Error::is_gone) => Report::new(subject, End::Gone),
            Err(err) if is(&err, omr_kernel::Error::is_denied) => {
                return Err(subject::denied(self.kernel, &name(subject.process.stat()), Capability::SysPtrace));
            }
            Err(err) => return Err(err),
        };
        report.wall = clock::read_monotonic().since(began);
        report.cpu = clock::read_thread_cpu().saturating_sub(cpu);
        Ok(report)
    }

    /// Finds what is to be hinted.
    fn look<'a>(&self, subject: &'a Subject, selection: &Selection, extent: Extent) -> Result<(Work<'a>, Plan)> {
        let dir = subject.process.dir();
        let swap = SwapSpace::read(self.kernel).context("what swap there is cannot be told")?;
        let no_swap = if selection.advice == Advice::PageOut { self.no_swap(subject, swap)? } else { None };
        let (layout, mut pagemap) = (Layout::read(dir)?, Pagemap::open(dir, self.kernel.page())?);
        let details = if self.actuator.is_live() { Vec::new() } else { maps::read_smaps(dir)? };
        let refusal = |mapping: &maps::Mapping| detail(&details, mapping.range.start)?.refusal;
        let plan = Plan::find(layout.mappings(), &mut pagemap, selection, no_swap.is_none(), refusal)?;
        let mut report = Report::new(subject, End::Complete);
        report.resident_before = plan.parts.iter().filter(|part| part.skip.is_none()).map(|p| p.present.bytes()).sum();
        report.skipped = plan.skipped();
        report.not_mapped = plan.not_mapped;
        report.notes.extend(no_swap.filter(|_| report.skipped.no_swap.0 > 0));
        if !self.actuator.is_live() {
            report.mappings = plan.parts.iter().map(|part| Line::of(part, &details)).collect();
        }
        let context = swap_context(self.kernel);
        let mut config = Config::clone(self.config);
        if let Some(floor) = extent.swap_floor {
            config.guard.swap_floor = floor;
        }
        let work = Work {
            subject,
            advice: selection.advice,
            layout,
            pagemap,
            floor: swap_floor(&config, context, extent.amount.of(report.resident_before)),
            on_disk: swap.on_disk,
            refused: Ranges::new(),
            report,
            buffer: Vec::with_capacity(8192),
        };
        Ok((work, plan))
    }

    /// Why anonymous memory of a process cannot be paged out, if so.
    fn no_swap(&self, subject: &Subject, swap: SwapSpace) -> Result<Option<String>> {
        if swap.total == Bytes::ZERO {
            return Ok(Some("this machine has no swap, so anonymous memory cannot be paged out".into()));
        }
        let buffer = &mut Vec::new();
        for path in subject.group.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            let group = Group::open(self.kernel.cgroup()?, path)?;
            match group.read_limit("memory.swap.max", buffer) {
                Ok(Limit::Bytes(most)) if most - group.read_swap_current(buffer)? < self.kernel.page().bytes() => {
                    let shown = omr_base::text::printable(&path.to_string_lossy());
                    return Ok(Some(format!(
                        "memory.swap.max of {shown} is {most} and reached, so anonymous memory cannot be paged out"
                    )));
                }
                Ok(_) => {}
                // No memory controller here.
                Err(err) if err.is_gone() => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(None)
    }

    fn work(&mut self, mut work: Work<'_>, plan: &Plan, extent: Extent) -> Result<Report> {
        let mut ranges = plan.ranges();
        if !self.actuator.is_live() {
            let all = ranges.iter().map(length).sum();
            let most = if work.advice == Advice::PageOut { self.most(&work, extent) } else { Bytes::MAX };
            work.report.hinted = most.min(all);
            work.report.resident_after = Some(work.report.resident_before);
            return Ok(work.report);
        }
        let all: Ranges = plan.parts.iter().flat_map(|part| part.hint.as_slice().iter().cloned()).collect();
        let cached = work.cached()?;
        work.report.end = match work.advice {
            Advice::PageOut => {
                work.report.places = all.bridged(NEAR);
                self.page_out(&mut work, ranges.into(), extent)?
            }
            Advice::WillNeed => {
                // Somebody may be waiting: first where there is most of it.
                ranges.sort_by_key(|range| Reverse(length(range)));
                self.give(&mut work, &ranges)?.unwrap_or(End::Complete)
            }
            _ => self.give(&mut work, all.as_slice())?.unwrap_or(End::Complete),
        };
        if work.report.end == End::Denied {
            // The kernel asks for both, the right to look into the process first, and with each call: it may have
            // changed its user since.
            let process = &work.subject.process;
            let needed = match Layout::read(process.dir()) {
                Err(err) if err.is_denied() => Capability::SysPtrace,
                _ => Capability::SysNice,
            };
            return Err(subject::denied(self.kernel, &name(process.stat()), needed));
        }
        if work.advice == Advice::Cold {
            work.report.resident_after = Some(work.report.resident_before).filter(|_| work.report.end != End::Gone);
        } else if work.report.end != End::Gone {
            let kept: Ranges = match work.advice {
                Advice::PageOut => all,
                _ => plan.parts.iter().flat_map(|part| part.present.as_slice().iter().cloned()).collect(),
            };
            match work.residency(&kept) {
                Ok((present, swapped)) => {
                    work.report.resident_after = Some(present.bytes());
                    if work.advice == Advice::PageOut {
                        work.report.swapped_out = swapped.bytes();
                    }
                }
                Err(err) if err.is_gone() => work.report.end = End::Gone,
                Err(err) => return Err(err.into()),
            }
        }
        let devices = self.find_devices(&work, plan)?;
        work.name_refused(&devices);
        plan.parts.iter().for_each(|part| work.report.add_skipped(part));
        if work.advice == Advice::PageOut {
            self.free_cached(&mut work, cached)?;
        }
        if let Some(after) = work.report.resident_after {
            // What others of the group gave back meanwhile is not freed by this.
            work.report.freed = work.report.freed.min(work.report.resident_before - after);
        }
        Ok(work.report)
    }

    /// The most that may be paged out.
    fn most(&self, work: &Work<'_>, extent: Extent) -> Bytes {
        let gain = work.subject.account.as_ref().map_or(Bytes::MAX, |account| account.gain);
        match extent.amount {
            Amount::Max => gain,
            amount => amount.of(work.report.resident_before).min(gain),
        }
    }

    /// Pages out until so much has left as may. What has left is seen in the page table: the kernel passes
    /// over pages that others have mapped as well, or that are in use, and does not say so.
    fn page_out(&mut self, work: &mut Work<'_>, mut queue: VecDeque<Range<u64>>, extent: Extent) -> Result<End> {
        let most = self.most(work, extent);
        let page = self.kernel.page().bytes();
        let (mut gone, mut futile) = (Bytes::ZERO, 0);
        loop {
            let left = most - gone;
            if left < page {
                let is_all =
                    extent.amount != Amount::Max && gone + page > extent.amount.of(work.report.resident_before);
                return Ok(if is_all { End::Complete } else { End::Floor });
            }
            let taken = take(&mut queue, Bytes(left.0 / page.0 * page.0));
            if taken.is_empty() {
                return Ok(if extent.amount == Amount::Max { End::Complete } else { End::Futile });
            }
            let end = self.give(work, taken.as_slice())?;
            let went = match work.residency(&taken) {
                Ok((present, _)) => taken.bytes() - present.bytes(),
                Err(err) if err.is_gone() => return Ok(End::Gone),
                Err(err) => return Err(err.into()),
            };
            if let Some(end) = end {
                return Ok(end);
            }
            gone += went;
            futile = if went < page { futile + 1 } else { 0 };
            if futile == FUTILE {
                return Ok(End::Futile);
            }
        }
    }

    /// Gives the hint about these ranges; what ended it early, if anything.
    fn give(&mut self, work: &mut Work<'_>, ranges: &[Range<u64>]) -> Result<Option<End>> {
        let advice = work.advice;
        let hints = ranges.iter().map(|range| Hint { range: range.clone(), advice }).collect();
        let subject = work.subject;
        let current = |buffer: &mut Vec<u8>| subject.account.as_ref()?.group.read_current(buffer).ok();
        let call = if advice == Advice::Cold { MARKED } else { CHUNK };
        let mut batch = Batch::new(&subject.process, &mut work.layout, hints, CHUNK).in_calls_of(call);
        let (mut sum, mut end) = (work.report.hinted, None);
        while let Some(bytes) = batch.next_call()? {
            end = self.may_not(subject, advice, bytes, work.floor, work.on_disk, &mut work.buffer)?;
            if end.is_some() {
                break;
            }
            let before = current(&mut work.buffer);
            let began = clock::read_monotonic();
            sum += batch.call(self.actuator)?;
            let took = millis(clock::read_monotonic().since(began));
            work.report.calls += 1;
            work.report.longest_call_ms = work.report.longest_call_ms.max(took);
            if let (Some(before), Some(after)) = (before, current(&mut work.buffer)) {
                work.report.freed += before - after;
            }
            (self.progress)(sum);
        }
        let end = end.or_else(|| match batch.ended() {
            None => None,
            Some(Outcome::Denied) => Some(End::Denied),
            Some(Outcome::Interrupted) => Some(End::Stopped),
            Some(_) => Some(End::Gone),
        });
        if end == Some(End::Gone) && subject.process.is_in_other_pid_namespace() {
            work.report.notes.push("it is in another pid namespace than omr, whose /proc this is not".into());
        }
        for (result, range) in batch.end()?.into_iter().zip(ranges) {
            work.report.hinted += result.done.bytes();
            if result.changed {
                work.report.add_changed(range, result.done.bytes(), result.retried);
            }
            result.refused.as_slice().iter().for_each(|range| work.refused.insert(range.clone()));
        }
        Ok(end)
    }

    /// Mappings that may be of a device and are refused as such: asks for the first page of each, to which nothing happens
    /// as none of it is in the page table.
    fn find_devices(&mut self, work: &Work<'_>, plan: &Plan) -> Result<Ranges> {
        let mut refused = Ranges::new();
        if work.advice == Advice::WillNeed || matches!(work.report.end, End::Gone | End::Stopped | End::Timeout) {
            return Ok(refused);
        }
        let page = self.kernel.page().bytes().0;
        let all = plan.without_pages();
        let first: Vec<_> = all.iter().map(|range| range.start..range.start + page).collect();
        let mut at = 0;
        while at < all.len() {
            let asked = &first[at..first.len().min(at + MOST_RANGES)];
            let AdviseResult { bytes, outcome } = self.actuator.advise(&work.subject.process, Advice::Cold, asked)?;
            let done = usize::try_from(bytes.0 / page).unwrap_or(asked.len()).min(asked.len());
            at += done;
            match outcome {
                // The kernel says why it stopped only when it has done nothing.
                _ if done > 0 => {}
                Outcome::Unsupported | Outcome::Partial => {
                    if outcome == Outcome::Unsupported {
                        refused.push(all[at].clone());
                    }
                    at += 1;
                }
                _ => break,
            }
        }
        Ok(refused)
    }

    /// Why no call about so many bytes may be made now, if so. Waits for the disk first.
    fn may_not(
        &self,
        subject: &Subject,
        advice: Advice,
        bytes: Bytes,
        floor: Bytes,
        on_disk: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<End>> {
        if advice == Advice::PageOut && on_disk {
            self.settle(buffer)?;
        }
        if self.stop.is_set() {
            return Ok(Some(if self.stop.timed_out() { End::Timeout } else { End::Stopped }));
        }
        // What is only marked takes no room anywhere.
        if advice == Advice::Cold {
            return Ok(None);
        }
        let memory = Meminfo::read(self.kernel, buffer)?;
        let end = match advice {
            Advice::PageOut if memory.swap_total != Some(Bytes::ZERO) => {
                // Not knowing how much swap is free is no leave to fill it.
                let free = memory.swap_free.context("no SwapFree in meminfo")?;
                (free < floor + bytes).then_some(End::SwapFloor)
            }
            Advice::WillNeed => {
                let available = memory.mem_available.context("no MemAvailable in meminfo")?;
                let floor = warm::FLOOR.parse::<Amount>()?.of(memory.mem_total.unwrap_or_default());
                let room = warm::room(self.kernel, &subject.group, buffer)?;
                (available < floor + bytes || room < bytes).then_some(End::Floor)
            }
            _ => None,
        };
        Ok(end)
    }

    /// Waits until what went to the swap disk has arrived there.
    fn settle(&self, buffer: &mut Vec<u8>) -> Result<()> {
        let began = clock::read_monotonic();
        let (mut lowest, mut fell) = (Bytes::MAX, began);
        loop {
            let writeback = Meminfo::read(self.kernel, buffer)?.writeback.context("no Writeback in meminfo")?;
            let now = clock::read_monotonic();
            if writeback < lowest {
                (lowest, fell) = (writeback, now);
            }
            let waited = now.since(fell) >= WRITEBACK_PATIENCE || now.since(began) >= LONGEST_WAIT;
            if writeback <= WRITEBACK_OVER || waited || self.stop.is_set() {
                return Ok(());
            }
            self.stop.sleep(Duration::from_millis((writeback.0 / 250_000).clamp(2, 50)));
        }
    }

    /// Waits until nothing of the group is on its way to the disk. A page that is cannot be freed, and
    /// `memory.reclaim` would send out others instead.
    fn wait_until_written(&self, group: &Group, buffer: &mut Vec<u8>) -> bool {
        let began = clock::read_monotonic();
        while !self.stop.is_set() {
            match group.read_stat(buffer) {
                Ok(stat) if stat.file_writeback.is_some_and(|bytes| bytes <= WRITEBACK_OVER) => return true,
                Ok(_) => {}
                // Gone, as a rule: nothing of it is left to free.
                Err(_) => return true,
            }
            if clock::read_monotonic().since(began) >= WRITTEN_TIME {
                break;
            }
            self.stop.sleep(Duration::from_millis(10));
        }
        false
    }

    /// Lets the group swap out no more than `excess` until its `memory.swap.max` is given back: a single write to
    /// `memory.reclaim` can send out a whole group, because pages that are on their way do not count as freed.
    fn bound_swap<'g>(&mut self, group: &'g Group, excess: Bytes, buffer: &mut Vec<u8>) -> Result<Option<Borrowed<'g>>>
    where
        Self: 'g,
    {
        const FILE: &str = "memory.swap.max";
        let Some(journal) = self.journal else { return Ok(None) };
        if !group.dir().may_write(FILE) {
            return Ok(None);
        }
        let before = group.read_limit(FILE, buffer)?;
        let low = Limit::Bytes(group.read_swap_current(buffer)? + excess);
        if low >= before {
            return Ok(None);
        }
        let Some(borrowed) = journal.borrow(group, FILE, before)? else { return Ok(None) };
        match self.actuator.write(group.dir(), FILE, &low.to_string())? {
            Outcome::Done => Ok(Some(borrowed)),
            _ => borrowed.give_back(self.actuator).map(|()| None),
        }
    }

    /// Frees the swap cache that was made: `cached` was there before.
    fn free_cached(&mut self, work: &mut Work<'_>, cached: Bytes) -> Result<()> {
        let Some(account) = &work.subject.account else { return Ok(()) };
        if !work.on_disk || work.report.swapped_out < SMALLEST {
            return Ok(());
        }
        let has_arrived = self.wait_until_written(&account.group, &mut work.buffer);
        let made =
            |work: &mut Work<'_>| -> Result<Bytes> { Ok((work.cached()? - cached).min(work.report.swapped_out)) };
        let amount = made(work)?;
        work.report.left_cached = amount;
        if amount < SMALLEST || self.stop.is_set() {
            return Ok(());
        }
        if !has_arrived {
            work.report.notes.push("the swap disk does not keep up, so what went there stays in memory as well".into());
            return Ok(());
        }
        let backend = match Backend::probe(BackendChoice::Auto, &account.group, self.actuator) {
            Ok(backend) => backend,
            Err(err) => {
                work.report
                    .notes
                    .push(format!("{err:#}, so {amount} of swap cache stay in memory until they are reclaimed"));
                return Ok(());
            }
        };
        let excess = Bytes(amount.0 / 16).max(LEAST_EXCESS);
        let bound = self.bound_swap(&account.group, excess, &mut work.buffer)?;
        // These pages are in swap already, and as a rule first in the kernel's order. If the kernel sends out
        // other pages of the group instead, this limit ends the job.
        let job = Job { swap_writes: excess, ..Job::new(&self.config.sweep, amount) };
        let mut worker =
            Worker { kernel: self.kernel, actuator: self.actuator, backend, journal: None, stop: self.stop };
        let behind = worker.run(&account.group, job, None, &mut |_| {});
        if let Some(borrowed) = bound {
            borrowed.give_back(self.actuator)?;
        }
        work.report.freed += behind.freed;
        work.report.freed_behind = behind.freed;
        work.report.left_cached = made(work)?;
        if let Some(error) = behind.error {
            work.report.notes.push(error);
        } else if matches!(behind.end, End::Denied | End::Unsupported) {
            work.report.notes.push(format!("memory.reclaim of its group: {}", behind.end.words()));
        }
        Ok(())
    }
}

impl Report {
    fn new(subject: &Subject, end: End) -> Self {
        let stat = subject.process.stat();
        Report {
            pid: stat.pid,
            name: omr_base::text::printable(&stat.comm.to_string_lossy()),
            group: subject.group.to_string_lossy().into_owned(),
            hinted: Bytes::ZERO,
            resident_before: Bytes::ZERO,
            resident_after: None,
            swapped_out: Bytes::ZERO,
            places: Ranges::new(),
            freed: Bytes::ZERO,
            freed_behind: Bytes::ZERO,
            left_cached: Bytes::ZERO,
            skipped: Skipped::default(),
            not_mapped: Bytes::ZERO,
            changed: false,
            retried: 0,
            ranges: Vec::new(),
            more_ranges: 0,
            calls: 0,
            longest_call_ms: 0,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            end,
            notes: Vec::new(),
            mappings: Vec::new(),
        }
    }

    fn add(&mut self, range: &Range<u64>, bytes: Bytes, why: Why, hinted: Bytes, retried: u32) {
        if self.ranges.len() == MOST_NAMED {
            self.more_ranges += 1;
            return;
        }
        self.ranges.push(Exception { range: text(range), bytes, why, hinted, retried });
    }

    fn add_changed(&mut self, range: &Range<u64>, hinted: Bytes, retried: u32) {
        self.changed = true;
        self.retried += u32::from(retried > 0);
        self.add(range, length(range), Why::Changed, hinted, retried);
    }

    fn add_skipped(&mut self, part: &Part) {
        if let Some((skip, bytes)) = part.skipped().filter(|(_, bytes)| bytes.0 > 0) {
            self.add(&part.mapping.range, bytes, Why::Skipped(skip), Bytes::ZERO, 0);
        }
    }
}

impl Work<'_> {
    /// Swap cache of the group that accounts for the process.
    fn cached(&mut self) -> Result<Bytes> {
        let Some(account) = &self.subject.account else { return Ok(Bytes::ZERO) };
        match account.group.read_stat(&mut self.buffer) {
            Ok(stat) => Ok(stat.swapcached.unwrap_or_default()),
            Err(err) if err.is_gone() => Ok(Bytes::ZERO),
            Err(err) => Err(err.into()),
        }
    }

    /// What of these ranges is in memory, and what in swap.
    fn residency(&mut self, ranges: &Ranges) -> omr_kernel::Result<(Ranges, Ranges)> {
        let found = self.pagemap.residency(ranges)?;
        // Before 6.7 the file of a process that has ended is empty, as if nothing were in memory.
        let changed = self.layout.update()?.intersection(ranges);
        changed.as_slice().iter().for_each(|range| self.report.add_changed(range, Bytes::ZERO, 0));
        Ok(found)
    }

    /// Finds out why the kernel refused what it did, and which of `without_pages`, which it refused as well, are devices.
    fn name_refused(&mut self, without_pages: &Ranges) {
        if self.refused.is_empty() && without_pages.is_empty() {
            return;
        }
        let details = maps::read_smaps(self.subject.process.dir()).unwrap_or_default();
        let mut named = Ranges::new();
        for Detail { mapping, refusal, .. } in &details {
            let Some(refusal) = refusal else { continue };
            let mut refused = self.refused.within(&mapping.range);
            if *refusal == Refusal::Device {
                refused = refused.union(&without_pages.within(&mapping.range));
            }
            self.pass_over(&refused, Skip::from(*refusal));
            named.push(mapping.range.clone());
        }
        // What says nothing now was unlocked since.
        self.pass_over(&self.refused.without(&named), Skip::Locked);
    }

    fn pass_over(&mut self, ranges: &Ranges, skip: Skip) {
        for range in ranges.as_slice() {
            self.report.skipped.add(skip, length(range));
            self.report.add(range, length(range), Why::Skipped(skip), Bytes::ZERO, 0);
        }
    }
}

/// Takes the first `bytes` of the queue.
fn take(queue: &mut VecDeque<Range<u64>>, bytes: Bytes) -> Ranges {
    let (mut taken, mut left) = (Ranges::new(), bytes.0);
    while left > 0
        && let Some(range) = queue.pop_front()
    {
        let end = range.end.min(range.start.saturating_add(left));
        left -= end - range.start;
        if end < range.end {
            queue.push_front(end..range.end);
        }
        taken.insert(range.start..end);
    }
    taken
}

fn is(err: &anyhow::Error, what: fn(&omr_kernel::Error) -> bool) -> bool {
    err.downcast_ref::<omr_kernel::Error>().is_some_and(what)
}

#[cfg(test)]
mod tests {
    use omr_kernel::Dir;
    use omr_kernel::process::Process;
    use omr_testkit::{FakeRoot, Release};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process with these mappings, of which 32 MiB from the start are in memory.
    fn fake_process(mappings: &[Range<u64>]) -> (FakeRoot, Kernel, Subject) {
        let root = FakeRoot::captured(Release::V6_12)
            .proc("7/stat", "7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0")
            .proc("7/pagemap", (1u64 << 63).to_ne_bytes().repeat(8192))
            .busy_group("a");
        remap(&root, mappings);
        let kernel = Kernel::open(root.path()).expect("a root");
        let process = Process::open(&kernel, 7).expect("a process");
        (root, kernel, Subject { process, group: "a".into(), account: None })
    }

    fn remap(root: &FakeRoot, mappings: &[Range<u64>]) {
        let line = |range: &Range<u64>| format!("{:08x}-{:08x} rw-p 00000000 00:00 0\n", range.start, range.end);
        root.write("proc/7/maps", mappings.iter().map(line).collect::<String>());
    }

    #[test]
    fn ranges_are_taken_from_the_front_and_cut_where_it_is_enough() {
        let mut queue: VecDeque<Range<u64>> = [0x4000..0x6000, 0x1000..0x3000].into();
        assert_eq!(take(&mut queue, Bytes(0x3000)).as_slice(), [0x1000..0x2000, 0x4000..0x6000]);
        assert_eq!(queue, [0x2000..0x3000]);
        assert_eq!(take(&mut queue, Bytes(0x9000)).bytes(), Bytes(0x1000));
        assert!(take(&mut queue, Bytes(0x9000)).is_empty());
    }

    /// A kernel that does all it is asked, and keeps how much that was: of each call, its ranges.
    #[derive(Default)]
    struct Keeps(Vec<Vec<Bytes>>);

    impl Actuator for Keeps {
        fn write(&mut self, _: &Dir, _: &str, _: &str) -> omr_kernel::Result<Outcome> {
            unreachable!("nothing is written to a file")
        }

        fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> omr_kernel::Result<AdviseResult> {
            self.0.push(ranges.iter().map(length).collect());
            Ok(AdviseResult { bytes: ranges.iter().map(length).sum(), outcome: Outcome::Done })
        }

        fn is_live(&self) -> bool {
            true
        }
    }

    /// What comes of such a hint about what lies within, or all of it.
    fn hinted(
        kernel: &Kernel,
        subject: &Subject,
        advice: Advice,
        within: Option<Range<u64>>,
        actuator: &mut dyn Actuator,
    ) -> Report {
        let mut hinter = Hinter {
            kernel,
            config: &Config::default(),
            actuator,
            journal: None,
            stop: &Flag::with_timeout(None),
            progress: &mut |_| {},
        };
        let selection = Selection { advice, within: within.map(|range| Ranges::from_iter([range])), backing: None };
        let extent = Extent { amount: Amount::Max, swap_floor: Some(Amount::Bytes(Bytes::ZERO)) };
        hinter.run(subject, &selection, extent).expect("a report")
    }

    #[test]
    fn no_call_holds_the_lock_for_more_than_it_has_to() {
        for (advice, most) in [(Advice::Cold, Bytes::mib(8)), (Advice::PageOut, CHUNK)] {
            let (_root, kernel, subject) = fake_process(&[0..32 * MIB]);
            let mut actuator = Keeps::default();
            let report = hinted(&kernel, &subject, advice, Some(0..20 * MIB), &mut actuator);
            assert_eq!(report.hinted, Bytes::mib(20), "{report:?}");
            let calls: Vec<Bytes> = actuator.0.iter().map(|ranges| ranges.iter().copied().sum()).collect();
            assert_eq!(calls.iter().max(), Some(&most), "{advice:?}");
            assert!(
                actuator.0.iter().flatten().all(|range| *range <= CHUNK),
                "nor for one range, where that is what counts"
            );
        }
    }

    #[test]
    fn what_changes_between_the_last_call_and_the_look_at_what_came_of_it_is_told() {
        for (now, changed) in [(2 * MIB..3 * MIB, true), (2 * MIB..4 * MIB, false)] {
            let (root, kernel, subject) = fake_process(&[0..MIB, 2 * MIB..4 * MIB]);
            let dir = subject.process.dir();
            let mut work = Work {
                advice: Advice::Cold,
                layout: Layout::read(dir).expect("a layout"),
                pagemap: Pagemap::open(dir, kernel.page()).expect("a page table"),
                floor: Bytes::ZERO,
                on_disk: false,
                refused: Ranges::new(),
                report: Report::new(&subject, End::Complete),
                buffer: Vec::new(),
                subject: &subject,
            };
            let hinted = Ranges::from_iter([3 * MIB..4 * MIB]);
            work.residency(&hinted).expect("a look");
            assert!(!work.report.changed);
            remap(&root, &[now]);
            work.residency(&hinted).expect("a look");
            assert_eq!(work.report.changed, changed, "elsewhere is not where it was hinted");
        }
    }

    /// A kernel that refuses what lies in these mappings. While it is asked for the first time the process changes its own.
    struct Refuses<'a> {
        refused: &'a [Range<u64>],
        root: &'a FakeRoot,
        then: Option<String>,
    }

    impl Actuator for Refuses<'_> {
        fn write(&mut self, _: &Dir, _: &str, _: &str) -> omr_kernel::Result<Outcome> {
            unreachable!("nothing is written to a file")
        }

        fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> omr_kernel::Result<AdviseResult> {
            if let Some(maps) = self.then.take() {
                self.root.write("proc/7/maps", maps);
            }
            let is_refused = |range: &Range<u64>| self.refused.iter().any(|refused| refused.contains(&range.start));
            let bytes = ranges.iter().take_while(|range| !is_refused(range)).map(length).sum();
            let outcome = if bytes == Bytes::ZERO { Outcome::Unsupported } else { Outcome::Done };
            Ok(AdviseResult { bytes, outcome })
        }

        fn is_live(&self) -> bool {
            true
        }
    }

    #[test]
    fn each_range_that_was_not_hinted_as_asked_is_named_with_the_reason() {
        let (root, kernel, subject) = fake_process(&[0..MIB, 2 * MIB..4 * MIB, 6 * MIB..7 * MIB]);
        let exception = |range: &Range<u64>, why, hinted, retried| {
            let (range, bytes) = (text(range), length(range));
            Exception { range, bytes, why, hinted, retried }
        };
        // Of both of these nothing is in the page table: a file that nobody has read, and memory of a device.
        let (unread, device) = (40 * MIB..41 * MIB, 44 * MIB..45 * MIB);
        let file = |range: &Range<u64>| format!("{:x}-{:x} rw-p 00000000 00:05 9 /a\n", range.start, range.end);
        let before = root.read("proc/7/maps") + &file(&unread) + &file(&device);
        root.write("proc/7/maps", &before);
        let head = |range: &Range<u64>| format!("{:x}-{:x} rw-p 00000000 00:00 0\n", range.start, range.end);
        root.write("proc/7/smaps", [&head(&(0..MIB)), "VmFlags: rd lo\n", &head(&device), "VmFlags: rd pf\n"].concat());

        let mut kernel_of = Refuses { refused: &[0..MIB, device.clone()], root: &root, then: None };
        let report = hinted(&kernel, &subject, Advice::Cold, None, &mut kernel_of);
        let skipped = |range, skip| exception(range, Why::Skipped(skip), Bytes::ZERO, 0);
        assert_eq!(report.ranges, [skipped(&(0..MIB), Skip::Locked), skipped(&device, Skip::Device)]);
        assert_eq!((report.skipped.locked, report.skipped.device_mapped), (Bytes::mib(1), Bytes::mib(1)));
        assert_eq!((report.hinted, report.changed, report.retried), (Bytes::mib(3), false, 0));

        // The second loses its second half, and the third is a file now.
        let then = head(&(0..MIB)) + &head(&(2 * MIB..3 * MIB)) + &file(&(6 * MIB..7 * MIB));
        let mut kernel_of = Refuses { refused: &[], root: &root, then: Some(then) };
        let report = hinted(&kernel, &subject, Advice::Cold, Some(0..20 * MIB), &mut kernel_of);
        let changed = |range, retried| exception(range, Why::Changed, Bytes::mib(1), retried);
        assert_eq!(report.ranges, [changed(&(2 * MIB..4 * MIB), 0), changed(&(6 * MIB..7 * MIB), 1)]);
        assert_eq!((report.hinted, report.changed, report.retried), (Bytes::mib(3), true, 1));
        let json = serde_json::to_value(&report.ranges[1]).expect("JSON");
        let expected = serde_json::json!({
            "range": "600000-700000", "bytes": MIB, "why": "changed", "hinted": MIB, "retried": 1
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn only_so_many_ranges_are_named() {
        let (_root, _, subject) = fake_process(&[0..MIB]);
        let mut report = Report::new(&subject, End::Complete);
        for start in 0..150 {
            report.add(&(start..start + 1), Bytes(1), Why::Skipped(Skip::Shared), Bytes::ZERO, 0);
        }
        assert_eq!((report.ranges.len(), report.more_ranges), (100, 50));
        assert_eq!(serde_json::to_value(report.ranges[0].why).expect("JSON"), "shared");
    }
}
