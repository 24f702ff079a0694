//! The daemon's records: the ledger, today's figures, and the write budget.

use std::fs;
use std::path::{Path, PathBuf};

use omr_history::ledger::{self, Entry, Swept};
use omr_policy::Writes;
use omr_units::{Bytes, GroupId, Monotonic};

use crate::disk::Disk;
use crate::host::Host;
use crate::tally::Tally;

/// The daemon's books.
pub struct Books {
    /// Today's figures, and those of each group.
    pub tally: Tally,
    /// Writes the records.
    pub disk: Disk,
    /// The file of the write budget.
    budget: PathBuf,
    /// The write budget as the disk was last given it.
    saved: Writes,
}

impl Books {
    /// Opens the books of a state directory. Returns them with the write budget that was saved.
    pub fn open(host: &Host, disk: Disk) -> (Self, Writes) {
        let (state_dir, time) = (&host.state_dir, host.wall());
        let mut writes = read_writes(state_dir, time);
        // What a clock that was ahead has left counts from now on, and not until then.
        writes.settle(host.hour());
        let books =
            Books { tally: Tally::load(state_dir, time), disk, budget: state_dir.join(BUDGET), saved: writes.clone() };
        (books, writes)
    }

    /// Adds a line to the ledger.
    pub fn record(&mut self, entry: &Entry) {
        self.disk.add_line(entry);
    }

    /// Writes down the sweep of a group. The write budget comes first: whoever sees the line may
    /// rely on its being counted.
    pub fn record_sweep(&mut self, now: Monotonic, swept: Swept, refaults: Option<Bytes>, writes: &Writes) {
        self.tally.add(now, &swept, refaults);
        self.save(writes);
        self.disk.add_line(&Entry::Sweep(swept));
    }

    /// Once a second: writes down what came back after sweeps that ended some minutes ago.
    pub fn record_refaults(&mut self, now: Monotonic, time: u64, refaults: impl Fn(GroupId) -> Option<Bytes>) {
        for line in self.tally.came_back(now, time, refaults) {
            self.disk.add_line(&line);
        }
    }

    /// Once a second: writes down what sweeps have cost and what they hold out. `all`: also what
    /// has only begun, as the daemon ends.
    pub fn record_regrets(&mut self, now: Monotonic, time: u64, all: bool) {
        for line in self.tally.regret_lines(now, time, all) {
            self.disk.add_line(&line);
        }
    }

    /// Has the write budget written to disk when it has changed.
    pub fn save(&mut self, writes: &Writes) {
        if self.saved == *writes {
            return;
        }
        let text = serde_json::to_vec(writes).unwrap_or_default();
        self.disk.replace(&self.budget, text, "a restart will not know of the last writes to swap");
        self.saved = writes.clone();
    }
}

/// The file of the write budget, in the state directory.
const BUDGET: &str = "swap-writes.json";

/// Reads the write budget. Where its file cannot be read, the budget is put together anew from the
/// ledger, which also knows what went to swap.
fn read_writes(state_dir: &Path, now: u64) -> Writes {
    let path = state_dir.join(BUDGET);
    let err = match fs::read(&path).map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(writes)) => return writes,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Writes::default(),
        Err(err) => err.to_string(),
        Ok(Err(err)) => err.to_string(),
    };
    log::warn!("{}: {err}; the writes to swap are counted anew from the ledger", path.display());
    let mut writes = Writes::default();
    let _ = ledger::read(state_dir, |entry| {
        let (time, bytes) = match entry {
            Entry::Sweep(swept) => (swept.time, swept.swapped_out),
            Entry::Prepare(prepared) => (prepared.time, prepared.swapped_out),
            Entry::Hint(hinted) => (hinted.time, hinted.swapped_out),
            Entry::LeftAlone { .. }
            | Entry::Refaults { .. }
            | Entry::Regret(_)
            | Entry::HeldOut(_)
            | Entry::GiveBack(_) => return,
        };
        // A time in the future counts as now: older writes must not be forgotten because of it.
        writes.add(time.min(now) / 3600, bytes);
    });
    writes
}
