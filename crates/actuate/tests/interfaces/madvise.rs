//! Hints: a batch continues after a range that the kernel refuses, and works on a real process.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use omr_actuate::madvise::{self, Batch, CHUNK, Hint, HintResult};
use omr_actuate::{Actuator, Advice, AdviseResult, DryRun, Live, Outcome, Transcript};
use omr_kernel::maps::{Backing, Layout};
use omr_kernel::process::{Process, read_pids};
use omr_kernel::ranges::{Ranges, length};
use omr_kernel::{Dir, Kernel, Result};
use omr_testkit::FakeRoot;
use omr_units::Bytes;
use proptest::prelude::*;

use crate::open;

/// A kernel that returns prepared answers, and records the requests.
struct Says {
    answers: VecDeque<(u64, Outcome)>,
    asked: Vec<Vec<Range<u64>>>,
}

impl Actuator for Says {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        unreachable!("nothing is written to a file")
    }

    fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        self.asked.push(ranges.to_vec());
        let (bytes, outcome) = self.answers.pop_front().expect("an answer");
        Ok(AdviseResult { bytes: Bytes(bytes), outcome })
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A process with these anonymous mappings.
fn fake_process(mappings: &[Range<u64>]) -> (FakeRoot, Process) {
    let root = FakeRoot::new().proc("7/stat", "7 (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0");
    remap(&root, mappings);
    let process = Process::open(&open(&root), 7).expect("a process");
    (root, process)
}

fn remap(root: &FakeRoot, mappings: &[Range<u64>]) {
    let line = |range: &Range<u64>| format!("{:x}-{:x} rw-p 00000000 00:00 0\n", range.start, range.end);
    root.write("proc/7/maps", mappings.iter().map(line).collect::<String>());
}

/// The mappings of [`asked`].
const THREE: [Range<u64>; 3] = [0x1000..0x2000, 0x3000..0x4000, 0x5000..0x6000];

fn cold(range: &Range<u64>) -> Hint {
    Hint { range: range.clone(), advice: Advice::Cold }
}

/// Runs a batch about three pages, each in a mapping of its own, with these answers of the kernel.
/// Returns the results, the outcome that ended the batch early, and the requests.
fn asked(answers: &[(u64, Outcome)]) -> (Vec<HintResult>, Option<Outcome>, Vec<Vec<Range<u64>>>) {
    let (_root, process) = fake_process(&THREE);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut kernel = Says { answers: answers.iter().copied().collect(), asked: Vec::new() };
    let mut batch = Batch::new(&process, &mut layout, THREE.iter().map(cold).collect(), CHUNK);
    let mut done = Bytes::ZERO;
    while batch.next_call().expect("a layout").is_some() {
        done += batch.call(&mut kernel).expect("an answer");
    }
    let ended = batch.ended();
    let results = batch.end().expect("a layout");
    assert!(kernel.answers.is_empty(), "it asked as often as expected");
    assert_eq!(results.iter().map(|result| result.done.bytes()).sum::<Bytes>(), done, "each byte is counted once");
    (results, ended, kernel.asked)
}

fn outcomes(results: &[HintResult]) -> Vec<Outcome> {
    results.iter().zip(&THREE).map(|(result, range)| result.outcome(&cold(range))).collect()
}

#[test]
fn all_at_once() {
    let (results, ended, calls) = asked(&[(0x3000, Outcome::Done)]);
    assert_eq!((outcomes(&results), ended, calls.len()), (vec![Outcome::Done; 3], None, 1));
    assert_eq!(calls[0], THREE);
}

#[test]
fn behind_a_range_that_is_refused_it_goes_on() {
    // The kernel first reports the bytes that it did, and with the next call the reason why it
    // stopped.
    let (results, ended, calls) = asked(&[(0x1000, Outcome::Done), (0, Outcome::Unsupported), (0x1000, Outcome::Done)]);
    assert_eq!((outcomes(&results), ended), (vec![Outcome::Done, Outcome::Unsupported, Outcome::Done], None));
    assert!(!results[1].refused.is_empty());
    assert_eq!((&calls[1][..], &calls[2][..]), (&THREE[1..], &THREE[2..]));
}

