//! Reasons: each decision carries one, with the numbers that caused it.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use omr_units::{Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::Class;
use crate::cost::{Medium, Power};
use crate::need::{Need, whole};
use crate::presence::{self, Presence};
use crate::probe;

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

/// A time in few digits: milliseconds below 0.1 s, tenths of a second below 10 s, then whole
/// seconds; minutes and hours from two of them on.
pub fn short(time: Duration) -> impl fmt::Display {
    struct Short(Duration);
    impl fmt::Display for Short {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let seconds = self.0.as_secs();
            match seconds {
                0 if self.0.subsec_millis() < 100 => write!(f, "{} ms", self.0.as_millis()),
                0..10 => write!(f, "{}.{} s", seconds, self.0.subsec_millis() / 100),
                10..120 => write!(f, "{seconds} s"),
                120..7200 => write!(f, "{} min", seconds / 60),
                _ => write!(f, "{} h", seconds / 3600),
            }
        }
    }
    Short(time)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Idle { idle } => write!(f, "idle for {}", short(*idle)),
            Reason::Paused { left: None } => write!(f, "paused until omr resume"),
            Reason::Paused { left: Some(left) } => write!(f, "paused for another {}", short(*left)),
            Reason::GoingToSleep { left } => {
                write!(f, "the machine is about to sleep; if it does not, sweeps may begin in {}", short(*left))
            }
            Reason::AfterBoot { left } => write!(f, "no sweep after boot for another {}", short(*left)),
            Reason::AfterResume { left } => write!(f, "no sweep after waking up for another {}", short(*left)),
            Reason::Unknown { signal } => write!(f, "{signal} cannot be read, which counts as busy"),
            Reason::CpuBusy { cpu, idle, needed } => {
                write!(f, "not idle: cpu {cpu} is {idle} idle, {needed} is needed (strict rule)")
            }
            Reason::LowHeadroom { free, needed } => {
                write!(f, "not idle: {free} of CPU time is free, {needed} is needed (headroom rule)")
            }
            Reason::ForegroundBusy { used, allowed } => {
                write!(f, "not idle: foreground groups use {used} of a CPU, {allowed} is allowed")
            }
            Reason::Pressure { resource, share, allowed } => {
                write!(f, "not idle: tasks wait for {resource} {share} of the time, {allowed} is allowed")
            }
            Reason::Preparing { what } => write!(f, "preparing for {what}"),
            Reason::Settling { idle, needed } => {
                write!(f, "idle for {} so far, {} is needed", short(*idle), short(*needed))
            }
            Reason::WorkBegan { used, allowed } => {
                write!(f, "work began: {used} of a CPU outside background groups, {allowed} is allowed during a sweep")
            }
            Reason::Stalled { stall, window } => {
                write!(f, "a task waited for memory for more than {} in {}", short(*stall), short(*window))
            }
            Reason::Warming => write!(f, "omr is bringing memory back"),
            Reason::Stopping => write!(f, "the daemon is stopping"),
            reason => reason.fmt_of_group(f),
        }
    }
}

