//! The power source, on the entries of real machines.

use omr_kernel::power_supply::{self, PowerSource};
use omr_testkit::FakeRoot;
use proptest::prelude::*;

use crate::open;

/// An entry: its name, and its files.
type Entry<'a> = (&'a str, &'a [(&'a str, &'a str)]);

const AC: Entry<'_> = ("AC", &[("type", "Mains\n"), ("online", "1\n")]);
const AC_OFF: Entry<'_> = ("AC", &[("type", "Mains\n"), ("online", "0\n")]);
const MOUSE: Entry<'_> = (
    "hidpp_battery_0",
    &[
        ("type", "Battery\n"),
        ("scope", "Device\n"),
        ("status", "Discharging\n"),
        ("online", "1\n"),
        ("capacity", "5\n"),
    ],
);
const USED: Entry<'_> =
    ("BAT0", &[("type", "Battery\n"), ("present", "1\n"), ("status", "Discharging\n"), ("capacity", "87\n")]);
const FULL: Entry<'_> = ("BAT0", &[("type", "Battery\n"), ("present", "1\n"), ("status", "Full\n")]);

fn root(entries: &[Entry<'_>]) -> FakeRoot {
    let root = FakeRoot::new();
    for (name, files) in entries {
        for (file, text) in *files {
            root.write(format!("sys/class/power_supply/{name}/{file}"), text);
        }
    }
    root
}

fn source(entries: &[Entry<'_>]) -> PowerSource {
    power_supply::read(&open(&root(entries)))
}

#[test]
fn a_machine_without_entries_is_on_mains() {
    assert_eq!(source(&[]), PowerSource::Mains);
    let empty = FakeRoot::new();
    std::fs::create_dir_all(empty.resolve("sys/class/power_supply")).expect("made");
    assert_eq!(power_supply::read(&open(&empty)), PowerSource::Mains);
    assert!(!power_supply::has_entries(&open(&empty)) && power_supply::has_entries(&open(&root(&[AC]))));
}

#[test]
fn a_laptop_is_on_battery_while_nothing_is_plugged_in() {
    assert_eq!(source(&[AC, USED]), PowerSource::Mains);
    assert_eq!(source(&[AC_OFF, USED]), PowerSource::Battery);
    assert_eq!(source(&[AC_OFF, FULL]), PowerSource::Mains);
    // A tablet whose supply has no entry.
    assert_eq!(source(&[USED]), PowerSource::Battery);
    // One of two batteries is used.
    let second = ("BAT1", FULL.1);
    assert_eq!(source(&[AC_OFF, USED, second]), PowerSource::Battery);
    // The bay of the second one is empty: its status is "Unknown".
    let bay: Entry<'_> = ("BAT1", &[("type", "Battery\n"), ("present", "0\n"), ("status", "Unknown\n")]);
    assert_eq!(source(&[AC_OFF, FULL, bay]), PowerSource::Mains);
}

#[test]
fn one_of_two_ports_is_enough() {
    let port = |name: &'static str, online: &'static str| -> (&str, Vec<(&str, &str)>) {
        (name, vec![("type", "USB\n"), ("usb_type", "C [PD] PD_PPS\n"), ("online", online), ("scope", "System\n")])
    };
    for (first, second, expected) in [
        ("0\n", "0\n", PowerSource::Battery),
        ("1\n", "0\n", PowerSource::Mains),
        ("0\n", "1\n", PowerSource::Mains),
        ("0\n", "2\n", PowerSource::Mains),
    ] {
        let ports = [port("ucsi-source-psy-USBC000:001", first), port("ucsi-source-psy-USBC000:002", second)];
        let entries = [AC_OFF, (ports[0].0, &ports[0].1), (ports[1].0, &ports[1].1), USED];
        assert_eq!(source(&entries), expected, "{first:?} {second:?}");
        // A desktop has ports as well, and no battery.
        assert_eq!(source(&entries[1..3]), PowerSource::Mains);
    }
}

#[test]
fn a_mouse_does_not_count() {
    assert_eq!(source(&[MOUSE]), PowerSource::Mains);
    assert_eq!(source(&[AC_OFF, FULL, MOUSE]), PowerSource::Mains);
    // Its "online" is not that of a supply.
    assert_eq!(source(&[AC_OFF, USED, MOUSE]), PowerSource::Battery);
    // The control: the same battery without the scope of a device.
    let own: Entry<'_> = ("hidpp_battery_0", &[("type", "Battery\n"), ("status", "Discharging\n")]);
    assert_eq!(source(&[own]), PowerSource::Battery);
}

#[test]
fn nonsense_is_unknown() {
    let battery = |files: &'static [(&'static str, &'static str)]| ("BAT0", files);
    for entry in [
        battery(&[("type", "Battery\n"), ("status", "foo\n")]),
        battery(&[("type", "Battery\n"), ("status", "Unknown\n")]),
        battery(&[("type", "Battery\n"), ("status", "Full\n"), ("capacity", "300\n")]),
        battery(&[("type", "Battery\n"), ("status", "Full\n"), ("capacity", "-1\n")]),
        battery(&[("type", "Battery\n"), ("status", "Full\n"), ("present", "yes\n")]),
        battery(&[("type", "Battery\n")]),
        battery(&[("type", "Bettery\n"), ("status", "Full\n")]),
        battery(&[("type", ""), ("online", "1\n")]),
        battery(&[("status", "Full\n")]),
        ("ADP1", &[("type", "Mains\n"), ("online", "7\n")]),
        ("ADP1", &[("type", "Mains\n")]),
    ] {
        assert_eq!(source(&[entry]), PowerSource::Unknown, "{entry:?}");
        assert_eq!(source(&[AC_OFF, entry]), PowerSource::Unknown, "{entry:?}");
        // A supply that is plugged in is known all the same.
        assert_eq!(source(&[AC, entry]), PowerSource::Mains, "{entry:?}");
    }
}

#[test]
fn an_entry_that_cannot_be_read_is_unknown() {
    for file in ["type", "scope", "online"] {
        let root = root(&[AC_OFF]);
        let path = root.resolve(format!("sys/class/power_supply/AC/{file}"));
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir(&path).expect("made");
        assert_eq!(power_supply::read(&open(&root)), PowerSource::Unknown, "{file}");
    }
    let root = FakeRoot::new().sys("class/power_supply", "");
    assert_eq!(power_supply::read(&open(&root)), PowerSource::Unknown);
    assert!(power_supply::has_entries(&open(&root)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Mains needs a supply that says 1 or 2, or a battery that says that it gives nothing.
    #[test]
    fn any_text_gives_a_source(kind in "(Battery|Mains|\\PC{0,6})", status in "(Full|\\PC{0,6})", online in "[0-3]|\\PC{0,3}") {
        let files = [("type", &*kind), ("status", &*status), ("online", &*online)];
        let says_so = match kind.trim() {
            "Battery" | "UPS" => matches!(status.trim(), "Full" | "Charging" | "Not charging"),
            _ => matches!(online.trim(), "0" | "1" | "2"),
        };
        prop_assert!(source(&[("X", &files)]) != PowerSource::Mains || says_so);
    }
}
