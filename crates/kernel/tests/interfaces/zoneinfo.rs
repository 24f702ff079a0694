use omr_kernel::meminfo::Meminfo;
use omr_kernel::zoneinfo::{self, Zone, ZoneId, ZoneKind};
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::Pages;
use proptest::prelude::*;

use crate::open;

/// The sum of a field over all zones.
fn sum(zones: &[Zone], field: fn(&Zone) -> Pages) -> Pages {
    zones.iter().map(field).fold(Pages(0), |sum, pages| sum + pages)
}

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let kernel = open(&root);
        let zones = zoneinfo::read(&kernel, &mut Vec::new()).expect("zoneinfo");
        let heads = captured(release, "proc/zoneinfo").lines().filter(|line| line.starts_with("Node ")).count();
        assert_eq!(zones.len(), heads);
        let memory = Meminfo::read(&kernel, &mut Vec::new()).expect("meminfo");
        // The managed pages of all zones are MemTotal. The free pages are MemFree, except for
        // changes between the two reads.
        assert_eq!(Some(sum(&zones, |zone| zone.managed).bytes(kernel.page())), memory.mem_total);
        let (free, other) = (sum(&zones, |zone| zone.free).bytes(kernel.page()), memory.mem_free.expect("MemFree"));
        assert!(free.0.abs_diff(other.0) < 2 << 20, "{free} {other}");
        assert!(zones.iter().all(|zone| zone.free <= zone.managed && zone.managed <= zone.present));
        assert!(zones.iter().all(|zone| zone.present <= zone.spanned));
        assert!(zones.iter().all(|zone| zone.low <= zone.high && zone.id.kind != ZoneKind::Other));
        assert_eq!(zones[0].start_pfn, 1, "the first page frame is the firmware's");
        assert!(sum(&zones, |zone| zone.per_cpu) > Pages(0) && sum(&zones, |zone| zone.high) > Pages(0));
    }
}

#[test]
fn the_lists_of_all_cpus_are_added_up_and_their_marks_are_no_watermarks() {
    let text = "Node 1, zone   Normal\n  pages free     10\n        boost    0\n        low      27\n        high     32\n        \
                spanned  4096\n        present  3998\n        managed  3840\n        protection: (0, 433, 77)\n  \
                pagesets\n    cpu: 0\n              count:    5\n              high:     9\n    cpu: 1\n              \
                count:    7\n  node_unreclaimable:  0\n  start_pfn:           4096\n";
    let want = Zone {
        id: ZoneId { node: 1, kind: ZoneKind::Normal },
        free: Pages(10),
        low: Pages(27),
        high: Pages(32),
        spanned: Pages(4096),
        present: Pages(3998),
        managed: Pages(3840),
        protection: Pages(433),
        per_cpu: Pages(12),
        start_pfn: 4096,
    };
    assert_eq!(zoneinfo::parse(text.as_bytes()), [want]);
}

proptest! {
    #[test]
    fn parsing_never_panics(noise: Vec<u8>, at in 0usize..20_000) {
        zoneinfo::parse(&noise);
        let mut text = captured(Release::V6_12, "proc/zoneinfo").as_bytes().to_vec();
        let at = at.min(text.len());
        text.splice(at..at, noise);
        zoneinfo::parse(&text);
    }
}
