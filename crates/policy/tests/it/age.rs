//! Ages of memory: the bounds are true for a model of the kernel, whatever happens in it.

use core::time::Duration;

use omr_policy::age::{AGES, Ages, Bounds, Generation, Promotions, Reading};
use omr_units::{Bytes, Monotonic};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Births in seconds and amounts, oldest first; the oldest has this number.
fn reading(first: u64, generations: &[(u64, u64)]) -> Reading {
    let generations = generations.iter().enumerate().map(|(index, &(born, memory))| Generation {
        number: first + index as u64,
        born: Monotonic(born * SECOND),
        memory: Bytes(memory),
    });
    Reading::new(generations.collect()).expect("generations")
}

fn ages(readings: impl IntoIterator<Item = Reading>) -> Ages {
    let mut ages = Ages::default();
    for reading in readings {
        ages.add(reading);
    }
    ages
}

fn bounds(least: u64, most: u64) -> Bounds {
    Bounds { least: Bytes(least), most: Bytes(most) }
}

#[test]
fn three_agings_tell_two_times_exactly() {
    let ages = ages([reading(3, &[(0, 32), (1000, 8), (1060, 50), (1120, 0)])]);
    assert_eq!(ages.memory(), Bytes(90));
    assert_eq!(ages.idle(seconds(60)), bounds(40, 40));
    assert_eq!(ages.idle(seconds(120)), bounds(32, 32));
    // The oldest was not used for two minutes: for how much longer is not known.
    assert_eq!(ages.idle(seconds(600)), bounds(0, 32));
}

#[test]
fn a_part_has_at_least_the_amount_that_does_not_fit_into_the_rest() {
    for (part, least, most) in [(100, 40, 60), (90, 30, 60), (50, 0, 50), (0, 0, 0), (120, 40, 60)] {
        assert_eq!(bounds(40, 60).of_part(Bytes(100), Bytes(part)), bounds(least, most), "{part}");
    }
}

#[test]
fn between_two_births_there_are_two_bounds() {
    let ages = ages([reading(3, &[(0, 32), (1000, 8), (1060, 50), (1120, 0)])]);
    assert_eq!(ages.idle(seconds(90)), bounds(32, 40));
    assert_eq!(ages.idle(seconds(30)), bounds(40, 90));
}

#[test]
fn a_program_that_has_just_started_is_not_idle_and_not_surely_busy_for_longer() {
    let ages = ages([reading(0, &[(1000, 0), (1000, 0), (1119, 70), (1120, 20)])]);
    assert_eq!(ages.idle(seconds(120)), bounds(0, 0));
    // All of it may be from the moment before the last aging.
    assert_eq!(ages.idle(Duration::from_millis(500)), bounds(0, 70));
}

#[test]
fn without_a_reading_nothing_is_idle() {
    assert_eq!(Ages::default().idle(seconds(1)), bounds(0, 0));
    assert_eq!(ages([reading(0, &[(0, 100)])]).idle(seconds(1)), bounds(0, 100));
    assert_eq!(Reading::new(Vec::new()), None);
}

#[test]
fn readings_before_reach_further_back_than_four_generations() {
    let ages = ages([
        reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)]),
        // 10 were merged into 30, of which 5 have been used or are gone.
        reading(4, &[(1000, 35), (1060, 12), (1120, 43), (1180, 0)]),
        reading(5, &[(1060, 40), (1120, 10), (1180, 40), (1240, 0)]),
    ]);
    assert_eq!(ages.idle(seconds(120)), bounds(40, 40));
    // At most 12 of the 40 joined after 1060, so 28 to 35 were unused since then.
    assert_eq!(ages.idle(seconds(180)), bounds(28, 35));
    assert_eq!(ages.idle(seconds(240)), bounds(18, 30));
}

