//! zram swap that is off while memory leaves for a hibernation image, so that it leaves for the image's disk.
//!
//! Which devices, and the priority that they had, is on disk before one is touched. A process of its own waits for
//! that of omr to end without having switched them on again, as after kill -9; the next `omr prepare` does it where
//! that was killed as well. Swap that is off is off until the next boot at most, so a note of another boot is none.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use omr_actuate::{Actuator, Outcome, Switch};
use omr_base::cancel::{self, Alarm};
use omr_base::paths;
use omr_base::storage::write_new;
use omr_base::text::printable;
use omr_config::Loaded;
use omr_kernel::memcg::Group;
use omr_kernel::swap::{self, SwapDevice, SwapKind};
use omr_kernel::{Kernel, clock};
use omr_machine::groups::tree::Tree;
use omr_machine::inventory::read_groups;
use omr_policy::Class;
use omr_policy::forecast::Forecast;
use omr_policy::zram::{Inputs, StaysOn};
use omr_units::{Bytes, GroupId, Limit};
use serde::{Deserialize, Serialize};

use crate::prepare::image::Place;
use crate::prepare::{disk_rate, read_free};
use crate::reclaim::limit_journal::{self, Guard};

/// What a disk is taken to write in a second that was not measured yet: a hard disk.
const USUAL_RATE: Bytes = Bytes::mib(100);
/// How long systemd may take to set a device up anew.
const SET_UP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// A device, and its priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Device {
    path: PathBuf,
    priority: u16,
}

/// What is noted on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The kernel's boot id.
    boot: String,
    /// The process that switches them on again. While it lives that is its business.
    pid: u32,
    devices: Vec<Device>,
}

/// zram that is filled before the swap of the image, or in turn with it.
pub fn before(kernel: &Kernel, place: &Place) -> Vec<SwapDevice> {
    let mut devices = swap::read(kernel).unwrap_or_default();
    devices.retain(|device| device.kind == SwapKind::Zram && device.priority >= place.device.priority);
    devices
}

/// Has systemd start a unit. The command line hands it in, so that nothing here needs the bus.
pub type StartUnit = fn(unit: &str) -> Result<()>;

/// What can be switched off.
#[derive(Debug)]
pub struct Plan {
    devices: Vec<Device>,
    /// What they hold, before compression.
    pub held: Bytes,
    /// Memory that can leave by that.
    pub leaves: Bytes,
}

impl Plan {
    /// What is to be switched off, or why not. `missing`: see [`crate::prepare::Goal::missing`]; `time`: how long there
    /// is.
    pub fn new(
        kernel: &Kernel,
        root: &Path,
        config: &Loaded,
        place: &Place,
        forecast: &Forecast,
        missing: Option<Bytes>,
        time: Option<Duration>,
    ) -> Result<Result<Plan, String>> {
        let found = before(kernel, place);
        let mut devices = Vec::new();
        for device in &found {
            if device.deleted {
                return Ok(Err("its name is gone".into()));
            }
            let Ok(priority) = u16::try_from(device.priority) else {
                return Ok(Err(format!(
                    "its priority, {}, is of the kernel's giving, and cannot be given again; switch it on with one of \
                     its own (swapon --priority)",
                    device.priority
                )));
            };
            devices.push(Device { path: device.path.clone(), priority });
        }
        let held: Bytes = found.iter().map(|device| device.used).sum();
        let pool: Bytes = found.iter().filter_map(|device| swap::read_zram_pool(kernel, device)).sum();
        let rate = disk_rate::load(root, &place.device.path).unwrap_or(USUAL_RATE);
        let mut inputs = Inputs {
            stored: held,
            pool,
            missing,
            free: read_free(kernel)?,
            room: place.device.free(),
            // The other half is for switching it off.
            writable: time.map(|time| written(rate, time / 2)),
            ..Inputs::default()
        };
        let (tree, _) = read_groups(kernel, root, config, true)?;
        if let Err(group) = add_groups(kernel, &tree, &mut inputs)? {
            let group = printable(&group.to_string_lossy());
            return Ok(Err(format!("{group} has more in swap than its memory.high or memory.max lets come back")));
        }
        inputs.in_use = forecast.in_use - forecast.per_cpu - pool + held - inputs.cache;
        let movable = inputs.movable.min(held);
        Ok(match inputs.stays_on() {
            None => Ok(Plan { devices, held, leaves: pool - (held - movable) }),
            Some(keep) => Err(words(keep, place)),
        })
    }

