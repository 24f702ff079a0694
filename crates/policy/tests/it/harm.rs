//! Harm: the seconds that people wait in a day for memory that omr took, in a model of people,
//! services and pages, for both goals.
//!
//! Scenarios H1 to H14 are days in which sweeps could do harm. Two more cannot be told by the
//! policy: the kernel forgets which page cache it dropped, so that the refault guard sees a part of
//! the refaults only (H15), and `sync(2)` before a sweep (H16, the engine's). Names of groups, such
//! as those of virtual machines, are not the policy's either: H8 has a guest's memory only.

use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::cost::{CostFacts, Medium, Power};
use omr_policy::pace::Job;
use omr_policy::presence::{Facts, Sessions};
use omr_policy::threshold::{Interval, Promoted, STEPS, Slo, Step, Threshold};
use omr_policy::{
    Class, ColdAmount, ColdOnly, Config, CpuIdle, Decision, End, Finished, Goal, Group, Machine, Memory, Signals,
    State, Swap, decide,
};
use omr_units::{Bytes, GroupId, Monotonic, Permyriad};

use crate::desk::{millis, on_mains, seconds};

const TICK: u64 = 10;
const DAY: u64 = 86_400;
const HOUR: u64 = 3600;
const MINUTE: u64 = 60;
const PAGES: u64 = 256;

/// When memory is used: a time of the day, in seconds.
type Uses = fn(u64) -> bool;

/// Memory that is used together.
#[derive(Clone)]
struct Part {
    mib: u64,
    is_file: bool,
    uses: Uses,
    /// When it was last used.
    used: u64,
    /// MiB of it that are not in memory.
    out: u64,
}

fn anon(mib: u64, uses: Uses) -> Part {
    Part { mib, is_file: false, uses, used: 0, out: 0 }
}

fn file(mib: u64, uses: Uses) -> Part {
    Part { is_file: true, ..anon(mib, uses) }
}

/// A machine and its day.
#[derive(Clone)]
struct Scenario {
    name: &'static str,
    gib: u64,
    swap_gib: u64,
    medium: Medium,
    power: Power,
    groups: Vec<Vec<Part>>,
    /// The share of one CPU that is used, in percent, at a time of the day.
    load: fn(u64) -> u64,
    /// Time since the last input of somebody; `None`: nobody is logged in.
    input: fn(u64) -> Option<u64>,
    /// A program holds an idle inhibitor.
    inhibited: Uses,
    /// The last day counts, and so does the first one by itself.
    days: u64,
}

/// What a day cost.
#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    /// How long somebody waited for pages that came back.
    waited: Duration,
    /// The same on the first day, on which thresholds are learned.
    on_first_day: Duration,
    /// MiB that were written to swap on disk.
    written: u64,
    /// The least free swap, in MiB.
    least_swap: u64,
}

struct Model {
    scenario: Scenario,
    config: Config,
    state: State,
    thresholds: Vec<Threshold>,
    promoted: Vec<[u64; STEPS]>,
    refaults: Vec<u64>,
    swap: (u64, u64),
    cost: Cost,
    running: Option<(GroupId, Job, u64)>,
}

impl Model {
    fn new(scenario: &Scenario, goal: Goal) -> Self {
        let config = Config { goal, ..Config::default() };
        let slo = config.slo.slo(scenario.medium != Medium::Memory, Bytes::kib(4));
        let groups = scenario.groups.len();
        let swap = scenario.swap_gib * 1024;
        Model {
            config,
            state: State::default(),
            thresholds: vec![Threshold::new(&slo); groups],
            promoted: vec![[0; STEPS]; groups],
            refaults: vec![0; groups],
            swap: (swap, swap),
            cost: Cost { least_swap: swap, ..Cost::default() },
            running: None,
            scenario: scenario.clone(),
        }
    }

    fn slo(&self) -> Slo {
        self.config.slo.slo(self.scenario.medium != Medium::Memory, Bytes::kib(4))
    }

