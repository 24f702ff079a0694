//! Where the parts of the screen are. The drawing and the mouse use the same areas.

use ratatui::layout::Rect;

use crate::state::{State, View};

/// The least width and height in which anything is shown but the size that is needed.
pub const LEAST: (u16, u16) = (30, 8);
/// The width of the labels left of a chart.
pub const LABELS: u16 = 11;
/// The height of the screen from which on there is a chart below the tree.
const BOTH: u16 = 20;

/// The areas; empty: the part is not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Areas {
    /// The two lines at the top.
    pub header: Rect,
    /// The heads of the tree's columns.
    pub heads: Rect,
    /// The rows of the tree.
    pub tree: Rect,
    /// The chart, with title, legend, axis and notes.
    pub chart: Rect,
    /// The columns of the chart.
    pub plot: Rect,
    /// The notes of the chart.
    pub notes: Rect,
    /// Lines of text.
    pub text: Rect,
    /// The keys.
    pub footer: Rect,
}

impl Areas {
    /// The areas of a state.
    pub fn of(state: &State) -> Self {
        let (width, height) = state.size;
        if width < LEAST.0 || height < LEAST.1 {
            return Areas::default();
        }
        let body = Rect::new(0, 2, width, height - 3);
        let mut areas =
            Areas { header: Rect::new(0, 0, width, 2), footer: Rect::new(0, height - 1, width, 1), ..Areas::default() };
        match state.view {
            View::Groups => {
                let chart = if height >= BOTH { body.height.div_ceil(2) } else { 0 };
                areas.heads = Rect { height: 1, ..body };
                areas.tree = Rect { y: body.y + 1, height: body.height - chart - 1, ..body };
                areas.set_chart(Rect { y: body.bottom() - chart, height: chart, ..body });
            }
            View::Chart => areas.set_chart(body),
            View::Numbers | View::Explanation | View::Help => areas.text = body,
        }
        // Charts are read for a width, also while they are not shown.
        if areas.plot.is_empty() {
            areas.plot = Rect::new(0, 0, width - LABELS - 1, 0);
        }
        areas
    }

    fn set_chart(&mut self, chart: Rect) {
        if chart.is_empty() {
            return;
        }
        // Title, legend, axis, and notes.
        let notes = if chart.height < 14 { 1 } else { 3 };
        self.chart = chart;
        self.plot = Rect {
            x: chart.x + LABELS,
            y: chart.y + 2,
            width: chart.width - LABELS - 1,
            height: chart.height.saturating_sub(3 + notes),
        };
        self.notes = Rect { y: chart.bottom().saturating_sub(notes), height: notes.min(chart.height), ..chart };
    }
}
