//! Reclaims only memory that surely was not used for an age.
//!
//! Evicts generations through `lru_gen`, in portions, oldest first, if their pages surely were not
//! used for the requested age. The kernel checks each page's accessed bit once more before it
//! evicts the page, so memory that was used since the last aging stays.
//!
//! Only memory that goes to swap is evicted, because the age of page cache only shows when it was
//! read in. Kernels before 6.16 cannot exclude page cache. They evict anonymous memory first, and
//! then page cache if the *oldest* generation has no anonymous memory left. On these kernels a
//! portion is at most half of that generation's anonymous memory, and the last of it stays. If
//! younger generations are old enough, too, an aging merges them into the oldest.

mod bounds;
mod gauge;
mod lists;

use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_actuate::Outcome;
use omr_actuate::lru_gen::EvictionOrder;
use omr_base::cancel::Alarm;
use omr_kernel::clock;
use omr_kernel::lru_gen::{self, Enabled, Lists, Reader};
use omr_kernel::memcg::{Group, MemoryStat};
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::End;
use omr_policy::pace::{Job, Next, Pace};
use omr_units::{Bytes, PageSize, Pages};

use self::bounds::{DiskPortion, Evicted, Merges};
use self::gauge::{Gauge, Readings};
use self::lists::{NextStep, cache, can_evict, is_younger, next_step, not_aged, reach};
use super::passed::Passed;
use super::report::{Report, run_job};
use super::target::Target;
use crate::aging::{no_recency, shared_regions};
use crate::session::{Progress, Session};

pub use self::gauge::{swap_left, with_swap_limit};
pub use self::lists::cold;

/// Less than this, in a group on a node, is not worth a command.
const SMALLEST: Bytes = omr_policy::pace::SMALLEST_STEP;
/// The same for a swap disk and a kernel that evicts page cache, too: one command may send this
/// much.
const SMALLEST_TO_DISK: Bytes = Bytes::mib(1);

/// The most agings of one group on one node in one run; two merge all old enough generations into
/// the oldest.
const MERGES: u32 = 2;

/// Memory whose use the kernel does not see does not count up to this size, or up to this part of
/// the memory that goes to swap.
const LITTLE: Bytes = Bytes::mib(4);
const LITTLE_PART: u64 = 8;

/// Evicts generations of one group after the other.
pub(super) struct Evictor<'s, 'a> {
    session: &'s mut Session<'a>,
    reader: Reader,
    /// The order of eviction: the narrower one, unless the kernel does not know it.
    order: EvictionOrder,
    /// The most agings of one group on one node in one run.
    merges: u32,
}

/// One run over one group.
struct Run<'g> {
    older_than: Duration,
    write_time: Duration,
    gauge: Gauge<'g>,
    pace: Pace,
    lists: Vec<Lists>,
    alarm: Alarm,
    merges: Merges,
    disk: DiskPortion,
    evicted: Evicted,
    passed: Passed,
    unseen: Unseen,
    first: Readings,
    last: Readings,
}

/// Memory whose use the kernel does not see.
struct Unseen {
    /// The most of it that does not count.
    little: Bytes,
    /// All shared memory, with files in tmpfs.
    shmem: Bytes,
    /// Shared memory that is in no page table: unused regions, or files in tmpfs.
    unmapped: Bytes,
    /// The processes' mappings were checked.
    is_checked: bool,
}

impl<'s, 'a> Evictor<'s, 'a> {
    /// An evictor. Without `may_age` it makes no aging, which nothing can interrupt: for a caller
    /// that has to end within 100 ms, and ages by other means.
    pub fn new(session: &'s mut Session<'a>, may_age: bool) -> Self {
        let merges = if may_age { MERGES } else { 0 };
        Evictor { session, reader: Reader::default(), order: EvictionOrder::AnonOnly, merges }
    }

