//! Probes of the kernel that the tests run on: each probe must return an answer, whichever it is.

use std::ops::Range;
use std::path::Path;

use omr_kernel::actuate::{Actuator, DryRun, Outcome, Transcript};
use omr_kernel::madvise::{Advice, Advised};
use omr_kernel::probe::{self, Answer, PSI_WINDOWS};
use omr_kernel::process::Process;
use omr_kernel::{Dir, Kernel, Result};
use omr_testkit::FakeRoot;
use omr_units::Bytes;

use crate::open;

#[test]
fn every_probe_answers() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    for answer in [
        probe::procmap_query(&kernel),
        probe::pagemap_scan(&kernel),
        probe::process_madvise(Advice::Cold),
        probe::process_madvise(Advice::PageOut),
        probe::process_madvise(Advice::WillNeed),
    ] {
        assert_ne!(answer, Answer::NotProbed);
    }
    // Without PSI, or without permission to open the file, the result is an error and no panic.
    if let Ok(Some(window)) = probe::psi_window(&kernel) {
        assert!(PSI_WINDOWS.contains(&window));
    }
}

#[test]
fn release_numbers_and_probes_agree_where_both_are_known() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let release = kernel.proc.read_string("sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map_while(|n| n.trim().parse::<u32>().ok());
    let (major, minor) = (numbers.next().expect("major"), numbers.next().expect("minor"));
    // Kernels before these releases do not have the ioctl. Later ones may be built without it.
    if (major, minor) < (6, 11) {
        assert_eq!(probe::procmap_query(&kernel), Answer::Missing);
    }
    if (major, minor) < (6, 7) {
        assert_eq!(probe::pagemap_scan(&kernel), Answer::Missing);
    }
}

#[test]
fn nothing_but_an_amount_of_zero_is_ever_asked_for() {
    let root = FakeRoot::new().group("a", &[("memory.reclaim", "")]);
    let kernel = open(&root);
    let group = kernel.cgroup().expect("a hierarchy").sub("a").expect("the group");
    let mut transcript = Transcript::new(DryRun);
    let keys = probe::reclaim_keys(&mut transcript, &group).expect("an answer");
    assert!(keys.swappiness && keys.swappiness_max);
    let data: Vec<String> = transcript.lines().into_iter().map(|(_, data)| data).collect();
    assert_eq!(data, ["0", "0 swappiness=60", "0 swappiness=max"]);
}

/// A kernel whose `memory.reclaim` knows the amount and the first `keys` forms of `swappiness=`.
struct Knows {
    keys: usize,
    amount: Outcome,
}

impl Actuator for Knows {
    fn write(&mut self, _: &Dir, _: &str, data: &str) -> Result<Outcome> {
        Ok(match data {
            "0" => self.amount,
            "0 swappiness=60" if self.keys > 0 => Outcome::Done,
            "0 swappiness=max" if self.keys > 1 => Outcome::Done,
            _ => Outcome::Unsupported,
        })
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<Advised> {
        Ok(Advised { bytes: Bytes::ZERO, outcome: Outcome::Unsupported })
    }

    fn is_live(&self) -> bool {
        true
    }
}

#[test]
fn keys_come_one_after_the_other() {
    let root = FakeRoot::new();
    let kernel = open(&root);
    for (keys, swappiness, max) in [(0, false, false), (1, true, false), (2, true, true)] {
        let mut actuator = Knows { keys, amount: Outcome::Done };
        let found = probe::reclaim_keys(&mut actuator, kernel.cgroup().expect("a hierarchy")).expect("an answer");
        assert_eq!((found.swappiness, found.swappiness_max), (swappiness, max));
    }
    let mut denied = Knows { keys: 2, amount: Outcome::Denied };
    let found = probe::reclaim_keys(&mut denied, kernel.cgroup().expect("a hierarchy")).expect("an answer");
    assert_eq!((found.amount, found.swappiness), (Outcome::Denied, false));
}
