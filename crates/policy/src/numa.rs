//! Where a group's memory is, on a machine with several nodes, and what would be better.
//!
//! Three things cost: memory that is used and in a slower tier, fast memory that nobody uses while there is a slower
//! tier for it, and tasks on one node with their memory on another. The last cannot be seen from memory alone; what can
//! be seen is that nearly all that is used is on one node, and so where its tasks belong.

use alloc::vec::Vec;

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

/// A group on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnNode {
    /// The node.
    pub node: u32,
    /// Place of its tier, 0 is the fastest; `None`: not known.
    pub tier: Option<usize>,
    /// At most so much was used.
    pub used: Bytes,
    /// At least so much was not.
    pub unused: Bytes,
}

/// What would be better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Hint {
    /// Memory that is used is in a slower tier.
    Promote {
        /// At most, as each [`OnNode::used`] is.
        bytes: Bytes,
    },
    /// This much that is not used is in the fastest tier, and reclaim would not move it to a slower one.
    Demote {
        /// At least.
        bytes: Bytes,
    },
    /// Nearly all that is used is on one of several fast nodes: its tasks belong there.
    Stay {
        /// The node.
        node: u32,
    },
}

/// Nearly all, of a hundred.
const NEARLY: u64 = 90;

/// What is better for a group. Of less than `smallest` nothing is said. `demotes`: reclaim moves memory to slower
/// tiers first.
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
