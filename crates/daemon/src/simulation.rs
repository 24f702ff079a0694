//! The whole daemon in a deterministic simulation: its loop, worker and aging thread run on a model
//! machine, in model time, on one thread. People, jobs and faults come by a plan that a seed gives.
//! One seed is one run, which can be replayed.
//!
//! [`machine`] is the model machine. [`actors`] are the people and faults. [`checks`] are the
//! promises, checked at each write of the daemon and at its end. [`ModelActuator`] replaces writes to
//! the kernel: a write takes model time, in which everything else goes on.
//!
//! `make simulate SEEDS=1..100 HOURS=24` runs it.

mod actors;
mod calls;
mod checks;
mod clients;
pub mod faults;
mod learned;
mod machine;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use omr_actuate::{Actuator, Advice, AdviseResult, Outcome as Wrote, Switch};
use omr_kernel::clock::Clock;
use omr_kernel::clock::simulated::{self, Simulated};
use omr_kernel::process::Process;
use omr_kernel::{Dir, Kernel};
use omr_units::{Budget, Bytes, Monotonic};

use self::actors::Event;
use self::checks::Checks;
use self::machine::{BOOT, HOUR, Machine, SECOND};
use crate::aging_thread::{self, Ager};
use crate::daemon::Daemon;
use crate::disk::Disk;
use crate::event_loop::tell_watchers;
use crate::host::Host;
use crate::news::News;
use crate::server::Server;
use crate::settings::{Args, Settings, load};
use crate::thread::{Inbox, Thread};
use crate::work::{self, Work};
use crate::worker::{Order, Outcome, Reclaimer};

type Nanos = u64;

/// Ticks between two looks at what the daemon keeps.
const LOOK: u64 = 600;
/// The longest write to the kernel that an alarm does not end.
const WRITE: Nanos = SECOND / 50;
/// The time after which systemd starts a daemon that has failed.
const RESTART: Nanos = 5 * SECOND;

/// Model clocks.
#[derive(Debug, Default)]
struct ModelClock {
    /// The time of the model, which goes on over boots.
    now: AtomicU64,
    /// The time of the boot.
    booted: AtomicU64,
    asleep: AtomicU64,
    /// What the wall clock was set to beyond the time since boot, in seconds.
    wall: AtomicU64,
}

impl ModelClock {
    fn now(&self) -> Nanos {
        self.now.load(Relaxed)
    }
}

impl Clock for ModelClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic(self.now() - self.booted.load(Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(self.wall.load(Relaxed)) + Duration::from_nanos(self.now()) + self.asleep()
    }

    fn asleep(&self) -> Duration {
        Duration::from_nanos(self.asleep.load(Relaxed))
    }

    fn own_cpu(&self) -> Duration {
        // A thousandth of a CPU.
        Duration::from_nanos(self.now() / 1000)
    }

    fn thread_cpu(&self) -> Duration {
        self.own_cpu()
    }
}

impl Simulated for ModelClock {
    fn sleep(&self, time: Duration) {
        if let Some(simulation) = current() {
            simulation.pass(nanos(time));
        }
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).expect("a short time")
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Simulation>>> = const { RefCell::new(None) };
}

fn current() -> Option<Rc<Simulation>> {
    CURRENT.with_borrow(Option::clone)
}

/// The payload of the panic that ends a killed daemon.
struct Killed;

/// A run of the daemon, from its start to its end.
struct Life {
    daemon: Daemon,
    server: Server,
    news: News,
    worker: Inbox<Order, Outcome>,
    aging: Inbox<aging_thread::Order, aging_thread::Report>,
    next_tick: Nanos,
    next_sample: Nanos,
}

/// The simulation.
struct Simulation {
    clock: Arc<ModelClock>,
    machine: RefCell<Machine>,
    checks: RefCell<Checks>,
    actors: RefCell<actors::Actors>,
    clients: RefCell<clients::Clients>,
    plan: RefCell<BTreeMap<(Nanos, u64), Event>>,
    planned: Cell<u64>,
    life: RefCell<Option<Life>>,
    reclaimer: RefCell<Option<Reclaimer>>,
    /// Nested runs of the worker and the aging thread.
    depth: Cell<u32>,
    /// The daemon was told to end.
    is_ending: Cell<bool>,
    /// The daemon was killed: writes of its destructors reach nothing.
    is_dead: Cell<bool>,
    /// The machine has lost its power, and boots next.
    is_off: Cell<bool>,
    /// A daemon that did not start could not read its state, and may have written it anew.
    has_lost: Cell<bool>,
    end: Nanos,
    traces: bool,
}

