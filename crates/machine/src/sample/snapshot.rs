//! A snapshot of the machine: raw counters as the kernel gives them.

use std::time::Duration;

use omr_kernel::Kernel;
use omr_kernel::hibernate::Hibernation;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::psi::{self, Resource};
use omr_kernel::stat::Stat;
use omr_kernel::swap::{self, SwapDevice};
use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::sample::cpu::CpuByClass;

/// Raw counters and readings at one moment; `None`: could not be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment of the snapshot.
    pub at: Monotonic,
    /// The wall clock, since 1970.
    pub wall: Duration,
    /// The time that the machine slept since boot.
    pub asleep: Duration,
    /// CPU time of this process since its start.
    pub own_cpu: Duration,
    /// `/proc/stat`.
    pub stat: Option<Stat>,
    /// `/proc/meminfo`.
    pub memory: Option<Meminfo>,
    /// Stall time for CPU, I/O and memory.
    pub stall: [Option<Duration>; 3],
    /// CPU time of explicit background groups since the last snapshot.
    pub background: Option<Duration>,
    /// CPU time of foreground groups since the last snapshot.
    pub foreground: Option<Duration>,
    /// Swap space of all devices together.
    pub swap: Option<SwapSpace>,
    /// The machine can hibernate to its swap.
    pub hibernates: bool,
}

/// Swap space of all devices together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapSpace {
    /// Total size.
    pub total: Bytes,
    /// Free space.
    pub free: Bytes,
    /// At least one device is on a disk.
    pub on_disk: bool,
    /// Free space on zram devices with the priority of a disk or a lower one. A hibernation image
    /// cannot use it.
    pub free_outside_image: Bytes,
}

impl SwapSpace {
    /// Reads the swap devices. Without swap, the total is zero.
    pub fn read(kernel: &Kernel) -> Option<Self> {
        let devices = swap::read(kernel).ok()?;
        let disk = devices.iter().filter(|device| device.kind.is_disk()).map(|device| device.priority).max();
        let is_beside = |device: &&SwapDevice| !device.kind.is_disk() && Some(device.priority) <= disk;
        Some(SwapSpace {
            total: devices.iter().map(|device| device.size).sum(),
            free: devices.iter().map(|device| device.free()).sum(),
            on_disk: disk.is_some(),
            free_outside_image: devices.iter().filter(is_beside).map(SwapDevice::free).sum(),
        })
    }
}

/// The same values for the policy.
impl From<SwapSpace> for omr_policy::Swap {
    fn from(SwapSpace { total, free, on_disk, free_outside_image }: SwapSpace) -> Self {
        Self { total, free, on_disk, free_outside_image }
    }
}

/// Returns true if the machine can hibernate: the kernel allows it, a resume device is set, and
/// there is swap on a disk.
pub fn read_hibernates(kernel: &Kernel, swap: Option<SwapSpace>) -> bool {
    let hibernation = Hibernation::read(kernel);
    hibernation.is_available() && hibernation.resume.is_some() && swap.is_some_and(|swap| swap.on_disk)
}

impl Snapshot {
    /// Reads a snapshot. `hibernates` is a parameter because it seldom changes.
    pub fn read(kernel: &Kernel, cpu: &mut CpuByClass, hibernates: bool, buffer: &mut Vec<u8>) -> Self {
        Snapshot {
            at: kernel.clock.monotonic(),
            wall: kernel.clock.wall(),
            asleep: kernel.clock.asleep(),
            own_cpu: kernel.clock.own_cpu(),
            stat: Stat::read(kernel, buffer).ok(),
            memory: Meminfo::read(kernel, buffer).ok(),
            stall: Resource::ALL.map(|resource| psi::Totals::read(&kernel.proc, resource, buffer).some),
            background: cpu.background.sample(),
            foreground: cpu.foreground.sample(),
            swap: SwapSpace::read(kernel),
            hibernates,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use omr_testkit::{FakeRoot, Release};

    use super::*;

    #[test]
    fn zram_that_is_filled_after_a_disk_is_no_room_for_an_image() {
        let root = tempfile::tempdir().expect("a directory");
        for dir in ["proc", "sys"] {
            fs::create_dir(root.path().join(dir)).expect("a directory");
        }
        let free_outside_image = |lines: &str| {
            let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
            fs::write(root.path().join("proc/swaps"), format!("{head}{lines}")).expect("written");
            SwapSpace::read(&Kernel::open(root.path()).expect("a root")).expect("swap").free_outside_image
        };
        let disk = "/dev/vdb partition 4096 1024 10\n";
        assert_eq!(free_outside_image(&format!("{disk}/dev/zram0 partition 8192 2048 5\n")), Bytes::kib(6144));
        assert_eq!(free_outside_image(&format!("{disk}/dev/zram0 partition 8192 2048 10\n")), Bytes::kib(6144));
        assert_eq!(free_outside_image(&format!("{disk}/dev/zram0 partition 8192 2048 100\n")), Bytes::ZERO);
        assert_eq!(free_outside_image("/dev/zram0 partition 8192 2048 5\n"), Bytes::ZERO);
        assert_eq!(free_outside_image(disk), Bytes::ZERO);
    }

    #[test]
    fn a_machine_hibernates_with_a_resume_device_and_swap_on_a_disk() {
        let root = FakeRoot::new().sys("power/state", "freeze mem disk\n").sys("power/disk", "[platform] shutdown\n");
        let on_disk =
            Some(SwapSpace { total: Bytes::mib(1), free: Bytes::ZERO, on_disk: true, free_outside_image: Bytes::ZERO });
        let in_memory = on_disk.map(|swap| SwapSpace { on_disk: false, ..swap });
        let hibernates = |resume: &str, swap| {
            root.write("sys/power/resume", resume);
            read_hibernates(&Kernel::open(root.path()).expect("a root"), swap)
        };
        assert!(hibernates("254:16\n", on_disk));
        assert!(!hibernates("254:16\n", in_memory) && !hibernates("254:16\n", None));
        assert!(!hibernates("0:0\n", on_disk));
        root.write("sys/power/disk", "[disabled]\n");
        assert!(!hibernates("254:16\n", on_disk));
    }

    #[test]
    fn a_snapshot_holds_what_could_be_read_and_nothing_else() {
        let root = FakeRoot::captured(Release::V6_12);
        let read = || {
            let kernel = Kernel::open(root.path()).expect("a root");
            Snapshot::read(&kernel, &mut CpuByClass::default(), true, &mut Vec::new())
        };
        let all = read();
        assert!(all.hibernates && all.at.0 > 0 && all.wall > Duration::ZERO);
        assert!(all.stat.is_some() && all.memory.is_some() && all.swap.is_some());
        assert_eq!(all.stall.map(|time| time.is_some()), [true; 3]);
        root.remove("proc/meminfo");
        root.remove("proc/pressure/io");
        let some = read();
        assert_eq!((some.memory, some.stall.map(|time| time.is_some())), (None, [true, false, true]));
    }
}
