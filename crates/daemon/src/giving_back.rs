//! Giving back: what sweeps took while everybody was away is brought back when somebody comes.
//!
//! Only what left because everybody was away counts: memory of any age, or memory younger than the
//! threshold of its group. The worker keeps which pages the groups had before.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_control::status::GivingBackView;
use omr_engine::warm::{self, End, Report};
use omr_history::ledger::{Entry, GivenBack};
use omr_policy::{ColdOnly, Mode, Reason, State};
use omr_units::{Bytes, GroupId, Monotonic, millis};

use crate::daemon::Daemon;
use crate::effects::Effect;
use crate::host::Host;
use crate::settings::Settings;
use crate::worker::{GiveBack, Order};
use crate::world::World;

/// The most groups that are remembered. Any user can make groups.
const MOST: usize = 500;
/// After waking up, omr-warm.service has this time to begin. It brings back everything.
const AFTER_SLEEP: Duration = Duration::from_secs(30);
/// A machine that was in use for this long has back the memory that it needs.
const LONGEST: Duration = Duration::from_secs(300);

/// What was taken while everybody was away.
pub struct GivingBack {
    /// The daemon has the rights for it, and the kernel can. Without that, no memory leaves only
    /// because everybody is away, unless a rule says so.
    pub is_possible: bool,
    taken: HashMap<GroupId, Bytes>,
    running: Option<Running>,
    /// Nothing is given back before this moment.
    not_before: Monotonic,
    /// The number of times that the list began anew.
    absence: u64,
}

/// Memory is being given back.
struct Running {
    taken: HashMap<GroupId, Bytes>,
    began: Monotonic,
    /// The reason to end it.
    stop: Option<String>,
}

impl Running {
    fn bytes(&self) -> Bytes {
        self.taken.values().copied().sum()
    }
}

impl GivingBack {
    /// Nothing was taken yet.
    pub fn new(host: &Host) -> Self {
        GivingBack {
            is_possible: warm::is_possible(&host.kernel, &host.root),
            taken: HashMap::new(),
            running: None,
            not_before: Monotonic(0),
            absence: 0,
        }
    }

    /// Returns true if what a further group loses can be given back.
    pub fn has_room(&self) -> bool {
        self.is_possible && self.taken.len() < MOST
    }

    /// Returns true if the pages of this group must be known before a sweep of it begins.
    pub fn remembers(&self, settings: &Settings, state: &State, id: GroupId) -> bool {
        let is_known = self.taken.contains_key(&id);
        settings.config.mode == Mode::Act && state.is_away(&settings.config) && (is_known || self.has_room())
    }

    /// The number of this absence. Pages of groups that were known in another one are forgotten.
    pub fn absence(&self) -> u64 {
        self.absence
    }

    /// A sweep took this from a group whose pages were known before.
    pub fn note(&mut self, id: GroupId, bytes: Bytes) {
        if bytes > Bytes::ZERO {
            *self.taken.entry(id).or_default() += bytes;
        }
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, is_there: impl Fn(GroupId) -> bool) {
        self.taken.retain(|id, _| is_there(*id));
    }

    /// The machine was asleep. After hibernation omr-warm.service brings everything back.
    pub fn slept(&mut self, now: Monotonic) {
        self.not_before = now + AFTER_SLEEP;
    }

    /// Another process brings all memory back. Returns true if that makes giving back needless.
    pub fn warmed(&mut self) -> bool {
        let is_needless = self.running.is_none() && !self.taken.is_empty();
        if is_needless {
            log::info!("omr warm brings back what was taken while everybody was away");
            self.taken.clear();
            self.absence += 1;
        }
        is_needless
    }

    /// Returns true if memory should be given back now.
    pub fn is_due(&self, settings: &Settings, state: &State, now: Monotonic) -> bool {
        !self.taken.is_empty()
            && self.running.is_none()
            && now >= self.not_before
            && !state.is_away(&settings.config)
            && state.may_give_back(&settings.config, now).is_ok()
    }

    /// The worker is free. Returns what it is to do.
    pub fn begin(&mut self, settings: &Settings, state: &mut State, world: &World, now: Monotonic) -> Option<Order> {
        if !self.is_due(settings, state, now) {
            return None;
        }
        self.absence += 1;
        let running = Running { taken: std::mem::take(&mut self.taken), began: now, stop: None };
        log::info!("giving back {}: {}", running.bytes(), state.presence());
        let groups: Vec<(GroupId, PathBuf)> =
            running.taken.keys().filter_map(|id| Some((*id, world.tree.path(*id)?))).collect();
        self.running = Some(running);
        state.set_warming(true);
        Some(Order::GiveBack(GiveBack { groups, loaded: Arc::clone(&settings.loaded) }))
    }

