//! The terminal of `omr top`: the tree of groups, eight charts and explanations, now and in the past.
//!
//! * [`State::update`] turns keys, the mouse and answers into a new state, and says what to ask for.
//! * [`draw`] draws a state. Neither of them reads anything, so tests need no terminal.
//! * Two threads ask the daemon and read the records, so a daemon that hangs does not stop the keys.

#![deny(clippy::indexing_slicing)]

mod colours;
mod draw;
mod keys;
mod source;
mod state;
mod terminal;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_policy::Objective;

pub use colours::Colours;
pub use draw::draw;
pub use omr_charts::Signs;
pub use source::{Answer, Ask};
pub use state::{Input, State, View};
pub use terminal::in_terminal;

/// What to show at first.
#[derive(Clone, Debug)]
pub struct Options {
    /// The group; empty: the machine.
    pub group: String,
    /// The time, since 1970; `None`: now.
    pub at: Option<Duration>,
    /// The length of the charts.
    pub span: Duration,
    /// What the configuration demands of thresholds.
    pub objective: Objective,
}

/// Runs until the user quits, or a signal comes. The terminal is restored in any case.
pub fn run(root: &Path, options: &Options) -> Result<Exit> {
    terminal::run(root, options)
}

#[cfg(test)]
mod tests;
