//! Faults of disks, clients and other users' groups: the daemon may do less, and says so, and never
//! ends by itself.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, can_mount, daemon_command, in_own_mounts, ledger, refused, swept, wait_until};
use crate::common::{GROUPS, STEADY, add_group, command, machine, omr, replace, stat, text};
use omr_testkit::FakeRoot;
use serde_json::Value;

/// A machine with one group to sweep.
fn with_group() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    root
}

fn current(root: &FakeRoot, group: &str) -> String {
    root.read(format!("{GROUPS}/{group}/memory.current"))
}

// Records and limits on the disk.

/// Sweeps go on while the state directory cannot be written to.
fn sweeps_without_a_disk(mount: impl Fn(*const libc::c_char) -> i32 + Send + Sync + 'static, says: &str) {
    if !can_mount() {
        println!("SKIP: mounting is not permitted here");
        return;
    }
    let root = with_group();
    fs::create_dir_all(root.resolve("var/lib/omr")).expect("the state directory");
    let kernel = FakeKernel::start(&root);
    let state = root.resolve("var/lib/omr");
    let daemon = Daemon::start_with(&root, "", |command| in_own_mounts(command, &state, mount));
    wait_until("the group is swept", || current(&root, "app.scope") == "0\n");
    wait_until("the figures are there", || daemon.status()["today"]["freed"] == 4096 << 10);
    assert_eq!(daemon.status()["swap"]["written"], 4096 << 10, "the budget counts all the same");
    let log = daemon.end();
    assert!(log.contains(says), "{log}");
    assert!(ledger(&root).is_empty(), "another mount");
    kernel.end();
}

#[test]
fn a_full_disk_costs_the_records_only() {
    // SAFETY: mount(2) with constants and the directory that is handed in.
    let full = |dir: *const libc::c_char| unsafe {
        // One page, which the directory itself does not need, and no more files than `limits` and
        // one.
        libc::mount(c"none".as_ptr(), dir, c"tmpfs".as_ptr(), 0, c"size=4096,nr_inodes=3".as_ptr().cast())
    };
    sweeps_without_a_disk(full, "No space left on device");
}

#[test]
fn a_read_only_disk_costs_the_records_only() {
    // SAFETY: as above.
    let read_only = |dir: *const libc::c_char| unsafe {
        libc::mount(c"none".as_ptr(), dir, c"tmpfs".as_ptr(), libc::MS_RDONLY, std::ptr::null())
    };
    sweeps_without_a_disk(read_only, "Read-only file system");
}

#[test]
fn memory_high_is_not_touched_without_a_place_for_its_old_value() {
    let root = with_group();
    root.write("var/lib/omr/limits", "a file where the directory has to be\n");
    root.write("etc/omr/omr.toml", format!("backend = 'memory.high'\n{STEADY}"));
    let (code, stderr) = refused(&root);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("omr: memory.high needs a journal: create "), "{stderr}");
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "app.scope", "1M"]));
    assert_eq!(code, 1);
    assert!(stderr.starts_with("omr: memory.high needs a journal: create "), "{stderr}");
    assert_eq!(root.read(format!("{GROUPS}/app.scope/memory.high")), "max\n");
}

