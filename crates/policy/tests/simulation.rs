//! The whole loop (`decide`, then `Pace` under a `Watch`, then `State::finished`) against a model of a
//! kernel and of the people who use the machine, for thousands of machine-hours, with faults.
//!
//! Everything follows from a seed. What must hold is checked where it happens, and each check has a
//! test in which the loop is broken on purpose and the check must see it.
#![allow(missing_docs)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::collections::BTreeMap;
use std::time::Duration;

use omr_policy::pace::{Job, Next, Pace, SMALLEST_STEP, Seen};
use omr_policy::stop::Watch;
use omr_policy::{
    Class, Config, CpuIdle, Decision, End, Finished, Group, Machine, Reason, Signals, State, Swap, decide,
};
use omr_units::{Amount, Budget, Bytes, GroupId, Monotonic, Permyriad};

const MIB: u64 = 1 << 20;
/// More than the smallest step needs for all of the largest group.
const MOST_WRITES: u32 = 10_000;
const BUDGET: Bytes = Bytes::mib(1500);

/// How the loop is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    No,
    EverythingIsBackground,
    NothingIsProtected,
    TheWatchIsDeaf,
    WritesAreForgotten,
    SwapLooksFree,
    NothingIsEverDone,
    UnknownIsZero,
    SleepIsNotNoticed,
    RefaultsAreNotSeen,
    OneLargeWrite,
    EndsAreIgnored,
    Paused,
}

/// xorshift64*.
struct Chance(u64);

impl Chance {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.bits() >> 11) % n
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Once in `n`.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A time to the next of events that come at random, so often.
    fn soon(&mut self, mean: Duration) -> Duration {
        let uniform = (self.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
        mean.mul_f64(-uniform.ln())
    }
}

/// A control group of the model.
struct Cell {
    id: GroupId,
    class: Class,
    since: Monotonic,
    /// Resident: used all the time, or not.
    hot_anon: u64,
    cold_anon: u64,
    hot_file: u64,
    cold_file: u64,
    /// Resident copies of what is in swap: on their way to the disk, and there.
    in_flight: u64,
    clean: u64,
    /// In swap, or dropped.
    swapped_hot: u64,
    swapped_cold: u64,
    dropped_hot: u64,
    refaults: u64,
    /// `memory.low`.
    low: u64,
    keep: u64,
    /// Cold memory that is added each second, up to a limit; then half of it is freed.
    growth: u64,
    most: u64,
    /// When it will use what is cold now.
    wakes: Monotonic,
    /// End of its last sweep, refaults then, and whether that sweep did harm.
    swept: Option<(Monotonic, u64, bool)>,
    harm: Vec<Monotonic>,
}

impl Cell {
    fn new(id: u64, now: Monotonic, chance: &mut Chance) -> Self {
        let class = match chance.below(6) {
            0 => Class::Foreground,
            1 => Class::Protected,
            _ => Class::Background,
        };
        let hot = if chance.once_in(3) { 200 } else { 20 };
        Cell {
            id: GroupId(id),
            class,
            since: now,
            hot_anon: chance.below(hot) * MIB,
            cold_anon: chance.below(600) * MIB,
            hot_file: chance.below(hot) * MIB,
            cold_file: chance.below(300) * MIB,
            in_flight: 0,
            clean: 0,
            swapped_hot: 0,
            swapped_cold: 0,
            dropped_hot: 0,
            refaults: 0,
            low: if chance.once_in(4) { chance.below(300) * MIB } else { 0 },
            keep: if chance.once_in(4) { chance.below(300) * MIB } else { 0 },
            growth: [0, 0, 4096, MIB / 8, 8 * MIB][chance.below(5) as usize],
            most: chance.between(300, 900) * MIB,
            wakes: now + chance.soon(Duration::from_secs(3 * 3600)),
            swept: None,
            harm: Vec::new(),
        }
    }

    fn current(&self) -> u64 {
        self.hot_anon + self.cold_anon + self.hot_file + self.cold_file + self.in_flight + self.clean
    }

