//! What a threshold did in an interval, and why.

use core::fmt;
use core::time::Duration;

use omr_units::{Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use super::grid::Step;
use super::slo::PromotionRate;
use crate::reason::short;

/// The threshold before and after an interval, and why. `F`: the figures of the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move<F = Figures> {
    /// The threshold in force during the interval.
    pub from: Step,
    /// The threshold from now on.
    pub to: Step,
    /// Why it moved, or why it did not.
    pub reason: Reason<F>,
}

/// The figures by which one age was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// T: the age.
    pub age: Duration,
    /// R: what was promoted at this age, per minute: the least where that broke P, the most
    /// otherwise.
    pub promoted: Bytes,
    /// W: the mean working set, at least.
    pub working_set: Bytes,
    /// P: the promotions that are allowed.
    pub allowed: PromotionRate,
    /// The share of the last day in which this age kept P; `None`: unknown.
    pub kept: Option<Permyriad>,
}

/// A brake: it keeps a threshold from going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Brake {
    /// Tasks of the group wait for memory.
    Stall {
        /// The share of time in which they do.
        share: Permyriad,
        /// The share that is allowed.
        allowed: Permyriad,
    },
    /// The write budget for swap on disk is used up.
    WriteBudget,
    /// Free swap is at its floor.
    SwapFloor,
}

/// Why a threshold moved or did not move. `F`: the figures that tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Reason<F = Figures> {
    /// The threshold broke P: it goes up to the shortest age that has not, or stays at the longest.
    Broke(F),
    /// The next shorter age has kept P for long enough: the threshold goes down to it.
    Kept(F),
    /// The group is only observed as yet.
    WarmingUp {
        /// How long it still lasts.
        left: Duration,
    },
    /// A small group is judged when enough time has passed.
    Gathering {
        /// How long it still lasts.
        left: Duration,
    },
    /// Promotions at the next shorter age, the working set or the stalls are unknown.
    Unknown,
    /// The next shorter age may have kept P or broken it.
    Unclear(F),
    /// The threshold, which these figures are of, is the shortest that is allowed.
    Shortest(F),
    /// The next shorter age would have broken P in this interval.
    WouldBreak(F),
    /// The next shorter age would have broken P a while ago.
    BrokeLately {
        /// How long the threshold still stays.
        left: Duration,
        /// The next shorter age in this interval.
        figures: F,
    },
    /// The next shorter age has not kept P in enough of the last day.
    BrokeOften {
        /// K: the share of time that is needed.
        needed: Permyriad,
        /// The next shorter age in this interval.
        figures: F,
    },
    /// The next shorter age has kept P for long enough, but something else speaks against it.
    Braked {
        /// The brake.
        brake: Brake,
        /// The next shorter age in this interval.
        figures: F,
    },
}

impl<F> Reason<F> {
    /// Returns true if the group was observed for the warm-up, so that the threshold means something.
    /// `before`: whether that was so before this interval.
    pub fn is_observed(&self, before: bool) -> bool {
        match self {
            Reason::WarmingUp { .. } | Reason::Unknown => false,
            Reason::Gathering { .. } => before,
            _ => true,
        }
    }
}

/// Such as `memory unused for 3 min was used again at 1.20 MiB/min; 0.2 %/min of the 300 MiB in use
/// is allowed`.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { age, promoted, working_set, allowed, .. } = self;
        write!(f, "memory unused for {} was used again at {promoted}/min; ", short(*age))?;
        write!(f, "{allowed} of the {working_set} in use is allowed")
    }
}

impl fmt::Display for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Brake::Stall { share, allowed } => {
                write!(f, "its tasks wait for memory {share} of the time, {allowed} is allowed")
            }
            Brake::WriteBudget => write!(f, "the write budget is used up"),
            Brake::SwapFloor => write!(f, "free swap is at its floor"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Broke(figures) => write!(f, "too much came back: {figures}"),
            Reason::Kept(figures) => write!(f, "little would come back: {figures}"),
            Reason::WarmingUp { left } => write!(f, "observed only, for another {}", short(*left)),
            Reason::Gathering { left } => write!(f, "a small group, judged in {}", short(*left)),
            Reason::Unknown => write!(f, "promotions, working set or stalls are unknown"),
            Reason::Unclear(figures) => write!(f, "it is unclear how much would come back, at most: {figures}"),
            Reason::Shortest(figures) => write!(f, "the shortest threshold that is allowed: {figures}"),
            Reason::WouldBreak(figures) => write!(f, "too much would come back: {figures}"),
            Reason::BrokeLately { left, figures } => {
                write!(f, "a shorter threshold was wrong a while ago, waiting another {}: {figures}", short(*left))
            }
            Reason::BrokeOften { needed, figures } => {
                let (age, kept) = (short(figures.age), figures.kept.unwrap_or_default());
                write!(f, "{age} would have been right {kept} of the last day, {needed} is needed: {figures}")
            }
            Reason::Braked { brake, figures } => write!(f, "{brake}: {figures}"),
        }
    }
}
