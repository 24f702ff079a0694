//! Effects: what a part of the daemon asks of the others. A part changes its own data and returns
//! effects. The daemon carries them out in their order.

use std::path::PathBuf;

use omr_history::ledger::Entry;
use omr_machine::groups::class::Assignment;
use omr_policy::rank::ProcessId;
use omr_policy::{Class, Decision, Reason};

use crate::worker::Order;

/// Something that the daemon does for a part.
pub enum Effect {
    /// The decision replaces the last one of the policy.
    Act(Decision),
    /// The running sweep ends for this reason, if one runs.
    StopSweep(Reason),
    /// The worker ends its order.
    StopWork,
    /// The waiting preparation begins, if there is one and the worker is free.
    BeginPreparing,
    /// The worker gets an order.
    Order(Order),
    /// The write budget in the policy's state has changed, and is saved.
    SaveWrites,
    /// The ledger gets a line.
    Record(Entry),
    /// The group and its processes lose no more memory.
    SpareGroup(SparedGroup),
    /// The process and its group lose no more memory: a user stated that it is in the foreground.
    SpareProcess(ProcessId),
}

/// A group that loses no more memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparedGroup {
    /// The path below the mount.
    pub path: PathBuf,
    /// The class of the group.
    pub class: Class,
    /// The origin of the class, in words.
    pub origin: String,
}

impl SparedGroup {
    /// The group at `path`, if its class is not background.
    pub fn new(path: PathBuf, assignment: &Assignment) -> Option<Self> {
        let Assignment { class, origin, .. } = assignment;
        (*class != Class::Background).then(|| SparedGroup { path, class: *class, origin: origin.to_string() })
    }
}
