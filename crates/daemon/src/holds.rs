//! For how long the daemon held, and why. The ledger gets a line every ten minutes, so that charts
//! of the past can tell why nothing was done.

use std::mem::discriminant;
use std::time::Duration;

use omr_history::ledger::{Entry, HeldFor, HoldsLine};
use omr_policy::{Decision, Reason};
use omr_units::millis;

use crate::mind::InForce;

/// The time of a line.
const LINE: Duration = Duration::from_secs(600);

/// Sums since the last line.
#[derive(Debug, Default)]
pub struct Holds {
    over: Duration,
    /// By the kind of the reason; the reason is the last one of its kind.
    reasons: Vec<(Reason, Duration)>,
}

impl Holds {
    /// Adds the time for which a decision was in force. Returns a line when it is time for one.
    pub fn add(&mut self, time: u64, before: InForce<'_>) -> Option<Entry> {
        let held = before.held?;
        self.over += held;
        if let Decision::Hold { reason } = before.decision {
            self.add_reason(reason.clone(), held);
        }
        (self.over >= LINE).then(|| self.line(time)).flatten()
    }

    fn add_reason(&mut self, reason: Reason, held: Duration) {
        match self.reasons.iter_mut().find(|(known, _)| discriminant(known) == discriminant(&reason)) {
            Some((known, sum)) => (*known, *sum) = (reason, *sum + held),
            None => self.reasons.push((reason, held)),
        }
    }

    /// Returns the line since the last one; `None`: no time has passed.
    pub fn line(&mut self, time: u64) -> Option<Entry> {
        let Holds { over, mut reasons } = std::mem::take(self);
        if over.is_zero() {
            return None;
        }
        reasons.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
        let reasons =
            reasons.into_iter().map(|(reason, held)| HeldFor { ms: millis(held), reason: reason.to_string() });
        Some(Entry::Holds(HoldsLine { time, over_ms: millis(over), reasons: reasons.collect() }))
    }
}

#[cfg(test)]
mod tests {
    use omr_policy::State;
    use omr_units::Monotonic;

    use super::*;
    use crate::mind::Mind;

    /// The daemon decides at this second.
    fn decide(holds: &mut Holds, mind: &mut Mind, second: u64, decision: Decision) -> Option<Entry> {
        let line = mind.in_force(at(second)).and_then(|before| holds.add(7, before));
        mind.keep(at(second), decision);
        line
    }

    fn hold(reason: Reason) -> Decision {
        Decision::Hold { reason }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    #[test]
    fn a_line_tells_for_how_long_the_daemon_held_for_each_kind_of_reason() {
        let (mut holds, mut mind) = (Holds::default(), Mind::new(State::default()));
        let left = |seconds| hold(Reason::AfterBoot { left: Duration::from_secs(seconds) });
        let mut lines = Vec::new();
        for second in 0..=600 {
            let decision = match second {
                0..400 => left(1000 - second),
                400..500 => hold(Reason::NothingToGain),
                _ => Decision::Stop { reason: Reason::NothingToGain },
            };
            lines.extend(decide(&mut holds, &mut mind, second, decision));
        }
        let [Entry::Holds(HoldsLine { time: 7, over_ms: 600_000, reasons })] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        let expected =
            [(400_000, Reason::AfterBoot { left: Duration::from_secs(601) }), (100_000, Reason::NothingToGain)];
        assert_eq!(*reasons, expected.map(|(ms, reason)| HeldFor { ms, reason: reason.to_string() }));
    }

    #[test]
    fn time_in_which_nothing_was_decided_is_unknown() {
        let (mut holds, mut mind) = (Holds::default(), Mind::new(State::default()));
        assert_eq!(holds.line(7), None);
        assert_eq!(decide(&mut holds, &mut mind, 0, hold(Reason::NothingToGain)), None);
        // The daemon was stopped for a day.
        assert_eq!(decide(&mut holds, &mut mind, 86_400, hold(Reason::NothingToGain)), None);
        assert_eq!(holds.line(7), None);
        assert_eq!(decide(&mut holds, &mut mind, 86_401, hold(Reason::NothingToGain)), None);
        let Some(Entry::Holds(line)) = holds.line(8) else { panic!("a line") };
        assert_eq!((line.over_ms, line.reasons.len()), (1000, 1), "without the time without a decision");
    }
}
