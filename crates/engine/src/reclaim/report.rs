//! The report of a run on one group.

use std::time::Duration;

use anyhow::Result;
use omr_kernel::clock;
use omr_kernel::memcg::Group;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Bytes, Monotonic, PageSize, Pages};
use serde::Serialize;

use super::errors::is_gone;
use super::target::Target;
use crate::hint;

/// The result of a run on one group. All figures are measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The requested amount.
    pub asked: Bytes,
    /// The decrease of the group's `memory.current` over all writes.
    pub freed: Bytes,
    /// The part of `freed` that was anonymous or shared memory.
    pub freed_anon: Bytes,
    /// The part of `freed` that was page cache.
    pub freed_file: Bytes,
    /// Written to swap meanwhile by the whole machine (`pswpout`).
    pub swapped_out: Bytes,
    /// Moved to slower memory meanwhile, on the whole machine (`pgdemote_*`): not freed.
    pub demoted: Bytes,
    /// The number of writes to the kernel.
    pub writes: u32,
    /// The duration of the longest write.
    pub longest_write: Duration,
    /// The time at which the last write returned.
    pub last_write_end: Monotonic,
    /// CPU time of the reclaiming thread.
    pub cpu: Duration,
    /// The duration of the run.
    pub wall: Duration,
    /// The end of the run.
    pub end: End,
    /// The error, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The method, by the kernel's name; `None`: there was no run.
    #[serde(skip)]
    pub method: Option<&'static str>,
    /// The size of the group after the run.
    pub size: Bytes,
    /// Refaults of the group so far; `None`: the kernel does not count them.
    pub refaults: Option<Bytes>,
}

/// Pages that the whole machine has moved so far, since boot.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    /// Written to swap.
    pub to_swap: Pages,
    /// Moved to slower memory.
    pub demoted: Pages,
}

impl Report {
    /// Returns the report of a job without any work.
    pub fn nothing(job: &Job, end: End, error: Option<String>) -> Self {
        Report {
            asked: job.amount,
            freed: Bytes::ZERO,
            freed_anon: Bytes::ZERO,
            freed_file: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            demoted: Bytes::ZERO,
            writes: 0,
            longest_write: Duration::ZERO,
            last_write_end: Monotonic(0),
            cpu: Duration::ZERO,
            wall: Duration::ZERO,
            end,
            error,
            method: None,
            size: Bytes::ZERO,
            refaults: None,
        }
    }

    /// Adds one write to the kernel that has just returned.
    pub(super) fn add_write(&mut self, took: Duration) {
        self.last_write_end = clock::read_monotonic();
        self.writes += 1;
        self.longest_write = self.longest_write.max(took);
    }

    /// Notes the pages that were moved since the run began. Called after each write: a run whose
    /// group ends has moved them all the same.
    pub(super) fn note_moved(&mut self, first: Moved, now: Moved, page: PageSize) {
        self.swapped_out = (now.to_swap - first.to_swap).bytes(page);
        self.demoted = (now.demoted - first.demoted).bytes(page);
    }

    /// Notes the pages that were moved, at the end of the run. `unread`: the amount of a last write
    /// after which nothing could be read. If the counter is still unreadable, all of it counts as
    /// written to swap: the write budget must not grow because of an error.
    pub(super) fn note_last_moved(&mut self, first: Moved, now: Result<Moved>, page: PageSize, unread: Bytes) {
        match now {
            Ok(now) => self.note_moved(first, now, page),
            Err(_) => self.swapped_out += unread,
        }
    }

    /// Adds the result of paging out a part of one of the group's processes.
    pub(super) fn add_hinted(&mut self, hinted: &hint::Report) {
        self.freed += hinted.freed;
        self.freed_anon += hinted.freed;
        self.swapped_out += hinted.swapped_out;
        self.writes += hinted.calls;
        self.longest_write = self.longest_write.max(Duration::from_millis(hinted.longest_call_ms));
        self.last_write_end = clock::read_monotonic();
    }
}

/// Runs a job on one group by `work`, and returns the report with its end and duration.
pub(super) fn run_job(
    target: Target<'_>,
    mut job: Job,
    work: impl FnOnce(&Group, Job, &mut Report) -> Result<End>,
) -> Report {
    let Target { group, inner } = target;
    let began = clock::read_monotonic();
    let cpu = clock::read_thread_cpu();
    let mut report = Report::nothing(&job, End::Failed, None);
    if let Some(own) = inner {
        // The job is about the group's own memory, but memory.current includes its children.
        let current = group.read_current(&mut Vec::new()).unwrap_or_default();
        job.floor += current - own;
    }
    match work(group, job, &mut report) {
        Ok(end) => report.end = end,
        Err(err) if is_gone(&err) => report.end = End::Gone,
        Err(err) => report.error = Some(format!("{err:#}")),
    }
    report.wall = clock::read_monotonic().since(began);
    report.cpu = clock::read_thread_cpu().saturating_sub(cpu);
    report
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_kernel::Kernel;
    use omr_policy::Config;
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::stand_in::{add_group, stop_clocks};

    fn reported(inner: Option<Bytes>, work: impl FnOnce(&Job, &mut Report) -> Result<End>) -> Report {
        let root = FakeRoot::new();
        add_group(&root, "a", 10, 0);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let job = Job { floor: Bytes::mib(2), ..Job::new(&Config::default().sweep, Bytes::mib(1)) };
        run_job(Target { group: &group, inner }, job, |_, job, report| work(&job, report))
    }

    #[test]
    fn the_floor_of_a_job_about_the_groups_own_memory_leaves_its_children() {
        reported(None, |job, _| {
            assert_eq!(job.floor, Bytes::mib(2));
            Ok(End::Complete)
        });
        // 3 of 10 MiB are the group's own.
        reported(Some(Bytes::mib(3)), |job, _| {
            assert_eq!(job.floor, Bytes::mib(2 + 7));
            Ok(End::Complete)
        });
    }

    #[test]
    fn a_run_ends_as_its_work_does_and_takes_the_time_of_its_work() {
        let clocks = stop_clocks();
        let report = reported(None, |_, _| {
            clocks.pass(Duration::from_secs(8));
            Ok(End::Floor)
        });
        assert_eq!((report.end, report.wall, report.cpu), (End::Floor, Duration::from_secs(8), Duration::from_secs(2)));
        let report = reported(None, |_, _| anyhow::bail!("no vmstat"));
        assert_eq!((report.end, report.error.as_deref()), (End::Failed, Some("no vmstat")));
        let report = reported(None, |_, _| {
            let gone = Kernel::open(Path::new("/nowhere/at/all")).map(drop).expect_err("no such directory");
            assert!(gone.is_gone());
            Err(gone.into())
        });
        assert_eq!((report.end, report.error), (End::Gone, None));
    }

    #[test]
    fn a_last_write_whose_effect_nobody_can_read_counts_as_written_to_swap() {
        let moved = |pages| Moved { to_swap: Pages(pages), demoted: Pages(0) };
        let page = PageSize::new(4096).expect("a power of two");
        let mut report = Report::nothing(&Job::new(&Config::default().sweep, Bytes::MAX), End::Failed, None);
        report.note_moved(moved(1000), moved(1256), page);
        report.note_last_moved(moved(1000), Ok(moved(1256)), page, Bytes::mib(2));
        assert_eq!(report.swapped_out, Bytes::mib(1));
        let unreadable = || -> Result<Moved> { anyhow::bail!("out of descriptors") };
        report.note_last_moved(moved(1000), unreadable(), page, Bytes::mib(2));
        assert_eq!(report.swapped_out, Bytes::mib(3));
    }
}
