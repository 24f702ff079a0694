//! Reclaiming what was not used for so long, and nothing else.
//!
//! Evicts generations through `lru_gen`, in portions, oldest first, as far as their pages were surely
//! not used for the time asked for. The kernel looks at each page's accessed bit once more before it
//! takes it, so what was used since the last aging stays.
//!
//! Only memory that goes to swap is taken: the age of page cache says when it was read in. Kernels
//! before 6.16 cannot be told so. They take anonymous memory first and go on with page cache when none
//! is left in the *oldest* generation, so there a portion is at most half of what is in that, and the
//! last of it stays. If younger generations are old enough, too, an aging merges them into the oldest.

use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_actuate::lru_gen::EvictionOrder;
use omr_actuate::{Actuator, Outcome};
use omr_base::cancel::{Alarm, Flag};
use omr_kernel::lru_gen::{self, Enabled, Generation, Lists, Reader};
use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, clock};
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::pace::{Job, Next, Pace, PaceSample};
use omr_policy::{End, short};
use omr_units::{Bytes, Limit, Monotonic, PageSize, Pages};

use crate::aging::no_recency;
use crate::reclaim::{Progress, Report, of_machine, reported};

/// Less than this, in a group on a node, is not worth a write.
const SMALLEST: Bytes = omr_policy::pace::SMALLEST_STEP;
/// The same for a swap disk and a kernel that goes on with page cache: one write may send this much.
const SMALLEST_TO_DISK: Bytes = Bytes::mib(1);
/// So many writes that took page cache and no anonymous memory end a run.
const STRIKES: u32 = 2;

/// Agings of one group on one node in one run; two merge whatever is old enough into the oldest.
const MERGES: u32 = 2;

/// The first portion for a swap disk: pages on their way there do not end a write, so only time does.
const FIRST_TIME: Duration = Duration::from_millis(1);

/// Memory whose use is not seen: below this, or this part of what goes to swap, it is left out of account.
const LITTLE: Bytes = Bytes::mib(4);
const LITTLE_PART: u64 = 8;

/// What eviction needs.
pub struct Evictor<'a> {
    kernel: &'a Kernel,
    actuator: &'a mut dyn Actuator,
    stop: &'a Flag,
    reader: Reader,
    /// What the kernel is told; the narrower until it does not know that.
    order: EvictionOrder,
    /// Agings of one group on one node in one run.
    merges: u32,
}

/// What to do next with one of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// There is this much to take up to this generation.
    Evict { up_to: u64, memory: Pages },
    /// There is some, and it can be taken after an aging.
    Merge,
    /// All that is left is younger, or too little.
    Nothing,
}

impl<'a> Evictor<'a> {
    /// For any number of groups.
    pub fn new(kernel: &'a Kernel, actuator: &'a mut dyn Actuator, stop: &'a Flag) -> Self {
        Evictor { kernel, actuator, stop, reader: Reader::default(), order: EvictionOrder::AnonOnly, merges: MERGES }
    }

    /// Makes no aging, which nothing can stop: for who has to end within 100 ms, and ages by other means.
    pub fn without_aging(self) -> Self {
        Evictor { merges: 0, ..self }
    }

    /// Evicts from one group, not from its children, what was not used for `older_than`. The job's
    /// floor is of the group with its children; `inner`: of what it holds beyond them.
    pub fn run(
        &mut self,
        group: &Group,
        mut job: Job,
        inner: Option<Bytes>,
        older_than: Duration,
        progress: &mut dyn FnMut(Progress),
    ) -> Report {
        // The kernel is never told to take page cache here.
        job.file_only = false;
        reported(group, job, inner, |job, report| self.portions(group, job, older_than, report, progress))
    }