    /// Notes what is on now, and switches it off. An error says why it is on as before. `time`: how long that may take.
    /// While this process has one thread: see [`limit_journal::guard`].
    pub fn switch_off<'a>(
        &self,
        kernel: &'a Kernel,
        root: &'a Path,
        actuator: &mut dyn Actuator,
        start_unit: StartUnit,
        time: Option<Duration>,
    ) -> Result<Off<'a>, String> {
        let said = |err: anyhow::Error| format!("{err:#}");
        let off = Off::new(kernel, root, start_unit, self.devices.clone(), actuator).map_err(said)?;
        let alarm = Alarm::new();
        for device in &off.devices {
            let mut call = || omr_actuate::swap::switch(kernel, actuator, &device.path, Switch::Off);
            let outcome = match time {
                Some(time) => alarm.limit(time, call),
                None => call(),
            };
            let why = match outcome {
                Ok(Outcome::Done) => continue,
                Ok(Outcome::Interrupted) if cancel::signal().is_some() => "interrupted".to_owned(),
                Ok(Outcome::Interrupted) => "switching it off took half of the time there is".to_owned(),
                Ok(Outcome::Denied) => "no permission to switch it off (CAP_SYS_ADMIN, CAP_SYS_PTRACE)".to_owned(),
                Ok(Outcome::Gone | Outcome::Partial | Outcome::Unsupported) => "the device cannot be found".to_owned(),
                Err(err) => err.to_string(),
            };
            return Err(match off.switch_on(actuator) {
                Ok(()) => why,
                Err(err) => format!("{why}; {err:#}"),
            });
        }
        Ok(off)
    }
}

/// What a disk takes in this time.
fn written(rate: Bytes, time: Duration) -> Bytes {
    Bytes(u64::try_from(u128::from(rate.0).saturating_mul(time.as_millis()) / 1000).unwrap_or(u64::MAX))
}

/// Adds up what groups could lose, and what may leave again of what comes back. The path of a group in the way, to
/// which more would come back than it may have: its tasks would be slowed down or killed, or it lose what it uses.
fn add_groups(kernel: &Kernel, tree: &Tree, inputs: &mut Inputs) -> Result<Result<(), PathBuf>> {
    let nodes = tree.nodes();
    let mut buffer = Vec::new();
    let mut own = vec![Bytes::ZERO; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let Some(current) = node.current else { continue };
        let path = tree.path_at(index);
        let Ok(group) = Group::open(kernel.cgroup()?, &path) else { continue };
        // The root has no such file.
        let swapped = group.read_swap_current(&mut buffer).unwrap_or_default();
        for file in ["memory.high", "memory.max"] {
            if swapped > Bytes::ZERO
                && let Ok(Limit::Bytes(limit)) = group.read_limit(file, &mut buffer)
                && limit - current < swapped
            {
                return Ok(Err(path));
            }
        }
        let parent = node.parent as usize;
        own[index] = swapped;
        own[parent] = own[parent] - if parent == index { Bytes::ZERO } else { swapped };
    }
    let swapped: HashMap<GroupId, Bytes> = nodes.iter().zip(own).map(|(node, own)| (node.id, own)).collect();
    for group in tree.groups().filter(|group| group.class == Class::Background) {
        let (Some(current), Some(unprotected)) = (group.current, group.unprotected) else { continue };
        let kept = |size| group.keep.map_or(Bytes::ZERO, |keep| keep.of(size));
        let gain = (current - kept(current)).min(unprotected);
        inputs.anon += group.swap_backed.unwrap_or_default().min(gain);
        inputs.cache += group.page_cache.unwrap_or_default().min(gain);
        // What comes back is above what is protected, where what is there is.
        if unprotected > Bytes::ZERO {
            let swapped = swapped.get(&group.id).copied().unwrap_or_default();
            inputs.movable += (current + swapped - kept(current + swapped)).min(swapped);
        }
    }
    Ok(Ok(()))
}

