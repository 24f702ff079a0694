//! Decides if zram swap is switched off during a preparation for hibernation, so that memory goes
//! to a disk.
//!
//! zram is memory, so its pages are part of the image. It usually comes before any disk: the kernel
//! chooses the swap by priority alone, and a priority changes only when the device is switched off
//! and on again. Switching it off brings all its pages back to memory first. That pays where they
//! fit into memory, and where the disk can take more in the available time than compression would
//! save. [`Inputs`] decides from the sizes; `omr prepare hibernate` switches the devices.

use omr_units::Bytes;

/// Pages that come back need an eighth more memory: other programs allocate meanwhile, and the pool
/// of zram shrinks more slowly than it empties.
const SPARE: u64 = 8;
/// The assumed compression, three to one, where zram is empty and says nothing about it.
const RATIO: u64 = 3;

/// The sizes that are known before zram is switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The pages in zram, before compression.
    pub stored: Bytes,
    /// The memory that zram uses for them.
    pub pool: Bytes,
    /// The pages in zram that may leave again, as their groups may be reclaimed.
    pub movable: Bytes,
    /// The memory in such groups that could leave to swap now.
    pub anon: Bytes,
    /// The memory in such groups that could leave without swap: page cache.
    pub cache: Bytes,
    /// The memory that must leave; `None`: as much as possible.
    pub missing: Option<Bytes>,
    /// Free memory that can be allocated before kswapd begins to work.
    pub free: Bytes,
    /// Memory that must fit on the swap of the image if zram is off, as pages or in the image.
    pub in_use: Bytes,
    /// Free space of that swap.
    pub room: Bytes,
    /// The amount that this swap can write in the available time; `None`: the time is unlimited.
    pub writable: Option<Bytes>,
}

/// Why zram stays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaysOn {
    /// Less memory must leave than would come back, and it can leave with zram on.
    Enough,
    /// The pages in zram do not fit into memory.
    Memory {
        /// The memory that they need, with some to spare.
        needed: Bytes,
        /// The memory that is free.
        free: Bytes,
    },
    /// The swap of the image is too small for both.
    Room {
        /// The memory that must fit.
        needed: Bytes,
        /// The space that is free.
        free: Bytes,
    },
    /// The disk cannot take enough in the available time.
    Time,
    /// This much belongs to groups that must not be reclaimed: it would come back and stay.
    Others(Bytes),
}

