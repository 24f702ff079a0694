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

/// The key with which a write waits for what it has sent to swap (`patches/7.3`).
const WAIT: &str = " writeback=wait";
const WAIT_SINCE: (u32, u32) = (7, 3);

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// `memory.reclaim` (Linux 5.19).
    #[serde(rename = "memory.reclaim")]
    MemoryReclaim {
        /// True if the kernel accepts `swappiness=` with a request (6.11).
        swappiness: bool,
        /// True if it accepts `writeback=wait`, the key of the patches for Linux 7.3: a write waits
        /// for what it has sent to swap, so it sends no more than it frees.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        waits: bool,
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
        matches!(self, Backend::MemoryReclaim { swappiness: true, .. } | Backend::SwapReclaim { swappiness: true })
    }

    /// The file and the request for `bytes`. A kernel that does not take the swappiness chooses the
    /// kind of memory itself; `memory.swap.reclaim` takes anonymous memory only.
    fn request(self, bytes: Bytes, swappiness: Option<Swappiness>) -> (&'static str, String) {
        let needs_other_file = swappiness == Some(Swappiness::FILE_ONLY);
        let wait = if matches!(self, Backend::MemoryReclaim { waits: true, .. }) { WAIT } else { "" };
        match swappiness {
            Some(swappiness) if self.file_only() && (needs_other_file || self.file() == "memory.reclaim") => {
                ("memory.reclaim", format!("{} swappiness={swappiness}{wait}", bytes.0))
            }
            _ => (self.file(), format!("{}{wait}", bytes.0)),
        }
    }

    /// Finds the backend that this kernel has. Probes a group that will be written to anyway.
    pub fn probe(kernel: &Kernel, choice: BackendChoice, group: &Group, actuator: &mut dyn Actuator) -> Result<Self> {
        let has = |file| group.dir().has(file);
        let name = omr_base::text::printable(&group.path().to_string_lossy());
        // A request for nothing does nothing, and is refused where the key is unknown.
        let mut takes = |key: &str| -> Result<bool> {
            let request = format!("0{key}");
            Ok(has("memory.reclaim") && actuator.write(group.dir(), "memory.reclaim", &request)? == Outcome::Done)
        };
        let file_only = format!(" swappiness={}", Swappiness::FILE_ONLY);
        // A delegated group may have only memory.reclaim writable: systemd delegates that file by
        // name.
        let swap_reclaim = match choice {
            BackendChoice::Auto => group.dir().may_write("memory.swap.reclaim"),
            _ => has("memory.swap.reclaim"),
        };
        match choice {
            BackendChoice::Auto | BackendChoice::SwapReclaim if swap_reclaim => {
                Ok(Backend::SwapReclaim { swappiness: takes(&file_only)? })
            }
            BackendChoice::Auto | BackendChoice::Reclaim if has("memory.reclaim") => {
                let swappiness = takes(&file_only)?;
                // Other kernels are spared the question.
                let may_wait = kernel.read_version().is_some_and(|version| version >= WAIT_SINCE);
                Ok(Backend::MemoryReclaim { swappiness, waits: may_wait && takes(WAIT)? })
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
    use std::path::Path;

    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{GROUPS, Reclaims, Writes, add_group};

    fn opened(root: &FakeRoot) -> (Kernel, Group) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        (kernel, group)
    }

    #[test]
    fn the_backend_is_a_file_that_the_group_has() {
        let told_on = |release: &str, files: &[&str], choice, takes_swappiness: bool| {
            let root = FakeRoot::new().proc("sys/kernel/osrelease", release);
            let root = files.iter().fold(root.group::<&str>("a", &[]), |root, file| root.group("a", &[(*file, "")]));
            let (kernel, group) = opened(&root);
            let mut kernel_side = Writes(|data: &str| {
                let takes = match data {
                    "0 swappiness=0" => takes_swappiness,
                    "0 writeback=wait" => release == "7.3.4-omr",
                    other => unreachable!("{other} would do something"),
                };
                if takes { Outcome::Done } else { Outcome::Unsupported }
            });
            Backend::probe(&kernel, choice, &group, &mut kernel_side).map_err(|err| err.to_string())
        };
        let told = |files: &[&str], choice, takes_swappiness| told_on("7.2.1-omr", files, choice, takes_swappiness);
        let (auto, reclaim) = (BackendChoice::Auto, BackendChoice::Reclaim);
        let (swap, high) = (BackendChoice::SwapReclaim, BackendChoice::High);
        let all = &["memory.current", "memory.reclaim", "memory.swap.reclaim", "memory.high"];
        for (takes, swappiness) in [(true, true), (false, false)] {
            assert_eq!(told(all, auto, takes), Ok(Backend::SwapReclaim { swappiness }));
            assert_eq!(told(all, swap, takes), Ok(Backend::SwapReclaim { swappiness }));
            let without = Backend::MemoryReclaim { swappiness, waits: false };
            assert_eq!(told(all, reclaim, takes), Ok(without));
            assert_eq!(told(&["memory.reclaim"], auto, takes), Ok(without));
            for (release, waits) in [("7.3.4-omr", true), ("7.3.4-amd64", false)] {
                let with = Backend::MemoryReclaim { swappiness, waits };
                assert_eq!(told_on(release, &["memory.reclaim"], auto, takes), Ok(with));
            }
        }
        assert_eq!(told(&["memory.swap.reclaim"], auto, true), Ok(Backend::SwapReclaim { swappiness: false }));
        assert_eq!(told(all, high, true), Ok(Backend::MemoryHigh));
        let failed = |files: &[&str], choice| told(files, choice, true).expect_err("no such file");
        assert!(failed(&["memory.high"], auto).contains("--backend memory.high works on this kernel"));
        for choice in [auto, reclaim, swap, high] {
            assert!(failed(&[], choice).starts_with("a has no memory controller;"), "{choice:?}");
        }
        let current = &["memory.current"];
        assert_eq!(failed(current, auto), "a has no memory.reclaim (Linux 5.19)");
        assert_eq!(failed(current, reclaim), "a has no memory.reclaim (Linux 5.19)");
        assert_eq!(failed(current, swap), "a has no memory.swap.reclaim: this kernel is not patched");
        assert_eq!(failed(current, high), "a has no memory.high");
    }

    /// A machine with a group of 8 MiB, and a journal.
    fn machine() -> (FakeRoot, Journal) {
        let root = FakeRoot::in_memory(Release::V6_12);
        add_group(&root, "a", 8, 0);
        let journal = Journal::open(&opened(&root).0, &root.resolve("var/lib/omr")).expect("a journal");
        (root, journal)
    }

    fn entries(root: &FakeRoot) -> usize {
        std::fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count()
    }

    #[test]
    fn memory_high_is_lowered_for_the_write_and_restored() {
        let (root, journal) = machine();
        let (kernel, group) = opened(&root);
        let alarm = Alarm::new();
        let step = |journal| Step {
            kernel: &kernel,
            backend: Backend::MemoryHigh,
            group: &group,
            journal,
            alarm: &alarm,
            write_time: Duration::from_secs(1),
        };
        let mut noted = Vec::new();
        let mut kernel_side = Reclaims::new(&root);
        kernel_side.then = Box::new(|_| noted.push(entries(&root)));
        let (outcome, _) = step(Some(&journal)).ask(&mut kernel_side, Bytes::mib(2), None).expect("a write");
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(kernel_side.lines, ["a/memory.high 6291456", "a/memory.high max"]);
        drop(kernel_side);
        assert_eq!((noted, entries(&root)), (vec![1, 1], 0), "the old value is on disk meanwhile");
        // A limit of the user's own that is as low already is not raised.
        root.write(format!("{GROUPS}/a/memory.high"), "4194304\n");
        let mut none = Writes(|_: &str| unreachable!("nothing is written"));
        let (outcome, _) = step(Some(&journal)).ask(&mut none, Bytes::mib(2), None).expect("no write");
        assert_eq!(outcome, Outcome::Partial);
        step(None).ask(&mut none, Bytes::mib(2), None).expect_err("without a journal nothing is changed");
    }

    #[test]
    fn a_command_has_a_journal_where_it_may_write_one() {
        let (root, journal_of) = machine();
        let (kernel, group) = opened(&root);
        // An entry of a process that has ended.
        std::mem::forget({
            let mut borrowed =
                journal_of.borrow(&group, "memory.high", Limit::Max).expect("no error").expect("an entry");
            borrowed.announce(Limit::Bytes(Bytes::mib(1)));
            borrowed
        });
        let mut kernel_side = Reclaims::new(&root);
        let opened = open_journal(&kernel, root.path(), BackendChoice::Auto, &mut kernel_side).expect("no error");
        assert!(opened.is_some());
        assert_eq!((kernel_side.lines, entries(&root)), (vec!["a/memory.high max".to_owned()], 0));
        root.remove("var/lib/omr");
        root.write("var/lib/omr", "a file");
        let open = |choice| open_journal(&kernel, root.path(), choice, &mut Writes(|_: &str| Outcome::Done));
        assert!(open(BackendChoice::Auto).expect("no error").is_none(), "most backends need none");
        let err = open(BackendChoice::High).map(drop).expect_err("memory.high does");
        assert_eq!(err.to_string(), "memory.high needs a journal");
    }

    #[test]
    fn a_request_names_a_kind_of_memory_where_the_kernel_takes_it() {
        let told = |backend: Backend, swappiness| {
            let (file, request) = backend.request(Bytes(4096), swappiness);
            format!("{file} {request}")
        };
        let [new, old, patched] = [(true, false), (false, false), (true, true)]
            .map(|(swappiness, waits)| Backend::MemoryReclaim { swappiness, waits });
        assert_eq!(told(new, None), "memory.reclaim 4096");
        assert_eq!(told(new, Some(Swappiness::FILE_ONLY)), "memory.reclaim 4096 swappiness=0");
        assert_eq!(told(new, Some(Swappiness::ANON_FIRST)), "memory.reclaim 4096 swappiness=200");
        assert_eq!(told(old, Some(Swappiness::ANON_FIRST)), "memory.reclaim 4096");
        assert_eq!(told(patched, None), "memory.reclaim 4096 writeback=wait");
        assert_eq!(told(patched, Some(Swappiness::FILE_ONLY)), "memory.reclaim 4096 swappiness=0 writeback=wait");
        let swap = Backend::SwapReclaim { swappiness: true };
        assert_eq!(told(swap, Some(Swappiness::FILE_ONLY)), "memory.reclaim 4096 swappiness=0");
        // This file takes nothing else.
        assert_eq!(told(swap, Some(Swappiness::ANON_FIRST)), "memory.swap.reclaim 4096");
    }
}
