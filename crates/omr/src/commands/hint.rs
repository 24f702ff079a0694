//! `omr hint`: what is expected of a process's memory, told to the kernel.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::{Actuator, Advice, DryRun, Live, probe};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::when;
use omr_config as config;
use omr_config::{BackendChoice, Loaded};
use omr_engine::hint::{self, Extent, Hinter, Ignore, Report, Rules, Selection, Skipped, Subject};
use omr_engine::reclaim::backend;
use omr_kernel::maps::Backing;
use omr_kernel::probe::Support;
use omr_kernel::ranges::Ranges;
use omr_kernel::{Kernel, clock};
use omr_machine::processes;
use omr_policy::{End, short};
use omr_units::{Amount, Bytes};
use serde::Serialize;

/// Pages out, deactivates or brings back the memory of a process. Nothing is lost: what is used again
/// comes back. Passed over, and counted: what is shared, locked, of huge pages, or of a device.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("advice").required(true))]
pub struct Args {
    /// The process
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,

    /// It was not used for a while: take it first when memory gets scarce
    #[arg(long, group = "advice")]
    cold: bool,

    /// Page it out now, used or not, and free it
    #[arg(long, group = "advice")]
    pageout: bool,

    /// It will be needed soon: read it back from swap, and from files
    #[arg(long, group = "advice")]
    willneed: bool,

    /// Only these addresses, e.g. 7f1200000000-7f1240000000, as /proc/PID/maps has them; more than once
    #[arg(long, value_name = "A-B", value_parser = parse_range)]
    range: Vec<Range<u64>>,

    /// Only memory that no file backs: heap, stack
    #[arg(long, conflicts_with = "file")]
    anon: bool,

    /// Only files
    #[arg(long)]
    file: bool,

    /// Also all processes that it has started, and those that they have
    #[arg(long)]
    tree: bool,

    /// Stop after this time, e.g. 30s
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Also take what memory.min and memory.low protect
    #[arg(long)]
    ignore_low: bool,

    /// Also take from a process of a foreground or protected group, and what a rule keeps
    #[arg(long)]
    ignore_class: bool,

    /// Say what would be done, for each mapping, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_pid(text: &str) -> Result<u32, String> {
    match processes::pid(Path::new(text)) {
        Some(pid) => pid.map_err(|_| "there is no such process".into()),
        None => Err("expected the number of a process; omr ps shows those there are".into()),
    }
}

/// `A-B`, in hexadecimal digits.
fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let address = |digits: &str| {
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let is_hex = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    };
    let expected =
        "expected two addresses in hexadecimal digits, the second behind the first: 7f1200000000-7f1240000000";
    let (start, end) = text.split_once('-').ok_or(expected)?;
    let told =
        |digits: &str| address(digits).ok_or_else(|| format!("\"{digits}\" is no address below 2^64; {expected}"));
    let (start, end) = (told(start)?, told(end)?);
    match start < end {
        true => Ok(start..end),
        false => Err(format!("it ends before it begins, or wraps around the end of the address space; {expected}")),
    }
}

/// What is printed at the end.
#[derive(Debug, Serialize)]
pub struct Summary {
    advice: &'static str,
    /// Of `omr reclaim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<Bytes>,
    hinted: Bytes,
    resident_before: Bytes,
    resident_after: Bytes,
    swapped_out: Bytes,
    freed: Bytes,
    skipped: Skipped,
    seconds: f64,
    cpu_seconds: f64,
    end: End,
    dry_run: bool,
    /// Processes of the tree that may not be hinted, or could not be to the end, and why.
    left_out: Vec<String>,
    processes: Vec<Report>,
}

