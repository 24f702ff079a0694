//! Preparing the machine for an announced event. The worker carries it out.
//!
//! No sweep runs meanwhile, and the machine need not be idle. The same groups may be touched as
//! ever.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use omr_base::text::printable;
use omr_control::status::PreparingView;
use omr_engine::prepare::free_page_reporting::{self, Blocks};
use omr_engine::prepare::image::Obstacle;
use omr_engine::prepare::{Done, Goal, Target, zram};
use omr_history::ledger::{Entry, Prepared};
use omr_kernel::Kernel;
use omr_policy::{Decision, Mode, Purpose, Reason, State};
use omr_units::{Bytes, Monotonic, millis};

use crate::effects::Effect;
use crate::host::Host;
use crate::settings::Settings;
use crate::worker::Order;

/// A preparation without a deadline ends after this time.
const USUAL: Duration = Duration::from_secs(120);
/// A later deadline is cut to this: whoever asks that early asks too early.
const LONGEST: Duration = Duration::from_secs(900);
/// Deadlines are checked once a second, and the check must not be late.
const MARGIN: Duration = Duration::from_secs(1);
/// All the free memory that can be had.
const EVERYTHING: Goal = Goal::Free { at_least: Bytes::MAX };
/// Characters of a reason that are kept.
const SHOWN: usize = 200;

