//! The replay: every policy moves the threshold of every group by what was recorded.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use omr_history::Idle;
use omr_policy::age::{AGES, Bounds, Promotions};
use omr_policy::threshold::{
    IN_USE, Interval, OnGrid, Promoted, SMALL, SMALL_PAGES, SMALL_TIME, STEPS, Slo, Step, Threshold,
};
use omr_units::{Bytes, Permyriad, millis};

use crate::histogram::Bucket;
use crate::outcome::{Outcome, PARTS, Recorded, Sums};
use crate::policies::Policies;
use crate::shard::{Row, Shard, Unusable};

const MINUTE_MS: u64 = 60_000;
/// Recordings have the time since the last aging in whole seconds. No aging has happened meanwhile if that
/// time is shorter than expected by at most this part.
const SLACK: u32 = 16;
/// The memory in use is measured if its bounds are closer than this part of the group's memory.
const MEASURED: u64 = 8;
/// The policies take in the windows of a job when so many wait, of all jobs. So what a policy remembers
/// of a job is in the cache of the CPU for many windows, and windows that wait take a few MiB at most.
const WAITING: usize = 1024;
/// With more jobs than this, what policies remember of those is forgotten that are gone. omr records 200 groups
/// at a time; a machine that makes others all week has 100,000, and a policy remembers half a KiB of each.
const MOST_JOBS: usize = 20_000;
/// A job that was not recorded for this time is gone, in milliseconds.
const GONE_MS: u64 = 3_600_000;

/// Replays a shard through all policies at once. `name`: of the result.
pub fn replay(shard: &Shard, policies: &Policies, name: String) -> Result<Outcome, Unusable> {
    let slos = policies.slos(shard.page).collect();
    let mut replay = Replay::new(slos, Outcome::new(name, policies));
    let rows = shard.each_round(|round| replay.round(round))?;
    let mut outcome = replay.end();
    outcome.shard.rows = rows;
    Ok(outcome)
}

struct Replay {
    slos: Vec<Slo>,
    jobs: Vec<Job>,
    /// The place of a group's job.
    places: HashMap<Rc<str>, usize>,
    /// The places of jobs with something that waits.
    waiting: Vec<usize>,
    /// All that waits.
    waits: usize,
    /// The jobs of which policies remember something, and how many these may be.
    remembered: usize,
    most: usize,
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
    /// Since the last window.
    since: Since,
    /// By policy; none before the first window. Most groups of a machine with short jobs have no window.
    states: Vec<State>,
    /// What the policies have not taken in yet, in order.
    waiting: Vec<Event>,
}

/// What the policies take in of a job.
enum Event {
    Seen(Box<Seen>),
    /// A window of which nothing is known.
    Lost(Duration),
    Absent(Absence),
}

/// What samples say between two windows. A group that is observed at a long age is not aged between all
/// samples, so there may be several.
struct Since {
    /// The time from the last aging to the last window's end.
    ago: Duration,
    length: Duration,
    refaulted: Bytes,
    stalled: Option<Duration>,
}

struct State {
    threshold: Threshold,
    /// It was observed for the warm-up: memory may be taken.
    is_observed: bool,
    out: Out,
}

/// The memory that would be out.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    memory: Bounds,
    /// The threshold when memory was last taken.
    step: Option<Step>,
    /// The time since then.
    ago: Duration,
}

impl Replay {
    fn new(slos: Vec<Slo>, outcome: Outcome) -> Self {
        Replay {
            slos,
            jobs: Vec::new(),
            places: HashMap::new(),
            waiting: Vec::new(),
            waits: 0,
            remembered: 0,
            most: MOST_JOBS,
            outcome,
        }
    }

