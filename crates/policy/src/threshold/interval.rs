//! One interval of observation, and the judgement of it at each age.

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Permyriad, millis};
use serde::{Deserialize, Serialize};

use super::grid::{ALL, STEPS, Step};
use super::slo::Slo;
use crate::age::{AGES, Bounds, Promotions};

/// W is the memory that was used within this time.
pub const IN_USE: Duration = Duration::from_secs(120);
/// Groups below this size are judged over [`SMALL_TIME`] and may have [`SMALL_PAGES`] promotions
/// more. 0.2 % of 100 MiB is 51 pages: in smaller groups, allocation hides what is used again.
pub const SMALL: Bytes = Bytes::mib(256);
/// The time over which a small group is judged.
pub const SMALL_TIME: Duration = Duration::from_secs(600);
/// The promotions that a small group always has free: one readahead from swap.
pub const SMALL_PAGES: u64 = 8;

/// Memory promoted at one age: it was unused for at least that long, and was used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promoted {
    /// The age. It need not be on the grid.
    pub age: Duration,
    /// The amount in the interval, without memory that was only reclaimed.
    pub bytes: Bounds,
}

impl Promoted {
    /// The promotions at each of [`AGES`].
    pub fn at_each_age(promotions: &Promotions) -> Vec<Promoted> {
        AGES.iter().zip(promotions.bounds).map(|(&age, bytes)| Promoted { age, bytes }).collect()
    }
}

/// One group between two agings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The time between the two agings.
    pub length: Duration,
    /// Memory charged to the group.
    pub size: Bytes,
    /// Promotions at the ages that can be told now, in any order. Promotions at a shorter age
    /// include those at a longer one, so an age on the grid that is left out has at most the
    /// promotions of the next shorter age here.
    pub promoted: Vec<Promoted>,
    /// Memory that came back from swap. It was reclaimed at an age near the threshold, so it counts
    /// as promoted at the threshold and at shorter ages.
    pub swapped_in: Bytes,
    /// W: memory used within [`IN_USE`], at least; `None`: unknown.
    pub working_set: Option<Bytes>,
    /// The share of time in which some task of the group waited for memory (PSI some); `None`:
    /// unknown.
    pub stalled: Option<Permyriad>,
    /// The write budget is used up.
    pub write_budget_used: bool,
    /// Free swap is at its floor.
    pub swap_at_floor: bool,
}

/// The promotions of an interval at each age of the grid, in KiB: never more at a longer age. Several
/// thresholds that observe the same interval need them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnGrid {
    /// At least what was promoted at a longer age.
    least: [u32; STEPS],
    /// At most what was promoted at a shorter age; zero where that is not known.
    most: [u32; STEPS],
    /// A mask of the ages of which no most is known.
    missing: u16,
}

impl OnGrid {
    /// The promotions of this interval.
    pub fn of(seen: &Interval) -> Self {
        let mut of = OnGrid { least: [0; STEPS], most: [u32::MAX; STEPS], missing: ALL };
        for Promoted { age, bytes } in &seen.promoted {
            let (least, most) = (kib(bytes.least.0 >> 10), kib(bytes.most.0.div_ceil(1024)));
            for step in Step::all() {
                let index = step.index();
                if *age >= step.age() {
                    of.least[index] = of.least[index].max(least);
                }
                if *age <= step.age() {
                    of.most[index] = of.most[index].min(most);
                    of.missing &= !step.bit();
                }
            }
        }
        let missing = Step::all().filter(|step| of.missing & step.bit() != 0);
        missing.for_each(|step| of.most[step.index()] = 0);
        of
    }
}

/// What an interval says about one age as a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The most of the promotions was within P.
    Kept,
    /// The least of the promotions was above P, at this or a longer age.
    Broken,
    /// The promotions are between bounds, and P is between them.
    Unclear,
    /// Some promotions or the working set are unknown.
    Unknown,
}

/// The verdict about each age on the grid, as masks of ages. Every age that is in none is unknown.
pub(super) struct Verdicts {
    pub kept: u16,
    /// What breaks P at an age breaks it at each shorter one.
    pub broken: u16,
    unclear: u16,
}

impl Verdicts {
    pub fn at(&self, step: Step) -> Verdict {
        match step.bit() {
            bit if self.broken & bit != 0 => Verdict::Broken,
            bit if self.kept & bit != 0 => Verdict::Kept,
            bit if self.unclear & bit != 0 => Verdict::Unclear,
            _ => Verdict::Unknown,
        }
    }

    /// The shortest age that has not broken P; `None`: each age has.
    pub fn best(&self) -> Option<Step> {
        Step::all().find(|&step| self.at(step) != Verdict::Broken)
    }
}

