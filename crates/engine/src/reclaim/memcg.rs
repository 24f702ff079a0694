//! Reclaiming through a file of the group: the loop around the policy's pace, and its figures.

use anyhow::{Context, Result};
use omr_actuate::Outcome;
use omr_base::cancel::Alarm;
use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, clock};
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::End;
use omr_policy::pace::{Job, Next, Pace, PaceSample};
use omr_units::{Bytes, Swappiness};

use super::backend::{Backend, Step};
use super::errors::of_machine;
use super::passed::Passed;
use super::report::{Moved, Report, run_job};
use super::target::Target;
use crate::session::{Progress, Session};

/// Reclaims through a file of the group.
pub(super) struct FileReclaimer<'s, 'a> {
    pub session: &'s mut Session<'a>,
    pub backend: Backend,
}

/// The readings after a write.
#[derive(Clone, Copy)]
struct Readings {
    current: Bytes,
    /// Swapped out but not freed yet; zero where no swap is on disk.
    swapcached: Bytes,
    moved: Moved,
}

/// Reads the group and the machine between two writes.
struct Gauge<'a> {
    kernel: &'a Kernel,
    group: &'a Group,
    /// Some swap is on a disk.
    on_disk: bool,
    /// The amount of the last write, until its effect has been read.
    unread: Bytes,
    passed: Passed,
    buffer: Vec<u8>,
}

impl FileReclaimer<'_, '_> {
    /// Reclaims from one group.
    pub fn run(&mut self, target: Target<'_>, mut job: Job) -> Report {
        // The job may come from an earlier question to the kernel, and this time the answer was an
        // error. A request without the key would send memory to swap beyond the job's limits.
        job.file_only &= self.backend.file_only();
        run_job(target, job, |group, job, report| self.measured(group, job, report))
    }

    /// Does the job, and measures the group before and after it.
    fn measured(&mut self, group: &Group, job: Job, report: &mut Report) -> Result<End> {
        let kernel = self.session.host.kernel;
        let page = kernel.page();
        let mut buffer = Vec::with_capacity(8192);
        report.size = group.read_current(&mut buffer)?;
        let stat_before = group.read_stat(kernel, &mut buffer)?;
        report.refaults = stat_before.refaults().map(|pages| pages.bytes(page));
        if !self.session.actuator.is_live() {
            return Ok(End::Complete);
        }
        let on_disk = SwapSpace::read(kernel).is_none_or(|swap| swap.on_disk);
        let passed = Passed::new(&stat_before);
        let mut gauge = Gauge { kernel, group, on_disk, unread: Bytes::ZERO, passed, buffer };
        let mut pace = Pace::new(job.clone());
        let first = gauge.read()?;
        let ended = self.writes(&mut gauge, &job, &mut pace, first, report);
        report.freed = pace.freed();
        // The group may have ended during the last write.
        let moved = gauge.read_moved();
        report.note_last_moved(first.moved, moved, page, gauge.unread);
        let (end, last) = ended?;
        report.size = last.current;
        let swap_side =
            |stat: &MemoryStat| stat.swap_backed().unwrap_or_default() + stat.swapcached.unwrap_or_default();
        let cache = |stat: &MemoryStat| stat.page_cache().unwrap_or_default();
        let stat_after = group.read_stat(kernel, &mut gauge.buffer)?;
        report.freed_anon = (swap_side(&stat_before) - swap_side(&stat_after)).min(report.freed);
        report.freed_file = (cache(&stat_before) - cache(&stat_after)).min(report.freed - report.freed_anon);
        report.refaults = stat_after.refaults().map(|pages| pages.bytes(page));
        Ok(end)
    }

