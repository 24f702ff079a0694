//! The ledger: one JSON line for each sweep of a group, and one some minutes later for its
//! refaults and for what it cost, one in an hour for what sweeps hold out, and one in ten
//! minutes for why nothing was done. Each line is one write, so a crash loses at most the last line.
//! A full disk loses only lines.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_base::folder;
use omr_base::storage::show_to_members;
use omr_policy::rank::{HintKind, ProcessId};
use omr_policy::regret::Regret;
use omr_policy::{End, Purpose};
use omr_units::{Bytes, GroupId};
use serde::{Deserialize, Serialize};

use super::held_out::HeldOutLine;

/// The size from which a file is rotated.
const LARGEST: u64 = 4 << 20;
/// The number of rotated files that are kept.
const KEPT: u32 = 3;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// A group was swept.
    Sweep(Swept),
    /// The machine was prepared for something.
    Prepare(Prepared),
    /// A process got a hint.
    Hint(HintLine),
    /// Memory was given back because somebody came.
    GiveBack(GivenBack),
    /// A group with a minimum age is not swept, as ages are unknown.
    LeftAlone {
        /// The time, in seconds since 1970.
        time: u64,
        /// Path of the group below the mount.
        group: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The refaults of a group in the minutes after its sweep.
    Refaults {
        /// The time, in seconds since 1970.
        time: u64,
        /// The number of the sweep.
        sweep: u64,
        /// Path of the group below the mount.
        group: String,
        /// The refaulted bytes.
        bytes: Bytes,
        /// Seconds since the sweep ended.
        after: u64,
    },
    /// What sweeps of a group have cost.
    Regret(RegretLine),
    /// Memory that sweeps hold out.
    HeldOut(HeldOutLine),
    /// For how long nothing was done, and why.
    Holds(HoldsLine),
}

/// For how long the daemon held since the last such line, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldsLine {
    /// The time, in seconds since 1970.
    pub time: u64,
    /// The time in which the daemon decided, without sleep.
    pub over_ms: u64,
    /// The reasons, the one that held for longest first. In the rest of the time it acted.
    pub reasons: Vec<HeldFor>,
}

/// A reason of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFor {
    /// The time for which reasons of this kind held.
    pub ms: u64,
    /// The last reason of this kind, in words.
    pub reason: String,
}

/// What sweeps of a group have cost its tasks since the last such line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegretLine {
    /// The time, in seconds since 1970.
    pub time: u64,
    /// Path of the group below the mount.
    pub group: String,
    /// The time that tasks waited for memory, beyond that before the sweeps.
    pub waited_ms: u64,
    /// The memory that came back, beyond that before the sweeps.
    pub refaulted_bytes: Bytes,
    /// A counter was not known for some time, so the cost may be higher.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

impl RegretLine {
    /// The same as an amount.
    pub fn regret(&self) -> Regret {
        let waited = Duration::from_millis(self.waited_ms);
        Regret { waited, refaults: self.refaulted_bytes, is_incomplete: self.incomplete }
    }
}

/// One group of one sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swept {
    /// The time of its end, in seconds since 1970.
    pub time: u64,
    /// The number of the sweep, shared by all groups in a row until the machine is busy or nothing
    /// is left.
    pub sweep: u64,
    /// Path of the group below the mount.
    pub group: String,
    /// Its identity.
    pub id: GroupId,
    /// Decided, but not done (`mode = "observe"`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// The bytes that omr asked the kernel for.
    pub asked: Bytes,
    /// The bytes that were freed.
    pub freed: Bytes,
    /// The freed bytes of anonymous memory.
    pub freed_anon: Bytes,
    /// The freed bytes of file memory.
    pub freed_file: Bytes,
    /// The bytes written to swap.
    pub swapped_out: Bytes,
    /// The bytes moved to slower memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub demoted: Bytes,
    /// CPU time of the reclaiming thread.
    pub cpu_ms: u64,
    /// The duration.
    pub wall_ms: u64,
    /// The number of writes to the kernel.
    pub writes: u32,
    /// The duration of the longest write.
    pub longest_write_ms: u64,
    /// The time from the moment in which it was told to stop until it had stopped; `None`: it ended
    /// by itself, or an older omr wrote the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_ms: Option<u64>,
    /// The method by the kernel's name, such as `memory.reclaim` or `lru_gen`; `None`:
    /// there was no run, or an older omr wrote the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The end of the last write, by `CLOCK_MONOTONIC`.
    pub last_write_end_ns: u64,
    /// The reason why it began.
    pub start_reason: String,
    /// The reason why it ended, in words.
    pub stop_reason: String,
    /// The kind of the end.
    pub end: End,
    /// The error, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

