//! Trials: with how much memory a group can live.

use std::time::Duration;

use omr_policy::trial::{
    Bottom, Breach, Ended, Guard, LEAST_REFAULTS, Next, Plan, SMALLEST_STEP, Trial, TrialSample, Tried,
};
use omr_units::{Bytes, Monotonic, Permyriad};
use proptest::prelude::*;

const WATCH: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(500);

fn plan() -> Plan {
    let guard = Guard { stall: Permyriad(10), refaults: Permyriad(20) };
    Plan { step: Permyriad::percent(10), floor: Bytes::ZERO, target: None, watch: WATCH, hold: HOLD, guard }
}

/// A group that uses some of its memory, without a kernel.
struct Group {
    seen: TrialSample,
    uses: Bytes,
    /// Cannot be brought below this.
    stuck_at: Bytes,
    limit: Option<Bytes>,
}

impl Group {
    fn new(mib: u64, uses: u64) -> Self {
        let seen = TrialSample {
            at: Monotonic(1),
            current: Bytes::mib(mib),
            stall: Some(Duration::ZERO),
            refaults: Some(Bytes::ZERO),
        };
        Group { seen, uses: Bytes::mib(uses), stuck_at: Bytes::ZERO, limit: None }
    }

    fn pass(&mut self) {
        self.seen.at = self.seen.at + TICK;
        let lacks = self.uses - self.limit.unwrap_or(Bytes::MAX);
        self.seen.refaults = self.seen.refaults.map(|bytes| bytes + lacks);
        self.seen.stall = self.seen.stall.map(|stall| if lacks.0 > 0 { stall + TICK / 2 } else { stall });
    }

    /// To the end; the limits it had, `None` its own.
    fn try_all(&mut self, plan: Plan) -> (Trial, Vec<Option<Bytes>>) {
        let mut trial = Trial::new(plan, self.seen);
        let mut limits = Vec::new();
        let mut next = trial.next(&self.seen);
        for _ in 0..2_000_000 {
            let arrived = match next {
                Next::Limit(size) => {
                    let reached = size >= self.stuck_at;
                    if reached {
                        self.limit = Some(size);
                        self.seen.current = self.seen.current.min(size);
                        limits.push(self.limit);
                    }
                    Some(reached)
                }
                Next::Wait => None,
                Next::GiveBack => {
                    self.limit = None;
                    limits.push(None);
                    None
                }
                Next::End => return (trial, limits),
            };
            self.pass();
            next = match arrived {
                Some(reached) => trial.arrived(reached, &self.seen),
                None => trial.next(&self.seen),
            };
        }
        panic!("it does not end: {trial:?}");
    }
}

#[test]
fn it_goes_down_to_the_last_size_that_holds_and_holds_it() {
    let (trial, limits) = Group::new(160, 64).try_all(plan());
    let held = trial.held().expect("a size held");
    assert!(held >= Bytes::mib(64) && held.share(Permyriad::percent(90)) < Bytes::mib(64), "{held}");
    assert_eq!(trial.bottom(), Some(Bottom::Guard));
    let ends: Vec<Ended> = trial.tried().iter().map(|tried| tried.ended).collect();
    let good = ends.iter().take_while(|ended| **ended == Ended::Good).count();
    assert!(matches!(ends[good..], [Ended::Broken(_), Ended::Held]), "{ends:?}");
    assert_eq!(limits[limits.len() - 2..], [None, Some(held)]);
    assert!(trial.tried().last().expect("one").time >= HOLD);
}

#[test]
fn a_group_that_uses_all_of_its_memory_gets_it_back_at_the_next_sample() {
    let mut group = Group::new(160, 160);
    let (trial, limits) = group.try_all(plan());
    assert_eq!((trial.held(), trial.good(), trial.bottom()), (None, None, Some(Bottom::Guard)));
    assert_eq!(limits, [Some(Bytes::mib(144)), None]);
    let tried = trial.tried();
    assert!(matches!(tried, [full, first] if full.ended == Ended::Good && matches!(first.ended, Ended::Broken(_))));
    assert_eq!(tried[1].time, TICK);
}