/// The layout looks the same by then: the mapping that filled the hole is like the one before.
#[test]
fn a_range_that_had_a_hole_is_hinted_again_even_if_it_looks_the_same() {
    let hole = [(0x1000, Outcome::Done), (0, Outcome::Partial), (0x1000, Outcome::Done)];
    let (results, ended, calls) = asked(&[&hole[..], &[(0x1000, Outcome::Done)]].concat());
    assert_eq!((outcomes(&results), ended), (vec![Outcome::Done; 3], None));
    assert_eq!(calls[3][..], THREE[1..2], "that, and nothing twice");
    let told =
        |results: &[HintResult]| results.iter().map(|result| (result.changed, result.retried)).collect::<Vec<_>>();
    assert_eq!(told(&results), [(false, 0), (true, 1), (false, 0)]);
    // The mapping changes at each attempt.
    let tries = [(0, Outcome::Partial); madvise::RETRIES as usize];
    let (results, _, _) = asked(&[&hole[..], &tries].concat());
    assert_eq!(outcomes(&results), [Outcome::Done, Outcome::Partial, Outcome::Done]);
    assert_eq!(told(&results), [(false, 0), (true, madvise::RETRIES), (false, 0)]);
    assert!(results[1].done.is_empty());
}

#[test]
fn of_what_has_a_hole_the_rest_counts_as_done() {
    let (root, process) = fake_process(&[0x1000..0x9000]);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut kernel =
        Says { answers: [(0, Outcome::Partial), (0x6000, Outcome::Done)].into_iter().collect(), asked: Vec::new() };
    let mut batch = Batch::new(&process, &mut layout, vec![cold(&(0x1000..0x9000))], CHUNK);
    remap(&root, &[0x1000..0x4000, 0x6000..0x9000]);
    while batch.next_call().expect("a layout").is_some() {
        batch.call(&mut kernel).expect("an answer");
    }
    assert_eq!(kernel.asked[1], [0x1000..0x4000, 0x6000..0x9000]);
    let results = batch.end().expect("a layout");
    assert_eq!((results[0].done.bytes(), results[0].changed), (Bytes(0x6000), true));
}

#[test]
fn a_process_that_ends_or_a_right_that_is_missing_ends_it() {
    for why in [Outcome::Gone, Outcome::Denied, Outcome::Interrupted] {
        let (results, ended, _) = asked(&[(0x2000, Outcome::Done), (0, why)]);
        assert_eq!(ended, Some(why));
        assert_eq!(outcomes(&results), [Outcome::Done, Outcome::Done, Outcome::Partial]);
    }
}

/// A batch ends, however odd the kernel's answers are.
#[test]
fn a_kernel_that_does_nothing_and_says_nothing() {
    let hole = [(0, Outcome::Partial); 1 + madvise::RETRIES as usize];
    let (results, ended, _) = asked(&[&[(0, Outcome::Done), (5, Outcome::Done)], &hole[..]].concat());
    assert_eq!((outcomes(&results), ended), (vec![Outcome::Partial; 3], None));
}

#[test]
fn a_refused_mapping_is_not_hinted_again() {
    let mib = 1 << 20;
    let (_root, process) = fake_process(&[0..40 * mib, 40 * mib..41 * mib, 50 * mib..51 * mib]);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut kernel = Says {
        answers: [(0, Outcome::Unsupported), (2 * mib, Outcome::Done)].into_iter().collect(),
        asked: Vec::new(),
    };
    let hint = cold(&(0..51 * mib));
    let results =
        Batch::new(&process, &mut layout, vec![hint.clone()], CHUNK).run(&mut kernel, |_| true).expect("done");
    assert_eq!((results[0].refused.bytes(), results[0].done.bytes()), (Bytes::mib(40), Bytes::mib(2)));
    assert_eq!(results[0].outcome(&hint), Outcome::Partial);
    assert_eq!(kernel.asked[1], [40 * mib..41 * mib, 50 * mib..51 * mib]);
}

