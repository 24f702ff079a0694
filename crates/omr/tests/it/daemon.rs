//! `omr daemon` on fake roots, and the commands that ask it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, SOON, daemon_command, ledger, refused, swept, wait_until};
use crate::common::{GROUPS, STEADY, add_group, machine, omr, replace, set_line, text, write_lock};
use omr_testkit::FakeRoot;
use serde_json::Value;

const FOREGROUND: &str = "[[group]]\nmatch = 'fore.scope'\nclass = 'foreground'\n";

fn ok(root: &FakeRoot, args: &[&str]) -> String {
    let (code, stdout, stderr) = text(&omr(root, args));
    assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    stdout
}

/// With half a gigabyte of swap, the resume device.
fn can_hibernate(root: &FakeRoot) {
    for (file, text) in [
        ("power/state", "freeze mem disk\n"),
        ("power/disk", "[platform] shutdown\n"),
        ("power/resume", "254:0\n"),
        ("power/resume_offset", "0\n"),
        ("power/image_size", "188059648\n"),
        ("class/block/vda/dev", "254:0\n"),
    ] {
        root.write(Path::new("sys").join(file), text);
    }
}

#[test]
fn with_hibernation_as_its_goal_it_sweeps_until_the_image_is_small_enough() {
    let root = machine();
    can_hibernate(&root);
    add_group(&root, "app.scope", 0, 64 << 10);
    let kernel = FakeKernel::start(&root);
    // 249 MiB or so before.
    let daemon = Daemon::start(&root, "goal = 'hibernate'\nhibernate.image = '230MiB'\n");
    let status = daemon.wait_for_reason("small-image");
    assert_eq!(status["image"]["is_goal"], true);
    let image = status["image"]["forecast"]["in_use"].as_u64().expect("bytes");
    let swept = swept(&root, "app.scope").expect("a line");
    assert!(swept["freed"].as_u64().is_some_and(|freed| (17 << 20..60 << 20).contains(&freed)), "{swept}");
    assert!(image < 270 << 20, "{status}");
    let shown = ok(&root, &["status"]);
    assert!(shown.contains("ready to hibernate: ") && shown.contains(" is small enough"), "{shown}");
    daemon.end();
    kernel.end();
}

#[test]
fn with_hibernation_as_its_goal_it_leaves_a_machine_alone_that_cannot_hibernate() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, "goal = 'hibernate'\n");
    daemon.wait_for_reason("cannot-hibernate");
    let shown = ok(&root, &["status"]);
    assert!(shown.contains("cannot hibernate: this kernel cannot hibernate"), "{shown}");
    assert!(ok(&root, &["explain", "app.scope"]).contains("not swept: this machine cannot hibernate"));
    daemon.end();
    assert!(kernel.end().iter().all(|write| write.data.starts_with('0')), "nothing was asked for");
}

/// Checks `omr status` after one sweep of app.scope.
fn assert_status_tells_of_a_sweep(root: &FakeRoot, daemon: &Daemon) {
    let status = daemon.wait_for_reason("nothing-to-gain");
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["mode"], "act");
    assert_eq!((&status["today"]["sweeps"], &status["today"]["freed"]), (&1.into(), &(5120 << 10).into()));
    assert_eq!(status["groups_total"], 4, "the root is one of them");
    assert_eq!(ok(root, &["status", "--json"]).parse::<Value>().expect("JSON")["pid"], daemon.pid());
    let shown = ok(root, &["status"]);
    assert!(
        shown.contains("today: 1 sweep, 5.00 MiB freed, 0 B came back (0 %), swap written 4.00 MiB of 20.0 GiB"),
        "{shown}"
    );
    // The groups here have no memory.pressure.
    assert!(
        shown
            .contains("\nheld out: 0 B now; today 0 B on average, cost at least 0 ms of waiting and 0 B of refaults\n"),
        "{shown}"
    );
    assert!(
        shown.lines().any(|line| line.starts_with("  foreground  fore.scope ") && line.ends_with("never swept")),
        "{shown}"
    );
}

