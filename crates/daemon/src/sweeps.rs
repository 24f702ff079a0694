//! The running sweep: its group, the watch for foreground work, and its result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_base::text::printable;
use omr_engine::prepare::disk_rate;
use omr_engine::reclaim::Report;
use omr_history::ledger::Swept;
use omr_kernel::process::Process;
use omr_kernel::psi::Trigger;
use omr_machine::sample::cpu::CpuByClass;
use omr_policy::busy::{BusyWatch, Step, Yielding};
use omr_policy::pace::Job;
use omr_policy::rank::ProcessId;
use omr_policy::{ColdOnly, Config, End, Goal, Mode, Reason, State, Stop};
use omr_units::{Bytes, GroupId, Monotonic, millis};
use rustix::event::{PollFd, PollFlags, poll};

use crate::disk::Disk;
use crate::host::Host;
use crate::timer::Timer;
use crate::worker::{Order, Remember, Sweep};
use crate::world::World;

/// The group being swept.
pub struct Running {
    /// The number of the sweep.
    pub number: u64,
    /// The group, below the mount.
    pub path: PathBuf,
    /// The amount to free.
    pub asked: Bytes,
    /// The group's refaults when it began; `None`: unknown.
    pub refaults: Option<Bytes>,
    /// Only memory that was unused for this time is reclaimed.
    pub older_than: Option<Duration>,
    /// It is a step of a probe.
    pub is_probe: bool,
    /// What it takes is given back when somebody comes.
    pub is_remembered: bool,
    /// When it began.
    pub began: Monotonic,
    /// The reason for it.
    pub start: Reason,
    /// The reason to stop it, and when it was told to.
    pub stop: Option<(Monotonic, Reason)>,
    watch: BusyWatch,
    yielding: Yielding,
    sampled: Monotonic,
    own_cpu: Duration,
    /// CPU time of the daemon when it began.
    cpu_before: Duration,
}

impl Running {
    /// CPU time of the daemon since the sweep began.
    pub fn cpu(&self, host: &Host) -> Duration {
        host.kernel.clock.own_cpu().saturating_sub(self.cpu_before)
    }
}

/// The policy's decision to sweep a group.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    /// The number of the sweep, unless one goes on.
    pub number: u64,
    /// The group.
    pub id: GroupId,
    /// The amount to free, and its limits.
    pub job: &'a Job,
    /// The reason.
    pub reason: &'a Reason,
    /// How what it takes is given back when somebody comes; `None`: it is not.
    pub remember: Option<&'a Remember>,
}

/// Sweeps, one group at a time.
pub struct Sweeps {
    /// The group being swept.
    pub running: Option<Running>,
    /// The number of the sweep, which goes on with further groups; `None`: the next group begins
    /// another.
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

    /// Arms the pressure trigger, which fires when tasks wait for memory.
    pub fn arm_trigger(&mut self, host: &Host, stop: &Stop) {
        match Trigger::arm(&host.kernel.proc, "pressure/memory", stop.stall, stop.window) {
            Ok(trigger) => self.trigger = Some(trigger),
            Err(err) => {
                self.trigger = None;
                log::warn!("no pressure trigger, only CPU time stops a sweep early: {err}");
            }
        }
    }

