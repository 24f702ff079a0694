//! Judges if a group is worth a sweep, and makes the job for it.
//!
//! From the group's size, its class and keep rule, the kernel's protection, the swap floor, the
//! write budget and its earlier sweeps. Where a rule says so, only cold memory counts.

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic};

use crate::config::{Class, Config};
use crate::cost;
use crate::gates::{Wanted, wanted};
use crate::giving_back;
use crate::pace::{Job, SMALLEST_STEP};
use crate::presence::permits;
use crate::probe::Answer;
use crate::reason::Reason;
use crate::signals::{ColdAmount, ColdOnly, Group, Signals};
use crate::state::State;
use crate::swept::Swept;

/// A group that was swept to the end is not swept again for this time, however fast it grows.
/// Otherwise a stream of file pages would cause a sweep at every tick.
const REST: Duration = Duration::from_secs(60);

/// The job of a sweep of this group, or why the group is not worth one.
pub fn judge(config: &Config, state: &State, signals: &Signals, group: &Group) -> Result<(Job, GroupId), Reason> {
    let memory = reclaimable(state, group)?;
    let wanted =
        wanted(config, &signals.machine, group.loses_only_cold()).map_err(|reason| match &group.cold_only {
            // The host gains from memory that is known to be cold, which a probe does not know.
            Some(ColdOnly { cold: ColdAmount::Probed { why, .. }, .. }) if reason == Reason::NoMinAge => {
                Reason::NoAges { why: why.clone() }
            }
            _ => reason,
        })?;
    permits(config, state, group)?;
    let swept = state.swept.get(&group.id);
    if let Some(backoff) = swept.and_then(|swept| swept.backoff)
        && signals.now < backoff.until
    {
        return Err(Reason::BackingOff { left: backoff.until.since(signals.now), refaults: backoff.refaults });
    }
    let job = match &group.cold_only {
        Some(ColdOnly { cold: ColdAmount::Probed { answer, out, .. }, .. }) => {
            judge_probed(config, state, signals, *answer, *out, wanted, &memory)
        }
        Some(cold_only) => giving_back::rested(state, group.id, signals.now, cold_only)
            .and_then(|()| judge_cold(config, state, signals, cold_only, &memory, swept)),
        None if wanted.page_cache => judge_all(config, state, signals, &memory, swept),
        None => judge_swap_backed(config, state, signals, &memory, swept),
    };
    job.map(|job| (job, group.id))
}

/// The job for a group of which anything may be reclaimed.
fn judge_all(
    config: &Config,
    state: &State,
    signals: &Signals,
    memory: &Reclaimable,
    swept: Option<&Swept>,
) -> Result<Job, Reason> {
    let Reclaimable { current, .. } = *memory;
    let (job, swap) = job_of_any_age(config, state, signals, memory, config.sweep.smallest)?;
    if let Some(swept) = swept.filter(|swept| !swept.unfinished && !swept.cut_by_goal)
        && let Some(ended) = swept.ended
    {
        let grown = current - swept.size;
        let swap_is_back = swept.swap_short && swap.as_ref().is_ok_and(|swap| swap.bytes >= config.sweep.growth);
        if grown < config.sweep.growth && !swap_is_back {
            return Err(Reason::SweptAlready { grown, needed: config.sweep.growth });
        }
        rested(signals.now, ended)?;
    }
    Ok(job)
}

/// The job that reclaims all that may be reclaimed of a group now, if that is at least `smallest`.
/// `Err` of the swap: nothing may be swapped out, so the job is about page cache only.
fn job_of_any_age(
    config: &Config,
    state: &State,
    signals: &Signals,
    memory: &Reclaimable,
    smallest: Bytes,
) -> Result<(Job, Result<SwapRoom, Reason>), Reason> {
    let Reclaimable { current, swap_backed, page_cache, room } = *memory;
    let swap = swap_room(config, state, signals, memory);
    let reclaimable = match &swap {
        Ok(swap) => page_cache + swap_backed.min(swap.bytes),
        // A kernel that cannot be told to reclaim files only does so all the same without any swap.
        Err(Reason::NoSwap) => page_cache,
        Err(reason) if !signals.machine.file_only => return Err(reason.clone()),
        Err(_) => page_cache,
    };
    let gain = room.min(reclaimable);
    if gain < smallest {
        return Err(match swap {
            Err(reason) if room.min(page_cache + swap_backed) >= smallest => reason,
            _ => Reason::TooSmall { gain, smallest },
        });
    }
    // Where nothing may be swapped now, nothing may be swapped during the job.
    let (swap_floor, swap_writes) = match &swap {
        Ok(swap) => (swap.floor, swap.writes),
        Err(_) => (Bytes::MAX, Bytes::ZERO),
    };
    let file_only = signals.machine.file_only;
    let job = Job { floor: current - room, swap_floor, swap_writes, file_only, ..Job::new(&config.sweep, gain) };
    Ok((job, swap))
}

