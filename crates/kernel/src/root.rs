//! The directories below which everything is opened (`/proc`, `/sys` and the cgroup2 mount), and
//! the clocks.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use omr_units::{GroupId, PageSize};
use rustix::fs::{Mode, OFlags};

use crate::clock::{Clock, SystemClock};
use crate::{Error, Result, lru_gen};

/// `CGROUP2_SUPER_MAGIC`, include/uapi/linux/magic.h.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// The usual mount point of cgroup v2, below the root.
const CGROUP_MOUNT: &str = "sys/fs/cgroup";

/// Bytes of the first read of a group's file. A scan reads no longer file: `memory.stat` of 6.12
/// has 1.1 KiB, and 1.9 KiB if every counter had all its digits. A longer file is read again, in
/// parts.
const AT_ONCE: usize = 4096;

/// Upper bound on the size of a file, in bytes. A larger file is an error. (`lru_gen` of 10,000
/// groups on two nodes is about 6 MiB.)
const READ_LIMIT: usize = 64 << 20;

/// An open directory, with the path by which it was opened. The path is for messages.
///
/// Two `Dir`s of the same path can be different directories: a cgroup may be removed, and another
/// one made under its name. Compare [`Dir::id`].
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory by its absolute path.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::read(path, e))?;
        Ok(Dir { fd, path: path.into() })
    }

    /// Opens a directory below this one. A symbolic link as the last component is not followed.
    pub fn sub(&self, name: impl AsRef<Path>) -> Result<Self> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Dir { fd, path: self.path.join(name) }),
            Err(err) => Err(Error::read(self.path.join(name), err)),
        }
    }

    /// The path by which this directory was opened: for messages, not for opening.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The inode number of the directory.
    pub fn id(&self) -> Result<GroupId> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| Error::read(&self.path, e))?;
        Ok(GroupId(stat.st_ino))
    }

    /// True if the directory is on cgroupfs, version 2.
    #[expect(clippy::cast_sign_loss, reason = "a magic number, signed by accident of the ABI")]
    pub fn is_cgroup2(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|fs| fs.f_type as u64 == CGROUP2_MAGIC)
    }

    /// User id of the directory's owner.
    pub fn owner(&self) -> Result<u32> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| Error::read(&self.path, e))?;
        Ok(stat.st_uid)
    }

    /// True if the directory has an entry of this name.
    pub fn has(&self, name: impl AsRef<Path>) -> bool {
        rustix::fs::accessat(&self.fd, name.as_ref(), rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty()).is_ok()
    }

    /// True if this process may write the file of this name (`access(2)` with effective ids).
    pub fn may_write(&self, name: impl AsRef<Path>) -> bool {
        let flags = rustix::fs::AtFlags::EACCESS;
        rustix::fs::accessat(&self.fd, name.as_ref(), rustix::fs::Access::WRITE_OK, flags).is_ok()
    }

    /// Reads a whole file into `buffer` and replaces its contents.
    pub fn read(&self, name: impl AsRef<Path>, buffer: &mut Vec<u8>) -> Result<()> {
        let name = name.as_ref();
        self.read_into(name, buffer).map_err(|e| Error::read(self.path.join(name), e))
    }

    /// As [`Dir::read`], for files that the kernel returns in one piece. All files of cgroupfs are
    /// of that kind (one record of seq_file each). A read that leaves room in the buffer has
    /// reached the end, so the read that would only return 0 is saved: a fifth of the system calls
    /// of a scan.
    pub fn read_at_once(&self, name: impl AsRef<Path>, buffer: &mut Vec<u8>) -> Result<()> {
        let name = name.as_ref();
        let mut read = || -> io::Result<()> {
            let fd = rustix::fs::openat(&self.fd, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            buffer.clear();
            buffer.reserve(AT_ONCE);
            match rustix::io::read(&fd, rustix::buffer::spare_capacity(buffer)) {
                Ok(_) if buffer.len() < buffer.capacity() => Ok(()),
                // The file is longer, or a signal came: read it again from the start.
                Ok(_) | Err(rustix::io::Errno::INTR) => self.read_into(name, buffer),
                Err(err) => Err(err.into()),
            }
        };
        read().map_err(|e| Error::read(self.path.join(name), e))
    }

    /// As [`Dir::read`], as text. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub fn read_string(&self, name: impl AsRef<Path>) -> Result<String> {
        let mut buffer = Vec::new();
        self.read(name, &mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }

    /// Reads a file that this kernel may not have. `None`: the file does not exist.
    pub fn read_optional(&self, name: impl AsRef<Path>) -> Result<Option<String>> {
        match self.read_string(name) {
            Ok(text) => Ok(Some(text)),
            Err(err) if err.is_gone() => Ok(None),
            Err(err) => Err(err),
        }
    }

    fn read_into(&self, name: &Path, buffer: &mut Vec<u8>) -> io::Result<()> {
        let fd = rustix::fs::openat(&self.fd, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        read_all(fd.as_fd(), buffer)
    }

    /// The names of the directory's entries, in no order.
    pub fn names(&self) -> Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(&self.fd).map_err(|err| Error::read(&self.path, err))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|err| Error::read(&self.path, err))?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => names.push(os(name).into()),
            }
        }
        Ok(names)
    }

    /// The text of a symbolic link, which need not lead anywhere.
    pub fn link(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let name = name.as_ref();
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(PathBuf::from(os(target.as_bytes()))),
            Err(err) => Err(Error::read(self.path.join(name), err)),
        }
    }

    /// The value of an extended attribute of this directory. `None`: not set, or not supported. A
    /// value of more than 64 bytes is returned as an empty one; no attribute that omr knows is that
    /// long.
    pub fn xattr(&self, name: &str) -> Option<Vec<u8>> {
        let mut value = [0u8; 64];
        match rustix::fs::fgetxattr(&self.fd, name, &mut value) {
            Ok(length) => Some(value.get(..length)?.to_vec()),
            Err(rustix::io::Errno::RANGE) => Some(Vec::new()),
            Err(_) => None,
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads to the end of the file. A short read does not mean the end (seq_file stops at the end of a
/// line), so only a read of 0 bytes ends the loop.
pub(crate) fn read_all(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    loop {
        if buffer.capacity() - buffer.len() < 1024 {
            buffer.reserve(buffer.len().max(4096));
        }
        match rustix::io::read(fd, rustix::buffer::spare_capacity(buffer)) {
            Ok(0) => return Ok(()),
            Ok(_) if buffer.len() > READ_LIMIT => return Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

/// Parses the first two numbers of a kernel's release.
pub fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Releases whose MGLRU counts few refaults.
const FIRST_MGLRU: std::ops::Range<(u32, u32)> = (6, 1)..(6, 5);

/// The kernel's file systems, opened once (`/proc`, `/sys` and cgroup2), and its clocks.
#[derive(Debug)]
pub struct Kernel {
    /// `/proc`.
    pub proc: Dir,
    /// `/sys`.
    pub sys: Dir,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    cgroup: Result<Dir, &'static str>,
    cgroup_path: PathBuf,
    page: PageSize,
    /// Linux 6.1 to 6.4, the first releases of MGLRU.
    is_of_first_mglru: bool,
}

impl Kernel {
    /// Opens `/proc`, `/sys` and `/sys/fs/cgroup` below `root`. `root` is `/` except in tests.
    ///
    /// A machine without cgroup v2 is no error here, because the other interfaces still work:
    /// [`Kernel::cgroup`] fails instead.
    pub fn open(root: &Path) -> Result<Self> {
        let proc = Dir::open(&root.join("proc"))?;
        let sys = Dir::open(&root.join("sys"))?;
        let cgroup_path = root.join(CGROUP_MOUNT);
        let cgroup = match sys.sub("fs/cgroup") {
            Ok(dir) if root == Path::new("/") && !dir.is_cgroup2() => match dir.has("memory") || dir.has("unified") {
                true => Err(
                    "this machine runs cgroup v1; start it with systemd.unified_cgroup_hierarchy=1 on the kernel command line",
                ),
                false => Err("nothing is mounted there; mount -t cgroup2 none /sys/fs/cgroup"),
            },
            Ok(dir) => Ok(dir),
            Err(_) => Err("there is no such directory: this kernel has no control groups"),
        };
        let page = u32::try_from(rustix::param::page_size())
            .ok()
            .and_then(PageSize::new)
            .ok_or_else(|| Error::parse("sysconf(_SC_PAGESIZE)", "not a power of two"))?;
        let kernel =
            Kernel { proc, sys, clock: Arc::new(SystemClock), cgroup, cgroup_path, page, is_of_first_mglru: false };
        let is_of_first_mglru = kernel.read_version().is_some_and(|version| FIRST_MGLRU.contains(&version));
        Ok(Kernel { is_of_first_mglru, ..kernel })
    }

    /// The same kernel with other clocks, for tests.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Kernel { clock, ..self }
    }

    /// The root of the cgroup v2 hierarchy.
    pub fn cgroup(&self) -> Result<&Dir> {
        self.cgroup.as_ref().map_err(|why| Error::NoCgroup2 { path: self.cgroup_path.clone(), why })
    }

    /// The mount point of the hierarchy: for messages, and for stripping it from a user's path.
    pub fn cgroup_path(&self) -> &Path {
        &self.cgroup_path
    }

    /// The path of a group below the mount, from the path that a user typed. The user may write the
    /// mount point in front (with or without this program's root) or leave it out. The result has
    /// no leading slash and is empty for the root. A leading `./` is stripped: it marks a number as
    /// the name of a group, where a bare number is a process.
    pub fn group_path<'a>(&self, named: &'a Path) -> &'a Path {
        let below = named
            .strip_prefix(&self.cgroup_path)
            .or_else(|_| named.strip_prefix(Path::new("/").join(CGROUP_MOUNT)))
            .unwrap_or(named);
        let below = below.strip_prefix("/").unwrap_or(below);
        below.strip_prefix("./").ok().filter(|named| !named.as_os_str().is_empty()).unwrap_or(below)
    }

    /// Reads `/proc/sys/kernel/random/boot_id` (since 2.6): a UUID that is new at each boot. Sample
    /// line: `7d0c9ad0-5f2e-4f6e-9a31-6a1d0d3d1c55`. Source: drivers/char/random.c.
    pub fn read_boot_id(&self) -> Result<String> {
        Ok(self.proc.read_string("sys/kernel/random/boot_id")?.trim().to_owned())
    }

    /// Reads the first two numbers of `/proc/sys/kernel/osrelease` (since 2.6). `None`: there are
    /// none. Sample line: `6.12.117+deb12-amd64`. Source: init/version.c.
    pub fn read_version(&self) -> Option<(u32, u32)> {
        parse_version(&self.proc.read_string("sys/kernel/osrelease").ok()?)
    }

    /// True if the kernel counts a page that comes back as a refault only while it belongs to the
    /// oldest generation: after a few agings it counts none. So are Linux 6.1 to 6.4 while MGLRU is
    /// on (mm/workingset.c, `lru_gen_refault`; upstream 3af0191a594d; tried on 6.1).
    pub fn counts_few_refaults(&self) -> bool {
        self.is_of_first_mglru && lru_gen::read_enabled(self).ok().flatten().is_some_and(lru_gen::Enabled::is_on)
    }

    /// The size of a page on this machine.
    pub fn page(&self) -> PageSize {
        self.page
    }
}

/// The kernel's bytes of a file name as an [`OsStr`].
pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