#[test]
fn a_group_rests_after_its_limit_was_given_back() {
    let start = Group::new(160, 64).seen;
    let mut trial = Trial::new(plan(), start);
    let at =
        |time: Duration, refaults| TrialSample { at: start.at + time, refaults: Some(Bytes::mib(refaults)), ..start };
    // Two sizes are good, the third is not; what comes back in the rest is not held against any.
    let smaller = |size: Bytes| size - size.share(Permyriad::percent(10));
    let second = smaller(Bytes::mib(144));
    let sizes = [second, smaller(second)].map(Next::Limit);
    assert_eq!(trial.next(&at(WATCH, 0)), Next::Limit(Bytes::mib(144)));
    for (looks, size) in [(1, sizes[0]), (2, sizes[1])] {
        assert_eq!(trial.arrived(true, &at(looks * WATCH, 0)), Next::Wait);
        assert_eq!(trial.next(&at((looks + 1) * WATCH, 0)), size);
    }
    assert_eq!(trial.arrived(true, &at(3 * WATCH, 50)), Next::GiveBack);
    assert_eq!(trial.next(&at(4 * WATCH - TICK, 100)), Next::Wait);
    assert_eq!(trial.next(&at(4 * WATCH, 100)), sizes[0]);
}

#[test]
fn a_group_that_breaks_the_guard_without_a_limit_is_not_tried() {
    let mut group = Group::new(160, 64);
    let mut trial = Trial::new(plan(), group.seen);
    assert_eq!(trial.next(&group.seen), Next::Wait);
    group.pass();
    group.seen.stall = Some(Duration::from_millis(31));
    assert_eq!(trial.next(&group.seen), Next::End);
    assert_eq!((trial.bottom(), trial.held()), (Some(Bottom::Full), None));
}

#[test]
fn the_guard_allows_an_amount_for_one_watch_and_unknown_counters_break_it() {
    let start = Group::new(1000, 64).seen;
    // 0.1 % of 30 s; 0.2 % of 1000 MiB in a minute is half of that in one watch.
    for (stall, refaults, breach) in [
        (Some(30), Some(1000), None),
        (Some(31), Some(0), Some(Breach::Stall)),
        (Some(0), Some(1024), None),
        (Some(0), Some(1025), Some(Breach::Refaults)),
        (None, Some(0), Some(Breach::Unknown)),
        (Some(0), None, Some(Breach::Unknown)),
    ] {
        let trial = Trial::new(plan(), start);
        let seen = TrialSample {
            at: start.at + TICK,
            stall: stall.map(Duration::from_millis),
            refaults: refaults.map(Bytes::kib),
            ..start
        };
        assert_eq!(trial.breach(&seen), breach, "{stall:?} {refaults:?}");
        // After another watch the allowance is as large again.
        assert_eq!(
            trial.breach(&TrialSample { at: start.at + 2 * WATCH, ..seen }).is_some(),
            stall.is_none() || refaults.is_none()
        );
    }
    // In a small group one batch of the kernel may come back.
    let small = Group::new(10, 1).seen;
    let seen = |bytes| TrialSample { refaults: Some(bytes), ..small };
    assert_eq!(Trial::new(plan(), small).breach(&seen(LEAST_REFAULTS)), None);
    assert_eq!(Trial::new(plan(), small).breach(&seen(LEAST_REFAULTS + Bytes(1))), Some(Breach::Refaults));
}

#[test]
fn a_size_that_is_asked_about_is_the_last_one_tried() {
    for (size, uses, held) in [(100, 64, true), (155, 64, true), (200, 64, true), (60, 64, false)] {
        let target = Some(Bytes::mib(size));
        let (trial, limits) = Group::new(160, uses).try_all(Plan { target, ..plan() });
        assert_eq!(trial.held() == target, held, "{size} {trial:?}");
        assert!(limits.iter().flatten().all(|limit| *limit >= Bytes::mib(size)));
        assert_eq!(trial.bottom(), Some(if held { Bottom::Target } else { Bottom::Guard }));
    }
}

#[test]
fn where_it_cannot_go_lower_the_last_size_is_held() {
    let (trial, _) = Group::new(160, 0).try_all(Plan { floor: Bytes::mib(100), ..plan() });
    assert_eq!((trial.held(), trial.bottom()), (Some(Bytes::mib(100)), Some(Bottom::Floor)));
    let mut group = Group::new(160, 0);
    group.stuck_at = Bytes::mib(120);
    let (trial, limits) = group.try_all(plan());
    assert!(trial.held().is_some_and(|held| held >= Bytes::mib(120) && held < Bytes::mib(134)), "{trial:?}");
    assert_eq!(trial.bottom(), Some(Bottom::Unreached));
    assert!(limits.iter().all(Option::is_some), "there was nothing to recover from");
}

