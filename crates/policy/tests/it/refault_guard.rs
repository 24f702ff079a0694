//! The refault guard: groups whose pages come back are not swept.

use std::time::Duration;

use omr_policy::{Decision, End, Mode, Reason, State};
use omr_units::{Bytes, GroupId};

use crate::desk::{Desk, group, quiet, seconds};

/// A machine after the sweep of its one group, of which nothing is left.
fn swept() -> Desk {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk
}

/// Half of the group's memory comes back.
fn come_back(desk: &mut Desk) {
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
}

#[test]
fn a_group_whose_pages_come_back_backs_off_twice_as_long_each_time() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    for length in [600, 1200, 2400, 4800] {
        desk.finish(End::Complete, 0);
        desk.ticks(10);
        come_back(&mut desk);
        assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
        assert_eq!(desk.until_sweep(10_000).0, length);
    }
}

#[test]
fn the_longest_back_off_is_a_day_and_no_configuration_makes_it_overflow() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.config.guard.backoff = seconds(80_000);
    for length in [80_000, 86_400, 86_400] {
        desk.until_sweep(60);
        desk.finish(End::Failed, 100);
        assert!(matches!(desk.tick().reason(), Reason::NothingToGain));
        desk.now = desk.now + seconds(length - 2);
        desk.state.interrupt(desk.now);
        assert!(!desk.state.backing_off(desk.now).is_empty());
        desk.now = desk.now + seconds(1);
        assert!(desk.state.backing_off(desk.now).is_empty());
    }
    desk.config.guard.backoff = Duration::MAX;
    desk.config.guard.backoff_max = Duration::MAX;
    (0..3).for_each(|_| {
        desk.until_sweep(60);
        desk.finish(End::Denied, 100);
        desk.state = State::default();
    });
}

#[test]
fn a_sweep_that_did_no_harm_ends_the_doubling() {
    let mut desk = swept();
    come_back(&mut desk);
    desk.until_sweep(600);
    desk.finish(End::Complete, 0);
    // Ten minutes without harm, then somebody comes back to it.
    desk.ticks(600);
    come_back(&mut desk);
    assert_eq!(desk.until_sweep(10_000).0, 600);
}

#[test]
fn harm_during_a_sweep_long_after_the_last_one_begins_anew() {
    let mut desk = swept();
    come_back(&mut desk);
    desk.until_sweep(600);
    desk.finish(End::Complete, 0);
    desk.ticks(1000);
    desk.hold(1, 100);
    desk.until_sweep(1);
    desk.refault(1, 50);
    assert!(matches!(desk.tick(), Decision::Stop { .. }));
    desk.finish(End::Stopped, 100);
    assert_eq!(desk.until_sweep(10_000).0, 600);
}

#[test]
fn time_in_which_nothing_was_swept_does_not_end_the_doubling() {
    let mut desk = swept();
    come_back(&mut desk);
    desk.machine.load = Some(seconds(2));
    desk.ticks(3000);
    desk.machine = quiet();
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    come_back(&mut desk);
    assert_eq!(desk.until_sweep(10_000).0, 1200);
}

#[test]
fn pages_of_the_same_sweep_that_come_back_later_do_not_double() {
    let mut desk = swept();
    desk.refault(1, 50);
    desk.tick();
    desk.ticks(700);
    desk.refault(1, 50);
    desk.hold(1, 100);
    desk.tick();
    assert_eq!(desk.until_sweep(10_000).0, 600);
}

#[test]
fn a_sweep_whose_pages_come_back_meanwhile_is_stopped() {
    let mut desk = Desk::new([group(1, 300, 0), group(2, 200, 0)]);
    for first in [1, 2] {
        assert_eq!(desk.until_sweep(60).1, GroupId(first));
        desk.tick();
        // The other group suffers as well, and comes first in the list.
        desk.groups.reverse();
        desk.refault(1, 3);
        desk.refault(2, 3);
        assert!(matches!(desk.tick(), Decision::Continue { .. }));
        desk.refault(1, 3);
        desk.refault(2, 3);
        assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Refaults { .. } }), "group {first}");
        desk.finish(End::Stopped, 100);
    }
}

