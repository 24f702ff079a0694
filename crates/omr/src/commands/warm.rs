//! `omr warm`: brings memory back before it is needed.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::{Actuator, DryRun, Live};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_config as config;
use omr_engine::warm::{self, Bounds, End, Job, Recorded, Report, Subject, Use};
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::inventory::read_groups;
use omr_machine::processes;
use omr_policy::{Class, short};
use omr_units::{Amount, Bytes, Rate};
use serde::Serialize;

/// The time that foreground work may last before the command ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Brings memory back from swap before it is needed, foreground first: after a resume, or at any
/// time instead of swapoff and swapon. The pages that "omr warm --record" recorded come first, then
/// the rest of swap. The copy in swap stays, so these pages are the first to go when memory gets
/// scarce.
#[derive(Debug, clap::Args)]
#[command(long_about)]
pub struct Args {
    /// Control groups and process ids; / is the whole machine
    ///
    /// Without any: all groups except those that are explicitly background.
    #[arg(value_name = "TARGET")]
    targets: Vec<PathBuf>,

    /// Record what is in memory now, for the next run, and bring nothing back
    #[arg(long, conflicts_with_all = ["rate", "free_floor", "ignore_busy"])]
    record: bool,

    /// Keep a record that was made less than this time ago, e.g. 10m
    ///
    /// For omr-prepare-hibernate.service: "omr hibernate" made a record before it reclaimed the
    /// groups. Afterwards, memory no longer shows what was in use.
    #[arg(long, value_parser = when::parse_length, value_name = "TIME", requires = "record")]
    unless_newer: Option<Duration>,

    /// Read no faster than this, e.g. 100MiB/s
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Stop after this time, e.g. 30s; with --record, write what was read until then
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Memory that stays available: a size or a share of all memory
    #[arg(long, value_name = "SIZE", default_value = warm::FLOOR)]
    free_floor: Amount,

