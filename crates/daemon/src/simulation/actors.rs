//! The events of the machine: people, jobs, users' requests, sleep, power, faults, and the ends of
//! the daemon.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use omr_control::protocol::Request;
use omr_kernel::clock::Clock as _;
use omr_policy::Purpose;
use omr_policy::presence::{Facts, Sessions};
use omr_policy::rank::ProcessId;
use omr_policy::statement::{Presence, Subject};

use super::checks::{Checks, Goal};
use super::faults::{self, Burst};
use super::machine::processes::{OTHER, WORKER};
use super::machine::{CPUS, HOUR, Kind, MINUTE, Machine, SECOND};
use super::{Nanos, Simulation, clients};
use crate::requests;

/// Something that happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// An event of [`RECURRING`], at this place.
    Recurs(usize),
    /// The person comes, or goes.
    Comes,
    Goes,
    /// The person's programs begin to work, or all CPUs are used, or they rest.
    Works,
    WorksInFull,
    Rests,
    /// A background job begins, or ends.
    JobBegins,
    JobEnds(usize),
    /// Groups come and go.
    Churn,
    /// Somebody asks the daemon for its status.
    Asks,
    /// Sweeps are paused, and go on.
    Pauses,
    Resumes,
    /// A user says that a group is in the foreground, and takes it back.
    Says,
    SaysOf(String),
    TakesBack(String),
    /// A program begins to keep a group in the foreground, and repeats that.
    BeginsToKeep,
    BeginsToKeepOf(String),
    Keeps,
    /// Users flood the socket.
    Floods,
    /// A group is protected, or not any more.
    Protects,
    /// A group is protected.
    ProtectsOf(String),
    /// An administrator sets a limit.
    Limits,
    /// A process uses a CPU, and rests.
    ProcessWorks,
    ProcessRests(ProcessId),
    /// A process ends, and is started again; another process gets its pid.
    ProcessRestarts(Option<ProcessId>),
    /// A process is moved to a group in the foreground, and back.
    ProcessMoves(Option<ProcessId>),
    ProcessMovesBack(ProcessId),
    /// A user says that a process is in the foreground, and takes it back.
    SaysOfProcess(Option<ProcessId>),
    TakesBackOfProcess(ProcessId),
    /// A task waits for memory.
    Stalls,
    /// Somebody is told that the machine will sleep, and it does.
    FallsAsleep,
    Sleeps,
    /// The machine is prepared for hibernation, and hibernates. It is woken up, does not find its
    /// image, or stays awake as the kernel has no room for one.
    Hibernates,
    MakesImage,
    WakesFromImage,
    StaysAwake,
    /// The provider of the machine will take it away soon.
    Notice,
    /// The disk of the daemon's state cannot be written to for a while.
    DiskGoes,
    DiskComes,
    /// The cord is pulled, or plugged in.
    Unplugs,
    PlugsIn,
    /// Swap goes away, and is there again.
    SwapGoes,
    SwapComes(u64),
    /// The wall clock is set.
    SetsClock,
    /// A file of the kernel cannot be read for a while.
    FileFails,
    FileMended(&'static str),
    /// The size of a group cannot be read for a while.
    GroupFails(String),
    GroupMended(String),
    /// Many calls to the kernel fail for a while.
    CallsFail,
    CallsFailBy(Burst, Nanos),
    CallsWork,
    /// The daemon is told to end, or to read its configuration again, or is killed.
    Restarts,
    Reloads,
    Killed,
    /// The machine loses its power, and boots again.
    PowerCut,
}

impl Event {
    fn is_of_process(&self) -> bool {
        use Event::{ProcessMoves, ProcessRestarts, ProcessWorks, SaysOfProcess};
        matches!(self, ProcessWorks | ProcessRestarts(_) | ProcessMoves(_) | SaysOfProcess(_))
    }
}

/// The people.
pub struct Actors {
    random: fastrand::Rng,
    is_present: bool,
    input: Nanos,
    /// Somebody tells the daemon who is there.
    is_told: bool,
    has_battery: bool,
    /// Groups have processes.
    has_processes: bool,
}

