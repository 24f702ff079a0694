//! `/proc/swaps`: where swapped-out memory goes; and switching that off and on.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use omr_units::Bytes;
use serde::{Deserialize, Serialize, Serializer};

use crate::actuate::{Actuator, Outcome};
use crate::hibernate::DeviceNumber;
use crate::root::os;
use crate::text::{parse_u64, unescape};
use crate::{Error, Kernel, Result};

pub use crate::actuate::Switch;

/// What kind of swap it is; what matters is whether writing to it is slow and wears something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapKind {
    /// A block device on its own: a partition, a whole disk, a logical volume.
    Partition,
    /// A file in a file system.
    File,
    /// Compressed memory (`/dev/zramN`): no disk, and no place for a hibernation image.
    Zram,
}

impl SwapKind {
    /// Whether pages leave memory, and are under writeback until the device has them.
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

/// One line of `/proc/swaps` (all kernels): sizes on the wire in kB (1024 bytes), white space,
/// newline and backslash in the name as `\040`, `\011`, `\012`, `\134`.
///
/// Sample line: `/dev/vda      partition 1048572  0   -2`, the columns filled up with blanks and tabs.
/// Source: mm/swapfile.c, swap_show().
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapDevice {
    /// The name it was switched on by, without the escapes.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// The kind.
    pub kind: SwapKind,
    /// Usable space, without the header page.
    pub size: Bytes,
    /// Space in use, pages that are also still in memory included.
    pub used: Bytes,
    /// Higher is filled first; equal ones are filled in turn.
    pub priority: i32,
    /// The name is not in the file system any more (a device node that udev took away); swap goes on.
    pub deleted: bool,
}

/// What `d_path()` appends to a name that is gone.
const DELETED: &[u8] = b" (deleted)";

impl SwapDevice {
    /// Space left.
    pub fn free(&self) -> Bytes {
        self.size - self.used
    }

    /// Parses one line; `None` for the head line and for what is not in this form.
    pub fn parse(line: &[u8]) -> Option<Self> {
        // From the right, because only the name can hold anything.
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

    /// The number of its block device, from sysfs; `None` for a file, whose number is its file
    /// system's, and for a device that sysfs does not know by this name.
    pub fn read_number(&self, kernel: &Kernel) -> Option<DeviceNumber> {
        if self.kind == SwapKind::File {
            return None;
        }
        let file = PathBuf::from("class/block").join(self.path.file_name()?).join("dev");
        DeviceNumber::parse(kernel.sys.read_string(file).ok()?.as_bytes())
    }
}

impl SwapDevice {
    /// Of a file: the number of the device that its file system is on, as far as `stat(2)` tells (btrfs
    /// has numbers of its own).
    pub fn read_file_system(&self, root: &Path) -> Option<DeviceNumber> {
        let below = self.path.strip_prefix("/").ok()?;
        let stat = rustix::fs::stat(root.join(below)).ok()?;
        Some(DeviceNumber { major: rustix::fs::major(stat.st_dev), minor: rustix::fs::minor(stat.st_dev) })
    }
}

/// Parses the whole file; `None` when the head line is not the one this program knows. A line it
/// cannot read is passed over: better to know of less swap than there is.
pub fn parse(text: &[u8]) -> Option<Vec<SwapDevice>> {
    let mut lines = text.split(|&c| c == b'\n');
    if !lines.next()?.starts_with(b"Filename") {
        return None;
    }
    Some(lines.filter_map(SwapDevice::parse).collect())
}

/// Reads `/proc/swaps`, in the order of activation. A
/// kernel without `CONFIG_SWAP` has no such file: no devices.
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

/// What a zram device holds in memory: `mem_used_total` of `/sys/block/zramN/mm_stat`, the third
/// number, in bytes, since 4.1. `None`: no such device, or not understood.
///
/// Sample line: `83886080 41975808 42434560 0 42434560 0 0 0 0`. Source:
/// drivers/block/zram/zram_drv.c, mm_stat_show().
pub fn read_zram_pool(kernel: &Kernel, device: &SwapDevice) -> Option<Bytes> {
    let file = PathBuf::from("block").join(device.path.file_name()?).join("mm_stat");
    let text = kernel.sys.read_string(file).ok()?;
    parse_u64(text.split_ascii_whitespace().nth(2)?.as_bytes()).map(Bytes)
}

/// Whether zswap stands before the swap devices: `/sys/module/zswap/parameters/enabled`, since 3.11.
/// `None` when this kernel has no zswap. Sample line: `N`. Source: mm/zswap.c.
pub fn read_zswap(kernel: &Kernel) -> Option<bool> {
    match kernel.sys.read_string("module/zswap/parameters/enabled").ok()?.trim() {
        "Y" => Some(true),
        "N" => Some(false),
        _ => None,
    }
}

/// Switches a swap device off or on. It takes `CAP_SYS_ADMIN`.
///
/// Off, `Interrupted`: a signal came, the device is on as before, and a part of what it held is in memory. The kernel
/// looks for signals between two processes (mm/swapfile.c, `try_to_unuse()`), so it may take as long as the largest of
/// them. `Unsupported`: it is not on. On, `Partial`: it is on already; `Unsupported`: it has no header of swap.
///
/// The path that `/proc/swaps` shows from then on is that of the mount by which the device was found: here that of
/// process 1. A service's own mounts are gone with the service, and of their paths only the last part is left.
pub fn switch(kernel: &Kernel, actuator: &mut dyn Actuator, device: &Path, switch: Switch) -> Result<Outcome> {
    let below = device.strip_prefix("/").unwrap_or(device);
    actuator.swap(&kernel.proc.path().join("1/root").join(below), switch)
}

/// A file's name need not be UTF-8, a record is: better an odd name in it than no record.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// What separates columns. Other white space (a form feed) is part of a name and not escaped.
fn is_blank(c: &u8) -> bool {
    matches!(c, b' ' | b'\t')
}

fn trim_blanks_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|c| !is_blank(c)).map_or(0, |last| last + 1);
    &text[..end]
}

fn is_zram(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"zram");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

fn kib(field: &[u8]) -> Option<Bytes> {
    Some(Bytes(parse_u64(field)?.saturating_mul(1024)))
}
