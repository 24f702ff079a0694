//! Options that several commands have.

use omr_engine::hint::Ignore;

/// Protections that a command can be told to ignore.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Safety {
    /// Also take what memory.min and memory.low protect
    #[arg(long)]
    pub ignore_low: bool,

    /// Also take from a foreground or protected group, and what a rule keeps, when it is the target
    #[arg(long)]
    pub ignore_class: bool,
}

impl From<Safety> for Ignore {
    fn from(safety: Safety) -> Self {
        Ignore { class: safety.ignore_class, low: safety.ignore_low }
    }
}

/// Whether a command acts, and how it prints what it did.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// True if a progress bar is of use: somebody watches, and something is done.
    pub fn shows_progress(self) -> bool {
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && !self.json && !self.dry_run
    }
}
