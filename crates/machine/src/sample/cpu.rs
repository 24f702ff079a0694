//! CPU time by class: explicit background groups, foreground groups, and all that is not
//! background.
//!
//! CPU time of groups (`cpu.stat`) is exact, while `/proc/stat` counts ticks. So two samples of 20
//! ms are enough to tell work from noise.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use omr_kernel::memcg::{Group, read_cpu};
use omr_kernel::{Dir, Kernel, Result};
use omr_policy::Class;
use omr_units::GroupId;

use crate::groups::tree::Tree;

/// A user's groups have at most this many counters on one side. If more were needed, they count as
/// one group outside of the background, so that nobody makes a sample long.
const COUNTERS_OF_A_USER: usize = 16;

/// Descriptors that stay free for clients, files and a sweep.
const RESERVED: usize = 64;

/// The CPU time of some groups, minus that of others.
#[derive(Debug, Default)]
pub struct CpuSum {
    counters: Vec<Counter>,
    /// A group could not be opened, so the sum is unknown.
    incomplete: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Counter {
    dir: Dir,
    id: GroupId,
    plus: bool,
    last: Option<Duration>,
}

impl CpuSum {
    /// Returns the CPU time since the last call; `None`: first call, or a file could not be read. A
    /// group that is gone used no time.
    pub fn sample(&mut self) -> Option<Duration> {
        let mut known = !self.incomplete;
        let (mut plus, mut minus) = (Duration::ZERO, Duration::ZERO);
        for counter in &mut self.counters {
            match read_cpu(&counter.dir, &mut self.buffer) {
                Ok(now) => {
                    match counter.last.replace(now) {
                        Some(last) if counter.plus => plus += now.saturating_sub(last),
                        Some(last) => minus += now.saturating_sub(last),
                        None => known = false,
                    };
                }
                Err(err) if err.is_gone() => counter.last = Some(Duration::ZERO),
                Err(_) => known = false,
            }
        }
        known.then(|| plus.saturating_sub(minus))
    }

    fn ids(&self) -> impl Iterator<Item = (GroupId, bool)> + '_ {
        self.counters.iter().map(|counter| (counter.id, counter.plus))
    }

    /// Makes the sum unknown, as `needed` groups are more than the `most` files that may be open.
    /// Work that is not seen must not count as idleness.
    fn close(&mut self, needed: usize, most: usize) {
        if !self.incomplete {
            log::warn!(
                "the CPU time of {needed} groups must be read, and only {most} files may be open (LimitNOFILE=)"
            );
        }
        *self = CpuSum { incomplete: true, ..CpuSum::default() };
    }