#[test]
fn corrupt_records_are_passed_over() {
    let root = with_group();
    let hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() / 3600;
    let line = |time: u64, sweep: u64, cpu: u64| {
        format!(
            r#"{{"kind":"sweep","time":{time},"sweep":{sweep},"group":"old\u001b[31m","id":1,"asked":1,"freed":1048576,"freed_anon":0,"freed_file":0,"swapped_out":2097152,"cpu_ms":{cpu},"wall_ms":1,"writes":1,"longest_write_ms":1,"last_write_end_ns":1,"start_reason":"","stop_reason":"done","end":"complete"}}"#
        )
    };
    let mut text_of = b"\xff\xfe\0garbage\n{}\n[1]\n{\"kind\":\"unheard-of\"}\n".to_vec();
    for (time, sweep, cpu) in [(hour * 3600, 7, u64::MAX), (hour * 3600, u64::MAX, u64::MAX), (u64::MAX, 9, 1)] {
        text_of.extend_from_slice(line(time, sweep, cpu).as_bytes());
        text_of.push(b'\n');
    }
    text_of.extend_from_slice(br#"{"kind":"refaults","time":18446744073709551615,"sweep":1,"group":"g","bytes":18446744073709551615,"after":18446744073709551615}"#);
    text_of.extend_from_slice(b"\n{\"kind\":\"sweep\",\"time\"");
    root.write("var/lib/omr/ledger.jsonl", &text_of);
    root.write("var/lib/omr/swap-writes.json", "[[1,");
    root.write("var/lib/omr/limits/1.json", "{\"boot\":");
    root.write("var/lib/omr/limits/2.json", b"\0\0\0");
    // A note that is none of omr's: it must not make omr write to another file.
    let own = format!("{GROUPS}/app.scope");
    let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(root.resolve(&own)).expect("the group"));
    let boot = root.read("proc/sys/kernel/random/boot_id").trim().to_owned();
    let note = |file: &str| {
        format!(
            r#"{{"boot":"{boot}","pid":1,"path":{{"Unix":[97,112,112,46,115,99,111,112,101]}},"id":{id},"file":"{file}","value":{{"Bytes":4096}}}}"#
        )
    };
    root.write("var/lib/omr/limits/3.json", note("memory.max"));
    let history = omr(&root, &["history"]);
    let (code, shown, stderr) = text(&history);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.contains("9999-12-31T23:59:59Z") && !shown.contains('\u{1b}'), "{shown}");

    let daemon = Daemon::start(&root, "");
    let log = daemon.log();
    for file in ["limits/1.json", "limits/2.json", "limits/3.json"] {
        assert!(log.contains(&format!("{file}: not a journal entry; ignored")), "{log}");
    }
    assert!(log.contains("swap-writes.json: ") && log.contains("counted anew from the ledger"), "{log}");
    wait_until("a sweep", || swept(&root, "app.scope").is_some());
    // Two of them this hour, and one from the end of time, which counts as now: doubt means fewer
    // writes.
    assert_eq!(daemon.status()["swap"]["written"], 6 << 20);
    assert_eq!(root.read(format!("{GROUPS}/app.scope/memory.max")), "max\n");
    daemon.end();
    // The half line is ended, so that what follows it can be read.
    assert!(ledger(&root).iter().any(|line| line["group"] == "app.scope"));
}

/// A limit stands lowered, its old value is in the journal, and the process is gone: the worst
/// moment.
#[test]
fn a_limit_that_kill_9_left_behind_is_restored_by_whatever_comes_next() {
    for next in ["daemon", "its end", "reclaim"] {
        let root = machine();
        add_group(&root, "app.scope", 4096, 0);
        let high = root.resolve(format!("{GROUPS}/app.scope/memory.high"));
        let watch = hold_before_restore(&high);
        let mut daemon = Daemon::start(&root, "backend = 'memory.high'");
        // Stuck between the two writes.
        let lowered = watch.join().expect("the limit was lowered");
        assert!(lowered.parse::<u64>().is_ok_and(|low| low < 4 << 20), "{lowered}");
        assert_eq!(fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count(), 1);
        daemon.signal(libc::SIGKILL);
        daemon.wait();
        // What a kernel would hold now.
        fs::remove_file(&high).expect("the pipe");
        fs::write(&high, format!("{lowered}\n")).expect("the limit");
        // And what one leaves that ends in the middle of writing. 1 is not an omr.
        fs::write(root.resolve("var/lib/omr/limits/5-6.json.1.tmp"), "{\"boot").expect("half an entry");
        match next {
            "daemon" => {
                let log = Daemon::start(&root, "mode = 'observe'").end();
                assert!(log.contains("restored 1 limit that an earlier run of omr left changed"), "{log}");
            }
            "its end" => {
                let restored = daemon_command(root.path()).arg("--restore-limits").status();
                assert!(restored.expect("omr-daemon runs").success());
            }
            _ => {
                omr(&root, &["reclaim", "--backend", "memory.reclaim", "app.scope", "128K"]);
            }
        }
        assert!(fs::read_to_string(&high).expect("the limit").starts_with("max"));
        assert_eq!(fs::read_dir(root.resolve("var/lib/omr/limits")).expect("the journal").count(), 0);
    }
}

