//! The data of one chart.

use std::fmt;
use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::short;
use omr_policy::threshold::PromotionRate;
use omr_units::{Bytes, Permyriad};
use serde::Serialize;

use crate::Window;

/// A chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chart {
    /// The question that the chart answers.
    pub question: &'static str,
    /// The unit of all values of the series.
    pub unit: Unit,
    /// The times of the values.
    pub window: Window,
    /// The values. A heatmap has a series for each age, the shortest age first.
    pub series: Vec<Series>,
    /// The value that should not be exceeded; `None`: there is none, or it is not known.
    pub limit: Option<u64>,
    /// In a heatmap: the threshold in force now, in seconds; `None`: not known, or in the past.
    pub threshold: Option<u64>,
    /// In a heatmap: the threshold in force in each column, in seconds; `None`: any age, or not
    /// recorded. Empty in other charts.
    pub thresholds: Vec<Option<u64>>,
    /// Figures of now, which have no history.
    pub facts: Vec<Fact>,
    /// What holds now, in words; `None`: nothing more than the facts, or the past.
    pub now: Option<String>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

/// A row of values over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// The name, for people.
    pub name: String,
    /// The way to draw it.
    pub shape: Shape,
    /// A value for each column of the window; `None`: unknown.
    pub values: Vec<Option<Range>>,
}

/// The way to draw a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A row of a heatmap, for memory that was not used for this time in seconds.
    Age(u64),
    /// A line, or a band between least and most.
    Line,
    /// A part of a whole, on top of the part before it.
    Part,
    /// Up from the line of zero, on top of the series before it.
    Up,
    /// Down from the line of zero.
    Down,
}

/// The least and the most of a value in the unit of its chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The true value is at least this.
    pub least: u64,
    /// The true value is at most this.
    pub most: u64,
}

impl Range {
    /// A value that is known.
    pub fn exact(value: u64) -> Self {
        Range { least: value, most: value }
    }
}

impl From<Bounds> for Range {
    fn from(bounds: Bounds) -> Self {
        Range { least: bounds.least.0, most: bounds.most.0 }
    }
}

/// A figure of now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The name, for people.
    pub name: &'static str,
    /// The unit.
    pub unit: Unit,
    /// The value; `None`: unknown.
    pub value: Option<u64>,
}

impl Fact {
    /// The value with its unit.
    pub fn text(&self) -> String {
        self.value.map_or_else(|| "unknown".to_owned(), |value| self.unit.text(value))
    }
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Hundredths of a percent.
    Permyriad,
    /// Promotions in a minute, in millionths of the working set.
    PromotionRate,
}

impl Unit {
    /// The name, for the title of a chart.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "seconds",
            Unit::Permyriad => "% of the time",
            Unit::PromotionRate => "% of the working set in a minute",
        }
    }

    /// Returns a value with its unit.
    pub fn text(self, value: u64) -> String {
        match self {
            Unit::Bytes => Bytes(value).to_string(),
            Unit::Milliseconds => short(Duration::from_millis(value)).to_string(),
            Unit::Permyriad => Permyriad(u32::try_from(value).unwrap_or(u32::MAX)).to_string(),
            Unit::PromotionRate => PromotionRate(u32::try_from(value).unwrap_or(u32::MAX)).to_string(),
        }
    }

    /// Returns one value if both bounds have the same text, else both; `?`: unknown.
    pub fn range(self, range: Option<Range>) -> String {
        let Some(Range { least, most }) = range else { return "?".to_owned() };
        let (least, most) = (self.text(least), self.text(most));
        if least == most { least } else { format!("{least} to {most}") }
    }
}

/// The numbers of a chart as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// The names of the columns.
    pub head: Vec<String>,
    /// The rows, the earliest time first; the cell of an unknown value is `?`.
    pub rows: Vec<Vec<String>>,
}