impl Reason {
    /// The reasons that are about one group or about swap.
    fn fmt_of_group(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NothingToGain => write!(f, "no group has anything to gain"),
            Reason::Class { class } => write!(f, "class {}: loses no memory", class.name()),
            Reason::KernelProtection => write!(f, "memory.min or memory.low protects all of its memory"),
            Reason::Keep { keep } => write!(f, "its rule keeps {keep}, which covers all of its memory"),
            Reason::TooSmall { gain, smallest } => write!(f, "{gain} to gain, {smallest} is worth a sweep"),
            Reason::NoAges { why } => {
                write!(f, "only its cold memory is reclaimed, and ages are not known here: {why}")
            }
            Reason::Probing { why, out } => {
                write!(f, "ages are not known here, so a probe reclaims a little at a time ({out} is out): {why}")
            }
            Reason::Learning { threshold } => {
                write!(
                    f,
                    "only memory that will not be missed is reclaimed, and omr still learns which that is \
                     (threshold {})",
                    short(*threshold)
                )
            }
            Reason::NotAged { needed } => {
                write!(
                    f,
                    "its rule reclaims only memory unused for {}, and ages that long are not known yet",
                    short(*needed)
                )
            }
            Reason::LittleCold { cold, min_age, smallest } => {
                write!(f, "{cold} is known to be unused for {}, {smallest} is worth a sweep", short(*min_age))
            }
            Reason::SweptAlready { grown, needed } => {
                write!(f, "swept before and grown by {grown} since, {needed} is worth another sweep")
            }
            Reason::JustSwept { left } => write!(f, "swept a moment ago, not swept for another {}", short(*left)),
            Reason::GivenBack { left, min_age } => {
                write!(
                    f,
                    "memory was given back to it, and what stays unused for {} is cold in {}",
                    short(*min_age),
                    short(*left)
                )
            }
            Reason::BackingOff { left, refaults: Some(refaults) } => {
                write!(f, "backing off for another {}: {refaults} came back in a minute", short(*left))
            }
            Reason::BackingOff { left, refaults: None } => {
                write!(f, "backing off for another {}: it could not be reclaimed", short(*left))
            }
            Reason::Refaults { bytes, allowed } => {
                write!(f, "{bytes} came back in the last minute, {allowed} is allowed")
            }
            Reason::NoSwap => write!(f, "there is no swap, and hardly any page cache to reclaim"),
            Reason::SwapFloor { free, floor } => write!(f, "{free} of swap is free, {floor} stays free"),
            Reason::WriteBudget { used, budget } => {
                write!(f, "{used} was written to swap, the write budget is {budget}")
            }
            reason => reason.fmt_of_goal(f),
        }
    }

    /// The reasons of one goal.
    fn fmt_of_goal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::CannotHibernate => {
                write!(f, "this machine cannot hibernate (goal = \"hibernate\"); omr prepare hibernate says why")
            }
            Reason::SmallImage { image, target } => {
                write!(f, "an image would hold {image}, and {target} is small enough")
            }
            Reason::NoNeed { available, wanted } => {
                write!(f, "nothing to gain: {} of memory is available (auto wants {wanted})", whole(*available))
            }
            Reason::LittleNeed { need, smallest } => {
                write!(f, "little to gain: {need}; {smallest} is worth a sweep")
            }
            Reason::NoMinAge => {
                write!(f, "only the host would gain, from cold memory, and no rule (older_than) says what is cold")
            }
            Reason::AvailableAlready { page_cache, gain, smallest } => {
                write!(
                    f,
                    "{gain} to gain, {smallest} is worth a sweep; its page cache, {page_cache}, is available already"
                )
            }
            Reason::MediumBudget { medium, used, budget } => {
                write!(f, "the write budget for {} is used up: {used} of {budget}", medium.with_article())
            }
            Reason::OnBattery { power: Power::Unknown } => {
                write!(
                    f,
                    "the power source is not known, which counts as on battery: nothing is written to swap on disk"
                )
            }
            Reason::OnBattery { .. } => write!(f, "on battery: nothing is written to swap on disk"),
            Reason::SomebodyThere { presence } => presence::explain(presence, f),
            reason => reason.fmt_of_quiet(f),
        }
    }

    /// The reasons of sweeps of cold memory on a machine that is not idle.
    fn fmt_of_quiet(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Quiet { quiet, free } => write!(f, "quiet for {}, {free} of a CPU free", short(*quiet)),
            Reason::QuietFor { quiet, needed } => {
                write!(f, "quiet for {} so far, {} is needed for cold memory", short(*quiet), short(*needed))
            }
            Reason::LittleFree { free, needed, window } => {
                write!(f, "not quiet: {free} of a CPU was free in the last {}, {needed} is needed", short(*window))
            }
            Reason::NotQuiet { resource, share, allowed, window } => {
                let resource = match resource.as_str() {
                    "cpu" => "a CPU",
                    "io" => "I/O",
                    other => other,
                };
                write!(
                    f,
                    "not quiet: {share} of the last {} some task waited for {resource}, {allowed} is allowed",
                    short(*window)
                )
            }
            Reason::Resting { left, cpu } => {
                write!(
                    f,
                    "the last sweep of cold memory took {} of CPU time, the next one begins in {}",
                    short(*cpu),
                    short(*left)
                )
            }
            Reason::CutShort { times: 1, left } => {
                write!(f, "work cut short the last sweep of cold memory, none begins for another {}", short(*left))
            }
            Reason::CutShort { times, left } => {
                let left = short(*left);
                write!(f, "work cut short the last {times} sweeps of cold memory, none begins for another {left}")
            }
            reason => reason.fmt_of_process(f),
        }
    }

    /// The reasons that are about one process.
    fn fmt_of_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Available { available, enough } => {
                write!(f, "{available} of memory is available, {enough} is enough")
            }
            Reason::Hinting => write!(f, "a background process is being hinted"),
            Reason::Unused { unused, needed } => {
                write!(f, "in the background and unused for {}, {} is needed", short(*unused), short(*needed))
            }
            Reason::InUse { unused, needed } => {
                write!(f, "used or in the foreground {} ago, {} is needed", short(*unused), short(*needed))
            }
            Reason::NotStated => write!(f, "no rule or statement says that it is in the background"),
            Reason::SmallProcess { anon, smallest } => {
                write!(f, "{anon} of anonymous memory, {smallest} is worth a hint")
            }
            Reason::CameBack => write!(f, "it is in the foreground again"),
            Reason::MarkedCold { unused, needed } => {
                write!(f, "marked cold; unused for {}, at {} it is paged out", short(*unused), short(*needed))
            }
            Reason::Unchanged { change, needed } => {
                write!(f, "paged out before and changed by {change} since, {needed} is worth another time")
            }
            Reason::JustHinted { left } => write!(f, "hinted a moment ago, no hint for another {}", short(*left)),
            Reason::Refused { left } => write!(f, "the last hint was refused, no hint for another {}", short(*left)),
            Reason::GroupKeeps { room, anon } => {
                write!(f, "its group may lose {room}, and the process has {anon}")
            }
            // Printed by the functions above. A new reason must get its text in one of the five.
            Reason::Idle { .. }
            | Reason::Quiet { .. }
            | Reason::QuietFor { .. }
            | Reason::LittleFree { .. }
            | Reason::NotQuiet { .. }
            | Reason::Resting { .. }
            | Reason::CutShort { .. }
            | Reason::Paused { .. }
            | Reason::Warming
            | Reason::GoingToSleep { .. }
            | Reason::AfterBoot { .. }
            | Reason::AfterResume { .. }
            | Reason::Unknown { .. }
            | Reason::CpuBusy { .. }
            | Reason::LowHeadroom { .. }
            | Reason::ForegroundBusy { .. }
            | Reason::Pressure { .. }
            | Reason::Preparing { .. }
            | Reason::Settling { .. }
            | Reason::WorkBegan { .. }
            | Reason::Stalled { .. }
            | Reason::Stopping
            | Reason::NothingToGain
            | Reason::Class { .. }
            | Reason::KernelProtection
            | Reason::Keep { .. }
            | Reason::TooSmall { .. }
            | Reason::NoAges { .. }
            | Reason::NotAged { .. }
            | Reason::Learning { .. }
            | Reason::Probing { .. }
            | Reason::LittleCold { .. }
            | Reason::SweptAlready { .. }
            | Reason::JustSwept { .. }
            | Reason::GivenBack { .. }
            | Reason::BackingOff { .. }
            | Reason::Refaults { .. }
            | Reason::NoSwap
            | Reason::CannotHibernate
            | Reason::SmallImage { .. }
            | Reason::NoNeed { .. }
            | Reason::LittleNeed { .. }
            | Reason::NoMinAge
            | Reason::AvailableAlready { .. }
            | Reason::SomebodyThere { .. }
            | Reason::SwapFloor { .. }
            | Reason::MediumBudget { .. }
            | Reason::OnBattery { .. }
            | Reason::WriteBudget { .. } => Ok(()),
        }
    }
}
