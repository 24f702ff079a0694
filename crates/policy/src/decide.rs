//! One tick: is it time for a sweep, of which group, or must a running one end?

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::budget::Writes;
use crate::config::{Class, Config};
use crate::idle::IdleState;
use crate::pace::Job;
use crate::reason::Reason;
use crate::signals::{End, Finished, Group, Machine, Signals};

/// What the policy remembers from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    idle: IdleState,
    /// No sweep before that moment, since the machine woke up.
    awake: Option<Monotonic>,
    paused: Option<Pause>,
    /// The group being swept.
    sweeping: Option<GroupId>,
    /// Groups that were swept, or could not be.
    swept: BTreeMap<GroupId, Swept>,
    /// Writes to swap on disk.
    pub writes: Writes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Pause {
    Until(Monotonic),
    ForGood,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Swept {
    /// When its last sweep ended; `None` while the first one runs.
    ended: Option<Monotonic>,
    /// What it held then.
    size: Bytes,
    /// The sweep was cut short: go on as soon as possible.
    unfinished: bool,
    /// Start of the current minute of refaults, and the counter then.
    minute: Option<(Monotonic, Bytes)>,
    backoff: Option<Backoff>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Backoff {
    until: Monotonic,
    length: Duration,
    refaults: Option<Bytes>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Decision {
    /// Nothing.
    Hold {
        /// Why.
        reason: Reason,
    },
    /// Begin to reclaim a group. [`State::finished`] tells the policy how that ended.
    Sweep {
        /// The group.
        id: GroupId,
        /// How.
        job: Job,
        /// Why now.
        reason: Reason,
    },
    /// Let the running sweep go on.
    Continue {
        /// Why.
        reason: Reason,
    },
    /// End the running sweep.
    Stop {
        /// Why.
        reason: Reason,
    },
}

impl Decision {
    /// Its reason.
    pub fn reason(&self) -> &Reason {
        match self {
            Decision::Hold { reason }
            | Decision::Sweep { reason, .. }
            | Decision::Continue { reason }
            | Decision::Stop { reason } => reason,
        }
    }
}

/// How long refaults are held against a sweep.
const ATTRIBUTION: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// The decision of this tick.
pub fn decide(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    let verdict = idle(config, state, signals);
    let harm = note_refaults(config, state, signals, groups);
    match (verdict, state.sweeping) {
        (Err(reason), Some(_)) => Decision::Stop { reason },
        (Err(reason), None) => Decision::Hold { reason },
        (Ok(_), Some(id)) if harm.as_ref().is_some_and(|(harmed, _)| *harmed == id) => {
            let reason = harm.map_or(Reason::Stopping, |(_, reason)| reason);
            Decision::Stop { reason }
        }
        (Ok(held), Some(_)) => Decision::Continue { reason: Reason::Idle { held } },
        (Ok(held), None) => choose(config, state, signals, groups, held),
    }
}

/// The next group of a running sweep, right after one is finished: on the verdict of the last tick,
/// because a few milliseconds say nothing about an idle machine.
pub fn next(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    match state.idle.held(signals.now) {
        Ok(held) if state.paused.is_none() => choose(config, state, signals, groups, held),
        Ok(_) => Decision::Hold { reason: Reason::Paused { left: None } },
        Err(reason) => Decision::Hold { reason },
    }
}

/// The group with most to gain.
fn choose(config: &Config, state: &mut State, signals: &Signals, groups: &[Group], held: Duration) -> Decision {
    let best = groups
        .iter()
        .filter_map(|group| judge(config, state, signals, group).ok())
        // Of equals the one with the smaller id, so that the same input gives the same choice.
        .max_by_key(|(job, id)| (job.amount, core::cmp::Reverse(*id)));
    match best {
        None => Decision::Hold { reason: Reason::NothingToGain },
        Some((job, id)) => {
            state.sweeping = Some(id);
            // From now on what comes back into it is counted.
            state.swept.entry(id).or_default().minute = None;
            Decision::Sweep { id, job, reason: Reason::Idle { held } }
        }
    }
}

fn idle(config: &Config, state: &mut State, signals: &Signals) -> Result<Duration, Reason> {
    let now = signals.now;
    if signals.slept {
        state.idle.reset();
        state.awake = Some(now + config.sweep.after_resume);
    }
    // The idle rule sees every tick, whatever else holds sweeps back.
    let idle = state.idle.tick(&config.idle, now, &signals.machine);
    match state.paused {
        Some(Pause::Until(until)) if now >= until => state.paused = None,
        Some(Pause::Until(until)) => return Err(Reason::Paused { left: Some(until.since(now)) }),
        Some(Pause::ForGood) => return Err(Reason::Paused { left: None }),
        None => {}
    }
    let booted = Monotonic(0) + config.sweep.after_boot;
    if now < booted {
        return Err(Reason::AfterBoot { left: booted.since(now) });
    }
    if let Some(awake) = state.awake
        && now < awake
    {
        return Err(Reason::AfterResume { left: awake.since(now) });
    }
    idle
}

/// Swap that must stay free when `amount` more goes out.
///
/// What a sweep moves to swap need not be in a hibernation image any more, so of what the image
/// needs now only the rest has to stay free.
pub fn swap_floor(config: &Config, machine: &Machine, amount: Bytes) -> Bytes {
    let total = machine.swap.map(|swap| swap.total).unwrap_or_default();
    let image = machine.image.unwrap_or_default() - amount;
    config.guard.swap_floor.of(total).max(image)
}

/// Whether anonymous memory may go to swap now: how much, or why not.
fn swap_room(config: &Config, state: &State, signals: &Signals) -> Result<Bytes, Reason> {
    let swap = signals.machine.swap.filter(|swap| swap.total.0 > 0).ok_or(Reason::NoSwap)?;
    let floor = config.guard.swap_floor.of(swap.total);
    let room = swap.free - floor;
    if room < config.sweep.smallest {
        return Err(Reason::SwapFloor { free: swap.free, floor });
    }
    if swap.on_disk
        && let Some(budget) = config.guard.max_swap_writes
    {
        let left = state.writes.left(signals.hour, Some(budget));
        if left < config.sweep.smallest {
            return Err(Reason::WriteBudget { used: state.writes.within(signals.hour, budget.hours), budget });
        }
        return Ok(room.min(left));
    }
    Ok(room)
}

/// Whether a group is worth a sweep: how it would be done, or why not.
pub fn judge(config: &Config, state: &State, signals: &Signals, group: &Group) -> Result<(Job, GroupId), Reason> {
    if group.class != Class::Background {
        return Err(Reason::Class { class: group.class });
    }
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    let current = group.current.ok_or_else(|| unknown("memory.current"))?;
    let page_cache = group.page_cache.ok_or_else(|| unknown("memory.stat"))?;
    let swap_backed = group.swap_backed.ok_or_else(|| unknown("memory.stat"))?;
    let unprotected = group.unprotected.ok_or_else(|| unknown("memory.min or memory.low"))?;
    let swept = state.swept.get(&group.id);
    if let Some(backoff) = swept.and_then(|swept| swept.backoff)
        && signals.now < backoff.until
    {
        return Err(Reason::BackingOff { left: backoff.until.since(signals.now), refaults: backoff.refaults });
    }
    let keep = group.keep.map_or(Bytes::ZERO, |keep| keep.of(current));
    let room = current - keep;
    if room.0 == 0 && keep.0 > 0 {
        return Err(Reason::Keep { keep });
    }
    if unprotected.0 == 0 && current.0 > 0 {
        return Err(Reason::KernelProtection);
    }
    let room = room.min(unprotected);
    let swap = swap_room(config, state, signals);
    let reclaimable = match &swap {
        Ok(bytes) => page_cache + swap_backed.min(*bytes),
        // Without the key the kernel would swap all the same, unless there is nothing to swap to.
        Err(Reason::NoSwap) => page_cache,
        Err(reason) if !signals.machine.file_only => return Err(reason.clone()),
        Err(_) => page_cache,
    };
    let gain = room.min(reclaimable);
    if gain < config.sweep.smallest {
        return Err(match swap {
            Err(reason) if room.min(page_cache + swap_backed) >= config.sweep.smallest => reason,
            _ => Reason::TooSmall { gain, smallest: config.sweep.smallest },
        });
    }
    if let Some(swept) = swept.filter(|swept| swept.ended.is_some() && !swept.unfinished) {
        let grown = current - swept.size;
        if grown < config.sweep.growth {
            return Err(Reason::SweptAlready { grown, needed: config.sweep.growth });
        }
    }
    let on_disk = signals.machine.swap.is_some_and(|swap| swap.on_disk);
    let job = Job {
        amount: gain,
        floor: current - room,
        swap_floor: swap_floor(config, &signals.machine, gain),
        swap_writes: if on_disk { state.writes.left(signals.hour, config.guard.max_swap_writes) } else { Bytes::MAX },
        file_only: signals.machine.file_only,
        step: config.sweep.step,
        write_time: config.sweep.write_time,
    };
    Ok((job, group.id))
}

/// Counts what comes back into groups that were swept; returns the first group, and why, whose rate
/// is above the limit and which now backs off.
fn note_refaults(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Option<(GroupId, Reason)> {
    let now = signals.now;
    let mut harmed = None;
    for group in groups {
        let (Some(swept), Some(refaults)) = (state.swept.get_mut(&group.id), group.refaults) else { continue };
        if swept.ended.is_some_and(|ended| now.since(ended) > ATTRIBUTION) {
            swept.minute = None;
            continue;
        }
        let (began, base) = *swept.minute.get_or_insert((now, refaults));
        // A counter that went back gives zero.
        let bytes = refaults - base;
        let allowed = config.guard.refaults_per_minute;
        if bytes > allowed {
            back_off(config, swept, now, Some(bytes));
            harmed.get_or_insert((group.id, Reason::Refaults { bytes, allowed }));
            swept.minute = Some((now, refaults));
        } else if now.since(began) >= MINUTE {
            swept.minute = Some((now, refaults));
        }
    }
    harmed
}

/// Twice as long as the last time, unless that has been over for as long as it lasted.
fn back_off(config: &Config, swept: &mut Swept, now: Monotonic, refaults: Option<Bytes>) {
    let length = match swept.backoff {
        Some(last) if now < last.until => last.length,
        Some(last) if now.since(last.until) < last.length => (last.length * 2).min(config.guard.backoff_max),
        _ => config.guard.backoff,
    };
    swept.backoff = Some(Backoff { until: now + length, length, refaults });
}

impl State {
    /// The group being swept.
    pub fn sweeping(&self) -> Option<GroupId> {
        self.sweeping
    }

    /// CPU time used outside background groups lately, as a share of one CPU.
    pub fn steady_load(&self) -> Permyriad {
        self.idle.steady_load()
    }

    /// The sweep of a group has ended.
    pub fn finished(&mut self, config: &Config, now: Monotonic, hour: u64, finished: &Finished) {
        self.sweeping = None;
        self.writes.add(hour, finished.swap_writes);
        if finished.end == End::Gone {
            self.swept.remove(&finished.id);
            return;
        }
        let swept = self.swept.entry(finished.id).or_default();
        swept.ended = Some(now);
        swept.size = finished.size;
        swept.minute = finished.refaults.map(|refaults| (now, refaults));
        swept.unfinished = matches!(finished.end, End::Stopped | End::Timeout);
        if matches!(finished.end, End::Denied | End::Unsupported | End::Failed) {
            back_off(config, swept, now, None);
        }
    }

    /// Somebody began to work in the middle of a sweep.
    pub fn interrupt(&mut self, now: Monotonic) {
        self.idle.interrupt(now);
    }

    /// No sweeps, for a time or until [`State::resume`].
    pub fn pause(&mut self, now: Monotonic, time: Option<Duration>) {
        self.paused = Some(time.map_or(Pause::ForGood, |time| Pause::Until(now + time)));
    }

    /// Sweeps again.
    pub fn resume(&mut self) {
        self.paused = None;
    }

    /// The configuration changed: the rule must hold anew.
    pub fn reconfigured(&mut self) {
        self.idle.reset();
    }

    /// Forgets groups that are not in this list, which is sorted.
    pub fn retain(&mut self, groups: &[GroupId]) {
        self.swept.retain(|id, _| groups.binary_search(id).is_ok());
    }

    /// All groups that are backing off, for `omr status`.
    pub fn backing_off(&self, now: Monotonic) -> Vec<GroupId> {
        self.swept
            .iter()
            .filter(|(_, swept)| swept.backoff.is_some_and(|backoff| now < backoff.until))
            .map(|(id, _)| *id)
            .collect()
    }
}
