//! `omr ps`: processes, those that would be given up first at the top.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::text::printable;
use omr_config as config;
use omr_control::client::{OTHER_VERSION, ask};
use omr_control::protocol::Request;
use omr_control::status::ProcessView;
use omr_kernel::Kernel;
use omr_kernel::process::{Process, Status, read_command};
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::inventory::groups_with_statements;
use omr_machine::processes::{self, Finder, ProcessSample, Wanted};
use omr_machine::statements::StatementStore;
use omr_policy::age::Bounds;
use omr_policy::rank::{ProcessId, Score, Verdict};
use omr_policy::{Class, short};
use omr_units::{Bytes, millis};
use serde_json::{Value, json};

/// Shows processes with their memory, class, the reason of the class, and the last hint. Background
/// processes come first, in the order in which they would get hints.
///
/// Only the daemon knows how long a process is unused, its score and the last hint, and only for
/// processes that match a [[process]] rule or were set by "omr background". Without the daemon
/// these columns show "?".
///
/// COLD is the anonymous memory that was not used for two minutes at the daemon's last sample, as
/// lower and upper bound. The sample is of the whole group; the bounds allow for the other
/// processes in it. "-": not known.
///
/// FREED is the memory that the last hint (LAST) freed. BACK is the memory that has left swap since
/// then, because it was used again or given up.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Sort by this column
    #[arg(long, value_enum, default_value_t = Sort::Score)]
    sort: Sort,

    /// Show only processes of this class: foreground, background or protected
    #[arg(long, value_parser = parse_class, value_name = "CLASS")]
    class: Option<Class>,

    /// Show only processes in this control group and the groups below it
    #[arg(long, value_name = "GROUP")]
    group: Option<PathBuf>,

    /// Show only processes of the user with this number
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,

    /// Show only processes with this text in their command line or name
    #[arg(long, value_name = "TEXT")]
    command: Option<String>,

    /// Show only the first N
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Order in which they would get hints
    Score,
    /// Resident memory
    Resident,
    /// Anonymous memory
    Anon,
    /// Memory in swap
    Swapped,
    /// Time since last use, longest first
    Unused,
    /// Memory not used for two minutes, lower bound
    Cold,
    /// Process id
    Pid,
}

fn parse_class(text: &str) -> Result<Class, String> {
    config::parse_class(text).ok_or_else(|| "expected foreground, background or protected".into())
}

/// A line of the table.
struct Row {
    seen: ProcessSample,
    /// The effective user; `None`: unknown.
    uid: Option<u32>,
    /// The command line; `None`: unknown.
    command: Option<String>,
    /// The daemon's view; `None`: the daemon does not know the process.
    view: Option<ProcessView>,
}

/// The age from which the table calls memory cold; the JSON has all ages.
const COLD: Duration = Duration::from_secs(120);

/// The length to which a command line is cut: it can have megabytes.
const LONGEST_COMMAND: usize = 4096;

impl Row {
    fn read(kernel: &Kernel, seen: ProcessSample, view: Option<ProcessView>) -> Row {
        let id = seen.process.id;
        let process = Process::open(kernel, id.pid).ok().filter(|process| processes::id(process) == id);
        let dir = process.as_ref().map(Process::dir);
        let uid = dir.and_then(|dir| Status::read(dir).ok()?.uid);
        let command =
            dir.and_then(|dir| read_command(dir).ok()).map(|text| text.chars().take(LONGEST_COMMAND).collect());
        Row { seen, uid, command, view }
    }

    fn is_wanted(&self, args: &Args, group: Option<&Path>) -> bool {
        let has =
            |text: &str| self.seen.name.contains(text) || self.command.as_ref().is_some_and(|all| all.contains(text));
        args.class.is_none_or(|class| class == self.seen.process.class)
            && group.is_none_or(|group| self.seen.group.starts_with(group))
            && (args.uid.is_none() || args.uid == self.uid)
            && args.command.as_deref().is_none_or(has)
    }

    /// Returns the memory that was not used for [`COLD`]; `None`: unknown.
    fn cold(&self) -> Option<Bounds> {
        let cold = self.view.as_ref()?.cold.as_ref()?;
        let (_, bounds) = *cold.unused.iter().find(|(age, _)| *age == COLD)?;
        (bounds.least > Bytes::ZERO || bounds.most < cold.memory).then_some(bounds)
    }

