//! The ways of asking the kernel for memory, behind one step.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use omr_actuate::{Actuator, Outcome};
use omr_base::cancel::Alarm;
use omr_config::BackendChoice;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_units::{Bytes, Limit, Swappiness};
use serde::{Deserialize, Serialize};

use crate::reclaim::limit_journal::Journal;

/// The longest a lowered `memory.high` stands: tasks of the group that allocate meanwhile are slowed
/// down by up to 2 s each (mm/memcontrol.c, MEMCG_MAX_HIGH_DELAY_JIFFIES).
const HIGH_TIME: Duration = Duration::from_millis(50);

/// Which way to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// `memory.reclaim`, Linux 5.19.
    #[serde(rename = "memory.reclaim")]
    MemoryReclaim {
        /// The kernel takes `swappiness=` with a request (6.11).
        swappiness: bool,
    },
    /// `memory.swap.reclaim`: the file of the patch. It sends to swap what it is asked for and no more, and ends within
    /// milliseconds; where it is, it comes first.
    #[serde(rename = "memory.swap.reclaim")]
    SwapReclaim {
        /// `memory.reclaim` is there, too, and takes `swappiness=`: for file memory only.
        swappiness: bool,
    },
    /// Lowering `memory.high` for a moment, for kernels 5.4 to 5.18. Never chosen unasked: it slows
    /// down tasks of the group that allocate meanwhile.
    #[serde(rename = "memory.high")]
    MemoryHigh,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file())
    }
}

impl Backend {
    /// The file it writes.
    pub fn file(self) -> &'static str {
        match self {
            Backend::MemoryReclaim { .. } => "memory.reclaim",
            Backend::SwapReclaim { .. } => "memory.swap.reclaim",
            Backend::MemoryHigh => "memory.high",
        }
    }

    /// Whether it can be told to take file memory only.
    pub fn file_only(self) -> bool {
        matches!(self, Backend::MemoryReclaim { swappiness: true } | Backend::SwapReclaim { swappiness: true })
    }

    /// Finds out what this kernel has, on a group that will be written to anyway.
    pub fn probe(choice: BackendChoice, group: &Group, actuator: &mut dyn Actuator) -> Result<Self> {
        let has = |file| group.dir().has(file);
        let name = omr_base::text::printable(&group.path().to_string_lossy());
        let mut swappiness = || -> Result<bool> {
            // A request for nothing does nothing, and is refused where the key is unknown.
            let request = format!("0 swappiness={}", Swappiness::FILE_ONLY);
            Ok(has("memory.reclaim") && actuator.write(group.dir(), "memory.reclaim", &request)? == Outcome::Done)
        };
        // Who is delegated a group may be given memory.reclaim alone: systemd knows that file by name.
        let swap_reclaim = match choice {
            BackendChoice::Auto => group.dir().may_write("memory.swap.reclaim"),
            _ => has("memory.swap.reclaim"),
        };
        match choice {
            BackendChoice::Auto | BackendChoice::SwapReclaim if swap_reclaim => {
                Ok(Backend::SwapReclaim { swappiness: swappiness()? })
            }
            BackendChoice::Auto | BackendChoice::Reclaim if has("memory.reclaim") => {
                Ok(Backend::MemoryReclaim { swappiness: swappiness()? })
            }
            BackendChoice::High if has("memory.high") => Ok(Backend::MemoryHigh),
            BackendChoice::Auto if has("memory.high") => bail!(
                "{name} has no memory.reclaim (Linux 5.19); --backend memory.high works on this kernel, \
                 but slows down tasks of the group that allocate meanwhile"
            ),
            _ if !has("memory.current") => {
                bail!("{name} has no memory controller; enable it in cgroup.subtree_control")
            }
            BackendChoice::Auto | BackendChoice::Reclaim => bail!("{name} has no memory.reclaim (Linux 5.19)"),
            BackendChoice::SwapReclaim => bail!("{name} has no memory.swap.reclaim: this kernel is not patched"),
            BackendChoice::High => bail!("{name} has no memory.high"),
        }
    }
}

