//! Ages groups and remembers the results. The kernel keeps only four generations, and it makes them
//! when it needs memory, not when omr needs ages.

use std::collections::HashMap;
use std::ops::{Add, ControlFlow};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use omr_actuate::{Actuator, Outcome};
use omr_base::cancel::Flag;
use omr_kernel::lru_gen::{self, Lists, Reader};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::below::groups_below;
use omr_policy::age::{Ages, Bounds, Promotions, Reading};
use omr_units::{Bytes, GroupId, Monotonic, PageSize};

use super::to_reading;
use crate::reclaim::generations;

/// The time after which ids are read again, as another group may have the id of a removed one.
/// Aging that other group by mistake does no harm.
const STALE: Duration = Duration::from_millis(100);

/// The extra time between two agings, because the kernel counts ages in jiffies.
const JIFFIES: Duration = Duration::from_millis(20);

/// The ages of a group on one NUMA node.
#[derive(Debug)]
pub struct Node {
    /// The number of the NUMA node.
    pub node: u32,
    /// Page cache.
    pub file: Bytes,
    ages: Ages,
    /// Since they were last forgotten.
    promotions: Option<Promotions>,
    /// Between the last two agings.
    latest: Option<Promotions>,
    lists: Lists,
    /// True if the last reading had this node.
    listed: bool,
    /// The youngest generation before the aging of this pass; `None`: not aged in this pass.
    youngest_before: Option<u64>,
}

/// A group that is aged.
#[derive(Debug)]
pub struct ObservedGroup {
    /// The group's identity.
    pub id: GroupId,
    /// The group's path below the mount.
    pub path: PathBuf,
    nodes: Vec<Node>,
}

impl ObservedGroup {
    /// Returns the nodes that had memory at the last reading.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.listed)
    }

    /// Returns the memory that could be reclaimed as unused for this time at the last reading;
    /// `None`: the kernel's generations did not reach back this far.
    pub fn cold(&self, older_than: Duration, page: PageSize) -> Option<Bytes> {
        self.nodes()
            .filter_map(|node| generations::cold(&node.lists, older_than))
            .map(|cold| cold.bytes(page))
            .reduce(Bytes::add)
    }
}

impl Node {
    fn add(&mut self, reading: Reading) {
        self.latest = self.ages.add(reading);
        let Some(later) = self.latest else { return };
        match &mut self.promotions {
            Some(promotions) => promotions.add_later(&later),
            None => self.promotions = Some(later),
        }
    }

    /// Returns the promotions since they were last forgotten; `None`: unknown.
    pub fn promotions(&self) -> Option<&Promotions> {
        self.promotions.as_ref()
    }

    /// Returns the promotions between the last two agings; `None`: unknown.
    pub fn latest(&self) -> Option<&Promotions> {
        self.latest.as_ref()
    }

    /// Returns the anonymous and shared memory.
    pub fn memory(&self) -> Bytes {
        self.ages.memory()
    }

    /// Returns the time of the last aging; `None`: not aged yet.
    pub fn at(&self) -> Option<Monotonic> {
        self.ages.at()
    }

    /// Returns the memory that was unused for this time.
    pub fn idle(&self, time: Duration) -> Bounds {
        self.ages.idle(time)
    }
}

/// The cost and success of agings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// The number of generations made.
    pub agings: u64,
    /// The number of agings in the last pass that made no generation.
    pub missed: u64,
    /// The CPU time, including that of reading.
    pub cpu: Duration,
}

/// Ages groups, and remembers their generations.
pub struct Observer<'a> {
    kernel: &'a Kernel,
    reader: Reader,
    groups: Vec<ObservedGroup>,
    /// The places in `groups` by path in the kernel's file.
    places: HashMap<Vec<u8>, usize>,
    /// The time when ids were read.
    read_at: Monotonic,
    cost: Cost,
}

impl<'a> Observer<'a> {
    /// Returns an observer of no group.
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

