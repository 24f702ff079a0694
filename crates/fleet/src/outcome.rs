//! The result of replaying a shard: sums of integers.

use std::io::{self, Read};

use hmac_sha256::Hash;
use omr_policy::threshold::STEPS;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::policies::{Policies, Policy};

/// The version of the form, and of what the figures mean.
const VERSION: u32 = 4;
/// The jobs of a shard are counted in so many parts, by the hash of their name. A bootstrap draws
/// parts. So the result of a machine with 100,000 groups stays small, and on one with some dozens
/// most parts are one job.
pub const PARTS: usize = 64;

/// The result of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    version: u32,
    /// The version of the program.
    program: String,
    /// The name of the result: the hash of the shard, the policies and the program's version.
    pub name: String,
    /// What the shard has, whatever the policy.
    pub shard: Recorded,
    /// What each policy would have done.
    pub policies: Vec<Replayed>,
}

/// What a shard has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Samples.
    pub rows: u64,
    /// Groups without recorded groups below them, and with a window.
    pub jobs: u64,
    /// Samples of these with a known time since the sample before.
    pub windows: u64,
    /// Those of which the ages or the promotions are unknown.
    pub unknown: u64,
    /// The time that was recorded of the machine, in milliseconds.
    pub machine_ms: u64,
    /// The sum of the lengths of all windows that are known, in milliseconds.
    pub time_ms: u64,
    /// The memory in these windows, with what is in swap, in KiB times minutes.
    pub memory_kib_min: u64,
    /// The sum of the lengths of all windows, known or not.
    pub all_time_ms: u64,
    /// The memory in all windows.
    pub all_memory_kib_min: u64,
    /// The part of it that was in swap.
    pub swap_kib_min: u64,
    /// What came back from swap in all windows, in KiB.
    pub refaulted_kib: u64,
    /// Windows that are known by what came back from swap, in millionths of the working set per minute.
    pub refaults: Histogram,
    /// The part of it that was not used for 2 min, at least and at most.
    pub cold_least_kib_min: u64,
    /// The same, at most.
    pub cold_most_kib_min: u64,
}

/// What a policy would have done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replayed {
    /// The policy.
    pub policy: Policy,
    /// Its figures.
    pub sums: Sums,
}

/// Figures of a policy. All of them are added when results are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sums {
    /// Windows in which the group was only observed: nothing would have been taken.
    pub observing: u64,
    /// Windows in which memory above the threshold would have been out.
    pub acting: u64,
    /// Of these, windows in which more came back than is allowed, at least and at most.
    pub over_least: u64,
    /// The same, at most.
    pub over_most: u64,
    /// Memory that would have been held out, in KiB times minutes, at least and at most.
    pub held_least_kib_min: u64,
    /// The same, as is likely.
    pub held_likely_kib_min: u64,
    /// The same, at most.
    pub held_most_kib_min: u64,
    /// Memory that would have come back, in KiB, at least and at most.
    pub promoted_least_kib: u64,
    /// The same, as is likely.
    pub promoted_likely_kib: u64,
    /// The same, at most.
    pub promoted_most_kib: u64,
    /// Memory that would have been written to swap, in KiB, at most.
    pub written_most_kib: u64,
    /// Milliseconds at each threshold of the grid.
    pub at_step_ms: [u64; STEPS],
    /// Acting windows by the promotions in them, at least, in millionths of the working set per
    /// minute; by part of the jobs.
    pub rates_least: Vec<Histogram>,
    /// The same, at most.
    pub rates_most: Vec<Histogram>,
}

impl Default for Sums {
    fn default() -> Self {
        Sums {
            observing: 0,
            acting: 0,
            over_least: 0,
            over_most: 0,
            held_least_kib_min: 0,
            held_likely_kib_min: 0,
            held_most_kib_min: 0,
            promoted_least_kib: 0,
            promoted_likely_kib: 0,
            promoted_most_kib: 0,
            written_most_kib: 0,
            at_step_ms: [0; STEPS],
            rates_least: vec![Histogram::default(); PARTS],
            rates_most: vec![Histogram::default(); PARTS],
        }
    }
}

impl Outcome {
    /// A result without figures.
    pub(crate) fn new(name: String, policies: &Policies) -> Self {
        let replayed = |policy: &Policy| Replayed { policy: policy.clone(), sums: Sums::default() };
        Outcome {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            name,
            shard: Recorded::default(),
            policies: policies.written().map(replayed).collect(),
        }
    }

    /// The result in a text, if it is one of this program and of these policies.
    pub fn parse(text: &[u8], policies: &Policies) -> Option<Outcome> {
        let outcome: Outcome = serde_json::from_slice(text).ok()?;
        let is_same = outcome.policies.iter().map(|replayed| &replayed.policy).eq(policies.written());
        let is_whole = |sums: &Sums| [&sums.rates_least, &sums.rates_most].iter().all(|rates| rates.len() == PARTS);
        let is_whole = outcome.policies.iter().all(|replayed| is_whole(&replayed.sums));
        let is_of_this = outcome.version == VERSION && outcome.program == env!("CARGO_PKG_VERSION");
        (is_same && is_whole && is_of_this).then_some(outcome)
    }
}

impl Recorded {
    /// Adds the figures of another shard.
    pub fn merge(&mut self, other: &Recorded) {
        self.rows += other.rows;
        self.jobs += other.jobs;
        self.windows += other.windows;
        self.unknown += other.unknown;
        self.machine_ms += other.machine_ms;
        self.time_ms += other.time_ms;
        self.memory_kib_min += other.memory_kib_min;
        self.all_time_ms += other.all_time_ms;
        self.all_memory_kib_min += other.all_memory_kib_min;
        self.swap_kib_min += other.swap_kib_min;
        self.refaulted_kib += other.refaulted_kib;
        self.refaults.merge(&other.refaults);
        self.cold_least_kib_min += other.cold_least_kib_min;
        self.cold_most_kib_min += other.cold_most_kib_min;
    }
}

impl Sums {
    /// Adds the figures of another shard.
    pub fn merge(&mut self, other: &Sums) {
        self.observing += other.observing;
        self.acting += other.acting;
        self.over_least += other.over_least;
        self.over_most += other.over_most;
        self.held_least_kib_min += other.held_least_kib_min;
        self.held_likely_kib_min += other.held_likely_kib_min;
        self.held_most_kib_min += other.held_most_kib_min;
        self.promoted_least_kib += other.promoted_least_kib;
        self.promoted_likely_kib += other.promoted_likely_kib;
        self.promoted_most_kib += other.promoted_most_kib;
        self.written_most_kib += other.written_most_kib;
        self.at_step_ms.iter_mut().zip(other.at_step_ms).for_each(|(sum, time)| *sum += time);
        for (sums, others) in [(&mut self.rates_least, &other.rates_least), (&mut self.rates_most, &other.rates_most)] {
            sums.iter_mut().zip(others).for_each(|(sum, rates)| sum.merge(rates));
        }
    }
}

/// The hash of a shard's file.
pub fn digest(mut file: impl Read) -> io::Result<[u8; 32]> {
    let (mut hash, mut part) = (Hash::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hash.finalize()),
            read => hash.update(part.get(..read).unwrap_or_default()),
        }
    }
}

/// The name of the result of a shard. `digest`: the hash of the shard's file.
pub fn name(digest: &[u8; 32], policies: &Policies) -> String {
    let mut hash = Hash::new();
    hash.update(digest);
    hash.update(policies.canonical());
    hash.update(format!("{VERSION} {}", env!("CARGO_PKG_VERSION")));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
