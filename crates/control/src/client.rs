//! The client's end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::protocol::{Answer, NOT_A_REQUEST, PATIENCE, Request};
use crate::status::{Explanation, Status};

/// The most bytes of an answer: the processes of a large machine are some MiB.
const LONGEST: u64 = 64 << 20;
/// An answer that this program does not understand, or a request that the daemon does not.
pub const OTHER_VERSION: &str = "the daemon has another version; restart it: systemctl restart omr";

/// Sends one request to the daemon; for the command line.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value> {
    talk(path, &mut None, |link| link.ask(request), |link| link.ask(request))
}

/// Goes on over a connection that was kept. Without one, or if the daemon has ended since, begins on
/// a new one. The connection is kept, but for one with an error, which may be its end.
fn talk<T>(
    path: &Path,
    kept: &mut Option<Link>,
    go_on: impl FnOnce(&mut Link) -> Result<T>,
    begin: impl FnOnce(&mut Link) -> Result<T>,
) -> Result<T> {
    let mut link = match kept.take() {
        None => Link::open(path)?,
        Some(mut link) => match go_on(&mut link) {
            Err(err) if is_closed(&err) => Link::open(path)?,
            answer => {
                *kept = answer.is_ok().then_some(link);
                return answer;
            }
        },
    };
    let answer = begin(&mut link);
    match &answer {
        Ok(_) => *kept = Some(link),
        // A daemon that has ended since does not take another connection.
        Err(err) if is_closed(err) => drop(connect(path)?),
        Err(_) => {}
    }
    answer
}

/// A connection to the daemon that is kept.
#[derive(Debug)]
pub struct Link(BufReader<UnixStream>);

impl Link {
    /// Connects to the daemon.
    pub fn open(path: &Path) -> Result<Link> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Link(BufReader::new(stream)))
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<serde_json::Value> {
        self.send(request)?;
        result(serde_json::from_slice(&self.read()?).context("the daemon's answer")?)
    }

    /// Asks to be told the status when there is news, and waits for the first one.
    fn watch(&mut self) -> Result<Status> {
        self.send(&Request::Watch)?;
        self.next_status()
    }

    fn next_status(&mut self) -> Result<Status> {
        result(serde_json::from_slice(&self.read()?).context(OTHER_VERSION)?)
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line).context("ask the daemon")
    }

    /// Waits for the next line.
    fn read(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        self.0.by_ref().take(LONGEST + 1).read_until(b'\n', &mut line).context("no answer from the daemon")?;
        if line.len() as u64 > LONGEST {
            bail!("the daemon's answer is longer than {} MiB", LONGEST >> 20);
        }
        if !line.ends_with(b"\n") {
            let text = "the daemon closed the connection without an answer";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text).into());
        }
        Ok(line)
    }
}

fn result<T>(answer: Answer<T>) -> Result<T> {
    match answer {
        Answer::Ok(value) => Ok(value),
        Answer::Error(error) if error.starts_with(NOT_A_REQUEST) => bail!(OTHER_VERSION),
        Answer::Error(error) => bail!("{error}"),
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
        let ask = |link: &mut Link| link.ask(request);
        serde_json::from_value(talk(&self.socket, &mut self.link, ask, ask)?).context(OTHER_VERSION)
    }
}

/// A client that is told the status when there is news. It opens its connection when it needs it.
#[derive(Debug)]
pub struct Watch {
    socket: PathBuf,
    link: Option<Link>,
}

impl Watch {
    /// A client of the daemon at this socket. It is not connected yet.
    pub fn new(socket: PathBuf) -> Self {
        Watch { socket, link: None }
    }

    /// Waits for the next status, for 10 s at most. The first one comes at once.
    pub fn next_status(&mut self) -> Result<Status> {
        talk(&self.socket, &mut self.link, Link::next_status, Link::watch)
    }

    /// Closes the connection until the next status is wanted.
    pub fn leave(&mut self) {
        self.link = None;
    }
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

    /// A socket at which a daemon may listen, in a directory of its own.
    fn socket() -> (tempfile::TempDir, PathBuf, UnixListener) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        (dir, path, listener)
    }

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
            let Ok(value) = Link(BufReader::new(ours)).ask(&Request::Status) else { return };
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
        let (_dir, path, listener) = socket();
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
        // It ends before it has read the second question, or after that.
        for reads in [false, true] {
            let (_dir, path, listener) = socket();
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
        let (_dir, path, listener) = socket();
        let daemon = std::thread::spawn(move || {
            let answer = format!("{{\"ok\":{}}}\n", include_str!("status/example.json").trim());
            let unknown = "not a request: unknown variant `watch`, expected one of `status`";
            let errors = ["not now", unknown].map(|error| format!("{{\"error\":\"{error}\"}}\n"));
            let [not_now, unknown] = errors;
            for told in [answer.repeat(2), answer, not_now, unknown, "{\"ok\":{}}\n".into()] {
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
        assert_eq!(said(), OTHER_VERSION);
        assert!(said().starts_with(OTHER_VERSION));
        daemon.join().expect("it ends");
        assert!(said().contains("not running"));
    }

    #[test]
    fn an_answer_without_an_end_is_not_kept_for_ever() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        std::thread::spawn(move || while theirs.write_all(&[b' '; 1 << 20]).is_ok() {});
        let err = Link(BufReader::new(ours)).ask(&Request::Status).expect_err("too long");
        assert_eq!(err.to_string(), "the daemon's answer is longer than 64 MiB");
    }
}
