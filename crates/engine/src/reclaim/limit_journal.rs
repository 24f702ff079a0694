//! The journal of limits that omr has changed. An entry is written to disk before a limit is
//! changed, and read at every start, so that the limit is restored even if omr is killed.
//!
//! Each group has one file in `limits/` of the state directory, named by its inode number. The
//! directory may belong to the daemon's user, and root's commands use it as well. All that they write
//! because of it are limits of groups, which the daemon may write itself.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context, Result, bail};
use log::Level;
use omr_actuate::{Actuator, Outcome};
use omr_base::folder::Folder;
use omr_base::storage::write_new_in;
use omr_kernel::memcg::Group;
use omr_kernel::{Dir, Kernel};
use omr_units::{GroupId, Limit};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::holder::{Holder, is_omr};

/// The limits that omr may change. An entry with another file is not from omr.
const FILES: [&str; 2] = ["memory.high", "memory.swap.max"];

/// The number of attempts of a guard, and the time between two.
const GUARD_TRIES: u32 = 100;
const GUARD_PAUSE: Duration = Duration::from_millis(100);

/// A changed limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The kernel's boot id: groups and their limits do not outlive a boot.
    boot: String,
    /// The process that changed the limit. While it runs, no other process restores the limit.
    #[serde(flatten)]
    holder: Holder,
    /// The path of the group below the mount; `id` identifies the group.
    path: OsString,
    id: GroupId,
    file: String,
    /// The old value.
    value: Limit,
}

/// The directory of entries.
#[derive(Clone, Debug)]
pub struct Journal {
    dir: PathBuf,
    folder: Arc<Folder>,
    boot: String,
    holder: Holder,
    /// An entry could not be read, its limit not be restored, or the entry not be removed.
    is_left: Arc<AtomicBool>,
}

impl Journal {
    /// Opens the journal in this state directory.
    pub fn open(kernel: &Kernel, state_dir: &Path) -> Result<Self> {
        let dir = state_dir.join("limits");
        let folder = Folder::open_or_make(&dir).with_context(|| format!("create {}", dir.display()))?;
        let (folder, boot) = (Arc::new(folder), kernel.read_boot_id()?);
        Ok(Journal { dir, folder, boot, holder: Holder::this(kernel), is_left: Arc::default() })
    }

    /// Adds an entry before `file` of `group` is changed for a time. `before`: the value that was
    /// read. `None`: another omr is changing this group.
    pub fn borrow<'a>(&'a self, group: &'a Group, file: &'static str, before: Limit) -> Result<Option<Borrowed<'a>>> {
        match self.add_entry(group, file, before) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(err) => {
                // The entry may be there, if only the directory could not be written to disk.
                self.is_left.store(true, Relaxed);
                return Err(err);
            }
        }
        // The value that was read may be that of another omr, which has restored the limit since.
        if group.read_limit(file, &mut Vec::new())? != before {
            self.remove_entry(group.id());
            return Ok(None);
        }
        Ok(Some(Borrowed { journal: self, group, file, before, ours: None }))
    }

    /// Adds an entry with the value of `file` of `group`, which is on disk when this returns.
    /// Returns false if there is an entry already: another omr is changing this group, or could not
    /// restore its limit. The present value is then not the one to restore.
    fn add_entry(&self, group: &Group, file: &str, value: Limit) -> Result<bool> {
        let entry = Entry {
            boot: self.boot.clone(),
            holder: self.holder,
            path: group.path().as_os_str().to_owned(),
            id: group.id(),
            file: file.to_owned(),
            value,
        };
        let written = write_new_in(&self.folder, name(group.id()).as_ref(), &serde_json::to_vec(&entry)?);
        written.with_context(|| format!("write {}", self.path(group.id()).display()))
    }

    /// Removes the entry of a limit that is restored.
    fn remove_entry(&self, id: GroupId) {
        self.remove(name(id).as_ref());
    }

    /// Removes an entry, or notes that it is left: it would restore the same value again, and the
    /// group would count as one that another omr is changing.
    fn remove(&self, entry: &OsStr) {
        let is_gone = self.folder.remove(entry).map_or_else(|err| err.kind() == io::ErrorKind::NotFound, |()| true);
        self.is_left.fetch_or(!is_gone, Relaxed);
    }

    /// Restores limits that this process could not restore when it was done with them. Call this
    /// while it has changed none. The failure is in the log already, so one more is not a warning.
    pub fn restore_left(&self, kernel: &Kernel, actuator: &mut dyn Actuator) {
        if self.is_left.swap(false, Relaxed)
            && let Err(err) = self.restore_all(kernel, actuator, Level::Debug)
        {
            log::debug!("{err:#}");
            self.is_left.store(true, Relaxed);
        }
    }

    /// Restores limits that ended processes left changed, and returns their number.
    pub fn restore(&self, kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<usize> {
        self.restore_all(kernel, actuator, Level::Warn)
    }

    /// The same. `level`: of messages about what cannot be restored.
    fn restore_all(&self, kernel: &Kernel, actuator: &mut dyn Actuator, level: Level) -> Result<usize> {
        let mut restored = 0;
        let daemon = self.folder.owner().ok();
        for name in self.folder.names().with_context(|| format!("read {}", self.dir.display()))? {
            let path = self.dir.join(&name);
            if let Some(writer) = writer(&path)
                && (writer == std::process::id() || !is_omr(kernel, writer, daemon))
                && self.folder.remove(&name).is_ok()
            {
                log::info!("{}: removed, as process {writer} ended while writing it", path.display());
            }
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(text) = self.folder.read(&name) else {
                self.is_left.store(true, Relaxed);
                continue;
            };
            let entry = serde_json::from_slice::<Entry>(&text).ok();
            let Some(entry) = entry.filter(|entry| FILES.contains(&entry.file.as_str())) else {
                log::log!(level, "{}: not a journal entry; ignored", path.display());
                continue;
            };
            if entry.boot == self.boot {
                if entry.holder.is_other(kernel) {
                    continue;
                }
                match restore_one(kernel.cgroup()?, &entry, actuator) {
                    Ok(Outcome::Done) => restored += 1,
                    Ok(Outcome::Gone) => {}
                    // The entry stays: a later start may have the permission that this one lacks.
                    // One group that cannot be restored must not prevent the others.
                    failed => {
                        let why = failed.err().map_or_else(String::new, |err| format!(": {err:#}"));
                        let group = shown(Path::new(&entry.path));
                        log::log!(level, "{group}: {} could not be restored{why}", entry.file);
                        self.is_left.store(true, Relaxed);
                        continue;
                    }
                }
            }
            self.remove(&name);
        }
        Ok(restored)
    }

    /// Starts a helper process that restores this group's limit if this process ends without doing
    /// so: after kill -9 the group would be limited until omr starts again. See [`guard`].
    pub fn guard(&self, kernel: &Kernel, id: GroupId, actuator: &mut dyn Actuator) -> Result<Guard> {
        guard(&self.path(id), || drop(self.restore(kernel, actuator)))
    }

    fn path(&self, id: GroupId) -> PathBuf {
        self.dir.join(name(id))
    }
}

