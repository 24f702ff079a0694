//! Single cases of the threshold.

use std::time::Duration;

use omr_policy::age::{AGES, Bounds};
use omr_policy::threshold::{
    Brake, Figures, Interval, Promoted, PromotionRate, Reason, SMALL, STALL, STAY, STEPS, Slo, Step, Threshold,
};
use omr_units::{Bytes, Permyriad};

use super::{exactly, interval, minute, minutes, settled};

fn step(index: usize) -> Step {
    Step::all().nth(index).expect("a step")
}

#[test]
fn the_grid_goes_from_2_min_to_8_h_in_doubled_steps_of_known_ages() {
    let ages: Vec<Duration> = Step::all().map(Step::age).collect();
    assert_eq!((ages.len(), ages[0], ages[STEPS - 1]), (STEPS, minutes(2), minutes(480)));
    for pair in ages.windows(2) {
        // An aging every half of a threshold judges the next shorter age.
        assert!(pair[0] >= pair[1] / 2 && pair[0] * 17 < pair[1] * 10, "{pair:?}");
    }
    assert!(ages.iter().all(|age| AGES.contains(age)));
    assert_eq!((Step::LEAST.shorter(), Step::MOST.longer()), (None, None));
    assert_eq!((Step::not_below(minutes(4)), Step::not_below(minutes(5))), (step(1), step(2)));
    assert_eq!((Step::not_below(Duration::ZERO), Step::not_below(Duration::MAX)), (Step::LEAST, Step::MOST));
}

#[test]
fn a_slow_device_allows_less() {
    let fast = PromotionRate::FAST;
    let at = |micros| fast.for_device(Some(Duration::from_micros(micros)));
    assert_eq!((at(0), at(6), at(12), at(60)), (fast, fast, PromotionRate(1000), PromotionRate(200)));
    assert_eq!((at(100_000), fast.for_device(None)), (PromotionRate::FLOOR, PromotionRate::FLOOR));
    // A stricter objective is not raised to the floor.
    assert_eq!(PromotionRate(50).for_device(Some(Duration::from_secs(1))), PromotionRate(50));
    let shown = [2000, 200, 10_000, 12_345, 0].map(|rate| PromotionRate(rate).to_string());
    assert_eq!(shown, ["0.2 %/min", "0.02 %/min", "1 %/min", "1.2345 %/min", "0 %/min"]);
}

#[test]
fn a_group_is_only_observed_at_first_and_then_goes_down_step_by_step() {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    for minute_of_warm_up in 0..10 {
        let moved = threshold.observe(&slo, &minute(Bytes::ZERO));
        assert_eq!((moved.to, moved.reason), (Step::MOST, Reason::WarmingUp { left: minutes(10 - minute_of_warm_up) }));
    }
    for left in (0..STEPS - 1).rev() {
        let moved = threshold.observe(&slo, &minute(Bytes::ZERO));
        assert_eq!((moved.from, moved.to), (step(left + 1), step(left)));
        assert!(matches!(moved.reason, Reason::Kept(figures) if figures.kept == Some(Permyriad::ONE)));
    }
    let reason = threshold.observe(&slo, &minute(Bytes::kib(512))).reason;
    assert!(matches!(&reason, Reason::Shortest(figures) if figures.age == Step::LEAST.age()), "{reason}");
    assert_eq!(
        reason.to_string(),
        "the shortest threshold that is allowed: memory unused for 2 min was used again at 512 KiB/min; \
         0.2 %/min of the 500 MiB in use is allowed"
    );
}

#[test]
fn a_breach_raises_it_at_once_for_an_hour_and_says_the_figures() {
    let slo = Slo { kept: Permyriad::percent(50), ..Slo::default() };
    let mut threshold = settled(&slo);
    // 1000 KiB are within 0.2 % of 500 MiB, 1025 are not.
    assert_eq!(threshold.observe(&slo, &minute(Bytes::kib(1024))).to, Step::LEAST);
    let moved = threshold.observe(&slo, &interval(minutes(1), &[(3, Bytes::kib(1025))]));
    assert_eq!((moved.from, moved.to), (Step::LEAST, step(4)));
    let Reason::Broke(figures) = moved.reason else { panic!("{:?}", moved.reason) };
    assert_eq!((figures.age, figures.promoted), (minutes(2), Bytes::kib(1025)));
    assert_eq!((figures.working_set, figures.allowed), (Bytes::mib(500), PromotionRate::FAST));
    for passed in 1..60 {
        let moved = threshold.observe(&slo, &minute(Bytes::ZERO));
        assert_eq!(moved.to, step(4));
        assert!(matches!(moved.reason, Reason::BrokeLately { left, .. } if left == STAY - minutes(passed)));
    }
    assert_eq!(threshold.observe(&slo, &minute(Bytes::ZERO)).to, step(3));
}

