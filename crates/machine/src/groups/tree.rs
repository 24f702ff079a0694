//! The tree of all groups: identity, class and memory of each.
//!
//! The tree is kept between scans: counters change all the time; names, classes and limits seldom
//! do.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_kernel::inotify::Watches;
use omr_kernel::memcg::{self, Found, Group, MOST_OF_A_USER, MemoryStat, Visit};
use omr_kernel::{Dir, Kernel, Result};
use omr_policy::statement::Presence;
use omr_policy::threshold::Step;
use omr_policy::{Class, ColdAmount, ColdOnly, MinAge};
use omr_units::{Bytes, GroupId, Limit, Monotonic};

use crate::groups::class::{Assignment, Classifier};
use crate::groups::xattrs::Attributes;

/// Limits and xattrs of all groups are read again after this time, all in one scan. So a change of
/// a group reaches the groups below it at once. A sweep reads the limits of its group itself.
const FULL_SCAN_AFTER: Duration = Duration::from_secs(30);
/// At least this many scans lie between two full scans. A full scan takes twice as long, and with
/// thousands of groups two scans are more than `FULL_SCAN_AFTER` apart.
const FULL_SCAN_EVERY: u32 = 6;

/// As many groups of a user are watched. A desktop has a hundred.
const WATCHED_OF_A_USER: usize = 256;

/// The properties of a group that are kept between scans.
#[derive(Debug)]
struct CachedGroup {
    name: Box<OsStr>,
    /// As they were last read: a change of a group above it changes its class, and not these.
    attributes: Attributes,
    assignment: Assignment,
    /// The larger one of `memory.min` and `memory.low`.
    protection: Option<Limit>,
    seen: u32,
}

/// A group as the last scan found it.
#[derive(Clone, Debug)]
pub struct Node {
    /// The identity of the group.
    pub id: GroupId,
    /// The index of the parent. The root is its own parent.
    pub parent: u32,
    /// `memory.current`; `None` without a memory controller.
    pub current: Option<Bytes>,
    /// The part of `current` that is charged to children with a memory controller.
    pub charged_to_children: Bytes,
    /// A child has a memory controller, so this is an internal cgroup.
    pub is_internal: bool,
    /// Anonymous and shared memory.
    pub swap_backed: Option<Bytes>,
    /// Page cache of files.
    pub page_cache: Option<Bytes>,
    /// Refaults since the group was made, in bytes.
    pub refaults: Option<Bytes>,
    /// The bytes that its own and its ancestors' protection leave unprotected; `None`: unknown.
    pub unprotected: Option<Bytes>,
    /// Reclaim of this group may also reclaim from all groups below it: each is known, of class
    /// background, unprotected, without a keep rule, and without a higher minimum age.
    pub subtree_reclaimable: bool,
    /// The index of the topmost group at or above it that belongs to a user, who may make groups
    /// below it; `None`: it is root's.
    pub users_top: Option<u32>,
    /// The group and all its children could be read.
    readable: bool,
}

/// The statements about groups. The number is the process that the statement is about, if it is
/// about a process in the group.
pub type GroupStatements = HashMap<GroupId, (Presence, Option<u32>)>;

/// All groups of the machine, parents before children.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    known: HashMap<GroupId, CachedGroup>,
    statements: GroupStatements,
    /// The watched directories; `None`: no group is watched.
    watches: Option<Watches>,
    /// A group could not be watched, which was said.
    lacks_watches: bool,
    /// A user has made too many groups, which was said.
    has_too_many: bool,
    scan: u32,
    /// The last scan has missed groups that may be there.
    has_missed: bool,
    /// The time and the number of the last full scan.
    read_all: (Monotonic, u32),
    buffer: Vec<u8>,
    path: PathBuf,
}