/// Lets `memory.high` be lowered, and makes the program wait when it wants to put it back: the file
/// is a pipe then that nobody reads. Returns the low value.
fn hold_before_restore(high: &Path) -> std::thread::JoinHandle<String> {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(high).expect("memory.high");
    // SAFETY: SIG_IGN for the signal of a broken lease, and fcntl on an open descriptor.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)
    };
    assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
    let high = high.to_owned();
    std::thread::spawn(move || {
        // SAFETY: as above.
        wait_until("memory.high is to be written", || unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) != libc::F_RDLCK
        });
        let pipe = high.with_extension("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).expect("no NUL");
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        fs::rename(&pipe, &high).expect("renamed");
        // SAFETY: as above. The program goes on with the file that it has opened.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        let mut text = String::new();
        wait_until("memory.high is lowered", || {
            text.clear();
            let mut file = &file;
            std::io::Seek::rewind(&mut file).and_then(|()| file.read_to_string(&mut text)).expect("the limit");
            text.starts_with(|c: char| c.is_ascii_digit())
        });
        text.chars().take_while(char::is_ascii_digit).collect()
    })
}

// Clients.

#[test]
fn clients_of_every_kind() {
    let root = with_group();
    let daemon = Daemon::start(&root, "");
    let mode = fs::metadata(daemon.socket()).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "there is no group omr on this machine");

    // Garbage gets an answer, or its connection closed; the next one is served.
    for garbage in
        ["\n", "{\n", "null\n", "{\"do\":\"reboot\"}\n", "{\"do\":\"explain\",\"group\":7}\n", "\u{7f}\0\u{1}\n"]
    {
        let mut stream = daemon.connect();
        stream.write_all(garbage.as_bytes()).expect("taken");
        stream.shutdown(Shutdown::Write).expect("no more");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an end");
        assert!(answer.starts_with("{\"error\":\"not a request: "), "{garbage:?}: {answer}");
    }
    let mut flood = daemon.connect();
    let endless = vec![b'x'; 1 << 20];
    // Dropped on the way: what the kernel has taken by then is not told apart.
    let _ = flood.write_all(&endless);
    assert!(matches!(flood.read(&mut [0; 16]), Ok(0) | Err(_)), "a line without end is cut off");

    // Requests that come together are all answered, in order.
    let mut both = daemon.connect();
    both.write_all(b"{\"do\":\"explain\",\"group\":\"nobody\"}\n{\"do\":\"status\"}\n{\"do\":\"stat").expect("taken");
    both.shutdown(Shutdown::Write).expect("no more");
    let mut answers = String::new();
    both.read_to_string(&mut answers).expect("answers");
    let answers: Vec<Value> = answers.lines().map(|line| line.parse().expect("JSON")).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert_eq!(answers[0]["error"], "there is no group nobody; systemd-cgls lists the groups");
    assert_eq!(answers[1]["ok"]["pid"], daemon.pid());

    // One that asks and goes away before it has its answer.
    for _ in 0..50 {
        let mut stream = daemon.connect();
        stream.write_all(b"{\"do\":\"status\"}\n{\"do\":\"status\"}\n{\"do\":\"status\"}\n").expect("taken");
        drop(stream);
    }
    // More than there is room for, half a line each; and some that ask and never read.
    let mut idle: Vec<UnixStream> = (0..40).map(|_| daemon.connect()).collect();
    for (number, stream) in idle.iter_mut().enumerate() {
        let _ = match number % 2 {
            0 => stream.write_all(b"{\"do\":"),
            _ => (0..1000).try_for_each(|_| stream.write_all(b"{\"do\":\"status\"}\n")),
        };
    }
    for _ in 0..20 {
        assert_eq!(daemon.status()["pid"], daemon.pid());
    }
    wait_until("it does its work meanwhile", || swept(&root, "app.scope").is_some());
    // Who neither asks nor reads is dropped after a while.
    let mut last = idle.pop().expect("a client");
    drop(idle);
    wait_until("the silent one is dropped", || {
        let mut chunk = [0; 4096];
        matches!(last.read(&mut chunk), Ok(0) | Err(_))
    });
    daemon.end();
}

