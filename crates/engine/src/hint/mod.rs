//! Hints about the memory of processes: one process at a time, in calls between which the run can be
//! cancelled, and what came of them, measured.

mod plan;
mod report;
mod subject;
mod swap_cache;
mod work;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::madvise::{Batch, CHUNK, Hint, MOST_RANGES};
use omr_actuate::{Advice, AdviseResult, Outcome};
use omr_kernel::clock;
use omr_kernel::maps::{self, Layout};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::pagemap::{NEAR, Pagemap};
use omr_kernel::process::Capability;
use omr_kernel::ranges::{Ranges, length};
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::{Config, End};
use omr_units::{Amount, Bytes, Limit, millis};

use self::plan::{Line, Plan, detail};
use self::work::Work;
use crate::reclaim::is_gone;
use crate::reclaim::writeback::{self, Limits};
use crate::reclaim::{swap_context, swap_floor_of};
use crate::session::{Progress, Session};
use crate::warm;

pub use self::plan::{Selection, Skip, Skipped};
pub use self::report::{Exception, Report, Why};
pub use self::subject::{Account, Ignore, Rules, Subject, descendants, name, open};

/// How long a call that pages out waits for the swap disk. Writeback that does not fall for 2 s is of
/// other programs.
const DISK: Limits = Limits { longest: Duration::from_secs(10), patience: Duration::from_secs(2) };
/// Rounds of paging out after which nothing has left that could.
const FUTILE: u32 = 8;
/// The most memory that one call deactivates. Such a call waits for nothing, but 7.x holds the process's
/// `mmap_lock` for all of it.
const DEACTIVATED: Bytes = Bytes::mib(8);

/// How much is to be done to one process.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Paging out ends when this much has left. A share is one of the resident memory.
    pub amount: Amount,
    /// Swap that stays free; `None`: as much as the configuration says.
    pub swap_floor: Option<Amount>,
}

/// Hints processes, one after the other.
pub(crate) struct MadviseSession<'s, 'a> {
    /// What every run needs. Without a journal the amount that freeing swap cache sends to swap has no
    /// hard bound.
    pub session: &'s mut Session<'a>,
    /// The configuration of the policy.
    pub config: &'s Config,
}

impl MadviseSession<'_, '_> {
    /// Hints one process.
    pub fn run(&mut self, subject: &Subject, selection: &Selection, extent: Extent) -> Result<Report> {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let mut report = match self.find(subject, selection, extent) {
            Ok((work, plan)) => self.carry_out(work, &plan, extent)?,
            Err(err) if is_gone(&err) => Report::new(subject, End::Gone),
            Err(err) if err.downcast_ref().is_some_and(omr_kernel::Error::is_denied) => {
                return Err(subject::denied(
                    self.session.host.kernel,
                    &name(subject.process.stat()),
                    Capability::SysPtrace,
                ));
            }
            Err(err) => return Err(err),
        };
        report.wall = clock::read_monotonic().since(began);
        report.cpu = clock::read_thread_cpu().saturating_sub(cpu);
        Ok(report)
    }

