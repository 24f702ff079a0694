//! Regrets: what sweeps cost the tasks of the swept groups.
//!
//! The cost of a group is the time that its tasks waited for memory, and the memory that came back,
//! beyond what they waited and what came back before the sweep. It counts from the beginning of a
//! sweep until [`ATTRIBUTION`] after the end of the group's last one. The rate of the time before,
//! of up to ten minutes, is the group's allowance: it adds up for ten minutes at most, and what
//! exceeds it is the cost. The allowance of a group that is swept again within the hour stays the
//! same.
//!
//! By its counters, the cost is never too low by more than the allowance. It is too high where a
//! group waits for another reason, or where nothing is known of the time before: then there is no
//! allowance. The kernel's counter of waiting only has pages that it takes for a part of the
//! working set, so refaults are counted beside it.

use alloc::collections::BTreeMap;
use core::ops::AddAssign;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic};

/// Waiting counts for this long after the end of a sweep.
pub const ATTRIBUTION: Duration = Duration::from_secs(3600);
/// The rate before a sweep is that of one to two such times.
const BASELINE_STEP: Duration = Duration::from_secs(300);
/// The rate of a shorter time is not known.
const SHORTEST_BASELINE: Duration = Duration::from_secs(60);
/// The allowance adds up for this long at most.
const ALLOWANCE_TIME: Duration = Duration::from_secs(600);
/// The most groups that are known.
pub const MOST_GROUPS: usize = 128;

/// The counters of a group. `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The time in which some task waited for memory.
    pub waited: Option<Duration>,
    /// Refaults.
    pub refaults: Option<Bytes>,
    /// Refaults of anonymous and shared memory.
    pub refaults_anon: Option<Bytes>,
    /// Memory that is in swap only.
    pub swapped: Option<Bytes>,
}

/// What sweeps cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regret {
    /// The time that tasks waited for memory.
    pub waited: Duration,
    /// Memory that came back.
    pub refaults: Bytes,
    /// A counter was not known for some time, so the cost may be higher.
    pub is_incomplete: bool,
}

impl Regret {
    /// Returns true if there is nothing to tell.
    pub fn is_none(&self) -> bool {
        *self == Regret::default()
    }
}

impl AddAssign for Regret {
    fn add_assign(&mut self, other: Regret) {
        self.waited = self.waited.saturating_add(other.waited);
        self.refaults += other.refaults;
        self.is_incomplete |= other.is_incomplete;
    }
}

/// The groups whose cost is measured.
#[derive(Clone, Debug, Default)]
pub struct Regrets {
    groups: BTreeMap<GroupId, Group>,
}

/// One group.
#[derive(Clone, Debug, Default)]
struct Group {
    /// The last reading.
    read: Option<(Monotonic, Counters)>,
    waited: Meter,
    refaults: Meter,
    /// A sweep runs.
    is_swept: bool,
    /// The time until which the cost counts; `None`: it was never swept.
    until: Option<Monotonic>,
    held: Bytes,
}

impl Regrets {
    /// Takes in a reading of a group. Returns the cost since the reading before. `on_purpose`: what
    /// came back meanwhile did so on purpose, as by `omr warm`, and is no cost.
    pub fn read(&mut self, now: Monotonic, id: GroupId, counters: Counters, on_purpose: bool) -> Regret {
        if !self.groups.contains_key(&id) && !self.make_room(|group| group.until.is_none()) {
            return Regret::default();
        }
        self.groups.entry(id).or_default().read(now, counters, on_purpose)
    }

    /// A sweep of a group begins, after a reading. Returns false if there are too many groups: the
    /// cost of this one is not known.
    pub fn begin(&mut self, now: Monotonic, id: GroupId) -> bool {
        if !self.groups.contains_key(&id) && !self.make_room(|group| !group.counts(now)) {
            return false;
        }
        let group = self.groups.entry(id).or_default();
        if !group.counts(now) {
            group.waited.fix_rate();
            group.refaults.fix_rate();
        }
        group.is_swept = true;
        group.until = Some(now + ATTRIBUTION);
        true
    }

    /// The sweep has ended. `to_swap`: the memory that it took to swap.
    pub fn end(&mut self, now: Monotonic, id: GroupId, to_swap: Bytes) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.is_swept = false;
        group.until = Some(now + ATTRIBUTION);
        group.held += to_swap;
    }

    /// Returns true if waiting of this group counts now.
    pub fn counts(&self, now: Monotonic, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| group.counts(now))
    }

    /// Returns the memory that sweeps took to swap and that is still out, of a group.
    pub fn held(&self, id: GroupId) -> Bytes {
        self.groups.get(&id).map_or(Bytes::ZERO, Group::held)
    }

    /// The same of all groups.
    pub fn held_of_all(&self) -> Bytes {
        self.groups.values().map(Group::held).sum()
    }

    /// The groups that were swept and whose memory may still be out.
    pub fn swept(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().filter(|(_, group)| group.until.is_some()).map(|(id, _)| *id)
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, mut is_there: impl FnMut(GroupId) -> bool) {
        self.groups.retain(|id, _| is_there(*id));
    }

    /// Returns true if there is room for one more group. Of the groups that may make room, those
    /// that no sweep has touched come first, then those with little memory that is out.
    fn make_room(&mut self, may_go: impl Fn(&Group) -> bool) -> bool {
        if self.groups.len() < MOST_GROUPS {
            return true;
        }
        let may_go = self.groups.iter().filter(|(_, group)| may_go(group));
        let read = |group: &Group| group.read.map(|(at, _)| at);
        let first = may_go.min_by_key(|(_, group)| (group.until.is_some(), group.held, read(group)));
        let id = first.map(|(id, _)| *id);
        id.is_some_and(|id| self.groups.remove(&id).is_some())
    }
}