#[test]
fn each_hint_has_its_own_advice_and_a_call_has_one() {
    let (_root, process) = fake_process(&THREE);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let advices = [Advice::Cold, Advice::PageOut, Advice::PageOut];
    let hints = THREE.iter().zip(advices).map(|(range, advice)| Hint { range: range.clone(), advice }).collect();
    let mut transcript = Transcript::new(DryRun);
    Batch::new(&process, &mut layout, hints, CHUNK).run(&mut transcript, |_| true).expect("done");
    let lines: Vec<String> = transcript.lines().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["cold 1000-2000", "pageout 3000-4000 5000-6000"]);
}

/// A kernel that does everything, while the process changes its mappings after each call.
struct Moves<'a> {
    root: &'a FakeRoot,
    then: VecDeque<Vec<Range<u64>>>,
    asked: Vec<Vec<Range<u64>>>,
}

impl Actuator for Moves<'_> {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        unreachable!("nothing is written to a file")
    }

    fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        self.asked.push(ranges.to_vec());
        if let Some(mappings) = self.then.pop_front() {
            remap(self.root, &mappings);
        }
        Ok(AdviseResult { bytes: ranges.iter().map(length).sum(), outcome: Outcome::Done })
    }

    fn is_live(&self) -> bool {
        true
    }
}

fn moved(
    first: &[Range<u64>],
    then: Vec<Vec<Range<u64>>>,
    hints: &[Range<u64>],
) -> (Vec<HintResult>, Vec<Vec<Range<u64>>>) {
    let (root, process) = fake_process(first);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut kernel = Moves { root: &root, then: then.into(), asked: Vec::new() };
    let hints = hints.iter().map(cold).collect();
    let results = Batch::new(&process, &mut layout, hints, CHUNK).run(&mut kernel, |_| true).expect("done");
    (results, kernel.asked)
}

#[test]
fn new_mappings_are_hinted_and_unmapped_ranges_do_not_count() {
    let (whole, now) = (0x1000..0x9000, vec![0x2000..0x4000, 0x6000..0x8000]);
    let (results, asked) = moved(&[0x1000..0x5000], vec![now], &[whole.clone(), 0x3000..0x4000]);
    assert_eq!(asked[1], [0x6000..0x8000], "only what is new");
    assert_eq!(results[0].done.as_slice(), [0x2000..0x4000, 0x6000..0x8000]);
    assert!(results[0].changed && !results[1].changed, "told of each range");
    assert_eq!((results[0].retried, results[1].retried), (1, 0));
    assert_eq!((results[0].outcome(&cold(&whole)), results[1].done.bytes()), (Outcome::Partial, Bytes(0x1000)));
    // Memory that was only unmapped needs no new request.
    let (results, asked) = moved(&[0x1000..0x5000], vec![vec![0x1000..0x3000]], &[0x1000..0x5000]);
    assert_eq!((asked.len(), results[0].changed, results[0].retried), (1, true, 0));
}

#[test]
fn a_process_that_never_holds_still_is_left_after_some_tries() {
    let mappings = [vec![0x1000..0x2000], vec![0x3000..0x4000]];
    let then: Vec<_> = mappings.iter().cycle().skip(1).take(10).cloned().collect();
    let (results, asked) = moved(&mappings[0], then, &[0x1000..0x4000]);
    assert_eq!(asked.len(), 1 + madvise::RETRIES as usize);
    assert!(results[0].changed && results[0].done.is_empty());
}

#[test]
fn a_process_that_has_no_memory_any_more_is_gone() {
    let (root, process) = fake_process(&THREE);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut batch = Batch::new(&process, &mut layout, THREE.iter().map(cold).collect(), CHUNK);
    assert_eq!(batch.next_call().expect("more to do"), Some(Bytes(0x3000)));
    root.write("proc/7/maps", "");
    assert_eq!(batch.call(&mut DryRun).expect("an answer"), Bytes(0x3000));
    assert_eq!((batch.next_call().expect("an answer"), batch.ended()), (None, Some(Outcome::Gone)));
}