    /// Adds a group. A new group of the same name replaces the old one.
    pub fn add(&mut self, id: GroupId, path: &Path) {
        let watched = ObservedGroup { id, path: path.into(), nodes: Vec::new() };
        match self.places.get(&lru_gen::path_of(path)) {
            Some(&place) if self.groups[place].id == id => {}
            Some(&place) => self.groups[place] = watched,
            None => {
                self.places.insert(lru_gen::path_of(path), self.groups.len());
                self.groups.push(watched);
            }
        }
    }

    /// Adds all groups with a memory controller at and below this one that are not added yet.
    pub fn add_tree(&mut self, top: &Group) -> Result<()> {
        for (id, path) in groups_below(top)? {
            self.add(id, &path);
        }
        Ok(())
    }

    /// Observes these groups from now on, and no others.
    pub fn observe_only<'g>(&mut self, groups: impl Iterator<Item = (GroupId, &'g Path)>) {
        let known = std::mem::take(&mut self.groups);
        let mut known: HashMap<GroupId, ObservedGroup> = known.into_iter().map(|group| (group.id, group)).collect();
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

    /// Forgets the promotions so far. Later ones are counted from here on.
    pub fn forget_promotions(&mut self) {
        self.groups.iter_mut().flat_map(|group| &mut group.nodes).for_each(|node| node.promotions = None);
    }

    /// Forgets generations that are only needed for longer ages than this.
    pub fn keep(&mut self, time: Duration) {
        self.groups.iter_mut().flat_map(|group| &mut group.nodes).for_each(|node| node.ages.keep(time));
    }

    /// Returns the groups, parents first unless one was added later.
    pub fn groups(&self) -> &[ObservedGroup] {
        &self.groups
    }

    /// Returns the cost so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Ages each group on each node where it has memory, and reads all generations.
    pub fn age_all(&mut self, actuator: &mut dyn Actuator, stop: &Flag) -> Result<()> {
        self.age_chosen(actuator, stop, |_| true)
    }

    /// Ages the chosen groups, and reads all generations.
    pub fn age_chosen(
        &mut self,
        actuator: &mut dyn Actuator,
        stop: &Flag,
        is_chosen: impl Fn(GroupId) -> bool,
    ) -> Result<()> {
        let cpu = clock::read_thread_cpu();
        let result = self.run_pass(actuator, stop, is_chosen);
        self.cost.cpu += clock::read_thread_cpu().saturating_sub(cpu);
        result
    }

    /// Ages now, in the middle and at the end of this time. Afterwards the memory that was unused
    /// for this time, and for half of it, is known. Calls `before_each` before each pass, which may
    /// add groups.
    pub fn age_over_window(
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
            self.age_all(actuator, stop)?;
        }
        Ok(())
    }

    /// Waits until the next pass.
    pub fn wait(&self, time: Duration, stop: &Flag) {
        stop.sleep(time + JIFFIES);
    }

    fn run_pass(
        &mut self,
        actuator: &mut dyn Actuator,
        stop: &Flag,
        is_chosen: impl Fn(GroupId) -> bool,
    ) -> Result<()> {
        // An earlier pass may have been cancelled.
        for node in self.groups.iter_mut().flat_map(|group| &mut group.nodes) {
            node.youngest_before = None;
        }
        self.read_lists()?;
        // Two attempts: an id may have been stale, or another program's aging interfered.
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
                        self.read_lists()?;
                    }
                    let node = &mut self.groups[place].nodes[index];
                    if !node.listed || node.is_empty() || node.is_aged() {
                        continue;
                    }
                    node.youngest_before = Some(node.lists.youngest().number);
                    // The lists that are read below show if it succeeded.
                    if omr_actuate::lru_gen::run_aging(actuator, self.kernel, &node.lists)? == Outcome::Denied {
                        bail!("debugfs is closed to this user, or was just closed to all");
                    }
                }
            }
            self.read_lists()?;
        }
        self.remember_agings(is_chosen);
        Ok(())
    }

    /// Remembers the generations that the agings made.
    fn remember_agings(&mut self, is_chosen: impl Fn(GroupId) -> bool) {
        self.cost.missed = 0;
        let chosen = self.groups.iter_mut().filter(|group| is_chosen(group.id));
        for node in chosen.flat_map(|group| &mut group.nodes).filter(|node| node.listed) {
            let aged = node.is_aged();
            if node.is_empty() {
                // All memory is gone, or MGLRU was switched off.
                node.ages = Ages::default();
                (node.promotions, node.latest) = (None, None);
            } else if let Some(reading) = to_reading(self.kernel, &node.lists, self.read_at).filter(|_| aged) {
                self.cost.agings += 1;
                node.add(reading);
            } else {
                self.cost.missed += 1;
            }
            node.youngest_before = None;
        }
    }

    /// Reads the generations of all groups.
    fn read_lists(&mut self) -> Result<()> {
        for node in self.groups.iter_mut().flat_map(|group| &mut group.nodes) {
            node.listed = false;
        }
        let Observer { kernel, reader, groups, places, .. } = self;
        reader.for_each(kernel, |path, ids, lists| {
            if let Some(&place) = places.get(path) {
                let group = &mut groups[place];
                if lru_gen::is_group(path, ids, lists, path, group.id) {
                    group.update(lists, kernel);
                }
            }
            ControlFlow::Continue(())
        })?;
        self.read_at = clock::read_monotonic();
        Ok(())
    }
}