#[test]
fn readings_are_forgotten_for_longer_times_only() {
    let all = ages([
        reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)]),
        reading(4, &[(1000, 35), (1060, 12), (1120, 43), (1180, 0)]),
        reading(5, &[(1060, 40), (1120, 10), (1180, 40), (1240, 0)]),
    ]);
    for kept in [10, 30, 60, 90, 120, 180, 240] {
        let mut some = all.clone();
        some.keep(seconds(kept));
        for time in (1..=kept).map(seconds) {
            assert_eq!(some.idle(time), all.idle(time), "{kept} {time:?}");
        }
    }
    let mut little = all.clone();
    little.keep(seconds(10));
    assert!(little.idle(seconds(240)).least < all.idle(seconds(240)).least, "something was forgotten");
}

#[test]
fn numbers_that_have_gone_back_at_either_end_are_those_of_another_group() {
    let before = || ages([reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)])]);
    for (case, other) in [
        ("the youngest", reading(3, &[(0, 30), (1000, 10), (1180, 50)])),
        ("the oldest", reading(2, &[(0, 30), (1000, 10), (1060, 50), (1120, 0), (1180, 0)])),
        ("both", reading(0, &[(1000, 30), (1060, 10), (1120, 50), (1180, 0)])),
    ] {
        let mut known = before();
        assert_eq!(known.add(other.clone()), None, "{case}");
        assert_eq!(known, ages([other]), "{case}: nothing is left of the group before");
    }
    // The same numbers, or more, are those of the same group.
    let mut known = before();
    assert!(known.add(reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)])).is_some());
    assert!(known.add(reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0), (1180, 0)])).is_some());
}

#[test]
fn reclaimed_memory_is_taken_out_at_the_ages_that_it_surely_had() {
    // 50 at up to two minutes, 20 at longer ages.
    let mut promotions = Promotions { over: seconds(120), bounds: AGES.map(|_| bounds(10, 20)) };
    promotions.bounds[..3].fill(bounds(10, 50));
    promotions.subtract_reclaimed(Bytes(5), seconds(120));
    assert_eq!(promotions.bounds[..3], [bounds(5, 45); 3]);
    assert!(promotions.bounds[3..].iter().all(|longer| *longer == bounds(5, 20)), "{promotions:?}");
    // Memory that is promoted at an age is promoted at each shorter age.
    promotions.bounds[0].least = Bytes::ZERO;
    promotions.subtract_reclaimed(Bytes::ZERO, seconds(120));
    assert_eq!(promotions.bounds[0], bounds(5, 45));
}

#[test]
fn a_group_is_remembered_by_sixty_births_however_many_generations_are_merged_at_once() {
    let mut known = Ages::default();
    for round in 0..100 {
        let born = |n: u64| (round * 120 + n * 30, 10);
        known.add(reading(round * 4, &[born(0), born(1), born(2), born(3)]));
        let saved = serde_json::to_value(&known).expect("plain data");
        assert!(saved["merged"].as_array().expect("a list").len() <= 60, "round {round}");
    }
    let saved = serde_json::to_value(&known).expect("plain data");
    assert_eq!(saved["merged"].as_array().map(Vec::len), Some(60));
}

/// The times of the daemon's agings in this many rounds of ten minutes, in seconds.
fn agings_in(rounds: u64) -> Vec<u64> {
    (1..=rounds).flat_map(|round| [10, 16, 18, 19, 20].map(|part| (round * 20 + part) * 30)).collect()
}

#[test]
fn sixteen_hours_of_the_history_are_remembered() {
    let moments = agings_in(120);
    let agings = (0..).zip(moments.windows(4));
    let mut all =
        ages(agings.map(|(first, born)| reading(first, &[(born[0], 7), (born[1], 0), (born[2], 0), (born[3], 0)])));
    assert_eq!(all.idle(seconds(16 * 3600)), bounds(7, 7));
    assert_eq!(all.idle(seconds(20 * 3600)), bounds(0, 7));
    all.keep(seconds(8 * 3600));
    assert_eq!(all.idle(seconds(8 * 3600)), bounds(7, 7));
    assert_eq!(all.idle(seconds(10 * 3600)), bounds(0, 7));
}

/// Memory of which one byte a second becomes unused, for all time from then on: the bounds show
/// how old the nearest births are that are remembered.
fn known_births(rounds: u64) -> Ages {
    let agings = agings_in(rounds);
    let mut ages = Ages::default();
    for (first, born) in (0..).zip(agings.windows(4)) {
        ages.add(reading(
            first,
            &[(born[0], born[1]), (born[1], born[2] - born[1]), (born[2], born[3] - born[2]), (born[3], 0)],
        ));
        ages.keep(AGES[AGES.len() - 1]);
    }
    ages
}

