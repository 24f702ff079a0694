//! The parts of a plot, one below the other.

use crate::{Chart, Series, Shape, Unit};

/// A part of a plot.
#[derive(Clone, Copy, Debug)]
pub enum Panel<'c> {
    /// Ages, as a heatmap.
    Heat(&'c Chart),
    /// Parts of a whole on top of each other, or amounts above and below a line of zero.
    Stack(&'c Chart),
    /// One series, as bars or as a band from the least to the most.
    Line(&'c Chart, &'c Series),
}

impl<'c> Panel<'c> {
    /// The name, for people, where there are several panels.
    pub fn name(self) -> &'c str {
        match self {
            Panel::Line(_, series) => &series.name,
            Panel::Heat(chart) | Panel::Stack(chart) => match chart.unit {
                Unit::Milliseconds => "own CPU time",
                _ => "taken above the line, came back below it",
            },
        }
    }
}

/// Returns the panels of these charts, in their order.
pub fn panels<'c>(charts: &[&'c Chart]) -> Vec<Panel<'c>> {
    let mut panels = Vec::new();
    for chart in charts {
        let has = |wanted: &dyn Fn(Shape) -> bool| chart.series.iter().any(|series| wanted(series.shape));
        if has(&|shape| matches!(shape, Shape::Age(_))) {
            panels.push(Panel::Heat(chart));
        }
        if has(&|shape| matches!(shape, Shape::Part | Shape::Up | Shape::Down)) {
            panels.push(Panel::Stack(chart));
        }
        let lines = chart.series.iter().filter(|series| series.shape == Shape::Line);
        panels.extend(lines.map(|series| Panel::Line(chart, series)));
    }
    panels
}