    /// A page that comes back: how long somebody waits.
    fn page(&self) -> Duration {
        match self.scenario.medium {
            Medium::Memory => Duration::from_micros(10),
            Medium::Rotational => millis(8),
            _ => Duration::from_micros(200),
        }
    }

    /// People and services use their memory. Returns how long they wait.
    fn live(&mut self, now: u64) -> Duration {
        let (page, mut waited) = (self.page(), Duration::ZERO);
        for (index, group) in self.scenario.groups.iter_mut().enumerate() {
            for part in group.iter_mut().filter(|part| (part.uses)(now % DAY)) {
                let age = now - part.used;
                for (promoted, step) in self.promoted[index].iter_mut().zip(Step::all()) {
                    *promoted += if !part.is_file && step.age().as_secs() <= age { part.mib } else { 0 };
                }
                waited += page * u32::try_from(part.out * PAGES).expect("small");
                self.refaults[index] += part.out;
                self.swap.1 += if part.is_file { 0 } else { part.out };
                (part.out, part.used) = (0, now);
            }
        }
        waited
    }

    fn group(&self, index: usize, now: u64) -> Group {
        let parts = &self.scenario.groups[index];
        let sum = |of: &dyn Fn(&Part) -> bool| {
            Bytes::mib(parts.iter().filter(|part| of(part)).map(|part| part.mib - part.out).sum())
        };
        let age = self.thresholds[index].step().age();
        let cold = sum(&|part| !part.is_file && Duration::from_secs(now - part.used) >= age);
        let current = sum(&|_| true);
        Group {
            id: GroupId(index as u64),
            class: Class::Background,
            current: Some(current),
            swap_backed: Some(sum(&|part| !part.is_file)),
            page_cache: Some(sum(&|part| part.is_file)),
            refaults: Some(Bytes::mib(self.refaults[index])),
            unprotected: Some(current),
            keep: None,
            cold_only: (self.config.goal == Goal::Auto).then_some(ColdOnly {
                threshold: None,
                min_age: age,
                cold: ColdAmount::Known { bytes: cold },
                learned: true,
            }),
        }
    }

    fn machine(&self, now: u64, waited: Duration) -> Machine {
        let (scenario, dt) = (&self.scenario, seconds(TICK));
        let time = now % DAY;
        let load = (scenario.load)(time);
        let resident = |part: &Part| if part.is_file { 0 } else { part.mib - part.out };
        let used: u64 = scenario.groups.iter().flatten().map(resident).sum();
        let total = scenario.gib * 1024;
        let facts = Facts {
            local: Sessions {
                active: u32::from((scenario.input)(time).is_some()),
                idle: (scenario.input)(time).map(Duration::from_secs),
            },
            inhibited: (scenario.inhibited)(time),
            ..Facts::default()
        };
        Machine {
            dt,
            cpus: 8,
            least_idle: Some(CpuIdle { cpu: 0, idle: Permyriad::percent(90) }),
            load: Some(dt * u32::try_from(load).expect("small") / 100),
            foreground: Some(Duration::ZERO),
            stall_cpu: Some(Duration::ZERO),
            stall_io: Some(waited.min(dt)),
            stall_memory: Some(waited.min(dt)),
            swap: Some(Swap {
                total: Bytes::mib(self.swap.0),
                free: Bytes::mib(self.swap.1),
                on_disk: scenario.medium != Medium::Memory,
                free_outside_image: Bytes::ZERO,
            }),
            memory: Some(Memory { total: Bytes::mib(total), available: Bytes::mib(total.saturating_sub(used + 512)) }),
            presence: Some(facts),
            file_only: true,
            cost: CostFacts { power: scenario.power, ..on_mains(scenario.medium) },
            ..Machine::default()
        }
    }

