//! Crash points: what changes state is killed before its first change, before its second one, and so
//! on to the last; and so on, each call that changes a file fails once, or the disk is full from then
//! on. Whatever comes next must find everything as it was, or as it was to become, and leave nothing
//! behind.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use omr_base::storage::write_atomically;
use omr_history::ledger::{self, Entry, Ledger};
use omr_history::{Sample, Store};
use omr_testkit::FakeRoot;
use omr_testkit::trace::{CAN_REPLACE, Ended, Fault, SwapCall, Trace};
use omr_units::{Bytes, GroupId};

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, SOON, daemon_command, ledger, wait_until};
use crate::common::{GROUPS, STEADY, add_group, command, machine, omr, set_line, swaps, text, write_limit_note};

/// The errors at each change, one run for each: of the disk, a signal, a disk that is full from then
/// on, and one that has room again for the next file.
const ERRORS: [fn(usize) -> Fault; 4] = [
    |at| Fault::Fail { at, errno: libc::EIO },
    |at| Fault::Fail { at, errno: libc::EINTR },
    |at| Fault::Full { at, changes: usize::MAX },
    |at| Fault::Full { at, changes: 2 },
];

/// One run.
struct Run<'a> {
    root: &'a FakeRoot,
    fault: Fault,
    ended: Ended,
}

impl Run<'_> {
    fn is_killed(&self) -> bool {
        self.ended.code().is_none()
    }
}

/// Runs a command with a fault. It is not killed by anything else, and it says why it failed. The
/// number of changes is the first result; the second is true if the fault happened.
fn run(root: &FakeRoot, mut command: Command, fault: Fault, children_live: bool) -> (Ended, bool) {
    let (mut said, stderr) = io::pipe().expect("a pipe");
    command.stdout(Stdio::null()).stderr(stderr);
    let swap = |call| switch(root, &call);
    let trace = Trace { fault, children_live, swap: Some(&swap) };
    let ended = trace.run(&mut command, |_| {});
    drop(command);
    let mut words = String::new();
    said.read_to_string(&mut words).expect("what it said");
    assert!(!words.contains("panicked"), "{fault:?}: {words}");
    let happened = match fault {
        Fault::None => false,
        Fault::Kill(_) => ended.code().is_none(),
        Fault::Fail { at, .. } | Fault::Full { at, .. } => ended.changes > at,
    };
    match ended.code() {
        None => assert!(matches!(fault, Fault::Kill(_)), "{fault:?}: status {:#x}: {words}", ended.status),
        Some(0) => {}
        Some(code) => assert!(words.contains("omr: "), "{fault:?}: exit code {code}: {words}"),
    }
    (ended, happened)
}

/// The most records of some that a fault may cost: each change is one of one record.
fn lost_at_most(fault: Fault) -> usize {
    match fault {
        Fault::None => 0,
        Fault::Kill(_) | Fault::Fail { .. } => 1,
        Fault::Full { changes, .. } => changes,
    }
}

/// Stands in for the kernel's swap: `/proc/swaps` has what is on.
fn switch(root: &FakeRoot, call: &SwapCall) {
    let swaps = root.read("proc/swaps");
    let (SwapCall::Off(path) | SwapCall::On(path, _)) = call;
    let name = Path::new("/dev").join(path.file_name().expect("a name"));
    let name = name.to_str().expect("text");
    let others: String = swaps.lines().filter(|line| !line.starts_with(name)).map(|line| format!("{line}\n")).collect();
    root.write(
        "proc/swaps",
        match call {
            SwapCall::Off(_) => others,
            SwapCall::On(_, flags) => format!("{others}{name} partition 1048576 0 {}\n", flags & 0x7fff),
        },
    );
}

