//! The report of hinting one process.

use std::ops::Range;
use std::time::Duration;

use omr_actuate::Advice;
use omr_kernel::ranges::{Ranges, length};
use omr_policy::End;
use omr_units::Bytes;
use serde::Serialize;

use super::layout::LayoutId;
use super::plan::{Line, Part, Selection, Skip, Skipped, text};
use super::subject::Subject;

/// The most ranges in a report that were not hinted as requested; a process can have 65,530
/// mappings.
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
    /// The hint.
    pub advice: Advice,
    /// The layout before the hint; `None`: the process is gone.
    pub layout: Option<LayoutId>,
    /// True if the run ended because the layout is not the expected one.
    pub cancelled: bool,
    /// The memory that the kernel processed, or would process in a dry run.
    pub hinted: Bytes,
    /// The resident part of the memory to hint, before the hint. Deactivated memory stays where it
    /// is, and is not measured again.
    pub resident_before: Bytes,
    /// The resident part when the hint ended; `None`: the process is gone.
    pub resident_after: Option<Bytes>,
    /// The part in swap when the hint ended.
    pub swapped_out: Bytes,
    /// The address ranges that were to be paged out, roughly.
    #[serde(skip)]
    pub places: Ranges,
    /// The decrease of the group's `memory.current` over all calls.
    pub freed: Bytes,
    /// The part of `freed` that was swap cache and that `memory.reclaim` freed in the end.
    pub freed_behind: Bytes,
    /// The swap cache that this hint made and that was not freed.
    pub left_cached: Bytes,
    /// The memory that was skipped, by reason.
    pub skipped: Skipped,
    /// The size of requested addresses where nothing is mapped.
    pub not_mapped: Bytes,
    /// True if the process changed hinted mappings meanwhile.
    pub changed: bool,
    /// The number of ranges that were hinted again because of that.
    pub retried: u32,
    /// The ranges that were not hinted as requested, at most 100: first those that are not mapped,
    /// then those that changed, those that the kernel refused, and the others. On request all
    /// ranges, in the order of the calls. A dry run has only those that are not mapped, as it shows
    /// all mappings. Ranges that were not reached before an early end are left out.
    pub ranges: Vec<RangeResult>,
    /// The number of further such ranges.
    pub more_ranges: u32,
    /// All ranges are named.
    #[serde(skip)]
    all_ranges: bool,
    /// The number of calls of `process_madvise`.
    pub calls: u32,
    /// The longest call, in milliseconds.
    pub longest_call_ms: u64,
    /// Time from start to end.
    pub wall: Duration,
    /// CPU time of the calling thread.
    pub cpu: Duration,
    /// The end of the run.
    pub end: End,
    /// Remarks for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// In a dry run: each mapping.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Line>,
}

/// The result of one range.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct RangeResult {
    /// Its addresses, in hexadecimal digits.
    pub range: String,
    /// The bytes that were to be hinted.
    pub bytes: Bytes,
    /// The reason why it was not hinted as requested, or that it was.
    pub why: Why,
    /// The hinted part: of a range that changed, what is mapped there now.
    pub hinted: Bytes,
    /// The number of times that the range was hinted again.
    pub retried: u32,
}

/// The reason why a range was not hinted as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It was.
    Done,
    /// Nothing was mapped there from the start.
    NotMapped,
    /// The process mapped something else there meanwhile, or unmapped the range.
    Changed,
    /// The range was skipped.
    #[serde(untagged)]
    Skipped(Skip),
}

impl Report {
    pub(super) fn new(subject: &Subject, selection: &Selection, end: End) -> Self {
        let stat = subject.process.stat();
        Report {
            pid: stat.pid,
            name: omr_base::text::printable(&stat.comm.to_string_lossy()),
            group: subject.group.to_string_lossy().into_owned(),
            advice: selection.advice,
            layout: None,
            cancelled: false,
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
            all_ranges: selection.all_ranges,
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
        if self.ranges.len() >= MOST_NAMED && !self.all_ranges {
            self.more_ranges += 1;
            return;
        }
        self.ranges.push(RangeResult { range: text(range), bytes, why, hinted, retried });
    }

    pub(super) fn add_done(&mut self, range: &Range<u64>, hinted: Bytes) {
        if self.all_ranges && hinted.0 > 0 {
            self.add(range, length(range), Why::Done, hinted, 0);
        }
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
