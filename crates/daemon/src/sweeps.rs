//! The sweep that runs: its group, what is watched meanwhile, and what came of it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use omr_base::text::printable;
use omr_engine::prepare::disk_rate;
use omr_engine::reclaim::Report;
use omr_history::ledger::Swept;
use omr_kernel::clock;
use omr_kernel::psi::Trigger;
use omr_machine::sample::cpu::CpuByClass;
use omr_policy::busy::BusyWatch;
use omr_policy::{Config, End, Mode, Reason, Stop};
use omr_units::{Bytes, GroupId, Monotonic, Permyriad, millis};
use rustix::event::{PollFd, PollFlags, poll};

use crate::host::Host;
use crate::timer::Timer;

/// One group being swept.
pub struct Running {
    /// The number of the sweep.
    pub number: u64,
    /// The group, below the mount.
    pub path: PathBuf,
    /// How much is asked of the group.
    pub asked: Bytes,
    /// The group's refaults when it began; `None` where they are unknown.
    pub refaults: Option<Bytes>,
    /// Why it began.
    pub start: Reason,
    /// Why it was told to stop.
    pub stop: Option<Reason>,
    watch: BusyWatch,
    sampled: Monotonic,
    own_cpu: Duration,
}

/// A group whose sweep begins.
pub struct Begun {
    /// The number of the sweep, unless one goes on.
    pub number: u64,
    /// The group, below the mount.
    pub path: PathBuf,
    /// How much is asked of the group.
    pub asked: Bytes,
    /// The group's refaults; `None` where they are unknown.
    pub refaults: Option<Bytes>,
    /// Why it begins.
    pub reason: Reason,
}

/// Sweeps, one group at a time.
pub struct Sweeps {
    /// The group being swept.
    pub running: Option<Running>,
    /// The number of the sweep, which goes on with further groups; `None`: the next group begins another.
    number: Option<u64>,
    /// Fires while a group is swept.
    pub sampler: Timer,
    /// Fires when tasks wait for memory; `None` where the kernel has none.
    pub trigger: Option<Trigger>,
    disk_rate: disk_rate::Measured,
}

impl Sweeps {
    /// No sweep yet.
    pub fn new() -> Result<Self> {
        Ok(Sweeps {
            running: None,
            number: None,
            sampler: Timer::new()?,
            trigger: None,
            disk_rate: disk_rate::Measured::default(),
        })
    }

    /// Has the kernel tell when tasks wait for memory.
    pub fn arm_trigger(&mut self, host: &Host, stop: &Stop) {
        match Trigger::arm(&host.kernel.proc, "pressure/memory", stop.stall, stop.window) {
            Ok(trigger) => self.trigger = Some(trigger),
            Err(err) => {
                self.trigger = None;
                log::warn!("no pressure trigger, only CPU time stops a sweep early: {err}");
            }
        }
    }

    /// Forgets what the trigger has seen so far.
    pub fn clear_trigger(&self) {
        if let Some(trigger) = &self.trigger {
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(trigger, PollFlags::PRI)], Some(&none));
        }
    }

    /// Begins with a group. An error: nothing runs, as nobody could notice work.
    pub fn begin(&mut self, stop: &Stop, steady_load: Permyriad, group: Begun) -> Result<()> {
        self.clear_trigger();
        self.sampler.every(stop.sample)?;
        self.running = Some(Running {
            number: *self.number.get_or_insert(group.number),
            path: group.path,
            asked: group.asked,
            refaults: group.refaults,
            start: group.reason,
            stop: None,
            watch: BusyWatch::new(stop, steady_load),
            sampled: clock::read_monotonic(),
            own_cpu: clock::read_own_cpu(),
        });
        Ok(())
    }

    /// The next group begins another sweep.
    pub fn end_number(&mut self) {
        self.number = None;
    }

    /// Notes why the running group is told to stop. Returns whether one runs.
    pub fn stop(&mut self, reason: Reason) -> bool {
        let Some(running) = &mut self.running else { return false };
        running.stop.get_or_insert(reason);
        true
    }

    /// Whether a group is swept and was not told to stop yet.
    pub fn is_unstopped(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.stop.is_none())
    }

    /// Some fifty times a second while a group is swept: has somebody begun to work?
    pub fn sample(&mut self, host: &Host, config: &Config, cpu: &mut CpuByClass) -> Option<Reason> {
        let running = self.running.as_mut()?;
        let now = clock::read_monotonic();
        let own_cpu = clock::read_own_cpu();
        let dt = now.since(running.sampled);
        // After a late wake-up the next one is early. The kernel accounts CPU time with a timer tick's
        // delay, so a few milliseconds may show the time of many (1005 % of a CPU were seen).
        if dt < config.stop.sample / 2 {
            return None;
        }
        let own = own_cpu.saturating_sub(running.own_cpu);
        running.sampled = now;
        running.own_cpu = own_cpu;
        let mut used = cpu.non_background.sample();
        // In a group that it shares, the daemon's own time is among that of the others. Its clock is up
        // to a timer tick ahead of the group's, so a group of its own is the better way.
        if host.shares_its_group() {
            used = used.map(|used| used.saturating_sub(own));
        }
        running.watch.sample(dt, used)
    }

    /// The worker is done with the group. Returns what ran, and keeps the measured rate of the swap disk.
    pub fn finish(&mut self, host: &Host, report: &Report) -> Option<Running> {
        let _ = self.sampler.stop();
        let running = self.running.take()?;
        self.disk_rate.add(report);
        if let Some(rate) = self.disk_rate.rate() {
            if disk_rate::is_disk_only(&host.kernel) {
                disk_rate::keep(&host.kernel, &host.root, rate);
            }
            self.disk_rate = disk_rate::Measured::default();
        }
        Some(running)
    }
}

/// The ledger's line about a group that was swept, which is logged, too.
pub fn line(time: u64, mode: Mode, id: GroupId, running: &Running, report: Report) -> Swept {
    let stop_reason = match &running.stop {
        Some(reason) if report.end == End::Stopped => reason.to_string(),
        _ => report.end.words().to_owned(),
    };
    let swept = Swept {
        time,
        sweep: running.number,
        group: running.path.to_string_lossy().into_owned(),
        id,
        observed: mode == Mode::Observe,
        asked: report.asked,
        freed: report.freed,
        freed_anon: report.freed_anon,
        freed_file: report.freed_file,
        swapped_out: report.swapped_out,
        demoted: report.demoted,
        cpu_ms: millis(report.cpu),
        wall_ms: millis(report.wall),
        writes: report.writes,
        longest_write_ms: millis(report.longest_write),
        last_write_end_ns: report.last_write_end.0,
        start_reason: running.start.to_string(),
        stop_reason,
        end: report.end,
        error: report.error,
    };
    log::info!(
        "{}: {} of {} freed, {} to swap, {} ms, {}",
        printable(&swept.group),
        swept.freed,
        swept.asked,
        swept.swapped_out,
        swept.wall_ms,
        swept.stop_reason
    );
    if let Some(error) = &swept.error {
        log::warn!("{}: {error}", printable(&swept.group));
    }
    swept
}
