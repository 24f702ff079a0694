//! The last measured write rate of the swap disk, at which an image would be written.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use omr_base::folder::open_file;
use omr_base::paths;
use omr_base::storage::{make_root_state_dir, write_atomically};
use omr_kernel::{Kernel, swap};
use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::prepare::image;
use crate::reclaim::Report;

const FILE: &str = "disk-rate.json";
/// A file is shorter.
const LARGEST: u64 = 16 << 10;

/// The least amount for a measurement. Less would measure the disk's cache.
const ENOUGH: Bytes = Bytes::mib(16);

/// The amount that was written, and the time that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    written: Bytes,
    took: Duration,
}

impl Measured {
    /// Adds a job. Skips a job that wrote little, or that freed much more than it wrote.
    pub fn add(&mut self, report: &Report) {
        if report.swapped_out >= Bytes::mib(1) && report.swapped_out.0 >= report.freed.0 / 2 {
            self.written += report.swapped_out;
            self.took += report.wall;
        }
    }

    /// Returns the bytes per second; `None`: too little was written.
    pub fn rate(&self) -> Option<Bytes> {
        if self.written < ENOUGH {
            return None;
        }
        self.written.per_second(self.took)
    }
}

#[derive(Serialize, Deserialize)]
struct Saved {
    bytes_per_second: Bytes,
    device: String,
}

/// Returns the last measured rate of this device.
pub fn load(root: &Path, device: &Path) -> Option<Bytes> {
    // The daemon has measured it, or a command of root's: the last one counts.
    let dirs = [paths::state_dir(root), paths::root_state_dir(root)];
    let saved = dirs.iter().filter_map(|dir| read(&dir.join(FILE)));
    let of_device = saved.filter(|(_, saved)| saved.device == device.to_string_lossy());
    let (_, last) = of_device.max_by_key(|(changed, _)| *changed)?;
    (last.bytes_per_second.0 > 0).then_some(last.bytes_per_second)
}

/// What a file has, and when it was written.
fn read(path: &Path) -> Option<(SystemTime, Saved)> {
    let mut file = open_file(path).ok()?;
    let changed = file.metadata().and_then(|meta| meta.modified()).ok()?;
    let mut text = Vec::new();
    (&mut file).take(LARGEST).read_to_end(&mut text).ok()?;
    Some((changed, serde_json::from_slice(&text).ok()?))
}

/// Saves a rate that a command has measured; see [`file`]. A failed write is only logged.
pub fn keep(kernel: &Kernel, root: &Path, rate: Bytes) {
    let Some(text) = text(kernel, root, rate) else { return };
    if let Err(err) = make_root_state_dir(root).and_then(|dir| write_atomically(&dir.join(FILE), &text)) {
        log::debug!("{err:#}");
    }
}

/// The daemon's file that keeps a rate as that of the swap for an image, and its contents; see
/// [`is_disk_only`]. `None`: this machine cannot hibernate.
pub fn file(kernel: &Kernel, root: &Path, rate: Bytes) -> Option<(PathBuf, Vec<u8>)> {
    Some((paths::state_dir(root).join(FILE), text(kernel, root, rate)?))
}

fn text(kernel: &Kernel, root: &Path, rate: Bytes) -> Option<Vec<u8>> {
    let place = image::place(kernel, root).ok()?;
    let saved = Saved { bytes_per_second: rate, device: place.device.path.to_string_lossy().into_owned() };
    serde_json::to_vec(&saved).ok()
}

/// Returns true if all swap is on disks. If some swap is zram, a rate is not that of the disk.
pub fn is_disk_only(kernel: &Kernel) -> bool {
    swap::read(kernel).is_ok_and(|devices| !devices.is_empty() && devices.iter().all(|device| device.kind.is_disk()))
}

#[cfg(test)]
mod tests {
    use omr_policy::End;
    use omr_testkit::FakeRoot;
    use omr_units::Monotonic;

    use super::*;

    /// A job of two seconds.
    fn job(swapped_out: Bytes, freed: Bytes) -> Report {
        Report {
            asked: freed,
            freed,
            freed_anon: freed,
            freed_file: Bytes::ZERO,
            swapped_out,
            demoted: Bytes::ZERO,
            writes: 1,
            longest_write: Duration::ZERO,
            last_write_end: Monotonic(0),
            cpu: Duration::ZERO,
            wall: Duration::from_secs(2),
            end: End::Complete,
            error: None,
            method: None,
            size: Bytes::ZERO,
            refaults: None,
        }
    }

    #[test]
    fn a_rate_is_that_of_the_jobs_that_wrote_to_the_disk() {
        let rate = |jobs: &[(Bytes, Bytes)]| {
            let mut measured = Measured::default();
            for (swapped_out, freed) in jobs {
                measured.add(&job(*swapped_out, *freed));
            }
            measured.rate()
        };
        let mib = Bytes::mib;
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[(mib(15), mib(15))]), None, "the cache of the disk takes as much");
        assert_eq!(rate(&[(mib(16), mib(16))]), Some(mib(8)));
        assert_eq!(rate(&[(mib(10), mib(10)), (mib(30), mib(40))]), Some(mib(10)));
        // A job that freed page cache without a write says nothing about the disk.
        assert_eq!(rate(&[(mib(16), mib(16)), (mib(20), mib(42)), (Bytes::kib(1023), Bytes::ZERO)]), Some(mib(8)));
        assert_eq!(rate(&[(mib(16), mib(16)), (mib(24), mib(48))]), Some(mib(10)), "half of it is enough");
    }

    #[test]
    fn a_rate_is_kept_for_the_device_of_the_image() {
        let root = FakeRoot::new()
            .proc("swaps", "Filename Type Size Used Priority\n/dev/vda2 partition 4096 0 10\n")
            .sys("power/state", "disk\n")
            .sys("power/disk", "[platform]\n")
            .sys("power/resume", "254:2\n")
            .sys("class/block/vda2/dev", "254:2\n");
        let kernel = Kernel::open(root.path()).expect("a root");
        let saved = |device: &str| load(root.path(), Path::new(device));
        assert_eq!(saved("/dev/vda2"), None);
        keep(&kernel, root.path(), Bytes::mib(7));
        assert_eq!((saved("/dev/vda2"), saved("/dev/vda3")), (Some(Bytes::mib(7)), None));
        // The daemon's measurement counts if it is the last one.
        let (path, text) = file(&kernel, root.path(), Bytes::mib(9)).expect("a machine that hibernates");
        std::fs::create_dir_all(paths::state_dir(root.path())).expect("made");
        std::fs::write(&path, text).expect("written");
        let daemons = std::fs::File::options().write(true).open(&path).expect("a file");
        for (age, expected) in [(0, 9), (3600, 7)] {
            daemons.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("changed");
            assert_eq!(saved("/dev/vda2"), Some(Bytes::mib(expected)));
        }
        keep(&kernel, root.path(), Bytes::ZERO);
        assert_eq!(saved("/dev/vda2"), None);
        // A machine that cannot hibernate keeps none.
        root.write("sys/power/disk", "[disabled]\n");
        assert_eq!(file(&kernel, root.path(), Bytes::mib(7)), None);
        assert!(is_disk_only(&kernel));
        root.write(
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram0 partition 4096 0 10\n/dev/vda2 partition 4096 0 1\n",
        );
        assert!(!is_disk_only(&kernel));
        root.write("proc/swaps", "Filename Type Size Used Priority\n");
        assert!(!is_disk_only(&kernel));
    }
}