    fn swap_used(&self) -> u64 {
        self.swapped_hot + self.swapped_cold
    }

    fn live(&mut self, now: Monotonic, dt: Duration, swap_free: &mut u64, chance: &mut Chance) {
        let seconds = dt.as_secs_f64();
        if now >= self.wakes {
            // It uses everything it has, and something else is cold afterwards.
            (self.swapped_hot, self.swapped_cold) = (self.swapped_hot + self.swapped_cold, 0);
            self.wakes = now + chance.soon(Duration::from_secs(3 * 3600));
        }
        if self.swapped_hot > 0 || self.dropped_hot > 0 {
            let back = 1.0 - (-seconds / 20.0).exp();
            let part = |bytes: u64| if bytes < MIB { bytes } else { (bytes as f64 * back) as u64 };
            let (anon, file) = (part(self.swapped_hot), part(self.dropped_hot));
            self.swapped_hot -= anon;
            self.dropped_hot -= file;
            // A copy that is still there is no refault.
            let copies = anon.min(self.clean);
            self.clean -= copies;
            *swap_free += anon;
            self.hot_anon += anon;
            self.hot_file += file;
            self.refaults += anon - copies + file;
        } else if self.hot_anon > 200 * MIB {
            // What is not used for a while cools down.
            let cooled = self.hot_anon - 20 * MIB;
            self.hot_anon -= cooled;
            self.cold_anon += cooled;
        }
        if self.growth > 0 {
            self.cold_anon += (self.growth as f64 * seconds) as u64;
            if self.current() + self.swapped_cold > self.most {
                *swap_free += self.swapped_cold / 2;
                self.swapped_cold -= self.swapped_cold / 2;
                self.cold_anon /= 2;
            }
        }
        if let Some((ended, base, false)) = self.swept
            && now.since(ended) < Duration::from_secs(60)
            && self.refaults - base > 10 * MIB
        {
            self.swept = Some((ended, base, true));
            self.harm.push(now);
        }
    }
}

/// Somebody works: from, until, and with so much of a CPU.
#[derive(Clone, Copy)]
struct Work {
    from: Monotonic,
    until: Monotonic,
    percent: u64,
}

