//! Prepares the machine for hibernation, a burst or a migration. Reclaims from the groups that may
//! be reclaimed until a goal is reached, the flag is set or the time is up. The command line and
//! the daemon's worker both use this module.

pub mod disk_rate;
pub mod free_page_reporting;
pub mod hibernated;
pub mod image;
pub mod image_size;
pub mod zram;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_config::Loaded;
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::{Kernel, clock, zoneinfo};
use omr_machine::groups::targets::{self, Candidate};
use omr_machine::inventory::read_groups;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::forecast::Forecast;
use omr_policy::{End, SwapContext, swap_floor};
use omr_units::{Bytes, Pages};
use serde::Serialize;

use crate::prepare::disk_rate::Measured;
use crate::prepare::image::{Obstacle, Place};
use crate::reclaim::writeback::{self, DIRTY, Limits};
use crate::reclaim::{Report, Target as GroupTarget, Wish, job};
use crate::session::{Progress, Session};

/// A round over all groups that frees less than this is in vain.
const LITTLE: Bytes = Bytes::mib(1);
/// The rounds end after this number of rounds in a row without progress: memory then comes back as
/// fast as it leaves, for example this program's own memory if its group is reclaimed, too.
const ROUNDS_IN_VAIN: u32 = 3;
/// Each round aims this far beyond the goal: the program that starts hibernation allocates a
/// little, and some memory comes back at the last moment.
const MARGIN: Bytes = Bytes::mib(8);
/// The most rounds that free swap cache at the end.
const SWAP_CACHE_ROUNDS: u32 = 10;
/// The longest wait at the end of a preparation for memory on its way to swap.
const WRITEBACK: Limits = Limits { longest: Duration::from_secs(5), patience: Duration::from_secs(5) };

/// The size of a hibernation image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Small enough that the kernel only has to copy it.
    Fast,
    /// As with `Fast`, and no larger than this before compression.
    AtMost(Bytes),
    /// As small as possible.
    Smallest,
}

/// The goal of a preparation.
#[derive(Clone, Debug)]
pub enum Goal {
    /// A hibernation image for which swap has room, and that the kernel only has to copy.
    Image {
        /// The size before compression; `None`: as small as possible.
        at_most: Option<Bytes>,
        /// The swap for the image.
        place: Place,
    },
    /// Free memory above the watermarks up to which kswapd reclaims, and above the reserves of each
    /// zone for allocations that can use no other zone.
    Free {
        /// The amount.
        at_least: Bytes,
    },
    /// All memory that may be reclaimed, because a migration sends all memory in use.
    All,
}

impl Goal {
    /// Returns the goal of a preparation for hibernation. Fails if this machine cannot hibernate.
    pub fn hibernate(kernel: &Kernel, root: &Path, target: Target) -> Result<Self, Obstacle> {
        let place = image::place(kernel, root)?;
        let forecast = image::forecast(kernel).ok_or(Obstacle::Unknown)?;
        image::check_room(&forecast, &place)?;
        let at_most = match target {
            Target::AtMost(size) => Some(size),
            // With image_size 0 no image is small enough, so the goal is the smallest possible one.
            Target::Fast => Some(forecast.fast).filter(|&fast| fast > forecast.must_stay),
            Target::Smallest => None,
        };
        Ok(Goal::Image { at_most, place })
    }

    /// Measures the memory that must still leave; zero: the goal is reached. `None`: the goal is to
    /// reclaim as much as possible.
    pub fn missing(&self, kernel: &Kernel) -> Result<Option<Bytes>> {
        match self {
            Goal::Image { at_most, place, .. } => {
                let (forecast, no_room) = read_image(kernel, place)?;
                // The image must also fit into its swap.
                Ok(at_most.map(|size| forecast.above(size).max(no_room)))
            }
            Goal::Free { at_least } => Ok(Some(*at_least - read_free(kernel)?)),
            Goal::All => Ok(None),
        }
    }

    /// Measures by how much the image is too large for its swap.
    fn excess_over_swap(&self, kernel: &Kernel) -> Result<Bytes> {
        match self {
            Goal::Image { place, .. } => Ok(read_image(kernel, place)?.1),
            Goal::Free { .. } | Goal::All => Ok(Bytes::ZERO),
        }
    }

