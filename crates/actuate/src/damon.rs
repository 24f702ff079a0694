//! DAMON, the kernel's monitor of memory accesses, below `/sys/kernel/mm/damon/admin` (Linux 5.18,
//! `CONFIG_DAMON_SYSFS`; `fvaddr`, fixed address ranges, 6.0): its state, and a monitor of omr's
//! own. Source: mm/damon/sysfs.c, mm/damon/sysfs-schemes.c, mm/damon/core.c.
//!
//! A monitor is one kernel thread. Once in an interval the thread samples one page of each region:
//! whether the page was used since the last sample. The limits are set so that the kernel never
//! merges regions. So the age of a region is a number of samples, and not an average over several
//! regions. Linux 6.12 does not split a region either. Linux 7.3 splits long ones into parts, once
//! and before the first sample; a region is unused if all of its parts are.
//!
//! A monitor has no owner: a write to `nr_kdamonds` removes the monitors of every program. A
//! [`Monitor`] therefore has a [`Stamp`], by which a later run recognizes a monitor that an earlier
//! run has left behind.

use std::fmt::Display;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use omr_kernel::damon::{AGAIN, BUSY, Damon, read, read_number};
use omr_kernel::{Dir, Error, Kernel, Result, clock};
use serde::{Deserialize, Serialize};

use crate::{Actuator, Outcome};

/// Below `/sys`.
const ADMIN: &str = "kernel/mm/damon/admin/kdamonds";

/// The mark of a monitor: the number in its `intervals/update_us`, which the kernel ignores for
/// fixed ranges. The number is chosen at random and saved on disk before anything is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u32);

/// A process to monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process's pid in this program's pid namespace.
    pub pid: u32,
    /// The regions to monitor: lowest first, none empty, of whole pages, without overlaps.
    pub regions: Vec<Range<u64>>,
}

/// The reason why no monitor was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// DAMON is not available. The state is never [`Damon::Free`].
    State(Damon),
    /// This kernel cannot monitor fixed ranges of a process (before 6.0, or without
    /// `CONFIG_DAMON_VADDR`).
    NoRanges,
    /// A kernel module uses DAMON exclusively: `DAMON_RECLAIM`, `DAMON_LRU_SORT` or, since 6.17,
    /// `DAMON_STAT`.
    Exclusive,
    /// One of the processes is gone, or the kernel refuses its ranges.
    Refused,
}

/// The last sample of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSample {
    /// True if the sampled page was used.
    pub used: bool,
    /// Number of samples for which `used` has not changed.
    pub age: u32,
}

impl RegionSample {
    /// The sample of a region of which these are two parts: it is unused for as long as both are.
    fn with(self, part: Self) -> Self {
        match (self.used, part.used) {
            (true, false) => self,
            (false, true) => part,
            _ => RegionSample { used: self.used, age: self.age.min(part.age) },
        }
    }
}

/// A running monitor. Dropping it removes the monitor. After a `kill -9` the monitor runs until the
/// last of its processes has ended, or until [`remove_leftover`] removes it.
pub struct Monitor {
    kdamonds: Dir,
    actuator: Box<dyn Actuator>,
    stamp: Stamp,
    targets: Vec<Target>,
    interval: Duration,
    /// The size of a page in bytes.
    page: u64,
}

/// The reason why the set-up ended early.
enum Stop {
    Refused(Refusal),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(err: Error) -> Self {
        Stop::Failed(err)
    }
}

/// The file with the stamp, below `kdamonds`.
const UPDATE: &str = "0/contexts/0/monitoring_attrs/intervals/update_us";

/// The smallest limit on regions that the kernel accepts (mm/damon/core.c, damon_set_attrs()).
const FEWEST: usize = 3;

impl Monitor {
    /// Starts a monitor that samples these processes once in `interval` (whole microseconds). A
    /// sample costs a walk through the page table for each region.
    ///
    /// One sample is one aggregation, so a region's count of accesses is 0 or 1. With more samples
    /// in an aggregation the kernel would treat few accesses like none, and the age would go on.
    pub fn start(
        kernel: &Kernel,
        mut actuator: Box<dyn Actuator>,
        stamp: Stamp,
        interval: Duration,
        targets: Vec<Target>,
    ) -> Result<Result<Self, Refusal>> {
        match Damon::read(kernel) {
            Damon::Free => {}
            state => return Ok(Err(Refusal::State(state))),
        }
        let kdamonds = kernel.sys.sub(ADMIN)?;
        match write(&mut *actuator, &kdamonds, "nr_kdamonds", "1")? {
            Outcome::Done => {}
            Outcome::Denied => return Ok(Err(Refusal::State(Damon::Denied))),
            // Another program was quicker.
            _ => return Ok(Err(Refusal::State(Damon::InUse(1)))),
        }
        // From here on a drop removes the monitor.
        let mut monitor = Monitor { kdamonds, actuator, stamp, targets, interval, page: kernel.page().bytes().0 };
        match monitor.set_up() {
            Ok(()) => Ok(Ok(monitor)),
            Err(Stop::Refused(refusal)) => Ok(Err(refusal)),
            Err(Stop::Failed(err)) => Err(err),
        }
    }

