//! How often each age would have kept the promise in the last day.

use core::time::Duration;

use omr_units::Permyriad;
use serde::{Deserialize, Serialize};

use super::grid::{BITS, STEPS, Step};
use super::interval::Verdicts;

/// The day is kept in this many slots; the oldest is forgotten as a new one begins. So what is
/// known reaches back 21 to 24 h.
const SLOTS: usize = 8;
/// The time of a slot in seconds: 3 h.
const SLOT: u16 = 10_800;
const DAY: u64 = 86_400;

/// Seconds in which each age kept or broke P. Time that says nothing about an age counts in
/// neither.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    kept: Seconds,
    broken: Seconds,
    /// The slot that is being filled.
    slot: u8,
    /// The seconds in it.
    filled: u16,
    /// The part of them that `kept` and `broken` do not have yet.
    run: Run,
}

/// Seconds by age.
#[derive(Clone, Debug, Default)]
struct Seconds {
    slots: [[u16; STEPS]; SLOTS],
    /// The sums of all slots.
    all: [u32; STEPS],
}

/// Seconds with the same verdicts, as masks of ages. Most verdicts are those of the time before, and one
/// number is added to faster than those of all ages.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    kept: u16,
    broken: u16,
    seconds: u16,
}

/// The form in which evidence is saved.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    kept: [[u16; STEPS]; SLOTS],
    broken: [[u16; STEPS]; SLOTS],
    slot: u8,
    filled: u16,
}

impl Evidence {
    /// Takes in what this time says about each age.
    pub fn add(&mut self, time: Duration, verdicts: &Verdicts) {
        if (self.run.kept, self.run.broken) != (verdicts.kept, verdicts.broken) {
            self.end_run();
            (self.run.kept, self.run.broken) = (verdicts.kept, verdicts.broken);
        }
        let mut left = time.as_secs().min(DAY);
        while left > 0 {
            let room = SLOT - self.filled;
            let part = u16::try_from(left).map_or(room, |left| left.min(room));
            left -= u64::from(part);
            self.run.seconds += part;
            self.filled += part;
            if self.filled == SLOT {
                self.end_run();
                self.begin_slot();
            }
        }
    }

    fn end_run(&mut self) {
        let Run { kept, broken, seconds } = self.run;
        self.kept.add(usize::from(self.slot), kept, seconds);
        self.broken.add(usize::from(self.slot), broken, seconds);
        self.run.seconds = 0;
    }

    fn begin_slot(&mut self) {
        self.filled = 0;
        self.slot = if usize::from(self.slot) + 1 == SLOTS { 0 } else { self.slot + 1 };
        self.kept.forget(usize::from(self.slot));
        self.broken.forget(usize::from(self.slot));
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
        let run = |ages: u16| if ages & step.bit() == 0 { 0 } else { u32::from(self.run.seconds) };
        let kept = self.kept.all[step.index()] + run(self.run.kept);
        let broken = self.broken.all[step.index()] + run(self.run.broken);
        (u64::from(kept), u64::from(kept + broken))
    }

    /// Lets everything count half as much for each day of this time. Rounding makes the share of
    /// kept time smaller, never larger.
    pub fn decay(&mut self, time: Duration) {
        self.end_run();
        let (days, rest) = (time.as_secs() / DAY, time.as_secs() % DAY);
        let half = u32::try_from(days).unwrap_or(u32::MAX);
        // What is left, in parts of `whole`.
        let whole = (2 * DAY).checked_shl(half.min(32)).unwrap_or(u64::MAX);
        let left = 2 * DAY - rest;
        let scaled = |count: u16| u64::from(count) * left;
        self.kept.change(|count| scaled(count) / whole);
        self.broken.change(|count| scaled(count).div_ceil(whole));
    }
}

impl Seconds {
    /// Adds seconds to these ages.
    fn add(&mut self, slot: usize, ages: u16, seconds: u16) {
        for ((count, sum), age) in self.slots[slot].iter_mut().zip(&mut self.all).zip(BITS) {
            if ages & age != 0 {
                *count += seconds;
                *sum += u32::from(seconds);
            }
        }
    }

    fn forget(&mut self, slot: usize) {
        self.all.iter_mut().zip(self.slots[slot]).for_each(|(sum, count)| *sum -= u32::from(count));
        self.slots[slot] = [0; STEPS];
    }

    /// Changes the seconds of each slot and age.
    fn change(&mut self, to: impl Fn(u16) -> u64) {
        let changed = |count| u16::try_from(to(count)).unwrap_or(count);
        *self = Seconds::from(self.slots.map(|slot| slot.map(changed)));
    }
}

impl From<[[u16; STEPS]; SLOTS]> for Seconds {
    fn from(slots: [[u16; STEPS]; SLOTS]) -> Self {
        let mut all = [0; STEPS];
        slots.iter().for_each(|slot| all.iter_mut().zip(slot).for_each(|(sum, count)| *sum += u32::from(*count)));
        Seconds { slots, all }
    }
}

impl From<Evidence> for Saved {
    fn from(mut evidence: Evidence) -> Self {
        evidence.end_run();
        let Evidence { kept, broken, slot, filled, .. } = evidence;
        Saved { kept: kept.slots, broken: broken.slots, slot, filled }
    }
}

impl From<Saved> for Evidence {
    fn from(Saved { kept, broken, slot, filled }: Saved) -> Self {
        Evidence { kept: kept.into(), broken: broken.into(), slot, filled, run: Run::default() }
    }
}

impl Saved {
    /// Evidence that can have come about.
    pub fn is_valid(&self) -> bool {
        let mut counts = self.kept.as_flattened().iter().zip(self.broken.as_flattened());
        usize::from(self.slot) < SLOTS
            && self.filled < SLOT
            && counts.all(|(&kept, &broken)| u32::from(kept) + u32::from(broken) <= u32::from(SLOT))
    }
}