    /// Takes the oldest memory of a group, as far as the job goes. Returns MiB.
    fn take(&mut self, id: GroupId, most: u64, floor: u64, now: u64) -> u64 {
        let index = usize::try_from(id.0).expect("small");
        let auto = self.config.goal == Goal::Auto;
        let age = self.thresholds[index].step().age().as_secs();
        let parts = &mut self.scenario.groups[index];
        let mut order: Vec<&mut Part> =
            parts.iter_mut().filter(|part| !auto || !part.is_file && now - part.used >= age).collect();
        order.sort_by_key(|part| (part.used, !part.is_file));
        let mut left = most;
        for part in order {
            let taken = (part.mib - part.out).min(left).min(if part.is_file {
                u64::MAX
            } else {
                self.swap.1.saturating_sub(floor)
            });
            part.out += taken;
            left -= taken;
            if !part.is_file {
                self.swap.1 -= taken;
                self.cost.written += if self.scenario.medium == Medium::Memory { 0 } else { taken };
            }
        }
        self.cost.least_swap = self.cost.least_swap.min(self.swap.1);
        most - left
    }

    fn tick(&mut self, now: u64) {
        let waited = self.live(now);
        self.cost.waited += waited;
        let groups: Vec<Group> = (0..self.thresholds.len()).map(|index| self.group(index, now)).collect();
        // An hour after boot.
        let at = Monotonic(0) + seconds(now + HOUR);
        let signals = Signals { now: at, hour: 500_000 + now / HOUR, slept: false, machine: self.machine(now, waited) };
        match decide(&self.config, &mut self.state, &signals, &groups) {
            Decision::Sweep { id, job, .. } => self.running = Some((id, job, 0)),
            Decision::Stop { .. } => self.end(at, signals.hour, End::Stopped, now),
            Decision::Continue { .. } | Decision::Hold { .. } => {}
        }
        // 200 MB a second.
        if let Some((id, job, taken)) = self.running.clone() {
            let wanted = (job.amount.0 >> 20).saturating_sub(taken).min(2000);
            let got = self.take(id, wanted, job.swap_floor.0 >> 20, now);
            self.running = Some((id, job, taken + got));
            if got < wanted || wanted < 2000 {
                self.end(at, signals.hour, End::Complete, now);
            }
        }
        if self.config.goal == Goal::Auto && now.is_multiple_of(MINUTE) {
            self.learn(now);
        }
    }

    fn end(&mut self, at: Monotonic, hour: u64, end: End, now: u64) {
        let Some((id, _, taken)) = self.running.take() else { return };
        let group = self.group(usize::try_from(id.0).expect("small"), now);
        self.state.spent(at, millis(2 * taken));
        let swap_writes = if self.scenario.medium == Medium::Memory { Bytes::ZERO } else { Bytes::mib(taken) };
        let finished =
            Finished { id, size: group.current.unwrap_or_default(), refaults: group.refaults, swap_writes, end };
        self.state.finished(&self.config, at, hour, &finished);
    }

    /// The thresholds see what was promoted in the last minute.
    fn learn(&mut self, now: u64) {
        let slo = self.slo();
        for (index, threshold) in self.thresholds.iter_mut().enumerate() {
            let promoted = core::mem::take(&mut self.promoted[index]);
            let exact = |mib: u64| Bounds { least: Bytes::mib(mib), most: Bytes::mib(mib) };
            let parts = &self.scenario.groups[index];
            let in_use = parts.iter().filter(|part| !part.is_file && now - part.used <= 120).map(|part| part.mib).sum();
            let seen = Interval {
                length: seconds(MINUTE),
                size: Bytes::mib(parts.iter().map(|part| part.mib).sum()),
                promoted: Step::all()
                    .zip(promoted)
                    .map(|(step, mib)| Promoted { age: step.age(), bytes: exact(mib) })
                    .collect(),
                swapped_in: Bytes::ZERO,
                working_set: Some(Bytes::mib(in_use)),
                stalled: Some(Permyriad::ZERO),
                write_budget_used: false,
                swap_at_floor: false,
            };
            threshold.observe(&slo, &seen);
        }
    }

    fn run(mut self) -> Cost {
        for day in 0..self.scenario.days {
            self.cost = Cost { waited: Duration::ZERO, written: 0, ..self.cost };
            for tick in 0..DAY / TICK {
                self.tick(day * DAY + tick * TICK);
            }
            if day == 0 {
                self.cost.on_first_day = self.cost.waited;
            }
        }
        self.cost
    }
}

