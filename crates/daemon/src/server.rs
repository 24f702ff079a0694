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

use anyhow::{Context, Result};
use omr_control::protocol::{Answer, PATIENCE, Request, Right};
use omr_machine::statements::Statements;
use omr_units::Monotonic;
use rustix::event::PollFlags;

/// A request is shorter: there is room for more than a hundred statements.
const LONGEST_REQUEST: usize = 16 << 10;
/// Clients at a time.
const MOST_CLIENTS: usize = 16;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    uid: u32,
    right: Right,
    /// What it goes on saying.
    pub held: Statements,
}

impl Peer {
    /// Whether what belongs to this user is its own, or it may speak for everybody.
    pub fn owns(&self, owner: u32) -> bool {
        matches!(self.right, Right::Follow | Right::Control) || self.uid == owner
    }
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    peer: Peer,
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
    /// User id of `omr follow`, who may say of everything that it is in the foreground.
    follower: Option<u32>,
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
    /// one that a crash left behind. `group`: who may read besides root. `watcher`, `follower`: users of it who may do
    /// more.
    pub fn listen(path: &Path, group: Option<u32>, watcher: Option<u32>, follower: Option<u32>) -> Result<Self> {
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
        Ok(Control { listener, path: path.into(), clients: Vec::new(), watcher, follower, deaf: false })
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
                // The one that has been silent for longest has had its time.
                let silent = self.clients.iter().enumerate().min_by_key(|(_, client)| client.since);
                silent.map(|(index, _)| index).map(|index| self.clients.remove(index));
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let own = rustix::process::getuid();
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
            let uid = peer.uid.as_raw();
            let right = match uid {
                uid if uid == 0 || uid == own.as_raw() => Right::Control,
                uid if Some(uid) == self.watcher => Right::Prepare,
                uid if Some(uid) == self.follower => Right::Follow,
                _ => Right::Read,
            };
            let peer = Peer { uid, right, held: Statements::default() };
            self.clients.push(Client { stream, peer, input: Vec::new(), output: Vec::new(), since: now });
        }
    }

    /// Reads from a client and lets `answer` answer its requests; false when it is to be dropped.
    pub fn serve(client: &mut Client, now: Monotonic, mut answer: impl FnMut(Request, &mut Peer) -> Answer) -> bool {
        let mut chunk = [0u8; 1024];
        // An answer that is still to be read comes before the next request.
        while client.output.is_empty() {
            if let Some(end) = client.input.iter().position(|&c| c == b'\n') {
                let line: Vec<u8> = client.input.drain(..=end).collect();
                let reply = match serde_json::from_slice::<Request>(&line) {
                    Ok(request) if !client.peer.right.covers(request.needs()) => {
                        Answer::Error("only root may do that".into())
                    }
                    Ok(request) => answer(request, &mut client.peer),
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

    /// What all clients together go on saying.
    pub fn held(&self) -> Statements {
        let mut held = Statements::default();
        for client in &self.clients {
            held.add(&client.peer.held);
        }
        held
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

#[cfg(test)]
mod tests {
    use omr_policy::statement::{Presence, Subject};

    use super::*;

    #[test]
    fn the_requests_in_the_documentation_are_some() {
        let text = include_str!("../../../docs/use/processes.md");
        let requests = text.lines().filter(|line| line.starts_with("{\"do\""));
        let read = |line: &str| serde_json::from_str::<Request>(line).unwrap_or_else(|err| panic!("{line}: {err}"));
        assert_eq!(
            requests.map(read).filter(|request| matches!(request, Request::Hold { .. } | Request::Say { .. })).count(),
            5
        );
    }

    #[test]
    fn who_may_only_ask_speaks_for_itself() {
        let peer = |right| Peer { uid: 1000, right, held: Statements::default() };
        for (right, owner, owns) in [
            (Right::Read, 1000, true),
            (Right::Read, 1001, false),
            (Right::Read, 0, false),
            (Right::Prepare, 1001, false),
            (Right::Follow, 1001, true),
            (Right::Control, 1001, true),
        ] {
            assert_eq!(peer(right).owns(owner), owns, "{right:?} {owner}");
        }
        // Nothing but that is asked of who follows sessions.
        let say = Request::Say { presence: Some(Presence::Background), subject: Subject::Group("a".into()) };
        let prepare = Request::StandDown;
        for request in [say, prepare] {
            assert!(!Right::Follow.covers(request.needs()) && !Right::Read.covers(request.needs()), "{request:?}");
        }
        let hold = Request::Hold { statements: Vec::new() };
        assert!(Right::Read.covers(hold.needs()) && Right::Prepare.covers(hold.needs()));
    }
}