    fn score(&self) -> Option<Score> {
        self.view.as_ref()?.score
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let asked = ask(&paths::socket(root), &Request::Processes);
    let (views, absent) = match asked {
        Ok(value) => {
            let views: Vec<ProcessView> = serde_json::from_value(value).context(OTHER_VERSION)?;
            (views, None)
        }
        Err(err) => (Vec::new(), Some(format!("{err:#}"))),
    };
    let mut views: HashMap<ProcessId, ProcessView> = views.into_iter().map(|view| (view.id, view)).collect();
    let (tree, seen) = read_processes(root, &kernel)?;
    let group = args.group.as_deref().map(|group| kernel.group_path(group));
    if let Some(group) = group.filter(|group| tree.find(group).is_none()) {
        return Err(no_group(group));
    }
    let mut rows: Vec<Row> = seen
        .into_iter()
        .map(|seen| {
            let view = views.remove(&seen.process.id);
            Row::read(&kernel, seen, view)
        })
        .filter(|row| row.is_wanted(args, group))
        .collect();
    rows.sort_by_cached_key(|row| (key(row, args.sort), row.seen.process.id));
    rows.truncate(args.lines.unwrap_or(usize::MAX));
    if args.json {
        let processes: Vec<Value> = rows.iter().map(to_json).collect();
        let value = json!({ "daemon": absent.is_none(), "processes": processes });
        outln!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(Exit::Done);
    }
    print(&rows, absent.is_none())?;
    if let Some(absent) = absent {
        eprintln!("omr: {absent}: columns that only the daemon knows show ?");
    }
    Ok(Exit::Done)
}

/// Reads all groups and processes with their classes by configuration and statements.
fn read_processes(root: &Path, kernel: &Kernel) -> Result<(Tree, Vec<ProcessSample>)> {
    let loaded = config::load_or_refuse(root, None)?;
    // A user who may not read the statements sees the rest.
    let statements = StatementStore::read(root, &kernel.read_boot_id().unwrap_or_default()).unwrap_or_else(|err| {
        eprintln!("omr: {err:#}; classes are shown without statements");
        StatementStore::default()
    });
    let tree = groups_with_statements(kernel, &loaded, false, &statements)?;
    let seen = Finder::new(&loaded.processes).find(kernel, &tree, &statements, Wanted::All)?;
    Ok((tree, seen))
}

/// Returns the sort key: the smallest comes first, unknown values come last.
fn key(row: &Row, sort: Sort) -> (Reverse<Option<u64>>, Reverse<Option<u64>>) {
    let bytes = |bytes: Option<Bytes>| Reverse(bytes.map(|bytes| bytes.0));
    let process = &row.seen.process;
    let score = row.score().map(|score| u64::try_from(score.total()).unwrap_or(0));
    let unused = row.score().map(|score| millis(score.unused));
    let first = match sort {
        Sort::Score => Reverse(score),
        Sort::Resident => bytes(row.seen.resident),
        Sort::Anon => bytes(process.anon),
        Sort::Swapped => bytes(process.swapped),
        Sort::Unused => Reverse(unused),
        Sort::Cold => bytes(row.cold().map(|bounds| bounds.least)),
        Sort::Pid => Reverse(Some(u64::from(u32::MAX - process.id.pid))),
    };
    (first, bytes(row.seen.resident))
}

fn print(rows: &[Row], has_daemon: bool) -> Result<()> {
    let bytes = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    let unknown = if has_daemon { "-" } else { "?" };
    outln!(
        "{:>7}  {:<11} {:>5} {:>9} {:>9} {:>9} {:>20} {:>7} {:<17} {:>9} {:>9}  {:<15} WHY",
        "PID",
        "CLASS",
        "SCORE",
        "RESIDENT",
        "ANON",
        "SWAPPED",
        "COLD",
        "UNUSED",
        "LAST",
        "FREED",
        "BACK",
        "NAME"
    );
    for row in rows {
        let seen = &row.seen;
        let last = row.view.as_ref().and_then(|view| view.last.as_ref());
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| unknown.to_owned());
        let why = match &row.view {
            Some(view) if view.hinting => format!("{}; getting a hint now", seen.origin),
            Some(view) => match &view.verdict {
                Verdict::Hint { kind, reason } => format!("{}; {} hint due: {reason}", seen.origin, kind.name()),
                Verdict::Hold { reason } => format!("{}; {reason}", seen.origin),
            },
            None => seen.origin.to_string(),
        };
        outln!(
            "{:>7}  {:<11} {:>5} {:>9} {:>9} {:>9} {:>20} {:>7} {:<17} {:>9} {:>9}  {:<15} {}",
            seen.process.id.pid,
            seen.process.class.name(),
            or_unknown(row.score().map(|score| score.total().to_string())),
            bytes(seen.resident),
            bytes(seen.process.anon),
            bytes(seen.process.swapped),
            or_unknown(row.cold().map(range)),
            or_unknown(row.score().map(|score| short(score.unused).to_string())),
            or_unknown(last.map(|last| format!("{} {} ago", last.step.name(), short(last.ago)))),
            or_unknown(last.map(|last| last.freed.to_string())),
            or_unknown(last.map(|last| last.came_back.to_string())),
            printable(&seen.name),
            printable(&why),
        );
    }
    Ok(())
}

fn range(bounds: Bounds) -> String {
    let (least, most) = (bounds.least.to_string(), bounds.most.to_string());
    if least == most { least } else { format!("{least}-{most}") }
}

fn to_json(row: &Row) -> Value {
    let seen = &row.seen;
    let view = row.view.as_ref();
    let last = view.and_then(|view| view.last.as_ref()).map(|last| {
        json!({
            "step": last.step,
            "ago_ms": millis(last.ago),
            "freed": last.freed,
            "came_back": last.came_back,
        })
    });
    let cold = view.and_then(|view| view.cold.as_ref()).map(|cold| {
        let idle = |(age, bounds): &(Duration, Bounds)| json!({ "seconds": age.as_secs(), "least": bounds.least, "most": bounds.most });
        json!({ "ago_ms": millis(cold.ago), "memory": cold.memory, "idle": cold.unused.iter().map(idle).collect::<Vec<_>>() })
    });
    let group: &PathBuf = &seen.group;
    json!({
        "pid": seen.process.id.pid,
        "start": seen.process.id.start,
        "name": seen.name,
        "uid": row.uid,
        "command": row.command,
        "group": group.to_string_lossy(),
        "class": seen.process.class,
        "asked": seen.process.stated,
        "why": seen.origin.to_string(),
        "resident": seen.resident,
        "anon": seen.process.anon,
        "swapped": seen.process.swapped,
        "oom_score_adj": seen.process.oom_score_adj,
        "score": row.score().map(|score| score.total()),
        "score_why": row.score().map(|score| score.to_string()),
        "unused_ms": row.score().map(|score| millis(score.unused)),
        "verdict": view.map(|view| &view.verdict),
        "reason": view.map(|view| view.verdict.reason().to_string()),
        "last": last,
        "cold": cold,
    })
}
