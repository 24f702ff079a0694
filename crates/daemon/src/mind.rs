//! The policy's state, and what it decided last.

use std::time::Duration;

use omr_policy::{Decision, Signals, State};
use omr_units::Monotonic;

use crate::settings::Settings;

/// A longer time between two decisions is unknown: the daemon did not run.
const LONGEST: Duration = Duration::from_secs(60);

/// The decision in force.
#[derive(Clone, Copy, Debug)]
pub struct InForce<'a> {
    /// The decision.
    pub decision: &'a Decision,
    /// The time for which it has been in force; `None`: unknown.
    pub held: Option<Duration>,
}

/// The policy's state and its last decision.
pub struct Mind {
    /// The policy's own state.
    pub state: State,
    /// The last decision; `None` until there is one.
    pub decision: Option<Decision>,
    /// When it was made.
    pub decided: Monotonic,
}

impl Mind {
    /// No decision yet.
    pub fn new(state: State) -> Self {
        Mind { state, decision: None, decided: Monotonic(0) }
    }

    /// Decides what to do now.
    pub fn decide(&mut self, settings: &Settings, signals: &Signals, groups: &[omr_policy::Group]) -> Decision {
        omr_policy::decide(&settings.config, &mut self.state, signals, groups)
    }

    /// Decides which group comes next in a sweep, right after one is finished.
    pub fn decide_next(&mut self, settings: &Settings, signals: &Signals, groups: &[omr_policy::Group]) -> Decision {
        omr_policy::next(&settings.config, &mut self.state, signals, groups)
    }

    /// Returns the decision in force at this time; `None`: there is none yet.
    pub fn in_force(&self, now: Monotonic) -> Option<InForce<'_>> {
        let held = now.since(self.decided);
        let decision = self.decision.as_ref()?;
        Some(InForce { decision, held: (held <= LONGEST).then_some(held) })
    }

    /// Keeps a decision of this time. Returns true if its reason is of another kind than that of
    /// the last one.
    pub fn keep(&mut self, now: Monotonic, decision: Decision) -> bool {
        let kind = |decision: &Decision| std::mem::discriminant(decision.reason());
        let is_new = self.decision.as_ref().map(kind) != Some(kind(&decision));
        self.decided = now;
        self.decision = Some(decision);
        is_new
    }
}
