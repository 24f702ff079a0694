//! The journal of limits that omr has changed: written to disk before a limit is touched, read back
//! at every start, so that a limit is restored whatever happened to the program.
//!
//! One file a group in `limits/` of the state directory, named by the group's inode number.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_kernel::actuate::{Actuator, Outcome};
use omr_kernel::memcg::Group;
use omr_kernel::{Dir, Kernel};
use omr_units::{GroupId, Limit};
use serde::{Deserialize, Serialize};

/// Replaces a file so that a reader, or a crash at any moment, finds the old or the new one whole.
pub fn write_atomically(path: &Path, data: &[u8]) -> Result<()> {
    let dir = path.parent().context("a file has a directory")?;
    let mut name = path.file_name().context("a file has a name")?.to_owned();
    // The pid keeps two processes (daemon and command line) from writing one temporary file.
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = dir.join(name);
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(data)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("write {}", path.display()))
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
        let boot = kernel.proc.read_string("sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Journal { dir, boot })
    }

    /// Notes what `file` of `group` holds now, on disk when this returns.
    pub fn note(&self, group: &Group, file: &str, value: Limit) -> Result<()> {
        let entry = Entry {
            boot: self.boot.clone(),
            pid: std::process::id(),
            path: group.path().as_os_str().to_owned(),
            id: group.id(),
            file: file.to_owned(),
            value,
        };
        write_atomically(&self.path(group.id()), &serde_json::to_vec(&entry)?)
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
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(text) = fs::read(&path) else { continue };
            let Ok(entry) = serde_json::from_slice::<Entry>(&text) else {
                log::warn!("{}: not a journal entry; left alone", path.display());
                continue;
            };
            if entry.boot == self.boot {
                if entry.pid != std::process::id() && is_omr(kernel, entry.pid) {
                    continue;
                }
                match restore_one(kernel.cgroup()?, &entry, actuator)? {
                    Outcome::Done => restored += 1,
                    Outcome::Gone => {}
                    // Keep the note: a later start may have the permission that this one lacks.
                    _ => continue,
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

/// Whether that process is still an omr: a pid may have been given to somebody else.
fn is_omr(kernel: &Kernel, pid: u32) -> bool {
    kernel.proc.read_string(format!("{pid}/comm")).is_ok_and(|comm| comm.trim() == "omr")
}

fn restore_one(root: &Dir, entry: &Entry, actuator: &mut dyn Actuator) -> Result<Outcome> {
    match Group::open(root, Path::new(&entry.path)) {
        Ok(group) if group.id() == entry.id => {
            Ok(actuator.write(group.dir(), &entry.file, &entry.value.to_string())?)
        }
        _ => Ok(Outcome::Gone),
    }
}
