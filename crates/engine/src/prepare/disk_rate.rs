//! The last measured write rate of the swap disk, at which an image would be written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::paths;
use omr_base::storage::write_atomically;
use omr_kernel::{Kernel, swap};
use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::prepare::image;
use crate::reclaim::Report;

const FILE: &str = "disk-rate.json";

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
    let text = std::fs::read(paths::state_dir(root).join(FILE)).ok()?;
    let saved: Saved = serde_json::from_slice(&text).ok()?;
    (saved.device == device.to_string_lossy() && saved.bytes_per_second.0 > 0).then_some(saved.bytes_per_second)
}

/// Saves a rate; see [`file`]. A failed write is only logged.
pub fn keep(kernel: &Kernel, root: &Path, rate: Bytes) {
    let Some((path, text)) = file(kernel, root, rate) else { return };
    if let Err(err) = write_atomically(&path, &text) {
        log::debug!("{err:#}");
    }
}

/// The file that keeps a rate as that of the swap for an image, and its contents; see
/// [`is_disk_only`]. `None`: this machine cannot hibernate.
pub fn file(kernel: &Kernel, root: &Path, rate: Bytes) -> Option<(PathBuf, Vec<u8>)> {
    let place = image::place(kernel, root).ok()?;
    let saved = Saved { bytes_per_second: rate, device: place.device.path.to_string_lossy().into_owned() };
    Some((paths::state_dir(root).join(FILE), serde_json::to_vec(&saved).ok()?))
}

/// Returns true if all swap is on disks. If some swap is zram, a rate is not that of the disk.
pub fn is_disk_only(kernel: &Kernel) -> bool {
    swap::read(kernel).is_ok_and(|devices| !devices.is_empty() && devices.iter().all(|device| device.kind.is_disk()))
}
