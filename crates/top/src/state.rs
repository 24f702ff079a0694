//! The state of the terminal, and what keys, the mouse and answers make of it. Nothing here reads
//! anything.

use std::collections::BTreeSet;

use crossterm::event::Event;
use omr_charts::{Charts, Decisions, Group, Now, Row, Sampled, Sort, Topic, Window, list, tree};
use omr_control::protocol::NEWS;
use omr_control::status::Status;
use omr_policy::Objective;

use crate::colours::Colours;
use crate::draw::areas::Areas;
use crate::source::{Answer, Ask};
use crate::{Options, keys};
use omr_charts::Signs;

/// The lengths of charts, in seconds.
pub const SPANS: [u64; 7] = [1800, 3600, 7200, 21_600, 86_400, 259_200, 604_800];
/// Records are read again after this time in seconds, or later.
const READ_EVERY: u64 = 60;
/// The time until records are read again is at least this many times as long as it took to read
/// them: a thousandth of a CPU.
const REST: u64 = 1000;
/// A daemon that has not answered for this time in seconds is said to hang.
const HANGS: u64 = 3;

/// What fills the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The tree of groups, and a chart where there is room.
    Groups,
    /// A chart.
    Chart,
    /// The numbers of a chart.
    Numbers,
    /// An explanation.
    Explanation,
    /// The keys.
    Help,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A second has passed. The wall clock, in seconds since 1970.
    Tick(u64),
    /// A key, the mouse, or a new size.
    Terminal(Event),
    /// An answer has come.
    Answer(Answer),
}

/// All that is shown.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) colours: Colours,
    pub(crate) signs: Signs,
    /// The size of the screen in cells.
    pub(crate) size: (u16, u16),
    pub(crate) view: View,
    /// The wall clock, in seconds since 1970.
    pub(crate) now: u64,
    started: u64,
    /// The time that is shown; `None`: now.
    pub(crate) at: Option<u64>,
    /// In the past: the last second of the charts.
    pub(crate) until: u64,
    /// The length of the charts, in seconds.
    pub(crate) span: u64,
    /// What the chart is about.
    pub(crate) topic: Topic,

    objective: Objective,
    pub(crate) status: Option<Box<Status>>,
    /// The reason why there is no status, in words.
    pub(crate) no_status: Option<String>,
    /// The time of the question for the status that has no answer yet.
    pub(crate) asked_status: Option<u64>,
    decisions: Decisions,

    samples: Vec<Sampled>,
    /// The time for which samples are there or were asked for; `None`: now.
    samples_for: Option<Option<u64>>,
    samples_wait: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) rows: Vec<Row>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    /// Keys go to the filter.
    pub(crate) typing: bool,
    pub(crate) folded: BTreeSet<String>,
    /// The path of the selected group.
    pub(crate) selected: String,
    /// The first row that is shown.
    pub(crate) first_row: usize,

    pub(crate) charts: Option<Box<Charts>>,
    charts_for: Option<ChartsFor>,
    pub(crate) charts_wait: bool,
    /// The reason why records cannot be read, in words.
    pub(crate) no_records: Option<String>,
    /// The time at which records are read again.
    read_at: u64,

    /// The lines of the explanation; `None`: they are not there yet.
    pub(crate) explanation: Option<Result<Vec<String>, String>>,
    /// The first line that is shown, or the first row of numbers.
    pub(crate) scroll: usize,

    pub(crate) quit: bool,
    asks: Vec<Ask>,
}

/// What charts were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChartsFor {
    group: String,
    /// `None`: now.
    until: Option<u64>,
    span: u64,
    columns: usize,
    now: Now,
}

impl State {
    /// The state at the start. `size`: of the screen in cells. `now`: seconds since 1970.
    pub fn new(options: &Options, colours: Colours, signs: Signs, size: (u16, u16), now: u64) -> Self {
        let at = options.at.map(|at| at.as_secs()).filter(|at| *at < now);
        let span = options.span.as_secs().max(60);
        State {
            colours,
            signs,
            size,
            view: View::Groups,
            now,
            started: now,
            at,
            until: at.map_or(now, |at| now.min(at.saturating_add(span / 2))),
            span,
            topic: Topic::default(),
            objective: options.objective.clone(),
            status: None,
            no_status: None,
            asked_status: None,
            decisions: Decisions::default(),
            samples: Vec::new(),
            samples_for: None,
            samples_wait: false,
            groups: Vec::new(),
            rows: Vec::new(),
            sort: Sort::default(),
            filter: String::new(),
            typing: false,
            folded: BTreeSet::new(),
            selected: options.group.clone(),
            first_row: 0,
            charts: None,
            charts_for: None,
            charts_wait: false,
            no_records: None,
            read_at: now,
            explanation: None,
            scroll: 0,
            quit: false,
            asks: Vec::new(),
        }
    }

