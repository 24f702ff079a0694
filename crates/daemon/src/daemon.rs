//! The daemon: its parts, and what follows from each event. Nothing here waits, so a test can run
//! it without the socket, and with threads and clocks of its own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use omr_engine::reclaim::Report;
use omr_engine::reclaim::backend::Backend;
use omr_machine::processes::Finder;
use omr_machine::statements::{StatementStore, Statements};
use omr_policy::busy::Step;
use omr_policy::pace::Job;
use omr_policy::statement::Statement;
use omr_policy::{Decision, End, Finished, Mode, Reason, Signals, State, cost};
use omr_units::{Bytes, GroupId, Monotonic};
use sd_notify::NotifyState;

use crate::aging::{self, Aging};
use crate::aging_thread::AgingThread;
use crate::books::Books;
use crate::disk::Disk;
use crate::effects::{Effect, SparedGroup};
use crate::giving_back::GivingBack;
use crate::hint_job::Given;
use crate::host::Host;
use crate::mind::Mind;
use crate::notify;
use crate::own_reclaim::Reclaimed;
use crate::preparing::Preparation;
use crate::processes::Processes;
use crate::readings::{Cause, Readings, Returns};
use crate::regrets::{self, RegretReader};
use crate::server::Peer;
use crate::settings::Settings;
use crate::statements;
use crate::sweeps::{self, Next, Sweeps};
use crate::thresholds::Terms;
use crate::work::Work;
use crate::worker::{Order, Outcome};
use crate::world::World;

/// The policy is asked once in this time.
pub const TICK: Duration = Duration::from_secs(1);
/// While nobody gains from reclaim, and nothing runs.
const SLOW_TICK: Duration = Duration::from_secs(5);

/// The daemon's parts. Each part owns its data.
pub struct Daemon {
    pub host: Host,
    pub settings: Settings,
    pub world: World,
    pub readings: Readings,
    pub mind: Mind,
    pub work: Work,
    pub sweeps: Sweeps,
    pub books: Books,
    pub regrets: RegretReader,
    pub statements: StatementStore,
    pub processes: Processes,
    pub aging: Aging,
    pub preparation: Preparation,
    pub giving_back: GivingBack,
    /// Swap was on a disk, or nobody knew, when the worker was given its last order.
    ordered_to_disk: bool,
}

impl Daemon {
    /// Reads the state of earlier runs and scans the groups. The threads run already.
    pub fn new(mut host: Host, settings: Settings, work: Work, aging: AgingThread, disk: Disk) -> Result<Self> {
        let now = host.now();
        let (books, writes) = Books::open(&mut host, disk)?;
        let mut state = State::default();
        state.writes = writes;
        let mut daemon = Daemon {
            world: World::new(&host, &settings),
            readings: Readings::new(host.warm_lock()),
            mind: Mind::new(state),
            work,
            sweeps: Sweeps::new()?,
            books,
            regrets: RegretReader::default(),
            statements: host.load_statements()?,
            processes: Processes::new(Finder::new(&settings.loaded.processes), now),
            aging: Aging::new(&settings.config.history, aging, now),
            preparation: Preparation::default(),
            giving_back: GivingBack::new(&host),
            ordered_to_disk: true,
            settings,
            host,
        };
        daemon.scan();
        if daemon.settings.config.mode == Mode::Observe {
            let why = "in mode \"observe\" nothing is written to the kernel, so no group is aged";
            daemon.set_ages_obstacle(why.into());
        }
        daemon.probe();
        daemon.sweeps.arm_trigger(&daemon.host, &daemon.settings.config.stop);
        Ok(daemon)
    }

