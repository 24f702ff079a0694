//! `omr reclaim`: once, now, this much.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_kernel::actuate::{Actuator, DryRun, Live};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_policy::pace::Job;
use omr_policy::{Class, Config, End, Machine, short};
use omr_units::{Amount, Bytes, GroupId, Limit};
use serde::Serialize;

use crate::backend::{self, Backend};
use crate::candidates::{Candidate, SMALLEST, walk};
use crate::classes::Classifier;
use crate::config::{self, BackendChoice, Loaded};
use crate::exit::Exit;
use crate::limits::Journal;
use crate::reclaim::{Report, Worker, job, machine};
use crate::stop::{self, Flag};
use crate::tree::{Tree, no_group};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A control group, with or without /sys/fs/cgroup in front; / is the whole machine
    #[arg(required_unless_present = "class", value_name = "TARGET")]
    target: Option<PathBuf>,

    /// How much: 512M, 25% or max
    #[arg(value_name = "AMOUNT", required_unless_present = "class")]
    amount: Option<Amount>,

    /// All groups of this class instead of one target: background
    ///
    /// With --class the only word on the line is the amount.
    #[arg(long, value_parser = parse_class, value_name = "CLASS")]
    class: Option<Class>,

    /// Stop after this time, e.g. 30s
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Then look for this time at how much comes back, e.g. 30s
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    watch: Option<Duration>,

    /// Which file of the kernel to use: auto, memory.reclaim, memory.swap.reclaim, memory.high
    ///
    /// memory.high works from Linux 5.4 on, but slows down tasks of the group that allocate
    /// meanwhile, so it is never chosen unasked.
    #[arg(long, value_parser = parse_backend, value_name = "FILE")]
    backend: Option<BackendChoice>,

    /// Swap that stays free: a size or a share of all swap
    #[arg(long, value_name = "SIZE")]
    swap_floor: Option<Amount>,

    /// Also take what memory.min and memory.low protect
    #[arg(long)]
    ignore_low: bool,

    /// Also take from a foreground or protected group, and what a rule keeps, when it is the target
    #[arg(long)]
    ignore_class: bool,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_class(text: &str) -> Result<Class, String> {
    match config::class(text) {
        Some(Class::Background) => Ok(Class::Background),
        Some(class) => Err(format!("nothing is taken from {} groups; only background can be reclaimed", class.name())),
        None => Err("expected background".into()),
    }
}

fn parse_backend(text: &str) -> Result<BackendChoice, String> {
    BackendChoice::from_name(text)
        .ok_or_else(|| "expected auto, memory.reclaim, memory.swap.reclaim or memory.high".into())
}

/// What is printed at the end.
#[derive(Debug, Serialize)]
struct Summary {
    target: String,
    backend: &'static str,
    asked: Bytes,
    freed: Bytes,
    freed_anon: Bytes,
    freed_file: Bytes,
    swapped_out: Bytes,
    /// Refaults within `--watch`.
    came_back: Option<Bytes>,
    seconds: f64,
    cpu_seconds: f64,
    longest_write_ms: u64,
    /// When the last write to the kernel returned, `CLOCK_MONOTONIC`.
    last_write_end_ns: u64,
    end: End,
    dry_run: bool,
    groups: Vec<GroupSummary>,
}

#[derive(Debug, Serialize)]
struct GroupSummary {
    #[serde(skip)]
    id: GroupId,
    group: String,
    #[serde(flatten)]
    report: Report,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let (target, amount) = match (args.class, &args.target, args.amount) {
        (None, Some(target), Some(amount)) => (Some(target.as_path()), amount),
        // With --class the first word is the amount.
        (Some(_), Some(word), None) => {
            let text = word.to_str().context("the amount is not text")?;
            (None, text.parse().map_err(|err| Exit::Usage.error(format!("{err}")))?)
        }
        _ => return Err(Exit::Usage.error("either a target and an amount, or --class and an amount")),
    };
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    // The daemon's group is protected by its unit's name; the group of this shell is like any other.
    let classifier = Classifier::new(&loaded.groups, Path::new(""));
    let mut tree = Tree::default();
    tree.scan(&kernel, &classifier, true)?;

