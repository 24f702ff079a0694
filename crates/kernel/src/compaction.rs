//! Compaction of free memory into large blocks.

use crate::actuate::{Actuator, Outcome};
use crate::{Kernel, Result};

/// Compacts all zones: `1` to `/proc/sys/vm/compact_memory` (2.6.35). Returns when they are done; only a
/// fatal signal ends it before. Source: mm/compaction.c.
pub fn compact(kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<Outcome> {
    actuator.write(&kernel.proc, "sys/vm/compact_memory", "1")
}

/// How often [`drain_per_cpu_lists`] reads: each time a list gives back an eighth of what it may hold.
const DRAINS: usize = 16;

/// Gives most of the free pages that each CPU keeps for itself back to the zones. They are scattered, and no block is free
/// that one of them is part of.
///
/// Each read of `/proc/sys/vm/stat_refresh` (4.7, root only) makes every CPU fold its counters, and while it is at it shrink
/// its lists (`refresh_cpu_vm_stats()` and `decay_pcp_high()`, mm/vmstat.c; 6.7). Documented is the first only; an idle machine
/// does the second by itself, an eighth a second. Where the file is missing nothing happens.
pub fn drain_per_cpu_lists(kernel: &Kernel) {
    for _ in 0..DRAINS {
        if !matches!(kernel.proc.read_optional("sys/vm/stat_refresh"), Ok(Some(_))) {
            return;
        }
    }
}
