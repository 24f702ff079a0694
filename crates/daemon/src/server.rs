//! The control socket: a line of JSON in, a line of JSON out.
//!
//! Who may connect is the socket's mode (root and the group omr); who may change anything is the
//! peer's user id, which the kernel tells. A client gets no more than its share: short lines, a few
//! clients at a time, and what it does not read within a while is dropped.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::paths;
use omr_control::protocol::{Answer, PATIENCE, Request, Right};
use omr_machine::statements::Statements;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_units::Monotonic;
use rustix::event::PollFlags;

use crate::events::{Event, Sources};
use crate::presence::{self, Told};

/// A request is shorter: there is room for more than a hundred statements.
const LONGEST_REQUEST: usize = 16 << 10;
/// The group that may ask for the status.
const GROUP: &str = "omr";
/// The user that `omr watch` runs as.
const WATCHER: &str = "omr-watch";
/// The user that `omr follow` runs as when it follows the sessions of all users.
const FOLLOWER: &str = "omr-follow";
/// Clients at a time.
const MOST_CLIENTS: usize = 16;

/// The user at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    uid: u32,
    right: Right,
}

impl Peer {
    /// A user with a right.
    #[cfg(test)]
    pub fn new(uid: u32, right: Right) -> Peer {
        Peer { uid, right }
    }

    /// Returns true if this user may speak for everybody.
    pub fn speaks_for_all(&self) -> bool {
        matches!(self.right, Right::Follow | Right::Control)
    }

    /// Returns true if this user is `owner`, or may speak for everybody.
    pub fn owns(&self, owner: u32) -> bool {
        self.speaks_for_all() || self.uid == owner
    }
}

/// One connection.
#[derive(Debug)]
struct Client {
    stream: UnixStream,
    peer: Peer,
    /// The statements that stand for as long as it keeps them up.
    statements: Statements,
    /// What it told about who is there.
    presence: Option<Told>,
    input: Vec<u8>,
    output: Vec<u8>,
    since: Monotonic,
    is_closed: bool,
}

impl Client {
    /// Returns true if a request was read and is not answered yet.
    fn has_request(&self) -> bool {
        self.output.is_empty() && self.input.contains(&b'\n')
    }

    /// Reads a line. `None`: there is no whole line yet, or the client is to be dropped.
    fn read_line(&mut self) -> Option<Vec<u8>> {
        let mut chunk = [0u8; 1024];
        loop {
            if let Some(end) = self.input.iter().position(|&c| c == b'\n') {
                return Some(self.input.drain(..=end).collect());
            }
            let read = match self.stream.read(&mut chunk) {
                _ if self.input.len() > LONGEST_REQUEST => Err(io::ErrorKind::InvalidData.into()),
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                read => read,
            };
            match read {
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    self.is_closed = true;
                    return None;
                }
            }
        }
    }

    /// Sends what the socket takes.
    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(written) if written > 0 => drop(self.output.drain(..written)),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }
}

/// The listening socket and its clients.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
    /// User id of `omr watch`, who may have the machine prepared.
    watcher: Option<u32>,
    /// User id of `omr follow`, who may say of everything that it is in the foreground.
    follower: Option<u32>,
    /// Nobody can be taken in until the next tick.
    deaf: bool,
}

