//! The command line. Each command's options live in its own module.

use std::path::PathBuf;

use clap::error::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    advise, config, daemon, doctor, fleet, follow, hibernate, hint, history, metrics, mount, prepare, ps, reclaim,
    record, run, say, status, top, warm, watch, web, whatif, wss,
};

/// Opportunistic memory reclaim: reclaims memory of background groups while the machine is idle,
/// and stops as soon as a user works.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    /// Read /proc, /sys and the configuration below this directory
    ///
    /// For tests, and for files of another machine.
    #[arg(long, global = true, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,

    #[command(subcommand)]
    pub command: Command,
}

/// Returns the command line, for manual pages, completions and [`parse`].
pub fn command() -> clap::Command {
    allow_negative(Cli::command())
}

/// Parses the command line of this process.
pub fn parse() -> Result<Cli> {
    let mut matches = command().try_get_matches()?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|err| err.format(&mut command()))
}

/// Lets values begin with `-`, so that `--timeout -5s` is a wrong time and `-1` a wrong process,
/// instead of unknown options.
fn allow_negative(command: clap::Command) -> clap::Command {
    let allow = |arg: clap::Arg| match arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false if arg.get_action().takes_values() => arg.allow_hyphen_values(true),
        false => arg,
    };
    command.mut_args(allow).mut_subcommands(allow_negative)
}

/// The commands. `about` is the short help; the long one is the text of the options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the abilities of this kernel and machine that omr uses
    Doctor(doctor::Args),
    /// Reclaim memory once: from a group, or from all background groups
    Reclaim(reclaim::Args),
    #[command(about = "Show how much memory groups use, and how long the rest was not used")]
    Wss(wss::Args),
    #[command(about = "Advise memory limits for groups")]
    Advise(advise::Args),
    #[command(about = "Page out, deactivate or bring back the memory of a process")]
    Hint(hint::Args),
    /// Reclaim now, before hibernation, a burst or a migration
    Prepare(prepare::Args),
    #[command(about = "Bring memory back from swap before it is needed, foreground first")]
    Warm(warm::Args),
    #[command(about = "Hibernate: prepare, hibernate, and bring memory back afterwards")]
    Hibernate(hibernate::Args),
    /// Run the daemon, which reclaims while the machine is idle
    Daemon(daemon::Args),
    /// Show what the daemon does now and did today
    Status(status::StatusArgs),
    #[command(about = "Watch groups and charts in the terminal, now and in the past")]
    Top(top::Args),
    #[command(about = "Show groups and charts in the browser, now and in the past")]
    Web(web::Args),
    #[command(about = "Print metrics for Prometheus, or write them for node_exporter")]
    Metrics(metrics::Args),
    /// Explain why the daemon sweeps a group, or does not
    Explain(status::ExplainArgs),
    #[command(about = "Show past sweeps, or the memory that groups had and used")]
    History(history::Args),
    #[command(about = "Hand over what this machine has recorded")]
    Record(record::Args),
    #[command(about = "Replay recorded weeks of machines through other policies")]
    Whatif(whatif::Args),
    #[command(about = "Make recordings of machines that nobody has recorded")]
    Fleet(fleet::Args),
    /// Pause the daemon's sweeps
    Pause(status::PauseArgs),
    /// Resume the daemon's sweeps
    Resume,
    #[command(about = "Show processes, ordered by who would get hints first")]
    Ps(ps::Args),
    #[command(about = "Tell the daemon that a process or group is in use")]
    Foreground(say::Args),
    #[command(about = "Tell the daemon that a process or group is not in use")]
    Background(say::Args),
    #[command(about = "Run a command in a group of a class")]
    Run(run::Args),
    #[command(about = "Tell the daemon which groups are in the foreground, by logind, GameMode or sway")]
    Follow(follow::Args),
    #[command(about = "Prepare the machine when its cloud provider announces an interruption")]
    Watch(watch::Args),
    #[command(about = "Offer the original patch's file memory.swap.reclaim on a kernel that lacks it")]
    Mount(mount::Args),
    /// Check and show the configuration
    Config(config::Args),
}
