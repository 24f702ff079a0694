//! One interval of observation, and the judgement of it at each age.

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Permyriad, millis};
use serde::{Deserialize, Serialize};

use super::grid::{STEPS, Step};
use super::slo::Slo;
use crate::age::Bounds;

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
    /// The amount in the interval, with memory that came back from swap and without memory that was
    /// only reclaimed. Memory that was older than `age` when the interval began is the least. The
    /// most is the memory that was older than `age` less the interval's length, as it may have
    /// reached the age before it was used. (In a simulated load with agings every 10 min, a most
    /// without that broke P in 20 % of the time.)
    pub bytes: Bounds,
}

/// One group between two agings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The time between the two agings.
    pub length: Duration,
    /// Memory charged to the group.
    pub size: Bytes,
    /// Promotions at the ages that can be told now, in any order. An age is left out where nothing
    /// can be said about it, as before the group was observed for that long; a most of all memory
    /// would count as promotions. Promotions at a shorter age include those at a longer one, so an
    /// age on the grid that is left out has at most the promotions of the next shorter age here.
    pub promoted: Vec<Promoted>,
    /// W: memory used within 2 min; `None`: unknown.
    pub working_set: Option<Bounds>,
    /// The share of time in which some task of the group waited for memory (PSI some); `None`:
    /// unknown.
    pub stalled: Option<Permyriad>,
    /// The write budget is used up.
    pub write_budget_used: bool,
    /// Free swap is at its floor.
    pub swap_at_floor: bool,
}

impl Interval {
    /// The most that was promoted at an age; `None`: unknown.
    fn most(&self, step: Step) -> Option<Bytes> {
        let shorter = self.promoted.iter().filter(|promoted| promoted.age <= step.age());
        shorter.map(|promoted| promoted.bytes.most).min()
    }
}

/// What an interval says about one age as a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The most of the promotions was within P.
    Kept,
    /// The most of the promotions was above P, at this or a longer age.
    Broken,
    /// Neither can be said.
    Unknown,
}

/// The verdict about each age on the grid.
pub(super) struct Verdicts([Verdict; STEPS]);

impl Verdicts {
    pub fn at(&self, step: Step) -> Verdict {
        self.0[step.index()]
    }

    /// The shortest age that kept P; `None`: no age is known to have kept it.
    pub fn best(&self) -> Option<Step> {
        Step::all().find(|&step| self.at(step) == Verdict::Kept)
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
    /// The most that was promoted at each age, in KiB.
    promoted: [u32; STEPS],
    /// A mask of the ages at which the promotions of some interval are unknown.
    missing: u16,
}

const ALL: u16 = (1 << STEPS) - 1;
/// A minute in milliseconds, times the millionths of [`super::slo::PromotionRate`].
const MILLION_MINUTES: u128 = 60_000 * 1_000_000;

impl Window {
    pub fn add(&mut self, seen: &Interval) {
        let length = millis(seen.length);
        self.length = self.length.saturating_add(length);
        let Some(working_set) = seen.working_set else { return self.lose() };
        // The least, as promotions weigh more in a smaller working set.
        let working_set = working_set.least.0 >> 10;
        self.known = self.known.saturating_add(length);
        self.work = self.work.saturating_add(working_set.saturating_mul(length));
        self.largest = self.largest.max(working_set);
        for step in Step::all() {
            let Some(most) = seen.most(step) else {
                self.missing |= step.bit();
                continue;
            };
            let sum = &mut self.promoted[step.index()];
            *sum = sum.saturating_add(u32::try_from(most.0.div_ceil(1024)).unwrap_or(u32::MAX));
        }
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
        let allowed = work * u128::from(slo.promotions.0) + u128::from(free) * MILLION_MINUTES;
        let mut verdicts = [Verdict::Unknown; STEPS];
        let mut is_broken = false;
        for step in Step::all().rev() {
            is_broken |= u128::from(self.promoted[step.index()]) * MILLION_MINUTES > allowed;
            verdicts[step.index()] = match is_broken {
                true => Verdict::Broken,
                false if self.missing & step.bit() != 0 => Verdict::Unknown,
                false => Verdict::Kept,
            };
        }
        Verdicts(verdicts)
    }

    /// The most that was promoted at an age, per minute of the known time. Where that is unknown,
    /// it is the most that is known of longer ages.
    pub fn per_minute(&self, step: Step) -> Bytes {
        let promoted = self.promoted[step.index()..].iter().max().copied().unwrap_or_default();
        let kib = u128::from(promoted) * 60_000 / u128::from(self.known.max(1));
        Bytes::kib(u64::try_from(kib).map_or(u64::MAX >> 10, |kib| kib.min(u64::MAX >> 10)))
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
