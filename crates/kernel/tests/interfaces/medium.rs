//! The disks below swap devices, on the layouts of real machines.

use std::os::unix::fs::symlink;
use std::path::Path;

use omr_kernel::medium::{self, Disk, Medium};
use omr_kernel::swap;
use omr_testkit::FakeRoot;
use omr_units::Bytes;
use proptest::prelude::*;

use crate::open;

const GIB: u64 = 1 << 30;

/// A machine whose `/sys` has block devices as the kernel lays them out: the devices below
/// `/sys/devices`, and links to them from `class/block` and `dev/block`.
struct Machine(FakeRoot);

impl Machine {
    fn new() -> Self {
        Machine(FakeRoot::new())
    }

    /// A block device at this place below `/sys/devices`, with its files and a size in bytes.
    fn device(self, place: &str, number: &str, size: u64, files: &[(&str, &str)]) -> Self {
        let name = Path::new(place).file_name().expect("a name").to_str().expect("text");
        let dir = Path::new("sys/devices").join(place);
        self.0.write(dir.join("dev"), number);
        self.0.write(dir.join("size"), format!("{}\n", size / 512));
        for (file, text) in files {
            self.0.write(dir.join(file), text);
        }
        let linked = self.link(&format!("sys/class/block/{name}"), &format!("../../devices/{place}"));
        linked.link(&format!("sys/dev/block/{number}"), &format!("../../devices/{place}"))
    }

    fn disk(self, place: &str, number: &str, size: u64, rotational: &str) -> Self {
        self.device(place, number, size, &[("queue/rotational", rotational), ("removable", "0\n")])
    }

