//! `omr reclaim`: once, now, this much.

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
    /// A control group, with or without /sys/fs/cgroup in front, / is the whole machine; or a process id
    ///
    /// A number is a process; a group whose name is a number is written ./4711. Of a process the private
    /// memory leaves first that no file backs, then files, each by address: what of it was used last
    /// is not known. --backend, --watch and --older-than are for groups.
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
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    timeout: Option<Duration>,

    /// Then look for this time at how much comes back, e.g. 30s
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    watch: Option<Duration>,

    /// Only what was surely not used for so long, e.g. 2m
    ///
    /// Of memory that goes to swap, by the ages MGLRU knows; page cache stays, as its age is not known.
    /// Ages are known from agings on: see --wait, and omr wss. Without MGLRU, and with --wait, by what DAMON sees of processes:
    /// then only private memory is taken.
    #[arg(long, value_parser = aging::parse_time, value_name = "TIME", conflicts_with = "backend")]
    older_than: Option<Duration>,

    /// Look at the groups first, for as long as --older-than says
    #[arg(long, requires = "older_than", conflicts_with = "dry_run")]
    wait: bool,

    /// Which file of the kernel to use: auto, memory.reclaim, memory.swap.reclaim, memory.high
    ///
    /// memory.high works from Linux 5.4 on, but slows down tasks of the group that allocate
    /// meanwhile, so it is never chosen unasked.
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
        Some(class) => Err(format!("nothing is taken from {} groups; only background can be reclaimed", class.name())),
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
        // With --class the first word is the amount.
        (Some(_), Some(word), None) => {
            let text = word.to_str().context("the amount is not text")?;
            (None, text.parse().map_err(|err| Exit::Usage.error(format!("{err}")))?)
        }
        _ => return Err(Exit::Usage.error("either a target and an amount, or --class and an amount")),
    };
    if let Some(pid) = target.and_then(processes::pid) {
        return process(root, args, pid?, amount);
    }
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    groups(Host { kernel: &kernel, root }, args, &loaded, target, amount)
}

/// Groups as the target: one and all below it, or all of a class.
fn groups(host: Host<'_>, args: &Args, loaded: &Loaded, target: Option<&Path>, amount: Amount) -> Result<Exit> {
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
        watch = look_first(host, target, &candidates, older_than, &mut *actuator, &cancel)?;
        (tree, _) = read_groups(kernel, root, loaded, true)?;
        (name, candidates) = find(&tree)?;
    }
    let held: Bytes = candidates.iter().map(|candidate| candidate.current).sum();
    let asked = amount.of(held);
    targets::sort_by_gain(&mut candidates);

    let choice = match args.older_than {
        Some(_) => BackendChoice::Auto,
        None => args.backend.unwrap_or(loaded.backend),
    };
    // Evicting generations changes no limit. Else limits that an earlier run left behind are put back first.
    let changes_limits = !dry_run && (args.older_than.is_none() || watch.is_some());
    let journal = if changes_limits { backend::open_journal(kernel, root, choice, &mut *actuator)? } else { None };
    let wish = match args.older_than {
        Some(older_than) => Wish::Cold { older_than, may_age: true },
        None => Wish::Any(choice),
    };
    let Some(mut method) = method(host, args, loaded, wish, watch, &candidates, &mut *actuator)? else {
        let why = if candidates.is_empty() { "no group there may be touched" } else { "it is gone" };
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
        summary.came_back = summary::watch(kernel, &candidates, &summary, time);
    }
    summary::print(args, &summary)?;
    Ok(outcome::exit_for(summary.end, amount))
}

/// The method for these groups; `None`: there is no group any more.
fn method<'a>(
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
                "nobody has looked for {time} at what is used: MGLRU, which would remember, is not to be had here. \
                 --wait looks for so long with DAMON first; nothing was reclaimed"
            )));
        }
    }
    Method::choose_for_any(host.kernel, wish, candidates, actuator)
}

/// Reclaims from one group after the other until the amount is reached.
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
    // How much a dry run would have asked the groups so far for.
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
        // "max" ends when nothing more is to be had, not when the counters say that all is gone.
        let gain = if amount == Amount::Max { candidate.gain } else { candidate.gain.min(left) };
        let swap_floor = swap_floor_of(config, args.swap_floor, context, gain);
        let job = job(config, swap_floor, method.file_only(), gain, candidate.current - candidate.gain);
        if summary.dry_run {
            planned += job.amount;
        }
        let before = Progress { freed: summary.freed, ..Progress::default() };
        let target = Target { group: &group, inner: candidate.beyond_children };
        let report = session.part(before, |session| session.reclaim(method, target, job));
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

/// The tracker that knows ages here, for `--older-than`, which reclaims memory that goes to swap.
fn require_ages(host: Host<'_>) -> Result<Tracker> {
    let tracker = tracker::choose(host.kernel, host.root, &mut Live)?;
    match SwapSpace::read(host.kernel) {
        Some(swap) if swap.total == Bytes::ZERO => Err(Exit::Unsupported.error(aging::NO_SWAP)),
        _ => Ok(tracker),
    }
}

/// `--wait`: looks first, for as long as the age, at which memory is used. DAMON goes on looking until the
/// command is done.
fn look_first(
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
        eprintln!("looking for {} at what is used; ^C stops", short(older_than));
    }
    if tracker == Tracker::Damon {
        let top = Group::open(kernel.cgroup()?, kernel.group_path(target.unwrap_or_else(|| Path::new("/"))))?;
        let is_wanted = |group: &Path| candidates.iter().any(|candidate| candidate.path == group);
        let mut watch = Watch::start(host, &|| Box::new(Live), &top, older_than, is_wanted)?;
        // If DAMON does not look any more, paging out of each group ends with that.
        watch.wait(older_than, cancel)?;
        return Ok(Some(watch));
    }
    let mut observer = Observer::new(kernel);
    for candidate in candidates {
        observer.add(candidate.id, &candidate.path);
    }
    observer.window(actuator, older_than, cancel, |_| Ok(()))?;
    Ok(None)
}

/// A process as the target.
fn process(root: &Path, args: &Args, pid: u32, amount: Amount) -> Result<Exit> {
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
        selection: Selection { advice: Advice::PageOut, within: None, backing: None },
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
        // As much as will go is what "max" asks for.
        Exit::Partial if matches!(summary.end, End::Futile | End::Floor) => outcome::exit_for(summary.end, amount),
        exit => exit,
    })
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
