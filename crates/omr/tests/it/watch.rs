//! `omr watch` against metadata servers that speak as the documented ones do, and worse.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::common::running::wait_until;
use crate::common::{command, omr, text};
use omr_testkit::FakeRoot;
use serde_json::{Value, json};

/// What a server does with a request.
enum Reply {
    /// A whole answer with these headers.
    Answer(u16, &'static str, String),
    /// These bytes, and the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, and then one more from time to time.
    Drip(&'static str),
    /// Nothing, for as long as the other side waits.
    Silence,
}

fn ok(body: impl Into<String>) -> Reply {
    Reply::Answer(200, "", body.into())
}

fn status(code: u16) -> Reply {
    Reply::Answer(code, "", "<html>no</html>".into())
}

/// A metadata server; it ends with the test's process.
struct Metadata {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Metadata {
    /// `answer` is given the whole head of a request and how many there were before it.
    fn start(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Metadata { address, asked }
    }

    /// The first lines of the requests so far.
    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("a log");
        asked.iter().map(|head| head.lines().next().unwrap_or_default().replace(" HTTP/1.1", "")).collect()
    }

    /// The configuration that leads to it.
    fn root(&self, provider: &str) -> FakeRoot {
        root(&format!("provider = '{provider}'\nendpoint = 'http://{}'", self.address))
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<String>>, answer: &dyn Fn(&str, usize) -> Reply) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("a request is text");
    let before = {
        let mut log = log.lock().expect("a log");
        log.push(head.clone());
        log.len() - 1
    };
    match answer(&head, before) {
        Reply::Answer(code, headers, body) => {
            let text = format!("HTTP/1.1 {code} X\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(text.as_bytes());
        }
        Reply::Raw(bytes) => drop(stream.write_all(&bytes)),
        Reply::Drip(start) => {
            let _ = stream.write_all(start.as_bytes());
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        Reply::Silence => drop(stream.read(&mut byte)),
    }
}

fn root(cloud: &str) -> FakeRoot {
    let root = FakeRoot::new();
    root.write("proc/meminfo", "");
    root.write("sys/kernel/x", "");
    root.write("etc/omr/omr.toml", format!("[cloud]\n{cloud}\n"));
    root
}

/// Looks once; exit code, the requests that the daemon would get, and what was said.
fn once(root: &FakeRoot) -> (i32, Vec<Value>, String) {
    let (code, out, err) = text(&omr(root, &["watch", "--once", "--dry-run", "--json"]));
    assert!(!err.contains("panicked"), "{err}");
    (code, out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect(), err)
}

/// Seconds from now as EC2 writes a time.
fn rfc3339(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(seconds)).to_string()
}

/// Seconds from now as Azure writes a time.
fn rfc1123(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds))
}

fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// Whether a head has a header. The case of the name does not matter (RFC 9110).
fn has(head: &str, name: &str, value: &str) -> bool {
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    headers.any(|(found, rest)| found.eq_ignore_ascii_case(name) && rest == value)
}

const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
const HIBERNATION: &str = "/latest/meta-data/hibernation/configured";

/// IMDSv2: nothing without the token that was given out.
fn imds(head: &str, found: impl Fn(&str) -> Option<String>) -> Reply {
    if head.starts_with("PUT /latest/api/token ") {
        let asked = has(head, "X-aws-ec2-metadata-token-ttl-seconds", "21600");
        return if asked { ok("TOKEN==") } else { status(400) };
    }
    if !has(head, "X-aws-ec2-metadata-token", "TOKEN==") {
        return status(401);
    }
    found(path(head)).map_or_else(|| status(404), ok)
}

fn instance_action(action: &str, seconds: u64) -> Option<String> {
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
    assert!(log.contains("a new token is refused as well (401)"), "{log}");
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
fn what_fails_of_the_one_does_not_keep_the_other_from_being_told() {
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

/// What a server may do instead of answering; what is said of it.
#[test]
fn whatever_is_no_answer_is_an_error_and_tells_nobody() {
    type Case = (&'static str, fn() -> Reply, &'static str);
    let cases: [Case; 12] = [
        ("garbage", || Reply::Raw(b"\x00\xff\x80garbage\r\n\r\n".to_vec()), "not an answer of HTTP"),
        ("wrong content", || ok("<html>login</html>"), "instance-action: expected value"),
        ("500", || status(500), "500"),
        (
            "oversized body",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'x'; 100_000]].concat()),
            "longer than 64 KiB",
        ),
        (
            "oversized length",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec()),
            "longer than 64 KiB",
        ),
        (
            "oversized head",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'x'; 100_000]].concat()),
            "longer than 64 KiB",
        ),
        (
            "too many headers",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\n".as_slice(), &b"a: b\r\n".repeat(100), b"\r\n"].concat()),
            "too many headers",
        ),
        (
            "cut off",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_vec()),
            "in the middle of the answer",
        ),
        (
            "cut off chunks",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc".to_vec()),
            "in the middle of the answer",
        ),
        ("nothing", || Reply::Raw(Vec::new()), "in the middle of the answer"),
        ("silence", || Reply::Silence, "no answer in time"),
        ("slow drip", || Reply::Drip("HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"), "no answer in time"),
    ];
    let threads = cases.map(|(name, reply, expected)| {
        std::thread::spawn(move || {
            let server = Metadata::start(move |head, _| match path(head) {
                "/latest/api/token" => ok("T"),
                ACTION => reply(),
                _ => status(404),
            });
            let (code, requests, log) = once(&server.root("ec2"));
            assert_eq!((code, requests), (1, vec![]), "{name}: {log}");
            assert!(log.contains(expected) && log.contains("ec2"), "{name}: {log}");
        })
    });
    for thread in threads {
        thread.join().expect("as expected");
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Metadata::start(|_, _| ok("T"));
    let location: &'static str = format!("Location: http://{}/latest\r\n", elsewhere.address).leak();
    for code in [301, 302, 307, 308] {
        let server = Metadata::start(move |_, _| Reply::Answer(code, location, String::new()));
        let (exit, _, log) = once(&server.root("ec2"));
        assert_eq!(exit, 1);
        assert!(log.contains(&code.to_string()), "{log}");
    }
    assert_eq!(elsewhere.asked(), [""; 0]);
}

