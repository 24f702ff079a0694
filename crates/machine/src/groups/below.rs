//! The groups at and below a group.

use std::path::{Path, PathBuf};

use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_kernel::{Dir, Result};
use omr_units::{Bytes, GroupId, Limit};

/// Reclaim leaves this much more than is protected. Pages on their way to the disk cannot be freed
/// by a write, so the kernel would take protected ones instead. And the counters are behind: by 64
/// pages for each CPU (mm/memcontrol.c, `MEMCG_CHARGE_BATCH`).
const MARGIN: Bytes = Bytes::mib(1);

/// Returns all groups with a memory controller at and below this one.
pub fn groups_below(top: &Group) -> Result<Vec<(GroupId, PathBuf)>> {
    let mut found = GroupWalk { top: top.path(), paths: Vec::new() };
    memcg::walk(top.dir(), &mut found)?;
    Ok(found.paths)
}

/// Returns the size of this group below which reclaim takes what `memory.min` and `memory.low`
/// protect below it: `current` without the memory that is neither protected nor unreclaimable, and
/// a margin. Zero if nothing is protected.
///
/// Of each child what is in memory is protected, up to the larger of its two values. What is further
/// below is protected no further than that (mm/page_counter.c, `page_counter_calculate_protection`).
/// The group's own protection does not count, nor what cannot be read below a group of a user.
pub fn floor_below(top: &Group, current: Bytes) -> Result<Bytes> {
    let mut buffer = Vec::new();
    let mut children = Protected { buffer: Vec::new(), sum: Ok(None) };
    memcg::walk(top.dir(), &mut children)?;
    let Some(protected) = children.sum? else { return Ok(Bytes::ZERO) };
    let open = memcg::read_reclaimable(top.dir(), &mut buffer)? - protected;
    Ok(current - (open - MARGIN))
}

/// The protected memory of the children of a group that can be reclaimed. `None`: no child is
/// protected.
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

    #[test]
    fn reclaim_stops_at_the_children_s_protected_memory_and_at_what_cannot_be_reclaimed() {
        let mut root = FakeRoot::new();
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
        let floor = |path: &str, current: u64| {
            let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new(path)).expect("a group");
            floor_below(&group, Bytes::mib(current))
        };
        // Each child's protected MiB, without the 5 that cannot be reclaimed; and those of the top.
        let protected = (50 - 5) + (30 - 5) + (40 - 5) + (10 - 5);
        assert_eq!(floor("top", 900).expect("known"), Bytes::mib(protected + 5) + MARGIN);
        assert_eq!(floor("top", 960).expect("known"), Bytes::mib(protected + 5 + 60) + MARGIN);
        assert_eq!(floor("top/open/deep", 80).expect("known"), Bytes::ZERO, "nothing below it is protected");
        let root = root.group("top/low", &[("memory.stat", "file 8\n")]);
        assert!(floor("top", 900).is_err());
        let _root = root.group("top/low", &[("memory.low", "much")]);
        assert!(floor("top", 900).is_err());
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
