//! The hibernation image: how large it would be, where it would go, and what stands in its way.

use std::fmt;
use std::path::Path;

use omr_kernel::hibernate::{Availability, DeviceNumber, Hibernation};
use omr_kernel::lockdown::Lockdown;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::swap::{self, SwapDevice, SwapKind};
use omr_kernel::{Kernel, zoneinfo};
use omr_policy::forecast::{self, Forecast, Inputs};
use omr_units::Bytes;
use serde::Serialize;

/// Reads what a forecast needs and makes it. `None` where a part is unknown.
pub fn forecast(kernel: &Kernel) -> Option<Forecast> {
    let buffer = &mut Vec::new();
    let zones: Vec<forecast::Zone> = zoneinfo::read(kernel, buffer)
        .ok()?
        .into_iter()
        .map(|zone| forecast::Zone {
            free: zone.free,
            high: zone.high,
            spanned: zone.spanned,
            present: zone.present,
            managed: zone.managed,
            protection: zone.protection,
            per_cpu: zone.per_cpu,
        })
        .collect();
    if zones.is_empty() {
        return None;
    }
    let memory = Meminfo::read(kernel, buffer).ok()?;
    let hibernation = Hibernation::read(kernel);
    let devices = swap::read(kernel).ok()?;
    let pools = devices.iter().filter(|device| device.kind == SwapKind::Zram);
    Some(forecast::forecast(&Inputs {
        zones: &zones,
        page: kernel.page(),
        image_size: hibernation.image_size?,
        reserved_size: hibernation.reserved_size.unwrap_or_default(),
        anon: memory.active_anon? + memory.inactive_anon?,
        swap_cache: memory.swap_cached?,
        file: memory.active_file? + memory.inactive_file?,
        dirty: memory.dirty?,
        slab: memory.slab_reclaimable?,
        zram: pools.filter_map(|device| swap::read_zram_pool(kernel, device)).sum(),
        zswap: memory.zswap.unwrap_or_default(),
    }))
}

/// The swap that the image goes to.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// It.
    #[serde(flatten)]
    pub device: SwapDevice,
    /// No device is set, and this is the one that systemd will set.
    pub chosen_by_systemd: bool,
    /// Free on swap that is filled before this one.
    pub free_before: Bytes,
    /// Free on all swap together.
    pub free_in_all: Bytes,
}

impl Place {
    /// The same as it is now; `None` when it was switched off.
    pub fn again(&self, kernel: &Kernel) -> Option<Place> {
        let devices = swap::read(kernel).ok()?;
        let device = devices.iter().find(|device| device.path == self.device.path)?;
        Some(Place::of(device, &devices, self.chosen_by_systemd))
    }

    fn of(device: &SwapDevice, devices: &[SwapDevice], chosen_by_systemd: bool) -> Place {
        Place {
            device: device.clone(),
            chosen_by_systemd,
            free_before: devices.iter().filter(|other| other.priority > device.priority).map(SwapDevice::free).sum(),
            free_in_all: devices.iter().map(SwapDevice::free).sum(),
        }
    }

    /// The name it was switched on by, fit for printing.
    pub fn name(&self) -> String {
        omr_base::text::printable(&self.device.path.to_string_lossy())
    }

    /// Swap of the whole machine that must stay free so that `image` bytes of this device do.
    pub fn floor(&self, image: Bytes) -> Bytes {
        self.free_in_all - self.free_before - (self.device.free() - image)
    }
}

/// Why the machine cannot hibernate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Built without it.
    NotBuilt,
    /// Forbidden by lockdown.
    Lockdown(Lockdown),
    /// Switched off in another way.
    Disabled,
    /// `/sys/power` or `/proc` cannot be read.
    Unknown,
    /// There is no swap.
    NoSwap,
    /// All swap is compressed memory.
    ZramOnly,
    /// No device is set.
    NoDevice,
    /// The device that is set is no swap that is on.
    NotSwap(DeviceNumber),
    /// The swap file's place on its device is not set.
    NoOffset(String),
    /// Swap is too small for what the image must hold.
    TooSmall {
        /// The least image that can be reached.
        least: Bytes,
        /// What there is for it.
        free: Bytes,
    },
}

impl fmt::Display for Obstacle {
    /// What is wrong and what to do about it, in one sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotBuilt => {
                f.write_str("this kernel cannot hibernate; it takes one that is built with CONFIG_HIBERNATION")
            }
            Obstacle::Lockdown(lockdown) => write!(
                f,
                "lockdown ({lockdown}) forbids hibernation; start without Secure Boot and without lockdown= on the \
                 kernel command line"
            ),
            Obstacle::Disabled => f.write_str(
                "hibernation is switched off; take nohibernate off the kernel command line, or end the program that \
                 uses memfd_secret",
            ),
            Obstacle::Unknown => f.write_str(
                "whether this machine can hibernate could not be told; /sys/power, /proc/swaps, /proc/meminfo and \
                 /proc/zoneinfo must be readable",
            ),
            Obstacle::NoSwap => f.write_str(
                "there is no swap for the image; switch on a swap partition or file on a disk, as large as half of \
                 the memory or more",
            ),
            Obstacle::ZramOnly => f.write_str(
                "all swap is zram, which is memory: it cannot hold the image, and what is swapped to it is in the \
                 image; switch on a swap partition or file on a disk",
            ),
            Obstacle::NoDevice => f.write_str(
                "no resume device is set; boot with resume=DEVICE (and resume_offset=PAGES for a swap file) on the \
                 kernel command line",
            ),
            Obstacle::NotSwap(device) => write!(
                f,
                "the resume device {device} is no swap that is on; swapon it, or boot with resume= of the swap that is"
            ),
            Obstacle::NoOffset(file) => write!(
                f,
                "resume_offset is not set, and the swap is a file; boot with resume_offset=PAGES, the first of the \
                 physical offsets that \"filefrag -v {file}\" prints"
            ),
            Obstacle::TooSmall { least, free } => write!(
                f,
                "swap is too small: the image takes {least} or more, and {free} is free for it; make the swap larger"
            ),
        }
    }
}

