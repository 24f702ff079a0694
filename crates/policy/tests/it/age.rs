//! Ages of memory: the bounds are true for a model of the kernel, whatever happens in it.

use core::time::Duration;

use omr_policy::age::{Ages, Bounds, Generation, Reading};
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
    readings.into_iter().for_each(|reading| ages.add(reading));
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
fn twelve_rounds_of_the_history_are_remembered() {
    // Twenty minutes in parts of one, of which the daemon ages in these.
    let moments: Vec<u64> =
        (1..=30).flat_map(|round| [10, 16, 18, 19, 20].map(|part| (round * 20 + part) * 60)).collect();
    let agings = (0..).zip(moments.windows(4));
    let all =
        ages(agings.map(|(first, born)| reading(first, &[(born[0], 7), (born[1], 0), (born[2], 0), (born[3], 0)])));
    let round = seconds(1200);
    assert_eq!(all.idle(12 * round), bounds(7, 7));
    assert_eq!(all.idle(14 * round), bounds(0, 7));
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
                let moment = model.now.saturating_sub(time);
                let idle = model.pages.iter().filter(|page| page.used <= moment).count() as u64;
                let said = ages.idle(Duration::from_nanos(time));
                prop_assert!(said.least <= said.most);
                prop_assert!(said.least.0 <= idle, "{said:?}, {idle} idle for {time}");
                let longer = model.now.saturating_sub(time + time / 32);
                let idle = model.pages.iter().filter(|page| page.used <= longer).count() as u64;
                prop_assert!(said.most.0 >= idle, "{said:?}, {idle} idle for {time} and more");
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
