//! The results of many shards together, and how sure they are.

use std::collections::BTreeMap;

use hmac_sha256::Hash;
use omr_units::Permyriad;
use serde::Serialize;

use crate::histogram::{Bucket, Histogram};
use crate::outcome::{Outcome, Recorded, Sums};
use crate::policies::{Policies, Policy};

/// The draws of a bootstrap.
const DRAWS: usize = 200;
/// The share of the draws below the upper bound, in a hundredth of a percent: 95 %.
const SURE: u32 = 9_500;
/// p98 in a hundredth of a percent: the share of windows in Google's objective (ASPLOS'19).
pub const P98: u32 = 9_800;

/// Results that are merged by addition.
#[derive(Clone, Debug)]
pub struct Summary {
    shards: u64,
    recorded: Recorded,
    policies: Vec<OfPolicy>,
}

#[derive(Clone, Debug)]
struct OfPolicy {
    policy: Policy,
    sums: Sums,
    /// All acting windows by their promotions, at least and at most.
    draws: [Drawn; 2],
}

/// A histogram for each draw: the counts of a bucket in all draws are together, as they are added
/// together.
#[derive(Clone, Debug, Default)]
struct Drawn(BTreeMap<Bucket, [u64; DRAWS]>);

impl Drawn {
    /// Adds a histogram so many times to each draw.
    fn add(&mut self, histogram: &Histogram, times: &[u64; DRAWS]) {
        for (bucket, count) in histogram.buckets() {
            let counts = self.0.entry(bucket).or_insert([0; DRAWS]);
            counts.iter_mut().zip(times).for_each(|(sum, times)| *sum += count * times);
        }
    }

    /// The histogram of each draw.
    fn each(&self) -> impl Iterator<Item = Histogram> + '_ {
        (0..DRAWS).map(|draw| {
            let count = |(&bucket, counts): (&Bucket, &[u64; DRAWS])| Some((bucket, *counts.get(draw)?));
            self.0.iter().filter_map(count).collect()
        })
    }
}

/// What is told of all shards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// The number of shards.
    pub shards: u64,
    /// What they have.
    pub recorded: Recorded,
    /// The windows that are known, in a hundredth of a percent.
    pub known_permyriad: Permyriad,
    /// Memory that was unused for 2 min, at least and at most, in a hundredth of a percent of all
    /// memory.
    pub cold_permyriad: [Permyriad; 2],
    /// Memory that really was in swap, in a hundredth of a percent of all memory.
    pub in_swap_permyriad: Permyriad,
    /// 98 % of the windows really had no more come back from swap, in millionths of the working set
    /// per minute; `None`: there are no windows.
    pub refaulted_p98: Option<u64>,
    /// What each policy would have done.
    pub policies: Vec<ToldOfPolicy>,
}

/// What is told of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldOfPolicy {
    /// The policy.
    pub policy: Policy,
    /// Memory held out, at least and at most, in a hundredth of a percent of all memory.
    pub held_permyriad: [Permyriad; 2],
    /// The same, as is likely.
    pub held_likely_permyriad: Permyriad,
    /// What comes back in a day of a machine, at least and at most, in KiB.
    pub back_kib_per_day: [u64; 2],
    /// The same, as is likely.
    pub back_likely_kib_per_day: u64,
    /// Promotions in a window, at least and at most, in millionths of the working set per minute;
    /// `None`: it never acted.
    pub promoted_p50: [Option<u64>; 2],
    /// 98 % of the windows have no more.
    pub promoted_p98: [Option<u64>; 2],
    /// 99 % of the windows have no more.
    pub promoted_p99: [Option<u64>; 2],
    /// p98 is no more than this in 95 % of the draws of a bootstrap over jobs.
    pub promoted_p98_upper: [Option<u64>; 2],
    /// Windows with more promotions than the policy allows, at least and at most, in a hundredth of
    /// a percent of those in which it acted.
    pub over_permyriad: [Permyriad; 2],
    /// Written to swap in a day of a machine, at most, in KiB.
    pub written_kib_per_day: u64,
    /// All sums.
    pub sums: Sums,
}

impl Summary {
    /// No results yet.
    pub fn new(policies: &Policies) -> Self {
        let none =
            |policy: &Policy| OfPolicy { policy: policy.clone(), sums: Sums::default(), draws: Default::default() };
        Summary { shards: 0, recorded: Recorded::default(), policies: policies.written().map(none).collect() }
    }