/// Where the image would go, or why there would be none.
pub fn place(kernel: &Kernel, root: &Path) -> Result<Place, Obstacle> {
    let hibernation = Hibernation::read(kernel);
    match hibernation.availability {
        Availability::Available => {}
        Availability::NotBuilt => return Err(Obstacle::NotBuilt),
        Availability::Unknown => return Err(Obstacle::Unknown),
        Availability::Disabled => {
            return Err(match Lockdown::read(kernel).filter(|lockdown| lockdown.is_locked()) {
                Some(lockdown) => Obstacle::Lockdown(lockdown),
                None => Obstacle::Disabled,
            });
        }
    }
    let devices = swap::read(kernel).map_err(|_| Obstacle::Unknown)?;
    let disks: Vec<&SwapDevice> = devices.iter().filter(|device| device.kind.is_disk()).collect();
    if devices.is_empty() {
        return Err(Obstacle::NoSwap);
    }
    if disks.is_empty() {
        return Err(Obstacle::ZramOnly);
    }
    let (device, chosen_by_systemd) = match hibernation.resume {
        Some(number) => (holder(kernel, root, &disks, number, &hibernation)?, false),
        None if systemd_chooses(kernel, root) => {
            // src/shared/hibernate-util.c: the highest priority, then the most room.
            let chosen = disks.iter().max_by_key(|device| (device.priority, device.free()));
            (*chosen.ok_or(Obstacle::NoSwap)?, true)
        }
        None => return Err(Obstacle::NoDevice),
    };
    Ok(Place::of(device, &devices, chosen_by_systemd))
}

/// The swap on the resume device.
fn holder<'a>(
    kernel: &Kernel,
    root: &Path,
    disks: &[&'a SwapDevice],
    number: DeviceNumber,
    hibernation: &Hibernation,
) -> Result<&'a SwapDevice, Obstacle> {
    if let Some(partition) = disks.iter().find(|device| device.read_number(kernel) == Some(number)) {
        return Ok(partition);
    }
    // The device of a file is its file system's. Of several there only the offset would tell which it is, so the one with
    // least room is taken.
    let file = disks
        .iter()
        .copied()
        .filter(|device| device.kind == SwapKind::File && may_be_on(device.read_file_system(root), number))
        .min_by_key(|device| device.free())
        .ok_or(Obstacle::NotSwap(number))?;
    match hibernation.resume_offset {
        Some(offset) if offset.0 > 0 => Ok(file),
        _ => Err(Obstacle::NoOffset(omr_base::text::printable(&file.path.to_string_lossy()))),
    }
}

/// Whether a file with this device number can be on that device. btrfs tells numbers of its own, without a driver's (major 0).
fn may_be_on(file_system: Option<DeviceNumber>, device: DeviceNumber) -> bool {
    file_system.is_none_or(|number| number == device || number.major == 0)
}

/// Whether systemd sets a device when none is set: it does where it can tell the next boot of it, by an
/// EFI variable.
fn systemd_chooses(kernel: &Kernel, root: &Path) -> bool {
    kernel.sys.has("firmware/efi/efivars") && root.join("run/systemd/system").is_dir()
}

/// Whether swap can have room for the image. What goes to this swap makes the image smaller and takes
/// its room alike; only what goes elsewhere, or needs no swap, helps. What is left is written
/// compressed, to half its size or so; where even that has no room, hibernation fails when all the work
/// is done.
pub fn room(forecast: &Forecast, place: &Place) -> Result<(), Obstacle> {
    let elsewhere = forecast.could_leave.without_swap() + place.free_before.min(forecast.could_leave.anon);
    let least = Bytes((forecast.in_use - forecast.per_cpu - elsewhere).max(forecast.must_stay).0 / 2);
    let free = place.device.free();
    if least > free { Err(Obstacle::TooSmall { least, free }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_file_on_another_disk_is_not_on_the_resume_device() {
        let (disk, other) = (DeviceNumber { major: 253, minor: 1 }, DeviceNumber { major: 253, minor: 2 });
        assert!(may_be_on(Some(disk), disk));
        assert!(!may_be_on(Some(other), disk));
        // btrfs, and a file that cannot be looked at.
        assert!(may_be_on(Some(DeviceNumber { major: 0, minor: 37 }), disk) && may_be_on(None, disk));
    }
}
