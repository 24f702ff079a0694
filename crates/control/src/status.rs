//! The daemon's answers to `omr status`, `omr explain` and `omr ps`.

use std::path::PathBuf;
use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::cost::Medium;
use omr_policy::forecast::Forecast;
use omr_policy::need::Need;
use omr_policy::rank::{HintKind, ProcessId, Score, Verdict};
use omr_policy::statement::Presence;
use omr_policy::threshold::PromotionRate;
use omr_policy::{Class, ColdOnly, Decision, End, Goal, Mode, Purpose, Reason};
use omr_units::{Budget, Bytes};
use serde::{Deserialize, Serialize};

use crate::counters::Counters;

/// The answer to `omr status`. `Groups`: their list, or what writes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status<Groups = Vec<GroupView>> {
    /// The version of the program.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// Act or observe.
    pub mode: Mode,
    /// The configured backend.
    pub backend: String,
    /// The files of the configuration.
    pub config: Vec<PathBuf>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// Its reason in words.
    pub reason: String,
    /// The goal of sweeps.
    #[serde(default)]
    pub goal: Option<GoalView>,
    /// The sweep that runs now.
    pub sweep: Option<SweepView>,
    /// The preparation that runs now.
    #[serde(default)]
    pub preparing: Option<PreparingView>,
    /// The memory that is given back now, because somebody came.
    #[serde(default)]
    pub giving_back: Option<GivingBackView>,
    /// Today's figures.
    pub today: Today,
    /// The memory that sweeps took to swap since the daemon started, and that is still there.
    #[serde(default)]
    pub held_out_bytes: Bytes,
    /// Swap and its limits; `None`: no swap.
    pub swap: Option<SwapView>,
    /// The hibernation image.
    pub image: Option<ImageView>,
    /// The process that gets a hint now.
    #[serde(default)]
    pub hinting: Option<String>,
    /// The statements about processes and groups.
    #[serde(default)]
    pub statements: Vec<StatementView>,
    /// The history of groups.
    #[serde(default)]
    pub history: Option<HistoryView>,
    /// Sums since the daemon started; `None`: an older daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    /// The policy in force; `None`: an older daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyView>,
    /// The number of all groups.
    pub groups_total: usize,
    /// The largest groups with memory of their own, [`MOST_GROUPS`] at most.
    pub groups: Groups,
}

/// The largest number of groups in a [`Status`]. Where it has fewer, it has all of them.
pub const MOST_GROUPS: usize = 100;

/// The goal of sweeps, and what it needs now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GoalView {
    /// The goal.
    pub goal: Goal,
    /// With `goal = "auto"`: the need of the machine; `None`: nobody gains from memory that leaves.
    pub need: Option<Need>,
    /// The same in words; `None`: another goal.
    pub words: Option<String>,
    /// Whether somebody is there; `None`: another goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<omr_policy::presence::Presence>,
    /// The same in words; `None`: another goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_words: Option<String>,
}

/// The policy in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyView {
    /// A checksum of all settings and rules: it differs where one of them does.
    pub hash: String,
    /// The promotions that are allowed.
    pub promotions: PromotionRate,
}

/// A running sweep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SweepView {
    /// The number of the sweep.
    pub number: u64,
    /// The group being reclaimed.
    pub group: String,
    /// The amount to reclaim.
    pub asked: Bytes,
    /// Freed so far.
    pub freed: Bytes,
    /// Written to swap so far.
    pub swapped_out: Bytes,
}

/// A preparation that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreparingView {
    /// The purpose.
    #[serde(rename = "for")]
    pub purpose: Purpose,
    /// The program or person that asked for it.
    pub why: String,
    /// The time left, in milliseconds; `None`: no time limit.
    pub left_ms: Option<u64>,
    /// Freed so far.
    pub freed: Bytes,
}

/// Memory that left while everybody was away, and is given back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GivingBackView {
    /// The bytes that omr has asked for so far.
    pub back: Bytes,
    /// The bytes that left.
    pub taken: Bytes,
}

/// Swap and its limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwapView {
    /// Total size.
    pub total: Bytes,
    /// Free space.
    pub free: Bytes,
    /// The swap floor: the space that stays free.
    pub floor: Bytes,
    /// A swap device is on a disk.
    pub on_disk: bool,
    /// Bytes written within the period of the budget.
    pub written: Bytes,
    /// The write budget that is reached first; `None`: unlimited.
    pub budget: Option<Budget>,
    /// The medium that the budget is for; `None`: any.
    #[serde(default)]
    pub medium: Option<Medium>,
    /// The reason why nothing is written to a disk now, in words; `None`: the budget decides.
    #[serde(default)]
    pub no_writes: Option<String>,
}

