//! `omr status --watch`: the status each second, with rows of the last two hours.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{cancel, paths, when};
use omr_charts::text::fit;
use omr_charts::{NO_HISTORY, Now, Signs, Window, spark};
use omr_control::client::{OTHER_VERSION, ask};
use omr_control::protocol::Request;
use omr_control::status::Status;
use omr_kernel::clock;
use omr_policy::short;
use omr_policy::threshold::PromotionRate;
use omr_units::Monotonic;
use serde_json::{Value, json};

use crate::commands::terminal;

const SECOND: Duration = Duration::from_secs(1);
/// The time that the rows of signs show.
const PAST: Duration = Duration::from_secs(2 * 3600);
const COLUMNS: usize = 120;
/// A sample comes every ten minutes, and reading them costs more than a status.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// Runs until a signal comes. A daemon that is gone later may come back.
pub fn run(root: &Path, as_json: bool) -> Result<Exit> {
    cancel::catch_signals();
    let waiting = cancel::Flag::default();
    let is_screen = !as_json && stdout().is_terminal();
    let (mut past, mut is_first) = (Past::default(), true);
    while cancel::signal().is_none() {
        let began = clock::read_monotonic();
        let asked = ask(&paths::socket(root), &Request::Status).and_then(|value| {
            let status: Status = serde_json::from_value(value.clone()).context(OTHER_VERSION)?;
            Ok((value, status))
        });
        let asked = match asked {
            _ if cancel::signal().is_some() => break,
            Err(err) if is_first => return Err(err),
            asked => asked,
        };
        is_first = false;
        match asked {
            _ if is_screen => {
                let width = terminal::width();
                let rows = past.rows(root, began, width);
                draw(asked.map(|(_, status)| status).as_ref().map_err(|err| format!("{err:#}")), &rows)?;
            }
            Ok((value, _)) if as_json => outln!("{value}"),
            Ok((_, status)) => outln!("{}  {}", time(), line(&status)),
            Err(err) if as_json => outln!("{}", json!({ "error": Value::String(format!("{err:#}")) })),
            Err(err) => outln!("{}  {}", time(), printable(&format!("{err:#}"))),
        }
        waiting.sleep(SECOND.saturating_sub(clock::read_monotonic().since(began)));
    }
    if is_screen {
        outln!("");
    }
    Ok(Exit::Done)
}

fn time() -> String {
    when::text(clock::read_wall())
}

/// The status in one line, where standard output is no terminal.
fn line(status: &Status) -> String {
    let today = &status.today;
    format!(
        "{}; today: {} freed, {} came back, {} of waiting",
        super::first(status),
        today.freed,
        today.came_back,
        short(Duration::from_millis(today.waited_ms)),
    )
}

/// The rows of the last two hours.
#[derive(Default)]
struct Past {
    rows: Vec<String>,
    read: Option<Monotonic>,
    width: usize,
}

impl Past {
    /// Returns the rows. They are read again after a while, or for another width.
    fn rows(&mut self, root: &Path, now: Monotonic, width: usize) -> Vec<String> {
        let is_new = self.read.is_some_and(|read| now.since(read) < READ_AGAIN) && self.width == width;
        if !is_new {
            self.rows = rows(root, width);
            (self.read, self.width) = (Some(now), width);
        }
        self.rows.clone()
    }
}

fn rows(root: &Path, width: usize) -> Vec<String> {
    let window = Window::ending(clock::read_wall(), PAST, COLUMNS);
    // The rows do not show what is in force now.
    let now = Now { threshold: None, objective: PromotionRate::FAST, budget: None };
    match omr_charts::read(root, "", window, &now) {
        Ok(charts) if charts.has_no_history => vec![NO_HISTORY.to_owned()],
        Ok(charts) => spark::summary(&charts, signs(), width),
        Err(err) => vec![format!("no rows of the last two hours: {err:#}")],
    }
}

fn signs() -> Signs {
    Signs::detect(|name| std::env::var(name).ok())
}

/// Draws the screen in one write, over the one before: no flicker.
fn draw(status: Result<&Status, String>, rows: &[String]) -> Result<()> {
    let (width, height) = terminal::size().unwrap_or((80, 24));
    let (mut lines, colour) = match &status {
        Ok(status) => (super::lines(status), if status.sweep.is_some() { "32" } else { "" }),
        Err(why) => (vec![format!("{}  {why}", time())], "31"),
    };
    lines.extend([String::new(), format!("the last {}", short(PAST))]);
    lines.extend(rows.iter().cloned());
    if let Ok(status) = status {
        lines.push(String::new());
        lines.extend(super::groups(status));
    }
    let hidden = lines.len().saturating_sub(height);
    if hidden > 0 {
        lines.truncate(height.saturating_sub(1));
        lines.push(format!("  ({} more lines: omr status, omr top)", hidden + 1));
    }
    let mut screen = String::from("\x1b[H");
    for (number, line) in lines.iter().enumerate() {
        let line = fit(line, width, signs().cut());
        let is_coloured = number == 0 && !colour.is_empty() && terminal::has_colours();
        let line = if is_coloured { format!("\x1b[{colour}m{line}\x1b[0m") } else { line };
        // To the end of the line: the one before may have been longer.
        screen += if number == 0 { "" } else { "\r\n" };
        screen += &line;
        screen += "\x1b[K";
    }
    screen += "\x1b[J";
    let mut out = stdout().lock();
    out.write_all(screen.as_bytes()).and_then(|()| out.flush()).context("write to standard output")
}