    /// Returns the swap of the whole machine that must stay free if `amount` more leaves memory.
    fn swap_floor(&self, kernel: &Kernel, config: &Loaded, amount: Bytes) -> Bytes {
        let swap = SwapSpace::read(kernel).map(omr_policy::Swap::from);
        let floor = swap_floor(&config.policy, SwapContext { swap, image: None }, amount);
        match (self, image::forecast(kernel)) {
            (Goal::Image { place, .. }, Some(forecast)) => {
                let left = forecast.in_use - forecast.per_cpu - amount;
                // The devices as they are now.
                let place = place.again(kernel).unwrap_or_else(|| place.clone());
                floor.max(place.floor(left))
            }
            (Goal::Image { .. }, None) => Bytes::MAX,
            (Goal::Free { .. } | Goal::All, _) => floor,
        }
    }
}

/// Returns the forecast of an image made now, and by how much it is too large for its swap.
fn read_image(kernel: &Kernel, place: &Place) -> Result<(Forecast, Bytes)> {
    let forecast = image::forecast(kernel).context("the memory in use can no longer be read")?;
    let place = place.again(kernel).with_context(|| format!("{} is no swap any more", place.name()))?;
    Ok((forecast, forecast.image - place.device.free()))
}

/// Returns the free memory that can be allocated before kswapd reclaims.
pub fn read_free(kernel: &Kernel) -> Result<Bytes> {
    let zones = zoneinfo::read(kernel, &mut Vec::new())?;
    let free = zones.iter().map(|zone| zone.free - zone.high - zone.protection).fold(Pages(0), |sum, free| sum + free);
    Ok(free.bytes(kernel.page()))
}

/// The end of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// The goal is reached.
    Reached,
    /// The goal is not reached.
    Partly,
}

/// The measured result of a preparation.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    /// The end.
    pub end: Reached,
    /// Why it ended.
    pub why: End,
    /// The memory that still had to leave; `None`: the goal has no size, and the image fits.
    pub missing: Option<Bytes>,
    /// The memory by which groups shrank.
    pub freed: Bytes,
    /// The part of `freed` that was anonymous or shared memory.
    pub freed_anon: Bytes,
    /// The part of `freed` that was page cache.
    pub freed_file: Bytes,
    /// Written to swap meanwhile by the whole machine.
    pub swapped_out: Bytes,
    /// The amount that a run without `--dry-run` would ask for.
    pub planned: Bytes,
    /// The duration.
    pub seconds: f64,
    /// The write rate of the swap disk per second; `None`: too little was written to know.
    pub disk_rate: Option<Bytes>,
    /// The first error.
    pub error: Option<String>,
}

/// Runs preparations.
pub struct Preparation<'s, 'a> {
    /// The session. The deadline is the timeout of its flag.
    pub session: &'s mut Session<'a>,
    /// The configuration: classes, guards and steps.
    pub config: &'s Loaded,
    /// What was in zram was read back just before. MGLRU takes that for use, and keeps such pages
    /// until it has gone through them several times (`PG_workingset`, `mm/vmscan.c` since Linux
    /// 6.14). So a round that frees little is not the last.
    pub after_zram: bool,
}

impl Preparation<'_, '_> {
    /// Reclaims until the goal is reached or the run must end.
    pub fn run(&mut self, goal: &Goal) -> Result<Done> {
        let kernel = self.session.host.kernel;
        let began = clock::read_monotonic();
        let mut done = Done {
            end: Reached::Partly,
            why: End::Futile,
            missing: goal.missing(kernel)?,
            freed: Bytes::ZERO,
            freed_anon: Bytes::ZERO,
            freed_file: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            planned: Bytes::ZERO,
            seconds: 0.0,
            disk_rate: None,
            error: None,
        };
        let mut measured = Measured::default();
        if let Err(err) = self.work(goal, &mut done, &mut measured) {
            if done.freed == Bytes::ZERO && done.swapped_out == Bytes::ZERO {
                return Err(err);
            }
            // An error at the end must not hide what has left memory until then.
            (done.end, done.why) = (Reached::Partly, End::Failed);
            done.error.get_or_insert_with(|| format!("{err:#}"));
        }
        done.seconds = clock::read_monotonic().since(began).as_secs_f64();
        // If some of it went to zram, the time is not that of the disk.
        done.disk_rate = measured.rate().filter(|_| disk_rate::is_disk_only(kernel));
        Ok(done)
    }

