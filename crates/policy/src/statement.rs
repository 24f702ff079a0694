//! Statements: somebody who knows tells omr what a process or a group is to its user.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::Class;
use crate::rank::ProcessId;

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// Nobody works with it.
    Background,
    /// Its user is at the machine, and may work with any part of it: nothing is taken from the group, but of each
    /// process in it may be said that it is in the background.
    Present,
    /// Somebody works with it.
    Foreground,
}

impl Word {
    /// The class.
    pub fn class(self) -> Class {
        match self {
            Word::Present | Word::Foreground => Class::Foreground,
            Word::Background => Class::Background,
        }
    }
}

/// Of whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// A process.
    Process(ProcessId),
    /// A group, by its path below the mount; bytes that are not UTF-8 replaced.
    Group(String),
}

/// Something that is true for as long as whoever says so goes on saying it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Statement {
    /// What; never that something is in the background.
    pub word: Word,
    /// Of whom.
    pub of: Of,
}
