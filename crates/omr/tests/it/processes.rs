//! `omr ps`, `omr foreground` and `omr background` on fake roots. Real processes:
//! lab/tests/test_process.py.

use std::os::unix::fs::symlink;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, ledger, wait_until};
use crate::common::{add_group, machine, omr, text};
use omr_testkit::FakeRoot;
use serde_json::{Value, json};

/// A process that holds so many MiB of anonymous memory and began at this tick.
fn add_process(root: &FakeRoot, pid: u32, name: &str, group: &str, mib: u64, start: u64) {
    let kib = mib << 10;
    for (file, contents) in [
        ("stat", format!("{pid} ({name}) S 1 1 1 0 -1 4194304 116 0 0 0 11 12 0 0 20 0 1 0 {start} 3133440 390 1\n")),
        (
            "status",
            format!(
                "Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\nVmRSS:\t{} kB\nRssAnon:\t{kib} kB\nVmSwap:\t0 kB\n",
                kib + 1024
            ),
        ),
        ("cgroup", format!("0::/{group}\n")),
        ("cmdline", format!("/usr/bin/{name}\0--type=renderer\0")),
        ("oom_score_adj", "200\n".to_owned()),
    ] {
        root.write(format!("proc/{pid}/{file}"), contents);
    }
    let _ = symlink(format!("/usr/bin/{name}"), root.resolve(format!("proc/{pid}/exe")));
}

fn with_processes() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 200 << 10, 0);
    add_group(&root, "fore.scope", 200 << 10, 0);
    add_process(&root, 101, "player", "app.scope", 100, 5000);
    add_process(&root, 102, "editor", "app.scope", 50, 5000);
    add_process(&root, 103, "terminal", "fore.scope", 20, 5000);
    // A kernel thread.
    root.write("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 0 0 0 1\n");
    root.write("proc/2/status", "Name:\tkthreadd\n");
    root
}

const RULES: &str = "
[[group]]
match = 'fore.scope'
class = 'foreground'
[[process]]
exe = '/usr/bin/*'
class = 'background'
[[process]]
exe = '/usr/bin/editor'
class = 'protected'
";

fn ps(root: &FakeRoot) -> Vec<Value> {
    let (code, stdout, _) = text(&omr(root, &["ps", "--json"]));
    assert_eq!(code, 0);
    let value: Value = stdout.parse().expect("JSON");
    value["processes"].as_array().expect("a list").clone()
}

fn of(processes: &[Value], pid: u32) -> Value {
    let found = processes.iter().find(|process| process["pid"] == pid);
    found.unwrap_or_else(|| panic!("no {pid} in {processes:?}")).clone()
}

#[test]
fn processes_are_shown_without_the_daemon_and_what_only_it_knows_is_marked() {
    let root = with_processes();
    root.write("etc/omr/omr.toml", RULES);
    let (code, stdout, stderr) = text(&omr(&root, &["ps", "--sort", "pid"]));
    assert_eq!(code, 0);
    assert!(stderr.starts_with("omr: the daemon is not running"), "{stderr}");
    let lines: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..4], ["PID", "CLASS", "SCORE", "RESIDENT"]);
    assert_eq!(lines[1][..7], ["101", "background", "?", "101", "MiB", "100", "MiB"]);
    assert_eq!(lines[2][..3], ["102", "protected", "?"]);
    assert_eq!(lines[3][..3], ["103", "foreground", "?"]);
    assert_eq!(lines.len(), 4, "kernel threads have no memory: {stdout}");
    let processes = ps(&root);
    let player = of(&processes, 101);
    assert_eq!((&player["asked"], &player["score"]), (&true.into(), &Value::Null));
    assert!(player["why"].as_str().is_some_and(|why| why.starts_with("matched exe \"/usr/bin/*\" in ")), "{player}");
    let terminal = of(&processes, 103);
    assert!(terminal["why"].as_str().is_some_and(|why| why.starts_with("matched \"fore.scope\" in ")), "{terminal}");
    let (_, only, _) = text(&omr(&root, &["ps", "--class", "protected", "--sort", "anon"]));
    assert_eq!(only.lines().count(), 2, "{only}");
    let (code, _, stderr) = text(&omr(&root, &["ps", "--class", "backgruond"]));
    assert!(code == 2 && stderr.contains("expected foreground, background or protected"), "{stderr}");
}

