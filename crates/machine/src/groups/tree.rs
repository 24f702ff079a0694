//! The groups of the machine: who they are, their class, and what they hold.
//!
//! Kept from scan to scan, because names, classes and limits hardly change while counters do.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_kernel::inotify::Watches;
use omr_kernel::memcg::{self, Group, MemoryStat, Visit};
use omr_kernel::{Dir, Kernel, Result, clock};
use omr_policy::statement::Presence;
use omr_policy::{Class, ColdAmount, ColdOnly};
use omr_units::{Bytes, GroupId, Limit, Monotonic};

use crate::groups::class::{Assignment, Classifier};
use crate::groups::xattrs::Attributes;

/// Limits and xattrs of all groups are read again after this time, in one scan, so that what is said
/// of a group reaches those below it at once; a sweep reads the limits of its group anew.
const FULL_SCAN_AFTER: Duration = Duration::from_secs(30);
/// And not more often than in so many scans: such a scan takes twice as long, and scans of thousands
/// of groups are more than `FULL_SCAN_AFTER` apart.
const FULL_SCAN_EVERY: u32 = 6;

/// What stays the same from scan to scan.
#[derive(Debug)]
struct CachedGroup {
    name: Box<OsStr>,
    assignment: Assignment,
    /// `memory.min` or `memory.low`, the larger.
    protection: Option<Limit>,
    seen: u32,
}

/// One group at the last scan.
#[derive(Clone, Debug)]
pub struct Node {
    /// Identity.
    pub id: GroupId,
    /// Index of its parent; the root's is its own.
    pub parent: u32,
    /// `memory.current`; `None` without a memory controller.
    pub current: Option<Bytes>,
    /// Of it, what children with a memory controller hold.
    pub charged_to_children: Bytes,
    /// Whether any child has a memory controller.
    pub is_internal: bool,
    /// Anonymous and shared memory.
    pub swap_backed: Option<Bytes>,
    /// Page cache of files.
    pub page_cache: Option<Bytes>,
    /// Bytes that came back.
    pub refaults: Option<Bytes>,
    /// What its own and its ancestors' protection leaves; `None` unknown.
    pub unprotected: Option<Bytes>,
    /// All groups below it are known, of class background, unprotected, keep nothing, and do not lose less by age.
    pub subtree_reclaimable: bool,
    /// It could be read, and so could all groups right below it.
    readable: bool,
}

/// What is said of groups; of some because of a process in them.
pub type GroupStatements = HashMap<GroupId, (Presence, Option<u32>)>;

/// All groups, parents before children.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    known: HashMap<GroupId, CachedGroup>,
    statements: GroupStatements,
    /// Whose attributes are watched; `None`: nobody's.
    watches: Option<Watches>,
    scan: u32,
    /// When limits and xattrs of all groups were read, and in which scan.
    read_all: (Monotonic, u32),
    buffer: Vec<u8>,
    path: PathBuf,
}

struct Scan<'a> {
    tree: &'a mut Tree,
    classifier: &'a Classifier,
    page: omr_units::PageSize,
    /// Limits and xattrs of all groups, not of new ones only.
    all: bool,
    memory: bool,
}

impl Visit for Scan<'_> {
    fn enter(&mut self, dir: &Dir, id: GroupId, name: &OsStr, parent: Option<usize>) -> Option<usize> {
        let tree = &mut *self.tree;
        let index = tree.nodes.len();
        let parent_index = parent.unwrap_or(index);
        let stale = match tree.known.get(&id) {
            Some(known) => self.all || *known.name != *name,
            None => true,
        };
        if stale {
            // The path is put together for new groups only; most scans see none.
            tree.path.clear();
            if let Some(parent) = parent {
                push_path(&tree.nodes, &tree.known, parent, &mut tree.path);
                tree.path.push(name);
            }
            let above = parent.map(|parent| tree.nodes[parent].id);
            let assignment = tree.classify(self.classifier, dir, id, above);
            let protection = memcg::read_protection(dir, &mut tree.buffer).ok();
            tree.known.insert(id, CachedGroup { name: name.into(), assignment, protection, seen: tree.scan });
        } else if let Some(known) = tree.known.get_mut(&id) {
            known.seen = tree.scan;
        }
        let (current, readable) = match memcg::read_number(dir, "memory.current", &mut tree.buffer) {
            Ok(current) => (Some(Bytes(current)), true),
            // No memory controller here, or the group is gone.
            Err(err) => (None, err.is_gone()),
        };
        let stat = match current {
            Some(_) if self.memory => {
                let read = dir.read_at_once("memory.stat", &mut tree.buffer);
                read.map(|()| MemoryStat::parse(&tree.buffer)).unwrap_or_default()
            }
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
            refaults: stat.refaults().map(|pages| pages.bytes(self.page)),
            unprotected: None,
            subtree_reclaimable: false,
            readable,
        });
        Some(index)
    }

    fn unknown(&mut self, parent: usize) {
        if let Some(node) = self.tree.nodes.get_mut(parent) {
            node.readable = false;
        }
    }
}