#[test]
fn an_answer_that_cannot_be_printed_is_an_error() {
    let root = with_group();
    let daemon = Daemon::start(&root, "");
    for args in
        [["status", "--json"].as_slice(), &["status"], &["explain"], &["reclaim", "app.scope", "--dry-run", "1M"]]
    {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let output = command(root.path(), args).stdout(full).output().expect("omr runs");
        let (code, _, stderr) = text(&output);
        assert_eq!(code, 1, "{args:?}: {stderr}");
        assert_eq!(stderr, "omr: write to standard output: No space left on device (os error 28)\n");
    }
    daemon.end();
}

// Groups.

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn groups_that_come_and_go() {
    let root = machine();
    add_group(&root, "stay.scope", 4096, 0);
    let daemon = Daemon::start(&root, "");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when what follows fails: the scope waits for its threads.
        let _done = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for number in 0..20 {
                    add_group(&root, format!("job-{number}.scope/inner"), 4096, 64);
                }
                for number in 0..20 {
                    // A kernel takes a group away at once; here file by file, in whatever order.
                    let _ = fs::remove_dir_all(root.resolve(format!("{GROUPS}/job-{number}.scope")));
                }
            }
        });
        // By hand as well, for what changes between one look and the next.
        for _ in 0..30 {
            let (code, _, stderr) = text(&omr(&root, &["reclaim", "/", "256K", "--timeout", "1s"]));
            // 3: without its file, but still there, as no real group ever is.
            assert!([0, 1, 3, 4].contains(&code) && !stderr.contains("panicked"), "{code} {stderr}");
            let (code, _, stderr) = text(&omr(&root, &["explain", "job-7.scope/inner"]));
            assert!([0, 1].contains(&code) && !stderr.contains("panicked"), "{code} {stderr}");
        }
        wait_until("one that stays is swept", || swept(&root, "stay.scope").is_some());
    });
    daemon.end();
}

#[test]
fn names_that_are_no_text() {
    let root = machine();
    let names: [&[u8]; 5] = [b"two words", b"two\nlines", b"\x1b[31mred", b"not \xff utf-8", b"{\"do\":1}"];
    for name in names {
        add_group(&root, OsStr::from_bytes(name), 1024, 0);
    }
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, "");
    wait_until("all are swept", || {
        names
            .iter()
            .all(|name| swept(&root, &String::from_utf8_lossy(name)).is_some_and(|line| line["freed"] == 1024 << 10))
    });
    for name in names {
        let output = command(root.path(), &["explain"]).arg(OsStr::from_bytes(name)).output().expect("omr runs");
        let (code, stdout, stderr) = text(&output);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.contains("not swept: 0 B to gain"), "{stdout}");
        let mut command = command(root.path(), &["reclaim", "--dry-run"]);
        let (code, stdout, stderr) = text(&command.arg(OsStr::from_bytes(name)).arg("max").output().expect("omr runs"));
        assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
        assert_eq!(stdout.lines().count(), 2, "{stdout}");
        assert!(!stdout.contains('\u{1b}'), "{stdout}");
    }
    for args in [["status"], ["history"]] {
        let (code, stdout, _) = text(&omr(&root, &args));
        assert!(code == 0 && !stdout.contains('\u{1b}') && !stdout.contains("two\nlines"), "{stdout}");
    }
    let log = daemon.end();
    assert!(!log.contains('\u{1b}') && !log.contains("two\nlines"), "{log}");
    kernel.end();
}

