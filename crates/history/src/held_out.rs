//! Memory that sweeps hold out, on average, by group.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use omr_units::{Bytes, millis};
use serde::{Deserialize, Serialize};

/// The most groups that are known one by one. Further ones count for the machine only.
const MOST_GROUPS: usize = 256;

/// A line of the ledger: memory that sweeps took to swap and that was still there, since the last
/// such line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutLine {
    /// The time, in seconds since 1970.
    pub time: u64,
    /// The time in which the daemon watched, without sleep.
    pub over_ms: u64,
    /// The groups with such memory.
    pub groups: Vec<HeldOutGroup>,
}

/// One group of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutGroup {
    /// Path of the group below the mount.
    pub group: String,
    /// Its memory, on average over the time of the line.
    pub bytes: Bytes,
}

/// Sums, of which averages are made.
#[derive(Debug, Default)]
pub struct HeldOutSums {
    over_ms: u64,
    /// Bytes, times the milliseconds for which they were out.
    groups: BTreeMap<String, u128>,
}

impl HeldOutSums {
    /// The daemon watched for this long, and each of these groups had this much out.
    pub fn add<'g>(&mut self, over: Duration, groups: impl Iterator<Item = (&'g str, Bytes)>) {
        let over_ms = millis(over);
        self.over_ms = self.over_ms.saturating_add(over_ms);
        for (group, bytes) in groups.filter(|(_, bytes)| *bytes > Bytes::ZERO) {
            let added = u128::from(bytes.0).saturating_mul(u128::from(over_ms));
            let has_room = self.groups.len() < MOST_GROUPS || self.groups.contains_key(group);
            let sum = self.groups.entry(if has_room { group.into() } else { String::new() }).or_default();
            *sum = sum.saturating_add(added);
        }
    }

    /// Adds a line of the ledger.
    pub fn add_line(&mut self, line: &HeldOutLine) {
        let groups = line.groups.iter().map(|of| (of.group.as_str(), of.bytes));
        self.add(Duration::from_millis(line.over_ms), groups);
    }

    /// The time in which the daemon watched.
    pub fn over(&self) -> Duration {
        Duration::from_millis(self.over_ms)
    }

    /// Returns true if no group had anything out.
    pub fn is_none(&self) -> bool {
        self.groups.is_empty()
    }

    /// The groups that had something out.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Returns the average of a group and all below it; of the empty path, that of all groups.
    pub fn average(&self, group: &str) -> Bytes {
        self.mean(at_or_below(&self.groups, group).fold(0, u128::saturating_add))
    }

    /// Returns the average of a group without those below it.
    pub fn own_average(&self, group: &str) -> Bytes {
        self.mean(self.groups.get(group).copied().unwrap_or_default())
    }

    fn mean(&self, sum: u128) -> Bytes {
        let mean = sum.checked_div(u128::from(self.over_ms)).unwrap_or_default();
        Bytes(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the line of the ledger.
    pub fn line(&self, time: u64) -> HeldOutLine {
        let of = |(group, sum): (&String, &u128)| HeldOutGroup { group: group.clone(), bytes: self.mean(*sum) };
        HeldOutLine { time, over_ms: self.over_ms, groups: self.groups.iter().map(of).collect() }
    }
}

/// Returns the values of a group and of all groups below it; of the empty path, all values.
pub fn at_or_below<'v, V: Copy>(of: &'v BTreeMap<String, V>, group: &str) -> impl Iterator<Item = V> + use<'v, V> {
    let own = (!group.is_empty()).then(|| of.get(group).copied()).flatten();
    // The character after the slash ends the range.
    let below = match group {
        "" => (Bound::Unbounded, Bound::Unbounded),
        group => (Bound::Included(format!("{group}/")), Bound::Excluded(format!("{group}0"))),
    };
    own.into_iter().chain(of.range(below).map(|(_, value)| *value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_average_is_over_all_the_time_that_the_daemon_watched() {
        let mut sums = HeldOutSums::default();
        sums.add(MINUTE, [("a", Bytes(300)), ("a/b", Bytes::ZERO)].into_iter());
        sums.add(2 * MINUTE, std::iter::empty());
        assert_eq!((sums.own_average("a"), sums.own_average("a/b")), (Bytes(100), Bytes::ZERO));
        assert_eq!(sums.groups().collect::<Vec<_>>(), ["a"], "nothing was out of the other");
        assert_eq!(HeldOutSums::default().average("a"), Bytes::ZERO, "no time at all");
    }

    #[test]
    fn a_group_has_what_is_below_it_and_nothing_of_groups_with_a_longer_name() {
        let mut sums = HeldOutSums::default();
        let groups = [("a", 1), ("a-b", 10), ("a/x", 100), ("a/x/y", 1000), ("a0", 10_000)];
        sums.add(MINUTE, groups.into_iter().map(|(group, bytes)| (group, Bytes(bytes))));
        for (group, all) in [("a", 1101), ("a/x", 1100), ("a-b", 10), ("a0", 10_000), ("", 11_111), ("b", 0)] {
            assert_eq!(sums.average(group), Bytes(all), "{group}");
        }
        assert_eq!(sums.own_average("a"), Bytes(1));
    }

    #[test]
    fn lines_add_up_to_what_they_were_made_of() {
        let mut sums = HeldOutSums::default();
        for (minutes, bytes) in [(1, 600), (5, 0), (2, 300)] {
            let mut part = HeldOutSums::default();
            part.add(minutes * MINUTE, [("a", Bytes(bytes))].into_iter());
            sums.add_line(&part.line(7));
        }
        assert_eq!((sums.over(), sums.average("a")), (8 * MINUTE, Bytes(150)));
        assert_eq!(sums.line(7).time, 7);
    }

    #[test]
    fn groups_that_come_and_go_all_day_do_not_fill_the_memory() {
        let mut sums = HeldOutSums::default();
        for number in 0..2 * MOST_GROUPS {
            sums.add(MINUTE, [(format!("job-{number:05}").as_str(), Bytes(1 << 20))].into_iter());
        }
        assert_eq!(sums.groups().count(), MOST_GROUPS + 1);
        let number = 2 * MOST_GROUPS as u64;
        assert_eq!(sums.average(""), Bytes((number << 20) / number), "the machine has the others as well");
        assert_eq!(sums.average("job-00511"), Bytes::ZERO);
    }
}
