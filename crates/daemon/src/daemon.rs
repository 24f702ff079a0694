//! The loop: waits, hands each event to the part that it concerns, and carries out what follows.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_base::paths;
use omr_base::signals::SignalFd;
use omr_config::BackendChoice;
use omr_control::protocol::{Answer, Request};
use omr_engine::prepare::zram;
use omr_engine::reclaim::Report;
use omr_engine::reclaim::backend::{self, Backend};
use omr_engine::reclaim::limit_journal::Journal;
use omr_engine::warm::Notice;
use omr_kernel::clock;
use omr_machine::processes::Finder;
use omr_machine::statements::StatementStore;
use omr_policy::pace::Job;
use omr_policy::{Decision, End, Finished, Mode, Reason, State};
use omr_units::{Bytes, GroupId, Monotonic};
use rustix::event::PollFlags;

use crate::aging::History;
use crate::books::Books;
use crate::effects::Effect;
use crate::events::{Event, Sources};
use crate::host::Host;
use crate::looker;
use crate::mind::Mind;
use crate::preparing::Preparation;
use crate::processes::{self, Processes};
use crate::readings::{Readings, Warming};
use crate::server::{Peer, Server};
use crate::settings::{Settings, actuator};
use crate::sweeps::{self, Begun, Sweeps};
use crate::timer::Timer;
use crate::work::Work;
use crate::worker::{Order, Outcome, Setup, Sweep};
use crate::world::World;

/// The policy is asked once in this time; also the only wake-up of an idle daemon.
const TICK: Duration = Duration::from_secs(1);

/// The user that `omr watch` runs as.
const WATCHER: &str = "omr-watch";
/// The user that `omr follow` runs as, where it follows the sessions of all users.
const FOLLOWER: &str = "omr-follow";

/// The daemon's parts.
pub struct Daemon {
    pub host: Host,
    pub settings: Settings,
    pub world: World,
    pub readings: Readings,
    pub mind: Mind,
    pub work: Work,
    pub sweeps: Sweeps,
    pub books: Books,
    pub processes: Processes,
    pub aging: History,
    pub preparation: Preparation,
    pub server: Server,
}

/// The journal of changed limits, after left-over limits were restored. `None`: limits cannot be
/// changed. A disk that is full or read-only takes the records, not the sweeps. Restoring is the one
/// write of mode "observe": it undoes what an earlier omr has changed, and a group must not stay
/// squeezed.
fn open_journal(host: &Host, backend: BackendChoice) -> Result<Option<Journal>> {
    match backend::journal(&host.kernel, &host.state_dir, &mut *actuator(Mode::Act)) {
        Ok(journal) => Ok(Some(journal)),
        Err(err) if backend == BackendChoice::High => Err(err.context("memory.high needs a journal")),
        Err(err) => {
            log::warn!("{err:#}");
            Ok(None)
        }
    }
}

impl Daemon {
    /// Starts the threads, opens the socket and scans the groups.
    pub fn start(host: Host, settings: Settings) -> Result<Self> {
        let (root, loaded) = (&host.root, &settings.loaded);
        let journal = open_journal(&host, settings.backend)?;
        let mode = settings.config.mode;
        zram::warn_of_left(&host.kernel, root);
        let work = Work::start(|progress| Setup {
            kernel: Arc::clone(&host.kernel),
            root: root.clone(),
            actuator: settings.actuator(),
            new_actuator: Box::new(move || actuator(mode)),
            choice: settings.backend,
            journal,
            progress,
        })?;
        let (books, writes) = Books::open(&host.state_dir);
        let mut state = State::default();
        state.writes = writes;
        if !loaded.processes.is_empty() {
            processes::warn_of_missing_rights(&host.kernel);
        }
        let boot = host.kernel.read_boot_id().unwrap_or_default();
        let statements = StatementStore::load(&paths::statements(root), &boot);
        let user = |name: &str| id_of(root, "etc/passwd", name);
        let group = id_of(root, "etc/group", "omr");
        let looker = looker::start(Arc::clone(&host.kernel), paths::history(root), settings.actuator())?;
        let mut daemon = Daemon {
            world: World::new(&host, &settings),
            readings: Readings::new(Notice::new(&paths::warm_lock(root))),
            mind: Mind::new(state),
            work,
            sweeps: Sweeps::new()?,
            books,
            processes: Processes::new(Finder::new(&loaded.processes), statements),
            aging: History::new(&settings.config.history, looker),
            preparation: Preparation::default(),
            server: Server::listen(&paths::socket(root), group, user(WATCHER), user(FOLLOWER))?,
            settings,
            host,
        };
        daemon.scan();
        if daemon.settings.config.mode == Mode::Observe {
            daemon.never_old("in mode \"observe\" nothing is written to the kernel, so no group is aged".into());
            daemon.note_old();
        }
        daemon.probe();
        daemon.sweeps.arm_trigger(&daemon.host, &daemon.settings.config.stop);
        Ok(daemon)
    }

