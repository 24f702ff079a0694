//! The multi-generational LRU: whether it is on, its generations, and the commands that make and evict
//! them.
//!
//! `/sys/kernel/debug/lru_gen` (Linux 6.1) lists, for each group and node, up to four generations of
//! pages, the oldest first. What a generation's age means, and what it does not, is in `omr_policy::age`.

mod lines;

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use omr_units::{GroupId, Pages};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::actuate::{Actuator, Outcome};
use crate::memcg::Group;
use crate::mounts;
use crate::text::parse_mask;
use crate::{Error, Kernel, Result};

pub use lines::{Generation, Ids, Lists, Parser};

/// Below `/sys`.
const FILE: &str = "kernel/debug/lru_gen";

/// `/sys/kernel/mm/lru_gen/enabled` (Linux 6.1): a bit mask. Sample line: `0x0007`.
/// Source: mm/vmscan.c, enabled_show().
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Enabled(pub u16);

impl Enabled {
    /// Parses the text.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mask = parse_mask(text.trim_ascii().strip_prefix(b"0x")?)?;
        u16::try_from(mask).ok().map(Enabled)
    }

    /// Whether pages are kept in generations at all.
    pub fn is_on(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether aging walks page tables and clears accessed bits there; without, ages are coarse.
    pub fn walks_page_tables(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Reads it; `None` when the kernel was built without (`CONFIG_LRU_GEN`).
pub fn read_enabled(kernel: &Kernel) -> Result<Option<Enabled>> {
    let text = kernel.sys.read_optional("kernel/mm/lru_gen/enabled")?;
    Ok(text.and_then(|text| Enabled::parse(text.as_bytes())))
}

/// Whether `/sys/kernel/debug/lru_gen` (Linux 6.1), where the generations are, can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generations {
    /// It can.
    Open,
    /// debugfs is not mounted.
    NotMounted,
    /// debugfs is there, the file is not.
    Missing,
    /// Not by this process, or not while the kernel is locked down.
    Denied,
}

/// Opens the file for reading, and reads nothing: with thousands of groups that takes a while.
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

/// Reads the file, again and again with the same buffers.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    parser: Parser,
}

/// How much is read at once: the kernel hands out a group or a few with each call, however large this is.
const CHUNK: usize = 64 << 10;

impl Reader {
    /// Calls `visit` with the path from the hierarchy's root ("/a/b") and the lists of each group on
    /// each node, in the kernel's order: parents first, and a group that was removed but still has
    /// pages before one that was made anew under its name. A break ends the reading.
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
            // Whole lines; the rest of one comes with the next read.
            let Some(end) = memchr::memrchr(b'\n', &self.buffer) else { continue };
            let parsed = self.parser.feed(&self.buffer[..=end], &mut visit);
            self.buffer.drain(..=end);
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

    /// The lists of one group, one for each node, in `lists`; none when the group is not there any more.
    ///
    /// The file has no way to ask for one group. Where ids are inode numbers (7.x), and for the root,
    /// reading ends behind the group; elsewhere a removed group of the same name may come first, so all is read.
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

/// The path by which the file names a group, from its path below the mount. The mount must be that of
/// the hierarchy's root: see [`sees_root`].
pub fn path_of(path: &Path) -> Vec<u8> {
    let mut named = vec![b'/'];
    named.extend_from_slice(path.as_os_str().as_bytes());
    named
}

/// Whether lists of this path are those of the group: 7.x says its inode number, too.
pub fn is_group(path: &[u8], ids: Ids, lists: &Lists, wanted: &[u8], id: GroupId) -> bool {
    path == wanted && (ids == Ids::Private || lists.id == id.0)
}

/// Whether groups have the same paths here as in the file: not in a control group namespace, as
/// containers have one. The hierarchy's root has inode number 1 (fs/kernfs/dir.c); the root of a test
/// is not on cgroupfs.
pub fn sees_root(kernel: &Kernel) -> Result<bool> {
    let root = kernel.cgroup()?;
    Ok(!root.is_cgroup2() || root.id()? == GroupId(1))
}

/// Makes a new youngest generation: pages used since the last time move into the one that was the
/// youngest, all others stay. Walks the page tables of the group's processes; nothing interrupts that.
///
/// `+ ID NODE YOUNGEST 1 1`: anonymous memory as well, and no short cuts. Without the first 1, and no
/// swap to be had, cold pages would come out as the youngest (6.12, tried). On 7.x the same number is
/// a swappiness, of which any but 0 means that.
///
/// Done proves nothing: 6.x says so when somebody else was quicker, too. Look at the numbers again.
/// Partial: 7.x says that somebody was quicker. Unsupported: no such group any more, or the numbers
/// have moved on. Source: mm/vmscan.c, run_aging().
pub fn age(actuator: &mut dyn Actuator, kernel: &Kernel, lists: &Lists) -> Result<Outcome> {
    let Lists { id, node, .. } = lists;
    actuator.write(&kernel.sys, FILE, &format!("+ {id} {node} {} 1 1", lists.youngest().number))
}

/// What may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Anonymous and shared memory only: swappiness `max` (Linux 6.16).
    AnonOnly,
    /// Anonymous and shared memory while there is some in the oldest generation, and then file memory
    /// (`200`). A younger generation comes after both.
    AnonFirst,
}

/// Evicts up to so many pages of the generations up to `up_to`, which must be older than the youngest
/// two. Pages that were used since the last aging are found out and stay.
///
/// `- ID NODE UP_TO SWAPPINESS PAGES`. Pages on their way to a swap disk do not count, so nothing but
/// time bounds how many are sent there: it ends soon after a signal. It ignores `memory.min` and
/// `memory.low`, and does nothing to groups below this one.
///
/// Done proves nothing here either. Unsupported: no such group, `up_to` is too young, or no such
/// swappiness. Source: mm/vmscan.c, run_eviction().
pub fn evict(
    actuator: &mut dyn Actuator,
    kernel: &Kernel,
    lists: &Lists,
    up_to: u64,
    take: Take,
    pages: Pages,
) -> Result<Outcome> {
    let Lists { id, node, .. } = lists;
    let swappiness = match take {
        Take::AnonOnly => "max",
        Take::AnonFirst => "200",
    };
    actuator.write(&kernel.sys, FILE, &format!("- {id} {node} {up_to} {swappiness} {}", pages.0))
}
