//! Cgroups, version 2 (files since Linux 4.5 unless said otherwise): one open directory for each
//! group, the files of the memory controller in it, and a walk over all groups.
//!
//! Source: mm/memcontrol.c, kernel/cgroup/cgroup.c.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_units::{Bytes, GroupId, Limit, Pages};
use rustix::fs::{FileType, RawDir};
use serde::{Deserialize, Serialize};

use crate::root::os;
use crate::text::{for_each_key, leading_u64, parse_u64};
use crate::{Dir, Error, Kernel, Result, is_passing};

/// The fields of a group's `memory.stat` that omr uses, under the kernel's names. Every group but
/// the root has the file since 4.5; refaults are split into anon and file since 5.9. Values are
/// bytes, or pages for counters. A field is `None` when its line is missing.
///
/// Sample lines: `anon 1052672`, `workingset_refault_anon 13`. Source: mm/memcontrol.c,
/// memory_stats[] and memcg_vm_event_stat[].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct MemoryStat {
    pub anon: Option<Bytes>,
    /// Page cache, shared memory and swap cache together.
    pub file: Option<Bytes>,
    pub shmem: Option<Bytes>,
    pub file_mapped: Option<Bytes>,
    pub file_dirty: Option<Bytes>,
    /// Under writeback, including writeback to swap (the name misleads).
    pub file_writeback: Option<Bytes>,
    /// Swapped out and still in memory (Linux 5.11).
    pub swapcached: Option<Bytes>,
    pub unevictable: Option<Bytes>,
    pub slab_reclaimable: Option<Bytes>,
    /// Faults that had to read a page from swap or a file.
    pub pgmajfault: Option<Pages>,
    pub pgscan: Option<Pages>,
    pub pgsteal: Option<Pages>,
    /// Pages that reclaim has moved to another list, because they were used, instead of freeing
    /// them (`scan_folios()` and `shrink_active_list()` of `mm/vmscan.c`).
    pub pgrefill: Option<Pages>,
    pub workingset_refault_anon: Option<Pages>,
    pub workingset_refault_file: Option<Pages>,
    /// Pages read from swap, including readahead (Linux 7.2).
    pub pswpin: Option<Pages>,
}

impl MemoryStat {
    /// Parses the text. Unknown lines are skipped.
    pub fn parse(text: &[u8]) -> Self {
        let mut stat = MemoryStat::default();
        for_each_key(text, |key, rest| match key {
            b"anon" => stat.anon = leading_u64(rest).map(Bytes),
            b"file" => stat.file = leading_u64(rest).map(Bytes),
            b"shmem" => stat.shmem = leading_u64(rest).map(Bytes),
            b"file_mapped" => stat.file_mapped = leading_u64(rest).map(Bytes),
            b"file_dirty" => stat.file_dirty = leading_u64(rest).map(Bytes),
            b"file_writeback" => stat.file_writeback = leading_u64(rest).map(Bytes),
            b"swapcached" => stat.swapcached = leading_u64(rest).map(Bytes),
            b"unevictable" => stat.unevictable = leading_u64(rest).map(Bytes),
            b"slab_reclaimable" => stat.slab_reclaimable = leading_u64(rest).map(Bytes),
            b"pgmajfault" => stat.pgmajfault = leading_u64(rest).map(Pages),
            b"pgscan" => stat.pgscan = leading_u64(rest).map(Pages),
            b"pgsteal" => stat.pgsteal = leading_u64(rest).map(Pages),
            b"pgrefill" => stat.pgrefill = leading_u64(rest).map(Pages),
            b"workingset_refault_anon" => stat.workingset_refault_anon = leading_u64(rest).map(Pages),
            b"workingset_refault_file" => stat.workingset_refault_file = leading_u64(rest).map(Pages),
            b"pswpin" => stat.pswpin = leading_u64(rest).map(Pages),
            _ => {}
        });
        stat
    }

    /// The same for a kernel that [counts few refaults](Kernel::counts_few_refaults): major faults are
    /// the most that can have come back from swap without readahead.
    fn with_major_faults(self) -> Self {
        let refaults = self.workingset_refault_anon.map(|pages| pages.max(self.pgmajfault.unwrap_or_default()));
        MemoryStat { workingset_refault_anon: refaults, ..self }
    }

    /// Memory that can be reclaimed only to swap: private anonymous and shared memory. `None`: no
    /// `anon`.
    pub fn swap_backed(&self) -> Option<Bytes> {
        Some(self.anon? + self.shmem.unwrap_or_default())
    }

    /// Page cache of files: `file` without shared memory and swap cache. `None`: no `file`.
    pub fn page_cache(&self) -> Option<Bytes> {
        Some(self.file? - self.shmem.unwrap_or_default() - self.swapcached.unwrap_or_default())
    }

