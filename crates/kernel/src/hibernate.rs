//! `/sys/power/*`: whether the machine can hibernate, onto which device, and how large the image
//! may get. Nothing here writes to `/sys/power/resume`: that would try to resume at once.

use std::fmt;
use std::time::Duration;

use omr_units::{Bytes, Pages};
use serde::{Deserialize, Serialize};

use crate::actuate::{Actuator, Outcome};
use crate::text::parse_u64;
use crate::{Dir, Kernel, Result};

/// Number of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Parses `MAJOR:MINOR`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        let colon = text.iter().position(|&c| c == b':')?;
        let number = |digits: &[u8]| parse_u64(digits).and_then(|n| u32::try_from(n).ok());
        Some(DeviceNumber { major: number(&text[..colon])?, minor: number(&text[colon + 1..])? })
    }

    /// 0:0, which no device has.
    pub fn is_none(self) -> bool {
        self == DeviceNumber::default()
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Whether this kernel would hibernate if it were asked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It would.
    Available,
    /// Built in, but switched off now: `nohibernate`, lockdown (Secure Boot), a `memfd_secret` in use.
    Disabled,
    /// Not built in (`CONFIG_HIBERNATION`).
    NotBuilt,
    /// `/sys/power` could not be read or understood.
    #[default]
    Unknown,
}

/// `/sys/power/{state,disk,resume,resume_offset,image_size,reserved_size}` (`image_size` since
/// 2.6.16, `reserved_size` since 3.0, `resume_offset` since 4.18). A field is `None` where its file is missing or not understood.
///
/// Sample lines: `freeze mem disk`; `[platform] shutdown reboot suspend test_resume`, or
/// `[disabled]`; `254:16`; `34816`; `825339904`. Source: kernel/power/main.c, hibernate.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernation {
    /// Whether it can be had.
    pub availability: Availability,
    /// `image_size`, bytes: the kernel frees memory until the image is no larger, if it can. 0 means
    /// as small as possible. By default 2/5 of the memory.
    pub image_size: Option<Bytes>,
    /// `reserved_size`, bytes: kept free for drivers that allocate while the machine is put to sleep.
    pub reserved_size: Option<Bytes>,
    /// `resume`: the device the image goes to; `None` also when it is 0:0, not set. (User space may
    /// still choose one right before hibernating, as systemd does.)
    pub resume: Option<DeviceNumber>,
    /// `resume_offset`, in pages: where a swap file begins on the device; 0 for a swap partition.
    pub resume_offset: Option<Pages>,
}

impl Hibernation {
    /// Whether the kernel would hibernate if it were asked to. Unknown is no.
    pub fn is_available(&self) -> bool {
        self.availability == Availability::Available
    }

    /// Reads it.
    pub fn read(kernel: &Kernel) -> Self {
        let power = match kernel.sys.sub("power") {
            Ok(power) => power,
            // No CONFIG_PM_SLEEP and no CONFIG_HIBERNATION.
            Err(err) if err.is_gone() => {
                return Hibernation { availability: Availability::NotBuilt, ..Hibernation::default() };
            }
            Err(_) => return Hibernation::default(),
        };
        let number = |file| parse_u64(power.read_string(file).ok()?.as_bytes());
        Hibernation {
            availability: read_availability(&power),
            image_size: number("image_size").map(Bytes),
            reserved_size: number("reserved_size").map(Bytes),
            resume: power
                .read_string("resume")
                .ok()
                .and_then(|text| DeviceNumber::parse(text.as_bytes()))
                .filter(|device| !device.is_none()),
            resume_offset: number("resume_offset").map(Pages),
        }
    }
}

/// Hibernates; comes back after resume, or at once when it could not be. The device was told before, at
/// boot or by `resume=`.
///
/// `Done`: the machine was away. `Partial`: another sleep is under way. `Gone`: no device to resume from.
/// `Denied`: not root, or lockdown. What the image or swap lacks is an error with the kernel's reason.
pub fn hibernate(kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<Outcome> {
    actuator.write(&kernel.sys.sub("power")?, "state", "disk")
}

/// Sets `image_size`: how large an image the kernel makes without reclaiming first. `Denied`: not root.
pub fn set_image_size(kernel: &Kernel, actuator: &mut dyn Actuator, size: Bytes) -> Result<Outcome> {
    actuator.write(&kernel.sys.sub("power")?, "image_size", &size.0.to_string())
}

/// What the kernel's log still has of a hibernation after resume. The log is that of the moment of the
/// snapshot: how large the image became and how long writing it took was logged later, and is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Logged {
    /// Pages that were to be copied, those that are zero included: the image's size before compression.
    pub image: Option<Pages>,
    /// Freeing memory and allocating the copies.
    pub allocated_in: Option<Duration>,
}

impl Logged {
    /// From the messages; the last hibernation counts. Sample lines: `PM: hibernation: Need to copy 67559
    /// pages`, `PM: hibernation: Allocated 304344 kbytes in 3.26 seconds (93.35 MB/s)`. Source:
    /// kernel/power/snapshot.c; 7.x logs the first with `pm_debug_messages` only.
    pub fn parse(messages: &[String]) -> Self {
        let mut logged = Logged::default();
        for message in messages {
            let Some(text) = message.split("hibernation: ").nth(1) else { continue };
            if let Some(pages) = between(text, "Need to copy ", " pages") {
                logged.image = parse_u64(pages.as_bytes()).map(Pages);
            } else if let Some(time) = between(text, " kbytes in ", " seconds") {
                // In hundredths of a second.
                let (seconds, hundredths) = time.split_once('.').unwrap_or((time, "0"));
                let number = |text: &str| parse_u64(text.as_bytes());
                logged.allocated_in = number(seconds)
                    .zip(number(hundredths))
                    .filter(|&(_, hundredths)| hundredths < 100)
                    .map(|(s, hundredths)| Duration::from_secs(s) + Duration::from_millis(hundredths * 10));
            }
        }
        logged
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

fn read_availability(power: &Dir) -> Availability {
    match (power.read_optional("state"), power.read_optional("disk")) {
        // /sys/power/disk is there exactly with CONFIG_HIBERNATION.
        (Ok(_), Ok(None)) => Availability::NotBuilt,
        (Ok(Some(state)), Ok(Some(disk))) => parse_availability(state.as_bytes(), disk.as_bytes()),
        _ => Availability::Unknown,
    }
}

/// From the texts of `state` and `disk`, both of which must say so.
pub fn parse_availability(state: &[u8], disk: &[u8]) -> Availability {
    let words = |text: &[u8], word: &[u8]| text.split(u8::is_ascii_whitespace).any(|w| w == word);
    if words(disk, b"[disabled]") {
        Availability::Disabled
    } else if disk.trim_ascii().is_empty() || state.trim_ascii().is_empty() {
        Availability::Unknown
    } else if words(state, b"disk") {
        Availability::Available
    } else {
        Availability::Disabled
    }
}
