//! `omr web` with the real daemon and real connections.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use omr_kernel::process::{Process, ProcessStat};
use omr_kernel::{Kernel, clock};
use omr_testkit::FakeRoot;
use serde_json::Value;

use crate::common::running::{Daemon, wait_until};
use crate::common::{add_group, command, machine, memory_kib, omr, text, with_history};

/// Far beyond what any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

trait Stream: Read + Write + Send {
    fn end_writing(&self);
}

impl Stream for TcpStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// A running `omr web`; killed when dropped.
pub struct Server {
    pub child: Child,
    /// The first line that it printed.
    said: String,
    path: Option<PathBuf>,
    cookie: String,
}

impl Server {
    /// Starts it at an address, and enters by the address that works once.
    pub fn start(root: &FakeRoot, words: &[&str]) -> Self {
        let mut server = Self::start_outside(root, words);
        let answer = server.ask(&format!("GET {} HTTP/1.1\r\nHost: localhost", server.first_path()));
        assert_eq!(answer.status, 303, "{answer:?}");
        server.cookie = answer.header("set-cookie").split(';').next().expect("a cookie").to_owned();
        server
    }

    /// Starts it at an address.
    fn start_outside(root: &FakeRoot, words: &[&str]) -> Self {
        let mut command = command(root.path(), &["web", "--listen", "127.0.0.1:0"]);
        Self::spawn(command.args(words), None)
    }

    /// Starts it at a Unix socket.
    fn start_at(root: &FakeRoot, path: &Path) -> Self {
        let mut command = command(root.path(), &["web", "--listen"]);
        Self::spawn(command.arg(path), Some(path.to_owned()))
    }

