//! The report of a run that brings memory back.

use std::time::Duration;

use omr_policy::Class;
use omr_units::Bytes;
use serde::{Deserialize, Serialize};

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All memory that was to come back was requested.
    Complete,
    /// No more fits into memory.
    Headroom,
    /// Foreground work lasted too long.
    Busy,
    /// A signal came.
    Stopped,
    /// The time was up.
    Timeout,
    /// omr lacks the capabilities.
    Denied,
    /// The kernel has no such hint.
    Unsupported,
}

impl End {
    /// Describes the end in a few words.
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "done",
            End::Headroom => "no more fits into memory",
            End::Busy => "foreground work",
            End::Stopped => "stopped by a signal",
            End::Timeout => "time is up",
            End::Denied => "not permitted: it needs CAP_SYS_NICE and CAP_SYS_PTRACE, so run it as root",
            End::Unsupported => "this kernel's process_madvise has no MADV_WILLNEED (needs Linux 6.1)",
        }
    }
}

/// The result for one group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// Its path below the mount.
    pub group: String,
    /// Its class.
    pub class: Class,
    /// The number of processes with requested memory.
    pub processes: usize,
    /// Bytes requested from swap.
    pub swap: Bytes,
    /// Bytes requested from files and shared memory.
    pub file: Bytes,
    /// True if memory stays in swap: no more fits under a limit of the group or of one above it.
    pub full: bool,
}

/// The use of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// There is no record.
    None,
    /// The record is of this boot, and was used.
    Used,
    /// The record is of another boot, so its processes are gone.
    OfAnotherBoot,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The use of the record.
    pub record: Use,
    /// Bytes requested from swap, including pages that were in the swap cache already.
    pub swap: Bytes,
    /// Bytes requested from files and shared memory, including pages that were in memory already.
    pub file: Bytes,
    /// Bytes that the whole machine read from swap meanwhile (`pswpin`).
    pub swapped_in: Bytes,
    /// Recorded bytes that are no longer mapped.
    pub unmapped: Bytes,
    /// Bytes that the kernel refused, or that were unmapped meanwhile.
    pub skipped: Bytes,
    /// Bytes in swap that cannot be requested: changed pages of privately mapped files.
    pub uncovered: Bytes,
    /// The number of recorded processes that are gone.
    pub gone: usize,
    /// The number of processes that could not be read.
    pub denied: usize,
    /// The number of processes that could not be read for other reasons: they have too many
    /// mappings, or reading one took too long.
    pub unread: usize,
    /// The number of calls to the kernel.
    pub calls: u32,
    /// The time (`CLOCK_MONOTONIC`) at which the last call returned.
    pub last_call_end_ns: u64,
    /// The duration of the run.
    #[serde(skip)]
    pub wall: Duration,
    /// The CPU time of this thread.
    #[serde(skip)]
    pub cpu: Duration,
    /// The end of the run.
    pub end: End,
    /// The foreground work that ended the run; `None`: another end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The groups, in the order in which they came back.
    pub groups: Vec<GroupReport>,
}

impl Report {
    /// Nothing was requested, and nothing was left to request.
    pub fn nothing(record: Use) -> Self {
        Report {
            record,
            swap: Bytes::ZERO,
            file: Bytes::ZERO,
            swapped_in: Bytes::ZERO,
            unmapped: Bytes::ZERO,
            skipped: Bytes::ZERO,
            uncovered: Bytes::ZERO,
            gone: 0,
            denied: 0,
            unread: 0,
            calls: 0,
            last_call_end_ns: 0,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            end: End::Complete,
            reason: None,
            groups: Vec::new(),
        }
    }
}
