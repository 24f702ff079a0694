//! The loop of the daemon over the model, and the checks of what must hold while it runs.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::collections::BTreeMap;
use std::time::Duration;

use omr_policy::busy::{BusyWatch, Step, Yielding};
use omr_policy::cost::Medium;
use omr_policy::pace::{Job, Next, Pace, PaceSample, SMALLEST_STEP};
use omr_policy::{
    Class, ColdAmount, ColdOnly, Config, CpuIdle, Decision, End, Finished, Goal, Group, Machine, Memory, Reason,
    Signals, State, Swap, decide,
};
use omr_units::{Amount, Budget, Bytes, GroupId, Monotonic, Permyriad};

use super::model::{Cell, MIB, Model};
use crate::desk::{free, on_mains};

/// More than the smallest step needs for all of the largest group.
const MOST_WRITES: u32 = 10_000;
const BUDGET: Bytes = Bytes::mib(1500);

/// The way in which the loop is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
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
    CpuTimeIsForgotten,
}

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Memory of any age, with `goal = "free"`.
    AnyAge,
    /// Cold memory, with `goal = "auto"`, on machines with a load of up to 40 %.
    Cold,
}

enum Worker {
    Ready,
    Waiting { until: Monotonic },
    Writing { until: Monotonic, took: Duration, bytes: Bytes, file_only: bool, seen: PaceSample },
}

struct Running {
    id: GroupId,
    job: Job,
    pace: Pace,
    watch: BusyWatch,
    yielding: Yielding,
    worker: Worker,
    stop: bool,
    held: bool,
    is_paced: bool,
    cpu: Duration,
    began: Monotonic,
    sampled: (Monotonic, Duration),
    sample_at: Monotonic,
    written: u64,
    writes: u32,
}

#[derive(Default)]
pub struct Report {
    pub hours: u64,
    pub sweeps: u64,
    pub stops: u64,
    pub freed: u64,
    pub swapped: u64,
    pub faults: u64,
    pub ends: BTreeMap<&'static str, u64>,
    /// The laws that were violated, and how often.
    pub violations: BTreeMap<&'static str, (u64, String)>,
    pub digest: u64,
}

impl Report {
    pub fn violate(&mut self, law: &'static str, holds: bool, words: impl FnOnce() -> String) {
        if !holds {
            self.violations.entry(law).or_insert_with(|| (0, words())).0 += 1;
        }
    }

