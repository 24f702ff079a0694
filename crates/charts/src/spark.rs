//! Charts as lines of text: a row of signs for each series.

use crate::signs::pieces;
use crate::text::left;
use crate::{Chart, Charts, Range, Series, Shape, Signs, Topic, Unit};

/// The least and the most signs in a line.
const LEAST: usize = 8;
const MOST: usize = 120;
/// The width of the names and of the values beside the signs.
const NAME: usize = 25;
const VALUE: usize = 24;

/// Returns a row of signs, one for each value. The largest value is the highest sign, zero is the
/// lowest one, and what is not known is `?`.
pub fn row(values: &[Option<u64>], signs: Signs) -> String {
    let largest = values.iter().flatten().max().copied().unwrap_or_default();
    values.iter().map(|value| value.map_or('?', |value| signs.spark(pieces(value, largest, SPARKS)))).collect()
}

/// The steps of a row of signs, without the step of zero.
pub const SPARKS: u64 = 7;

/// Puts values together, so that there are at most so many. Of known values the largest one is kept.
pub fn shorten(values: &[Option<u64>], most: usize) -> Vec<Option<u64>> {
    let count = values.len().min(most.max(1));
    let part = |number: usize| {
        let [from, to] = [number, number + 1].map(|number| number * values.len() / count.max(1));
        values.get(from..to).unwrap_or_default().iter().flatten().max().copied()
    };
    (0..count).map(part).collect()
}

/// A chart as lines of this width: a name, a row of signs, and the last or the largest value.
pub fn chart(charts: &Charts, topic: Topic, signs: Signs, width: usize) -> Vec<String> {
    let room = width.saturating_sub(NAME + VALUE + 2).clamp(LEAST, MOST);
    let shown = charts.of(topic);
    if shown.is_empty() {
        let lanes = crate::LANES.iter().zip(&charts.timeline.lanes);
        return lanes
            .map(|(lane, cells)| {
                let events: Vec<_> = cells.iter().map(|cell| cell.map(|cell| u64::from(cell.events))).collect();
                let sum: u64 = events.iter().flatten().sum();
                let is_known = events.iter().any(Option::is_some);
                let text = if is_known { format!("{sum} events") } else { "unknown".to_owned() };
                line(lane.name(), &events, room, signs, &text)
            })
            .collect();
    }
    let mut lines = Vec::new();
    for chart in shown {
        // The longest age is at the top, as in a heatmap.
        let is_heat = chart.series.iter().any(|series| matches!(series.shape, Shape::Age(_)));
        let mut series: Vec<&Series> = chart.series.iter().collect();
        if is_heat {
            series.reverse();
            let rows = series.iter().map(|of| (of.name.as_str(), bounds(of, |range| range.least)));
            lines.extend(heat(rows, chart, room, signs));
            continue;
        }
        lines.extend(series.into_iter().map(|of| {
            let values = bounds(of, |range| range.most);
            line(&of.name, &values, room, signs, &value(chart.unit, of))
        }));
        lines.extend(chart.facts.iter().map(|fact| format!("{fact}")));
    }
    lines
}

/// The lines of a heatmap share a scale, so that ages can be compared.
fn heat<'s>(
    rows: impl Iterator<Item = (&'s str, Vec<Option<u64>>)>,
    chart: &Chart,
    room: usize,
    signs: Signs,
) -> Vec<String> {
    let largest = chart.largest();
    let sign = |value: Option<u64>| value.map_or('?', |value| signs.spark(pieces(value, largest, SPARKS)));
    rows.map(|(name, values)| {
        let last = values.iter().rev().find_map(|value| *value);
        let text = last.map_or_else(|| "unknown".to_owned(), |last| format!("{} at least", chart.unit.text(last)));
        let row: String = shorten(&values, room).into_iter().map(sign).collect();
        format!("{} {row}  {text}", left(&format!("unused for {name}"), NAME - 1, '~'))
    })
    .collect()
}

fn bounds(series: &Series, of: impl Fn(Range) -> u64) -> Vec<Option<u64>> {
    series.values.iter().map(|value| value.map(&of)).collect()
}

fn line(name: &str, values: &[Option<u64>], room: usize, signs: Signs, text: &str) -> String {
    format!("{} {}  {text}", left(name, NAME - 1, '~'), row(&shorten(values, room), signs))
}

/// The value beside a row of signs: the sum of what happened, or the last value of what there is.
fn value(unit: Unit, series: &Series) -> String {
    let known = || series.values.iter().flatten();
    if known().next().is_none() {
        return "unknown".to_owned();
    }
    match series.shape {
        Shape::Up | Shape::Down => {
            let sum = known().map(|range| range.most).fold(0, u64::saturating_add);
            format!("{} in all", unit.text(sum))
        }
        Shape::Age(_) | Shape::Part | Shape::Line => unit.range(known().last().copied()),
    }
}

/// The answers to three questions in a line each: cold memory, what was taken and came back, and who
/// waited.
pub fn summary(charts: &Charts, signs: Signs, width: usize) -> Vec<String> {
    const QUESTION: usize = 37;
    let room = width.saturating_sub(QUESTION + 12 + VALUE).clamp(LEAST, MOST);
    let taken = |wanted: Shape| {
        let of: Vec<&Series> = charts.taken.series.iter().filter(|series| series.shape == wanted).collect();
        let sum = |column: usize| {
            let known = of.iter().filter_map(|series| Some(series.values.get(column).copied()??.most));
            known.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or_default().saturating_add(value)))
        };
        (0..charts.window.columns).map(sum).collect::<Vec<_>>()
    };
    let cold = charts.unused.series.iter().find(|of| of.shape == Shape::Age(crate::COLD.as_secs()));
    let waited = charts.waited.series.first();
    let most =
        |series: Option<&Series>, of: fn(Range) -> u64| series.map(|series| bounds(series, of)).unwrap_or_default();
    let (unused, taken_question, waited_question) =
        (charts.unused.question, charts.taken.question, charts.waited.question);
    let rows = [
        (unused, "cold", most(cold, |range| range.least), Unit::Bytes, false),
        (taken_question, "taken", taken(Shape::Up), Unit::Bytes, true),
        ("", "came back", taken(Shape::Down), Unit::Bytes, true),
        (waited_question, "some task", most(waited, |range| range.most), Unit::Milliseconds, true),
    ];
    rows.into_iter()
        .map(|(question, name, values, unit, is_sum)| {
            let known = || values.iter().flatten().copied();
            let text = match (known().last(), is_sum) {
                (None, _) => "unknown".to_owned(),
                (Some(_), true) => format!("{} in all", unit.text(known().fold(0, u64::saturating_add))),
                (Some(last), false) => format!("{} at least", unit.text(last)),
            };
            let row = row(&shorten(&values, room), signs);
            format!("{} {} {row}  {text}", left(question, QUESTION - 1, '~'), left(name, 10, '~'))
        })
        .collect()
}
