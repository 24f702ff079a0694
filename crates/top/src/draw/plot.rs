//! Plots: heatmap, bars, stacks and lanes, drawn cell by cell.

use omr_charts::signs::{STEPS, pieces};
use omr_charts::text::right;
use omr_charts::{Chart, Did, LANES, Range, Series, Shape, Timeline};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::areas::LABELS;
use super::{put, set};
use crate::colours::Colours;
use crate::state::State;

/// The column of a chart at a cell of the plot.
fn column(chart_columns: usize, plot: Rect, x: u16) -> usize {
    usize::from(x - plot.x) * chart_columns / usize::from(plot.width.max(1))
}

/// The cell of the plot at a column of a chart.
pub fn cell(chart_columns: usize, plot: Rect, of: usize) -> u16 {
    let x = of * usize::from(plot.width) / chart_columns.max(1);
    plot.x + u16::try_from(x).unwrap_or(u16::MAX).min(plot.width.saturating_sub(1))
}

fn at(series: &Series, column: usize) -> Option<Range> {
    series.values.get(column).copied().flatten()
}

/// Writes a label left of the plot.
fn put_label(state: &State, buffer: &mut Buffer, plot: Rect, y: u16, text: &str) {
    // The title has the unit.
    let text = right(text.trim_end_matches("/min"), usize::from(LABELS) - 1, state.signs.cut());
    put(buffer, plot.x - LABELS, y, &text, state.colours.dim());
}

/// Draws a heatmap: the longest age at the top. With colours, a cell has two rows.
pub fn heat(state: &State, chart: &Chart, plot: Rect, buffer: &mut Buffer) {
    let has_colours = state.colours != Colours::None;
    let halves = has_colours && state.signs == crate::Signs::Blocks;
    let room = usize::from(plot.height) * if halves { 2 } else { 1 };
    let ages = chart.series.len();
    if ages == 0 || room == 0 {
        return;
    }
    let largest = chart.largest();
    // Each age has as many rows as the others. Where there is no room for all, some are left out.
    let each = room / ages;
    let first = if each == 0 { 0 } else { room - each * ages };
    // The age of a row, counted from the top; `None`: the row is left free.
    let age = |row: usize| match each {
        0 => Some((ages - 1).saturating_sub(row * ages / room)),
        each => Some((ages - 1).saturating_sub(row.checked_sub(first)? / each)),
    };
    let step = |row: usize, column: usize| {
        let Some(age) = age(row) else { return Heat::Free };
        match chart.series.get(age).and_then(|series| at(series, column)) {
            Some(range) => Heat::Step(pieces(range.least, largest, STEPS)),
            None => Heat::Unknown,
        }
    };
    let mut named = None;
    for (line, y) in (plot.top()..plot.bottom()).enumerate() {
        for x in plot.left()..plot.right() {
            let column = column(chart.window.columns, plot, x);
            let (sign, style) = match halves {
                true => two_rows(state, step(2 * line, column), step(2 * line + 1, column)),
                false => one_row(state, step(line, column)),
            };
            set(buffer, x, y, sign, style);
        }
        // Of two rows the lower one is never free.
        let of = if halves { age(2 * line).or_else(|| age(2 * line + 1)) } else { age(line) };
        if of != named {
            named = of;
            of.and_then(|of| chart.series.get(of))
                .into_iter()
                .for_each(|series| put_label(state, buffer, plot, y, &series.name));
        }
    }
    // The line of a threshold is at the shortest age that is as old.
    let is_old = |series: &Series, threshold: u64| matches!(series.shape, Shape::Age(age) if age >= threshold);
    let line = |threshold: u64| {
        let index = chart.series.iter().position(|series| is_old(series, threshold))?;
        let row = (0..room).rev().find(|row| age(*row).is_some_and(|age| age >= index)).unwrap_or_default();
        Some(plot.y + u16::try_from(if halves { row / 2 } else { row }).unwrap_or_default())
    };
    for x in plot.left()..plot.right() {
        let threshold = chart.thresholds.get(column(chart.window.columns, plot, x)).copied().flatten();
        if let Some(y) = threshold.and_then(line) {
            set(buffer, x, y, state.signs.threshold(), state.colours.threshold());
        }
    }
    if let Some(y) = chart.threshold.filter(|_| state.at.is_none()).and_then(line) {
        let mark = if state.signs == crate::Signs::Blocks { '◄' } else { '<' };
        set(buffer, plot.right(), y, mark, state.colours.past());
        set(buffer, plot.x - 1, y, state.signs.line(), state.colours.past());
    }
}

