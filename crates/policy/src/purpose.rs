//! What a machine is prepared for.

use serde::{Deserialize, Serialize};

/// What a machine can be prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Hibernation: little may be left that the image must hold.
    Hibernate,
    /// Being moved to another host: little may be left that must be copied.
    Migrate,
    /// Being ended: whoever saves what it has needs memory and an idle disk for it.
    Preempt,
}

impl Purpose {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Hibernate => "hibernate",
            Purpose::Migrate => "migrate",
            Purpose::Preempt => "preempt",
        }
    }
}