/// Counts of a run: they show that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub ticks: u64,
    pub writes: u64,
    pub to_swap: u64,
    pub sweeps: u64,
    pub hints: u64,
    pub agings: u64,
    pub starts: u64,
    pub kills: u64,
    pub boots: u64,
    /// The most files that a daemon had open.
    pub files: u64,
    /// Calls of the daemon that failed.
    pub faults: u64,
    /// Of all writes, so that two runs can be compared.
    pub digest: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.ticks += other.ticks;
        self.writes += other.writes;
        self.to_swap += other.to_swap;
        self.sweeps += other.sweeps;
        self.hints += other.hints;
        self.agings += other.agings;
        self.starts += other.starts;
        self.kills += other.kills;
        self.boots += other.boots;
        self.files = self.files.max(other.files);
        self.faults += other.faults;
        self.digest ^= other.digest;
    }
}

/// Runs one seed for these hours of model time. The error is the violation.
pub fn run(seed: u64, hours: u64) -> Result<Summary, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let clock = Arc::new(ModelClock::default());
    clock.now.store(HOUR, Relaxed);
    clock.wall.store(BOOT, Relaxed);
    let (machine, actors, checks) = actors::make(&mut random);
    faults::begin(Some((random.fork(), machine.root.path())));
    let simulation = Rc::new(Simulation {
        clock: Arc::clone(&clock),
        machine: RefCell::new(machine),
        checks: RefCell::new(checks),
        actors: RefCell::new(actors),
        clients: RefCell::default(),
        plan: RefCell::default(),
        planned: Cell::new(0),
        life: RefCell::new(None),
        reclaimer: RefCell::new(None),
        depth: Cell::new(0),
        is_ending: Cell::new(false),
        has_lost: Cell::new(false),
        is_dead: Cell::new(false),
        is_off: Cell::new(false),
        end: HOUR + hours * HOUR,
        traces: std::env::var_os("OMR_TRACE").is_some(),
    });
    CURRENT.set(Some(Rc::clone(&simulation)));
    simulated::set_clock(Some(clock));
    let result = panic::catch_unwind(AssertUnwindSafe(|| simulation.live()));
    simulated::set_clock(None);
    CURRENT.set(None);
    simulation.checks.borrow_mut().summary.faults = faults::count();
    faults::begin(None);
    let at = Duration::from_nanos(simulation.clock.now() - HOUR).as_secs();
    let what = match result {
        Ok(()) => simulation.checks.borrow_mut().violation.take(),
        Err(payload) => Some(text_of(&*payload)),
    };
    match what {
        None => Ok(simulation.checks.borrow().summary),
        Some(what) => Err(format!("seed {seed}, second {at} ({} h {} min): {what}", at / 3600, at / 60 % 60)),
    }
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".into())
}

impl Simulation {
    fn is_over(&self) -> bool {
        self.clock.now() >= self.end || self.checks.borrow().violation.is_some()
    }

    /// One life of the daemon after the other, until the time is over.
    fn live(&self) {
        actors::plan_all(self);
        while !self.is_over() {
            self.is_dead.set(false);
            self.is_ending.set(false);
            self.depth.set(0);
            let ended = panic::catch_unwind(AssertUnwindSafe(|| self.live_once()));
            // A killed daemon does nothing more.
            self.is_dead.set(true);
            *self.reclaimer.borrow_mut() = None;
            drop(self.life.borrow_mut().take());
            self.clients.borrow_mut().disconnect();
            self.machine.borrow_mut().groups.iter_mut().for_each(|group| group.kept_foreground = None);
            if let Err(payload) = ended
                && !payload.is::<Killed>()
            {
                panic::resume_unwind(payload);
            }
            self.is_dead.set(false);
            if self.is_off.take() {
                self.boot();
            }
            self.recover();
        }
    }

