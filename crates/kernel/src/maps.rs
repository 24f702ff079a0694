//! `/proc/PID/maps` (ioctl `PROCMAP_QUERY` since Linux 6.11) and `/proc/PID/smaps` (2.6.14): the
//! mappings of a process. Source: fs/proc/task_mmu.c.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use omr_units::Bytes;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::ranges::Ranges;
use crate::root::read_all;
use crate::text::{leading_u64, parse_mask, parse_u64, split_once};
use crate::{Dir, Error, Result};

/// The origin of a mapping's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// No file, only swap: heap, stack, private memory.
    Anonymous,
    /// A file. Shared memory is a file of tmpfs to the kernel.
    File,
    /// The kernel itself: `[vdso]`, `[vvar]`, `[vsyscall]`.
    Kernel,
}

/// The part of a file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// Inode number of the file.
    pub inode: u64,
    /// Offset in the file at which the mapping begins, in bytes.
    pub offset: u64,
}

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses.
    pub range: Range<u64>,
    /// The origin of the pages.
    pub backing: Backing,
    /// `MAP_SHARED`: other processes may have mapped the same pages.
    pub shared: bool,
    /// The mapped part of a file. `None`: no file.
    pub file: Option<FilePart>,
}

impl Mapping {
    /// True if an address in both mappings has the same contents in both.
    fn is_same(&self, other: &Mapping) -> bool {
        // A boundary may have moved, so the offset that belongs to an address decides.
        let place = |mapping: &Mapping| {
            let file = mapping.file?;
            Some((file.device, file.inode, file.offset.wrapping_sub(mapping.range.start)))
        };
        self.backing == other.backing && self.shared == other.shared && place(self) == place(other)
    }
}

/// Calls `found` for each mapping, lowest first. Lines in another form are skipped.
///
/// Sample line: `55d0c4a3e000-55d0c4a5f000 rw-p 00000000 00:00 0                  [heap]`. Source:
/// fs/proc/task_mmu.c, show_map_vma(). The kernel escapes a newline in a name, so no name can fake
/// a line.
pub fn parse(text: &[u8], found: impl FnMut(Mapping)) {
    text.split(|&c| c == b'\n').filter_map(parse_head).map(|(mapping, _)| mapping).for_each(found);
}

/// Parses the first line of a mapping: the mapping, and its name. `None`: the line is another one.
fn parse_head(line: &[u8]) -> Option<(Mapping, &[u8])> {
    let mut fields = line.splitn(6, |&c| c == b' ');
    let (start, end) = split_once(fields.next()?, b'-')?;
    let range = parse_mask(start)?..parse_mask(end)?;
    let shared = fields.next()?.ends_with(b"s");
    let (offset, device) = (fields.next()?, fields.next()?);
    let inode = parse_u64(fields.next()?)?;
    let name = fields.next().unwrap_or_default().trim_ascii();
    let file = if inode == 0 {
        None
    } else {
        let (major, minor) = split_once(device, b':')?;
        let number = |digits| u32::try_from(parse_mask(digits)?).ok();
        Some(FilePart { device: (number(major)?, number(minor)?), inode, offset: parse_mask(offset)? })
    };
    let mapping = Mapping { backing: backing(file, name), range, shared, file };
    (mapping.range.start < mapping.range.end).then_some((mapping, name))
}

fn backing(file: Option<FilePart>, name: &[u8]) -> Backing {
    match file {
        Some(_) => Backing::File,
        None if name.starts_with(b"[v") => Backing::Kernel,
        None => Backing::Anonymous,
    }
}

/// The reason why the kernel refuses `MADV_COLD` and `MADV_PAGEOUT` for a whole mapping
/// (mm/madvise.c, can_madv_lru_vma()), with its flag in `VmFlags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Locked by `mlock(2)`: `lo`.
    Locked,
    /// Pages of hugetlbfs: `ht`.
    HugePages,
    /// Memory of a device, not system memory: `pf`.
    Device,
}

