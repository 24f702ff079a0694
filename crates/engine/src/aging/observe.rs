//! Aging groups by ourselves, and remembering what was seen: the kernel keeps four generations only,
//! and makes them when it needs memory, not when we want to know.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::{Add, ControlFlow};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use omr_actuate::{Actuator, Outcome};
use omr_base::cancel::Flag;
use omr_kernel::lru_gen::{self, Lists, Reader};
use omr_kernel::memcg::{self, Group, Visit};
use omr_kernel::{Dir, Kernel, clock};
use omr_policy::age::{Ages, Bounds};
use omr_units::{Bytes, GroupId, Monotonic, PageSize};

use super::reading;
use crate::reclaim::generations;

/// Ids are read again after this time: a group may be gone meanwhile, and its id another's. To age
/// that one by mistake does no harm, as what ages say holds whoever has made them.
const STALE: Duration = Duration::from_millis(100);

/// Agings are so much farther apart than asked for, because ages are counted in jiffies.
const JIFFIES: Duration = Duration::from_millis(20);

/// What is known of a group on one node.
#[derive(Debug)]
pub struct Node {
    /// The node's number.
    pub node: u32,
    /// Page cache.
    pub file: Bytes,
    ages: Ages,
    lists: Lists,
    /// Whether the last reading had it.
    listed: bool,
    /// The youngest generation when this pass asked for a younger one.
    asked: Option<u64>,
}

/// A group that is looked at.
#[derive(Debug)]
pub struct Watched {
    /// Its identity.
    pub id: GroupId,
    /// Its path below the mount.
    pub path: PathBuf,
    nodes: Vec<Node>,
}

impl Watched {
    /// Its nodes with memory at the last reading.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.listed)
    }

    /// How much can be taken as not used for so long, by what the kernel knew at the last reading; `None`: it did not
    /// know of any so long ago.
    pub fn old(&self, older_than: Duration, page: PageSize) -> Option<Bytes> {
        self.nodes()
            .filter_map(|node| generations::old(&node.lists, older_than))
            .map(|old| old.bytes(page))
            .reduce(Bytes::add)
    }
}

impl Node {
    /// Anonymous and shared memory.
    pub fn memory(&self) -> Bytes {
        self.ages.memory()
    }

    /// When it was aged last.
    pub fn at(&self) -> Option<Monotonic> {
        self.ages.at()
    }

    /// How much of it was not used for so long.
    pub fn idle(&self, time: Duration) -> Bounds {
        self.ages.idle(time)
    }
}

/// What agings have cost, and how they went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Generations made.
    pub agings: u64,
    /// Agings of which nothing came, in the last pass.
    pub missed: u64,
    /// CPU time, reading included.
    pub cpu: Duration,
}

/// Looks at groups.
pub struct Observer<'a> {
    kernel: &'a Kernel,
    reader: Reader,
    groups: Vec<Watched>,
    /// By their paths in the kernel's file.
    places: HashMap<Vec<u8>, usize>,
    /// When ids were read.
    read_at: Monotonic,
    cost: Cost,
}

impl<'a> Observer<'a> {
    /// Of no group yet.
    pub fn new(kernel: &'a Kernel) -> Self {
        Observer {
            kernel,
            reader: Reader::default(),
            groups: Vec::new(),
            places: HashMap::new(),
            read_at: Monotonic(0),
            cost: Cost::default(),
        }
    }

    /// Looks at this group, too. A group that was made anew under its old name begins anew.
    pub fn add(&mut self, id: GroupId, path: &Path) {
        let watched = Watched { id, path: path.into(), nodes: Vec::new() };
        match self.places.get(&lru_gen::path_of(path)) {
            Some(&place) if self.groups[place].id == id => {}
            Some(&place) => self.groups[place] = watched,
            None => {
                self.places.insert(lru_gen::path_of(path), self.groups.len());
                self.groups.push(watched);
            }
        }
    }

    /// Looks at all groups with a memory controller at and below this one, those made since the last
    /// time included.
    pub fn add_tree(&mut self, top: &Group) -> Result<()> {
        for (id, path) in groups_below(top)? {
            self.add(id, &path);
        }
        Ok(())
    }

