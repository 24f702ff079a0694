//! The state of hinting one process: its mappings, its page table, and the ranges that the kernel
//! refused.

use anyhow::Result;
use omr_actuate::Advice;
use omr_kernel::Kernel;
use omr_kernel::maps::{self, Detail, Layout, Refusal};
use omr_kernel::pagemap::Pagemap;
use omr_kernel::ranges::{Ranges, length};
use omr_units::Bytes;

use super::layout::Expected;
use super::plan::Skip;
use super::report::{Report, Why};
use super::subject::Subject;

/// The state of hinting one process.
pub(super) struct HintState<'a> {
    pub subject: &'a Subject,
    pub advice: Advice,
    /// The layout that the process must have.
    pub expected: &'a Expected,
    pub layout: Layout,
    pub pagemap: Pagemap<'static>,
    /// Swap that stays free.
    pub floor: Bytes,
    /// Some swap is on a disk.
    pub on_disk: bool,
    /// All ranges that the kernel refused.
    pub refused: Ranges,
    pub report: Report,
    pub buffer: Vec<u8>,
}

impl HintState<'_> {
    /// Returns the swap cache of the group that accounts for the process.
    pub fn read_swap_cache(&mut self, kernel: &Kernel) -> Result<Bytes> {
        let Some(account) = &self.subject.account else { return Ok(Bytes::ZERO) };
        match account.group.read_stat(kernel, &mut self.buffer) {
            Ok(stat) => Ok(stat.swapcached.unwrap_or_default()),
            Err(err) if err.is_gone() => Ok(Bytes::ZERO),
            Err(err) => Err(err.into()),
        }
    }

    /// Returns the part of these ranges that is in memory, and the part that is in swap.
    pub fn residency(&mut self, ranges: &Ranges) -> omr_kernel::Result<(Ranges, Ranges)> {
        let found = self.pagemap.residency(ranges)?;
        // Before 6.7 the file of a process that has ended is empty, as if nothing were in memory.
        let changed = self.layout.update()?.intersection(ranges);
        changed.as_slice().iter().for_each(|range| self.report.add_changed(range, Bytes::ZERO, 0));
        Ok(found)
    }

    /// Adds the reasons why the kernel refused ranges to the report. Those of `without_pages` were
    /// refused as well, if they are memory of a device.
    pub fn report_refused(&mut self, without_pages: &Ranges) {
        if self.refused.is_empty() && without_pages.is_empty() {
            return;
        }
        let details = maps::read_smaps(self.subject.process.dir()).unwrap_or_default();
        let mut named = Ranges::new();
        for Detail { mapping, refusal, .. } in &details {
            let Some(refusal) = refusal else { continue };
            let mut refused = self.refused.within(&mapping.range);
            if *refusal == Refusal::Device {
                refused = refused.union(&without_pages.within(&mapping.range));
            }
            self.skip(&refused, Skip::from(*refusal));
            named.push(mapping.range.clone());
        }
        // If smaps has no reason for a range, the range was locked and is unlocked by now.
        self.skip(&self.refused.without(&named), Skip::Locked);
    }

    fn skip(&mut self, ranges: &Ranges, skip: Skip) {
        for range in ranges.as_slice() {
            self.report.skipped.add(skip, length(range));
            self.report.add(range, length(range), Why::Skipped(skip), Bytes::ZERO, 0);
        }
    }
}