fn always(_: u64) -> bool {
    true
}

fn never(_: u64) -> bool {
    false
}

/// Once in this time.
fn every<const SECONDS: u64>(time: u64) -> bool {
    time % SECONDS < TICK
}

/// Eight hours of work at a desk: five minutes of work, two of reading.
fn desk(time: u64) -> bool {
    (8 * HOUR..16 * HOUR).contains(&time) && time % 420 < 300
}

/// The input that belongs to it, and ten more hours without.
fn input_at_desk(time: u64) -> Option<u64> {
    match time {
        _ if time < 8 * HOUR => Some(time + 8 * HOUR),
        _ if time < 16 * HOUR => Some((time % 420).saturating_sub(300)),
        _ => Some(time - 16 * HOUR),
    }
}

/// Work from eight to four, without a break.
fn office(time: u64) -> bool {
    (8 * HOUR..16 * HOUR).contains(&time)
}

/// Ten minutes of work, two minutes of coffee.
fn coffee(time: u64) -> bool {
    office(time) && time % 720 < 600
}

/// A game: an hour, a break of 20 minutes.
fn game(time: u64) -> bool {
    (18 * HOUR..22 * HOUR).contains(&time) && time % 4800 < 3600
}

/// A laptop of 16 GiB with 9 GiB available, on which a person works by times that `work` tells.
fn laptop(name: &'static str, work: Uses) -> Scenario {
    Scenario {
        name,
        gib: 16,
        swap_gib: 16,
        medium: Medium::Ssd,
        power: Power::Mains,
        groups: vec![
            vec![anon(2000, work), anon(1000, never), file(500, work)],
            vec![anon(1500, work), file(300, work)],
            vec![anon(500, work), anon(500, every::<3600>), file(200, every::<1800>)],
        ],
        load: |time| if desk(time) { 300 } else { 10 },
        input: input_at_desk,
        inhibited: never,
        days: 1,
    }
}

/// A server that nobody has logged in to.
fn server(name: &'static str, gib: u64, groups: Vec<Vec<Part>>) -> Scenario {
    let base = laptop(name, never);
    Scenario { gib, swap_gib: gib, groups, load: |_| 40, input: |_| None, ..base }
}

/// The same machine with less memory: 5 of 10 GiB are used, and half should be available.
fn scarce(scenario: Scenario) -> Scenario {
    Scenario { gib: 9, swap_gib: 9, days: 2, ..scenario }
}

fn scenarios() -> Vec<Scenario> {
    let playing = |name, load, inhibited| Scenario {
        load,
        inhibited,
        input: |time| Some(time % 7200),
        ..laptop(name, every::<1200>)
    };
    let mut ssh = server(
        "H5 ssh, rotating disk",
        16,
        vec![vec![anon(20, every::<60>)], vec![anon(2000, never), anon(400, every::<600>)]],
    );
    ssh.medium = Medium::Rotational;
    ssh.input = |time| Some(time % 60);
    let caches = |mib, n| (0..n).map(move |_| file(mib, every::<600>));
    let postgres = caches(1000, 20).chain([anon(4000, every::<120>), anon(500, always)]).collect();
    let heap = || vec![anon(2000, always), anon(6000, every::<3600>), anon(2000, never)];
    vec![
        laptop("H1 reads", desk),
        scarce(laptop("H1 reads, little memory", desk)),
        playing("H2 video", |_| 60, always),
        playing("H3 call", |_| 150, always),
        playing("H4 music", |_| 2, never),
        ssh,
        server("H6 PostgreSQL", 64, vec![postgres]),
        Scenario { days: 2, ..server("H7 JVM, little memory", 16, vec![heap()]) },
        Scenario {
            days: 2,
            ..server(
                "H8 guest, little memory",
                16,
                vec![vec![anon(3000, always), anon(3000, every::<1200>), anon(4000, every::<3600>)]],
            )
        },
        Scenario {
            groups: vec![vec![anon(8000, game)], vec![anon(800, game)]],
            load: |time| if game(time) { 400 } else { 5 },
            input: |time| Some(if game(time) { 0 } else { time % 4800 }),
            days: 2,
            ..laptop("H9 game", game)
        },
        Scenario {
            load: |time| if coffee(time) { 300 } else { 5 },
            input: |time| Some(if coffee(time) { 0 } else { time % 720 }),
            ..laptop("H10 coffee", coffee)
        },
        Scenario { load: |time| if office(time) { 300 } else { 5 }, days: 2, ..laptop("H11 overnight", office) },
        Scenario { power: Power::Battery, ..laptop("H12 battery", desk) },
        Scenario { medium: Medium::Card, ..scarce(laptop("H13 memory card", desk)) },
        Scenario { swap_gib: 2, ..scarce(laptop("H14 alarms", desk)) },
    ]
}

