//! A monitor of DAMON: the order of its writes, and its reaction to unexpected states.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omr_actuate::damon::{Monitor, Refusal, RegionSample, Stamp, Target, remove_leftover};
use omr_actuate::{Actuator, Advice, AdviseResult, Outcome};
use omr_kernel::damon::Damon;
use omr_kernel::process::Process;
use omr_kernel::{Dir, Kernel, Result};
use omr_testkit::FakeRoot;

use crate::open;

const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";
const STAMP: Stamp = Stamp(4_711_000);
const UPDATE: &str = "0/contexts/0/monitoring_attrs/intervals/update_us";

/// A fake sysfs: a write makes its file, as the kernel does, and may fail a given number of times.
#[derive(Clone, Default)]
struct Sysfs {
    lines: Arc<Mutex<Vec<String>>>,
    fails: Option<(&'static str, Outcome, usize)>,
}

const ALWAYS: usize = usize::MAX;

impl Sysfs {
    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("lines").clone()
    }
}

impl Actuator for Sysfs {
    fn write(&mut self, dir: &Dir, name: &str, data: &str) -> Result<Outcome> {
        let line = format!("{name} {data}");
        self.lines.lock().expect("lines").push(line.clone());
        if let Some((start, outcome, times)) = self.fails
            && line.starts_with(start)
            && self.lines().iter().filter(|line| line.starts_with(start)).count() <= times
        {
            return Ok(outcome);
        }
        // A command does not change the text of `state`.
        if !data.starts_with("update_") {
            let path: PathBuf = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, format!("{data}\n")).expect("a file");
        }
        Ok(Outcome::Done)
    }

    fn advise(&mut self, _: &Process, _: Advice, _: &[Range<u64>]) -> Result<AdviseResult> {
        unreachable!("a monitor gives no hints")
    }

    fn is_live(&self) -> bool {
        true
    }
}

fn machine() -> FakeRoot {
    FakeRoot::new().sys("kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n")
}

fn targets() -> Vec<Target> {
    // Both processes have the same addresses, as after fork(2).
    vec![
        Target { pid: 7, regions: vec![0x1000..0x5000, 0x5000..0x9000] },
        Target { pid: 8, regions: vec![0x1000..0x5000] },
    ]
}

fn start(kernel: &Kernel, sysfs: &Sysfs) -> Result<Result<Monitor, Refusal>> {
    Monitor::start(kernel, Box::new(sysfs.clone()), STAMP, Duration::from_millis(200), targets())
}

#[test]
fn a_monitor_is_set_up_in_order_and_taken_down_again() {
    let root = machine();
    let sysfs = Sysfs::default();
    let monitor = start(&open(&root), &sysfs).expect("written").expect("free");
    let context = "0/contexts/0";
    let expected = [
        "nr_kdamonds 1".to_owned(),
        "0/contexts/nr_contexts 1".to_owned(),
        format!("{UPDATE} 4711000"),
        format!("{context}/operations fvaddr"),
        format!("{context}/monitoring_attrs/intervals/sample_us 200000"),
        format!("{context}/monitoring_attrs/intervals/aggr_us 200000"),
        // Three regions: more than half of five, so none is split.
        format!("{context}/monitoring_attrs/nr_regions/min 5"),
        format!("{context}/monitoring_attrs/nr_regions/max 5"),
        format!("{context}/targets/nr_targets 2"),
        format!("{context}/targets/0/pid_target 7"),
        format!("{context}/targets/0/regions/nr_regions 2"),
        format!("{context}/targets/0/regions/0/start 4096"),
        format!("{context}/targets/0/regions/0/end 20480"),
        format!("{context}/targets/0/regions/1/start 20480"),
        format!("{context}/targets/0/regions/1/end 36864"),
        format!("{context}/targets/1/pid_target 8"),
        format!("{context}/targets/1/regions/nr_regions 1"),
        format!("{context}/targets/1/regions/0/start 4096"),
        format!("{context}/targets/1/regions/0/end 20480"),
        format!("{context}/schemes/nr_schemes 1"),
        format!("{context}/schemes/0/action stat"),
        format!("{context}/schemes/0/access_pattern/sz/max 18446744073709551615"),
        format!("{context}/schemes/0/access_pattern/nr_accesses/max 4294967295"),
        format!("{context}/schemes/0/access_pattern/age/max 4294967295"),
        "0/state on".to_owned(),
    ];
    assert_eq!(sysfs.lines(), expected);
    drop(monitor);
    assert_eq!(sysfs.lines()[expected.len()..], ["0/state off", "nr_kdamonds 0"]);
    assert_eq!(Damon::read(&open(&root)), Damon::Free);
}

