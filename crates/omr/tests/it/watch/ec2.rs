//! Notices of EC2, and its tokens.

use std::time::{Duration, SystemTime};

use serde_json::json;

use super::metadata::{Metadata, Reply, has, ok, path, status};
use super::once;
use crate::common::{omr, text};

pub const ACTION: &str = "/latest/meta-data/spot/instance-action";
pub const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
pub const HIBERNATION: &str = "/latest/meta-data/hibernation/configured";

/// Seconds from now as EC2 writes a time.
fn rfc3339(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(seconds)).to_string()
}

/// IMDSv2: nothing without the token that was given out.
pub fn imds(head: &str, found: impl Fn(&str) -> Option<String>) -> Reply {
    if head.starts_with("PUT /latest/api/token ") {
        let asked = has(head, "X-aws-ec2-metadata-token-ttl-seconds", "21600");
        return if asked { ok("TOKEN==") } else { status(400) };
    }
    if !has(head, "X-aws-ec2-metadata-token", "TOKEN==") {
        return status(401);
    }
    found(path(head)).map_or_else(|| status(404), ok)
}

pub fn instance_action(action: &str, seconds: u64) -> Option<String> {
    Some(json!({"action": action, "time": rfc3339(seconds)}).to_string())
}

#[test]
fn a_spot_instance_that_is_not_interrupted_is_left_alone() {
    let server = Metadata::start(|head, _| imds(head, |_| None));
    assert_eq!(once(&server.root("ec2")), (0, vec![], String::new()));
    let get = |path: &str| format!("GET {path}");
    let token = "PUT /latest/api/token";
    assert_eq!(server.asked(), [token.into(), get(ACTION), token.into(), get(REBALANCE)]);
    let (code, out, _) = text(&omr(&server.root("ec2"), &["watch", "--once", "--dry-run"]));
    assert_eq!((code, out.as_str()), (0, "ec2 instance-action, ec2 rebalance: nothing to prepare for\n"));
}

#[test]
fn a_termination_is_prepared_for_with_its_deadline() {
    let server =
        Metadata::start(|head, _| imds(head, |path| (path == ACTION).then(|| instance_action("terminate", 100))?));
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests.len()), (0, 1), "{log}");
    assert_eq!((&requests[0]["do"], &requests[0]["for"]), (&json!("prepare"), &json!("preempt")));
    assert_eq!(requests[0]["why"], "spot interruption: terminate");
    let deadline = requests[0]["deadline_ms"].as_u64().expect("a deadline");
    assert!((1..=100_000).contains(&deadline), "{deadline}");
}

#[test]
fn a_hibernation_has_no_deadline_because_it_begins_at_once() {
    let server =
        Metadata::start(|head, _| imds(head, |path| (path == ACTION).then(|| instance_action("hibernate", 0))?));
    let (_, requests, _) = once(&server.root("ec2"));
    assert_eq!(requests, [json!({"do": "prepare", "for": "hibernate", "why": "spot interruption: hibernate"})]);
}

#[test]
fn a_rebalance_recommendation_counts_where_the_instance_may_hibernate() {
    let found = |configured: &'static str| {
        move |path: &str| match path {
            REBALANCE => Some(json!({"noticeTime": "2026-11-21T03:12:03Z"}).to_string()),
            HIBERNATION => Some(configured.to_owned()),
            _ => None,
        }
    };
    let server = Metadata::start(move |head, _| imds(head, found("true")));
    let (_, requests, _) = once(&server.root("ec2"));
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["for"], "hibernate");
    let server = Metadata::start(move |head, _| imds(head, found("false")));
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests), (0, vec![]));
    assert!(log.contains("announced: rebalance recommendation of 2026-11-21T03:12:03Z"), "{log}");
}

#[test]
fn a_token_that_is_refused_is_replaced_once() {
    // Whoever has the first token hears 401.
    let server = Metadata::start(|head, before| {
        if head.starts_with("PUT ") {
            return ok(format!("TOKEN{before}"));
        }
        if has(head, "X-aws-ec2-metadata-token", "TOKEN0") { status(401) } else { status(404) }
    });
    assert_eq!(once(&server.root("ec2")).0, 0);
    let tokens = server.asked().iter().filter(|line| line.starts_with("PUT")).count();
    // A second for each, after the first of the one that is asked first.
    assert_eq!(tokens, 3, "{:?}", server.asked());
    // Every token is refused.
    let server = Metadata::start(|head, _| if head.starts_with("PUT ") { ok("T") } else { status(401) });
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests), (1, vec![]));
    assert!(log.contains("a new token is refused, too (401)"), "{log}");
    assert_eq!(server.asked().len(), 4 + 4);
}