/// What all processes of one command have in common.
pub struct Order {
    /// What is to be hinted.
    pub selection: Selection,
    /// How much.
    pub extent: Extent,
    /// What is set aside.
    pub ignore: Ignore,
    /// When to end.
    pub timeout: Option<Duration>,
    /// Do nothing.
    pub dry_run: bool,
    /// For a machine.
    pub json: bool,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let page = kernel.page().bytes().0;
    let mut ranges = args.range.clone();
    if let Some(range) = ranges.iter().find(|range| range.start % page != 0 || range.end % page != 0) {
        let text = format!("--range {:x}-{:x}: both have to be multiples of a page, {page:#x}", range.start, range.end);
        return Err(Exit::Usage.error(text));
    }
    ranges.sort_by_key(|range| range.start);
    let selection = Selection {
        advice: match (args.cold, args.pageout) {
            (true, _) => Advice::Cold,
            (_, true) => Advice::PageOut,
            _ => Advice::WillNeed,
        },
        within: (!ranges.is_empty()).then(|| ranges.into_iter().collect::<Ranges>()),
        backing: match (args.anon, args.file) {
            (true, _) => Some(Backing::Anonymous),
            (_, true) => Some(Backing::File),
            _ => None,
        },
    };
    let order = Order {
        selection,
        extent: Extent { amount: Amount::Max, swap_floor: None },
        ignore: Ignore { class: args.ignore_class, low: args.ignore_low },
        timeout: args.timeout,
        dry_run: args.dry_run,
        json: args.json,
    };
    let loaded = config::load_or_refuse(root, None)?;
    let pids = if args.tree { hint::descendants(&kernel, args.pid)? } else { vec![hint::open(&kernel, args.pid)?] };
    let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
    // Bringing memory back takes nothing from anybody.
    let rules = match order.selection.advice {
        Advice::WillNeed => None,
        _ => Some(Rules::read(&kernel, root, &loaded)?),
    };
    for (number, process) in pids.into_iter().enumerate() {
        let subject = match &rules {
            None => Subject::any(process),
            Some(rules) => Subject::permitted(&kernel, rules, process, order.ignore),
        };
        match subject {
            Ok(subject) => subjects.push(subject),
            // The one that was named; of others it is told in the end.
            Err(err) if number == 0 => return Err(err),
            Err(err) => left_out.push(format!("{err:#}")),
        }
    }
    let mut summary = order.carry_out(&kernel, root, &loaded, &subjects)?;
    summary.left_out.splice(..0, left_out);
    summary.print(&order)?;
    Ok(summary.exit())
}

