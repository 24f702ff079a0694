//! Nodes, tiers, and the memory of groups on each node.

use omr_kernel::numa::{Nodes, OnNode, parse_list, parse_numa_stat};
use omr_testkit::FakeRoot;
use omr_units::Bytes;
use proptest::prelude::*;

use crate::open;

#[test]
fn a_list_is_of_numbers_and_of_ranges() {
    for (text, want) in [
        ("0", Some(vec![0])),
        ("0-2,5", Some(vec![0, 1, 2, 5])),
        ("1-1", Some(vec![1])),
        ("", Some(vec![])),
        ("2-1", Some(vec![])),
        (",", None),
        ("0-", None),
        ("-1", None),
        ("0-4294967295", None),
        ("x", None),
    ] {
        assert_eq!(parse_list(text), want, "{text:?}");
    }
}

#[test]
fn tiers_come_fastest_first_and_a_machine_without_numa_has_no_nodes() {
    assert_eq!(Nodes::read(&open(&FakeRoot::new())).expect("none"), Nodes::default());
    let root = FakeRoot::new()
        .sys("devices/system/node/online", "0-2\n")
        .sys("devices/system/node/has_cpu", "0\n")
        .sys("devices/system/node/has_memory", "0-1\n")
        .sys("devices/virtual/memory_tiering/memory_tier22/nodelist", "1\n")
        .sys("devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n")
        .sys("devices/virtual/memory_tiering/power/control", "auto\n")
        .sys("kernel/mm/numa/demotion_enabled", "false\n");
    let nodes = Nodes::read(&open(&root)).expect("nodes");
    assert_eq!(nodes.tiers, [[0], [1]]);
    assert_eq!((nodes.with_cpus.as_slice(), nodes.with_memory.as_slice()), ([0].as_slice(), [0, 1].as_slice()));
    assert_eq!([0, 1, 2].map(|node| nodes.tier(node)), [Some(0), Some(1), None]);
    assert!(!nodes.demotes());
    let root = root.sys("kernel/mm/numa/demotion_enabled", "true\n");
    assert!(Nodes::read(&open(&root)).expect("nodes").demotes());
}

#[test]
fn each_node_of_a_group_has_its_own_figures() {
    let text = "anon N0=1052672 N1=4096\nfile N0=8192 N1=0\nkernel_stack N0=16384 N1=0\nshmem N0=0 N1=12288\n";
    let node = |node, anon, file, shmem| OnNode { node, anon: Bytes(anon), file: Bytes(file), shmem: Bytes(shmem) };
    assert_eq!(parse_numa_stat(text.as_bytes()), [node(0, 1_052_672, 8192, 0), node(1, 4096, 0, 12288)]);
    assert_eq!(parse_numa_stat(b""), []);
}

proptest! {
    #[test]
    fn hostile_text_is_survived(text in "(anon|file|N[0-9]{1,12}=|[-0-9=,N \n]){0,40}") {
        parse_numa_stat(text.as_bytes());
        parse_list(&text);
    }
}
