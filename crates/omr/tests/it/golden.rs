//! Golden trees: `omr` is run on a fake root, and its exit code, output, writes and what is left
//! changed are compared with a file.
//!
//! A directory each in `golden/`:
//! - `cmd`: the arguments, one to a line;
//! - `groups`: a line for each group, `PATH: anon=KIB file=KIB`, and more, see [`add`]; a line
//!   `machine: ...` says what is unusual about the machine;
//! - `root/`: files to lay over the root, such as a configuration;
//! - `expected`. `OMR_GOLDEN=write cargo test -p omr --test it golden::` writes it anew: read the
//!   difference.
//!
//! The groups' files react, see [`crate::common::fake_kernel`]: without swap only page cache can be
//! had.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::fake_kernel::{FakeKernel, Written};
use crate::common::{GROUPS, STEADY, add_group, command, machine_of, set_line, swaps, text};
use omr_testkit::{FakeRoot, Release};

#[test]
fn each_tree_gives_what_is_expected() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases: Vec<PathBuf> =
        fs::read_dir(&dir).expect("golden").map(|entry| entry.expect("a case").path()).collect();
    cases.sort();
    assert!(cases.len() >= 30, "{} cases are hardly all", cases.len());
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    // They wait for each other's answers most of the time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    wrong.lock().expect("a list").extend(compare(case));
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().expect("a list");
    wrong.sort();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Returns the difference; `None`: there is none. On a busy machine the fake kernel may be slower
/// than omr's limit for a write, and then misses one write. So there are three runs.
fn compare(case: &Path) -> Option<String> {
    let file = case.join("expected");
    if std::env::var_os("OMR_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&file, run(case)).expect("written");
        return None;
    }
    let expected = fs::read_to_string(&file).unwrap_or_else(|err| format!("({err})\n"));
    let mut actual = String::new();
    for _ in 0..3 {
        actual = run(case);
        if actual == expected {
            return None;
        }
    }
    Some(format!("{}\n--- expected\n{expected}--- actual\n{actual}", case.display()))
}

fn run(case: &Path) -> String {
    let groups = fs::read_to_string(case.join("groups")).expect("groups");
    let old = groups.lines().any(|line| line == "machine: release=6.1");
    let root = machine_of(if old { Release::V6_1 } else { Release::V6_12 });
    root.write("etc/omr/omr.toml", STEADY);
    for line in groups.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (path, words) = line.rsplit_once(": ").unwrap_or_else(|| panic!("{line}: no colon"));
        match path {
            "machine" => words.split_whitespace().for_each(|word| set_machine(&root, word)),
            _ => add(&root, path, words),
        }
    }
    overlay(&case.join("root"), &case.join("root"), &root);
    let args = fs::read_to_string(case.join("cmd")).expect("cmd");
    let args: Vec<String> = args.lines().map(|arg| arg.replace("ROOT", &root.path().to_string_lossy())).collect();
    let before = contents(&root);
    let kernel = FakeKernel::start(&root);
    let output = command(root.path(), &args.iter().map(String::as_str).collect::<Vec<_>>()).output().expect("omr runs");
    let writes = kernel.end();
    let after = contents(&root);

    let (code, stdout, stderr) = text(&output);
    let mut shown = format!("exit {code}\n");
    for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
        for line in text.lines() {
            let _ =
                writeln!(shown, "{name}: {}", without_times(&line.replace(&*root.path().to_string_lossy(), "ROOT")));
        }
    }
    for line in in_runs(&writes) {
        let _ = writeln!(shown, "write: {line}");
    }
    for (path, before) in &before {
        let after = after.get(path).map_or("(gone)", String::as_str);
        if before != after {
            let _ = writeln!(shown, "left: {}: {} -> {}", path.display(), before.trim(), after.trim());
        }
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        let _ = writeln!(shown, "left: {}: new", path.display());
    }
    shown
}

