//! The choice of the group to sweep, the amount, and the next sweep of the same group.

use omr_policy::{Class, Config, Decision, End, Reason, State, judge, next};
use omr_units::{Amount, Bytes, GroupId, Permyriad};

use crate::desk::{Desk, group, seconds};

#[test]
fn the_largest_gain_comes_first_and_of_equals_the_smaller_id() {
    let mut desk = Desk::new([group(1, 50, 0), group(3, 100, 0), group(2, 100, 0)]);
    assert_eq!(desk.until_sweep(60).1, GroupId(2));
    desk.finish(End::Complete, 0);
    assert_eq!(desk.until_sweep(1).1, GroupId(3));
}

#[test]
fn protected_and_foreground_are_never_chosen() {
    for class in [Class::Protected, Class::Foreground] {
        let mut desk = Desk::new([group(1, 2000, 500)]);
        desk.group(1).class = class;
        desk.no_sweep(1000);
        let why = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        assert_eq!(why, Err(Reason::Class { class }));
    }
}

#[test]
fn a_group_that_comes_to_the_foreground_is_let_go_in_the_middle_of_its_sweep() {
    for class in [Class::Protected, Class::Foreground] {
        let mut desk = Desk::new([group(1, 2000, 500)]);
        desk.until_sweep(60);
        desk.group(1).class = class;
        assert_eq!(desk.tick(), Decision::Stop { reason: Reason::Class { class } });
    }
}

#[test]
fn a_group_that_becomes_protected_or_unknown_is_let_go_in_the_middle_of_its_sweep() {
    for (case, lose) in [
        (|group: &mut omr_policy::Group| group.unprotected = Some(Bytes::ZERO)) as fn(&mut _),
        |group| group.unprotected = None,
        |group| group.current = None,
        |group| group.refaults = None,
        |group| group.keep = Some(Amount::Max),
        |group| group.id = GroupId(9),
    ]
    .into_iter()
    .enumerate()
    {
        let mut desk = Desk::new([group(1, 2000, 500)]);
        desk.until_sweep(60);
        lose(desk.group(1));
        assert!(matches!(desk.tick(), Decision::Stop { .. }), "case {case}");
    }
}

#[test]
fn an_empty_group_is_too_small_and_neither_kept_nor_protected() {
    let desk = Desk::new([group(1, 0, 0)]);
    let why = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|_| ());
    assert_eq!(why, Err(Reason::TooSmall { gain: Bytes::ZERO, smallest: Bytes::mib(2) }));
}

#[test]
fn keep_rules() {
    let cases = [
        (Some(Amount::Bytes(Bytes::mib(100))), 100, Ok(300)),
        (Some(Amount::Share(Permyriad::percent(25))), 100, Ok(300)),
        (Some(Amount::Bytes(Bytes::mib(399))), 0, Err("1.00 MiB to gain, 2.00 MiB is worth a sweep")),
        (Some(Amount::Max), 0, Err("its rule keeps 400 MiB, which covers all of its memory")),
        (Some(Amount::Bytes(Bytes::mib(500))), 0, Err("its rule keeps 500 MiB, which covers all of its memory")),
        (None, 0, Ok(400)),
    ];
    for (keep, floor, expected) in cases {
        let mut desk = Desk::new([group(1, 300, 100)]);
        desk.group(1).keep = keep;
        let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        match expected {
            Ok(amount) => {
                let (job, _) = judged.expect("worth a sweep");
                assert_eq!((job.amount, job.floor), (Bytes::mib(amount), Bytes::mib(floor)), "{keep:?}");
            }
            Err(words) => assert_eq!(judged.expect_err("kept").to_string(), words),
        }
    }
}

#[test]
fn the_kernels_protection_is_a_floor_and_the_stricter_of_two_floors_counts() {
    for (unprotected, keep, floor) in [(150, 0, 250), (150, 100, 250), (350, 100, 100)] {
        let mut desk = Desk::new([group(1, 400, 0)]);
        desk.group(1).unprotected = Some(Bytes::mib(unprotected));
        desk.group(1).keep = Some(Amount::Bytes(Bytes::mib(keep)));
        let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
        assert_eq!((job.floor, job.amount), (Bytes::mib(floor), Bytes::mib(400 - floor)));
    }
}

#[test]
fn a_keep_rule_in_percent_keeps_the_same_from_one_sweep_to_the_next() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.group(1).keep = Some(Amount::Share(Permyriad::percent(25)));
    for left in [700, 500, 300] {
        desk.until_sweep(60);
        let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
        assert_eq!(job.floor, Bytes::mib(250));
        desk.interrupt(left);
    }
}

#[test]
fn a_group_of_which_anything_is_unknown_is_left_alone() {
    type Lose = fn(&mut omr_policy::Group);
    let cases: [Lose; 5] = [
        |group| group.current = None,
        |group| group.swap_backed = None,
        |group| group.page_cache = None,
        |group| group.refaults = None,
        |group| group.unprotected = None,
    ];
    for lose in cases {
        let mut desk = Desk::new([group(1, 300, 100)]);
        lose(desk.group(1));
        desk.no_sweep(100);
        let why = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        assert!(matches!(why, Err(Reason::Unknown { .. })), "{why:?}");
    }
}

