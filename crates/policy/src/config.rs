//! What the user can choose. Plain values with the defaults; reading files is the binary's part.

use core::time::Duration;

use omr_units::{Amount, Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

/// The whole configuration of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether decisions are carried out.
    pub mode: Mode,
    /// What sweeps work towards.
    pub goal: Goal,
    /// What `Goal::Hibernate` needs to know.
    pub hibernate: Hibernate,
    /// When the machine counts as idle.
    pub idle: Idle,
    /// When a running sweep ends because somebody needs the machine.
    pub stop: Stop,
    /// What a sweep does.
    pub sweep: Sweep,
    /// What keeps sweeps from doing harm.
    pub guard: Guard,
    /// When processes in the background are hinted away.
    pub hints: Hints,
    /// What is remembered of groups.
    pub history: History,
}

/// Whether decisions are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reclaim.
    #[default]
    Act,
    /// Decide and record, and write nothing to the kernel.
    Observe,
}

/// What sweeps work towards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Free memory: all that background groups may lose.
    #[default]
    Free,
    /// A small hibernation image, at any time. No sweeps where the machine cannot hibernate, and none
    /// once the image is small enough.
    Hibernate,
}

/// What `Goal::Hibernate` works towards, and what happens last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernate {
    /// The image, before compression, is small enough at this size; zero: never.
    pub image: Bytes,
    /// Whether `image_size` is raised while the image is made, where little more could leave.
    pub raise_image_size: bool,
}

impl Default for Hibernate {
    fn default() -> Self {
        Hibernate { image: Bytes::ZERO, raise_image_size: true }
    }
}

/// Which rule tells an idle machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleRule {
    /// Enough CPU time is free after taking out what background groups and omr itself use, tasks
    /// hardly wait for anything, and no foreground group runs beyond a small share.
    #[default]
    Headroom,
    /// The seed's: every CPU is almost wholly idle. Time waiting for I/O, time stolen by the host and
    /// niced time count as busy.
    Strict,
}

/// When the machine counts as idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// The rule.
    pub rule: IdleRule,
    /// How long the rule must hold before the first sweep. The seed's 30 s.
    #[serde(rename = "for")]
    pub hold: Duration,
    /// After an interruption the rule must hold as long as the interruption lasted, at least this
    /// long and at most `for`. Twice as long as after the interruption before, unless sweeps could go
    /// on for as long as `for` in between.
    pub again: Duration,
    /// Load and pressure are averaged over this time, so that one short burst is not busy.
    pub window: Duration,
    /// `strict`: every CPU must be idle by at least this share. The seed's 95 %.
    pub strict: Permyriad,
    /// `headroom`: share of all CPU time that must be free.
    pub free: Permyriad,
    /// `headroom`: all foreground groups together may use this share of one CPU.
    pub foreground: Permyriad,
    /// `headroom`: share of time in which some task may wait for a CPU (PSI `cpu` `some`).
    pub pressure_cpu: Permyriad,
    /// `headroom`: the same for I/O.
    pub pressure_io: Permyriad,
    /// `headroom`: the same for memory.
    pub pressure_memory: Permyriad,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            rule: IdleRule::Headroom,
            hold: Duration::from_secs(30),
            again: Duration::from_secs(5),
            window: Duration::from_secs(10),
            strict: Permyriad::percent(95),
            free: Permyriad::percent(75),
            foreground: Permyriad::percent(10),
            pressure_cpu: Permyriad::percent(20),
            pressure_io: Permyriad::percent(20),
            pressure_memory: Permyriad::percent(5),
        }
    }
}

/// When a running sweep ends because somebody needs the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Share of one CPU that work outside background groups may use above what it used when the
    /// sweep began, over the last two samples.
    pub cpu: Permyriad,
    /// How often that is looked at while a sweep runs. Two samples and one write must fit into the
    /// 100 ms in which a sweep stops.
    pub sample: Duration,
    /// A sweep ends when some task waited for memory for this long within `window` (PSI trigger).
    pub stall: Duration,
    /// Kernels before 6.7 take no window below 500 ms.
    pub window: Duration,
}

