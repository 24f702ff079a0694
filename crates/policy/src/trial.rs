//! Whether a group can live with less memory, found out by trying: a size a step lower, watched under
//! a guard, and so on down; given back at once when the guard is broken.
//!
//! * At its **full size** first: a group that breaks the guard as it is tells nothing about sizes.
//! * Then **down**, each size watched for a look. The smallest that was within the guard is **held**,
//!   for longer.
//! * A size that breaks the guard is **given back**: the group has its own limit again and a look's
//!   **rest**. After that nothing lower is tried, and what is held is a size that was good before;
//!   when that breaks, too, the next larger one.
//!
//! So sizes fall until the first breach and rise after it: a trial ends.
//!
//! The guard is an allowance for the length of a look. What is used up before its end is a breach at
//! once: a group that is squeezed below what it uses does not wait for the look to end.

use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

/// The least that may come back in a look: one batch of the kernel's (`SWAP_CLUSTER_MAX` pages of
/// 4 KiB). A share of a small group is less than the eight pages that one fault reads from swap.
pub const LEAST_REFAULTS: Bytes = Bytes::kib(128);
/// The smallest step: less is within what the kernel's counters are behind.
pub const SMALLEST_STEP: Bytes = Bytes::kib(256);
const MINUTE: Duration = Duration::from_secs(60);

/// What a size must keep within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// Share of the time in which tasks of the group wait for memory (PSI some).
    pub stall: Permyriad,
    /// What comes back in a minute, as a share of the size.
    pub refaults: Permyriad,
}

/// What is to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Each size is lower than the one before by this share of it.
    pub step: Permyriad,
    /// Nothing below this is tried: what cannot leave, or must not.
    pub floor: Bytes,
    /// The size to find out about; without one, the smallest that holds.
    pub target: Option<Bytes>,
    /// How long each size on the way is watched.
    pub look: Duration,
    /// How long the last one is.
    pub hold: Duration,
    /// What they must keep within.
    pub guard: Guard,
}

/// The group at one moment. Counters, since the group was made; `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// When.
    pub at: Monotonic,
    /// Charged to it.
    pub current: Bytes,
    /// Time in which its tasks waited for memory.
    pub stall: Option<Duration>,
    /// What came back.
    pub refaults: Option<Bytes>,
}

/// Why a size did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breach {
    /// Tasks waited for memory longer than the guard allows.
    Stall,
    /// More came back than it allows.
    Refaults,
    /// One of both could not be read.
    Unknown,
}

/// How the watch of a size ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Within the guard for a look.
    Good,
    /// Within the guard for the whole time.
    Held,
    /// The guard was broken.
    Broken(Breach),
    /// The group could not be brought down to it.
    Unreached,
}

/// What was seen at a size, from the moment on when the group was asked down to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The size; of the first one, what the group held by itself.
    pub size: Bytes,
    /// What it held in the end.
    pub current: Bytes,
    /// For how long.
    pub time: Duration,
    /// Of it, with tasks waiting for memory.
    pub stall: Duration,
    /// What came back.
    pub refaults: Bytes,
    /// How it ended.
    pub ended: Ended,
}

impl Tried {
    /// Share of the time with tasks waiting for memory.
    pub fn stall_share(&self) -> Option<Permyriad> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Permyriad::ratio(nanos(self.stall), nanos(self.time))
    }

    /// What came back in a minute, as a share of the size.
    pub fn refault_share(&self) -> Option<Permyriad> {
        let per_second = self.refaults.per_second(self.time)?;
        Bytes(per_second.0.saturating_mul(MINUTE.as_secs())).share_of(self.size)
    }
}

/// Why nothing lower was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottom {
    /// It was the size asked about.
    Target,
    /// What is left cannot leave memory, or must not.
    Floor,
    /// The next size broke the guard.
    Guard,
    /// The next size could not be reached.
    Unreached,
    /// The guard is broken at full size already.
    Full,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Bring the group down to this size and limit it to that; then [`Trial::arrived`].
    Limit(Bytes),
    /// Look again in a moment.
    Wait,
    /// The group gets its own limit back, at once.
    GiveBack,
    /// It is over, and the group is to have its own limit back.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// At its full size.
    Full,
    /// Asked down to a size; there since that moment.
    At {
        size: Bytes,
        last: bool,
        since: Option<Monotonic>,
    },
    /// Given back, until then.
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
    /// When the phase began.
    began: Seen,
    /// When the look that the guard is applied to began.
    look: Seen,
    tried: Vec<Tried>,
    /// Sizes that were good for a look, the smallest last.
    good: Vec<Bytes>,
    bottom: Option<Bottom>,
    held: Option<Bytes>,
}

impl Trial {
    /// Begins with the group as it is.
    pub fn new(plan: Plan, seen: Seen) -> Self {
        Trial {
            plan,
            phase: Phase::Full,
            began: seen,
            look: seen,
            tried: Vec::new(),
            good: Vec::new(),
            bottom: None,
            held: None,
        }
    }

