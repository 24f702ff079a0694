//! Background processes: in which order they are expendable, and which hint is due.
//!
//! An unused process is hinted twice: first its memory is deactivated, so that the kernel
//! reclaims it first when memory is short; later it is paged out. Both happen only where a rule or
//! a statement says that the process is in the background. The machine need not be idle, since
//! nobody waits for that memory. [`rank()`] decides every few seconds, from CPU time, class, size
//! and swap of each process; the daemon's hint engine carries it out.

pub mod processes;
mod score;

use alloc::borrow::ToOwned;
use alloc::vec::Vec;
use core::cmp::Reverse;

use omr_units::{Bytes, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::{Class, Config};
use crate::cost;
use crate::gates::unhindered;
use crate::reason::Reason;
use crate::signals::{Machine, Signals};
use crate::state::State;

use processes::LastHint;
pub use processes::{HintEnd, HintKind, HintReport, Process, ProcessId, ProcessRecords};
pub use score::Score;

/// The action for a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Verdict {
    /// No hint is due.
    Hold {
        /// Why not.
        reason: Reason,
    },
    /// This hint is due. [`ProcessRecords::hinted`] tells the policy how it ended.
    Hint {
        /// The kind of the hint.
        #[serde(rename = "step")]
        kind: HintKind,
        /// Why now.
        reason: Reason,
    },
}

impl Verdict {
    /// Why it was decided.
    pub fn reason(&self) -> &Reason {
        match self {
            Verdict::Hold { reason } | Verdict::Hint { reason, .. } => reason,
        }
    }
}

/// A process and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// The process.
    pub id: ProcessId,
    /// `None`: the process is no candidate, or too little is known about it.
    pub score: Option<Score>,
    /// The action.
    pub verdict: Verdict,
}

/// Ranks all processes of a sample, the most expendable first. `records` forgets processes that are
/// not in the list.
pub fn rank(
    config: &Config,
    state: &State,
    records: &mut ProcessRecords,
    signals: &Signals,
    processes: &[Process],
) -> Vec<Ranked> {
    let now = signals.now;
    let unhindered = unhindered(config, state, now);
    let mut ranked: Vec<Ranked> = Vec::with_capacity(processes.len());
    for process in processes {
        records.note(&config.hints, now, process);
        let judged = score(records, now, process);
        let verdict = match judged.clone().and_then(|score| {
            unhindered.clone()?;
            due(config, state, records, signals, process, &score)
        }) {
            Ok((kind, reason)) => Verdict::Hint { kind, reason },
            Err(reason) => Verdict::Hold { reason },
        };
        ranked.push(Ranked { id: process.id, score: judged.ok(), verdict });
    }
    records.forget_gone(now);
    // By total; among equals the longer unused first, then the larger, then by id, so that the
    // order is the same each time.
    ranked.sort_by_cached_key(|ranked| {
        let key = ranked.score.map(|score| (score.total(), score.unused, score.anon));
        (Reverse(key), ranked.id)
    });
    ranked
}

/// The score of a process, or the reason why it is no candidate.
fn score(records: &ProcessRecords, now: Monotonic, process: &Process) -> Result<Score, Reason> {
    if process.class != Class::Background {
        return Err(Reason::Class { class: process.class });
    }
    let record = records.get(process.id);
    let Some((record, background)) = record.and_then(|record| Some((record, record.background?))) else {
        return Err(Reason::NotStated);
    };
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    process.cpu.ok_or_else(|| unknown("its CPU time"))?;
    Ok(Score {
        oom_score_adj: process.oom_score_adj.ok_or_else(|| unknown("its oom_score_adj"))?,
        unused: now.since(record.used.max(background)),
        anon: process.anon.ok_or_else(|| unknown("its anonymous memory"))?,
        swapped: process.swapped.ok_or_else(|| unknown("its memory in swap"))?,
    })
}

