//! What the history and the ledger tell. One thread reads them, one question at a time. An answer is
//! kept for some seconds, so that many clients with one question cost one reading.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc as queue;
use std::time::Duration;

use anyhow::Result;
use hyper::body::Bytes;
use omr_charts::{Charts, Group, Now, Seen, Sort, Window, list, moment, ordered, samples_at};
use omr_control::status::Status;
use omr_kernel::clock;
use omr_policy::Objective;
use omr_units::Monotonic;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::live::Known;
use crate::question::Question;
use crate::{server, words};

/// An answer is kept for this time at least.
const KEPT: Duration = Duration::from_secs(5);
/// And for this many times as long as it took to make, so that equal questions cost 2 % of a CPU.
const REST: u32 = 50;
/// But no longer than this.
const MOST_KEPT: Duration = Duration::from_secs(60);
/// The most bytes of answers that are kept. A chart of 240 columns has 0.3 MB.
const MOST_BYTES: usize = 2 << 20;

/// The reader of the records.
#[derive(Debug)]
pub struct Records(queue::Sender<Ask>);

#[derive(Debug)]
struct Ask {
    question: Question,
    known: Known,
    seen: Vec<Seen>,
    answer: oneshot::Sender<Bytes>,
}

#[derive(Serialize)]
struct Groups {
    at: Option<u64>,
    groups: Vec<Group>,
    missing: Option<String>,
}

#[derive(Serialize)]
struct ChartsOf<'a> {
    charts: Option<&'a Charts>,
    missing: Option<String>,
}

#[derive(Serialize)]
struct Lines {
    lines: Vec<String>,
    missing: Option<String>,
}

impl Records {
    /// Starts the thread.
    pub fn start(root: &Path, objective: Objective) -> Result<Self> {
        let (asks, questions) = queue::channel();
        let reader = Reader { root: root.to_owned(), objective, kept: VecDeque::new() };
        server::spawn_thread("omr-web-history", move || reader.run(&questions))?;
        Ok(Records(asks))
    }

    /// Returns the answer: metrics as OpenMetrics text, anything else as JSON. `known`, `seen`: the daemon's status, and the decisions that were
    /// seen.
    pub async fn ask(&self, question: Question, known: Known, seen: Vec<Seen>) -> Result<Bytes, String> {
        let ended = || "the thread that reads the history has ended".to_owned();
        let (answer, answers) = oneshot::channel();
        self.0.send(Ask { question, known, seen, answer }).map_err(|_| ended())?;
        answers.await.map_err(|_| ended())
    }
}

struct Reader {
    root: PathBuf,
    objective: Objective,
    kept: VecDeque<Kept>,
}

struct Kept {
    question: Question,
    answer: Bytes,
    until: Monotonic,
}

impl Reader {
    fn run(mut self, asks: &queue::Receiver<Ask>) {
        for ask in asks {
            // Nobody waits for it any more.
            if ask.answer.is_closed() {
                continue;
            }
            let began = clock::read_monotonic();
            self.kept.retain(|kept| kept.until > began);
            let kept = self.kept.iter().find(|kept| kept.question == ask.question);
            let answer = match kept {
                Some(kept) => kept.answer.clone(),
                None => {
                    let answer = self.read(&ask.question, &ask.known, &ask.seen);
                    let ended = clock::read_monotonic();
                    let rest = (ended.since(began) * REST).clamp(KEPT, MOST_KEPT);
                    self.keep(Kept { question: ask.question, answer: answer.clone(), until: ended + rest });
                    answer
                }
            };
            let _ = ask.answer.send(answer);
        }
    }

    fn keep(&mut self, kept: Kept) {
        self.kept.push_back(kept);
        while self.kept.iter().map(|kept| kept.answer.len()).sum::<usize>() > MOST_BYTES {
            self.kept.pop_front();
        }
    }

    fn read(&self, question: &Question, known: &Known, seen: &[Seen]) -> Bytes {
        let wall = clock::read_wall();
        let status = known.as_deref().ok();
        // The past needs no daemon.
        let no_status = |at: &Option<u64>| known.as_ref().err().filter(|_| at.is_none()).cloned();
        match question {
            Question::Groups { at } => {
                let time = at.map_or(wall, Duration::from_secs);
                let (groups, missing) = groups(&self.root, time, status.filter(|_| at.is_none()));
                json(&Groups { at: *at, groups, missing: missing.or_else(|| no_status(at)) })
            }
            Question::Charts { group, at, span, columns } => {
                let end = at.map_or(wall, Duration::from_secs);
                let window = Window::ending(end, Duration::from_secs(*span), *columns);
                let now = Now::new(status, group, &self.objective);
                let charts = words(omr_charts::read(&self.root, group, window, &now)).map(|mut charts| {
                    add_now(&mut charts, status.filter(|_| at.is_none()), seen);
                    charts
                });
                let missing = charts.as_ref().err().cloned().or_else(|| no_status(at));
                json(&ChartsOf { charts: charts.as_ref().ok(), missing })
            }
            Question::Metrics => omr_metrics::read(&self.root, status, wall, omr_metrics::Options::default()).into(),
            Question::Moment { group, from, to } => {
                let lines = words(moment(&self.root, group, *from..*to, seen));
                let missing = lines.as_ref().err().cloned();
                json(&Lines { lines: lines.unwrap_or_default(), missing })
            }
        }
    }
}

/// Adds what the records do not have: figures of now, and decisions that were seen.
pub fn add_now(charts: &mut Charts, status: Option<&Status>, seen: &[Seen]) {
    seen.iter().for_each(|seen| charts.timeline.add_seen(seen));
    charts.set_now(status);
}

/// Returns the groups in the order of their memory, and the reason why samples are missing.
pub fn groups(root: &Path, time: Duration, status: Option<&Status>) -> (Vec<Group>, Option<String>) {
    let samples = words(samples_at(root, time));
    let missing = samples.as_ref().err().cloned();
    (ordered(&list(status, &samples.unwrap_or_default()), Sort::Memory), missing)
}

/// The text of a value. Plain data becomes text in any case.
fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}