    /// The loop. Returns when a signal asks for the end.
    pub fn serve(&mut self, signal_fd: &SignalFd) -> Result<()> {
        let tick = Timer::new()?;
        tick.every(TICK)?;
        // The first readings only start the counters.
        self.tick();
        loop {
            for event in self.wait(&tick, signal_fd)? {
                match event {
                    Event::Sample => self.sample(),
                    Event::Stall => self.stalled(),
                    Event::Worker => self.collect_outcomes(),
                    Event::Attributes => self.collect_changes(),
                    Event::Tick => {
                        tick.clear();
                        self.tick();
                    }
                    Event::Client(index) => self.serve_client(index),
                    Event::Connect => self.server.accept(clock::read_monotonic()),
                    Event::Signal => match signal_fd.read() {
                        Some(libc::SIGHUP) => self.reload(),
                        Some(_) => return Ok(()),
                        None => {}
                    },
                }
            }
            self.server.drop_closed();
            self.note_client_statements();
        }
    }

    /// Waits for events, in the order in which they are to be handled.
    fn wait(&self, tick: &Timer, signal_fd: &SignalFd) -> Result<Vec<Event>> {
        let mut sources = Sources::default();
        sources.add(Event::Sample, &self.sweeps.sampler);
        // Into zram, paging out is how somebody who waits for memory gets it.
        let on_disk = self.readings.swap_is_on_disk().unwrap_or(true);
        let is_in_the_way = self.sweeps.running.is_some() || (on_disk && self.processes.pages_out());
        if let Some(trigger) = self.sweeps.trigger.as_ref().filter(|_| is_in_the_way) {
            sources.add_fd(Event::Stall, trigger.as_fd(), PollFlags::PRI);
        }
        sources.add(Event::Worker, &self.work);
        if let Some(changes) = self.world.tree.changes().filter(|_| self.world.may_collect()) {
            sources.add_fd(Event::Attributes, changes, PollFlags::IN);
        }
        sources.add(Event::Tick, tick);
        self.server.register(&mut sources);
        sources.add(Event::Signal, signal_fd);
        let waiting = self.server.waiting();
        let mut events = sources.wait(waiting.is_empty())?;
        let more = waiting.into_iter().map(Event::Client).filter(|client| !events.contains(client));
        let more: Vec<Event> = more.collect();
        // Whoever connects may take the place of another, so clients come before.
        let place = events.iter().position(|event| matches!(event, Event::Connect | Event::Signal));
        let place = place.unwrap_or(events.len());
        events.splice(place..place, more);
        Ok(events)
    }

    /// Once a second: read, decide, act.
    fn tick(&mut self) {
        let now = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        self.world.allow_collecting();
        let freed = self.work.progress().freed;
        let effects = self.preparation.check_deadline(&self.host, &mut self.mind.state, now, freed);
        self.carry_out(effects);
        self.scan_if_due(now);
        let scanned = clock::read_monotonic();
        let signals = self.readings.take(&self.host, &self.settings, &mut self.world.cpu);
        if let Some(signals) = signals {
            if signals.slept {
                log::info!("the machine was asleep");
                // What it was for is over, and the clock of its deadline stood still.
                self.end_preparing("the machine was asleep");
            }
            let taken = clock::read_monotonic();
            let decision = self.mind.decide(&self.settings, &signals, &self.world.groups);
            // lab/omrlab/scenarios/self_cost.py reads this line.
            log::debug!(
                "tick: {} groups, scan {} us, snapshot {} us, decision {} us, CPU {} us",
                self.world.tree.nodes().len(),
                scanned.since(now).as_micros(),
                taken.since(scanned).as_micros(),
                clock::read_monotonic().since(taken).as_micros(),
                clock::read_thread_cpu().saturating_sub(cpu).as_micros()
            );
            self.readings.signals = Some(signals);
            self.act(decision);
        }
        self.look_at_processes();
        self.look_at_groups(now);
        let world = &self.world;
        self.books.record_refaults(now, |id| world.node(id).and_then(|node| node.refaults));
        self.server.close_silent(now);
        self.note_client_statements();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }

