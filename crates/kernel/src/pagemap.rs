//! `/proc/PID/pagemap`: which pages of a process are in memory, and which in swap.

use std::ops::Range;
use std::os::fd::OwnedFd;

use omr_units::{Bytes, PageSize};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::ranges::Ranges;
use crate::{Dir, Error, Result};

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Mapped to memory.
    Present,
    /// In swap. It may be in the swap cache, so in memory, as well: the page table does not tell.
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
/// Regions in one answer, 12 KiB.
const REGIONS: usize = 512;
/// Bits of an entry, Documentation/admin-guide/mm/pagemap.rst.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Nobody else has the page mapped (since 4.2).
const EXCLUSIVE: u64 = 1 << 56;
/// Of a page that is present: its frame; 0 without `CAP_SYS_ADMIN`.
const FRAME: u64 = (1 << 55) - 1;
/// Ranges nearer to each other than this are looked at together.
pub const NEAR: Bytes = Bytes::mib(1);
/// Bytes read at once where there is no `PAGEMAP_SCAN`: entries for 32 MiB of 4 KiB pages.
const AT_ONCE: usize = 64 << 10;

/// The open file of one process. It stays this process's, whoever gets its pid next.
#[derive(Debug)]
pub struct Pagemap {
    file: OwnedFd,
    name: std::path::PathBuf,
    page: u64,
    /// `PAGEMAP_SCAN` (Linux 6.7) works; assumed until it is known not to.
    scans: bool,
    buffer: Vec<u8>,
}

impl Pagemap {
    /// Opens it in a process's directory. Needs what `ptrace` needs to read.
    pub fn open(process: &Dir, page: PageSize) -> Result<Self> {
        let name = process.path().join("pagemap");
        let file = rustix::fs::openat(process, "pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|err| Error::read(&name, err))?;
        Ok(Pagemap { file, name, page: page.bytes().0, scans: true, buffer: Vec::new() })
    }

    /// As where there is no `PAGEMAP_SCAN`.
    pub fn without_scan(self) -> Self {
        Pagemap { scans: false, ..self }
    }

    /// Calls `found` for each run of pages in `range` that are in memory or in swap, lowest first; runs
    /// may touch. Pages in neither are left out: never used, or of a file and not mapped now.
    ///
    /// Source: fs/proc/task_mmu.c, do_pagemap_scan() and pagemap_read().
    pub fn for_each(&mut self, range: Range<u64>, mut found: impl FnMut(Range<u64>, Residency)) -> Result<()> {
        if self.scans {
            match self.scan(range.clone(), &mut found) {
                Err(Errno::NOTTY) => self.scans = false,
                result => return result.map_err(|err| Error::read(&self.name, err)),
            }
        }
        self.read(range, &mut found).map_err(|err| Error::read(&self.name, err))
    }

    /// What of these ranges is in memory, and what in swap.
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

    /// Calls `found` with the address of each page in `range` that is in memory and that another process has mapped as well, and with
    /// the number of its frame, where that is told (`CAP_SYS_ADMIN`): by that it is the same page as the other's.
    ///
    /// Source: fs/proc/task_mmu.c, pagemap_read(); `PAGEMAP_SCAN` does not tell.
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
            // SAFETY: the opcode is PAGEMAP_SCAN, whose argument is this struct; the kernel writes to it
            // and to no more than `vec_len` regions at `vec`, which is a live array of that length.
            unsafe { ioctl(&self.file, ScanIoctl::new(&mut scan)) }?;
            // The number of regions is the call's result, which is not handed on here; regions that were
            // not filled in are empty.
            for region in regions.iter().take_while(|region| region.start < region.end) {
                let residency =
                    if region.categories & IS_PRESENT != 0 { Residency::Present } else { Residency::Swapped };
                found(region.start..region.end, residency);
            }
            // Not beyond `start`: the process is gone, or nothing can be told.
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

    /// The entry of each page of the range, one after the other.
    fn entries(&mut self, range: Range<u64>, found: &mut dyn FnMut(u64, u64)) -> Result<(), Errno> {
        let mut at = range.start;
        self.buffer.resize(AT_ONCE, 0);
        while at < range.end {
            let entries = usize::try_from((range.end - at).div_ceil(self.page)).unwrap_or(usize::MAX);
            let wanted = entries.saturating_mul(8).min(AT_ONCE);
            let read = match rustix::io::pread(&self.file, &mut self.buffer[..wanted], at / self.page * 8) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            // The process is gone, or that is all there is.
            if read < 8 {
                break;
            }
            for entry in self.buffer[..read].chunks_exact(8) {
                found(at, entry.try_into().map(u64::from_ne_bytes).unwrap_or(0));
                at = at.saturating_add(self.page);
            }
        }
        Ok(())
    }
}
