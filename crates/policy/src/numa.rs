//! On which nodes a group's memory is, and where it would be better. `omr advise` prints the hints;
//! nobody carries them out.
//!
//! Three things cost time or money: used memory in a slower tier, unused memory in fast memory
//! while there is a slower tier for it, and tasks on one node with their memory on another. The
//! last cannot be seen from memory alone. But if nearly all used memory is on one node, the tasks
//! belong there.

use alloc::vec::Vec;

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

/// The memory of a group on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnNode {
    /// The node.
    pub node: u32,
    /// The place of its tier, from 0 for the fastest; `None`: unknown.
    pub tier: Option<usize>,
    /// The memory that was used, at most.
    pub used: Bytes,
    /// The memory that was unused, at least.
    pub unused: Bytes,
}

/// A better place for memory or tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Hint {
    /// Used memory is in a slower tier.
    Promote {
        /// The largest amount.
        bytes: Bytes,
    },
    /// Unused memory is in the fastest tier, and reclaim would not move it to a slower one.
    Demote {
        /// The least amount.
        bytes: Bytes,
    },
    /// Nearly all used memory is on one of several fast nodes: the tasks belong there.
    Stay {
        /// The node.
        node: u32,
    },
}

/// The share that counts as nearly all.
const NEARLY: u64 = 90;

/// Hints for a group, about amounts of at least `smallest`. `demotes`: reclaim moves memory to
/// slower tiers first.
pub fn advise(nodes: &[OnNode], demotes: bool, smallest: Bytes) -> Vec<Hint> {
    let slower = |node: &&OnNode| node.tier.is_some_and(|tier| tier > 0);
    let fastest = |node: &&OnNode| node.tier == Some(0);
    let mut hints = Vec::new();
    let bytes: Bytes = nodes.iter().filter(slower).map(|node| node.used).sum();
    if bytes >= smallest {
        hints.push(Hint::Promote { bytes });
    }
    let bytes: Bytes = nodes.iter().filter(fastest).map(|node| node.unused).sum();
    if nodes.iter().any(|node| slower(&node)) && !demotes && bytes >= smallest {
        hints.push(Hint::Demote { bytes });
    }
    let used: Bytes = nodes.iter().map(|node| node.used).sum();
    let fast_nodes = nodes.iter().filter(|node| !slower(node)).count();
    let most = nodes.iter().filter(|node| !slower(node)).max_by_key(|node| (node.used, core::cmp::Reverse(node.node)));
    if let Some(most) = most
        && fast_nodes > 1
        && used >= smallest
        && most.used.0 >= used.0 / 100 * NEARLY
    {
        hints.push(Hint::Stay { node: most.node });
    }
    hints
}
