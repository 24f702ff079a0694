//! Frees the swap cache that paging out to a disk leaves behind.
//!
//! Pages that are paged out to a disk stay in memory as swap cache until the group's
//! `memory.reclaim` frees them. omr asks for as many bytes as the hint has added. The kernel
//! chooses the pages.

use std::time::Duration;

use anyhow::Result;
use omr_actuate::Outcome;
use omr_config::BackendChoice;
use omr_kernel::memcg::Group;
use omr_machine::groups::targets::SMALLEST;
use omr_policy::End;
use omr_units::{Bytes, Limit};

use super::MadviseSession;
use super::subject::Account;
use super::work::HintState;
use crate::reclaim::limit_journal::Borrowed;
use crate::reclaim::writeback::{self, Limits};
use crate::reclaim::{Method, Report, Wish, job};
use crate::session::Session;

/// The longest wait for paged-out memory to arrive on the disk.
const WRITTEN_TIME: Duration = Duration::from_secs(30);
/// Freeing swap cache may always send this amount of other memory to swap.
const LEAST_EXCESS: Bytes = Bytes::mib(2);

impl MadviseSession<'_, '_> {
    /// Frees the swap cache that this hint made. `cached`: the swap cache before the hint.
    pub(super) fn free_cached(&mut self, work: &mut HintState<'_>, cached: Bytes) -> Result<()> {
        let Some(account) = &work.subject.account else { return Ok(()) };
        if !work.on_disk || work.report.swapped_out < SMALLEST {
            return Ok(());
        }
        let has_arrived = self.wait_until_written(&account.group, &mut work.buffer);
        let made = |work: &mut HintState<'_>| -> Result<Bytes> {
            Ok((work.read_swap_cache(self.session.host.kernel)? - cached).min(work.report.swapped_out))
        };
        let amount = made(work)?;
        work.report.left_cached = amount;
        if amount < SMALLEST || self.session.cancel.is_set() {
            return Ok(());
        }
        if !has_arrived {
            work.report
                .notes
                .push("the swap disk does not keep up, so memory that was swapped out stays in memory, too".into());
            return Ok(());
        }
        let Some(behind) = self.reclaim_cached(account, amount, work)? else { return Ok(()) };
        work.report.freed += behind.freed;
        work.report.freed_behind = behind.freed;
        work.report.left_cached = made(work)?;
        if let Some(error) = behind.error {
            work.report.notes.push(error);
        } else if matches!(behind.end, End::Denied | End::Unsupported) {
            work.report.notes.push(format!("memory.reclaim of its group: {}", behind.end.words()));
        }
        Ok(())
    }

    /// Reclaims this amount of swap cache; `None`: this kernel cannot, and a note says so.
    fn reclaim_cached(&mut self, account: &Account, amount: Bytes, work: &mut HintState<'_>) -> Result<Option<Report>> {
        let (kernel, group) = (self.session.host.kernel, &account.group);
        let mut method = match Method::choose(kernel, Wish::Any(BackendChoice::Auto), group, self.session.actuator) {
            Ok(method) => method,
            Err(err) => {
                work.report
                    .notes
                    .push(format!("{err:#}, so {amount} of swap cache stay in memory until they are reclaimed"));
                return Ok(None);
            }
        };
        let excess = Bytes(amount.0 / 16).max(LEAST_EXCESS);
        let bound = self.bound_swap(group, excess, &mut work.buffer)?;
        // These pages are in swap already, and usually first in the kernel's order. If the kernel
        // swaps out other pages of the group instead, this limit ends the job.
        let job = job::swap_cache_job(self.config, amount, excess);
        let mut silent = |_| {};
        let mut session = Session { journal: None, ..self.session.with_progress(&mut silent) };
        let behind = session.reclaim(&mut method, group.into(), job);
        if let Some(borrowed) = bound {
            borrowed.restore(kernel, self.session.actuator)?;
        }
        Ok(Some(behind))
    }

    /// Waits until no memory of the group is on its way to the disk: `memory.reclaim` cannot free
    /// such pages, and would swap out others instead. Returns false if the disk does not keep up.
    fn wait_until_written(&self, group: &Group, buffer: &mut Vec<u8>) -> bool {
        let limits = Limits { longest: WRITTEN_TIME, patience: WRITTEN_TIME };
        let read = || match group.read_stat(self.session.host.kernel, buffer) {
            Ok(stat) => Ok(stat.file_writeback.unwrap_or(Bytes::MAX)),
            // The group is usually gone, so there is nothing to free.
            Err(_) => Ok(Bytes::ZERO),
        };
        writeback::wait(self.session.cancel, limits, read).unwrap_or(false)
    }

    /// Limits the group's further swap to `excess` until its `memory.swap.max` is restored. Without
    /// the limit a single write to `memory.reclaim` can swap out a whole group, because pages on
    /// their way to the disk do not count as freed.
    fn bound_swap<'g>(&mut self, group: &'g Group, excess: Bytes, buffer: &mut Vec<u8>) -> Result<Option<Borrowed<'g>>>
    where
        Self: 'g,
    {
        const FILE: &str = "memory.swap.max";
        let Some(journal) = self.session.journal else { return Ok(None) };
        if !group.dir().may_write(FILE) {
            return Ok(None);
        }
        let before = group.read_limit(FILE, buffer)?;
        let low = Limit::Bytes(group.read_swap_current(buffer)? + excess);
        if low >= before {
            return Ok(None);
        }
        let Some(mut borrowed) = journal.borrow(group, FILE, before)? else { return Ok(None) };
        borrowed.announce(low);
        match self.session.actuator.write(group.dir(), FILE, &low.to_string()) {
            Ok(Outcome::Done) => Ok(Some(borrowed)),
            refused => {
                borrowed.restore(self.session.host.kernel, self.session.actuator)?;
                refused?;
                Ok(None)
            }
        }
    }
}