    /// Takes in something that happened, and returns what to ask for.
    pub fn update(&mut self, input: Input) -> Vec<Ask> {
        match input {
            Input::Tick(now) => self.tick(now),
            Input::Terminal(event) => keys::handle(self, &event),
            Input::Answer(answer) => self.take_in(answer),
        }
        self.want();
        std::mem::take(&mut self.asks)
    }

    /// True once the user wants to quit.
    pub fn is_over(&self) -> bool {
        self.quit
    }

    /// The time in seconds for which the daemon has not answered, if it should have.
    pub(crate) fn hangs_for(&self) -> Option<u64> {
        // After the first status, the next one comes when there is news.
        let may_take = if self.status.is_some() { NEWS.as_secs() + HANGS } else { HANGS };
        let waited = self.now.saturating_sub(self.asked_status?);
        (waited >= may_take).then_some(waited)
    }

    /// True while an answer may come at any moment. A status that comes later is shown with the
    /// next tick.
    pub fn is_waiting(&self) -> bool {
        (self.asked_status.is_some() && self.status.is_none())
            || self.samples_wait
            || self.charts_wait
            || self.explanation.is_none()
    }

    fn tick(&mut self, now: u64) {
        // A clock that was set back must not stop the reading.
        if now < self.now {
            self.read_at = self.read_at.min(now.saturating_add(READ_EVERY));
        }
        self.now = now;
        if self.asked_status.is_none() {
            self.asked_status = Some(now);
            self.asks.push(Ask::Status);
        }
        if self.at.is_none() && now >= self.read_at {
            self.read_again();
        }
    }

    /// Reads the records again.
    pub(crate) fn read_again(&mut self) {
        self.read_at = self.now.saturating_add(READ_EVERY);
        (self.charts_for, self.samples_for) = (None, None);
    }

    fn take_in(&mut self, answer: Answer) {
        match answer {
            Answer::Status(answer) => {
                self.asked_status = None;
                match answer {
                    Ok(status) => {
                        self.note_decision(&status);
                        (self.status, self.no_status) = (Some(status), None);
                    }
                    Err(why) => (self.status, self.no_status) = (None, Some(why)),
                }
                self.set_now();
                if self.at.is_none() {
                    self.list_groups();
                }
            }
            Answer::Samples(_, answer) => {
                self.samples_wait = false;
                match answer {
                    Ok(samples) => (self.samples, self.no_records) = (samples, None),
                    Err(why) => (self.samples, self.no_records) = (Vec::new(), Some(why)),
                }
                self.list_groups();
            }
            Answer::Charts(answer, took_ms) => {
                self.charts_wait = false;
                self.read_at = self.now.saturating_add(READ_EVERY.max(took_ms.saturating_mul(REST) / 1000));
                match answer {
                    Ok(mut charts) => {
                        self.decisions.iter().for_each(|seen| charts.timeline.add_seen(seen));
                        (self.charts, self.no_records) = (Some(charts), None);
                    }
                    Err(why) => (self.charts, self.no_records) = (None, Some(why)),
                }
                self.set_now();
            }
            Answer::Explained(lines) => self.explanation = Some(lines),
        }
    }

    /// Remembers a decision if it is another one than before, or has another reason.
    fn note_decision(&mut self, status: &Status) {
        if let (Some(seen), Some(charts)) = (self.decisions.note(self.now, status), &mut self.charts) {
            charts.timeline.add_seen(seen);
        }
    }

    fn set_now(&mut self) {
        if let Some(charts) = &mut self.charts {
            charts.set_now(self.status.as_deref().filter(|_| self.at.is_none()));
        }
    }

    fn list_groups(&mut self) {
        let status = self.status.as_deref().filter(|_| self.at.is_none());
        self.groups = list(status, &self.samples);
        self.show_rows();
    }

    /// Makes the rows again, after the order, the filter or the folds have changed.
    pub(crate) fn show_rows(&mut self) {
        self.rows = tree(&self.groups, self.sort, &self.filter, &self.folded);
        self.keep_in_sight();
    }

    /// The row of the selected group; `None`: it has none.
    pub(crate) fn row(&self) -> Option<usize> {
        self.rows.iter().position(|row| self.groups.get(row.group).is_some_and(|of| of.path == self.selected))
    }