    /// At each tick: read, decide, act.
    pub fn tick(&mut self) {
        let now = self.host.now();
        let cpu = self.host.kernel.clock.thread_cpu();
        self.world.collecting.tick();
        let freed = self.work.progress().freed;
        let effects = self.preparation.check_deadline(&self.host, &mut self.mind.state, now, freed);
        self.carry_out(effects);
        self.scan_if_due(now);
        let scanned = self.host.now();
        if let Some(mut signals) = self.readings.take(&self.host, &self.settings, &mut self.world.cpu) {
            let is_acting = self.settings.config.mode == Mode::Act;
            signals.machine.gives_back = is_acting && self.giving_back.has_room();
            if signals.slept {
                log::info!("the machine was asleep");
                // The event is over, and the clock of the deadline stood still.
                self.end_preparing("the machine was asleep");
                self.giving_back.slept(now);
            }
            let taken = self.host.now();
            let decision = self.mind.decide(&self.settings, &signals, &self.world.groups);
            let state = &self.mind.state;
            self.aging.set_away(state.away_age(), state.age_ahead(), &mut self.world);
            // lab/omrlab/scenarios/self_cost.py reads this line.
            log::debug!(
                "tick: {} groups, scan {} us, snapshot {} us, decision {} us, CPU {} us",
                self.world.tree.nodes().len(),
                scanned.since(now).as_micros(),
                taken.since(scanned).as_micros(),
                self.host.now().since(taken).as_micros(),
                self.host.kernel.clock.thread_cpu().saturating_sub(cpu).as_micros()
            );
            self.stop_hint_to_disk(&signals);
            self.readings.signals = Some(signals);
            self.act(decision);
        }
        self.check_giving_back();
        self.check_processes();
        self.check_aging(now);
        let world = &self.world;
        let refaults = |id| world.node(id).and_then(|node| node.refaults);
        let time = self.host.wall();
        self.books.record_refaults(now, time, refaults);
        regrets::read(self, now, time);
        self.books.record_regrets(now, time, false);
    }

    /// The time until the next tick. An idle daemon wakes up for nothing else.
    pub fn next_tick(&self) -> Duration {
        let config = &self.settings.config;
        let nobody_gains = |signals: &Signals| omr_policy::nobody_gains(config, &signals.machine);
        let is_still = !self.work.is_busy() && !self.preparation.is_wanted() && self.giving_back.is_empty();
        if !is_still || !self.readings.signals.as_ref().is_some_and(nobody_gains) {
            return TICK;
        }
        // Agings are exact only where they come in time.
        self.aging.next(config).since(self.host.now()).clamp(TICK, SLOW_TICK)
    }

    // Groups.

    /// Scans the groups when it is time. Otherwise reads the one that is being swept.
    fn scan_if_due(&mut self, now: Monotonic) {
        let is_due = now >= self.world.next_scan;
        let returns = self.readings.notice_returns(&self.host);
        self.regrets.note_returns(returns);
        self.mind.state.set_swap_off(returns == Returns::Now(Cause::SwapOff));
        self.mind.state.set_warming(returns == Returns::Now(Cause::Warming) || self.giving_back.is_running());
        // Other swap may still hold what was taken, so a swapoff does not make giving back needless.
        if returns == Returns::Now(Cause::Warming) && self.giving_back.warmed() {
            self.aging.calm(now);
        }
        match returns {
            // Refaults since the last scan must not count later.
            Returns::JustEnded => self.discount_refaults(),
            Returns::Now(_) if is_due => self.discount_refaults(),
            Returns::Now(_) => {}
            Returns::No if is_due && (self.sweeps.running.is_none() || !self.world.is_slow_to_scan()) => {
                self.scan();
                if !self.readings.is_probed() {
                    self.probe();
                }
            }
            Returns::No => self.read_running(),
        }
    }

    /// Reads all groups, and forgets those that are gone.
    pub fn scan(&mut self) {
        self.work.restore_left_limits(&self.host.kernel);
        self.scan_groups();
        self.probe_groups();
    }

    fn scan_groups(&mut self) {
        let Some(ids) = self.world.scan(&self.host) else { return };
        self.aging.note_peaks(&self.world.tree);
        if !self.world.tree.is_complete() {
            return;
        }
        let is_there = |id: GroupId| ids.binary_search(&id).is_ok();
        self.mind.state.retain(&ids);
        self.books.tally.retain(is_there);
        self.regrets.regrets.retain(is_there);
        self.aging.retain(is_there);
        self.statements.retain_groups(is_there);
        self.giving_back.retain(is_there);
    }