#[test]
fn what_is_forgotten_of_eight_hours_makes_the_bounds_little_wider() {
    for rounds in 100..120 {
        let ages = known_births(rounds);
        let last = ages.at().expect("an aging").0 / SECOND;
        for age in AGES {
            let known = ages.idle(age);
            let unused = last - age.as_secs();
            let late = last - (age + age / 32).as_secs();
            assert!(known.least.0 <= unused && known.most.0 >= late, "{age:?}");
            let spread = known.most.0 - known.least.0;
            // Four, eight and fifteen minutes are between two agings.
            let allowed = match age.as_secs() {
                240 | 480 | 900 => 300,
                0..=3600 => 0,
                age => age / 5,
            };
            assert!(spread <= allowed, "{rounds} {age:?} {spread}");
        }
    }
}

#[test]
fn an_aging_that_was_missed_ends_the_knowledge_of_the_time_before() {
    let ages = ages([
        reading(3, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)]),
        reading(8, &[(1130, 40), (1140, 10), (1180, 40), (1240, 0)]),
    ]);
    assert_eq!(ages.idle(seconds(240)), bounds(0, 30));
}

#[test]
fn numbers_that_go_back_are_those_of_another_group() {
    let ages = ages([
        reading(30, &[(0, 30), (1000, 10), (1060, 50), (1120, 0)]),
        reading(2, &[(1130, 40), (1140, 10), (1180, 40), (1240, 0)]),
    ]);
    assert_eq!(ages.idle(seconds(240)), bounds(0, 40));
}

#[test]
fn milliseconds_that_began_again_at_zero_make_nothing_older() {
    // The oldest is 49.7 days old and a bit; the kernel prints that bit.
    let ages = ages([reading(3, &[(1119, 32), (1000, 8), (1060, 50), (1120, 0)])]);
    assert_eq!(ages.idle(seconds(120)), bounds(32, 32));
}

/// Pages and what MGLRU does with them.
#[derive(Default)]
struct Model {
    now: u64,
    oldest: u64,
    births: Vec<u64>,
    pages: Vec<Page>,
}

#[derive(Clone)]
struct Page {
    generation: u64,
    accessed: bool,
    used: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Wait(u64),
    Use(usize, usize),
    Allocate(usize),
    Free(usize, usize),
    /// Somebody else's aging, such as kswapd's.
    Age,
    /// Ours, and a reading.
    Read,
}

impl Model {
    fn youngest(&self) -> u64 {
        self.oldest + self.births.len() as u64 - 1
    }

    fn age(&mut self) {
        let youngest = self.youngest();
        for page in self.pages.iter_mut().filter(|page| page.accessed) {
            (page.generation, page.accessed) = (youngest, false);
        }
        self.births.push(self.now);
        if self.births.len() > 4 {
            self.births.remove(0);
            self.oldest += 1;
            let oldest = self.oldest;
            self.pages.iter_mut().for_each(|page| page.generation = page.generation.max(oldest));
        }
    }

    fn reading(&self) -> Reading {
        let generations = self.births.iter().enumerate().map(|(index, &born)| {
            let number = self.oldest + index as u64;
            let memory = self.pages.iter().filter(|page| page.generation == number).count() as u64;
            Generation { number, born: Monotonic(born), memory: Bytes(memory) }
        });
        Reading::new(generations.collect()).expect("generations")
    }

