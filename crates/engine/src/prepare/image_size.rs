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
use omr_base::storage::{make_root_state_dir, write_atomically};
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
    make_root_state_dir(root)?;
    let file = paths::image_size(root);
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
    let file = paths::image_size(root);
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

#[cfg(test)]
mod tests {
    use omr_actuate::Live;
    use omr_testkit::FakeRoot;

    use super::*;

    /// A machine whose `image_size` is 300, and a note that it was 100 before it was set to 300.
    fn raised(boot: &str) -> FakeRoot {
        let root = FakeRoot::new().proc("sys/kernel/random/boot_id", "this\n").sys("power/image_size", "300\n");
        root.write(note(), format!(r#"{{"boot":"{boot}","before":100,"raised":300}}"#));
        root
    }

    fn note() -> std::path::PathBuf {
        paths::image_size(Path::new("/"))
    }

    fn restored(root: &FakeRoot) -> Option<Bytes> {
        restore(&Kernel::open(root.path()).expect("a root"), root.path(), &mut Live).expect("restored")
    }

    /// A machine of 1 GiB whose kernel uses 400 MiB, and could reclaim little. It reclaims down to 100 MiB.
    fn with_little_to_reclaim() -> FakeRoot {
        let root = FakeRoot::captured(omr_testkit::Release::V6_12)
            .proc("sys/kernel/random/boot_id", "this\n")
            .proc("swaps", "Filename Type Size Used Priority\n/dev/vda2 partition 2097152 0 5\n")
            .sys("class/block/vda2/dev", "254:2\n")
            .sys("power/resume", "254:2\n")
            .sys("power/disk", "[platform]\n")
            .sys("power/state", "freeze mem disk\n")
            .sys("power/reserved_size", "0\n")
            .sys("power/image_size", "104857600");
        let all = 1u64 << 18;
        let zone = format!(
            "Node 0, zone Normal\n  pages free {}\n  high 10\n  spanned {all}\n  present {all}\n  managed {all}\n",
            624u64 << 8
        );
        root.write("proc/zoneinfo", zone);
        for key in ["Active(anon):", "Inactive(anon):", "Active(file):", "Inactive(file):", "SReclaimable:"] {
            crate::stand_in::set_line(&root, "proc/meminfo", key, "1024 kB");
        }
        root
    }

    #[test]
    fn the_size_is_raised_where_the_kernel_would_reclaim_little_and_the_old_one_is_kept() {
        let root = with_little_to_reclaim();
        let kernel = Kernel::open(root.path()).expect("a root");
        let mut config = Config::default();
        let raise = |config: &Config, actuator: &mut dyn Actuator| raise(&kernel, root.path(), config, actuator);
        config.hibernate.raise_image_size = false;
        let mut none = crate::stand_in::Writes(|_: &str| unreachable!("nothing is written"));
        assert_eq!(raise(&config, &mut none).expect("no error"), None);
        config.hibernate.raise_image_size = true;
        let mut refuses = crate::stand_in::Writes(|_: &str| Outcome::Denied);
        raise(&config, &mut refuses).expect_err("denied");
        assert!(!root.resolve(note()).exists(), "there is nothing to restore");
        // An eighth more than is in use.
        let size = raise(&config, &mut Live).expect("no error");
        assert_eq!(size, Some(Bytes::mib(450)));
        assert_eq!(root.read("sys/power/image_size"), "471859200");
        // The old size is that before the first time.
        root.write("sys/power/image_size", "471859200\n");
        assert_eq!(raise(&config, &mut Live).expect("no error"), size);
        assert_eq!(restored(&root), Some(Bytes::mib(100)));
        // A machine that cannot hibernate, and one on which reclaim is worth it.
        root.write("sys/power/image_size", "104857600");
        crate::stand_in::set_line(&root, "proc/meminfo", "Active(anon):", "307200 kB");
        assert_eq!(raise(&config, &mut none).expect("no error"), None);
        crate::stand_in::set_line(&root, "proc/meminfo", "Active(anon):", "1024 kB");
        root.write("sys/power/disk", "[disabled]\n");
        assert_eq!(raise(&config, &mut none).expect("no error"), None);
    }

    #[test]
    fn the_old_size_is_restored_once() {
        let root = raised("this");
        assert_eq!(restored(&root), Some(Bytes(100)));
        assert!(root.read("sys/power/image_size").starts_with("100") && !root.resolve(note()).exists());
        assert_eq!(restored(&root), None);
    }

    #[test]
    fn a_size_of_another_boot_or_of_another_program_stays() {
        let root = raised("another");
        assert_eq!((restored(&root), root.resolve(note()).exists()), (None, false));
        assert_eq!(root.read("sys/power/image_size"), "300\n");
        let root = raised("this");
        root.write("sys/power/image_size", "200\n");
        assert_eq!((restored(&root), root.resolve(note()).exists()), (None, false));
        assert_eq!(root.read("sys/power/image_size"), "200\n");
    }

    #[test]
    fn a_note_is_kept_until_the_size_is_restored() {
        let root = raised("this");
        let mut refuses = crate::stand_in::Writes(|_: &str| Outcome::Denied);
        let kernel = Kernel::open(root.path()).expect("a root");
        let err = restore(&kernel, root.path(), &mut refuses).expect_err("denied");
        assert_eq!(err.to_string(), "image_size could not be set to 100: permission denied; run as root");
        assert!(root.resolve(note()).exists());
    }
}