    fn spawn(command: &mut Command, path: Option<PathBuf>) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("omr starts");
        let mut said = String::new();
        match &path {
            Some(path) => wait_until("the socket", || UnixStream::connect(path).is_ok()),
            None => {
                BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("an address");
                assert!(said.starts_with("http://127.0.0.1:"), "{said:?}");
            }
        }
        Server { child, said: said.trim().to_owned(), path, cookie: String::new() }
    }

    /// What the printed address asks for.
    fn first_path(&self) -> &str {
        let after = self.said.strip_prefix("http://").expect("an address");
        &after[after.find('/').expect("a path")..]
    }

    fn port(&self) -> u16 {
        let address = self.said.strip_prefix("http://").and_then(|rest| rest.split('/').next()).expect("an address");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    fn connect(&self) -> Box<dyn Stream> {
        match &self.path {
            Some(path) => {
                let stream = UnixStream::connect(path).expect("a connection");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                Box::new(stream)
            }
            None => {
                let stream = TcpStream::connect(("127.0.0.1", self.port())).expect("a connection");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                Box::new(stream)
            }
        }
    }

    /// Sends a head without its last lines, and reads the answer.
    fn ask(&self, head: &str) -> Answer {
        let mut stream = self.connect();
        // In one piece: the server closes as soon as a head is too long.
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request is taken");
        Answer::read(stream)
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {}", self.cookie))
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"), "{path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or_else(|err| panic!("{path}: {err}: {}", answer.body))
    }

    /// Listens to events.
    pub fn events(&self) -> Events {
        let mut stream = self.connect();
        // Of this version, so that the body has no chunks.
        let head = format!("GET /api/events HTTP/1.0\r\nHost: localhost\r\nCookie: {}\r\n\r\n", self.cookie);
        stream.write_all(head.as_bytes()).expect("a request is taken");
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).expect("an answer");
        Events { status: first.split(' ').nth(1).and_then(|status| status.parse().ok()), lines, last: 0 }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// The number of descriptors that it has open.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("its descriptors").count()
    }

    fn resident_kib(&self) -> u64 {
        memory_kib(self.child.id(), "VmRSS")
    }

    /// Tells it to end, which it must do properly.
    pub fn end(mut self) {
        // SAFETY: the child has not been waited for, so the pid is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).expect("a pid"), libc::SIGTERM) };
        assert_eq!(wait_for(&mut self.child), 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for(child: &mut Child) -> i32 {
    let mut status = None;
    wait_until("the end of omr web", || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.and_then(|status| status.code()).expect("an exit code")
}

/// An answer that was read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A connection that is reset after the answer has given it all the same.
        let end = stream.read_to_end(&mut bytes);
        let all = String::from_utf8_lossy(&bytes);
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {end:?} {all:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> &str {
        let pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        pairs.filter(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or_default()
    }
}

pub struct Events {
    status: Option<u16>,
    lines: BufReader<Box<dyn Stream>>,
    last: u64,
}

impl Events {
    /// The data of the next event; their numbers increase.
    pub fn next(&mut self) -> Value {
        let mut number = None;
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("an event") > 0, "the stream has ended");
            let line = line.trim_end_matches('\n');
            if let Some(id) = line.strip_prefix("id: ") {
                let id = id.parse().expect("a number");
                assert!(id > self.last, "{id} after {}", self.last);
                (self.last, number) = (id, Some(id));
            } else if let Some(data) = line.strip_prefix("data: ") {
                assert!(number.is_some(), "an event without a number");
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }

    /// Reads events until one is as wanted.
    pub fn wait_for(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..60 {
            let event = self.next();
            if is_wanted(&event) {
                return event;
            }
        }
        panic!("no event: {what}")
    }
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn now() -> u64 {
    clock::read_wall().as_secs()
}

pub fn paths(groups: &Value) -> Vec<&str> {
    let groups = groups["groups"].as_array().expect("groups");
    groups.iter().map(|group| group["path"].as_str().expect("a path")).collect()
}

#[test]
fn each_path_has_its_answer() {
    let root = with_history();
    let daemon = Daemon::start(&root, "");
    let server = Server::start(&root, &[]);

    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'self'"), "{page:?}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("access-control-allow-origin"), "");
    for name in ["app.js", "app.css", "uplot.js", "uplot.css"] {
        assert!(page.body.contains(name), "the page uses {name}");
        let file = server.get(&format!("/{name}"));
        assert_eq!(file.status, 200);
        let version = file.header("etag").to_owned();
        let again = |version: &str| {
            let head = format!("GET /{name} HTTP/1.1\r\nHost: localhost\r\nCookie: {}", server.cookie);
            server.ask(&format!("{head}\r\nIf-None-Match: {version}"))
        };
        assert_eq!((again(&version).status, again("\"another\"").status), (304, 200));
    }

    let groups = server.json("/api/groups");
    assert_eq!(groups["missing"], Value::Null);
    assert!(paths(&groups).contains(&"app.scope") && !paths(&groups).contains(&"gone.scope"), "{groups}");
    let app = &groups["groups"][paths(&groups).iter().position(|path| *path == "app.scope").expect("a place")];
    assert_eq!((&app["memory"], &app["above"]), (&Value::from(64 << 20), &Value::from(0)));
    let past = server.json(&format!("/api/groups?at={}", now() - 2300));
    assert!(paths(&past).contains(&"gone.scope") && !paths(&past).contains(&"app.scope"), "{past}");

    let known = |charts: &Value| {
        let values = charts["charts"]["place"]["series"][3]["values"].as_array().expect("values");
        (values.len(), values.iter().filter(|value| !value.is_null()).count())
    };
    let charts = server.json("/api/charts?group=gone.scope&columns=60");
    assert_eq!((&charts["charts"]["group"], &charts["missing"]), (&Value::from("gone.scope"), &Value::Null));
    assert_eq!(known(&charts), (60, 4));
    assert_eq!(known(&server.json("/api/charts?group=never.scope&columns=60")), (60, 0), "the control");
    assert_eq!(known(&server.json("/api/charts?group=gone.scope")), (240, 4));
    // Decisions are remembered that were seen while somebody was there.
    server.events().wait_for("a decision", |event| !event["status"]["decision"].is_null());
    let lanes = &server.json("/api/charts?span=3600")["charts"]["timeline"]["lanes"];
    let events = |lane: usize| {
        let cells = lanes[lane].as_array().expect("a lane").iter();
        cells.filter_map(|cell| cell["events"].as_u64()).sum::<u64>()
    };
    assert!(events(0) >= 1, "{lanes}");
    assert_eq!(events(2), 0, "the control: the lane of foreground groups");

    let lines = server.json("/api/explain?group=app.scope");
    let lines = lines["lines"].as_array().expect("lines");
    assert!(
        lines.iter().any(|line| line.as_str().is_some_and(|line| line.starts_with("class: background"))),
        "{lines:?}"
    );
    assert_eq!(server.get("/api/explain?group=never.scope").status, 503);
    let past = |from: u64, to: u64| server.json(&format!("/api/explain?group=gone.scope&from={from}&to={to}"));
    assert!(
        past(now() - 2500, now() - 2300)["lines"][0].as_str().is_some_and(|line| line.contains("no ages are known"))
    );
    assert_eq!(past(now() - 2000, now() - 1900)["lines"], Value::Array(Vec::new()), "the control");

    let metrics = server.get("/metrics");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((metrics.status, metrics.header("content-type")), (200, kind));
    let text = &metrics.body;
    assert!(text.contains("\nomr_up 1\n") && text.ends_with("# EOF\n"), "{text}");
    for path in ["/metrics/", "/index.html", "/api", "/api/", "//", "/../etc/passwd", "/%2e%2e/etc/passwd"] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (404, "text/plain; charset=utf-8"), "{path}");
    }
    for (path, name) in
        [("charts?span=1", "span"), ("groups?at=x", "at"), ("explain?from=1", "to"), ("events?a=1", "a")]
    {
        let answer = server.get(&format!("/api/{path}"));
        assert_eq!(answer.status, 400);
        assert!(answer.body.starts_with(&format!("{name}: ")), "{}", answer.body);
    }
    server.end();
    daemon.end();
}

#[test]
fn the_events_go_on_while_the_daemon_restarts() {
    let root = machine();
    let daemon = Daemon::start(&root, "");
    let server = Server::start(&root, &[]);
    let mut events = server.events();
    let pid = Value::from(daemon.pid());
    let event = events.wait_for("the status", |event| event["status"]["pid"] == pid);
    assert_eq!(event["missing"], Value::Null);
    assert!(event["time"].as_u64().is_some_and(|time| time.abs_diff(now()) < 60), "{event}");
    daemon.end();
    let event = events.wait_for("no daemon", |event| event["status"].is_null());
    assert!(event["missing"].as_str().is_some_and(|why| why.contains("the daemon is not running")), "{event}");
    let daemon = Daemon::start(&root, "");
    let pid = Value::from(daemon.pid());
    events.wait_for("the status of the next daemon", |event| event["status"]["pid"] == pid);
    // Others see the same events.
    let mut others = server.events();
    assert_eq!(others.next()["status"]["pid"], pid);
    assert!(others.last + 1 >= events.last, "{} {}", others.last, events.last);
    server.end();
    daemon.end();
}

#[test]
fn the_past_is_there_without_a_daemon_and_with_one_that_hangs() {
    for (is_there, said) in [(false, "the daemon is not running"), (true, "the daemon has not answered for 3 s")] {
        let root = with_history();
        std::fs::create_dir_all(root.resolve("run/omr")).expect("a directory");
        // Nobody accepts, and nobody answers.
        let _listener = is_there.then(|| UnixListener::bind(root.resolve("run/omr/omr.sock")).expect("a socket"));
        let server = Server::start(&root, &[]);
        let mut events = server.events();
        let event = events.next();
        assert!(event["status"].is_null());
        assert!(event["missing"].as_str().is_some_and(|why| why.contains(said)), "{event}");
        for path in ["/api/groups", "/api/charts?group=gone.scope"] {
            let answer = server.json(path);
            assert!(answer["missing"].as_str().is_some_and(|why| why.contains(said)), "{path}");
        }
        assert!(paths(&server.json("/api/groups")).contains(&"gone.scope"));
        let explained = server.get("/api/explain");
        assert_eq!(explained.status, 503);
        assert!(explained.body.contains(said), "{explained:?}");
        // The past needs no daemon.
        let past = server.json(&format!("/api/charts?at={}", now() - 1800));
        assert_eq!(past["missing"], Value::Null);
        events.next();
        server.end();
    }
}

#[test]
fn an_answer_that_is_of_another_version_is_said() {
    let root = machine();
    std::fs::create_dir_all(root.resolve("run/omr")).expect("a directory");
    let listener = UnixListener::bind(root.resolve("run/omr/omr.sock")).expect("a socket");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.write_all(b"{\"ok\":{\"version\":\"9\"}}\n");
            kept.push(client);
        }
    });
    let server = Server::start(&root, &[]);
    let event = server.events().next();
    assert!(event["missing"].as_str().is_some_and(|why| why.contains("another version")), "{event}");
}

