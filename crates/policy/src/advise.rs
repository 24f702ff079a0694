//! With which limits a group could live, judging by days of samples of its size and use.
//! `omr advise` prints the advice; nobody carries it out.
//!
//! * The **working set** at a sample is the memory used since the sample before, at most. It
//!   contains the anonymous and shared memory that was used, by age; all page cache and all kernel
//!   memory, as their use is unknown; and memory that was allocated and freed meanwhile. A sample
//!   without ages, or from a time when the group was short of memory, counts with all memory of the
//!   group.
//! * **request** is the memory that should be there for the group: the 95th percentile of the
//!   working set, plus 15 %. (The recommender of Kubernetes uses the 90th percentile of daily peaks
//!   and the same margin.)
//! * **high** is the size above which the kernel reclaims and slows the group down: the largest
//!   working set, plus 15 %. It is not a percentile, as one hour in twenty above it would be an
//!   hour of waiting.
//! * **max** is the size above which the kernel kills: a quarter above the largest size so far, or
//!   above high. It saves nothing; it is where a leak ends.
//!
//! Unknown memory never counts as cold, so the working set is rather too large than too small.
//! [`crate::trial`] finds out by how much.

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::age::Bounds;
use crate::trial::Guard;

/// The margin of request and high above the working set.
pub const MARGIN: Permyriad = Permyriad::percent(15);
/// The margin of max above the largest size.
const KILL_MARGIN: Permyriad = Permyriad::percent(25);
/// No advice is given with less history than this.
pub const LEAST_COVERED: Duration = Duration::from_secs(3600);
/// No advice is given with fewer samples than this.
pub const LEAST_SAMPLES: usize = 6;
const MINUTE: Duration = Duration::from_secs(60);

/// A group at one moment, and what happened since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The time since the sample before; `None`: there is none, or it is unknown how long ago it
    /// was.
    pub over: Option<Duration>,
    /// Memory charged to it.
    pub current: Bytes,
    /// The largest size since the sample before.
    pub peak: Bytes,
    /// The page cache in `current`.
    pub cache: Bytes,
    /// The anonymous and shared memory in `current`.
    pub memory: Bytes,
    /// The part of `memory` that was used since the sample before; `None`: unknown.
    pub used: Option<Bounds>,
    /// Bytes that came back since the sample before; `None`: unknown.
    pub refaults: Option<Bytes>,
    /// Time in which its tasks waited for memory since the sample before; `None`: unknown.
    pub stalled: Option<Duration>,
}

impl Sample {
    /// The memory that was used since the sample before.
    pub fn working_set(&self, guard: &Guard) -> Bounds {
        let all = self.peak.max(self.current);
        let Some(used) = self.used else { return Bounds { least: Bytes::ZERO, most: all } };
        if self.is_short(guard) {
            return Bounds { least: used.least.min(all), most: all };
        }
        let kernel = self.current - self.memory - self.cache;
        let most = used.most + kernel + self.cache + (self.peak - self.current);
        Bounds { least: used.least.min(all), most: most.min(all) }
    }

    /// Returns true if the group was short of memory: its stalls or refaults were more than the
    /// guard allows.
    pub fn is_short(&self, guard: &Guard) -> bool {
        let Some(over) = self.over.filter(|over| !over.is_zero()) else { return false };
        let stalled =
            self.stalled.is_some_and(|time| time.as_nanos() * 10_000 > over.as_nanos() * u128::from(guard.stall.0));
        let allowed = u128::from(self.current.share(guard.refaults).0) * over.as_nanos() / MINUTE.as_nanos();
        stalled || self.refaults.is_some_and(|bytes| u128::from(bytes.0) > allowed)
    }
}

/// Percentiles of amounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of the amounts are no larger.
    pub p50: Bytes,
    /// 19 of 20 amounts are no larger.
    pub p95: Bytes,
    /// The largest amount.
    pub max: Bytes,
}

impl Percentiles {
    /// Percentiles of these amounts; zero where there are none.
    pub fn of(mut amounts: Vec<Bytes>) -> Self {
        amounts.sort_unstable();
        let at = |share: usize| {
            let rank = (amounts.len() * share).div_ceil(100).max(1);
            amounts.get(rank - 1).copied().unwrap_or_default()
        };
        Percentiles { p50: at(50), p95: at(95), max: at(100) }
    }
}

