//! Figures of sweeps, for each group and for today. They are read back from the ledger at start.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use omr_control::status::Today;
use omr_history::ledger::{self, Entry, Swept};
use omr_policy::End;
use omr_policy::regret::Regret;
use omr_units::{Bytes, GroupId, Monotonic, millis};

use crate::held_today::HeldToday;
use crate::regret_today::RegretToday;

const DAY: u64 = 86_400;
/// Refaults after this time hardly belong to the sweep.
const ATTRIBUTION: Duration = Duration::from_secs(300);

/// One group, since the daemon started.
#[derive(Clone, Debug, Default)]
pub struct PerGroup {
    /// Freed by sweeps.
    pub freed: Bytes,
    /// When its last sweep ended.
    pub last: Monotonic,
    /// Why it ended.
    pub end: Option<End>,
    /// Refaults when the first sweep began.
    pub first_refaults: Option<Bytes>,
}

/// A sweep of a group that is still watched for what comes back.
#[derive(Debug)]
struct Watched {
    sweep: u64,
    id: GroupId,
    group: String,
    ended: Monotonic,
    refaults: Bytes,
}

/// The figures.
#[derive(Debug, Default)]
pub struct Tally {
    /// Today.
    pub today: Today,
    groups: HashMap<GroupId, PerGroup>,
    watched: Vec<Watched>,
    last_sweep: u64,
    regret: RegretToday,
    held: HeldToday,
    /// Lines of the day that is over.
    lines: Vec<Entry>,
}

impl Tally {
    /// Reads the ledger.
    pub fn load(state_dir: &Path, time: u64) -> Self {
        let mut tally = Tally { today: Today { day: time / DAY, ..Today::default() }, ..Tally::default() };
        let read = ledger::read(state_dir, |entry| match entry {
            Entry::Sweep(swept) => tally.count(&swept),
            Entry::Refaults { time, bytes, .. } if time / DAY == tally.today.day => tally.today.came_back += bytes,
            Entry::Regret(line) if line.time / DAY == tally.today.day => tally.regret.count_line(&line),
            Entry::HeldOut(line) if line.time / DAY == tally.today.day => tally.held.count_line(&line),
            Entry::Regret(_)
            | Entry::HeldOut(_)
            | Entry::Holds(_)
            | Entry::Refaults { .. }
            | Entry::LeftAlone { .. }
            | Entry::Prepare(_)
            | Entry::Hint(_)
            | Entry::GiveBack(_) => {}
        });
        if let Err(err) = read {
            log::warn!("{err:#}");
        }
        tally.show_regret();
        tally.today.held_out_average_bytes = tally.held.average();
        tally
    }

    fn count(&mut self, swept: &Swept) {
        if swept.time / DAY == self.today.day && !swept.observed {
            if swept.sweep != self.last_sweep {
                self.today.sweeps += 1;
            }
            self.today.freed += swept.freed;
            self.today.swapped_out += swept.swapped_out;
            self.today.cpu_ms = self.today.cpu_ms.saturating_add(swept.cpu_ms);
        }
        self.last_sweep = self.last_sweep.max(swept.sweep);
    }

    /// A number for the sweep that begins.
    pub fn next_sweep(&self) -> u64 {
        self.last_sweep.saturating_add(1)
    }

    /// A sweep of a group has ended.
    pub fn add(&mut self, now: Monotonic, swept: &Swept, refaults: Option<Bytes>) {
        self.roll(swept.time);
        self.count(swept);
        if swept.observed {
            return;
        }
        let group = self.groups.entry(swept.id).or_default();
        group.freed += swept.freed;
        group.last = now;
        group.end = Some(swept.end);
        if let Some(refaults) = refaults {
            group.first_refaults.get_or_insert(refaults);
            self.watched.push(Watched {
                sweep: swept.sweep,
                id: swept.id,
                group: swept.group.clone(),
                ended: now,
                refaults,
            });
        }
    }

    /// Returns the refaults after sweeps that ended five minutes ago. `refaults`
    /// gives the counter of a group that is still there.
    pub fn came_back(&mut self, now: Monotonic, time: u64, refaults: impl Fn(GroupId) -> Option<Bytes>) -> Vec<Entry> {
        self.roll(time);
        let mut lines = Vec::new();
        self.watched.retain(|watched| {
            let after = now.since(watched.ended);
            if after < ATTRIBUTION {
                return true;
            }
            if let Some(refaults) = refaults(watched.id) {
                let bytes = refaults - watched.refaults;
                self.today.came_back += bytes;
                let (sweep, group) = (watched.sweep, watched.group.clone());
                lines.push(Entry::Refaults { time, sweep, group, bytes, after: after.as_secs() });
            }
            false
        });
        lines
    }

    /// So much came back into a group on purpose: it is not what a sweep is to be blamed for.
    pub fn discount_refaults(&mut self, id: GroupId, bytes: Bytes) {
        if let Some(first) = self.groups.get_mut(&id).and_then(|group| group.first_refaults.as_mut()) {
            *first += bytes;
        }
        for watched in self.watched.iter_mut().filter(|watched| watched.id == id) {
            watched.refaults += bytes;
        }
    }

    /// Adds what sweeps of a group have cost.
    pub fn add_regret(&mut self, now: Monotonic, time: u64, group: &str, regret: Regret) {
        self.roll(time);
        if regret.is_none() {
            return;
        }
        self.regret.add(now, group, regret);
        self.show_regret();
    }

    fn show_regret(&mut self) {
        self.today.waited_ms = millis(self.regret.total.waited);
        self.today.refaulted_bytes = self.regret.total.refaults;
        self.today.regret_incomplete = self.regret.total.is_incomplete;
    }

    /// Adds what groups hold out now.
    pub fn add_held<'g>(&mut self, now: Monotonic, time: u64, groups: impl Iterator<Item = (&'g str, Bytes)> + Clone) {
        self.roll(time);
        self.held.add(now, groups);
        self.today.held_out_average_bytes = self.held.average();
    }

    /// What sweeps of a group have held out today, on average.
    pub fn held(&self, group: &str) -> Bytes {
        self.held.group(group)
    }

    /// What sweeps of a group have cost today.
    pub fn regret(&self, group: &str) -> Regret {
        self.regret.group(group)
    }

    /// Returns lines about costs that began some minutes ago, or yesterday, and about what was held
    /// out in the last hour. `all`: about all of that, as the daemon ends.
    pub fn regret_lines(&mut self, now: Monotonic, time: u64, all: bool) -> Vec<Entry> {
        self.roll(time);
        let mut lines = std::mem::take(&mut self.lines);
        lines.extend(if all { self.regret.all_lines(time) } else { self.regret.due_lines(now, time) });
        lines.extend(if all { self.held.last_line(time) } else { self.held.due_line(time) });
        lines
    }

    fn roll(&mut self, time: u64) {
        if time / DAY != self.today.day {
            let last_second = self.today.day.saturating_mul(DAY).saturating_add(DAY - 1);
            self.lines.extend(std::mem::take(&mut self.regret).all_lines(last_second));
            self.lines.extend(self.held.last_line(last_second));
            self.held = HeldToday::after(self.held.last());
            self.today = Today { day: time / DAY, ..Today::default() };
        }
    }

    /// The figures of a group that was swept.
    pub fn group(&self, id: GroupId) -> Option<&PerGroup> {
        self.groups.get(&id)
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, there: impl Fn(GroupId) -> bool) {
        self.groups.retain(|id, _| there(*id));
    }
}
