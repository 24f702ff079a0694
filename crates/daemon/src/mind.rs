//! The policy's state, and what it decided last.

use omr_policy::{Decision, Signals, State};
use omr_units::Monotonic;

use crate::settings::Settings;

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
