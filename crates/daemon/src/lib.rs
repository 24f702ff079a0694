//! `omr daemon`: one loop, one worker that takes memory, and one thread that looks at how it is used.
//!
//! The loop waits in `poll` for its timer, signals, clients, memory pressure and the worker's
//! reports. Once a second it takes a snapshot, makes signals of it and asks the policy; while a sweep
//! runs it also looks fifty times a second whether somebody has begun to work.

mod aging;
mod hinting;
mod lock;
mod looker;
mod preparing;
mod processes;
mod server;
mod tally;
mod thread;
mod timer;
mod views;
mod worker;

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::{Actuator, DryRun, Live};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::signals::SignalFd;
use omr_base::storage::write_atomically;
use omr_base::text::printable;
use omr_config::{BackendChoice, Loaded, Profile, load_or_refuse};
use omr_control::protocol::{Answer, Request};
use omr_engine::prepare::{disk_rate, image, zram};
use omr_engine::reclaim::backend::{self, Backend};
use omr_engine::reclaim::{Progress, Report};
use omr_history::ledger::{self, Entry, Ledger, Swept};
use omr_kernel::memcg::Group;
use omr_kernel::psi::Trigger;
use omr_kernel::{Kernel, clock, process};
use omr_machine::groups::class::Classifier;
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::processes::Finder;
use omr_machine::sample::cpu::Sides;
use omr_machine::sample::observation;
use omr_machine::sample::snapshot::{Snapshot, SwapSpace, read_hibernates};
use omr_machine::statements::StatementStore;
use omr_policy::busy::BusyWatch;
use omr_policy::{Class, Config, Decision, End, Finished, Goal, Mode, Reason, Signals, State, Writes};
use omr_units::{Bytes, GroupId, Monotonic, millis};
use rustix::event::{PollFd, PollFlags, poll};

use self::aging::History;
use self::lock::Lock;
use self::preparing::Preparing;
use self::processes::Processes;
use self::server::{Control, Peer};
use self::tally::Tally;
use self::timer::Timer;
use self::worker::{Order, Outcome, Setup, Sweep, Worker};

/// The policy is asked once in this time; also the only wake-up of an idle daemon.
const TICK: Duration = Duration::from_secs(1);
/// Groups are read this often, or so seldom that it takes no more than half a percent of a CPU.
const SCAN: Duration = Duration::from_secs(5);
const SCAN_SHARE: u32 = 200;
/// While a sweep runs nothing may keep the loop from noticing work: a scan of thousands of groups
/// that takes longer than this waits, and only the group being swept is read each second.
const LONGEST_LOOK: Duration = Duration::from_millis(10);
/// CPU time in each tick for changes of attributes, which any user can make without end; the rest waits for the next.
const LONGEST_TAKING: Duration = Duration::from_millis(5);
/// Whether the machine can hibernate is read again after this many ticks.
const SLOW_TICKS: u64 = 60;

/// The user that `omr watch` runs as.
const WATCHER: &str = "omr-watch";
/// The user that `omr follow` runs as, where it follows the sessions of all users.
const FOLLOWER: &str = "omr-follow";

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Log to standard error instead of the journal.
    pub foreground: bool,
    /// This file instead of the configuration of the system.
    pub config: Option<PathBuf>,
    /// Its values take the place of those in the configuration.
    pub profile: Option<Profile>,
    /// With a profile: the only control group that is touched, whatever rules there are.
    pub target: Option<PathBuf>,
}

/// The configuration, with the profile that was asked for.
fn load(root: &Path, args: &Args, kernel: &Kernel) -> Result<Loaded> {
    let mut loaded = load_or_refuse(root, args.config.as_deref())?;
    if let Some(profile) = args.profile {
        let target = args.target.as_deref().map(|target| kernel.group_path(target));
        profile.apply(target, &mut loaded).map_err(|err| Exit::Usage.error(err))?;
    }
    Ok(loaded)
}

/// Runs the daemon until it is told to end.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    omr_base::logging::start(args.foreground);
    // A client that goes away before it has its answer ends with that client.
    // SAFETY: no thread exists yet; SIG_IGN is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    raise_descriptor_limit();
    // Before any thread exists, so that all of them have these signals blocked.
    let signal_fd = SignalFd::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
    let kernel = Arc::new(Kernel::open(root)?);
    let loaded = load(root, args, &kernel)?;
    kernel.cgroup()?;
    if let Some(path) = args.target.as_deref().map(|target| kernel.group_path(target)) {
        // One that was mistyped never comes.
        Group::open(kernel.cgroup()?, path).map_err(|err| if err.is_gone() { no_group(path) } else { err.into() })?;
    }
    let _lock = Lock::take(&paths::runtime_dir(root))?;
    let state_dir = paths::state_dir(root);
    if let Err(err) = fs::create_dir_all(&state_dir) {
        log::warn!("create {}: {err}", state_dir.display());
    }
    let mut daemon = Daemon::start(root, args.clone(), kernel, loaded, state_dir)?;
    lock_memory();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    log::info!("omr {} started", env!("CARGO_PKG_VERSION"));
    let ended = daemon.serve(&signal_fd);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    daemon.end();
    ended?;
    log::info!("omr ended");
    Ok(Exit::Done)
}