    fn portions(
        &mut self,
        group: &Group,
        job: Job,
        older_than: Duration,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<End> {
        let page = self.kernel.page();
        let mut buffer = Vec::with_capacity(8192);
        let stat = group.read_stat(&mut buffer)?;
        report.size = group.read_current(&mut buffer)?;
        report.refaults = stat.refaults().map(|pages| pages.bytes(page));
        let little = little(&stat);
        let unmapped = match unmapped(&stat) {
            Some(unmapped) if unmapped <= little => unmapped,
            much => {
                report.error = much.map(|bytes| format!("{bytes} or more are files in tmpfs that are not mapped"));
                return Ok(End::NotSeen);
            }
        };
        let swap = SwapSpace::read(self.kernel).context("the kernel's list of swap devices cannot be read")?;
        if swap.total == Bytes::ZERO {
            return Ok(End::SwapFloor);
        }
        let above = with_swap_limit(self.kernel, group)?;
        let (on_disk, swap_floor, write_time) = (swap.on_disk, job.swap_floor, job.write_time);
        let mut gauge = Gauge { kernel: self.kernel, group, above, on_disk, swap_floor, buffer };
        let mut pace = Pace::new(job);
        let mut lists = Vec::new();
        self.reader.read_group(self.kernel, group, &mut lists)?;
        let cache_before = cache(&lists);
        let alarm = Alarm::new();
        let mut merges = Merges::default();
        let mut disk = DiskPortion::default();
        let mut taken = Taken::default();
        let mut is_looked_into = false;
        let first = gauge.read()?;
        let mut last = first;
        let end = loop {
            if self.stop.is_set() {
                break if self.stop.timed_out() { End::Timeout } else { End::Stopped };
            }
            let bytes = match pace.next(&last.seen((last.pswpout - first.pswpout).bytes(page))) {
                Next::End(end) => break end,
                Next::Wait(time) => {
                    self.stop.sleep(time);
                    last = gauge.read()?;
                    continue;
                }
                Next::Write { bytes, .. } => bytes,
            };
            // Right before each command: numbers move on, and ids of 6.x are given to other groups.
            self.reader.read_group(self.kernel, group, &mut lists)?;
            if taken.cache_instead(&lists) {
                break End::Futile;
            }
            let smallest = match self.order {
                EvictionOrder::AnonFirst if on_disk => SMALLEST_TO_DISK,
                _ => SMALLEST,
            };
            let Some((list, act)) = self.choose(&lists, older_than, pages(smallest, page), &merges) else {
                break self.nothing_left(group, &lists, older_than, report)?;
            };
            // Not sooner: it takes some time.
            if !is_looked_into {
                is_looked_into = true;
                let advised = no_recency::read(self.kernel, group, little - unmapped, self.stop)?;
                if unmapped + advised > little {
                    let under = format!("{advised} or more are under madvise(MADV_RANDOM) or MADV_SEQUENTIAL");
                    report.error = Some(under);
                    break End::NotSeen;
                }
            }
            let Act::Evict { up_to, memory } = act else {
                merges.count(list.node);
                if self.actuator.is_live() {
                    omr_actuate::lru_gen::run_aging(self.actuator, self.kernel, &list)?;
                }
                continue;
            };
            if !self.actuator.is_live() {
                report.asked = report.asked.min(memory.bytes(page));
                break End::Complete;
            }
            taken.before = Some(list).filter(|_| self.order == EvictionOrder::AnonFirst);
            let most = match self.order {
                EvictionOrder::AnonOnly => memory,
                EvictionOrder::AnonFirst => Pages(memory.0 / 2),
            };
            let amount = Pages(pages(bytes, page).0.min(most.0).max(1));
            let time = if on_disk { disk.time(amount).min(write_time) } else { write_time };
            let (actuator, kernel, order) = (&mut *self.actuator, self.kernel, self.order);
            let began = clock::read_monotonic();
            let outcome =
                alarm.limit(time, || omr_actuate::lru_gen::evict(actuator, kernel, &list, up_to, order, amount))?;
            report.last_write_end = clock::read_monotonic();
            let took = report.last_write_end.since(began);
            report.writes += 1;
            report.longest_write = report.longest_write.max(took);
            match outcome {
                Outcome::Done | Outcome::Partial | Outcome::Interrupted => {}
                Outcome::Gone => break End::Gone,
                Outcome::Denied => break End::Denied,
                Outcome::Unsupported => {
                    // The numbers had moved on, or the kernel does not know this swappiness.
                    self.reader.read_group(self.kernel, group, &mut lists)?;
                    if lists.iter().any(|now| now.id == list.id && is_takable(now, list.node, up_to)) {
                        self.order = EvictionOrder::AnonFirst;
                    }
                }
            }
            let now = gauge.read()?;
            let sent = now.pswpout - last.pswpout;
            disk.learn(sent, took);
            pace.wrote(last.current - now.current, took, sent.0 > 0);
            pace.demoted((now.pgdemote - last.pgdemote).bytes(page));
            last = now;
            progress(Progress { freed: pace.freed(), swapped_out: (last.pswpout - first.pswpout).bytes(page) });
        };
        report.freed = pace.freed();
        report.swapped_out = (last.pswpout - first.pswpout).bytes(page);
        report.demoted = (last.pgdemote - first.pgdemote).bytes(page);
        report.size = last.current;
        // By its own lists: in memory.stat swap cache is a part of "file" or is not, depending on the kernel.
        self.reader.read_group(self.kernel, group, &mut lists)?;
        report.freed_file = (cache_before - cache(&lists)).bytes(page).min(report.freed);
        report.freed_anon = report.freed - report.freed_file;
        report.refaults = group.read_stat(&mut gauge.buffer)?.refaults().map(|pages| pages.bytes(page));
        Ok(end)
    }

    /// The lists with most to take; of those with nothing to take yet the first that wants merging.
    fn choose(&self, lists: &[Lists], older_than: Duration, smallest: Pages, merges: &Merges) -> Option<(Lists, Act)> {
        let acts = lists.iter().map(|list| (*list, act(list, older_than, self.order, smallest)));
        let possible = acts.filter(|(list, act)| match act {
            Act::Evict { .. } => true,
            Act::Merge => merges.count_of(list.node) < self.merges,
            Act::Nothing => false,
        });
        possible.max_by_key(|(_, act)| match act {
            Act::Evict { memory, .. } => memory.0,
            _ => 0,
        })
    }

    /// Why there is nothing to take.
    fn nothing_left(&self, group: &Group, lists: &[Lists], older_than: Duration, report: &mut Report) -> Result<End> {
        if !self.actuator.is_live() {
            report.asked = Bytes::ZERO;
        }
        if !lru_gen::read_enabled(self.kernel)?.is_some_and(Enabled::walks_page_tables) {
            report.error = Some("MGLRU was switched off".into());
            return Ok(End::Unsupported);
        }
        if lists.iter().filter_map(reach).max() >= Some(older_than) {
            return Ok(End::NoMoreCold);
        }
        report.error = Some(not_aged(group, lists, older_than));
        Ok(End::NotAged)
    }
}

/// The group and those above it, as far as `memory.swap.max` counts there. When one of them is
/// reached, cold pages cannot leave and are made young instead.
pub fn with_swap_limit(kernel: &Kernel, group: &Group) -> Result<Vec<Group>> {
    let root = kernel.cgroup()?;
    let paths = group.path().ancestors().filter(|path| !path.as_os_str().is_empty());
    let groups = paths.map(|path| Group::open(root, path));
    let limited = groups.filter(|group| group.as_ref().map_or(true, |group| group.dir().has("memory.swap.max")));
    Ok(limited.collect::<Result<_, _>>()?)
}

/// Agings so far, by node.
#[derive(Default)]
struct Merges(Vec<(u32, u32)>);

impl Merges {
    fn count(&mut self, node: u32) {
        match self.0.iter_mut().find(|(of, _)| *of == node) {
            Some((_, count)) => *count += 1,
            None => self.0.push((node, 1)),
        }
    }

