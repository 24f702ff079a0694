//! The swap floor, what a hibernation image needs, and swap that is missing.

use omr_policy::{Class, Decision, End, Goal, Reason, Swap, judge};
use omr_units::{Budget, Bytes, GroupId};

use crate::desk::{Desk, disk, group};

#[test]
fn swap_is_never_filled_beyond_its_floor() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    let mut job = |free| {
        desk.machine.swap = disk(1000, free);
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0])
    };
    for (free, amount) in [(1000, 900), (500, 400), (102, 2)] {
        let (job, _) = job(free).expect("worth a sweep");
        assert_eq!((job.amount, job.swap_floor), (Bytes::mib(amount), Bytes::mib(100)));
    }
    for free in [101, 100, 50, 0] {
        let why = job(free).expect_err("no room");
        assert_eq!(why, Reason::SwapFloor { free: Bytes::mib(free), floor: Bytes::mib(100) });
    }
}

#[test]
fn a_group_that_is_too_small_in_any_case_does_not_wait_for_swap() {
    let judged = |anon, file| {
        let mut desk = Desk::new([group(1, anon, file)]);
        desk.machine.swap = disk(1000, 50);
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job.amount)
    };
    // With room in swap, 3 MiB could leave.
    assert!(matches!(judged(3, 0), Err(Reason::SwapFloor { .. })), "{:?}", judged(3, 0));
    assert_eq!(judged(1, 0), Err(Reason::TooSmall { gain: Bytes::ZERO, smallest: Bytes::mib(2) }));
    assert_eq!(judged(1, 3), Ok(Bytes::mib(3)));
}

fn for_hibernation(image: Option<u64>, target: u64) -> Desk {
    let mut desk = Desk::new([group(1, 300, 0), group(2, 100, 0)]);
    desk.config.goal = Goal::Hibernate;
    desk.config.hibernate.image = Bytes::mib(target);
    desk.machine.image = image.map(Bytes::mib);
    desk
}

#[test]
fn for_hibernation_no_more_is_swept_than_the_image_is_too_large() {
    let mut desk = for_hibernation(Some(450), 200);
    let job = (1..=60).find_map(|_| match desk.tick() {
        Decision::Sweep { id, job, .. } => Some((id, job.amount)),
        _ => None,
    });
    // 16 MiB more than that, so that the next page does not make it too large again.
    assert_eq!(job, Some((GroupId(1), Bytes::mib(266))));
    desk.finish(End::Complete, 34);
    desk.machine.image = Some(Bytes::mib(184));
    let small = Reason::SmallImage { image: Bytes::mib(184), target: Bytes::mib(200) };
    assert_eq!(desk.no_sweep(10), small);
    // And what was spared is swept once the image has grown, though the group has not.
    desk.machine.image = Some(Bytes::mib(201));
    desk.group(2).class = Class::Foreground;
    assert_eq!(desk.until_sweep(5).1, GroupId(1));
}

#[test]
fn for_hibernation_without_a_target_the_size_of_the_image_is_no_limit() {
    let mut desk = for_hibernation(Some(100), 0);
    let amount = (1..=60).find_map(|_| match desk.tick() {
        Decision::Sweep { job, .. } => Some(job.amount),
        _ => None,
    });
    assert_eq!(amount, Some(Bytes::mib(300)));
}

#[test]
fn for_hibernation_without_a_target_all_is_swept() {
    let mut desk = for_hibernation(Some(450), 0);
    assert_eq!(desk.until_sweep(60), (30, GroupId(1)));
    desk.finish(End::Complete, 0);
    assert_eq!(desk.until_sweep(5).1, GroupId(2));
}

#[test]
fn where_the_machine_cannot_hibernate_that_goal_sweeps_nothing() {
    for target in [0, 200] {
        assert_eq!(for_hibernation(None, target).no_sweep(60), Reason::CannotHibernate);
    }
    // The control: the usual goal does not ask.
    let mut desk = for_hibernation(None, 0);
    desk.config.goal = Goal::Free;
    assert_eq!(desk.until_sweep(60).0, 30);
}

