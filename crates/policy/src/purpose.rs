//! The purposes for which omr prepares a machine.

use serde::{Deserialize, Serialize};

/// A purpose for which a machine is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Hibernation: the image should be small.
    Hibernate,
    /// Migration to another host: little memory should have to be copied.
    Migrate,
    /// Termination: programs that save their state need free memory and an idle disk.
    Preempt,
}

impl Purpose {
    /// The name of the purpose in output and requests.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Hibernate => "hibernate",
            Purpose::Migrate => "migrate",
            Purpose::Preempt => "preempt",
        }
    }
}