/// One write, and what it takes to undo it.
pub struct Step<'a> {
    /// Which way.
    pub backend: Backend,
    /// The group.
    pub group: &'a Group,
    /// Where changed limits are noted; `memory.high` needs it.
    pub journal: Option<&'a Journal>,
    /// Ends a write that takes too long. The kernel looks for signals between its batches (a quarter
    /// of the request each), so a write that waits for a full disk queue ends a batch later.
    pub alarm: &'a Alarm,
    /// How long a write may take before that.
    pub write_time: Duration,
}

impl Step<'_> {
    /// Asks for `bytes` once. Returns how that ended and how long it took.
    pub fn ask(&self, actuator: &mut dyn Actuator, bytes: Bytes, file_only: bool) -> Result<(Outcome, Duration)> {
        let began = clock::read_monotonic();
        let outcome = match self.backend {
            Backend::MemoryHigh => self.squeeze(actuator, bytes)?,
            backend if file_only && backend.file_only() => {
                self.write(actuator, "memory.reclaim", &format!("{} swappiness={}", bytes.0, Swappiness::FILE_ONLY))?
            }
            backend => self.write(actuator, backend.file(), &bytes.0.to_string())?,
        };
        Ok((outcome, clock::read_monotonic().since(began)))
    }

    fn write(&self, actuator: &mut dyn Actuator, file: &str, request: &str) -> Result<Outcome> {
        Ok(self.alarm.limit(self.write_time, || actuator.write(self.group.dir(), file, request))?)
    }

    /// Lowers `memory.high` by `bytes` below what the group holds, and puts it back.
    fn squeeze(&self, actuator: &mut dyn Actuator, bytes: Bytes) -> Result<Outcome> {
        let Some(journal) = self.journal else { bail!("memory.high needs a journal") };
        let mut buffer = Vec::new();
        let before = self.group.read_limit("memory.high", &mut buffer)?;
        let current = self.group.read_current(&mut buffer)?;
        let low = Limit::Bytes(current - bytes);
        if low >= before {
            // Somebody holds the group lower than that already.
            return Ok(Outcome::Partial);
        }
        let Some(borrowed) = journal.borrow(self.group, "memory.high", before)? else { return Ok(Outcome::Partial) };
        // The kernel reclaims inside the write; the signal ends it, and then the write succeeds.
        let time = HIGH_TIME.min(self.write_time);
        let lowered = self.alarm.limit(time, || actuator.write(self.group.dir(), "memory.high", &low.to_string()));
        borrowed.give_back(actuator)?;
        Ok(lowered?)
    }
}

/// Opens the journal where the backend needs one, and restores what an earlier run left behind.
pub fn journal(kernel: &Kernel, state_dir: &std::path::Path, actuator: &mut dyn Actuator) -> Result<Journal> {
    let journal = Journal::open(kernel, state_dir)?;
    let restored = journal.restore(kernel, actuator)?;
    if restored > 0 {
        let s = if restored == 1 { "" } else { "s" };
        log::warn!("restored {restored} limit{s} that an earlier run of omr left behind");
    }
    Ok(journal)
}

/// As [`journal`], for a command: only `memory.high` needs it.
pub fn open_journal(
    kernel: &Kernel,
    root: &std::path::Path,
    choice: BackendChoice,
    actuator: &mut dyn Actuator,
) -> Result<Option<Journal>> {
    match journal(kernel, &omr_base::paths::state_dir(root), actuator) {
        Ok(journal) => Ok(Some(journal)),
        // Only memory.high needs it; users without rights in /var/lib reclaim their own groups.
        Err(err) if choice == BackendChoice::High => Err(err.context("memory.high needs a journal")),
        Err(_) => Ok(None),
    }
}
