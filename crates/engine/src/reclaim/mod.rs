//! Carrying out one job: the loop around the policy's pace, and what it measured.

pub mod backend;
pub mod generations;
pub mod limit_journal;
pub mod regions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::{Actuator, Outcome};
use omr_base::cancel::{Alarm, Flag};
use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, clock};
use omr_machine::sample::snapshot::{SwapSpace, read_hibernates};
use omr_policy::pace::{Job, Next, Pace, PaceSample};
use omr_policy::{Config, End, SwapContext, swap_floor};
use omr_units::{Bytes, Monotonic, Pages};
use serde::Serialize;

use crate::reclaim::backend::{Backend, Step};
use crate::reclaim::limit_journal::Journal;

/// Dirty page cache below this is not worth a sync.
pub const DIRTY: Bytes = Bytes::mib(1);
/// The longest wait for a sync; what is not written by then is left.
const SYNC_TIME: Duration = Duration::from_secs(30);

/// How far a running job is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Freed so far.
    pub freed: Bytes,
    /// Written to swap so far, by the whole machine.
    pub swapped_out: Bytes,
}

/// What a job did, measured and never taken from what was asked.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked.
    pub asked: Bytes,
    /// What the group's `memory.current` fell by, write by write.
    pub freed: Bytes,
    /// Of it, anonymous and shared memory.
    pub freed_anon: Bytes,
    /// Of it, page cache.
    pub freed_file: Bytes,
    /// Written to swap meanwhile by the whole machine (`pswpout`).
    pub swapped_out: Bytes,
    /// Moved to slower memory meanwhile, on the whole machine (`pgdemote_*`): not freed.
    pub demoted: Bytes,
    /// Writes to the kernel.
    pub writes: u32,
    /// The longest of them.
    pub longest_write: Duration,
    /// When the last one returned.
    pub last_write_end: Monotonic,
    /// CPU time of the reclaiming thread.
    pub cpu: Duration,
    /// How long it took.
    pub wall: Duration,
    /// How it ended.
    pub end: End,
    /// What went wrong, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the group holds now.
    pub size: Bytes,
    /// Refaults of the group so far, for those who want to know what comes back.
    pub refaults: Option<Bytes>,
}

impl Report {
    /// The report of a job of which nothing was done.
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
            size: Bytes::ZERO,
            refaults: None,
        }
    }
}

/// Whether an error only says that the group is not there any more.
pub fn is_gone(err: &anyhow::Error) -> bool {
    err.downcast_ref::<omr_kernel::Error>().is_some_and(omr_kernel::Error::is_gone)
}

/// Does a job on one group and reports its time and how it ended. `inner`: the job is about what the group holds
/// beyond its children.
pub fn reported(
    group: &Group,
    mut job: Job,
    inner: Option<Bytes>,
    work: impl FnOnce(Job, &mut Report) -> Result<End>,
) -> Report {
    let began = clock::read_monotonic();
    let cpu = clock::read_thread_cpu();
    let mut report = Report::nothing(&job, End::Failed, None);
    if let Some(own) = inner {
        // The job counts what the group holds itself, memory.current its children as well.
        let current = group.read_current(&mut Vec::new()).unwrap_or_default();
        job.floor += current - own;
    }
    match work(job, &mut report) {
        Ok(end) => report.end = end,
        Err(err) if is_gone(&err) => report.end = End::Gone,
        Err(err) => report.error = Some(format!("{err:#}")),
    }
    report.wall = clock::read_monotonic().since(began);
    report.cpu = clock::read_thread_cpu().saturating_sub(cpu);
    report
}

/// A file of the machine that is missing does not mean that the group is.
pub fn of_machine(err: omr_kernel::Error) -> anyhow::Error {
    anyhow::anyhow!("{err}")
}

