//! `omr reclaim`: reclaims an amount of memory once.

mod summary;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::{Actuator, Advice, DryRun, Live};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::when;
use omr_config as config;
use omr_config::{BackendChoice, Loaded};
use omr_engine::aging::damon::Watch;
use omr_engine::aging::observe::Observer;
use omr_engine::aging::tracker::{self, Tracker};
use omr_engine::aging::{self};
use omr_engine::hint::{Extent, Rules, Selection, Subject, open};
use omr_engine::reclaim::regions::Regions;
use omr_engine::reclaim::{Method, Target, Wish, backend, job, swap_context, swap_floor_of};
use omr_engine::{Host, Progress, Session};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::targets::{self, Candidate, find_below};
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::inventory::read_groups;
use omr_machine::processes;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::{Class, Config, End, short};
use omr_units::{Amount, Bytes};

use self::summary::Summary;
use super::hinted::Order;
use super::options::{Output, Safety};
use super::outcome;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A control group (/ is the whole machine) or a process id
    ///
    /// A group may be written with or without /sys/fs/cgroup in front. A number is a process id; a
    /// group whose name is a number is written ./4711. For a process, anonymous memory goes first,
    /// then file pages, in address order, as the age of its memory is not known. --backend, --watch
    /// and --older-than are for groups only.
    #[arg(required_unless_present = "class", value_name = "TARGET")]
    target: Option<PathBuf>,

    /// The amount: 512M, 25% or max
    #[arg(value_name = "AMOUNT", required_unless_present = "class")]
    amount: Option<Amount>,

    /// All groups of this class instead of one target: background
    ///
    /// With --class, give the amount and no target.
    #[arg(long, value_parser = parse_class, value_name = "CLASS")]
    class: Option<Class>,

    /// Stop after this time, e.g. 30s
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Afterwards, count refaults for this time, e.g. 30s
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    watch: Option<Duration>,

    /// Reclaim only memory that is known to be unused for this time, e.g. 2m
    ///
    /// Only memory that goes to swap is reclaimed; the age of page cache is not known. MGLRU knows
    /// the ages if its agings reach back this far: see --wait, and omr wss. Without MGLRU, --wait
    /// measures ages with DAMON, and only private memory of processes is reclaimed.
    #[arg(long, value_parser = aging::parse_time, value_name = "TIME", conflicts_with = "backend")]
    older_than: Option<Duration>,

    /// Measure ages first, for the time given by --older-than
    #[arg(long, requires = "older_than", conflicts_with = "dry_run")]
    wait: bool,

    /// The kernel file to use: auto, memory.reclaim, memory.swap.reclaim or memory.high
    ///
    /// memory.high works since Linux 5.4, but it slows down tasks of the group that allocate
    /// meanwhile, so auto never chooses it.
    #[arg(long, value_parser = parse_backend, value_name = "FILE")]
    backend: Option<BackendChoice>,

    /// Swap that stays free: a size or a share of all swap
    #[arg(long, value_name = "SIZE")]
    swap_floor: Option<Amount>,

    #[command(flatten)]
    safety: Safety,

    #[command(flatten)]
    output: Output,
}

fn parse_class(text: &str) -> Result<Class, String> {
    match config::parse_class(text) {
        Some(Class::Background) => Ok(Class::Background),
        Some(class) => Err(format!("{} groups are not reclaimed; only background can be", class.name())),
        None => Err("expected background".into()),
    }
}

fn parse_backend(text: &str) -> Result<BackendChoice, String> {
    BackendChoice::from_name(text)
        .ok_or_else(|| "expected auto, memory.reclaim, memory.swap.reclaim or memory.high".into())
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let (target, amount) = match (args.class, &args.target, args.amount) {
        (None, Some(target), Some(amount)) => (Some(target.as_path()), amount),
        // With --class, the first argument is the amount.
        (Some(_), Some(word), None) => {
            let text = word.to_str().context("the amount is not text")?;
            (None, text.parse().map_err(|err| Exit::Usage.error(format!("{err}")))?)
        }
        _ => return Err(Exit::Usage.error("either a target and an amount, or --class and an amount")),
    };
    if let Some(pid) = target.and_then(processes::pid) {
        return reclaim_from_process(root, args, pid?, amount);
    }
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    reclaim_from_groups(Host { kernel: &kernel, root }, args, &loaded, target, amount)
}