/// One mapping with its figures from `smaps`. A field is `None` when its line is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The mapping.
    pub mapping: Mapping,
    /// Path of the file, or the kernel's name such as `[heap]`. Empty: the mapping has no name.
    pub name: OsString,
    /// `Rss`: in memory, and in the page table.
    pub resident: Option<Bytes>,
    /// `Private_Clean` and `Private_Dirty`: resident pages that no other process has mapped.
    pub private: Option<Bytes>,
    /// `Pss`: resident pages, each divided by the number of processes that have mapped it.
    pub proportional: Option<Bytes>,
    /// `Swap`: in swap.
    pub swapped: Option<Bytes>,
    /// `Referenced`: used since the kernel last cleared the accessed bits.
    pub referenced: Option<Bytes>,
    /// From `VmFlags`: the reason why the kernel refuses hints. `None`: the kernel accepts them.
    pub refusal: Option<Refusal>,
    /// From `VmFlags`, `sr` or `rr`: the mapping is under `MADV_SEQUENTIAL` or `MADV_RANDOM`. Then
    /// use through this mapping does not count for the age of its pages (include/linux/mm_inline.h,
    /// vma_has_recency(), since 6.3).
    pub no_recency: bool,
}

/// As [`parse`], for `smaps` (since 2.6.14, `VmFlags` 3.8). In the file the unit is kB (1024
/// bytes).
///
/// Sample lines, after each line that [`parse`] knows: `Rss:                 132 kB`,
/// `VmFlags: rd wr mr mw me ac sd`. Source: fs/proc/task_mmu.c, __show_smap() and
/// show_smap_vma_flags().
pub fn parse_smaps(text: &[u8], mut found: impl FnMut(Detail)) {
    let mut last: Option<Detail> = None;
    for line in text.split(|&c| c == b'\n') {
        if let Some((mapping, name)) = parse_head(line) {
            let name = OsString::from_vec(name.to_vec());
            let detail = Detail {
                mapping,
                name,
                resident: None,
                private: None,
                proportional: None,
                swapped: None,
                referenced: None,
                refusal: None,
                no_recency: false,
            };
            last.replace(detail).into_iter().for_each(&mut found);
            continue;
        }
        let Some(last) = &mut last else { continue };
        let Some((key, rest)) = split_once(line, b':') else { continue };
        let size = || leading_u64(rest).map(|kib| Bytes(kib.saturating_mul(1024)));
        match key {
            b"Rss" => last.resident = size(),
            b"Private_Clean" | b"Private_Dirty" => {
                last.private = size().map(|size| size + last.private.unwrap_or_default())
            }
            b"Pss" => last.proportional = size(),
            b"Swap" => last.swapped = size(),
            b"Referenced" => last.referenced = size(),
            b"VmFlags" => {
                let mut flags = rest.split(|&c| c == b' ');
                last.refusal = flags.clone().find_map(parse_flag);
                last.no_recency = flags.any(|flag| matches!(flag, b"sr" | b"rr"));
            }
            _ => {}
        }
    }
    last.into_iter().for_each(found);
}

fn parse_flag(flag: &[u8]) -> Option<Refusal> {
    match flag {
        b"lo" => Some(Refusal::Locked),
        b"ht" => Some(Refusal::HugePages),
        b"pf" => Some(Refusal::Device),
        _ => None,
    }
}

/// Reads `smaps` in a process's directory. The kernel walks the page tables, which takes some
/// milliseconds for each 100 MiB.
pub fn read_smaps(process: &Dir) -> Result<Vec<Detail>> {
    let mut buffer = Vec::new();
    process.read("smaps", &mut buffer)?;
    let mut all = Vec::new();
    parse_smaps(&buffer, |detail| all.push(detail));
    // The file of a kernel thread or of an exiting process is empty. Others have at least one
    // mapping.
    if all.is_empty() && !buffer.is_empty() {
        return Err(Error::parse(process.path().join("smaps"), "no line \"START-END ...\""));
    }
    Ok(all)
}

/// True if a mapping is shared memory: a file in tmpfs, with or without a name. False if the
/// process or the mapping is gone.
pub fn is_shared_memory(process: &Dir, mapping: &Mapping) -> bool {
    shared_memory(process, mapping).is_some()
}

/// The file behind a mapping of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// The length of the file.
    pub size: Bytes,
    /// The part of the file that has pages, in memory or in swap.
    pub allocated: Bytes,
}