    fn count_of(&self, node: u32) -> u32 {
        self.0.iter().find(|(of, _)| *of == node).map_or(0, |(_, count)| *count)
    }
}

/// Reads what there is to see between two writes.
struct Gauge<'a> {
    kernel: &'a Kernel,
    group: &'a Group,
    /// Groups whose allowance of swap counts.
    above: Vec<Group>,
    on_disk: bool,
    swap_floor: Bytes,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Readings {
    at: Monotonic,
    current: Bytes,
    swapcached: Bytes,
    writeback: Bytes,
    swap_free: Bytes,
    pswpout: Pages,
    pgdemote: Pages,
}

impl Gauge<'_> {
    fn read(&mut self) -> Result<Readings> {
        let Gauge { kernel, group, on_disk, buffer, .. } = self;
        let memory = Meminfo::read(kernel, buffer).map_err(of_machine)?;
        let known = |field: Option<Bytes>, name| field.with_context(|| format!("no {name} in meminfo"));
        // The floor is one of the machine's, not of a group's allowance.
        let allowed = swap_left(&self.above, buffer)? + self.swap_floor;
        let current = group.read_current(buffer)?;
        let vmstat = Vmstat::read(kernel, buffer).map_err(of_machine)?;
        Ok(Readings {
            at: clock::read_monotonic(),
            current,
            swapcached: match *on_disk {
                true => group.read_stat(buffer)?.swapcached.unwrap_or_default(),
                false => Bytes::ZERO,
            },
            writeback: if *on_disk { known(memory.writeback, "Writeback")? } else { Bytes::ZERO },
            swap_free: known(memory.swap_free, "SwapFree")?.min(allowed),
            pswpout: vmstat.pswpout.context("no pswpout in vmstat")?,
            pgdemote: vmstat.pgdemote.unwrap_or_default(),
        })
    }
}

