//! Crash points: what changes state is killed before its first change, before its second one, and so
//! on to the last. Whatever comes next must find everything as it was, or as it was to become, and
//! leave nothing behind.

use std::fs;
use std::mem;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use omr_testkit::FakeRoot;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, SOON, daemon_command, ledger, wait_until};
use crate::common::{GROUPS, STEADY, add_group, command, machine, omr, set_line, text};

/// Runs a program and kills it before its `n`-th change of a file, counted from 0. Returns the number
/// of changes that it made.
#[expect(clippy::zombie_processes, reason = "wait() below waits for it")]
fn run_until(n: usize, command: &mut Command, started: impl FnOnce(u32)) -> usize {
    // SAFETY: one call of ptrace(2) between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let pid = i32::try_from(child.id()).expect("a pid");
    let (stopped, _) = wait();
    assert_eq!(stopped, pid, "at exec");
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    // SAFETY: the process is stopped, and this thread traces it.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) };
    resume(pid, 0);
    started(child.id());
    let mut changes = 0;
    loop {
        let (task, status) = wait();
        if !libc::WIFSTOPPED(status) {
            if task == pid {
                return changes;
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let is_call = signal == libc::SIGTRAP | 0x80;
        if is_call && is_change(task) {
            if changes == n {
                // SAFETY: the process has not been waited for. The call is not carried out any more.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                while wait().0 != pid {}
                return changes;
            }
            changes += 1;
        }
        // A thread that has just begun is stopped, too.
        let is_tracing = is_call || signal == libc::SIGTRAP || signal == libc::SIGSTOP;
        resume(task, if is_tracing { 0 } else { signal });
    }
}

/// Waits for a task that this thread traces.
fn wait() -> (i32, i32) {
    let mut status = 0;
    // SAFETY: the status is a live integer. Children of other threads are not waited for.
    let task = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(task > 0, "waitpid: {}", std::io::Error::last_os_error());
    (task, status)
}

fn resume(task: i32, signal: i32) {
    // SAFETY: the task is stopped, and this thread traces it. One that was killed meanwhile is gone.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, task, 0, signal) };
}

/// Returns true if a stopped task is about to change a file.
fn is_change(task: i32) -> bool {
    // SAFETY: all bytes zero are a valid struct of numbers.
    let mut call: libc::ptrace_syscall_info = unsafe { mem::zeroed() };
    let size = mem::size_of_val(&call);
    // SAFETY: the kernel writes at most `size` bytes to the struct.
    let read = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, task, size, &raw mut call) };
    if read <= 0 || call.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return false;
    }
    // SAFETY: the kernel has filled in this member of the union, as `op` says.
    let (number, args) = unsafe { (call.u.entry.nr, call.u.entry.args) };
    let is_file = || {
        let name = fs::read_link(format!("/proc/{task}/fd/{}", args[0])).unwrap_or_default();
        name.is_absolute() && !name.starts_with("/dev/null")
    };
    match i64::try_from(number).expect("a number") {
        libc::SYS_openat => args[2] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0,
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => is_file(),
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_link | libc::SYS_linkat => true,
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir | libc::SYS_mkdir | libc::SYS_mkdirat => true,
        libc::SYS_ftruncate | libc::SYS_fchmod | libc::SYS_fchmodat => true,
        _ => false,
    }
}

/// Kills it at each of its changes. `set_up` makes a machine and a command; `check` says whether all
/// is well after the crash, or after an end without one. Returns the number of changes.
fn at_each_point(set_up: impl Fn() -> (FakeRoot, Command), check: impl Fn(&FakeRoot, bool)) -> usize {
    for n in 0.. {
        let (root, mut command) = set_up();
        let changes = run_until(n, &mut command, |_| {});
        check(&root, changes == n);
        if changes < n {
            return changes;
        }
    }
    unreachable!("a program ends")
}

/// The files that a killed program left half written, in all directories of omr.
fn leftovers(root: &FakeRoot) -> Vec<String> {
    let mut left = Vec::new();
    for dir in ["var/lib/omr", "var/lib/omr/limits", "var/lib/omr/history", "run/omr"] {
        let Ok(files) = fs::read_dir(root.resolve(dir)) else { continue };
        let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
        left.extend(names.filter(|name| name.ends_with(".tmp")).map(|name| format!("{dir}/{name}")));
    }
    left
}

#[test]
fn a_lowered_limit_is_restored() {
    let lowered = AtomicUsize::new(0);
    let high = format!("{GROUPS}/app.scope/memory.high");
    let set_up = || {
        let root = machine();
        root.write("etc/omr/omr.toml", STEADY);
        add_group(&root, "app.scope", 4096, 0);
        let command = command(root.path(), &["reclaim", "--backend", "memory.high", "app.scope", "512K"]);
        (root, command)
    };
    let changes = at_each_point(set_up, |root, is_killed| {
        lowered.fetch_add(usize::from(!root.read(&high).starts_with("max")), Relaxed);
        if is_killed {
            assert!(daemon_command(root.path()).arg("--restore-limits").status().expect("it runs").success());
        }
        assert!(root.read(&high).starts_with("max"), "{}", root.read(&high));
        let limits = root.resolve("var/lib/omr/limits");
        assert!(!limits.exists() || fs::read_dir(limits).expect("a directory").next().is_none(), "a note is left");
    });
    assert!(changes > 8 && lowered.into_inner() >= 1, "the control: {changes} changes");
}