/// The machine and its kernel.
struct Model {
    now: Monotonic,
    /// Seconds since 1970, and how far the clock is behind.
    wall: u64,
    behind: u64,
    chance: Chance,
    cpus: u32,
    cells: Vec<Cell>,
    born: u64,
    swap: u64,
    /// Other programs fill and empty swap, too.
    swap_free: u64,
    on_disk: bool,
    /// Bytes a second.
    disk: u64,
    /// Linux 6.1 frees twice what it is asked for, and cannot be told to leave swap alone.
    old: bool,
    steady: u64,
    work: Work,
    pause: Duration,
    length: Duration,
    /// CPU time so far.
    used: Duration,
    foreground: Duration,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = chance.bits());
        let now = Monotonic(0) + Duration::from_secs(chance.below(600));
        let cells: Vec<_> = (1..=chance.between(2, 7)).map(|id| Cell::new(id, now, &mut chance)).collect();
        let swap = [0, 300, 1500, 4000][chance.below(4) as usize] * MIB;
        let mean = |chance: &mut Chance, from, to| Duration::from_secs(chance.between(from, to));
        let (pause, length) = (mean(&mut chance, 20, 1200), mean(&mut chance, 1, 300));
        let from = now + chance.soon(pause);
        Model {
            now,
            wall: 1_700_000_000,
            behind: 0,
            cpus: chance.between(1, 9) as u32,
            born: cells.len() as u64,
            cells,
            swap,
            swap_free: swap,
            on_disk: chance.once_in(2),
            disk: chance.between(1, 200) * 1_000_000,
            old: chance.once_in(4),
            steady: chance.below(12),
            work: Work { from, until: from, percent: 100 },
            pause,
            length,
            used: Duration::ZERO,
            foreground: Duration::ZERO,
            chance,
        }
    }

    fn cell(&mut self, id: GroupId) -> Option<&mut Cell> {
        self.cells.iter_mut().find(|cell| cell.id == id)
    }

    /// A group goes, another comes.
    fn remove(&mut self, id: GroupId) {
        self.born += 1;
        let new = Cell::new(self.born, self.now, &mut self.chance);
        if let Some(cell) = self.cell(id) {
            let freed = cell.swap_used();
            *cell = new;
            self.swap_free += freed;
        }
    }

    /// What the clock shows.
    fn hour(&self) -> u64 {
        (self.wall - self.behind) / 3600
    }

    fn writeback(&self) -> u64 {
        self.cells.iter().map(|cell| cell.in_flight).sum()
    }

    fn advance(&mut self, to: Monotonic) {
        let dt = to.since(self.now);
        if dt.is_zero() {
            return;
        }
        let mut at = self.now;
        while at < to {
            if at >= self.work.until {
                let from = self.work.until.max(at) + self.chance.soon(self.pause);
                let until = from + self.chance.soon(self.length) + Duration::from_millis(200);
                self.work = Work { from, until, percent: self.chance.between(60, 101) };
            }
            let end = self.work.until.min(to);
            let active = end.since(self.work.from.max(at)) * self.work.percent as u32 / 100;
            self.foreground += active;
            self.used += active;
            at = end;
        }
        self.used += dt * self.steady as u32 / 100;
        let mut disk = (self.disk as f64 * dt.as_secs_f64()) as u64;
        for cell in &mut self.cells {
            let done = cell.in_flight.min(disk);
            disk -= done;
            cell.in_flight -= done;
            // What came back meanwhile has no copy to collect any more.
            cell.clean = (cell.clean + done).min(cell.swapped_hot + cell.swapped_cold);
            cell.live(to, dt, &mut self.swap_free, &mut self.chance);
        }
        self.swap_free = self.swap_free.min(self.swap);
        self.now = to;
    }

    /// One write to `memory.reclaim`: what was freed and what went to swap.
    fn reclaim(&mut self, id: GroupId, asked: u64, file_only: bool) -> (u64, u64) {
        let (old, on_disk) = (self.old, self.on_disk);
        let mut swap_free = if file_only { 0 } else { self.swap_free };
        // Measured: 1.2 for 1 MiB, 1.5 for 4 MiB, everything for 64 MiB.
        let overshoot = 1.0 + asked as f64 / (8 * MIB) as f64;
        let Some(cell) = self.cell(id) else { return (0, 0) };
        let asked = if old { 2 * asked } else { asked };
        let mut left = asked;
        let take = |from: &mut u64, most: u64| {
            let taken = most.min(*from);
            *from -= taken;
            taken
        };
        left -= take(&mut cell.clean, left);
        left -= take(&mut cell.cold_file, left);
        let mut out = 0;
        for hot in [false, true] {
            let (from, to) = match hot {
                false => (&mut cell.cold_anon, &mut cell.swapped_cold),
                true => (&mut cell.hot_anon, &mut cell.swapped_hot),
            };
            let want = if on_disk { (left as f64 * overshoot) as u64 } else { left };
            let moved = take(from, want.min(swap_free));
            *to += moved;
            swap_free -= moved;
            out += moved;
            if on_disk {
                cell.in_flight += moved;
                left -= moved.min(left);
            } else {
                left -= moved;
            }
        }
        if on_disk {
            // Sent out, but not freed.
            left += out.min(left + out);
        }
        let hot = take(&mut cell.hot_file, left.min(asked));
        cell.dropped_hot += hot;
        let freed = asked.saturating_sub(left.saturating_sub(hot));
        self.swap_free -= out;
        (freed, out)
    }
}

enum Worker {
    Ready,
    Waiting { until: Monotonic },
    Writing { until: Monotonic, took: Duration, bytes: Bytes, file_only: bool, seen: Seen },
}

struct Running {
    id: GroupId,
    job: Job,
    pace: Pace,
    watch: Watch,
    worker: Worker,
    stop: bool,
    began: Monotonic,
    sampled: (Monotonic, Duration),
    sample_at: Monotonic,
    written: u64,
    writes: u32,
}

