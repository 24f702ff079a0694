//! Ages of memory: how trackers (MGLRU, DAMON, smaps) measure them, and if they are available here.

pub mod damon;
pub mod measurement;
pub mod no_recency;
pub mod observe;
pub mod resident;
pub mod shared_regions;
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

/// The error for reclaim by age on a machine without swap.
pub const NO_SWAP: &str =
    "only memory that goes to swap is reclaimed by age, as the age of page cache is not known; there is no swap";

/// The shortest age: the kernel's clock and the time of an aging allow no shorter one.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest age. The kernel's milliseconds overflow after 49.7 days.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// Parses an age as people write it, from 1 s to 7 days.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = when::parse_length_as(text, "2m")?;
    match time {
        _ if time < SHORTEST => Err("expected 1s or more, as ages are not exact enough for less".into()),
        _ if time > LONGEST => Err("expected 7days or less".into()),
        _ => Ok(time),
    }
}

/// A reason why MGLRU's ages are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The kernel has no MGLRU.
    NotBuilt,
    /// MGLRU is off.
    Off(Enabled),
    /// MGLRU does not check accessed bits in page tables, so used memory looks unused.
    NoWalks(Enabled),
    /// debugfs is not mounted.
    NotMounted,
    /// debugfs has no file `lru_gen`.
    NoFile,
    /// The kernel is locked down.
    LockedDown,
    /// This user may not read debugfs.
    Denied,
    /// omr runs in a control group namespace, where groups have other paths.
    OtherPaths,
}

impl Missing {
    /// Returns the first obstacle; `None`: ages are available. `sees_root`: see
    /// [`lru_gen::sees_root`].
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

    /// Describes the obstacle and how to remove it.
    pub fn describe(self) -> String {
        format!("MGLRU {}; {}", self.found(), self.fix())
    }

    /// Describes the obstacle.
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

    /// Describes how to remove the obstacle.
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

/// Returns the obstacle to MGLRU's ages on this machine; `None`: ages are available.
pub fn missing(kernel: &Kernel) -> Result<Option<Missing>> {
    Ok(Missing::of(
        lru_gen::read_enabled(kernel)?,
        lru_gen::read_generations(kernel),
        Lockdown::read(kernel),
        lru_gen::sees_root(kernel)?,
    ))
}

/// Fails if MGLRU's ages are not available; the error says how to get them.
pub fn require_mglru(kernel: &Kernel) -> Result<()> {
    match missing(kernel)? {
        None => Ok(()),
        Some(missing) => {
            Err(Exit::Unsupported.error(format!("the age of memory is not known here: {}", missing.describe())))
        }
    }
}

/// Converts lists that were read at this moment for the policy.
fn to_reading(kernel: &Kernel, lists: &lru_gen::Lists, now: Monotonic) -> Option<Reading> {
    let generations = lists.generations().iter().map(|generation| Generation {
        number: generation.number,
        born: now - generation.age,
        memory: generation.anon.bytes(kernel.page()),
    });
    Reading::new(generations.collect())
}

#[cfg(test)]
mod tests {
    use omr_testkit::{FakeRoot, Release};

    use super::*;

    #[test]
    fn an_age_is_between_a_second_and_a_week() {
        assert_eq!(parse_time("1s"), Ok(SHORTEST));
        assert_eq!(parse_time("7days"), Ok(LONGEST));
        assert!(parse_time("999ms").expect_err("too short").contains("1s or more"));
        assert!(parse_time("604801s").expect_err("too long").contains("7days or less"));
        parse_time("soon").expect_err("no time");
    }

    #[test]
    fn a_machine_without_ages_says_what_it_lacks() {
        let root = FakeRoot::captured(Release::V6_12);
        let kernel = || Kernel::open(root.path()).expect("a kernel");
        assert_eq!(missing(&kernel()).expect("readable"), None);
        require_mglru(&kernel()).expect("ages");
        root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        assert_eq!(missing(&kernel()).expect("readable"), Some(Missing::Off(Enabled(0))));
        let err = require_mglru(&kernel()).expect_err("off");
        assert!(err.to_string().contains("not known here: MGLRU off (0x0000); write \"y\""), "{err}");
    }

    #[test]
    fn a_reading_has_the_moments_of_birth_and_the_memory_of_generations() {
        let root = FakeRoot::new().file(
            "sys/kernel/debug/lru_gen",
            "memcg     1 /\n node     0\n 3 9000 10  7 \n 4 5000 20  7 \n 5 1000 30  7 \n",
        );
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let mut reading = None;
        let mut reader = lru_gen::Reader::default();
        let now = Monotonic(0) + Duration::from_secs(100);
        let read = reader.for_each(&kernel, |_, _, lists| {
            reading = to_reading(&kernel, lists, now);
            std::ops::ControlFlow::Continue(())
        });
        read.expect("readable");
        let generations = [(3, 91, 10), (4, 95, 20), (5, 99, 30)].map(|(number, born, pages)| Generation {
            number,
            born: Monotonic(0) + Duration::from_secs(born),
            memory: omr_units::Pages(pages).bytes(kernel.page()),
        });
        assert_eq!(reading, Reading::new(generations.to_vec()));
    }

    #[test]
    fn each_obstacle_is_described_with_its_remedy() {
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
            // The lockdown is unknown, as securityfs is also closed to this user.
            (Some(all), Generations::Denied, None, false, Some((Missing::Denied, "run as root"))),
            (Some(all), Generations::Open, integrity, false, Some((Missing::OtherPaths, "outside of this container"))),
            // A lockdown that has not closed the file is no obstacle.
            (Some(all), Generations::Open, integrity, true, None),
            (Some(Enabled(3)), Generations::Open, None, true, None),
        ] {
            let missing = Missing::of(enabled, generations, lockdown, sees_root);
            assert_eq!(missing, expected.map(|(missing, _)| missing), "{enabled:?} {generations:?} {lockdown:?}");
            if let (Some(missing), Some((_, says))) = (missing, expected) {
                assert!(missing.describe().contains(says), "{}", missing.describe());
            }
        }
    }
}
