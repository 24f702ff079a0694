//! The watch on a running sweep: has foreground work begun?

use std::time::Duration;

use omr_policy::busy::{BusyWatch, Step, Yielding};
use omr_policy::{Reason, Stop};
use omr_units::{Monotonic, Permyriad};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::desk::millis;
use crate::simulation::model::Chance;

#[test]
fn work_in_the_foreground_stops_a_sweep_within_two_samples() {
    let sample = millis(20);
    // It may begin anywhere in a sample, and wait up to one in ten for its CPU.
    for before in 0..20 {
        let mut watch = BusyWatch::new(&Stop::default(), Permyriad::percent(5));
        (0..30).for_each(|_| assert_eq!(watch.sample(sample, Some(millis(1))), None));
        let first = watch.sample(sample, Some(millis(20 - before)));
        assert!(first.is_some() || watch.sample(sample, Some(millis(18))).is_some(), "{before} ms into a sample");
    }
}

#[test]
fn one_timer_tick_is_not_work() {
    let mut watch = BusyWatch::new(&Stop::default(), Permyriad::ZERO);
    for n in 0..100 {
        let used = if n % 2 == 0 { millis(10) } else { Duration::ZERO };
        assert_eq!(watch.sample(millis(20), Some(used)), None);
    }
}

#[test]
fn a_steady_load_does_not_stop_a_sweep() {
    let mut watch = BusyWatch::new(&Stop::default(), Permyriad::percent(150));
    (0..500).for_each(|_| assert_eq!(watch.sample(millis(20), Some(millis(30))), None));
    watch.sample(millis(20), Some(millis(40)));
    assert!(watch.sample(millis(20), Some(millis(40))).is_some());
}

#[test]
fn a_steady_load_that_has_gone_does_not_hide_new_work() {
    let mut watch = BusyWatch::new(&Stop::default(), Permyriad::percent(100));
    (0..200).for_each(|_| assert_eq!(watch.sample(millis(20), Some(Duration::ZERO)), None));
    watch.sample(millis(20), Some(millis(20)));
    assert!(watch.sample(millis(20), Some(millis(20))).is_some());
}

#[test]
fn samples_in_which_no_time_passed_do_not_blind_the_watch() {
    let mut watch = BusyWatch::new(&Stop::default(), Permyriad::ZERO);
    let noticed = (0..10).any(|_| {
        watch.sample(Duration::ZERO, Some(millis(10))).is_some()
            || watch.sample(millis(20), Some(Duration::ZERO)).is_some()
    });
    assert!(noticed);
}

#[test]
fn a_watch_that_cannot_see_stops_the_sweep() {
    let mut watch = BusyWatch::new(&Stop::default(), Permyriad::ZERO);
    assert!(matches!(watch.sample(millis(20), None), Some(Reason::Unknown { .. })));
}

#[test]
fn an_uneven_load_that_goes_down_may_rise_by_a_third_more_than_the_unevenness_that_is_allowed() {
    // At least half of a CPU is in use when the sweep begins, so half of a CPU more is allowed: a
    // quarter more than for an even load. A third of this quarter is 8.3 %.
    let mut watch = BusyWatch::of_cold(&Stop::default(), Permyriad::percent(50));
    let twice = |watch: &mut BusyWatch, used| [0; 2].map(|_| watch.sample(millis(20), Some(millis(used))))[1].clone();
    (0..100).for_each(|_| assert_eq!(watch.sample(millis(20), Some(Duration::ZERO)), None));
    assert_eq!(twice(&mut watch.clone(), 11), None, "55 %");
    assert!(matches!(twice(&mut watch, 12), Some(Reason::WorkBegan { .. })), "60 %");
}

#[test]
fn work_lasts_where_the_load_of_a_whole_second_is_more_than_is_allowed() {
    // 25 % of a CPU are allowed.
    let lasting = |used| {
        let mut watch = BusyWatch::new(&Stop::default(), Permyriad::ZERO);
        (0..50).for_each(|_| drop(watch.sample(millis(20), Some(used))));
        watch.is_work_lasting()
    };
    assert!(!lasting(millis(5)));
    assert!(lasting(millis(6)));
}

