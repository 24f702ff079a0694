//! How large a hibernation image would be, and what of it could leave memory before: the sums that
//! the kernel does itself when it hibernates (kernel/power/snapshot.c of 6.12), done ahead of time.
//!
//! The kernel saves every page frame in use: clean page cache, clean swap cache and the pools of zram
//! and zswap as well. Where those are no more than it may save at once, it only copies them; where they
//! are more, it first reclaims the whole machine in one task, and that is what takes a minute.

use omr_units::{Bytes, PageSize, Pages};
use serde::{Deserialize, Serialize};

/// `PAGES_FOR_IO`: kept free for writing the image.
const PAGES_FOR_IO: Pages = Pages(1024);
/// `UNC_PAGES`: the image is compressed in units of so many pages.
const UNIT: u64 = 32;
/// And a unit that does not compress at all takes so many (`CMP_PAGES`).
const WORST_UNIT: u64 = 35;
/// What could leave is little where it is no more than this part of what must stay.
const LITTLE: u64 = 2;

/// A zone of the machine's memory, as `/proc/zoneinfo` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Zone {
    pub free: Pages,
    pub high: Pages,
    pub spanned: Pages,
    pub present: Pages,
    pub managed: Pages,
    /// The largest `lowmem_reserve`.
    pub protection: Pages,
    /// Free, but in a CPU's own list.
    pub per_cpu: Pages,
}

/// What a forecast is made from. All of it, or no forecast: a part that is unknown is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs<'a> {
    /// All zones.
    pub zones: &'a [Zone],
    /// Size of a page.
    pub page: PageSize,
    /// `/sys/power/image_size`.
    pub image_size: Bytes,
    /// `/sys/power/reserved_size`.
    pub reserved_size: Bytes,
    /// Anonymous and shared memory on the kernel's lists, swap cache included.
    pub anon: Bytes,
    /// Of it, what swap has a copy of.
    pub swap_cache: Bytes,
    /// Page cache on the kernel's lists.
    pub file: Bytes,
    /// Of it, what its file does not have yet.
    pub dirty: Bytes,
    /// Slab that can be freed.
    pub slab: Bytes,
    /// The pools of all zram devices.
    pub zram: Bytes,
    /// The pool of zswap.
    pub zswap: Bytes,
}

/// An image as it would be now. Sizes are before compression: how well memory compresses is known
/// only when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// What the image would hold, at most.
    pub image: Bytes,
    /// In use now, as the kernel counts it when it begins to hibernate.
    pub in_use: Bytes,
    /// Up to this much in use the kernel copies at once; above, it reclaims the whole machine first.
    pub fast: Bytes,
    /// The largest image it can make at all: about half of the memory.
    pub largest: Bytes,
    /// What must be in the image: the kernel's own memory, and what is locked.
    pub must_stay: Bytes,
    /// What could leave.
    pub could_leave: Leaving,
    /// Free pages in the lists of CPUs: in use while the kernel plans, and given back before it copies.
    /// Nothing gives them back earlier: 39 MiB after a preparation were as many 13 s later, and after a
    /// write to `compact_memory`.
    pub per_cpu: Bytes,
    /// Of what must stay, the pools of zram: swapped-out memory that is in the image all the same. What could leave
    /// because zram is switched off meanwhile is not in it.
    pub zram: Bytes,
    /// Of what must stay, the pool of zswap.
    pub zswap: Bytes,
}

/// What could leave memory, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// To swap: anonymous and shared memory.
    pub anon: Bytes,
    /// At once: swap has a copy already.
    pub swap_cache: Bytes,
    /// At once: page cache as it is in its file.
    pub clean_file: Bytes,
    /// Once written out: page cache.
    pub dirty_file: Bytes,
    /// At once, as far as nobody holds it: slab.
    pub slab: Bytes,
    /// By way of memory, to the swap of the image: what zram holds, where that is switched off meanwhile, as it takes
    /// memory now.
    pub zram: Bytes,
}

impl Leaving {
    /// What needs no swap.
    pub fn without_swap(&self) -> Bytes {
        self.swap_cache + self.clean_file + self.dirty_file + self.slab
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        self.anon + self.zram + self.without_swap()
    }
}