    let (name, mut candidates) = match target {
        Some(target) => find_target(&kernel, &tree, target, args)?,
        None => ("class background".to_owned(), walk(&tree, None, args.ignore_low)),
    };
    let held: Bytes = candidates.iter().map(|candidate| candidate.current).sum();
    let asked = amount.of(held);
    crate::candidates::sort(&mut candidates);

    let mut actuator: Box<dyn Actuator> = if args.dry_run { Box::new(DryRun) } else { Box::new(Live) };
    let choice = args.backend.unwrap_or(loaded.backend);
    // Limits that an earlier run left behind are put back at every start.
    let journal = if args.dry_run { None } else { backend::open_journal(&kernel, root, choice, &mut *actuator)? };
    let Some(backend) = probe(&kernel, choice, &candidates, &mut *actuator)? else {
        let why = if candidates.is_empty() { "no group there may be touched" } else { "it is gone" };
        return Err(Exit::Partial.error(format!("{name}: {why}; nothing was reclaimed")));
    };
    stop::catch_signals();
    let stop = Flag::with_timeout(args.timeout);
    let bar = progress_bar(args, &name, amount, asked);
    let machine = machine(&kernel, backend);
    let mut run = Run { kernel: &kernel, loaded: &loaded, args, backend, journal, stop: &stop, machine };
    let mut summary = run.all(&name, asked, amount, &candidates, &mut *actuator, &bar)?;
    bar.finish_and_clear();
    if let Some(time) = args.watch.filter(|_| !args.dry_run) {
        summary.came_back = watch(&kernel, &candidates, &summary, time);
    }
    print(args, &summary)?;
    Ok(match summary.end {
        End::Complete => Exit::Done,
        // As much as will go is what "max" asks for.
        End::Futile | End::Floor if amount == Amount::Max => Exit::Done,
        End::Denied | End::Failed => Exit::Failed,
        End::Unsupported => Exit::Unsupported,
        _ => Exit::Partial,
    })
}

/// Finds out what this kernel has on the first group that is still there.
fn probe(
    kernel: &Kernel,
    choice: BackendChoice,
    candidates: &[Candidate],
    actuator: &mut dyn Actuator,
) -> Result<Option<Backend>> {
    for candidate in candidates {
        let open = || Group::open(kernel.cgroup()?, &candidate.path);
        let group = match open() {
            Err(err) if err.is_gone() => continue,
            group => group?,
        };
        match Backend::probe(choice, &group, actuator) {
            Ok(backend) => return Ok(Some(backend)),
            // A group that went meanwhile has no files at all.
            Err(_) if open().map_or(true, |now| now.id() != group.id()) => {}
            Err(err) => return Err(Exit::Unsupported.error(format!("{err:#}"))),
        }
    }
    Ok(None)
}

struct Run<'a> {
    kernel: &'a Kernel,
    loaded: &'a Loaded,
    args: &'a Args,
    backend: Backend,
    journal: Option<Journal>,
    stop: &'a Flag,
    machine: Machine,
}

