//! The daemon's answers to `omr status`, `omr explain` and `omr ps`.

use std::path::PathBuf;
use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::forecast::Forecast;
use omr_policy::rank::{HintKind, ProcessId, Score, Verdict};
use omr_policy::statement::Presence;
use omr_policy::{Class, ColdOnly, Decision, Mode, Purpose, Reason};
use omr_units::{Budget, Bytes};
use serde::{Deserialize, Serialize};

/// The answer to `omr status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Of the daemon.
    pub pid: u32,
    /// Act or observe.
    pub mode: Mode,
    /// The file groups are reclaimed by, as configured.
    pub backend: String,
    /// Files of the configuration.
    pub config: Vec<PathBuf>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// Its reason in words.
    pub reason: String,
    /// The sweep that runs.
    pub sweep: Option<SweepView>,
    /// What the machine is being prepared for.
    #[serde(default)]
    pub preparing: Option<PreparingView>,
    /// Today's figures.
    pub today: Today,
    /// Swap.
    pub swap: Option<SwapView>,
    /// The hibernation image.
    pub image: Option<ImageView>,
    /// The process that is being hinted away.
    #[serde(default)]
    pub hinting: Option<String>,
    /// What somebody has said of processes and groups.
    #[serde(default)]
    pub statements: Vec<StatementView>,
    /// The history of groups.
    #[serde(default)]
    pub history: Option<HistoryView>,
    /// All groups there are.
    pub groups_total: usize,
    /// The largest groups with memory of their own.
    pub groups: Vec<GroupView>,
}

/// A running sweep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SweepView {
    /// Its number.
    pub number: u64,
    /// The group being reclaimed.
    pub group: String,
    /// Asked of it.
    pub asked: Bytes,
    /// Freed so far.
    pub freed: Bytes,
    /// Written to swap so far.
    pub swapped_out: Bytes,
}

/// A preparation that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreparingView {
    /// For what.
    #[serde(rename = "for")]
    pub purpose: Purpose,
    /// Who says so.
    pub why: String,
    /// Until it ends, reached or not.
    pub left_ms: Option<u64>,
    /// Freed so far.
    pub freed: Bytes,
}

/// Swap and what is allowed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwapView {
    /// All.
    pub total: Bytes,
    /// Free.
    pub free: Bytes,
    /// Stays free.
    pub floor: Bytes,
    /// On a disk.
    pub on_disk: bool,
    /// Written within the budget's time.
    pub written: Bytes,
    /// The budget for that.
    pub budget: Option<Budget>,
}

/// The hibernation image as it would be now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageView {
    /// Its size and what it consists of; `None` where it cannot be told.
    pub forecast: Option<Forecast>,
    /// The swap it goes to.
    pub device: Option<String>,
    /// Why there would be none.
    pub obstacle: Option<String>,
    /// What the disk took in a second when that was measured last.
    pub disk_rate: Option<Bytes>,
    /// Writing it, if it does not compress at all.
    pub write_ms_at_most: Option<u64>,
    /// Sweeps work towards a small image (`goal = "hibernate"`).
    pub is_goal: bool,
}

/// A group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupView {
    /// Its path below the mount.
    pub group: String,
    /// Its class.
    pub class: Class,
    /// Somebody said so.
    pub explicit: bool,
    /// What it holds, its children's part left out.
    pub current: Option<Bytes>,
    /// Freed by sweeps since the daemon started.
    pub freed: Bytes,
    /// Came back since its first sweep.
    pub came_back: Bytes,
    /// Since its last sweep ended.
    pub last: Option<Duration>,
    /// It is being swept.
    pub sweeping: bool,
    /// It loses only what was surely not used for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_age: Option<ColdOnly>,
}

/// The answer to `omr explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// The group; `None`: the machine.
    pub group: Option<String>,
    /// What is done.
    pub verdict: String,
    /// The numbers behind it.
    pub reason: Option<Reason>,
    /// What would be done, were the machine idle.
    pub next: Option<String>,
    /// Its class and where that comes from.
    pub class: Option<String>,
    /// The guards and how near they are.
    pub guards: Vec<String>,
}

/// Today, since midnight UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Today {
    /// Days since 1970.
    pub day: u64,
    /// Sweeps.
    pub sweeps: u64,
    /// Freed by them.
    pub freed: Bytes,
    /// Came back within minutes.
    pub came_back: Bytes,
    /// Written to swap meanwhile.
    pub swapped_out: Bytes,
    /// CPU time of the reclaiming thread.
    pub cpu_ms: u64,
}

/// The same for `omr status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryView {
    /// Generations that were made.
    pub agings: u64,
    /// CPU time that all of it has cost.
    pub cpu_ms: u64,
    /// Since groups were aged last.
    pub aged_ms_ago: Option<u64>,
    /// Groups are not aged for so long, because the budget is spent.
    pub wait_ms: u64,
}

/// A process, as `omr ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessView {
    /// Which.
    pub id: ProcessId,
    /// How expendable it is.
    pub score: Option<Score>,
    /// What is done with it and why.
    pub verdict: Verdict,
    /// The last hint.
    pub last: Option<LastHint>,
    /// What it has not used, as far as that is known.
    pub cold: Option<ColdView>,
    /// Being hinted away now.
    pub hinting: bool,
}

/// What a process has not used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ColdView {
    /// When its group was looked at last.
    pub ago: Duration,
    /// Its anonymous memory then.
    pub memory: Bytes,
    /// How much of that was not used for so long, shortest first.
    pub unused: Vec<(Duration, Bounds)>,
}

/// A hint that was given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastHint {
    /// Which.
    pub step: HintKind,
    /// So long ago.
    pub ago: Duration,
    /// Bytes.
    pub freed: Bytes,
    /// Has left swap since then.
    pub came_back: Bytes,
}

/// What somebody has said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatementView {
    /// The word.
    pub word: Presence,
    /// Of whom.
    pub what: String,
}
