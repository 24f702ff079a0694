//! `omr run` on fake roots: with a systemd that is a thread of the test, and where no group can be
//! made. Real groups and a real systemd: lab/tests/test_run.py.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;

use omr_testkit::FakeRoot;

fn omr(root: &Path, args: &[&str]) -> Output {
    let bus = format!("unix:path={}", root.join("bus").display());
    Command::new(env!("CARGO_BIN_EXE_omr"))
        .arg("run")
        .arg("--root")
        .arg(root)
        .args(args)
        .env("DBUS_SYSTEM_BUS_ADDRESS", &bus)
        .env("DBUS_SESSION_BUS_ADDRESS", &bus)
        .env("XDG_RUNTIME_DIR", root)
        .output()
        .expect("omr runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn with_systemd() -> FakeRoot {
    FakeRoot::new().file("run/systemd/system/.keep", "").proc("self/cgroup", "0::/user.slice\n")
}

/// The reaction of the fake systemd to a request for a scope.
#[derive(Clone, Copy)]
enum Systemd {
    Moves,
    Refuses,
}

/// The requests that it got.
#[derive(Debug, PartialEq)]
struct Asked {
    unit: String,
    pid: u32,
    background_slice: bool,
}

impl Systemd {
    /// Answers one client until it leaves.
    fn serve(self, root: &FakeRoot) -> JoinHandle<Option<Asked>> {
        let listener = UnixListener::bind(root.path().join("bus")).expect("a socket");
        let root = root.path().to_owned();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            assert!(line(&mut stream).starts_with("\0AUTH EXTERNAL 3"), "the user id in hexadecimal digits");
            assert_eq!(line(&mut stream), "NEGOTIATE_UNIX_FD\r\n");
            assert_eq!(line(&mut stream), "BEGIN\r\n");
            stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\n").expect("written");
            let mut asked = None;
            while let Some((serial, header, body)) = message(&mut stream) {
                if contains(&header, b"Hello\0") {
                    stream.write_all(&reply(2, serial, &string(b":1.7"), "")).expect("written");
                    continue;
                }
                assert!(contains(&header, b"StartTransientUnit\0"), "nothing else is asked for");
                assert!(contains(&header, b"\x08\x01g\0\x10ssa(sv)a(sa(sv))\0"), "the body's signature");
                let found = parse(&body);
                let answer = match self {
                    Systemd::Moves => {
                        let group = format!("background.slice/{}", found.unit);
                        std::fs::create_dir_all(root.join("sys/fs/cgroup").join(&group)).expect("a group");
                        let proc = root.join(format!("proc/{}", found.pid));
                        std::fs::create_dir_all(&proc).expect("a directory");
                        std::fs::write(proc.join("cgroup"), format!("0::/{group}\n")).expect("written");
                        reply(2, serial, &[], "")
                    }
                    Systemd::Refuses => {
                        reply(3, serial, &string(b"Unit exists."), "org.freedesktop.systemd1.UnitExists")
                    }
                };
                stream.write_all(&answer).expect("written");
                asked = Some(found);
            }
            asked
        })
    }
}

fn line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a line");
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("text")
}

/// Serial, header fields and body of the next message.
fn message(stream: &mut UnixStream) -> Option<(u32, Vec<u8>, Vec<u8>)> {
    let mut head = [0u8; 16];
    stream.read_exact(&mut head).ok()?;
    let number = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut fields = vec![0; (number(12) as usize).next_multiple_of(8)];
    stream.read_exact(&mut fields).expect("fields");
    let mut body = vec![0; number(4) as usize];
    stream.read_exact(&mut body).expect("a body");
    Some((number(8), fields, body))
}

fn string(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("short").to_ne_bytes(), text, b"\0"].concat()
}

fn reply(kind: u8, to: u32, body: &[u8], error: &str) -> Vec<u8> {
    let mut fields = b"\x05\x01u\0".to_vec();
    fields.extend_from_slice(&to.to_ne_bytes());
    if !body.is_empty() {
        fields.extend_from_slice(b"\x08\x01g\0\x01s\0");
    }
    if !error.is_empty() {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend_from_slice(b"\x04\x01s\0");
        fields.extend_from_slice(&u32::try_from(error.len()).expect("short").to_ne_bytes());
        fields.extend_from_slice(error.as_bytes());
        fields.push(0);
    }
    let order = if cfg!(target_endian = "little") { b'l' } else { b'B' };
    let mut message = vec![order, kind, 1, 1];
    for number in [body.len(), 1, fields.len()] {
        message.extend_from_slice(&u32::try_from(number).expect("short").to_ne_bytes());
    }
    fields.resize(fields.len().next_multiple_of(8), 0);
    message.extend_from_slice(&fields);
    message.extend_from_slice(body);
    message
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Name, and the one process id of the property PIDs.
fn parse(body: &[u8]) -> Asked {
    let number = |at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().expect("four bytes"));
    let length = number(0) as usize;
    let unit = String::from_utf8(body[4..4 + length].to_vec()).expect("text");
    let key = b"PIDs\0\x02au\0";
    let at = body.windows(key.len()).position(|window| window == key).expect("PIDs") + key.len();
    let at = at.next_multiple_of(4);
    assert_eq!(number(at), 4, "an array of one number");
    let background_slice = contains(body, b"Slice\0\x01s\0") && contains(body, b"background.slice\0");
    Asked { unit, pid: number(at + 4), background_slice }
}