#[test]
fn the_set_up_of_another_program_is_not_changed() {
    for (text, state) in [("1\n", Damon::InUse(1)), ("2\n", Damon::InUse(2)), ("soon\n", Damon::Unknown)] {
        let root = machine();
        root.write(format!("{KDAMONDS}/nr_kdamonds"), text);
        let sysfs = Sysfs::default();
        let refused = start(&open(&root), &sysfs).expect("read").err();
        assert_eq!((refused, sysfs.lines()), (Some(Refusal::State(state)), vec![]));
    }
    // Another program was quicker.
    let root = machine();
    let sysfs = Sysfs { fails: Some(("nr_kdamonds 1", Outcome::Partial, ALWAYS)), ..Sysfs::default() };
    assert_eq!(start(&open(&root), &sysfs).expect("read").err(), Some(Refusal::State(Damon::InUse(1))));
    assert!(sysfs.lines().iter().all(|line| line == "nr_kdamonds 1"));
    // Another program has replaced the monitor while it ran.
    let sysfs = Sysfs::default();
    let mut monitor = start(&open(&root), &sysfs).expect("written").expect("free");
    root.write(format!("{KDAMONDS}/0/contexts/0/schemes/0/stats/sz_tried"), "1966080\n");
    assert_eq!(monitor.samples().expect("a number"), Some(40));
    let before = sysfs.lines().len();
    root.write(format!("{KDAMONDS}/{UPDATE}"), "60000000\n");
    assert_eq!((monitor.samples().expect("nothing"), monitor.read(|_| true).expect("nothing")), (None, None));
    assert_eq!(sysfs.lines().len(), before, "another's is not asked for anything");
    drop(monitor);
    assert_eq!(sysfs.lines().len(), before);
}

#[test]
fn a_short_conflict_is_waited_for() {
    for busy in
        ["nr_kdamonds 1", "0/contexts/nr_contexts 1", "0/state on", "0/state update_schemes_stats", "0/state off"]
    {
        let root = machine();
        root.write(format!("{KDAMONDS}/0/contexts/0/schemes/0/stats/sz_tried"), "1966080\n");
        let sysfs = Sysfs { fails: Some((busy, Outcome::Partial, 2)), ..Sysfs::default() };
        let mut monitor = start(&open(&root), &sysfs).expect("written").expect("free");
        assert_eq!(monitor.samples().expect("a number"), Some(40), "{busy}");
        drop(monitor);
        assert_eq!(sysfs.lines().iter().filter(|line| *line == busy).count(), 3);
        assert_eq!(Damon::read(&open(&root)), Damon::Free);
    }
}

