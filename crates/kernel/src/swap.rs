//! `/proc/swaps` and the files of zram and zswap: the devices that swapped-out memory goes to.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use omr_units::Bytes;
use serde::{Deserialize, Serialize, Serializer};

use crate::hibernate::DeviceNumber;
use crate::root::os;
use crate::text::{parse_u64, unescape};
use crate::{Error, Kernel, Result};

/// The kind of a swap device. It tells whether writes to the device are slow and wear it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapKind {
    /// A block device on its own: a partition, a whole disk, a logical volume.
    Partition,
    /// A file in a file system.
    File,
    /// Compressed memory (`/dev/zramN`): no disk, and it cannot hold a hibernation image.
    Zram,
}

impl SwapKind {
    /// True if the pages leave memory. They are under writeback until the device has them.
    pub fn is_disk(self) -> bool {
        self != SwapKind::Zram
    }
}

impl fmt::Display for SwapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SwapKind::Partition => "disk",
            SwapKind::File => "file",
            SwapKind::Zram => "zram",
        })
    }
}

/// One line of `/proc/swaps` (all kernels). In the file sizes are in kB (1024 bytes), and blank,
/// tab, newline and backslash of the name are `\040`, `\011`, `\012`, `\134`.
///
/// Sample line: `/dev/vda      partition 1048572  0   -2`, the columns padded with blanks and tabs.
/// Source: mm/swapfile.c, swap_show().
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapDevice {
    /// The name by which the device was switched on, without escapes.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Partition, file or zram.
    pub kind: SwapKind,
    /// Usable space, without the header page.
    pub size: Bytes,
    /// Space in use, including pages that are still in memory as well.
    pub used: Bytes,
    /// The device with the highest priority is filled first; equal ones are filled in turn.
    pub priority: i32,
    /// The name no longer exists in the file system, for example because udev removed the device
    /// node. The swap device still works.
    pub deleted: bool,
}

/// The text that `d_path()` appends to a name that no longer exists.
const DELETED: &[u8] = b" (deleted)";

impl SwapDevice {
    /// Free space.
    pub fn free(&self) -> Bytes {
        self.size - self.used
    }

    /// Parses one line. `None`: the head line, or a line in another form.
    pub fn parse(line: &[u8]) -> Option<Self> {
        // From the right, because only the name can hold arbitrary bytes.
        let mut rest = line;
        let mut last = || {
            let trimmed = trim_blanks_end(rest);
            let start = trimmed.iter().rposition(is_blank)?;
            let (before, field) = (trimmed.get(..start)?, trimmed.get(start + 1..)?);
            rest = before;
            Some(field)
        };
        let priority = std::str::from_utf8(last()?).ok()?.parse().ok()?;
        let used = kib(last()?)?;
        let size = kib(last()?)?;
        let kind = last()?;
        let mut path = unescape(trim_blanks_end(rest));
        if path.is_empty() {
            return None;
        }
        let deleted = path.ends_with(DELETED);
        if deleted {
            path.truncate(path.len() - DELETED.len());
        }
        let path = PathBuf::from(os(&path));
        let kind = match kind {
            b"partition" if path.file_name().is_some_and(is_zram) => SwapKind::Zram,
            b"partition" => SwapKind::Partition,
            b"file" => SwapKind::File,
            _ => return None,
        };
        Some(SwapDevice { path, kind, size, used, priority, deleted })
    }

    /// The number of the block device, from `/sys/class/block/NAME/dev` (2.6). `None`: a swap file
    /// (see [`SwapDevice::read_file_system`]), or a device that sysfs does not know by this name.
    pub fn read_number(&self, kernel: &Kernel) -> Option<DeviceNumber> {
        if self.kind == SwapKind::File {
            return None;
        }
        let file = PathBuf::from("class/block").join(self.path.file_name()?).join("dev");
        DeviceNumber::parse(kernel.sys.read_string(file).ok()?.as_bytes())
    }
}

impl SwapDevice {
    /// The number of the device that a swap file's file system is on, from `stat(2)`. (btrfs
    /// returns a number of its own.) `None`: the file does not exist below `root`.
    pub fn read_file_system(&self, root: &Path) -> Option<DeviceNumber> {
        let below = self.path.strip_prefix("/").ok()?;
        let stat = rustix::fs::stat(root.join(below)).ok()?;
        Some(DeviceNumber { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) })
    }
}

/// Parses the whole file. `None`: the head line is unknown. A device line in another form is
/// skipped: it is safer to see less swap than there is.
pub fn parse(text: &[u8]) -> Option<Vec<SwapDevice>> {
    let mut lines = text.split(|&c| c == b'\n');
    if !lines.next()?.starts_with(b"Filename") {
        return None;
    }
    Some(lines.filter_map(SwapDevice::parse).collect())
}

/// Reads `/proc/swaps`; the devices are in the order of activation. A kernel without `CONFIG_SWAP`
/// does not have the file: the result is empty.
pub fn read(kernel: &Kernel) -> Result<Vec<SwapDevice>> {
    let mut buffer = Vec::new();
    match kernel.proc.read("swaps", &mut buffer) {
        Ok(()) => parse(&buffer).ok_or_else(|| {
            Error::parse(kernel.proc.path().join("swaps"), "the first line is not \"Filename Type Size Used Priority\"")
        }),
        Err(err) if err.is_gone() => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// Memory that a zram device occupies: `mem_used_total`, the third number of
/// `/sys/block/zramN/mm_stat` (4.1), in bytes. `None`: no such device, or the text is in another
/// form.
///
/// Sample line: `83886080 41975808 42434560 0 42434560 0 0 0 0`. Source:
/// drivers/block/zram/zram_drv.c, mm_stat_show().
pub fn read_zram_pool(kernel: &Kernel, device: &SwapDevice) -> Option<Bytes> {
    let file = PathBuf::from("block").join(device.path.file_name()?).join("mm_stat");
    let text = kernel.sys.read_string(file).ok()?;
    parse_u64(text.split_ascii_whitespace().nth(2)?.as_bytes()).map(Bytes)
}

/// Reads `/sys/module/zswap/parameters/enabled` (3.11). `Some(true)`: zswap is on, so pages are
/// compressed in memory before they go to a swap device. `None`: this kernel has no zswap. Sample
/// line: `N`. Source: mm/zswap.c.
pub fn read_zswap(kernel: &Kernel) -> Option<bool> {
    match kernel.sys.read_string("module/zswap/parameters/enabled").ok()?.trim() {
        "Y" => Some(true),
        "N" => Some(false),
        _ => None,
    }
}

/// A file's name need not be UTF-8, but a record must be. A name with replaced bytes is better than
/// no record.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// True if a byte separates columns. Other white space (a form feed) is part of a name, and the
/// kernel does not escape it.
fn is_blank(c: &u8) -> bool {
    matches!(c, b' ' | b'\t')
}

fn trim_blanks_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|c| !is_blank(c)).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

fn is_zram(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"zram");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

fn kib(field: &[u8]) -> Option<Bytes> {
    Some(Bytes(parse_u64(field)?.saturating_mul(1024)))
}
