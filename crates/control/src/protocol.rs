//! The control socket's protocol: a line of JSON in, a line of JSON out.

use std::time::Duration;

use omr_policy::Purpose;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_policy::statement::{Presence, Statement, Subject};
use serde::{Deserialize, Serialize};

/// The time after which an unread answer is dropped.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The longest time between two statuses of [`Request::Watch`], on a machine that is not too busy.
pub const NEWS: Duration = Duration::from_secs(6);

/// How the error begins with which the daemon answers a line that is no request. To a client of omr
/// it says that the daemon has another version.
pub const NOT_A_REQUEST: &str = "not a request";

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// The status of the daemon.
    Status,
    /// The status now, and again when there is news, without another request, until the client is
    /// closed. What it asks meanwhile is answered as well, so a client of this kind asks nothing
    /// else. There is news at least each [`NEWS`].
    Watch,
    /// The reason why a group is, or is not, swept.
    Explain {
        /// The path of the group, with bytes replaced that are not UTF-8; `None`: the machine.
        group: Option<String>,
    },
    /// The reason why a process gets, or does not get, a hint.
    ExplainProcess {
        /// The id of the process.
        pid: u32,
    },
    /// The background processes.
    Processes,
    /// A statement about a process or group.
    Say {
        /// The presence; `None`: the statement is withdrawn.
        #[serde(rename = "word")]
        presence: Option<Presence>,
        /// The process or group.
        #[serde(rename = "of")]
        subject: Subject,
    },
    /// All statements of a client that stays connected. They hold until the client sends others,
    /// disconnects, or is silent for longer than an answer may take. The answer is the number of
    /// statements that were not its own to make.
    Hold {
        /// The groups and processes in the foreground, and the users who are present.
        statements: Vec<Statement>,
    },
    /// What a client that stays connected knows about who is there. The facts hold until the client
    /// sends others or disconnects, or until they are too old. The answer is true if the client may
    /// say that nobody is there; of other clients only signs of somebody count.
    Presence {
        /// The facts; `None`: it does not know any more.
        facts: Option<Facts>,
        /// The setting by which the machine hibernates; `None`: there is none, or unknown. Only the
        /// word of a client counts that may say that nobody is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hibernates: Option<HibernatesBy>,
    },
    /// Pause sweeps.
    Pause {
        /// The length of the pause, in seconds; `None`: until resumed.
        seconds: Option<u64>,
    },
    /// Pause sweeps until the machine has slept and woken up.
    FallAsleep,
    /// Resume sweeps.
    Resume,
    /// Prepare the machine for an event: free memory now, idle or not.
    Prepare {
        /// The purpose.
        #[serde(rename = "for")]
        purpose: Purpose,
        /// The time until the event, in milliseconds; `None`: unknown.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// The program or person that asks.
        why: String,
    },
    /// The event will not happen.
    StandDown,
}

/// The rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Ask questions.
    Read,
    /// Ask questions, make foreground statements about everything, and say that nobody is there:
    /// the right of the user that `omr follow` runs as.
    Follow,
    /// Ask questions, and request preparations: the right of the user that `omr watch` runs as.
    Prepare,
    /// Everything.
    Control,
}

impl Request {
    /// Returns the right that the request needs.
    pub fn needs(&self) -> Right {
        match self {
            // A client that may ask may also ask for more care of its own groups, and say that it
            // is there.
            Request::Hold { .. } | Request::Presence { .. } => Right::Read,
            Request::Status
            | Request::Watch
            | Request::Explain { .. }
            | Request::ExplainProcess { .. }
            | Request::Processes => Right::Read,
            Request::Prepare { .. } | Request::StandDown => Right::Prepare,
            Request::Say { .. } | Request::Pause { .. } | Request::FallAsleep | Request::Resume => Right::Control,
        }
    }
}

impl Right {
    /// Returns true if this right includes the other one.
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
pub enum Answer<T = serde_json::Value> {
    /// The result.
    Ok(T),
    /// The error.
    Error(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_makes_it_panic_and_a_request_says_the_same_when_it_is_said_again() {
        let lines = [
            r#"{"do":"status"}"#,
            r#"{"do":"watch"}"#,
            r#"{"do":"explain","group":"a/b"}"#,
            r#"{"do":"say","word":"foreground","of":{"group":"a"}}"#,
            r#"{"do":"hold","statements":[{"group":"a"},{"process":{"pid":7,"start":9}},{"user":1000}]}"#,
            r#"{"do":"presence","facts":{"age":{"secs":1,"nanos":2},"local":{"active":1,"idle":null},"remote":{"active":0,"idle":{"secs":0,"nanos":0}},"inhibited":true}}"#,
            r#"{"do":"pause","seconds":18446744073709551615}"#,
            r#"{"do":"prepare","for":"preempt","deadline_ms":120000,"why":"a notice"}"#,
            r#"{"ok":{"a":[1,2.5,null]}}"#,
            r#"{"error":"no"}"#,
        ];
        omr_testkit::fuzz::feed(&lines, |line| {
            let _ = serde_json::from_slice::<Answer>(line);
            let Ok(request) = serde_json::from_slice::<Request>(line) else { return };
            let again = serde_json::to_vec(&request).expect("text");
            assert_eq!(serde_json::from_slice::<Request>(&again).ok(), Some(request));
        });
    }
}
