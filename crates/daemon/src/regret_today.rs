//! What sweeps have cost today, in all and by group, as it goes to the ledger.

use std::collections::BTreeMap;
use std::time::Duration;

use omr_history::ledger::{Entry, RegretLine};
use omr_policy::regret::Regret;
use omr_units::{Monotonic, millis};

/// A group's cost goes to the ledger this long after it began.
const RECORD_AFTER: Duration = Duration::from_secs(600);
/// The most groups whose cost of today is known one by one.
const MOST_GROUPS: usize = 1000;

/// What sweeps have cost today.
#[derive(Debug, Default)]
pub struct RegretToday {
    /// All groups together.
    pub total: Regret,
    groups: BTreeMap<String, Regret>,
    /// What is not in the ledger yet, and since when.
    unrecorded: BTreeMap<String, (Monotonic, Regret)>,
}

impl RegretToday {
    /// Adds the cost of a group.
    pub fn add(&mut self, now: Monotonic, group: &str, regret: Regret) {
        self.count(group, regret);
        let (_, unrecorded) = self.unrecorded.entry(group.into()).or_insert_with(|| (now, Regret::default()));
        *unrecorded += regret;
    }

    /// Counts a line of the ledger.
    pub fn count_line(&mut self, line: &RegretLine) {
        self.count(&line.group, line.regret());
    }

    fn count(&mut self, group: &str, regret: Regret) {
        self.total += regret;
        if let Some(known) = self.groups.get_mut(group) {
            *known += regret;
        } else if self.groups.len() < MOST_GROUPS {
            self.groups.insert(group.into(), regret);
        }
    }

    /// The cost of a group.
    pub fn group(&self, group: &str) -> Regret {
        self.groups.get(group).copied().unwrap_or_default()
    }

    /// Returns the lines of groups whose cost began some minutes ago.
    pub fn due_lines(&mut self, now: Monotonic, time: u64) -> Vec<Entry> {
        let mut lines = Vec::new();
        self.unrecorded.retain(|group, (since, regret)| {
            let is_due = now.since(*since) >= RECORD_AFTER;
            if is_due {
                lines.extend(line(time, group.clone(), *regret));
            }
            !is_due
        });
        lines
    }

    /// Returns the lines of all groups: the day or the daemon ends.
    pub fn all_lines(&mut self, time: u64) -> Vec<Entry> {
        std::mem::take(&mut self.unrecorded)
            .into_iter()
            .filter_map(|(group, (_, regret))| line(time, group, regret))
            .collect()
    }
}

/// `None`: nothing is known to have been lost, so a line would only say that not all is known.
fn line(time: u64, group: String, regret: Regret) -> Option<Entry> {
    let (waited_ms, refaulted_bytes) = (millis(regret.waited), regret.refaults);
    let line = RegretLine { time, group, waited_ms, refaulted_bytes, incomplete: regret.is_incomplete };
    (waited_ms > 0 || refaulted_bytes.0 > 0).then_some(Entry::Regret(line))
}
