//! `/sys/kernel/security/lockdown` (Linux 5.4): operations that the kernel forbids even to root,
//! for example under Secure Boot.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Kernel;

/// The level of lockdown. Sample line: `none [integrity] confidentiality`, the current level in
/// brackets. Source: security/lockdown/lockdown.c.
///
/// From `Integrity` on the machine cannot hibernate, and no file of debugfs with a write bit can be
/// opened; `lru_gen` is such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lockdown {
    /// Nothing is forbidden.
    None,
    /// Operations that could change the running kernel are forbidden.
    Integrity,
    /// Operations that could read the kernel's secrets are forbidden as well.
    Confidentiality,
}

impl Lockdown {
    /// Parses the text. `None`: no known word is in brackets.
    pub fn parse(text: &[u8]) -> Option<Self> {
        text.split(u8::is_ascii_whitespace).find_map(|word| match word {
            b"[none]" => Some(Lockdown::None),
            b"[integrity]" => Some(Lockdown::Integrity),
            b"[confidentiality]" => Some(Lockdown::Confidentiality),
            _ => None,
        })
    }

    /// Reads the level. `None`: lockdown is not built in, or the file cannot be read, for example
    /// because securityfs is not mounted.
    pub fn read(kernel: &Kernel) -> Option<Self> {
        Lockdown::parse(kernel.sys.read_string("kernel/security/lockdown").ok()?.as_bytes())
    }

    /// True if it forbids anything that omr uses.
    pub fn is_locked(self) -> bool {
        self != Lockdown::None
    }
}

impl fmt::Display for Lockdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Lockdown::None => "none",
            Lockdown::Integrity => "integrity",
            Lockdown::Confidentiality => "confidentiality",
        })
    }
}
