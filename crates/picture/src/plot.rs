//! Plots: heatmap, stack, line and lanes.

use omr_charts::signs::{STEPS, pieces, rgb};
use omr_charts::{Chart, Did, LANES, Range, Series, Shape, Timeline};

use crate::drawing::{Anchor, Area, Colour, Fill, Item, Stroke};
use crate::page::{DIM, GRID, LEFT, LIMIT, Page, RIGHT, SMALL};
use crate::scale::Axis;

/// A line of values, and the band between the least and the most.
pub const STROKE: Stroke = Stroke { colour: [0, 90, 160], width: 18, dashed: false };
pub const BAND: Colour = [168, 204, 230];

/// The colour of a part, or of what was taken and came back. People with any colour vision can tell
/// those apart that are beside each other.
pub fn colour(series: &Series, number: usize) -> Colour {
    const PARTS: [Colour; 10] = [
        [213, 94, 0],
        [240, 194, 122],
        [0, 114, 178],
        [150, 150, 150],
        [86, 180, 233],
        [204, 121, 167],
        [0, 158, 115],
        [136, 34, 85],
        [240, 228, 66],
        [90, 90, 90],
    ];
    const TAKEN: [Colour; 5] = [[0, 114, 178], [86, 180, 233], [0, 158, 115], [213, 94, 0], [240, 170, 40]];
    // Free memory is the ground, not a part that catches the eye.
    const FREE: Colour = [222, 222, 222];
    let of = match series.shape {
        Shape::Part if series.name == "free" => return FREE,
        Shape::Part => PARTS.as_slice(),
        _ => TAKEN.as_slice(),
    };
    of.get(number % of.len()).copied().unwrap_or_default()
}

/// The colour of what was done, and the part of the lane's height in percent.
pub fn did(did: Did) -> (Colour, i32) {
    match did {
        Did::Nothing => ([205, 205, 205], 12),
        Did::Held => ([240, 170, 40], 45),
        Did::Acted => ([0, 140, 105], 75),
        Did::Stopped => ([205, 60, 20], 100),
    }
}

/// Columns of the same kind beside each other: the first, and the one after the last.
fn runs<T: PartialEq>(columns: usize, of: impl Fn(usize) -> T) -> Vec<(usize, usize, T)> {
    let mut runs: Vec<(usize, usize, T)> = Vec::new();
    for column in 0..columns {
        let kind = of(column);
        match runs.last_mut() {
            Some((_, end, before)) if *before == kind => *end = column + 1,
            _ => runs.push((column, column + 1, kind)),
        }
    }
    runs
}

fn at(series: &Series, column: usize) -> Option<Range> {
    series.values.get(column).copied().flatten()
}

/// Hatches the columns of an area that are not known.
fn hatch(page: &mut Page, area: Area, is_known: impl Fn(usize) -> bool) {
    for (from, to, known) in runs(page.window.columns, is_known) {
        if !known {
            let (left, right) = (page.x(from), page.x(to));
            page.rect(Area { left, right, ..area }, Fill::Unknown);
        }
    }
}

/// A label left of the plot.
fn label(page: &mut Page, y: i32, text: &str) {
    let text = page.font.cut(text, SMALL, LEFT - 180);
    page.text_at((LEFT - 80, y + 40), SMALL, Anchor::End, DIM, &text);
}

/// The frame of a plot: its left edge and its line of zero.
fn frame(page: &mut Page, area: Area, zero: i32) {
    page.line(vec![(area.left, area.top), (area.left, area.bottom)], DIM, 10, false);
    page.line(vec![(area.left, zero), (area.right, zero)], DIM, 10, false);
}