    /// Opens the files of these groups, each to be added (true) or subtracted.
    ///
    /// Open files stay open with their last reading. So a change of the list does not make the next
    /// sample unknown. A new group is counted from now on.
    fn open(&mut self, root: &Dir, tree: &Tree, terms: Vec<(usize, bool)>) {
        let nodes = tree.nodes();
        let wanted = terms.iter().map(|&(index, plus)| (nodes[index].id, plus));
        if !self.incomplete && self.ids().eq(wanted) {
            return;
        }
        let old = std::mem::take(self);
        let mut open: HashMap<GroupId, Counter> =
            old.counters.into_iter().map(|counter| (counter.id, counter)).collect();
        for (index, plus) in terms {
            let id = nodes[index].id;
            if let Some(counter) = open.remove(&id) {
                self.counters.push(Counter { plus, ..counter });
                continue;
            }
            match Group::open(root, &tree.path_at(index)) {
                Ok(group) if group.id() == id => {
                    let last = group.read_cpu(&mut self.buffer).ok();
                    self.counters.push(Counter { dir: group.into_dir(), id, plus, last });
                }
                // The group is gone, or replaced by one of the same name; the next scan finds that.
                Ok(_) => {}
                Err(err) if err.is_gone() => {}
                Err(err) => {
                    if !old.incomplete && !self.incomplete {
                        log::warn!("{err}; the machine counts as busy");
                    }
                    self.incomplete = true;
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Background,
    NonBackground,
    Own,
}

/// The side of each group of a tree, to find the fewest files that tell the CPU time of a side.
struct Sides<'a> {
    tree: &'a Tree,
    /// The side of each group.
    side: Vec<Side>,
    /// True for a subtree that is all on one side.
    pure: Vec<bool>,
}

impl<'a> Sides<'a> {
    fn new(tree: &'a Tree, own: &[GroupId]) -> Self {
        let nodes = tree.nodes();
        let mut is_own = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            is_own[index] = own.contains(&node.id) || is_own[node.parent as usize];
        }
        let side = |(index, is_own): (usize, &bool)| match tree.assignment(&nodes[index]) {
            _ if *is_own => Side::Own,
            Some(assignment) if assignment.class == Class::Background && assignment.explicit => Side::Background,
            _ => Side::NonBackground,
        };
        let side = is_own.iter().enumerate().map(side).collect();
        let mut sides = Sides { tree, side, pure: Vec::new() };
        sides.find_pure();
        if sides.merge_users() {
            sides.find_pure();
        }
        sides
    }

    fn find_pure(&mut self) {
        let nodes = self.tree.nodes();
        self.pure = vec![true; nodes.len()];
        // Children come after their parents.
        for index in (1..nodes.len()).rev() {
            let parent = nodes[index].parent as usize;
            if parent != 0 {
                self.pure[parent] &= self.pure[index] && self.side[index] == self.side[parent];
            }
        }
    }

    /// Moves groups of users that need too many counters out of the background. Returns true if
    /// there are some.
    fn merge_users(&mut self) -> bool {
        let background = over_budget(self.tree, &self.tops(Side::Background));
        let other = over_budget(self.tree, &self.tops(Side::NonBackground));
        let is_merged = |top: u32| background.contains(&top) || other.contains(&top);
        for (side, node) in self.side.iter_mut().zip(self.tree.nodes()) {
            if node.users_top.is_some_and(is_merged) {
                *side = Side::NonBackground;
            }
        }
        !background.is_empty() || !other.is_empty()
    }

    /// Returns the topmost groups of the subtrees that are all on this side.
    fn tops(&self, side: Side) -> Vec<usize> {
        let is_top = |&index: &usize| {
            let parent = self.tree.nodes()[index].parent as usize;
            self.pure[index] && (parent == 0 || !self.pure[parent]) && self.side[index] == side
        };
        groups(self.tree).filter(is_top).collect()
    }

    /// Returns the groups whose CPU time is added (true) or subtracted for this side: the side
    /// itself, or everything minus the other side, whichever needs fewer files.
    fn terms(&self, side: Side, other: Side) -> Vec<(usize, bool)> {
        let direct = self.tops(side);
        let rest = [self.tops(other), self.tops(Side::Own)].concat();
        let first_level: Vec<usize> = groups(self.tree).filter(|&index| self.tree.nodes()[index].parent == 0).collect();
        if direct.len() <= first_level.len() + rest.len() {
            direct.into_iter().map(|index| (index, true)).collect()
        } else {
            let everything = first_level.into_iter().map(|index| (index, true));
            everything.chain(rest.into_iter().map(|index| (index, false))).collect()
        }
    }
}

/// Returns the indices of all groups but the root.
fn groups(tree: &Tree) -> std::ops::Range<usize> {
    1..tree.nodes().len()
}

/// The users' topmost groups below which too many of these groups are.
fn over_budget(tree: &Tree, groups: &[usize]) -> HashSet<u32> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for top in groups.iter().filter_map(|&index| tree.nodes()[index].users_top) {
        *counts.entry(top).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > COUNTERS_OF_A_USER).map(|(top, _)| top).collect()
}

/// Returns the topmost foreground groups. If a user has too many, all groups of that user count.
fn foreground_tops(tree: &Tree) -> Vec<(usize, bool)> {
    let nodes = tree.nodes();
    let is_foreground =
        |index: usize| tree.assignment(&nodes[index]).map(|assignment| assignment.class) == Some(Class::Foreground);
    let is_top = |&index: &usize| is_foreground(index) && !is_foreground(nodes[index].parent as usize);
    let tops: Vec<usize> = groups(tree).filter(is_top).collect();
    let whole = over_budget(tree, &tops);
    let is_single = |index: &usize| nodes[*index].users_top.is_none_or(|top| !whole.contains(&top));
    let mut terms: Vec<usize> = tops.into_iter().filter(is_single).collect();
    terms.extend(whole.into_iter().map(|top| top as usize));
    terms.sort_unstable();
    terms.into_iter().map(|index| (index, true)).collect()
}

/// Returns the number of files that may be open for groups.
fn files_limit() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(RESERVED)
}

