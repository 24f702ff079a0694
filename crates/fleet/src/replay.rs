//! The replay: every policy moves the threshold of every group by what was recorded.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::threshold::{
    IN_USE, Interval, OnGrid, Promoted, SMALL, SMALL_PAGES, SMALL_TIME, STEPS, Slo, Step, Threshold,
};
use omr_units::{Bytes, Permyriad, millis};

use crate::outcome::{Outcome, PARTS, Sums};
use crate::policies::Policies;
use crate::shard::{Bad, Row, Shard};

const MINUTE_MS: u64 = 60_000;
/// The memory in use is measured if its bounds are closer than this part of the group's memory.
const MEASURED: u64 = 8;

/// Replays a shard through all policies at once. `name`: of the result.
pub fn replay(shard: &Shard, policies: &Policies, name: String) -> Result<Outcome, Bad> {
    let slos = policies.slos(shard.page).collect();
    let mut replay = Replay { slos, jobs: HashMap::new(), outcome: Outcome::new(name, policies) };
    let rows = shard.each_round(|round| replay.round(round))?;
    replay.outcome.shard.rows = rows;
    replay.outcome.shard.jobs = replay.jobs.len() as u64;
    Ok(replay.outcome)
}

struct Replay {
    slos: Vec<Slo>,
    jobs: HashMap<Rc<str>, Job>,
    outcome: Outcome,
}

/// One group.
struct Job {
    boot: Rc<str>,
    id: u64,
    /// When it was last recorded, in milliseconds since 1970.
    time: u64,
    /// The part of the jobs in which it is counted.
    part: usize,
    /// The memory in use when it was last measured, at least; `None`: it never was.
    in_use: Option<Bytes>,
    /// By policy.
    states: Vec<State>,
}

struct State {
    threshold: Threshold,
    /// It was observed for the warm-up: memory may be taken.
    is_observed: bool,
    /// The memory that would have been out at the end of the last window, at most.
    held: Bytes,
}

impl Replay {
    /// The samples of one time.
    fn round(&mut self, rows: &[Row]) {
        let over = rows.iter().filter_map(|row| row.over).max();
        self.outcome.shard.machine_ms += millis(over.unwrap_or_default());
        let above = groups_above(rows);
        for row in rows.iter().filter(|row| !above.contains(&*row.group)) {
            self.sample(row);
        }
    }

    fn sample(&mut self, row: &Row) {
        let begin = || Job {
            boot: Rc::clone(&row.boot),
            id: row.id,
            time: row.time,
            part: part(&row.group),
            in_use: None,
            states: self.slos.iter().map(State::new).collect(),
        };
        let job = self.jobs.entry(Rc::clone(&row.group)).or_insert_with(begin);
        let absent = job.absence(row);
        if !absent.is_zero() {
            job.in_use = None;
        }
        (job.boot, job.id, job.time) = (Rc::clone(&row.boot), row.id, row.time);
        let recorded = &mut self.outcome.shard;
        let length = row.promotions.map(|promotions| promotions.over).or(row.over).filter(|over| millis(*over) > 0);
        recorded.windows += u64::from(length.is_some());
        let swap = row.swap.unwrap_or_default();
        if let Some(length) = length {
            recorded.all_time_ms += millis(length);
            recorded.all_memory_kib_min += kib_min(row.current + swap, length);
            recorded.swap_kib_min += kib_min(swap, length);
            recorded.refaulted_kib += row.refaulted.unwrap_or_default().0 >> 10;
        }
        let seen = length.and_then(|length| Seen::new(row, length, job.working_set(row)?));
        match &seen {
            Some(seen) => {
                recorded.time_ms += millis(seen.interval.length);
                recorded.memory_kib_min += kib_min(row.current + swap, seen.interval.length);
                recorded.refaults.add(seen.rate(seen.interval.swapped_in));
                let [least, most] = seen.at(Step::LEAST).held_kib_min;
                recorded.cold_least_kib_min += least;
                recorded.cold_most_kib_min += most;
            }
            None => recorded.unknown += u64::from(length.is_some()),
        }
        let policies = self.outcome.policies.iter_mut().map(|replayed| &mut replayed.sums);
        for ((state, slo), sums) in job.states.iter_mut().zip(&self.slos).zip(policies) {
            state.absent(absent);
            match &seen {
                Some(seen) => state.window(seen, slo, job.part, sums),
                None => state.lose(length.unwrap_or_default(), slo),
            }
        }
    }
}