    /// Refaults of this group since it was made: pages that came back after they were reclaimed.
    pub fn refaults(&self) -> Option<Pages> {
        Some(self.workingset_refault_anon? + self.workingset_refault_file?)
    }

    /// As [`MemoryStat::refaults`], and with swap-ins into other memory than the page left, which
    /// MGLRU does not count as refaults: the larger of the anonymous refaults and `pswpin`.
    pub fn refaults_with_swap_ins(&self) -> Option<Pages> {
        let anon = self.workingset_refault_anon?.max(self.pswpin.unwrap_or_default());
        Some(anon + self.workingset_refault_file?)
    }
}

/// A cgroup: its open directory and its inode number. The path is for printing.
#[derive(Debug)]
pub struct Group {
    dir: Dir,
    id: GroupId,
    /// Path below the mount, without a leading slash; empty for the root.
    path: PathBuf,
}

impl Group {
    /// Opens the group at `path` below the hierarchy's root. The empty path is the root itself.
    pub fn open(root: &Dir, path: &Path) -> Result<Self> {
        // "a/../../etc" must not lead out of the hierarchy.
        if path.components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
            return Err(Error::parse(root.path().join(path), "a group's path has no \"..\" or \".\" in it"));
        }
        let mut pieces = pieces(path).into_iter();
        let mut dir = root.sub(pieces.next().as_deref().unwrap_or_else(|| Path::new(".")))?;
        for piece in pieces {
            dir = dir.sub(piece)?;
        }
        let id = dir.id()?;
        Ok(Group { dir, id, path: path.into() })
    }

    /// The group's directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The group's directory, handed to the caller.
    pub fn into_dir(self) -> Dir {
        self.dir
    }

    /// The group's identity: the inode number of its directory.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The group's path below the mount, for printing.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if this is the root of the hierarchy.
    pub fn is_root(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Reads `memory.current`: bytes charged to the group and its descendants. The root does not
    /// have the file, nor has a group without the memory controller. Sample: `1073741824`.
    pub fn read_current(&self, buffer: &mut Vec<u8>) -> Result<Bytes> {
        read_number(&self.dir, "memory.current", buffer).map(Bytes)
    }

    /// Reads `memory.swap.current`: bytes in swap. Pages in zswap and zram count at their full
    /// size.
    pub fn read_swap_current(&self, buffer: &mut Vec<u8>) -> Result<Bytes> {
        read_number(&self.dir, "memory.swap.current", buffer).map(Bytes)
    }

    /// Reads `memory.stat`.
    pub fn read_stat(&self, kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<MemoryStat> {
        read_stat(kernel, &self.dir, buffer)
    }

    /// Reads one of `memory.min` (4.18), `memory.low`, `memory.high`, `memory.max`,
    /// `memory.swap.max`.
    pub fn read_limit(&self, file: &str, buffer: &mut Vec<u8>) -> Result<Limit> {
        self.dir.read_at_once(file, buffer)?;
        parse_limit(buffer)
            .ok_or_else(|| Error::parse(self.dir.path().join(file), "neither a number of bytes nor \"max\""))
    }

    /// Reads the protection of the group: the larger of `memory.min` and `memory.low`. A group
    /// without these files (the root, or no memory controller) has no protection.
    pub fn read_protection(&self, buffer: &mut Vec<u8>) -> Result<Limit> {
        read_protection(&self.dir, buffer)
    }

    /// Reads `populated` of `cgroup.events`: whether a process is in the group or below it. The
    /// root does not have the file. Sample line: `populated 1`. Source: kernel/cgroup/cgroup.c.
    pub fn read_populated(&self, buffer: &mut Vec<u8>) -> Result<bool> {
        self.dir.read_at_once("cgroup.events", buffer)?;
        let line = buffer.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(b"populated "));
        match line {
            Some(b"0") => Ok(false),
            Some(b"1") => Ok(true),
            _ => Err(Error::parse(self.dir.path().join("cgroup.events"), "no line \"populated 0\" or \"populated 1\"")),
        }
    }

    /// Reads `usage_usec` of `cpu.stat` (4.15): CPU time of the group and its descendants. The line
    /// exists with or without the cpu controller.
    pub fn read_cpu(&self, buffer: &mut Vec<u8>) -> Result<Duration> {
        read_cpu(&self.dir, buffer)
    }
}

/// The longest path that the kernel takes at once, in bytes, without the zero at its end.
const PATH_MAX: usize = 4095;

/// Splits the path of a group into pieces that the kernel takes. Anyone who may make groups can
/// make a path that is longer.
fn pieces(path: &Path) -> Vec<PathBuf> {
    let mut pieces: Vec<PathBuf> = Vec::new();
    for name in path {
        match pieces.last_mut() {
            Some(piece) if piece.as_os_str().len() + 1 + name.len() <= PATH_MAX => piece.push(name),
            _ => pieces.push(name.into()),
        }
    }
    pieces
}

