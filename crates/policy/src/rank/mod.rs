//! Processes in the background: which is given up first, and which hint is due.
//!
//! A process that nobody uses is hinted away in two steps: its memory is marked cold, so that it goes
//! first when memory is short, and later it is paged out. Both only where a rule or somebody said that
//! the process is in the background; whether the machine is idle does not matter, since what is done is
//! known to be about memory that nobody waits for.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::config::{Class, Config, Hints};
use crate::decide::{State, swap_floor};
use crate::idle::share;
use crate::reason::{Reason, short};
use crate::signals::{Machine, Signals};

/// Identity of a process: its id, which is given out again, and when it started, which is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// In ticks of 10 ms since boot.
    pub start: u64,
}

/// A process as it is now. What could not be read is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Identity.
    pub id: ProcessId,
    /// Its class.
    pub class: Class,
    /// A rule for processes or a statement says that it is in the background. That a group may be swept
    /// says nothing about how soon.
    pub asked: bool,
    /// How expendable it is to the kernel, -1000 to 1000.
    pub oom_score_adj: Option<i16>,
    /// CPU time it has used, ever.
    pub cpu: Option<Duration>,
    /// Anonymous memory.
    pub anon: Option<Bytes>,
    /// In swap: what it costs to bring it back.
    pub swapped: Option<Bytes>,
    /// Its application has not had the focus since then; `None`: it has, or nobody says.
    #[serde(default)]
    pub unfocused: Option<Monotonic>,
    /// What the protection and the keep rule of its group leave to be taken.
    pub room: Option<Bytes>,
}

/// A hint about all of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Mark it: it goes first when memory is short.
    Cold,
    /// Take it now.
    PageOut,
    /// It is in the foreground again: bring back what was taken. Never due by rank.
    WillNeed,
}

impl Step {
    /// In words: what is done.
    pub fn name(self) -> &'static str {
        match self {
            Step::Cold => "cold",
            Step::PageOut => "pageout",
            Step::WillNeed => "willneed",
        }
    }

    /// At least this long after the last hint. Android's figures, where the first step is about pages
    /// of files.
    fn interval(self, last: Step) -> Duration {
        match (last, self) {
            (Step::Cold, Step::Cold) => Duration::from_secs(5),
            (Step::Cold, Step::PageOut) => Duration::from_millis(500),
            (Step::PageOut | Step::WillNeed, _) | (_, Step::WillNeed) => Duration::from_secs(10),
        }
    }
}

/// How expendable a process is, and why: the highest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// As the kernel has it.
    pub oom_score_adj: i16,
    /// Nobody has used it for this long.
    pub unused: Duration,
    /// Anonymous memory.
    pub anon: Bytes,
    /// In swap.
    pub swapped: Bytes,
}

impl Score {
    /// 0 to 1000: half of the way from never to always killed first.
    pub fn expendable(&self) -> i32 {
        (i32::from(self.oom_score_adj.clamp(-1000, 1000)) + 1000) / 2
    }

    /// 0 to 1000, at 17 minutes: each doubling counts the same.
    pub fn age(&self) -> i32 {
        doublings(self.unused.as_secs())
    }

    /// 0 to 250, at 1 GiB: what there is to gain. Little beside the age, because no more is taken than lacks.
    pub fn gain(&self) -> i32 {
        doublings(self.anon.0 >> 20) / 4
    }

    /// 0 to 250: what it will cost when somebody comes back to it, on top of what is gained now.
    pub fn cost(&self) -> i32 {
        doublings(self.swapped.0 >> 20) / 4
    }

    /// All of it together.
    pub fn total(&self) -> i32 {
        self.expendable() + self.age() + self.gain() - self.cost()
    }
}

fn doublings(n: u64) -> i32 {
    let bits = n.saturating_add(1).ilog2();
    i32::try_from(bits).unwrap_or(i32::MAX).saturating_mul(100).min(1000)
}

