//! The program `omr-daemon` as it is started. Because of this test, cargo builds the program for
//! the tests of `crates/omr` too, which run it on fake machines.

use std::process::{Command, Stdio};

/// Exit code, standard output and standard error.
fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_omr-daemon"));
    command.args(words).stdin(Stdio::null()).env_remove("OMR_LOG").env_remove("NOTIFY_SOCKET");
    let output = command.output().expect("omr-daemon runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn it_prints_its_version_and_its_help() {
    let version = format!("omr-daemon {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]), (Some(0), version, String::new()));
    let (code, help, stderr) = run(&["--help"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for option in ["--foreground", "--give-back", "--config FILE", "--profile NAME", "--root DIR", "[GROUP]"] {
        assert!(help.contains(option), "{option} is missing in {help}");
    }
}

#[test]
fn a_wrong_command_line_is_refused_with_the_exit_code_for_it() {
    let mistake = "omr-daemon: --profile sed: expected seed; see omr-daemon --help\n";
    assert_eq!(run(&["--profile", "sed"]), (Some(2), String::new(), mistake.into()));
    let mistake = "omr-daemon: invalid option '--forground'; see omr-daemon --help\n";
    assert_eq!(run(&["--forground"]), (Some(2), String::new(), mistake.into()));
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let root = tempfile::tempdir().expect("a directory");
    for dir in ["proc", "sys/fs/cgroup"] {
        std::fs::create_dir_all(root.path().join(dir)).expect("made");
    }
    let root = root.path().to_str().expect("UTF-8");
    let (code, _, stderr) = run(&["--root", root, "--foreground", "--config", "/nowhere/omr.toml"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.starts_with("omr: ") && stderr.contains("/nowhere/omr.toml"), "{stderr}");
}

#[test]
fn memory_is_given_back_or_compacted_for_a_connection_only() {
    for option in ["--give-back", "--compact"] {
        let (code, _, stderr) = run(&[option]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("standard input is no socket") && stderr.contains(option), "{stderr}");
    }
}
