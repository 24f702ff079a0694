//! The page: title, legend, panels, the axis of time, and notes.

use std::time::Duration;

use omr_base::when;
use omr_charts::signs::{STEPS, rgb};
use omr_charts::text::{fit, length};
use omr_charts::{Chart, Charts, Did, LANES, Panel, Shape, Topic, Window, panels};

use crate::drawing::{Anchor, Area, Colour, Drawing, Fill, Item, Stroke};
use crate::font::Font;
use crate::{plot, scale};

/// The width of the page.
const WIDTH: i32 = 10_000;
/// The left and right edge of texts.
const MARGIN: i32 = 200;
/// The edges of all plots.
pub const LEFT: i32 = 1_100;
pub const RIGHT: i32 = WIDTH - 300;
/// Sizes of fonts.
const LARGE: i32 = 190;
pub const NORMAL: i32 = 125;
pub const SMALL: i32 = 115;
/// The distance of lines of text.
const LINE: i32 = 175;

pub const INK: Colour = [34, 34, 34];
pub const DIM: Colour = [95, 95, 95];
pub const GRID: Colour = [222, 222, 222];
/// The line of a limit, and of a threshold.
pub const LIMIT: Colour = [200, 20, 90];

/// A page that is being drawn, from the top down.
pub struct Page {
    pub drawing: Drawing,
    pub font: Font,
    pub window: Window,
    /// The height that is used so far.
    pub y: i32,
}

/// Draws the chart of a topic. `is_now`: the window ends now, so figures of now belong to it.
pub fn draw(charts: &Charts, topic: Topic, is_now: bool) -> Drawing {
    let shown = charts.of(topic);
    let group = format!("/{}", charts.group);
    let question = topic.question();
    let [from, to] = [charts.window.from, charts.window.to].map(minute);
    let drawing = Drawing {
        width: WIDTH,
        title: format!("{question} {}", fit(&group, 4096, '…')),
        description: describe(charts, topic, &from, &to),
        ..Drawing::default()
    };
    let mut page = Page { drawing, font: Font::new(), window: charts.window, y: 360 };
    page.text(MARGIN, LARGE, Anchor::Start, INK, question);
    page.y += 210;
    let unit = match (topic, shown.first()) {
        (Topic::Cost, _) => Some("bytes, seconds"),
        (_, chart) => chart.map(|chart| chart.unit.name()),
    };
    let times = format!("  ·  {from} to {to} UTC{}", unit.map(|unit| format!("  ·  {unit}")).unwrap_or_default());
    let room = WIDTH - 2 * MARGIN - page.font.width(&times, NORMAL);
    let name = match charts.group.as_str() {
        "" => "the machine".to_owned(),
        _ => page.font.cut(&fit(&group, 300, '…'), NORMAL, room),
    };
    page.text(MARGIN, NORMAL, Anchor::Start, DIM, &(name + &times));
    page.y += 250;
    if is_now {
        page.facts(&shown, topic);
    }
    page.legend(charts, topic, is_now);
    page.panels(charts, &shown, is_now);
    page.axis();
    page.y += 90;
    for note in charts.notes(topic) {
        for line in page.font.lines(&fit(&note, 500, '…'), SMALL, WIDTH - 2 * MARGIN) {
            page.y += 165;
            page.text(MARGIN, SMALL, Anchor::Start, DIM, &line);
        }
    }
    page.drawing.height = page.y + 160;
    page.drawing
}

/// A time without its seconds: `2026-11-27 01:20`.
fn minute(time: u64) -> String {
    when::text(Duration::from_secs(time)).replace('T', " ").chars().take(16).collect()
}

/// The picture in words.
fn describe(charts: &Charts, topic: Topic, from: &str, to: &str) -> String {
    let shown = charts.of(topic);
    let mut text = format!("From {from} to {to} UTC. ");
    let columns = charts.window.columns;
    let unknown = (0..columns).filter(|column| match shown.as_slice() {
        [] => charts.timeline.lanes.iter().all(|cells| cells.get(*column).copied().flatten().is_none()),
        shown => shown.iter().all(|chart| is_unknown(chart, *column)),
    });
    let unknown = unknown.count();
    if unknown > 0 {
        text += &format!("{} % of the time is unknown. ", unknown * 100 / columns.max(1));
    }
    for chart in &shown {
        for series in chart.series.iter().filter(|series| !matches!(series.shape, Shape::Age(_))) {
            let most = series.values.iter().flatten().map(|range| range.most).max();
            let most = most.map_or_else(|| "unknown".to_owned(), |most| format!("at most {}", chart.unit.text(most)));
            text += &format!("{}: {most}. ", series.name);
        }
        if matches!(chart.series.first(), Some(first) if matches!(first.shape, Shape::Age(_))) && !chart.is_empty() {
            text += &format!("At most {} was not used. ", chart.unit.text(chart.largest()));
        }
        for fact in &chart.facts {
            text += &format!("{fact}. ");
        }
    }
    for (lane, cells) in LANES.iter().zip(&charts.timeline.lanes).filter(|_| shown.is_empty()) {
        let events: u32 = cells.iter().flatten().map(|cell| cell.events).fold(0, u32::saturating_add);
        text += &format!("{}: {events} events. ", lane.name());
    }
    text + &charts.notes(topic).iter().map(|note| fit(note, 500, '…') + ". ").collect::<String>()
}

