//! The numbers of a chart, in lines.

use std::time::Duration;

use omr_base::when;
use omr_charts::{Did, LANES, Table, Timeline};

use super::name;
use crate::state::State;
use omr_charts::text::{axis, fit, left, right};

/// The width of a value.
const VALUE: usize = 22;

/// The lines: a row for each series, and as many times as fit, up to the one that is shown.
pub fn lines(state: &State, width: u16) -> Vec<String> {
    let Some(charts) = &state.charts else { return vec!["reading the history ...".to_owned()] };
    let window = charts.window;
    let time = |time: u64| axis(time, window.seconds());
    let shown = charts.of(state.topic);
    let mut lines = Vec::new();
    let until = state.at.unwrap_or(u64::MAX);
    let days = [window.from, window.to].map(|time| when::text(Duration::from_secs(time)));
    let head = |question: &str| {
        format!("{question}  {}  {} to {}", fit(&name(&charts.group), 60, state.signs.cut()), days[0], days[1])
    };
    if shown.is_empty() {
        lines.push(head(charts.timeline.question));
        lines.extend(table(state, &of_timeline(&charts.timeline, until, time), usize::from(width)));
        lines.extend(charts.timeline.notes.iter().cloned());
    }
    for chart in shown {
        lines.push(head(chart.question));
        lines.extend(table(state, &chart.table(until, time), usize::from(width)));
        lines.extend(chart.facts.iter().map(ToString::to_string));
        lines.extend(chart.now.iter().chain(&chart.notes).cloned());
        lines.push(String::new());
    }
    lines.into_iter().map(|line| fit(&line, usize::from(width), state.signs.cut())).collect()
}

fn of_timeline(timeline: &Timeline, until: u64, time: impl Fn(u64) -> String) -> Table {
    let head = ["time".to_owned()].into_iter().chain(LANES.iter().map(|lane| lane.name().to_owned())).collect();
    let row = |column: usize| {
        let cells = timeline.lanes.iter().map(|cells| cells.get(column).copied().flatten());
        let is_any = cells.clone().flatten().any(|cell| cell.events > 0);
        let start = timeline.window.start(column);
        (is_any && start <= until).then(|| {
            let text = cells.map(|cell| match cell {
                None => "?".to_owned(),
                Some(cell) if cell.events == 0 => "-".to_owned(),
                Some(cell) => {
                    let did = match cell.did {
                        Did::Nothing => "nothing",
                        Did::Held => "held",
                        Did::Acted => "acted",
                        Did::Stopped => "stopped",
                    };
                    format!("{did} {}x {}", cell.events, cell.freed)
                }
            });
            [time(start)].into_iter().chain(text).collect()
        })
    };
    Table { head, rows: (0..timeline.window.columns).filter_map(row).collect() }
}

/// A line for each series: the last times that fit.
fn table(state: &State, table: &Table, width: usize) -> Vec<String> {
    let cut = state.signs.cut();
    if table.rows.is_empty() {
        return vec!["nothing is known of this time".to_owned()];
    }
    let names = table.head.iter().map(String::len).max().unwrap_or_default().min(width / 3);
    let fits = (width.saturating_sub(names) / (VALUE + 1)).max(1);
    let first = table.rows.len().saturating_sub(fits);
    let line = |(index, head): (usize, &String)| {
        let mut line = left(head, names, cut);
        for row in table.rows.iter().skip(first) {
            line.push(' ');
            line += &right(row.get(index).map_or("", String::as_str), VALUE, cut);
        }
        line
    };
    table.head.iter().enumerate().map(line).collect()
}