    /// Writes to the file until the pace or the flag ends the run. Returns the end and the last
    /// readings.
    fn writes(
        &mut self,
        gauge: &mut Gauge<'_>,
        job: &Job,
        pace: &mut Pace,
        first: Readings,
        report: &mut Report,
    ) -> Result<(End, Readings)> {
        let page = gauge.kernel.page();
        let (group, journal) = (gauge.group, self.session.journal);
        let alarm = Alarm::new();
        let (kernel, backend) = (gauge.kernel, self.backend);
        let step = Step { kernel, backend, group, journal, alarm: &alarm, write_time: job.write_time };
        let mut last = first;
        let end = loop {
            if let Some(end) = self.session.cancelled_after_hold() {
                break end;
            }
            report.note_moved(first.moved, last.moved, page);
            match pace.next(&gauge.seen(last, report.swapped_out)?) {
                Next::End(end) => break end,
                Next::Wait(time) => {
                    self.session.cancel.sleep(time);
                    // Tasks of the group may have changed its size meanwhile, which was not this
                    // run.
                    last = gauge.read()?;
                }
                Next::Write { bytes, file_only } => {
                    let swappiness = match (file_only, job.anon_first) {
                        (true, _) => Some(Swappiness::FILE_ONLY),
                        (false, true) => Some(Swappiness::ANON_FIRST),
                        (false, false) => None,
                    };
                    gauge.unread = if file_only { Bytes::ZERO } else { bytes };
                    let (outcome, took) = step.ask(self.session.actuator, bytes, swappiness)?;
                    report.add_write(took);
                    match outcome {
                        Outcome::Done | Outcome::Partial | Outcome::Interrupted => {}
                        Outcome::Gone => break End::Gone,
                        Outcome::Denied => break End::Denied,
                        Outcome::Unsupported => break End::Unsupported,
                    }
                    let now = gauge.read()?;
                    let sent = now.moved.to_swap - last.moved.to_swap;
                    let freed = last.current - now.current;
                    pace.wrote(freed, took, sent.0 > 0);
                    gauge.passed.tell(pace, (freed, sent), (gauge.kernel, group), &mut gauge.buffer)?;
                    pace.demoted((now.moved.demoted - last.moved.demoted).bytes(page));
                    last = now;
                    report.note_moved(first.moved, last.moved, page);
                    let (freed, swapped_out) = (pace.freed(), report.swapped_out);
                    (self.session.progress)(Progress { freed, swapped_out, ..Progress::default() });
                }
            }
        };
        Ok((end, last))
    }
}

