//! The lock of the one process that brings memory back.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_base::lock::{Attempt, Lock, is_held};
use omr_base::paths;
use rustix::fs::{StatVfsMountFlags, statvfs};

/// The time between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(2);
/// The time between two checks of a process that waits for the lock.
const WAIT_INTERVAL: Duration = Duration::from_millis(200);
/// The number of attempts.
const TRIES: u32 = 10;

/// Locks while memory is brought back. So there is one `omr warm` at a time. The daemon sees the
/// lock: it does not reclaim this memory, and does not count it as refaults. The kernel releases
/// the lock when this process ends.
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
    // The other process already does the work.
    Err(Exit::Partial.error(format!("omr warm is running already (pid {holder})")))
}

/// Returns true unless the directory of the lock is read-only, as it is for omr.service: no right of a
/// process changes that. A directory that is missing is made.
pub fn may_lock(root: &Path) -> bool {
    let mount = statvfs(paths::root_runtime_dir(root));
    !mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Waits until no process brings memory back, or the flag is set.
pub fn wait(path: &Path, stop: &Flag) {
    while !stop.is_set() && File::open(path).is_ok_and(|file| is_held(&file)) {
        stop.sleep(WAIT_INTERVAL);
    }
}

/// Shows the daemon if a process brings memory back.
#[derive(Debug)]
pub struct Notice {
    path: PathBuf,
    /// The time of the last locking; `None`: never.
    taken: Option<SystemTime>,
}

impl Notice {
    /// Watches the lock at this path. Earlier holders do not count.
    pub fn new(path: &Path) -> Self {
        let mut notice = Notice { path: path.into(), taken: None };
        notice.poll();
        notice
    }

    /// Returns true if the lock is held, or was held since the last poll.
    pub fn poll(&mut self) -> bool {
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
        assert!(!notice.poll(), "no lock file yet");
        let held = lock(&path).expect("the lock");
        assert!(notice.poll() && notice.poll());
        assert!(lock(&path).expect_err("held").to_string().contains(&std::process::id().to_string()));
        drop(held);
        assert!(!notice.poll());
        std::thread::sleep(Duration::from_millis(20));
        drop(lock(&path).expect("the lock"));
        assert!(notice.poll(), "a run that began and ended between two polls");
        assert!(!notice.poll());
        assert!(!Notice::new(&path).poll());
    }

    #[test]
    fn a_wait_ends_when_the_lock_is_released_or_the_time_is_up() {
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
        holder.join().expect("released");
        drop(lock(&path).expect("free"));
    }
}