/// `1625: oom_score_adj 300 (650), unused for 12 min (900), 300 MiB anonymous (200), 40 MiB in swap (-125)`
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: oom_score_adj {} ({}), unused for {} ({}), {} anonymous ({}), {} in swap (-{})",
            self.total(),
            self.oom_score_adj,
            self.expendable(),
            short(self.unused),
            self.age(),
            self.anon,
            self.gain(),
            self.swapped,
            self.cost(),
        )
    }
}

/// What is to be done with a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Verdict {
    /// Nothing.
    Hold {
        /// Why.
        reason: Reason,
    },
    /// Give this hint. [`State::hinted`] tells the policy how that ended.
    Hint {
        /// Which.
        step: Step,
        /// Why now.
        reason: Reason,
    },
}

impl Verdict {
    /// Its reason.
    pub fn reason(&self) -> &Reason {
        match self {
            Verdict::Hold { reason } | Verdict::Hint { reason, .. } => reason,
        }
    }
}

/// A process and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// Which.
    pub id: ProcessId,
    /// `None`: it is no candidate, or too little is known about it.
    pub score: Option<Score>,
    /// What is to be done.
    pub verdict: Verdict,
}

/// How a hint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hinted {
    /// Which.
    pub step: Step,
    /// Anonymous memory left.
    pub anon: Bytes,
    /// Bytes written to swap on disk.
    pub swap_writes: Bytes,
    /// How it ended.
    pub end: HintEnd,
}

/// How a hint ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintEnd {
    /// All of it was given.
    Complete,
    /// As much as was asked for; there is more.
    Enough,
    /// Somebody needed the machine or the process.
    Stopped,
    /// Not permitted, or the kernel does not know it.
    Failed,
}

/// What is remembered about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// When it was looked at last.
    looked: Monotonic,
    /// Its CPU time then, and since when it was seen to be that.
    cpu: Option<Duration>,
    counted: Monotonic,
    /// When it was seen to use the CPU last, or first seen.
    used: Monotonic,
    /// In the background since.
    background: Option<Monotonic>,
    /// When it was known last not to be there.
    elsewhere: Option<Monotonic>,
    last: Option<Last>,
    /// No hint before that: the last one was refused.
    refused: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    step: Step,
    at: Monotonic,
    /// Anonymous memory that was left.
    anon: Bytes,
    end: HintEnd,
}

/// What is remembered about all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processes(BTreeMap<ProcessId, Known>);

/// A burst at the end of a long rest is no less a use.
const LONGEST: Duration = Duration::from_secs(10);
/// A process that could not be hinted is left alone for this long.
const REFUSED: Duration = Duration::from_secs(600);

/// All processes that were looked at, the most expendable first. Those that are not in the list any
/// more are forgotten.
pub fn rank(config: &Config, state: &mut State, signals: &Signals, processes: &[Process]) -> Vec<Ranked> {
    let now = signals.now;
    let quiet = crate::decide::quiet(config, state, now);
    let mut ranked: Vec<Ranked> = Vec::with_capacity(processes.len());
    for process in processes {
        note(&config.hints, state, now, process);
        let judged = score(state, now, process);
        let verdict = match judged.clone().and_then(|score| {
            quiet.clone()?;
            due(config, state, signals, process, &score)
        }) {
            Ok((step, reason)) => Verdict::Hint { step, reason },
            Err(reason) => Verdict::Hold { reason },
        };
        ranked.push(Ranked { id: process.id, score: judged.ok(), verdict });
    }
    state.processes.0.retain(|_, known| known.looked == now);
    // The total first; of equals the longer unused, the larger, and then whatever comes to the same
    // order each time.
    ranked.sort_by_cached_key(|ranked| {
        let key = ranked.score.map(|score| (score.total(), score.unused, score.anon));
        (Reverse(key), ranked.id)
    });
    ranked
}

