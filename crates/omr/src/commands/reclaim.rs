//! `omr reclaim`: once, now, this much.

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
use omr_engine::hint::{Extent, Ignore, Selection};
use omr_engine::reclaim::backend::{self, Backend};
use omr_engine::reclaim::generations::Evictor;
use omr_engine::reclaim::limit_journal::Journal;
use omr_engine::reclaim::regions::Pager;
use omr_engine::reclaim::{Progress, Report, Worker, job, swap_context};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::targets::{self, Candidate, find_below};
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::inventory::read_groups;
use omr_machine::processes;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::pace::Job;
use omr_policy::{Class, Config, End, SwapContext, short};
use omr_units::{Amount, Bytes, GroupId, millis};
use serde::Serialize;

use crate::commands::hint::{self, Order};

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
    /// Moved to slower memory (memory tiers), which is not freed.
    demoted: Bytes,
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
    if let Some(pid) = target.and_then(processes::pid) {
        return process(root, args, pid?, amount);
    }
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    let (mut tree, _) = read_groups(&kernel, root, &loaded, true)?;
    let find = |tree: &Tree| match target {
        Some(target) => find_target(&kernel, tree, target, args),
        None => Ok(("class background".to_owned(), find_below(tree, None, args.ignore_low))),
    };
    let (mut name, mut candidates) = find(&tree)?;
    cancel::catch_signals();
    let stop = Flag::with_timeout(args.timeout);
    let mut looking = None;
    if let (Some(older_than), true) = (args.older_than, args.wait) {
        looking = look_first(&kernel, root, target, &candidates, older_than, &stop)?;
        (tree, _) = read_groups(&kernel, root, &loaded, true)?;
        (name, candidates) = find(&tree)?;
    }
    let held: Bytes = candidates.iter().map(|candidate| candidate.current).sum();
    let asked = amount.of(held);
    targets::sort_by_gain(&mut candidates);

    let mut actuator: Box<dyn Actuator> = if args.dry_run { Box::new(DryRun) } else { Box::new(Live) };
    let Some(way) = way(&kernel, root, args, loaded.backend, &candidates, looking, &mut *actuator)? else {
        let why = if candidates.is_empty() { "no group there may be touched" } else { "it is gone" };
        return Err(Exit::Partial.error(format!("{name}: {why}; nothing was reclaimed")));
    };
    let bar = progress_bar(args, &name, amount, asked);
    let swap_context = swap_context(&kernel);
    let mut run = Run { kernel: &kernel, root, loaded: &loaded, args, way, stop: &stop, swap_context };
    let mut summary = run.all(&name, asked, amount, &candidates, &mut *actuator, &bar)?;
    bar.finish_and_clear();
    if let Some(time) = args.watch.filter(|_| !args.dry_run) {
        summary.came_back = watch(&kernel, &candidates, &summary, time);
    }
    print(args, &summary)?;
    Ok(match summary.end {
        End::Complete => Exit::Done,
        // As much as will go is what "max" asks for.
        End::Futile | End::Floor | End::NoMoreCold if amount == Amount::Max => Exit::Done,
        End::Denied | End::Failed => Exit::Failed,
        End::Unsupported => Exit::Unsupported,
        _ => Exit::Partial,
    })
}

/// How the kernel is asked.
enum Way {
    /// Through a file of the group.
    File { backend: Backend, journal: Option<Journal> },
    /// Through the generations of `lru_gen`: only what was not used for so long.
    Ages { older_than: Duration },
    /// Through hints about processes, by what DAMON has seen: the same without MGLRU.
    Processes { watch: Box<Watch>, journal: Option<Journal>, older_than: Duration },
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Way::File { backend, .. } => backend.file(),
            Way::Ages { .. } => "lru_gen",
            Way::Processes { .. } => "process_madvise",
        }
    }

    fn file_only(&self) -> bool {
        matches!(self, Way::File { backend, .. } if backend.file_only())
    }
}

/// The way to take; `None` when no group is left to ask for it.
fn way(
    kernel: &Kernel,
    root: &Path,
    args: &Args,
    configured: BackendChoice,
    candidates: &[Candidate],
    watch: Option<Watch>,
    actuator: &mut dyn Actuator,
) -> Result<Option<Way>> {
    if let (Some(older_than), Some(watch)) = (args.older_than, watch) {
        let journal = backend::open_journal(kernel, root, BackendChoice::Auto, actuator)?;
        let way = Way::Processes { watch: Box::new(watch), journal, older_than };
        return Ok(Some(way).filter(|_| !candidates.is_empty()));
    }
    if let Some(older_than) = args.older_than {
        if require_ages(kernel, root)? == Tracker::Damon {
            let time = humantime::format_duration(older_than);
            return Err(Exit::Partial.error(format!(
                "nobody has looked for {time} at what is used: MGLRU, which would remember, is not to be had here. \
                 --wait looks for so long with DAMON first; nothing was reclaimed"
            )));
        }
        return Ok(Some(Way::Ages { older_than }).filter(|_| !candidates.is_empty()));
    }
    let choice = args.backend.unwrap_or(configured);
    // Limits that an earlier run left behind are put back at every start.
    let journal = if args.dry_run { None } else { backend::open_journal(kernel, root, choice, actuator)? };
    let backend = probe(kernel, choice, candidates, actuator)?;
    Ok(backend.map(|backend| Way::File { backend, journal }))
}