    fn end(mut self) -> Outcome {
        self.take_in();
        self.outcome
    }

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
        let place = self.places.get(&row.group).copied().unwrap_or_else(|| {
            self.places.insert(Rc::clone(&row.group), self.jobs.len());
            self.jobs.push(Job::new(row));
            self.jobs.len() - 1
        });
        let Some(job) = self.jobs.get_mut(place) else { return };
        let waited = job.waiting.len();
        let was_known = !job.states.is_empty();
        job.sample(row, &self.slos, &mut self.outcome.shard);
        if !was_known && !job.states.is_empty() {
            self.remembered += 1;
        }
        if waited == 0 && !job.waiting.is_empty() {
            self.waiting.push(place);
        }
        self.waits += job.waiting.len() - waited;
        if self.waits >= WAITING {
            self.take_in();
        }
        if self.remembered > self.most {
            self.forget_gone(row.time);
        }
    }

    /// Jobs that are gone count as new ones if they come back.
    fn forget_gone(&mut self, now: u64) {
        self.take_in();
        let gone = self.jobs.iter_mut().filter(|job| now.saturating_sub(job.time) >= GONE_MS);
        gone.for_each(|job| job.states = Vec::new());
        self.remembered = self.jobs.iter().filter(|job| !job.states.is_empty()).count();
        // So that many jobs at one time are not looked through for each new one.
        self.most = MOST_JOBS.max(2 * self.remembered);
    }

    /// The policies take in all that waits.
    fn take_in(&mut self) {
        self.waits = 0;
        for place in self.waiting.drain(..) {
            let Some(job) = self.jobs.get_mut(place) else { continue };
            let events = std::mem::take(&mut job.waiting);
            let policies = self.outcome.policies.iter_mut().map(|replayed| &mut replayed.sums);
            for ((state, slo), sums) in job.states.iter_mut().zip(&self.slos).zip(policies) {
                for event in &events {
                    match event {
                        Event::Seen(seen) => state.window(seen, slo, job.part, sums),
                        Event::Lost(length) => state.lose(*length, slo),
                        Event::Absent(absence) => state.absent(absence),
                    }
                }
            }
        }
    }
}

impl Since {
    /// Nothing yet. `ago`: the time since the last aging.
    fn new(ago: Duration) -> Self {
        Since { ago, length: Duration::ZERO, refaulted: Bytes::ZERO, stalled: Some(Duration::ZERO) }
    }

    fn add(&mut self, row: &Row, over: Duration) {
        self.length += over;
        self.refaulted += row.refaulted.unwrap_or_default();
        self.stalled = self.stalled.zip(row.stalled).map(|(sum, stalled)| sum + stalled);
    }

    /// No aging has happened meanwhile: the next one will tell of all of this time. After as long as the
    /// longest age nobody ages the group any more.
    fn is_unobserved(&self, row: &Row) -> bool {
        let expected = self.ago + self.length;
        row.promotions.is_none() && expected <= Step::MOST.age() && ago(row) >= expected - expected / SLACK
    }
}

/// A group was not observed for a while.
struct Absence {
    length: Duration,
    /// It is another group under the same name, or the machine has booted.
    is_anew: bool,
}

