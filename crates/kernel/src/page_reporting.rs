//! Free page reporting, by `/sys/module/page_reporting` (Linux 5.14) and `/proc/kpageflags`
//! (2.6.25): a guest tells its host which blocks of memory are free (virtio-balloon, Hyper-V), and
//! the host reclaims these blocks. A reported block is zero until the guest uses it again, and
//! costs a migration next to nothing.
//!
//! Reports go out in rounds 2 s apart, and a round covers at most a sixteenth of the free blocks of
//! one order (mm/page_reporting.c): a minute may pass until the host knows all of them. The kernel
//! has no counter of reports. It marks the first page of a free block that was reported (5.7):
//! `PG_reported` is the bit of `PG_uptodate`, and `/proc/kpageflags` shows it under that name.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::buddyinfo::{self, FreeBlocks};
use crate::text::parse_u64;
use crate::zoneinfo::Zone;
use crate::{Error, Kernel, Result};

/// `KPF_UPTODATE`, include/uapi/linux/kernel-page-flags.h.
const UPTODATE: u64 = 1 << 3;
/// `KPF_BUDDY`: free, in the page allocator's lists.
const BUDDY: u64 = 1 << 10;
/// `PAGE_REPORTING_CAPACITY`, include/linux/page_reporting.h: blocks in one report.
const CAPACITY: u64 = 32;

/// Reads `/sys/module/page_reporting/parameters/page_reporting_order`: the order of the smallest
/// block that is reported. While no driver wants reports, it is -1, and before Linux 6.2 one more than
/// the allocator's largest order (11 on x86). Sample line: `9`. Source: mm/page_reporting.c.
///
/// `None`: free memory is reported to nobody.
pub fn read_order(kernel: &Kernel) -> Result<Option<u32>> {
    let text = kernel.sys.read_optional("module/page_reporting/parameters/page_reporting_order")?;
    // The kernel may print -1 as an unsigned number; that is larger than any order.
    let order = text.and_then(|text| parse_u64(text.as_bytes())).and_then(|order| u32::try_from(order).ok());
    let Some(order) = order else { return Ok(None) };
    let zones = buddyinfo::read(kernel, &mut Vec::new())?;
    let has_order = |zone: &FreeBlocks| usize::try_from(order).is_ok_and(|order| order < zone.orders.len());
    Ok(zones.iter().any(has_order).then_some(order))
}

/// True if the kernel reports this zone at all. It skips a zone that is small or nearly full
/// (`page_reporting_process_zone()`).
pub fn is_reported(zone: &Zone, order: u32) -> bool {
    zone.free.0 > zone.low.0.saturating_add(pages(order).saturating_mul(CAPACITY))
}

/// Pages in a block of this order.
fn pages(order: u32) -> u64 {
    1u64.checked_shl(order).unwrap_or(u64::MAX)
}

/// The number of free blocks of this order or a larger one that were reported. Reads
/// `/proc/kpageflags` (root only), which has 64 bits for each page frame: one number for each frame
/// where a block of this order can begin.
///
/// `None`: the kernel is built without `CONFIG_PROC_PAGE_MONITOR`, or this process may not read the
/// file.
pub fn read_reported(kernel: &Kernel, zone: &Zone, order: u32) -> Result<Option<u64>> {
    const NAME: &str = "kpageflags";
    let read = |err: Errno| Error::read(kernel.proc.path().join(NAME), err);
    let file = match rustix::fs::openat(&kernel.proc, NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => return Ok(None),
        Err(err) => return Err(read(err)),
    };
    let size = pages(order);
    let end = zone.start_pfn.saturating_add(zone.spanned.0);
    let mut pfn = zone.start_pfn.checked_next_multiple_of(size).unwrap_or(u64::MAX);
    let mut reported = 0;
    while pfn < end {
        match read_flags(file.as_fd(), pfn) {
            Ok(Some(flags)) => reported += u64::from(flags & (BUDDY | UPTODATE) == BUDDY | UPTODATE),
            // The file ends at the last page frame.
            Ok(None) => break,
            Err(Errno::PERM) => return Ok(None),
            Err(err) => return Err(read(err)),
        }
        pfn = pfn.saturating_add(size);
    }
    Ok(Some(reported))
}

fn read_flags(file: impl AsFd, pfn: u64) -> Result<Option<u64>, Errno> {
    let mut flags = [0; size_of::<u64>()];
    let Some(offset) = pfn.checked_mul(flags.len() as u64) else { return Ok(None) };
    match rustix::io::pread(&file, &mut flags, offset)? {
        length if length == flags.len() => Ok(Some(u64::from_ne_bytes(flags))),
        _ => Ok(None),
    }
}
