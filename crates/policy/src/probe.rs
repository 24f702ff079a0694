//! How much of a group may be taken, where nothing tells the age of its memory (no MGLRU).
//!
//! A probe takes a little and watches what comes back. What comes back in a minute is compared with
//! the objective P of [`Slo`].
//!
//! * **Below P/2** half a percent of the group is taken, every 30 s at most. Until half of the group
//!   is out, a step is twice as large after each minute below P/4, up to two percent.
//! * **Between P/2 and P** nothing happens, and the next step is half a percent again.
//! * **Above P** the probe stops and waits: 2 min at first, then twice as long each time, a day at
//!   most. If half of the group was out, it waits for an hour at least. After a day without that,
//!   the next wait is the first again.
//!
//! A tenth of the group always stays, and nothing is taken within the warm-up of [`Slo`]
//! (10 min) after the group's start. What is not known takes nothing, and the minute that is
//! watched begins anew. This is what Senpai wants to be, without a limit that is left behind.
//!
//! P is a share of what the group has in memory: the less that is, the less may come back, down to
//! a share of what is in use.
//!
//! An [`Answer`] is an offer. The daemon offers it to [`crate::decide`], which may have reasons not
//! to take it. A step counts from [`Probe::begin`] on.

use core::fmt;
use core::time::Duration;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::pace::SMALLEST_STEP;
use crate::reason::short;
use crate::threshold::{PromotionRate, SMALL, SMALL_PAGES, Slo};

/// The share of the group's memory that one step takes, of what is in and what is out.
pub const STEP: Permyriad = Permyriad(50);
/// The largest share.
pub const LARGEST_STEP: Permyriad = Permyriad(200);
/// Half of the group: while less is out, steps may grow.
pub const HALF: Permyriad = Permyriad::percent(50);
/// The time between two steps.
pub const EVERY: Duration = Duration::from_secs(30);
/// The share of the group that may be out.
pub const MOST: Permyriad = Permyriad::percent(90);
/// The first wait after too much came back.
pub const FIRST_WAIT: Duration = Duration::from_secs(120);
/// The wait is no shorter if half of the group was out: little is left to gain.
pub const WAIT_BEYOND_HALF: Duration = Duration::from_secs(3600);
/// The longest wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(86_400);
/// What comes back is counted over this time.
const MINUTE: Duration = Duration::from_secs(60);
/// After this time without a look, what came back meanwhile says nothing about a minute.
pub const ABSENCE: Duration = Duration::from_secs(90);

/// A look at the group. `None`: unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Now.
    pub now: Monotonic,
    /// Memory charged to the group.
    pub size: Option<Bytes>,
    /// Bytes that were refaulted since the group was made.
    pub refaults: Option<Bytes>,
    /// The time until a page is back.
    pub swap_in: Option<Duration>,
}

/// The probe of one group: what it remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    started: Monotonic,
    /// What was taken and did not come back.
    out: Bytes,
    watch: Option<Watch>,
    last_step: Option<Monotonic>,
    /// The steps since more than P/4 came back in a minute.
    steps: u32,
    /// When the last wait ends or ended, and how long it is; `None`: there was none for a day.
    wait: Option<(Monotonic, Duration)>,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Watch {
    /// The last look, and the counter then.
    last: (Monotonic, Bytes),
    /// The begin of the minute that is counted now, and the counter then.
    minute: (Monotonic, Bytes),
    /// What came back in the minute before; `None`: there was none.
    before: Option<Bytes>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Take this much.
    Take {
        /// The amount.
        bytes: Bytes,
        /// What came back in a minute.
        back: Bytes,
        /// P: what may come back in a minute.
        allowed: Bytes,
    },
    /// Take nothing.
    Hold(Why),
}

impl Answer {
    /// The amount to take.
    pub fn bytes(self) -> Bytes {
        match self {
            Answer::Take { bytes, .. } => bytes,
            Answer::Hold(_) => Bytes::ZERO,
        }
    }
}

/// Why nothing is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The size of the group or its refaults are not known.
    Unknown,
    /// The group has started a moment ago.
    Young {
        /// The remaining time.
        left: Duration,
    },
    /// What comes back was not watched for a minute yet.
    Watching,
    /// Too much came back.
    Waiting {
        /// The remaining time.
        left: Duration,
        /// What came back in a minute at the last look.
        back: Bytes,
        /// What may come back.
        allowed: Bytes,
    },
    /// What comes back is near to what may.
    Near {
        /// What came back in a minute.
        back: Bytes,
        /// What may come back.
        allowed: Bytes,
    },
    /// The last step was a moment ago.
    JustTaken {
        /// The remaining time.
        left: Duration,
    },
    /// As much is out as may be.
    MostOut {
        /// What is out.
        out: Bytes,
    },
    /// The group is too small for a step.
    Small {
        /// What a step would take.
        step: Bytes,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::Unknown => f.write_str("its size or its refaults are not known"),
            Why::Young { left } => write!(f, "only watched for another {}", short(left)),
            Why::Watching => f.write_str("what comes back was not watched for a minute yet"),
            Why::Waiting { left, back, allowed } => {
                write!(
                    f,
                    "too much came back, so it waits for another {} ({back} in the last minute, {allowed} may)",
                    short(left)
                )
            }
            Why::Near { back, allowed } => write!(f, "{back} came back in a minute, {allowed} may"),
            Why::JustTaken { left } => write!(f, "the next step is in {}", short(left)),
            Why::MostOut { out } => write!(f, "{out} is out, and a tenth of it stays"),
            Why::Small { step } => write!(f, "a step of {step} is too small"),
        }
    }
}

