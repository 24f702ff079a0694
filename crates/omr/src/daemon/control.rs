//! The control socket: a line of JSON in, a line of JSON out.
//!
//! Who may connect is the socket's mode (root and the group omr); who may change anything is the
//! peer's user id, which the kernel tells. A client gets no more than its share: short lines, a few
//! clients at a time, and what it does not read within a while is dropped.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_units::Monotonic;
use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};

/// A request is shorter.
const LONGEST_REQUEST: usize = 4096;
/// An answer that is not read stays no longer than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at a time.
const MOST_CLIENTS: usize = 16;

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// What goes on.
    Status,
    /// Why a group is, or is not, swept.
    Explain {
        /// Its path, bytes that are not UTF-8 replaced; `None`: the machine.
        group: Option<String>,
    },
    /// No sweeps.
    Pause {
        /// For this long, in seconds; `None`: until resumed.
        seconds: Option<u64>,
    },
    /// No sweeps until the machine has slept and woken up.
    FallAsleep,
    /// Sweeps again.
    Resume,
    /// Something is about to happen to the machine: free memory for it now, idle or not.
    Prepare {
        /// For what.
        #[serde(rename = "for")]
        purpose: Purpose,
        /// In how many milliseconds it happens; `None`: nobody knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        /// Who says so.
        why: String,
    },
    /// It will not happen after all.
    StandDown,
}

/// What a machine can be prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Hibernation: little may be left that the image must hold.
    Hibernate,
    /// Being moved to another host: little may be left that must be copied.
    Migrate,
    /// Being ended: whoever saves what it has needs memory and an idle disk for it.
    Preempt,
}

impl Purpose {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Hibernate => "hibernate",
            Purpose::Migrate => "migrate",
            Purpose::Preempt => "preempt",
        }
    }
}

/// What a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// Ask.
    Read,
    /// Ask, and have the machine prepared: what the user that `omr watch` runs as may do.
    Prepare,
    /// Everything.
    Control,
}

impl Request {
    /// What one needs to be allowed for it.
    fn needs(&self) -> Right {
        match self {
            Request::Status | Request::Explain { .. } => Right::Read,
            Request::Prepare { .. } | Request::StandDown => Right::Prepare,
            Request::Pause { .. } | Request::FallAsleep | Request::Resume => Right::Control,
        }
    }
}

impl Right {
    fn covers(self, needed: Right) -> bool {
        match self {
            Right::Read => needed == Right::Read,
            Right::Prepare => needed != Right::Control,
            Right::Control => true,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// As asked.
    Ok(serde_json::Value),
    /// Why not.
    Error(String),
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    right: Right,
    input: Vec<u8>,
    output: Vec<u8>,
    since: Monotonic,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Client {
    /// Whether a request has been read that is not answered yet.
    pub fn has_request(&self) -> bool {
        self.output.is_empty() && self.input.contains(&b'\n')
    }

    /// Whether there is something to send.
    pub fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }
}

/// The listening socket and its clients.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// Open connections.
    pub clients: Vec<Client>,
    /// User id of `omr watch`, who may have the machine prepared.
    watcher: Option<u32>,
    /// Nobody can be taken in until the next tick.
    deaf: bool,
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Control {
    /// Listens at `path`; only the holder of the lock may call this, so a socket that is there is
    /// one that a crash left behind. `group`: who may read besides root. `watcher`: the user of it who
    /// may also have the machine prepared.
    pub fn listen(path: &Path, group: Option<u32>, watcher: Option<u32>) -> Result<Self> {
        match fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => {
                return Err(err).with_context(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
        // Closed to all first: between bind and chmod nobody must slip in.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.with_context(|| format!("listen on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        if let Some(group) = group
            && let Err(err) = chown(path, None, Some(group))
        {
            log::warn!("{}: {err}; only root can ask for the status", path.display());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        Ok(Control { listener, path: path.into(), clients: Vec::new(), watcher, deaf: false })
    }

    /// Takes in who wants to connect.
    pub fn accept(&mut self, now: Monotonic) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                // No descriptors left. Who knocks is there still at the next tick; looking at once
                // would be looking all the time.
                Err(_) => {
                    self.deaf = true;
                    break;
                }
            };
            if self.clients.len() >= MOST_CLIENTS {
                // The one that has been there longest has had its time.
                self.clients.remove(0);
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let own = rustix::process::getuid();
            let right = match rustix::net::sockopt::socket_peercred(&stream) {
                Ok(peer) if peer.uid.is_root() || peer.uid == own => Right::Control,
                Ok(peer) if Some(peer.uid.as_raw()) == self.watcher => Right::Prepare,
                _ => Right::Read,
            };
            self.clients.push(Client { stream, right, input: Vec::new(), output: Vec::new(), since: now });
        }
    }

    /// Reads from a client and lets `answer` answer its requests; false when it is to be dropped.
    pub fn serve(client: &mut Client, now: Monotonic, mut answer: impl FnMut(Request) -> Answer) -> bool {
        let mut chunk = [0u8; 1024];
        // An answer that is still to be read comes before the next request.
        while client.output.is_empty() {
            if let Some(end) = client.input.iter().position(|&c| c == b'\n') {
                let line: Vec<u8> = client.input.drain(..=end).collect();
                let reply = match serde_json::from_slice::<Request>(&line) {
                    Ok(request) if !client.right.covers(request.needs()) => {
                        Answer::Error("only root may do that".into())
                    }
                    Ok(request) => answer(request),
                    Err(err) => Answer::Error(format!("not a request: {err}")),
                };
                client.output = serde_json::to_vec(&reply).unwrap_or_default();
                client.output.push(b'\n');
                client.since = now;
                // One at a time: who asks without end does not keep the others, or a sweep, waiting.
                return Control::send(client);
            }
            if client.input.len() > LONGEST_REQUEST {
                return false;
            }
            let read = match client.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => n,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            };
            client.input.extend_from_slice(&chunk[..read]);
        }
        true
    }

    /// Sends what the socket takes; false when the client is to be dropped.
    pub fn send(client: &mut Client) -> bool {
        while !client.output.is_empty() {
            match client.stream.write(&client.output) {
                Ok(0) => return false,
                Ok(n) => drop(client.output.drain(..n)),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// What to wait for at the listening socket.
    pub fn wants(&self) -> PollFlags {
        if self.deaf { PollFlags::empty() } else { PollFlags::IN }
    }

    /// Once a tick: drops clients that neither ask nor read.
    pub fn drop_silent(&mut self, now: Monotonic) {
        self.deaf = false;
        self.clients.retain(|client| now.since(client.since) < PATIENCE);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Asks the daemon; for the command line.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("the daemon is not running (no answer on {}); systemctl start omr", path.display())
        }
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{}: permission denied; root and members of the group omr may ask", path.display())
        }
        Err(err) => return Err(err).with_context(|| format!("connect to {}", path.display())),
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    let mut chunk = [0u8; 16 << 10];
    while !reply.ends_with(b"\n") {
        match stream.read(&mut chunk).context("no answer from the daemon")? {
            0 => bail!("the daemon closed the connection without an answer"),
            n => reply.extend_from_slice(&chunk[..n]),
        }
    }
    match serde_json::from_slice(&reply).context("the daemon's answer")? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(error) => bail!("{error}"),
    }
}
