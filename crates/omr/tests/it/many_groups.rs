//! `omr top` and `omr web` beside a daemon that has 10,000 groups.

use omr_history::{Sample, Store};
use omr_kernel::clock;
use omr_testkit::FakeRoot;
use omr_units::{Bytes, GroupId};
use serde_json::Value;

use crate::common::running::{Daemon, wait_until};
use crate::common::{add_group, machine, memory_kib};
use crate::top::{Terminal, top};
use crate::web::{Server, paths};

const GROUPS: u64 = 10_000;
const SLICE: u64 = 100;
const LARGEST: &str = "load-99.slice/job-9999.scope";
const SMALLEST: &str = "load-0.slice/job-0.scope";
const HOSTILE: &str = "<b>\u{1b}[31mred\n";

/// The memory that a program may keep for what it shows. The goal, 12 MiB resident, is that of a
/// release build, whose code is 4 MiB: docs/measure/self.md#watched.
const MOST_KIB: u64 = 4 << 10;

/// A machine with this many groups, of which the last one is the largest, and with the samples of
/// 200 others.
fn machine_with_groups() -> (FakeRoot, Daemon) {
    let root = machine();
    for number in 0..GROUPS {
        let path = format!("load-{}.slice/job-{number}.scope", number / SLICE);
        add_group(&root, path, 1024 + number, 0);
    }
    add_group(&root, HOSTILE, 11_000, 0);
    let history = root.resolve("var/lib/omr/history");
    std::fs::create_dir_all(&history).expect("a directory");
    let sample = |number: u64| {
        let path = format!("load-{}.slice/job-{number}.scope", number / SLICE);
        Sample::of_anon(path, GroupId(1 << 40 | number), Bytes::mib(1))
    };
    let samples: Vec<Sample> = (GROUPS / 2..GROUPS / 2 + 200).map(sample).collect();
    Store::new(&history, "b", Bytes::mib(64)).add(clock::read_wall(), &samples);
    let daemon = Daemon::start(&root, "");
    wait_until("all groups", || daemon.status()["groups_total"].as_u64().is_some_and(|total| total > GROUPS));
    (root, daemon)
}

#[test]
fn top_shows_the_largest_and_stays_small() {
    let (root, daemon) = machine_with_groups();
    let Some(terminal) = Terminal::start((120, 40), &top(&root, "")) else { return };
    terminal.wait_for("job-9999.scope");
    terminal.wait_for("1 What was not used?");
    let screen = terminal.wait_for("10.8 MiB");
    assert!(!screen.contains("job-0.scope") && screen.lines().all(|line| line.chars().count() <= 120), "{screen}");
    // By name, then one slice folded.
    terminal.keys(&["s", "s", "s", "s", "Home", "Down", "Down"]);
    terminal.wait_for("by name");
    terminal.keys(&["Space"]);
    terminal.wait_for("▸");
    for (filter, found) in [("job-9999", true), ("job-5001", true), ("job-none", false)] {
        terminal.keys(&["/", filter, "Enter"]);
        let screen = terminal.wait_for(&format!("only \"{filter}\""));
        let name = format!("{filter}.scope");
        assert!(screen.contains(if found { &name } else { "no group has this" }), "{screen}");
        terminal.keys(&["Escape"]);
        terminal.wait_for("load-51.slice");
    }
    terminal.keys(&["End"]);
    // Each order, many times, with the tree made again for each.
    (0..20).for_each(|_| terminal.keys(&["s", "Home", "PageDown", "End"]));
    terminal.keys(&["Home", "Enter"]);
    terminal.wait_for("Esc back");
    let used = memory_kib(terminal.pid().unsigned_abs(), "RssAnon");
    println!("omr top: {used} KiB, {} KiB resident", memory_kib(terminal.pid().unsigned_abs(), "VmRSS"));
    assert!(used <= MOST_KIB, "{used} KiB");
    terminal.keys(&["q"]);
    terminal.wait_for("ended with 0");
    terminal.assert_restored();
    daemon.end();
}

#[test]
fn web_answers_with_the_largest_and_stays_small() {
    let (root, daemon) = machine_with_groups();
    let server = Server::start(&root, &[]);
    let mut events = server.events();
    let status = events.wait_for("the groups", |event| event["status"]["groups_total"].as_u64() > Some(GROUPS));
    let live = status["status"]["groups"].as_array().expect("groups");
    assert_eq!(live.len(), 100);
    assert!(status.to_string().len() < 200_000, "{} bytes", status.to_string().len());
    let groups = server.json("/api/groups");
    for (path, is_there) in
        [(LARGEST, true), (HOSTILE, true), ("load-50.slice/job-5001.scope", true), (SMALLEST, false)]
    {
        assert_eq!(paths(&groups).contains(&path), is_there, "{path}");
    }
    let (count, bytes) = (paths(&groups).len(), groups.to_string().len());
    assert!(count < 310 && bytes < 200_000, "{count} groups, {bytes} bytes");
    for group in ["", LARGEST, SMALLEST] {
        let charts = server.json(&format!("/api/charts?group={group}&columns=800"));
        assert_eq!(charts["charts"]["group"], group);
        assert!(charts.to_string().len() < 2_000_000, "{} bytes", charts.to_string().len());
        // The daemon knows all of them.
        let lines = server.json(&format!("/api/explain?group={group}"));
        assert!(lines["lines"].as_array().is_some_and(|lines| !lines.is_empty()), "{lines}");
    }
    for _ in 0..20 {
        server.json("/api/groups");
        server.json("/api/charts?columns=1000");
    }
    let used = memory_kib(server.child.id(), "RssAnon");
    println!("omr web: {used} KiB, {} KiB resident", memory_kib(server.child.id(), "VmRSS"));
    assert!(used <= MOST_KIB, "{used} KiB");
    assert_ne!(events.next()["status"], Value::Null);
    server.end();
    daemon.end();
}