#[test]
fn the_address_works_once_and_a_thousand_wrong_tokens_do_no_harm() {
    let root = machine();
    let server = Server::start_outside(&root, &[]);
    let first = |path: &str| server.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost"));
    let wrong = |number: u64| {
        let token = format!("{number:064x}");
        match number % 4 {
            0 => first(&format!("/?token={token}")),
            1 => server.ask(&format!("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}")),
            2 => server.ask(&format!(
                "GET /api/groups HTTP/1.1\r\nHost: localhost\r\nCookie: omr-web-{}={token}",
                server.port()
            )),
            _ => first("/app.js?token="),
        }
    };
    (0..100).for_each(|number| assert_eq!(wrong(number).status, 401));
    let before = server.resident_kib();
    (0..1000).for_each(|number| assert_eq!(wrong(number).status, 401));
    assert!(server.resident_kib() < before + 1024, "{before} KiB before, {} after", server.resident_kib());
    // A preview of a link does not use it up.
    assert_eq!(server.ask(&format!("HEAD {} HTTP/1.1\r\nHost: localhost", server.first_path())).status, 401);

    let entered = first(server.first_path());
    assert_eq!((entered.status, entered.header("location")), (303, "/"));
    let cookie = entered.header("set-cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().expect("a cookie");
    let with = |pair: &str| server.ask(&format!("GET /api/groups HTTP/1.1\r\nHost: localhost\r\nCookie: a=b; {pair}"));
    assert_eq!(with(pair).status, 200);
    assert_eq!(with(&pair[..pair.len() - 1]).status, 401, "the control");
    assert_eq!(with(&format!("{pair}0")).status, 401);
    let again = first(server.first_path());
    assert_eq!(again.status, 401);
    assert!(again.body.contains("was used"), "{again:?}");
    server.end();
}

#[test]
fn a_token_of_a_file_opens_always_and_its_file_is_secret() {
    const TOKEN: &str = "0123456789abcdef-token";
    let root = machine();
    let file = root.resolve("token");
    let write = |text: &str, mode: u32| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("a mode");
    };
    let name = file.to_str().expect("a name");
    for (content, mode, says) in [
        (
            TOKEN,
            0o644,
            "its mode is 644, so others can read or change the token; make a file with a new one: (umask 077;",
        ),
        (TOKEN, 0o660, "its mode is 660"),
        ("short", 0o600, "16 to 1024 ASCII characters"),
        ("two words of a token", 0o600, "without spaces"),
        ("", 0o600, "16 to 1024"),
    ] {
        write(content, mode);
        let (code, out, err) = text(&omr(&root, &["web", "--listen", "127.0.0.1:0", "--token-file", name]));
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(says) && err.contains(name), "{err}");
    }
    let (code, _, err) = text(&omr(&root, &["web", "--listen", "127.0.0.1:0", "--token-file", "/nowhere"]));
    assert!(code == 2 && err.contains("open /nowhere"), "{err}");

    write(&format!("{TOKEN}\n"), 0o640);
    let server = Server::start_outside(&root, &["--token-file", name]);
    assert_eq!(server.first_path(), "/", "the token is not printed");
    let bearer = |token: &str| {
        server.ask(&format!("GET /api/groups HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}")).status
    };
    assert_eq!([bearer(TOKEN), bearer("0123456789abcdef-tokem"), bearer(""), bearer(TOKEN)], [200, 401, 401, 200]);
    assert_eq!(server.get("/").status, 401);
    for _ in 0..2 {
        let entered = server.get(&format!("/?token={TOKEN}"));
        assert_eq!(entered.status, 303);
        assert!(!entered.header("set-cookie").contains(TOKEN));
    }
    assert_eq!(server.get(&format!("/app.js?token={TOKEN}")).status, 401, "at the page only");
}

