//! With how much less memory a group can live, found out by trying. [`Trial`] decides from samples
//! of the group's size, stalls and refaults; `omr trial` sets the limits and gives them back.
//!
//! * First the group is watched at its **full size**. A group that breaks the guard without a limit
//!   tells nothing about sizes.
//! * Then the size goes **down** in steps, and each size is watched for a while (`Plan::watch`).
//!   The smallest size within the guard is then **held** for longer (`Plan::hold`).
//! * A size that breaks the guard is **given back** at once: the group gets its own limit back and
//!   **rests** for as long as a size is watched. After that no smaller size is tried, and a size
//!   that was good before is held. If that breaks the guard as well, the next larger one is held.
//!
//! So sizes fall until the first breach and rise after it, and a trial always ends.
//!
//! The guard allows an amount for the whole time of a watch. If the group exceeds that amount
//! sooner, the guard is broken at that moment, so that a group that lacks memory need not wait for
//! the end.

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

/// This much may always come back in one watch: one batch of the kernel (`SWAP_CLUSTER_MAX` pages
/// of 4 KiB). A share of a small group would be less than the eight pages that one fault reads from
/// swap.
pub const LEAST_REFAULTS: Bytes = Bytes::kib(128);
/// The smallest step: the counters of the kernel are less accurate than this.
pub const SMALLEST_STEP: Bytes = Bytes::kib(256);
const MINUTE: Duration = Duration::from_secs(60);

/// The harm that a size may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// The share of time in which some task of the group may wait for memory (PSI some).
    pub stall: Permyriad,
    /// The refaults that are allowed in a minute, as a share of the size.
    pub refaults: Permyriad,
}

/// The sizes to try, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Each size is lower than the one before by this share of it.
    pub step: Permyriad,
    /// No size below this is tried, as the rest cannot or must not leave memory.
    pub floor: Bytes,
    /// The size to find out about; `None`: the smallest size that holds.
    pub target: Option<Bytes>,
    /// The time for which each size on the way down is tried.
    pub watch: Duration,
    /// The time for which the last size is tried.
    pub hold: Duration,
    /// The harm that a size may do.
    pub guard: Guard,
}

/// The group at one moment. Counters count since the group was made; `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialSample {
    /// When the sample was taken.
    pub at: Monotonic,
    /// Memory charged to the group.
    pub current: Bytes,
    /// Time in which its tasks waited for memory.
    pub stall: Option<Duration>,
    /// Bytes that came back.
    pub refaults: Option<Bytes>,
}

/// The way in which a size broke the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breach {
    /// Tasks waited for memory longer than the guard allows.
    Stall,
    /// More came back than the guard allows.
    Refaults,
    /// The stalls or the refaults could not be read.
    Unknown,
}

/// The result of trying a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The size was within the guard for the time of a watch.
    Good,
    /// The size was within the guard for as long as the last size is held.
    Held,
    /// The size broke the guard.
    Broken(Breach),
    /// The group could not be brought down to the size.
    Unreached,
}

/// One size that was tried. Times and counters begin when the group was limited to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The size; the first one is the size of the group without a limit.
    pub size: Bytes,
    /// The size of the group at the end.
    pub current: Bytes,
    /// The time for which it was tried.
    pub time: Duration,
    /// The part of that time in which tasks waited for memory.
    pub stall: Duration,
    /// Bytes that came back.
    pub refaults: Bytes,
    /// The end.
    pub ended: Ended,
}

impl Tried {
    /// The share of time in which tasks waited for memory; `None`: no time passed.
    pub fn stall_share(&self) -> Option<Permyriad> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Permyriad::ratio(nanos(self.stall), nanos(self.time))
    }

    /// Returns the refaults in a minute, as a share of the size; `None`: no time passed, or the
    /// size is zero.
    pub fn refault_share(&self) -> Option<Permyriad> {
        let per_second = self.refaults.per_second(self.time)?;
        Bytes(per_second.0.saturating_mul(MINUTE.as_secs())).share_of(self.size)
    }
}

