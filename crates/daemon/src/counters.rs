//! Counters since the daemon started, for metrics: what the lines of the ledger add up to, and for
//! how long each kind of decision was in force.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use omr_control::counters::{Act, Counters, DecisionCount, Reclaimed};
use omr_history::ledger::Entry;
use omr_policy::{Decision, Reason};
use omr_units::Bytes;

use crate::mind::InForce;

/// The counters.
#[derive(Debug, Default)]
pub struct Counting {
    counters: Counters,
    /// The kinds of decisions so far, in the order of `counters.decisions`.
    kinds: Vec<Kind>,
}

type Kind = (Act, Discriminant<Reason>);

impl Counting {
    /// The counters with the time of the decision in force.
    pub fn with(&self, in_force: Option<InForce<'_>>) -> Counters {
        let mut counters = self.counters.clone();
        add_time(&mut counters, self.time(in_force));
        counters
    }

    /// A decision is in force from now on; `before`: the one that was until now. Each sweep of a
    /// group counts, and each other decision of another kind than the one before.
    pub fn decided(&mut self, before: Option<InForce<'_>>, decision: &Decision) {
        let time = self.time(before);
        add_time(&mut self.counters, time);
        let kind = kind(decision);
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
            let reason = name(decision.reason());
            self.counters.decisions.push(DecisionCount { act: kind.0, reason, count: 0, time: Duration::ZERO });
        }
        let is_new = before.map(|before| self::kind(before.decision)) != Some(kind);
        if is_new || matches!(decision, Decision::Sweep { .. }) {
            let place = self.place(kind);
            place.and_then(|place| self.counters.decisions.get_mut(place)).into_iter().for_each(|of| of.count += 1);
        }
    }

    /// The place of a kind among the decisions.
    fn place(&self, kind: Kind) -> Option<usize> {
        self.kinds.iter().position(|known| *known == kind)
    }

    /// The place of the decision in force, and its time, if it is known.
    fn time(&self, in_force: Option<InForce<'_>>) -> Option<(usize, Duration)> {
        let InForce { decision, held } = in_force?;
        Some((self.place(kind(decision))?, held?))
    }

    /// Counts what a line of the ledger tells.
    pub fn add(&mut self, line: &Entry) {
        let counters = &mut self.counters;
        match line {
            Entry::Sweep(swept) if !swept.observed => {
                counters.swap_written += swept.swapped_out;
                if let Some(method) = &swept.method {
                    let of = reclaimed(&mut counters.reclaimed, method);
                    of.anon += swept.freed_anon;
                    of.file += swept.freed_file;
                    of.demoted += swept.demoted;
                }
                swept.stop_ms.into_iter().for_each(|ms| counters.stops.add(Duration::from_millis(ms)));
            }
            Entry::Prepare(prepared) if !prepared.observed => {
                counters.swap_written += prepared.swapped_out;
                let of = reclaimed(&mut counters.reclaimed, "prepare");
                of.anon += prepared.freed_anon;
                of.file += prepared.freed_file;
            }
            Entry::Hint(hint) if !hint.observed => {
                counters.swap_written += hint.swapped_out;
                reclaimed(&mut counters.reclaimed, "process_madvise").anon += hint.freed;
            }
            Entry::Refaults { bytes, .. } => counters.came_back += *bytes,
            Entry::Regret(line) => counters.regret += Duration::from_millis(line.waited_ms),
            Entry::Sweep(_)
            | Entry::Prepare(_)
            | Entry::Hint(_)
            | Entry::GiveBack(_)
            | Entry::LeftAlone { .. }
            | Entry::HeldOut(_)
            | Entry::Holds(_) => {}
        }
    }
}

fn add_time(counters: &mut Counters, time: Option<(usize, Duration)>) {
    let of = time.and_then(|(place, held)| Some((counters.decisions.get_mut(place)?, held)));
    of.into_iter().for_each(|(of, held)| of.time += held);
}

fn kind(decision: &Decision) -> Kind {
    (act(decision), discriminant(decision.reason()))
}

fn act(decision: &Decision) -> Act {
    match decision {
        Decision::Hold { .. } => Act::Hold,
        Decision::Sweep { .. } | Decision::Continue { .. } => Act::Sweep,
        Decision::Stop { .. } => Act::Stop,
    }
}

/// The name of the reason's kind, as in `omr status --json`.
fn name(reason: &Reason) -> String {
    let value = serde_json::to_value(reason).unwrap_or_default();
    value.get("kind").and_then(|kind| kind.as_str()).unwrap_or("unknown").to_owned()
}

fn reclaimed<'c>(all: &'c mut Vec<Reclaimed>, method: &str) -> &'c mut Reclaimed {
    let place = all.iter().position(|of| of.method == method).unwrap_or(all.len());
    if place == all.len() {
        all.push(Reclaimed { method: method.to_owned(), anon: Bytes::ZERO, file: Bytes::ZERO, demoted: Bytes::ZERO });
    }
    #[expect(clippy::indexing_slicing, reason = "it was pushed if it was not there")]
    &mut all[place]
}

#[cfg(test)]
mod tests {
    use omr_policy::State;
    use omr_units::Monotonic;

    use super::*;
    use crate::mind::Mind;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn hold(reason: Reason) -> Decision {
        Decision::Hold { reason }
    }

    #[test]
    fn decisions_count_when_their_kind_changes_and_time_counts_always() {
        let (mut counting, mut mind) = (Counting::default(), Mind::new(State::default()));
        assert_eq!(counting.with(mind.in_force(at(1))), Counters::default());
        let mut decided = |second, decision: Decision| {
            counting.decided(mind.in_force(at(second)), &decision);
            mind.keep(at(second), decision);
            counting.with(mind.in_force(at(if second == 14 { 17 } else { second }))).decisions
        };
        for second in 1..=10 {
            // The same reason with other numbers.
            decided(second, hold(Reason::AfterBoot { left: Duration::from_secs(60 - second) }));
        }
        decided(11, hold(Reason::NothingToGain));
        decided(12, Decision::Stop { reason: Reason::NothingToGain });
        let at_17 = decided(14, hold(Reason::NothingToGain));
        let of = |act, reason: &str, count, seconds| DecisionCount {
            act,
            reason: reason.into(),
            count,
            time: Duration::from_secs(seconds),
        };
        let expected = [
            of(Act::Hold, "after-boot", 1, 10),
            of(Act::Hold, "nothing-to-gain", 2, 1 + 3),
            of(Act::Stop, "nothing-to-gain", 1, 2),
        ];
        assert_eq!(at_17, expected);
        // The daemon was stopped for an hour.
        let after = decided(3614, hold(Reason::NothingToGain));
        assert_eq!(after.get(1), Some(&of(Act::Hold, "nothing-to-gain", 2, 1)));
    }

    #[test]
    fn each_reason_has_the_name_that_the_status_shows() {
        assert_eq!(name(&Reason::NotStated), "not-asked");
        assert_eq!(
            name(&Reason::LittleFree {
                free: omr_units::Permyriad(1),
                needed: omr_units::Permyriad(2),
                window: Duration::ZERO
            }),
            "little-free"
        );
    }
}
