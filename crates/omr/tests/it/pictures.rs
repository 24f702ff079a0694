//! Charts without a browser: `omr history --chart`, and `omr status --watch`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use omr_history::{Sample, Store};
use omr_testkit::FakeRoot;
use omr_units::{Bytes, GroupId};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::running::Daemon;
use crate::common::{add_group, command, machine, omr, text};
use crate::top::Terminal;

/// The last sample: 2026-11-18T11:06:40Z.
const END: u64 = 1_795_000_000;

fn with_history() -> FakeRoot {
    let root = machine();
    let sample = |group: &str| Sample::of_anon(group, GroupId(7), Bytes::mib(48));
    let mut store = Store::new(&omr_base::paths::history(root.path()), "b", Bytes::mib(64));
    for time in [END - 600, END] {
        store.add(Duration::from_secs(time), &["", "app.slice"].map(sample));
    }
    root
}

/// The options of an hour around the samples.
const HOUR: [&str; 4] = ["--since", "2026-11-18T10:20:00Z", "--until", "2026-11-18T11:20:00Z"];

fn shown(root: &FakeRoot, words: &[&str]) -> (i32, String, String) {
    text(&omr(root, &[&["history"], words].concat()))
}

#[test]
fn each_chart_is_written_as_a_whole_into_both_files() {
    let root = with_history();
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["unused", "promise", "taken", "decisions", "waited", "place", "cost", "sleep"] {
        let [svg, png] = ["svg", "png"].map(|end| dir.path().join(format!("{name}.{end}")));
        let files = ["--svg", svg.to_str().expect("UTF-8"), "--png", png.to_str().expect("UTF-8")];
        let (code, stdout, stderr) = shown(&root, &[&["app.slice", "--chart", name], &HOUR[..], &files].concat());
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""), "{name}");
        let svg = fs::read_to_string(&svg).expect("the file");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name}");
        assert!(
            svg.contains("/app.slice") && svg.contains("2026-11-18 10:20 to 2026-11-18 11:20 UTC"),
            "{name}: {svg}"
        );
        assert!(fs::read(&png).expect("the file").starts_with(b"\x89PNG\r\n"), "{name}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("files").count(), 16, "no other file stays");
}

#[test]
fn a_picture_goes_to_standard_output_and_as_text_it_needs_no_file() {
    let root = with_history();
    let (code, stdout, stderr) = shown(&root, &[&["--svg", "-"], &HOUR[..]].concat());
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.starts_with("<svg ") && stdout.contains("What was not used?"), "the first chart is the default");
    let both = shown(&root, &[&["--svg", "-", "--png", "-"], &HOUR[..]].concat());
    assert_eq!(both.0, 2, "{both:?}");
    let (code, stdout, _) = shown(&root, &[&["--chart", "place"], &HOUR[..]].concat());
    assert_eq!(code, 0);
    assert!(stdout.starts_with("Where is the memory?  /  2026-11-18T10:20:00Z"), "{stdout}");
    let line = |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("age unknown").ends_with("48.0 MiB") && line("age unknown").contains('?'), "{stdout}");
    assert!(line("used within 2 min").ends_with("unknown"), "no age is known: {stdout}");
}

#[test]
fn errors_name_the_option_what_was_found_and_what_is_expected() {
    let root = with_history();
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("none").join("a.svg");
    let missing = missing.to_str().expect("UTF-8");
    for (words, code, expected) in [
        (vec!["--chart", "unusde"], 2, "unused, promise, taken, decisions, waited, place, cost, sleep"),
        (vec!["--svg", missing], 1, "there is no folder"),
        (vec!["--chart", "taken", "--since", "1h", "--until", "2h"], 2, "is not before the end of the chart"),
        (vec!["--chart", "taken", "app*"], 2, "expected a name without *"),
        (vec!["--chart", "taken", "--json"], 2, "cannot be used with"),
        (vec!["--until", "1h"], 2, "--chart"),
    ] {
        let (found, stdout, stderr) = shown(&root, &words);
        assert_eq!((found, stdout.as_str()), (code, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(expected), "{words:?}: {stderr}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("files").count(), 0);
}

#[test]
fn an_empty_history_says_what_will_be_there_and_when() {
    let root = machine();
    let words = "no history yet: the first sample comes";
    let (code, stdout, stderr) = shown(&root, &["--svg", "-"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("url(#unknown)") && stdout.contains(words) && stderr.contains(words), "{stderr}");
    for words_of in [vec![], vec!["--groups"]] {
        let (code, stdout, stderr) = shown(&root, &words_of);
        assert_eq!((code, stdout.as_str()), (0, ""));
        assert!(stderr.contains(words), "{words_of:?}: {stderr}");
    }
    // The control: there is a history, and nothing else to say.
    let root = with_history();
    let (_, stdout, stderr) = shown(&root, &["--groups"]);
    assert!(stdout.contains("/app.slice") && stderr.is_empty(), "{stderr}");
    assert!(shown(&root, &[]).2.contains("no sweep is recorded yet"));
}

/// The first lines of a command that goes on, which then gets a signal; the exit code.
fn watch(root: &FakeRoot, words: &[&str], lines: usize) -> (Vec<String>, Option<i32>) {
    let mut child = command(root.path(), words).stdout(Stdio::piped()).spawn().expect("omr runs");
    let out = BufReader::new(child.stdout.take().expect("standard output"));
    let found: Vec<String> = out.lines().take(lines).map(|line| line.expect("a line")).collect();
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::INT).expect("a signal");
    (found, child.wait().expect("an end").code())
}

#[test]
fn a_status_is_watched_line_by_line_until_a_signal() {
    let root = machine();
    add_group(&root, "app.scope", 300 << 10, 0);
    let _daemon = Daemon::start(&root, "");
    let (lines, code) = watch(&root, &["status", "--watch"], 2);
    assert_eq!(code, Some(0), "{lines:?}");
    for line in &lines {
        assert!(line.get(10..11) == Some("T") && line.contains("today: "), "a time and the status: {line}");
        assert!(!line.contains('\u{1b}'), "no terminal, so nothing that one obeys: {line}");
    }
    let (lines, code) = watch(&root, &["status", "--watch", "--json"], 2);
    assert_eq!(code, Some(0));
    for line in &lines {
        let value: serde_json::Value = line.parse().expect("one value of JSON in a line");
        assert!(value["groups"].is_array(), "{line}");
    }
    let (_, stdout, _) = text(&omr(&root, &["status"]));
    assert!(stdout.contains("no history yet"), "{stdout}");
}

#[test]
fn a_status_is_watched_on_a_terminal_with_rows_of_the_past() {
    let root = with_history();
    add_group(&root, "app.scope", 65_536, 0);
    let daemon = Daemon::start(&root, "");
    let command = format!("{} --root {} status --watch", env!("CARGO_BIN_EXE_omr"), root.path().display());
    let Some(terminal) = Terminal::start((80, 24), &command) else { return };
    let screen = terminal.wait_for("app.scope");
    for part in ["the last 2 h", "What was not used?", "came back", "Who waited?", "today: "] {
        assert!(screen.contains(part), "{part:?}: {screen}");
    }
    // A daemon that is gone is waited for.
    daemon.end();
    terminal.wait_for("the daemon is not running");
    terminal.keys(&["C-c"]);
    terminal.wait_for("ended with 0");
    terminal.assert_restored();
}
