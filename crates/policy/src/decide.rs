//! One tick: is it time for a sweep, of which group, or must a running one end?

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::budget::Writes;
use crate::config::{Class, Config, Goal, Guard};
use crate::idle::IdleState;
use crate::pace::Job;
use crate::rank::Processes;
use crate::reason::Reason;
use crate::signals::{ByAge, End, Finished, Group, Machine, Old, Signals};

/// What the policy remembers from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    idle: IdleState,
    /// No sweep before that moment, since the machine woke up.
    awake: Option<Monotonic>,
    paused: Option<Pause>,
    /// `omr warm` brings memory back.
    warming: bool,
    /// What the machine is being prepared for.
    preparing: Option<String>,
    /// No sweep before that moment, or before it has woken up: the machine is about to sleep.
    going_to_sleep: Option<Monotonic>,
    /// The group being swept.
    sweeping: Option<GroupId>,
    /// Groups that were swept, or could not be.
    swept: BTreeMap<GroupId, Swept>,
    /// Writes to swap on disk.
    pub writes: Writes,
    /// Processes that were looked at. Not recorded: whoever goes on from a record looks at them anew.
    #[serde(skip)]
    pub(crate) processes: Processes,
    /// One of them is being hinted away.
    #[serde(skip)]
    hinting: bool,
}

