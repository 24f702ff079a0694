//! Preparing the machine for what is to come: reclaims from the groups that may be touched until a
//! goal is reached, the stop flag is set or its time is up. For the command line and for the daemon's
//! worker alike.

pub mod disk_rate;
pub mod free_page_reporting;
pub mod image;
pub mod image_size;
pub mod zram;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_config::Loaded;
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::{Kernel, clock, zoneinfo};
use omr_machine::groups::targets::{self, Candidate};
use omr_machine::inventory::read_groups;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::forecast::Forecast;
use omr_policy::pace::{Job, WRITEBACK_OVER};
use omr_policy::{End, SwapContext, swap_floor};
use omr_units::{Bytes, Pages};
use serde::Serialize;

use crate::prepare::disk_rate::Measured;
use crate::prepare::image::{Obstacle, Place};
use crate::reclaim::backend::Backend;
use crate::reclaim::limit_journal::Journal;
use crate::reclaim::{self, DIRTY, Report, Worker};

/// A round over all groups that frees less than this was the last.
const LITTLE: Bytes = Bytes::mib(1);
/// So was the last of so many in a row after which there is as much to take as before: what is taken comes back as soon,
/// such as memory of this program, where its own group is one of those.
const ROUNDS_IN_VAIN: u32 = 3;
/// A goal is aimed at with this much to spare: whoever asks for hibernation allocates a little, and what
/// came back at the last moment must not spoil it.
const MARGIN: Bytes = Bytes::mib(8);
/// The longest wait for what is on its way to the disk.
const WRITEBACK_TIME: Duration = Duration::from_secs(5);

/// How small an image has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// So small that the kernel only has to copy it.
    Fast,
    /// That, and before compression no larger than this.
    AtMost(Bytes),
    /// As small as will go.
    Smallest,
}

/// What is to be reached.
#[derive(Clone, Debug)]
pub enum Goal {
    /// A hibernation image for which swap has room, and that the kernel only has to copy.
    Image {
        /// Its size before compression; `None`: as small as will go.
        at_most: Option<Bytes>,
        /// Where it goes.
        place: Place,
    },
    /// Free memory above the watermarks up to which kswapd reclaims, and above what zones keep for
    /// those who can use no other.
    Free {
        /// This much.
        at_least: Bytes,
    },
    /// Everything that may be taken: what is in memory is moved with the machine.
    All,
}

impl Goal {
    /// The goal of a preparation for hibernation, or why there can be none.
    pub fn hibernate(kernel: &Kernel, root: &Path, target: Target) -> Result<Self, Obstacle> {
        let place = image::place(kernel, root)?;
        let forecast = image::forecast(kernel).ok_or(Obstacle::Unknown)?;
        image::room(&forecast, &place)?;
        let at_most = match target {
            Target::AtMost(size) => Some(size),
            // With image_size 0 nothing is small enough: then as small as will go is what was asked for.
            Target::Fast => Some(forecast.fast).filter(|&fast| fast > forecast.must_stay),
            Target::Smallest => None,
        };
        Ok(Goal::Image { at_most, place })
    }

    /// What must still leave memory, measured now; zero when the goal is reached. `None` in a goal
    /// that ends only when nothing more will go.
    pub fn missing(&self, kernel: &Kernel) -> Result<Option<Bytes>> {
        match self {
            Goal::Image { at_most, place, .. } => {
                let (forecast, no_room) = read_image(kernel, place)?;
                // Swap it has no room in is no place for an image, however fast it is made.
                Ok(at_most.map(|size| forecast.above(size).max(no_room)))
            }
            Goal::Free { at_least } => Ok(Some(*at_least - read_free(kernel)?)),
            Goal::All => Ok(None),
        }
    }

    /// What the image is too large for its swap, measured now.
    fn no_room(&self, kernel: &Kernel) -> Result<Bytes> {
        match self {
            Goal::Image { place, .. } => Ok(read_image(kernel, place)?.1),
            Goal::Free { .. } | Goal::All => Ok(Bytes::ZERO),
        }
    }