    /// Finds what is to be hinted.
    fn find<'a>(&self, subject: &'a Subject, selection: &Selection, extent: Extent) -> Result<(Work<'a>, Plan)> {
        let dir = subject.process.dir();
        let swap = SwapSpace::read(self.session.host.kernel).context("what swap there is cannot be told")?;
        let no_swap = if selection.advice == Advice::PageOut { self.no_swap(subject, swap)? } else { None };
        let (layout, mut pagemap) = (Layout::read(dir)?, Pagemap::open(dir, self.session.host.kernel.page())?);
        let details = if self.session.actuator.is_live() { Vec::new() } else { maps::read_smaps(dir)? };
        let refusal = |mapping: &maps::Mapping| detail(&details, mapping.range.start)?.refusal;
        let plan = Plan::find(layout.mappings(), &mut pagemap, selection, no_swap.is_none(), refusal)?;
        let mut report = Report::new(subject, End::Complete);
        report.resident_before = plan.parts.iter().filter(|part| part.skip.is_none()).map(|p| p.present.bytes()).sum();
        report.skipped = plan.skipped();
        report.not_mapped = plan.not_mapped;
        report.notes.extend(no_swap.filter(|_| report.skipped.no_swap.0 > 0));
        if !self.session.actuator.is_live() {
            report.mappings = plan.parts.iter().map(|part| Line::of(part, &details)).collect();
        }
        let context = swap_context(self.session.host.kernel);
        let amount = extent.amount.of(report.resident_before);
        let work = Work {
            subject,
            advice: selection.advice,
            layout,
            pagemap,
            floor: swap_floor_of(self.config, extent.swap_floor, context, amount),
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
            let group = Group::open(self.session.host.kernel.cgroup()?, path)?;
            match group.read_limit("memory.swap.max", buffer) {
                Ok(Limit::Bytes(most))
                    if most - group.read_swap_current(buffer)? < self.session.host.kernel.page().bytes() =>
                {
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

    fn carry_out(&mut self, mut work: Work<'_>, plan: &Plan, extent: Extent) -> Result<Report> {
        let mut ranges = plan.ranges();
        if !self.session.actuator.is_live() {
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
            // The kernel asks for both rights with each call, the right to look into the process first. The
            // process may have changed its user since.
            let process = &work.subject.process;
            let needed = match Layout::read(process.dir()) {
                Err(err) if err.is_denied() => Capability::SysPtrace,
                _ => Capability::SysNice,
            };
            return Err(subject::denied(self.session.host.kernel, &name(process.stat()), needed));
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

    /// Pages out until as much has left as may leave. The page table says how much that is: the kernel
    /// passes over pages that others have mapped as well, or that are in use, and does not say so.
    fn page_out(&mut self, work: &mut Work<'_>, mut queue: VecDeque<Range<u64>>, extent: Extent) -> Result<End> {
        let most = self.most(work, extent);
        let page = self.session.host.kernel.page().bytes();
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

    /// Gives the hint about these ranges. What ended it early, if anything.
    fn give(&mut self, work: &mut Work<'_>, ranges: &[Range<u64>]) -> Result<Option<End>> {
        let advice = work.advice;
        let hints = ranges.iter().map(|range| Hint { range: range.clone(), advice }).collect();
        let subject = work.subject;
        let current = |buffer: &mut Vec<u8>| subject.account.as_ref()?.group.read_current(buffer).ok();
        let call = if advice == Advice::Cold { DEACTIVATED } else { CHUNK };
        let mut batch = Batch::new(&subject.process, &mut work.layout, hints, CHUNK).in_calls_of(call);
        let (mut sum, mut end) = (work.report.hinted, None);
        while let Some(bytes) = batch.next_call()? {
            end = self.may_not(subject, advice, bytes, work.floor, work.on_disk, &mut work.buffer)?;
            if end.is_some() {
                break;
            }
            let before = current(&mut work.buffer);
            let began = clock::read_monotonic();
            sum += batch.call(self.session.actuator)?;
            let took = millis(clock::read_monotonic().since(began));
            work.report.calls += 1;
            work.report.longest_call_ms = work.report.longest_call_ms.max(took);
            if let (Some(before), Some(after)) = (before, current(&mut work.buffer)) {
                work.report.freed += before - after;
            }
            (self.session.progress)(Progress { hinted: sum, ..Progress::default() });
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

    /// Mappings that may be of a device and are refused as such: asks for the first page of each, to which
    /// nothing happens as no page of them is in the page table.
    fn find_devices(&mut self, work: &Work<'_>, plan: &Plan) -> Result<Ranges> {
        let mut refused = Ranges::new();
        if work.advice == Advice::WillNeed || matches!(work.report.end, End::Gone | End::Stopped | End::Timeout) {
            return Ok(refused);
        }
        let page = self.session.host.kernel.page().bytes().0;
        let all = plan.without_pages();
        let first: Vec<_> = all.iter().map(|range| range.start..range.start + page).collect();
        let mut at = 0;
        while at < all.len() {
            let asked = &first[at..first.len().min(at + MOST_RANGES)];
            let AdviseResult { bytes, outcome } =
                self.session.actuator.advise(&work.subject.process, Advice::Cold, asked)?;
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

    /// Why no call about this many bytes may be made now, if so. Waits for the swap disk first.
    fn may_not(
        &self,
        subject: &Subject,
        advice: Advice,
        bytes: Bytes,
        floor: Bytes,
        on_disk: bool,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<End>> {
        let kernel = self.session.host.kernel;
        if advice == Advice::PageOut && on_disk {
            writeback::wait(self.session.cancel, DISK, || {
                Meminfo::read(kernel, buffer)?.writeback.context("no Writeback in meminfo")
            })?;
        }
        let cancelled = self.session.cancelled();
        // Memory that is only deactivated takes no room anywhere.
        if cancelled.is_some() || advice == Advice::Cold {
            return Ok(cancelled);
        }
        let memory = Meminfo::read(self.session.host.kernel, buffer)?;
        let end = match advice {
            Advice::PageOut if memory.swap_total != Some(Bytes::ZERO) => {
                // The run must not fill swap when it is not known how much is free.
                let free = memory.swap_free.context("no SwapFree in meminfo")?;
                (free < floor + bytes).then_some(End::SwapFloor)
            }
            Advice::WillNeed => {
                let available = memory.mem_available.context("no MemAvailable in meminfo")?;
                let floor = warm::FLOOR.parse::<Amount>()?.of(memory.mem_total.unwrap_or_default());
                let room = warm::room(self.session.host.kernel, &subject.group, buffer)?;
                (available < floor + bytes || room < bytes).then_some(End::Floor)
            }
            _ => None,
        };
        Ok(end)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_actuate::Actuator;
    use omr_base::cancel::Flag;
    use omr_kernel::process::Process;
    use omr_kernel::{Dir, Kernel};
    use omr_testkit::{FakeRoot, Release};

    use super::plan::text;
    use super::*;
    use crate::session::Host;

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
        let mut session = Session {
            host: Host { kernel, root: Path::new("/") },
            actuator,
            journal: None,
            cancel: &Flag::with_timeout(None),
            progress: &mut |_| {},
        };
        let selection = Selection { advice, within: within.map(|range| Ranges::from_iter([range])), backing: None };
        let extent = Extent { amount: Amount::Max, swap_floor: Some(Amount::Bytes(Bytes::ZERO)) };
        session.hint(&Config::default(), subject, &selection, extent).expect("a report")
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