impl Readings {
    fn seen(&self, swap_written: Bytes) -> PaceSample {
        PaceSample {
            at: self.at,
            current: self.current,
            swapcached: self.swapcached,
            writeback: self.writeback,
            swap_free: Some(self.swap_free),
            swap_written,
        }
    }
}

/// How long a write may take, so that it sends no more than so many pages to a disk.
#[derive(Default)]
struct DiskPortion {
    per_page: Option<Duration>,
}

impl DiskPortion {
    fn time(&self, pages: Pages) -> Duration {
        match self.per_page {
            None => FIRST_TIME,
            Some(per_page) => per_page.saturating_mul(u32::try_from(pages.0).unwrap_or(u32::MAX)).max(FIRST_TIME / 4),
        }
    }

    fn learn(&mut self, sent: Pages, took: Duration) {
        if let Ok(sent @ 1..) = u32::try_from(sent.0) {
            self.per_page = Some(took / sent);
        }
    }
}

/// Notices that page cache goes where anonymous memory should, because that cannot leave: zswap is full
/// and may not write to its disk, say.
#[derive(Default)]
struct Taken {
    /// The list before the last write, where the kernel goes on with page cache.
    before: Option<Lists>,
    strikes: u32,
}

impl Taken {
    fn cache_instead(&mut self, lists: &[Lists]) -> bool {
        let now = |before: Lists| lists.iter().find(|now| now.node == before.node).map(|now| (before, now));
        if let Some((before, now)) = self.before.take().and_then(now) {
            let oldest = |list: &Lists| list.generations().first().map_or(Pages(0), |oldest| oldest.anon);
            let moved_on = now.generations().first().map(|first| first.number)
                != before.generations().first().map(|first| first.number);
            let cache = before.file() - now.file();
            let anon = if moved_on { Pages(u64::MAX) } else { oldest(&before) - oldest(now) };
            self.strikes = if cache > anon { self.strikes + 1 } else { 0 };
        }
        self.strikes >= STRIKES
    }
}

/// How much more these groups may have in swap.
pub fn swap_left(groups: &[Group], buffer: &mut Vec<u8>) -> Result<Bytes> {
    let mut left = Bytes::MAX;
    for group in groups {
        if let Limit::Bytes(most) = group.read_limit("memory.swap.max", buffer)? {
            left = left.min(most - group.read_swap_current(buffer)?);
        }
    }
    Ok(left)
}

fn not_aged(group: &Group, lists: &[Lists], older_than: Duration) -> String {
    let (group, time) = (omr_base::text::printable(&group.path().to_string_lossy()), short(older_than));
    let reach = match lists.iter().filter_map(reach).max() {
        Some(reach) => format!("its ages are known for the last {} only", short(reach)),
        None => "its ages are not known".into(),
    };
    let window = humantime::format_duration(older_than);
    format!(
        "{reach}, not for {time}: --wait looks first, as does omr wss {group} --window {}",
        window.to_string().replace(' ', "")
    )
}

/// Whether the kernel evicts up to this generation.
fn is_takable(list: &Lists, node: u32, up_to: u64) -> bool {
    list.node == node && up_to.saturating_add(2) <= list.youngest().number
}

/// How long ago somebody looked first: everything in the oldest generation was not used since then.
fn reach(list: &Lists) -> Option<Duration> {
    list.generations().get(1).map(|next| next.age)
}

/// How much of what goes to swap was surely not used for so long; `None`: nobody looked that long ago.
pub fn old(list: &Lists, older_than: Duration) -> Option<Pages> {
    reach(list).filter(|reach| *reach >= older_than)?;
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than));
    Some(Pages(old.map(|index| generations[index].anon.0).sum()))
}

