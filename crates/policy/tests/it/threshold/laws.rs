//! Laws of the threshold, for every input.

use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::threshold::{Interval, Move, Promoted, Reason, STAY, Slo, Step, Threshold};
use omr_units::{Bytes, Permyriad};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{exactly, minutes};

/// A load of which the reuse times are known: each class of memory is used once in its period,
/// evenly spread. The hot set of 200 MiB is used each minute; after three hours another one is used
/// instead, which was unused for `unused`, and the classes get other periods.
struct Reuse {
    /// The size in MiB, and the period in minutes before and after.
    classes: Vec<(u64, u64, u64)>,
    unused: Duration,
}

const CHANGE: usize = 180;

impl Reuse {
    /// The promotions of a minute at an age.
    fn promoted(&self, minute: usize, age: Duration) -> Bytes {
        let of_class = |&(size, before, after): &(u64, u64, u64)| {
            let period = if minute < CHANGE { before } else { after };
            if minutes(period) >= age { Bytes(Bytes::mib(size).0 / period) } else { Bytes::ZERO }
        };
        let moved = minute == CHANGE && self.unused >= age;
        self.classes.iter().map(of_class).sum::<Bytes>() + Bytes::mib(if moved { 200 } else { 0 })
    }

    /// The minutes from the second after the change on in which the threshold broke P.
    fn broken_after_change(&self, is_blind: bool) -> usize {
        let slo = Slo::default();
        let mut threshold = Threshold::new(&slo);
        let mut broken = 0;
        for minute in 0..2 * CHANGE {
            let step = threshold.step();
            let allowed = Bytes::mib(200).0 * 2 / 1000;
            let is_over = self.promoted(minute, step.age()).0 > allowed;
            broken += usize::from(minute >= CHANGE + 2 && is_over);
            let seen = |bytes| exactly(if is_blind { Bytes::ZERO } else { bytes });
            let at = |step: Step| Promoted { age: step.age(), bytes: seen(self.promoted(minute, step.age())) };
            let seen = Interval {
                length: minutes(1),
                size: Bytes::mib(1024),
                promoted: Step::all().map(at).collect(),
                working_set: Some(Bytes::mib(200)),
                stalled: Some(Permyriad::ZERO),
                ..Interval::default()
            };
            threshold.observe(&slo, &seen);
        }
        broken
    }
}

/// The negative control of the law about phases.
#[test]
fn a_controller_that_sees_no_promotions_keeps_the_objective_broken_after_a_change() {
    let load = Reuse { classes: vec![(100, 3, 60)], unused: minutes(90) };
    assert_eq!((load.broken_after_change(false), load.broken_after_change(true)), (0, CHANGE - 2));
}

/// The ages at which promotions are told: all of the grid, or some, or ages between its steps.
fn ages() -> impl Strategy<Value = Vec<Duration>> {
    prop_oneof![
        Just(Step::all().map(Step::age).collect::<Vec<_>>()),
        vec(select(Step::all().map(Step::age).collect::<Vec<_>>()), 0..4),
        vec((1u64..600).prop_map(minutes), 0..5),
    ]
}

prop_compose! {
    /// Promotions fall with age, from around what is allowed (100 MiB in use: 205 KiB a minute).
    fn an_interval()(
        length in select(vec![1u64, 1, 1, 2, 5, 10, 30]),
        large in prop::bool::weighted(0.7),
        ages in ages(),
        falls in vec(select(vec![0u64, 0, 0, 0, 50, 100, 300]), 20),
        working_set in option::weighted(0.95, select(vec![10u64, 100, 100, 100, 120])),
        stalled in option::weighted(0.95, select(vec![0u32, 0, 0, 0, 10, 11])),
        known in select(vec![100u64, 100, 100, 50, 0]),
        swapped_in in select(vec![0u64, 0, 0, 0, 100, 300]),
        brakes in select(vec![(false, false), (false, false), (false, false), (true, false), (false, true)]),
    ) -> Interval {
        let mut ages = ages;
        ages.sort_unstable();
        let mut sum = 0;
        let amounts = falls.into_iter().map(|fall| { sum += fall * length; Bytes::kib(sum) });
        let promoted = ages.iter().rev().zip(amounts);
        Interval {
            length: minutes(length),
            size: Bytes::mib(if large { 512 } else { 200 }),
            promoted: promoted.map(|(&age, most)| Promoted { age, bytes: Bounds { least: Bytes(most.0 * known / 100), most } }).collect(),
            swapped_in: Bytes::kib(swapped_in * length),
            working_set: working_set.map(Bytes::mib),
            stalled: stalled.map(Permyriad),
            write_budget_used: brakes.0,
            swap_at_floor: brakes.1,
        }
    }
}

