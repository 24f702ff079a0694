//! The state of the policy, which is kept from tick to tick.
//!
//! The daemon owns one [`State`], passes it to each decision and reports to it what happened in
//! between: the end of a sweep, work that began, a pause, sleep.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use omr_units::{Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::away::AwayState;
use crate::budget::Writes;
use crate::config::Config;
use crate::idle::IdleState;
use crate::presence::PresenceState;
use crate::quiet::QuietState;
use crate::reason::Reason;
use crate::signals::{End, Finished, Group};
use crate::swept::Swept;

/// The state of the policy, which is kept from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub(crate) idle: IdleState,
    #[serde(default)]
    pub(crate) quiet: QuietState,
    #[serde(default)]
    pub(crate) presence: PresenceState,
    #[serde(default)]
    pub(crate) away: AwayState,
    /// No sweep begins before this moment, because the machine woke up; `None`: it has not slept.
    pub(crate) awake: Option<Monotonic>,
    /// `None`: not paused.
    pub(crate) paused: Option<Pause>,
    /// `omr warm` brings memory back.
    pub(crate) warming: bool,
    /// Swap is being switched off.
    #[serde(default)]
    pub(crate) swap_off: bool,
    /// The purpose of the running preparation; `None`: none runs.
    pub(crate) preparing: Option<String>,
    /// The machine is about to sleep: no sweep begins before this moment or before it has woken up.
    pub(crate) going_to_sleep: Option<Monotonic>,
    /// The group being swept; `None`: no sweep runs.
    pub(crate) sweeping: Option<GroupId>,
    /// The sweep that runs may write to swap on a disk.
    #[serde(default)]
    pub(crate) to_disk: bool,
    /// All swap when the sweep that runs began, and whether some of it was on a disk.
    #[serde(default)]
    pub(crate) swap: Option<(Bytes, bool)>,
    /// Groups that were swept, and groups whose sweep failed.
    pub(crate) swept: BTreeMap<GroupId, Swept>,
    /// Writes to swap on disk.
    pub writes: Writes,
    /// A process is being hinted.
    #[serde(skip)]
    pub(crate) hinting: bool,
}

/// The length of a pause of sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pause {
    Until(Monotonic),
    ForGood,
}

/// A machine that announced sleep and is still awake after this time will not sleep any more. The
/// clock stands still during sleep. Preparing and copying 8 GiB for hibernation took 75 s.
const FALLING_ASLEEP: Duration = Duration::from_secs(300);

impl State {
    /// The group being swept; `None`: no sweep runs.
    pub fn sweeping(&self) -> Option<GroupId> {
        self.sweeping
    }

    /// CPU time used outside background groups lately, as a share of one CPU.
    pub fn steady_load(&self) -> Permyriad {
        self.idle.steady_load()
    }

    /// The least of that in any second of the last window, see [`crate::busy::BusyWatch::of_cold`].
    pub fn least_load(&self) -> Permyriad {
        self.idle.least_load()
    }

    /// The running sweep has taken this much CPU time, and ends.
    pub fn spent(&mut self, now: Monotonic, cpu: Duration) {
        self.quiet.spent(now, cpu);
    }

    /// The sweep of a group has ended. `hour` counts the hours of the wall clock since 1970.
    pub fn finished(&mut self, config: &Config, now: Monotonic, hour: u64, finished: &Finished) {
        if self.sweeping == Some(finished.id) {
            self.sweeping = None;
            self.quiet.finished(config, now, finished);
        }
        self.writes.add(hour, finished.swap_writes);
        if finished.end == End::Gone {
            self.swept.remove(&finished.id);
        } else {
            self.swept.entry(finished.id).or_default().finished(&config.guard, now, finished);
        }
    }

    /// Foreground work began in the middle of a sweep.
    pub fn interrupt(&mut self, now: Monotonic) {
        self.idle.interrupt(now);
        self.quiet.interrupt();
    }

    /// No sweep runs for `time`; `None`: until [`State::resume`].
    pub fn pause(&mut self, now: Monotonic, time: Option<Duration>) {
        self.paused = Some(time.map_or(Pause::ForGood, |time| Pause::Until(now + time)));
    }

    /// Ends a pause.
    pub fn resume(&mut self) {
        self.paused = None;
    }

    /// The machine is about to sleep: no sweep runs until it has woken up. A pause stays as it is.
    pub fn fall_asleep(&mut self, now: Monotonic) -> Reason {
        self.going_to_sleep = Some(now + FALLING_ASLEEP);
        Reason::GoingToSleep { left: FALLING_ASLEEP }
    }

    /// The machine has slept and is awake again. Sweeps stay away for `sweep.after_resume`.
    pub(crate) fn woke_up(&mut self, config: &Config, now: Monotonic) {
        self.idle.reset();
        self.quiet.interrupt();
        self.going_to_sleep = None;
        self.awake = Some(now + config.sweep.after_resume);
    }

    /// Sets whether memory is being brought back on purpose. Nothing is reclaimed meanwhile.
    pub fn set_warming(&mut self, warming: bool) {
        self.warming = warming;
    }

    /// Sets whether swap is being switched off. Nothing is reclaimed meanwhile: it would go to swap
    /// that is read back at the same time.
    pub fn set_swap_off(&mut self, swap_off: bool) {
        self.swap_off = swap_off;
    }

    /// Sets whether a process is being hinted. No sweep begins meanwhile.
    pub fn set_hinting(&mut self, hinting: bool) {
        self.hinting = hinting;
    }

    /// Memory of a group was brought back on purpose. The kernel counts it as refaults, but no
    /// sweep caused them.
    pub fn discount_refaults(&mut self, id: GroupId, bytes: Bytes) {
        if let Some((_, base)) = self.swept.get_mut(&id).and_then(|swept| swept.minute.as_mut()) {
            *base += bytes;
        }
    }

    /// Sets what the machine is being prepared for; `None`: for nothing. No sweep runs meanwhile.
    pub fn prepare(&mut self, what: Option<String>) {
        self.preparing = what;
    }

    /// The configuration changed: the idle rule must hold anew.
    pub fn reconfigured(&mut self) {
        self.idle.reset();
        self.quiet.interrupt();
    }

    /// Forgets groups that are not in `groups`, which is sorted.
    pub fn retain(&mut self, groups: &[GroupId]) {
        self.swept.retain(|id, _| groups.binary_search(id).is_ok());
    }

    /// Bytes that were refaulted into a group in the current minute; `None`: the group was not
    /// swept lately, or its counter is unknown.
    pub fn refaults_this_minute(&self, group: &Group) -> Option<Bytes> {
        let (_, base) = self.swept.get(&group.id)?.minute?;
        Some(group.refaults? - base)
    }

    /// All groups that are backing off, for `omr status`.
    pub fn backing_off(&self, now: Monotonic) -> Vec<GroupId> {
        let is_backing_off = |swept: &Swept| swept.backoff.is_some_and(|backoff| now < backoff.until);
        self.swept.iter().filter(|(_, swept)| is_backing_off(swept)).map(|(id, _)| *id).collect()
    }
}
