//! Ages of process memory from DAMON: the set-up, which a later run recognises, and the bounds of
//! ages.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_actuate::damon::{self, Monitor, Refusal, RegionSample, Stamp, Target};
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_base::lock::{self, Attempt};
use omr_base::paths;
use omr_kernel::damon::Damon;
use omr_kernel::maps::Mapping;
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_kernel::ranges::{Ranges, length};
use omr_kernel::{Kernel, clock};
use omr_units::{Bytes, Monotonic, millis};

use super::measurement::{GroupAges, Measurement};
use super::resident::{self, Idle, Mapped, Sums, cut_regions, split_range};
use crate::session::{Host, NewActuator};

/// The smallest region. Allocators rarely hand out memory in smaller parts.
const SMALLEST: Bytes = Bytes::kib(64);
/// The most regions of one monitor. Each region is a directory with files during set-up and
/// reading.
const MOST: usize = 4096;
/// The time per region between two samples. A sample of a region takes some microseconds, so
/// sampling takes a few percent of one CPU.
const TIME_PER_REGION: Duration = Duration::from_micros(100);
/// The least number of samples in a window.
const FEWEST_SAMPLES: u32 = 20;
/// The most samples in a window; further ones would add no precision.
const MOST_SAMPLES: u32 = 1000;
/// The longest and shortest time between two samples. Reading takes as long as one sample and
/// cannot be interrupted.
const LONGEST: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(20);
/// The number of attempts to set up a monitor while processes end.
const TRIES: u32 = 3;
/// If samples take longer than planned, the wait ends after this many windows.
const PATIENCE: u32 = 4;

/// Returns the state of DAMON, after removing a monitor that an earlier, killed omr left.
pub fn state(kernel: &Kernel, root: &Path, actuator: &mut dyn Actuator) -> Result<Damon> {
    let state = Damon::read(kernel);
    if !matches!(state, Damon::InUse(_)) {
        return Ok(state);
    }
    // If another omr has the lock, its monitor is in use.
    match Lock::try_acquire(kernel, root) {
        Ok(Some(mut lock)) => {
            lock.remove_leftover(kernel, actuator)?;
            Ok(Damon::read(kernel))
        }
        _ => Ok(state),
    }
}

/// The lock file of the one omr that uses DAMON. Contains the boot id and the stamp of the last
/// monitor.
struct Lock {
    lock: lock::Lock,
    boot: String,
}

impl Lock {
    /// Acquires the lock; `None`: another omr has it.
    fn try_acquire(kernel: &Kernel, root: &Path) -> Result<Option<Self>> {
        match lock::Lock::try_take(&paths::damon_lock(root))? {
            Attempt::Taken(lock) => Ok(Some(Lock { lock, boot: kernel.read_boot_id()? })),
            Attempt::Held(_) => Ok(None),
        }
    }

    /// Removes the monitor that a killed omr left behind.
    fn remove_leftover(&mut self, kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<()> {
        let text = self.lock.read()?;
        let stamp = text.trim().split_once(' ').filter(|(boot, _)| *boot == self.boot);
        if let Some(stamp) = stamp.and_then(|(_, stamp)| stamp.parse().ok()) {
            damon::remove_leftover(kernel, actuator, Stamp(stamp))?;
        }
        Ok(())
    }

    /// Makes a stamp and writes it to the file before any set-up. A stamp is for one boot only, so
    /// it need not reach the disk.
    fn write_stamp(&mut self) -> Result<Stamp> {
        let nanos = clock::read_monotonic().0;
        let stamp = Stamp(u32::try_from(nanos % u64::from(u32::MAX)).unwrap_or_default() ^ std::process::id());
        self.lock.write(&format!("{} {}\n", self.boot, stamp.0))?;
        Ok(stamp)
    }
}

/// A running DAMON monitor of processes.
pub struct Watch {
    monitor: Monitor,
    /// The processes in the order of the monitor's targets, each with its ranges that are in no
    /// region.
    processes: Vec<(Mapped, Ranges)>,
    left_out: usize,
    began: Monotonic,
    /// Released when the monitor is removed.
    _lock: Lock,
}

/// The ages of one process.
pub struct ProcessAges<'a> {
    /// The process.
    pub mapped: &'a mut Mapped,
    /// The memory of each mapping that is resident.
    pub resident: Vec<(Mapping, Ranges)>,
    /// The ages of each region.
    pub idle: Vec<Idle>,
}