    /// Evicts memory of one group, not of its children, that was not used for `older_than`. The
    /// job's floor is of the group with its children.
    pub fn run(&mut self, target: Target<'_>, mut job: Job, older_than: Duration) -> Report {
        // Page cache is never evicted here.
        job.file_only = false;
        run_job(target, job, |group, job, report| self.portions(group, job, older_than, report))
    }

    fn portions(&mut self, group: &Group, job: Job, older_than: Duration, report: &mut Report) -> Result<End> {
        let kernel = self.session.host.kernel;
        let page = kernel.page();
        let mut buffer = Vec::with_capacity(8192);
        let stat = group.read_stat(kernel, &mut buffer)?;
        report.size = group.read_current(&mut buffer)?;
        report.refaults = stat.refaults().map(|pages| pages.bytes(page));
        let Some(unseen) = Unseen::of(&stat) else { return Ok(End::NotSeen) };
        let swap = SwapSpace::read(kernel).context("the kernel's list of swap devices cannot be read")?;
        if swap.total == Bytes::ZERO {
            return Ok(End::SwapFloor);
        }
        let above = with_swap_limit(kernel, group)?;
        let (on_disk, swap_floor, write_time) = (swap.on_disk, job.swap_floor, job.write_time);
        let mut gauge = Gauge { kernel, group, above, on_disk, swap_floor, unread: Bytes::ZERO, buffer };
        let pace = Pace::new(job);
        let mut lists = Vec::new();
        self.reader.read_group(kernel, group, &mut lists)?;
        let cache_before = cache(&lists);
        let first = gauge.read()?;
        let (alarm, merges, disk, evicted) =
            (Alarm::new(), Merges::default(), DiskPortion::default(), Evicted::default());
        let mut run = Run {
            older_than,
            write_time,
            gauge,
            pace,
            lists,
            alarm,
            merges,
            disk,
            evicted,
            passed: Passed::new(&stat),
            unseen,
            first,
            last: first,
        };
        let ended = loop {
            if let Some(ended) = self.portion(&mut run, report).transpose() {
                break ended;
            }
        };
        let Run { mut gauge, pace, mut lists, last, .. } = run;
        report.freed = pace.freed();
        // The group may have ended during the last command.
        let moved = gauge.read_moved();
        report.note_last_moved(first.moved, moved, page, gauge.unread);
        let end = ended?;
        report.size = last.current;
        // By its own lists: in memory.stat swap cache is a part of "file" or is not, depending on
        // the kernel.
        self.reader.read_group(kernel, group, &mut lists)?;
        report.freed_file = (cache_before - cache(&lists)).bytes(page).min(report.freed);
        report.freed_anon = report.freed - report.freed_file;
        report.refaults = group.read_stat(kernel, &mut gauge.buffer)?.refaults().map(|pages| pages.bytes(page));
        Ok(end)
    }

    /// The next portion: a wait, an aging or an eviction. How the run ended, if it did.
    fn portion(&mut self, run: &mut Run<'_>, report: &mut Report) -> Result<Option<End>> {
        let (kernel, group) = (run.gauge.kernel, run.gauge.group);
        let page = kernel.page();
        if let Some(end) = self.session.cancelled_after_hold() {
            return Ok(Some(end));
        }
        report.note_moved(run.first.moved, run.last.moved, page);
        let bytes = match run.pace.next(&run.last.seen(report.swapped_out)) {
            Next::End(end) => return Ok(Some(end)),
            Next::Wait(time) => {
                self.session.cancel.sleep(time);
                run.last = run.gauge.read()?;
                return Ok(None);
            }
            Next::Write { bytes, .. } => bytes,
        };
        // Right before each command: numbers move on, and ids of 6.x are given to other groups.
        self.reader.read_group(kernel, group, &mut run.lists)?;
        if run.evicted.cache_instead(&run.lists) {
            return Ok(Some(End::Futile));
        }
        let smallest = match self.order {
            EvictionOrder::AnonFirst if run.gauge.on_disk => SMALLEST_TO_DISK,
            _ => SMALLEST,
        };
        let Some((list, act)) = self.choose(run, pages(smallest, page)) else {
            return self.end_without_cold(run, report).map(Some);
        };
        if !self.sees_use(run, report)? {
            return Ok(Some(End::NotSeen));
        }
        if let NextStep::Evict { up_to, memory } = act {
            return self.evict(run, &list, (up_to, memory), bytes, report);
        }
        run.merges.count(list.node);
        if self.session.actuator.is_live() {
            omr_actuate::lru_gen::run_aging(self.session.actuator, kernel, &list)?;
        }
        Ok(None)
    }

