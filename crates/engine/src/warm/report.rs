//! What became of it.

use std::time::Duration;

use omr_policy::Class;
use omr_units::Bytes;
use serde::Serialize;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All that was to come back was asked for.
    Complete,
    /// No more fits into memory.
    Headroom,
    /// Somebody works.
    Busy,
    /// A signal came.
    Stopped,
    /// The time was up.
    Timeout,
    /// No permission.
    Denied,
    /// The kernel lacks it.
    Unsupported,
}

impl End {
    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "done",
            End::Headroom => "no more fits into memory",
            End::Busy => "somebody works",
            End::Stopped => "stopped by a signal",
            End::Timeout => "time is up",
            End::Denied => "not permitted: it needs CAP_SYS_NICE and CAP_SYS_PTRACE, so run it as root",
            End::Unsupported => "this kernel's process_madvise takes no MADV_WILLNEED (6.1 has it)",
        }
    }
}

/// What was done for one group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupReport {
    /// Its path below the mount.
    pub group: String,
    /// Its class.
    pub class: Class,
    /// Processes of which anything was asked for.
    pub processes: usize,
    /// Asked for from swap.
    pub swap: Bytes,
    /// Asked for from files and shared memory.
    pub file: Bytes,
    /// Left in swap: no more fits under a limit of the group or of one above it.
    pub full: bool,
}

/// Whether a record was of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// There is none.
    None,
    /// It is of this boot.
    Used,
    /// Its processes are gone with their boot.
    OfAnotherBoot,
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether there was a record to go by.
    pub record: Use,
    /// Asked for from swap. What was in the swap cache already counts too.
    pub swap: Bytes,
    /// Asked for from files and shared memory; what was in memory already counts too.
    pub file: Bytes,
    /// Read from swap meanwhile by the whole machine (`pswpin`).
    pub swapped_in: Bytes,
    /// Recorded, and not mapped any more.
    pub unmapped: Bytes,
    /// Refused by the kernel, or unmapped just then.
    pub skipped: Bytes,
    /// In swap and out of reach: changed pages of privately mapped files.
    pub uncovered: Bytes,
    /// Recorded processes that are gone.
    pub gone: usize,
    /// Processes that could not be looked at.
    pub denied: usize,
    /// Calls to the kernel.
    pub calls: u32,
    /// When the last one returned, `CLOCK_MONOTONIC`.
    pub last_call_end_ns: u64,
    /// How long it took.
    #[serde(skip)]
    pub wall: Duration,
    /// CPU time of this thread.
    #[serde(skip)]
    pub cpu: Duration,
    /// How it ended.
    pub end: End,
    /// What somebody did who worked, where that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Group by group, in the order in which they came back.
    pub groups: Vec<GroupReport>,
}
