//! A daemon that runs on a fake root.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use omr_testkit::FakeRoot;
use serde_json::Value;

use super::{STEADY, command};

/// The program `omr-daemon` itself, to be run on a root.
pub fn daemon_command(root: &Path) -> Command {
    let mut command = Command::new(assert_daemon_is_built());
    command.arg("--root").arg(root);
    command
}

/// Fails where `omr-daemon` was not built: cargo builds the programs of the packages that it tests.
fn assert_daemon_is_built() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_omr")).with_file_name("omr-daemon");
    let fix = "build it with: cargo build -p omr-daemon, or test the workspace: cargo test --workspace";
    assert!(program.is_file(), "{} is missing; {fix}", program.display());
    program
}

/// Far beyond what anything takes, on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(100);

/// Idle after a second; nothing else that takes time.
pub const SOON: &str = "[idle]\nfor = '1s'\nagain = '0s'\nwindow = '1s'\n";

/// Waits until `done`, or fails with `what`.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < DEADLINE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    root: PathBuf,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts it with [`SOON`] and [`STEADY`], and what else is to be configured. The goal is
    /// "free", unless the configuration has another one.
    pub fn start(root: &FakeRoot, config: &str) -> Self {
        Self::start_with(root, config, |_| {})
    }

    /// As [`Daemon::start`], with a change to the command.
    pub fn start_with(root: &FakeRoot, config: &str, change: impl FnOnce(&mut Command)) -> Self {
        let goal = if config.contains("goal =") { "" } else { "goal = 'free'\n" };
        root.write("etc/omr/omr.toml", format!("{goal}{config}\n{SOON}{STEADY}"));
        let mut daemon = Self::spawn(root, change);
        wait_until("the daemon is ready", || daemon.log().contains(" started") || !daemon.is_running());
        assert!(daemon.is_running(), "the daemon has ended: {}", daemon.log());
        daemon
    }

    /// Starts it with the configuration that there is, and does not wait for anything.
    pub fn spawn(root: &FakeRoot, change: impl FnOnce(&mut Command)) -> Self {
        assert_daemon_is_built();
        let mut command = command(root.path(), &["daemon", "--foreground"]);
        change(&mut command);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("omr starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let reader = {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                for line in stderr.split(b'\n').map_while(Result::ok) {
                    let mut log = log.lock().expect("a log");
                    log.push_str(&String::from_utf8_lossy(&line));
                    log.push('\n');
                }
            })
        };
        Daemon { child, root: root.path().into(), log, reader: Some(reader) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("a log").clone()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the pid is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).expect("a pid"), signal) };
    }

    /// Waits for its end; what it logged is whole then.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let mut status = None;
        wait_until("the daemon has ended", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log was read");
        }
        (status.expect("an end"), self.log())
    }

    /// Tells it to end, which it must do properly; returns what it logged.
    pub fn end(mut self) -> String {
        assert!(self.is_running(), "the daemon has ended by itself: {}", self.log());
        self.signal(libc::SIGTERM);
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        assert!(!self.socket().exists(), "the socket is left");
        log
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("run/omr/omr.sock")
    }

    /// A connection to the control socket.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).expect("the control socket");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream
    }

    /// Asks it something, the way `omr status` does.
    pub fn ask(&self, request: &str) -> Value {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(b"\n")).expect("a request is taken");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|err| panic!("{err}: {line:?}"))
    }

    pub fn status(&self) -> Value {
        self.ask(r#"{"do":"status"}"#)["ok"].clone()
    }

    /// Waits until the reason of its last decision is of this kind.
    pub fn wait_for_reason(&self, kind: &str) -> Value {
        let mut last = Value::Null;
        wait_until(&format!("reason {kind}"), || {
            last = self.status();
            last["decision"]["reason"]["kind"] == kind
        });
        last
    }
}

/// Starts a daemon that has to refuse; returns its exit code and what it says.
pub fn refused(root: &FakeRoot) -> (i32, String) {
    let (status, log) = Daemon::spawn(root, |_| {}).wait();
    (status.code().expect("an exit"), log)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// The lines of the ledger that are whole.
pub fn ledger(root: &FakeRoot) -> Vec<Value> {
    let text = std::fs::read(root.resolve("var/lib/omr/ledger.jsonl")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The ledger's line about the sweep of a group, when there is one.
pub fn swept(root: &FakeRoot, group: &str) -> Option<Value> {
    ledger(root).into_iter().find(|line| line["kind"] == "sweep" && line["group"] == group)
}

/// Runs `set_up` in the child before it becomes the program, in mounts of its own. Whether that is
/// permitted here.
pub fn can_mount() -> bool {
    let mut command = Command::new("/bin/true");
    in_own_mounts(&mut command, Path::new("/tmp"), |_| 0);
    command.status().is_ok_and(|status| status.success())
}

/// See [`can_mount`].
pub fn in_own_mounts(
    command: &mut Command,
    dir: &Path,
    mount: impl Fn(*const libc::c_char) -> i32 + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    let dir = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).expect("no NUL");
    let set_up = move || {
        // SAFETY: system calls with pointers to constants and to `dir`, which lives as long as
        // this.
        let result = unsafe {
            let none = std::ptr::null();
            if libc::unshare(libc::CLONE_NEWNS) != 0
                || libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) != 0
            {
                -1
            } else {
                mount(dir.as_ptr())
            }
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: system calls only between fork and exec.
    unsafe { command.pre_exec(set_up) };
}