#[test]
fn an_unfinished_group_is_continued_first_or_soon() {
    let mut desk = Desk::new([group(1, 1000, 0), group(2, 400, 0)]);
    assert_eq!(desk.until_sweep(60).1, GroupId(1));
    desk.interrupt(900);
    assert_eq!(desk.until_sweep(60).1, GroupId(1));
    desk.interrupt(800);
    // It has had its two turns.
    assert_eq!(desk.until_sweep(60).1, GroupId(2));
    desk.finish(End::Complete, 0);
    assert_eq!(desk.until_sweep(1).1, GroupId(1));
}

#[test]
fn a_group_that_never_gets_done_does_not_keep_the_others_waiting_for_ever() {
    let mut desk = Desk::new([group(1, 3000, 0), group(2, 3, 0)]);
    let turn = (0..20).position(|_| {
        let chosen = desk.until_sweep(60).1;
        desk.interrupt(3000);
        chosen == GroupId(2)
    });
    assert!(turn.is_some());
}

#[test]
fn no_sweep_storm() {
    // A stream of file pages: each second 200 MiB more, all of it reclaimed at once.
    let mut desk = Desk::new([group(1, 0, 200)]);
    let mut sweeps = 0;
    for _ in 0..3600 {
        desk.group(1).current = Some(Bytes::mib(200));
        desk.group(1).page_cache = Some(Bytes::mib(200));
        desk.group(1).unprotected = Some(Bytes::mib(200));
        if let Decision::Sweep { .. } = desk.tick() {
            sweeps += 1;
            desk.finish(End::Complete, 0);
        }
    }
    assert!((50..=60).contains(&sweeps), "{sweeps} in an hour");
}

#[test]
fn a_swept_group_is_swept_again_only_when_it_has_grown() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Futile, 40);
    assert_eq!(desk.no_sweep(10_000), Reason::NothingToGain);
    desk.hold(1, 55);
    desk.no_sweep(100);
    desk.hold(1, 56);
    desk.until_sweep(1);
}

#[test]
fn a_group_that_shrank_by_itself_is_measured_from_there() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Futile, 900);
    desk.hold(1, 100);
    desk.ticks(100);
    desk.hold(1, 800);
    desk.until_sweep(1);
}

#[test]
fn the_next_group_of_a_sweep_needs_no_new_tick_but_the_same_permission() {
    let mut desk = Desk::new([group(1, 100, 0), group(2, 50, 0)]);
    desk.until_sweep(60);
    let go_on = |desk: &mut Desk| {
        let signals = desk.signals();
        next(&desk.config, &mut desk.state, &signals, &desk.groups)
    };
    assert!(matches!(go_on(&mut desk), Decision::Continue { .. }));
    desk.finish(End::Complete, 0);
    let mut paused = desk.clone();
    paused.state.pause(paused.now, Some(seconds(5)));
    assert_eq!(go_on(&mut paused), Decision::Hold { reason: Reason::Paused { left: Some(seconds(5)) } });
    let mut busy = desk.clone();
    busy.state.interrupt(busy.now);
    assert!(matches!(go_on(&mut busy), Decision::Hold { .. }));
    assert!(matches!(go_on(&mut desk), Decision::Sweep { id: GroupId(2), .. }));
    desk.finish(End::Complete, 0);
    assert_eq!(go_on(&mut desk), Decision::Hold { reason: Reason::NothingToGain });
}

#[test]
fn the_end_of_another_job_does_not_end_the_running_one() {
    let mut desk = Desk::new([group(1, 100, 0), group(2, 50, 0)]);
    desk.until_sweep(60);
    let other = omr_policy::Finished {
        id: GroupId(2),
        size: Bytes::ZERO,
        refaults: None,
        swap_writes: Bytes::ZERO,
        end: End::Complete,
    };
    desk.state.finished(&desk.config, desk.now, desk.hour, &other);
    assert_eq!(desk.state.sweeping(), Some(GroupId(1)));
}

#[test]
fn a_group_that_went_away_is_forgotten() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Gone, 0);
    desk.hold(1, 100);
    desk.until_sweep(1);
    desk.finish(End::Complete, 0);
    desk.state.retain(&[]);
    desk.hold(1, 10);
    desk.until_sweep(1);
}

#[test]
fn state_survives_a_round_trip() {
    let mut desk = Desk::new([group(1, 1000, 0), group(2, 500, 20)]);
    desk.until_sweep(60);
    desk.finish(End::Failed, 900);
    desk.until_sweep(60);
    let text = serde_json::to_string(&desk.state).expect("state is plain data");
    assert_eq!(serde_json::from_str::<State>(&text).expect("what was written is read"), desk.state);
    let text = serde_json::to_string(&Config::default()).expect("configuration is plain data");
    assert_eq!(serde_json::from_str::<Config>(&text).expect("what was written is read"), Config::default());
}

#[test]
fn the_next_sweep_is_held_for_the_reason_that_holds_all_sweeps_with_or_without_groups() {
    for groups in [vec![], vec![group(1, 100, 0)]] {
        let mut desk = Desk::new(groups);
        desk.ticks(60);
        desk.state = State::default();
        desk.state.pause(desk.now, None);
        let signals = desk.signals();
        let held = next(&desk.config, &mut desk.state, &signals, &desk.groups);
        assert_eq!(held, Decision::Hold { reason: Reason::Paused { left: None } });
    }
}
