//! When the machine counts as idle: a rule over the last seconds, and how long the rule must hold.
//!
//! After boot the rule must hold for `idle.for`. After an interruption it must hold for as long as
//! the interruption lasted, within `idle.again` and `idle.for`; interruptions that follow one
//! another double the wait. [`crate::decide`] asks at each tick.

use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use core::time::Duration;

use omr_units::{Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::{Idle, IdleRule, Stop};
use crate::reason::Reason;
use crate::signals::Machine;

/// The longest tick whose rates count. After a longer one the load at its end is unknown.
const LONGEST_TICK: Duration = Duration::from_secs(10);

/// The window is kept in at most this many parts, however short the ticks are.
const PARTS: u32 = 64;

/// The state of the idle rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleState {
    /// The ticks of the last `idle.window`.
    recent: VecDeque<Tick>,
    /// The time in which the rule has held; `None`: it does not hold now.
    idle: Option<IdleSpell>,
    /// The time in which the rule has not held; `None`: it holds now, or there was no tick yet.
    busy: Option<BusySpell>,
}

/// A time in which the rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IdleSpell {
    since: Monotonic,
    /// The time for which the rule must hold before a sweep.
    needed: Duration,
    /// The least such time after the next interruption.
    next: Duration,
}

/// A time in which the rule does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BusySpell {
    since: Monotonic,
    /// The last moment known to be busy.
    until: Monotonic,
    /// The idle time before; `None`: there was none since boot.
    before: Option<IdleSpell>,
}

impl BusySpell {
    /// The idle time that begins now, at `since`.
    fn then_idle(&self, config: &Idle, since: Monotonic) -> IdleSpell {
        let again = (config.again, config.again.saturating_mul(2));
        let (least, next) = match self.before {
            None => (config.hold, config.again),
            Some(before) => match self.since.since(before.since) {
                // Nothing was swept meanwhile: the wait begins anew.
                idle if idle < before.needed => (before.needed, before.next),
                // Interruptions follow one another, somebody is there: twice as long each time.
                idle if idle.saturating_sub(before.needed) < config.hold => {
                    (before.next, before.next.saturating_mul(2))
                }
                _ => again,
            },
        };
        // In this order: a configuration may have `again` above `for`.
        IdleSpell { since, needed: least.max(since.since(self.since)).min(config.hold), next }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Tick {
    dt: Duration,
    load: Duration,
    foreground: Duration,
    /// `None`: unknown, as in the two below. The strict rule does not need them.
    stall_cpu: Option<Duration>,
    stall_io: Option<Duration>,
    stall_memory: Option<Duration>,
}

/// Shares of time in which some task waited for a resource; `None`: unknown.
pub(crate) struct Stalls {
    pub cpu: Option<Permyriad>,
    pub io: Option<Permyriad>,
    pub memory: Option<Permyriad>,
}

impl Tick {
    /// `Err`: the name of a signal that the rule needs and that is missing.
    fn new(rule: IdleRule, machine: &Machine) -> Result<Self, &'static str> {
        if machine.dt.is_zero() || machine.dt > LONGEST_TICK {
            return Err("the time since the last tick");
        }
        if machine.cpus == 0 {
            return Err("the CPU time of the machine");
        }
        let stall = |stall: Option<Duration>, name| match (rule, stall) {
            (IdleRule::Headroom, None) => Err(name),
            _ => Ok(stall),
        };
        Ok(Tick {
            dt: machine.dt,
            // Both rules need the load: a sweep ends when work begins on top of it.
            load: machine.load.ok_or("the CPU time of the machine")?,
            foreground: machine.foreground.ok_or("the CPU time of foreground groups")?,
            stall_cpu: stall(machine.stall_cpu, "CPU pressure (/proc/pressure/cpu)")?,
            stall_io: stall(machine.stall_io, "I/O pressure (/proc/pressure/io)")?,
            stall_memory: stall(machine.stall_memory, "memory pressure (/proc/pressure/memory)")?,
        })
    }

    fn with(self, next: Tick) -> Tick {
        let sum = |one: Option<Duration>, two: Option<Duration>| Some(one?.saturating_add(two?));
        Tick {
            dt: self.dt.saturating_add(next.dt),
            load: self.load.saturating_add(next.load),
            foreground: self.foreground.saturating_add(next.foreground),
            stall_cpu: sum(self.stall_cpu, next.stall_cpu),
            stall_io: sum(self.stall_io, next.stall_io),
            stall_memory: sum(self.stall_memory, next.stall_memory),
        }
    }
}

impl IdleState {
    /// Takes in a tick. `Ok`: how long the machine has been idle, which is long enough. `Err`: why
    /// no sweep may run.
    pub fn tick(&mut self, config: &Idle, now: Monotonic, machine: &Machine) -> Result<Duration, Reason> {
        let began = now - machine.dt;
        match self.rule(config, machine) {
            Err(reason) => {
                self.note_busy(began, now);
                Err(reason)
            }
            Ok(()) => {
                let busy = self.busy.take();
                self.idle.get_or_insert_with(|| match busy {
                    // A short interruption costs a short wait, a long one costs the whole wait.
                    Some(busy) => busy.then_idle(config, began.max(busy.until)),
                    None => IdleSpell { since: began, needed: config.hold, next: config.again },
                });
                self.idle_time(now)
            }
        }
    }