/// The job for a group of which anything may be reclaimed, and only memory that leaves to swap is a
/// gain. The kernel is asked for that memory first.
fn judge_swap_backed(
    config: &Config,
    state: &State,
    signals: &Signals,
    memory: &Reclaimable,
    swept: Option<&Swept>,
) -> Result<Job, Reason> {
    match judge_all(config, state, signals, &memory.to_swap(), swept) {
        Ok(job) => Ok(anon_first(signals, job)),
        Err(reason) => Err(available_already(reason, memory, config.sweep.smallest)),
    }
}

/// The same job, where only memory that leaves to swap is a gain.
fn anon_first(signals: &Signals, job: Job) -> Job {
    Job { file_only: false, anon_first: signals.machine.file_only, ..job }
}

/// Why a group with page cache has no memory that leaves to swap.
fn available_already(reason: Reason, memory: &Reclaimable, smallest: Bytes) -> Reason {
    match reason {
        Reason::TooSmall { .. } | Reason::NoSwap if memory.page_cache >= smallest => {
            let gain = if let Reason::TooSmall { gain, .. } = reason { gain } else { Bytes::ZERO };
            Reason::AvailableAlready { page_cache: memory.page_cache, gain, smallest }
        }
        reason => reason,
    }
}

/// The job for a group without ages: a step of its probe, of any age. The probe has its own
/// interval and its own smallest step. Where page cache is no gain, the kernel is asked for other
/// memory first. A kernel that cannot be asked takes page cache as well: that counts as taken, and
/// as harm when it comes back.
fn judge_probed(
    config: &Config,
    state: &State,
    signals: &Signals,
    answer: Answer,
    out: Bytes,
    wanted: Wanted,
    memory: &Reclaimable,
) -> Result<Job, Reason> {
    let bytes = match answer {
        Answer::Take { bytes, .. } => bytes,
        Answer::Hold(why) => return Err(Reason::Probing { why, out }),
    };
    let job = if wanted.page_cache {
        job_of_any_age(config, state, signals, memory, SMALLEST_STEP)?.0
    } else {
        let (job, _) = job_of_any_age(config, state, signals, &memory.to_swap(), SMALLEST_STEP)
            .map_err(|reason| available_already(reason, memory, SMALLEST_STEP))?;
        anon_first(signals, job)
    };
    Ok(Job { amount: job.amount.min(bytes), ..job })
}

/// The job for a group of which only cold memory may be reclaimed. Memory becomes cold without the
/// group growing, so growth does not matter here.
fn judge_cold(
    config: &Config,
    state: &State,
    signals: &Signals,
    ColdOnly { min_age, cold, learned, .. }: &ColdOnly,
    memory: &Reclaimable,
    swept: Option<&Swept>,
) -> Result<Job, Reason> {
    let cold = match cold {
        ColdAmount::Known { bytes } => *bytes,
        ColdAmount::NotYet if *learned => return Err(Reason::Learning { threshold: *min_age }),
        ColdAmount::NotYet => return Err(Reason::NotAged { needed: *min_age }),
        ColdAmount::Never { why } | ColdAmount::Probed { why, .. } => {
            return Err(Reason::NoAges { why: why.clone() });
        }
    };
    let smallest = config.sweep.smallest;
    if cold < smallest {
        return Err(Reason::LittleCold { cold, min_age: *min_age, smallest });
    }
    // The age of page cache is unknown, so everything that is reclaimed goes to swap.
    let room = memory.room.min(memory.swap_backed).min(cold);
    let memory_to_swap = Reclaimable { page_cache: Bytes::ZERO, room, ..*memory };
    let swap = swap_room(config, state, signals, &memory_to_swap)?;
    let gain = room.min(swap.bytes);
    if gain < smallest {
        return Err(Reason::TooSmall { gain, smallest });
    }
    if let Some(ended) = swept.filter(|swept| !swept.unfinished).and_then(|swept| swept.ended) {
        rested(signals.now, ended)?;
    }
    let floor = memory.current - memory.room;
    Ok(Job { floor, swap_floor: swap.floor, swap_writes: swap.writes, ..Job::new(&config.sweep, gain) })
}