    /// The machine boots after its power was cut.
    fn boot(&self) {
        self.clock.booted.store(self.clock.now() - SECOND, Relaxed);
        self.clock.asleep.store(0, Relaxed);
        // The time comes from the network.
        self.clock.wall.store(self.right_wall(), Relaxed);
        self.machine.borrow_mut().boot();
        actors::boot(self);
        self.checks.borrow_mut().booted();
    }

    /// What a wall clock that is right is set to.
    fn right_wall(&self) -> u64 {
        BOOT + Duration::from_nanos(self.checks.borrow().slept).as_secs()
    }

    /// Restores limits, as systemd has it done after the daemon.
    fn recover(&self) {
        let root = self.machine.borrow().root.path().to_owned();
        let before = faults::count();
        let restored = {
            let _daemon = faults::daemon();
            crate::restore_limits_below(&root)
        };
        // After a fault the next start restores them.
        let is_certain = faults::count() == before;
        if let Err(err) = restored
            && is_certain
        {
            self.fail(format!("limits cannot be restored: {err:#}"));
        }
        self.checks.borrow_mut().ended(&self.machine.borrow(), is_certain);
    }

    /// Starts a daemon.
    fn start(&self) -> Result<(Life, aging_thread::Memory)> {
        let _daemon = faults::daemon();
        let root = self.machine.borrow().root.path().to_owned();
        let kernel = Arc::new(Kernel::open(&root)?.with_clock(Arc::<ModelClock>::clone(&self.clock)));
        let args = Args::default();
        let settings = Settings::new(args.clone(), load(&root, &args, &kernel)?);
        kernel.cgroup()?;
        let host = Host::new(&root, kernel)?;
        let setup = work::setup(&host, &settings)?;
        let (thread, worker) = Thread::pair()?;
        let work = Work::new(thread, Arc::clone(&setup.progress), setup.journal.clone());
        let (to_aging, aging) = Thread::pair()?;
        let memory = aging_thread::Memory::load(&host)?;
        let disk = Disk::at_once(&host.state_dir);
        let server = Server::listen(&root)?;
        let daemon = Daemon::new(host, settings, work, to_aging, disk)?;
        *self.reclaimer.borrow_mut() = Some(Reclaimer::new(setup));
        let (next_tick, next_sample) = (self.clock.now(), Nanos::MAX);
        let life = Life { daemon, server, news: News::default(), worker, aging, next_tick, next_sample };
        Ok((life, memory))
    }

    fn live_once(&self) {
        self.machine.borrow_mut().show(true);
        let before = faults::count();
        faults::take_lost_state();
        faults::hasten();
        let started = self.start();
        self.has_lost.set(self.has_lost.get() | faults::take_lost_state());
        let (life, memory) = match started {
            Ok(started) => started,
            // systemd starts it again.
            Err(err) => {
                self.trace(|| format!("the daemon does not start: {err:#}"));
                if faults::count() == before {
                    self.fail(format!("the daemon does not start: {err:#}"));
                }
                let again = self.clock.now() + RESTART;
                while self.clock.now() < again && !self.is_over() {
                    self.step(again);
                }
                return;
            }
        };
        let has_lost = self.has_lost.take();
        if has_lost {
            self.checks.borrow_mut().lost_state();
        }
        let kernel = Arc::clone(&life.daemon.host.kernel);
        let mut ager = Ager::new(&kernel, memory, life.daemon.settings.actuator());
        self.check(|checks, machine| checks.learning.begin(machine, ager.thresholds(), !has_lost));
        *self.life.borrow_mut() = Some(life);
        let wall = self.clock.wall.load(Relaxed) + self.clock.asleep().as_secs();
        let is_clock_right = wall.abs_diff(self.right_wall()) <= 1;
        self.checks.borrow_mut().started(is_clock_right);
        self.checks.borrow_mut().summary.starts += 1;
        while !self.is_over() {
            let (order, flag) = {
                let life = self.life.borrow();
                let life = life.as_ref().expect("a life");
                (life.aging.try_next(), life.aging.flag())
            };
            if let Some(order) = order {
                self.machine.borrow_mut().show(true);
                self.depth.set(self.depth.get() + 1);
                // Reading the lists takes a moment.
                self.pass(SECOND / 1000);
                let before = faults::count();
                let report = {
                    let _daemon = faults::daemon();
                    ager.carry_out(order, &flag)
                };
                let (now, is_certain) = (self.clock.now(), faults::count() == before);
                self.check(|checks, machine| {
                    let is_certain = is_certain && !checks.disk_is_away;
                    checks.learning.report(machine, now, ager.thresholds(), &report.learned, is_certain)
                });
                self.depth.set(self.depth.get() - 1);
                self.with_life(|life| life.aging.report(report));
            } else if self.is_ending.get() && !self.is_working() {
                break;
            } else {
                self.step(self.end);
            }
        }
        if let Some(life) = self.life.borrow_mut().take() {
            let before = faults::count();
            let _daemon = faults::daemon();
            life.daemon.end();
            if faults::count() == before {
                self.checks.borrow_mut().saved();
            }
            ager.end();
            let _model = faults::model();
            let is_certain = faults::count() == before;
            self.check(|checks, machine| {
                let is_certain = is_certain && !checks.disk_is_away;
                checks.learning.end(machine, is_certain)
            });
        }
    }