/// Kills it at each of its changes. `set_up` makes a machine and a command; `check` says whether all
/// is well after the crash, or after an end without one. Returns the number of changes.
fn at_each_point(children_live: bool, set_up: impl Fn() -> (FakeRoot, Command), check: impl Fn(&Run<'_>)) -> usize {
    at_each(&|n| Fault::Kill(n), children_live, &set_up, &check)
}

/// Fails each of its changes, with each of the errors. Returns the number of changes.
fn with_each_error(set_up: impl Fn() -> (FakeRoot, Command), check: impl Fn(&Run<'_>)) -> usize {
    if !CAN_REPLACE {
        return usize::MAX;
    }
    let of = |error: fn(usize) -> Fault| at_each(&error, false, &set_up, &check);
    ERRORS.map(of).into_iter().min().expect("errors")
}

fn at_each(
    fault: &dyn Fn(usize) -> Fault,
    children_live: bool,
    set_up: &dyn Fn() -> (FakeRoot, Command),
    check: &dyn Fn(&Run<'_>),
) -> usize {
    for n in 0.. {
        let (root, command) = set_up();
        let (ended, happened) = run(&root, command, fault(n), children_live);
        check(&Run { root: &root, fault: fault(n), ended });
        if !happened {
            return ended.changes;
        }
    }
    unreachable!("a program ends")
}

/// The files that a killed program left half written, in all directories of omr.
fn leftovers(root: &FakeRoot) -> Vec<String> {
    let mut left = Vec::new();
    for dir in
        ["var/lib/omr", "var/lib/omr/limits", "var/lib/omr/history", "var/lib/omr-root", "run/omr", "run/omr-root"]
    {
        let Ok(files) = fs::read_dir(root.resolve(dir)) else { continue };
        let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
        left.extend(names.filter(|name| name.ends_with(".tmp")).map(|name| format!("{dir}/{name}")));
    }
    left
}

fn limited() -> (FakeRoot, Command) {
    let root = machine();
    root.write("etc/omr/omr.toml", STEADY);
    add_group(&root, "app.scope", 4096, 0);
    let command = command(root.path(), &["reclaim", "--backend", "memory.high", "app.scope", "512K"]);
    (root, command)
}

fn high(root: &FakeRoot) -> String {
    root.read(format!("{GROUPS}/app.scope/memory.high"))
}

fn restore_limits(root: &FakeRoot) {
    assert!(daemon_command(root.path()).arg("--restore-limits").status().expect("it runs").success());
}

fn assert_no_limit(run: &Run<'_>) {
    assert!(high(run.root).starts_with("max"), "{:?}: {}", run.fault, high(run.root));
    let limits = run.root.resolve("var/lib/omr/limits");
    assert!(!limits.exists() || fs::read_dir(limits).expect("a directory").next().is_none(), "a note is left");
}

#[test]
fn a_lowered_limit_is_restored() {
    let lowered = AtomicUsize::new(0);
    let changes = at_each_point(false, limited, |run| {
        lowered.fetch_add(usize::from(!high(run.root).starts_with("max")), Relaxed);
        restore_limits(run.root);
        assert_no_limit(run);
    });
    assert!(changes > 8 && lowered.into_inner() >= 1, "the control: {changes} changes");
}

#[test]
fn a_limit_is_restored_whichever_call_fails() {
    let changes = with_each_error(limited, |run| {
        restore_limits(run.root);
        assert_no_limit(run);
    });
    assert!(changes > 8, "the control: {changes} changes");
}

/// A limit that a killed omr has left.
fn left_limited() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    root.write(format!("{GROUPS}/app.scope/memory.high"), "1048576\n");
    let group = root.resolve(GROUPS).join("app.scope");
    let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(group).expect("a group"));
    write_limit_note(&root, id, "memory.high");
    root
}

#[test]
fn a_recovery_of_limits_that_is_killed_or_fails_is_made_again() {
    let left = AtomicUsize::new(0);
    let set_up = || {
        let root = left_limited();
        let mut command = daemon_command(root.path());
        command.arg("--restore-limits");
        (root, command)
    };
    let check = |run: &Run<'_>| {
        left.fetch_add(usize::from(!high(run.root).starts_with("max")), Relaxed);
        restore_limits(run.root);
        assert_no_limit(run);
    };
    assert!(at_each_point(false, set_up, check) >= 2 && left.load(Relaxed) >= 1, "the control");
    assert!(with_each_error(set_up, check) >= 2);
}

