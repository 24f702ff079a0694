//! Shared parts of the tests: running the program, and a fake kernel.

pub mod fake_kernel;
pub mod running;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use omr_history::ledger::{Entry, Ledger};
use omr_history::{Sample, Store};
use omr_kernel::clock;
use omr_testkit::{FakeRoot, Release};
use omr_units::{Bytes, GroupId};

/// The mount of the groups, below the root.
pub const GROUPS: &str = "sys/fs/cgroup";

/// Steps of one size only: whatever the machine's load, the same writes are made.
pub const STEADY: &str =
    "[stop]\nsample = '20ms'\n[sweep]\nstep = '128KiB'\nwrite_time = '50ms'\nsmallest = '128KiB'\nafter_boot = '0s'\n";

/// The program, to be run on a root.
pub fn command(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_omr"));
    command.arg("--root").arg(root).args(args).env_remove("OMR_LOG").env_remove("NOTIFY_SOCKET");
    command
}

/// Runs it.
pub fn omr(root: &FakeRoot, args: &[&str]) -> Output {
    command(root.path(), args).output().expect("omr runs")
}

/// Runs `omr` as the user nobody; `None`: only root can do that.
pub fn omr_as_nobody(root: &FakeRoot, args: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can become somebody else");
        return None;
    }
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    // The program is in a directory that is closed to others.
    let program = root.resolve("omr");
    std::fs::copy(env!("CARGO_BIN_EXE_omr"), &program).expect("a copy");
    let mut command = Command::new(program);
    command.arg("--root").arg(root.path()).args(args).uid(65534).gid(65534);
    // A process that another test forks just now has the copy open for writing, until it is another
    // program.
    let mut output = command.output();
    while output.as_ref().is_err_and(|err| err.kind() == std::io::ErrorKind::ExecutableFileBusy) {
        std::thread::sleep(std::time::Duration::from_millis(10));
        output = command.output();
    }
    Some(output.expect("omr runs"))
}

/// Exit code, standard output, standard error.
pub fn text(output: &Output) -> (i32, String, String) {
    (
        output.status.code().unwrap_or_else(|| panic!("omr was ended by a signal: {output:?}")),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// A figure of a process's memory: the line of this name in its status.
pub fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// A machine of 6.12 that has nothing to do, with half a gigabyte of swap and no groups.
pub fn machine() -> FakeRoot {
    machine_of(Release::V6_12)
}

/// As [`machine`], of another release.
pub fn machine_of(release: Release) -> FakeRoot {
    // In memory where that is possible: a disk that others keep busy would have the fake kernel
    // answer later than a write may take.
    let memory = Path::new("/dev/shm");
    if tempfile::tempdir_in(memory).is_ok() {
        let _ = tempfile::env::override_temp_dir(memory);
    }
    let root = FakeRoot::captured(release)
        .proc("sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000001\n")
        .proc("swaps", swaps(524_284, 0))
        .proc("self/cgroup", "0::/system.slice/omr.service\n");
    for resource in ["cpu", "io", "memory"] {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        root.write(format!("proc/pressure/{resource}"), text);
    }
    set_line(&root, "proc/meminfo", "SwapTotal:", "524284 kB");
    set_line(&root, "proc/meminfo", "SwapFree:", "524284 kB");
    set_line(&root, "proc/vmstat", "pswpout", "0");
    // Nothing is kept free for an image.
    root.remove("sys/power");
    root
}

/// Text of `/proc/swaps` with one partition.
pub fn swaps(size_kib: u64, used_kib: u64) -> String {
    format!(
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/vda                                partition\t{size_kib}\t\t{used_kib}\t\t-2\n"
    )
}

/// Replaces the value of a "key value" line.
pub fn set_line(root: &FakeRoot, file: &str, key: &str, value: &str) {
    let text = root.read(file);
    let lines: Vec<String> = text
        .lines()
        .map(|line| match line.split_whitespace().next() {
            Some(first) if first == key => format!("{key} {value}"),
            _ => line.to_owned(),
        })
        .collect();
    assert!(lines.iter().any(|line| *line == format!("{key} {value}")), "{file} has no {key}");
    replace(&root.resolve(file), &(lines.join("\n") + "\n"));
}

/// Replaces a file as a whole: a reader finds the old text or the new one.
pub fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("being-made");
    std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path)).unwrap_or_else(|err| {
        // The group may be gone.
        assert!(!path.parent().is_some_and(Path::exists), "{}: {err}", path.display());
    });
}