    /// Makes a check of its own.
    fn check(&self, check: impl FnOnce(&mut Checks, &Machine) -> Result<(), String>) {
        let mut checks = self.checks.borrow_mut();
        let kept = check(&mut checks, &self.machine.borrow());
        checks.demand(kept);
    }

    fn with_life<T>(&self, act: impl FnOnce(&mut Life) -> T) -> T {
        act(self.life.borrow_mut().as_mut().expect("a life"))
    }

    fn is_working(&self) -> bool {
        self.reclaimer.borrow().is_none()
    }

    /// Returns true while the daemon itself runs, and no time passes.
    fn is_in_daemon(&self) -> bool {
        self.life.try_borrow_mut().is_err()
    }

    /// Lets time pass for whoever waits.
    fn pass(&self, time: Nanos) {
        let _model = faults::model();
        let end = self.clock.now() + time;
        if self.is_in_daemon() {
            self.advance(end);
            return;
        }
        while self.clock.now() < end {
            self.step(end);
            if self.is_over() {
                // The run ends in the middle of a write.
                panic::resume_unwind(Box::new(Killed));
            }
        }
        self.machine.borrow_mut().show(true);
    }

    fn advance(&self, to: Nanos) {
        self.clock.now.store(to, Relaxed);
        self.machine.borrow_mut().pass(to);
    }

    /// Goes on to what happens next, but not beyond `end`, and lets it happen.
    fn step(&self, end: Nanos) {
        let (tick, sample) = match self.life.borrow().as_ref() {
            Some(_) if self.is_ending.get() => (Nanos::MAX, Nanos::MAX),
            Some(life) => (life.next_tick, life.next_sample),
            None => (Nanos::MAX, Nanos::MAX),
        };
        let planned = self.plan.borrow().keys().next().map_or(Nanos::MAX, |(at, _)| *at);
        let now = self.clock.now();
        let next = end.min(tick).min(sample).min(planned).max(now);
        if next > now {
            self.advance(next);
        }
        if planned <= next {
            let event = self.plan.borrow_mut().pop_first();
            if let Some((_, event)) = event {
                actors::happen(self, event);
            }
        } else if sample <= next {
            self.machine.borrow_mut().show(false);
            let _daemon = faults::daemon();
            self.with_life(|life| {
                life.daemon.sample();
                life.next_sample += nanos(life.daemon.settings.config.stop.sample);
            });
        } else if tick <= next {
            self.tick();
        }
        self.settle();
    }

    fn tick(&self) {
        self.machine.borrow_mut().show(false);
        let facts = self.actors.borrow().facts(self.clock.now());
        let daemon = faults::daemon();
        self.with_life(|life| {
            life.daemon.readings.presence = facts;
            life.daemon.tick();
            tell_watchers(&life.daemon, &mut life.server, &mut life.news);
            life.server.close_silent(life.daemon.host.now());
            clients::settle(life);
            life.next_tick = self.clock.now() + nanos(life.daemon.next_tick());
        });
        drop(daemon);
        self.with_life(|life| self.note_saved(&life.daemon));
        let mut checks = self.checks.borrow_mut();
        checks.look_at_limits(&self.machine.borrow(), self.clock.now(), self.is_working() || faults::is_bursting());
        checks.summary.ticks += 1;
        if checks.summary.ticks.is_multiple_of(LOOK) {
            checks.look(&self.machine.borrow());
        }
    }

