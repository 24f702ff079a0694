//! How often each age would have kept the promise in the last day.

use core::time::Duration;

use omr_units::Permyriad;
use serde::{Deserialize, Serialize};

use super::grid::{ALL, BITS, STEPS, Step};
use super::interval::Verdicts;

/// The day is kept in this many slots; the oldest is forgotten as a new one begins. So what is
/// known reaches back 21 to 24 h.
const SLOTS: usize = 8;
/// The time of a slot in seconds: 3 h.
const SLOT: u16 = 10_800;
const DAY: u64 = 86_400;

/// Seconds in which each age kept or broke P. Time that says nothing about an age counts in
/// neither.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evidence {
    kept: [[u16; STEPS]; SLOTS],
    broken: [[u16; STEPS]; SLOTS],
    /// The slot that is being filled.
    slot: u8,
    /// The seconds in it.
    filled: u16,
}

impl Evidence {
    /// Takes in what this time says about each age.
    pub fn add(&mut self, time: Duration, verdicts: &Verdicts) {
        let mut left = time.as_secs().min(DAY);
        while left > 0 {
            let room = SLOT - self.filled;
            let part = u16::try_from(left).map_or(room, |left| left.min(room));
            let slot = usize::from(self.slot);
            add_at(verdicts.kept, part, &mut self.kept[slot]);
            add_at(verdicts.broken, part, &mut self.broken[slot]);
            left -= u64::from(part);
            self.filled += part;
            if self.filled == SLOT {
                self.begin_slot();
            }
        }
    }

    fn begin_slot(&mut self) {
        self.filled = 0;
        self.slot = if usize::from(self.slot) + 1 == SLOTS { 0 } else { self.slot + 1 };
        let slot = usize::from(self.slot);
        (self.kept[slot], self.broken[slot]) = ([0; STEPS], [0; STEPS]);
    }

    /// The share of the known time in which an age kept P; `None`: nothing is known.
    pub fn kept(&self, step: Step) -> Option<Permyriad> {
        let (kept, known) = self.known(step);
        Permyriad::ratio(kept, known)
    }

    /// Whether that is at least this share, without a division.
    pub fn has_kept(&self, step: Step, needed: Permyriad) -> Option<bool> {
        let (kept, known) = self.known(step);
        (known > 0).then(|| kept * 10_000 >= known * u64::from(needed.0))
    }

    /// The seconds in which an age kept P, and the seconds in which it kept or broke P.
    fn known(&self, step: Step) -> (u64, u64) {
        let sum = |slots: &[[u16; STEPS]; SLOTS]| slots.iter().map(|slot| u64::from(slot[step.index()])).sum::<u64>();
        let kept = sum(&self.kept);
        (kept, kept + sum(&self.broken))
    }

    /// Lets everything count half as much for each day of this time. Rounding makes the share of
    /// kept time smaller, never larger.
    pub fn decay(&mut self, time: Duration) {
        let (days, rest) = (time.as_secs() / DAY, time.as_secs() % DAY);
        let half = u32::try_from(days).unwrap_or(u32::MAX);
        // What is left, in parts of `whole`.
        let whole = (2 * DAY).checked_shl(half.min(32)).unwrap_or(u64::MAX);
        let left = 2 * DAY - rest;
        let scaled = |count: u16| u64::from(count) * left;
        for count in self.kept.as_flattened_mut() {
            *count = u16::try_from(scaled(*count) / whole).unwrap_or(*count);
        }
        for count in self.broken.as_flattened_mut() {
            *count = u16::try_from(scaled(*count).div_ceil(whole)).unwrap_or(*count);
        }
    }

    /// Evidence that can have come about.
    pub fn is_valid(&self) -> bool {
        let mut counts = self.kept.as_flattened().iter().zip(self.broken.as_flattened());
        usize::from(self.slot) < SLOTS
            && self.filled < SLOT
            && counts.all(|(&kept, &broken)| u32::from(kept) + u32::from(broken) <= u32::from(SLOT))
    }
}

/// Adds seconds to the counts of these ages: nearly always of all or of none.
fn add_at(ages: u16, seconds: u16, counts: &mut [u16; STEPS]) {
    match ages {
        0 => {}
        ALL => counts.iter_mut().for_each(|count| *count = count.saturating_add(seconds)),
        _ => {
            let counts = counts.iter_mut().zip(BITS).filter(|(_, age)| ages & age != 0);
            counts.for_each(|(count, _)| *count = count.saturating_add(seconds));
        }
    }
}
