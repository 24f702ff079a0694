//! What is decided, case by case.
#![allow(missing_docs)]

mod common;

use std::time::Duration;

use common::{Desk, SECOND, group, millis, quiet, seconds};
use omr_policy::stop::Watch;
use omr_policy::{
    ByAge, Class, Config, CpuIdle, Decision, End, Goal, IdleRule, Machine, Old, Reason, State, Stop, Swap, Writes,
    judge, next,
};
use omr_units::{Amount, Budget, Bytes, GroupId, Permyriad};

// Idle.

#[test]
fn an_idle_machine_is_swept_after_thirty_seconds() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    assert_eq!(desk.until_sweep(60), (30, GroupId(1)));
}

#[test]
fn a_light_steady_load_on_one_core_does_not_keep_the_machine_busy() {
    for (rule, sweeps) in [(IdleRule::Headroom, true), (IdleRule::Strict, false)] {
        let mut desk = Desk::new([group(1, 100, 0)]);
        desk.config.idle.rule = rule;
        desk.machine.load = Some(millis(150));
        desk.machine.least_idle = Some(CpuIdle { cpu: 0, idle: Permyriad::percent(85) });
        if sweeps {
            assert_eq!(desk.until_sweep(60).0, 30);
        } else {
            let reason = desk.no_sweep(60).to_string();
            assert_eq!(reason, "not idle: cpu 0 is 85 % idle, 95 % is needed (strict rule)");
        }
    }
}

#[test]
fn the_strict_rule_fires_after_thirty_seconds_at_95_percent() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.config.idle.rule = IdleRule::Strict;
    desk.machine.least_idle = Some(CpuIdle { cpu: 3, idle: Permyriad(9_499) });
    desk.no_sweep(60);
    desk.machine.least_idle = Some(CpuIdle { cpu: 3, idle: Permyriad(9_500) });
    assert_eq!(desk.until_sweep(60).0, 30);
}

#[test]
fn each_signal_has_its_threshold() {
    type Set = fn(&mut Machine, Duration);
    let cases: [(&str, Set, u64); 5] = [
        ("CPU time is free", |machine, time| machine.load = Some(time), 500),
        ("foreground groups", |machine, time| machine.foreground = Some(time), 100),
        ("wait for cpu", |machine, time| machine.stall_cpu = Some(time), 200),
        ("wait for io", |machine, time| machine.stall_io = Some(time), 200),
        ("wait for memory", |machine, time| machine.stall_memory = Some(time), 50),
    ];
    for (words, set, allowed) in cases {
        let mut desk = Desk::new([group(1, 100, 0)]);
        set(&mut desk.machine, millis(allowed));
        assert_eq!(desk.until_sweep(60).0, 30, "{words}");
        set(&mut desk.machine, millis(allowed + 20));
        // The mean of ten seconds is above it when each of them is.
        let stopped = (1..=10).find_map(|_| match desk.tick() {
            Decision::Stop { reason } => Some(reason.to_string()),
            _ => None,
        });
        assert!(stopped.is_some_and(|reason| reason.contains(words)), "{words}");
    }
}

#[test]
fn a_missing_signal_is_busy() {
    type Lose = fn(&mut Machine);
    let both = [IdleRule::Headroom, IdleRule::Strict];
    let cases: [(&[IdleRule], Lose); 8] = [
        (&both, |machine| machine.dt = Duration::ZERO),
        (&both, |machine| machine.cpus = 0),
        (&both, |machine| machine.load = None),
        (&both, |machine| machine.foreground = None),
        (&both[1..], |machine| machine.least_idle = None),
        (&both[..1], |machine| machine.stall_cpu = None),
        (&both[..1], |machine| machine.stall_io = None),
        (&both[..1], |machine| machine.stall_memory = None),
    ];
    for (number, (rules, lose)) in cases.into_iter().enumerate() {
        for rule in both {
            let mut desk = Desk::new([group(1, 100, 0)]);
            desk.config.idle.rule = rule;
            desk.until_sweep(60);
            lose(&mut desk.machine);
            let stops = matches!(desk.tick(), Decision::Stop { reason: Reason::Unknown { .. } });
            assert_eq!(stops, rules.contains(&rule), "case {number}, {rule:?}");
        }
    }
}

