//! The write budget: how much may be written to swap on disk, counted in whole hours.
//!
//! The daemon adds what each sweep and each hint wrote. The sums survive a restart, as the daemon
//! saves them.

use alloc::collections::VecDeque;

use omr_units::{Budget, Bytes};
use serde::{Deserialize, Serialize};

/// Bytes written to swap on disk in each of the last 24 hours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Writes {
    /// Hours since 1970 and the bytes written in each, oldest first.
    hours: VecDeque<(u64, Bytes)>,
}

impl Writes {
    const KEPT_HOURS: u64 = 24;

    /// Records bytes written in this hour.
    pub fn add(&mut self, hour: u64, bytes: Bytes) {
        if bytes.0 == 0 {
            // There is nothing to record, so a wrong clock must not drop older hours.
            return;
        }
        self.settle(hour);
        match self.hours.back_mut() {
            Some((last, sum)) if *last == hour => *sum += bytes,
            _ => self.hours.push_back((hour, bytes)),
        }
    }

    /// Bytes written in the last `hours`, this one included.
    pub fn within(&self, hour: u64, hours: u32) -> Bytes {
        // An hour in the future (the clock was set back) counts as now: doubt means fewer writes.
        self.hours.iter().filter(|(h, _)| hour.saturating_sub(*h) < u64::from(hours)).map(|(_, bytes)| *bytes).sum()
    }

    /// The remaining part of a budget; `Bytes::MAX`: there is no budget.
    pub fn left(&self, hour: u64, budget: Option<Budget>) -> Bytes {
        budget.map_or(Bytes::MAX, |budget| budget.bytes - self.within(hour, budget.hours))
    }

    /// Drops hours that are too old, and adds hours in the future to this one.
    pub fn settle(&mut self, hour: u64) {
        let mut future = Bytes::ZERO;
        self.hours.retain(|&(h, bytes)| {
            if h > hour {
                future += bytes;
            }
            h <= hour && hour - h < Self::KEPT_HOURS
        });
        if future.0 > 0 {
            match self.hours.back_mut() {
                Some((last, sum)) if *last == hour => *sum += future,
                _ => self.hours.push_back((hour, future)),
            }
        }
    }
}
