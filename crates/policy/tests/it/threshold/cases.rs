//! Single cases of the threshold.

use std::time::Duration;

use omr_policy::Objective;
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
    assert_eq!((Step::LEAST.shorter(), Step::MOST.shorter()), (None, Some(step(STEPS - 2))));
    assert_eq!((Step::not_below(minutes(4)), Step::not_below(minutes(5))), (step(1), step(2)));
    assert_eq!((Step::not_below(Duration::ZERO), Step::not_below(Duration::MAX)), (Step::LEAST, Step::MOST));
}

#[test]
fn a_group_is_aged_for_twice_the_age_that_comes_next() {
    for pair in Step::all().collect::<Vec<_>>().windows(2) {
        assert_eq!(pair[1].observed() / 2, pair[0].age(), "an aging every half of it judges {pair:?}");
    }
    assert_eq!(Step::LEAST.observed(), minutes(2));
    assert_eq!(Step::not_below(minutes(15)).observed(), minutes(16));
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
fn the_objective_of_the_configuration_is_stricter_on_a_disk_and_has_its_bounds_in_order() {
    let objective = Objective { shortest: minutes(5), longest: minutes(60), ..Objective::default() };
    let slo = objective.slo(false, Bytes::kib(16));
    // 20 permyriad are 0.2 %, which is 2,000 millionths.
    assert_eq!((slo.promotions, slo.page), (PromotionRate::FAST, Bytes::kib(16)));
    assert_eq!((slo.least, slo.most), (Step::not_below(minutes(5)), Step::not_below(minutes(60))));
    assert_eq!((slo.kept, slo.warm_up), (objective.kept, objective.warm_up));
    assert_eq!(objective.slo(true, Bytes::kib(4)).promotions, PromotionRate::FLOOR);
    let turned = Objective { shortest: minutes(60), longest: minutes(5), ..objective }.slo(false, Bytes::kib(4));
    assert_eq!((turned.least, turned.most), (Step::not_below(minutes(5)), Step::not_below(minutes(5))));
}

#[test]
fn a_group_is_only_observed_at_first_and_then_goes_down_step_by_step() {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    for minute_of_warm_up in 1..10 {
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
        broken.promoted[1] = Promoted { age: Step::MOST.age(), bytes: exactly(Bytes::mib(9)) };
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
fn where_p_lies_between_the_bounds_nothing_moves_and_nothing_is_learned() {
    let slo = Slo::default();
    let seen = |least, most| {
        let mut seen = minute(Bytes::ZERO);
        seen.promoted[0].bytes = Bounds { least, most };
        seen
    };
    // 1 MiB is allowed.
    let (below, above) = (Bytes::kib(512), Bytes::mib(2));
    let after = |unclear: Interval| {
        let mut threshold = settled(&slo);
        let kept = threshold.kept(Step::LEAST);
        let moved = (0..200).map(|_| threshold.observe(&slo, &unclear)).last().expect("a move");
        (moved.to, threshold.kept(Step::LEAST) == kept)
    };
    assert_eq!(after(seen(below, above)), (Step::LEAST, true));
    // The control: the least is above.
    assert!(after(seen(Bytes::mib(1) + Bytes::kib(1), above)).0 > Step::LEAST);
    // A threshold above comes down as soon as it is clear, without an hour of rest.
    let mut threshold = Threshold::new(&slo);
    let last = (0..100).map(|_| threshold.observe(&slo, &seen(below, above))).last().expect("a move");
    assert_eq!(last.to, step(1), "{}", last.reason);
    assert!(matches!(&last.reason, Reason::Unclear(figures) if figures.promoted == above), "{}", last.reason);
    assert_eq!(threshold.observe(&slo, &seen(below, below)).to, Step::LEAST);
}

#[test]
fn a_group_is_observed_at_the_shortest_age_below_which_t_may_go() {
    let slo = Slo { kept: Permyriad::percent(50), ..Slo::default() };
    let mut threshold = Threshold::new(&slo);
    assert_eq!(threshold.observed_at(&slo), step(1));
    // In the warm-up as well: 4 min broke P, so 8 min is next.
    threshold.observe(&slo, &interval(minutes(1), &[(1, Bytes::mib(2))]));
    assert_eq!((threshold.observed_at(&slo), threshold.step()), (step(3), Step::MOST));
    // It comes down to 8 min, which is then both.
    (0..40).for_each(|_| _ = threshold.observe(&slo, &minute(Bytes::ZERO)));
    assert_eq!((threshold.observed_at(&slo), threshold.step()), (step(2), step(2)));
    // After an hour without a breach, shorter ages are looked at again.
    (0..20).for_each(|_| _ = threshold.observe(&slo, &interval(minutes(1), &[(1, Bytes::mib(2))])));
    assert_eq!(threshold.observed_at(&slo), step(2));
    let mut late = threshold.clone();
    (0..58).for_each(|_| _ = late.observe(&slo, &minute(Bytes::ZERO)));
    assert_eq!(late.observed_at(&slo), step(2));
    (0..2).for_each(|_| _ = late.observe(&slo, &minute(Bytes::ZERO)));
    assert_eq!(late.observed_at(&slo), step(1));
    // Not where it broke P too often.
    let strict = Slo::default();
    (0..60).for_each(|_| _ = threshold.observe(&strict, &minute(Bytes::ZERO)));
    assert_eq!(threshold.observed_at(&strict), step(2));
    // Nor below the shortest threshold that is allowed.
    let long = Slo { least: step(4), ..slo };
    assert_eq!(Threshold::new(&long).observed_at(&long), step(5));
}

/// As on a machine that is so busy that agings come too late.
#[test]
fn where_an_age_stays_unclear_the_group_is_observed_at_a_longer_one_for_an_hour() {
    let slo = Slo::default();
    let mut unclear = minute(Bytes::mib(2));
    unclear.promoted[0].bytes.least = Bytes::ZERO;
    let mut threshold = Threshold::new(&slo);
    let mut observed: Vec<Step> = Vec::new();
    for _ in 0..130 {
        // At longer ages P is kept, so T is 4 min after the warm-up. Keep it above.
        let braked = Interval { write_budget_used: true, ..unclear.clone() };
        threshold.observe(&slo, &braked);
        observed.push(threshold.observed_at(&slo));
    }
    assert_eq!(threshold.step(), Step::MOST);
    let first = observed.iter().position(|&at| at == step(2)).expect("longer");
    let again = first + observed[first..].iter().position(|&at| at == step(1)).expect("shorter again");
    assert_eq!((first, again), (30, 90));
}

#[test]
fn in_a_long_interval_it_goes_down_by_a_step_a_minute() {
    let slo = Slo::default();
    let after = |length| {
        let mut threshold = Threshold::new(&slo);
        (0..10).for_each(|_| _ = threshold.observe(&slo, &minute(Bytes::ZERO)));
        threshold.observe(&slo, &interval(length, &[(0, Bytes::ZERO)])).to
    };
    assert_eq!(after(Duration::from_secs(30)), step(6));
    assert_eq!(after(minutes(3)), step(4));
    assert_eq!(after(minutes(30)), Step::LEAST);
    // It goes no further than to an age that kept P.
    let mut threshold = Threshold::new(&slo);
    (0..10).for_each(|_| _ = threshold.observe(&slo, &minute(Bytes::ZERO)));
    let moved = threshold.observe(&slo, &interval(minutes(30), &[(3, Bytes::mib(31))]));
    assert_eq!(moved.to, step(4));
    assert!(matches!(moved.reason, Reason::Kept(figures) if figures.age == step(4).age()));
}

#[test]
fn memory_that_comes_back_from_swap_raises_it_step_by_step() {
    let slo = Slo::default();
    let seen = |swapped_in| Interval { swapped_in, ..minute(Bytes::ZERO) };
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
    Interval { size: Bytes::mib(100), working_set: Some(Bytes::mib(10)), ..minute(promoted) }
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
            "2 min would have been right 95.7 % of the last day, 98 % is needed: memory unused for 2 min was used again at ",
        ),
    ] {
        assert!(reason.to_string().starts_with(text), "{reason}");
    }
    let json = serde_json::to_string(&lately).expect("plain data");
    assert_eq!(serde_json::from_str::<Reason>(&json).expect("the same"), lately);
}