fn work() -> Option<Reason> {
    Some(Reason::WorkBegan { used: Permyriad::percent(80), allowed: Permyriad::percent(25) })
}

/// Samples each 20 ms: true where work is seen. Returns how often the sweep could write before it
/// ended, and the sample at which it did.
fn yields(samples: impl IntoIterator<Item = bool>) -> (usize, Option<usize>) {
    let mut yielding = Yielding::default();
    let mut goes = 0;
    for (index, busy) in samples.into_iter().enumerate() {
        let now = Monotonic(20_000_000 * (index as u64 + 1));
        match yielding.sample(now, busy.then(work).flatten(), true) {
            Step::Go => goes += 1,
            Step::Hold => {}
            Step::End(_) => return (goes, Some(index)),
        }
    }
    (goes, None)
}

#[test]
fn a_sweep_of_cold_memory_yields_to_a_tick_and_ends_for_work_that_lasts() {
    // A tick of 60 ms each second: the sweep waits 200 ms longer, and goes on.
    let (goes, end) = yields((0..500).map(|sample| sample % 50 < 3));
    assert_eq!((goes, end), (10 * 38, None));
    // Work for a second. Nothing is written from its first sample on.
    assert_eq!(yields((0..100).map(|sample| sample >= 10)), (10, Some(60)));
    // Work with short gaps lasts as well.
    let (goes, end) = yields((0..200).map(|sample| sample % 8 != 0));
    assert!(goes <= 1 && end.is_some_and(|end| end <= 60), "{goes} {end:?}");
    // Where work cannot be seen, it ends at once.
    let unknown = Some(Reason::Unknown { signal: "it".into() });
    assert!(matches!(Yielding::default().sample(Monotonic(1), unknown, false), Step::End(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, nothing is written in a sample with work, nor in the ten after it.
    #[test]
    fn nothing_is_written_near_work(samples in vec(any::<bool>(), 1..200), patient: bool, lasting: bool) {
        let mut yielding = if patient { Yielding::patient() } else { Yielding::default() };
        let mut last = None;
        for (index, busy) in samples.into_iter().enumerate() {
            let step = yielding.sample(Monotonic(20_000_000 * (index as u64 + 1)), busy.then(work).flatten(), lasting);
            last = if busy { Some(index) } else { last };
            prop_assert!(step != Step::Go || last.is_none_or(|last| index - last >= 10));
            if matches!(step, Step::End(_)) {
                break;
            }
        }
    }

    #[test]
    fn more_work_stops_a_sweep_no_later(samples in vec((0u64..40, 0u64..40), 2..50), more in 0u64..40) {
        let mut watch = BusyWatch::new(&Stop::default(), Permyriad::percent(20));
        let mut stops = false;
        for (dt, used) in samples {
            let mut busier = watch.clone();
            stops |= watch.sample(millis(dt), Some(millis(used))).is_some();
            if stops {
                prop_assert!(busier.sample(millis(dt), Some(millis(used + more))).is_some());
                break;
            }
        }
    }
}

/// Watches a sweep of cold memory by samples of 20 ms, in which this much CPU time is used. Returns
/// in how many samples it could write, and in which one it ended.
fn watches(least: Permyriad, mut watch: BusyWatch, used: impl IntoIterator<Item = u64>) -> (usize, Option<usize>) {
    assert!(watch == BusyWatch::of_cold(&Stop::default(), least) || watch == BusyWatch::new(&Stop::default(), least));
    let mut yielding = Yielding::patient();
    let mut goes = 0;
    for (index, used) in used.into_iter().enumerate() {
        let now = Monotonic(20_000_000 * (index as u64 + 1));
        match yielding.watch(now, &mut watch, millis(20), Some(Duration::from_micros(used))) {
            Step::Go => goes += 1,
            Step::Hold => {}
            Step::End(_) => return (goes, Some(index)),
        }
    }
    (goes, None)
}

fn of_cold(percent: u32) -> (Permyriad, BusyWatch) {
    let least = Permyriad::percent(percent);
    (least, BusyWatch::of_cold(&Stop::default(), least))
}

/// CPU time of a server in samples: requests of 2 ms on average that come at random.
fn requests(seed: u64, percent: u32, samples: usize) -> Vec<u64> {
    let mut chance = Chance::new(seed);
    let mean = Duration::from_micros(200_000 / u64::from(percent));
    let mut used = vec![0; samples];
    let mut at = chance.soon(mean);
    while let Some(sample) = used.get_mut(usize::try_from(at.as_millis() / 20).expect("small")) {
        *sample += u64::try_from(chance.soon(millis(2)).as_micros()).expect("small");
        at += chance.soon(mean);
    }
    used
}

#[test]
fn the_uneven_load_of_a_server_does_not_end_a_sweep_of_cold_memory() {
    for (percent, goes_at_least, ends) in [(80, 500, 0), (160, 150, 0), (320, 25, 6)] {
        let runs = (0..20).map(|seed| {
            // The least of ten seconds.
            let before = requests(seed + 100, percent, 500);
            let least = before.chunks(50).map(|second| second.iter().sum::<u64>()).min().expect("ten");
            let least = Permyriad(u32::try_from(least / 100).expect("small"));
            let watch = BusyWatch::of_cold(&Stop::default(), least);
            watches(least, watch, requests(seed, percent, 1500))
        });
        let runs: Vec<_> = runs.collect();
        assert!(runs.iter().all(|(goes, _)| *goes >= goes_at_least), "{percent} %: {runs:?}");
        assert!(runs.iter().filter(|(_, end)| end.is_some()).count() <= ends, "{percent} %: {runs:?}");
    }
    // The control: a watch for an idle machine gets nowhere.
    let least = Permyriad::percent(300);
    let goes = (0..20).map(|seed| watches(least, BusyWatch::new(&Stop::default(), least), requests(seed, 320, 1500)).0);
    assert!(goes.sum::<usize>() < 20 * 40);
}

#[test]
fn work_on_top_of_any_load_holds_a_sweep_of_cold_memory_at_once_and_ends_it_within_seconds() {
    for percent in [0, 20, 40, 80, 160, 640, 6400] {
        let (least, watch) = of_cold(percent);
        let steady = u64::from(percent) * 200;
        let (goes, end) = watches(least, watch, (0..400).map(|n| steady + if n < 100 { 0 } else { 20_000 }));
        assert!(goes <= 101 && end.is_some_and(|end| end <= 220), "{percent} %: {goes} {end:?}");
        // The control.
        let (least, watch) = of_cold(percent);
        assert_eq!(watches(least, watch, (0..400).map(|_| steady)), (400, None));
    }
}

#[test]
fn work_that_comes_and_goes_lets_a_sweep_of_cold_memory_get_on_or_ends_it() {
    for (on, off, goes_at_least, ends) in [(25, 25, 10 * 14, false), (5, 45, 10 * 34, false), (50, 50, 35, true)] {
        let (least, watch) = of_cold(0);
        let used = (0..500).map(|n| if n % (on + off) < off { 0 } else { 20_000 });
        let (goes, end) = watches(least, watch, used);
        assert!(goes >= goes_at_least && end.is_some() == ends, "{on} on, {off} off: {goes} {end:?}");
    }
    // Work for 30 s that is uneven: no gap of 200 ms in it. It ends after 10 s at most.
    let (least, watch) = of_cold(0);
    let (_, end) = watches(least, watch, (0..1500).map(|n| if n % 10 == 0 { 12_000 } else { 0 }));
    assert!(end.is_some_and(|end| end <= 520), "{end:?}");
}
