//! Google Compute Engine: preemption and maintenance events, by requests that are answered when a
//! value changes.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use omr_policy::Purpose;

use super::http::{Request, Server};
use super::notice::Notice;
use super::source::{Source, word};

/// The server answers after this many seconds if nothing has changed.
const WAIT: u64 = 60;
/// The time limit of a request that waits, a little longer.
const PATIENCE: Duration = Duration::from_secs(WAIT + 10);
/// The time limit of a request that does not wait.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two requests, for a server that does not wait although it was asked to.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time from the notice to ACPI power off.
const PREEMPTION: Duration = Duration::from_secs(30);
/// The time from the notice to the event. (A machine with GPUs has an hour; the notice does not
/// tell which it is.)
const MAINTENANCE: Duration = Duration::from_secs(60);

/// A value of the instance that can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `instance/preempted`: `FALSE`, `TRUE`.
    Preempted,
    /// `instance/maintenance-event`: `NONE`, `MIGRATE_ON_HOST_MAINTENANCE`,
    /// `TERMINATE_ON_HOST_MAINTENANCE`. The 60 seconds are given only to those who have asked for
    /// it since the last event.
    MaintenanceEvent,
}

impl Key {
    fn path(self) -> &'static str {
        match self {
            Key::Preempted => "/computeMetadata/v1/instance/preempted",
            Key::MaintenanceEvent => "/computeMetadata/v1/instance/maintenance-event",
        }
    }
}

/// One value of the instance.
#[derive(Debug)]
pub struct Gcp {
    key: Key,
    /// The tag of the last answer. `None` before the first answer, which therefore comes at once.
    etag: Option<String>,
    /// The event of the last answer, with the time of its first sight; `None`: no event.
    event: Option<Notice>,
}

impl Gcp {
    /// For this value.
    pub fn new(key: Key) -> Self {
        Gcp { key, etag: None, event: None }
    }
}

impl Source for Gcp {
    fn name(&self) -> &'static str {
        match self.key {
            Key::Preempted => "gcp preempted",
            Key::MaintenanceEvent => "gcp maintenance-event",
        }
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    fn poll(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let path = self.key.path();
        let (query, patience) = match &self.etag {
            Some(etag) => (format!("?wait_for_change=true&timeout_sec={WAIT}&last_etag={etag}"), PATIENCE),
            None => (String::new(), SHORT_PATIENCE),
        };
        // After a failure the next request asks for the value as it is.
        self.etag = None;
        let headers = [("Metadata-Flavor", "Google")];
        let target = format!("{path}{query}");
        let answer = server.ask(&Request { method: "GET", path: &target, headers: &headers, patience })?;
        let Some(answer) = answer.found(path)? else { bail!("{path}: not there (404)") };
        if answer.header("Metadata-Flavor") != Some("Google") {
            bail!("{path}: answered by something else than the metadata server (no Metadata-Flavor: Google)");
        }
        // The tag goes into a query as it is.
        let sane =
            |etag: &&str| !etag.is_empty() && etag.len() <= 64 && etag.bytes().all(|c| c.is_ascii_alphanumeric());
        self.etag = answer.header("ETag").filter(sane).map(str::to_owned);
        let event = parse(self.key, answer.text().context(path)?, server.now())?;
        match (&self.event, event) {
            (Some(known), Some(event)) if known.id == event.id => {}
            (_, event) => self.event = event,
        }
        Ok(self.event.iter().cloned().collect())
    }
}

fn parse(key: Key, value: &str, now: SystemTime) -> Result<Option<Notice>> {
    let (purpose, time) = match (key, value) {
        (Key::Preempted, "FALSE") | (Key::MaintenanceEvent, "NONE") => return Ok(None),
        (Key::Preempted, "TRUE") => (Purpose::Preempt, PREEMPTION),
        (Key::MaintenanceEvent, "MIGRATE_ON_HOST_MAINTENANCE") => (Purpose::Migrate, MAINTENANCE),
        (Key::MaintenanceEvent, "TERMINATE_ON_HOST_MAINTENANCE") => (Purpose::Preempt, MAINTENANCE),
        _ => bail!("{}: {:?} is no value that is known", key.path(), word(value)),
    };
    let what = match key {
        Key::Preempted => "preemption".to_owned(),
        Key::MaintenanceEvent => format!("maintenance event: {value}"),
    };
    let name = key.path().trim_start_matches("/computeMetadata/v1/");
    Ok(Some(Notice { id: format!("{name} {value}"), what, purpose: Some(purpose), at: Some(now + time) }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_value_is_prepared_for() {
        let now = SystemTime::UNIX_EPOCH;
        let purpose = |key, value| parse(key, value, now).ok().map(|notice| notice.and_then(|notice| notice.purpose));
        use Key::{MaintenanceEvent, Preempted};
        for (key, value, expected) in [
            (Preempted, "FALSE", Some(None)),
            (Preempted, "TRUE", Some(Some(Purpose::Preempt))),
            (Preempted, "NONE", None),
            (Preempted, "", None),
            (MaintenanceEvent, "NONE", Some(None)),
            (MaintenanceEvent, "MIGRATE_ON_HOST_MAINTENANCE", Some(Some(Purpose::Migrate))),
            (MaintenanceEvent, "TERMINATE_ON_HOST_MAINTENANCE", Some(Some(Purpose::Preempt))),
            (MaintenanceEvent, "<html>", None),
        ] {
            assert_eq!(purpose(key, value), expected, "{key:?} {value}");
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(value in "\\PC{0,40}") {
            let _ = parse(Key::Preempted, &value, SystemTime::UNIX_EPOCH);
            let _ = parse(Key::MaintenanceEvent, &value, SystemTime::UNIX_EPOCH);
        }
    }

    #[test]
    fn no_change_of_an_answer_makes_it_panic() {
        let values = ["TRUE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"];
        // The server's clock, which the answer sets, may be at the end of the years that have four digits.
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        omr_testkit::fuzz::feed(&values, |value| {
            let value = String::from_utf8_lossy(value);
            for key in [Key::Preempted, Key::MaintenanceEvent] {
                let Ok(notice) = parse(key, &value, late) else { continue };
                assert!(notice.is_none_or(|notice| notice.id.len() < 100 && notice.at > Some(late)));
            }
        });
    }
}