#[test]
fn a_proxy_of_the_environment_is_not_used() {
    let proxy = Metadata::start(|_, _| status(500));
    let server = Metadata::start(|head, _| imds(head, |_| None));
    let root = server.root("ec2");
    let mut command = command(root.path(), &["watch", "--once", "--dry-run"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, format!("http://{}", proxy.address));
    }
    assert_eq!(command.output().expect("omr runs").status.code(), Some(0));
    assert_eq!(proxy.asked(), [""; 0]);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let (code, _, log) = once(&root(&format!("provider = 'ec2'\nendpoint = 'http://{address}'")));
    assert_eq!(code, 1);
    let refused = format!("ec2 instance-action: PUT http://{address}/latest/api/token: connect: Connection refused");
    assert!(log.contains(&refused), "{log}");
}

#[test]
fn an_answer_in_chunks_is_an_answer() {
    let server = Metadata::start(|head, _| match path(head) {
        "/latest/api/token" => Reply::Raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nTOK\r\n2\r\nEN\r\n0\r\n\r\n".to_vec(),
        ),
        ACTION if has(head, "X-aws-ec2-metadata-token", "TOKEN") => {
            let body = instance_action("stop", 60).unwrap_or_default();
            let (a, b) = body.split_at(7);
            let chunks = format!("{:x}\r\n{a}\r\n{:X};ext=1\r\n{b}\r\n0\r\n\r\n", a.len(), b.len());
            Reply::Raw(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n{chunks}").into_bytes())
        }
        _ => status(404),
    });
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests.len()), (0, 1), "{log}");
}

#[test]
fn a_machine_of_nobody_is_not_watched() {
    let (code, _, log) = once(&root("provider = 'auto'"));
    assert_eq!(code, 3);
    assert!(log.contains("this is no machine of EC2, Google Compute Engine or Azure"), "{log}");
}

#[test]
fn the_firmware_says_whom_to_ask() {
    let server = Metadata::start(|head, _| imds(head, |_| None));
    let root = server.root("auto");
    root.write("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
    assert_eq!(once(&root).0, 0);
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn a_wrong_endpoint_is_said_so() {
    let (code, _, log) = once(&root("endpoint = 'https://metadata.google.internal'"));
    assert_eq!(code, 2);
    assert!(
        log.contains(
            "omr.toml:2: cloud.endpoint = 'https://metadata.google.internal': an address in numbers is needed"
        ),
        "{log}"
    );
}

#[test]
fn without_a_daemon_there_is_nobody_to_tell() {
    let server = Metadata::start(|head, _| imds(head, |path| (path == ACTION).then(|| instance_action("stop", 60))?));
    let (code, _, log) = text(&omr(&server.root("ec2"), &["watch", "--once"]));
    assert_eq!(code, 1);
    assert!(log.contains("the daemon is not running"), "{log}");
}

/// A watch that runs; killed when dropped.
struct Running {
    child: Child,
    out: Arc<Mutex<Vec<Value>>>,
    log: Arc<Mutex<String>>,
    _root: FakeRoot,
}

impl Running {
    fn start(root: FakeRoot) -> Self {
        let mut command = command(root.path(), &["watch", "--dry-run", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("omr starts");
        let (out, log) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (lines, said) = (Arc::clone(&out), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lines.lock().expect("lines").push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *said.lock().expect("a log") += &format!("{line}\n");
            }
        });
        Running { child, out, log, _root: root }
    }

    fn requests(&self) -> Vec<Value> {
        self.out.lock().expect("lines").clone()
    }

    fn log(&self) -> String {
        self.log.lock().expect("a log").clone()
    }

    fn wait_for(&self, requests: usize) {
        wait_until(&format!("{requests} requests"), || self.requests().len() >= requests);
    }

    /// Tells it to end; how long that took.
    fn end(&mut self) -> Duration {
        let began = Instant::now();
        // SAFETY: the child has not been waited for, so the pid is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).expect("a pid"), libc::SIGTERM) };
        let status = self.child.wait().expect("an end");
        assert_eq!(status.code(), Some(0), "{}", self.log());
        began.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log:\n{}", self.log());
        }
    }
}

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

#[test]
fn it_ends_when_told_to_whatever_it_waits_for() {
    let server = Metadata::start(|_, _| Reply::Silence);
    for provider in ["ec2", "gcp", "azure"] {
        let mut watch = Running::start(server.root(provider));
        let before = server.asked().len();
        wait_until("it waits", || server.asked().len() > before);
        assert!(watch.end() < Duration::from_secs(4), "{provider}");
    }
}