#[test]
fn processes_of_a_group_a_user_or_a_command_and_the_first_few() {
    let root = with_processes();
    add_group(&root, "app.scope/tab", 0, 0);
    add_process(&root, 104, "tab", "app.scope/tab", 10, 5000);
    add_process(&root, 105, "daemon", "app.scopes", 5, 5000);
    root.write("proc/105/status", "Uid:\t1000\t0\t0\t0\nVmRSS:\t8192 kB\nRssAnon:\t0 kB\nVmSwap:\t0 kB\n");
    root.write("proc/105/cmdline", "");
    let shown = |args: &[&str]| -> Vec<u64> {
        let (code, stdout, stderr) = text(&omr(&root, &[&["ps", "--json", "--sort", "anon"], args].concat()));
        assert_eq!(code, 0, "{stderr}");
        let value: Value = stdout.parse().expect("JSON");
        let processes = value["processes"].as_array().expect("a list");
        processes.iter().map(|process| process["pid"].as_u64().expect("a pid")).collect()
    };
    for (args, pids) in [
        (&[][..], &[101, 102, 103, 104, 105][..]),
        (&["--group", "app.scope"], &[101, 102, 104]),
        (&["--group", "/sys/fs/cgroup/app.scope/tab/"], &[104]),
        (&["--group", "/"], &[101, 102, 103, 104, 105]),
        (&["--uid", "1000"], &[101, 102, 103, 104]),
        (&["--uid", "0"], &[105]),
        (&["--uid", "1001"], &[]),
        (&["--command", "bin/player --type=rend"], &[101]),
        (&["--command", "daemon"], &[105]),
        (&["--command", "*"], &[]),
        (&["-n", "2"], &[101, 102]),
        (&["--uid", "1000", "--group", "app.scope", "--command", "t", "--lines", "1"], &[101]),
        (&["-n", "0"], &[]),
    ] {
        assert_eq!(shown(args), pids, "{args:?}");
    }
    let daemon = of(&ps(&root), 105);
    assert_eq!((&daemon["uid"], &daemon["command"]), (&0.into(), &"".into()));
    assert_eq!(of(&ps(&root), 101)["command"], "/usr/bin/player --type=renderer");
    for (args, code, why) in [
        (&["--group", "app"][..], 1, "there is no group app; systemd-cgls lists the groups"),
        (&["--uid", "root"], 2, "--uid"),
        (&["--uid", "-1"], 2, "--uid"),
        (&["-n", "many"], 2, "--lines"),
    ] {
        let (found, _, stderr) = text(&omr(&root, &[&["ps"], args].concat()));
        assert!(found == code && stderr.contains(why), "{args:?}: {stderr}");
    }
}

#[test]
fn rules_go_by_all_that_they_name_and_the_last_one_wins() {
    for (rule, asked) in [
        ("exe = '/usr/bin/player'", true),
        ("exe = '/usr/**'", true),
        ("exe = '/usr/bin/editor'", false),
        ("command = '*--type=renderer*'", true),
        ("command = '*--type=gpu*'", false),
        ("group = 'app.scope'", true),
        ("group = 'fore.scope'", false),
        ("uid = 1000", true),
        ("uid = 0", false),
        ("oom_score_adj = '200..1000'", true),
        ("oom_score_adj = 200", true),
        ("oom_score_adj = '201..'", false),
        ("exe = '/usr/bin/player'\nuid = 0", false),
        ("exe = '/usr/bin/player'\nuid = 1000\ngroup = 'app.*'", true),
    ] {
        let root = with_processes();
        root.write("etc/omr/omr.toml", format!("[[process]]\n{rule}\nclass = 'background'\n"));
        assert_eq!(of(&ps(&root), 101)["asked"], asked, "{rule}");
    }
    // What cannot be read is no leave to take, and no reason not to protect.
    for (class, shown) in [("background", "background"), ("protected", "protected")] {
        let root = with_processes();
        root.remove("proc/101/cmdline");
        root.write("etc/omr/omr.toml", format!("[[process]]\ncommand = '*'\nclass = '{class}'\n"));
        let player = of(&ps(&root), 101);
        assert_eq!((&player["class"], &player["asked"]), (&shown.into(), &false.into()));
    }
}

