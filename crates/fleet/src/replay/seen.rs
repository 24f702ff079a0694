//! What a window showed, and what it would have been with each threshold.

use std::time::Duration;

use omr_history::Idle;
use omr_policy::age::{AGES, Bounds, Promotions};
use omr_policy::threshold::{Interval, OnGrid, Promoted, SMALL, SMALL_PAGES, SMALL_TIME, STEPS, Slo, Step};
use omr_units::{Bytes, Monotonic, Permyriad, millis};

use super::Since;
use super::state::Out;
use crate::histogram::Bucket;
use crate::outcome::Sums;
use crate::shard::Row;

const MINUTE_MS: u64 = 60_000;

/// What a window showed. All policies use the same.
pub(super) struct Seen {
    pub began: Monotonic,
    pub middle: Monotonic,
    pub end: Monotonic,
    pub length_ms: u64,
    pub interval: Interval,
    pub promoted: OnGrid,
    /// With what is in swap.
    pub memory: Bytes,
    working_set: Bytes,
    /// The working set in KiB, times the milliseconds of the window.
    work: u128,
    at_steps: [AtStep; STEPS],
    idle: Idle,
    promotions: Promotions,
}

/// How much is used again: one of the bounds, or what is likely. With the least, the most stays out, and
/// the other way round.
#[derive(Clone, Copy)]
pub(super) enum Used {
    Least,
    /// Halfway. But where no aging tells memory of an age from what is in use, the least: nearly all of
    /// such memory is in use.
    Likely,
    Most,
}

impl Used {
    pub const ALL: [Used; 3] = [Used::Least, Used::Likely, Used::Most];
}

/// What a window would have been, if so much is used again.
#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    /// The memory that would be out at its end.
    pub held: Bytes,
    /// The memory that would have come back.
    pub back: Bytes,
}

/// A window for each [`Used`].
pub(super) type Windows = [Window; 3];

/// What is counted of them: at least, as is likely, at most.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted {
    /// The memory that would be out, times the length of the window.
    pub held_kib_min: [u64; 3],
    /// The memory that would have come back.
    pub back_kib: [u64; 3],
    /// That, in millionths of the working set per minute: at least, at most.
    pub rates: [Bucket; 2],
}

impl Counted {
    /// Adds the window to a policy's sums. `part`: the part of the jobs in which it is counted.
    /// `allowed`: the memory in KiB that may come back by the objective. `written`: the memory that
    /// left, at most.
    pub fn add_to(&self, sums: &mut Sums, part: usize, allowed: u64, written: Bytes) {
        sums.acting += 1;
        sums.written_most_kib += written.0.div_ceil(1024);
        let [least, likely, most] = self.held_kib_min;
        sums.held_least_kib_min += least;
        sums.held_likely_kib_min += likely;
        sums.held_most_kib_min += most;
        let [least, likely, most] = self.back_kib;
        sums.promoted_least_kib += least;
        sums.promoted_likely_kib += likely;
        sums.promoted_most_kib += most;
        sums.over_least += u64::from(least > allowed);
        sums.over_most += u64::from(most > allowed);
        for (histograms, rate) in [&mut sums.rates_least, &mut sums.rates_most].into_iter().zip(self.rates) {
            if let Some(histogram) = histograms.get_mut(part) {
                histogram.add_to(rate, 1);
            }
        }
    }
}

/// What a window would have been with a threshold.
#[derive(Clone, Copy, Default)]
pub(super) struct AtStep {
    pub windows: Windows,
    /// All policies that take memory with this threshold count the same.
    pub counted: Counted,
}

/// The memory that would have been taken by now with each threshold, at least.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    steps: [TakenAt; STEPS],
}

#[derive(Clone, Copy, Debug, Default)]
struct TakenAt {
    memory: Bytes,
    /// What was unused for the threshold a while ago, and has not been used since.
    unused: Bytes,
    ago: Duration,
}

/// An age tells nothing if all of a group's memory may be unused for it, but for one part of this many.
const NEARLY_ALL: u64 = 16;

/// The age at which memory has been taken with a threshold. A group is aged every half of its threshold,
/// and memory is taken at the first aging at which it was unused for all of it.
fn taken_by(threshold: Duration) -> Duration {
    threshold * 3 / 2
}

fn likely(bounds: Bounds, is_told: bool) -> Bytes {
    if is_told { bounds.least + Bytes((bounds.most - bounds.least).0 / 2) } else { bounds.least }
}

/// The place in [`AGES`] of the first known age from this one on.
fn place_from(age: Duration) -> Option<usize> {
    AGES.iter().position(|known| *known >= age)
}