/// A row of a heatmap in a column.
#[derive(Clone, Copy)]
enum Heat {
    /// There is no age for the row.
    Free,
    /// Not known.
    Unknown,
    /// A step of the scale.
    Step(u64),
}

/// A cell with two rows. What is not known is hatched, over the colour of the other row.
fn two_rows(state: &State, upper: Heat, lower: Heat) -> (char, Style) {
    let heat = |step| state.colours.heat(step);
    let (hatch, dim) = (state.signs.unknown(), state.colours.dim());
    match (upper, lower) {
        (Heat::Step(upper), Heat::Step(lower)) => ('▀', Style::new().fg(heat(upper)).bg(heat(lower))),
        (Heat::Free, Heat::Step(step)) => ('▄', Style::new().fg(heat(step))),
        (Heat::Step(step), Heat::Free) => ('▀', Style::new().fg(heat(step))),
        (Heat::Unknown, Heat::Step(step)) | (Heat::Step(step), Heat::Unknown) => (hatch, dim.bg(heat(step))),
        (Heat::Unknown, _) | (_, Heat::Unknown) => (hatch, dim),
        (Heat::Free, Heat::Free) => (' ', Style::new()),
    }
}

/// A cell with one row, drawn with signs.
fn one_row(state: &State, row: Heat) -> (char, Style) {
    match row {
        Heat::Free => (' ', Style::new()),
        Heat::Unknown => (state.signs.unknown(), state.colours.dim()),
        Heat::Step(step) if state.colours == Colours::None => (state.signs.heat(step), Style::new()),
        Heat::Step(step) => (state.signs.heat(step), Style::new().fg(state.colours.heat(step.max(1)))),
    }
}

/// Draws bars from the bottom: full up to the least, shaded up to the most.
pub fn bars(state: &State, chart: &Chart, series: &Series, plot: Rect, style: Style, buffer: &mut Buffer) {
    let most = series.values.iter().flatten().map(|range| range.most).max().unwrap_or_default();
    let limit = chart.limit;
    let whole = most.max(limit.unwrap_or_default()).max(1);
    let eighths = u64::from(plot.height) * 8;
    let limit = limit.map(|limit| pieces(limit, whole, eighths).saturating_sub(1) / 8);
    for x in plot.left()..plot.right() {
        let range = at(series, column(chart.window.columns, plot, x));
        for (row, y) in (plot.top()..plot.bottom()).rev().enumerate() {
            let (row, below) = (row as u64, row as u64 * 8);
            let (sign, style) = match range {
                None => (state.signs.unknown(), state.colours.dim()),
                Some(range) => {
                    let (least, most) = (pieces(range.least, whole, eighths), pieces(range.most, whole, eighths));
                    match () {
                        () if least > below => (state.signs.bar(least - below), style),
                        () if most > below => (state.signs.may_be(), style),
                        () if limit == Some(row) => (state.signs.line(), state.colours.past()),
                        () => (' ', Style::new()),
                    }
                }
            };
            set(buffer, x, y, sign, style);
        }
    }
    // A scale without any value has no top.
    if whole > 1 {
        put_label(state, buffer, plot, plot.y, &chart.unit.text(whole));
    }
    if plot.height > 1 || whole == 1 {
        put_label(state, buffer, plot, plot.bottom() - 1, "0");
    }
}

