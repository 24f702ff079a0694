//! Judges if a group is worth a sweep, and makes the job for it.
//!
//! From the group's size, its class and keep rule, the kernel's protection, the swap floor, the
//! write budget and its earlier sweeps. Where a rule says so, only cold memory counts.

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic};

use crate::config::{Class, Config};
use crate::cost;
use crate::gates::wanted;
use crate::giving_back;
use crate::pace::Job;
use crate::presence::permits;
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
    let wanted = wanted(config, &signals.machine, group.cold_only.is_some())?;
    permits(config, state, group)?;
    let swept = state.swept.get(&group.id);
    if let Some(backoff) = swept.and_then(|swept| swept.backoff)
        && signals.now < backoff.until
    {
        return Err(Reason::BackingOff { left: backoff.until.since(signals.now), refaults: backoff.refaults });
    }
    let job = match &group.cold_only {
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
    let Reclaimable { current, swap_backed, page_cache, room } = *memory;
    let smallest = config.sweep.smallest;
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
    // Where nothing may be swapped now, nothing may be swapped during the job.
    let (swap_floor, swap_writes) = swap.map_or((Bytes::MAX, Bytes::ZERO), |swap| (swap.floor, swap.writes));
    let file_only = signals.machine.file_only;
    Ok(Job { floor: current - room, swap_floor, swap_writes, file_only, ..Job::new(&config.sweep, gain) })
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
    let room = memory.room.min(memory.swap_backed);
    let to_swap = Reclaimable { page_cache: Bytes::ZERO, room, ..*memory };
    match judge_all(config, state, signals, &to_swap, swept) {
        Ok(job) => Ok(Job { file_only: false, anon_first: signals.machine.file_only, ..job }),
        Err(reason @ (Reason::TooSmall { .. } | Reason::NoSwap)) if memory.page_cache >= config.sweep.smallest => {
            let gain = if let Reason::TooSmall { gain, .. } = reason { gain } else { Bytes::ZERO };
            let smallest = config.sweep.smallest;
            Err(Reason::AvailableAlready { page_cache: memory.page_cache, gain, smallest })
        }
        Err(reason) => Err(reason),
    }
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
        ColdAmount::Never { why } => return Err(Reason::NoAges { why: why.clone() }),
    };
    let smallest = config.sweep.smallest;
    if cold < smallest {
        return Err(Reason::LittleCold { cold, min_age: *min_age, smallest });
    }
    // The age of page cache is unknown, so everything that is reclaimed goes to swap.
    let swap_backed = memory.swap_backed.min(cold);
    let room = memory.room.min(swap_backed);
    let memory_to_swap = Reclaimable { swap_backed, page_cache: Bytes::ZERO, room, ..*memory };
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