    /// A look at the groups whose ages cannot be known, with the figures of a scan. In modes
    /// "observe" and "record" nothing is reclaimed, so what comes back would say nothing.
    fn probe_groups(&mut self) {
        if self.settings.config.mode == Mode::Act {
            let swap = self.readings.swap();
            let is_in_memory = swap.is_some_and(|swap| swap.total > Bytes::ZERO && !swap.on_disk);
            let swap_in = is_in_memory.then_some(Duration::ZERO);
            self.aging.probe(self.host.now(), &self.terms().slo, swap_in, &self.world);
        }
        self.aging.tell_policy(&mut self.world);
    }

    /// Scans the groups. Nobody has used what came back since the last scan, so those refaults do not
    /// count.
    fn discount_refaults(&mut self) {
        let before = self.world.refaults();
        self.scan_groups();
        for (id, now) in self.world.refaults() {
            let bytes = before.get(&id).map_or(Bytes::ZERO, |before| now - *before);
            if bytes > Bytes::ZERO {
                self.mind.state.discount_refaults(id, bytes);
                self.books.tally.discount_refaults(id, bytes);
                self.aging.probes.discount_refaults(id, bytes);
            }
        }
        self.probe_groups();
    }

    /// Reads the group being swept, so that its refaults are noticed between two scans.
    fn read_running(&mut self) {
        let (Some(running), Some(id)) = (&self.sweeps.running, self.mind.state.sweeping()) else { return };
        self.world.read_refaults(&self.host, id, &running.path, &mut self.readings.buffer);
    }

    /// Asks the kernel what it supports.
    fn probe(&mut self) {
        let Some(group) = self.world.open_background(&self.host) else { return };
        let mut actuator = self.settings.actuator();
        let backend = Backend::probe(&self.host.kernel, self.settings.backend, &group, &mut *actuator);
        self.readings.probed(backend.as_ref().is_ok_and(|backend| backend.file_only()));
        match backend {
            Ok(backend) => log::info!("reclaims by {backend}"),
            Err(err) => log::warn!("{err:#}"),
        }
    }

    /// Groups have changed attributes: a user has switched to another application.
    pub fn collect_changes(&mut self) {
        let cpu = self.host.kernel.clock.thread_cpu();
        let changed = self.world.collect_changes(&self.host);
        if !changed.is_empty() {
            self.reclassified(&changed);
            if self.processes.may_return() {
                self.scan_processes();
            }
        }
        self.world.collecting.add(self.host.kernel.clock.thread_cpu().saturating_sub(cpu));
    }

    /// These groups changed their class. Those that are not in the background lose no more memory.
    fn reclassified(&mut self, changed: &[GroupId]) {
        self.world.refresh_groups(&self.host);
        self.aging.tell_policy(&mut self.world);
        self.carry_out(self.world.not_background(changed).into_iter().map(Effect::SpareGroup));
        self.processes.scan_soon();
    }

    // Sweeps.

    /// Carries out a decision.
    pub fn act(&mut self, decision: Decision) {
        match &decision {
            Decision::Sweep { id, job, reason } => self.begin_sweep(*id, job, reason),
            Decision::Stop { reason } => self.stop_sweep(reason.clone()),
            Decision::Continue { .. } => {}
            Decision::Hold { reason } => {
                self.sweeps.end_number();
                // A sweep begins with fresh figures.
                if let Reason::Settling { idle, needed } = reason {
                    let begins = self.host.now() + needed.saturating_sub(*idle);
                    self.world.next_scan = self.world.next_scan.min(begins);
                }
            }
        }
        let reason = decision.reason().clone();
        let now = self.host.now();
        self.books.decided(self.host.wall(), self.mind.in_force(now), &decision);
        if self.mind.keep(now, decision) {
            log::debug!("{reason}");
            notify::tell(&NotifyState::Status(&reason.to_string()));
        }
    }

    fn begin_sweep(&mut self, id: GroupId, job: &Job, reason: &Reason) {
        let remember = self.how_to_remember(id);
        let next = Next { number: self.books.tally.next_sweep(), id, job, reason, remember: remember.as_ref() };
        let config = &self.settings.config;
        match self.sweeps.begin(&self.host, config, &mut self.world, &self.mind.state, next) {
            Some(order) => {
                regrets::note_sweep(self, id, None);
                if self.sweeps.running.as_ref().is_some_and(|running| running.is_probe) {
                    self.aging.probes.begin(id, self.host.now(), job.amount);
                    self.aging.tell_policy(&mut self.world);
                }
                self.order(order);
            }
            None => {
                let end = End::Failed;
                let finished = Finished { id, size: Bytes::ZERO, refaults: None, swap_writes: Bytes::ZERO, end };
                self.mind.state.finished(&self.settings.config, self.host.now(), 0, &finished);
            }
        }
    }