    /// Evicts up to a generation, in which there is this much memory. How that ends the run, if it
    /// does.
    fn evict(
        &mut self,
        run: &mut Run<'_>,
        list: &Lists,
        (up_to, memory): (u64, Pages),
        bytes: Bytes,
        report: &mut Report,
    ) -> Result<Option<End>> {
        let (kernel, group, order) = (run.gauge.kernel, run.gauge.group, self.order);
        let page = kernel.page();
        if !self.session.actuator.is_live() {
            report.asked = report.asked.min(memory.bytes(page));
            return Ok(Some(End::Complete));
        }
        run.evicted.before = Some(*list).filter(|_| order == EvictionOrder::AnonFirst);
        let most = match order {
            EvictionOrder::AnonOnly => memory,
            EvictionOrder::AnonFirst => Pages(memory.0 / 2),
        };
        let amount = Pages(pages(bytes, page).0.min(most.0).max(1));
        let time = if run.gauge.on_disk { run.disk.time(amount).min(run.write_time) } else { run.write_time };
        let actuator = &mut *self.session.actuator;
        run.gauge.unread = amount.bytes(page);
        let began = clock::read_monotonic();
        let outcome =
            run.alarm.limit(time, || omr_actuate::lru_gen::evict(actuator, kernel, list, up_to, order, amount))?;
        let took = clock::read_monotonic().since(began);
        report.add_write(took);
        match outcome {
            Outcome::Done | Outcome::Partial | Outcome::Interrupted => {}
            Outcome::Gone => return Ok(Some(End::Gone)),
            Outcome::Denied => return Ok(Some(End::Denied)),
            Outcome::Unsupported => {
                // The numbers had moved on, or the kernel does not know this swappiness.
                self.reader.read_group(kernel, group, &mut run.lists)?;
                if run.lists.iter().any(|now| now.id == list.id && can_evict(now, list.node, up_to)) {
                    self.order = EvictionOrder::AnonFirst;
                }
            }
        }
        let now = run.gauge.read()?;
        let sent = now.moved.to_swap - run.last.moved.to_swap;
        run.disk.learn(sent, took);
        let freed = run.last.current - now.current;
        run.pace.wrote(freed, took, sent.0 > 0);
        run.passed.tell(&mut run.pace, (freed, sent), (kernel, group), &mut run.gauge.buffer)?;
        run.pace.demoted((now.moved.demoted - run.last.moved.demoted).bytes(page));
        run.last = now;
        report.note_moved(run.first.moved, now.moved, page);
        let (freed, swapped_out) = (run.pace.freed(), report.swapped_out);
        (self.session.progress)(Progress { freed, swapped_out, ..Progress::default() });
        Ok(None)
    }

    /// Returns the list with the most memory to evict; if there is none, the first that needs an
    /// aging.
    fn choose(&self, run: &Run<'_>, smallest: Pages) -> Option<(Lists, NextStep)> {
        let acts = run.lists.iter().map(|list| (*list, next_step(list, run.older_than, self.order, smallest)));
        let possible = acts.filter(|(list, act)| match act {
            NextStep::Evict { .. } => true,
            NextStep::Merge => run.merges.count_of(list.node) < self.merges,
            NextStep::Nothing => false,
        });
        possible.max_by_key(|(_, act)| match act {
            NextStep::Evict { memory, .. } => memory.0,
            _ => 0,
        })
    }

