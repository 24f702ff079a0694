//! Days of three synthetic loads: how often a threshold breaks its objective, and how much it holds
//! of what the best fixed threshold in hindsight would hold.

use std::ops::Range;

use omr_policy::threshold::{Interval, STEPS, Slo, Step, Threshold};
use serde_json::json;

use super::model::{Day, Load};

/// How a group is observed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Eyes {
    /// Each minute, at every age of the grid.
    All,
    /// Each minute, at the next shorter age, at the threshold and at 1.5 times it.
    Near,
    /// As `Near`, every half threshold, and at least every ten minutes.
    Beat,
}

/// A controller that is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    No,
    /// It does not stay for an hour.
    Stay,
    /// It does not look at the last day.
    Percentile,
    /// It judges by the least of the promotions, which is a third of the most.
    Least,
    /// It believes that what was old enough when the interval began is all that was promoted.
    Cohort,
}

/// The result of a day. Shares are in permille.
#[derive(Debug)]
struct Score {
    /// Minutes over the objective.
    minutes_over: u64,
    /// Time in intervals over the objective.
    over: u64,
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
        Broken::No | Broken::Least | Broken::Cohort => return threshold,
        Broken::Stay => saved["calm"] = json!(vec![3_600_000; STEPS]),
        Broken::Percentile => saved["evidence"]["broken"] = json!(vec![vec![0; STEPS]; 8]),
    }
    serde_json::from_value(saved).expect("valid")
}

fn observed(day: &Day, range: Range<usize>, step: Step, eyes: Eyes, broken: Broken) -> Interval {
    let shorter = step.shorter().unwrap_or(step).age();
    let ages = match eyes {
        Eyes::All => Step::all().map(Step::age).collect(),
        _ => vec![shorter, step.age(), step.age() * 3 / 2],
    };
    let mut seen = day.seen(range, &ages, eyes != Eyes::Beat);
    for promoted in &mut seen.promoted {
        if broken == Broken::Cohort {
            promoted.bytes.most = promoted.bytes.least;
        }
        promoted.bytes.least.0 /= 3;
        if broken == Broken::Least {
            promoted.bytes.most = promoted.bytes.least;
        }
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

fn run(day: &Day, eyes: Eyes, broken: Broken) -> Score {
    let slo = Slo::default();
    let mut threshold = Threshold::new(&slo);
    let (mut minutes_over, mut over, mut cold, mut hasty) = (0, 0, 0, 0);
    let (mut now, mut risen) = (0, None);
    while now < day.minutes.len() {
        let step = threshold.step();
        let beat = usize::try_from(step.age().as_secs() / 120).expect("minutes").clamp(1, 10);
        let end = (now + if eyes == Eyes::Beat { beat } else { 1 }).min(day.minutes.len());
        for minute in &day.minutes[now..end] {
            minutes_over += usize::from(minute.is_over(&slo, step));
            cold += u64::from(minute.cold(step));
        }
        over += (end - now) * usize::from(day.is_over(now..end, &slo, step));
        let moved = threshold.observe(&slo, &observed(day, now..end, step, eyes, broken));
        now = end;
        hasty += u64::from(moved.to < moved.from && risen.is_some_and(|at| now - at < 60));
        risen = if moved.to > moved.from { Some(now) } else { risen };
        threshold = spoil(threshold, broken);
    }
    let permille = |minutes: usize| u64::try_from(minutes * 1000 / day.minutes.len()).expect("small");
    let of = |allowed: usize| cold * 1000 / held(day, best_fixed(day, &slo, allowed));
    let (held, held_of_97) = (of(20), of(30));
    Score { minutes_over: permille(minutes_over), over: permille(over), held, held_of_97, hasty }
}

#[test]
fn a_day_of_each_load_keeps_the_objective_and_holds_most_of_what_is_cold() {
    for load in [Load::Zipf, Load::Phases, Load::Drift] {
        let day = Day::of(load);
        for eyes in [Eyes::All, Eyes::Near, Eyes::Beat] {
            let score = run(&day, eyes, Broken::No);
            println!("{load:?}, {eyes:?}: {score:?}");
            assert!(score.over <= 30 && score.held >= 800 && score.hasty == 0, "{load:?}, {eyes:?}: {score:?}");
            assert!(eyes == Eyes::Beat || score.minutes_over <= 30, "{load:?}, {eyes:?}: {score:?}");
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
        let [stay, percentile, least] =
            [Broken::Stay, Broken::Percentile, Broken::Least].map(|broken| run(&day, Eyes::All, broken));
        println!("{load:?}: {good:?}, without stay {stay:?}, without K {percentile:?}, by the least {least:?}");
        assert!(least.minutes_over > 30, "{load:?}: {least:?}");
        assert!(percentile.minutes_over > good.minutes_over);
        if matches!(load, Load::Phases) {
            assert!(stay.hasty > 0 && stay.minutes_over > 2 * good.minutes_over);
            let [beat, cohort] = [Broken::No, Broken::Cohort].map(|broken| run(&day, Eyes::Beat, broken));
            println!("{load:?}, Beat: {beat:?}, by cohorts as they were: {cohort:?}");
            assert!(4 * cohort.minutes_over > 5 * beat.minutes_over);
        }
    }
}