/// A descriptor stays open for each group whose CPU time is looked at; 1024, the usual soft limit, is
/// less than the groups of a large machine.
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(err) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        log::warn!("the limit of open files stays as it is: {err}");
    }
}

/// Keeps the daemon in memory, so that it cannot be its own victim: what is there now, and each page
/// from the moment it is first used.
fn lock_memory() {
    // SAFETY: mlockall takes flags only and touches no memory of ours.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if result != 0 {
        log::warn!("mlockall: {}; the daemon may be swapped out", std::io::Error::last_os_error());
    }
}

/// The sweep that runs.
struct Running {
    sweep: u64,
    path: PathBuf,
    asked: Bytes,
    refaults: Option<Bytes>,
    start: Reason,
    stop: Option<Reason>,
    watch: BusyWatch,
    sampled: Monotonic,
    own_cpu: Duration,
}

struct Daemon {
    root: PathBuf,
    args: Args,
    kernel: Arc<Kernel>,
    config: Config,
    /// As it was loaded.
    loaded: Arc<Loaded>,
    config_files: Vec<PathBuf>,
    backend: BackendChoice,
    classifier: Classifier,
    own_group: PathBuf,
    /// Its identity, when nothing but omr runs in it.
    own_id: Option<GroupId>,
    state_dir: PathBuf,
    state: State,
    tree: Tree,
    sides: Sides,
    groups: Vec<omr_policy::Group>,
    next_scan: Monotonic,
    /// How long the last scan took.
    scan_took: Duration,
    /// CPU time spent on changes of attributes since the last tick.
    taking_took: Duration,
    snapshot: Option<Snapshot>,
    signals: Option<Signals>,
    decision: Option<Decision>,
    decided: Monotonic,
    ticks: u64,
    hibernates: bool,
    file_only: bool,
    /// Whether that is known.
    probed: bool,
    worker: Worker,
    progress: Arc<Mutex<Progress>>,
    /// It has an order whose outcome is still to come.
    is_working: bool,
    running: Option<Running>,
    preparing: Option<Preparing>,
    processes: Processes,
    history: History,
    sweep: Option<u64>,
    ledger: Ledger,
    tally: Tally,
    disk_rate: disk_rate::Measured,
    control: Option<Control>,
    tick: Timer,
    sampler: Timer,
    trigger: Option<Trigger>,
    buffer: Vec<u8>,
    warm: omr_engine::warm::Notice,
    /// `omr warm` runs, or did since the last tick.
    warming: bool,
    /// Where the write budget was written last.
    saved: Writes,
    /// That failed the last time.
    unsaved: bool,
}

