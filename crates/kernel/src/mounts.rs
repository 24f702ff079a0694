//! `/proc/self/mounts` and `/proc/self/mountinfo`: the mounts in this process's mount namespace.

use std::path::{Path, PathBuf};

use crate::hibernate::DeviceNumber;
use crate::root::os;
use crate::text::unescape;
use crate::{Kernel, Result};

/// One mount. In the file, white space, backslash and (since 3.4) `#` of the path are escaped as in
/// `/proc/swaps`.
///
/// Sample line: `cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0`.
/// Source: fs/proc_namespace.c, show_vfsmnt().
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub path: PathBuf,
    /// Type of the file system.
    pub kind: Vec<u8>,
    /// True if the mount is read-only.
    pub read_only: bool,
}

impl Mount {
    /// Parses one line. `None`: the line is in another form.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&c| c == b' ');
        let (_source, path, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        if path.is_empty() || kind.is_empty() {
            return None;
        }
        Some(Mount {
            path: PathBuf::from(os(&unescape(path))),
            kind: kind.into(),
            read_only: options.split(|&c| c == b',').any(|option| option == b"ro"),
        })
    }
}

/// Parses the whole file. Lines in another form are skipped.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&c| c == b'\n').filter_map(Mount::parse).collect()
}

/// Reads `/proc/self/mounts`.
pub fn read(kernel: &Kernel) -> Result<Vec<Mount>> {
    let mut buffer = Vec::new();
    kernel.proc.read("self/mounts", &mut buffer)?;
    Ok(parse(&buffer))
}

/// The mount of this type at this path. The last one wins, because it covers the others.
pub fn find<'a>(mounts: &'a [Mount], path: &Path, kind: &[u8]) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.path == path && mount.kind == kind)
}

/// Reads the mount of cgroup2. `Some(true)`: it is read-only, as in most containers. `None`:
/// cgroup2 is not mounted.
pub fn read_is_cgroup_read_only(kernel: &Kernel) -> Option<bool> {
    let mounts = read(kernel).ok()?;
    find(&mounts, Path::new("/sys/fs/cgroup"), b"cgroup2").map(|mount| mount.read_only)
}

/// One mount of `/proc/self/mountinfo` (2.6.26), with the device of its file system.
///
/// Sample line: `29 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw`. Source:
/// fs/proc_namespace.c, show_mountinfo().
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountDevice {
    /// The mount point.
    pub path: PathBuf,
    /// The `st_dev` of the file system. (btrfs has a number that no block device has.)
    pub number: DeviceNumber,
    /// What was mounted: a path of a block device, or any other text.
    pub source: PathBuf,
}

impl MountDevice {
    /// Parses one line. `None`: the line is in another form.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&c| c == b' ');
        let number = DeviceNumber::parse(fields.nth(2)?)?;
        let path = fields.nth(1)?;
        let source = fields.skip_while(|field| *field != b"-").nth(2)?;
        if path.is_empty() || source.is_empty() {
            return None;
        }
        let path_of = |field: &[u8]| PathBuf::from(os(&unescape(field)));
        Some(MountDevice { path: path_of(path), number, source: path_of(source) })
    }
}

/// Reads `/proc/self/mountinfo` and returns the mount that the file `path` is on. `None`: unknown.
pub fn read_mount_of(kernel: &Kernel, path: &Path) -> Option<MountDevice> {
    let mut buffer = Vec::new();
    kernel.proc.read("self/mountinfo", &mut buffer).ok()?;
    let mounts = buffer.split(|&c| c == b'\n').filter_map(MountDevice::parse);
    // Of several mounts at one place the last one covers the others.
    mounts.filter(|mount| path.starts_with(&mount.path)).max_by_key(|mount| mount.path.components().count())
}