#[derive(Default)]
struct Report {
    hours: u64,
    sweeps: u64,
    stops: u64,
    freed: u64,
    swapped: u64,
    faults: u64,
    ends: BTreeMap<&'static str, u64>,
    /// What was violated, and how often.
    violations: BTreeMap<&'static str, (u64, String)>,
    digest: u64,
}

impl Report {
    fn violate(&mut self, law: &'static str, holds: bool, words: impl FnOnce() -> String) {
        if !holds {
            self.violations.entry(law).or_insert_with(|| (0, words())).0 += 1;
        }
    }

    fn add(&mut self, other: Report) {
        self.hours += other.hours;
        self.sweeps += other.sweeps;
        self.stops += other.stops;
        self.freed += other.freed;
        self.swapped += other.swapped;
        self.faults += other.faults;
        self.digest = self.digest.rotate_left(7) ^ other.digest;
        for (end, n) in other.ends {
            *self.ends.entry(end).or_default() += n;
        }
        for (law, (n, words)) in other.violations {
            self.violations.entry(law).or_insert((0, words)).0 += n;
        }
    }
}

struct Loop {
    broken: Broken,
    config: Config,
    state: State,
    model: Model,
    running: Option<Running>,
    report: Report,
    period: Duration,
    last: (Monotonic, Duration, Duration, u64),
    tick_at: Monotonic,
    /// The signal that is missing, and for how many ticks.
    missing: (u64, u64),
    awake: Option<Monotonic>,
    begun: Vec<Monotonic>,
    /// When, and bytes to swap on disk.
    written: Vec<(u64, u64)>,
}

impl Loop {
    fn new(seed: u64, broken: Broken) -> Self {
        let model = Model::new(seed);
        let mut config = Config::default();
        config.guard.max_swap_writes = Some(Budget { bytes: BUDGET, hours: 24 });
        let mut state = State::default();
        if broken == Broken::Paused {
            state.pause(model.now, None);
        }
        let period = Duration::from_secs([1, 5, 10, 10, 5, 10, 5, 10][(seed % 8) as usize]);
        Loop {
            broken,
            config,
            state,
            running: None,
            report: Report::default(),
            period,
            last: (model.now, model.used, model.foreground, 0),
            tick_at: model.now + period,
            missing: (0, 0),
            awake: None,
            begun: Vec::new(),
            written: Vec::new(),
            model,
        }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }

    fn run(mut self, hours: u64) -> Report {
        let end = self.model.now + Duration::from_secs(hours * 3600);
        while self.model.now < end {
            let mut next = self.tick_at;
            if let Some(running) = &self.running {
                next = next.min(running.sample_at);
                next = match running.worker {
                    Worker::Ready => self.model.now,
                    Worker::Waiting { until } | Worker::Writing { until, .. } => next.min(until),
                };
            }
            self.model.advance(next);
            if self.running.as_ref().is_some_and(|running| running.sample_at <= self.model.now) {
                self.sample();
            }
            if self.running.is_some() {
                self.work();
            }
            if self.tick_at <= self.model.now {
                self.tick();
            }
        }
        self.report.hours = hours;
        let harm = self.model.cells.iter().flat_map(|cell| cell.harm.iter());
        self.report.digest =
            harm.fold(self.report.freed ^ self.report.swapped.rotate_left(32), |sum, at| sum.rotate_left(5) ^ at.0);
        self.report
    }

