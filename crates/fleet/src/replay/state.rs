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
    /// after much of it, so each of them is followed by itself, and what is likely as well.
    calm: Case,
    likely: Case,
    busy: Case,
}

/// The group, if so much of its memory is used again.
#[derive(Default)]
struct Case {
    out: Out,
    /// When memory last left.
    swept: Option<Monotonic>,
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
        let (calm, likely, busy) = Default::default();
        State { threshold: Threshold::new(slo), is_observed: false, calm, likely, busy }
    }

    /// As in the daemon, the group is observed again first. What is out stays there.
    pub fn absent(&mut self, absence: &Absence) {
        self.threshold.absent(absence.length);
        self.is_observed = false;
        if absence.is_anew {
            (self.calm, self.likely, self.busy) = Default::default();
        }
    }

    pub fn window(&mut self, seen: &Seen, slo: &Slo, rules: &Rules, part: usize, sums: &mut Sums) {
        let step = self.threshold.step();
        if self.is_observed || [&self.calm, &self.likely, &self.busy].iter().any(|case| case.is_out()) {
            let taken = self.is_observed.then_some(step);
            let (calm, calm_written) = self.calm.window(Used::Least, seen, taken, rules);
            let (likely, _) = self.likely.window(Used::Likely, seen, taken, rules);
            let (busy, busy_written) = self.busy.window(Used::Most, seen, taken, rules);
            let allowed = seen.allowed(slo);
            sums.acting += 1;
            let [held_least, held_most] = sorted(busy.held_kib_min, calm.held_kib_min);
            sums.held_least_kib_min += held_least;
            sums.held_likely_kib_min += likely.held_kib_min.clamp(held_least, held_most);
            sums.held_most_kib_min += held_most;
            let [back_least, back_most] = sorted(calm.back_kib, busy.back_kib);
            sums.promoted_least_kib += back_least;
            sums.promoted_likely_kib += likely.back_kib.clamp(back_least, back_most);
            sums.promoted_most_kib += back_most;
            sums.written_most_kib += calm_written.max(busy_written).0.div_ceil(1024);
            sums.over_least += u64::from(back_least > allowed);
            sums.over_most += u64::from(back_most > allowed);
            if let Some(time) = sums.at_step_ms.get_mut(usize::from(u8::from(step))) {
                *time += seen.length_ms;
            }
            let rates = sorted(calm.rate, busy.rate);
            for (histograms, rate) in [&mut sums.rates_least, &mut sums.rates_most].into_iter().zip(rates) {
                if let Some(histogram) = histograms.get_mut(part) {
                    histogram.add_to(rate, 1);
                }
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
    fn is_out(&self) -> bool {
        self.out.memory > Bytes::ZERO
    }

    /// Returns the window, and the memory that left in it. `step`: the threshold; `None`: nothing may be
    /// taken.
    fn window(&mut self, used: Used, seen: &Seen, step: Option<Step>, rules: &Rules) -> (Window, Bytes) {
        let rests = self.backoff.as_ref().is_some_and(|backoff| seen.middle < backoff.until);
        let mut written = Bytes::ZERO;
        let window = match step.filter(|_| !rests) {
            Some(step) => {
                let window = *seen.at(step, used);
                // What is out now and was not before, and what has come back and left again.
                written = (window.held - self.out.memory) + window.back;
                if written >= rules.config.sweep.smallest {
                    self.backoff.take_if(|backoff| backoff.is_forgiven(self.swept, seen.began));
                    self.swept = Some(seen.end);
                }
                (self.out.step, self.out.taken) = (Some(step), seen.end);
                window
            }
            None => seen.left(&self.out, used),
        };
        self.out.memory = window.held;
        let guard = &rules.config.guard;
        // Few windows come near the size, and the share takes a division of 128 bits.
        let allowed = || guard.allowed(seen.memory - window.held, rules.swaps_to_disk);
        if window.is_harm(seen.length_ms, guard.refaults_per_minute) && window.is_harm(seen.length_ms, allowed()) {
            let last = self.backoff.as_deref().copied();
            // As if it came back evenly.
            let backoff = Backoff::after(last, self.swept, guard, seen.middle, Some(window.back));
            self.backoff = Some(Box::new(backoff));
        }
        (window, written)
    }
}

/// The smaller one first: what is used again less may be out for longer, and come back more.
fn sorted<T: Ord>(one: T, other: T) -> [T; 2] {
    if one <= other { [one, other] } else { [other, one] }
}
