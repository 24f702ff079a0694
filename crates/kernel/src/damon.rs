//! DAMON, the kernel's monitor of accesses: whether it is there and free, and a monitor of our own.
//!
//! Below `/sys/kernel/mm/damon/admin` (Linux 5.18, `CONFIG_DAMON_SYSFS`; fixed address ranges, `fvaddr`, 6.0). A monitor
//! is one kernel thread that looks at one page of each region once in an interval: whether it was used
//! since the look before. Regions are handed over as they are to stay: with as many as here the kernel neither
//! splits nor merges them, so an age is a count of looks and not an average of such counts.
//!
//! What is set up there belongs to nobody, and whoever writes to `nr_kdamonds` takes down what others have set up. A
//! [`Monitor`] therefore has a [`Stamp`], by which a later run knows what an earlier one left behind.

use std::fmt::Display;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actuate::{Actuator, Outcome};
use crate::text::parse_u64;
use crate::{Dir, Error, Kernel, Result, clock};

/// Below `/sys`.
const ADMIN: &str = "kernel/mm/damon/admin/kdamonds";

/// One lock is behind all of these files, and the kernel answers `EBUSY` as long as anybody has it: its own thread, or
/// whoever else reads a state (mm/damon/sysfs.c, `damon_sysfs_lock`). After this time it means what was asked.
const BUSY: Duration = Duration::from_secs(1);
/// So long until it is asked again.
const AGAIN: Duration = Duration::from_millis(10);

/// State of `/sys/kernel/mm/damon/admin` (Linux 5.18, `CONFIG_DAMON_SYSFS`), from
/// `kdamonds/nr_kdamonds`. Sample line: `0`. Source: mm/damon/sysfs.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damon {
    /// Not in this kernel.
    NotBuilt,
    /// There, but not for this process: the files belong to root and are closed to others.
    Denied,
    /// There, and nobody has set it up.
    Free,
    /// There, and somebody else has set up this many monitors.
    InUse(u32),
    /// There, in a form that this program does not know.
    Unknown,
}

impl Damon {
    /// Reads it.
    pub fn read(kernel: &Kernel) -> Self {
        match kernel.sys.sub("kernel/mm/damon/admin") {
            Ok(admin) => Damon::of(&admin),
            Err(err) if err.is_denied() => Damon::Denied,
            Err(_) => Damon::NotBuilt,
        }
    }

    fn of(admin: &Dir) -> Self {
        match read(admin, "kdamonds/nr_kdamonds") {
            Ok(text) => match parse_u64(text.as_bytes()).map(u32::try_from) {
                Some(Ok(0)) => Damon::Free,
                Some(Ok(n)) => Damon::InUse(n),
                _ => Damon::Unknown,
            },
            Err(err) if err.is_denied() => Damon::Denied,
            Err(_) => Damon::Unknown,
        }
    }
}

/// A monitor's mark: what it has in `intervals/update_us`, which the kernel never looks at where ranges are fixed.
/// Chosen at random and noted on disk before anything is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u32);

/// What is looked at of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process, as this program's pid namespace numbers it.
    pub pid: u32,
    /// Its regions: lowest first, not empty, of whole pages, none reaching into another.
    pub regions: Vec<Range<u64>>,
}

/// Why no monitor was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// DAMON is not to be had: see [`Damon`], of which this is never [`Damon::Free`].
    State(Damon),
    /// This kernel cannot look at fixed ranges of a process (before 6.0, or without `CONFIG_DAMON_VADDR`).
    NoRanges,
    /// A module of the kernel has it to itself: `DAMON_RECLAIM`, `DAMON_LRU_SORT` or, since 6.17, `DAMON_STAT`.
    Exclusive,
    /// One of the processes is gone, or it does not take these ranges.
    Refused,
}

/// What a monitor found of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether the page that was looked at last was used.
    pub used: bool,
    /// For how many looks that has not changed.
    pub age: u32,
}

/// A running monitor. It is taken down when this is dropped; after a `kill -9` it runs on until the last of its processes
/// has ended, or [`take_down_left`] takes it down.
pub struct Monitor {
    kdamonds: Dir,
    actuator: Box<dyn Actuator>,
    stamp: Stamp,
    targets: Vec<Target>,
    interval: Duration,
}

/// Why setting up ended early.
enum Stop {
    Refused(Refusal),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(err: Error) -> Self {
        Stop::Failed(err)
    }
}

/// Where the stamp is.
const UPDATE: &str = "0/contexts/0/monitoring_attrs/intervals/update_us";

/// The least number of regions that the kernel takes for a limit (mm/damon/core.c, damon_set_attrs()).
const FEWEST: usize = 3;

