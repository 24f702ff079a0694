//! Scheduled events of Azure.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::metadata::{Metadata, has, ok, path, status};
use super::once;
use super::running::Running;
use crate::common::running::wait_until;

/// Seconds from now as Azure writes a time.
fn rfc1123(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds))
}

fn events(kind: &str, resources: &str, seconds: u64) -> String {
    let time = rfc1123(seconds);
    format!(
        r#"{{"DocumentIncarnation":2,"Events":[{{"EventId":"C7061BAC","EventStatus":"Scheduled","EventType":"{kind}",
        "ResourceType":"VirtualMachine","Resources":{resources},"NotBefore":"{time}","Description":"","EventSource":"Platform","DurationInSeconds":9}}]}}"#
    )
}

/// Azure's, with this list of events.
fn azure(list: impl Fn() -> String + Send + Sync + 'static) -> Metadata {
    Metadata::start(move |head, _| {
        if !has(head, "Metadata", "true") {
            return status(400);
        }
        match path(head) {
            "/metadata/instance/compute/name?api-version=2021-02-01&format=text" => ok("vm_1"),
            "/metadata/scheduledevents?api-version=2020-07-01" if head.starts_with("GET ") => ok(list()),
            _ => status(404),
        }
    })
}

#[test]
fn a_failure_withdraws_nothing() {
    // The notice, failures, the notice again.
    let list = Arc::new(events("Reboot", "[]", 100));
    let server = Metadata::start(move |head, before| match path(head).starts_with("/metadata/instance/") {
        true => ok("vm_1"),
        false if (2..4).contains(&before) => status(503),
        false => ok(list.as_str()),
    });
    let mut watch = Running::start(server.root("azure"));
    wait_until("it is seen again", || server.asked().len() >= 7);
    assert_eq!(watch.requests().len(), 1, "{:?}", watch.requests());
    assert!(watch.log().contains("azure: answers again"), "{}", watch.log());
    watch.end();
}

#[test]
fn scheduled_events_of_this_machine_are_prepared_for() {
    for (kind, resources, expected) in [
        ("Preempt", r#"["vm_0","vm_1"]"#, Some("preempt")),
        ("Preempt", r#"["vm_0"]"#, None),
        ("Freeze", r#"["vm_1"]"#, Some("migrate")),
        ("Reboot", r#"["vm_1"]"#, Some("preempt")),
        ("Redeploy", r#"["vm_1"]"#, Some("preempt")),
        ("Terminate", r#"["vm_1"]"#, Some("preempt")),
    ] {
        let server = azure(move || events(kind, resources, 30));
        let (code, requests, log) = once(&server.root("azure"));
        let purposes: Vec<_> = requests.iter().map(|request| request["for"].as_str()).collect();
        assert_eq!((code, purposes), (0, expected.into_iter().map(Some).collect()), "{kind} {resources}: {log}");
    }
}

#[test]
fn an_event_that_is_a_quarter_of_an_hour_away_waits() {
    let server = azure(|| events("Freeze", "[]", 900));
    let (code, requests, log) = once(&server.root("azure"));
    assert_eq!((code, requests), (0, vec![]));
    assert!(log.contains("announced: scheduled event: Freeze"), "{log}");
}

#[test]
fn an_event_that_is_repeated_is_told_once_and_one_that_moves_again() {
    let list = Arc::new(Mutex::new(events("Redeploy", "[]", 100)));
    let server = azure({
        let list = Arc::clone(&list);
        move || list.lock().expect("events").clone()
    });
    let mut watch = Running::start(server.root("azure"));
    wait_until("it has been seen three times", || server.asked().len() >= 4);
    assert_eq!(watch.requests().len(), 1);
    *list.lock().expect("events") = events("Redeploy", "[]", 50);
    watch.wait_for(2);
    let deadline = watch.requests()[1]["deadline_ms"].as_u64().expect("a deadline");
    assert!(deadline <= 50_000, "{deadline}");
    *list.lock().expect("events") = r#"{"DocumentIncarnation":3,"Events":[]}"#.into();
    watch.wait_for(3);
    assert_eq!(watch.requests()[2], json!({"do": "stand-down"}));
    watch.end();
}

#[test]
fn the_first_answer_of_azure_may_take_its_time() {
    // Longer than a later one may take.
    let server = Metadata::start(|head, _| match path(head).starts_with("/metadata/instance/") {
        true => ok("vm_1"),
        false => {
            std::thread::sleep(Duration::from_secs(12));
            ok(r#"{"DocumentIncarnation":1,"Events":[]}"#)
        }
    });
    assert_eq!(once(&server.root("azure")).0, 0);
}
