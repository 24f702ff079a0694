//! A directory of omr's own files, which another user than this process may own: root's commands
//! and the daemon share some of them.
//!
//! All files are opened below a descriptor of the directory, so whoever owns it cannot put another
//! one in its place meanwhile. No symbolic link in it is followed, and no pipe is waited for.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// Upper bound on the size of a file that is read into memory.
const LARGEST: u64 = 1 << 30;

/// An open directory.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens a directory. The last component of its path must not be a symbolic link.
    pub fn open(path: &Path) -> io::Result<Self> {
        Folder::open_with(path, OFlags::NOFOLLOW)
    }

    /// As [`Folder::open`], and makes the directory, and those above it, if it is missing.
    pub fn open_or_make(path: &Path) -> io::Result<Self> {
        match Folder::open(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path)?;
                Folder::open(path)
            }
            opened => opened,
        }
    }

    /// Opens a directory that only users may replace whom this process trusts.
    pub(crate) fn open_trusted(path: &Path) -> io::Result<Self> {
        Folder::open_with(path, OFlags::empty())
    }

    fn open_with(path: &Path, more: OFlags) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        Ok(Folder(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The id of the user that owns the directory.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.0)?.st_uid)
    }

    /// The names of its entries, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            match entry?.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(OsStr::from_bytes(name).to_owned()),
            }
        }
        Ok(names)
    }

    /// The size of a regular file, in bytes, and the time of its last write, since 1970.
    pub fn look(&self, name: &OsStr) -> io::Result<(u64, Duration)> {
        let found = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !FileType::from_raw_mode(found.st_mode).is_file() {
            return Err(not_regular());
        }
        let parts = (found.st_size.try_into(), found.st_mtime.try_into(), found.st_mtime_nsec.try_into());
        match parts {
            (Ok(size), Ok(seconds), Ok(nanoseconds)) => Ok((size, Duration::new(seconds, nanoseconds))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        regular(rustix::fs::openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Reads a regular file.
    pub fn read(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        read_all(self.open_file(name)?)
    }

    /// Makes a file that is not there yet, which only its owner may read. All writes go to its end.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Removes a file.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(crate) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    pub(crate) fn link(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.0, from, &self.0, to, AtFlags::empty())?)
    }

    /// Waits until the names in it are on disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }
}

/// Opens a regular file by its path, for reading. The last component must not be a symbolic link.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    regular(File::options().read(true).custom_flags(flags).open(path)?)
}

/// Opens a file by its path, for reading and for adding to its end, and makes it if it is missing. The
/// last component must not be a symbolic link.
pub fn open_for_append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).read(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Reads a regular file by its path, as [`open_file`] opens it.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_file(path)?)
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_regular()),
    }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match file.take(LARGEST + 1).read_to_end(&mut text)? {
        read if read as u64 > LARGEST => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    use rustix::fs::{CWD, mknodat};

    use super::*;
    use crate::storage::write_new_in;

    #[test]
    fn no_link_is_followed_and_no_pipe_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| -> PathBuf { dir.path().join(name) };
        let (own, other) = (path("own"), path("other"));
        fs::create_dir(&other).expect("made");
        fs::write(other.join("file"), "secret").expect("written");
        let folder = Folder::open_or_make(&own).expect("made");
        fs::write(own.join("file"), "text").expect("written");
        symlink(other.join("file"), own.join("link")).expect("a link");
        mknodat(CWD, own.join("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        fs::create_dir(own.join("directory")).expect("made");
        assert_eq!(folder.read("file".as_ref()).expect("the control"), b"text");
        assert_eq!(read_file(&own.join("file")).expect("the control"), b"text");
        let changed = fs::metadata(own.join("file")).and_then(|found| found.modified()).expect("a time");
        let (size, looked) = folder.look("file".as_ref()).expect("the control");
        assert_eq!((size, UNIX_EPOCH + looked), (4, changed));
        for name in ["link", "pipe", "directory"] {
            assert!(folder.read(name.as_ref()).is_err() && read_file(&own.join(name)).is_err(), "{name}");
            assert!(folder.look(name.as_ref()).is_err(), "{name}");
        }
        assert_eq!(fs::read(own.join("link")).expect("the control"), b"secret", "it can be followed");

        // The directory itself is replaced by a link: a descriptor is still that of the old one.
        fs::rename(&own, path("moved")).expect("moved");
        symlink(&other, &own).expect("a link");
        assert!(Folder::open(&own).is_err() && Folder::open_or_make(&own).is_err());
        assert!(write_new_in(&folder, "new".as_ref(), b"new").expect("written"));
        folder.remove("file".as_ref()).expect("removed");
        assert!(other.join("file").exists() && !other.join("new").exists());
        assert!(!path("moved/file").exists() && path("moved/new").exists());
        let mut names = folder.names().expect("names");
        names.sort();
        assert_eq!(names, ["directory", "link", "new", "pipe"]);
    }
}