    pub fn add(&mut self, other: Report) {
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

pub struct Loop {
    broken: Broken,
    kind: Kind,
    /// CPU time of paced sweeps, the one that may still be rested from, and when the first began.
    paced: (Duration, Duration, Option<Monotonic>),
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
    pub fn new(seed: u64, broken: Broken, kind: Kind) -> Self {
        let mut model = Model::new(seed);
        let mut config = free();
        if kind == Kind::Cold {
            config.goal = Goal::Auto;
            model.steady = model.chance.below(41) * u64::from(model.cpus);
            // Work comes and goes.
            model.pause = Duration::from_secs(model.chance.between(2, 60));
            model.length = Duration::from_secs(model.chance.between(1, 10));
        }
        config.guard.max_swap_writes = Some(Budget { bytes: BUDGET, hours: 24 });
        let mut state = State::default();
        if broken == Broken::Paused {
            state.pause(model.now, None);
        }
        let period = match kind {
            Kind::AnyAge => Duration::from_secs([1, 5, 10, 10, 5, 10, 5, 10][(seed % 8) as usize]),
            Kind::Cold => Duration::from_secs(1),
        };
        Loop {
            broken,
            kind,
            paced: (Duration::ZERO, Duration::ZERO, None),
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

    pub fn run(mut self, hours: u64) -> Report {
        let end = self.model.now + Duration::from_secs(hours * 3600);
        while self.model.now < end {
            let mut next = self.tick_at;
            if let Some(running) = &self.running {
                next = next.min(running.sample_at);
                next = match running.worker {
                    Worker::Ready if running.held && !running.stop => next,
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
            // The clock is set back. A clock set forward cannot be told from time that passed.
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
                cold_only: (self.kind == Kind::Cold).then_some(ColdOnly {
                    threshold: None,
                    min_age: Duration::from_secs(600),
                    cold: ColdAmount::Known { bytes: known(cell.cold_anon) },
                    learned: true,
                }),
            })
            .collect()
    }

    fn swap_free(&self) -> Bytes {
        Bytes(if self.is(Broken::SwapLooksFree) { self.model.swap } else { self.model.swap_free })
    }

    /// The machine since the last tick, without the signal that is missing.
    fn machine(&mut self) -> Machine {
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
            memory: (self.kind == Kind::Cold)
                .then_some(Memory { total: Bytes::mib(16_000), available: Bytes::mib(1000) }),
            cost: on_mains(if model.on_disk { Medium::Ssd } else { Medium::Memory }),
            swap: Some(Swap {
                total: Bytes(model.swap),
                free: self.swap_free(),
                on_disk: model.on_disk,
                free_outside_image: Bytes::ZERO,
            }),
            image: None,
            file_only: !model.old,
            ..Machine::default()
        };
        self.last = (now, model.used, model.foreground, came_back);
        if !self.is(Broken::UnknownIsZero) {
            match self.missing_signal() {
                Some(0) => machine.load = None,
                Some(1) => machine.foreground = None,
                Some(2) => machine.stall_cpu = None,
                Some(3) => machine.stall_io = None,
                Some(4) => machine.stall_memory = None,
                Some(_) => machine.swap = None,
                None => {}
            }
        }
        machine
    }

    fn missing_signal(&self) -> Option<u64> {
        (self.missing.1 > 0).then_some(self.missing.0)
    }

    fn tick(&mut self) {
        let slept = self.faults() && !self.is(Broken::SleepIsNotNoticed);
        let machine = self.machine();
        let now = self.model.now;
        let signals = Signals { now, hour: self.model.hour(), slept, machine };
        let groups = self.groups();
        match decide(&self.config, &mut self.state, &signals, &groups) {
            Decision::Sweep { id, job, reason } => {
                let missing = self.missing_signal();
                self.report.violate("no sweep while a signal is missing", missing.is_none_or(|n| n > 4), || {
                    format!("signal {missing:?}")
                });
                let quiet = self.awake.map_or(self.config.sweep.after_resume, |awake| now.since(awake));
                self.report.violate("quiet after sleep", quiet >= self.config.sweep.after_resume, || {
                    format!("a sweep {quiet:?} after sleep")
                });
                self.begin(id, job, matches!(reason, Reason::Quiet { .. }));
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

    fn begin(&mut self, id: GroupId, mut job: Job, is_paced: bool) {
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
        let stop = &self.config.stop;
        let (watch, yielding) = match self.kind {
            Kind::AnyAge => (BusyWatch::new(stop, self.state.steady_load()), Yielding::default()),
            Kind::Cold => (BusyWatch::of_cold(stop, self.state.least_load()), Yielding::patient()),
        };
        let sample = stop.sample;
        self.running = Some(Running {
            id,
            pace: Pace::new(job.clone()),
            job,
            watch,
            yielding,
            worker: Worker::Ready,
            stop: false,
            held: false,
            is_paced,
            cpu: Duration::ZERO,
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
        let (dt, used) = (self.model.now.since(at), Some(self.model.used.saturating_sub(used)));
        let step = match self.kind {
            Kind::AnyAge => running.watch.sample(dt, used).map_or(Step::Go, Step::End),
            Kind::Cold => running.yielding.watch(self.model.now, &mut running.watch, dt, used),
        };
        running.held = step == Step::Hold && !deaf;
        if matches!(step, Step::End(_)) && !running.stop && !deaf {
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
        if running.held {
            return;
        }
        if self.model.chance.once_in(5000) {
            self.model.remove(id);
        }
        let Some(cell) = self.model.cells.iter().find(|cell| cell.id == id) else { return self.finish(End::Gone) };
        let seen = PaceSample {
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
                running.cpu += took;
                running.worker = Worker::Writing { until: now + took, took, bytes, file_only, seen };
                let work = self.model.work;
                let late = now.since(work.from.max(began));
                // Work that went on before a sweep of cold memory began is a steady load.
                let is_load = self.kind == Kind::Cold && work.from < began;
                let stops = now < work.from || now >= work.until || is_load || late <= Duration::from_millis(60);
                self.report.violate("work stops a sweep", stops, || format!("a write {late:?} after work began"));
            }
        }
    }

    /// A write is done.
    fn wrote(&mut self, took: Duration, bytes: Bytes, file_only: bool, seen: &PaceSample) {
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
        // Memory that other programs freed in the meantime does not count.
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

    /// A paced sweep has taken this CPU time.
    fn spent(&mut self, began: Monotonic, cpu: Duration) {
        let (used, last, first) = &mut self.paced;
        let time = began.since(*first.get_or_insert(began));
        let before = *used;
        self.report.violate(
            "sweeps take half a percent of a CPU",
            before * 200 <= time + Duration::from_secs(1),
            || format!("{before:?} in {time:?}, {last:?} in the last one"),
        );
        (*used, *last) = (before + cpu, cpu);
        if self.broken != Broken::CpuTimeIsForgotten {
            self.state.spent(self.model.now, cpu);
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
        if running.is_paced {
            self.spent(running.began, running.cpu);
        }
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