fn words(keep: StaysOn, place: &Place) -> String {
    let disk = place.name();
    match keep {
        StaysOn::Enough => "what is to leave can leave with it on as well, and less moves".into(),
        StaysOn::Memory { needed, free } => {
            format!("what it holds must fit in memory first, which takes {needed}, and {free} is free")
        }
        StaysOn::Room { needed, free } => {
            format!("{disk} has {free} free, and what it holds and all that is in use would take {needed}")
        }
        StaysOn::Time => format!("{disk} would not take what it holds in the time there is"),
        StaysOn::Others(bytes) => format!("{bytes} of what it holds is of groups from which nothing is taken"),
    }
}

/// zram that is off until this is told to switch it on.
#[must_use]
pub struct Off<'a> {
    kernel: &'a Kernel,
    root: &'a Path,
    start_unit: StartUnit,
    devices: Vec<Device>,
    _guard: Guard,
}

impl<'a> Off<'a> {
    /// Nothing is off yet, but all is ready to be put back.
    fn new(
        kernel: &'a Kernel,
        root: &'a Path,
        start_unit: StartUnit,
        devices: Vec<Device>,
        actuator: &mut dyn Actuator,
    ) -> Result<Self> {
        let state_dir = paths::state_dir(root);
        fs::create_dir_all(&state_dir).with_context(|| format!("create {}", state_dir.display()))?;
        let file = paths::zram(&state_dir);
        let note = Note { boot: kernel.read_boot_id()?, pid: std::process::id(), devices };
        if !write_new(&file, &serde_json::to_vec(&note)?)? {
            bail!("another omr has switched it off, or could not switch it on again ({})", file.display());
        }
        let guard = limit_journal::guard(&file, || drop(restore(kernel, root, start_unit, actuator)));
        let guard = guard.inspect_err(|_| drop(fs::remove_file(&file)))?;
        Ok(Off { kernel, root, start_unit, devices: note.devices, _guard: guard })
    }

    /// Switches it on again, with the priority that it had.
    pub fn switch_on(self, actuator: &mut dyn Actuator) -> Result<()> {
        switch_on(self.kernel, self.root, self.start_unit, &self.devices, actuator)
    }
}

/// Switches on again what a process that is gone has left off; the names of that.
pub fn restore(
    kernel: &Kernel,
    root: &Path,
    start_unit: StartUnit,
    actuator: &mut dyn Actuator,
) -> Result<Option<String>> {
    let Some(devices) = left(kernel, root)? else { return Ok(None) };
    switch_on(kernel, root, start_unit, &devices, actuator)?;
    Ok(Some(names(&devices)))
}

/// Says in the log what is left off: to switch it on is for those who may.
pub fn warn_of_left(kernel: &Kernel, root: &Path) {
    if let Ok(Some(devices)) = left(kernel, root) {
        log::warn!("{} (zram) is off since a preparation was killed; omr prepare restore", names(&devices));
    }
}

/// What a process that is gone has left off.
fn left(kernel: &Kernel, root: &Path) -> Result<Option<Vec<Device>>> {
    let file = paths::zram(&paths::state_dir(root));
    let Ok(text) = fs::read(&file) else { return Ok(None) };
    let note = serde_json::from_slice::<Note>(&text);
    let note = note.with_context(|| format!("{}: not what omr writes there; remove it", file.display()))?;
    if note.boot != kernel.read_boot_id()? {
        let _ = fs::remove_file(&file);
        return Ok(None);
    }
    let is_at_it = note.pid != std::process::id() && limit_journal::is_omr(kernel, note.pid);
    Ok((!is_at_it).then_some(note.devices))
}

