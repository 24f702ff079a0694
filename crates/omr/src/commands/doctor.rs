//! `omr doctor`: the abilities of this kernel and machine, and how omr uses them.

mod checks;
mod facts;

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use checks::{Backend, Check, Works};
use facts::Facts;
use omr_base::exit::Exit;
use omr_base::paths;
use omr_kernel::Kernel;
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The output of `--json`. Names never change; new ones may be added.
#[derive(Debug, Serialize)]
struct Report<'a> {
    answer: String,
    can_reclaim: bool,
    backend: Option<Backend>,
    /// The running kernel was probed; false: all facts are from files below `root`.
    probed: bool,
    root: String,
    /// The next command to run; `None`: the files are those of another machine.
    next: Option<&'static str>,
    checks: Vec<Check>,
    facts: &'a Facts,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    // With files of another machine or a test, probes would test the wrong kernel.
    let live = root == Path::new("/");
    let facts = Facts::read(&kernel, root, live);
    let backend = checks::backend(&facts);
    let next = live.then(|| next(backend.as_ref().ok(), daemon(root)));
    let report = Report {
        answer: checks::answer(&facts, live),
        can_reclaim: backend.is_ok(),
        backend: backend.ok(),
        probed: live,
        root: root.display().to_string(),
        next,
        checks: checks::checks(&facts),
        facts: &facts,
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report).context("the report as JSON")? + "\n"
    } else {
        table(&report, super::terminal::has_colours())
    };
    std::io::stdout().write_all(text.as_bytes()).context("write to standard output")?;
    Ok(if report.can_reclaim { Exit::Done } else { Exit::Unsupported })
}

/// The daemon, as far as everybody can see it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Daemon {
    /// It listens.
    Runs,
    /// It does not, and systemd would start it.
    Unit,
    /// It does not, and there is no systemd.
    NoUnit,
}

fn daemon(root: &Path) -> Daemon {
    match UnixStream::connect(paths::socket(root)) {
        Ok(_) => Daemon::Runs,
        // Only members of the group omr may ask it.
        Err(err) if err.kind() == ErrorKind::PermissionDenied => Daemon::Runs,
        // The test of systemd's own sd_booted(3).
        Err(_) if root.join("run/systemd/system").is_dir() => Daemon::Unit,
        Err(_) => Daemon::NoUnit,
    }
}

/// Returns the next command to run.
fn next(backend: Option<&Backend>, daemon: Daemon) -> &'static str {
    match (backend, daemon) {
        (None, _) => "see the rows with \"no\": each says what adds the missing part",
        (Some(Backend::High), _) => "omr reclaim --backend memory.high --dry-run GROUP 100M",
        (Some(_), Daemon::Runs) => "omr top, or omr web --listen 127.0.0.1:9099 for a browser",
        (Some(_), Daemon::Unit) => "systemctl enable --now omr, then omr top",
        (Some(_), Daemon::NoUnit) => "omr daemon as root, then omr top",
    }
}

/// The width of the column of findings. After a longer finding the last column moves to the next
/// line.
const FOUND_WIDTH: usize = 42;

/// Prints the answer, then the rows: name, state, finding, and how omr uses it or how to get it. A
/// row with both gets a second line.
fn table(report: &Report<'_>, colour: bool) -> String {
    let rows: Vec<(&Check, String)> = report.checks.iter().map(|check| (check, plain(&check.found))).collect();
    let widest = |cells: &mut dyn Iterator<Item = usize>| cells.max().unwrap_or(0);
    let name_width = widest(&mut rows.iter().map(|(check, _)| check.name.len()));
    let works_width = widest(&mut rows.iter().map(|(check, _)| check.works.word().len()));
    let found_width = widest(&mut rows.iter().map(|(_, found)| found.chars().count()).filter(|&n| n <= FOUND_WIDTH));
    let indent = 2 + name_width + 2 + works_width + 2 + found_width + 2;

    let mut text = format!("{}\n\n", plain(&report.answer));
    let mut before = "";
    for (check, found) in &rows {
        let name = if before == check.name { "" } else { check.name };
        before = check.name;
        let (last, second) = match &check.fix {
            Some(fix) if check.works == Works::No => (fix.as_str(), None),
            fix => (check.role, fix.as_deref()),
        };
        let works = paint(check.works, &format!("{:works_width$}", check.works.word()), colour);
        let _ = write!(text, "  {name:name_width$}  {works}  ");
        let _ = if found.chars().count() > found_width {
            writeln!(text, "{found}\n{:indent$}{last}", "")
        } else {
            writeln!(text, "{found:found_width$}  {last}")
        };
        if let Some(second) = second {
            let _ = writeln!(text, "{:indent$}{second}", "");
        }
    }
    if let Some(next) = report.next {
        let _ = write!(text, "\nnext: {next}\n");
    }
    if !report.probed {
        let _ = write!(text, "\nRead from the files below {}; no running kernel was probed.\n", plain(&report.root));
    }
    text
}

/// Colours the state, and nothing else.
fn paint(works: Works, word: &str, colour: bool) -> String {
    let code = match works {
        _ if !colour => return word.into(),
        Works::Yes => "32",
        Works::Partly => "33",
        Works::No | Works::NotProbed => "2",
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

/// Escapes control characters, since file names are text from others.
fn plain(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_is_one_that_works_here() {
        let of = |backend: Option<Backend>, daemon| next(backend.as_ref(), daemon);
        assert!(of(Some(Backend::Reclaim), Daemon::Runs).starts_with("omr top, or omr web"));
        assert_eq!(of(Some(Backend::SwapReclaim), Daemon::Unit), "systemctl enable --now omr, then omr top");
        assert!(of(Some(Backend::Reclaim), Daemon::NoUnit).starts_with("omr daemon"));
        assert!(of(Some(Backend::High), Daemon::Runs).contains("memory.high"));
        assert!(!of(None, Daemon::Runs).contains("omr top"), "without a backend there is nothing to watch");
    }
}
