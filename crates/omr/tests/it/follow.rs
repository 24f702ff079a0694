//! `omr follow` on a bus of the test's own, dbus-daemon's, with a logind and a GameMode that are
//! threads of the test. The daemon's part: hold.rs. A real sway and a real GameMode:
//! lab/tests/test_follow.py.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::running::wait_until;
use serde_json::{Value, json};

const LOGIND: &str = "org.freedesktop.login1";
const UPOWER: &str = "org.freedesktop.UPower";
const GAMEMODE: &str = "com.feralinteractive.GameMode";

/// Longer than anything takes that is not waited for in vain; shorter than the 30 s after which omr
/// asks again unasked.
const SOON: Duration = Duration::from_secs(20);

/// A bus, ended with the value.
struct Bus {
    daemon: Child,
    directory: PathBuf,
}

impl Bus {
    fn start(directory: &Path) -> Bus {
        let socket = directory.join("bus");
        let config = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\"><busconfig><type>session</type>\
             <listen>unix:path={}</listen><policy context=\"default\"><allow send_destination=\"*\"/>\
             <allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>",
            socket.display()
        );
        let file = directory.join("bus.conf");
        std::fs::write(&file, config).expect("written");
        let _ = std::fs::remove_file(&socket);
        let daemon = Command::new("dbus-daemon")
            .arg("--nofork")
            .arg(format!("--config-file={}", file.display()))
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon is installed: make setup");
        wait_until("the bus", || UnixStream::connect(&socket).is_ok());
        Bus { daemon, directory: directory.into() }
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.directory.join("bus").display())
    }

    fn stop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The answer of a service to a call, by the called object's path, the member and the body.
type Answers = Arc<Mutex<HashMap<String, Option<(&'static str, Vec<u8>)>>>>;

/// A service on the bus that answers as `answers` says, under "member" or "member/property path";
/// to what is not there, with an error, and to what is `None` not at all. Gone when it is dropped.
struct Service {
    stream: UnixStream,
    name: &'static str,
}

impl Service {
    fn start(bus: &Bus, name: &'static str, answers: &Answers) -> Service {
        let mut stream = UnixStream::connect(bus.directory.join("bus")).expect("the bus");
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).expect("written");
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a line");
            line.push(byte[0]);
        }
        stream.write_all(b"BEGIN\r\n").expect("written");
        let bus_call = |member: &str, signature: &str, body: &[u8]| {
            let fields = [
                (1, "o", "/org/freedesktop/DBus"),
                (2, "s", "org.freedesktop.DBus"),
                (3, "s", member),
                (6, "s", "org.freedesktop.DBus"),
            ];
            message(1, &fields, None, signature, body)
        };
        stream.write_all(&bus_call("Hello", "", &[])).expect("written");
        let mut body = string(name);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend_from_slice(&4u32.to_ne_bytes());
        stream.write_all(&bus_call("RequestName", "su", &body)).expect("written");
        let mut reading = stream.try_clone().expect("a clone");
        // Both answers, before anybody asks.
        let mut returned = 0;
        while returned < 2 {
            returned += usize::from(read(&mut reading).expect("an answer").kind == 2);
        }
        let answers = answers.clone();
        std::thread::spawn(move || {
            while let Some(call) = read(&mut reading) {
                if call.kind != 1 {
                    continue;
                }
                let answers = answers.lock().expect("no panic");
                let key = match call.strings.len() {
                    0 => call.member.clone(),
                    1 => format!("{} {}", call.member, call.path),
                    _ => format!("{}/{} {}", call.member, call.strings[1], call.path),
                };
                let to = [(6, "s", call.sender.as_str())];
                let reply = match answers.get(&key) {
                    Some(Some((signature, body))) => message(2, &to, Some(call.serial), signature, body),
                    Some(None) => continue,
                    None => {
                        let error = [to[0], (4, "s", "org.freedesktop.DBus.Error.UnknownObject")];
                        message(3, &error, Some(call.serial), "s", &string("no such thing"))
                    }
                };
                if reading.write_all(&reply).is_err() {
                    break;
                }
            }
        });
        Service { stream, name }
    }

    /// Sends a signal without contents.
    fn signal(&mut self, path: &str, interface: &str, member: &str) {
        let fields = [(1, "o", path), (2, "s", interface), (3, "s", member)];
        self.stream.write_all(&message(4, &fields, None, "", &[])).expect("written");
    }

    fn session_changed(&mut self) {
        assert_eq!(self.name, LOGIND);
        self.signal(SESSION, "org.freedesktop.DBus.Properties", "PropertiesChanged");
    }

    fn game_changed(&mut self) {
        assert_eq!(self.name, GAMEMODE);
        self.signal("/com/feralinteractive/GameMode", GAMEMODE, "GameRegistered");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A message that was read.
#[derive(Default)]
struct Received {
    kind: u8,
    serial: u32,
    sender: String,
    path: String,
    member: String,
    /// The body, when it is of strings only.
    strings: Vec<String>,
}

fn read(stream: &mut UnixStream) -> Option<Received> {
    let mut head = [0u8; 16];
    stream.read_exact(&mut head).ok()?;
    let number = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let length = number(&head, 12) as usize;
    let mut fields = vec![0; length.next_multiple_of(8)];
    stream.read_exact(&mut fields).ok()?;
    let mut body = vec![0; number(&head, 4) as usize];
    stream.read_exact(&mut body).ok()?;
    let mut received = Received { kind: head[1], serial: number(&head, 8), ..Received::default() };
    let text = |bytes: &[u8], at: usize| {
        let end = at + 4 + number(bytes, at) as usize;
        (String::from_utf8_lossy(&bytes[at + 4..end]).into_owned(), end + 1)
    };
    let mut at = 0;
    while at < length {
        let (code, kind) = (fields[at], fields[at + 2]);
        at = match kind {
            b'u' => at + 8,
            b'g' => at + 4 + usize::from(fields[at + 4]) + 2,
            _ => {
                let (value, end) = text(&fields, at + 4);
                match code {
                    1 => received.path = value,
                    3 => received.member = value,
                    7 => received.sender = value,
                    _ => {}
                }
                end
            }
        };
        at = at.next_multiple_of(8);
    }
    let mut at = 0;
    while at < body.len() && received.kind == 1 {
        let (value, end) = text(&body, at);
        received.strings.push(value);
        at = end.next_multiple_of(4);
    }
    Some(received)
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).expect("short").to_ne_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}