#[test]
fn a_tick_longer_than_ten_seconds_is_busy() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.machine.dt = seconds(11);
    desk.now = desk.now + seconds(10);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Unknown { .. } }));
}

#[test]
fn a_signal_that_comes_back_does_not_stand_for_the_time_it_was_missing() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.machine.stall_memory = None;
    desk.ticks(9);
    desk.machine.stall_memory = Some(millis(200));
    // 200 ms in ten seconds would be allowed, but nine of them are not known.
    assert!(matches!(desk.tick().reason(), Reason::Pressure { share: Permyriad(2000), .. }));
}

#[test]
fn what_was_before_a_gap_is_no_excuse_for_what_comes_after() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.ticks(20);
    desk.machine.foreground = None;
    desk.ticks(20);
    desk.machine.foreground = Some(millis(500));
    assert!(matches!(desk.tick().reason(), Reason::ForegroundBusy { used: Permyriad(5000), .. }));
}

#[test]
fn one_short_burst_is_not_busy() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.machine.stall_io = Some(SECOND);
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    assert!(matches!(desk.ticks(2), Decision::Stop { .. }));
}

#[test]
fn no_sweep_begins_in_a_burst() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.ticks(29);
    desk.machine.load = Some(millis(600));
    assert!(matches!(desk.tick(), Decision::Hold { reason: Reason::WorkBegan { used: Permyriad(6000), .. } }));
    desk.machine = quiet();
    assert_eq!(desk.until_sweep(60).0, 1);
}

#[test]
fn a_short_interruption_costs_a_short_wait_and_a_long_one_the_whole() {
    for (busy, wait) in [(1, 5), (4, 5), (12, 12), (29, 29), (300, 30)] {
        let mut desk = Desk::new([]);
        desk.config.idle.window = SECOND;
        desk.ticks(100);
        desk.machine.load = Some(seconds(2));
        desk.ticks(busy);
        desk.groups.push(group(1, 100, 0));
        desk.machine = quiet();
        assert_eq!(desk.until_sweep(60).0, wait, "busy for {busy} s");
    }
}

#[test]
fn an_interruption_before_the_wait_is_over_does_not_shorten_it() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.config.idle.window = SECOND;
    desk.machine.load = Some(seconds(2));
    desk.ticks(600);
    desk.machine = quiet();
    desk.ticks(4);
    desk.machine.load = Some(seconds(2));
    desk.tick();
    desk.machine = quiet();
    assert_eq!(desk.until_sweep(60).0, 30);
}

#[test]
fn a_busy_second_right_after_boot_does_not_shorten_the_wait() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.machine.load = Some(seconds(2));
    desk.config.idle.window = SECOND;
    desk.tick();
    desk.machine = quiet();
    assert_eq!(desk.until_sweep(60).0, 30);
}

#[test]
fn interruptions_that_follow_one_another_double_the_wait() {
    let mut desk = Desk::new([group(1, 4000, 0)]);
    let mut waits = Vec::new();
    for left in (1000..4000).rev().step_by(500) {
        waits.push(desk.until_sweep(60).0);
        desk.interrupt(left);
    }
    // The tick in which the interruption falls is part of the wait.
    assert_eq!(waits, [30, 5, 10, 20, 30, 30]);
    desk.until_sweep(60);
    desk.ticks(30);
    desk.interrupt(900);
    assert_eq!(desk.until_sweep(60).0, 5);
}

#[test]
fn work_in_the_middle_of_a_tick_begins_the_wait_there_and_not_at_its_beginning() {
    let mut desk = Desk::new([group(1, 4000, 0)]);
    desk.until_sweep(60);
    desk.ticks(60);
    desk.now = desk.now + millis(900);
    desk.interrupt(3000);
    // The next tick covers the whole second; 100 ms of it are past the interruption.
    desk.now = desk.now - millis(900);
    assert_eq!(desk.until_sweep(60).0, 6);
}

#[test]
fn an_interruption_while_busy_begins_the_wait_there() {
    let mut desk = Desk::new([group(1, 4000, 0)]);
    desk.config.idle.window = SECOND;
    desk.until_sweep(60);
    desk.ticks(60);
    desk.machine.load = Some(seconds(2));
    desk.tick();
    desk.machine = quiet();
    desk.state.interrupt(desk.now + millis(900));
    desk.finish(End::Stopped, 3000);
    assert_eq!(desk.until_sweep(60).0, 6);
}