fn name(id: GroupId) -> String {
    format!("{id}.json")
}

/// A limit that omr may change until it restores it.
#[must_use]
pub struct Borrowed<'a> {
    journal: &'a Journal,
    group: &'a Group,
    file: &'static str,
    before: Limit,
    /// The value that omr has set; `None`: it has not changed the limit.
    ours: Option<Limit>,
}

impl Borrowed<'_> {
    /// Returns the old value.
    pub fn before(&self) -> Limit {
        self.before
    }

    /// Call this before the limit is set to a value.
    pub fn announce(&mut self, limit: Limit) {
        self.ours = Some(limit);
    }

    /// Restores the old value. A limit that another program has set meanwhile stays as it is.
    pub fn restore(self, kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<()> {
        let Borrowed { group, file, before, ours, .. } = &self;
        let Some(ours) = ours else { return Ok(()) };
        // A value that cannot be read is restored.
        if let Ok(now) = group.read_limit(file, &mut Vec::new())
            && now != *before
            && now != ours.in_whole_pages(kernel.page())
        {
            log::info!("{}: another program has set {file} to {now}, which stays", shown(group.path()));
            self.release();
            return Ok(());
        }
        match actuator.write(group.dir(), file, &before.to_string()) {
            Ok(Outcome::Done | Outcome::Gone) => self.release(),
            failed => {
                self.journal.is_left.store(true, Relaxed);
                failed?;
                bail!("{file} could not be restored to {before}; omr tries again later");
            }
        }
        Ok(())
    }

    /// Removes the entry and leaves the limit as it is: it is restored, or another program changed
    /// it.
    pub fn release(&self) {
        self.journal.remove_entry(self.group.id());
    }
}

impl Drop for Borrowed<'_> {
    /// Nothing is to be restored where the run ended before the limit was changed.
    fn drop(&mut self) {
        if self.ours.is_none() {
            self.release();
        }
    }
}

/// Starts a helper process that calls `restore` when this process has ended, until the file `entry`
/// is gone. If the helper is killed, too, the next start of omr restores. Call this while the
/// process has one thread.
pub fn guard(entry: &Path, restore: impl FnMut()) -> Result<Guard> {
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).context("pipe")?;
    // SAFETY: this process has one thread, so its child may do anything; it ends with _exit.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(write_end);
            restore_after(&read_end, entry, restore);
            // SAFETY: ends the process, which has nothing to clean up.
            unsafe { libc::_exit(0) };
        }
        _ => Ok(Guard(write_end)),
    }
}

