//! A daemon that is told to prepare the machine, on fake roots.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, ledger, wait_until};
use crate::common::{add_group, machine, omr, replace, text};
use omr_testkit::FakeRoot;
use serde_json::{Value, json};

const FOREGROUND: &str = "[[group]]\nmatch = 'fore.scope'\nclass = 'foreground'\n";

/// A daemon that does not sweep by itself: it would have to see a day of idleness.
fn start(root: &FakeRoot, config: &str) -> Daemon {
    root.write("run/omr-root/conf.d/later.toml", "[idle]\nfor = '1d'\n");
    Daemon::start(root, config)
}

fn prepare(purpose: &str, deadline_ms: Option<u64>, why: &str) -> String {
    let mut request = json!({"do": "prepare", "for": purpose, "why": why});
    if let Some(deadline) = deadline_ms {
        request["deadline_ms"] = deadline.into();
    }
    request.to_string()
}

fn prepared(root: &FakeRoot) -> Vec<Value> {
    ledger(root).into_iter().filter(|line| line["kind"] == "prepare").collect()
}

#[test]
fn a_busy_machine_is_prepared_and_foreground_loses_nothing() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 1024);
    add_group(&root, "kept.scope", 0, 4096);
    add_group(&root, "fore.scope", 4096, 4096);
    add_group(&root, "init.scope", 4096, 4096);
    let kernel = FakeKernel::start(&root);
    let keep = "[[group]]\nmatch = 'kept.scope'\nkeep = '3MiB'\n[guard]\nmax_swap_writes = '1MiB/day'\n";
    let daemon = start(&root, &format!("{FOREGROUND}{keep}"));
    // Without a notice nothing happens.
    daemon.wait_for_reason("settling");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(prepared(&root), [Value::Null; 0]);
    assert_eq!(root.read("sys/fs/cgroup/app.scope/memory.current").trim(), (5120 << 10).to_string());

    assert_eq!(daemon.ask(&prepare("preempt", Some(60_000), "spot interruption: terminate")), json!({"ok": null}));
    wait_until("it is prepared", || !prepared(&root).is_empty());
    let line = &prepared(&root)[0];
    assert_eq!((&line["for"], &line["why"]), (&json!("preempt"), &json!("spot interruption: terminate")), "{line}");
    // More went to swap than sweeps may write in a day.
    assert_eq!(line["swapped_out"], 4096 << 10, "{line}");
    assert_eq!(line["freed"], (5120 + 1024) << 10, "{line}");
    daemon.wait_for_reason("settling");
    assert_eq!(daemon.status()["preparing"], Value::Null);
    assert_eq!(daemon.status()["swap"]["written"], 4096 << 10, "the allowance is charged with it");
    let (code, history, _) = text(&omr(&root, &["history"]));
    assert_eq!(code, 0);
    assert!(history.contains("prepared for preempt (spot interruption: terminate): 6.00 MiB freed"), "{history}");
    daemon.end();
    for written in kernel.end() {
        assert!(["app.scope", "kept.scope"].iter().any(|group| written.group == Path::new(group)), "{written:?}");
    }
    assert_eq!(root.read("sys/fs/cgroup/kept.scope/memory.current").trim(), (3072 << 10).to_string());
}

/// So much page cache that freeing it in steps of 128 KiB takes a while.
fn large() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 0, 8 << 20);
    root
}

fn wait_until_it_frees(daemon: &Daemon) {
    wait_until("something is freed", || daemon.status()["preparing"]["freed"].as_u64().is_some_and(|freed| freed > 0));
}