#[test]
fn a_wait_after_an_interruption_above_the_first_one_is_no_contradiction() {
    let mut desk = Desk::new([group(1, 4000, 0)]);
    desk.config.idle.again = seconds(60);
    desk.until_sweep(60);
    desk.interrupt(3000);
    assert_eq!(desk.until_sweep(60).0, 30);
}

#[test]
fn a_second_interruption_does_not_hide_how_long_the_first_lasted() {
    let mut desk = Desk::new([group(1, 4000, 0)]);
    desk.config.idle.window = SECOND;
    desk.until_sweep(60);
    desk.ticks(60);
    desk.interrupt(3000);
    desk.machine.load = Some(seconds(2));
    desk.ticks(20);
    desk.state.interrupt(desk.now);
    desk.machine = quiet();
    assert_eq!(desk.until_sweep(60).0, 20);
}

#[test]
fn ticks_however_short_do_not_make_the_state_grow() {
    let mut desk = Desk::new([]);
    desk.machine.dt = millis(1);
    desk.machine.load = Some(Duration::ZERO);
    desk.ticks(20_000);
    let size = |state: &State| serde_json::to_string(state).expect("state is plain data").len();
    assert!(size(&desk.state) < 64 << 10, "{}", size(&desk.state));
}

#[test]
fn sleep_restarts_the_wait() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.slept = true;
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::AfterResume { .. } }));
    desk.finish(End::Stopped, 90);
    assert_eq!(desk.until_sweep(600).0, 300);

    desk.config.sweep.after_resume = Duration::ZERO;
    desk.finish(End::Stopped, 80);
    desk.slept = true;
    assert_eq!(desk.until_sweep(600).0, 30);
}

#[test]
fn quiet_after_boot() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.now = omr_units::Monotonic(0);
    assert!(matches!(desk.ticks(60).reason(), Reason::AfterBoot { left } if *left == seconds(60)));
    // The rule has held all the time.
    assert_eq!(desk.until_sweep(600).0, 60);
}

#[test]
fn while_the_machine_is_prepared_there_are_no_sweeps() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.state.prepare(Some("preempt: notice".into()));
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Preparing { .. } }));
    desk.finish(End::Stopped, 90);
    desk.no_sweep(1_000);
    desk.state.prepare(None);
    // The rule has held all the time.
    assert_eq!(desk.until_sweep(1).0, 1);
}

#[test]
fn pause_and_resume() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.state.pause(desk.now, None);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Paused { left: None } }));
    desk.finish(End::Stopped, 90);
    desk.no_sweep(10_000);
    desk.state.resume();
    assert_eq!(desk.until_sweep(1).0, 1);
    desk.finish(End::Stopped, 80);
    desk.state.pause(desk.now, Some(seconds(100)));
    assert!(matches!(desk.tick().reason(), Reason::Paused { left: Some(left) } if *left == seconds(99)));
    assert_eq!(desk.until_sweep(600).0, 99);
}

#[test]
fn no_sweep_between_the_hook_before_sleep_and_waking_up() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.config.sweep.after_resume = seconds(10);
    desk.until_sweep(60);
    desk.state.fall_asleep(desk.now);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::GoingToSleep { .. } }));
    desk.finish(End::Stopped, 90);
    desk.no_sweep(60);
    desk.slept = true;
    // The idle rule, which needs longer than the quiet time.
    assert_eq!(desk.until_sweep(600).0, 30);
}

#[test]
fn a_machine_that_did_not_fall_asleep_is_swept_again() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.ticks(20);
    desk.state.fall_asleep(desk.now);
    assert_eq!(desk.until_sweep(1000).0, 300);
}

#[test]
fn sleep_does_not_end_a_pause() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.state.pause(desk.now, None);
    desk.state.fall_asleep(desk.now);
    desk.slept = true;
    desk.no_sweep(10_000);
}

#[test]
fn a_new_configuration_must_hold_anew() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.ticks(29);
    desk.state.reconfigured();
    assert_eq!(desk.until_sweep(60).0, 30);
}

// The watch on a running sweep.

