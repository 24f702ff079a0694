//! `/proc/PID/maps` and `/proc/PID/smaps`: what a process has mapped where.

use std::ops::Range;

use omr_units::Bytes;

use crate::text::{leading_u64, parse_u64};
use crate::{Dir, Error, Result};

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Nothing but swap: heap, stack, private memory.
    Anonymous,
    /// A file, or shared memory, which to the kernel is a file of tmpfs.
    File,
    /// The kernel itself: `[vdso]`, `[vvar]`, `[vsyscall]`.
    Kernel,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub range: Range<u64>,
    /// What is behind it.
    pub backing: Backing,
    /// What of it was used since the kernel last looked (`Referenced`); `None`: not told, as in `maps`.
    pub referenced: Option<Bytes>,
}

/// Calls `found` for each mapping, lowest first. Lines that are not understood are passed over.
///
/// Sample lines: `55d0c4a3e000-55d0c4a5f000 rw-p 00000000 00:00 0                  [heap]`, and in smaps
/// after each such line: `Referenced:          128 kB`. Source: fs/proc/task_mmu.c, show_map_vma() and
/// __show_smap(). A newline in a name is escaped, so no name can fake a line.
pub fn parse(text: &[u8], mut found: impl FnMut(Mapping)) {
    let mut last: Option<Mapping> = None;
    for line in text.split(|&c| c == b'\n') {
        if let Some(mapping) = parse_head(line) {
            last.replace(mapping).into_iter().for_each(&mut found);
        } else if let (Some(last), Some(rest)) = (&mut last, line.strip_prefix(b"Referenced:")) {
            last.referenced = leading_u64(rest).map(|kib| Bytes(kib.saturating_mul(1024)));
        }
    }
    last.into_iter().for_each(found);
}

fn parse_head(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&c| c == b' ');
    let range = fields.next()?;
    let dash = range.iter().position(|&c| c == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    // Permissions, offset, device.
    let inode = parse_u64(fields.nth(3)?)?;
    let name = fields.next().unwrap_or_default().trim_ascii();
    let backing = match inode {
        0 if name.starts_with(b"[v") => Backing::Kernel,
        0 => Backing::Anonymous,
        _ => Backing::File,
    };
    (start < end).then_some(Mapping { range: start..end, backing, referenced: None })
}

fn hex(digits: &[u8]) -> Option<u64> {
    crate::process::parse_mask(digits)
}

/// Reads the mappings of a process from its directory. `referenced`: from `smaps`, which walks the
/// page tables and takes some milliseconds for each 100 MiB.
pub fn read(process: &Dir, referenced: bool) -> Result<Vec<Mapping>> {
    let file = if referenced { "smaps" } else { "maps" };
    let mut buffer = Vec::new();
    process.read(file, &mut buffer)?;
    let mut all = Vec::new();
    parse(&buffer, |mapping| all.push(mapping));
    // Kernel threads and processes that exit have none; anything else has at least its program.
    if all.is_empty() && !buffer.is_empty() {
        return Err(Error::parse(process.path().join(file), "no line \"START-END ...\""));
    }
    Ok(all)
}
