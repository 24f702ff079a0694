//! A user who switches between applications, more often to popular ones, and waits until each can
//! be used.
//!
//! Everything happens inside the guest, because questions from the host would be a part of the
//! load.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::app::{answer, ask, make_file};
use crate::burst::events;
use crate::clock;
use crate::pattern::mix;
use crate::place::directory;

/// Groups of the applications: `apps/0`, `apps/1`, ...
const GROUP: &str = "apps";
const MIB: u64 = 1 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of applications
    #[arg(long, default_value_t = 12)]
    apps: u64,
    /// Number of switches between them, including the first start of each
    #[arg(long, default_value_t = 60)]
    switches: u64,
    /// Seed of the user's choices and of the applications
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time that the user stays in an application
    #[arg(long, value_parser = clock::parse_span, default_value = "4s")]
    stay: Duration,
    /// Heap of the smallest application in MiB
    #[arg(long, default_value_t = 40)]
    least: u64,
    /// Heap of the largest application in MiB
    #[arg(long, default_value_t = 200)]
    most: u64,
    /// Directory for the applications' files
    #[arg(long, default_value = "/data")]
    files: PathBuf,
    /// Size of each file in MiB
    #[arg(long, default_value_t = 8)]
    file: u64,
    /// CPU time to start an application that was killed; first starts cost nothing, because they
    /// are not compared
    #[arg(long, value_parser = clock::parse_span, default_value = "0ms")]
    start: Duration,
    /// Share of each page of the heaps that is zero
    #[arg(long, default_value_t = 50, value_name = "PERCENT")]
    compressible: u8,
    /// Socket of omr's daemon; the daemon is told which application is in the foreground, as by a
    /// compositor
    #[arg(long)]
    tell: Option<PathBuf>,
}

/// One switch to an application.
struct Switch {
    app: u64,
    kind: Kind,
    seconds: f64,
    errors: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The application was started for the first time.
    First,
    /// The application was still running.
    Hot,
    /// The application had been killed, and was started again.
    Cold,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::First => "first",
            Kind::Hot => "hot",
            Kind::Cold => "cold",
        }
    }
}

/// Prints one line at the end: every switch, and the kernel's counters over this time.
pub(crate) fn run(args: &Args) -> Result<()> {
    // Like systemd's DefaultMemoryAccounting= for applications.
    let all = directory(Path::new(GROUP));
    fs::create_dir_all(&all)?;
    fs::write(all.join("cgroup.subtree_control"), "+memory").context("memory of each application's group")?;
    for app in 0..args.apps {
        make_file(&file(args, app), args.file * MIB, app)?;
        // A session manager makes the group before the application runs. A statement about the
        // group stays when the application is killed.
        fs::create_dir_all(directory(&group(app)))?;
    }
    println!("{}", json!({"ready": true}));
    let before = (events()?, stalls()?, clock::monotonic());
    let mut apps: Vec<Option<App>> = (0..args.apps).map(|_| None).collect();
    let (mut started, mut switches, mut current) = (vec![false; apps.len()], Vec::new(), None);
    let mut kills = 0;
    for step in 0..args.switches {
        let app = choose(args, step, current);
        let place = usize::try_from(app)?;
        let began = clock::monotonic();
        let told = tell(args, current, app)?;
        let used = match &mut apps[place] {
            Some(running) => running.use_once()?,
            None => None,
        };
        let (kind, errors) = match used {
            Some(errors) => (Kind::Hot, errors),
            None => {
                let kind = if started[place] { Kind::Cold } else { Kind::First };
                kills += u64::from(kind == Kind::Cold);
                let cost = if kind == Kind::Cold { args.start } else { Duration::ZERO };
                let (running, errors) = App::start(args, app, cost, &mut kills)?;
                (apps[place], started[place]) = (Some(running), true);
                (kind, errors)
            }
        };
        let seconds = (clock::monotonic() - began) as f64 / 1e9;
        told.into_iter().try_for_each(heard)?;
        switches.push(Switch { app, kind, seconds, errors });
        current = Some(app);
        clock::sleep(args.stay);
    }
    let seconds = (clock::monotonic() - before.2) as f64 / 1e9;
    let after = (events()?, stalls()?);
    // An application notices only at its next use that it has lost a helper.
    for app in apps.iter_mut().flatten() {
        kills += u64::from(app.use_once()?.is_none());
    }
    let counts: serde_json::Map<String, Value> =
        after.0.iter().map(|(&name, count)| (name.to_owned(), (count - before.0[name]).into())).collect();
    let switches: Vec<Value> = switches
        .iter()
        .map(|switch| {
            json!({"app": switch.app, "kind": switch.kind.name(), "seconds": switch.seconds, "errors": switch.errors})
        })
        .collect();
    println!(
        "{}",
        json!({
            "switches": switches, "kills": kills, "events": counts, "seconds": seconds,
            "stalled_s": (after.1.0 - before.1.0, after.1.1 - before.1.1),
        })
    );
    Ok(())
}

