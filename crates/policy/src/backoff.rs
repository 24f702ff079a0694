//! The refault guard's back-off: the time for which a group rests after too much came back to it.

use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::config::Guard;

/// A time in which the group is not swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// Its end.
    pub until: Monotonic,
    /// How long it is. The next one is twice as long.
    pub length: Duration,
    /// Bytes that came back in a minute; `None`: the group could not be reclaimed.
    pub refaults: Option<Bytes>,
}

impl Backoff {
    /// The back-off that begins now: twice as long as the last one, unless a sweep in between did no
    /// harm. `swept`: the end of the group's last sweep.
    pub fn after(
        last: Option<Self>,
        swept: Option<Monotonic>,
        guard: &Guard,
        now: Monotonic,
        refaults: Option<Bytes>,
    ) -> Self {
        let length = match last.filter(|last| !last.is_forgiven(swept, now)) {
            // These are still pages of the sweep that it is backing off for.
            Some(last) if swept.is_some_and(|swept| swept < last.until) || now < last.until => last.length,
            Some(last) => last.length.saturating_mul(2),
            None => guard.backoff,
        };
        let length = length.min(guard.backoff_max);
        Backoff { until: now + length, length, refaults }
    }

    /// A sweep after it did no harm for as long as it lasted.
    pub fn is_forgiven(&self, swept: Option<Monotonic>, now: Monotonic) -> bool {
        swept.is_some_and(|swept| swept >= self.until && now.since(swept) >= self.length)
    }
}
