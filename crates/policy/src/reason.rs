//! Why: each decision carries one of these, with the numbers that caused it.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use omr_units::{Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::Class;

/// Why something is done, or not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Reason {
    /// Idle, so reclaim.
    Idle {
        /// For this long.
        #[serde(rename = "for")]
        held: Duration,
    },
    /// Somebody said `omr pause`.
    Paused {
        /// Until then; `None`: until `omr resume`.
        left: Option<Duration>,
    },
    /// `omr warm` brings memory back.
    Warming,
    /// The machine is about to sleep.
    GoingToSleep {
        /// If it is not asleep by then, it will not be.
        left: Duration,
    },
    /// Shortly after boot.
    AfterBoot {
        /// Still to wait.
        left: Duration,
    },
    /// Shortly after the machine woke up.
    AfterResume {
        /// Still to wait.
        left: Duration,
    },
    /// A signal is missing, which counts as busy.
    Unknown {
        /// Its name.
        signal: String,
    },
    /// `strict`: a CPU is not idle enough.
    CpuBusy {
        /// The CPU.
        cpu: u32,
        /// How idle it was.
        idle: Permyriad,
        /// How idle it must be.
        needed: Permyriad,
    },
    /// `headroom`: not enough CPU time is free.
    LowHeadroom {
        /// Free share of all CPUs.
        free: Permyriad,
        /// Needed share.
        needed: Permyriad,
    },
    /// `headroom`: a foreground group is at work.
    ForegroundBusy {
        /// Share of one CPU.
        used: Permyriad,
        /// Allowed.
        allowed: Permyriad,
    },
    /// Tasks wait for a resource.
    Pressure {
        /// `cpu`, `io` or `memory`.
        resource: String,
        /// Share of time.
        share: Permyriad,
        /// Allowed.
        allowed: Permyriad,
    },
    /// The machine is being prepared for something; sweeps wait until that is done.
    Preparing {
        /// For what, and who says so.
        what: String,
    },
    /// The rule holds, but not for long enough.
    Settling {
        /// For this long so far.
        held: Duration,
        /// Needed.
        needed: Duration,
    },
    /// While sweeping: work outside the background groups began.
    WorkBegan {
        /// Share of one CPU it used in the last two samples.
        used: Permyriad,
        /// Allowed.
        allowed: Permyriad,
    },
    /// While sweeping: a task waited for memory (PSI trigger).
    Stalled {
        /// Longer than this ...
        stall: Duration,
        /// ... within this.
        window: Duration,
    },
    /// The daemon is being stopped or reconfigured.
    Stopping,
    /// No group has anything to gain.
    NothingToGain,
    /// Class foreground or protected.
    Class {
        /// Its class.
        class: Class,
    },
    /// `memory.min` or `memory.low` of the group or an ancestor cover all that it uses.
    KernelProtection,
    /// The keep rule covers all that it uses.
    Keep {
        /// What it keeps.
        keep: Bytes,
    },
    /// Too little to gain.
    TooSmall {
        /// This much.
        gain: Bytes,
        /// Needed.
        smallest: Bytes,
    },
    /// Only what is old may be taken, and how old anything is cannot be known.
    NoAges {
        /// Why, and what to do.
        why: String,
    },
    /// Only what is old may be taken, and nobody has looked for so long.
    NotAged {
        /// The age.
        needed: Duration,
    },
    /// Too little is as old as it must be to be taken.
    Young {
        /// This much is.
        old: Bytes,
        /// As old as this.
        older_than: Duration,
        /// Worth a sweep.
        smallest: Bytes,
    },
    /// Swept before, and hardly grown since.
    SweptAlready {
        /// Grown by this much.
        grown: Bytes,
        /// Needed.
        needed: Bytes,
    },
    /// Swept a moment ago.
    JustSwept {
        /// Still to wait.
        left: Duration,
    },
    /// Too much came back after the last sweep, or the group could not be written to.
    BackingOff {
        /// Still to wait.
        left: Duration,
        /// Bytes that came back in a minute; `None` when permission was what failed.
        refaults: Option<Bytes>,
    },
    /// While sweeping: too much comes back.
    Refaults {
        /// In the last minute.
        bytes: Bytes,
        /// Allowed.
        allowed: Bytes,
    },
    /// There is no swap, and no page cache worth a sweep.
    NoSwap,
    /// With `goal = "hibernate"`: there would be no image.
    CannotHibernate,
    /// With `goal = "hibernate"`: the image is small enough.
    SmallImage {
        /// What it would hold.
        image: Bytes,
        /// What is small enough.
        target: Bytes,
    },
    /// Free swap is at its floor.
    SwapFloor {
        /// Free.
        free: Bytes,
        /// Floor.
        floor: Bytes,
    },
    /// Enough memory is available.
    Available {
        /// Available.
        available: Bytes,
        /// Enough.
        enough: Bytes,
    },
    /// The allowance for writes to swap on disk is used up.
    WriteBudget {
        /// Written.
        used: Bytes,
        /// Allowed.
        budget: Budget,
    },
    /// A process is being hinted away.
    Hinting,
    /// A process in the background that nobody has used.
    Unused {
        /// For this long.
        unused: Duration,
        /// Needed.
        needed: Duration,
    },
    /// A process that was used, or in the foreground, a moment ago.
    InUse {
        /// Unused for this long.
        unused: Duration,
        /// Needed.
        needed: Duration,
    },
    /// Neither a rule nor anybody says that the process is in the background.
    NotAsked,
    /// A process has little anonymous memory.
    SmallProcess {
        /// This much.
        anon: Bytes,
        /// Needed.
        smallest: Bytes,
    },
    /// A process that was paged out is in the foreground.
    CameBack,
    /// A process's memory is marked cold, and will be paged out.
    MarkedCold {
        /// Unused for this long.
        unused: Duration,
        /// When it is paged out.
        needed: Duration,
    },
    /// A process was paged out, and hardly anything has changed since.
    Unchanged {
        /// By this much.
        change: Bytes,
        /// Needed.
        needed: Bytes,
    },
    /// A process was hinted a moment ago.
    JustHinted {
        /// Still to wait.
        left: Duration,
    },
    /// The last hint about a process was refused.
    Refused {
        /// Still to wait.
        left: Duration,
    },
    /// The protection or the keep rule of a process's group leaves less than all of its memory.
    GroupKeeps {
        /// What may be taken from the group.
        room: Bytes,
        /// What the process has.
        anon: Bytes,
    },
}

