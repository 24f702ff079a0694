//! The groups that may be reclaimed, each with what may be taken from it.

use std::collections::HashMap;
use std::path::PathBuf;

use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, Result};
use omr_policy::Class;
use omr_units::{Bytes, GroupId};

use crate::tree::Tree;

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
    pub inner: Option<Bytes>,
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
pub fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.gain), candidate.id));
}

/// All groups at or below `top` that may be touched.
pub fn walk(tree: &Tree, top: Option<GroupId>, ignore_low: bool) -> Vec<Candidate> {
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
            let inner = nodes[index].inner.then_some(current);
            (gain >= SMALLEST).then(|| Candidate { id: group.id, path: tree.path_at(index), current, gain, inner })
        })
        .collect()
}