impl Actors {
    /// The facts about people that the daemon is told; `None`: nobody tells.
    pub fn facts(&self, now: Nanos) -> Option<Facts> {
        let idle = if self.is_present { Duration::ZERO } else { Duration::from_nanos(now - self.input) };
        let local = Sessions { active: 1, idle: Some(idle) };
        self.is_told.then(|| Facts { local, ..Facts::default() })
    }

    /// A time around this one.
    fn around(&mut self, time: Nanos) -> Nanos {
        time / 4 + self.random.u64(0..time * 3 / 2)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }
}

const FOREGROUND: &str = "user.slice/editor.scope";

/// Patterns of use: shares in percent, and the time between two uses. The rest is never used again.
const PATTERNS: [&[(u64, Nanos)]; 5] = [
    &[(30, 20 * SECOND), (20, 5 * MINUTE)],
    &[(60, 10 * SECOND), (10, HOUR)],
    &[(10, MINUTE), (20, 20 * MINUTE), (20, 3 * HOUR)],
    &[(5, 30 * SECOND)],
    &[(50, 8 * MINUTE), (50, 40 * MINUTE)],
];

/// Makes a machine, its people, and the promises.
pub fn make(random: &mut fastrand::Rng) -> (Machine, Actors, Checks) {
    let goal = if random.u32(0..3) > 0 { Goal::Auto } else { Goal::Free };
    let budget = random.u64(64..1024) << 20;
    let swap = random.u64(128..1024) << 20;
    let on_disk = random.bool();
    let has_mglru = random.u32(0..8) > 0;
    let backend = if random.u32(0..4) == 0 { "memory.high" } else { "auto" };
    let goal_word = if goal == Goal::Auto { "auto" } else { "free" };
    let age = match random.u32(0..3) {
        0 if goal == Goal::Free => "[[group]]\nmatch = 'system.slice/*'\nolder_than = '5m'\n",
        _ => "",
    };
    let has_processes = random.u32(0..2) == 0;
    let processes = match has_processes {
        true => format!(
            "[[process]]\nexe = '{WORKER}'\nclass = 'background'\n[hints]\nprefetch = '{}'\navailable = '{}%'\n",
            if random.bool() { "on" } else { "off" },
            random.u32(50..=100)
        ),
        false => String::new(),
    };
    let config = format!(
        "goal = '{goal_word}'\nbackend = '{backend}'\n[sweep]\nafter_boot = '0s'\n[guard]\nmax_swap_writes = \
         '{}MiB/day'\n[[group]]\nmatch = 'user.slice/*'\nclass = 'foreground'\n[[group]]\nmatch = 'keep.slice/*'\nclass \
         = 'protected'\n{age}{processes}",
        budget >> 20
    );
    let floor = if goal == Goal::Auto { 30 } else { 10 };
    let mut machine = Machine::new(&config, swap, on_disk, has_mglru, random.fork());
    machine.add_group(FOREGROUND, Kind::Foreground, random.u64(50..500), PATTERNS[0]);
    machine.add_group("keep.slice/db.service", Kind::Protected, random.u64(20..200), PATTERNS[3]);
    for number in 0..random.u64(2..7) {
        let path = format!("system.slice/s{number}.service");
        let pattern = PATTERNS[random.usize(0..PATTERNS.len())];
        machine.add_group(&path, Kind::Background, random.u64(8..300), pattern);
    }
    if has_processes {
        for index in 0..machine.groups.len() {
            start_processes(&mut machine, index);
        }
    }
    let actors = Actors {
        random: random.fork(),
        is_present: true,
        input: HOUR,
        is_told: random.u32(0..6) > 0,
        has_battery: random.u32(0..3) == 0,
        has_processes,
    };
    if actors.has_battery {
        machine.set_battery(false);
    }
    machine.takes_swappiness_max = random.bool();
    (machine, actors, Checks::new(goal, budget, floor))
}