    /// Clears earlier events of the trigger.
    pub fn clear_trigger(&self) {
        if let Some(trigger) = &self.trigger {
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(trigger, PollFlags::PRI)], Some(&none));
        }
    }

    /// Begins to sweep a group. Returns the worker's order; `None`: the group is gone, or
    /// foreground work could not be noticed meanwhile.
    pub fn begin(
        &mut self,
        host: &Host,
        config: &Config,
        world: &mut World,
        state: &State,
        next: Next<'_>,
    ) -> Option<Order> {
        let Next { number, id, job, reason, remember } = next;
        let path = world.tree.path(id)?;
        let node = world.node(id).filter(|node| node.is_internal);
        let inner = node.and_then(|node| node.current.map(|current| current - node.charged_to_children));
        let group = world.group(id);
        let refaults = group.and_then(|group| group.refaults);
        let cold_only = group.and_then(|group| group.cold_only.as_ref());
        let is_probe = cold_only.is_some_and(ColdOnly::is_probed);
        let older_than = cold_only.filter(|_| !is_probe).map(|cold_only| cold_only.min_age);
        // CPU time before the sweep does not count.
        world.cpu.non_background.sample();
        if let Err(err) = self.sampler.every(config.stop.sample) {
            log::error!("{err:#}; no sweep, because foreground work could not be noticed");
            return None;
        }
        // With another goal a machine is idle when it is swept.
        let (watch, yielding) = match older_than {
            Some(_) if config.goal == Goal::Auto => {
                (BusyWatch::of_cold(&config.stop, state.least_load()), Yielding::patient())
            }
            _ => (BusyWatch::new(&config.stop, state.steady_load()), Yielding::default()),
        };
        let own_cpu = host.kernel.clock.own_cpu();
        self.running = Some(Running {
            number: *self.number.get_or_insert(number),
            path: path.clone(),
            asked: job.amount,
            refaults,
            older_than,
            is_probe,
            is_remembered: remember.is_some(),
            began: host.now(),
            start: reason.clone(),
            stop: None,
            watch,
            yielding,
            sampled: host.now(),
            own_cpu,
            cpu_before: own_cpu,
        });
        Some(Order::Sweep(Sweep { id, path, job: job.clone(), inner, older_than, remember: remember.cloned() }))
    }

    /// Returns true if the group at `path` loses memory by the running sweep: the swept group is
    /// this one, above it, or below it.
    pub fn concerns(&self, path: &Path) -> bool {
        let is_related = |running: &Path| running.starts_with(path) || path.starts_with(running);
        self.running.as_ref().is_some_and(|running| is_related(&running.path))
    }

    /// Returns true if the process is in the group being swept.
    pub fn is_of_process(&self, host: &Host, id: ProcessId) -> bool {
        let Some(running) = &self.running else { return false };
        let group = Process::open(&host.kernel, id.pid).ok().and_then(|process| process.read_group().ok().flatten());
        group.as_ref() == Some(&running.path)
    }

    /// The next group begins another sweep.
    pub fn end_number(&mut self) {
        self.number = None;
    }

    /// Notes the reason to stop the running sweep. Returns true if one runs.
    pub fn stop(&mut self, now: Monotonic, reason: Reason) -> bool {
        let Some(running) = &mut self.running else { return false };
        running.stop.get_or_insert((now, reason));
        true
    }

    /// Returns true if a sweep runs that was not told to stop yet.
    pub fn is_unstopped(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.stop.is_none())
    }

    /// Every 20 ms during a sweep: has foreground work begun? A sweep of cold memory or a step of a
    /// probe yields to a tick and goes on; any other sweep ends.
    pub fn sample(&mut self, host: &Host, config: &Config, cpu: &mut CpuByClass) -> Option<Step> {
        let running = self.running.as_mut()?;
        let now = host.now();
        let own_cpu = host.kernel.clock.own_cpu();
        let dt = now.since(running.sampled);
        // After a late wake-up the next one is early. The kernel accounts CPU time with a timer
        // tick's delay, so a few milliseconds may show the time of many (1005 % of a CPU were
        // seen).
        if dt < config.stop.sample / 2 {
            return None;
        }
        let own = own_cpu.saturating_sub(running.own_cpu);
        running.sampled = now;
        running.own_cpu = own_cpu;
        let mut used = cpu.non_background.sample();
        // In a group that it shares, the daemon's own time is among that of the others. Its clock
        // is up to a timer tick ahead of the group's, so a group of its own is the better way.
        if host.shares_its_group() {
            used = used.map(|used| used.saturating_sub(own));
        }
        match running.older_than.is_some() || running.is_probe {
            true => Some(running.yielding.watch(now, &mut running.watch, dt, used)),
            false => running.watch.sample(dt, used).map(Step::End),
        }
    }

    /// The worker has ended the sweep. Returns it, and has the disk keep its measured rate.
    pub fn finish(&mut self, host: &Host, disk: &mut Disk, report: &Report) -> Option<Running> {
        let _ = self.sampler.stop();
        let running = self.running.take()?;
        self.disk_rate.add(report);
        if let Some(rate) = self.disk_rate.rate() {
            let is_of_disk = disk_rate::is_disk_only(&host.kernel);
            if let Some((file, text)) = is_of_disk.then(|| disk_rate::file(&host.kernel, &host.root, rate)).flatten() {
                disk.replace(&file, text, "the next preparation will not know how fast the disk is");
            }
            self.disk_rate = disk_rate::Measured::default();
        }
        Some(running)
    }
}

/// The ledger's line about a swept group. The log gets it, too.
pub fn line(now: Monotonic, time: u64, mode: Mode, id: GroupId, running: &Running, report: Report) -> Swept {
    let stop_reason = match &running.stop {
        Some((_, reason)) if report.end == End::Stopped => reason.to_string(),
        _ => report.end.words().to_owned(),
    };
    let swept = Swept {
        time,
        sweep: running.number,
        group: running.path.to_string_lossy().into_owned(),
        id,
        observed: mode != Mode::Act,
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
        stop_ms: running.stop.as_ref().map(|(told, _)| millis(now.since(*told))),
        method: report.method.map(str::to_owned),
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