    /// Adds the result of a shard.
    pub fn add(&mut self, outcome: &Outcome) {
        self.shards += 1;
        self.recorded.merge(&outcome.shard);
        for (sum, replayed) in self.policies.iter_mut().zip(&outcome.policies) {
            sum.sums.merge(&replayed.sums);
        }
        for (part, random) in parts(&outcome.name).enumerate() {
            let mut random = fastrand::Rng::with_seed(random);
            // The same jobs for every policy.
            let times = [(); DRAWS].map(|()| poisson(random.u64(..)));
            for (sum, replayed) in self.policies.iter_mut().zip(&outcome.policies) {
                let rates = [&replayed.sums.rates_least, &replayed.sums.rates_most];
                for (draws, rates) in sum.draws.iter_mut().zip(rates) {
                    rates.get(part).into_iter().for_each(|rates| draws.add(rates, &times));
                }
            }
        }
    }

    /// What is told of all of them.
    pub fn told(&self) -> Told {
        let recorded = &self.recorded;
        let time = recorded.machine_ms.max(1);
        let of_memory = |part| share(part, recorded.memory_kib_min);
        let policies = self.policies.iter().map(|OfPolicy { policy, sums, draws }| {
            let all = [&sums.rates_least, &sums.rates_most].map(|parts| {
                let mut all = Histogram::default();
                parts.iter().for_each(|rates| all.merge(rates));
                all
            });
            let upper = draws.each_ref().map(|draws| {
                let drawn = draws.each().filter_map(|draw| draw.quantile(P98));
                upper_bound(drawn.collect())
            });
            ToldOfPolicy {
                policy: policy.clone(),
                held_permyriad: [sums.held_least_kib_min, sums.held_most_kib_min].map(of_memory),
                held_likely_permyriad: of_memory(sums.held_likely_kib_min),
                back_kib_per_day: [sums.promoted_least_kib, sums.promoted_most_kib].map(|back| daily(back, time)),
                back_likely_kib_per_day: daily(sums.promoted_likely_kib, time),
                promoted_p50: all.each_ref().map(|all| all.quantile(5_000)),
                promoted_p98: all.each_ref().map(|all| all.quantile(P98)),
                promoted_p99: all.each_ref().map(|all| all.quantile(9_900)),
                promoted_p98_upper: upper,
                over_permyriad: [sums.over_least, sums.over_most].map(|over| share(over, sums.acting)),
                written_kib_per_day: daily(sums.written_most_kib, time),
                sums: sums.clone(),
            }
        });
        Told {
            shards: self.shards,
            recorded: recorded.clone(),
            known_permyriad: share(recorded.windows - recorded.unknown, recorded.windows),
            cold_permyriad: [recorded.cold_least_kib_min, recorded.cold_most_kib_min].map(of_memory),
            in_swap_permyriad: share(recorded.swap_kib_min, recorded.all_memory_kib_min),
            refaulted_p98: recorded.refaults.quantile(P98),
            policies: policies.collect(),
        }
    }
}

/// Nothing of nothing is nothing.
fn share(part: u64, whole: u64) -> Permyriad {
    Permyriad::ratio(part, whole).unwrap_or(Permyriad::ZERO)
}

/// The value that [`SURE`] of the values do not exceed.
fn upper_bound(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let rank = (values.len() as u64 * u64::from(SURE)).div_ceil(10_000).max(1) - 1;
    values.get(usize::try_from(rank).ok()?).copied()
}

/// In a day, of what was written in so many milliseconds.
fn daily(kib: u64, ms: u64) -> u64 {
    u64::try_from(u128::from(kib) * 86_400_000 / u128::from(ms)).unwrap_or(u64::MAX)
}

/// A seed for each part of a shard's jobs.
fn parts(name: &str) -> impl Iterator<Item = u64> + '_ {
    (0..crate::outcome::PARTS).map(move |part| {
        let hash = Hash::hash(format!("{name} {part}").as_bytes());
        hash.iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte))
    })
}

/// How often a part is drawn: Poisson's law with mean 1, which is what drawing as many parts as
/// there are, with replacement, comes to where there are many. So no shard needs to know the
/// others.
fn poisson(random: u64) -> u64 {
    // The law's sums times 2^64.
    const SUMS: [u64; 8] = [
        6_786_177_901_268_885_274,
        13_572_355_802_537_770_549,
        16_965_444_753_172_213_186,
        18_096_474_403_383_694_065,
        18_379_231_815_936_564_285,
        18_435_783_298_447_138_329,
        18_445_208_545_532_234_003,
        18_446_555_009_401_533_385,
    ];
    SUMS.iter().take_while(|&&sum| random >= sum).count() as u64
}
