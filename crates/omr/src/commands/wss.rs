//! `omr wss`: shows the memory that a group uses, and how long the rest was unused.

mod remembered;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Live;
use omr_actuate::damon::Refusal;
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::when;
use omr_config as config;
use omr_engine::Host;
use omr_engine::aging::observe::{Node, Observer};
use omr_engine::aging::tracker::{self, Tracker};
use omr_engine::aging::{self, damon, measurement, smaps};
use omr_engine::hint::Rules;
use omr_kernel::damon::Damon;
use omr_kernel::memcg::{Group, MemoryStat};
use omr_kernel::{Kernel, clock};
use omr_machine::groups::tree::no_group;
use omr_policy::age::Bounds;
use omr_policy::short;
use omr_units::{Bytes, Monotonic};
use serde::Serialize;

/// Shows how much memory is used, and how long the rest was unused. The figures are the daemon's of
/// the last minutes, if it runs. With --window, or without a daemon, the command measures for the
/// time of the window: MGLRU at the beginning, in the middle and at the end, or DAMON continuously.
/// Trackers only see use through page tables, so page cache is shown separately.
#[derive(Debug, clap::Args)]
#[command(long_about)]
pub struct Args {
    /// A control group, with all groups below it; without it, the whole machine
    #[arg(value_name = "GROUP")]
    group: Option<PathBuf>,

    /// Measure for this time, e.g. 10m; the default is 2m if there are no figures from a daemon
    #[arg(long, value_parser = aging::parse_time, value_name = "TIME")]
    window: Option<Duration>,

    /// The tracker
    ///
    /// The output says what the tracker sees and does not see. --watch and --per-node need lru-gen.
    #[arg(long, value_enum, default_value_t = By::Auto, value_name = "TRACKER")]
    tracker: By,

    /// Show the daemon's figures of an earlier time: 2h (2 hours ago) or 2026-11-21T14:00:00Z
    #[arg(long, value_parser = when::parse, value_name = "TIME", conflicts_with_all = ["watch", "tracker"])]
    at: Option<Duration>,

    /// Continue after the window, and print twice per window; longer ages appear with time
    #[arg(long)]
    watch: bool,

    /// Show each NUMA node separately
    #[arg(long)]
    per_node: bool,

    /// Print JSON; with --watch, one line each time
    #[arg(long)]
    json: bool,
}

/// The choice of a tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// lru-gen if MGLRU is on, else damon
    Auto,
    /// MGLRU's generations, for groups: each page, at the beginning, in the middle and at the end
    LruGen,
    /// DAMON, for processes: one page of each region, continuously
    Damon,
    /// "referenced" in page tables, for processes: each page, at the end; only for background
    /// groups, as it disturbs them
    Smaps,
}

/// The default of `--window`.
const WINDOW: Duration = Duration::from_secs(120);
/// Groups in the table; `--json` has all.
const ROWS: usize = 15;
/// The width of a bar, in characters.
const BAR: usize = 32;

/// The output.
#[derive(Debug, Serialize)]
struct Summary {
    group: String,
    window_seconds: f64,
    #[serde(flatten)]
    figures: Figures,
    /// The least size of shared memory and tmpfs files that are in no page table. Part of `memory`;
    /// their use through read and write is not seen.
    tmpfs_unseen: Option<Bytes>,
    /// Refaults since the window began. If such memory was reclaimed again, no other figure has it.
    came_back: Option<Bytes>,
    tracker: Tracker,
    /// For DAMON: the number of samples of each region; `region` is the size of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    looks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<Bytes>,
    /// For processes: the number that was measured, and of those that were not, or only in part.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes_left_out: Option<usize>,
    agings: u64,
    /// The number of groups and nodes that could not be aged at the end.
    not_aged: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// The time that the machine slept meanwhile, which does not count.
    asleep_seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeFigures>,
    groups: Vec<GroupFigures>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Figures {
    /// Anonymous and shared memory, whose use can be seen.
    memory: Bytes,
    page_cache: Bytes,
    idle: Vec<Idle>,
}

/// The memory that was unused for at least a time.
#[derive(Clone, Debug, Serialize)]
struct Idle {
    seconds: f64,
    #[serde(flatten)]
    bounds: Bounds,
    #[serde(skip)]
    time: Duration,
}

#[derive(Debug, Serialize)]
struct NodeFigures {
    node: u32,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct GroupFigures {
    group: String,
    #[serde(flatten)]
    figures: Figures,
}

impl Figures {
    fn new(times: &[Duration]) -> Self {
        let idle = times.iter().map(|&time| Idle { seconds: time.as_secs_f64(), bounds: Bounds::default(), time });
        Figures { idle: idle.collect(), ..Figures::default() }
    }

