//! Draws a state. What is drawn depends on the state only.

pub mod areas;
mod chart;
mod numbers;
mod plot;
mod tree;

use std::time::Duration;

use omr_base::when;
use omr_policy::Mode;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _, Wrap};

use crate::keys::KEYS;
use crate::state::{State, View};
use areas::Areas;
use omr_charts::text::{clock, fit, length};

/// Draws the state.
pub fn draw(state: &State, frame: &mut Frame<'_>) {
    let (areas, whole) = (Areas::of(state), frame.area());
    let buffer = frame.buffer_mut();
    if areas.header.is_empty() {
        let text = format!("omr top needs {} x {} cells", areas::LEAST.0, areas::LEAST.1);
        put(buffer, whole.x, whole.y, &fit(&text, usize::from(whole.width), state.signs.cut()), Style::new());
        return;
    }
    header(state, areas.header, buffer);
    footer(state, areas.footer, buffer);
    match state.view {
        View::Groups => {
            tree::draw(state, &areas, buffer);
            chart::draw(state, &areas, buffer);
        }
        View::Chart => chart::draw(state, &areas, buffer),
        View::Numbers => lines(state, areas.text, &numbers::lines(state, areas.text.width), false, buffer),
        View::Explanation => lines(state, areas.text, &explanation(state), true, buffer),
        View::Help => {
            let keys = KEYS.map(|(key, what)| format!("{key:<12}{what}"));
            lines(state, areas.text, &keys, true, buffer);
        }
    }
}

/// Writes a text that has nothing but printable characters. What does not fit is cut.
fn put(buffer: &mut Buffer, x: u16, y: u16, text: &str, style: Style) {
    let area = buffer.area.intersection(Rect::new(x, y, u16::MAX - x, 1));
    // A styled line would colour the rest of the row as well.
    Span::styled(text, style).render(area, buffer);
}

/// Sets one cell.
fn set(buffer: &mut Buffer, x: u16, y: u16, sign: char, style: Style) {
    if let Some(cell) = buffer.cell_mut((x, y)) {
        cell.set_char(sign).set_style(style);
    }
}

/// Draws lines, from the one to which the user has scrolled.
fn lines(state: &State, area: Rect, lines: &[String], wrap: bool, buffer: &mut Buffer) {
    let last = lines.len().saturating_sub(usize::from(area.height).min(lines.len()));
    let first = state.scroll.min(if wrap { lines.len().saturating_sub(1) } else { last });
    let shown = lines.iter().skip(first).take(usize::from(area.height)).map(|line| Line::raw(line.as_str()));
    let text = Paragraph::new(shown.collect::<Vec<_>>());
    if wrap { text.wrap(Wrap { trim: false }).render(area, buffer) } else { text.render(area, buffer) }
}

fn explanation(state: &State) -> Vec<String> {
    let group = name(&state.selected);
    let time = match state.at {
        Some(at) => format!("about {}", when::text(Duration::from_secs(at))),
        None => "now".to_owned(),
    };
    let mut text = vec![format!("{} {time}", fit(&group, 200, state.signs.cut())), String::new()];
    match &state.explanation {
        None => text.push("asking ...".to_owned()),
        Some(Err(why)) => text.push(why.clone()),
        Some(Ok(lines)) if lines.is_empty() => {
            text.push("no event is recorded; the ledger has what omr did, and not why it held".to_owned());
        }
        Some(Ok(lines)) => text.extend(lines.iter().cloned()),
    }
    text
}

/// The name of a group for people, from its path.
fn name(path: &str) -> String {
    format!("/{path}")
}

fn header(state: &State, area: Rect, buffer: &mut Buffer) {
    let colours = state.colours;
    let time = match state.at {
        None => Span::raw(format!("now {} UTC", clock(state.now))),
        Some(at) => {
            let ago = length(state.now.saturating_sub(at));
            let day = when::text(Duration::from_secs(at));
            let text = format!("{ago} ago: {} {} UTC", day.get(..10).unwrap_or_default(), clock(at));
            Span::styled(text, colours.past())
        }
    };
    let mode = match &state.status {
        Some(status) if status.mode != Mode::Act => format!("  mode {}", status.mode.name()),
        _ => String::new(),
    };
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("  only \"{}\"", fit(filter, 20, state.signs.cut())),
    };
    // In the order of what matters; what does not fit is left out.
    let mut rest = String::new();
    let room = usize::from(area.width).saturating_sub("omr top  ".len() + time.width());
    for part in
        [filter, mode.to_owned(), format!("  charts of {}", length(state.span)), format!("  by {}", state.sort.name())]
    {
        if Span::raw(&rest).width() + Span::raw(&part).width() <= room {
            rest += &part;
        }
    }
    let first = Line::from(vec![Span::styled("omr top  ", colours.heading()), time, Span::styled(rest, colours.dim())]);
    first.render(Rect { height: 1, ..area }, buffer);
    let (text, style) = about(state);
    put(buffer, area.x, area.y + 1, &fit(&text, usize::from(area.width), state.signs.cut()), style);
}

/// The second line: what is wrong, or what the daemon does.
fn about(state: &State) -> (String, Style) {
    let alarm = state.colours.alarm();
    if let Some(why) = &state.no_records {
        return (why.clone(), alarm);
    }
    if let Some(time) = state.hangs_for() {
        let time = length(time);
        return (format!("the daemon has not answered for {time}; the history is shown all the same"), alarm);
    }
    if let Some(why) = &state.no_status {
        return (why.clone(), alarm);
    }
    match (&state.status, state.at) {
        (None, _) => ("asking the daemon ...".to_owned(), state.colours.dim()),
        (Some(_), Some(_)) => ("the past: figures of the last samples before this time".to_owned(), Style::new()),
        (Some(status), None) => match &status.sweep {
            Some(sweep) => {
                let text = format!("sweeping {}: {} of {}; {}", sweep.group, sweep.freed, sweep.asked, status.reason);
                (text, state.colours.active())
            }
            None => (status.reason.clone(), Style::new()),
        },
    }
}

fn footer(state: &State, area: Rect, buffer: &mut Buffer) {
    let text = match state.view {
        _ if state.typing => format!("filter: {}_   Enter keeps it, Esc ends it", fit(&state.filter, 40, state.signs.cut())),
        View::Groups => "? keys  q quit  1-8 chart  left right time  Enter explain  c whole  t numbers  / filter  s order  space fold".to_owned(),
        View::Chart => "Esc back  1-8 chart  left right time  + - length  Enter explain  t numbers  ? keys  q quit".to_owned(),
        View::Numbers => "Esc back  1-8 chart  left right time  up down scroll  ? keys  q quit".to_owned(),
        View::Explanation | View::Help => "Esc back  up down scroll  q quit".to_owned(),
    };
    put(buffer, area.x, area.y, &fit(&text, usize::from(area.width), state.signs.cut()), state.colours.dim());
}