fn message(kind: u8, strings: &[(u8, &str, &str)], to: Option<u32>, signature: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    for (code, kind, value) in strings {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend_from_slice(&[*code, 1, kind.as_bytes()[0], 0]);
        fields.extend_from_slice(&string(value));
    }
    if let Some(to) = to {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend_from_slice(b"\x05\x01u\0");
        fields.extend_from_slice(&to.to_ne_bytes());
    }
    if !signature.is_empty() {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend_from_slice(b"\x08\x01g\0");
        fields.push(u8::try_from(signature.len()).expect("short"));
        fields.extend_from_slice(signature.as_bytes());
        fields.push(0);
    }
    let order = if cfg!(target_endian = "little") { b'l' } else { b'B' };
    let mut message = vec![order, kind, 0, 1];
    for number in [body.len(), 1, fields.len()] {
        message.extend_from_slice(&u32::try_from(number).expect("short").to_ne_bytes());
    }
    message.extend_from_slice(&fields);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend_from_slice(body);
    message
}

/// An array of structures: each begins at a multiple of 8, as the array does.
fn list(elements: &[Vec<u8>]) -> Vec<u8> {
    let mut all: Vec<u8> = Vec::new();
    for element in elements {
        all.resize(all.len().next_multiple_of(8), 0);
        all.extend_from_slice(element);
    }
    let mut bytes = u32::try_from(all.len()).expect("short").to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&all);
    bytes
}

fn games(pids: &[u32]) -> Option<(&'static str, Vec<u8>)> {
    let game = |pid: &u32| [pid.to_ne_bytes().to_vec(), string("/com/feralinteractive/GameMode/Games/1")].concat();
    Some(("a(io)", list(&pids.iter().map(game).collect::<Vec<_>>())))
}

const SESSION: &str = "/org/freedesktop/login1/session/_32";
const OTHER: &str = "/org/freedesktop/login1/session/_33";

/// Users, each with the object of a session.
fn sessions(users: &[(u32, &str)]) -> Option<(&'static str, Vec<u8>)> {
    let session = |(uid, path): &(u32, &str)| {
        let mut bytes = string("2");
        for part in [uid.to_ne_bytes().to_vec(), string("user"), string("seat0"), string(path)] {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend_from_slice(&part);
        }
        bytes
    };
    Some(("a(susso)", list(&users.iter().map(session).collect::<Vec<_>>())))
}