#[test]
fn statements_apply_are_shown_and_can_be_withdrawn() {
    let root = with_processes();
    let daemon = Daemon::start(
        &root,
        "mode = 'observe'\n[hints]\npageout_after = '1h'\ncold_after = '1h'\n[[group]]\nmatch = 'fore.scope'\nclass = 'foreground'\n",
    );
    let say = |args: &[&str]| text(&omr(&root, args));
    assert_eq!(say(&["background", "101", "app.scope"]), (0, String::new(), String::new()));
    let processes = ps(&root);
    assert_eq!(of(&processes, 101)["why"], "omr background");
    assert_eq!((&of(&processes, 102)["asked"], &of(&processes, 103)["asked"]), (&true.into(), &false.into()));
    crate::common::running::wait_until("it is ranked", || {
        say(&["explain", "101"]).1.contains("no hint: used or in the foreground")
    });
    let (_, explained, _) = say(&["explain", "101"]);
    assert!(explained.contains("class: background: omr background"), "{explained}");
    let (_, status, _) = say(&["status"]);
    assert!(status.contains("101 (player): background") && status.contains("app.scope: background"), "{status}");

    // The opposite of one process takes its group out, too.
    assert_eq!(say(&["foreground", "101"]).0, 0);
    assert_eq!(of(&ps(&root), 101)["class"], "foreground");
    crate::common::running::wait_until("its group is foreground", || {
        say(&["explain", "app.scope"]).1.contains("class: foreground: omr foreground 101, a process in it")
    });
    assert_eq!(say(&["foreground", "--clear", "101", "app.scope"]).0, 0);
    assert_eq!(of(&ps(&root), 101)["asked"], false);
    let (code, _, stderr) = say(&["explain", "101"]);
    assert_eq!(code, 1);
    assert_eq!(
        stderr,
        "omr: process 101 matches no rule for processes, and there is no statement that it is in the background\n"
    );

    for (target, why) in [
        ("103", "omr: process 103 is foreground, which omr background does not change: matched \"fore.scope\" in "),
        (
            "fore.scope",
            "omr: fore.scope is foreground, which omr background does not change: matched \"fore.scope\" in ",
        ),
        ("104", "omr: there is no process 104; a group of that name is ./104\n"),
        ("nobody", "omr: there is no group nobody; systemd-cgls lists"),
        ("./101", "omr: there is no group 101; systemd-cgls lists"),
    ] {
        let (code, _, stderr) = say(&["background", target]);
        assert_eq!(code, 1, "{target}");
        assert!(stderr.starts_with(why), "{target}: {stderr}");
    }
    assert_eq!(daemon.status()["statements"], Value::Array(Vec::new()));
    daemon.end();
    let (code, _, stderr) = say(&["foreground", "101"]);
    assert!(code == 1 && stderr.contains("the daemon is not running"), "{stderr}");
}

#[test]
fn rights_that_a_rule_takes_are_named_when_they_are_missing() {
    for (capabilities, missing) in
        [("0000000000880000", ""), ("0000000000800000", "CAP_SYS_PTRACE"), ("0", "CAP_SYS_PTRACE and CAP_SYS_NICE")]
    {
        let root = with_processes();
        crate::common::set_line(&root, "proc/self/status", "CapEff:", capabilities);
        let log = Daemon::start(&root, "mode = 'observe'\n[[process]]\nuid = 1\nclass = 'background'\n").end();
        let warned = log.contains("hints to processes of other users need ");
        assert_eq!(warned, !missing.is_empty(), "{log}");
        assert!(log.contains(missing), "{log}");
        // Without a rule it is nobody's business.
        let log = Daemon::start(&root, "mode = 'observe'\n").end();
        assert!(!log.contains("hints to processes of other users need"), "{log}");
    }
}

