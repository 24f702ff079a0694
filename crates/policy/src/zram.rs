//! Whether zram swap is switched off while memory leaves for a hibernation image, so that it leaves for a disk.
//!
//! zram is memory, so what it holds is in the image, and it usually comes before any disk. Which swap a page goes to is
//! the kernel's choice by priority alone, and a priority changes only when the device is switched off and on again:
//! off, all that it holds comes back to memory first. That is worth it where there is memory to come back to, and the
//! disk takes more in the time there is than compression would save.

use omr_units::Bytes;

/// What comes back needs this part more: others allocate meanwhile, and zram's pool shrinks more slowly than it empties.
const SPARE: u64 = 8;
/// Compression of what is not in zram yet, where that holds nothing to tell it by: three to one.
const RATIO: u64 = 3;

/// What is known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// What zram holds, before compression.
    pub held: Bytes,
    /// The memory that takes.
    pub pool: Bytes,
    /// Of what it holds, what may leave again: that of groups from which something may be taken.
    pub movable: Bytes,
    /// What such groups could lose to swap now.
    pub anon: Bytes,
    /// And what they could lose without swap: page cache.
    pub cache: Bytes,
    /// What is to leave; `None`: as much as will go.
    pub missing: Option<Bytes>,
    /// Free memory that can be had before kswapd has to do anything.
    pub free: Bytes,
    /// Memory that must find room on the image's swap if zram is off, on it or in the image.
    pub in_use: Bytes,
    /// Free on that swap.
    pub room: Bytes,
    /// What that swap takes in the time there is; `None`: there is no end to it.
    pub writable: Option<Bytes>,
}

/// Why zram stays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What is to leave is less than what would come back, and can leave with zram on as well.
    Enough,
    /// What it holds does not fit in memory.
    Memory {
        /// It, and something to spare.
        needed: Bytes,
        /// What is free.
        free: Bytes,
    },
    /// The swap of the image is too small for both.
    Room {
        /// What would have to fit.
        needed: Bytes,
        /// What is free.
        free: Bytes,
    },
    /// The disk does not take enough in the time there is.
    Time,
    /// It is of groups from which nothing may be taken: it would come back, and stay.
    Others(Bytes),
}

