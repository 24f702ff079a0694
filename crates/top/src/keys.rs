//! Keys and the mouse.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use omr_charts::{Sort, Topic};
use ratatui::layout::Position;

use crate::draw::areas::Areas;
use crate::state::{State, View};

/// The keys, for the help.
pub const KEYS: [(&str, &str); 15] = [
    ("up down", "select a group; PgUp, PgDn, Home and End, too"),
    ("left right", "go back in time, and forth; with Shift by ten"),
    ("n", "go to now"),
    ("+ -", "longer or shorter charts"),
    ("1 to 8", "choose a chart; Tab takes the next one"),
    ("c", "chart on the whole screen, or tree and chart"),
    ("t", "numbers of the chart"),
    ("Enter", "explain the time that is shown"),
    ("space", "fold a group, or unfold it"),
    ("s", "next order of groups"),
    ("/", "show only groups with this in their names; Esc ends it"),
    ("r", "read the history again"),
    ("mouse", "click on a group, a chart or a moment; the wheel scrolls"),
    ("Esc", "back"),
    ("q", "quit"),
];

/// Takes in a key, the mouse, or a new size.
pub fn handle(state: &mut State, event: &Event) {
    match event {
        Event::Resize(width, height) => {
            state.size = (*width, *height);
            state.show_rows();
        }
        Event::Key(key) if key.kind != KeyEventKind::Release => on_key(state, *key),
        Event::Mouse(mouse) => on_mouse(state, *mouse),
        _ => {}
    }
}

fn on_key(state: &mut State, key: KeyEvent) {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        if matches!(key.code, KeyCode::Char('c' | 'd')) {
            state.quit = true;
        }
        return;
    }
    if state.typing {
        return type_filter(state, key.code);
    }
    let page = usize::from(Areas::of(state).tree.height.max(2)) - 1;
    let scrolls = matches!(state.view, View::Explanation | View::Numbers | View::Help);
    let fast = if key.modifiers.contains(KeyModifiers::SHIFT) { 10 } else { 1 };
    match key.code {
        KeyCode::Char('q') => state.quit = true,
        KeyCode::Esc | KeyCode::Backspace => back(state),
        KeyCode::Char('?' | 'h') => switch(state, View::Help),
        KeyCode::Left => state.travel(-fast),
        KeyCode::Right => state.travel(fast),
        KeyCode::Char('n') => state.go_to(u64::MAX),
        KeyCode::Char('+' | '=') => state.zoom(true),
        KeyCode::Char('-') => state.zoom(false),
        KeyCode::Char('r') => state.read_again(),
        KeyCode::Char('t') => switch(state, View::Numbers),
        KeyCode::Char('c') => switch(state, View::Chart),
        KeyCode::Tab => state.topic = state.topic.neighbour(true),
        KeyCode::BackTab => state.topic = state.topic.neighbour(false),
        KeyCode::Char(number @ '1'..='8') => choose(state, number),
        KeyCode::Enter if state.view != View::Explanation => state.explain(),
        KeyCode::Up | KeyCode::Char('k') if scrolls => state.scroll = state.scroll.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') if scrolls => state.scroll = state.scroll.saturating_add(1),
        KeyCode::PageUp if scrolls => state.scroll = state.scroll.saturating_sub(page),
        KeyCode::PageDown if scrolls => state.scroll = state.scroll.saturating_add(page),
        KeyCode::Home if scrolls => state.scroll = 0,
        KeyCode::Up | KeyCode::Char('k') => select(state, |row| row.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => select(state, |row| row + 1),
        KeyCode::PageUp => select(state, |row| row.saturating_sub(page)),
        KeyCode::PageDown => select(state, |row| row + page),
        KeyCode::Home => state.select(0),
        KeyCode::End => state.select(usize::MAX),
        KeyCode::Char(' ') => fold(state),
        KeyCode::Char('s') => {
            let next = Sort::ALL.iter().position(|sort| *sort == state.sort).map_or(0, |at| at + 1);
            state.sort = Sort::ALL.get(next).copied().unwrap_or_default();
            state.show_rows();
        }
        KeyCode::Char('/') => {
            state.view = View::Groups;
            state.typing = true;
        }
        _ => {}
    }
}

fn type_filter(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Esc => {
            state.filter.clear();
            state.typing = false;
        }
        KeyCode::Enter => state.typing = false,
        KeyCode::Backspace => {
            state.filter.pop();
        }
        KeyCode::Char(c) if state.filter.len() < 256 => state.filter.push(c),
        _ => {}
    }
    state.show_rows();
}

/// Shows another view, or goes back from it to the groups.
fn switch(state: &mut State, view: View) {
    state.view = if state.view == view { View::Groups } else { view };
    state.scroll = 0;
}

fn back(state: &mut State) {
    match state.view {
        View::Groups if !state.filter.is_empty() => {
            state.filter.clear();
            state.show_rows();
        }
        View::Groups => state.go_to(u64::MAX),
        _ => switch(state, View::Groups),
    }
}

fn choose(state: &mut State, number: char) {
    state.topic =
        Topic::ALL.into_iter().zip('1'..).find(|(_, key)| *key == number).map_or(state.topic, |(topic, _)| topic);
    if matches!(state.view, View::Explanation | View::Help) {
        switch(state, View::Chart);
    }
    // A terminal that is too low for both shows the chart alone.
    if state.view == View::Groups && Areas::of(state).chart.is_empty() {
        state.view = View::Chart;
    }
}

fn select(state: &mut State, to: impl Fn(usize) -> usize) {
    let row = state.row().map_or(0, to);
    state.select(row);
}

fn fold(state: &mut State) {
    let has_below = state.row().and_then(|row| state.rows.get(row)).is_some_and(|row| row.has_below);
    if has_below && !state.folded.remove(&state.selected) {
        state.folded.insert(state.selected.clone());
    }
    state.show_rows();
}

fn on_mouse(state: &mut State, mouse: MouseEvent) {
    let (areas, at) = (Areas::of(state), Position { x: mouse.column, y: mouse.row });
    let scrolls = matches!(state.view, View::Explanation | View::Numbers | View::Help);
    match mouse.kind {
        MouseEventKind::ScrollUp if scrolls => state.scroll = state.scroll.saturating_sub(3),
        MouseEventKind::ScrollDown if scrolls => state.scroll = state.scroll.saturating_add(3),
        MouseEventKind::ScrollUp => select(state, |row| row.saturating_sub(1)),
        MouseEventKind::ScrollDown => select(state, |row| row + 1),
        MouseEventKind::Down(MouseButton::Left) if scrolls => {}
        MouseEventKind::Down(MouseButton::Left) if areas.tree.contains(at) => {
            let row = state.first_row + usize::from(at.y - areas.tree.y);
            let is_selected = state.row() == Some(row);
            if row < state.rows.len() {
                state.select(row);
                // A second click folds.
                if is_selected {
                    fold(state);
                }
            }
        }
        MouseEventKind::Down(MouseButton::Left) if areas.plot.contains(at) => {
            let Some(window) = state.charts.as_ref().map(|charts| charts.window) else { return };
            let column = usize::from(at.x - areas.plot.x) * window.columns / usize::from(areas.plot.width.max(1));
            state.go_to(window.start(column));
            if state.topic == Topic::Decisions {
                state.explain();
            }
        }
        _ => {}
    }
}