    /// After each step: starts the sampler, and the worker where there is an order for it.
    fn settle(&self) {
        let Some(order) = self.life.borrow_mut().as_mut().and_then(|life| {
            match life.daemon.sweeps.running.is_some() {
                true => {
                    life.next_sample =
                        life.next_sample.min(self.clock.now() + nanos(life.daemon.settings.config.stop.sample))
                }
                false => life.next_sample = Nanos::MAX,
            }
            if self.is_working() { None } else { life.worker.try_next() }
        }) else {
            return;
        };
        let Some(mut reclaimer) = self.reclaimer.borrow_mut().take() else { return };
        let flag = self.with_life(|life| life.worker.flag());
        self.machine.borrow_mut().show(true);
        if let Order::Sweep(sweep) = &order {
            self.trace(|| format!("sweep of {}: {:?}", sweep.path.display(), sweep.job));
            self.checks.borrow_mut().begin_sweep(&sweep.path, self.clock.now());
            actors::disturb_sweep(self, &sweep.path.to_string_lossy());
        }
        if let Order::Hint(hint) = &order {
            self.trace(|| format!("{:?} of {:?}: {:?}", hint.step, hint.id, hint.amount));
            self.checks.borrow_mut().begin_hint(hint.id, self.clock.now());
            actors::disturb_hint(self, hint.id);
        }
        self.checks.borrow_mut().prepares = matches!(order, Order::Prepare(..));
        let began = self.with_life(|life| counted(&life.daemon));
        self.depth.set(self.depth.get() + 1);
        let outcome = {
            let _daemon = faults::daemon();
            reclaimer.carry_out(order, &flag)
        };
        self.depth.set(self.depth.get() - 1);
        self.checks.borrow_mut().prepares = false;
        let written = self.checks.borrow_mut().end_order();
        let faults = faults::count();
        *self.reclaimer.borrow_mut() = Some(reclaimer);
        self.machine.borrow_mut().show(false);
        let is_ending = self.is_ending.get();
        self.with_life(|life| {
            life.worker.report(outcome);
            if !is_ending {
                let _daemon = faults::daemon();
                life.daemon.collect_outcomes();
                self.note_saved(&life.daemon);
                // In another hour, earlier writes may count no more.
                let (hour, count) = counted(&life.daemon);
                if hour == began.0 && count < began.1 + written && faults::count() == faults {
                    let counts = count - began.1;
                    self.fail(format!("{written} bytes were written to swap, and {counts} are counted"));
                }
            }
        });
        self.settle();
    }

    fn note_saved(&self, daemon: &Daemon) {
        if !daemon.books.disk.is_behind() {
            self.checks.borrow_mut().saved();
        }
    }

    fn plan(&self, after: Nanos, event: Event) {
        self.planned.set(self.planned.get() + 1);
        self.plan.borrow_mut().insert((self.clock.now() + after, self.planned.get()), event);
    }

