//! What sweeps hold out today, on average, as it goes to the ledger.

use std::time::Duration;

use omr_history::held_out::{HeldOutLine, HeldOutSums};
use omr_history::ledger::Entry;
use omr_units::{Bytes, Monotonic};

/// What is held out goes to the ledger this often.
const RECORD_EVERY: Duration = Duration::from_secs(3600);

/// What sweeps hold out today.
#[derive(Debug, Default)]
pub struct HeldToday {
    /// All of the day.
    day: HeldOutSums,
    /// The part that is not in the ledger yet.
    unrecorded: HeldOutSums,
    /// The last reading.
    last: Option<Monotonic>,
}

impl HeldToday {
    /// A day that begins after this reading.
    pub fn after(last: Option<Monotonic>) -> Self {
        HeldToday { last, ..HeldToday::default() }
    }

    /// The last reading.
    pub fn last(&self) -> Option<Monotonic> {
        self.last
    }

    /// Adds what groups hold out since the last reading.
    pub fn add<'g>(&mut self, now: Monotonic, groups: impl Iterator<Item = (&'g str, Bytes)> + Clone) {
        let over = self.last.replace(now).map_or(Duration::ZERO, |last| now.since(last));
        self.day.add(over, groups.clone());
        self.unrecorded.add(over, groups);
    }

    /// Counts a line of the ledger.
    pub fn count_line(&mut self, line: &HeldOutLine) {
        self.day.add_line(line);
    }

    /// The average of all groups.
    pub fn average(&self) -> Bytes {
        self.day.average("")
    }

    /// The average of a group, without those below it.
    pub fn group(&self, group: &str) -> Bytes {
        self.day.own_average(group)
    }

    /// Returns the line of the last hour, once it is over. Hours in which nothing was out wait for
    /// one in which something was.
    pub fn due_line(&mut self, time: u64) -> Option<Entry> {
        let is_due = self.unrecorded.over() >= RECORD_EVERY && !self.unrecorded.is_none();
        is_due.then(|| self.take_line(time))
    }

    /// Returns the line of what is not in the ledger yet: the day or the daemon ends. On a day
    /// without anything out there is none.
    pub fn last_line(&mut self, time: u64) -> Option<Entry> {
        let is_any = !self.day.is_none() && self.unrecorded.over() > Duration::ZERO;
        is_any.then(|| self.take_line(time))
    }

    fn take_line(&mut self, time: u64) -> Entry {
        Entry::HeldOut(std::mem::take(&mut self.unrecorded).line(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// Reads each minute of some hours; returns the lines.
    fn read(held: &mut HeldToday, hours: std::ops::Range<u64>, bytes: u64) -> Vec<HeldOutLine> {
        let mut lines = Vec::new();
        for minute in 60 * hours.start + 1..=60 * hours.end {
            held.add(Monotonic(minute * 60_000_000_000), [("a", Bytes(bytes))].into_iter());
            lines.extend(held.due_line(60 * minute));
        }
        lines.into_iter().map(line).collect()
    }

    fn line(entry: Entry) -> HeldOutLine {
        let Entry::HeldOut(line) = entry else { panic!("another line: {entry:?}") };
        line
    }

    #[test]
    fn a_line_is_written_each_hour_in_which_something_is_out_and_hours_of_nothing_are_not_forgotten() {
        let mut held = HeldToday::after(Some(Monotonic(0)));
        assert_eq!(read(&mut held, 0..3, 0), []);
        let lines = read(&mut held, 3..5, 400);
        // The first minute of the fourth hour ends three hours of nothing.
        let over: Vec<_> = lines.iter().map(|line| (line.time, line.over_ms / 60_000)).collect();
        assert_eq!(over, [(3 * HOUR + 60, 181), (4 * HOUR + 60, 60)]);
        assert_eq!((lines[0].groups[0].bytes, lines[1].groups[0].bytes), (Bytes(2), Bytes(400)));
        assert_eq!((held.average(), held.group("a"), held.group("b")), (Bytes(160), Bytes(160), Bytes::ZERO));
        let rest = line(held.last_line(5 * HOUR).expect("a line"));
        assert_eq!(rest.over_ms, 59 * 60_000);
        assert_eq!(held.last_line(5 * HOUR), None, "written already");

        let mut next = HeldToday::default();
        lines.iter().chain([&rest]).for_each(|line| next.count_line(line));
        // A line has whole bytes.
        assert!((159..=160).contains(&next.average().0), "the next daemon knows as much: {}", next.average());
    }

    #[test]
    fn a_day_with_nothing_out_has_no_line_and_the_time_before_the_first_reading_does_not_count() {
        let mut held = HeldToday::default();
        assert_eq!(read(&mut held, 0..24, 0), []);
        assert_eq!(held.last_line(24 * HOUR), None);
        let mut held = HeldToday::default();
        held.add(Monotonic(u64::MAX / 2), [("a", Bytes(7))].into_iter());
        assert_eq!((held.average(), held.last_line(1)), (Bytes::ZERO, None), "no time has passed");
    }
}
