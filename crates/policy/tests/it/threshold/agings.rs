//! Days of the synthetic loads as the daemon sees them: a group is aged every half of the age at
//! which it is observed, and the kernel keeps four generations.

use std::time::Duration;

use omr_policy::age::{AGES, Ages, Generation, Promotions, Reading};
use omr_policy::threshold::{Interval, Promoted, Slo, Step, Threshold};
use omr_units::{Bytes, Monotonic};

use super::model::{Day, Load};

/// The generations that the kernel keeps.
const GENERATIONS: usize = 4;

/// The day begins ten hours after the machine started.
const BOOT: Monotonic = Monotonic(36_000 * 1_000_000_000);

/// A day of a group.
struct Group<'d> {
    day: &'d Day,
    ages: Ages,
    /// The minutes in which the generations were born, oldest first, and the number of the oldest.
    births: Vec<usize>,
    first: u64,
}

impl<'d> Group<'d> {
    fn new(day: &'d Day) -> Self {
        Group { day, ages: Ages::default(), births: vec![0], first: 1 }
    }

    /// Ages the group at the end of this minute. Returns what that shows.
    fn age(&mut self, minute: usize) -> Option<Promotions> {
        self.births.push(minute);
        if self.births.len() > GENERATIONS {
            self.births.remove(0);
            self.first += 1;
        }
        let older = |index: usize| match self.births.get(index) {
            Some(&born) if index > 0 => self.day.unused_since(born, minute),
            Some(_) => Bytes::ZERO,
            None => self.day.unused_since(minute, minute),
        };
        let generations = self.births.iter().enumerate().map(|(index, &born)| Generation {
            number: self.first + index as u64,
            born: BOOT + Duration::from_secs(60 * born as u64),
            memory: older(index + 1) - older(index),
        });
        self.ages.add(Reading::new(generations.collect()).expect("generations"))
    }

    /// The memory in the oldest generation is at least this old, in minutes.
    fn cold_for(&self, minute: usize) -> usize {
        self.births.get(1).map_or(0, |born| minute - born)
    }
}

/// What came of a day.
#[derive(Debug)]
struct Outcome {
    /// The first minute in which memory as old as the threshold was known, so that it could be
    /// taken, and how many minutes of the day that was so.
    first: usize,
    known: usize,
    /// Permille of the minutes in which the threshold broke the objective.
    over: usize,
    steps: Vec<Step>,
}

fn as_if_clear(mut seen: Interval) -> Interval {
    seen.promoted.iter_mut().for_each(|promoted| promoted.bytes.least = promoted.bytes.most);
    seen
}

/// `clear`: what is between the bounds counts as broken.
fn run(day: &Day, clear: bool) -> Outcome {
    let slo = Slo::default();
    let (mut group, mut threshold) = (Group::new(day), Threshold::new(&slo));
    let (mut last, mut next, mut steps, mut over, mut known) = (0, 0, Vec::new(), 0, Vec::new());
    for now in 0..day.minutes.len() {
        steps.push(threshold.step());
        over += usize::from(day.minutes[now].is_over(&slo, threshold.step()));
        if now < next {
            continue;
        }
        if let Some(mut seen) = group.age(now) {
            // What was taken comes back from swap, and is in no generation.
            let back: Bytes = (last + 1..=now)
                .filter(|minute| known.contains(minute))
                .map(|minute| day.promoted(minute, threshold.step()))
                .sum();
            for bounds in &mut seen.bounds {
                (bounds.least, bounds.most) = (bounds.least - back, bounds.most - back);
            }
            let promoted = AGES.iter().zip(seen.bounds).map(|(&age, bytes)| Promoted { age, bytes });
            let seen = Interval { swapped_in: back, ..day.interval(now, now - last, promoted.collect()) };
            threshold.observe(&slo, &if clear { as_if_clear(seen) } else { seen });
        }
        let age = threshold.observed_at(&slo);
        last = now;
        next = now + usize::try_from(age.observed().as_secs() / 120).expect("minutes");
        if age == threshold.step() && group.cold_for(now) * 60 >= usize::try_from(age.age().as_secs()).expect("small") {
            known.push(now);
            known.extend(now + 1..next);
        }
    }
    let first = known.first().copied().unwrap_or(usize::MAX);
    Outcome { first, known: known.len(), over: over * 1000 / day.minutes.len(), steps }
}

/// Without the bounds, ages that are only unclear close for an hour, and hardly anything is known
/// before the longest age has passed.
#[test]
fn it_is_soon_known_what_can_be_taken() {
    for (load, soon, over) in [(Load::Drift, 30, 30), (Load::Phases, 180, 60), (Load::Zipf, 700, 40)] {
        let day = Day::of(load);
        let (good, clear) = (run(&day, false), run(&day, true));
        let hours =
            |of: &Outcome| of.steps.iter().step_by(60).map(|step| step.age().as_secs() / 60).collect::<Vec<_>>();
        println!("{load:?}: {}, {}, {} {:?}", good.first, good.known, good.over, hours(&good));
        println!("  as if clear: {}, {}, {} {:?}", clear.first, clear.known, clear.over, hours(&clear));
        assert!(good.first <= soon && good.over <= over, "{load:?}: {} {}", good.first, good.over);
        // No age but 8 h keeps the objective of zipf for long.
        assert!(matches!(load, Load::Zipf) || 2 * good.first < clear.first);
    }
}
