//! When the daemon ages groups, and when it takes a sample of them for the history.
//!
//! A round of ten minutes ends with a sample. It must tell how much was unused for half a minute,
//! one minute, two, five and ten. So groups are aged in the middle of the round, when a fifth, a
//! tenth and a twentieth of it is left, and at its end. These five agings tell as much as twenty at
//! even distances. Earlier rounds tell how much was unused for longer.
//!
//! Aging walks page tables, which takes CPU time. CPU time for it is earned at the rate of
//! `history.budget`, and at most the earnings of one round are kept. After an aging that cost more,
//! the next one waits until its cost is earned. So over any time, agings exceed the budget by no
//! more than the earnings of one round and the cost of one aging of all groups.
//!
//! Groups with an `older_than` rule are aged on a schedule of their own, as the kernel keeps only
//! four generations: see [`RuleSchedule`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use omr_units::Monotonic;
use serde::{Deserialize, Serialize};

use crate::config::History;

/// When groups are aged, in 20ths of a round.
const MOMENTS: [u32; 5] = [10, 16, 18, 19, PARTS];
const PARTS: u32 = 20;

/// The due agings and samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// Age all groups.
    pub aging: bool,
    /// Note what all groups hold, after that.
    pub sample: bool,
}

/// The schedule of agings and samples for the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// When this round began.
    began: Monotonic,
    /// When groups are aged next, if there is CPU time for it.
    next: Monotonic,
    /// CPU time that is left to spend, in nanoseconds; below zero: more was spent than earned.
    credit: i64,
    /// The moment up to which CPU time was earned.
    earned: Monotonic,
    /// The CPU time of the last aging.
    last: Duration,
}

impl Schedule {
    /// A schedule whose first round begins now.
    pub fn new(config: &History, now: Monotonic) -> Self {
        Schedule { began: now, next: moment(config, now, MOMENTS[0]), credit: 0, earned: now, last: Duration::ZERO }
    }

    /// Returns the due agings and samples. `may_age`: only the cost may prevent agings. An aging
    /// that was not possible in time is made later.
    pub fn due(&mut self, config: &History, now: Monotonic, may_age: bool) -> Due {
        self.earn(config, now);
        let sample = now.since(self.began) >= config.every;
        if sample {
            let next = self.began + config.every;
            // Rounds that were missed as a whole are not made up for.
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

    /// When groups are aged next, or sampled.
    pub fn next(&self, config: &History) -> Monotonic {
        self.next.min(self.began + config.every)
    }

    /// The agings and samples that were due are done and have cost this CPU time.
    pub fn spent(&mut self, due: Due, cost: Duration) {
        if due.aging {
            self.last = cost;
        }
        self.credit = self.credit.saturating_sub(nanos(cost));
    }

    /// The time until enough CPU time is earned to age groups again.
    pub fn wait(&self, config: &History) -> Duration {
        let lacking = nanos(self.last).min(allowance(config)).saturating_sub(self.credit);
        let lacking = u64::try_from(lacking).unwrap_or(0);
        Duration::from_nanos(lacking.saturating_mul(10_000) / u64::from(config.budget.0.max(1)))
    }

    fn earn(&mut self, config: &History, now: Monotonic) {
        let earned = part(now.since(self.earned), config);
        // A time too short to earn anything still counts later.
        if earned > 0 {
            self.earned = now;
        }
        self.credit = self.credit.saturating_add(earned).min(allowance(config));
    }
}

/// When groups with an `older_than` rule are aged: twice in the time of the rule.
///
/// Then the last aging but one was that long ago, so that the oldest of four generations always
/// holds the memory that was unused for that long, and nothing else. If groups were aged more
/// often, the kernel would merge that generation too soon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSchedule {
    /// For each age, when its groups are aged next.
    next: BTreeMap<Duration, Monotonic>,
    /// No aging before this moment.
    rest: Monotonic,
}

/// Agings for all ages together use no more CPU time than this part of the time. If that is too
/// little, groups are aged less often and their memory counts as cold later.
const RULES_SHARE: u32 = 100;

/// Two of the longest jiffies, in which the kernel counts ages.
const JIFFIES: Duration = Duration::from_millis(20);

impl RuleSchedule {
    /// Returns those of the ages whose groups must be aged now. `groups`: the age of each group, and
    /// when it was last aged; `None`: it was not. A group that had another age before is aged next
    /// when half of the new one has passed.
    pub fn due(
        &mut self,
        now: Monotonic,
        groups: impl Iterator<Item = (Duration, Option<Monotonic>)>,
    ) -> Vec<Duration> {
        let before = core::mem::take(&mut self.next);
        for (age, last) in groups {
            let first = last.map_or(now, |last| last + age / 2 + JIFFIES);
            let next = before.get(&age).copied().unwrap_or(first);
            self.next.entry(age).and_modify(|known| *known = next.min(*known)).or_insert(next);
        }
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

    /// When groups are aged next; `None`: there are none.
    pub fn next(&self) -> Option<Monotonic> {
        self.next.values().min().map(|next| (*next).max(self.rest))
    }

    /// The agings that were due are done and have cost this CPU time.
    pub fn spent(&mut self, now: Monotonic, cost: Duration) {
        self.rest = now + cost * (RULES_SHARE - 1);
    }
}

/// When a round that began then reaches a 20th of its length.
fn moment(config: &History, began: Monotonic, part: u32) -> Monotonic {
    began + config.every * part / PARTS
}

/// The CPU time that one round earns, in nanoseconds.
fn allowance(config: &History) -> i64 {
    part(config.every, config)
}

/// The budget for this time, in nanoseconds.
fn part(time: Duration, config: &History) -> i64 {
    let earned = time.as_nanos().saturating_mul(u128::from(config.budget.0)) / 10_000;
    i64::try_from(earned).unwrap_or(i64::MAX)
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