    fn happen(&mut self, event: &Event) {
        // Agings and uses at different times: which of two at the same moment was first is not
        // defined.
        self.now += 2;
        let range = |from: usize, count: usize, length: usize| from.min(length)..from.saturating_add(count).min(length);
        match *event {
            Event::Wait(time) => self.now += 2 * time,
            Event::Use(from, count) => {
                let range = range(from, count, self.pages.len());
                let now = self.now + 1;
                self.pages[range].iter_mut().for_each(|page| (page.accessed, page.used) = (true, now));
            }
            Event::Allocate(count) => {
                let page = Page { generation: self.youngest(), accessed: true, used: self.now + 1 };
                self.pages.extend(std::iter::repeat_n(page, count));
            }
            Event::Free(from, count) => drop(self.pages.drain(range(from, count, self.pages.len()))),
            Event::Age | Event::Read => self.age(),
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0u64..50).prop_map(Event::Wait),
        3 => (0usize..60, 0usize..30).prop_map(|(from, count)| Event::Use(from, count)),
        1 => (0usize..20).prop_map(Event::Allocate),
        1 => (0usize..60, 0usize..5).prop_map(|(from, count)| Event::Free(from, count)),
        1 => Just(Event::Age),
        3 => Just(Event::Read),
    ]
}

/// One unit of the model's time, so that its times reach the longest of [`AGES`].
const UNIT: u64 = 7 * SECOND;

impl Model {
    /// A reading, in units of time.
    fn reading_in_units(&self) -> Reading {
        let generations = self.births.iter().zip(self.oldest..).map(|(&born, number)| {
            let memory = self.pages.iter().filter(|page| page.generation == number).count() as u64;
            Generation { number, born: Monotonic(born * UNIT), memory: Bytes(memory) }
        });
        Reading::new(generations.collect()).expect("generations")
    }

    /// The number of pages that were unused for an age at an aging, and still are.
    fn unused_since(&self, aging: u64, age: Duration) -> u64 {
        let moment = Monotonic(aging * UNIT) - age;
        self.pages.iter().filter(|page| page.used * UNIT <= moment.0).count() as u64
    }

    /// Reclaims pages that were unused for this age at the last aging, oldest first.
    fn reclaim(&mut self, count: usize, aging: u64, age: Duration) -> u64 {
        let moment = (Monotonic(aging * UNIT) - age).0;
        let before = self.pages.len();
        let mut left = count;
        self.pages.retain(|page| {
            let goes = left > 0 && !page.accessed && page.used * UNIT <= moment;
            left -= usize::from(goes);
            !goes
        });
        (before - self.pages.len()) as u64
    }
}

/// Ages in the model, with what they say and what is true.
struct Watched {
    model: Model,
    ages: Ages,
    /// The time of the last reading.
    last: u64,
    /// The true number of pages of each age at the last reading, and at an age longer by a 32nd.
    unused: Vec<(u64, u64)>,
}

impl Watched {
    fn new() -> Self {
        let mut model = Model { births: vec![0; 4], ..Model::default() };
        model.happen(&Event::Allocate(40));
        Watched { model, ages: Ages::default(), last: 0, unused: vec![(0, 0); AGES.len()] }
    }

    fn unused(&self) -> Vec<(u64, u64)> {
        let of = |age: Duration| self.model.unused_since(self.last, age);
        AGES.iter().map(|&age| (of(age), of(age + age / 32))).collect()
    }

    /// After the event that is our aging: the promotions, with the true least and most numbers.
    fn read(&mut self) -> Option<(Promotions, Vec<(u64, u64)>)> {
        let left = self.unused();
        let truth = self.unused.iter().zip(left).map(|(before, now)| (before.0 - now.0, before.1 - now.1)).collect();
        let known = self.ages.add(self.model.reading_in_units());
        self.last = self.model.now;
        self.unused = self.unused();
        Some((known?, truth))
    }
}

/// The true number lies within the bounds; `reclaimed`: pages that only omr took; `slack`: those of
/// them that the most may count too much.
fn check(known: &Promotions, truth: &[(u64, u64)], reclaimed: &[u64], slack: u64) -> Result<(), TestCaseError> {
    for (index, age) in AGES.iter().enumerate() {
        let Bounds { least, most } = known.bounds[index];
        let (all, late) = (truth[index].0 - reclaimed[index], truth[index].1);
        prop_assert!(least <= most);
        prop_assert!(least.0 <= all, "{age:?}: {least} of {all}");
        prop_assert!(most.0 + slack >= late.saturating_sub(reclaimed[index]), "{age:?}: {most} of {late}");
        prop_assert!(index == 0 || most <= known.bounds[index - 1].most, "more for a longer age");
        prop_assert!(index == 0 || least <= known.bounds[index - 1].least, "more for a longer age");
    }
    Ok(())
}