#[test]
fn swap_for_a_hibernation_image_stays_free() {
    // Free swap, the part of it outside the swap of the image, image, expected gain and floor.
    // Memory that is swapped out is no longer in the image.
    for (free, free_outside_image, image, expected) in [
        (1000, 0, 800, Some((600, 200))),
        (1000, 0, 1200, Some((400, 600))),
        (1000, 0, 1590, Some((10, 990))),
        (1000, 0, 1600, None),
        (700, 0, 1400, None),
        (1000, 200, 800, Some((600, 400))),
        (1000, 300, 1200, Some((100, 900))),
        (1000, 300, 1300, None),
    ] {
        let mut desk = Desk::new([group(1, 600, 0)]);
        desk.machine.swap =
            disk(1000, free).map(|swap| Swap { free_outside_image: Bytes::mib(free_outside_image), ..swap });
        desk.machine.image = Some(Bytes::mib(image));
        let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        let job = judged.as_ref().ok().map(|(job, _)| (job.amount, job.swap_floor));
        assert_eq!(job, expected.map(|(gain, floor)| (Bytes::mib(gain), Bytes::mib(floor))), "{free} {image}");
    }
}

#[test]
fn swap_that_is_not_known_is_not_used() {
    let mut desk = Desk::new([group(1, 1000, 50)]);
    desk.machine.swap = None;
    let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("page cache");
    assert_eq!((job.amount, job.swap_floor, job.swap_writes), (Bytes::mib(50), Bytes::MAX, Bytes::ZERO));
    // A kernel that cannot be told would swap.
    desk.machine.file_only = false;
    let why = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    assert!(matches!(why, Err(Reason::Unknown { .. })), "{why:?}");
    // With no swap it cannot.
    desk.machine.swap = disk(0, 0);
    assert!(judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).is_ok());
}

#[test]
fn a_sweep_ends_when_swap_devices_come_or_go() {
    let zram = |total| disk(total, total).map(|swap| Swap { on_disk: false, ..swap });
    for (before, after, ends) in [
        // swapoff of all swap, of one of two devices, and of zram before a disk.
        (disk(4000, 4000), disk(0, 0).map(|swap| Swap { on_disk: false, ..swap }), true),
        (disk(4000, 4000), disk(2000, 2000), true),
        (zram(4000), disk(4000, 4000), true),
        // It cannot be read any more.
        (disk(4000, 4000), None, true),
        (zram(4000), None, true),
        // swapon: the limits of the job are too low, and it begins anew.
        (zram(0), zram(4000), true),
        // The controls: it is only used.
        (disk(4000, 4000), disk(4000, 3000), false),
        (zram(4000), zram(4000), false),
    ] {
        let mut desk = Desk::new([group(1, 1000, 500)]);
        desk.machine.swap = before;
        desk.until_sweep(60);
        assert!(matches!(desk.tick(), Decision::Continue { .. }), "{before:?}");
        desk.machine.swap = after;
        match desk.tick() {
            Decision::Stop { reason } => {
                assert!(ends && reason == Reason::SwapChanged, "{before:?} {after:?}: {reason}");
            }
            Decision::Continue { .. } => assert!(!ends, "{before:?} {after:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_group_cut_short_by_the_swap_floor_is_continued_when_there_is_swap_again() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.machine.swap = disk(1000, 300);
    desk.until_sweep(60);
    desk.finish(End::SwapFloor, 800);
    desk.machine.swap = disk(1000, 100);
    desk.no_sweep(1000);
    // A few pages are not worth it.
    desk.machine.swap = disk(1000, 104);
    desk.no_sweep(1000);
    desk.machine.swap = disk(1000, 200);
    desk.until_sweep(1);
}

#[test]
fn a_group_cut_short_by_the_write_budget_is_continued_the_next_day() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::mib(300), hours: 24 });
    desk.machine.swap = disk(4000, 4000);
    desk.until_sweep(60);
    desk.finish_written(End::WriteBudget, 700, Bytes::mib(300));
    desk.no_sweep(1000);
    desk.hour += 23;
    desk.no_sweep(100);
    desk.hour += 1;
    desk.until_sweep(1);
}

#[test]
fn a_group_swept_without_swap_is_swept_again_when_swap_is_added() {
    let mut desk = Desk::new([group(1, 1000, 100)]);
    desk.machine.swap = disk(0, 0);
    desk.until_sweep(60);
    desk.finish(End::Futile, 1000);
    desk.no_sweep(1000);
    desk.machine.swap = disk(4000, 4000);
    desk.until_sweep(1);
}