/// The hint that is due, or why none is.
fn due(
    config: &Config,
    state: &State,
    records: &ProcessRecords,
    signals: &Signals,
    process: &Process,
    score: &Score,
) -> Result<(HintKind, Reason), Reason> {
    let hints = &config.hints;
    let (now, unused, anon) = (signals.now, score.unused, score.anon);
    if unused < hints.cold_after {
        return Err(Reason::InUse { unused, needed: hints.cold_after });
    }
    if anon < hints.smallest {
        return Err(Reason::SmallProcess { anon, smallest: hints.smallest });
    }
    let record = records.get(process.id);
    if let Some(refused) = record.and_then(|record| record.refused)
        && now < refused
    {
        return Err(Reason::Refused { left: refused.since(now) });
    }
    let last = record.and_then(|record| record.last);
    // A hint counts as given if it came after the last use.
    let is_given = |last: &LastHint| matches!(last.end, HintEnd::Complete | HintEnd::Enough);
    let given = last.filter(|last| is_given(last) && now.since(last.at) < unused);
    let reason = |needed| Reason::Unused { unused, needed };
    let (kind, reason) = match unused < hints.pageout_after {
        true if given.is_some() => return Err(Reason::MarkedCold { unused, needed: hints.pageout_after }),
        true => (HintKind::Deactivate, reason(hints.cold_after)),
        false => match page_out(config, state, signals, process, anon, last) {
            Ok(()) => (HintKind::PageOut, reason(hints.pageout_after)),
            // Memory that cannot be paged out can still be deactivated.
            Err(_) if given.is_none() => (HintKind::Deactivate, reason(hints.cold_after)),
            Err(why) => return Err(why),
        },
    };
    if let Some(last) = last {
        let interval = kind.interval(last.kind);
        let rested = now.since(last.at);
        if rested < interval {
            return Err(Reason::JustHinted { left: interval.saturating_sub(rested) });
        }
    }
    Ok((kind, reason))
}

/// `Err`: why a process cannot be paged out now.
fn page_out(
    config: &Config,
    state: &State,
    signals: &Signals,
    process: &Process,
    anon: Bytes,
    last: Option<LastHint>,
) -> Result<(), Reason> {
    let hints = &config.hints;
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    if let Some(last) = last.filter(|last| last.kind == HintKind::PageOut && last.end == HintEnd::Complete) {
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
    let floor = cost::swap_floor(config, signals.machine.swap_context(), anon);
    if swap.free - anon < floor {
        return Err(Reason::SwapFloor { free: swap.free - anon, floor });
    }
    if swap.on_disk {
        cost::allowed(config, state, signals, swap, anon)?;
        calm(config, &signals.machine)?;
    }
    Ok(())
}

/// Returns the amount that must be paged out so that enough memory is available; at least the
/// smallest size that is worth a hint. The next ranking computes the amount again.
pub fn lacking(config: &Config, machine: &Machine) -> Bytes {
    let missing = machine.memory.map(|memory| memory.total.share(config.hints.available) - memory.available);
    missing.unwrap_or_default().max(config.hints.smallest)
}

/// `Err`: somebody waits for memory or a disk, and paging out would make the wait longer.
fn calm(config: &Config, machine: &Machine) -> Result<(), Reason> {
    for (resource, stall, allowed) in [
        ("memory", machine.stall_memory, config.idle.pressure_memory),
        ("io", machine.stall_io, config.idle.pressure_io),
    ] {
        let share = match stall {
            Some(stall) if !machine.dt.is_zero() => Permyriad::of_time(stall, machine.dt),
            _ => return Err(Reason::Unknown { signal: alloc::format!("pressure ({resource})") }),
        };
        if share > allowed {
            return Err(Reason::Pressure { resource: resource.to_owned(), share, allowed });
        }
    }
    Ok(())
}

impl ProcessRecords {
    /// Takes in that a hint was given, or was refused. `hour` counts the hours of the wall clock
    /// since 1970; what the hint wrote to swap on disk counts against the write budget in `state`.
    pub fn hinted(&mut self, state: &mut State, now: Monotonic, hour: u64, id: ProcessId, report: &HintReport) {
        state.writes.add(hour, report.swap_writes);
        self.record_hint(now, id, report);
    }
}

/// Returns true if paged-out memory may be prefetched now, for a process that came back to the
/// foreground.
pub fn may_prefetch(config: &Config, state: &State, now: Monotonic) -> bool {
    config.hints.prefetch && unhindered(config, state, now).is_ok()
}