    fn faults(&mut self) -> bool {
        let chance = &mut self.model.chance;
        let per_hour = 3600 / self.period.as_secs();
        if self.missing.1 > 0 {
            self.missing.1 -= 1;
        } else if chance.once_in(per_hour) {
            self.missing = (chance.below(6), chance.between(1, 20));
            self.report.faults += 1;
        }
        if chance.once_in(6 * per_hour) {
            let gone = chance.below(self.model.cells.len() as u64) as usize;
            self.model.remove(self.model.cells[gone].id);
            self.report.faults += 1;
        }
        let chance = &mut self.model.chance;
        if chance.once_in(2 * per_hour) {
            // Somebody turns to something else.
            let place = chance.below(self.model.cells.len() as u64) as usize;
            let cell = &mut self.model.cells[place];
            if cell.class != Class::Protected {
                cell.class = if cell.class == Class::Background { Class::Foreground } else { Class::Background };
                cell.since = self.model.now;
            }
        }
        if chance.once_in(3 * per_hour) {
            let others = chance.below(self.model.swap_free + 1);
            self.model.swap_free = if chance.once_in(2) {
                others
            } else {
                self.model.swap - self.model.cells.iter().map(Cell::swap_used).sum::<u64>().min(self.model.swap)
            };
            self.report.faults += 1;
        }
        if chance.once_in(8 * per_hour) {
            // The clock is set back. Forward it looks as if time had passed, and nobody can tell.
            self.model.behind += chance.below(100_000);
        }
        let slept = chance.once_in(6 * per_hour);
        if slept {
            self.model.wall += chance.below(12 * 3600);
            self.awake = Some(self.model.now);
            self.report.faults += 1;
        }
        slept
    }

    fn groups(&self) -> Vec<Group> {
        let known = Bytes;
        self.model
            .cells
            .iter()
            .map(|cell| Group {
                id: cell.id,
                class: if self.is(Broken::EverythingIsBackground) { Class::Background } else { cell.class },
                current: Some(known(cell.current())),
                swap_backed: Some(known(cell.hot_anon + cell.cold_anon + cell.in_flight + cell.clean)),
                page_cache: Some(known(cell.hot_file + cell.cold_file)),
                refaults: Some(known(if self.is(Broken::RefaultsAreNotSeen) { 0 } else { cell.refaults })),
                unprotected: Some(known(if self.is(Broken::NothingIsProtected) {
                    cell.current()
                } else {
                    cell.current().saturating_sub(cell.low)
                })),
                keep: (cell.keep > 0 && !self.is(Broken::NothingIsProtected))
                    .then_some(Amount::Bytes(known(cell.keep))),
                by_age: None,
            })
            .collect()
    }

    fn swap_free(&self) -> Bytes {
        Bytes(if self.is(Broken::SwapLooksFree) { self.model.swap } else { self.model.swap_free })
    }

    fn tick(&mut self) {
        let slept = self.faults();
        let (at, used, foreground, refaults) = self.last;
        let model = &self.model;
        let now = model.now;
        let came_back: u64 = model.cells.iter().map(|cell| cell.refaults).sum();
        let dt = now.since(at);
        let busy = (model.foreground.saturating_sub(foreground)).as_secs_f64() / dt.as_secs_f64();
        let mut machine = Machine {
            dt,
            cpus: model.cpus,
            least_idle: Some(CpuIdle { cpu: 0, idle: Permyriad(((1.0 - busy) * 10_000.0) as u32) }),
            load: Some(model.used.saturating_sub(used)),
            foreground: Some(model.foreground.saturating_sub(foreground)),
            stall_cpu: Some(Duration::ZERO),
            stall_io: Some(Duration::ZERO),
            // A millisecond for each MiB that comes back.
            stall_memory: Some(Duration::from_millis(came_back.saturating_sub(refaults) / MIB).min(dt)),
            memory: None,
            swap: Some(Swap {
                total: Bytes(model.swap),
                free: self.swap_free(),
                on_disk: model.on_disk,
                beside: Bytes::ZERO,
            }),
            image: None,
            file_only: !model.old,
        };
        self.last = (now, model.used, model.foreground, came_back);
        let missing = (self.missing.1 > 0).then_some(self.missing.0);
        if !self.is(Broken::UnknownIsZero) {
            match missing {
                Some(0) => machine.load = None,
                Some(1) => machine.foreground = None,
                Some(2) => machine.stall_cpu = None,
                Some(3) => machine.stall_io = None,
                Some(4) => machine.stall_memory = None,
                Some(_) => machine.swap = None,
                None => {}
            }
        }
        let signals = Signals { now, hour: model.hour(), slept: slept && !self.is(Broken::SleepIsNotNoticed), machine };
        let groups = self.groups();
        let decision = decide(&self.config, &mut self.state, &signals, &groups);
        match decision {
            Decision::Sweep { id, job, .. } => {
                self.report.violate("no sweep while a signal is missing", missing.is_none_or(|n| n > 4), || {
                    format!("signal {missing:?}")
                });
                let quiet = self.awake.map_or(self.config.sweep.after_resume, |awake| now.since(awake));
                self.report.violate("quiet after sleep", quiet >= self.config.sweep.after_resume, || {
                    format!("a sweep {quiet:?} after sleep")
                });
                self.begin(id, job);
            }
            Decision::Stop { reason } => {
                if let Some(running) = &mut self.running {
                    running.stop = true;
                }
                self.report.stops += u64::from(!matches!(reason, Reason::Settling { .. }));
            }
            Decision::Hold { .. } => assert!(self.running.is_none(), "a sweep runs and is not known"),
            Decision::Continue { .. } => assert!(self.running.is_some(), "no sweep runs to be continued"),
        }
        self.model.wall += self.period.as_secs();
        self.tick_at = now + self.period;
        if self.model.chance.once_in(50) {
            let ids: Vec<_> = groups.iter().map(|group| group.id).collect();
            let mut sorted = ids;
            sorted.sort();
            self.state.retain(&sorted);
        }
    }