fn recording() -> (FakeRoot, Command) {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    assert_eq!(text(&omr(&root, &["warm", "--record"])).0, 0);
    let command = command(root.path(), &["warm", "--record"]);
    (root, command)
}

#[test]
fn a_record_is_the_old_one_or_the_new_one() {
    let check = |run: &Run<'_>| {
        let (code, _, stderr) = text(&omr(run.root, &["warm", "--dry-run"]));
        assert_eq!((code, stderr.as_str()), (0, ""), "{:?}", run.fault);
        assert!(run.root.resolve("var/lib/omr-root/warm").exists(), "there was one before");
        assert_eq!(text(&omr(run.root, &["warm", "--record"])).0, 0);
        assert_eq!(leftovers(run.root), Vec::<String>::new());
    };
    let changes = at_each_point(false, recording, check);
    assert!(changes >= 4, "the control: {changes} changes");
    assert!(with_each_error(recording, check) >= 4);
}

/// Makes the machine one that can hibernate to /dev/vda.
fn can_hibernate(root: &FakeRoot) {
    for (file, text) in [
        ("power/state", "freeze mem disk\n"),
        ("power/disk", "[platform] shutdown reboot suspend test_resume \n"),
        ("power/resume", "254:0\n"),
        ("power/resume_offset", "0\n"),
        ("power/image_size", "0\n"),
        ("class/block/vda/dev", "254:0\n"),
    ] {
        root.write(format!("sys/{file}"), text);
    }
}

const IMAGE_SIZE: &str = "sys/power/image_size";

fn about_to_sleep() -> (FakeRoot, Command) {
    let root = machine();
    can_hibernate(&root);
    // What is in use fits into an image, and next to nothing of it can leave: a search would gain
    // nothing.
    let zones = root.read("proc/zoneinfo");
    let free = |line: &str| line.trim_start().strip_prefix("pages free").and_then(|n| n.trim().parse::<u64>().ok());
    let most = zones.lines().filter_map(free).max().expect("a zone");
    let more = |line: &str| match free(line) {
        Some(pages) if pages == most => format!("  pages free     {}\n", pages + 25_000),
        _ => format!("{line}\n"),
    };
    root.write("proc/zoneinfo", zones.lines().map(more).collect::<String>());
    for kind in ["Active(anon):", "Inactive(anon):", "Active(file):", "Inactive(file):"] {
        set_line(&root, "proc/meminfo", kind, "64 kB");
    }
    let command = command(root.path(), &["prepare", "snapshot"]);
    (root, command)
}

/// Restores, and checks that nothing is left.
fn restore(run: &Run<'_>) {
    let (ended, _) = self::run(run.root, command(run.root.path(), &["prepare", "restore"]), Fault::None, false);
    assert_eq!(ended.code(), Some(0), "{:?}", run.fault);
    for file in ["image_size.json", "zram.json"] {
        assert!(!run.root.resolve("var/lib/omr-root").join(file).exists(), "{:?}: {file} is left", run.fault);
    }
}

#[test]
fn image_size_is_restored() {
    let raised = AtomicUsize::new(0);
    let check = |run: &Run<'_>| {
        raised.fetch_add(usize::from(run.root.read(IMAGE_SIZE).trim() != "0"), Relaxed);
        restore(run);
        assert!(run.root.read(IMAGE_SIZE).starts_with('0'), "{:?}: {}", run.fault, run.root.read(IMAGE_SIZE));
    };
    let changes = at_each_point(false, about_to_sleep, check);
    assert!(changes >= 4 && raised.load(Relaxed) >= 1, "the control: {changes} changes");
    assert!(with_each_error(about_to_sleep, check) >= 4);
}