impl Monitor {
    /// Starts looking at these processes once in `interval` (whole microseconds). A look costs a walk through the page
    /// table for each region.
    ///
    /// Source: mm/damon/sysfs.c, mm/damon/core.c. One look is one aggregation, so a region's count of accesses is 0 or
    /// 1. Where the kernel counts more, it takes few accesses for none, and the age goes on.
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
            // Somebody was quicker.
            _ => return Ok(Err(Refusal::State(Damon::InUse(1)))),
        }
        // From here on dropping it takes down what is there.
        let mut monitor = Monitor { kdamonds, actuator, stamp, targets, interval };
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
        // The kernel splits regions while there are no more than half the most, and merges two that are together no
        // longer than all of them by the least. With this many it does neither.
        let limit = (2 * self.regions()).saturating_sub(1).max(FEWEST);
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
        // All regions, used or not: they are listed in the order in which they were handed over, and nothing else
        // tells which process one belongs to.
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
            // Somebody took it down to set up another, which then is in use.
            Outcome::Gone | Outcome::Partial => Damon::InUse(1),
            _ => Damon::Unknown,
        })))
    }

    fn outcome(&mut self, name: &str, data: &str) -> Result<Outcome> {
        write(&mut *self.actuator, &self.kdamonds, name, data)
    }

    fn regions(&self) -> usize {
        self.targets.iter().map(|target| target.regions.len()).sum()
    }

    /// The processes and regions.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// From one look to the next, at least: the looks themselves take time as well.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether it is still the one that was set up: somebody may have put another in its place, or none.
    fn is_there(&self) -> bool {
        read_number(&self.kdamonds, UPDATE).is_ok_and(|stamp| stamp == self.stamp.0.into())
    }

    /// The kernel's thread that looks, whose CPU time is the cost of it: `kdamonds/0/pid`; sample line: `412`, or `-1`.
    pub fn thread(&self) -> Option<u32> {
        u32::try_from(read_number(&self.kdamonds, "0/pid").ok()?).ok()
    }

    /// How often it has looked at each region. `None`: it has ended, because its processes have, or somebody took it down.
    ///
    /// Since 5.18. `stats/nr_tried` counts regions, one by one; sample line: `4096`.
    pub fn looks(&mut self) -> Result<Option<u64>> {
        if !self.is_there() || self.outcome("0/state", "update_schemes_stats")? != Outcome::Done {
            return Ok(None);
        }
        let tried = read_number(&self.kdamonds, "0/contexts/0/schemes/0/stats/nr_tried")?;
        Ok(Some(tried / u64::try_from(self.regions()).unwrap_or(u64::MAX).max(1)))
    }

    /// What it has found, for each target and region in their order; nothing of targets that are not wanted, told by their
    /// places. Takes up to an interval, and no signal ends that. `None`: it has ended. Since 6.2;
    /// `tried_regions/K/{start,nr_accesses,age}`.
    pub fn read(&mut self, is_wanted: impl Fn(usize) -> bool) -> Result<Option<Vec<Vec<Seen>>>> {
        if !self.is_there() || self.outcome("0/state", "update_schemes_tried_regions")? != Outcome::Done {
            return Ok(None);
        }
        let tried = self.kdamonds.sub("0/contexts/0/schemes/0/tried_regions")?;
        // It ended before it was asked to look again: nothing is listed.
        if !tried.has("0") {
            return Ok(None);
        }
        let mut first = 0;
        let mut all = Vec::with_capacity(self.targets.len());
        for (place, target) in self.targets.iter().enumerate() {
            let regions = if is_wanted(place) { target.regions.as_slice() } else { &[] };
            let mut seen = Vec::with_capacity(regions.len());
            for (number, region) in (first..).zip(regions) {
                let dir = tried.sub(number.to_string())?;
                let start = read_number(&dir, "start")?;
                if start != region.start {
                    let what = format!("{start:#x}, where the region handed over begins at {:#x}", region.start);
                    return Err(Error::parse(dir.path().join("start"), what));
                }
                let age = u32::try_from(read_number(&dir, "age")?).unwrap_or(u32::MAX);
                seen.push(Seen { used: read_number(&dir, "nr_accesses")? > 0, age });
            }
            first += target.regions.len();
            all.push(seen);
        }
        Ok(Some(all))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // What cannot be taken down now is found by its stamp later.
        let _ = take_down(&self.kdamonds, &mut *self.actuator, self.stamp);
    }
}

/// One write, again while somebody else is in the way.
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

/// The same for reading.
fn read(dir: &Dir, name: &str) -> Result<String> {
    let began = clock::read_monotonic();
    loop {
        match dir.read_string(name) {
            Err(err) if err.is_busy() && clock::read_monotonic().since(began) < BUSY => thread::sleep(AGAIN),
            result => return result,
        }
    }
}

fn read_number(dir: &Dir, name: &str) -> Result<u64> {
    let text = read(dir, name)?;
    parse_u64(text.as_bytes()).ok_or_else(|| Error::parse(dir.path().join(name), "not a number"))
}

/// Takes down the monitor with this stamp, if there is one: what a run left behind that was killed. One without a context
/// counts as well: the run may have been killed before it could stamp it, and nobody has set up anything there.
/// Whether it is gone now.
pub fn take_down_left(kernel: &Kernel, actuator: &mut dyn Actuator, stamp: Stamp) -> Result<bool> {
    match Damon::read(kernel) {
        Damon::InUse(1) => take_down(&kernel.sys.sub(ADMIN)?, actuator, stamp),
        state => Ok(state == Damon::Free),
    }
}

fn take_down(kdamonds: &Dir, actuator: &mut dyn Actuator, stamp: Stamp) -> Result<bool> {
    if read_number(kdamonds, "nr_kdamonds")? != 1 {
        return Ok(false);
    }
    let contexts = read_number(kdamonds, "0/contexts/nr_contexts")?;
    let read_stamp = || read_number(kdamonds, UPDATE);
    if contexts > 1 || contexts == 1 && read_stamp()? != stamp.0.into() {
        return Ok(false);
    }
    // The kernel waits for its thread, and without that refuses what follows.
    if read(kdamonds, "0/state")?.trim() == "on" {
        write(actuator, kdamonds, "0/state", "off")?;
    }
    Ok(write(actuator, kdamonds, "nr_kdamonds", "0")? == Outcome::Done)
}