/// The place of the last known age up to this one.
fn place_to(age: Duration) -> Option<usize> {
    AGES.iter().rposition(|known| *known <= age)
}

impl TakenAt {
    /// Takes in a window. Returns how much of the memory that is surely unused at its end may not have been
    /// taken yet.
    fn window(&mut self, seen: &Seen, step: Step) -> Bytes {
        let age = step.age();
        let place = place_from(age);
        let (unused, used) = (seen.unused(place), seen.used(place).most);
        (self.memory, self.unused) = (self.memory - used, self.unused - used);
        self.ago += seen.interval.length;
        let is_taken = age + self.ago >= taken_by(age);
        if is_taken {
            self.memory = self.memory.max(self.unused);
        }
        if is_taken || self.unused == Bytes::ZERO {
            (self.unused, self.ago) = (unused.least, Duration::ZERO);
        }
        let older = seen.unused(place_from(taken_by(age)));
        self.memory = self.memory.max(older.least).min(unused.least);
        unused.least - self.memory
    }
}

impl Seen {
    /// `None`: too little is known.
    pub fn new(row: &Row, since: &Since, began: Monotonic, working_set: Bytes, taken: &mut Taken) -> Option<Self> {
        let promotions = row.promotions.filter(|promotions| millis(promotions.over) > 0)?;
        let idle = row.idle.clone()?;
        let interval = Interval {
            length: promotions.over,
            size: row.current,
            promoted: Promoted::at_each_age(&promotions),
            swapped_in: since.refaulted,
            working_set: Some(working_set),
            stalled: since.stalled.map(|stalled| Permyriad::of_time(stalled, since.length)),
            write_budget_used: false,
            swap_at_floor: false,
        };
        let promoted = OnGrid::of(&interval);
        let (length, length_ms) = (interval.length, millis(interval.length));
        let mut seen = Seen {
            began,
            middle: began + length / 2,
            end: began + length,
            length_ms,
            interval,
            promoted,
            memory: row.current + row.swap.unwrap_or_default(),
            working_set,
            work: u128::from(working_set.0 >> 10) * u128::from(length_ms),
            at_steps: Default::default(),
            idle,
            promotions,
        };
        let mut at_steps = seen.at_steps;
        for ((at, taken), step) in at_steps.iter_mut().zip(&mut taken.steps).zip(Step::all()) {
            let cold = seen.cold(row, step);
            let not_yet = taken.window(&seen, step);
            let held = Bounds { least: cold.least - not_yet, ..cold };
            *at = seen.at_step(held, seen.back(row, step), seen.is_told(place_from(step.age())));
        }
        seen.at_steps = at_steps;
        Some(seen)
    }

    fn at_step(&self, held: Bounds, back: Bounds, is_told: bool) -> AtStep {
        let likely = Window { held: likely(held, is_told), back: likely(back, is_told) };
        let least = Window { held: held.most, back: back.least };
        let windows = [least, likely, Window { held: held.least, back: back.most }];
        AtStep { windows, counted: self.counted(&windows) }
    }

    /// What is used again less may be out for longer and come back more, so no bound is always the smaller.
    pub fn counted(&self, windows: &Windows) -> Counted {
        let held = windows.map(|window| kib_min(window.held, self.length_ms));
        let [calm, likely, busy] = windows.map(|window| window.back);
        Counted {
            held_kib_min: sorted(held),
            back_kib: sorted([calm.0 >> 10, likely.0 >> 10, busy.0.div_ceil(1024)]),
            rates: [calm.min(busy), calm.max(busy)].map(|back| Bucket::of(self.rate(back))),
        }
    }

    /// More came back than is allowed in a minute.
    pub fn is_harm(&self, back: Bytes, allowed: Bytes) -> bool {
        back.0.saturating_mul(MINUTE_MS) > allowed.0.saturating_mul(self.length_ms)
    }

    /// Agings tell memory that was unused for this age from what is in use.
    fn is_told(&self, place: Option<usize>) -> bool {
        self.unused(place).most.0 < self.idle.memory.0 / NEARLY_ALL * (NEARLY_ALL - 1)
    }

    /// The window with this threshold.
    pub fn at(&self, step: Step) -> &AtStep {
        let [shortest, ..] = &self.at_steps;
        self.at_steps.get(usize::from(u8::from(step))).unwrap_or(shortest)
    }

    /// The memory that was unused for 2 min, at least and at most, times the length of the window.
    pub fn cold_kib_min(&self, row: &Row) -> [u64; 2] {
        let cold = self.cold(row, Step::LEAST);
        [cold.least, cold.most].map(|cold| kib_min(cold, self.length_ms))
    }

