//! Clients of the daemon's socket: a program that keeps a group in the foreground for as long as it
//! is connected, and users who flood the socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use omr_control::protocol::Right;

use super::actors::Event;
use super::machine::{MINUTE, SECOND};
use super::{Life, Nanos, Simulation, faults};
use crate::event_loop::serve;
use crate::server::Peer;

/// User ids of the program, and of the first user who floods.
const KEEPER: u32 = 990;
const FLOODER: u32 = 1000;
/// The program repeats its statement, as a client that is silent for longer is dropped.
const EVERY: Nanos = 3 * SECOND;
/// The connections of a flood, at most.
const FLOOD: usize = 60;

/// The program, and the group that it keeps in the foreground.
struct Keeper {
    stream: UnixStream,
    group: String,
    until: Nanos,
}

/// The other ends of connections.
#[derive(Default)]
pub struct Clients {
    keeper: Option<Keeper>,
    floods: Vec<UnixStream>,
}

impl Clients {
    /// The daemon has ended, and so have all connections.
    pub fn disconnect(&mut self) {
        *self = Clients::default();
    }
}

/// Connects a user to the daemon. `None`: there is none, or it ends.
fn connect(simulation: &Simulation, uid: u32, right: Right) -> Option<UnixStream> {
    let mut life = simulation.life.borrow_mut();
    let life = life.as_mut().filter(|_| !simulation.is_ending.get())?;
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    for stream in [&ours, &theirs] {
        stream.set_nonblocking(true).expect("a flag");
    }
    life.server.add(theirs, Peer::new(uid, right), life.daemon.host.now());
    Some(ours)
}

/// A turn of the loop in which each client is ready.
pub fn serve_all(simulation: &Simulation) {
    if simulation.is_ending.get() {
        return;
    }
    if let Some(life) = simulation.life.borrow_mut().as_mut() {
        let _daemon = faults::daemon();
        for client in 0..life.server.count() {
            serve(&mut life.daemon, &mut life.server, client);
        }
        settle(life);
    }
}

/// The end of each turn of the loop.
pub fn settle(life: &mut Life) {
    life.server.drop_closed();
    life.daemon.set_client_statements(life.server.statements());
}

/// What the daemon has sent. `None`: it has closed the connection.
fn read(stream: &mut UnixStream) -> Option<String> {
    let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return None,
            Ok(read) => text.extend_from_slice(&chunk[..read]),
            Err(_) => return Some(String::from_utf8_lossy(&text).into_owned()),
        }
    }
}

/// The program begins to keep a group in the foreground.
pub fn begin_to_keep(simulation: &Simulation, group: String) {
    if simulation.clients.borrow().keeper.is_some() {
        return;
    }
    let Some(stream) = connect(simulation, KEEPER, Right::Follow) else { return };
    let until = simulation.clock.now() + MINUTE;
    simulation.clients.borrow_mut().keeper = Some(Keeper { stream, group, until });
    simulation.plan(0, Event::Keeps);
}

/// The program repeats its statement, or has enough.
pub fn keep(simulation: &Simulation) {
    let mut clients = simulation.clients.borrow_mut();
    let Some(keeper) = clients.keeper.as_mut() else { return };
    let is_over = simulation.clock.now() >= keeper.until;
    let group = keeper.group.clone();
    if is_over {
        clients.keeper = None;
        drop(clients);
        mark(simulation, None);
        serve_all(simulation);
        return;
    }
    let text =
        format!("{{\"do\":\"hold\",\"statements\":[{{\"word\":\"foreground\",\"of\":{{\"group\":\"{group}\"}}}}]}}\n");
    let sent = keeper.stream.write_all(text.as_bytes());
    drop(clients);
    let before = faults::count();
    serve_all(simulation);
    if simulation.is_ending.get() {
        return;
    }
    let answer = simulation.clients.borrow_mut().keeper.as_mut().and_then(|keeper| read(&mut keeper.stream));
    match answer.as_deref() {
        Some("{\"ok\":0}\n") => mark(simulation, Some(&group)),
        // The daemon could not look whose group it is, and has said so.
        Some(_) if faults::count() > before => mark(simulation, None),
        _ => simulation.fail(format!("the program that keeps {group} is answered {answer:?}, sent: {sent:?}")),
    }
    simulation.plan(EVERY, Event::Keeps);
}

/// This group alone is kept in the foreground.
fn mark(simulation: &Simulation, path: Option<&str>) {
    let now = simulation.clock.now();
    for group in &mut simulation.machine.borrow_mut().groups {
        let is_kept = path == Some(group.path.as_str());
        group.kept_foreground = is_kept.then(|| group.kept_foreground.unwrap_or(now));
    }
}

/// Users who may only ask open connections, and send what they like. Root is answered all the same.
pub fn flood(simulation: &Simulation, random: &mut fastrand::Rng) {
    simulation.clients.borrow_mut().floods.clear();
    let long = "x".repeat(20 << 10);
    let pause = "{\"do\":\"pause\"}\n";
    let mut pausing = Vec::new();
    for _ in 0..random.usize(1..FLOOD) {
        let Some(mut stream) = connect(simulation, FLOODER + random.u32(0..4), Right::Read) else { return };
        let text = match random.u32(0..8) {
            0 => "{\"do\":\"watch\"}\n{\"do\":\"status\"}\n{\"do\":\"watch\"}\n",
            1 => "{\"do\":\"explain\"}\n",
            2 => pause,
            3 => "{\"do\":\"sta",
            4 => "\0\n\n[\n",
            5 => &long,
            6 => "{\"do\":\"processes\"}\n",
            _ => "",
        };
        // A client that was turned away is closed.
        let _ = stream.write_all(text.as_bytes());
        if text == pause {
            pausing.push(stream);
        } else {
            simulation.clients.borrow_mut().floods.push(stream);
        }
    }
    let before = faults::count();
    serve_all(simulation);
    let Some(mut root) = connect(simulation, 0, Right::Control) else { return };
    root.write_all(b"{\"do\":\"status\"}\n").expect("sent");
    serve_all(simulation);
    let answer = read(&mut root);
    let is_error = |answer: &String| answer.starts_with("{\"error\":") && faults::count() > before;
    let is_whole = |answer: &&String| answer.ends_with('\n');
    if !answer.as_ref().filter(is_whole).is_some_and(|answer| answer.starts_with("{\"ok\":{") || is_error(answer)) {
        simulation.fail(format!("root is answered {answer:?}"));
    }
    for answer in pausing.iter_mut().filter_map(read).filter(|answer| !answer.is_empty()) {
        if answer != "{\"error\":\"only root may do that\"}\n" {
            simulation.fail(format!("a user who may only ask is answered {answer}"));
        }
    }
}
