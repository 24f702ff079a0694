//! `/proc/sys/vm/compact_memory` (Linux 2.6.35) and `/proc/sys/vm/stat_refresh` (4.7): compaction
//! of free memory into large blocks.

use omr_kernel::{Kernel, Result};

use crate::{Actuator, Outcome};

/// Compacts all zones: writes `1` to `/proc/sys/vm/compact_memory`. The call returns when all zones
/// are done; only a fatal signal ends it earlier. Source: mm/compaction.c.
pub fn compact(kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<Outcome> {
    actuator.write(&kernel.proc, "sys/vm/compact_memory", "1")
}

/// Number of reads by [`drain_per_cpu_lists`]. Each read returns an eighth of a list's limit to the
/// zones.
const DRAINS: usize = 16;

/// Returns most of the free pages in the per-CPU lists to the zones. These pages are scattered, and
/// the allocator counts no block as free while one of its pages is in such a list.
///
/// Each read of `/proc/sys/vm/stat_refresh` (root only) makes every CPU fold its counters and,
/// since 6.7, shrink its lists (`refresh_cpu_vm_stats()` and `decay_pcp_high()`, mm/vmstat.c). Only
/// the folding is documented. An idle machine shrinks the lists by itself, an eighth a second.
/// Where the file does not exist, this function does nothing.
pub fn drain_per_cpu_lists(kernel: &Kernel) {
    for _ in 0..DRAINS {
        if !matches!(kernel.proc.read_optional("sys/vm/stat_refresh"), Ok(Some(_))) {
            return;
        }
    }
}
