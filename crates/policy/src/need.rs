//! The need of `goal = "auto"`: how much memory should leave, and who gains from it. Where nobody
//! gains, nothing is reclaimed.
//!
//! Three purposes need memory to leave. Programs need available memory. A machine that hibernates
//! in practice needs a small image. The host of a virtual machine gains from free pages that are
//! reported to it. Of several needs the largest counts. An unknown signal is no need.

use alloc::borrow::ToOwned;
use core::fmt;
use core::time::Duration;

use omr_units::{Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::reason::Reason;
use crate::signals::{Machine, Memory};

/// The share of memory that should be available, as for hints.
const AVAILABLE: Permyriad = Permyriad::percent(50);
/// A machine that hibernated within this time hibernates in practice.
const IN_PRACTICE: Duration = Duration::from_secs(30 * 86_400);
/// An image is small enough if the disk writes it in this many seconds.
const WRITE_SECONDS: u64 = 5;

/// How much memory should leave, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// How much.
    pub bytes: Bytes,
    /// What for.
    pub purpose: NeedPurpose,
}

/// The purpose of a need, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "for")]
pub enum NeedPurpose {
    /// More memory should be available.
    Available {
        /// The share of memory that is available.
        available: Permyriad,
        /// The share that should be.
        wanted: Permyriad,
    },
    /// The hibernation image should be small.
    Hibernate {
        /// The largest size that the image could have now.
        image: Bytes,
        /// The size that is small enough.
        small: Bytes,
        /// The setting by which the machine hibernates; `None`: it hibernated lately.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<HibernatesBy>,
    },
    /// The host should get memory back. Only cold memory is wanted for that.
    Footprint,
}

/// A setting by which the machine hibernates by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HibernatesBy {
    /// The lid's action is hibernation.
    Lid,
    /// The action of an idle machine is.
    Idle,
    /// The action with a critical battery is.
    CriticalBattery,
}

/// Such as `the lid's action is hibernation`.
impl fmt::Display for HibernatesBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HibernatesBy::Lid => "the lid's action is hibernation",
            HibernatesBy::Idle => "the action of the idle machine is hibernation",
            HibernatesBy::CriticalBattery => "the action with a critical battery is hibernation",
        })
    }
}

impl NeedPurpose {
    /// Whether the purpose gains from page cache that leaves. Clean page cache is available before
    /// it leaves.
    pub(crate) fn gains_from_page_cache(self) -> bool {
        !matches!(self, NeedPurpose::Available { .. })
    }
}

/// Such as `188 MiB more should be available: 31 % of memory is (auto wants 50 %)`.
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes;
        match self.purpose {
            NeedPurpose::Available { available, wanted } => {
                write!(f, "{bytes} more should be available: {} of memory is (auto wants {wanted})", whole(available))
            }
            NeedPurpose::Hibernate { image, small, by } => {
                write!(
                    f,
                    "a hibernation image should hold {bytes} less: it would hold {image}, and the disk writes {small} \
                     in {WRITE_SECONDS} s; "
                )?;
                match by {
                    Some(by) => by.fmt(f),
                    None => f.write_str("the machine hibernated in the last 30 days"),
                }
            }
            NeedPurpose::Footprint => f.write_str("all cold memory should go back to the host of this machine"),
        }
    }
}

/// The share in whole percent, rounded down.
pub(crate) fn whole(share: Permyriad) -> Permyriad {
    Permyriad(share.0 / 100 * 100)
}

/// The largest need of the machine. `Err`: nobody gains from memory that leaves.
pub fn need(config: &Config, machine: &Machine) -> Result<Need, Reason> {
    largest(config, machine, footprint(machine))
}

/// The largest need that a group can meet. Only memory that is known to be cold goes to the host.
pub(crate) fn need_of_group(config: &Config, machine: &Machine, cold_only: bool) -> Result<Need, Reason> {
    let footprint = footprint(machine);
    if cold_only || footprint.is_none() {
        return largest(config, machine, footprint);
    }
    largest(config, machine, None).map_err(|reason| match reason {
        Reason::NoNeed { .. } | Reason::LittleNeed { .. } => Reason::NoMinAge,
        reason => reason,
    })
}

fn largest(config: &Config, machine: &Machine, footprint: Option<Need>) -> Result<Need, Reason> {
    let unknown = || Reason::Unknown { signal: "the available memory".to_owned() };
    let memory = machine.memory.ok_or_else(unknown)?;
    let available = memory.available.share_of(memory.total).ok_or_else(unknown)?;
    let mut need = Need {
        bytes: memory.total.share(AVAILABLE) - memory.available,
        purpose: NeedPurpose::Available { available, wanted: AVAILABLE },
    };
    for other in [hibernation(machine, memory), footprint].into_iter().flatten() {
        if other.bytes > need.bytes {
            need = other;
        }
    }
    if need.bytes == Bytes::ZERO {
        return Err(Reason::NoNeed { available, wanted: AVAILABLE });
    }
    // Memory in use goes up and down. A need that is only just there is not worth a sweep.
    let smallest = config.sweep.growth.max(config.sweep.smallest);
    if need.bytes < smallest { Err(Reason::LittleNeed { need, smallest }) } else { Ok(need) }
}

/// The part of the image that the disk does not write in time, where the machine hibernates in
/// practice: it did lately, or a setting has it do so. Being able to hibernate is not enough.
fn hibernation(machine: &Machine, memory: Memory) -> Option<Need> {
    let lately = machine.hibernated.is_some_and(|ago| ago <= IN_PRACTICE);
    let by = machine.hibernates_by.filter(|_| !lately);
    if !lately && by.is_none() {
        return None;
    }
    let image = machine.image?;
    let small = Bytes(machine.disk_rate?.0.saturating_mul(WRITE_SECONDS));
    let bytes = (image - small).min(memory.total);
    Some(Need { bytes, purpose: NeedPurpose::Hibernate { image, small, by } })
}

/// All memory, where a host gains from it.
fn footprint(machine: &Machine) -> Option<Need> {
    let bytes = machine.memory?.total;
    (machine.free_page_reporting == Some(true)).then_some(Need { bytes, purpose: NeedPurpose::Footprint })
}