#[test]
fn a_recovery_of_image_size_that_is_killed_or_fails_is_made_again() {
    let raised = AtomicUsize::new(0);
    let set_up = || {
        let (root, mut snapshot) = about_to_sleep();
        assert!(snapshot.output().expect("it runs").status.success());
        assert_ne!(root.read(IMAGE_SIZE).trim(), "0");
        let command = command(root.path(), &["prepare", "restore"]);
        (root, command)
    };
    let check = |run: &Run<'_>| {
        raised.fetch_add(usize::from(!run.root.read(IMAGE_SIZE).starts_with('0')), Relaxed);
        restore(run);
        assert!(run.root.read(IMAGE_SIZE).starts_with('0'), "{:?}: {}", run.fault, run.root.read(IMAGE_SIZE));
    };
    assert!(at_each_point(false, set_up, check) >= 2 && raised.load(Relaxed) >= 1, "the control");
    assert!(with_each_error(set_up, check) >= 2);
}

/// Two zram devices with priorities of their own, and a disk that has room for all memory.
fn with_zram() -> (FakeRoot, Command) {
    let root = machine();
    can_hibernate(&root);
    let zram = |number, priority| format!("/dev/zram{number} partition 1048576 0 {priority}\n");
    root.write("proc/swaps", [swaps(8 << 20, 0), zram(0, 100), zram(1, 7)].concat());
    let command = command(root.path(), &["prepare", "hibernate", "--target", "min"]);
    (root, command)
}

/// The zram devices that are on, with their priorities.
fn zram_on(root: &FakeRoot) -> Vec<(String, String)> {
    let swaps = root.read("proc/swaps");
    let lines = swaps.lines().filter(|line| line.starts_with("/dev/zram"));
    let mut on: Vec<(String, String)> = lines
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields[0].to_owned(), fields[4].to_owned())
        })
        .collect();
    on.sort_unstable();
    on
}

fn assert_zram_is_on(run: &Run<'_>) {
    let expected = [("/dev/zram0", "100"), ("/dev/zram1", "7")].map(|(name, at)| (name.to_owned(), at.to_owned()));
    assert_eq!(zram_on(run.root), expected, "{:?}", run.fault);
}

#[test]
fn zram_is_switched_on_again() {
    if !CAN_REPLACE {
        return;
    }
    let off = AtomicUsize::new(0);
    // Its helper is killed, too: the next command restores.
    let changes = at_each_point(false, with_zram, |run| {
        off.fetch_add(usize::from(zram_on(run.root).len() < 2), Relaxed);
        restore(run);
        assert_zram_is_on(run);
    });
    assert!(changes >= 9 && off.load(Relaxed) >= 2, "the control: {changes} changes");
    // The helper alone.
    at_each_point(true, with_zram, |run| {
        assert_zram_is_on(run);
        restore(run);
    });
}

#[test]
fn zram_is_switched_on_again_whichever_call_fails() {
    if !CAN_REPLACE {
        return;
    }
    let changes = with_each_error(with_zram, |run| {
        restore(run);
        assert_zram_is_on(run);
    });
    assert!(changes >= 9, "the control: {changes} changes");
}

#[test]
fn a_recovery_of_zram_that_is_killed_or_fails_is_made_again() {
    if !CAN_REPLACE {
        return;
    }
    let off = AtomicUsize::new(0);
    let set_up = || {
        let (root, _) = with_zram();
        root.write("proc/swaps", swaps(8 << 20, 0));
        let boot = root.read("proc/sys/kernel/random/boot_id").trim().to_owned();
        let devices = r#"[{"path":"/dev/zram0","priority":100},{"path":"/dev/zram1","priority":7}]"#;
        let note = format!(r#"{{"boot":"{boot}","pid":4242,"start":500,"devices":{devices}}}"#);
        root.write("var/lib/omr-root/zram.json", note);
        let command = command(root.path(), &["prepare", "restore"]);
        (root, command)
    };
    let check = |run: &Run<'_>| {
        off.fetch_add(usize::from(zram_on(run.root).len() < 2), Relaxed);
        restore(run);
        assert_zram_is_on(run);
    };
    assert!(at_each_point(false, set_up, check) >= 3 && off.load(Relaxed) >= 2, "the control");
    assert!(with_each_error(set_up, check) >= 3);
}