impl Order {
    /// Hints these processes, one after the other.
    pub fn carry_out(&self, kernel: &Kernel, root: &Path, loaded: &Loaded, subjects: &[Subject]) -> Result<Summary> {
        let advice = self.selection.advice;
        if !self.dry_run && root == Path::new("/") && probe::process_madvise(advice) == Support::Missing {
            let since = if advice == Advice::WillNeed { "Linux 6.1 has it" } else { "since Linux 5.10" };
            return Err(
                Exit::Unsupported.error(format!("this kernel takes no such hint about other processes; {since}"))
            );
        }
        let mut actuator: Box<dyn Actuator> = if self.dry_run { Box::new(DryRun) } else { Box::new(Live) };
        // Only what frees memory behind a hint changes a limit.
        let journal = match advice {
            Advice::PageOut if !self.dry_run => {
                backend::open_journal(kernel, root, BackendChoice::Auto, &mut *actuator)?
            }
            _ => None,
        };
        cancel::catch_signals();
        let stop = Flag::with_timeout(self.timeout);
        let bar = self.progress_bar();
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let mut summary = Summary {
            advice: advice.name(),
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
            dry_run: self.dry_run,
            left_out: Vec::new(),
            processes: Vec::new(),
        };
        for (number, subject) in subjects.iter().enumerate() {
            let before = summary.hinted;
            let mut hinter = Hinter {
                kernel,
                config: &loaded.policy,
                actuator: &mut *actuator,
                journal: journal.as_ref(),
                stop: &stop,
                progress: &mut |bytes| bar.set_position((before + bytes).0),
            };
            let report = match hinter.run(subject, &self.selection, self.extent) {
                Ok(report) => report,
                // What was done to others is told all the same.
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

    fn progress_bar(&self) -> ProgressBar {
        let shown = std::io::stderr().is_terminal() && !self.json && !self.dry_run;
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{binary_bytes} hinted   {binary_bytes_per_sec}   ^C stops") {
            bar.set_style(style);
        }
        bar
    }
}

impl Summary {
    fn add(&mut self, report: Report, alone: bool) {
        self.hinted += report.hinted;
        self.resident_before += report.resident_before;
        self.resident_after += report.resident_after.unwrap_or_default();
        self.swapped_out += report.swapped_out;
        self.freed += report.freed;
        self.skipped.add_all(&report.skipped);
        // One of several that has ended has nothing left to hint.
        if report.end != End::Complete && (alone || report.end != End::Gone) {
            self.end = report.end;
        }
        self.processes.push(report);
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        let not_mapped = self.processes.iter().any(|report| report.not_mapped.0 > 0);
        match self.end {
            // Nothing but what no swap is there for.
            End::Complete if self.skipped.no_swap.0 > 0 && self.hinted.0 == 0 => Exit::Unsupported,
            End::Complete if self.skipped.no_swap.0 > 0 || not_mapped || !self.left_out.is_empty() => Exit::Partial,
            End::Complete => Exit::Done,
            End::Denied | End::Failed => Exit::Failed,
            End::Unsupported => Exit::Unsupported,
            _ => Exit::Partial,
        }
    }

    /// Prints it.
    pub fn print(&self, order: &Order) -> Result<()> {
        if order.json {
            outln!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        for report in &self.processes {
            print_process(report, order)?;
        }
        if self.processes.len() > 1 {
            outln!("{} processes: {}.", self.processes.len(), self.done(order));
        }
        for text in &self.left_out {
            eprintln!("omr: left out: {text}");
        }
        Ok(())
    }

    fn done(&self, order: &Order) -> String {
        let (before, after) = (self.resident_before, self.resident_after);
        done(order, self.hinted, (before, Some(after)), self.swapped_out, self.freed)
    }
}

/// What was done, in a few words.
fn done(order: &Order, hinted: Bytes, resident: (Bytes, Option<Bytes>), swapped_out: Bytes, freed: Bytes) -> String {
    let would = if order.dry_run { "would be " } else { "" };
    match (order.selection.advice, resident) {
        (Advice::PageOut, (before, Some(after))) if !order.dry_run => {
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
            Some(skip) => format!("passed over: {}", skip.words()),
            None => format!("{} {}", line.hint, order.selection.advice.name()),
        };
        let (size, resident) = (line.size.to_string(), line.resident.to_string());
        outln!("{:33} {size:>9} {resident:>9} in memory  {:9}  {what}  {}", line.range, line.kind, line.name);
    }
    let resident = (report.resident_before, report.resident_after);
    let mut text = format!(
        "{} ({}): {}",
        report.pid,
        report.name,
        done(order, report.hinted, resident, report.swapped_out, report.freed)
    );
    match order.dry_run {
        true => text += "; nothing was done (--dry-run).",
        false => text += &format!(", {}, CPU {}.", short(report.wall), short(report.cpu)),
    }
    let skipped: Vec<_> = report.skipped.each().into_iter().filter(|(_, bytes)| bytes.0 > 0).collect();
    if !skipped.is_empty() {
        let words: Vec<_> = skipped.iter().map(|(skip, bytes)| format!("{bytes} {}", skip.words())).collect();
        text += &format!(" Passed over: {}.", words.join(", "));
    }
    if report.not_mapped.0 > 0 {
        text += &format!(" {} of the range are not mapped.", report.not_mapped);
    }
    match report.retried {
        0 if report.changed => text += " It changed its mappings meanwhile.",
        0 => {}
        1 => text += " It changed its mappings meanwhile, and one range was hinted again.",
        ranges => text += &format!(" It changed its mappings meanwhile, and {ranges} ranges were hinted again."),
    }
    match report.end {
        End::Complete => {}
        End::Stopped => text += " Stopped by a signal.",
        End::Gone => text += " Ended: the process is gone.",
        End::Floor if order.selection.advice == Advice::WillNeed => text += " Ended: no more fits into memory.",
        end => text += &format!(" Ended: {}.", end.words()),
    }
    outln!("{text}");
    if report.left_cached > MENTIONED {
        eprintln!("omr: {} are in swap and still in memory as well, until they are reclaimed", report.left_cached);
    }
    for note in &report.notes {
        eprintln!("omr: {} ({}): {note}", report.pid, report.name);
    }
    Ok(())
}

/// Less than this is left behind by any write.
const MENTIONED: Bytes = Bytes::mib(1);

/// Pages out of one process what is ordered: `omr reclaim PID AMOUNT`.
pub fn reclaim(root: &Path, pid: u32, order: &Order) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let loaded = config::load_or_refuse(root, None)?;
    let process = hint::open(&kernel, pid)?;
    let subject = Subject::permitted(&kernel, &Rules::read(&kernel, root, &loaded)?, process, order.ignore)?;
    let mut summary = order.carry_out(&kernel, root, &loaded, &[subject])?;
    let amount = order.extent.amount;
    summary.asked = Some(amount.of(summary.resident_before));
    summary.print(order)?;
    Ok(match summary.exit() {
        // As much as will go is what "max" asks for.
        Exit::Partial if amount == Amount::Max && matches!(summary.end, End::Futile | End::Floor) => Exit::Done,
        exit => exit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_what_is_none() {
        assert_eq!(parse_range("1000-3000"), Ok(0x1000..0x3000));
        assert_eq!(parse_range("0x7f1200000000-0x7f1240000000"), Ok(0x7f12_0000_0000..0x7f12_4000_0000));
        for (text, why) in [
            ("1000", "expected two addresses"),
            ("", "expected two addresses"),
            ("-1000", "\"\" is no address"),
            ("1000-", "\"\" is no address"),
            ("1000-+2000", "no address"),
            ("1000-2000-3000", "no address"),
            ("1000-2g00", "\"2g00\" is no address"),
            ("1000-10000000000000000", "below 2^64"),
            ("3000-1000", "ends before it begins"),
            ("1000-1000", "ends before it begins"),
            ("fffffffffffff000-0", "wraps"),
        ] {
            let err = parse_range(text).expect_err(text);
            assert!(err.contains(why) && err.contains("7f1200000000-7f1240000000"), "{text}: {err}");
        }
    }
}
