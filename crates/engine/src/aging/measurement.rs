//! The ages that a tracker of processes measured.

use std::path::PathBuf;
use std::time::Duration;

use omr_policy::age::Bounds;
use omr_units::Bytes;

/// The ages of one group's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAges {
    /// The group's path below the mount.
    pub path: PathBuf,
    /// Private and shared memory that is mapped.
    pub memory: Bytes,
    /// For each time: the memory that was unused for it.
    pub idle: Vec<(Duration, Bounds)>,
}

/// The result of measuring processes.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// The ages by group.
    pub groups: Vec<GroupAges>,
    /// The number of samples of each region.
    pub samples: u64,
    /// The mean size of a region; `None`: the tracker has no regions.
    pub region: Option<Bytes>,
    /// The number of processes that were measured to the end.
    pub processes: usize,
    /// The number of processes that could not be measured, or have ended.
    pub left_out: usize,
    /// The CPU time of the kernel's DAMON thread; zero without one.
    pub cpu: Duration,
}
