//! Processes as the policy sees them, and what it remembers of them between two samples: CPU time,
//! time in the background, the last hint.

use alloc::collections::BTreeMap;
use core::time::Duration;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::{Class, Hints};

/// Identity of a process. A process id is given out again; together with the start time it is
/// unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Start time in ticks of 10 ms since boot.
    pub start: u64,
}

/// A process as it is now. A value that could not be read is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Identity.
    pub id: ProcessId,
    /// Its class.
    pub class: Class,
    /// A rule for processes or a statement says that the process is in the background. A group of
    /// class background is not enough: it says nothing about how soon its processes are expendable.
    pub stated: bool,
    /// The kernel's `oom_score_adj`, -1000 to 1000: a higher one is more expendable.
    pub oom_score_adj: Option<i16>,
    /// CPU time it has used since it started.
    pub cpu: Option<Duration>,
    /// Its anonymous memory.
    pub anon: Option<Bytes>,
    /// Its memory in swap.
    pub swapped: Option<Bytes>,
    /// When its application lost the focus; `None`: it has the focus, or no source reports the
    /// focus.
    #[serde(default)]
    pub unfocused: Option<Monotonic>,
    /// The amount that the kernel's protection and the keep rule of its group allow to be
    /// reclaimed.
    pub room: Option<Bytes>,
}

/// The kind of a hint, which is about all memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintKind {
    /// Deactivate it: the kernel reclaims it first when memory is short (MADV_COLD).
    #[serde(rename = "cold")]
    Deactivate,
    /// Page it out now (MADV_PAGEOUT).
    PageOut,
    /// Prefetch what was paged out, as the process is in the foreground again (MADV_WILLNEED).
    /// Ranking never asks for this.
    #[serde(rename = "willneed")]
    Prefetch,
}

impl HintKind {
    /// The name of the hint in output and records.
    pub fn name(self) -> &'static str {
        match self {
            HintKind::Deactivate => "cold",
            HintKind::PageOut => "pageout",
            HintKind::Prefetch => "willneed",
        }
    }

    /// The least time between the last hint and this one. These are Android's figures, where the
    /// first hint is about pages of files.
    pub(super) fn interval(self, last: HintKind) -> Duration {
        match (last, self) {
            (HintKind::Deactivate, HintKind::Deactivate) => Duration::from_secs(5),
            (HintKind::Deactivate, HintKind::PageOut) => Duration::from_millis(500),
            (HintKind::PageOut | HintKind::Prefetch, _) | (_, HintKind::Prefetch) => Duration::from_secs(10),
        }
    }
}

/// The result of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintReport {
    /// The kind of the hint.
    #[serde(rename = "step")]
    pub kind: HintKind,
    /// Anonymous memory that the process has left.
    pub anon: Bytes,
    /// Bytes written to swap on disk.
    pub swap_writes: Bytes,
    /// The end.
    pub end: HintEnd,
}

/// The end of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintEnd {
    /// The hint was given for all memory of the process.
    Complete,
    /// As much as was asked for was paged out; the process has more.
    Enough,
    /// Somebody needed the machine or the process.
    Stopped,
    /// It is not permitted, or the kernel does not know it.
    Failed,
}

/// The state of a process that is kept from ranking to ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The last sample of it.
    sampled: Monotonic,
    /// CPU time at the last sample; `None`: unknown.
    cpu: Option<Duration>,
    /// When the CPU time was seen to have this value first.
    counted: Monotonic,
    /// When the process was last seen to use the CPU; before that, the first sample.
    pub used: Monotonic,
    /// Since when it is in the background; `None`: it is not.
    pub background: Option<Monotonic>,
    /// When it was last known not to be in the background; `None`: never.
    elsewhere: Option<Monotonic>,
    /// The last hint about it; `None`: there was none.
    pub last: Option<LastHint>,
    /// No hint before this moment, because the last one was refused; `None`: it was not.
    pub refused: Option<Monotonic>,
}

/// The last hint about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastHint {
    pub kind: HintKind,
    pub at: Monotonic,
    /// Anonymous memory that was left.
    pub anon: Bytes,
    pub end: HintEnd,
}

/// The states of all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRecords(BTreeMap<ProcessId, Record>);

/// CPU time counts against at most this long a time, so that a burst at the end of a long rest
/// counts as use.
const LONGEST: Duration = Duration::from_secs(10);
/// A process that could not be hinted gets no hint for this time.
const REFUSED: Duration = Duration::from_secs(600);

impl ProcessRecords {
    pub(super) fn get(&self, id: ProcessId) -> Option<&Record> {
        self.0.get(&id)
    }

    /// Takes in what a process has done since the last sample.
    pub(super) fn note(&mut self, config: &Hints, now: Monotonic, process: &Process) {
        let record = self.0.entry(process.id).or_insert_with(|| Record {
            sampled: now,
            cpu: process.cpu,
            counted: now,
            used: now,
            background: None,
            elsewhere: None,
            last: None,
            refused: None,
        });
        let dt = now.since(record.counted).min(LONGEST);
        let rests = match (record.cpu, process.cpu) {
            (Some(before), Some(cpu)) => cpu.checked_sub(before).is_some_and(|used| is_rest(used, dt, config)),
            _ => false,
        };
        if !rests {
            record.used = now;
        }
        if record.cpu != process.cpu {
            (record.cpu, record.counted) = (process.cpu, now);
        }
        record.sampled = now;
        match process.class {
            Class::Background if process.stated => {
                let since = match (record.background, process.unfocused) {
                    // It may have had the focus, and lost it again, since the last sample.
                    (Some(since), unfocused) => Some(since).max(unfocused),
                    (None, Some(unfocused)) => Some(unfocused).max(record.elsewhere),
                    (None, None) => None,
                };
                record.background = Some(since.unwrap_or(now).min(now));
            }
            _ => (record.background, record.elsewhere) = (None, Some(now)),
        }
    }

    /// Forgets the processes that were not in the sample of this moment.
    pub(super) fn forget_gone(&mut self, now: Monotonic) {
        self.0.retain(|_, record| record.sampled == now);
    }

    /// Takes in how a hint ended.
    pub(super) fn record_hint(&mut self, now: Monotonic, id: ProcessId, report: &HintReport) {
        let Some(record) = self.0.get_mut(&id) else { return };
        record.last = Some(LastHint { kind: report.kind, at: now, anon: report.anon, end: report.end });
        record.refused = (report.end == HintEnd::Failed).then(|| now + REFUSED);
    }

    /// A process is in the foreground from this moment on.
    pub fn came_back(&mut self, now: Monotonic, id: ProcessId) {
        if let Some(record) = self.0.get_mut(&id) {
            (record.background, record.elsewhere) = (None, Some(now));
        }
    }
}

/// Returns true if a process that used this CPU time counts as unused.
fn is_rest(used: Duration, dt: Duration, config: &Hints) -> bool {
    used.is_zero() || (!dt.is_zero() && Permyriad::of_time(used, dt) <= config.cpu)
}