/// Returns the file of a mapping that is shared memory: a file in tmpfs, with or without a name.
/// Follows the link in `/proc/PID/map_files` (3.3; needs `CAP_SYS_ADMIN`, since 5.9 or
/// `CAP_CHECKPOINT_RESTORE`) to the file itself. `None`: another mapping, or the process or the
/// mapping is gone, or the right is missing.
pub fn shared_memory(process: &Dir, mapping: &Mapping) -> Option<SharedMemory> {
    if !mapping.shared || mapping.backing != Backing::File {
        return None;
    }
    let name = format!("map_files/{:x}-{:x}", mapping.range.start, mapping.range.end);
    let file = rustix::fs::openat(process, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let is_tmpfs = u64::try_from(rustix::fs::fstatfs(&file).ok()?.f_type) == Ok(TMPFS_MAGIC);
    let stat = rustix::fs::fstat(&file).ok().filter(|_| is_tmpfs)?;
    Some(SharedMemory {
        size: Bytes(stat.st_size.try_into().ok()?),
        allocated: Bytes(u64::try_from(stat.st_blocks).ok()?.saturating_mul(512)),
    })
}

/// `TMPFS_MAGIC`, include/uapi/linux/magic.h.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A snapshot of a process's mappings, and the means to find later which addresses have changed.
/// The 2019 proposal of `process_madvise` called this a cookie.
///
/// Read by `PROCMAP_QUERY` (Linux 6.11), else as text. Neither shows a single moment: the process
/// runs while its mappings are read one by one. Memory that was unmapped and mapped again, at the
/// same place and of the same kind, looks unchanged. `[vsyscall]` is left out, because it is in no
/// process's address space.
///
/// The open file belongs to one address space: after an `exec` it returns `ESRCH`.
#[derive(Debug)]
pub struct Layout {
    file: OwnedFd,
    name: PathBuf,
    /// True until the kernel returns that it does not have `PROCMAP_QUERY`.
    queries: bool,
    buffer: Vec<u8>,
    mappings: Vec<Mapping>,
}

impl Layout {
    /// Reads the mappings of the process with this directory. This takes the right to read the
    /// process by `ptrace`. `ESRCH`: the process has no memory: a kernel thread, a zombie, or a
    /// process that is gone.
    pub fn read(process: &Dir) -> Result<Self> {
        Layout::read_by(process, true)
    }

    /// As [`Layout::read`], but as text, as on a kernel without `PROCMAP_QUERY`.
    pub fn read_text(process: &Dir) -> Result<Self> {
        Layout::read_by(process, false)
    }

    fn read_by(process: &Dir, queries: bool) -> Result<Self> {
        let name = process.path().join("maps");
        let file = rustix::fs::openat(process, "maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|err| Error::read(&name, err))?;
        let mut layout = Layout { file, name, queries, buffer: Vec::new(), mappings: Vec::new() };
        layout.mappings = layout.take()?;
        Ok(layout)
    }

    /// The mappings, lowest first, without overlaps.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Reads the mappings again, and returns the addresses that have changed: mapped, unmapped, or
    /// mapped to something else.
    pub fn update(&mut self) -> Result<Ranges> {
        let now = self.take()?;
        let changed = differences(&self.mappings, &now);
        self.mappings = now;
        Ok(changed)
    }

    fn take(&mut self) -> Result<Vec<Mapping>> {
        let mut all = Vec::with_capacity(self.mappings.len().max(64));
        if self.queries {
            match self.query(&mut all) {
                Err(Errno::NOTTY) => self.queries = false,
                Err(err) => return Err(Error::read(&self.name, err)),
                Ok(()) => {}
            }
        }
        if !self.queries {
            rustix::fs::seek(&self.file, SeekFrom::Start(0)).map_err(|err| Error::read(&self.name, err))?;
            read_all(self.file.as_fd(), &mut self.buffer).map_err(|err| Error::read(&self.name, err))?;
            parse(&self.buffer, |mapping| push(&mut all, mapping));
            if all.is_empty() && !self.buffer.is_empty() {
                return Err(Error::parse(&self.name, "no line \"START-END ...\""));
            }
        }
        match all.is_empty() {
            true => Err(Error::read(&self.name, Errno::SRCH)),
            false => Ok(all),
        }
    }

    fn query(&self, all: &mut Vec<Mapping>) -> Result<(), Errno> {
        let mut at = 0;
        loop {
            let found = match procmap_query(self.file.as_fd(), at, COVERING_OR_NEXT, &mut []) {
                Ok(found) if found.vma_end > at => found,
                Ok(_) | Err(Errno::NOENT) => return Ok(()),
                Err(err) => return Err(err),
            };
            at = found.vma_end;
            let file = (found.inode != 0).then_some(FilePart {
                device: (found.dev_major, found.dev_minor),
                inode: found.inode,
                offset: found.vma_offset,
            });
            // A name costs as much as the query. Only the kernel's own mappings need one. They are
            // never writable, and hardly any other anonymous mapping is read-only.
            let mut name = [0; 16];
            if file.is_none() && found.vma_flags & IS_WRITABLE == 0 {
                // The kernel's names fit. A longer name is an error that leaves the buffer empty.
                let _ = procmap_query(self.file.as_fd(), found.vma_start, 0, &mut name);
            }
            let range = found.vma_start..found.vma_end;
            let backing = backing(file, &name);
            push(all, Mapping { range, backing, shared: found.vma_flags & IS_SHARED != 0, file });
        }
    }
}

/// Adds a mapping after the others. If the mapping begins before the last one ends, because
/// boundaries moved while they were read, only the part after that end is added.
fn push(all: &mut Vec<Mapping>, mut mapping: Mapping) {
    if mapping.range.start >= VSYSCALL && mapping.backing == Backing::Kernel {
        return;
    }
    let end = all.last().map_or(0, |last| last.range.end);
    if let Some(overlap) = end.checked_sub(mapping.range.start) {
        mapping.range.start = end;
        if let Some(file) = &mut mapping.file {
            file.offset = file.offset.saturating_add(overlap);
        }
    }
    if mapping.range.start < mapping.range.end {
        all.push(mapping);
    }
}

/// Addresses from here on belong to the kernel; `[vsyscall]` of x86 is at the very end.
const VSYSCALL: u64 = 1 << 63;

/// The addresses that are mapped before or now, but not to the same contents.
fn differences(before: &[Mapping], now: &[Mapping]) -> Ranges {
    if before == now {
        return Ranges::new();
    }
    let (mut first, mut second) = (before.iter().peekable(), now.iter().peekable());
    let mut same = Ranges::new();
    while let (Some(a), Some(b)) = (first.peek(), second.peek()) {
        if a.is_same(b) {
            same.push(a.range.start.max(b.range.start)..a.range.end.min(b.range.end));
        }
        if a.range.end <= b.range.end {
            first.next();
        } else {
            second.next();
        }
    }
    let all = |mappings: &[Mapping]| mappings.iter().map(|mapping| mapping.range.clone()).collect::<Ranges>();
    all(before).union(&all(now)).without(&same)
}

/// `struct procmap_query`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`, `_VMA_WRITABLE` and `_VMA_SHARED`,
/// include/uapi/linux/fs.h.
pub(crate) const COVERING_OR_NEXT: u64 = 0x10;
const IS_WRITABLE: u64 = 0x02;
const IS_SHARED: u64 = 0x08;

type QueryIoctl<'a> = Updater<'a, { opcode::read_write::<ProcmapQuery>(b'f', 17) }, ProcmapQuery>;

/// Asks an open `/proc/PID/maps` for the mapping at an address (Linux 6.11), and for its name if
/// `name` has room. `ENOENT`: no such mapping; `ENOTTY`: no such request; `ESRCH`: the process has
/// no memory. Source: fs/proc/task_mmu.c, do_procmap_query().
pub(crate) fn procmap_query(
    maps: BorrowedFd<'_>,
    address: u64,
    flags: u64,
    name: &mut [u8],
) -> Result<ProcmapQuery, Errno> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_flags: flags,
        query_addr: address,
        ..ProcmapQuery::default()
    };
    if !name.is_empty() {
        query.vma_name_addr = name.as_mut_ptr() as u64;
        query.vma_name_size = u32::try_from(name.len()).unwrap_or(u32::MAX);
    }
    // SAFETY: the opcode is PROCMAP_QUERY, and its argument is this struct. The only address in it
    // is 0 or that of `name`, to which the kernel writes no more than `vma_name_size` bytes.
    unsafe { ioctl(maps, QueryIoctl::new(&mut query)) }?;
    Ok(query)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_opcode_is_that_of_the_header() {
        assert_eq!(size_of::<ProcmapQuery>(), 104);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(opcode::read_write::<ProcmapQuery>(b'f', 17), 0xc068_6611);
    }

    fn mappings(text: &str) -> Vec<Mapping> {
        let mut all = Vec::new();
        parse(text.as_bytes(), |mapping| push(&mut all, mapping));
        all
    }

    fn changed(before: &str, now: &str) -> Vec<Range<u64>> {
        differences(&mappings(before), &mappings(now)).as_slice().to_vec()
    }

    #[test]
    fn a_change_is_a_different_mapping_at_an_address() {
        let before = "1000-5000 rw-p 0 00:00 0\n8000-a000 r--p 3000 fe:01 7 /a\n";
        for (now, differs) in [
            (before, vec![]),
            // mprotect() of a part moves boundaries and changes nothing.
            (
                "1000-2000 rw-p 0 00:00 0\n2000-5000 r--p 0 00:00 0\n8000-9000 r--p 3000 fe:01 7\n9000-a000 r--p 4000 fe:01 7\n",
                vec![],
            ),
            ("1000-6000 rw-p 0 00:00 0\n8000-a000 r--p 3000 fe:01 7 /a\n", vec![0x5000..0x6000]),
            ("1000-2000 rw-p 0 00:00 0\n4000-5000 rw-p 0 00:00 0\n8000-a000 r--p 3000 fe:01 7\n", vec![0x2000..0x4000]),
            ("1000-5000 rw-s 0 00:00 0\n8000-a000 r--p 3000 fe:01 7\n", vec![0x1000..0x5000]),
            ("1000-5000 rw-p 0 00:00 0\n8000-a000 r--p 4000 fe:01 7\n", vec![0x8000..0xa000]),
            ("1000-5000 rw-p 0 00:00 0\n8000-a000 r--p 3000 fe:01 8\n", vec![0x8000..0xa000]),
            ("1000-5000 rw-p 0 00:00 0\n8000-a000 r--p 3000 fe:02 7\n", vec![0x8000..0xa000]),
            ("", vec![0x1000..0x5000, 0x8000..0xa000]),
        ] {
            assert_eq!(changed(before, now), differs, "{now}");
            assert_eq!(changed(now, before), differs, "the other way round: {now}");
        }
    }

    #[test]
    fn mappings_that_moved_while_they_were_read_do_not_overlap() {
        let all = mappings("1000-5000 r--p 0 fe:01 7\n4000-6000 r--p 3000 fe:01 7\n2000-3000 rw-p 0 00:00 0\n");
        let ranges: Vec<_> = all.iter().map(|mapping| mapping.range.clone()).collect();
        assert_eq!(ranges, [0x1000..0x5000, 0x5000..0x6000]);
        assert_eq!(all[1].file.map(|file| file.offset), Some(0x4000));
        let kernel = "7000-8000 r-xp 0 00:00 0 [vdso]\nffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]\n";
        assert_eq!(mappings(kernel).len(), 1, "[vsyscall] is nobody's");
    }

    proptest! {
        #[test]
        fn differences_are_the_addresses_that_differ(
            before in proptest::collection::vec((0u64..4, 1u64..4, 0u64..3), 0..8),
            now in proptest::collection::vec((0u64..4, 1u64..4, 0u64..3), 0..8),
        ) {
            // Inode 0 is anonymous memory. A page of a file is at the offset that equals its
            // address.
            let build = |steps: &[(u64, u64, u64)]| {
                let mut at = 0;
                let mut all = Vec::new();
                for &(gap, length, inode) in steps {
                    let range = at + gap..at + gap + length;
                    at = range.end;
                    let file = (inode > 0).then_some(FilePart { device: (1, 1), inode, offset: range.start });
                    all.push(Mapping { backing: backing(file, b""), range, shared: false, file });
                }
                all
            };
            let (before, now) = (build(&before), build(&now));
            let at = |all: &[Mapping], address| {
                all.iter().find(|mapping| mapping.range.contains(&address)).map(|mapping| mapping.file.map(|file| file.inode))
            };
            let differ = differences(&before, &now);
            for address in 0..60 {
                let is_told = differ.as_slice().iter().any(|range| range.contains(&address));
                prop_assert_eq!(is_told, at(&before, address) != at(&now, address), "{}", address);
            }
        }
    }
}
