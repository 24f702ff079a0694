//! The backends: kernel files by which a group is reclaimed, each write as one step.

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

/// The longest time for which `memory.high` is lowered. Tasks of the group that allocate meanwhile
/// are slowed down by up to 2 s each (mm/memcontrol.c, MEMCG_MAX_HIGH_DELAY_JIFFIES).
const HIGH_TIME: Duration = Duration::from_millis(50);

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// `memory.reclaim` (Linux 5.19).
    #[serde(rename = "memory.reclaim")]
    MemoryReclaim {
        /// True if the kernel accepts `swappiness=` with a request (6.11).
        swappiness: bool,
    },
    /// `memory.swap.reclaim`, the file of the patch. It swaps out exactly the requested amount and
    /// ends within milliseconds, so it is preferred if it exists.
    #[serde(rename = "memory.swap.reclaim")]
    SwapReclaim {
        /// True if `memory.reclaim` exists, too, and accepts `swappiness=`, for page cache only.
        swappiness: bool,
    },
    /// `memory.high`, which is lowered for a moment, for kernels 5.4 to 5.18. Used only on request,
    /// as it slows down tasks of the group that allocate meanwhile.
    #[serde(rename = "memory.high")]
    MemoryHigh,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file())
    }
}

impl Backend {
    /// Returns the name of the kernel file.
    pub fn file(self) -> &'static str {
        match self {
            Backend::MemoryReclaim { .. } => "memory.reclaim",
            Backend::SwapReclaim { .. } => "memory.swap.reclaim",
            Backend::MemoryHigh => "memory.high",
        }
    }

    /// Returns true if the backend can reclaim page cache only.
    pub fn file_only(self) -> bool {
        matches!(self, Backend::MemoryReclaim { swappiness: true } | Backend::SwapReclaim { swappiness: true })
    }

    /// The file and the request for `bytes`. A kernel that does not take the swappiness chooses the
    /// kind of memory itself; `memory.swap.reclaim` takes anonymous memory only.
    fn request(self, bytes: Bytes, swappiness: Option<Swappiness>) -> (&'static str, String) {
        let needs_other_file = swappiness == Some(Swappiness::FILE_ONLY);
        match swappiness {
            Some(swappiness) if self.file_only() && (needs_other_file || self.file() == "memory.reclaim") => {
                ("memory.reclaim", format!("{} swappiness={swappiness}", bytes.0))
            }
            _ => (self.file(), bytes.0.to_string()),
        }
    }

    /// Finds the backend that this kernel has. Probes a group that will be written to anyway.
    pub fn probe(choice: BackendChoice, group: &Group, actuator: &mut dyn Actuator) -> Result<Self> {
        let has = |file| group.dir().has(file);
        let name = omr_base::text::printable(&group.path().to_string_lossy());
        let mut swappiness = || -> Result<bool> {
            // A request for nothing does nothing, and is refused where the key is unknown.
            let request = format!("0 swappiness={}", Swappiness::FILE_ONLY);
            Ok(has("memory.reclaim") && actuator.write(group.dir(), "memory.reclaim", &request)? == Outcome::Done)
        };
        // A delegated group may have only memory.reclaim writable: systemd delegates that file by
        // name.
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

/// One write to a backend's file.
pub struct Step<'a> {
    /// The machine.
    pub kernel: &'a Kernel,
    /// The backend.
    pub backend: Backend,
    /// The group.
    pub group: &'a Group,
    /// The journal of changed limits, which `memory.high` needs.
    pub journal: Option<&'a Journal>,
    /// Ends a write that takes too long. The kernel checks for signals between its batches (a
    /// quarter of the request each), so a write that waits for a full disk queue ends one batch
    /// later.
    pub alarm: &'a Alarm,
    /// The longest time of a write.
    pub write_time: Duration,
}

