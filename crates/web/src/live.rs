//! What the daemon tells. One thread asks it for all clients. While somebody listens to events, it
//! is asked for its status once a second, and each status becomes text once for all.

use std::path::PathBuf;
use std::sync::mpsc as queue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use hyper::body::Bytes;
use omr_charts::{Decisions, Seen, explain};
use omr_control::client::Client;
use omr_control::status::Status;
use omr_kernel::clock;
use omr_units::Monotonic;
use serde::Serialize;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{HANGS, server, words};

/// The time between two questions for the status.
const TICK: Duration = Duration::from_secs(1);
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

enum Ask {
    Status(oneshot::Sender<Result<Status, String>>),
    Explain(String, oneshot::Sender<Result<Vec<String>, String>>),
}

/// What the daemon tells, for all clients.
pub struct Live {
    asks: queue::Sender<Ask>,
    wake: Notify,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    readers: Vec<Reader>,
    last: Option<(Monotonic, Known)>,
    decisions: Decisions,
    events: u64,
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
        server::spawn_thread("omr-web-daemon", move || ask_daemon(socket, &questions))?;
        Ok(Live { asks, wake: Notify::new(), shared: Mutex::default() })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the daemon for its status.
    async fn ask(&self) -> Known {
        let (answer, answers) = oneshot::channel();
        let status = self.wait(Ask::Status(answer), answers).await.map(Arc::new);
        let mut shared = self.shared();
        if let Ok(status) = &status {
            shared.decisions.note(clock::read_wall().as_secs(), status);
        }
        shared.last = Some((clock::read_monotonic(), status.clone()));
        status
    }

    async fn wait<T>(&self, ask: Ask, answers: oneshot::Receiver<Result<T, String>>) -> Result<T, String> {
        let ended = || "the thread that asks the daemon has ended".to_owned();
        self.asks.send(ask).map_err(|_| ended())?;
        match tokio::time::timeout(HANGS, answers).await {
            Ok(answer) => answer.map_err(|_| ended())?,
            Err(_) => Err(format!("the daemon has not answered for {} s", HANGS.as_secs())),
        }
    }

    /// Returns the status of now.
    pub async fn status(&self) -> Known {
        let last = self.shared().last.clone();
        match last {
            Some((time, status)) if clock::read_monotonic().since(time) <= FRESH => status,
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

    /// Asks once a second while there are readers, for ever.
    pub async fn tell(&self) {
        loop {
            if self.shared().readers.is_empty() {
                self.wake.notified().await;
            }
            let next = tokio::time::Instant::now() + TICK;
            let status = self.ask().await;
            self.shared().tell(&status);
            tokio::time::sleep_until(next).await;
            self.shared().readers.retain(|reader| !reader.events.is_closed());
        }
    }
}

impl Shared {
    fn tell(&mut self, status: &Known) {
        self.events += 1;
        let event = event(self.events, clock::read_wall().as_secs(), status);
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
