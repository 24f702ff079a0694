use omr_actuate::DryRun;
use omr_testkit::{FakeRoot, Release};

use super::*;
use crate::stand_in::{
    Area, GROUPS, Hints, PAGE, StoppedClocks, anon, set_line, set_mappings, set_process, set_start, stop_clocks,
};

/// A machine with swap on a disk that is not busy, and three groups: a foreground group, one
/// without a rule, and an explicit background group.
fn machine() -> FakeRoot {
    let root = FakeRoot::in_memory(Release::V6_12)
        .sys("class/block/vda/inflight", "       0        0\n")
        .group("", &[("cgroup.procs", "")]);
    ["fg", "other", "bg"].into_iter().fold(root, |root, group| {
        root.group(group, &[("cgroup.procs", ""), ("cpu.stat", "usage_usec 0\n"), ("memory.current", "0\n")])
    })
}

fn loaded() -> Loaded {
    let rules = "[[group]]\nmatch = 'fg'\nclass = 'foreground'\n[[group]]\nmatch = 'bg'\nclass = 'background'\n";
    let mut loaded = Loaded::built_in();
    loaded.groups = omr_config::rules(rules);
    loaded
}

/// No limit.
fn unbounded() -> Bounds {
    Bounds { rate: None, floor: Bytes::ZERO, patience: None }
}

/// The groups with processes, except the explicit background groups, or those below `top`.
fn found(root: &FakeRoot, top: Option<&Path>) -> Vec<Subject> {
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let (tree, _) = omr_machine::inventory::read_groups(&kernel, root.path(), &loaded(), false).expect("groups");
    subjects(&kernel, &tree, top).expect("processes")
}

fn run_with(root: &FakeRoot, bounds: Bounds, stop: &Flag, actuator: &mut dyn Actuator) -> Result<Report> {
    let kernel = Kernel::open(root.path())?;
    let loaded = loaded();
    let (tree, _) = omr_machine::inventory::read_groups(&kernel, root.path(), &loaded, false)?;
    let subjects = subjects(&kernel, &tree, None)?;
    let job = Job {
        kernel: &kernel,
        root: root.path(),
        loaded: &loaded,
        tree: &tree,
        subjects: &subjects,
        only: None,
        bounds,
    };
    job.run(actuator, stop, &mut |_| {})
}

/// Runs on a kernel that does all hints. Returns the report, and each call: the process, the first
/// page and the number of pages.
fn warmed(root: &FakeRoot, bounds: Bounds, stop: &Flag) -> (Report, Vec<(u32, u64, u64)>) {
    let mut calls = Vec::new();
    let mut kernel_side = Hints(|pid, ranges: &[std::ops::Range<u64>]| {
        calls.extend(ranges.iter().map(|range| (pid, range.start / PAGE, (range.end - range.start) / PAGE)));
        Outcome::Done
    });
    let report = run_with(root, bounds, stop, &mut kernel_side).expect("a report");
    (report, calls)
}

/// Records the memory that the processes of all groups have now.
fn keep_record(root: &FakeRoot) -> Recorded {
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let (record, figures) = record(&kernel, &found(root, Some(Path::new(""))), &Flag::default()).expect("a record");
    let size = write(root.path(), &record).expect("written");
    assert_eq!(size.0, root.read("var/lib/omr-root/warm").len() as u64);
    figures
}

fn file(at: u64, pages: &str) -> Area<'_> {
    Area { file: 7, ..anon(at, pages) }
}

fn idle(at: u64, pages: &str) -> Area<'_> {
    Area { used: false, ..anon(at, pages) }
}

fn pages(count: u64) -> Bytes {
    Bytes(count * PAGE)
}

#[test]
fn groups_come_in_the_order_of_their_class_and_only_named_ones_from_the_background() {
    let root = machine();
    for (pid, group) in [(1, "bg"), (2, "other"), (3, "fg"), (std::process::id(), "fg")] {
        set_process(&root, pid, group, &[]);
    }
    let told = |top: Option<&str>| -> Vec<_> {
        let all = found(&root, top.map(Path::new));
        all.into_iter().map(|subject| (subject.group, subject.class, subject.rank, subject.pids)).collect()
    };
    let of = |group: &str, class, rank, pid| (PathBuf::from(group), class, rank, vec![pid]);
    let (first, second) = (of("fg", Class::Foreground, 0, 3), of("other", Class::Background, 2, 2));
    assert_eq!(told(None), [first.clone(), second.clone()], "without the process that runs this");
    assert_eq!(told(Some("")), [first, second, of("bg", Class::Background, 3, 1)]);
    assert_eq!(told(Some("bg")), [of("bg", Class::Background, 3, 1)]);
    root.write(format!("{GROUPS}/fg/cgroup.procs"), "");
    assert_eq!(told(Some("fg")), [], "a group without processes");
}

