//! The memory of a group that was unused for an age, as a least and a most, from the generations
//! of MGLRU.
//!
//! A reading is the generations of one group on one node, right after an aging (`lru_gen`). Aging
//! reads the accessed bit of each mapped page. Pages that were used since the previous aging move
//! to the generation that was the youngest before it; all other pages stay. So no page older than
//! generation `g` was used between the birth of `g` and the last aging. That is the **least**
//! amount of unused memory, whoever ran the agings. Pages in `g` were used after `g` was born. That
//! gives the **most**.
//!
//! The kernel keeps four generations and merges the oldest two when a fifth begins. For times
//! further back, [`Ages`] keeps the birth of each merged generation, with bounds for the memory
//! that was unused since then. Each later reading tells how much memory left the old generations.
//! All of it may have been unused since that birth, so the least falls by it.
//!
//! The same comparison of two readings tells the **promotions**: memory that was unused for some
//! time at one aging, and was used before the next ([`Promotions`]).
//!
//! The kernel does not see use through read(2) and write(2). So page cache is left out, and files
//! in tmpfs count as unused unless they are mapped. The most is too low where another program's
//! reclaim moved pages that were unused.

use alloc::vec::Vec;
use core::ops::AddAssign;
use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

/// The ages for which omr tells how much memory reached them, and how much of that was used again.
/// Five and ten minutes break the row of doubled ages: ten minutes is the time between two samples.
pub const AGES: [Duration; 13] = {
    const fn minutes(n: u64) -> Duration {
        Duration::from_secs(60 * n)
    }
    [
        Duration::from_secs(30),
        minutes(1),
        minutes(2),
        minutes(4),
        minutes(5),
        minutes(8),
        minutes(10),
        minutes(15),
        minutes(30),
        minutes(60),
        minutes(120),
        minutes(240),
        minutes(480),
    ]
};

/// The most borders of merged generations that are kept. With the daemon's five agings in ten
/// minutes this keeps the borders at 30 min and 1 h before each sample, and up to 8 h two of them
/// are never farther apart than a fifth of their age.
const MERGED: usize = 60;

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

    fn memory(&self) -> Bytes {
        self.before(usize::MAX)
    }

    /// All memory in generations older than the one at `index`.
    fn before(&self, index: usize) -> Bytes {
        self.generations.iter().take(index).map(|generation| generation.memory).sum()
    }

    /// The generations that have an older one, and all memory older than each.
    fn borders(&self) -> impl Iterator<Item = (&Generation, Bytes)> {
        self.generations.iter().enumerate().skip(1).map(|(index, generation)| (generation, self.before(index)))
    }

    /// All memory older than this generation; `None`: the kernel had merged it, or it was not born.
    fn older_than(&self, number: u64) -> Option<Bytes> {
        self.borders().find(|(generation, _)| generation.number == number).map(|(_, older)| older)
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

/// The promotions at each of [`AGES`] between agings: memory that was unused for the age at one
/// aging, and was used before the next. Freed memory counts as used: a most that is too high only
/// makes omr more careful.
///
/// Use is seen once in the time between two agings. So there is no promotion for memory that became
/// that old and was used within this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotions {
    /// The time between the agings. Times of which nothing is known are not in it.
    pub over: Duration,
    /// The memory, for each of [`AGES`]. Never more for a longer age. As with [`Ages::idle`], the
    /// most is for an age that is longer by a 32nd.
    pub bounds: [Bounds; AGES.len()],
}

impl Promotions {
    /// Returns the promotions at this age, one of [`AGES`].
    pub fn at(&self, age: Duration) -> Option<Bounds> {
        AGES.iter().position(|&known| known == age).map(|index| self.bounds[index])
    }

    /// Adds the promotions of a later time.
    pub fn add_later(&mut self, later: &Promotions) {
        self.over += later.over;
        self.add_bounds(later);
    }

    /// Adds the promotions of other memory at about the same time. `over` stays.
    pub fn add_bounds(&mut self, other: &Promotions) {
        self.bounds.iter_mut().zip(other.bounds).for_each(|(sum, other)| *sum += other);
    }