impl Daemon {
    fn start(root: &Path, args: Args, kernel: Arc<Kernel>, loaded: Loaded, state_dir: PathBuf) -> Result<Self> {
        let own_group = process::read_own_group(&kernel).ok().flatten().unwrap_or_default();
        let own_group = own_group.strip_prefix("/").map(Path::to_path_buf).unwrap_or(own_group);
        let mut live = Live;
        let journal = match backend::journal(&kernel, &state_dir, &mut live) {
            Ok(journal) => Some(journal),
            Err(err) if loaded.backend == BackendChoice::High => {
                return Err(err.context("memory.high needs a journal"));
            }
            // A disk that is full or read-only takes the records, not the sweeps.
            Err(err) => {
                log::warn!("{err:#}");
                None
            }
        };
        zram::warn_of_left(&kernel, root);
        let progress = Arc::new(Mutex::new(Progress::default()));
        let worker = worker::start(Setup {
            kernel: Arc::clone(&kernel),
            root: root.into(),
            actuator: actuator(loaded.policy.mode),
            choice: loaded.backend,
            journal,
            progress: Arc::clone(&progress),
        })?;
        let mut state = State::default();
        state.writes = read_writes(&state_dir);
        let boot = kernel.read_boot_id().unwrap_or_default();
        if !loaded.processes.is_empty() {
            processes::warn_of_missing_rights(&kernel);
        }
        let processes =
            Processes::new(Finder::new(&loaded.processes), StatementStore::load(&paths::statements(root), &boot));
        let socket = paths::socket(root);
        let user = |name: &str| id_of(root, "etc/passwd", name);
        let control = Control::listen(&socket, id_of(root, "etc/group", "omr"), user(WATCHER), user(FOLLOWER))?;
        let looker = looker::start(Arc::clone(&kernel), paths::history(root))?;
        let mut daemon = Daemon {
            history: History::new(&loaded.policy.history, looker),
            root: root.into(),
            args,
            classifier: Classifier::new(&loaded.groups, &own_group),
            config: loaded.policy.clone(),
            config_files: loaded.files.clone(),
            backend: loaded.backend,
            loaded: Arc::new(loaded),
            own_id: own_id(&kernel, &own_group),
            own_group,
            saved: state.writes.clone(),
            unsaved: false,
            state,
            tree: Tree::default(),
            sides: Sides::default(),
            groups: Vec::new(),
            next_scan: Monotonic(0),
            scan_took: Duration::ZERO,
            taking_took: Duration::ZERO,
            snapshot: None,
            signals: None,
            decision: None,
            decided: Monotonic(0),
            ticks: 0,
            hibernates: false,
            file_only: false,
            probed: false,
            worker,
            progress,
            is_working: false,
            running: None,
            preparing: None,
            processes,
            sweep: None,
            ledger: Ledger::open(&state_dir),
            disk_rate: disk_rate::Measured::default(),
            tally: Tally::load(&state_dir, clock::read_wall().as_secs()),
            control: Some(control),
            warm: omr_engine::warm::Notice::new(&paths::warm_lock(root)),
            warming: false,
            tick: Timer::new()?,
            sampler: Timer::new()?,
            trigger: None,
            buffer: Vec::with_capacity(8192),
            state_dir,
            kernel,
        };
        daemon.tree.watch_attributes();
        daemon.scan();
        if daemon.config.mode == Mode::Observe {
            daemon.never_old("in mode \"observe\" nothing is written to the kernel, so no group is aged".into());
            daemon.note_old();
        }
        daemon.probe();
        daemon.arm_trigger();
        daemon.tick.every(TICK)?;
        Ok(daemon)
    }

    /// The loop. Returns when a signal asks for the end.
    fn serve(&mut self, signal_fd: &SignalFd) -> Result<()> {
        // The first snapshot only starts the counters.
        self.tick();
        loop {
            let mut ready = Ready::default();
            self.wait(signal_fd, &mut ready)?;
            if ready.sampler {
                self.sampler.clear();
                self.sample();
            }
            if ready.stalled {
                let stop = &self.config.stop;
                let reason = Reason::Stalled { stall: stop.stall, window: stop.window };
                self.stop_hint(&reason.to_string());
                self.interrupt(reason);
            }
            if ready.worker {
                while let Some(outcome) = self.worker.report() {
                    self.take(outcome);
                    self.begin_to_prepare();
                    if !self.is_working {
                        self.go_on();
                    }
                }
            }
            if ready.changed {
                self.take_changes();
            }
            if ready.tick {
                self.tick.clear();
                self.tick();
            }
            self.serve_clients(&ready);
            if ready.signal {
                match signal_fd.read() {
                    Some(libc::SIGHUP) => self.reload(),
                    Some(_) => return Ok(()),
                    None => {}
                }
            }
        }
    }

    fn wait(&self, signal_fd: &SignalFd, ready: &mut Ready) -> Result<()> {
        let mut fds = vec![
            PollFd::new(&self.tick, PollFlags::IN),
            PollFd::new(&self.sampler, PollFlags::IN),
            PollFd::new(&self.worker, PollFlags::IN),
            PollFd::from_borrowed_fd(signal_fd.as_fd(), PollFlags::IN),
        ];
        // Into zram, paging out is how somebody who waits for memory gets it.
        let on_disk = self.snapshot.as_ref().and_then(|snapshot| snapshot.swap).is_none_or(|swap| swap.on_disk);
        let is_in_the_way = self.running.is_some() || (on_disk && self.processes.pages_out());
        let stall = self.trigger.as_ref().filter(|_| is_in_the_way);
        let stall = stall.map(|trigger| {
            fds.push(PollFd::new(trigger, PollFlags::PRI));
            fds.len() - 1
        });
        let changes = self.tree.changes().filter(|_| self.taking_took < LONGEST_TAKING);
        let changes = changes.map(|changes| {
            fds.push(PollFd::from_borrowed_fd(changes, PollFlags::IN));
            fds.len() - 1
        });
        let clients = fds.len();
        if let Some(control) = &self.control {
            fds.push(PollFd::new(control, control.wants()));
            for client in &control.clients {
                let flags = if client.wants_to_write() { PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::new(client, flags));
            }
        }
        let asked = |client: &server::Client| client.has_request();
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let waiting = self.control.iter().flat_map(|control| &control.clients).any(asked);
        match poll(&mut fds, waiting.then_some(&none)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(err) => return Err(err).context("poll"),
        }
        let is_ready = |index: usize| !fds[index].revents().is_empty();
        ready.tick = is_ready(0);
        ready.sampler = is_ready(1);
        ready.worker = is_ready(2);
        ready.signal = is_ready(3);
        ready.stalled = stall.is_some_and(|index| fds[index].revents().contains(PollFlags::PRI));
        ready.changed = changes.is_some_and(is_ready);
        ready.listener = fds.get(clients).is_some_and(|fd| !fd.revents().is_empty());
        let all = self.control.iter().flat_map(|control| &control.clients);
        let clients = fds.iter().skip(clients + 1).zip(all);
        ready.clients = clients.map(|(fd, client)| !fd.revents().is_empty() || asked(client)).collect();
        Ok(())
    }