struct Scan<'a> {
    tree: &'a mut Tree,
    kernel: &'a Kernel,
    classifier: &'a Classifier,
    /// Reads limits and xattrs of all groups, not only of new ones.
    all: bool,
    memory: bool,
    /// A group in which there are more groups of a user than are visited.
    too_many: Option<usize>,
}

impl Visit for Scan<'_> {
    fn enter(&mut self, Found { dir, id, owner, is_users, name, parent }: Found<'_>) -> Option<usize> {
        let tree = &mut *self.tree;
        let index = tree.nodes.len();
        let parent_index = parent.unwrap_or(index);
        let above = parent.and_then(|parent| tree.nodes[parent].users_top);
        let users_top = above.or_else(|| is_users.then(|| u32::try_from(index).unwrap_or(u32::MAX)));
        let stale = match tree.known.get(&id) {
            Some(known) => self.all || *known.name != *name,
            None => true,
        };
        if stale {
            // The path is built for new groups only; most scans find none.
            tree.path.clear();
            if let Some(parent) = parent {
                push_path(&tree.nodes, &tree.known, parent, &mut tree.path);
                tree.path.push(name);
            }
            let above = parent.map(|parent| tree.nodes[parent].id);
            let may_watch = may_watch(owner, index, users_top);
            let attributes = tree.read_attributes(dir, id, may_watch);
            let assignment = tree.classify(self.classifier, id, above, &attributes);
            let protection = memcg::read_protection(dir, &mut tree.buffer).ok();
            let name = name.into();
            tree.known.insert(id, CachedGroup { name, attributes, assignment, protection, seen: tree.scan });
        } else if let Some(known) = tree.known.get_mut(&id) {
            known.seen = tree.scan;
        }
        let (current, readable) = match memcg::read_number(dir, "memory.current", &mut tree.buffer) {
            Ok(current) => (Some(Bytes(current)), true),
            // The group has no memory controller, or is gone.
            Err(err) => (None, err.is_gone()),
        };
        let stat = match current {
            Some(_) if self.memory => memcg::read_stat(self.kernel, dir, &mut tree.buffer).unwrap_or_default(),
            _ => MemoryStat::default(),
        };
        tree.nodes.push(Node {
            id,
            parent: u32::try_from(parent_index).unwrap_or(u32::MAX),
            current,
            charged_to_children: Bytes::ZERO,
            is_internal: false,
            swap_backed: stat.swap_backed().map(|bytes| bytes + stat.swapcached.unwrap_or_default()),
            page_cache: stat.page_cache(),
            refaults: stat.refaults().map(|pages| pages.bytes(self.kernel.page())),
            unprotected: None,
            subtree_reclaimable: false,
            users_top,
            readable,
        });
        Some(index)
    }

    fn unknown(&mut self, parent: usize) {
        if let Some(node) = self.tree.nodes.get_mut(parent) {
            node.readable = false;
        }
    }

    fn missed(&mut self, parent: usize) {
        self.unknown(parent);
        self.tree.has_missed = true;
    }

    fn too_many(&mut self, parent: usize) {
        self.unknown(parent);
        self.too_many = Some(parent);
    }
}

/// Groups of root are not watched: most are no applications, and a compositor writes only to groups
/// of its own user. Of a user's groups, the first are watched: all watches are root's, who may have
/// only so many.
fn may_watch(owner: u32, index: usize, users_top: Option<u32>) -> bool {
    owner != 0 && users_top.is_none_or(|top| index - (top as usize) < WATCHED_OF_A_USER)
}

/// Error for a cgroup that does not exist.
pub fn no_group(path: &Path) -> anyhow::Error {
    let shown = printable(&path.to_string_lossy());
    Exit::Failed.error(format!("there is no group {shown}; systemd-cgls lists the groups"))
}

fn push_path(nodes: &[Node], known: &HashMap<GroupId, CachedGroup>, index: usize, path: &mut PathBuf) {
    let Some(node) = nodes.get(index) else { return };
    let parent = node.parent as usize;
    if parent == index {
        return;
    }
    push_path(nodes, known, parent, path);
    if let Some(known) = known.get(&node.id) {
        path.push(&*known.name);
    }
}

