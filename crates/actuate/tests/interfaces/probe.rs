//! Probes by writes that change nothing.

use std::ops::Range;

use omr_actuate::{Actuator, Advice, AdviseResult, DryRun, Outcome, Transcript, probe};
use omr_kernel::probe::Support;
use omr_kernel::process::Process;
use omr_kernel::{Dir, Result};
use omr_testkit::FakeRoot;
use omr_units::Bytes;

use crate::open;

/// On the kernel that the tests run on: each probe must return an answer, whichever it is.
#[test]
fn every_hint_is_answered() {
    for advice in [Advice::Cold, Advice::PageOut, Advice::WillNeed] {
        assert_ne!(probe::process_madvise(advice), Support::NotProbed);
    }
}

#[test]
fn nothing_but_an_amount_of_zero_is_ever_asked_for() {
    let root = FakeRoot::new().group("a", &[("memory.reclaim", "")]);
    let kernel = open(&root);
    let group = kernel.cgroup().expect("a hierarchy").sub("a").expect("the group");
    let mut transcript = Transcript::new(DryRun);
    let keys = probe::reclaim_keys(&mut transcript, &group).expect("an answer");
    assert!(keys.swappiness && keys.swappiness_max && keys.writeback_wait);
    let data: Vec<String> = transcript.lines().into_iter().map(|(_, data)| data).collect();
    assert_eq!(data, ["0", "0 swappiness=60", "0 swappiness=max", "0 writeback=wait"]);
}

/// A kernel whose `memory.reclaim` knows the amount and the first `keys` of the keys.
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
            "0 writeback=wait" if self.keys > 2 => Outcome::Done,
            _ => Outcome::Unsupported,
        })
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        Ok(AdviseResult { bytes: Bytes::ZERO, outcome: Outcome::Unsupported })
    }

    fn is_live(&self) -> bool {
        true
    }
}

#[test]
fn keys_come_one_after_the_other() {
    let root = FakeRoot::new();
    let kernel = open(&root);
    for (keys, known) in
        [(0, [false, false, false]), (1, [true, false, false]), (2, [true, true, false]), (3, [true, true, true])]
    {
        let mut actuator = Knows { keys, amount: Outcome::Done };
        let found = probe::reclaim_keys(&mut actuator, kernel.cgroup().expect("a hierarchy")).expect("an answer");
        assert_eq!([found.swappiness, found.swappiness_max, found.writeback_wait], known);
    }
    let mut denied = Knows { keys: 2, amount: Outcome::Denied };
    let found = probe::reclaim_keys(&mut denied, kernel.cgroup().expect("a hierarchy")).expect("an answer");
    assert_eq!((found.amount, found.swappiness), (Outcome::Denied, false));
}