/// Why no smaller size was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottom {
    /// It was the size to find out about.
    Target,
    /// The rest cannot or must not leave memory.
    Floor,
    /// The next size broke the guard.
    Guard,
    /// The next size could not be reached.
    Unreached,
    /// The group broke the guard at its full size.
    Full,
}

/// The next step of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Bring the group down to this size and limit it to that, then call [`Trial::arrived`].
    Limit(Bytes),
    /// Take another sample in a moment.
    Wait,
    /// Give the group its own limit back at once.
    GiveBack,
    /// The trial is over; give the group its own limit back.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The group is watched at its full size.
    Full,
    /// The group is limited to a size and has been there since that moment; `None`: it is on its
    /// way.
    At {
        size: Bytes,
        last: bool,
        since: Option<Monotonic>,
    },
    /// The group has its own limit back and rests until then.
    Rest {
        until: Monotonic,
    },
    Over,
}

/// One trial.
#[derive(Clone, Debug)]
pub struct Trial {
    plan: Plan,
    phase: Phase,
    /// The sample at the beginning of the phase.
    began: TrialSample,
    /// The sample from which on the guard counts.
    baseline: TrialSample,
    tried: Vec<Tried>,
    /// Sizes that were good, the smallest last.
    good: Vec<Bytes>,
    bottom: Option<Bottom>,
    held: Option<Bytes>,
}

impl Trial {
    /// A trial that begins with this sample.
    pub fn new(plan: Plan, seen: TrialSample) -> Self {
        Trial {
            plan,
            phase: Phase::Full,
            began: seen,
            baseline: seen,
            tried: Vec::new(),
            good: Vec::new(),
            bottom: None,
            held: None,
        }
    }

    /// The plan of the trial.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sizes that were tried, in order.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// The size that was held for the whole time; `None`: there is none yet.
    pub fn held(&self) -> Option<Bytes> {
        self.held
    }

    /// The smallest size that was good and did not break the guard later; `None`: there is none.
    pub fn good(&self) -> Option<Bytes> {
        self.good.last().copied()
    }