impl Server {
    /// Listens at the control socket below `root`. Only the holder of the lock may call this: a
    /// socket that is already there was left by a crash.
    pub fn listen(root: &Path) -> Result<Self> {
        let path = &paths::socket(root);
        let user = |name: &str| read_id(root, "etc/passwd", name);
        let (group, watcher, follower) = (read_id(root, "etc/group", GROUP), user(WATCHER), user(FOLLOWER));
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
        Ok(Server { listener, path: path.into(), clients: Vec::new(), watcher, follower, deaf: false })
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
            self.clients.push(Client {
                stream,
                peer: Peer { uid, right },
                statements: Statements::default(),
                presence: None,
                input: Vec::new(),
                output: Vec::new(),
                since: now,
                is_closed: false,
            });
        }
    }

    /// Registers the listening socket and the clients.
    pub fn register<'a>(&'a self, sources: &mut Sources<'a>) {
        for (index, client) in self.clients.iter().enumerate() {
            let flags = if client.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            sources.add_fd(Event::Client(index), client.stream.as_fd(), flags);
        }
        let flags = if self.deaf { PollFlags::empty() } else { PollFlags::IN };
        sources.add_fd(Event::Connect, self.listener.as_fd(), flags);
    }

    /// The clients whose request was read and is not answered yet: nobody needs to wait for them.
    pub fn waiting(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|&index| self.clients[index].has_request()).collect()
    }

    /// The next request of a client that is ready, and who it is. An answer that is still to be
    /// read comes before the next request, and there is one request at a time: a client that asks
    /// without end does not keep the others, or a sweep, waiting. A request that the client has no
    /// right to is refused here.
    pub fn request(&mut self, index: usize, now: Monotonic) -> Option<(Request, Peer)> {
        let client = self.clients.get_mut(index).filter(|client| !client.is_closed)?;
        if !client.output.is_empty() {
            client.flush();
            return None;
        }
        let line = client.read_line()?;
        let refused = match serde_json::from_slice::<Request>(&line) {
            Ok(request) if client.peer.right.covers(request.needs()) => return Some((request, client.peer)),
            Ok(_) => "only root may do that".into(),
            Err(err) => format!("not a request: {err}"),
        };
        self.answer(index, &Answer::Error(refused), now);
        None
    }

    /// Answers the request of a client.
    pub fn answer(&mut self, index: usize, answer: &Answer, now: Monotonic) {
        let client = &mut self.clients[index];
        client.output = serde_json::to_vec(answer).unwrap_or_default();
        client.output.push(b'\n');
        client.since = now;
        client.flush();
    }

    /// The statements that a client keeps up from now on.
    pub fn keep(&mut self, index: usize, statements: Statements) {
        self.clients[index].statements = statements;
    }

    /// What a client tells about who is there, and about hibernation, from now on.
    pub fn keep_presence(
        &mut self,
        index: usize,
        facts: Option<Facts>,
        hibernates: Option<HibernatesBy>,
        now: Monotonic,
    ) {
        self.clients[index].presence = facts.map(|facts| Told { facts, hibernates, at: now });
    }

    fn told(&self) -> impl Iterator<Item = (&Told, Peer)> {
        let clients = self.clients.iter().filter(|client| !client.is_closed);
        clients.filter_map(|client| Some((client.presence.as_ref()?, client.peer)))
    }

    /// What all clients together tell about who is there; `None`: unknown.
    pub fn presence(&self, now: Monotonic) -> Option<Facts> {
        presence::combine(self.told(), now)
    }

    /// The setting by which the machine hibernates; `None`: there is none, or unknown.
    pub fn hibernates(&self, now: Monotonic) -> Option<HibernatesBy> {
        presence::hibernates(self.told(), now)
    }

    /// Drops clients that are gone.
    pub fn drop_closed(&mut self) {
        self.clients.retain(|client| !client.is_closed);
    }

    /// The statements that all clients together keep up.
    pub fn statements(&self) -> Statements {
        let mut all = Statements::default();
        for client in self.clients.iter().filter(|client| !client.is_closed) {
            all.merge(&client.statements);
        }
        all
    }

    /// Once a tick: closes clients that neither ask nor read. They keep their numbers, by which
    /// events name clients, until [`Server::drop_closed`].
    pub fn close_silent(&mut self, now: Monotonic) {
        self.deaf = false;
        for client in &mut self.clients {
            client.is_closed |= now.since(client.since) >= PATIENCE;
        }
    }
}

/// The third field of the line of that name: the group id in `etc/group`, the user id in
/// `etc/passwd`.
fn read_id(root: &Path, file: &str, name: &str) -> Option<u32> {
    let lines = fs::read_to_string(root.join(file)).ok()?;
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        fields.nth(1)?.parse().ok()
    })
}

impl Drop for Server {
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

