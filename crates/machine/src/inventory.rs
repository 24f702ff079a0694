//! All groups with the classes that they have now: by the configuration, and by statements.

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

/// All groups as they are now, with their classes by the configuration and by what was said, and all that was said.
/// For everybody but the daemon's loop, which has both at hand. `memory`: see [`Tree::scan`].
pub fn read_groups(
    kernel: &Kernel,
    root: &Path,
    loaded: &Loaded,
    memory: bool,
) -> anyhow::Result<(Tree, StatementStore)> {
    let statements = StatementStore::read(root, &kernel.read_boot_id().unwrap_or_default())?;
    Ok((groups_with_statements(kernel, loaded, memory, &statements)?, statements))
}

/// As [`read_groups`], by this that was said.
pub fn groups_with_statements(
    kernel: &Kernel,
    loaded: &Loaded,
    memory: bool,
    statements: &StatementStore,
) -> Result<Tree> {
    // The daemon's group is protected by its unit's name; the group of this shell is like any other.
    let classifier = Classifier::new(&loaded.groups, Path::new(""));
    let mut tree = Tree::default();
    tree.scan(kernel, &classifier, memory)?;
    apply_statements(kernel, &classifier, &mut tree, statements)?;
    Ok(tree)
}

/// Tells the tree what is said of groups, and of those in which a process is said to be in the foreground: nothing
/// is to be taken from these. Returns the groups that have another assignment by that.
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