    /// Does the work, and judges its end.
    fn work(&mut self, goal: &Goal, done: &mut Done, measured: &mut Measured) -> Result<()> {
        let kernel = self.session.host.kernel;
        if goal.missing(kernel)? != Some(Bytes::ZERO) {
            self.write_out_dirty()?;
            // A second round finds page cache that was dirty, memory that had not arrived in swap
            // yet, and memory that groups have allocated meanwhile.
            let (mut least, mut in_vain) = (Bytes::MAX, 0);
            while in_vain < ROUNDS_IN_VAIN && self.reclaim_round(goal, done, measured)? {
                let left: Bytes = self.find_candidates()?.iter().map(|candidate| candidate.gain).sum();
                in_vain = if left + LITTLE <= least { 0 } else { in_vain + 1 };
                least = least.min(left);
            }
        }
        if !self.session.cancel.is_set() && self.session.actuator.is_live() {
            self.free_swap_cache(done, measured)?;
        }
        done.missing = goal.missing(kernel)?;
        match done.missing {
            Some(Bytes::ZERO) => (done.end, done.why) = (Reached::Reached, End::Complete),
            // The goal is as much as possible, but the image must fit into swap.
            None if matches!(done.why, End::Complete | End::Futile | End::Floor | End::Gone) => {
                match goal.excess_over_swap(kernel)? {
                    no_room if no_room > Bytes::ZERO && self.session.actuator.is_live() => {
                        (done.why, done.missing) = (End::SwapFloor, Some(no_room));
                    }
                    _ => done.end = Reached::Reached,
                }
            }
            // Each group gave all memory that may be reclaimed.
            Some(_) if done.why == End::Complete => done.why = End::Futile,
            None | Some(_) => {}
        }
        Ok(())
    }

    /// Page cache that its file does not have yet cannot be freed, and the kernel would write it
    /// out itself, while the machine waits for it.
    fn write_out_dirty(&self) -> Result<()> {
        let mut buffer = Vec::new();
        let kernel = self.session.host.kernel;
        let mut is_dirty =
            || Meminfo::read(kernel, &mut buffer).is_ok_and(|memory| memory.dirty.is_some_and(|dirty| dirty > DIRTY));
        if self.session.actuator.is_live() && is_dirty() {
            writeback::flush(self.session.cancel, is_dirty);
        }
        Ok(())
    }

    /// Returns the groups that may be reclaimed, largest gain first.
    fn find_candidates(&self) -> Result<Vec<Candidate>> {
        let (tree, _) = read_groups(self.session.host.kernel, self.session.host.root, self.config, true)?;
        let mut candidates = targets::find_below(&tree, None, false);
        targets::sort_by_gain(&mut candidates);
        Ok(candidates)
    }

    /// Reclaims one round over all groups. Returns true if another round is worth it.
    fn reclaim_round(&mut self, goal: &Goal, done: &mut Done, measured: &mut Measured) -> Result<bool> {
        let kernel = self.session.host.kernel;
        let before = done.freed;
        let mut failed = None;
        for candidate in self.find_candidates()? {
            let missing = match goal.missing(kernel)?.map(|missing| missing - done.planned) {
                Some(Bytes::ZERO) => return Ok(false),
                missing => missing.map(|missing| missing + MARGIN),
            };
            let amount = candidate.gain.min(missing.unwrap_or(Bytes::MAX));
            let floor = goal.swap_floor(kernel, self.config, amount);
            let before = Progress { freed: done.freed, ..Progress::default() };
            let config = self.config;
            let report =
                self.session.run_part(before, |session| reclaim(session, config, &candidate, amount, floor))?;
            let Some(report) = report else { continue };
            if !self.session.actuator.is_live() {
                done.planned += amount;
            }
            done.why = report.end;
            if report.end.is_failure() {
                failed.get_or_insert_with(|| (report.end, report.error.clone()));
            }
            add_report(done, measured, &report);
            if matches!(report.end, End::Stopped | End::Timeout) {
                return Ok(false);
            }
        }
        if let Some((end, error)) = failed {
            (done.why, done.error) = (end, error);
            return Ok(false);
        }
        Ok(self.session.actuator.is_live() && (self.after_zram || done.freed - before >= LITTLE))
    }

