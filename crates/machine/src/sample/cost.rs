//! What a write to swap costs on this machine: the disks, their media, and the power source.

use omr_kernel::Kernel;
use omr_kernel::medium::{self, Medium};
use omr_kernel::power_supply::{self, PowerSource};
use omr_kernel::swap::{self, SwapDevice};
use omr_policy::cost::{self, CostFacts, Disk, Power};
use omr_units::Bytes;

/// Where the kernel knows of no supply and no battery, it is asked again after this many readings.
const ASK_AGAIN: u32 = 10;

/// Reads the costs again and again. The disks are read when the swap devices have changed.
#[derive(Debug, Default)]
pub struct CostReader {
    /// The devices that the disks were read for, with nothing in use.
    devices: Option<Vec<SwapDevice>>,
    disks: Vec<Disk>,
    /// No supply and no battery for this many readings more.
    without_supply: u32,
}

impl CostReader {
    /// Reads the costs. What cannot be read is unknown.
    pub fn read(&mut self, kernel: &Kernel) -> CostFacts {
        let devices = swap::read(kernel).unwrap_or_default();
        let memory_first = memory_first(&devices);
        let unused: Vec<SwapDevice> =
            devices.into_iter().map(|device| SwapDevice { used: Bytes::ZERO, ..device }).collect();
        if self.devices.as_ref() != Some(&unused) {
            self.disks = unused.iter().flat_map(|device| disks(kernel, device)).collect();
            self.devices = Some(unused);
        }
        CostFacts { disks: self.disks.clone(), power: self.power(kernel), memory_first }
    }

    /// A machine without any entry gets one when a driver is loaded, which is seldom.
    fn power(&mut self, kernel: &Kernel) -> Power {
        if self.without_supply > 0 {
            self.without_supply -= 1;
            return Power::Mains;
        }
        if !power_supply::has_entries(kernel) {
            self.without_supply = ASK_AGAIN - 1;
        }
        match power_supply::read(kernel) {
            PowerSource::Mains => Power::Mains,
            PowerSource::Battery => Power::Battery,
            PowerSource::Unknown => Power::Unknown,
        }
    }
}

/// The disks below a swap device.
fn disks(kernel: &Kernel, device: &SwapDevice) -> Vec<Disk> {
    let disks = medium::read_disks(kernel, device).into_iter();
    disks.map(|disk| Disk { medium: medium_of(disk.medium), size: disk.size }).collect()
}

/// The medium, by what a write to it costs.
pub fn medium_of(medium: Medium) -> cost::Medium {
    match medium {
        Medium::Memory => cost::Medium::Memory,
        Medium::Nvme | Medium::Ssd => cost::Medium::Ssd,
        Medium::Rotational => cost::Medium::Rotational,
        Medium::Emmc | Medium::SdCard | Medium::Removable => cost::Medium::Card,
        Medium::Network | Medium::Unknown => cost::Medium::Unknown,
    }
}

/// Free space on zram of a higher priority than any disk has.
fn memory_first(devices: &[SwapDevice]) -> Bytes {
    let disk = devices.iter().filter(|device| device.kind.is_disk()).map(|device| device.priority).max();
    let first = devices.iter().filter(|device| !device.kind.is_disk() && Some(device.priority) > disk);
    first.map(SwapDevice::free).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const HEAD: &str = "Filename\tType\tSize\tUsed\tPriority\n";

    struct Root(tempfile::TempDir);

    impl Root {
        /// A machine with a virtual disk that does not rotate.
        fn new() -> Self {
            let root = Root(tempfile::tempdir().expect("a directory"));
            root.write("sys/class/block/vda/queue/rotational", "0\n");
            root.write("sys/class/block/vda/size", "4096\n");
            root
        }

        fn write(&self, path: impl AsRef<Path>, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        }

        /// Reads with these lines in `/proc/swaps`.
        fn read(&self, reader: &mut CostReader, lines: &str) -> CostFacts {
            self.write("proc/swaps", &format!("{HEAD}{lines}"));
            reader.read(&Kernel::open(self.0.path()).expect("a root"))
        }
    }

    fn disk(medium: cost::Medium, kib: u64) -> Disk {
        Disk { medium, size: Some(Bytes::kib(kib)) }
    }

    #[test]
    fn disks_are_read_when_the_swap_devices_change() {
        let (root, mut reader) = (Root::new(), CostReader::default());
        let ssd = vec![disk(cost::Medium::Ssd, 2048)];
        assert_eq!(root.read(&mut reader, "/dev/vda partition 1000 0 -2\n").disks, ssd);
        // What is in use changes all the time.
        root.write("sys/class/block/vda/queue/rotational", "1\n");
        assert_eq!(root.read(&mut reader, "/dev/vda partition 1000 500 -2\n").disks, ssd);
        let both = [disk(cost::Medium::Rotational, 2048), Disk { medium: cost::Medium::Unknown, size: None }];
        let lines = "/dev/vda partition 1000 500 -2\n/dev/vdz partition 300 0 -3\n";
        assert_eq!(root.read(&mut reader, lines).disks, both);
        assert_eq!(root.read(&mut reader, "").disks, []);
    }

    #[test]
    fn zram_that_is_filled_before_every_disk_comes_first() {
        let first = |lines: &str| Root::new().read(&mut CostReader::default(), lines).memory_first;
        let disk = "/dev/vda partition 1000 0 5\n";
        assert_eq!(first(&format!("{disk}/dev/zram0 partition 300 100 100\n")), Bytes::kib(200));
        assert_eq!(first(&format!("{disk}/dev/zram0 partition 300 100 5\n")), Bytes::ZERO);
        assert_eq!(first(&format!("{disk}/dev/zram0 partition 300 100 4\n")), Bytes::ZERO);
        assert_eq!(first("/dev/zram0 partition 300 100 4\n"), Bytes::kib(200));
        assert_eq!(first(disk), Bytes::ZERO);
    }

    #[test]
    fn the_cord_is_noticed_at_once_and_a_new_supply_after_ten_readings() {
        let (root, mut reader) = (Root::new(), CostReader::default());
        let mut power = |root: &Root| root.read(&mut reader, "").power;
        assert_eq!(power(&root), Power::Mains);
        root.write("sys/class/power_supply/AC/type", "Mains\n");
        root.write("sys/class/power_supply/AC/online", "0\n");
        root.write("sys/class/power_supply/BAT0/type", "Battery\n");
        root.write("sys/class/power_supply/BAT0/status", "Discharging\n");
        let readings: Vec<Power> = (0..10).map(|_| power(&root)).collect();
        assert_eq!((readings[8], readings[9]), (Power::Mains, Power::Battery));
        root.write("sys/class/power_supply/AC/online", "1\n");
        assert_eq!(power(&root), Power::Mains);
        root.write("sys/class/power_supply/AC/online", "x\n");
        root.write("sys/class/power_supply/BAT0/status", "x\n");
        assert_eq!(power(&root), Power::Unknown);
    }

    #[test]
    fn swap_that_cannot_be_read_is_unknown() {
        let root = Root::new();
        root.write("proc/swaps", "nonsense");
        let facts = CostReader::default().read(&Kernel::open(root.0.path()).expect("a root"));
        assert_eq!((facts.disks, facts.memory_first), (Vec::new(), Bytes::ZERO));
    }
}
