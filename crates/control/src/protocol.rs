//! The control socket's protocol: a line of JSON in, a line of JSON out.

use std::time::Duration;

use omr_policy::Purpose;
use omr_policy::statement::{Presence, Statement, Subject};
use serde::{Deserialize, Serialize};

/// An answer that is not read stays no longer than this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// What goes on.
    Status,
    /// Why a group is, or is not, swept.
    Explain {
        /// Its path, bytes that are not UTF-8 replaced; `None`: the machine.
        group: Option<String>,
    },
    /// Why a process is, or is not, hinted away.
    ExplainProcess {
        /// Its id.
        pid: u32,
    },
    /// The processes in the background.
    Processes,
    /// Somebody knows whether a process or group is in the foreground.
    Say {
        /// `None`: nothing is said any more.
        #[serde(rename = "word")]
        presence: Option<Presence>,
        /// Of whom.
        #[serde(rename = "of")]
        subject: Subject,
    },
    /// What the client goes on saying, all of it; true until it says something else, leaves, or is silent for longer
    /// than an answer may take. The answer: how many of them were not its own.
    Hold {
        /// Who is in the foreground, and which users are present.
        statements: Vec<Statement>,
    },
    /// No sweeps.
    Pause {
        /// For this long, in seconds; `None`: until resumed.
        seconds: Option<u64>,
    },
    /// No sweeps until the machine has slept and woken up.
    FallAsleep,
    /// Sweeps again.
    Resume,
    /// Something is about to happen to the machine: free memory for it now, idle or not.
    Prepare {
        /// For what.
        #[serde(rename = "for")]
        purpose: Purpose,
        /// In how many milliseconds it happens; `None`: nobody knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// Who says so.
        why: String,
    },
    /// It will not happen after all.
    StandDown,
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Ask.
    Read,
    /// Ask, and say of everything that it is in the foreground: what the user that `omr follow` runs as may do.
    Follow,
    /// Ask, and have the machine prepared: what the user that `omr watch` runs as may do.
    Prepare,
    /// Everything.
    Control,
}

impl Request {
    /// What one needs to be allowed for it.
    pub fn needs(&self) -> Right {
        match self {
            // Of what is one's own: who may ask may ask for more care.
            Request::Hold { .. } => Right::Read,
            Request::Status | Request::Explain { .. } | Request::ExplainProcess { .. } | Request::Processes => {
                Right::Read
            }
            Request::Prepare { .. } | Request::StandDown => Right::Prepare,
            Request::Say { .. } | Request::Pause { .. } | Request::FallAsleep | Request::Resume => Right::Control,
        }
    }
}

impl Right {
    /// Whether this right includes the other.
    pub fn covers(self, needed: Right) -> bool {
        match self {
            Right::Read | Right::Follow => needed == Right::Read,
            Right::Prepare => needed != Right::Control,
            Right::Control => true,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// As asked.
    Ok(serde_json::Value),
    /// Why not.
    Error(String),
}
