//! `omr fleet`: what fleets need before and after a replay.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_fleet::synthesize::{Machine, View};
use omr_fleet::traces::Traces;
use omr_history::Sample;
use omr_history::days::Days;

use super::history::export::{self, Form};
use super::options::read_file;
use super::terminal::progress;

/// More machines are made by several commands with other seeds.
const MOST_MACHINES: u64 = 100_000;
const MOST_WEEKS: u64 = 52;

/// Makes recordings of machines that nobody has recorded, for tuning and tests.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write weeks of machines by a law that was fitted to published figures of fleets
    Synthesize(Synthesize),
}

#[derive(Debug, clap::Args)]
struct Synthesize {
    /// The number of the fleet: the same number gives the same files
    #[arg(long, value_name = "N")]
    seed: u64,

    /// The number of machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_MACHINES))]
    machines: u64,

    /// The number of weeks of each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MOST_WEEKS))]
    weeks: u64,

    /// The directory; a file for each week of each machine appears there: week=0/machine=0.parquet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Make every age known, which no kernel does: to compare a choice with the truth
    #[arg(long)]
    exact: bool,

    /// Short jobs and the time of the day of another fleet: a file of omr-fleet traces
    #[arg(long, value_name = "FILE.json")]
    traces: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<Exit> {
    match &args.command {
        Command::Synthesize(args) => synthesize(args),
    }
}

fn synthesize(args: &Synthesize) -> Result<Exit> {
    let view = if args.exact { View::All } else { View::Daemon };
    let traces = match &args.traces {
        Some(path) => read_file(path, Traces::parse)?,
        None => Traces::default(),
    };
    let progress = progress(args.machines * args.weeks, "machine-weeks")?;
    for number in 0..args.machines {
        let machine = Machine::new(args.seed, number, args.weeks, &traces);
        for week in 0..args.weeks {
            let dir = args.out.join(format!("week={week}"));
            write(&dir, number, machine.week(week, view))?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    outln!("wrote {} machine-weeks to {}", args.machines * args.weeks, args.out.display());
    Ok(Exit::Done)
}

fn write(dir: &Path, number: u64, samples: impl Iterator<Item = Sample>) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let form = Form { is_small: true, ..Form::default() };
    export::write(&dir.join(format!("machine={number}.parquet")), samples, &Days::default(), form)?;
    Ok(())
}