#[test]
fn harm_to_one_group_does_not_stop_the_sweep_of_another() {
    let mut desk = Desk::new([group(1, 300, 0), group(2, 200, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 100);
    assert_eq!(desk.until_sweep(60).1, GroupId(2));
    desk.refault(1, 50);
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
}

#[test]
fn refaults_count_by_the_minute_and_for_an_hour() {
    // MiB in each ten seconds, beginning after this many seconds: 4 MiB a minute are allowed.
    for (mib, after, backs_off) in [(1, 0, true), (0, 0, false), (1, 3500, true), (1, 3600, false)] {
        let mut desk = Desk::new([group(1, 100, 0)]);
        desk.until_sweep(60);
        desk.finish(End::Complete, 0);
        desk.ticks(after + 1);
        for _ in 0..12 {
            desk.refault(1, mib);
            desk.ticks(10);
        }
        assert_eq!(!desk.state.backing_off(desk.now).is_empty(), backs_off, "{mib} MiB after {after} s");
    }
    let mut slowly = Desk::new([group(1, 100, 0)]);
    slowly.until_sweep(60);
    slowly.finish(End::Complete, 0);
    for _ in 0..50 {
        slowly.refault(1, 4);
        slowly.ticks(61);
        assert!(slowly.state.backing_off(slowly.now).is_empty());
    }
}

#[test]
fn a_large_group_may_have_a_share_of_its_memory_back() {
    // MiB that are left after its sweep, and MiB that come back within a minute: 1 % is allowed, and 4 MiB in any case.
    for (on_disk, left, mib, backs_off) in [
        (false, 300, 4, false),
        (false, 300, 5, true),
        (false, 2000, 20, false),
        (false, 2000, 21, true),
        (true, 2000, 5, true),
    ] {
        let mut desk = Desk::new([group(1, 4000, 0)]);
        desk.machine.swap.iter_mut().for_each(|swap| swap.on_disk = on_disk);
        desk.until_sweep(60);
        desk.finish(End::Complete, left);
        desk.tick();
        desk.refault(1, mib);
        desk.tick();
        assert_eq!(!desk.state.backing_off(desk.now).is_empty(), backs_off, "{mib} MiB into {left}");
    }
}

#[test]
fn refaults_during_a_later_sweep_count_as_well() {
    let mut desk = swept();
    desk.ticks(2 * 3600);
    desk.hold(1, 100);
    desk.until_sweep(1);
    desk.tick();
    desk.refault(1, 50);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Refaults { .. } }));
}

#[test]
fn the_end_of_a_sweep_does_not_wipe_out_the_refaults_before_it() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.tick();
    desk.refault(1, 3);
    desk.finish(End::Complete, 0);
    desk.refault(1, 3);
    desk.tick();
    assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
}

#[test]
fn nothing_is_reclaimed_while_swap_is_switched_off() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.tick();
    desk.state.set_swap_off(true);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::SwapOff }));
    desk.finish(End::Stopped, 50);
    desk.no_sweep(600);
    desk.state.set_swap_off(false);
    assert_eq!(desk.until_sweep(60).0, 1);
}

#[test]
fn nothing_is_reclaimed_in_mode_record() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.tick();
    desk.config.mode = Mode::Record;
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Recording }));
    desk.finish(End::Stopped, 50);
    desk.no_sweep(600);
    assert!(matches!(desk.tick(), Decision::Hold { reason: Reason::Recording }));
    desk.config.mode = Mode::Act;
    assert_eq!(desk.until_sweep(60).0, 1);
}

#[test]
fn memory_brought_back_on_purpose_is_no_harm_and_is_not_reclaimed_meanwhile() {
    let brought_back = |excused: u64| {
        let mut desk = Desk::new([group(1, 100, 0)]);
        desk.until_sweep(60);
        desk.tick();
        desk.state.set_warming(true);
        assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Warming }));
        desk.finish(End::Stopped, 50);
        desk.refault(1, 40);
        desk.state.discount_refaults(GroupId(1), Bytes::mib(excused));
        desk.no_sweep(60);
        desk.state.set_warming(false);
        desk
    };
    let mut desk = brought_back(40);
    assert!(desk.state.backing_off(desk.now).is_empty());
    assert_eq!(desk.until_sweep(1).0, 1);
    // Other refaults count.
    for mut desk in [brought_back(0), brought_back(30)] {
        assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
        desk.no_sweep(60);
    }
    // A group that was never swept has no refaults to discount.
    desk.state.discount_refaults(GroupId(2), Bytes::mib(1));
}

#[test]
fn a_refault_counter_that_went_back_is_followed() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.refault(1, 1000);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.group(1).refaults = Some(Bytes::ZERO);
    desk.tick();
    desk.refault(1, 5);
    desk.tick();
    assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
}

#[test]
fn a_group_that_could_not_be_written_to_is_tried_again_after_its_back_off() {
    for end in [End::Denied, End::Unsupported, End::Failed] {
        let mut desk = Desk::new([group(1, 100, 0)]);
        desk.until_sweep(60);
        desk.finish(end, 100);
        assert_eq!(desk.until_sweep(1000).0, 600);
        desk.finish(end, 100);
        assert_eq!(desk.until_sweep(10_000).0, 1200);
    }
}

#[test]
fn what_came_back_since_the_sweep_is_known_for_a_group_that_was_swept() {
    let mut desk = Desk::new([group(1, 100, 0), group(2, 50, 0)]);
    for group in &mut desk.groups {
        group.refaults = Some(Bytes::mib(1000));
    }
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.refault(1, 3);
    let now = |desk: &Desk, index: usize| desk.state.refaults_this_minute(&desk.groups[index]);
    assert_eq!((now(&desk, 0), now(&desk, 1)), (Some(Bytes::mib(3)), None));
    desk.group(1).refaults = None;
    assert_eq!(now(&desk, 0), None);
}