/// Draws a heatmap: the longest age at the top.
pub fn heat(page: &mut Page, chart: &Chart, is_now: bool, area: Area) {
    let rows: Vec<&Series> = chart.series.iter().filter(|series| matches!(series.shape, Shape::Age(_))).collect();
    let count = i32::try_from(rows.len()).unwrap_or(1).max(1);
    let edge = |row: usize| area.bottom - area.height() * i32::try_from(row).unwrap_or_default() / count;
    let largest = chart.largest();
    for (row, series) in rows.iter().enumerate() {
        let (top, bottom) = (edge(row + 1), edge(row));
        let step = |column: usize| at(series, column).map(|range| pieces(range.least, largest, STEPS));
        for (from, to, step) in runs(page.window.columns, step) {
            let fill = step.map_or(Fill::Unknown, |step| Fill::Colour(rgb(step)));
            let (left, right) = (page.x(from), page.x(to));
            page.rect(Area { left, top, right, bottom }, fill);
        }
        label(page, (top + bottom) / 2, &series.name);
    }
    // Memory of the rows above the line may be taken.
    let is_old = |series: &&&Series, threshold: u64| matches!(series.shape, Shape::Age(age) if age >= threshold);
    let line = |threshold: u64| Some(edge(rows.iter().take_while(|series| !is_old(series, threshold)).count()));
    let thresholds = |column: usize| chart.thresholds.get(column).copied().flatten().and_then(line);
    let runs = runs(page.window.columns, thresholds);
    for (colour, width) in [([255; 3], 56), (LIMIT, 24)] {
        for (from, to, y) in &runs {
            if let Some(y) = y {
                page.line(vec![(page.x(*from), *y), (page.x(*to), *y)], colour, width, false);
            }
        }
    }
    if let Some(y) = chart.threshold.filter(|_| is_now).and_then(line) {
        let points = vec![(RIGHT + 10, y), (RIGHT + 150, y - 75), (RIGHT + 150, y + 75)];
        page.drawing.items.push(Item::Polygon(points, LIMIT));
    }
}

/// Draws parts on top of each other, and what goes down below a line of zero.
pub fn stack(page: &mut Page, chart: &Chart, area: Area) {
    let parts: Vec<(usize, &Series)> =
        chart.series.iter().filter(|series| series.shape != Shape::Line).enumerate().collect();
    let side = |is_down: bool| {
        let of = parts.iter().filter(move |(_, series)| (series.shape == Shape::Down) == is_down);
        of.copied().collect::<Vec<_>>()
    };
    let sides = [side(false), side(true)];
    let columns = page.window.columns;
    let sum = |list: &[(usize, &Series)], column: usize| {
        let known = list.iter().filter_map(|(_, series)| at(series, column));
        known.fold(None, |sum: Option<u64>, range| Some(sum.unwrap_or_default().saturating_add(range.most)))
    };
    let largest =
        |list: &[(usize, &Series)]| (0..columns).filter_map(|column| sum(list, column)).max().unwrap_or_default();
    let [up, down] = [0, 1].map(|side| sides.get(side).map(|list| largest(list)).unwrap_or_default());
    let has_down = sides.get(1).is_some_and(|list| !list.is_empty());
    // One scale for both sides. Each side has a part of the height of its own.
    let axis = Axis::new(chart.unit, up.max(down), if has_down { 3 } else { 5 });
    let step = axis.ticks().nth(1).unwrap_or(axis.top).max(1);
    let steps = |largest: u64| i32::try_from(largest.div_ceil(step).max(1)).unwrap_or(1);
    let (steps_up, steps_down) = (steps(up), if has_down { steps(down) } else { 0 });
    let each = area.height() / (steps_up + steps_down);
    let zero = area.top + each * steps_up;
    let scale = Axis::new(chart.unit, axis.top, 5);
    let whole = each * i32::try_from(axis.top.div_ceil(step)).unwrap_or(1);
    for number in -steps_down..=steps_up {
        let y = zero - number * each;
        page.line(vec![(area.left, y), (area.right, y)], GRID, 8, false);
        let value = step.saturating_mul(u64::from(number.unsigned_abs()));
        label(page, y, &scale.text(value));
    }
    for (list, direction) in sides.iter().zip([-1, 1]) {
        if list.is_empty() {
            continue;
        }
        let half = match direction {
            -1 => Area { bottom: zero, ..area },
            _ => Area { top: zero, ..area },
        };
        hatch(page, half, |column| sum(list, column).is_some());
        let mut before = vec![0u64; columns];
        for (number, series) in list {
            let base = before.clone();
            for (column, of) in before.iter_mut().enumerate() {
                *of = of.saturating_add(at(series, column).map_or(0, |range| range.most));
            }
            let y = |value: Option<&u64>| zero + direction * axis.length(value.copied().unwrap_or_default(), whole);
            let has = |column: usize| at(series, column).is_some_and(|range| range.most > 0);
            for (from, to, _) in runs(columns, has).into_iter().filter(|(.., has)| *has) {
                let outer = edges(page, from, to, |column| y(before.get(column)));
                let inner = edges(page, from, to, |column| y(base.get(column)));
                let points = outer.into_iter().chain(inner.into_iter().rev()).collect();
                page.drawing.items.push(Item::Polygon(points, colour(series, *number)));
            }
        }
    }
    frame(page, area, zero);
}

