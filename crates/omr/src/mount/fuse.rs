//! The FUSE protocol: mounting, reading requests, answering them.
//!
//! docs/design/decisions/006-fuse.md says why this is no library. polyfuse-kernel gives the layout
//! of messages (include/uapi/linux/fuse.h); Documentation/filesystems/fuse.rst has the rest.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polyfuse_kernel::{
    FUSE_KERNEL_MINOR_VERSION, FUSE_KERNEL_VERSION, FUSE_MIN_READ_BUFFER, fuse_dirent, fuse_in_header, fuse_init_in,
    fuse_init_out, fuse_out_header,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The type that mountinfo and findmnt show.
pub const KIND: &str = "fuse.omr";

/// The longest write that the kernel sends in one piece. Valid writes are shorter.
const LONGEST_WRITE: u32 = 4096;

/// A mounted file system.
#[derive(Debug)]
pub struct Session {
    device: File,
    dir: PathBuf,
}

impl Session {
    /// Mounts at `dir`. All users may enter, within the modes of files.
    pub fn mount(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = File::from(rustix::fs::open("/dev/fuse", flags, Mode::empty())?);
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},allow_other,default_permissions");
        let options = CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("omr", dir, KIND, flags, options.as_c_str())?;
        Ok(Session { device, dir: dir.into() })
    }

    /// A session without a mount, whose kernel is the other end of a socket; for tests.
    #[cfg(test)]
    pub fn of(device: File, dir: &Path) -> Self {
        Session { device, dir: dir.into() }
    }

    /// Unmounts. Processes that have files open get errors.
    pub fn unmount(&self) {
        match detach(&self.dir) {
            // Another program has unmounted it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(err) => log::warn!("unmount {}: {err}", self.dir.display()),
        }
    }

    /// Reads a request, without waiting. `None`: there is none. Fails if the file system is no
    /// longer mounted.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<Option<fuse_in_header>> {
        buffer.resize(FUSE_MIN_READ_BUFFER.max(LONGEST_WRITE + 4096) as usize, 0);
        let read = match rustix::io::read(&self.device, &mut **buffer) {
            Ok(read) => read,
            // ENOENT: the request was interrupted before it could be read.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        buffer.truncate(read);
        let header = fuse_in_header::read_from_prefix(buffer).map_err(|_| io::ErrorKind::InvalidData)?.0;
        buffer.drain(..size_of::<fuse_in_header>());
        Ok(Some(header))
    }

    /// Answers the first request, which agrees on the version of the protocol. A kernel with a
    /// later version asks again.
    pub fn agree(&self, unique: u64, body: &[u8]) {
        let Some(asked) = argument::<fuse_init_in>(body) else { return self.fail(unique, Errno::PROTO) };
        let answer = fuse_init_out {
            major: FUSE_KERNEL_VERSION,
            minor: FUSE_KERNEL_MINOR_VERSION.min(asked.minor),
            max_readahead: asked.max_readahead,
            max_write: LONGEST_WRITE,
            ..fuse_init_out::default()
        };
        self.reply(unique, answer.as_bytes());
    }

    /// Answers a request. Succeeds if the caller no longer waits for the answer.
    pub fn reply(&self, unique: u64, body: &[u8]) {
        self.send(unique, 0, body);
    }

    /// Answers a request with an error.
    pub fn fail(&self, unique: u64, err: Errno) {
        self.send(unique, -err.raw_os_error(), &[]);
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) {
        let size = size_of::<fuse_out_header>() + body.len();
        let header = fuse_out_header { len: u32::try_from(size).unwrap_or(u32::MAX), error, unique };
        let parts = [io::IoSlice::new(header.as_bytes()), io::IoSlice::new(body)];
        if let Err(err) = rustix::io::writev(&self.device, &parts)
            && err != Errno::NOENT
            && err != Errno::NODEV
        {
            log::warn!("/dev/fuse: {err}");
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Removes a mount, even while files in it are open.
pub fn detach(dir: &Path) -> Result<(), Errno> {
    rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// Returns the argument behind a request's header.
pub fn argument<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Option<T> {
    T::read_from_prefix(body).ok().map(|(argument, _)| argument)
}

/// Returns the name in a request that is a name and a NUL.
pub fn name(body: &[u8]) -> &OsStr {
    OsStr::from_bytes(body.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// Appends a directory entry. Returns false if that would make the answer longer than `limit`.
pub fn push_entry(answer: &mut Vec<u8>, limit: usize, ino: u64, next: u64, kind: u32, name: &OsStr) -> bool {
    let size = (size_of::<fuse_dirent>() + name.len()).next_multiple_of(8);
    if answer.len() + size > limit {
        return false;
    }
    let end = answer.len() + size;
    let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
    answer.extend_from_slice(fuse_dirent { ino, off: next, namelen, typ: kind, name: [] }.as_bytes());
    answer.extend_from_slice(name.as_bytes());
    answer.resize(end, 0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_whole_or_not_there() {
        let mut answer = Vec::new();
        assert!(push_entry(&mut answer, 64, 7, 1, 4, OsStr::new("a.slice")));
        assert_eq!(answer.len(), 32);
        assert_eq!(&answer[24..], b"a.slice\0");
        assert!(push_entry(&mut answer, 64, 8, 2, 4, OsStr::new("12345678")));
        assert!(!push_entry(&mut answer, 64, 9, 3, 4, OsStr::new("")));
        assert_eq!(answer.len(), 64);
        let entry: fuse_dirent = argument(&answer[32..]).unwrap();
        assert_eq!((entry.ino, entry.off, entry.namelen, entry.typ), (8, 2, 8, 4));
    }

    #[test]
    fn a_name_ends_at_its_nul() {
        assert_eq!(name(b"system.slice\0"), "system.slice");
        assert_eq!(name(b""), "");
    }

    #[test]
    fn a_short_request_has_no_argument() {
        assert!(argument::<fuse_init_in>(&[0; 15]).is_none());
        assert!(argument::<fuse_init_in>(&[0; 104]).is_some());
    }

    #[test]
    fn no_request_of_the_kernel_makes_it_panic() {
        let init = fuse_init_in { major: 7, minor: 36, ..fuse_init_in::default() };
        omr_testkit::fuzz::feed(&[init.as_bytes(), b"memory.swap.reclaim\0", b"a\0b\0"], |body| {
            let _ = (argument::<fuse_init_in>(body), argument::<fuse_dirent>(body));
            assert!(!name(body).as_bytes().contains(&0));
        });
    }
}
