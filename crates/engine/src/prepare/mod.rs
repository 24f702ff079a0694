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

/// A round over all groups that frees less than this was the last.
const LITTLE: Bytes = Bytes::mib(1);
/// So was the last of so many in a row after which there is as much to take as before: what is taken comes back as soon,
/// such as memory of this program, where its own group is one of those.
const ROUNDS_IN_VAIN: u32 = 3;
/// A goal is aimed at with this much to spare: whoever asks for hibernation allocates a little, and what
/// came back at the last moment must not spoil it.
const MARGIN: Bytes = Bytes::mib(8);
/// The most rounds that free pages which have arrived in swap.
const COLLECTIONS: u32 = 10;
/// How long the end of a preparation waits for memory on its way to swap.
const WRITEBACK: Limits = Limits { longest: Duration::from_secs(5), patience: Duration::from_secs(5) };

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

/// Carries out preparations.
pub struct Preparation<'s, 'a> {
    /// What every run needs. The deadline is the timeout of its flag.
    pub session: &'s mut Session<'a>,
    /// Classes, guards and steps.
    pub config: &'s Loaded,
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
        if goal.missing(kernel)? != Some(Bytes::ZERO) {
            self.flush()?;
            // Page cache that was dirty, what had not arrived in swap yet, and what has grown meanwhile is
            // there for a second round.
            let (mut least, mut in_vain) = (Bytes::MAX, 0);
            while in_vain < ROUNDS_IN_VAIN && self.round(goal, &mut done, &mut measured)? {
                let left: Bytes = self.candidates()?.iter().map(|candidate| candidate.gain).sum();
                in_vain = if left + LITTLE <= least { 0 } else { in_vain + 1 };
                least = least.min(left);
            }
        }
        if !self.session.cancel.is_set() && self.session.actuator.is_live() {
            self.collect(&mut done, &mut measured)?;
        }
        done.missing = goal.missing(kernel)?;
        match done.missing {
            Some(Bytes::ZERO) => (done.end, done.why) = (Reached::Reached, End::Complete),
            // As much as will go is what was asked for; but there must be room for what is left.
            None if matches!(done.why, End::Complete | End::Futile | End::Floor | End::Gone) => {
                match goal.no_room(kernel)? {
                    no_room if no_room > Bytes::ZERO && self.session.actuator.is_live() => {
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
        done.disk_rate = measured.rate().filter(|_| disk_rate::is_disk_only(kernel));
        Ok(done)
    }

    /// Page cache that its file does not have yet cannot be freed, and the kernel would write it out
    /// itself, while the machine waits for it.
    fn flush(&self) -> Result<()> {
        let mut buffer = Vec::new();
        let kernel = self.session.host.kernel;
        let mut is_dirty =
            || Meminfo::read(kernel, &mut buffer).is_ok_and(|memory| memory.dirty.is_some_and(|dirty| dirty > DIRTY));
        if self.session.actuator.is_live() && is_dirty() {
            writeback::flush(self.session.cancel, is_dirty);
        }
        Ok(())
    }

    /// The groups that may be touched, largest benefit first.
    fn candidates(&self) -> Result<Vec<Candidate>> {
        let (tree, _) = read_groups(self.session.host.kernel, self.session.host.root, self.config, true)?;
        let mut candidates = targets::find_below(&tree, None, false);
        targets::sort_by_gain(&mut candidates);
        Ok(candidates)
    }

    /// One round over all groups. True if another round is worth it.
    fn round(&mut self, goal: &Goal, done: &mut Done, measured: &mut Measured) -> Result<bool> {
        let kernel = self.session.host.kernel;
        let before = done.freed;
        let mut failed = None;
        for candidate in self.candidates()? {
            let missing = match goal.missing(kernel)?.map(|missing| missing - done.planned) {
                Some(Bytes::ZERO) => return Ok(false),
                missing => missing.map(|missing| missing + MARGIN),
            };
            let amount = candidate.gain.min(missing.unwrap_or(Bytes::MAX));
            let floor = goal.swap_floor(kernel, self.config, amount);
            let before = Progress { freed: done.freed, ..Progress::default() };
            let config = self.config;
            let report = self.session.part(before, |session| reclaim(session, config, &candidate, amount, floor))?;
            let Some(report) = report else { continue };
            if !self.session.actuator.is_live() {
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
        Ok(self.session.actuator.is_live() && done.freed - before >= LITTLE)
    }

    /// Frees pages that have arrived in swap since the last write to their group: they are in memory
    /// still, and would be in an image. Freeing them may send other pages to swap, so there are a
    /// few rounds.
    fn collect(&mut self, done: &mut Done, measured: &mut Measured) -> Result<()> {
        for _ in 0..COLLECTIONS {
            if self.session.cancel.is_set() || !self.collect_once(done, measured)? {
                break;
            }
        }
        Ok(())
    }

    /// One round of [`Preparation::collect`]. Returns whether a group had such pages.
    fn collect_once(&mut self, done: &mut Done, measured: &mut Measured) -> Result<bool> {
        let kernel = self.session.host.kernel;
        let mut buffer = Vec::new();
        let mut had_some = false;
        writeback::wait(self.session.cancel, WRITEBACK, || {
            Ok(Meminfo::read(kernel, &mut buffer)?.writeback.unwrap_or_default())
        })?;
        for candidate in self.candidates()? {
            let Ok(group) = Group::open(kernel.cgroup()?, &candidate.path) else { continue };
            let cached = group.read_stat(&mut buffer).ok().and_then(|stat| stat.swapcached).unwrap_or_default();
            if cached < LITTLE || candidate.beyond_children.is_some() {
                continue;
            }
            had_some = true;
            // The free swap stays as good as it is.
            let free = SwapSpace::read(kernel).map(|swap| swap.free).unwrap_or_default();
            let amount = cached.min(candidate.gain);
            let mut silent = |_| {};
            let mut session = self.session.told(&mut silent);
            if let Some(report) = reclaim(&mut session, self.config, &candidate, amount, free - amount)? {
                add(done, measured, &report);
            }
        }
        Ok(had_some)
    }
}

/// Reclaims from one group; `None`: the group does not exist any more.
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

fn add(done: &mut Done, measured: &mut Measured, report: &Report) {
    done.freed += report.freed;
    done.freed_anon += report.freed_anon;
    done.freed_file += report.freed_file;
    done.swapped_out += report.swapped_out;
    measured.add(report);
}