/// The peculiarity of the machine.
fn set_machine(root: &FakeRoot, word: &str) {
    let swap_free = |total: u64, free: u64| {
        root.write(
            "proc/swaps",
            if total == 0 { "Filename\tType\tSize\tUsed\tPriority\n".into() } else { swaps(total, total - free) },
        );
        set_line(root, "proc/meminfo", "SwapTotal:", &format!("{total} kB"));
        set_line(root, "proc/meminfo", "SwapFree:", &format!("{free} kB"));
    };
    match word.split_once('=').unwrap_or((word, "")) {
        ("release", _) => {}
        ("swap", "none") => swap_free(0, 0),
        ("swap", "full") => swap_free(524_284, 1024),
        // A tenth of it is the floor: this is 1 MiB and 4 KiB more.
        ("swap", "scarce") => swap_free(524_284, 52_428 + 1028),
        ("meminfo", "truncated") => {
            let text = root.read("proc/meminfo");
            root.write("proc/meminfo", &text[..text.find("SwapFree").expect("a line")]);
        }
        // With half a gigabyte of swap at 254:0, the resume device.
        ("hibernates", "") => {
            for (file, text) in [
                ("power/state", "freeze mem disk"),
                ("power/disk", "[platform] shutdown"),
                ("power/resume", "254:0"),
                ("power/resume_offset", "0"),
                ("power/image_size", "188059648"),
                ("power/reserved_size", "1048576"),
                ("class/block/vda/dev", "254:0"),
            ] {
                root.write(Path::new("sys").join(file), format!("{text}\n"));
            }
        }
        ("vmstat", "missing") => root.remove("proc/vmstat"),
        _ => panic!("{word}: no such machine"),
    }
}

/// A group: KiB for `anon`, `file`, `low`, `min`, and for `children`, what its children hold.
/// `reclaim=` `none` (a kernel before 5.19), `denied` (the file cannot be opened for writing) or
/// `plain` (it takes a number and no key, as in 6.1); `memory=none`: no memory controller.
fn add(root: &FakeRoot, path: &str, words: &str) {
    let words: BTreeMap<&str, &str> = words.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    let kib = |name: &str| words.get(name).map_or(0, |value| value.parse::<u64>().expect("KiB"));
    add_group(root, path, kib("anon"), kib("file"));
    let file = |name: &str| Path::new(GROUPS).join(path).join(name);
    root.write(file("memory.current"), format!("{}\n", (kib("anon") + kib("file") + kib("children")) << 10));
    for limit in ["low", "min"] {
        let value = match words.get(limit) {
            Some(&"max") => "max\n".to_owned(),
            _ => format!("{}\n", kib(limit) << 10),
        };
        root.write(file(&format!("memory.{limit}")), value);
    }
    let link = |target: &str| {
        root.remove(file("memory.reclaim"));
        std::os::unix::fs::symlink(target, root.resolve(file("memory.reclaim"))).expect("a link");
    };
    match words.get("reclaim") {
        None => {}
        Some(&"none") => root.remove(file("memory.reclaim")),
        // A file of sysfs that nobody, root included, may write to.
        Some(&"denied") => link("/sys/devices/system/cpu/online"),
        // A file that takes a number and refuses everything else; this process's own timer slack.
        Some(&"plain") => link("/proc/self/timerslack_ns"),
        Some(other) => panic!("reclaim={other}"),
    }
    if words.get("memory") == Some(&"none") {
        for name in ["current", "stat", "reclaim", "min", "low", "high", "max"] {
            root.remove(file(&format!("memory.{name}")));
        }
    }
}

fn overlay(dir: &Path, top: &Path, root: &FakeRoot) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            overlay(&path, top, root);
        } else {
            let below = path.strip_prefix(top).expect("below it");
            let text = fs::read_to_string(&path).expect("text");
            root.write(below, text.replace("# steady\n", STEADY));
        }
    }
}

/// All files that must not be left changed: those of the groups, but what the fake kernel changes,
/// and what omr keeps itself.
fn contents(root: &FakeRoot) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for top in [GROUPS, "var", "run", "etc"] {
        gather(&root.resolve(top), root.path(), &mut all);
    }
    all
}

fn gather(dir: &Path, root: &Path, all: &mut BTreeMap<PathBuf, String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            gather(&path, root, all);
        } else if !path.is_symlink() && !path.ends_with("memory.stat") {
            let text = String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned();
            all.insert(path.strip_prefix(root).expect("below it").to_owned(), text);
        }
    }
}

/// Equal writes in a row as one line.
fn in_runs(writes: &[Written]) -> Vec<String> {
    let mut lines: Vec<(String, u32)> = Vec::new();
    for written in writes {
        let line = format!("{}/{}: {}", written.group.display(), written.file, written.data);
        match lines.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => lines.push((line, 1)),
        }
    }
    lines.into_iter().map(|(line, times)| if times > 1 { format!("{line} ({times} times)") } else { line }).collect()
}

/// Durations are not compared.
fn without_times(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for index in 1..words.len() {
        let unit = words[index].trim_end_matches([',', '.', ';']);
        if matches!(unit, "ms" | "s") && words[index - 1].parse::<f32>().is_ok() {
            words[index - 1] = "N";
            // "N s" and "N ms" alike.
            words[index] = if words[index].ends_with('.') { "s." } else { "s," };
        }
    }
    words.join(" ")
}