    fn begin(&mut self, id: GroupId, mut job: Job) {
        let now = self.model.now;
        if self.is(Broken::OneLargeWrite) {
            job.step = Bytes::mib(512);
            job.write_time = Duration::from_secs(60);
        }
        self.begun.retain(|begun| now.since(*begun) < Duration::from_secs(3600));
        self.begun.push(now);
        let most = 60 * self.model.cells.len() + 120;
        let begun = self.begun.len();
        self.report.violate("no storm", begun <= most, || format!("{begun} sweeps in an hour"));
        self.report.sweeps += 1;
        let sample = self.config.stop.sample;
        self.running = Some(Running {
            id,
            pace: Pace::new(job.clone()),
            job,
            watch: Watch::new(&self.config.stop, self.state.steady_load()),
            worker: Worker::Ready,
            stop: false,
            began: now,
            sampled: (now, self.model.used),
            sample_at: now + sample,
            written: 0,
            writes: 0,
        });
    }

    fn sample(&mut self) {
        let deaf = self.is(Broken::TheWatchIsDeaf);
        let Some(running) = &mut self.running else { return };
        let (at, used) = running.sampled;
        running.sampled = (self.model.now, self.model.used);
        running.sample_at = self.model.now + self.config.stop.sample;
        let noticed = running.watch.sample(self.model.now.since(at), Some(self.model.used.saturating_sub(used)));
        if noticed.is_some() && !running.stop && !deaf {
            running.stop = true;
            self.report.stops += 1;
            self.state.interrupt(self.model.now);
        }
    }