/// Adds a group that holds this much anonymous memory and page cache, in KiB.
pub fn add_group(root: &FakeRoot, path: impl AsRef<Path>, anon_kib: u64, file_kib: u64) {
    let dir = Path::new(GROUPS).join(path);
    let (anon, file) = (anon_kib << 10, file_kib << 10);
    root.write(dir.join("memory.current"), format!("{}\n", anon + file));
    root.write(dir.join("memory.stat"), stat(anon, file));
    for (name, contents) in [
        ("memory.reclaim", ""),
        ("memory.min", "0\n"),
        ("memory.low", "0\n"),
        ("memory.high", "max\n"),
        ("memory.max", "max\n"),
        ("cpu.stat", "usage_usec 1000\nuser_usec 500\nsystem_usec 500\n"),
        ("cgroup.procs", ""),
    ] {
        root.write(dir.join(name), contents);
    }
}

/// Adds a process of this name that started 500 ticks after boot, or renames it.
pub fn add_program(root: &FakeRoot, pid: u32, comm: &str) {
    let stat = format!("{pid} ({comm}) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 1 0");
    root.write(format!("proc/{pid}/stat"), stat);
    root.write(format!("proc/{pid}/comm"), format!("{comm}\n"));
}

/// Writes the note of process 4242, see [`add_program`], that this limit of app.scope was "max" before
/// it changed it.
pub fn write_limit_note(root: &FakeRoot, id: u64, file: &str) {
    let boot = root.read("proc/sys/kernel/random/boot_id").trim().to_owned();
    let note = format!(
        r#"{{"boot":"{boot}","pid":4242,"start":500,"path":{{"Unix":[97,112,112,46,115,99,111,112,101]}},"id":{id},"file":"{file}","value":"Max"}}"#
    );
    root.write(format!("var/lib/omr/limits/{id}.json"), note);
}

/// Makes a lock file, with this text.
pub fn write_lock(root: &FakeRoot, path: &str, text: &str) -> std::fs::File {
    root.write(path, text);
    let lock = std::fs::File::open(root.resolve(path)).expect("the lock");
    // One that others may open would be none.
    lock.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    lock
}

/// Text of `memory.stat`.
pub fn stat(anon: u64, file: u64) -> String {
    format!(
        "anon {anon}\nfile {file}\nshmem 0\nfile_dirty 0\nswapcached 0\n\
         workingset_refault_anon 0\nworkingset_refault_file 0\n"
    )
}

/// A machine with an hour of history of a group that is not there any more.
pub fn with_history() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 65_536, 0);
    let (history, state) = (root.resolve("var/lib/omr/history"), root.resolve("var/lib/omr"));
    std::fs::create_dir_all(&state).expect("the state directory");
    let mut store = Store::new(&history, "b", Bytes::mib(64));
    let now = clock::read_wall();
    let sample = |group: &str| Sample::of_anon(group, GroupId(7), Bytes::mib(48));
    for ago in [3600, 3000, 2400, 1800] {
        store.add(now - Duration::from_secs(ago), &[sample(""), sample("gone.scope")]);
    }
    let time = (now - Duration::from_secs(2400)).as_secs();
    let reason = "no ages are known".into();
    Ledger::open(&state).add(&Entry::LeftAlone { time, group: "gone.scope".into(), reason });
    root
}