/// The events that come again and again, and the time between two of them, more or less.
const RECURRING: [(Event, Nanos); 27] = [
    (Event::Works, 25 * SECOND),
    (Event::JobBegins, 20 * MINUTE),
    (Event::Churn, HOUR),
    (Event::Asks, 11 * MINUTE),
    (Event::Pauses, 5 * HOUR),
    (Event::Says, 3 * HOUR),
    (Event::BeginsToKeep, HOUR),
    (Event::Floods, HOUR),
    (Event::Protects, HOUR),
    (Event::Limits, 2 * HOUR),
    (Event::ProcessWorks, 5 * MINUTE),
    (Event::ProcessRestarts(None), 20 * MINUTE),
    (Event::ProcessMoves(None), HOUR),
    (Event::SaysOfProcess(None), 2 * HOUR),
    (Event::Stalls, 10 * MINUTE),
    (Event::FallsAsleep, 12 * HOUR),
    (Event::Hibernates, 12 * HOUR),
    (Event::Notice, 20 * HOUR),
    (Event::DiskGoes, 9 * HOUR),
    (Event::SwapGoes, 20 * HOUR),
    (Event::SetsClock, 10 * HOUR),
    (Event::FileFails, 2 * HOUR),
    (Event::CallsFail, 3 * HOUR),
    (Event::Restarts, 10 * HOUR),
    (Event::Reloads, 6 * HOUR),
    (Event::Killed, 5 * HOUR),
    (Event::PowerCut, 15 * HOUR),
];

/// Plans the first events.
pub fn plan_all(simulation: &Simulation) {
    plan_later(simulation, HOUR, Event::Goes);
    let has_processes = simulation.actors.borrow().has_processes;
    for (place, (event, time)) in RECURRING.iter().enumerate() {
        if has_processes || !event.is_of_process() {
            plan_later(simulation, *time, Event::Recurs(place));
        }
    }
    if simulation.actors.borrow().has_battery {
        plan_later(simulation, HOUR, Event::Unplugs);
    }
}

/// Plans an event after about this time.
fn plan_later(simulation: &Simulation, time: Nanos, event: Event) {
    let after = simulation.actors.borrow_mut().around(time);
    simulation.plan(after, event);
}

/// The worst moments come seldom by chance, so some events happen on purpose during a sweep, or right
/// before the worker begins it.
pub fn disturb_sweep(simulation: &Simulation, path: &str) {
    let mut actors = simulation.actors.borrow_mut();
    if !actors.chance(40) {
        return;
    }
    let after = actors.random.u64(0..SECOND / 2);
    let event = match actors.random.u32(0..20) {
        0..4 => Event::WorksInFull,
        4..6 => Event::SaysOf(path.into()),
        6 => Event::ProtectsOf(path.into()),
        7 => Event::Stalls,
        8 => Event::Pauses,
        9 => Event::FallsAsleep,
        10 if actors.has_battery => Event::Unplugs,
        11 => Event::Killed,
        12 => Event::Restarts,
        13 => match actors.random.u32(0..3) {
            0 => Event::CallsFailBy(Burst::NoDescriptors, 10 * SECOND),
            1 => Event::GroupFails(path.into()),
            _ => Event::FileFails,
        },
        14 => Event::Churn,
        15 => Event::PowerCut,
        16 => Event::BeginsToKeepOf(path.into()),
        17 => Event::Floods,
        18 => Event::Hibernates,
        _ => Event::SwapGoes,
    };
    let is_before = actors.chance(50);
    drop(actors);
    match event {
        Event::ProtectsOf(_) if is_before => happen(simulation, event),
        event => simulation.plan(after, event),
    }
}

/// As [`disturb_sweep`], during a hint, or right before the worker begins it.
pub fn disturb_hint(simulation: &Simulation, id: ProcessId) {
    let mut actors = simulation.actors.borrow_mut();
    if !actors.chance(30) {
        return;
    }
    let after = if actors.chance(30) { 0 } else { actors.random.u64(0..SECOND / 2) };
    let event = match actors.random.u32(0..12) {
        0..3 => Event::ProcessRestarts(Some(id)),
        3..5 => Event::SaysOfProcess(Some(id)),
        5 => Event::ProcessMoves(Some(id)),
        6 => Event::Stalls,
        7 => Event::Pauses,
        8 => Event::FallsAsleep,
        9 if actors.has_battery => Event::Unplugs,
        9 => Event::Protects,
        10 => Event::Killed,
        _ => Event::Churn,
    };
    drop(actors);
    match event {
        // The worker's thread comes a moment later.
        Event::ProcessRestarts(_) if after == 0 => happen(simulation, event),
        event => simulation.plan(after, event),
    }
}