#[test]
fn recorded_memory_comes_back_by_group_and_use_and_then_the_rest_of_swap() {
    let clocks = stop_clocks();
    let root = machine();
    let before = [anon(0x10_0000, "ppp-"), idle(0x20_0000, "pp"), file(0x30_0000, "ppp")];
    set_process(&root, 3, "fg", &before);
    set_process(&root, 2, "other", &[anon(0x10_0000, "p")]);
    let figures = keep_record(&root);
    assert_eq!((figures.groups, figures.processes, figures.ranges), (2, 2, 4));
    assert_eq!((figures.used, figures.rest), (pages(3 + 3 + 1), pages(2)));
    assert_eq!((figures.denied, figures.unread, figures.cut), (0, 0, false));

    // All of it left, and the file's pages are not in the page table. A page more is in swap.
    set_mappings(
        &root,
        3,
        &[anon(0x10_0000, "sss-"), idle(0x20_0000, "ss"), file(0x30_0000, "-p-"), anon(0x40_0000, "s")],
    );
    set_mappings(&root, 2, &[anon(0x10_0000, "s")]);
    set_line(&root, "proc/vmstat", "pswpin", "100");
    let (mut calls, mut sums) = (Vec::new(), Vec::new());
    let mut kernel_side = Hints(|pid, ranges: &[std::ops::Range<u64>]| {
        clocks.pass(Duration::from_secs(4));
        set_line(&root, "proc/vmstat", "pswpin", "107");
        calls.extend(ranges.iter().map(|range| (pid, range.start / PAGE, (range.end - range.start) / PAGE)));
        Outcome::Done
    });
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let loaded = loaded();
    let (tree, _) = omr_machine::inventory::read_groups(&kernel, root.path(), &loaded, false).expect("groups");
    let subjects = found(&root, None);
    let job = Job {
        kernel: &kernel,
        root: root.path(),
        loaded: &loaded,
        tree: &tree,
        subjects: &subjects,
        only: None,
        bounds: unbounded(),
    };
    let report = job.run(&mut kernel_side, &Flag::default(), &mut |sum| sums.push(sum.0 / PAGE)).expect("a report");
    let expected = [(3, 0x100, 3), (3, 0x300, 1), (3, 0x302, 1), (3, 0x200, 2), (3, 0x400, 1), (2, 0x100, 1)];
    assert_eq!(calls, expected, "the used part, the other recorded part, the rest, and then the next group");
    assert_eq!(sums, [3, 5, 7, 8, 9], "what was asked for so far");
    assert_eq!((report.record, report.end, report.calls, report.gone), (Use::Used, End::Complete, 5, 0));
    assert_eq!((report.swap, report.file, report.swapped_in), (pages(7), pages(2), pages(7)));
    assert_eq!((report.unmapped, report.skipped, report.uncovered), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
    let groups: Vec<_> =
        report.groups.iter().map(|of| (of.group.as_str(), of.processes, of.swap, of.file, of.full)).collect();
    assert_eq!(groups, [("fg", 1, pages(6), pages(2), false), ("other", 1, pages(1), Bytes::ZERO, false)]);
    assert_eq!((report.wall, report.cpu), (Duration::from_secs(20), Duration::from_secs(5)));
    assert_eq!(report.last_call_end_ns, clock::read_monotonic().0);
}

#[test]
fn only_the_memory_of_a_given_record_comes_back() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "pp")]);
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let subjects = found(&root, None);
    let (given, _) = record(&kernel, &subjects, &Flag::default()).expect("a record");
    // The record on disk has other pages.
    set_mappings(&root, 3, &[anon(0x10_0000, "ssp")]);
    keep_record(&root);
    set_mappings(&root, 3, &[anon(0x10_0000, "ssss")]);
    let (loaded, mut calls) = (loaded(), Vec::new());
    let (tree, _) = omr_machine::inventory::read_groups(&kernel, root.path(), &loaded, false).expect("groups");
    let job = Job {
        kernel: &kernel,
        root: root.path(),
        loaded: &loaded,
        tree: &tree,
        subjects: &subjects,
        only: Some(&given),
        bounds: unbounded(),
    };
    let mut kernel_side = Hints(|_, ranges: &[std::ops::Range<u64>]| {
        calls.extend_from_slice(ranges);
        Outcome::Done
    });
    let report = job.run(&mut kernel_side, &Flag::default(), &mut |_| {}).expect("a report");
    assert_eq!(report.swap, pages(2));
    assert_eq!(calls, [0x10_0000..0x10_2000]);
}

