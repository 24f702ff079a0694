//! Synthetic loads of which every use of every unit of memory is known, so promotions and cold
//! memory are exact.

use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::threshold::{Interval, Promoted, Slo, Step};
use omr_units::{Bytes, Permyriad};

/// Units in 64 KiB of memory. The uses of single units are chance, and more units have less noise.
const FINE: u32 = 4;
/// The model's unit of memory.
const UNIT: u64 = (64 << 10) / FINE as u64;
/// Hours of load before the day, so that its first ages are not all zero.
const BEFORE: u32 = 10 * 60;
/// The day, in minutes.
pub const DAY: u32 = 24 * 60;
const NOON: u32 = BEFORE + DAY / 2;
/// The units that are hot in a load that drifts.
const DRIFTING: u32 = 4096 * FINE;
/// Ages are told apart up to this many minutes.
const AGES: u32 = 600;
const MILLION: u32 = 1_000_000;

/// One load.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// The chance that a unit is used falls with the third power of its number, down to once in
    /// 4 h. The last 16 MiB are never used.
    Zipf,
    /// At noon, a cold quarter of memory becomes the hot one, and the warm one is used a third as
    /// often.
    Phases,
    /// What is hot moves over memory, 128 KiB each minute.
    Drift,
}

impl Load {
    fn units(self) -> u32 {
        FINE * match self {
            Load::Zipf => 6400,
            Load::Phases => 8192,
            Load::Drift => 8448,
        }
    }

    /// The probability that a unit is used in a minute, in millionths.
    fn use_of(self, unit: u32, minute: u32) -> u32 {
        let noon = minute >= NOON;
        match self {
            Load::Zipf if unit >= 6144 * FINE => 0,
            Load::Zipf => {
                let rank = u64::from(unit / FINE + 1);
                u32::try_from(300_000 * 1500u64.pow(3) / rank.pow(3)).unwrap_or(MILLION).min(MILLION)
            }
            Load::Phases => match (unit / (1024 * FINE), noon) {
                (0 | 1, false) | (4 | 5, true) => MILLION,
                (2, false) => MILLION / 20,
                (2, true) => MILLION / 60,
                _ => 100,
            },
            Load::Drift => {
                let behind = (2 * minute + 4096) * FINE;
                if (behind..behind + DRIFTING).contains(&(unit + DRIFTING)) { MILLION / 2 } else { MILLION / 10_000 }
            }
        }
    }

    /// Takes what changed at this minute into the probabilities of all units.
    fn update(self, uses: &mut [u32], minute: u32) {
        let changed = match self {
            _ if minute == 1 || minute == NOON => 0..uses.len(),
            Load::Drift => {
                let first = ((2 * minute + 4096) * FINE) as usize;
                first - (DRIFTING + 2 * FINE) as usize..first + 1
            }
            _ => 0..0,
        };
        for unit in changed {
            uses[unit] = self.use_of(u32::try_from(unit).expect("few"), minute);
        }
    }
}

/// A number that follows from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((bits ^ bits >> 31) >> 40).expect("24 bits") % bound
    }
}

/// One minute of a load. The units in it are sums over ages from that many minutes on.
pub struct Minute {
    /// Units that were used after they had been unused for that long.
    promoted: Vec<u32>,
    /// Units unused for that long at the end.
    cold: Vec<u32>,
}

/// An age in whole minutes, rounded up.
fn whole(age: Duration) -> usize {
    usize::try_from(age.as_secs().div_ceil(60)).expect("hours")
}

fn at(sums: &[u32], minutes: usize) -> u32 {
    sums.get(minutes).copied().unwrap_or(0)
}

impl Minute {
    pub fn promoted(&self, step: Step) -> u32 {
        at(&self.promoted, whole(step.age()))
    }

    pub fn cold(&self, step: Step) -> u32 {
        at(&self.cold, whole(step.age()))
    }

    /// Units used within 2 min.
    fn working_set(&self) -> u32 {
        self.cold[0] - self.cold[2]
    }

    /// Whether a threshold broke the objective, by exact counts.
    pub fn is_over(&self, slo: &Slo, step: Step) -> bool {
        u64::from(self.promoted(step)) * u64::from(MILLION)
            > u64::from(self.working_set()) * u64::from(slo.promotions.0)
    }
}

/// The minutes of a day.
pub struct Day {
    units: u32,
    pub minutes: Vec<Minute>,
}

impl Day {
    pub fn of(load: Load) -> Self {
        let mut random = Random(17);
        let mut last = vec![0u32; load.units() as usize];
        let mut uses = vec![0; last.len()];
        let mut minutes = Vec::new();
        for minute in 1..BEFORE + DAY {
            let (mut promoted, mut cold) = (vec![0u32; AGES as usize], vec![0u32; AGES as usize]);
            load.update(&mut uses, minute);
            for (used, &use_of) in last.iter_mut().zip(&uses) {
                if random.below(MILLION) < use_of {
                    promoted[(minute - *used).min(AGES - 1) as usize] += 1;
                    *used = minute;
                }
                cold[(minute - *used).min(AGES - 1) as usize] += 1;
            }
            for sums in [&mut promoted, &mut cold] {
                (1..AGES as usize).rev().for_each(|age| sums[age - 1] += sums[age]);
            }
            if minute >= BEFORE {
                minutes.push(Minute { promoted, cold });
            }
        }
        Day { units: load.units(), minutes }
    }

    /// The memory that was not used after this minute, at the end of a later one.
    pub fn unused_since(&self, minute: usize, now: usize) -> Bytes {
        Bytes(u64::from(at(&self.minutes[now].cold, now - minute)) * UNIT)
    }

    /// The memory that was promoted in a minute.
    pub fn promoted(&self, minute: usize, step: Step) -> Bytes {
        Bytes(u64::from(self.minutes[minute].promoted(step)) * UNIT)
    }

    /// What is known of a minute, at these ages.
    pub fn seen(&self, minute: usize, ages: &[Duration]) -> Interval {
        let Minute { promoted, .. } = &self.minutes[minute];
        let promoted = |age: Duration| {
            let used = Bytes(u64::from(at(promoted, whole(age))) * UNIT);
            Promoted { age, bytes: Bounds { least: used, most: used } }
        };
        self.interval(minute, 1, ages.iter().map(|&age| promoted(age)).collect())
    }

    /// An interval of some minutes up to this one, with these promotions.
    pub fn interval(&self, minute: usize, minutes: usize, promoted: Vec<Promoted>) -> Interval {
        Interval {
            length: Duration::from_secs(60 * minutes as u64),
            size: Bytes(u64::from(self.units) * UNIT),
            promoted,
            swapped_in: Bytes::ZERO,
            working_set: Some(Bytes(u64::from(self.minutes[minute].working_set()) * UNIT)),
            stalled: Some(Permyriad::ZERO),
            write_budget_used: false,
            swap_at_floor: false,
        }
    }
}
