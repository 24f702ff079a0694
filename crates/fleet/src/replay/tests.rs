//! Tests of the replay.

use omr_history::Idle;
use omr_policy::age::{AGES, Bounds, Promotions};

use super::*;

const GROUP: &str = "/system.slice/db.service";
const GIB: Bytes = Bytes(1 << 30);

fn policies(text: &str) -> Policies {
    Policies::parse(std::path::Path::new("p.json"), text.as_bytes()).expect("policies")
}

/// The default, and one that has a threshold from the first window on.
fn two() -> Policies {
    policies(
        r#"{"policies":[{"name":"fixed","slo":{"shortest":"1h","longest":"1h","warm_up":"0s","promotions":"10%"}}]}"#,
    )
}

/// A window of ten minutes of a group of 1 GiB, of which this part is unused for each age, and this
/// part was promoted at each.
fn row(number: u64, group: &str, unused: u64, promoted: u64) -> Row {
    let part =
        |permille: u64| Bounds { least: Bytes((GIB.0 / 1000) * permille), most: Bytes((GIB.0 / 1000) * permille) };
    Row {
        time: 1_700_000_000_000 + number * 600_000,
        boot: "boot".into(),
        group: group.into(),
        id: 7,
        current: GIB,
        swap: Some(Bytes::ZERO),
        idle: Some(Idle { ago: Duration::ZERO, memory: GIB, bounds: [Some(part(unused)); AGES.len()] }),
        over: Some(Duration::from_secs(600)),
        refaulted: Some(Bytes::ZERO),
        stalled: Some(Duration::ZERO),
        promotions: Some(Promotions { over: Duration::from_secs(600), bounds: [part(promoted); AGES.len()] }),
        threshold: None,
    }
}

fn replayed(rounds: &[Vec<Row>], policies: &Policies) -> Outcome {
    let slos = policies.slos(Bytes::kib(4)).collect();
    let mut replay = Replay::new(
        slos,
        Rules { config: Config::default(), swaps_to_disk: false },
        Outcome::new("x".into(), policies),
    );
    rounds.iter().for_each(|round| replay.round(round));
    replay.end()
}

fn hours(windows: u64, unused: u64, promoted: u64) -> Vec<Vec<Row>> {
    (0..windows).map(|number| vec![row(number, GROUP, unused, promoted)]).collect()
}

#[test]
fn memory_that_nobody_uses_is_held_out_after_the_warm_up() {
    let outcome = replayed(&hours(144, 400, 0), &two());
    let [default, fixed] = &outcome.policies[..] else { panic!("two policies") };
    assert_eq!((default.policy.name.as_str(), fixed.policy.name.as_str()), ("default", "fixed"));
    // Nothing is known before the first window. The first window is the warm-up.
    assert_eq!((default.sums.observing, default.sums.acting), (1, 143));
    let held = kib_min(Bytes(GIB.0 / 1000 * 400), 600_000);
    assert_eq!((default.sums.held_least_kib_min, default.sums.held_most_kib_min), (143 * held, 143 * held));
    // It leaves memory once.
    assert_eq!(default.sums.written_most_kib, (GIB.0 / 1000 * 400).div_ceil(1024));
    assert_eq!((default.sums.promoted_most_kib, default.sums.over_most), (0, 0));
    assert_eq!(default.sums.at_step_ms.iter().sum::<u64>(), 143 * 600_000);
    assert_eq!(fixed.sums.at_step_ms[usize::from(u8::from(Step::not_below(Duration::from_secs(3600))))], 143 * 600_000);
    let shard = &outcome.shard;
    assert_eq!((shard.windows, shard.unknown, shard.time_ms, shard.machine_ms), (144, 0, 86_400_000, 86_400_000));
    assert_eq!(shard.memory_kib_min, 1440 << 20);
    assert_eq!((shard.cold_least_kib_min, shard.cold_most_kib_min), (144 * held, 144 * held));
}