/// Runs in the helper process: waits for the end of its parent, then restores.
fn restore_after(read_end: &OwnedFd, entry: &Path, mut restore: impl FnMut()) {
    // The helper must outlive the terminal's process group, and must not keep its parent's pipes
    // open. SAFETY: plain system calls on numbers; /dev/null takes the place of the three standard
    // files.
    unsafe {
        libc::setsid();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
    }
    // Nothing is ever written to the pipe, so this returns when the parent has ended.
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(read_end, &mut [0]));
    for _ in 0..GUARD_TRIES {
        if !entry.exists() {
            break;
        }
        // The parent may not have ended completely.
        restore();
        thread::sleep(GUARD_PAUSE);
    }
}

/// The pipe to the helper process of [`guard`], which ends when this is dropped.
#[derive(Debug)]
pub struct Guard(#[allow(dead_code, reason = "its purpose is to be closed")] OwnedFd);

#[cfg(test)]
impl Guard {
    /// A guard without a helper. A test program has many threads, and does not fork.
    pub fn of_nobody() -> Self {
        let (_, write_end) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        Guard(write_end)
    }
}

/// Returns the process that wrote this temporary file; `None`: it is no temporary file.
fn writer(path: &Path) -> Option<u32> {
    let written = path.file_name()?.to_str()?.strip_suffix(".tmp")?;
    written.rsplit_once('.')?.1.parse().ok()
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

fn shown(group: &Path) -> String {
    omr_base::text::printable(&group.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use omr_actuate::Live;
    use omr_testkit::{FakeRoot, Release};
    use omr_units::Bytes;

    use super::*;

    const FILE: &str = "memory.high";

    /// A machine with a group that has no limit, and a journal.
    fn machine() -> (FakeRoot, Kernel, Journal, Group) {
        let root = FakeRoot::captured(Release::V6_12)
            .proc("sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000001\n")
            .group("app.scope", &[(FILE, "max\n")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let journal = Journal::open(&kernel, &root.resolve("var/lib/omr")).expect("a journal");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("app.scope")).expect("a group");
        (root, kernel, journal, group)
    }

    /// The limit after omr has borrowed it, set it to 1 MiB and a bit, and restored it, and the number
    /// of entries that are left. `now`: what it was before omr restored it; `None`: omr did not set it.
    fn restored(now: Option<&str>) -> (String, usize) {
        let (root, kernel, journal, group) = machine();
        let mut borrowed = journal.borrow(&group, FILE, Limit::Max).expect("an entry").expect("the first");
        assert!(journal.borrow(&group, FILE, Limit::Max).expect("no error").is_none(), "one at a time");
        let path = "sys/fs/cgroup/app.scope/memory.high";
        if let Some(now) = now {
            borrowed.announce(Limit::Bytes(Bytes((1 << 20) + 5)));
            root.write(path, now);
        }
        borrowed.restore(&kernel, &mut Live).expect("restored");
        let left = fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count();
        // A kernel's file takes the new value in the place of the old one.
        let after = root.read(path);
        (if after.starts_with("max") { "max".into() } else { after.trim().into() }, left)
    }

    #[test]
    fn the_entry_of_a_group_that_is_gone_or_another_one_is_removed_without_a_write() {
        for again in [false, true] {
            let (root, kernel, journal, group) = machine();
            assert!(journal.add_entry(&group, FILE, Limit::Bytes(Bytes::mib(1))).expect("written"));
            if again {
                std::fs::rename(root.resolve("sys/fs/cgroup/app.scope"), root.resolve("sys/fs/cgroup/old"))
                    .expect("moved");
                root.write("sys/fs/cgroup/app.scope/memory.high", "max\n");
            } else {
                root.remove("sys/fs/cgroup/app.scope");
            }
            let mut none = crate::stand_in::Writes(|_: &str| unreachable!("nothing is written"));
            assert_eq!(journal.restore(&kernel, &mut none).expect("a directory"), 0);
            assert!(!journal.path(group.id()).exists() && !journal.is_left.load(Relaxed));
        }
    }

    #[test]
    fn a_file_that_an_ended_process_was_writing_is_removed_and_that_of_a_running_omr_stays() {
        let (root, kernel, journal, _group) = machine();
        let dir = root.resolve("var/lib/omr/limits");
        root.write("proc/4242/stat", "4242 (omr) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0");
        root.write("proc/4242/comm", "omr\n");
        let names =
            ["7.json.4242.tmp".to_owned(), "7.json.4243.tmp".into(), format!("7.json.{}.tmp", std::process::id())];
        names.iter().for_each(|name| fs::write(dir.join(name), "{").expect("written"));
        let mut none = crate::stand_in::Writes(|_: &str| unreachable!("nothing is written"));
        assert_eq!(journal.restore(&kernel, &mut none).expect("a directory"), 0);
        assert_eq!(names.map(|name| dir.join(name).exists()), [true, false, false]);
    }

    #[test]
    fn an_entry_stays_until_its_limit_is_restored() {
        let (_root, kernel, journal, group) = machine();
        assert!(journal.add_entry(&group, FILE, Limit::Max).expect("written"));
        for outcome in [Outcome::Denied, Outcome::Done] {
            let mut kernel_side = crate::stand_in::Writes(|data: &str| {
                assert_eq!(data, "max");
                outcome
            });
            let restored = journal.restore(&kernel, &mut kernel_side).expect("a directory");
            assert_eq!(
                (restored, journal.path(group.id()).exists()),
                match outcome {
                    Outcome::Done => (1, false),
                    _ => (0, true),
                }
            );
            assert!(journal.is_left.load(Relaxed));
        }
        // An entry that is gone already is no failure.
        let (_root, _, journal, group) = machine();
        journal.remove_entry(group.id());
        assert!(!journal.is_left.load(Relaxed));
    }

    #[test]
    fn a_limit_that_another_program_has_set_meanwhile_stays() {
        // The kernel keeps whole pages.
        assert_eq!(restored(Some("1048576\n")), ("max".into(), 0), "ours");
        assert_eq!(restored(Some("2097152\n")), ("2097152".into(), 0), "theirs");
        assert_eq!(restored(Some("max\n")), ("max".into(), 0), "it was never lowered");
        assert_eq!(restored(None), ("max".into(), 0), "nothing was tried");
    }

    /// Writes as the kernel does, once it has failed for want of descriptors.
    struct FailsOnce(bool);

    impl Actuator for FailsOnce {
        fn write(&mut self, dir: &Dir, name: &str, data: &str) -> omr_kernel::Result<Outcome> {
            if std::mem::take(&mut self.0) {
                let err = io::Error::from_raw_os_error(libc::EMFILE);
                return Err(omr_kernel::Error::Write { path: dir.path().join(name), data: data.into(), err });
            }
            Live.write(dir, name, data)
        }

        fn advise(
            &mut self,
            _: &omr_kernel::process::Process,
            _: omr_actuate::Advice,
            _: &[std::ops::Range<u64>],
        ) -> omr_kernel::Result<omr_actuate::AdviseResult> {
            unreachable!("no process gets a hint")
        }

        fn is_live(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_limit_that_could_not_be_restored_is_restored_by_the_same_process() {
        let (root, kernel, journal, group) = machine();
        let mut borrowed = journal.borrow(&group, FILE, Limit::Max).expect("an entry").expect("the first");
        let low = Limit::Bytes(Bytes(1 << 20));
        borrowed.announce(low);
        let path = "sys/fs/cgroup/app.scope/memory.high";
        root.write(path, "1048576\n");
        let mut actuator = FailsOnce(true);
        borrowed.restore(&kernel, &mut actuator).expect_err("no descriptors");
        assert_eq!(root.read(path), "1048576\n", "the control");
        journal.restore_left(&kernel, &mut actuator);
        assert!(root.read(path).starts_with("max"));
        // Nothing is left, so nothing is written.
        root.write(path, "1048576\n");
        journal.restore_left(&kernel, &mut actuator);
        assert_eq!(root.read(path), "1048576\n");
    }

    #[test]
    fn no_change_of_a_note_makes_it_panic_or_writes_to_anything_but_a_limit_of_its_group() {
        let root = FakeRoot::in_memory(Release::V6_12)
            .proc("sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000001\n")
            .group("app.scope", &[(FILE, "max\n"), ("memory.swap.max", "max\n")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let journal = Journal::open(&kernel, &root.resolve("var/lib/omr")).expect("a journal");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("app.scope")).expect("a group");
        let path = journal.path(group.id());
        let notes = [(FILE, Limit::Max), ("memory.swap.max", Limit::Bytes(Bytes::mib(64)))].map(|(file, value)| {
            assert!(journal.add_entry(&group, file, value).expect("written"));
            let note = fs::read(&path).expect("a note");
            fs::remove_file(&path).expect("removed");
            note
        });
        let restored = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&notes, |note| {
            fs::write(&path, note).expect("written");
            let mut transcript = omr_actuate::Transcript::new(omr_actuate::DryRun);
            restored.set(restored.get() + journal.restore(&kernel, &mut transcript).expect("a directory"));
            for (file, text) in transcript.lines() {
                let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
                assert!(FILES.contains(&name) && file.parent() == Some(group.dir().path()), "{}", file.display());
                assert!(text.parse::<Limit>().is_ok(), "{text}");
            }
        });
        assert!(restored.get() >= 2, "the control");
    }
}