impl Default for Stop {
    fn default() -> Self {
        Stop {
            cpu: Permyriad::percent(25),
            sample: Duration::from_millis(20),
            stall: Duration::from_millis(50),
            window: Duration::from_millis(500),
        }
    }
}

/// What a sweep does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// No sweep for this long after boot.
    pub after_boot: Duration,
    /// No sweep for this long after the machine woke up from suspend or hibernation.
    pub after_resume: Duration,
    /// Groups with less to gain are left alone.
    pub smallest: Bytes,
    /// A group that was swept is swept again when it has grown by this much.
    pub growth: Bytes,
    /// One write to the kernel may ask for this much.
    pub step: Bytes,
    /// Steps are made smaller until one write takes no longer than this.
    pub write_time: Duration,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep {
            after_boot: Duration::from_secs(120),
            after_resume: Duration::from_secs(300),
            smallest: Bytes::mib(2),
            growth: Bytes::mib(16),
            step: Bytes::mib(4),
            write_time: Duration::from_millis(20),
        }
    }
}

/// What keeps sweeps from doing harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// A group into which more than this comes back in a minute after its sweep is left alone for
    /// `backoff`, then twice as long, and so on.
    pub refaults_per_minute: Bytes,
    /// See there.
    pub backoff: Duration,
    /// The longest back-off.
    pub backoff_max: Duration,
    /// Swap that stays free: a size or a share of all swap. On a machine that can hibernate, what
    /// the image needs stays free as well.
    pub swap_floor: Amount,
    /// How much sweeps may write to swap on disk; swap in memory (zram) does not count. `None`: any
    /// amount.
    pub max_swap_writes: Option<Budget>,
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            refaults_per_minute: Bytes::mib(4),
            backoff: Duration::from_secs(600),
            backoff_max: Duration::from_secs(86_400),
            swap_floor: Amount::Share(Permyriad::percent(10)),
            max_swap_writes: Some(Budget { bytes: Bytes(20 << 30), hours: 24 }),
        }
    }
}

/// When processes in the background are hinted away. Which ones those are is said by rules and by
/// whoever knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// The memory of a process that was in the background and unused for this long is marked cold.
    pub cold_after: Duration,
    /// And is paged out when that has been so for this long. ChromeOS's 45 s.
    pub pageout_after: Duration,
    /// A process that takes no more than this share of one CPU is not in use: most have timers.
    pub cpu: Permyriad,
    /// Processes with less anonymous memory are left alone. Android's 12,000 kB.
    pub smallest: Bytes,
    /// What was paged out is paged out again when its anonymous memory has changed by this much.
    /// Android's 8,000 kB.
    pub change: Bytes,
    /// With less free swap than this share, nothing is paged out. Android's 20 %.
    pub swap_free: Permyriad,
    /// With more memory available than this share, nothing is paged out, and no more than lacks for it.
    pub available: Permyriad,
    /// What was paged out of a process is brought back when it comes to the foreground.
    #[serde(default)]
    pub prefetch: bool,
}

impl Default for Hints {
    fn default() -> Self {
        Hints {
            cold_after: Duration::from_secs(10),
            pageout_after: Duration::from_secs(45),
            cpu: Permyriad::percent(1),
            smallest: Bytes::mib(12),
            change: Bytes::mib(8),
            swap_free: Permyriad::percent(20),
            available: Permyriad::percent(50),
            prefetch: false,
        }
    }
}

/// What is remembered of groups: what they held, and how long it was not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// A sample is taken this often.
    pub every: Duration,
    /// On disk; zero: nothing is kept there.
    pub size: Bytes,
    /// Share of one CPU that looking may take; zero: what is used is not looked at.
    pub budget: Permyriad,
}

impl Default for History {
    fn default() -> Self {
        History { every: Duration::from_secs(600), size: Bytes::mib(64), budget: Permyriad(20) }
    }
}

/// What omr may do to a group or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// May be reclaimed.
    Background,
    /// Somebody is working with it: nothing is taken from it, and its work stops a sweep.
    Foreground,
    /// The system needs it: nothing is taken from it.
    Protected,
}

impl Class {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Background => "background",
            Class::Foreground => "foreground",
            Class::Protected => "protected",
        }
    }
}