impl Run<'_> {
    fn all(
        &mut self,
        name: &str,
        asked: Bytes,
        amount: Amount,
        candidates: &[Candidate],
        actuator: &mut dyn Actuator,
        bar: &ProgressBar,
    ) -> Result<Summary> {
        let began = clock::read_monotonic();
        let mut summary = Summary {
            target: name.to_owned(),
            backend: self.backend.file(),
            asked,
            freed: Bytes::ZERO,
            freed_anon: Bytes::ZERO,
            freed_file: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            came_back: None,
            seconds: 0.0,
            cpu_seconds: 0.0,
            longest_write_ms: 0,
            last_write_end_ns: 0,
            end: End::Futile,
            dry_run: self.args.dry_run,
            groups: Vec::new(),
        };
        // What a dry run would have had from the groups so far.
        let mut planned = Bytes::ZERO;
        for candidate in candidates {
            let left = match amount {
                Amount::Max => Bytes::MAX,
                _ => asked - summary.freed - planned,
            };
            if left.0 == 0 {
                break;
            }
            let Some(group) = candidate.open(self.kernel)? else { continue };
            let job = self.job(candidate, left, amount);
            if self.args.dry_run {
                planned += job.amount;
            }
            let mut worker = Worker {
                kernel: self.kernel,
                actuator,
                backend: self.backend,
                journal: self.journal.as_ref(),
                stop: self.stop,
            };
            let before = summary.freed;
            let report = worker.run(&group, job, candidate.inner, &mut |progress| {
                bar.set_position((before + progress.freed).0);
            });
            summary.freed += report.freed;
            summary.freed_anon += report.freed_anon;
            summary.freed_file += report.freed_file;
            summary.swapped_out += report.swapped_out;
            summary.cpu_seconds += report.cpu.as_secs_f64();
            let longest = u64::try_from(report.longest_write.as_millis()).unwrap_or(u64::MAX);
            summary.longest_write_ms = summary.longest_write_ms.max(longest);
            summary.last_write_end_ns = summary.last_write_end_ns.max(report.last_write_end.0);
            // A group that is gone has given back all it had: no reason to end otherwise than the rest.
            if report.end != End::Gone || candidates.len() == 1 {
                summary.end = report.end;
            }
            let stopped = matches!(report.end, End::Stopped | End::Timeout);
            summary.groups.push(GroupSummary {
                id: candidate.id,
                group: candidate.path.to_string_lossy().into_owned(),
                report,
            });
            if stopped {
                break;
            }
        }
        if amount != Amount::Max && summary.freed >= asked {
            summary.end = End::Complete;
        } else if let Some(failed) = summary.groups.iter().map(|group| group.report.end).find(|&end| is_failure(end)) {
            summary.end = failed;
        } else if amount != Amount::Max && summary.end == End::Complete && !self.args.dry_run {
            // Each group gave all that may be taken from it, and that was not enough.
            let kept = candidates.iter().any(|candidate| candidate.gain < candidate.current);
            summary.end = if kept { End::Floor } else { End::Futile };
        }
        summary.seconds = clock::read_monotonic().since(began).as_secs_f64();
        Ok(summary)
    }

    fn job(&self, candidate: &Candidate, left: Bytes, amount: Amount) -> Job {
        let config = &self.loaded.policy;
        // "max" ends when nothing more is to be had, not when the counters say that all is gone.
        let gain = if amount == Amount::Max { candidate.gain } else { candidate.gain.min(left) };
        let mut with_floor = Config::clone(config);
        if let Some(floor) = self.args.swap_floor {
            with_floor.guard.swap_floor = floor;
        }
        job(&with_floor, &self.machine, self.backend, gain, candidate.current - candidate.gain)
    }
}

/// The target: one group that may be touched, or all below it that may.
fn find_target(kernel: &Kernel, tree: &Tree, target: &Path, args: &Args) -> Result<(String, Vec<Candidate>)> {
    let path = kernel.group_path(target);
    let shown = if path.as_os_str().is_empty() { "/".to_owned() } else { printed(path) };
    let root = kernel.cgroup()?;
    let group = Group::open(root, path).map_err(|err| match err.is_gone() {
        true => no_group(path),
        false => err.into(),
    })?;
    let node = tree.nodes().iter().find(|node| node.id == group.id());
    let node = node.with_context(|| format!("group {shown} was made just now; try again"))?;
    let mut candidates = walk(tree, Some(node.id), args.ignore_low);
    if !candidates.is_empty() {
        return Ok((shown, candidates));
    }
    if node.inner {
        return Ok((shown, candidates));
    }
    // One group, and it may not be touched: say why.
    let no_controller = || format!("{shown} has no memory controller; the group above it accounts for its memory");
    let Some(current) = node.current else {
        // The file's own error, where it is there and cannot be read.
        return Err(match group.read_current(&mut Vec::new()) {
            Err(err) if !err.is_gone() => err.into(),
            _ => Exit::Unsupported.error(no_controller()),
        });
    };
    let class = tree.assignment(node).map(|assignment| (assignment.class, assignment.explain(path)));
    if let Some((class, why)) = class
        && class != Class::Background
        && !args.ignore_class
    {
        let text = format!(
            "{shown} is {} ({why}); nothing was reclaimed. --ignore-class reclaims it all the same.",
            class.name()
        );
        return Err(Exit::Failed.error(text));
    }
    if !node.clear && !args.ignore_class {
        let text = format!(
            "{shown} holds the memory of groups that may not be touched; nothing was reclaimed. \
             --ignore-class reclaims it all the same."
        );
        return Err(Exit::Failed.error(text));
    }
    if node.unprotected.is_none_or(|bytes| bytes < SMALLEST) && !args.ignore_low && current >= SMALLEST {
        let text = format!(
            "{shown} is protected ({}, all of its {current} in it); nothing was reclaimed. \
             --ignore-low reclaims it all the same.",
            protected_by(&group)?
        );
        return Err(Exit::Failed.error(text));
    }
    let keep = tree.assignment(node).and_then(|assignment| assignment.keep).filter(|_| !args.ignore_class);
    let kept = keep.map_or(Bytes::ZERO, |keep| keep.of(current));
    let rule = tree.assignment(node).and_then(|assignment| assignment.keep_rule.as_ref());
    let why = rule.map(|rule| format!("matched {rule}")).unwrap_or_default();
    if kept.0 > 0 && current - kept < SMALLEST {
        let text = format!(
            "{shown} keeps {kept} ({why}), all of its {current} in it; nothing was reclaimed. \
             --ignore-class reclaims it all the same."
        );
        return Err(Exit::Failed.error(text));
    }
    let unprotected = if args.ignore_low { current } else { node.unprotected.unwrap_or_default() };
    let gain = (current - kept).min(unprotected);
    candidates.push(Candidate { id: node.id, path: path.into(), current, gain, inner: None });
    Ok((shown, candidates))
}

