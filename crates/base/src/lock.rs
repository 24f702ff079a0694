//! Lock files: one process at a time.
//!
//! Whoever can open a file can lock it, read-only as well. So only the user of the process that
//! makes a lock file may open it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
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
    /// Tries to take the lock at this path. Makes the file and its directory if they are missing. A
    /// file that others may open is replaced, whoever holds its lock.
    pub fn try_take(path: &Path) -> Result<Attempt> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let mut lock = Lock(open(path).with_context(|| format!("open {}", path.display()))?);
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

/// Returns true if a process holds the lock of this file. This briefly takes a shared lock. A file
/// that others may open is no lock.
pub fn is_held(file: &File) -> bool {
    is_private(file).unwrap_or(false) && flock(file, FlockOperation::NonBlockingLockShared).is_err()
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).create(true).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    if is_private(&file)? {
        return Ok(file);
    }
    // A change of its mode would not close what others have opened.
    fs::remove_file(path)?;
    options.create_new(true).open(path)
}

fn is_private(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn who_may_only_read_cannot_take_a_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("lock");
        let mode = || fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
        // As a version before made it: a user has opened it, and holds its lock.
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
        let users = File::open(&path).expect("a file");
        flock(&users, FlockOperation::NonBlockingLockExclusive).expect("locked");
        assert!(!is_held(&File::open(&path).expect("a file")), "it is no lock");
        let Attempt::Taken(lock) = Lock::try_take(&path).expect("a lock") else { panic!("a user holds it") };
        assert_eq!(mode(), 0o600);
        assert!(is_held(&File::open(&path).expect("a file")));
        drop(lock);
        // A file of the right mode is kept, or nobody would see who holds it.
        let before = fs::metadata(&path).expect("a file").ino();
        drop(Lock::try_take(&path).expect("a lock"));
        assert_eq!(fs::metadata(&path).expect("a file").ino(), before);
    }
}