/// For how long the generation at this place was surely not used: since the next younger was made.
fn idle(generations: &[Generation], index: usize) -> Option<Duration> {
    generations.get(index + 1).map(|next| next.age)
}

fn act(list: &Lists, older_than: Duration, order: EvictionOrder, smallest: Pages) -> Act {
    let generations = list.generations();
    let old = (0..generations.len()).take_while(|&index| idle(generations, index) >= Some(older_than)).count();
    // The kernel evicts nothing of the youngest two.
    let takable = match order {
        EvictionOrder::AnonOnly => old.min(generations.len().saturating_sub(2)),
        EvictionOrder::AnonFirst => old.min(generations.len().saturating_sub(2)).min(1),
    };
    let sum = |count: usize| Pages(generations[..count].iter().map(|generation| generation.anon.0).sum());
    let memory = sum(takable);
    if takable > 0 && memory >= smallest {
        Act::Evict { up_to: generations[takable - 1].number, memory }
    } else if sum(old) >= smallest {
        Act::Merge
    } else {
        Act::Nothing
    }
}

/// Page cache of all nodes.
fn cache(lists: &[Lists]) -> Pages {
    Pages(lists.iter().map(|list| list.file().0).sum())
}

fn pages(bytes: Bytes, page: PageSize) -> Pages {
    Pages(bytes.0 / page.bytes().0)
}

/// Shared memory that is surely not mapped, so used through read and write, if at all: `shmem` beyond all that is
/// mapped of files and shared memory.
fn unmapped(stat: &MemoryStat) -> Option<Bytes> {
    Some(stat.shmem? - stat.file_mapped?)
}

