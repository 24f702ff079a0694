use omr_kernel::hibernate::DeviceNumber;
use omr_kernel::swap::{self, SwapDevice, SwapKind};
use omr_testkit::{FakeRoot, Release, captured};
use omr_units::Bytes;
use proptest::prelude::*;

use crate::open;

const HEAD: &str = "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n";

fn one(line: &str) -> Option<SwapDevice> {
    swap::parse(format!("{HEAD}{line}\n").as_bytes()).expect("the head line is known").pop()
}

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let devices = swap::read(&open(&root)).expect("readable");
        // Only the head line is skipped.
        assert_eq!(devices.len() + 1, captured(release, "proc/swaps").lines().count());
        for device in devices {
            assert!(device.path.is_absolute() && device.size > device.used && !device.deleted, "{device:?}");
        }
    }
}

#[test]
fn lines() {
    let cases = [
        ("/dev/vda2                               partition\t8388604\t\t51200\t\t-2", "/dev/vda2", SwapKind::Partition),
        ("/swapfile                               file\t\t33554428\t1024\t\t-3", "/swapfile", SwapKind::File),
        ("/dev/zram0                              partition\t4194300\t\t0\t\t100", "/dev/zram0", SwapKind::Zram),
        // One blank follows a name of 40 and more characters. One tab follows 10,000,000 kB and
        // more.
        (
            "/dev/mapper/a-very-long-volume-group-name-swap_1 partition\t16777212\t10000000\t32767",
            "/dev/mapper/a-very-long-volume-group-name-swap_1",
            SwapKind::Partition,
        ),
        ("/mnt/a\\040b\\011c\\134d\\012 file\t\t4\t\t0\t\t5", "/mnt/a b\tc\\d\n", SwapKind::File),
        // Not escapes: too short, not octal, beyond one byte.
        ("/a\\04 file 4 0 5", "/a\\04", SwapKind::File),
        ("/a\\48b\\777 file 4 0 5", "/a\\48b\\777", SwapKind::File),
        // Names that only look like zram, and a file of such a name.
        ("/dev/zram partition 4 0 5", "/dev/zram", SwapKind::Partition),
        ("/dev/zram0p1 partition 4 0 5", "/dev/zram0p1", SwapKind::Partition),
        ("/var/zram0 file 4 0 5", "/var/zram0", SwapKind::File),
        // A name that imitates the other columns.
        ("/x\\040partition\\0401\\0401\\0401 file 4 0 5", "/x partition 1 1 1", SwapKind::File),
        ("/x partition 1 1 1 file 4 0 5", "/x partition 1 1 1", SwapKind::File),
    ];
    for (line, path, kind) in cases {
        let device = one(line).unwrap_or_else(|| panic!("{line}"));
        assert_eq!((device.path.to_str(), device.kind, device.deleted), (Some(path), kind, false), "{line}");
    }
}

#[test]
fn a_name_that_is_gone() {
    for line in ["/dev/zram1\\040(deleted) partition 4 0 5", "/dev/zram1 (deleted) partition 4 0 5"] {
        let device = one(line).expect(line);
        assert_eq!((device.path.to_str(), device.kind, device.deleted), (Some("/dev/zram1"), SwapKind::Zram, true));
    }
}

#[test]
fn free_space_is_never_below_zero() {
    let device = one("/x file 4 9 5").expect("a line");
    assert_eq!(device.free(), Bytes::ZERO);
    assert_eq!(one("/x file 12 8 5").expect("a line").free(), Bytes::kib(4));
}

#[test]
fn a_line_in_another_form_is_passed_over() {
    for line in [
        "",
        "/x",
        "/x file 4 0",
        "file 4 0 5",
        "/x disk 4 0 5",
        "/x file -4 0 5",
        "/x file 4 0 high",
        "/x file 4 0 99999999999",
        "/x file 99999999999999999999999 0 5",
    ] {
        assert_eq!(one(line), None, "{line}");
    }
    let text = format!("{HEAD}truncat\n/x file 4 0 5\n");
    assert_eq!(swap::parse(text.as_bytes()).map(|devices| devices.len()), Some(1));
}

#[test]
fn no_swap_is_no_devices_and_another_head_line_is_an_error() {
    assert_eq!(swap::parse(HEAD.as_bytes()), Some(Vec::new()));
    assert_eq!(swap::parse(b""), None);
    assert_eq!(swap::read(&open(&FakeRoot::new())).ok(), Some(Vec::new()));
    let err = swap::read(&open(&FakeRoot::new().proc("swaps", "Name Size\n"))).expect_err("another form");
    assert!(err.to_string().contains("/proc/swaps: the first line is not"), "{err}");
}

#[test]
fn the_number_of_a_device_comes_from_sysfs() {
    let root = FakeRoot::new().sys("class/block/dm-1/dev", "253:1\n");
    let kernel = open(&root);
    let number = |line| one(line).expect("a line").read_number(&kernel);
    assert_eq!(number("/dev/dm-1 partition 4 0 5"), Some(DeviceNumber { major: 253, minor: 1 }));
    assert_eq!(number("/dev/dm-2 partition 4 0 5"), None);
    assert_eq!(number("/var/dm-1 file 4 0 5"), None);
}

#[test]
fn zswap() {
    let zswap = |text: &str| swap::read_zswap(&open(&FakeRoot::new().sys("module/zswap/parameters/enabled", text)));
    assert_eq!((zswap("Y\n"), zswap("N\n"), zswap("")), (Some(true), Some(false), None));
    assert_eq!(swap::read_zswap(&open(&FakeRoot::new())), None);
}

#[test]
fn the_memory_of_a_zram_device_is_read() {
    let root = FakeRoot::new().sys("block/zram0/mm_stat", "  83886080 41975808 42434560        0 42434560 0 0 0 0\n");
    let zram = |name: &str| one(&format!("{name} partition 4 0 5")).expect("a line");
    assert_eq!(swap::read_zram_pool(&open(&root), &zram("/dev/zram0")), Some(Bytes(42_434_560)));
    assert_eq!(swap::read_zram_pool(&open(&root), &zram("/dev/zram1")), None);
}

#[test]
fn the_device_of_a_swap_file_is_that_of_its_file_system() {
    let root = FakeRoot::new().file("swapfile", "");
    let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(root.resolve("swapfile")).expect("a file"));
    let number = DeviceNumber { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) };
    assert_eq!(one("/swapfile file 4 0 5").expect("a line").read_file_system(root.path()), Some(number));
    assert_eq!(one("/gone file 4 0 5").expect("a line").read_file_system(root.path()), None);
}

proptest! {
    #[test]
    fn parsing_never_panics(text: Vec<u8>, line in "[/a\\\\0-9 \t\n()a-z]{0,60}") {
        let _ = swap::parse(&text);
        let _ = one(&line);
        let _ = SwapDevice::parse(&text);
    }

    /// Every name of a swap file survives the kernel's escapes.
    #[test]
    fn any_name_survives(name in "/[^\0]{1,40}") {
        prop_assume!(!name.ends_with(" (deleted)"));
        let escaped: String = name
            .chars()
            .map(|c| if matches!(c, ' ' | '\t' | '\n' | '\\') { format!("\\{:03o}", u32::from(c)) } else { c.into() })
            .collect();
        let device = SwapDevice::parse(format!("{escaped:<39} file\t\t8\t\t4\t\t-2").as_bytes()).expect("a line");
        prop_assert_eq!(device.path.to_str(), Some(name.as_str()));
        prop_assert_eq!(device.size, Bytes::kib(8));
    }
}