    /// Scans the groups when it is time; else reads the one that is being swept.
    fn scan_if_due(&mut self, now: Monotonic) {
        let is_due = now >= self.world.next_scan;
        let warming = self.readings.notice_warming();
        self.mind.state.set_warming(warming != Warming::No);
        match warming {
            // What came back since the last scan must not be found later.
            Warming::JustEnded => self.discount_refaults(),
            Warming::Running if is_due => self.discount_refaults(),
            Warming::Running => {}
            Warming::No if is_due && (self.sweeps.running.is_none() || !self.world.is_slow_to_scan()) => {
                self.scan();
                if !self.readings.is_probed() {
                    self.probe();
                }
            }
            Warming::No => self.read_running(),
        }
    }

    /// Reads all groups, and forgets those that are gone.
    pub fn scan(&mut self) {
        let Some(ids) = self.world.scan(&self.host) else { return };
        self.note_old();
        self.aging.note_peaks(&self.world.tree);
        let is_there = |id: GroupId| ids.binary_search(&id).is_ok();
        self.mind.state.retain(&ids);
        self.books.tally.retain(is_there);
        self.aging.retain(is_there);
        self.processes.statements.retain_groups(is_there);
    }

    /// Scans the groups. All that came back since the last scan is nobody's fault: `omr warm` did that.
    fn discount_refaults(&mut self) {
        let before = self.world.refaults();
        self.scan();
        for (id, now) in self.world.refaults() {
            let bytes = before.get(&id).map_or(Bytes::ZERO, |before| now - *before);
            if bytes == Bytes::ZERO {
                continue;
            }
            self.mind.state.discount_refaults(id, bytes);
            self.books.tally.discount_refaults(id, bytes);
        }
    }

    /// Reads the group being swept, so that what comes back into it is noticed between two scans.
    fn read_running(&mut self) {
        let (Some(running), Some(id)) = (&self.sweeps.running, self.mind.state.sweeping()) else { return };
        self.world.read_refaults(&self.host, id, &running.path, &mut self.readings.buffer);
    }

    /// Asks the kernel what it can be asked for.
    fn probe(&mut self) {
        let Some(group) = self.world.open_background(&self.host) else { return };
        let backend = Backend::probe(self.settings.backend, &group, &mut *self.settings.actuator());
        self.readings.probed(backend.as_ref().is_ok_and(|backend| backend.file_only()));
        match backend {
            Ok(backend) => log::info!("reclaims by {backend}"),
            Err(err) => log::warn!("{err:#}"),
        }
    }

    /// The next group of the sweep, right after one is finished.
    fn sweep_next(&mut self) {
        let Some(signals) = self.readings.signals_now(&self.host, &self.settings) else { return };
        let decision = self.mind.decide_next(&self.settings, &signals, &self.world.groups);
        self.act(decision);
    }

