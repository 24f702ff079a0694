//! `/proc/meminfo` (`MemAvailable` since Linux 3.14): the machine's memory.

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::text::{for_each_key, leading_u64};
use crate::{Kernel, Result};

/// Fields of `/proc/meminfo` under the kernel's names. In the file the unit is kB (1024 bytes). A
/// field is `None` when its line is missing.
///
/// Sample line: `MemTotal:        2014552 kB`. Source: fs/proc/meminfo.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Meminfo {
    pub mem_total: Option<Bytes>,
    pub mem_free: Option<Bytes>,
    pub mem_available: Option<Bytes>,
    /// Memory that has a copy in swap and is still, or again, in memory.
    pub swap_cached: Option<Bytes>,
    pub active_anon: Option<Bytes>,
    pub inactive_anon: Option<Bytes>,
    pub active_file: Option<Bytes>,
    pub inactive_file: Option<Bytes>,
    pub swap_total: Option<Bytes>,
    pub swap_free: Option<Bytes>,
    /// Waiting to be written to a file system.
    pub dirty: Option<Bytes>,
    /// Being written to a file system or to swap.
    pub writeback: Option<Bytes>,
    /// Slab memory that shrinkers can free (`SReclaimable`, since 2.6.19).
    pub slab_reclaimable: Option<Bytes>,
    /// Size of zswap's compressed pool, since 5.19. `None`: zswap is not built in.
    pub zswap: Option<Bytes>,
    /// Memory in zswap at its full size, since 5.19.
    pub zswapped: Option<Bytes>,
}

impl Meminfo {
    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let mut info = Meminfo::default();
        for_each_key(text, |key, rest| {
            let field = match key {
                b"MemTotal:" => &mut info.mem_total,
                b"MemFree:" => &mut info.mem_free,
                b"MemAvailable:" => &mut info.mem_available,
                b"SwapCached:" => &mut info.swap_cached,
                b"Active(anon):" => &mut info.active_anon,
                b"Inactive(anon):" => &mut info.inactive_anon,
                b"Active(file):" => &mut info.active_file,
                b"Inactive(file):" => &mut info.inactive_file,
                b"SwapTotal:" => &mut info.swap_total,
                b"SwapFree:" => &mut info.swap_free,
                b"Dirty:" => &mut info.dirty,
                b"Writeback:" => &mut info.writeback,
                b"SReclaimable:" => &mut info.slab_reclaimable,
                b"Zswap:" => &mut info.zswap,
                b"Zswapped:" => &mut info.zswapped,
                _ => return,
            };
            *field = leading_u64(rest).map(|kib| Bytes(kib.saturating_mul(1024)));
        });
        info
    }

    /// Reads `/proc/meminfo`.
    pub fn read(kernel: &Kernel, buffer: &mut Vec<u8>) -> Result<Self> {
        kernel.proc.read("meminfo", buffer)?;
        Ok(Meminfo::parse(buffer))
    }
}
