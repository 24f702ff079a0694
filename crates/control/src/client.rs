//! The client's end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::protocol::{Answer, PATIENCE, Request};
use crate::status::{Explanation, Status};

/// The most bytes of an answer: the processes of a large machine are some MiB.
const LONGEST: usize = 64 << 20;

/// Sends one request to the daemon; for the command line.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value> {
    Ok(ask_anew(path, request)?.1)
}

/// Asks over a new connection, which is returned with the answer.
fn ask_anew(path: &Path, request: &Request) -> Result<(Link, serde_json::Value)> {
    let mut link = Link::open(path)?;
    match link.ask(request) {
        Ok(answer) => Ok((link, answer)),
        Err(err) => {
            if is_closed(&err) {
                // A daemon that has ended since does not take another connection.
                connect(path)?;
            }
            Err(err)
        }
    }
}

/// A connection to the daemon that is kept.
#[derive(Debug)]
pub struct Link(UnixStream);

impl Link {
    /// Connects to the daemon.
    pub fn open(path: &Path) -> Result<Link> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Link(stream))
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.0.write_all(&line).context("ask the daemon")
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<serde_json::Value> {
        self.send(request)?;
        let mut reply = Vec::new();
        let mut chunk = [0u8; 16 << 10];
        while !reply.ends_with(b"\n") {
            match self.0.read(&mut chunk).context("no answer from the daemon")? {
                0 => return Err(closed()),
                n => reply.extend(chunk.iter().take(n)),
            }
            if reply.len() > LONGEST {
                return Err(too_long());
            }
        }
        match serde_json::from_slice(&reply).context("the daemon's answer")? {
            Answer::Ok(value) => Ok(value),
            Answer::Error(error) => bail!("{error}"),
        }
    }
}

/// A client that asks again and again over one connection, which it opens when it needs it.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    link: Option<Link>,
}

impl Client {
    /// A client of the daemon at this socket. It is not connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Client { socket, link: None }
    }

    /// Asks for the daemon's status.
    pub fn status(&mut self) -> Result<Status> {
        self.ask(&Request::Status)
    }

    /// Asks for the daemon's explanation of a group; the empty path is the machine.
    pub fn explain(&mut self, group: &str) -> Result<Explanation> {
        self.ask(&Request::Explain { group: (!group.is_empty()).then(|| group.to_owned()) })
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        // An error may be the end of the connection, so it is not kept then.
        let kept = self.link.take().map(|mut link| link.ask(request).map(|answer| (link, answer)));
        let (link, answer) = match kept {
            Some(Ok(answered)) => answered,
            // The daemon has ended, and may run again. A question can be asked twice.
            Some(Err(err)) if !is_closed(&err) => return Err(err),
            _ => ask_anew(&self.socket, request)?,
        };
        self.link = Some(link);
        serde_json::from_value(answer).context("the daemon has another version")
    }
}

/// A client that is told the status when there is news. It opens its connection when it needs it.
#[derive(Debug)]
pub struct Watch {
    socket: PathBuf,
    lines: Option<BufReader<UnixStream>>,
}

impl Watch {
    /// A client of the daemon at this socket. It is not connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Watch { socket, lines: None }
    }

    /// Waits for the next status, for 10 s at most. The first one comes at once.
    pub fn next_status(&mut self) -> Result<Status> {
        // After an error the next status needs a connection of its own.
        let kept = self.lines.take().map(|mut lines| read_status(&mut lines).map(|status| (lines, status)));
        let (lines, status) = match kept {
            Some(Ok(told)) => told,
            // The daemon has ended, and may run again.
            Some(Err(err)) if !is_closed(&err) => return Err(err),
            _ => {
                let mut link = Link::open(&self.socket)?;
                link.send(&Request::Watch)?;
                let mut lines = BufReader::new(link.0);
                let status = read_status(&mut lines)?;
                (lines, status)
            }
        };
        self.lines = Some(lines);
        Ok(status)
    }

    /// Closes the connection until the next status is wanted.
    pub fn leave(&mut self) {
        self.lines = None;
    }
}

fn read_status(lines: &mut impl BufRead) -> Result<Status> {
    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Told {
        Ok(Box<Status>),
        Error(String),
    }
    let mut line = Vec::new();
    lines.take(LONGEST as u64).read_until(b'\n', &mut line).context("no answer from the daemon")?;
    if !line.ends_with(b"\n") {
        return Err(if line.len() >= LONGEST { too_long() } else { closed() });
    }
    match serde_json::from_slice(&line).context("the daemon has another version")? {
        Told::Ok(status) => Ok(*status),
        Told::Error(error) => bail!("{error}"),
    }
}

fn closed() -> anyhow::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection without an answer").into()
}

fn too_long() -> anyhow::Error {
    anyhow::anyhow!("the daemon's answer is longer than {} MiB", LONGEST >> 20)
}

/// Returns true if the daemon has closed the connection.
fn is_closed(err: &anyhow::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let kind = err.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(BrokenPipe | ConnectionReset | UnexpectedEof))
}

