//! When the daemon looks at what groups use, and when it notes what they hold.
//!
//! A round ends with a sample, for which it must be known what was not used for half a minute, one
//! minute, two, five and ten. So groups are aged when the round has gone half, and when a fifth, a tenth
//! and a twentieth of it is left, and at its end: five agings say what twenty at even distances would.
//! What was not used for longer is known from the rounds before.
//!
//! Aging walks page tables, which takes CPU time. Time for it is earned at the rate of the budget,
//! and no more is kept than one round's; who has spent more than that waits until it is earned. Over
//! any time at all, the budget is exceeded by no more than one round's and one aging of all groups.
//!
//! Groups of which only what is old is taken have a beat of their own, as the kernel keeps four generations only: see
//! [`Beats`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use omr_units::Monotonic;
use serde::{Deserialize, Serialize};

use crate::History;

/// When groups are aged, in parts of a round.
const MOMENTS: [u32; 5] = [10, 16, 18, 19, PARTS];
const PARTS: u32 = 20;

/// What is to be done now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// Age all groups.
    pub aging: bool,
    /// Note what all groups hold, after that.
    pub sample: bool,
}

/// See above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// When this round began.
    began: Monotonic,
    /// When groups are aged next, if there is time for it.
    next: Monotonic,
    /// CPU time that was earned, in nanoseconds; below zero: that is owed.
    credit: i64,
    /// Until when.
    earned: Monotonic,
    /// What the last aging has cost.
    last: Duration,
}

impl Schedule {
    /// From now on.
    pub fn new(config: &History, now: Monotonic) -> Self {
        Schedule { began: now, next: moment(config, now, MOMENTS[0]), credit: 0, earned: now, last: Duration::ZERO }
    }

    /// What is to be done now. `may_age`: nothing speaks against it but what it costs. What was not to
    /// be is made up for.
    pub fn due(&mut self, config: &History, now: Monotonic, may_age: bool) -> Due {
        self.earn(config, now);
        let sample = now.since(self.began) >= config.every;
        if sample {
            let next = self.began + config.every;
            // After a time in which nothing could be done the rounds are not made up for.
            self.began = if now.since(next) < config.every { next } else { now };
        }
        let enough = nanos(self.last).min(allowance(config));
        let aging = may_age && config.budget.0 > 0 && now >= self.next && self.credit >= enough;
        if aging {
            let later = MOMENTS.iter().map(|&part| moment(config, self.began, part)).find(|&moment| moment > now);
            self.next = later.unwrap_or(now + config.every);
        }
        Due { aging, sample }
    }

    /// What was due is done, and has cost so much CPU time.
    pub fn spent(&mut self, due: Due, cost: Duration) {
        if due.aging {
            self.last = cost;
        }
        self.credit = self.credit.saturating_sub(nanos(cost));
    }

    /// How long it will be until so much is earned that groups can be aged again.
    pub fn wait(&self, config: &History) -> Duration {
        let lacking = nanos(self.last).min(allowance(config)).saturating_sub(self.credit);
        let lacking = u64::try_from(lacking).unwrap_or(0);
        Duration::from_nanos(lacking.saturating_mul(10_000) / u64::from(config.budget.0.max(1)))
    }

    fn earn(&mut self, config: &History, now: Monotonic) {
        let earned = part(now.since(self.earned), config);
        // Small times earn nothing, and are not lost.
        if earned > 0 {
            self.earned = now;
        }
        self.credit = self.credit.saturating_add(earned).min(allowance(config));
    }
}

/// When groups are aged of which only what was not used for some time is taken.
///
/// Twice in that time: then the oldest of four generations always holds what was not used for so long, and
/// nothing else, as the last aging but one was that long ago. More often, and the kernel would forget that too soon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beats {
    /// When those of each age are due.
    next: BTreeMap<Duration, Monotonic>,
    /// And none before.
    rest: Monotonic,
}

/// Agings for all ages together take no more CPU time than this part of the time. What is aged more seldom is taken later.
const BEATS_SHARE: u32 = 100;

/// The kernel counts ages in jiffies, of which the longest are 10 ms.
const JIFFIES: Duration = Duration::from_millis(20);

impl Beats {
    /// The ages, of those that rules ask for, whose groups are to be aged now.
    pub fn due(&mut self, now: Monotonic, ages: impl Iterator<Item = Duration>) -> Vec<Duration> {
        let before = core::mem::take(&mut self.next);
        self.next = ages.map(|age| (age, before.get(&age).copied().unwrap_or(now))).collect();
        if now < self.rest {
            return Vec::new();
        }
        let due = self.next.iter_mut().filter(|(_, next)| now >= **next);
        due.map(|(age, next)| {
            *next = now + *age / 2 + JIFFIES;
            *age
        })
        .collect()
    }

    /// What was due is done, and has cost so much CPU time.
    pub fn spent(&mut self, now: Monotonic, cost: Duration) {
        self.rest = now + cost * (BEATS_SHARE - 1);
    }
}

fn moment(config: &History, began: Monotonic, part: u32) -> Monotonic {
    began + config.every * part / PARTS
}

/// What a round earns.
fn allowance(config: &History) -> i64 {
    part(config.every, config)
}

fn part(time: Duration, config: &History) -> i64 {
    let earned = time.as_nanos().saturating_mul(u128::from(config.budget.0)) / 10_000;
    i64::try_from(earned).unwrap_or(i64::MAX)
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
