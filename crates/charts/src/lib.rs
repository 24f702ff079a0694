//! Charts: what the history, the ledger and the daemon tell, as plain data. Each chart answers a
//! question, has units, and has a table of its numbers. The terminal (`omr top`) draws this data;
//! nothing here knows of a terminal.
//!
//! * `None` is unknown, never zero.
//! * Where something is not recorded, the chart's notes say so.
//! * A chart has as many values as its [`Window`] has columns, however long the history is.

#![deny(clippy::indexing_slicing)]

mod chart;
pub mod event;
pub mod explain;
mod gather;
mod groups;
mod now;
mod panel;
pub mod signs;
pub mod spark;
pub mod text;
mod timeline;
mod window;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_base::paths;
use omr_history::{self as history, ledger};
use serde::Serialize;

pub use chart::{Chart, Fact, Range, Series, Shape, Table, Unit};
pub use gather::promotion_rate;

use gather::Gather;
pub use groups::{Group, Row, Sampled, Sort, list, ordered, tree};
pub use now::Now;
pub use panel::{Panel, panels};
pub use signs::Signs;
pub use timeline::{Cell, Decisions, Did, LANES, Lane, Seen, Timeline, moment};
pub use window::Window;

/// The age from which tables and charts call memory cold.
pub const COLD: Duration = Duration::from_secs(120);

/// What a machine without a history will have, and when.
pub const NO_HISTORY: &str = "no history yet: the first sample comes ten minutes after omr-daemon starts, then one \
                              every ten minutes (history.every); sweeps are recorded as they end";

/// What the charts are about, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topic {
    /// Memory by the time for which it was not used.
    #[default]
    Unused,
    /// Promotions, and the objective.
    Promise,
    /// Memory that was taken, and that came back.
    Taken,
    /// The timeline of decisions.
    Decisions,
    /// The time that tasks waited.
    Waited,
    /// Memory by where it is.
    Place,
    /// Swap writes and CPU time.
    Cost,
    /// The hibernation image.
    Sleep,
}

impl Topic {
    /// All of them.
    pub const ALL: [Topic; 8] = [
        Topic::Unused,
        Topic::Promise,
        Topic::Taken,
        Topic::Decisions,
        Topic::Waited,
        Topic::Place,
        Topic::Cost,
        Topic::Sleep,
    ];

    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Unused => "unused",
            Topic::Promise => "promise",
            Topic::Taken => "taken",
            Topic::Decisions => "decisions",
            Topic::Waited => "waited",
            Topic::Place => "place",
            Topic::Cost => "cost",
            Topic::Sleep => "sleep",
        }
    }

    /// The question that its charts answer.
    pub fn question(self) -> &'static str {
        match self {
            Topic::Unused => "What was not used?",
            Topic::Promise => "Does it keep its promise?",
            Topic::Taken => "What was taken, and what came back?",
            Topic::Decisions => "Why did it act, or not?",
            Topic::Waited => "Who waited?",
            Topic::Place => "Where is the memory?",
            Topic::Cost => "What did it cost?",
            Topic::Sleep => "Could it sleep now?",
        }
    }

    /// The number, counted from 1.
    pub fn number(self) -> usize {
        Topic::ALL.iter().take_while(|topic| **topic != self).count() + 1
    }

    /// The next topic, or the one before; after the last one comes the first.
    pub fn neighbour(self, forward: bool) -> Self {
        let by = if forward { 1 } else { Topic::ALL.len() - 1 };
        Topic::ALL.get((self.number() - 1 + by) % Topic::ALL.len()).copied().unwrap_or_default()
    }
}

/// All charts of one group and one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Charts {
    /// The path of the group below the mount; empty: the machine.
    pub group: String,
    /// The times.
    pub window: Window,
    /// Memory by the time for which it was not used.
    pub unused: Chart,
    /// Promotions, and the objective.
    pub promise: Chart,
    /// Memory that sweeps took, and memory that came back.
    pub taken: Chart,
    /// Decisions.
    pub timeline: Timeline,
    /// The time that tasks waited for memory.
    pub waited: Chart,
    /// Memory by where it is.
    pub place: Chart,
    /// Swap writes, and the budget.
    pub writes: Chart,
    /// The CPU time of omr itself.
    pub cpu: Chart,
    /// The hibernation image.
    pub sleep: Chart,
    /// The parts of the history that could not be read.
    pub skipped: Vec<String>,
    /// There is no sample at all, of any group and time.
    pub has_no_history: bool,
}

