//! `omr history`: past sweeps, and the memory that groups had and used.

mod days;
pub mod export;
mod file;
pub mod picture;

use std::collections::VecDeque;
use std::io::{IsTerminal as _, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_charts::{NO_HISTORY, Topic, event};
use omr_config::{Glob, parts};
use omr_history as history;
use omr_history::days::Days;
use omr_history::ledger::{self, Entry};
use omr_history::{AGES, Idle, Machine, OnNode, Sample};
use omr_kernel::Kernel;
use omr_policy::age::Bounds;
use omr_policy::short;
use omr_units::{Bytes, millis};
use serde::Serialize;

use super::wss::range_text;

/// Shows past sweeps; with --groups, the memory that groups had and used; with --chart, a chart of
/// omr top as text or as a picture. Times are UTC.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("shown").args(["groups", "chart", "svg", "png"]).multiple(true))]
#[command(long_about)]
pub struct Args {
    /// With --groups: only this control group; * stands for a part of a name, ** for any depth. Of a
    /// chart: this group; without it, the machine
    #[arg(value_name = "GROUP", requires = "shown")]
    group: Option<PathBuf>,

    /// Show the memory that groups had and used
    #[arg(long)]
    groups: bool,

    /// With --groups: a line for each day instead, with the memory that sweeps held out on average,
    /// and what they cost: refaults, and the time that tasks waited
    #[arg(long, requires = "groups", conflicts_with_all = ["parquet", "per_node"])]
    days: bool,

    /// With --groups or of a chart: only samples since this time, e.g. 2h (ago) or
    /// 2026-11-21T14:00:00Z; a chart begins 24 h before its end without it
    #[arg(long, value_parser = when::parse, value_name = "TIME", requires = "shown")]
    since: Option<Duration>,

    /// With --groups or of a chart: only samples until this time; without it, until now
    #[arg(long, value_parser = when::parse, value_name = "TIME", requires = "shown")]
    until: Option<Duration>,

    /// Show this chart of omr top, as text or in the files of --svg and --png [default: unused]
    #[arg(long, value_name = "NAME", value_parser = topic(), conflicts_with_all = TABLES)]
    chart: Option<Topic>,

    /// Draw the chart as SVG into this file; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = TABLES)]
    svg: Option<PathBuf>,

    /// Draw the chart as PNG into this file; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = TABLES)]
    png: Option<PathBuf>,

    /// Show the last N lines
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    lines: usize,

    /// Print JSON lines
    #[arg(long)]
    json: bool,

    /// With --groups: write all samples to this file, for pandas, DuckDB and the like
    #[arg(long, value_name = "FILE", requires = "groups", conflicts_with_all = ["json", "lines"])]
    parquet: Option<PathBuf>,

    /// With --groups: also a line, or a row in Parquet, for each NUMA node, if there are several;
    /// JSON always has them
    #[arg(long, requires = "groups")]
    per_node: bool,
}

/// The options that a chart does not have.
const TABLES: [&str; 6] = ["groups", "days", "lines", "json", "parquet", "per_node"];

/// Parses the name of a chart. The error lists the names.
fn topic() -> impl TypedValueParser<Value = Topic> {
    PossibleValuesParser::new(Topic::ALL.map(Topic::name))
        .map(|name| Topic::ALL.into_iter().find(|topic| topic.name() == name).unwrap_or_default())
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    match args {
        Args { chart: Some(_), .. } | Args { svg: Some(_), .. } | Args { png: Some(_), .. } => {
            picture::draw(root, args)
        }
        Args { days: true, .. } => days::print(root, args),
        Args { groups: true, .. } => groups(root, args),
        _ => sweeps(root, args),
    }
}

fn sweeps(root: &Path, args: &Args) -> Result<Exit> {
    let (mut entries, mut is_any) = (VecDeque::new(), false);
    ledger::read(&paths::state_dir(root), |entry| {
        // No events: people see what was held out by day, and why nothing was done in omr top.
        if matches!(entry, Entry::HeldOut(_) | Entry::Holds(_)) && !args.json {
            return;
        }
        is_any = true;
        entries.push_back(entry);
        if entries.len() > args.lines {
            entries.pop_front();
        }
    })?;
    if args.json {
        for entry in &entries {
            outln!("{}", serde_json::to_string(entry)?);
        }
        return Ok(Exit::Done);
    }
    for entry in &entries {
        if let Some(text) = event::text(entry) {
            outln!("{}  {text}", when::text(Duration::from_secs(event::time(entry))));
        }
    }
    if !is_any {
        say_none(root, "no sweep is recorded yet; omr explain says why")?;
    } else if stdout().is_terminal() && args.lines > 0 {
        // Scripts get lines of events only.
        outln!("\nthe last {}", short(picture::DAY));
        for line in picture::summary(root)? {
            outln!("{line}");
        }
    }
    Ok(Exit::Done)
}

/// Says why there is nothing to show: there is no history at all, or it has nothing of the kind.
fn say_none(root: &Path, why: &str) -> Result<()> {
    eprintln!("omr: {}", if omr_charts::is_empty(root)? { NO_HISTORY } else { why });
    Ok(())
}

/// Prints samples of groups, a line for each group and time.
fn groups(root: &Path, args: &Args) -> Result<Exit> {
    let wanted = wanted(root, args.group.as_deref())?;
    let read_days = || Days::read(&paths::state_dir(root));
    let mut samples = history::read(
        &paths::history(root),
        args.since.unwrap_or_default()..args.until.unwrap_or(Duration::MAX),
        wanted,
    )?;
    if let Some(file) = &args.parquet {
        let form = export::Form { per_node: args.per_node, is_small: false };
        let rows = export::write(file, samples.by_ref(), &read_days()?, form)?;
        samples.skipped().iter().for_each(|skipped| eprintln!("omr: {skipped}"));
        outln!("{rows} rows in {}", file.display());
        return Ok(Exit::Done);
    }
    let mut last = VecDeque::new();
    for sample in samples.by_ref() {
        last.push_back(sample);
        if last.len() > args.lines {
            last.pop_front();
        }
    }
    for skipped in samples.skipped() {
        eprintln!("omr: {skipped}");
    }
    if args.json {
        let days = read_days()?;
        for sample in &last {
            outln!("{}", serde_json::to_string(&Line::new(sample, &days))?);
        }
    } else if !last.is_empty() {
        outln!("{}", table(&last, args.per_node));
    } else {
        say_none(root, "no samples of this time, or of groups with this name; omr history --groups has all")?;
    }
    Ok(Exit::Done)
}

/// Returns a filter for groups that match the pattern. A leading mount point or slash is ignored.
fn wanted(root: &Path, group: Option<&Path>) -> Result<impl Fn(&Path) -> bool + 'static> {
    let glob = match group {
        None => None,
        Some(group) => {
            let kernel = Kernel::open(root)?;
            let named = kernel.group_path(group).to_string_lossy().into_owned();
            let wrong = |why| Exit::Usage.error(format!("{}: {why}", printable(&group.to_string_lossy())));
            Some(if named.is_empty() { None } else { Some(Glob::path(&named).map_err(wrong)?) })
        }
    };
    Ok(move |path: &Path| match &glob {
        None => true,
        // The machine.
        Some(None) => path.as_os_str().is_empty(),
        Some(Some(glob)) => glob.matches(&parts(path)),
    })
}

