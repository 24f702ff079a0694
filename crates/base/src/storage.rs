//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces a file so that a reader, or a crash at any moment, finds the old or the new one whole.
pub fn write_atomically(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o644, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
}

/// As [`write_atomically`], for what nobody but root may read.
pub fn write_privately(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o600, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
}

/// As [`write_atomically`], where there is no such file yet; false: there is one.
pub fn write_new(path: &Path, data: &[u8]) -> Result<bool> {
    match put(path, data, 0o644, |from, to| fs::hard_link(from, to)) {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => Err(err).with_context(|| format!("write {}", path.display())),
    }
}

/// Writes a file of another name and puts it in place.
fn put(path: &Path, data: &[u8], mode: u32, place: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let no_name = || io::Error::from(io::ErrorKind::InvalidInput);
    let dir = path.parent().ok_or_else(no_name)?;
    let mut name = path.file_name().ok_or_else(no_name)?.to_owned();
    // The pid keeps two processes (daemon and command line) from writing one temporary file.
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = dir.join(name);
    let written = (|| {
        // One of that name is of a process that is gone and had our pid.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(data)?;
        file.sync_all()?;
        place(&temporary, path)?;
        File::open(dir)?.sync_all()
    })();
    // There still after an error, or after a hard link.
    let _ = fs::remove_file(&temporary);
    written
}