#[test]
fn a_shorter_age_must_have_kept_p_in_98_percent_of_the_day() {
    let slo = Slo::default();
    let mut threshold = settled(&slo);
    threshold.observe(&slo, &minute(Bytes::mib(2)));
    // One minute of 50 is 98 %, but only with 20 min of being settled in it.
    let mut reasons = Vec::new();
    while threshold.step() > Step::LEAST {
        reasons.push(threshold.observe(&slo, &minute(Bytes::ZERO)).reason);
    }
    assert_eq!(reasons.len(), 60);
    // Three breaches more than an hour ago: 2 % of 200 min.
    for _ in 0..3 {
        threshold.observe(&slo, &minute(Bytes::mib(2)));
    }
    let mut often = 0;
    while threshold.step() > Step::LEAST {
        let moved = threshold.observe(&slo, &minute(Bytes::ZERO));
        often += u64::from(matches!(moved.reason, Reason::BrokeOften { .. }));
    }
    assert!(often > 30, "{often} min");
    // A day later they are forgotten.
    for _ in 0..24 * 60 {
        threshold.observe(&slo, &minute(Bytes::ZERO));
    }
    assert_eq!(threshold.kept(Step::LEAST), Some(Permyriad::ONE));
}

#[test]
fn brakes_hold_it_and_never_raise_it() {
    let slo = Slo::default();
    let quiet = minute(Bytes::ZERO);
    let stall = Permyriad(STALL.0 + 1);
    for (seen, brake) in [
        (Interval { stalled: Some(stall), ..quiet.clone() }, Brake::Stall { share: stall, allowed: STALL }),
        (Interval { write_budget_used: true, ..quiet.clone() }, Brake::WriteBudget),
        (Interval { swap_at_floor: true, ..quiet.clone() }, Brake::SwapFloor),
    ] {
        let mut threshold = Threshold::new(&slo);
        (0..12).for_each(|_| _ = threshold.observe(&slo, &quiet));
        let moved = threshold.observe(&slo, &seen);
        assert_eq!(moved.from, moved.to);
        assert!(matches!(moved.reason, Reason::Braked { brake: found, .. } if found == brake), "{:?}", moved.reason);
        // A breach raises it all the same.
        let mut broken = seen;
        broken.promoted[0].bytes = exactly(Bytes::mib(9));
        broken.promoted[1].bytes = exactly(Bytes::mib(9));
        assert_eq!(threshold.observe(&slo, &broken).to, Step::MOST);
    }
}

#[test]
fn an_age_between_the_steps_bounds_the_next_longer_one() {
    let slo = Slo::default();
    let seen = |half: Bytes| {
        let at = |minutes_, bytes| Promoted { age: minutes(minutes_), bytes: exactly(bytes) };
        Interval { promoted: vec![at(210, half), at(480, Bytes::ZERO)], ..minute(Bytes::ZERO) }
    };
    // T is 8 h, and the next step is 4 h.
    for (half, to) in [(Bytes::ZERO, step(STEPS - 2)), (Bytes::mib(2), Step::MOST)] {
        let mut threshold = Threshold::new(&slo);
        (0..11).for_each(|_| _ = threshold.observe(&slo, &seen(half)));
        assert_eq!(threshold.step(), to);
    }
    // Below 3.5 h nothing is known, so it goes no further.
    let mut threshold = Threshold::new(&slo);
    let last = (0..30).map(|_| threshold.observe(&slo, &seen(Bytes::ZERO))).last().expect("a move");
    assert_eq!((last.to, last.reason), (step(STEPS - 2), Reason::Unknown));
}

#[test]
fn an_age_longer_than_the_observation_can_keep_p_and_cannot_break_it() {
    let slo = Slo::default();
    let seen = |promoted, reach| {
        let at = Promoted { age: minutes(4), bytes: exactly(promoted) };
        Interval { promoted: vec![at], reach, ..minute(Bytes::ZERO) }
    };
    let kept = |promoted, reach| {
        let mut threshold = Threshold::new(&slo);
        (0..20).for_each(|_| _ = threshold.observe(&slo, &seen(promoted, reach)));
        threshold.kept(step(3))
    };
    assert_eq!(kept(Bytes::ZERO, minutes(4)), Some(Permyriad::ONE));
    assert_eq!(kept(Bytes::mib(2), minutes(4)), None);
    // The control: the group was observed for that long.
    assert_eq!(kept(Bytes::mib(2), minutes(15)), Some(Permyriad::ZERO));
}

#[test]
fn memory_that_comes_back_from_swap_raises_it_step_by_step() {
    let slo = Slo::default();
    // Nothing can be told of longer ages, as after a start of the daemon.
    let seen = |swapped_in| Interval { swapped_in, reach: minutes(1), ..minute(Bytes::ZERO) };
    let mut threshold = settled(&slo);
    for index in 1..4 {
        assert_eq!(threshold.observe(&slo, &seen(Bytes::mib(2))).to, step(index));
    }
    // The control: what comes back is within P, 1 MiB a minute.
    assert_eq!(threshold.observe(&slo, &seen(Bytes::mib(1))).to, step(3));
}