/// The directory that a test below writes to, in a process of its own.
const DIR: &str = "OMR_TEST_CRASH";

/// This test once more, in a process that writes to this directory.
fn again(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "--test-threads=1", &format!("crash::{test}")]).env(DIR, dir);
    command
}

fn own_dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// A machine whose state directory is there, and the command that writes to it.
fn writing(test: &str) -> (FakeRoot, Command) {
    let root = machine();
    let dir = root.resolve("var/lib/omr");
    fs::create_dir_all(&dir).expect("made");
    let command = again(test, &dir);
    (root, command)
}

const ROUNDS: usize = 6;

fn samples(time: u64) -> Vec<Sample> {
    let sample = |group: u64| Sample {
        time: Duration::from_secs(time),
        boot: "b".into(),
        ..Sample::of_anon(format!("app-{group}.scope"), GroupId(group), Bytes::mib(time))
    };
    (0..=time % 2).map(sample).collect()
}

/// The rounds that a reader finds, all of them whole.
fn rounds(root: &FakeRoot) -> Vec<u64> {
    let dir = root.resolve("var/lib/omr/history");
    let mut found: Vec<Sample> = Vec::new();
    found.extend(omr_history::read(&dir, Duration::ZERO..Duration::MAX, |_| true).expect("a history"));
    let mut times: Vec<u64> = found.iter().map(|sample| sample.time.as_secs()).collect();
    times.dedup();
    let expected: Vec<Sample> = times.iter().flat_map(|time| samples(*time)).collect();
    assert_eq!(found, expected);
    times
}

fn add_rounds(dir: &Path, rounds: std::ops::Range<u64>) {
    // A file is full after some rounds.
    let mut store = Store::new(&dir.join("history"), "b", Bytes(32 * 256));
    rounds.for_each(|time| store.add(Duration::from_secs(time), &samples(time)));
}

#[test]
fn the_history_loses_one_round_at_most() {
    if let Some(dir) = own_dir() {
        add_rounds(&dir, 10..10 + ROUNDS as u64);
        return;
    }
    let set_up = || {
        let (root, command) = writing("the_history_loses_one_round_at_most");
        add_rounds(&root.resolve("var/lib/omr"), 0..2);
        (root, command)
    };
    let check = |run: &Run<'_>| {
        let found = rounds(run.root);
        assert_eq!(found[..2], [0, 1], "{:?}", run.fault);
        let new = &found[2..];
        if run.is_killed() {
            assert!(
                (10..10 + ROUNDS as u64).zip(new).all(|(expected, round)| expected == *round),
                "{:?}: {new:?}",
                run.fault
            );
        } else {
            assert!(new.len().saturating_add(lost_at_most(run.fault)) >= ROUNDS, "{:?}: {new:?}", run.fault);
        }
        // The next daemon goes on.
        add_rounds(&run.root.resolve("var/lib/omr"), 20..22);
        assert_eq!(rounds(run.root)[found.len()..], [20, 21], "{:?}", run.fault);
    };
    let changes = at_each_point(false, set_up, check);
    assert!(changes >= 8, "the control: {changes} changes");
    assert!(with_each_error(set_up, check) >= 8);
}

const OLD: u64 = 5;

fn line(time: u64) -> Entry {
    Entry::LeftAlone { time, group: "app.scope".into(), reason: "a test".into() }
}

fn lines(dir: &Path) -> Vec<u64> {
    let mut times = Vec::new();
    ledger::read(dir, |entry| {
        if let Entry::LeftAlone { time, .. } = entry {
            times.push(time);
        }
    })
    .expect("the ledger");
    times
}

