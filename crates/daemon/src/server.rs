//! The control socket: a line of JSON in, a line of JSON out.
//!
//! Who may connect is the socket's mode (root and the group omr); who may change anything is the
//! peer's user id, which the kernel tells. A client gets no more than its share: short lines, a few
//! clients at a time, and what it does not read within a while is dropped. A user who may only ask
//! has an allowance of CPU time, and takes no place from anybody else.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::paths;
use omr_control::protocol::{Answer, NOT_A_REQUEST, PATIENCE, Request, Right};
use omr_machine::statements::Statements;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_units::Monotonic;
use rustix::event::PollFlags;

use crate::events::{Event, Sources};
use crate::presence::{self, Told};

/// A request is shorter: there is room for more than a hundred statements.
const LONGEST_REQUEST: usize = 16 << 10;
/// An answer to a user who may only ask is no longer: it is kept until it is read.
const LONGEST_ANSWER: usize = 4 << 20;
/// The group that may ask for the status.
const GROUP: &str = "omr";
/// The user that `omr watch` runs as.
const WATCHER: &str = "omr-watch";
/// The user that `omr follow` runs as when it follows the sessions of all users.
const FOLLOWER: &str = "omr-follow";
/// Clients at a time.
const MOST_CLIENTS: usize = 16;
/// Of them, clients of one user who may only ask.
const MOST_OF_A_USER: usize = 4;
/// New clients between two ticks. Each costs 0.1 ms on a slow CPU, which nobody is charged with.
const MOST_NEW: usize = 16;
/// Connections that wait for the daemon; whoever connects meanwhile waits in connect(2). They are taken
/// in the order in which they came, so root waits for no more than these.
const BACKLOG: i32 = 16;
/// New clients in one turn of the loop.
const MOST_AT_ONCE: usize = 16;
/// CPU time that a user who may only ask gets in each second for what this user sends.
const ALLOWANCE: Duration = Duration::from_millis(3);
/// As much may be owed before requests wait: a few at once are no flood.
const BURST: Duration = Duration::from_millis(20);
/// Costs beyond this are forgiven: such a user waits for 5 s at most.
const MOST_DEBT: Duration = Duration::from_millis(35);

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
    /// It is told the status when there is news.
    watches: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    since: Monotonic,
    is_closed: bool,
}

