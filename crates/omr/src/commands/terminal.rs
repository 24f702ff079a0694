//! The terminal of standard output.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// The width of lines where there is no terminal.
const WIDTH: usize = 80;

/// Returns true if colours may be used: on a terminal, and without `NO_COLOR`.
pub fn has_colours() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A bar on standard error for so many files, if it is a terminal. `what`: what they are.
pub fn progress(files: u64, what: &str) -> Result<ProgressBar> {
    let style =
        ProgressStyle::with_template(&format!("{{bar:40}} {{pos}} of {{len}} {what}, {{elapsed}} (still {{eta}})"))?;
    let bar = ProgressBar::new(files).with_style(style);
    bar.enable_steady_tick(Duration::from_secs(1));
    Ok(bar)
}

/// The number of columns and rows; `None`: standard output is no terminal, or it does not say.
pub fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 0).then_some((columns, rows))
}

/// The width of lines.
pub fn width() -> usize {
    size().map_or(WIDTH, |(columns, _)| columns)
}
