//! One module for each command.

/// Prints a line on standard output. A failed write (full disk) is an error, not a panic.
macro_rules! outln {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        anyhow::Context::context(writeln!(std::io::stdout(), $($arg)*), "write to standard output")?
    }};
}

pub mod advise;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod fleet;
pub mod follow;
pub mod hibernate;
pub mod hint;
mod hinted;
pub mod history;
pub mod metrics;
pub mod mount;
mod options;
mod outcome;
pub mod prepare;
pub mod ps;
pub mod reclaim;
pub mod record;
pub mod run;
pub mod say;
pub mod status;
mod terminal;
pub mod top;
pub mod warm;
pub mod watch;
pub mod web;
pub mod whatif;
pub mod wss;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_policy::statement::Presence;

use crate::cli::{Cli, Command};

/// Runs the command.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Doctor(args) => doctor::run(&cli.root, &args),
        Command::Reclaim(args) => reclaim::run(&cli.root, &args),
        Command::Wss(args) => wss::run(&cli.root, &args),
        Command::Advise(args) => advise::run(&cli.root, &args),
        Command::Hint(args) => hint::run(&cli.root, &args),
        Command::Prepare(args) => prepare::run(&cli.root, &args),
        Command::Warm(args) => warm::run(&cli.root, &args),
        Command::Hibernate(args) => hibernate::run(&cli.root, &args),
        Command::Daemon(args) => daemon::run(&cli.root, &args),
        Command::Status(args) => status::status(&cli.root, &args),
        Command::Top(args) => top::run(&cli.root, &args),
        Command::Web(args) => web::run(&cli.root, &args),
        Command::Metrics(args) => metrics::run(&cli.root, &args),
        Command::Explain(args) => status::explain(&cli.root, &args),
        Command::History(args) => history::run(&cli.root, &args),
        Command::Record(args) => record::run(&cli.root, &args),
        Command::Whatif(args) => whatif::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Pause(args) => status::pause(&cli.root, &args),
        Command::Resume => status::resume(&cli.root),
        Command::Ps(args) => ps::run(&cli.root, &args),
        Command::Foreground(args) => say::run(&cli.root, Presence::Foreground, &args),
        Command::Background(args) => say::run(&cli.root, Presence::Background, &args),
        Command::Run(args) => run::run(&cli.root, &args),
        Command::Follow(args) => follow::run(&cli.root, &args),
        Command::Watch(args) => watch::run(&cli.root, &args),
        Command::Mount(args) => mount::run(&cli.root, &args),
        Command::Config(args) => config::run(&cli.root, &args),
    }
}
