//! The groups at and below a group.

use std::path::{Path, PathBuf};

use omr_kernel::Result;
use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_units::{Bytes, GroupId, Limit};

/// Returns all groups with a memory controller at and below this one.
pub fn groups_below(top: &Group) -> Result<Vec<(GroupId, PathBuf)>> {
    let mut found = GroupWalk { top: top.path(), paths: Vec::new() };
    memcg::walk(top.dir(), &mut found)?;
    Ok(found.paths)
}

/// Returns how much `memory.min` and `memory.low` protect of what is below this group when it is
/// reclaimed: of each child what is in memory, up to the larger of its two values. What is further
/// below is protected no further than that (mm/page_counter.c, `page_counter_calculate_protection`).
/// The group's own protection does not count, nor what cannot be read below a group of a user.
pub fn protected_below(top: &Group) -> Result<Bytes> {
    let mut children = Protected { buffer: Vec::new(), sum: Ok(Bytes::ZERO) };
    memcg::walk(top.dir(), &mut children)?;
    children.sum
}

/// The protected bytes of the children of a group.
struct Protected {
    buffer: Vec<u8>,
    sum: Result<Bytes>,
}

impl Visit for Protected {
    fn enter(&mut self, Found { dir, parent, .. }: Found<'_>) -> Option<usize> {
        if parent.is_none() {
            return Some(0);
        }
        let protected = match memcg::read_protection(dir, &mut self.buffer) {
            Ok(Limit::Bytes(Bytes::ZERO)) => return None,
            Ok(limit) => memcg::read_number(dir, "memory.current", &mut self.buffer).map(|current| match limit {
                Limit::Max => Bytes(current),
                Limit::Bytes(bytes) => bytes.min(Bytes(current)),
            }),
            Err(err) => Err(err),
        };
        match (protected, &mut self.sum) {
            (Ok(bytes), Ok(sum)) => *sum += bytes,
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
    fn a_child_protects_what_it_has_and_a_grandchild_nothing_more() {
        let mut root = FakeRoot::new();
        for (group, current, min, low) in [
            ("top", "90", "0", "max"),
            ("top/low", "20", "0", "5"),
            ("top/low/deep", "15", "0", "max"),
            ("top/min", "7", "3", "2"),
            ("top/more", "4", "0", "100"),
            ("top/max", "1", "0", "max"),
            ("top/open", "30", "0", "0"),
            ("top/open/deep", "8", "0", "max"),
        ] {
            root = root.group(group, &[("memory.current", current), ("memory.min", min), ("memory.low", low)]);
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let protected = |path: &str| {
            let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new(path)).expect("a group");
            protected_below(&group)
        };
        assert_eq!(protected("top").expect("known"), Bytes(5 + 3 + 4 + 1));
        assert_eq!(protected("top/max").expect("known"), Bytes::ZERO);
        let _root = root.group("top/low", &[("memory.low", "much")]);
        assert!(protected("top").is_err());
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
