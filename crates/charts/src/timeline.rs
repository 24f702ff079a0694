//! The timeline of decisions.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_control::status::Status;
use omr_history::ledger::{self, Entry, HoldsLine};
use omr_policy::{Decision, End, Reason};
use omr_units::Bytes;
use serde::Serialize;

use crate::{Topic, Window, event};

/// The most events in the explanation of a moment. The last ones are kept.
const MOST_EVENTS: usize = 100;
/// The most decisions that are remembered.
const MOST_SEEN: usize = 500;

/// The lanes.
pub const LANES: [Lane; 4] = [Lane::Machine, Lane::Background, Lane::Foreground, Lane::Protected];

/// A lane of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Decisions about the machine: preparations, giving back, and decisions that were seen live.
    Machine,
    /// Groups of the class background: sweeps and hints.
    Background,
    /// Groups of the class foreground. They lose nothing.
    Foreground,
    /// Groups of the class protected. They lose nothing.
    Protected,
}

impl Lane {
    /// The name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Machine => "machine",
            Lane::Background => "background",
            Lane::Foreground => "foreground",
            Lane::Protected => "protected",
        }
    }
}

/// What omr did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Did {
    /// The daemon ran, and no event is recorded.
    Nothing,
    /// It held: nothing was reclaimed, for a reason.
    Held,
    /// It acted.
    Acted,
    /// It acted, and stopped because somebody needed the machine.
    Stopped,
}

/// The decisions in a column of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The last in the order of [`Did`] of all that was done.
    pub did: Did,
    /// The number of events.
    pub events: u32,
    /// Memory that was freed.
    pub freed: Bytes,
}

const NO_EVENT: Cell = Cell { did: Did::Nothing, events: 0, freed: Bytes::ZERO };

/// A decision that was seen in the daemon's status. The ledger has decisions to hold only summed up,
/// every ten minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The wall clock, in seconds since 1970.
    pub time: u64,
    /// What was decided.
    pub did: Did,
    /// The reason, in words.
    pub reason: String,
}

impl Seen {
    /// Makes it of the daemon's decision.
    pub fn new(time: u64, decision: &Decision, reason: &str) -> Self {
        let did = match decision {
            Decision::Hold { .. } => Did::Held,
            Decision::Sweep { .. } | Decision::Continue { .. } => Did::Acted,
            Decision::Stop { .. } => Did::Stopped,
        };
        Seen { time, did, reason: reason.to_owned() }
    }
}

/// The decisions that were seen in the daemon's status, the last [`MOST_SEEN`] of them.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    seen: VecDeque<Seen>,
    last: Option<(Discriminant<Decision>, Discriminant<Reason>)>,
}

impl Decisions {
    /// Takes the decision of a status, if it is another one than before, or has another reason.
    /// `time`: the wall clock, in seconds since 1970.
    pub fn note(&mut self, time: u64, status: &Status) -> Option<&Seen> {
        let decision = status.decision.as_ref()?;
        let reason = (discriminant(decision), discriminant(decision.reason()));
        if self.last.replace(reason) == Some(reason) {
            return None;
        }
        self.seen.push_back(Seen::new(time, decision, &status.reason));
        if self.seen.len() > MOST_SEEN {
            self.seen.pop_front();
        }
        self.seen.back()
    }

    /// All of them, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter()
    }
}

/// The timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The question that it answers.
    pub question: &'static str,
    /// The times of the cells.
    pub window: Window,
    /// The cells of each lane, in the order of [`LANES`]; `None`: not recorded.
    pub lanes: [Vec<Option<Cell>>; 4],
    /// What is missing, and why.
    pub notes: Vec<String>,
}

impl Timeline {
    pub(crate) fn new(window: Window) -> Self {
        Timeline {
            question: Topic::Decisions.question(),
            window,
            lanes: LANES.map(|_| vec![None; window.columns]),
            notes: vec![
                "foreground and protected groups lose nothing; the class of a group in the past is not recorded"
                    .to_owned(),
            ],
        }
    }