#[test]
fn a_token_is_used_until_its_time_is_over() {
    // Valid for 30 s, of which the last 30 s are not used; and a second longer than a test takes.
    for (life, tokens) in
        [("x-aws-ec2-metadata-token-ttl-seconds: 30\r\n", 3), ("x-aws-ec2-metadata-token-ttl-seconds: 3600\r\n", 2)]
    {
        let server = Metadata::start(move |head, _| match path(head) {
            "/latest/api/token" => Reply::Answer(200, life, "T".into()),
            REBALANCE => ok(r#"{"noticeTime": "2026-11-21T03:12:03Z"}"#),
            _ => status(404),
        });
        assert_eq!(once(&server.root("ec2")).0, 0);
        assert_eq!(server.asked().iter().filter(|line| line.starts_with("PUT")).count(), tokens, "{life}");
    }
}

#[test]
fn a_failing_source_does_not_block_the_other() {
    let action = |head: &str| imds(head, |path| (path == ACTION).then(|| instance_action("terminate", 100))?);
    let early = |head: &str| {
        imds(head, |path| match path {
            REBALANCE => Some(json!({"noticeTime": "2026-11-21T03:12:03Z"}).to_string()),
            HIBERNATION => Some("true".into()),
            _ => None,
        })
    };
    type Answers = Box<dyn Fn(&str) -> Reply + Send + Sync>;
    let failing = |broken: &'static str, reply: fn() -> Reply, rest: fn(&str) -> Reply| -> Answers {
        Box::new(move |head| if path(head) == broken { reply() } else { rest(head) })
    };
    for (answers, purposes, log_has) in [
        (failing(REBALANCE, || status(503), action), vec!["preempt"], "503"),
        (failing(ACTION, || ok("<html>"), early), vec!["hibernate"], "instance-action"),
        (failing(ACTION, || status(500), early), vec!["hibernate"], "500"),
        // Without it a recommendation says nothing, so that fails, and is asked for again.
        (failing(HIBERNATION, || status(503), early), vec![], "hibernation/configured: the answer is 503"),
        // The control.
        (Box::new(early), vec!["hibernate"], ""),
    ] {
        let server = Metadata::start(move |head, _| answers(head));
        let (code, requests, log) = once(&server.root("ec2"));
        let told: Vec<_> = requests.iter().filter_map(|request| request["for"].as_str()).collect();
        assert_eq!((code, told), (i32::from(!log_has.is_empty()), purposes), "{log}");
        assert!(log.contains(log_has), "{log}");
    }
    // An interruption is told, whatever is known of hibernation.
    let server = Metadata::start(|head, _| match path(head) {
        ACTION => imds(head, |_| instance_action("hibernate", 0)),
        HIBERNATION => status(503),
        _ => imds(head, |_| None),
    });
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests.len()), (0, 1), "{log}");
}

#[test]
fn a_metadata_service_that_is_turned_off_is_said_so() {
    let server = Metadata::start(|_, _| status(403));
    let (code, _, log) = once(&server.root("ec2"));
    assert_eq!(code, 1);
    assert!(log.contains("the metadata service of this instance is turned off (403)"), "{log}");
}

#[test]
fn a_notice_whose_time_has_passed_is_told_to_nobody() {
    let server = Metadata::start(|head, _| {
        imds(head, |path| (path == ACTION).then(|| r#"{"action":"stop","time":"2017-09-18T08:22:00Z"}"#.to_owned()))
    });
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests), (0, vec![]));
    assert!(log.contains("its time has passed"), "{log}");
}

#[test]
fn a_clock_that_is_wrong_does_not_hide_a_notice() {
    // By the server's clock it is 2017, and there are 90 seconds left.
    let server = Metadata::start(|head, _| {
        let date = "Date: Mon, 18 Sep 2017 08:20:30 GMT\r\n";
        match path(head) {
            "/latest/api/token" => Reply::Answer(200, date, "T".into()),
            ACTION => Reply::Answer(200, date, r#"{"action":"stop","time":"2017-09-18T08:22:00Z"}"#.into()),
            _ => Reply::Answer(404, date, String::new()),
        }
    });
    let (_, requests, log) = once(&server.root("ec2"));
    assert_eq!(requests.len(), 1, "{log}");
    let deadline = requests[0]["deadline_ms"].as_u64().expect("a deadline");
    assert!((1..=90_000).contains(&deadline), "{deadline}");
}