    /// Foreground work began in the middle of a tick: the ticks before say nothing any more.
    pub fn interrupt(&mut self, now: Monotonic) {
        self.recent.clear();
        self.note_busy(now, now);
    }

    /// Forgets everything, as after boot: the machine slept, or the configuration changed.
    pub fn reset(&mut self) {
        *self = IdleState::default();
    }

    /// Returns the result of the last tick. `Ok`: the time for which the machine has been idle,
    /// which is long enough.
    pub fn idle_time(&self, now: Monotonic) -> Result<Duration, Reason> {
        let (idle, needed) = match self.idle {
            Some(idle) => (now.since(idle.since), idle.needed),
            None => return Err(Reason::Settling { idle: Duration::ZERO, needed: Duration::ZERO }),
        };
        if idle >= needed { Ok(idle) } else { Err(Reason::Settling { idle, needed }) }
    }

    /// CPU time used outside background groups in the last window, as a share of one CPU.
    pub fn steady_load(&self) -> Permyriad {
        self.mean(|tick| tick.load)
    }

    /// The least of that in any tick of the last window: load that comes and goes is not in it.
    pub fn least_load(&self) -> Permyriad {
        self.recent.iter().map(|tick| Permyriad::of_time(tick.load, tick.dt)).min().unwrap_or_default()
    }

    /// Why no sweep may begin in the last tick although the window as a whole is idle: the load of
    /// that tick would end a sweep at once.
    pub fn surge(&self, config: &Stop) -> Option<Reason> {
        let last = self.recent.back()?;
        let used = Permyriad::of_time(last.load, last.dt);
        let allowed = Permyriad(self.steady_load().0.saturating_add(config.cpu.0));
        (used > allowed).then_some(Reason::WorkBegan { used, allowed })
    }

    fn note_busy(&mut self, began: Monotonic, now: Monotonic) {
        let before = self.idle.take();
        let busy = self.busy.get_or_insert(BusySpell { since: began, until: now, before });
        busy.until = busy.until.max(now);
    }

    /// The share in the last window of the time in which some task waited.
    pub(crate) fn stalls(&self) -> Stalls {
        let known = |of: fn(&Tick) -> Option<Duration>| {
            self.recent.iter().all(|tick| of(tick).is_some()).then(|| self.mean(|tick| of(tick).unwrap_or_default()))
        };
        Stalls {
            cpu: known(|tick| tick.stall_cpu),
            io: known(|tick| tick.stall_io),
            memory: known(|tick| tick.stall_memory),
        }
    }

    fn mean(&self, of: impl Fn(&Tick) -> Duration) -> Permyriad {
        let sum = |of: &dyn Fn(&Tick) -> Duration| {
            self.recent.iter().map(of).fold(Duration::ZERO, |sum, time| sum.saturating_add(time))
        };
        Permyriad::of_time(sum(&of), sum(&|tick| tick.dt))
    }

    /// Adds a tick to the window and drops the ticks that have left it.
    fn record(&mut self, window: Duration, tick: Tick) {
        match self.recent.back_mut() {
            Some(last) if last.dt.saturating_add(tick.dt) <= window / PARTS => *last = last.with(tick),
            _ => self.recent.push_back(tick),
        }
        let mut span: Duration = self.recent.iter().map(|tick| tick.dt).sum();
        while let Some(oldest) = self.recent.front()
            && self.recent.len() > 1
            && span > window
        {
            span = span.saturating_sub(oldest.dt);
            self.recent.pop_front();
        }
    }

    /// Applies the rule to the window that ends with this tick. `Err`: why the machine is not idle.
    fn rule(&mut self, config: &Idle, machine: &Machine) -> Result<(), Reason> {
        let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
        match Tick::new(config.rule, machine) {
            Ok(tick) => self.record(config.window, tick),
            Err(signal) => {
                // The window must not bridge the gap: ticks before the gap must not excuse later
                // ones.
                self.recent.clear();
                return Err(unknown(signal));
            }
        }
        match config.rule {
            IdleRule::Strict => {
                let least = machine.least_idle.ok_or_else(|| unknown("the idle time of the CPUs"))?;
                if least.idle < config.strict {
                    return Err(Reason::CpuBusy { cpu: least.cpu, idle: least.idle, needed: config.strict });
                }
                Ok(())
            }
            IdleRule::Headroom => self.headroom(config, machine.cpus),
        }
    }

    fn headroom(&self, config: &Idle, cpus: u32) -> Result<(), Reason> {
        let free = Permyriad(self.steady_load().0 / cpus).rest();
        if free < config.free {
            return Err(Reason::LowHeadroom { free, needed: config.free });
        }
        let used = self.mean(|tick| tick.foreground);
        if used > config.foreground {
            return Err(Reason::ForegroundBusy { used, allowed: config.foreground });
        }
        let stalls = self.stalls();
        for (resource, share, allowed) in [
            ("cpu", stalls.cpu, config.pressure_cpu),
            ("io", stalls.io, config.pressure_io),
            ("memory", stalls.memory, config.pressure_memory),
        ] {
            // Every tick has it, see `Tick::new`.
            let share = share.unwrap_or(Permyriad::ONE);
            if share > allowed {
                return Err(Reason::Pressure { resource: resource.to_owned(), share, allowed });
            }
        }
        Ok(())
    }
}
