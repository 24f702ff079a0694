//! Switches zram swap off during a preparation for hibernation, so that memory goes to the image's
//! disk.
//!
//! Device names and priorities are saved before any device is switched off. A helper process
//! outlives omr and switches them on again if omr is killed first. If the helper is killed, too,
//! the next `omr prepare` does so. A new boot switches all swap on, so an entry of another boot is
//! ignored.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use omr_actuate::{Actuator, Outcome, Switch};
use omr_base::cancel::{self, Alarm};
use omr_base::paths;
use omr_base::storage::{make_root_state_dir, write_new};
use omr_base::text::printable;
use omr_config::Loaded;
use omr_kernel::memcg::Group;
use omr_kernel::swap::{self, SwapDevice, SwapKind};
use omr_kernel::{Kernel, clock};
use omr_machine::groups::tree::Tree;
use omr_machine::inventory::read_groups;
use omr_policy::forecast::Forecast;
use omr_policy::zram::{Inputs, StaysOn};
use omr_policy::{Class, MinAge};
use omr_units::{Bytes, GroupId, Limit};
use serde::{Deserialize, Serialize};

use crate::holder::Holder;
use crate::prepare::image::Place;
use crate::prepare::{disk_rate, read_free};
use crate::reclaim::limit_journal::{self, Guard};

/// The assumed write rate per second of a disk that was not measured yet: that of a hard disk.
const USUAL_RATE: Bytes = Bytes::mib(100);
/// The longest time for systemd to set up a device again.
const SET_UP: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A swap device with its priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Device {
    path: PathBuf,
    priority: u16,
}

/// The entry on disk.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The kernel's boot id.
    boot: String,
    /// The process that switches the devices on again. While it runs, no other process does so.
    #[serde(flatten)]
    holder: Holder,
    devices: Vec<Device>,
}

/// Returns the zram devices that the kernel fills before the swap of the image, or at the same
/// priority.
pub fn before(kernel: &Kernel, place: &Place) -> Vec<SwapDevice> {
    let mut devices = swap::read(kernel).unwrap_or_default();
    devices.retain(|device| device.kind == SwapKind::Zram && device.priority >= place.device.priority);
    devices
}

/// Asks systemd to start a unit. The command line passes this function, so this crate needs no
/// D-Bus.
pub type StartUnit = fn(unit: &str) -> Result<()>;

/// The zram devices that can be switched off.
#[derive(Debug)]
pub struct Plan {
    devices: Vec<Device>,
    /// Their content, before compression.
    pub held: Bytes,
    /// The memory that can leave because they are off.
    pub leaves: Bytes,
}

