//! The groups at and below a group.

use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_kernel::stat::Stat;
use omr_kernel::{Dir, Kernel, Result};
use omr_units::{Bytes, GroupId, Limit};

/// Reclaim leaves this much more than is protected. Pages on their way to the disk cannot be freed
/// by a write, so the kernel would take protected ones instead. And the counters are behind: by 64
/// pages for each CPU (mm/memcontrol.c, `MEMCG_CHARGE_BATCH`).
const MARGIN: Bytes = Bytes::mib(1);
/// The size of a group and the sum of its counts may differ by this much for each CPU: by two
/// batches of 64 pages in the counts, and by one for each of 7 groups in the size (mm/memcontrol.c,
/// `NR_MEMCG_STOCK`).
const BEHIND: Bytes = Bytes::mib(2);
/// The kernel brings the counts up to date every 2 s, or later while a CPU is idle.
const CATCHING_UP: Duration = Duration::from_secs(3);
/// The pause between two looks at counts that are behind.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns all groups with a memory controller at and below this one.
pub fn groups_below(top: &Group) -> Result<Vec<(GroupId, PathBuf)>> {
    let mut found = GroupWalk { top: top.path(), paths: Vec::new() };
    memcg::walk(top.dir(), &mut found)?;
    Ok(found.paths)
}

/// Returns the size of this group, and the size below which reclaim takes what `memory.min` and
/// `memory.low` protect below it: all but the memory that is neither protected nor unreclaimable,
/// and a margin. Zero if nothing is protected.
///
/// Of each child what is in memory is protected, up to the larger of its two values. What is further
/// below is protected no further than that (mm/page_counter.c, `page_counter_calculate_protection`).
/// The group's own protection does not count, nor what cannot be read below a group of a user.
///
/// Waits up to 3 s if the counts of the group are not up to date, or until `wait` returns false.
pub fn floor_below(kernel: &Kernel, top: &Group, mut wait: impl FnMut(Duration) -> bool) -> Result<(Bytes, Bytes)> {
    let mut buffer = Vec::new();
    if read_protected(top)?.is_none() {
        return Ok((top.read_current(&mut buffer)?, Bytes::ZERO));
    }
    let tolerance = Bytes(Stat::read(kernel, &mut buffer)?.cpus.len() as u64 * BEHIND.0);
    let mut waited = Duration::ZERO;
    let current = loop {
        let current = top.read_current(&mut buffer)?;
        let adds_up = memcg::stat_adds_up(top.dir(), current, tolerance, &mut buffer)?;
        if adds_up || waited >= CATCHING_UP || !wait(PAUSE) {
            break current;
        }
        waited += PAUSE;
    };
    // To bring the counts of a group up to date does the same below it, so those of the children
    // are read last: they are no older.
    let reclaimable = memcg::read_reclaimable(top.dir(), &mut buffer)?.min(current);
    let open = reclaimable - read_protected(top)?.unwrap_or_default();
    Ok((current, current - (open - MARGIN)))
}

/// Reads how much of the reclaimable memory of this group's children is protected. `None`: no child
/// is protected.
fn read_protected(top: &Group) -> Result<Option<Bytes>> {
    let mut children = Protected { buffer: Vec::new(), sum: Ok(None) };
    memcg::walk(top.dir(), &mut children)?;
    children.sum
}

/// The walk of [`read_protected`].
struct Protected {
    buffer: Vec<u8>,
    sum: Result<Option<Bytes>>,
}

impl Protected {
    /// Reads how much reclaimable memory of a child is protected. What exceeds the protection is
    /// taken from the reclaimable memory.
    fn read_child(&mut self, dir: &Dir) -> Result<Option<Bytes>> {
        let protection = match memcg::read_protection(dir, &mut self.buffer)? {
            Limit::Bytes(Bytes::ZERO) => return Ok(None),
            limit => limit,
        };
        let reclaimable = memcg::read_reclaimable(dir, &mut self.buffer)?;
        let beyond = match protection {
            Limit::Max => Bytes::ZERO,
            Limit::Bytes(bytes) => Bytes(memcg::read_number(dir, "memory.current", &mut self.buffer)?) - bytes,
        };
        Ok(Some(reclaimable - beyond))
    }
}