impl Client {
    /// This user may only ask.
    fn is_reader(&self) -> bool {
        matches!(self.peer.right, Right::Read)
    }

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
                Ok(read) => self.input.extend(chunk.iter().take(read)),
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
    root: PathBuf,
    clients: Vec<Client>,
    /// User id of `omr watch`, who may have the machine prepared.
    watcher: Option<u32>,
    /// User id of `omr follow`, who may say of everything that it is in the foreground.
    follower: Option<u32>,
    /// New clients since the last tick. From [`MOST_NEW`] on, others wait for the next one.
    new: usize,
    /// CPU time of the requests of users who may only ask, as far as it is not made up for.
    debts: HashMap<u32, Duration>,
    last_tick: Monotonic,
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
        // The directory may belong to another user, who can put something else in its place at any
        // time: so it has its mode from the start, and no link is followed later.
        let mask = if group.is_some() { 0o117 } else { 0o177 };
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.with_context(|| format!("listen on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        // The standard library's queue is so long that those behind a flood would wait for minutes.
        rustix::net::listen(&listener, BACKLOG)?;
        // omr.service runs in the group, so its socket is in it, and its filter has no chown.
        if let Some(group) = group
            && fs::symlink_metadata(path)?.gid() != group
            && let Err(err) = lchown(path, None, Some(group))
        {
            log::warn!("{}: {err}; only root can ask for the status", path.display());
        }
        let (path, root, clients, debts) = (path.into(), root.into(), Vec::new(), HashMap::new());
        Ok(Server { listener, path, root, clients, watcher, follower, new: 0, debts, last_tick: Monotonic(0) })
    }

    /// Takes in who wants to connect.
    pub fn accept(&mut self, now: Monotonic) {
        for _ in 0..MOST_AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                // No descriptors left. Who knocks is there still at the next tick; looking at once
                // would be looking all the time.
                Err(_) => {
                    self.new = MOST_NEW;
                    break;
                }
            };
            self.new += 1;
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let own = rustix::process::getuid();
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
            let uid = peer.uid.as_raw();
            let right = match uid {
                uid if uid == 0 || uid == own.as_raw() => Right::Control,
                uid if Some(uid) == self.watcher && self.is_still(WATCHER, uid) => Right::Prepare,
                uid if Some(uid) == self.follower && self.is_still(FOLLOWER, uid) => Right::Follow,
                _ => Right::Read,
            };
            self.add(stream, Peer { uid, right }, now);
        }
    }

    /// Returns true if a new client is taken before the next tick.
    pub fn takes_more(&self) -> bool {
        self.new < MOST_NEW
    }

    /// Returns true if the user of this name has this id. It may be somebody else's since the daemon
    /// has started.
    fn is_still(&self, name: &str, uid: u32) -> bool {
        read_id(&self.root, "etc/passwd", name) == Some(uid)
    }

    /// Takes in a client, if there is room.
    pub(crate) fn add(&mut self, stream: UnixStream, peer: Peer, now: Monotonic) {
        if !self.make_room(peer) {
            return;
        }
        self.clients.push(Client {
            stream,
            peer,
            statements: Statements::default(),
            presence: None,
            watches: false,
            input: Vec::new(),
            output: Vec::new(),
            since: now,
            is_closed: false,
        });
    }

    /// Makes room for a client of this user: the one that was silent for longest has had its time.
    /// A user who may only ask takes the place of own clients only. Returns false if there is no
    /// room.
    fn make_room(&mut self, Peer { uid, right }: Peer) -> bool {
        let is_reader = matches!(right, Right::Read);
        let own = self.clients.iter().filter(|client| client.peer.uid == uid).count();
        let is_full = self.clients.len() >= MOST_CLIENTS || (is_reader && own >= MOST_OF_A_USER);
        if !is_full {
            return true;
        }
        let may_go = |client: &Client| client.peer.uid == uid || (!is_reader && client.is_reader());
        let clients = self.clients.iter().enumerate().filter(|(_, client)| may_go(client));
        // Users who may only ask go first.
        let silent = clients.min_by_key(|(_, client)| (!client.is_reader(), client.since)).map(|(index, _)| index);
        silent.map(|index| self.clients.remove(index)).is_some()
    }

    /// Returns true if the client must wait, because requests of its user have cost too much.
    fn must_wait(&self, client: &Client) -> bool {
        let debt = || self.debts.get(&client.peer.uid).is_some_and(|debt| *debt >= BURST);
        client.is_reader() && client.output.is_empty() && debt()
    }

    /// What a client has sent took this CPU time.
    pub fn spent(&mut self, index: usize, cost: Duration) {
        if let Some(client) = self.clients.get(index).filter(|client| client.is_reader()) {
            let debt = self.debts.entry(client.peer.uid).or_default();
            *debt = (*debt + cost).min(MOST_DEBT);
        }
    }

    /// Registers the listening socket and the clients.
    pub fn register<'a>(&'a self, sources: &mut Sources<'a>) {
        for (index, client) in self.clients.iter().enumerate().filter(|(_, client)| !self.must_wait(client)) {
            let flags = if client.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            sources.add_fd(Event::Client(index), client.stream.as_fd(), flags);
        }
        let flags = if self.takes_more() { PollFlags::IN } else { PollFlags::empty() };
        sources.add_fd(Event::Connect, self.listener.as_fd(), flags);
    }

    /// The clients whose request was read and is not answered yet: nobody needs to wait for them.
    pub fn waiting(&self) -> Vec<usize> {
        let clients = self.clients.iter().enumerate();
        let waiting = clients.filter(|(_, client)| client.has_request() && !self.must_wait(client));
        waiting.map(|(index, _)| index).collect()
    }

    /// The next request of a client that is ready, and who it is. An answer that is still to be
    /// read comes before the next request, and there is one request at a time: a client that asks
    /// without end does not keep the others, or a sweep, waiting. A request that the client has no
    /// right to is refused here.
    pub fn request(&mut self, index: usize, now: Monotonic) -> Option<(Request, Peer)> {
        if self.must_wait(self.clients.get(index)?) {
            return None;
        }
        let client = self.clients.get_mut(index).filter(|client| !client.is_closed)?;
        if !client.output.is_empty() {
            client.flush();
            return None;
        }
        let line = client.read_line()?;
        let refused = match serde_json::from_slice::<Request>(&line) {
            Ok(request) if client.peer.right.covers(request.needs()) => return Some((request, client.peer)),
            Ok(_) => "only root may do that".into(),
            Err(err) => format!("{NOT_A_REQUEST}: {err}"),
        };
        self.answer(index, &Answer::Error(refused), now);
        None
    }

    /// Answers the request of a client.
    pub fn answer(&mut self, index: usize, answer: &Answer, now: Monotonic) {
        let Some(client) = self.clients.get_mut(index) else { return };
        client.output = serde_json::to_vec(answer).unwrap_or_default();
        if client.is_reader() && client.output.len() > LONGEST_ANSWER {
            let refused: Answer = Answer::Error("the answer is longer than 4 MiB; ask as root, or for less".into());
            client.output = serde_json::to_vec(&refused).unwrap_or_default();
        }
        client.output.push(b'\n');
        client.since = now;
        client.flush();
    }

    /// From now on this client is told the status when there is news.
    pub fn watch(&mut self, index: usize) {
        if let Some(client) = self.clients.get_mut(index) {
            client.watches = true;
        }
    }

    /// The clients that watch and have read what they were told before.
    pub fn watchers(&self) -> Vec<usize> {
        let clients = self.clients.iter().enumerate();
        let is_ready = |client: &Client| client.watches && client.output.is_empty() && !self.must_wait(client);
        clients.filter(|(_, client)| !client.is_closed && is_ready(client)).map(|(index, _)| index).collect()
    }

    /// Tells a client that watches a line.
    pub fn tell(&mut self, index: usize, line: &[u8], now: Monotonic) {
        let Some(client) = self.clients.get_mut(index) else { return };
        client.since = now;
        // Only what the socket does not take at once is copied.
        match client.stream.write(line) {
            Ok(written) => client.output.extend(line.iter().skip(written)),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => client.output.extend(line),
            Err(_) => client.is_closed = true,
        }
        client.is_closed |= client.is_reader() && client.output.len() > LONGEST_ANSWER;
    }

    /// The statements that a client keeps up from now on.
    pub fn keep(&mut self, index: usize, statements: Statements) {
        if let Some(client) = self.clients.get_mut(index) {
            client.statements = statements;
        }
    }

    /// What a client tells about who is there, and about hibernation, from now on.
    pub fn keep_presence(
        &mut self,
        index: usize,
        facts: Option<Facts>,
        hibernates: Option<HibernatesBy>,
        now: Monotonic,
    ) {
        if let Some(client) = self.clients.get_mut(index) {
            client.presence = facts.map(|facts| Told { facts, hibernates, at: now });
        }
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

    /// The number of clients.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.clients.len()
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
        self.new = 0;
        let earned = now.since(std::mem::replace(&mut self.last_tick, now)).mul_f64(ALLOWANCE.as_secs_f64());
        self.debts.retain(|_, debt| {
            *debt = debt.saturating_sub(earned);
            !debt.is_zero()
        });
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

    /// A server in which this many clients of each user, with this right, have connected.
    fn with_clients(users: &[(u32, Right, usize)]) -> (tempfile::TempDir, Server, Vec<UnixStream>) {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(paths::runtime_dir(dir.path())).expect("made");
        let mut server = Server::listen(dir.path()).expect("listening");
        let mut streams = Vec::new();
        let peers = users.iter().flat_map(|&(uid, right, count)| vec![Peer { uid, right }; count]);
        for (now, peer) in (1..).zip(peers) {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("a flag");
            streams.push(theirs);
            server.add(ours, peer, Monotonic(now));
        }
        (dir, server, streams)
    }

    fn count(server: &Server, uid: u32) -> usize {
        server.clients.iter().filter(|client| client.peer.uid == uid).count()
    }

    #[test]
    fn a_user_who_may_only_ask_takes_nobodys_place() {
        let users =
            [(990, Right::Follow, 1), (991, Right::Prepare, 1), (1001, Right::Read, 2), (1000, Right::Read, 50)];
        let (_dir, server, _streams) = with_clients(&users);
        assert_eq!([990, 991, 1001, 1000].map(|uid| count(&server, uid)), [1, 1, 2, MOST_OF_A_USER]);
        // When all places are taken, such users get none of others, and root gets one of theirs.
        let crowd: Vec<_> = (1000..1010).map(|uid| (uid, Right::Read, 4)).collect();
        let (_dir, server, _streams) = with_clients(&[crowd, vec![(990, Right::Follow, 1)]].concat());
        let counts: Vec<_> = (1000..1005).chain([990]).map(|uid| count(&server, uid)).collect();
        assert_eq!(counts, [3, 4, 4, 4, 0, 1], "the one silent for longest has gone");
        let (_dir, server, _streams) = with_clients(&[(0, Right::Control, 16), (1000, Right::Read, 1)]);
        assert_eq!((count(&server, 0), count(&server, 1000)), (16, 0));
    }

    #[test]
    fn a_flood_of_connections_leaves_no_long_queue_before_root() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let (dir, mut server, _) = with_clients(&[]);
        let address = SocketAddrUnix::new(paths::socket(dir.path())).expect("an address");
        let queue = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
            connect(&socket, &address).ok().map(|()| socket)
        };
        let waiting: Vec<_> = std::iter::repeat_with(queue).take(1000).map_while(|queued| queued).collect();
        let most = usize::try_from(BACKLOG).expect("a number") + 1;
        assert_eq!(waiting.len(), most, "the others wait in connect(2)");
        // One turn of the loop takes nearly all of them.
        server.accept(Monotonic(1));
        assert!(queue().is_some());
        assert!(server.clients.len() > MOST_OF_A_USER);
    }

    #[test]
    fn who_asks_without_end_waits_and_others_do_not() {
        let (_dir, mut server, streams) =
            with_clients(&[(1000, Right::Read, 1), (1001, Right::Read, 1), (0, Right::Control, 1)]);
        let ask = |server: &mut Server| {
            streams.iter().for_each(|mut stream| stream.write_all(b"{\"do\":\"status\"}\n").expect("sent"));
            (0..3).map(|index| server.request(index, Monotonic(1)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(ask(&mut server), [true, true, true]);
        server.spent(0, Duration::from_secs(1));
        server.spent(1, BURST / 2);
        server.spent(2, Duration::from_secs(1));
        assert_eq!(ask(&mut server), [false, true, true]);
        assert!(server.waiting().is_empty(), "the loop need not turn for the one who waits");
        for second in 1..=5 {
            server.close_silent(Monotonic(second * 1_000_000_000));
            assert!(server.request(0, Monotonic(1)).is_none(), "{second} s");
        }
        server.close_silent(Monotonic(5_100_000_000));
        assert!(server.request(0, Monotonic(1)).is_some(), "nobody waits for longer than 5 s");
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