#[test]
fn recorded_memory_that_is_unmapped_or_of_another_process_does_not_come_back() {
    let root = machine();
    for pid in [3, 4, 5] {
        set_process(&root, pid, "fg", &[anon(0x10_0000, "ppp"), file(0x30_0000, "pp")]);
    }
    keep_record(&root);
    set_mappings(&root, 3, &[anon(0x10_0000, "ss"), Area { at: 0x30_0000, pages: "ss", ..file(0, "") }]);
    // Another process has this pid, and no memory in swap. The last one has ended.
    set_start(&root, 4, 41);
    set_mappings(&root, 4, &[anon(0x10_0000, "---")]);
    root.remove("proc/5");
    root.write(format!("{GROUPS}/fg/cgroup.procs"), "3\n4\n");
    let (report, calls) = warmed(&root, unbounded(), &Flag::default());
    assert_eq!(report.unmapped, pages(1), "of the first process");
    assert_eq!((report.swap, report.file), (pages(2), pages(2)), "the file is read, not the swap");
    assert_eq!(report.uncovered, pages(2), "changed pages of a file are in swap");
    assert!(calls.iter().all(|(pid, ..)| *pid == 3), "{calls:?}");
    assert_eq!(report.gone, 2);
}

#[test]
fn memory_of_the_kernel_itself_is_not_asked_for() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "s"), anon(0x20_0000, "ss")]);
    let maps = root.read("proc/3/maps").replacen("00:00 0\n", "00:00 0 [vdso]\n", 1);
    root.write("proc/3/maps", &maps);
    let smaps = root.read("proc/3/smaps").replacen("00:00 0\n", "00:00 0 [vdso]\n", 1);
    root.write("proc/3/smaps", &smaps);
    assert_eq!(warmed(&root, unbounded(), &Flag::default()).1, [(3, 0x200, 2)]);
}

#[test]
fn a_record_of_another_boot_is_not_used() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "p"), file(0x30_0000, "pp")]);
    keep_record(&root);
    set_mappings(&root, 3, &[anon(0x10_0000, "s"), file(0x30_0000, "--")]);
    assert_eq!(warmed(&root, unbounded(), &Flag::default()).0.record, Use::Used);
    root.write("proc/sys/kernel/random/boot_id", "another\n");
    let (report, calls) = warmed(&root, unbounded(), &Flag::default());
    assert_eq!((report.record, report.swap, report.file), (Use::OfAnotherBoot, pages(1), Bytes::ZERO));
    assert_eq!(calls, [(3, 0x100, 1)]);
    root.remove("var/lib/omr-root/warm");
    assert_eq!(warmed(&root, unbounded(), &Flag::default()).0.record, Use::None);
}

#[test]
fn a_record_has_an_age_in_this_boot() {
    let clocks = stop_clocks();
    let root = machine();
    let age = || record_age(&Kernel::open(root.path()).expect("a kernel"), root.path());
    assert_eq!(age(), None, "there is none");
    set_process(&root, 3, "fg", &[anon(0x10_0000, "p")]);
    keep_record(&root);
    clocks.pass(Duration::from_secs(300));
    let passed = age().expect("a record").as_secs();
    assert!((300..310).contains(&passed), "{passed}");
    root.write("proc/sys/kernel/random/boot_id", "another\n");
    assert_eq!(age(), None);
}

#[test]
fn without_both_rights_nothing_is_asked_for() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "s")]);
    let rights = |of: &[Capability]| of.iter().fold(0u64, |mask, right| mask | 1 << *right as u8);
    let (nice, read) = (Capability::SysNice, Capability::SysPtrace);
    for (mask, may) in [(rights(&[nice, read]), true), (rights(&[nice]), false), (rights(&[read]), false), (0, false)] {
        root.write("proc/self/status", format!("CapEff:\t{mask:016x}\n"));
        let kernel = Kernel::open(root.path()).expect("a kernel");
        assert_eq!(is_possible(&kernel, root.path()), may, "{mask:x}");
        let mut none = Hints(|_, _: &[std::ops::Range<u64>]| Outcome::Done);
        let ran = run_with(&root, unbounded(), &Flag::default(), &mut none);
        assert_eq!(ran.map_err(|err| err.to_string()).err(), (!may).then(|| End::Denied.words().to_owned()));
        // A dry run needs no rights.
        assert_eq!(run_with(&root, unbounded(), &Flag::default(), &mut DryRun).expect("a report").swap, pages(1));
    }
    // The kernel checks unknown rights itself, but nobody relies on them.
    root.remove("proc/self/status");
    assert_eq!(warmed(&root, unbounded(), &Flag::default()).0.swap, pages(1));
    assert!(!is_possible(&Kernel::open(root.path()).expect("a kernel"), root.path()));
}

