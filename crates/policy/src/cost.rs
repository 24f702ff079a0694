//! What a sweep may cost, with `goal = "auto"`: how much may be written to swap on disk now.
//!
//! A write wears out flash, wakes a disk, and takes power from a battery. Each medium has a budget,
//! and of several disks the smallest counts. A machine on battery writes to no disk. What is not
//! known counts as what costs most. Swap in memory (zram) costs no writes, and page cache that is
//! clean leaves without one.
//!
//! With another goal only `guard.max_swap_writes` and `guard.swap_floor` count.

use alloc::vec::Vec;
use core::fmt;

use omr_units::{Amount, Budget, Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use crate::budget::Writes;
use crate::config::{Config, Goal};
use crate::gates;
use crate::pace::Job;
use crate::reason::Reason;
use crate::signals::{Machine, Signals, Swap, SwapContext};
use crate::state::State;

/// The `[cost]` settings. In a budget `None` is any amount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// What may be written to swap on an SSD.
    pub ssd_writes: Option<Budget>,
    /// What may be written to swap on a disk that rotates.
    pub rotational_writes: Option<Budget>,
    /// What may be written to swap on a memory card, an eMMC chip or a USB stick.
    pub card_writes: Option<Budget>,
    /// The share of the size of a disk without moving parts that may be written in a day. The
    /// endurance of flash grows with its size.
    pub device_share: Permyriad,
    /// Where sweeps may write to while the machine runs on its battery.
    pub on_battery: OnBattery,
    /// Swap that stays free: a size or a share of all swap. `guard.swap_floor` holds as well.
    pub swap_floor: Amount,
}

impl Default for Cost {
    fn default() -> Self {
        let a_day = |bytes| Some(Budget { bytes, hours: 24 });
        Cost {
            ssd_writes: a_day(Bytes(20 << 30)),
            rotational_writes: a_day(Bytes(4 << 30)),
            card_writes: a_day(Bytes::mib(512)),
            device_share: Permyriad::percent(2),
            on_battery: OnBattery::Memory,
            swap_floor: Amount::Share(Permyriad::percent(30)),
        }
    }
}

/// Where sweeps may write to while the machine runs on its battery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBattery {
    /// To swap in memory only.
    #[default]
    Memory,
    /// To disks as well, as on mains.
    Disk,
}

impl OnBattery {
    /// The name in configuration and output.
    pub fn name(self) -> &'static str {
        match self {
            OnBattery::Memory => "memory",
            OnBattery::Disk => "disk",
        }
    }

    /// The value with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [OnBattery::Memory, OnBattery::Disk].into_iter().find(|value| value.name() == name)
    }
}

/// What a write to swap costs on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostFacts {
    /// The disks that all swap is on. Empty: unknown, if there is swap on a disk.
    pub disks: Vec<Disk>,
    /// Where the machine gets its power from.
    pub power: Power,
    /// Free swap in memory that the kernel fills before any disk.
    pub memory_first: Bytes,
}

/// A disk that swap is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its medium.
    pub medium: Medium,
    /// Its size; `None`: unknown.
    pub size: Option<Bytes>,
}

/// The medium of a disk, by what a write to it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory: a write costs nothing.
    Memory,
    /// An SSD, on NVMe or not.
    Ssd,
    /// A disk that rotates.
    Rotational,
    /// A memory card, an eMMC chip or a USB stick.
    Card,
    /// Not known; also a disk in another machine.
    Unknown,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Medium::Memory => "memory",
            Medium::Ssd => "SSD",
            Medium::Rotational => "rotating disk",
            Medium::Card => "memory card",
            Medium::Unknown => "unknown medium",
        })
    }
}

impl Medium {
    /// The medium with its article, such as `an SSD`.
    pub(crate) fn with_article(self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Ssd => "an SSD",
            Medium::Rotational => "a rotating disk",
            Medium::Card => "a memory card",
            Medium::Unknown => "a disk of unknown medium",
        }
    }
}

/// Where the machine gets its power from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// The mains.
    Mains,
    /// A battery.
    Battery,
    /// Not known, which counts as a battery.
    #[default]
    Unknown,
}

/// A limit of what may be written to swap on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The budget.
    pub budget: Budget,
    /// The medium that it is for; `None`: `guard.max_swap_writes`, for any medium.
    pub medium: Option<Medium>,
}

/// Bytes that may be written to swap on disk now; `Bytes::MAX`: any amount. `Err`: none, for a
/// reason that is no budget.
pub fn disk_writes(config: &Config, machine: &Machine, writes: &Writes, hour: u64) -> Result<Bytes, Reason> {
    on_mains(config, machine)?;
    let limit = limit(config, machine, writes, hour);
    Ok(limit.map_or(Bytes::MAX, |limit| writes.left(hour, Some(limit.budget))))
}

/// The limit that is reached first; `None`: there is no limit.
pub fn limit(config: &Config, machine: &Machine, writes: &Writes, hour: u64) -> Option<Limit> {
    let guard = config.guard.max_swap_writes.map(|budget| Limit { budget, medium: None });
    let media = (config.goal == Goal::Auto).then(|| media_limits(&config.cost, &machine.cost));
    let all = guard.into_iter().chain(media.into_iter().flatten());
    all.min_by_key(|limit| (writes.left(hour, Some(limit.budget)), limit.budget.bytes))
}