impl Watch {
    /// Starts to monitor the processes of a group and of the groups below it, for a window of this
    /// length. `is_wanted` chooses the groups.
    pub fn start(
        host: Host<'_>,
        new_actuator: NewActuator<'_>,
        top: &Group,
        window: Duration,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> Result<Self> {
        let Host { kernel, root } = host;
        let Some(mut lock) = Lock::try_acquire(kernel, root)? else {
            return Err(Exit::Failed.error("another omr uses DAMON; only one can at a time"));
        };
        lock.remove_leftover(kernel, &mut *new_actuator())?;
        let mut last = Refusal::Refused;
        for _ in 0..TRIES {
            let (mut processes, left_out) = resident::find_processes(kernel, top)?;
            processes.retain(|mapped| is_wanted(&mapped.group));
            let (processes, targets, interval) = plan_regions(processes, kernel.page().bytes(), window);
            if targets.is_empty() {
                return Err(Exit::Partial.error("no process has memory that DAMON could sample"));
            }
            let stamp = lock.write_stamp()?;
            match Monitor::start(kernel, new_actuator(), stamp, interval, targets)? {
                Ok(monitor) => {
                    let began = clock::read_monotonic();
                    return Ok(Watch { monitor, processes, left_out, began, _lock: lock });
                }
                // A process ended between listing and set-up.
                Err(Refusal::Refused) => last = Refusal::Refused,
                Err(other) => {
                    last = other;
                    break;
                }
            }
        }
        let exit = if last == Refusal::Refused { Exit::Partial } else { Exit::Unsupported };
        Err(exit.error(format!("DAMON {}", refusal(last))))
    }

    /// Waits until DAMON has sampled for the window. Returns false if the monitor has ended; see
    /// [`Watch::end_reason`].
    pub fn wait(&mut self, window: Duration, stop: &Flag) -> Result<bool> {
        let began = clock::read_monotonic();
        let wanted = samples_in(window, self.monitor.interval()) + 1;
        stop.sleep(window);
        while !stop.is_set() {
            let Some(done) = self.monitor.samples()? else { return Ok(false) };
            if done >= wanted {
                return Ok(true);
            }
            let waited = clock::read_monotonic().since(began);
            if waited > window.saturating_mul(PATIENCE) + LONGEST * PATIENCE {
                return Err(Exit::Partial.error(format!(
                    "DAMON made {done} samples in {waited:.0?}, but {wanted} are needed: this machine is too busy"
                )));
            }
            stop.sleep(self.monitor.interval());
        }
        Ok(true)
    }

    /// Returns the number of samples, and the ages of each wanted process that still runs, for
    /// these times. `None`: the monitor has ended.
    pub fn read_ages(
        &mut self,
        times: &[Duration],
        is_wanted: impl Fn(&Mapped) -> bool,
    ) -> Result<Option<(u64, Vec<ProcessAges<'_>>)>> {
        let Watch { monitor, processes, began, .. } = self;
        let Some(samples) = monitor.samples()? else { return Ok(None) };
        let Some(seen) = monitor.read(|place| is_wanted(&processes[place].0))? else { return Ok(None) };
        let interval = monitor.interval();
        let count = u32::try_from(samples).unwrap_or(u32::MAX).max(1);
        let taken = (clock::read_monotonic().since(*began) / count).max(interval);
        let mut all = Vec::new();
        for (((mapped, unsampled), target), seen) in processes.iter_mut().zip(monitor.targets()).zip(seen) {
            if !is_wanted(mapped) {
                continue;
            }
            let resident = match mapped.resident() {
                Ok(resident) => resident,
                Err(err) if err.is_gone() || err.is_denied() => continue,
                Err(err) => return Err(err.into()),
            };
            let mut idle = bound_ages(target, &seen, [interval, taken], times, mapped.changed());
            // Ranges in no region have unknown ages, and unknown is not cold.
            let unknown = |range: &Range<u64>| Idle {
                range: range.clone(),
                least: vec![false; times.len()],
                most: vec![true; times.len()],
            };
            idle.extend(unsampled.as_slice().iter().map(unknown));
            idle.sort_by_key(|idle| idle.range.start);
            all.push(ProcessAges { mapped, resident, idle });
        }
        Ok(Some((samples, all)))
    }

    /// Returns the reason why the monitor has ended.
    pub fn end_reason(&self) -> &'static str {
        // The kernel ends the monitor with its last process.
        match self.processes.iter().any(|(mapped, _)| mapped.process.exists()) {
            true => "another program has taken down DAMON's monitor, so ages are not known",
            false => "all monitored processes have ended",
        }
    }