#[test]
fn a_run_holds_the_lock_and_a_dry_run_does_not() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "s")]);
    let path = paths::warm_lock(root.path());
    let held = lock(&path).expect("free");
    let mut none = Hints(|_, _: &[std::ops::Range<u64>]| Outcome::Done);
    let err = run_with(&root, unbounded(), &Flag::default(), &mut none).expect_err("held");
    assert!(err.to_string().contains("running already"), "{err}");
    run_with(&root, unbounded(), &Flag::default(), &mut DryRun).expect("a report");
    drop(held);
    let mut is_locked = false;
    let mut kernel_side = Hints(|_, _: &[std::ops::Range<u64>]| {
        is_locked = lock(&path).is_err();
        Outcome::Done
    });
    run_with(&root, unbounded(), &Flag::default(), &mut kernel_side).expect("a report");
    assert!(is_locked);
    drop(lock(&path).expect("free again"));
}

#[test]
fn a_run_ends_when_the_flag_is_set_or_the_kernel_refuses() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "s"), anon(0x80_0000, "s")]);
    set_process(&root, 4, "fg", &[anon(0x10_0000, "s")]);
    let told = |stop: &Flag, mut answer: Box<dyn FnMut(u32) -> Outcome + Send>| {
        let mut calls = 0;
        let mut kernel_side = Hints(|pid, _: &[std::ops::Range<u64>]| {
            calls += 1;
            answer(pid)
        });
        let report = run_with(&root, unbounded(), stop, &mut kernel_side).expect("a report");
        (report.end, calls, report.swap, report.skipped)
    };
    let set = Flag::default();
    set.set();
    assert_eq!(told(&set, Box::new(|_| Outcome::Done)), (End::Stopped, 0, Bytes::ZERO, Bytes::ZERO));
    let late = Flag::with_timeout(Some(Duration::ZERO));
    assert_eq!(told(&late, Box::new(|_| Outcome::Done)), (End::Timeout, 0, Bytes::ZERO, Bytes::ZERO));
    let go = Flag::default();
    assert_eq!(told(&go, Box::new(|_| Outcome::Denied)), (End::Denied, 1, Bytes::ZERO, Bytes::ZERO));
    // A process that has ended, or whose memory is refused, does not end the run.
    let of_first = |outcome| move |pid| if pid == 3 { outcome } else { Outcome::Done };
    assert_eq!(told(&go, Box::new(of_first(Outcome::Gone))), (End::Complete, 2, pages(1), Bytes::ZERO));
    assert_eq!(told(&go, Box::new(of_first(Outcome::Unsupported))), (End::Complete, 3, pages(1), pages(2)));
}

#[test]
fn one_process_that_cannot_be_read_does_not_end_the_run() {
    let root = machine();
    for pid in [3, 4] {
        set_process(&root, pid, "fg", &[anon(0x10_0000, "p")]);
    }
    let smaps = root.read("proc/3/smaps");
    root.write("proc/3/smaps", "no smaps\n");
    let figures = keep_record(&root);
    assert_eq!((figures.processes, figures.unread, figures.denied), (1, 1, 0));
    root.write("proc/3/smaps", smaps);
    keep_record(&root);
    for pid in [3, 4] {
        set_mappings(&root, pid, &[anon(0x10_0000, "s")]);
    }
    root.write("proc/3/smaps", "no smaps\n");
    root.remove("proc/3/maps");
    root.write("proc/3/maps/is-a-directory", "");
    let (report, calls) = warmed(&root, unbounded(), &Flag::default());
    assert_eq!((report.unread, report.end), (1, End::Complete), "counted once, and not tried again");
    assert_eq!(calls, [(4, 0x100, 1)]);
}

