//! Statements: a user or an agent tells omr whether somebody works with a process or a group.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::config::Class;
use crate::rank::processes::ProcessId;

/// The use of a process or a group by its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// Nobody works with it: its memory may be reclaimed.
    Background,
    /// Its user is at the machine and may work with any part of it: the group is not reclaimed, but
    /// a statement may put single processes of it in the background.
    Present,
    /// Somebody works with it: it is not reclaimed.
    Foreground,
}

impl Presence {
    /// The class that follows from it.
    pub fn class(self) -> Class {
        match self {
            Presence::Present | Presence::Foreground => Class::Foreground,
            Presence::Background => Class::Background,
        }
    }
}

/// The process or group that a statement is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A process.
    Process(ProcessId),
    /// A group, by its path below the mount, in which bytes that are not UTF-8 are replaced.
    Group(String),
}

/// A statement that stands for as long as its client keeps it up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Statement {
    /// The use of the subject by its user; never `Background`.
    #[serde(rename = "word")]
    pub presence: Presence,
    /// The process or group that the statement is about.
    #[serde(rename = "of")]
    pub subject: Subject,
}