    /// Swap of the whole machine that must stay free when `amount` more leaves memory.
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

/// The image as it would be now, and what of it has no room in its swap.
fn read_image(kernel: &Kernel, place: &Place) -> Result<(Forecast, Bytes)> {
    let forecast = image::forecast(kernel).context("the kernel does not tell any more what memory is in use")?;
    let place = place.again(kernel).with_context(|| format!("{} is no swap any more", place.name()))?;
    Ok((forecast, forecast.image - place.device.free()))
}

/// Free memory that can be had before kswapd has to do anything.
pub fn read_free(kernel: &Kernel) -> Result<Bytes> {
    let zones = zoneinfo::read(kernel, &mut Vec::new())?;
    let free = zones.iter().map(|zone| zone.free - zone.high - zone.protection).fold(Pages(0), |sum, free| sum + free);
    Ok(free.bytes(kernel.page()))
}

/// How a preparation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// The goal is reached.
    Reached,
    /// Less than that was to be had.
    Partly,
}

/// What a preparation did, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    /// How it ended.
    pub end: Reached,
    /// Why it ended.
    pub why: End,
    /// What is missing still; `None` without a size to reach, where the image has room.
    pub missing: Option<Bytes>,
    /// What groups shrank by.
    pub freed: Bytes,
    /// Of it, anonymous and shared memory.
    pub freed_anon: Bytes,
    /// Of it, page cache.
    pub freed_file: Bytes,
    /// Written to swap meanwhile by the whole machine.
    pub swapped_out: Bytes,
    /// What a run without `--dry-run` would ask for.
    pub planned: Bytes,
    /// How long it took.
    pub seconds: f64,
    /// What the swap disk took in a second, where enough was written to tell.
    pub disk_rate: Option<Bytes>,
    /// The first error, where there was one.
    pub error: Option<String>,
}

/// What a preparation needs.
pub struct Preparation<'a> {
    /// The machine.
    pub kernel: &'a Kernel,
    /// The root of its files.
    pub root: &'a Path,
    /// Classes, guards and steps.
    pub config: &'a Loaded,
    /// Where writes go.
    pub actuator: &'a mut dyn Actuator,
    /// See [`crate::reclaim::backend::Step::journal`].
    pub journal: Option<&'a Journal>,
    /// When to stop; the deadline is its timeout.
    pub stop: &'a Flag,
}