/// The hibernation image as it would be now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageView {
    /// The forecast of its size and parts; `None`: unknown.
    pub forecast: Option<Forecast>,
    /// The swap device that it goes to.
    pub device: Option<String>,
    /// The reason why the machine cannot hibernate; `None`: it can.
    pub obstacle: Option<String>,
    /// The last measured rate of the disk, in bytes per second.
    pub disk_rate: Option<Bytes>,
    /// The time to write it without any compression.
    pub write_ms_at_most: Option<u64>,
    /// Sweeps work towards a small image (`goal = "hibernate"`).
    pub is_goal: bool,
}

/// A group as `omr status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupView {
    /// The path below the mount.
    pub group: String,
    /// The class.
    pub class: Class,
    /// The class has a source; it is not the default.
    pub explicit: bool,
    /// Its memory, without that of its children.
    pub current: Option<Bytes>,
    /// Freed by sweeps since the daemon started.
    pub freed: Bytes,
    /// Refaults since its first sweep.
    pub came_back: Bytes,
    /// The time since its last sweep ended.
    pub last: Option<Duration>,
    /// Why that sweep ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<End>,
    /// It is being swept now.
    pub sweeping: bool,
    /// The minimum age for reclaim of this group; `None`: any age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_age: Option<ColdOnly>,
}

/// The answer to `omr explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The group; `None`: the machine.
    pub group: Option<String>,
    /// The decision of the daemon, with the reason.
    pub verdict: String,
    /// The reason, with its numbers.
    pub reason: Option<Reason>,
    /// The decision if the machine were idle.
    pub next: Option<String>,
    /// The class and its origin.
    pub class: Option<String>,
    /// With `goal = "auto"`: the goal and its need, in words.
    #[serde(default)]
    pub goal: Option<String>,
    /// With `goal = "auto"`: whether somebody is there, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<String>,
    /// What sweeps of the group have cost; `None`: the machine, or a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regret: Option<RegretView>,
    /// The guards, and how near they are to their limits.
    pub guards: Vec<String>,
}

/// Today, since midnight UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Today {
    /// Days since 1970.
    pub day: u64,
    /// The number of sweeps.
    pub sweeps: u64,
    /// Memory that sweeps freed.
    pub freed: Bytes,
    /// Refaults within minutes.
    pub came_back: Bytes,
    /// Bytes that sweeps wrote to swap.
    pub swapped_out: Bytes,
    /// CPU time of the reclaiming thread.
    pub cpu_ms: u64,
    /// The time that tasks of swept groups waited for memory, beyond that before the sweeps.
    #[serde(default)]
    pub waited_ms: u64,
    /// The memory that came back into swept groups, beyond that before the sweeps.
    #[serde(default)]
    pub refaulted_bytes: Bytes,
    /// Both were not known for a while, so they may be more.
    #[serde(default)]
    pub regret_incomplete: bool,
    /// The memory that sweeps took to swap and that was still there, on average over the time in
    /// which the daemon ran.
    #[serde(default)]
    pub held_out_average_bytes: Bytes,
}

/// What sweeps of a group have cost, and what they gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegretView {
    /// The memory that sweeps took to swap and that is still there.
    pub held_out_bytes: Bytes,
    /// Today: the same on average.
    #[serde(default)]
    pub held_out_average_bytes: Bytes,
    /// Today: the time that tasks waited for memory, beyond that before the sweeps.
    pub waited_ms: u64,
    /// Today: the memory that came back, beyond that before the sweeps.
    pub refaulted_bytes: Bytes,
    /// A counter was not known for a while, so the cost may be higher.
    pub incomplete: bool,
}

/// The sampling of history, for `omr status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryView {
    /// The number of agings.
    pub agings: u64,
    /// CPU time of sampling and aging.
    pub cpu_ms: u64,
    /// The time since the last aging.
    pub aged_ms_ago: Option<u64>,
    /// The time until the next aging while the budget is spent.
    pub wait_ms: u64,
}

/// A process, as `omr ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessView {
    /// The identity of the process.
    pub id: ProcessId,
    /// Its score: how expendable it is.
    pub score: Option<Score>,
    /// The decision about it, with the reason.
    pub verdict: Verdict,
    /// The last hint; `None`: none so far.
    pub last: Option<LastHint>,
    /// Its cold memory; `None`: unknown.
    pub cold: Option<ColdView>,
    /// It gets a hint now.
    pub hinting: bool,
}

/// The cold memory of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ColdView {
    /// The time since the last sample of its group.
    pub ago: Duration,
    /// Its anonymous memory at that time.
    pub memory: Bytes,
    /// For each age, the memory that was not used for it, shortest age first.
    pub unused: Vec<(Duration, Bounds)>,
}

/// A past hint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastHint {
    /// The kind of hint.
    pub step: HintKind,
    /// The time since the hint.
    pub ago: Duration,
    /// The bytes that were freed.
    pub freed: Bytes,
    /// The bytes that have left swap since then.
    pub came_back: Bytes,
}

/// A statement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatementView {
    /// The stated presence.
    pub word: Presence,
    /// The process, group or user.
    pub what: String,
}