/// Cookies have the port in their name, so the next one is started at the same port.
#[test]
fn the_cookie_of_a_token_in_a_file_is_valid_after_a_restart_and_no_other_is() {
    let root = machine();
    let file = root.resolve("token");
    let write = |text: &str| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("a mode");
    };
    let name = file.to_str().expect("a name");
    let start = |words: &[&str], port: u16| {
        let mut server = None;
        wait_until("the port", || {
            let address = format!("127.0.0.1:{port}");
            let mut command = command(root.path(), &["web", "--listen", &address]);
            let mut child = command.args(words).stdout(Stdio::piped()).spawn().expect("omr starts");
            let mut said = String::new();
            BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
            server = Some(Server { child, said: said.trim().to_owned(), path: None, cookie: String::new() });
            !said.is_empty()
        });
        server.expect("a server")
    };
    let enter = |server: &Server, path: &str| {
        let answer = server.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost"));
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.header("set-cookie").split(';').next().expect("a cookie").to_owned()
    };
    let status = |server: &mut Server, cookie: &str| {
        server.cookie = cookie.to_owned();
        server.get("/api/groups").status
    };

    write("a-token-of-a-file");
    let mut server = start(&["--token-file", name], 0);
    let (cookie, port) = (enter(&server, "/?token=a-token-of-a-file"), server.port());
    assert!(!cookie.contains("a-token-of-a-file"), "{cookie}");
    assert_eq!(status(&mut server, &cookie), 200);
    server.end();
    let mut server = start(&["--token-file", name], port);
    assert_eq!(status(&mut server, &cookie), 200, "after a restart");
    server.end();
    write("a-token-of-a-filf");
    let mut server = start(&["--token-file", name], port);
    assert_eq!(status(&mut server, &cookie), 401, "with another token");
    server.end();

    let mut server = start(&[], port);
    assert_eq!(status(&mut server, &cookie), 401, "without a file");
    let cookie = enter(&server, server.first_path());
    assert_eq!(status(&mut server, &cookie), 200);
    server.end();
    let mut server = start(&[], port);
    assert_eq!(status(&mut server, &cookie), 401, "of an address that works once");
    server.end();
}

