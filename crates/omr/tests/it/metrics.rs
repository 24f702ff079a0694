//! `omr metrics`, with a real daemon and without.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use serde_json::Value;

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, swept, wait_until};
use crate::common::{add_group, machine, omr, omr_as_nobody, text};

fn value(text: &str, line: &str) -> Option<f64> {
    let found = text.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' '));
    found.map(|value| value.parse().expect("a number"))
}

#[test]
fn the_figures_are_those_of_the_daemon_and_without_it_they_are_missing() {
    let root = machine();
    add_group(&root, "app.scope", 4096, 1024);
    let kernel = FakeKernel::start(&root);
    let daemon = Daemon::start(&root, "");
    wait_until("the sweep is in the ledger", || swept(&root, "app.scope").is_some());
    let line = swept(&root, "app.scope").expect("a line");
    let status: Value = text(&omr(&root, &["status", "--json"])).1.parse().expect("JSON");
    let (code, out, err) = text(&omr(&root, &["metrics"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(value(&out, "omr_up"), Some(1.0));
    let method = line["method"].as_str().expect("a method");
    let taken = format!("omr_reclaimed_bytes_total{{kind=\"anon\",backend=\"{method}\"}}");
    assert_eq!(value(&out, &taken), line["freed_anon"].as_f64(), "{out}");
    assert_eq!(value(&out, "omr_swap_written_bytes_total"), line["swapped_out"].as_f64());
    let hash = status["policy"]["hash"].as_str().expect("a hash");
    assert!(out.contains(&format!("omr_policy_info{{hash=\"{hash}\",version=\"")), "{out}");
    assert!(value(&out, "omr_decisions_total{act=\"sweep\",reason=\"idle\"}").is_some_and(|sweeps| sweeps >= 1.0));
    assert!(out.ends_with("# EOF\n"));
    daemon.end();
    kernel.end();

    let (code, out, err) = text(&omr(&root, &["metrics"]));
    assert_eq!(code, 0);
    assert!(err.starts_with("omr: the daemon is not running"), "{err}");
    assert_eq!((value(&out, "omr_up"), value(&out, "omr_held_out_bytes")), (Some(0.0), None), "{out}");
}

#[test]
fn another_configuration_has_another_hash_and_the_same_one_the_same() {
    let hash = |config: &str| {
        let root = machine();
        let daemon = Daemon::start(&root, config);
        let status: Value = text(&omr(&root, &["status", "--json"])).1.parse().expect("JSON");
        daemon.end();
        status["policy"]["hash"].as_str().expect("a hash").to_owned()
    };
    let rule = |age: &str| format!("[[group]]\nmatch = 'a'\nolder_than = '{age}'\n");
    let (one, other) = (hash(&rule("2m")), hash(&rule("3m")));
    assert_ne!(one, other);
    assert_eq!(one, hash(&rule("2m")));
}

#[test]
fn a_textfile_appears_complete_for_every_user_and_wrong_files_are_named() {
    let root = machine();
    let dir = root.resolve("textfile");
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("omr.prom");
    let path = file.to_str().expect("text");
    for _ in 0..2 {
        let (code, out, _) = text(&omr(&root, &["metrics", "--textfile", path]));
        assert_eq!((code, out.as_str()), (0, ""));
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let written = std::fs::read_to_string(&file).expect("text");
        assert!(written.contains("\nomr_up 0\n") && !written.contains("# EOF") && !written.contains("# UNIT"));
    }
    assert_eq!(std::fs::read_dir(&dir).expect("a directory").count(), 1, "no temporary file is left");

    for (words, code, expected) in [
        (vec!["--textfile", "omr.txt"], 2, "omr: omr.txt: node_exporter reads only files whose name ends with .prom\n"),
        (vec!["--textfile", "/nonexistent/omr.prom"], 1, "write /nonexistent/omr.prom: No such file or directory"),
        (vec!["--groups", "201"], 2, "expected a number from 0 to 200"),
        (vec!["--groups", "-1"], 2, "expected a number from 0 to 200"),
    ] {
        let output = omr(&root, &[&["metrics"], words.as_slice()].concat());
        let (found, _, err) = text(&output);
        assert!(found == code && err.contains(expected), "{words:?}: {found} {err}");
    }
}

#[test]
fn a_history_that_cannot_be_read_is_told_and_not_taken_for_an_empty_one() {
    let root = machine();
    let history = root.resolve("var/lib/omr/history");
    std::fs::create_dir_all(history.parent().expect("a directory")).expect("made");
    let (_, out, _) = text(&omr(&root, &["metrics"]));
    assert_eq!(value(&out, "omr_history_readable"), Some(1.0), "the control: none is an empty one");
    std::fs::write(&history, "a file").expect("written");
    let (code, out, err) = text(&omr(&root, &["metrics"]));
    assert_eq!((code, value(&out, "omr_history_readable")), (0, Some(0.0)), "{out}");
    assert!(err.contains("var/lib/omr/history"), "{err}");
}

#[test]
fn a_user_who_may_not_ask_the_daemon_gets_metrics_without_its_figures() {
    let root = machine();
    std::fs::create_dir_all(root.resolve("run/omr")).expect("a directory");
    let socket = root.resolve("run/omr/omr.sock");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o660)).expect("a mode");
    let Some(output) = omr_as_nobody(&root, &["metrics"]) else { return };
    let (code, out, err) = text(&output);
    assert_eq!((code, value(&out, "omr_up")), (0, Some(0.0)), "{out}");
    assert!(out.ends_with("# EOF\n"), "{out}");
    assert!(err.starts_with("omr: ") && err.contains("only root and members of the group omr may ask"), "{err}");
}