fn little(stat: &MemoryStat) -> Bytes {
    LITTLE.max(Bytes(stat.swap_backed().unwrap_or_default().0 / LITTLE_PART))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::Path;

    use omr_kernel::lru_gen::Parser;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::Writes;

    /// Generations from number 3 on: age in seconds, anonymous pages, file pages.
    fn list(generations: &[(u64, u64, u64)]) -> Lists {
        let mut text = "memcg     1 /\n node     0\n".to_owned();
        for (number, (age, anon, file)) in (3..).zip(generations) {
            text += &format!(" {number} {} {anon}  {file} \n", age * 1000);
        }
        let mut found = None;
        let mut visit = |_: &[u8], _, lists: &Lists| {
            found = Some(*lists);
            ControlFlow::Continue(())
        };
        let mut parser = Parser::default();
        assert_eq!(parser.feed(text.as_bytes(), &mut visit), Ok(ControlFlow::Continue(())));
        let _ = parser.finish(&mut visit);
        found.expect("lists")
    }

    fn evict(up_to: u64, memory: u64) -> Act {
        Act::Evict { up_to, memory: Pages(memory) }
    }

    #[test]
    fn each_list_gives_what_it_can() {
        let full: &[_] = &[(400, 100, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let emptied: &[_] = &[(400, 0, 7), (180, 200, 7), (60, 400, 7), (1, 800, 7)];
        let young: &[_] = &[(9, 100, 7), (9, 200, 7), (9, 400, 7), (1, 800, 7)];
        // After one aging, long ago: all but the youngest is old, and the kernel wants two younger ones.
        let once: &[_] = &[(400, 0, 7), (400, 0, 7), (400, 100, 7), (300, 5, 7)];
        for (what, generations, seconds, only, first) in [
            ("oldest only", full, 120, evict(3, 100), evict(3, 100)),
            ("exactly as old", full, 180, evict(3, 100), evict(3, 100)),
            ("two are old enough", full, 60, evict(4, 300), evict(3, 100)),
            ("nothing as old", full, 181, Act::Nothing, Act::Nothing),
            ("of three the third is of the youngest two", full, 1, evict(4, 300), evict(3, 100)),
            ("page cache stands in the way", emptied, 60, evict(4, 200), Act::Merge),
            ("all is young", young, 10, Act::Nothing, Act::Nothing),
            ("aged once", once, 120, Act::Merge, Act::Merge),
            ("two generations", &[(400, 100, 7), (300, 5, 7)], 120, Act::Merge, Act::Merge),
            ("one generation", &[(400, 100, 7)], 120, Act::Nothing, Act::Nothing),
        ] {
            let act = |order| act(&list(generations), Duration::from_secs(seconds), order, Pages(32));
            assert_eq!(act(EvictionOrder::AnonOnly), only, "{what}");
            assert_eq!(act(EvictionOrder::AnonFirst), first, "{what}");
        }
        assert_eq!(
            act(&list(full), Duration::from_secs(120), EvictionOrder::AnonFirst, Pages(101)),
            Act::Nothing,
            "too little"
        );
    }

    #[test]
    fn page_cache_that_goes_instead_is_noticed() {
        let before = list(&[(400, 1000, 500), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let anon_went = list(&[(400, 900, 490), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let cache_went = list(&[(400, 1000, 400), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let write = |taken: &mut Taken, now: &Lists| {
            taken.before = Some(before);
            taken.cache_instead(&[*now])
        };
        let mut taken = Taken::default();
        assert!(!write(&mut taken, &cache_went), "once may be somebody else's doing");
        assert!(!write(&mut taken, &anon_went));
        assert!(!write(&mut taken, &cache_went));
        assert!(write(&mut taken, &cache_went));
        // Where the kernel was told to leave it alone, it is somebody else's doing.
        assert!(!Taken::default().cache_instead(&[cache_went]));
    }

    #[test]
    fn a_portion_for_a_disk_is_as_long_as_the_pages_before_took() {
        let mut disk = DiskPortion::default();
        assert_eq!(disk.time(Pages(1024)), FIRST_TIME);
        disk.learn(Pages(0), Duration::from_secs(1));
        assert_eq!(disk.time(Pages(1024)), FIRST_TIME, "nothing was sent, nothing is learnt");
        disk.learn(Pages(100), Duration::from_millis(1));
        assert_eq!(disk.time(Pages(1024)), Duration::from_micros(10_240));
        assert_eq!(disk.time(Pages(1)), FIRST_TIME / 4);
    }

    const FILE: &str = "sys/kernel/debug/lru_gen";

    /// The text of two groups, of which the second has this name and so many pages in its oldest generation.
    fn text(name: &str, oldest: u64) -> String {
        let rows = |oldest| format!(" 3 400000 {oldest} 0 \n 4 180000 0 0 \n 5 60000 0 0 \n 6 1 1 0 \n");
        format!("memcg     1 /\n node     0\n{}memcg     7 {name}\n node     0\n{}", rows(9), rows(oldest))
    }

    #[test]
    fn of_a_group_that_ended_before_the_command_nothing_counts_as_evicted() {
        let evict = |ends| {
            let root = FakeRoot::captured(Release::V6_12)
                .proc("swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 524284 0 -2\n")
                .file(FILE, text("/a", 1024))
                .group(
                    "a",
                    &[
                        ("memory.current", "4194304\n"),
                        ("memory.stat", "anon 4194304\nfile 0\nfile_mapped 0\nshmem 0\n"),
                    ],
                );
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            let mut commands = 0;
            // All that is asked for goes, of the group whose id it is when the command comes: "/a", or, where that has ended
            // by then, another.
            let mut kernel_side = Writes(|data: &str| {
                assert!(data.starts_with("- 7 0 3 max "), "{data}");
                commands += 1;
                if ends {
                    root.remove("sys/fs/cgroup/a");
                    root.write(FILE, text("/b", 0));
                } else {
                    root.write("sys/fs/cgroup/a/memory.current", "0\n");
                    root.write(FILE, text("/a", 0));
                }
                Outcome::Done
            });
            let job = Job {
                amount: Bytes::mib(4),
                floor: Bytes::ZERO,
                swap_floor: Bytes::ZERO,
                swap_writes: Bytes::MAX,
                file_only: false,
                step: Bytes::mib(4),
                write_time: Duration::from_secs(10),
            };
            let (age, stop) = (Duration::from_secs(120), Flag::default());
            let report = Evictor::new(&kernel, &mut kernel_side, &stop).run(&group, job, None, age, &mut |_| {});
            (report.end, report.freed, commands, report.error)
        };
        let (end, freed, commands, error) = evict(true);
        assert_eq!((end, freed, commands), (End::Gone, Bytes::ZERO, 1), "{error:?}");
        // The control: it has not ended.
        let (_, freed, commands, error) = evict(false);
        assert_eq!((freed, commands), (Bytes::mib(4), 1), "{error:?}");
    }
}
