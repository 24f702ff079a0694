//! Hints processes by command and prints the result: for `omr hint`, and for `omr reclaim` of a
//! process.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::{Actuator, Advice, DryRun, Live, probe};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_config::{BackendChoice, Loaded};
use omr_engine::hint::{self, Extent, Ignore, Report, Selection, Skipped, Subject, Why};
use omr_engine::reclaim::backend;
use omr_engine::{Host, Progress, Session};
use omr_kernel::clock;
use omr_kernel::probe::Support;
use omr_policy::{End, short};
use omr_units::Bytes;
use serde::Serialize;

use super::options::Output;
use super::outcome;

/// The least swap cache that is mentioned: any write leaves less than this.
const MENTIONED: Bytes = Bytes::mib(1);

/// The most ranges that a text names.
const NAMED: usize = 3;

/// The summary that is printed at the end.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The hint; `cold+pageout` for several.
    advice: String,
    /// The requested amount; `None` for `omr hint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Bytes>,
    hinted: Bytes,
    pub resident_before: Bytes,
    resident_after: Bytes,
    swapped_out: Bytes,
    freed: Bytes,
    skipped: Skipped,
    seconds: f64,
    cpu_seconds: f64,
    pub end: End,
    dry_run: bool,
    /// Descendants that were not hinted, or only in part, each with the reason.
    pub left_out: Vec<String>,
    processes: Vec<Report>,
}

/// The options for all processes of one command.
pub struct Order {
    /// Each hint, and the memory that it is for.
    pub selections: Vec<Selection>,
    /// The amount of memory, and the swap that stays free.
    pub extent: Extent,
    /// Protections that are ignored.
    pub ignore: Ignore,
    /// The longest time of the run.
    pub timeout: Option<Duration>,
    /// The options for a dry run and for JSON.
    pub output: Output,
}

impl Order {
    /// Hints these processes, one after the other.
    pub fn carry_out(&self, host: Host<'_>, loaded: &Loaded, subjects: &[Subject]) -> Result<Summary> {
        let Host { kernel, root } = host;
        let dry_run = self.output.dry_run;
        let is_missing = |advice| root == Path::new("/") && probe::process_madvise(advice) == Support::Missing;
        if let Some(advice) = self.advices().find(|&advice| !dry_run && is_missing(advice)) {
            let since = if advice == Advice::WillNeed { "Linux 6.1 has it" } else { "since Linux 5.10" };
            let text = format!("this kernel has no hint {} for other processes; {since}", advice.name());
            return Err(Exit::Unsupported.error(text));
        }
        let mut actuator: Box<dyn Actuator> = if dry_run { Box::new(DryRun) } else { Box::new(Live) };
        // Only a page-out changes a limit, where it frees swap cache.
        let journal = match self.advices().any(|advice| advice == Advice::PageOut) {
            true if !dry_run => backend::open_journal(kernel, root, BackendChoice::Auto, &mut *actuator)?,
            _ => None,
        };
        cancel::catch_signals();
        let stop = Flag::with_timeout(self.timeout);
        let bar = self.progress_bar();
        let mut session = Session {
            host,
            actuator: &mut *actuator,
            journal: journal.as_ref(),
            cancel: &stop,
            progress: &mut |progress| bar.set_position(progress.hinted.0),
        };
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let mut summary = Summary::new(self);
        let parts = subjects.iter().flat_map(|subject| self.selections.iter().map(move |part| (subject, part)));
        for (number, (subject, selection)) in parts.enumerate() {
            let before = Progress { hinted: summary.hinted, ..Progress::default() };
            let hint = |session: &mut Session<'_>| session.hint(&loaded.policy, subject, selection, self.extent);
            let report = match session.run_part(before, hint) {
                Ok(report) => report,
                // The results so far are printed all the same.
                Err(err) if number > 0 => {
                    summary.left_out.push(format!("{}: {err:#}", hint::name(subject.process.stat())));
                    continue;
                }
                Err(err) => return Err(err),
            };
            summary.add(report, subjects.len() == 1);
            if matches!(summary.end, End::Stopped | End::Timeout | End::SwapFloor) {
                break;
            }
        }
        bar.finish_and_clear();
        summary.seconds = clock::read_monotonic().since(began).as_secs_f64();
        summary.cpu_seconds = clock::read_thread_cpu().saturating_sub(cpu).as_secs_f64();
        Ok(summary)
    }

    fn advices(&self) -> impl Iterator<Item = Advice> {
        self.selections.iter().map(|selection| selection.advice)
    }

    fn progress_bar(&self) -> ProgressBar {
        let target =
            if self.output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{binary_bytes} hinted   {binary_bytes_per_sec}   ^C stops") {
            bar.set_style(style);
        }
        bar
    }
}

impl Summary {
    fn new(order: &Order) -> Self {
        Summary {
            advice: order.advices().map(Advice::name).collect::<Vec<_>>().join("+"),
            asked: None,
            hinted: Bytes::ZERO,
            resident_before: Bytes::ZERO,
            resident_after: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            freed: Bytes::ZERO,
            skipped: Skipped::default(),
            seconds: 0.0,
            cpu_seconds: 0.0,
            end: End::Complete,
            dry_run: order.output.dry_run,
            left_out: Vec::new(),
            processes: Vec::new(),
        }
    }

