//! The journal of limits that omr has changed: written to disk before a limit is touched, read back
//! at every start, so that a limit is restored whatever happened to the program.
//!
//! One file a group in `limits/` of the state directory, named by the group's inode number.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_kernel::actuate::{Actuator, Outcome};
use omr_kernel::memcg::Group;
use omr_kernel::{Dir, Kernel};
use omr_units::{GroupId, Limit};
use serde::{Deserialize, Serialize};

/// Limits that omr may change. An entry that names another file is not ours.
const FILES: [&str; 1] = ["memory.high"];

/// Replaces a file so that a reader, or a crash at any moment, finds the old or the new one whole.
pub fn write_atomically(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o644, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
}

/// As [`write_atomically`], for what nobody but root may read.
pub fn write_privately(path: &Path, data: &[u8]) -> Result<()> {
    put(path, data, 0o600, |from, to| fs::rename(from, to)).with_context(|| format!("write {}", path.display()))
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

/// A changed limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The kernel's boot id: groups and their limits do not outlive a boot.
    boot: String,
    /// The process that changed it. While it lives the limit is its business.
    pid: u32,
    /// Path of the group below the mount, for opening; `id` tells whether it is the same group.
    path: OsString,
    id: GroupId,
    file: String,
    /// What stood there before.
    value: Limit,
}

/// The directory of entries.
#[derive(Clone, Debug)]
pub struct Journal {
    dir: PathBuf,
    boot: String,
}

impl Journal {
    /// The journal in the given state directory.
    pub fn open(kernel: &Kernel, state_dir: &Path) -> Result<Self> {
        let dir = state_dir.join("limits");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let boot = kernel.read_boot_id()?;
        Ok(Journal { dir, boot })
    }

    /// Notes what `file` of `group` holds now, on disk when this returns. False when there is a note
    /// already: another omr is at this group, or could not put its limit back, and what the file holds
    /// now is not what must stand there in the end.
    pub fn note(&self, group: &Group, file: &str, value: Limit) -> Result<bool> {
        let entry = Entry {
            boot: self.boot.clone(),
            pid: std::process::id(),
            path: group.path().as_os_str().to_owned(),
            id: group.id(),
            file: file.to_owned(),
            value,
        };
        let path = self.path(group.id());
        match put(&path, &serde_json::to_vec(&entry)?, 0o644, |from, to| fs::hard_link(from, to)) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(err) => Err(err).with_context(|| format!("write {}", path.display())),
        }
    }

    /// The limit stands as it was: the note is not needed any more.
    pub fn forget(&self, id: GroupId) {
        // A note left behind restores a value that is there already: harmless.
        let _ = fs::remove_file(self.path(id));
    }

    /// Restores what processes that are gone have left behind; returns how many limits that were.
    pub fn restore(&self, kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<usize> {
        let mut restored = 0;
        for file in fs::read_dir(&self.dir).with_context(|| format!("read {}", self.dir.display()))? {
            let Ok(file) = file else { continue };
            let path = file.path();
            if let Some(writer) = writer(&path)
                && (writer == std::process::id() || !is_omr(kernel, writer))
                && fs::remove_file(&path).is_ok()
            {
                log::info!("{}: removed, {writer} did not come to the end of writing it", path.display());
            }
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(text) = fs::read(&path) else { continue };
            let entry = serde_json::from_slice::<Entry>(&text).ok();
            let Some(entry) = entry.filter(|entry| FILES.contains(&entry.file.as_str())) else {
                log::warn!("{}: not a journal entry; left alone", path.display());
                continue;
            };
            if entry.boot == self.boot {
                if entry.pid != std::process::id() && is_omr(kernel, entry.pid) {
                    continue;
                }
                match restore_one(kernel.cgroup()?, &entry, actuator) {
                    Ok(Outcome::Done) => restored += 1,
                    Ok(Outcome::Gone) => {}
                    // Keep the note: a later start may have the permission that this one lacks. And go
                    // on: one group that cannot be restored must not keep the others from it.
                    Ok(_) => {
                        log::warn!("{}: {} could not be restored", shown(&entry), entry.file);
                        continue;
                    }
                    Err(err) => {
                        log::warn!("{}: {} could not be restored: {err:#}", shown(&entry), entry.file);
                        continue;
                    }
                }
            }
            let _ = fs::remove_file(&path);
        }
        Ok(restored)
    }

    fn path(&self, id: GroupId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

/// The process whose temporary file this is.
fn writer(path: &Path) -> Option<u32> {
    let written = path.file_name()?.to_str()?.strip_suffix(".tmp")?;
    written.rsplit_once('.')?.1.parse().ok()
}

/// Whether that process is still an omr: a pid may have been given to somebody else.
fn is_omr(kernel: &Kernel, pid: u32) -> bool {
    kernel.proc.read_string(format!("{pid}/comm")).is_ok_and(|comm| comm.trim() == "omr")
}

fn restore_one(root: &Dir, entry: &Entry, actuator: &mut dyn Actuator) -> Result<Outcome> {
    match Group::open(root, Path::new(&entry.path)) {
        Ok(group) if group.id() == entry.id => {
            Ok(actuator.write(group.dir(), &entry.file, &entry.value.to_string())?)
        }
        Ok(_) => Ok(Outcome::Gone),
        Err(err) if err.is_gone() => Ok(Outcome::Gone),
        Err(err) => Err(err.into()),
    }
}

fn shown(entry: &Entry) -> String {
    crate::config::printable(&entry.path.to_string_lossy())
}
