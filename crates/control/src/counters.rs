//! Counters since the daemon started, for metrics.

use std::time::Duration;

use omr_units::{Bytes, millis};
use serde::{Deserialize, Serialize};

/// The upper bounds of [`StopTimes::within`], in milliseconds. Sweeps promise 100 ms.
pub const STOPS_MS: [u64; 9] = [5, 10, 20, 50, 100, 200, 500, 1000, 5000];

/// Sums since the daemon started. A restart begins at zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Decisions by their kind.
    pub decisions: Vec<DecisionCount>,
    /// Memory that was reclaimed, by method.
    pub reclaimed: Vec<Reclaimed>,
    /// Refaults in the minutes after sweeps.
    pub came_back: Bytes,
    /// The time that tasks of swept groups waited for memory, beyond that before the sweeps.
    pub regret: Duration,
    /// Written to swap by sweeps, preparations and hints, as far as the kernel tells them apart.
    pub swap_written: Bytes,
    /// The times until sweeps stopped.
    pub stops: StopTimes,
    /// CPU time of the daemon.
    pub cpu: Duration,
}

/// Decisions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCount {
    /// What was decided.
    pub act: Act,
    /// The kind of the reason, such as `nothing-to-gain`.
    pub reason: String,
    /// Sweeps of groups; of other decisions, how often one of this kind followed one of another.
    pub count: u64,
    /// The time for which they were in force.
    pub time: Duration,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// No sweep runs.
    Hold,
    /// A sweep begins or goes on.
    Sweep,
    /// The running sweep ends.
    Stop,
}

impl Act {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Act::Hold => "hold",
            Act::Sweep => "sweep",
            Act::Stop => "stop",
        }
    }
}

/// Memory that was reclaimed by one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// The file of the kernel, such as `memory.reclaim`; `process_madvise` for hints, `prepare` for
    /// preparations, which may use several.
    pub method: String,
    /// Anonymous memory.
    pub anon: Bytes,
    /// Page cache.
    pub file: Bytes,
    /// Moved to slower memory, not freed.
    pub demoted: Bytes,
}

/// The times from the moment in which a sweep was told to stop until it had stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopTimes {
    /// For each of [`STOPS_MS`], the stops that took this long at most.
    pub within: [u64; STOPS_MS.len()],
    /// All stops.
    pub count: u64,
    /// The sum of their times.
    pub sum: Duration,
}

impl StopTimes {
    /// Adds a stop.
    pub fn add(&mut self, time: Duration) {
        for (bound, stops) in STOPS_MS.iter().zip(&mut self.within) {
            *stops += u64::from(millis(time) <= *bound);
        }
        self.count += 1;
        self.sum += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_counts_for_its_own_time_and_for_all_longer_ones() {
        let mut stops = StopTimes::default();
        for ms in [3, 20, 94, 6000] {
            stops.add(Duration::from_millis(ms));
        }
        assert_eq!(stops.within, [1, 1, 2, 2, 3, 3, 3, 3, 3]);
        assert_eq!((stops.count, stops.sum), (4, Duration::from_millis(6117)));
    }
}