impl Inputs {
    /// Why zram should stay on; `None`: it should be switched off.
    pub fn stays_on(&self) -> Option<StaysOn> {
        let movable = self.movable.min(self.stored);
        let compressed = Bytes(match self.stored.0 {
            0 => self.anon.0 / RATIO,
            stored => u64::try_from(u128::from(self.anon.0) * u128::from(self.pool.0) / u128::from(stored))
                .unwrap_or(u64::MAX)
                .min(self.anon.0),
        });
        if let Some(missing) = self.missing
            && missing <= self.stored
            && missing <= self.cache + (self.anon - compressed)
        {
            return Some(StaysOn::Enough);
        }
        let needed = self.stored + Bytes(self.stored.0 / SPARE);
        if needed > self.free {
            return Some(StaysOn::Memory { needed, free: self.free });
        }
        if self.in_use > self.room {
            return Some(StaysOn::Room { needed: self.in_use, free: self.room });
        }
        // What stays in memory in the end; with zram on, that is its pool.
        let on = self.pool + compressed;
        let stays = self.stored - movable;
        if stays > on {
            return Some(StaysOn::Others(stays));
        }
        let moves = movable + self.anon;
        let written = self.writable.map_or(moves, |writable| writable.min(moves));
        (stays + (moves - written) > on).then_some(StaysOn::Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 600 MiB in zram compressed to a third, half as much in memory, a disk with room, unlimited
    /// time.
    fn known() -> Inputs {
        Inputs {
            stored: Bytes::mib(600),
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
    fn zram_is_switched_off_where_its_pages_fit_into_memory_and_on_the_disk() {
        assert_eq!(known().stays_on(), None);
        assert_eq!(Inputs { missing: Some(Bytes::mib(700)), ..known() }.stays_on(), None);
        // zram is empty: memory that leaves would go there.
        let empty = Inputs { stored: Bytes::ZERO, pool: Bytes::ZERO, movable: Bytes::ZERO, ..known() };
        assert_eq!(empty.stays_on(), None);
        assert_eq!(Inputs { missing: Some(Bytes::mib(10)), ..empty }.stays_on(), None);
    }

    #[test]
    fn zram_stays_on_where_more_would_come_back_than_must_leave() {
        // 100 of 300 MiB stay, compressed; the page cache leaves as a whole.
        for (missing, keep) in [(0, Some(StaysOn::Enough)), (250, Some(StaysOn::Enough)), (251, None)] {
            assert_eq!(Inputs { missing: Some(Bytes::mib(missing)), ..known() }.stays_on(), keep, "{missing}");
        }
        let empty = Inputs { stored: Bytes::ZERO, pool: Bytes::ZERO, movable: Bytes::ZERO, ..known() };
        assert_eq!(Inputs { missing: Some(Bytes::ZERO), ..empty }.stays_on(), Some(StaysOn::Enough));
    }

    #[test]
    fn zram_stays_on_where_its_pages_do_not_fit() {
        let keep = StaysOn::Memory { needed: Bytes::mib(675), free: Bytes::mib(674) };
        assert_eq!(Inputs { free: Bytes::mib(674), ..known() }.stays_on(), Some(keep));
        assert_eq!(Inputs { free: Bytes::mib(675), ..known() }.stays_on(), None);
        let keep = StaysOn::Room { needed: Bytes::mib(1000), free: Bytes::mib(999) };
        assert_eq!(Inputs { room: Bytes::mib(999), ..known() }.stays_on(), Some(keep));
    }

    #[test]
    fn zram_stays_on_with_a_slow_disk_or_pages_of_other_groups() {
        // With zram on, 200 + 100 of 900 MiB stay in memory, so the disk must take 600.
        assert_eq!(Inputs { writable: Some(Bytes::mib(599)), ..known() }.stays_on(), Some(StaysOn::Time));
        assert_eq!(Inputs { writable: Some(Bytes::mib(600)), ..known() }.stays_on(), None);
        assert_eq!(Inputs { movable: Bytes::mib(299), ..known() }.stays_on(), Some(StaysOn::Others(Bytes::mib(301))));
        assert_eq!(Inputs { movable: Bytes::mib(300), ..known() }.stays_on(), None);
    }

    #[test]
    fn memory_is_taken_to_compress_to_a_third_where_zram_is_empty() {
        // With zram on, 100 of 300 MiB would stay, so the disk must take 200.
        let empty = Inputs { stored: Bytes::ZERO, pool: Bytes::ZERO, movable: Bytes::ZERO, ..known() };
        assert_eq!(Inputs { writable: Some(Bytes::mib(199)), ..empty }.stays_on(), Some(StaysOn::Time));
        assert_eq!(Inputs { writable: Some(Bytes::mib(200)), ..empty }.stays_on(), None);
    }

    proptest! {
        /// No input causes a panic, and zram is never switched off where its pages do not fit.
        #[test]
        fn zram_is_off_only_where_its_pages_fit(n in proptest::array::uniform9(any::<u64>()), timed: bool, sized: bool) {
            let inputs = Inputs {
                stored: Bytes(n[0]), pool: Bytes(n[1]), movable: Bytes(n[2]), anon: Bytes(n[3]), cache: Bytes(n[4]),
                missing: sized.then_some(Bytes(n[5])), free: Bytes(n[6]), in_use: Bytes(n[7]), room: Bytes(n[8]),
                writable: timed.then_some(Bytes(n[5])),
            };
            if inputs.stays_on().is_none() {
                prop_assert!(inputs.stored <= inputs.free && inputs.in_use <= inputs.room);
            }
        }

        /// More memory, more room, more time and fewer pages of other groups never keep zram on.
        #[test]
        fn more_room_never_keeps_zram_on(n in proptest::array::uniform9(0u64..1 << 30), more in 0u64..1 << 30) {
            let inputs = Inputs {
                stored: Bytes(n[0]), pool: Bytes(n[1].min(n[0])), movable: Bytes(n[2]), anon: Bytes(n[3]), cache: Bytes(n[4]),
                missing: None, free: Bytes(n[6]), in_use: Bytes(n[7]), room: Bytes(n[8]), writable: Some(Bytes(n[5])),
            };
            let better = Inputs {
                movable: inputs.movable + Bytes(more), free: inputs.free + Bytes(more), room: inputs.room + Bytes(more),
                writable: Some(Bytes(n[5] + more)), ..inputs
            };
            prop_assert!(inputs.stays_on().is_some() || better.stays_on().is_none());
        }
    }
}