    /// The tick may close a client in the turn of the loop in which it, or one behind it, is ready.
    #[test]
    fn a_silent_client_keeps_its_number_until_the_turn_is_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = paths::socket(dir.path());
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let mut server = Server::listen(dir.path()).expect("listening");
        let _silent = UnixStream::connect(&path).expect("connected");
        server.accept(Monotonic(0));
        let later = Monotonic(0) + PATIENCE;
        let mut asking = UnixStream::connect(&path).expect("connected");
        server.accept(later);
        asking.write_all(b"{\"do\":\"status\"}\n").expect("written");
        server.close_silent(later);
        assert!(server.request(0, later).is_none());
        assert!(server.request(1, later).is_some(), "the other is served under its number");
        server.drop_closed();
        assert_eq!(server.clients.len(), 1);
    }

    /// A server with a client that has told that nobody was there for an hour.
    fn told() -> (tempfile::TempDir, Server, UnixStream) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = paths::socket(dir.path());
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let mut server = Server::listen(dir.path()).expect("listening");
        let client = UnixStream::connect(&path).expect("connected");
        client.set_nonblocking(true).expect("a flag");
        server.accept(Monotonic(0));
        tell(
            &mut server,
            &client,
            r#"{"do":"presence","facts":{"age":{"secs":0,"nanos":0},"local":{"active":1,"idle":{"secs":3600,"nanos":0}},"remote":{"active":0,"idle":null},"inhibited":false}}"#,
            Monotonic(0),
        );
        assert!(server.presence(Monotonic(0)).is_some());
        (dir, server, client)
    }

    /// The client sends a line, and the server takes it in as the daemon does. Returns whether it
    /// was a request.
    fn tell(server: &mut Server, mut client: &UnixStream, line: &str, now: Monotonic) -> bool {
        client.write_all(format!("{line}\n").as_bytes()).expect("sent");
        let request = server.request(0, now).map(|(request, _)| request);
        if let Some(Request::Presence { facts, hibernates }) = &request {
            server.keep_presence(0, facts.clone(), *hibernates, now);
        }
        if request.is_some() {
            server.answer(0, &Answer::Error(String::new()), now);
        }
        let _ = client.read(&mut [0; 4096]);
        request.is_some()
    }

    #[test]
    fn a_follower_that_hangs_or_is_killed_tells_nothing_any_more() {
        let at = |seconds| Monotonic(0) + std::time::Duration::from_secs(seconds);
        // It hangs.
        let (_dir, mut server, _client) = told();
        server.close_silent(at(9));
        assert!(server.presence(at(9)).is_some(), "the control");
        server.close_silent(at(10));
        assert!(server.presence(at(10)).is_none());
        // It is killed.
        let (_dir, mut server, client) = told();
        drop(client);
        assert!(server.request(0, at(1)).is_none());
        assert!(server.presence(at(1)).is_none());
        // It asks on, and what it told once is not told again.
        let (_dir, mut server, client) = told();
        for second in 1..=31 {
            assert!(tell(&mut server, &client, r#"{"do":"status"}"#, at(second)));
            server.close_silent(at(second));
            assert_eq!(server.presence(at(second)).is_some(), second <= 30, "{second}");
        }
    }

    #[test]
    fn nonsense_of_a_follower_is_refused_and_makes_nobody_absent() {
        let (_dir, mut server, client) = told();
        assert!(tell(&mut server, &client, r#"{"do":"presence","facts":null}"#, Monotonic(0)), "the control");
        assert!(server.presence(Monotonic(0)).is_none());
        for nonsense in [
            "",
            "away",
            "{}",
            r#"{"do":"presence","facts":{}}"#,
            r#"{"do":"presence","facts":"away"}"#,
            r#"{"do":"presence","facts":{"age":-1,"local":{},"remote":{},"inhibited":"no"}}"#,
            r#"{"do":"presence","facts":{"age":{"secs":0,"nanos":0},"local":{"active":-1,"idle":null},"remote":{"active":0,"idle":null},"inhibited":false}}"#,
            r#"{"do":"presence","facts":{"age":{"secs":18446744073709551615,"nanos":4294967295},"local":{"active":0,"idle":null},"remote":{"active":0,"idle":null},"inhibited":false}}"#,
        ] {
            assert!(!tell(&mut server, &client, nonsense, Monotonic(0)), "{nonsense}");
            assert!(server.presence(Monotonic(0)).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn who_may_only_ask_speaks_for_itself() {
        let peer = |right| Peer { uid: 1000, right };
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
