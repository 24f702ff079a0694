//! Hints about the memory of processes, one process at a time. A run can be cancelled between two
//! calls, and its result is measured.

mod layout;
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
use self::work::HintState;
use crate::reclaim::is_gone;
use crate::reclaim::writeback::{self, Limits};
use crate::reclaim::{swap_context, swap_floor_of};
use crate::session::{Progress, Session};
use crate::warm;

pub use self::layout::{Expected, LayoutId};
pub use self::plan::{Selection, Skip, Skipped};
pub use self::report::{RangeResult, Report, Why};
pub use self::subject::{Account, Ignore, Rules, Subject, descendants, name, open};

/// The longest wait for the swap disk before a page-out call. Writeback that does not fall for 2 s
/// belongs to other programs.
const DISK: Limits = Limits { longest: Duration::from_secs(10), patience: Duration::from_secs(2) };
/// The number of rounds without success after which a page-out ends.
const FUTILE: u32 = 8;
/// The most memory that one call deactivates. Such a call waits for nothing, but 7.x holds the
/// process's `mmap_lock` for all of it.
const DEACTIVATED: Bytes = Bytes::mib(8);

/// The amount of memory that a hint is for, and the swap that stays free.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The amount after which paging out ends. A share refers to the resident memory.
    pub amount: Amount,
    /// Swap that stays free; `None`: by the configuration.
    pub swap_floor: Option<Amount>,
}

/// Hints processes, one after another.
pub(crate) struct MadviseSession<'s, 'a> {
    /// The session. Without a journal, freeing swap cache may send any amount to swap.
    pub session: &'s mut Session<'a>,
    /// The configuration of the policy.
    pub config: &'s Config,
}