#[test]
fn a_group_that_cannot_be_looked_at_holds_back_those_above_it() {
    let root = machine();
    for (broken, contents) in [("memory.current", "a lot\n"), ("memory.low", "much\n")] {
        add_group(&root, "jobs", 1024, 0);
        add_group(&root, "jobs/a", 1024, 0);
        root.write(format!("{GROUPS}/jobs/memory.current"), "2097152\n");
        root.write(format!("{GROUPS}/jobs/a/{broken}"), contents);
        let (code, _, stderr) = text(&omr(&root, &["reclaim", "jobs", "max"]));
        assert_ne!(code, 0, "{broken}: {stderr}");
        assert_eq!(root.read(format!("{GROUPS}/jobs/memory.reclaim")), "", "{broken}");
        assert_eq!(root.read(format!("{GROUPS}/jobs/a/memory.reclaim")), "", "{broken}");
        root.remove(format!("{GROUPS}/jobs"));
    }
}

// The machine's files.

#[test]
fn an_unreadable_counter_counts_as_busy() {
    let truncated = |text: &str| text[..text.len() / 3].to_owned();
    let root = with_group();
    let daemon = Daemon::start(&root, "guard.swap_floor = '0%'\nmode = 'observe'");
    wait_until("a first sweep", || swept(&root, "app.scope").is_some());
    for (file, broken, signal) in [
        // In turn, so that none passes for what was said of the one before.
        ("proc/stat", Some("cpu  1 2\ncpu0 1 2\n".to_owned()), "CPU time"),
        ("proc/pressure/memory", Some(String::new()), "memory pressure"),
        ("proc/stat", Some(String::new()), "CPU time"),
        ("proc/pressure/io", Some("some avg10=nan total=-1\n".into()), "I/O pressure"),
        ("proc/stat", None, "CPU time"),
        ("proc/pressure/cpu", None, "CPU pressure"),
    ] {
        let before = root.read(file);
        match &broken {
            Some(text) => replace(&root.resolve(file), text),
            None => root.remove(file),
        }
        wait_until(&format!("{file} is unknown"), || {
            let reason = daemon.status()["decision"]["reason"].clone();
            reason["kind"] == "unknown" && reason["signal"].as_str().is_some_and(|said| said.contains(signal))
        });
        replace(&root.resolve(file), &before);
    }
    // What is not needed to tell idleness is no reason to end, whatever becomes of it.
    for file in ["proc/meminfo", "proc/vmstat", "proc/swaps"] {
        let before = root.read(file);
        for text in [truncated(&before), String::new(), "\u{0}\u{1}: 99999999999999999999999 kB\n".repeat(1000)] {
            replace(&root.resolve(file), &text);
            let ticks = daemon.status();
            assert_eq!(ticks["pid"], daemon.pid());
            let (code, _, stderr) = text_of_reclaim(&root);
            assert!(code != 0 || file == "proc/swaps" || file == "proc/vmstat", "{file}: {stderr}");
        }
        replace(&root.resolve(file), &before);
    }
    daemon.end();
}

fn text_of_reclaim(root: &FakeRoot) -> (i32, String, String) {
    let (code, stdout, stderr) = text(&omr(root, &["reclaim", "app.scope", "max"]));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (code, stdout, stderr)
}