    fn add(&mut self, node: &Node) {
        self.memory += node.memory();
        self.page_cache += node.file;
        for idle in &mut self.idle {
            idle.bounds += node.idle(idle.time);
        }
    }

    /// Returns the memory that was unused for this time.
    fn idle(&self, time: Duration) -> Bounds {
        self.idle.iter().find(|idle| idle.time == time).map(|idle| idle.bounds).unwrap_or_default()
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    if let Some(time) = args.at {
        return remembered::print_at(root, args, time);
    }
    let kernel = Kernel::open(root)?;
    let path = kernel.group_path(args.group.as_deref().unwrap_or_else(|| Path::new("/")));
    let hierarchy = kernel.cgroup()?;
    let top = Group::open(hierarchy, path).map_err(|err| match err.is_gone() {
        true => no_group(path),
        false => err.into(),
    })?;
    let is_anew = args.window.is_some() || args.watch || args.tracker != By::Auto;
    if !is_anew && remembered::print_latest(&kernel, root, args, &top)? {
        return Ok(Exit::Done);
    }
    let tracker = choose_tracker(&kernel, root, args)?;
    cancel::catch_signals();
    let stop = Flag::default();
    let window = args.window.unwrap_or(WINDOW);
    let mut measurement = Measurement {
        kernel: &kernel,
        args,
        window,
        came_back: top.read_stat(&kernel, &mut Vec::new()).ok().and_then(|stat| refaulted(&kernel, &stat)),
        top,
        began: clock::read_monotonic(),
        asleep: clock::read_asleep(),
    };
    if std::io::stderr().is_terminal() {
        eprintln!("measuring {} for {}; ^C stops", measurement.name(), short(window));
    }
    if tracker != Tracker::LruGen {
        return measurement.measure_processes(root, tracker, &stop);
    }
    let mut observer = Observer::new(&kernel);
    observer.age_over_window(&mut Live, window, &stop, |observer| measurement.add_groups(observer))?;
    if stop.is_set() && observer.cost().agings == 0 {
        return Err(Exit::Partial.error("stopped before anything was measured"));
    }
    // MGLRU may have been switched off meanwhile.
    aging::require_mglru(&kernel)?;
    measurement.print(&observer)?;
    while args.watch && !stop.is_set() {
        observer.wait(window / 2, &stop);
        if stop.is_set() {
            return Ok(Exit::Done);
        }
        measurement.add_groups(&mut observer)?;
        observer.age_all(&mut Live, &stop)?;
        aging::require_mglru(&kernel)?;
        measurement.print(&observer)?;
    }
    Ok(if stop.is_set() { Exit::Partial } else { Exit::Done })
}

/// Returns the requested tracker, or the best available one. Fails if the requested one is missing.
fn choose_tracker(kernel: &Kernel, root: &Path, args: &Args) -> Result<Tracker> {
    let needs_generations = args.watch || args.per_node;
    let tracker = match args.tracker {
        By::Auto if !needs_generations => return tracker::choose(kernel, root, &mut Live),
        By::Auto | By::LruGen => Tracker::LruGen,
        By::Damon => Tracker::Damon,
        By::Smaps => Tracker::Smaps,
    };
    match tracker {
        Tracker::LruGen => aging::require_mglru(kernel)?,
        _ if needs_generations => {
            return Err(Exit::Usage.error("--watch and --per-node need MGLRU's generations: --tracker lru-gen"));
        }
        Tracker::Damon => match damon::state(kernel, root, &mut Live)? {
            Damon::Free => {}
            state => {
                let why = damon::refusal(Refusal::State(state));
                return Err(Exit::Unsupported.error(format!("--tracker damon: DAMON {why}")));
            }
        },
        Tracker::Smaps => {}
    }
    Ok(tracker)
}

/// One measurement of a group, with the groups below it.
struct Measurement<'a> {
    kernel: &'a Kernel,
    args: &'a Args,
    window: Duration,
    top: Group,
    began: Monotonic,
    asleep: Duration,
    came_back: Option<Bytes>,
}

/// Returns the refaults so far.
fn refaulted(kernel: &Kernel, stat: &MemoryStat) -> Option<Bytes> {
    stat.refaults_with_swap_ins().map(|pages| pages.bytes(kernel.page()))
}

impl Measurement<'_> {
    fn name(&self) -> String {
        if self.top.is_root() { "/".into() } else { printable(&self.top.path().to_string_lossy()) }
    }

