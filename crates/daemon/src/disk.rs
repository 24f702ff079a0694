//! The thread that writes the daemon's records to disk. A disk that is slow, full or hangs must not
//! keep the loop from noticing that somebody needs the machine.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_base::storage::write_atomically;
use omr_history::ledger::{Entry, Ledger};

/// The lines that wait for the disk, at most; further ones are lost.
const MOST_LINES: usize = 1024;
/// The time that the last records have when the daemon ends.
const LAST: Duration = Duration::from_secs(5);
const STACK: usize = 128 << 10;

/// Records that wait for the disk.
#[derive(Debug, Default)]
struct Waiting {
    files: BTreeMap<PathBuf, Contents>,
    lines: VecDeque<Entry>,
    /// The lines that found no place since the last batch.
    lost: u64,
    /// There is something that the thread has not tried to write yet.
    is_new: bool,
    /// The daemon ends.
    is_closed: bool,
    /// The thread has written what it could, and has ended.
    has_ended: bool,
}

/// The new contents of a file, and what the daemon does not know later if it cannot be written.
#[derive(Debug)]
struct Contents {
    text: Vec<u8>,
    lost: &'static str,
}

/// What both sides share.
#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The ledger and the files, on the thread's side.
#[derive(Debug)]
struct Records {
    ledger: Ledger,
    /// The files that could not be written the last time.
    unsaved: HashSet<PathBuf>,
}

/// The loop's side: nothing here waits for the disk.
#[derive(Debug)]
pub struct Disk {
    shared: Arc<Shared>,
    /// Writes at once, for a test that reads what the daemon has just recorded.
    at_once: Option<Records>,
}

impl Disk {
    /// Opens the ledger, and starts the thread.
    pub fn start(state_dir: &Path) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut records = Records::open(state_dir);
        let theirs = Arc::clone(&shared);
        let builder = thread::Builder::new().name("omr-disk".into()).stack_size(STACK);
        builder.spawn(move || theirs.write_until_closed(&mut records)).context("start the thread omr-disk")?;
        Ok(Disk { shared, at_once: None })
    }

    /// Without a thread.
    #[cfg(test)]
    pub fn at_once(state_dir: &Path) -> Self {
        Disk { shared: Arc::default(), at_once: Some(Records::open(state_dir)) }
    }

    /// Returns true if a file could not be written yet.
    #[cfg(test)]
    pub fn is_behind(&self) -> bool {
        !self.shared.lock().files.is_empty()
    }

    /// Adds a line to the ledger. It is lost if too many wait for the disk.
    pub fn add_line(&mut self, entry: &Entry) {
        self.give(|waiting| match waiting.lines.len() < MOST_LINES {
            true => waiting.lines.push_back(entry.clone()),
            false => waiting.lost += 1,
        });
    }

    /// Replaces a file. `lost`: what a later daemon does not know if that fails, for the log.
    pub fn replace(&mut self, path: &Path, text: Vec<u8>, lost: &'static str) {
        self.give(|waiting| drop(waiting.files.insert(path.to_owned(), Contents { text, lost })));
    }

    fn give(&mut self, give: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.shared.lock();
        give(&mut waiting);
        waiting.is_new = true;
        if let Some(records) = &mut self.at_once {
            records.write(&mut waiting);
        }
        drop(waiting);
        self.shared.changed.notify_all();
    }

    /// Lets the thread write the last records, and waits for that some seconds.
    pub fn close(&mut self) {
        self.close_within(LAST);
    }

    fn close_within(&mut self, time: Duration) {
        let mut waiting = self.shared.lock();
        waiting.is_closed = true;
        self.shared.changed.notify_all();
        if let Some(records) = &mut self.at_once {
            records.write(&mut waiting);
            return;
        }
        let is_writing = |waiting: &mut Waiting| !waiting.has_ended;
        let waited = self.shared.changed.wait_timeout_while(waiting, time, is_writing);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            log::warn!("the disk took no records for {} s; the last ones are lost", time.as_secs());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: writes what there is, outside of the lock.
    fn write_until_closed(&self, records: &mut Records) {
        loop {
            let nothing = |waiting: &mut Waiting| !waiting.is_new && !waiting.is_closed;
            let waiting = self.changed.wait_while(self.lock(), nothing);
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            let is_last = waiting.is_closed;
            let mut batch = mem::take(&mut *waiting);
            waiting.is_closed = is_last;
            drop(waiting);
            records.write(&mut batch);
            let mut waiting = self.lock();
            // What failed is tried again with the next records, unless it is out of date by then.
            for (path, contents) in batch.files {
                waiting.files.entry(path).or_insert(contents);
            }
            if is_last && !waiting.is_new {
                waiting.has_ended = true;
                self.changed.notify_all();
                return;
            }
        }
    }
}

