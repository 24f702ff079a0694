//! The cost of sweeps, by counters of groups.

use std::time::Duration;

use omr_policy::regret::{ATTRIBUTION, Counters, MOST_GROUPS, Regret, Regrets};
use omr_units::{Bytes, GroupId, Monotonic};
use proptest::prelude::*;

const ID: GroupId = GroupId(7);
const HOUR: u64 = 3600;

/// One group whose counters go on as the test says.
#[derive(Default)]
struct Case {
    regret: Regrets,
    now: u64,
    waited: u64,
    refaults: u64,
    swapped: u64,
    cost: Regret,
}

impl Case {
    fn at(&self) -> Monotonic {
        Monotonic(0) + Duration::from_secs(self.now)
    }

    fn counters(&self) -> Counters {
        Counters {
            waited: Some(Duration::from_micros(self.waited)),
            refaults: Some(Bytes(self.refaults)),
            refaults_anon: Some(Bytes(self.refaults)),
            swapped: Some(Bytes(self.swapped)),
        }
    }

    fn read(&mut self) -> Regret {
        let cost = self.regret.read(self.at(), ID, self.counters(), false);
        self.cost += cost;
        cost
    }

    /// Lets readings five seconds apart pass, in each of which tasks wait for this many us.
    fn pass(&mut self, seconds: u64, waited: u64) {
        for _ in 0..seconds / 5 {
            self.now += 5;
            self.waited += waited;
            self.read();
        }
    }

    fn sweep(&mut self, to_swap: u64) {
        self.read();
        assert!(self.regret.begin(self.at(), ID));
        self.now += 2;
        self.swapped += to_swap;
        self.read();
        self.regret.end(self.at(), ID, Bytes(to_swap));
    }
}

#[test]
fn waiting_beyond_that_before_the_sweep_is_its_cost_for_an_hour() {
    let mut case = Case::default();
    // 1 ms in 5 s.
    case.pass(900, 1000);
    assert!(case.cost.is_none(), "{:?}", case.cost);
    case.sweep(0);
    case.pass(300, 1000);
    assert!(case.cost.waited < Duration::from_millis(1), "the same as before: {:?}", case.cost);
    case.waited += 300_000;
    case.refaults += 1 << 20;
    case.pass(300, 1000);
    assert!((295..=300).contains(&case.cost.waited.as_millis()), "{:?}", case.cost);
    assert_eq!(case.cost.refaults, Bytes::mib(1));
    let cost = case.cost;
    case.pass(HOUR, 1000);
    assert_eq!(case.cost, cost);
    // After the hour nothing counts.
    case.waited += 5_000_000;
    case.pass(60, 1000);
    assert_eq!(case.cost, cost);
}

#[test]
fn without_a_time_before_all_waiting_counts_and_without_a_sweep_none() {
    let mut case = Case::default();
    case.pass(30, 100_000);
    assert!(case.cost.is_none());
    case.sweep(0);
    case.pass(60, 100_000);
    assert_eq!(case.cost, Regret { waited: Duration::from_millis(1200), ..Regret::default() });
}

#[test]
fn each_kind_of_cost_is_something_to_tell_and_stays_incomplete_in_a_sum() {
    let incomplete = Regret { is_incomplete: true, ..Regret::default() };
    for cost in [
        Regret { waited: Duration::from_micros(1), ..Regret::default() },
        Regret { refaults: Bytes(1), ..Regret::default() },
        incomplete,
    ] {
        assert!(!cost.is_none(), "{cost:?}");
    }
    for (mut first, second) in [(incomplete, Regret::default()), (Regret::default(), incomplete)] {
        first += second;
        assert!(first.is_incomplete);
    }
}

#[test]
fn a_group_that_is_gone_holds_nothing() {
    let mut case = Case::default();
    case.sweep(100);
    case.regret.retain(|id| id == ID);
    assert_eq!(case.regret.held(ID), Bytes(100));
    case.regret.retain(|_| false);
    assert_eq!((case.regret.held(ID), case.regret.swept().count()), (Bytes::ZERO, 0));
}