    /// Returns true if the kernel sees the use of nearly all of the group's memory. The processes'
    /// mappings are checked once in a run, and only if there is something to evict, as that takes
    /// some time.
    fn sees_use(&self, run: &mut Run<'_>, report: &mut Report) -> Result<bool> {
        let Unseen { little, shmem, unmapped, is_checked } = &mut run.unseen;
        if std::mem::replace(is_checked, true) {
            return Ok(true);
        }
        let (kernel, group, cancel) = (run.gauge.kernel, run.gauge.group, self.session.cancel);
        if *unmapped > *little {
            let regions = shared_regions::read(kernel, group, cancel)?;
            *unmapped = shared_regions::unseen(*shmem, *unmapped, regions, *little);
        }
        if *unmapped > *little {
            report.error = Some(format!("{unmapped} or more are files in tmpfs that are not mapped"));
            return Ok(false);
        }
        let advised = no_recency::read(kernel, group, *little - *unmapped, cancel)?;
        let is_little = *unmapped + advised <= *little;
        if !is_little {
            report.error = Some(format!("{advised} or more are under madvise(MADV_RANDOM) or MADV_SEQUENTIAL"));
        }
        Ok(is_little)
    }

    /// Returns the reason why nothing can be evicted.
    fn end_without_cold(&self, run: &Run<'_>, report: &mut Report) -> Result<End> {
        if !self.session.actuator.is_live() {
            report.asked = Bytes::ZERO;
        }
        if !lru_gen::read_enabled(run.gauge.kernel)?.is_some_and(Enabled::walks_page_tables) {
            report.error = Some("MGLRU was switched off".into());
            return Ok(End::Unsupported);
        }
        let is_known = |list: &Lists| reach(list) >= Some(run.older_than) || is_younger(list, run.older_than);
        if run.lists.iter().any(is_known) {
            return Ok(End::NoMoreCold);
        }
        report.error = Some(not_aged(run.gauge.group, &run.lists, run.older_than));
        Ok(End::NotAged)
    }
}

impl Unseen {
    /// `None`: the kernel does not show how much shared memory the group has.
    fn of(stat: &MemoryStat) -> Option<Self> {
        let little = LITTLE.max(Bytes(stat.swap_backed().unwrap_or_default().0 / LITTLE_PART));
        let shmem = stat.shmem?;
        // Shared memory beyond all that is mapped of files and shared memory is surely in no page
        // table.
        Some(Unseen { little, shmem, unmapped: shmem - stat.file_mapped?, is_checked: false })
    }
}

