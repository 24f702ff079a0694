//! For how long the daemon held, and why. The ledger gets a line every ten minutes, so that charts
//! of the past can tell why nothing was done.

use std::mem::discriminant;
use std::time::Duration;

use omr_history::ledger::{Entry, HeldFor, HoldsLine};
use omr_policy::{Decision, Reason};
use omr_units::{Monotonic, millis};

/// The time of a line.
const LINE: Duration = Duration::from_secs(600);
/// A longer time between two decisions is unknown: the daemon did not run.
const LONGEST: Duration = Duration::from_secs(60);

/// Sums since the last line.
#[derive(Debug, Default)]
pub struct Holds {
    /// The moment of the last decision, and its reason if it was to hold.
    last: Option<(Monotonic, Option<Reason>)>,
    over: Duration,
    /// By the kind of the reason; the reason is the last one of its kind.
    reasons: Vec<(Reason, Duration)>,
}

impl Holds {
    /// At each tick: the decision that holds from now on. Returns a line when it is time for one.
    pub fn note(&mut self, now: Monotonic, time: u64, decision: Option<&Decision>) -> Option<Entry> {
        if let Some((since, reason)) = self.last.take() {
            let held = now.since(since);
            if held <= LONGEST {
                self.over += held;
                reason.into_iter().for_each(|reason| self.add(reason, held));
            }
        }
        let reason = decision.map(|decision| match decision {
            Decision::Hold { reason } => Some(reason.clone()),
            Decision::Sweep { .. } | Decision::Continue { .. } | Decision::Stop { .. } => None,
        });
        self.last = reason.map(|reason| (now, reason));
        (self.over >= LINE).then(|| self.line(time)).flatten()
    }

    fn add(&mut self, reason: Reason, held: Duration) {
        match self.reasons.iter_mut().find(|(known, _)| discriminant(known) == discriminant(&reason)) {
            Some((known, sum)) => (*known, *sum) = (reason, *sum + held),
            None => self.reasons.push((reason, held)),
        }
    }

    /// Returns the line since the last one; `None`: no time has passed.
    pub fn line(&mut self, time: u64) -> Option<Entry> {
        let Holds { last, over, mut reasons } = std::mem::take(self);
        self.last = last;
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
    use super::*;

    fn hold(reason: Reason) -> Decision {
        Decision::Hold { reason }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    #[test]
    fn a_line_tells_for_how_long_the_daemon_held_for_each_kind_of_reason() {
        let mut holds = Holds::default();
        let left = |seconds| hold(Reason::AfterBoot { left: Duration::from_secs(seconds) });
        let mut lines = Vec::new();
        for second in 0..=600 {
            let decision = match second {
                0..400 => left(1000 - second),
                400..500 => hold(Reason::NothingToGain),
                _ => Decision::Stop { reason: Reason::NothingToGain },
            };
            lines.extend(holds.note(at(second), 7, Some(&decision)));
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
        let mut holds = Holds::default();
        assert_eq!(holds.line(7), None);
        assert_eq!(holds.note(at(0), 7, Some(&hold(Reason::NothingToGain))), None);
        // The daemon was stopped for a day.
        assert_eq!(holds.note(at(86_400), 7, Some(&hold(Reason::NothingToGain))), None);
        assert_eq!(holds.line(7), None);
        assert_eq!(holds.note(at(86_401), 7, None), None);
        assert_eq!(holds.note(at(86_410), 7, Some(&hold(Reason::NothingToGain))), None);
        let Some(Entry::Holds(line)) = holds.line(8) else { panic!("a line") };
        assert_eq!((line.over_ms, line.reasons.len()), (1000, 1), "without the time without a decision");
    }
}