#[test]
fn a_cancelled_batch_reports_its_work() {
    let (_root, process) = fake_process(&[0..64 << 20]);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let batch = Batch::new(&process, &mut layout, vec![cold(&(0..64 << 20))], CHUNK);
    let mut calls = 0;
    let results = batch.run(&mut DryRun, |bytes| {
        assert_eq!(bytes, CHUNK);
        calls += 1;
        calls <= 3
    });
    let results = results.expect("done");
    assert_eq!((results[0].done.bytes(), results[0].changed), (Bytes(3 * CHUNK.0), false));
}

#[test]
fn a_call_can_take_several_ranges_of_a_chunk_each() {
    let (_root, process) = fake_process(&[0..64 << 20]);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut transcript = Transcript::new(DryRun);
    let mut calls = Vec::new();
    let batch = Batch::new(&process, &mut layout, vec![cold(&(0..10 << 20))], CHUNK).in_calls_of(Bytes::mib(8));
    let results = batch.run(&mut transcript, |bytes| {
        calls.push(bytes);
        true
    });
    assert_eq!(results.expect("done")[0].done.bytes(), Bytes::mib(10));
    assert_eq!(calls, [Bytes::mib(8), Bytes::mib(2)]);
    let lines = transcript.lines().into_iter().map(|(_, line)| line);
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["cold 0-200000 200000-400000 400000-600000 600000-800000", "cold 800000-a00000"]
    );
}

#[test]
fn a_transcript_has_hints_too() {
    let (_root, process) = fake_process(&[0x1000..0x3000]);
    let mut layout = Layout::read(process.dir()).expect("a layout");
    let mut transcript = Transcript::new(DryRun);
    let hint = Hint { range: 0x1000..0x3000, advice: Advice::WillNeed };
    Batch::new(&process, &mut layout, vec![hint], CHUNK).run(&mut transcript, |_| true).expect("done");
    let lines = transcript.lines();
    assert_eq!(lines, [(process.dir().path().to_owned(), "willneed 1000-3000".to_owned())]);
}

/// A kernel that does everything, and records the requests.
#[derive(Default)]
struct Keeps(Vec<Vec<Range<u64>>>);

impl Actuator for Keeps {
    fn write(&mut self, _: &Dir, _: &str, _: &str) -> Result<Outcome> {
        unreachable!("nothing is written to a file")
    }

    fn advise(&mut self, _: &Process, _: Advice, ranges: &[Range<u64>]) -> Result<AdviseResult> {
        self.0.push(ranges.to_vec());
        Ok(AdviseResult { bytes: ranges.iter().map(length).sum(), outcome: Outcome::Done })
    }