    /// Frees swap cache: pages that have arrived in swap but are still in memory would be in an
    /// image. Freeing them may send other pages to swap, so there are a few rounds.
    fn free_swap_cache(&mut self, done: &mut Done, measured: &mut Measured) -> Result<()> {
        for _ in 0..SWAP_CACHE_ROUNDS {
            if self.session.cancel.is_set() || !self.free_swap_cache_once(done, measured)? {
                break;
            }
        }
        Ok(())
    }

    /// Runs one round of [`Preparation::free_swap_cache`]. Returns true if a group had such pages.
    fn free_swap_cache_once(&mut self, done: &mut Done, measured: &mut Measured) -> Result<bool> {
        let kernel = self.session.host.kernel;
        let mut buffer = Vec::new();
        let mut had_some = false;
        writeback::wait(self.session.cancel, WRITEBACK, || {
            Ok(Meminfo::read(kernel, &mut buffer)?.writeback.unwrap_or_default())
        })?;
        for candidate in self.find_candidates()? {
            let Ok(group) = Group::open(kernel.cgroup()?, &candidate.path) else { continue };
            let cached = group.read_stat(kernel, &mut buffer).ok().and_then(|stat| stat.swapcached).unwrap_or_default();
            if cached < LITTLE || candidate.beyond_children.is_some() {
                continue;
            }
            had_some = true;
            // The free swap stays nearly as it is.
            let free = SwapSpace::read(kernel).map(|swap| swap.free).unwrap_or_default();
            let amount = cached.min(candidate.gain);
            let mut silent = |_| {};
            let mut session = self.session.with_progress(&mut silent);
            if let Some(report) = reclaim(&mut session, self.config, &candidate, amount, free - amount)? {
                add_report(done, measured, &report);
            }
        }
        Ok(had_some)
    }
}

/// Reclaims from one group; `None`: the group is gone.
fn reclaim(
    session: &mut Session<'_>,
    config: &Loaded,
    candidate: &Candidate,
    amount: Bytes,
    swap_floor: Bytes,
) -> Result<Option<Report>> {
    let Some(group) = candidate.open(session.host.kernel)? else { return Ok(None) };
    let floor = candidate.current - candidate.gain;
    let target = GroupTarget { group: &group, inner: candidate.beyond_children };
    let job = |file_only| job(&config.policy, swap_floor, file_only, amount, floor);
    Ok(Some(session.reclaim_by_wish(Wish::Any(config.backend), target, job)))
}

fn add_report(done: &mut Done, measured: &mut Measured, report: &Report) {
    done.freed += report.freed;
    done.freed_anon += report.freed_anon;
    done.freed_file += report.freed_file;
    done.swapped_out += report.swapped_out;
    measured.add(report);
}

#[cfg(test)]
mod tests {
    use omr_actuate::{Actuator, DryRun, Transcript};
    use omr_base::cancel::Flag;
    use omr_base::paths;
    use omr_testkit::{FakeRoot, Release};
    use omr_units::Amount;

    use super::*;
    use crate::stand_in::{GROUPS, PAGE, Reclaims, add_group, set_line, set_swap, stop_clocks};

    /// A machine with 1 GiB of swap on this device and three groups: 64 and 16 MiB of anonymous
    /// memory, and 32 MiB in the foreground. 100 MiB are free beyond what kswapd keeps free.
    fn machine(device: &str) -> FakeRoot {
        let root = FakeRoot::in_memory(Release::V6_12)
            .proc("sys/kernel/random/boot_id", "this\n")
            .sys(format!("class/block/{device}/dev"), "254:2\n")
            .sys("power/resume", "254:2\n")
            .sys("power/disk", "[platform]\n")
            .sys("power/state", "freeze mem disk\n")
            .sys("power/reserved_size", "0\n");
        for (key, value) in [("Dirty:", "0 kB"), ("Writeback:", "0 kB"), ("SwapCached:", "0 kB")] {
            set_line(&root, "proc/meminfo", key, value);
        }
        for key in ["Active(anon):", "Inactive(anon):", "Active(file):", "Inactive(file):", "SReclaimable:"] {
            set_line(&root, "proc/meminfo", key, "0 kB");
        }
        set_swap(&root, device, 1024);
        for (path, anon) in [("large", 64), ("small", 16), ("fg", 32)] {
            add_group(&root, path, anon, 0);
        }
        set_free(&root);
        root
    }