/// One preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// The time of its end, in seconds since 1970.
    pub time: u64,
    /// The purpose.
    #[serde(rename = "for")]
    pub purpose: Purpose,
    /// The program or person that asked for it.
    pub why: String,
    /// Decided, but not done (`mode = "observe"`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// The bytes that were freed.
    pub freed: Bytes,
    /// The freed bytes of anonymous memory.
    pub freed_anon: Bytes,
    /// The freed bytes of file memory.
    pub freed_file: Bytes,
    /// The bytes written to swap.
    pub swapped_out: Bytes,
    /// The duration.
    pub wall_ms: u64,
    /// The reason why it ended, in words.
    pub stop_reason: String,
    /// The error, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Memory that left while everybody was away, and was given back when somebody came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenBack {
    /// The time of its end, in seconds since 1970.
    pub time: u64,
    /// The number of groups that lost memory.
    pub groups: usize,
    /// The bytes that they lost, of anonymous and shared memory.
    pub taken: Bytes,
    /// The bytes that omr asked the kernel for.
    pub asked: Bytes,
    /// The bytes that the machine read from swap meanwhile.
    pub swapped_in: Bytes,
    /// CPU time of the thread.
    pub cpu_ms: u64,
    /// The duration.
    pub wall_ms: u64,
    /// The reason why it ended, in words.
    pub stop_reason: String,
    /// The error, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One hint about all of a process's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HintLine {
    /// The time of its end, in seconds since 1970.
    pub time: u64,
    /// The process.
    pub id: ProcessId,
    /// Its name.
    pub name: String,
    /// Path of its group below the mount.
    pub group: String,
    /// The hint.
    pub step: HintKind,
    /// Decided, but not done (`mode = "observe"`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// The bytes that the hint was for.
    pub advised: Bytes,
    /// The bytes that were freed.
    pub freed: Bytes,
    /// The bytes written to swap.
    pub swapped_out: Bytes,
    /// CPU time of the hinting thread.
    pub cpu_ms: u64,
    /// The duration.
    pub wall_ms: u64,
    /// The reason why it was given.
    pub start_reason: String,
    /// The reason why this process was chosen, in words.
    pub score: String,
    /// The reason why it ended, in words.
    pub stop_reason: String,
    /// The error, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The open ledger.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// The file and its size; `None`: it could not be opened yet.
    file: Option<(File, u64)>,
    largest: u64,
    lost: u64,
}

impl Ledger {
    /// Opens or begins `ledger.jsonl` in the state directory. A line that a crash cut off is ended.
    /// If it cannot be opened, each line tries again.
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("ledger.jsonl");
        let file = open_file(&path).map_err(|err| log::warn!("open {}: {err}", path.display())).ok();
        Ledger { path, file, largest: LARGEST, lost: 0 }
    }

    /// Appends a line. A line that cannot be written is lost; the first lost line is logged.
    pub fn add(&mut self, entry: &Entry) {
        match self.try_add(entry) {
            Ok(()) => {
                if self.lost > 0 {
                    log::warn!("{}: {} lines were lost", self.path.display(), self.lost);
                    self.lost = 0;
                }
            }
            Err(err) => {
                if self.lost == 0 {
                    log::warn!("{}: {err}; lines are lost until this is fixed", self.path.display());
                }
                self.lost += 1;
            }
        }
    }

    fn try_add(&mut self, entry: &Entry) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|(_, size)| *size > self.largest) {
            // The file closes before the rotation: if no new file can be made, the old ones are not
            // rotated again.
            self.file = None;
            rotate(&self.path)?;
        }
        let (file, size) = match &mut self.file {
            Some(open) => open,
            none => none.insert(open_file(&self.path)?),
        };
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        // A short write (ENOSPC) leaves half a line; remove it.
        if let Err(err) = file.write_all(&line) {
            let _ = file.set_len(*size);
            return Err(err);
        }
        *size += line.len() as u64;
        file.sync_data()
    }
}

fn open_file(path: &Path) -> io::Result<(File, u64)> {
    let mut file = folder::open_for_append(path)?;
    let size = file.metadata()?.len();
    if size == 0 {
        // It is new.
        show_to_members(&file)?;
    }
    let mut last = [0u8; 1];
    if size > 0 && std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, size - 1).is_ok() && last != *b"\n" {
        file.write_all(b"\n")?;
        return Ok((file, size + 1));
    }
    Ok((file, size))
}

fn rotated(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("jsonl.{number}"))
}

