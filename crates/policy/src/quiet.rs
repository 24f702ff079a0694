//! When the machine is quiet enough for sweeps of cold memory, with `goal = "auto"`.
//!
//! A server is never idle, and nobody misses its cold memory. So a sweep of cold memory needs a
//! machine on which one more thread is in nobody's way: enough CPU time is free, and tasks hardly
//! wait for anything. It is paced: it takes little at once, and after it no sweep begins for a time
//! that keeps sweeps within a small share of a CPU. A machine that is idle needs no such pace.
//!
//! Work that begins holds or ends a sweep. Sweeps that are cut short again and again stay away for
//! twice as long each time.

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Goal};
use crate::idle::IdleState;
use crate::pace::Job;
use crate::reason::Reason;
use crate::signals::{End, Finished, Group, Machine};

/// The free CPU time that is needed, as a share of one CPU; half of all CPU time where that is
/// less.
const FREE: Permyriad = Permyriad::ONE;
/// A sweep begins only below this part of the I/O and memory pressure of an idle machine. Its own
/// waits for the disk count as I/O pressure, so while it runs all of that is allowed.
const PART: u32 = 4;
/// No sweep begins for this many times the CPU time of the last one: 0.5 % of a CPU.
const REST: u32 = 200;
/// The most that one sweep takes. At 500 MB/s this is a quarter of a second of CPU time.
const AT_ONCE: Bytes = Bytes::mib(128);
/// The longest time for which sweeps stay away.
const LONGEST_AWAY: Duration = Duration::from_secs(3600);

/// The state of sweeps of cold memory with `goal = "auto"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct QuietState {
    /// The time since which the rule has held; `None`: it does not hold now.
    since: Option<Monotonic>,
    /// The free CPU time of the last window, as a share of one CPU.
    free: Permyriad,
    /// No sweep begins before this moment, unless the machine is idle; `None`: it may.
    rested: Option<Monotonic>,
    /// CPU time of the sweep that it rests from.
    cpu: Duration,
    /// The number of sweeps in a row that were cut short before they had taken much.
    cut_short: u32,
    /// No sweep begins before this moment, however idle the machine is; `None`: it may.
    away: Option<Monotonic>,
    /// The running sweep; `None`: no sweep of cold memory runs.
    running: Option<Running>,
}

/// A sweep of cold memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Running {
    /// Memory of the group at its beginning.
    size: Bytes,
    /// The amount to free.
    amount: Bytes,
    /// Its CPU time counts, because the machine was not idle when it began.
    is_paced: bool,
}

/// Whether sweeps of this group need a quiet machine only. Memory that leaves because everybody is
/// away is younger than the threshold, and needs an idle one.
pub fn suffices(config: &Config, group: &Group) -> bool {
    config.goal == Goal::Auto && group.cold_only.as_ref().is_some_and(|cold_only| !cold_only.is_younger())
}

/// The job of a sweep that begins on a machine that is not idle.
pub(crate) fn paced(job: Job) -> Job {
    Job { amount: job.amount.min(AT_ONCE), ..job }
}

impl QuietState {
    /// Takes in a tick, after the idle rule. `idle`: what that rule said.
    pub(crate) fn tick(
        &mut self,
        config: &Config,
        now: Monotonic,
        machine: &Machine,
        load: &IdleState,
        idle: &Result<Duration, Reason>,
    ) -> Result<(), Reason> {
        let part = if self.running.is_some() { 1 } else { PART };
        let rule = match idle {
            Err(reason @ Reason::Unknown { .. }) => Err(reason.clone()),
            _ => rule(config, load, machine.cpus, part),
        };
        match &rule {
            Ok(free) => {
                self.since.get_or_insert(now - machine.dt);
                self.free = *free;
            }
            Err(_) => self.since = None,
        }
        rule.map(|_| ())
    }