/// Whole seconds from 10 s on, tenths below; minutes and hours from two of them on.
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
            Reason::Idle { held } => write!(f, "idle for {}", short(*held)),
            Reason::Paused { left: None } => write!(f, "paused; omr resume goes on"),
            Reason::Paused { left: Some(left) } => write!(f, "paused for another {}", short(*left)),
            Reason::GoingToSleep { left } => {
                write!(f, "the machine is about to sleep; unless it does, held for another {}", short(*left))
            }
            Reason::AfterBoot { left } => write!(f, "quiet after boot for another {}", short(*left)),
            Reason::AfterResume { left } => write!(f, "quiet after waking up for another {}", short(*left)),
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
            Reason::Settling { held, needed } => {
                write!(f, "idle for {} so far, {} is needed", short(*held), short(*needed))
            }
            Reason::WorkBegan { used, allowed } => {
                write!(f, "work began: {used} of a CPU outside background groups, {allowed} is allowed during a sweep")
            }
            Reason::Stalled { stall, window } => {
                write!(f, "a task waited for memory for more than {} in {}", short(*stall), short(*window))
            }
            Reason::Warming => write!(f, "omr warm is bringing memory back"),
            Reason::Stopping => write!(f, "the daemon is stopping"),
            Reason::NothingToGain => write!(f, "no group has anything to gain"),
            Reason::Class { class } => write!(f, "class {}: never touched", class.name()),
            Reason::KernelProtection => write!(f, "memory.min or memory.low covers all that it uses"),
            Reason::Keep { keep } => write!(f, "its rule keeps {keep}, which covers all that it uses"),
            Reason::TooSmall { gain, smallest } => write!(f, "{gain} to gain, {smallest} is worth a sweep"),
            Reason::NoAges { why } => write!(f, "its rule takes only what is old, which is not known here: {why}"),
            Reason::NotAged { needed } => {
                write!(f, "its rule takes only what was not used for {}, which is not known yet", short(*needed))
            }
            Reason::Young { old, older_than, smallest } => {
                write!(f, "{old} was surely not used for {}, {smallest} is worth a sweep", short(*older_than))
            }
            Reason::SweptAlready { grown, needed } => {
                write!(f, "swept before and grown by {grown} since, {needed} is worth another sweep")
            }
            Reason::JustSwept { left } => write!(f, "swept a moment ago, left alone for another {}", short(*left)),
            Reason::BackingOff { left, refaults: Some(refaults) } => {
                write!(f, "backing off for another {}: {refaults} came back in a minute", short(*left))
            }
            Reason::BackingOff { left, refaults: None } => {
                write!(f, "backing off for another {}: it could not be reclaimed", short(*left))
            }
            Reason::Refaults { bytes, allowed } => {
                write!(f, "{bytes} came back in the last minute, {allowed} is allowed")
            }
            Reason::CannotHibernate => {
                write!(f, "this machine cannot hibernate (goal = \"hibernate\"); omr prepare hibernate says why")
            }
            Reason::SmallImage { image, target } => {
                write!(f, "an image would hold {image}, and {target} is small enough")
            }
            Reason::NoSwap => write!(f, "there is no swap, and hardly any page cache to take"),
            Reason::SwapFloor { free, floor } => write!(f, "{free} of swap is free, {floor} stays free"),
            Reason::Available { available, enough } => {
                write!(f, "{available} of memory is available, {enough} is enough")
            }
            Reason::WriteBudget { used, budget } => {
                write!(f, "{used} was written to swap, the allowance is {budget}")
            }
            Reason::Hinting => write!(f, "a process in the background is being hinted away"),
            Reason::Unused { unused, needed } => {
                write!(f, "in the background and unused for {}, {} is needed", short(*unused), short(*needed))
            }
            Reason::InUse { unused, needed } => {
                write!(f, "used or in the foreground {} ago, {} is needed", short(*unused), short(*needed))
            }
            Reason::NotAsked => write!(f, "nothing says that it is in the background"),
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
            Reason::JustHinted { left } => write!(f, "hinted a moment ago, left alone for another {}", short(*left)),
            Reason::Refused { left } => write!(f, "the last hint was refused, left alone for another {}", short(*left)),
            Reason::GroupKeeps { room, anon } => {
                write!(f, "its group leaves {room} to be taken, and it has {anon}")
            }
        }
    }
}
