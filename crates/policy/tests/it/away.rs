//! Younger memory while everybody is away, and groups that memory was given back to.

use std::time::Duration;

use omr_policy::away::age;
use omr_policy::presence::{Facts, Presence, Sessions};
use omr_policy::{ColdAmount, ColdOnly, Decision, End, Goal, Group, Reason, judge};
use omr_units::{Bytes, GroupId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::{Desk, group, seconds};

const MINUTE: u64 = 60;

fn minutes(n: u64) -> Duration {
    seconds(n * MINUTE)
}

/// A group of 1 GiB with this threshold.
fn learned(id: u64, threshold: Duration) -> Group {
    let cold = ColdAmount::Known { bytes: Bytes::ZERO };
    let cold_only = ColdOnly { min_age: threshold, cold, learned: true, threshold: Some(threshold) };
    Group { cold_only: Some(cold_only), ..group(id, 1024, 0) }
}

/// The daemon: each group's age follows the away age, and this much of it is that old.
fn follow(desk: &mut Desk, old: impl Fn(GroupId, Duration) -> u64) {
    let away = desk.state.away_age();
    for group in &mut desk.groups {
        let Some(cold_only) = &mut group.cold_only else { continue };
        cold_only.min_age = cold_only.threshold.map_or(cold_only.min_age, |threshold| age(away, threshold));
        cold_only.cold = ColdAmount::Known { bytes: Bytes::mib(old(group.id, cold_only.min_age)) };
    }
}

/// A machine that lacks memory, whose people were away for ten minutes.
fn deserted(groups: impl Into<Vec<Group>>) -> Desk {
    let mut desk = Desk::new([]);
    desk.config.goal = Goal::Auto;
    desk.machine.gives_back = true;
    desk.ticks(601);
    assert!(matches!(desk.state.presence(), Presence::Away { .. }));
    desk.groups = groups.into();
    desk
}

fn somebody() -> Option<Facts> {
    Some(Facts { local: Sessions { active: 1, idle: Some(Duration::ZERO) }, ..Facts::default() })
}

/// The away ages in minutes, and when they began.
fn descent(desk: &mut Desk, ticks: u64) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for tick in 0..ticks {
        follow(desk, |_, _| 0);
        desk.tick();
        let minutes = desk.state.away_age().map_or(0, |age| age.as_secs() / MINUTE);
        if all.last().is_none_or(|(last, _)| *last != minutes) {
            all.push((minutes, tick));
        }
    }
    all
}

#[test]
fn the_away_age_goes_down_step_by_step_while_nothing_is_old_enough() {
    let mut desk = deserted([learned(1, minutes(15)), learned(2, minutes(60))]);
    // From the longest threshold on, five minutes for each age, and never below two minutes.
    assert_eq!(descent(&mut desk, 7200), [(30, 0), (15, 300), (8, 600), (4, 900), (2, 1140)]);
    // It is gone at once.
    desk.machine.presence = somebody();
    desk.tick();
    assert_eq!(desk.state.away_age(), None);
}

/// A machine that hibernated a day ago, with an image of 1 GiB that should hold 50 MiB.
fn hibernating(groups: impl Into<Vec<Group>>, unseen: u64) -> Desk {
    let mut desk = deserted(groups);
    desk.machine.hibernated = Some(seconds(86_400));
    desk.machine.image = Some(Bytes::mib(1024));
    desk.machine.disk_rate = Some(Bytes::mib(10));
    // More is available than anything else needs.
    let memory = desk.machine.memory.as_mut().expect("memory");
    memory.available = memory.total;
    let idle = Some(seconds(unseen));
    desk.machine.presence = Some(Facts { local: Sessions { active: 1, idle }, ..Facts::default() });
    desk
}

