//! One look at the machine: raw counters, as the kernel gives them.

use std::time::Duration;

use omr_kernel::hibernate::Hibernation;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::psi::{self, Resource};
use omr_kernel::stat::Stat;
use omr_kernel::{Kernel, clock, swap};
use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::cpu::Sides;

/// Raw counters and readings at one moment. `None` is what could not be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// This moment.
    pub at: Monotonic,
    /// Wall clock.
    pub wall: Duration,
    /// Time asleep since boot.
    pub asleep: Duration,
    /// CPU time of this process since its start.
    pub own_cpu: Duration,
    /// `/proc/stat`.
    pub stat: Option<Stat>,
    /// `/proc/meminfo`.
    pub memory: Option<Meminfo>,
    /// Stall time by cpu, io and memory.
    pub stall: [Option<Duration>; 3],
    /// CPU time of explicit background groups since the last snapshot.
    pub background: Option<Duration>,
    /// CPU time of foreground groups since the last snapshot.
    pub foreground: Option<Duration>,
    /// Swap devices: all, and free on all of them, and whether any is a disk.
    pub swap: Option<SwapSpace>,
    /// The machine can hibernate to its swap.
    pub hibernates: bool,
}

/// Swap space, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapSpace {
    /// All.
    pub total: Bytes,
    /// Free.
    pub free: Bytes,
    /// Any of it on a disk.
    pub on_disk: bool,
}

impl SwapSpace {
    /// Reads it; no swap at all is a total of zero.
    pub fn read(kernel: &Kernel) -> Option<Self> {
        let devices = swap::read(kernel).ok()?;
        Some(SwapSpace {
            total: devices.iter().map(|device| device.size).sum(),
            free: devices.iter().map(|device| device.free()).sum(),
            on_disk: devices.iter().any(|device| device.kind.is_disk()),
        })
    }
}

/// Whether the machine has what it takes to hibernate: a kernel that would, a device to write to,
/// and swap on a disk.
pub fn read_hibernates(kernel: &Kernel, swap: Option<SwapSpace>) -> bool {
    let hibernation = Hibernation::read(kernel);
    hibernation.is_available()
        && hibernation.resume.is_some_and(|device| !device.is_none())
        && swap.is_some_and(|swap| swap.on_disk)
}

impl Snapshot {
    /// Takes one. `hibernates` is handed in, since it hardly changes.
    pub fn take(kernel: &Kernel, sides: &mut Sides, hibernates: bool, buffer: &mut Vec<u8>) -> Self {
        Snapshot {
            at: clock::read_monotonic(),
            wall: clock::read_wall(),
            asleep: clock::read_asleep(),
            own_cpu: clock::read_own_cpu(),
            stat: Stat::read(kernel, buffer).ok(),
            memory: Meminfo::read(kernel, buffer).ok(),
            stall: Resource::ALL.map(|resource| psi::read_some_total(&kernel.proc, resource, buffer)),
            background: sides.background.sample(),
            foreground: sides.foreground.sample(),
            swap: SwapSpace::read(kernel),
            hibernates,
        }
    }
}
