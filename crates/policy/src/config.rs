//! The settings of the policy, as plain values with their defaults. Other crates read the files.

use core::time::Duration;

use omr_units::{Amount, Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::cost::Cost;
use crate::presence;
use crate::threshold::{PromotionRate, Slo, Step};

/// The whole configuration of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The mode: omr acts, or not.
    pub mode: Mode,
    /// The goal of sweeps.
    pub goal: Goal,
    /// Settings of `Goal::Hibernate`.
    pub hibernate: Hibernate,
    /// When the machine counts as idle.
    pub idle: Idle,
    /// When nobody is there.
    #[serde(default)]
    pub presence: presence::Settings,
    /// When a running sweep ends because somebody needs the machine.
    pub stop: Stop,
    /// When sweeps begin and how large they are.
    pub sweep: Sweep,
    /// Limits that keep sweeps from doing harm.
    pub guard: Guard,
    /// What learned thresholds must keep.
    #[serde(default)]
    pub slo: Objective,
    /// What sweeps may cost, with `Goal::Auto`.
    #[serde(default)]
    pub cost: Cost,
    /// When background processes are hinted.
    pub hints: Hints,
    /// The intervals of samples and agings, and the size of the history.
    pub history: History,
}

/// The mode: omr acts, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Decisions are carried out.
    #[default]
    Act,
    /// Decisions are only recorded; nothing is written to the kernel.
    Observe,
    /// Nothing is reclaimed, but groups are aged, so that the history knows the ages of their memory.
    Record,
}

impl Mode {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Act => "act",
            Mode::Observe => "observe",
            Mode::Record => "record",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Mode::Act, Mode::Observe, Mode::Record].into_iter().find(|mode| mode.name() == name)
    }
}

/// The goal of sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Memory that somebody gains from: available memory where little is available, a small image
    /// where the machine hibernates in practice, cold memory where a host gets it back. Nothing
    /// where nobody gains. See [`crate::need`].
    #[default]
    Auto,
    /// Free memory: as much as background groups may lose.
    Free,
    /// A small hibernation image at any time. No sweep runs where the machine cannot hibernate or
    /// while the image is small enough.
    Hibernate,
}

impl Goal {
    /// The name of the goal in configuration and output.
    pub fn name(self) -> &'static str {
        match self {
            Goal::Auto => "auto",
            Goal::Free => "free",
            Goal::Hibernate => "hibernate",
        }
    }

    /// The goal with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Goal::Auto, Goal::Free, Goal::Hibernate].into_iter().find(|goal| goal.name() == name)
    }
}

/// Settings of `Goal::Hibernate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernate {
    /// An image of this size, before compression, is small enough; zero: no image is.
    pub image: Bytes,
    /// True if omr raises `image_size` while the image is made, if little more could leave memory.
    pub raise_image_size: bool,
}

impl Default for Hibernate {
    fn default() -> Self {
        Hibernate { image: Bytes::ZERO, raise_image_size: true }
    }
}

/// The rule by which the machine counts as idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleRule {
    /// Enough CPU time is free, not counting the use by background groups and omr; tasks hardly
    /// wait for anything; and foreground groups use no more than a small share.
    #[default]
    Headroom,
    /// Every CPU is almost completely idle, as in the seed of omr. Time waiting for I/O, time
    /// stolen by the host and niced time count as busy.
    Strict,
}

/// When the machine counts as idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// The rule.
    pub rule: IdleRule,
    /// The time for which the rule must hold before the first sweep. 30 s is the value of the seed.
    #[serde(rename = "for")]
    pub hold: Duration,
    /// After an interruption the rule must hold for as long as the interruption lasted, at least
    /// for this long and at most for `for`. The least time doubles with each interruption, unless
    /// sweeps could run for as long as `for` in between.
    pub again: Duration,
    /// Load and pressure are averaged over this time, so that one short burst does not count as
    /// busy.
    pub window: Duration,
    /// `strict`: the least share of time in which every CPU must be idle. 95 % is the value of the
    /// seed.
    pub strict: Permyriad,
    /// `headroom`: the share of all CPU time that must be free.
    pub free: Permyriad,
    /// `headroom`: the share of one CPU that all foreground groups together may use.
    pub foreground: Permyriad,
    /// `headroom`: the share of time in which some task may wait for a CPU (PSI `cpu` `some`).
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
    /// The share of one CPU, over the last two samples, by which work outside background groups may
    /// exceed its use at the beginning of the sweep.
    pub cpu: Permyriad,
    /// The time between two samples while a sweep runs. Two samples and one write must fit into the
    /// 100 ms in which a sweep stops.
    pub sample: Duration,
    /// A sweep ends when some task waited for memory for this long within `window` (PSI trigger).
    pub stall: Duration,
    /// The window of that PSI trigger. Kernels before 6.7 accept no window below 500 ms.
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

/// When sweeps begin and how large they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// No sweep runs for this long after boot.
    pub after_boot: Duration,
    /// No sweep runs for this long after the machine woke up from suspend or hibernation.
    pub after_resume: Duration,
    /// Groups with less than this to gain are not swept.
    pub smallest: Bytes,
    /// A group is swept again when it has grown by this much since its last sweep.
    pub growth: Bytes,
    /// The most that one write to the kernel may ask for.
    pub step: Bytes,
    /// Writes get smaller until one takes no longer than this.
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