#[test]
fn where_an_image_should_be_small_the_away_age_begins_at_half_of_the_absence() {
    let mut desk = hibernating([learned(1, minutes(480))], 600);
    assert_eq!(descent(&mut desk, 1200), [(4, 0), (2, 240)]);
    // A threshold that is shorter is in force anyway.
    let mut desk = hibernating([learned(1, minutes(4))], 600);
    assert_eq!(descent(&mut desk, 1200), [(2, 0)]);
    // The control: the image is small enough, and half of the memory should be available.
    let mut desk = deserted([learned(1, minutes(480))]);
    desk.machine.hibernated = Some(seconds(86_400));
    assert_eq!(descent(&mut desk, 301), [(240, 0), (120, 300)]);
}

#[test]
fn groups_are_aged_for_the_first_away_age_before_everybody_counts_as_away() {
    let ahead = |unseen: u64, change: fn(&mut Desk)| {
        let mut desk = Desk::new([learned(1, minutes(480))]);
        desk.config.goal = Goal::Auto;
        desk.now = omr_units::Monotonic(0) + seconds(3600);
        desk.machine = hibernating([], unseen).machine;
        // Somebody was seen then.
        desk.machine.presence = somebody();
        desk.tick();
        desk.now = desk.now + seconds(5);
        desk.machine.presence = hibernating([], 0).machine.presence;
        change(&mut desk);
        for _ in 0..unseen {
            let idle = desk.machine.presence.as_mut().map(|facts| &mut facts.local.idle);
            if let Some(Some(idle)) = idle {
                *idle += seconds(1);
            }
            desk.tick();
        }
        (desk.state.age_ahead(), desk.state.away_age())
    };
    assert_eq!(ahead(230, |_| ()), (None, None));
    assert_eq!(ahead(250, |_| ()), (Some(minutes(4)), None), "nothing leaves yet");
    assert_eq!(ahead(590, |_| ()).0, Some(minutes(4)));
    for change in [
        (|desk| desk.machine.hibernated = None) as fn(&mut Desk),
        |desk| desk.machine.gives_back = false,
        |desk| desk.machine.presence = None,
        |desk| desk.machine.presence.as_mut().expect("facts").inhibited = true,
        |desk| desk.config.goal = Goal::Free,
    ] {
        assert_eq!(ahead(590, change), (None, None));
    }
}

#[test]
fn memory_is_given_back_soon_after_boot_and_resume_but_not_while_omr_is_paused() {
    let mut desk = deserted([]);
    let now = desk.now;
    assert_eq!(desk.state.may_give_back(&desk.config, now), Ok(()));
    let soon = omr_units::Monotonic(0) + seconds(1);
    assert_eq!(desk.state.may_give_back(&desk.config, soon), Ok(()), "after boot");
    desk.slept = true;
    desk.tick();
    assert_eq!(desk.state.may_give_back(&desk.config, desk.now), Ok(()), "after resume");
    desk.state.pause(desk.now, None);
    let why = desk.state.may_give_back(&desk.config, desk.now);
    assert_eq!(why, Err(Reason::Paused { left: None }));
}

#[test]
fn there_is_no_away_age_without_a_need_and_a_way_back() {
    let changes: [fn(&mut Desk); 8] = [
        |desk| desk.machine.gives_back = false,
        |desk| desk.machine.memory.as_mut().expect("memory").available = Bytes::mib(8000),
        |desk| desk.machine.memory = None,
        |desk| desk.machine.presence = None,
        |desk| desk.machine.presence = Some(Facts { inhibited: true, ..Facts::default() }),
        // A rule sets the age, or the group was not observed yet.
        |desk| desk.groups[0].cold_only.as_mut().expect("an age").threshold = None,
        |desk| desk.config.goal = Goal::Free,
        |desk| desk.groups.clear(),
    ];
    assert_eq!(descent(&mut deserted([learned(1, minutes(15))]), 1200), [(8, 0), (4, 300), (2, 540)], "the control");
    for change in changes {
        let mut desk = deserted([learned(1, minutes(15))]);
        change(&mut desk);
        assert_eq!(descent(&mut desk, 1200), [(0, 0)]);
    }
    // Younger memory could not leave either: swap is full.
    let mut desk = deserted([learned(1, minutes(15))]);
    desk.machine.swap.as_mut().expect("swap").free = Bytes::mib(100);
    for _ in 0..1200 {
        follow(&mut desk, |_, _| 100);
        desk.tick();
        assert_eq!(desk.state.away_age(), None);
    }
    // Nobody has ever been there.
    let mut server = Desk::new([learned(1, minutes(15))]);
    server.config.goal = Goal::Auto;
    server.machine.gives_back = true;
    server.now = omr_units::Monotonic(0) + seconds(10);
    assert_eq!(descent(&mut server, 1200), [(0, 0)]);
    assert_eq!(*server.state.presence(), Presence::Nobody);
}

