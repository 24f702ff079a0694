//! Reasons: each decision carries one, with the numbers that caused it.

use alloc::string::String;
use core::time::Duration;

use omr_units::{Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::Class;
use crate::cost::{Medium, Power};
use crate::need::Need;
use crate::presence::Presence;
use crate::probe;

mod words;

pub use words::short;

/// Why something is done or not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Reason {
    /// The machine is idle: a sweep may run.
    Idle {
        /// The time for which it has been idle.
        #[serde(rename = "for")]
        idle: Duration,
    },
    /// With `goal = "auto"`: the machine is quiet, and a sweep of cold memory may run.
    Quiet {
        /// The time for which it has been quiet.
        #[serde(rename = "for")]
        quiet: Duration,
        /// The CPU time that is free, as a share of one CPU.
        free: Permyriad,
    },
    /// With `goal = "auto"`: the machine is quiet, but not for long enough.
    QuietFor {
        /// The time for which it has been quiet.
        #[serde(rename = "held")]
        quiet: Duration,
        /// The time for which it must be quiet.
        needed: Duration,
    },
    /// With `goal = "auto"`: too little CPU time is free for a sweep of cold memory.
    LittleFree {
        /// The free CPU time, as a share of one CPU.
        free: Permyriad,
        /// The share that is needed.
        needed: Permyriad,
        /// The time that was looked at.
        window: Duration,
    },
    /// With `goal = "auto"`: tasks wait, and a sweep of cold memory would be in their way.
    NotQuiet {
        /// `cpu`, `io` or `memory`.
        resource: String,
        /// The share of time in which some task waits.
        share: Permyriad,
        /// The share that is allowed.
        allowed: Permyriad,
        /// The time that was looked at.
        window: Duration,
    },
    /// With `goal = "auto"`: the last sweep of cold memory took CPU time, and the next one waits so
    /// that sweeps stay within their share of a CPU.
    Resting {
        /// The remaining time.
        left: Duration,
        /// The CPU time of the last sweep.
        cpu: Duration,
    },
    /// With `goal = "auto"`: the last sweeps of cold memory ended early, because somebody worked.
    CutShort {
        /// The number of sweeps.
        times: u32,
        /// The remaining time.
        left: Duration,
    },
    /// `omr pause` was run.
    Paused {
        /// The remaining time of the pause; `None`: until `omr resume`.
        left: Option<Duration>,
    },
    /// `omr warm`, or the daemon itself, brings memory back.
    Warming,
    /// `mode = "record"`: nothing is reclaimed.
    Recording,
    /// Swap is being switched off, which brings all memory back that is there.
    SwapOff,
    /// The machine is about to sleep.
    GoingToSleep {
        /// A machine that is still awake after this time will not sleep any more.
        left: Duration,
    },
    /// The machine has booted only a moment ago.
    AfterBoot {
        /// The remaining time.
        left: Duration,
    },
    /// The machine has woken up only a moment ago.
    AfterResume {
        /// The remaining time.
        left: Duration,
    },
    /// A signal could not be read, which counts as busy.
    Unknown {
        /// The name of the signal.
        signal: String,
    },
    /// `strict`: a CPU is not idle enough.
    CpuBusy {
        /// The CPU.
        cpu: u32,
        /// The share of time in which it was idle.
        idle: Permyriad,
        /// The share that is needed.
        needed: Permyriad,
    },
    /// `headroom`: not enough CPU time is free.
    LowHeadroom {
        /// The free share of all CPU time.
        free: Permyriad,
        /// The share that is needed.
        needed: Permyriad,
    },
    /// `headroom`: foreground groups use the CPU.
    ForegroundBusy {
        /// The share of one CPU that they use.
        used: Permyriad,
        /// The share that is allowed.
        allowed: Permyriad,
    },
    /// Tasks wait for a resource.
    Pressure {
        /// `cpu`, `io` or `memory`.
        resource: String,
        /// The share of time in which some task waits.
        share: Permyriad,
        /// The share that is allowed.
        allowed: Permyriad,
    },
    /// The machine is being prepared for something. Sweeps wait until that is done.
    Preparing {
        /// The purpose of the preparation, and its source.
        what: String,
    },
    /// The machine is idle, but not for long enough.
    Settling {
        /// The time for which it has been idle.
        #[serde(rename = "held")]
        idle: Duration,
        /// The time for which it must be idle.
        needed: Duration,
    },
    /// During a sweep: work outside the background groups began.
    WorkBegan {
        /// The share of one CPU that it used in the last two samples.
        used: Permyriad,
        /// The share that is allowed.
        allowed: Permyriad,
    },
    /// During a sweep: a task waited for memory (PSI trigger).
    Stalled {
        /// It waited for longer than this ...
        stall: Duration,
        /// ... within this.
        window: Duration,
    },
    /// The daemon is being stopped or reconfigured.
    Stopping,
    /// No group has anything to gain.
    NothingToGain,
    /// The class does not allow it: foreground or protected.
    Class {
        /// The class.
        class: Class,
    },
    /// `memory.min` or `memory.low` of the group or an ancestor protects all of its memory.
    KernelProtection,
    /// The keep rule covers all memory of the group.
    Keep {
        /// The amount that the rule keeps.
        keep: Bytes,
    },
    /// The group has too little to gain.
    TooSmall {
        /// The amount that could be reclaimed.
        gain: Bytes,
        /// The least amount that is worth a sweep.
        smallest: Bytes,
    },
    /// Only cold memory may be reclaimed, and ages cannot be known.
    NoAges {
        /// Why not, and what the user can do.
        why: String,
    },
    /// Only cold memory may be reclaimed, and the group has not been aged for long enough.
    NotAged {
        /// The age from which on memory is cold.
        needed: Duration,
    },
    /// Only cold memory may be reclaimed, and it is not known yet what of the group is cold: its
    /// threshold is being learned, or was learned too short a time ago.
    Learning {
        /// The threshold as it is now.
        threshold: Duration,
    },
    /// Only cold memory may be reclaimed, and there is too little of it.
    #[serde(rename = "young")]
    LittleCold {
        /// The least amount that is cold.
        #[serde(rename = "old")]
        cold: Bytes,
        /// The age from which on memory is cold.
        #[serde(rename = "older_than")]
        min_age: Duration,
        /// The least amount that is worth a sweep.
        smallest: Bytes,
    },
    /// The group was swept before and has grown little since.
    SweptAlready {
        /// By how much it has grown.
        grown: Bytes,
        /// The growth that is worth another sweep.
        needed: Bytes,
    },
    /// The group was swept a moment ago.
    JustSwept {
        /// The remaining time.
        left: Duration,
    },
    /// Memory was given back to the group, and is not known to be cold yet.
    GivenBack {
        /// The remaining time.
        left: Duration,
        /// The age from which on memory is cold.
        #[serde(rename = "older_than")]
        min_age: Duration,
    },
    /// Too much came back after the last sweep, or the group could not be written to.
    BackingOff {
        /// The remaining time.
        left: Duration,
        /// Bytes that came back in a minute; `None`: the group could not be reclaimed.
        refaults: Option<Bytes>,
    },
    /// During a sweep: too much comes back.
    Refaults {
        /// Bytes that came back in the last minute.
        bytes: Bytes,
        /// The allowed number.
        allowed: Bytes,
    },
    /// There is no swap, and no page cache worth a sweep.
    NoSwap,
    /// During a sweep: swap devices were added or removed, or cannot be read any more.
    SwapChanged,
    /// With `goal = "hibernate"`: the machine cannot hibernate.
    CannotHibernate,
    /// With `goal = "hibernate"`: the image is small enough.
    SmallImage {
        /// The size that the image would have.
        image: Bytes,
        /// The size that is small enough.
        target: Bytes,
    },
    /// With `goal = "auto"`: enough memory is available, and nobody else gains from memory that
    /// leaves.
    NoNeed {
        /// The share of memory that is available.
        available: Permyriad,
        /// The share that should be.
        wanted: Permyriad,
    },
    /// With `goal = "auto"`: there is a need, too small for a sweep.
    LittleNeed {
        /// The need.
        need: Need,
        /// How much is worth a sweep.
        smallest: Bytes,
    },
    /// With `goal = "auto"`: only the host gains, from cold memory, and no rule says which memory
    /// of the group is cold.
    NoMinAge,
    /// The group is probed, because ages cannot be known, and its probe takes nothing now.
    Probing {
        /// Why not.
        why: probe::Why,
        /// Memory that probes took and that did not come back.
        out: Bytes,
    },
    /// With `goal = "auto"`: available memory is needed, and most of the group's memory is
    /// available already.
    AvailableAlready {
        /// Page cache of the group.
        page_cache: Bytes,
        /// How much of its other memory could be reclaimed.
        gain: Bytes,
        /// How much is worth a sweep.
        smallest: Bytes,
    },
    /// With `goal = "auto"`: somebody may be there, and memory of any age must not leave.
    SomebodyThere {
        /// Who is there, and the sign of it.
        presence: Presence,
    },
    /// Free swap is at its floor.
    SwapFloor {
        /// The free swap.
        free: Bytes,
        /// The amount that must stay free.
        floor: Bytes,
    },
    /// Enough memory is available.
    Available {
        /// The available amount.
        available: Bytes,
        /// The amount that is enough.
        enough: Bytes,
    },
    /// The write budget for swap on disk is used up.
    WriteBudget {
        /// The amount that was written.
        used: Bytes,
        /// The amount that may be written.
        budget: Budget,
    },
    /// With `goal = "auto"`: the write budget for swap on this medium is used up.
    MediumBudget {
        /// The medium.
        medium: Medium,
        /// The amount that was written.
        used: Bytes,
        /// The amount that may be written.
        budget: Budget,
    },
    /// With `goal = "auto"`: the machine is on battery, so nothing is written to swap on a disk.
    OnBattery {
        /// Battery, or unknown.
        power: Power,
    },
    /// A process is being hinted. No sweep begins meanwhile.
    Hinting,
    /// A background process has been unused for long enough.
    Unused {
        /// The time for which it has been unused.
        unused: Duration,
        /// The time that is needed.
        needed: Duration,
    },
    /// A process was used, or was in the foreground, a moment ago.
    InUse {
        /// The time for which it has been unused.
        unused: Duration,
        /// The time that is needed.
        needed: Duration,
    },
    /// No rule and no statement says that the process is in the background.
    #[serde(rename = "not-asked")]
    NotStated,
    /// A process has little anonymous memory.
    SmallProcess {
        /// The amount that it has.
        anon: Bytes,
        /// The least amount that is worth a hint.
        smallest: Bytes,
    },
    /// A process that was paged out is in the foreground.
    CameBack,
    /// The memory of a process is deactivated and will be paged out.
    MarkedCold {
        /// The time for which the process has been unused.
        unused: Duration,
        /// The time for which it must be unused to be paged out.
        needed: Duration,
    },
    /// A process was paged out, and its memory has changed little since.
    Unchanged {
        /// By how much its anonymous memory has changed.
        change: Bytes,
        /// The change that is worth another hint.
        needed: Bytes,
    },
    /// A process was hinted a moment ago.
    JustHinted {
        /// The remaining time.
        left: Duration,
    },
    /// The last hint about a process was refused.
    Refused {
        /// The remaining time.
        left: Duration,
    },
    /// The keep rule or the protection of the group does not leave all memory of the process.
    GroupKeeps {
        /// The amount that may be reclaimed from the group.
        room: Bytes,
        /// The anonymous memory of the process.
        anon: Bytes,
    },
}