/// See [`Group::read_cpu`]. Sample line: `usage_usec 2204520`. Source: kernel/cgroup/rstat.c.
pub fn read_cpu(dir: &Dir, buffer: &mut Vec<u8>) -> Result<Duration> {
    dir.read_at_once("cpu.stat", buffer)?;
    let line = buffer.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(b"usage_usec "));
    line.and_then(parse_u64)
        .map(Duration::from_micros)
        .ok_or_else(|| Error::parse(dir.path().join("cpu.stat"), "no line \"usage_usec NUMBER\""))
}

/// See [`Group::read_stat`].
pub fn read_stat(kernel: &Kernel, dir: &Dir, buffer: &mut Vec<u8>) -> Result<MemoryStat> {
    dir.read_at_once("memory.stat", buffer)?;
    let stat = MemoryStat::parse(buffer);
    Ok(if kernel.counts_few_refaults() { stat.with_major_faults() } else { stat })
}

/// See [`Group::read_protection`].
pub fn read_protection(dir: &Dir, buffer: &mut Vec<u8>) -> Result<Limit> {
    let mut most = Limit::Bytes(Bytes::ZERO);
    for file in ["memory.min", "memory.low"] {
        match dir.read_at_once(file, buffer) {
            Ok(()) => {
                let limit = parse_limit(buffer)
                    .ok_or_else(|| Error::parse(dir.path().join(file), "neither a number of bytes nor \"max\""))?;
                most = most.max(limit);
            }
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err),
        }
    }
    Ok(most)
}

/// Reads how much memory of a group and of those below it the kernel can reclaim: anonymous memory
/// and page cache, not locked. Page tables and other memory of the kernel are in the group's size only.
pub fn read_reclaimable(dir: &Dir, buffer: &mut Vec<u8>) -> Result<Bytes> {
    dir.read_at_once("memory.stat", buffer)?;
    let stat = MemoryStat::parse(buffer);
    match (stat.swap_backed(), stat.page_cache()) {
        (Some(anon), Some(file)) => Ok(anon + file - stat.unevictable.unwrap_or_default()),
        _ => Err(Error::parse(dir.path().join("memory.stat"), "no line \"anon\" or no line \"file\"")),
    }
}

/// Reads whether the counts of a group's `memory.stat` add up to its size, give or take
/// `tolerance`. If they do not, they are not up to date: the kernel may miss that there is something
/// to collect from the CPUs, and then does so only every 2 s (mm/memcontrol.c,
/// `mem_cgroup_flush_stats()`). Measured on 7.3: up to 97 MiB behind, for 1.5 s at most. A kernel
/// without the line `kernel` (before 5.18) counts as up to date.
pub fn stat_adds_up(dir: &Dir, current: Bytes, tolerance: Bytes, buffer: &mut Vec<u8>) -> Result<bool> {
    dir.read_at_once("memory.stat", buffer)?;
    let (mut sum, mut twice, mut has_kernel) = (Bytes::ZERO, Bytes::ZERO, false);
    for_each_key(buffer, |key, rest| {
        let bytes = Bytes(leading_u64(rest).unwrap_or_default());
        match key {
            b"anon" | b"file" | b"kernel" | b"sock" | b"hugetlb" => sum += bytes,
            // In `file`, and in `anon` as well while it is mapped.
            b"swapcached" => twice = bytes,
            _ => {}
        }
        has_kernel |= key == b"kernel";
    });
    Ok(!has_kernel || sum - twice <= current + tolerance && current <= sum + tolerance)
}

/// Reads a file that holds one number.
pub fn read_number(dir: &Dir, file: &str, buffer: &mut Vec<u8>) -> Result<u64> {
    dir.read_at_once(file, buffer)?;
    parse_u64(buffer).ok_or_else(|| Error::parse(dir.path().join(file), "not a number"))
}

fn parse_limit(text: &[u8]) -> Option<Limit> {
    match text.trim_ascii() {
        b"max" => Some(Limit::Max),
        digits => parse_u64(digits).map(|n| Limit::Bytes(Bytes(n))),
    }
}

/// A group that [`walk`] has found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Its open directory.
    pub dir: &'a Dir,
    /// Its identity.
    pub id: GroupId,
    /// The user whom it belongs to.
    pub owner: u32,
    /// That is neither root nor the user of this process. Such users make groups as they like.
    pub is_users: bool,
    /// Its name; empty for the group at which the walk began.
    pub name: &'a OsStr,
    /// The parent's token; `None` for the group at which the walk began.
    pub parent: Option<usize>,
}