    /// Carries out a decision.
    pub fn act(&mut self, decision: Decision) {
        match &decision {
            Decision::Sweep { id, job, reason } => self.begin(*id, job, reason),
            Decision::Stop { reason } => self.stop(reason.clone()),
            Decision::Continue { .. } => {}
            Decision::Hold { reason } => {
                self.sweeps.end_number();
                // A sweep begins with fresh figures.
                if let Reason::Settling { idle, needed } = reason {
                    let begins = clock::read_monotonic() + needed.saturating_sub(*idle);
                    self.world.next_scan = self.world.next_scan.min(begins);
                }
            }
        }
        let reason = decision.reason().clone();
        if self.mind.keep(decision) {
            log::debug!("{reason}");
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Custom(&format!("STATUS={reason}"))]);
        }
    }

    /// Has the worker sweep a group.
    fn begin(&mut self, id: GroupId, job: &Job, reason: &Reason) {
        // It was in the list a moment ago; the next scan will tell.
        let Some(path) = self.world.tree.path(id) else { return self.give_up(id) };
        let inner = self.world.node(id).filter(|node| node.is_internal);
        let inner = inner.and_then(|node| node.current.map(|current| current - node.charged_to_children));
        let group = self.world.group(id);
        let refaults = group.and_then(|group| group.refaults);
        let older_than = group.and_then(|group| Some(group.cold_only.as_ref()?.min_age));
        // What happened before the sweep began is not its business.
        self.world.cpu.non_background.sample();
        let begun = Begun {
            number: self.books.tally.next_sweep(),
            path: path.clone(),
            asked: job.amount,
            refaults,
            reason: reason.clone(),
        };
        let steady_load = self.mind.state.steady_load();
        if let Err(err) = self.sweeps.begin(&self.settings.config.stop, steady_load, begun) {
            log::error!("{err:#}; no sweep without a look at the machine");
            return self.give_up(id);
        }
        self.work.order(Order::Sweep(Sweep { id, path, job: job.clone(), inner, older_than }));
    }

    /// A sweep that did not begin.
    fn give_up(&mut self, id: GroupId) {
        let finished = Finished { id, size: Bytes::ZERO, refaults: None, swap_writes: Bytes::ZERO, end: End::Failed };
        self.mind.state.finished(&self.settings.config, clock::read_monotonic(), 0, &finished);
    }

    /// The worker has done what it was told to.
    fn collect_outcomes(&mut self) {
        while let Some(outcome) = self.work.outcome() {
            self.finish(outcome);
            self.begin_to_prepare();
            if !self.work.is_busy() {
                self.sweep_next();
            }
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Swept(id, report) => self.swept(id, report),
            Outcome::Prepared(result) => {
                let on_disk = self.readings.swap_is_on_disk().unwrap_or(false);
                let mode = self.settings.config.mode;
                let effects = self.preparation.freed(&mut self.mind.state, mode, on_disk, result);
                self.carry_out(effects);
            }
            Outcome::Hinted(given) => self.hinted(given),
            Outcome::HandedBack(result) => self.preparation.handed_back(&mut self.mind.state, result),
        }
    }

    /// The worker is done with a group.
    fn swept(&mut self, id: GroupId, report: Report) {
        let Some(running) = self.sweeps.finish(&self.host, &report) else { return };
        let now = clock::read_monotonic();
        let wall = clock::read_wall().as_secs();
        let on_disk = self.readings.swap_is_on_disk().unwrap_or(false);
        let finished = Finished {
            id,
            size: report.size,
            refaults: report.refaults,
            swap_writes: if on_disk { report.swapped_out } else { Bytes::ZERO },
            end: report.end,
        };
        self.mind.state.finished(&self.settings.config, now, wall / 3600, &finished);
        if let Some(group) = self.world.groups.iter_mut().find(|group| group.id == id) {
            group.current = Some(report.size);
            group.refaults = report.refaults.or(group.refaults);
        }
        self.aging.swept(id, report.freed, matches!(report.end, End::Stopped | End::Timeout));
        self.note_old();
        let refaults = running.refaults.or(report.refaults);
        let line = sweeps::line(wall, self.settings.config.mode, id, &running, report);
        self.books.record_sweep(now, line, refaults, &self.mind.state.writes);
    }

    /// Carries out what a part asks of the others.
    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Act(decision) => self.act(decision),
                Effect::StopSweep(reason) => self.stop(reason),
                Effect::StopWork => self.work.stop(),
                Effect::BeginPreparing if self.work.is_busy() => {}
                Effect::BeginPreparing => self.begin_to_prepare(),
                Effect::Order(order) => self.work.order(order),
                Effect::SpendWrites(bytes) => {
                    self.mind.state.writes.add(clock::read_wall().as_secs() / 3600, bytes);
                    self.books.save(&self.mind.state.writes);
                }
                Effect::Record(entry) => self.books.record(&entry),
            }
        }
    }

    /// The worker is free: gives it the preparation that waits for it, if one does.
    fn begin_to_prepare(&mut self) {
        if let Some(order) = self.preparation.begin(&self.host, &self.settings) {
            self.work.order(order);
        }
    }

    /// Ends the preparation for this reason, if there is one.
    fn end_preparing(&mut self, why: &'static str) {
        let effects = self.preparation.end(&mut self.mind.state, why);
        self.carry_out(effects);
    }

    /// Has the running sweep end.
    pub fn stop(&mut self, reason: Reason) {
        if self.sweeps.stop(reason) {
            self.work.stop();
        }
    }

    /// Somebody needs the machine.
    fn interrupt(&mut self, reason: Reason) {
        if self.sweeps.is_unstopped() {
            log::debug!("{reason}");
            self.stop(reason);
            self.mind.state.interrupt(clock::read_monotonic());
            self.sweeps.end_number();
        }
    }

    fn sample(&mut self) {
        self.sweeps.sampler.clear();
        if let Some(reason) = self.sweeps.sample(&self.host, &self.settings.config, &mut self.world.cpu) {
            self.interrupt(reason);
        }
    }

    fn stalled(&mut self) {
        let stop = &self.settings.config.stop;
        let reason = Reason::Stalled { stall: stop.stall, window: stop.window };
        self.stop_hint(&reason.to_string());
        self.interrupt(reason);
    }

    /// Groups say something else of themselves: somebody has gone from one application to another.
    fn collect_changes(&mut self) {
        let cpu = clock::read_thread_cpu();
        let changed = self.world.collect_changes(&self.host);
        if !changed.is_empty() {
            self.reclassified(&changed);
            self.look_for_returning();
        }
        self.world.collected(clock::read_thread_cpu().saturating_sub(cpu));
    }

    /// SIGHUP: a file that is wrong changes nothing.
    fn reload(&mut self) {
        if let Err(errors) = self.settings.reload(&self.host) {
            log::error!("the configuration stays as it was:\n{errors:#}");
            return;
        }
        self.world.reconfigure(&self.host, &self.settings);
        self.processes.reconfigure(Finder::new(&self.settings.loaded.processes));
        self.stop(Reason::Stopping);
        self.stop_hint("the configuration was read again");
        self.mind.state.reconfigured();
        self.aging.reconfigure(&self.settings.config.history);
        self.scan();
        self.sweeps.arm_trigger(&self.host, &self.settings.config.stop);
        log::info!("configuration read again");
    }

    /// A client is ready: it asks, or takes its answer.
    fn serve_client(&mut self, index: usize) {
        let now = clock::read_monotonic();
        if let Some((request, peer)) = self.server.request(index, now) {
            let answer = self.answer(index, request, peer);
            self.server.answer(index, &answer, now);
        }
    }

    fn answer(&mut self, client: usize, request: Request, peer: Peer) -> Answer {
        let now = clock::read_monotonic();
        let done = Ok(serde_json::Value::Null);
        let value = match request {
            Request::Status => serde_json::to_value(self.status(now)).map_err(Into::into),
            Request::Explain { group } => self.explain(now, group.as_deref().map(Path::new)).and_then(to_json),
            Request::ExplainProcess { pid } => self.explain_process(now, pid).and_then(to_json),
            Request::Processes => to_json(self.process_views(now)),
            Request::Say { presence, subject } => self.say(presence, &subject).map(|()| serde_json::Value::Null),
            Request::Hold { statements } => self.own_statements(&statements, peer).and_then(|(own, refused)| {
                self.server.keep(client, own);
                to_json(refused)
            }),
            Request::Pause { seconds } => {
                self.pause(now, seconds.map(Duration::from_secs));
                done
            }
            Request::FallAsleep => {
                self.fall_asleep(now);
                done
            }
            Request::Resume => {
                self.mind.state.resume();
                done
            }
            Request::Prepare { purpose, deadline_ms, why } => {
                let asked = self.preparation.request(&mut self.mind.state, purpose, deadline_ms, &why);
                asked.map(|effects| {
                    self.carry_out(effects);
                    serde_json::Value::Null
                })
            }
            Request::StandDown => {
                self.end_preparing("not announced any more");
                done
            }
        };
        value.map_or_else(|err| Answer::Error(format!("{err:#}")), Answer::Ok)
    }

    /// No sweeps for a time, or until resumed.
    fn pause(&mut self, now: Monotonic, time: Option<Duration>) {
        self.stop_hint("paused");
        self.mind.state.pause(now, time);
        self.stop(Reason::Paused { left: time });
        self.sweeps.end_number();
    }

    /// No sweeps until the machine has slept.
    fn fall_asleep(&mut self, now: Monotonic) {
        let reason = self.mind.state.fall_asleep(now);
        // Preparing for hibernation ends as well: omr-prepare-hibernate.service, which runs before, has ended.
        self.end_preparing("the machine is about to sleep");
        self.stop_hint(&reason.to_string());
        self.stop(reason);
        self.sweeps.end_number();
    }

    /// Ends a sweep, and leaves nothing behind.
    pub fn end(mut self) {
        self.stop(Reason::Stopping);
        self.aging.close();
        self.work.close();
        while let Some(outcome) = self.work.outcome() {
            self.finish(outcome);
        }
    }
}

fn to_json(value: impl serde::Serialize) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(value)?)
}

/// The third field of the line of that name: the group id in `etc/group`, the user id in `etc/passwd`.
fn id_of(root: &Path, file: &str, name: &str) -> Option<u32> {
    let lines = fs::read_to_string(root.join(file)).ok()?;
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        fields.nth(1)?.parse().ok()
    })
}
