//! Preparing the machine for what somebody has announced: what is wanted, and carrying it out by the
//! worker. Meanwhile there are no sweeps, and it does not matter whether the machine is idle; what may
//! be touched is the same as ever.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use omr_base::text::printable;
use omr_control::status::PreparingView;
use omr_engine::prepare::free_page_reporting::{self, Blocks};
use omr_engine::prepare::image::Obstacle;
use omr_engine::prepare::{Done, Goal, Target, zram};
use omr_history::ledger::{Entry, Prepared};
use omr_kernel::{Kernel, clock};
use omr_policy::{Decision, Mode, Purpose, Reason};
use omr_units::{Bytes, Monotonic, millis};

use super::worker::Order;
use crate::daemon::Daemon;

/// Without a deadline it ends after this time.
const USUAL: Duration = Duration::from_secs(120);
/// Whoever comes with a longer one comes too early.
const LONGEST: Duration = Duration::from_secs(900);
/// The loop looks once a second, and must not look too late.
const MARGIN: Duration = Duration::from_secs(1);
/// All the free memory that can be had.
const EVERYTHING: Goal = Goal::Free { at_least: Bytes::MAX };
/// So much of a reason is kept.
const SHOWN: usize = 200;

/// What is wanted.
#[derive(Debug)]
pub struct Preparing {
    purpose: Purpose,
    why: String,
    deadline: Monotonic,
    /// Of the time until then, what handing back needs.
    reserved: Duration,
    stage: Stage,
    /// The machine could not hibernate when it began, so what it works towards is not an image.
    makeshift: bool,
    /// The worker is at this one still, which came before, and ends for this reason.
    before: Option<(Purpose, String, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The worker is at something else still.
    Waiting,
    /// It runs.
    Running,
    /// What it freed is being handed back to the host, or is to be as soon as the worker has ended freeing.
    HandingBack { freed: Bytes },
    /// It runs, and was told to stop because its time is up or nobody wants it any more.
    Ending(&'static str),
}

impl Daemon {
    /// Somebody wants the machine prepared. A second request changes the deadline, and begins anew when it
    /// is for something else.
    pub(super) fn prepare(&mut self, purpose: Purpose, deadline_ms: Option<u64>, why: &str) -> Result<()> {
        let now = clock::read_monotonic();
        let time = deadline_ms.map_or(USUAL, Duration::from_millis).min(LONGEST).saturating_sub(MARGIN);
        if time.is_zero() {
            bail!("there is no time left to prepare in");
        }
        let shown: String = why.chars().take(SHOWN).collect();
        let why = printable(&shown);
        log::info!("preparing for {}: {why}; {} s", purpose.name(), time.as_secs());
        let what = format!("{}: {why}", purpose.name());
        self.mind.state.prepare(Some(what.clone()));
        self.act(Decision::Hold { reason: Reason::Preparing { what: what.clone() } });
        let deadline = now + time;
        let reserved = if purpose == Purpose::Migrate { free_page_reporting::reserve(time) } else { Duration::ZERO };
        let before = match self.preparing.take() {
            Some(known) if known.purpose == purpose && known.stage == Stage::Running => {
                self.preparing = Some(Preparing { why, deadline, reserved, ..known });
                return Ok(());
            }
            Some(known) if known.stage != Stage::Waiting => {
                Some((known.purpose, known.why, "something else is to be prepared for"))
            }
            Some(known) => known.before,
            None => None,
        };
        let stage = Stage::Waiting;
        self.preparing = Some(Preparing { purpose, why, deadline, reserved, stage, makeshift: false, before });
        // What the worker is at, be it a sweep or another preparation, ends first.
        self.stop(Reason::Preparing { what });
        self.work.stop();
        if !self.work.is_busy() {
            self.begin_to_prepare();
        }
        Ok(())
    }

    /// Once a second.
    pub(super) fn look_at_deadline(&mut self, now: Monotonic) {
        let freed = self.work.progress().freed;
        let Some(preparing) = &mut self.preparing else { return };
        if now >= preparing.deadline {
            self.end_preparing("time is up");
        } else if preparing.stage == Stage::Running && preparing.deadline.since(now) < preparing.reserved {
            preparing.stage = Stage::HandingBack { freed };
            self.work.stop();
        } else if preparing.stage == Stage::Running
            && preparing.makeshift
            && goal(&self.host.kernel, &self.host.root, preparing.purpose).is_ok()
        {
            // Swap came, and what runs would fill it: it knows of no image that needs room there.
            preparing.stage = Stage::Waiting;
            preparing.before = Some((preparing.purpose, preparing.why.clone(), "the machine can hibernate now"));
            self.work.stop();
        }
    }

    pub(super) fn end_preparing(&mut self, why: &'static str) {
        let Some(preparing) = &mut self.preparing else { return };
        match (preparing.stage, preparing.before.take()) {
            (Stage::Running | Stage::HandingBack { .. }, _) => {
                preparing.stage = Stage::Ending(why);
                self.work.stop();
            }
            // The one before it is being ended already, and all that is left.
            (Stage::Waiting, Some((purpose, before, _))) => {
                (preparing.purpose, preparing.why, preparing.stage) = (purpose, before, Stage::Ending(why));
            }
            (Stage::Waiting, None) => {
                self.preparing = None;
                self.mind.state.prepare(None);
            }
            (Stage::Ending(_), _) => {}
        }
    }

    /// The worker is free: is there something to prepare for?
    pub(super) fn begin_to_prepare(&mut self) {
        let Some(preparing) = self.preparing.as_mut().filter(|preparing| preparing.stage == Stage::Waiting) else {
            return;
        };
        preparing.stage = Stage::Running;
        let goal = goal(&self.host.kernel, &self.host.root, preparing.purpose);
        preparing.makeshift = goal.is_err();
        let goal = goal.unwrap_or_else(|obstacle| {
            // Whoever hibernates the machine may be about to mend that: EC2's agent switches its swap file on
            // a second before.
            log::warn!("{obstacle}; what can be freed is freed all the same");
            EVERYTHING
        });
        if let Goal::Image { place, .. } = &goal
            && !zram::before(&self.host.kernel, place).is_empty()
        {
            log::warn!(
                "zram is filled before {} and is in the image; \"omr prepare hibernate\" switches it off meanwhile, which \
                 the daemon has no right to (CAP_SYS_ADMIN)",
                place.name()
            );
        }
        self.work.order(Order::Prepare(goal, self.settings.loaded.clone()));
    }

    /// The worker is done with it.
    pub(super) fn prepared(&mut self, result: Result<Done>) {
        // A new one may be waiting for the end of this.
        let waiting = self.preparing.as_mut().filter(|preparing| preparing.stage == Stage::Waiting);
        let (purpose, why, stop_reason) = match waiting.map(|preparing| preparing.before.take()) {
            Some(Some((purpose, why, reason))) => (purpose, why, Some(reason)),
            _ => {
                let Some(preparing) = &self.preparing else { return };
                let ended = match preparing.stage {
                    Stage::Ending(why) => Some(why),
                    Stage::HandingBack { .. } => Some("the rest of the time is for telling the host"),
                    Stage::Waiting | Stage::Running => None,
                };
                let told = (preparing.purpose, preparing.why.clone(), ended);
                self.hand_back(result.as_ref().map_or(Bytes::ZERO, |done| done.freed));
                told
            }
        };
        let done = match result {
            Ok(done) => done,
            Err(err) => {
                log::error!("preparing for {}: {err:#}", purpose.name());
                return;
            }
        };
        let wall = clock::read_wall();
        if self.readings.swap_is_on_disk().unwrap_or(false) {
            // It was not held back by the allowance, and sweeps pay for that.
            self.mind.state.writes.add(wall.as_secs() / 3600, done.swapped_out);
            self.books.save(&self.mind.state.writes);
        }
        let entry = Prepared {
            time: wall.as_secs(),
            purpose,
            why,
            observed: self.settings.config.mode == Mode::Observe,
            freed: done.freed,
            freed_anon: done.freed_anon,
            freed_file: done.freed_file,
            swapped_out: done.swapped_out,
            wall_ms: millis(Duration::from_secs_f64(done.seconds)),
            stop_reason: stop_reason.unwrap_or_else(|| done.why.words()).to_owned(),
            error: done.error,
        };
        log::info!(
            "prepared for {}: {} freed, {} to swap, {} ms, {}",
            purpose.name(),
            entry.freed,
            entry.swapped_out,
            entry.wall_ms,
            entry.stop_reason
        );
        if let Some(error) = &entry.error {
            log::warn!("{error}");
        }
        self.books.record(&Entry::Prepare(entry));
    }

    /// The worker has freed what it could; where the machine is to be moved, its host is told.
    fn hand_back(&mut self, freed: Bytes) {
        match &mut self.preparing {
            Some(Preparing {
                purpose: Purpose::Migrate,
                stage: stage @ (Stage::Running | Stage::HandingBack { .. }),
                ..
            }) if self.settings.config.mode == Mode::Act => {
                *stage = Stage::HandingBack { freed };
                self.work.order(Order::HandBack);
            }
            _ => {
                self.preparing = None;
                self.mind.state.prepare(None);
            }
        }
    }

    /// The worker is done with that.
    pub(super) fn handed_back(&mut self, result: Result<Option<Blocks>>) {
        match result {
            Ok(Some(Blocks { in_blocks, blocks, reported, .. })) => {
                let reported = reported.map_or_else(|| "an unknown number".to_owned(), |reported| reported.to_string());
                log::info!("{in_blocks} free in {blocks} large blocks, and the host was told of {reported} of them");
            }
            Ok(None) => log::info!("this machine tells no host of its free memory, so a migration sends that as well"),
            Err(err) => log::warn!("handing back to the host: {err:#}"),
        }
        match &mut self.preparing {
            Some(preparing) if preparing.stage == Stage::Waiting => preparing.before = None,
            preparing => {
                *preparing = None;
                self.mind.state.prepare(None);
            }
        }
    }

    pub(super) fn preparing_view(&self, now: Monotonic) -> Option<PreparingView> {
        let preparing = self.preparing.as_ref()?;
        let freed = match preparing.stage {
            Stage::Waiting => Bytes::ZERO,
            Stage::HandingBack { freed } => freed,
            Stage::Running | Stage::Ending(_) => self.work.progress().freed,
        };
        let left = preparing.deadline.since(now);
        Some(PreparingView {
            purpose: preparing.purpose,
            why: preparing.why.clone(),
            left_ms: u64::try_from(left.as_millis()).ok(),
            freed,
        })
    }
}

/// What is to be reached.
fn goal(kernel: &Kernel, root: &Path, purpose: Purpose) -> Result<Goal, Obstacle> {
    match purpose {
        Purpose::Migrate | Purpose::Preempt => Ok(EVERYTHING),
        Purpose::Hibernate => Goal::hibernate(kernel, root, Target::Fast),
    }
}
