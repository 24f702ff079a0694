//! `/proc/PID/pagemap` (Linux 2.6.25; ioctl `PAGEMAP_SCAN` 6.7): which pages of a process are in
//! memory, and which are in swap.
//!
//! The file has 8 bytes for each page; bit 63 is "present" and bit 62 is "swapped". Source:
//! fs/proc/task_mmu.c, do_pagemap_scan() and pagemap_read().

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;

use omr_units::{Bytes, PageSize};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::ranges::Ranges;
use crate::{Dir, Error, Result};

/// The place of a page: memory or swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// In memory, and mapped.
    Present,
    /// In swap. The page may also be in the swap cache, so in memory: the page table does not tell.
    Swapped,
}

/// `struct pm_scan_arg`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PagemapScan {
    pub(crate) size: u64,
    pub(crate) flags: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) walk_end: u64,
    pub(crate) vec: u64,
    pub(crate) vec_len: u64,
    pub(crate) max_pages: u64,
    pub(crate) category_inverted: u64,
    pub(crate) category_mask: u64,
    pub(crate) category_anyof_mask: u64,
    pub(crate) return_mask: u64,
}

/// `struct page_region`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

pub(crate) type ScanIoctl<'a> = Updater<'a, { opcode::read_write::<PagemapScan>(b'f', 16) }, PagemapScan>;

/// `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`, include/uapi/linux/fs.h.
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
/// Upper bound on the regions that one `PAGEMAP_SCAN` returns: 12 KiB.
const REGIONS: usize = 512;
/// Bits of an entry, Documentation/admin-guide/mm/pagemap.rst.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// No other process has the page mapped (since 4.2).
const EXCLUSIVE: u64 = 1 << 56;
/// The page frame of a page that is present; 0 without `CAP_SYS_ADMIN`.
const FRAME: u64 = (1 << 55) - 1;
/// Ranges with a gap of at most this size are read together.
pub const NEAR: Bytes = Bytes::mib(1);
/// Bytes of one read where the kernel has no `PAGEMAP_SCAN`: entries for 32 MiB of 4 KiB pages.
const AT_ONCE: usize = 64 << 10;

/// The open `pagemap` of one process. It stays the file of this process when another process gets
/// its pid.
#[derive(Debug)]
pub struct Pagemap<'a> {
    file: OwnedFd,
    name: std::path::PathBuf,
    page: u64,
    /// True until the kernel returns that it does not have `PAGEMAP_SCAN`.
    scans: bool,
    buffer: Vec<u8>,
    is_cancelled: Check<'a>,
}

/// Says whether to go on reading; `None`: always.
#[derive(Clone, Copy)]
struct Check<'a>(Option<&'a (dyn Fn() -> bool + Sync)>);

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Check" } else { "None" })
    }
}