    /// Continue during foreground work; without this option, wait, and end after 10 s of it
    #[arg(long)]
    ignore_busy: bool,

    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--record`.
#[derive(Serialize)]
struct Written {
    #[serde(flatten)]
    recorded: Recorded,
    /// The size of the record; `None`: a dry run.
    size: Option<Bytes>,
    dry_run: bool,
}

/// The output if the earlier record is kept.
#[derive(Serialize)]
struct Kept {
    kept: PathBuf,
    age_seconds: u64,
}

/// The output of a run that brings memory back.
#[derive(Serialize)]
struct Summary {
    dry_run: bool,
    seconds: f64,
    cpu_seconds: f64,
    #[serde(flatten)]
    report: Report,
}

impl Args {
    /// Returns the defaults, with `--record` for this time at most, or without it.
    pub fn plain(record: Option<Duration>, json: bool) -> Result<Self> {
        Ok(Args {
            targets: Vec::new(),
            record: record.is_some(),
            unless_newer: None,
            rate: None,
            timeout: record,
            free_floor: warm::FLOOR.parse().context("the default")?,
            ignore_busy: false,
            dry_run: false,
            json,
        })
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    let age = args.unless_newer.and_then(|time| warm::record_age(&kernel, root).filter(|&age| age < time));
    if let Some(age) = age {
        return print_kept(root, args, age);
    }
    let (tree, _) = read_groups(&kernel, root, &loaded, false)?;
    let subjects = find_subjects(&kernel, &tree, &args.targets)?;
    if args.record {
        return write_record(&kernel, root, args, &subjects);
    }
    let memory = Meminfo::read(&kernel, &mut Vec::new())?;
    let bounds = Bounds {
        rate: args.rate,
        floor: args.free_floor.of(memory.mem_total.unwrap_or_default()),
        patience: (!args.ignore_busy).then_some(PATIENCE),
    };
    let job = Job { kernel: &kernel, root, loaded: &loaded, tree: &tree, subjects: &subjects, only: None, bounds };
    let mut actuator: Box<dyn Actuator> = if args.dry_run { Box::new(DryRun) } else { Box::new(Live) };
    cancel::catch_signals();
    let stop = Flag::with_timeout(args.timeout);
    let bar = progress_bar(args);
    let report = job.run(&mut *actuator, &stop, &mut |bytes| bar.set_position(bytes.0))?;
    bar.finish_and_clear();
    let exit = match report.end {
        End::Complete => Exit::Done,
        End::Denied => Exit::Failed,
        End::Unsupported => Exit::Unsupported,
        End::Headroom | End::Busy | End::Stopped | End::Timeout => Exit::Partial,
    };
    if report.record == Use::OfAnotherBoot {
        let path = paths::warm_record(root);
        eprintln!("omr: {} is from another boot, so its processes are gone; it is ignored", path.display());
    }
    let summary = Summary {
        dry_run: args.dry_run,
        seconds: report.wall.as_secs_f64(),
        cpu_seconds: report.cpu.as_secs_f64(),
        report,
    };
    print(args, &summary)?;
    Ok(exit)
}

/// Returns the processes of the targets.
fn find_subjects(kernel: &Kernel, tree: &Tree, targets: &[PathBuf]) -> Result<Vec<Subject>> {
    let mut subjects = if targets.is_empty() { warm::subjects(kernel, tree, None)? } else { Vec::new() };
    for target in targets {
        let path = kernel.group_path(target);
        let found = match Group::open(kernel.cgroup()?, path) {
            Ok(_) => warm::subjects(kernel, tree, Some(path))?,
            Err(err) if !err.is_gone() => return Err(err.into()),
            Err(_) => match processes::pid(target) {
                Some(Ok(pid)) => vec![process(kernel, tree, pid)?],
                Some(Err(_)) => return Err(no_target(target)),
                None => return Err(no_group(path)),
            },
        };
        subjects.extend(found);
    }
    // One target may be inside another.
    let mut seen = HashSet::new();
    for subject in &mut subjects {
        subject.pids.retain(|&pid| seen.insert(pid));
    }
    subjects.retain(|subject| !subject.pids.is_empty());
    subjects.sort_by_key(|subject| subject.rank);
    Ok(subjects)
}

fn no_target(target: &Path) -> anyhow::Error {
    Exit::Failed.error(format!("there is no group and no process {}", target.display()))
}

/// Returns one process as a target.
fn process(kernel: &Kernel, tree: &Tree, pid: u32) -> Result<Subject> {
    let group = match omr_kernel::process::read_group(kernel, pid) {
        Ok(group) => group.unwrap_or_default(),
        Err(err) if err.is_gone() => {
            return Err(no_target(Path::new(&pid.to_string())));
        }
        Err(err) => return Err(err.into()),
    };
    let assignment = tree.find(&group).and_then(|node| tree.assignment(node));
    let class = assignment.map_or(Class::Background, |assignment| assignment.class);
    Ok(Subject { group, class, rank: 0, pids: vec![pid] })
}

fn print_kept(root: &Path, args: &Args, age: Duration) -> Result<Exit> {
    let kept = Kept { kept: paths::warm_record(root), age_seconds: age.as_secs() };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&kept)?);
    } else {
        outln!("{} is {} old and is kept (--unless-newer).", kept.kept.display(), short(age));
    }
    Ok(Exit::Done)
}

fn write_record(kernel: &Kernel, root: &Path, args: &Args, subjects: &[Subject]) -> Result<Exit> {
    cancel::catch_signals();
    let (record, recorded) = warm::record(kernel, subjects, &Flag::with_timeout(args.timeout))?;
    if cancel::signal().is_some() {
        return Err(Exit::Partial.error("interrupted; nothing was written"));
    }
    if recorded.processes == 0 && recorded.denied > 0 {
        return Err(Exit::Failed.error(format!(
            "none of {} processes could be read: this needs CAP_SYS_PTRACE, so run it as root",
            recorded.denied
        )));
    }
    let size = if args.dry_run { None } else { Some(warm::write(root, &record)?) };
    let written = Written { recorded, size, dry_run: args.dry_run };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&written)?);
        return Ok(Exit::Done);
    }
    let Recorded { groups, processes, ranges, used, rest, denied, unread, cut } = written.recorded;
    let mut line =
        format!("{processes} processes in {groups} groups: {used} used, {rest} more in memory, {ranges} ranges");
    if denied + unread > 0 {
        line += &format!("; {} processes could not be read", denied + unread);
    }
    if cut {
        line += "; incomplete: the record is full, or the time was up";
    }
    match size {
        Some(size) => outln!("{line}. Written to {}, {size}.", paths::warm_record(root).display()),
        None => outln!("{line}. Nothing was written (--dry-run)."),
    }
    Ok(Exit::Done)
}

fn progress_bar(args: &Args) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !args.json && !args.dry_run;
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{binary_bytes} requested   {binary_bytes_per_sec}   ^C stops") {
        bar.set_style(style);
    }
    bar
}

fn print(args: &Args, summary: &Summary) -> Result<()> {
    if args.json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let report = &summary.report;
    if summary.dry_run {
        for group in &report.groups {
            let name = shown(&group.group);
            let full = if group.full { "; more does not fit under its limit" } else { "" };
            outln!(
                "{name} ({}): would ask for {} from swap, {} from files{full}",
                group.class.name(),
                group.swap,
                group.file
            );
        }
        outln!("{} from swap, {} from files; nothing was done (--dry-run)", report.swap, report.file);
    } else {
        let mut line = format!(
            "{} in swap and {} of files asked for, {} read from swap, {}, CPU {}.",
            report.swap,
            report.file,
            report.swapped_in,
            short(report.wall),
            short(report.cpu)
        );
        if report.gone > 0 {
            line += &format!(" {} recorded processes are gone.", report.gone);
        }
        if report.unmapped > Bytes::ZERO {
            line += &format!(" {} of recorded memory are no longer mapped.", report.unmapped);
        }
        outln!("{line}");
    }
    match (report.end, &report.reason) {
        (End::Complete, _) => {}
        (end, Some(reason)) => outln!("Ended: {}: {reason}.", end.words()),
        (end, None) => outln!("Ended: {}.", end.words()),
    }
    for group in report.groups.iter().filter(|group| group.full && !summary.dry_run) {
        eprintln!("omr: {}: more does not fit under its memory.max or memory.high", shown(&group.group));
    }
    if report.denied + report.unread > 0 {
        eprintln!("omr: {} processes could not be read", report.denied + report.unread);
    }
    Ok(())
}

/// Returns the path of a group, for people.
fn shown(group: &str) -> String {
    if group.is_empty() { "/".into() } else { printable(group) }
}
