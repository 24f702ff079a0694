//! Compaction of free memory into large blocks.

use crate::actuate::{Actuator, Outcome};
use crate::{Kernel, Result};

/// Compacts all zones: `1` to `/proc/sys/vm/compact_memory` (2.6.35). Returns when they are done; only a
/// fatal signal ends it before. Source: mm/compaction.c.
pub fn compact(kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<Outcome> {
    actuator.write(&kernel.proc, "sys/vm/compact_memory", "1")
}
