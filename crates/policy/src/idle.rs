//! When the machine counts as idle: a rule that looks at the last seconds, and a state machine that
//! asks for how long the rule has held.

use alloc::borrow::ToOwned;
use alloc::collections::VecDeque;
use core::time::Duration;

use omr_units::{Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::{Idle, IdleRule};
use crate::reason::Reason;
use crate::signals::Machine;

/// A tick longer than this says nothing about its end.
const LONGEST_TICK: Duration = Duration::from_secs(10);

/// What the idle rule remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleState {
    /// The ticks of the last `idle.window`.
    recent: VecDeque<Tick>,
    /// Since when the rule holds, and for how long it must.
    holds: Option<(Monotonic, Duration)>,
    /// Since when it does not; `None` before the first tick.
    busy: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Tick {
    dt: Duration,
    load: Duration,
    foreground: Duration,
    stall_cpu: Duration,
    stall_io: Duration,
    stall_memory: Duration,
}

impl IdleState {
    /// Takes in a tick. `Ok`: idle, since then. `Err`: not, and why.
    pub fn tick(&mut self, config: &Idle, now: Monotonic, machine: &Machine) -> Result<Duration, Reason> {
        let began = now - machine.dt;
        match self.rule(config, machine) {
            Err(reason) => {
                self.holds = None;
                self.busy.get_or_insert(began);
                Err(reason)
            }
            Ok(()) => {
                let busy = self.busy.take();
                let (since, needed) = *self.holds.get_or_insert_with(|| {
                    // A short interruption costs a short wait, a long one the whole.
                    let needed = busy.map_or(config.hold, |busy| began.since(busy).clamp(config.again, config.hold));
                    (began, needed)
                });
                let held = now.since(since);
                if held >= needed { Ok(held) } else { Err(Reason::Settling { held, needed }) }
            }
        }
    }

    /// Somebody needed the machine in the middle of a tick: what came before says nothing any more.
    pub fn interrupt(&mut self, now: Monotonic) {
        self.recent.clear();
        self.holds = None;
        self.busy = Some(now);
    }

    /// Forgets all, as after boot: the machine slept, or the configuration changed.
    pub fn reset(&mut self) {
        *self = IdleState::default();
    }

    /// What the last tick found: idle for how long, or not.
    pub fn held(&self, now: Monotonic) -> Result<Duration, Reason> {
        match self.holds {
            Some((since, needed)) if now.since(since) >= needed => Ok(now.since(since)),
            Some((since, needed)) => Err(Reason::Settling { held: now.since(since), needed }),
            None => Err(Reason::Settling { held: Duration::ZERO, needed: Duration::ZERO }),
        }
    }

    /// CPU time used outside background groups in the last window, as a share of one CPU.
    pub fn steady_load(&self) -> Permyriad {
        self.mean(|tick| tick.load)
    }

    fn mean(&self, of: impl Fn(&Tick) -> Duration) -> Permyriad {
        let part: Duration = self.recent.iter().map(of).sum();
        let whole: Duration = self.recent.iter().map(|tick| tick.dt).sum();
        share(part, whole)
    }

    fn rule(&mut self, config: &Idle, machine: &Machine) -> Result<(), Reason> {
        let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
        if machine.dt.is_zero() || machine.dt > LONGEST_TICK || machine.cpus == 0 {
            self.recent.clear();
            return Err(unknown("the time since the last look"));
        }
        // The load is needed under both rules: a sweep ends when work begins on top of it.
        let Some(load) = machine.load else {
            self.recent.clear();
            return Err(unknown("the CPU time of the machine"));
        };
        let tick = Tick {
            dt: machine.dt,
            load,
            foreground: machine.foreground.ok_or_else(|| unknown("the CPU time of foreground groups"))?,
            stall_cpu: machine.stall_cpu.unwrap_or_default(),
            stall_io: machine.stall_io.unwrap_or_default(),
            stall_memory: machine.stall_memory.unwrap_or_default(),
        };
        self.recent.push_back(tick);
        let mut span: Duration = self.recent.iter().map(|tick| tick.dt).sum();
        while let Some(oldest) = self.recent.front()
            && self.recent.len() > 1
            && span > config.window
        {
            span = span.saturating_sub(oldest.dt);
            self.recent.pop_front();
        }
        match config.rule {
            IdleRule::Strict => {
                let least = machine.least_idle.ok_or_else(|| unknown("the idle time of the CPUs"))?;
                if least.idle < config.strict {
                    return Err(Reason::CpuBusy { cpu: least.cpu, idle: least.idle, needed: config.strict });
                }
            }
            IdleRule::Headroom => {
                let used = self.steady_load();
                let free = Permyriad(used.0 / machine.cpus).rest();
                if free < config.free {
                    return Err(Reason::LowHeadroom { free, needed: config.free });
                }
                let used = self.mean(|tick| tick.foreground);
                if used > config.foreground {
                    return Err(Reason::ForegroundBusy { used, allowed: config.foreground });
                }
                let pressures = [
                    ("cpu", machine.stall_cpu, self.mean(|tick| tick.stall_cpu), config.pressure_cpu),
                    ("io", machine.stall_io, self.mean(|tick| tick.stall_io), config.pressure_io),
                    ("memory", machine.stall_memory, self.mean(|tick| tick.stall_memory), config.pressure_memory),
                ];
                for (resource, known, share, allowed) in pressures {
                    if known.is_none() {
                        return Err(unknown(match resource {
                            "cpu" => "CPU pressure (/proc/pressure/cpu)",
                            "io" => "I/O pressure (/proc/pressure/io)",
                            _ => "memory pressure (/proc/pressure/memory)",
                        }));
                    }
                    if share > allowed {
                        return Err(Reason::Pressure { resource: resource.to_owned(), share, allowed });
                    }
                }
            }
        }
        Ok(())
    }
}

/// `part / whole` in time; nothing of no time.
pub(crate) fn share(part: Duration, whole: Duration) -> Permyriad {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Permyriad::ratio(nanos(part), nanos(whole)).unwrap_or(Permyriad::ZERO)
}