fn names(devices: &[Device]) -> String {
    devices.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn name(device: &Device) -> String {
    printable(&device.path.to_string_lossy())
}

fn is_on(kernel: &Kernel, device: &Device) -> bool {
    swap::read(kernel).is_ok_and(|devices| devices.iter().any(|on| on.path == device.path))
}

/// Switches all on that are not, and forgets them; what could be switched on by a later start is kept.
fn switch_on(
    kernel: &Kernel,
    root: &Path,
    start_unit: StartUnit,
    devices: &[Device],
    actuator: &mut dyn Actuator,
) -> Result<()> {
    let mut errors = Vec::new();
    let mut later = false;
    for device in devices {
        if is_on(kernel, device) || set_up(kernel, root, start_unit, device) {
            continue;
        }
        let switch = Switch::On { priority: device.priority };
        let why = match omr_actuate::swap::switch(kernel, actuator, &device.path, switch) {
            // On already.
            Ok(Outcome::Done | Outcome::Partial) => continue,
            Ok(Outcome::Gone) => "the device is gone".to_owned(),
            Ok(Outcome::Unsupported) => "it is no swap any more".to_owned(),
            other => {
                later = true;
                match other {
                    Err(err) => err.to_string(),
                    _ => "no permission (CAP_SYS_ADMIN, CAP_SYS_PTRACE)".to_owned(),
                }
            }
        };
        errors.push(format!("{} is off and could not be switched on again: {why}", name(device)));
    }
    if !later {
        let _ = fs::remove_file(paths::zram(&paths::state_dir(root)));
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("; ")) }
}

/// Has systemd set the device up where it has a unit for it: zram-generator binds what makes the device to the swap's
/// unit, so that switching it off has reset it. Whether it is on again.
fn set_up(kernel: &Kernel, root: &Path, start_unit: StartUnit, device: &Device) -> bool {
    let Some(name) = device.path.strip_prefix("/dev").ok().and_then(Path::to_str) else { return false };
    // Another root is another machine, whose systemd nobody can ask.
    if root != Path::new("/") || !root.join("run/systemd/system").is_dir() {
        return false;
    }
    let began = clock::read_monotonic();
    // systemd may not have noticed yet that it is off, and then there is nothing to start.
    while clock::read_monotonic().since(began) < SET_UP {
        if start_unit(&format!("dev-{name}.swap")).is_err() {
            return false;
        }
        for _ in 0..20 {
            if is_on(kernel, device) {
                return true;
            }
            thread::sleep(LOOK);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use omr_actuate::{DryRun, Transcript};
    use omr_testkit::FakeRoot;

    use super::*;

    const HEAD: &str = "Filename Type Size Used Priority\n";

    /// A machine on which process 7 has noted two devices, of which the first is on.
    fn machine(boot: &str) -> FakeRoot {
        let note = format!(
            r#"{{"boot":"{boot}","pid":7,"devices":[{{"path":"/dev/zram0","priority":5}},{{"path":"/dev/zram1","priority":5}}]}}"#
        );
        FakeRoot::new()
            .proc("sys/kernel/random/boot_id", "this\n")
            .proc("swaps", format!("{HEAD}/dev/zram0 partition 4096 0 5\n"))
            .file("var/lib/omr/zram.json", note)
    }

    fn restored(root: &FakeRoot) -> (Vec<String>, bool) {
        let kernel = Kernel::open(root.path()).expect("a root");
        let mut transcript = Transcript::new(DryRun);
        restore(&kernel, root.path(), |_| bail!("no systemd"), &mut transcript).expect("restored");
        let lines = transcript.lines().into_iter().map(|(path, line)| format!("{} {line}", path.display())).collect();
        (lines, root.resolve("var/lib/omr/zram.json").exists())
    }

    #[test]
    fn what_is_off_is_switched_on_with_the_priority_it_had() {
        let root = machine("this");
        let device = root.resolve("proc/1/root/dev/zram1");
        let line = format!("{} swapon, priority 5", device.display());
        assert_eq!(restored(&root), (vec![line], false));
        assert_eq!(restored(&root), (vec![], false));
    }

    #[test]
    fn of_another_boot_nothing_is_off() {
        assert_eq!(restored(&machine("another")), (vec![], false));
    }

    #[test]
    fn what_an_omr_that_runs_has_switched_off_is_its_business() {
        let stat = "7 (omr) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0";
        let root = machine("this").proc("7/stat", stat).proc("7/comm", "omr\n");
        assert_eq!(restored(&root), (vec![], true));
        // The control: one that is something else by now.
        root.write("proc/7/comm", "sh\n");
        assert!(!restored(&root).1);
    }

    #[test]
    fn a_disk_takes_its_rate_times_the_time() {
        assert_eq!(written(Bytes::mib(100), Duration::from_millis(2500)), Bytes::mib(250));
        assert_eq!(written(Bytes::MAX, Duration::MAX), Bytes::MAX);
    }
}