    /// Returns true while memory is given back.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Once a second: it has lasted for long enough.
    pub fn check_time(&mut self, now: Monotonic) -> Option<Effect> {
        let running = self.running.as_ref().filter(|running| now.since(running.began) >= LONGEST)?;
        let minutes = now.since(running.began).as_secs() / 60;
        self.stop(&format!("time is up ({minutes} min)"))
    }

    /// Ends it for this reason, if it runs.
    pub fn stop(&mut self, why: &str) -> Option<Effect> {
        let running = self.running.as_mut().filter(|running| running.stop.is_none())?;
        running.stop = Some(why.to_owned());
        Some(Effect::StopWork)
    }

    /// The worker has ended it. What was not given back is not tried again. `time`: seconds since
    /// 1970.
    pub fn finish(&mut self, state: &mut State, now: Monotonic, time: u64, result: Result<Report>) -> Option<Effect> {
        let running = self.running.take()?;
        state.set_warming(false);
        running.taken.keys().for_each(|id| state.gave_back(*id, now));
        let line = line(&running, time, result);
        log::info!(
            "gave back {} of {}, {} read from swap, {} ms, {}",
            line.asked,
            line.taken,
            line.swapped_in,
            line.wall_ms,
            line.stop_reason
        );
        Some(Effect::Record(Entry::GiveBack(line)))
    }

    /// For `omr status`. `back`: what the worker has asked for so far.
    pub fn view(&self, back: Bytes) -> Option<GivingBackView> {
        self.running.as_ref().map(|running| GivingBackView { back, taken: running.bytes() })
    }
}

impl Daemon {
    /// Once a second: begins to give back when somebody has come, and ends it after a while.
    pub(crate) fn check_giving_back(&mut self) {
        let now = self.host.now();
        let effect = self.giving_back.check_time(now);
        self.carry_out(effect);
        if self.giving_back.is_due(&self.settings, &self.mind.state, now) {
            // Another order is of no use to whoever came.
            self.stop_hint("memory is given back");
            self.stop_sweep(Reason::Warming);
            self.begin_to_give_back();
        }
    }

    /// Gives the worker the order to give back, if it is free.
    pub(crate) fn begin_to_give_back(&mut self) {
        if self.work.is_busy() || self.preparation.is_wanted() {
            return;
        }
        let (now, state) = (self.host.now(), &mut self.mind.state);
        if let Some(order) = self.giving_back.begin(&self.settings, state, &self.world, now) {
            self.order(order);
        }
    }

    pub(crate) fn stop_giving_back(&mut self, why: &str) {
        let effect = self.giving_back.stop(why);
        self.carry_out(effect);
    }

    /// Returns true if a sweep of the group takes memory that would stay with somebody there.
    pub(crate) fn is_younger_than_usual(&self, id: GroupId) -> bool {
        self.world.group(id).is_some_and(|group| group.cold_only.as_ref().is_none_or(ColdOnly::is_younger))
    }
}

fn line(running: &Running, time: u64, result: Result<Report>) -> GivenBack {
    let mut line = GivenBack {
        time,
        groups: running.taken.len(),
        taken: running.bytes(),
        asked: Bytes::ZERO,
        swapped_in: Bytes::ZERO,
        cpu_ms: 0,
        wall_ms: 0,
        stop_reason: "failed".to_owned(),
        error: None,
    };
    match result {
        Ok(report) => {
            line.asked = report.swap + report.file;
            line.swapped_in = report.swapped_in;
            line.cpu_ms = millis(report.cpu);
            line.wall_ms = millis(report.wall);
            line.stop_reason = match (&running.stop, report.end, report.reason) {
                (Some(why), End::Stopped, _) => why.clone(),
                (None, End::Stopped, _) => "something else had to be done".to_owned(),
                (_, end, Some(reason)) => format!("{}: {reason}", end.words()),
                (_, end, None) => end.words().to_owned(),
            };
        }
        Err(err) => line.error = Some(format!("{err:#}")),
    }
    if let Some(error) = &line.error {
        log::warn!("giving back: {error}");
    }
    line
}
