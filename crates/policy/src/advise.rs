//! What limits a group could live with, from what it held and used over days.
//!
//! * The **working set** at a sample is what was used since the one before, at most: of anonymous and
//!   shared memory by age; page cache and the kernel's memory in full, as their use is not known; and
//!   what was allocated and freed meanwhile. A sample without ages, or of a time when the group lacked
//!   memory, counts with all that the group held.
//! * **request**, what is to be there for the group: the 95th percentile of the working set and 15 %.
//!   (Kubernetes' recommender takes the 90th percentile of daily peaks and the same margin.)
//! * **high**, above which the kernel reclaims and slows down: the largest working set and 15 %. Not a
//!   percentile: one hour in twenty above it would be an hour of waiting.
//! * **max**, above which it kills: a quarter above the most that was ever held, or high. Nothing is
//!   saved by it, it is where a leak ends.
//!
//! Unknown is never cold, so the working set is too large rather than too small: to find out how much,
//! see [`crate::trial`].

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::age::Bounds;
use crate::trial::Guard;

/// Beyond the working set.
pub const MARGIN: Permyriad = Permyriad::percent(15);
/// Between the most that was held, and being killed.
const KILL_MARGIN: Permyriad = Permyriad::percent(25);
/// With less history than this nothing is advised.
pub const LEAST_COVERED: Duration = Duration::from_secs(3600);
/// And with fewer samples.
pub const LEAST_SAMPLES: usize = 6;
const MINUTE: Duration = Duration::from_secs(60);

/// A group at one time, and since the time before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the sample before; `None`: there is none, or it is not known how long ago it was.
    pub over: Option<Duration>,
    /// Charged to it.
    pub current: Bytes,
    /// The most that was, since the sample before.
    pub peak: Bytes,
    /// Of what is charged, page cache.
    pub cache: Bytes,
    /// Of what is charged, anonymous and shared memory.
    pub memory: Bytes,
    /// Of that, used since the sample before; `None` is unknown.
    pub used: Option<Bounds>,
    /// Came back since the sample before.
    pub refaults: Option<Bytes>,
    /// Time in which its tasks waited for memory, since the sample before.
    pub stalled: Option<Duration>,
}

impl Sample {
    /// What was used since the sample before: at least, at most.
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

    /// Whether the group waited for memory, or read it back, more than the guard allows.
    pub fn is_short(&self, guard: &Guard) -> bool {
        let Some(over) = self.over.filter(|over| !over.is_zero()) else { return false };
        let stalled =
            self.stalled.is_some_and(|time| time.as_nanos() * 10_000 > over.as_nanos() * u128::from(guard.stall.0));
        let allowed = u128::from(self.current.share(guard.refaults).0) * over.as_nanos() / MINUTE.as_nanos();
        stalled || self.refaults.is_some_and(|bytes| u128::from(bytes.0) > allowed)
    }
}

/// Amounts of which so many samples are no larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Half of them.
    pub p50: Bytes,
    /// 19 of 20.
    pub p95: Bytes,
    /// All.
    pub max: Bytes,
}

impl Percentiles {
    /// Of these; of none, zero.
    pub fn of(mut amounts: Vec<Bytes>) -> Self {
        amounts.sort_unstable();
        let at = |share: usize| {
            let rank = (amounts.len() * share).div_ceil(100).max(1);
            amounts.get(rank - 1).copied().unwrap_or_default()
        };
        Percentiles { p50: at(50), p95: at(95), max: at(100) }
    }
}

/// What was seen while the group held no more than a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Samples of such times.
    pub samples: usize,
    /// Of them, with the guard broken.
    pub short: usize,
    /// How long those times were.
    pub time: Duration,
    /// How long tasks waited for memory in them.
    pub stalled: Duration,
    /// What came back in them.
    pub refaults: Bytes,
}

/// What is advised for a group, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Samples that it rests on.
    pub samples: usize,
    /// The time that they cover.
    pub covered: Duration,
    /// Less than half of the time that was asked about.
    pub weak: bool,
    /// Of the samples, without ages.
    pub unaged: usize,
    /// Of the samples, at times when the group lacked memory: what it would have used is not known.
    pub short: usize,
    /// At the last sample.
    pub current: Bytes,
    /// Of that, page cache: part of each working set, as its use is not known.
    pub cache: Bytes,
    /// The most that was held.
    pub peak: Bytes,
    /// Working set, at most.
    pub working_set: Percentiles,
    /// Working set at least: what surely was used.
    pub least: Percentiles,
    /// What is to be there for it.
    pub request: Bytes,
    /// `memory.high`.
    pub high: Bytes,
    /// `memory.max`.
    pub max: Bytes,
    /// What the group holds above `high` now.
    pub saved: Bytes,
    /// What was seen at `high` or less; `None`: it was never as small.
    pub evidence: Option<Evidence>,
}

/// Why nothing is advised: too little is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TooLittle {
    /// Samples there are.
    pub samples: usize,
    /// The time that they cover.
    pub covered: Duration,
}

/// Advice from the samples of a group, in their order, of the last `window`.
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

/// Rounded up to a MiB: nobody reads more digits, and a limit of nothing is none.
fn whole(bytes: Bytes) -> Bytes {
    Bytes::mib(bytes.0.div_ceil(1 << 20).max(1))
}
