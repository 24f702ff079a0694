//! Statements that a client of the daemon holds, as `omr follow` does: they count until it lets go.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, ledger, wait_until};
use crate::common::{add_group, machine, omr, text};
use omr_testkit::FakeRoot;
use serde_json::{Value, json};

/// A client of the daemon that stays.
struct Holder(UnixStream);

impl Holder {
    fn connect(root: &Path) -> Holder {
        Holder(UnixStream::connect(root.join("run/omr/omr.sock")).expect("the daemon"))
    }

    fn hold(&mut self, statements: &Value) -> Value {
        let request = json!({"do": "hold", "statements": statements});
        self.0.write_all(format!("{request}\n").as_bytes()).expect("written");
        let mut answer = String::new();
        BufReader::new(&self.0).read_line(&mut answer).expect("an answer");
        answer.parse().expect("JSON")
    }
}

#[test]
fn a_statement_holds_until_its_client_leaves() {
    let root = machine();
    add_group(&root, "app.scope", 200 << 10, 0);
    let _kernel = FakeKernel::start(&root);
    let _daemon = Daemon::start(&root, "mode = 'observe'\n");
    let class = || text(&omr(&root, &["explain", "app.scope"])).1;
    let statement = |word: &str, group: &str| json!([{"word": word, "of": {"group": group}}]);
    assert!(class().contains("no rule matched"), "{}", class());
    let mut holder = Holder::connect(root.path());
    assert_eq!(holder.hold(&statement("present", "app.scope")), json!({"ok": 0}));
    assert!(class().contains("foreground: its user is at the machine (omr follow)"), "{}", class());
    // Two say so: it is true until the last of them leaves.
    let mut other = Holder::connect(root.path());
    assert_eq!(other.hold(&statement("foreground", "app.scope")), json!({"ok": 0}));
    assert!(class().contains("foreground: omr foreground"), "{}", class());
    drop(other);
    wait_until("the first one's word", || class().contains("its user is at the machine"));
    // What is gone is passed over; less care cannot be held.
    assert_eq!(holder.hold(&statement("present", "other.scope")), json!({"ok": 0}));
    assert!(class().contains("no rule matched"), "{}", class());
    let refused = holder.hold(&statement("background", "app.scope"));
    assert!(
        refused["error"].as_str().is_some_and(|error| error.contains("can only state what is in the foreground")),
        "{refused}"
    );
    holder.hold(&statement("foreground", "app.scope"));
    assert!(class().contains("omr foreground"), "{}", class());
    drop(holder);
    wait_until("its end", || class().contains("no rule matched"));
}

/// The start time of the processes of [`holding`], in the kernel's ticks.
const START: u64 = 5000;

/// Makes a machine with three groups of one process each. A client of the daemon holds a statement
/// about the process of the first and one about the second. The daemon does nothing unasked.
fn holding() -> (FakeRoot, FakeKernel, Daemon, Holder) {
    let root = machine();
    for (group, pid) in [("game.scope", 101), ("held.scope", 102), ("other.scope", 103)] {
        add_group(&root, group, 0, 8 << 10);
        let stat = format!("{pid} (game) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 {START} 3133440 390 1\n");
        root.write(format!("proc/{pid}/stat"), stat);
        root.write(format!("proc/{pid}/status"), "Uid:\t0\t0\t0\t0\nVmRSS:\t8192 kB\nRssAnon:\t0 kB\nVmSwap:\t0 kB\n");
        root.write(format!("proc/{pid}/cgroup"), format!("0::/{group}\n"));
    }
    let kernel = FakeKernel::start(&root);
    root.write("run/omr-root/conf.d/later.toml", "[idle]\nfor = '1d'\n");
    let daemon = Daemon::start(&root, "");
    let mut holder = Holder::connect(root.path());
    assert_eq!(holder.hold(&json!([game(), {"word": "present", "of": {"group": "held.scope"}}])), json!({"ok": 0}));
    (root, kernel, daemon, holder)
}

/// The statement about the process in game.scope.
fn game() -> Value {
    json!({"word": "foreground", "of": {"process": {"pid": 101, "start": START}}})
}

