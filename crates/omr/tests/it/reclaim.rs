//! `omr reclaim` where more happens than a transcript shows: signals, time limits, groups that go
//! away, other users, and the form of its JSON.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::wait_until;
use crate::common::{
    GROUPS, STEADY, add_group, add_program, command, machine, omr, omr_as_nobody, replace, set_line, stat, text,
    write_limit_note,
};
use omr_testkit::FakeRoot;
use serde_json::Value;

fn with_group(anon_kib: u64) -> FakeRoot {
    let root = machine();
    root.write("etc/omr/omr.toml", STEADY);
    add_group(&root, "app.scope", anon_kib, 0);
    root
}

fn json(text: &str) -> Value {
    text.parse().unwrap_or_else(|err| panic!("{err}: {text}"))
}

#[test]
fn a_signal_ends_it_and_what_was_done_is_printed() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let root = with_group(256 << 10);
        let kernel = FakeKernel::start(&root);
        let mut child = command(root.path(), &["reclaim", "--json", "app.scope", "max"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("omr starts");
        wait_until("it has begun", || root.read(format!("{GROUPS}/app.scope/memory.current")) != "268435456\n");
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(i32::try_from(child.id()).expect("a pid"), signal) };
        let mut stdout = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("text");
        assert_eq!(child.wait().expect("an end").code(), Some(4), "{stdout}");
        let summary = json(&stdout);
        assert_eq!(summary["end"], "stopped", "{summary}");
        let freed = summary["freed"].as_u64().expect("bytes");
        assert!(freed > 0 && freed < 256 << 20, "{freed}");
        // Measured; what the signal interrupted may be done later, and no write came after it.
        let asked = (kernel.end().len() as u64 - 1) * (128 << 10);
        let left: u64 = root.read(format!("{GROUPS}/app.scope/memory.current")).trim().parse().expect("bytes");
        assert_eq!(left + asked, 256 << 20);
        assert!(asked - freed <= 128 << 10, "{asked} asked for, {freed} freed");
    }
}

