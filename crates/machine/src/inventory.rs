//! All groups with the classes that they have now: by the configuration, and by statements.

use std::path::Path;

use omr_config::Loaded;
use omr_kernel::process::Process;
use omr_kernel::{Kernel, Result};
use omr_policy::statement::Word;
use omr_units::GroupId;

use crate::groups::class::Classifier;
use crate::groups::tree::{SaidOfGroups, Tree};
use crate::processes;
use crate::statements::Said;

/// All groups as they are now, with their classes by the configuration and by what was said, and all that was said.
/// For everybody but the daemon's loop, which has both at hand. `memory`: see [`Tree::scan`].
pub fn read_groups(kernel: &Kernel, root: &Path, loaded: &Loaded, memory: bool) -> anyhow::Result<(Tree, Said)> {
    let said = Said::read(root, &kernel.read_boot_id().unwrap_or_default())?;
    Ok((groups_as_said(kernel, loaded, memory, &said)?, said))
}

/// As [`read_groups`], by this that was said.
pub fn groups_as_said(kernel: &Kernel, loaded: &Loaded, memory: bool, said: &Said) -> Result<Tree> {
    // The daemon's group is protected by its unit's name; the group of this shell is like any other.
    let classifier = Classifier::new(&loaded.groups, Path::new(""));
    let mut tree = Tree::default();
    tree.scan(kernel, &classifier, memory)?;
    hand_on(kernel, &classifier, &mut tree, said)?;
    Ok(tree)
}

/// Tells the tree what is said of groups, and of those in which a process is said to be in the foreground: nothing
/// is to be taken from these. Returns the groups that have another assignment by that.
pub fn hand_on(kernel: &Kernel, classifier: &Classifier, tree: &mut Tree, said: &Said) -> Result<Vec<GroupId>> {
    let mut all: SaidOfGroups = said.groups().iter().map(|(id, word)| (*id, (*word, None))).collect();
    for (id, _) in said.processes().iter().filter(|(_, word)| **word == Word::Foreground) {
        let Ok(process) = Process::open(kernel, id.pid) else { continue };
        if processes::id(&process) != *id {
            continue;
        }
        if let Some(node) = process.read_group().ok().flatten().and_then(|path| tree.find(&path)) {
            all.insert(node.id, (Word::Foreground, Some(id.pid)));
        }
    }
    tree.set_said(kernel, classifier, all)
}