fn flag(value: bool) -> Option<(&'static str, Vec<u8>)> {
    Some(("v", [vec![1, b'b', 0, 0], u32::from(value).to_ne_bytes().to_vec()].concat()))
}

/// The value of a property.
enum Property {
    Flag(bool),
    Text(&'static str),
    Number(u64),
}

/// Properties and their values, as the answer of GetAll.
fn properties(values: &[(&str, Property)]) -> Option<(&'static str, Vec<u8>)> {
    let entry = |(name, value): &(&str, Property)| {
        let mut bytes = string(name);
        let (kind, align, value) = match value {
            Property::Flag(value) => (b'b', 4, u32::from(*value).to_ne_bytes().to_vec()),
            Property::Text(value) => (b's', 4, string(value)),
            Property::Number(value) => (b't', 8, value.to_ne_bytes().to_vec()),
        };
        bytes.extend_from_slice(&[1, kind, 0]);
        bytes.resize(bytes.len().next_multiple_of(align), 0);
        bytes.extend_from_slice(&value);
        bytes
    };
    Some(("a{sv}", list(&values.iter().map(entry).collect::<Vec<_>>())))
}

/// A session of a desktop at the machine.
fn desktop(class: &'static str, is_idle: bool) -> Option<(&'static str, Vec<u8>)> {
    properties(&[
        ("Class", Property::Text(class)),
        ("State", Property::Text("active")),
        ("Type", Property::Text("wayland")),
        ("Scope", Property::Text("session-2.scope")),
        ("Active", Property::Flag(true)),
        ("Remote", Property::Flag(false)),
        ("IdleHint", Property::Flag(is_idle)),
        ("LockedHint", Property::Flag(false)),
        ("IdleSinceHint", Property::Number(0)),
        // A time to come, so that there is one answer.
        ("IdleSinceHintMonotonic", Property::Number(u64::MAX / 1000)),
        ("TimestampMonotonic", Property::Number(1)),
    ])
}

fn inhibitors(what: &'static str) -> Option<(&'static str, Vec<u8>)> {
    properties(&[("BlockInhibited", Property::Text(what)), ("IdleHint", Property::Flag(false))])
}

/// A running `omr follow --dry-run`, which ends when this is dropped.
struct Follow {
    process: Child,
    lines: Receiver<String>,
}

impl Follow {
    fn start(bus: &Bus, sources: &[&str]) -> Follow {
        let mut process = Command::new(env!("CARGO_BIN_EXE_omr"))
            .arg("follow")
            .args(sources)
            .arg("--dry-run")
            .env("DBUS_SYSTEM_BUS_ADDRESS", bus.address())
            .env("DBUS_SESSION_BUS_ADDRESS", bus.address())
            .env_remove("SWAYSOCK")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("omr starts");
        let (sender, lines) = channel();
        let output = process.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Follow { process, lines }
    }

    /// Waits until this is what it would tell; what comes before is passed over.
    #[track_caller]
    fn tells(&self, expected: &Value) {
        let mut last = None;
        let end = std::time::Instant::now() + SOON;
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
            let found: Value = line.parse().expect("JSON");
            if found == *expected {
                return;
            }
            last = Some(found);
        }
        panic!("{expected} is not told, but {last:?}");
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn user(uid: u32) -> Value {
    json!({"word": "present", "of": {"group": format!("user.slice/user-{uid}.slice")}})
}

/// The statement that the test itself is in the foreground.
fn this_process() -> Value {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("its stat");
    let start: u64 = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)?.parse().ok()).expect("a number");
    json!({"word": "foreground", "of": {"process": {"pid": std::process::id(), "start": start}}})
}