    /// Adds an event of the ledger.
    pub(crate) fn add(&mut self, entry: &Entry) {
        let (lane, did, freed) = match entry {
            Entry::Sweep(swept) if swept.end == End::Stopped => (Lane::Background, Did::Stopped, swept.freed),
            Entry::Sweep(swept) => (Lane::Background, Did::Acted, swept.freed),
            Entry::Hint(hint) => (Lane::Background, Did::Acted, hint.freed),
            Entry::LeftAlone { .. } => (Lane::Background, Did::Held, Bytes::ZERO),
            Entry::Prepare(prepared) => (Lane::Machine, Did::Acted, prepared.freed),
            Entry::GiveBack(_) => (Lane::Machine, Did::Acted, Bytes::ZERO),
            Entry::Holds(line) => return self.hold(line),
            Entry::Refaults { .. } | Entry::Regret(_) | Entry::HeldOut(_) => return,
        };
        self.put(lane, event::time(entry), did, freed);
    }

    /// The daemon held for most of this time.
    fn hold(&mut self, line: &HoldsLine) {
        let held: u64 = line.reasons.iter().map(|of| of.ms).fold(0, u64::saturating_add);
        if held.saturating_mul(2) < line.over_ms {
            return;
        }
        let [machine, ..] = &mut self.lanes;
        for (column, ..) in self.window.parts(line.time, (line.over_ms / 1000).max(1)) {
            if let Some(cell) = machine.get_mut(column) {
                let before = cell.unwrap_or(NO_EVENT);
                *cell = Some(Cell { did: before.did.max(Did::Held), ..before });
            }
        }
    }

    /// Adds a decision that was seen live.
    pub fn add_seen(&mut self, seen: &Seen) {
        self.put(Lane::Machine, seen.time, seen.did, Bytes::ZERO);
    }

    fn put(&mut self, lane: Lane, time: u64, did: Did, freed: Bytes) {
        let Some(column) = self.window.column(time) else { return };
        let lane = LANES.iter().position(|of| *of == lane).and_then(|lane| self.lanes.get_mut(lane));
        if let Some(cell) = lane.and_then(|cells| cells.get_mut(column)) {
            let before = cell.unwrap_or(NO_EVENT);
            *cell = Some(Cell {
                did: before.did.max(did),
                events: before.events.saturating_add(1),
                freed: before.freed + freed,
            });
        }
    }

    /// In these columns the daemon ran.
    pub(crate) fn set_recorded(&mut self, recorded: &[bool]) {
        for cells in &mut self.lanes {
            for (cell, recorded) in cells.iter_mut().zip(recorded) {
                if cell.is_none() && *recorded {
                    *cell = Some(NO_EVENT);
                }
            }
        }
    }
}

/// Explains a part of the past: what omr did to this group and those below it, and why, one line
/// for each event. `seen`: decisions that were seen live.
pub fn moment(root: &Path, group: &str, times: std::ops::Range<u64>, seen: &[Seen]) -> Result<Vec<String>> {
    let mut events: VecDeque<(u64, String)> = VecDeque::new();
    ledger::read(&paths::state_dir(root), |entry| {
        let time = event::time(&entry);
        // A line about a time counts for all of it.
        let over = if let Entry::Holds(line) = &entry { line.over_ms / 1000 } else { 0 };
        let is_then = time >= times.start && time.saturating_sub(over) < times.end;
        if !is_then || !event::is_of(&entry, group) {
            return;
        }
        let Some(text) = event::text(&entry) else { return };
        let why = event::reason(&entry).map(|why| format!(" (began: {})", printable(why))).unwrap_or_default();
        events.push_back((time, printable(&text) + &why));
        if events.len() > MOST_EVENTS {
            events.pop_front();
        }
    })?;
    let seen = seen.iter().filter(|seen| times.contains(&seen.time));
    events.extend(seen.map(|seen| (seen.time, printable(&seen.reason))));
    let mut events: Vec<_> = events.into();
    events.sort_by_key(|(time, _)| *time);
    Ok(events.into_iter().map(|(time, text)| format!("{}  {text}", when::text(Duration::from_secs(time)))).collect())
}