/// The corners of steps, two for each column; steps of the same height are one.
fn edges(page: &Page, from: usize, to: usize, y: impl Fn(usize) -> i32) -> Vec<(i32, i32)> {
    let steps = (from..to).fold(Vec::new(), |mut steps: Vec<(usize, usize, i32)>, column| {
        let y = y(column);
        match steps.last_mut() {
            Some((_, end, before)) if *before == y => *end = column + 1,
            _ => steps.push((column, column + 1, y)),
        }
        steps
    });
    steps.into_iter().flat_map(|(from, to, y)| [(page.x(from), y), (page.x(to), y)]).collect()
}

/// Draws a series as a band from the least to the most, and the limit.
pub fn line(page: &mut Page, chart: &Chart, series: &Series, area: Area) {
    let most = series.values.iter().flatten().map(|range| range.most).max().unwrap_or_default();
    // A limit that is far above all values would make them a line of zero.
    let limit = chart.limit.filter(|limit| most == 0 || limit / 8 <= most);
    let axis = Axis::new(chart.unit, most.max(limit.unwrap_or_default()), if area.height() > 1500 { 5 } else { 2 });
    let y = |value: u64| area.bottom - axis.length(value, area.height());
    // A scale without any value has no top.
    let is_scaled = most > 0 || limit.is_some();
    for tick in axis.ticks().take(if is_scaled { usize::MAX } else { 1 }) {
        let y = area.bottom - if tick == 0 { 0 } else { axis.length(tick, area.height()) };
        page.line(vec![(area.left, y), (area.right, y)], GRID, 8, false);
        label(page, y, &axis.text(tick));
    }
    let columns = page.window.columns;
    hatch(page, area, |column| at(series, column).is_some());
    for (from, to, _) in runs(columns, |column| at(series, column).is_some()).into_iter().filter(|(.., known)| *known) {
        let bound = |of: &dyn Fn(Range) -> u64| edges(page, from, to, |column| y(at(series, column).map_or(0, of)));
        let (upper, lower) = (bound(&|range| range.most), bound(&|range| range.least));
        let is_band = upper != lower;
        if is_band {
            let points = upper.iter().copied().chain(lower.iter().rev().copied()).collect();
            page.drawing.items.push(Item::Polygon(points, BAND));
        } else {
            let zero = [(page.x(to), area.bottom), (page.x(from), area.bottom)];
            let points = upper.iter().copied().chain(zero).collect();
            page.drawing.items.push(Item::Polygon(points, BAND));
        }
        if is_band {
            page.line(upper, STROKE.colour, 8, false);
        }
        page.line(lower, STROKE.colour, STROKE.width, false);
    }
    frame(page, area, area.bottom);
    match (chart.limit, limit) {
        (Some(limit), Some(_)) => page.line(vec![(area.left, y(limit)), (area.right, y(limit))], LIMIT, 15, true),
        (Some(limit), None) => {
            let text = format!("the limit of {} is far above", chart.unit.text(limit));
            page.text_at((RIGHT - 60, area.top + 120), SMALL, Anchor::End, LIMIT, &text);
        }
        _ => {}
    }
}

/// Draws the lanes of the timeline.
pub fn lanes(page: &mut Page, timeline: &Timeline, area: Area) {
    let count = i32::try_from(LANES.len()).unwrap_or(1).max(1);
    let each = area.height() / count;
    let mut top = area.top;
    for (lane, cells) in LANES.iter().zip(&timeline.lanes) {
        let bottom = top + each - 120;
        label(page, (top + bottom) / 2, lane.name());
        let of = |column: usize| cells.get(column).copied().flatten().map(|cell| cell.did);
        for (from, to, kind) in runs(page.window.columns, of) {
            let (left, right) = (page.x(from), page.x(to));
            match kind {
                None => page.rect(Area { left, top, right, bottom }, Fill::Unknown),
                Some(kind) => {
                    let (colour, percent) = did(kind);
                    let height = (bottom - top) * percent / 100;
                    page.rect(Area { left, top: bottom - height, right, bottom }, Fill::Colour(colour));
                }
            }
        }
        page.line(vec![(area.left, bottom), (area.right, bottom)], DIM, 10, false);
        top += each;
    }
}
