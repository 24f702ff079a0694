//! Days of three synthetic loads: how often a threshold breaks its objective, and how much it holds
//! of what the best fixed threshold in hindsight would hold.

use omr_policy::threshold::{Interval, STEPS, Slo, Step, Threshold};
use serde_json::json;

use super::model::{Day, Load};

/// How a group is observed, each minute.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Eyes {
    /// At every age of the grid.
    All,
    /// At the next shorter age, at the threshold and at 1.5 times it.
    Near,
}

/// A controller that is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    No,
    /// It does not stay for an hour.
    Stay,
    /// It does not look at the last day.
    Percentile,
    /// It judges by a third of the promotions.
    Third,
}

/// The result of a day. Shares are in permille.
#[derive(Debug)]
struct Score {
    /// Minutes over the objective.
    minutes_over: u64,
    /// Cold memory held, of what the best fixed threshold would hold that keeps the objective in
    /// 98 % of the minutes, as the controller should.
    held: u64,
    /// The same of the best fixed threshold that keeps it in 97 %, the goal of the scenario.
    held_of_97: u64,
    /// Times at which it went down within an hour of a rise.
    hasty: u64,
}

/// Spoils the memory of a threshold through its saved form.
fn spoil(threshold: Threshold, broken: Broken) -> Threshold {
    let mut saved = serde_json::to_value(&threshold).expect("plain data");
    match broken {
        Broken::No | Broken::Third => return threshold,
        Broken::Stay => saved["calm"] = json!(vec![3_600_000; STEPS]),
        Broken::Percentile => saved["evidence"]["broken"] = json!(vec![vec![0; STEPS]; 8]),
    }
    serde_json::from_value(saved).expect("valid")
}

fn observed(day: &Day, minute: usize, step: Step, eyes: Eyes, broken: Broken) -> Interval {
    let ages = match eyes {
        Eyes::All => Step::all().map(Step::age).collect(),
        Eyes::Near => vec![step.shorter().unwrap_or(step).age(), step.age(), step.age() * 3 / 2],
    };
    let mut seen = day.seen(minute, &ages);
    for promoted in seen.promoted.iter_mut().filter(|_| broken == Broken::Third) {
        promoted.bytes.most.0 /= 3;
        promoted.bytes.least.0 /= 3;
    }
    seen
}

/// The cold memory that a fixed threshold would have held, summed over the minutes.
fn held(day: &Day, step: Step) -> u64 {
    day.minutes.iter().map(|minute| u64::from(minute.cold(step))).sum()
}

/// The shortest fixed threshold with at most this share of the minutes over, in permille.
fn best_fixed(day: &Day, slo: &Slo, permille: usize) -> Step {
    let over = |step: Step| day.minutes.iter().filter(|minute| minute.is_over(slo, step)).count();
    let mut good = Step::all().filter(|&step| over(step) * 1000 <= day.minutes.len() * permille);
    good.next().expect("some age keeps the objective")
}

/// The score of a day in which the threshold was at these steps.
fn score(day: &Day, slo: &Slo, steps: &[Step]) -> Score {
    let (mut minutes_over, mut cold, mut hasty, mut risen) = (0, 0, 0, None);
    for (now, (minute, step)) in day.minutes.iter().zip(steps).enumerate() {
        minutes_over += usize::from(minute.is_over(slo, *step));
        cold += u64::from(minute.cold(*step));
        let before = now.checked_sub(1).map_or(*step, |before| steps[before]);
        hasty += u64::from(*step < before && risen.is_some_and(|at| now - at < 60));
        risen = if *step > before { Some(now) } else { risen };
    }
    let of = |allowed: usize| cold * 1000 / held(day, best_fixed(day, slo, allowed));
    let minutes_over = u64::try_from(minutes_over * 1000 / day.minutes.len()).expect("small");
    Score { minutes_over, held: of(20), held_of_97: of(30), hasty }
}

fn run(day: &Day, eyes: Eyes, broken: Broken) -> Score {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    let step_of = |minute: usize| {
        let step = threshold.step();
        threshold.observe(&slo, &observed(day, minute, step, eyes, broken));
        threshold = spoil(threshold.clone(), broken);
        step
    };
    let steps: Vec<Step> = (0..day.minutes.len()).map(step_of).collect();
    score(day, &slo, &steps)
}

#[test]
fn a_day_of_each_load_keeps_the_objective_and_holds_most_of_what_is_cold() {
    for load in [Load::Zipf, Load::Phases, Load::Drift] {
        let day = Day::of(load);
        for eyes in [Eyes::All, Eyes::Near] {
            let score = run(&day, eyes, Broken::No);
            println!("{load:?}, {eyes:?}: {score:?}");
            assert!(score.minutes_over <= 30 && score.held >= 800 && score.hasty == 0, "{load:?}, {eyes:?}: {score:?}");
            assert!(score.held_of_97 >= 800, "{load:?}, {eyes:?}: {score:?}");
        }
    }
}

/// The negative controls. (In `Drift` each threshold keeps the objective, so nothing is seen
/// there.)
#[test]
fn a_controller_that_is_broken_on_purpose_is_seen() {
    for load in [Load::Zipf, Load::Phases] {
        let day = Day::of(load);
        let good = run(&day, Eyes::All, Broken::No);
        let [stay, percentile, third] =
            [Broken::Stay, Broken::Percentile, Broken::Third].map(|broken| run(&day, Eyes::All, broken));
        println!("{load:?}: {good:?}, without stay {stay:?}, without K {percentile:?}, by a third {third:?}");
        assert!(third.minutes_over > 30, "{load:?}: {third:?}");
        assert!(percentile.minutes_over > good.minutes_over);
        if matches!(load, Load::Phases) {
            assert!(stay.hasty > 0 && stay.minutes_over > 2 * good.minutes_over);
        }
    }
}