#[test]
fn what_comes_back_is_counted_against_what_is_allowed() {
    let fixed = |promotions: &str| {
        let slo = format!(r#""shortest":"1h","longest":"1h","warm_up":"0s","promotions":"{promotions}""#);
        policies(&format!(r#"{{"policies":[{{"name":"fixed","slo":{{{slo}}}}}]}}"#))
    };
    // 60 % are in use, and 0.2 % of that may come back in a minute: 1.2 % of all in ten.
    for (promoted, promotions, over) in [(11, "0.2%", 0), (13, "0.2%", 143), (13, "10%", 0)] {
        let outcome = replayed(&hours(144, 400, promoted), &fixed(promotions));
        let sums = &outcome.policies[1].sums;
        assert_eq!((sums.acting, sums.over_least, sums.over_most), (143, over, over), "{promoted} {promotions}");
        assert_eq!(sums.promoted_least_kib, 143 * (GIB.0 / 1000 * promoted / 1024));
        let rate = sums.rates_most.iter().find_map(|rates| rates.quantile(9_800)).expect("windows");
        let exact = promoted * 1_000_000 / 600 / 10;
        assert!(rate.abs_diff(exact) <= exact / 8, "{rate}, not {exact}");
    }
}

#[test]
fn a_group_with_recorded_groups_below_it_is_no_job() {
    let round = |number| {
        ["/", "/system.slice", GROUP, "/app.slice/x", "/app.slice/x2"].map(|group| row(number, group, 400, 0)).into()
    };
    let outcome = replayed(&(0..6).map(round).collect::<Vec<_>>(), &two());
    assert_eq!(outcome.shard.windows, 18, "the service and the two below app.slice");
    assert_eq!(replayed(&[vec![row(0, "/", 0, 0)]], &two()).shard.windows, 1, "the machine alone");
}

#[test]
fn a_group_that_was_made_anew_is_observed_again_and_has_nothing_out() {
    let anew = |change: fn(&mut Row)| {
        let mut rounds = hours(12, 400, 0);
        rounds[6].iter_mut().for_each(change);
        replayed(&rounds, &two()).policies[0].sums.observing
    };
    assert_eq!(anew(|_| {}), 1, "the control");
    assert_eq!(anew(|row| row.id = 8), 3, "it is one group, then another, then the first");
    assert_eq!(anew(|row| row.boot = "another".into()), 3);
    // Times are whole seconds, and the time between samples is not.
    let mut rounds = hours(12, 400, 0);
    rounds.iter_mut().skip(1).step_by(2).flatten().for_each(|row| row.time += 1_000);
    assert_eq!(replayed(&rounds, &two()).policies[0].sums.observing, 1);
}

/// Windows of which nothing is known, and a daemon that was started again a quarter of an hour later.
#[test]
fn what_is_out_stays_out_while_nothing_is_taken_until_it_is_used() {
    let part = |permille: u64| (GIB.0 / 1000 * permille) / 1024;
    let lost = |used: u64, lose: fn(&mut Vec<Vec<Row>>)| {
        // 40 % are unused for each age; from the seventh window on, this part less.
        let mut rounds = hours(12, 400, 0);
        let later = rounds.iter_mut().skip(7).flatten();
        later.zip(hours(5, 400 - used, used).into_iter().flatten()).for_each(|(row, other)| {
            (row.idle, row.promotions) = (other.idle, other.promotions);
        });
        lose(&mut rounds);
        replayed(&rounds, &two()).policies[0].sums.clone()
    };
    let [unused, used] = [0, 20].map(|used| {
        let unknown = lost(used, |rounds| rounds[6].iter_mut().for_each(|row| row.promotions = None));
        let no_ages = lost(used, |rounds| rounds[6].iter_mut().for_each(|row| row.idle = None));
        assert_eq!(unknown, no_ages);
        let restarted = lost(used, |rounds| {
            rounds.iter_mut().skip(6).flatten().for_each(|row| row.time += 900_000);
            rounds[6].iter_mut().for_each(|row| (row.over, row.promotions) = (None, None));
        });
        // All of the ten known windows after the first one hold something.
        assert_eq!([&unknown, &restarted].map(|sums| (sums.observing, sums.acting)), [(1, 10); 2]);
        assert_eq!(unknown.held_most_kib_min, restarted.held_most_kib_min);
        unknown
    });
    assert_eq!(unused.held_most_kib_min, 10 * 10 * part(400));
    // It was written once.
    assert_eq!(unused.written_most_kib, (GIB.0 / 1000 * 400).div_ceil(1024));
    // What was used has come back, in the window in which nothing is taken as well.
    assert_eq!(used.held_most_kib_min, 5 * 10 * part(400) + 5 * 10 * part(380));
    // From the second window on the threshold is 8 h: of no longer age is anything known.
    assert_eq!([used.promoted_least_kib, used.promoted_most_kib], [part(20), 5 * (part(20) + 1)]);
    // A control: of a new group nothing is out.
    let anew = lost(0, |rounds| rounds.iter_mut().skip(6).flatten().for_each(|row| row.id = 8));
    assert_eq!((anew.observing, anew.acting), (2, 10));
}

#[test]
fn what_is_left_is_no_more_than_was_out_and_no_less_than_has_been_unused_since() {
    let part = |permille: u64| Bytes((GIB.0 / 1000) * permille);
    let of = |young: u64, old: u64| {
        AGES.map(|age| part(if age < Duration::from_secs(3600) { young } else { old }))
            .map(|bytes| Bounds { least: bytes, most: bytes })
    };
    let mut rounds = hours(8, 0, 0);
    for (number, row) in rounds.iter_mut().flatten().enumerate() {
        // In the last window more is unused than was out, and more is used than was out.
        let (unused, used) = if number == 7 { (of(600, 100), of(500, 50)) } else { (of(400, 100), of(0, 0)) };
        row.idle.iter_mut().for_each(|idle| idle.bounds = unused.map(Some));
        row.promotions.iter_mut().for_each(|promotions| promotions.bounds = used);
        row.time += if number >= 6 { 900_000 } else { 0 };
    }
    // The daemon is started again.
    (rounds[6][0].over, rounds[6][0].promotions) = (None, None);
    let sums = &replayed(&rounds, &two()).policies[0].sums;
    let kib = |permille: u64| part(permille).0 >> 10;
    assert_eq!(sums.held_most_kib_min, 6 * 10 * kib(400));
    // Nothing was taken for 25 min, and 10 more: of memory that was unused for an hour it is sure.
    assert_eq!(sums.held_least_kib_min, 5 * 10 * kib(400) + 10 * kib(100));
    // That has not come back.
    assert_eq!([sums.promoted_least_kib, sums.promoted_most_kib], [kib(50), part(300).0.div_ceil(1024)]);
}

/// With a threshold of an hour, a group is aged every half an hour.
#[test]
fn memory_is_surely_out_once_it_was_unused_for_half_a_threshold_more() {
    let held = |windows: u64, used: u64| {
        // 400 are unused for an hour, and none for two.
        let mut rounds = hours(windows, 400, used);
        for bounds in rounds.iter_mut().flatten().flat_map(|row| row.idle.as_mut()).map(|idle| &mut idle.bounds) {
            let of =
                |age, bounds: Option<Bounds>| bounds.filter(|_| age < Duration::from_secs(7200)).unwrap_or_default();
            *bounds = std::array::from_fn(|index| Some(of(AGES[index], bounds[index])));
        }
        let sums = &replayed(&rounds, &two()).policies[1].sums;
        [sums.held_least_kib_min, sums.held_most_kib_min].map(|held| held / 10 / ((GIB.0 / 1000 * 100) >> 10))
    };
    // The first window is the warm-up. What was unused at its beginning is out half an hour later.
    assert_eq!(held(2, 0), [0, 4]);
    assert_eq!(held(4, 0), [4, 12], "in the last window");
    // What is used meanwhile is not.
    assert_eq!(held(4, 30), [3, 12]);
}

/// Ages that lie between bounds: likely is halfway, and the least where no aging tells such memory from
/// what is in use.
#[test]
fn what_is_likely_is_between_the_bounds() {
    let likely = |most: u64| {
        let mut rounds = hours(2, 300, 30);
        let part = |permille: u64| Bytes(GIB.0 / 1000 * permille);
        for row in rounds.iter_mut().flatten() {
            let unused = AGES.map(|age| {
                let least = part(if age < Duration::from_secs(3600) { most } else { 300 });
                Some(Bounds { least, most: part(most) })
            });
            row.idle.iter_mut().for_each(|idle| idle.bounds = unused);
            let used = Bounds { least: part(30), most: part(50) };
            row.promotions.iter_mut().for_each(|promotions| promotions.bounds = [used; AGES.len()]);
        }
        let sums = &replayed(&rounds, &two()).policies[1].sums;
        let held = [sums.held_least_kib_min, sums.held_likely_kib_min, sums.held_most_kib_min];
        let back = [sums.promoted_least_kib, sums.promoted_likely_kib, sums.promoted_most_kib];
        let permille = |kib: u64| (kib * 1000 + (GIB.0 >> 11)) / (GIB.0 >> 10);
        (held.map(|held| permille(held / 10)), back.map(permille))
    };
    assert_eq!(likely(500), ([300, 400, 500], [30, 40, 50]));
    assert_eq!(likely(930), ([300, 615, 930], [30, 40, 50]));
    assert_eq!(likely(940), ([300, 300, 940], [30, 30, 50]));
}

#[test]
fn a_group_rests_while_too_much_comes_back() {
    // The guard allows 1 % of the 600 that are not out, in a minute.
    let replay = |promoted: u64| replayed(&hours(24, 400, promoted), &two()).policies[1].sums.clone();
    let (few, many) = (replay(60), replay(61));
    let part = |permille: u64| ((GIB.0 / 1000) * permille).div_ceil(1024);
    assert_eq!(few.promoted_most_kib, 23 * part(60), "the control");
    // Memory is taken at once, and again after 10, 20, 40 and 80 minutes. None of it is used meanwhile.
    assert_eq!(many.promoted_most_kib, 5 * part(61));
    assert!(many.written_most_kib < few.written_most_kib);
}

/// Observed at 30 min, a group is aged every 15 min. Of three samples, five minutes apart, one has
/// promotions.
#[test]
fn samples_between_two_agings_are_part_of_the_next_window() {
    let seldom = |lose: fn(&mut Row)| {
        let mut rounds: Vec<Vec<Row>> = (0..36).map(|number| vec![row(number, GROUP, 400, 0)]).collect();
        for (number, row) in rounds.iter_mut().flatten().enumerate() {
            let minutes = 5 * (number as u64 + 1);
            row.time = 1_700_000_000_000 + 60_000 * minutes;
            let over = Duration::from_secs(300);
            (row.over, row.refaulted) = ((number > 0).then_some(over), Some(Bytes::mib(1)));
            row.promotions = row.promotions.filter(|_| number > 0 && minutes.is_multiple_of(15));
            row.promotions.iter_mut().for_each(|promotions| promotions.over = Duration::from_secs(900));
            let ago = Duration::from_secs(60 * (minutes % 15));
            row.idle.iter_mut().for_each(|idle| idle.ago = ago - ago.min(Duration::from_millis(900)));
            lose(row);
        }
        replayed(&rounds, &two())
    };
    let outcome = seldom(|_| {});
    assert_eq!((outcome.shard.windows, outcome.shard.unknown), (12, 0));
    assert_eq!((outcome.shard.time_ms, outcome.shard.all_time_ms), (12 * 900_000, 35 * 300_000));
    // All that came back counts once.
    assert_eq!(outcome.shard.refaulted_kib, 35 << 10);
    let [sums, _] = &outcome.policies[..] else { panic!("two policies") };
    assert_eq!((sums.sums.observing, sums.sums.acting), (1, 11));
    // A control: agings of which nothing is known.
    let outcome = seldom(|row| {
        row.promotions = None;
        row.idle.iter_mut().for_each(|idle| idle.ago = Duration::ZERO);
    });
    assert_eq!((outcome.shard.windows, outcome.shard.unknown), (35, 35));
    // Nobody ages the group any more.
    let outcome = seldom(|row| {
        row.promotions = None;
        row.idle.iter_mut().for_each(|idle| idle.ago = Duration::from_secs(24 * 3600));
    });
    assert_eq!((outcome.shard.windows, outcome.shard.unknown), (35, 35));
}

#[test]
fn of_too_many_jobs_those_are_forgotten_that_are_gone() {
    // Each round has a service, and a job that is there for three rounds.
    let round = |number: u64| {
        let job = |at: u64| row(number, &format!("/jobs/{at}"), 400, 0);
        [row(number, GROUP, 400, 0)].into_iter().chain((number..number + 3).map(job)).collect::<Vec<_>>()
    };
    let rounds: Vec<_> = (0..100).map(round).collect();
    let replayed = |most: usize| {
        let policies = two();
        let slos = policies.slos(Bytes::kib(4)).collect();
        let mut replay = Replay::new(
            slos,
            Rules { config: Config::default(), swaps_to_disk: false },
            Outcome::new("x".into(), &policies),
        );
        let mut largest = 0;
        for round in &rounds {
            replay.most = replay.most.min(most);
            replay.round(round);
            largest = largest.max(replay.remembered);
        }
        (largest, replay.end())
    };
    let (all, outcome) = replayed(usize::MAX);
    assert_eq!((all, outcome.shard.jobs), (103, 103));
    // Those of the last hour are not gone: six rounds of one job, and the two that came with it.
    let (few, bounded) = replayed(16);
    assert!(few <= 17, "{few}");
    assert_eq!(bounded, outcome, "no job came back");
}

#[test]
fn promotions_in_no_time_are_unknown() {
    let mut rounds = hours(4, 400, 100);
    let none = rounds[2][0].promotions.as_mut().expect("promotions");
    none.over = Duration::ZERO;
    let outcome = replayed(&rounds, &two());
    assert_eq!((outcome.shard.windows, outcome.shard.unknown), (4, 1));
    // 16.7 thousandths of the memory in use a minute, and not without end.
    assert!(outcome.shard.time_ms == 3 * 600_000 && outcome.policies[1].sums.acting == 2);
    let rates = outcome.policies[1].sums.rates_most.iter().filter_map(|rates| rates.quantile(10_000));
    assert!(rates.max().is_some_and(|most| most < 20_000));
}

#[test]
fn a_group_without_a_window_is_no_job() {
    let mut rounds = hours(1, 400, 0);
    rounds[0][0].over = None;
    rounds[0][0].promotions = None;
    assert_eq!(replayed(&rounds, &two()).shard.jobs, 0);
    rounds.extend(hours(2, 400, 0).pop());
    assert_eq!(replayed(&rounds, &two()).shard.jobs, 1);
}

#[test]
fn the_memory_in_use_is_no_more_than_was_last_measured() {
    let working_set = |job: &mut Job, unused: [u64; 2]| {
        let mut row = row(0, GROUP, 0, 0);
        let bounds = unused.map(|permille| Bytes((GIB.0 / 1000) * permille));
        if let Some(idle) = &mut row.idle {
            idle.bounds = [Some(Bounds { least: bounds[0], most: bounds[1] }); AGES.len()];
        }
        job.working_set(&row).map(|bytes| (bytes.0 * 1000).div_ceil(GIB.0))
    };
    let mut job = Job::new(&row(0, GROUP, 0, 0));
    assert_eq!(working_set(&mut job, [0, 1000]), None);
    assert_eq!(working_set(&mut job, [400, 500]), Some(501));
    assert_eq!(working_set(&mut job, [0, 1000]), Some(501));
    assert_eq!(working_set(&mut job, [700, 1000]), Some(301));
    assert_eq!(working_set(&mut job, [100, 200]), Some(801));
}

#[test]
fn memory_in_swap_is_as_old_as_the_threshold_of_omr_and_else_of_unknown_age() {
    let half = Bytes(GIB.0 / 2);
    let held = |threshold: Option<u64>| {
        let mut rounds = hours(3, 0, 0);
        for row in rounds.iter_mut().flatten() {
            (row.swap, row.refaulted) = (Some(half), Some(Bytes::mib(10)));
            row.threshold = threshold.map(|minutes| Duration::from_secs(60 * minutes));
        }
        let sums = &replayed(&rounds, &two()).policies[1].sums;
        let all = 2 * kib_min(half, 600_000);
        let back = [sums.promoted_least_kib, sums.promoted_most_kib].map(|kib| kib / 20_480);
        ([sums.held_least_kib_min, sums.held_most_kib_min].map(|held| held / all), back)
    };
    // The threshold of the replay is an hour.
    assert_eq!(held(Some(120)), ([1, 1], [1, 1]));
    assert_eq!(held(Some(60)), ([1, 1], [1, 1]));
    assert_eq!(held(Some(30)), ([0, 1], [0, 1]));
    assert_eq!(held(None), ([0, 1], [0, 1]));
}

#[test]
fn jobs_are_spread_over_the_parts() {
    let mut found = [0; PARTS];
    (0..6_400).for_each(|number| found[part(&format!("/system.slice/job-{number}.service"))] += 1);
    assert!(found.iter().all(|&jobs| (50..150).contains(&jobs)), "{found:?}");
}