    /// Takes out memory that omr reclaimed meanwhile: it was not used. `unused_for`: all of it was
    /// unused for at least this time. At longer ages nobody knows how much of it was that old: all
    /// of it at the least of promotions, and none at the most. The most is too low by the part that
    /// was unused for less than a 32nd longer.
    pub fn subtract_reclaimed(&mut self, reclaimed: Bytes, unused_for: Duration) {
        for (age, bounds) in AGES.iter().zip(&mut self.bounds) {
            bounds.least = bounds.least - reclaimed;
            if *age <= unused_for {
                bounds.most = (bounds.most - reclaimed).max(bounds.least);
            }
        }
        self.make_monotonic();
    }

    /// Memory that is promoted at an age is promoted at each shorter age, too.
    fn make_monotonic(&mut self) {
        for index in 1..AGES.len() {
            self.bounds[index].most = self.bounds[index].most.min(self.bounds[index - 1].most);
        }
        for index in (0..AGES.len()).rev() {
            let longer = self.bounds.get(index + 1).map_or(Bytes::ZERO, |longer| longer.least);
            let bounds = &mut self.bounds[index];
            bounds.least = bounds.least.max(longer).min(bounds.most);
        }
    }
}

/// The birth of a generation that the kernel has merged into the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Merged {
    born: Monotonic,
    /// Memory unused since then, at the last reading.
    unused: Bounds,
}

// The daemon keeps them for each group and node, locked in memory.
const _: () = assert!(size_of::<Merged>() * MERGED.next_power_of_two() <= 1536);

/// The ages of memory of one group on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    last: Option<Reading>,
    /// Oldest first.
    merged: Vec<Merged>,
}

impl Ages {
    /// Takes in a reading. If its numbers have gone back, it is a reading of another group, and
    /// everything earlier is forgotten. Returns the promotions since the reading before; `None`:
    /// unknown, as the two have no border between generations in common.
    pub fn add(&mut self, reading: Reading) -> Option<Promotions> {
        let Some(before) = self.last.take() else {
            *self = Ages { last: Some(reading), merged: Vec::new() };
            return None;
        };
        if reading.last() < before.last() || reading.first() < before.first() {
            *self = Ages { last: Some(reading), merged: Vec::new() };
            return None;
        }
        // For each age: bounds for the memory that was unused since these moments.
        let moments = AGES.map(|age| (before.at() - age, before.at() - age - age / SLACK));
        let earlier =
            moments.map(|(moment, late)| Bounds { least: self.least(&before, moment), most: self.most(&before, late) });
        self.merge(&before, &reading);
        let promotions = self.promotions(&before, &reading, moments.into_iter().zip(earlier));
        self.last = Some(reading);
        promotions
    }

    /// The promotions between two readings. `earlier`: for each age, the moments since when that
    /// memory was unused, and its bounds at the reading before.
    fn promotions(
        &self,
        before: &Reading,
        reading: &Reading,
        earlier: impl Iterator<Item = ((Monotonic, Monotonic), Bounds)>,
    ) -> Option<Promotions> {
        // Across a border, promotions are known exactly: all that left the older side.
        let crossed = |(of, after): (&Generation, Bytes)| Some((of.born, before.older_than(of.number)? - after));
        let crossed = || reading.borders().filter_map(crossed);
        crossed().next()?;
        let over = reading.at().since(before.at());
        let mut promotions = Promotions { over, bounds: [Bounds::default(); AGES.len()] };
        for (bounds, ((moment, late), earlier)) in promotions.bounds.iter_mut().zip(earlier) {
            let older = crossed().filter(|(born, _)| *born <= moment).map(|(_, promoted)| promoted);
            let younger = crossed().filter(|(born, _)| *born >= late).map(|(_, promoted)| promoted);
            let (still_least, still_most) = (self.least(reading, late), self.most(reading, moment));
            bounds.least = older.chain([earlier.least - still_most]).max().unwrap_or_default();
            bounds.most = younger.chain([earlier.most - still_least]).min().unwrap_or_default();
        }
        promotions.make_monotonic();
        Some(promotions)
    }