    fn set_up(&mut self) -> Result<(), Stop> {
        const CONTEXT: &str = "0/contexts/0";
        const ATTRIBUTES: &str = "0/contexts/0/monitoring_attrs";
        const SCHEME: &str = "0/contexts/0/schemes/0";
        self.write("0/contexts/nr_contexts", 1)?;
        self.write(UPDATE, self.stamp.0)?;
        if self.outcome(&format!("{CONTEXT}/operations"), "fvaddr")? != Outcome::Done {
            return Err(Stop::Refused(Refusal::NoRanges));
        }
        let limit = self.limit();
        for name in ["intervals/sample_us", "intervals/aggr_us"] {
            self.write(&format!("{ATTRIBUTES}/{name}"), self.interval.as_micros())?;
        }
        for name in ["nr_regions/min", "nr_regions/max"] {
            self.write(&format!("{ATTRIBUTES}/{name}"), limit)?;
        }
        self.write(&format!("{CONTEXT}/targets/nr_targets"), self.targets.len())?;
        for number in 0..self.targets.len() {
            let top = format!("{CONTEXT}/targets/{number}");
            self.write(&format!("{top}/pid_target"), self.targets[number].pid)?;
            self.write(&format!("{top}/regions/nr_regions"), self.targets[number].regions.len())?;
            for place in 0..self.targets[number].regions.len() {
                let Range { start, end } = self.targets[number].regions[place];
                self.write(&format!("{top}/regions/{place}/start"), start)?;
                self.write(&format!("{top}/regions/{place}/end"), end)?;
            }
        }
        // The scheme covers all regions, used or not. The kernel lists them in the order of the
        // targets, and only this order tells to which process a region belongs.
        self.write(&format!("{CONTEXT}/schemes/nr_schemes"), 1)?;
        self.write(&format!("{SCHEME}/action"), "stat")?;
        self.write(&format!("{SCHEME}/access_pattern/sz/max"), u64::MAX)?;
        self.write(&format!("{SCHEME}/access_pattern/nr_accesses/max"), u32::MAX)?;
        self.write(&format!("{SCHEME}/access_pattern/age/max"), u32::MAX)?;
        match self.outcome("0/state", "on")? {
            Outcome::Done => Ok(()),
            Outcome::Partial => Err(Stop::Refused(Refusal::Exclusive)),
            Outcome::Denied => Err(Stop::Refused(Refusal::State(Damon::Denied))),
            _ => Err(Stop::Refused(Refusal::Refused)),
        }
    }

    fn write(&mut self, name: &str, data: impl Display) -> Result<(), Stop> {
        Err(Stop::Refused(Refusal::State(match self.outcome(name, &data.to_string())? {
            Outcome::Done => return Ok(()),
            Outcome::Denied => Damon::Denied,
            // Another program has removed this monitor to set up its own.
            Outcome::Gone | Outcome::Partial => Damon::InUse(1),
            _ => Damon::Unknown,
        })))
    }

    fn outcome(&mut self, name: &str, data: &str) -> Result<Outcome> {
        write(&mut *self.actuator, &self.kdamonds, name, data)
    }

    /// The least and the most regions that the kernel is told to have.
    ///
    /// The kernel merges two neighbours that together are no longer than the total length divided
    /// by the least. Nearly twice the number of regions is enough that no two are so short.
    ///
    /// Linux 7.3 splits each longer region into parts when the monitor begins
    /// (`damon_apply_min_nr_regions()`). It splits further ones at random while there are fewer than
    /// the most; Linux 6.12 while there are at most half as many. So the number is no larger than
    /// that of the parts.
    fn limit(&self) -> usize {
        let regions = self.regions();
        let parts = |least: &usize| {
            let most = (self.bytes() / u64::try_from(*least).unwrap_or(u64::MAX)).max(1).next_multiple_of(self.page);
            let parts: u64 = self.lengths().map(|length| length.div_ceil(most)).sum();
            parts >= u64::try_from(*least).unwrap_or(u64::MAX)
        };
        (regions..2 * regions).rev().find(parts).unwrap_or(regions).max(FEWEST)
    }

    fn regions(&self) -> usize {
        self.targets.iter().map(|target| target.regions.len()).sum()
    }

    fn lengths(&self) -> impl Iterator<Item = u64> {
        self.targets.iter().flat_map(|target| &target.regions).map(|region| region.end.saturating_sub(region.start))
    }

    fn bytes(&self) -> u64 {
        self.lengths().sum()
    }

    /// The monitored processes and regions.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The least time between two samples. The sampling itself takes time as well.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// True if the monitor with this stamp is still set up. Another program may have removed or
    /// replaced it.
    fn exists(&self) -> bool {
        read_number(&self.kdamonds, UPDATE).is_ok_and(|stamp| stamp == self.stamp.0.into())
    }

