//! `/sys/class/block/*`: the disks below each swap device, and what a write to them wears out.
//!
//! A swap device is a partition, a logical volume, an encrypted volume or a file. The files of
//! sysfs tell which disks are below. The kernel's word about a disk is taken as it is. Disks of
//! virtual machines (`vda`) often say that they rotate, because the host says nothing else.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::Kernel;
use crate::mounts::read_mount_of;
use crate::swap::{SwapDevice, SwapKind};
use crate::text::parse_u64;

/// The medium of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory: zram, or a disk in memory (`/dev/ramN`).
    Memory,
    /// An SSD on NVMe, in this machine.
    Nvme,
    /// Another disk that does not rotate.
    Ssd,
    /// A disk that rotates, or a virtual disk of which the host does not say that it does not.
    Rotational,
    /// An eMMC chip.
    Emmc,
    /// A memory card.
    SdCard,
    /// A removable disk, such as a USB stick.
    Removable,
    /// A disk in another machine: NBD, iSCSI, Fibre Channel, NVMe over a network, Ceph, DRBD.
    Network,
    /// Not known.
    Unknown,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Medium::Memory => "memory",
            Medium::Nvme => "NVMe",
            Medium::Ssd => "SSD",
            Medium::Rotational => "rotating disk",
            Medium::Emmc => "eMMC",
            Medium::SdCard => "SD card",
            Medium::Removable => "removable disk",
            Medium::Network => "network disk",
            Medium::Unknown => "unknown medium",
        })
    }
}

/// A disk below a swap device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The name in `/sys/class/block`; empty: unknown.
    pub name: String,
    /// The medium.
    pub medium: Medium,
    /// The size of the whole disk; `None`: unknown.
    pub size: Option<Bytes>,
    /// What is written to it is encrypted by this machine (dm-crypt).
    #[serde(default)]
    pub encrypted: bool,
}

impl Disk {
    fn unknown() -> Self {
        Disk { name: String::new(), medium: Medium::Unknown, size: None, encrypted: false }
    }
}

/// Stacks of volumes are not deeper than this: encryption on a logical volume on a RAID of
/// partitions has five levels.
const DEEPEST: u32 = 12;

/// A stack has no more disks than this; the rest counts as one unknown disk.
const MOST_DISKS: usize = 64;

/// Reads the disks that a swap device writes to. The list is never empty.
pub fn read_disks(kernel: &Kernel, device: &SwapDevice) -> Vec<Disk> {
    let mut stack = Stack { kernel, disks: Vec::new(), encrypted: false };
    let found = match device.kind {
        SwapKind::File => stack.add_file(&device.path),
        SwapKind::Partition | SwapKind::Zram => {
            stack.name_of(&device.path).and_then(|name| stack.add_device(&name, DEEPEST))
        }
    };
    let mut disks = stack.disks;
    if found.is_none() || disks.is_empty() {
        disks.push(Disk::unknown());
    }
    disks
}

/// A walk from a swap device down to its disks. A step returns `None` if a disk may be missing.
struct Stack<'a> {
    kernel: &'a Kernel,
    disks: Vec<Disk>,
    /// A volume on the way down to the present one is encrypted.
    encrypted: bool,
}