/// Reclaims from groups: from one and all groups below it, or from all of a class.
fn reclaim_from_groups(
    host: Host<'_>,
    args: &Args,
    loaded: &Loaded,
    target: Option<&Path>,
    amount: Amount,
) -> Result<Exit> {
    let Host { kernel, root } = host;
    let dry_run = args.output.dry_run;
    let (mut tree, _) = read_groups(kernel, root, loaded, true)?;
    let find = |tree: &Tree| match target {
        Some(target) => find_target(kernel, tree, target, args),
        None => Ok(("class background".to_owned(), find_below(tree, None, args.safety.ignore_low))),
    };
    let (mut name, mut candidates) = find(&tree)?;
    cancel::catch_signals();
    let cancel = Flag::with_timeout(args.timeout);
    let mut actuator: Box<dyn Actuator> = if dry_run { Box::new(DryRun) } else { Box::new(Live) };
    let mut watch = None;
    if let (Some(older_than), true) = (args.older_than, args.wait) {
        watch = measure_ages(host, target, &candidates, older_than, &mut *actuator, &cancel)?;
        (tree, _) = read_groups(kernel, root, loaded, true)?;
        (name, candidates) = find(&tree)?;
    }
    let current: Bytes = candidates.iter().map(|candidate| candidate.current).sum();
    let asked = amount.of(current);
    targets::sort_by_gain(&mut candidates);

    let choice = match args.older_than {
        Some(_) => BackendChoice::Auto,
        None => args.backend.unwrap_or(loaded.backend),
    };
    // Evicting generations changes no limit. Any other method first restores limits that an earlier
    // run left changed.
    let changes_limits = !dry_run && (args.older_than.is_none() || watch.is_some());
    let journal = if changes_limits { backend::open_journal(kernel, root, choice, &mut *actuator)? } else { None };
    let wish = match args.older_than {
        Some(older_than) => Wish::Cold { older_than, may_age: true },
        None => Wish::Any(choice),
    };
    let Some(mut method) = choose_method(host, args, loaded, wish, watch, &candidates, &mut *actuator)? else {
        let why = if candidates.is_empty() { "it has no group that may be reclaimed" } else { "it is gone" };
        return Err(Exit::Partial.error(format!("{name}: {why}; nothing was reclaimed")));
    };
    let bar = progress_bar(args, &name, amount, asked);
    let mut session = Session {
        host,
        actuator: &mut *actuator,
        journal: journal.as_ref(),
        cancel: &cancel,
        progress: &mut |progress| bar.set_position(progress.freed.0),
    };
    let mut summary = Summary::new(&name, method.name(), asked, dry_run);
    reclaim_all(&mut session, &mut method, args, &loaded.policy, amount, &candidates, &mut summary)?;
    bar.finish_and_clear();
    if let Some(time) = args.watch.filter(|_| !dry_run) {
        summary.came_back = summary::count_refaults(kernel, &candidates, &summary, time);
    }
    summary::print(&summary, args.output.json, args.watch)?;
    Ok(outcome::exit_for(summary.end, amount))
}

/// Returns the method for these groups; `None`: all groups are gone.
fn choose_method<'a>(
    host: Host<'_>,
    args: &Args,
    loaded: &'a Loaded,
    wish: Wish,
    watch: Option<Watch>,
    candidates: &[Candidate],
    actuator: &mut dyn Actuator,
) -> Result<Option<Method<'a>>> {
    if let Wish::Cold { older_than, .. } = wish {
        if let Some(watch) = watch {
            let (ignore, swap_floor) = (args.safety.into(), args.swap_floor);
            let regions = Regions { watch: Box::new(watch), older_than, loaded, ignore, swap_floor };
            return Ok(Some(Method::Regions(regions)).filter(|_| !candidates.is_empty()));
        }
        if require_ages(host)? == Tracker::Damon {
            let time = humantime::format_duration(older_than);
            return Err(Exit::Partial.error(format!(
                "the age of memory is not known, as MGLRU is not available here; nothing was reclaimed. \
                 --wait first measures ages with DAMON for {time}"
            )));
        }
    }
    Method::choose_for_any(host.kernel, wish, candidates, actuator)
}

/// Reclaims from the groups, one after another, until the amount is reached.
fn reclaim_all(
    session: &mut Session<'_>,
    method: &mut Method<'_>,
    args: &Args,
    config: &Config,
    amount: Amount,
    candidates: &[Candidate],
    summary: &mut Summary,
) -> Result<()> {
    let began = clock::read_monotonic();
    let context = swap_context(session.host.kernel);
    // The amount that a dry run would have asked for so far.
    let mut planned = Bytes::ZERO;
    for candidate in candidates {
        let left = match amount {
            Amount::Max => Bytes::MAX,
            _ => summary.asked - summary.freed - planned,
        };
        if left.0 == 0 {
            break;
        }
        let Some(group) = candidate.open(session.host.kernel)? else { continue };
        // "max" ends when reclaim finds no more, even if the counters still show memory.
        let gain = if amount == Amount::Max { candidate.gain } else { candidate.gain.min(left) };
        let swap_floor = swap_floor_of(config, args.swap_floor, context, gain);
        let job = job(config, swap_floor, method.file_only(), gain, candidate.current - candidate.gain);
        if summary.dry_run {
            planned += job.amount;
        }
        let before = Progress { freed: summary.freed, ..Progress::default() };
        let target = Target { group: &group, inner: candidate.beyond_children };
        let report = session.run_part(before, |session| session.reclaim(method, target, job));
        let is_stopped = matches!(report.end, End::Stopped | End::Timeout);
        summary.add(candidate, report, candidates.len() == 1);
        if is_stopped {
            break;
        }
    }
    summary.conclude(amount, candidates);
    summary.seconds = clock::read_monotonic().since(began).as_secs_f64();
    Ok(())
}

