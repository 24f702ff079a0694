//! The ways to know what was not used: what each sees and what not, and which is to be had here.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_actuate::damon::Refusal;
use omr_base::exit::Exit;
use omr_kernel::Kernel;
use omr_kernel::damon::Damon;
use omr_policy::age::Bounds;
use omr_units::Bytes;
use serde::Serialize;

use super::{Missing, damon, missing};

/// A way to know what was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tracker {
    /// MGLRU's generations, of groups: each page, at agings
    LruGen,
    /// DAMON, of processes: a page of each region, many times
    Damon,
    /// Page tables' "referenced", of processes: each page, once; disturbs, so only where it is asked for
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
    /// What it sees.
    pub fn sees(self) -> &'static str {
        match self {
            Tracker::LruGen => {
                "use of each page through page tables of the group's own processes; for what they use the least holds always"
            }
            Tracker::Damon => {
                "use of one page in each region, looked at all the time, in the group's processes; shared memory \
                 counts once, with the first group that has it mapped, and as unused where nobody in these groups used it"
            }
            Tracker::Smaps => {
                "use of each page through page tables of the group's own processes, since the window began; shared memory \
                 counts once, with the first group that has it mapped"
            }
        }
    }

    /// What it does not see.
    pub fn does_not_see(self) -> &'static str {
        match self {
            Tracker::LruGen => {
                "read(2) and write(2); processes of other groups, and of any that have ended since; memory under \
                 madvise(MADV_RANDOM) or MADV_SEQUENTIAL"
            }
            Tracker::Damon => {
                "read(2) and write(2); files; what is not mapped; processes of other groups, and of any that began or ended \
                 since; a few used pages among many unused ones in a region, so the least is likely, not certain; what \
                 private memory processes share since fork(2) counts with each"
            }
            Tracker::Smaps => {
                "read(2) and write(2); files; what is not mapped; processes of other groups, and of any that have ended \
                 since; when in the window a page was used; what private memory processes share since fork(2) counts with each"
            }
        }
    }

    /// What it does to others.
    pub fn disturbs(self) -> &'static str {
        match self {
            Tracker::LruGen => "clears accessed bits, as reclaim does itself",
            Tracker::Damon => "clears accessed bits, so ages of MGLRU come out too old meanwhile",
            Tracker::Smaps => {
                "stops page faults of each process while it begins, and clears what reclaim would have seen of use: \
                 until it is used again, used memory looks unused to the kernel"
            }
        }
    }
}

/// What was seen of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfGroup {
    /// Its path below the mount.
    pub path: PathBuf,
    /// Private and shared memory that is mapped.
    pub memory: Bytes,
    /// How much of it was not used for how long.
    pub idle: Vec<(Duration, Bounds)>,
}

/// What was seen of processes.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// By group.
    pub groups: Vec<OfGroup>,
    /// How often each region was looked at.
    pub looks: u64,
    /// The mean size of one, where there are regions.
    pub region: Option<Bytes>,
    /// Processes that were looked at to the end.
    pub processes: usize,
    /// Processes that could not be, or have ended.
    pub left_out: usize,
    /// CPU time of the kernel's thread that looked, where there is one.
    pub cpu: Duration,
}

/// The tracker to use where none was named: MGLRU, else DAMON, else a refusal. Never smaps.
pub fn choose(kernel: &Kernel, root: &Path, actuator: &mut dyn Actuator) -> Result<Tracker> {
    let Some(without) = missing(kernel)? else { return Ok(Tracker::LruGen) };
    match damon::state(kernel, root, actuator)? {
        Damon::Free => Ok(Tracker::Damon),
        state => Err(refused(without, state)),
    }
}

/// Neither MGLRU nor DAMON.
pub fn refused(without: Missing, damon: Damon) -> anyhow::Error {
    Exit::Unsupported.error(format!(
        "how long memory was not used is not known here: MGLRU {}; {}. DAMON {}. What omr wss GROUP --tracker smaps sees \
         disturbs the group",
        without.found(),
        without.fix(),
        refusal(Refusal::State(damon)),
    ))
}

/// Why DAMON is not to be had, and what brings it.
pub fn refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::State(Damon::NotBuilt) => {
            "is not in this kernel: needs Linux 6.2 built with CONFIG_DAMON_SYSFS".into()
        }
        Refusal::State(Damon::Denied) => "is closed to this user: run as root".into(),
        Refusal::State(Damon::InUse(n)) => {
            let monitors = if n == 1 { "a monitor".to_owned() } else { format!("{n} monitors") };
            format!(
                "is in use: another program has set up {monitors}, which omr leaves alone; stop that program, or its monitor"
            )
        }
        Refusal::State(Damon::Free | Damon::Unknown) => "is there in a form that omr does not know".into(),
        Refusal::NoRanges => "cannot look at processes here: needs Linux 6.2 built with CONFIG_DAMON_VADDR".into(),
        Refusal::Exclusive => {
            "is used by the kernel itself: write N to \"enabled\" of the modules damon_stat, damon_reclaim and \
                               damon_lru_sort, below /sys/module/*/parameters"
                .into()
        }
        Refusal::Refused => "does not take these processes: they end as fast as they are listed; try again".into(),
    }
}