/// The application that the user turns to: each once at the start, then another one than now, by
/// Zipf's law.
fn choose(args: &Args, step: u64, current: Option<u64>) -> u64 {
    if step < args.apps {
        return step;
    }
    let weight = |app: u64| if Some(app) == current { 0.0 } else { 1.0 / (app + 1) as f64 };
    let sum: f64 = (0..args.apps).map(weight).sum();
    let mut left = mix(args.seed.wrapping_mul(1 << 32) + step) as f64 / u64::MAX as f64 * sum;
    let found = (0..args.apps).find(|&app| {
        left -= weight(app);
        left < 0.0
    });
    // `left` may stay above 0 by rounding.
    found.unwrap_or_else(|| u64::from(current == Some(0)))
}

/// Heap of an application, in MiB. Heaps are spread evenly over their range, in an order given by
/// the seed.
fn heap(args: &Args, app: u64) -> u64 {
    let mut order: Vec<u64> = (0..args.apps).collect();
    order.sort_by_key(|&app| mix(args.seed.wrapping_mul(7919) + app));
    let place = order.iter().position(|&other| other == app).unwrap_or(0) as u64;
    args.least + (args.most - args.least) * place / (args.apps - 1).max(1)
}

/// The path of an application's group, below the mount.
fn group(app: u64) -> PathBuf {
    Path::new(GROUP).join(app.to_string())
}

fn file(args: &Args, app: u64) -> PathBuf {
    args.files.join(format!("app-{app}"))
}

struct App {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl App {
    /// Starts an application, and returns when it can be used, with the number of wrong words. Each
    /// attempt in which the application was killed before adds 1 to `kills`.
    fn start(args: &Args, app: u64, cost: Duration, kills: &mut u64) -> Result<(Self, u64)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("in").arg(group(app)).arg("--").arg(std::env::current_exe()?);
        command.args(["app", &format!("{}M", heap(args, app)), "--seed", &(args.seed * 1000 + app).to_string()]);
        command.args(["--start", &format!("{}ms", cost.as_millis()), "--compressible", &args.compressible.to_string()]);
        command.arg("--file").arg(file(args, app));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("an application")?;
        let output = process.stdout.take().context("an application's output")?;
        let mut running = App { process, output: BufReader::new(output) };
        match answer(&mut running.output, "ready")? {
            Some(line) => Ok((running, line["errors"].as_u64().unwrap_or(u64::MAX))),
            // The application was killed while it started: the user tries again.
            None => {
                running.process.wait()?;
                *kills += 1;
                App::start(args, app, cost, kills)
            }
        }
    }

    /// Number of wrong words. `None`: the application does not run any more.
    fn use_once(&mut self) -> Result<Option<u64>> {
        let Some(input) = self.process.stdin.as_mut() else { return Ok(None) };
        let line = match ask(input) {
            Ok(()) => answer(&mut self.output, "used")?,
            Err(_) => None,
        };
        if line.is_none() {
            self.process.wait()?;
        }
        Ok(line.map(|line| line["errors"].as_u64().unwrap_or(u64::MAX)))
    }
}

/// Tells omr which application is now in the foreground, and which one has left it. Like a
/// compositor, it does not wait for the answers.
fn tell(args: &Args, before: Option<u64>, now: u64) -> Result<Vec<UnixStream>> {
    let Some(socket) = &args.tell else { return Ok(Vec::new()) };
    let words = [("foreground", now)].into_iter().chain(before.map(|app| ("background", app)));
    words.map(|(word, app)| say(socket, word, app).with_context(|| socket.display().to_string())).collect()
}

fn say(socket: &Path, word: &str, app: u64) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    writeln!(stream, "{}", json!({"do": "say", "word": word, "of": {"group": group(app)}}))?;
    Ok(stream)
}

fn heard(stream: UnixStream) -> Result<()> {
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    anyhow::ensure!(reply.starts_with(r#"{"ok""#), "{reply}");
    Ok(())
}

/// Seconds since boot in which some task waited for memory, and in which all tasks did.
fn stalls() -> Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/pressure/memory").context("/proc/pressure/memory")?;
    let total = |kind: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        Some(line.rsplit_once("total=")?.1.parse::<f64>().ok()? / 1e6)
    };
    Ok((total("some").context("no some")?, total("full").context("no full")?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(seed: &str) -> Args {
        Line::parse_from(["user", "--seed", seed]).args
    }

    #[test]
    fn the_same_seed_makes_the_same_choices_and_never_the_same_twice_in_a_row() {
        let chosen = |seed: &str| {
            let mut current = None;
            let steps = 0..1000;
            let chosen: Vec<u64> = steps
                .map(|step| {
                    let app = choose(&args(seed), step, current);
                    assert_ne!(Some(app), current);
                    current = Some(app);
                    app
                })
                .collect();
            chosen
        };
        assert_eq!(chosen("1"), chosen("1"));
        assert_ne!(chosen("1"), chosen("2"));
        let mut counts = BTreeMap::<u64, u32>::new();
        chosen("3").into_iter().for_each(|app| *counts.entry(app).or_default() += 1);
        assert_eq!(counts.len(), 12);
        assert!(counts[&0] > 3 * counts[&6] && counts[&0] > 3 * counts[&11], "{counts:?}");
    }

    #[test]
    fn heaps_are_spread_over_their_range() {
        let mut heaps: Vec<u64> = (0..12).map(|app| heap(&args("5"), app)).collect();
        assert!(!heaps.is_sorted());
        heaps.sort_unstable();
        assert_eq!((heaps[0], heaps[11]), (40, 200));
        assert!(heaps.windows(2).all(|two| two[1] - two[0] >= 14), "{heaps:?}");
    }
}