    /// Returns the ages added up by group. `None`: the monitor has ended.
    pub fn measure(&mut self, kernel: &Kernel, times: &[Duration]) -> Result<Option<Measurement>> {
        let thread = self.monitor.thread().and_then(|pid| Process::open(kernel, pid).ok());
        let cpu = thread.map(|thread| thread.stat().cpu()).unwrap_or_default();
        let regions: Vec<_> = self.monitor.targets().iter().flat_map(|target| &target.regions).collect();
        let bytes: Bytes = regions.iter().map(|region| length(region)).sum();
        let region = u64::try_from(regions.len()).ok().and_then(|count| bytes.0.checked_div(count)).map(Bytes);
        let (all, left_out) = (self.processes.len(), self.left_out);
        let Some((samples, mut found)) = self.read_ages(times, |_| true)? else { return Ok(None) };
        let page = kernel.page().bytes();
        let mut sums = Sums::new(times.len(), page);
        for ProcessAges { mapped, resident, idle } in &mut found {
            for (mapping, resident) in resident {
                // If the process has ended by now, all its memory counts as private.
                let forked =
                    if mapping.shared { Vec::new() } else { mapped.pages_shared_by_fork(resident).unwrap_or_default() };
                let together: Ranges = forked.iter().map(|(at, _)| *at..at + page.0).collect();
                sums.add(&mapped.group, mapping, &resident.without(&together), idle);
                sums.add_forked(&mapped.group, &forked, idle);
            }
        }
        let groups = sums.finish().into_iter().map(|(path, (memory, bounds))| GroupAges {
            path,
            memory,
            idle: times.iter().copied().zip(bounds).collect(),
        });
        let processes = found.len();
        Ok(Some(Measurement {
            groups: groups.collect(),
            samples,
            region,
            processes,
            left_out: left_out + all - processes,
            cpu,
        }))
    }
}

/// Returns the number of samples in a window.
fn samples_in(window: Duration, interval: Duration) -> u64 {
    u64::try_from(window.as_micros().div_ceil(interval.as_micros().max(1))).unwrap_or(u64::MAX)
}

