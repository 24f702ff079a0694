//! Reclaiming what was not used for so long where MGLRU does not tell: the processes' own ranges, by what DAMON has seen.
//!
//! Only private memory that goes to swap, and only regions that were surely unused: see [`super::damon`]. The kernel does not
//! look at accessed bits when it is told to page out, so ages are read anew before each portion.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::{Actuator, Advice};
use omr_base::cancel::Flag;
use omr_config::Loaded;
use omr_kernel::maps::Backing;
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::targets::SMALLEST;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Amount, Bytes};

use crate::aging::damon::{Found, Watch};
use crate::hint::{Extent, Hinter, Ignore, Rules, Selection, Subject};
use crate::reclaim::limit_journal::Journal;
use crate::reclaim::{Progress, Report, reported};

/// What is paged out between two looks at ages: a second's work of a slow disk.
const PORTION: Bytes = Bytes::mib(16);

/// What paging out needs.
pub struct Pager<'a> {
    /// The kernel to read from.
    pub kernel: &'a Kernel,
    /// The root directory below which files are opened.
    pub root: &'a Path,
    /// The configuration.
    pub loaded: &'a Loaded,
    /// Every write goes through it.
    pub actuator: &'a mut dyn Actuator,
    /// Where a changed limit is noted first; `None`: no limit may be changed.
    pub journal: Option<&'a Journal>,
    /// Ends the run when set.
    pub stop: &'a Flag,
    /// Protections that the caller chose to ignore.
    pub ignore: Ignore,
    /// Swap that stays free, where it is not the configuration's.
    pub swap_floor: Option<Amount>,
}

impl Pager<'_> {
    /// Pages out of the processes of one group, not of groups below it, what was not used for so long. What rules, `memory.min`
    /// and `memory.low` keep is looked at anew for each portion.
    pub fn run(
        &mut self,
        watch: &mut Watch,
        group: &Group,
        job: Job,
        older_than: Duration,
        progress: &mut dyn FnMut(Progress),
    ) -> Report {
        reported(group, job, None, |job, report| self.portions(watch, group, job, older_than, report, progress))
    }

    fn portions(
        &mut self,
        watch: &mut Watch,
        group: &Group,
        job: Job,
        older_than: Duration,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<End> {
        let page = self.kernel.page();
        // Processes of which nothing more leaves, or may.
        let mut over = HashSet::new();
        let mut gone = Bytes::ZERO;
        let mut end = End::NoMoreCold;
        loop {
            if self.stop.is_set() {
                end = if self.stop.timed_out() { End::Timeout } else { End::Stopped };
                break;
            }
            let left = job.amount - gone;
            if left < page.bytes() {
                end = End::Complete;
                break;
            }
            let found = watch.read(&[older_than], |mapped| mapped.group == *group.path())?;
            let Some((_, found)) = found else {
                report.error.get_or_insert_with(|| watch.ended().into());
                end = End::NotAged;
                break;
            };
            let cold = found.iter().map(|found| (found.mapped.process.stat(), cold(found)));
            let left_of = cold.filter(|(stat, cold)| cold.bytes() >= SMALLEST && !over.contains(&stat.pid));
            let Some((stat, cold)) = left_of.max_by_key(|(_, cold)| cold.bytes()) else { break };
            let pid = stat.pid;
            let process = Process::open(self.kernel, pid).ok().filter(|now| now.stat().starttime == stat.starttime);
            let Some(process) = process else {
                over.insert(pid);
                continue;
            };
            let rules = Rules::read(self.kernel, self.root, self.loaded)?;
            let subject = match Subject::permitted(self.kernel, &rules, process, self.ignore) {
                Ok(subject) => subject,
                Err(err) => {
                    report.error.get_or_insert_with(|| format!("{err:#}"));
                    over.insert(pid);
                    end = End::Floor;
                    continue;
                }
            };
            let selection =
                Selection { advice: Advice::PageOut, within: Some(cold), backing: Some(Backing::Anonymous) };
            let extent = Extent { amount: Amount::Bytes(left.min(PORTION)), swap_floor: self.swap_floor };
            let mut hinter = Hinter {
                kernel: self.kernel,
                config: &self.loaded.policy,
                actuator: &mut *self.actuator,
                journal: self.journal,
                stop: self.stop,
                progress: &mut |_| {},
            };
            let hinted = hinter.run(&subject, &selection, extent)?;
            let went = hinted.resident_before - hinted.resident_after.unwrap_or(hinted.resident_before);
            gone += went;
            report.freed += hinted.freed;
            report.freed_anon += hinted.freed;
            report.swapped_out += hinted.swapped_out;
            report.writes += hinted.calls;
            report.longest_write = report.longest_write.max(Duration::from_millis(hinted.longest_call_ms));
            report.last_write_end = clock::read_monotonic();
            progress(Progress { freed: report.freed, swapped_out: report.swapped_out });
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
}

/// What of a process surely was not used, and is in memory and private.
fn cold(found: &Found<'_>) -> Ranges {
    let idle: Ranges = found.idle.iter().filter(|idle| idle.least[0]).map(|idle| idle.range.clone()).collect();
    let private = found.resident.iter().filter(|(mapping, _)| mapping.backing == Backing::Anonymous);
    private.flat_map(|(_, present)| present.intersection(&idle).as_slice().to_vec()).collect()
}