#[test]
fn a_ledger_that_is_rotated_loses_one_line_at_most() {
    if let Some(dir) = own_dir() {
        let mut ledger = Ledger::open(&dir);
        (10..14).for_each(|time| ledger.add(&line(time)));
        return;
    }
    let set_up = || {
        let (root, command) = writing("a_ledger_that_is_rotated_loses_one_line_at_most");
        let text = |time| format!("{}\n", serde_json::to_string(&line(time)).expect("text"));
        // It is rotated at 4 MiB.
        root.write("var/lib/omr/ledger.jsonl", format!("{}{}\n", text(OLD), " ".repeat(5 << 20)));
        root.write("var/lib/omr/ledger.jsonl.1", text(OLD - 1));
        root.write("var/lib/omr/ledger.jsonl.2", text(OLD - 2));
        (root, command)
    };
    let check = |run: &Run<'_>| {
        let dir = run.root.resolve("var/lib/omr");
        let found = lines(&dir);
        assert_eq!(found[..3], [OLD - 2, OLD - 1, OLD], "{:?}: {found:?}", run.fault);
        let new = &found[3..];
        if run.is_killed() {
            assert!((10..14).zip(new).all(|(expected, line)| expected == *line), "{:?}: {new:?}", run.fault);
        } else {
            assert!(new.len().saturating_add(lost_at_most(run.fault)) >= 4, "{:?}: {new:?}", run.fault);
        }
        Ledger::open(&dir).add(&line(20));
        assert_eq!(lines(&dir)[found.len()..], [20], "{:?}", run.fault);
    };
    let changes = at_each_point(false, set_up, check);
    assert!(changes >= 8, "the control: {changes} changes");
    assert!(with_each_error(set_up, check) >= 8);
}

/// Whether a file of state was neither the old nor the new one after some fault, and whether
/// anything was left.
fn damage(test: &'static str) -> (bool, bool) {
    let (half, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let set_up = || {
        let (root, command) = writing(test);
        root.write("var/lib/omr/state.json", "old");
        (root, command)
    };
    let check = |run: &Run<'_>| {
        let text = run.root.read("var/lib/omr/state.json");
        half.fetch_add(usize::from(text != "old" && text != "new"), Relaxed);
        // The next writer takes away what a killed one has left.
        write_atomically(&run.root.resolve("var/lib/omr/state.json"), b"newer").expect("written");
        left.fetch_add(leftovers(run.root).len(), Relaxed);
    };
    assert!(at_each_point(false, set_up, check) >= 2);
    assert!(with_each_error(set_up, check) >= 2);
    (half.into_inner() > 0, left.into_inner() > 0)
}

/// All files of state but the history and the ledger are written by this function: the write
/// budget, thresholds, statements, the disk's rate, the time of the last hibernation.
#[test]
fn a_file_of_state_is_the_old_one_or_the_new_one() {
    let test = "a_file_of_state_is_the_old_one_or_the_new_one";
    if let Some(dir) = own_dir() {
        if let Err(err) = write_atomically(&dir.join("state.json"), b"new") {
            fail(&err);
        }
        return;
    }
    assert_eq!(damage(test), (false, false));
}

/// The control: a writer that replaces the text in place is found.
#[test]
fn a_writer_that_is_not_atomic_is_found() {
    if let Some(dir) = own_dir() {
        if let Err(err) = fs::write(dir.join("state.json"), "new") {
            fail(&err.into());
        }
        return;
    }
    assert!(damage("a_writer_that_is_not_atomic_is_found").0);
}

/// Ends this process as a program that could not do its work.
fn fail(err: &anyhow::Error) -> ! {
    // Past the harness, which keeps what a test prints.
    let _ = io::Write::write_all(&mut io::stderr(), format!("omr: {err:#}\n").as_bytes());
    // SAFETY: ends the process, which has nothing to clean up.
    unsafe { libc::_exit(1) }
}

