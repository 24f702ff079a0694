//! The hibernation image: its forecast size, the swap it would go to, and the obstacles to
//! hibernation.

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

/// Reads counters and makes a forecast of the image; `None`: a counter is unknown.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The swap device.
    #[serde(flatten)]
    pub device: SwapDevice,
    /// True if no resume device is set, and systemd will set this one.
    pub chosen_by_systemd: bool,
    /// Free space on swap that the kernel fills before this one.
    pub free_before: Bytes,
    /// Free space on all swap together.
    pub free_in_all: Bytes,
}

impl Place {
    /// Reads the place again; `None`: the swap was switched off.
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

    /// Returns the path by which the swap was switched on, for printing.
    pub fn name(&self) -> String {
        omr_base::text::printable(&self.device.path.to_string_lossy())
    }

    /// Returns the swap of the whole machine that must stay free so that `image` bytes of this
    /// device stay free.
    pub fn floor(&self, image: Bytes) -> Bytes {
        self.free_in_all - self.free_before - (self.device.free() - image)
    }
}

/// A reason why the machine cannot hibernate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The kernel was built without hibernation.
    NotBuilt,
    /// Lockdown forbids hibernation.
    Lockdown(Lockdown),
    /// Hibernation is switched off in another way.
    Disabled,
    /// `/sys/power` or `/proc` cannot be read.
    Unknown,
    /// There is no swap.
    NoSwap,
    /// All swap is compressed memory.
    ZramOnly,
    /// No resume device is set.
    NoDevice,
    /// The resume device is not active swap.
    NotSwap(DeviceNumber),
    /// The offset of the swap file on its device is not set.
    NoOffset(String),
    /// Swap is too small for the image.
    TooSmall {
        /// The smallest possible image.
        least: Bytes,
        /// The free space for it.
        free: Bytes,
    },
}

impl fmt::Display for Obstacle {
    /// Writes the problem and its remedy in one sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotBuilt => {
                f.write_str("this kernel cannot hibernate; use one that is built with CONFIG_HIBERNATION")
            }
            Obstacle::Lockdown(lockdown) => write!(
                f,
                "lockdown ({lockdown}) forbids hibernation; start without Secure Boot and without lockdown= on the \
                 kernel command line"
            ),
            Obstacle::Disabled => f.write_str(
                "hibernation is switched off; remove nohibernate from the kernel command line, or end the program that \
                 uses memfd_secret",
            ),
            Obstacle::Unknown => f.write_str(
                "cannot find out if this machine can hibernate; /sys/power, /proc/swaps, /proc/meminfo and \
                 /proc/zoneinfo must be readable",
            ),
            Obstacle::NoSwap => f.write_str(
                "there is no swap for the image; switch on a swap partition or file on a disk, of at least half the \
                 size of memory",
            ),
            Obstacle::ZramOnly => f.write_str(
                "all swap is zram, which is memory: it cannot hold the image, and its content is part of the image; \
                 switch on a swap partition or file on a disk",
            ),
            Obstacle::NoDevice => f.write_str(
                "no resume device is set; boot with resume=DEVICE (and resume_offset=PAGES for a swap file) on the \
                 kernel command line",
            ),
            Obstacle::NotSwap(device) => write!(
                f,
                "the resume device {device} is not active swap; swapon it, or boot with resume= of active swap"
            ),
            Obstacle::NoOffset(file) => write!(
                f,
                "resume_offset is not set, and the swap is a file; boot with resume_offset=PAGES, the first of the \
                 physical offsets that \"filefrag -v {file}\" prints"
            ),
            Obstacle::TooSmall { least, free } => write!(
                f,
                "swap is too small: the image needs {least} or more, and {free} is free; make the swap larger"
            ),
        }
    }
}

/// Returns the swap that the image would go to. Fails if the machine cannot hibernate.
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
        Some(number) => (find_resume_swap(kernel, root, &disks, number, &hibernation)?, false),
        None if systemd_sets_device(kernel, root) => {
            // src/shared/hibernate-util.c: the highest priority, then the most room.
            let chosen = disks.iter().max_by_key(|device| (device.priority, device.free()));
            (*chosen.ok_or(Obstacle::NoSwap)?, true)
        }
        None => return Err(Obstacle::NoDevice),
    };
    Ok(Place::of(device, &devices, chosen_by_systemd))
}

/// Returns the swap on the resume device.
fn find_resume_swap<'a>(
    kernel: &Kernel,
    root: &Path,
    disks: &[&'a SwapDevice],
    number: DeviceNumber,
    hibernation: &Hibernation,
) -> Result<&'a SwapDevice, Obstacle> {
    if let Some(partition) = disks.iter().find(|device| device.read_number(kernel) == Some(number)) {
        return Ok(partition);
    }
    // The device of a file is that of its file system. If a file system has several swap files,
    // only the offset would identify the right one, so the one with the least room counts.
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

/// Returns true if a file with this device number can be on that device. btrfs has device numbers
/// of its own, with major 0.
fn may_be_on(file_system: Option<DeviceNumber>, device: DeviceNumber) -> bool {
    file_system.is_none_or(|number| number == device || number.major == 0)
}