/// Returns true if no series has a value in this column.
fn is_unknown(chart: &Chart, column: usize) -> bool {
    chart.series.iter().all(|series| series.values.get(column).copied().flatten().is_none())
}

/// Returns true if a part of the plot is hatched. The parts of a stack are hatched together, above
/// the line of zero and below it.
fn is_hatched(chart: &Chart) -> bool {
    let is_up = |shape: Shape| matches!(shape, Shape::Part | Shape::Up);
    let is_alone = |shape: Shape| !is_up(shape) && shape != Shape::Down;
    let side = |is_side: &dyn Fn(Shape) -> bool| {
        let of: Vec<_> = chart.series.iter().filter(|series| is_side(series.shape)).collect();
        let is_known = |column: usize| of.iter().any(|of| of.values.get(column).is_some_and(Option::is_some));
        !of.is_empty() && !(0..chart.window.columns).all(is_known)
    };
    let alone = chart.series.iter().filter(|series| is_alone(series.shape));
    side(&is_up) || side(&|shape| shape == Shape::Down) || alone.clone().any(|of| of.values.contains(&None))
}

/// An entry of the legend.
enum Key {
    /// A square of this fill.
    Square(Fill),
    /// A line.
    Line(Stroke),
    /// The scale of a heatmap.
    Heat,
    /// A text alone.
    None,
}

impl Page {
    /// Writes a text at the current height.
    pub fn text(&mut self, x: i32, size: i32, anchor: Anchor, colour: Colour, text: &str) {
        self.text_at((x, self.y), size, anchor, colour, text);
    }

    pub fn text_at(&mut self, (x, y): (i32, i32), size: i32, anchor: Anchor, colour: Colour, text: &str) {
        self.drawing.items.push(Item::Text { x, y, size, anchor, colour, text: text.to_owned() });
    }

    pub fn rect(&mut self, area: Area, fill: Fill) {
        self.drawing.items.push(Item::Rect(area, fill));
    }

    pub fn line(&mut self, points: Vec<(i32, i32)>, colour: Colour, width: i32, dashed: bool) {
        self.drawing.items.push(Item::Line(points, Stroke { colour, width, dashed }));
    }

    /// The left edge of a column.
    pub fn x(&self, column: usize) -> i32 {
        let part =
            (RIGHT - LEFT).unsigned_abs() as usize * column.min(self.window.columns) / self.window.columns.max(1);
        LEFT + i32::try_from(part).unwrap_or_default()
    }

    /// Writes the figures of now.
    fn facts(&mut self, shown: &[&Chart], topic: Topic) {
        let facts: Vec<_> = shown.iter().flat_map(|chart| &chart.facts).collect();
        if topic == Topic::Sleep {
            // They are the answer.
            let width = facts.iter().map(|fact| self.font.width(fact.name, NORMAL)).max().unwrap_or_default();
            for fact in &facts {
                self.text(MARGIN, NORMAL, Anchor::Start, DIM, fact.name);
                self.text(MARGIN + width + 200, NORMAL, Anchor::Start, INK, &fact.text());
                self.y += LINE + 20;
            }
            self.y += 40;
            return;
        }
        self.keys(facts.into_iter().map(|fact| (Key::None, format!("{}: {}", fact.name, fact.text()))).collect());
    }

    fn legend(&mut self, charts: &Charts, topic: Topic, is_now: bool) {
        let shown = charts.of(topic);
        let mut keys = Vec::new();
        for chart in &shown {
            let is_band = |series: &omr_charts::Series| {
                series.shape == Shape::Line && series.values.iter().flatten().any(|range| range.least != range.most)
            };
            for panel in panels(&[chart]) {
                match panel {
                    Panel::Heat(chart) => {
                        keys.push((Key::Heat, format!("{}, at least", chart.unit.text(chart.largest()))));
                        let stroke = Stroke { colour: LIMIT, width: 24, dashed: false };
                        let is_recorded = chart.thresholds.iter().any(Option::is_some);
                        match chart.threshold.filter(|_| is_now) {
                            Some(now) => keys.push((Key::Line(stroke), format!("threshold, {} now", length(now)))),
                            None if is_recorded => keys.push((Key::Line(stroke), "threshold".to_owned())),
                            None => {}
                        }
                    }
                    Panel::Stack(chart) => {
                        let parts = chart.series.iter().filter(|series| series.shape != Shape::Line);
                        keys.extend(parts.enumerate().map(|(number, series)| {
                            (Key::Square(Fill::Colour(plot::colour(series, number))), series.name.clone())
                        }));
                    }
                    Panel::Line(..) => {}
                }
            }
            // Where there are several panels, each has its name above it.
            if let ([series], false) = (chart.series.as_slice(), topic == Topic::Cost) {
                keys.push((Key::Line(plot::STROKE), series.name.clone()));
            }
            if chart.series.iter().any(is_band) {
                keys.push((Key::Square(Fill::Colour(plot::BAND)), "between the least and the most".to_owned()));
            }
            if let Some(limit) = chart.limit {
                let stroke = Stroke { colour: LIMIT, width: 15, dashed: true };
                keys.push((Key::Line(stroke), format!("at most {}", chart.unit.text(limit))));
            }
        }
        if shown.is_empty() {
            for (did, words) in [
                (Did::Acted, "acted"),
                (Did::Stopped, "stopped by work"),
                (Did::Held, "held"),
                (Did::Nothing, "no event"),
            ] {
                keys.push((Key::Square(Fill::Colour(plot::did(did).0)), words.to_owned()));
            }
        }
        let is_any_unknown = match shown.as_slice() {
            [] => charts.timeline.lanes.iter().flatten().any(Option::is_none),
            shown => shown.iter().any(|chart| is_hatched(chart)),
        };
        if is_any_unknown {
            keys.push((Key::Square(Fill::Unknown), "unknown".to_owned()));
        }
        self.keys(keys);
    }

