//! Lock files: one process at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// A lock file that this process holds. The kernel releases the lock when the process ends.
#[derive(Debug)]
pub struct Lock(File);

/// The result of [`Lock::try_take`].
#[derive(Debug)]
pub enum Attempt {
    /// This process holds the lock now.
    Taken(Lock),
    /// Another process holds the lock. The text is the beginning of the file.
    Held(String),
}

impl Lock {
    /// Tries to take the lock at this path. Makes the file and its directory if they are missing.
    pub fn try_take(path: &Path) -> Result<Attempt> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut lock = Lock(open.with_context(|| format!("open {}", path.display()))?);
        if flock(&lock.0, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(Attempt::Taken(lock));
        }
        Ok(Attempt::Held(lock.read().unwrap_or_default().trim().to_owned()))
    }

    /// The text in the file, 128 bytes at most.
    pub fn read(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.0.rewind()?;
        (&mut self.0).take(128).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Replaces the text in the file, and so the time of the file's last change.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(text.as_bytes())
    }

    /// Writes the id of this process to the file.
    pub fn write_pid(&mut self) -> io::Result<()> {
        self.write(&format!("{}\n", std::process::id()))
    }
}

/// Returns true if a process holds the lock of this file. This briefly takes a shared lock.
pub fn is_held(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_names_its_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run/lock");
        let Attempt::Taken(mut lock) = Lock::try_take(&path).expect("a lock") else { panic!("nobody else has it") };
        lock.write("a longer text\n").expect("written");
        lock.write_pid().expect("written");
        let Attempt::Held(holder) = Lock::try_take(&path).expect("a file") else { panic!("it is held") };
        assert_eq!(holder, std::process::id().to_string());
        let file = File::open(&path).expect("a file");
        assert!(is_held(&file));
        drop(lock);
        assert!(!is_held(&file));
        drop(file);
        assert!(matches!(Lock::try_take(&path), Ok(Attempt::Taken(_))), "the file stays, the lock does not");
    }
}