impl Job {
    /// The time for which nobody observed it: it was made anew, the machine has booted, or the daemon
    /// did not run. Within a run of the daemon each sample says how long ago the one before was, by a
    /// clock that nobody sets.
    fn absence(&self, row: &Row) -> Duration {
        if self.id == row.id && self.boot == row.boot && row.over.is_some() {
            return Duration::ZERO;
        }
        // A wall clock that was set back tells nothing.
        Duration::from_millis(row.time.saturating_sub(self.time)).max(Duration::from_secs(1))
    }

    /// The memory in use, at least; `None`: it was never measured. As in the daemon: while the group is
    /// observed at a long age nobody knows, and it is no more than was last measured.
    fn working_set(&mut self, row: &Row) -> Option<Bytes> {
        let idle = row.idle.as_ref()?;
        let unused = idle.of(IN_USE)?;
        if (unused.most - unused.least).0 <= idle.memory.0 / MEASURED {
            self.in_use = Some(idle.memory - unused.most);
        }
        self.in_use.map(|in_use| in_use.min(idle.memory - unused.least))
    }
}

/// What a window showed. All policies use the same.
struct Seen {
    interval: Interval,
    promoted: OnGrid,
    working_set: Bytes,
    at_steps: [AtStep; STEPS],
}

/// What a window would have been with a threshold.
#[derive(Clone, Copy, Default)]
struct AtStep {
    /// The memory that would be out at its end, at most.
    held: Bytes,
    /// That, at least and at most, times the length of the window.
    held_kib_min: [u64; 2],
    /// The memory that would have come back.
    back: Bounds,
    /// That, at least and at most, in millionths of the working set per minute.
    rates: [u64; 2],
}

impl Seen {
    /// `None`: too little is known.
    fn new(row: &Row, length: Duration, working_set: Bytes) -> Option<Self> {
        let interval = Interval {
            length,
            size: row.current,
            promoted: Promoted::at_each_age(row.promotions.as_ref()?),
            swapped_in: row.refaulted.unwrap_or_default(),
            working_set: Some(working_set),
            stalled: row.stalled.map(|stalled| Permyriad::of_time(stalled, length)),
            write_budget_used: false,
            swap_at_floor: false,
        };
        let promoted = OnGrid::of(&interval);
        let mut seen = Seen { interval, promoted, working_set, at_steps: Default::default() };
        let mut at_steps = seen.at_steps;
        for (at, step) in at_steps.iter_mut().zip(Step::all()) {
            let (held, back) = (seen.out(row, step), seen.back(row, step));
            *at = AtStep {
                held: held.most,
                held_kib_min: [held.least, held.most].map(|held| kib_min(held, length)),
                back,
                rates: [back.least, back.most].map(|back| seen.rate(back)),
            };
        }
        seen.at_steps = at_steps;
        Some(seen)
    }

    fn at(&self, step: Step) -> AtStep {
        self.at_steps.get(usize::from(u8::from(step))).copied().unwrap_or_default()
    }

    /// The memory that would be out with this threshold at the end of the window. What omr took was
    /// unused for the recorded threshold: at longer ones, and of what others took, nobody knows.
    fn out(&self, row: &Row, step: Step) -> Bounds {
        let mut out = row.idle.as_ref().and_then(|idle| idle.of(step.age())).unwrap_or_default();
        let swap = row.swap.unwrap_or_default();
        out.most += swap;
        if row.threshold.is_some_and(|recorded| step.age() <= recorded) {
            out.least += swap;
        }
        out
    }

