//! How much memory of a group was unused for how long, as a least and a most, from the generations
//! of MGLRU.
//!
//! A reading is the generations of one group on one node, right after an aging (`lru_gen`). Aging
//! reads the accessed bit of each mapped page. Pages used since the aging before move to the
//! generation that was the youngest until then; all other pages stay. So no page older than
//! generation `g` was used between the birth of `g` and the last aging. That is the **least**
//! amount of unused memory, whoever ran the agings. Pages in `g` were used after `g` was born. That
//! gives the **most**.
//!
//! The kernel keeps four generations and merges the oldest two when a fifth begins. For times
//! further back, [`Ages`] compares earlier readings: the amount merged in since then is known, and
//! the rest was there before.
//!
//! The kernel does not see use through read(2) and write(2). So page cache is left out, and files
//! in tmpfs count as unused unless they are mapped. The most is too low where another program's
//! reclaim moved pages that were unused.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::AddAssign;
use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

/// The number of readings that are kept: enough for twelve rounds of the daemon's five agings (see
/// [`crate::schedule`]). None can be left out, as two successive readings are needed to tell how
/// much was merged in between.
const READINGS: usize = 64;

/// Agings do not come to the millisecond. So the most is the memory that was unused for a time that
/// is longer by this part of it. Otherwise pages aged just before the moment would count with the
/// next generation.
const SLACK: u32 = 32;

/// One generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Number of the generation; a greater number is younger.
    pub number: u64,
    /// When the generation was made.
    pub born: Monotonic,
    /// Anonymous and shared memory in it.
    pub memory: Bytes,
}

/// The generations of a group on one node after an aging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    generations: Vec<Generation>,
}

impl Reading {
    /// A reading of these generations, oldest first; `None`: there are none. The kernel's
    /// milliseconds have 32 bits, so a generation may seem to be born after a younger one; it then
    /// gets the birth of the younger one.
    pub fn new(mut generations: Vec<Generation>) -> Option<Self> {
        let mut earliest = generations.last()?.born;
        for generation in generations.iter_mut().rev() {
            earliest = earliest.min(generation.born);
            generation.born = earliest;
        }
        Some(Reading { generations })
    }

    /// The moment of the reading: when the youngest generation was made.
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

    /// The index of the youngest generation that was born by then and has an older one.
    fn border(&self, moment: Monotonic) -> Option<usize> {
        (1..self.generations.len()).rev().find(|&index| self.generations[index].born <= moment)
    }
}

/// Two amounts between which the true amount lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// The true amount is at least this.
    pub least: Bytes,
    /// The true amount is at most this.
    pub most: Bytes,
}

impl Bounds {
    /// Bounds for `part`, which is a part of `memory`, from these bounds for all of `memory`. The
    /// amount may be in the other part as far as there is room, and `part` cannot have more than
    /// its size.
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
    /// Takes in a reading. If its numbers have gone back, it is a reading of another group, and all
    /// earlier readings are forgotten.
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

    /// Forgets the readings that are not needed for times up to this long.
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

    /// When the last aging was; `None`: there is no reading.
    pub fn at(&self) -> Option<Monotonic> {
        self.readings.back().map(Reading::at)
    }

    /// How much memory was unused for this long at the last aging. The most is for a time that is
    /// longer by a 32nd.
    pub fn idle(&self, time: Duration) -> Bounds {
        let Some(last) = self.readings.back() else { return Bounds::default() };
        let most = self.most(last.at() - time - time / SLACK);
        Bounds { least: self.least(last.at() - time).min(most), most }
    }

    /// Memory unused since a moment was, in each reading, older than each generation born after it.
    /// So the smallest such amount is the most.
    fn most(&self, moment: Monotonic) -> Bytes {
        let older = |reading: &Reading| {
            let index = reading.generations.iter().skip(1).position(|generation| generation.born >= moment);
            index.map(|index| reading.before(index + 1))
        };
        self.readings.iter().filter_map(older).chain([self.memory()]).min().unwrap_or_default()
    }

    /// The amount that was certainly unused since a moment.
    fn least(&self, moment: Monotonic) -> Bytes {
        let mut readings = self.readings.iter().rev();
        let Some(last) = readings.next() else { return Bytes::ZERO };
        if let Some(index) = last.border(moment) {
            return last.before(index);
        }
        // Pages older than this generation are unused since its birth. They were older than it in
        // earlier readings as well, but perhaps younger than another border.
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