/// A daemon sweeps a group, writes down what that cost, takes in a statement, and ends.
#[test]
fn the_records_of_the_daemon_are_whole() {
    let most = crash_at_each(&|n| Fault::Kill(n), &crash_the_daemon);
    assert!(most > 12, "the control: {most} changes");
}

/// One error for each change. The next run of this test takes other ones.
#[test]
fn the_records_of_the_daemon_are_whole_whichever_call_fails() {
    if !CAN_REPLACE {
        return;
    }
    let first = std::process::id() as usize;
    let most = crash_at_each(&|at| ERRORS[(first + at) % ERRORS.len()](at), &crash_the_daemon);
    assert!(most > 12, "the control: {most} changes");
}

/// Runs `crash`, four at a time, with the fault at the first change and so on, until it returns that
/// the fault did not happen any more. Returns the number of changes.
fn crash_at_each(fault: &(dyn Fn(usize) -> Fault + Sync), crash: &(dyn Fn(Fault) -> bool + Sync)) -> usize {
    let next = AtomicUsize::new(0);
    let most = AtomicUsize::new(usize::MAX);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n > most.load(Relaxed) {
                        return;
                    }
                    if !crash(fault(n)) {
                        most.fetch_min(n, Relaxed);
                    }
                }
            });
        }
    });
    most.into_inner()
}

/// Runs `omr advise --verify` until it has lowered the limit; then the group's last process ends.
/// Returns true if the fault happened. `lowered` counts the runs that left the limit lowered.
fn crash_a_trial(fault: Fault, lowered: &AtomicUsize) -> bool {
    let root = machine();
    add_group(&root, "app.scope", 32 << 10, 8 << 10);
    let dir = format!("{GROUPS}/app.scope");
    let stall = "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    root.write(format!("{dir}/memory.pressure"), format!("some {stall}full {stall}"));
    root.write(format!("{dir}/cgroup.events"), "populated 1\nfrozen 0\n");
    let (mut said, stderr) = io::pipe().expect("a pipe");
    let ended = thread::scope(|scope| {
        let mut trial = command(root.path(), &["advise", "--verify", "app.scope", "--size", "45M", "--for", "5s"]);
        trial.stdout(Stdio::null()).stderr(stderr);
        Trace { fault, ..Trace::default() }.run(&mut trial, |pid| {
            let root = &root;
            scope.spawn(move || {
                let is_there = || Path::new(&format!("/proc/{pid}/fd")).join("0").exists();
                while is_there() && high(root).starts_with("max") {
                    thread::sleep(Duration::from_millis(20));
                }
                root.write(format!("{GROUPS}/app.scope/cgroup.events"), "populated 0\nfrozen 0\n");
            });
        })
    });
    let mut words = String::new();
    said.read_to_string(&mut words).expect("what it said");
    assert!(!words.contains("panicked"), "{fault:?}: {words}");
    lowered.fetch_add(usize::from(!high(&root).starts_with("max")), Relaxed);
    restore_limits(&root);
    let run = Run { root: &root, fault, ended };
    assert_no_limit(&run);
    match fault {
        Fault::Fail { at, .. } | Fault::Full { at, .. } => run.ended.changes > at,
        Fault::Kill(_) | Fault::None => run.is_killed(),
    }
}

#[test]
fn the_limit_of_a_trial_is_restored() {
    let lowered = AtomicUsize::new(0);
    let changes = crash_at_each(&|n| Fault::Kill(n), &|fault| crash_a_trial(fault, &lowered));
    assert!(changes > 4 && lowered.into_inner() >= 1, "the control: {changes} changes");
}

#[test]
fn the_limit_of_a_trial_is_restored_whichever_call_fails() {
    if !CAN_REPLACE {
        return;
    }
    let (first, lowered) = (std::process::id() as usize, AtomicUsize::new(0));
    let error = |at: usize| ERRORS[(first + at) % ERRORS.len()](at);
    let changes = crash_at_each(&error, &|fault| crash_a_trial(fault, &lowered));
    assert!(changes > 4, "the control: {changes} changes");
}

