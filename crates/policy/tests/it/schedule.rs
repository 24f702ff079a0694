//! The schedule of agings and samples: when they are due, and never for more CPU time than allowed.

use std::time::Duration;

use omr_policy::History;
use omr_policy::schedule::{Due, RuleSchedule, Schedule};
use omr_units::{Monotonic, Permyriad};
use proptest::prelude::*;

fn config(every: u64, budget: u32) -> History {
    History { every: Duration::from_secs(every), budget: Permyriad(budget), ..History::default() }
}

fn at(seconds: u64) -> Monotonic {
    Monotonic(seconds * 1_000_000_000)
}

/// Runs for this many seconds, with this cost of an aging; returns the times of agings and of
/// samples.
fn run(config: &History, seconds: u64, cost: impl Fn(u64) -> Duration) -> (Vec<u64>, Vec<u64>) {
    let mut schedule = Schedule::new(config, at(0));
    let (mut agings, mut samples) = (Vec::new(), Vec::new());
    for second in 0..=seconds {
        let due = schedule.due(config, at(second), true);
        if due.aging {
            schedule.spent(due, cost(second));
            agings.push(second);
        }
        if due.sample {
            samples.push(second);
        }
    }
    (agings, samples)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn groups_are_aged_in_the_middle_of_a_round_and_more_often_towards_its_end() {
    let (agings, samples) = run(&config(600, 20), 1200, |_| ms(1));
    assert_eq!(agings, [300, 480, 540, 570, 600, 900, 1080, 1140, 1170, 1200]);
    assert_eq!(samples, [600, 1200]);
}

#[test]
fn all_agings_of_a_round_are_made_as_long_as_they_fit_into_the_budget() {
    // 0.2 % of 600 s are 1200 ms: five of 240.
    assert_eq!(run(&config(600, 20), 6000, |_| ms(239)).0.len(), 50);
    assert!(run(&config(600, 20), 6000, |_| ms(300)).0.len() < 50);
}

#[test]
fn costly_agings_are_done_less_often_and_samples_are_not() {
    let (agings, samples) = run(&config(600, 20), 60_000, |_| ms(6000));
    // One takes the budget of 3000 s.
    assert!((19..=21).contains(&agings.len()), "{agings:?}");
    assert!(agings.windows(2).all(|pair| pair[1] - pair[0] >= 2999), "{agings:?}");
    assert_eq!(samples.len(), 100);
}

#[test]
fn after_one_that_cost_very_much_all_is_as_before_once_that_is_earned() {
    let (agings, _) = run(&config(600, 20), 12_000, |second| ms(if second == 600 { 7000 } else { 1 }));
    assert_eq!(agings[4], 600);
    // 7 s and more are 3500 s of the budget; then it waits until as much as a round's is there.
    assert!((3300..=4800).contains(&agings[5]), "{agings:?}");
    assert_eq!(agings[agings.len() - 5..], [11_700, 11_880, 11_940, 11_970, 12_000][..], "{agings:?}");
}

#[test]
fn without_a_budget_there_are_samples_only() {
    let (agings, samples) = run(&config(600, 0), 6000, |_| ms(1));
    assert_eq!((agings.len(), samples.len()), (0, 10));
}

#[test]
fn an_aging_that_may_not_run_now_runs_as_soon_as_it_may() {
    let config = config(600, 20);
    let mut schedule = Schedule::new(&config, at(0));
    for second in 0..500 {
        assert!(!schedule.due(&config, at(second), false).aging);
    }
    assert!(schedule.due(&config, at(500), true).aging);
    assert!(!schedule.due(&config, at(501), true).aging);
}

#[test]
fn nothing_is_due_before_the_next_moment_and_something_is_at_it() {
    let config = config(600, 20);
    let mut schedule = Schedule::new(&config, at(0));
    for second in 0..1800 {
        let next = schedule.next(&config);
        let due = schedule.due(&config, at(second), true);
        assert_eq!(due.aging || due.sample, at(second) >= next, "{second}: {next:?} {due:?}");
        schedule.spent(due, ms(1));
    }
}

#[test]
fn a_round_that_is_noticed_late_does_not_move_the_next_one() {
    let config = config(600, 20);
    let mut schedule = Schedule::new(&config, at(0));
    assert!(schedule.due(&config, at(650), true).sample);
    assert!(!schedule.due(&config, at(1199), true).sample);
    assert!(schedule.due(&config, at(1200), true).sample);
}

#[test]
fn moments_too_short_to_earn_anything_add_up() {
    // A ten-thousandth of the time: 5 us earn half a nanosecond.
    let config = config(600, 1);
    let mut schedule = Schedule::new(&config, at(0));
    schedule.spent(Due { aging: true, sample: false }, ms(10));
    let before = schedule.wait(&config);
    for moment in 1..=200_000 {
        schedule.due(&config, Monotonic(moment * 5000), false);
    }
    assert_eq!(before - schedule.wait(&config), Duration::from_secs(1));
}

#[test]
fn an_aging_for_rules_is_followed_by_a_rest_of_99_times_its_cost() {
    let mut beats = RuleSchedule::default();
    assert_eq!(beats.next(), None);
    let ages = || [(Duration::from_secs(10), None)].into_iter();
    assert_eq!(beats.due(at(100), ages()).len(), 1);
    assert_eq!(beats.next(), Some(at(105) + ms(20)));
    beats.spent(at(100), Duration::from_secs(1));
    assert_eq!(beats.next(), Some(at(199)));
    assert!(beats.due(Monotonic(at(199).0 - 1), ages()).is_empty());
    assert_eq!(beats.due(at(199), ages()).len(), 1);
}

#[test]
fn rounds_in_which_nothing_was_asked_are_not_made_up_for() {
    let config = config(600, 20);
    let mut schedule = Schedule::new(&config, at(0));
    let late = schedule.due(&config, at(86_400), true);
    assert!(late.aging && late.sample);
    let after: Vec<u64> = (86_401..86_990).filter(|&second| schedule.due(&config, at(second), true).sample).collect();
    assert!(after.is_empty(), "{after:?}");
}

#[test]
fn the_announced_wait_is_the_real_wait() {
    let config = config(60, 20);
    let mut schedule = Schedule::new(&config, at(0));
    let due = schedule.due(&config, at(30), true);
    assert!(due.aging);
    schedule.spent(due, ms(500));
    let wait = schedule.wait(&config).as_secs();
    let next = (31..10_000).find(|&second| schedule.due(&config, at(second), true).aging).expect("an aging");
    assert!(next.abs_diff(30 + wait) <= 1, "{next} {wait}");
}

#[test]
fn groups_under_a_rule_are_aged_twice_in_the_time_it_asks_for_each_by_itself() {
    let seconds = Duration::from_secs;
    let mut beats = RuleSchedule::default();
    let mut agings = Vec::new();
    for second in 0..=130 {
        // One rule goes and comes back: its groups are aged at once.
        let ages =
            [seconds(120), seconds(20)].into_iter().filter(|age| *age == seconds(120) || !(30..=95).contains(&second));
        for age in beats.due(at(second), ages.map(|age| (age, None))) {
            agings.push((age.as_secs(), second));
            beats.spent(at(second), ms(20));
        }
    }
    let of = |age| agings.iter().filter(|(of, _)| *of == age).map(|(_, second)| *second).collect::<Vec<u64>>();
    assert_eq!(of(120), [0, 61, 122]);
    assert_eq!(of(20), [0, 11, 22, 96, 107, 118, 129]);
}

/// A group whose age has changed is not aged twice in a row: the kernel would merge a generation
/// for one that says nothing.
#[test]
fn a_group_with_a_new_age_is_aged_when_half_of_it_has_passed() {
    let seconds = Duration::from_secs;
    let agings = |second_group: Option<Duration>| {
        let (mut beats, mut aged, mut agings) = (RuleSchedule::default(), None, Vec::new());
        for second in 0..=300 {
            let age = if second < 65 { seconds(120) } else { seconds(240) };
            let groups = [Some((age, aged)), second_group.map(|age| (age, None))];
            for due in beats.due(at(second), groups.into_iter().flatten()) {
                if due == age {
                    (aged, _) = (Some(at(second)), agings.push(second));
                }
            }
        }
        agings
    };
    assert_eq!(agings(None), [0, 61, 182]);
    // It joins a group that has this age already.
    assert_eq!(agings(Some(seconds(240))), [0, 61, 121, 242]);
}

#[test]
fn agings_for_all_rules_together_take_no_more_than_one_percent_of_a_cpu() {
    for ages in [&[10][..], &[10, 11, 12, 13], &[10, 60, 600]] {
        let mut beats = RuleSchedule::default();
        let (mut spent, mut aged) = (Duration::ZERO, Vec::new());
        for second in 0..1000 {
            let due = beats.due(at(second), ages.iter().map(|&age| (Duration::from_secs(age), None)));
            if !due.is_empty() {
                let cost = ms(500) * u32::try_from(due.len()).expect("few");
                spent += cost;
                beats.spent(at(second), cost);
                aged.extend(due);
            }
        }
        let each = ms(500) * u32::try_from(ages.len()).expect("few");
        assert!((Duration::from_secs(8)..=Duration::from_secs(10) + each).contains(&spent), "{ages:?} {spent:?}");
        // And none is forgotten over the others.
        for &age in ages {
            let count = aged.iter().filter(|aged| aged.as_secs() == age).count();
            assert!(count >= 2, "{ages:?} {age} {count}");
        }
    }
}

proptest! {
    /// Whatever an aging costs and whenever it is asked for: between any two moments no more is
    /// spent than the budget, and one round's and one aging's on top.
    #[test]
    fn never_above_the_budget(
        every in 10u64..3600,
        budget in 1u32..1000,
        steps in prop::collection::vec((1u64..120_000, 0u64..20_000, any::<bool>()), 1..300),
    ) {
        let config = config(every, budget);
        let mut now = Monotonic(0);
        let mut schedule = Schedule::new(&config, now);
        let mut spent = Vec::new();
        for (pause, cost, may) in steps {
            now = now + ms(pause);
            let due = schedule.due(&config, now, may);
            if due.aging {
                prop_assert!(may);
                schedule.spent(due, ms(cost));
                spent.push((now, ms(cost)));
            }
        }
        let share = |time: Duration| time.as_secs_f64() * f64::from(budget) / 10_000.0;
        let most = spent.iter().map(|(_, cost)| cost.as_secs_f64()).fold(0.0, f64::max);
        for first in 0..spent.len() {
            let mut sum = 0.0;
            for (moment, cost) in &spent[first..] {
                sum += cost.as_secs_f64();
                let allowed = share(moment.since(spent[first].0)) + share(config.every) + most;
                prop_assert!(sum <= allowed + 1e-6, "{sum} {allowed}");
            }
        }
    }

    /// Cheap ones are all made, whatever was before.
    #[test]
    fn it_recovers(every in 20u64..3600, before in prop::collection::vec(0u64..5_000, 0..20)) {
        let config = config(every, 20);
        let cheap = Duration::from_nanos(1000);
        let debt: u64 = before.iter().sum();
        let long = debt / 2 + 30 * every;
        let costs = std::cell::RefCell::new(before);
        let (agings, _) = run(&config, long + 10 * every, |_| costs.borrow_mut().pop().map_or(cheap, ms));
        let late = agings.iter().filter(|&&second| second > long + 5 * every).count();
        prop_assert!(late >= 20, "{late}");
    }
}