#[test]
fn memory_that_leaves_later_without_a_sweep_is_not_held_by_sweeps() {
    let mut case = Case::default();
    case.sweep(100);
    // For a moment nobody knows how much is in swap; then it is 20, and the kernel adds 80.
    case.regret.read(case.at(), ID, Counters { swapped: None, ..case.counters() }, false);
    for swapped in [20, 100] {
        case.swapped = swapped;
        case.read();
        assert_eq!(case.regret.held(ID), Bytes(20), "{swapped}");
    }
}

#[test]
fn the_usual_waiting_is_known_again_after_a_counter_began_anew() {
    let mut case = Case::default();
    case.pass(900, 1000);
    case.waited = 0;
    case.pass(300, 1000);
    case.sweep(0);
    case.pass(300, 1000);
    assert!(case.cost.waited < Duration::from_millis(1), "{:?}", case.cost);
}

#[test]
fn waiting_that_ended_long_before_the_sweep_is_not_usual() {
    let mut case = Case::default();
    case.pass(2 * HOUR, 10_000);
    case.pass(HOUR, 0);
    case.sweep(0);
    case.pass(300, 10_000);
    assert_eq!(case.cost.waited, Duration::from_millis(600));
}

#[test]
fn the_allowance_stays_the_same_while_sweeps_follow_each_other() {
    let mut case = Case::default();
    case.pass(900, 1000);
    // Each sweep makes tasks wait as much again, which must not become the usual.
    for _ in 0..6 {
        case.sweep(0);
        case.pass(1200, 2000);
    }
    // 240 ms in each of six times.
    assert!((1430..=1440).contains(&case.cost.waited.as_millis()), "{:?}", case.cost);
}

#[test]
fn an_unknown_counter_adds_nothing_and_makes_the_cost_incomplete() {
    for unknown in [
        Counters::default(),
        // It went back.
        Counters { waited: Some(Duration::ZERO), refaults: Some(Bytes::ZERO), ..Counters::default() },
    ] {
        let mut case = Case { waited: 5000, refaults: 5000, ..Case::default() };
        case.sweep(0);
        case.pass(60, 1000);
        let known = case.cost;
        assert!(!known.is_incomplete);
        case.now += 5;
        let cost = case.regret.read(case.at(), ID, unknown, false);
        assert_eq!(cost, Regret { is_incomplete: true, ..Regret::default() });
    }
    // Where no sweep has touched the group it does not matter.
    let mut case = Case::default();
    case.pass(60, 0);
    assert!(case.regret.read(case.at(), ID, Counters::default(), false).is_none());
}

#[test]
fn memory_is_held_out_until_it_comes_back_and_never_more_than_is_in_swap() {
    let mut case = Case { swapped: 50 << 20, ..Case::default() };
    case.sweep(100 << 20);
    let held = |case: &Case| (case.regret.held(ID), case.regret.held_of_all());
    assert_eq!(held(&case), (Bytes::mib(100), Bytes::mib(100)), "not what was there before");
    // Both counters tell of the same memory.
    case.refaults += 30 << 20;
    case.swapped -= 30 << 20;
    case.pass(10, 0);
    assert_eq!(case.regret.held(ID), Bytes::mib(70));
    // Read again, and still in swap as well.
    case.refaults += 20 << 20;
    case.pass(10, 0);
    assert_eq!(case.regret.held(ID), Bytes::mib(50));
    // The kernel swaps other memory out.
    case.swapped += 80 << 20;
    case.pass(10, 0);
    assert_eq!(case.regret.held(ID), Bytes::mib(50));
    case.swapped = 0;
    case.pass(10, 0);
    case.swapped = 500 << 20;
    case.pass(10, 0);
    assert_eq!(case.regret.held(ID), Bytes::ZERO);
}

#[test]
fn what_comes_back_on_purpose_is_no_cost() {
    let mut case = Case::default();
    case.sweep(8 << 20);
    (case.now, case.refaults, case.waited) = (case.now + 5, case.refaults + (8 << 20), case.waited + 70);
    assert!(case.regret.read(case.at(), ID, case.counters(), true).is_none());
    assert_eq!(case.regret.held(ID), Bytes::ZERO, "it is back all the same");
    // The control.
    case.refaults += 4096;
    case.pass(5, 0);
    assert_eq!(case.cost.refaults, Bytes(4096));
}