fn class_of(group: &Path) -> Option<String> {
    let mut value = [0u8; 32];
    let length = rustix::fs::getxattr(group, "user.omr.class", &mut value).ok()?;
    Some(String::from_utf8_lossy(&value[..length]).into_owned())
}

#[test]
fn systemd_makes_a_scope_around_the_command_before_it_starts() {
    let root = with_systemd();
    let systemd = Systemd::Moves.serve(&root);
    // The class is there when the command begins.
    let proc = root.path().join("proc");
    let script = format!("test -e {}/$$/cgroup && echo in && exit 7", proc.display());
    let output = omr(root.path(), &["--class", "protected", "--", "sh", "-c", &script]);
    assert_eq!((code(&output), output.stdout.as_slice()), (7, b"in\n".as_slice()), "{}", stderr(&output));
    let asked = systemd.join().expect("served").expect("asked for a scope");
    assert_eq!(asked.unit, format!("omr-run-{}.scope", asked.pid));
    assert!(!asked.background_slice);
    let group: PathBuf = root.path().join("sys/fs/cgroup/background.slice").join(&asked.unit);
    assert_eq!(class_of(&group).as_deref(), Some("protected"));
}

#[test]
fn a_background_command_goes_to_the_background_slice() {
    let root = with_systemd();
    let systemd = Systemd::Moves.serve(&root);
    let output = omr(root.path(), &["true"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let asked = systemd.join().expect("served").expect("asked for a scope");
    assert!(asked.background_slice);
    let group: PathBuf = root.path().join("sys/fs/cgroup/background.slice").join(&asked.unit);
    // A user's group cannot ask for less care.
    let expected = rustix::process::geteuid().is_root().then_some("background");
    assert_eq!(class_of(&group).as_deref(), expected);
}

#[test]
fn a_refusal_of_systemd_is_an_error_and_the_command_does_not_run() {
    let root = with_systemd();
    let systemd = Systemd::Refuses.serve(&root);
    let output = omr(root.path(), &["echo", "ran"]);
    assert_eq!((code(&output), output.stdout.as_slice()), (125, b"".as_slice()));
    let asked = systemd.join().expect("served").expect("asked for a scope");
    assert_eq!(
        stderr(&output),
        format!("omr: start {}: Unit exists. (org.freedesktop.systemd1.UnitExists)\n", asked.unit)
    );
}

#[test]
fn a_systemd_that_does_not_answer_is_named() {
    let root = with_systemd();
    let output = omr(root.path(), &["true"]);
    assert_eq!(code(&output), 125);
    let text = stderr(&output);
    assert!(text.starts_with("omr: connect to ") && text.contains("No such file"), "{text}");
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_is_no_program_126() {
    for (command, expected) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
        let root = with_systemd();
        let systemd = Systemd::Moves.serve(&root);
        let output = omr(root.path(), &[command]);
        assert_eq!(code(&output), expected);
        assert!(stderr(&output).starts_with(&format!("omr: {command}: ")), "{}", stderr(&output));
        systemd.join().expect("served");
    }
}

#[test]
fn where_no_group_can_be_made_the_command_does_not_run() {
    let root = FakeRoot::new().proc("self/cgroup", "0::/\n").group("full", &[("x", "")]);
    for below in ["missing", "full/x", "a/../b"] {
        let output = omr(root.path(), &["--below", below, "echo", "ran"]);
        assert_eq!((code(&output), output.stdout.as_slice()), (125, b"".as_slice()), "{}", stderr(&output));
        assert!(stderr(&output).starts_with("omr: cannot make a group for the command"), "{}", stderr(&output));
    }
    // A directory that is no control group takes no process; what was made is removed again.
    let output = omr(root.path(), &["--below", "full", "echo", "ran"]);
    assert_eq!((code(&output), output.stdout.as_slice()), (125, b"".as_slice()), "{}", stderr(&output));
    let left: Vec<_> = std::fs::read_dir(root.resolve("sys/fs/cgroup/full")).expect("a directory").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn without_a_command_it_says_how_it_is_used() {
    let root = FakeRoot::new();
    let output = omr(root.path(), &["--class", "background"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("COMMAND"), "{}", stderr(&output));
}
