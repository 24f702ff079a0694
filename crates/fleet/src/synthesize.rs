//! Machines that nobody has recorded: weeks of a fleet from a law, for tuning and tests before there
//! are recordings.
//!
//! A job's memory is some classes of pages. A page of a class is used again at random, at the class'
//! rate times the time of the day's; so of a class the share exp(-G) was not used for a time in which
//! the rate sums up to G. Some classes' pages are never used again. At a **phase change** a part of
//! the memory is used at once; at a **deploy** the job is made anew. Beside these services there are
//! **short jobs**, which run for as long as those of a published trace: most for seconds, some for
//! hours.
//!
//! What omr sees of that is what a daemon with the default policy sees ([`View::Daemon`]): a threshold
//! of each job decides at which age it is observed. The ages at which agings fall are known, and 2 and
//! 4 min, by the agings of each sample. Of the ages between, the neighbours are bounds. How much older
//! memory than all of these came back is not seen, so bounds of older ages widen with the time.
//!
//! Calibrated to what was published: 32 % of memory is unused for 2 min on average, 9 % and 43 % in
//! the lowest and highest decile of jobs, 1 to 61 % over all (Lagar-Cavilla et al., "Software-Defined
//! Far Memory in Warehouse-Scale Computers", ASPLOS'19, and the letter of MGLRU). Short jobs and the
//! time of the day are those of [`Traces`].

use std::rc::Rc;
use std::time::Duration;

use omr_history::{AGES, Idle, Sample, Since};
use omr_policy::age::{Bounds, Promotions};
use omr_policy::threshold::{IN_USE, Interval, Promoted, Slo, Step, Threshold};
use omr_units::{Bytes, GroupId};

use crate::traces::Traces;

/// The time of a sample.
const STEP: u64 = 600;
/// Agings in it.
const AGINGS: u64 = 5;
/// The time between two agings, in seconds.
const BEAT: u64 = STEP / AGINGS;
/// 2026-01-05, a Monday.
const BEGIN: u64 = 1_767_571_200;
const DAY: f64 = 86_400.0;
const WEEK: u64 = 7 * 86_400;
/// Samples of a group in a week.
const ROUNDS: u64 = WEEK / STEP;

/// Classes of pages: seconds between two uses of a page, on average, without those that are never
/// used again.
const CLASSES: [f64; 6] = [20.0, 90.0, 180.0, 1_000.0, 6_000.0, 40_000.0];

/// The shares of memory that are unused for 2 min: the quantiles of all jobs at 0, 10, ... 100 %.
const COLD: [f64; 11] = [0.01, 0.09, 0.2, 0.26, 0.31, 0.345, 0.375, 0.4, 0.415, 0.43, 0.61];

/// One machine of a fleet.
#[derive(Debug)]
pub struct Machine {
    /// All of its memory.
    memory: Bytes,
    jobs: Vec<Job>,
    /// Another one for each machine.
    seed: u64,
    traces: Traces,
}

#[derive(Debug)]
struct Job {
    group: Rc<std::path::Path>,
    size: f64,
    /// The share of each class; the rest is never used again.
    shares: [f64; CLASSES.len()],
    /// The hour of the day at which it is busiest.
    peak: f64,
    /// The parts by which its use and its size move over the day.
    swings: [f64; 2],
    /// Phase changes: the time in seconds, and the part of the memory that is used then. A part of 1
    /// is a deploy.
    changes: Vec<(f64, f64)>,
}

impl Machine {
    /// A machine of a fleet.
    pub fn new(seed: u64, machine: u64, weeks: u64, traces: &Traces) -> Self {
        // Machines are independent of how many there are.
        let seed = fastrand::Rng::with_seed(seed).u64(..) ^ machine.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(seed);
        let memory = Bytes(64 << 30 << random.u64(..4));
        // Alibaba's machines are 88 % full.
        let mut free = (0.88 - traces.batch.memory_percent / 100.0) * to_f64(memory);
        let mut jobs: Vec<Job> = Vec::new();
        while free > 0.002 * to_f64(memory) && jobs.len() < 150 {
            // Half a percent to 8 % of a machine.
            let size = to_f64(memory) * (-3.9 + 0.9 * normal(&mut random)).exp().clamp(0.005, 0.08);
            let job = Job::new(&mut random, jobs.len(), size.min(free), weeks, traces);
            free -= job.size;
            jobs.push(job);
        }
        Machine { memory, jobs, seed, traces: traces.clone() }
    }

    /// Its memory.
    pub fn memory(&self) -> Bytes {
        self.memory
    }

