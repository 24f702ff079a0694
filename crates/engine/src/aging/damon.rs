//! Looking at processes with DAMON: setting it up so that what is left behind is known again, and what its ages say.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use omr_actuate::Actuator;
use omr_actuate::damon::{self, Monitor, Refusal, RegionSample, Stamp, Target};
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_base::paths;
use omr_kernel::damon::Damon;
use omr_kernel::maps::Mapping;
use omr_kernel::memcg::Group;
use omr_kernel::process::Process;
use omr_kernel::ranges::{Ranges, length};
use omr_kernel::{Kernel, clock};
use omr_units::{Bytes, Monotonic, millis};
use rustix::fs::{FlockOperation, flock};

use super::resident::{self, Idle, Mapped, Sums, cut, split};
use super::tracker::{Look, OfGroup, refusal};
use crate::session::{Host, NewActuator};

/// A region is no smaller: memory is seldom used in smaller parts than its allocator hands out at once.
const SMALLEST: Bytes = Bytes::kib(64);
/// Regions of one monitor. Each is a directory with files while it is set up and when it is read.
const MOST: usize = 4096;
/// A look at a region takes some microseconds; with this much time for each, looking takes a few percent of one CPU.
const FOR_EACH: Duration = Duration::from_micros(100);
/// So many looks at least in a window.
const FEWEST_LOOKS: u32 = 20;
/// No more looks than this in a window: they would not say more.
const MOST_LOOKS: u32 = 1000;
/// Between two looks. Reading takes as long and cannot be interrupted.
const LONGEST: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(20);
/// Times that it is tried to find processes that are all still there.
const TRIES: u32 = 3;
/// Where looks take longer than they should, this many times the window is waited.
const PATIENCE: u32 = 4;

/// The state of DAMON. A monitor that an earlier run of this program left there is taken down first.
pub fn state(kernel: &Kernel, root: &Path, actuator: &mut dyn Actuator) -> Result<Damon> {
    let state = Damon::read(kernel);
    if !matches!(state, Damon::InUse(_)) {
        return Ok(state);
    }
    // Where another omr has the lock it is in use.
    match Lock::take(kernel, root) {
        Ok(Some(mut lock)) => {
            lock.clean(kernel, actuator)?;
            Ok(Damon::read(kernel))
        }
        _ => Ok(state),
    }
}

/// Held by the one omr that uses DAMON. In it is the stamp of the monitor of this boot that was set up last.
struct Lock {
    file: File,
    boot: String,
}

