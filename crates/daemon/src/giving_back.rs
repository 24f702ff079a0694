//! Giving back: what sweeps took while everybody was away is brought back when somebody comes.
//!
//! Only what left because everybody was away counts: memory of any age, or memory younger than the
//! threshold of its group. The worker keeps which pages the groups had before, or where it lacks
//! the rights for that, the companion does.

use std::collections::HashMap;
#[cfg(test)]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_control::status::GivingBackView;
use omr_engine::warm::{self, End, MOST_GROUPS, Report};
use omr_history::ledger::{Entry, GivenBack};
use omr_policy::{Mode, Reason, State};
use omr_units::{Bytes, GroupId, Monotonic, millis};

use crate::companion::Companion;
use crate::daemon::Daemon;
use crate::effects::Effect;
use crate::host::Host;
use crate::settings::Settings;
use crate::worker::{GiveBack, Order, Remember};

/// After waking up, omr-warm.service has this time to begin. It brings back everything.
const AFTER_SLEEP: Duration = Duration::from_secs(30);
/// A machine that was in use for this long has back the memory that it needs.
const LONGEST: Duration = Duration::from_secs(300);

/// What was taken while everybody was away.
pub struct GivingBack {
    /// Who brings memory back; `None`: the worker itself, because it has the rights for it.
    companion: Option<Arc<Companion>>,
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
            companion: (!warm::is_possible(&host.kernel, &host.root)).then(|| Arc::new(Companion::new(&host.root))),
            taken: HashMap::new(),
            running: None,
            not_before: Monotonic(0),
            absence: 0,
        }
    }

    /// Returns true if nothing was taken that could be given back.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.running.is_none()
    }

    /// Returns true if memory can be given back. Otherwise none leaves only because everybody is
    /// away, unless a rule says so.
    pub fn is_possible(&self) -> bool {
        self.companion.as_ref().is_none_or(|companion| companion.is_there())
    }

    /// The daemon has the rights itself, or never.
    #[cfg(test)]
    pub fn set_possible(&mut self, is_possible: bool) {
        self.companion = (!is_possible).then(|| Arc::new(Companion::new(Path::new("/nowhere"))));
    }

    /// Returns true if what a further group loses can be given back.
    pub fn has_room(&self) -> bool {
        self.taken.len() < MOST_GROUPS && self.is_possible()
    }

    /// Returns true if the pages of this group must be known before a sweep of it begins. A rule
    /// may allow any age, and then memory leaves also where it cannot be given back.
    pub fn remembers(&self, settings: &Settings, state: &State, id: GroupId, is_any_age: bool) -> bool {
        let has_place = self.taken.len() < MOST_GROUPS || self.taken.contains_key(&id);
        let can = has_place && self.is_possible();
        settings.config.mode == Mode::Act && state.is_away(&settings.config) && (can || !is_any_age)
    }

    /// How a sweep keeps which pages a group had.
    pub fn how_to_remember(&self) -> Remember {
        Remember { absence: self.absence, companion: self.companion.clone() }
    }

    /// The worker is free. Nobody is away and nothing is to be given back, so the companion is not
    /// needed.
    fn rest(&self, is_away: bool) {
        if !is_away && self.taken.is_empty() && self.running.is_none() {
            self.companion.iter().for_each(|companion| companion.dismiss());
        }
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
    pub fn begin(&mut self, settings: &Settings, state: &mut State, now: Monotonic) -> Option<Order> {
        if !self.is_due(settings, state, now) {
            return None;
        }
        self.absence += 1;
        let running = Running { taken: std::mem::take(&mut self.taken), began: now, stop: None };
        log::info!("giving back {}: {}", running.bytes(), state.presence());
        let groups = running.taken.keys().copied().collect();
        self.running = Some(running);
        state.set_warming(true);
        let companion = self.companion.clone();
        Some(Order::GiveBack(GiveBack { groups, loaded: Arc::clone(&settings.loaded), companion }))
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
        if !self.work.is_busy() {
            self.giving_back.rest(self.mind.state.is_away(&self.settings.config));
        }
    }

    /// Gives the worker the order to give back, if it is free.
    pub(crate) fn begin_to_give_back(&mut self) {
        if self.work.is_busy() || self.preparation.is_wanted() {
            return;
        }
        let (now, state) = (self.host.now(), &mut self.mind.state);
        if let Some(order) = self.giving_back.begin(&self.settings, state, now) {
            self.order(order);
        }
    }

    pub(crate) fn stop_giving_back(&mut self, why: &str) {
        let effect = self.giving_back.stop(why);
        self.carry_out(effect);
    }

    /// Returns how a sweep of the group keeps which pages it has; `None`: it takes no memory that
    /// would stay with somebody there, or need not give it back.
    pub(crate) fn how_to_remember(&self, id: GroupId) -> Option<Remember> {
        let group = self.world.group(id)?;
        if group.cold_only.as_ref().is_some_and(|cold_only| !cold_only.is_younger()) {
            return None;
        }
        let (giving_back, is_any_age) = (&self.giving_back, group.cold_only.is_none());
        let remembers = giving_back.remembers(&self.settings, &self.mind.state, id, is_any_age);
        remembers.then(|| giving_back.how_to_remember())
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