    /// The worker has ended its orders.
    pub fn collect_outcomes(&mut self) {
        while let Some(outcome) = self.work.outcome() {
            self.finish(outcome);
            self.begin_to_prepare();
            self.begin_to_give_back();
            if !self.work.is_busy()
                && let Some(signals) = self.readings.signals_now(&self.host, &self.settings)
            {
                // The next group of the sweep.
                let decision = self.mind.decide_next(&self.settings, &signals, &self.world.groups);
                self.act(decision);
            }
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        // Swap may have been removed meanwhile.
        let on_disk = self.ordered_to_disk || self.readings.swap_is_on_disk().unwrap_or(true);
        match outcome {
            Outcome::Swept(id, report) => self.finish_sweep(id, report, on_disk),
            Outcome::Prepared(result) => {
                if let Ok(done) = &result {
                    self.note_reclaimed(PathBuf::new(), done.freed_anon, Duration::ZERO, Monotonic(0));
                }
                let (time, mode) = (self.host.wall(), self.settings.config.mode);
                let to_disk = on_disk.then(|| self.host.hour());
                let effects = self.preparation.freed(&mut self.mind.state, time, mode, to_disk, result);
                self.carry_out(effects);
            }
            Outcome::Hinted(given, swapped_out) => {
                if let Given::Hinted(report, _) = &given {
                    self.note_reclaimed(PathBuf::from(&report.group), report.freed, Duration::ZERO, Monotonic(0));
                }
                let state = &mut self.mind.state;
                let swap_writes = if on_disk { swapped_out } else { Bytes::ZERO };
                let effects = self.processes.end_hint(&self.host, &self.settings, state, swap_writes, given);
                self.carry_out(effects);
                self.rank_processes();
                self.begin_hint();
            }
            Outcome::GivenBack(result) => {
                let (now, time) = (self.host.now(), self.host.wall());
                let effect = self.giving_back.finish(&mut self.mind.state, now, time, result);
                self.aging.calm(now);
                self.carry_out(effect);
            }
            Outcome::HandedBack(result) => self.preparation.handed_back(&mut self.mind.state, result),
        }
    }

    fn finish_sweep(&mut self, id: GroupId, report: Report, on_disk: bool) {
        regrets::note_sweep(self, id, Some(report.freed_anon));
        let Some(running) = self.sweeps.finish(&self.host, &mut self.books.disk, &report) else { return };
        let (now, time) = (self.host.now(), self.host.wall());
        let finished = Finished {
            id,
            size: report.size,
            refaults: report.refaults,
            swap_writes: if on_disk { report.swapped_out } else { Bytes::ZERO },
            end: report.end,
        };
        self.mind.state.spent(now, running.cpu(&self.host));
        self.mind.state.finished(&self.settings.config, now, self.host.hour(), &finished);
        self.world.swept(id, report.size, report.refaults);
        if running.is_probe {
            self.aging.probes.took(id, running.asked, report.freed);
        }
        self.aging.probes.withdraw_old(now);
        self.aging.swept(id, report.freed, matches!(report.end, End::Stopped | End::Timeout));
        self.aging.tell_policy(&mut self.world);
        let unused_for = running.older_than.unwrap_or_default();
        if running.is_remembered {
            self.giving_back.note(id, report.freed_anon);
            self.aging.disturb(id);
        }
        self.note_reclaimed(running.path.clone(), report.freed_anon, unused_for, running.began);
        let refaults = running.refaults.or(report.refaults);
        let line = sweeps::line(now, time, self.settings.config.mode, id, &running, report);
        self.books.record_sweep(now, line, refaults, &self.mind.state.writes);
    }

    /// Tells the aging thread of memory that will be gone at the next aging without being used.
    fn note_reclaimed(&mut self, path: PathBuf, bytes: Bytes, unused_for: Duration, began: Monotonic) {
        if self.settings.config.mode == Mode::Act && bytes > Bytes::ZERO {
            self.aging.note_reclaimed(Reclaimed { path, bytes, unused_for, began, ended: self.host.now() });
        }
    }

    /// Tells the running sweep to end, if there is one.
    pub(crate) fn stop_sweep(&mut self, reason: Reason) {
        if self.sweeps.stop(self.host.now(), reason) {
            self.work.stop();
        }
    }

    /// Returns true while omr may be in the way of a task that waits for memory: during a sweep,
    /// and while a process is paged out to a disk. A page-out to zram is how the task gets memory.
    pub fn is_in_the_way(&self) -> bool {
        let on_disk = self.readings.swap_is_on_disk().unwrap_or(true);
        self.sweeps.running.is_some() || (on_disk && self.processes.is_paging_out())
    }

    /// Every 20 ms during a sweep: has foreground work begun?
    pub fn sample(&mut self) {
        self.sweeps.sampler.clear();
        match self.sweeps.sample(&self.host, &self.settings.config, &mut self.world.cpu) {
            Some(Step::End(reason)) => self.interrupt(reason),
            Some(Step::Hold) => self.work.hold(true),
            Some(Step::Go) => self.work.hold(false),
            None => {}
        }
    }

    /// A task waits for memory.
    pub fn stalled(&mut self) {
        let stop = &self.settings.config.stop;
        let reason = Reason::Stalled { stall: stop.stall, window: stop.window };
        self.stop_hint(&reason.to_string());
        self.interrupt(reason);
    }

    /// Somebody needs the machine: ends the sweep.
    fn interrupt(&mut self, reason: Reason) {
        if self.sweeps.is_unstopped() {
            log::debug!("{reason}");
            self.stop_sweep(reason);
            self.mind.state.interrupt(self.host.now());
            self.sweeps.end_number();
        }
    }

    /// Ends the hint and the sweep.
    pub fn stop_all(&mut self, why: &str, reason: Reason) {
        self.stop_hint(why);
        self.stop_sweep(reason);
        self.stop_giving_back(why);
        self.sweeps.end_number();
    }

    // Statements.

    /// Keeps the statements that clients stand for.
    pub fn set_client_statements(&mut self, statements: Statements) {
        if self.statements.set_client_statements(statements) {
            self.apply_statements();
        }
    }

    /// Returns those of a client's statements that the client may make, and the number of refused
    /// ones.
    pub fn allowed_statements(&self, statements: &[Statement], peer: Peer) -> Result<(Statements, usize)> {
        statements::allowed(&self.host, statements, peer)
    }

    pub(crate) fn apply_statements(&mut self) {
        let changed = statements::apply(&self.host, &mut self.world, &self.statements);
        if !changed.is_empty() {
            self.reclassified(&changed);
        }
    }

    /// Applies a new statement: scans groups, unless that takes too long during a sweep, and
    /// processes.
    pub fn rescan(&mut self) {
        self.apply_statements();
        if self.sweeps.running.is_none() || !self.world.is_slow_to_scan() {
            self.scan();
        }
        self.scan_processes();
    }

    // Aging.

    /// Once a second: takes in the results of the aging thread, and gives it the next order.
    fn check_aging(&mut self, now: Monotonic) {
        if let Some(collected) = self.aging.collect_report(now, &mut self.world) {
            if let Some(cold) = collected.processes {
                self.processes.set_cold(cold);
            }
            if let Some(why) = collected.obstacle {
                self.set_ages_obstacle(why);
            }
        }
        let decision = self.mind.decision.as_ref();
        let machine = self.readings.signals.as_ref().map(|signals| &signals.machine);
        let may_age = aging::may_age(&self.settings.config, decision, machine) && !self.work.is_busy();
        let terms = self.terms();
        self.aging.order_if_due(&self.settings.config, now, may_age, terms, &self.world, &self.processes);
    }

    /// What learned thresholds must keep.
    pub fn terms(&self) -> Terms {
        let config = &self.settings.config;
        let signals = self.readings.signals.as_ref();
        let swap = signals.and_then(|signals| signals.machine.swap);
        let on_disk = swap.is_none_or(|swap| swap.on_disk);
        let may_write = |signals: &Signals| {
            let left = cost::disk_writes(config, &signals.machine, &self.mind.state.writes, signals.hour);
            left.is_ok_and(|left| left >= config.sweep.smallest)
        };
        let floor = |signals: &Signals| cost::swap_floor(config, signals.machine.swap_context(), Bytes::ZERO);
        Terms {
            slo: config.slo.slo(on_disk, self.host.kernel.page().bytes()),
            write_budget_used: on_disk && !signals.is_some_and(may_write),
            swap_at_floor: swap.zip(signals).is_some_and(|(swap, signals)| swap.free <= floor(signals)),
        }
    }

    fn set_ages_obstacle(&mut self, why: String) {
        let may_probe = self.settings.config.mode == Mode::Act;
        let effects = self.aging.set_obstacle(why, may_probe, self.host.wall(), &mut self.world);
        self.carry_out(effects);
    }

    // Preparation.

    /// Gives the worker the waiting preparation, if there is one.
    fn begin_to_prepare(&mut self) {
        if let Some(order) = self.preparation.begin(&self.host, &self.settings) {
            self.order(order);
        }
    }

    /// Ends the preparation for this reason, if there is one.
    pub fn end_preparing(&mut self, why: &'static str) {
        let effects = self.preparation.end(&mut self.mind.state, why);
        self.carry_out(effects);
    }

    // All parts.

    /// Carries out what a part asks of the others.
    pub fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Act(decision) => self.act(decision),
                Effect::StopSweep(reason) => self.stop_sweep(reason),
                Effect::StopWork => self.work.stop(),
                Effect::BeginPreparing if self.work.is_busy() => {}
                Effect::BeginPreparing => self.begin_to_prepare(),
                Effect::Order(order) => self.order(order),
                Effect::SaveWrites => self.books.save(&self.mind.state.writes),
                Effect::Record(entry) => self.books.record(&entry),
                Effect::SpareGroup(group) => self.spare_group(&group),
                Effect::SpareProcess(id) => {
                    let effect = self.processes.spare(self.host.now(), id, "omr foreground");
                    self.carry_out(effect);
                    if self.sweeps.is_of_process(&self.host, id) {
                        self.stop_sweep(Reason::Class { class: omr_policy::Class::Foreground });
                    }
                }
            }
        }
    }

    /// Gives the worker an order. Stalls before that are not its doing.
    pub(crate) fn order(&mut self, order: Order) {
        self.sweeps.clear_trigger();
        self.ordered_to_disk = self.readings.swap_is_on_disk().unwrap_or(true);
        self.work.order(order);
    }

    fn spare_group(&mut self, group: &SparedGroup) {
        if self.sweeps.concerns(&group.path) {
            self.stop_sweep(Reason::Class { class: group.class });
        }
        let effect = self.processes.spare_group(self.host.now(), &group.path, &group.origin);
        self.carry_out(effect);
    }

    /// Reads the configuration again. If a file is wrong, nothing changes.
    pub fn reload(&mut self) {
        if let Err(errors) = self.settings.reload(&self.host) {
            log::error!("the configuration stays as it was:\n{errors:#}");
            return;
        }
        self.world.reconfigure(&self.host, &self.settings);
        self.processes.reconfigure(Finder::new(&self.settings.loaded.processes));
        self.stop_sweep(Reason::Stopping);
        self.stop_hint("the configuration was read again");
        self.stop_giving_back("the configuration was read again");
        self.mind.state.reconfigured();
        self.aging.reconfigure(&self.settings.config.history, self.host.now());
        self.scan();
        self.sweeps.arm_trigger(&self.host, &self.settings.config.stop);
        log::info!("configuration read again");
    }

    /// Ends the sweep and the threads.
    pub fn end(mut self) {
        self.stop_sweep(Reason::Stopping);
        self.stop_giving_back(&Reason::Stopping.to_string());
        self.aging.close();
        self.work.close();
        while let Some(outcome) = self.work.outcome() {
            self.finish(outcome);
        }
        self.books.close(self.host.now(), self.host.wall());
    }
}