    /// The machine has 1 GiB of memory, of which the groups use theirs and the kernel the rest.
    fn set_free(root: &FakeRoot) {
        let used: u64 = ["large", "small", "fg"]
            .into_iter()
            .map(|path| root.read(format!("{GROUPS}/{path}/memory.current")).trim().parse::<u64>().expect("bytes"))
            .sum();
        let free = ((100 + 5 + 3 + 64 + 16 + 32) << 20) - used;
        let (mib, all) = (1 << 8, 1 << 18);
        let zone = format!(
            "Node 0, zone Normal\n  pages free {}\n  low 10\n  high {}\n  spanned {all}\n  present {all}\n  managed {all}\n  \
             protection: (0, {}, 0)\n",
            free / PAGE,
            5 * mib,
            3 * mib
        );
        root.write("proc/zoneinfo", zone);
        // All that can leave is anonymous memory.
        set_line(root, "proc/meminfo", "Active(anon):", &format!("{} kB", used >> 10));
    }

    fn loaded() -> Loaded {
        let mut loaded = Loaded::built_in();
        loaded.groups = omr_config::rules("[[group]]\nmatch = 'fg'\nclass = 'foreground'\n");
        loaded.policy.guard.swap_floor = Amount::Bytes(Bytes::ZERO);
        loaded
    }

    fn prepared(root: &FakeRoot, goal: &Goal, actuator: &mut dyn Actuator, cancel: &Flag) -> (Done, Vec<Bytes>) {
        prepared_after(false, root, goal, actuator, cancel)
    }

    fn prepared_after(
        after_zram: bool,
        root: &FakeRoot,
        goal: &Goal,
        actuator: &mut dyn Actuator,
        cancel: &Flag,
    ) -> (Done, Vec<Bytes>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let (loaded, mut seen) = (loaded(), Vec::new());
        let mut session = Session {
            host: crate::session::Host { kernel: &kernel, root: root.path() },
            actuator,
            journal: None,
            cancel,
            progress: &mut |now: Progress| seen.push(now.freed),
        };
        let done = Preparation { session: &mut session, config: &loaded, after_zram }.run(goal).expect("a preparation");
        (done, seen)
    }

    /// Runs on a kernel that reclaims. Returns the result, the progress, and the groups that were
    /// asked for memory, in their order.
    fn run(root: &FakeRoot, goal: &Goal) -> (Done, Vec<Bytes>, Vec<String>) {
        let mut kernel_side = Reclaims::new(root);
        kernel_side.then = Box::new(|_| set_free(root));
        let (done, seen) = prepared(root, goal, &mut kernel_side, &Flag::default());
        let mut groups: Vec<String> = kernel_side
            .lines
            .iter()
            .filter(|line| !line.contains("reclaim 0 "))
            .filter_map(|line| line.split('/').next().map(str::to_owned))
            .collect();
        groups.dedup();
        (done, seen, groups)
    }

    fn free(mib: u64) -> Goal {
        Goal::Free { at_least: Bytes::mib(mib) }
    }

    /// The kernel frees a little more than it is asked for.
    fn whole_mib<const N: usize>(amounts: [Bytes; N]) -> [u64; N] {
        amounts.map(|bytes| bytes.0 >> 20)
    }

    #[test]
    fn the_largest_groups_give_memory_until_the_goal_and_a_margin_are_reached() {
        let _clocks = stop_clocks();
        let root = machine("zram0");
        let (done, seen, groups) = run(&root, &free(140));
        assert_eq!((done.end, done.why, done.missing), (Reached::Reached, End::Complete, Some(Bytes::ZERO)));
        assert_eq!(whole_mib([done.freed, done.freed_anon, done.swapped_out]), [48; 3]);
        assert_eq!((groups, done.planned, done.error), (vec!["large".to_owned()], Bytes::ZERO, None));
        assert_eq!(seen.last(), Some(&done.freed));
        // More than the first group has: the progress goes on from group to group.
        let root = machine("zram0");
        let (done, seen, groups) = run(&root, &free(170));
        let both = vec!["large".to_owned(), "small".to_owned()];
        assert_eq!((done.end, whole_mib([done.freed]), groups), (Reached::Reached, [64 + 14], both));
        assert!(seen.is_sorted() && seen.last() == Some(&done.freed), "{seen:?}");
        // Nothing is missing.
        let (done, _, groups) = run(&machine("zram0"), &free(100));
        assert_eq!((done.end, done.freed, groups.len()), (Reached::Reached, Bytes::ZERO, 0));
    }