/// One preparation.
#[derive(Debug)]
struct Preparing {
    purpose: Purpose,
    why: String,
    deadline: Monotonic,
    /// The last part of the time, which telling the host of free memory needs.
    reserved: Duration,
    stage: Stage,
    /// The machine could not hibernate when it began, so its goal is not an image.
    makeshift: bool,
    /// The preparation that the worker has not ended yet, and the reason why it ends.
    before: Option<(Purpose, String, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The worker does something else.
    Waiting,
    /// The worker frees memory.
    Running,
    /// The host is told of the freed memory, or will be as soon as the worker has ended freeing.
    HandingBack { freed: Bytes },
    /// The worker was told to stop, because the time is up or nobody wants the preparation any
    /// more.
    Ending(&'static str),
}

/// The preparation that is wanted, if one is.
#[derive(Debug, Default)]
pub struct Preparation(Option<Preparing>);

impl Preparation {
    /// Returns true while a preparation runs or waits.
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Somebody wants the machine prepared. A second request changes the deadline, and begins anew
    /// when it is for something else.
    pub fn request(
        &mut self,
        state: &mut State,
        now: Monotonic,
        purpose: Purpose,
        deadline_ms: Option<u64>,
        why: &str,
    ) -> Result<Vec<Effect>> {
        let time = deadline_ms.map_or(USUAL, Duration::from_millis).min(LONGEST).saturating_sub(MARGIN);
        if time.is_zero() {
            bail!("there is no time left to prepare in");
        }
        let shown: String = why.chars().take(SHOWN).collect();
        let why = printable(&shown);
        log::info!("preparing for {}: {why}; {} s", purpose.name(), time.as_secs());
        let what = format!("{}: {why}", purpose.name());
        state.prepare(Some(what.clone()));
        let reason = Reason::Preparing { what };
        let act = Effect::Act(Decision::Hold { reason: reason.clone() });
        let deadline = now + time;
        let reserved = if purpose == Purpose::Migrate { free_page_reporting::reserve(time) } else { Duration::ZERO };
        let before = match self.0.take() {
            Some(known) if known.purpose == purpose && known.stage == Stage::Running => {
                self.0 = Some(Preparing { why, deadline, reserved, ..known });
                return Ok(vec![act]);
            }
            Some(known) if known.stage != Stage::Waiting => {
                Some((known.purpose, known.why, "something else is to be prepared for"))
            }
            Some(known) => known.before,
            None => None,
        };
        let stage = Stage::Waiting;
        self.0 = Some(Preparing { purpose, why, deadline, reserved, stage, makeshift: false, before });
        // A sweep, or another preparation, ends first.
        Ok(vec![act, Effect::StopSweep(reason), Effect::StopWork, Effect::BeginPreparing])
    }

    /// Once a second: is the time up? `freed`: what the worker has freed so far.
    pub fn check_deadline(&mut self, host: &Host, state: &mut State, now: Monotonic, freed: Bytes) -> Vec<Effect> {
        let Some(preparing) = &mut self.0 else { return Vec::new() };
        if now >= preparing.deadline {
            return self.end(state, "time is up");
        }
        if preparing.stage != Stage::Running {
            return Vec::new();
        }
        if preparing.deadline.since(now) < preparing.reserved {
            preparing.stage = Stage::HandingBack { freed };
            return vec![Effect::StopWork];
        }
        if preparing.makeshift && goal(&host.kernel, &host.root, preparing.purpose).is_ok() {
            // There is swap now, and the run would fill it: its goal knows of no image that needs
            // room there.
            preparing.stage = Stage::Waiting;
            preparing.before = Some((preparing.purpose, preparing.why.clone(), "the machine can hibernate now"));
            return vec![Effect::StopWork];
        }
        Vec::new()
    }

    /// Ends the preparation for this reason, if there is one.
    pub fn end(&mut self, state: &mut State, why: &'static str) -> Vec<Effect> {
        let Some(preparing) = &mut self.0 else { return Vec::new() };
        match (preparing.stage, preparing.before.take()) {
            (Stage::Running | Stage::HandingBack { .. }, _) => {
                preparing.stage = Stage::Ending(why);
                return vec![Effect::StopWork];
            }
            // The one before it is being ended already, and is all that is left.
            (Stage::Waiting, Some((purpose, before, _))) => {
                (preparing.purpose, preparing.why, preparing.stage) = (purpose, before, Stage::Ending(why));
            }
            (Stage::Waiting, None) => self.forget(state),
            (Stage::Ending(_), _) => {}
        }
        Vec::new()
    }

    fn forget(&mut self, state: &mut State) {
        self.0 = None;
        state.prepare(None);
    }

    /// The worker is free. Returns what it is to do, if a preparation waits for it.
    pub fn begin(&mut self, host: &Host, settings: &Settings) -> Option<Order> {
        let preparing = self.0.as_mut().filter(|preparing| preparing.stage == Stage::Waiting)?;
        preparing.stage = Stage::Running;
        let goal = goal(&host.kernel, &host.root, preparing.purpose);
        preparing.makeshift = goal.is_err();
        let goal = goal.unwrap_or_else(|obstacle| {
            // Whoever hibernates the machine may be about to mend that: EC2's agent switches its
            // swap file on a second before.
            log::warn!("{obstacle}; what can be freed is freed all the same");
            EVERYTHING
        });
        if let Goal::Image { place, .. } = &goal
            && !zram::before(&host.kernel, place).is_empty()
        {
            log::warn!(
                "zram is filled before {} and is in the image; \"omr prepare hibernate\" switches it off meanwhile, which \
                 the daemon has no right to (CAP_SYS_ADMIN)",
                place.name()
            );
        }
        Some(Order::Prepare(goal, settings.loaded.clone()))
    }

    /// The worker has freed memory. `time`: seconds since 1970. `to_disk`: the hour of what it
    /// wrote to swap on a disk; `None`: swap is on no disk.
    pub fn freed(
        &mut self,
        state: &mut State,
        time: u64,
        mode: Mode,
        to_disk: Option<u64>,
        result: Result<Done>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        // A new preparation may be waiting for the end of this one.
        let waiting = self.0.as_mut().filter(|preparing| preparing.stage == Stage::Waiting);
        let (purpose, why, stop_reason) = match waiting.map(|preparing| preparing.before.take()) {
            Some(Some((purpose, why, reason))) => (purpose, why, Some(reason)),
            _ => {
                let Some(preparing) = &self.0 else { return effects };
                let ended = match preparing.stage {
                    Stage::Ending(why) => Some(why),
                    Stage::HandingBack { .. } => Some("the rest of the time is for telling the host"),
                    Stage::Waiting | Stage::Running => None,
                };
                let told = (preparing.purpose, preparing.why.clone(), ended);
                effects.extend(self.hand_back(state, mode, result.as_ref().map_or(Bytes::ZERO, |done| done.freed)));
                told
            }
        };
        let done = match result {
            Ok(done) => done,
            Err(err) => {
                log::error!("preparing for {}: {err:#}", purpose.name());
                return effects;
            }
        };
        if let Some(hour) = to_disk {
            // The budget did not hold it back, and sweeps pay for that.
            state.writes.add(hour, done.swapped_out);
            effects.push(Effect::SaveWrites);
        }
        effects.push(Effect::Record(Entry::Prepare(line(time, purpose, why, mode, stop_reason, done))));
        effects
    }

    /// The worker has freed what it could. Where the machine is to be moved, its host is told.
    fn hand_back(&mut self, state: &mut State, mode: Mode, freed: Bytes) -> Option<Effect> {
        match &mut self.0 {
            Some(Preparing {
                purpose: Purpose::Migrate,
                stage: stage @ (Stage::Running | Stage::HandingBack { .. }),
                ..
            }) if mode == Mode::Act => {
                *stage = Stage::HandingBack { freed };
                Some(Effect::Order(Order::HandBack))
            }
            _ => {
                self.forget(state);
                None
            }
        }
    }

    /// The host was told of the free memory.
    pub fn handed_back(&mut self, state: &mut State, result: Result<Option<Blocks>>) {
        match result {
            Ok(Some(Blocks { in_blocks, blocks, reported, .. })) => {
                let reported = reported.map_or_else(|| "an unknown number".to_owned(), |reported| reported.to_string());
                log::info!("{in_blocks} free in {blocks} large blocks, and the host was told of {reported} of them");
            }
            Ok(None) => log::info!("this machine tells no host of its free memory, so a migration sends that as well"),
            Err(err) => log::warn!("handing back to the host: {err:#}"),
        }
        match &mut self.0 {
            Some(preparing) if preparing.stage == Stage::Waiting => preparing.before = None,
            _ => self.forget(state),
        }
    }

    /// The preparation as `omr status` shows it. `freed`: what the worker has freed so far.
    pub fn view(&self, now: Monotonic, freed: Bytes) -> Option<PreparingView> {
        let preparing = self.0.as_ref()?;
        let freed = match preparing.stage {
            Stage::Waiting => Bytes::ZERO,
            Stage::HandingBack { freed } => freed,
            Stage::Running | Stage::Ending(_) => freed,
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

/// The ledger's line about a preparation, which is logged, too.
fn line(
    time: u64,
    purpose: Purpose,
    why: String,
    mode: Mode,
    stop_reason: Option<&'static str>,
    done: Done,
) -> Prepared {
    let line = Prepared {
        time,
        purpose,
        why,
        observed: mode != Mode::Act,
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
        line.freed,
        line.swapped_out,
        line.wall_ms,
        line.stop_reason
    );
    if let Some(error) = &line.error {
        log::warn!("{error}");
    }
    line
}

/// The goal of a preparation for this purpose.
fn goal(kernel: &Kernel, root: &Path, purpose: Purpose) -> Result<Goal, Obstacle> {
    match purpose {
        Purpose::Migrate | Purpose::Preempt => Ok(EVERYTHING),
        Purpose::Hibernate => Goal::hibernate(kernel, root, Target::Fast),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(effects: &[Effect]) -> Vec<&'static str> {
        let name = |effect: &Effect| match effect {
            Effect::Act(_) => "act",
            Effect::StopSweep(_) => "stop sweep",
            Effect::StopWork => "stop work",
            Effect::BeginPreparing => "begin",
            Effect::Order(_) => "order",
            Effect::SaveWrites => "save writes",
            Effect::Record(_) => "record",
            Effect::SpareGroup(_) | Effect::SpareProcess(_) => "spare",
        };
        effects.iter().map(name).collect()
    }

    /// Without a socket, a clock to wait for, or a thread.
    #[test]
    fn a_second_request_for_the_same_changes_only_the_deadline_of_one_that_runs() {
        let mut state = State::default();
        let mut preparation = Preparation::default();
        let all = ["act", "stop sweep", "stop work", "begin"];
        let effects =
            preparation.request(&mut state, Monotonic(0), Purpose::Preempt, Some(60_000), "a notice").expect("time");
        assert_eq!(asks(&effects), all);
        preparation.0.as_mut().expect("wanted").stage = Stage::Running;
        let again =
            preparation.request(&mut state, Monotonic(0), Purpose::Preempt, Some(30_000), "a notice").expect("time");
        assert_eq!(asks(&again), ["act"]);
        // For something else: the one that runs ends first.
        let other =
            preparation.request(&mut state, Monotonic(0), Purpose::Migrate, Some(30_000), "a move").expect("time");
        assert_eq!(asks(&other), all);
        let before = preparation.0.as_ref().expect("wanted").before.as_ref().expect("one ends");
        assert_eq!((before.0, before.2), (Purpose::Preempt, "something else is to be prepared for"));
        assert!(preparation.request(&mut state, Monotonic(0), Purpose::Migrate, Some(1000), "too late").is_err());
    }

    #[test]
    fn a_preparation_that_waits_is_forgotten_at_once_and_one_that_runs_is_stopped() {
        let mut state = State::default();
        let mut preparation = Preparation::default();
        assert!(asks(&preparation.end(&mut state, "not announced any more")).is_empty());
        for (stage, effects, is_wanted) in [(Stage::Waiting, vec![], false), (Stage::Running, vec!["stop work"], true)]
        {
            preparation.request(&mut state, Monotonic(0), Purpose::Preempt, None, "a notice").expect("time");
            preparation.0.as_mut().expect("wanted").stage = stage;
            assert_eq!(asks(&preparation.end(&mut state, "not announced any more")), effects, "{stage:?}");
            assert_eq!(preparation.is_wanted(), is_wanted, "{stage:?}");
        }
        // The worker has ended it.
        let done = preparation.freed(&mut state, 0, Mode::Act, Some(0), Err(anyhow::anyhow!("cancelled")));
        assert!(asks(&done).is_empty() && !preparation.is_wanted());
    }
}
