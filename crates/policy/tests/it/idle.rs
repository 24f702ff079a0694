//! When the machine counts as idle, and what else keeps sweeps from beginning.

use std::time::Duration;

use omr_policy::{CpuIdle, Decision, End, IdleRule, Machine, Reason, State};
use omr_units::{GroupId, Permyriad};

use crate::desk::{Desk, SECOND, group, millis, quiet, seconds};

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
fn ticks_before_a_gap_do_not_excuse_ticks_after_it() {
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

#[test]
fn the_least_load_is_that_of_the_quietest_tick_of_the_last_ten_seconds() {
    let mut desk = Desk::new([]);
    assert_eq!(desk.state.least_load(), Permyriad::ZERO);
    let mut load = |percent, ticks| {
        desk.machine.load = Some(seconds(1) * percent / 100);
        desk.ticks(ticks);
        desk.state.least_load()
    };
    assert_eq!(load(30, 10), Permyriad::percent(30));
    assert_eq!(load(20, 1), Permyriad::percent(20));
    assert_eq!(load(40, 9), Permyriad::percent(20), "it is still in the window");
    assert_eq!(load(40, 2), Permyriad::percent(40));
}

#[test]
fn no_sweep_begins_while_a_process_is_hinted() {
    let mut desk = Desk::new([group(1, 100, 0)]);
    desk.state.set_hinting(true);
    assert_eq!(desk.no_sweep(60), Reason::Hinting);
    desk.state.set_hinting(false);
    assert_eq!(desk.until_sweep(1).1, GroupId(1));
}

#[test]
fn the_steady_load_is_that_of_the_last_ten_seconds() {
    let mut desk = Desk::new([]);
    desk.machine.load = Some(millis(400));
    desk.ticks(20);
    assert_eq!(desk.state.steady_load(), Permyriad::percent(40));
    desk.machine.load = Some(millis(200));
    desk.ticks(5);
    assert_eq!(desk.state.steady_load(), Permyriad::percent(30));
}