#[test]
fn each_size_is_tried_for_a_whole_watch_and_known_meanwhile() {
    let start = Group::new(160, 64).seen;
    let mut trial = Trial::new(plan(), start);
    let at = |time: Duration| TrialSample { at: start.at + time, ..start };
    assert_eq!(trial.next(&at(WATCH - TICK)), Next::Wait);
    assert_eq!(trial.size(), None, "it has its own limit");
    assert_eq!(trial.next(&at(WATCH)), Next::Limit(Bytes::mib(144)));
    assert_eq!(trial.size(), Some(Bytes::mib(144)));
    assert_eq!(trial.arrived(true, &at(WATCH)), Next::Wait);
    assert_eq!(trial.next(&at(2 * WATCH - TICK)), Next::Wait);
    assert!(matches!(trial.next(&at(2 * WATCH)), Next::Limit(size) if size < Bytes::mib(144)));
}

/// A trial that holds 144 MiB, whose group has refaulted a GiB before.
fn holding() -> (Trial, TrialSample) {
    let start = TrialSample { refaults: Some(Bytes::mib(1024)), ..Group::new(160, 64).seen };
    let mut trial = Trial::new(Plan { floor: Bytes::mib(144), ..plan() }, start);
    let later = |time: Duration| TrialSample { at: start.at + time, current: Bytes::mib(144), ..start };
    assert_eq!(trial.next(&TrialSample { current: start.current, ..later(WATCH) }), Next::Limit(Bytes::mib(144)));
    assert_eq!(trial.arrived(true, &later(WATCH)), Next::Wait);
    assert_eq!(trial.next(&later(2 * WATCH)), Next::Limit(Bytes::mib(144)), "the same, to hold it");
    assert_eq!(trial.arrived(true, &later(2 * WATCH)), Next::Wait);
    (trial, later(2 * WATCH))
}

/// 0.2 % of 144 MiB in a minute are 147 KiB in one watch.
#[test]
fn while_a_size_is_held_each_watch_has_the_allowance_and_not_each_sample() {
    let (mut trial, mut seen) = holding();
    let mut back = |kib: u64, time: Duration| {
        seen.at = seen.at + time;
        seen.refaults = seen.refaults.map(|bytes| bytes + Bytes::kib(kib));
        trial.next(&seen)
    };
    for watch in 0..5 {
        assert_eq!(back(140, WATCH), Next::Wait, "watch {watch}");
    }
    assert_eq!(back(50, TICK), Next::Wait);
    assert_eq!(back(50, TICK), Next::Wait);
    assert_eq!(back(50, TICK), Next::GiveBack);
    assert_eq!(trial.size(), None);
}

#[test]
fn refaults_before_a_trial_are_not_its_refaults() {
    let (trial, _) = holding();
    assert!(trial.tried().iter().all(|tried| tried.refaults == Bytes::ZERO), "{:?}", trial.tried());
}

#[test]
fn the_harm_of_a_size_is_told_as_shares_of_time_and_of_the_size() {
    let tried = |time| Tried {
        size: Bytes::mib(100),
        current: Bytes::mib(90),
        time,
        stall: Duration::from_millis(600),
        refaults: Bytes::mib(1),
        ended: Ended::Good,
    };
    let minute = tried(Duration::from_secs(60));
    assert_eq!((minute.stall_share(), minute.refault_share()), (Some(Permyriad(100)), Some(Permyriad(99))));
    let half = tried(Duration::from_secs(30));
    assert_eq!((half.stall_share(), half.refault_share()), (Some(Permyriad(200)), Some(Permyriad(199))));
    assert_eq!((tried(Duration::ZERO).stall_share(), tried(Duration::ZERO).refault_share()), (None, None));
    assert_eq!(Tried { size: Bytes::ZERO, ..minute }.refault_share(), None);
}