/// Checks `omr explain` after one sweep of app.scope.
fn assert_groups_are_explained(root: &FakeRoot) {
    let machine_explained = ok(root, &["explain"]);
    assert!(machine_explained.starts_with("not sweeping: no group has anything to gain"), "{machine_explained}");
    assert!(machine_explained.contains("guards: free swap 512 MiB of 512 MiB"), "{machine_explained}");
    let explained = ok(root, &["explain", "/sys/fs/cgroup/fore.scope/"]);
    assert!(
        explained
            .starts_with("not swept: class foreground: loses no memory\nclass: foreground: matched \"fore.scope\""),
        "{explained}"
    );
    let explained: Value = ok(root, &["explain", "--json", "app.scope"]).parse().expect("JSON");
    assert_eq!(
        (&explained["group"], &explained["reason"]["kind"]),
        (&"app.scope".into(), &"too-small".into()),
        "{explained}"
    );
    let (code, _, stderr) = text(&omr(root, &["explain", "nobody"]));
    assert_eq!((code, stderr.as_str()), (1, "omr: there is no group nobody; systemd-cgls lists the groups\n"));
}

#[test]
fn an_idle_machine_is_swept_and_the_daemon_tells_of_it() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 1024);
    add_group(&root, "fore.scope", 4096, 0);
    add_group(&root, "init.scope", 4096, 0);
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, FOREGROUND);
    wait_until("the sweep is in the ledger", || swept(&root, "app.scope").is_some());
    let line = swept(&root, "app.scope").expect("a line");
    assert_eq!(line["end"], "complete", "{line}");
    assert_eq!((&line["freed_anon"], &line["freed_file"]), (&(4096 << 10).into(), &(1024 << 10).into()), "{line}");
    assert_eq!(line["freed"], 5120 << 10);
    assert_eq!(line["swapped_out"], 4096 << 10);
    assert!(line["start_reason"].as_str().unwrap().starts_with("idle for "), "{line}");

    assert_status_tells_of_a_sweep(&root, &daemon);
    assert_groups_are_explained(&root);

    let history = ok(&root, &["history"]);
    assert!(
        history.contains("  app.scope: 5.00 MiB freed (anon 4.00 MiB, file 1.00 MiB), 4.00 MiB to swap, "),
        "{history}"
    );
    assert_eq!(ok(&root, &["history", "--json"]).lines().count(), 1);
    assert_eq!(ok(&root, &["history", "-n", "0"]), "");

    let log = daemon.end();
    assert!(log.ends_with("omr: omr ended\n"), "{log}");
    let touched = kernel.end();
    assert!(touched.iter().all(|write| write.group == Path::new("app.scope")), "{touched:?}");
    assert_eq!(root.read("sys/fs/cgroup/fore.scope/memory.current"), "4194304\n");

    let (code, _, stderr) = text(&omr(&root, &["status"]));
    assert_eq!(code, 1);
    assert!(stderr.starts_with("omr: the daemon is not running (no answer on "), "{stderr}");
    // What it has done is known without it, and to the next one.
    assert_eq!(ok(&root, &["history"]), history);
    let next = Daemon::start(&root, "");
    assert_eq!(next.status()["today"]["freed"], 5120 << 10);
    assert_eq!(next.ask(r#"{"do":"explain"}"#)["ok"]["group"], Value::Null);
    next.end();
}

#[test]
fn observing_writes_nothing_to_the_kernel() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    let files = |name: &str| root.read(format!("{GROUPS}/app.scope/{name}"));
    let daemon = Daemon::start(&root, "mode = 'observe'");
    wait_until("a sweep is noted", || swept(&root, "app.scope").is_some());
    let line = swept(&root, "app.scope").expect("a line");
    assert_eq!((&line["observed"], &line["freed"], &line["asked"]), (&true.into(), &0.into(), &(4096 << 10).into()));
    assert_eq!((files("memory.reclaim").as_str(), files("memory.high").as_str()), ("", "max\n"));
    assert!(ok(&root, &["status"]).contains("mode observe: decides and records, but reclaims nothing"));
    assert_eq!(daemon.status()["today"]["sweeps"], 0);
    assert!(ok(&root, &["history"]).contains("app.scope: observed only, 0 B freed"));
    daemon.end();
    assert_eq!(files("memory.reclaim"), "");
}

