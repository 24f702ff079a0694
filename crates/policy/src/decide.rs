//! One tick: does a sweep begin, of which group, or must the running sweep end?
//!
//! [`decide`] works from the configuration, the state, the signals and the groups. The daemon's
//! worker carries the decision out and reports to [`State`] how it ended.

use alloc::borrow::ToOwned;
use core::cmp::Reverse;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic};
use serde::{Deserialize, Serialize};

use crate::away;
use crate::config::{Config, Goal};
use crate::cost;
use crate::gates::{unhindered, wanted};
use crate::judge::{judge, reclaimable, swap_room};
use crate::need::need;
use crate::pace::Job;
use crate::presence::{nobody, permits};
use crate::quiet::{paced, suffices};
use crate::reason::Reason;
use crate::signals::{Group, Machine, Signals};
use crate::state::State;

/// The action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Decision {
    /// No sweep runs, and none begins.
    Hold {
        /// Why not.
        reason: Reason,
    },
    /// A sweep of a group begins. [`State::finished`] tells the policy how the sweep ended;
    /// [`State::interrupt`] tells it that foreground work began meanwhile.
    Sweep {
        /// The group.
        id: GroupId,
        /// The amount to reclaim, with its limits.
        job: Job,
        /// Why now.
        reason: Reason,
    },
    /// The running sweep goes on.
    Continue {
        /// Why it may.
        reason: Reason,
    },
    /// The running sweep must end.
    Stop {
        /// Why.
        reason: Reason,
    },
}

impl Decision {
    /// Why it was decided.
    pub fn reason(&self) -> &Reason {
        match self {
            Decision::Hold { reason }
            | Decision::Sweep { reason, .. }
            | Decision::Continue { reason }
            | Decision::Stop { reason } => reason,
        }
    }
}

/// What sweeps may begin or go on now: why they may, or why not.
struct Permitted {
    /// Of memory of any age: an idle machine.
    any_age: Result<Reason, Reason>,
    /// Of cold memory: with `goal = "auto"` a quiet machine is enough.
    cold: Result<Reason, Reason>,
}

impl Permitted {
    /// For a sweep of this group.
    fn of_group(&self, config: &Config, group: &Group) -> &Result<Reason, Reason> {
        if suffices(config, group) { &self.cold } else { &self.any_age }
    }
}

/// The decision of this tick.
pub fn decide(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    let permitted = permitted(config, state, signals);
    let harm = watch_groups(config, state, signals, groups);
    if let Some(id) = state.sweeping {
        let of_running = if state.quiet.is_running() { permitted.cold } else { permitted.any_age };
        let reason = match of_running {
            Err(reason) => return Decision::Stop { reason },
            Ok(reason) => reason,
        };
        return match harm.or_else(|| no_longer(config, state, id, groups)).or_else(|| too_dear(config, state, signals))
        {
            Some(reason) => Decision::Stop { reason },
            None => Decision::Continue { reason },
        };
    }
    match (&permitted.any_age, permitted.cold.as_ref().err()) {
        (Err(_), Some(reason)) => Decision::Hold { reason: reason.clone() },
        _ if state.hinting => Decision::Hold { reason: Reason::Hinting },
        _ => match state.idle.surge(&config.stop) {
            Some(reason) => Decision::Hold { reason },
            None => choose(config, state, signals, groups, &permitted),
        },
    }
}

/// Returns true if nothing can begin whoever is there: with `goal = "auto"`, nobody gains from
/// memory that leaves. Such a machine may be looked at less often.
pub fn nobody_gains(config: &Config, machine: &Machine) -> bool {
    config.goal == Goal::Auto && matches!(need(config, machine), Err(Reason::NoNeed { .. } | Reason::LittleNeed { .. }))
}

/// The next group, right after a sweep has ended. This uses the idle state of the last tick,
/// because a few milliseconds say nothing about an idle machine.
pub fn next(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    let now = signals.now;
    let idle = unhindered(config, state, now).and_then(|()| state.idle.idle_time(now));
    let permitted = either(config, state, now, idle, Ok(()));
    match (&permitted.any_age, &permitted.cold) {
        (Err(_), Err(reason)) => Decision::Hold { reason: reason.clone() },
        (Ok(reason), _) | (_, Ok(reason)) if state.sweeping.is_some() => Decision::Continue { reason: reason.clone() },
        _ => choose(config, state, signals, groups, &permitted),
    }
}

/// Takes in a tick, and tells which sweeps may run now.
fn permitted(config: &Config, state: &mut State, signals: &Signals) -> Permitted {
    let now = signals.now;
    if signals.slept {
        state.woke_up(config, now);
    }
    // These rules see every tick, whatever else keeps sweeps away.
    state.presence.tick(&config.presence, now, signals.slept, signals.machine.presence.as_ref());
    away::tick(config, state, &signals.machine);
    let idle = state.idle.tick(&config.idle, now, &signals.machine);
    let quiet = state.quiet.tick(config, now, &signals.machine, &state.idle, &idle);
    either(config, state, now, unhindered(config, state, now).and(idle), quiet)
}