#[test]
fn a_record_is_cut_when_the_flag_is_set() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "p")]);
    let set = Flag::default();
    set.set();
    let kernel = Kernel::open(root.path()).expect("a kernel");
    let (record, figures) = record(&kernel, &found(&root, None), &set).expect("a record");
    assert!(record.cut && figures.cut && figures.processes == 0 && figures.unread == 0, "{figures:?}");
}

#[test]
fn memory_that_the_machine_keeps_free_is_not_filled() {
    let root = machine();
    for pid in [3, 4] {
        set_process(&root, pid, "fg", &[anon(0x10_0000, "ss")]);
    }
    let bounds = || Bounds { floor: Bytes::mib(64), ..unbounded() };
    let dry = || run_with(&root, bounds(), &Flag::default(), &mut DryRun).expect("a report");
    for (extra, end, fits, dry_end, dry_fits) in [
        (4, End::Headroom, 0, End::Headroom, 0),
        // Both calls fit, as the memory of the first is not used up on this machine. A dry run counts it.
        (8, End::Complete, 4, End::Headroom, 2),
        (16, End::Complete, 4, End::Complete, 4),
    ] {
        set_line(&root, "proc/meminfo", "MemAvailable:", &format!("{} kB", (64 << 10) + extra));
        let (report, calls) = warmed(&root, bounds(), &Flag::default());
        assert_eq!((report.end, report.swap, 2 * calls.len() as u64), (end, pages(fits), fits), "{extra}");
        assert_eq!((dry().end, dry().swap), (dry_end, pages(dry_fits)), "{extra}");
    }
    root.write("proc/meminfo", "MemTotal: 1024 kB\n");
    let mut none = Hints(|_, _: &[std::ops::Range<u64>]| Outcome::Done);
    let err = run_with(&root, bounds(), &Flag::default(), &mut none).expect_err("unknown room is no permission");
    assert!(err.to_string().contains("MemAvailable"), "{err}");
}

#[test]
fn a_group_at_a_limit_gets_nothing_and_others_do() {
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "ss")]);
    set_process(&root, 4, "fg", &[anon(0x10_0000, "s")]);
    set_process(&root, 2, "other", &[anon(0x10_0000, "s")]);
    root.write(format!("{GROUPS}/fg/memory.max"), "8192\n");
    root.write(format!("{GROUPS}/fg/memory.current"), "4096\n");
    let (report, calls) = warmed(&root, unbounded(), &Flag::default());
    assert_eq!((report.end, calls), (End::Headroom, vec![(2, 0x100, 1)]));
    let groups: Vec<_> = report.groups.iter().map(|of| (of.group.as_str(), of.processes, of.full)).collect();
    assert_eq!(groups, [("fg", 0, true), ("other", 1, false)]);
    // Now each call fits by itself.
    root.write(format!("{GROUPS}/fg/memory.current"), "0\n");
    assert_eq!(warmed(&root, unbounded(), &Flag::default()).0.end, End::Complete);
    let dry = run_with(&root, unbounded(), &Flag::default(), &mut DryRun).expect("a report");
    assert_eq!((dry.end, dry.swap), (End::Headroom, pages(2 + 1)), "a dry run counts what it would bring back");
}

#[test]
fn the_room_of_a_group_is_the_least_of_all_limits_above_it() {
    let root =
        machine().group("a/b", &[("memory.current", "100\n"), ("memory.max", "max\n"), ("memory.high", "max\n")]);
    let room = |path: &str| {
        read_room(&Kernel::open(root.path()).expect("a kernel"), Path::new(path), &mut Vec::new()).expect("readable")
    };
    // The group above has no memory controller.
    assert_eq!(room("a/b"), Bytes::MAX);
    root.write(format!("{GROUPS}/a/b/memory.high"), "700\n");
    assert_eq!(room("a/b"), Bytes(600));
    root.write(format!("{GROUPS}/a/b/memory.max"), "300\n");
    assert_eq!(room("a/b"), Bytes(200));
    root.write(format!("{GROUPS}/a/memory.max"), "500\n");
    root.write(format!("{GROUPS}/a/memory.current"), "450\n");
    assert_eq!((room("a/b"), room("a"), room("a/gone")), (Bytes(50), Bytes(50), Bytes::ZERO));
    let opened = read_room(&Kernel::open(root.path()).expect("a kernel"), Path::new("a/../fg"), &mut Vec::new());
    opened.expect_err("no path of a group");
    root.write(format!("{GROUPS}/a/memory.max"), "nonsense\n");
    read_room(&Kernel::open(root.path()).expect("a kernel"), Path::new("a/b"), &mut Vec::new()).expect_err("unknown");
}

