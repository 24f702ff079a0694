//! The multi-generational LRU: `/sys/kernel/mm/lru_gen/enabled` and `/sys/kernel/debug/lru_gen`
//! (Linux 6.1). Source: mm/vmscan.c.
//!
//! The second file lists, for each group and node, up to four generations of pages, the oldest
//! first. Writes to it are commands: make a generation (aging), and evict old generations.
//! `omr_policy::age` tells the meaning of a generation's age, and its limits.

mod lines;

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use omr_units::GroupId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::memcg::Group;
use crate::mounts;
use crate::text::{parse_mask, parse_u64};
use crate::{Error, Kernel, Result};

pub use lines::{Generation, Ids, Lists, Parser};

/// Path of the list of generations, below `/sys`.
pub const FILE: &str = "kernel/debug/lru_gen";

/// The bit mask of `/sys/kernel/mm/lru_gen/enabled`. Sample line: `0x0007`. Source: mm/vmscan.c,
/// enabled_show().
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Enabled(pub u16);

impl Enabled {
    /// Parses the text. `None`: the text is no mask of 16 bits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mask = parse_mask(text.trim_ascii().strip_prefix(b"0x")?)?;
        u16::try_from(mask).ok().map(Enabled)
    }

    /// True if MGLRU is on: the kernel keeps pages in generations.
    pub fn is_on(self) -> bool {
        self.0 & 1 != 0
    }

    /// True if aging walks page tables and clears accessed bits there. Without it, ages are coarse.
    pub fn walks_page_tables(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Reads `enabled`. `None`: the kernel is built without `CONFIG_LRU_GEN`.
pub fn read_enabled(kernel: &Kernel) -> Result<Option<Enabled>> {
    let text = kernel.sys.read_optional("kernel/mm/lru_gen/enabled")?;
    Ok(text.and_then(|text| Enabled::parse(text.as_bytes())))
}

/// Reads `/sys/kernel/mm/lru_gen/min_ttl_ms` (6.1), in milliseconds: memory that was used within
/// this time is not reclaimed, and the kernel kills a program where that leaves too little. 0: off.
/// `None`: not in this kernel.
pub fn read_min_ttl(kernel: &Kernel) -> Option<u64> {
    parse_u64(kernel.sys.read_optional("kernel/mm/lru_gen/min_ttl_ms").ok()??.as_bytes())
}

/// The result of opening `/sys/kernel/debug/lru_gen`, the list of generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generations {
    /// The file can be opened.
    Open,
    /// debugfs is not mounted.
    NotMounted,
    /// debugfs is mounted, but does not have the file.
    Missing,
    /// This process lacks the permission, or the kernel is locked down.
    Denied,
}

/// Opens the file, but does not read it: with thousands of groups reading takes a while.
pub fn read_generations(kernel: &Kernel) -> Generations {
    match rustix::fs::openat(&kernel.sys, FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Generations::Open,
        Err(Errno::ACCESS | Errno::PERM) => Generations::Denied,
        Err(_) => match mounts::read(kernel) {
            Ok(mounts) if mounts::find(&mounts, Path::new("/sys/kernel/debug"), b"debugfs").is_none() => {
                Generations::NotMounted
            }
            _ => Generations::Missing,
        },
    }
}

/// A reader of the list that keeps its buffers from one reading to the next.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    parser: Parser,
}

/// Bytes of one read. The kernel returns only a group or a few per call, however large this is.
const CHUNK: usize = 64 << 10;

impl Reader {
    /// Calls `visit` for each group on each node, with the group's path from the hierarchy's root
    /// ("/a/b") and its generations. The order is the kernel's: parents first. A group that was
    /// removed but still has pages comes before a later group of the same name. A break ends the
    /// reading.
    pub fn for_each(
        &mut self,
        kernel: &Kernel,
        mut visit: impl FnMut(&[u8], Ids, &Lists) -> ControlFlow<()>,
    ) -> Result<()> {
        let path = kernel.sys.path().join(FILE);
        let fd = rustix::fs::openat(&kernel.sys, FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|err| Error::read(&path, err))?;
        self.parser.reset();
        self.buffer.clear();
        loop {
            self.buffer.reserve(CHUNK);
            match rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut self.buffer)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(err) => return Err(Error::read(&path, err)),
            }
            // Parse whole lines only. The rest of the last line comes with the next read.
            let end = memchr::memrchr(b'\n', &self.buffer);
            let Some(lines) = end.and_then(|end| self.buffer.get(..=end)) else { continue };
            let parsed = self.parser.feed(lines, &mut visit);
            let length = lines.len();
            self.buffer.drain(..length);
            if parsed.map_err(|what| Error::parse(&path, what))?.is_break() {
                return Ok(());
            }
        }
        let parsed = self.parser.feed(&self.buffer, &mut visit);
        let ended = parsed.map_err(|what| Error::parse(&path, what))?;
        if ended.is_continue() {
            let _ = self.parser.finish(&mut visit);
        }
        Ok(())
    }

    /// Reads the generations of one group on each node into `lists`. The list is empty if the group
    /// no longer exists.
    ///
    /// The file cannot be asked for one group. Where ids are inode numbers (7.x), and for the root,
    /// reading ends after the group. Elsewhere a removed group of the same name may come first, so
    /// the whole file is read.
    pub fn read_group(&mut self, kernel: &Kernel, group: &Group, lists: &mut Vec<Lists>) -> Result<()> {
        lists.clear();
        let wanted = path_of(group.path());
        self.for_each(kernel, |path, ids, found| {
            let certain = ids == Ids::Inode || group.is_root();
            if !is_group(path, ids, found, &wanted, group.id()) {
                return if certain && !lists.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            }
            if lists.first().is_some_and(|first: &Lists| first.id != found.id) {
                lists.clear();
            }
            lists.push(*found);
            ControlFlow::Continue(())
        })
    }
}

/// The path of a group in the file, from its path below the mount. The mount must be the root of
/// the hierarchy: see [`sees_root`].
pub fn path_of(path: &Path) -> Vec<u8> {
    let mut named = vec![b'/'];
    named.extend_from_slice(path.as_os_str().as_bytes());
    named
}

/// True if an entry of the file belongs to the group `wanted` with this `id`. 6.x tells only the
/// path; 7.x tells the inode number as well.
pub fn is_group(path: &[u8], ids: Ids, lists: &Lists, wanted: &[u8], id: GroupId) -> bool {
    path == wanted && (ids == Ids::Private || lists.id == id.0)
}

/// True if groups have the same paths here as in the file. They do not in a cgroup namespace, as of
/// a container. The hierarchy's root has inode number 1 (fs/kernfs/dir.c). The root of a test is
/// not on cgroupfs.
pub fn sees_root(kernel: &Kernel) -> Result<bool> {
    let root = kernel.cgroup()?;
    Ok(!root.is_cgroup2() || root.id()? == GroupId(1))
}
