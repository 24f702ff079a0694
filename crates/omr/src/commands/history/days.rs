//! `omr history --groups --days`: what sweeps gained and cost, for each group and day.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::{paths, when};
use omr_history::Sample;
use omr_history::days::{DAY, Days, OfDay};
use omr_policy::short;
use omr_units::{Bytes, millis};
use serde::Serialize;

use super::{Args, wanted};

/// A line in JSON.
#[derive(Debug, Serialize)]
struct Line {
    day: String,
    group: String,
    #[serde(flatten)]
    figures: Figures,
}

/// The figures of a group and day, by the names of `omr status --json`.
#[derive(Debug, Serialize)]
pub struct Figures {
    held_out_average_bytes: Bytes,
    waited_ms: u64,
    refaulted_bytes: Bytes,
    /// A counter was not known for some time, so the cost may be higher.
    incomplete: bool,
}

impl Figures {
    /// Returns the figures in their units.
    pub fn new(OfDay { held, regret }: OfDay) -> Self {
        Figures {
            held_out_average_bytes: held,
            waited_ms: millis(regret.waited),
            refaulted_bytes: regret.refaults,
            incomplete: regret.is_incomplete,
        }
    }
}

/// Returns the figures of the day and the group of a sample; `None`: they are not recorded.
pub fn of_sample(days: &Days, sample: &Sample) -> Option<OfDay> {
    days.of(sample.time.as_secs() / DAY, &sample.group.to_string_lossy())
}

/// Runs the command.
pub fn print(root: &Path, args: &Args) -> Result<Exit> {
    let wanted = wanted(root, args.group.as_deref())?;
    let since = args.since.unwrap_or_default().as_secs() / DAY;
    let days = Days::read(&paths::state_dir(root))?;
    let mut last = VecDeque::new();
    for (day, group, of) in days.rows().filter(|(day, group, _)| *day >= since && wanted(Path::new(group))) {
        last.push_back(Line { day: day_text(day), group: format!("/{group}"), figures: Figures::new(of) });
        if last.len() > args.lines {
            last.pop_front();
        }
    }
    if args.json {
        for line in &last {
            outln!("{}", serde_json::to_string(line)?);
        }
    } else if !last.is_empty() {
        outln!("{}", table(&last));
    }
    Ok(Exit::Done)
}

/// Returns a day as people write it.
fn day_text(day: u64) -> String {
    let text = when::text(Duration::from_secs(day.saturating_mul(DAY)));
    text.split('T').next().unwrap_or_default().to_owned()
}

fn table(lines: &VecDeque<Line>) -> String {
    let width = lines.iter().map(|line| printable(&line.group).chars().count()).max().unwrap_or(0).clamp(10, 48);
    let head = format!("{:10}  {:width$}  {:>10}  {:>10}  WAITED", "DAY", "GROUP", "HELD OUT", "REFAULTS");
    let row = |line: &Line| {
        let Figures { held_out_average_bytes: held, waited_ms, refaulted_bytes: refaults, incomplete } = &line.figures;
        let least = if *incomplete { "at least " } else { "" };
        format!(
            "{:10}  {:width$}  {:>10}  {:>10}  {least}{}",
            line.day,
            printable(&line.group),
            held.to_string(),
            refaults.to_string(),
            short(Duration::from_millis(*waited_ms)),
        )
    };
    [head].into_iter().chain(lines.iter().map(row)).collect::<Vec<_>>().join("\n")
}