impl Tree {
    /// Reads all groups. `memory`: reads `memory.stat`, too.
    pub fn scan(&mut self, kernel: &Kernel, classifier: &Classifier, memory: bool) -> Result<()> {
        self.nodes.clear();
        self.has_missed = false;
        self.scan = self.scan.wrapping_add(1);
        let now = kernel.clock.monotonic();
        let (when, scan) = self.read_all;
        let all = now.since(when) >= FULL_SCAN_AFTER && self.scan.wrapping_sub(scan) >= FULL_SCAN_EVERY;
        if all || self.scan == 1 {
            self.read_all = (now, self.scan);
        }
        let mut scan = Scan { kernel, classifier, all, memory, too_many: None, tree: self };
        memcg::walk(kernel.cgroup()?, &mut scan)?;
        let too_many = scan.too_many;
        self.note_too_many(too_many);
        let this_scan = self.scan;
        if !self.has_missed {
            self.known.retain(|_, known| known.seen == this_scan);
        }
        if let Some(watches) = &mut self.watches {
            watches.retain(|id| self.known.contains_key(&id));
        }
        self.sum_up();
        Ok(())
    }

    /// Reads the xattrs of a group as they are now.
    fn read_attributes(&mut self, dir: &Dir, id: GroupId, may_watch: bool) -> Attributes {
        // The watch comes first: a change in between is then read twice instead of being missed.
        if may_watch {
            self.watch(dir, id);
        }
        Attributes::read(dir)
    }

    /// Returns the assignment of the group at `self.path` with these xattrs.
    fn classify(
        &self,
        classifier: &Classifier,
        id: GroupId,
        parent: Option<GroupId>,
        attributes: &Attributes,
    ) -> Assignment {
        let none = Assignment::default();
        let above = parent.and_then(|parent| self.known.get(&parent)).map_or(&none, |known| &known.assignment);
        let mut assignment = classifier.assign(&self.path, above, attributes);
        if let Some((word, of)) = self.statements.get(&id) {
            assignment.apply_statement(*word, *of);
        }
        assignment
    }

    /// Watches the xattrs of users' groups, such as the focus, from the next scan on. Changes are
    /// then noticed at once.
    pub fn watch_attributes(&mut self) {
        match Watches::new() {
            Ok(watches) => self.watches = Some(watches),
            Err(err) => log::warn!("{err}; changes of the focus are noticed within {} s", FULL_SCAN_AFTER.as_secs()),
        }
    }

    /// Watches one group.
    fn watch(&mut self, dir: &Dir, id: GroupId) {
        let Some(watches) = &mut self.watches else { return };
        match watches.watch(dir, id) {
            Err(err) if !err.is_gone() && !self.lacks_watches => {
                self.lacks_watches = true;
                let seconds = FULL_SCAN_AFTER.as_secs();
                log::warn!("{err}; changes of the focus in such groups are noticed within {seconds} s");
            }
            _ => {}
        }
    }

    /// Says once that there are too many groups below this one.
    fn note_too_many(&mut self, parent: Option<usize>) {
        let had_too_many = std::mem::replace(&mut self.has_too_many, parent.is_some());
        if let Some(parent) = parent.filter(|_| !had_too_many) {
            let top = self.nodes[parent].users_top.map_or(parent, |top| top as usize);
            let path = self.path_at(top);
            let shown = printable(&path.to_string_lossy());
            log::warn!("{shown} has more than {MOST_OF_A_USER} groups; the others are not swept");
        }
    }

    /// Returns true if `memory.current` of a group and the list of groups in it were read, or it has no
    /// memory controller.
    pub fn is_readable(&self, node: &Node) -> bool {
        node.readable
    }

    /// Returns true if each group that the last scan did not find is gone.
    pub fn is_complete(&self) -> bool {
        !self.has_missed
    }