impl Preparation<'_> {
    /// Reclaims until the goal is reached or it must end. `progress` is told what is freed so far.
    pub fn run(&mut self, goal: &Goal, progress: &mut dyn FnMut(Bytes)) -> Result<Done> {
        let began = clock::read_monotonic();
        let mut done = Done {
            end: Reached::Partly,
            why: End::Futile,
            missing: goal.missing(self.kernel)?,
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
        if goal.missing(self.kernel)? != Some(Bytes::ZERO) {
            self.flush()?;
            // Page cache that was dirty, what had not arrived in swap yet, and what has grown meanwhile is
            // there for a second round.
            let (mut least, mut in_vain) = (Bytes::MAX, 0);
            while in_vain < ROUNDS_IN_VAIN && self.round(goal, &mut done, &mut measured, progress)? {
                let left: Bytes = self.candidates()?.iter().map(|candidate| candidate.gain).sum();
                in_vain = if left + LITTLE <= least { 0 } else { in_vain + 1 };
                least = least.min(left);
            }
        }
        if !self.stop.is_set() && self.actuator.is_live() {
            self.collect(&mut done, &mut measured)?;
        }
        done.missing = goal.missing(self.kernel)?;
        match done.missing {
            Some(Bytes::ZERO) => (done.end, done.why) = (Reached::Reached, End::Complete),
            // As much as will go is what was asked for; but there must be room for what is left.
            None if matches!(done.why, End::Complete | End::Futile | End::Floor | End::Gone) => {
                match goal.no_room(self.kernel)? {
                    no_room if no_room > Bytes::ZERO && self.actuator.is_live() => {
                        (done.why, done.missing) = (End::SwapFloor, Some(no_room));
                    }
                    _ => done.end = Reached::Reached,
                }
            }
            // Each group gave all that may be taken from it.
            Some(_) if done.why == End::Complete => done.why = End::Futile,
            None | Some(_) => {}
        }
        done.seconds = clock::read_monotonic().since(began).as_secs_f64();
        // Where some of it went to memory, the time says nothing of the disk.
        done.disk_rate = measured.rate().filter(|_| disk_rate::is_disk_only(self.kernel));
        Ok(done)
    }

    /// Page cache that its file does not have yet cannot be freed, and the kernel would write it out
    /// itself, while the machine waits for it.
    fn flush(&self) -> Result<()> {
        let mut buffer = Vec::new();
        let mut is_dirty = || {
            Meminfo::read(self.kernel, &mut buffer).is_ok_and(|memory| memory.dirty.is_some_and(|dirty| dirty > DIRTY))
        };
        if self.actuator.is_live() && is_dirty() {
            reclaim::flush(self.stop, is_dirty);
        }
        Ok(())
    }

    /// The groups that may be touched, largest benefit first.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let (tree, _) = read_groups(self.kernel, self.root, self.config, true)?;
        let mut candidates = targets::find_below(&tree, None, false);
        targets::sort_by_gain(&mut candidates);
        Ok(candidates)
    }

    /// One round over all groups. Whether another is worth it.
    fn round(
        &mut self,
        goal: &Goal,
        done: &mut Done,
        measured: &mut Measured,
        progress: &mut dyn FnMut(Bytes),
    ) -> Result<bool> {
        let before = done.freed;
        let mut failed = None;
        for candidate in self.candidates()? {
            let missing = match goal.missing(self.kernel)?.map(|missing| missing - done.planned) {
                Some(Bytes::ZERO) => return Ok(false),
                missing => missing.map(|missing| missing + MARGIN),
            };
            let amount = candidate.gain.min(missing.unwrap_or(Bytes::MAX));
            let floor = goal.swap_floor(self.kernel, self.config, amount);
            let freed = done.freed;
            let report = self.job(&candidate, amount, floor, &mut |now| {
                progress(freed + now.freed);
            })?;
            let Some(report) = report else { continue };
            if !self.actuator.is_live() {
                done.planned += amount;
            }
            done.why = report.end;
            if report.end.is_failure() {
                failed.get_or_insert_with(|| (report.end, report.error.clone()));
            }
            add(done, measured, &report);
            if matches!(report.end, End::Stopped | End::Timeout) {
                return Ok(false);
            }
        }
        if let Some((end, error)) = failed {
            (done.why, done.error) = (end, error);
            return Ok(false);
        }
        Ok(self.actuator.is_live() && done.freed - before >= LITTLE)
    }

    /// Pages that have arrived in swap since the last write to their group are in memory still, and in
    /// an image: frees them.
    fn collect(&mut self, done: &mut Done, measured: &mut Measured) -> Result<()> {
        let mut buffer = Vec::new();
        let began = clock::read_monotonic();
        while !self.stop.is_set()
            && clock::read_monotonic().since(began) < WRITEBACK_TIME
            && Meminfo::read(self.kernel, &mut buffer)?.writeback.is_some_and(|bytes| bytes > WRITEBACK_OVER)
        {
            self.stop.sleep(Duration::from_millis(10));
        }
        for candidate in self.candidates()? {
            let Ok(group) = Group::open(self.kernel.cgroup()?, &candidate.path) else { continue };
            let cached = group.read_stat(&mut buffer).ok().and_then(|stat| stat.swapcached).unwrap_or_default();
            if cached < LITTLE || candidate.beyond_children.is_some() {
                continue;
            }
            // Swap as good as stays as it is.
            let free = SwapSpace::read(self.kernel).map(|swap| swap.free).unwrap_or_default();
            let amount = cached.min(candidate.gain);
            if let Some(report) = self.job(&candidate, amount, free - amount, &mut |_| {})? {
                add(done, measured, &report);
            }
        }
        Ok(())
    }

    /// Reclaims from one group; `None` when it is gone.
    fn job(
        &mut self,
        candidate: &Candidate,
        amount: Bytes,
        swap_floor: Bytes,
        progress: &mut dyn FnMut(reclaim::Progress),
    ) -> Result<Option<Report>> {
        let Some(group) = candidate.open(self.kernel)? else { return Ok(None) };
        let floor = candidate.current - candidate.gain;
        let mut job = Job { floor, swap_floor, ..Job::new(&self.config.policy.sweep, amount) };
        let backend = match Backend::probe(self.config.backend, &group, &mut *self.actuator) {
            Ok(backend) => backend,
            Err(err) => return Ok(Some(Report::nothing(&job, End::Unsupported, Some(format!("{err:#}"))))),
        };
        job.file_only = backend.file_only();
        let mut worker = Worker {
            kernel: self.kernel,
            actuator: &mut *self.actuator,
            backend,
            journal: self.journal,
            stop: self.stop,
        };
        Ok(Some(worker.run(&group, job, candidate.beyond_children, progress)))
    }
}

fn add(done: &mut Done, measured: &mut Measured, report: &Report) {
    done.freed += report.freed;
    done.freed_anon += report.freed_anon;
    done.freed_file += report.freed_file;
    done.swapped_out += report.swapped_out;
    measured.add(report);
}
