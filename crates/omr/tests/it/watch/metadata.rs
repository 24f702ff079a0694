//! A metadata server whose answers a test gives.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omr_testkit::FakeRoot;

use super::root;

/// The reaction of a server to a request.
pub enum Reply {
    /// A whole answer with these headers.
    Answer(u16, &'static str, String),
    /// These bytes, and the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, and then one more from time to time.
    Drip(&'static str),
    /// Nothing, for as long as the other side waits.
    Silence,
}

pub fn ok(body: impl Into<String>) -> Reply {
    Reply::Answer(200, "", body.into())
}

pub fn status(code: u16) -> Reply {
    Reply::Answer(code, "", "<html>no</html>".into())
}

/// A metadata server; it ends with the test's process.
pub struct Metadata {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Metadata {
    /// `answer` is given the whole head of a request and how many there were before it.
    pub fn start(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
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
    pub fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("a log");
        asked.iter().map(|head| head.lines().next().unwrap_or_default().replace(" HTTP/1.1", "")).collect()
    }

    /// The configuration that leads to it.
    pub fn root(&self, provider: &str) -> FakeRoot {
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

pub fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// True if a head has a header. The case of the name does not matter (RFC 9110).
pub fn has(head: &str, name: &str, value: &str) -> bool {
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    headers.any(|(found, rest)| found.eq_ignore_ascii_case(name) && rest == value)
}
