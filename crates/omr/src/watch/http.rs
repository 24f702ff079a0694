//! One request to a metadata server: HTTP/1.1 in the clear on a connection of its own.
//!
//! Everything has an end: the whole exchange has a deadline, an answer has a size, and nothing leads
//! anywhere else: there are no redirects, no proxies, no names to be resolved. Why not a client
//! library: docs/design/decisions/005-http.md.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use omr_kernel::clock;
use omr_units::Monotonic;

/// The server is on this host or the one below; if it is there it answers in microseconds.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Head and body together. The longest that is expected is Azure's list of events, half a KiB each.
const LARGEST: usize = 64 << 10;
/// Metadata servers send about ten.
const MOST_HEADERS: usize = 64;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET` or `PUT`.
    pub method: &'a str,
    /// Path and query. It and the headers go out as they are: none may hold a line break.
    pub path: &'a str,
    /// Names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// For all of it, from connecting to the last byte.
    pub patience: Duration,
}

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The code, 200 for success.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// Decoded, where it came in chunks.
    pub body: Vec<u8>,
}

impl Answer {
    /// Value of the first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text without surrounding blanks.
    pub fn text(&self) -> Result<&str> {
        Ok(std::str::from_utf8(&self.body).ok().context("the answer is not text")?.trim())
    }

    /// The body, when the server has it (200); `None` when it has nothing of that name (404).
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
    /// How far its clock is ahead of ours, in seconds.
    ahead: AtomicI64,
}

impl Server {
    /// The server at that address. Nothing is asked yet.
    pub fn new(address: SocketAddr) -> Self {
        Server { address, ahead: AtomicI64::new(0) }
    }

    /// The time by its clock, as of its last answer. Deadlines are told in that: a machine that has just
    /// woken up may be hours behind, and would think that all of them have passed.
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
        // A date has whole seconds, and takes its time to get here.
        self.ahead.store(if ahead.abs() < 3 { 0 } else { ahead }, Ordering::Relaxed);
    }

    /// Asks it. An answer with any status is an answer.
    pub fn ask(&self, request: &Request<'_>) -> Result<Answer> {
        let answer = self
            .exchange(request)
            .with_context(|| format!("{} http://{}{}", request.method, self.address, request.path))?;
        self.compare_clocks(&answer);
        Ok(answer)
    }

    fn exchange(&self, request: &Request<'_>) -> Result<Answer> {
        let end = clock::read_monotonic() + request.patience;
        let mut stream =
            TcpStream::connect_timeout(&self.address, CONNECT_TIME.min(request.patience)).context("connect")?;
        stream.set_write_timeout(Some(left(end)?))?;
        stream.write_all(&self.head(request)).context("send")?;
        let mut bytes = Vec::new();
        let mut chunk = [0u8; 4096];
        loop {
            stream.set_read_timeout(Some(left(end)?))?;
            let ended = match stream.read(&mut chunk) {
                Ok(read) => {
                    bytes.extend_from_slice(&chunk[..read]);
                    read == 0
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                // What a timeout looks like; the deadline is looked at above.
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => continue,
                Err(err) => return Err(err).context("receive"),
            };
            if bytes.len() > LARGEST {
                bail!("the answer is longer than {} KiB", LARGEST >> 10);
            }
            if let Some(answer) = parse(&bytes, ended)? {
                return Ok(answer);
            }
            if ended {
                bail!("the connection ended in the middle of the answer");
            }
        }
    }

    fn head(&self, request: &Request<'_>) -> Vec<u8> {
        let Request { method, path, headers, .. } = request;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        if *method != "GET" {
            head.push_str("Content-Length: 0\r\n");
        }
        for (name, value) in *headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

/// The time until `end`, which sockets want not to be zero.
fn left(end: Monotonic) -> Result<Duration> {
    let left = end.since(clock::read_monotonic());
    if left.is_zero() {
        bail!("no answer in time");
    }
    Ok(left)
}

/// The answer that `bytes` hold; `None` when there is more to come. `ended`: nothing more will come.
fn parse(bytes: &[u8], ended: bool) -> Result<Option<Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes).map_err(|err| anyhow!("not an answer of HTTP: {err}"))? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let mut answer = Answer { status: head.code.unwrap_or_default(), ..Answer::default() };
    for header in head.headers {
        answer.headers.push((header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()));
    }
    let rest = &bytes[length..];
    let body = if answer.status == 204 || answer.status == 304 {
        Some(Vec::new())
    } else if let Some(coding) = answer.header("transfer-encoding") {
        if !coding.eq_ignore_ascii_case("chunked") {
            bail!("transfer encoding {coding:?} is not known");
        }
        join_chunks(rest)?
    } else if let Some(length) = answer.header("content-length") {
        let digits = length.bytes().all(|c| c.is_ascii_digit());
        let length: usize = length.parse().ok().filter(|_| digits).context("the length is not a number")?;
        if length > LARGEST {
            bail!("the answer is longer than {} KiB", LARGEST >> 10);
        }
        rest.get(..length).map(<[u8]>::to_vec)
    } else {
        // As long as the connection.
        ended.then(|| rest.to_vec())
    };
    Ok(body.map(|body| Answer { body, ..answer }))
}

/// The body that came in chunks; `None` when the last one is still to come. Trailers are not waited for:
/// nothing here reads them, and the connection is used once.
fn join_chunks(mut bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let (at, size) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => bail!("the size of a chunk is not a number"),
        };
        if size == 0 {
            return Ok(Some(body));
        }
        let size = usize::try_from(size).ok().filter(|&size| size <= LARGEST).context("a chunk is too long")?;
        let Some(chunk) = bytes.get(at..at + size + 2) else { return Ok(None) };
        let (data, end) = chunk.split_at(size);
        if end != b"\r\n" {
            bail!("a chunk has another size than it says");
        }
        body.extend_from_slice(data);
        bytes = &bytes[at + size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(text: &str, ended: bool) -> Option<String> {
        let answer = parse(text.as_bytes(), ended).expect("an answer");
        answer.map(|answer| String::from_utf8(answer.body).expect("text"))
    }

    #[test]
    fn a_body_ends_where_its_length_its_last_chunk_or_the_connection_says() {
        let some = |text: &str| Some(text.to_owned());
        for (head, rest, before_the_end, at_the_end) in [
            ("Content-Length: 3", "abcdef", some("abc"), some("abc")),
            ("Content-Length: 4", "abc", None, None),
            ("CONTENT-LENGTH: 0", "", some(""), some("")),
            ("Transfer-Encoding: chunked", "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", some("abc"), some("abc")),
            ("Transfer-Encoding: chunked", "2\r\nab\r\n1", None, None),
            ("X: y", "abc", None, some("abc")),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{rest}");
            assert_eq!((body(&text, false), body(&text, true)), (before_the_end, at_the_end), "{head} {rest}");
        }
        assert_eq!(body("HTTP/1.1 204 No Content\r\n\r\n", false), some(""));
        assert_eq!(body("HTTP/1.1 200 O", true), None);
    }

    #[test]
    fn what_is_not_an_answer_is_an_error() {
        for text in [
            "garbage\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(parse(text.as_bytes(), true).is_err(), "{text:?}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1));
        assert!(parse(many.as_bytes(), true).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), ended: bool) {
            let _ = parse(&bytes, ended);
        }

        #[test]
        fn no_damage_makes_it_panic(
            head in "(Content-Length|Transfer-Encoding|\\PC{0,9}): (chunked|[0-9a-f]{0,20}|\\PC{0,9})",
            rest in "([0-9a-f]{0,17}\r\n[a-z]{0,9}\r\n){0,4}",
            at in 0usize..80,
            value: u8,
        ) {
            let mut bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{rest}").into_bytes();
            let _ = parse(&bytes, true);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            let _ = parse(&bytes, true);
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
            prop_assert_eq!(body(&chunked, true), Some(text));
        }
    }
}