/// The pages that were unused for this time, by the model, are between the bounds of `ages`.
fn truth_is_between_the_bounds(ages: &Ages, model: &Model, time: u64) -> Result<(), TestCaseError> {
    let unused = |time: u64| {
        let moment = model.now.saturating_sub(time);
        model.pages.iter().filter(|page| page.used <= moment).count() as u64
    };
    let known = ages.idle(Duration::from_nanos(time));
    prop_assert!(known.least <= known.most);
    let idle = unused(time);
    prop_assert!(known.least.0 <= idle, "{known:?}, {idle} idle for {time}");
    let idle = unused(time + time / 32);
    prop_assert!(known.most.0 >= idle, "{known:?}, {idle} idle for {time} and more");
    Ok(())
}

proptest! {
    // Each case is long, as something must be forgotten in it.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_truth_is_between_the_bounds_of_what_is_not_forgotten(
        events in prop::collection::vec(event(), 300..500),
    ) {
        let mut model = Model { births: vec![0; 4], ..Model::default() };
        let mut ages = Ages::default();
        model.happen(&Event::Allocate(40));
        for event in &events {
            model.happen(event);
            if !matches!(event, Event::Read) {
                continue;
            }
            ages.add(model.reading());
            for time in [10, 100, 1000, 3001, 10_000] {
                truth_is_between_the_bounds(&ages, &model, time)?;
            }
        }
    }
}

proptest! {
    #[test]
    fn the_truth_is_between_the_bounds(events in prop::collection::vec(event(), 1..120)) {
        let mut model = Model { births: vec![0; 4], ..Model::default() };
        let mut ages = Ages::default();
        model.happen(&Event::Allocate(40));
        for event in &events {
            model.happen(event);
            if !matches!(event, Event::Read) {
                continue;
            }
            ages.add(model.reading());
            for time in [1, 3, 10, 31, 100, 301, 1000, 3001] {
                truth_is_between_the_bounds(&ages, &model, time)?;
            }
        }
    }

    #[test]
    fn true_promotions_are_between_the_bounds_at_each_aging_and_in_the_sum(
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut watched = Watched::new();
        let mut sum: Option<(Promotions, Vec<(u64, u64)>)> = None;
        for event in &events {
            watched.model.happen(event);
            if !matches!(event, Event::Read) {
                continue;
            }
            let before = watched.last;
            let Some((known, truth)) = watched.read() else { continue };
            prop_assert_eq!(known.over, Duration::from_nanos((watched.last - before) * UNIT));
            check(&known, &truth, &[0; AGES.len()], 0)?;
            match &mut sum {
                Some((all, true_sum)) => {
                    all.add_later(&known);
                    true_sum.iter_mut().zip(truth).for_each(|(sum, more)| *sum = (sum.0 + more.0, sum.1 + more.1));
                }
                None => sum = Some((known, truth)),
            }
        }
        if let Some((all, truth)) = sum {
            check(&all, &truth, &[0; AGES.len()], 0)?;
        }
    }

    #[test]
    fn memory_that_omr_reclaimed_is_not_promoted_and_hides_no_promotion(
        events in prop::collection::vec((event(), 0usize..10, 0..AGES.len()), 1..200),
    ) {
        let mut watched = Watched::new();
        for (event, count, of) in &events {
            watched.model.happen(event);
            if !matches!(event, Event::Read) {
                continue;
            }
            // After this aging, omr reclaims; some time later is the next aging.
            let _ = watched.read();
            let (known, min_age) = (watched.last, AGES[*of]);
            let before: Vec<u64> = AGES.iter().map(|&age| watched.model.unused_since(known, age)).collect();
            let late = |watched: &Watched| watched.model.unused_since(known, min_age + min_age / 32);
            let late_before = late(&watched);
            let reclaimed = watched.model.reclaim(*count, known, min_age);
            let slack = reclaimed - (late_before - late(&watched));
            let of_age: Vec<u64> =
                AGES.iter().zip(before).map(|(&age, before)| before - watched.model.unused_since(known, age)).collect();
            watched.model.happen(&Event::Use(3, 20));
            watched.model.happen(&Event::Age);
            if let Some((mut promotions, truth)) = watched.read() {
                promotions.subtract_reclaimed(Bytes(reclaimed), min_age);
                check(&promotions, &truth, &of_age, slack)?;
            }
        }
    }

    #[test]
    fn longer_is_never_more(
        births in prop::collection::vec((0u64..1000, 0u64..1000), 1..5),
        times in prop::collection::vec(0u64..1000, 2..5),
    ) {
        let ages = ages([reading(7, &births)]);
        let mut times = times;
        times.sort_unstable();
        for pair in times.windows(2) {
            let (short, long) = (ages.idle(seconds(pair[0])), ages.idle(seconds(pair[1])));
            prop_assert!(long.least <= short.least && long.most <= short.most);
        }
    }
}