#[test]
fn calls_are_as_far_apart_as_the_rate_says() {
    let clocks = stop_clocks();
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "ss"), anon(0x80_0000, "ss")]);
    set_process(&root, 4, "fg", &[anon(0x10_0000, "s")]);
    let mut times = Vec::new();
    let mut kernel_side = Hints(|_, _: &[std::ops::Range<u64>]| {
        times.push(clocks.passed().as_millis());
        Outcome::Done
    });
    let bounds = Bounds { rate: Some("4K/s".parse().expect("a rate")), ..unbounded() };
    run_with(&root, bounds.clone(), &Flag::default(), &mut kernel_side).expect("a report");
    assert_eq!(times, [0, 4000], "two processes: the first asks for 16 KiB");
    let before = clocks.passed();
    run_with(&root, bounds, &Flag::default(), &mut DryRun).expect("a report");
    assert_eq!(clocks.passed(), before, "a dry run does not wait");
}

#[test]
fn a_call_waits_for_the_disk_but_not_forever() {
    let clocks = stop_clocks();
    let root = machine();
    set_process(&root, 3, "fg", &[anon(0x10_0000, "s")]);
    let first_call = |reads: u64| {
        root.write("sys/class/block/vda/inflight", format!("{reads} 0\n"));
        let began = clocks.passed();
        let mut first = Duration::ZERO;
        let mut kernel_side = Hints(|_, _: &[std::ops::Range<u64>]| {
            first = clocks.passed() - began;
            root.write("sys/class/block/vda/inflight", "1 0\n");
            Outcome::Done
        });
        run_with(&root, unbounded(), &Flag::default(), &mut kernel_side).expect("a report");
        (first, clocks.passed() - began - first)
    };
    // After the last call, the run waits until the disk has read all.
    assert_eq!(first_call(8), (Duration::ZERO, QUEUE_TIME));
    assert_eq!(first_call(9), (QUEUE_TIME, QUEUE_TIME));
    root.write("sys/class/block/vda/inflight", "9 0\n");
    let before = clocks.passed();
    run_with(&root, unbounded(), &Flag::default(), &mut DryRun).expect("a report");
    let set = Flag::default();
    set.set();
    warmed(&root, unbounded(), &set);
    assert_eq!(clocks.passed(), before, "neither a dry run nor one that is cancelled waits");
}

/// While the clocks are stopped, the foreground uses a whole CPU from the beginning of `work` to its
/// end.
fn work_during(root: &FakeRoot, clocks: &StoppedClocks, work: std::ops::Range<Duration>) {
    let groups = root.resolve(GROUPS);
    clocks.each_time(move |now| {
        let used = now.clamp(work.start, work.end) - work.start;
        for group in ["", "fg"] {
            let text = format!("usage_usec {}\n", used.as_micros());
            std::fs::write(groups.join(group).join("cpu.stat"), text).expect("written");
        }
    });
}

#[test]
fn a_run_waits_during_foreground_work_and_ends_when_the_work_lasts() {
    // The steady load is measured for 200 ms. The work begins then. The run sees it in its second
    // sample, after two calls of 100 ms.
    let run = |patience: Option<u64>| {
        let clocks = stop_clocks();
        let root = machine();
        for pid in [3, 4, 5] {
            set_process(&root, pid, "fg", &[anon(0x10_0000, "s")]);
        }
        let begin = Duration::from_millis(200);
        work_during(&root, &clocks, begin..begin + Duration::from_secs(2));
        let mut times = Vec::new();
        let mut kernel_side = Hints(|_, _: &[std::ops::Range<u64>]| {
            times.push(clocks.passed().as_millis());
            clocks.pass(Duration::from_millis(100));
            Outcome::Done
        });
        let bounds = Bounds { patience: patience.map(Duration::from_millis), ..unbounded() };
        let report = run_with(&root, bounds, &Flag::default(), &mut kernel_side).expect("a report");
        (report.end, report.reason.is_some(), times)
    };
    assert_eq!(run(None), (End::Complete, false, vec![0, 100, 200]), "the control: it ignores work");
    assert_eq!(run(Some(1000)), (End::Busy, true, vec![200, 300]));
    let (end, has_reason, times) = run(Some(10_000));
    assert_eq!((end, has_reason, times.len()), (End::Complete, false, 3));
    assert!((2700..2800).contains(&times[2]), "half a second after the end of the work: {times:?}");
}