impl Plan {
    /// Plans which devices to switch off. The inner `Err` is the reason why zram stays on.
    /// `missing`: see [`crate::prepare::Goal::missing`]; `time`: the time of the whole preparation.
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
                return Ok(Err("its device file was removed".into()));
            }
            let Ok(priority) = u16::try_from(device.priority) else {
                return Ok(Err(format!(
                    "the kernel chose its priority, {}, which cannot be restored; switch it on with a priority of your \
                     own (swapon --priority)",
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
            // The other half of the time is for switching zram off.
            writable: time.map(|time| bytes_written(rate, time / 2)),
            ..Inputs::default()
        };
        let (tree, _) = read_groups(kernel, root, config, true)?;
        if let Err(group) = sum_groups(kernel, &tree, &mut inputs)? {
            let group = printable(&group.to_string_lossy());
            return Ok(Err(format!("{group} has more in swap than fits under its memory.high or memory.max")));
        }
        inputs.in_use = forecast.in_use - forecast.per_cpu - pool + held - inputs.cache;
        let movable = inputs.movable.min(held);
        Ok(match inputs.stays_on() {
            None => Ok(Plan { devices, held, leaves: pool - (held - movable) }),
            Some(keep) => Err(describe(keep, place)),
        })
    }

    /// Saves the devices and switches them off. On an error they are on as before. `time`: the
    /// longest time for this. Call this while the process has one thread: see
    /// [`limit_journal::guard`].
    pub fn switch_off<'a>(
        &self,
        kernel: &'a Kernel,
        root: &'a Path,
        actuator: &mut dyn Actuator,
        start_unit: StartUnit,
        time: Option<Duration>,
    ) -> Result<Off<'a>, String> {
        let to_text = |err: anyhow::Error| format!("{err:#}");
        let off = Off::new(kernel, root, start_unit, self.devices.clone(), actuator).map_err(to_text)?;
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
                Ok(Outcome::Interrupted) => "switching it off took more than half of the time".to_owned(),
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

/// Returns the bytes that a disk writes in this time.
fn bytes_written(rate: Bytes, time: Duration) -> Bytes {
    Bytes(u64::try_from(u128::from(rate.0).saturating_mul(time.as_millis()) / 1000).unwrap_or(u64::MAX))
}

/// Adds up the memory that groups could lose, and the part of their swap that may leave again. The
/// inner `Err` is a group whose swap does not fit under its limits: its tasks would be slowed down
/// or killed, or lose memory in use.
fn sum_groups(kernel: &Kernel, tree: &Tree, inputs: &mut Inputs) -> Result<Result<(), PathBuf>> {
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
    for group in tree.groups(MinAge::Any).filter(|group| group.class == Class::Background) {
        let (Some(current), Some(unprotected)) = (group.current, group.unprotected) else { continue };
        let kept = |size| group.keep.map_or(Bytes::ZERO, |keep| keep.of(size));
        let gain = (current - kept(current)).min(unprotected);
        inputs.anon += group.swap_backed.unwrap_or_default().min(gain);
        inputs.cache += group.page_cache.unwrap_or_default().min(gain);
        // If the group's memory exceeds its protection, so does the memory that comes back.
        if unprotected > Bytes::ZERO {
            let swapped = swapped.get(&group.id).copied().unwrap_or_default();
            inputs.movable += (current + swapped - kept(current + swapped)).min(swapped);
        }
    }
    Ok(Ok(()))
}

fn describe(keep: StaysOn, place: &Place) -> String {
    let disk = place.name();
    match keep {
        StaysOn::Enough => "the target can be reached with zram on, and less memory moves".into(),
        StaysOn::Memory { needed, free } => {
            format!("its content must fit in memory first: needs {needed}, {free} is free")
        }
        StaysOn::Room { needed, free } => {
            format!("its content and all memory in use would need {needed} on {disk}, which has {free} free")
        }
        StaysOn::Time => format!("{disk} is too slow for its content in this time"),
        StaysOn::Others(bytes) => format!("{bytes} of its content belongs to groups that are not reclaimed"),
    }
}

/// zram devices that are switched off.
#[must_use]
pub struct Off<'a> {
    kernel: &'a Kernel,
    root: &'a Path,
    start_unit: StartUnit,
    devices: Vec<Device>,
    _guard: Guard,
}

impl<'a> Off<'a> {
    /// Saves the devices and starts the helper process. Switches nothing off yet.
    fn new(
        kernel: &'a Kernel,
        root: &'a Path,
        start_unit: StartUnit,
        devices: Vec<Device>,
        actuator: &mut dyn Actuator,
    ) -> Result<Self> {
        make_root_state_dir(root)?;
        let file = paths::zram(root);
        let note = Note { boot: kernel.read_boot_id()?, holder: Holder::this(kernel), devices };
        if !write_new(&file, &serde_json::to_vec(&note)?)? {
            bail!("another omr has switched zram off, or could not switch it on again ({})", file.display());
        }
        let guard = limit_journal::guard(&file, || drop(restore(kernel, root, start_unit, actuator)));
        let guard = guard.inspect_err(|_| drop(fs::remove_file(&file)))?;
        Ok(Off { kernel, root, start_unit, devices: note.devices, _guard: guard })
    }