/// Limits that keep sweeps from doing harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// A group with more refaults than this in a minute after its sweep is not swept for a time.
    pub refaults_per_minute: Bytes,
    /// The same as a share of the group's memory, with swap in memory (zram). The larger of the two
    /// counts.
    pub refaults_share: Permyriad,
    /// The first such time; then twice as long, and so on.
    pub backoff: Duration,
    /// The longest back-off.
    pub backoff_max: Duration,
    /// Swap that must stay free: a size or a share of all swap. On a machine that can hibernate, at
    /// least the space for the image stays free.
    pub swap_floor: Amount,
    /// The amount that omr may write to swap on disks; swap in memory (zram) does not count.
    /// `None`: any amount.
    pub max_swap_writes: Option<Budget>,
}

impl Guard {
    /// The refaults that a group with so much memory may have in a minute. From a disk, a share of a
    /// large group would take longer than that minute.
    pub fn allowed(&self, memory: Bytes, swap_is_on_disk: bool) -> Bytes {
        let share = if swap_is_on_disk { Permyriad(0) } else { self.refaults_share };
        self.refaults_per_minute.max(memory.share(share))
    }
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            refaults_per_minute: Bytes::mib(4),
            refaults_share: Permyriad::percent(1),
            backoff: Duration::from_secs(600),
            backoff_max: Duration::from_secs(86_400),
            swap_floor: Amount::Share(Permyriad::percent(10)),
            max_swap_writes: Some(Budget { bytes: Bytes(20 << 30), hours: 24 }),
        }
    }
}

/// What the threshold of a group must keep, where a rule says `older_than = "auto"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objective {
    /// The most promotions in a minute, as a share of the memory in use, with swap in memory
    /// (zram). Swap on a disk has less.
    pub promotions: Permyriad,
    /// The share of time in which a shorter threshold must have kept that before it is used.
    pub kept: Permyriad,
    /// The time for which a new group is only observed.
    pub warm_up: Duration,
    /// The shortest threshold.
    pub shortest: Duration,
    /// The longest threshold, with which a group begins.
    pub longest: Duration,
}

impl Default for Objective {
    fn default() -> Self {
        let Slo { kept, warm_up, least, most, .. } = Slo::default();
        Objective { promotions: Permyriad(20), kept, warm_up, shortest: least.age(), longest: most.age() }
    }
}

impl Objective {
    /// The promotions that are allowed on this machine. Without a measured time, a disk counts as
    /// slow.
    pub fn rate(&self, swap_is_on_disk: bool) -> PromotionRate {
        let promotions = PromotionRate(self.promotions.0.saturating_mul(100));
        if swap_is_on_disk { promotions.for_device(None) } else { promotions }
    }

    /// The objective on this machine. Without a measured time, a disk counts as slow.
    pub fn slo(&self, swap_is_on_disk: bool, page: Bytes) -> Slo {
        let (least, most) = (Step::not_below(self.shortest), Step::not_below(self.longest));
        Slo {
            promotions: self.rate(swap_is_on_disk),
            kept: self.kept,
            warm_up: self.warm_up,
            least: least.min(most),
            most,
            page,
        }
    }
}

/// When background processes are hinted. Rules, users and agents say which processes those are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// A process that was in the background and unused for this long is deactivated: the kernel
    /// reclaims its memory first when memory is short.
    pub cold_after: Duration,
    /// A process that was in the background and unused for this long is paged out. 45 s is the
    /// value of ChromeOS.
    pub pageout_after: Duration,
    /// A process that uses no more than this share of one CPU counts as unused: most have timers.
    pub cpu: Permyriad,
    /// Processes with less anonymous memory than this get no hints. Android uses 12,000 kB.
    pub smallest: Bytes,
    /// A process is paged out again when its anonymous memory has changed by this much. Android
    /// uses 8,000 kB.
    pub change: Bytes,
    /// Nothing is paged out while less than this share of swap is free. Android uses 20 %.
    pub swap_free: Permyriad,
    /// Nothing is paged out while more than this share of memory is available, and no more is paged
    /// out than the difference to it.
    pub available: Permyriad,
    /// True if the memory of a process is prefetched when the process comes to the foreground.
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

/// The intervals of samples and agings, and the size of the history on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The time between two samples.
    pub every: Duration,
    /// The size of the history on disk; zero: nothing is kept there.
    pub size: Bytes,
    /// The share of one CPU that aging may use; zero: groups are not aged.
    pub budget: Permyriad,
}

impl Default for History {
    fn default() -> Self {
        History { every: Duration::from_secs(600), size: Bytes::mib(96), budget: Permyriad(20) }
    }
}

/// The memory of a group that sweeps may reclaim, by age: the value of `older_than`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MinAge {
    /// Memory of any age.
    Any,
    /// Only memory that is known to be unused for this time. Never zero.
    Time(Duration),
    /// The same, with the threshold that the daemon learns for the group.
    Learned,
}

/// The class of a group or process, which says what omr may do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Its memory may be reclaimed.
    Background,
    /// Somebody works with it: it is not reclaimed, and its work stops a sweep.
    Foreground,
    /// The system needs it: it is not reclaimed.
    Protected,
}

impl Class {
    /// The name of the class in configuration and output.
    pub fn name(self) -> &'static str {
        match self {
            Class::Background => "background",
            Class::Foreground => "foreground",
            Class::Protected => "protected",
        }
    }
}
