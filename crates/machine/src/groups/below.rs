//! The groups at and below a group.

use std::path::{Path, PathBuf};

use omr_kernel::Result;
use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_units::GroupId;

/// Returns all groups with a memory controller at and below this one.
pub fn groups_below(top: &Group) -> Result<Vec<(GroupId, PathBuf)>> {
    let mut found = GroupWalk { top: top.path(), paths: Vec::new() };
    memcg::walk(top.dir(), &mut found)?;
    Ok(found.paths)
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