#[test]
fn a_record_is_the_old_one_or_the_new_one() {
    let record = |root: &FakeRoot| fs::read(root.resolve("var/lib/omr/warm")).ok();
    let set_up = || {
        let root = machine();
        add_group(&root, "app.scope", 4096, 0);
        assert_eq!(text(&omr(&root, &["warm", "--record"])).0, 0);
        let command = command(root.path(), &["warm", "--record"]);
        (root, command)
    };
    let changes = at_each_point(set_up, |root, _| {
        let (code, _, stderr) = text(&omr(root, &["warm", "--dry-run"]));
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(record(root).is_some(), "there was one before");
        assert_eq!(text(&omr(root, &["warm", "--record"])).0, 0);
        assert_eq!(leftovers(root), Vec::<String>::new());
    });
    assert!(changes >= 4, "the control: {changes} changes");
}

#[test]
fn image_size_is_restored() {
    let raised = AtomicUsize::new(0);
    let size = "sys/power/image_size";
    let set_up = || {
        let root = machine();
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
    };
    let changes = at_each_point(set_up, |root, _| {
        raised.fetch_add(usize::from(root.read(size).trim() != "0"), Relaxed);
        let (code, _, stderr) = text(&omr(root, &["prepare", "restore"]));
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(root.read(size).starts_with('0'), "{}", root.read(size));
        assert!(!root.resolve("var/lib/omr/image_size.json").exists(), "a note is left");
    });
    assert!(changes >= 4 && raised.into_inner() >= 1, "the control: {changes} changes");
}

/// A daemon sweeps a group, writes down what that cost, takes in a statement, and ends.
#[test]
fn the_records_of_the_daemon_are_whole() {
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
                    let changes = crash_the_daemon(n);
                    if changes < n {
                        most.fetch_min(changes, Relaxed);
                    }
                }
            });
        }
    });
    let most = most.into_inner();
    assert!(most > 12, "the control: {most} changes");
}

fn crash_the_daemon(n: usize) -> usize {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    root.write("etc/omr/omr.toml", format!("goal = 'free'\n{SOON}{STEADY}"));
    let kernel = FakeKernel::start(&root);
    let changes = thread::scope(|scope| {
        let mut daemon = daemon_command(root.path());
        run_until(n, daemon.arg("--foreground"), |pid| {
            let root = &root;
            scope.spawn(move || {
                let is_there = || Path::new(&format!("/proc/{pid}/fd")).join("0").exists();
                wait_until("a sweep", || !is_there() || !ledger(root).is_empty());
                let say = r#"{"do":"say","word":"foreground","of":{"group":"app.scope"}}"#;
                if let Ok(mut socket) = std::os::unix::net::UnixStream::connect(root.resolve("run/omr/omr.sock")) {
                    let _ = socket.set_read_timeout(Some(std::time::Duration::from_secs(10)));
                    let _ = std::io::Write::write_all(&mut socket, format!("{say}\n").as_bytes());
                    let _ = std::io::Read::read(&mut socket, &mut [0; 64]);
                }
                // SAFETY: a plain system call. A process that was killed has not been waited for yet,
                // or is the last of this number for long.
                unsafe { libc::kill(i32::try_from(pid).expect("a pid"), libc::SIGTERM) };
            });
        })
    });
    kernel.end();
    // What a crash cut off is one line at most, and each line of a sweep is in the budget.
    let text = fs::read_to_string(root.resolve("var/lib/omr/ledger.jsonl")).unwrap_or_default();
    let whole = ledger(&root);
    assert!(text.lines().count() <= whole.len() + 1, "{n}: {text}");
    let written: u64 = whole.iter().filter_map(|line| line["swapped_out"].as_u64()).sum();
    let budget = fs::read(root.resolve("var/lib/omr/swap-writes.json")).unwrap_or_else(|_| br#"{"writes":[]}"#.into());
    let budget: serde_json::Value = serde_json::from_slice(&budget).expect("whole");
    let hours: Vec<(u64, u64)> = serde_json::from_value(budget["writes"].clone()).expect("hours");
    assert!(hours.iter().map(|(_, bytes)| bytes).sum::<u64>() >= written, "{n}: {budget} of {written} bytes");
    let log = Daemon::start(&root, "mode = 'observe'").end();
    assert!(!log.contains("panicked") && !log.contains("are lost"), "{n}: {log}");
    assert_eq!(leftovers(&root), Vec::<String>::new(), "{n}");
    changes
}