/// Takes in what a process has done since the last look.
fn note(config: &Hints, state: &mut State, now: Monotonic, process: &Process) {
    let known = state.processes.0.entry(process.id).or_insert_with(|| Known {
        looked: now,
        cpu: process.cpu,
        counted: now,
        used: now,
        background: None,
        elsewhere: None,
        last: None,
        refused: None,
    });
    let dt = now.since(known.counted).min(LONGEST);
    let rests = match (known.cpu, process.cpu) {
        (Some(before), Some(cpu)) => cpu.checked_sub(before).is_some_and(|used| within(used, dt, config)),
        _ => false,
    };
    if !rests {
        known.used = now;
    }
    if known.cpu != process.cpu {
        (known.cpu, known.counted) = (process.cpu, now);
    }
    known.looked = now;
    match process.class {
        Class::Background if process.asked => {
            let since = match (known.background, process.unfocused) {
                // It may have had the focus, and lost it again, since the last look.
                (Some(since), unfocused) => Some(since).max(unfocused),
                (None, Some(unfocused)) => Some(unfocused).max(known.elsewhere),
                (None, None) => None,
            };
            known.background = Some(since.unwrap_or(now).min(now));
        }
        _ => (known.background, known.elsewhere) = (None, Some(now)),
    }
}

fn within(used: Duration, dt: Duration, config: &Hints) -> bool {
    used.is_zero() || (!dt.is_zero() && share(used, dt) <= config.cpu)
}

/// How expendable a process is, or why that is no question.
fn score(state: &State, now: Monotonic, process: &Process) -> Result<Score, Reason> {
    if process.class != Class::Background {
        return Err(Reason::Class { class: process.class });
    }
    let known = state.processes.0.get(&process.id);
    let Some((known, background)) = known.and_then(|known| Some((known, known.background?))) else {
        return Err(Reason::NotAsked);
    };
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    process.cpu.ok_or_else(|| unknown("its CPU time"))?;
    Ok(Score {
        oom_score_adj: process.oom_score_adj.ok_or_else(|| unknown("its oom_score_adj"))?,
        unused: now.since(known.used.max(background)),
        anon: process.anon.ok_or_else(|| unknown("its anonymous memory"))?,
        swapped: process.swapped.ok_or_else(|| unknown("what it has in swap"))?,
    })
}

/// The hint that is due, or why none is.
fn due(
    config: &Config,
    state: &State,
    signals: &Signals,
    process: &Process,
    score: &Score,
) -> Result<(Step, Reason), Reason> {
    let hints = &config.hints;
    let (now, unused, anon) = (signals.now, score.unused, score.anon);
    if unused < hints.cold_after {
        return Err(Reason::InUse { unused, needed: hints.cold_after });
    }
    if anon < hints.smallest {
        return Err(Reason::SmallProcess { anon, smallest: hints.smallest });
    }
    let known = state.processes.0.get(&process.id);
    if let Some(refused) = known.and_then(|known| known.refused)
        && now < refused
    {
        return Err(Reason::Refused { left: refused.since(now) });
    }
    let last = known.and_then(|known| known.last);
    // Since it was used last.
    let is_given = |last: &Last| matches!(last.end, HintEnd::Complete | HintEnd::Enough);
    let given = last.filter(|last| is_given(last) && now.since(last.at) < unused);
    let reason = |needed| Reason::Unused { unused, needed };
    let step = match unused < hints.pageout_after {
        true if given.is_some() => return Err(Reason::MarkedCold { unused, needed: hints.pageout_after }),
        true => (Step::Cold, reason(hints.cold_after)),
        false => match page_out(config, state, signals, process, anon, last) {
            Ok(()) => (Step::PageOut, reason(hints.pageout_after)),
            // What cannot be taken can still be marked.
            Err(_) if given.is_none() => (Step::Cold, reason(hints.cold_after)),
            Err(why) => return Err(why),
        },
    };
    if let Some(last) = last {
        let interval = step.0.interval(last.step);
        let rested = now.since(last.at);
        if rested < interval {
            return Err(Reason::JustHinted { left: interval.saturating_sub(rested) });
        }
    }
    Ok(step)
}