/// Returns true if the fault happened.
fn crash_the_daemon(fault: Fault) -> bool {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    root.write("etc/omr/omr.toml", format!("goal = 'free'\n{SOON}{STEADY}"));
    let kernel = FakeKernel::start(&root);
    let (mut said, stderr) = io::pipe().expect("a pipe");
    let ended = thread::scope(|scope| {
        let mut daemon = daemon_command(root.path());
        daemon.arg("--foreground").stdout(Stdio::null()).stderr(stderr);
        Trace { fault, ..Trace::default() }.run(&mut daemon, |pid| {
            let root = &root;
            scope.spawn(move || use_daemon(root, pid, fault));
        })
    });
    kernel.end();
    let mut words = String::new();
    said.read_to_string(&mut words).expect("what it said");
    assert!(!words.contains("panicked"), "{fault:?}: {words}");
    match ended.code() {
        None => assert!(matches!(fault, Fault::Kill(_)), "{fault:?}: status {:#x}: {words}", ended.status),
        Some(0) => {}
        Some(code) => assert!(words.contains("omr: "), "{fault:?}: exit code {code}: {words}"),
    }
    // What a crash cut off is one line at most.
    let text = fs::read_to_string(root.resolve("var/lib/omr/ledger.jsonl")).unwrap_or_default();
    let whole = ledger(&root);
    assert!(text.lines().count() <= whole.len() + 1, "{fault:?}: {text}");
    let budget = fs::read(root.resolve("var/lib/omr/swap-writes.json")).unwrap_or_else(|_| br#"{"writes":[]}"#.into());
    let budget: serde_json::Value = serde_json::from_slice(&budget).expect("whole");
    let hours: Vec<(u64, u64)> = serde_json::from_value(budget["writes"].clone()).expect("hours");
    if matches!(fault, Fault::Kill(_)) {
        // Each line of a sweep is in the budget.
        let written: u64 = whole.iter().filter_map(|line| line["swapped_out"].as_u64()).sum();
        let saved = hours.iter().map(|(_, bytes)| bytes).sum::<u64>();
        assert!(saved >= written, "{fault:?}: {budget} of {written} bytes");
    }
    let log = Daemon::start(&root, "mode = 'observe'").end();
    assert!(!log.contains("panicked") && !log.contains("are lost"), "{fault:?}: {log}");
    assert_eq!(leftovers(&root), Vec::<String>::new(), "{fault:?}");
    match fault {
        Fault::Fail { at, .. } | Fault::Full { at, .. } => ended.changes > at,
        Fault::Kill(_) | Fault::None => ended.code().is_none(),
    }
}

/// Waits for a sweep, makes a statement, and ends the daemon.
fn use_daemon(root: &FakeRoot, pid: u32, fault: Fault) {
    let is_there = || Path::new(&format!("/proc/{pid}/fd")).join("0").exists();
    match fault {
        Fault::Kill(_) => wait_until("a sweep", || !is_there() || !ledger(root).is_empty()),
        // The sweep, or its line, may be the one that fails.
        _ => {
            let began = Instant::now();
            while is_there() && ledger(root).is_empty() && began.elapsed() < Duration::from_secs(5) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let say = r#"{"do":"say","word":"foreground","of":{"group":"app.scope"}}"#;
    if let Ok(mut socket) = std::os::unix::net::UnixStream::connect(root.resolve("run/omr/omr.sock")) {
        let _ = socket.set_read_timeout(Some(Duration::from_secs(10)));
        let _ = io::Write::write_all(&mut socket, format!("{say}\n").as_bytes());
        let _ = io::Read::read(&mut socket, &mut [0; 64]);
    }
    // SAFETY: a plain system call. A process that was killed has not been waited for yet, or is the
    // last of this number for long.
    unsafe { libc::kill(i32::try_from(pid).expect("a pid"), libc::SIGTERM) };
}