    fn is_live(&self) -> bool {
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn calls_cover_what_is_mapped_and_are_no_larger_than_the_kernel_takes(
        steps in proptest::collection::vec((0u64..3, 1u64..3000), 1..1500),
        hints in proptest::collection::vec((0u64..100, 1u64..40_000), 1..20),
        huge_pages in 1u64..4,
    ) {
        const PAGE: u64 = 4096;
        let mut at = 0;
        let mappings: Vec<Range<u64>> = steps.into_iter().map(|(gap, length)| {
            let start = at + gap * PAGE;
            at = start + length * PAGE;
            start..at
        }).collect();
        let mut at = 0;
        let hints: Vec<Hint> = hints.into_iter().map(|(gap, length)| {
            let start = at + gap * PAGE;
            at = start + length * PAGE;
            cold(&(start..at))
        }).collect();
        let (_root, process) = fake_process(&mappings);
        let mut layout = Layout::read(process.dir()).expect("a layout");
        let chunk = huge_pages << 21;
        let mut kernel = Keeps::default();
        let results = Batch::new(&process, &mut layout, hints.clone(), Bytes(chunk)).run(&mut kernel, |_| true).expect("done");
        for call in &kernel.0 {
            prop_assert!((1..=madvise::MOST_RANGES).contains(&call.len()));
            prop_assert!(call.iter().map(length).sum::<Bytes>() <= Bytes(chunk));
            for range in call {
                prop_assert!(range.start % PAGE == 0 && range.end % PAGE == 0);
                prop_assert!(range.start / chunk == (range.end - 1) / chunk, "no chunk's border in it");
                let first = mappings.partition_point(|mapping| mapping.end <= range.start);
                prop_assert!(mappings[first].start <= range.start && range.end <= mappings[first].end, "one mapping");
            }
        }
        let mapped: Ranges = mappings.iter().cloned().collect();
        let mut done = Ranges::new();
        for (hint, result) in hints.iter().zip(&results) {
            prop_assert_eq!(&result.done, &mapped.within(&hint.range));
            done.append(&result.done);
        }
        let given: Bytes = kernel.0.iter().flatten().map(length).sum();
        prop_assert_eq!(given, done.bytes(), "nothing twice");
    }
}

#[test]
fn pids_of_a_group() {
    let root = FakeRoot::new().group("a", &[("cgroup.procs", "5413\n0\n77\nx\n99999999999\n")]);
    let group = open(&root).cgroup().expect("a hierarchy").sub("a").expect("the group");
    assert_eq!(read_pids(&group).expect("readable"), [5413, 77]);
}

/// A process that has ended, or is a zombie, is not taken for one of another pid namespace.
#[test]
fn only_a_process_of_another_pid_namespace_is_elsewhere() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let mut child = Command::new("true").spawn().expect("true starts");
    let process = Process::open(&kernel, child.id()).expect("the child");
    let is_zombie = |_: &u32| Process::open(&kernel, child.id()).is_ok_and(|now| now.stat().is_zombie());
    let _ = (0..500).inspect(|_| std::thread::sleep(std::time::Duration::from_millis(10))).find(is_zombie);
    assert!(process.exists() && !process.is_in_other_pid_namespace(), "a zombie");
    child.wait().expect("ended");
    assert!(!process.exists() && !process.is_in_other_pid_namespace());
    // The fake /proc shows a process 7, which is not the process 7 of this pid namespace.
    let (_root, process) = fake_process(&THREE);
    assert!(process.is_in_other_pid_namespace());
}

#[test]
fn a_real_child() {
    let kernel = Kernel::open(Path::new("/")).expect("/proc and /sys");
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep starts");
    let process = Process::open(&kernel, child.id()).expect("the child");
    let heap = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let layout = Layout::read(process.dir()).ok()?;
        let heap = layout.mappings().iter().find(|mapping| mapping.backing == Backing::Anonymous)?;
        Some(heap.range.clone())
    });
    let heap = heap.expect("anonymous memory");
    let page = kernel.page().bytes().0;
    let mut layout = Layout::read(process.dir()).expect("a layout");
    // A range that is mapped, one that is not, and the first one again.
    let hints: Vec<Hint> = [heap.clone(), 0..page, heap.clone()]
        .map(|range| Hint { range, advice: Advice::WillNeed })
        .into_iter()
        .collect();
    let mut batch = Batch::new(&process, &mut layout, hints.clone(), CHUNK);
    while batch.next_call().expect("a layout").is_some() {
        batch.call(&mut Live).expect("an answer");
    }
    match batch.ended() {
        None => {
            let results = batch.end().expect("a layout");
            let outcomes: Vec<_> = results.iter().zip(&hints).map(|(result, hint)| result.outcome(hint)).collect();
            assert_eq!(outcomes, [Outcome::Done, Outcome::Partial, Outcome::Done]);
            assert_eq!(results[0].done.as_slice(), std::slice::from_ref(&heap));
        }
        Some(Outcome::Denied) => eprintln!("not checked: no CAP_SYS_NICE here"),
        Some(outcome) => panic!("{outcome:?}"),
    }
    let mut late = Layout::read(process.dir()).expect("a layout");
    child.kill().expect("killed");
    child.wait().expect("ended");
    let mut batch = Batch::new(&process, &mut late, hints, CHUNK);
    assert!(batch.next_call().expect("more to do").is_some());
    assert_eq!(batch.call(&mut Live).expect("an answer"), Bytes::ZERO);
    assert!(matches!(batch.ended(), Some(Outcome::Gone | Outcome::Denied)), "{:?}", batch.ended());
}