/// The group's record at times when it was no larger than a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The number of samples from such times.
    pub samples: usize,
    /// The number of those in which it was short of memory.
    pub short: usize,
    /// The length of those times.
    pub time: Duration,
    /// The time that its tasks waited for memory in these samples.
    pub stalled: Duration,
    /// Bytes that came back in them.
    pub refaults: Bytes,
}

/// Limits for a group, and what they are based on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The number of samples.
    pub samples: usize,
    /// The time that the samples cover.
    pub covered: Duration,
    /// The samples cover less than half of the time that was asked about.
    pub weak: bool,
    /// The number of samples without ages.
    pub unaged: usize,
    /// The number of samples from times when the group was short of memory: it is unknown how much
    /// it would have used.
    pub short: usize,
    /// The size at the last sample.
    pub current: Bytes,
    /// The page cache in it. It is part of each working set, as its use is unknown.
    pub cache: Bytes,
    /// The largest size.
    pub peak: Bytes,
    /// The working set, at most.
    pub working_set: Percentiles,
    /// The working set, at least: the memory that was certainly used.
    pub least: Percentiles,
    /// The memory that should be there for it.
    pub request: Bytes,
    /// A value for `memory.high`.
    pub high: Bytes,
    /// A value for `memory.max`.
    pub max: Bytes,
    /// The amount by which the group is larger than `high` now.
    pub saved: Bytes,
    /// The group's record at `high` or below; `None`: it was never that small.
    pub evidence: Option<Evidence>,
}

/// No advice is given, as too little is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TooLittle {
    /// The number of samples.
    pub samples: usize,
    /// The time that the samples cover.
    pub covered: Duration,
}

/// Advice from the samples of a group in the last `window`, oldest first.
pub fn advise(samples: &[Sample], window: Duration, guard: &Guard) -> Result<Advice, TooLittle> {
    let covered = samples.iter().filter_map(|sample| sample.over).sum();
    let Some(last) = samples.last().filter(|_| samples.len() >= LEAST_SAMPLES && covered >= LEAST_COVERED) else {
        return Err(TooLittle { samples: samples.len(), covered });
    };
    let sets: Vec<Bounds> = samples.iter().map(|sample| sample.working_set(guard)).collect();
    let working_set = Percentiles::of(sets.iter().map(|set| set.most).collect());
    let peak = samples.iter().map(|sample| sample.peak.max(sample.current)).max().unwrap_or_default();
    let with = |bytes: Bytes, margin| whole(bytes + bytes.share(margin));
    let (request, high) = (with(working_set.p95, MARGIN), with(working_set.max, MARGIN));
    Ok(Advice {
        samples: samples.len(),
        covered,
        weak: covered < window / 2,
        unaged: samples.iter().filter(|sample| sample.used.is_none()).count(),
        short: samples.iter().filter(|sample| sample.is_short(guard)).count(),
        current: last.current,
        cache: last.cache,
        peak,
        working_set,
        least: Percentiles::of(sets.iter().map(|set| set.least).collect()),
        request,
        high,
        max: with(peak.max(high), KILL_MARGIN),
        saved: last.current - high,
        evidence: evidence(samples, high, guard),
    })
}

fn evidence(samples: &[Sample], size: Bytes, guard: &Guard) -> Option<Evidence> {
    let at = samples.iter().filter(|sample| sample.peak.max(sample.current) <= size);
    let at = at.filter(|sample| sample.over.is_some() && sample.stalled.is_some() && sample.refaults.is_some());
    let evidence = Evidence {
        samples: at.clone().count(),
        short: at.clone().filter(|sample| sample.is_short(guard)).count(),
        time: at.clone().filter_map(|sample| sample.over).sum(),
        stalled: at.clone().filter_map(|sample| sample.stalled).sum(),
        refaults: at.filter_map(|sample| sample.refaults).sum(),
    };
    (evidence.samples > 0).then_some(evidence)
}

/// Rounded up to a MiB: nobody reads more digits, and a limit must not be zero.
fn whole(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.0.div_ceil(1 << 20).max(1))
}
