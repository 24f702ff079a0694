//! Hints: how a batch goes on behind what is refused, and on a real process.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use omr_kernel::actuate::{Actuator, DryRun, Live, Outcome, Transcript};
use omr_kernel::madvise::{self, Advice, Advised};
use omr_kernel::maps::{self, Backing};
use omr_kernel::process::{Process, read_pids};
use omr_kernel::{Dir, Kernel, Result};
use omr_testkit::FakeRoot;
use omr_units::Bytes;

use crate::open;

/// A kernel that answers as it is told, and keeps what it was asked.
struct Says {
    answers: VecDeque<(u64, Outcome)>,
    asked: Vec<Vec<Range<u64>>>,
}

impl Actuator for Says {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        unreachable!("nothing is written to a file")
    }

    fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<Advised> {
        self.asked.push(ranges.to_vec());
        let (bytes, outcome) = self.answers.pop_front().expect("an answer");
        Ok(Advised { bytes: Bytes(bytes), outcome })
    }

    fn is_live(&self) -> bool {
        true
    }
}

fn fake_process() -> (FakeRoot, Process) {
    let root = FakeRoot::new().proc("7/stat", "7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0");
    let process = Process::open(&open(&root), 7).expect("a process");
    (root, process)
}

fn asked(answers: &[(u64, Outcome)]) -> (madvise::Report, Vec<Vec<Range<u64>>>) {
    let (_root, process) = fake_process();
    let mut kernel = Says { answers: answers.iter().copied().collect(), asked: Vec::new() };
    let ranges = [0..10, 20..30, 40..50];
    let report = madvise::advise(&mut kernel, &process, Advice::WillNeed, &ranges).expect("a report");
    assert!(kernel.answers.is_empty(), "it asked as often as expected");
    (report, kernel.asked)
}

#[test]
fn all_at_once() {
    let (report, calls) = asked(&[(30, Outcome::Done)]);
    assert_eq!((report.advised, report.outcome, report.skipped.len(), calls.len()), (Bytes(30), Outcome::Done, 0, 1));
}

#[test]
fn behind_a_range_that_is_refused_it_goes_on() {
    for why in [Outcome::Unsupported, Outcome::Partial] {
        // The kernel reports what it has done, then why it went no further.
        let (report, calls) = asked(&[(10, Outcome::Done), (0, why), (10, Outcome::Done)]);
        assert_eq!((report.advised, report.outcome), (Bytes(20), Outcome::Done));
        assert_eq!(report.skipped, [(20..30, why)]);
        assert_eq!((&calls[1][..], &calls[2][..]), ([20..30, 40..50].as_slice(), std::slice::from_ref(&(40..50))));
    }
}

#[test]
fn a_process_that_ends_or_a_right_that_is_missing_ends_it() {
    for why in [Outcome::Gone, Outcome::Denied, Outcome::Interrupted] {
        let (report, _) = asked(&[(20, Outcome::Done), (0, why)]);
        assert_eq!((report.advised, report.outcome, report.skipped.len()), (Bytes(20), why, 0));
    }
}

/// However odd the answers, it comes to an end.
#[test]
fn a_kernel_that_does_nothing_and_says_nothing() {
    let (report, _) = asked(&[(0, Outcome::Done), (5, Outcome::Done), (0, Outcome::Partial)]);
    assert_eq!((report.advised, report.skipped.len()), (Bytes::ZERO, 3));
}

#[test]
fn a_transcript_has_hints_too() {
    let (_root, process) = fake_process();
    let mut transcript = Transcript::new(DryRun);
    let report = madvise::advise(&mut transcript, &process, Advice::WillNeed, std::slice::from_ref(&(0x1000..0x3000)))
        .expect("a report");
    assert_eq!(report.advised, Bytes(0x2000));
    let lines = transcript.lines();
    assert_eq!(lines, [(process.dir().path().to_owned(), "willneed 1000-3000".to_owned())]);
}

#[test]
fn pids_of_a_group() {
    let root = FakeRoot::new().group("a", &[("cgroup.procs", "5413\n0\n77\nx\n99999999999\n")]);
    let group = open(&root).cgroup().expect("a hierarchy").sub("a").expect("the group");
    assert_eq!(read_pids(&group).expect("readable"), [5413, 77]);
}

#[test]
fn a_real_child() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep starts");
    let process = Process::open(&kernel, child.id()).expect("the child");
    let heap = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let mappings = maps::read(process.dir(), false).ok()?;
        mappings.into_iter().find(|mapping| mapping.backing == Backing::Anonymous).map(|mapping| mapping.range)
    });
    let heap = heap.expect("anonymous memory");
    let page = kernel.page().bytes().0;
    // A range that is mapped, one that is not, and it again.
    let ranges = [heap.clone(), 0..page, heap.clone()];
    let report = madvise::advise(&mut Live, &process, Advice::WillNeed, &ranges).expect("an answer");
    match report.outcome {
        Outcome::Done => {
            assert_eq!(report.advised, Bytes(2 * (heap.end - heap.start)));
            assert_eq!(report.skipped, [(0..page, Outcome::Partial)]);
        }
        Outcome::Denied => eprintln!("not checked: no CAP_SYS_NICE here"),
        outcome => panic!("{outcome:?}"),
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    let report = madvise::advise(&mut Live, &process, Advice::WillNeed, &ranges).expect("an answer");
    assert!(matches!(report.outcome, Outcome::Gone | Outcome::Denied), "{report:?}");
    assert_eq!(report.advised, Bytes::ZERO);
    assert!(maps::read(process.dir(), false).is_err_and(|err| err.is_gone()));
}
