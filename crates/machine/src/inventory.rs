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

#[cfg(test)]
mod tests {
    use omr_policy::Class;
    use omr_policy::rank::ProcessId;
    use omr_testkit::FakeRoot;
    use omr_units::Bytes;

    use super::*;
    use crate::fixture::{add_group, add_process, kernel, node};

    #[test]
    fn a_process_in_the_foreground_takes_its_group_with_it_and_one_in_the_background_does_not() {
        let root = FakeRoot::new().proc("sys/kernel/random/boot_id", "one\n");
        for (pid, group) in [(101, "fore"), (102, "back"), (103, "ended")] {
            add_group(&root, group, Bytes::mib(1));
            add_process(&root, pid, "program", group);
        }
        let path = omr_base::paths::statements(root.path());
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let mut statements = StatementStore::load(&path, "one").expect("statements");
        for (id, word) in [
            (ProcessId { pid: 101, start: 1101 }, Presence::Foreground),
            (ProcessId { pid: 102, start: 1102 }, Presence::Background),
            // Another process has this number now.
            (ProcessId { pid: 103, start: 7 }, Presence::Foreground),
            (ProcessId { pid: 104, start: 7 }, Presence::Foreground),
        ] {
            statements.set_process(id, Some(word)).expect("saved");
        }
        let loaded = Loaded::built_in();
        let (tree, read) = read_groups(&kernel(&root), root.path(), &loaded, false).expect("groups");
        assert_eq!(read.processes(), statements.processes());
        let class = |path: &str| tree.assignment(node(&tree, path)).map(|assignment| assignment.class);
        assert_eq!(
            ["fore", "back", "ended"].map(class),
            [Some(Class::Foreground), Some(Class::Background), Some(Class::Background)]
        );
    }
}