#[test]
fn a_bad_file_keeps_the_configuration_that_was_there() {
    let root = machine();
    let daemon = Daemon::start(&root, "");
    let good = root.read("etc/omr/omr.toml");
    root.write("etc/omr/omr.toml", good.replace("for = '1s'", "for = 1"));
    daemon.signal(libc::SIGHUP);
    wait_until("it says so", || daemon.log().contains("the configuration stays as it was"));
    assert!(daemon.log().contains("omr.toml:4: idle.for"), "{}", daemon.log());
    daemon.wait_for_reason("nothing-to-gain");
    root.write("etc/omr/omr.toml", good.replace("for = '1s'", "for = '1h'"));
    daemon.signal(libc::SIGHUP);
    wait_until("it says so", || daemon.log().contains("configuration read again"));
    let reason = daemon.wait_for_reason("settling")["decision"]["reason"].clone();
    assert_eq!(reason["needed"]["secs"], 3600, "{reason}");
    daemon.end();
}

#[test]
fn a_wrong_configuration_is_refused_at_the_start() {
    let root = machine();
    root.write("etc/omr/omr.toml", "[idle]\nfro = '1s'\n");
    let (code, stderr) = refused(&root);
    assert_eq!(code, 2);
    assert!(stderr.contains("omr.toml:2: idle.fro: unknown key; did you mean \"for\"?"), "{stderr}");
    assert!(!root.resolve("run/omr").exists() && !root.resolve("var").exists());
}

#[test]
fn the_second_daemon_names_the_first() {
    let root = machine();
    let mut first = Daemon::start(&root, "");
    let (code, stderr) = refused(&root);
    assert_eq!(code, 1);
    let expected = format!("omr: a daemon is running already (pid {}); omr status shows it\n", first.pid());
    assert_eq!(stderr, expected);
    assert_eq!(first.status()["pid"], first.pid(), "its socket is still there");
    // One that was killed is no obstacle, and neither is what it left.
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(first.socket().exists());
    Daemon::start(&root, "").end();
}

#[test]
fn pause_and_resume() {
    let root = machine();
    let daemon = Daemon::start(&root, "");
    ok(&root, &["pause", "--for", "90s"]);
    let status = daemon.wait_for_reason("paused");
    assert!(status["reason"].as_str().unwrap().starts_with("paused for another "), "{status}");
    ok(&root, &["pause"]);
    wait_until("for good", || daemon.status()["reason"] == "paused until omr resume");
    assert!(ok(&root, &["explain"]).starts_with("not sweeping: paused until omr resume"));
    ok(&root, &["resume"]);
    daemon.wait_for_reason("nothing-to-gain");
    daemon.end();
}

