//! `/sys/kernel/security/lockdown`: what the kernel forbids even to root, as with Secure Boot.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Kernel;

/// How far the kernel is locked down. Since 5.4; sample line: `none [integrity] confidentiality`,
/// the current one in brackets. Source: security/lockdown/lockdown.c.
///
/// From `Integrity` on there is no hibernation, and no file of debugfs with a write bit (`lru_gen`
/// is one) can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lockdown {
    /// Not at all.
    None,
    /// Nothing that could change the running kernel.
    Integrity,
    /// Nor anything that could read its secrets.
    Confidentiality,
}

impl Lockdown {
    /// Parses the text; `None` when no known word is in brackets.
    pub fn parse(text: &[u8]) -> Option<Self> {
        text.split(u8::is_ascii_whitespace).find_map(|word| match word {
            b"[none]" => Some(Lockdown::None),
            b"[integrity]" => Some(Lockdown::Integrity),
            b"[confidentiality]" => Some(Lockdown::Confidentiality),
            _ => None,
        })
    }

    /// Reads it. `None`: not built in, or securityfs is not mounted, or not readable.
    pub fn read(kernel: &Kernel) -> Option<Self> {
        Lockdown::parse(kernel.sys.read_string("kernel/security/lockdown").ok()?.as_bytes())
    }

    /// Whether it forbids anything that omr uses.
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
