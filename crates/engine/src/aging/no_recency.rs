//! Memory under `madvise(MADV_RANDOM)` or `MADV_SEQUENTIAL`. Agings skip such memory, and eviction
//! ignores its accessed bits, so MGLRU calls it unused even if it is used all the time.

use std::cmp::Reverse;

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_kernel::process::{self, Process, ProcessMemory};
use omr_kernel::{Kernel, maps};
use omr_units::Bytes;

use super::resident::is_counted;

/// Returns the group's memory under such advice, in all processes that may be read. Ends early as
/// soon as the amount is known to be more than `enough`, or not to exceed it. Memory that processes
/// share since `fork(2)` counts with each of them.
///
/// The kernel walks page tables for this, some milliseconds per 100 MiB, and `mmap(2)` of the
/// process waits meanwhile.
pub fn read(kernel: &Kernel, group: &Group, enough: Bytes, stop: &Flag) -> Result<Bytes> {
    let processes = processes_by_size(kernel, group)?;
    let mut rest: Bytes = processes.iter().map(|(resident, _)| *resident).sum();
    let mut advised = Bytes::ZERO;
    for (resident, process) in processes {
        if advised > enough || advised + rest <= enough || stop.is_set() {
            break;
        }
        rest = rest - resident;
        // The process has ended, or this process may not read it.
        let Ok(details) = maps::read_smaps(process.dir()) else { continue };
        let no_recency = details.iter().filter(|detail| detail.no_recency && is_counted(&process, &detail.mapping));
        advised += no_recency.filter_map(|detail| detail.resident).sum();
    }
    Ok(advised)
}

/// Returns the processes whose memory the group accounts for, with their resident memory, the
/// largest first.
pub(super) fn processes_by_size(kernel: &Kernel, group: &Group) -> Result<Vec<(Bytes, Process)>> {
    let mut accounted = Accounted::default();
    memcg::walk(group.dir(), &mut accounted)?;
    let mut buffer = Vec::new();
    let mut resident = |pid| {
        let process = Process::open(kernel, pid).ok()?;
        let resident = ProcessMemory::read(process.dir(), &mut buffer).ok()?.resident?;
        Some((resident, process))
    };
    let mut processes: Vec<(Bytes, Process)> = accounted.pids.into_iter().filter_map(&mut resident).collect();
    processes.sort_by_key(|(resident, _)| Reverse(*resident));
    Ok(processes)
}

/// The processes of a group, and of the groups below it without a memory controller.
#[derive(Default)]
struct Accounted {
    pids: Vec<u32>,
}

impl Visit for Accounted {
    fn enter(&mut self, Found { dir, parent, .. }: Found<'_>) -> Option<usize> {
        if parent.is_some() && dir.has("memory.stat") {
            return None;
        }
        self.pids.extend(process::read_pids(dir).unwrap_or_default());
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Area, PAGE, anon, set_process};

    #[test]
    fn advised_memory_of_all_processes_counts_until_enough_is_known() {
        let files = [("memory.stat", ""), ("cgroup.procs", "")];
        let root = FakeRoot::captured(Release::V6_12).group("a", &files).group("a/own", &files);
        let root = root.group("a/part", &[("cgroup.procs", "")]);
        let advised = |pages| [Area { flags: "rd wr rr", ..anon(0x10_0000, pages) }, anon(0x80_0000, "p")];
        set_process(&root, 1, "a", &advised("ppp"));
        set_process(&root, 2, "a/part", &advised("pppp"));
        set_process(&root, 3, "a/own", &advised("pppp"));
        // A file whose use does not count in this way.
        set_process(&root, 4, "a", &[Area { flags: "rd sr", file: 7, ..anon(0x10_0000, "p") }]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let sizes: Vec<_> =
            processes_by_size(&kernel, &top).expect("processes").into_iter().map(|of| of.1.stat().pid).collect();
        assert_eq!(sizes, [2, 1, 4], "the largest first, and none that another group accounts for");
        let read = |enough: u64, stop: &Flag| {
            let read = read(&kernel, &top, Bytes(enough * PAGE), stop).expect("readable");
            read.0 / PAGE
        };
        let go = Flag::default();
        assert_eq!(read(5, &go), 7);
        assert_eq!(read(3, &go), 4, "more than enough after the first process");
        assert_eq!(read(4, &go), 7, "just enough is not more");
        assert_eq!(read(10, &go), 0, "all processes together have no more than that");
        assert_eq!(read(9, &go), 4, "after the first process, the others cannot reach it");
        let set = Flag::default();
        set.set();
        assert_eq!(read(0, &set), 0);
        root.remove("proc/2/smaps");
        assert_eq!(read(2, &go), 3, "a process that has ended");
    }
}
