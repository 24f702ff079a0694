//! Commands: the texts that are written to the kernel's files.

use std::ops::ControlFlow;
use std::path::Path;

use omr_actuate::lru_gen::{self, EvictionOrder};
use omr_actuate::{DryRun, Live, Outcome, Switch, Transcript, swap};
use omr_kernel::lru_gen::Reader;
use omr_testkit::{FakeRoot, Release};
use omr_units::Pages;

use crate::open;

#[test]
fn commands_are_as_the_kernel_wants_them() {
    let root = FakeRoot::captured(Release::V6_12);
    let kernel = open(&root);
    let mut transcript = Transcript::new(DryRun);
    let mut all = Vec::new();
    let visit = |_: &[u8], _, lists: &_| {
        all.push(*lists);
        ControlFlow::Continue(())
    };
    Reader::default().for_each(&kernel, visit).expect("lists");
    let lists = all[3];
    lru_gen::run_aging(&mut transcript, &kernel, &lists).expect("an aging");
    lru_gen::evict(&mut transcript, &kernel, &lists, 3, EvictionOrder::AnonOnly, Pages(1024)).expect("an eviction");
    lru_gen::evict(&mut transcript, &kernel, &lists, 3, EvictionOrder::AnonFirst, Pages(64)).expect("an eviction");
    let lines = transcript.lines();
    assert!(lines.iter().all(|(path, _)| path.ends_with("sys/kernel/debug/lru_gen")));
    let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["+ 4 0 5 1 1", "- 4 0 3 max 1024", "- 4 0 3 200 64"]);
}

#[test]
fn a_device_is_switched_as_process_1_reaches_it() {
    let root = FakeRoot::new();
    let kernel = open(&root);
    let mut transcript = Transcript::new(DryRun);
    for switch in [Switch::Off, Switch::On { priority: 100 }] {
        let outcome = swap::switch(&kernel, &mut transcript, Path::new("/dev/zram0"), switch);
        assert_eq!(outcome.expect("an outcome"), Outcome::Done);
    }
    let device = root.resolve("proc/1/root/dev/zram0");
    let lines = ["swapoff", "swapon, priority 100"].map(|line| (device.clone(), line.to_owned()));
    assert_eq!(transcript.lines(), lines);
    // Below the root of a test there is no swap device, whatever this machine has.
    let outcome = swap::switch(&kernel, &mut Live, Path::new("/dev/zram0"), Switch::Off).expect("an outcome");
    assert!(matches!(outcome, Outcome::Gone | Outcome::Denied), "{outcome:?}");
}
