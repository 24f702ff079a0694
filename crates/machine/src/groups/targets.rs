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