#[test]
fn a_user_is_present_whose_session_is_active_and_neither_idle_nor_locked() {
    let directory = tempfile::tempdir().expect("a directory");
    let bus = Bus::start(directory.path());
    let answers = Answers::default();
    let set = |key: &str, path: &str, value: bool| {
        answers.lock().expect("no panic").insert(format!("Get/{key} {path}"), flag(value));
    };
    answers.lock().expect("no panic").insert("ListSessions".into(), sessions(&[(1000, SESSION), (1001, OTHER)]));
    for (key, path, value) in [
        ("Active", SESSION, true),
        ("IdleHint", SESSION, false),
        ("LockedHint", SESSION, false),
        // Another user, switched away from. Of this one logind does not know more.
        ("Active", OTHER, false),
    ] {
        set(key, path, value);
    }
    let mut logind = Service::start(&bus, LOGIND, &answers);
    let follow = Follow::start(&bus, &["logind"]);
    follow.tells(&json!([user(1000)]));
    set("IdleHint", SESSION, true);
    logind.session_changed();
    follow.tells(&json!([]));
    set("IdleHint", SESSION, false);
    logind.session_changed();
    follow.tells(&json!([user(1000)]));
    set("LockedHint", SESSION, true);
    set("Active", OTHER, true);
    logind.session_changed();
    follow.tells(&json!([user(1001)]));
    // It has gone, and is there again.
    drop(logind);
    follow.tells(&json!([]));
    let _logind = Service::start(&bus, LOGIND, &answers);
    follow.tells(&json!([user(1001)]));
}

#[test]
fn games_are_in_the_foreground_while_they_are_registered() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bus = Bus::start(directory.path());
    let answers = Answers::default();
    let register = |pids: &[u32]| answers.lock().expect("no panic").insert("ListGames".into(), games(pids));
    let follow = Follow::start(&bus, &["gamemode"]);
    follow.tells(&json!([]));
    // GameMode is started by the first game. One of its games has ended.
    register(&[std::process::id(), 4_194_304]);
    let mut gamemode = Service::start(&bus, GAMEMODE, &answers);
    follow.tells(&json!([this_process()]));
    register(&[]);
    gamemode.game_changed();
    follow.tells(&json!([]));
    register(&[std::process::id()]);
    gamemode.game_changed();
    follow.tells(&json!([this_process()]));
    // What is no list of games is no game, until it is one again.
    answers.lock().expect("no panic").insert("ListGames".into(), Some(("s", string("many"))));
    gamemode.game_changed();
    follow.tells(&json!([]));
    register(&[std::process::id()]);
    follow.tells(&json!([this_process()]));
    // The bus ends, and is started again.
    bus.stop();
    follow.tells(&json!([]));
    let again = Bus::start(directory.path());
    let _gamemode = Service::start(&again, GAMEMODE, &answers);
    follow.tells(&json!([this_process()]));
}

#[test]
fn a_silent_source_is_asked_again_and_unknown_until_then() {
    let directory = tempfile::tempdir().expect("a directory");
    let bus = Bus::start(directory.path());
    let answers = Answers::default();
    let set = |answer| answers.lock().expect("no panic").insert("ListGames".into(), answer);
    set(games(&[std::process::id()]));
    let mut gamemode = Service::start(&bus, GAMEMODE, &answers);
    let follow = Follow::start(&bus, &["gamemode"]);
    follow.tells(&json!([this_process()]));
    set(None);
    gamemode.game_changed();
    follow.tells(&json!([]));
    set(games(&[std::process::id()]));
    follow.tells(&json!([this_process()]));
}

/// What is told about who is there: the sessions at the machine and, if these are idle, the time
/// since then in seconds.
fn presence(active: u32, idle: Option<u64>, inhibited: bool) -> Value {
    let time = |secs: u64| json!({"secs": secs, "nanos": 0});
    let local = json!({"active": active, "idle": idle.map(time)});
    let facts = json!({"age": time(0), "local": local, "remote": {"active": 0, "idle": null}, "inhibited": inhibited});
    json!({"presence": facts, "hibernates": null})
}

