//! `omr config`, run as a user does, below a root directory of the test's own.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use omr_testkit::{FakeRoot, Release};

const EXAMPLE: &str = include_str!("../../../../packaging/usr-lib-omr.toml");

fn omr(root: &FakeRoot, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_omr")).arg("--root").arg(root.path()).args(args).output().expect("omr runs")
}

/// Standard output, standard error and exit code, without the root directory's path.
fn run(root: &FakeRoot, args: &[&str]) -> (String, String, i32) {
    let output = omr(root, args);
    let text = |bytes| String::from_utf8_lossy(bytes).replace(root.path().to_str().expect("a path in UTF-8"), "");
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap_or(-1))
}

fn show(root: &FakeRoot, args: &[&str]) -> String {
    let (out, err, code) = run(root, &[&["config", "show"], args].concat());
    assert_eq!((err.as_str(), code), ("", 0));
    out
}

fn assert_ok(root: &FakeRoot, expected: &str) {
    assert_eq!(run(root, &["config", "check"]), (format!("OK: {expected}\n"), String::new(), 0));
}

fn assert_refused(root: &FakeRoot, expected: &[&str]) {
    let (out, err, code) = run(root, &["config", "check"]);
    assert_eq!(err.lines().collect::<Vec<_>>(), expected);
    assert_eq!((out.as_str(), code), ("", 2));
    let (out, err, code) = run(root, &["config", "show"]);
    assert_eq!((out.as_str(), code), ("", 2));
    assert!(err.starts_with(&format!("omr: {}", expected[0])), "{err}");
}

const SWAP: &str = "/dev/vda partition 1048576 0 -2\n";

/// A machine that tells ages, with this swap.
fn ages(swap: &str) -> FakeRoot {
    FakeRoot::captured(Release::V6_12)
        .sys("kernel/mm/lru_gen/enabled", "0x0007\n")
        .sys("kernel/debug/lru_gen", "")
        .proc("self/cgroup", "0::/\n")
        .proc("swaps", format!("Filename\tType\tSize\tUsed\tPriority\n{swap}"))
}

/// The example file with its keys taken out of their comments.
fn uncommented() -> String {
    EXAMPLE.lines().map(|line| uncomment(line).unwrap_or(line).to_owned() + "\n").collect()
}

fn uncomment(line: &str) -> Option<&str> {
    line.strip_prefix('#').filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
}

#[test]
fn without_any_file_everything_is_as_built_in() {
    let root = FakeRoot::new();
    assert_ok(&root, "no configuration files, so all values are built in");
    let shown = show(&root, &["--origin"]);
    assert_eq!(shown, include_str!("../config/built-in.toml"));
}

#[test]
fn the_example_file_holds_the_defaults() {
    let built_in = show(&FakeRoot::new(), &[]);
    let root = FakeRoot::new().file("usr/lib/omr/omr.toml", EXAMPLE);
    assert_ok(&root, "/usr/lib/omr/omr.toml");
    assert_eq!(show(&root, &[]), built_in);

    // With every key written out: the same values, and the rules that are examples.
    let root = ages(SWAP).file("usr/lib/omr/omr.toml", uncommented());
    assert_ok(&root, "/usr/lib/omr/omr.toml");
    let shown = show(&root, &[]);
    assert!(shown.starts_with(&built_in), "{shown}");
    assert_eq!(shown.matches("[[group]]").count(), 5);
    let origins = show(&root, &["--origin"]);
    assert!(!origins.contains("built in"), "a key is missing in the example file: {origins}");
}

#[test]
fn each_key_of_the_example_file_can_be_used_alone() {
    let mut keys = 0;
    for (n, line) in EXAMPLE.lines().enumerate() {
        let Some(key) = uncomment(line).filter(|key| !key.starts_with('[')) else { continue };
        let rest = EXAMPLE.lines().take(n);
        let table = rest.filter(|line| line.starts_with('[') || line.starts_with("#[")).last().unwrap_or_default();
        if table.contains("[[") {
            continue;
        }
        let root = FakeRoot::new().file("etc/omr/omr.toml", format!("{table}\n{key}\n"));
        assert_ok(&root, "/etc/omr/omr.toml");
        assert!(show(&root, &["--origin"]).contains("# /etc/omr/omr.toml:2\n"), "{table} {key}");
        keys += 1;
    }
    assert_eq!(keys, 56);
}