impl Group {
    fn counts(&self, at: Monotonic) -> bool {
        self.is_swept || self.until.is_some_and(|until| at < until)
    }

    fn held(&self) -> Bytes {
        let swapped = self.read.and_then(|(_, counters)| counters.swapped).unwrap_or_default();
        self.held.min(swapped)
    }

    fn read(&mut self, now: Monotonic, counters: Counters, on_purpose: bool) -> Regret {
        let before = self.read.replace((now, counters));
        let since = before.map_or(now, |(at, _)| at);
        self.note_back(before.map(|(_, counters)| counters), counters);
        // What happened since the last reading counts if it may have happened in time.
        let counts = self.counts(since);
        let waited = counters.waited.map(|waited| u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
        let refaults = counters.refaults.map(|bytes| bytes.0);
        let mut cost = Regret::default();
        for (meter, value, kind) in
            [(&mut self.waited, waited, Kind::Waited), (&mut self.refaults, refaults, Kind::Refaults)]
        {
            match meter.read(now, value, counts) {
                _ if !counts => {}
                Ok(_) if on_purpose => {}
                Ok(extra) if kind == Kind::Waited => cost.waited = Duration::from_micros(extra),
                Ok(extra) => cost.refaults = Bytes(extra),
                Err(Unknown) => cost.is_incomplete = true,
            }
        }
        cost
    }

    /// Takes away what came back from the memory that is out.
    fn note_back(&mut self, before: Option<Counters>, now: Counters) {
        let Some(before) = before else { return };
        let less = |of: fn(&Counters) -> Option<Bytes>, from: &Counters, to: &Counters| {
            of(from).zip(of(to)).map_or(Bytes::ZERO, |(from, to)| from - to)
        };
        let left_swap = less(|counters| counters.swapped, &before, &now);
        let refaulted = less(|counters| counters.refaults_anon, &now, &before);
        // Each page that comes back is a refault, and leaves swap then or later.
        self.held = self.held - left_swap.max(refaulted);
        if !self.is_swept {
            self.held = self.held.min(now.swapped.unwrap_or(self.held));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Waited,
    Refaults,
}

/// A counter is not known, or went back.
struct Unknown;

/// One counter of a group.
#[derive(Clone, Debug, Default)]
struct Meter {
    last: Option<(Monotonic, u64)>,
    /// Two earlier values, the older first, from which the rate is known.
    earlier: [Option<(Monotonic, u64)>; 2],
    /// The rate before the sweep: an amount in a time.
    rate: (u64, Duration),
    /// The allowance that is left, times the time of the rate in nanoseconds.
    left: u128,
}

impl Meter {
    /// Takes in a value. Returns how far the counter went beyond the allowance.
    fn read(&mut self, now: Monotonic, value: Option<u64>, counts: bool) -> Result<u64, Unknown> {
        let before = core::mem::replace(&mut self.last, value.map(|value| (now, value)));
        let Some(value) = value else {
            self.earlier = [None; 2];
            return Err(Unknown);
        };
        if !counts {
            self.learn(now, value);
            return Ok(0);
        }
        self.earlier = [None; 2];
        let Some((since, before)) = before.filter(|(_, before)| *before <= value) else { return Err(Unknown) };
        let (amount, time) = (u128::from(self.rate.0), self.rate.1.as_nanos().max(1));
        let earned = amount.saturating_mul(now.since(since).as_nanos());
        let most = amount.saturating_mul(ALLOWANCE_TIME.as_nanos());
        let spent = u128::from(value - before).saturating_mul(time);
        let left = self.left.saturating_add(earned);
        let extra = spent.saturating_sub(left) / time;
        self.left = left.saturating_sub(spent).min(most);
        Ok(u64::try_from(extra).unwrap_or(u64::MAX))
    }

    /// Keeps a value from which the rate will be known.
    fn learn(&mut self, now: Monotonic, value: u64) {
        let newest = self.earlier[1].or(self.earlier[0]);
        match newest {
            Some((_, before)) if before > value => self.earlier = [Some((now, value)), None],
            Some((at, _)) if now.since(at) < BASELINE_STEP => {}
            Some(newest) => self.earlier = [Some(newest), Some((now, value))],
            None => self.earlier[0] = Some((now, value)),
        }
    }

    /// A sweep begins: the rate until now is the allowance.
    fn fix_rate(&mut self) {
        let known = self.last.zip(self.earlier[0]).map(|((now, value), (at, before))| {
            // A rate of nothing, where too little is known.
            let time = now.since(at);
            if time >= SHORTEST_BASELINE { (value.saturating_sub(before), time) } else { (0, ALLOWANCE_TIME) }
        });
        self.rate = known.unwrap_or((0, ALLOWANCE_TIME));
        self.left = 0;
    }
}