/// Returns true if systemd sets a resume device when none is set: it can do so with an EFI
/// variable.
fn systemd_sets_device(kernel: &Kernel, root: &Path) -> bool {
    kernel.sys.has("firmware/efi/efivars") && root.join("run/systemd/system").is_dir()
}

/// Checks that the image can fit into its swap. Memory that is swapped to the same device makes the
/// image smaller, but takes the same room. Only memory that goes elsewhere, or needs no swap,
/// helps. The image is written compressed, to about half its size. If even that does not fit,
/// hibernation would fail after all the work.
pub fn check_room(forecast: &Forecast, place: &Place) -> Result<(), Obstacle> {
    let elsewhere = forecast.could_leave.without_swap() + place.free_before.min(forecast.could_leave.anon);
    let least = Bytes((forecast.in_use - forecast.per_cpu - elsewhere).max(forecast.must_stay).0 / 2);
    let free = place.device.free();
    if least > free { Err(Obstacle::TooSmall { least, free }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use omr_policy::forecast::Leaving;
    use omr_testkit::FakeRoot;

    use super::*;

    #[test]
    fn a_swap_file_on_another_disk_is_not_on_the_resume_device() {
        let (disk, other) = (DeviceNumber { major: 253, minor: 1 }, DeviceNumber { major: 253, minor: 2 });
        assert!(may_be_on(Some(disk), disk));
        assert!(!may_be_on(Some(other), disk));
        // btrfs, and a file that cannot be read.
        assert!(may_be_on(Some(DeviceNumber { major: 0, minor: 37 }), disk) && may_be_on(None, disk));
    }

    const SWAPS: &str = "Filename Type Size Used Priority\n\
        /dev/zram0 partition 8192 4096 100\n\
        /dev/vda2 partition 4096 1024 10\n\
        /dev/vdb1 partition 2048 0 5\n\
        /swap.img file 6144 0 1\n";

    /// A machine that can hibernate, with swap on two partitions, zram and a file.
    fn machine() -> FakeRoot {
        FakeRoot::new()
            .proc("swaps", SWAPS)
            .sys("power/state", "freeze mem disk\n")
            .sys("power/disk", "[platform] shutdown\n")
            .sys("power/resume", "254:2\n")
            .sys("power/resume_offset", "0\n")
            .sys("class/block/vda2/dev", "254:2\n")
            .sys("class/block/vdb1/dev", "254:17\n")
    }

    fn placed(root: &FakeRoot) -> Result<Place, Obstacle> {
        place(&Kernel::open(root.path()).expect("a root"), root.path())
    }

    #[test]
    fn the_image_goes_to_the_swap_on_the_resume_device() {
        let root = machine();
        let found = placed(&root).expect("a place");
        assert_eq!((found.name().as_str(), found.chosen_by_systemd), ("/dev/vda2", false));
        assert_eq!(found.device.free(), Bytes::kib(3072));
        assert_eq!((found.free_before, found.free_in_all), (Bytes::kib(4096), Bytes::kib(4096 + 3072 + 2048 + 6144)));
        // All but zram and 1 MiB of this device may stay in use: what is free elsewhere must not be filled.
        assert_eq!(found.floor(Bytes::mib(2)), Bytes::kib(3072 + 2048 + 6144 - 1024));
        root.write("sys/power/resume", "254:17\n");
        assert_eq!(placed(&root).expect("a place").name(), "/dev/vdb1");
        root.write("sys/power/resume", "8:1\n");
        // The file system of a file that cannot be found may be on any device, and then the offset counts.
        assert_eq!(placed(&root), Err(Obstacle::NoOffset("/swap.img".into())));
        root.write("sys/power/resume_offset", "34816\n");
        assert_eq!(placed(&root).expect("a place").name(), "/swap.img");
        root.write("proc/swaps", SWAPS.replace("/swap.img file 6144 0 1\n", ""));
        assert_eq!(placed(&root), Err(Obstacle::NotSwap(DeviceNumber { major: 8, minor: 1 })));
    }

    #[test]
    fn a_place_is_read_again_while_its_swap_is_on() {
        let root = machine();
        let found = placed(&root).expect("a place");
        let again = || found.again(&Kernel::open(root.path()).expect("a root"));
        assert_eq!(again().as_ref(), Some(&found));
        root.write("proc/swaps", SWAPS.replace("4096 1024 10", "4096 2048 10"));
        assert_eq!(again().map(|place| place.device.free()), Some(Bytes::kib(2048)));
        root.write("proc/swaps", SWAPS.replace("vda2", "vda3"));
        assert_eq!(again(), None);
    }

    #[test]
    fn without_a_resume_device_systemd_takes_the_swap_of_the_highest_priority() {
        let root = machine();
        root.write("sys/power/resume", "0:0\n");
        assert_eq!(placed(&root), Err(Obstacle::NoDevice));
        root.write("sys/firmware/efi/efivars/any", "");
        assert_eq!(placed(&root), Err(Obstacle::NoDevice), "systemd does not run");
        root.write("run/systemd/system/any", "");
        let found = placed(&root).expect("a place");
        assert_eq!((found.name().as_str(), found.chosen_by_systemd), ("/dev/vda2", true));
    }

    #[test]
    fn a_forecast_needs_all_counters() {
        let root = FakeRoot::captured(omr_testkit::Release::V6_12);
        let forecast = || forecast(&Kernel::open(root.path()).expect("a root"));
        let known = forecast().expect("a forecast");
        assert!(
            known.image > Bytes::ZERO && known.must_stay + known.could_leave.total() == known.in_use - known.per_cpu
        );
        let meminfo = root.read("proc/meminfo");
        for key in
            ["Active(anon)", "Inactive(anon)", "SwapCached", "Active(file)", "Inactive(file)", "Dirty", "SReclaimable"]
        {
            root.write("proc/meminfo", meminfo.replace(&format!("{key}:"), "Other:"));
            assert_eq!(forecast(), None, "{key}");
        }
        root.write("proc/meminfo", meminfo.replace("SwapCached:", "SwapCached: 1 kB\nOther:"));
        assert!(forecast().is_some_and(|now| now.could_leave.swap_cache == Bytes::kib(1)));
        root.write("proc/zoneinfo", "");
        assert_eq!(forecast(), None);
    }

    #[test]
    fn each_obstacle_says_what_to_do() {
        for (obstacle, says) in [
            (Obstacle::NotBuilt, "CONFIG_HIBERNATION"),
            (Obstacle::Lockdown(Lockdown::Integrity), "lockdown (integrity) forbids hibernation; start without"),
            (Obstacle::Disabled, "remove nohibernate"),
            (Obstacle::Unknown, "/proc/zoneinfo must be readable"),
            (Obstacle::NoSwap, "switch on a swap partition or file on a disk, of at least half"),
            (Obstacle::ZramOnly, "all swap is zram"),
            (Obstacle::NoDevice, "boot with resume=DEVICE"),
            (Obstacle::NotSwap(DeviceNumber { major: 8, minor: 1 }), "the resume device 8:1 is not active swap"),
            (Obstacle::NoOffset("/swap.img".into()), "\"filefrag -v /swap.img\" prints"),
            (
                Obstacle::TooSmall { least: Bytes::mib(9), free: Bytes::mib(7) },
                "the image needs 9.00 MiB or more, and 7.00 MiB is free",
            ),
        ] {
            assert!(obstacle.to_string().contains(says), "{obstacle}");
        }
    }

    #[test]
    fn each_obstacle_has_its_name() {
        let root = machine();
        root.write("proc/swaps", "Filename Type Size Used Priority\n");
        assert_eq!(placed(&root), Err(Obstacle::NoSwap));
        root.write("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 8192 0 100\n");
        assert_eq!(placed(&root), Err(Obstacle::ZramOnly));
        root.write("sys/power/disk", "[disabled]\n");
        assert_eq!(placed(&root), Err(Obstacle::Disabled));
        root.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        assert!(matches!(placed(&root), Err(Obstacle::Lockdown(_))));
        root.remove("sys/power");
        assert_eq!(placed(&root), Err(Obstacle::NotBuilt));
    }

    #[test]
    fn swap_is_too_small_if_half_of_what_must_be_saved_does_not_fit() {
        // 3 MiB are free on the device, and 4 MiB on zram before it.
        let place = placed(&machine()).expect("a place");
        let forecast = Forecast {
            image: Bytes::ZERO,
            in_use: Bytes::mib(10),
            fast: Bytes::ZERO,
            largest: Bytes::MAX,
            must_stay: Bytes::mib(1),
            could_leave: Leaving::default(),
            per_cpu: Bytes::ZERO,
            zram: Bytes::ZERO,
            zswap: Bytes::ZERO,
        };
        let check = |forecast: Forecast| check_room(&forecast, &place);
        let too_small = |kib| Err(Obstacle::TooSmall { least: Bytes::kib(kib), free: Bytes::mib(3) });
        assert_eq!(check(forecast), too_small(5120));
        assert_eq!(check(Forecast { in_use: Bytes::mib(6), ..forecast }), Ok(()));
        assert_eq!(check(Forecast { per_cpu: Bytes::mib(4), ..forecast }), Ok(()));
        // What leaves without swap, or to zram, needs no room there; what leaves to the device itself does.
        let leaves = |anon, clean_file| Leaving {
            anon: Bytes::mib(anon),
            clean_file: Bytes::mib(clean_file),
            ..Leaving::default()
        };
        assert_eq!(check(Forecast { could_leave: leaves(0, 4), ..forecast }), Ok(()));
        assert_eq!(check(Forecast { could_leave: leaves(0, 3), ..forecast }), too_small(3584));
        assert_eq!(check(Forecast { could_leave: leaves(9, 0), ..forecast }), Ok(()), "4 of 9 MiB go to zram");
        assert_eq!(check(Forecast { could_leave: leaves(3, 0), ..forecast }), too_small(3584));
        // What must stay is in the image in any case.
        assert_eq!(
            check(Forecast { could_leave: leaves(0, 9), must_stay: Bytes::mib(8), ..forecast }),
            too_small(4096)
        );
    }
}
