//! A watch that keeps running during a test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use omr_testkit::FakeRoot;
use serde_json::Value;

use crate::common::command;
use crate::common::running::wait_until;

/// A watch that runs; killed when dropped.
pub struct Running {
    child: Child,
    out: Arc<Mutex<Vec<Value>>>,
    log: Arc<Mutex<String>>,
    _root: FakeRoot,
}

impl Running {
    pub fn start(root: FakeRoot) -> Self {
        let mut command = command(root.path(), &["watch", "--dry-run", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("omr starts");
        let (out, log) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (lines, said) = (Arc::clone(&out), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lines.lock().expect("lines").push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *said.lock().expect("a log") += &format!("{line}\n");
            }
        });
        Running { child, out, log, _root: root }
    }

    pub fn requests(&self) -> Vec<Value> {
        self.out.lock().expect("lines").clone()
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("a log").clone()
    }

    pub fn wait_for(&self, requests: usize) {
        wait_until(&format!("{requests} requests"), || self.requests().len() >= requests);
    }

    /// Tells it to end; how long that took.
    pub fn end(&mut self) -> Duration {
        let began = Instant::now();
        // SAFETY: the child has not been waited for, so the pid is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).expect("a pid"), libc::SIGTERM) };
        let status = self.child.wait().expect("an end");
        assert_eq!(status.code(), Some(0), "{}", self.log());
        began.elapsed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log:\n{}", self.log());
        }
    }
}