#[test]
fn the_service_manager_hears_of_it() {
    let root = machine();
    let path = root.resolve("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut heard = String::new();
    let mut hear = |wanted: &str| {
        wait_until(wanted, || {
            let mut message = [0u8; 4096];
            while let Ok(length) = socket.recv(&mut message) {
                heard += &String::from_utf8_lossy(&message[..length]);
                heard.push('\n');
            }
            heard.contains(wanted)
        });
        heard.clone()
    };
    let daemon = Daemon::start_with(&root, "", |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let first = hear("READY=1");
    assert!(!first.contains("STOPPING=1"), "{first}");
    hear("WATCHDOG=1");
    hear("STATUS=no group has anything to gain");
    daemon.end();
    hear("STOPPING=1");
}

/// A daemon that does not outlive a test that fails.
struct KilledWhenDropped(Child);

impl Drop for KilledWhenDropped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends to a socket until its queue is full.
fn fill(socket: &impl AsRawFd) {
    // SAFETY: a pointer to a constant of this length.
    while unsafe { libc::send(socket.as_raw_fd(), c"full\n".as_ptr().cast(), 5, libc::MSG_DONTWAIT) } > 0 {}
    assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn it_works_on_while_the_readers_of_its_log_and_of_its_state_hang() {
    let root = machine();
    let path = root.resolve("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    root.write("etc/omr/omr.toml", format!("goal = 'free'\n{SOON}{STEADY}"));
    let (log, _unread) = UnixStream::pair().expect("a socket");
    let mut command = daemon_command(root.path());
    command.arg("--foreground").env("NOTIFY_SOCKET", &path).env("OMR_LOG", "debug");
    let stderr = OwnedFd::from(log.try_clone().expect("a copy"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut daemon = KilledWhenDropped(command.spawn().expect("it starts"));
    let mut message = [0; 4096];
    let length = manager.recv(&mut message).expect("a message");
    assert_eq!(&message[..length], b"READY=1\n");
    fill(&log);
    let to_manager = UnixDatagram::unbound().expect("a socket");
    to_manager.connect(&path).expect("a manager");
    fill(&to_manager);
    // A sweep is logged, and each decision is told to the manager.
    let kernel = FakeKernel::start(&root);
    add_group(&root, "app.scope", 4096, 1024);
    wait_until("the sweep is in the ledger", || swept(&root, "app.scope").is_some());
    let (code, ..) = text(&omr(&root, &["status"]));
    assert_eq!(code, 0);
    // SAFETY: the child has not been waited for, so the pid is its own.
    unsafe { libc::kill(i32::try_from(daemon.0.id()).expect("a pid"), libc::SIGTERM) };
    let mut status = None;
    wait_until("the daemon has ended", || {
        status = daemon.0.try_wait().expect("a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    // The control: the manager hangs still.
    fill(&to_manager);
    kernel.end();
}

#[test]
fn a_busy_machine_is_left_alone() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    let mut ticks = 1_000_000u64;
    let busy = |ticks: u64| {
        let text = format!("cpu  {ticks} 0 0 0 0 0 0 0 0 0\ncpu0 {ticks} 0 0 0 0 0 0 0 0 0\n");
        replace(&root.resolve("proc/stat"), &text);
    };
    busy(ticks);
    let daemon = Daemon::start(&root, "");
    wait_until("it is found busy", || {
        ticks += 1000;
        busy(ticks);
        daemon.status()["decision"]["reason"]["kind"] == "low-headroom"
    });
    let explained = ok(&root, &["explain", "app.scope"]);
    assert!(explained.contains("next: a sweep of up to 4.00 MiB once the machine is idle"), "{explained}");
    assert!(ledger(&root).is_empty());
    // And as soon as it is not any more, it is swept.
    wait_until("it is swept", || swept(&root, "app.scope").is_some());
    daemon.end();
}

#[test]
fn work_that_begins_ends_a_sweep() {
    let root = machine();
    // Enough that it takes a while: 512 writes.
    add_group(&root, "app.scope", 64 << 10, 0);
    add_group(&root, "fore.scope", 1024, 0);
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, FOREGROUND);
    let mut used = 1000u64;
    wait_until("the sweep is over", || {
        if root.read(format!("{GROUPS}/app.scope/memory.current")) != "67108864\n" {
            used += 1_000_000;
            let file = root.resolve(format!("{GROUPS}/fore.scope/cpu.stat"));
            replace(&file, &format!("usage_usec {used}\n"));
        }
        swept(&root, "app.scope").is_some()
    });
    let line = swept(&root, "app.scope").expect("a line");
    assert_eq!(line["end"], "stopped", "{line}");
    assert!(line["stop_reason"].as_str().unwrap().starts_with("work began: "), "{line}");
    assert!(line["freed"].as_u64().unwrap() < 64 << 20, "{line}");
    // Work is over: it goes on where it was.
    wait_until("the rest is swept", || {
        ledger(&root).iter().any(|line| line["group"] == "app.scope" && line["end"] == "complete")
    });
    let freed: u64 = ledger(&root).iter().filter_map(|line| line["freed"].as_u64()).sum();
    assert_eq!(freed, 64 << 20);
    daemon.end();
    drop(kernel);
}

#[test]
fn a_group_that_gets_the_focus_is_left_at_once() {
    let root = machine();
    add_group(&root, "app.scope", 64 << 10, 0);
    let group = root.resolve(format!("{GROUPS}/app.scope"));
    if rustix::process::geteuid().is_root() {
        // As an application's group does, it belongs to a user.
        std::os::unix::fs::chown(&group, Some(1000), None).expect("chown");
    }
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, "");
    let set_focus = |value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&group, "user.xdg.inactive-since", value.as_bytes(), flags).expect("an attribute");
    };
    wait_until("the sweep is over", || {
        if root.read(format!("{GROUPS}/app.scope/memory.current")) != "67108864\n" {
            set_focus("-1");
        }
        swept(&root, "app.scope").is_some()
    });
    let line = swept(&root, "app.scope").expect("a line");
    assert_eq!((&line["end"], &line["stop_reason"]), (&"stopped".into(), &"class foreground: loses no memory".into()));
    assert!(line["freed"].as_u64().unwrap() < 64 << 20, "{line}");
    let explained = ok(&root, &["explain", "app.scope"]);
    assert!(explained.contains("class: foreground: it has the focus"), "{explained}");
    // It is the focus that keeps it.
    set_focus("0");
    wait_until("the rest is swept", || {
        ledger(&root).iter().filter_map(|line| line["freed"].as_u64()).sum::<u64>() == 64 << 20
    });
    daemon.end();
    drop(kernel);
}

#[test]
fn todays_swap_writes_survive_a_restart() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    let kernel = FakeKernel::start(&root);
    let mut daemon = Daemon::start(&root, "");
    wait_until("a sweep", || swept(&root, "app.scope").is_some());
    daemon.signal(libc::SIGKILL);
    daemon.wait();
    drop(kernel);
    // 4 MiB of 5 are used up.
    set_line(&root, "proc/meminfo", "SwapFree:", "524284 kB");
    add_group(&root, "next.scope", 4096, 0);
    let daemon = Daemon::start(&root, "");
    wait_until("a status", || daemon.status()["swap"]["written"] == 4096 << 10);
    daemon.end();
}

/// Limits are read every half minute; what has been protected since is found right before the first
/// write.
#[test]
fn protection_that_came_after_the_last_look_is_respected() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 0);
    add_group(&root, "half.scope", 4096, 0);
    let kernel = FakeKernel::start(&root);
    // Time enough to get there before the first sweep.
    root.write("etc/omr/omr.toml", format!("goal = 'free'\n[idle]\nfor = '5s'\nwindow = '1s'\n{STEADY}"));
    let daemon = Daemon::spawn(&root, |_| {});
    wait_until("the daemon is ready", || daemon.log().contains(" started"));
    root.write(format!("{GROUPS}/app.scope/memory.low"), "max\n");
    root.write(format!("{GROUPS}/half.scope/memory.min"), "3145728\n");
    wait_until("both are done with", || ["app.scope", "half.scope"].iter().all(|group| swept(&root, group).is_some()));
    for (group, freed) in [("app.scope", 0), ("half.scope", 1 << 20)] {
        let line = swept(&root, group).expect("a line");
        assert_eq!((&line["end"], &line["freed"]), (&"floor".into(), &freed.into()), "{line}");
    }
    daemon.end();
    kernel.end();
}

#[test]
fn memory_that_warm_brings_back_is_no_refault() {
    for warm in [true, false] {
        let root = machine();
        add_group(&root, "app.scope", 4096, 1024);
        let lock = write_lock(&root, "run/omr-root/warm.lock", "");
        let _kernel = FakeKernel::start(&root);
        let daemon = Daemon::start(&root, "");
        wait_until("the sweep is in the ledger", || swept(&root, "app.scope").is_some());
        if warm {
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
            daemon.wait_for_reason("warming");
        }
        // 16 MiB came back.
        let file = root.resolve(format!("{GROUPS}/app.scope/memory.stat"));
        let text = std::fs::read_to_string(&file).expect("text");
        replace(&file, &text.replace("workingset_refault_anon 0", "workingset_refault_anon 4096"));
        drop(lock);
        let kind = || {
            let explained: Value = ok(&root, &["explain", "--json", "app.scope"]).parse().expect("JSON");
            explained["reason"]["kind"].as_str().unwrap_or("none").to_owned()
        };
        if warm {
            daemon.wait_for_reason("nothing-to-gain");
            // Longer than between two scans.
            std::thread::sleep(Duration::from_secs(7));
            assert_eq!(kind(), "too-small");
        } else {
            wait_until("it backs off", || kind() == "backing-off");
        }
        daemon.end();
    }
}