/// A sample in JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    boot: &'a str,
    group: String,
    id: u64,
    current: Bytes,
    peak: Bytes,
    anon: Bytes,
    file: Bytes,
    shmem: Bytes,
    swap: Option<Bytes>,
    ages_ms_ago: Option<u64>,
    memory: Option<Bytes>,
    idle: Vec<IdleFor>,
    over_ms: Option<u64>,
    refaults_anon: Option<Bytes>,
    refaults_file: Option<Bytes>,
    swapped_in: Option<Bytes>,
    stalled_ms: Option<u64>,
    stalled_full_ms: Option<u64>,
    reclaimed: Option<Bytes>,
    promoted_over_ms: Option<u64>,
    /// Memory that was unused for a time and was used again.
    promoted: Vec<IdleFor>,
    /// The age from which on its memory could be taken.
    threshold_s: Option<u64>,
    /// Figures that only the machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<MachineLine>,
    /// The cost of all samples of this time together.
    agings: Option<u64>,
    cpu_ms: Option<u64>,
    /// What sweeps gained and cost on the day of the sample; `None`: not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    day: Option<days::Figures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeLine>,
}

/// The figures that only the machine has.
#[derive(Debug, Serialize)]
struct MachineLine {
    free: Option<Bytes>,
    zram_stored: Option<Bytes>,
    zram_occupied: Option<Bytes>,
    zswap_stored: Option<Bytes>,
    zswap_occupied: Option<Bytes>,
    swap_on_disk: Option<Bytes>,
    image: Option<Bytes>,
}

impl MachineLine {
    fn new(machine: &Machine) -> Self {
        MachineLine {
            free: machine.free,
            zram_stored: machine.zram.map(|of| of.stored),
            zram_occupied: machine.zram.map(|of| of.occupied),
            zswap_stored: machine.zswap.map(|of| of.stored),
            zswap_occupied: machine.zswap.map(|of| of.occupied),
            swap_on_disk: machine.disk,
            image: machine.image,
        }
    }
}