    /// Remembers the generations of `before` that `reading` does not have any more.
    fn merge(&mut self, before: &Reading, reading: &Reading) {
        let last = reading.last();
        let is_merged = |of: &Generation| reading.older_than(of.number).is_none() && of.number <= last;
        let exact =
            |(of, older): (&Generation, Bytes)| Merged { born: of.born, unused: Bounds { least: older, most: older } };
        self.merged.extend(before.borders().filter(|(of, _)| is_merged(of)).map(exact));
        // The oldest border that is left: everything merged was older than it.
        let border = reading.borders().next();
        let most = border.map_or_else(|| reading.memory(), |(_, older)| older);
        let left = border.and_then(|(of, older)| Some(before.older_than(of.number)? - older));
        for merged in &mut self.merged {
            merged.unused.most = merged.unused.most.min(most);
            merged.unused.least = left.map_or(Bytes::ZERO, |left| merged.unused.least - left).min(merged.unused.most);
        }
        while self.merged.len() > MERGED {
            self.thin_out(reading.at());
        }
    }

    /// Forgets the border whose neighbours are closest to each other, for their age. The bounds for
    /// the times between those are wider then.
    fn thin_out(&mut self, now: Monotonic) {
        let born = |index: usize| self.merged[index].born;
        let gap = |index: usize| born(index + 1).since(born(index - 1)).as_nanos();
        let age = |index: usize| now.since(born(index)).as_nanos();
        let narrowest = (1..self.merged.len() - 1).min_by(|&a, &b| (gap(a) * age(b)).cmp(&(gap(b) * age(a))));
        self.merged.remove(narrowest.unwrap_or_default());
    }

    /// Forgets what is not needed for times up to this long.
    pub fn keep(&mut self, time: Duration) {
        let Some(last) = &self.last else { return };
        let moment = last.at() - time - time / SLACK;
        let oldest_left = last.borders().next().map(|(of, _)| of.born);
        let needed = |next: Option<Monotonic>| next.is_none_or(|next| next > moment);
        let next = |index: usize| self.merged.get(index + 1).map(|next| next.born).or(oldest_left);
        let forgotten = (0..self.merged.len()).find(|&index| needed(next(index))).unwrap_or(self.merged.len());
        self.merged.drain(..forgotten);
    }

    /// All memory at the last reading.
    pub fn memory(&self) -> Bytes {
        self.last.as_ref().map_or(Bytes::ZERO, Reading::memory)
    }

    /// When the last aging was; `None`: there is no reading.
    pub fn at(&self) -> Option<Monotonic> {
        self.last.as_ref().map(Reading::at)
    }

    /// Returns the memory that was unused for this time at the last aging. The most is for a time
    /// that is longer by a 32nd.
    pub fn idle(&self, time: Duration) -> Bounds {
        let Some(last) = &self.last else { return Bounds::default() };
        let most = self.most(last, last.at() - time - time / SLACK);
        Bounds { least: self.least(last, last.at() - time).min(most), most }
    }

    /// Memory unused since a moment was older than each generation born after it. So the smallest
    /// such amount is the most.
    fn most(&self, last: &Reading, moment: Monotonic) -> Bytes {
        let known = last.borders().filter(|(of, _)| of.born >= moment).map(|(_, older)| older);
        let merged = self.merged.iter().filter(|merged| merged.born >= moment).map(|merged| merged.unused.most);
        known.chain(merged).chain([last.memory()]).min().unwrap_or_default()
    }

    /// The amount that was certainly unused since a moment.
    fn least(&self, last: &Reading, moment: Monotonic) -> Bytes {
        let known = last.borders().filter(|(of, _)| of.born <= moment).map(|(_, older)| older);
        let merged = self.merged.iter().filter(|merged| merged.born <= moment).map(|merged| merged.unused.least);
        known.chain(merged).max().unwrap_or_default()
    }
}