    /// `Err`: the machine has not been quiet for long enough, or the last sweep was too short a
    /// time ago.
    pub(crate) fn may_begin(&self, config: &Config, now: Monotonic) -> Result<Reason, Reason> {
        let (quiet, needed) = (self.since.map_or(Duration::ZERO, |since| now.since(since)), config.idle.window);
        if self.since.is_none() || quiet < needed {
            return Err(Reason::QuietFor { quiet, needed });
        }
        match self.rested {
            Some(rested) if now < rested => Err(Reason::Resting { left: rested.since(now), cpu: self.cpu }),
            _ => Ok(self.reason(now)),
        }
    }

    /// Why a sweep may run.
    pub(crate) fn reason(&self, now: Monotonic) -> Reason {
        Reason::Quiet { quiet: self.since.map_or(Duration::ZERO, |since| now.since(since)), free: self.free }
    }

    /// `Err`: sweeps stay away, because the last ones were cut short.
    pub(crate) fn stays_away(&self, now: Monotonic) -> Result<(), Reason> {
        match self.away {
            Some(away) if now < away => Err(Reason::CutShort { times: self.cut_short, left: away.since(now) }),
            _ => Ok(()),
        }
    }

    /// Whether a sweep of cold memory runs.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// A sweep begins. `is_paced`: the machine is not idle.
    pub(crate) fn begin(&mut self, config: &Config, group: &Group, job: &Job, is_paced: bool) {
        let size = group.current.unwrap_or_default();
        self.running = suffices(config, group).then_some(Running { size, amount: job.amount, is_paced });
    }

    /// The running sweep has taken this much CPU time.
    pub(crate) fn spent(&mut self, now: Monotonic, cpu: Duration) {
        if self.running.is_some_and(|running| running.is_paced) {
            self.cpu = cpu;
            self.rested = Some(self.rested.map_or(now, |rested| rested.max(now)) + cpu.saturating_mul(REST));
        }
    }

    /// The running sweep has ended.
    pub(crate) fn finished(&mut self, config: &Config, now: Monotonic, finished: &Finished) {
        let Some(running) = self.running.take() else { return };
        let enough = config.sweep.growth.min(Bytes(running.amount.0 / 4));
        if finished.end == End::Stopped && running.size - finished.size < enough {
            self.cut_short = self.cut_short.saturating_add(1);
            let times = 1u32.checked_shl(self.cut_short).unwrap_or(u32::MAX);
            self.away = Some(now + config.idle.window.saturating_mul(times).min(LONGEST_AWAY));
        } else {
            self.cut_short = 0;
        }
    }

    /// Work began in the middle of a tick, or what was known does not count any more.
    pub(crate) fn interrupt(&mut self) {
        self.since = None;
    }
}

/// Applies the rule to the last window. Returns the free CPU time, as a share of one CPU. `Err`:
/// why the machine is not quiet. `part`: see [`PART`].
fn rule(config: &Config, load: &IdleState, cpus: u32, part: u32) -> Result<Permyriad, Reason> {
    let window = config.idle.window;
    let all = Permyriad(cpus.saturating_mul(Permyriad::ONE.0));
    let free = Permyriad(all.0.saturating_sub(load.steady_load().0));
    let needed = FREE.min(Permyriad(all.0 / 2));
    if free < needed {
        return Err(Reason::LittleFree { free, needed, window });
    }
    let stalls = load.stalls();
    for (resource, share, allowed) in [
        ("cpu", stalls.cpu, config.idle.pressure_cpu),
        ("io", stalls.io, Permyriad(config.idle.pressure_io.0 / part)),
        ("memory", stalls.memory, Permyriad(config.idle.pressure_memory.0 / part)),
    ] {
        let share = share.ok_or_else(|| Reason::Unknown { signal: alloc::format!("the pressure of {resource}") })?;
        if share > allowed {
            return Err(Reason::NotQuiet { resource: resource.to_owned(), share, allowed, window });
        }
    }
    Ok(free)
}