#[test]
fn the_number_of_groups_is_bounded_and_swept_groups_stay() {
    let mut regret = Regrets::default();
    let counters = Counters { swapped: Some(Bytes::mib(1)), ..Counters::default() };
    let most = u64::try_from(MOST_GROUPS).expect("a number");
    let mut sweep = |now: u64, number: u64| {
        let (now, id) = (Monotonic(0) + Duration::from_secs(now), GroupId(number));
        regret.read(now, id, counters, false);
        let begun = regret.begin(now, id);
        regret.end(now, id, Bytes(number));
        // Others that are only read.
        (most * 2..most * 3).for_each(|other| _ = regret.read(now, GroupId(other), counters, false));
        (begun, regret.swept().count(), regret.held(GroupId(most - 1)))
    };
    for number in 0..most {
        assert!(sweep(number, number).0, "{number}");
    }
    assert_eq!(sweep(most, most), (false, MOST_GROUPS, Bytes(most - 1)));
    // The time of the others is over, so the one with the least memory makes room.
    assert_eq!(sweep(2 * HOUR, most), (true, MOST_GROUPS, Bytes(most - 1)));
    assert!(!regret.counts(Monotonic(0), GroupId(0)) && regret.swept().all(|id| id != GroupId(0)));
}

/// One reading: seconds since the one before, the step of both counters, what happens, and what is
/// unknown (0) or went back (1).
fn steps() -> impl Strategy<Value = Vec<(u64, u64, u8, u8)>> {
    let step = prop_oneof![2 => Just(0), 2 => 0..10_000_u64, 1 => 0..100_000_000_u64];
    let time = prop_oneof![6 => 1..60_u64, 1 => 600..3 * HOUR];
    prop::collection::vec((time, step, 0..6_u8, 0..12_u8), 1..80)
}

proptest! {
    #[test]
    fn the_cost_is_never_more_than_the_counters_went_on_nor_counted_out_of_time(steps in steps()) {
        let mut case = Case { waited: 1 << 40, refaults: 1 << 40, swapped: 1 << 30, ..Case::default() };
        let (mut to_swap, mut until) = (0, None);
        let (mut was_unknown, mut is_first) = (false, true);
        for (seconds, step, event, odd) in steps {
            let since = case.now;
            case.now += seconds;
            case.waited += step;
            case.refaults += step;
            let mut counters = case.counters();
            match odd {
                0 => (counters.waited, counters.refaults) = (None, None),
                1 => {
                    case.waited -= step + 1;
                    case.refaults -= step + 1;
                    counters = case.counters();
                }
                _ => {}
            }
            let cost = case.regret.read(case.at(), ID, counters, false);
            let counts = until.is_some_and(|until| since < until);
            if !counts {
                prop_assert!(cost.is_none(), "{cost:?}");
            } else if odd <= 1 || was_unknown || is_first {
                prop_assert_eq!(cost, Regret { is_incomplete: true, ..Regret::default() });
            } else {
                prop_assert!(!cost.is_incomplete);
                prop_assert!(cost.waited <= Duration::from_micros(step) && cost.refaults <= Bytes(step), "{cost:?}");
            }
            (was_unknown, is_first) = (odd == 0, false);
            if event == 0 {
                prop_assert!(case.regret.begin(case.at(), ID));
                case.regret.end(case.at(), ID, Bytes(step));
                to_swap += step;
                until = Some(case.now + ATTRIBUTION.as_secs());
            }
            prop_assert_eq!(case.regret.counts(case.at(), ID), until.is_some_and(|until| case.now < until));
            prop_assert!(case.regret.held(ID) <= Bytes(to_swap.min(case.swapped)));
        }
    }

    #[test]
    fn the_cost_is_the_waiting_less_at_most_the_usual(usual in 0..2_000_000_u64, steps in steps()) {
        let mut case = Case::default();
        case.pass(900, usual);
        case.sweep(0);
        let (began, before, readings) = (case.now - 2, case.waited, steps.len() as u64 + 1);
        for (seconds, step, ..) in steps {
            if case.now + seconds >= began + HOUR {
                break;
            }
            case.now += seconds;
            case.waited += step;
            case.read();
        }
        let (waited, passed) = (case.waited - before, case.now - began);
        let cost = u64::try_from(case.cost.waited.as_micros()).expect("a time");
        prop_assert!(cost <= waited);
        prop_assert!(cost + usual * passed / 5 + readings >= waited, "{cost} {waited}");
        prop_assert!(!case.cost.is_incomplete);
    }
}
