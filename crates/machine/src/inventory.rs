//! Reads all groups with their current classes, which follow from configuration and statements.

use std::path::Path;

use omr_config::Loaded;
use omr_kernel::process::Process;
use omr_kernel::{Kernel, Result};
use omr_policy::statement::Presence;
use omr_units::GroupId;

use crate::groups::class::Classifier;
use crate::groups::tree::{GroupStatements, Tree};
use crate::processes;
use crate::statements::StatementStore;

/// Reads all groups with their classes, and all statements. The daemon's loop does not need this:
/// it keeps both. `memory`: see [`Tree::scan`].
pub fn read_groups(
    kernel: &Kernel,
    root: &Path,
    loaded: &Loaded,
    memory: bool,
) -> anyhow::Result<(Tree, StatementStore)> {
    let statements = StatementStore::read(root, &kernel.read_boot_id().unwrap_or_default())?;
    Ok((groups_with_statements(kernel, loaded, memory, &statements)?, statements))
}

/// As [`read_groups`], with these statements.
pub fn groups_with_statements(
    kernel: &Kernel,
    loaded: &Loaded,
    memory: bool,
    statements: &StatementStore,
) -> Result<Tree> {
    // The daemon's group is protected by its unit's name; the group of this shell is like any
    // other.
    let classifier = Classifier::new(&loaded.groups, Path::new(""));
    let mut tree = Tree::default();
    tree.scan(kernel, &classifier, memory)?;
    apply_statements(kernel, &classifier, &mut tree, statements)?;
    Ok(tree)
}

/// Applies statements to the tree. A statement that a process is in the foreground counts for its
/// group, too: nothing may be reclaimed from it. Returns the groups whose assignment changed.
pub fn apply_statements(
    kernel: &Kernel,
    classifier: &Classifier,
    tree: &mut Tree,
    statements: &StatementStore,
) -> Result<Vec<GroupId>> {
    let mut all: GroupStatements = statements.groups().iter().map(|(id, word)| (*id, (*word, None))).collect();
    for (id, _) in statements.processes().iter().filter(|(_, word)| **word == Presence::Foreground) {
        let Ok(process) = Process::open(kernel, id.pid) else { continue };
        if processes::id(&process) != *id {
            continue;
        }
        if let Some(node) = process.read_group().ok().flatten().and_then(|path| tree.find(&path)) {
            all.insert(node.id, (Presence::Foreground, Some(id.pid)));
        }
    }
    tree.set_statements(kernel, classifier, all)
}
