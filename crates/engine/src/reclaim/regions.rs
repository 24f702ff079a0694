//! Reclaims memory that surely was not used for an age, without MGLRU: address ranges of processes,
//! by DAMON's ages.
//!
//! Only private memory that goes to swap is reclaimed, and only regions that surely were not used:
//! see [`crate::aging::damon`]. The kernel ignores accessed bits when it pages out on request, so
//! ages are read again before each portion.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Advice;
use omr_config::Loaded;
use omr_kernel::maps::Backing;
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_machine::groups::targets::SMALLEST;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Amount, Bytes};

use super::report::{Report, run_job};
use crate::aging::damon::{ProcessAges, Watch};
use crate::hint::{self, Extent, Ignore, Rules, Selection, Subject};
use crate::session::{Progress, Session};

/// The amount that is paged out between two readings of ages: what a slow disk writes in a second.
const PORTION: Bytes = Bytes::mib(16);

/// DAMON's ages, and the rules by which processes may be paged out.
pub struct Regions<'a> {
    /// The monitor of the group's processes.
    pub watch: Box<Watch>,
    /// Only memory that was not used for this long.
    pub older_than: Duration,
    /// The configuration.
    pub loaded: &'a Loaded,
    /// Protections that the caller chose to ignore.
    pub ignore: Ignore,
    /// Swap that stays free; `None`: as much as the configuration says.
    pub swap_floor: Option<Amount>,
}

/// Pages out cold regions of processes.
pub(super) struct ColdPager<'s, 'a, 'r> {
    pub session: &'s mut Session<'a>,
    pub regions: &'s mut Regions<'r>,
}

impl ColdPager<'_, '_, '_> {
    /// Pages cold memory out of the processes of one group, not of groups below it. Rules,
    /// `memory.min` and `memory.low` are read anew for each portion.
    pub fn run(&mut self, group: &Group, job: Job) -> Report {
        run_job(group.into(), job, |group, job, report| self.portions(group, &job, report))
    }

    fn portions(&mut self, group: &Group, job: &Job, report: &mut Report) -> Result<End> {
        let page = self.session.host.kernel.page();
        // Processes without further memory that can or may be paged out.
        let mut over = HashSet::new();
        let mut gone = Bytes::ZERO;
        let mut end = End::NoMoreCold;
        loop {
            if let Some(cancelled) = self.session.cancelled() {
                end = cancelled;
                break;
            }
            let left = job.amount - gone;
            if left < page.bytes() {
                end = End::Complete;
                break;
            }
            let Some(coldest) = self.coldest(group, &over, report)? else {
                end = End::NotAged;
                break;
            };
            let Some((pid, starttime, cold)) = coldest else { break };
            let process = Process::open(self.session.host.kernel, pid).ok();
            let Some(process) = process.filter(|now| now.stat().starttime == starttime) else {
                over.insert(pid);
                continue;
            };
            let Some(hinted) = self.page_out(process, cold, left.min(PORTION), report)? else {
                over.insert(pid);
                end = End::Floor;
                continue;
            };
            let went = hinted.resident_before - hinted.resident_after.unwrap_or(hinted.resident_before);
            gone += went;
            report.add_hinted(&hinted);
            let (freed, swapped_out) = (report.freed, report.swapped_out);
            (self.session.progress)(Progress { freed, swapped_out, ..Progress::default() });
            match hinted.end {
                End::Complete | End::Futile | End::Gone | End::Floor => {
                    if hinted.end == End::Floor {
                        end = End::Floor;
                    }
                    if went < page.bytes() || hinted.end == End::Floor {
                        over.insert(pid);
                    }
                }
                other => {
                    end = other;
                    break;
                }
            }
        }
        let mut buffer = Vec::new();
        report.size = group.read_current(&mut buffer)?;
        report.refaults =
            group.read_stat(self.session.host.kernel, &mut buffer)?.refaults().map(|pages| pages.bytes(page));
        Ok(end)
    }

    /// Returns the process with the most cold memory, except those in `over`: its id, start time
    /// and cold memory. The outer `None`: the monitor has ended.
    fn coldest(
        &mut self,
        group: &Group,
        over: &HashSet<u32>,
        report: &mut Report,
    ) -> Result<Option<Option<(u32, u64, Ranges)>>> {
        let Regions { watch, older_than, .. } = &mut *self.regions;
        let found = watch.read_ages(&[*older_than], |mapped| mapped.group == *group.path())?;
        let Some((_, found)) = found else {
            report.error.get_or_insert_with(|| watch.end_reason().into());
            return Ok(None);
        };
        let cold = found.iter().map(|found| {
            let stat = found.mapped.process.stat();
            (stat.pid, stat.starttime, cold(found))
        });
        let left = cold.filter(|(pid, _, cold)| cold.bytes() >= SMALLEST && !over.contains(pid));
        Ok(Some(left.max_by_key(|(_, _, cold)| cold.bytes())))
    }

    /// Pages `amount` out of one process; `None`: that may not be, and the report says why.
    fn page_out(
        &mut self,
        process: Process,
        cold: Ranges,
        amount: Bytes,
        report: &mut Report,
    ) -> Result<Option<hint::Report>> {
        let Regions { loaded, ignore, swap_floor, .. } = *self.regions;
        let host = self.session.host;
        let rules = Rules::read(host.kernel, host.root, loaded)?;
        let subject = match Subject::permitted(host.kernel, &rules, process, ignore) {
            Ok(subject) => subject,
            Err(err) => {
                report.error.get_or_insert_with(|| format!("{err:#}"));
                return Ok(None);
            }
        };
        let selection =
            Selection { within: Some(cold), backing: Some(Backing::Anonymous), ..Selection::all(Advice::PageOut) };
        let extent = Extent { amount: Amount::Bytes(amount), swap_floor };
        let mut silent = |_| {};
        self.session.with_progress(&mut silent).hint(&loaded.policy, &subject, &selection, extent).map(Some)
    }
}