/// `--older-than` takes what goes to swap, by age. The tracker that knows ages here.
fn require_ages(kernel: &Kernel, root: &Path) -> Result<Tracker> {
    let tracker = tracker::choose(kernel, root)?;
    match SwapSpace::read(kernel) {
        Some(swap) if swap.total == Bytes::ZERO => Err(Exit::Unsupported.error(aging::NO_SWAP)),
        _ => Ok(tracker),
    }
}

/// `--wait`: looks for so long at what is used. With DAMON it goes on looking until all is done.
fn look_first(
    kernel: &Kernel,
    root: &Path,
    target: Option<&Path>,
    candidates: &[Candidate],
    older_than: Duration,
    stop: &Flag,
) -> Result<Option<Watch>> {
    let tracker = require_ages(kernel, root)?;
    if candidates.is_empty() {
        return Ok(None);
    }
    if std::io::stderr().is_terminal() {
        eprintln!("looking for {} at what is used; ^C stops", short(older_than));
    }
    if tracker == Tracker::Damon {
        let top = Group::open(kernel.cgroup()?, kernel.group_path(target.unwrap_or_else(|| Path::new("/"))))?;
        let is_wanted = |group: &Path| candidates.iter().any(|candidate| candidate.path == group);
        let mut watch = Watch::start(kernel, root, &top, older_than, is_wanted)?;
        // Where it does not look any more, that is how paging out of each group ends.
        watch.wait(older_than, stop)?;
        return Ok(Some(watch));
    }
    let mut observer = Observer::new(kernel);
    for candidate in candidates {
        observer.add(candidate.id, &candidate.path);
    }
    observer.window(&mut Live, older_than, stop, |_| Ok(()))?;
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
        ignore: Ignore { class: args.ignore_class, low: args.ignore_low },
        timeout: args.timeout,
        dry_run: args.dry_run,
        json: args.json,
    };
    hint::reclaim(root, pid, &order)
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
    root: &'a Path,
    loaded: &'a Loaded,
    args: &'a Args,
    way: Way,
    stop: &'a Flag,
    swap_context: SwapContext,
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
            backend: self.way.name(),
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
            let before = summary.freed;
            let mut progress = |progress: Progress| bar.set_position((before + progress.freed).0);
            let (kernel, stop) = (self.kernel, self.stop);
            let report = match &mut self.way {
                Way::File { backend, journal } => {
                    let backend = *backend;
                    Worker { kernel, actuator, backend, journal: journal.as_ref(), stop }.run(
                        &group,
                        job,
                        candidate.beyond_children,
                        &mut progress,
                    )
                }
                Way::Ages { older_than } => Evictor::new(kernel, actuator, stop).run(
                    &group,
                    job,
                    candidate.beyond_children,
                    *older_than,
                    &mut progress,
                ),
                Way::Processes { watch, journal, older_than } => {
                    let ignore = Ignore { class: self.args.ignore_class, low: self.args.ignore_low };
                    let (root, loaded, swap_floor) = (self.root, self.loaded, self.args.swap_floor);
                    let journal = journal.as_ref();
                    Pager { kernel, root, loaded, actuator, journal, stop, ignore, swap_floor }.run(
                        watch,
                        &group,
                        job,
                        *older_than,
                        &mut progress,
                    )
                }
            };
            summary.freed += report.freed;
            summary.freed_anon += report.freed_anon;
            summary.freed_file += report.freed_file;
            summary.swapped_out += report.swapped_out;
            summary.demoted += report.demoted;
            summary.cpu_seconds += report.cpu.as_secs_f64();
            let longest = millis(report.longest_write);
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
        } else if let Some(failed) = summary.groups.iter().map(|group| group.report.end).find(|end| end.is_failure()) {
            summary.end = failed;
        } else if amount != Amount::Max && summary.end == End::Complete && !self.args.dry_run {
            // Each group gave all that may be taken from it, and that was not enough.
            let kept = candidates.iter().any(|candidate| candidate.gain < candidate.current);
            summary.end = if kept { End::Floor } else { End::Futile };
        }
        if summary.end == End::NoMoreCold {
            // Not all that is old was taken where it is not known of some.
            let unknown = |group: &GroupSummary| matches!(group.report.end, End::NotAged | End::NotSeen);
            summary.end =
                summary.groups.iter().find(|group| unknown(group)).map_or(End::NoMoreCold, |group| group.report.end);
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
        job(&with_floor, self.swap_context, self.way.file_only(), gain, candidate.current - candidate.gain)
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
    let mut candidates = find_below(tree, Some(node.id), args.ignore_low);
    if !candidates.is_empty() {
        return Ok((shown, candidates));
    }
    if node.is_internal {
        return Ok((shown, candidates));
    }
    candidates.push(targets::find_named(tree, node, &group, args.ignore_class, args.ignore_low)?);
    Ok((shown, candidates))
}

fn printed(path: &Path) -> String {
    printable(&path.to_string_lossy())
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
    if let (Some(came_back), Some(time)) = (summary.came_back, args.watch) {
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
