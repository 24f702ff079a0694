//! `/sys/class/power_supply/*/{type,scope,online,present,status,capacity}` (2.6.24; `scope` 3.4):
//! does the machine run on its battery?

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Dir, Kernel, Result};

/// Where the machine gets its power from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerSource {
    /// The mains. Also where the kernel knows of no supply and no battery: servers, virtual
    /// machines.
    Mains,
    /// A battery.
    Battery,
    /// The files cannot be read, contradict each other or make no sense.
    #[default]
    Unknown,
}

impl fmt::Display for PowerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PowerSource::Mains => "mains",
            PowerSource::Battery => "battery",
            PowerSource::Unknown => "unknown",
        })
    }
}

const DIR: &str = "class/power_supply";

/// An entry, as far as it says where the power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// It says nothing: a supply that is not plugged in, a battery that is not there or belongs to
    /// a mouse.
    Nothing,
    /// A supply that is plugged in.
    Online,
    /// A battery of the machine that gives power.
    Discharging,
    /// A battery of the machine that gives no power.
    Resting,
    /// Unreadable, or without sense.
    Nonsense,
}

/// Returns true if the kernel knows of any supply or battery, or if that cannot be read. Where it
/// knows of none, the power source does not change without a new entry.
pub fn has_entries(kernel: &Kernel) -> bool {
    match kernel.sys.sub(DIR).and_then(|dir| dir.names()) {
        Ok(names) => !names.is_empty(),
        Err(err) => !err.is_gone(),
    }
}

/// Reads the power source.
///
/// A supply that is plugged in decides: then no battery is read, because firmware can take
/// milliseconds to answer for it. Else a battery that discharges decides. Else an entry without
/// sense makes the source unknown.
pub fn read(kernel: &Kernel) -> PowerSource {
    let dir = match kernel.sys.sub(DIR) {
        Ok(dir) => dir,
        // A kernel without CONFIG_POWER_SUPPLY.
        Err(err) if err.is_gone() => return PowerSource::Mains,
        Err(_) => return PowerSource::Unknown,
    };
    let Ok(mut names) = dir.names() else { return PowerSource::Unknown };
    names.sort();
    let mut batteries = Vec::new();
    let mut entries = Vec::new();
    for name in &names {
        let name = Path::new(name);
        match read_kind(&dir, name) {
            Ok(Kind::Battery) => batteries.push(name),
            Ok(Kind::Supply) => entries.push(supply(&dir, name)),
            Ok(Kind::OfDevice) => {}
            // A mouse that was switched off meanwhile.
            Err(err) if err.is_gone() && !dir.has(name) => {}
            Ok(Kind::Nonsense) | Err(_) => entries.push(Entry::Nonsense),
        }
    }
    if entries.contains(&Entry::Online) {
        return PowerSource::Mains;
    }
    entries.extend(batteries.into_iter().map(|name| battery(&dir, name)));
    match () {
        () if entries.contains(&Entry::Discharging) => PowerSource::Battery,
        () if entries.contains(&Entry::Nonsense) => PowerSource::Unknown,
        () => PowerSource::Mains,
    }
}

enum Kind {
    /// A supply from outside.
    Supply,
    /// A battery of the machine.
    Battery,
    /// Anything of a device that has its own power: a mouse, a headset.
    OfDevice,
    Nonsense,
}

/// Sample lines: `Mains`, `Battery`; `System`, `Device`. A driver that has no `scope` is of the
/// machine. Source: drivers/power/supply/power_supply_sysfs.c.
fn read_kind(dir: &Dir, name: &Path) -> Result<Kind> {
    if dir.read_optional(name.join("scope"))?.is_some_and(|scope| scope.trim() == "Device") {
        return Ok(Kind::OfDevice);
    }
    Ok(match dir.read_string(name.join("type"))?.trim() {
        "Battery" | "UPS" => Kind::Battery,
        "Mains" | "Wireless" | "BrickID" => Kind::Supply,
        kind if kind.starts_with("USB") => Kind::Supply,
        _ => Kind::Nonsense,
    })
}

/// Sample line: `1`. 0 is not plugged in, 1 is, 2 is with a voltage that was agreed on (USB PD).
fn supply(dir: &Dir, name: &Path) -> Entry {
    match dir.read_string(name.join("online")).ok().and_then(|text| parse_u64(text.as_bytes())) {
        Some(0) => Entry::Nothing,
        Some(1 | 2) => Entry::Online,
        _ => Entry::Nonsense,
    }
}

/// Sample lines: `1` of `present`, `Discharging` of `status`, `87` (percent) of `capacity`.
fn battery(dir: &Dir, name: &Path) -> Entry {
    let text = |file: &str| dir.read_optional(name.join(file)).map(|text| text.map(|text| text.trim().to_owned()));
    match text("present").as_ref().map(Option::as_deref) {
        // An empty bay.
        Ok(Some("0")) => return Entry::Nothing,
        Ok(Some("1") | None) => {}
        _ => return Entry::Nonsense,
    }
    let is_percent = |text: &str| parse_u64(text.as_bytes()).is_some_and(|percent| percent <= 100);
    if !text("capacity").is_ok_and(|text| text.is_none_or(|text| is_percent(&text))) {
        return Entry::Nonsense;
    }
    match text("status").as_ref().map(Option::as_deref) {
        Ok(Some("Discharging")) => Entry::Discharging,
        Ok(Some("Charging" | "Full" | "Not charging")) => Entry::Resting,
        // "Unknown" is a word of the kernel, and says no more than nonsense does.
        _ => Entry::Nonsense,
    }
}