/// The forecast for a machine as it is now.
pub fn forecast(inputs: &Inputs) -> Forecast {
    let page = inputs.page;
    let sum = |field: fn(&Zone) -> Pages| inputs.zones.iter().map(field).fold(Pages(0), |a, b| a + b).bytes(page);
    let free = sum(|zone| zone.free);
    // Frames that the allocator does not have, the kernel's code among them, are saved as well.
    let in_use = sum(|zone| zone.present) - free;
    let per_cpu = sum(|zone| zone.per_cpu);
    let reserve = sum(|zone| Pages((zone.protection + zone.high).0.min(zone.managed.0)));
    let metadata: Bytes = inputs.zones.iter().map(|zone| metadata(zone, page)).sum();
    let usable = in_use + free - reserve - metadata - PAGES_FOR_IO.bytes(page);
    let largest = Bytes(usable.0 / 2) - inputs.reserved_size - inputs.reserved_size;
    let fast = inputs.image_size.min(largest);

    let swap_cache = inputs.swap_cache.min(inputs.anon);
    let dirty = inputs.dirty.min(inputs.file);
    let could_leave = Leaving {
        anon: inputs.anon - swap_cache,
        swap_cache,
        clean_file: inputs.file - dirty,
        dirty_file: dirty,
        slab: inputs.slab,
        zram: Bytes::ZERO,
    };
    Forecast {
        image: Bytes::ZERO,
        in_use,
        fast,
        largest,
        must_stay: in_use - could_leave.total() - per_cpu,
        could_leave,
        per_cpu,
        zram: inputs.zram,
        zswap: inputs.zswap,
    }
    .with_image()
}

/// `snapshot_additional_pages()`: two bitmaps with a bit for each frame, and what holds them together.
fn metadata(zone: &Zone, page: PageSize) -> Bytes {
    if zone.present.0 == 0 {
        return Bytes::ZERO;
    }
    let page_bytes = page.bytes().0;
    let mut nodes = zone.spanned.0.div_ceil(page_bytes * 8);
    // A node is three words; nodes are kept in pages whose first word links them.
    let mut pages = nodes.saturating_add(nodes.saturating_mul(24).div_ceil(page_bytes - 8));
    while nodes > 1 {
        nodes = nodes.div_ceil(page_bytes / 8);
        pages = pages.saturating_add(nodes);
    }
    Pages(pages.saturating_mul(2)).bytes(page)
}

impl Forecast {
    fn with_image(self) -> Self {
        let all = self.in_use - self.per_cpu;
        let least = self.in_use - self.could_leave.total();
        let image = if self.is_fast() { all } else { self.fast.max(least).min(self.largest).min(all) };
        Forecast { image, ..self }
    }

    /// The same where zram is switched off before, and so much of its pools can leave.
    pub fn without_zram(self, leaves: Bytes) -> Self {
        let leaves = leaves.min(self.zram).min(self.must_stay);
        let could_leave = Leaving { zram: leaves, ..self.could_leave };
        Forecast { must_stay: self.must_stay - leaves, zram: self.zram - leaves, could_leave, ..self }.with_image()
    }

    /// Whether the kernel would only copy.
    pub fn is_fast(&self) -> bool {
        self.in_use <= self.fast
    }

    /// An `image_size` above which the kernel only copies, where as things are it would look for memory all over the machine,
    /// and what it could still find is little. `None`: it copies as it is; or it cannot, since in use is more than fits in an
    /// image, or in `room` of swap where nothing compresses; or what it could take is worth it.
    ///
    /// To get below `image_size` the kernel allocates all memory that is free and reclaims in one task, over and over down to
    /// the last page (`hibernate_preallocate_memory`): 5 s for 10 MiB in a guest of 2 GiB.
    pub fn worth_copying(&self, room: Bytes) -> Option<Bytes> {
        let is_worth_it = !self.is_fast() && self.could_leave.total() <= Bytes(self.must_stay.0 / LITTLE);
        // Whoever is yet to get ready for sleep allocates a little.
        let size = self.in_use + Bytes(self.in_use.0 / 8);
        let copied = Forecast { fast: size, ..*self }.with_image();
        (is_worth_it && size <= self.largest && copied.most_written() <= room).then_some(size)
    }

    /// What the image takes of swap, at most: compressed in units of 32 pages, each of which takes 35
    /// where nothing compresses, and a page of map for each 511.
    pub fn most_written(&self) -> Bytes {
        let units = Bytes(self.image.0 / UNIT * WORST_UNIT + WORST_UNIT);
        units + Bytes(units.0 / 511)
    }

