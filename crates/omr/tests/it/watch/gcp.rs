//! Notices of Google Compute Engine, whose server answers when a value changes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::metadata::{Metadata, Reply, has, ok, path, status};
use super::once;
use super::running::Running;
use crate::common::running::wait_until;

/// A metadata server of Google's, whose values can be changed; whoever waits for that is answered
/// then.
#[derive(Clone)]
struct Google(Arc<Mutex<[(&'static str, u64); 2]>>);

impl Google {
    fn new() -> Self {
        Google(Arc::new(Mutex::new([("FALSE", 1), ("NONE", 1)])))
    }

    fn set(&self, index: usize, value: &'static str) {
        let mut values = self.0.lock().expect("values");
        values[index] = (value, values[index].1 + 1);
    }

    fn answer(&self, head: &str) -> Reply {
        if !has(head, "Metadata-Flavor", "Google") {
            return status(403);
        }
        let index = match path(head).split('?').next() {
            Some("/computeMetadata/v1/instance/preempted") => 0,
            Some("/computeMetadata/v1/instance/maintenance-event") => 1,
            _ => return status(404),
        };
        loop {
            let (value, etag) = self.0.lock().expect("values")[index];
            let waits = path(head).contains("wait_for_change=true&timeout_sec=60");
            if !waits || !path(head).ends_with(&format!("last_etag={etag:x}")) {
                let headers: &'static str = format!("Metadata-Flavor: Google\r\nETag: {etag:x}\r\n").leak();
                return Reply::Answer(200, headers, value.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_preemption_is_told_when_it_changes_and_once() {
    let google = Google::new();
    let server = Metadata::start({
        let google = google.clone();
        move |head, _| google.answer(head)
    });
    let mut watch = Running::start(server.root("gcp"));
    // The first of each comes at once, the second of each waits.
    wait_until("both wait", || server.asked().len() == 4);
    assert_eq!(watch.requests(), [Value::Null; 0]);
    google.set(0, "TRUE");
    watch.wait_for(1);
    let request = &watch.requests()[0];
    assert_eq!((&request["for"], &request["why"]), (&json!("preempt"), &json!("preemption")));
    assert!(request["deadline_ms"].as_u64().is_some_and(|left| left <= 30_000), "{request}");
    // A new tag for the same value.
    google.set(0, "TRUE");
    let before = server.asked().len();
    wait_until("it is seen again", || server.asked().len() > before + 1 || watch.requests().len() > 1);
    assert_eq!(watch.requests().len(), 1);
    // Both wait for up to a minute now.
    let took = watch.end();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_maintenance_event_comes_and_goes() {
    let google = Google::new();
    google.set(1, "MIGRATE_ON_HOST_MAINTENANCE");
    let server = Metadata::start({
        let google = google.clone();
        move |head, _| google.answer(head)
    });
    let mut watch = Running::start(server.root("gcp"));
    watch.wait_for(1);
    assert_eq!(watch.requests()[0]["for"], "migrate");
    google.set(1, "NONE");
    watch.wait_for(2);
    assert_eq!(watch.requests()[1], json!({"do": "stand-down"}));
    google.set(1, "TERMINATE_ON_HOST_MAINTENANCE");
    watch.wait_for(3);
    assert_eq!(watch.requests()[2]["for"], "preempt");
    watch.end();
}

#[test]
fn only_the_metadata_server_is_believed() {
    let server = Metadata::start(|_, _| ok("TRUE"));
    let (code, requests, log) = once(&server.root("gcp"));
    assert_eq!((code, requests), (1, vec![]));
    assert!(log.contains("no Metadata-Flavor: Google"), "{log}");
}

#[test]
fn a_server_that_does_not_wait_is_not_asked_without_end() {
    let server = Metadata::start(|_, _| Reply::Answer(200, "Metadata-Flavor: Google\r\nETag: 1\r\n", "FALSE".into()));
    let began = Instant::now();
    let mut watch = Running::start(server.root("gcp"));
    std::thread::sleep(Duration::from_secs(4));
    let most = 2 * (usize::try_from(began.elapsed().as_secs()).expect("few") + 1);
    let asked = server.asked().len();
    assert!((2..=most).contains(&asked), "{asked} requests");
    watch.end();
}

#[test]
fn a_server_that_fails_is_asked_less_and_less_often() {
    let server = Metadata::start(|_, _| status(500));
    let mut watch = Running::start(server.root("gcp"));
    std::thread::sleep(Duration::from_secs(6));
    // After 1, 2 and 4 seconds: at 0, 1, 3 and 7, each of the two.
    let asked = server.asked().len();
    assert!((2..=6).contains(&asked), "{asked} requests");
    watch.end();
    let log = watch.log();
    assert_eq!(log.matches("the answer is 500").count(), 1 + 1, "once for each source: {log}");
}