    /// Looks at these groups from now on, and at no others.
    pub fn look_at<'g>(&mut self, groups: impl Iterator<Item = (GroupId, &'g Path)>) {
        let known = std::mem::take(&mut self.groups);
        let mut known: HashMap<GroupId, Watched> = known.into_iter().map(|group| (group.id, group)).collect();
        self.places.clear();
        for (id, path) in groups {
            self.add(id, path);
            if let Some(known) = known.remove(&id).filter(|known| known.path == path)
                && let Some(&place) = self.places.get(&lru_gen::path_of(path))
            {
                self.groups[place] = known;
            }
        }
    }

    /// Remembers nothing that is only of longer times than this.
    pub fn keep(&mut self, time: Duration) {
        self.groups.iter_mut().flat_map(|group| &mut group.nodes).for_each(|node| node.ages.keep(time));
    }

    /// The groups, parents first as long as none was made meanwhile.
    pub fn groups(&self) -> &[Watched] {
        &self.groups
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Makes a new generation of each group on each node where it has memory, and reads them all.
    pub fn pass(&mut self, actuator: &mut dyn Actuator, stop: &Flag) -> Result<()> {
        self.pass_over(actuator, stop, |_| true)
    }

    /// The same for some of the groups.
    pub fn pass_over(
        &mut self,
        actuator: &mut dyn Actuator,
        stop: &Flag,
        is_chosen: impl Fn(GroupId) -> bool,
    ) -> Result<()> {
        let cpu = clock::read_thread_cpu();
        let result = self.age(actuator, stop, is_chosen);
        self.cost.cpu += clock::read_thread_cpu().saturating_sub(cpu);
        result
    }

    /// Agings now, in the middle and at the end of this time: then what was not used for so long, and
    /// for half of it, is known. `before_each` is called before each, and may add groups.
    pub fn window(
        &mut self,
        actuator: &mut dyn Actuator,
        window: Duration,
        stop: &Flag,
        mut before_each: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        for pass in 0..3 {
            if pass > 0 {
                self.wait(window / 2, stop);
            }
            if stop.is_set() {
                break;
            }
            before_each(self)?;
            self.pass(actuator, stop)?;
        }
        Ok(())
    }

    /// Waits from one pass to the next.
    pub fn wait(&self, time: Duration, stop: &Flag) {
        stop.sleep(time + JIFFIES);
    }

    fn age(&mut self, actuator: &mut dyn Actuator, stop: &Flag, is_chosen: impl Fn(GroupId) -> bool) -> Result<()> {
        // Of a pass that was stopped.
        for node in self.groups.iter_mut().flat_map(|group| &mut group.nodes) {
            node.asked = None;
        }
        self.read()?;
        // Twice: an id may have been stale, or another's aging was in the way.
        for _ in 0..2 {
            for place in 0..self.groups.len() {
                if !is_chosen(self.groups[place].id) {
                    continue;
                }
                for index in 0..self.groups[place].nodes.len() {
                    if stop.is_set() {
                        return Ok(());
                    }
                    if clock::read_monotonic().since(self.read_at) > STALE {
                        self.read()?;
                    }
                    let node = &mut self.groups[place].nodes[index];
                    if !node.listed || node.is_empty() || node.is_aged() {
                        continue;
                    }
                    node.asked = Some(node.lists.youngest().number);
                    // Whether it was done is seen below.
                    if omr_actuate::lru_gen::run_aging(actuator, self.kernel, &node.lists)? == Outcome::Denied {
                        bail!("debugfs is closed to this user, or was just closed to all");
                    }
                }
            }
            self.read()?;
        }
        self.take_in(is_chosen);
        Ok(())
    }

    /// Remembers what the agings have brought.
    fn take_in(&mut self, is_chosen: impl Fn(GroupId) -> bool) {
        self.cost.missed = 0;
        let chosen = self.groups.iter_mut().filter(|group| is_chosen(group.id));
        for node in chosen.flat_map(|group| &mut group.nodes).filter(|node| node.listed) {
            let aged = node.is_aged();
            if node.is_empty() {
                // All of it is gone, or MGLRU was switched off.
                node.ages = Ages::default();
            } else if let Some(reading) = reading(self.kernel, &node.lists, self.read_at).filter(|_| aged) {
                self.cost.agings += 1;
                node.ages.add(reading);
            } else {
                self.cost.missed += 1;
            }
            node.asked = None;
        }
    }

    /// Reads the lists of all groups.
    fn read(&mut self) -> Result<()> {
        for node in self.groups.iter_mut().flat_map(|group| &mut group.nodes) {
            node.listed = false;
        }
        let Observer { kernel, reader, groups, places, .. } = self;
        reader.for_each(kernel, |path, ids, lists| {
            if let Some(&place) = places.get(path) {
                let group = &mut groups[place];
                if lru_gen::is_group(path, ids, lists, path, group.id) {
                    group.take(lists, kernel);
                }
            }
            ControlFlow::Continue(())
        })?;
        self.read_at = clock::read_monotonic();
        Ok(())
    }
}

impl Watched {
    /// Takes in what was read. Of several groups by this name the last is the one that is not gone.
    fn take(&mut self, lists: &Lists, kernel: &Kernel) {
        for node in &mut self.nodes {
            node.listed &= node.lists.id == lists.id;
        }
        let file = lists.file().bytes(kernel.page());
        match self.nodes.iter_mut().find(|node| node.node == lists.node) {
            Some(node) => (node.lists, node.file, node.listed) = (*lists, file, true),
            None => self.nodes.push(Node {
                node: lists.node,
                file,
                ages: Ages::default(),
                lists: *lists,
                listed: true,
                asked: None,
            }),
        }
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.lists.anon().0 == 0 && self.lists.file().0 == 0
    }

