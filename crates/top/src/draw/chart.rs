//! A chart: title, legend, plot, axis and notes.

use omr_charts::signs::STEPS;
use omr_charts::text::{axis, fit, left};
use omr_charts::{Chart, Charts, Did, Panel, Series, Shape, Topic, Unit, panels};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _, Wrap};

use super::areas::Areas;
use super::{name, plot, put, set};
use crate::colours::Colours;
use crate::state::State;

pub fn draw(state: &State, areas: &Areas, buffer: &mut Buffer) {
    let area = areas.chart;
    if area.is_empty() {
        return;
    }
    let width = usize::from(area.width);
    let Some(charts) = &state.charts else {
        let text = if state.charts_wait { "reading the history ..." } else { "no charts: see above" };
        put(buffer, area.x, area.y, text, state.colours.dim());
        return;
    };
    let shown = charts.of(state.topic);
    let question = state.topic.question();
    let unit = shown.first().map(|chart| match state.topic {
        Topic::Cost => "  (bytes, seconds)".to_owned(),
        _ => format!("  ({})", chart.unit.name()),
    });
    let group = fit(&name(&charts.group), width / 2, state.signs.cut());
    let title = format!("{} {question}  {group}{}", state.topic.number(), unit.unwrap_or_default());
    put(buffer, area.x, area.y, &fit(&title, width, state.signs.cut()), state.colours.heading());

    let notes: Vec<String> = charts.notes(state.topic).iter().map(|note| fit(note, 200, state.signs.cut())).collect();
    let notes = notes.join("; ");
    Paragraph::new(notes).style(state.colours.dim()).wrap(Wrap { trim: true }).render(areas.notes, buffer);

    let mut plot = areas.plot;
    if state.topic == Topic::Sleep && state.at.is_none() {
        // The figures of now are the answer. The plot has the room below them.
        facts(
            state,
            &charts.sleep,
            Rect { y: area.y + 1, height: plot.bottom().saturating_sub(area.y + 1), ..area },
            buffer,
        );
        let taken = u16::try_from(charts.sleep.facts.len().max(1)).unwrap_or(u16::MAX);
        plot = Rect { y: plot.y + taken, height: plot.height.saturating_sub(taken), ..plot };
        if plot.height < 3 || charts.sleep.is_empty() {
            return;
        }
    } else {
        legend(state, charts, &shown).render(Rect { y: area.y + 1, height: 1, ..area }, buffer);
    }
    if plot.height == 0 {
        return;
    }
    match shown.as_slice() {
        [] => plot::lanes(state, &charts.timeline, plot, buffer),
        shown => draw_panels(state, &panels(shown), plot, buffer),
    }
    draw_axis(state, charts, areas.plot, buffer);
}

