//! The summary of `omr reclaim` for groups, and its output.

use std::time::Duration;

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_base::text::printable;
use omr_engine::reclaim::Report;
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_machine::groups::targets::Candidate;
use omr_policy::{End, short};
use omr_units::{Amount, Bytes, GroupId, millis};
use serde::Serialize;

/// The summary that is printed at the end.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub target: String,
    pub backend: &'static str,
    pub asked: Bytes,
    pub freed: Bytes,
    pub freed_anon: Bytes,
    pub freed_file: Bytes,
    pub swapped_out: Bytes,
    /// Memory that moved to slower memory (memory tiers), which is not freed.
    pub demoted: Bytes,
    /// Refaults within `--watch`.
    pub came_back: Option<Bytes>,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub longest_write_ms: u64,
    /// The time (`CLOCK_MONOTONIC`) at which the last write to the kernel returned.
    pub last_write_end_ns: u64,
    pub end: End,
    pub dry_run: bool,
    pub groups: Vec<GroupSummary>,
}

/// The result for one group.
#[derive(Debug, Serialize)]
pub struct GroupSummary {
    #[serde(skip)]
    pub id: GroupId,
    pub group: String,
    #[serde(flatten)]
    pub report: Report,
}

impl Summary {
    /// Returns a summary of no work.
    pub fn new(target: &str, backend: &'static str, asked: Bytes, dry_run: bool) -> Self {
        Summary {
            target: target.to_owned(),
            backend,
            asked,
            freed: Bytes::ZERO,
            freed_anon: Bytes::ZERO,
            freed_file: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            demoted: Bytes::ZERO,
            came_back: None,
            seconds: 0.0,
            cpu_seconds: 0.0,
            longest_write_ms: 0,
            last_write_end_ns: 0,
            end: End::Futile,
            dry_run,
            groups: Vec::new(),
        }
    }

    /// Adds the report of one group. `is_only`: there is no other group.
    pub fn add(&mut self, candidate: &Candidate, report: Report, is_only: bool) {
        self.freed += report.freed;
        self.freed_anon += report.freed_anon;
        self.freed_file += report.freed_file;
        self.swapped_out += report.swapped_out;
        self.demoted += report.demoted;
        self.cpu_seconds += report.cpu.as_secs_f64();
        self.longest_write_ms = self.longest_write_ms.max(millis(report.longest_write));
        self.last_write_end_ns = self.last_write_end_ns.max(report.last_write_end.0);
        // The memory of a removed group is free, so the other groups decide how the run ended.
        if report.end != End::Gone || is_only {
            self.end = report.end;
        }
        let group = candidate.path.to_string_lossy().into_owned();
        self.groups.push(GroupSummary { id: candidate.id, group, report });
    }

    /// Sets how the whole run ended. Called after the last group.
    pub fn conclude(&mut self, amount: Amount, candidates: &[Candidate]) {
        if amount != Amount::Max && self.freed >= self.asked {
            self.end = End::Complete;
        } else if let Some(failed) = self.groups.iter().map(|group| group.report.end).find(|end| end.is_failure()) {
            self.end = failed;
        } else if amount != Amount::Max && self.end == End::Complete && !self.dry_run {
            // All that may be reclaimed from the groups was less than the amount.
            let kept = candidates.iter().any(|candidate| candidate.gain < candidate.current);
            self.end = if kept { End::Floor } else { End::Futile };
        }
        if self.end == End::NoMoreCold {
            // If the ages of some groups are not known, some cold memory may remain.
            let unknown = |group: &&GroupSummary| matches!(group.report.end, End::NotAged | End::NotSeen);
            self.end = self.groups.iter().find(unknown).map_or(End::NoMoreCold, |group| group.report.end);
        }
    }
}

/// Waits, and counts the refaults of the groups that were reclaimed.
pub fn count_refaults(kernel: &Kernel, candidates: &[Candidate], summary: &Summary, time: Duration) -> Option<Bytes> {
    // A signal ends the wait; the refaults until then are printed.
    Flag::with_timeout(Some(time)).sleep(time);
    let mut came_back = Bytes::ZERO;
    for done in &summary.groups {
        let candidate = candidates.iter().find(|candidate| candidate.id == done.id)?;
        // A removed group has no refaults.
        let stat = match Group::open(kernel.cgroup().ok()?, &candidate.path) {
            Ok(group) if group.id() == done.id => group.read_stat(kernel, &mut Vec::new()),
            Ok(_) => continue,
            Err(err) => Err(err),
        };
        match stat {
            Ok(stat) => came_back += stat.refaults()?.bytes(kernel.page()) - done.report.refaults?,
            Err(err) if err.is_gone() => {}
            Err(_) => return None,
        }
    }
    Some(came_back)
}

/// Prints the summary. `watched`: the time for which refaults were counted.
pub fn print(summary: &Summary, json: bool, watched: Option<Duration>) -> Result<()> {
    if json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    if summary.dry_run {
        for group in &summary.groups {
            outln!("{}: would ask for {}", printable(&group.group), group.report.asked);
        }
        outln!("{}: nothing was done (--dry-run); backend {}", summary.target, summary.backend);
        say_what_went_wrong(summary);
        return Ok(());
    }
    let mut line = format!(
        "{}: {} freed (anon {}, file {}), {} written to swap, {}, CPU {}.",
        summary.target,
        summary.freed,
        summary.freed_anon,
        summary.freed_file,
        summary.swapped_out,
        short(Duration::from_secs_f64(summary.seconds)),
        short(Duration::from_secs_f64(summary.cpu_seconds)),
    );
    if summary.demoted > Bytes::ZERO {
        line += &format!(" {} moved to slower memory.", summary.demoted);
    }
    match summary.end {
        End::Complete => {}
        End::Stopped => line += " Stopped by a signal.",
        end => line += &format!(" Ended: {}.", end.words()),
    }
    if let (Some(came_back), Some(time)) = (summary.came_back, watched) {
        line += &format!(" {came_back} came back within {}.", short(time));
    }
    outln!("{line}");
    say_what_went_wrong(summary);
    Ok(())
}

fn say_what_went_wrong(summary: &Summary) {
    for group in &summary.groups {
        if let Some(error) = &group.report.error {
            eprintln!("omr: {}: {error}", printable(&group.group));
        } else if group.report.end.is_failure() && summary.groups.len() > 1 {
            eprintln!("omr: {}: {}", printable(&group.group), group.report.end.words());
        }
    }
}