#[test]
fn only_names_of_this_machine_are_served() {
    let root = machine();
    let server = Server::start(&root, &["--host", "omr.example"]);
    let ask = |lines: &str| server.ask(&format!("GET /api/groups HTTP/1.1\r\n{lines}Cookie: {}", server.cookie)).status;
    for host in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:9099", "omr.example:80"] {
        assert_eq!(ask(&format!("Host: {host}\r\n")), 200, "{host}");
    }
    for host in
        ["evil.example", "localhost.evil.example", "omr.example.", "127.0.0.2", "localhost@evil.example", "a@localhost"]
    {
        assert_eq!(ask(&format!("Host: {host}\r\n")), 421, "{host}");
    }
    for lines in ["", "Host: \r\n", "Host: localhost\r\nHost: localhost\r\n", "Host: a b\r\n"] {
        assert_eq!(ask(lines), 400, "{lines:?}");
    }
    let absolute = |host: &str| {
        server
            .ask(&format!("GET http://{host}/api/groups HTTP/1.1\r\nHost: localhost\r\nCookie: {}", server.cookie))
            .status
    };
    assert_eq!([absolute("localhost"), absolute("evil.example")], [200, 421]);
    let (code, _, err) = text(&omr(&root, &["web", "--listen", "127.0.0.1:0", "--host", "a:80"]));
    assert!(code == 2 && err.contains("a name without a port"), "{err}");
}

#[test]
fn it_answers_questions_only() {
    let root = machine();
    let server = Server::start(&root, &[]);
    let ask = |first: &str, lines: &str| {
        server.ask(&format!("{first} HTTP/1.1\r\nHost: localhost\r\nCookie: {}{lines}", server.cookie))
    };
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MOVE"] {
        let answer = ask(&format!("{method} /api/groups"), "");
        assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"), "{method}");
    }
    for lines in ["\r\nContent-Length: 5", "\r\nTransfer-Encoding: chunked"] {
        assert_eq!(ask("GET /", lines).status, 413);
    }
    for path in ["/", "/app.js", "/api/charts"] {
        let (get, head) = (ask(&format!("GET {path}"), ""), ask(&format!("HEAD {path}"), ""));
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert_eq!((get.header("content-length"), get.body.len()), (head.header("content-length"), get.body.len()));
        assert!(!get.body.is_empty());
    }
    assert_eq!(ask("HEAD /api/events", "").status, 200, "and it ends");
}

#[test]
fn sixty_four_clients_are_served_and_the_next_one_is_told() {
    let root = machine();
    let daemon = Daemon::start(&root, "");
    let server = Server::start(&root, &[]);
    // The connection by which it was entered has ended.
    let mut clients: Vec<Events> = Vec::new();
    wait_until("64 clients", || {
        let client = server.events();
        if client.status == Some(200) {
            clients.push(client);
        }
        clients.len() == 64
    });
    let pid = Value::from(daemon.pid());
    assert!(clients.iter_mut().all(|client| client.next()["status"]["pid"] == pid));
    let refused = server.get("/");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "5"), "{refused:?}");
    assert!(refused.body.contains("64 connections"), "{refused:?}");
    // As many as want to are refused, without harm to the others.
    let many: Vec<_> = (0..100).map(|_| server.connect()).collect();
    assert!(clients.iter_mut().all(|client| client.next()["status"]["pid"] == pid));
    drop(many);
    clients.pop();
    wait_until("room for one", || server.events().status == Some(200));
    server.end();
    daemon.end();
}

/// A path of groups within each other, as long as a path below this root can be.
fn long_path(root: &FakeRoot) -> String {
    let most = 4000 - root.path().as_os_str().len() - "/sys/fs/cgroup/memory.current".len();
    let mut path = "x".repeat(240);
    while path.len() + 241 < most {
        path += "/";
        path += &"y".repeat(240);
    }
    path
}