/// The times for which calls fail.
const BURSTS: [(Burst, Nanos); 6] = [
    (Burst::NoDescriptors, MINUTE),
    (Burst::LittleMemory, 20 * SECOND),
    (Burst::DiskFull, HOUR),
    (Burst::RunFull, 10 * MINUTE),
    (Burst::DiskFails, 10 * MINUTE),
    (Burst::SwapFails, 10 * MINUTE),
];

const FAULTS: [&str; 6] =
    ["proc/meminfo", "proc/stat", "proc/vmstat", "proc/swaps", "sys/kernel/debug/lru_gen", "proc/pressure/memory"];

/// Carries out an event, and plans those that follow from it.
pub fn happen(simulation: &Simulation, event: Event) {
    let now = simulation.clock.now();
    let later = |time: Nanos, event: Event| plan_later(simulation, time, event);
    if !matches!(event, Event::Recurs(_)) {
        simulation.trace(|| format!("{event:?}"));
    }
    match event {
        Event::Recurs(place) => {
            let (event, time) = RECURRING[place].clone();
            later(time, Event::Recurs(place));
            happen(simulation, event);
        }
        Event::Comes => {
            simulation.actors.borrow_mut().is_present = true;
            later(HOUR, Event::Goes);
            simulation.plan(0, Event::Works);
        }
        Event::Goes => {
            let mut actors = simulation.actors.borrow_mut();
            actors.is_present = false;
            actors.input = now;
            drop(actors);
            later(3 * HOUR, Event::Comes);
        }
        Event::Works if !simulation.actors.borrow().is_present => {}
        Event::Works => {
            let full = simulation.actors.borrow_mut().chance(30);
            let load = if full { CPUS } else { simulation.actors.borrow_mut().random.u64(50..CPUS) };
            set_load(simulation, FOREGROUND, load);
            let long = if simulation.actors.borrow_mut().chance(10) { MINUTE } else { 2 * SECOND };
            later(long, Event::Rests);
        }
        Event::WorksInFull => {
            set_load(simulation, FOREGROUND, CPUS);
            later(2 * SECOND, Event::Rests);
        }
        Event::Rests => set_load(simulation, FOREGROUND, 0),
        Event::JobBegins => {
            if let Some(index) = some_background(simulation) {
                let load = simulation.actors.borrow_mut().random.u64(10..1500);
                simulation.machine.borrow_mut().set_load(index, load);
                later(3 * MINUTE, Event::JobEnds(index));
            }
        }
        Event::JobEnds(index) => {
            if index < simulation.machine.borrow().groups.len() {
                simulation.machine.borrow_mut().set_load(index, 0);
            }
        }
        Event::Churn => churn(simulation),
        Event::Asks => {
            ask(simulation, Request::Status);
            ask(simulation, Request::Explain { group: None });
            let path = some_background(simulation).map(|index| simulation.machine.borrow().groups[index].path.clone());
            if let Some(path) = path.filter(|path| is_known(simulation, path)) {
                ask(simulation, Request::Explain { group: Some(path) });
            }
        }
        Event::Pauses => {
            if ask(simulation, Request::Pause { seconds: None }) {
                simulation.checks.borrow_mut().paused = Some(now);
            }
            later(10 * MINUTE, Event::Resumes);
        }
        Event::Resumes => {
            if ask(simulation, Request::Resume) {
                simulation.checks.borrow_mut().paused = None;
            }
        }
        Event::Says => {
            if let Some(index) = some_background(simulation) {
                let path = simulation.machine.borrow().groups[index].path.clone();
                says(simulation, path, now);
            }
        }
        Event::SaysOf(path) => says(simulation, path, now),
        Event::TakesBack(path) => {
            let request = Request::Say { presence: None, subject: Subject::Group(path.clone()) };
            if is_known(simulation, &path) && ask(simulation, request) {
                let mut machine = simulation.machine.borrow_mut();
                machine
                    .groups
                    .iter_mut()
                    .filter(|group| group.path == path)
                    .for_each(|group| group.said_foreground = None);
            }
        }
        Event::BeginsToKeep => {
            let group = some_background(simulation).map(|index| simulation.machine.borrow().groups[index].path.clone());
            group.into_iter().for_each(|group| clients::begin_to_keep(simulation, group));
        }
        Event::BeginsToKeepOf(group) => clients::begin_to_keep(simulation, group),
        Event::Keeps => clients::keep(simulation),
        Event::Floods => {
            let mut random = simulation.actors.borrow_mut().random.fork();
            clients::flood(simulation, &mut random);
        }
        Event::Protects => {
            if let Some(index) = some_background(simulation) {
                let current = simulation.machine.borrow().groups[index].current();
                let low = if simulation.actors.borrow_mut().chance(50) { current / 2 } else { 0 };
                simulation.machine.borrow_mut().set_low(index, low);
            }
        }
        Event::ProtectsOf(path) => {
            let percent = simulation.actors.borrow_mut().random.u64(50..=100);
            let mut machine = simulation.machine.borrow_mut();
            if let Some(index) = machine.groups.iter().position(|group| group.path == path && group.exists) {
                let low = machine.groups[index].current() / 100 * percent;
                machine.set_low(index, low);
            }
        }
        Event::Limits => {
            if let Some(index) = some_background(simulation) {
                let mut machine = simulation.machine.borrow_mut();
                let high = Some(machine.groups[index].current() + (64 << 20)).filter(|high| high % 3 > 0);
                machine.set_high(index, high);
                machine.groups[index].own_high = machine.groups[index].high;
            }
        }
        Event::ProcessWorks => {
            let Some(id) = some_process(simulation) else { return };
            let load = simulation.actors.borrow_mut().random.u64(300..900);
            set_process_load(simulation, id, load);
            later(20 * SECOND, Event::ProcessRests(id));
        }
        Event::ProcessRests(id) => set_process_load(simulation, id, 0),
        Event::ProcessRestarts(id) => {
            let other = some_process(simulation);
            let mut machine = simulation.machine.borrow_mut();
            let index = id.or(other).and_then(|id| machine.process(id));
            let other = other.and_then(|id| machine.process(id));
            index.into_iter().for_each(|index| machine.restart_process(index, other));
        }
        Event::ProcessMoves(id) => {
            let Some(id) = id.or_else(|| some_process(simulation)) else { return };
            let mut machine = simulation.machine.borrow_mut();
            let to = machine.groups.iter().position(|group| group.path == FOREGROUND);
            if let (Some(index), Some(to)) = (machine.process(id), to) {
                machine.move_process(index, to);
            }
            drop(machine);
            later(MINUTE, Event::ProcessMovesBack(id));
        }
        Event::ProcessMovesBack(id) => {
            let mut machine = simulation.machine.borrow_mut();
            machine.process(id).into_iter().for_each(|index| machine.move_back(index));
        }
        Event::SaysOfProcess(id) => {
            let Some(id) = id.or_else(|| some_process(simulation)) else { return };
            if say_of_process(simulation, id, Some(Presence::Foreground), Some(now)) {
                later(10 * MINUTE, Event::TakesBackOfProcess(id));
            }
        }
        Event::TakesBackOfProcess(id) => {
            say_of_process(simulation, id, None, None);
        }
        Event::Stalls => {
            let stalled = simulation.life.borrow_mut().as_mut().is_some_and(|life| {
                let stalls = life.daemon.is_in_the_way() && !simulation.is_ending.get();
                if stalls {
                    let _daemon = faults::daemon();
                    life.daemon.stalled();
                }
                stalls
            });
            if stalled {
                simulation.checks.borrow_mut().stalled = Some(now);
            }
        }
        Event::FallsAsleep => {
            if simulation.actors.borrow_mut().chance(50) && ask(simulation, Request::FallAsleep) {
                simulation.checks.borrow_mut().falls_asleep = Some(now);
            }
            simulation.plan(3 * SECOND, Event::Sleeps);
        }
        Event::Sleeps => {
            let time = simulation.actors.borrow_mut().around(4 * HOUR);
            simulation.clock.asleep.fetch_add(time, Relaxed);
            let mut checks = simulation.checks.borrow_mut();
            checks.falls_asleep = None;
            checks.slept += time;
            drop(checks);
        }
        Event::Hibernates => {
            let (deadline, until) = {
                let random = &mut simulation.actors.borrow_mut().random;
                (random.bool().then(|| random.u64(2..120)), random.u64(0..60 * SECOND))
            };
            let why = "systemd-hibernate.service".to_owned();
            let deadline_ms = deadline.map(|seconds| seconds * 1000);
            if ask(simulation, Request::Prepare { purpose: Purpose::Hibernate, deadline_ms, why }) {
                simulation.checks.borrow_mut().asked_to_prepare = Some(now);
            }
            // The service waits for the preparation, and not without end.
            simulation.plan(until, Event::MakesImage);
        }
        Event::MakesImage => {
            // The sleep hook. Without the daemon it goes on.
            if ask(simulation, Request::FallAsleep) {
                simulation.checks.borrow_mut().falls_asleep = Some(now);
            }
            // The kernel frees memory for the image, of any group.
            let mut machine = simulation.machine.borrow_mut();
            for index in 0..machine.groups.len() {
                let most = machine.groups[index].current() / 4;
                let bytes = simulation.actors.borrow_mut().random.u64(0..=most);
                machine.reclaim(index, bytes, false);
            }
            let time = simulation.clock.wall().as_secs();
            machine.root.write("var/lib/omr-root/hibernated.json", format!(r#"{{"time":{time}}}"#));
            drop(machine);
            let what = simulation.actors.borrow_mut().random.u32(0..10);
            match what {
                0 => simulation.plan(SECOND, Event::PowerCut),
                1..3 => simulation.plan(300 * SECOND, Event::StaysAwake),
                _ => simulation.plan(3 * SECOND, Event::WakesFromImage),
            }
        }
        // By then the daemon no longer waits for sleep.
        Event::StaysAwake => simulation.checks.borrow_mut().falls_asleep = None,
        Event::WakesFromImage => happen(simulation, Event::Sleeps),
        Event::Notice => {
            let deadline = simulation.actors.borrow_mut().random.u64(2..120);
            let why = "the model machine's provider".to_owned();
            let deadline_ms = Some(deadline * 1000);
            if ask(simulation, Request::Prepare { purpose: Purpose::Preempt, deadline_ms, why }) {
                simulation.checks.borrow_mut().asked_to_prepare = Some(now);
            }
        }
        Event::DiskGoes => {
            move_state(simulation, STATE, AWAY);
            set_away(simulation, true);
            simulation.plan(5 * MINUTE, Event::DiskComes);
        }
        Event::DiskComes => {
            move_state(simulation, AWAY, STATE);
            set_away(simulation, false);
        }
        Event::Unplugs => {
            simulation.machine.borrow_mut().set_battery(true);
            later(HOUR, Event::PlugsIn);
        }
        Event::PlugsIn => {
            simulation.machine.borrow_mut().set_battery(false);
            later(3 * HOUR, Event::Unplugs);
        }
        Event::SwapGoes => {
            let swap = simulation.machine.borrow().swap;
            if swap > 0 {
                simulation.machine.borrow_mut().set_swap(0);
                later(30 * MINUTE, Event::SwapComes(swap));
            }
        }
        Event::SwapComes(swap) => {
            simulation.machine.borrow_mut().set_swap(swap);
        }
        Event::SetsClock => {
            // Some hours; or days, as of a machine whose clock has no battery.
            let most = if simulation.actors.borrow_mut().chance(50) { 20_000 } else { 3 * 86_400 };
            let by = simulation.actors.borrow_mut().random.u64(0..most);
            let _ = match by % 2 {
                0 => simulation.clock.wall.fetch_add(by, Relaxed),
                _ => simulation.clock.wall.fetch_sub(by, Relaxed),
            };
        }
        Event::FileFails => {
            let which = simulation.actors.borrow_mut().random.usize(0..FAULTS.len());
            break_file(simulation, FAULTS[which], now);
            simulation.plan(MINUTE, Event::FileMended(FAULTS[which]));
        }
        Event::FileMended(file) => mend_file(simulation, file),
        Event::GroupFails(path) => {
            if simulation.machine.borrow_mut().set_readable(&path, false) {
                simulation.plan(MINUTE, Event::GroupMended(path));
            }
        }
        Event::GroupMended(path) => {
            simulation.machine.borrow_mut().set_readable(&path, true);
        }
        Event::CallsFail => {
            let which = simulation.actors.borrow_mut().random.usize(0..BURSTS.len());
            let (burst, time) = BURSTS[which];
            happen(simulation, Event::CallsFailBy(burst, time));
        }
        Event::CallsFailBy(burst, time) => {
            faults::set_burst(Some(burst));
            if burst == Burst::NoDescriptors {
                simulation.checks.borrow_mut().blind = Some(now);
            }
            later(time, Event::CallsWork);
        }
        Event::CallsWork => {
            faults::set_burst(None);
            simulation.checks.borrow_mut().blind = None;
        }
        Event::Restarts => {
            simulation.is_ending.set(true);
            if let Some(life) = simulation.life.borrow().as_ref() {
                life.worker.flag().set();
                life.aging.flag().set();
            }
            let mut checks = simulation.checks.borrow_mut();
            (checks.paused, checks.falls_asleep) = (None, None);
            drop(checks);
        }
        Event::Reloads => {
            if let Some(life) = simulation.life.borrow_mut().as_mut() {
                let _daemon = faults::daemon();
                life.daemon.reload();
            }
        }
        Event::Killed => {
            let mut checks = simulation.checks.borrow_mut();
            checks.killed();
            checks.paused = None;
            checks.falls_asleep = None;
            drop(checks);
            simulation.kill();
        }
        Event::PowerCut => {
            simulation.checks.borrow_mut().killed();
            simulation.is_off.set(true);
            simulation.kill();
        }
    }
}

/// The machine boots: nobody has said anything yet, and the last line of the ledger may be torn.
pub fn boot(simulation: &Simulation) {
    let mut checks = simulation.checks.borrow_mut();
    (checks.paused, checks.falls_asleep, checks.stalled) = (None, None, None);
    drop(checks);
    let path = simulation.machine.borrow().root.resolve(STATE).join("ledger.jsonl");
    let lost = simulation.actors.borrow_mut().random.u64(0..300);
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(path)
        && let Ok(metadata) = file.metadata()
    {
        file.set_len(metadata.len().saturating_sub(lost)).expect("a shorter file");
    }
}

fn set_load(simulation: &Simulation, path: &str, load: u64) {
    let mut machine = simulation.machine.borrow_mut();
    if let Some(index) = machine.groups.iter().position(|group| group.path == path) {
        machine.set_load(index, load);
    }
}

fn some_background(simulation: &Simulation) -> Option<usize> {
    let machine = simulation.machine.borrow();
    let is_background = |index: &usize| {
        let group = &machine.groups[*index];
        group.kind == Kind::Background && group.exists
    };
    let groups: Vec<usize> = (0..machine.groups.len()).filter(is_background).collect();
    let place = simulation.actors.borrow_mut().random.usize(0..groups.len().max(1));
    groups.get(place).copied()
}

/// Two programs run in each group, with all of its memory: one that a rule knows, and another.
fn start_processes(machine: &mut Machine, index: usize) {
    let blocks = machine.groups[index].blocks();
    machine.start_process(index, 0..blocks * 2 / 3, WORKER, None);
    machine.start_process(index, blocks * 2 / 3..blocks, OTHER, None);
}

fn some_process(simulation: &Simulation) -> Option<ProcessId> {
    let machine = simulation.machine.borrow();
    let place = simulation.actors.borrow_mut().random.usize(0..machine.processes.len().max(1));
    machine.processes.get(place).map(|process| process.id)
}

fn set_process_load(simulation: &Simulation, id: ProcessId, load: u64) {
    let mut machine = simulation.machine.borrow_mut();
    machine.process(id).into_iter().for_each(|index| machine.set_process_load(index, load));
}

/// Returns true if the daemon has taken the statement about a process that is there.
fn say_of_process(simulation: &Simulation, id: ProcessId, presence: Option<Presence>, said: Option<Nanos>) -> bool {
    let request = Request::Say { presence, subject: Subject::Process(id) };
    let Some(index) = simulation.machine.borrow().process(id) else { return false };
    let is_said = ask(simulation, request);
    if is_said {
        simulation.machine.borrow_mut().processes[index].said_foreground = said;
    }
    is_said
}

/// A group ends, and is made again under its name, or another one comes.
fn churn(simulation: &Simulation) {
    if let Some(index) = some_background(simulation) {
        let mut actors = simulation.actors.borrow_mut();
        let (again, mib) = (actors.chance(60), actors.random.u64(8..300));
        let pattern = PATTERNS[actors.random.usize(0..PATTERNS.len())];
        drop(actors);
        let mut machine = simulation.machine.borrow_mut();
        let path = machine.groups[index].path.clone();
        match again {
            true => {
                machine.add_group(&path, Kind::Background, mib, pattern);
                if simulation.actors.borrow().has_processes {
                    let last = machine.groups.len() - 1;
                    start_processes(&mut machine, last);
                }
            }
            false => machine.remove_group(index),
        }
    }
    let number = simulation.actors.borrow_mut().random.u64(0..8);
    let path = format!("system.slice/s{number}.service");
    let exists = simulation.machine.borrow().groups.iter().any(|group| group.path == path && group.exists);
    if !exists && simulation.actors.borrow_mut().chance(50) {
        simulation.machine.borrow_mut().add_group(&path, Kind::Background, 16 + 20 * number, PATTERNS[2]);
    }
}

/// Returns true if there is such a group, and the daemon knows it: a new one is there with the next
/// scan.
fn is_known(simulation: &Simulation, path: &str) -> bool {
    let exists = simulation.machine.borrow().groups.iter().any(|group| group.path == path && group.exists);
    let life = simulation.life.borrow();
    exists && life.as_ref().is_some_and(|life| life.daemon.world.tree.find(std::path::Path::new(path)).is_some())
}

/// Asks the daemon. Returns whether it has answered; it must, if there is one and no call has failed.
fn ask(simulation: &Simulation, request: Request) -> bool {
    let before = faults::count();
    let answer = match simulation.life.borrow_mut().as_mut() {
        Some(life) if !simulation.is_ending.get() => {
            let _daemon = faults::daemon();
            requests::answer(&mut life.daemon, request.clone())
        }
        _ => return false,
    };
    if let Err(err) = &answer
        && faults::count() == before
    {
        simulation.fail(format!("{request:?}: {err:#}"));
    }
    answer.is_ok()
}

fn says(simulation: &Simulation, path: String, now: Nanos) {
    let request = Request::Say { presence: Some(Presence::Foreground), subject: Subject::Group(path.clone()) };
    if is_known(simulation, &path) && ask(simulation, request) {
        let mut machine = simulation.machine.borrow_mut();
        machine
            .groups
            .iter_mut()
            .filter(|group| group.path == path)
            .for_each(|group| group.said_foreground = Some(now));
        drop(machine);
        plan_later(simulation, HOUR, Event::TakesBack(path));
    }
}

const STATE: &str = "var/lib/omr";
const AWAY: &str = "var/lib/away";

fn move_state(simulation: &Simulation, from: &str, to: &str) {
    let machine = simulation.machine.borrow();
    let (from, to) = (machine.root.resolve(from), machine.root.resolve(to));
    let _ = std::fs::remove_dir_all(&to);
    let _ = std::fs::rename(from, to);
}

fn set_away(simulation: &Simulation, is_away: bool) {
    let mut checks = simulation.checks.borrow_mut();
    checks.disk_is_away = is_away;
    checks.learning.replaced(&simulation.machine.borrow());
}

/// A directory in the place of the file: it cannot be read.
fn break_file(simulation: &Simulation, file: &'static str, now: Nanos) {
    let path = simulation.machine.borrow().root.resolve(file);
    if path.is_dir() {
        return;
    }
    simulation.machine.borrow_mut().forget(file);
    let _ = std::fs::remove_file(&path);
    std::fs::create_dir(&path).expect("a directory");
    // Ages come from the list of generations only, and pressure is one sign of several.
    let mut checks = simulation.checks.borrow_mut();
    match file {
        "proc/meminfo" | "proc/stat" => checks.unreadable = Some(now),
        // Page cache does not go there, and may leave.
        "proc/swaps" => checks.swaps_unreadable = Some(now),
        _ => {}
    }
}

fn mend_file(simulation: &Simulation, file: &'static str) {
    let path = simulation.machine.borrow().root.resolve(file);
    let _ = std::fs::remove_dir(&path);
    let mut machine = simulation.machine.borrow_mut();
    machine.show_all();
    drop(machine);
    let mut checks = simulation.checks.borrow_mut();
    (checks.unreadable, checks.swaps_unreadable) = (None, None);
}