impl Lock {
    /// `None`: another has it.
    fn take(kernel: &Kernel, root: &Path) -> Result<Option<Self>> {
        let path = paths::damon_lock(root);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.with_context(|| format!("open {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        Ok(Some(Lock { file, boot: kernel.read_boot_id()? }))
    }

    /// Takes down what a run that was killed has left behind.
    fn clean(&mut self, kernel: &Kernel, actuator: &mut dyn Actuator) -> Result<()> {
        let mut text = String::new();
        self.file.rewind()?;
        (&mut self.file).take(128).read_to_string(&mut text)?;
        let stamp = text.trim().split_once(' ').filter(|(boot, _)| *boot == self.boot);
        if let Some(stamp) = stamp.and_then(|(_, stamp)| stamp.parse().ok()) {
            damon::remove_leftover(kernel, actuator, Stamp(stamp))?;
        }
        Ok(())
    }

    /// A new stamp, noted before anything is set up. Of this boot only, so it need not reach the disk.
    fn stamp(&mut self) -> Result<Stamp> {
        let nanos = clock::read_monotonic().0;
        let stamp = Stamp(u32::try_from(nanos % u64::from(u32::MAX)).unwrap_or_default() ^ std::process::id());
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{} {}\n", self.boot, stamp.0).as_bytes())?;
        Ok(stamp)
    }
}

/// Processes that are looked at.
pub struct Watch {
    monitor: Monitor,
    /// In the order of the monitor's targets; of each what is in no region, as there are too many.
    processes: Vec<(Mapped, Ranges)>,
    left_out: usize,
    began: Monotonic,
    /// Let go of when the monitor is taken down.
    _lock: Lock,
}

/// What was found of one process.
pub struct Found<'a> {
    /// The process.
    pub mapped: &'a mut Mapped,
    /// What of it is in memory.
    pub resident: Vec<(Mapping, Ranges)>,
    /// Its regions.
    pub idle: Vec<Idle>,
}

impl Watch {
    /// Begins to look at the processes of a group and of all below it, as far as their groups are wanted, as a window
    /// of this length needs it.
    pub fn start(
        host: Host<'_>,
        new_actuator: NewActuator<'_>,
        top: &Group,
        window: Duration,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> Result<Self> {
        let Host { kernel, root } = host;
        let Some(mut lock) = Lock::take(kernel, root)? else {
            return Err(Exit::Failed.error("another omr is looking with DAMON; there can be one at a time"));
        };
        lock.clean(kernel, &mut *new_actuator())?;
        let mut last = Refusal::Refused;
        for _ in 0..TRIES {
            let (mut processes, left_out) = resident::find(kernel, top)?;
            processes.retain(|mapped| is_wanted(&mapped.group));
            let (processes, targets, interval) = plan(processes, kernel.page().bytes(), window);
            if targets.is_empty() {
                return Err(Exit::Partial.error("no process there has memory that DAMON could look at"));
            }
            let stamp = lock.stamp()?;
            match Monitor::start(kernel, new_actuator(), stamp, interval, targets)? {
                Ok(monitor) => {
                    let began = clock::read_monotonic();
                    return Ok(Watch { monitor, processes, left_out, began, _lock: lock });
                }
                // One has ended between listing and looking.
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

    /// Waits until it has looked for as long as the window. Whether it still looks: see [`Watch::ended`].
    pub fn wait(&mut self, window: Duration, stop: &Flag) -> Result<bool> {
        let began = clock::read_monotonic();
        let wanted = looks(window, self.monitor.interval()) + 1;
        stop.sleep(window);
        while !stop.is_set() {
            let Some(done) = self.monitor.samples()? else { return Ok(false) };
            if done >= wanted {
                return Ok(true);
            }
            let waited = clock::read_monotonic().since(began);
            if waited > window.saturating_mul(PATIENCE) + LONGEST * PATIENCE {
                return Err(Exit::Partial.error(format!(
                    "DAMON has looked {done} times in {waited:.0?} where {wanted} are needed: this machine is too busy for it"
                )));
            }
            stop.sleep(self.monitor.interval());
        }
        Ok(true)
    }

    /// How often it has looked, and what is known now of each process that is wanted and still there, for these times. `None`:
    /// it does not look any more.
    pub fn read(
        &mut self,
        times: &[Duration],
        is_wanted: impl Fn(&Mapped) -> bool,
    ) -> Result<Option<(u64, Vec<Found<'_>>)>> {
        let Watch { monitor, processes, began, .. } = self;
        let Some(looks) = monitor.samples()? else { return Ok(None) };
        let Some(seen) = monitor.read(|place| is_wanted(&processes[place].0))? else { return Ok(None) };
        let interval = monitor.interval();
        let count = u32::try_from(looks).unwrap_or(u32::MAX).max(1);
        let taken = (clock::read_monotonic().since(*began) / count).max(interval);
        let mut all = Vec::new();
        for (((mapped, not_looked), target), seen) in processes.iter_mut().zip(monitor.targets()).zip(seen) {
            if !is_wanted(mapped) {
                continue;
            }
            let resident = match mapped.resident() {
                Ok(resident) => resident,
                Err(err) if err.is_gone() || err.is_denied() => continue,
                Err(err) => return Err(err.into()),
            };
            let mut idle = judge(target, &seen, [interval, taken], times, mapped.changed());
            // Unknown is not cold.
            let unknown = |range: &Range<u64>| Idle {
                range: range.clone(),
                least: vec![false; times.len()],
                most: vec![true; times.len()],
            };
            idle.extend(not_looked.as_slice().iter().map(unknown));
            idle.sort_by_key(|idle| idle.range.start);
            all.push(Found { mapped, resident, idle });
        }
        Ok(Some((looks, all)))
    }

    /// Why it does not look any more.
    pub fn ended(&self) -> &'static str {
        // The kernel ends it with the last of them.
        match self.processes.iter().any(|(mapped, _)| mapped.process.exists()) {
            true => "another program has taken down DAMON's monitor, so it is not known what was used",
            false => "all its processes have ended",
        }
    }

    /// The same, added up by group. `None`: it does not look any more.
    pub fn look(&mut self, kernel: &Kernel, times: &[Duration]) -> Result<Option<Look>> {
        let thread = self.monitor.thread().and_then(|pid| Process::open(kernel, pid).ok());
        let cpu = thread.map(|thread| thread.stat().cpu()).unwrap_or_default();
        let regions: Vec<_> = self.monitor.targets().iter().flat_map(|target| &target.regions).collect();
        let bytes: Bytes = regions.iter().map(|region| length(region)).sum();
        let region = u64::try_from(regions.len()).ok().and_then(|count| bytes.0.checked_div(count)).map(Bytes);
        let (all, left_out) = (self.processes.len(), self.left_out);
        let Some((looks, mut found)) = self.read(times, |_| true)? else { return Ok(None) };
        let page = kernel.page().bytes();
        let mut sums = Sums::new(times.len(), page);
        for Found { mapped, resident, idle } in &mut found {
            for (mapping, resident) in resident {
                // Of a process that has ended by now, all counts as its own.
                let forked = if mapping.shared { Vec::new() } else { mapped.forked(resident).unwrap_or_default() };
                let together: Ranges = forked.iter().map(|(at, _)| *at..at + page.0).collect();
                sums.add(&mapped.group, mapping, &resident.without(&together), idle);
                sums.add_forked(&mapped.group, &forked, idle);
            }
        }
        let groups = sums.end().into_iter().map(|(path, (memory, bounds))| OfGroup {
            path,
            memory,
            idle: times.iter().copied().zip(bounds).collect(),
        });
        let processes = found.len();
        Ok(Some(Look { groups: groups.collect(), looks, region, processes, left_out: left_out + all - processes, cpu }))
    }
}

/// How many looks there are in a window.
fn looks(window: Duration, interval: Duration) -> u64 {
    u64::try_from(window.as_micros().div_ceil(interval.as_micros().max(1))).unwrap_or(u64::MAX)
}

/// Which regions, and how often: as many as are looked at often enough within the window.
fn plan(found: Vec<Mapped>, page: Bytes, window: Duration) -> (Vec<(Mapped, Ranges)>, Vec<Target>, Duration) {
    let interval = (window / FEWEST_LOOKS).clamp(SHORTEST, LONGEST);
    let most = usize::try_from(interval.as_micros() / FOR_EACH.as_micros()).unwrap_or(MOST).clamp(1, MOST);
    let mut with_memory = Vec::new();
    for mut mapped in found {
        // One that has ended meanwhile.
        let Ok(resident) = mapped.resident() else { continue };
        let ranges: Ranges = resident.iter().flat_map(|(_, present)| present.as_slice().iter().cloned()).collect();
        if !ranges.is_empty() {
            with_memory.push((mapped, ranges));
        }
    }
    let total: Bytes = with_memory.iter().map(|(_, ranges)| ranges.bytes()).sum();
    let (mut processes, mut targets) = (Vec::new(), Vec::new());
    for (mapped, ranges) in with_memory {
        // To each its share.
        let share = u128::from(ranges.bytes().0) * most as u128 / u128::from(total.0.max(1));
        let regions = cut(&ranges, SMALLEST, usize::try_from(share).unwrap_or(MOST).max(1), page);
        let not_looked = ranges.without(&regions.iter().cloned().collect());
        targets.push(Target { pid: mapped.process.stat().pid, regions });
        processes.push((mapped, not_looked));
    }
    // A region that is alone the kernel would split.
    if let [Target { regions, .. }] = targets.as_mut_slice()
        && let [region] = regions.as_slice()
    {
        *regions = split(region, 2, page).collect();
    }
    let regions: usize = targets.iter().map(|target| target.regions.len()).sum();
    let interval = FOR_EACH.saturating_mul(u32::try_from(regions).unwrap_or(u32::MAX)).max(window / MOST_LOOKS);
    let interval = interval.clamp(SHORTEST, LONGEST);
    (processes, targets, Duration::from_millis(millis(interval)))
}

/// What the ages of a process's regions say. A region in which nothing was seen to be used is surely unused only where none
/// beside it is used: where use ends, within a region, is not known. For the same reason a used one may be unused
/// where one beside it is. A look follows the other after the first of the intervals at least, and the second on average: on a busy
/// machine the looks themselves take long.
fn judge(
    target: &Target,
    seen: &[RegionSample],
    between: [Duration; 2],
    times: &[Duration],
    changed: &Ranges,
) -> Vec<Idle> {
    let [least, usual] = between;
    let sure = |seen: &RegionSample, time: Duration| !seen.used && least.saturating_mul(seen.age) >= time;
    // An age begins within the look before it.
    let may_be =
        |seen: &RegionSample, time: Duration| !seen.used && usual.saturating_mul(seen.age.saturating_add(2)) >= time;
    let regions = &target.regions;
    let beside = |place: usize| {
        let before = place.checked_sub(1).filter(|&before| regions[before].end == regions[place].start);
        let after =
            Some(place + 1).filter(|&after| regions.get(after).is_some_and(|next| next.start == regions[place].end));
        before.into_iter().chain(after)
    };
    let of = |place: usize| Idle {
        range: regions[place].clone(),
        least: times
            .iter()
            .map(|&time| {
                sure(&seen[place], time)
                    && beside(place).all(|other| sure(&seen[other], time))
                    && changed.within(&regions[place]).is_empty()
            })
            .collect(),
        most: times
            .iter()
            .map(|&time| may_be(&seen[place], time) || beside(place).any(|other| may_be(&seen[other], time)))
            .collect(),
    };
    (0..regions.len().min(seen.len())).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_what_is_unused_among_unused_is_sure() {
        let target = Target { pid: 7, regions: vec![0..4, 4..8, 8..12, 12..16, 20..24, 30..34] };
        let idle = |age| RegionSample { used: false, age };
        let used = RegionSample { used: true, age: 900 };
        let seen = [idle(60), idle(60), used, idle(59), idle(60), idle(10)];
        let found = judge(&target, &seen, [SECOND; 2], &[60 * SECOND, 30 * SECOND], &Ranges::new());
        let all = |time: usize| -> Vec<(bool, bool)> {
            found.iter().map(|idle| (idle.least[time], idle.most[time])).collect()
        };
        let (sure, may_be, not) = ((true, true), (false, true), (false, false));
        // The second is beside the used one. The fourth is a look short, and beside it. The fifth touches none.
        assert_eq!(all(0), [sure, may_be, may_be, may_be, sure, not]);
        assert_eq!(all(1), [sure, may_be, may_be, may_be, sure, not]);
        // What has been mapped anew is not known.
        let changed = Ranges::from_iter([21..22]);
        let found = judge(&target, &seen, [SECOND; 2], &[60 * SECOND], &changed);
        assert!(!found[4].least[0] && found[0].least[0]);
        // Where looks take six times as long, an age of ten of them may be a minute.
        let found = judge(&target, &seen, [SECOND, 6 * SECOND], &[60 * SECOND], &Ranges::new());
        assert!(!found[5].least[0] && found[5].most[0] && found[0].least[0]);
    }

    #[test]
    fn all_that_is_used_is_not_unused() {
        let target = Target { pid: 7, regions: (0..9).map(|n| n * 4..n * 4 + 4).collect() };
        let found = judge(&target, &[RegionSample { used: true, age: 100 }; 9], [SECOND; 2], &[SECOND], &Ranges::new());
        assert!(found.iter().all(|idle| !idle.least[0] && !idle.most[0]));
    }
}
