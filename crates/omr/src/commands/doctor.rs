//! `omr doctor`.

use std::path::Path;

use anyhow::Result;

use crate::exit::Exit;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(_root: &Path, _args: &Args) -> Result<Exit> {
    Err(Exit::Unsupported.error("not built yet"))
}
