//! The daemon's records: the ledger, today's figures, and the write budget.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use omr_base::folder::read_file;
use omr_history::ledger::{self, Entry, Swept};
use omr_kernel::is_passing;
use omr_policy::{Decision, Writes};
use omr_units::{Bytes, GroupId, Monotonic};
use serde::{Deserialize, Serialize};

use crate::counters::Counting;
use crate::disk::Disk;
use crate::holds::Holds;
use crate::host::Host;
use crate::mind::InForce;
use crate::tally::Tally;

/// The daemon's books.
pub struct Books {
    /// Today's figures, and those of each group.
    pub tally: Tally,
    /// For how long the daemon held, and why.
    holds: Holds,
    /// Sums since the daemon started.
    pub counting: Counting,
    /// Writes the records.
    pub disk: Disk,
    /// The file of the write budget.
    budget: PathBuf,
    /// The write budget as the disk was last given it.
    saved: Saved,
}

/// The file of the write budget. The hours in it are those of one clock for all daemons of a boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// The identity of the boot.
    boot: String,
    /// The time of the boot, in seconds since 1970.
    booted: u64,
    writes: Writes,
}

impl Books {
    /// Opens the books of a state directory. Returns them with the write budget that was saved.
    pub fn open(host: &mut Host, disk: Disk) -> Result<(Self, Writes)> {
        let time = host.wall();
        let mut saved = read_saved(&host.state_dir, time)?;
        let boot = host.boot.clone();
        let is_first = saved.boot != boot;
        if !is_first && !boot.is_empty() {
            host.keep_booted(saved.booted);
        }
        (saved.boot, saved.booted) = (boot, host.booted());
        let mut writes = saved.writes.clone();
        // What a clock that was ahead has left counts from now on, and not until then.
        writes.settle(host.hour());
        saved.writes.clone_from(&writes);
        let (tally, budget) = (Tally::load(&host.state_dir, time), host.state_dir.join(BUDGET));
        let mut books = Books { tally, holds: Holds::default(), counting: Counting::default(), disk, budget, saved };
        if is_first {
            // The next daemon of this boot may find a wall clock that was set meanwhile.
            books.write_budget();
        }
        Ok((books, writes))
    }

    /// Adds a line to the ledger.
    pub fn record(&mut self, entry: &Entry) {
        self.counting.add(entry);
        self.disk.add_line(entry);
    }

    /// Writes down the sweep of a group. The write budget comes first: whoever sees the line may
    /// rely on its being counted.
    pub fn record_sweep(&mut self, now: Monotonic, swept: Swept, refaults: Option<Bytes>, writes: &Writes) {
        self.tally.add(now, &swept, refaults);
        self.save(writes);
        self.record(&Entry::Sweep(swept));
    }

    /// Once a second: writes down what came back after sweeps that ended some minutes ago.
    pub fn record_refaults(&mut self, now: Monotonic, time: u64, refaults: impl Fn(GroupId) -> Option<Bytes>) {
        for line in self.tally.came_back(now, time, refaults) {
            self.record(&line);
        }
    }

    /// Once a second: writes down what sweeps have cost and what they hold out. `all`: also what
    /// has only begun, as the daemon ends.
    pub fn record_regrets(&mut self, now: Monotonic, time: u64, all: bool) {
        for line in self.tally.regret_lines(now, time, all) {
            self.record(&line);
        }
    }

    /// A decision is in force from now on; `before`: the one that was until now.
    pub fn decided(&mut self, time: u64, before: Option<InForce<'_>>, decision: &Decision) {
        self.counting.decided(before, decision);
        before.and_then(|before| self.holds.add(time, before)).iter().for_each(|line| self.disk.add_line(line));
    }

    /// The daemon ends: writes down all that is not yet.
    pub fn close(&mut self, now: Monotonic, time: u64) {
        self.record_regrets(now, time, true);
        self.holds.line(time).iter().for_each(|line| self.disk.add_line(line));
        self.disk.close();
    }

    /// Has the write budget written to disk when it has changed.
    pub fn save(&mut self, writes: &Writes) {
        if self.saved.writes == *writes {
            return;
        }
        self.saved.writes.clone_from(writes);
        self.write_budget();
    }

    fn write_budget(&mut self) {
        let text = serde_json::to_vec(&self.saved).unwrap_or_default();
        self.disk.replace(&self.budget, text, "a restart will not know of the last writes to swap");
    }
}

/// The file of the write budget, in the state directory.
const BUDGET: &str = "swap-writes.json";

/// Reads the write budget. Where its file cannot be read, the budget is put together anew from the
/// ledger, which also knows what went to swap. An error that passes is one: nothing is lost, and
/// the next start reads it.
fn read_saved(state_dir: &Path, now: u64) -> Result<Saved> {
    let path = state_dir.join(BUDGET);
    let err = match read_file(&path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(saved) => return Ok(saved),
            Err(err) => match serde_json::from_slice(&text) {
                // An older omr did not write down the boot.
                Ok(writes) => return Ok(Saved { writes, ..Saved::default() }),
                Err(_) => err.to_string(),
            },
        },
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Saved::default()),
        Err(err) if is_passing(&err) => return Err(err).with_context(|| format!("read {}", path.display())),
        Err(err) => err.to_string(),
    };
    log::warn!("{}: {err}; the writes to swap are counted anew from the ledger", path.display());
    let mut writes = Writes::default();
    let read = ledger::read(state_dir, |entry| {
        let (time, bytes) = match entry {
            Entry::Sweep(swept) => (swept.time, swept.swapped_out),
            Entry::Prepare(prepared) => (prepared.time, prepared.swapped_out),
            Entry::Hint(hinted) => (hinted.time, hinted.swapped_out),
            Entry::LeftAlone { .. }
            | Entry::Refaults { .. }
            | Entry::Regret(_)
            | Entry::HeldOut(_)
            | Entry::Holds(_)
            | Entry::GiveBack(_) => return,
        };
        // A time in the future counts as now: older writes must not be forgotten because of it.
        writes.add(time.min(now) / 3600, bytes);
    });
    match read {
        Err(err) if err.downcast_ref().is_some_and(is_passing) => Err(err),
        _ => Ok(Saved { writes, ..Saved::default() }),
    }
}
