//! The conditions for any reclaim, both for sweeps of groups and for hints of processes: no pause,
//! no sleep ahead, enough free swap, and a goal that is not reached yet.

use omr_units::{Bytes, Monotonic};

use crate::config::{Config, Goal, Mode};
use crate::need::need_of_group;
use crate::reason::Reason;
use crate::signals::{Machine, SwapContext};
use crate::state::{Pause, State};

/// `Err`: something forbids all sweeps and hints, however idle the machine is.
pub(crate) fn unhindered(config: &Config, state: &State, now: Monotonic) -> Result<(), Reason> {
    if config.mode == Mode::Record {
        return Err(Reason::Recording);
    }
    if let Some(what) = &state.preparing {
        return Err(Reason::Preparing { what: what.clone() });
    }
    match state.paused {
        Some(Pause::Until(until)) if now < until => return Err(Reason::Paused { left: Some(until.since(now)) }),
        Some(Pause::ForGood) => return Err(Reason::Paused { left: None }),
        Some(Pause::Until(_)) | None => {}
    }
    if state.warming {
        return Err(Reason::Warming);
    }
    if state.swap_off {
        return Err(Reason::SwapOff);
    }
    if let Some(until) = state.going_to_sleep
        && now < until
    {
        return Err(Reason::GoingToSleep { left: until.since(now) });
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

/// What the goal wants of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// How much must still leave memory until the goal is reached; `Bytes::MAX` where the goal is
    /// to free all that may be freed.
    pub bytes: Bytes,
    /// Whether page cache that leaves is a gain.
    pub page_cache: bool,
}

/// What the goal wants of a group. `cold_only`: only cold memory of the group would be reclaimed.
/// `Err`: the goal needs nothing.
pub(crate) fn wanted(config: &Config, machine: &Machine, cold_only: bool) -> Result<Wanted, Reason> {
    let all_kinds = |bytes| Wanted { bytes, page_cache: true };
    match config.goal {
        Goal::Free => Ok(all_kinds(Bytes::MAX)),
        Goal::Hibernate => above_target(config, machine).map(all_kinds),
        Goal::Auto => {
            let need = need_of_group(config, machine, cold_only)?;
            Ok(Wanted { bytes: need.bytes, page_cache: need.purpose.gains_from_page_cache() })
        }
    }
}

/// How much larger the hibernation image is than it should be.
fn above_target(config: &Config, machine: &Machine) -> Result<Bytes, Reason> {
    let image = machine.image.ok_or(Reason::CannotHibernate)?;
    let target = config.hibernate.image;
    match image - target {
        _ if target == Bytes::ZERO => Ok(Bytes::MAX),
        Bytes::ZERO => Err(Reason::SmallImage { image, target }),
        // An image that is only just small enough would be too large a moment later.
        above => Ok(above + config.sweep.growth),
    }
}

/// Swap that must stay free while `amount` more is swapped out.
///
/// Memory that a sweep moves to swap does not have to be in a hibernation image any more. So the
/// swap of the image needs room for the rest of the image only. Free swap elsewhere must stay free
/// as well: the kernel fills the swap of the image first, and the other swap when no room for an
/// image is left.
pub fn swap_floor(config: &Config, context: SwapContext, amount: Bytes) -> Bytes {
    let (total, free_outside_image) =
        context.swap.map(|swap| (swap.total, swap.free_outside_image)).unwrap_or_default();
    let image = context.image.map_or(Bytes::ZERO, |image| (image - amount) + free_outside_image);
    config.guard.swap_floor.of(total).max(image)
}