impl Records {
    fn open(state_dir: &Path) -> Self {
        Records { ledger: Ledger::open(state_dir), unsaved: HashSet::new() }
    }

    /// Writes what waits, and leaves the files that could not be written. Files come before lines:
    /// whoever sees the line of a sweep may rely on its being counted.
    fn write(&mut self, waiting: &mut Waiting) {
        waiting.files.retain(|path, contents| match write_atomically(path, &contents.text) {
            Ok(()) => {
                self.unsaved.remove(path);
                false
            }
            Err(err) => {
                if self.unsaved.insert(path.clone()) {
                    log::warn!("{err:#}; {}", contents.lost);
                }
                true
            }
        });
        for line in waiting.lines.drain(..) {
            self.ledger.add(&line);
        }
        if waiting.lost > 0 {
            log::warn!("the disk was too slow: {} lines of the ledger were lost", waiting.lost);
            waiting.lost = 0;
        }
        waiting.is_new = false;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::{BufRead as _, BufReader};
    use std::sync::mpsc::channel;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use serde_json::Value;

    use super::*;
    use crate::test_log::lines_of;

    fn line(sweep: u64) -> Entry {
        Entry::LeftAlone { time: sweep, group: "app.scope".into(), reason: "a test ".repeat(100) }
    }

    fn times(ledger: impl std::io::Read) -> Vec<u64> {
        let lines = BufReader::new(ledger).lines().map(|line| line.expect("a line"));
        let time = |line: String| serde_json::from_str::<Value>(&line).expect("JSON")["time"].as_u64().expect("a time");
        lines.map(time).collect()
    }

    #[test]
    fn records_are_on_disk_when_the_daemon_has_ended_and_a_file_has_its_last_contents() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut disk = Disk::start(dir.path()).expect("a thread");
        let file = dir.path().join("file.json");
        for number in 0..100 {
            disk.replace(&file, number.to_string().into(), "");
            disk.add_line(&line(number));
        }
        disk.close();
        assert_eq!(fs::read_to_string(file).expect("a file"), "99");
        let ledger = File::open(dir.path().join("ledger.jsonl")).expect("a ledger");
        assert_eq!(times(ledger), Vec::from_iter(0..100));
    }

    #[test]
    fn a_disk_that_hangs_keeps_nobody_waiting_and_costs_only_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let ledger = dir.path().join("ledger.jsonl");
        // A pipe takes 64 KiB, and then nothing until somebody reads it.
        mknodat(CWD, &ledger, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let holder = OpenOptions::new().read(true).write(true).open(&ledger).expect("the pipe");
        let (done, is_done) = channel();
        let state_dir = dir.path().to_owned();
        // A loop that waits for the disk must fail this test, not stop it.
        thread::spawn(move || {
            let mut disk = Disk::start(&state_dir).expect("a thread");
            let mut added = 0;
            let waiting = loop {
                disk.add_line(&line(added));
                added += 1;
                let waiting = disk.shared.lock().lines.len();
                // The thread may take lines late, on a busy machine.
                if added >= 3000 && waiting >= MOST_LINES {
                    break waiting;
                }
            };
            let lines = lines_of(|| disk.close_within(Duration::from_millis(20)));
            done.send((disk, added, waiting, lines)).expect("the test is there");
        });
        let (mut disk, added, waiting, lines) = is_done.recv_timeout(Duration::from_secs(60)).expect("the loop waits");
        assert_eq!(waiting, MOST_LINES);
        assert_eq!(lines, ["the disk took no records for 0 s; the last ones are lost"]);
        // The disk is back.
        let read = thread::spawn(move || times(File::open(ledger).expect("the pipe")));
        disk.close();
        // Nobody writes any more, so the reader sees the end.
        drop(holder);
        let read = read.join().expect("lines");
        assert!(read.is_sorted() && read.len() >= MOST_LINES, "{}", read.len());
        assert!(u64::try_from(read.len()).expect("a number") < added - 100, "{} of {added}", read.len());
    }

    #[test]
    fn a_file_that_could_not_be_written_is_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("missing").join("file.json");
        let mut disk = Disk::at_once(dir.path());
        let lines = lines_of(|| {
            disk.replace(&file, b"old".into(), "a test does not know of it");
            disk.add_line(&line(0));
        });
        let [warning] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(warning.ends_with("; a test does not know of it"), "{warning}");
        fs::create_dir(dir.path().join("missing")).expect("made");
        disk.add_line(&line(1));
        assert_eq!(fs::read(&file).expect("a file"), b"old");
    }
}
