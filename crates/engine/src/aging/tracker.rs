//! The trackers of ages: what each sees and does not see, and which one is available here.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_actuate::damon::Refusal;
use omr_base::exit::Exit;
use omr_kernel::Kernel;
use omr_kernel::damon::Damon;
use serde::Serialize;

use super::{Missing, damon, missing};

/// A way to know ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tracker {
    /// MGLRU's generations, for groups: each page, at agings
    LruGen,
    /// DAMON, for processes: one page of each region, continuously
    Damon,
    /// "referenced" in page tables, for processes: each page, once; only on request, as it disturbs
    Smaps,
}

impl fmt::Display for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tracker::LruGen => "MGLRU",
            Tracker::Damon => "DAMON",
            Tracker::Smaps => "smaps",
        })
    }
}

impl Tracker {
    /// Describes the use that the tracker sees.
    pub fn sees(self) -> &'static str {
        match self {
            Tracker::LruGen => {
                "use of each page through page tables of the group's own processes; the least always holds for such use"
            }
            Tracker::Damon => {
                "use of one page in each region, continuously, in the group's processes; shared memory counts once, \
                 with the first group that has it mapped, and as unused if no process of these groups used it"
            }
            Tracker::Smaps => {
                "use of each page through page tables of the group's own processes, since the window began; shared memory \
                 counts once, with the first group that has it mapped"
            }
        }
    }

    /// Describes the use that the tracker does not see.
    pub fn does_not_see(self) -> &'static str {
        match self {
            Tracker::LruGen => {
                "read(2) and write(2); processes of other groups, and processes that have ended since; memory under \
                 madvise(MADV_RANDOM) or MADV_SEQUENTIAL"
            }
            Tracker::Damon => {
                "read(2) and write(2); files; unmapped memory; processes of other groups, and processes that began or \
                 ended since; a few used pages among many unused ones in a region, so the least is likely, not certain; \
                 private memory that processes share since fork(2) counts with each"
            }
            Tracker::Smaps => {
                "read(2) and write(2); files; unmapped memory; processes of other groups, and processes that have ended \
                 since; when in the window a page was used; private memory that processes share since fork(2) counts \
                 with each"
            }
        }
    }

    /// Describes what the tracker does to other programs.
    pub fn disturbs(self) -> &'static str {
        match self {
            Tracker::LruGen => "clears accessed bits, as reclaim does",
            Tracker::Damon => "clears accessed bits, so MGLRU's ages are too old meanwhile",
            Tracker::Smaps => {
                "stops page faults of each process at the start, and clears accessed bits: \
                 used memory looks unused to reclaim until it is used again"
            }
        }
    }
}

/// Returns the default tracker: MGLRU, else DAMON. Never smaps. Fails if neither is available.
pub fn choose(kernel: &Kernel, root: &Path, actuator: &mut dyn Actuator) -> Result<Tracker> {
    let Some(without) = missing(kernel)? else { return Ok(Tracker::LruGen) };
    match damon::state(kernel, root, actuator)? {
        Damon::Free => Ok(Tracker::Damon),
        state => Err(no_tracker(without, state)),
    }
}

/// Returns the error for a machine with neither MGLRU nor DAMON.
pub fn no_tracker(without: Missing, state: Damon) -> anyhow::Error {
    Exit::Unsupported.error(format!(
        "the age of memory is not known here: MGLRU {}; {}. DAMON {}. omr wss GROUP --tracker smaps is a last resort, \
         as it disturbs the group",
        without.found(),
        without.fix(),
        damon::refusal(Refusal::State(state)),
    ))
}

#[cfg(test)]
mod tests {
    use omr_actuate::DryRun;
    use omr_testkit::{FakeRoot, Release};

    use super::*;

    #[test]
    fn mglru_is_chosen_before_damon_and_smaps_never() {
        let root = FakeRoot::captured(Release::V6_12).sys("kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
        let chosen = || choose(&Kernel::open(root.path()).expect("a kernel"), root.path(), &mut DryRun);
        assert_eq!(chosen().expect("a tracker"), Tracker::LruGen);
        root.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        assert_eq!(chosen().expect("a tracker"), Tracker::Damon);
        root.remove("sys/kernel/mm/damon");
        let err = chosen().expect_err("none").to_string();
        for part in
            ["MGLRU off (0x0000); write \"y\"", "DAMON is not in this kernel", "--tracker smaps is a last resort"]
        {
            assert!(err.contains(part), "{err}");
        }
    }

    #[test]
    fn each_tracker_says_what_it_sees_and_does() {
        for (tracker, name, sees, does_not_see, disturbs) in [
            (Tracker::LruGen, "MGLRU", "page tables", "madvise(MADV_RANDOM)", "as reclaim does"),
            (Tracker::Damon, "DAMON", "one page in each region", "unmapped memory", "MGLRU's ages are too old"),
            (Tracker::Smaps, "smaps", "since the window began", "when in the window", "stops page faults"),
        ] {
            assert_eq!(tracker.to_string(), name);
            assert!(tracker.sees().contains(sees), "{}", tracker.sees());
            assert!(tracker.does_not_see().contains(does_not_see), "{}", tracker.does_not_see());
            assert!(tracker.disturbs().contains(disturbs), "{}", tracker.disturbs());
        }
    }
}
