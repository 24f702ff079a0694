//! While a sweep runs: has somebody begun to work?

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::Permyriad;
use serde::{Deserialize, Serialize};

use crate::config::Stop;
use crate::idle::share;
use crate::reason::Reason;

/// The steady load is measured anew over this time: long enough for a load that comes in bursts.
const STEADY: Duration = Duration::from_secs(1);

/// Looks at the CPU time of everything outside the background groups, some fifty times a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// Allowed on top of the steady load.
    above: Permyriad,
    steady: Permyriad,
    /// The sample before.
    previous: Sample,
    /// All samples since the steady load was last measured.
    since: Sample,
    /// CPU time of samples in which no time passed.
    owed: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sample {
    dt: Duration,
    used: Duration,
}

impl Sample {
    fn with(self, other: Sample) -> Sample {
        Sample { dt: self.dt.saturating_add(other.dt), used: self.used.saturating_add(other.used) }
    }

    fn share(self) -> Permyriad {
        share(self.used, self.dt)
    }
}

impl Watch {
    /// A watch for a sweep that began under a `steady` load, as a share of one CPU.
    pub fn new(config: &Stop, steady: Permyriad) -> Self {
        let none = Sample::default();
        Watch { above: config.cpu, steady, previous: none, since: none, owed: Duration::ZERO }
    }

    /// Takes in a sample: CPU time `used` outside background groups within `dt`. Two samples count
    /// together, so that a timer tick that falls into one of them is not mistaken for work.
    /// Returns why the sweep must end.
    pub fn sample(&mut self, dt: Duration, used: Option<Duration>) -> Option<Reason> {
        let Some(used) = used else {
            return Some(Reason::Unknown { signal: "the CPU time of foreground work".to_owned() });
        };
        let used = used.saturating_add(core::mem::take(&mut self.owed));
        if dt.is_zero() {
            self.owed = used;
            return None;
        }
        let sample = Sample { dt, used };
        let previous = core::mem::replace(&mut self.previous, sample);
        let allowed = Permyriad(self.steady.0.saturating_add(self.above.0));
        // A load that has gone must not hide one that comes.
        self.since = self.since.with(sample);
        if self.since.dt >= STEADY {
            self.steady = self.steady.min(core::mem::take(&mut self.since).share());
        }
        if previous.dt.is_zero() {
            return None;
        }
        let used = previous.with(sample).share();
        (used > allowed).then_some(Reason::WorkBegan { used, allowed })
    }
}