/// What a job needs.
pub struct Worker<'a> {
    /// The machine.
    pub kernel: &'a Kernel,
    /// Where writes go.
    pub actuator: &'a mut dyn Actuator,
    /// Which way to ask.
    pub backend: Backend,
    /// See [`Step::journal`].
    pub journal: Option<&'a Journal>,
    /// When to stop.
    pub stop: &'a Flag,
}

/// What is read after each write.
struct Readings {
    current: Bytes,
    /// Swapped out but not freed yet; nothing where no swap is on disk.
    swapcached: Bytes,
    pswpout: Pages,
    pgdemote: Pages,
}

impl Worker<'_> {
    /// Reclaims from one group. `inner`: the job is about what the group holds beyond its children.
    pub fn run(&mut self, group: &Group, job: Job, inner: Option<Bytes>, progress: &mut dyn FnMut(Progress)) -> Report {
        reported(group, job, inner, |job, report| self.steps(group, job, report, progress))
    }

    fn steps(
        &mut self,
        group: &Group,
        job: Job,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<End> {
        let mut buffer = Vec::with_capacity(8192);
        report.size = group.read_current(&mut buffer)?;
        let stat_before = group.read_stat(&mut buffer)?;
        report.refaults = stat_before.refaults().map(|pages| pages.bytes(self.kernel.page()));
        if !self.actuator.is_live() {
            return Ok(End::Complete);
        }
        if stat_before.file_dirty.is_some_and(|dirty| dirty > DIRTY) {
            flush(self.stop, || {
                group.read_stat(&mut buffer).is_ok_and(|stat| stat.file_dirty.is_some_and(|dirty| dirty > DIRTY))
            });
        }
        let alarm = Alarm::new();
        let step =
            Step { backend: self.backend, group, journal: self.journal, alarm: &alarm, write_time: job.write_time };
        let on_disk = SwapSpace::read(self.kernel).is_none_or(|swap| swap.on_disk);
        let mut pace = Pace::new(job);
        let first = self.read(group, on_disk, &mut buffer)?;
        let mut last = Readings { ..first };
        let end = loop {
            if self.stop.is_set() {
                break if self.stop.timed_out() { End::Timeout } else { End::Stopped };
            }
            let memory = Meminfo::read(self.kernel, &mut buffer).map_err(of_machine)?;
            // Not knowing how much swap is free, or what is on its way to disk, is no leave to go on.
            let known = |field: Option<Bytes>, name| field.with_context(|| format!("no {name} in meminfo"));
            let swap_total = known(memory.swap_total, "SwapTotal")?;
            let written = (last.pswpout - first.pswpout).bytes(self.kernel.page());
            let seen = PaceSample {
                at: clock::read_monotonic(),
                current: last.current,
                swapcached: last.swapcached,
                // Only pages on their way to a swap disk are worth waiting for.
                writeback: if on_disk { known(memory.writeback, "Writeback")? } else { Bytes::ZERO },
                swap_free: match swap_total {
                    Bytes::ZERO => None,
                    _ => Some(known(memory.swap_free, "SwapFree")?),
                },
                swap_written: written,
            };
            match pace.next(&seen) {
                Next::End(end) => break end,
                Next::Wait(time) => {
                    self.stop.sleep(time);
                    // Tasks of the group may have changed its size meanwhile; that is not our doing.
                    last = self.read(group, on_disk, &mut buffer)?;
                }
                Next::Write { bytes, file_only } => {
                    let (outcome, took) = step.ask(self.actuator, bytes, file_only)?;
                    report.last_write_end = clock::read_monotonic();
                    report.writes += 1;
                    report.longest_write = report.longest_write.max(took);
                    match outcome {
                        Outcome::Done | Outcome::Partial | Outcome::Interrupted => {}
                        Outcome::Gone => break End::Gone,
                        Outcome::Denied => break End::Denied,
                        Outcome::Unsupported => break End::Unsupported,
                    }
                    let now = self.read(group, on_disk, &mut buffer)?;
                    let in_flight = now.pswpout > last.pswpout;
                    pace.wrote(last.current - now.current, took, in_flight);
                    pace.demoted((now.pgdemote - last.pgdemote).bytes(self.kernel.page()));
                    last = now;
                    progress(Progress {
                        freed: pace.freed(),
                        swapped_out: (last.pswpout - first.pswpout).bytes(self.kernel.page()),
                    });
                }
            }
        };
        report.freed = pace.freed();
        let swap_side =
            |stat: &MemoryStat| stat.swap_backed().unwrap_or_default() + stat.swapcached.unwrap_or_default();
        let cache = |stat: &MemoryStat| stat.page_cache().unwrap_or_default();
        report.swapped_out = (last.pswpout - first.pswpout).bytes(self.kernel.page());
        report.demoted = (last.pgdemote - first.pgdemote).bytes(self.kernel.page());
        report.size = last.current;
        let stat_after = group.read_stat(&mut buffer)?;
        report.freed_anon = (swap_side(&stat_before) - swap_side(&stat_after)).min(report.freed);
        report.freed_file = (cache(&stat_before) - cache(&stat_after)).min(report.freed - report.freed_anon);
        report.refaults = stat_after.refaults().map(|pages| pages.bytes(self.kernel.page()));
        Ok(end)
    }

    fn read(&self, group: &Group, on_disk: bool, buffer: &mut Vec<u8>) -> Result<Readings> {
        let current = group.read_current(buffer)?;
        // Without swap on disk nothing stays behind in the swap cache, and memory.stat is the dear one:
        // the kernel collects its counters from all CPUs for it.
        let swapcached = match on_disk {
            true => group.read_stat(buffer)?.swapcached.unwrap_or_default(),
            false => Bytes::ZERO,
        };
        let vmstat = Vmstat::read(self.kernel, buffer).map_err(of_machine)?;
        Ok(Readings {
            current,
            swapcached,
            pswpout: vmstat.pswpout.unwrap_or_default(),
            pgdemote: vmstat.pgdemote.unwrap_or_default(),
        })
    }
}