#[test]
fn work_in_the_foreground_stops_a_sweep_within_two_samples() {
    let sample = millis(20);
    // It may begin anywhere in a sample, and wait up to one in ten for its CPU.
    for before in 0..20 {
        let mut watch = Watch::new(&Stop::default(), Permyriad::percent(5));
        (0..30).for_each(|_| assert_eq!(watch.sample(sample, Some(millis(1))), None));
        let first = watch.sample(sample, Some(millis(20 - before)));
        assert!(first.is_some() || watch.sample(sample, Some(millis(18))).is_some(), "{before} ms into a sample");
    }
}

#[test]
fn one_timer_tick_is_not_work() {
    let mut watch = Watch::new(&Stop::default(), Permyriad::ZERO);
    for n in 0..100 {
        let used = if n % 2 == 0 { millis(10) } else { Duration::ZERO };
        assert_eq!(watch.sample(millis(20), Some(used)), None);
    }
}

#[test]
fn a_steady_load_does_not_stop_a_sweep() {
    let mut watch = Watch::new(&Stop::default(), Permyriad::percent(150));
    (0..500).for_each(|_| assert_eq!(watch.sample(millis(20), Some(millis(30))), None));
    watch.sample(millis(20), Some(millis(40)));
    assert!(watch.sample(millis(20), Some(millis(40))).is_some());
}

#[test]
fn a_steady_load_that_has_gone_does_not_hide_new_work() {
    let mut watch = Watch::new(&Stop::default(), Permyriad::percent(100));
    (0..200).for_each(|_| assert_eq!(watch.sample(millis(20), Some(Duration::ZERO)), None));
    watch.sample(millis(20), Some(millis(20)));
    assert!(watch.sample(millis(20), Some(millis(20))).is_some());
}

#[test]
fn samples_in_which_no_time_passed_do_not_blind_the_watch() {
    let mut watch = Watch::new(&Stop::default(), Permyriad::ZERO);
    let noticed = (0..10).any(|_| {
        watch.sample(Duration::ZERO, Some(millis(10))).is_some()
            || watch.sample(millis(20), Some(Duration::ZERO)).is_some()
    });
    assert!(noticed);
}

#[test]
fn a_watch_that_cannot_see_stops_the_sweep() {
    let mut watch = Watch::new(&Stop::default(), Permyriad::ZERO);
    assert!(matches!(watch.sample(millis(20), None), Some(Reason::Unknown { .. })));
}

// Which group.

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
fn keep_rules() {
    let cases = [
        (Some(Amount::Bytes(Bytes::mib(100))), 100, Ok(300)),
        (Some(Amount::Share(Permyriad::percent(25))), 100, Ok(300)),
        (Some(Amount::Bytes(Bytes::mib(399))), 0, Err("1.00 MiB to gain, 2.00 MiB is worth a sweep")),
        (Some(Amount::Max), 0, Err("its rule keeps 400 MiB, which covers all that it uses")),
        (Some(Amount::Bytes(Bytes::mib(500))), 0, Err("its rule keeps 500 MiB, which covers all that it uses")),
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
    // A stream of file pages: each second 200 MiB more, all of it taken at once.
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

// Harm.

#[test]
fn a_group_whose_pages_come_back_backs_off_twice_as_long_each_time() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    for length in [600, 1200, 2400, 4800] {
        desk.finish(End::Complete, 0);
        desk.ticks(10);
        desk.refault(1, 50);
        desk.hold(1, 50);
        desk.tick();
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
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
    desk.until_sweep(600);
    desk.finish(End::Complete, 0);
    // Ten minutes without harm, then somebody comes back to it.
    desk.ticks(600);
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
    assert_eq!(desk.until_sweep(10_000).0, 600);
}

#[test]
fn harm_during_a_sweep_long_after_the_last_one_begins_anew() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
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
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
    desk.machine.load = Some(seconds(2));
    desk.ticks(3000);
    desk.machine = quiet();
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.refault(1, 50);
    desk.hold(1, 50);
    desk.tick();
    assert_eq!(desk.until_sweep(10_000).0, 1200);
}

#[test]
fn pages_of_the_same_sweep_that_come_back_later_do_not_double() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
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
    // MiB each ten seconds, after so many seconds: up to 4 MiB a minute is allowed.
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
fn what_comes_back_during_a_later_sweep_counts_as_well() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.until_sweep(60);
    desk.finish(End::Complete, 0);
    desk.ticks(2 * 3600);
    desk.hold(1, 100);
    desk.until_sweep(1);
    desk.tick();
    desk.refault(1, 50);
    assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Refaults { .. } }));
}

