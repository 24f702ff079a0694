//! `/proc/PID/clear_refs` (Linux 2.6.22): clears the accessed bits of a process's pages.

use omr_kernel::{Dir, Result};

use crate::{Actuator, Outcome};

/// Clears the accessed bits of all pages of a process: writes `1` to `/proc/PID/clear_refs`. The
/// call holds the process's `mmap_lock` for writing. Other readers of the accessed bits, among them
/// reclaim, no longer see the use before the call. Source: fs/proc/task_mmu.c, clear_refs_write().
pub fn clear_referenced(actuator: &mut dyn Actuator, process: &Dir) -> Result<Outcome> {
    actuator.write(process, "clear_refs", "1")
}
