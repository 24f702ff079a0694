//! The machine of the simulation: groups, a kernel that reclaims them, a disk, and people who work.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::time::Duration;

use omr_policy::Class;
use omr_units::{GroupId, Monotonic};

pub const MIB: u64 = 1 << 20;

/// xorshift64*.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = chance.bits());
        chance
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.bits() >> 11) % n
    }

    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A time to the next of events that come at random, so often.
    pub fn soon(&mut self, mean: Duration) -> Duration {
        let uniform = (self.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
        mean.mul_f64(-uniform.ln())
    }
}

/// A control group of the model.
pub struct Cell {
    pub id: GroupId,
    pub class: Class,
    pub since: Monotonic,
    /// Resident: used all the time, or not.
    pub hot_anon: u64,
    pub cold_anon: u64,
    pub hot_file: u64,
    pub cold_file: u64,
    /// Resident copies of what is in swap: on their way to the disk, and there.
    pub in_flight: u64,
    pub clean: u64,
    /// In swap, or dropped.
    pub swapped_hot: u64,
    pub swapped_cold: u64,
    pub dropped_hot: u64,
    pub refaults: u64,
    /// `memory.low`.
    pub low: u64,
    pub keep: u64,
    /// Cold memory that is added each second, up to a limit; then half of it is freed.
    pub growth: u64,
    pub most: u64,
    /// When it will use what is cold now.
    pub wakes: Monotonic,
    /// End of its last sweep, refaults then, and whether that sweep did harm.
    pub swept: Option<(Monotonic, u64, bool)>,
    pub harm: Vec<Monotonic>,
}

impl Cell {
    pub fn new(id: u64, now: Monotonic, chance: &mut Chance) -> Self {
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

    pub fn current(&self) -> u64 {
        self.hot_anon + self.cold_anon + self.hot_file + self.cold_file + self.in_flight + self.clean
    }

    pub fn swap_used(&self) -> u64 {
        self.swapped_hot + self.swapped_cold
    }

    pub fn live(&mut self, now: Monotonic, dt: Duration, swap_free: &mut u64, chance: &mut Chance) {
        let seconds = dt.as_secs_f64();
        if now >= self.wakes {
            // It uses all of its memory; something else is cold afterwards.
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
            // Memory that is unused for a while becomes cold.
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

/// Foreground work: from, until, and the share of a CPU in percent.
#[derive(Clone, Copy)]
pub struct Work {
    pub from: Monotonic,
    pub until: Monotonic,
    pub percent: u64,
}

/// The machine and its kernel.
pub struct Model {
    pub now: Monotonic,
    /// Seconds since 1970, and how far the clock is behind.
    pub wall: u64,
    pub behind: u64,
    pub chance: Chance,
    pub cpus: u32,
    pub cells: Vec<Cell>,
    pub born: u64,
    pub swap: u64,
    /// Other programs fill and empty swap, too.
    pub swap_free: u64,
    pub on_disk: bool,
    /// Bytes a second.
    pub disk: u64,
    /// A kernel such as Linux 6.1: it frees twice the amount it is asked for, and cannot be told to
    /// reclaim files only.
    pub old: bool,
    pub steady: u64,
    pub work: Work,
    pub pause: Duration,
    pub length: Duration,
    /// CPU time so far.
    pub used: Duration,
    pub foreground: Duration,
}

impl Model {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
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

    pub fn cell(&mut self, id: GroupId) -> Option<&mut Cell> {
        self.cells.iter_mut().find(|cell| cell.id == id)
    }

    /// A group goes, another comes.
    pub fn remove(&mut self, id: GroupId) {
        self.born += 1;
        let new = Cell::new(self.born, self.now, &mut self.chance);
        if let Some(cell) = self.cell(id) {
            let freed = cell.swap_used();
            *cell = new;
            self.swap_free += freed;
        }
    }

    /// The hour that the wall clock shows.
    pub fn hour(&self) -> u64 {
        (self.wall - self.behind) / 3600
    }

    pub fn writeback(&self) -> u64 {
        self.cells.iter().map(|cell| cell.in_flight).sum()
    }

    pub fn advance(&mut self, to: Monotonic) {
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
            // Pages that came back meanwhile have no copy in swap any more.
            cell.clean = (cell.clean + done).min(cell.swapped_hot + cell.swapped_cold);
            cell.live(to, dt, &mut self.swap_free, &mut self.chance);
        }
        self.swap_free = self.swap_free.min(self.swap);
        self.now = to;
    }

    /// One write to `memory.reclaim`: what was freed and what went to swap.
    pub fn reclaim(&mut self, id: GroupId, asked: u64, file_only: bool) -> (u64, u64) {
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
