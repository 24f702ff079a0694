//! The command line. Each command's options live in its own module.

use std::path::PathBuf;

use clap::error::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    advise, config, daemon, doctor, follow, hibernate, hint, history, mount, prepare, ps, reclaim, run, say, status,
    warm, watch, wss,
};

/// Opportunistic memory reclaim: takes memory back while the machine is idle, from groups that
/// nobody is working with, and stops at once when somebody needs the machine.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Look for /proc, /sys and the configuration below this directory
    ///
    /// For tests and for looking at the files of another machine.
    #[arg(long, global = true, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,

    #[command(subcommand)]
    pub command: Command,
}

/// The command line, for those who describe it and for [`parse`].
pub fn command() -> clap::Command {
    take_negative(Cli::command())
}

/// Reads the command line.
pub fn parse() -> Result<Cli> {
    let mut matches = command().try_get_matches()?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|err| err.format(&mut command()))
}

/// `--timeout -5s` is a wrong time, and `-1` a wrong process, not options that there are not.
fn take_negative(command: clap::Command) -> clap::Command {
    let take = |arg: clap::Arg| match arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false if arg.get_action().takes_values() => arg.allow_hyphen_values(true),
        false => arg,
    };
    command.mut_args(take).mut_subcommands(take_negative)
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this kernel and machine can do, and what omr will use
    Doctor(doctor::Args),
    /// Reclaim memory once: from a group, or from all background groups
    Reclaim(reclaim::Args),
    /// Show how much memory is used, and how much was not used for how long
    Wss(wss::Args),
    /// Say with how much memory a group can live
    Advise(advise::Args),
    /// Page out, deactivate or bring back the memory of a process
    Hint(hint::Args),
    /// Reclaim now for what is to come: hibernation, a burst, a migration
    Prepare(prepare::Args),
    /// Bring memory back from swap before it is needed, foreground first
    Warm(warm::Args),
    /// Hibernate: prepare, go, and bring memory back afterwards
    Hibernate(hibernate::Args),
    /// Reclaim by itself, whenever the machine is idle
    Daemon(daemon::Args),
    /// Show what the daemon does, and what it has done today
    Status(status::StatusArgs),
    /// Say why the daemon does or does not act
    Explain(status::ExplainArgs),
    /// Show what sweeps have done, and what groups held and used
    History(history::Args),
    /// Tell the daemon to leave the machine alone
    Pause(status::PauseArgs),
    /// Tell the daemon to go on
    Resume,
    /// Show processes, those that would be given up first at the top
    Ps(ps::Args),
    /// Tell the daemon that somebody works with a process or group
    Foreground(say::Args),
    /// Tell the daemon that nobody works with a process or group
    Background(say::Args),
    /// Run a command in a group of a class
    Run(run::Args),
    /// Tell the daemon who is in the foreground, by what logind, GameMode or sway know
    Follow(follow::Args),
    /// Have the machine prepared when its cloud provider announces an interruption
    Watch(watch::Args),
    /// Offer memory.swap.reclaim, the file of the original patch, on a kernel that lacks it
    Mount(mount::Args),
    /// Check and show the configuration
    Config(config::Args),
}