    #[test]
    fn a_goal_that_cannot_be_reached_takes_all_but_the_foreground_and_says_what_is_missing() {
        let _clocks = stop_clocks();
        let root = machine("zram0");
        let (done, _, groups) = run(&root, &free(200));
        assert_eq!((done.end, done.why, done.missing), (Reached::Partly, End::Futile, Some(Bytes::mib(20))));
        assert_eq!((done.freed, groups), (Bytes::mib(80), vec!["large".to_owned(), "small".to_owned()]));
        // As much as possible: that is reached.
        let root = machine("zram0");
        let (done, _, _) = run(&root, &Goal::All);
        assert_eq!((done.end, done.missing, done.freed), (Reached::Reached, None, Bytes::mib(80)));
    }

    #[test]
    fn a_dry_run_plans_and_writes_nothing() {
        let _clocks = stop_clocks();
        let root = machine("zram0");
        let mut transcript = Transcript::new(DryRun);
        let (done, _) = prepared(&root, &free(170), &mut transcript, &Flag::default());
        assert_eq!((done.planned, done.freed, done.end), (Bytes::mib(64 + 14), Bytes::ZERO, Reached::Partly));
        let requests: Vec<_> = transcript.lines().into_iter().map(|(_, data)| data).collect();
        assert!(requests.iter().all(|data| data.starts_with("0 ")), "only probes: {requests:?}");
        let (done, _) = prepared(&root, &Goal::All, &mut DryRun, &Flag::default());
        assert_eq!((done.planned, done.end), (Bytes::mib(80), Reached::Reached));
    }

