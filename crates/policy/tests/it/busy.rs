//! The watch on a running sweep: has foreground work begun?

use std::time::Duration;

use omr_policy::busy::{BusyWatch, Step, Yielding};
use omr_policy::{Reason, Stop};
use omr_units::{Monotonic, Permyriad};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::desk::millis;

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
        match yielding.sample(now, busy.then(work).flatten()) {
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
    assert!(matches!(Yielding::default().sample(Monotonic(1), unknown), Step::End(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, nothing is written in a sample with work, nor in the ten after it.
    #[test]
    fn nothing_is_written_near_work(samples in vec(any::<bool>(), 1..200)) {
        let mut yielding = Yielding::default();
        let mut last = None;
        for (index, busy) in samples.into_iter().enumerate() {
            let step = yielding.sample(Monotonic(20_000_000 * (index as u64 + 1)), busy.then(work).flatten());
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