/// Draws parts on top of each other, and what goes down below a line of zero.
pub fn stack(state: &State, chart: &Chart, plot: Rect, buffer: &mut Buffer) {
    let of = |wanted: &dyn Fn(Shape) -> bool| {
        let list = chart.series.iter().enumerate().filter(|(_, series)| wanted(series.shape));
        list.collect::<Vec<_>>()
    };
    let up = of(&|shape| matches!(shape, Shape::Up | Shape::Part));
    let down = of(&|shape| shape == Shape::Down);
    let sum = |list: &[(usize, &Series)], column: usize| {
        let known = list.iter().filter_map(|(_, series)| at(series, column));
        known.fold(None, |sum: Option<u64>, range| Some(sum.unwrap_or_default().saturating_add(range.most)))
    };
    let largest = |list: &[(usize, &Series)]| {
        (0..chart.window.columns).filter_map(|column| sum(list, column)).max().unwrap_or_default()
    };
    let (most_up, most_down) = (largest(&up), largest(&down));
    let rows = u64::from(plot.height);
    let rows_down = match down.is_empty() || rows < 2 {
        true => 0,
        false => pieces(most_down, most_up.saturating_add(most_down), rows).clamp(1, rows - 1),
    };
    let rows_up = rows - rows_down;
    // The same scale on both sides.
    let unit = most_up.div_ceil(rows_up.max(1)).max(most_down.checked_div(rows_down).unwrap_or_default()).max(1);
    let heights =
        [(u16::try_from(rows_up).unwrap_or_default(), &up), (u16::try_from(rows_down).unwrap_or_default(), &down)];
    let zero = plot.y + heights[0].0;
    for x in plot.left()..plot.right() {
        let column = column(chart.window.columns, plot, x);
        for (side, (height, list)) in heights.iter().enumerate() {
            let total = sum(list, column);
            for row in 0..*height {
                let y = if side == 0 { zero - 1 - row } else { zero + row };
                let (sign, style) = match total {
                    None => (state.signs.unknown(), state.colours.dim()),
                    Some(total) => fill(state, list, column, total, u64::from(row), unit),
                };
                set(buffer, x, y, sign, style);
            }
        }
    }
    put_label(state, buffer, plot, plot.y, &chart.unit.text(unit.saturating_mul(rows_up)));
    if rows_down > 0 {
        put_label(state, buffer, plot, zero - 1, "0");
        put_label(state, buffer, plot, plot.bottom() - 1, &chart.unit.text(unit.saturating_mul(rows_down)));
    } else if rows > 1 {
        put_label(state, buffer, plot, plot.bottom() - 1, "0");
    }
}

/// The sign of a row of a stack.
fn fill(state: &State, list: &[(usize, &Series)], column: usize, total: u64, row: u64, unit: u64) -> (char, Style) {
    // The middle of the cell; a little fills a cell.
    let middle = if row == 0 { total.min(unit / 2) } else { row.saturating_mul(unit).saturating_add(unit / 2) };
    let mut before: u64 = 0;
    for (number, series) in list {
        let value = at(series, column).map_or(0, |range| range.most);
        before = before.saturating_add(value);
        if value > 0 && before >= middle.max(1) {
            return (state.signs.part(*number, state.colours != Colours::None), state.colours.series(*number));
        }
    }
    (' ', Style::new())
}

/// Draws the lanes of the timeline.
pub fn lanes(state: &State, timeline: &Timeline, plot: Rect, buffer: &mut Buffer) {
    let height = (plot.height / 4).max(1);
    for (number, (lane, cells)) in LANES.iter().zip(&timeline.lanes).enumerate() {
        let top = plot.y + u16::try_from(number).unwrap_or_default() * height;
        if top >= plot.bottom() {
            return;
        }
        put_label(state, buffer, plot, top, lane.name());
        // A row is free between two lanes, where there is room.
        let bottom = (top + height - u16::from(height > 2)).min(plot.bottom());
        for y in top..bottom {
            for x in plot.left()..plot.right() {
                let cell = cells.get(column(timeline.window.columns, plot, x)).copied().flatten();
                let (sign, style) = did(state, cell.map(|cell| cell.did));
                set(buffer, x, y, sign, style);
            }
        }
    }
}

/// The sign of what was done; `None`: not recorded.
pub fn did(state: &State, did: Option<Did>) -> (char, Style) {
    let is_ascii = state.signs == crate::Signs::Ascii;
    let colour = |colour: Color| if state.colours == Colours::None { Style::new() } else { Style::new().fg(colour) };
    match did {
        None => (state.signs.unknown(), state.colours.dim()),
        Some(Did::Nothing) => (if is_ascii { '.' } else { '·' }, state.colours.dim()),
        Some(Did::Held) => (state.signs.line(), colour(Color::Yellow)),
        Some(Did::Acted) => (if is_ascii { '#' } else { '█' }, colour(Color::Green)),
        Some(Did::Stopped) => ('!', colour(Color::Red)),
    }
}
