//! Hibernation: writes to `/sys/power/state` and `/sys/power/image_size` (Linux 2.6.16, in bytes).
//! Source: kernel/power/main.c, kernel/power/hibernate.c. Nothing here writes to
//! `/sys/power/resume`: a write resumes at once.

use omr_kernel::{Kernel, Result};
use omr_units::Bytes;

use crate::{Actuator, Outcome};

/// Hibernates. Returns after resume, or at once when the machine cannot hibernate. The device was
/// chosen before, at boot or by `resume=`.
///
/// `Done`: the machine hibernated and has resumed. `Partial`: another sleep is under way. `Gone`:
/// there is no device to resume from. `Denied`: not root, or lockdown. Too little memory or swap
/// for the image is an error with the kernel's reason.
pub fn hibernate(kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<Outcome> {
    actuator.write(&kernel.sys.sub("power")?, "state", "disk")
}

/// Sets `image_size`: up to this size the kernel makes an image without reclaiming first. `Denied`:
/// not root.
pub fn set_image_size(kernel: &Kernel, actuator: &mut dyn Actuator, size: Bytes) -> Result<Outcome> {
    actuator.write(&kernel.sys.sub("power")?, "image_size", &size.0.to_string())
}
