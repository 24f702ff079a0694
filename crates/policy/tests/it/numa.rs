//! Hints about the nodes of a group's memory.

use omr_policy::numa::{Hint, OnNode, advise};
use omr_units::Bytes;

/// Node, tier, MiB that are used, MiB that are not.
fn nodes(nodes: &[(u32, Option<usize>, u64, u64)]) -> Vec<OnNode> {
    let node = |&(node, tier, used, unused): &(u32, Option<usize>, u64, u64)| OnNode {
        node,
        tier,
        used: Bytes::mib(used),
        unused: Bytes::mib(unused),
    };
    nodes.iter().map(node).collect()
}

fn advised(given: &[(u32, Option<usize>, u64, u64)], demotes: bool) -> Vec<Hint> {
    advise(&nodes(given), demotes, Bytes::mib(16))
}

#[test]
fn used_memory_belongs_in_a_fast_tier_and_unused_memory_in_a_slow_one() {
    let both = [(0, Some(0), 100, 200), (1, Some(1), 50, 0)];
    let promote = Hint::Promote { bytes: Bytes::mib(50) };
    assert_eq!(advised(&both, false), [promote, Hint::Demote { bytes: Bytes::mib(200) }]);
    // Reclaim will do that by itself.
    assert_eq!(advised(&both, true), [promote]);
    // As it should be, or too little to speak of.
    assert_eq!(advised(&[(0, Some(0), 100, 0), (1, Some(1), 0, 200)], false), []);
    assert_eq!(advised(&[(0, Some(0), 100, 15), (1, Some(1), 15, 200)], false), []);
}

#[test]
fn without_a_slower_tier_nothing_is_moved_there() {
    assert_eq!(advised(&[(0, Some(0), 100, 500)], false), []);
    // The kernel does not tell tiers here.
    assert_eq!(advised(&[(0, None, 100, 500), (1, None, 100, 500)], false), []);
}

#[test]
fn tasks_belong_where_nearly_all_of_their_memory_is() {
    assert_eq!(advised(&[(0, Some(0), 95, 0), (1, Some(0), 5, 0)], false), [Hint::Stay { node: 0 }]);
    assert_eq!(advised(&[(0, Some(0), 5, 0), (1, Some(0), 95, 0)], false), [Hint::Stay { node: 1 }]);
    assert_eq!(advised(&[(0, Some(0), 80, 0), (1, Some(0), 20, 0)], false), []);
    // There is no other node to run on.
    assert_eq!(advised(&[(0, Some(0), 100, 0)], false), []);
    assert_eq!(advised(&[(0, Some(0), 100, 0), (1, Some(1), 0, 0)], false), []);
}