    /// The size that the group is limited to or is on its way to; `None`: it has its own limit.
    pub fn size(&self) -> Option<Bytes> {
        match self.phase {
            Phase::At { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Why no smaller size was tried; `None`: the size still goes down.
    pub fn bottom(&self) -> Option<Bottom> {
        self.bottom
    }

    /// Returns the way in which the guard is broken; `None`: it is not.
    pub fn breach(&self, seen: &TrialSample) -> Option<Breach> {
        let size = match self.phase {
            Phase::Full => self.began.current,
            Phase::At { size, .. } => size,
            Phase::Rest { .. } | Phase::Over => return None,
        };
        let (Some((stall, stalled)), Some((refaults, refaulted))) =
            (seen.stall.zip(self.baseline.stall), seen.refaults.zip(self.baseline.refaults))
        else {
            return Some(Breach::Unknown);
        };
        let time = seen.at.since(self.baseline.at).max(self.plan.watch).as_nanos();
        let guard = self.plan.guard;
        if stall.saturating_sub(stalled).as_nanos() * 10_000 > time * u128::from(guard.stall.0) {
            return Some(Breach::Stall);
        }
        let came_back = refaults - refaulted;
        let allowed = u128::from(size.share(guard.refaults).0).saturating_mul(time) / MINUTE.as_nanos();
        (came_back > LEAST_REFAULTS && u128::from(came_back.0) > allowed).then_some(Breach::Refaults)
    }

    /// The next step, from a new sample.
    pub fn next(&mut self, seen: &TrialSample) -> Next {
        match self.phase {
            Phase::Over => Next::End,
            Phase::Rest { until } if seen.at < until => Next::Wait,
            Phase::Rest { .. } => self.hold(seen),
            Phase::Full => match self.breach(seen) {
                Some(breach) => {
                    self.note(self.began.current, seen, Ended::Broken(breach));
                    self.end(Bottom::Full)
                }
                None if seen.at.since(self.began.at) < self.plan.watch => Next::Wait,
                None => {
                    self.note(seen.current, seen, Ended::Good);
                    self.lower(seen.current, seen)
                }
            },
            Phase::At { size, last, since } => match (self.breach(seen), since) {
                (Some(breach), _) => self.give_back(size, last, seen, breach),
                // The group is on its way.
                (None, None) => Next::Wait,
                (None, Some(since)) if last => self.held_until(size, since, seen),
                (None, Some(since)) if seen.at.since(since) < self.plan.watch => Next::Wait,
                (None, Some(_)) => {
                    self.note(size, seen, Ended::Good);
                    self.good.push(size);
                    self.lower(size.min(seen.current), seen)
                }
            },
        }
    }

    /// The group has `reached` the size of [`Next::Limit`] and is limited to it, or could not reach
    /// it. Returns the next step.
    pub fn arrived(&mut self, reached: bool, seen: &TrialSample) -> Next {
        let Phase::At { size, last, .. } = self.phase else { return self.next(seen) };
        if let Some(breach) = self.breach(seen) {
            return self.give_back(size, last, seen, breach);
        }
        if reached {
            self.phase = Phase::At { size, last, since: Some(seen.at) };
            return Next::Wait;
        }
        self.note(size, seen, Ended::Unreached);
        self.bottom.get_or_insert(Bottom::Unreached);
        if last {
            self.good.pop();
        }
        self.hold(seen)
    }

    /// Goes one step down from `size`, or begins to hold a size if there is no further step.
    fn lower(&mut self, size: Bytes, seen: &TrialSample) -> Next {
        let lowest = self.plan.target.unwrap_or_default().max(self.plan.floor);
        let step = size.share(self.plan.step).max(SMALLEST_STEP);
        let next = (size - step).max(lowest);
        if self.good.last().is_some_and(|&good| next >= good)
            || self.plan.target.is_none() && size < next + SMALLEST_STEP
        {
            self.bottom = Some(if self.plan.target.is_some() { Bottom::Target } else { Bottom::Floor });
            return self.hold(seen);
        }
        self.limit(next, false, seen)
    }

    /// Begins to hold the smallest good size.
    fn hold(&mut self, seen: &TrialSample) -> Next {
        match self.good() {
            Some(size) => self.limit(size, true, seen),
            None => self.end(Bottom::Floor),
        }
    }

    fn limit(&mut self, size: Bytes, last: bool, seen: &TrialSample) -> Next {
        self.phase = Phase::At { size, last, since: None };
        (self.began, self.baseline) = (*seen, *seen);
        Next::Limit(size)
    }

    fn held_until(&mut self, size: Bytes, since: Monotonic, seen: &TrialSample) -> Next {
        if seen.at.since(since) >= self.plan.hold {
            self.note(size, seen, Ended::Held);
            self.held = Some(size);
            self.phase = Phase::Over;
            return Next::End;
        }
        if seen.at.since(self.baseline.at) >= self.plan.watch {
            self.baseline = *seen;
        }
        Next::Wait
    }

    fn give_back(&mut self, size: Bytes, last: bool, seen: &TrialSample, breach: Breach) -> Next {
        self.note(size, seen, Ended::Broken(breach));
        self.bottom.get_or_insert(Bottom::Guard);
        if last {
            self.good.pop();
        }
        self.phase = Phase::Rest { until: seen.at + self.plan.watch };
        Next::GiveBack
    }

    fn end(&mut self, bottom: Bottom) -> Next {
        self.bottom.get_or_insert(bottom);
        self.phase = Phase::Over;
        Next::End
    }

    fn note(&mut self, size: Bytes, seen: &TrialSample, ended: Ended) {
        let from = &self.began;
        self.tried.push(Tried {
            size,
            current: seen.current,
            time: seen.at.since(from.at),
            stall: seen.stall.zip(from.stall).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then)),
            refaults: seen.refaults.zip(from.refaults).map_or(Bytes::ZERO, |(now, then)| now - then),
            ended,
        });
    }
}