/// Returns the tracker for `--older-than`. Fails without swap, as only memory that goes to swap has
/// an age.
fn require_ages(host: Host<'_>) -> Result<Tracker> {
    let tracker = tracker::choose(host.kernel, host.root, &mut Live)?;
    match SwapSpace::read(host.kernel) {
        Some(swap) if swap.total == Bytes::ZERO => Err(Exit::Unsupported.error(aging::NO_SWAP)),
        _ => Ok(tracker),
    }
}

/// Measures for `older_than` which memory is used, for `--wait`. Returns DAMON's run, which
/// measures until the command ends; `None` with MGLRU.
fn measure_ages(
    host: Host<'_>,
    target: Option<&Path>,
    candidates: &[Candidate],
    older_than: Duration,
    actuator: &mut dyn Actuator,
    cancel: &Flag,
) -> Result<Option<Watch>> {
    let kernel = host.kernel;
    let tracker = require_ages(host)?;
    if candidates.is_empty() {
        return Ok(None);
    }
    if std::io::stderr().is_terminal() {
        eprintln!("measuring ages for {}; ^C stops", short(older_than));
    }
    if tracker == Tracker::Damon {
        let top = Group::open(kernel.cgroup()?, kernel.group_path(target.unwrap_or_else(|| Path::new("/"))))?;
        let is_wanted = |group: &Path| candidates.iter().any(|candidate| candidate.path == group);
        let mut watch = Watch::start(host, &|| Box::new(Live), &top, older_than, is_wanted)?;
        // If DAMON stops early, reclaim from each group ends with that reason.
        watch.wait(older_than, cancel)?;
        return Ok(Some(watch));
    }
    let mut observer = Observer::new(kernel);
    for candidate in candidates {
        observer.add(candidate.id, &candidate.path);
    }
    observer.age_over_window(actuator, older_than, cancel, |_| Ok(()))?;
    Ok(None)
}

/// Reclaims from a process.
fn reclaim_from_process(root: &Path, args: &Args, pid: u32, amount: Amount) -> Result<Exit> {
    let given = [
        ("--backend", args.backend.is_some()),
        ("--watch", args.watch.is_some()),
        ("--older-than", args.older_than.is_some()),
    ];
    for (option, is_given) in given {
        if is_given {
            let text = format!("{option} is for groups, and {pid} is a process; a group of that name is ./{pid}");
            return Err(Exit::Usage.error(text));
        }
    }
    let order = Order {
        selections: vec![Selection::all(Advice::PageOut)],
        extent: Extent { amount, swap_floor: args.swap_floor },
        ignore: args.safety.into(),
        timeout: args.timeout,
        output: args.output,
    };
    let kernel = Kernel::open(root)?;
    let loaded = config::load_or_refuse(root, None)?;
    let process = open(&kernel, pid)?;
    let subject = Subject::permitted(&kernel, &Rules::read(&kernel, root, &loaded)?, process, order.ignore)?;
    let mut summary = order.carry_out(Host { kernel: &kernel, root }, &loaded, &[subject])?;
    summary.asked = Some(amount.of(summary.resident_before));
    summary.print(&order)?;
    Ok(match summary.exit() {
        // "max" asks for as much as reclaim can find, so less than all is not partial.
        Exit::Partial if matches!(summary.end, End::Futile | End::Floor) => outcome::exit_for(summary.end, amount),
        exit => exit,
    })
}

/// Returns the target's name and its groups that may be reclaimed: the target itself or those below
/// it.
fn find_target(kernel: &Kernel, tree: &Tree, target: &Path, args: &Args) -> Result<(String, Vec<Candidate>)> {
    let path = kernel.group_path(target);
    let shown = if path.as_os_str().is_empty() { "/".to_owned() } else { printed(path) };
    let root = kernel.cgroup()?;
    let group = Group::open(root, path).map_err(|err| match err.is_gone() {
        true => no_group(path),
        false => err.into(),
    })?;
    let node = tree.nodes().iter().find(|node| node.id == group.id());
    let node = node.with_context(|| format!("group {shown} was created just now; try again"))?;
    let mut candidates = find_below(tree, Some(node.id), args.safety.ignore_low);
    if !candidates.is_empty() || node.is_internal {
        return Ok((shown, candidates));
    }
    candidates.push(targets::find_named(tree, node, &group, args.safety.ignore_class, args.safety.ignore_low)?);
    Ok((shown, candidates))
}

fn printed(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

fn progress_bar(args: &Args, name: &str, amount: Amount, asked: Bytes) -> ProgressBar {
    let target = if args.output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
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