/// Draws panels below each other. The first one gets what is left over; those for which there is no
/// room are left out.
fn draw_panels(state: &State, panels: &[Panel<'_>], area: Rect, buffer: &mut Buffer) {
    let number = u16::try_from(panels.len()).unwrap_or(u16::MAX).clamp(1, (area.height / 2).max(1));
    let is_one = panels.len() == 1;
    let each = area.height / number;
    let mut top = area.y;
    for (index, panel) in panels.iter().take(usize::from(number)).enumerate() {
        let height = if index == 0 { area.height - each * (number - 1) } else { each };
        let mut rect = Rect { y: top, height, ..area };
        top += height;
        // Several panels have a line with a name each.
        if !is_one {
            let (name, value) = match panel {
                Panel::Line(chart, series) => (panel.name(), value(state, chart.unit, series)),
                _ => (panel.name(), String::new()),
            };
            let text = fit(&format!("{name}{value}"), usize::from(rect.width), state.signs.cut());
            put(buffer, rect.x, rect.y, &text, Style::new());
            rect = Rect { y: rect.y + 1, height: rect.height - 1, ..rect };
        }
        if rect.height == 0 {
            continue;
        }
        match panel {
            Panel::Heat(chart) => plot::heat(state, chart, rect, buffer),
            Panel::Stack(chart) => plot::stack(state, chart, rect, buffer),
            Panel::Line(chart, series) => plot::bars(state, chart, series, rect, state.colours.series(1), buffer),
        }
    }
}

/// The value at the time that is shown, or the last one.
fn value(state: &State, unit: Unit, series: &Series) -> String {
    let value = match state.cursor() {
        Some(column) => series.values.get(column).copied().flatten(),
        None => series.values.iter().rev().find_map(|value| *value),
    };
    format!(": {}", unit.range(value))
}

/// The line below the title.
fn legend<'s>(state: &State, charts: &Charts, shown: &[&Chart]) -> Line<'s> {
    let (signs, colours) = (state.signs, state.colours);
    let mut spans: Vec<Span<'s>> = Vec::new();
    match shown {
        [] => {
            for (did, words) in [
                (Did::Acted, "acted"),
                (Did::Stopped, "stopped by work"),
                (Did::Held, "held"),
                (Did::Nothing, "no event"),
            ] {
                let (sign, style) = plot::did(state, Some(did));
                spans.extend([Span::styled(sign.to_string(), style), Span::raw(format!(" {words}  "))]);
            }
        }
        [chart, ..] if matches!(chart.series.first(), Some(Series { shape: Shape::Age(_), .. })) => {
            spans.push(Span::raw("0 "));
            for step in 0..=STEPS {
                spans.push(match colours {
                    Colours::None => Span::raw(signs.heat(step).to_string()),
                    _ => Span::styled(signs.part(0, true).to_string(), Style::new().fg(colours.heat(step))),
                });
            }
            let largest = chart.unit.text(chart.largest());
            let threshold = chart.threshold.filter(|_| state.at.is_none());
            let threshold =
                threshold.map(|of| format!("threshold {}  ", omr_charts::text::length(of))).unwrap_or_default();
            spans.push(Span::raw(format!(" {largest} at least  {threshold}")));
        }
        shown => {
            for (chart, limit) in shown.iter().filter_map(|chart| Some((chart, chart.limit?))) {
                spans.push(Span::styled(signs.line().to_string(), colours.past()));
                spans.push(Span::raw(format!(" at most {}  ", chart.unit.text(limit))));
            }
            let chart = shown
                .iter()
                .find(|chart| chart.series.iter().any(|of| of.shape != Shape::Line))
                .or_else(|| shown.first());
            if let Some(chart) = chart {
                for (number, series) in chart.series.iter().enumerate().filter(|(_, of)| of.shape != Shape::Line) {
                    let sign = signs.part(number, colours != Colours::None);
                    spans.push(Span::styled(sign.to_string(), colours.series(number)));
                    spans.push(Span::raw(format!(" {}  ", series.name)));
                }
                if let [series] = chart.series.as_slice() {
                    spans.push(Span::raw(format!("{}{}  ", series.name, value(state, chart.unit, series))));
                }
            }
        }
    }
    let is_unknown = match shown {
        [] => charts.timeline.lanes.iter().flatten().any(Option::is_none),
        shown => shown.iter().any(|chart| chart.series.iter().any(|series| series.values.contains(&None))),
    };
    if is_unknown {
        spans.extend([Span::styled(signs.unknown().to_string(), colours.dim()), Span::raw(" unknown  ")]);
    }
    let facts: Vec<String> = shown.iter().flat_map(|chart| chart.facts.iter().map(ToString::to_string)).collect();
    spans.push(Span::styled(facts.join("  "), colours.dim()));
    Line::from(spans)
}

/// The line below the plot: its first and last time, and the time that is shown.
fn draw_axis(state: &State, charts: &Charts, area: Rect, buffer: &mut Buffer) {
    let window = charts.window;
    let (y, seconds) = (area.bottom(), window.seconds());
    let first = axis(window.from, seconds);
    let last = if state.at.is_none() { "now".to_owned() } else { axis(window.to.saturating_sub(1), seconds) };
    let gap = usize::from(area.width).saturating_sub(last.len());
    put(buffer, area.x, y, &format!("{}{last}", left(&first, gap, state.signs.cut())), state.colours.dim());
    if let Some(column) = state.cursor() {
        let x = plot::cell(window.columns, area, column);
        let mark = if state.signs == crate::Signs::Blocks { '▲' } else { '^' };
        set(buffer, x, y, mark, state.colours.past());
    }
}

fn facts(state: &State, chart: &Chart, area: Rect, buffer: &mut Buffer) {
    let width = chart.facts.iter().map(|fact| fact.name.len()).max().unwrap_or_default();
    for (y, fact) in (area.top()..area.bottom()).zip(&chart.facts) {
        put(buffer, area.x + 2, y, &format!("{:width$}  {}", fact.name, fact.text()), Style::new());
    }
    if chart.facts.is_empty() {
        put(buffer, area.x + 2, area.y, "the daemon does not answer", state.colours.dim());
    }
}