    /// A descriptor that is readable when [`Tree::collect_changes`] has work to do.
    pub fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.watches.as_ref().map(|watches| watches.as_fd())
    }

    /// Reads the xattrs of watched groups that changed since the last scan. Returns the groups whose
    /// assignment changed: these, and groups below them.
    pub fn collect_changes(&mut self, kernel: &Kernel, classifier: &Classifier) -> Result<Vec<GroupId>> {
        let Some(changed) = self.watches.as_mut().map(Watches::read) else { return Ok(Vec::new()) };
        if changed.lost {
            // The next scan reads all of them.
            self.read_all = (Monotonic(0), self.scan.wrapping_sub(FULL_SCAN_EVERY));
            return Ok(Vec::new());
        }
        self.refresh(kernel, classifier, &changed.groups)
    }

    /// Reads the xattrs of these groups, and classifies them and all groups below them again. Those
    /// below cost no system call, and none is looked at whose parent stays as it is: a user can have
    /// a thousand of them, and change a group above them all the time. Returns the groups whose
    /// assignment changed.
    fn refresh(&mut self, kernel: &Kernel, classifier: &Classifier, ids: &[GroupId]) -> Result<Vec<GroupId>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let root = kernel.cgroup()?;
        let ids: HashSet<GroupId> = ids.iter().copied().collect();
        let mut reassigned = Vec::new();
        let mut changed = vec![false; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let Node { id, parent, users_top, .. } = self.nodes[index];
            let parent = parent as usize;
            let is_one = ids.contains(&id);
            if !is_one && !changed[parent] {
                continue;
            }
            self.path = self.path_at(index);
            if is_one {
                // The next scan removes a group that is gone.
                let Some(group) = Group::open(root, &self.path).ok().filter(|group| group.id() == id) else { continue };
                let may_watch = group.dir().owner().is_ok_and(|owner| may_watch(owner, index, users_top));
                let attributes = self.read_attributes(group.dir(), id, may_watch);
                if let Some(known) = self.known.get_mut(&id) {
                    known.attributes = attributes;
                }
            }
            let above = (parent != index).then(|| self.nodes[parent].id);
            let Some(known) = self.known.get(&id) else { continue };
            let assignment = self.classify(classifier, id, above, &known.attributes);
            if known.assignment != assignment
                && let Some(known) = self.known.get_mut(&id)
            {
                known.assignment = assignment;
                changed[index] = true;
                reassigned.push(id);
            }
        }
        if !reassigned.is_empty() {
            self.sum_up();
        }
        Ok(reassigned)
    }

    /// Replaces the statements about groups. Returns the groups whose assignment changed.
    pub fn set_statements(
        &mut self,
        kernel: &Kernel,
        classifier: &Classifier,
        statements: GroupStatements,
    ) -> Result<Vec<GroupId>> {
        let before = std::mem::replace(&mut self.statements, statements);
        let ids = before.keys().chain(self.statements.keys());
        let changed: Vec<GroupId> = ids.filter(|id| before.get(id) != self.statements.get(id)).copied().collect();
        self.refresh(kernel, classifier, &changed)
    }

    /// Forgets all classes, for a new configuration.
    pub fn reclassify(&mut self) {
        self.known.clear();
    }

    /// Computes protection and sums. Children come after their parents, so one pass down hands
    /// protection on and one pass up adds memory.
    fn sum_up(&mut self) {
        for node in &mut self.nodes {
            (node.charged_to_children, node.is_internal, node.subtree_reclaimable) =
                (Bytes::ZERO, false, node.readable);
        }
        for index in 0..self.nodes.len() {
            let parent = self.nodes[index].parent as usize;
            let above = if parent == index { Some(Bytes::MAX) } else { self.nodes[parent].unprotected };
            let node = &self.nodes[index];
            let known = self.known.get(&node.id);
            let own = match (node.current, known.and_then(|known| known.protection)) {
                // Without a memory controller the group above decides.
                (None, _) => Some(Bytes::MAX),
                (Some(_), Some(Limit::Max)) => Some(Bytes::ZERO),
                (Some(current), Some(Limit::Bytes(protected))) if protected.0 > 0 => Some(current - protected),
                (Some(_), Some(Limit::Bytes(_))) => Some(Bytes::MAX),
                (Some(_), None) => None,
            };
            self.nodes[index].unprotected = above.zip(own).map(|(above, own)| above.min(own));
        }
        for index in (1..self.nodes.len()).rev() {
            let parent = self.nodes[index].parent as usize;
            let node = &self.nodes[index];
            let known = self.known.get(&node.id);
            let above = self.known.get(&self.nodes[parent].id).and_then(|above| above.assignment.older_than());
            let reclaimable = node.subtree_reclaimable
                && known.is_some_and(|known| {
                    known.assignment.class == Class::Background
                        && known.assignment.keep.is_none()
                        // Reclaim of the group above can reclaim memory of this group.
                        && known.assignment.older_than() <= above
                        && (node.current.is_none() || known.protection == Some(Limit::Bytes(Bytes::ZERO)))
                });
            let current = node.current;
            let above = &mut self.nodes[parent];
            above.subtree_reclaimable &= reclaimable;
            if let Some(current) = current {
                above.charged_to_children += current;
                above.is_internal = true;
            }
        }
    }

    /// Returns all groups of the last scan, the root first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the class of a group and its origin.
    pub fn assignment(&self, node: &Node) -> Option<&Assignment> {
        self.known.get(&node.id).map(|known| &known.assignment)
    }

    /// Returns the path of a group below the mount. This is a search; use [`Tree::path_at`] in
    /// loops.
    pub fn path(&self, id: GroupId) -> Option<PathBuf> {
        Some(self.path_at(self.nodes.iter().position(|node| node.id == id)?))
    }

    /// Returns the path of the group at this index of [`Tree::nodes`].
    pub fn path_at(&self, index: usize) -> PathBuf {
        let mut path = PathBuf::new();
        push_path(&self.nodes, &self.known, index, &mut path);
        path
    }

    /// Returns the group at a path below the mount. In `path`, bytes that are not UTF-8 may be
    /// replaced.
    pub fn find(&self, path: &Path) -> Option<&Node> {
        let is_here = |mut index: usize| {
            for part in path.iter().rev() {
                let node = &self.nodes[index];
                let name = self.known.get(&node.id).map(|known| &*known.name)?;
                if node.parent as usize == index || name.to_string_lossy() != part.to_string_lossy() {
                    return None;
                }
                index = node.parent as usize;
            }
            (self.nodes[index].parent as usize == index).then_some(())
        };
        let found = (0..self.nodes.len()).find(|&index| is_here(index).is_some());
        found.map(|index| &self.nodes[index])
    }

    /// Returns the groups that can be swept, for the policy: each leaf of the memory controller,
    /// and each internal group with `subtree_reclaimable`. An internal group counts with the memory
    /// that is not charged to its children, such as the page cache that removed children left
    /// behind. `without_rule`: the minimum age of memory in groups for which no rule says one.
    pub fn groups(&self, without_rule: MinAge) -> impl Iterator<Item = omr_policy::Group> + '_ {
        self.nodes.iter().enumerate().filter_map(move |(index, node)| {
            let parent = node.parent as usize;
            if parent == index || node.current.is_none() {
                return None;
            }
            let assignment = &self.known.get(&node.id)?.assignment;
            // A leaf can have groups below it without a memory controller and of another class.
            let class = if node.subtree_reclaimable || assignment.class != Class::Background {
                assignment.class
            } else {
                Class::Protected
            };
            if node.is_internal && !node.subtree_reclaimable {
                return None;
            }
            let current = node.current.map(|current| current - node.charged_to_children);
            // memory.stat of an internal group includes its children, so its own memory is the
            // limit.
            Some(omr_policy::Group {
                id: node.id,
                class,
                current,
                swap_backed: node.swap_backed.min(current),
                page_cache: node.page_cache.min(current),
                refaults: node.refaults,
                unprotected: node.unprotected,
                keep: assignment.keep,
                cold_only: cold_only(assignment.age_rule().unwrap_or(without_rule)),
            })
        })
    }
}

