//! The groups that may be reclaimed, each with what may be taken from it.

use std::collections::HashMap;
use std::path::PathBuf;

use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, Result};
use omr_policy::Class;
use omr_units::{Bytes, GroupId, Limit};

use crate::groups::tree::{Node, Tree};

/// A group with less is not worth a write: the kernel does not work in smaller portions.
pub const SMALLEST: Bytes = omr_policy::pace::SMALLEST_STEP;

/// One group to take from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Identity.
    pub id: GroupId,
    /// Where it was at the scan.
    pub path: PathBuf,
    /// What it held; of an inner group, beyond its children.
    pub current: Bytes,
    /// What may be taken.
    pub gain: Bytes,
    /// For an inner group: what it holds beyond its children.
    pub beyond_children: Option<Bytes>,
}

impl Candidate {
    /// The group; `None` when it is gone, whatever else may have its name by now.
    pub fn open(&self, kernel: &Kernel) -> Result<Option<Group>> {
        match Group::open(kernel.cgroup()?, &self.path) {
            Ok(group) => Ok(Some(group).filter(|group| group.id() == self.id)),
            Err(err) if err.is_gone() => Ok(None),
            Err(err) => Err(err),
        }
    }
}

/// Largest benefit first; of equals the one with the smaller id, so that a run can be repeated.
pub fn sort_by_gain(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.gain), candidate.id));
}

/// All groups at or below `top` that may be touched.
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
    tree.groups()
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

/// A group that is the target by name, with what may be taken from it; where nothing may, an error that says why.
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
        // The file's own error, where it is there and cannot be read.
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
        let text = format!(
            "{shown} is {} ({why}); nothing was reclaimed. --ignore-class reclaims it all the same.",
            class.name()
        );
        return Err(Exit::Failed.error(text));
    }
    if !node.subtree_reclaimable && !ignore_class {
        let text = format!(
            "{shown} holds the memory of groups that may not be touched; nothing was reclaimed. \
             --ignore-class reclaims it all the same."
        );
        return Err(Exit::Failed.error(text));
    }
    if node.unprotected.is_none_or(|bytes| bytes < SMALLEST) && !ignore_low && current >= SMALLEST {
        let text = format!(
            "{shown} is protected ({}, all of its {current} in it); nothing was reclaimed. \
             --ignore-low reclaims it all the same.",
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
             --ignore-class reclaims it all the same."
        );
        return Err(Exit::Failed.error(text));
    }
    let unprotected = if ignore_low { current } else { node.unprotected.unwrap_or_default() };
    let gain = (current - kept).min(unprotected);
    Ok(Candidate { id: node.id, path: path.into(), current, gain, beyond_children: None })
}

/// The file that protects a group, and what is in it.
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