#[test]
fn the_away_age_stays_where_younger_memory_of_some_group_could_not_leave_or_none_is_too_young() {
    let stays = |change: fn(&mut Desk), old: fn(GroupId) -> u64| {
        let mut desk = deserted([learned(1, minutes(15)), learned(2, minutes(15))]);
        change(&mut desk);
        (0..600).all(|_| {
            follow(&mut desk, |id, _| old(id));
            desk.tick();
            desk.state.away_age().is_none()
        })
    };
    assert!(!stays(|_| (), |_| 0), "the control");
    // Nothing of one group is old enough, and the old memory of the other does not fit into swap.
    assert!(stays(
        |desk| desk.machine.swap.as_mut().expect("swap").free = Bytes::mib(100),
        |id| if id.0 == 1 { 0 } else { 100 }
    ));
    // The kernel protects both groups, however old their memory is.
    let protect = |desk: &mut Desk| desk.groups.iter_mut().for_each(|group| group.unprotected = Some(Bytes::ZERO));
    assert!(stays(protect, |_| 0));
}

#[test]
fn memory_younger_than_the_away_age_stays() {
    let mut desk = deserted([learned(1, minutes(60))]);
    follow(&mut desk, |_, _| 0);
    desk.tick();
    assert_eq!(desk.state.away_age(), Some(minutes(30)));
    let mut judged = |age| {
        let cold_only = desk.groups[0].cold_only.as_mut().expect("an age");
        (cold_only.min_age, cold_only.cold) = (age, ColdAmount::Known { bytes: Bytes::mib(100) });
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job.amount)
    };
    assert_eq!(judged(minutes(30)), Ok(Bytes::mib(100)));
    assert_eq!(judged(minutes(45)), Ok(Bytes::mib(100)));
    assert_eq!(judged(minutes(29)), Err(Reason::Learning { threshold: minutes(60) }));
}

#[test]
fn the_oldest_memory_of_all_groups_leaves_first() {
    // The first group holds memory unused for 20 min, the second for 5 min.
    let unused_for = |id: GroupId| minutes(if id.0 == 1 { 20 } else { 5 });
    let old = |id, age: Duration| if age <= unused_for(id) { 100 } else { 0 };
    let mut desk = deserted([learned(1, minutes(60)), learned(2, minutes(60))]);
    let mut swept = Vec::new();
    for _ in 0..1300 {
        follow(&mut desk, |id, age| if swept.contains(&id.0) { 0 } else { old(id, age) });
        if let Decision::Sweep { id, job, .. } = desk.tick() {
            assert_eq!(job.amount, Bytes::mib(100));
            swept.push(id.0);
            desk.finish(End::Complete, 924);
        }
    }
    assert_eq!(swept, [1, 2]);
}

