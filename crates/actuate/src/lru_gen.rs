//! Commands of the multi-generational LRU: writes to `/sys/kernel/debug/lru_gen` (Linux 6.1) make a
//! generation (aging) and evict old generations. Source: mm/vmscan.c.

use omr_kernel::lru_gen::{FILE, Lists};
use omr_kernel::{Kernel, Result};
use omr_units::Pages;

use crate::{Actuator, Outcome};

/// Runs aging: makes a new youngest generation. Pages that were used since the last aging move into
/// the generation that was the youngest; all others stay. The kernel walks the page tables of the
/// group's processes, and nothing interrupts the walk.
///
/// Writes `+ ID NODE YOUNGEST 1 1`: anonymous memory as well, and no short cuts. Without the first
/// 1, and without free swap, cold pages would end up in the youngest generation (tried on 6.12). On
/// 7.x this number is a swappiness, and any value but 0 means the same.
///
/// `Done` proves nothing: 6.x returns it also if another program was quicker. Read the generations
/// again. `Partial`: on 7.x, another program was quicker. `Unsupported`: the group no longer
/// exists, or has newer generations. Source: mm/vmscan.c, run_aging().
pub fn run_aging(actuator: &mut dyn Actuator, kernel: &Kernel, lists: &Lists) -> Result<Outcome> {
    let Lists { id, node, .. } = lists;
    actuator.write(&kernel.sys, FILE, &format!("+ {id} {node} {} 1 1", lists.youngest().number))
}

/// The memory that may be evicted, by swappiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionOrder {
    /// Anonymous and shared memory only: swappiness `max` (Linux 6.16).
    AnonOnly,
    /// Swappiness `200`: anonymous and shared memory while the oldest generation has any, then its
    /// file memory. A younger generation comes after both.
    AnonFirst,
}

/// Evicts up to `pages` pages of the generations up to `up_to`, which must be older than the
/// youngest two. The kernel checks each page, and keeps those that were used since the last aging.
///
/// Writes `- ID NODE UP_TO SWAPPINESS PAGES`. Pages on their way to a swap disk do not count, so
/// only time bounds their number; the write ends soon after a signal. It ignores `memory.min` and
/// `memory.low`, and does not touch groups below this one.
///
/// `Done` proves nothing here either. `Unsupported`: no such group, `up_to` is too young, or no
/// such swappiness. Source: mm/vmscan.c, run_eviction().
pub fn evict(
    actuator: &mut dyn Actuator,
    kernel: &Kernel,
    lists: &Lists,
    up_to: u64,
    order: EvictionOrder,
    pages: Pages,
) -> Result<Outcome> {
    let Lists { id, node, .. } = lists;
    let swappiness = match order {
        EvictionOrder::AnonOnly => "max",
        EvictionOrder::AnonFirst => "200",
    };
    actuator.write(&kernel.sys, FILE, &format!("- {id} {node} {up_to} {swappiness} {}", pages.0))
}
