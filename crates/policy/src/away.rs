//! Younger memory while everybody is away, towards a need that cold memory does not meet.
//!
//! One age for all groups, the **away age**, goes down the grid of thresholds by one step at a time
//! while nothing that old is left in any group. So the oldest memory of all groups goes first. A
//! group loses memory older than the away age or than its threshold, whichever is shorter. Ages
//! that a rule sets do not change, and a group whose threshold was not observed yet keeps it.
//!
//! A machine that hibernates may do so minutes after everybody has left. Where a small image is
//! needed, the away age therefore begins at half of the time after which everybody counts as away,
//! and groups are aged for it before.
//!
//! There is no away age unless what leaves can be given back, and it is gone as soon as somebody
//! may be there.

use core::time::Duration;

use omr_units::Monotonic;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Goal};
use crate::judge::judge;
use crate::need::{NeedPurpose, need};
use crate::presence::{Presence, Sign};
use crate::reason::Reason;
use crate::signals::{ColdOnly, Group, Machine, Signals};
use crate::state::State;
use crate::threshold::Step;

/// An away age stays for this time, or for its own length where that is shorter. Groups that are
/// aged for it show within half of it what is that old. Longer ages cannot be waited for: from 8 h
/// down to 2 min that would take 16 h.
const LEAST_TIME: Duration = Duration::from_secs(300);

/// The away age, which is kept from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AwayState {
    /// The age, and when it began; `None`: thresholds are in force.
    age: Option<(Step, Monotonic)>,
    /// The age that groups are aged for, so that it is known when everybody is away.
    #[serde(default)]
    ahead: Option<Step>,
}

impl State {
    /// The age from which on memory of each group may leave, as everybody is away; `None`: the
    /// thresholds of the groups are in force.
    pub fn away_age(&self) -> Option<Duration> {
        self.away.age.map(|(step, _)| step.age())
    }

    /// The age that groups are aged for because it may soon be in force; `None`: there is none.
    pub fn age_ahead(&self) -> Option<Duration> {
        self.away.ahead.map(Step::age)
    }
}

impl ColdOnly {
    /// Returns true if the age is shorter than the threshold, because everybody is away.
    pub fn is_younger(&self) -> bool {
        self.threshold.is_some_and(|threshold| self.min_age < threshold)
    }
}

/// The age from which on memory of a group with this threshold may leave. `away`: the away age.
pub fn age(away: Option<Duration>, threshold: Duration) -> Duration {
    away.map_or(threshold, |away| away.min(threshold))
}

/// Returns true if memory younger than thresholds may leave.
fn may_begin(config: &Config, state: &State, machine: &Machine) -> bool {
    machine.gives_back && state.is_away(config)
}

/// At each tick: the away age is gone when somebody may be there.
pub(crate) fn tick(config: &Config, state: &mut State, machine: &Machine) {
    if !may_begin(config, state, machine) {
        state.away = AwayState::default();
    }
    state.away.ahead = ahead(config, state, machine);
}

/// The first away age, once nobody has been seen for as long.
fn ahead(config: &Config, state: &State, machine: &Machine) -> Option<Step> {
    let unseen = match state.presence() {
        Presence::Away { away } => *away,
        Presence::Present { why: Sign::Used { ago, .. } | Sign::Lately { ago } } => *ago,
        Presence::Present { why: Sign::Active { .. } } | Presence::Inhibited | Presence::Nobody | Presence::Unknown => {
            return None;
        }
    };
    first(config, machine).filter(|first| config.goal == Goal::Auto && machine.gives_back && unseen >= first.age())
}

/// The away age to begin with where a hibernation image should be small.
fn first(config: &Config, machine: &Machine) -> Option<Step> {
    let need = need(config, machine).ok()?;
    let is_for_image = matches!(need.purpose, NeedPurpose::Hibernate { .. });
    is_for_image.then(|| Step::not_above(config.presence.away_after / 2))
}

/// `Err`: memory of the age that the group has may not leave.
pub(crate) fn permits(config: &Config, state: &State, cold_only: &ColdOnly) -> Result<(), Reason> {
    let Some(threshold) = cold_only.threshold.filter(|_| cold_only.is_younger()) else { return Ok(()) };
    if !state.is_away(config) {
        return Err(Reason::SomebodyThere { presence: state.presence().clone() });
    }
    if cold_only.min_age < age(state.away_age(), threshold) {
        return Err(Reason::Learning { threshold });
    }
    Ok(())
}

/// There is a need, and no group is worth a sweep. Lowers the away age if that is so because
/// nothing is old enough.
pub(crate) fn lower(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) {
    if !may_begin(config, state, &signals.machine) {
        return;
    }
    let learned = || groups.iter().filter_map(|group| Some((group, group.cold_only.as_ref()?.threshold?)));
    let verdicts = || learned().map(|(group, _)| judge(config, state, signals, group).err());
    if !verdicts().all(|why| why.as_ref().is_some_and(is_about_the_group)) || !verdicts().flatten().any(is_too_young) {
        return;
    }
    let Some(longest) = learned().map(|(_, threshold)| Step::not_below(threshold)).max() else { return };
    let from = match state.away.age {
        Some((step, began)) if signals.now.since(began) < LEAST_TIME.min(step.age()) => return,
        Some((step, _)) => step.min(longest),
        None => longest,
    };
    if let Some(next) = from.shorter() {
        let next = first(config, &signals.machine).map_or(next, |first| next.min(first));
        state.away.age = Some((next, signals.now));
    }
}

/// Returns true if nothing of the group is old enough, or is known to be.
fn is_too_young(reason: Reason) -> bool {
    matches!(reason, Reason::LittleCold { .. } | Reason::Learning { .. })
}

/// Returns true for reasons for which other groups need not wait. Others, such as swap at its
/// floor, hold for younger memory as well.
fn is_about_the_group(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::LittleCold { .. }
            | Reason::Learning { .. }
            | Reason::NoAges { .. }
            | Reason::GivenBack { .. }
            | Reason::BackingOff { .. }
            | Reason::Class { .. }
            | Reason::Keep { .. }
            | Reason::KernelProtection
            | Reason::TooSmall { .. }
            | Reason::Unknown { .. }
    )
}
