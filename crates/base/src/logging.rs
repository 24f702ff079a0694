//! Where messages go: the journal for the daemon, standard error where somebody is looking.

use std::io::Write as _;

use log::{LevelFilter, Log, Metadata, Record};

/// Standard error, a line each.
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A pipe that nobody reads any more is no reason to end.
        let _ = writeln!(std::io::stderr(), "omr: {}", record.args());
    }

    fn flush(&self) {}
}

/// Starts logging. `OMR_LOG` chooses how much: error, warn, info (the default), debug.
pub fn start(stderr: bool) {
    let level = std::env::var("OMR_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::Info);
    log::set_max_level(level);
    if !stderr
        && let Ok(journal) = systemd_journal_logger::JournalLog::new()
        && journal.with_syslog_identifier("omr".into()).install().is_ok()
    {
        return;
    }
    // Set already means set by an earlier call with the same aim.
    let _ = log::set_boxed_logger(Box::new(Stderr));
}