#[test]
fn later_layers_win_by_key_and_rules_are_added() {
    let rule = |name: &str| format!("[[group]]\nmatch = '{name}'\nclass = 'background'\n");
    let root = FakeRoot::new()
        .file(
            "usr/lib/omr/omr.toml",
            "mode = 'observe'\n[idle]\nfor = '1m'\nfree = '50%'\n".to_owned() + &rule("vendor"),
        )
        .file("etc/omr/omr.toml", "[idle]\nfor = '2m'\nagain = '2s'\n".to_owned() + &rule("admin"))
        .file("etc/omr/conf.d/20-b.toml", "idle.for = '3m'\nidle.window = '20s'\n".to_owned() + &rule("b"))
        .file("etc/omr/conf.d/10-a.toml", "idle.for = '4m'\n".to_owned() + &rule("a"))
        .file("etc/omr/conf.d/.hidden.toml", "idle.for = 1\n")
        .file("etc/omr/conf.d/README", "not TOML\n")
        .file("etc/omr/conf.d/30-c.toml", "idle.for = '5m'\n")
        .file("run/omr-root/conf.d/30-c.toml", rule("run"))
        .file("run/omr-root/conf.d/05-first.toml", "idle.free = '60%'\n");
    assert_ok(
        &root,
        "/usr/lib/omr/omr.toml, /etc/omr/omr.toml, /etc/omr/conf.d/10-a.toml, /etc/omr/conf.d/20-b.toml, \
         /run/omr-root/conf.d/05-first.toml, /run/omr-root/conf.d/30-c.toml",
    );
    let shown = show(&root, &["--origin"]);
    for line in [
        "mode = \"observe\"  # /usr/lib/omr/omr.toml:1",
        "for = \"3m\"  # /etc/omr/conf.d/20-b.toml:1",
        "again = \"2s\"  # /etc/omr/omr.toml:3",
        "window = \"20s\"  # /etc/omr/conf.d/20-b.toml:2",
        "free = \"60%\"  # /run/omr-root/conf.d/05-first.toml:1",
        "strict = \"95%\"  # built in",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
    }
    let rules: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("match = ")).collect();
    assert_eq!(rules, ["\"vendor\"", "\"admin\"", "\"a\"", "\"b\"", "\"run\""]);
    assert!(shown.contains("[[group]]  # /etc/omr/conf.d/10-a.toml:3\n"), "{shown}");
}

#[test]
fn a_shown_configuration_loads_to_the_same() {
    let root = FakeRoot::new().file("etc/omr/omr.toml", uncommented()).file(
        "etc/omr/conf.d/odd.toml",
        r#"
            guard = { max_swap_writes = "unlimited", swap_floor = "1536KiB" }
            idle.free = "33.25%"
            idle.for = "1h 30m"
            [[group]]
            match = "line\nbreak/\"quoted\" \\ name"
            keep = "0"
        "#,
    );
    let shown = show(&root, &[]);
    root.write("again.toml", &shown);
    let file = root.resolve("again.toml");
    assert_eq!(show(&root, &["--config", file.to_str().expect("a path in UTF-8")]), shown);
    assert!(shown.contains("max_swap_writes = \"unlimited\"\n"), "{shown}");
    assert!(shown.contains("match = \"line\\u000Abreak/\\\"quoted\\\" \\\\ name\"\nkeep = \"0\"\n"), "{shown}");
}

#[test]
fn with_the_goal_auto_the_budgets_of_media_hold_and_a_written_limit_as_well() {
    let limit = |text: &str| {
        let shown = show(&FakeRoot::new().file("etc/omr/omr.toml", text), &[]);
        shown.lines().find(|line| line.starts_with("max_swap_writes")).expect("a line").to_owned()
    };
    assert_eq!(limit("goal = 'auto'\n"), "max_swap_writes = \"unlimited\"");
    assert_eq!(limit("goal = 'auto'\nguard.max_swap_writes = '5GiB/day'\n"), "max_swap_writes = \"5GiB/day\"");
    // The control: another goal.
    assert_eq!(limit("goal = 'free'\n"), "max_swap_writes = \"20GiB/day\"");
    let root = FakeRoot::new().file(
        "etc/omr/omr.toml",
        "[cost]\nssd_writes = '5GiB'\ndevice_share = '0%'\non_battery = 'off'\nswap_flor = '1%'\n",
    );
    let (_, err, code) = run(&root, &["config", "check"]);
    assert_eq!(code, 2);
    for line in [
        "omr.toml:2: cost.ssd_writes = '5GiB': an allowance is needed, e.g. \"20GiB/day\"",
        "omr.toml:3: cost.device_share = '0%': must be between \"0.01%\" and \"100%\"",
        "omr.toml:4: cost.on_battery = 'off': must be \"memory\" or \"disk\"",
        "omr.toml:5: cost.swap_flor: unknown key; did you mean \"swap_floor\"?",
    ] {
        assert!(err.contains(line), "{line}\n{err}");
    }
}