impl Visit for Protected {
    fn enter(&mut self, Found { dir, parent, .. }: Found<'_>) -> Option<usize> {
        if parent.is_none() {
            return Some(0);
        }
        match (self.read_child(dir), &mut self.sum) {
            (Ok(Some(bytes)), Ok(sum)) => *sum = Some(sum.unwrap_or_default() + bytes),
            (Err(err), sum @ Ok(_)) if !err.is_gone() => *sum = Err(err),
            _ => {}
        }
        None
    }
}

/// Groups with a memory controller, found by a walk.
struct GroupWalk<'a> {
    top: &'a Path,
    paths: Vec<(GroupId, PathBuf)>,
}

impl Visit for GroupWalk<'_> {
    fn enter(&mut self, Found { dir, id, name, parent, .. }: Found<'_>) -> Option<usize> {
        let path = match parent {
            None => self.top.to_path_buf(),
            Some(parent) => self.paths[parent].1.join(name),
        };
        // The root has memory, but no such file.
        if parent.is_some() && !dir.has("memory.stat") {
            return None;
        }
        self.paths.push((id, path));
        Some(self.paths.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_kernel::Kernel;
    use omr_testkit::FakeRoot;

    use super::*;

    const TWO_CPUS: &str = "cpu  4 0 0 0 0 0 0 0\ncpu0 2 0 0 0 0 0 0 0\ncpu1 2 0 0 0 0 0 0 0\n";

    #[test]
    fn reclaim_stops_at_the_children_s_protected_memory_and_at_what_cannot_be_reclaimed() {
        let mut root = FakeRoot::new().proc("stat", TWO_CPUS);
        // Of each group 2 MiB belong to the kernel and 3 MiB are locked. All others can be reclaimed.
        for (group, current, min, low) in [
            ("top", 900, Some(0), None),
            ("top/low", 200, Some(0), Some(50)),
            ("top/low/deep", 150, Some(0), None),
            ("top/min", 70, Some(30), Some(20)),
            ("top/more", 40, Some(0), Some(1000)),
            ("top/max", 10, Some(0), None),
            ("top/little", 100, Some(0), Some(4)),
            ("top/open", 300, Some(0), Some(0)),
            ("top/open/deep", 80, Some(0), None),
        ] {
            let limit = |mib: Option<u64>| mib.map_or_else(|| "max".into(), |mib| Bytes::mib(mib).0.to_string());
            let stat = [("anon", current - 6), ("file", 8), ("shmem", 2), ("swapcached", 4), ("unevictable", 3)];
            let stat: String = stat.iter().map(|(name, mib)| format!("{name} {}\n", Bytes::mib(*mib).0)).collect();
            let files =
                [("memory.min", limit(min)), ("memory.low", limit(low)), ("memory.current", limit(Some(current)))];
            let files = files.iter().map(|(name, text)| (*name, text.as_str()));
            root = root.group(group, &files.chain([("memory.stat", stat.as_str())]).collect::<Vec<_>>());
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let floor = |path: &str| {
            let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new(path)).expect("a group");
            floor_below(&kernel, &group, |_| unreachable!("all is up to date"))
        };
        // Each child's protected MiB, without the 5 that cannot be reclaimed; and those of the top.
        let protected = (50 - 5) + (30 - 5) + (40 - 5) + (10 - 5);
        assert_eq!(floor("top").expect("known"), (Bytes::mib(900), Bytes::mib(protected + 5) + MARGIN));
        let root = root.group("top", &[("memory.current", &Bytes::mib(960).0.to_string())]);
        assert_eq!(floor("top").expect("known"), (Bytes::mib(960), Bytes::mib(protected + 5 + 60) + MARGIN));
        let below_nothing = (Bytes::mib(80), Bytes::ZERO);
        assert_eq!(floor("top/open/deep").expect("known"), below_nothing, "nothing below it is protected");
        let root = root.group("top/low", &[("memory.stat", "file 8\n")]);
        assert!(floor("top").is_err());
        let _root = root.group("top/low", &[("memory.low", "much")]);
        assert!(floor("top").is_err());
    }

    #[test]
    fn counts_that_are_behind_are_waited_for_and_never_cost_protected_memory() {
        let mib = |mib: u64| Bytes::mib(mib).0.to_string();
        let stat = |anon: u64, swapcached: u64| {
            let [anon, cached] = [anon, swapcached].map(mib);
            let [kernel, sock] = [2, 1].map(mib);
            format!("anon {anon}\nfile {cached}\nkernel {kernel}\nsock {sock}\nshmem 0\nswapcached {cached}\n")
        };
        // 60 MiB of the group are protected, 100 are not, and 3 belong to the kernel. The counts
        // say `anon` and catch up after some waits.
        let told_until = |anon: u64, swapcached: u64, catches_up_after: u32, stops_after: u32| {
            let root = FakeRoot::new()
                .proc("stat", TWO_CPUS)
                .group("top", &[("memory.current", &mib(163)), ("memory.stat", &stat(anon, swapcached))])
                .group("top/kept", &[("memory.current", &mib(60)), ("memory.stat", &stat(60, 0))])
                .group("top/kept", &[("memory.min", "0"), ("memory.low", "max")]);
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new("top")).expect("a group");
            let mut waits = 0;
            let (current, floor) = floor_below(&kernel, &group, |time| {
                assert_eq!(time, PAUSE);
                waits += 1;
                if waits == catches_up_after {
                    root.write("sys/fs/cgroup/top/memory.stat", stat(160, 0));
                }
                waits < stops_after
            })
            .expect("known");
            assert_eq!(current, Bytes::mib(163));
            (current - floor + MARGIN, waits)
        };
        let told = |anon, swapcached, catches_up_after| told_until(anon, swapcached, catches_up_after, 1000);
        let open = Bytes::mib(100);
        assert_eq!(told(160, 0, 1), (open, 0), "up to date");
        assert_eq!(told(156, 0, 1), (open - Bytes::mib(4), 0), "two CPUs may be behind by 4 MiB");
        assert_eq!(told(155, 0, 5), (open, 5));
        assert_eq!(told(165, 0, 5), (open, 5));
        assert_eq!(told(160, 50, 5), (open, 0), "pages of the swap cache may be mapped, too");
        assert_eq!(told(110, 50, 5), (open - Bytes::mib(50), 0), "or not");
        assert_eq!(told_until(110, 0, 100, 2), (open - Bytes::mib(50), 2), "stopped");
        assert_eq!(told(110, 0, 100), (open - Bytes::mib(50), 60), "too little rather than too much");
        assert_eq!(told(260, 0, 100), (open + Bytes::mib(3), 60), "never more than the group has");
    }

    #[test]
    fn a_walk_finds_the_groups_with_a_memory_controller_by_their_paths() {
        let mut root = FakeRoot::new();
        for group in ["top", "top/a", "top/a/b", "beside"] {
            root = root.group(group, &[("memory.stat", "anon 0\n")]);
        }
        root = root.group("top/bare/below", &[("cgroup.procs", "")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let paths = |top: &str| {
            let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new(top)).expect("a group");
            let found = groups_below(&group).expect("groups");
            assert!(found.iter().any(|(id, path)| *id == group.id() && path == Path::new(top)));
            let mut paths: Vec<_> = found.into_iter().map(|(_, path)| path.display().to_string()).collect();
            paths.sort();
            paths
        };
        assert_eq!(paths("top"), ["top", "top/a", "top/a/b"]);
        assert_eq!(paths("top/a"), ["top/a", "top/a/b"]);
        assert_eq!(paths(""), ["", "beside", "top", "top/a", "top/a/b"]);
    }
}