    fn add(&mut self, report: Report, is_only: bool) {
        self.hinted += report.hinted;
        self.resident_before += report.resident_before;
        self.resident_after += report.resident_after.unwrap_or_default();
        self.swapped_out += report.swapped_out;
        self.freed += report.freed;
        self.skipped.add_all(&report.skipped);
        // One of several processes that has ended is no failure.
        if report.end != End::Complete && (is_only || report.end != End::Gone) {
            self.end = report.end;
        }
        self.processes.push(report);
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        let not_mapped = self.processes.iter().any(|report| report.not_mapped.0 > 0);
        match self.end {
            // Everything was skipped, as there is no swap.
            End::Complete if self.skipped.no_swap.0 > 0 && self.hinted.0 == 0 => Exit::Unsupported,
            End::Complete if self.skipped.no_swap.0 > 0 || not_mapped || !self.left_out.is_empty() => Exit::Partial,
            end => outcome::exit(end),
        }
    }

    /// Prints the summary.
    pub fn print(&self, order: &Order) -> Result<()> {
        if order.output.json {
            outln!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        for report in &self.processes {
            print_process(report, order)?;
        }
        let pids: HashSet<u32> = self.processes.iter().map(|report| report.pid).collect();
        if pids.len() > 1 {
            outln!("{} processes: {}.", pids.len(), self.describe_result(order));
        }
        for text in &self.left_out {
            eprintln!("omr: left out: {text}");
        }
        Ok(())
    }

    fn describe_result(&self, order: &Order) -> String {
        let (before, after) = (self.resident_before, self.resident_after);
        match order.selections.as_slice() {
            [one] => {
                let dry_run = order.output.dry_run;
                describe_result(one.advice, dry_run, self.hinted, (before, Some(after)), self.swapped_out, self.freed)
            }
            _ if order.output.dry_run => format!("{} would be hinted", self.hinted),
            _ => format!("{} hinted, {} freed", self.hinted, self.freed),
        }
    }
}

/// Returns the result of the hint in a few words.
fn describe_result(
    advice: Advice,
    dry_run: bool,
    hinted: Bytes,
    resident: (Bytes, Option<Bytes>),
    swapped_out: Bytes,
    freed: Bytes,
) -> String {
    let would = if dry_run { "would be " } else { "" };
    match (advice, resident) {
        (Advice::PageOut, (before, Some(after))) if !dry_run => {
            format!("{hinted} hinted, {before} -> {after} in memory, {swapped_out} swapped out, {freed} freed")
        }
        (Advice::PageOut, _) => format!("{hinted} {would}paged out"),
        (Advice::Cold, _) => format!("{hinted} {would}marked as cold"),
        _ => format!("{hinted} {would}asked for"),
    }
}

fn print_process(report: &Report, order: &Order) -> Result<()> {
    for line in &report.mappings {
        let what = match line.skip {
            Some(skip) => format!("skipped: {}", skip.words()),
            None => format!("{} {}", line.hint, report.advice.name()),
        };
        let (size, resident) = (line.size.to_string(), line.resident.to_string());
        outln!("{:33} {size:>9} {resident:>9} in memory  {:9}  {what}  {}", line.range, line.kind, line.name);
    }
    let resident = (report.resident_before, report.resident_after);
    let mut text = format!(
        "{} ({}): {}",
        report.pid,
        report.name,
        describe_result(report.advice, order.output.dry_run, report.hinted, resident, report.swapped_out, report.freed)
    );
    match order.output.dry_run {
        true => text += "; nothing was done (--dry-run).",
        false => text += &format!(", {}, CPU {}.", short(report.wall), short(report.cpu)),
    }
    let skipped: Vec<_> = report.skipped.each().into_iter().filter(|(_, bytes)| bytes.0 > 0).collect();
    if !skipped.is_empty() {
        let words: Vec<_> = skipped.iter().map(|(skip, bytes)| format!("{bytes} {}", skip.words())).collect();
        text += &format!(" Skipped: {}.", words.join(", "));
    }
    if report.not_mapped.0 > 0 {
        let not_mapped: Vec<&str> =
            report.ranges.iter().filter(|range| range.why == Why::NotMapped).map(|range| &*range.range).collect();
        let (named, more) = not_mapped.split_at(not_mapped.len().min(NAMED));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        text += &format!(" {} of the ranges are not mapped: {}{more}.", report.not_mapped, named.join(", "));
    }
    if let Some(layout) = report.layout.filter(|_| order.output.dry_run) {
        text += &format!(" Layout: {layout}.");
    }
    match report.retried {
        0 if report.changed => text += " It changed its mappings meanwhile.",
        0 => {}
        1 => text += " It changed its mappings meanwhile, and one range was hinted again.",
        ranges => text += &format!(" It changed its mappings meanwhile, and {ranges} ranges were hinted again."),
    }
    match report.end {
        End::Complete => {}
        End::Stopped if report.cancelled => {
            text += " Cancelled: the layout is another than in the dry run.";
        }
        End::Stopped => text += " Stopped by a signal.",
        End::Gone => text += " Ended: the process is gone.",
        End::Floor if report.advice == Advice::WillNeed => text += " Ended: no more fits into memory.",
        end => text += &format!(" Ended: {}.", end.words()),
    }
    outln!("{text}");
    if report.left_cached > MENTIONED {
        eprintln!("omr: {} are in swap and still in memory (swap cache), until they are reclaimed", report.left_cached);
    }
    for note in &report.notes {
        eprintln!("omr: {} ({}): {note}", report.pid, report.name);
    }
    Ok(())
}