    /// The pid of the kernel thread, whose CPU time is the cost of the monitor: `kdamonds/0/pid`.
    /// Sample line: `412`, or `-1`. `None`: no thread runs.
    pub fn thread(&self) -> Option<u32> {
        u32::try_from(read_number(&self.kdamonds, "0/pid").ok()?).ok()
    }

    /// Number of samples of each region so far. `None`: the monitor has ended, because its
    /// processes have ended, or because another program removed it.
    ///
    /// From `stats/sz_tried` (5.18), which counts the bytes of each region of each sample. Sample
    /// line: `268435456`.
    pub fn samples(&mut self) -> Result<Option<u64>> {
        if !self.exists() || self.outcome("0/state", "update_schemes_stats")? != Outcome::Done {
            return Ok(None);
        }
        let tried = read_number(&self.kdamonds, "0/contexts/0/schemes/0/stats/sz_tried")?;
        Ok(Some(tried / self.bytes().max(1)))
    }

    /// The last sample of each region, by target and region in their order. `is_wanted` gets the
    /// index of a target; an unwanted target has an empty list. The call takes up to an interval,
    /// and no signal ends it. `None`: the monitor has ended.
    ///
    /// From `tried_regions/K/{start,end,nr_accesses,age}` (6.2). Ages are in aggregations.
    pub fn read(&mut self, is_wanted: impl Fn(usize) -> bool) -> Result<Option<Vec<Vec<RegionSample>>>> {
        if !self.exists() || self.outcome("0/state", "update_schemes_tried_regions")? != Outcome::Done {
            return Ok(None);
        }
        let tried = self.kdamonds.sub("0/contexts/0/schemes/0/tried_regions")?;
        // The monitor ended before it could sample again: the kernel lists no region.
        if !tried.has("0") {
            return Ok(None);
        }
        let mut numbers = 0..;
        let mut all = Vec::with_capacity(self.targets.len());
        for (place, target) in self.targets.iter().enumerate() {
            let is_wanted = is_wanted(place);
            let mut seen = Vec::new();
            for region in &target.regions {
                let mut whole: Option<RegionSample> = None;
                let mut at = region.start;
                while at < region.end {
                    let dir = tried.sub(numbers.next().unwrap_or(u64::MAX).to_string())?;
                    let (start, end) = (read_number(&dir, "start")?, read_number(&dir, "end")?);
                    if start != at || end <= start || end > region.end {
                        let what = format!("{start:#x} to {end:#x}, where {at:#x} to {:#x} is expected", region.end);
                        return Err(Error::Parse { path: dir.path().to_owned(), what });
                    }
                    at = end;
                    if is_wanted {
                        let age = u32::try_from(read_number(&dir, "age")?).unwrap_or(u32::MAX);
                        let part = RegionSample { used: read_number(&dir, "nr_accesses")? > 0, age };
                        whole = Some(whole.map_or(part, |whole| whole.with(part)));
                    }
                }
                seen.extend(whole);
            }
            all.push(seen);
        }
        Ok(Some(all))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // If this fails, a later run finds the monitor by its stamp.
        let _ = remove(&self.kdamonds, &mut *self.actuator, self.stamp);
    }
}

/// Writes to a file, and tries again while another program holds the lock.
fn write(actuator: &mut dyn Actuator, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
    let began = clock::read_monotonic();
    loop {
        let outcome = actuator.write(dir, name, data)?;
        if outcome != Outcome::Partial || clock::read_monotonic().since(began) >= BUSY {
            return Ok(outcome);
        }
        thread::sleep(AGAIN);
    }
}

/// Removes the monitor with this stamp, if there is one: a run that was killed has left it behind.
/// A monitor without a context is removed as well: the run may have been killed before it wrote the
/// stamp, and no other program has set anything up there. Returns whether no such monitor is left.
pub fn remove_leftover(kernel: &Kernel, actuator: &mut dyn Actuator, stamp: Stamp) -> Result<bool> {
    match Damon::read(kernel) {
        Damon::InUse(1) => remove(&kernel.sys.sub(ADMIN)?, actuator, stamp),
        state => Ok(state == Damon::Free),
    }
}

fn remove(kdamonds: &Dir, actuator: &mut dyn Actuator, stamp: Stamp) -> Result<bool> {
    if read_number(kdamonds, "nr_kdamonds")? != 1 {
        return Ok(false);
    }
    let contexts = read_number(kdamonds, "0/contexts/nr_contexts")?;
    let read_stamp = || read_number(kdamonds, UPDATE);
    if contexts > 1 || contexts == 1 && read_stamp()? != stamp.0.into() {
        return Ok(false);
    }
    // The write waits for the end of the kernel thread. Without it the kernel refuses the next
    // write.
    if read(kdamonds, "0/state")?.trim() == "on" {
        write(actuator, kdamonds, "0/state", "off")?;
    }
    Ok(write(actuator, kdamonds, "nr_kdamonds", "0")? == Outcome::Done)
}