#[test]
fn a_step_that_the_counters_of_the_kernel_cannot_tell_is_not_tried() {
    let floor = Bytes::mib(100);
    let tried = |above: Bytes| {
        let mut group = Group::new(0, 0);
        group.seen.current = floor + above;
        let (trial, limits) = group.try_all(Plan { floor, ..plan() });
        (trial.bottom(), limits)
    };
    assert_eq!(tried(SMALLEST_STEP - Bytes(1)), (Some(Bottom::Floor), vec![]));
    assert_eq!(tried(SMALLEST_STEP).1, [Some(floor); 2], "tried and held");
}

/// Work grows while a size is held: the next larger one is, and none lower.
#[test]
fn a_size_that_breaks_later_gives_way_to_the_next_larger() {
    let mut group = Group::new(160, 64);
    let mut trial = Trial::new(plan(), group.seen);
    let mut next = trial.next(&group.seen);
    let mut limits = Vec::new();
    while next != Next::End {
        let arrived = match next {
            Next::Limit(size) => {
                group.limit = Some(size);
                limits.push(size);
                true
            }
            Next::GiveBack => {
                group.limit = None;
                // In the middle of the hold.
                false
            }
            _ => false,
        };
        if limits.len() >= 2 && limits[limits.len() - 1] > limits[limits.len() - 2] {
            group.uses = Bytes::mib(90);
        }
        group.pass();
        next = if arrived { trial.arrived(true, &group.seen) } else { trial.next(&group.seen) };
    }
    assert!(trial.held().is_some_and(|held| held >= Bytes::mib(90)), "{trial:?}");
    let lowest = limits.iter().position(|limit| Some(limit) == limits.iter().min()).expect("a limit");
    assert!(limits[lowest..].is_sorted(), "{limits:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sizes fall until the first breach and rise after it, never below the floor, and it ends.
    #[test]
    fn it_ends_and_never_goes_below_the_floor_nor_lower_after_a_breach(
        mib in 1u64..4000,
        uses in 0u64..4000,
        floor in 0u64..4000,
        stuck_at in prop_oneof![Just(0u64), 0u64..4000],
        target in proptest::option::of(1u64..4000),
        step in 100u32..=5000,
        changes in proptest::collection::vec((0usize..4000, 0u64..4000), 0..4),
        lost in proptest::option::of(0usize..4000),
    ) {
        let mut group = Group::new(mib, uses);
        group.stuck_at = Bytes::mib(stuck_at);
        let (floor, target) = (Bytes::mib(floor), target.map(Bytes::mib));
        let plan = Plan { step: Permyriad(step), floor, target, watch: 4 * TICK, hold: 20 * TICK, ..plan() };
        let mut trial = Trial::new(plan, group.seen);
        let mut next = trial.next(&group.seen);
        let (mut limits, mut breached_at, mut ticks) = (Vec::new(), None, 0);
        while next != Next::End {
            let arrived = match next {
                Next::Limit(size) => {
                    prop_assert!(size >= floor.max(target.unwrap_or_default()));
                    limits.push(size);
                    let reached = size >= group.stuck_at;
                    if reached {
                        group.limit = Some(size);
                        group.seen.current = group.seen.current.min(size);
                    }
                    Some(reached)
                }
                Next::GiveBack => {
                    breached_at.get_or_insert(limits.len());
                    group.limit = None;
                    None
                }
                _ => None,
            };
            group.pass();
            ticks += 1;
            prop_assert!(ticks < 200_000);
            if let Some((_, uses)) = changes.iter().find(|(at, _)| *at == ticks) {
                group.uses = Bytes::mib(*uses);
            }
            if lost == Some(ticks) {
                group.seen.stall = None;
            }
            next = match arrived {
                Some(reached) => trial.arrived(reached, &group.seen),
                None => trial.next(&group.seen),
            };
        }
        if let Some(first) = breached_at {
            prop_assert!(limits[first - 1..].is_sorted(), "{:?} from {}", limits, first);
            prop_assert!(trial.held().is_none_or(|held| held > limits[first - 1] || limits.len() > first));
        }
        // Nothing is good that is not known.
        if lost.is_some_and(|lost| lost < ticks) && trial.held().is_some() {
            prop_assert!(lost.is_some_and(|lost| lost + 1 >= ticks));
        }
        prop_assert!(limits.windows(2).all(|pair| pair[0] - pair[1] >= SMALLEST_STEP || pair[0] <= pair[1] || pair[1] == floor || Some(pair[1]) == target));
    }
}