/// Runs the program, which ends by SIGSYS when it calls sync(2). Returns that signal.
fn signal_of_sync(root: &FakeRoot, args: &[&str]) -> Option<i32> {
    let ret = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt, jf, k: u32| libc::sock_filter { code: u16::try_from(code).expect("a code"), jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::try_from(libc::SYS_sync).expect("a number")),
        step(ret, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut command = command(root.path(), args);
    // SAFETY: two calls of prctl(2) between fork and exec; the filter is in the child's memory.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            let refused = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0;
            if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let ended = command.stdout(Stdio::null()).status().expect("omr runs");
    std::os::unix::process::ExitStatusExt::signal(&ended)
}

#[test]
fn dirty_page_cache_is_left_to_the_kernel_except_for_a_preparation() {
    for (args, expected) in
        [(&["reclaim", "app.scope", "1M"][..], None), (&["prepare", "burst", "300M"], Some(libc::SIGSYS))]
    {
        let root = machine();
        root.write("etc/omr/omr.toml", STEADY);
        add_group(&root, "app.scope", 4096, 64 << 10);
        let file = format!("{GROUPS}/app.scope/memory.stat");
        root.write(&file, root.read(&file).replace("file_dirty 0", "file_dirty 33554432"));
        set_line(&root, "proc/meminfo", "Dirty:", "32768 kB");
        let _kernel = FakeKernel::start(&root);
        assert_eq!(signal_of_sync(&root, args), expected, "{args:?}");
    }
}

#[test]
fn a_time_limit_ends_it() {
    let root = with_group(1024 << 10);
    let _kernel = FakeKernel::start(&root);
    let (code, stdout, _) = text(&omr(&root, &["reclaim", "--json", "--timeout", "100ms", "app.scope", "max"]));
    assert_eq!((code, &json(&stdout)["end"]), (4, &"timeout".into()), "{stdout}");
    let (code, stdout, _) = text(&omr(&root, &["reclaim", "--timeout", "0s", "app.scope", "max"]));
    assert!(code == 4 && stdout.contains("0 B freed") && stdout.contains("Ended: time is up."), "{stdout}");
}

#[test]
fn the_summary_as_json() {
    let root = with_group(1024);
    let _kernel = FakeKernel::start(&root);
    let (code, stdout, stderr) = text(&omr(&root, &["reclaim", "--json", "app.scope", "512K"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let summary = json(&stdout);
    for (key, value) in [
        ("target", "app.scope".into()),
        ("backend", "memory.reclaim".into()),
        ("asked", (512 << 10).into()),
        ("freed", (512 << 10).into()),
        ("freed_anon", (512 << 10).into()),
        ("freed_file", 0.into()),
        ("swapped_out", (512 << 10).into()),
        ("came_back", Value::Null),
        ("end", "complete".into()),
        ("dry_run", false.into()),
    ] {
        assert_eq!(summary[key], value, "{key}");
    }
    let group = &summary["groups"][0];
    assert_eq!(group["group"], "app.scope");
    // More where the fake kernel was slow to answer one: then they become smaller.
    assert!(group["writes"].as_u64().is_some_and(|writes| (4..=8).contains(&writes)), "{group}");
    assert_eq!(group["size"], 512 << 10);
    assert!(summary["last_write_end_ns"].as_u64().is_some_and(|at| at > 0));
}

#[test]
fn refaults_are_counted_afterwards() {
    let root = with_group(512);
    add_group(&root, "gone.scope", 1024, 0);
    let kernel = FakeKernel::start(&root);
    let file = root.resolve(format!("{GROUPS}/app.scope/memory.stat"));
    let mut child = command(root.path(), &["reclaim", "--json", "--watch", "3s", "--class", "background", "max"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("omr starts");
    wait_until("both are empty", || {
        ["app.scope", "gone.scope"].iter().all(|group| root.read(format!("{GROUPS}/{group}/memory.current")) == "0\n")
    });
    kernel.end();
    // It has seen that before it begins to watch.
    std::thread::sleep(std::time::Duration::from_secs(1));
    // One goes away, which is no reason to say nothing of the other.
    root.remove(format!("{GROUPS}/gone.scope"));
    replace(&file, &stat(0, 0).replace("refault_anon 0", "refault_anon 3"));
    let mut stdout = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(0), "{stdout}");
    assert_eq!(json(&stdout)["came_back"], 3 * rustix::param::page_size(), "{stdout}");
}

#[test]
fn a_group_that_goes_away_is_an_outcome() {
    let root = with_group(1024 << 10);
    add_group(&root, "next.scope", 512, 0);
    let kernel = FakeKernel::start(&root);
    let child = command(root.path(), &["reclaim", "--json", "--class", "background", "max"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("omr starts");
    let current = root.resolve(format!("{GROUPS}/app.scope/memory.current"));
    wait_until("it has begun", || fs::read_to_string(&current).is_ok_and(|text| text != "1073741824\n"));
    // As a whole, as a kernel does: it cannot be found any more, and what is open has no files.
    fs::rename(root.resolve(format!("{GROUPS}/app.scope")), root.resolve("gone")).expect("renamed");
    fs::remove_dir_all(root.resolve("gone")).expect("removed");
    let (code, stdout, stderr) = text(&child.wait_with_output().expect("an end"));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let summary = json(&stdout);
    assert_eq!((&summary["groups"][0]["end"], &summary["groups"][1]["end"]), (&"gone".into(), &"complete".into()));
    assert_eq!(root.read(format!("{GROUPS}/next.scope/memory.current")), "0\n");
    drop(kernel);
}

/// A user without rights is told so, and nothing is written.
#[test]
fn another_user_is_refused_by_the_file() {
    let root = with_group(1024);
    let Some(output) = omr_as_nobody(&root, &["reclaim", "app.scope", "512K"]) else { return };
    let (code, stdout, stderr) = text(&output);
    assert_eq!((code, stderr.as_str()), (1, ""));
    assert!(stdout.contains("0 B freed") && stdout.contains("Ended: not permitted."), "{stdout}");
    assert_eq!(root.read(format!("{GROUPS}/app.scope/memory.reclaim")), "");
    assert!(!root.resolve("var").exists());
}

/// Two at one group: what the first noted is what must stand there in the end, not what the second
/// sees.
#[test]
fn a_limit_that_another_omr_holds_lowered_is_left_to_it() {
    let root = with_group(1024);
    let dir = format!("{GROUPS}/app.scope");
    let id = fs::metadata(root.resolve(&dir)).expect("the group").ino();
    let file = format!("var/lib/omr/limits/{id}.json");
    write_limit_note(&root, id, "memory.high");
    let note = root.read(&file);
    root.write(format!("{dir}/memory.high"), "1000000\n");
    for program in ["omr", "omr-daemon"] {
        // The other one lives, as far as this machine's /proc tells.
        add_program(&root, 4242, program);
        let (code, stdout, stderr) = text(&omr(&root, &["reclaim", "--backend", "memory.high", "app.scope", "512K"]));
        assert!(code == 4 && stdout.contains("nothing more to free"), "{program}: {stdout}{stderr}");
        assert_eq!(root.read(format!("{dir}/memory.high")), "1000000\n");
        assert_eq!(root.read(&file), note);
    }
    // It ended without putting the limit back: now that is everybody's business.
    root.remove("proc/4242");
    for limit in ["memory.high", "memory.swap.max"] {
        write_limit_note(&root, id, limit);
        root.write(format!("{dir}/{limit}"), "1000000\n");
        omr(&root, &["reclaim", "app.scope", "128K"]);
        assert!(root.read(format!("{dir}/{limit}")).starts_with("max"));
        assert!(!root.resolve(&file).exists());
    }
}

#[test]
fn a_note_of_another_boot_or_of_a_group_made_anew_changes_nothing() {
    let root = with_group(1024);
    let dir = format!("{GROUPS}/app.scope");
    let id = fs::metadata(root.resolve(&dir)).expect("the group").ino();
    let boot = root.read("proc/sys/kernel/random/boot_id").trim().to_owned();
    for (boot, id) in [("another", id), (boot.as_str(), id + 1)] {
        let path = r#"{"Unix":[97,112,112,46,115,99,111,112,101]}"#;
        let note = format!(
            r#"{{"boot":"{boot}","pid":1,"path":{path},"id":{id},"file":"memory.high","value":{{"Bytes":1}}}}"#
        );
        let file = format!("var/lib/omr/limits/{id}.json");
        root.write(&file, note);
        omr(&root, &["reclaim", "app.scope", "128K"]);
        assert_eq!(root.read(format!("{dir}/memory.high")), "max\n");
        assert!(!root.resolve(&file).exists(), "it is of no use any more");
    }
}