    /// The worker does what is next.
    fn work(&mut self) {
        let large = self.is(Broken::OneLargeWrite);
        let now = self.model.now;
        let Some(running) = &mut self.running else { return };
        let id = running.id;
        match running.worker {
            Worker::Waiting { until } if until > now && !running.stop => return,
            Worker::Writing { until, .. } if until > now => return,
            Worker::Writing { took, bytes, file_only, seen, .. } => self.wrote(took, bytes, file_only, &seen),
            Worker::Ready | Worker::Waiting { .. } => {}
        }
        let swap_free = (self.model.swap > 0).then(|| self.swap_free());
        let writeback = if large || !self.model.on_disk { 0 } else { self.model.writeback() };
        let Some(running) = &mut self.running else { return };
        running.worker = Worker::Ready;
        if running.stop {
            return self.finish(End::Stopped);
        }
        if self.model.chance.once_in(5000) {
            self.model.remove(id);
        }
        let Some(cell) = self.model.cells.iter().find(|cell| cell.id == id) else { return self.finish(End::Gone) };
        let seen = Seen {
            at: now,
            current: Bytes(cell.current()),
            swapcached: Bytes(cell.clean + cell.in_flight),
            writeback: Bytes(writeback),
            swap_free,
            swap_written: Bytes(running.written),
        };
        match running.pace.next(&seen) {
            Next::End(_) if self.broken == Broken::EndsAreIgnored && running.writes < MOST_WRITES => {
                running.pace = Pace::new(running.job.clone());
                running.writes += 1;
            }
            Next::End(end) => self.finish(end),
            Next::Wait(time) => running.worker = Worker::Waiting { until: now + time },
            Next::Write { bytes, file_only } => {
                running.writes += 1;
                let began = running.began;
                // 100 MB a second, some slower.
                let slow = if self.model.chance.once_in(300) { 30 } else { 1 };
                let took = Duration::from_micros((200 + bytes.0 / 100) * slow);
                running.worker = Worker::Writing { until: now + took, took, bytes, file_only, seen };
                let work = self.model.work;
                let late = now.since(work.from.max(began));
                let stops = now < work.from || now >= work.until || late <= Duration::from_millis(60);
                self.report.violate("work stops a sweep", stops, || format!("a write {late:?} after work began"));
            }
        }
    }

    /// A write is done.
    fn wrote(&mut self, took: Duration, bytes: Bytes, file_only: bool, seen: &Seen) {
        let now = self.model.now;
        let Some(running) = &mut self.running else { return };
        let id = running.id;
        let Some(cell) = self.model.cells.iter().find(|cell| cell.id == id) else { return };
        let (class, since) = (cell.class, cell.since);
        let floor = cell.low.max(cell.keep);
        // Sometimes nothing comes of it.
        let (freed, out) =
            if self.model.chance.once_in(100) { (0, 0) } else { self.model.reclaim(id, bytes.0, file_only) };
        running.pace.wrote(Bytes(freed), took, self.model.writeback() > 0);
        running.written += if self.model.on_disk { out } else { 0 };
        self.report.freed += freed;
        self.report.swapped += out;
        let settled = now.since(since) > self.period + Duration::from_millis(1300);
        self.report.violate(
            "only background is touched",
            class == Class::Background || !settled || freed + out == 0,
            || format!("{freed} bytes of class {}", class.name()),
        );
        // What others did in the meantime is not its doing.
        let after = seen.current.0.saturating_sub(freed);
        self.report.violate("floors hold", freed == 0 || after + SMALLEST_STEP.0 >= floor, || {
            format!("{after} bytes left of {floor}")
        });
        let swap_floor = self.config.guard.swap_floor.of(Bytes(self.model.swap)).0;
        let free = self.model.swap_free;
        self.report
            .violate("swap keeps its floor", out == 0 || free >= swap_floor, || format!("{free} free of {swap_floor}"));
        if self.model.on_disk && out > 0 {
            let wall = self.model.wall;
            self.written.push((wall, out));
            // The allowance is kept in whole hours.
            self.written.retain(|(then, _)| wall - then < 23 * 3600);
            let day: u64 = self.written.iter().map(|(_, out)| out).sum();
            self.report.violate("the write budget holds", day <= BUDGET.0, || format!("{day} bytes in a day"));
        }
    }

