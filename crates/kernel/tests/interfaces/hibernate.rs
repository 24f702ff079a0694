use std::time::Duration;

use omr_kernel::hibernate::{Availability, DeviceNumber, Hibernation, HibernationLog, parse_availability};
use omr_testkit::{FakeRoot, Release};
use omr_units::{Bytes, Pages};
use proptest::prelude::*;

use crate::open;

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let hibernation = Hibernation::read(&open(&root));
        assert!(hibernation.is_available(), "{hibernation:?}");
        assert!(hibernation.image_size > Some(Bytes::mib(1)), "{hibernation:?}");
        assert_eq!(hibernation.reserved_size, Some(Bytes::mib(1)));
        assert!(hibernation.resume.is_some() && hibernation.resume_offset == Some(Pages(0)), "{hibernation:?}");
    }
}

#[test]
fn a_machine_that_can_hibernate() {
    let root = FakeRoot::new()
        .sys("power/state", "freeze mem disk\n")
        .sys("power/disk", "[platform] shutdown reboot suspend test_resume \n")
        .sys("power/resume", "254:16\n")
        .sys("power/resume_offset", "34816\n")
        .sys("power/image_size", "825339904\n");
    let hibernation = Hibernation::read(&open(&root));
    assert!(hibernation.is_available());
    assert_eq!(hibernation.image_size, Some(Bytes(825_339_904)));
    assert_eq!(hibernation.resume, Some(DeviceNumber { major: 254, minor: 16 }));
    assert_eq!(hibernation.resume_offset, Some(Pages(34_816)));
}

#[test]
fn no_resume_device_is_none() {
    let root = FakeRoot::new().sys("power/resume", "0:0\n").sys("power/image_size", "-1\n");
    let hibernation = Hibernation::read(&open(&root));
    assert_eq!((hibernation.resume, hibernation.image_size, hibernation.is_available()), (None, None, false));
}

#[test]
fn availability() {
    use Availability::{Available, Disabled, NotBuilt, Unknown};
    for (state, disk, want) in [
        ("freeze mem disk\n", "[platform] shutdown \n", Available),
        ("disk\n", "platform [shutdown]\n", Available),
        // The texts under lockdown, and with `nohibernate`.
        ("freeze mem\n", "[disabled]\n", Disabled),
        // The two files disagree: lockdown came between the two reads.
        ("freeze mem disk\n", "[disabled]\n", Disabled),
        ("freeze mem\n", "[platform] shutdown\n", Disabled),
        // A word that contains "disk".
        ("freeze mem disks\n", "[platform]\n", Disabled),
        ("", "[platform]\n", Unknown),
        ("freeze mem disk\n", "", Unknown),
    ] {
        assert_eq!(parse_availability(state.as_bytes(), disk.as_bytes()), want, "{state:?} {disk:?}");
    }
    assert_eq!(Hibernation::read(&open(&FakeRoot::new())).availability, NotBuilt);
    let root = FakeRoot::new().sys("power/state", "freeze mem\n");
    assert_eq!(Hibernation::read(&open(&root)).availability, NotBuilt);
    let root = FakeRoot::new().sys("power/disk", "[platform]\n");
    assert_eq!(Hibernation::read(&open(&root)).availability, Unknown);
}

#[test]
fn device_numbers() {
    assert_eq!(DeviceNumber::parse(b"8:2\n"), Some(DeviceNumber { major: 8, minor: 2 }));
    assert_eq!(DeviceNumber::parse(b"8:2").map(|d| d.to_string()), Some("8:2".into()));
    for text in ["", ":", "8:", ":2", "8:2:1", "8", "-8:2", "/dev/sda2", "4294967296:0"] {
        assert_eq!(DeviceNumber::parse(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(state: Vec<u8>, disk: Vec<u8>) {
        let _ = parse_availability(&state, &disk);
        let _ = DeviceNumber::parse(&state);
    }
}

#[test]
fn the_log_after_resume_shows_the_image() {
    let messages: Vec<String> = [
        "PM: hibernation: Allocated 76086 pages for snapshot",
        "PM: hibernation: Allocated 304344 kbytes in 3.26 seconds (93.35 MB/s)",
        "PM: hibernation: Need to copy 67559 pages",
        "PM: hibernation: Need to copy some pages",
        "Restarting tasks ... done.",
    ]
    .map(String::from)
    .into();
    let all = HibernationLog { image: Some(Pages(67559)), allocated_in: Some(Duration::from_millis(3260)) };
    assert_eq!(HibernationLog::parse(&messages[..3]), all);
    // A figure in an unknown form is None, and not the figure of an earlier hibernation.
    assert_eq!(HibernationLog::parse(&messages).image, None);
    assert_eq!(HibernationLog::parse(&messages[4..]), HibernationLog::default());
}