    /// Prints a line of what happens, for whoever looks into a seed (OMR_TRACE=1).
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.traces {
            let seconds = Duration::from_nanos(self.clock.now() - HOUR).as_secs_f64();
            eprintln!("{seconds:10.3} {}", what());
        }
    }

    fn fail(&self, what: String) {
        self.checks.borrow_mut().fail(what);
    }

    /// A write of omr, which may fail.
    fn try_to_write(&self, dir: &Dir, name: &str, data: &str) -> omr_kernel::Result<Wrote> {
        let _model = faults::model();
        let reclaims = name != "memory.high" && !data.starts_with('+');
        let Some(fault) = faults::of_write(reclaims).filter(|_| !self.is_dead.get()) else {
            return Ok(self.write(dir, name, data));
        };
        self.trace(|| format!("{data:?} to {name}: {fault:?}"));
        match fault {
            faults::OfWrite::Closed(error) => Err(omr_kernel::Error::Write {
                path: dir.path().join(name),
                data: data.into(),
                err: std::io::Error::from_raw_os_error(error),
            }),
            faults::OfWrite::Nothing => {
                self.pass(WRITE);
                Ok(if name == "kernel/debug/lru_gen" { Wrote::Done } else { Wrote::Partial })
            }
            faults::OfWrite::Interrupted => {
                self.write(dir, name, data);
                Ok(Wrote::Interrupted)
            }
        }
    }

    /// A write of omr.
    fn write(&self, dir: &Dir, name: &str, data: &str) -> Wrote {
        if self.is_dead.get() {
            return Wrote::Gone;
        }
        let now = self.clock.now();
        match name {
            "kernel/debug/lru_gen" => self.write_generations(data),
            "memory.reclaim" | "memory.swap.reclaim" => {
                let Some(index) = self.machine.borrow().find(dir) else { return Wrote::Gone };
                let bytes: u64 = data.split(' ').next().and_then(|word| word.parse().ok()).expect("an amount");
                if bytes == 0 {
                    return Wrote::Done;
                }
                self.checks.borrow_mut().before(&self.machine.borrow(), index, now, data);
                let evicted = self.machine.borrow_mut().reclaim(index, bytes, data.ends_with("swappiness=0"));
                self.wrote(index, now, evicted);
                if evicted.to_swap + evicted.dropped < bytes { Wrote::Partial } else { Wrote::Done }
            }
            "memory.high" => {
                let Some(index) = self.machine.borrow().find(dir) else { return Wrote::Gone };
                let high = data.trim().parse().ok();
                self.machine.borrow_mut().set_high(index, high);
                let current = self.machine.borrow().groups[index].current();
                let excess = high.map_or(0, |high: u64| current.saturating_sub(high));
                if excess > 0 {
                    self.checks.borrow_mut().before(&self.machine.borrow(), index, now, data);
                    let evicted = self.machine.borrow_mut().reclaim(index, excess.min(4 << 20), false);
                    self.wrote(index, now, evicted);
                }
                Wrote::Done
            }
            _ => {
                self.fail(format!("an unknown write: {} {name} {data}", dir.path().display()));
                Wrote::Unsupported
            }
        }
    }

    fn write_generations(&self, data: &str) -> Wrote {
        let now = self.clock.now();
        let words: Vec<&str> = data.split(' ').collect();
        let number = |place: usize| words[place].parse::<u64>().expect("a number");
        let Some(index) = self.machine.borrow().find_number(number(1)) else { return Wrote::Unsupported };
        match words[0] {
            "+" => {
                let is_aged = self.machine.borrow_mut().age(index, number(3));
                self.checks.borrow_mut().summary.agings += 1;
                self.pass(SECOND / 500);
                if is_aged { Wrote::Done } else { Wrote::Unsupported }
            }
            _ if words[4] == "max" && !self.machine.borrow().takes_swappiness_max => Wrote::Unsupported,
            _ => {
                self.checks.borrow_mut().before(&self.machine.borrow(), index, now, data);
                let evicted = self.machine.borrow_mut().evict(index, number(3), number(5) * 4096);
                let Some(evicted) = evicted else { return Wrote::Unsupported };
                self.wrote(index, now, evicted);
                Wrote::Done
            }
        }
    }

    /// The write has moved this much, and takes its time.
    fn wrote(&self, index: usize, began: Nanos, evicted: machine::Evicted) {
        self.checks.borrow_mut().after(&self.machine.borrow(), index, began, evicted);
        self.trace(|| {
            let free = self.machine.borrow().swap_free() >> 20;
            format!(
                "{} MiB to swap, {} MiB dropped; {free} MiB of swap free",
                evicted.to_swap >> 20,
                evicted.dropped >> 20
            )
        });
        let rate = if self.machine.borrow().swap_on_disk { 25 } else { 2 };
        let time = (evicted.to_swap / machine::BLOCK * rate * SECOND / 1000).min(WRITE);
        self.pass(time.max(SECOND / 10_000));
    }

    /// A hint of omr.
    fn advise(&self, of: &Process, advice: Advice, ranges: &[Range<u64>]) -> AdviseResult {
        let _model = faults::model();
        let gone = AdviseResult { bytes: Bytes::ZERO, outcome: Wrote::Gone };
        let Some(index) = self.machine.borrow().find_process(of.dir()).filter(|_| !self.is_dead.get()) else {
            return gone;
        };
        let now = self.clock.now();
        let machine = self.machine.borrow();
        self.checks.borrow_mut().before_hint(&machine, &machine.processes[index], now, advice);
        drop(machine);
        let hinted = self.machine.borrow_mut().advise(index, ranges, advice);
        self.checks.borrow_mut().count(&self.machine.borrow(), now, hinted.evicted);
        let rate = if self.machine.borrow().swap_on_disk { 25 } else { 2 };
        let blocks = (hinted.evicted.to_swap + hinted.back) / machine::BLOCK;
        self.trace(|| format!("{advice:?} of {}: {blocks} MiB", of.stat().pid));
        // No alarm ends this call.
        self.pass((blocks * rate * SECOND / 1000).max(SECOND / 1000));
        AdviseResult { bytes: ranges.iter().map(|range| Bytes(range.end - range.start)).sum(), outcome: Wrote::Done }
    }

    /// kill -9.
    fn kill(&self) {
        self.is_dead.set(true);
        panic::resume_unwind(Box::new(Killed));
    }
}

