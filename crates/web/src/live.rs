//! What the daemon tells. One thread asks it for all clients. While somebody listens to events,
//! another thread waits for its status, which comes when there is news. Once a second there is an
//! event with the last status, which becomes text once for all.

use std::path::PathBuf;
use std::sync::mpsc as queue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use hyper::body::Bytes;
use omr_charts::{Decisions, Seen, explain};
use omr_control::client::{Client, Watch};
use omr_control::protocol::NEWS;
use omr_control::status::Status;
use omr_kernel::clock;
use omr_units::Monotonic;
use serde::Serialize;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{HANGS, server, words};

/// The time between two events.
const TICK: Duration = Duration::from_secs(1);
/// While it is waited for, a status is the daemon's last word for this time. Then the daemon is
/// said to hang.
const NO_NEWS: Duration = NEWS.saturating_add(HANGS);
/// A status that is not older answers other questions.
const FRESH: Duration = Duration::from_secs(2);
/// Events that wait for a slow reader. Those after them are left out.
const MOST_WAITING: usize = 2;
/// A reader that has taken nothing for this number of events is dropped.
const MOST_LEFT_OUT: u32 = 30;
/// Every so many events there is a comment, so that proxies do not take the connection for dead.
const COMMENT_EACH: u64 = 15;

/// The daemon's answer, or the reason why there is none.
pub type Known = Result<Arc<Status>, String>;

/// Where the next status goes; `None`: none is wanted any more.
type Watched = Option<oneshot::Sender<Result<Status, String>>>;

enum Ask {
    Status(oneshot::Sender<Result<Status, String>>),
    Explain(String, oneshot::Sender<Result<Vec<String>, String>>),
}

/// What the daemon tells, for all clients.
pub struct Live {
    asks: queue::Sender<Ask>,
    watch: queue::Sender<Watched>,
    wake: Notify,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    readers: Vec<Reader>,
    last: Option<Last>,
    decisions: Decisions,
    events: u64,
}

/// The last answer of the daemon.
#[derive(Clone)]
struct Last {
    at: Monotonic,
    /// Seconds since 1970.
    time: u64,
    known: Known,
}

struct Reader {
    events: mpsc::Sender<Bytes>,
    left_out: u32,
}

#[derive(Serialize)]
struct Event<'a> {
    time: u64,
    status: Option<&'a Status>,
    missing: Option<&'a str>,
}

impl Live {
    /// Starts the thread.
    pub fn start(socket: PathBuf) -> Result<Self> {
        let (asks, questions) = queue::channel();
        let watched = socket.clone();
        server::spawn_thread("omr-web-daemon", move || ask_daemon(socket, &questions))?;
        let (watch, wanted) = queue::channel();
        server::spawn_thread("omr-web-status", move || watch_daemon(watched, &wanted))?;
        Ok(Live { asks, watch, wake: Notify::new(), shared: Mutex::default() })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the daemon for its status.
    async fn ask(&self) -> Known {
        let (answer, answers) = oneshot::channel();
        let status = self.wait(Ask::Status(answer), answers).await.map(Arc::new);
        self.shared().keep(status.clone());
        status
    }

    async fn wait<T>(&self, ask: Ask, answers: oneshot::Receiver<Result<T, String>>) -> Result<T, String> {
        let ended = || "the thread that asks the daemon has ended".to_owned();
        self.asks.send(ask).map_err(|_| ended())?;
        match tokio::time::timeout(HANGS, answers).await {
            Ok(answer) => answer.map_err(|_| ended())?,
            Err(_) => Err(hangs_for(HANGS)),
        }
    }

    /// Returns the status of now.
    pub async fn status(&self) -> Known {
        let (last, fresh) = {
            let shared = self.shared();
            (shared.last.clone(), if shared.readers.is_empty() { FRESH } else { NO_NEWS })
        };
        match last {
            Some(last) if clock::read_monotonic().since(last.at) <= fresh => last.known,
            _ => self.ask().await,
        }
    }

    /// Asks the daemon for its explanation of a group; empty: the machine.
    pub async fn explain(&self, group: String) -> Result<Vec<String>, String> {
        let (answer, answers) = oneshot::channel();
        self.wait(Ask::Explain(group, answer), answers).await
    }

    /// The decisions that were seen.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared().decisions.iter().cloned().collect()
    }