/// What an idle machine and a quiet one permit. `idle`: the time for which the machine has been
/// idle; `quiet`: whether it is quiet now.
fn either(
    config: &Config,
    state: &State,
    now: Monotonic,
    idle: Result<Duration, Reason>,
    quiet: Result<(), Reason>,
) -> Permitted {
    let any_age = idle.map(|idle| Reason::Idle { idle });
    let cold = match (&any_age, config.goal, state.sweeping) {
        (_, Goal::Free | Goal::Hibernate, _) => any_age.clone(),
        (Ok(_), Goal::Auto, None) => state.quiet.stays_away(now).and_then(|()| any_age.clone()),
        (Ok(_), Goal::Auto, Some(_)) => any_age.clone(),
        (Err(_), Goal::Auto, running) => {
            let quiet = unhindered(config, state, now).and(quiet);
            match running {
                Some(_) => quiet.map(|()| state.quiet.reason(now)),
                None => {
                    quiet.and_then(|()| state.quiet.stays_away(now)).and_then(|()| state.quiet.may_begin(config, now))
                }
            }
        }
    };
    Permitted { any_age, cold }
}

/// Takes in the size and the refaults of the groups that were swept. Groups into which too much
/// comes back begin to back off. Returns why the running sweep must end, if its group is among
/// them.
fn watch_groups(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Option<Reason> {
    let on_disk = signals.machine.swap.is_none_or(|swap| swap.on_disk);
    let mut harm = None;
    for group in groups {
        let Some(swept) = state.swept.get_mut(&group.id) else { continue };
        if let Some(current) = group.current {
            swept.size = swept.size.min(current);
        }
        let Some(refaults) = group.refaults else { continue };
        let allowed = config.guard.allowed(group.current.unwrap_or_default(), on_disk);
        if let Some(bytes) = swept.watch(&config.guard, signals.now, allowed, refaults)
            && state.sweeping == Some(group.id)
        {
            harm = Some(Reason::Refaults { bytes, allowed });
        }
    }
    harm
}

/// Begins a sweep of the group with most to gain.
fn choose(config: &Config, state: &mut State, signals: &Signals, groups: &[Group], permitted: &Permitted) -> Decision {
    // A group of which only cold memory is reclaimed can meet every need.
    if let Err(reason) = wanted(config, &signals.machine, true) {
        return Decision::Hold { reason };
    }
    let mut waits = None;
    let best = groups
        .iter()
        .filter_map(|group| judge(config, state, signals, group).ok().map(|(job, id)| (group, job, id)))
        .filter(|(group, ..)| match permitted.of_group(config, group) {
            Ok(_) => true,
            Err(reason) => {
                waits.get_or_insert_with(|| reason.clone());
                false
            }
        })
        // Each sweep that was cut short halves the weight of what is left, so that a group that
        // never gets done does not keep the others waiting for ever. Among equals the smaller id
        // wins, so that the same input gives the same choice.
        .max_by_key(|(_, job, id)| {
            let tries = state.swept.get(id).map_or(0, |swept| swept.tries);
            (job.amount.0.checked_shr(tries), Reverse(*id))
        });
    let Some((group, mut job, id)) = best else {
        away::lower(config, state, signals, groups);
        let reason = waits.or_else(|| nobody(config, state).err()).unwrap_or(Reason::NothingToGain);
        return Decision::Hold { reason };
    };
    let Ok(reason) = permitted.of_group(config, group).clone() else {
        return Decision::Hold { reason: Reason::NothingToGain };
    };
    let wanted = wanted(config, &signals.machine, group.loses_only_cold()).map_or(Bytes::ZERO, |wanted| wanted.bytes);
    let cut_by_goal = wanted < job.amount;
    job.amount = job.amount.min(wanted);
    let is_paced = permitted.any_age.is_err();
    if is_paced {
        job = paced(job);
    }
    state.quiet.begin(config, group, &job, is_paced);
    let swap_short = reclaimable(state, group).is_ok_and(|memory| swap_room(config, state, signals, &memory).is_err());
    state.sweeping = Some(id);
    state.to_disk = cost::is_to_disk(&signals.machine, &job);
    state.swap = swap_devices(signals);
    let swept = state.swept.entry(id).or_default();
    swept.forgive(signals.now);
    swept.ended = None;
    // From now on refaults of this group are counted.
    swept.minute = group.refaults.map(|refaults| (signals.now, refaults));
    swept.peak = swept.peak.max(group.current.unwrap_or_default());
    swept.aim = group.current.unwrap_or_default() - job.amount;
    swept.swap_short = swap_short;
    swept.cut_by_goal = cut_by_goal;
    Decision::Sweep { id, job, reason }
}

/// Why the group being swept may not be swept any more; `None`: it may.
fn no_longer(config: &Config, state: &State, id: GroupId, groups: &[Group]) -> Option<Reason> {
    match groups.iter().find(|group| group.id == id) {
        Some(group) => reclaimable(state, group).and_then(|_| permits(config, state, group)).err(),
        None => Some(Reason::Unknown { signal: "the group that is being swept".to_owned() }),
    }
}

/// Why the running sweep costs too much now; `None`: it does not. Its limits are those of the swap
/// that there was when it began.
fn too_dear(config: &Config, state: &State, signals: &Signals) -> Option<Reason> {
    let changed = (state.swap != swap_devices(signals)).then_some(Reason::SwapChanged);
    changed.or_else(|| cost::must_end(config, &signals.machine).filter(|_| state.to_disk))
}

/// All swap, and whether some of it is on a disk; `None`: unknown.
fn swap_devices(signals: &Signals) -> Option<(Bytes, bool)> {
    signals.machine.swap.map(|swap| (swap.total, swap.on_disk))
}
