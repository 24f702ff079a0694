//! Raises `/sys/power/image_size` from right before the kernel makes an image until resume, if the
//! kernel could reclaim too little to be worth a search.
//!
//! The old value is on disk before it is changed. `omr hibernate`, or the hook that systemd runs
//! before and after every sleep, restores it after resume. If that program is killed meanwhile, the
//! next preparation or sleep restores it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use omr_actuate::{Actuator, Outcome};
use omr_base::paths;
use omr_base::storage::{make_dir_for_members, write_atomically};
use omr_kernel::Kernel;
use omr_kernel::hibernate::Hibernation;
use omr_policy::Config;
use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::prepare::image;

/// The entry on disk.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The kernel's boot id: the value does not outlive a boot.
    boot: String,
    /// The old value.
    before: Bytes,
    /// The value that omr has set. Any other value is from another program, and stays.
    raised: Bytes,
}

/// Raises `image_size` if that saves the kernel a search for little memory, unless the
/// configuration forbids it. Returns the new value; `None`: not raised. See
/// [`omr_policy::forecast::Forecast::worth_copying`].
pub fn raise(kernel: &Kernel, root: &Path, config: &Config, actuator: &mut dyn Actuator) -> Result<Option<Bytes>> {
    restore(kernel, root, actuator)?;
    if !config.hibernate.raise_image_size {
        return Ok(None);
    }
    let forecast = image::forecast(kernel).context("the memory in use cannot be read")?;
    let Ok(place) = image::place(kernel, root) else { return Ok(None) };
    let raised = forecast.worth_copying(place.device.free());
    let (Some(raised), Some(before)) = (raised, Hibernation::read(kernel).image_size) else { return Ok(None) };
    let state_dir = paths::state_dir(root);
    make_dir_for_members(&state_dir).with_context(|| format!("create {}", state_dir.display()))?;
    let file = paths::image_size(&state_dir);
    let note = Note { boot: kernel.read_boot_id()?, before, raised };
    write_atomically(&file, &serde_json::to_vec(&note)?)?;
    if let Err(err) = set(kernel, actuator, raised) {
        let _ = fs::remove_file(&file);
        return Err(err);
    }
    Ok(Some(raised))
}

/// Restores the old value, and returns it; `None`: nothing was to be restored.
pub fn restore(kernel: &Kernel, root: &Path, actuator: &mut dyn Actuator) -> Result<Option<Bytes>> {
    let file = paths::image_size(&paths::state_dir(root));
    let Ok(text) = fs::read(&file) else { return Ok(None) };
    let note = serde_json::from_slice::<Note>(&text);
    let note = note.with_context(|| format!("{}: not what omr writes there; remove it", file.display()))?;
    let is_ours = note.boot == kernel.read_boot_id()? && Hibernation::read(kernel).image_size == Some(note.raised);
    if is_ours {
        set(kernel, actuator, note.before)?;
    }
    fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
    Ok(is_ours.then_some(note.before))
}

fn set(kernel: &Kernel, actuator: &mut dyn Actuator, size: Bytes) -> Result<()> {
    match omr_actuate::hibernate::set_image_size(kernel, actuator, size)? {
        Outcome::Done => Ok(()),
        Outcome::Denied => bail!("image_size could not be set to {}: permission denied; run as root", size.0),
        _ => bail!("image_size could not be set to {}", size.0),
    }
}