/// CPU time by class.
#[derive(Debug, Default)]
pub struct CpuByClass {
    /// Groups that are explicitly background.
    pub background: CpuSum,
    /// Foreground groups.
    pub foreground: CpuSum,
    /// All groups except explicit background groups and omr's own.
    pub non_background: CpuSum,
}

impl CpuByClass {
    /// Opens the files of the groups of this tree. `own`: groups in which only omr runs; they count
    /// on neither side.
    pub fn update(&mut self, kernel: &Kernel, tree: &Tree, own: &[GroupId]) -> Result<()> {
        let root = kernel.cgroup()?;
        let sides = Sides::new(tree, own);
        let lists = [
            (&mut self.background, sides.terms(Side::Background, Side::NonBackground)),
            (&mut self.non_background, sides.terms(Side::NonBackground, Side::Background)),
            (&mut self.foreground, foreground_tops(tree)),
        ];
        let most = files_limit();
        let needed: usize = lists.iter().map(|(_, terms)| terms.len()).sum();
        for (sum, terms) in lists {
            if needed > most {
                sum.close(needed, most);
            } else {
                sum.open(root, tree, terms);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;
    use std::path::Path;

    use omr_testkit::FakeRoot;

    use super::*;
    use crate::fixture::{kernel, node, scan};
    use crate::groups::class::Classifier;

    const USERS: &str = "sys/fs/cgroup/user@1000.service";

    /// A user's groups, each with one group in the background and one that is not, beside a group
    /// of root. All have used `usec` of CPU time.
    fn write(root: &FakeRoot, groups: usize, usec: u64) {
        let cpu = |path: &str, usec: u64| root.write(format!("{path}/cpu.stat"), format!("usage_usec {usec}\n"));
        for number in 0..groups {
            cpu(&format!("{USERS}/{number}/background.slice"), usec);
            cpu(&format!("{USERS}/{number}/app.scope"), usec);
            cpu(&format!("{USERS}/{number}"), 2 * usec);
        }
        cpu(USERS, 2 * usec * groups as u64);
        cpu("sys/fs/cgroup/job.scope", usec);
    }

    /// The number of files that are read for a user's groups, and the CPU time by class of each.
    fn read(groups: usize) -> (usize, [u128; 3]) {
        let root = FakeRoot::new();
        write(&root, groups, 1000);
        chown(root.resolve(USERS), Some(1000), None).expect("chown");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let mut tree = Tree::default();
        let rules = "[[group]]\nunit = 'app.scope'\nclass = 'foreground'\n\
            [[group]]\nunit = 'background.slice'\nclass = 'background'\n";
        let rules = omr_config::rules(rules);
        tree.scan(&kernel, &Classifier::new(&rules, Path::new("omr")), false).expect("a scan");
        let mut cpu = CpuByClass::default();
        cpu.update(&kernel, &tree, &[]).expect("files");
        write(&root, groups, 4000);
        let sums = [&mut cpu.background, &mut cpu.foreground, &mut cpu.non_background];
        let files = sums.iter().map(|sum| sum.counters.len()).sum();
        (files, sums.map(|sum| sum.sample().expect("a sum").as_millis()))
    }

    #[test]
    fn a_user_who_makes_many_groups_makes_no_sample_long() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: the groups cannot be given to a user");
            return;
        }
        // Each group has used 3 ms; the job of root is outside of the background.
        let (files, times) = read(10);
        assert_eq!(times, [30, 30, 33]);
        assert!(files < 40, "{files}");
        let (files, times) = read(300);
        // The user's background is not told from the rest any more, and all of it is foreground.
        assert_eq!(times, [0, 1800, 1803]);
        assert!(files < 10, "{files}");
    }

    /// A machine with this CPU time of each group in milliseconds.
    fn write_times(root: &FakeRoot, times: &[(&str, u64)]) {
        for (path, time) in times {
            root.write(format!("sys/fs/cgroup/{path}/cpu.stat"), format!("usage_usec {}\n", time * 1000));
        }
    }

    const CLASSES: &str = "[[group]]\nmatch = 'back'\nclass = 'background'\n\
        [[group]]\nmatch = 'fore'\nclass = 'foreground'\n\
        [[group]]\nmatch = 'mixed/job'\nclass = 'background'\n";

    #[test]
    fn work_counts_for_its_class_and_the_own_work_of_omr_for_none() {
        let root = FakeRoot::new();
        let groups = ["back", "fore", "other", "mixed/job", "mixed/rest", "omr"];
        write_times(&root, &groups.map(|path| (path, 100)));
        let (kernel, tree, mut cpu) = (kernel(&root), scan(&root, CLASSES), CpuByClass::default());
        let own = node(&tree, "omr").id;
        let sums = |cpu: &mut CpuByClass| {
            [&mut cpu.background, &mut cpu.foreground, &mut cpu.non_background]
                .map(|sum| sum.sample().map(|time| time.as_millis()))
        };
        cpu.update(&kernel, &tree, &[own]).expect("files");
        assert_eq!(sums(&mut cpu), [Some(0); 3], "the first reading was made when the files were opened");
        let times = [101, 102, 104, 108, 116, 132];
        write_times(&root, &groups.iter().copied().zip(times).collect::<Vec<_>>());
        assert_eq!(sums(&mut cpu), [Some(1 + 8), Some(2), Some(2 + 4 + 16)]);
        // The list of groups changes, and the files that stay open keep their last reading.
        write_times(&root, &[("back", 111), ("new", 50)]);
        let tree = scan(&root, CLASSES);
        cpu.update(&kernel, &tree, &[own]).expect("files");
        assert_eq!(sums(&mut cpu), [Some(10), Some(0), Some(0)]);
        write_times(&root, &[("new", 57)]);
        assert_eq!(sums(&mut cpu), [Some(0), Some(0), Some(7)]);
        // A group that is gone used no time; a file that cannot be read makes the sum unknown.
        root.remove("sys/fs/cgroup/fore");
        root.write("sys/fs/cgroup/back/cpu.stat", "nonsense");
        assert_eq!(sums(&mut cpu), [None, Some(0), Some(0)]);
    }

    #[test]
    fn a_group_that_was_replaced_since_the_scan_is_not_opened() {
        let root = FakeRoot::new();
        write_times(&root, &[("back", 100), ("fore", 100)]);
        let (kernel, tree, mut cpu) = (kernel(&root), scan(&root, CLASSES), CpuByClass::default());
        std::fs::rename(root.resolve("sys/fs/cgroup/back"), root.resolve("sys/fs/cgroup/moved")).expect("renamed");
        write_times(&root, &[("back", 0)]);
        cpu.update(&kernel, &tree, &[]).expect("files");
        write_times(&root, &[("back", 500), ("moved", 900)]);
        assert_eq!(cpu.background.sample(), Some(Duration::ZERO));
    }

    #[test]
    fn the_fewest_files_that_tell_the_time_of_a_side_are_read() {
        let root = FakeRoot::new();
        let names: Vec<String> = (0..9).map(|number| format!("mixed/{number}")).collect();
        for name in &names {
            write_times(&root, &[(name, 100)]);
        }
        write_times(&root, &[("mixed", 900), ("mixed/job", 100)]);
        let (tree, mut cpu) = (scan(&root, CLASSES), CpuByClass::default());
        cpu.update(&kernel(&root), &tree, &[]).expect("files");
        // Nine groups are not background. All of it without the one job takes two files.
        let terms: Vec<(GroupId, bool)> = cpu.non_background.ids().collect();
        assert_eq!(terms, [(node(&tree, "mixed").id, true), (node(&tree, "mixed/job").id, false)]);
        write_times(&root, &[("mixed", 907), ("mixed/job", 103)]);
        assert_eq!(cpu.non_background.sample(), Some(Duration::from_millis(4)));
        let terms: Vec<(GroupId, bool)> = cpu.background.ids().collect();
        assert_eq!(terms, [(node(&tree, "mixed/job").id, true)]);
    }

    #[test]
    fn a_sum_for_which_too_few_files_may_be_open_is_unknown_until_they_are_fewer() {
        let root = FakeRoot::new();
        write_times(&root, &[("back", 100)]);
        let (kernel, tree, mut cpu) = (kernel(&root), scan(&root, CLASSES), CpuByClass::default());
        cpu.update(&kernel, &tree, &[]).expect("files");
        assert_eq!(cpu.background.sample(), Some(Duration::ZERO));
        cpu.background.close(5000, 1000);
        assert_eq!(cpu.background.sample(), None);
        cpu.update(&kernel, &tree, &[]).expect("files");
        assert_eq!(cpu.background.sample(), Some(Duration::ZERO));
    }
}