    /// The samples of a week; the first one is 0. The daemon starts with it.
    pub fn week(&self, week: u64, view: View) -> impl Iterator<Item = Sample> + '_ {
        let slo = Slo::default();
        let mut thresholds: Vec<Threshold> = self.jobs.iter().map(|_| Threshold::new(&slo)).collect();
        let mut short_jobs = ShortJobs::new(self, week);
        (0..ROUNDS).flat_map(move |round| {
            let until = week * WEEK + (round + 1) * STEP;
            let services = self.jobs.iter().enumerate().zip(&mut thresholds);
            let running = short_jobs.until(until as f64);
            let all = services.chain(running.iter_mut().map(|of| ((of.number, &of.job), &mut of.threshold)));
            let samples = all.map(|((number, job), threshold)| {
                let observed_at = (view == View::Daemon).then(|| threshold.observed_at(&slo));
                let sample = job.sample(number, until, round == 0, observed_at);
                match interval(&sample) {
                    Some(interval) => drop(threshold.observe(&slo, &interval)),
                    // It is another group.
                    None => *threshold = Threshold::new(&slo),
                }
                sample
            });
            samples.collect::<Vec<_>>()
        })
    }
}

/// The short jobs of a week.
struct ShortJobs<'a> {
    machine: &'a Machine,
    random: fastrand::Rng,
    /// The mean time from the start of one to the next, in seconds.
    every: f64,
    next: f64,
    number: usize,
    running: Vec<ShortJob>,
}

struct ShortJob {
    job: Job,
    number: usize,
    end: f64,
    threshold: Threshold,
}

impl<'a> ShortJobs<'a> {
    fn new(machine: &'a Machine, week: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(machine.seed ^ (week + 1));
        let every = machine.traces.batch.every();
        let next = (week * WEEK) as f64 + exponential(&mut random, every);
        ShortJobs { machine, random, every, next, number: 1_000_000, running: Vec::new() }
    }

    /// Those that run at this time.
    fn until(&mut self, until: f64) -> &mut [ShortJob] {
        self.running.retain(|of| of.end > until);
        let batch = &self.machine.traces.batch;
        while self.next <= until {
            let (random, begin) = (&mut self.random, self.next);
            let (part, end) = (batch.size_percent.draw(random) / 100.0, begin + batch.seconds.draw(random));
            self.number += 1;
            self.next += exponential(random, self.every);
            if end > until {
                let group = format!("batch.slice/instance-{}.scope", self.number);
                let job = Job {
                    group: std::path::Path::new(&group).into(),
                    size: (to_f64(self.machine.memory) * part).max(4_096.0),
                    shares: shares(random),
                    peak: 0.0,
                    swings: [0.0; 2],
                    changes: vec![(begin, 1.0)],
                };
                let threshold = Threshold::new(&Slo::default());
                self.running.push(ShortJob { job, number: self.number, end, threshold });
            }
        }
        &mut self.running
    }
}

/// What is known of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What a daemon in observe mode records.
    Daemon,
    /// Everything: to compare a choice with the truth.
    All,
}

/// What a sample tells a threshold.
fn interval(sample: &Sample) -> Option<Interval> {
    let (idle, since, promotions) = (sample.idle.as_ref()?, sample.since.as_ref()?, sample.promotions.as_ref()?);
    Some(Interval {
        length: promotions.over,
        size: sample.current,
        promoted: Promoted::at_each_age(promotions),
        working_set: Some(idle.memory - idle.of(IN_USE)?.most),
        stalled: since.stalled.map(|_| omr_units::Permyriad::ZERO),
        ..Interval::default()
    })
}