    fn finish(&mut self, end: End) {
        let Some(running) = self.running.take() else { return };
        let now = self.model.now;
        let end = if self.is(Broken::NothingIsEverDone) { End::Timeout } else { end };
        let refaults_hidden = self.is(Broken::RefaultsAreNotSeen);
        let writes = if self.is(Broken::WritesAreForgotten) { 0 } else { running.written };
        let (mut size, mut refaults) = (0, 0);
        if let Some(cell) = self.model.cell(running.id) {
            (size, refaults) = (cell.current(), cell.refaults);
            cell.swept = Some((now, refaults, false));
        }
        let finished = Finished {
            id: running.id,
            size: Bytes(size),
            refaults: Some(Bytes(if refaults_hidden { 0 } else { refaults })),
            swap_writes: Bytes(writes),
            end,
        };
        self.state.finished(&self.config, now, self.model.hour(), &finished);
        *self.report.ends.entry(end.words()).or_default() += 1;
        let writes = running.writes;
        self.report.violate("every job ends", writes < MOST_WRITES, || format!("{writes} writes"));
        let (out, asked) = (running.written, running.job.amount.0);
        self.report.violate(
            "no more than 1.25 times the amount is swapped out",
            out <= asked + (asked / 4).max(4 * MIB) + 2 * MIB,
            || format!("{out} bytes for {asked}"),
        );
        if let Some(cell) = self.model.cell(running.id) {
            cell.harm.retain(|at| now.since(*at) < Duration::from_secs(3600));
            let harm = cell.harm.len();
            self.report.violate("harm makes a group back off", harm <= 4, || format!("{harm} times in an hour"));
        }
    }
}

/// So many machines for so many hours each.
fn simulate(machines: std::ops::Range<u64>, hours: u64, broken: Broken) -> Report {
    let mut all = Report::default();
    for seed in machines {
        all.add(Loop::new(seed, broken).run(hours));
    }
    let useful = all.freed / all.hours >= 20 * MIB;
    let freed = all.freed / all.hours / MIB;
    all.violate("something is reclaimed", useful, || format!("{freed} MiB an hour"));
    all
}

#[test]
fn thousands_of_machine_hours() {
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| simulate(0..42, 24, Broken::No));
        [simulate(42..84, 24, Broken::No), other.join().expect("no panic")]
    });
    let mut all = Report::default();
    halves.into_iter().for_each(|half| all.add(half));
    println!(
        "{} machine-hours, {} sweeps, {} stops, {} faults, {} GiB freed, {} GiB swapped out",
        all.hours,
        all.sweeps,
        all.stops,
        all.faults,
        all.freed >> 30,
        all.swapped >> 30
    );
    println!("sweeps ended: {:?}", all.ends);
    assert!(all.violations.is_empty(), "{:#?}", all.violations);
    for end in [End::Complete, End::Floor, End::Futile, End::Stopped, End::SwapFloor, End::WriteBudget, End::Gone] {
        assert!(all.ends.contains_key(end.words()), "no sweep ended with: {}", end.words());
    }
}

#[test]
fn the_same_seed_gives_the_same_hours() {
    let run = || simulate(7..9, 6, Broken::No);
    let (one, two) = (run(), run());
    assert_eq!((one.sweeps, one.stops, one.digest), (two.sweeps, two.stops, two.digest));
    assert_ne!(one.digest, simulate(8..10, 6, Broken::No).digest);
}

/// The negative controls.
#[test]
fn each_check_sees_the_loop_that_is_broken_for_it() {
    for (broken, law) in [
        (Broken::EverythingIsBackground, "only background is touched"),
        (Broken::NothingIsProtected, "floors hold"),
        (Broken::TheWatchIsDeaf, "work stops a sweep"),
        (Broken::WritesAreForgotten, "the write budget holds"),
        (Broken::SwapLooksFree, "swap keeps its floor"),
        (Broken::NothingIsEverDone, "no storm"),
        (Broken::UnknownIsZero, "no sweep while a signal is missing"),
        (Broken::SleepIsNotNoticed, "quiet after sleep"),
        (Broken::RefaultsAreNotSeen, "harm makes a group back off"),
        (Broken::OneLargeWrite, "no more than 1.25 times the amount is swapped out"),
        (Broken::EndsAreIgnored, "every job ends"),
        (Broken::Paused, "something is reclaimed"),
    ] {
        // There is a machine on which it shows, and only because of that.
        let violates = |seed, broken| simulate(seed..seed + 1, 12, broken).violations.contains_key(law);
        let seen = (0..12).any(|seed| violates(seed, broken) && !violates(seed, Broken::No));
        assert!(seen, "{broken:?} goes unnoticed");
    }
}