    /// Selects the group of a row; after the last row, the last one.
    pub(crate) fn select(&mut self, row: usize) {
        let row = row.min(self.rows.len().saturating_sub(1));
        if let Some(group) = self.rows.get(row).and_then(|row| self.groups.get(row.group)) {
            self.selected = group.path.clone();
        }
        self.keep_in_sight();
    }

    /// Moves the part of the tree that is shown so that the selected row is in it.
    fn keep_in_sight(&mut self) {
        let height = usize::from(Areas::of(self).tree.height).max(1);
        let last = self.rows.len().saturating_sub(height);
        if let Some(row) = self.row() {
            self.first_row = self.first_row.clamp((row + 1).saturating_sub(height), row);
        }
        self.first_row = self.first_row.min(last);
    }

    /// The times of the charts, as they should be now.
    pub(crate) fn window(&self) -> Window {
        let columns = usize::from(Areas::of(self).plot.width).max(1);
        let until = if self.at.is_some() { self.until } else { self.now };
        Window::ending(std::time::Duration::from_secs(until), std::time::Duration::from_secs(self.span), columns)
    }

    /// The seconds of a column.
    fn step(&self) -> u64 {
        (self.span / self.window().columns as u64).max(1)
    }

    /// Goes to another time; the time of now, or a later one, ends the travel.
    pub(crate) fn go_to(&mut self, time: u64) {
        if time >= self.now {
            self.at = None;
        } else {
            if self.at.is_none() {
                self.until = self.now;
            }
            self.at = Some(time);
            if time > self.until || time <= self.until.saturating_sub(self.span) {
                self.until = self.now.min(time.saturating_add(self.span / 2));
            }
        }
        self.set_now();
        self.list_groups();
        if self.view == View::Explanation {
            self.explain();
        }
    }

    /// Goes this many columns to the right, or to the left.
    pub(crate) fn travel(&mut self, columns: i64) {
        let by = self.step().saturating_mul(columns.unsigned_abs());
        let from = self.at.unwrap_or(self.now);
        self.go_to(if columns < 0 { from.saturating_sub(by) } else { from.saturating_add(by) });
    }

    /// Makes the charts longer or shorter.
    pub(crate) fn zoom(&mut self, longer: bool) {
        let other = match longer {
            true => SPANS.into_iter().find(|span| *span > self.span),
            false => SPANS.into_iter().rev().find(|span| *span < self.span),
        };
        self.span = other.unwrap_or(self.span);
        if let Some(at) = self.at {
            self.until = self.now.min(at.saturating_add(self.span / 2));
        }
    }

    /// The column of the time that is shown; `None`: now.
    pub(crate) fn cursor(&self) -> Option<usize> {
        self.charts.as_ref()?.window.column(self.at?)
    }

    /// Explains what is shown: now by the daemon, the past by the ledger.
    pub(crate) fn explain(&mut self) {
        let group = self.selected.clone();
        self.asks.push(match self.at {
            None => Ask::Explain { group },
            Some(at) => {
                let window = self.window();
                // The column, and those next to it: times on the screen are rough.
                let (step, column) = (self.step(), window.column(at).unwrap_or_default());
                let from = window.start(column).saturating_sub(step);
                let to = window.start(column + 1).saturating_add(step);
                Ask::Moment { group, from, to, seen: self.decisions.iter().cloned().collect() }
            }
        });
        (self.view, self.explanation, self.scroll) = (View::Explanation, None, 0);
    }

    /// Asks for what is shown and is not there.
    fn want(&mut self) {
        if self.explanation.is_none() && self.view != View::Explanation {
            self.explanation = Some(Ok(Vec::new()));
        }
        if !self.samples_wait && self.samples_for != Some(self.at) {
            (self.samples_for, self.samples_wait) = (Some(self.at), true);
            self.asks.push(Ask::Samples { at: self.at.unwrap_or(self.now) });
        }
        // What is in force now is a part of the charts, so they wait for the first answer, if it comes
        // at once.
        if self.status.is_none() && self.no_status.is_none() && self.now <= self.started {
            return;
        }
        let window = self.window();
        let before = self.charts_for.as_ref().filter(|of| self.status.is_none() && of.group == self.selected);
        let wanted = ChartsFor {
            group: self.selected.clone(),
            until: self.at.map(|_| self.until),
            span: self.span,
            columns: window.columns,
            now: match before {
                Some(before) => before.now,
                None => Now::new(self.status.as_deref(), &self.selected, &self.objective),
            },
        };
        if !self.charts_wait && self.charts_for.as_ref() != Some(&wanted) {
            self.asks.push(Ask::Charts { group: wanted.group.clone(), window, now: wanted.now });
            (self.charts_for, self.charts_wait) = (Some(wanted), true);
        }
    }
}