    /// Once a second: look, decide, act.
    fn tick(&mut self) {
        let now = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        self.taking_took = Duration::ZERO;
        self.look_at_deadline(now);
        let was_warming = std::mem::replace(&mut self.warming, self.warm.look());
        self.state.set_warming(self.warming || was_warming);
        if self.warming || was_warming {
            // At the end too: what came back since the last scan must not be found later.
            if !self.warming || now >= self.next_scan {
                self.discount_refaults();
            }
        } else if now >= self.next_scan && (self.running.is_none() || self.scan_took <= LONGEST_LOOK) {
            self.scan();
            if !self.probed {
                self.probe();
            }
        } else {
            self.look_at_running();
        }
        if self.ticks.is_multiple_of(SLOW_TICKS) {
            self.hibernates = self.read_hibernates(self.snapshot.as_ref().and_then(|snapshot| snapshot.swap));
        }
        self.ticks += 1;
        let scanned = clock::read_monotonic();
        let snapshot = Snapshot::take(&self.kernel, &mut self.sides, self.hibernates, &mut self.buffer);
        if let Some(before) = &self.snapshot {
            let mut signals = observation::between(before, &snapshot, self.file_only);
            self.measure_image(&mut signals.machine);
            if signals.slept {
                log::info!("the machine was asleep");
                // What it was for is over, and the clock of its deadline stood still.
                self.end_preparing("the machine was asleep");
            }
            let taken = clock::read_monotonic();
            let decision = omr_policy::decide(&self.config, &mut self.state, &signals, &self.groups);
            // What lab/omrlab/scenarios/self_cost.py reads.
            log::debug!(
                "tick: {} groups, scan {} us, snapshot {} us, decision {} us, CPU {} us",
                self.tree.nodes().len(),
                scanned.since(now).as_micros(),
                taken.since(scanned).as_micros(),
                clock::read_monotonic().since(taken).as_micros(),
                clock::read_thread_cpu().saturating_sub(cpu).as_micros()
            );
            self.signals = Some(signals);
            self.act(decision);
        } else {
            // The device is known once swap is.
            self.hibernates = self.read_hibernates(snapshot.swap);
        }
        self.snapshot = Some(snapshot);
        self.look_at_processes();
        self.look_at_groups(now);
        let time = clock::read_wall().as_secs();
        let nodes = self.tree.nodes();
        let lines = self
            .tally
            .came_back(now, time, |id| nodes.iter().find(|node| node.id == id).and_then(|node| node.refaults));
        for line in lines {
            self.ledger.add(&line);
        }
        if let Some(control) = &mut self.control {
            control.drop_silent(now);
            let held = control.held();
            self.hold(held);
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
    }

    /// Whether there could be an image. With swap enough for what sweeps need to know; where the image
    /// is the goal, with all that it takes.
    fn read_hibernates(&self, swap: Option<SwapSpace>) -> bool {
        match self.config.goal {
            Goal::Free => read_hibernates(&self.kernel, swap),
            Goal::Hibernate => image::place(&self.kernel, &self.root).is_ok(),
        }
    }

    /// Where the image is the goal: as the kernel would count it, and not by meminfo alone.
    fn measure_image(&self, machine: &mut omr_policy::Machine) {
        if self.config.goal == Goal::Hibernate && self.hibernates {
            machine.image = image::forecast(&self.kernel).map(|forecast| forecast.in_use - forecast.per_cpu);
        }
    }

    /// The next group of the sweep, right after one is finished.
    fn go_on(&mut self) {
        let Some(signals) = &self.signals else { return };
        let mut signals = Signals { now: clock::read_monotonic(), slept: false, ..signals.clone() };
        self.measure_image(&mut signals.machine);
        let decision = omr_policy::next(&self.config, &mut self.state, &signals, &self.groups);
        self.act(decision);
    }

    fn act(&mut self, decision: Decision) {
        match &decision {
            Decision::Sweep { id, job, reason } => self.begin(*id, job, reason),
            Decision::Stop { reason } => self.stop(reason.clone()),
            Decision::Continue { .. } => {}
            Decision::Hold { reason } => {
                self.sweep = None;
                // A sweep begins with fresh figures.
                if let Reason::Settling { idle, needed } = reason {
                    let begins = clock::read_monotonic() + needed.saturating_sub(*idle);
                    self.next_scan = self.next_scan.min(begins);
                }
            }
        }
        if self.decision.as_ref().map(Decision::reason).map(std::mem::discriminant)
            != Some(std::mem::discriminant(decision.reason()))
        {
            log::debug!("{}", decision.reason());
            let status = format!("STATUS={}", decision.reason());
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Custom(&status)]);
        }
        self.decided = clock::read_monotonic();
        self.decision = Some(decision);
    }

    fn begin(&mut self, id: GroupId, job: &omr_policy::pace::Job, reason: &Reason) {
        let Some(path) = self.tree.path(id) else {
            // It was in the list a moment ago; the next scan will tell.
            self.forget(id);
            return;
        };
        let inner = self.tree.nodes().iter().find(|node| node.id == id && node.inner);
        let inner = inner.and_then(|node| node.current.map(|current| current - node.in_children));
        let group = self.groups.iter().find(|group| group.id == id);
        let sweep = *self.sweep.get_or_insert_with(|| self.tally.next_sweep());
        // What happened before the sweep began is not its business.
        self.sides.other.sample();
        self.clear_trigger();
        self.running = Some(Running {
            sweep,
            path: path.clone(),
            asked: job.amount,
            refaults: group.and_then(|group| group.refaults),
            start: reason.clone(),
            stop: None,
            watch: BusyWatch::new(&self.config.stop, self.state.steady_load()),
            sampled: clock::read_monotonic(),
            own_cpu: clock::read_own_cpu(),
        });
        if let Err(err) = self.sampler.every(self.config.stop.sample) {
            log::error!("{err:#}; no sweep without a look at the machine");
            self.running = None;
            self.forget(id);
            return;
        }
        let older_than = group.and_then(|group| Some(group.cold_only.as_ref()?.min_age));
        self.order(Order::Sweep(Sweep { id, path, job: job.clone(), inner, older_than }));
    }

    /// What the trigger has seen so far is forgotten.
    fn clear_trigger(&self) {
        if let Some(trigger) = &self.trigger {
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(trigger, PollFlags::PRI)], Some(&none));
        }
    }

    /// How far the worker is with what it does, or did last.
    fn progress(&self) -> Progress {
        self.progress.lock().map(|progress| *progress).unwrap_or_default()
    }

    fn order(&mut self, order: Order) {
        self.is_working = true;
        self.worker.order(order);
    }

    /// The worker has done what it was told to.
    fn take(&mut self, outcome: Outcome) {
        self.is_working = false;
        match outcome {
            Outcome::Swept(id, report) => self.finished(id, report),
            Outcome::Prepared(result) => self.prepared(result),
            Outcome::Hinted(given) => self.hinted(given),
            Outcome::HandedBack(result) => self.handed_back(result),
        }
    }

    /// A sweep that did not begin.
    fn forget(&mut self, id: GroupId) {
        let finished = Finished { id, size: Bytes::ZERO, refaults: None, swap_writes: Bytes::ZERO, end: End::Failed };
        self.state.finished(&self.config, clock::read_monotonic(), 0, &finished);
    }

    fn stop(&mut self, reason: Reason) {
        if let Some(running) = &mut self.running {
            self.worker.stop();
            running.stop.get_or_insert(reason);
        }
    }

    /// Somebody needs the machine.
    fn interrupt(&mut self, reason: Reason) {
        if self.running.as_ref().is_some_and(|running| running.stop.is_none()) {
            log::debug!("{reason}");
            self.stop(reason);
            self.state.interrupt(clock::read_monotonic());
            self.sweep = None;
        }
    }

    /// Some fifty times a second while a sweep runs: has somebody begun to work?
    fn sample(&mut self) {
        let Some(running) = &mut self.running else { return };
        let now = clock::read_monotonic();
        let own_cpu = clock::read_own_cpu();
        let dt = now.since(running.sampled);
        // After a late wake-up the next one is early. CPU time is accounted with a timer tick's delay,
        // so a few milliseconds may show that of many (1005 % of a CPU were seen).
        if dt < self.config.stop.sample / 2 {
            return;
        }
        let own = own_cpu.saturating_sub(running.own_cpu);
        running.sampled = now;
        running.own_cpu = own_cpu;
        let mut used = self.sides.other.sample();
        // In a group that it shares, the daemon's own time is among that of the others. Its clock is
        // up to a timer tick ahead of the group's, so a group of its own is the better way.
        if self.own_id.is_none() && !self.own_group.as_os_str().is_empty() {
            used = used.map(|used| used.saturating_sub(own));
        }
        if let Some(reason) = running.watch.sample(dt, used) {
            self.interrupt(reason);
        }
    }

    /// The worker is done with a group.
    fn finished(&mut self, id: GroupId, report: Report) {
        let _ = self.sampler.stop();
        let Some(running) = self.running.take() else { return };
        self.disk_rate.add(&report);
        if let Some(rate) = self.disk_rate.rate() {
            if disk_rate::is_disk_only(&self.kernel) {
                disk_rate::keep(&self.kernel, &self.root, rate);
            }
            self.disk_rate = disk_rate::Measured::default();
        }
        let now = clock::read_monotonic();
        let on_disk = self.snapshot.as_ref().and_then(|snapshot| snapshot.swap).is_some_and(|swap| swap.on_disk);
        let finished = Finished {
            id,
            size: report.size,
            refaults: report.refaults,
            swap_writes: if on_disk { report.swapped_out } else { Bytes::ZERO },
            end: report.end,
        };
        let wall = clock::read_wall();
        self.state.finished(&self.config, now, wall.as_secs() / 3600, &finished);
        if let Some(group) = self.groups.iter_mut().find(|group| group.id == id) {
            group.current = Some(report.size);
            group.refaults = report.refaults.or(group.refaults);
        }
        self.history.swept(id, report.freed, matches!(report.end, End::Stopped | End::Timeout));
        self.note_old();
        let stop_reason = match &running.stop {
            Some(reason) if report.end == End::Stopped => reason.to_string(),
            _ => report.end.words().to_owned(),
        };
        let swept = Swept {
            time: wall.as_secs(),
            sweep: running.sweep,
            group: running.path.to_string_lossy().into_owned(),
            id,
            observed: self.config.mode == Mode::Observe,
            asked: report.asked,
            freed: report.freed,
            freed_anon: report.freed_anon,
            freed_file: report.freed_file,
            swapped_out: report.swapped_out,
            demoted: report.demoted,
            cpu_ms: millis(report.cpu),
            wall_ms: millis(report.wall),
            writes: report.writes,
            longest_write_ms: millis(report.longest_write),
            last_write_end_ns: report.last_write_end.0,
            start_reason: running.start.to_string(),
            stop_reason,
            end: report.end,
            error: report.error,
        };
        log::info!(
            "{}: {} of {} freed, {} to swap, {} ms, {}",
            printable(&swept.group),
            swept.freed,
            swept.asked,
            swept.swapped_out,
            swept.wall_ms,
            swept.stop_reason
        );
        if let Some(error) = &swept.error {
            log::warn!("{}: {error}", printable(&swept.group));
        }
        self.tally.add(now, &swept, running.refaults.or(report.refaults));
        // The budget first: who sees the line may rely on it being counted.
        self.save();
        self.ledger.add(&Entry::Sweep(swept));
    }

    /// Writes the write budget to disk when it has changed.
    fn save(&mut self) {
        if self.saved == self.state.writes {
            return;
        }
        let text = serde_json::to_vec(&self.state.writes).unwrap_or_default();
        match write_atomically(&self.state_dir.join("swap-writes.json"), &text) {
            Ok(()) => {
                self.saved = self.state.writes.clone();
                self.unsaved = false;
            }
            Err(err) if !self.unsaved => {
                log::warn!("{err:#}; a restart will not know of the last writes to swap");
                self.unsaved = true;
            }
            Err(_) => {}
        }
    }

    /// Reads all groups.
    fn scan(&mut self) {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        if let Err(err) = self.tree.scan(&self.kernel, &self.classifier, true) {
            log::warn!("{err}");
            self.groups.clear();
            self.next_scan = began + SCAN;
            return;
        }
        self.sort_out();
        self.history.note_peaks(&self.tree);
        let mut ids: Vec<GroupId> = self.tree.nodes().iter().map(|node| node.id).collect();
        ids.sort_unstable();
        self.state.retain(&ids);
        self.tally.retain(|id| ids.binary_search(&id).is_ok());
        self.retain_old(&ids);
        self.processes.statements.retain_groups(|id| ids.binary_search(&id).is_ok());
        // Not the time by the clock: on a busy machine that would put the next look off for minutes.
        let took = clock::read_thread_cpu().saturating_sub(cpu);
        self.next_scan = began + SCAN.max(took * SCAN_SHARE);
        self.scan_took = clock::read_monotonic().since(began);
    }

    /// What follows from the classes of groups.
    fn sort_out(&mut self) {
        self.groups.clear();
        self.groups.extend(self.tree.groups());
        self.note_old();
        if let Err(err) = self.sides.update(&self.kernel, &self.tree, self.own_id) {
            log::warn!("{err}");
        }
    }

    /// Groups say something else of themselves: somebody has gone from one application to another.
    fn take_changes(&mut self) {
        let cpu = clock::read_thread_cpu();
        let changed = self.tree.take_changes(&self.kernel, &self.classifier).unwrap_or_else(|err| {
            log::warn!("{err}");
            Vec::new()
        });
        if !changed.is_empty() {
            self.reclassified(&changed);
            self.look_for_returning();
        }
        self.taking_took += clock::read_thread_cpu().saturating_sub(cpu);
    }

    /// A scan of which all that came back since the last one is excused: `omr warm` did that.
    fn discount_refaults(&mut self) {
        let refaults = |node: &omr_machine::groups::tree::Node| node.refaults.map(|refaults| (node.id, refaults));
        let before: HashMap<GroupId, Bytes> = self.tree.nodes().iter().filter_map(refaults).collect();
        self.scan();
        for (id, now) in self.tree.nodes().iter().filter_map(refaults) {
            let bytes = before.get(&id).map_or(Bytes::ZERO, |before| now - *before);
            if bytes > Bytes::ZERO {
                self.state.discount_refaults(id, bytes);
                self.tally.discount_refaults(id, bytes);
            }
        }
    }

    /// Reads the group being swept, so that what comes back into it is noticed between two scans.
    fn look_at_running(&mut self) {
        let Some(running) = &self.running else { return };
        let Some(id) = self.state.sweeping() else { return };
        let (Ok(root), Some(seen)) = (self.kernel.cgroup(), self.groups.iter_mut().find(|group| group.id == id)) else {
            return;
        };
        if let Ok(group) = Group::open(root, &running.path)
            && group.id() == id
            && let Ok(stat) = group.read_stat(&mut self.buffer)
        {
            seen.refaults = stat.refaults().map(|pages| pages.bytes(self.kernel.page()));
        }
    }

    /// Whether the kernel can be asked for file memory only.
    fn probe(&mut self) {
        let Ok(root) = self.kernel.cgroup() else { return };
        // Not on a group that is nobody's business, though the request is for nothing.
        let some = self.groups.iter().find(|group| group.class == Class::Background);
        let some = some.and_then(|group| self.tree.path(group.id));
        let Some(group) = some.and_then(|path| Group::open(root, &path).ok()) else { return };
        self.probed = true;
        match Backend::probe(self.backend, &group, &mut *actuator(self.config.mode)) {
            Ok(backend) => {
                self.file_only = backend.file_only();
                log::info!("reclaims by {backend}");
            }
            Err(err) => log::warn!("{err:#}"),
        }
    }

    fn arm_trigger(&mut self) {
        let stop = &self.config.stop;
        match Trigger::arm(&self.kernel.proc, "pressure/memory", stop.stall, stop.window) {
            Ok(trigger) => self.trigger = Some(trigger),
            Err(err) => {
                self.trigger = None;
                log::warn!("no pressure trigger, only CPU time stops a sweep early: {err}");
            }
        }
    }

    /// SIGHUP: a file that is wrong changes nothing.
    fn reload(&mut self) {
        match load(&self.root, &self.args, &self.kernel) {
            Err(errors) => log::error!("the configuration stays as it was:\n{errors:#}"),
            Ok(loaded) => {
                if loaded.backend != self.backend || loaded.policy.mode != self.config.mode {
                    log::warn!("mode and backend change with a restart only: systemctl restart omr");
                }
                let mode = self.config.mode;
                self.config = Config { mode, ..loaded.policy.clone() };
                self.config_files = loaded.files.clone();
                self.classifier = Classifier::new(&loaded.groups, &self.own_group);
                self.tree.reclassify();
                self.processes.reconfigure(Finder::new(&loaded.processes));
                self.stop(Reason::Stopping);
                self.stop_hint("the configuration was read again");
                self.state.reconfigured();
                self.history.reconfigure(&self.config.history);
                self.scan();
                self.arm_trigger();
                self.loaded = Arc::new(loaded);
                log::info!("configuration read again");
            }
        }
    }

    fn serve_clients(&mut self, ready: &Ready) {
        let Some(mut control) = self.control.take() else { return };
        let now = clock::read_monotonic();
        let mut index = 0;
        control.clients.retain_mut(|client| {
            let is_ready = ready.clients.get(index).copied().unwrap_or(false);
            index += 1;
            match is_ready {
                false => true,
                true if client.wants_to_write() => Control::send(client),
                true => Control::serve(client, now, |request, peer| self.answer(request, peer)),
            }
        });
        if ready.listener {
            control.accept(now);
        }
        let held = control.held();
        self.control = Some(control);
        self.hold(held);
    }

    fn answer(&mut self, request: Request, peer: &mut Peer) -> Answer {
        let now = clock::read_monotonic();
        let value = match request {
            Request::Status => serde_json::to_value(self.status(now)),
            Request::Explain { group } => match self.explain(now, group.as_deref().map(Path::new)) {
                Ok(explanation) => serde_json::to_value(explanation),
                Err(err) => return Answer::Error(format!("{err:#}")),
            },
            Request::ExplainProcess { pid } => match self.explain_process(now, pid) {
                Ok(explanation) => serde_json::to_value(explanation),
                Err(err) => return Answer::Error(format!("{err:#}")),
            },
            Request::Processes => serde_json::to_value(self.process_views(now)),
            Request::Say { presence, subject } => return self.say(presence, &subject),
            Request::Hold { statements } => match self.try_hold(&statements, peer) {
                Ok(refused) => serde_json::to_value(refused),
                Err(err) => return Answer::Error(format!("{err:#}")),
            },
            Request::Pause { seconds } => {
                self.stop_hint("paused");
                self.state.pause(now, seconds.map(Duration::from_secs));
                self.stop(Reason::Paused { left: seconds.map(Duration::from_secs) });
                self.sweep = None;
                Ok(serde_json::Value::Null)
            }
            Request::FallAsleep => {
                let reason = self.state.fall_asleep(now);
                // Also one for hibernation: what runs before it, omr-prepare-hibernate.service, has ended.
                self.end_preparing("the machine is about to sleep");
                self.stop_hint(&reason.to_string());
                self.stop(reason);
                self.sweep = None;
                Ok(serde_json::Value::Null)
            }
            Request::Resume => {
                self.state.resume();
                Ok(serde_json::Value::Null)
            }
            Request::Prepare { purpose, deadline_ms, why } => return self.prepare(purpose, deadline_ms, &why),
            Request::StandDown => return self.stand_down(),
        };
        match value {
            Ok(value) => Answer::Ok(value),
            Err(err) => Answer::Error(err.to_string()),
        }
    }

    /// Ends a sweep, and leaves nothing behind.
    fn end(mut self) {
        self.stop(Reason::Stopping);
        self.history.close();
        self.worker.close();
        while let Some(outcome) = self.worker.report() {
            self.take(outcome);
        }
    }
}