    /// Adds all groups that exist now to the observer.
    fn add_groups(&mut self, observer: &mut Observer<'_>) -> Result<()> {
        // A new group of the same name is another group.
        let now = Group::open(self.kernel.cgroup()?, self.top.path());
        match now {
            Ok(now) if now.id() == self.top.id() => observer.add_tree(&now),
            Ok(_) => Err(Exit::Partial.error(format!("{} is gone", self.name()))),
            Err(err) if err.is_gone() => Err(Exit::Partial.error(format!("{} is gone", self.name()))),
            Err(err) => Err(err.into()),
        }
    }

    fn print(&self, observer: &Observer<'_>) -> Result<()> {
        let summary = self.summary_of_groups(observer);
        if self.args.json && self.args.watch {
            outln!("{}", serde_json::to_string(&summary)?);
        } else if self.args.json {
            outln!("{}", serde_json::to_string_pretty(&summary)?);
        } else {
            if self.args.watch && std::io::stdout().is_terminal() {
                // Cursor home, then clear to the end, which does not flicker.
                print!("\x1b[H\x1b[J");
            }
            outln!("{}", describe(&summary, self.window, self.args.per_node));
        }
        Ok(std::io::stdout().flush()?)
    }

    /// Measures processes, and prints the result.
    fn measure_processes(&self, root: &Path, tracker: Tracker, stop: &Flag) -> Result<Exit> {
        let cpu = clock::read_thread_cpu();
        let seen = match tracker {
            Tracker::Smaps => {
                let loaded = config::load_or_refuse(root, None)?;
                let rules = Rules::read(self.kernel, root, &loaded)?;
                smaps::measure(self.kernel, &rules, &mut Live, &self.top, self.window, stop)?
            }
            _ => {
                let host = Host { kernel: self.kernel, root };
                let mut watch = damon::Watch::start(host, &|| Box::new(Live), &self.top, self.window, |_| true)?;
                let seen = match watch.wait(self.window, stop)? {
                    true => watch.measure(self.kernel, &[self.window / 2, self.window])?,
                    false => None,
                };
                seen.ok_or_else(|| Exit::Partial.error(format!("{}: {}", self.name(), watch.end_reason())))?
            }
        };
        let cpu = clock::read_thread_cpu().saturating_sub(cpu) + seen.cpu;
        let summary = self.summary_of_processes(tracker, seen, cpu)?;
        if self.args.json {
            outln!("{}", serde_json::to_string_pretty(&summary)?);
        } else {
            outln!("{}", describe(&summary, self.window, false));
        }
        Ok(if stop.is_set() { Exit::Partial } else { Exit::Done })
    }

    fn summary_of_processes(&self, tracker: Tracker, seen: measurement::Measurement, cpu: Duration) -> Result<Summary> {
        let times: Vec<Duration> = match seen.groups.first() {
            Some(group) => group.idle.iter().map(|&(time, _)| time).collect(),
            None => vec![self.window],
        };
        let mut all = Figures::new(&times);
        let mut groups = Vec::new();
        for group in seen.groups {
            let mut figures = Figures { memory: group.memory, ..Figures::new(&times) };
            all.memory += group.memory;
            for ((of_group, of_all), (_, bounds)) in figures.idle.iter_mut().zip(&mut all.idle).zip(group.idle) {
                of_group.bounds = bounds;
                of_all.bounds += bounds;
            }
            groups.push(GroupFigures { group: format!("/{}", group.path.to_string_lossy()), figures });
        }
        let stat = self.top.read_stat(self.kernel, &mut Vec::new())?;
        all.page_cache = stat.page_cache().unwrap_or_default();
        Ok(Summary {
            looks: Some(seen.samples),
            region: seen.region,
            processes: Some(seen.processes),
            processes_left_out: Some(seen.left_out),
            ..self.summary(tracker, all, groups, &stat, cpu)
        })
    }

    /// Returns the ages that are shown: half the window, the window, twice the window and so on, up
    /// to the time since the start.
    fn shown_ages(&self, elapsed: Duration) -> Vec<Duration> {
        let longer = std::iter::successors(Some(self.window * 2), |time| time.checked_mul(2));
        let longer = longer.take_while(|&time| time <= elapsed);
        [self.window / 2, self.window].into_iter().chain(longer).collect()
    }