/// Returns the regions and the time between two samples: as many regions as are sampled often
/// enough in the window.
fn plan_regions(found: Vec<Mapped>, page: Bytes, window: Duration) -> (Vec<(Mapped, Ranges)>, Vec<Target>, Duration) {
    let interval = (window / FEWEST_SAMPLES).clamp(SHORTEST, LONGEST);
    let most = usize::try_from(interval.as_micros() / TIME_PER_REGION.as_micros()).unwrap_or(MOST).clamp(1, MOST);
    let mut with_memory = Vec::new();
    for mut mapped in found {
        // A process that has ended meanwhile has no memory.
        let Ok(resident) = mapped.resident() else { continue };
        let ranges: Ranges = resident.iter().flat_map(|(_, present)| present.as_slice().iter().cloned()).collect();
        if !ranges.is_empty() {
            with_memory.push((mapped, ranges));
        }
    }
    let total: Bytes = with_memory.iter().map(|(_, ranges)| ranges.bytes()).sum();
    let (mut processes, mut targets) = (Vec::new(), Vec::new());
    for (mapped, ranges) in with_memory {
        // Each process gets regions in proportion to its memory.
        let share = u128::from(ranges.bytes().0) * most as u128 / u128::from(total.0.max(1));
        let regions = cut_regions(&ranges, SMALLEST, usize::try_from(share).unwrap_or(MOST).max(1), page);
        let unsampled = ranges.without(&regions.iter().cloned().collect());
        targets.push(Target { pid: mapped.process.stat().pid, regions });
        processes.push((mapped, unsampled));
    }
    // The kernel would split a single region.
    if let [Target { regions, .. }] = targets.as_mut_slice()
        && let [region] = regions.as_slice()
    {
        *regions = split_range(region, 2, page).collect();
    }
    let regions: usize = targets.iter().map(|target| target.regions.len()).sum();
    let interval =
        TIME_PER_REGION.saturating_mul(u32::try_from(regions).unwrap_or(u32::MAX)).max(window / MOST_SAMPLES);
    let interval = interval.clamp(SHORTEST, LONGEST);
    (processes, targets, Duration::from_millis(millis(interval)))
}

/// Returns the bounds of ages of a process's regions.
///
/// Use may end anywhere within a region. So an unused region is in the *least* only if its
/// neighbours are unused, too, and a used region is in the *most* if a neighbour is unused.
/// `between` is the time between two samples, at least and on average: on a busy machine the
/// samples themselves take long.
fn bound_ages(
    target: &Target,
    seen: &[RegionSample],
    between: [Duration; 2],
    times: &[Duration],
    changed: &Ranges,
) -> Vec<Idle> {
    let [least, usual] = between;
    let is_in_least = |seen: &RegionSample, time: Duration| !seen.used && least.saturating_mul(seen.age) >= time;
    // An age begins within the sample before it.
    let is_in_most =
        |seen: &RegionSample, time: Duration| !seen.used && usual.saturating_mul(seen.age.saturating_add(2)) >= time;
    let regions = &target.regions;
    let neighbours = |place: usize| {
        let before = place.checked_sub(1).filter(|&before| regions[before].end == regions[place].start);
        let after =
            Some(place + 1).filter(|&after| regions.get(after).is_some_and(|next| next.start == regions[place].end));
        before.into_iter().chain(after)
    };
    let idle_of = |place: usize| Idle {
        range: regions[place].clone(),
        least: times
            .iter()
            .map(|&time| {
                is_in_least(&seen[place], time)
                    && neighbours(place).all(|other| is_in_least(&seen[other], time))
                    && changed.within(&regions[place]).is_empty()
            })
            .collect(),
        most: times
            .iter()
            .map(|&time| {
                is_in_most(&seen[place], time) || neighbours(place).any(|other| is_in_most(&seen[other], time))
            })
            .collect(),
    };
    (0..regions.len().min(seen.len())).map(idle_of).collect()
}

/// Describes why DAMON is not available, and how to make it available.
pub fn refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::State(Damon::NotBuilt) => {
            "is not in this kernel: needs Linux 6.2 built with CONFIG_DAMON_SYSFS".into()
        }
        Refusal::State(Damon::Denied) => "is closed to this user: run as root".into(),
        Refusal::State(Damon::InUse(n)) => {
            let monitors = if n == 1 { "a monitor".to_owned() } else { format!("{n} monitors") };
            format!(
                "is in use: another program has set up {monitors}, which omr does not change; stop that program, or its monitor"
            )
        }
        Refusal::State(Damon::Free | Damon::Unknown) => "has an interface here that omr does not know".into(),
        Refusal::NoRanges => "cannot sample processes here: needs Linux 6.2 built with CONFIG_DAMON_VADDR".into(),
        Refusal::Exclusive => {
            "is used by the kernel itself: write N to \"enabled\" of the modules damon_stat, damon_reclaim and \
                               damon_lru_sort, below /sys/module/*/parameters"
                .into()
        }
        Refusal::Refused => "refuses these processes, as they end as fast as they are listed; try again".into(),
    }
}

