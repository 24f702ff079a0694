//! `/sys/power/*`: whether the machine can hibernate, the device of the image, and the size that
//! the image may have. Nothing here writes to `/sys/power/resume`: a write resumes at once.

use std::fmt;
use std::time::Duration;

use omr_units::{Bytes, Pages};
use serde::{Deserialize, Serialize};

use crate::text::{parse_u64, split_once};
use crate::{Dir, Kernel};

/// Reads `/sys/module/hibernate/parameters/compressor` (6.9): the algorithm by which the image is
/// compressed, `lzo` or `lz4`. `None`: this kernel has no such choice, and takes lzo. Source:
/// kernel/power/hibernate.c.
pub fn read_compressor(kernel: &Kernel) -> Option<String> {
    Some(kernel.sys.read_optional("module/hibernate/parameters/compressor").ok()??.trim().to_owned())
}

/// The number of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Parses `MAJOR:MINOR`. `None`: the text is in another form.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (major, minor) = split_once(text.trim_ascii(), b':')?;
        let number = |digits: &[u8]| parse_u64(digits).and_then(|n| u32::try_from(n).ok());
        Some(DeviceNumber { major: number(major)?, minor: number(minor)? })
    }

    /// True if the number is 0:0, which no device has.
    pub fn is_none(self) -> bool {
        self == DeviceNumber::default()
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The state of hibernation in this kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// The kernel can hibernate.
    Available,
    /// Hibernation is built in, but off now: `nohibernate`, lockdown (Secure Boot), or a
    /// `memfd_secret` in use.
    Disabled,
    /// Hibernation is not built in (`CONFIG_HIBERNATION`).
    NotBuilt,
    /// `/sys/power` could not be read or understood.
    #[default]
    Unknown,
}

/// `/sys/power/{state,disk,resume,resume_offset,image_size,reserved_size}` (`image_size` since
/// 2.6.16, `reserved_size` since 3.0, `resume_offset` since 4.18). A field is `None` where its file
/// does not exist or is in another form.
///
/// Sample lines: `freeze mem disk`; `[platform] shutdown reboot suspend test_resume`, or
/// `[disabled]`; `254:16`; `34816`; `825339904`. Source: kernel/power/main.c, hibernate.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernation {
    /// The state of hibernation, from `state` and `disk`.
    pub availability: Availability,
    /// `image_size`, in bytes. Before it makes the image, the kernel reclaims memory until the
    /// image is no larger than this, if it can. 0 means as small as possible. The default is 2/5 of
    /// the memory.
    pub image_size: Option<Bytes>,
    /// `reserved_size`, in bytes: kept free for drivers that allocate while the machine goes to
    /// sleep.
    pub reserved_size: Option<Bytes>,
    /// `resume`: the device of the image. `None` also for 0:0, which means not set. (User space may
    /// still choose a device right before it hibernates, as systemd does.)
    pub resume: Option<DeviceNumber>,
    /// `resume_offset`, in pages: the start of a swap file on the device; 0 for a swap partition.
    pub resume_offset: Option<Pages>,
}

impl Hibernation {
    /// True if the kernel can hibernate now. [`Availability::Unknown`] counts as no.
    pub fn is_available(&self) -> bool {
        self.availability == Availability::Available
    }

    /// Reads the files.
    pub fn read(kernel: &Kernel) -> Self {
        let power = match kernel.sys.sub("power") {
            Ok(power) => power,
            // A kernel without CONFIG_PM_SLEEP and CONFIG_HIBERNATION.
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

/// Figures of a hibernation from the kernel's log after resume. After resume the log is that of the
/// snapshot. The kernel logs the final size of the image and the time to write it later, so both
/// are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HibernationLog {
    /// Pages to copy, including pages of zeros: the size of the image before compression. `None`:
    /// not in the log.
    pub image: Option<Pages>,
    /// Time to reclaim memory and to allocate the copies. `None`: not in the log.
    pub allocated_in: Option<Duration>,
}

impl HibernationLog {
    /// Parses the messages; the last hibernation counts. Sample lines:
    /// `PM: hibernation: Need to copy 67559 pages`,
    /// `PM: hibernation: Allocated 304344 kbytes in 3.26 seconds (93.35 MB/s)`. Source:
    /// kernel/power/snapshot.c. 7.x logs the first line only with `pm_debug_messages`.
    pub fn parse(messages: &[String]) -> Self {
        let mut logged = HibernationLog::default();
        for message in messages {
            let Some(text) = message.split("hibernation: ").nth(1) else { continue };
            if let Some(pages) = between(text, "Need to copy ", " pages") {
                logged.image = parse_u64(pages.as_bytes()).map(Pages);
            } else if let Some(time) = between(text, " kbytes in ", " seconds") {
                // The kernel prints hundredths of a second.
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
        // /sys/power/disk exists exactly with CONFIG_HIBERNATION.
        (Ok(_), Ok(None)) => Availability::NotBuilt,
        (Ok(Some(state)), Ok(Some(disk))) => parse_availability(state.as_bytes(), disk.as_bytes()),
        _ => Availability::Unknown,
    }
}

/// Parses the texts of `state` and `disk`. Hibernation is available only if both say so.
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
