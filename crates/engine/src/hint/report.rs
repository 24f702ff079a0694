//! The report of hinting one process.

use std::ops::Range;
use std::time::Duration;

use omr_kernel::ranges::{Ranges, length};
use omr_policy::End;
use omr_units::Bytes;
use serde::Serialize;

use super::plan::{Line, Part, Skip, Skipped, text};
use super::subject::Subject;

/// A report names this many ranges that were not hinted as asked; a process can have 65,530 mappings.
const MOST_NAMED: usize = 100;

/// The report of hinting one process.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its process id.
    pub pid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// Its group.
    pub group: String,
    /// What the kernel went through, or would in a dry run.
    pub hinted: Bytes,
    /// How much of the memory to be hinted was resident before. Memory that is deactivated stays where it
    /// is, and is not measured again.
    pub resident_before: Bytes,
    /// How much of it was resident when the hint ended; `None`: the process is gone.
    pub resident_after: Option<Bytes>,
    /// How much of it is in swap now.
    pub swapped_out: Bytes,
    /// The address ranges that were to be paged out, roughly.
    #[serde(skip)]
    pub places: Ranges,
    /// What the group's `memory.current` fell by, call by call.
    pub freed: Bytes,
    /// The part of `freed` that was swap cache and that `memory.reclaim` freed in the end.
    pub freed_behind: Bytes,
    /// Swap cache that this hint made and that is still there.
    pub left_cached: Bytes,
    /// The memory that was passed over, by reason.
    pub skipped: Skipped,
    /// Addresses asked for where nothing is mapped.
    pub not_mapped: Bytes,
    /// True if the process changed its mappings meanwhile, where it was hinted.
    pub changed: bool,
    /// How many ranges were hinted again because of that.
    pub retried: u32,
    /// The ranges that were not hinted as asked, 100 of them at most: first those that changed, then those
    /// that the kernel refused, then the rest. None in a dry run, which shows all mappings. After an early
    /// end, ranges that were not reached are not among them.
    pub ranges: Vec<Exception>,
    /// How many more such ranges there were.
    pub more_ranges: u32,
    /// How many calls of `process_madvise` there were.
    pub calls: u32,
    /// The longest call, in milliseconds.
    pub longest_call_ms: u64,
    /// Time from start to end.
    pub wall: Duration,
    /// CPU time of the calling thread.
    pub cpu: Duration,
    /// How the run ended.
    pub end: End,
    /// Remarks for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// In a dry run: each mapping.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Line>,
}

/// A range that was not hinted as asked.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Exception {
    /// Its addresses, in hexadecimal digits.
    pub range: String,
    /// Bytes that the hint was to be about.
    pub bytes: Bytes,
    /// The reason why it was not hinted as asked.
    pub why: Why,
    /// The part of it that the kernel went through all the same, as it is mapped now.
    pub hinted: Bytes,
    /// How many times it was hinted again.
    pub retried: u32,
}

/// Why a range was not hinted as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The process mapped something else there meanwhile, or unmapped the range.
    Changed,
    /// It was passed over.
    #[serde(untagged)]
    Skipped(Skip),
}

impl Report {
    pub(super) fn new(subject: &Subject, end: End) -> Self {
        let stat = subject.process.stat();
        Report {
            pid: stat.pid,
            name: omr_base::text::printable(&stat.comm.to_string_lossy()),
            group: subject.group.to_string_lossy().into_owned(),
            hinted: Bytes::ZERO,
            resident_before: Bytes::ZERO,
            resident_after: None,
            swapped_out: Bytes::ZERO,
            places: Ranges::new(),
            freed: Bytes::ZERO,
            freed_behind: Bytes::ZERO,
            left_cached: Bytes::ZERO,
            skipped: Skipped::default(),
            not_mapped: Bytes::ZERO,
            changed: false,
            retried: 0,
            ranges: Vec::new(),
            more_ranges: 0,
            calls: 0,
            longest_call_ms: 0,
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            end,
            notes: Vec::new(),
            mappings: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, range: &Range<u64>, bytes: Bytes, why: Why, hinted: Bytes, retried: u32) {
        if self.ranges.len() == MOST_NAMED {
            self.more_ranges += 1;
            return;
        }
        self.ranges.push(Exception { range: text(range), bytes, why, hinted, retried });
    }

    pub(super) fn add_changed(&mut self, range: &Range<u64>, hinted: Bytes, retried: u32) {
        self.changed = true;
        self.retried += u32::from(retried > 0);
        self.add(range, length(range), Why::Changed, hinted, retried);
    }

    pub(super) fn add_skipped(&mut self, part: &Part) {
        if let Some((skip, bytes)) = part.skipped().filter(|(_, bytes)| bytes.0 > 0) {
            self.add(&part.mapping.range, bytes, Why::Skipped(skip), Bytes::ZERO, 0);
        }
    }
}
