//! The form in which a threshold is kept on disk.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::evidence;
use super::grid::{STEPS, Step};
use super::interval::Window;
use super::{IN_VAIN, STAY_MS, Threshold};

/// The version of this form. Another version is refused as a whole.
const VERSION: u32 = 2;

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    version: u32,
    step: Step,
    observed: u64,
    calm: [u32; STEPS],
    unclear: u32,
    in_vain: [u16; STEPS],
    evidence: evidence::Saved,
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
    fn from(threshold: Threshold) -> Self {
        let calm = threshold.calm_at.map(|at| threshold.calm_of(at));
        let Threshold { step, observed, unclear, in_vain, evidence, window, .. } = threshold;
        Saved { version: VERSION, step, observed, calm, unclear, in_vain, evidence: evidence.into(), window }
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
            (calm.iter().all(|&time| time <= STAY_MS), "calm"),
            (in_vain.iter().all(|&left| left <= IN_VAIN), "in_vain"),
            (evidence.is_valid(), "evidence"),
            (window.is_valid(), "window"),
        ];
        match valid.into_iter().find(|(is_valid, _)| !is_valid) {
            Some((_, part)) => Err(Refused::Range(part)),
            None => Ok(Threshold {
                step,
                observed,
                now: 0,
                calm_at: calm.map(|time| STAY_MS.saturating_sub(time)),
                unclear,
                in_vain,
                evidence: evidence.into(),
                window,
            }),
        }
    }
}
