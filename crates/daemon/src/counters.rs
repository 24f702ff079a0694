//! Counters since the daemon started, for metrics: what the lines of the ledger add up to, and for
//! how long each kind of decision was in force.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use omr_control::counters::{Act, Counters, DecisionCount, Reclaimed};
use omr_history::ledger::Entry;
use omr_policy::{Decision, Reason};
use omr_units::{Bytes, Monotonic};

/// A longer time between two decisions is unknown: the daemon did not run.
const LONGEST: Duration = Duration::from_secs(60);

/// The counters, and the decision in force.
#[derive(Debug, Default)]
pub struct Counting {
    counters: Counters,
    /// The kinds of decisions so far, in the order of `counters.decisions`.
    kinds: Vec<(Act, Discriminant<Reason>)>,
    /// Since when the kind at this place is in force.
    now: Option<(Monotonic, usize)>,
}

impl Counting {
    /// The counters at this moment.
    pub fn at(&self, now: Monotonic) -> Counters {
        let mut counters = self.counters.clone();
        add_time(&mut counters, self.now, now);
        counters
    }

    /// A decision is in force from now on. Each sweep of a group counts, and each other decision
    /// of another kind than the one before.
    pub fn decided(&mut self, now: Monotonic, decision: &Decision) {
        add_time(&mut self.counters, self.now, now);
        let (act, reason) = (act(decision), decision.reason());
        let kind = (act, discriminant(reason));
        let place = match self.kinds.iter().position(|known| *known == kind) {
            Some(place) => place,
            None => {
                self.kinds.push(kind);
                self.counters.decisions.push(DecisionCount {
                    act,
                    reason: name(reason),
                    count: 0,
                    time: Duration::ZERO,
                });
                self.kinds.len() - 1
            }
        };
        let is_new = self.now.is_none_or(|(_, before)| before != place);
        if let Some(of) = self.counters.decisions.get_mut(place)
            && (is_new || matches!(decision, Decision::Sweep { .. }))
        {
            of.count += 1;
        }
        self.now = Some((now, place));
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

fn add_time(counters: &mut Counters, since: Option<(Monotonic, usize)>, now: Monotonic) {
    let Some((since, place)) = since else { return };
    let held = now.since(since);
    if let Some(of) = counters.decisions.get_mut(place).filter(|_| held <= LONGEST) {
        of.time += held;
    }
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
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn hold(reason: Reason) -> Decision {
        Decision::Hold { reason }
    }

    #[test]
    fn decisions_count_when_their_kind_changes_and_time_counts_always() {
        let mut counting = Counting::default();
        assert_eq!(counting.at(at(1)), Counters::default());
        for second in 1..=10 {
            // The same reason with other numbers.
            counting.decided(at(second), &hold(Reason::AfterBoot { left: Duration::from_secs(60 - second) }));
        }
        counting.decided(at(11), &hold(Reason::NothingToGain));
        counting.decided(at(12), &Decision::Stop { reason: Reason::NothingToGain });
        counting.decided(at(14), &hold(Reason::NothingToGain));
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
        assert_eq!(counting.at(at(17)).decisions, expected);
        // The daemon was stopped for an hour.
        counting.decided(at(3614), &hold(Reason::NothingToGain));
        assert_eq!(counting.at(at(3614)).decisions.get(1), Some(&of(Act::Hold, "nothing-to-gain", 2, 1)));
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
