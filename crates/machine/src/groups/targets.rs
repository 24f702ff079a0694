//! Targets of reclaim: groups, and how much may be reclaimed from each.

use std::collections::HashMap;
use std::path::PathBuf;

use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, Result};
use omr_policy::{Class, MinAge};
use omr_units::{Bytes, GroupId, Limit};

use crate::groups::tree::{Node, Tree};

/// The smallest gain that is worth a write. The kernel does not reclaim smaller portions.
pub const SMALLEST: Bytes = omr_policy::pace::SMALLEST_STEP;

/// A group that may be reclaimed.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The identity of the group.
    pub id: GroupId,
    /// The path of the group at the scan.
    pub path: PathBuf,
    /// The memory of the group; of an internal group, without its children.
    pub current: Bytes,
    /// The amount that may be reclaimed.
    pub gain: Bytes,
    /// For an internal group: its memory without its children. `None`: not an internal group.
    pub beyond_children: Option<Bytes>,
}

impl Candidate {
    /// Opens the group. `None`: the group is gone, even if another one has its name now.
    pub fn open(&self, kernel: &Kernel) -> Result<Option<Group>> {
        match Group::open(kernel.cgroup()?, &self.path) {
            Ok(group) => Ok(Some(group).filter(|group| group.id() == self.id)),
            Err(err) if err.is_gone() => Ok(None),
            Err(err) => Err(err),
        }
    }
}

/// Sorts by gain, largest first; by id if equal, so that the order is the same in each run.
pub fn sort_by_gain(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.gain), candidate.id));
}

/// Returns all groups at or below `top` that may be reclaimed.
pub fn find_below(tree: &Tree, top: Option<GroupId>, ignore_low: bool) -> Vec<Candidate> {
    let nodes = tree.nodes();
    let places: HashMap<GroupId, usize> = nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
    let below = |index: usize| {
        let Some(top) = top else { return true };
        let mut index = Some(index);
        while let Some(here) = index {
            if nodes[here].id == top {
                return true;
            }
            let parent = nodes[here].parent as usize;
            index = (parent != here).then_some(parent);
        }
        false
    };
    tree.groups(MinAge::Any)
        .filter(|group| group.class == Class::Background)
        .filter_map(|group| {
            let index = places.get(&group.id).copied().filter(|&index| below(index))?;
            let current = group.current?;
            let keep = group.keep.map_or(Bytes::ZERO, |keep| keep.of(current));
            let unprotected = if ignore_low { Bytes::MAX } else { group.unprotected? };
            let gain = (current - keep).min(unprotected);
            let beyond_children = nodes[index].is_internal.then_some(current);
            (gain >= SMALLEST).then(|| Candidate {
                id: group.id,
                path: tree.path_at(index),
                current,
                gain,
                beyond_children,
            })
        })
        .collect()
}

/// Returns the candidate for a group that the user names. The error says why nothing may be
/// reclaimed from it.
pub fn find_named(
    tree: &Tree,
    node: &Node,
    group: &Group,
    ignore_class: bool,
    ignore_low: bool,
) -> anyhow::Result<Candidate> {
    let path = group.path();
    let shown = if group.is_root() { "/".to_owned() } else { printable(&path.to_string_lossy()) };
    let no_controller = || format!("{shown} has no memory controller; the group above it accounts for its memory");
    let Some(current) = node.current else {
        // If the file exists and cannot be read, its own error says more.
        return Err(match group.read_current(&mut Vec::new()) {
            Err(err) if !err.is_gone() => err.into(),
            _ => Exit::Unsupported.error(no_controller()),
        });
    };
    let class = tree.assignment(node).map(|assignment| (assignment.class, assignment.explain(path)));
    if let Some((class, why)) = class
        && class != Class::Background
        && !ignore_class
    {
        let text = format!("{shown} is {} ({why}); nothing was reclaimed. --ignore-class allows it.", class.name());
        return Err(Exit::Failed.error(text));
    }
    if !node.subtree_reclaimable && !ignore_class {
        let text = format!(
            "{shown} has groups below it that may not be reclaimed; nothing was reclaimed. \
             --ignore-class allows it."
        );
        return Err(Exit::Failed.error(text));
    }
    if node.unprotected.is_none_or(|bytes| bytes < SMALLEST) && !ignore_low && current >= SMALLEST {
        let text = format!(
            "{shown} is protected ({}, all of its {current} in it); nothing was reclaimed. \
             --ignore-low allows it.",
            protected_by(group)?
        );
        return Err(Exit::Failed.error(text));
    }
    let keep = tree.assignment(node).and_then(|assignment| assignment.keep).filter(|_| !ignore_class);
    let kept = keep.map_or(Bytes::ZERO, |keep| keep.of(current));
    let rule = tree.assignment(node).and_then(|assignment| assignment.keep_rule.as_ref());
    let why = rule.map(|rule| format!("matched {rule}")).unwrap_or_default();
    if kept.0 > 0 && current - kept < SMALLEST {
        let text = format!(
            "{shown} keeps {kept} ({why}), all of its {current} in it; nothing was reclaimed. \
             --ignore-class allows it."
        );
        return Err(Exit::Failed.error(text));
    }
    let unprotected = if ignore_low { current } else { node.unprotected.unwrap_or_default() };
    let gain = (current - kept).min(unprotected);
    Ok(Candidate { id: node.id, path: path.into(), current, gain, beyond_children: None })
}