/// The figures of one node.
#[derive(Debug, Serialize)]
struct NodeLine {
    node: u32,
    anon: Bytes,
    file: Bytes,
    shmem: Bytes,
    ages_ms_ago: Option<u64>,
    memory: Option<Bytes>,
    idle: Vec<IdleFor>,
}

#[derive(Debug, Serialize)]
struct IdleFor {
    seconds: f64,
    #[serde(flatten)]
    bounds: Bounds,
}

impl<'a> Line<'a> {
    fn new(sample: &'a Sample, days: &Days) -> Self {
        let since = sample.since.as_ref();
        Line {
            time: when::text(sample.time),
            boot: &sample.boot,
            group: name(sample),
            id: sample.id.0,
            current: sample.current,
            peak: sample.peak,
            anon: sample.anon,
            file: sample.file,
            shmem: sample.shmem,
            swap: sample.swap,
            ages_ms_ago: sample.idle.as_ref().map(|idle| millis(idle.ago)),
            memory: sample.idle.as_ref().map(|idle| idle.memory),
            idle: idle_for(sample.idle.as_ref()),
            over_ms: since.map(|since| millis(since.over)),
            refaults_anon: since.and_then(|since| since.refaults_anon),
            refaults_file: since.and_then(|since| since.refaults_file),
            swapped_in: since.and_then(|since| since.swapped_in),
            stalled_ms: since.and_then(|since| since.stalled).map(millis),
            stalled_full_ms: since.and_then(|since| since.stalled_full).map(millis),
            reclaimed: since.and_then(|since| since.reclaimed),
            promoted_over_ms: sample.promotions.map(|promotions| millis(promotions.over)),
            promoted: sample.promotions.map(|of| ages(AGES.into_iter().zip(of.bounds))).unwrap_or_default(),
            threshold_s: sample.threshold.map(|age| age.as_secs()),
            machine: sample.machine.as_ref().map(MachineLine::new),
            agings: sample.cost.map(|cost| cost.agings),
            cpu_ms: sample.cost.map(|cost| millis(cost.cpu)),
            day: days::of_sample(days, sample).map(days::Figures::new),
            nodes: sample.nodes.iter().map(NodeLine::new).collect(),
        }
    }
}

impl NodeLine {
    fn new(OnNode { held, idle }: &OnNode) -> Self {
        NodeLine {
            node: held.node,
            anon: held.anon,
            file: held.file,
            shmem: held.shmem,
            ages_ms_ago: idle.as_ref().map(|idle| millis(idle.ago)),
            memory: idle.as_ref().map(|idle| idle.memory),
            idle: idle_for(idle.as_ref()),
        }
    }
}

fn idle_for(idle: Option<&Idle>) -> Vec<IdleFor> {
    idle.map(|idle| ages(idle.ages())).unwrap_or_default()
}

fn ages(ages: impl Iterator<Item = (Duration, Bounds)>) -> Vec<IdleFor> {
    ages.map(|(age, bounds)| IdleFor { seconds: age.as_secs_f64(), bounds }).collect()
}

fn name(sample: &Sample) -> String {
    format!("/{}", sample.group.to_string_lossy())
}

/// The age from which the table calls memory cold.
const COLD: Duration = Duration::from_secs(120);

