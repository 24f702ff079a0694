//! The form in which a threshold is kept on disk.

use core::fmt;

use omr_units::millis;
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::grid::{STEPS, Step};
use super::interval::Window;
use super::{IN_VAIN, STAY, Threshold};

/// The version of this form. Another version is refused as a whole.
const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    version: u32,
    step: Step,
    observed: u64,
    calm: [u32; STEPS],
    unclear: u32,
    in_vain: [u16; STEPS],
    evidence: Evidence,
    window: Window,
}

/// Why a saved threshold is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has a version that this program does not know.
    Version(u32),
    /// It has a value that cannot have come about, in the part of this name.
    Range(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Version(found) => write!(f, "a threshold of version {found}; this program knows {VERSION}"),
            Refused::Range(part) => write!(f, "a threshold with a value out of range in {part:?}"),
        }
    }
}

impl core::error::Error for Refused {}

impl From<Threshold> for Saved {
    fn from(Threshold { step, observed, calm, unclear, in_vain, evidence, window }: Threshold) -> Self {
        Saved { version: VERSION, step, observed, calm, unclear, in_vain, evidence, window }
    }
}

impl TryFrom<Saved> for Threshold {
    type Error = Refused;

    fn try_from(
        Saved { version, step, observed, calm, unclear, in_vain, evidence, window }: Saved,
    ) -> Result<Self, Refused> {
        if version != VERSION {
            return Err(Refused::Version(version));
        }
        let valid = [
            (calm.iter().all(|&time| u64::from(time) <= millis(STAY)), "calm"),
            (in_vain.iter().all(|&left| left <= IN_VAIN), "in_vain"),
            (evidence.is_valid(), "evidence"),
            (window.is_valid(), "window"),
        ];
        match valid.into_iter().find(|(is_valid, _)| !is_valid) {
            Some((_, part)) => Err(Refused::Range(part)),
            None => Ok(Threshold { step, observed, calm, unclear, in_vain, evidence, window }),
        }
    }
}
