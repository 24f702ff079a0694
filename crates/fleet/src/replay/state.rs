//! What a policy remembers of a group, and what it would have done with it.

use std::time::Duration;

use omr_policy::Backoff;
use omr_policy::threshold::{Interval, OnGrid, Slo, Step, Threshold};
use omr_units::{Bytes, Monotonic};

use super::seen::{Seen, Used, Window};
use super::{Absence, Rules};
use crate::outcome::Sums;

pub(super) struct State {
    threshold: Threshold,
    /// It was observed for the warm-up: memory may be taken.
    is_observed: bool,
    /// How much is used again is known as a least and a most. The refault guard lets the group rest
    /// after much of it, so each of them is followed by itself, and what is likely as well: a case for
    /// each [`Used`].
    cases: [Case; 3],
}

/// The group, if so much of its memory is used again.
#[derive(Default)]
struct Case {
    out: Out,
    /// When memory last left.
    swept: Option<Monotonic>,
    /// The end of the last back-off: until then nothing is taken. It is kept outside of `backoff`,
    /// because each window asks for it, and following the pointer costs time.
    rests_until: Monotonic,
    /// Few groups ever have one.
    backoff: Option<Box<Backoff>>,
}

/// The memory that would be out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Out {
    pub memory: Bytes,
    /// The threshold when memory was last taken.
    pub step: Option<Step>,
    /// That time.
    pub taken: Monotonic,
}

impl State {
    pub fn new(slo: &Slo) -> Self {
        State { threshold: Threshold::new(slo), is_observed: false, cases: Default::default() }
    }

    /// As in the daemon, the group is observed again first. What is out stays there.
    pub fn absent(&mut self, absence: &Absence) {
        self.threshold.absent(absence.length);
        self.is_observed = false;
        if absence.is_anew {
            self.cases = Default::default();
        }
    }

    pub fn window(&mut self, seen: &Seen, slo: &Slo, rules: &Rules, part: usize, sums: &mut Sums) {
        let step = self.threshold.step();
        if self.is_observed || self.cases.iter().any(|case| case.out.memory > Bytes::ZERO) {
            let at = seen.at(step);
            let [calm, likely, busy] = &mut self.cases;
            let is_taken = |case: &Case| self.is_observed && seen.middle >= case.rests_until;
            if is_taken(calm) && is_taken(likely) && is_taken(busy) {
                let [least, between, most] = &at.windows;
                let written = calm.take(least, step, seen, rules).max(busy.take(most, step, seen, rules));
                likely.take(between, step, seen, rules);
                at.counted.add_to(sums, part, seen.allowed(slo), written);
            } else {
                let (mut windows, mut written) = (at.windows, [Bytes::ZERO; 3]);
                let cases = self.cases.iter_mut().zip(Used::ALL);
                for ((case, used), (window, written)) in cases.zip(windows.iter_mut().zip(&mut written)) {
                    if is_taken(case) {
                        *written = case.take(window, step, seen, rules);
                    } else {
                        *window = case.leave(used, seen, rules);
                    }
                }
                let [calm, _, busy] = written;
                seen.counted(&windows).add_to(sums, part, seen.allowed(slo), calm.max(busy));
            }
            if let Some(time) = sums.at_step_ms.get_mut(usize::from(u8::from(step))) {
                *time += seen.length_ms;
            }
        } else {
            sums.observing += 1;
        }
        let moved = self.threshold.observe_on_grid(slo, &seen.interval, &seen.promoted);
        self.is_observed = moved.reason.is_observed(self.is_observed);
    }

    /// A window of which nothing is known. As in the daemon, nothing is taken until one is.
    pub fn lose(&mut self, length: Duration, slo: &Slo) {
        let unknown = Interval { length, ..Interval::default() };
        self.threshold.observe_on_grid(slo, &unknown, &OnGrid::of(&unknown));
        self.is_observed = false;
    }
}

impl Case {
    /// The window if memory is taken with this threshold. Returns the memory that left.
    fn take(&mut self, window: &Window, step: Step, seen: &Seen, rules: &Rules) -> Bytes {
        // What is out now and was not before, and what has come back and left again.
        let written = (window.held - self.out.memory) + window.back;
        if written >= rules.config.sweep.smallest {
            self.backoff.take_if(|backoff| backoff.is_forgiven(self.swept, seen.began));
            self.swept = Some(seen.end);
        }
        self.out = Out { memory: window.held, step: Some(step), taken: seen.end };
        self.guard(window, seen, rules);
        written
    }

    /// The window if nothing is taken.
    fn leave(&mut self, used: Used, seen: &Seen, rules: &Rules) -> Window {
        let window = seen.left(&self.out, used);
        self.out.memory = window.held;
        self.guard(&window, seen, rules);
        window
    }

    /// The refault guard.
    fn guard(&mut self, window: &Window, seen: &Seen, rules: &Rules) {
        let guard = &rules.config.guard;
        // Few windows come near the size, and the share takes a division of 128 bits.
        let allowed = || guard.allowed(seen.memory - window.held, rules.swaps_to_disk);
        if seen.is_harm(window.back, guard.refaults_per_minute) && seen.is_harm(window.back, allowed()) {
            let last = self.backoff.as_deref().copied();
            // As if it came back evenly.
            let backoff = Backoff::after(last, self.swept, guard, seen.middle, Some(window.back));
            self.rests_until = backoff.until;
            self.backoff = Some(Box::new(backoff));
        }
    }
}