#[test]
fn a_second_notice_changes_the_deadline_and_the_deadline_ends_it() {
    let root = large();
    let kernel = FakeKernel::start(&root);
    let daemon = start(&root, "");
    daemon.ask(&prepare("preempt", Some(100_000), "first"));
    wait_until_it_frees(&daemon);
    let status = daemon.status();
    assert_eq!((&status["preparing"]["for"], &status["preparing"]["why"]), (&json!("preempt"), &json!("first")));
    assert!(status["preparing"]["left_ms"].as_u64().is_some_and(|left| left > 50_000), "{status}");
    let (_, shown, _) = text(&omr(&root, &["status"]));
    assert!(shown.starts_with("preparing for preempt: first; "), "{shown}");
    let freed = daemon.status()["preparing"]["freed"].as_u64().expect("bytes");
    daemon.ask(&prepare("preempt", Some(4_000), "second"));
    let status = daemon.status();
    assert!(status["preparing"]["left_ms"].as_u64().is_some_and(|left| left <= 4_000), "{status}");
    assert!(status["preparing"]["freed"].as_u64().is_some_and(|now| now >= freed), "it goes on: {status}");
    wait_until("it has ended", || !prepared(&root).is_empty());
    let line = &prepared(&root)[0];
    assert_eq!((&line["stop_reason"], &line["why"]), (&json!("time is up"), &json!("second")), "{line}");
    assert!(line["freed"].as_u64().is_some_and(|freed| freed > 0), "{line}");
    daemon.end();
    kernel.end();
}

