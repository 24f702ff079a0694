//! Giving back: memory that left because everybody was away is brought back when somebody comes.
//!
//! What would have left with somebody there, too, stays where it is. A group that memory was given
//! back to rests: the kernel puts what comes back into the oldest generations, and the next sweep
//! of cold memory would take it again.

use omr_units::{GroupId, Monotonic};

use crate::config::{Config, Goal};
use crate::gates::unhindered;
use crate::presence::Presence;
use crate::reason::Reason;
use crate::signals::ColdOnly;
use crate::state::State;

impl State {
    /// Returns true if everybody is away, so that more memory may leave than with somebody there.
    /// That is not so on a machine on which nobody has been since boot.
    pub fn is_away(&self, config: &Config) -> bool {
        config.goal == Goal::Auto && matches!(self.presence(), Presence::Away { .. })
    }

    /// `Err`: memory that left while everybody was away is not given back now.
    pub fn may_give_back(&self, config: &Config, now: Monotonic) -> Result<(), Reason> {
        match unhindered(config, self, now) {
            Ok(()) | Err(Reason::AfterBoot { .. } | Reason::AfterResume { .. }) => Ok(()),
            Err(reason) => Err(reason),
        }
    }

    /// Memory of the group was given back, or could have been.
    pub fn gave_back(&mut self, id: GroupId, now: Monotonic) {
        self.swept.entry(id).or_default().given_back = Some(now);
    }
}

/// `Err`: memory of the group that was given back may still look cold, although it is not known to
/// be. After a time as long as the age, memory that was not used since is cold indeed.
pub(crate) fn rested(state: &State, id: GroupId, now: Monotonic, cold_only: &ColdOnly) -> Result<(), Reason> {
    let given_back = state.swept.get(&id).and_then(|swept| swept.given_back);
    let left = given_back.map_or_else(Default::default, |at| cold_only.min_age.saturating_sub(now.since(at)));
    if left.is_zero() { Ok(()) } else { Err(Reason::GivenBack { left, min_age: cold_only.min_age }) }
}