#[test]
fn whoever_comes_ends_a_sweep_of_younger_memory() {
    let sweeping = |threshold| {
        let mut desk = deserted([learned(1, threshold)]);
        for _ in 0..2000 {
            follow(&mut desk, |_, age| if age <= minutes(8) { 100 } else { 0 });
            if let Decision::Sweep { .. } = desk.tick() {
                return desk;
            }
        }
        panic!("no sweep: {:?}", desk.tick());
    };
    let mut desk = sweeping(minutes(30));
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    for facts in [somebody(), None] {
        let mut desk = desk.clone();
        desk.machine.presence = facts;
        let Decision::Stop { reason } = desk.tick() else { panic!("it goes on") };
        assert!(matches!(reason, Reason::SomebodyThere { .. }), "{reason:?}");
    }
    // The control: memory as old as the threshold.
    let mut desk = sweeping(minutes(8));
    desk.machine.presence = somebody();
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
}

#[test]
fn a_group_rests_after_memory_was_given_back_to_it() {
    let mut desk = deserted([learned(1, minutes(8))]);
    desk.machine.presence = somebody();
    follow(&mut desk, |_, _| 100);
    let mut control = desk.clone();
    control.until_sweep(1);
    desk.state.gave_back(GroupId(1), desk.now);
    let reason = desk.no_sweep(8 * 60 - 1);
    assert!(matches!(reason, Reason::NothingToGain | Reason::SomebodyThere { .. }), "{reason:?}");
    let why = omr_policy::judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect_err("it rests");
    assert_eq!(why.to_string(), "memory was given back to it, and what stays unused for 8 min is cold in 1.0 s");
    desk.until_sweep(1);
}

proptest! {
    /// Facts and groups change at will, and the daemon's groups may be those of an earlier moment.
    #[test]
    fn nothing_younger_than_a_threshold_leaves_unless_everybody_is_away(
        steps in vec((select(vec![0u64, 1, 2, 3]), 1u32..400, any::<bool>()), 1..12),
        thresholds in vec(select(vec![2u64, 4, 8, 15, 30, 60, 480]), 1..4),
        gives_back: bool,
        explicit: bool,
    ) {
        let mut groups: Vec<Group> =
            thresholds.iter().zip(1..).map(|(threshold, id)| learned(id, minutes(*threshold))).collect();
        if explicit {
            groups[0].cold_only.as_mut().expect("an age").threshold = None;
        }
        let mut desk = deserted(groups);
        desk.machine.gives_back = gives_back;
        let mut again = desk.clone();
        for (who, ticks, is_late) in steps {
            desk.machine.presence = match who {
                0 => somebody(),
                1 => None,
                _ => Some(Facts::default()),
            };
            again.machine.presence.clone_from(&desk.machine.presence);
            for _ in 0..ticks {
                if !is_late {
                    follow(&mut desk, |_, age| age.as_secs() % 100);
                    follow(&mut again, |_, age| age.as_secs() % 100);
                }
                let decision = desk.tick();
                prop_assert_eq!(&decision, &again.tick(), "the same input twice");
                let away = desk.state.away_age();
                prop_assert!(away.is_none_or(|age| age >= minutes(2) && gives_back));
                let is_away = matches!(desk.state.presence(), Presence::Away { .. });
                prop_assert!(is_away || away.is_none());
                if explicit {
                    prop_assert_eq!(desk.groups[0].cold_only.as_ref().expect("an age").min_age, minutes(thresholds[0]));
                }
                let sweeping = match &decision {
                    Decision::Sweep { id, .. } => Some(*id),
                    Decision::Continue { .. } => desk.state.sweeping(),
                    Decision::Hold { .. } | Decision::Stop { .. } => None,
                };
                if let Some(id) = sweeping {
                    let cold_only = desk.group(id.0).cold_only.clone().expect("an age");
                    prop_assert!(!cold_only.is_younger() || (is_away && away.is_some_and(|age| age <= cold_only.min_age)));
                }
                if desk.state.sweeping().is_some() && !matches!(decision, Decision::Continue { .. }) {
                    desk.finish(End::Stopped, 1024);
                    again.finish(End::Stopped, 1024);
                }
            }
        }
    }
}