impl Job {
    fn new(random: &mut fastrand::Rng, number: usize, size: f64, weeks: u64, traces: &Traces) -> Self {
        let shares = shares(random);
        let span = (weeks * WEEK) as f64;
        let mut changes = Vec::new();
        // A phase change twice a day, a deploy each four days, and one scan of everything in the
        // third week.
        for (every, part) in [(DAY / 2.0, None), (4.0 * DAY, Some(1.0))] {
            let mut at = exponential(random, every);
            while at < span {
                changes.push((at, part.unwrap_or_else(|| 0.02 + 0.18 * random.f64() * random.f64())));
                at += exponential(random, every);
            }
        }
        if weeks >= 3 {
            changes.push((2.0 * WEEK as f64 + DAY * (1.0 + 0.1 * random.f64()), 0.9));
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        Job {
            group: std::path::Path::new(&format!("system.slice/job-{number}.service")).into(),
            size,
            shares,
            peak: 14.0 + normal(random),
            // Of one as much as of all on average.
            swings: [0.02 * traces.day.cpu_swing_percent * random.f64(), traces.day.memory_swing_percent / 100.0],
            changes,
        }
    }

    /// Uses at the average rate from the beginning until this time, in seconds: the sum of 1 + swing x
    /// the course of the day.
    fn uses(&self, at: f64) -> f64 {
        let day = core::f64::consts::TAU / DAY;
        let [swing, _] = self.swings;
        at + swing / day * (day * (at - 3600.0 * (self.peak - 6.0))).sin()
    }

    /// The share of the memory that at this time was not used for an age.
    fn unused(&self, at: f64, age: f64) -> f64 {
        let from = at - age;
        let deployed = self.deployed(at);
        if from < deployed {
            return 0.0;
        }
        let uses = self.uses(at) - self.uses(from);
        let mut left: f64 = 1.0 - self.shares.iter().sum::<f64>();
        for (share, class) in self.shares.iter().zip(CLASSES) {
            left += share * (-uses / class).exp();
        }
        let changes = self.changes.iter().filter(|(when, part)| (from..at).contains(when) && *part < 1.0);
        changes.fold(left, |left, (_, part)| left * (1.0 - part))
    }

    /// When it was last deployed.
    fn deployed(&self, at: f64) -> f64 {
        let mut deploys = self.changes.iter().filter(|(when, part)| *when < at && *part >= 1.0);
        deploys.next_back().map_or(f64::MIN, |(when, _)| *when)
    }

    /// The share of the memory that was unused for an age, and was used in the sample before `end`, as
    /// its agings see it.
    fn promoted(&self, end: f64, age: f64) -> f64 {
        let beat = BEAT as f64;
        let of_beat = |number: u64| {
            let from = end - (STEP - number * BEAT) as f64;
            // What was older than the age at an aging, and is not older than it and a beat at the next.
            (self.unused(from, age) - self.unused(from + beat, age + beat)).max(0.0)
        };
        (0..AGINGS).map(of_beat).sum()
    }

    /// The sample of the time that ends at `until`, in seconds. `observed_at`: the age at which the
    /// daemon observes it; `None`: each age is known.
    fn sample(&self, number: usize, until: u64, is_first: bool, observed_at: Option<Step>) -> Sample {
        let end = until as f64;
        let [_, swing] = self.swings;
        let swing = swing * (core::f64::consts::TAU * (end - 3600.0 * (self.peak - 6.0)) / DAY).sin();
        let size = self.size * (1.0 + swing);
        let since = self.deployed(end);
        let is_new = since > end - STEP as f64;
        let bytes = |share: f64| to_bytes(size * share.clamp(0.0, 1.0));
        let sampled = [Step::LEAST.age(), 2 * Step::LEAST.age()];
        let observed: Vec<Duration> = match observed_at {
            Some(step) => sampled.into_iter().chain(step.shorter().map(Step::age)).chain([step.age()]).collect(),
            None => AGES.into(),
        };
        let mut known = [None; AGES.len()];
        for (known, age) in known.iter_mut().zip(AGES).filter(|(_, age)| observed.contains(age)) {
            let age = age.as_secs_f64();
            *known = Some((bytes(self.unused(end, age)), bytes(self.promoted(end, age))));
        }
        let mut idle = [None; AGES.len()];
        let mut promoted = [Bounds::default(); AGES.len()];
        let bounds = idle.iter_mut().zip(&mut promoted).zip(AGES.into_iter().enumerate());
        for ((idle, promoted), (at, age)) in bounds {
            let (shorter, rest) = known.split_at(at);
            let longest = shorter.iter().zip(AGES).rev().find_map(|(known, age)| Some((age, (*known)?)));
            let longer = rest.iter().flatten().next();
            let exactly = |bytes| Bounds { least: bytes, most: bytes };
            (*idle, *promoted) = match (rest.first().copied().flatten(), longest, longer) {
                (Some((unused, back)), _, _) => (Some(exactly(unused)), exactly(back)),
                (None, longest, Some(&(unused, back))) => {
                    let (most, most_back) = longest.map_or_else(|| (bytes(1.0), bytes(1.0)), |(_, most)| most);
                    (Some(Bounds { least: unused, most }), Bounds { least: back, most: most_back })
                }
                (None, Some((from, (most, most_back))), None) => {
                    // What came back since memory of this age became that old.
                    let slack = to_f64(most_back) / STEP as f64 * (age.saturating_sub(from)).as_secs_f64();
                    let (unused, slack) = (bytes(self.unused(end, age.as_secs_f64())), to_bytes(slack));
                    let most = most.min(unused + slack);
                    (Some(Bounds { least: unused - slack, most }), Bounds { least: Bytes::ZERO, most: most_back })
                }
                (None, None, None) => (None, Bounds { least: Bytes::ZERO, most: bytes(1.0) }),
            };
        }
        // Never more for a longer age.
        let mut most = Bytes::MAX;
        for idle in idle.iter_mut().flatten() {
            most = most.min(idle.most);
            idle.most = most;
        }
        let over = Duration::from_secs(STEP);
        let promotions = (!is_first && !is_new).then_some(Promotions { over, bounds: promoted });
        let deploys = self.changes.iter().filter(|(when, part)| *when < end && *part >= 1.0).count();
        let current = to_bytes(size);
        Sample {
            time: Duration::from_secs(BEGIN + until),
            boot: "synthesized".into(),
            group: Rc::clone(&self.group),
            id: GroupId(1000 * deploys as u64 + number as u64),
            current,
            peak: current,
            anon: current,
            idle: Some(Idle { ago: Duration::ZERO, memory: current, bounds: idle }),
            since: (!is_first && !is_new).then(|| Since {
                over: Duration::from_secs(STEP),
                refaults_anon: Some(Bytes::ZERO),
                refaults_file: Some(Bytes::ZERO),
                swapped_in: None,
                stalled: Some(Duration::ZERO),
                stalled_full: Some(Duration::ZERO),
                reclaimed: Some(Bytes::ZERO),
            }),
            promotions,
            swap: Some(Bytes::ZERO),
            ..Sample::of_anon(&*self.group, GroupId(0), current)
        }
    }
}

/// The share of each class of a job's memory, by chance.
fn shares(random: &mut fastrand::Rng) -> [f64; CLASSES.len()] {
    let cold = quantile(&COLD, random.f64());
    // Of what is cold after 2 min, some is warm, some is used within hours, and some never.
    let never = 0.3 + 0.35 * random.f64();
    let tail: Vec<f64> = (0..4).map(|class| 0.3_f64.powi(class) * (0.8 * normal(random)).exp()).collect();
    let sum: f64 = tail.iter().sum();
    let mut shares = [0.0; CLASSES.len()];
    let mut left = 1.0;
    for (share, (part, class)) in shares.iter_mut().skip(2).zip(tail.iter().zip(CLASSES.iter().skip(2))) {
        // The part of the class that is older than 2 min.
        *share = cold * (1.0 - never) * part / sum / (-120.0 / class).exp();
        left -= *share;
    }
    left = (left - cold * never).max(0.0);
    // The rest is in use, nearly all of it within seconds.
    let warm = 0.02 * left;
    for (share, part) in shares.iter_mut().zip([left - warm, warm]) {
        *share = part;
    }
    shares
}

fn to_f64(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn to_bytes(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}

/// A standard normal value (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (core::f64::consts::TAU * random.f64()).cos()
}

fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.f64()).ln()
}