impl Chart {
    /// A chart without values.
    pub(crate) fn new(question: &'static str, unit: Unit, window: Window) -> Self {
        Chart {
            question,
            unit,
            window,
            series: Vec::new(),
            limit: None,
            threshold: None,
            thresholds: Vec::new(),
            facts: Vec::new(),
            now: None,
            notes: Vec::new(),
        }
    }

    /// Returns the largest value of all, parts and bars on top of each other; zero: nothing is known.
    pub fn largest(&self) -> u64 {
        let at = |column: usize, stacked: &dyn Fn(Shape) -> bool| {
            let of = self.series.iter().filter(|series| stacked(series.shape));
            of.filter_map(|series| Some(series.values.get(column).copied()??.most)).fold(0, u64::saturating_add)
        };
        let stacks = (0..self.window.columns).flat_map(|column| {
            [at(column, &|shape| matches!(shape, Shape::Part | Shape::Up)), at(column, &|shape| shape == Shape::Down)]
        });
        let others = self.series.iter().filter(|series| matches!(series.shape, Shape::Age(_) | Shape::Line));
        let others = others.flat_map(|series| series.values.iter().flatten().map(|range| range.most));
        stacks.chain(others).max().unwrap_or_default()
    }

    /// Returns true if no value is known.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.values.iter().all(Option::is_none))
    }

    /// Returns the numbers until this time. Times are texts that `time` makes of seconds since 1970.
    /// Columns of which nothing is known are left out.
    pub fn table(&self, until: u64, time: impl Fn(u64) -> String) -> Table {
        let head = [String::from("time")].into_iter().chain(self.series.iter().map(|series| series.name.clone()));
        let row = |column: usize| {
            let values = self.series.iter().map(|series| series.values.get(column).copied().flatten());
            values.clone().any(|value| value.is_some()).then(|| {
                let cells = values.map(|value| self.unit.range(value));
                [time(self.window.start(column))].into_iter().chain(cells).collect()
            })
        };
        let columns = (0..self.window.columns).filter(|column| self.window.start(*column) <= until);
        Table { head: head.collect(), rows: columns.filter_map(row).collect() }
    }
}

impl Series {
    /// A series of which nothing is known yet.
    pub(crate) fn new(name: impl Into<String>, shape: Shape, window: Window) -> Self {
        Series { name: name.into(), shape, values: vec![None; window.columns] }
    }

    /// Sets a value that held for this long before `time`.
    pub(crate) fn set(&mut self, window: Window, time: u64, over: u64, value: Option<Range>) {
        // The first sample says nothing about the time before it.
        for (column, ..) in window.parts(time, over.max(1)) {
            if let Some(of) = self.values.get_mut(column) {
                *of = value;
            }
        }
    }

    /// Adds an amount that came together in this time before `time`. It is shared out between the
    /// columns by their times.
    pub(crate) fn add(&mut self, window: Window, time: u64, over: u64, amount: u64) {
        let over = over.max(1);
        let until = |seconds: u64| {
            let part = u128::from(amount) * u128::from(seconds) / u128::from(over);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        for (column, from, to) in window.parts(time, over) {
            if let Some(of) = self.values.get_mut(column) {
                let part = until(to) - until(from);
                let before = of.unwrap_or_default();
                let (least, most) = (before.least.saturating_add(part), before.most.saturating_add(part));
                *of = Some(Range { least, most });
            }
        }
    }

    /// Keeps the largest amount of each column.
    pub(crate) fn raise(&mut self, window: Window, time: u64, value: u64) {
        if let Some(of) = window.column(time).and_then(|column| self.values.get_mut(column)) {
            let before = of.unwrap_or_default();
            *of = Some(Range { least: before.least.max(value), most: before.most.max(value) });
        }
    }

    /// Unknown values in the time that is recorded are zero: nothing happened.
    pub(crate) fn or_zero(&mut self, recorded: &[bool]) {
        for (of, recorded) in self.values.iter_mut().zip(recorded) {
            if *recorded {
                *of = Some(of.unwrap_or_default());
            }
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text())
    }
}