/// `Err`: the last sweep, which was not cut short, ended only a moment ago.
fn rested(now: Monotonic, ended: Monotonic) -> Result<(), Reason> {
    let rested = now.since(ended);
    if rested < REST { Err(Reason::JustSwept { left: REST.saturating_sub(rested) }) } else { Ok(()) }
}

/// The memory of a group that may be reclaimed, by kind.
pub(crate) struct Reclaimable {
    /// All memory of the group.
    current: Bytes,
    /// Anonymous and shared memory.
    swap_backed: Bytes,
    /// Page cache of files.
    page_cache: Bytes,
    /// The amount that its keep rule and the kernel's protection leave. Zero only if the group is
    /// empty.
    room: Bytes,
}

impl Reclaimable {
    /// The part that leaves to swap.
    fn to_swap(&self) -> Reclaimable {
        Reclaimable { page_cache: Bytes::ZERO, room: self.room.min(self.swap_backed), ..*self }
    }
}

/// Returns the memory of a group that may be reclaimed, or the reason why none may.
pub(crate) fn reclaimable(state: &State, group: &Group) -> Result<Reclaimable, Reason> {
    if group.class != Class::Background {
        return Err(Reason::Class { class: group.class });
    }
    let unknown = |signal: &str| Reason::Unknown { signal: signal.to_owned() };
    let current = group.current.ok_or_else(|| unknown("memory.current"))?;
    let page_cache = group.page_cache.ok_or_else(|| unknown("memory.stat"))?;
    let swap_backed = group.swap_backed.ok_or_else(|| unknown("memory.stat"))?;
    let unprotected = group.unprotected.ok_or_else(|| unknown("memory.min or memory.low"))?;
    // Without the counter the daemon would not notice the harm of a sweep.
    group.refaults.ok_or_else(|| unknown("the refaults (workingset_refault in memory.stat)"))?;
    let peak = state.swept.get(&group.id).map_or(current, |swept| swept.peak.max(current));
    let keep = group.keep.map_or(Bytes::ZERO, |keep| keep.of(peak));
    let room = current - keep;
    if room.0 == 0 && keep.0 > 0 {
        return Err(Reason::Keep { keep });
    }
    if unprotected.0 == 0 && current.0 > 0 {
        return Err(Reason::KernelProtection);
    }
    Ok(Reclaimable { current, swap_backed, page_cache, room: room.min(unprotected) })
}

/// The memory of a group that may be swapped out now.
pub(crate) struct SwapRoom {
    bytes: Bytes,
    /// Swap that must stay free.
    floor: Bytes,
    /// Bytes that may be written to swap on disk.
    writes: Bytes,
}

/// Returns the memory of a group that may be swapped out now, or the reason why none may.
pub(crate) fn swap_room(
    config: &Config,
    state: &State,
    signals: &Signals,
    memory: &Reclaimable,
) -> Result<SwapRoom, Reason> {
    let unknown = || Reason::Unknown { signal: "the free swap space".to_owned() };
    let swap = signals.machine.swap.ok_or_else(unknown)?;
    if swap.total.0 == 0 {
        return Err(Reason::NoSwap);
    }
    let allowed = cost::allowed(config, state, signals, swap, config.sweep.smallest)?;
    let writes = allowed.writes;
    let out = memory.swap_backed.min(swap.free).min(writes);
    let amount = memory.room.min(memory.page_cache + out);
    let floor = cost::swap_floor(config, signals.machine.swap_context(), amount).max(allowed.floor);
    let room = swap.free - floor;
    if room < config.sweep.smallest {
        return Err(Reason::SwapFloor { free: swap.free, floor });
    }
    Ok(SwapRoom { bytes: room.min(writes), floor, writes })
}