/// The hour, and what the daemon has counted against write budgets of a day.
fn counted(daemon: &Daemon) -> (u64, u64) {
    let all = Bytes::mib(1 << 30);
    let budget = Some(Budget { bytes: all, hours: 24 });
    (daemon.host.hour(), (all - daemon.mind.state.writes.left(daemon.host.hour(), budget)).0)
}

/// Writes of omr to the model machine of the calling thread.
pub struct ModelActuator;

impl Actuator for ModelActuator {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> omr_kernel::Result<Wrote> {
        current().map_or(Ok(Wrote::Gone), |simulation| simulation.try_to_write(dir, name, data))
    }

    fn advise(&mut self, of: &Process, advice: Advice, ranges: &[Range<u64>]) -> omr_kernel::Result<AdviseResult> {
        let gone = AdviseResult { bytes: Bytes::ZERO, outcome: Wrote::Gone };
        Ok(current().map_or(gone, |simulation| simulation.advise(of, advice, ranges)))
    }

    fn swap(&mut self, _: &Path, _: Switch) -> omr_kernel::Result<Wrote> {
        Ok(Wrote::Unsupported)
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// Runs seeds from `first` on until the time is over or a run fails. Returns how many ran.
fn run_for(first: u64, hours: u64, time: Duration) -> (u64, Summary) {
    let began = Instant::now();
    let (mut seeds, mut sum) = (0, Summary::default());
    while began.elapsed() < time || seeds == 0 {
        match run(first + seeds, hours) {
            Ok(summary) => sum += summary,
            Err(what) => panic!("{what}\nmake simulate SEEDS={0}..{0} HOURS={hours}", first + seeds),
        }
        seeds += 1;
    }
    (seeds, sum)
}

#[test]
fn fresh_seeds_violate_nothing() {
    let seconds = std::env::var("OMR_SIMULATE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let threads = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    let time = Duration::from_secs(seconds) / u32::try_from(threads).expect("some CPUs");
    let of_a_thread = || {
        let first = u64::from(fastrand::u32(..));
        let (seeds, sum) = run_for(first, 24, time);
        // Not by a macro, whose output a test that passes does not show.
        let _ = writeln!(std::io::stderr(), "seeds {first} to {}, 24 h each: {sum:?}", first + seeds - 1);
        assert!(sum.ticks > 0);
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(of_a_thread))));
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 2] {
        assert_eq!(run(seed, 12), run(seed, 12));
    }
}

/// `make simulate`: OMR_SEEDS is FIRST..LAST, OMR_HOURS the hours of each.
#[test]
#[ignore = "as long as it is told to"]
fn seeds() {
    let read = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("expected {name}"));
    let seeds = read("OMR_SEEDS");
    let (first, last) = seeds.split_once("..").expect("OMR_SEEDS: expected FIRST..LAST");
    let (first, last): (u64, u64) = (first.parse().expect("a number"), last.parse().expect("a number"));
    let hours: u64 = read("OMR_HOURS").parse().expect("OMR_HOURS: expected a number");
    let (began, mut sum, mut failures) = (Instant::now(), Summary::default(), 0);
    for seed in first..=last {
        match run(seed, hours) {
            Ok(summary) => sum += summary,
            Err(what) => {
                failures += 1;
                println!("{what}");
            }
        }
    }
    let (took, simulated) = (began.elapsed().as_secs().max(1), (last - first + 1) * hours);
    println!("{simulated} machine-hours in {took} s, {} in an hour; {sum:?}", simulated * 3600 / took);
    assert_eq!(failures, 0, "violations");
}