#[test]
fn where_no_age_kept_p_it_goes_to_the_longest() {
    let slo = Slo { most: step(5), ..Slo::default() };
    let mut threshold = settled(&slo);
    let moved = threshold.observe(&slo, &interval(minutes(1), &[(STEPS - 1, Bytes::mib(2))]));
    assert_eq!(moved.to, step(5));
    assert!(matches!(
        threshold.observe(&slo, &interval(minutes(1), &[(STEPS - 1, Bytes::mib(2))])).reason,
        Reason::Broke(_)
    ));
}

/// A minute of a group of 100 MiB with a working set of 10 MiB: 20 KiB are allowed a minute.
fn small(promoted: Bytes) -> Interval {
    Interval { size: Bytes::mib(100), working_set: Some(exactly(Bytes::mib(10))), ..minute(promoted) }
}

#[test]
fn a_small_group_is_judged_over_ten_minutes_with_eight_pages_free() {
    let slo = Slo::default();
    let settled = || {
        let mut threshold = Threshold::new(&slo);
        (0..160).for_each(|_| _ = threshold.observe(&slo, &small(Bytes::ZERO)));
        assert_eq!(threshold.step(), Step::LEAST);
        threshold
    };
    // 10 MiB x 0.2 % x 10 min and 32 KiB are 236.8 KiB.
    for (burst, to) in [(Bytes::kib(236), Step::LEAST), (Bytes::kib(237), step(1))] {
        let mut threshold = settled();
        let moved = threshold.observe(&slo, &small(burst));
        assert_eq!(moved.to, to, "at once, not after ten minutes");
        let last = (0..9).map(|_| threshold.observe(&slo, &small(Bytes::ZERO))).last().expect("a move");
        assert_eq!(last.to, to);
    }
    let mut threshold = settled();
    let moved = threshold.observe(&slo, &small(Bytes::kib(100)));
    assert_eq!(moved.reason, Reason::Gathering { left: minutes(9) });
    // A large group has nothing free, and each interval counts.
    let large = Interval { size: SMALL, ..small(Bytes::kib(21)) };
    assert_eq!(self::settled(&slo).observe(&slo, &large).to, step(1));
}

#[test]
fn a_small_group_that_stays_within_the_objective_comes_down() {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    (0..160).for_each(|_| _ = threshold.observe(&slo, &small(Bytes::kib(23))));
    assert_eq!(threshold.step(), Step::LEAST);
    let mut threshold = Threshold::new(&slo);
    (0..160).for_each(|_| _ = threshold.observe(&slo, &small(Bytes::kib(24))));
    assert_eq!(threshold.step(), step(1));
}

#[test]
fn the_most_of_the_promotions_counts_and_the_least_of_the_working_set() {
    let slo = Slo::default();
    let promoted = Bounds { least: Bytes::ZERO, most: Bytes::mib(2) };
    let mut seen = minute(Bytes::ZERO);
    seen.promoted[0].bytes = promoted;
    assert!(settled(&slo).observe(&slo, &seen).to > Step::LEAST);
    let mut seen = minute(Bytes::mib(1));
    assert_eq!(settled(&slo).observe(&slo, &seen).to, Step::LEAST);
    seen.working_set = Some(Bounds { least: Bytes::mib(499), most: Bytes::mib(500) });
    assert!(settled(&slo).observe(&slo, &seen).to > Step::LEAST);
}

fn figures(reason: &Reason) -> Figures {
    let Reason::BrokeLately { figures, .. } = reason else { panic!("another reason: {reason}") };
    *figures
}

#[test]
fn reasons_are_sentences_with_numbers() {
    let slo = Slo::default();
    let mut threshold = settled(&slo);
    let broke = threshold.observe(&slo, &minute(Bytes::mib(2))).reason;
    assert_eq!(
        broke.to_string(),
        "too much came back: memory unused for 2 min was used again at 2.00 MiB/min; \
         0.2 %/min of the 500 MiB in use is allowed"
    );
    let lately = threshold.observe(&slo, &minute(Bytes::ZERO)).reason;
    assert_eq!(
        lately.to_string(),
        "a shorter threshold was wrong a while ago, waiting another 59 min: \
         memory unused for 2 min was used again at 0 B/min; 0.2 %/min of the 500 MiB in use is allowed"
    );
    for (reason, text) in [
        (
            Reason::Braked { brake: Brake::SwapFloor, figures: figures(&lately) },
            "free swap is at its floor: memory unused for 2 min was used again at 0 B/min; ",
        ),
        (
            Reason::BrokeOften { needed: slo.kept, figures: figures(&lately) },
            "2 min would have been right 95.5 % of the last day, 98 % is needed: memory unused for 2 min was used again at ",
        ),
    ] {
        assert!(reason.to_string().starts_with(text), "{reason}");
    }
    let json = serde_json::to_string(&lately).expect("plain data");
    assert_eq!(serde_json::from_str::<Reason>(&json).expect("the same"), lately);
}
