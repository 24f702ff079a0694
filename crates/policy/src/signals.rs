//! The inputs of a decision: the machine, the groups, and how a sweep ended.
//!
//! The daemon makes them from two snapshots of the machine. A signal that could not be read is
//! `None`; the policy treats an unknown machine as busy and unknown memory as used.

use alloc::string::String;
use core::time::Duration;

use omr_units::{Amount, Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::Class;
use crate::cost::CostFacts;
use crate::need::HibernatesBy;
use crate::presence::Facts;
use crate::probe;

/// The machine at one tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// This moment.
    pub now: Monotonic,
    /// Whole hours of the wall clock since 1970, for the write budget. The wall clock may jump.
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
    /// The CPU that was least idle. Time waiting for I/O, stolen time and niced time count as busy;
    /// omr's own time is subtracted from the busiest CPU.
    pub least_idle: Option<CpuIdle>,
    /// CPU time used by everything except omr and the groups that a rule or a statement calls
    /// background: user, nice, system and interrupt time. Time waiting for I/O counts as free (the
    /// pressure rule sees it). Time stolen by the host counts as used, since nobody else could have
    /// it.
    pub load: Option<Duration>,
    /// CPU time used by foreground groups; zero: there are none, or they did nothing.
    pub foreground: Option<Duration>,
    /// Time in which some task waited for a CPU (PSI `cpu` `some`).
    pub stall_cpu: Option<Duration>,
    /// The same for I/O.
    pub stall_io: Option<Duration>,
    /// The same for memory.
    pub stall_memory: Option<Duration>,
    /// Swap space, with a total of zero where there is none; `None`: unknown, and nothing is
    /// swapped out.
    pub swap: Option<Swap>,
    /// Memory; `None`: unknown.
    pub memory: Option<Memory>,
    /// The largest size that a hibernation image could have if it were made now; `None`: the
    /// machine does not hibernate to swap.
    pub image: Option<Bytes>,
    /// Time since the machine last hibernated, by omr's own record; `None`: never, or unknown.
    #[serde(default)]
    pub hibernated: Option<Duration>,
    /// The setting by which the machine hibernates by itself; `None`: there is none, or unknown.
    #[serde(default)]
    pub hibernates_by: Option<HibernatesBy>,
    /// Bytes that the disk of the image writes in a second, as last measured; `None`: unknown.
    #[serde(default)]
    pub disk_rate: Option<Bytes>,
    /// True if free memory is reported to a host, which then has it back; `None`: unknown.
    #[serde(default)]
    pub free_page_reporting: Option<bool>,
    /// Facts about the sessions of people; `None`: unknown, which counts as somebody.
    #[serde(default)]
    pub presence: Option<Facts>,
    /// True if memory that leaves because everybody is away can be given back.
    #[serde(default)]
    pub gives_back: bool,
    /// True if the kernel can reclaim page cache only (`swappiness=`, Linux 6.11).
    pub file_only: bool,
    /// What a write to swap costs.
    #[serde(default)]
    pub cost: CostFacts,
}

/// The idle share of a CPU since the last tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuIdle {
    /// Number of the CPU.
    pub cpu: u32,
    /// Share of the time in which it was idle.
    pub idle: Permyriad,
}

/// Memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory (`MemTotal`).
    pub total: Bytes,
    /// The memory that programs could get without any swap-out (`MemAvailable`).
    pub available: Bytes,
}

/// Swap space of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    /// Size of all swap areas.
    pub total: Bytes,
    /// Free swap.
    pub free: Bytes,
    /// Some of it is on a disk, where writes take time and wear.
    pub on_disk: bool,
    /// The part of the free swap that cannot take a hibernation image (zram) and that the kernel
    /// fills after the swap of the image, or in turn with it.
    #[serde(rename = "beside", default)]
    pub free_outside_image: Bytes,
}

impl Machine {
    /// The part of the machine that the swap floor depends on.
    pub fn swap_context(&self) -> SwapContext {
        SwapContext { swap: self.swap, image: self.image }
    }
}

/// The part of the machine that the swap floor depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapContext {
    /// Swap space; `None`: unknown.
    pub swap: Option<Swap>,
    /// The largest size that a hibernation image could have; `None`: the machine does not hibernate
    /// to swap.
    pub image: Option<Bytes>,
}

/// A group that could be swept: a leaf, or an inner group with the memory that is not charged to
/// its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Identity.
    pub id: GroupId,
    /// Its class.
    pub class: Class,
    /// Memory charged to it (for an inner group: without the memory of its children); `None`:
    /// unknown, as in all fields below.
    pub current: Option<Bytes>,
    /// Anonymous and shared memory, which can only leave to swap.
    pub swap_backed: Option<Bytes>,
    /// Page cache of files.
    pub page_cache: Option<Bytes>,
    /// Bytes that were refaulted since the group was made.
    pub refaults: Option<Bytes>,
    /// The memory that `memory.min` and `memory.low` of the group and its ancestors do not protect.
    pub unprotected: Option<Bytes>,
    /// The amount that its keep rule keeps; `None`: it has no such rule.
    pub keep: Option<Amount>,
    /// Only cold memory may be reclaimed, by an `older_than` rule; `None`: it has no such rule.
    #[serde(default)]
    pub cold_only: Option<ColdOnly>,
}