fn table(samples: &VecDeque<Sample>, per_node: bool) -> String {
    let width = samples.iter().map(|sample| printable(&name(sample)).chars().count()).max().unwrap_or(0).clamp(10, 48);
    let mut lines = vec![format!(
        "{:20}  {:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>7}  UNUSED FOR {}",
        "TIME",
        "GROUP",
        "NOW",
        "PEAK",
        "CACHE",
        "SWAP",
        "BACK",
        "STALLED",
        short(COLD)
    )];
    for sample in samples {
        let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".into(), |bytes| bytes.to_string());
        let since = sample.since.as_ref();
        let back = since.and_then(|since| Some(since.refaults_anon? + since.refaults_file?));
        let stalled = since.and_then(|since| since.stalled).map_or_else(|| "?".into(), |time| short(time).to_string());
        let cold = sample.idle.as_ref().and_then(|idle| idle.of(COLD)).map_or_else(|| "?".into(), range_text);
        lines.push(format!(
            "{:20}  {:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {stalled:>7}  {cold}",
            when::text(sample.time),
            printable(&name(sample)),
            sample.current.to_string(),
            sample.peak.to_string(),
            (sample.file - sample.shmem).to_string(),
            size(sample.swap),
            size(back),
        ));
        for OnNode { held, idle } in sample.nodes.iter().filter(|_| per_node) {
            let cold = idle.as_ref().and_then(|idle| idle.of(COLD)).map_or_else(|| "?".into(), range_text);
            lines.push(format!(
                "{:20}  {:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>7}  {cold}",
                "",
                format!("  node {}", held.node),
                (held.anon + held.file).to_string(),
                "",
                (held.file - held.shmem).to_string(),
                "",
                "",
                "",
            ));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use omr_history::{Store, mend_checksums};
    use omr_kernel::numa;
    use omr_policy::age::Promotions;
    use omr_testkit::{FakeRoot, Release};
    use omr_units::GroupId;

    use super::*;

    fn sample(time: Duration, group: &str) -> Sample {
        let bounds = Bounds { least: Bytes::mib(1), most: Bytes::mib(2) };
        let idle =
            Some(Idle { ago: Duration::from_secs(9), memory: Bytes::mib(9), bounds: [Some(bounds); AGES.len()] });
        let held = numa::OnNode { node: 1, anon: Bytes::mib(4), file: Bytes::mib(3), shmem: Bytes::mib(1) };
        Sample {
            time,
            boot: "b".into(),
            group: Path::new(group).into(),
            id: GroupId(7),
            current: Bytes::mib(9),
            peak: Bytes::mib(10),
            anon: Bytes::mib(5),
            file: Bytes::mib(4),
            shmem: Bytes::mib(1),
            swap: Some(Bytes::mib(3)),
            idle: idle.clone(),
            since: Some(omr_history::Since {
                over: Duration::from_secs(600),
                refaults_anon: Some(Bytes::mib(1)),
                refaults_file: Some(Bytes::mib(1)),
                swapped_in: None,
                stalled: Some(Duration::from_millis(3)),
                stalled_full: None,
                reclaimed: Some(Bytes::mib(1)),
            }),
            promotions: Some(Promotions { over: Duration::from_secs(60), bounds: [bounds; AGES.len()] }),
            nodes: vec![OnNode { held, idle }],
            threshold: Some(Duration::from_secs(300)),
            machine: group.is_empty().then(omr_history::Machine::default),
            cost: Some(omr_history::Cost { agings: 5, cpu: Duration::from_micros(70) }),
        }
    }

    /// Figures at the ends of their ranges, behind right checksums, as of a program with a fault. The
    /// first byte of an input is the number of the file.
    #[test]
    fn no_figure_of_the_history_or_of_the_ledger_makes_what_shows_it_panic() {
        let root = FakeRoot::in_memory(Release::V6_12);
        let dir = paths::history(root.path());
        let mut store = Store::new(&dir, "b", Bytes::mib(64));
        for time in [1_795_000_000, 1_795_000_600].map(Duration::from_secs) {
            store.add(time, &["", "user.slice/app.scope"].map(|group| sample(time, group)));
        }
        let file = fs::read_dir(&dir).expect("files").next().expect("a file").expect("a file").path();
        let ledger = paths::state_dir(root.path()).join("ledger.jsonl");
        let lines = include_str!("../../../history/src/ledger/lines.jsonl");
        let whole = [(file.clone(), fs::read(&file).expect("bytes")), (ledger, lines.as_bytes().to_vec())];
        for (path, bytes) in &whole {
            fs::write(path, bytes).expect("written");
        }
        let inputs: Vec<Vec<u8>> =
            (0u8..).zip(&whole).map(|(at, (_, bytes))| [&[at], bytes.as_slice()].concat()).collect();
        let shown = Cell::new(0);
        omr_testkit::fuzz::feed(&inputs, |input| {
            let Some((which, bytes)) = input.split_first() else { return };
            let mut bytes = bytes.to_vec();
            let (path, before) = &whole[usize::from(*which) % whole.len()];
            if *path == file {
                mend_checksums(&mut bytes);
            }
            fs::write(path, bytes).expect("written");
            let samples = || history::read(&dir, Duration::ZERO..Duration::MAX, |_| true).expect("a history");
            let days = Days::read(&paths::state_dir(root.path())).expect("the ledger");
            let all: VecDeque<Sample> = samples().collect();
            shown.set(shown.get() + all.len());
            for sample in &all {
                serde_json::to_string(&Line::new(sample, &days)).expect("JSON");
            }
            assert!(table(&all, true).lines().count() > all.len());
            export::write(
                &root.resolve("out.parquet"),
                samples(),
                &days,
                export::Form { per_node: true, is_small: true },
            )
            .expect("a file of Parquet");
            for (_, _, of) in days.rows() {
                serde_json::to_string(&days::Figures::new(of)).expect("JSON");
            }
            fs::write(path, before).expect("written");
        });
        assert!(shown.get() >= 8, "the control: {} samples", shown.get());
    }
}