/// A machine that is to sleep and does not within this time, on a clock that stands still meanwhile, will
/// not: shrinking and copying 8 GiB for hibernation took 75 s.
const FALLING_ASLEEP: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Pause {
    Until(Monotonic),
    ForGood,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Swept {
    /// When its last sweep ended; `None` while one runs.
    ended: Option<Monotonic>,
    /// The least it has held since then.
    size: Bytes,
    /// The most it held when a sweep began: what a keep rule in percent is a share of, so that one
    /// sweep after the other does not keep less and less.
    peak: Bytes,
    /// What it should hold once the sweep that runs is complete, by the figures it began with.
    aim: Bytes,
    /// The sweep was cut short: go on as soon as possible.
    unfinished: bool,
    /// So many sweeps in a row were cut short.
    tries: u32,
    /// Swap was short: go on when there is some.
    swap_short: bool,
    /// The goal took less than was to be had: go on when it takes more.
    #[serde(default)]
    spared: bool,
    /// Start of the current minute of refaults, and the counter then.
    minute: Option<(Monotonic, Bytes)>,
    backoff: Option<Backoff>,
}

impl Swept {
    /// Forgets a back-off when a sweep after it did no harm for as long as it lasted.
    fn forgive(&mut self, now: Monotonic) {
        if let (Some(last), Some(ended)) = (self.backoff, self.ended)
            && ended >= last.until
            && now.since(ended) >= last.length
        {
            self.backoff = None;
        }
    }

    /// Twice as long as the last time, unless a sweep in between did no harm.
    fn back_off(&mut self, guard: &Guard, now: Monotonic, refaults: Option<Bytes>) {
        self.forgive(now);
        let length = match self.backoff {
            // Still the pages of the sweep that it is backing off for.
            Some(last) if self.ended.is_some_and(|ended| ended < last.until) || now < last.until => last.length,
            Some(last) => last.length.saturating_mul(2),
            None => guard.backoff,
        };
        let length = length.min(guard.backoff_max);
        self.backoff = Some(Backoff { until: now + length, length, refaults });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Backoff {
    until: Monotonic,
    length: Duration,
    refaults: Option<Bytes>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Decision {
    /// Nothing.
    Hold {
        /// Why.
        reason: Reason,
    },
    /// Begin to reclaim a group. [`State::finished`] tells the policy how that ended, and
    /// [`State::interrupt`] when it was because somebody began to work.
    Sweep {
        /// The group.
        id: GroupId,
        /// How.
        job: Job,
        /// Why now.
        reason: Reason,
    },
    /// Let the running sweep go on.
    Continue {
        /// Why.
        reason: Reason,
    },
    /// End the running sweep.
    Stop {
        /// Why.
        reason: Reason,
    },
}

impl Decision {
    /// Its reason.
    pub fn reason(&self) -> &Reason {
        match self {
            Decision::Hold { reason }
            | Decision::Sweep { reason, .. }
            | Decision::Continue { reason }
            | Decision::Stop { reason } => reason,
        }
    }
}

/// How long refaults are held against a sweep.
const ATTRIBUTION: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);
/// A group that was swept to the end is left alone for this long, however fast it grows: a stream of
/// file pages must not make a sweep of every tick.
const REST: Duration = Duration::from_secs(60);

/// The decision of this tick.
pub fn decide(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    let verdict = idle(config, state, signals);
    let harm = note_growth_and_refaults(config, state, signals, groups);
    match (verdict, state.sweeping) {
        (Err(reason), Some(_)) => Decision::Stop { reason },
        (Err(reason), None) => Decision::Hold { reason },
        (Ok(held), Some(id)) => match harm.or_else(|| no_longer(state, id, groups)) {
            Some(reason) => Decision::Stop { reason },
            None => Decision::Continue { reason: Reason::Idle { held } },
        },
        (Ok(_), None) if state.hinting => Decision::Hold { reason: Reason::Hinting },
        (Ok(held), None) => match state.idle.surge(&config.stop) {
            Some(reason) => Decision::Hold { reason },
            None => choose(config, state, signals, groups, held),
        },
    }
}

/// The next group of a running sweep, right after one is finished: on the verdict of the last tick,
/// because a few milliseconds say nothing about an idle machine.
pub fn next(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Decision {
    match quiet(config, state, signals.now).and_then(|()| state.idle.held(signals.now)) {
        Err(reason) => Decision::Hold { reason },
        Ok(held) if state.sweeping.is_some() => Decision::Continue { reason: Reason::Idle { held } },
        Ok(held) => choose(config, state, signals, groups, held),
    }
}

/// What must still leave memory until the goal is reached, or why there is nothing to do. `Bytes::MAX`
/// where the goal is to free all that may be freed.
fn wanted(config: &Config, machine: &Machine) -> Result<Bytes, Reason> {
    if config.goal == Goal::Free {
        return Ok(Bytes::MAX);
    }
    let image = machine.image.ok_or(Reason::CannotHibernate)?;
    let target = config.hibernate.image;
    match image - target {
        _ if target == Bytes::ZERO => Ok(Bytes::MAX),
        Bytes::ZERO => Err(Reason::SmallImage { image, target }),
        // An image that is small enough by a hair would be too large a moment later.
        above => Ok(above + config.sweep.growth),
    }
}

/// The group with most to gain.
fn choose(config: &Config, state: &mut State, signals: &Signals, groups: &[Group], held: Duration) -> Decision {
    let wanted = match wanted(config, &signals.machine) {
        Ok(wanted) => wanted,
        Err(reason) => return Decision::Hold { reason },
    };
    let best = groups
        .iter()
        .filter_map(|group| judge(config, state, signals, group).ok().map(|(job, id)| (group, job, id)))
        // Each sweep that was cut short halves the weight of what is left, so that a group that never
        // gets done does not keep the others waiting for ever. Of equals the one with the smaller id, so
        // that the same input gives the same choice.
        .max_by_key(|(_, job, id)| {
            let tries = state.swept.get(id).map_or(0, |swept| swept.tries);
            (job.amount.0.checked_shr(tries), core::cmp::Reverse(*id))
        });
    let Some((group, mut job, id)) = best else { return Decision::Hold { reason: Reason::NothingToGain } };
    let spared = wanted < job.amount;
    job.amount = job.amount.min(wanted);
    let swap_short = takeable(state, group).is_ok_and(|held| swap_room(config, state, signals, &held).is_err());
    state.sweeping = Some(id);
    let swept = state.swept.entry(id).or_default();
    swept.forgive(signals.now);
    swept.ended = None;
    // From now on what comes back into it is counted.
    swept.minute = group.refaults.map(|refaults| (signals.now, refaults));
    swept.peak = swept.peak.max(group.current.unwrap_or_default());
    swept.aim = group.current.unwrap_or_default() - job.amount;
    swept.swap_short = swap_short;
    swept.spared = spared;
    Decision::Sweep { id, job, reason: Reason::Idle { held } }
}

/// Why the group being swept may not be swept any more.
fn no_longer(state: &State, id: GroupId, groups: &[Group]) -> Option<Reason> {
    match groups.iter().find(|group| group.id == id) {
        Some(group) => takeable(state, group).err(),
        None => Some(Reason::Unknown { signal: "the group that is being swept".to_owned() }),
    }
}

fn idle(config: &Config, state: &mut State, signals: &Signals) -> Result<Duration, Reason> {
    let now = signals.now;
    if signals.slept {
        state.idle.reset();
        state.going_to_sleep = None;
        state.awake = Some(now + config.sweep.after_resume);
    }
    // The idle rule sees every tick, whatever else holds sweeps back.
    let idle = state.idle.tick(&config.idle, now, &signals.machine);
    quiet(config, state, now)?;
    idle
}

/// Whether sweeps and hints are held back, however idle the machine is.
pub(crate) fn quiet(config: &Config, state: &mut State, now: Monotonic) -> Result<(), Reason> {
    if let Some(what) = &state.preparing {
        return Err(Reason::Preparing { what: what.clone() });
    }
    match state.paused {
        Some(Pause::Until(until)) if now >= until => state.paused = None,
        Some(Pause::Until(until)) => return Err(Reason::Paused { left: Some(until.since(now)) }),
        Some(Pause::ForGood) => return Err(Reason::Paused { left: None }),
        None => {}
    }
    if state.warming {
        return Err(Reason::Warming);
    }
    if let Some(until) = state.going_to_sleep {
        if now < until {
            return Err(Reason::GoingToSleep { left: until.since(now) });
        }
        state.going_to_sleep = None;
    }
    let booted = Monotonic(0) + config.sweep.after_boot;
    if now < booted {
        return Err(Reason::AfterBoot { left: booted.since(now) });
    }
    match state.awake {
        Some(awake) if now < awake => Err(Reason::AfterResume { left: awake.since(now) }),
        _ => Ok(()),
    }
}

/// Swap that must stay free when `amount` more goes out.
///
/// What a sweep moves to swap need not be in a hibernation image any more, so of what the image
/// needs now only the rest has to stay free, and besides that what is free elsewhere: the kernel fills
/// the other swap only when there is no room left for an image.
pub fn swap_floor(config: &Config, machine: &Machine, amount: Bytes) -> Bytes {
    let (total, beside) = machine.swap.map(|swap| (swap.total, swap.beside)).unwrap_or_default();
    let image = machine.image.map_or(Bytes::ZERO, |image| (image - amount) + beside);
    config.guard.swap_floor.of(total).max(image)
}

/// What of a group may go to swap now.
struct SwapRoom {
    bytes: Bytes,
    /// Swap that must stay free.
    floor: Bytes,
    /// May be written to swap on disk.
    writes: Bytes,
}

/// How much of a group may go to swap now, or why nothing may.
fn swap_room(config: &Config, state: &State, signals: &Signals, held: &Held) -> Result<SwapRoom, Reason> {
    let unknown = || Reason::Unknown { signal: "the free swap space".to_owned() };
    let swap = signals.machine.swap.ok_or_else(unknown)?;
    if swap.total.0 == 0 {
        return Err(Reason::NoSwap);
    }
    let mut writes = Bytes::MAX;
    if swap.on_disk
        && let Some(budget) = config.guard.max_swap_writes
    {
        writes = state.writes.left(signals.hour, Some(budget));
        if writes < config.sweep.smallest {
            return Err(Reason::WriteBudget { used: state.writes.within(signals.hour, budget.hours), budget });
        }
    }
    let out = held.swap_backed.min(swap.free).min(writes);
    let floor = swap_floor(config, &signals.machine, held.room.min(held.page_cache + out));
    let room = swap.free - floor;
    if room < config.sweep.smallest {
        return Err(Reason::SwapFloor { free: swap.free, floor });
    }
    Ok(SwapRoom { bytes: room.min(writes), floor, writes })
}

/// What a group holds.
struct Held {
    current: Bytes,
    swap_backed: Bytes,
    page_cache: Bytes,
    /// What its class, its keep rule and the kernel's protection leave to be taken; not zero, unless
    /// the group is empty.
    room: Bytes,
}

/// What may be taken from a group, or why nothing may.
fn takeable(state: &State, group: &Group) -> Result<Held, Reason> {
    if group.class != Class::Background {
        return Err(Reason::Class { class: group.class });
    }
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    let current = group.current.ok_or_else(|| unknown("memory.current"))?;
    let page_cache = group.page_cache.ok_or_else(|| unknown("memory.stat"))?;
    let swap_backed = group.swap_backed.ok_or_else(|| unknown("memory.stat"))?;
    let unprotected = group.unprotected.ok_or_else(|| unknown("memory.min or memory.low"))?;
    // Without them nobody would notice the harm a sweep does.
    group.refaults.ok_or_else(|| unknown("what comes back (workingset_refault in memory.stat)"))?;
    let peak = state.swept.get(&group.id).map_or(current, |swept| swept.peak.max(current));
    let keep = group.keep.map_or(Bytes::ZERO, |keep| keep.of(peak));
    let room = current - keep;
    if room.0 == 0 && keep.0 > 0 {
        return Err(Reason::Keep { keep });
    }
    if unprotected.0 == 0 && current.0 > 0 {
        return Err(Reason::KernelProtection);
    }
    Ok(Held { current, swap_backed, page_cache, room: room.min(unprotected) })
}

/// Whether a group is worth a sweep: how it would be done, or why not.
pub fn judge(config: &Config, state: &State, signals: &Signals, group: &Group) -> Result<(Job, GroupId), Reason> {
    let held = takeable(state, group)?;
    wanted(config, &signals.machine)?;
    let Held { current, swap_backed, page_cache, room } = held;
    let swept = state.swept.get(&group.id);
    if let Some(backoff) = swept.and_then(|swept| swept.backoff)
        && signals.now < backoff.until
    {
        return Err(Reason::BackingOff { left: backoff.until.since(signals.now), refaults: backoff.refaults });
    }
    if let Some(by_age) = &group.by_age {
        let job = judge_by_age(config, state, signals, by_age, &held, swept)?;
        return Ok((job, group.id));
    }
    let swap = swap_room(config, state, signals, &held);
    let reclaimable = match &swap {
        Ok(swap) => page_cache + swap_backed.min(swap.bytes),
        // Without the key the kernel would swap all the same, unless there is nothing to swap to.
        Err(Reason::NoSwap) => page_cache,
        Err(reason) if !signals.machine.file_only => return Err(reason.clone()),
        Err(_) => page_cache,
    };
    let gain = room.min(reclaimable);
    if gain < config.sweep.smallest {
        return Err(match swap {
            Err(reason) if room.min(page_cache + swap_backed) >= config.sweep.smallest => reason,
            _ => Reason::TooSmall { gain, smallest: config.sweep.smallest },
        });
    }
    if let Some(swept) = swept.filter(|swept| !swept.unfinished && !swept.spared)
        && let Some(ended) = swept.ended
    {
        let grown = current - swept.size;
        let swap_is_back = swept.swap_short && swap.as_ref().is_ok_and(|swap| swap.bytes >= config.sweep.growth);
        if grown < config.sweep.growth && !swap_is_back {
            return Err(Reason::SweptAlready { grown, needed: config.sweep.growth });
        }
        rested(signals.now, ended)?;
    }
    // Where nothing may be swapped now, nothing may be swapped during the job.
    let (swap_floor, swap_writes) = swap.map_or((Bytes::MAX, Bytes::ZERO), |swap| (swap.floor, swap.writes));
    let job = Job {
        amount: gain,
        floor: current - room,
        swap_floor,
        swap_writes,
        file_only: signals.machine.file_only,
        step: config.sweep.step,
        write_time: config.sweep.write_time,
    };
    Ok((job, group.id))
}

/// The same for a group of which only what is old is taken. It grows old without growing, so how much it has grown
/// does not matter.
fn judge_by_age(
    config: &Config,
    state: &State,
    signals: &Signals,
    ByAge { older_than, old }: &ByAge,
    held: &Held,
    swept: Option<&Swept>,
) -> Result<Job, Reason> {
    let old = match old {
        Old::Known { bytes } => *bytes,
        Old::NotYet => return Err(Reason::NotAged { needed: *older_than }),
        Old::Never { why } => return Err(Reason::NoAges { why: why.clone() }),
    };
    let smallest = config.sweep.smallest;
    if old < smallest {
        return Err(Reason::Young { old, older_than: *older_than, smallest });
    }
    // The age of page cache is not known, so all of it goes to swap.
    let swap_backed = held.swap_backed.min(old);
    let room = held.room.min(swap_backed);
    let swap = swap_room(config, state, signals, &Held { swap_backed, page_cache: Bytes::ZERO, room, ..*held })?;
    let gain = room.min(swap.bytes);
    if gain < smallest {
        return Err(Reason::TooSmall { gain, smallest });
    }
    if let Some(ended) = swept.filter(|swept| !swept.unfinished).and_then(|swept| swept.ended) {
        rested(signals.now, ended)?;
    }
    Ok(Job {
        amount: gain,
        floor: held.current - held.room,
        swap_floor: swap.floor,
        swap_writes: swap.writes,
        file_only: false,
        step: config.sweep.step,
        write_time: config.sweep.write_time,
    })
}

/// Whether a sweep to the end is long enough ago.
fn rested(now: Monotonic, ended: Monotonic) -> Result<(), Reason> {
    let rested = now.since(ended);
    if rested < REST { Err(Reason::JustSwept { left: REST.saturating_sub(rested) }) } else { Ok(()) }
}

/// Notes what the groups that were swept hold and what comes back into them. Groups into which too
/// much does back off; returns why, when the one being swept is among them.
fn note_growth_and_refaults(config: &Config, state: &mut State, signals: &Signals, groups: &[Group]) -> Option<Reason> {
    let now = signals.now;
    let mut harm = None;
    for group in groups {
        let Some(swept) = state.swept.get_mut(&group.id) else { continue };
        if let Some(current) = group.current {
            swept.size = swept.size.min(current);
        }
        let Some(refaults) = group.refaults else { continue };
        if swept.ended.is_some_and(|ended| now.since(ended) > ATTRIBUTION) {
            swept.minute = None;
            continue;
        }
        let (began, base) = match swept.minute {
            // A counter that went back begins anew.
            Some((began, base)) if base <= refaults => (began, base),
            _ => (now, refaults),
        };
        let bytes = refaults - base;
        let allowed = config.guard.refaults_per_minute;
        let over = bytes > allowed;
        swept.minute = Some(if over || now.since(began) >= MINUTE { (now, refaults) } else { (began, base) });
        if over {
            swept.back_off(&config.guard, now, Some(bytes));
            if state.sweeping == Some(group.id) {
                harm = Some(Reason::Refaults { bytes, allowed });
            }
        }
    }
    harm
}

impl State {
    /// The group being swept.
    pub fn sweeping(&self) -> Option<GroupId> {
        self.sweeping
    }

    /// CPU time used outside background groups lately, as a share of one CPU.
    pub fn steady_load(&self) -> Permyriad {
        self.idle.steady_load()
    }

    /// The sweep of a group has ended.
    pub fn finished(&mut self, config: &Config, now: Monotonic, hour: u64, finished: &Finished) {
        if self.sweeping == Some(finished.id) {
            self.sweeping = None;
        }
        self.writes.add(hour, finished.swap_writes);
        if finished.end == End::Gone {
            self.swept.remove(&finished.id);
            return;
        }
        let swept = self.swept.entry(finished.id).or_default();
        swept.ended = Some(now);
        // A job that is complete while the group holds more than it should have left was given by old
        // figures: what is beyond them is growth.
        swept.size = if finished.end == End::Complete { finished.size.min(swept.aim) } else { finished.size };
        swept.minute = swept.minute.or_else(|| finished.refaults.map(|refaults| (now, refaults)));
        swept.swap_short |= matches!(finished.end, End::SwapFloor | End::WriteBudget);
        swept.unfinished = !matches!(
            finished.end,
            End::Complete
                | End::Floor
                | End::Futile
                | End::SwapFloor
                | End::WriteBudget
                | End::Young
                | End::NotAged
                | End::NotSeen
        );
        swept.tries = if swept.unfinished { swept.tries.saturating_add(1) } else { 0 };
        if matches!(finished.end, End::Denied | End::Unsupported | End::Failed | End::NotSeen) {
            swept.back_off(&config.guard, now, None);
        }
    }

    /// Somebody began to work in the middle of a sweep.
    pub fn interrupt(&mut self, now: Monotonic) {
        self.idle.interrupt(now);
    }

    /// No sweeps, for a time or until [`State::resume`].
    pub fn pause(&mut self, now: Monotonic, time: Option<Duration>) {
        self.paused = Some(time.map_or(Pause::ForGood, |time| Pause::Until(now + time)));
    }

    /// The machine is about to sleep: no sweeps until it has woken up. Another pause stays what it is.
    pub fn fall_asleep(&mut self, now: Monotonic) -> Reason {
        self.going_to_sleep = Some(now + FALLING_ASLEEP);
        Reason::GoingToSleep { left: FALLING_ASLEEP }
    }

    /// Sweeps again.
    pub fn resume(&mut self) {
        self.paused = None;
    }

    /// Whether memory is being brought back on purpose: nothing is taken away meanwhile.
    pub fn set_warming(&mut self, warming: bool) {
        self.warming = warming;
    }

    /// Whether a process is being hinted away, which is not to be mixed with a sweep.
    pub fn set_hinting(&mut self, hinting: bool) {
        self.hinting = hinting;
    }

    /// So much came back into a group on purpose, which the kernel counts as refaults: no harm that a
    /// sweep did.
    pub fn excuse(&mut self, id: GroupId, bytes: Bytes) {
        if let Some((_, base)) = self.swept.get_mut(&id).and_then(|swept| swept.minute.as_mut()) {
            *base += bytes;
        }
    }

    /// The machine is being prepared for this, or not any more: meanwhile there are no sweeps.
    pub fn prepare(&mut self, what: Option<String>) {
        self.preparing = what;
    }

    /// The configuration changed: the rule must hold anew.
    pub fn reconfigured(&mut self) {
        self.idle.reset();
    }

    /// Forgets groups that are not in this list, which is sorted.
    pub fn retain(&mut self, groups: &[GroupId]) {
        self.swept.retain(|id, _| groups.binary_search(id).is_ok());
    }

    /// What came back into a group in the current minute, when it was swept lately.
    pub fn refaults_this_minute(&self, group: &Group) -> Option<Bytes> {
        let (_, base) = self.swept.get(&group.id)?.minute?;
        Some(group.refaults? - base)
    }

    /// All groups that are backing off, for `omr status`.
    pub fn backing_off(&self, now: Monotonic) -> Vec<GroupId> {
        self.swept
            .iter()
            .filter(|(_, swept)| swept.backoff.is_some_and(|backoff| now < backoff.until))
            .map(|(id, _)| *id)
            .collect()
    }
}