    /// The window if nothing is taken. What is out stays there until it is used.
    pub fn left(&self, out: &Out, used: Used) -> Window {
        let Some(step) = out.step else { return Window::default() };
        let [calm, _, busy] = &self.at(step).windows;
        // When memory was last taken, all that is out had been unused for the threshold.
        let age = step.age();
        let [ago, since] = [self.began, self.end].map(|at| at.since(out.taken));
        let place = place_from(age);
        let (unused, still) = (self.unused(place), self.unused(place_to(age + since)));
        let held_most = out.memory.min(calm.held - (unused.most - still.most));
        let (used_once, used_late) = (self.used(place), self.used(place_to(age + ago)));
        let back_most = busy.back - (used_once.most - used_late.most);
        // What had been unused for long enough by then was out.
        let older = place_from(taken_by(age) + since);
        let still = self.unused(older).least.min(held_most);
        let back_most = back_most.min(out.memory - still);
        let back_least = self.used(older).least.min(back_most);
        match used {
            Used::Least => Window { held: held_most, back: back_least },
            Used::Likely => {
                let back = likely(Bounds { least: back_least, most: back_most }, self.is_told(older));
                Window { held: out.memory - back, back }
            }
            Used::Most => Window { held: out.memory - back_most, back: back_most },
        }
    }

    /// The memory that was unused for a known age.
    fn unused(&self, place: Option<usize>) -> Bounds {
        place.and_then(|place| self.idle.bounds.get(place).copied().flatten()).unwrap_or_default()
    }

    /// The memory that was used after it.
    fn used(&self, place: Option<usize>) -> Bounds {
        place.and_then(|place| self.promotions.bounds.get(place).copied()).unwrap_or_default()
    }

    /// The memory that was unused for a threshold at the end of the window. What omr took was unused for
    /// the recorded threshold: at longer ones, and of what others took, nobody knows.
    fn cold(&self, row: &Row, step: Step) -> Bounds {
        let mut cold = self.unused(place_from(step.age()));
        let swap = row.swap.unwrap_or_default();
        let least = if row.threshold.is_some_and(|recorded| step.age() <= recorded) { swap } else { Bytes::ZERO };
        cold += Bounds { least, most: swap };
        cold
    }

    /// The memory that would have come back in the window.
    fn back(&self, row: &Row, step: Step) -> Bounds {
        let age = step.age();
        let least = self.used(place_from(taken_by(age))).least;
        let mut back = Bounds { least, ..self.used(place_from(age)) };
        back.most += self.interval.swapped_in;
        if row.threshold.is_some_and(|recorded| step.age() <= recorded) {
            back.least += self.interval.swapped_in;
        }
        back
    }

    /// The promotions that an objective allows in the window, in KiB.
    pub fn allowed(&self, slo: &Slo) -> u64 {
        let allowed = slo.allowed(self.work);
        if self.interval.size >= SMALL {
            return allowed;
        }
        let pages = (SMALL_PAGES * slo.page.0).div_ceil(1024);
        let free = pages.saturating_mul(self.length_ms) / millis(SMALL_TIME);
        allowed.saturating_add(free)
    }

    /// Millionths of the working set per minute.
    pub fn rate(&self, promoted: Bytes) -> u64 {
        const IN_A_MINUTE: u64 = MINUTE_MS * 1_000_000;
        // Nearly all figures fit into the numbers that a CPU divides.
        match (promoted.0.checked_mul(IN_A_MINUTE), self.working_set.0.checked_mul(self.length_ms)) {
            (Some(0), _) => 0,
            (Some(promoted), Some(work)) => promoted.checked_div(work).unwrap_or(u64::MAX),
            _ => {
                let work = u128::from(self.working_set.0) * u128::from(self.length_ms);
                let rate = (u128::from(promoted.0) * u128::from(IN_A_MINUTE)).checked_div(work);
                rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX)
            }
        }
    }
}

pub(super) fn kib_min(bytes: Bytes, ms: u64) -> u64 {
    let kib = bytes.0 >> 10;
    match kib.checked_mul(ms) {
        Some(product) => product / MINUTE_MS,
        None => u64::try_from(u128::from(kib) * u128::from(ms) / u128::from(MINUTE_MS)).unwrap_or(u64::MAX),
    }
}

/// The smaller bound first, and what is likely between them.
fn sorted([one, likely, other]: [u64; 3]) -> [u64; 3] {
    let (least, most) = (one.min(other), one.max(other));
    [least, likely.clamp(least, most), most]
}