    fn is_aged(&self) -> bool {
        self.asked.is_some_and(|before| self.lists.youngest().number > before)
    }
}

/// All groups with a memory controller at and below this one.
pub fn groups_below(top: &Group) -> Result<Vec<(GroupId, PathBuf)>> {
    let mut found = Found { top: top.path(), paths: Vec::new() };
    memcg::walk(top.dir(), &mut found)?;
    Ok(found.paths)
}

/// Groups with a memory controller, found by a walk.
struct Found<'a> {
    top: &'a Path,
    paths: Vec<(GroupId, PathBuf)>,
}

impl Visit for Found<'_> {
    fn enter(&mut self, dir: &Dir, id: GroupId, name: &OsStr, parent: Option<usize>) -> Option<usize> {
        let path = match parent {
            None => self.top.to_path_buf(),
            Some(parent) => self.paths[parent].1.join(name),
        };
        // The root has memory of its own, and no such file.
        if parent.is_some() && !dir.has("memory.stat") {
            return None;
        }
        self.paths.push((id, path));
        Some(self.paths.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use omr_actuate::{DryRun, Transcript};
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::stand_in::Writes;

    const FILE: &str = "sys/kernel/debug/lru_gen";

    /// Three generations from this number on, the youngest made just now.
    fn lists(first: u64, pages: u64) -> String {
        let row = |number: u64, age: u64| format!(" {number} {age} {pages}  0 \n");
        [row(first, 9000), row(first + 1, 5000), row(first + 2, 1)].concat()
    }

    fn look(root: &FakeRoot, passes: &[String]) -> (Vec<String>, Cost, Vec<(Bytes, Bounds)>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut observer = Observer::new(&kernel);
        observer.add_tree(&top).expect("groups");
        let mut transcript = Transcript::new(DryRun);
        for text in passes {
            root.write(FILE, text);
            observer.pass(&mut transcript, &Flag::default()).expect("a pass");
        }
        let figures = observer.groups().iter().flat_map(Watched::nodes);
        let figures = figures.map(|node| (node.memory(), node.idle(Duration::from_secs(4)))).collect();
        (transcript.lines().into_iter().map(|(_, text)| text).collect(), observer.cost(), figures)
    }

    fn two_groups() -> FakeRoot {
        FakeRoot::new()
            .group("a", &[("memory.stat", "")])
            .group("a/b", &[("memory.stat", "")])
            .group("a/c", &[("x", "")])
    }

    #[test]
    fn groups_and_nodes_without_memory_are_not_aged() {
        let text = format!(
            "memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0} node     1\n{1}memcg     3 /a/b\n node     0\n{1} node     1\n{0}\
             memcg     4 /a/c\n node     0\n{0}memcg     5 /ab\n node     0\n{0}",
            lists(3, 10),
            lists(3, 0),
        );
        let (commands, cost, figures) = look(&two_groups(), &[text]);
        // Nothing comes of them here, so each is asked for twice.
        assert_eq!(commands, ["+ 2 0 5 1 1", "+ 3 1 5 1 1", "+ 2 0 5 1 1", "+ 3 1 5 1 1"]);
        assert_eq!((cost.agings, cost.missed), (0, 2));
        assert!(
            figures.iter().all(|&figures| figures == (Bytes::ZERO, Bounds::default())),
            "nothing was aged, nothing is known"
        );
    }

    #[test]
    fn of_two_groups_by_one_name_the_last_is_aged() {
        let text = format!(
            "memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0}memcg     9 /a\n node     0\n{0}",
            lists(3, 10)
        );
        let (commands, _, figures) = look(&two_groups(), &[text]);
        assert_eq!(commands, ["+ 9 0 5 1 1"; 2]);
        assert_eq!(figures.len(), 1);
    }

    #[test]
    fn of_a_group_that_ended_before_the_command_nothing_is_counted() {
        let look = |name| {
            let root = FakeRoot::new().group("a", &[("memory.stat", "")]);
            root.write(FILE, format!("memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0}", lists(3, 10)));
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            let mut observer = Observer::new(&kernel);
            observer.add_tree(&top).expect("groups");
            // When the command comes, its id is that of the group of this name.
            let mut given_to = Writes(|data: &str| {
                assert_eq!(data, "+ 2 0 5 1 1");
                root.write(
                    FILE,
                    format!("memcg     1 /\n node     0\n{0}memcg     2 {name}\n node     0\n{0}", lists(4, 10)),
                );
                Outcome::Done
            });
            observer.pass(&mut given_to, &Flag::default()).expect("a pass");
            let nodes = observer.groups().iter().flat_map(Watched::nodes);
            (observer.cost().agings, nodes.map(Node::memory).collect::<Vec<_>>())
        };
        assert_eq!(look("/ab"), (0, vec![]));
        // The control: it has not ended.
        assert_eq!(look("/a"), (1, vec![Bytes(30 * 4096)]));
    }
}