    fn summary_of_groups(&self, observer: &Observer<'_>) -> Summary {
        let times = self.shown_ages(clock::read_monotonic().since(self.began));
        let mut all = Figures::new(&times);
        let mut nodes: BTreeMap<u32, Figures> = BTreeMap::new();
        let mut groups = Vec::new();
        for group in observer.groups() {
            let mut of_group = Figures::new(&times);
            for node in group.nodes() {
                all.add(node);
                of_group.add(node);
                nodes.entry(node.node).or_insert_with(|| Figures::new(&times)).add(node);
            }
            if group.nodes().next().is_some() {
                let name = format!("/{}", group.path.to_string_lossy());
                groups.push(GroupFigures { group: name, figures: of_group });
            }
        }
        let cost = observer.cost();
        let stat = self.top.read_stat(self.kernel, &mut Vec::new()).unwrap_or_default();
        let mut summary = self.summary(Tracker::LruGen, all, groups, &stat, cost.cpu);
        (summary.agings, summary.not_aged) = (cost.agings, cost.missed);
        if self.args.per_node {
            summary.nodes = nodes.into_iter().map(|(node, figures)| NodeFigures { node, figures }).collect();
        }
        summary
    }

    /// Returns a summary with the fields that every tracker has; the others are empty.
    fn summary(
        &self,
        tracker: Tracker,
        all: Figures,
        mut groups: Vec<GroupFigures>,
        stat: &MemoryStat,
        cpu: Duration,
    ) -> Summary {
        let window = self.window;
        groups.sort_by_key(|group| (std::cmp::Reverse(group.figures.idle(window).least), group.group.clone()));
        Summary {
            group: self.name(),
            window_seconds: window.as_secs_f64(),
            figures: all,
            tmpfs_unseen: stat.shmem.zip(stat.file_mapped).map(|(shared, mapped)| shared - mapped),
            came_back: refaulted(self.kernel, stat).zip(self.came_back).map(|(now, before)| now - before),
            tracker,
            looks: None,
            region: None,
            processes: None,
            processes_left_out: None,
            agings: 0,
            not_aged: 0,
            seconds: clock::read_monotonic().since(self.began).as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            asleep_seconds: clock::read_asleep().saturating_sub(self.asleep).as_secs_f64(),
            nodes: Vec::new(),
            groups,
        }
    }
}

/// Returns the text: figures, bars, groups, and what the tracker does not see.
fn describe(summary: &Summary, window: Duration, per_node: bool) -> String {
    let mut text = summary_lines(&summary.group, &summary.figures, window, true);
    if per_node {
        write_nodes(&mut text, &summary.nodes, window);
    }
    write_groups(&mut text, &summary.groups, window);
    text.push('\n');
    if let Some(unseen) = summary.tmpfs_unseen.filter(|&unseen| unseen >= Bytes::mib(1)) {
        let _ = writeln!(
            text,
            "At least {unseen} of shared memory and tmpfs files are in no page table; their use through read and \
             write is not seen."
        );
    }
    if let Some(came_back) = summary.came_back.filter(|&bytes| bytes > Bytes::ZERO) {
        let _ = writeln!(text, "{came_back} refaulted meanwhile; if it was reclaimed again, it is used memory, too.");
    }
    if summary.not_aged > 0 {
        let _ = writeln!(
            text,
            "{} could not be aged; their figures are from the last aging.",
            counted(summary.not_aged, "group")
        );
    }
    if summary.asleep_seconds >= 1.0 {
        let asleep = short(Duration::from_secs_f64(summary.asleep_seconds));
        let _ = writeln!(text, "The machine slept for {asleep} meanwhile; this time does not count.");
    }
    let time = short(Duration::from_secs_f64(summary.seconds));
    let cpu = short(Duration::from_secs_f64(summary.cpu_seconds));
    let how = match (summary.processes, summary.looks.zip(summary.region)) {
        (None, _) => counted(summary.agings, "aging"),
        (Some(processes), Some((looks, region))) => {
            format!("{}, each {region} {}", counted(processes as u64, "process"), counted(looks, "time"))
        }
        (Some(processes), None) => counted(processes as u64, "process"),
    };
    if let Some(left_out @ 1..) = summary.processes_left_out {
        let _ =
            writeln!(text, "No figures of {}: ended meanwhile, or not readable.", counted(left_out as u64, "process"));
    }
    let tracker = summary.tracker;
    let _ = writeln!(text, "measured for {time} by {tracker}: {how}, CPU {cpu}");
    let _ = writeln!(text, "sees:         {}", tracker.sees());
    let _ = writeln!(text, "does not see: {}", tracker.does_not_see());
    let _ = write!(text, "disturbs:     {}", tracker.disturbs());
    text
}

/// Appends the figures and their bars. `known`: ages are known.
fn summary_lines(name: &str, all: &Figures, window: Duration, known: bool) -> String {
    let mut text = String::new();
    let cold = all.idle(window);
    let _ = match known {
        true => writeln!(
            text,
            "{name}: {} of {} were unused for {}{}\n",
            range_text(cold),
            all.memory,
            short(window),
            share_text(cold, all.memory).map(|share| format!(" ({share})")).unwrap_or_default(),
        ),
        false => writeln!(text, "{name}: {} in memory, ages not known\n", all.memory),
    };
    let whole = all.memory.max(all.page_cache);
    if let Some(first) = all.idle.first().filter(|_| known) {
        let used = Bounds { least: all.memory - first.bounds.most, most: all.memory - first.bounds.least };
        write_row(&mut text, &format!("used within {}", short(first.time)), used, all.memory, whole);
    }
    for idle in all.idle.iter().filter(|_| known) {
        write_row(&mut text, &format!("unused for {}", short(idle.time)), idle.bounds, all.memory, whole);
    }
    let cache = Bounds { least: all.page_cache, most: all.page_cache };
    write_row(&mut text, "page cache, age unknown", cache, Bytes::ZERO, whole);
    text
}

fn write_nodes(text: &mut String, nodes: &[NodeFigures], window: Duration) {
    write_table(text, "NODE", nodes.iter().map(|node| (node.node.to_string(), &node.figures)), window);
}

/// Appends the groups with the most unused memory.
fn write_groups(text: &mut String, groups: &[GroupFigures], window: Duration) {
    let with_memory = groups.iter().filter(|group| group.figures.memory.0 > 0);
    if with_memory.clone().nth(1).is_some() {
        let rows = with_memory.clone().take(ROWS).map(|group| (printable(&group.group), &group.figures));
        write_table(text, "GROUP", rows, window);
        let more = with_memory.count().saturating_sub(ROWS);
        if more > 0 {
            let _ = writeln!(text, "  and {more} more; --json has all");
        }
    }
}

fn counted(n: u64, what: &str) -> String {
    let end = match (n, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        _ => "s",
    };
    format!("{n} {what}{end}")
}

fn write_row(text: &mut String, name: &str, bounds: Bounds, memory: Bytes, whole: Bytes) {
    let share = share_text(bounds, memory).unwrap_or_default();
    let _ =
        writeln!(text, "{}", format!("  {name:24}{}  {:20}{share}", bar(bounds, whole), range_text(bounds)).trim_end());
}

fn write_table<'a>(
    text: &mut String,
    title: &str,
    rows: impl Iterator<Item = (String, &'a Figures)>,
    window: Duration,
) {
    let rows: Vec<_> = rows.collect();
    let width =
        rows.iter().map(|(name, _)| name.chars().count()).chain([title.len()]).max().unwrap_or_default().min(48);
    let _ = writeln!(
        text,
        "\n  {title:width$}  {:>10}  UNUSED FOR {:14}  {:>10}",
        "MEMORY",
        short(window).to_string(),
        "CACHE"
    );
    for (name, figures) in rows {
        let idle = figures.idle(window);
        let share = share_text(idle, figures.memory).unwrap_or_default();
        let _ = writeln!(
            text,
            "  {name:width$}  {:>10}  {:18}{share:>9}  {:>10}",
            figures.memory.to_string(),
            range_text(idle),
            figures.page_cache.to_string()
        );
    }
}

/// Returns one amount if both bounds have the same text, else both.
pub fn range_text(bounds: Bounds) -> String {
    let (least, most) = (bounds.least.to_string(), bounds.most.to_string());
    if least == most { least } else { format!("{least} to {most}") }
}

/// Returns the bounds as a share of `all`.
fn share_text(bounds: Bounds, of: Bytes) -> Option<String> {
    let whole_percent = |bytes: Bytes| Some((bytes.share_of(of)?.0 + 50) / 100);
    let (least, most) = (whole_percent(bounds.least)?, whole_percent(bounds.most)?);
    Some(if least == most { format!("{least} %") } else { format!("{least} to {most} %") })
}

/// Returns a bar with the least and the most as parts of the whole.
fn bar(bounds: Bounds, whole: Bytes) -> String {
    let length = |bytes: Bytes| {
        let cells = u128::from(bytes.0) * BAR as u128 / u128::from(whole.0.max(1));
        usize::try_from(cells).unwrap_or(BAR).min(BAR)
    };
    let (sure, may_be) = (length(bounds.least), length(bounds.most));
    format!("{}{}{}", "█".repeat(sure), "░".repeat(may_be - sure), " ".repeat(BAR - may_be))
}
