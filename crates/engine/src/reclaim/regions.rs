//! Reclaims memory that surely was not used for an age, without MGLRU: address ranges of processes,
//! by DAMON's ages.
//!
//! Only private memory that goes to swap is reclaimed, and only regions that surely were not used:
//! see [`crate::aging::damon`]. The kernel ignores accessed bits when it pages out on request, so
//! ages are read again before each portion.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Advice;
use omr_config::Loaded;
use omr_kernel::maps::Backing;
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_machine::groups::targets::SMALLEST;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Amount, Bytes};

use super::report::{Report, run_job};
use crate::aging::damon::{ProcessAges, Watch};
use crate::hint::{self, Extent, Ignore, Rules, Selection, Subject};
use crate::session::{Progress, Session};

/// The amount that is paged out between two readings of ages: what a slow disk writes in a second.
const PORTION: Bytes = Bytes::mib(16);

/// DAMON's ages, and the rules by which processes may be paged out.
pub struct Regions<'a> {
    /// The monitor of the group's processes.
    pub watch: Box<Watch>,
    /// Only memory that was not used for this long.
    pub older_than: Duration,
    /// The configuration.
    pub loaded: &'a Loaded,
    /// Protections that the caller chose to ignore.
    pub ignore: Ignore,
    /// Swap that stays free; `None`: as much as the configuration says.
    pub swap_floor: Option<Amount>,
}

/// Pages out cold regions of processes.
pub(super) struct ColdPager<'s, 'a, 'r> {
    pub session: &'s mut Session<'a>,
    pub regions: &'s mut Regions<'r>,
}

impl ColdPager<'_, '_, '_> {
    /// Pages cold memory out of the processes of one group, not of groups below it. Rules,
    /// `memory.min` and `memory.low` are read anew for each portion.
    pub fn run(&mut self, group: &Group, job: Job) -> Report {
        run_job(group.into(), job, |group, job, report| self.portions(group, &job, report))
    }

    fn portions(&mut self, group: &Group, job: &Job, report: &mut Report) -> Result<End> {
        let page = self.session.host.kernel.page();
        // Processes without further memory that can or may be paged out.
        let mut over = HashSet::new();
        let mut gone = Bytes::ZERO;
        let mut end = End::NoMoreCold;
        loop {
            if let Some(cancelled) = self.session.cancelled() {
                end = cancelled;
                break;
            }
            let left = job.amount - gone;
            if left < page.bytes() {
                end = End::Complete;
                break;
            }
            let Some(coldest) = self.coldest(group, &over, report)? else {
                end = End::NotAged;
                break;
            };
            let Some((pid, starttime, cold)) = coldest else { break };
            let process = Process::open(self.session.host.kernel, pid).ok();
            let Some(process) = process.filter(|now| now.stat().starttime == starttime) else {
                over.insert(pid);
                continue;
            };
            let Some(hinted) = self.page_out(process, cold, left.min(PORTION), report)? else {
                over.insert(pid);
                end = End::Floor;
                continue;
            };
            let went = hinted.resident_before - hinted.resident_after.unwrap_or(hinted.resident_before);
            gone += went;
            report.add_hinted(&hinted);
            let (freed, swapped_out) = (report.freed, report.swapped_out);
            (self.session.progress)(Progress { freed, swapped_out, ..Progress::default() });
            match hinted.end {
                End::Complete | End::Futile | End::Gone | End::Floor => {
                    if hinted.end == End::Floor {
                        end = End::Floor;
                    }
                    if went < page.bytes() || hinted.end == End::Floor {
                        over.insert(pid);
                    }
                }
                other => {
                    end = other;
                    break;
                }
            }
        }
        let mut buffer = Vec::new();
        report.size = group.read_current(&mut buffer)?;
        report.refaults = group.read_stat(&mut buffer)?.refaults().map(|pages| pages.bytes(page));
        Ok(end)
    }

    /// Returns the process with the most cold memory, except those in `over`: its id, start time
    /// and cold memory. The outer `None`: the monitor has ended.
    fn coldest(
        &mut self,
        group: &Group,
        over: &HashSet<u32>,
        report: &mut Report,
    ) -> Result<Option<Option<(u32, u64, Ranges)>>> {
        let Regions { watch, older_than, .. } = &mut *self.regions;
        let found = watch.read_ages(&[*older_than], |mapped| mapped.group == *group.path())?;
        let Some((_, found)) = found else {
            report.error.get_or_insert_with(|| watch.end_reason().into());
            return Ok(None);
        };
        let cold = found.iter().map(|found| {
            let stat = found.mapped.process.stat();
            (stat.pid, stat.starttime, cold(found))
        });
        let left = cold.filter(|(pid, _, cold)| cold.bytes() >= SMALLEST && !over.contains(pid));
        Ok(Some(left.max_by_key(|(_, _, cold)| cold.bytes())))
    }

    /// Pages `amount` out of one process; `None`: that may not be, and the report says why.
    fn page_out(
        &mut self,
        process: Process,
        cold: Ranges,
        amount: Bytes,
        report: &mut Report,
    ) -> Result<Option<hint::Report>> {
        let Regions { loaded, ignore, swap_floor, .. } = *self.regions;
        let host = self.session.host;
        let rules = Rules::read(host.kernel, host.root, loaded)?;
        let subject = match Subject::permitted(host.kernel, &rules, process, ignore) {
            Ok(subject) => subject,
            Err(err) => {
                report.error.get_or_insert_with(|| format!("{err:#}"));
                return Ok(None);
            }
        };
        let selection =
            Selection { within: Some(cold), backing: Some(Backing::Anonymous), ..Selection::all(Advice::PageOut) };
        let extent = Extent { amount: Amount::Bytes(amount), swap_floor };
        let mut silent = |_| {};
        self.session.with_progress(&mut silent).hint(&loaded.policy, &subject, &selection, extent).map(Some)
    }
}

/// The memory of a process that surely was not used, and is in memory and private.
fn cold(found: &ProcessAges<'_>) -> Ranges {
    let idle: Ranges = found.idle.iter().filter(|idle| idle.least[0]).map(|idle| idle.range.clone()).collect();
    let private = found.resident.iter().filter(|(mapping, _)| mapping.backing == Backing::Anonymous);
    private.flat_map(|(_, present)| present.intersection(&idle).as_slice().to_vec()).collect()
}
