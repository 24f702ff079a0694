//! While a sweep runs: has somebody begun to work?

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::Permyriad;
use serde::{Deserialize, Serialize};

use crate::config::Stop;
use crate::idle::share;
use crate::reason::Reason;

/// Looks at the CPU time of everything outside the background groups, some fifty times a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    allowed: Permyriad,
    previous: Option<(Duration, Duration)>,
}

impl Watch {
    /// A watch for a sweep that began under a `steady` load, as a share of one CPU.
    pub fn new(config: &Stop, steady: Permyriad) -> Self {
        Watch { allowed: Permyriad(steady.0.saturating_add(config.cpu.0)), previous: None }
    }

    /// Takes in a sample: CPU time `used` outside background groups within `dt`. Two samples count
    /// together, so that a timer tick that falls into one of them is not mistaken for work.
    /// Returns why the sweep must end.
    pub fn sample(&mut self, dt: Duration, used: Option<Duration>) -> Option<Reason> {
        let Some(used) = used else {
            return Some(Reason::Unknown { signal: "the CPU time of foreground work".to_owned() });
        };
        let (dt_before, used_before) = self.previous.replace((dt, used)).unwrap_or_default();
        if dt_before.is_zero() {
            return None;
        }
        let used = share(used + used_before, dt + dt_before);
        (used > self.allowed).then_some(Reason::WorkBegan { used, allowed: self.allowed })
    }
}
