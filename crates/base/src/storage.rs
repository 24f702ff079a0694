//! Files that are written completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces a file. A reader finds the complete old or the complete new file, even after a crash.
pub fn write_atomically(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o644, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
}

/// As [`write_atomically`], for a file that only root may read.
pub fn write_privately(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o600, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
}

/// As [`write_atomically`], but never replaces a file. Returns false if the file exists already.
pub fn write_new(path: &Path, data: &[u8]) -> Result<bool> {
    match put(path, data, 0o644, |from, to| fs::hard_link(from, to)) {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => Err(err).with_context(|| format!("write {}", path.display())),
    }
}

/// Writes a temporary file and moves it to `path` with `place`.
fn put(path: &Path, data: &[u8], mode: u32, place: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let no_name = || io::Error::from(io::ErrorKind::InvalidInput);
    let dir = path.parent().ok_or_else(no_name)?;
    let mut name = path.file_name().ok_or_else(no_name)?.to_owned();
    // The pid keeps two processes (daemon and command line) from writing one temporary file.
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = dir.join(name);
    let written = (|| {
        // A file of that name was left by a process that had our pid before.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(data)?;
        file.sync_all()?;
        place(&temporary, path)?;
        File::open(dir)?.sync_all()
    })();
    // The temporary file still exists after an error, or after a hard link.
    let _ = fs::remove_file(&temporary);
    written
}