#[cfg(test)]
mod tests {
    use omr_actuate::Outcome;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Area, FakeDamon, PAGE, anon, set_mappings, set_process, set_start, stop_clocks};

    const SECOND: Duration = Duration::from_secs(1);
    /// 64 KiB of memory.
    const MEMORY: &str = "pppppppppppppppp";

    /// A machine with a group that has a group below it, each with a process, and another group.
    fn machine() -> (FakeRoot, Kernel, Group) {
        let files = [("memory.stat", ""), ("cgroup.procs", "")];
        let root = FakeRoot::in_memory(Release::V6_12).group("a", &files).group("a/b", &files).group("other", &files);
        set_process(&root, 11, "a", &[anon(0x10_0000, MEMORY), Area { file: 7, ..anon(0x20_0000, "p") }]);
        set_process(&root, 12, "a/b", &[anon(0x10_0000, &MEMORY.repeat(3))]);
        set_process(&root, 13, "other", &[anon(0x10_0000, MEMORY)]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        (root, kernel, group)
    }

    fn start(root: &FakeRoot, kernel: &Kernel, group: &Group, damon: &FakeDamon) -> Result<Watch> {
        let new: NewActuator<'_> = &|| Box::new(damon.clone());
        Watch::start(Host { kernel, root: root.path() }, new, group, 60 * SECOND, |_| true)
    }

    fn never_used(_: u64) -> (u32, u32) {
        (0, 1000)
    }

    #[test]
    fn a_monitor_samples_the_private_memory_of_the_groups_processes() {
        let _clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let damon = FakeDamon::new(&root, never_used);
        let watch = start(&root, &kernel, &group, &damon).expect("a monitor");
        assert_eq!(damon.written("pid_target"), ["11", "12"]);
        // Regions of 64 KiB: one of the first process, three of the second.
        assert_eq!(damon.written("/nr_regions"), ["1", "3"]);
        let hex =
            |all: Vec<String>| all.iter().map(|n| format!("{:x}", n.parse::<u64>().expect("it"))).collect::<Vec<_>>();
        assert_eq!(hex(damon.written("/start")), ["100000", "100000", "110000", "120000"]);
        assert_eq!(hex(damon.written("/end")), ["110000", "110000", "120000", "130000"]);
        // A thousandth of the window.
        assert_eq!(damon.written("sample_us"), ["60000"]);
        let lock = root.read("run/omr-root/damon.lock");
        let stamp = damon.written("update_us").pop().expect("a stamp");
        assert_eq!(lock, format!("{} {stamp}\n", kernel.read_boot_id().expect("a boot")));
        let again = start(&root, &kernel, &group, &damon).map(drop).expect_err("one at a time");
        assert_eq!(again.to_string(), "another omr uses DAMON; only one can at a time");
        drop(watch);
        assert_eq!(Damon::read(&kernel), Damon::Free, "the monitor is removed");
        start(&root, &kernel, &group, &damon).expect("free again");
    }

    #[test]
    fn a_monitor_is_only_of_wanted_groups_and_needs_memory() {
        let _clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let damon = FakeDamon::new(&root, never_used);
        let new: NewActuator<'_> = &|| Box::new(damon.clone());
        let host = Host { kernel: &kernel, root: root.path() };
        drop(Watch::start(host, new, &group, SECOND, |path| path == Path::new("a")).expect("a monitor"));
        assert_eq!(damon.written("pid_target"), ["11"]);
        assert_eq!(damon.written("/nr_regions"), ["2"], "the kernel would split a single one");
        let none = Watch::start(host, new, &group, SECOND, |_| false).map(drop).expect_err("no process");
        assert_eq!(none.to_string(), "no process has memory that DAMON could sample");
        assert_eq!(damon.written("nr_kdamonds").len(), 2, "nothing was set up");
    }

    #[test]
    fn a_refused_monitor_is_tried_again_only_while_processes_may_end() {
        let _clocks = stop_clocks();
        let (root, kernel, group) = machine();
        for (text, outcome, tries, says) in [
            ("0/state on", Outcome::Unsupported, 3, "DAMON refuses these processes"),
            ("0/state on", Outcome::Denied, 1, "DAMON is closed to this user"),
            ("operations", Outcome::Unsupported, 1, "DAMON cannot sample processes here"),
        ] {
            let damon = FakeDamon::new(&root, never_used).refusing(text, outcome);
            let err = start(&root, &kernel, &group, &damon).map(drop).expect_err(says);
            assert!(err.to_string().starts_with(says), "{err}");
            assert_eq!(damon.written("operations").len(), tries, "{text}");
            assert_eq!(Damon::read(&kernel), Damon::Free);
        }
    }

    #[test]
    fn a_monitor_that_a_killed_omr_left_is_removed_and_others_stay() {
        let _clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let mut damon = FakeDamon::new(&root, never_used);
        let mut state_with = |lock: String| {
            std::mem::forget(start(&root, &kernel, &group, &damon).expect("a monitor").monitor);
            let stamp = damon.written("update_us").pop().expect("a stamp");
            root.write("run/omr-root/damon.lock", lock.replace("STAMP", &stamp));
            let state = state(&kernel, root.path(), &mut damon).expect("a state");
            root.write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
            state
        };
        let boot = kernel.read_boot_id().expect("a boot");
        assert_eq!(state_with(format!("{boot} STAMP\n")), Damon::Free);
        assert_eq!(state_with(format!("{boot} 1\n")), Damon::InUse(1), "another program's");
        assert_eq!(state_with("another STAMP\n".into()), Damon::InUse(1), "of another boot");
        // Another omr has the lock, so its monitor is in use.
        let held = start(&root, &kernel, &group, &damon).expect("a monitor");
        assert_eq!(state(&kernel, root.path(), &mut damon).expect("a state"), Damon::InUse(1));
        drop(held);
    }

    #[test]
    fn a_wait_ends_after_the_samples_of_the_window() {
        let clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let damon = FakeDamon::new(&root, never_used);
        let mut watch = start(&root, &kernel, &group, &damon).expect("a monitor");
        let interval = Duration::from_millis(60);
        assert!(watch.wait(60 * SECOND, &Flag::default()).expect("a wait"));
        assert_eq!(clocks.passed(), 60 * SECOND + interval, "one more than fits into it");
        let set = Flag::default();
        set.set();
        assert!(watch.wait(60 * SECOND, &set).expect("a wait"));
        assert_eq!(clocks.passed(), 60 * SECOND + interval);
        // Another program has taken the monitor down.
        root.remove("sys/kernel/mm/damon/admin/kdamonds/0");
        assert!(!watch.wait(SECOND, &Flag::default()).expect("a wait"));
        assert!(watch.end_reason().starts_with("another program"));
        assert!(watch.read_ages(&[SECOND], |_| true).expect("no error").is_none());
        assert!(watch.measure(&kernel, &[SECOND]).expect("no error").is_none());
        // One process of two has ended.
        set_start(&root, 11, 111);
        assert!(watch.end_reason().starts_with("another program"));
        root.remove("proc/12");
        assert_eq!(watch.end_reason(), "all monitored processes have ended");
    }

    #[test]
    fn a_wait_for_a_machine_that_is_too_busy_ends() {
        let clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let damon = FakeDamon::new(&root, never_used);
        let mut watch = start(&root, &kernel, &group, &damon).expect("a monitor");
        // Samples take a hundred times as long.
        root.write("sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/monitoring_attrs/intervals/sample_us", "6000000\n");
        let err = watch.wait(60 * SECOND, &Flag::default()).expect_err("too few samples");
        assert!(err.to_string().contains("but 1001 are needed: this machine is too busy"), "{err}");
        let longest = 4 * 60 * SECOND + 4 * LONGEST;
        assert!(clocks.passed() > longest && clocks.passed() < longest + SECOND, "{:?}", clocks.passed());
    }

    #[test]
    fn a_measurement_has_the_ages_of_each_group() {
        let clocks = stop_clocks();
        let (root, kernel, group) = machine();
        // The first of the three regions of the second process was used just now.
        let damon = FakeDamon::new(&root, |start| (u32::from(start == 0x11_0000), 100));
        set_mappings(&root, 12, &[anon(0x11_0000, &MEMORY.repeat(3))]);
        let mut watch = start(&root, &kernel, &group, &damon).expect("a monitor");
        watch.wait(60 * SECOND, &Flag::default()).expect("a wait");
        root.write("sys/kernel/mm/damon/admin/kdamonds/0/pid", "77\n");
        root.write("proc/77/stat", "77 (kdamond) S 1 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 1 0 9 0\n");
        // It samples every 60 ms, so 100 samples are 6 s.
        let times = [6 * SECOND, 7 * SECOND];
        let Measurement { groups, samples, region, processes, left_out, cpu } =
            watch.measure(&kernel, &times).expect("readable").expect("a measurement");
        assert_eq!((samples, processes, left_out), (1001, 2, 0));
        assert_eq!((region, cpu), (Some(Bytes::kib(64)), Duration::from_millis(420)));
        let bounds = |least, most| omr_policy::age::Bounds { least: Bytes::kib(least), most: Bytes::kib(most) };
        let of = |path: &str, kib, old| GroupAges {
            path: path.into(),
            memory: Bytes::kib(kib),
            idle: vec![(times[0], old), (times[1], bounds(0, 0))],
        };
        // The region beside the used one is not surely unused, and the used one may be unused.
        assert_eq!(groups, [of("a", 64, bounds(64, 64)), of("a/b", 192, bounds(64, 192))]);
        // One process has ended, and one has new memory, which was used.
        root.write("proc/11/maps", "");
        set_mappings(&root, 12, &[anon(0x11_0000, &MEMORY.repeat(3)), anon(0x40_0000, "pp")]);
        let then = watch.measure(&kernel, &times).expect("readable").expect("a measurement");
        assert_eq!((then.processes, then.left_out), (1, 1));
        assert_eq!(then.groups, [of("a/b", 192 + 8, bounds(64, 192))]);
        drop(watch);
        assert!(clocks.passed() > 60 * SECOND);
    }

    #[test]
    fn memory_that_processes_share_since_a_fork_is_measured_once() {
        let _clocks = stop_clocks();
        let (root, kernel, group) = machine();
        let both = "cccccccccccccccc";
        set_process(&root, 11, "a", &[anon(0x10_0000, both)]);
        set_process(&root, 12, "a", &[anon(0x10_0000, both), anon(0x20_0000, MEMORY)]);
        let damon = FakeDamon::new(&root, never_used);
        let mut watch = start(&root, &kernel, &group, &damon).expect("a monitor");
        watch.wait(60 * SECOND, &Flag::default()).expect("a wait");
        let found = watch.measure(&kernel, &[SECOND]).expect("readable").expect("a measurement");
        let all = Bytes::kib(64 + 64);
        let bounds = omr_policy::age::Bounds { least: all, most: all };
        assert_eq!(found.groups, [GroupAges { path: "a".into(), memory: all, idle: vec![(SECOND, bounds)] }]);
    }

    #[test]
    fn there_are_as_many_regions_as_are_sampled_often_enough() {
        let (root, kernel, group) = machine();
        // Both have holes that are too large for one region.
        let holes: Vec<_> = (0..300).map(|place| anon(0x100_0000 + place * 0x2_0000, "p")).collect();
        set_process(&root, 11, "a", &holes);
        set_process(&root, 12, "a", &[anon(0x10_0000, &"p".repeat(900))]);
        let plan = |window: Duration| {
            let (found, left_out) = resident::find_processes(&kernel, &group).expect("processes");
            assert_eq!((found.len(), left_out), (2, 0));
            let (processes, targets, interval) = plan_regions(found, Bytes(PAGE), window);
            let regions: Vec<usize> = targets.iter().map(|target| target.regions.len()).collect();
            let unsampled: Vec<u64> = processes.iter().map(|(_, unsampled)| unsampled.bytes().0 / PAGE).collect();
            (regions, unsampled, interval.as_millis())
        };
        // A tenth of a second is for 1,000 regions: a quarter of them for the first process.
        assert_eq!(plan(2 * SECOND), (vec![250, 57], vec![50, 0], 30));
        assert_eq!(plan(SECOND / 10).2, 20, "the shortest time between two samples");
        assert_eq!(plan(3600 * SECOND), (vec![300, 57], vec![0, 0], 3600));
        assert_eq!(plan(36_000 * SECOND).2, 5000, "the longest");
        assert_eq!(samples_in(60 * SECOND, Duration::from_millis(70)), 858);
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let words = |state| refusal(Refusal::State(state));
        assert!(words(Damon::NotBuilt).contains("CONFIG_DAMON_SYSFS") && words(Damon::Denied).contains("root"));
        assert!(words(Damon::InUse(1)).contains("has set up a monitor,"), "{}", words(Damon::InUse(1)));
        assert!(words(Damon::InUse(2)).contains("has set up 2 monitors,"));
        assert!(words(Damon::Unknown).contains("does not know"));
        assert!(refusal(Refusal::NoRanges).contains("CONFIG_DAMON_VADDR"));
        assert!(refusal(Refusal::Exclusive).contains("damon_stat"));
        assert!(refusal(Refusal::Refused).contains("try again"));
    }

    #[test]
    fn a_region_is_surely_unused_only_among_unused_ones() {
        let target = Target { pid: 7, regions: vec![0..4, 4..8, 8..12, 12..16, 20..24, 30..34] };
        let idle = |age| RegionSample { used: false, age };
        let used = RegionSample { used: true, age: 900 };
        let seen = [idle(60), idle(60), used, idle(59), idle(60), idle(10)];
        let found = bound_ages(&target, &seen, [SECOND; 2], &[60 * SECOND, 30 * SECOND], &Ranges::new());
        let all = |time: usize| -> Vec<(bool, bool)> {
            found.iter().map(|idle| (idle.least[time], idle.most[time])).collect()
        };
        let (sure, may_be, not) = ((true, true), (false, true), (false, false));
        // The second region is next to the used one. The fourth is too, and one sample short. The
        // fifth touches no other.
        assert_eq!(all(0), [sure, may_be, may_be, may_be, sure, not]);
        assert_eq!(all(1), [sure, may_be, may_be, may_be, sure, not]);
        // A range that was mapped since is not known.
        let changed = Ranges::from_iter([21..22]);
        let found = bound_ages(&target, &seen, [SECOND; 2], &[60 * SECOND], &changed);
        assert!(!found[4].least[0] && found[0].least[0]);
        // If samples take six times as long, an age of ten samples may be a minute.
        let found = bound_ages(&target, &seen, [SECOND, 6 * SECOND], &[60 * SECOND], &Ranges::new());
        assert!(!found[5].least[0] && found[5].most[0] && found[0].least[0]);
    }

    #[test]
    fn used_regions_are_never_unused() {
        let target = Target { pid: 7, regions: (0..9).map(|n| n * 4..n * 4 + 4).collect() };
        let found =
            bound_ages(&target, &[RegionSample { used: true, age: 100 }; 9], [SECOND; 2], &[SECOND], &Ranges::new());
        assert!(found.iter().all(|idle| !idle.least[0] && !idle.most[0]));
    }
}