impl ObservedGroup {
    /// Updates a node with lists that were read. If several groups have this name, the last one
    /// exists.
    fn update(&mut self, lists: &Lists, kernel: &Kernel) {
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
                promotions: None,
                latest: None,
                lists: *lists,
                listed: true,
                youngest_before: None,
            }),
        }
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.lists.anon().0 == 0 && self.lists.file().0 == 0
    }

    fn is_aged(&self) -> bool {
        self.youngest_before.is_some_and(|before| self.lists.youngest().number > before)
    }
}

#[cfg(test)]
mod tests {
    use omr_actuate::{DryRun, Transcript};
    use omr_testkit::FakeRoot;

    use super::*;
    use crate::stand_in::{Writes, stop_clocks};

    const FILE: &str = "sys/kernel/debug/lru_gen";

    /// Returns three generations, numbered from `first`; the youngest was made just now.
    fn lists(first: u64, pages: u64) -> String {
        let row = |number: u64, age: u64| format!(" {number} {age} {pages}  0 \n");
        [row(first, 9000), row(first + 1, 5000), row(first + 2, 1)].concat()
    }

    fn age_and_read(root: &FakeRoot, passes: &[String]) -> (Vec<String>, Cost, Vec<(Bytes, Bounds)>) {
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut observer = Observer::new(&kernel);
        observer.add_tree(&top).expect("groups");
        let mut transcript = Transcript::new(DryRun);
        for text in passes {
            root.write(FILE, text);
            observer.age_all(&mut transcript, &Flag::default()).expect("a pass");
        }
        let figures = observer.groups().iter().flat_map(ObservedGroup::nodes);
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
        let (commands, cost, figures) = age_and_read(&two_groups(), &[text]);
        // No generation is made here, so each aging is tried twice.
        assert_eq!(commands, ["+ 2 0 5 1 1", "+ 3 1 5 1 1", "+ 2 0 5 1 1", "+ 3 1 5 1 1"]);
        assert_eq!((cost.agings, cost.missed), (0, 2));
        assert!(
            figures.iter().all(|&figures| figures == (Bytes::ZERO, Bounds::default())),
            "nothing was aged, nothing is known"
        );
    }