    /// The memory that would have come back in the window.
    fn back(&self, row: &Row, step: Step) -> Bounds {
        let mut back = row.promotions.and_then(|promotions| promotions.at(step.age())).unwrap_or_default();
        back.most += self.interval.swapped_in;
        if row.threshold.is_some_and(|recorded| step.age() <= recorded) {
            back.least += self.interval.swapped_in;
        }
        back
    }

    /// The promotions that an objective allows in the window.
    fn allowed(&self, slo: &Slo) -> u128 {
        let share =
            u128::from(self.working_set.0) * u128::from(slo.promotions.0) * u128::from(millis(self.interval.length));
        let allowed = share / (1_000_000 * u128::from(MINUTE_MS));
        if self.interval.size >= SMALL {
            return allowed;
        }
        let free = u128::from(SMALL_PAGES * slo.page.0) * self.interval.length.as_millis();
        allowed + free / SMALL_TIME.as_millis()
    }

    /// Millionths of the working set per minute.
    fn rate(&self, promoted: Bytes) -> u64 {
        let work = u128::from(self.working_set.0) * u128::from(millis(self.interval.length));
        let promoted = u128::from(promoted.0) * u128::from(MINUTE_MS) * 1_000_000;
        match work {
            0 if promoted == 0 => 0,
            0 => u64::MAX,
            work => u64::try_from(promoted / work).unwrap_or(u64::MAX),
        }
    }
}

impl State {
    fn new(slo: &Slo) -> Self {
        State { threshold: Threshold::new(slo), is_observed: false, held: Bytes::ZERO }
    }

    /// Nobody observed the group for this time. As in the daemon, it is observed again first.
    fn absent(&mut self, time: Duration) {
        if !time.is_zero() {
            self.threshold.absent(time);
            (self.is_observed, self.held) = (false, Bytes::ZERO);
        }
    }

    fn window(&mut self, seen: &Seen, slo: &Slo, part: usize, sums: &mut Sums) {
        let step = self.threshold.step();
        if self.is_observed {
            let AtStep { held, held_kib_min, back, rates } = seen.at(step);
            let allowed = seen.allowed(slo);
            let [held_least, held_most] = held_kib_min;
            sums.acting += 1;
            sums.held_least_kib_min += held_least;
            sums.held_most_kib_min += held_most;
            sums.promoted_least_kib += back.least.0 >> 10;
            sums.promoted_most_kib += back.most.0.div_ceil(1024);
            // What is out now and was not before, and what has come back and left again.
            sums.written_most_kib += ((held - self.held) + back.most).0.div_ceil(1024);
            sums.over_least += u64::from(u128::from(back.least.0) > allowed);
            sums.over_most += u64::from(u128::from(back.most.0) > allowed);
            if let Some(time) = sums.at_step_ms.get_mut(usize::from(u8::from(step))) {
                *time += millis(seen.interval.length);
            }
            for (histograms, rate) in [&mut sums.rates_least, &mut sums.rates_most].into_iter().zip(rates) {
                if let Some(histogram) = histograms.get_mut(part) {
                    histogram.add(rate);
                }
            }
            self.held = held;
        } else {
            sums.observing += 1;
            self.held = Bytes::ZERO;
        }
        let moved = self.threshold.observe_on_grid(slo, &seen.interval, &seen.promoted);
        self.is_observed = moved.reason.is_observed(self.is_observed);
    }

    /// A window of which nothing is known.
    fn lose(&mut self, length: Duration, slo: &Slo) {
        self.threshold.observe(slo, &Interval { length, ..Interval::default() });
        (self.is_observed, self.held) = (false, Bytes::ZERO);
    }
}

fn kib_min(bytes: Bytes, time: Duration) -> u64 {
    u64::try_from(u128::from(bytes.0 >> 10) * time.as_millis() / u128::from(MINUTE_MS)).unwrap_or(u64::MAX)
}