    /// What is to be tried.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was tried, in order.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// The smallest size that was within the guard for the whole time.
    pub fn held(&self) -> Option<Bytes> {
        self.held
    }

    /// The smallest that was good for a look, and did not break later.
    pub fn good(&self) -> Option<Bytes> {
        self.good.last().copied()
    }

    /// The size it is at, or on the way to; `None` while the group has its own limit.
    pub fn size(&self) -> Option<Bytes> {
        match self.phase {
            Phase::At { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Why nothing lower was tried; `None` while it goes down.
    pub fn bottom(&self) -> Option<Bottom> {
        self.bottom
    }

    /// Whether the guard is broken, and how.
    pub fn breach(&self, seen: &Seen) -> Option<Breach> {
        let size = match self.phase {
            Phase::Full => self.began.current,
            Phase::At { size, .. } => size,
            Phase::Rest { .. } | Phase::Over => return None,
        };
        let (Some((stall, stalled)), Some((refaults, refaulted))) =
            (seen.stall.zip(self.look.stall), seen.refaults.zip(self.look.refaults))
        else {
            return Some(Breach::Unknown);
        };
        let time = seen.at.since(self.look.at).max(self.plan.look).as_nanos();
        let guard = self.plan.guard;
        if stall.saturating_sub(stalled).as_nanos() * 10_000 > time * u128::from(guard.stall.0) {
            return Some(Breach::Stall);
        }
        let came_back = refaults - refaulted;
        let allowed = u128::from(size.share(guard.refaults).0).saturating_mul(time) / MINUTE.as_nanos();
        (came_back > LEAST_REFAULTS && u128::from(came_back.0) > allowed).then_some(Breach::Refaults)
    }

    /// What to do now.
    pub fn next(&mut self, seen: &Seen) -> Next {
        match self.phase {
            Phase::Over => Next::End,
            Phase::Rest { until } if seen.at < until => Next::Wait,
            Phase::Rest { .. } => self.hold(seen),
            Phase::Full => match self.breach(seen) {
                Some(breach) => {
                    self.note(self.began.current, seen, Ended::Broken(breach));
                    self.end(Bottom::Full)
                }
                None if seen.at.since(self.began.at) < self.plan.look => Next::Wait,
                None => {
                    self.note(seen.current, seen, Ended::Good);
                    self.lower(seen.current, seen)
                }
            },
            Phase::At { size, last, since } => match (self.breach(seen), since) {
                (Some(breach), _) => self.give_back(size, last, seen, breach),
                // Arriving is what it waits for.
                (None, None) => Next::Wait,
                (None, Some(since)) if last => self.held_until(size, since, seen),
                (None, Some(since)) if seen.at.since(since) < self.plan.look => Next::Wait,
                (None, Some(_)) => {
                    self.note(size, seen, Ended::Good);
                    self.good.push(size);
                    self.lower(size.min(seen.current), seen)
                }
            },
        }
    }

    /// The group is limited to the size that was asked for; or, not `reached`, it cannot be. Then what
    /// comes next.
    pub fn arrived(&mut self, reached: bool, seen: &Seen) -> Next {
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

    /// One step down from `size`, or no further.
    fn lower(&mut self, size: Bytes, seen: &Seen) -> Next {
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

    /// The smallest good size, for the whole time.
    fn hold(&mut self, seen: &Seen) -> Next {
        match self.good() {
            Some(size) => self.limit(size, true, seen),
            None => self.end(Bottom::Floor),
        }
    }

    fn limit(&mut self, size: Bytes, last: bool, seen: &Seen) -> Next {
        self.phase = Phase::At { size, last, since: None };
        (self.began, self.look) = (*seen, *seen);
        Next::Limit(size)
    }

    fn held_until(&mut self, size: Bytes, since: Monotonic, seen: &Seen) -> Next {
        if seen.at.since(since) >= self.plan.hold {
            self.note(size, seen, Ended::Held);
            self.held = Some(size);
            self.phase = Phase::Over;
            return Next::End;
        }
        if seen.at.since(self.look.at) >= self.plan.look {
            self.look = *seen;
        }
        Next::Wait
    }

    fn give_back(&mut self, size: Bytes, last: bool, seen: &Seen, breach: Breach) -> Next {
        self.note(size, seen, Ended::Broken(breach));
        self.bottom.get_or_insert(Bottom::Guard);
        if last {
            self.good.pop();
        }
        self.phase = Phase::Rest { until: seen.at + self.plan.look };
        Next::GiveBack
    }

    fn end(&mut self, bottom: Bottom) -> Next {
        self.bottom.get_or_insert(bottom);
        self.phase = Phase::Over;
        Next::End
    }

    fn note(&mut self, size: Bytes, seen: &Seen, ended: Ended) {
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
