//! The score of a process: a number that explains itself.

use core::fmt;
use core::time::Duration;

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::reason::short;

/// The score of a process, with its parts: the highest total goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// The kernel's own figure, -1000 (never killed) to 1000 (killed first).
    pub oom_score_adj: i16,
    /// The process has been unused for this long.
    pub unused: Duration,
    /// Its anonymous memory.
    pub anon: Bytes,
    /// Its memory in swap.
    pub swapped: Bytes,
}

impl Score {
    /// 0 to 1000 points for `oom_score_adj`, half of its distance from -1000.
    pub fn expendable(&self) -> i32 {
        (i32::from(self.oom_score_adj.clamp(-1000, 1000)) + 1000) / 2
    }

    /// 0 to 1000 points for the time unused: 100 for each doubling of seconds, 1000 from 17 minutes
    /// on.
    pub fn age(&self) -> i32 {
        doublings(self.unused.as_secs())
    }

    /// 0 to 250 points for the memory to gain: 25 for each doubling of MiB, 250 from 1 GiB on. This
    /// is little compared with the age, because no more is reclaimed than the machine lacks.
    pub fn gain(&self) -> i32 {
        doublings(self.anon.0 >> 20) / 4
    }

    /// 0 to 250 points off for the memory in swap: bringing that back, when somebody returns to the
    /// process, comes on top of bringing back the gain.
    pub fn cost(&self) -> i32 {
        doublings(self.swapped.0 >> 20) / 4
    }

    /// All points together.
    pub fn total(&self) -> i32 {
        self.expendable() + self.age() + self.gain() - self.cost()
    }
}

/// 100 points for each doubling of `n`, at most 1000.
fn doublings(n: u64) -> i32 {
    let bits = n.saturating_add(1).ilog2();
    i32::try_from(bits).unwrap_or(i32::MAX).saturating_mul(100).min(1000)
}

/// Such as `1625: oom_score_adj 300 (650), unused for 12 min (900), 300 MiB anonymous (200),
/// 40 MiB in swap (-125)`.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: oom_score_adj {} ({}), unused for {} ({}), {} anonymous ({}), {} in swap (-{})",
            self.total(),
            self.oom_score_adj,
            self.expendable(),
            short(self.unused),
            self.age(),
            self.anon,
            self.gain(),
            self.swapped,
            self.cost(),
        )
    }
}