/// A job that frees `amount` of a group and leaves `floor`, by the configuration's pace.
/// `file_only`: whether the kernel can be told to take page cache only.
pub fn job(config: &Config, context: SwapContext, file_only: bool, amount: Bytes, floor: Bytes) -> Job {
    Job { floor, swap_floor: swap_floor(config, context, amount), file_only, ..Job::new(&config.sweep, amount) }
}

/// What the swap floor depends on, read now.
pub fn swap_context(kernel: &Kernel) -> SwapContext {
    let swap = SwapSpace::read(kernel);
    let memory = Meminfo::read(kernel, &mut Vec::new()).ok();
    let image = memory.and_then(|memory| Some(memory.mem_total? - memory.mem_free?));
    SwapContext { swap: swap.map(omr_policy::Swap::from), image: image.filter(|_| read_hibernates(kernel, swap)) }
}

/// Writes out dirty page cache, which reclaim passes over, and waits while `is_dirty`. sync(2) cannot
/// be interrupted, so it runs in a thread of its own, which is left behind when the job must end
/// before it is done.
pub fn flush(stop: &Flag, mut is_dirty: impl FnMut() -> bool) {
    // One that hangs, on a dead network file system, is not joined by another with each job.
    static RUNNING: AtomicBool = AtomicBool::new(false);
    if RUNNING.swap(true, Ordering::AcqRel) {
        return;
    }
    let thread = std::thread::Builder::new().name("omr-sync".into()).stack_size(64 << 10).spawn(|| {
        rustix::fs::sync();
        RUNNING.store(false, Ordering::Release);
    });
    if let Err(err) = thread {
        RUNNING.store(false, Ordering::Release);
        log::warn!("no thread for a sync, dirty page cache stays: {err}");
        return;
    }
    let began = clock::read_monotonic();
    while RUNNING.load(Ordering::Acquire)
        && !stop.is_set()
        && clock::read_monotonic().since(began) < SYNC_TIME
        && is_dirty()
    {
        stop.sleep(Duration::from_millis(20));
    }
}