impl Job {
    fn new(row: &Row) -> Self {
        Job {
            boot: Rc::clone(&row.boot),
            id: row.id,
            time: row.time,
            part: part(&row.group),
            in_use: None,
            since: Since::new(Duration::ZERO),
            states: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// A sample of it.
    fn sample(&mut self, row: &Row, slos: &[Slo], recorded: &mut Recorded) {
        if let Some(absence) = self.absence(row) {
            (self.in_use, self.since) = (None, Since::new(Duration::ZERO));
            if !self.states.is_empty() {
                self.waiting.push(Event::Absent(absence));
            }
        }
        (self.boot, self.id, self.time) = (Rc::clone(&row.boot), row.id, row.time);
        let working_set = self.working_set(row);
        let Some(over) = row.over.filter(|over| millis(*over) > 0) else { return self.since = Since::new(ago(row)) };
        let swap = row.swap.unwrap_or_default();
        recorded.all_time_ms += millis(over);
        recorded.all_memory_kib_min += kib_min(row.current + swap, over);
        recorded.swap_kib_min += kib_min(swap, over);
        recorded.refaulted_kib += row.refaulted.unwrap_or_default().0 >> 10;
        self.since.add(row, over);
        if self.since.is_unobserved(row) {
            return;
        }
        let since = std::mem::replace(&mut self.since, Since::new(ago(row)));
        recorded.windows += 1;
        if self.states.is_empty() {
            recorded.jobs += 1;
            self.states.extend(slos.iter().map(State::new));
        }
        self.waiting.push(match working_set.and_then(|working_set| Seen::new(row, &since, working_set)) {
            Some(seen) => {
                recorded.time_ms += millis(seen.interval.length);
                recorded.memory_kib_min += kib_min(row.current + swap, seen.interval.length);
                recorded.refaults.add(seen.rate(seen.interval.swapped_in));
                let [least, most] = seen.at(Step::LEAST).held_kib_min;
                recorded.cold_least_kib_min += least;
                recorded.cold_most_kib_min += most;
                Event::Seen(Box::new(seen))
            }
            None => {
                recorded.unknown += 1;
                Event::Lost(since.length)
            }
        });
    }

    /// `None`: it was observed since the sample before. Within a run of the daemon each sample says how
    /// long ago the one before was, by a clock that nobody sets.
    fn absence(&self, row: &Row) -> Option<Absence> {
        let is_anew = self.id != row.id || self.boot != row.boot;
        (is_anew || row.over.is_none()).then(|| {
            // A wall clock that was set back tells nothing.
            let length = Duration::from_millis(row.time.saturating_sub(self.time));
            Absence { length: length.max(Duration::from_secs(1)), is_anew }
        })
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
    /// The working set in KiB, times the milliseconds of the window.
    work: u128,
    at_steps: [AtStep; STEPS],
    idle: Idle,
    promotions: Promotions,
}

/// What a window would have been with a threshold.
#[derive(Clone, Copy, Default)]
struct AtStep {
    /// The memory that would be out at its end.
    held: Bounds,
    /// That, at least and at most, times the length of the window.
    held_kib_min: [u64; 2],
    /// The memory that would have come back.
    back: Bounds,
    /// That, at least and at most, in KiB.
    back_kib: [u64; 2],
    /// That, at least and at most, in millionths of the working set per minute.
    rates: [Bucket; 2],
}

impl Seen {
    /// `None`: too little is known.
    fn new(row: &Row, since: &Since, working_set: Bytes) -> Option<Self> {
        let promotions = row.promotions.filter(|promotions| millis(promotions.over) > 0)?;
        let idle = row.idle.clone()?;
        let interval = Interval {
            length: promotions.over,
            size: row.current,
            promoted: Promoted::at_each_age(&promotions),
            swapped_in: since.refaulted,
            working_set: Some(working_set),
            stalled: since.stalled.map(|stalled| Permyriad::of_time(stalled, since.length)),
            write_budget_used: false,
            swap_at_floor: false,
        };
        let promoted = OnGrid::of(&interval);
        let work = u128::from(working_set.0 >> 10) * u128::from(millis(interval.length));
        let mut seen = Seen { interval, promoted, working_set, work, at_steps: Default::default(), idle, promotions };
        let mut at_steps = seen.at_steps;
        for (at, step) in at_steps.iter_mut().zip(Step::all()) {
            *at = seen.at_step(seen.out(row, step), seen.back(row, step));
        }
        seen.at_steps = at_steps;
        Some(seen)
    }

    fn at_step(&self, held: Bounds, back: Bounds) -> AtStep {
        AtStep {
            held,
            held_kib_min: [held.least, held.most].map(|held| kib_min(held, self.interval.length)),
            back,
            back_kib: [back.least.0 >> 10, back.most.0.div_ceil(1024)],
            rates: [back.least, back.most].map(|back| Bucket::of(self.rate(back))),
        }
    }

    fn at(&self, step: Step) -> &AtStep {
        let [least, ..] = &self.at_steps;
        self.at_steps.get(usize::from(u8::from(step))).unwrap_or(least)
    }

    /// The same if nothing is taken, of memory that is out: it stays there until it is used.
    fn left(&self, out: &Out) -> AtStep {
        let Some(step) = out.step else { return AtStep::default() };
        let AtStep { held, back, .. } = *self.at(step);
        // What is older by the time in which nothing was taken was out at its beginning.
        let age = step.age() + out.ago + self.interval.length;
        let age = AGES.into_iter().find(|known| *known >= age);
        let still = age.and_then(|age| self.idle.of(age)).unwrap_or_default();
        let used = age.and_then(|age| self.promotions.at(age)).unwrap_or_default();
        let most = out.memory.most;
        let (held, back) = (held.most.min(most), back.most.min(most));
        self.at_step(
            Bounds { least: still.least.min(held), most: held },
            Bounds { least: used.least.min(back), most: back },
        )
    }

    /// The memory that would be out with this threshold at the end of the window. What omr took was
    /// unused for the recorded threshold: at longer ones, and of what others took, nobody knows.
    fn out(&self, row: &Row, step: Step) -> Bounds {
        let mut out = self.idle.of(step.age()).unwrap_or_default();
        let swap = row.swap.unwrap_or_default();
        out.most += swap;
        if row.threshold.is_some_and(|recorded| step.age() <= recorded) {
            out.least += swap;
        }
        out
    }

    /// The memory that would have come back in the window.
    fn back(&self, row: &Row, step: Step) -> Bounds {
        let mut back = self.promotions.at(step.age()).unwrap_or_default();
        back.most += self.interval.swapped_in;
        if row.threshold.is_some_and(|recorded| step.age() <= recorded) {
            back.least += self.interval.swapped_in;
        }
        back
    }

    /// The promotions that an objective allows in the window, in KiB.
    fn allowed(&self, slo: &Slo) -> u64 {
        let allowed = slo.allowed(self.work);
        if self.interval.size >= SMALL {
            return allowed;
        }
        let length = millis(self.interval.length);
        let free = (SMALL_PAGES * slo.page.0).div_ceil(1024).saturating_mul(length) / millis(SMALL_TIME);
        allowed.saturating_add(free)
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
        State { threshold: Threshold::new(slo), is_observed: false, out: Out::default() }
    }

    /// As in the daemon, the group is observed again first. What is out stays there.
    fn absent(&mut self, absence: &Absence) {
        self.threshold.absent(absence.length);
        self.is_observed = false;
        if absence.is_anew {
            self.out = Out::default();
        }
        self.out.ago += absence.length;
    }

    fn window(&mut self, seen: &Seen, slo: &Slo, part: usize, sums: &mut Sums) {
        let step = self.threshold.step();
        let left;
        let at_step = if self.is_observed {
            seen.at(step)
        } else {
            left = seen.left(&self.out);
            &left
        };
        let AtStep { held, held_kib_min, back, back_kib, rates } = *at_step;
        if self.is_observed || self.out.memory.most > Bytes::ZERO {
            let allowed = seen.allowed(slo);
            let [held_least, held_most] = held_kib_min;
            sums.acting += 1;
            sums.held_least_kib_min += held_least;
            sums.held_most_kib_min += held_most;
            let [back_least, back_most] = back_kib;
            sums.promoted_least_kib += back_least;
            sums.promoted_most_kib += back_most;
            if self.is_observed {
                // What is out now and was not before, and what has come back and left again.
                sums.written_most_kib += ((held.most - self.out.memory.most) + back.most).0.div_ceil(1024);
            }
            sums.over_least += u64::from(back_least > allowed);
            sums.over_most += u64::from(back_most > allowed);
            if let Some(time) = sums.at_step_ms.get_mut(usize::from(u8::from(step))) {
                *time += millis(seen.interval.length);
            }
            for (histograms, rate) in [&mut sums.rates_least, &mut sums.rates_most].into_iter().zip(rates) {
                if let Some(histogram) = histograms.get_mut(part) {
                    histogram.add_to(rate, 1);
                }
            }
        } else {
            sums.observing += 1;
        }
        if self.is_observed {
            (self.out.step, self.out.ago) = (Some(step), Duration::ZERO);
        } else {
            self.out.ago += seen.interval.length;
        }
        self.out.memory = held;
        let moved = self.threshold.observe_on_grid(slo, &seen.interval, &seen.promoted);
        self.is_observed = moved.reason.is_observed(self.is_observed);
    }

    /// A window of which nothing is known. As in the daemon, nothing is taken until one is.
    fn lose(&mut self, length: Duration, slo: &Slo) {
        let unknown = Interval { length, ..Interval::default() };
        self.threshold.observe_on_grid(slo, &unknown, &OnGrid::of(&unknown));
        self.is_observed = false;
        self.out.ago += length;
    }
}

/// The time between the last aging and a sample.
fn ago(row: &Row) -> Duration {
    row.idle.as_ref().map_or(Duration::ZERO, |idle| idle.ago)
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
        let mut replay = Replay::new(slos, Outcome::new("x".into(), policies));
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
            ["/", "/system.slice", GROUP, "/app.slice/x", "/app.slice/x2"]
                .map(|group| row(number, group, 400, 0))
                .into()
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
        let [unused, used] = [0, 100].map(|used| {
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
        assert_eq!(used.held_most_kib_min, 5 * 10 * part(400) + 5 * 10 * part(300));
        assert_eq!([used.promoted_least_kib, used.promoted_most_kib], [5 * part(100), 5 * (part(100) + 1)]);
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
        assert_eq!([sums.promoted_least_kib, sums.promoted_most_kib], [kib(50), part(400).0.div_ceil(1024)]);
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
            let mut replay = Replay::new(slos, Outcome::new("x".into(), &policies));
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