#[test]
fn a_file_from_before_the_goal_auto_keeps_the_meaning_of_all_its_keys() {
    let written = include_str!("../config/before-goal-auto.toml");
    let missing = |root: &FakeRoot| {
        let shown = show(root, &[]);
        let values: Vec<&str> = shown.lines().map(|line| line.split("  # ").next().unwrap_or(line)).collect();
        written.lines().filter(|line| !values.contains(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    let root = FakeRoot::new();
    let newer = ["goal = \"free\"", "max_swap_writes = \"20GiB/day\""];
    assert_eq!(missing(&root), newer, "the built-in values that are not the same any more");
    root.write("etc/omr/omr.toml", written);
    assert_eq!(missing(&root), [""; 0]);
    assert_ok(&root, "/etc/omr/omr.toml");
    // The goal alone brings back the rest.
    root.write("etc/omr/omr.toml", "goal = 'free'\n");
    assert_eq!(missing(&root), [""; 0]);
}

#[test]
fn a_file_given_by_hand_is_the_only_one() {
    let root =
        FakeRoot::new().file("etc/omr/omr.toml", "mode = 'observe'\nbroken").file("mine.toml", "idle.for = '7s'\n");
    let file = root.resolve("mine.toml");
    let shown = show(&root, &["--origin", "--config", file.to_str().expect("a path in UTF-8")]);
    assert!(shown.contains("mode = \"act\"  # built in\n"), "{shown}");
    assert!(shown.contains("for = \"7s\"  # /mine.toml:1\n"), "{shown}");

    let (_, err, code) = run(&root, &["config", "check", "--config", "/there/is/no/such.toml"]);
    assert_eq!((err.as_str(), code), ("/there/is/no/such.toml: cannot be read: No such file or directory\n", 2));
}

#[test]
fn a_link_to_dev_null_turns_a_drop_in_off() {
    let root = FakeRoot::new()
        .file("etc/omr/conf.d/a.toml", "idle.for = '3m'\n")
        .file("etc/omr/conf.d/b.toml", "idle.again = '1s'\n")
        .file("run/omr-root/conf.d/c.toml", "\n");
    symlink("/dev/null", root.resolve("run/omr-root/conf.d/a.toml")).expect("a link");
    symlink("/dev/null", root.resolve("etc/omr/conf.d/d.toml")).expect("a link");
    assert_ok(&root, "/etc/omr/conf.d/b.toml, /run/omr-root/conf.d/c.toml");
    assert!(show(&root, &[]).contains("for = \"30s\"\n"));
}

#[test]
fn every_mistake_of_every_file_is_printed_in_order() {
    let root = FakeRoot::new()
        .file("etc/omr/omr.toml", "mode = 'atc'\n\n[idle]\nfor = '1d 1s'\n")
        .file(
            "etc/omr/conf.d/desktop.toml",
            "# a comment\n\n\n\n\n\n\n[idle]\nfor = 30\n\n\n[[group]]\nmatch = \"app.slice/**\"\nclas = \"background\"\n",
        )
        .file("run/omr-root/conf.d/x.toml", "idle.free = 75%\n[[group]]\nunit = 'a.service'\nkeep = 64\n");
    assert_refused(
        &root,
        &[
            "/etc/omr/omr.toml:1: mode = 'atc': must be \"act\", \"observe\" or \"record\"",
            "/etc/omr/omr.toml:4: idle.for = '1d 1s': must be between \"1s\" and \"1day\"",
            "/etc/omr/conf.d/desktop.toml:9: idle.for = 30: a duration needs a unit, e.g. \"30s\"",
            "/etc/omr/conf.d/desktop.toml:14: group.clas: unknown key; did you mean \"class\"?",
            "/run/omr-root/conf.d/x.toml:1: 75%: text must be in quotes: \"75%\"",
            "/run/omr-root/conf.d/x.toml:4: group.keep = 64: a size or share needs a unit, e.g. \"20%\"",
        ],
    );
}

#[test]
fn values_that_do_not_go_together_are_refused_where_the_last_is_written() {
    let root = FakeRoot::new()
        .file("etc/omr/omr.toml", "[idle]\nagain = '1m'\n[stop]\nsample = '45ms'\n[guard]\nbackoff = '2h'\n")
        .file(
            "etc/omr/conf.d/x.toml",
            "guard.backoff_max = '1h'\nsweep.write_time = '40ms'\nslo = { shortest = '1h', longest = '10m' }\n",
        );
    assert_refused(
        &root,
        &[
            "/etc/omr/omr.toml:2: idle.again = \"1m\": must not be longer than idle.for, which is \"30s\" (built in)",
            "/etc/omr/conf.d/x.toml:1: guard.backoff_max = \"1h\": must not be shorter than guard.backoff, \
             which is \"2h\" (/etc/omr/omr.toml:6)",
            "/etc/omr/conf.d/x.toml:2: sweep.write_time = \"40ms\": one of these and two stop.sample, \
             which is \"45ms\" (/etc/omr/omr.toml:4), must fit into the 100ms in which a sweep stops",
            "/etc/omr/conf.d/x.toml:3: slo.longest = \"10m\": must not be shorter than slo.shortest, \
             which is \"1h\" (/etc/omr/conf.d/x.toml:3)",
        ],
    );
}

#[test]
fn a_built_in_value_gives_way_to_one_that_is_written() {
    for (text, expected) in [
        ("idle.for = '3s'", "again = \"3s\"  # built in"),
        ("guard.backoff = '3d'", "backoff_max = \"3days\"  # built in"),
        ("guard.backoff_max = '5m'", "backoff = \"5m\"  # built in"),
    ] {
        let root = FakeRoot::new().file("etc/omr/omr.toml", text);
        let shown = show(&root, &["--origin"]);
        assert!(shown.lines().any(|line| line == expected), "{text}: {shown}");
    }
}

#[test]
fn files_that_are_none_are_refused_by_name() {
    let root = FakeRoot::new()
        .file("etc/omr/conf.d/big.toml", " ".repeat((1 << 20) + 1))
        .file("etc/omr/conf.d/fits.toml", " ".repeat(1 << 20))
        .file("etc/omr/conf.d/latin1.toml", b"mode = 'act'\n# caf\xe9\n")
        .file("etc/omr/conf.d/tree.toml/x", "");
    symlink("nowhere", root.resolve("etc/omr/conf.d/link.toml")).expect("a link");
    let made = Command::new("mkfifo").arg(root.resolve("etc/omr/conf.d/pipe.toml")).status().expect("mkfifo runs");
    assert!(made.success());
    assert_refused(
        &root,
        &[
            "/etc/omr/conf.d/big.toml: larger than 1 MiB, too large for a configuration",
            "/etc/omr/conf.d/latin1.toml:2: not UTF-8 text: there is a byte 0xe9",
            "/etc/omr/conf.d/link.toml: a link to nowhere, which does not exist",
            "/etc/omr/conf.d/pipe.toml: not a regular file",
            "/etc/omr/conf.d/tree.toml: a directory, but a file is expected",
        ],
    );
    let root = FakeRoot::new().file("etc/omr/omr.toml/x", "").file("etc/omr/conf.d", "a file\n");
    assert_refused(
        &root,
        &[
            "/etc/omr/conf.d: cannot be listed: Not a directory",
            "/etc/omr/omr.toml: a directory, but a file is expected",
        ],
    );
}

#[test]
fn an_unreadable_file_is_refused_by_name() {
    let root = FakeRoot::new().file("etc/omr/omr.toml", "mode = 'act'\n");
    fs::set_permissions(root.resolve("etc/omr/omr.toml"), fs::Permissions::from_mode(0o000)).expect("chmod");
    if fs::read(root.resolve("etc/omr/omr.toml")).is_ok() {
        // Root reads everything; a link to itself is what even root cannot read.
        root.remove("etc/omr/omr.toml");
        symlink("omr.toml", root.resolve("etc/omr/omr.toml")).expect("a link");
        assert_refused(&root, &["/etc/omr/omr.toml: cannot be read: Too many levels of symbolic links"]);
    } else {
        assert_refused(&root, &["/etc/omr/omr.toml: cannot be read: Permission denied"]);
    }
}

#[test]
fn a_file_that_all_users_may_write_to_is_refused() {
    let root = FakeRoot::new().file("etc/omr/omr.toml", "mode = 'observe'\n");
    let set_mode = |mode| {
        fs::set_permissions(root.resolve("etc/omr/omr.toml"), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    set_mode(0o664);
    assert_eq!(run(&root, &["config", "check"]).2, 0, "the control");
    set_mode(0o646);
    let refusal = "/etc/omr/omr.toml: all users may write to it, and so control a root process; run chmod o-w";
    assert_refused(&root, &[refusal]);
}

#[test]
fn warnings_do_not_refuse() {
    let rule = |pattern: &str, class: &str| format!("[[group]]\n{pattern}\nclass = '{class}'\n");
    let root = FakeRoot::new()
        .file("etc/omr/omr.toml", rule("match = '**'", "protected") + &rule("unit = 'x?'", "foreground"))
        .file("etc/omr/conf.d/x.toml", rule("unit = '?x'", "protected"));
    let (out, err, code) = run(&root, &["config", "check"]);
    assert_eq!((out.as_str(), code), ("OK: /etc/omr/omr.toml, /etc/omr/conf.d/x.toml\n", 0));
    assert_eq!(
        err.lines().collect::<Vec<_>>(),
        [
            "warning: /etc/omr/omr.toml:5: group \"x?\": as specific as \"?x\" in /etc/omr/conf.d/x.toml:2; \
             for groups that match both, the later one wins",
            "warning: /etc/omr/omr.toml:2: group \"**\": every group is protected and none background, so nothing is ever swept",
        ]
    );
}

#[test]
fn a_rule_that_needs_ages_is_warned_of_where_there_are_none() {
    let rule = "[[group]]\nmatch = 'a'\nolder_than = '2m'\n";
    let check = |enabled: Option<&str>, swap: &str, rules: &str| {
        let root = ages(swap).file("etc/omr/omr.toml", rules);
        match enabled {
            Some(enabled) => root.write("sys/kernel/mm/lru_gen/enabled", enabled),
            None => root.remove("sys/kernel/mm/lru_gen/enabled"),
        }
        let (_, err, code) = run(&root, &["config", "check"]);
        assert_eq!(code, 0);
        err
    };
    assert_eq!(check(Some("0x0007\n"), SWAP, rule), "");
    for (enabled, why) in [
        (Some("0x0000\n"), "MGLRU off (0x0000); write \"y\" to /sys/kernel/mm/lru_gen/enabled"),
        (None, "MGLRU not in this kernel; needs Linux 6.1 built with CONFIG_LRU_GEN"),
    ] {
        let place = "/etc/omr/omr.toml:2: group \"a\": older_than";
        assert_eq!(check(enabled, SWAP, rule), format!("warning: {place}: these groups are not swept here: {why}\n"));
        assert_eq!(check(enabled, SWAP, "[[group]]\nmatch = 'a'\nolder_than = '0s'\n"), "", "no age is needed");
        let learned = "[[group]]\nmatch = 'a'\nolder_than = 'auto'\n";
        assert_eq!(
            check(enabled, SWAP, learned),
            format!("warning: {place}: these groups are only probed here: {why}\n")
        );
    }
    assert!(
        check(Some("0x0007\n"), "", rule).contains("not swept here: only memory that goes to swap is reclaimed by age")
    );
}

#[test]
fn json_has_the_same_values() {
    let root =
        FakeRoot::new().file("etc/omr/omr.toml", "idle.for = '1m'\n[[group]]\nmatch = 'a'\nclass = 'foreground'\n");
    let value = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&show(&root, args)).expect("JSON") };
    let plain = value(&["--json"]);
    assert_eq!(plain["mode"], "act");
    assert_eq!(plain["idle"]["for"], "1m");
    assert_eq!(plain["group"], serde_json::json!([{"match": "a", "class": "foreground"}]));
    let origin = value(&["--json", "--origin"]);
    assert_eq!(origin["idle"]["for"]["line"], 1);
    assert_eq!(origin["idle"]["for"]["file"], "/etc/omr/omr.toml");
    assert_eq!(origin["mode"], serde_json::json!({"value": "act", "file": null, "line": null}));
    assert_eq!(origin["group"][0]["line"], 3);
}

#[test]
fn names_of_files_cannot_write_to_the_terminal() {
    let root = FakeRoot::new();
    let name = std::ffi::OsStr::from_bytes(b"a\x1b[2J\n\xff.toml");
    root.write(Path::new("etc/omr/conf.d").join(name), "mode = \"\x07\"\nx = 1\n");
    let (_, err, code) = run(&root, &["config", "check"]);
    assert_eq!(code, 2);
    assert!(!err.contains(|c: char| c.is_control() && c != '\n'), "{err:?}");
    assert!(err.lines().all(|line| line.starts_with("/etc/omr/conf.d/a\\u{1b}[2J\\n")), "{err}");
}