/// What is said to who names a group that is not there.
pub fn no_group(path: &Path) -> anyhow::Error {
    let shown = printable(&path.to_string_lossy());
    Exit::Failed.error(format!("there is no group {shown}; systemd-cgls shows those there are"))
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
    /// Walks over all groups and reads what they hold. `memory`: also what it consists of.
    pub fn scan(&mut self, kernel: &Kernel, classifier: &Classifier, memory: bool) -> Result<()> {
        self.nodes.clear();
        self.scan = self.scan.wrapping_add(1);
        let now = clock::read_monotonic();
        let (when, scan) = self.read_all;
        let all = now.since(when) >= FULL_SCAN_AFTER && self.scan.wrapping_sub(scan) >= FULL_SCAN_EVERY;
        if all || self.scan == 1 {
            self.read_all = (now, self.scan);
        }
        let mut scan = Scan { classifier, page: kernel.page(), all, memory, tree: self };
        memcg::walk(kernel.cgroup()?, &mut scan)?;
        let this_scan = self.scan;
        self.known.retain(|_, known| known.seen == this_scan);
        if let Some(watches) = &mut self.watches {
            watches.retain(|id| self.known.contains_key(&id));
        }
        self.sum_up();
        Ok(())
    }

    /// The assignment of the group at `self.path`, by what it says now.
    fn classify(&mut self, classifier: &Classifier, dir: &Dir, id: GroupId, parent: Option<GroupId>) -> Assignment {
        // First the watch: what changes in between is read twice, and not never.
        if self.watches.is_some() {
            self.watch(dir, id);
        }
        let attributes = Attributes::read(dir);
        let none = Assignment::default();
        let above = parent.and_then(|parent| self.known.get(&parent)).map_or(&none, |known| &known.assignment);
        let mut assignment = classifier.assign(&self.path, above, &attributes);
        if let Some((word, of)) = self.statements.get(&id) {
            assignment.apply_statement(*word, *of);
        }
        assignment
    }

    /// From the next scan on, changes of the attributes of users' groups, such as the focus, are noticed at once.
    pub fn watch_attributes(&mut self) {
        match Watches::new() {
            Ok(watches) => self.watches = Some(watches),
            Err(err) => log::warn!("{err}; who has the focus is noticed within {} s", FULL_SCAN_AFTER.as_secs()),
        }
    }

    /// A compositor writes to groups of its own user only; those of root, most of them, are no applications.
    fn watch(&mut self, dir: &Dir, id: GroupId) {
        let Some(watches) = &mut self.watches else { return };
        if dir.owner().is_ok_and(|owner| owner == 0) {
            return;
        }
        match watches.watch(dir, id) {
            Err(err) if !err.is_gone() => {
                log::warn!("{err}; who has the focus is noticed within {} s", FULL_SCAN_AFTER.as_secs());
                self.watches = None;
            }
            _ => {}
        }
    }

    /// Readable when [`Tree::collect_changes`] has something to take in.
    pub fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.watches.as_ref().map(|watches| watches.as_fd())
    }

    /// Takes in what groups say of themselves since the last scan: for those that were watched, and all below them.
    /// Returns the groups that have another assignment now.
    pub fn collect_changes(&mut self, kernel: &Kernel, classifier: &Classifier) -> Result<Vec<GroupId>> {
        let Some(changed) = self.watches.as_mut().map(Watches::read) else { return Ok(Vec::new()) };
        if changed.lost {
            // The next scan reads all of them.
            self.read_all = (Monotonic(0), self.scan.wrapping_sub(FULL_SCAN_EVERY));
            return Ok(Vec::new());
        }
        self.refresh(kernel, classifier, &changed.groups)
    }

    /// Looks again what these groups and all below them say of themselves, and what is said of them. Returns those
    /// that have another assignment now.
    fn refresh(&mut self, kernel: &Kernel, classifier: &Classifier, ids: &[GroupId]) -> Result<Vec<GroupId>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let root = kernel.cgroup()?;
        let mut reassigned = Vec::new();
        let mut touched = vec![false; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let (id, parent) = (self.nodes[index].id, self.nodes[index].parent as usize);
            touched[index] = touched[parent] || ids.contains(&id);
            if !touched[index] {
                continue;
            }
            self.path = self.path_at(index);
            // One that is gone is left to the next scan.
            let Some(group) = Group::open(root, &self.path).ok().filter(|group| group.id() == id) else { continue };
            let above = (parent != index).then(|| self.nodes[parent].id);
            let assignment = self.classify(classifier, group.dir(), id, above);
            if let Some(known) = self.known.get_mut(&id)
                && known.assignment != assignment
            {
                known.assignment = assignment;
                reassigned.push(id);
            }
        }
        if !reassigned.is_empty() {
            self.sum_up();
        }
        Ok(reassigned)
    }

    /// What is said of groups from now on. Returns the groups that have another assignment by that.
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

    /// Forgets classes, as after a change of the configuration.
    pub fn reclassify(&mut self) {
        self.known.clear();
    }

    /// Children come after their parents, so one pass down hands protection on and one pass up sums.
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
                // No memory controller here: the group above it decides.
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
                        // What is taken from the group above may be of this one.
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

    /// All groups of the last scan, the root first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Class of a group and where that comes from.
    pub fn assignment(&self, node: &Node) -> Option<&Assignment> {
        self.known.get(&node.id).map(|known| &known.assignment)
    }

    /// Path of a group below the mount. Looks for the group: not for all of them, one after the other.
    pub fn path(&self, id: GroupId) -> Option<PathBuf> {
        Some(self.path_at(self.nodes.iter().position(|node| node.id == id)?))
    }

    /// Path of the group at this index of [`Tree::nodes`].
    pub fn path_at(&self, index: usize) -> PathBuf {
        let mut path = PathBuf::new();
        push_path(&self.nodes, &self.known, index, &mut path);
        path
    }

    /// The group at a path below the mount; bytes in names that are not UTF-8 may be replaced in it.
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

    /// The groups that can be swept, as the policy sees them: each leaf of the memory controller,
    /// and each inner group of which all below may be touched, for what its children do not account
    /// for (the page cache that finished children left behind is charged to nobody else).
    pub fn groups(&self) -> impl Iterator<Item = omr_policy::Group> + '_ {
        self.nodes.iter().enumerate().filter_map(|(index, node)| {
            let parent = node.parent as usize;
            if parent == index || node.current.is_none() {
                return None;
            }
            let assignment = &self.known.get(&node.id)?.assignment;
            // Below a leaf there may be groups without a memory controller, of another class.
            let class = if node.subtree_reclaimable || assignment.class != Class::Background {
                assignment.class
            } else {
                Class::Protected
            };
            if node.is_internal && !node.subtree_reclaimable {
                return None;
            }
            let current = node.current.map(|current| current - node.charged_to_children);
            // memory.stat of an inner group counts its children too: no more than what is its own.
            Some(omr_policy::Group {
                id: node.id,
                class,
                current,
                swap_backed: node.swap_backed.min(current),
                page_cache: node.page_cache.min(current),
                refaults: node.refaults,
                unprotected: node.unprotected,
                keep: assignment.keep,
                cold_only: assignment.older_than().map(|min_age| ColdOnly { min_age, cold: ColdAmount::NotYet }),
            })
        })
    }
}
