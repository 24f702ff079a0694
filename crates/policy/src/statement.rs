//! Statements: somebody who knows tells omr what a process or a group is to its user.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::Class;
use crate::rank::ProcessId;

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// Nobody works with it.
    Background,
    /// Its user is at the machine, and may work with any part of it: nothing is taken from the group, but of each
    /// process in it may be said that it is in the background.
    Present,
    /// Somebody works with it.
    Foreground,
}

impl Presence {
    /// The class.
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
    /// A group, by its path below the mount; bytes that are not UTF-8 replaced.
    Group(String),
}

/// A statement that stands for as long as its client keeps it up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Statement {
    /// What the subject is to its user; never `Background`.
    #[serde(rename = "word")]
    pub presence: Presence,
    /// The process or group that the statement is about.
    #[serde(rename = "of")]
    pub subject: Subject,
}