/// The file that protects a group, and what is in it.
fn protected_by(group: &Group) -> Result<String> {
    let buffer = &mut Vec::new();
    for file in ["memory.low", "memory.min"] {
        match group.read_limit(file, buffer) {
            Ok(Limit::Bytes(Bytes::ZERO)) => {}
            Ok(Limit::Bytes(bytes)) => return Ok(format!("{file} = {bytes}")),
            Ok(Limit::Max) => return Ok(format!("{file} = max")),
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok("memory.min or memory.low of a group above it".into())
}

fn printed(path: &Path) -> String {
    config::printable(&path.to_string_lossy())
}

/// Whether something is wrong, rather than over.
fn is_failure(end: End) -> bool {
    matches!(end, End::Denied | End::Unsupported | End::Failed)
}

fn progress_bar(args: &Args, name: &str, amount: Amount, asked: Bytes) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !args.json && !args.dry_run;
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(asked.0), target).with_message(name.to_owned());
    let template = match amount {
        Amount::Max => "{msg}  {binary_bytes} freed   {binary_bytes_per_sec}   ^C stops",
        _ => "{msg}  {bar:28}  {binary_bytes} of {binary_total_bytes}   {binary_bytes_per_sec}   {eta} left   ^C stops",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("█░"));
    }
    bar
}

/// Waits, and counts what came back into the groups that were reclaimed.
fn watch(kernel: &Kernel, candidates: &[Candidate], summary: &Summary, time: Duration) -> Option<Bytes> {
    // A signal ends the watch as well, and what came back by then is printed.
    Flag::with_timeout(Some(time)).sleep(time);
    let mut came_back = Bytes::ZERO;
    for done in &summary.groups {
        let candidate = candidates.iter().find(|candidate| candidate.id == done.id)?;
        // Nothing comes back into a group that is gone.
        let stat = match Group::open(kernel.cgroup().ok()?, &candidate.path) {
            Ok(group) if group.id() == done.id => group.read_stat(&mut Vec::new()),
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

fn print(args: &Args, summary: &Summary) -> Result<()> {
    if args.json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    if summary.dry_run {
        for group in &summary.groups {
            outln!("{}: would ask for {}", config::printable(&group.group), group.report.asked);
        }
        outln!("{}: nothing was done (--dry-run); backend {}", summary.target, summary.backend);
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
    match summary.end {
        End::Complete => {}
        End::Stopped => line += " Stopped by a signal.",
        end => line += &format!(" Ended: {}.", end.words()),
    }
    if let (Some(came_back), Some(time)) = (summary.came_back, args.watch) {
        line += &format!(" {came_back} came back within {}.", short(time));
    }
    outln!("{line}");
    for group in &summary.groups {
        if let Some(error) = &group.report.error {
            eprintln!("omr: {}: {error}", config::printable(&group.group));
        } else if is_failure(group.report.end) && summary.groups.len() > 1 {
            eprintln!("omr: {}: {}", config::printable(&group.group), group.report.end.words());
        }
    }
    Ok(())
}
