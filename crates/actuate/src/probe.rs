//! Probes by writes that change nothing: an amount of 0, and an empty list of ranges. Only for a
//! `Kernel` opened at `/`: below the root of a test no kernel answers.
//!
//! Source: mm/memcontrol.c (`memory.reclaim`), mm/madvise.c.

use omr_kernel::probe::Support;
use omr_kernel::{Dir, Result};
use serde::Serialize;

use crate::{Actuator, Advice, Outcome, madvise};

/// The keys that a group's `memory.reclaim` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReclaimKeys {
    /// The outcome of a write of an amount without a key (Linux 5.19).
    pub amount: Outcome,
    /// True if `swappiness=0` to `200` works (Linux 6.11).
    pub swappiness: bool,
    /// True if `swappiness=max`, anonymous memory only, works (Linux 6.16).
    pub swappiness_max: bool,
    /// True if `writeback=wait` works (omr's patches for Linux 7.3).
    pub writeback_wait: bool,
}

/// Writes an amount of 0 bytes to a group's `memory.reclaim`, alone and with each key. The kernel
/// parses the whole line, and then has nothing to reclaim (tried on 6.1 and 6.12). An empty line is
/// never written: up to 6.1 it means everything.
pub fn reclaim_keys(actuator: &mut dyn Actuator, group: &Dir) -> Result<ReclaimKeys> {
    let mut write = |line| actuator.write(group, "memory.reclaim", line);
    let amount = write("0")?;
    let works = amount == Outcome::Done;
    let swappiness = works && write("0 swappiness=60")? == Outcome::Done;
    let swappiness_max = swappiness && write("0 swappiness=max")? == Outcome::Done;
    let writeback_wait = swappiness && write("0 writeback=wait")? == Outcome::Done;
    Ok(ReclaimKeys { amount, swappiness, swappiness_max, writeback_wait })
}

/// Probes one advice of `process_madvise` (Linux 5.10) with an empty list of ranges.
pub fn process_madvise(advice: Advice) -> Support {
    Support::of(madvise::probe(advice))
}