#[test]
fn who_is_there_follows_from_sessions_and_inhibitors() {
    const MANAGER: &str = "/org/freedesktop/login1";
    let unknown = json!({"presence": null, "hibernates": null});
    let directory = tempfile::tempdir().expect("a directory");
    let bus = Bus::start(directory.path());
    let answers = Answers::default();
    let set = |key: String, answer| drop(answers.lock().expect("no panic").insert(key, answer));
    set("ListSessions".into(), sessions(&[(1000, SESSION), (120, OTHER)]));
    set(format!("GetAll {MANAGER}"), inhibitors("shutdown:sleep"));
    set(format!("GetAll {SESSION}"), desktop("user", false));
    // The login screen is no person.
    set(format!("GetAll {OTHER}"), desktop("greeter", false));
    let mut logind = Service::start(&bus, LOGIND, &answers);
    let follow = Follow::start(&bus, &["presence"]);
    follow.tells(&presence(1, None, false));
    set(format!("GetAll {SESSION}"), desktop("user", true));
    logind.session_changed();
    follow.tells(&presence(1, Some(0), false));
    set(format!("GetAll {MANAGER}"), inhibitors("sleep:idle"));
    logind.signal(MANAGER, "org.freedesktop.DBus.Properties", "PropertiesChanged");
    follow.tells(&presence(1, Some(0), true));
    set(format!("GetAll {MANAGER}"), inhibitors(""));
    // It ended since the list was made.
    answers.lock().expect("no panic").remove(&format!("GetAll {SESSION}"));
    logind.session_changed();
    follow.tells(&presence(0, None, false));

    // An answer that makes no sense, or that does not come, is no absence; neither is no logind.
    for nonsense in [Some(("s", string("idle"))), properties(&[("BlockInhibited", Property::Number(1))]), None] {
        set(format!("GetAll {MANAGER}"), nonsense);
        logind.session_changed();
        follow.tells(&unknown);
        set(format!("GetAll {MANAGER}"), inhibitors(""));
        follow.tells(&presence(0, None, false));
    }
    set("ListSessions".into(), sessions(&[(1000, SESSION)]));
    set(format!("GetAll {SESSION}"), properties(&[("Class", Property::Text("user"))]));
    logind.session_changed();
    follow.tells(&unknown);
    set(format!("GetAll {SESSION}"), desktop("user", false));
    follow.tells(&presence(1, None, false));
    drop(logind);
    follow.tells(&unknown);
    let _logind = Service::start(&bus, LOGIND, &answers);
    follow.tells(&presence(1, None, false));
}

/// Nobody is there, and this setting makes the machine hibernate.
fn hibernates(by: Option<&str>) -> Value {
    let mut told = presence(0, None, false);
    told["hibernates"] = json!(by);
    told
}

#[test]
fn the_machine_hibernates_by_logind_or_by_upower_and_a_battery() {
    const MANAGER: &str = "/org/freedesktop/login1";
    let directory = tempfile::tempdir().expect("a directory");
    let bus = Bus::start(directory.path());
    let answers = Answers::default();
    let set = |key: &str, answer| drop(answers.lock().expect("no panic").insert(key.into(), answer));
    let manager = |lid| {
        properties(&[
            ("BlockInhibited", Property::Text("")),
            ("HandleLidSwitch", Property::Text(lid)),
            ("HandleHibernateKey", Property::Text("hibernate")),
        ])
    };
    set("ListSessions", sessions(&[]));
    set(&format!("GetAll {MANAGER}"), manager("suspend"));
    let mut logind = Service::start(&bus, LOGIND, &answers);
    {
        // UPower does not run.
        let follow = Follow::start(&bus, &["presence"]);
        follow.tells(&hibernates(None));
        set(&format!("GetAll {MANAGER}"), manager("suspend-then-hibernate"));
        logind.session_changed();
        follow.tells(&hibernates(Some("lid")));
        set(&format!("GetAll {MANAGER}"), manager("suspend"));
        logind.session_changed();
        follow.tells(&hibernates(None));
    }
    let _upower = Service::start(&bus, UPOWER, &answers);
    let display = "Get/IsPresent /org/freedesktop/UPower/devices/DisplayDevice";
    for (action, present, by) in [
        ("HybridSleep", Some(flag(true)), Some("critical-battery")),
        ("Hibernate", Some(flag(true)), Some("critical-battery")),
        ("Hibernate", Some(flag(false)), None),
        // No such device, and an answer of another kind.
        ("Hibernate", None, None),
        ("Hibernate", Some(Some(("s", string("yes")))), None),
        ("PowerOff", Some(flag(true)), None),
    ] {
        set("GetCriticalAction", Some(("s", string(action))));
        match present {
            Some(answer) => set(display, answer),
            None => drop(answers.lock().expect("no panic").remove(display)),
        }
        Follow::start(&bus, &["presence"]).tells(&hibernates(by));
    }
    // UPower that hangs does not hide who is there.
    set("GetCriticalAction", None);
    Follow::start(&bus, &["presence"]).tells(&hibernates(None));
}
