//! How long memory was not used: looking at it, by MGLRU's generations or another tracker, and reclaiming by it.

pub mod damon;
pub mod no_recency;
pub mod observe;
pub mod resident;
pub mod smaps;
pub mod tracker;

use std::time::Duration;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::when;
use omr_kernel::Kernel;
use omr_kernel::lockdown::Lockdown;
use omr_kernel::lru_gen::{self, Enabled, Generations};
use omr_policy::age::{Generation, Reading};
use omr_units::Monotonic;

/// Why nothing can be taken by age where ages are known.
pub const NO_SWAP: &str =
    "only what goes to swap is taken by age, as that of page cache is not known, and there is no swap";

/// Shorter times are below what the kernel's counting of time and the agings' own time allow.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longer ones are beyond the 49.7 days that the kernel's milliseconds last, and beyond patience.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// How long memory was not used, as people write it: from 1 s to 7 days.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = when::parse_length_as(text, "2m")?;
    match time {
        _ if time < SHORTEST => Err("expected 1s or more: ages are not known more exactly".into()),
        _ if time > LONGEST => Err("expected 7days or less".into()),
        _ => Ok(time),
    }
}

/// Why ages are not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The kernel has no MGLRU.
    NotBuilt,
    /// It is off.
    Off(Enabled),
    /// It does not look at accessed bits, so what is used looks unused.
    NoWalks(Enabled),
    /// debugfs is not mounted.
    NotMounted,
    /// debugfs has no such file.
    NoFile,
    /// The kernel is locked down.
    LockedDown,
    /// No permission.
    Denied,
    /// In a control group namespace: groups have other paths there.
    OtherPaths,
}

impl Missing {
    /// From what was read; `None` when nothing is missing. `sees_root`: see [`lru_gen::sees_root`].
    pub fn of(
        enabled: Option<Enabled>,
        generations: Generations,
        lockdown: Option<Lockdown>,
        sees_root: bool,
    ) -> Option<Self> {
        Some(match (enabled, generations) {
            (None, _) => Missing::NotBuilt,
            (Some(enabled), _) if !enabled.is_on() => Missing::Off(enabled),
            (Some(enabled), _) if !enabled.walks_page_tables() => Missing::NoWalks(enabled),
            (_, Generations::NotMounted) => Missing::NotMounted,
            (_, Generations::Missing) => Missing::NoFile,
            (_, Generations::Denied) if lockdown.is_some_and(Lockdown::is_locked) => Missing::LockedDown,
            (_, Generations::Denied) => Missing::Denied,
            (_, Generations::Open) if !sees_root => Missing::OtherPaths,
            (_, Generations::Open) => return None,
        })
    }

    /// What was found, and what brings it.
    pub fn says(self) -> String {
        format!("MGLRU {}; {}", self.found(), self.fix())
    }

    /// What was found.
    pub fn found(self) -> String {
        match self {
            Missing::NotBuilt => "not in this kernel".into(),
            Missing::Off(enabled) => format!("off (0x{:04x})", enabled.0),
            Missing::NoWalks(enabled) => format!("on (0x{:04x}), without page-table walks", enabled.0),
            Missing::NotMounted => "debugfs not mounted".into(),
            Missing::NoFile => "no lru_gen in debugfs".into(),
            Missing::LockedDown => "debugfs locked down".into(),
            Missing::Denied => "debugfs closed to this user".into(),
            Missing::OtherPaths => "groups have other paths here".into(),
        }
    }

    /// What brings it.
    pub fn fix(self) -> &'static str {
        match self {
            Missing::NotBuilt => "needs Linux 6.1 built with CONFIG_LRU_GEN",
            Missing::Off(_) => "write \"y\" to /sys/kernel/mm/lru_gen/enabled",
            Missing::NoWalks(_) => "write \"y\" to /sys/kernel/mm/lru_gen/enabled, if the processor sets accessed bits",
            Missing::NotMounted => "mount -t debugfs none /sys/kernel/debug",
            Missing::NoFile => "needs a kernel built with CONFIG_DEBUG_FS",
            Missing::LockedDown => "start without Secure Boot",
            Missing::Denied => "run as root",
            Missing::OtherPaths => "run omr outside of this container",
        }
    }
}

/// What keeps ages from being known now, if anything does.
pub fn missing(kernel: &Kernel) -> Result<Option<Missing>> {
    Ok(Missing::of(
        lru_gen::read_enabled(kernel)?,
        lru_gen::read_generations(kernel),
        Lockdown::read(kernel),
        lru_gen::sees_root(kernel)?,
    ))
}

/// Refuses where ages are not to be had, and says what brings them.
pub fn require(kernel: &Kernel) -> Result<()> {
    match missing(kernel)? {
        None => Ok(()),
        Some(missing) => {
            Err(Exit::Unsupported.error(format!("how long memory was not used is not known here: {}", missing.says())))
        }
    }
}

/// What the policy is told of lists that were read at this moment.
fn reading(kernel: &Kernel, lists: &lru_gen::Lists, now: Monotonic) -> Option<Reading> {
    let generations = lists.generations().iter().map(|generation| Generation {
        number: generation.number,
        born: now - generation.age,
        memory: generation.anon.bytes(kernel.page()),
    });
    Reading::new(generations.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_brings_it() {
        let all = Enabled(7);
        let (integrity, none) = (Some(Lockdown::Integrity), Some(Lockdown::None));
        for (enabled, generations, lockdown, sees_root, expected) in [
            (None, Generations::Open, None, true, Some((Missing::NotBuilt, "CONFIG_LRU_GEN"))),
            (Some(Enabled(0)), Generations::Open, None, true, Some((Missing::Off(Enabled(0)), "write \"y\""))),
            (Some(Enabled(1)), Generations::Open, None, true, Some((Missing::NoWalks(Enabled(1)), "accessed bits"))),
            (Some(all), Generations::NotMounted, integrity, true, Some((Missing::NotMounted, "mount -t debugfs"))),
            (Some(all), Generations::Missing, None, true, Some((Missing::NoFile, "CONFIG_DEBUG_FS"))),
            (Some(all), Generations::Denied, integrity, true, Some((Missing::LockedDown, "without Secure Boot"))),
            (Some(all), Generations::Denied, none, true, Some((Missing::Denied, "run as root"))),
            // Whether it is locked down is not known either: securityfs is closed to this user as well.
            (Some(all), Generations::Denied, None, false, Some((Missing::Denied, "run as root"))),
            (Some(all), Generations::Open, integrity, false, Some((Missing::OtherPaths, "outside of this container"))),
            // A lockdown that has not closed the file is in nobody's way.
            (Some(all), Generations::Open, integrity, true, None),
            (Some(Enabled(3)), Generations::Open, None, true, None),
        ] {
            let missing = Missing::of(enabled, generations, lockdown, sees_root);
            assert_eq!(missing, expected.map(|(missing, _)| missing), "{enabled:?} {generations:?} {lockdown:?}");
            if let (Some(missing), Some((_, says))) = (missing, expected) {
                assert!(missing.says().contains(says), "{}", missing.says());
            }
        }
    }
}