    /// Switches the devices on again, with their old priorities.
    pub fn switch_on(self, actuator: &mut dyn Actuator) -> Result<()> {
        switch_on(self.kernel, self.root, self.start_unit, &self.devices, actuator)
    }
}

/// Switches on devices that a killed process left off, and returns their names; `None`: there are
/// none.
pub fn restore(
    kernel: &Kernel,
    root: &Path,
    start_unit: StartUnit,
    actuator: &mut dyn Actuator,
) -> Result<Option<String>> {
    let Some(devices) = read_left_off(kernel, root)? else { return Ok(None) };
    switch_on(kernel, root, start_unit, &devices, actuator)?;
    Ok(Some(names(&devices)))
}

/// Logs the devices that a killed process left off. The daemon lacks the right to switch them on.
pub fn warn_of_left(kernel: &Kernel, root: &Path) {
    if let Ok(Some(devices)) = read_left_off(kernel, root) {
        log::warn!(
            "{} (zram) is off since a preparation was killed; to switch it on: omr prepare restore",
            names(&devices)
        );
    }
}

/// Returns the devices that a killed process left off.
fn read_left_off(kernel: &Kernel, root: &Path) -> Result<Option<Vec<Device>>> {
    let file = paths::zram(root);
    let Ok(text) = fs::read(&file) else { return Ok(None) };
    let note = serde_json::from_slice::<Note>(&text);
    let note = note.with_context(|| format!("{}: not what omr writes there; remove it", file.display()))?;
    // swapon of a file that a user can read would show the user all memory.
    if let Some(device) = note.devices.iter().find(|device| !is_zram(&device.path)) {
        bail!("{}: {} is no zram device; remove the file", file.display(), name(device));
    }
    if note.boot != kernel.read_boot_id()? {
        let _ = fs::remove_file(&file);
        return Ok(None);
    }
    Ok((!note.holder.is_other(kernel)).then_some(note.devices))
}

/// Returns true for `/dev/zram0` and so on.
fn is_zram(path: &Path) -> bool {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/zram"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
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

/// Switches on all devices that are off, and removes the entry, unless a later start could succeed
/// where this one failed.
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
        if is_on(kernel, device) || set_up_by_systemd(kernel, root, start_unit, device) {
            continue;
        }
        let switch = Switch::On { priority: device.priority };
        let why = match omr_actuate::swap::switch(kernel, actuator, &device.path, switch) {
            // The device is on already.
            Ok(Outcome::Done | Outcome::Partial) => continue,
            Ok(Outcome::Gone) => "the device is gone".to_owned(),
            Ok(Outcome::Unsupported) => "it is no longer swap".to_owned(),
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
        let _ = fs::remove_file(paths::zram(root));
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("; ")) }
}

