//! Log messages: to the journal, or to standard error if a person watches.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// The messages that wait for a reader who hangs, at most; further ones are lost.
const MOST_MESSAGES: usize = 256;
/// The time that the last messages have when the program ends.
const LAST: Duration = Duration::from_secs(1);
const STACK: usize = 64 << 10;

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// A logger that writes one line per message to standard error.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A closed pipe must not end the program.
        let _ = writeln!(std::io::stderr(), "omr: {}", record.args());
    }

    fn flush(&self) {}
}

/// A message on its way to the thread, or the question whether all before it were written.
enum Message {
    Log { level: Level, target: String, text: String },
    Flush(SyncSender<()>),
}

/// The logger of the program.
struct Logger {
    /// Writes to the journal or to standard error. Both wait for their reader.
    writer: Box<dyn Log>,
    /// The way to the thread that writes; empty: the caller writes.
    queue: OnceLock<SyncSender<Message>>,
    /// Messages that found no place in the queue since the last one that did.
    lost: AtomicU64,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.writer.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let Some(queue) = self.queue.get() else {
            self.writer.log(record);
            return;
        };
        let (level, target, text) = (record.level(), record.target().to_owned(), record.args().to_string());
        if queue.try_send(Message::Log { level, target, text }).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn flush(&self) {
        if let Some(queue) = self.queue.get() {
            let (done, is_done) = sync_channel(1);
            if queue.try_send(Message::Flush(done)).is_ok() {
                let _ = is_done.recv_timeout(LAST);
            }
        }
        self.writer.flush();
    }
}

impl Logger {
    fn new(writer: Box<dyn Log>) -> Self {
        Logger { writer, queue: OnceLock::new(), lost: AtomicU64::new(0) }
    }

    fn write_in_background(&'static self) -> Result<()> {
        let (queue, messages) = sync_channel(MOST_MESSAGES);
        let builder = thread::Builder::new().name("omr-log".into()).stack_size(STACK);
        builder.spawn(move || self.write_all(&messages)).context("start the thread omr-log")?;
        let _ = self.queue.set(queue);
        Ok(())
    }

    /// The thread.
    fn write_all(&self, messages: &Receiver<Message>) {
        let write = |level, target: &str, text: &str| {
            self.writer.log(&Record::builder().level(level).target(target).args(format_args!("{text}")).build());
        };
        for message in messages {
            match message {
                Message::Log { level, target, text } => write(level, &target, &text),
                Message::Flush(done) => drop(done.send(())),
            }
            let lost = self.lost.swap(0, Relaxed);
            if lost > 0 {
                write(Level::Warn, module_path!(), &format!("{lost} messages were lost: the journal was too slow"));
            }
        }
    }
}

/// Starts logging. `OMR_LOG` sets the level: error, warn, info (the default) or debug.
pub fn start(stderr: bool) {
    let level = std::env::var("OMR_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::Info);
    log::set_max_level(level);
    let writer: Box<dyn Log> = match systemd_journal_logger::JournalLog::new() {
        Ok(journal) if !stderr => Box::new(journal.with_syslog_identifier("omr".into())),
        _ => Box::new(Stderr),
    };
    // A logger that is set already was set by an earlier call, for the same purpose.
    let _ = log::set_logger(LOGGER.get_or_init(|| Logger::new(writer)));
}

/// Leaves the writing of messages to a thread from now on: a journal that hangs, or a terminal that
/// was stopped, must not stop the caller.
pub fn write_in_background() -> Result<()> {
    LOGGER.get().map_or(Ok(()), Logger::write_in_background)
}
