//! The small files that tell whether a feature exists and is on.

use omr_kernel::damon::Damon;
use omr_kernel::lockdown::Lockdown;
use omr_kernel::lru_gen::{Enabled, Generations, read_enabled, read_generations};
use omr_testkit::{FakeRoot, Release};
use proptest::prelude::*;

use crate::open;

#[test]
fn lockdown() {
    for (text, want) in [
        ("[none] integrity confidentiality\n", Some(Lockdown::None)),
        ("none [integrity] confidentiality\n", Some(Lockdown::Integrity)),
        ("none integrity [confidentiality]\n", Some(Lockdown::Confidentiality)),
        ("none integrity confidentiality [paranoia]\n", None),
        ("none\n", None),
        ("", None),
    ] {
        assert_eq!(Lockdown::parse(text.as_bytes()), want, "{text:?}");
        let root = FakeRoot::new().sys("kernel/security/lockdown", text);
        assert_eq!(Lockdown::read(&open(&root)), want);
    }
    assert_eq!(Lockdown::read(&open(&FakeRoot::new())), None);
    assert!(Lockdown::Integrity.is_locked() && !Lockdown::None.is_locked());
}

#[test]
fn mglru_mask() {
    for (text, want) in [
        ("0x0007\n", Some(7)),
        ("0x0000\n", Some(0)),
        ("0xffff", Some(0xffff)),
        ("0x10000\n", None),
        ("7\n", None),
        ("0x\n", None),
        ("0x+7\n", None),
        ("0x-7\n", None),
        ("y\n", None),
        ("", None),
    ] {
        assert_eq!(Enabled::parse(text.as_bytes()), want.map(Enabled), "{text:?}");
    }
    assert!(Enabled(7).is_on() && Enabled(7).walks_page_tables());
    assert!(Enabled(1).is_on() && !Enabled(1).walks_page_tables());
    assert!(!Enabled(6).is_on());
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let enabled = read_enabled(&open(&root)).expect("readable").expect("built in");
        // Debian's 6.1 has MGLRU switched off.
        assert_eq!(enabled.is_on(), release != Release::V6_1);
        assert_eq!(read_generations(&open(&root)), Generations::Open);
    }
    assert_eq!(read_enabled(&open(&FakeRoot::new())).expect("no such file is no error"), None);
}

#[test]
fn mglru_generations() {
    let mounted = "debugfs /sys/kernel/debug debugfs rw,relatime 0 0\n";
    let root = FakeRoot::new().proc("self/mounts", mounted).sys("kernel/debug/lru_gen", "");
    assert_eq!(read_generations(&open(&root)), Generations::Open);
    root.remove("sys/kernel/debug/lru_gen");
    assert_eq!(read_generations(&open(&root)), Generations::Missing);
    root.write("proc/self/mounts", "proc /proc proc rw 0 0\n");
    assert_eq!(read_generations(&open(&root)), Generations::NotMounted);
}

#[test]
fn damon() {
    let root = FakeRoot::new();
    assert_eq!(Damon::read(&open(&root)), Damon::NotBuilt);
    for (text, want) in [("0\n", Damon::Free), ("2\n", Damon::InUse(2)), ("-1\n", Damon::Unknown), ("", Damon::Unknown)]
    {
        root.write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", text);
        assert_eq!(Damon::read(&open(&root)), want, "{text:?}");
    }
    root.remove("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    assert_eq!(Damon::read(&open(&root)), Damon::Unknown);
}

proptest! {
    #[test]
    fn parsing_never_panics(text: Vec<u8>) {
        let _ = Lockdown::parse(&text);
        let _ = Enabled::parse(&text);
    }
}