impl Probe {
    /// The probe of a group that started at this moment, or was first seen then.
    pub fn new(started: Monotonic) -> Self {
        Probe { started, out: Bytes::ZERO, watch: None, last_step: None, steps: 0, wait: None }
    }

    /// What was taken and did not come back.
    pub fn out(&self) -> Bytes {
        self.out
    }

    /// A look at the group, and what to do now. Nothing counts as taken before [`Probe::begin`].
    pub fn look(&mut self, slo: &Slo, look: &Look) -> Answer {
        let before = self.watch.map(|watch| watch.last.1);
        let watched = self.watch(look);
        let answer = self.answer(slo, look, watched).unwrap_or_else(Answer::Hold);
        // What has just come back makes room for the next step, not for this one: otherwise more
        // that comes back could take more.
        let goes_on = self.watch.is_some_and(|watch| watch.before.is_some() || watch.minute.0 < look.now);
        if let (true, Some(before), Some(now)) = (goes_on, before, look.refaults) {
            self.out = self.out - (now - before);
        }
        answer
    }

    /// A step of this size begins. It counts as taken at once.
    pub fn begin(&mut self, now: Monotonic, bytes: Bytes) {
        self.out += bytes;
        self.last_step = Some(now);
        self.steps = self.steps.saturating_add(1);
    }

    /// A step of `asked` bytes has ended and took this many. The kernel may take more than it was
    /// asked for.
    pub fn took(&mut self, asked: Bytes, taken: Bytes) {
        self.out = (self.out - asked) + taken;
    }

    /// Memory was brought back on purpose. It is not out any more, and no sign of harm.
    pub fn discount(&mut self, bytes: Bytes) {
        self.out = self.out - bytes;
        if let Some(watch) = &mut self.watch {
            watch.last.1 += bytes;
            watch.minute.1 += bytes;
        }
    }

    fn answer(&mut self, slo: &Slo, look: &Look, watched: Option<Option<Bytes>>) -> Result<Answer, Why> {
        let now = look.now;
        let (size, back) = look.size.zip(watched).ok_or(Why::Unknown)?;
        let age = now.since(self.started);
        if age < slo.warm_up {
            return Err(Why::Young { left: slo.warm_up.saturating_sub(age) });
        }
        let allowed = allowed(slo, size, look.swap_in);
        self.wait = self.wait.filter(|(until, _)| now.since(*until) < LONGEST_WAIT);
        let waits = |until: Monotonic, back| Why::Waiting { left: until.since(now), back, allowed };
        if let Some((until, _)) = self.wait
            && now < until
        {
            return Err(waits(until, back.unwrap_or_default()));
        }
        let back = back.ok_or(Why::Watching)?;
        if back.0 > allowed.0 / 4 {
            self.steps = 0;
        }
        if back > allowed {
            let next = self.wait.map_or(FIRST_WAIT, |(_, length)| (length * 2).min(LONGEST_WAIT));
            let is_half_out = self.out >= (size + self.out).share(HALF);
            let length = if is_half_out { next.max(WAIT_BEYOND_HALF) } else { next };
            self.wait = Some((now + length, length));
            return Err(waits(now + length, back));
        }
        if back.0 >= allowed.0.div_ceil(2) {
            return Err(Why::Near { back, allowed });
        }
        self.step(now, size).map(|bytes| Answer::Take { bytes, back, allowed })
    }

    /// The size of the next step.
    fn step(&self, now: Monotonic, size: Bytes) -> Result<Bytes, Why> {
        if let Some(last) = self.last_step {
            let since = now.since(last);
            if since < EVERY {
                return Err(Why::JustTaken { left: EVERY.saturating_sub(since) });
            }
        }
        let whole = size + self.out;
        let (smallest, most) = (whole.share(STEP), whole.share(MOST));
        // Two steps are a minute.
        let grown = Permyriad(STEP.0 << (self.steps / 2).min(2)).min(LARGEST_STEP);
        let share = if self.out < whole.share(HALF) { grown } else { STEP };
        if smallest < SMALLEST_STEP {
            return Err(Why::Small { step: smallest });
        }
        let room = most - self.out;
        if room < SMALLEST_STEP {
            return Err(Why::MostOut { out: self.out });
        }
        let step = whole.share(share);
        Ok(step.min(room))
    }

    /// Counts what came back: in the last minute, or already in this one if that is more. `None`:
    /// unknown. `Some(None)`: not for a minute yet.
    fn watch(&mut self, look: &Look) -> Option<Option<Bytes>> {
        let now = look.now;
        let Some(refaults) = look.refaults else {
            self.watch = None;
            return None;
        };
        let begin = Watch { last: (now, refaults), minute: (now, refaults), before: None };
        let is_new = |watch: &Watch| now < watch.last.0 || now.since(watch.last.0) > ABSENCE || refaults < watch.last.1;
        let Some(mut watch) = self.watch.filter(|watch| !is_new(watch)) else {
            self.watch = Some(begin);
            return Some(None);
        };
        watch.last = (now, refaults);
        let so_far = refaults - watch.minute.1;
        if now.since(watch.minute.0) >= MINUTE {
            watch = Watch { last: watch.last, minute: watch.last, before: Some(so_far) };
        }
        self.watch = Some(watch);
        Some(watch.before.map(|before| before.max(so_far)))
    }
}

/// P: what may come back in a minute. One readahead is free in a small group.
fn allowed(slo: &Slo, size: Bytes, swap_in: Option<Duration>) -> Bytes {
    let PromotionRate(millionths) = slo.promotions.for_device(swap_in);
    let share = u128::from(size.0) * u128::from(millionths) / 1_000_000;
    let free = if size < SMALL { slo.page.0.saturating_mul(SMALL_PAGES) } else { 0 };
    Bytes(u64::try_from(share).unwrap_or(u64::MAX)) + Bytes(free)
}
