//! The state of a group that was swept: its size, the end of its sweep, and its refaults since.
//!
//! The refault guard is here. A group into which more comes back within a minute than the guard allows
//! backs off: each time twice as long, unless a sweep in between did no harm.

use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::config::Guard;
use crate::signals::{End, Finished};

/// Refaults count against a sweep for this long after its end.
const ATTRIBUTION: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// The state of a group that was swept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Swept {
    /// The end of its last sweep; `None` while a sweep of it runs.
    pub ended: Option<Monotonic>,
    /// The least memory it had since then.
    pub size: Bytes,
    /// The most memory it had when a sweep began. A keep rule in percent is a share of this, so
    /// that repeated sweeps do not keep less and less.
    pub peak: Bytes,
    /// The memory it should have after the running sweep, by the figures the sweep began with.
    pub aim: Bytes,
    /// The last sweep was cut short: it goes on as soon as possible.
    pub unfinished: bool,
    /// The number of sweeps in a row that were cut short.
    pub tries: u32,
    /// Swap was short: the next sweep begins when there is some.
    pub swap_short: bool,
    /// The goal needed less than the group could lose: the next sweep begins when the goal needs
    /// more.
    #[serde(default)]
    pub cut_by_goal: bool,
    /// The start of the current minute of refaults, and the counter at that time; `None`: refaults
    /// do not count against a sweep any more.
    pub minute: Option<(Monotonic, Bytes)>,
    /// When memory was last given back to it; `None`: never.
    #[serde(default)]
    pub given_back: Option<Monotonic>,
    /// `None`: it is not backing off and has not been lately.
    pub backoff: Option<Backoff>,
}

impl Swept {
    /// Takes in how a sweep of this group ended.
    pub fn finished(&mut self, guard: &Guard, now: Monotonic, finished: &Finished) {
        self.ended = Some(now);
        // The job was made from older figures. If it is complete and the group is larger than the
        // job aimed at, the difference is growth.
        self.size = if finished.end == End::Complete { finished.size.min(self.aim) } else { finished.size };
        self.minute = self.minute.or_else(|| finished.refaults.map(|refaults| (now, refaults)));
        self.swap_short |= matches!(finished.end, End::SwapFloor | End::WriteBudget);
        self.unfinished = finished.end.is_cut_short();
        self.tries = if self.unfinished { self.tries.saturating_add(1) } else { 0 };
        if matches!(finished.end, End::Denied | End::Unsupported | End::Failed | End::NotSeen) {
            self.back_off(guard, now, None);
        }
    }

    /// Forgets a back-off when a sweep after it did no harm for as long as the back-off lasted.
    pub fn forgive(&mut self, now: Monotonic) {
        self.backoff = self.backoff.filter(|last| !last.is_forgiven(self.ended, now));
    }

    fn back_off(&mut self, guard: &Guard, now: Monotonic, refaults: Option<Bytes>) {
        self.backoff = Some(Backoff::after(self.backoff, self.ended, guard, now, refaults));
    }

    /// Takes in the refault counter of this tick. Returns how much came back in the current minute
    /// if that is more than allowed; the group then backs off.
    pub fn watch(&mut self, guard: &Guard, now: Monotonic, allowed: Bytes, refaults: Bytes) -> Option<Bytes> {
        if self.ended.is_some_and(|ended| now.since(ended) > ATTRIBUTION) {
            self.minute = None;
            return None;
        }
        let (began, base) = match self.minute {
            // A counter that went back begins anew.
            Some((began, base)) if base <= refaults => (began, base),
            _ => (now, refaults),
        };
        let bytes = refaults - base;
        let is_harm = bytes > allowed;
        self.minute = Some(if is_harm || now.since(began) >= MINUTE { (now, refaults) } else { (began, base) });
        if is_harm {
            self.back_off(guard, now, Some(bytes));
        }
        is_harm.then_some(bytes)
    }
}
