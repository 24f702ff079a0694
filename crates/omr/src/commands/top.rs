//! `omr top`: groups and charts in the terminal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::when;
use omr_kernel::Kernel;
use omr_machine::statements;
use omr_top::Options;

/// Shows groups and eight charts in the terminal, now or in the past: memory that was not used,
/// promotions, memory that was taken and came back, decisions, waiting, places of memory, costs and
/// the hibernation image. The key ? shows the keys. Times are UTC.
#[derive(Debug, clap::Args)]
#[command(long_about)]
pub struct Args {
    /// The control group to select at first; without one, the machine
    #[arg(value_name = "GROUP")]
    group: Option<PathBuf>,

    /// Begin at this time in the past, e.g. 2h (ago) or 2026-11-21T14:00:00Z
    #[arg(long, value_parser = when::parse, value_name = "TIME")]
    at: Option<Duration>,

    /// The length of the charts at first, e.g. 1h or 7d
    #[arg(long, value_parser = when::parse_length, value_name = "TIME", default_value = "2h")]
    window: Duration,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let config = omr_config::load_or_refuse(root, None)?;
    let group = match &args.group {
        Some(group) => statements::group_name(Kernel::open(root)?.group_path(group)),
        None => String::new(),
    };
    let options = Options { group, at: args.at, span: args.window, objective: config.policy.slo };
    omr_top::run(root, &options)
}
