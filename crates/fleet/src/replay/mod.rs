//! The replay: every policy moves the threshold of every group by what was recorded.

mod seen;
mod state;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use omr_policy::Config;
use omr_policy::threshold::{IN_USE, Slo, Step};
use omr_units::{Bytes, Monotonic, millis};

use self::seen::{Seen, Taken, kib_min};
use self::state::State;
use crate::outcome::{Outcome, PARTS, Recorded};
use crate::policies::Policies;
use crate::shard::{Row, Shard, Unusable};

/// Recordings have the time since the last aging in whole seconds. No aging has happened meanwhile if that
/// time is shorter than expected by at most this part.
const SLACK: u32 = 16;
/// The memory in use is measured if its bounds are closer than this part of the group's memory.
const MEASURED: u64 = 8;
/// The policies take in the windows of a job when so many wait, of all jobs. So what a policy remembers
/// of a job is in the cache of the CPU for many windows, and windows that wait take a few MiB at most.
const WAITING: usize = 1024;
/// With more jobs than this, what policies remember of those is forgotten that are gone. omr records 200 groups
/// at a time; a machine that makes others all week has 100,000, and a policy remembers 750 bytes of each.
const MOST_JOBS: usize = 20_000;
/// A job that was not recorded for this time is gone, in milliseconds.
const GONE_MS: u64 = 3_600_000;

/// Replays a shard through all policies at once. `name`: of the result.
pub fn replay(shard: &Shard, policies: &Policies, name: String) -> Result<Outcome, Unusable> {
    let slos = policies.slos(shard.page).collect();
    let rules = Rules { config: Config::default(), swaps_to_disk: policies.swaps_to_disk() };
    let mut replay = Replay::new(slos, rules, Outcome::new(name, policies));
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
    rules: Rules,
    outcome: Outcome,
}

/// What holds for all policies.
struct Rules {
    /// The daemon's defaults: its refault guard, and what is worth a sweep.
    config: Config,
    swaps_to_disk: bool,
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
    /// The time since it was first recorded. A clock that was set back does not count.
    now: Monotonic,
    /// Since the last window.
    since: Since,
    /// What would have been taken by now.
    taken: Taken,
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

impl Replay {
    fn new(slos: Vec<Slo>, rules: Rules, outcome: Outcome) -> Self {
        Replay {
            slos,
            jobs: Vec::new(),
            places: HashMap::new(),
            waiting: Vec::new(),
            waits: 0,
            remembered: 0,
            most: MOST_JOBS,
            rules,
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
                        Event::Seen(seen) => state.window(seen, slo, &self.rules, job.part, sums),
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
            now: Monotonic::default(),
            since: Since::new(Duration::ZERO),
            taken: Taken::default(),
            states: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// A sample of it.
    fn sample(&mut self, row: &Row, slos: &[Slo], recorded: &mut Recorded) {
        if let Some(absence) = self.absence(row) {
            (self.in_use, self.since, self.taken) = (None, Since::new(Duration::ZERO), Taken::default());
            self.now = self.now + absence.length;
            if !self.states.is_empty() {
                self.waiting.push(Event::Absent(absence));
            }
        }
        (self.boot, self.id, self.time) = (Rc::clone(&row.boot), row.id, row.time);
        let working_set = self.working_set(row);
        let Some(over) = row.over.filter(|over| millis(*over) > 0) else { return self.since = Since::new(ago(row)) };
        let swap = row.swap.unwrap_or_default();
        recorded.all_time_ms += millis(over);
        recorded.all_memory_kib_min += kib_min(row.current + swap, millis(over));
        recorded.swap_kib_min += kib_min(swap, millis(over));
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
        let began = self.now;
        self.now = began + since.length;
        let taken = &mut self.taken;
        self.waiting.push(match working_set.and_then(|used| Seen::new(row, &since, began, used, taken)) {
            Some(seen) => {
                recorded.time_ms += seen.length_ms;
                recorded.memory_kib_min += kib_min(row.current + swap, seen.length_ms);
                recorded.refaults.add(seen.rate(seen.interval.swapped_in));
                let [least, most] = seen.cold_kib_min(row);
                recorded.cold_least_kib_min += least;
                recorded.cold_most_kib_min += most;
                Event::Seen(Box::new(seen))
            }
            None => {
                recorded.unknown += 1;
                self.taken = Taken::default();
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

/// The time between the last aging and a sample.
fn ago(row: &Row) -> Duration {
    row.idle.as_ref().map_or(Duration::ZERO, |idle| idle.ago)
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
mod tests;
