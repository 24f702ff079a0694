//! `/proc/buddyinfo`, and free page reporting.

use omr_kernel::buddyinfo::{self, FreeBlocks};
use omr_kernel::page_reporting::{is_reported, read_order, read_reported};
use omr_kernel::zoneinfo::{Zone, ZoneId, ZoneKind};
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::Pages;
use proptest::prelude::*;

use crate::open;

/// Flags of a free block that was reported, of one that was not, and of a page in use.
const REPORTED: u64 = 1 << 10 | 1 << 3;
const FREE: u64 = 1 << 10;
const USED: u64 = 1 << 5 | 1 << 3;

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let kernel = open(&root);
        let blocks = buddyinfo::read(&kernel, &mut Vec::new()).expect("buddyinfo");
        let lines = captured(release, "proc/buddyinfo").lines();
        for (blocks, line) in blocks.iter().zip(lines) {
            let numbers: Vec<u64> =
                line.split_whitespace().skip(4).map(|number| number.parse().expect("one")).collect();
            assert_eq!((blocks.zone.node, blocks.orders.len()), (0, 11));
            assert_eq!(blocks.orders, numbers);
        }
        assert_eq!(blocks.iter().map(|blocks| blocks.zone.kind).collect::<Vec<_>>(), [ZoneKind::Dma, ZoneKind::Dma32]);
        let order = captured(release, "sys/module/page_reporting/parameters/page_reporting_order");
        assert_eq!((order, read_order(&kernel).expect("readable")), (order, None), "no balloon was there");
    }
}

#[test]
fn blocks_of_an_order_and_larger_ones_are_added_up() {
    let zone = ZoneId { node: 0, kind: ZoneKind::Normal };
    let blocks = FreeBlocks { zone, orders: vec![7, 0, 3, 2] };
    assert_eq!((blocks.from(2), blocks.pages_from(2)), (5, Pages(3 * 4 + 2 * 8)));
    assert_eq!((blocks.from(0), blocks.pages_from(0)), (12, Pages(7 + 28)));
    assert_eq!((blocks.from(9), blocks.pages_from(9)), (0, Pages(0)));
}

#[test]
fn lines_in_another_form_are_passed_over() {
    let text =
        b"Node 0, zone   Normal  1  2\nNode 0, zone\nNode x, zone Normal 1\nnothing\nNode 1, zone Movable 3 -4\n";
    let [only] = buddyinfo::parse(text).try_into().expect("one line is whole");
    assert_eq!(only, FreeBlocks { zone: ZoneId { node: 0, kind: ZoneKind::Normal }, orders: vec![1, 2] });
}

#[test]
fn minus_one_and_what_the_allocator_does_not_have_are_no_orders() {
    let texts = [("9", Some(9)), ("10", Some(10)), ("0", Some(0)), ("11", None), ("-1", None), ("4294967295", None)];
    for (text, want) in texts.into_iter().chain([("", None)]) {
        let root = FakeRoot::new()
            .sys("module/page_reporting/parameters/page_reporting_order", format!("{text}\n"))
            .proc("buddyinfo", captured(Release::V6_1, "proc/buddyinfo"));
        assert_eq!(read_order(&open(&root)).expect("readable"), want, "{text:?}");
    }
    assert_eq!(read_order(&open(&FakeRoot::new())).expect("a kernel without is no error"), None);
}

#[test]
fn marks_are_counted_where_a_block_can_begin() {
    let mut flags = vec![USED; 64];
    // One mark before the zone, one in the middle of a block, and three that count.
    for pfn in [0, 9, 16, 24, 40] {
        flags[pfn] = REPORTED;
    }
    (flags[32], flags[48]) = (FREE, USED);
    let bytes: Vec<u8> = flags.iter().flat_map(|flags| flags.to_ne_bytes()).collect();
    let root = FakeRoot::new().proc("kpageflags", bytes);
    let zone = Zone { start_pfn: 3, spanned: Pages(1000), ..Zone::default() };
    assert_eq!(read_reported(&open(&root), &zone, 3).expect("readable"), Some(3));
    assert_eq!(read_reported(&open(&FakeRoot::new()), &zone, 3).expect("a kernel without is no error"), None);
}

#[test]
fn small_zones_are_not_reported() {
    let zone = Zone { free: Pages(40_000), low: Pages(800), ..Zone::default() };
    assert!(is_reported(&zone, 9));
    assert!(!is_reported(&zone, 11));
    assert!(!is_reported(&Zone { free: Pages(3_000), ..zone }, 9));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(noise: Vec<u8>, at in 0usize..400) {
        buddyinfo::parse(&noise);
        let mut text = captured(Release::V6_12, "proc/buddyinfo").as_bytes().to_vec();
        let at = at.min(text.len());
        text.splice(at..at, noise);
        for blocks in buddyinfo::parse(&text) {
            let _ = (blocks.from(3), blocks.pages_from(3));
        }
    }

    /// Nor does a zone beyond the end of memory, or an absurd order.
    #[test]
    fn no_zone_makes_it_panic(start_pfn: u64, spanned: u64, free: u64, order in 0u32..70, flags: Vec<u8>) {
        let zone = Zone { start_pfn, spanned: Pages(spanned), free: Pages(free), ..Zone::default() };
        let root = FakeRoot::new().proc("kpageflags", flags);
        let _ = (is_reported(&zone, order), read_reported(&open(&root), &zone, order));
    }
}