    /// A volume of the device mapper or of md on these devices.
    fn volume(self, name: &str, number: &str, on: &[&str]) -> Self {
        let place = format!("virtual/block/{name}");
        let machine = self.device(&place, number, GIB, &[("queue/rotational", "0\n"), ("slaves/.keep", "")]);
        std::fs::remove_file(machine.0.resolve(format!("sys/devices/{place}/slaves/.keep"))).expect("removed");
        on.iter().fold(machine, |machine, below| {
            machine.link(&format!("sys/devices/{place}/slaves/{below}"), &format!("../../../../class/block/{below}"))
        })
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.resolve(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        symlink(target, path).expect("a link");
        self
    }

    fn mounts(self, text: &str) -> Self {
        Machine(self.0.proc("self/mountinfo", text))
    }

    /// The disks of the one swap device of this line of `/proc/swaps`.
    fn disks(self, line: &str) -> Vec<Disk> {
        let root = self.0.proc("swaps", format!("Filename\tType\tSize\tUsed\tPriority\n{line}\n"));
        let kernel = open(&root);
        let devices = swap::read(&kernel).expect("readable");
        let [device] = devices.as_slice() else { panic!("{devices:?}") };
        medium::read_disks(&kernel, device)
    }

    /// The media of the disks, with their sizes in GiB.
    fn media(self, line: &str) -> Vec<(Medium, Option<u64>)> {
        self.disks(line).into_iter().map(|disk| (disk.medium, disk.size.map(|size| size.0 / GIB))).collect()
    }
}

const NVME: &str = "pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0/nvme0n1";
const SATA: &str = "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda";
const CARD: &str = "platform/emmc2bus/fe340000.mmc/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0";

fn nvme() -> Machine {
    Machine::new()
        .device(NVME, "259:0", 500 * GIB, &[("queue/rotational", "0\n"), ("removable", "0\n")])
        .link(&format!("sys/devices/{NVME}/device"), "..")
        .device(&format!("{NVME}/nvme0n1p3"), "259:3", 100 * GIB, &[("partition", "3\n")])
}

fn with_transport(machine: Machine, transport: &str) -> Machine {
    machine.0.write("sys/devices/pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0/transport", transport);
    machine
}

fn sata(rotational: &str) -> Machine {
    Machine::new().disk(SATA, "8:0", 2000 * GIB, rotational).device(
        &format!("{SATA}/sda2"),
        "8:2",
        64 * GIB,
        &[("partition", "2\n")],
    )
}

fn card(kind: Option<&str>) -> Machine {
    let machine = Machine::new()
        .disk(CARD, "179:0", 32 * GIB, "0\n")
        .link(&format!("sys/devices/{CARD}/device"), "../..")
        .device(&format!("{CARD}/mmcblk0p2"), "179:2", 4 * GIB, &[("partition", "2\n")]);
    if let Some(kind) = kind {
        machine.0.write("sys/devices/platform/emmc2bus/fe340000.mmc/mmc_host/mmc0/mmc0:aaaa/type", kind);
    }
    machine
}

#[test]
fn a_partition_is_on_its_disk() {
    let line = "/dev/sda2 partition 1000 0 -2";
    assert_eq!(sata("1\n").media(line), [(Medium::Rotational, Some(2000))]);
    assert_eq!(sata("0\n").media(line), [(Medium::Ssd, Some(2000))]);
    assert_eq!(sata("\n").media(line), [(Medium::Unknown, Some(2000))]);
    let disk = nvme().disks("/dev/nvme0n1p3 partition 1000 0 -2");
    assert_eq!(
        disk,
        [Disk { name: "nvme0n1".into(), medium: Medium::Nvme, size: Some(Bytes(500 * GIB)), encrypted: false }]
    );
}

#[test]
fn an_encrypted_volume_on_nvme_is_nvme() {
    let machine = nvme().volume("dm-0", "254:0", &["nvme0n1p3"]).volume("dm-1", "254:1", &["dm-0"]);
    machine.0.write("sys/devices/virtual/block/dm-1/dm/name", "vg-swap\n");
    assert_eq!(machine.media("/dev/dm-1 partition 1000 0 -2"), [(Medium::Nvme, Some(500))]);
    // Without udev the path has the mapper's name.
    let machine = nvme().volume("dm-0", "254:0", &["nvme0n1p3"]);
    machine.0.write("sys/devices/virtual/block/dm-0/dm/name", "vg-swap\n");
    assert_eq!(machine.media("/dev/mapper/vg-swap partition 1000 0 -2"), [(Medium::Nvme, Some(500))]);
}

#[test]
fn a_volume_on_several_disks_has_all_of_them() {
    let second = SATA.replace("ata1", "ata2").replace("sda", "sdb");
    let machine = sata("0\n").disk(&second, "8:16", 1000 * GIB, "1\n").volume("dm-3", "254:3", &["sda2", "sdb"]);
    let mut media = machine.media("/dev/dm-3 partition 1000 0 -2");
    media.sort_by_key(|disk| disk.1);
    assert_eq!(media, [(Medium::Rotational, Some(1000)), (Medium::Ssd, Some(2000))]);
}

#[test]
fn a_swap_file_is_on_the_disk_of_its_file_system() {
    let ext4 = "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n25 22 0:21 / /proc rw - proc proc rw\n";
    assert_eq!(sata("0\n").mounts(ext4).media("/swapfile file 1000 0 -2"), [(Medium::Ssd, Some(2000))]);
    // The volume of the root has a name of its own in mountinfo, and a number in sysfs.
    let encrypted = "22 1 254:0 / / rw shared:1 - ext4 /dev/mapper/root rw\n";
    let machine = nvme().volume("dm-0", "254:0", &["nvme0n1p3"]).mounts(encrypted);
    assert_eq!(machine.media("/var/swap\\040file file 1000 0 -2"), [(Medium::Nvme, Some(500))]);
    // Without a mount, and on a file system that no disk is known for.
    for mounts in ["", "22 1 0:40 / / rw - nfs host:/x rw\n", "22 1 9:9 / / rw - ext4 /dev/sdz rw\n", "x\n"] {
        assert_eq!(sata("0\n").mounts(mounts).media("/swapfile file 1000 0 -2"), [(Medium::Unknown, None)], "{mounts}");
    }
}

#[test]
fn a_swap_file_on_btrfs_may_be_on_any_of_its_disks() {
    // btrfs has a number that no block device has.
    let mounts = "22 1 0:30 /@ / rw shared:1 - btrfs /dev/sda2 rw,subvol=/@\n29 22 0:30 /@swap /swap rw - btrfs \
                  /dev/sda2 rw\n";
    let one = sata("0\n").mounts(mounts);
    assert_eq!(one.media("/swap/file file 1000 0 -2"), [(Medium::Ssd, Some(2000))]);
    let usb = "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0/block/sdc";
    let two = sata("0\n")
        .mounts(mounts)
        .disk(usb, "8:32", 16 * GIB, "1\n")
        .link("sys/fs/btrfs/0b6f/devices/sda2", "../../../../class/block/sda2")
        .link("sys/fs/btrfs/0b6f/devices/sdc", "../../../../class/block/sdc");
    two.0.write(format!("sys/devices/{usb}/removable"), "1\n");
    let mut media = two.media("/swap/file file 1000 0 -2");
    media.sort_by_key(|disk| disk.1);
    assert_eq!(media, [(Medium::Removable, Some(16)), (Medium::Ssd, Some(2000))]);
    // On an encrypted volume the source has the mapper's name, which sysfs has in a file.
    let machine = nvme().volume("dm-0", "254:0", &["nvme0n1p3"]).mounts("22 1 0:30 / / rw - btrfs /dev/mapper/r rw\n");
    machine.0.write("sys/devices/virtual/block/dm-0/dm/name", "r\n");
    assert_eq!(machine.media("/swap file 1000 0 -2"), [(Medium::Nvme, Some(500))]);
}

#[test]
fn cards_are_told_from_chips() {
    let line = "/dev/mmcblk0p2 partition 1000 0 -2";
    assert_eq!(card(Some("SD\n")).media(line), [(Medium::SdCard, Some(32))]);
    assert_eq!(card(Some("MMC\n")).media(line), [(Medium::Emmc, Some(32))]);
    for kind in [None, Some(""), Some("SDIO\n")] {
        assert_eq!(card(kind).media(line), [(Medium::Unknown, Some(32))]);
    }
}

#[test]
fn zram_is_memory_also_below_an_encrypted_volume() {
    let zram = || Machine::new().disk("virtual/block/zram0", "253:0", 4 * GIB, "0\n");
    assert_eq!(zram().media("/dev/zram0 partition 1000 0 100"), [(Medium::Memory, Some(4))]);
    let volume = zram().volume("dm-0", "254:0", &["zram0"]);
    assert_eq!(volume.media("/dev/dm-0 partition 1000 0 100"), [(Medium::Memory, Some(4))]);
    // A volume of which the disk cannot be seen is no SSD, though it says that it does not rotate.
    let volume = zram().volume("dm-0", "254:0", &[]);
    assert_eq!(volume.media("/dev/dm-0 partition 1000 0 100"), [(Medium::Unknown, Some(1))]);
}

#[test]
fn a_virtual_disk_is_what_the_kernel_says() {
    for (rotational, medium) in [("1\n", Medium::Rotational), ("0\n", Medium::Ssd)] {
        let machine = Machine::new().disk("pci0000:00/0000:00:05.0/virtio2/block/vda", "254:0", 8 * GIB, rotational);
        assert_eq!(machine.media("/dev/vda partition 1000 0 -2"), [(medium, Some(8))]);
    }
}

#[test]
fn a_disk_in_another_machine_is_a_network_disk() {
    let nbd = Machine::new().disk("virtual/block/nbd0", "43:0", 8 * GIB, "0\n");
    assert_eq!(nbd.media("/dev/nbd0 partition 1000 0 -2"), [(Medium::Network, Some(8))]);
    let iscsi = "platform/host3/session1/target3:0:0/3:0:0:0/block/sdb";
    let machine = Machine::new().disk(iscsi, "8:16", 8 * GIB, "0\n");
    assert_eq!(machine.media("/dev/sdb partition 1000 0 -2"), [(Medium::Network, Some(8))]);
    let line = "/dev/nvme0n1p3 partition 1000 0 -2";
    for (transport, medium) in [("pcie\n", Medium::Nvme), ("apple-nvme\n", Medium::Nvme), ("tcp\n", Medium::Network)] {
        assert_eq!(with_transport(nvme(), transport).media(line), [(medium, Some(500))], "{transport}");
    }
    // With several paths, the controllers know the transport.
    let subsystem = "virtual/nvme-subsystem/nvme-subsys0";
    for (transport, medium) in [("pcie\n", Medium::Nvme), ("rdma\n", Medium::Network)] {
        let machine = Machine::new()
            .disk(&format!("{subsystem}/nvme0n1"), "259:0", 500 * GIB, "0\n")
            .link(&format!("sys/devices/{subsystem}/nvme0n1/device"), "..")
            .link(&format!("sys/devices/{subsystem}/nvme0"), "../../../nvme0");
        machine.0.write("sys/devices/nvme0/transport", transport);
        assert_eq!(machine.media("/dev/nvme0n1 partition 1000 0 -2"), [(medium, Some(500))], "{transport}");
    }
}

#[test]
fn what_cannot_be_seen_is_unknown() {
    let unknown = [(Medium::Unknown, None)];
    assert_eq!(Machine::new().media("/dev/sda2 partition 1000 0 -2"), unknown);
    // A partition without a link, and a volume on itself.
    let root = FakeRoot::new().sys("class/block/sda2/partition", "2\n").sys("class/block/sda2/queue/rotational", "0\n");
    assert_eq!(Machine(root).media("/dev/sda2 partition 1000 0 -2"), unknown);
    let round = Machine::new().volume("dm-0", "254:0", &["dm-1"]).volume("dm-1", "254:1", &["dm-0"]);
    assert_eq!(round.media("/dev/dm-0 partition 1000 0 -2"), unknown);
    for (place, size) in [("virtual/block/loop0", GIB), ("virtual/block/zd0", GIB), ("virtual/block/md0", GIB)] {
        let machine = Machine::new().disk(place, "7:0", size, "0\n");
        let name = place.rsplit('/').next().expect("a name");
        assert_eq!(machine.media(&format!("/dev/{name} partition 1000 0 -2")), [(Medium::Unknown, Some(1))], "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_a_disk(rotational in "\\PC{0,8}", size in "\\PC{0,25}", mounts in "(\\PC| ){0,60}") {
        let machine = sata(&rotational).mounts(&mounts);
        machine.0.write(format!("sys/devices/{SATA}/size"), size);
        prop_assert_eq!(machine.disks("/dev/sda2 partition 1000 0 -2").len(), 1);
        prop_assert_eq!(sata("0\n").mounts(&mounts).disks("/swapfile file 1000 0 -2").len(), 1);
    }
}