/// Pages that are used at random, each with a mean distance of its own.
struct Load {
    pages: Vec<(u64, u64)>,
    random: u64,
}

impl Load {
    /// Half of the pages are used about each half minute, a fifth each 4 and each 45 min, the rest
    /// never.
    fn new(pages: u64) -> Self {
        let mean = |page: u64| match page % 20 {
            0..9 => 30,
            9..13 => 240,
            13..17 => 2700,
            _ => u64::MAX,
        };
        Load { pages: (0..pages).map(|page| (mean(page), 0)).collect(), random: 1 }
    }

    /// Lets a second go by, at whose end it is `now`.
    fn second(&mut self, now: u64) {
        let Load { pages, random } = self;
        for (mean, used) in pages.iter_mut().filter(|(mean, _)| *mean < u64::MAX) {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (*random >> 33).is_multiple_of(*mean) {
                *used = now;
            }
        }
    }

    fn unused_since(&self, moment: u64) -> u64 {
        self.pages.iter().filter(|(_, used)| *used <= moment).count() as u64
    }
}

/// With an aging each two minutes the promotions at two minutes are exact. The control: samples
/// each ten minutes tell far too few.
#[test]
fn promotions_are_exact_at_the_distance_of_agings_and_too_few_if_derived_from_samples() {
    const DISTANCE: u64 = 120;
    const SAMPLE: u64 = 600;
    let mut load = Load::new(600);
    let mut model = Model { births: vec![0; 4], ..Model::default() };
    model.pages = vec![Page { generation: 3, accessed: true, used: 0 }; load.pages.len()];
    let (mut ages, mut known, mut truth, mut from_samples) = (Ages::default(), Bounds::default(), 0, 0);
    let mut cohorts = (0, 0);
    for now in 1..=6 * 3600 {
        load.second(now);
        for (page, (_, used)) in model.pages.iter_mut().zip(&load.pages) {
            (page.accessed, page.used) = (page.accessed || *used == now, *used);
        }
        if now % DISTANCE == 0 {
            if now > 3600 {
                truth += cohorts.0 - load.unused_since(now - 2 * DISTANCE);
            }
            model.now = now;
            model.age();
            let generations = model.births.iter().zip(model.oldest..).map(|(&born, number)| Generation {
                number,
                born: Monotonic(born * SECOND),
                memory: Bytes(model.pages.iter().filter(|page| page.generation == number).count() as u64),
            });
            let promotions = ages.add(Reading::new(generations.collect()).expect("generations"));
            if let Some(promotions) = promotions.filter(|_| now > 3600) {
                known += promotions.at(seconds(DISTANCE)).expect("one of the ages");
            }
            cohorts.0 = load.unused_since(now - DISTANCE);
        }
        if now % SAMPLE == 0 {
            if now > 3600 {
                from_samples += cohorts.1 - load.unused_since(now - SAMPLE - DISTANCE);
            }
            cohorts.1 = load.unused_since(now - DISTANCE);
        }
    }
    assert!(truth > 1000, "{truth}");
    assert_eq!(known, bounds(truth, truth));
    assert!(from_samples * 2 < truth, "{from_samples} {truth}");
}
