//! The lock that is held while memory is brought back.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use rustix::fs::{FlockOperation, flock};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two looks of one who waits for it.
const LOOK: Duration = Duration::from_millis(200);
/// So often the lock is tried, a moment apart.
const TRIES: u32 = 10;

/// Taken while memory is brought back, so that there is one at a time and the daemon knows: it does not
/// take away what comes back, nor take it for refaults. The kernel lets go of it when this process
/// ends, however.
pub fn lock(path: &Path) -> Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = open.with_context(|| format!("open {}", path.display()))?;
    // The daemon tries it once a second, for a moment.
    let is_free = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !(0..TRIES).any(|again| {
        std::thread::sleep(PAUSE * again.min(1));
        is_free()
    }) {
        let mut pid = String::new();
        let _ = (&mut file).take(16).read_to_string(&mut pid);
        // What this one was to do is being done.
        return Err(Exit::Partial.error(format!("omr warm is running already (pid {})", pid.trim())));
    }
    file.set_len(0)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())?;
    Ok(file)
}

/// Waits until nobody brings memory back any more, or the flag is set.
pub fn wait(path: &Path, stop: &Flag) {
    while !stop.is_set() && File::open(path).is_ok_and(|file| is_held(&file)) {
        stop.sleep(LOOK);
    }
}

/// Whether somebody has it for himself. A lock that nobody holds is let go of again with the file.
fn is_held(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_err()
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