/// The seconds that people wait in a day: with `goal = "auto"` at most, on the first day and then,
/// and with `goal = "free"` at least.
const BOUNDS: [(&str, u64, u64, u64); 15] = [
    ("H1 reads", 0, 0, 1000),
    ("H1 reads, little memory", 120, 40, 500),
    ("H2 video", 0, 0, 1000),
    ("H3 call", 0, 0, 1000),
    ("H4 music", 0, 0, 1000),
    ("H5 ssh, rotating disk", 0, 0, 10_000),
    ("H6 PostgreSQL", 0, 0, 5000),
    ("H7 JVM, little memory", 300, 10, 500),
    ("H8 guest, little memory", 300, 10, 500),
    // Nobody plays for 20 hours, so no threshold tells that the game will be used again.
    ("H9 game", 250, 250, 800),
    ("H10 coffee", 0, 0, 800),
    ("H11 overnight", 0, 0, 500),
    ("H12 battery", 0, 0, 1000),
    ("H13 memory card", 120, 40, 500),
    ("H14 alarms", 120, 40, 300),
];

#[test]
fn goal_auto_costs_people_little_where_goal_free_costs_much() {
    let run = |scenario: &Scenario| [Goal::Auto, Goal::Free].map(|goal| Model::new(scenario, goal).run());
    let scenarios = scenarios();
    let (one, two) = scenarios.split_at(scenarios.len() / 2);
    let costs: Vec<[Cost; 2]> = std::thread::scope(|scope| {
        let other = scope.spawn(|| two.iter().map(run).collect::<Vec<_>>());
        let one: Vec<_> = one.iter().map(run).collect();
        one.into_iter().chain(other.join().expect("no panic")).collect()
    });
    println!("seconds waited a day            auto, first    auto     free; GiB written: auto  free");
    for (scenario, [auto, free]) in scenarios.iter().zip(&costs) {
        let gib = |mib: u64| format!("{}.{}", mib / 1024, mib % 1024 * 10 / 1024);
        println!(
            "{:28} {:14} {:7} {:8} {:19} {:>5}",
            scenario.name,
            auto.on_first_day.as_secs(),
            auto.waited.as_secs(),
            free.waited.as_secs(),
            gib(auto.written),
            gib(free.written)
        );
    }
    for ((scenario, [auto, free]), (name, first, most, least)) in scenarios.iter().zip(costs).zip(BOUNDS) {
        assert_eq!(scenario.name, name);
        assert!(auto.on_first_day <= seconds(first) && auto.waited <= seconds(most), "{name}: {auto:?}");
        assert!(free.waited >= seconds(least), "the control {name}: {free:?}");
        let swap = scenario.swap_gib * 1024;
        match &name[..3] {
            "H12" => assert!(auto.written == 0 && free.written > 10_000, "{auto:?} {free:?}"),
            "H13" => assert!(auto.written <= 512 && free.written > 5000, "{auto:?} {free:?}"),
            "H14" => assert!(auto.least_swap >= swap * 3 / 10 && free.least_swap < swap / 5, "{auto:?} {free:?}"),
            _ => {}
        }
    }
}