fn pages(bytes: Bytes, page: PageSize) -> Pages {
    Pages(bytes.0 / page.bytes().0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_base::cancel::Flag;
    use omr_kernel::Kernel;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::session::Host;
    use crate::stand_in::{Area, GROUPS, Writes, add_group, anon, set_line, set_process, set_shared_file, set_swap};

    const FILE: &str = "sys/kernel/debug/lru_gen";

    /// The text of two groups, of which the second has this name and so many pages in its oldest
    /// generation.
    fn text(name: &str, oldest: u64) -> String {
        let rows = |oldest| format!(" 3 400000 {oldest} 0 \n 4 180000 0 0 \n 5 60000 0 0 \n 6 1 1 0 \n");
        format!("memcg     1 /\n node     0\n{}memcg     7 {name}\n node     0\n{}", rows(9), rows(oldest))
    }

    /// A machine with 512 MiB of swap on this device and a group of 64 MiB, of which the oldest
    /// generation has 4 MiB.
    fn machine(device: &str) -> FakeRoot {
        let root = FakeRoot::in_memory(Release::V6_12).file(FILE, text("/a", 1024));
        set_swap(&root, device, 512);
        set_line(&root, "proc/meminfo", "Writeback:", "0 kB");
        add_group(&root, "a", 64, 0);
        root
    }

    /// Evicts what was not used for two minutes. Returns the report and the commands.
    fn evicted(
        root: &FakeRoot,
        may_age: bool,
        mut answer: impl FnMut(&str) -> Outcome + Send,
    ) -> (Report, Vec<String>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let (mut commands, mut seen) = (Vec::new(), Bytes::ZERO);
        let mut kernel_side = Writes(|data: &str| {
            commands.push(data.to_owned());
            answer(data)
        });
        let mut session = Session {
            host: Host { kernel: &kernel, root: root.path() },
            actuator: &mut kernel_side,
            journal: None,
            cancel: &Flag::default(),
            progress: &mut |now: Progress| seen = now.freed,
        };
        let job = Job { step: Bytes::mib(64), ..Job::new(&omr_policy::Config::default().sweep, Bytes::mib(64)) };
        let report = Evictor::new(&mut session, may_age).run((&group).into(), job, Duration::from_secs(120));
        assert_eq!(seen, report.freed, "the progress at the end");
        (report, commands)
    }

    /// The kernel has taken all of the oldest generation.
    fn take_all(root: &FakeRoot) -> Outcome {
        root.write(format!("{GROUPS}/a/memory.current"), format!("{}\n", 60 << 20));
        root.write(FILE, text("/a", 0));
        Outcome::Done
    }

    #[test]
    fn page_cache_that_left_meanwhile_is_told_from_the_rest() {
        let root = machine("zram0");
        let with_cache = |root: &FakeRoot, oldest, cache: u64| {
            root.write(
                FILE,
                text("/a", oldest).replace(&format!(" 3 400000 {oldest} 0 "), &format!(" 3 400000 {oldest} {cache} ")),
            );
        };
        with_cache(&root, 1024, 100);
        let (report, _) = evicted(&root, true, |_| {
            take_all(&root);
            with_cache(&root, 0, 40);
            Outcome::Done
        });
        assert_eq!((report.freed, report.freed_file), (Bytes::mib(4), Bytes(60 * 4096)));
        assert_eq!(report.freed_anon, Bytes::mib(4) - Bytes(60 * 4096));
        assert_eq!((report.size, report.refaults), (Bytes::mib(60), Some(Bytes(7 * 4096))));
    }

    #[test]
    fn a_run_goes_on_while_the_kernel_passes_used_pages() {
        let run_after = |commands, passed: u64| {
            let root = machine("zram0");
            let mut count = 0;
            let (report, _) = evicted(&root, true, |_| {
                count += 1;
                set_line(&root, &format!("{GROUPS}/a/memory.stat"), "pgrefill", &(count * passed).to_string());
                if count > commands { take_all(&root) } else { Outcome::Interrupted }
            });
            report.freed
        };
        assert_eq!(run_after(20, 256), Bytes::mib(4));
        assert_eq!(run_after(80, 256), Bytes::ZERO, "all of the group was passed");
        assert_eq!(run_after(20, 0), Bytes::ZERO, "the control");
    }

    #[test]
    fn memory_leaves_only_if_the_kernel_sees_the_use_of_nearly_all_of_it() {
        let told = |change: &dyn Fn(&FakeRoot)| {
            let root = machine("zram0");
            change(&root);
            let (report, commands) = evicted(&root, true, |_| take_all(&root));
            (report.end, commands.len(), report.error.unwrap_or_default())
        };
        let stat = |root: &FakeRoot, key: &str, mib: u64| {
            set_line(root, &format!("{GROUPS}/a/memory.stat"), key, &(mib << 20).to_string());
        };
        // Up to an eighth of the memory that goes to swap does not count: 8 MiB, and a share of the rest.
        assert_eq!(told(&|_| ()), (End::NoMoreCold, 1, String::new()));
        assert_eq!(told(&|root| stat(root, "shmem", 8)).0, End::NoMoreCold);
        let (end, commands, error) = told(&|root| stat(root, "shmem", 16));
        assert_eq!((end, commands), (End::NotSeen, 0));
        assert_eq!(error, "16.0 MiB or more are files in tmpfs that are not mapped");
        let mapped = |root: &FakeRoot| {
            stat(root, "shmem", 16);
            stat(root, "file_mapped", 7);
        };
        assert_eq!(told(&mapped).0, End::NoMoreCold, "most of it is mapped");
        // A region that a process has mapped is seen, whether it is in its page table or not.
        let region = |root: &FakeRoot| {
            stat(root, "shmem", 16);
            let pages = "-".repeat(4096);
            let area = Area { file: 7, shared: true, ..anon(0x1000_0000, &pages) };
            set_process(root, 5, "a", &[area]);
            set_shared_file(root, 5, &area, 4096);
        };
        assert_eq!(told(&region).0, End::NoMoreCold);
        let advised = |root: &FakeRoot, count: usize| {
            set_process(root, 5, "a", &[Area { flags: "rd wr sr", ..anon(0x10_0000, &"p".repeat(count)) }]);
        };
        assert_eq!(told(&|root| advised(root, 2048)).0, End::NoMoreCold);
        let (end, commands, error) = told(&|root| advised(root, 2049));
        assert_eq!((end, commands), (End::NotSeen, 0));
        assert!(error.ends_with("or more are under madvise(MADV_RANDOM) or MADV_SEQUENTIAL"), "{error}");
        // Both together.
        let both = |root: &FakeRoot| {
            stat(root, "shmem", 5);
            advised(root, 1024);
        };
        assert_eq!(told(&both).0, End::NotSeen);
    }

    #[test]
    fn a_run_without_cold_memory_says_why() {
        let told = |change: &dyn Fn(&FakeRoot)| {
            let root = machine("zram0");
            change(&root);
            let (report, commands) = evicted(&root, true, |_| Outcome::Done);
            assert_eq!(commands.len(), 0);
            (report.end, report.error.unwrap_or_default())
        };
        assert_eq!(told(&|root| root.write(FILE, text("/a", 0))), (End::NoMoreCold, String::new()));
        let young = |root: &FakeRoot| root.write(FILE, text("/a", 1024).replace("180000", "119000"));
        let (end, error) = told(&young);
        assert_eq!(end, End::NotAged);
        assert!(error.starts_with("its ages are known for the last"), "{error}");
        // A group that uses all it has soon has two generations, and both are young.
        let rows = |rows: &str| told(&|root| root.write(FILE, format!("memcg     7 /a\n node     0\n{rows}"))).0;
        assert_eq!(rows(" 5 10600 1024 0 \n 6 576 1 0 \n"), End::NoMoreCold);
        assert_eq!(rows(" 5 130000 1024 0 \n 6 576 1 0 \n"), End::NotAged, "it may be 130 s old");
        // The oldest of four may have older memory.
        let four = " 3 30600 1024 0 \n 4 20600 0 0 \n 5 10600 0 0 \n 6 576 1 0 \n";
        assert_eq!(rows(four), End::NotAged);
        let off = |root: &FakeRoot| {
            young(root);
            root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        };
        assert_eq!(told(&off), (End::Unsupported, "MGLRU was switched off".into()));
        let none = |root: &FakeRoot| root.write("proc/swaps", "Filename Type Size Used Priority\n");
        assert_eq!(told(&none), (End::SwapFloor, String::new()));
        let full = |root: &FakeRoot| root.write(format!("{GROUPS}/a/memory.swap.max"), "0\n");
        assert_eq!(told(&full).0, End::SwapFloor);
    }

    #[test]
    fn generations_that_are_too_young_to_evict_are_merged_at_most_twice() {
        // Aged once, long ago: the kernel wants two younger generations.
        let root = machine("zram0");
        let once = |root: &FakeRoot| {
            let rows = " 3 400000 0 0 \n 4 400000 0 0 \n 5 400000 1024 0 \n 6 300000 1 0 \n";
            root.write(FILE, format!("memcg     1 /\n node     0\n{rows}memcg     7 /a\n node     0\n{rows}"));
        };
        once(&root);
        let (report, commands) = evicted(&root, true, |_| Outcome::Done);
        assert_eq!((report.end, commands), (End::NoMoreCold, vec!["+ 7 0 6 1 1".to_owned(); 2]));
        let (report, commands) = evicted(&root, false, |_| Outcome::Done);
        assert_eq!((report.end, commands.len()), (End::NoMoreCold, 0));
    }

    #[test]
    fn a_kernel_that_cannot_leave_page_cache_out_gets_portions_of_half() {
        for (device, oldest, portions) in [("zram0", 1024, 1), ("vda2", 1024, 1), ("vda2", 200, 0), ("zram0", 200, 1)] {
            let root = machine(device);
            root.write(FILE, text("/a", oldest));
            let (report, commands) = evicted(&root, true, |data| match data {
                data if data.contains(" max ") => Outcome::Unsupported,
                _ => take_all(&root),
            });
            // The kernel does not know the first command, and is asked with the other order.
            assert!(commands[0].starts_with("- 7 0 3 max "), "{commands:?}");
            assert_eq!(commands.len(), 1 + portions, "{device} {oldest}: {commands:?}");
            if portions > 0 {
                let amount = oldest / 2;
                assert!(
                    commands[1].starts_with("- 7 0 3 200 ") && commands[1].ends_with(&format!(" {}", amount)),
                    "{commands:?}"
                );
                assert_eq!(report.freed, Bytes::mib(4));
            }
        }
    }

    #[test]
    fn an_answer_of_the_kernel_ends_the_run() {
        for (outcome, end) in [(Outcome::Gone, End::Gone), (Outcome::Denied, End::Denied)] {
            let root = machine("zram0");
            let (report, commands) = evicted(&root, true, |_| outcome);
            assert_eq!((report.end, report.writes, commands.len()), (end, 1, 1));
        }
    }

    #[test]
    fn nothing_counts_as_evicted_if_the_group_ended_before_the_command() {
        let evict = |ends| {
            let root = FakeRoot::captured(Release::V6_12)
                .proc("swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 524284 0 -2\n")
                .proc("vmstat", "pswpin 0\npswpout 1000\n")
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
            // All that is asked for goes, of the group whose id it is when the command comes: "/a",
            // or, where that has ended by then, another.
            let mut kernel_side = Writes(|data: &str| {
                assert!(data.starts_with("- 7 0 3 max "), "{data}");
                commands += 1;
                root.write("proc/vmstat", "pswpin 0\npswpout 1512\n");
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
                anon_first: false,
                step: Bytes::mib(4),
                write_time: Duration::from_secs(10),
            };
            let mut session = Session {
                host: Host { kernel: &kernel, root: root.path() },
                actuator: &mut kernel_side,
                journal: None,
                cancel: &Flag::default(),
                progress: &mut |_| {},
            };
            let report = Evictor::new(&mut session, true).run((&group).into(), job, Duration::from_secs(120));
            (report.end, report.freed, report.swapped_out, commands, report.error)
        };
        // The machine has written to swap all the same.
        let (end, freed, swapped, commands, error) = evict(true);
        assert_eq!((end, freed, swapped, commands), (End::Gone, Bytes::ZERO, Bytes::mib(2), 1), "{error:?}");
        // The control: it has not ended.
        let (_, freed, swapped, commands, error) = evict(false);
        assert_eq!((freed, swapped, commands), (Bytes::mib(4), Bytes::mib(2), 1), "{error:?}");
    }
}
