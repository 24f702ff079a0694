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
use crate::config::Config;
use crate::cost;
use crate::gates::{quiet, wanted};
use crate::judge::{judge, reclaimable, swap_room};
use crate::pace::Job;
use crate::presence::{nobody, permits};
use crate::reason::Reason;
use crate::signals::{Group, Signals};
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

/// The decision of this tick.
pub fn decide(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    let idle = idle(config, state, signals);
    let harm = watch_groups(config, state, signals.now, groups);
    match (idle, state.sweeping) {
        (Err(reason), Some(_)) => Decision::Stop { reason },
        (Err(reason), None) => Decision::Hold { reason },
        (Ok(idle), Some(id)) => {
            match harm.or_else(|| no_longer(config, state, id, groups)).or_else(|| too_dear(config, state, signals)) {
                Some(reason) => Decision::Stop { reason },
                None => Decision::Continue { reason: Reason::Idle { idle } },
            }
        }
        (Ok(_), None) if state.hinting => Decision::Hold { reason: Reason::Hinting },
        (Ok(idle), None) => match state.idle.surge(&config.stop) {
            Some(reason) => Decision::Hold { reason },
            None => choose(config, state, signals, groups, idle),
        },
    }
}

/// The next group, right after a sweep has ended. This uses the idle state of the last tick,
/// because a few milliseconds say nothing about an idle machine.
pub fn next(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    match quiet(config, state, signals.now).and_then(|()| state.idle.idle_time(signals.now)) {
        Err(reason) => Decision::Hold { reason },
        Ok(idle) if state.sweeping.is_some() => Decision::Continue { reason: Reason::Idle { idle } },
        Ok(idle) => choose(config, state, signals, groups, idle),
    }
}

/// The time for which the machine has been idle, or the reason why no sweep may run now.
fn idle(config: &Config, state: &mut State, signals: &Signals) -> Result<Duration, Reason> {
    let now = signals.now;
    if signals.slept {
        state.woke_up(config, now);
    }
    // These rules see every tick, whatever else keeps sweeps away.
    state.presence.tick(&config.presence, now, signals.slept, signals.machine.presence.as_ref());
    away::tick(config, state, &signals.machine);
    let idle = state.idle.tick(&config.idle, now, &signals.machine);
    quiet(config, state, now)?;
    idle
}

/// Takes in the size and the refaults of the groups that were swept. Groups into which too much
/// comes back begin to back off. Returns why the running sweep must end, if its group is among
/// them.
fn watch_groups(config: &Config, state: &mut State, now: Monotonic, groups: &[Group]) -> Option<Reason> {
    let mut harm = None;
    for group in groups {
        let Some(swept) = state.swept.get_mut(&group.id) else { continue };
        if let Some(current) = group.current {
            swept.size = swept.size.min(current);
        }
        let Some(refaults) = group.refaults else { continue };
        if let Some(bytes) = swept.watch(&config.guard, now, refaults)
            && state.sweeping == Some(group.id)
        {
            harm = Some(Reason::Refaults { bytes, allowed: config.guard.refaults_per_minute });
        }
    }
    harm
}

/// Begins a sweep of the group with most to gain.
fn choose(config: &Config, state: &mut State, signals: &Signals, groups: &[Group], idle: Duration) -> Decision {
    // A group of which only cold memory is reclaimed can meet every need.
    if let Err(reason) = wanted(config, &signals.machine, true) {
        return Decision::Hold { reason };
    }
    let best = groups
        .iter()
        .filter_map(|group| judge(config, state, signals, group).ok().map(|(job, id)| (group, job, id)))
        // Each sweep that was cut short halves the weight of what is left, so that a group that
        // never gets done does not keep the others waiting for ever. Among equals the smaller id
        // wins, so that the same input gives the same choice.
        .max_by_key(|(_, job, id)| {
            let tries = state.swept.get(id).map_or(0, |swept| swept.tries);
            (job.amount.0.checked_shr(tries), Reverse(*id))
        });
    let Some((group, mut job, id)) = best else {
        away::lower(config, state, signals, groups);
        return Decision::Hold { reason: nobody(config, state).err().unwrap_or(Reason::NothingToGain) };
    };
    let wanted = wanted(config, &signals.machine, group.cold_only.is_some()).map_or(Bytes::ZERO, |wanted| wanted.bytes);
    let cut_by_goal = wanted < job.amount;
    job.amount = job.amount.min(wanted);
    let swap_short = reclaimable(state, group).is_ok_and(|memory| swap_room(config, state, signals, &memory).is_err());
    state.sweeping = Some(id);
    state.to_disk = cost::is_to_disk(&signals.machine, &job);
    let swept = state.swept.entry(id).or_default();
    swept.forgive(signals.now);
    swept.ended = None;
    // From now on refaults of this group are counted.
    swept.minute = group.refaults.map(|refaults| (signals.now, refaults));
    swept.peak = swept.peak.max(group.current.unwrap_or_default());
    swept.aim = group.current.unwrap_or_default() - job.amount;
    swept.swap_short = swap_short;
    swept.cut_by_goal = cut_by_goal;
    Decision::Sweep { id, job, reason: Reason::Idle { idle } }
}

/// Why the group being swept may not be swept any more; `None`: it may.
fn no_longer(config: &Config, state: &State, id: GroupId, groups: &[Group]) -> Option<Reason> {
    match groups.iter().find(|group| group.id == id) {
        Some(group) => reclaimable(state, group).and_then(|_| permits(config, state, group)).err(),
        None => Some(Reason::Unknown { signal: "the group that is being swept".to_owned() }),
    }
}

/// Why the running sweep costs too much now; `None`: it does not.
fn too_dear(config: &Config, state: &State, signals: &Signals) -> Option<Reason> {
    cost::must_end(config, &signals.machine).filter(|_| state.to_disk)
}