    #[test]
    fn a_preparation_ends_when_it_is_cancelled_or_the_kernel_refuses() {
        let _clocks = stop_clocks();
        let root = machine("zram0");
        let stopped = Flag::default();
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|line| {
            if !line.contains("reclaim 0 ") {
                stopped.set();
            }
        });
        let (done, _) = prepared(&root, &free(200), &mut kernel_side, &stopped);
        assert_eq!((done.end, done.why, done.freed), (Reached::Partly, End::Stopped, Bytes::mib(1)));
        let root = machine("zram0");
        let late = Flag::with_timeout(Some(Duration::ZERO));
        let (done, _) = prepared(&root, &free(200), &mut Reclaims::new(&root), &late);
        assert_eq!((done.why, done.freed), (End::Timeout, Bytes::ZERO));
        // The groups that can be reclaimed still are.
        let root = machine("zram0");
        root.remove(format!("{GROUPS}/large/memory.reclaim"));
        root.remove(format!("{GROUPS}/large/memory.high"));
        let (done, _, groups) = run(&root, &free(200));
        assert_eq!((done.end, done.why, groups), (Reached::Partly, End::Unsupported, vec!["small".to_owned()]));
        assert_eq!(done.error.as_deref(), Some("large has no memory.reclaim (Linux 5.19)"));
    }

    #[test]
    fn what_was_in_zram_is_asked_for_again_where_the_kernel_keeps_it() {
        let _clocks = stop_clocks();
        let ask = |after_zram, interrupted| {
            let root = machine("zram0");
            let mut kernel_side = Reclaims { interrupted, ..Reclaims::new(&root) };
            let (done, _) = prepared_after(after_zram, &root, &Goal::All, &mut kernel_side, &Flag::default());
            (done.freed, interrupted - kernel_side.interrupted)
        };
        // More than both groups are asked in one round.
        assert_eq!(ask(true, 40), (Bytes::mib(80), 40));
        assert_eq!(ask(false, 40), (Bytes::ZERO, 12), "the control");
        assert_eq!(ask(true, 1000), (Bytes::ZERO, 4 * 12), "not for ever");
    }

    #[test]
    fn an_error_after_memory_has_left_hides_nothing_of_it() {
        let _clocks = stop_clocks();
        let root = machine("zram0");
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|line| {
            if line.starts_with("small") && root.resolve("proc/zoneinfo").exists() {
                root.remove("proc/zoneinfo");
            }
        });
        let (done, _) = prepared(&root, &free(200), &mut kernel_side, &Flag::default());
        assert_eq!((done.end, done.why), (Reached::Partly, End::Failed));
        assert!(done.swapped_out >= Bytes::mib(64), "{}", done.swapped_out);
        assert!(done.error.is_some_and(|error| error.contains("zoneinfo")));
    }

    #[test]
    fn swap_cache_is_freed_at_the_end_and_not_for_ever() {
        let _clocks = stop_clocks();
        let cached = |root: &FakeRoot, bytes: u64| {
            set_line(root, &format!("{GROUPS}/small/memory.stat"), "swapcached", &bytes.to_string());
        };
        let rounds = |bytes: u64, goes: bool| {
            let root = machine("vda2");
            cached(&root, bytes);
            let mut kernel_side = Reclaims::new(&root);
            kernel_side.then = Box::new(|line| {
                if line.starts_with("small/memory.reclaim ") && !line.contains("reclaim 0 ") {
                    cached(&root, if goes { 0 } else { bytes });
                    // What left was in swap already.
                    set_line(&root, &format!("{GROUPS}/small/memory.stat"), "anon", &(16u64 << 20).to_string());
                    root.write(format!("{GROUPS}/small/memory.current"), format!("{}\n", 16u64 << 20));
                }
            });
            let (done, _) = prepared(&root, &free(0), &mut kernel_side, &Flag::default());
            assert_eq!(done.end, Reached::Reached);
            kernel_side.lines.iter().filter(|line| line.contains("reclaim 0 ")).count()
        };
        assert_eq!(rounds((1 << 20) - 1, true), 0, "too little");
        assert_eq!(rounds(1 << 20, true), 1);
        assert_eq!(rounds(1 << 20, false), 10);
    }

    #[test]
    fn an_image_is_small_enough_when_it_is_copied_and_fits_into_its_swap() {
        let _clocks = stop_clocks();
        let root = machine("vda2");
        let kernel = || Kernel::open(root.path()).expect("a kernel");
        // 1024 - 220 + 112 MiB are in use, and 112 of them can leave.
        let all = Bytes::mib(1024 - 108);
        root.write("sys/power/image_size", format!("{}\n", 300 << 20));
        let goal = |target| Goal::hibernate(&kernel(), root.path(), target).expect("a goal");
        let at_most = |target| match goal(target) {
            Goal::Image { at_most, .. } => at_most,
            _ => unreachable!("an image"),
        };
        assert_eq!(at_most(Target::AtMost(Bytes::mib(7))), Some(Bytes::mib(7)));
        assert_eq!(at_most(Target::Smallest), None);
        // The smallest possible image is larger than that.
        assert_eq!(at_most(Target::Fast), None);
        let forecast = image::forecast(&kernel()).expect("a forecast");
        assert!(all > forecast.must_stay && forecast.in_use > forecast.must_stay, "{forecast:?}");
        let missing = |goal: &Goal| goal.missing(&kernel()).expect("readable");
        let wanted = goal(Target::AtMost(forecast.in_use - Bytes::mib(9)));
        assert_eq!(missing(&wanted), Some((forecast.in_use - forecast.fast).max(Bytes::mib(9))));
        assert_eq!(missing(&goal(Target::Smallest)), None);
        // An image must have room.
        let smallest = goal(Target::Smallest);
        assert_eq!(smallest.excess_over_swap(&kernel()).expect("readable"), Bytes::ZERO);
        // No group can give anything.
        add_group(&root, "large", 0, 0);
        add_group(&root, "small", 0, 0);
        set_free(&root);
        let forecast = image::forecast(&kernel()).expect("a forecast");
        set_swap(&root, "vda2", (forecast.image.0 >> 20) + 1);
        assert_eq!(smallest.excess_over_swap(&kernel()).expect("readable"), Bytes::ZERO);
        set_swap(&root, "vda2", (forecast.image.0 >> 20) - 10);
        let excess = smallest.excess_over_swap(&kernel()).expect("readable");
        assert!(excess >= Bytes::mib(10) && excess < Bytes::mib(11), "{excess}");
        let (done, _) = prepared(&root, &smallest, &mut Reclaims::new(&root), &Flag::default());
        assert_eq!((done.end, done.why, done.missing), (Reached::Partly, End::SwapFloor, Some(excess)));
        assert_eq!(free(9).excess_over_swap(&kernel()).expect("readable"), Bytes::ZERO);
        // The swap of the image is no swap any more.
        set_swap(&root, "vdb9", 100);
        smallest.missing(&kernel()).expect_err("no swap");
    }

    #[test]
    fn swap_for_an_image_stays_free_while_memory_leaves() {
        let root = machine("vda2");
        root.write("sys/power/image_size", "0\n");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let goal = Goal::hibernate(&kernel, root.path(), Target::Smallest).expect("a goal");
        let forecast = image::forecast(&kernel).expect("a forecast");
        // What is left in use must fit on the only device.
        let left = forecast.in_use - forecast.per_cpu;
        assert_eq!(goal.swap_floor(&kernel, &loaded(), Bytes::mib(10)), left - Bytes::mib(10));
        let mut config = loaded();
        assert_eq!(free(1).swap_floor(&kernel, &config, Bytes::mib(10)), Bytes::ZERO);
        config.policy.guard.swap_floor = Amount::Bytes(Bytes::mib(1000));
        for goal in [&goal, &free(1), &Goal::All] {
            assert_eq!(goal.swap_floor(&kernel, &config, Bytes::mib(500)), Bytes::mib(1000), "the user wants more");
        }
        root.write("proc/zoneinfo", "");
        assert_eq!(goal.swap_floor(&kernel, &config, Bytes::mib(10)), Bytes::MAX, "unknown is no permission");
    }

    #[test]
    fn a_machine_that_cannot_hibernate_has_no_goal() {
        let root = machine("vda2");
        root.write("sys/power/image_size", "0\n");
        let goal = || Goal::hibernate(&Kernel::open(root.path()).expect("a kernel"), root.path(), Target::Fast);
        goal().expect("a goal");
        set_swap(&root, "vda2", 1);
        assert!(matches!(goal(), Err(Obstacle::TooSmall { .. })));
        root.write("proc/zoneinfo", "");
        assert_eq!(goal().map(|_| ()), Err(Obstacle::Unknown));
        root.write("sys/power/disk", "[disabled]\n");
        assert_eq!(goal().map(|_| ()), Err(Obstacle::Disabled));
    }

    /// The first byte of an input is the number of the file.
    #[test]
    fn no_change_of_a_note_makes_it_panic_or_changes_anything_but_image_size_and_zram() {
        let root = FakeRoot::in_memory(Release::V6_12)
            .proc("sys/kernel/random/boot_id", "this\n")
            .proc("swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 4096 0 5\n");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        hibernated::record(&kernel, root.path()).expect("recorded");
        let state_dir = paths::root_state_dir(root.path());
        let files = [
            (paths::image_size(root.path()), r#"{"boot":"this","before":1000,"raised":2000}"#.into()),
            (
                paths::zram(root.path()),
                r#"{"boot":"this","pid":7,"start":9,"devices":[{"path":"/dev/zram0","priority":5},{"path":"/dev/zram1","priority":7}]}"#.into(),
            ),
            (state_dir.join("disk-rate.json"), r#"{"bytes_per_second":104857600,"device":"/dev/vda"}"#.into()),
            (state_dir.join("hibernated.json"), root.read("var/lib/omr-root/hibernated.json")),
        ];
        let inputs: Vec<Vec<u8>> =
            (0u8..).zip(&files).map(|(at, (_, text))| [&[at], text.as_bytes()].concat()).collect();
        let changed = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&inputs, |input| {
            let Some((which, text)) = input.split_first() else { return };
            std::fs::write(&files[usize::from(*which) % files.len()].0, text).expect("written");
            root.write("sys/power/image_size", "2000\n");
            let mut transcript = Transcript::new(DryRun);
            let _ = image_size::restore(&kernel, root.path(), &mut transcript);
            let _ = zram::restore(&kernel, root.path(), |_| Ok(()), &mut transcript);
            if let Some(rate) = disk_rate::load(root.path(), Path::new("/dev/vda")) {
                assert!(rate > Bytes::ZERO);
            }
            hibernated::ago(&kernel, root.path());
            for (file, text) in transcript.lines() {
                let of_root = file.strip_prefix(root.path()).expect("below the root").to_string_lossy().into_owned();
                let device = of_root.strip_prefix("proc/1/root/dev/zram");
                let is_zram = device.is_some_and(|of| of.bytes().all(|byte| byte.is_ascii_digit()));
                assert!(
                    of_root == "sys/power/image_size" || (is_zram && text.starts_with("swapon")),
                    "{of_root} {text}"
                );
                changed.set(changed.get() + 1);
            }
        });
        assert!(changed.get() >= 2, "the control");
    }
}