impl Group {
    /// True if only memory that is known to be cold would be reclaimed.
    pub(crate) fn loses_only_cold(&self) -> bool {
        self.cold_only.as_ref().is_some_and(|cold_only| !cold_only.is_probed())
    }
}

/// An `older_than` rule, or the threshold that was learned for it, and what is known for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdOnly {
    /// Only memory that was certainly unused for this long may be reclaimed.
    #[serde(rename = "older_than")]
    pub min_age: Duration,
    /// The amount of memory.
    #[serde(rename = "old")]
    pub cold: ColdAmount,
    /// True if the daemon learns the age.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub learned: bool,
    /// The learned threshold; `min_age` may be shorter while everybody is away. `None`: a rule sets
    /// the age, or the group was not observed for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Duration>,
}

impl ColdOnly {
    /// True if ages cannot be known, and a probe says how much may be reclaimed, of any age.
    pub fn is_probed(&self) -> bool {
        matches!(self.cold, ColdAmount::Probed { .. })
    }
}

/// The memory of a group that is cold by its rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum ColdAmount {
    /// At least this much was at the last sample.
    Known {
        /// Anonymous and shared memory.
        bytes: Bytes,
    },
    /// The group has not been aged for that long yet.
    NotYet,
    /// It cannot be known on this machine or for this group.
    Never {
        /// Why not, and what the user can do.
        why: String,
    },
    /// The same, and a probe says how much may be reclaimed, of any age.
    Probed {
        /// As above.
        why: String,
        /// How much now, or why nothing.
        answer: probe::Answer,
        /// Memory that probes took and that did not come back.
        out: Bytes,
    },
}

/// The end of a sweep of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The group.
    pub id: GroupId,
    /// Memory charged to it now.
    pub size: Bytes,
    /// Its refaults so far, see [`Group::refaults`]; `None`: unknown.
    pub refaults: Option<Bytes>,
    /// Bytes written to swap on disk.
    pub swap_writes: Bytes,
    /// Why the sweep ended.
    pub end: End,
}

/// Why reclaiming one group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// As much as was asked for was freed.
    Complete,
    /// The group is down to the amount that its keep rule, `memory.min` or `memory.low` keeps.
    Floor,
    /// The kernel finds nothing more to free.
    Futile,
    /// Somebody needed the machine, or the run was cancelled.
    Stopped,
    /// The time limit was reached.
    Timeout,
    /// Swap is down to its floor, and the rest could only leave to swap.
    SwapFloor,
    /// The write budget is used up.
    WriteBudget,
    /// No more memory is known to be cold.
    #[serde(rename = "young")]
    NoMoreCold,
    /// It is not known whether any memory is cold: no generation reaches back that far.
    NotAged,
    /// The kernel does not see the use of much of the group's memory.
    NotSeen,
    /// The group does not exist any more.
    Gone,
    /// No permission to write to the group's files.
    Denied,
    /// The kernel lacks the file or its syntax.
    Unsupported,
    /// Something else failed.
    Failed,
}

impl End {
    /// Returns true if reclaim failed for a reason that an administrator must remove.
    pub fn is_failure(self) -> bool {
        matches!(self, End::Denied | End::Unsupported | End::Failed)
    }

    /// Returns true if a sweep with this end is not finished: it continues as soon as possible.
    pub(crate) fn is_cut_short(self) -> bool {
        match self {
            End::Stopped | End::Timeout | End::Gone | End::Denied | End::Unsupported | End::Failed => true,
            End::Complete
            | End::Floor
            | End::Futile
            | End::SwapFloor
            | End::WriteBudget
            | End::NoMoreCold
            | End::NotAged
            | End::NotSeen => false,
        }
    }

    /// The end in a few words, to be printed after "stopped:" or alone.
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "done",
            End::Floor => "down to what the group keeps",
            End::Futile => "nothing more to free",
            End::Stopped => "stopped",
            End::Timeout => "time is up",
            End::SwapFloor => "swap is down to its floor",
            End::WriteBudget => "the write budget is used up",
            End::NoMoreCold => "no more memory is known to be cold",
            End::NotAged => "the age of its memory is not known",
            End::NotSeen => "the kernel does not see the use of much of its memory",
            End::Gone => "the group is gone",
            End::Denied => "not permitted",
            End::Unsupported => "the kernel does not support it",
            End::Failed => "failed",
        }
    }
}