/// A rotation that was cut off has left a gap. Only the files before the gap move then, so that the
/// oldest one is not dropped too early.
fn rotate(path: &Path) -> io::Result<()> {
    let free = (1..KEPT).find(|number| !rotated(path, *number).exists()).unwrap_or(KEPT);
    for number in (1..free).rev() {
        match fs::rename(rotated(path, number), rotated(path, number + 1)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    fs::rename(path, rotated(path, 1))
}

/// Reads all lines, oldest first. Incomplete lines are skipped.
pub fn read(state_dir: &Path, mut each: impl FnMut(Entry)) -> Result<()> {
    let path = state_dir.join("ledger.jsonl");
    let files = (1..=KEPT).rev().map(|number| rotated(&path, number)).chain([path.clone()]);
    for file in files {
        match folder::open_file(&file) {
            Ok(opened) => {
                for line in BufReader::new(opened).split(b'\n') {
                    let line = line.with_context(|| format!("read {}", file.display()))?;
                    if let Ok(entry) = serde_json::from_slice(&line) {
                        each(entry);
                    }
                }
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                bail!("read {}: permission denied; only root and members of the group omr may read it", file.display())
            }
            Err(err) => return Err(err).with_context(|| format!("read {}", file.display())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::days::Days;

    fn line(sweep: u64) -> Entry {
        Entry::Refaults { time: 1, sweep, group: "a".into(), bytes: Bytes(4096), after: 300 }
    }

    fn lines(dir: &Path) -> Vec<Entry> {
        let mut all = Vec::new();
        read(dir, |entry| all.push(entry)).expect("the ledger can be read");
        all
    }

    #[test]
    fn a_line_cut_off_by_a_crash_costs_that_line_only() {
        let dir = tempfile::tempdir().expect("a directory");
        Ledger::open(dir.path()).add(&line(1));
        let path = dir.path().join("ledger.jsonl");
        let mut text = fs::read(&path).expect("text");
        text.extend_from_slice(b"{\"kind\":\"refau");
        fs::write(&path, text).expect("written");
        Ledger::open(dir.path()).add(&line(2));
        assert_eq!(lines(dir.path()), [line(1), line(2)]);
    }

    #[test]
    fn old_lines_are_rotated_and_in_the_end_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ledger = Ledger::open(dir.path());
        // Each line counts as if it had four megabytes.
        ledger.largest = 0;
        for sweep in 0..6 {
            ledger.add(&line(sweep));
        }
        assert_eq!(lines(dir.path()), [2, 3, 4, 5].map(line));
    }

    #[test]
    fn a_rotation_that_was_cut_off_goes_on_and_drops_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ledger.jsonl");
        let text = |sweep| format!("{}\n", serde_json::to_string(&line(sweep)).expect("text"));
        // Killed between two moves: the file that was the first is the second.
        for (file, sweep) in [(rotated(&path, 3), 1), (rotated(&path, 2), 2), (path.clone(), 3)] {
            fs::write(file, text(sweep)).expect("written");
        }
        let mut ledger = Ledger::open(dir.path());
        ledger.largest = 0;
        ledger.add(&line(4));
        assert_eq!(lines(dir.path()), [1, 2, 3, 4].map(line));
    }

    #[test]
    fn a_next_file_that_cannot_be_made_does_not_cost_the_old_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(dir.path());
        ledger.add(&line(1));
        ledger.largest = 0;
        // Where the next file has to be there is something else, as soon as the old one is aside.
        rotate(&path).expect("put aside");
        ledger.file = None;
        fs::create_dir(&path).expect("a directory in the way");
        for sweep in 2..9 {
            ledger.add(&line(sweep));
        }
        fs::remove_dir(&path).expect("out of the way");
        ledger.add(&line(9));
        assert_eq!(lines(dir.path()), [line(1), line(9)]);
    }

    /// A line of each kind, as omr writes them.
    const LINES: &str = include_str!("ledger/lines.jsonl");

    #[test]
    fn no_line_makes_it_panic() {
        let lines: Vec<&str> = LINES.lines().collect();
        assert_eq!(lines.iter().filter(|line| serde_json::from_str::<Entry>(line).is_ok()).count(), 9, "the control");
        omr_testkit::fuzz::feed(&lines, |line| {
            let Ok(entry) = serde_json::from_slice::<Entry>(line) else { return };
            let again = serde_json::to_vec(&entry).expect("text");
            assert_eq!(serde_json::from_slice::<Entry>(&again).ok(), Some(entry));
        });
    }

    #[test]
    fn a_damaged_line_costs_nothing_of_the_others_and_its_figures_add_up_to_something() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ledger.jsonl");
        let parts: Vec<&str> = LINES.lines().collect();
        let good = serde_json::to_string(&line(77)).expect("text");
        omr_testkit::fuzz::feed(&parts, |damaged| {
            // Twice, so that sums of the largest numbers are made.
            let text = [good.as_bytes(), b"\n", damaged, b"\n", damaged, b"\n", good.as_bytes()].concat();
            fs::write(&path, text).expect("written");
            let found = lines(dir.path());
            assert!(found.iter().filter(|entry| **entry == line(77)).count() >= 2, "{found:?}");
            let days = Days::read(dir.path()).expect("the ledger");
            for (day, group, of) in days.rows() {
                assert_eq!(days.of(day, group).as_ref(), Some(&of));
            }
        });
    }
}
