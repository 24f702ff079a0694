//! Files that are written completely or not at all.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::folder::Folder;
use crate::paths;

/// The mode of files that members of the group omr may read, whatever umask omr was started with.
const FOR_MEMBERS: u32 = 0o640;
const FOR_ROOT: u32 = 0o600;
const FOR_ALL: u32 = 0o644;

/// Lets the members of the group omr read a file that this process has made.
pub fn show_to_members(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(FOR_MEMBERS))
}

/// Makes a directory that is missing, and lets the members of the group omr list it.
pub fn make_dir_for_members(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o750))
}

/// Makes root's directory of files that must survive a reboot, and returns it.
pub fn make_root_state_dir(root: &Path) -> Result<PathBuf> {
    let dir = paths::root_state_dir(root);
    make_dir_for_members(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// Replaces a file. A reader finds the complete old or the complete new file, even after a crash.
pub fn write_atomically(path: &Path, data: &[u8]) -> Result<()> {
    replace(path, data, FOR_MEMBERS, Lasts::Ever)
}

/// As [`write_atomically`], for a file that only root may read.
pub fn write_privately(path: &Path, data: &[u8]) -> Result<()> {
    replace(path, data, FOR_ROOT, Lasts::Ever)
}

/// As [`write_atomically`], with this mode.
pub fn write_as(path: &Path, data: &[u8], mode: u32) -> Result<()> {
    replace(path, data, mode, Lasts::Ever)
}

/// As [`write_atomically`], for a file that means nothing after the next boot: it does not wait for
/// the disk.
pub fn write_for_this_boot(path: &Path, data: &[u8]) -> Result<()> {
    replace(path, data, FOR_MEMBERS, Lasts::ThisBoot)
}

/// As [`write_for_this_boot`], for a file that every user may read.
pub fn write_for_all(path: &Path, data: &[u8]) -> Result<()> {
    replace(path, data, FOR_ALL, Lasts::ThisBoot)
}

/// As [`write_atomically`], but never replaces a file. Returns false if the file exists already. After
/// an error there is no new file, even if only the directory could not be written to disk.
pub fn write_new(path: &Path, data: &[u8]) -> Result<bool> {
    let written = split(path).and_then(|(folder, name)| write_new_in(&folder, name, data));
    written.with_context(|| failed(path))
}

/// As [`write_new`], in a directory that is open.
pub fn write_new_in(folder: &Folder, name: &OsStr, data: &[u8]) -> io::Result<bool> {
    let mut is_placed = false;
    let placed = put(folder, name, data, FOR_MEMBERS, Lasts::Ever, |temporary| {
        folder.link(temporary, name)?;
        is_placed = true;
        Ok(())
    });
    match placed {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(err) => {
            if is_placed {
                let _ = folder.remove(name);
            }
            Err(err)
        }
    }
}

fn replace(path: &Path, data: &[u8], mode: u32, lasts: Lasts) -> Result<()> {
    let replaced = (|| {
        let (folder, name) = split(path)?;
        put(&folder, name, data, mode, lasts, |temporary| folder.rename(temporary, name))
    })();
    replaced.with_context(|| failed(path))
}

fn failed(path: &Path) -> String {
    format!("write {}", path.display())
}

/// The directory of a file, and its name.
fn split(path: &Path) -> io::Result<(Folder, &OsStr)> {
    let no_name = || io::Error::from(io::ErrorKind::InvalidInput);
    let (dir, name) = (path.parent().ok_or_else(no_name)?, path.file_name().ok_or_else(no_name)?);
    Ok((Folder::open_trusted(dir)?, name))
}

/// How long a file has a meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasts {
    ThisBoot,
    Ever,
}

/// Writes a temporary file and gives it the name with `place`.
fn put(
    folder: &Folder,
    name: &OsStr,
    data: &[u8],
    mode: u32,
    lasts: Lasts,
    place: impl FnOnce(&OsStr) -> io::Result<()>,
) -> io::Result<()> {
    // The pid keeps two processes (daemon and command line) from writing one temporary file.
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let written = (|| {
        // A file of that name was left by a process that had our pid before.
        let _ = folder.remove(&temporary);
        remove_leftovers(folder, |file| file == name.as_encoded_bytes());
        let mut file = folder.create(&temporary)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(data)?;
        if lasts == Lasts::Ever {
            file.sync_all()?;
        }
        place(&temporary)?;
        match lasts {
            Lasts::Ever => folder.sync(),
            Lasts::ThisBoot => Ok(()),
        }
    })();
    // The temporary file still exists after an error, or after a hard link.
    let _ = folder.remove(&temporary);
    written
}

/// Removes what processes that were killed while they wrote any file here have left.
pub fn remove_all_leftovers(dir: &Path) {
    if let Ok(folder) = Folder::open_trusted(dir) {
        remove_leftovers(&folder, |_| true);
    }
}

/// Temporary files are named FILE.PID.tmp.
fn remove_leftovers(folder: &Folder, is_wanted: impl Fn(&[u8]) -> bool) {
    let Ok(names) = folder.names() else { return };
    let has_ended = |pid| test_kill_process(pid) == Err(Errno::SRCH);
    for name in names {
        let mut parts = name.as_encoded_bytes().rsplitn(3, |byte| *byte == b'.');
        if parts.next() != Some(b"tmp") {
            continue;
        }
        let pid = parts.next().and_then(|pid| str::from_utf8(pid).ok()?.parse().ok()).and_then(Pid::from_raw);
        if parts.next().is_some_and(&is_wanted) && pid.is_some_and(has_ended) {
            let _ = folder.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// The directory that the test below writes to, in a process of its own.
    const DIR: &str = "OMR_TEST_STORAGE";
    const FILE: &str = "file.json";
    const SIZE: usize = 1 << 20;

    fn is_whole(text: &[u8]) -> bool {
        text.len() == SIZE && text.iter().all(|byte| *byte == text[0])
    }

    fn spawn_writer(dir: &Path) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "storage::tests::a_writer_that_is_killed_leaves_the_old_or_the_new_file"]);
        command.env(DIR, dir).stdout(Stdio::null()).spawn().expect("a process")
    }

    #[test]
    fn a_writer_that_is_killed_leaves_the_old_or_the_new_file() {
        if let Some(dir) = std::env::var_os(DIR) {
            for byte in (0..=u8::MAX).cycle() {
                write_atomically(&PathBuf::from(&dir).join(FILE), &vec![byte; SIZE]).expect("written");
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(FILE);
        write_atomically(&file, &vec![0; SIZE]).expect("written");
        for _ in 0..30 {
            let before = fs::read(&file).expect("a file");
            let mut writer = spawn_writer(dir.path());
            while fs::read(&file).expect("a file") == before {
                assert!(writer.try_wait().expect("a child").is_none(), "the writer has ended");
            }
            writer.kill().expect("killed");
            writer.wait().expect("ended");
            assert!(is_whole(&fs::read(&file).expect("a file")));
        }
        // What they left is removed, and what others are writing is not.
        for name in [format!("{FILE}.{}.tmp", std::os::unix::process::parent_id()), "other.1.tmp".into()] {
            fs::write(dir.path().join(name), "").expect("written");
        }
        write_atomically(&file, b"whole").expect("written");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 3);
    }

    #[test]
    fn members_may_read_a_file_whatever_the_umask_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        let file = dir.path().join(FILE);
        for (write, expected) in [(write_atomically as fn(&Path, &[u8]) -> Result<()>, 0o640), (write_privately, 0o600)]
        {
            let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
            write(&file, b"whole").expect("written");
            rustix::process::umask(before);
            assert_eq!(mode(&file), expected);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(FILE);
        write_atomically(&file, b"old").expect("written");
        let (folder, name) = split(&file).expect("a directory");
        let full = |_: &OsStr| Err(io::ErrorKind::StorageFull.into());
        let failed = put(&folder, name, b"new", FOR_MEMBERS, Lasts::Ever, full);
        assert_eq!(failed.expect_err("full").kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&file).expect("a file"), b"old");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left");
    }
}
