//! What sweeps gained and what they cost, for each group and day (UTC). It is made of the ledger,
//! so it reaches as far back as that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use omr_policy::regret::Regret;
use omr_units::Bytes;

use super::held_out::{HeldOutSums, at_or_below};
use super::ledger::{self, Entry};

/// The seconds of a day.
pub const DAY: u64 = 86_400;

/// All days that the ledger knows.
#[derive(Debug, Default)]
pub struct Days {
    days: BTreeMap<u64, Day>,
}

#[derive(Debug, Default)]
struct Day {
    held: HeldOutSums,
    regrets: BTreeMap<String, Regret>,
}

/// A group with all groups below it, on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfDay {
    /// Memory that sweeps held out, on average over the time in which the daemon watched.
    pub held: Bytes,
    /// What sweeps have cost.
    pub regret: Regret,
}

impl Days {
    /// Reads the ledger. A missing ledger counts as empty.
    pub fn read(state_dir: &Path) -> Result<Self> {
        let mut days = Days::default();
        ledger::read(state_dir, |entry| days.add(&entry))?;
        Ok(days)
    }

    fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::HeldOut(line) => self.days.entry(line.time / DAY).or_default().held.add_line(line),
            Entry::Regret(line) => {
                let day = self.days.entry(line.time / DAY).or_default();
                *day.regrets.entry(line.group.clone()).or_default() += line.regret();
            }
            _ => {}
        }
    }

    /// Returns the figures of a group; the empty path is the machine. `None`: nothing is recorded
    /// of that day.
    pub fn of(&self, day: u64, group: &str) -> Option<OfDay> {
        self.days.get(&day).map(|of| of.group(group))
    }

    /// Returns the figures of each group with a gain or a cost, of the groups above it and of the
    /// machine, the earliest day first. Days are counted from 1970.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &str, OfDay)> {
        self.days.iter().flat_map(|(day, of)| of.groups().into_iter().map(|group| (*day, group, of.group(group))))
    }
}

impl Day {
    fn group(&self, group: &str) -> OfDay {
        let mut regret = Regret::default();
        at_or_below(&self.regrets, group).for_each(|more| regret += more);
        OfDay { held: self.held.average(group), regret }
    }

    fn groups(&self) -> BTreeSet<&str> {
        let known = self.held.groups().chain(self.regrets.keys().map(String::as_str));
        known.flat_map(with_above).collect()
    }
}

/// Returns the path of a group, of all above it, and of the machine.
fn with_above(group: &str) -> impl Iterator<Item = &str> {
    let above = group.match_indices('/').map(|(at, _)| &group[..at]);
    above.chain([group, ""])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::held_out::{HeldOutGroup, HeldOutLine};
    use crate::ledger::{Ledger, RegretLine};

    fn regret(time: u64, group: &str, waited_ms: u64, incomplete: bool) -> Entry {
        let group = group.into();
        Entry::Regret(RegretLine { time, group, waited_ms, refaulted_bytes: Bytes(4096), incomplete })
    }

    fn held(time: u64, over_ms: u64, groups: &[(&str, u64)]) -> Entry {
        let of = |(group, bytes): &(&str, u64)| HeldOutGroup { group: (*group).into(), bytes: Bytes(*bytes) };
        Entry::HeldOut(HeldOutLine { time, over_ms, groups: groups.iter().map(of).collect() })
    }

    fn days(lines: &[Entry]) -> Days {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ledger = Ledger::open(dir.path());
        lines.iter().for_each(|line| ledger.add(line));
        Days::read(dir.path()).expect("the ledger")
    }

    #[test]
    fn each_day_has_its_own_figures_and_a_group_those_below_it() {
        let days = days(&[
            held(DAY - 1, 1000, &[("a/x", 800), ("a/y", 80)]),
            regret(DAY - 1, "a/x", 5, false),
            held(DAY, 1000, &[("a/x", 600), ("b", 8)]),
            held(DAY + 9, 1000, &[]),
            regret(DAY + 5, "a/x", 20, false),
            regret(DAY + 9, "a/x", 30, false),
            regret(DAY + 9, "b", 400, true),
        ]);
        let row = |day, group: &str| {
            let OfDay { held, regret } = days.of(day, group).expect("a day with lines");
            (held.0, regret.waited.as_millis(), regret.refaults.0 / 4096, regret.is_incomplete)
        };
        assert_eq!(
            [row(0, "a/x"), row(0, "a"), row(0, "")],
            [(800, 5, 1, false), (880, 5, 1, false), (880, 5, 1, false)]
        );
        assert_eq!(
            [row(1, "a/x"), row(1, "b"), row(1, "")],
            [(300, 50, 2, false), (4, 400, 1, true), (304, 450, 3, true)]
        );
        assert_eq!(row(0, "b"), (0, 0, 0, false), "the other day's");
        assert_eq!(days.of(2, ""), None, "nothing is known, which is not nothing");
        let rows: Vec<_> = days.rows().map(|(day, group, _)| (day, group)).collect();
        assert_eq!(rows, [(0, ""), (0, "a"), (0, "a/x"), (0, "a/y"), (1, ""), (1, "a"), (1, "a/x"), (1, "b")]);
    }

    #[test]
    fn a_ledger_of_an_older_omr_has_costs_only_and_no_ledger_has_nothing() {
        let old = days(&[regret(7, "a", 300, false)]);
        let waited = old.of(0, "a").map(|of| (of.held, of.regret.waited));
        assert_eq!(waited, Some((Bytes::ZERO, Duration::from_millis(300))));
        assert_eq!(days(&[]).rows().count(), 0);
    }
}