/// Why a process cannot be paged out now.
fn page_out(
    config: &Config,
    state: &State,
    signals: &Signals,
    process: &Process,
    anon: Bytes,
    last: Option<Last>,
) -> Result<(), Reason> {
    let hints = &config.hints;
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    if let Some(last) = last.filter(|last| last.step == Step::PageOut && last.end == HintEnd::Complete) {
        let change = Bytes(anon.0.abs_diff(last.anon.0));
        if change < hints.change {
            return Err(Reason::Unchanged { change, needed: hints.change });
        }
    }
    let memory = signals.machine.memory.ok_or_else(|| unknown("the available memory"))?;
    let enough = memory.total.share(hints.available);
    if memory.available > enough {
        return Err(Reason::Available { available: memory.available, enough });
    }
    let room = process.room.ok_or_else(|| unknown("memory.min or memory.low"))?;
    if room < anon {
        return Err(Reason::GroupKeeps { room, anon });
    }
    let swap = signals.machine.swap.ok_or_else(|| unknown("the free swap space"))?;
    if swap.total == Bytes::ZERO {
        return Err(Reason::NoSwap);
    }
    let least = swap.total.share(hints.swap_free);
    if swap.free < least {
        return Err(Reason::SwapFloor { free: swap.free, floor: least });
    }
    let floor = swap_floor(config, &signals.machine, anon);
    if swap.free - anon < floor {
        return Err(Reason::SwapFloor { free: swap.free - anon, floor });
    }
    if swap.on_disk {
        if let Some(budget) = config.guard.max_swap_writes
            && state.writes.left(signals.hour, Some(budget)) < anon
        {
            return Err(Reason::WriteBudget { used: state.writes.within(signals.hour, budget.hours), budget });
        }
        calm(config, &signals.machine)?;
    }
    Ok(())
}

/// How much is to be paged out so that enough is available: what lacks, but no less than what a process must
/// have to be worth it. Nothing is lost by ending there: the next look asks for what still lacks then.
pub fn lacking(config: &Config, machine: &Machine) -> Bytes {
    let lacks = machine.memory.map(|memory| memory.total.share(config.hints.available) - memory.available);
    lacks.unwrap_or_default().max(config.hints.smallest)
}

/// Whether nobody waits for memory or a disk, to which paging out would only add.
fn calm(config: &Config, machine: &Machine) -> Result<(), Reason> {
    for (resource, stall, allowed) in [
        ("memory", machine.stall_memory, config.idle.pressure_memory),
        ("io", machine.stall_io, config.idle.pressure_io),
    ] {
        let share = match stall {
            Some(stall) if !machine.dt.is_zero() => share(stall, machine.dt),
            _ => return Err(Reason::Unknown { signal: alloc::format!("pressure ({resource})") }),
        };
        if share > allowed {
            return Err(Reason::Pressure { resource: resource.to_owned(), share, allowed });
        }
    }
    Ok(())
}

impl State {
    /// A hint was given, or was not.
    pub fn hinted(&mut self, now: Monotonic, hour: u64, id: ProcessId, hinted: &Hinted) {
        self.writes.add(hour, hinted.swap_writes);
        let Some(known) = self.processes.0.get_mut(&id) else { return };
        known.last = Some(Last { step: hinted.step, at: now, anon: hinted.anon, end: hinted.end });
        known.refused = (hinted.end == HintEnd::Failed).then(|| now + REFUSED);
    }

    /// Whether what was paged out may be brought back now for a process that came back.
    pub fn may_prefetch(&mut self, config: &Config, now: Monotonic) -> bool {
        config.hints.prefetch && crate::decide::quiet(config, self, now).is_ok()
    }

    /// A process is in the foreground from this moment on.
    pub fn came_back(&mut self, now: Monotonic, id: ProcessId) {
        if let Some(known) = self.processes.0.get_mut(&id) {
            (known.background, known.elsewhere) = (None, Some(now));
        }
    }
}