/// Nothing is known yet. A threshold begins with the longest.
fn cold_only(age: MinAge) -> Option<ColdOnly> {
    let min_age = match age {
        MinAge::Any => return None,
        MinAge::Time(age) => age,
        MinAge::Learned => Step::MOST.age(),
    };
    Some(ColdOnly { min_age, cold: ColdAmount::NotYet, learned: age == MinAge::Learned, threshold: None })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::chown;
    use std::time::Instant;

    use crate::fixture::{TestClock, add_group, classifier, kernel, node, scan, set};
    use omr_testkit::FakeRoot;
    use rustix::fs::{XattrFlags, fsetxattr};

    use super::*;

    const TOP: &str = "user@1000.service";

    fn class(tree: &Tree, path: &str) -> Option<Class> {
        let node = tree.find(Path::new(path))?;
        Some(tree.assignment(node)?.class)
    }

    /// A user can have a thousand groups below one, and change its attribute 200 times a second.
    #[test]
    fn a_change_reaches_the_groups_below_without_opening_them() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: the groups cannot be given to a user, and only such are watched");
            return;
        }
        let root = FakeRoot::new();
        for group in ["", "/app.slice", "/app.slice/app.scope", "/other"] {
            let path = format!("sys/fs/cgroup/{TOP}{group}");
            root.write(format!("{path}/memory.current"), "4096\n");
            chown(root.resolve(&path), Some(1000), None).expect("chown");
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let classifier = Classifier::new(&omr_config::rules(""), Path::new("omr"));
        let mut tree = Tree::default();
        tree.watch_attributes();
        tree.scan(&kernel, &classifier, false).expect("a scan");
        let paths = [TOP, "user@1000.service/app.slice", "user@1000.service/app.slice/app.scope"];
        assert_eq!(paths.map(|path| class(&tree, path)), [Some(Class::Background); 3]);
        let slice = File::open(root.resolve(format!("sys/fs/cgroup/{}", paths[1]))).expect("a directory");
        // What cannot be opened any more was not opened.
        std::fs::remove_dir_all(root.resolve(format!("sys/fs/cgroup/{}", paths[2]))).expect("removed");
        fsetxattr(&slice, "user.omr.class", b"foreground", XattrFlags::empty()).expect("an attribute");
        let began = Instant::now();
        let mut changed = Vec::new();
        while changed.is_empty() && began.elapsed() < Duration::from_secs(10) {
            changed = tree.collect_changes(&kernel, &classifier).expect("changes");
        }
        let ids = paths.map(|path| tree.find(Path::new(path)).map(|node| node.id).expect("a node"));
        assert_eq!(changed, ids[1..]);
        assert_eq!(
            paths.map(|path| class(&tree, path).expect("a class")),
            [Class::Background, Class::Foreground, Class::Foreground]
        );
        // The control: beside the group nothing has changed.
        assert_eq!(class(&tree, "user@1000.service/other"), Some(Class::Background));
    }

    /// What a sweep may take from the groups of a tree, by path.
    fn unprotected(tree: &Tree) -> Vec<(String, Option<Bytes>, bool)> {
        let row = |(index, node): (usize, &Node)| {
            (tree.path_at(index).display().to_string(), node.unprotected, node.subtree_reclaimable)
        };
        let mut rows: Vec<_> = tree.nodes().iter().enumerate().skip(1).map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn protection_of_a_group_counts_for_the_groups_below_it() {
        let root = FakeRoot::new();
        for (path, mib) in [("top", 10), ("top/a", 6), ("top/b", 4), ("free", 3), ("odd", 2)] {
            add_group(&root, path, Bytes::mib(mib));
        }
        set(&root, "top", "memory.low", "5242880\n");
        set(&root, "top/b", "memory.min", "3145728\n");
        set(&root, "odd", "memory.low", "nonsense");
        let tree = scan(&root, "");
        assert_eq!(
            unprotected(&tree),
            [
                ("free".into(), Some(Bytes::MAX), true),
                ("odd".into(), None, true),
                ("top".into(), Some(Bytes::mib(5)), false),
                ("top/a".into(), Some(Bytes::mib(5)), true),
                ("top/b".into(), Some(Bytes::mib(1)), true),
            ]
        );
        set(&root, "free", "memory.min", "max\n");
        assert_eq!(scan(&root, "").find(Path::new("free")).expect("a node").unprotected, Some(Bytes::ZERO));
    }

    #[test]
    fn a_group_is_reclaimed_as_a_whole_only_if_nothing_below_it_is_spared() {
        let root = FakeRoot::new();
        for (path, mib) in [("top", 10), ("top/a", 6)] {
            add_group(&root, path, Bytes::mib(mib));
        }
        let whole = |rules: &str| node(&scan(&root, rules), "top").subtree_reclaimable;
        let rule = |path: &str, keys: &str| format!("[[group]]\nmatch = '{path}'\n{keys}\n");
        assert!(whole(""));
        assert!(!whole(&rule("top/a", "class = 'foreground'")));
        assert!(!whole(&rule("top/a", "keep = '1M'")));
        assert!(!whole(&rule("top/a", "older_than = '1h'")), "younger memory would leave with the group above");
        assert!(whole(&(rule("top", "older_than = '1h'") + &rule("top/a", "older_than = '1h'"))));
        assert!(whole(&(rule("top", "older_than = '2h'") + &rule("top/a", "older_than = '1h'"))));
        assert!(!whole(&(rule("top", "older_than = '1h'") + &rule("top/a", "older_than = '2h'"))));
        set(&root, "top/a", "memory.current", "nonsense");
        assert!(!whole(""), "a group that cannot be read is not known to be background");
    }

    #[test]
    fn memory_is_read_on_request_and_its_parts_are_those_of_the_kernel() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(4));
        set(&root, "a", "memory.stat", "anon 2097152\nfile 1048576\nshmem 524288\nswapcached 4096\n");
        let tree = scan(&root, "");
        let group = tree.groups(MinAge::Any).next().expect("a group");
        assert_eq!(group.swap_backed, Some(Bytes::kib(2048 + 512 + 4)));
        assert_eq!(group.page_cache, Some(Bytes::kib(1024 - 512 - 4)));
        let mut tree = Tree::default();
        tree.scan(&kernel(&root), &classifier(""), false).expect("a scan");
        let group = tree.groups(MinAge::Any).next().expect("a group");
        assert_eq!((group.current, group.swap_backed, group.page_cache), (Some(Bytes::mib(4)), None, None));
    }

    #[test]
    fn an_age_is_fixed_or_learned_or_any() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(4));
        let age = |rules: &str, without_rule| {
            let cold_only = scan(&root, rules).groups(without_rule).next().expect("a group").cold_only;
            cold_only.map(|cold_only| (cold_only.min_age, cold_only.learned))
        };
        let hour = Duration::from_secs(3600);
        let rule = "[[group]]\nmatch = 'a'\nolder_than = '1h'";
        assert_eq!(age("", MinAge::Any), None);
        assert_eq!(age("", MinAge::Learned), Some((Step::MOST.age(), true)));
        assert_eq!(age("", MinAge::Time(hour * 2)), Some((hour * 2, false)));
        assert_eq!(age(rule, MinAge::Learned), Some((hour, false)));
    }

    #[test]
    fn limits_are_read_again_after_half_a_minute_and_six_scans() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(4));
        let (clock, classifier) = (TestClock::default(), classifier(""));
        let (kernel, mut tree) = (clock.kernel(&root), Tree::default());
        let mut unprotected = |scans: u32| {
            for _ in 0..scans {
                tree.scan(&kernel, &classifier, false).expect("a scan");
            }
            node(&tree, "a").unprotected
        };
        assert_eq!(unprotected(1), Some(Bytes::MAX));
        set(&root, "a", "memory.low", "1048576\n");
        assert_eq!(unprotected(20), Some(Bytes::MAX), "no time has passed");
        clock.pass(FULL_SCAN_AFTER);
        assert_eq!(unprotected(1), Some(Bytes::mib(3)));
        set(&root, "a", "memory.low", "2097152\n");
        clock.pass(FULL_SCAN_AFTER * 10);
        assert_eq!(unprotected(FULL_SCAN_EVERY - 1), Some(Bytes::mib(3)), "too few scans");
        assert_eq!(unprotected(1), Some(Bytes::mib(2)));
    }

    #[test]
    fn a_group_that_was_renamed_is_classified_again_and_one_that_is_gone_is_forgotten() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(4));
        let (kernel, classifier) = (kernel(&root), classifier("[[group]]\nmatch = 'b'\nclass = 'protected'"));
        let mut tree = Tree::default();
        tree.scan(&kernel, &classifier, false).expect("a scan");
        let id = node(&tree, "a").id;
        assert_eq!((class(&tree, "a"), tree.path(id)), (Some(Class::Background), Some("a".into())));
        std::fs::rename(root.resolve("sys/fs/cgroup/a"), root.resolve("sys/fs/cgroup/b")).expect("renamed");
        tree.scan(&kernel, &classifier, false).expect("a scan");
        assert_eq!((class(&tree, "b"), tree.path(id)), (Some(Class::Protected), Some("b".into())));
        assert!(tree.is_complete() && tree.known.len() == 2);
        root.remove("sys/fs/cgroup/b");
        tree.scan(&kernel, &classifier, false).expect("a scan");
        assert_eq!((tree.nodes().len(), tree.known.len(), tree.path(id)), (1, 1, None));
    }

    #[test]
    fn only_groups_whose_statement_changed_are_reassigned() {
        let root = FakeRoot::new();
        for path in ["a", "a/below", "b"] {
            add_group(&root, path, Bytes::mib(1));
        }
        let (kernel, classifier, mut tree) = (kernel(&root), classifier(""), scan(&root, ""));
        let ids = ["a", "a/below", "b"].map(|path| node(&tree, path).id);
        let foreground = (Presence::Foreground, None);
        let mut state = |statements: &[GroupId]| {
            let all = statements.iter().map(|id| (*id, foreground)).collect();
            let mut changed = tree.set_statements(&kernel, &classifier, all).expect("changes");
            changed.sort_by_key(|id| ids.iter().position(|one| one == id));
            (changed, ["a", "a/below", "b"].map(|path| class(&tree, path) == Some(Class::Foreground)))
        };
        assert_eq!(state(&ids[..1]), (ids[..2].to_vec(), [true, true, false]));
        assert_eq!(state(&ids[..1]), (vec![], [true, true, false]));
        assert_eq!(state(&ids[2..]), (ids.to_vec(), [false, false, true]));
        assert_eq!(state(&[]), (ids[2..].to_vec(), [false; 3]));
    }

    #[test]
    fn the_first_groups_of_a_user_are_watched_and_those_of_root_are_not() {
        let most = WATCHED_OF_A_USER;
        assert!(may_watch(1000, 7, None) && !may_watch(0, 7, None) && !may_watch(0, 7, Some(7)));
        assert!(may_watch(1000, 7 + most - 1, Some(7)) && !may_watch(1000, 7 + most, Some(7)));
    }
}