fn connect(path: &Path) -> Result<UnixStream> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("the daemon is not running (no answer on {}); systemctl start omr", path.display())
        }
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{}: permission denied; only root and members of the group omr may ask", path.display())
        }
        Err(err) => return Err(err).with_context(|| format!("connect to {}", path.display())),
    };
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::status::ProcessView;

    #[test]
    fn no_answer_makes_the_client_panic() {
        let answers = [
            concat!(r#"{"ok":null}"#, "\n").to_owned(),
            concat!(r#"{"error":"only root may do that"}"#, "\n").to_owned(),
            format!("{{\"ok\":{}}}\n", include_str!("status/example.json").trim()),
            format!("{{\"ok\":{}}}\n", include_str!("status/explanation.json").trim()),
            format!("{{\"ok\":{}}}\n", include_str!("status/processes.json").trim()),
        ];
        let known = std::cell::Cell::new([0; 3]);
        omr_testkit::fuzz::feed(&answers, |bytes| {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            theirs.write_all(bytes).expect("written");
            theirs.shutdown(Shutdown::Write).expect("ended");
            let Ok(value) = Link(ours).ask(&Request::Status) else { return };
            let status = serde_json::from_value::<Status>(value.clone());
            let explanation = serde_json::from_value::<Explanation>(value.clone());
            let processes = serde_json::from_value::<Vec<ProcessView>>(value);
            if let Ok(status) = &status {
                let text = serde_json::to_value(status).expect("JSON");
                let again: Status = serde_json::from_value(text.clone()).expect("what was printed");
                assert_eq!(serde_json::to_value(&again).expect("JSON"), text);
            }
            let found = [status.is_ok(), explanation.is_ok(), processes.is_ok()];
            known.set(std::array::from_fn(|of| known.get()[of] + usize::from(found[of])));
        });
        assert!(known.get().iter().all(|known| *known >= 1_usize), "the control: {:?}", known.get());
    }

    #[test]
    fn a_kept_client_asks_again_on_a_new_connection_when_the_daemon_has_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let asked = std::thread::spawn(move || {
            let mut number = 0;
            // Each answers once: the first one ends then, and so does the second one.
            while number < 3 {
                let (mut stream, _) = listener.accept().expect("a client");
                let _ = stream.read(&mut [0; 1024]).expect("a request");
                number += 1;
                if number < 3 {
                    let answer = include_str!("status/example.json").trim();
                    writeln!(stream, "{{\"ok\":{answer}}}").expect("an answer");
                }
            }
            listener
        });
        let mut client = Client::new(path.clone());
        assert!(client.status().is_ok());
        assert!(client.status().is_ok(), "the connection had ended");
        let err = client.status().expect_err("the third one ends without an answer");
        assert!(err.to_string().contains("without an answer"), "{err}");
        drop(asked.join().expect("it ends"));
        assert!(client.status().expect_err("nobody listens").to_string().contains("not running"));
    }

    #[test]
    fn a_daemon_that_ends_between_two_questions_does_not_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        // It ends before it has read the second question, or after that.
        for reads in [false, true] {
            let _ = std::fs::remove_file(&path);
            let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
            let daemon = std::thread::spawn(move || {
                let (mut first, _) = listener.accept().expect("a client");
                let _ = first.read(&mut [0; 1024]).expect("a request");
                writeln!(first, "{{\"ok\":{}}}", include_str!("status/example.json").trim()).expect("an answer");
                drop(first);
                let (mut second, _) = listener.accept().expect("a client");
                if reads {
                    let _ = second.read(&mut [0; 1024]).expect("a request");
                }
                drop(listener);
            });
            let mut client = Client::new(path.clone());
            assert!(client.status().is_ok());
            let err = client.status().expect_err("it has ended");
            let text = format!("{err:#}");
            assert!(text.starts_with("the daemon is not running (no answer on "), "{text}");
            daemon.join().expect("it ends");
            let err = ask(&path, &Request::Status).expect_err("nobody listens");
            assert_eq!(format!("{err:#}"), text);
        }
    }

    #[test]
    fn who_watches_reads_one_status_after_the_other_and_comes_back_to_the_next_daemon() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let daemon = std::thread::spawn(move || {
            let answer = format!("{{\"ok\":{}}}\n", include_str!("status/example.json").trim());
            for told in [answer.repeat(2), answer, "{\"error\":\"not now\"}\n".into(), "{\"ok\":{}}\n".into()] {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut asked = [0; 64];
                let length = stream.read(&mut asked).expect("a request");
                assert_eq!(&asked[..length], b"{\"do\":\"watch\"}\n");
                stream.write_all(told.as_bytes()).expect("told");
            }
        });
        let mut watch = Watch::new(path);
        for number in 0..3 {
            watch.next_status().unwrap_or_else(|err| panic!("{number}: {err:#}"));
        }
        let mut said = || format!("{:#}", watch.next_status().expect_err("no status"));
        assert_eq!(said(), "not now");
        assert!(said().contains("another version"));
        daemon.join().expect("it ends");
        assert!(said().contains("not running"));
    }

    #[test]
    fn an_answer_without_an_end_is_not_kept_for_ever() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        std::thread::spawn(move || while theirs.write_all(&[b' '; 1 << 20]).is_ok() {});
        let err = Link(ours).ask(&Request::Status).expect_err("too long");
        assert_eq!(err.to_string(), "the daemon's answer is longer than 64 MiB");
    }
}
