//! `omr daemon`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_base::exit::Exit;
use omr_config as config;
use omr_daemon as daemon;

/// A profile, as the command line names it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Profile {
    /// Like the original patch's daemon: once every CPU was 95 % idle for 30 s, reclaim as much as
    /// possible
    Seed,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,

    /// Read this file instead of the configuration of the system
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Replace values of the configuration with those of a profile
    #[arg(long, value_name = "NAME", value_enum)]
    profile: Option<Profile>,

    /// With a profile: reclaim only from this control group, whatever the rules say
    #[arg(value_name = "GROUP", requires = "profile")]
    target: Option<PathBuf>,
}

/// Runs the daemon until it is told to end.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let args = daemon::Args {
        foreground: args.foreground,
        config: args.config.clone(),
        profile: args.profile.map(|Profile::Seed| config::Profile::Seed),
        target: args.target.clone(),
    };
    daemon::run(root, &args)
}