/// The value at this share of the way through quantiles that are a tenth apart.
fn quantile(quantiles: &[f64; 11], share: f64) -> f64 {
    let mut below = share * 10.0;
    for pair in quantiles.windows(2) {
        if let [low, high] = pair
            && below <= 1.0
        {
            return low + (high - low) * below;
        }
        below -= 1.0;
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Machine {
        /// The samples of one time of the first week.
        fn round(&self, round: u64) -> impl Iterator<Item = Sample> + '_ {
            let jobs = self.jobs.iter().enumerate();
            jobs.map(move |(number, job)| job.sample(number, (round + 1) * STEP, round == 0, Some(Step::LEAST)))
        }
    }

    /// The published figures that tuning needs to be true.
    #[test]
    fn a_fleet_is_as_cold_as_was_published() {
        let age = |wanted: u64| AGES.iter().position(|age| age.as_secs() == wanted).expect("an age");
        let (mut of_jobs, mut all, mut cold) = (Vec::new(), 0.0, 0.0);
        let (mut over, mut windows) = (0, 0);
        for machine in 0..60 {
            let machine = Machine::new(7, machine, 1, &Traces::default());
            // Every 25th round: all times of the day.
            let mut jobs = std::collections::BTreeMap::<_, (f64, f64)>::new();
            for sample in (1..ROUNDS).step_by(25).flat_map(|round| machine.round(round)) {
                let idle = sample.idle.as_ref().expect("ages").bounds[age(120)].expect("known");
                let of = jobs.entry(sample.group.clone()).or_default();
                (of.0, of.1) = (of.0 + to_f64(idle.most), of.1 + to_f64(sample.current));
                let Some(promotions) = sample.promotions else { continue };
                let in_use = to_f64(sample.current) - to_f64(idle.most);
                let rate = to_f64(promotions.bounds[age(120)].most) / (10.0 * in_use);
                windows += 1;
                over += u32::from(rate > 0.002);
            }
            for (job_cold, job_all) in jobs.into_values() {
                of_jobs.push(job_cold / job_all);
                (cold, all) = (cold + job_cold, all + job_all);
            }
        }
        of_jobs.sort_by(f64::total_cmp);
        let decile = |tenths: usize| of_jobs[of_jobs.len() * tenths / 10];
        let found = (cold / all, decile(1), decile(9), of_jobs.len());
        assert!((0.30..=0.34).contains(&found.0), "on average: {found:?}");
        assert!((0.06..=0.12).contains(&found.1), "the lowest decile: {found:?}");
        assert!((0.40..=0.46).contains(&found.2), "the highest decile: {found:?}");
        // With 2 min for all, far more windows break the objective than the 2 % that may: or tuning
        // would be no task.
        assert!(over * 100 > windows * 20, "{over} of {windows} windows");
    }

    #[test]
    fn memory_is_cold_for_longer_with_time_only_and_bounds_hold() {
        for machine in 0..5 {
            let machine = Machine::new(3, machine, 1, &Traces::default());
            let truth: Vec<Sample> = machine.week(0, View::All).take(20_000).collect();
            for (sample, truth) in machine.week(0, View::Daemon).zip(truth) {
                let idle = |sample: &Sample| sample.idle.as_ref().expect("ages").bounds.map(|of| of.expect("known"));
                let (bounds, exact) = (idle(&sample), idle(&truth));
                assert!(bounds.windows(2).all(|pair| pair[0].most >= pair[1].most), "{bounds:?}");
                assert!(bounds.iter().all(|of| of.most <= sample.current), "{bounds:?}");
                let hold = |bounds: &[Bounds], exact: &[Bounds]| {
                    let pairs = bounds.iter().zip(exact);
                    pairs.clone().all(|(of, exact)| of.least <= exact.least && exact.most <= of.most)
                        && pairs.clone().any(|(of, exact)| of == exact)
                };
                assert!(hold(&bounds, &exact), "{bounds:?} {exact:?}");
                let (Some(seen), Some(exact)) = (sample.promotions, truth.promotions) else { continue };
                assert!(hold(&seen.bounds, &exact.bounds), "{seen:?} {exact:?}");
            }
        }
    }

    #[test]
    fn short_jobs_have_their_part_of_the_memory_and_most_are_seen_once() {
        let traces = Traces::default();
        let (mut short, mut all, mut jobs, mut samples) = (0.0, 0.0, std::collections::HashSet::new(), 0_usize);
        for machine in 0..4 {
            for sample in Machine::new(11, machine, 1, &traces).week(0, View::Daemon) {
                all += to_f64(sample.current);
                if sample.group.starts_with("batch.slice") {
                    short += to_f64(sample.current);
                    samples += 1;
                    // A sample says how long ago the one before was, if it was of the same job.
                    assert_eq!(sample.since.is_some(), !jobs.insert((machine, sample.group.clone())));
                }
            }
        }
        let part = short / all;
        assert!((0.045..0.07).contains(&part), "{part} of the memory in use; 5 of 88 % are 0.057");
        // 0.6 % of the jobs run for more than ten minutes.
        assert!(jobs.len() * 10 > samples * 6, "{} jobs, {samples} samples", jobs.len());
        let mut none = traces;
        none.batch.memory_percent = 0.0;
        let machine = Machine::new(11, 0, 1, &none);
        assert!(machine.week(0, View::Daemon).all(|sample| sample.group.starts_with("system.slice")));
    }

    #[test]
    fn a_seed_is_a_fleet_whatever_its_size() {
        let sizes = |seed: u64, machine: u64| -> Vec<Bytes> {
            Machine::new(seed, machine, 1, &Traces::default())
                .week(0, View::Daemon)
                .take(50)
                .map(|sample| sample.current)
                .collect()
        };
        assert_eq!(sizes(1, 4), sizes(1, 4));
        assert_ne!(sizes(1, 4), sizes(2, 4));
        assert_ne!(sizes(1, 4), sizes(1, 5));
        let machine = Machine::new(1, 0, 4, &Traces::default());
        assert!((64..=512).contains(&(machine.memory().0 >> 30)));
        let first = machine.week(3, View::Daemon).next().expect("a sample");
        assert_eq!(first.time.as_secs(), BEGIN + 3 * WEEK + STEP);
    }
}