#[test]
fn a_reader_that_takes_nothing_is_dropped_and_others_go_on() {
    let root = machine();
    let path = long_path(&root);
    for number in 0..60 {
        add_group(&root, format!("{path}{number}"), 4096, 0);
    }
    let daemon = Daemon::start(&root, "");
    let socket = root.resolve("web.sock");
    let server = Server::start_at(&root, &socket);
    let mut events = server.events();
    let event =
        events.wait_for("the groups", |event| event["status"]["groups"].as_array().is_some_and(|of| of.len() >= 60));
    assert!(event.to_string().len() > 200_000, "a socket does not take it at once");
    let before = server.descriptors();
    let mut slow: Vec<UnixStream> = (0..8)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("a connection");
            write!(stream, "GET /api/events HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("a request");
            stream
        })
        .collect();
    wait_until("they are served", || server.descriptors() == before + slow.len());
    wait_until("they are dropped", || {
        events.next();
        server.descriptors() == before
    });
    for stream in &mut slow {
        let mut rest = Vec::new();
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.starts_with(b"HTTP/1.0 200"), "it was served");
    }
    // The control: who reads is still there.
    events.next();
    server.end();
    daemon.end();
}

#[test]
fn heads_are_short_and_come_soon() {
    let root = machine();
    let server = Server::start(&root, &[]);
    let group = |length: usize| server.get(&format!("/api/charts?columns=1&group={}", "g".repeat(length))).status;
    assert_eq!(group(4000), 200);
    assert!(matches!(group(9000), 414 | 431), "{}", group(9000));
    let lines = |count: usize, length: usize| {
        let lines: String = (0..count).map(|number| format!("A{number}: {}\r\n", "a".repeat(length))).collect();
        let head = format!("GET /api/groups HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\n{lines}B: b", server.cookie);
        server.ask(&head).status
    };
    assert_eq!([lines(10, 10), lines(1, 9000), lines(100, 1)], [200, 431, 431]);
    // Half a head, and no head at all.
    for half in ["GET / HTTP/1.1\r\nHost: loc", ""] {
        let mut stream = server.connect();
        stream.write_all(half.as_bytes()).expect("taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is closed within the patience");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    server.end();
}

#[test]
fn no_bytes_harm_it() {
    let root = with_history();
    let mut server = Server::start(&root, &[]);
    let cookie = server.cookie.clone();
    let requests = [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"),
        format!("GET /api/charts?group=gone.scope&columns=9 HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"),
        format!("GET /app.js HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"),
        format!("HEAD /api/groups?at=1 HTTP/1.0\r\nHost: [::1]:1\r\nCookie: {cookie}\r\n\r\n"),
        format!(
            "GET /api/explain?from=1&to=2 HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        ),
        format!(
            "POST /api/events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
        ),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}".to_owned(),
    ];
    let good = std::cell::Cell::new(0);
    omr_testkit::fuzz::feed(&requests, |bytes| {
        let mut stream = server.connect();
        // It may have closed before all was written.
        let _ = stream.write_all(bytes);
        stream.end_writing();
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer);
        let is_late =
            end.is_err_and(|err| matches!(err.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
        assert!(!is_late, "the connection stays open");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1."), "{text}");
        if text.split(' ').nth(1) == Some("200") {
            assert!(text.contains("\r\ncontent-security-policy: default-src 'self';"), "{text}");
            good.set(good.get() + 1);
        }
    });
    // `feed` gives the four good ones first, unchanged; of the changed ones it may be none.
    assert!(good.get() > 3, "the control: {} were answered", good.get());
    assert!(server.is_running());
    assert_eq!(server.get("/").status, 200);
    server.end();
}

#[test]
fn a_place_that_is_taken_is_an_error_that_says_so() {
    let root = machine();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, out, err) = text(&omr(&root, &["web", "--listen", &address]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(&format!("{address}: another program listens there")), "{err}");

    let path = root.resolve("web.sock");
    let name = path.to_str().expect("a name");
    let server = Server::start_at(&root, &path);
    assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
    assert_eq!(server.get("/api/groups").status, 200, "no token: the mode decides");
    let (code, _, err) = text(&omr(&root, &["web", "--listen", name]));
    assert!(code == 1 && err.contains(&format!("{name}: exists; another omr web listens there")), "{err}");
    server.end();
    assert!(!path.exists(), "the socket is left");
    std::fs::write(&path, "a file").expect("written");
    let (code, _, err) = text(&omr(&root, &["web", "--listen", name]));
    assert!(code == 1 && err.contains("exists and is no socket"), "{err}");
    assert_eq!(std::fs::read(&path).expect("the file"), b"a file");

    for (words, code, says) in [
        (&["web"][..], 2, "systemctl start omr-web.socket"),
        (&["web", "--listen", "0.0.0.0:0"], 2, "--listen 0.0.0.0:0: others can reach this address"),
        (&["web", "--listen", "[::]:0"], 2, "--token-file"),
        (&["web", "--listen", "9099"], 2, "expected an address such as 127.0.0.1:9099"),
        (&["web", "--listen", "/nowhere/web.sock"], 1, "listen on /nowhere/web.sock"),
        (&["web", "app.scope"], 2, "--export"),
    ] {
        let (found, out, err) = text(&omr(&root, words));
        assert_eq!((found, out.as_str()), (code, ""), "{words:?}: {err}");
        assert!(err.contains(says), "{words:?}: {err}");
    }
}

/// Starts it as systemd does, with this descriptor.
fn activated(root: &FakeRoot, fd: i32, words: &[&str]) -> Child {
    let web = command(root.path(), &["web"]);
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\""]);
    command.arg(web.get_program()).args(web.get_args()).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    // SAFETY: a system call only between fork and exec; of equal descriptors the flag is cleared.
    let pass = move || unsafe {
        if fd == 3 {
            libc::fcntl(3, libc::F_SETFD, 0);
        } else {
            libc::dup2(fd, 3);
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(pass) };
    command.spawn().expect("sh starts")
}

#[test]
fn systemd_opens_its_socket_and_it_ends_when_nobody_comes() {
    let root = with_history();
    let path = root.resolve("activated.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let child = activated(&root, listener.as_raw_fd(), &["--idle", "2s"]);
    let mut server = Server { child, said: String::new(), path: Some(path.clone()), cookie: String::new() };
    let mut events = server.events();
    for _ in 0..4 {
        events.next();
    }
    assert!(server.is_running(), "somebody is there for longer than that");
    assert_eq!(server.get("/").status, 200);
    drop(events);
    assert_eq!(wait_for(&mut server.child), 0);
    assert!(path.exists(), "the socket is systemd's");
    // Who comes meanwhile waits for the next start.
    let mut early = UnixStream::connect(&path).expect("a connection");
    write!(early, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("taken");
    server.child = activated(&root, listener.as_raw_fd(), &[]);
    assert_eq!(Answer::read(early).status, 200);
    server.end();

    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let output = activated(&root, tcp.as_raw_fd(), &[]).wait_with_output().expect("an end");
    let (code, _, err) = text(&output);
    assert!(code == 2 && err.contains("needs --token-file FILE"), "{err}");
    let file = std::fs::File::open("/dev/null").expect("a file");
    let output = activated(&root, file.as_raw_fd(), &[]).wait_with_output().expect("an end");
    let (code, _, err) = text(&output);
    assert!(code == 1 && err.contains("descriptor 3 of systemd"), "{err}");
}

/// The data of a report.
fn data(html: &str) -> Value {
    let (_, after) = html.split_once("id=\"omr-data\">").expect("data");
    serde_json::from_str(after.split("</script>").next().expect("an end")).expect("JSON")
}

#[test]
fn a_report_is_one_file_in_which_names_are_only_names() {
    let hostile = "<script>alert(1)</script>";
    let root = with_history();
    add_group(&root, hostile, 32_768, 0);
    let daemon = Daemon::start(&root, "");
    wait_until("the groups", || daemon.status()["groups"].as_array().is_some_and(|groups| groups.len() >= 2));
    let file = root.resolve("report.html");
    let name = file.to_str().expect("a name");
    let export = |words: &[&str]| text(&omr(&root, &[&["web", "--export"], words].concat()));
    let mode = || std::fs::metadata(&file).expect("a report").permissions().mode() & 0o777;

    assert_eq!(export(&[name, "gone.scope", "--window", "7d"]), (0, String::new(), String::new()));
    let html = std::fs::read_to_string(&file).expect("a report");
    assert_eq!(mode(), 0o600);
    assert!(!html.contains("<script>alert") && html.contains("\\u003cscript>alert"), "{html}");
    assert!(!html.contains(" src=\"") && !html.contains("rel=\"stylesheet\""), "nothing is outside of it");
    let found = data(&html);
    assert!(paths(&found).contains(&hostile) && paths(&found).contains(&"app.scope"));
    for group in ["", "gone.scope", "app.scope", hostile] {
        assert_eq!(found["charts"][group]["group"], group, "{:?}", found["charts"].as_object().map(|of| of.len()));
    }
    let window = &found["window"];
    assert_eq!(window["to"].as_u64().zip(window["from"].as_u64()).map(|(to, from)| to - from), Some(7 * 86_400));
    assert!(found["explain"][""].as_array().is_some_and(|lines| !lines.is_empty()));
    assert_eq!((&found["status"]["pid"], &found["missing"]), (&Value::from(daemon.pid()), &Value::Null));

    // A file that is there keeps its mode; the past has no status.
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("a mode");
    assert_eq!(export(&[name, "--at", "38m"]).0, 0);
    assert_eq!(mode(), 0o644);
    let past = data(&std::fs::read_to_string(&file).expect("a report"));
    assert!(paths(&past).contains(&"gone.scope") && !paths(&past).contains(&"app.scope"));
    assert!(past["status"].is_null() && past["missing"].is_null());
    let explained = &past["explain"][""];
    assert!(explained[0].as_str().is_some_and(|line| line.contains("gone.scope: not swept")), "{explained}");
    daemon.end();
    let (code, html, _) = export(&["-"]);
    assert_eq!(code, 0);
    assert!(data(&html)["missing"].as_str().is_some_and(|why| why.contains("the daemon is not running")));

    // Only files are replaced.
    let link = root.resolve("link.html");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    for other in [root.path(), &link, Path::new("/dev/null")] {
        let (code, _, err) = export(&[other.to_str().expect("a name")]);
        assert_eq!(code, 1);
        assert!(err.contains("exists and is no regular file"), "{err}");
    }
    assert!(link.is_symlink());
    let (code, _, err) = export(&["/nowhere/report.html"]);
    assert!(code == 1 && err.contains("/nowhere/report.html"), "{err}");
}

#[test]
fn strange_names_of_groups_come_through_whole() {
    let root = machine();
    let names = [
        "a\nid: 99\n\ndata: b".to_owned(),
        "\u{1b}[31m\u{7}red".to_owned(),
        "ümläut \"'&".to_owned(),
        long_path(&root),
    ];
    for name in &names {
        add_group(&root, name, 65_536, 0);
    }
    let daemon = Daemon::start(&root, "");
    wait_until("the groups", || daemon.status()["groups"].as_array().is_some_and(|groups| groups.len() == names.len()));
    let server = Server::start(&root, &[]);
    let groups = server.json("/api/groups");
    let status = server.events().next();
    let live: Vec<&str> =
        status["status"]["groups"].as_array().expect("groups").iter().filter_map(|of| of["group"].as_str()).collect();
    for name in &names {
        assert!(paths(&groups).contains(&name.as_str()) && live.contains(&name.as_str()), "{name:?}");
        // A line of the query has no room for the longest name in percents.
        let asked = if name.len() > 1000 { name.clone() } else { percent(name) };
        assert_eq!(server.json(&format!("/api/charts?group={asked}"))["charts"]["group"], name.as_str());
        let lines = server.json(&format!("/api/explain?group={asked}"));
        assert!(!lines.to_string().contains("\\n") && !lines.to_string().contains("\\u001b"), "{lines}");
        assert!(!lines["lines"].as_array().expect("lines").is_empty());
    }
    assert_eq!(server.get("/api/explain?group=a").status, 503, "the control");
    server.end();
    daemon.end();
}

/// Prints what `omr web` costs with 100 groups, a week of history of 200 groups, and 64 browsers.
#[test]
#[ignore = "a measurement: docs/measure/self.md#web"]
fn the_cost_of_64_clients() {
    const WATCHED: Duration = Duration::from_secs(60);
    let root = machine();
    for number in 0..100 {
        add_group(&root, format!("app-{number}.scope"), 65_536, 0);
    }
    super::top::write_week(&root);
    let daemon = Daemon::start(&root, "");
    let server = Server::start(&root, &[]);
    println!("without clients: {} KiB", server.resident_kib());
    for group in ["", "user.slice/app-7.scope", "user.slice/app-8.scope", "user.slice/app-9.scope"] {
        let path = format!("/api/charts?span=604800&group={group}");
        let times = [(); 2].map(|()| {
            let began = std::time::Instant::now();
            assert!(server.get(&path).body.len() > 100_000);
            began.elapsed().as_millis()
        });
        println!("a week of 200 groups: {} ms, then {} ms", times[0], times[1]);
    }
    println!("after reading: {} KiB", server.resident_kib());
    let listen = || {
        let mut events = server.events();
        println!("an event has {} bytes", events.next().to_string().len());
        std::thread::spawn(
            move || while std::io::copy(&mut events.lines, &mut std::io::sink()).is_ok_and(|n| n > 0) {},
        );
    };
    listen();
    std::thread::sleep(Duration::from_secs(5));
    println!("with 1 client: {} KiB", server.resident_kib());
    (1..64).for_each(|_| listen());
    let process = Process::open(&Kernel::open(Path::new("/")).expect("/proc"), server.child.id());
    let process = process.expect("the program");
    let cpu = || ProcessStat::read(process.dir()).expect("its CPU time").cpu();
    let before = cpu();
    std::thread::sleep(WATCHED);
    println!("{:.2} % of a CPU with 64 clients", 100.0 * (cpu() - before).as_secs_f64() / WATCHED.as_secs_f64());
    println!("with 64 clients: {} KiB", server.resident_kib());
    daemon.end();
}