/// Hours in which the same few intervals come again and again, so that the threshold
/// goes down in between.
fn days() -> impl Strategy<Value = Vec<Interval>> {
    vec((an_interval(), select(vec![1usize, 1, 2, 10, 70])), 1..16)
        .prop_map(|parts| parts.into_iter().flat_map(|(seen, times)| std::iter::repeat_n(seen, times)).collect())
}

fn a_slo() -> impl Strategy<Value = Slo> {
    (0u8..=8, 0u8..=8, select(vec![50u32, 90, 98, 100]), 0u64..20).prop_map(|(one, two, kept, warm_up)| Slo {
        least: Step::try_from(one.min(two)).expect("on the grid"),
        most: Step::try_from(one.max(two)).expect("on the grid"),
        kept: Permyriad::percent(kept),
        warm_up: minutes(warm_up),
        ..Slo::default()
    })
}

fn run(slo: &Slo, days: &[Interval]) -> Vec<Move> {
    let mut threshold = Threshold::new(slo);
    days.iter().map(|seen| threshold.observe(slo, seen)).collect()
}

/// Checks that `higher` is nowhere below `lower`.
fn nowhere_below(lower: &[Move], higher: &[Move]) -> Result<(), TestCaseError> {
    for (index, (low, high)) in lower.iter().zip(higher).enumerate() {
        prop_assert!(high.to >= low.to, "interval {index}: {high:?} below {low:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn more_promotions_never_lead_to_a_lower_threshold(
        slo in a_slo(),
        days in days(),
        more in vec((any::<prop::sample::Index>(), 0usize..5, 1u64..5000), 1..6),
    ) {
        let mut worse = days.clone();
        for (index, age, bytes) in more {
            let seen = index.get_mut(&mut worse);
            if let Some(promoted) = seen.promoted.get_mut(age) {
                promoted.bytes.least += Bytes::kib(bytes / 2);
                promoted.bytes.most += Bytes::kib(bytes);
            }
        }
        nowhere_below(&run(&slo, &days), &run(&slo, &worse))?;
    }

    #[test]
    fn unknown_never_lowers_a_threshold_and_never_counts_as_better_than_no_promotions(
        slo in a_slo(),
        days in days(),
        lost in vec((any::<prop::sample::Index>(), 0u8..3), 1..40),
    ) {
        let (mut none, mut unknown) = (days.clone(), days);
        for (index, what) in lost {
            let at = index.index(none.len());
            let all = Step::all().map(|step| Promoted { age: step.age(), bytes: Bounds::default() });
            none[at].promoted = all.collect();
            none[at].working_set = Some(Bytes::mib(100));
            none[at].stalled = Some(Permyriad::ZERO);
            (none[at].write_budget_used, none[at].swap_at_floor) = (false, false);
            none[at].swapped_in = Bytes::ZERO;
            unknown[at] = none[at].clone();
            match what {
                0 => unknown[at].promoted.clear(),
                1 => unknown[at].working_set = None,
                _ => unknown[at].stalled = None,
            }
        }
        let moves = run(&slo, &unknown);
        for (moved, seen) in moves.iter().zip(&unknown) {
            let is_unknown = seen.promoted.is_empty() || seen.working_set.is_none() || seen.stalled.is_none();
            prop_assert!(!is_unknown || moved.to >= moved.from);
        }
        nowhere_below(&run(&slo, &none), &moves)?;
    }

    #[test]
    fn a_threshold_stays_within_its_bounds_and_goes_down_by_a_step_a_minute(slo in a_slo(), days in days()) {
        let mut before = slo.most;
        for (moved, seen) in run(&slo, &days).into_iter().zip(&days) {
            prop_assert_eq!(moved.from, before);
            prop_assert!(moved.to >= slo.least && moved.to <= slo.most);
            if moved.to < moved.from {
                // A small group is judged by less than ten minutes and one interval.
                let minutes = seen.length.as_secs() / 60 + 9;
                prop_assert!(u64::from(u8::from(moved.from) - u8::from(moved.to)) <= minutes);
                prop_assert!(matches!(moved.reason, Reason::Kept(figures) if figures.kept >= Some(slo.kept)));
                prop_assert!(!seen.write_budget_used && !seen.swap_at_floor && seen.stalled <= Some(Permyriad(10)));
            }
            if moved.to > moved.from {
                prop_assert!(matches!(moved.reason, Reason::Broke(_)));
            }
            before = moved.to;
        }
    }

    #[test]
    fn after_a_rise_it_does_not_go_back_for_an_hour(slo in a_slo(), days in days()) {
        let (mut now, mut risen) = (Duration::ZERO, None);
        for (moved, seen) in run(&slo, &days).into_iter().zip(&days) {
            now += seen.length;
            if let Some((at, to)) = risen && now.saturating_sub(at) < STAY {
                prop_assert!(moved.to >= to, "{:?} after {:?}", moved, now.saturating_sub(at));
            }
            if moved.to > moved.from {
                risen = Some((now, moved.to));
            }
        }
    }

    /// A breach is answered in the next interval: the new threshold would have kept P in this one.
    #[test]
    fn a_breach_is_answered_at_once(days in days()) {
        let slo = Slo::default();
        let large = |seen: Interval| Interval { size: Bytes::mib(512), ..seen };
        let days: Vec<Interval> = days.into_iter().map(large).collect();
        for (moved, seen) in run(&slo, &days).into_iter().zip(&days) {
            let Some(working_set) = seen.working_set else { continue };
            let longer = seen.promoted.iter().filter(|promoted| promoted.age >= moved.to.age());
            let Some(least) = longer.map(|promoted| promoted.bytes.least).max() else { continue };
            let allowed = u128::from(working_set.0) * 2000 * seen.length.as_millis() / 60_000;
            let keeps = u128::from((least.0 >> 10) << 10) * 1_000_000 <= allowed;
            prop_assert!(keeps || moved.to == Step::MOST, "{moved:?} {seen:?}");
        }
    }

    #[test]
    fn after_a_change_of_phase_the_objective_holds_again_within_two_intervals(
        classes in vec((1u64..200, 1u64..400, 1u64..400), 0..6),
        unused in 3u64..600,
    ) {
        let load = Reuse { classes, unused: minutes(unused) };
        prop_assert_eq!(load.broken_after_change(false), 0);
    }

    #[test]
    fn saved_and_loaded_at_any_moment_it_decides_the_same(slo in a_slo(), days in days()) {
        let through = run(&slo, &days);
        let mut threshold = Threshold::new(&slo);
        for (index, seen) in days.iter().enumerate() {
            prop_assert_eq!(&threshold.observe(&slo, seen), &through[index]);
            if index % 7 == 0 {
                let text = serde_json::to_string(&threshold).expect("plain data");
                let loaded: Threshold = serde_json::from_str(&text).expect("its own form");
                prop_assert_eq!(&loaded, &threshold);
                threshold = loaded;
            }
        }
        prop_assert_eq!(run(&slo, &days), through);
    }

    #[test]
    fn an_absence_at_any_moment_does_not_lower_it_and_can_be_saved(slo in a_slo(), days in days(), hours in 0u64..200) {
        let mut threshold = Threshold::new(&slo);
        days.iter().for_each(|seen| _ = threshold.observe(&slo, seen));
        let (step, kept) = (threshold.step(), Step::all().map(|step| threshold.kept(step)).collect::<Vec<_>>());
        threshold.absent(minutes(60 * hours));
        prop_assert_eq!(threshold.step(), step);
        for (step, kept) in Step::all().zip(kept) {
            prop_assert!(threshold.kept(step) <= kept);
        }
        let text = serde_json::to_string(&threshold).expect("plain data");
        prop_assert_eq!(serde_json::from_str::<Threshold>(&text).expect("its own form"), threshold);
    }

    #[test]
    fn wild_values_never_panic(
        numbers in vec(select(vec![0u64, 1, 4096, 1 << 40, u64::MAX - 1, u64::MAX]), 8),
        times in vec(select(vec![Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(59), minutes(700), Duration::MAX]), 4),
        slo in a_slo(),
        rate: u32,
    ) {
        let slo = Slo { promotions: omr_policy::threshold::PromotionRate(rate), page: Bytes(numbers[7]), ..slo };
        let mut threshold = Threshold::new(&slo);
        for turn in 0..8 {
            let number = |index: usize| Bytes(numbers[(turn + index) % 8]);
            let seen = Interval {
                length: times[turn % 4],
                size: number(0),
                promoted: vec![Promoted { age: times[(turn + 1) % 4], bytes: Bounds { least: number(1), most: number(2) } }],
                swapped_in: number(0),
                working_set: Some(number(3)),
                stalled: Some(Permyriad(rate)),
                write_budget_used: false,
                swap_at_floor: false,
            };
            let moved = threshold.observe(&slo, &seen);
            prop_assert!(moved.to >= slo.least && moved.to <= slo.most && !moved.reason.to_string().is_empty());
            threshold.absent(times[(turn + 2) % 4]);
            let text = serde_json::to_string(&threshold).expect("plain data");
            prop_assert!(serde_json::from_str::<Threshold>(&text).is_ok(), "{text}");
        }
    }
}