/// Asks systemd to set up the device, if systemd has a unit for it. Returns true if the device is
/// on again. zram-generator binds the service that makes the device to the swap unit, so swapoff
/// has reset the device.
fn set_up_by_systemd(kernel: &Kernel, root: &Path, start_unit: StartUnit, device: &Device) -> bool {
    let Some(name) = device.path.strip_prefix("/dev").ok().and_then(Path::to_str) else { return false };
    // Another root is another machine, whose systemd cannot be asked.
    if root != Path::new("/") || !root.join("run/systemd/system").is_dir() {
        return false;
    }
    let began = clock::read_monotonic();
    // systemd may not have noticed yet that the swap is off, and then starts nothing.
    while clock::read_monotonic().since(began) < SET_UP {
        if start_unit(&format!("dev-{name}.swap")).is_err() {
            return false;
        }
        for _ in 0..20 {
            if is_on(kernel, device) {
                return true;
            }
            thread::sleep(CHECK_INTERVAL);
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

    /// A machine on which process 7 has saved two devices. The first one is on.
    fn machine(boot: &str) -> FakeRoot {
        let note = format!(
            r#"{{"boot":"{boot}","pid":7,"devices":[{{"path":"/dev/zram0","priority":5}},{{"path":"/dev/zram1","priority":5}}]}}"#
        );
        FakeRoot::new()
            .proc("sys/kernel/random/boot_id", "this\n")
            .proc("swaps", format!("{HEAD}/dev/zram0 partition 4096 0 5\n"))
            .file("var/lib/omr-root/zram.json", note)
    }

    fn restored(root: &FakeRoot) -> (Vec<String>, bool) {
        let kernel = Kernel::open(root.path()).expect("a root");
        let mut transcript = Transcript::new(DryRun);
        restore(&kernel, root.path(), |_| bail!("no systemd"), &mut transcript).expect("restored");
        let lines = transcript.lines().into_iter().map(|(path, line)| format!("{} {line}", path.display())).collect();
        (lines, root.resolve("var/lib/omr-root/zram.json").exists())
    }

    #[test]
    fn devices_are_switched_on_with_their_old_priorities() {
        let root = machine("this");
        let device = root.resolve("proc/1/root/dev/zram1");
        let line = format!("{} swapon, priority 5", device.display());
        assert_eq!(restored(&root), (vec![line], false));
        assert_eq!(restored(&root), (vec![], false));
    }

    /// A kernel with these answers to swapon.
    struct Answers(Vec<omr_kernel::Result<Outcome>>);

    impl Actuator for Answers {
        fn write(&mut self, _: &omr_kernel::Dir, _: &str, _: &str) -> omr_kernel::Result<Outcome> {
            unreachable!("nothing is written")
        }

        fn advise(
            &mut self,
            _: &omr_kernel::process::Process,
            _: omr_actuate::Advice,
            _: &[std::ops::Range<u64>],
        ) -> omr_kernel::Result<omr_actuate::AdviseResult> {
            unreachable!("nothing is hinted")
        }

        fn swap(&mut self, _: &Path, _: Switch) -> omr_kernel::Result<Outcome> {
            self.0.remove(0)
        }

        fn is_live(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_note_stays_if_a_later_start_could_switch_the_devices_on() {
        let broken =
            || Err(omr_kernel::Error::Parse { path: "/dev/zram1".into(), what: "an input or output error".into() });
        for (answer, says, stays) in [
            (Ok(Outcome::Done), None, false),
            (Ok(Outcome::Partial), None, false),
            (Ok(Outcome::Gone), Some("the device is gone"), false),
            (Ok(Outcome::Unsupported), Some("it is no longer swap"), false),
            (Ok(Outcome::Denied), Some("no permission (CAP_SYS_ADMIN, CAP_SYS_PTRACE)"), true),
            (broken(), Some("an input or output error"), true),
        ] {
            let root = machine("this");
            let kernel = Kernel::open(root.path()).expect("a root");
            let ran = restore(&kernel, root.path(), |_| bail!("no systemd"), &mut Answers(vec![answer]));
            match says {
                None => assert_eq!(ran.expect("restored").as_deref(), Some("/dev/zram0, /dev/zram1")),
                Some(says) => {
                    let err = ran.expect_err(says).to_string();
                    assert!(
                        err.starts_with("/dev/zram1 is off and could not be switched on again: ") && err.contains(says),
                        "{err}"
                    );
                }
            }
            assert_eq!(root.resolve("var/lib/omr-root/zram.json").exists(), stays, "{says:?}");
        }
    }

    #[test]
    fn devices_that_were_switched_off_are_switched_on_again_at_the_end() {
        let root = machine("this");
        let kernel = Kernel::open(root.path()).expect("a root");
        let off = |root: &FakeRoot| {
            root.write("proc/swaps", HEAD);
            let devices = ["/dev/zram0", "/dev/zram1"].map(|path| Device { path: path.into(), priority: 5 }).to_vec();
            Off {
                kernel: &kernel,
                root: Path::new("/nowhere"),
                start_unit: |_| Ok(()),
                devices,
                _guard: Guard::of_nobody(),
            }
        };
        let mut transcript = Transcript::new(DryRun);
        off(&root).switch_on(&mut transcript).expect("switched on");
        let devices = ["zram0", "zram1"].map(|name| root.resolve("proc/1/root/dev").join(name));
        assert_eq!(transcript.lines(), devices.map(|device| (device, "swapon, priority 5".to_owned())));
        let err =
            off(&root).switch_on(&mut Answers(vec![Ok(Outcome::Gone), Ok(Outcome::Denied)])).expect_err("both are off");
        assert!(
            err.to_string().contains("/dev/zram0 is off") && err.to_string().contains("; /dev/zram1 is off"),
            "{err}"
        );
    }

    #[test]
    fn an_entry_of_another_boot_is_ignored() {
        assert_eq!(restored(&machine("another")), (vec![], false));
    }

    #[test]
    fn devices_of_a_running_omr_stay_off() {
        let stat = "7 (omr) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0";
        let root = machine("this").proc("7/stat", stat).proc("7/comm", "omr\n");
        assert_eq!(restored(&root), (vec![], true));
        root.write("proc/7/comm", "omr-daemon\n");
        assert_eq!(restored(&root), (vec![], true));
        // The control: the process is another program by now.
        root.write("proc/7/comm", "sh\n");
        assert!(!restored(&root).1);
    }

    #[test]
    fn nothing_but_zram_is_switched_on() {
        for path in ["/home/user/file", "/dev/zram", "/dev/zram1/../../home/user/file", "/dev/vda", "zram1"] {
            let root = machine("this");
            root.write(
                "var/lib/omr-root/zram.json",
                root.read("var/lib/omr-root/zram.json").replace("/dev/zram1", path),
            );
            let kernel = Kernel::open(root.path()).expect("a root");
            let mut transcript = Transcript::new(DryRun);
            let err = restore(&kernel, root.path(), |_| Ok(()), &mut transcript).expect_err("no zram device");
            assert!(err.to_string().contains("is no zram device"), "{path}: {err}");
            assert!(transcript.lines().is_empty(), "{path}");
        }
    }

    #[test]
    fn a_disk_writes_its_rate_times_the_time() {
        assert_eq!(bytes_written(Bytes::mib(100), Duration::from_millis(2500)), Bytes::mib(250));
        assert_eq!(bytes_written(Bytes::MAX, Duration::MAX), Bytes::MAX);
    }

    /// A machine with a group that has 6 MiB of memory and 3 MiB in swap, and one that has no swap.
    fn with_groups() -> FakeRoot {
        let root = FakeRoot::new();
        for (path, current, swapped) in [("a", 6, 3), ("b", 2, 0)] {
            let mib = |mib: u64| (mib << 20).to_string();
            for (file, text) in [
                ("memory.current", mib(current)),
                ("memory.swap.current", mib(swapped)),
                ("memory.stat", format!("anon {}\nfile {}\nshmem 0\n", mib(current - 1), mib(1))),
                ("memory.min", "0".into()),
                ("memory.low", "0".into()),
                ("memory.high", "max".into()),
                ("memory.max", "max".into()),
            ] {
                root.write(format!("sys/fs/cgroup/{path}/{file}"), text + "\n");
            }
        }
        root
    }

    fn sums(root: &FakeRoot) -> Result<[Bytes; 3], PathBuf> {
        let kernel = Kernel::open(root.path()).expect("a root");
        let (tree, _) = read_groups(&kernel, root.path(), &Loaded::built_in(), true).expect("groups");
        let mut inputs = Inputs::default();
        let sum = sum_groups(&kernel, &tree, &mut inputs).expect("readable");
        sum.map(|()| [inputs.anon, inputs.cache, inputs.movable])
    }

    #[test]
    fn what_groups_can_lose_is_their_memory_and_their_swap_beyond_what_is_kept() {
        let root = with_groups();
        assert_eq!(sums(&root), Ok([Bytes::mib(5 + 1), Bytes::mib(1 + 1), Bytes::mib(3)]));
        // Protection covers the whole group, and also what would come back.
        root.write("sys/fs/cgroup/a/memory.low", "max\n");
        assert_eq!(sums(&root), Ok([Bytes::mib(1), Bytes::mib(1), Bytes::ZERO]));
        root.write("sys/fs/cgroup/a/memory.low", (4u64 << 20).to_string());
        assert_eq!(sums(&root), Ok([Bytes::mib(2 + 1), Bytes::mib(1 + 1), Bytes::mib(3)]));
    }

    #[test]
    fn a_group_whose_swap_does_not_fit_under_its_limit_keeps_zram_on() {
        let root = with_groups();
        let fits = |file: &str, mib: u64, less: u64| {
            root.write(format!("sys/fs/cgroup/a/{file}"), ((mib << 20) - less).to_string());
            let fits = sums(&root).map(|_| ());
            root.write(format!("sys/fs/cgroup/a/{file}"), "max\n");
            fits
        };
        for file in ["memory.high", "memory.max"] {
            assert_eq!(fits(file, 9, 0), Ok(()));
            assert_eq!(fits(file, 9, 4096), Err("a".into()));
        }
        // A group without swap gets nothing back, whatever its limit is.
        root.write("sys/fs/cgroup/b/memory.max", (2u64 << 20).to_string());
        assert!(sums(&root).is_ok());
    }

    /// A machine with 6 of 64 MiB of zram in use, which take 2 MiB, and a disk with 1 GiB. Its group
    /// has 24 MiB of anonymous memory and 6 MiB of page cache, and all that is in zram. 100 MiB are
    /// free.
    fn with_zram() -> FakeRoot {
        let root = FakeRoot::in_memory(omr_testkit::Release::V6_12)
            .proc("sys/kernel/random/boot_id", "this\n")
            .proc("zoneinfo", "Node 0, zone Normal\n  pages free 25700\n  high 100\n")
            .sys("block/zram0/mm_stat", "6291456 1000000 2097152 0 0 0 0\n");
        set_swaps(&root, "/dev/zram0", 100);
        crate::stand_in::add_group(&root, "a", 24, 6);
        root.write("sys/fs/cgroup/a/memory.swap.current", (6u64 << 20).to_string());
        root
    }

    fn set_swaps(root: &FakeRoot, zram: &str, priority: i32) {
        let swaps = format!("{zram} partition 65536 6144 {priority}\n/dev/vda2 partition 1048576 0 -9\n");
        root.write("proc/swaps", format!("{HEAD}{swaps}"));
    }

    /// The plan for this memory in use, in MiB. `missing`: in MiB; `time`: in milliseconds.
    fn planned(root: &FakeRoot, in_use: u64, missing: Option<u64>, time: Option<u64>) -> Result<Plan, String> {
        let kernel = Kernel::open(root.path()).expect("a root");
        let device = swap::read(&kernel).expect("swap").pop().expect("a disk");
        let place = Place { device, chosen_by_systemd: false, free_before: Bytes::ZERO, free_in_all: Bytes::ZERO };
        let forecast = Forecast {
            image: Bytes::ZERO,
            in_use: Bytes::mib(in_use),
            fast: Bytes::ZERO,
            largest: Bytes::MAX,
            must_stay: Bytes::ZERO,
            could_leave: omr_policy::forecast::Leaving::default(),
            per_cpu: Bytes::mib(1),
            zram: Bytes::ZERO,
            zswap: Bytes::ZERO,
        };
        let (missing, time) = (missing.map(Bytes::mib), time.map(Duration::from_millis));
        Plan::new(&kernel, root.path(), &Loaded::built_in(), &place, &forecast, missing, time).expect("readable")
    }

    #[test]
    fn zram_is_planned_to_be_off_with_its_devices_and_what_that_frees() {
        let root = with_zram();
        let plan = planned(&root, 400, None, None).expect("a plan");
        assert_eq!(plan.devices, [Device { path: "/dev/zram0".into(), priority: 100 }]);
        assert_eq!((plan.held, plan.leaves), (Bytes::mib(6), Bytes::mib(2)));
        // Of 6 MiB one belongs to nobody who may be reclaimed, and comes back for good.
        root.write("sys/fs/cgroup/a/memory.swap.current", (5u64 << 20).to_string());
        assert_eq!(planned(&root, 400, None, None).expect("a plan").leaves, Bytes::mib(1));
    }

    #[test]
    fn zram_stays_on_for_a_reason_that_is_told() {
        let root = with_zram();
        let kept = |in_use, missing, time| planned(&root, in_use, missing, time).expect_err("it stays on");
        // 6 MiB of page cache leave as well, and 8 of 24 MiB would stay, compressed.
        assert!(kept(400, Some(6), None).starts_with("the target can be reached with zram on"));
        planned(&root, 400, Some(7), None).expect("more than would come back");
        // The CPUs' free pages and the pool are no content; the page cache leaves.
        planned(&root, 1024 + 1 + 2 - 6 + 6, None, None).expect("all of it fits");
        assert!(kept(1024 + 1 + 2 - 6 + 6 + 1, None, None).contains("would need 1.00 GiB on /dev/vda2"));
        // 20 of 30 MiB must be written in half of the time.
        planned(&root, 400, None, Some(400)).expect("in time");
        assert!(kept(400, None, Some(380)).starts_with("/dev/vda2 is too slow"));
        root.write(
            "var/lib/omr/disk-rate.json",
            format!(r#"{{"bytes_per_second":{},"device":"/dev/vda2"}}"#, 50 << 20),
        );
        assert!(kept(400, None, Some(400)).starts_with("/dev/vda2 is too slow"));
        root.write("proc/zoneinfo", "Node 0, zone Normal\n  pages free 1800\n  high 100\n");
        assert_eq!(kept(400, None, None), "its content must fit in memory first: needs 6.75 MiB, 6.64 MiB is free");
        root.write("sys/fs/cgroup/a/memory.high", (32u64 << 20).to_string());
        assert!(kept(400, None, None).starts_with("a has more in swap than fits under"));
        set_swaps(&root, "/dev/zram0", -2);
        assert!(kept(400, None, None).starts_with("the kernel chose its priority, -2, which cannot be restored"));
        set_swaps(&root, "/dev/zram0\\040(deleted)", 5);
        assert_eq!(kept(400, None, None), "its device file was removed");
    }

    #[test]
    fn zram_that_is_filled_before_the_image_is_switched_off_and_other_zram_is_not() {
        let root = FakeRoot::new();
        root.write(
            "proc/swaps",
            format!(
                "{HEAD}/dev/vda2 partition 9 0 5\n/dev/vdb partition 9 0 9\n/dev/zram0 partition 9 0 6\n\
                 /dev/zram1 partition 9 0 5\n/dev/zram2 partition 9 0 4\n"
            ),
        );
        let kernel = Kernel::open(root.path()).expect("a root");
        let device = swap::read(&kernel).expect("swap").remove(0);
        let place = Place { device, chosen_by_systemd: false, free_before: Bytes::ZERO, free_in_all: Bytes::ZERO };
        let paths: Vec<_> = before(&kernel, &place).into_iter().map(|device| device.path).collect();
        assert_eq!(paths, [Path::new("/dev/zram0"), Path::new("/dev/zram1")]);
        let words = |keep| describe(keep, &place);
        assert_eq!(words(StaysOn::Time), "/dev/vda2 is too slow for its content in this time");
        let room = StaysOn::Room { needed: Bytes::mib(9), free: Bytes::mib(7) };
        assert!(words(room).ends_with("9.00 MiB on /dev/vda2, which has 7.00 MiB free"), "{}", words(room));
    }
}