    /// Ages group `a` on a kernel that makes a generation for each command. Returns the times of the
    /// passes, and the numbers of generations that were made and that were not.
    fn aged_over(window: Duration, stop: &Flag) -> (Vec<Duration>, u64, u64) {
        let clocks = stop_clocks();
        let root = two_groups();
        let set = |first: u64| {
            let top = lists(3, 10);
            root.write(
                FILE,
                format!("memcg     1 /\n node     0\n{top}memcg     2 /a\n node     0\n{}", lists(first, 10)),
            );
        };
        set(3);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut observer = Observer::new(&kernel);
        let (mut first, mut times) = (3, Vec::new());
        let mut kernel_side = Writes(|_: &str| {
            first += 1;
            set(first);
            Outcome::Done
        });
        let before = |observer: &mut Observer<'_>| {
            times.push(clocks.passed());
            observer.add_tree(&top)
        };
        observer.age_over_window(&mut kernel_side, window, stop, before).expect("agings");
        let told = |observer: &Observer<'_>| {
            let nodes = observer.groups().iter().flat_map(ObservedGroup::nodes);
            nodes.map(|node| (node.at(), node.latest().is_some(), node.promotions().is_some())).next()
        };
        if !stop.is_set() {
            // The kernel made the last generation a millisecond ago.
            let end = Some(clock::read_monotonic() - Duration::from_millis(1));
            assert_eq!(told(&observer), Some((end, true, true)));
            observer.forget_promotions();
            assert_eq!(told(&observer), Some((end, true, false)));
        }
        (times, observer.cost().agings, observer.cost().missed)
    }

    #[test]
    fn a_window_is_aged_at_its_beginning_in_its_middle_and_at_its_end() {
        let window = Duration::from_secs(10);
        let times = [0, 5_020, 10_040].map(Duration::from_millis);
        assert_eq!(aged_over(window, &Flag::default()), (times.to_vec(), 3, 0));
        let set = Flag::default();
        set.set();
        assert_eq!(aged_over(window, &set), (vec![], 0, 0));
    }

    #[test]
    fn cold_memory_of_a_group_is_that_of_all_its_nodes() {
        let text = format!(
            "memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0} node     1\n{1}",
            lists(3, 10),
            lists(3, 7)
        );
        let root = two_groups();
        root.write(FILE, text);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut observer = Observer::new(&kernel);
        observer.add_tree(&top).expect("groups");
        observer.age_all(&mut DryRun, &Flag::default()).expect("a pass");
        let cold = |millis| observer.groups()[0].cold(Duration::from_millis(millis), kernel.page());
        assert_eq!(cold(5000), Some(Bytes(17 * 4096)), "the oldest generation of both");
        assert_eq!(cold(5001), None, "nobody knows");
        assert_eq!(cold(1), Some(Bytes(34 * 4096)));
    }

    #[test]
    fn a_group_that_is_observed_on_keeps_its_ages_and_others_are_forgotten() {
        let root = two_groups();
        let set = |first| {
            let text = lists(first, 10);
            root.write(
                FILE,
                format!("memcg     1 /\n node     0\n{text}memcg     2 /a\n node     0\n{text}memcg     3 /a/b\n node     0\n{text}"),
            );
        };
        set(3);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let id = |path: &str| Group::open(kernel.cgroup().expect("groups"), Path::new(path)).expect("a group").id();
        let (a, b) = ((id("a"), Path::new("a")), (id("a/b"), Path::new("a/b")));
        let mut observer = Observer::new(&kernel);
        observer.observe_only([a, b].into_iter());
        let mut first = 3;
        let mut kernel_side = Writes(|_: &str| {
            first += 1;
            set(first);
            Outcome::Done
        });
        observer.age_all(&mut kernel_side, &Flag::default()).expect("a pass");
        let told = |observer: &Observer<'_>| -> Vec<_> {
            let of = |group: &ObservedGroup| (group.path.clone(), group.nodes().map(Node::memory).collect::<Vec<_>>());
            observer.groups().iter().map(of).collect()
        };
        let (known, unknown) = (vec![Bytes(30 * 4096)], Vec::new());
        assert_eq!(told(&observer), [("a".into(), known.clone()), ("a/b".into(), known.clone())]);
        observer.observe_only([b].into_iter());
        assert_eq!(told(&observer), [("a/b".into(), known.clone())]);
        // A new group of the same name is another one, and so is a group that has moved.
        observer.observe_only([(GroupId(1), b.1), (b.0, Path::new("c"))].into_iter());
        assert_eq!(told(&observer), [("a/b".into(), unknown.clone()), ("c".into(), unknown.clone())]);
        observer.add(GroupId(1), Path::new("a/b"));
        observer.add(GroupId(2), Path::new("c"));
        assert_eq!(observer.groups()[1].id, GroupId(2));
        assert_eq!(observer.groups().len(), 2);
    }

    #[test]
    fn ids_are_read_again_when_an_aging_has_taken_long() {
        for (millis, second) in [(100, "+ 3 0 5 1 1"), (101, "+ 9 0 5 1 1")] {
            let clocks = stop_clocks();
            let root = two_groups();
            let set = |of_b: u64| {
                let rows = lists(3, 10);
                let head = format!("memcg     1 /\n node     0\n{rows}memcg     2 /a\n node     0\n{rows}");
                root.write(FILE, format!("{head}memcg     {of_b} /a/b\n node     0\n{rows}"));
            };
            set(3);
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            let mut observer = Observer::new(&kernel);
            observer.add_tree(&top).expect("groups");
            // During the first aging, the id of the second group changes.
            let mut commands = Vec::new();
            let mut kernel_side = Writes(|data: &str| {
                commands.push(data.to_owned());
                if commands.len() == 1 {
                    clocks.pass(Duration::from_millis(millis));
                    set(9);
                }
                Outcome::Done
            });
            observer.age_all(&mut kernel_side, &Flag::default()).expect("a pass");
            assert_eq!(commands[..2], ["+ 2 0 5 1 1", second]);
        }
    }

    #[test]
    fn an_aging_that_is_refused_ends_the_pass() {
        let root = two_groups();
        root.write(FILE, format!("memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0}", lists(3, 10)));
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
        let mut observer = Observer::new(&kernel);
        observer.add_tree(&top).expect("groups");
        let err = observer.age_all(&mut Writes(|_: &str| Outcome::Denied), &Flag::default()).expect_err("denied");
        assert!(err.to_string().starts_with("debugfs is closed"), "{err}");
        let (chosen, mut commands) = (observer.groups()[0].id, 0);
        let mut kernel_side = Writes(|_: &str| {
            commands += 1;
            Outcome::Done
        });
        observer.age_chosen(&mut kernel_side, &Flag::default(), |id| id != chosen).expect("a pass");
        assert_eq!(commands, 0, "only chosen groups are aged");
    }

    #[test]
    fn the_last_of_two_groups_with_one_name_is_aged() {
        let text = format!(
            "memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0}memcg     9 /a\n node     0\n{0}",
            lists(3, 10)
        );
        let (commands, _, figures) = age_and_read(&two_groups(), &[text]);
        assert_eq!(commands, ["+ 9 0 5 1 1"; 2]);
        assert_eq!(figures.len(), 1);
    }

    #[test]
    fn an_aging_is_not_counted_if_its_group_was_removed_before() {
        let look = |name| {
            let root = FakeRoot::new().group("a", &[("memory.stat", "")]);
            root.write(FILE, format!("memcg     1 /\n node     0\n{0}memcg     2 /a\n node     0\n{0}", lists(3, 10)));
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let top = Group::open(kernel.cgroup().expect("groups"), Path::new("a")).expect("a group");
            let mut observer = Observer::new(&kernel);
            observer.add_tree(&top).expect("groups");
            // When the command arrives, the id belongs to the group of this name.
            let mut given_to = Writes(|data: &str| {
                assert_eq!(data, "+ 2 0 5 1 1");
                root.write(
                    FILE,
                    format!("memcg     1 /\n node     0\n{0}memcg     2 {name}\n node     0\n{0}", lists(4, 10)),
                );
                Outcome::Done
            });
            observer.age_all(&mut given_to, &Flag::default()).expect("a pass");
            let nodes = observer.groups().iter().flat_map(ObservedGroup::nodes);
            (observer.cost().agings, nodes.map(Node::memory).collect::<Vec<_>>())
        };
        assert_eq!(look("/ab"), (0, vec![]));
        // The control: the group still exists.
        assert_eq!(look("/a"), (1, vec![Bytes(30 * 4096)]));
    }
}
