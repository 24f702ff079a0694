//! The multi-generational LRU: whether it is on, and whether its generations can be looked at.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::mounts;
use crate::process::parse_mask;
use crate::{Kernel, Result};

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
    match rustix::fs::openat(&kernel.sys, "kernel/debug/lru_gen", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
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
