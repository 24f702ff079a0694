//! The write budget: what may be written to swap on disk.

use omr_policy::{End, Reason, State, Writes, judge};
use omr_units::{Budget, Bytes};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::desk::{Desk, disk, group};

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
fn the_smallest_sweep_may_use_up_the_rest_of_the_budget() {
    let judged = |written| {
        let mut desk = Desk::new([group(1, 1000, 0)]);
        desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::mib(300), hours: 24 });
        desk.machine.swap = disk(4000, 4000);
        desk.state.writes.add(desk.hour, written);
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job.amount)
    };
    assert_eq!(judged(Bytes::mib(298)), Ok(Bytes::mib(2)));
    assert!(matches!(judged(Bytes::mib(298) + Bytes(1)), Err(Reason::WriteBudget { .. })));
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

/// The saved writes of these hours, as MiB.
fn saved(writes: &Writes) -> Vec<(u64, u64)> {
    let text = serde_json::to_string(writes).expect("writes are plain data");
    let hours: Vec<(u64, u64)> = serde_json::from_str(&text).expect("hours and bytes");
    hours.into_iter().map(|(hour, bytes)| (hour, bytes >> 20)).collect()
}

#[test]
fn writes_of_an_hour_in_the_future_expire_a_day_after_the_clock_is_right_again() {
    let budget = Some(Budget { bytes: Bytes::mib(100), hours: 24 });
    let mut writes = Writes::default();
    writes.add(1990, Bytes::mib(10));
    writes.add(2000, Bytes::mib(60));
    writes.settle(1995);
    assert_eq!(saved(&writes), [(1990, 10), (1995, 60)]);
    for (hour, left) in [(1995, 30), (2013, 30), (2014, 40), (2018, 40), (2019, 100)] {
        assert_eq!(writes.left(hour, budget), Bytes::mib(left), "hour {hour}");
    }
}

#[test]
fn one_sum_is_kept_for_each_hour_of_a_day() {
    let mut writes = Writes::default();
    writes.settle(1000);
    assert_eq!(saved(&writes), []);
    for hour in 1000..1050 {
        writes.add(hour, Bytes::mib(1));
        writes.add(hour, Bytes::mib(2));
    }
    assert_eq!(saved(&writes), (1026..1050).map(|hour| (hour, 3)).collect::<Vec<_>>());
    // The sum of an hour in the future joins that of this hour.
    writes.settle(1048);
    assert_eq!(saved(&writes).last(), Some(&(1048, 6)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_day_sees_more_than_its_budget(steps in vec((0u64..30, 0u64..200), 1..60)) {
        let budget = Some(Budget { bytes: Bytes::mib(300), hours: 24 });
        let (mut writes, mut hour, mut log) = (Writes::default(), 1000, Vec::new());
        for (hours, wish) in steps {
            hour += hours;
            let written = Bytes::mib(wish).min(writes.left(hour, budget));
            writes.add(hour, written);
            log.push((hour, written));
            let day = log.iter().filter(|(then, _)| then + 24 > hour).map(|(_, bytes)| *bytes).sum::<Bytes>();
            prop_assert!(day <= Bytes::mib(300));
            prop_assert!(writes.within(hour, 24) == day);
        }
    }

    #[test]
    fn a_clock_that_goes_back_and_stays_there_never_refills_the_budget(steps in vec((0u64..3000, 0u64..100), 1..40)) {
        let budget = Some(Budget { bytes: Bytes::mib(5000), hours: 24 });
        let (mut writes, mut hour, mut all) = (Writes::default(), 200_000, Bytes::ZERO);
        for (back, mib) in steps {
            hour -= back;
            writes.add(hour, Bytes::mib(mib));
            all += Bytes::mib(mib);
            prop_assert_eq!(writes.left(hour, budget), Bytes::mib(5000) - all);
        }
    }
}