#[test]
fn counters_that_go_back() {
    let root = with_group();
    add_group(&root, "fore.scope", 1024, 0);
    let group = "[[group]]\nmatch = 'fore.scope'\nclass = 'foreground'\n";
    let daemon = Daemon::start(&root, group);
    wait_until("a first sweep", || swept(&root, "app.scope").is_some());
    let stat_file = root.resolve("proc/stat");
    let cpu = root.resolve(format!("{GROUPS}/fore.scope/cpu.stat"));
    let memory = root.resolve(format!("{GROUPS}/app.scope/memory.stat"));
    for value in [u64::MAX, 0, u64::MAX / 2, 1] {
        replace(&stat_file, &format!("cpu0 {value} {value} {value} {value} {value} {value} {value} {value}\n"));
        replace(&cpu, &format!("usage_usec {value}\n"));
        replace(&memory, &stat(value, value).replace("refault_anon 0", &format!("refault_anon {value}")));
        replace(&root.resolve(format!("{GROUPS}/app.scope/memory.current")), &format!("{value}\n"));
        for resource in ["cpu", "io", "memory"] {
            replace(&root.resolve(format!("proc/pressure/{resource}")), &format!("some avg10=0.00 total={value}\n"));
        }
        // Two ticks with each.
        let before = daemon.status()["decision"].clone();
        wait_until("it looks again", || daemon.status()["decision"] != before || before["reason"]["kind"] == "unknown");
        let (code, _, stderr) = text_of_reclaim(&root);
        assert!([0, 4].contains(&code), "{code} {stderr}");
    }
    daemon.end();
}

#[test]
fn five_thousand_groups() {
    let root = machine();
    // Every second one of another class, so that each needs a look of its own.
    for slice in 0..100 {
        for job in 0..50 {
            let class = if job % 2 == 0 { "back" } else { "fore" };
            add_small_group(&root, &format!("{slice}.slice/{class}-{job}.service"));
        }
    }
    add_group(&root, "large.scope", 8192, 0);
    let rules = "[[group]]\nunit = 'back-*'\nclass = 'background'\n[[group]]\nunit = 'fore-*'\nclass = 'foreground'\n";
    let daemon = Daemon::start(&root, rules);
    wait_until("the largest is swept first", || !ledger(&root).is_empty());
    assert_eq!(ledger(&root)[0]["group"], "large.scope");
    assert_eq!(daemon.status()["groups_total"], 5102);
    let (code, stdout, _) = text(&omr(&root, &["explain", "99.slice/fore-49.service"]));
    assert!(code == 0 && stdout.contains("class foreground"), "{stdout}");
    daemon.end();

    // With too few descriptors the work of some cannot be seen: that must not pass for idleness.
    fs::remove_file(root.resolve("var/lib/omr/ledger.jsonl")).expect("the ledger");
    let daemon = Daemon::start_with(&root, rules, |command| {
        let few = libc::rlimit { rlim_cur: 200, rlim_max: 200 };
        // SAFETY: a system call with a local that outlives it.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &few) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
    });
    wait_until("it holds", || daemon.status()["decision"]["reason"]["kind"] == "unknown");
    let log = daemon.end();
    assert!(log.contains("groups must be read, and only 136 files may be open (LimitNOFILE=)"), "{log}");
    assert!(ledger(&root).is_empty());
}

/// Only what a scan reads; the same files for all.
fn add_small_group(root: &FakeRoot, path: &str) {
    let dir = root.resolve(Path::new(GROUPS).join(path));
    fs::create_dir_all(&dir).expect("a group");
    let stat = "anon 4096\nfile 0\nworkingset_refault_anon 0\nworkingset_refault_file 0\n";
    for (name, contents) in [("memory.current", "4096\n"), ("memory.stat", stat), ("cpu.stat", "usage_usec 1\n")] {
        let shared = root.resolve("shared").join(name);
        if !shared.exists() {
            root.write(Path::new("shared").join(name), contents);
        }
        fs::hard_link(&shared, dir.join(name)).expect("a link");
    }
}
