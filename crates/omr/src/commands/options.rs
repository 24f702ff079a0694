//! Options that several commands have.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_engine::hint::Ignore;

/// Reads a file that an option names. A mistake in the file is a mistake in the command line.
pub fn read_file<T>(path: &Path, parse: impl FnOnce(&Path, &[u8]) -> Result<T>) -> Result<T> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()));
    let read = text.and_then(|text| parse(path, &text));
    read.map_err(|err| Exit::Usage.error(format!("{err:#}")))
}

/// Protections that a command can ignore on request.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Safety {
    /// Also reclaim memory that memory.min and memory.low protect
    #[arg(long)]
    pub ignore_low: bool,

    /// Also reclaim from a foreground or protected target, and memory that a rule keeps
    #[arg(long)]
    pub ignore_class: bool,
}

impl From<Safety> for Ignore {
    fn from(safety: Safety) -> Self {
        Ignore { class: safety.ignore_class, low: safety.ignore_low }
    }
}

/// The options for a dry run and for JSON.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// Returns true if a progress bar is useful: on a terminal, and not in a dry run.
    pub fn shows_progress(self) -> bool {
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && !self.json && !self.dry_run
    }
}