#[test]
fn the_end_of_a_sweep_does_not_wipe_out_what_came_back_just_before() {
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
fn what_is_brought_back_on_purpose_is_no_harm_and_is_not_taken_meanwhile() {
    let brought_back = |excused: u64| {
        let mut desk = Desk::new([group(1, 100, 0)]);
        desk.until_sweep(60);
        desk.tick();
        desk.state.set_warming(true);
        assert!(matches!(desk.tick(), Decision::Stop { reason: Reason::Warming }));
        desk.finish(End::Stopped, 50);
        desk.refault(1, 40);
        desk.state.excuse(GroupId(1), Bytes::mib(excused));
        desk.no_sweep(60);
        desk.state.set_warming(false);
        desk
    };
    let mut desk = brought_back(40);
    assert!(desk.state.backing_off(desk.now).is_empty());
    assert_eq!(desk.until_sweep(1).0, 1);
    // What came back beside that counts.
    for mut desk in [brought_back(0), brought_back(30)] {
        assert_eq!(desk.state.backing_off(desk.now), [GroupId(1)]);
        desk.no_sweep(60);
    }
    // Of a group that was never swept nothing is held.
    desk.state.excuse(GroupId(2), Bytes::mib(1));
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

// Swap.

fn disk(total: u64, free: u64) -> Option<Swap> {
    Some(Swap { total: Bytes::mib(total), free: Bytes::mib(free), on_disk: true, beside: Bytes::ZERO })
}

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
fn what_a_hibernation_image_needs_stays_free() {
    // Free swap, of it beside the image's, image, expected gain and floor. What goes out is no longer in the image.
    for (free, beside, image, expected) in [
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
        desk.machine.swap = disk(1000, free).map(|swap| Swap { beside: Bytes::mib(beside), ..swap });
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

// The write budget.

#[test]
fn the_write_budget_counts_the_last_hours() {
    let budget = Some(Budget { bytes: Bytes::mib(100), hours: 24 });
    let mut writes = Writes::default();
    (1000..1024).for_each(|hour| writes.add(hour, Bytes::mib(2)));
    for (hour, left) in [(1023, 52), (1024, 54), (1046, 98), (1047, 100), (1048, 100)] {
        assert_eq!(writes.left(hour, budget), Bytes::mib(left), "hour {hour}");
    }
    assert_eq!(writes.left(1023, Some(Budget { bytes: Bytes::mib(100), hours: 1 })), Bytes::mib(98));
    assert_eq!(writes.left(1023, None), Bytes::MAX);
    writes.add(1023, Bytes::MAX);
    assert_eq!(writes.left(1023, budget), Bytes::ZERO);
}

#[test]
fn the_write_budget_survives_a_restart() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::mib(300), hours: 24 });
    desk.machine.swap = disk(4000, 4000);
    desk.until_sweep(60);
    desk.finish_written(End::Stopped, 700, Bytes::mib(290));
    let saved = serde_json::to_string(&desk.state.writes).expect("writes are plain data");
    assert_eq!(saved, format!("[[{},{}]]", desk.hour, 290 << 20));
    desk.state = State::default();
    desk.state.writes = serde_json::from_str(&saved).expect("what was saved is read");
    desk.until_sweep(60);
    let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
    assert_eq!((job.amount, job.swap_writes), (Bytes::mib(10), Bytes::mib(10)));
}

#[test]
fn a_clock_that_jumps_back_does_not_refill_the_budget() {
    let budget = Some(Budget { bytes: Bytes::mib(100), hours: 24 });
    let mut writes = Writes::default();
    writes.add(1000, Bytes::mib(60));
    for back in [999, 976, 900, 0] {
        assert_eq!(writes.left(back, budget), Bytes::mib(40));
        writes.add(back, Bytes::mib(1));
        assert_eq!(writes.left(back, budget), Bytes::mib(39));
        writes = Writes::default();
        writes.add(1000, Bytes::mib(60));
    }
}

#[test]
fn writing_nothing_at_an_hour_that_is_wrong_does_not_refill_the_budget() {
    let budget = Some(Budget { bytes: Bytes::mib(100), hours: 24 });
    for wrong in [0, 2000] {
        let mut writes = Writes::default();
        writes.add(1000, Bytes::mib(60));
        writes.add(wrong, Bytes::ZERO);
        assert_eq!(writes.left(1000, budget), Bytes::mib(40), "hour {wrong}");
    }
}

#[test]
fn swap_in_memory_costs_no_budget() {
    let mut desk = Desk::new([group(1, 1000, 0)]);
    desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::ZERO, hours: 24 });
    desk.until_sweep(60);
    desk.finish(End::Stopped, 900);
    desk.machine.swap = disk(4000, 4000);
    let why = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    assert!(matches!(why, Err(Reason::WriteBudget { .. })), "{why:?}");
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

