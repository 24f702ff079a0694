//! Forecasts the size of a hibernation image, and the memory that could leave before it is made.
//!
//! The kernel computes the same sums when it hibernates (kernel/power/snapshot.c of 6.12). It saves
//! every page frame in use, including clean page cache, clean swap cache and the pools of zram and
//! zswap. If those frames are no more than it may save at once, it only copies them. If they are
//! more, it first reclaims the whole machine in one task, which takes up to a minute. [`forecast`]
//! works from the zones and counters of the kernel; `omr prepare hibernate` and `omr hibernate` act
//! on it.

use omr_units::{Bytes, PageSize, Pages};
use serde::{Deserialize, Serialize};

/// `PAGES_FOR_IO`: pages that the kernel keeps free to write the image.
const PAGES_FOR_IO: Pages = Pages(1024);
/// `UNC_PAGES`: the image is compressed in units of this many pages.
const UNIT: u64 = 32;
/// `CMP_PAGES`: a unit that does not compress at all takes this many pages.
const WORST_UNIT: u64 = 35;
/// Memory that could leave is little if it is at most a half of the memory that must stay.
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
    /// The largest `lowmem_reserve` (shown as `protection`).
    pub protection: Pages,
    /// Free pages in the lists of CPUs.
    pub per_cpu: Pages,
}

/// The inputs of a forecast. All of them must be known: an unknown part is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs<'a> {
    /// All zones.
    pub zones: &'a [Zone],
    /// The size of a page.
    pub page: PageSize,
    /// `/sys/power/image_size`.
    pub image_size: Bytes,
    /// `/sys/power/reserved_size`.
    pub reserved_size: Bytes,
    /// Anonymous and shared memory on the kernel's lists, swap cache included.
    pub anon: Bytes,
    /// The part of it of which swap has a copy.
    pub swap_cache: Bytes,
    /// Page cache on the kernel's lists.
    pub file: Bytes,
    /// The part of it that is not written to its file yet.
    pub dirty: Bytes,
    /// Reclaimable slab.
    pub slab: Bytes,
    /// The pools of all zram devices.
    pub zram: Bytes,
    /// The pool of zswap.
    pub zswap: Bytes,
}

/// A hibernation image as it would be now. Sizes are before compression, as nobody knows beforehand
/// how well memory compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// The size of the image, at most.
    pub image: Bytes,
    /// Memory in use now, as the kernel counts it when it begins to hibernate.
    pub in_use: Bytes,
    /// If at most this much is in use, the kernel only copies; if more is, it first reclaims the
    /// whole machine.
    pub fast: Bytes,
    /// The largest image that the kernel can make: about half of the memory.
    pub largest: Bytes,
    /// Memory that must be in the image: that of the kernel itself, and locked memory.
    pub must_stay: Bytes,
    /// Memory that could leave.
    pub could_leave: Leaving,
    /// Free pages in the lists of CPUs. The kernel counts them as in use while it plans, and gives
    /// them back before it copies. Nothing gives them back earlier: 39 MiB after a preparation were
    /// still 39 MiB 13 s later and after a write to `compact_memory`.
    pub per_cpu: Bytes,
    /// The part of `must_stay` in the pools of zram: swapped-out memory that is in the image all
    /// the same. The memory that could leave because zram is switched off is not in it.
    pub zram: Bytes,
    /// The part of `must_stay` in the pool of zswap.
    pub zswap: Bytes,
}

/// Memory that could leave, by the way it would go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Anonymous and shared memory: to swap.
    pub anon: Bytes,
    /// Swap cache: at once, as swap has a copy already.
    pub swap_cache: Bytes,
    /// Clean page cache: at once, as the file has a copy.
    pub clean_file: Bytes,
    /// Dirty page cache: as soon as it is written out.
    pub dirty_file: Bytes,
    /// Slab: at once, if it is not in use.
    pub slab: Bytes,
    /// Pages in zram, by the memory that they take now: to the swap of the image, by way of memory,
    /// where zram is switched off meanwhile.
    pub zram: Bytes,
}