    /// What must still leave memory so that the kernel only copies and the image is at most `target`.
    pub fn above(&self, target: Bytes) -> Bytes {
        (self.in_use - self.fast).max(self.in_use - self.per_cpu - target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u32 = 4096;

    fn page() -> PageSize {
        PageSize::new(PAGE).expect("a power of two")
    }

    fn mib(n: u64) -> Pages {
        Pages(n * 256)
    }

    /// A machine of 2 GiB whose kernel has 80 MiB, of them 16 not the allocator's.
    fn zones(free: u64, per_cpu: u64) -> [Zone; 2] {
        [
            Zone {
                spanned: Pages(4095),
                present: Pages(3998),
                managed: Pages(3840),
                free: Pages(3840),
                ..Zone::default()
            },
            Zone {
                spanned: mib(2032),
                present: mib(2032),
                managed: mib(2016),
                free: mib(free),
                per_cpu: mib(per_cpu),
                high: Pages(4224),
                protection: Pages(0),
            },
        ]
    }

    fn inputs(zones: &[Zone]) -> Inputs<'_> {
        Inputs {
            zones,
            page: page(),
            image_size: Bytes::mib(806),
            reserved_size: Bytes::mib(1),
            anon: Bytes::mib(100),
            swap_cache: Bytes::mib(10),
            file: Bytes::mib(50),
            dirty: Bytes::mib(5),
            slab: Bytes::mib(8),
            zram: Bytes::ZERO,
            zswap: Bytes::ZERO,
        }
    }

    #[test]
    fn a_machine_that_has_little_in_use_is_copied_as_it_is() {
        let zones = zones(1700, 4);
        let forecast = forecast(&inputs(&zones));
        assert!(forecast.is_fast());
        assert_eq!(forecast.in_use, Bytes::mib(332) + Pages(158).bytes(page()));
        assert_eq!(forecast.image, forecast.in_use - Bytes::mib(4));
        assert_eq!(forecast.could_leave.total(), Bytes::mib(158));
        assert_eq!(forecast.must_stay, forecast.image - Bytes::mib(158));
        assert_eq!(forecast.fast, Bytes::mib(806));
        assert_eq!(forecast.above(forecast.fast), Bytes::ZERO);
        assert_eq!(forecast.above(Bytes::mib(200)), forecast.image - Bytes::mib(200));
    }

    #[test]
    fn a_full_machine_is_cut_down_to_image_size_and_no_further() {
        let zones = zones(300, 4);
        let full = Inputs { anon: Bytes::mib(1500), ..inputs(&zones) };
        let full = forecast(&full);
        assert!(!full.is_fast());
        assert_eq!(full.image, Bytes::mib(806));
        assert_eq!(full.above(full.fast), full.in_use - full.fast);
        // image_size = 0: what cannot leave is saved.
        let least = forecast(&Inputs { anon: Bytes::mib(1500), image_size: Bytes::ZERO, ..inputs(&zones) });
        assert_eq!((least.fast, least.image), (Bytes::ZERO, least.must_stay + Bytes::mib(4)));
    }

    #[test]
    fn what_zram_holds_can_leave_where_it_is_switched_off() {
        let zones = zones(300, 4);
        let inputs = Inputs { anon: Bytes::mib(900), image_size: Bytes::ZERO, zram: Bytes::mib(200), ..inputs(&zones) };
        let on = forecast(&inputs);
        let off = on.without_zram(Bytes::mib(150));
        assert_eq!((on.could_leave.zram, on.zram), (Bytes::ZERO, Bytes::mib(200)));
        assert_eq!((off.could_leave.zram, off.zram), (Bytes::mib(150), Bytes::mib(50)));
        assert_eq!(off.must_stay, on.must_stay - Bytes::mib(150));
        assert_eq!(off.image, on.image - Bytes::mib(150));
        assert_eq!((off.in_use, off.could_leave.without_swap()), (on.in_use, on.could_leave.without_swap()));
        // No more than there is.
        assert_eq!(on.without_zram(Bytes::MAX), on.without_zram(Bytes::mib(200)));
    }

    #[test]
    fn no_image_is_larger_than_half_of_what_is_usable() {
        let zones = zones(300, 0);
        let all = forecast(&Inputs { image_size: Bytes::MAX, ..inputs(&zones) });
        let memory = Bytes::mib(2032) + Pages(3998).bytes(page());
        assert!(all.largest < Bytes(memory.0 / 2) && all.largest > Bytes(memory.0 / 2) - Bytes::mib(16), "{all:?}");
        assert_eq!(all.fast, all.largest);
    }

    #[test]
    fn what_is_left_is_copied_where_the_kernel_could_take_little_of_it() {
        // A guest of 2 GiB with image_size 0, once all that may leave has left.
        let zones = zones(1800, 4);
        let least = Inputs {
            anon: Bytes::mib(11),
            swap_cache: Bytes::ZERO,
            file: Bytes::mib(20),
            image_size: Bytes::ZERO,
            ..inputs(&zones)
        };
        let left = forecast(&least);
        let size = left.worth_copying(Bytes::MAX).expect("little can leave");
        assert!(size > left.in_use && size <= left.largest);
        // What swap has no room for is to become as small as the kernel can make it.
        assert_eq!(left.worth_copying(left.in_use), None);
        // With it the kernel only copies.
        assert!(forecast(&Inputs { image_size: size, ..least }).is_fast());
        assert_eq!(forecast(&Inputs { image_size: size, ..least }).worth_copying(Bytes::MAX), None);
        // More than half as much as must stay: image_size says that it is to leave.
        assert_eq!(forecast(&Inputs { anon: Bytes::mib(150), ..least }).worth_copying(Bytes::MAX), None);
    }

    #[test]
    fn what_fits_in_no_image_is_not_copied() {
        let full = forecast(&Inputs { image_size: Bytes::ZERO, anon: Bytes::ZERO, ..inputs(&zones(700, 4)) });
        assert!(full.could_leave.total() < full.must_stay && full.in_use > full.largest);
        assert_eq!(full.worth_copying(Bytes::MAX), None);
    }

    #[test]
    fn written_at_most_is_three_pages_more_in_each_32() {
        let zones = zones(1700, 0);
        let forecast = Forecast { image: Pages(3200).bytes(page()), ..forecast(&inputs(&zones)) };
        let units = Pages(3500).bytes(page());
        assert!(forecast.most_written() >= units && forecast.most_written() < units + Bytes::mib(1));
    }

    prop_compose! {
        fn any_zone()(n in proptest::array::uniform7(any::<u64>())) -> Zone {
            Zone {
                free: Pages(n[0]), high: Pages(n[1]), spanned: Pages(n[2]), present: Pages(n[3]),
                managed: Pages(n[4]), protection: Pages(n[5]), per_cpu: Pages(n[6]),
            }
        }
    }

    proptest! {
        /// Whatever a kernel may print: no panic, and no part larger than the whole.
        #[test]
        fn parts_are_never_more_than_what_is_in_use(
            zones in proptest::collection::vec(any_zone(), 0..6),
            n in proptest::array::uniform7(any::<u64>()),
        ) {
            let forecast = forecast(&Inputs {
                zones: &zones, page: page(), image_size: Bytes(n[0]), reserved_size: Bytes(n[1]), anon: Bytes(n[2]),
                swap_cache: Bytes(n[3]), file: Bytes(n[4]), dirty: Bytes(n[5]), slab: Bytes(n[6]),
                zram: Bytes::ZERO, zswap: Bytes::ZERO,
            });
            prop_assert!(forecast.image <= forecast.in_use);
            prop_assert!(forecast.must_stay <= forecast.in_use);
            prop_assert!(forecast.fast <= forecast.largest);
            let _ = (forecast.most_written(), forecast.above(Bytes(n[0])));
        }

        /// What leaves makes the image smaller or leaves it as it is, never larger.
        #[test]
        fn an_image_never_grows_by_what_leaves(free in 0u64..1900, more in 0u64..100) {
            let (before, after) = (zones(free, 0), zones(free + more, 0));
            let anon = Bytes::mib(1900 - free);
            let before = forecast(&Inputs { anon, ..inputs(&before) });
            let after = forecast(&Inputs { anon: anon - Bytes::mib(more), ..inputs(&after) });
            prop_assert!(after.image <= before.image);
            prop_assert!(after.above(Bytes::mib(500)) <= before.above(Bytes::mib(500)));
        }
    }
}
