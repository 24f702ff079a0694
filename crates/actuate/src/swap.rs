//! Switches swap devices off and on: `swapoff(2)` and `swapon(2)`. Source: mm/swapfile.c.

use std::path::Path;

use omr_kernel::{Kernel, Result};

use crate::{Actuator, Outcome, Switch};

/// Switches a swap device off or on. This takes `CAP_SYS_ADMIN`.
///
/// Off, `Interrupted`: a signal came. The device is on as before, and a part of its pages is in
/// memory. The kernel checks for signals between two processes (mm/swapfile.c, `try_to_unuse()`),
/// so the end can take as long as the largest process. Off, `Unsupported`: the device is not on.
/// On, `Partial`: the device is on already. On, `Unsupported`: the device has no swap header.
///
/// From then on `/proc/swaps` shows the path in the mount namespace by which the device was found:
/// here that of process 1. The mounts of a service disappear with the service, and `/proc/swaps`
/// would show only the last part of such a path.
pub fn switch(kernel: &Kernel, actuator: &mut dyn Actuator, device: &Path, switch: Switch) -> Result<Outcome> {
    let below = device.strip_prefix("/").unwrap_or(device);
    actuator.swap(&kernel.proc.path().join("1/root").join(below), switch)
}