impl Stack<'_> {
    /// Adds the disks of the file system that a swap file is on. `st_dev` of the file would tell
    /// the same as its mount does, but the daemon cannot reach files below `/home`.
    fn add_file(&mut self, path: &Path) -> Option<()> {
        let mount = read_mount_of(self.kernel, path)?;
        if let Ok(link) = self.kernel.sys.link(format!("dev/block/{}", mount.number)) {
            return self.add_device(link.file_name()?, DEEPEST);
        }
        let source = self.name_of(&mount.source)?;
        let all = self.disks_of_btrfs(&source).unwrap_or_else(|| vec![source]);
        all.iter().try_for_each(|name| self.add_device(name, DEEPEST))
    }

    /// The name in sysfs of the device with this path. `/dev/mapper/NAME` has another one there.
    fn name_of(&self, path: &Path) -> Option<OsString> {
        let name = path.strip_prefix("/dev").ok()?.file_name()?;
        let is_there = self.kernel.sys.has(Path::new("class/block").join(name));
        if is_there { Some(name.to_owned()) } else { self.named_by_mapper(name) }
    }

    /// The device whose name for the device mapper is `name`.
    fn named_by_mapper(&self, name: &OsStr) -> Option<OsString> {
        let names = self.kernel.sys.sub("class/block").ok()?.names().ok()?;
        names.into_iter().find(|device| {
            let file = Path::new("class/block").join(device).join("dm/name");
            self.kernel.sys.read_string(file).is_ok_and(|text| OsStr::new(text.trim_end_matches('\n')) == name)
        })
    }

    /// All devices of the btrfs file system that one device belongs to:
    /// `/sys/fs/btrfs/UUID/devices` (3.14).
    fn disks_of_btrfs(&self, device: &OsStr) -> Option<Vec<OsString>> {
        let systems = self.kernel.sys.sub("fs/btrfs").ok()?;
        systems.names().ok()?.into_iter().find_map(|system| {
            let devices = systems.sub(Path::new(&system).join("devices")).ok()?.names().ok()?;
            devices.iter().any(|name| name == device).then_some(devices)
        })
    }

    /// Adds the disks below a block device.
    fn add_device(&mut self, name: &OsStr, deepest: u32) -> Option<()> {
        if deepest == 0 || self.disks.len() >= MOST_DISKS {
            return None;
        }
        let dir = Path::new("class/block").join(name);
        if let Some(disk) = self.disk_of_partition(&dir) {
            return self.add_device(&disk, deepest - 1);
        }
        let below = self.kernel.sys.sub(dir.join("slaves")).and_then(|dir| dir.names()).unwrap_or_default();
        if below.is_empty() {
            let disk = self.disk(name, &dir);
            self.disks.push(disk);
            return Some(());
        }
        let above = self.encrypted;
        self.encrypted |= self.is_encrypted(&dir);
        let found = below.iter().try_for_each(|name| self.add_device(name, deepest - 1));
        self.encrypted = above;
        found
    }

    /// `dm/uuid` of a volume (2.6.30). Sample line: `CRYPT-LUKS2-3f...-cryptswap`. Source: the prefix
    /// is cryptsetup's, the file drivers/md/dm-sysfs.c.
    fn is_encrypted(&self, dir: &Path) -> bool {
        self.kernel.sys.read_string(dir.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with("CRYPT-"))
    }

    /// The disk that a partition is on; `None`: the device is no partition, or its link does not
    /// tell the disk.
    fn disk_of_partition(&self, dir: &Path) -> Option<OsString> {
        if !self.kernel.sys.has(dir.join("partition")) {
            return None;
        }
        let link = self.kernel.sys.link(dir).ok()?;
        Some(link.parent()?.file_name()?.to_owned())
    }

    /// A device with nothing below.
    fn disk(&self, name: &OsStr, dir: &Path) -> Disk {
        let text = name.to_string_lossy();
        let sectors = self.number(dir.join("size")).filter(|sectors| *sectors > 0);
        Disk {
            medium: self.medium(&text, dir),
            name: text.into_owned(),
            // Sectors of 512 bytes, whatever the disk's own are. Source: block/genhd.c.
            size: sectors.map(|sectors| Bytes(sectors.saturating_mul(512))),
            encrypted: self.encrypted,
        }
    }

    fn medium(&self, name: &str, dir: &Path) -> Medium {
        if !self.kernel.sys.has(dir) || self.kernel.sys.has(dir.join("partition")) {
            return Medium::Unknown;
        }
        let is =
            |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        match () {
            () if is("zram") || is("ram") => Medium::Memory,
            () if ["nbd", "rbd", "drbd"].into_iter().any(is) || self.is_far(dir) => Medium::Network,
            () if is("nvme") => self.nvme(&dir.join("device")),
            () if is("mmcblk") => self.card(dir),
            // What is below cannot be seen: a file, a pool of ZFS (which never says that it
            // rotates), raw flash, a volume without a disk.
            () if ["loop", "zd", "mtdblock", "ubiblock", "dm-", "md", "bcache"].into_iter().any(is) => Medium::Unknown,
            () if self.number(dir.join("removable")) == Some(1) => Medium::Removable,
            () => match self.number(dir.join("queue/rotational")) {
                Some(0) => Medium::Ssd,
                Some(1) => Medium::Rotational,
                _ => Medium::Unknown,
            },
        }
    }

    /// `type` of a card (2.6.23). Sample line: `SD`. Source: drivers/mmc/core/bus.c, type_show().
    fn card(&self, dir: &Path) -> Medium {
        match self.kernel.sys.read_string(dir.join("device/type")).as_deref().map(str::trim) {
            Ok("MMC") => Medium::Emmc,
            Ok("SD") => Medium::SdCard,
            _ => Medium::Unknown,
        }
    }

    /// Returns true if the disk is in another machine: its place in sysfs names the session of
    /// iSCSI or the port of Fibre Channel.
    fn is_far(&self, dir: &Path) -> bool {
        let link = self.kernel.sys.link(dir).unwrap_or_default();
        link.iter().map(OsStr::to_string_lossy).any(|part| is_numbered(&part, "session") || part.starts_with("rport-"))
    }

    /// `transport` of an NVMe disk (3.15). With several paths to a disk, `device` is the subsystem,
    /// and has a link to each controller. Sample line: `pcie`. Source: drivers/nvme/host/sysfs.c.
    fn nvme(&self, device: &Path) -> Medium {
        let sys = &self.kernel.sys;
        let read = |dir: &Path| sys.read_string(dir.join("transport")).ok();
        let transports = read(device).map_or_else(
            || {
                // The "." makes the link to the directory one that is followed.
                let names = sys.sub(device.join(".")).and_then(|dir| dir.names()).unwrap_or_default();
                let controllers = names.iter().filter(|name| is_numbered(&name.to_string_lossy(), "nvme"));
                controllers.filter_map(|name| read(&device.join(name))).collect()
            },
            |transport| vec![transport],
        );
        let is_here = |transport: &String| matches!(transport.trim(), "pcie" | "apple-nvme");
        if transports.iter().all(is_here) { Medium::Nvme } else { Medium::Network }
    }

    fn number(&self, file: PathBuf) -> Option<u64> {
        parse_u64(self.kernel.sys.read_string(file).ok()?.as_bytes())
    }
}

/// Returns true if a name is the prefix and a number.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
}