/// The callbacks of [`walk`].
pub trait Visit {
    /// Called for a group before its children. Returns a token for the group's children, or `None`
    /// to leave them out.
    fn enter(&mut self, found: Found<'_>) -> Option<usize>;

    /// Called with the parent's token when groups below it cannot be read (no descriptors left, no
    /// permission, too deep): nothing is known about these groups.
    fn unknown(&mut self, parent: usize) {
        let _ = parent;
    }

    /// As [`Visit::unknown`], because of an error that passes: the groups may be there.
    fn missed(&mut self, parent: usize) {
        self.unknown(parent);
    }

    /// As [`Visit::unknown`], because a user has made too many groups.
    fn too_many(&mut self, parent: usize) {
        self.unknown(parent);
    }
}

/// Upper bound on the depth of a walk, so that a hostile tree cannot exhaust the stack. Trees in
/// use are not as deep.
const DEPTH_LIMIT: usize = 64;

/// Upper bound on the groups below one that a user was given, so that nobody makes a walk long. A
/// desktop has a hundred.
pub const MOST_OF_A_USER: usize = 1000;

/// Walks over `root` and all groups below it, parents first. A group that disappears meanwhile is
/// left out. Of the groups that a user has made below one of root's, the first [`MOST_OF_A_USER`]
/// are visited.
///
/// A directory of cgroupfs has two links, and one more for each child. So a leaf is recognized
/// without listing it, which saves a third of the system calls for a tree of services.
pub fn walk(root: &Dir, visit: &mut impl Visit) -> Result<()> {
    let stat = rustix::fs::fstat(root).map_err(|e| Error::read(root.path(), e))?;
    let mut walk = Walk { visit, own_uid: rustix::process::geteuid().as_raw() };
    let found = walk.found(root, &stat, OsStr::new(""), None);
    if let Some(token) = walk.visit.enter(found) {
        let mut left = MOST_OF_A_USER;
        walk.children(root, token, 0, found.is_users.then_some(&mut left))?;
    }
    Ok(())
}

struct Walk<'a, V> {
    visit: &'a mut V,
    own_uid: u32,
}

impl<V: Visit> Walk<'_, V> {
    fn found<'a>(&self, dir: &'a Dir, stat: &rustix::fs::Stat, name: &'a OsStr, parent: Option<usize>) -> Found<'a> {
        let owner = stat.st_uid;
        Found { dir, id: GroupId(stat.st_ino), owner, is_users: owner != 0 && owner != self.own_uid, name, parent }
    }

    /// `left`: how many groups may still be visited, below a group of a user.
    fn children(&mut self, dir: &Dir, token: usize, depth: usize, mut left: Option<&mut usize>) -> Result<()> {
        if depth >= DEPTH_LIMIT {
            self.visit.unknown(token);
            return Ok(());
        }
        for name in self.names(dir, token, left.as_deref().copied())? {
            let child = dir.sub(&*name).and_then(|child| {
                let stat = rustix::fs::fstat(&child).map_err(|e| Error::read(child.path(), e))?;
                Ok((child, stat))
            });
            let (child, stat) = match child {
                Ok(opened) => opened,
                Err(err) if err.is_gone() => continue,
                Err(err) if err.is_passing() => {
                    self.visit.missed(token);
                    continue;
                }
                Err(_) => {
                    self.visit.unknown(token);
                    continue;
                }
            };
            match &mut left {
                Some(0) => {
                    self.visit.too_many(token);
                    return Ok(());
                }
                Some(left) => **left -= 1,
                None => {}
            }
            let found = self.found(&child, &stat, &name, Some(token));
            if let Some(token) = self.visit.enter(found)
                && stat.st_nlink != 2
            {
                let mut of_user = MOST_OF_A_USER;
                let left = left.as_deref_mut().or_else(|| found.is_users.then_some(&mut of_user));
                self.children(&child, token, depth + 1, left)?;
            }
        }
        Ok(())
    }

    /// The names of the groups in a group, at most one more than `left`.
    fn names(&mut self, dir: &Dir, token: usize, left: Option<usize>) -> Result<Vec<Box<OsStr>>> {
        let mut names: Vec<Box<OsStr>> = Vec::new();
        let mut space = [MaybeUninit::uninit(); 4096];
        // The root's descriptor stays open from walk to walk, so its position is not at the start.
        rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0)).map_err(|e| Error::read(dir.path(), e))?;
        let mut entries = RawDir::new(dir, &mut space);
        while left.is_none_or(|left| names.len() <= left)
            && let Some(entry) = entries.next()
        {
            let entry = match entry {
                Ok(entry) => entry,
                // The group was removed while it was listed.
                Err(rustix::io::Errno::NOENT) => break,
                Err(err) if is_passing(&err.into()) => {
                    self.visit.missed(token);
                    break;
                }
                Err(_) => {
                    self.visit.unknown(token);
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                names.push(os(name).into());
            }
        }
        Ok(names)
    }
}