    /// A new reader of events.
    pub fn listen(&self) -> mpsc::Receiver<Bytes> {
        let (events, received) = mpsc::channel(MOST_WAITING);
        let mut shared = self.shared();
        // There is room for the first one.
        let _ = events.try_send(Bytes::from_static(b"retry: 2000\n\n"));
        shared.readers.push(Reader { events, left_out: 0 });
        self.wake.notify_one();
        received
    }

    /// Waits for news and makes events while there are readers, for ever.
    pub async fn tell(&self) {
        let mut news = None;
        loop {
            if self.shared().readers.is_empty() {
                // The daemon is not to make a status that nobody reads.
                drop(self.watch.send(None));
                news = None;
                self.wake.notified().await;
            }
            let next = tokio::time::Instant::now() + TICK;
            let (asked, waits) = news.get_or_insert_with(|| {
                let (answer, answers) = oneshot::channel();
                drop(self.watch.send(Some(answer)));
                (clock::read_monotonic(), answers)
            });
            match tokio::time::timeout_at(next, waits).await {
                Ok(status) => {
                    let ended = || Err("the thread that waits for the daemon has ended".to_owned());
                    self.shared().keep(status.unwrap_or_else(|_| ended()).map(Arc::new));
                    news = None;
                }
                Err(_) => self.shared().miss(*asked),
            }
            self.shared().tell();
            tokio::time::sleep_until(next).await;
            self.shared().readers.retain(|reader| !reader.events.is_closed());
        }
    }
}

fn hangs_for(time: Duration) -> String {
    format!("the daemon has not answered for {} s", time.as_secs())
}

impl Shared {
    /// Keeps an answer of the daemon.
    fn keep(&mut self, known: Known) {
        let (at, time) = (clock::read_monotonic(), clock::read_wall().as_secs());
        if let Ok(status) = &known {
            self.decisions.note(time, status);
        }
        self.last = Some(Last { at, time, known });
    }

    /// No news has come since it was asked for at this time: after a while the daemon hangs.
    fn miss(&mut self, asked: Monotonic) {
        let now = clock::read_monotonic();
        let last = self.last.as_ref().filter(|last| last.known.is_ok() && now.since(last.at) < NO_NEWS);
        let may_take = if last.is_some() { NO_NEWS } else { HANGS };
        if now.since(asked) >= may_take {
            self.keep(Err(hangs_for(may_take)));
        }
    }

    /// Sends an event with the last answer to all readers.
    fn tell(&mut self) {
        let Some(last) = &self.last else { return };
        self.events += 1;
        let event = event(self.events, last.time, &last.known);
        self.readers.retain_mut(|reader| match reader.events.try_send(event.clone()) {
            Ok(()) => {
                reader.left_out = 0;
                true
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                reader.left_out += 1;
                reader.left_out < MOST_LEFT_OUT
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }
}

fn event(number: u64, time: u64, status: &Known) -> Bytes {
    let (status, missing) = match status {
        Ok(status) => (Some(&**status), None),
        Err(why) => (None, Some(why.as_str())),
    };
    // JSON has no line breaks but in strings, where they are escaped.
    let data = serde_json::to_string(&Event { time, status, missing }).unwrap_or_default();
    let comment = if number.is_multiple_of(COMMENT_EACH) { ": the connection lives\n\n" } else { "" };
    format!("{comment}id: {number}\nevent: status\ndata: {data}\n\n").into()
}

fn watch_daemon(socket: PathBuf, wanted: &queue::Receiver<Watched>) {
    let mut watch = Watch::new(socket);
    for next in wanted {
        match next {
            Some(answer) if !answer.is_closed() => drop(answer.send(words(watch.next_status()))),
            Some(_) => {}
            None => watch.leave(),
        }
    }
}

fn ask_daemon(socket: PathBuf, asks: &queue::Receiver<Ask>) {
    let mut client = Client::new(socket);
    for ask in asks {
        // Nobody may wait any more: then the daemon is not asked.
        match ask {
            Ask::Status(answer) if !answer.is_closed() => drop(answer.send(words(client.status()))),
            Ask::Explain(group, answer) if !answer.is_closed() => {
                let lines = client.explain(&group).map(|explanation| explain::lines(&explanation));
                drop(answer.send(words(lines)));
            }
            _ => {}
        }
    }
}