/// In the foreground because somebody holds it, as GameMode's game and sway's window: for other
/// commands and for what the daemon's worker takes on demand, too.
#[test]
fn a_stated_group_is_not_reclaimed() {
    let (root, kernel, daemon, _holder) = holding();
    let run = |args: &[&str]| text(&omr(&root, args));
    let left =
        |group: &str| root.read(format!("sys/fs/cgroup/{group}/memory.current")).trim().parse::<u64>().expect("bytes");

    for (args, why) in [
        (&["hint", "101", "--pageout"][..], "101 (game) is foreground (omr foreground 101, a process in it)"),
        (&["reclaim", "101", "max"], "101 (game) is foreground (omr foreground 101, a process in it)"),
        (&["hint", "102", "--cold"], "102 (game) is foreground (its user is at the machine (omr follow))"),
        (&["reclaim", "game.scope", "1M"], "game.scope is foreground (omr foreground 101, a process in it)"),
        (&["reclaim", "held.scope", "1M"], "held.scope is foreground (its user is at the machine (omr follow))"),
    ] {
        let (code, _, stderr) = run(args);
        assert!(code == 1 && stderr.contains(why), "{args:?}: {code} {stderr}");
    }
    let (_, shown, _) = run(&["ps", "--json"]);
    let shown: Value = shown.parse().expect("JSON");
    let classes: HashMap<u64, &str> = shown["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|process| (process["pid"].as_u64().expect("a pid"), process["class"].as_str().expect("a class")))
        .collect();
    assert_eq!(classes, HashMap::from([(101, "foreground"), (102, "foreground"), (103, "background")]));
    let (code, _, stderr) = run(&["reclaim", "--class", "background", "1M"]);
    assert_eq!(code, 0, "{stderr}");
    daemon.ask(&json!({"do": "prepare", "for": "preempt", "why": "event"}).to_string());
    wait_until("it is prepared", || ledger(&root).iter().any(|line| line["kind"] == "prepare"));
    assert_eq!(["game.scope", "held.scope", "other.scope"].map(left), [8 << 20, 8 << 20, 0]);
    kernel.end();
}

/// The controls of the test above: the statements, and the client that holds them.
#[test]
fn a_stated_group_is_reclaimed_again_when_the_client_lets_go_or_the_daemon_ends() {
    let (root, kernel, mut daemon, mut holder) = holding();
    let run = |args: &[&str]| text(&omr(&root, args));
    assert_eq!(run(&["reclaim", "held.scope", "1M"]).0, 1);
    assert_eq!(holder.hold(&json!([game()])), json!({"ok": 0}));
    let (code, _, stderr) = run(&["reclaim", "held.scope", "1M"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(run(&["reclaim", "game.scope", "1M"]).0, 1);
    daemon.signal(libc::SIGKILL);
    daemon.wait();
    let (code, _, stderr) = run(&["reclaim", "game.scope", "1M"]);
    assert_eq!(code, 0, "{stderr}");
    // What was held of a daemon that is gone is nothing to the next one.
    let daemon = Daemon::start(&root, "");
    wait_until("it knows better", || daemon.status()["statements"] == json!([]));
    let (code, _, stderr) = run(&["reclaim", "game.scope", "1M"]);
    assert_eq!(code, 0, "{stderr}");
    daemon.end();
    drop(holder);
    kernel.end();
}

#[test]
fn statements_that_cannot_be_read_are_no_leave_to_reclaim() {
    let (root, kernel, daemon, holder) = holding();
    let run = |args: &[&str]| text(&omr(&root, args));
    drop(holder);
    wait_until("its end", || daemon.status()["statements"] == json!([]));
    daemon.end();
    let (code, _, stderr) = run(&["reclaim", "game.scope", "1M"]);
    assert_eq!(code, 0, "{stderr}");
    root.write("run/omr/statements.json", "{\"boot\":");
    for what in ["cut off", "a directory"] {
        let (code, _, stderr) = run(&["reclaim", "game.scope", "1M"]);
        assert!(
            code == 1 && stderr.starts_with("omr: cannot read which groups and processes are in the foreground: read "),
            "{stderr}"
        );
        assert!(stderr.contains("statements.json (remove it and state again what "), "{what}: {stderr}");
        let (code, _, stderr) = run(&["ps"]);
        assert!(
            code == 0 && stderr.contains("cannot read which groups and processes are in the foreground"),
            "{what}: {stderr}"
        );
        root.remove("run/omr/statements.json");
        std::fs::create_dir(root.resolve("run/omr/statements.json")).expect("made");
    }
    kernel.end();
}
