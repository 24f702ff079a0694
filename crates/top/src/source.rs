//! Three threads: one waits for the daemon's status, one asks the daemon for explanations, and one
//! reads the history and the ledger.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::paths;
use omr_charts::{Charts, Now, Sampled, Seen, Window, explain, moment, samples_at};
use omr_control::client::{Client, Watch};
use omr_control::status::Status;
use omr_kernel::clock;
use omr_units::millis;

/// Something to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The daemon's next status: the first one comes at once, others when there is news.
    Status,
    /// The daemon's explanation of a group; empty: the machine.
    Explain {
        /// The path of the group.
        group: String,
    },
    /// The last samples of all groups at this time, in seconds since 1970.
    Samples {
        /// The time.
        at: u64,
    },
    /// The charts of a group.
    Charts {
        /// The path of the group.
        group: String,
        /// The times.
        window: Window,
        /// What is in force now.
        now: Now,
    },
    /// What omr did to a group in a part of the past.
    Moment {
        /// The path of the group.
        group: String,
        /// The first second.
        from: u64,
        /// The second after the last one.
        to: u64,
        /// Decisions that were seen live.
        seen: Vec<Seen>,
    },
}

/// An answer. Errors are in words.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The daemon's status.
    Status(Result<Box<Status>, String>),
    /// An explanation, in lines.
    Explained(Result<Vec<String>, String>),
    /// Samples of groups at this time.
    Samples(u64, Result<Vec<Sampled>, String>),
    /// The charts, and the milliseconds that it took to read them.
    Charts(Result<Box<Charts>, String>, u64),
}

/// The threads.
pub struct Source {
    status: Sender<Ask>,
    daemon: Sender<Ask>,
    records: Sender<Ask>,
    answers: Receiver<Answer>,
}

impl Source {
    /// Starts the threads.
    pub fn start(root: &Path) -> Result<Self> {
        let (answer, answers) = channel();
        let (status, asks) = channel();
        let (socket, to) = (paths::socket(root), answer.clone());
        spawn("omr-top-status", move || watch_daemon(socket, &asks, &to))?;
        let (daemon, asks) = channel();
        let (socket, to) = (paths::socket(root), answer.clone());
        spawn("omr-top-daemon", move || ask_daemon(socket, &asks, &to))?;
        let (records, asks) = channel();
        let root = root.to_owned();
        spawn("omr-top-history", move || read_records(&root, &asks, &answer))?;
        Ok(Source { status, daemon, records, answers })
    }

    /// Asks for something. The answer comes later.
    pub fn ask(&self, ask: Ask) {
        let to = match &ask {
            Ask::Status => &self.status,
            Ask::Explain { .. } => &self.daemon,
            Ask::Samples { .. } | Ask::Charts { .. } | Ask::Moment { .. } => &self.records,
        };
        // The threads end with the program only.
        let _ = to.send(ask);
    }

    /// Returns an answer that has come; `None`: there is none.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// Starts a thread that ends with the program.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    // Small stacks: nothing here is deep.
    let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
    thread.spawn(run).context("start a thread")?;
    Ok(())
}

fn words<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|err| format!("{err:#}"))
}

fn watch_daemon(socket: PathBuf, asks: &Receiver<Ask>, answers: &Sender<Answer>) {
    let mut watch = Watch::new(socket);
    for _ in asks {
        if answers.send(Answer::Status(words(watch.next_status().map(Box::new)))).is_err() {
            return;
        }
    }
}

fn ask_daemon(socket: PathBuf, asks: &Receiver<Ask>, answers: &Sender<Answer>) {
    let mut client = Client::new(socket);
    for ask in asks {
        let Ask::Explain { group } = ask else { continue };
        let lines = client.explain(&group).map(|explanation| explain::lines(&explanation));
        if answers.send(Answer::Explained(words(lines))).is_err() {
            return;
        }
    }
}

fn read_records(root: &Path, asks: &Receiver<Ask>, answers: &Sender<Answer>) {
    for ask in asks {
        let answer = match ask {
            Ask::Samples { at } => Answer::Samples(at, words(samples_at(root, Duration::from_secs(at)))),
            Ask::Charts { group, window, now } => {
                let began = clock::read_monotonic();
                let charts = words(omr_charts::read(root, &group, window, &now)).map(Box::new);
                Answer::Charts(charts, millis(clock::read_monotonic().since(began)))
            }
            Ask::Moment { group, from, to, seen } => Answer::Explained(words(moment(root, &group, from..to, &seen))),
            Ask::Status | Ask::Explain { .. } => continue,
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}