#[test]
fn a_failed_set_up_is_removed_at_once() {
    for (fails, outcome, refusal) in [
        ("0/contexts/0/operations", Outcome::Unsupported, Refusal::NoRanges),
        ("0/contexts/0/targets/1/pid_target", Outcome::Denied, Refusal::State(Damon::Denied)),
        ("0/state on", Outcome::Partial, Refusal::Exclusive),
        ("0/state on", Outcome::Unsupported, Refusal::Refused),
    ] {
        let root = machine();
        let sysfs = Sysfs { fails: Some((fails, outcome, ALWAYS)), ..Sysfs::default() };
        // The kernel makes the file before the monitor is switched on.
        root.write(format!("{KDAMONDS}/0/state"), "off\n");
        assert_eq!(start(&open(&root), &sysfs).expect("read").err(), Some(refusal), "{fails}");
        let lines = sysfs.lines();
        assert!(lines[lines.len() - 2].starts_with(fails), "{lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("nr_kdamonds 0"));
    }
    assert_eq!(
        start(&open(&FakeRoot::new()), &Sysfs::default()).expect("read").err(),
        Some(Refusal::State(Damon::NotBuilt))
    );
}

#[test]
fn the_leftover_of_a_killed_run_is_recognised_by_its_stamp() {
    for (kdamonds, contexts, stamp, state, is_ours) in [
        ("1", "1", "4711000", "on", true),
        ("1", "1", "4711000", "off", true),
        // The run was killed before it wrote the stamp.
        ("1", "0", "60000000", "off", true),
        ("1", "1", "60000000", "on", false),
        ("1", "2", "4711000", "on", false),
        ("2", "1", "4711000", "on", false),
    ] {
        let root = machine();
        for (name, text) in
            [("nr_kdamonds", kdamonds), ("0/contexts/nr_contexts", contexts), (UPDATE, stamp), ("0/state", state)]
        {
            root.write(format!("{KDAMONDS}/{name}"), format!("{text}\n"));
        }
        let mut sysfs = Sysfs::default();
        assert_eq!(remove_leftover(&open(&root), &mut sysfs, STAMP).expect("read"), is_ours, "{stamp} {contexts}");
        let expected: &[&str] = match (is_ours, state) {
            (false, _) => &[],
            (true, "on") => &["0/state off", "nr_kdamonds 0"],
            (true, _) => &["nr_kdamonds 0"],
        };
        assert_eq!(sysfs.lines(), expected);
    }
    assert!(remove_leftover(&open(&machine()), &mut Sysfs::default(), STAMP).expect("read"), "nothing is left");
}

#[test]
fn regions_are_known_by_their_order() {
    let root = machine();
    let sysfs = Sysfs::default();
    let mut monitor = start(&open(&root), &sysfs).expect("written").expect("free");
    let scheme = format!("{KDAMONDS}/0/contexts/0/schemes/0");
    let list = |found: &[(Range<u64>, u64, u64)]| {
        for (number, (region, accesses, age)) in found.iter().enumerate() {
            for (name, value) in
                [("start", region.start), ("end", region.end), ("nr_accesses", *accesses), ("age", *age)]
            {
                root.write(format!("{scheme}/tried_regions/{number}/{name}"), format!("{value}\n"));
            }
        }
    };
    root.write(format!("{scheme}/stats/sz_tried"), "1966080\n");
    assert_eq!(monitor.samples().expect("a number"), Some(40));
    root.write(format!("{scheme}/tried_regions/total_bytes"), "0\n");
    assert_eq!(monitor.read(|_| true).expect("nothing"), None, "it ended before it looked again");
    list(&[(0x1000..0x5000, 0, 40), (0x5000..0x9000, 1, 3), (0x1000..0x5000, 0, 2)]);
    let seen = |used, age| RegionSample { used, age };
    assert_eq!(
        monitor.read(|_| true).expect("regions"),
        Some(vec![vec![seen(false, 40), seen(true, 3)], vec![seen(false, 2)]])
    );
    assert_eq!(monitor.read(|place| place == 1).expect("regions"), Some(vec![vec![], vec![seen(false, 2)]]));
    // The control: regions that differ from the targets are an error.
    for other in [0x4000..0x9000, 0x5000..0xa000, 0x5000..0x5000] {
        list(&[(0x1000..0x5000, 0, 40), (other.clone(), 1, 3), (0x1000..0x5000, 0, 2)]);
        let err = monitor.read(|_| true).expect_err("another region").to_string();
        let found =
            format!("tried_regions/1: {:#x} to {:#x}, where 0x5000 to 0x9000 is expected", other.start, other.end);
        assert!(err.contains(&found), "{err}");
    }
    // Linux 7.3 splits long regions. One is unused for as long as all of its parts.
    list(&[
        (0x1000..0x3000, 0, 40),
        (0x3000..0x5000, 0, 7),
        (0x5000..0x6000, 0, 40),
        (0x6000..0x8000, 1, 3),
        (0x8000..0x9000, 0, 40),
        (0x1000..0x5000, 0, 2),
    ]);
    assert_eq!(
        monitor.read(|_| true).expect("regions"),
        Some(vec![vec![seen(false, 7), seen(true, 3)], vec![seen(false, 2)]])
    );
    assert_eq!(monitor.read(|place| place == 1).expect("regions"), Some(vec![vec![], vec![seen(false, 2)]]));
}

#[test]
fn the_limit_of_regions_is_no_larger_than_the_number_of_parts() {
    let page = 0x1000;
    for (lengths, limit) in [
        // The kernel accepts no fewer.
        (vec![1], 3),
        (vec![16, 16], 3),
        // With 7, a part has at most 23 pages, and there are 8.
        (vec![40, 40, 40, 40], 7),
        // With 7, a part has at most 3 pages, and there are 6.
        (vec![3, 3, 3, 9], 6),
        // Pages cannot be split.
        (vec![1; 5], 5),
    ] {
        let mut at = 0;
        let region = |pages: &u64| {
            at += 2 * pages * page;
            at - pages * page..at
        };
        let regions = lengths.iter().map(region).collect();
        let root = machine();
        let sysfs = Sysfs::default();
        let targets = vec![Target { pid: 7, regions }];
        let monitor = Monitor::start(&open(&root), Box::new(sysfs.clone()), STAMP, Duration::from_millis(200), targets);
        monitor.expect("written").expect("free");
        let line = format!("0/contexts/0/monitoring_attrs/nr_regions/max {limit}");
        assert!(sysfs.lines().contains(&line), "{lengths:?}: {:?}", sysfs.lines());
    }
}
