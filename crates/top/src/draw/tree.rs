//! The tree of groups.

use omr_charts::{Group, Row};
use omr_policy::short;
use omr_units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::areas::Areas;
use super::{name, put};
use crate::state::State;
use omr_charts::text::{left, right};

/// A column.
#[derive(Clone, Copy)]
enum Column {
    Class,
    Memory,
    Cold,
    Swap,
    Stalled,
    Freed,
    Back,
    Threshold,
    Last,
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Column::Class => "CLASS",
            Column::Memory => "NOW",
            Column::Cold => "COLD",
            Column::Swap => "SWAP",
            Column::Stalled => "STALLED",
            Column::Freed => "FREED",
            Column::Back => "BACK",
            Column::Threshold => "FROM AGE",
            Column::Last => "LAST",
        }
    }

    fn width(self) -> usize {
        match self {
            Column::Class => 10,
            Column::Stalled | Column::Last => 8,
            _ => 9,
        }
    }

    fn text(self, group: &Group) -> String {
        let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        // In the past nothing is known of these; now, nothing is a dash.
        let count = |bytes: Option<Bytes>| match bytes {
            Some(Bytes::ZERO) => "-".to_owned(),
            bytes => size(bytes),
        };
        match self {
            Column::Class => group.class.map(|class| class.name().to_owned()).unwrap_or_default(),
            Column::Memory => size(group.memory),
            Column::Cold => size(group.cold.map(|cold| cold.least)),
            Column::Swap => size(group.swap),
            Column::Stalled => group.stalled.map_or_else(|| "?".to_owned(), |share| share.to_string()),
            Column::Freed => count(group.freed),
            Column::Back => count(group.came_back),
            Column::Threshold => group.threshold.map_or_else(|| "-".to_owned(), |age| short(age).to_string()),
            Column::Last if group.sweeping => "now".to_owned(),
            Column::Last => group.last.map_or_else(|| "-".to_owned(), |ago| short(ago).to_string()),
        }
    }
}

/// The columns for a width, beside the name.
fn columns(width: u16, is_past: bool) -> Vec<Column> {
    use Column::{Back, Class, Cold, Freed, Last, Memory, Stalled, Swap, Threshold};
    match (is_past, width) {
        (_, 0..56) => vec![Memory, Cold],
        (true, _) => vec![Memory, Cold, Swap, Stalled],
        (false, 56..76) => vec![Class, Memory, Cold],
        (false, 76..110) => vec![Class, Memory, Cold, Back, Last],
        (false, _) => vec![Class, Memory, Cold, Swap, Stalled, Freed, Back, Threshold, Last],
    }
}

pub fn draw(state: &State, areas: &Areas, buffer: &mut Buffer) {
    let (heads, tree, cut) = (areas.heads, areas.tree, state.signs.cut());
    let columns = columns(tree.width, state.at.is_some());
    let used: usize = columns.iter().map(|column| column.width() + 1).sum();
    let room = usize::from(tree.width).saturating_sub(used);
    let cells = |first: &str, cell: &dyn Fn(Column) -> String| {
        let mut line = left(first, room, cut);
        for column in &columns {
            let text = cell(*column);
            line.push(' ');
            line += &match column {
                Column::Class => left(&text, column.width(), cut),
                _ => right(&text, column.width(), cut),
            };
        }
        line
    };
    let head = match state.rows.len() {
        0 => "GROUP".to_owned(),
        rows => format!("GROUP {} of {rows}", state.row().map_or(0, |row| row + 1)),
    };
    put(buffer, heads.x, heads.y, &cells(&head, &|column| column.head().to_owned()), state.colours.heading());
    if state.rows.is_empty() {
        let text = match (state.filter.is_empty(), state.at) {
            (false, _) => "no group has this in its name",
            (true, Some(_)) => "no samples of this time, nor of the three hours before",
            (true, None) => "no groups are known yet: the daemon does not answer, and the history has no samples",
        };
        put(buffer, tree.x, tree.y, text, state.colours.dim());
    }
    let rows = state.rows.iter().skip(state.first_row);
    for (y, row) in (tree.top()..tree.bottom()).zip(rows) {
        let Some(group) = state.groups.get(row.group) else { continue };
        let style = match () {
            () if group.path == state.selected => state.colours.selected(),
            () if group.sweeping => state.colours.active(),
            () => Style::new(),
        };
        put(buffer, tree.x, y, &cells(&label(state, row, group, room), &|column| column.text(group)), style);
    }
}

/// The name of a group below the group above it, indented.
fn label(state: &State, row: &Row, group: &Group, room: usize) -> String {
    let above = group.above.and_then(|above| state.groups.get(above)).map_or("", |above| above.path.as_str());
    let own = match above {
        "" => group.path.as_str(),
        above => group.path.strip_prefix(above).and_then(|rest| rest.strip_prefix('/')).unwrap_or(&group.path),
    };
    let own = if group.path.is_empty() { name("") } else { own.to_owned() };
    // Deep groups keep room for their names.
    let indent = row.depth.min(room / 4);
    format!("{}{} {own}", " ".repeat(indent), state.signs.fold(row.has_below, row.folded))
}