#[test]
fn a_notice_that_is_withdrawn_ends_it() {
    let root = large();
    let kernel = FakeKernel::start(&root);
    let daemon = start(&root, "");
    daemon.ask(&prepare("migrate", None, "Freeze"));
    wait_until_it_frees(&daemon);
    assert_eq!(daemon.ask(r#"{"do":"stand-down"}"#), json!({"ok": null}));
    wait_until("it has ended", || !prepared(&root).is_empty());
    assert_eq!(prepared(&root)[0]["stop_reason"], "not announced any more");
    daemon.wait_for_reason("settling");
    assert_eq!(daemon.ask(r#"{"do":"stand-down"}"#), json!({"ok": null}), "with nothing to end");
    daemon.end();
    kernel.end();
}

#[test]
fn a_machine_that_goes_to_sleep_ends_it_and_no_other_pause_does() {
    for purpose in ["preempt", "hibernate"] {
        let root = large();
        let kernel = FakeKernel::start(&root);
        let daemon = start(&root, "");
        daemon.ask(&prepare(purpose, Some(100_000), "notice"));
        wait_until_it_frees(&daemon);
        // The control: sweeps are paused, what was asked for is not.
        daemon.ask(r#"{"do":"pause","seconds":60}"#);
        let freed = daemon.status()["preparing"]["freed"].as_u64().expect("it goes on");
        wait_until("more is freed", || daemon.status()["preparing"]["freed"].as_u64().is_some_and(|now| now > freed));
        assert_eq!(prepared(&root), [Value::Null; 0]);
        assert_eq!(daemon.ask(r#"{"do":"fall-asleep"}"#), json!({"ok": null}));
        wait_until("it has ended", || !prepared(&root).is_empty());
        assert_eq!(prepared(&root)[0]["stop_reason"], "the machine is about to sleep", "{purpose}");
        wait_until("that is all", || daemon.status()["preparing"] == Value::Null);
        daemon.end();
        kernel.end();
    }
}

#[test]
fn before_a_move_what_is_free_is_compacted_for_the_host() {
    for (purpose, compacted) in [("preempt", ""), ("migrate", "1")] {
        let root = machine();
        add_group(&root, "app.scope", 0, 4096);
        root.write("sys/module/page_reporting/parameters/page_reporting_order", "9\n");
        root.write("proc/sys/vm/compact_memory", "");
        let kernel = FakeKernel::start(&root);
        let daemon = start(&root, "");
        daemon.ask(&prepare(purpose, Some(9_000), "event"));
        wait_until("it is prepared", || !prepared(&root).is_empty());
        daemon.wait_for_reason("settling");
        assert_eq!(prepared(&root)[0]["freed"], 4096 << 10);
        assert_eq!(root.read("proc/sys/vm/compact_memory"), compacted, "{purpose}");
        daemon.end();
        kernel.end();
    }
}

#[test]
fn another_purpose_begins_anew() {
    let root = large();
    let kernel = FakeKernel::start(&root);
    let daemon = start(&root, "");
    daemon.ask(&prepare("preempt", Some(100_000), "first"));
    wait_until_it_frees(&daemon);
    daemon.ask(&prepare("hibernate", Some(100_000), "second"));
    wait_until("the first has ended", || !prepared(&root).is_empty());
    let line = &prepared(&root)[0];
    let expected = (&json!("preempt"), &json!("first"), &json!("something else is to be prepared for"));
    assert_eq!((&line["for"], &line["why"], &line["stop_reason"]), expected);
    wait_until("the second runs", || daemon.status()["preparing"]["freed"].as_u64().is_some_and(|freed| freed > 0));
    assert_eq!(daemon.status()["preparing"]["for"], "hibernate");
    // Told to end in the middle of it.
    let log = daemon.end();
    assert!(log.contains("what can be freed is freed all the same"), "there is no /sys/power here: {log}");
    assert_eq!(prepared(&root).len(), 2);
    kernel.end();
}

#[test]
fn swap_that_comes_after_the_notice_makes_the_image_the_goal() {
    let root = large();
    for (file, text) in [
        ("sys/power/state", "freeze mem disk"),
        ("sys/power/disk", "[platform] shutdown"),
        ("sys/power/resume", "254:0"),
        ("sys/power/resume_offset", "0"),
        ("sys/power/image_size", "188059648"),
        ("sys/power/reserved_size", "1048576"),
        ("sys/class/block/vda/dev", "254:0"),
    ] {
        root.write(file, format!("{text}\n"));
    }
    let with_swap = root.read("proc/swaps");
    root.write("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
    let kernel = FakeKernel::start(&root);
    let daemon = start(&root, "");
    daemon.ask(&prepare("hibernate", Some(300_000), "notice"));
    wait_until_it_frees(&daemon);
    // The control: while there is none, it goes on as it began.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(prepared(&root), [Value::Null; 0]);
    replace(&root.resolve("proc/swaps"), &with_swap);
    wait_until("both have ended", || prepared(&root).len() == 2);
    for (line, reason) in prepared(&root).iter().zip(["the machine can hibernate now", "done"]) {
        let expected = (&json!("hibernate"), &json!("notice"), &json!(reason));
        assert_eq!((&line["for"], &line["why"], &line["stop_reason"]), expected);
    }
    // The goal was no longer free memory, so more could have been reclaimed.
    assert_ne!(root.read("sys/fs/cgroup/app.scope/memory.current").trim(), "0");
    wait_until("that is all", || daemon.status()["preparing"] == Value::Null);
    let log = daemon.end();
    assert_eq!(log.matches("what can be freed is freed all the same").count(), 1, "once, at the beginning: {log}");
    kernel.end();
}

#[test]
fn a_running_sweep_makes_way() {
    let root = large();
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, "");
    wait_until("it is swept", || daemon.status()["sweep"]["freed"].as_u64().is_some_and(|freed| freed > 0));
    daemon.ask(&prepare("preempt", Some(100_000), "notice"));
    wait_until_it_frees(&daemon);
    let sweeps = || ledger(&root).into_iter().filter(|line| line["kind"] == "sweep").collect::<Vec<Value>>();
    // The line comes when the sweep has ended, which on a busy machine takes a moment.
    wait_until("the sweep is in the ledger", || !sweeps().is_empty());
    assert_eq!(sweeps()[0]["stop_reason"], "preparing for preempt: notice");
    daemon.ask(r#"{"do":"stand-down"}"#);
    // And goes on afterwards.
    wait_until("it is swept again", || daemon.status()["sweep"]["freed"].as_u64().is_some_and(|freed| freed > 0));
    daemon.end();
    kernel.end();
}

#[test]
fn senseless_requests_are_refused() {
    let root = machine();
    let daemon = start(&root, "");
    let answer = daemon.ask(&prepare("preempt", Some(500), "late"));
    assert_eq!(answer["error"], "there is no time left to prepare in");
    for request in [
        prepare("dinner", None, "x"),
        r#"{"do":"prepare","for":"preempt"}"#.into(),
        r#"{"do":"prepare","for":"preempt","why":"x","deadline_ms":-1}"#.into(),
    ] {
        let answer = daemon.ask(&request);
        assert!(
            answer["error"].as_str().is_some_and(|error| error.starts_with("not a request")),
            "{request}: {answer}"
        );
    }
    let answer = daemon.ask(&prepare("preempt", Some(u64::MAX), &format!("\u{1b}[31m{}", "x".repeat(3000))));
    assert_eq!(answer, json!({"ok": null}));
    wait_until("it is over", || !prepared(&root).is_empty());
    let why = prepared(&root)[0]["why"].as_str().expect("a reason").to_owned();
    assert!(why.len() < 300 && !why.contains('\u{1b}'), "{why}");
    daemon.end();
}

/// Asks as the user and group of these numbers. Only this thread's are changed, by the bare system
/// calls.
fn ask_as(socket: &Path, uid: u32, gid: u32, request: &str) -> Value {
    let (socket, request) = (socket.to_owned(), request.to_owned());
    let thread = std::thread::spawn(move || {
        // SAFETY: two system calls with numbers; -1 leaves the other ids as they are.
        let changed = unsafe {
            libc::syscall(libc::SYS_setresgid, -1, gid, -1) | libc::syscall(libc::SYS_setresuid, -1, uid, -1)
        };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
        let mut stream = UnixStream::connect(socket).expect("the group may connect");
        stream.write_all(format!("{request}\n").as_bytes()).expect("asked");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    });
    thread.join().expect("asked")
}

#[test]
fn only_root_and_the_user_of_watch_may_have_it_prepared() {
    // SAFETY: takes nothing, changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIP: only root can ask as somebody else");
        return;
    }
    let (omr_group, watch, somebody) = (64_100, 64_101, 64_102);
    let root = machine();
    root.write("etc/group", format!("root:x:0:\nomr:x:{omr_group}:\n"));
    root.write(
        "etc/passwd",
        format!("root:x:0:0::/:/bin/sh\nomr-watch:x:{watch}:{watch}:omr watch:/:/usr/sbin/nologin\n"),
    );
    let daemon = start(&root, "");
    for dir in ["", "run", "run/omr"] {
        std::fs::set_permissions(root.resolve(dir), Permissions::from_mode(0o755)).expect("open to all");
    }
    let socket = daemon.socket();
    let notice = prepare("preempt", Some(60_000), "notice");
    let refused = json!({"error": "only root may do that"});
    let done = json!({"ok": null});
    for (request, by_watch, by_somebody) in [
        (r#"{"do":"stand-down"}"#, &done, &refused),
        (notice.as_str(), &done, &refused),
        (r#"{"do":"pause"}"#, &refused, &refused),
        (r#"{"do":"resume"}"#, &refused, &refused),
    ] {
        assert_eq!(&ask_as(&socket, somebody, omr_group, request), by_somebody, "{request}");
        assert_eq!(&ask_as(&socket, watch, omr_group, request), by_watch, "{request}");
    }
    for uid in [watch, somebody] {
        assert!(ask_as(&socket, uid, omr_group, r#"{"do":"status"}"#)["ok"]["pid"].is_u64());
    }
    // The package is removed, and the number is given to somebody else.
    root.write("etc/passwd", format!("root:x:0:0::/:/bin/sh\neve:x:{watch}:{watch}::/:/bin/sh\n"));
    assert_eq!(ask_as(&socket, watch, omr_group, &notice), refused);
    daemon.end();
}