/// The memory of a process that surely was not used, and is in memory and private.
fn cold(found: &ProcessAges<'_>) -> Ranges {
    let idle: Ranges = found.idle.iter().filter(|idle| idle.least[0]).map(|idle| idle.range.clone()).collect();
    let private = found.resident.iter().filter(|(mapping, _)| mapping.backing == Backing::Anonymous);
    private.flat_map(|(_, present)| present.intersection(&idle).as_slice().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_actuate::Outcome;
    use omr_base::cancel::Flag;
    use omr_kernel::Kernel;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::session::{Host, NewActuator};
    use crate::stand_in::{
        Area, FakeDamon, GROUPS, Hints, PAGE, StoppedClocks, add_group, anon, page_out, set_process, set_start,
        set_swap, stop_clocks,
    };

    const WINDOW: Duration = Duration::from_secs(60);
    /// 64 KiB: one region.
    const REGION: &str = "pppppppppppppppp";

    /// A machine with a group of two processes with cold memory, and one below it. The second process
    /// has the most, a region that was used, and cold page cache.
    fn machine() -> (StoppedClocks, FakeRoot, FakeDamon) {
        let root = FakeRoot::in_memory(Release::V6_12);
        set_swap(&root, "zram0", 64);
        add_group(&root, "a", 64, 0);
        add_group(&root, "a/b", 64, 0);
        let file = Area { file: 7, shared: true, ..anon(0x80_0000, REGION) };
        set_process(&root, 11, "a", &[anon(0x10_0000, &REGION.repeat(3))]);
        set_process(&root, 12, "a", &[anon(0x20_0000, &REGION.repeat(5)), anon(0x40_0000, REGION), file]);
        set_process(&root, 13, "a/b", &[anon(0x10_0000, &REGION.repeat(9))]);
        let damon = FakeDamon::new(&root, |start| (u32::from(start == 0x40_0000), 2000));
        (stop_clocks(), root, damon)
    }

    /// Pages this amount out. Returns the report, and the processes with the memory that left.
    fn paged_out(
        root: &FakeRoot,
        damon: &FakeDamon,
        amount: Bytes,
        rules: &str,
        mut answer: impl FnMut(u32) -> Outcome + Send,
    ) -> (Report, Vec<(u32, u64)>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let host = Host { kernel: &kernel, root: root.path() };
        let new: NewActuator<'_> = &|| Box::new(damon.clone());
        let mut watch = Watch::start(host, new, &group, WINDOW, |_| true).expect("a monitor");
        watch.wait(WINDOW, &Flag::default()).expect("a wait");
        let mut loaded = Loaded::built_in();
        loaded.groups = omr_config::rules(rules);
        let mut regions = Regions {
            watch: Box::new(watch),
            older_than: Duration::from_secs(30),
            loaded: &loaded,
            ignore: Ignore::default(),
            swap_floor: Some(Amount::Bytes(Bytes::ZERO)),
        };
        let (mut left, mut current) = (Vec::<(u32, u64)>::new(), 64 << 20);
        let mut kernel_side = Hints(|pid, ranges: &[std::ops::Range<u64>]| {
            let outcome = answer(pid);
            if outcome == Outcome::Done {
                let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                ranges.iter().for_each(|range| page_out(root, pid, range));
                left.push((pid, bytes / PAGE));
                current -= bytes;
                root.write(format!("{GROUPS}/a/memory.current"), format!("{current}\n"));
            }
            outcome
        });
        let mut session = Session {
            host,
            actuator: &mut kernel_side,
            journal: None,
            cancel: &Flag::default(),
            progress: &mut |_| {},
        };
        let job = Job::new(&loaded.policy.sweep, amount);
        let report = ColdPager { session: &mut session, regions: &mut regions }.run(&group, job);
        (report, left)
    }

    #[test]
    fn the_coldest_process_of_the_group_is_paged_out_first_and_used_memory_stays() {
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes::mib(8), "", |_| Outcome::Done);
        assert_eq!(left, [(12, 80), (11, 48)], "all regions but the used one, and nothing of the group below");
        assert_eq!((report.end, report.error.as_deref()), (End::NoMoreCold, None));
        let went = Bytes(128 * PAGE);
        assert_eq!((report.freed, report.freed_anon, report.swapped_out, report.writes), (went, went, went, 2));
        assert_eq!(report.size, Bytes::mib(64) - went);
        assert_eq!(report.refaults, Some(Bytes(7 * PAGE)));
    }

    #[test]
    fn no_more_than_the_amount_is_paged_out() {
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes(100 * PAGE), "", |_| Outcome::Done);
        assert_eq!((report.end, left), (End::Complete, vec![(12, 80), (11, 20)]));
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes(80 * PAGE), "", |_| Outcome::Done);
        assert_eq!((report.end, left), (End::Complete, vec![(12, 80)]));
    }

    #[test]
    fn a_process_that_may_not_be_paged_out_or_is_gone_is_passed_over() {
        let (_clocks, root, damon) = machine();
        let rules = "[[group]]\nmatch = 'a'\nclass = 'foreground'\n";
        let (report, left) = paged_out(&root, &damon, Bytes::mib(8), rules, |_| Outcome::Done);
        assert_eq!((report.end, left), (End::Floor, vec![]));
        let error = report.error.unwrap_or_default();
        assert!(error.starts_with("12 (a) is foreground ("), "the first of them: {error}");
        // Another process gets the pid while the first one is paged out.
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes::mib(8), "", |_| {
            set_start(&root, 11, 112);
            Outcome::Done
        });
        assert_eq!((report.end, left), (End::NoMoreCold, vec![(12, 80)]));
        // One that ends is passed over, too.
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes::mib(8), "", |pid| match pid {
            12 => Outcome::Gone,
            _ => Outcome::Done,
        });
        assert_eq!((report.end, left), (End::NoMoreCold, vec![(11, 48)]));
    }

    #[test]
    fn a_run_ends_when_the_monitor_has_ended() {
        let (_clocks, root, damon) = machine();
        let (report, left) = paged_out(&root, &damon, Bytes::mib(8), "", |_| {
            root.write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
            root.remove("sys/kernel/mm/damon/admin/kdamonds/0");
            Outcome::Done
        });
        assert_eq!((report.end, left), (End::NotAged, vec![(12, 80)]));
        assert!(report.error.unwrap_or_default().starts_with("another program has taken down"));
    }
}