    /// Writes entries beside each other, in as many lines as they need.
    fn keys(&mut self, keys: Vec<(Key, String)>) {
        const GAP: i32 = 240;
        if keys.is_empty() {
            return;
        }
        let mut x = MARGIN;
        for (key, text) in keys {
            let zero = self.font.width("0 ", NORMAL);
            let steps = i32::try_from(STEPS).unwrap_or_default() + 1;
            let sign = match key {
                Key::Square(_) => 190,
                Key::Line(_) => 330,
                Key::Heat => zero + steps * 140 + 60,
                Key::None => 0,
            };
            let text = self.font.cut(&text, NORMAL, WIDTH - 2 * MARGIN - sign);
            let width = sign + self.font.width(&text, NORMAL);
            if x > MARGIN && x + width > WIDTH - MARGIN {
                x = MARGIN;
                self.y += LINE + 15;
            }
            let (top, bottom) = (self.y - 105, self.y + 15);
            match key {
                Key::Square(fill) => self.rect(Area { left: x, top, right: x + 130, bottom }, fill),
                Key::Line(stroke) => {
                    let y = self.y - 45;
                    let points = vec![(x, y), (x + 260, y)];
                    self.drawing.items.push(Item::Line(points, stroke));
                }
                Key::Heat => {
                    self.text(x, NORMAL, Anchor::Start, INK, "0");
                    for step in 0..=STEPS {
                        let left = x + zero + 140 * i32::try_from(step).unwrap_or_default();
                        self.rect(Area { left, top, right: left + 140, bottom }, Fill::Colour(rgb(step)));
                    }
                }
                Key::None => {}
            }
            self.text(x + sign, NORMAL, Anchor::Start, INK, &text);
            x += width + GAP;
        }
        self.y += LINE + 30;
    }

    fn panels(&mut self, charts: &Charts, shown: &[&Chart], is_now: bool) {
        if shown.is_empty() {
            let area = self.next(2200);
            plot::lanes(self, &charts.timeline, area);
            return;
        }
        let panels = panels(shown);
        let is_one = panels.len() == 1;
        for (number, panel) in panels.iter().enumerate() {
            if !is_one {
                self.y += if number == 0 { 40 } else { 210 };
                let name = panel.name().to_owned();
                self.text(LEFT, NORMAL, Anchor::Start, INK, &name);
                self.y += 70;
            }
            let height = match (panel, is_one) {
                (Panel::Heat(_), _) => 2860,
                (Panel::Stack(_), true) => 2800,
                (Panel::Stack(_), false) => 1900,
                (Panel::Line(..), true) => 2200,
                (Panel::Line(..), false) => 900,
            };
            let area = self.next(height);
            match panel {
                Panel::Heat(chart) => plot::heat(self, chart, is_now, area),
                Panel::Stack(chart) => plot::stack(self, chart, area),
                Panel::Line(chart, series) => plot::line(self, chart, series, area),
            }
        }
    }

    /// The area of the next plot.
    fn next(&mut self, height: i32) -> Area {
        let area = Area { left: LEFT, top: self.y, right: RIGHT, bottom: self.y + height };
        self.y += height;
        area
    }

    /// The axis of time, below the last plot.
    fn axis(&mut self) {
        let window = self.window;
        for (time, text) in scale::times(window, 8) {
            let into = u128::from(time - window.from) * u128::from((RIGHT - LEFT).unsigned_abs());
            let x = LEFT + i32::try_from(into / u128::from(window.seconds())).unwrap_or_default();
            self.line(vec![(x, self.y), (x, self.y + 50)], DIM, 10, false);
            let half = self.font.width(&text, SMALL) / 2;
            let x = x.min(WIDTH - 100 - half);
            self.text_at((x, self.y + 180), SMALL, Anchor::Middle, DIM, &text);
        }
        let y = self.y + 180;
        self.text_at((MARGIN, y), SMALL, Anchor::Start, DIM, "UTC");
        self.y = y;
    }
}