impl Step<'_> {
    /// Requests `bytes` once. Returns the outcome and the duration. `swappiness`: the kind
    /// of memory to reclaim; `None`: the kernel chooses.
    pub fn ask(
        &self,
        actuator: &mut dyn Actuator,
        bytes: Bytes,
        swappiness: Option<Swappiness>,
    ) -> Result<(Outcome, Duration)> {
        let began = clock::read_monotonic();
        let outcome = match self.backend {
            Backend::MemoryHigh => self.lower_high_briefly(actuator, bytes)?,
            backend => {
                let (file, request) = backend.request(bytes, swappiness);
                self.write(actuator, file, &request)?
            }
        };
        Ok((outcome, clock::read_monotonic().since(began)))
    }

    fn write(&self, actuator: &mut dyn Actuator, file: &str, request: &str) -> Result<Outcome> {
        Ok(self.alarm.limit(self.write_time, || actuator.write(self.group.dir(), file, request))?)
    }

    /// Lowers `memory.high` to `bytes` below the group's size, and restores it.
    fn lower_high_briefly(&self, actuator: &mut dyn Actuator, bytes: Bytes) -> Result<Outcome> {
        let Some(journal) = self.journal else { bail!("memory.high needs a journal") };
        let mut buffer = Vec::new();
        let before = self.group.read_limit("memory.high", &mut buffer)?;
        let current = self.group.read_current(&mut buffer)?;
        let low = Limit::Bytes(current - bytes);
        if low >= before {
            // The group's own limit is lower than that already.
            return Ok(Outcome::Partial);
        }
        let borrowed = journal.borrow(self.group, "memory.high", before)?;
        let Some(mut borrowed) = borrowed else { return Ok(Outcome::Partial) };
        // The kernel reclaims during the write. The alarm's signal ends the reclaim, and the write
        // succeeds.
        let time = HIGH_TIME.min(self.write_time);
        borrowed.announce(low);
        let lowered = self.alarm.limit(time, || actuator.write(self.group.dir(), "memory.high", &low.to_string()));
        borrowed.restore(self.kernel, actuator)?;
        Ok(lowered?)
    }
}

/// Opens the journal, and restores limits that an earlier run left changed.
pub fn journal(kernel: &Kernel, state_dir: &std::path::Path, actuator: &mut dyn Actuator) -> Result<Journal> {
    let journal = Journal::open(kernel, state_dir)?;
    let restored = journal.restore(kernel, actuator)?;
    if restored > 0 {
        let s = if restored == 1 { "" } else { "s" };
        log::warn!("restored {restored} limit{s} that an earlier run of omr left changed");
    }
    Ok(journal)
}

/// Opens the journal for a command as [`journal`] does. Only fails if `memory.high` is the backend.
pub fn open_journal(
    kernel: &Kernel,
    root: &std::path::Path,
    choice: BackendChoice,
    actuator: &mut dyn Actuator,
) -> Result<Option<Journal>> {
    match journal(kernel, &omr_base::paths::state_dir(root), actuator) {
        Ok(journal) => Ok(Some(journal)),
        // Users without rights in /var/lib may reclaim their own groups without a journal.
        Err(err) if choice == BackendChoice::High => Err(err.context("memory.high needs a journal")),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_kind_of_memory_where_the_kernel_takes_it() {
        let told = |backend: Backend, swappiness| {
            let (file, request) = backend.request(Bytes(4096), swappiness);
            format!("{file} {request}")
        };
        let (new, old) = (Backend::MemoryReclaim { swappiness: true }, Backend::MemoryReclaim { swappiness: false });
        assert_eq!(told(new, None), "memory.reclaim 4096");
        assert_eq!(told(new, Some(Swappiness::FILE_ONLY)), "memory.reclaim 4096 swappiness=0");
        assert_eq!(told(new, Some(Swappiness::ANON_FIRST)), "memory.reclaim 4096 swappiness=200");
        assert_eq!(told(old, Some(Swappiness::ANON_FIRST)), "memory.reclaim 4096");
        let swap = Backend::SwapReclaim { swappiness: true };
        assert_eq!(told(swap, Some(Swappiness::FILE_ONLY)), "memory.reclaim 4096 swappiness=0");
        // This file takes nothing else.
        assert_eq!(told(swap, Some(Swappiness::ANON_FIRST)), "memory.swap.reclaim 4096");
    }
}