#[test]
fn another_process_that_gets_the_id_is_not_meant() {
    let root = with_processes();
    let daemon = Daemon::start(&root, "mode = 'observe'\n[hints]\npageout_after = '1h'\ncold_after = '1h'\n");
    assert_eq!(text(&omr(&root, &["background", "101"])).0, 0);
    assert_eq!(of(&ps(&root), 101)["asked"], true);
    add_process(&root, 101, "player", "app.scope", 100, 5001);
    assert_eq!(of(&ps(&root), 101)["asked"], false);
    crate::common::running::wait_until("the daemon has forgotten it", || {
        daemon.status()["statements"] == Value::Array(Vec::new())
    });
    // Nor is one that has taken its place while the request was on its way.
    let answer = daemon.ask(r#"{"do":"say","word":"background","of":{"process":{"pid":101,"start":5000}}}"#);
    assert_eq!(answer["error"], "process 101 has ended");
    for request in [
        r#"{"do":"say","word":"protected","of":{"group":"app.scope"}}"#,
        r#"{"do":"say","word":"background"}"#,
        r#"{"do":"say","word":"background","of":{"process":101}}"#,
    ] {
        let answer = daemon.ask(request);
        assert!(answer["error"].as_str().is_some_and(|error| error.starts_with("not a request: ")), "{answer}");
    }
    daemon.end();
}

#[test]
fn nothing_takes_from_a_group_that_is_said_to_be_in_the_foreground() {
    let root = machine();
    add_group(&root, "used.scope", 0, 8 << 10);
    add_group(&root, "other.scope", 0, 8 << 10);
    let kernel = FakeKernel::start(&root);
    root.write("run/omr-root/conf.d/later.toml", "[idle]\nfor = '1d'\n");
    let daemon = Daemon::start(&root, "");
    assert_eq!(text(&omr(&root, &["foreground", "used.scope"])).0, 0);

    let (code, _, stderr) = text(&omr(&root, &["reclaim", "used.scope", "1M"]));
    assert!(code == 1 && stderr.contains("used.scope is foreground (omr foreground)"), "{code} {stderr}");
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "--class", "background", "1M"]));
    assert_eq!(code, 0, "{stderr}");
    daemon.ask(&json!({"do": "prepare", "for": "preempt", "why": "event"}).to_string());
    wait_until("it is prepared", || ledger(&root).iter().any(|line| line["kind"] == "prepare"));
    let held = |group: &str| root.read(format!("sys/fs/cgroup/{group}/memory.current")).trim().to_owned();
    assert_eq!((held("used.scope"), held("other.scope")), ((8 << 20).to_string(), "0".into()));

    // The control: it was what was said.
    assert_eq!(text(&omr(&root, &["foreground", "used.scope", "--clear"])).0, 0);
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "used.scope", "1M"]));
    assert_eq!(code, 0, "{stderr}");
    daemon.end();
    kernel.end();
}

#[test]
fn doctor_names_the_rights_that_the_daemon_lacks_for_the_rules() {
    let root = with_processes();
    let row = |root: &FakeRoot| -> Option<Value> {
        let report: Value = text(&omr(root, &["doctor", "--json"])).1.parse().expect("JSON");
        let checks = report["checks"].as_array().expect("a list").clone();
        checks.into_iter().find(|check| check["name"] == "process rules")
    };
    assert_eq!(row(&root), None, "without a rule it is nobody's business");
    root.write("etc/omr/omr.toml", RULES);
    assert_eq!(row(&root).expect("a row")["found"], "2 rules, no answer from the daemon");
    let _kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, &format!("mode = 'observe'\n{RULES}"));
    for (capabilities, works, found) in [
        ("0000000000000002", "no", "2 rules, the daemon lacks CAP_SYS_PTRACE and CAP_SYS_NICE"),
        ("0000000000800000", "no", "2 rules, the daemon lacks CAP_SYS_PTRACE"),
        ("0000000000880000", "yes", "2 rules"),
    ] {
        add_process(&root, daemon.pid(), "omr", "omr.service", 1, 5000);
        root.write(
            format!("proc/{}/status", daemon.pid()),
            format!("Name:\tomr\nUid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n"),
        );
        let row = row(&root).expect("a row");
        assert_eq!((row["works"].as_str(), row["found"].as_str()), (Some(works), Some(found)));
    }
}