/// What `poll` found.
#[derive(Debug, Default)]
struct Ready {
    tick: bool,
    sampler: bool,
    worker: bool,
    signal: bool,
    stalled: bool,
    changed: bool,
    listener: bool,
    clients: Vec<bool>,
}

fn actuator(mode: Mode) -> Box<dyn Actuator> {
    match mode {
        Mode::Act => Box::new(Live),
        Mode::Observe => Box::new(DryRun),
    }
}

/// The daemon's group, when it has one for itself.
fn own_id(kernel: &Kernel, own_group: &Path) -> Option<GroupId> {
    let group = Group::open(kernel.cgroup().ok()?, own_group).ok().filter(|group| !group.is_root())?;
    let processes = group.dir().read_string("cgroup.procs").ok()?;
    (processes.lines().count() == 1).then(|| group.id())
}

/// The write budget as it was saved. From a file that cannot be read it is put together anew out of
/// the ledger, which also knows what went to swap.
fn read_writes(state_dir: &Path) -> Writes {
    let path = state_dir.join("swap-writes.json");
    let err = match fs::read(&path).map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(writes)) => return writes,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Writes::default(),
        Err(err) => err.to_string(),
        Ok(Err(err)) => err.to_string(),
    };
    log::warn!("{}: {err}; the writes to swap are counted anew from the ledger", path.display());
    let mut writes = Writes::default();
    let now = clock::read_wall().as_secs();
    let _ = ledger::read(state_dir, |entry| {
        let (time, bytes) = match entry {
            Entry::Sweep(swept) => (swept.time, swept.swapped_out),
            Entry::Prepare(prepared) => (prepared.time, prepared.swapped_out),
            Entry::Hint(hinted) => (hinted.time, hinted.swapped_out),
            Entry::LeftAlone { .. } | Entry::Refaults { .. } => return,
        };
        // A time to come counts as now: what is older must not be forgotten for it.
        writes.add(time.min(now) / 3600, bytes);
    });
    writes
}

/// The third field of the line of that name: of `etc/group` the group id, of `etc/passwd` the user id.
fn id_of(root: &Path, file: &str, name: &str) -> Option<u32> {
    let lines = fs::read_to_string(root.join(file)).ok()?;
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        fields.nth(1)?.parse().ok()
    })
}