impl Charts {
    /// The notes of a topic, the most important first. Damage comes first of all. What is missing
    /// is the last note of a chart, and is said before the others.
    pub fn notes(&self, topic: Topic) -> Vec<String> {
        let notes: Vec<&String> = match self.of(topic).as_slice() {
            [] => self.timeline.notes.iter().collect(),
            shown => shown.iter().flat_map(|chart| chart.notes.iter().chain(&chart.now)).collect(),
        };
        let damage = match self.skipped.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            [first, rest @ ..] => Some(format!("{first}, and {} more", rest.len())),
        };
        damage.into_iter().chain(notes.into_iter().rev().cloned()).collect()
    }

    /// Adds a note to a topic.
    pub fn add_note(&mut self, topic: Topic, note: String) {
        let notes = match topic {
            Topic::Unused => &mut self.unused.notes,
            Topic::Promise => &mut self.promise.notes,
            Topic::Taken => &mut self.taken.notes,
            Topic::Decisions => &mut self.timeline.notes,
            Topic::Waited => &mut self.waited.notes,
            Topic::Place => &mut self.place.notes,
            Topic::Cost => &mut self.writes.notes,
            Topic::Sleep => &mut self.sleep.notes,
        };
        notes.push(note);
    }

    /// The charts of a topic. Decisions are no chart, but the timeline.
    pub fn of(&self, topic: Topic) -> Vec<&Chart> {
        match topic {
            Topic::Unused => vec![&self.unused],
            Topic::Promise => vec![&self.promise],
            Topic::Taken => vec![&self.taken],
            Topic::Decisions => Vec::new(),
            Topic::Waited => vec![&self.waited],
            Topic::Place => vec![&self.place],
            Topic::Cost => vec![&self.writes, &self.cpu],
            Topic::Sleep => vec![&self.sleep],
        }
    }
}

/// Reads the charts of a group: the empty path is the machine. A missing history or ledger counts
/// as empty.
pub fn read(root: &Path, group: &str, window: Window, now: &Now) -> Result<Charts> {
    let all = read_all(root, &[(group, *now)], window)?;
    all.into_iter().next().context("no charts")
}

/// As [`read`], of some groups in one reading, each with what is in force for it now.
pub fn read_all(root: &Path, groups: &[(&str, Now)], window: Window) -> Result<Vec<Charts>> {
    let mut gathers: Vec<Gather> = groups.iter().map(|(group, now)| Gather::new(group, window, now)).collect();
    let wanted: BTreeSet<String> = groups.iter().map(|(group, _)| (*group).to_owned()).collect();
    // The machine's samples tell when the daemon ran.
    let is_wanted = move |path: &Path| path.as_os_str().is_empty() || wanted.contains(&*path.to_string_lossy());
    let mut samples = history::read(&paths::history(root), window.times(), is_wanted)?;
    samples.by_ref().for_each(|sample| gathers.iter_mut().for_each(|gather| gather.add_sample(&sample)));
    let skipped: Vec<String> = samples.skipped().iter().map(ToString::to_string).collect();
    ledger::read(&paths::state_dir(root), |entry| gathers.iter_mut().for_each(|gather| gather.add_entry(&entry)))?;
    let has_no_history = gathers.iter().all(Gather::is_empty) && is_empty(root)?;
    Ok(gathers.into_iter().map(|gather| gather.finish(skipped.clone(), has_no_history)).collect())
}

/// Returns true if the history has no sample at all.
pub fn is_empty(root: &Path) -> Result<bool> {
    Ok(history::read(&paths::history(root), Duration::ZERO..Duration::MAX, |_| true)?.next().is_none())
}

/// Reads the last samples of all groups that are not later than this time (since 1970). Samples
/// that are older than three hours say nothing about it.
pub fn samples_at(root: &Path, time: Duration) -> Result<Vec<Sampled>> {
    const OLDEST: Duration = Duration::from_secs(3 * 3600);
    let mut last: Vec<Sampled> = Vec::new();
    let times = time.saturating_sub(OLDEST)..time.saturating_add(Duration::from_secs(1));
    for sample in history::read(&paths::history(root), times, |_| true)? {
        // A later round takes the place of the one before, also where the clock was set back.
        if last.first().is_some_and(|first| first.time != sample.time.as_secs()) {
            last.clear();
        }
        last.push(Sampled::new(&sample));
    }
    Ok(last)
}

#[cfg(test)]
mod tests;