impl Leaving {
    /// The part that needs no swap.
    pub fn without_swap(&self) -> Bytes {
        self.swap_cache + self.clean_file + self.dirty_file + self.slab
    }

    /// All memory that could leave.
    pub fn total(&self) -> Bytes {
        self.anon + self.zram + self.without_swap()
    }
}

/// The forecast for the machine as it is now.
pub fn forecast(inputs: &Inputs) -> Forecast {
    let page = inputs.page;
    let sum = |field: fn(&Zone) -> Pages| inputs.zones.iter().map(field).fold(Pages(0), |a, b| a + b).bytes(page);
    let free = sum(|zone| zone.free);
    // Frames that the allocator does not manage, such as the code of the kernel, are saved as well.
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

/// `snapshot_additional_pages()`: two bitmaps with a bit for each frame, and the tree that holds
/// them.
fn metadata(zone: &Zone, page: PageSize) -> Bytes {
    if zone.present.0 == 0 {
        return Bytes::ZERO;
    }
    let page_bytes = page.bytes().0;
    let mut nodes = zone.spanned.0.div_ceil(page_bytes * 8);
    // A node takes three words. Nodes are kept in pages whose first word is a link.
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

    /// The forecast for zram switched off before, so that `leaves` bytes of its pools can leave.
    pub fn without_zram(self, leaves: Bytes) -> Self {
        let leaves = leaves.min(self.zram).min(self.must_stay);
        let could_leave = Leaving { zram: leaves, ..self.could_leave };
        Forecast { must_stay: self.must_stay - leaves, zram: self.zram - leaves, could_leave, ..self }.with_image()
    }

    /// Returns true if the kernel would only copy, without reclaiming first.
    pub fn is_fast(&self) -> bool {
        self.in_use <= self.fast
    }

    /// An `image_size` with which the kernel only copies, for a machine that it would otherwise
    /// reclaim for little gain. `None`: the kernel only copies anyway; or it cannot, as more is in
    /// use than fits into an image, or into `room` bytes of swap without compression; or reclaiming
    /// is worth it.
    ///
    /// To get below `image_size`, the kernel allocates all free memory and reclaims in one task,
    /// again and again down to the last page (`hibernate_preallocate_memory`). That took 5 s for 10
    /// MiB in a guest of 2 GiB.
    pub fn worth_copying(&self, room: Bytes) -> Option<Bytes> {
        let is_worth_it = !self.is_fast() && self.could_leave.total() <= Bytes(self.must_stay.0 / LITTLE);
        // Programs that are about to get ready for sleep allocate a little.
        let size = self.in_use + Bytes(self.in_use.0 / 8);
        let copied = Forecast { fast: size, ..*self }.with_image();
        (is_worth_it && size <= self.largest && copied.most_written() <= room).then_some(size)
    }

    /// The swap that the image takes, at most. Units of 32 pages take 35 pages each where nothing
    /// compresses, and each 511 pages need one page of map.
    pub fn most_written(&self) -> Bytes {
        let units = Bytes(self.image.0 / UNIT * WORST_UNIT + WORST_UNIT);
        units + Bytes(units.0 / 511)
    }

    /// Returns the memory that must still leave, so that the kernel only copies and the image is at
    /// most `target`.
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

    /// A machine of 2 GiB whose kernel uses 80 MiB; the allocator does not manage 16 of them.
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
    fn a_machine_with_little_in_use_is_only_copied() {
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
        // image_size = 0: only memory that cannot leave is saved.
        let least = forecast(&Inputs { anon: Bytes::mib(1500), image_size: Bytes::ZERO, ..inputs(&zones) });
        assert_eq!((least.fast, least.image), (Bytes::ZERO, least.must_stay + Bytes::mib(4)));
    }

    #[test]
    fn pages_in_zram_can_leave_where_it_is_switched_off() {
        let zones = zones(300, 4);
        let inputs = Inputs { anon: Bytes::mib(900), image_size: Bytes::ZERO, zram: Bytes::mib(200), ..inputs(&zones) };
        let on = forecast(&inputs);
        let off = on.without_zram(Bytes::mib(150));
        assert_eq!((on.could_leave.zram, on.zram), (Bytes::ZERO, Bytes::mib(200)));
        assert_eq!((off.could_leave.zram, off.zram), (Bytes::mib(150), Bytes::mib(50)));
        assert_eq!(off.must_stay, on.must_stay - Bytes::mib(150));
        assert_eq!(off.image, on.image - Bytes::mib(150));
        assert_eq!((off.in_use, off.could_leave.without_swap()), (on.in_use, on.could_leave.without_swap()));
        // No more leaves than there is.
        assert_eq!(on.without_zram(Bytes::MAX), on.without_zram(Bytes::mib(200)));
    }

    #[test]
    fn no_image_is_larger_than_half_of_the_usable_memory() {
        let zones = zones(300, 0);
        let all = forecast(&Inputs { image_size: Bytes::MAX, ..inputs(&zones) });
        let memory = Bytes::mib(2032) + Pages(3998).bytes(page());
        assert!(all.largest < Bytes(memory.0 / 2) && all.largest > Bytes(memory.0 / 2) - Bytes::mib(16), "{all:?}");
        assert_eq!(all.fast, all.largest);
    }

    #[test]
    fn the_rest_is_copied_where_the_kernel_could_reclaim_little_of_it() {
        // A guest of 2 GiB with image_size 0, after everything that may leave has left.
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
        // An image that does not fit into swap must become as small as the kernel can make it.
        assert_eq!(left.worth_copying(left.in_use), None);
        // With this size the kernel only copies.
        assert!(forecast(&Inputs { image_size: size, ..least }).is_fast());
        assert_eq!(forecast(&Inputs { image_size: size, ..least }).worth_copying(Bytes::MAX), None);
        // More than half of `must_stay` could leave: reclaiming is worth it.
        assert_eq!(forecast(&Inputs { anon: Bytes::mib(150), ..least }).worth_copying(Bytes::MAX), None);
    }

    #[test]
    fn a_machine_that_fits_into_no_image_is_not_copied() {
        let full = forecast(&Inputs { image_size: Bytes::ZERO, anon: Bytes::ZERO, ..inputs(&zones(700, 4)) });
        assert!(full.could_leave.total() < full.must_stay && full.in_use > full.largest);
        assert_eq!(full.worth_copying(Bytes::MAX), None);
    }

    #[test]
    fn at_most_three_more_pages_are_written_for_each_32() {
        let zones = zones(1700, 0);
        let forecast = Forecast { image: Pages(3200).bytes(page()), ..forecast(&inputs(&zones)) };
        let units = Pages(3500).bytes(page());
        assert!(forecast.most_written() >= units && forecast.most_written() < units + Bytes::mib(1));
    }

    /// The largest image of a machine of one zone of which nothing is in use, in pages.
    fn largest(zone: Zone, reserved: u64) -> u64 {
        let reserved_size = Pages(reserved).bytes(page());
        let zones = [Zone { free: zone.present, ..zone }];
        forecast(&Inputs { image_size: Bytes::MAX, reserved_size, ..inputs(&zones) }).largest.0 / u64::from(PAGE)
    }

    fn zone(pages: u64) -> Zone {
        Zone { spanned: Pages(pages), present: Pages(pages), managed: Pages(pages), ..Zone::default() }
    }

    /// The kernel's sums by hand: two trees of bitmaps with 32,768 frames in a leaf and 512 nodes in
    /// a node, each node with 24 bytes in pages of 4,088.
    #[test]
    fn half_of_the_memory_is_left_for_an_image_after_what_the_kernel_needs_for_making_it() {
        for (pages, metadata) in [
            // 16 GiB: 128 leaves, a page of nodes, a root.
            (4 << 20, 2 * (128 + 1 + 1)),
            // 171 nodes are 4,104 bytes, which one page does not hold.
            (171 << 15, 2 * (171 + 2 + 1)),
            // 1 TiB: 8,192 leaves, 49 pages of nodes, 16 inner nodes, a root.
            (1 << 28, 2 * (8192 + 49 + 16 + 1)),
        ] {
            assert_eq!(largest(zone(pages), 0), (pages - metadata - 1024) / 2, "{pages} pages");
        }
    }

    #[test]
    fn reserves_leave_less_for_an_image() {
        // 31 leaves, a page of nodes, a root, twice.
        let usable = 1_000_000 - 66 - 1024;
        let with = |high, protection, reserved| {
            largest(Zone { high: Pages(high), protection: Pages(protection), ..zone(1_000_000) }, reserved)
        };
        assert_eq!(with(5000, 3000, 0), (usable - 8000) / 2);
        // The kernel keeps reserved_size free twice: once for devices before, and once after.
        assert_eq!(with(5000, 3000, 100), (usable - 8000) / 2 - 200);
        // No more is reserved than the allocator has.
        assert_eq!(with(900_000, 900_000, 0), 0);
        let small = Zone { managed: Pages(10_000), high: Pages(900_000), ..zone(1_000_000) };
        assert_eq!(largest(small, 0), (usable - 10_000) / 2);
    }

    #[test]
    fn a_zone_without_memory_takes_nothing() {
        let of = |zones: &[Zone]| forecast(&Inputs { image_size: Bytes::MAX, ..inputs(zones) }).largest;
        let hole = Zone { spanned: Pages(1 << 20), ..Zone::default() };
        assert_eq!(of(&[zone(1 << 20), hole]), of(&[zone(1 << 20)]));
    }

    #[test]
    fn the_rest_is_not_copied_where_the_kernel_could_reclaim_more_than_half_of_what_must_stay() {
        let zones = zones(1800, 4);
        // Of 232 MiB in use, 98 MiB could leave: three quarters of the rest.
        let some = Inputs {
            anon: Bytes::mib(70),
            swap_cache: Bytes::ZERO,
            file: Bytes::mib(20),
            image_size: Bytes::ZERO,
            ..inputs(&zones)
        };
        let left = forecast(&some);
        let (leaves, stays) = (left.could_leave.total(), left.must_stay);
        assert!(leaves > Bytes(stays.0 / 2) && leaves < stays, "{left:?}");
        assert_eq!(left.worth_copying(Bytes::MAX), None);
        assert!(forecast(&Inputs { anon: Bytes::mib(20), ..some }).worth_copying(Bytes::MAX).is_some());
    }

    #[test]
    fn a_page_of_map_is_written_for_each_511_pages() {
        let zones = zones(1700, 0);
        let forecast = Forecast { image: Bytes::mib(1024), ..forecast(&inputs(&zones)) };
        let units = 1024.0 * 35.0 / 32.0;
        let map = forecast.most_written().0 as f64 / f64::from(1 << 20) - units;
        assert!(map > units / 512.0 && map < units / 510.0, "{map} of {units} MiB");
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
        /// Nothing that a kernel may print causes a panic or a part larger than the whole.
        #[test]
        fn parts_are_never_larger_than_the_memory_in_use(
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

        /// Memory that leaves never makes the image larger.
        #[test]
        fn an_image_never_grows_when_memory_leaves(free in 0u64..1900, more in 0u64..100) {
            let (before, after) = (zones(free, 0), zones(free + more, 0));
            let anon = Bytes::mib(1900 - free);
            let before = forecast(&Inputs { anon, ..inputs(&before) });
            let after = forecast(&Inputs { anon: anon - Bytes::mib(more), ..inputs(&after) });
            prop_assert!(after.image <= before.image);
            prop_assert!(after.above(Bytes::mib(500)) <= before.above(Bytes::mib(500)));
        }
    }
}
