//! What the ages of generations say about how long memory was not used, and what they do not.
//!
//! A reading is one group's generations on one node, right after an aging (`lru_gen`). Aging looks
//! at the accessed bit of each mapped page: what was used since the aging before moves to the
//! generation that was the youngest until then, all else stays. So of the pages that are older than
//! generation `g`, none was used between the birth of `g` and the last aging: a **least** that holds,
//! whoever did the agings. What is in `g` was used after `g` was born: that gives a **most**.
//!
//! The kernel keeps four generations and merges the oldest two when a fifth comes. How much has not
//! been used for longer than they reach back is found from readings before: what was merged in since
//! then is known, and the rest was there already.
//!
//! Not seen: use through read(2) and write(2), so page cache is no part of this, and files in tmpfs
//! count as not used unless they are mapped. The most is too low where somebody else's reclaim moves
//! pages on that were not used.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::AddAssign;
use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

/// Older readings are forgotten: enough for twelve rounds of the daemon's five (see [`crate::schedule`]). They cannot be
/// thinned out, as each says only with the next what was merged in between.
const READINGS: usize = 64;

/// Agings do not come to the millisecond, so the most is of what was not used for this part of the time
/// longer. Else what was aged just before the moment would count with the generation after it.
const SLACK: u32 = 32;

/// One generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number; greater is younger.
    pub number: u64,
    /// When it was made.
    pub born: Monotonic,
    /// Anonymous and shared memory in it.
    pub memory: Bytes,
}

/// A group's generations on one node after an aging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    generations: Vec<Generation>,
}

impl Reading {
    /// From the generations, oldest first; `None` of none. A birth after that of a younger generation
    /// (the kernel's milliseconds have 32 bits) is taken for as late as that.
    pub fn new(mut generations: Vec<Generation>) -> Option<Self> {
        let mut earliest = generations.last()?.born;
        for generation in generations.iter_mut().rev() {
            earliest = earliest.min(generation.born);
            generation.born = earliest;
        }
        Some(Reading { generations })
    }

    /// When the youngest generation was made: the moment that this is about.
    pub fn at(&self) -> Monotonic {
        self.generations.last().map(|youngest| youngest.born).unwrap_or_default()
    }

    fn first(&self) -> u64 {
        self.generations.first().map_or(0, |oldest| oldest.number)
    }

    fn last(&self) -> u64 {
        self.generations.last().map_or(0, |youngest| youngest.number)
    }

    /// All memory in generations older than the one at `index`.
    fn before(&self, index: usize) -> Bytes {
        self.generations.iter().take(index).map(|generation| generation.memory).sum()
    }

    /// The youngest generation that was born by then and has an older one.
    fn border(&self, moment: Monotonic) -> Option<usize> {
        (1..self.generations.len()).rev().find(|&index| self.generations[index].born <= moment)
    }
}

/// Between which two amounts the truth is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// At least this.
    pub least: Bytes,
    /// At most this.
    pub most: Bytes,
}

impl Bounds {
    /// Of a part of `memory`, when these are bounds of something in all of it: that may be in the rest as far as
    /// there is room, and the part can have no more of it than it is large.
    pub fn of_part(self, memory: Bytes, part: Bytes) -> Bounds {
        let least = self.least - (memory - part);
        Bounds { least: least.min(part), most: self.most.min(part) }
    }
}

impl AddAssign for Bounds {
    fn add_assign(&mut self, other: Bounds) {
        self.least += other.least;
        self.most += other.most;
    }
}

/// The readings of one group on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    readings: VecDeque<Reading>,
}

impl Ages {
    /// Takes in a reading. Where its numbers have gone back it is of something else, and what was before
    /// is forgotten.
    pub fn add(&mut self, reading: Reading) {
        if self.readings.back().is_some_and(|before| reading.last() < before.last() || reading.first() < before.first())
        {
            self.readings.clear();
        }
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
    }

    /// Forgets readings that say nothing of what was not used for this long or less.
    pub fn keep(&mut self, time: Duration) {
        let Some(now) = self.at() else { return };
        let moment = now - time - time / SLACK;
        while self.readings.get(1).is_some_and(|second| second.at() <= moment) {
            self.readings.pop_front();
        }
    }

    /// All memory at the last reading.
    pub fn memory(&self) -> Bytes {
        self.readings.back().map_or(Bytes::ZERO, |last| last.before(usize::MAX))
    }

    /// When the last aging was.
    pub fn at(&self) -> Option<Monotonic> {
        self.readings.back().map(Reading::at)
    }

    /// How much was, at the last aging, not used for this long (the most: for a thirty-second longer).
    pub fn idle(&self, time: Duration) -> Bounds {
        let Some(last) = self.readings.back() else { return Bounds::default() };
        let most = self.most(last.at() - time - time / SLACK);
        Bounds { least: self.least(last.at() - time).min(most), most }
    }

    /// Whatever was not used since a moment was older than each generation born after it, at each reading.
    fn most(&self, moment: Monotonic) -> Bytes {
        let older = |reading: &Reading| {
            let index = reading.generations.iter().skip(1).position(|generation| generation.born >= moment);
            index.map(|index| reading.before(index + 1))
        };
        self.readings.iter().filter_map(older).chain([self.memory()]).min().unwrap_or_default()
    }

    fn least(&self, moment: Monotonic) -> Bytes {
        let mut readings = self.readings.iter().rev();
        let Some(last) = readings.next() else { return Bytes::ZERO };
        if let Some(index) = last.border(moment) {
            return last.before(index);
        }
        // Nothing older than this generation was used since its birth, and all of it was older at the
        // readings before, too, but perhaps younger than another border.
        let Some(mut border) = last.generations.get(1).map(|generation| generation.number) else { return Bytes::ZERO };
        let mut least = last.before(1);
        for reading in readings {
            let Some(index) = reading.generations.iter().position(|generation| generation.number == border) else {
                break;
            };
            let known = reading.border(moment).filter(|&known| known <= index);
            let from = known.unwrap_or(1);
            least = least - (reading.before(index) - reading.before(from.min(index)));
            if known.is_some() {
                return least;
            }
            border = border.min(reading.generations.get(1).map_or(border, |generation| generation.number));
        }
        Bytes::ZERO
    }
}
