//! Charts as pictures, or as lines of text.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_base::exit::Exit;
use omr_base::{paths, when};
use omr_charts::{Charts, Now, Signs, Topic, Window, spark};
use omr_control::client::{OTHER_VERSION, ask};
use omr_control::protocol::Request;
use omr_control::status::Status;
use omr_kernel::{Kernel, clock};
use omr_machine::statements;

use super::{Args, file};
use crate::commands::terminal;

/// The times of a chart without --since.
pub const DAY: Duration = Duration::from_secs(86_400);

/// Draws a chart into files, or as text.
pub fn draw(root: &Path, args: &Args) -> Result<Exit> {
    let topic = args.chart.unwrap_or_default();
    let files = [("--svg", &args.svg), ("--png", &args.png)];
    let to_output = files.iter().filter(|(_, file)| file.as_deref() == Some(Path::new("-")));
    match to_output.collect::<Vec<_>>().as_slice() {
        [] => {}
        [(option, _)] if stdout().is_terminal() => {
            let text = format!("{option} -: standard output is a terminal, expected a file or a pipe");
            return Err(Exit::Usage.error(text));
        }
        [_] => {}
        _ => return Err(Exit::Usage.error("--svg - --png -: only one picture can be written to standard output")),
    }
    let to = args.until.unwrap_or_else(clock::read_wall);
    let from = args.since.unwrap_or_else(|| to.saturating_sub(DAY));
    if from >= to {
        let (from, to) = (when::text(from), when::text(to));
        return Err(Exit::Usage.error(format!("--since: {from} is not before the end of the chart, {to}")));
    }
    let group = match &args.group {
        Some(group) if group.to_string_lossy().contains('*') => {
            let text = format!("{}: a chart shows one group, expected a name without *", group.display());
            return Err(Exit::Usage.error(text));
        }
        // A copy of a history has no groups beside it.
        Some(group) => statements::group_name(match Kernel::open(root) {
            Ok(kernel) => kernel.group_path(group),
            Err(_) => group.strip_prefix("/").unwrap_or(group),
        }),
        None => String::new(),
    };
    let from = from.as_secs();
    let to = to.as_secs().max(from.saturating_add(1));
    let window = Window { from, to, columns: omr_picture::columns(to - from) };
    let charts = read(root, &group, window, args.until.is_none(), topic)?;
    if args.svg.is_none() && args.png.is_none() {
        return print(&charts, topic);
    }
    if charts.has_no_history {
        eprintln!("omr: {}", omr_charts::NO_HISTORY);
    }
    let drawing = omr_picture::draw(&charts, topic, args.until.is_none());
    if let Some(file) = &args.svg {
        write(file, drawing.svg().as_bytes())?;
    }
    if let Some(file) = &args.png {
        write(file, &drawing.png()?)?;
    }
    Ok(Exit::Done)
}

/// Reads the charts of a group. Figures of now come from the daemon, if the charts end now.
fn read(root: &Path, group: &str, window: Window, is_now: bool, topic: Topic) -> Result<Charts> {
    let config = omr_config::load_or_refuse(root, None)?;
    let status = is_now.then(|| {
        let value = ask(&paths::socket(root), &Request::Status)?;
        serde_json::from_value::<Status>(value).context(OTHER_VERSION)
    });
    let (status, missing) = match status.transpose() {
        Ok(status) => (status, None),
        Err(err) => (None, Some(format!("figures of now are missing: {err:#}"))),
    };
    let now = Now::new(status.as_ref(), group, &config.policy.slo);
    let mut charts = omr_charts::read(root, group, window, &now)?;
    charts.set_now(status.as_ref());
    // The ledger has all decisions that are recorded.
    missing.into_iter().filter(|_| topic != Topic::Decisions).for_each(|why| charts.add_note(topic, why));
    Ok(charts)
}

/// Prints a chart as text: a line for each series.
fn print(charts: &Charts, topic: Topic) -> Result<Exit> {
    let group = omr_charts::text::fit(&format!("/{}", charts.group), 200, '~');
    let [from, to] = [charts.window.from, charts.window.to].map(|time| when::text(Duration::from_secs(time)));
    outln!("{}  {group}  {from} to {to}", topic.question());
    let signs = Signs::detect(|name| std::env::var(name).ok());
    for line in spark::chart(charts, topic, signs, terminal::width()) {
        outln!("{line}");
    }
    for note in charts.notes(topic) {
        outln!("{}", omr_base::text::printable(&note));
    }
    Ok(Exit::Done)
}

/// The answers to three questions about the last day, in a line each.
pub fn summary(root: &Path) -> Result<Vec<String>> {
    let window = Window::ending(clock::read_wall(), DAY, omr_picture::columns(DAY.as_secs()));
    let charts = read(root, "", window, false, Topic::Taken)?;
    Ok(spark::summary(&charts, Signs::detect(|name| std::env::var(name).ok()), terminal::width()))
}

fn write(path: &Path, data: &[u8]) -> Result<()> {
    if path == Path::new("-") {
        return stdout().write_all(data).context("write to standard output");
    }
    file::put(path, |mut file| Ok(file.write_all(data)?))
}