// By age.

fn by_age(old: Old) -> Option<ByAge> {
    Some(ByAge { older_than: seconds(120), old })
}

fn known(mib: u64) -> Old {
    Old::Known { bytes: Bytes::mib(mib) }
}

/// The group under a rule: 100 MiB of anonymous memory, 50 MiB of page cache.
fn desk_by_age(old: Old) -> Desk {
    let mut desk = Desk::new([group(1, 100, 50)]);
    desk.group(1).by_age = by_age(old);
    desk
}

#[test]
fn of_a_group_under_a_rule_no_more_is_taken_than_what_is_old_and_goes_to_swap() {
    let judged = |desk: &Desk| {
        let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        judged.map(|(job, _)| job.amount.0 >> 20).map_err(|why| why.to_string())
    };
    // The control: without the rule, all of it.
    assert_eq!(judged(&Desk::new([group(1, 100, 50)])), Ok(150));
    assert_eq!(judged(&desk_by_age(known(30))), Ok(30));
    assert_eq!(judged(&desk_by_age(known(500))), Ok(100));
    for (old, why) in [
        (known(1), "1.00 MiB was surely not used for 2 min, 2.00 MiB is worth a sweep"),
        (Old::NotYet, "its rule takes only what was not used for 2 min, which is not known yet"),
        (Old::Never { why: "MGLRU off".into() }, "its rule takes only what is old, which is not known here: MGLRU off"),
    ] {
        assert_eq!(judged(&desk_by_age(old)), Err(why.into()));
    }
    // What a rule keeps and what the kernel protects stays, however old.
    let mut desk = desk_by_age(known(100));
    desk.group(1).keep = Some(Amount::Bytes(Bytes::mib(140)));
    assert_eq!(judged(&desk), Ok(10));
    desk.group(1).class = Class::Foreground;
    assert_eq!(judged(&desk), Err("class foreground: never touched".into()));
    // Page cache is no way out where nothing may be swapped.
    let mut desk = desk_by_age(known(30));
    desk.machine.swap =
        Some(Swap { total: Bytes::mib(100), free: Bytes::mib(11), on_disk: false, beside: Bytes::ZERO });
    assert_eq!(judged(&desk), Err("11.0 MiB of swap is free, 10.0 MiB stays free".into()));
    desk.machine.swap = Some(Swap { total: Bytes::ZERO, free: Bytes::ZERO, on_disk: false, beside: Bytes::ZERO });
    assert_eq!(judged(&desk), Err("there is no swap, and hardly any page cache to take".into()));
}

#[test]
fn a_group_under_a_rule_is_swept_again_when_more_is_old_though_it_has_not_grown() {
    let mut desk = desk_by_age(known(30));
    desk.until_sweep(60);
    desk.finish(End::Young, 120);
    desk.group(1).by_age = by_age(known(0));
    assert!(matches!(desk.no_sweep(200), Reason::NothingToGain));
    desk.group(1).by_age = by_age(known(20));
    assert_eq!(desk.until_sweep(2).1, GroupId(1));
    // And not at every tick.
    desk.finish(End::Young, 100);
    desk.no_sweep(55);
    desk.until_sweep(10);
    // What could not be done for want of ages is no reason to go on at once either.
    desk.finish(End::NotAged, 100);
    desk.no_sweep(55);
    desk.until_sweep(10);
    desk.finish(End::NotSeen, 100);
    desk.no_sweep(500);
}
