//! Requests to a metadata server, by HTTP/1.1 in the clear.
//!
//! A request has a deadline and an answer has a size. Nothing leads anywhere else: redirects are
//! not followed, proxies are not used and names are not looked up. Reasons for the library:
//! docs/design/decisions/005-http.md.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use ureq::config::Config;
use ureq::http::{self, Uri};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{NextTimeout, TcpConnector};
use ureq::{Agent, Error, Timeout};

/// The longest time to connect. The server is on this host or the one below, and answers in
/// microseconds.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// The most bytes of a head, and of a body. The longest that is expected is Azure's list of events,
/// half a KiB each.
const LARGEST: usize = 64 << 10;
/// The most headers of an answer. Metadata servers send about ten.
const MOST_HEADERS: usize = 64;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET` or `PUT`.
    pub method: &'a str,
    /// Path and query, as they go out.
    pub path: &'a str,
    /// Names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// The longest time from connecting to the last byte of the answer.
    pub patience: Duration,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The code, 200 for success.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// Decoded, where it came in chunks.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of the first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text without surrounding blanks.
    pub fn text(&self) -> Result<&str> {
        Ok(std::str::from_utf8(&self.body).ok().context("the answer is not text")?.trim())
    }

    /// The answer, when the server has something of that name (200); `None` when it has not (404).
    pub fn found(&self, path: &str) -> Result<Option<&Answer>> {
        match self.status {
            200 => Ok(Some(self)),
            404 => Ok(None),
            status => bail!("{path}: the answer is {status}, and neither 200 nor 404"),
        }
    }
}

/// A metadata server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    agent: Agent,
    /// The seconds by which the server's clock is ahead of ours.
    ahead: AtomicI64,
}

/// Leads every request to one address.
#[derive(Debug)]
struct Only(SocketAddr);

impl Resolver for Only {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut found = self.empty();
        found.push(self.0);
        Ok(found)
    }
}

impl Server {
    /// The server at that address. Nothing is asked yet.
    pub fn new(address: SocketAddr) -> Self {
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent("")
            .accept("")
            .accept_encoding("")
            .max_response_header_size(LARGEST)
            // One that is full with less than a head would say that the connection ended.
            .input_buffer_size(2 * LARGEST)
            .max_idle_connections(0)
            .build();
        // Without the library's connectors for proxies.
        let agent = Agent::with_parts(config, TcpConnector::default(), Only(address));
        Server { address, agent, ahead: AtomicI64::new(0) }
    }

    /// Returns the time by the server's clock, as of its last answer. Deadlines are in this time.
    /// The own clock of a machine that has just woken up may be hours off.
    pub fn now(&self) -> SystemTime {
        let now = SystemTime::now();
        let ahead = self.ahead.load(Ordering::Relaxed);
        let shift = Duration::from_secs(ahead.unsigned_abs());
        let shifted = if ahead < 0 { now.checked_sub(shift) } else { now.checked_add(shift) };
        shifted.unwrap_or(now)
    }

    fn compare_clocks(&self, answer: &Answer) {
        let Some(date) = answer.header("date").and_then(|date| httpdate::parse_http_date(date).ok()) else { return };
        let now = SystemTime::now();
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or_default();
        let ahead = match date.duration_since(now) {
            Ok(ahead) => seconds(ahead),
            Err(behind) => -seconds(behind.duration()),
        };
        // A date has whole seconds, and arrives with a delay.
        self.ahead.store(if ahead.abs() < 3 { 0 } else { ahead }, Ordering::Relaxed);
    }

    /// Sends a request and waits for the answer. An answer with any status is an answer.
    pub fn ask(&self, request: &Request<'_>) -> Result<Answer> {
        let url = format!("http://{}{}", self.address, request.path);
        let answer = self.exchange(request, &url).with_context(|| format!("{} {url}", request.method))?;
        self.compare_clocks(&answer);
        Ok(answer)
    }

    fn exchange(&self, request: &Request<'_>, url: &str) -> Result<Answer> {
        let mut call = http::Request::builder().method(request.method).uri(url).header("connection", "close");
        if request.method != "GET" {
            // Or else it would be an empty body in chunks.
            call = call.header("content-length", "0");
        }
        for &(name, value) in request.headers {
            call = call.header(name, value);
        }
        let call = self.agent.configure_request(call.body(())?);
        let call = call.timeout_global(Some(request.patience)).timeout_connect(Some(CONNECT_TIME)).build();
        let response = self.agent.run(call).map_err(explain)?;
        let (head, mut body) = response.into_parts();
        if head.headers.len() > MOST_HEADERS {
            bail!("not an answer of HTTP: too many headers");
        }
        if let Some(coding) =
            head.headers.get("transfer-encoding").filter(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        {
            bail!("transfer encoding {coding:?} is not known");
        }
        if body.content_length().is_some_and(|length| length > LARGEST as u64) {
            return Err(too_long());
        }
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: body.with_config().limit(LARGEST as u64).read_to_vec().map_err(explain)?,
        })
    }
}

fn too_long() -> anyhow::Error {
    anyhow!("the answer is longer than {} KiB", LARGEST >> 10)
}

fn cut_off() -> anyhow::Error {
    anyhow!("the connection ended in the middle of the answer")
}

/// Why there is no answer.
fn explain(err: Error) -> anyhow::Error {
    match err {
        Error::Timeout(Timeout::Connect) => anyhow!("connect: no answer in time"),
        Error::Timeout(_) => anyhow!("no answer in time"),
        Error::BodyExceedsLimit(_) | Error::LargeResponseHeader(..) => too_long(),
        Error::BodyStalled => cut_off(),
        Error::Protocol(err) => anyhow!("not an answer of HTTP: {err}"),
        Error::Io(err) => match err.kind() {
            io::ErrorKind::UnexpectedEof => cut_off(),
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable => anyhow::Error::from(err).context("connect"),
            _ => anyhow::Error::from(err).context("receive"),
        },
        err => err.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;

    /// The answer of a server that sends these bytes and ends the connection, and the request that
    /// it got.
    fn exchange(request: &Request<'_>, bytes: Vec<u8>) -> (Result<Answer>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server::new(listener.local_addr().expect("an address"));
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let _ = stream.write_all(&bytes);
            String::from_utf8(head).expect("text")
        });
        (server.ask(request), thread.join().expect("served"))
    }

    const GET: Request<'static> =
        Request { method: "GET", path: "/x?y=1", headers: &[("Metadata", "true")], patience: Duration::from_secs(60) };

    fn answer(bytes: &[u8]) -> Result<Answer> {
        exchange(&GET, bytes.to_vec()).0
    }

    #[test]
    fn a_request_is_what_was_asked_for_and_no_more() {
        let (answer, head) = exchange(&GET, b"HTTP/1.1 200 OK\r\nX-Y: z\r\n\r\n".to_vec());
        assert_eq!(answer.expect("an answer").header("x-y"), Some("z"));
        let mut lines: Vec<_> = head.lines().filter(|line| !line.starts_with("host: 127.0.0.1:")).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["", "GET /x?y=1 HTTP/1.1", "connection: close", "metadata: true"], "{head}");
        let (_, head) = exchange(&Request { method: "PUT", ..GET }, Vec::new());
        assert!(head.starts_with("PUT /x?y=1 HTTP/1.1\r\n") && head.contains("\r\ncontent-length: 0\r\n"), "{head}");
    }

    #[test]
    fn a_body_ends_where_its_length_its_last_chunk_or_the_connection_says() {
        let some = |text: &str| Some(text.to_owned());
        for (head, rest, body) in [
            ("Content-Length: 3", "abcdef", some("abc")),
            ("Content-Length: 4", "abc", None),
            ("CONTENT-LENGTH: 0", "", some("")),
            ("Transfer-Encoding: chunked", "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", some("abc")),
            ("Transfer-Encoding: chunked", "2\r\nab\r\n1", None),
            ("Transfer-Encoding: chunked", "2\r\nab\r\n", None),
            ("X: y", "abc", some("abc")),
        ] {
            let found = answer(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{rest}").as_bytes());
            match (&found, body) {
                (Ok(found), Some(body)) => assert_eq!(found.body, body.as_bytes(), "{head} {rest}"),
                (Err(err), None) => assert!(format!("{err:#}").ends_with("in the middle of the answer"), "{err:#}"),
                (found, body) => panic!("{head} {rest}: {found:?}, and not {body:?}"),
            }
        }
        assert_eq!(answer(b"HTTP/1.1 204 No Content\r\n\r\n").expect("an answer").body, b"");
        assert!(answer(b"HTTP/1.1 200 O").is_err());
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {0}\r\n\r\n{1}", LARGEST + 1, "x".repeat(LARGEST + 1));
        for text in [
            "garbage\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
            &long,
        ] {
            let found = answer(text.as_bytes());
            assert!(found.is_err(), "{text:.99?}: {found:?}");
        }
        let headers = |count| answer(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)).as_bytes());
        assert!(headers(MOST_HEADERS).is_ok());
        for count in [MOST_HEADERS + 1, 1000] {
            assert!(format!("{:#}", headers(count).expect_err("too many")).ends_with("too many headers"));
        }
        assert_eq!(answer(long.replace("65537", "65536").as_bytes()).expect("just so").body.len(), LARGEST);
    }

    #[test]
    fn a_line_break_in_what_is_sent_is_an_error() {
        let server = Server::new("127.0.0.1:1".parse().expect("an address"));
        for request in
            [Request { headers: &[("a", "b\r\nc: d")], ..GET }, Request { path: "/ HTTP/1.1\r\nc: d", ..GET }]
        {
            let err = format!("{:#}", server.ask(&request).expect_err("no request"));
            assert!(!err.contains("connect"), "{err}");
        }
    }

    /// Real answers of the three metadata servers, without their names.
    const ANSWERS: [&[u8]; 5] = [
        b"HTTP/1.1 200 OK\r\nX-Aws-Ec2-Metadata-Token-Ttl-Seconds: 21600\r\nContent-Type: text/plain\r\n\
          Date: Mon, 23 Nov 2026 10:00:00 GMT\r\nConnection: close\r\nContent-Length: 8\r\n\r\nAQAAAA==",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n\
          1f\r\n{\"DocumentIncarnation\":1,\"Event\r\n7\r\ns\":[]}\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\nETag: 411261ca6c9e4182\r\n\
          Date: Fri, 31 Dec 9999 23:59:59 GMT\r\nContent-Length: 5\r\n\r\nFALSE",
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    ];

    #[test]
    fn no_change_of_an_answer_makes_it_panic_or_a_body_longer_than_it_may_be() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Server::new(listener.local_addr().expect("an address"));
        let (give, given) = std::sync::mpsc::sync_channel::<Vec<u8>>(0);
        let thread = std::thread::spawn(move || {
            while let Ok(bytes) = given.recv() {
                let (mut stream, _) = listener.accept().expect("a client");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(&bytes);
            }
        });
        let whole = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&ANSWERS, |bytes| {
            give.send(bytes.to_vec()).expect("sent");
            let Ok(answer) = server.ask(&GET) else { return };
            assert!(answer.body.len() <= LARGEST.min(bytes.len()) && answer.headers.len() <= MOST_HEADERS);
            assert!((100..1000).contains(&answer.status), "{}", answer.status);
            // The clock that it set is one that times can be counted from.
            assert!(server.now().checked_add(Duration::from_secs(86_400)).is_some());
            whole.set(whole.get() + 1);
        });
        assert!(whole.get() >= ANSWERS.len(), "the control");
        drop(give);
        thread.join().expect("the server");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(&bytes);
        }

        #[test]
        fn no_damage_makes_it_panic(
            head in "(Content-Length|Transfer-Encoding|\\PC{0,9}): (chunked|[0-9a-f]{0,20}|\\PC{0,9})",
            rest in "([0-9a-f]{0,17}\r\n[a-z]{0,9}\r\n){0,4}",
            at in 0usize..80,
            value: u8,
        ) {
            let mut bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{rest}").into_bytes();
            let _ = answer(&bytes);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            let _ = answer(&bytes);
        }

        #[test]
        fn however_it_is_cut_a_body_is_the_same(text in "[a-z\r\n]{0,60}", cuts in proptest::collection::vec(1usize..9, 1..20)) {
            let mut chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
            let mut rest = text.as_str();
            for cut in cuts.iter().cycle() {
                let (chunk, after) = rest.split_at((*cut).min(rest.len()));
                chunked.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
                rest = after;
                if chunk.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(answer(chunked.as_bytes()).expect("an answer").body, text.as_bytes());
        }
    }
}
