//! What the policy is told. Rates over the time since the last tick, made from two snapshots by the
//! binary; whatever could not be read is `None`, and the policy treats `None` as busy and as hot.

use alloc::string::String;
use core::time::Duration;

use omr_units::{Amount, Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::Class;

/// Everything a decision is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// This moment.
    pub now: Monotonic,
    /// Whole hours of the wall clock since 1970, for the write budget. May jump.
    pub hour: u64,
    /// The machine was asleep since the last tick.
    pub slept: bool,
    /// The machine as a whole.
    pub machine: Machine,
}

/// The machine since the last tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Time since the last tick.
    pub dt: Duration,
    /// CPUs online.
    pub cpus: u32,
    /// The CPU that was idle least, time waiting for I/O, stolen and niced time counted as busy;
    /// omr's own time is taken out of the busiest CPU.
    pub least_idle: Option<CpuIdle>,
    /// CPU time used by anything but explicit background groups and omr itself: user, nice, system
    /// and interrupt time. Time waiting for I/O is free CPU time (the pressure rule sees it); time
    /// stolen by the host counts as used, since it was not to be had.
    pub load: Option<Duration>,
    /// CPU time used by foreground groups; zero where there are none.
    pub foreground: Option<Duration>,
    /// Time in which some task waited for a CPU (PSI).
    pub stall_cpu: Option<Duration>,
    /// The same for I/O.
    pub stall_io: Option<Duration>,
    /// The same for memory.
    pub stall_memory: Option<Duration>,
    /// Swap space; a total of zero where there is none; `None` when unknown, and then nothing is
    /// swapped.
    pub swap: Option<Swap>,
    /// Memory; `None` when unknown.
    pub memory: Option<Memory>,
    /// What a hibernation image would hold now, at most, if nothing left memory before; `None` where the
    /// machine does not hibernate to swap.
    pub image: Option<Bytes>,
    /// Whether reclaim can be told to leave anonymous memory alone (`swappiness=`, Linux 6.11).
    pub file_only: bool,
}

/// How idle a CPU was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuIdle {
    /// Its number.
    pub cpu: u32,
    /// Idle share.
    pub idle: Permyriad,
}

/// Memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All there is.
    pub total: Bytes,
    /// What programs could have without anything being swapped out (`MemAvailable`).
    pub available: Bytes,
}

/// Swap space of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    /// All of it.
    pub total: Bytes,
    /// Unused.
    pub free: Bytes,
    /// Some of it is on a disk, so that writes wear it and take time.
    pub on_disk: bool,
    /// Of what is free, what takes no image and is filled after the swap that does, or in turn with it: zram.
    #[serde(default)]
    pub beside: Bytes,
}

/// A group that could be swept: a leaf, or an inner group for what its children do not account for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Identity.
    pub id: GroupId,
    /// Its class.
    pub class: Class,
    /// Memory charged to it (of an inner group: beyond what its children hold).
    pub current: Option<Bytes>,
    /// Anonymous and shared memory: only swap can take it.
    pub swap_backed: Option<Bytes>,
    /// Page cache of files.
    pub page_cache: Option<Bytes>,
    /// Bytes that came back after they were reclaimed, ever.
    pub refaults: Option<Bytes>,
    /// What `memory.min` and `memory.low` of the group and its ancestors leave to be taken; `None` is
    /// unknown.
    pub unprotected: Option<Bytes>,
    /// The configuration's keep rule.
    pub keep: Option<Amount>,
    /// Where a rule says so, only what was not used for some time is taken.
    #[serde(default)]
    pub by_age: Option<ByAge>,
}

/// What a group loses by its age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByAge {
    /// What was surely not used for so long, and nothing else.
    pub older_than: Duration,
    /// How much that is.
    pub old: Old,
}

/// How much of a group is as old as its rule asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Old {
    /// At least so much was at the last look.
    Known {
        /// Of memory that goes to swap.
        bytes: Bytes,
    },
    /// Nobody has looked for so long.
    NotYet,
    /// It cannot be known here.
    Never {
        /// Why, and what to do.
        why: String,
    },
}

/// How the sweep of one group ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The group.
    pub id: GroupId,
    /// What is charged to it now.
    pub size: Bytes,
    /// Its refaults so far, see [`Group::refaults`].
    pub refaults: Option<Bytes>,
    /// Bytes written to swap on disk.
    pub swap_writes: Bytes,
    /// How it ended.
    pub end: End,
}

/// Why reclaiming one group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All that was asked was freed.
    Complete,
    /// The group is down to what it keeps: its keep rule, `memory.min` or `memory.low`.
    Floor,
    /// Scanning finds nothing more to free.
    Futile,
    /// Somebody needed the machine, or a signal came.
    Stopped,
    /// The time was up.
    Timeout,
    /// Swap is down to its floor and nothing but swap could take more.
    SwapFloor,
    /// The allowance for swap writes is used up.
    WriteBudget,
    /// Nothing more is known to be as old as asked for.
    Young,
    /// Whether anything is as old as asked for is not known: no generation reaches back that far.
    NotAged,
    /// Much of the group is memory whose use is not seen.
    NotSeen,
    /// The group is gone.
    Gone,
    /// No permission to write to the group's files.
    Denied,
    /// The kernel lacks the file or its syntax.
    Unsupported,
    /// Something else failed.
    Failed,
}

impl End {
    /// In a few words, after "stopped:" or alone.
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "done",
            End::Floor => "down to what the group keeps",
            End::Futile => "nothing more to free",
            End::Stopped => "stopped",
            End::Timeout => "time is up",
            End::SwapFloor => "swap is down to its floor",
            End::WriteBudget => "the allowance for swap writes is used up",
            End::Young => "nothing more is known to be that old",
            End::NotAged => "not known how old anything is",
            End::NotSeen => "much of it is memory whose use is not seen",
            End::Gone => "the group is gone",
            End::Denied => "not permitted",
            End::Unsupported => "the kernel does not support it",
            End::Failed => "failed",
        }
    }
}