/// Swap that must stay free while `amount` more is swapped out by the daemon.
pub fn swap_floor(config: &Config, context: SwapContext, amount: Bytes) -> Bytes {
    let floor = gates::swap_floor(config, context, amount);
    match (config.goal, context.swap) {
        (Goal::Auto, Some(swap)) => floor.max(config.cost.swap_floor.of(swap.total)),
        _ => floor,
    }
}

/// What may be swapped out now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Bytes that may be written to swap on disk.
    pub writes: Bytes,
    /// Swap that stays free so that nothing is written to a disk; zero: a disk may be written to.
    pub floor: Bytes,
}

/// What may be swapped out now. `Err`: less than `needed`.
pub(crate) fn allowed(
    config: &Config,
    state: &State,
    signals: &Signals,
    swap: Swap,
    needed: Bytes,
) -> Result<Allowed, Reason> {
    let machine = &signals.machine;
    if !swap.on_disk {
        return Ok(Allowed { writes: Bytes::MAX, floor: Bytes::ZERO });
    }
    match enough(config, state, signals, needed) {
        Ok(writes) => Ok(Allowed { writes, floor: Bytes::ZERO }),
        // The kernel fills this swap first, so nothing gets to a disk.
        Err(_) if config.goal == Goal::Auto && machine.cost.memory_first >= needed.max(Bytes(1)) => {
            Ok(Allowed { writes: Bytes::MAX, floor: swap.free - machine.cost.memory_first })
        }
        Err(reason) => Err(reason),
    }
}

/// Bytes that may be written to swap on disk now. `Err`: less than `needed`.
fn enough(config: &Config, state: &State, signals: &Signals, needed: Bytes) -> Result<Bytes, Reason> {
    let (writes, hour) = (&state.writes, signals.hour);
    let left = disk_writes(config, &signals.machine, writes, hour)?;
    match limit(config, &signals.machine, writes, hour) {
        Some(Limit { budget, medium }) if left < needed => {
            let used = writes.within(hour, budget.hours);
            Err(match medium {
                None => Reason::WriteBudget { used, budget },
                Some(medium) => Reason::MediumBudget { medium, used, budget },
            })
        }
        _ => Ok(left),
    }
}

/// Whether a job may write to a disk.
pub(crate) fn is_to_disk(machine: &Machine, job: &Job) -> bool {
    let on_disk = machine.swap.filter(|swap| swap.on_disk && is_on_disk(&machine.cost));
    on_disk.is_some_and(|swap| job.swap_writes > Bytes::ZERO && job.swap_floor < swap.free - machine.cost.memory_first)
}

/// Why nothing may be written to swap on a disk any more, by a sweep or a hint that runs; `None`:
/// it may.
pub fn must_end(config: &Config, machine: &Machine) -> Option<Reason> {
    on_mains(config, machine).err()
}

/// `Err`: the machine is on battery, and so writes to no disk.
fn on_mains(config: &Config, machine: &Machine) -> Result<(), Reason> {
    let CostFacts { power, .. } = machine.cost;
    let is_free = config.goal != Goal::Auto || config.cost.on_battery == OnBattery::Disk;
    match is_free || power == Power::Mains || !is_on_disk(&machine.cost) {
        true => Ok(()),
        false => Err(Reason::OnBattery { power }),
    }
}

/// Whether swap that is called a disk is one. A volume on zram is none.
fn is_on_disk(facts: &CostFacts) -> bool {
    facts.disks.is_empty() || facts.disks.iter().any(|disk| disk.medium != Medium::Memory)
}

/// The limits of all disks.
fn media_limits(rules: &Cost, facts: &CostFacts) -> Vec<Limit> {
    const UNKNOWN: Disk = Disk { medium: Medium::Unknown, size: None };
    let disks = if facts.disks.is_empty() { &[UNKNOWN] } else { &*facts.disks };
    let limits = |disk: &Disk| {
        let medium = disk.medium;
        budgets(rules, disk).into_iter().flatten().map(move |budget| Limit { budget, medium: Some(medium) })
    };
    disks.iter().flat_map(limits).collect()
}

/// The budgets of one disk, which hold all at once. A disk of unknown medium, or of flash of
/// unknown size, has those of all media, so it never has more than another one. (The share of an
/// unknown size is unknown: below 25 GiB it would be less than what a card may take.)
fn budgets(rules: &Cost, disk: &Disk) -> [Option<Budget>; 4] {
    let Cost { ssd_writes, rotational_writes, card_writes, .. } = *rules;
    let share = disk.size.map(|size| Budget { bytes: size.share(rules.device_share), hours: 24 });
    match (disk.medium, share) {
        (Medium::Memory, _) => [None; 4],
        (Medium::Rotational, _) => [rotational_writes, None, None, None],
        (Medium::Ssd, Some(_)) => [ssd_writes, share, None, None],
        (Medium::Card, Some(_)) => [card_writes, share, None, None],
        (Medium::Ssd | Medium::Card | Medium::Unknown, _) => [ssd_writes, rotational_writes, card_writes, share],
    }
}
