//! `/sys/class/block/NAME/inflight` (Linux 2.6.30): requests that a disk has not finished.

use std::path::PathBuf;

use crate::swap::{self, SwapKind};
use crate::text::parse_u64;
use crate::{Kernel, Result};

/// The disks with swap on them.
#[derive(Debug, Default)]
pub struct SwapDisks {
    files: Vec<PathBuf>,
}

impl SwapDisks {
    /// Finds the disks. A swap file does not name its disk, so with a swap file this is every disk.
    pub fn find(kernel: &Kernel) -> Result<Self> {
        let devices = swap::read(kernel)?;
        let inflight = |name: &std::ffi::OsStr| PathBuf::from("class/block").join(name).join("inflight");
        if devices.iter().any(|device| device.kind == SwapKind::File) {
            let disks = kernel.sys.sub("block").and_then(|dir| dir.names())?;
            return Ok(SwapDisks { files: disks.iter().map(|name| inflight(name)).collect() });
        }
        let disks = devices.iter().filter(|device| device.kind.is_disk());
        Ok(SwapDisks { files: disks.filter_map(|device| device.path.file_name()).map(inflight).collect() })
    }

    /// The number of read requests that the disks have not finished. `None`: the file of a disk
    /// cannot be read, for example because the disk is gone.
    ///
    /// The file has two numbers: reads and writes. Sample line: `       3        0`. Source:
    /// block/genhd.c, part_inflight_show().
    pub fn read_in_flight(&self, kernel: &Kernel, buffer: &mut Vec<u8>) -> Option<u64> {
        self.files.iter().try_fold(0u64, |sum, file| {
            kernel.sys.read(file, buffer).ok()?;
            parse_reads(buffer).map(|reads| sum.saturating_add(reads))
        })
    }
}

fn parse_reads(text: &[u8]) -> Option<u64> {
    parse_u64(text.split(u8::is_ascii_whitespace).find(|field| !field.is_empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_come_first() {
        assert_eq!(parse_reads(b"       3        7\n"), Some(3));
        for text in ["", "\n", "x 1", "-1 0"] {
            assert_eq!(parse_reads(text.as_bytes()), None, "{text}");
        }
    }
}
