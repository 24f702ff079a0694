//! The journal of limits that omr has changed: written to disk before a limit is touched, read back
//! at every start, so that a limit is restored whatever happened to the program.
//!
//! One file a group in `limits/` of the state directory, named by the group's inode number.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context, Result, bail};
use omr_actuate::{Actuator, Outcome};
use omr_base::storage::write_new;
use omr_kernel::memcg::Group;
use omr_kernel::process::ProcessStat;
use omr_kernel::{Dir, Kernel};
use omr_units::{GroupId, Limit};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

/// Limits that omr may change. An entry that names another file is not ours.
const FILES: [&str; 2] = ["memory.high", "memory.swap.max"];

/// How often, and how far apart, a guard tries.
const GUARD_TRIES: u32 = 100;
const GUARD_PAUSE: Duration = Duration::from_millis(100);

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

    /// Notes that `file` of `group`, where `before` was read, is going to be changed for a moment. `None`: another
    /// omr is at this group.
    pub fn borrow<'a>(&'a self, group: &'a Group, file: &'static str, before: Limit) -> Result<Option<Borrowed<'a>>> {
        if !self.note(group, file, before)? {
            return Ok(None);
        }
        // What was read may have been the value of another omr, which has put it back since.
        if group.read_limit(file, &mut Vec::new())? != before {
            self.forget(group.id());
            return Ok(None);
        }
        Ok(Some(Borrowed { journal: self, group, file, before }))
    }

    /// Notes what `file` of `group` holds now, on disk when this returns. False when there is a note
    /// already: another omr is at this group, or could not put its limit back, and what the file holds
    /// now is not what must stand there in the end.
    fn note(&self, group: &Group, file: &str, value: Limit) -> Result<bool> {
        let entry = Entry {
            boot: self.boot.clone(),
            pid: std::process::id(),
            path: group.path().as_os_str().to_owned(),
            id: group.id(),
            file: file.to_owned(),
            value,
        };
        write_new(&self.path(group.id()), &serde_json::to_vec(&entry)?)
    }

    /// The limit stands as it was: the note is not needed any more.
    fn forget(&self, id: GroupId) {
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

    /// Has a process of its own restore what is noted of this group when this one is gone without having
    /// done so: after kill -9 the group would be squeezed until somebody starts omr. See [`guard`].
    pub fn guard(&self, kernel: &Kernel, id: GroupId, actuator: &mut dyn Actuator) -> Result<Guard> {
        guard(&self.path(id), || drop(self.restore(kernel, actuator)))
    }

    fn path(&self, id: GroupId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

/// A limit that omr may change until it gives it back.
#[must_use]
pub struct Borrowed<'a> {
    journal: &'a Journal,
    group: &'a Group,
    file: &'static str,
    before: Limit,
}

impl Borrowed<'_> {
    /// What it was.
    pub fn before(&self) -> Limit {
        self.before
    }

    /// Puts the limit back to what it was.
    pub fn give_back(self, actuator: &mut dyn Actuator) -> Result<()> {
        let Borrowed { group, file, before, .. } = self;
        match actuator.write(group.dir(), file, &before.to_string())? {
            Outcome::Done | Outcome::Gone => self.leave(),
            _ => bail!("{file} could not be set back to {before}; the next start of omr tries again"),
        }
        Ok(())
    }

    /// Leaves the limit as it is now: it was put back, or somebody else has changed it.
    pub fn leave(&self) {
        self.journal.forget(self.group.id());
    }
}

/// Has a process of its own call `restore` when this one is gone, for as long as `note` is there. Killed as well, it
/// leaves that to the next start. To be called while this process has one thread.
pub fn guard(note: &Path, restore: impl FnMut()) -> Result<Guard> {
    let (end, held) = pipe_with(PipeFlags::CLOEXEC).context("pipe")?;
    // SAFETY: this process has one thread, so its child may do anything; it ends with _exit.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(held);
            restore_after(&end, note, restore);
            // SAFETY: ends the process; nothing is to be cleaned up.
            unsafe { libc::_exit(0) };
        }
        _ => Ok(Guard(held)),
    }
}

/// The guard's work: waits for the end of the process that it was forked from.
fn restore_after(end: &OwnedFd, note: &Path, mut restore: impl FnMut()) {
    // Not with the terminal's process group, nor holding what somebody reads until its end.
    // SAFETY: plain system calls on numbers; /dev/null takes the place of the three standard files.
    unsafe {
        libc::setsid();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
    }
    // Nothing is ever written: this is the end of it.
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(end, &mut [0]));
    for _ in 0..GUARD_TRIES {
        if !note.exists() {
            break;
        }
        // The process may still be about to end.
        restore();
        thread::sleep(GUARD_PAUSE);
    }
}

/// See [`guard`]; its process ends when this is dropped.
#[derive(Debug)]
pub struct Guard(#[allow(dead_code, reason = "closing it is what it is for")] OwnedFd);

/// The process whose temporary file this is.
fn writer(path: &Path) -> Option<u32> {
    let written = path.file_name()?.to_str()?.strip_suffix(".tmp")?;
    written.rsplit_once('.')?.1.parse().ok()
}

/// Whether that process is still an omr: a pid may have been given to somebody else, and one that has
/// ended keeps its own until its parent asks.
pub fn is_omr(kernel: &Kernel, pid: u32) -> bool {
    let Ok(process) = kernel.proc.sub(pid.to_string()) else { return false };
    !ProcessStat::read(&process).is_ok_and(|stat| stat.is_zombie())
        && process.read_string("comm").is_ok_and(|comm| comm.trim() == "omr")
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
    omr_base::text::printable(&entry.path.to_string_lossy())
}