impl<'a> Pagemap<'a> {
    /// Opens the file in a process's directory. This takes the right to read the process by
    /// `ptrace`.
    pub fn open(process: &Dir, page: PageSize) -> Result<Self> {
        let name = process.path().join("pagemap");
        let file = rustix::fs::openat(process, "pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|err| Error::read(&name, err))?;
        Ok(Pagemap { file, name, page: page.bytes().0, scans: true, buffer: Vec::new(), is_cancelled: Check(None) })
    }

    /// The same file. A read ends with [`Error::is_cancelled`] once `check` is true, which is asked
    /// before each system call: without `PAGEMAP_SCAN`, the kernel needs 2 s for 1 TiB of addresses,
    /// whether there is memory or not.
    pub fn until(self, check: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Pagemap { is_cancelled: Check(Some(check)), ..self }
    }

    /// True if this kernel has `PAGEMAP_SCAN`, which passes over addresses without memory.
    pub fn can_scan(&mut self) -> bool {
        if self.scans && self.scan(0..self.page, &mut |_, _| {}) == Err(Errno::NOTTY) {
            self.scans = false;
        }
        self.scans
    }

    fn check(&self) -> Result<(), Errno> {
        match self.is_cancelled.0.is_some_and(|check| check()) {
            true => Err(Errno::CANCELED),
            false => Ok(()),
        }
    }

    /// The same file, read without `PAGEMAP_SCAN`, as on a kernel that does not have it.
    pub fn without_scan(self) -> Self {
        Pagemap { scans: false, ..self }
    }

    /// Calls `found` for each run of pages in `range` that are in memory or in swap, lowest first.
    /// Two runs may touch. A page that is in neither is left out: it was never used, or it belongs
    /// to a file and is not mapped now.
    pub fn for_each(&mut self, range: Range<u64>, mut found: impl FnMut(Range<u64>, Residency)) -> Result<()> {
        if self.scans {
            match self.scan(range.clone(), &mut found) {
                Err(Errno::NOTTY) => self.scans = false,
                result => return result.map_err(|err| Error::read(&self.name, err)),
            }
        }
        self.read(range, &mut found).map_err(|err| Error::read(&self.name, err))
    }

    /// The parts of these ranges that are in memory, and the parts that are in swap.
    pub fn residency(&mut self, ranges: &Ranges) -> Result<(Ranges, Ranges)> {
        let (mut present, mut swapped) = (Ranges::new(), Ranges::new());
        for span in ranges.bridged(NEAR).as_slice() {
            self.for_each(span.clone(), |range, residency| match residency {
                Residency::Present => present.push(range),
                Residency::Swapped => swapped.push(range),
            })?;
        }
        Ok((present.intersection(ranges), swapped.intersection(ranges)))
    }

    /// Calls `found` for each page in `range` that is in memory and that another process has mapped
    /// as well: with its address, and with the number of its page frame. Two processes that show
    /// the same frame share the page. `None`: the kernel hides the frame (without `CAP_SYS_ADMIN`).
    ///
    /// `PAGEMAP_SCAN` does not report this, so each entry is read.
    pub fn for_each_shared(&mut self, range: Range<u64>, mut found: impl FnMut(u64, Option<u64>)) -> Result<()> {
        self.entries(range, &mut |at, entry| {
            if entry & PRESENT != 0 && entry & EXCLUSIVE == 0 {
                found(at, Some(entry & FRAME).filter(|frame| *frame != 0));
            }
        })
        .map_err(|err| Error::read(&self.name, err))
    }

    fn scan(&self, range: Range<u64>, found: &mut dyn FnMut(Range<u64>, Residency)) -> Result<(), Errno> {
        let mut regions = [PageRegion::default(); REGIONS];
        let mut start = range.start;
        while start < range.end {
            self.check()?;
            let mut scan = PagemapScan {
                size: size_of::<PagemapScan>() as u64,
                start,
                end: range.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT | IS_SWAPPED,
                ..PagemapScan::default()
            };
            // SAFETY: the opcode is PAGEMAP_SCAN, whose argument is this struct; the kernel writes
            // to it and to no more than `vec_len` regions at `vec`, which is a live array of that
            // length.
            unsafe { ioctl(&self.file, ScanIoctl::new(&mut scan)) }?;
            // The call's result, the number of regions, does not reach this code. Regions that the
            // kernel did not fill in are empty.
            for region in regions.iter().take_while(|region| region.start < region.end) {
                let residency =
                    if region.categories & IS_PRESENT != 0 { Residency::Present } else { Residency::Swapped };
                found(region.start..region.end, residency);
            }
            // No progress: the process is gone, or the kernel cannot tell.
            if scan.walk_end <= start {
                break;
            }
            start = scan.walk_end;
            regions = [PageRegion::default(); REGIONS];
        }
        Ok(())
    }

    fn read(&mut self, range: Range<u64>, found: &mut dyn FnMut(Range<u64>, Residency)) -> Result<(), Errno> {
        let page = self.page;
        let mut run: Option<(Range<u64>, Residency)> = None;
        self.entries(range, &mut |at, entry| {
            let residency = match entry {
                _ if entry & PRESENT != 0 => Some(Residency::Present),
                _ if entry & SWAPPED != 0 => Some(Residency::Swapped),
                _ => None,
            };
            let end = at.saturating_add(page);
            match (&mut run, residency) {
                (Some((range, of)), Some(residency)) if *of == residency => range.end = end,
                (last, residency) => {
                    if let Some((range, of)) = last.take() {
                        found(range, of);
                    }
                    *last = residency.map(|residency| (at..end, residency));
                }
            }
        })?;
        if let Some((range, of)) = run {
            found(range, of);
        }
        Ok(())
    }

    /// Calls `found` with the address and the entry of each page in the range, lowest first.
    fn entries(&mut self, range: Range<u64>, found: &mut dyn FnMut(u64, u64)) -> Result<(), Errno> {
        let mut at = range.start;
        while at < range.end {
            self.check()?;
            let entries = usize::try_from((range.end - at).div_ceil(self.page)).unwrap_or(usize::MAX);
            let wanted = entries.saturating_mul(8).min(AT_ONCE);
            self.buffer.resize(wanted, 0);
            let read = match rustix::io::pread(&self.file, &mut self.buffer, at / self.page * 8) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            // The process is gone, or the range is beyond the end of the file.
            if read < 8 {
                break;
            }
            for entry in self.buffer.chunks_exact(8).take(read / 8) {
                found(at, entry.try_into().map(u64::from_ne_bytes).unwrap_or(0));
                at = at.saturating_add(self.page);
            }
        }
        Ok(())
    }
}