impl Known {
    /// Why zram is to stay on; `None`: it is better off.
    pub fn keep(&self) -> Option<Keep> {
        let movable = self.movable.min(self.held);
        let compressed = Bytes(match self.held.0 {
            0 => self.anon.0 / RATIO,
            held => u64::try_from(u128::from(self.anon.0) * u128::from(self.pool.0) / u128::from(held))
                .unwrap_or(u64::MAX)
                .min(self.anon.0),
        });
        if let Some(missing) = self.missing
            && missing <= self.held
            && missing <= self.cache + (self.anon - compressed)
        {
            return Some(Keep::Enough);
        }
        let needed = self.held + Bytes(self.held.0 / SPARE);
        if needed > self.free {
            return Some(Keep::Memory { needed, free: self.free });
        }
        if self.in_use > self.room {
            return Some(Keep::Room { needed: self.in_use, free: self.room });
        }
        // What is in memory in the end: with zram on, its pool.
        let on = self.pool + compressed;
        let stays = self.held - movable;
        if stays > on {
            return Some(Keep::Others(stays));
        }
        let moves = movable + self.anon;
        let written = self.writable.map_or(moves, |writable| writable.min(moves));
        (stays + (moves - written) > on).then_some(Keep::Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two thirds of 600 MiB in zram saved, as much again in memory, a disk with room and no hurry.
    fn known() -> Known {
        Known {
            held: Bytes::mib(600),
            pool: Bytes::mib(200),
            movable: Bytes::mib(600),
            anon: Bytes::mib(300),
            cache: Bytes::mib(50),
            missing: None,
            free: Bytes::mib(700),
            in_use: Bytes::mib(1000),
            room: Bytes::mib(2000),
            writable: None,
        }
    }

    #[test]
    fn what_fits_in_memory_and_then_on_the_disk_leaves_for_the_disk() {
        assert_eq!(known().keep(), None);
        assert_eq!(Known { missing: Some(Bytes::mib(700)), ..known() }.keep(), None);
        // Nothing in it yet: what leaves would go there.
        let empty = Known { held: Bytes::ZERO, pool: Bytes::ZERO, movable: Bytes::ZERO, ..known() };
        assert_eq!(empty.keep(), None);
        assert_eq!(Known { missing: Some(Bytes::mib(10)), ..empty }.keep(), None);
    }

    #[test]
    fn no_more_comes_back_than_has_to_leave() {
        // Of 300 MiB 100 stay, compressed; the page cache goes as a whole.
        for (missing, keep) in [(0, Some(Keep::Enough)), (250, Some(Keep::Enough)), (251, None)] {
            assert_eq!(Known { missing: Some(Bytes::mib(missing)), ..known() }.keep(), keep, "{missing}");
        }
        let empty = Known { held: Bytes::ZERO, pool: Bytes::ZERO, movable: Bytes::ZERO, ..known() };
        assert_eq!(Known { missing: Some(Bytes::ZERO), ..empty }.keep(), Some(Keep::Enough));
    }

    #[test]
    fn what_does_not_fit_stays_compressed() {
        let keep = Keep::Memory { needed: Bytes::mib(675), free: Bytes::mib(674) };
        assert_eq!(Known { free: Bytes::mib(674), ..known() }.keep(), Some(keep));
        assert_eq!(Known { free: Bytes::mib(675), ..known() }.keep(), None);
        let keep = Keep::Room { needed: Bytes::mib(1000), free: Bytes::mib(999) };
        assert_eq!(Known { room: Bytes::mib(999), ..known() }.keep(), Some(keep));
    }

    #[test]
    fn a_slow_disk_and_memory_of_others_are_no_gain() {
        // With it on 200 + 100 MiB are left of 900, so the disk has to take 600.
        assert_eq!(Known { writable: Some(Bytes::mib(599)), ..known() }.keep(), Some(Keep::Time));
        assert_eq!(Known { writable: Some(Bytes::mib(600)), ..known() }.keep(), None);
        assert_eq!(Known { movable: Bytes::mib(299), ..known() }.keep(), Some(Keep::Others(Bytes::mib(301))));
        assert_eq!(Known { movable: Bytes::mib(300), ..known() }.keep(), None);
    }

    proptest! {
        /// Whatever is read: no panic, and never off where it does not fit.
        #[test]
        fn off_only_where_it_fits(n in proptest::array::uniform9(any::<u64>()), timed: bool, sized: bool) {
            let known = Known {
                held: Bytes(n[0]), pool: Bytes(n[1]), movable: Bytes(n[2]), anon: Bytes(n[3]), cache: Bytes(n[4]),
                missing: sized.then_some(Bytes(n[5])), free: Bytes(n[6]), in_use: Bytes(n[7]), room: Bytes(n[8]),
                writable: timed.then_some(Bytes(n[5])),
            };
            if known.keep().is_none() {
                prop_assert!(known.held <= known.free && known.in_use <= known.room);
            }
        }

        /// More memory, more room, more time and less of others never keep it on.
        #[test]
        fn more_of_what_it_takes_never_keeps_it_on(n in proptest::array::uniform9(0u64..1 << 30), more in 0u64..1 << 30) {
            let known = Known {
                held: Bytes(n[0]), pool: Bytes(n[1].min(n[0])), movable: Bytes(n[2]), anon: Bytes(n[3]), cache: Bytes(n[4]),
                missing: None, free: Bytes(n[6]), in_use: Bytes(n[7]), room: Bytes(n[8]), writable: Some(Bytes(n[5])),
            };
            let better = Known {
                movable: known.movable + Bytes(more), free: known.free + Bytes(more), room: known.room + Bytes(more),
                writable: Some(Bytes(n[5] + more)), ..known
            };
            prop_assert!(known.keep().is_some() || better.keep().is_none());
        }
    }
}
