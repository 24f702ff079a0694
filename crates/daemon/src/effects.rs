//! Effects: what a part of the daemon asks of the others. A part changes its own data, and returns
//! effects; the loop carries them out in their order.

use omr_history::ledger::Entry;
use omr_policy::{Decision, Reason};
use omr_units::Bytes;

use crate::worker::Order;

/// Something that the loop does for a part.
pub enum Effect {
    /// The decision takes the place of the policy's last one.
    Act(Decision),
    /// The running sweep ends for this reason, if one runs.
    StopSweep(Reason),
    /// The worker ends what it does.
    StopWork,
    /// The worker is free: the preparation that waits for it begins, if one does.
    BeginPreparing,
    /// The worker gets something to do.
    Order(Order),
    /// This much was written to swap on a disk, which the write budget pays for.
    SpendWrites(Bytes),
    /// A line of the ledger.
    Record(Entry),
}