/// The groups above other groups of a round: their samples have the others' memory, too.
fn groups_above(rows: &[Row]) -> HashSet<&str> {
    let mut above = HashSet::new();
    for row in rows {
        let mut path = &*row.group;
        while let Some((parent, name)) = path.rsplit_once('/') {
            // The path of the machine is "/".
            let parent_path = if parent.is_empty() { "/" } else { parent };
            if name.is_empty() || !above.insert(parent_path) {
                break;
            }
            path = parent;
        }
    }
    above
}

/// The part of the jobs in which a group is counted.
fn part(group: &str) -> usize {
    usize::try_from(crc32fast::hash(group.as_bytes())).unwrap_or_default() % PARTS
}

#[cfg(test)]
mod tests {
    use omr_history::{AGES, Idle};
    use omr_policy::age::Promotions;

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
        let mut replay = Replay { slos, jobs: HashMap::new(), outcome: Outcome::new("x".into(), policies) };
        rounds.iter().for_each(|round| replay.round(round));
        replay.outcome
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
        let held = kib_min(Bytes(GIB.0 / 1000 * 400), Duration::from_secs(600));
        assert_eq!((default.sums.held_least_kib_min, default.sums.held_most_kib_min), (143 * held, 143 * held));
        // It leaves memory once.
        assert_eq!(default.sums.written_most_kib, (GIB.0 / 1000 * 400).div_ceil(1024));
        assert_eq!((default.sums.promoted_most_kib, default.sums.over_most), (0, 0));
        assert_eq!(default.sums.at_step_ms.iter().sum::<u64>(), 143 * 600_000);
        assert_eq!(
            fixed.sums.at_step_ms[usize::from(u8::from(Step::not_below(Duration::from_secs(3600))))],
            143 * 600_000
        );
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
        for (promoted, promotions, over) in [(12, "0.2%", 0), (13, "0.2%", 143), (13, "10%", 0)] {
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
            ["/", "/system.slice", GROUP, "/app.slice/x", "/app.slice/x2"]
                .map(|group| row(number, group, 400, 0))
                .into()
        };
        let outcome = replayed(&(0..6).map(round).collect::<Vec<_>>(), &two());
        assert_eq!(outcome.shard.windows, 18, "the service and the two below app.slice");
        assert_eq!(replayed(&[vec![row(0, "/", 0, 0)]], &two()).shard.windows, 1, "the machine alone");
    }

    #[test]
    fn a_group_that_was_made_anew_or_is_unknown_is_observed_again() {
        let anew = |change: fn(&mut Row)| {
            let mut rounds = hours(12, 400, 0);
            rounds[6].iter_mut().for_each(change);
            replayed(&rounds, &two()).policies[0].sums.observing
        };
        assert_eq!(anew(|_| {}), 1, "the control");
        assert_eq!(anew(|row| row.promotions = None), 2);
        assert_eq!(anew(|row| row.idle = None), 2);
        assert_eq!(anew(|row| row.id = 8), 3, "it is one group, then another, then the first");
        assert_eq!(anew(|row| row.boot = "another".into()), 3);
        // The daemon was started again, a quarter of an hour later.
        let mut rounds = hours(12, 400, 0);
        rounds.iter_mut().skip(6).flatten().for_each(|row| row.time += 900_000);
        assert_eq!(replayed(&rounds, &two()).policies[0].sums.observing, 1, "or the clock was set");
        rounds[6].iter_mut().for_each(|row| (row.over, row.promotions) = (None, None));
        assert_eq!(replayed(&rounds, &two()).policies[0].sums.observing, 2);
        // Times are whole seconds, and the time between samples is not.
        let mut rounds = hours(12, 400, 0);
        rounds.iter_mut().skip(1).step_by(2).flatten().for_each(|row| row.time += 1_000);
        assert_eq!(replayed(&rounds, &two()).policies[0].sums.observing, 1);
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
        let mut job = Job { boot: "b".into(), id: 7, time: 0, part: 0, in_use: None, states: Vec::new() };
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
            let all = 2 * kib_min(half, Duration::from_secs(600));
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
}
