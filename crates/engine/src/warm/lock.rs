//! The lock that is held while memory is brought back.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_base::lock::{Attempt, Lock, is_held};

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(2);
/// Time between two looks of a process that waits for the lock.
const LOOK: Duration = Duration::from_millis(200);
/// Number of tries.
const TRIES: u32 = 10;

/// Takes the lock while memory is brought back. So there is one `omr warm` at a time, and the daemon
/// knows of it: the daemon does not reclaim this memory, and does not count it as refaults. The
/// kernel releases the lock when this process ends.
pub fn lock(path: &Path) -> Result<Lock> {
    let mut holder = String::new();
    for again in 0..TRIES {
        // The daemon tries the lock once a second, for a moment.
        std::thread::sleep(PAUSE * again.min(1));
        match Lock::try_take(path)? {
            Attempt::Taken(mut lock) => {
                lock.write_pid()?;
                return Ok(lock);
            }
            Attempt::Held(pid) => holder = pid,
        }
    }
    // The other process does the work of this one.
    Err(Exit::Partial.error(format!("omr warm is running already (pid {holder})")))
}

/// Waits until nobody brings memory back any more, or the flag is set.
pub fn wait(path: &Path, stop: &Flag) {
    while !stop.is_set() && File::open(path).is_ok_and(|file| is_held(&file)) {
        stop.sleep(LOOK);
    }
}

/// Tells a daemon whether memory is brought back.
#[derive(Debug)]
pub struct Notice {
    path: PathBuf,
    /// When the lock was taken last.
    taken: Option<SystemTime>,
}

impl Notice {
    /// By the lock at this path; who held it before does not count.
    pub fn new(path: &Path) -> Self {
        let mut notice = Notice { path: path.into(), taken: None };
        notice.look();
        notice
    }

    /// Whether it is held, or was since the last look.
    pub fn look(&mut self) -> bool {
        let Ok(file) = File::open(&self.path) else { return false };
        let held = is_held(&file);
        let taken = file.metadata().and_then(|meta| meta.modified()).ok();
        let since = taken != std::mem::replace(&mut self.taken, taken);
        held || since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_notices_a_warm_that_runs_and_one_that_ran() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run/warm.lock");
        let mut notice = Notice::new(&path);
        assert!(!notice.look(), "there was none ever");
        let held = lock(&path).expect("the lock");
        assert!(notice.look() && notice.look());
        assert!(lock(&path).expect_err("held").to_string().contains(&std::process::id().to_string()));
        drop(held);
        assert!(!notice.look());
        std::thread::sleep(Duration::from_millis(20));
        drop(lock(&path).expect("the lock"));
        assert!(notice.look(), "one that began and ended between two looks");
        assert!(!notice.look());
        assert!(!Notice::new(&path).look());
    }

    #[test]
    fn who_waits_for_it_waits_until_it_is_let_go_of_or_the_time_is_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("warm.lock");
        wait(&path, &Flag::default());
        let held = lock(&path).expect("the lock");
        let limited = Flag::with_timeout(Some(Duration::from_millis(50)));
        wait(&path, &limited);
        assert!(limited.timed_out(), "it was held all the time");
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        wait(&path, &Flag::default());
        holder.join().expect("let go of");
        drop(lock(&path).expect("free"));
    }
}
