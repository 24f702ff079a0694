//! Groups of which only cold memory is reclaimed.

use omr_policy::{Class, ColdAmount, ColdOnly, End, Reason, Swap, judge};
use omr_units::{Amount, Budget, Bytes, GroupId};

use crate::desk::{Desk, disk, group, seconds};

fn cold_only(cold: ColdAmount) -> Option<ColdOnly> {
    Some(ColdOnly { min_age: seconds(120), cold, learned: false, threshold: None })
}

fn known(mib: u64) -> ColdAmount {
    ColdAmount::Known { bytes: Bytes::mib(mib) }
}

/// The group under a rule: 100 MiB of anonymous memory, 50 MiB of page cache.
fn desk_cold_only(cold: ColdAmount) -> Desk {
    let mut desk = Desk::new([group(1, 100, 50)]);
    desk.group(1).cold_only = cold_only(cold);
    desk
}

#[test]
fn a_group_under_a_rule_loses_only_cold_memory_that_goes_to_swap() {
    let judged = |desk: &Desk| {
        let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        judged.map(|(job, _)| job.amount.0 >> 20).map_err(|why| why.to_string())
    };
    // The control: without the rule, all of it.
    assert_eq!(judged(&Desk::new([group(1, 100, 50)])), Ok(150));
    assert_eq!(judged(&desk_cold_only(known(30))), Ok(30));
    assert_eq!(judged(&desk_cold_only(known(500))), Ok(100));
    assert_eq!(judged(&desk_cold_only(known(2))), Ok(2));
    for (cold, why) in [
        (known(1), "1.00 MiB is known to be unused for 2 min, 2.00 MiB is worth a sweep"),
        (ColdAmount::NotYet, "its rule reclaims only memory unused for 2 min, and ages that long are not known yet"),
        (
            ColdAmount::Never { why: "MGLRU off".into() },
            "only its cold memory is reclaimed, and ages are not known here: MGLRU off",
        ),
    ] {
        assert_eq!(judged(&desk_cold_only(cold)), Err(why.into()));
    }
    // The keep rule and the kernel's protection hold for cold memory as well.
    let mut desk = desk_cold_only(known(100));
    desk.group(1).keep = Some(Amount::Bytes(Bytes::mib(140)));
    assert_eq!(judged(&desk), Ok(10));
    desk.group(1).class = Class::Foreground;
    assert_eq!(judged(&desk), Err("class foreground: loses no memory".into()));
    // Page cache is no way out where nothing may be swapped.
    let mut desk = desk_cold_only(known(30));
    desk.machine.swap =
        Some(Swap { total: Bytes::mib(100), free: Bytes::mib(11), on_disk: false, free_outside_image: Bytes::ZERO });
    assert_eq!(judged(&desk), Err("11.0 MiB of swap is free, 10.0 MiB stays free".into()));
    desk.machine.swap =
        Some(Swap { total: Bytes::ZERO, free: Bytes::ZERO, on_disk: false, free_outside_image: Bytes::ZERO });
    assert_eq!(judged(&desk), Err("there is no swap, and hardly any page cache to reclaim".into()));
}

#[test]
fn a_group_under_a_rule_is_swept_again_when_more_is_cold_though_it_has_not_grown() {
    let mut desk = desk_cold_only(known(30));
    desk.until_sweep(60);
    desk.finish(End::NoMoreCold, 120);
    desk.group(1).cold_only = cold_only(known(0));
    assert!(matches!(desk.no_sweep(200), Reason::NothingToGain));
    desk.group(1).cold_only = cold_only(known(20));
    assert_eq!(desk.until_sweep(2).1, GroupId(1));
    // And not at every tick.
    desk.finish(End::NoMoreCold, 100);
    desk.no_sweep(55);
    desk.until_sweep(10);
    // A sweep that ended for lack of ages does not go on at once either.
    desk.finish(End::NotAged, 100);
    desk.no_sweep(55);
    desk.until_sweep(10);
    desk.finish(End::NotSeen, 100);
    desk.no_sweep(500);
}

#[test]
fn little_that_is_cold_after_the_keep_rule_is_worth_no_sweep() {
    let judged = |keep| {
        let mut desk = desk_cold_only(known(100));
        desk.group(1).keep = Some(Amount::Bytes(Bytes::mib(keep)));
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| (job.amount, job.floor))
    };
    assert_eq!(judged(148), Ok((Bytes::mib(2), Bytes::mib(148))));
    assert_eq!(judged(149), Err(Reason::TooSmall { gain: Bytes::mib(1), smallest: Bytes::mib(2) }));
}

#[test]
fn a_group_whose_threshold_is_learned_is_not_said_to_wait_for_a_rule() {
    let mut desk = desk_cold_only(ColdAmount::NotYet);
    let judged = |desk: &Desk| judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|_| ());
    assert_eq!(judged(&desk), Err(Reason::NotAged { needed: seconds(120) }));
    desk.group(1).cold_only.as_mut().expect("a rule").learned = true;
    assert_eq!(judged(&desk), Err(Reason::Learning { threshold: seconds(120) }));
}

#[test]
fn the_swap_of_an_image_needs_room_for_the_rest_after_cold_memory_has_left() {
    // An image of 400 MiB, of which the cold 30 MiB would not be part any more.
    let floor = |cold, budget| {
        let mut desk = desk_cold_only(known(cold));
        desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::mib(budget), hours: 24 });
        desk.machine.swap = disk(1000, 900);
        desk.machine.image = Some(Bytes::mib(400));
        let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
        job.swap_floor
    };
    assert_eq!(floor(30, 1000), Bytes::mib(370));
    assert_eq!(floor(100, 1000), Bytes::mib(300));
    assert_eq!(floor(100, 10), Bytes::mib(390), "10 MiB may be written");
}
