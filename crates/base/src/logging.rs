//! Log messages: to the journal, or to standard error if a person watches.

use std::io::Write as _;

use log::{LevelFilter, Log, Metadata, Record};

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

/// Starts logging. `OMR_LOG` sets the level: error, warn, info (the default) or debug.
pub fn start(stderr: bool) {
    let level = std::env::var("OMR_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::Info);
    log::set_max_level(level);
    if !stderr
        && let Ok(journal) = systemd_journal_logger::JournalLog::new()
        && journal.with_syslog_identifier("omr".into()).install().is_ok()
    {
        return;
    }
    // A logger that is set already was set by an earlier call, for the same purpose.
    let _ = log::set_boxed_logger(Box::new(Stderr));
}