/// Intervals that are judged together: one of a large group, or those of 10 min of a small group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    /// The time since it began, in milliseconds.
    pub length: u64,
    /// The part of that time in which the working set was known.
    pub known: u64,
    /// The sum over the known time of the working set, in KiB, times milliseconds.
    work: u64,
    /// The largest working set, in KiB.
    largest: u64,
    /// The least and the most that was promoted at each age, in KiB.
    least: [u32; STEPS],
    most: [u32; STEPS],
    /// Memory that came back from swap while the threshold was at least at each age, in KiB.
    swapped_in: [u32; STEPS],
    /// A mask of the ages at which the promotions of some interval are unknown.
    missing: u16,
}

impl Window {
    /// An interval of this many milliseconds in which the threshold was at this age.
    pub fn of(length: u64, seen: &Interval, promoted: &OnGrid, threshold: Step) -> Self {
        let Some(working_set) = seen.working_set else {
            return Window { length, missing: ALL, ..Window::default() };
        };
        let working_set = working_set.0 >> 10;
        let OnGrid { least, most, missing } = *promoted;
        let mut swapped_in = [0; STEPS];
        if seen.swapped_in > Bytes::ZERO {
            swapped_in[..=threshold.index()].fill(kib(seen.swapped_in.0 >> 10));
        }
        let work = working_set.saturating_mul(length);
        Window { length, known: length, work, largest: working_set, least, most, swapped_in, missing }
    }

    /// This window, and the interval after it.
    pub fn and(mut self, next: &Window) -> Self {
        self.length = self.length.saturating_add(next.length);
        self.known = self.known.saturating_add(next.known);
        self.work = self.work.saturating_add(next.work);
        self.largest = self.largest.max(next.largest);
        self.missing |= next.missing;
        add(&mut self.least, &next.least);
        add(&mut self.most, &next.most);
        add(&mut self.swapped_in, &next.swapped_in);
        self
    }

    /// All that was promoted at an age, at least and at most, in KiB. What came back from swap is
    /// known.
    fn promoted(&self, step: Step) -> (u64, u64) {
        let known = u64::from(self.swapped_in[step.index()]);
        (known + u64::from(self.least[step.index()]), known + u64::from(self.most[step.index()]))
    }

    /// Some time of the window is unknown at every age.
    pub fn lose(&mut self) {
        if self.length > 0 {
            self.missing = ALL;
        }
    }

    /// Judges each age. While a window is not `full`, an age has broken P only if the rest of the
    /// time cannot mend that, by the largest working set so far.
    pub fn judge(&self, slo: &Slo, small: bool, full: bool) -> Verdicts {
        let work = match full {
            true => u128::from(self.work),
            false => u128::from(self.largest) * u128::from(self.length.max(millis(SMALL_TIME))),
        };
        let free = if small { slo.page.0.saturating_mul(SMALL_PAGES).div_ceil(1024) } else { 0 };
        let allowed = slo.allowed(work).saturating_add(free);
        // Nothing grows with the age. So all ages below the first one that keeps P exceed it.
        let keeps = |step: &Step| self.promoted(*step).0 <= allowed;
        let keeps_for_sure = |step: &Step| self.missing & step.bit() == 0 && self.promoted(*step).1 <= allowed;
        let first = Step::all().find(keeps);
        let sure = first.and_then(|first| first.and_longer().find(keeps_for_sure));
        let (broken, over) = (below(first), below(sure));
        let known = ALL & !broken & !self.missing;
        Verdicts { kept: known & !over, broken, unclear: known & over }
    }

    /// What was promoted at an age, per minute of the known time: the least where that broke P, the
    /// most otherwise. Where the most is unknown, it is the most that is known of longer ages.
    pub fn per_minute(&self, step: Step, verdict: Verdict) -> Bytes {
        let promoted = Step::all().skip(step.index()).map(|step| self.promoted(step));
        let promoted = promoted.map(|(least, most)| if verdict == Verdict::Broken { least } else { most });
        let kib = promoted.max().unwrap_or_default() * 60_000 / self.known.max(1);
        Bytes::kib(kib.min(u64::MAX >> 10))
    }

    /// The mean of the working set.
    pub fn working_set(&self) -> Bytes {
        Bytes::kib((self.work / self.known.max(1)).min(u64::MAX >> 10))
    }

    /// A window that can have come about.
    pub fn is_valid(&self) -> bool {
        self.length < millis(SMALL_TIME)
            && self.known <= self.length
            && u128::from(self.work) <= u128::from(self.largest) * u128::from(self.known)
            && self.missing & !ALL == 0
    }
}

/// A mask of the ages below this one; `None`: of all.
fn below(step: Option<Step>) -> u16 {
    step.map_or(ALL, |step| step.bit() - 1)
}

fn add(sums: &mut [u32; STEPS], parts: &[u32; STEPS]) {
    sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.saturating_add(*part));
}

fn kib(kib: u64) -> u32 {
    u32::try_from(kib).unwrap_or(u32::MAX)
}