impl MadviseSession<'_, '_> {
    /// Hints one process.
    pub fn run(&mut self, subject: &Subject, selection: &Selection, extent: Extent) -> Result<Report> {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let mut report = match self.plan(subject, selection, extent) {
            Ok((work, plan)) => self.carry_out(work, &plan, extent)?,
            Err(err) if is_gone(&err) => Report::new(subject, selection, End::Gone),
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

    /// Finds the ranges to hint.
    fn plan<'a>(
        &self,
        subject: &'a Subject,
        selection: &'a Selection,
        extent: Extent,
    ) -> Result<(HintState<'a>, Plan)> {
        let dir = subject.process.dir();
        let swap =
            SwapSpace::read(self.session.host.kernel).context("the kernel's list of swap devices cannot be read")?;
        let no_swap = if selection.advice == Advice::PageOut { self.swap_obstacle(subject, swap)? } else { None };
        let (layout, mut pagemap) = (Layout::read(dir)?, Pagemap::open(dir, self.session.host.kernel.page())?);
        let details = if self.session.actuator.is_live() { Vec::new() } else { maps::read_smaps(dir)? };
        let refusal = |mapping: &maps::Mapping| detail(&details, mapping.range.start)?.refusal;
        let plan = Plan::new(layout.mappings(), &mut pagemap, selection, no_swap.is_none(), refusal)?;
        let mut report = Report::new(subject, selection, End::Complete);
        report.layout = Some(LayoutId::of(&subject.process, &layout, selection.expected.within.as_ref()));
        report.resident_before = plan.parts.iter().filter(|part| part.skip.is_none()).map(|p| p.present.bytes()).sum();
        report.skipped = plan.skipped();
        report.not_mapped = plan.not_mapped.bytes();
        for range in plan.not_mapped.as_slice() {
            report.add(range, length(range), Why::NotMapped, Bytes::ZERO, 0);
        }
        report.notes.extend(no_swap.filter(|_| report.skipped.no_swap.0 > 0));
        if !self.session.actuator.is_live() {
            report.mappings = plan.parts.iter().map(|part| Line::of(part, &details)).collect();
        }
        let context = swap_context(self.session.host.kernel);
        let amount = extent.amount.of(report.resident_before);
        let work = HintState {
            subject,
            advice: selection.advice,
            expected: &selection.expected,
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

    /// Returns the reason why anonymous memory of a process cannot be paged out; `None`: it can be.
    fn swap_obstacle(&self, subject: &Subject, swap: SwapSpace) -> Result<Option<String>> {
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
                        "memory.swap.max of {shown} is reached ({most}), so anonymous memory cannot be paged out"
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

    fn carry_out(&mut self, mut work: HintState<'_>, plan: &Plan, extent: Extent) -> Result<Report> {
        let mut ranges = plan.ranges();
        if !self.session.actuator.is_live() {
            let all = ranges.iter().map(length).sum();
            let most = if work.advice == Advice::PageOut { self.most_to_page_out(&work, extent) } else { Bytes::MAX };
            work.report.hinted = most.min(all);
            work.report.resident_after = Some(work.report.resident_before);
            return Ok(work.report);
        }
        if work.expected.layout.is_some_and(|expected| work.report.layout != Some(expected)) {
            work.report.cancelled = true;
            work.report.end = End::Stopped;
            return Ok(work.report);
        }
        let all: Ranges = plan.parts.iter().flat_map(|part| part.hint.as_slice().iter().cloned()).collect();
        let cached = work.read_swap_cache(self.session.host.kernel)?;
        work.report.end = match work.advice {
            Advice::PageOut => {
                work.report.places = all.bridged(NEAR);
                self.page_out(&mut work, ranges.into(), extent)?
            }
            Advice::WillNeed => {
                // A user may be waiting, so the largest ranges come first.
                ranges.sort_by_key(|range| Reverse(length(range)));
                self.advise(&mut work, &ranges)?.unwrap_or(End::Complete)
            }
            _ => self.advise(&mut work, all.as_slice())?.unwrap_or(End::Complete),
        };
        if work.report.end == End::Denied {
            // Each call needs two rights, first the right to read the process. The process may have
            // changed its user since.
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
        work.report_refused(&devices);
        plan.parts.iter().for_each(|part| work.report.add_skipped(part));
        if work.advice == Advice::PageOut {
            self.free_cached(&mut work, cached)?;
        }
        if let Some(after) = work.report.resident_after {
            // Memory that other processes of the group freed meanwhile is not counted.
            work.report.freed = work.report.freed.min(work.report.resident_before - after);
        }
        Ok(work.report)
    }

    /// Returns the largest amount that may be paged out.
    fn most_to_page_out(&self, work: &HintState<'_>, extent: Extent) -> Bytes {
        let gain = work.subject.account.as_ref().map_or(Bytes::MAX, |account| account.gain);
        match extent.amount {
            Amount::Max => gain,
            amount => amount.of(work.report.resident_before).min(gain),
        }
    }

    /// Pages out until the amount has left memory. The page table shows the amount that has left:
    /// the kernel silently skips pages that are in use or that other processes map, too.
    fn page_out(&mut self, work: &mut HintState<'_>, mut queue: VecDeque<Range<u64>>, extent: Extent) -> Result<End> {
        let most = self.most_to_page_out(work, extent);
        let page = self.session.host.kernel.page().bytes();
        let (mut gone, mut futile) = (Bytes::ZERO, 0);
        loop {
            let left = most - gone;
            if left < page {
                let is_all =
                    extent.amount != Amount::Max && gone + page > extent.amount.of(work.report.resident_before);
                return Ok(if is_all { End::Complete } else { End::Floor });
            }
            let part = take_front(&mut queue, Bytes(left.0 / page.0 * page.0));
            if part.is_empty() {
                return Ok(if extent.amount == Amount::Max { End::Complete } else { End::Futile });
            }
            let end = self.advise(work, part.as_slice())?;
            let went = match work.residency(&part) {
                Ok((present, _)) => part.bytes() - present.bytes(),
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

    /// Gives the hint for these ranges. Returns the reason if it ended early.
    fn advise(&mut self, work: &mut HintState<'_>, ranges: &[Range<u64>]) -> Result<Option<End>> {
        let advice = work.advice;
        let hints = ranges.iter().map(|range| Hint { range: range.clone(), advice }).collect();
        let subject = work.subject;
        let current = |buffer: &mut Vec<u8>| subject.account.as_ref()?.group.read_current(buffer).ok();
        let call = if advice == Advice::Cold { DEACTIVATED } else { CHUNK };
        let mut batch = Batch::new(&subject.process, &mut work.layout, hints, CHUNK).in_calls_of(call);
        let (mut sum, mut end) = (work.report.hinted, None);
        while let Some(bytes) = batch.next_call()? {
            end = self.obstacle_to_call(subject, advice, bytes, work.floor, work.on_disk, &mut work.buffer)?;
            if end.is_none() && work.expected.is_changed(&subject.process)? {
                work.report.cancelled = true;
                end = Some(End::Stopped);
            }
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
            work.report.notes.push("the process is in another pid namespace than omr's /proc".into());
        }
        for (result, range) in batch.end()?.into_iter().zip(ranges) {
            work.report.hinted += result.done.bytes();
            match result.changed {
                true => work.report.add_changed(range, result.done.bytes(), result.retried),
                false => work.report.add_done(range, result.done.bytes()),
            }
            result.refused.as_slice().iter().for_each(|range| work.refused.insert(range.clone()));
        }
        Ok(end)
    }

    /// Returns the mappings that the kernel refuses as memory of a device. Hints the first page of
    /// each mapping, which has no effect, as no page of them is in the page table.
    fn find_devices(&mut self, work: &HintState<'_>, plan: &Plan) -> Result<Ranges> {
        let mut refused = Ranges::new();
        if work.advice == Advice::WillNeed || matches!(work.report.end, End::Gone | End::Stopped | End::Timeout) {
            return Ok(refused);
        }
        let page = self.session.host.kernel.page().bytes().0;
        let all = plan.without_pages();
        let first: Vec<_> = all.iter().map(|range| range.start..range.start + page).collect();
        let mut at = 0;
        while at < all.len() {
            let tried = &first[at..first.len().min(at + MOST_RANGES)];
            let AdviseResult { bytes, outcome } =
                self.session.actuator.advise(&work.subject.process, Advice::Cold, tried)?;
            let done = usize::try_from(bytes.0 / page).unwrap_or(tried.len()).min(tried.len());
            at += done;
            match outcome {
                // The kernel returns the reason only if it has hinted nothing.
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

    /// Returns the reason why no call for this number of bytes may be made now; `None`: it may be.
    /// Waits for the swap disk first.
    fn obstacle_to_call(
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
        // Deactivated memory needs no room.
        if cancelled.is_some() || advice == Advice::Cold {
            return Ok(cancelled);
        }
        let memory = Meminfo::read(self.session.host.kernel, buffer)?;
        let end = match advice {
            Advice::PageOut if memory.swap_total != Some(Bytes::ZERO) => {
                // The run must not fill swap if the free swap is unknown.
                let free = memory.swap_free.context("no SwapFree in meminfo")?;
                (free < floor + bytes).then_some(End::SwapFloor)
            }
            Advice::WillNeed => {
                let available = memory.mem_available.context("no MemAvailable in meminfo")?;
                let floor = warm::FLOOR.parse::<Amount>()?.of(memory.mem_total.unwrap_or_default());
                let room = warm::read_room(self.session.host.kernel, &subject.group, buffer)?;
                (available < floor + bytes || room < bytes).then_some(End::Floor)
            }
            _ => None,
        };
        Ok(end)
    }
}

/// Removes the first `bytes` from the queue.
fn take_front(queue: &mut VecDeque<Range<u64>>, bytes: Bytes) -> Ranges {
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
mod paging_tests;

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

    /// A process with these mappings, whose first 32 MiB are in memory.
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
    fn ranges_are_removed_from_the_front_up_to_the_amount() {
        let mut queue: VecDeque<Range<u64>> = [0x4000..0x6000, 0x1000..0x3000].into();
        assert_eq!(take_front(&mut queue, Bytes(0x3000)).as_slice(), [0x1000..0x2000, 0x4000..0x6000]);
        assert_eq!(queue, [0x2000..0x3000]);
        assert_eq!(take_front(&mut queue, Bytes(0x9000)).bytes(), Bytes(0x1000));
        assert!(take_front(&mut queue, Bytes(0x9000)).is_empty());
    }

    /// A kernel that accepts all hints and records the lengths of the ranges of each call.
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

    /// Hints the memory of a process, or the part of it in `within`, and returns the report.
    fn hinted(
        kernel: &Kernel,
        subject: &Subject,
        advice: Advice,
        within: Option<Range<u64>>,
        actuator: &mut dyn Actuator,
    ) -> Report {
        let within = within.map(|range| Ranges::from_iter([range]));
        hinted_as(kernel, subject, &Selection { within, ..Selection::all(advice) }, actuator)
    }

    fn hinted_as(kernel: &Kernel, subject: &Subject, selection: &Selection, actuator: &mut dyn Actuator) -> Report {
        let mut session = Session {
            host: Host { kernel, root: Path::new("/") },
            actuator,
            journal: None,
            cancel: &Flag::with_timeout(None),
            progress: &mut |_| {},
        };
        let extent = Extent { amount: Amount::Max, swap_floor: Some(Amount::Bytes(Bytes::ZERO)) };
        session.hint(&Config::default(), subject, selection, extent).expect("a report")
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
            assert!(actuator.0.iter().flatten().all(|range| *range <= CHUNK), "no range is longer either");
        }
    }

    #[test]
    fn a_mapping_that_changes_after_the_last_call_is_reported() {
        for (now, changed) in [(2 * MIB..3 * MIB, true), (2 * MIB..4 * MIB, false)] {
            let (root, kernel, subject) = fake_process(&[0..MIB, 2 * MIB..4 * MIB]);
            let dir = subject.process.dir();
            let selection = Selection::all(Advice::Cold);
            let mut work = HintState {
                advice: Advice::Cold,
                expected: &selection.expected,
                layout: Layout::read(dir).expect("a layout"),
                pagemap: Pagemap::open(dir, kernel.page()).expect("a page table"),
                floor: Bytes::ZERO,
                on_disk: false,
                refused: Ranges::new(),
                report: Report::new(&subject, &selection, End::Complete),
                buffer: Vec::new(),
                subject: &subject,
            };
            let hinted = Ranges::from_iter([3 * MIB..4 * MIB]);
            work.residency(&hinted).expect("readable");
            assert!(!work.report.changed);
            remap(&root, &[now]);
            work.residency(&hinted).expect("readable");
            assert_eq!(work.report.changed, changed, "only changes of hinted ranges count");
        }
    }

    /// A kernel that refuses these mappings. During the first call the process changes its
    /// mappings.
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
            RangeResult { range, bytes, why, hinted, retried }
        };
        // Neither of these has pages in the page table: a file that was not read, and memory of a
        // device.
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

        // The second mapping loses its second half, and the third becomes a file.
        let then = head(&(0..MIB)) + &head(&(2 * MIB..3 * MIB)) + &file(&(6 * MIB..7 * MIB));
        let mut kernel_of = Refuses { refused: &[], root: &root, then: Some(then) };
        let report = hinted(&kernel, &subject, Advice::Cold, Some(0..20 * MIB), &mut kernel_of);
        let changed = |range, retried| exception(range, Why::Changed, Bytes::mib(1), retried);
        let mapped: Vec<_> = report.ranges.iter().filter(|range| range.why != Why::NotMapped).collect();
        assert_eq!(mapped, [&changed(&(2 * MIB..4 * MIB), 0), &changed(&(6 * MIB..7 * MIB), 1)]);
        assert_eq!((report.hinted, report.changed, report.retried), (Bytes::mib(3), true, 1));
        let json = serde_json::to_value(mapped[1]).expect("JSON");
        let expected = serde_json::json!({
            "range": "600000-700000", "bytes": MIB, "why": "changed", "hinted": MIB, "retried": 1
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn all_ranges_are_named_on_request() {
        let (_root, kernel, subject) = fake_process(&[0..MIB, 2 * MIB..4 * MIB]);
        for all_ranges in [true, false] {
            let within = Some(Ranges::from_iter([0..MIB / 2, 3 * MIB..5 * MIB]));
            let selection = Selection { within, all_ranges, ..Selection::all(Advice::Cold) };
            let report = hinted_as(&kernel, &subject, &selection, &mut Keeps::default());
            let named: Vec<_> =
                report.ranges.iter().map(|named| (named.range.as_str(), named.why, named.hinted)).collect();
            let gone = ("400000-500000", Why::NotMapped, Bytes::ZERO);
            let done = [("0-80000", Why::Done, Bytes(MIB / 2)), ("300000-400000", Why::Done, Bytes(MIB))];
            match all_ranges {
                true => assert_eq!(named, [gone, done[0], done[1]]),
                false => assert_eq!(named, [gone]),
            }
        }
    }

    #[test]
    fn a_hint_is_cancelled_when_the_layout_is_not_the_expected_one() {
        let (root, kernel, subject) = fake_process(&[0..MIB, 2 * MIB..20 * MIB]);
        let within = Some(Ranges::from_iter([2 * MIB..20 * MIB]));
        let expect = |layout| Selection {
            within: within.clone(),
            expected: Expected { within: within.clone(), layout },
            ..Selection::all(Advice::Cold)
        };
        let layout = hinted_as(&kernel, &subject, &expect(None), &mut Keeps::default()).layout;
        let done = |report: &Report| (report.cancelled, report.end, report.hinted);

        // What is mapped elsewhere does not count.
        remap(&root, &[0..MIB / 2, 2 * MIB..20 * MIB]);
        let report = hinted_as(&kernel, &subject, &expect(layout), &mut Keeps::default());
        assert_eq!(done(&report), (false, End::Complete, Bytes::mib(18)));

        // A change during the first call ends the run before the second.
        let head = format!("{:x}-{:x} rw-p 00000000 00:00 0\n", 2 * MIB, 19 * MIB);
        let mut kernel_of = Refuses { refused: &[], root: &root, then: Some(head) };
        let report = hinted_as(&kernel, &subject, &expect(layout), &mut kernel_of);
        assert_eq!(done(&report), (true, End::Stopped, Bytes::mib(8)));

        // A change before it: nothing is done, and a run that expects nothing is the control.
        let mut none = Keeps::default();
        let report = hinted_as(&kernel, &subject, &expect(layout), &mut none);
        assert_eq!((done(&report), none.0.len()), ((true, End::Stopped, Bytes::ZERO), 0));
        assert_ne!(report.layout, layout);
        let report = hinted_as(&kernel, &subject, &expect(None), &mut Keeps::default());
        assert_eq!(done(&report), (false, End::Complete, Bytes::mib(17)));

        // Another process with the same mappings has another layout.
        let again = hinted_as(&kernel, &subject, &expect(None), &mut Keeps::default()).layout;
        assert_eq!(again, report.layout);
        root.write("proc/7/stat", "7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 501 0 1 0");
        let other = Process::open(&kernel, 7).expect("a process");
        let other = Subject { process: other, group: "a".into(), account: None };
        assert_ne!(hinted_as(&kernel, &other, &expect(None), &mut Keeps::default()).layout, again);
    }

    #[test]
    fn a_report_names_a_limited_number_of_ranges() {
        let (_root, _, subject) = fake_process(&[0..MIB]);
        let named = |all_ranges| {
            let selection = Selection { all_ranges, ..Selection::all(Advice::Cold) };
            let mut report = Report::new(&subject, &selection, End::Complete);
            for start in 0..150 {
                report.add(&(start..start + 1), Bytes(1), Why::Skipped(Skip::Shared), Bytes::ZERO, 0);
            }
            report
        };
        assert_eq!((named(true).ranges.len(), named(true).more_ranges), (150, 0), "on request all of them");
        let mut report = named(false);
        assert_eq!((report.ranges.len(), report.more_ranges), (100, 50));
        report.add_changed(&(0..1), Bytes::ZERO, 0);
        assert_eq!((report.changed, report.retried, report.more_ranges), (true, 0, 51));
        report.add_changed(&(0..1), Bytes::ZERO, 2);
        assert_eq!((report.retried, report.more_ranges), (1, 52), "a range counts once");
        assert_eq!(serde_json::to_value(report.ranges[0].why).expect("JSON"), "shared");
    }
}