/// Returns the file that protects a group, with its value.
fn protected_by(group: &Group) -> Result<String> {
    let buffer = &mut Vec::new();
    for file in ["memory.low", "memory.min"] {
        match group.read_limit(file, buffer) {
            Ok(Limit::Bytes(Bytes::ZERO)) => {}
            Ok(Limit::Bytes(bytes)) => return Ok(format!("{file} = {bytes}")),
            Ok(Limit::Max) => return Ok(format!("{file} = max")),
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err),
        }
    }
    Ok("memory.min or memory.low of a group above it".into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_testkit::FakeRoot;

    use super::*;
    use crate::fixture::{add_group, kernel, node, scan, set};

    /// What may be reclaimed at and below a group, by path, as (current, gain, beyond its children).
    fn below(tree: &Tree, top: Option<&str>, ignore_low: bool) -> Vec<(String, Bytes, Bytes, Option<Bytes>)> {
        let mut found = find_below(tree, top.map(|top| node(tree, top).id), ignore_low);
        sort_by_gain(&mut found);
        let row = |one: Candidate| (one.path.display().to_string(), one.current, one.gain, one.beyond_children);
        found.into_iter().map(row).collect()
    }

    #[test]
    fn below_a_group_each_background_group_may_lose_what_nothing_keeps() {
        let root = FakeRoot::new();
        for (path, mib) in [("top", 30), ("top/a", 10), ("top/b", 12), ("other", 5), ("fore", 40)] {
            add_group(&root, path, Bytes::mib(mib));
        }
        add_group(&root, "small", SMALLEST - Bytes(1));
        add_group(&root, "least", SMALLEST);
        let rules = "[[group]]\nmatch = 'fore'\nclass = 'foreground'";
        let tree = scan(&root, rules);
        let mib = Bytes::mib;
        // The internal group counts with the 8 MiB that are not charged to its children.
        let top = [
            ("top/b".into(), mib(12), mib(12), None),
            ("top/a".into(), mib(10), mib(10), None),
            ("top".into(), mib(8), mib(8), Some(mib(8))),
        ];
        assert_eq!(below(&tree, Some("top"), false), top);
        assert_eq!(below(&tree, Some("top/a"), false), top[1..2]);
        let other = [("other".into(), mib(5), mib(5), None), ("least".into(), SMALLEST, SMALLEST, None)];
        assert_eq!(below(&tree, None, false), [&top[..], &other[..]].concat());
        assert_eq!(below(&tree, Some("fore"), false), []);
        // A child that is protected or keeps something also keeps the group above it from being reclaimed.
        set(&root, "top/a", "memory.low", "4194304\n");
        let rules = "[[group]]\nmatch = 'top/b'\nkeep = '3M'";
        let tree = scan(&root, rules);
        assert_eq!(
            below(&tree, Some("top"), false),
            [("top/b".into(), mib(12), mib(9), None), ("top/a".into(), mib(10), mib(6), None)]
        );
        assert_eq!(
            below(&tree, Some("top"), true),
            [("top/a".into(), mib(10), mib(10), None), ("top/b".into(), mib(12), mib(9), None)]
        );
    }

    #[test]
    fn a_candidate_is_its_group_and_no_later_one_of_that_name() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(5));
        let kernel = kernel(&root);
        let candidate = find_below(&scan(&root, ""), None, false).remove(0);
        assert!(candidate.open(&kernel).expect("readable").is_some());
        std::fs::rename(root.resolve("sys/fs/cgroup/a"), root.resolve("sys/fs/cgroup/b")).expect("renamed");
        assert!(candidate.open(&kernel).expect("readable").is_none(), "gone");
        add_group(&root, "a", Bytes::mib(5));
        assert!(candidate.open(&kernel).expect("readable").is_none(), "another group");
        root.remove("sys/fs/cgroup/a");
        root.write("sys/fs/cgroup/a", "no directory");
        assert!(candidate.open(&kernel).is_err());
    }

    /// The gain of a group that the user names, or the error.
    fn named(root: &FakeRoot, rules: &str, path: &str, ignore_class: bool, ignore_low: bool) -> Result<Bytes, String> {
        let (kernel, tree) = (kernel(root), scan(root, rules));
        let group = Group::open(kernel.cgroup().expect("cgroups"), Path::new(path)).expect("a group");
        let found = find_named(&tree, node(&tree, path), &group, ignore_class, ignore_low);
        found.map(|candidate| candidate.gain).map_err(|err| err.to_string())
    }

    #[test]
    fn a_named_group_is_refused_for_its_class_unless_the_user_insists() {
        let root = FakeRoot::new();
        add_group(&root, "top", Bytes::mib(9));
        add_group(&root, "top/fore", Bytes::mib(4));
        let rules = "[[group]]\nmatch = 'top/fore'\nclass = 'foreground'";
        let refused = |path| named(&root, rules, path, false, false).expect_err("refused");
        assert!(refused("top/fore").starts_with("top/fore is foreground (matched \"top/fore\" in "));
        assert_eq!(
            refused("top"),
            "top has groups below it that may not be reclaimed; nothing was reclaimed. --ignore-class allows it."
        );
        assert_eq!(named(&root, rules, "top/fore", true, false), Ok(Bytes::mib(4)));
        assert_eq!(named(&root, rules, "top", true, false), Ok(Bytes::mib(9)));
        assert_eq!(named(&root, "", "top", false, false), Ok(Bytes::mib(9)));
        assert_eq!(named(&root, "", "top/fore", false, false), Ok(Bytes::mib(4)));
    }

    #[test]
    fn a_named_group_is_refused_when_protection_covers_it_and_the_file_is_named() {
        let root = FakeRoot::new();
        add_group(&root, "top", Bytes::mib(9));
        add_group(&root, "top/a", Bytes::mib(4));
        let gain = |ignore_low| named(&root, "", "top/a", false, ignore_low);
        let because = |file: &str| {
            format!(
                "top/a is protected ({file}, all of its 4.00 MiB in it); nothing was reclaimed. --ignore-low allows it."
            )
        };
        set(&root, "top/a", "memory.low", "3145728\n");
        assert_eq!(gain(false), Ok(Bytes::mib(1)));
        for (file, value, shown) in [
            ("memory.low", "max", "memory.low = max"),
            ("memory.low", "8388608", "memory.low = 8.00 MiB"),
            ("memory.min", "max", "memory.min = max"),
        ] {
            set(&root, "top/a", "memory.low", "0\n");
            set(&root, "top/a", file, value);
            assert_eq!(gain(false), Err(because(shown)));
            assert_eq!(gain(true), Ok(Bytes::mib(4)));
        }
        set(&root, "top/a", "memory.min", "0\n");
        set(&root, "top", "memory.low", "max\n");
        assert_eq!(gain(false), Err(because("memory.min or memory.low of a group above it")));
        set(&root, "top/a", "memory.low", "nonsense");
        assert!(gain(false).expect_err("unknown").ends_with("neither a number of bytes nor \"max\""));
        set(&root, "top/a", "memory.low", "0\n");
        // Just enough to be worth a write is left.
        set(&root, "top", "memory.low", &(Bytes::mib(9) - SMALLEST).0.to_string());
        assert_eq!(gain(false), Ok(SMALLEST));
        // A group that holds next to nothing is no case of protection.
        add_group(&root, "tiny", Bytes(4096));
        set(&root, "tiny", "memory.low", "max\n");
        assert_eq!(named(&root, "", "tiny", false, false), Ok(Bytes::ZERO));
    }

    #[test]
    fn a_named_group_keeps_what_a_rule_says_unless_the_user_insists() {
        let root = FakeRoot::new();
        add_group(&root, "a", Bytes::mib(4));
        let gain = |keep: &str, ignore_class| {
            named(&root, &format!("[[group]]\nmatch = 'a'\nkeep = '{keep}'"), "a", ignore_class, false)
        };
        assert_eq!(gain("1M", false), Ok(Bytes::mib(3)));
        assert_eq!(gain("1M", true), Ok(Bytes::mib(4)));
        let refused = gain("4M", false).expect_err("refused");
        assert!(refused.starts_with("a keeps 4.00 MiB (matched \"a\" in "), "{refused}");
        assert_eq!(gain("3968K", false), Ok(SMALLEST));
        assert!(gain("3969K", false).is_err(), "less than a write is worth");
    }

    #[test]
    fn a_group_without_a_memory_controller_is_said_to_have_none() {
        let root = FakeRoot::new();
        root.write("sys/fs/cgroup/bare/cgroup.procs", "");
        let refused = named(&root, "", "bare", false, false).expect_err("refused");
        assert_eq!(refused, "bare has no memory controller; the group above it accounts for its memory");
        root.write("sys/fs/cgroup/bare/memory.current", "nonsense");
        let refused = named(&root, "", "bare", false, false).expect_err("refused");
        assert!(refused.ends_with("memory.current: not a number"), "{refused}");
    }
}