impl Gauge<'_> {
    fn read(&mut self) -> Result<Readings> {
        let Gauge { kernel, group, on_disk, buffer, .. } = self;
        let current = group.read_current(buffer)?;
        // Without swap on disk nothing stays behind in the swap cache, and memory.stat is the dear
        // file: the kernel collects its counters from all CPUs for it.
        let swapcached = match on_disk {
            true => group.read_stat(kernel, buffer)?.swapcached.unwrap_or_default(),
            false => Bytes::ZERO,
        };
        let moved = self.read_moved()?;
        self.unread = Bytes::ZERO;
        Ok(Readings { current, swapcached, moved })
    }

    fn read_moved(&mut self) -> Result<Moved> {
        let vmstat = Vmstat::read(self.kernel, &mut self.buffer).map_err(of_machine)?;
        Ok(Moved { to_swap: vmstat.pswpout.unwrap_or_default(), demoted: vmstat.pgdemote.unwrap_or_default() })
    }

    /// Returns a sample for the pace: the readings, and the machine's present state.
    fn seen(&mut self, last: Readings, swap_written: Bytes) -> Result<PaceSample> {
        let memory = Meminfo::read(self.kernel, &mut self.buffer).map_err(of_machine)?;
        // The run must not go on when it is not known how much swap is free, or on its way to disk.
        let known = |field: Option<Bytes>, name| field.with_context(|| format!("no {name} in meminfo"));
        let swap_total = known(memory.swap_total, "SwapTotal")?;
        Ok(PaceSample {
            at: clock::read_monotonic(),
            current: last.current,
            swapcached: last.swapcached,
            // Only pages on their way to a swap disk are worth waiting for.
            writeback: if self.on_disk { known(memory.writeback, "Writeback")? } else { Bytes::ZERO },
            swap_free: match swap_total {
                Bytes::ZERO => None,
                _ => Some(known(memory.swap_free, "SwapFree")?),
            },
            swap_written,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use omr_actuate::{Actuator, DryRun};
    use omr_base::cancel::Flag;
    use omr_policy::Config;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::session::Host;
    use crate::stand_in::{GROUPS, Reclaims, StoppedClocks, add_group, set_line, set_swap, stop_clocks};

    /// A machine with 64 MiB of swap on this device, and a group with 16 MiB of anonymous memory and
    /// 4 MiB of page cache.
    fn machine(device: &str) -> (StoppedClocks, FakeRoot) {
        let root = FakeRoot::in_memory(Release::V6_12);
        set_swap(&root, device, 64);
        set_line(&root, "proc/meminfo", "Writeback:", "0 kB");
        set_line(&root, "proc/vmstat", "pswpout", "1000");
        add_group(&root, "a", 16, 4);
        (stop_clocks(), root)
    }

    fn run_cancelled(
        root: &FakeRoot,
        job: Job,
        actuator: &mut dyn Actuator,
        cancel: &Flag,
    ) -> (Report, Vec<(Bytes, Bytes)>) {
        run_with(root, job, actuator, cancel, Backend::MemoryReclaim { swappiness: true, waits: false })
    }

    fn run_with(
        root: &FakeRoot,
        job: Job,
        actuator: &mut dyn Actuator,
        cancel: &Flag,
        backend: Backend,
    ) -> (Report, Vec<(Bytes, Bytes)>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut seen = Vec::new();
        let mut session = Session {
            host: Host { kernel: &kernel, root: root.path() },
            actuator,
            journal: None,
            cancel,
            progress: &mut |now: Progress| seen.push((now.freed, now.swapped_out)),
        };
        let report = FileReclaimer { session: &mut session, backend }.run((&group).into(), job);
        (report, seen)
    }

    fn run(root: &FakeRoot, job: Job, actuator: &mut dyn Actuator) -> Report {
        run_cancelled(root, job, actuator, &Flag::default()).0
    }

    fn job(amount: Bytes) -> Job {
        Job::new(&Config::default().sweep, amount)
    }

    #[test]
    fn a_job_is_done_in_steps_and_its_figures_are_measured() {
        let (clocks, root) = machine("zram0");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| clocks.pass(Duration::from_millis(20)));
        let (report, seen) = run_cancelled(&root, job(Bytes::mib(18)), &mut kernel_side, &Flag::default());
        assert_eq!((report.end, report.asked, report.freed), (End::Complete, Bytes::mib(18), Bytes::mib(18)));
        assert_eq!(
            (report.freed_anon, report.freed_file, report.swapped_out),
            (Bytes::mib(16), Bytes::mib(2), Bytes::mib(16))
        );
        assert_eq!((report.size, report.demoted, report.error), (Bytes::mib(2), Bytes::ZERO, None));
        assert_eq!(report.refaults, Some(Bytes(7 * 4096)));
        assert_eq!((kernel_side.lines.len(), &*kernel_side.lines[0]), (18, "a/memory.reclaim 1048576"));
        assert_eq!((report.writes, report.longest_write), (18, Duration::from_millis(20)));
        assert_eq!((report.wall, report.cpu), (Duration::from_millis(360), Duration::from_millis(90)));
        assert_eq!(report.last_write_end, clock::read_monotonic());
        assert_eq!((seen.len(), seen[0]), (18, (Bytes::mib(1), Bytes::mib(1))));
        assert_eq!(seen[17], (Bytes::mib(18), Bytes::mib(16)));
    }

    #[test]
    fn memory_that_stays_in_the_swap_cache_or_that_others_freed_does_not_count() {
        let (_clocks, root) = machine("vda2");
        let stat = format!("{GROUPS}/a/memory.stat");
        let set = |key, mib: u64| set_line(&root, &stat, key, &(mib << 20).to_string());
        // The kernel frees a MiB of page cache, and sends one of anonymous memory to the disk.
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| {
            set("anon", 15);
            set("swapcached", 1);
            // With its swap cache.
            set("file", 3 + 1);
        });
        let report = run(&root, job(Bytes::mib(1)), &mut kernel_side);
        drop(kernel_side);
        assert_eq!((report.freed, report.freed_anon, report.freed_file), (Bytes::mib(1), Bytes::ZERO, Bytes::mib(1)));
        // Another program frees page cache of the group, which has grown by as much.
        let (_clocks, root) = machine("zram0");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| set_line(&root, &stat, "file", &(3u64 << 20).to_string()));
        let report = run(&root, job(Bytes::mib(1)), &mut kernel_side);
        assert_eq!((report.freed, report.freed_anon, report.freed_file), (Bytes::mib(1), Bytes::mib(1), Bytes::ZERO));
    }

    #[test]
    fn the_kind_of_memory_is_named_in_the_request() {
        let (_clocks, root) = machine("zram0");
        let told = |job: Job| {
            let mut kernel_side = Reclaims::new(&root);
            run(&root, job, &mut kernel_side);
            kernel_side.lines.first().cloned().unwrap_or_default()
        };
        let small = job(Bytes::mib(1));
        assert_eq!(told(Job { anon_first: true, ..small.clone() }), "a/memory.reclaim 1048576 swappiness=200");
        // Swap is as full as it may be, so only page cache may leave.
        let full = Job { file_only: true, swap_floor: Bytes::mib(64), ..small.clone() };
        assert_eq!(told(full.clone()), "a/memory.reclaim 1048576 swappiness=0");
        assert_eq!(told(Job { file_only: false, ..full.clone() }), "", "nothing may leave");
        // This kernel, or this answer of it, does not know the key.
        let mut kernel_side = Reclaims::new(&root);
        let backend = Backend::MemoryReclaim { swappiness: false, waits: false };
        let (report, _) = run_with(&root, full, &mut kernel_side, &Flag::default(), backend);
        assert_eq!((report.end, kernel_side.lines.len()), (End::SwapFloor, 0));
    }

    #[test]
    fn each_answer_of_the_kernel_ends_the_run_or_does_not() {
        let (_clocks, root) = machine("zram0");
        for (outcome, end, writes) in [
            (Outcome::Denied, End::Denied, 1),
            (Outcome::Unsupported, End::Unsupported, 1),
            (Outcome::Gone, End::Gone, 1),
            (Outcome::Partial, End::Complete, 2),
            (Outcome::Interrupted, End::Complete, 2),
        ] {
            add_group(&root, "a", 16, 4);
            let report = run(&root, job(Bytes::mib(2)), &mut Reclaims { outcome, ..Reclaims::new(&root) });
            assert_eq!((report.end, report.writes), (end, writes), "{outcome:?}");
        }
        let set = Flag::default();
        set.set();
        let (report, _) = run_cancelled(&root, job(Bytes::mib(2)), &mut Reclaims::new(&root), &set);
        assert_eq!((report.end, report.writes), (End::Stopped, 0));
    }

    #[test]
    fn a_run_goes_on_while_the_kernel_passes_used_pages() {
        let (_clocks, root) = machine("zram0");
        let run_after = |interrupted, passed, passed_in| {
            add_group(&root, "a", 16, 4);
            let mut kernel_side = Reclaims { interrupted, passed, passed_in, ..Reclaims::new(&root) };
            let report = run(&root, job(Bytes::mib(2)), &mut kernel_side);
            (report.end, report.freed)
        };
        for count in ["pgrefill", "pgscan"] {
            assert_eq!(run_after(20, 256, count), (End::Complete, Bytes::mib(2)), "{count}");
            assert_eq!(run_after(26, 256, count), (End::Futile, Bytes::ZERO), "all of the group was passed, {count}");
        }
        assert_eq!(run_after(20, 0, "pgscan"), (End::Futile, Bytes::ZERO), "the control");
    }

    #[test]
    fn a_group_that_ends_in_a_write_has_moved_memory_all_the_same() {
        let (_clocks, root) = machine("zram0");
        let path = Path::new(GROUPS).join("a");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| {
            root.remove(path.join("memory.current"));
            let vmstat = root.read("proc/vmstat");
            root.write("proc/vmstat", vmstat + "pgdemote_kswapd 3\npgdemote_direct 2\n");
        });
        let report = run(&root, job(Bytes::mib(2)), &mut kernel_side);
        assert_eq!((report.end, report.freed, report.swapped_out), (End::Gone, Bytes::ZERO, Bytes::mib(1)));
        assert_eq!(report.demoted, Bytes(5 * 4096));
    }

    #[test]
    fn a_last_write_after_which_nothing_can_be_read_counts_as_written_to_swap() {
        let (_clocks, root) = machine("vda2");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| root.remove("proc/vmstat"));
        let report = run(&root, job(Bytes::mib(2)), &mut kernel_side);
        assert_eq!((report.end, report.swapped_out), (End::Failed, Bytes::mib(1)));
    }

    #[test]
    fn a_dry_run_reads_the_group_and_writes_nothing() {
        let (_clocks, root) = machine("zram0");
        let report = run(&root, job(Bytes::mib(2)), &mut DryRun);
        assert_eq!((report.end, report.size, report.freed), (End::Complete, Bytes::mib(20), Bytes::ZERO));
        assert_eq!(report.refaults, Some(Bytes(7 * 4096)));
    }

    #[test]
    fn a_run_waits_for_a_swap_disk_and_not_for_the_disks_of_others() {
        for (device, waits) in [("vda2", true), ("zram0", false)] {
            let (clocks, root) = machine(device);
            let path = root.path().to_owned();
            let meminfo = root.read("proc/meminfo");
            set_line(&root, "proc/meminfo", "Writeback:", "4096 kB");
            let mut kernel_side = Reclaims::new(&root);
            let mut first = None;
            // The disk has written all of it after a second.
            clocks.each_time(move |now| {
                if now >= Duration::from_secs(1) {
                    std::fs::write(path.join("proc/meminfo"), &meminfo).expect("written");
                }
            });
            kernel_side.then = Box::new(|_| {
                first.get_or_insert_with(|| clocks.passed());
            });
            let report = run(&root, job(Bytes::mib(1)), &mut kernel_side);
            drop(kernel_side);
            assert_eq!((report.end, report.freed), (End::Complete, Bytes::mib(1)), "{:?}", report.error);
            let first = first.expect("a write");
            assert_eq!(first >= Duration::from_secs(1), waits, "{first:?}");
        }
    }

    #[test]
    fn a_run_does_not_go_on_when_the_state_of_swap_is_unknown() {
        for key in ["SwapTotal", "SwapFree", "Writeback:"] {
            let (_clocks, root) = machine("vda2");
            let kept: Vec<String> =
                root.read("proc/meminfo").lines().filter(|line| !line.starts_with(key)).map(str::to_owned).collect();
            root.write("proc/meminfo", kept.join("\n"));
            let report = run(&root, job(Bytes::mib(2)), &mut Reclaims::new(&root));
            let said = report.error.unwrap_or_default();
            assert_eq!((report.end, report.writes), (End::Failed, 0));
            assert_eq!(said, format!("no {} in meminfo", key.trim_end_matches(':')));
        }
        // A machine without swap has page cache only.
        let (_clocks, root) = machine("zram0");
        root.write("proc/swaps", "Filename Type Size Used Priority\n");
        set_line(&root, "proc/meminfo", "SwapTotal:", "0 kB");
        add_group(&root, "a", 0, 4);
        let report = run(&root, job(Bytes::mib(2)), &mut Reclaims::new(&root));
        assert_eq!((report.end, report.freed_file), (End::Complete, Bytes::mib(2)));
    }
}
