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
    buffer: Vec<u8>,
}

impl FileReclaimer<'_, '_> {
    /// Reclaims from one group.
    pub fn run(&mut self, target: Target<'_>, job: Job) -> Report {
        run_job(target, job, |group, job, report| self.measured(group, job, report))
    }

    /// Does the job, and measures the group before and after it.
    fn measured(&mut self, group: &Group, job: Job, report: &mut Report) -> Result<End> {
        let kernel = self.session.host.kernel;
        let page = kernel.page();
        let mut buffer = Vec::with_capacity(8192);
        report.size = group.read_current(&mut buffer)?;
        let stat_before = group.read_stat(&mut buffer)?;
        report.refaults = stat_before.refaults().map(|pages| pages.bytes(page));
        if !self.session.actuator.is_live() {
            return Ok(End::Complete);
        }
        let on_disk = SwapSpace::read(kernel).is_none_or(|swap| swap.on_disk);
        let mut gauge = Gauge { kernel, group, on_disk, unread: Bytes::ZERO, buffer };
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
        let stat_after = group.read_stat(&mut gauge.buffer)?;
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
                    let in_flight = now.moved.to_swap > last.moved.to_swap;
                    pace.wrote(last.current - now.current, took, in_flight);
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
        let Gauge { group, on_disk, buffer, .. } = self;
        let current = group.read_current(buffer)?;
        // Without swap on disk nothing stays behind in the swap cache, and memory.stat is the dear
        // file: the kernel collects its counters from all CPUs for it.
        let swapcached = match on_disk {
            true => group.read_stat(buffer)?.swapcached.unwrap_or_default(),
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
