//! Promises of the architecture that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The crates of the workspace whose code runs on users' machines: all but those of tests.
fn shipped_crates() -> Vec<String> {
    let crates = fs::read_dir(workspace().join("crates")).expect("the crates");
    let names = crates.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.filter(|name| !["testkit", "guest"].contains(&name.as_str())).collect();
    names.sort();
    assert!(["kernel", "omr", "policy", "units"].iter().all(|known| names.iter().any(|name| name == known)));
    names
}

/// All Rust files below a directory of the workspace.
fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![workspace().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                // A file of tests: its parent declares it behind cfg(test), or it would not
                // compile, because it needs crates that are there for tests only.
                let parts = ["/loop_tests", "/simulation", "/fixture.rs", "/stand_in", "/tests.rs", "/paging_tests.rs"];
                if !parts.iter().any(|part| path.to_string_lossy().contains(part)) {
                    found.push((path, text));
                }
            }
        }
    }
    assert!(!found.is_empty(), "{dir} has no sources");
    found
}

/// The lines of code, without comments and without the module of tests at the end of the file.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines.filter(|(_, line)| !line.starts_with("//"))
}

/// As [`offenders`], in all crates of which the name is not in `but`.
fn offenders_in_crates(but: &[&str], but_in: &[&str], is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let crates = shipped_crates().into_iter().filter(|name| !but.contains(&name.as_str()));
    crates.flat_map(|name| offenders(&format!("crates/{name}/src"), but_in, &is_wrong)).collect()
}

/// Every line of code in `dir` for which `is_wrong`, but in files whose path contains one of
/// `but_in`.
fn offenders(dir: &str, but_in: &[&str], is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in sources(dir) {
        if but_in.iter().any(|part| path.to_string_lossy().contains(part)) {
            continue;
        }
        for (number, line) in code(&text).filter(|(_, line)| is_wrong(line)) {
            wrong.push(format!("{}:{number}: {line}", path.display()));
        }
    }
    wrong
}

fn assert_none(wrong: &[String], why: &str) {
    assert!(wrong.is_empty(), "{why}:\n{}", wrong.join("\n"));
}

/// Returns true if a line has a string that is a path below `/proc` or `/sys`. Texts for people
/// name such paths in the middle of a sentence.
fn names_a_kernel_path(line: &str) -> bool {
    ["\"/proc", "\"/sys", "\"proc/", "\"sys/"].iter().any(|start| line.contains(start))
}

#[test]
fn kernel_paths_are_in_two_crates_only() {
    // What doctor says about files is text, and it is the larger part of it. In rules people may
    // write the mount in front of a group, which is taken off there.
    let text = ["commands/doctor", "config/glob.rs", "config/src/glob.rs"];
    let wrong = offenders_in_crates(&["actuate", "kernel"], &text, names_a_kernel_path);
    assert_none(&wrong, "paths below the root belong into crates/kernel and crates/actuate");
}

#[test]
fn nothing_runs_other_programs() {
    let is_command = |line: &str| line.contains("process::Command") || line.contains("Command::new");
    let becomes = "omr/src/commands/daemon.rs";
    // `omr whatif --local` starts itself for each file: one that is damaged ends one replay. It needs
    // no rights.
    let itself = "omr/src/commands/whatif/local.rs";
    assert_none(&offenders_in_crates(&[], &[becomes, itself], is_command), "omr runs no other programs");
    let text = fs::read_to_string(workspace().join("crates").join(itself)).expect("the command");
    let starts: Vec<&str> = code(&text).map(|(_, line)| line).filter(|line| line.contains("Command::new")).collect();
    assert_eq!(starts, ["let mut command = Command::new(env::current_exe()?);"]);
    // `omr daemon` becomes the daemon's program and starts no process.
    let text = fs::read_to_string(workspace().join("crates").join(becomes)).expect("the command");
    let commands: Vec<&str> = code(&text).map(|(_, line)| line).filter(|line| line.contains("Command::new")).collect();
    assert!(matches!(commands.as_slice(), [one] if one.contains(".exec()")), "{commands:?}");
}

/// Seconds for people may be floats; nothing that is counted is one.
#[test]
fn sizes_are_no_floats() {
    let is_float = |line: &str| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let has = |word: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
        words.into_iter().any(|word| matches!(word, "f32" | "f64"))
            && !line.contains("seconds: f64")
            && !has("as_secs_f64")
    };
    // Pixels of a picture are no sizes of memory, values of Prometheus, which a test reads, are
    // floats, and machines that nobody has recorded are made by a law.
    let others = ["picture/src/png.rs", "metrics/src/tests.rs", "fleet/src/synthesize.rs", "fleet/src/traces.rs"];
    assert_none(&offenders_in_crates(&[], &others, is_float), "no floats for sizes");
}

#[test]
fn policy_and_units_have_no_standard_library() {
    for name in ["policy", "units"] {
        let root = fs::read_to_string(workspace().join(format!("crates/{name}/src/lib.rs"))).expect("a crate");
        assert!(root.lines().any(|line| line == "#![no_std]"), "{name} is #![no_std]");
        let has_std = |line: &str| line.contains("extern crate std") || line.contains("std::");
        assert_none(&offenders(&format!("crates/{name}/src"), &[], has_std), "no_std");
        // A dependency with its standard library would bring files and clocks in by the back door.
        let manifest = fs::read_to_string(workspace().join(format!("crates/{name}/Cargo.toml"))).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines().filter(|line| !line.trim().is_empty()) {
            let known = ["omr-units", "serde"].iter().any(|known| line.starts_with(known));
            assert!(known && !line.contains("\"std\""), "crates/{name} depends on {line}");
        }
    }
}

/// Files of the kernel are opened, never made; what omr makes is its own: state, lock, socket.
#[test]
fn files_of_the_kernel_are_never_created() {
    let makes = |line: &str| {
        ["O_CREAT", "OFlags::CREATE", "File::create", ".create(true)", "fs::write", "create_dir"]
            .iter()
            .any(|word| line.contains(word))
    };
    for dir in ["crates/kernel/src", "crates/actuate/src"] {
        assert_none(&offenders(dir, &[], makes), "files are opened, never created");
    }
}

/// The engine writes through the actuator that it is given. In the daemon the mode decides which
/// one that is, in one place: "observe" writes nothing.
#[test]
fn the_mode_decides_in_one_place_whether_the_daemon_writes() {
    let makes = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "Live") && !line.starts_with("use ")
    };
    assert_none(&offenders("crates/engine/src", &[], makes), "the engine is handed its actuator");
    let made = offenders("crates/daemon/src", &[], makes);
    assert!(
        matches!(made.as_slice(), [one] if one.contains("settings.rs") && one.contains("Mode::Act =>")),
        "{made:?}"
    );
}

/// Every write to a file goes through the one trait. A PSI trigger is a write too, but its file
/// forgets the trigger when it is closed.
#[test]
fn one_place_writes_to_the_kernel() {
    let writes = |line: &str| line.contains("io::write(") || line.contains("write_all(");
    assert_none(&offenders("crates/kernel/src", &["psi.rs"], writes), "the kernel crate only reads");
    assert_none(&offenders("crates/actuate/src", &["actuator.rs"], writes), "writes go through the Actuator");
}

/// Groups are made, named and removed in one module, and for `omr run` only.
#[test]
fn only_omr_run_makes_groups() {
    let makes = |line: &str| {
        ["mkdir", "rmdir", "REMOVEDIR", "setxattr(", "removexattr(", "mknod", "symlink(", "symlinkat("]
            .iter()
            .any(|word| line.contains(word))
    };
    let wrong = offenders_in_crates(&[], &["actuate/src/groups.rs", "config/src/tests.rs"], makes);
    let seen = offenders("crates/actuate/src", &[], makes);
    assert_eq!(seen.len(), 3, "the control: it sees those that are there: {seen:?}");
    assert_none(&wrong, "groups are made in crates/actuate/src/groups.rs");
    let users = offenders_in_crates(&[], &["omr/src/commands/run.rs"], |line| {
        line.contains("groups::make(") || line.contains("groups::remove(") || line.contains("groups::set_xattr(")
    });
    assert_none(&users, "omr run makes groups, and nobody else");
}

/// Each source file that acts on the kernel, with the names in the tables of
/// docs/design/kernel-interfaces.md.
const ACTS: [(&str, &[&str]); 14] = [
    ("actuate/src/clear_refs.rs", &["`/proc/PID/clear_refs`"]),
    ("actuate/src/compaction.rs", &["`/proc/sys/vm/compact_memory`"]),
    ("actuate/src/damon.rs", &["`/sys/kernel/mm/damon/admin/kdamonds`"]),
    ("actuate/src/hibernate.rs", &["`/sys/power/image_size`", "`/sys/power/state`"]),
    ("actuate/src/lru_gen.rs", &["`/sys/kernel/debug/lru_gen`"]),
    (
        "actuate/src/madvise.rs",
        &["`process_madvise(MADV_WILLNEED)`", "`process_madvise(MADV_COLD)`", "`process_madvise(MADV_PAGEOUT)`"],
    ),
    ("actuate/src/probe.rs", &["`GROUP/memory.reclaim`"]),
    ("actuate/src/swap.rs", &["`swapoff(2)`", "`swapon(2)`"]),
    ("engine/src/hint/mod.rs", &["`process_madvise(MADV_COLD)`"]),
    ("engine/src/hint/swap_cache.rs", &["`GROUP/memory.swap.max`"]),
    (
        "engine/src/reclaim/backend.rs",
        &["`GROUP/memory.reclaim`", "`GROUP/memory.swap.reclaim`", "`GROUP/memory.high`"],
    ),
    ("engine/src/reclaim/limit_journal.rs", &["`GROUP/memory.high`", "`GROUP/memory.swap.max`"]),
    ("engine/src/trial.rs", &["`GROUP/memory.high`"]),
    ("omr/src/commands/run.rs", &["`GROUP/cgroup.procs`", "`mkdir(2)`", "`setxattr(2)`", "`rmdir(2)`"]),
];

/// A write that is new in the code gets a line in the tables.
#[test]
fn each_write_is_in_the_tables_of_interfaces() {
    let acts = |line: &str| {
        let calls =
            ["actuator.write(", "actuator.swap(", "actuator.advise(", "Live.write(", "Live.swap(", "Live.advise("];
        calls.iter().any(|call| line.contains(call))
    };
    let found = offenders_in_crates(&[], &[], acts);
    let unknown: Vec<_> =
        found.iter().filter(|line| !ACTS.iter().any(|(file, _)| line.contains(&format!("/{file}:")))).collect();
    assert!(unknown.is_empty(), "these acts are in no table: {unknown:?}");
    let gone: Vec<_> =
        ACTS.iter().filter(|(file, _)| !found.iter().any(|line| line.contains(&format!("/{file}:")))).collect();
    assert!(gone.is_empty(), "these act no more: {gone:?}");

    let text = fs::read_to_string(workspace().join("docs/design/kernel-interfaces.md")).expect("the tables");
    let written = text.split("\n## Written\n").nth(1).expect("the tables of writes");
    let written = written.split("\n## ").next().unwrap_or_default();
    let cells: Vec<&str> = written.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    assert!(cells.len() > 15, "{cells:?}");
    for (file, names) in ACTS {
        for name in names {
            assert!(cells.iter().any(|cell| cell.contains(name)), "{file} acts on {name}, which is in no table");
        }
    }
}

/// The names in the `[dependencies]` of a crate of the workspace.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join(format!("crates/{name}/Cargo.toml"))).expect("a manifest");
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split([' ', '.', '=']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

/// The names of all crates that a program of the workspace is built from. Those of the workspace
/// are read from their manifests, because Cargo.lock does not tell the dependencies of tests apart;
/// all others are read from Cargo.lock.
fn crates_of(program: &str) -> BTreeSet<String> {
    let lock = fs::read_to_string(workspace().join("Cargo.lock")).expect("Cargo.lock");
    let mut locked: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for package in lock.split("\n[[package]]\n").skip(1) {
        let name = package.split('"').nth(1).expect("a name");
        let listed = package.split("\ndependencies = [\n").nth(1).unwrap_or_default();
        let listed = listed.split(']').next().unwrap_or_default().lines();
        let names = listed.filter_map(|line| line.split(['"', ' ']).find(|word| !word.is_empty())).map(str::to_owned);
        // A crate may be there in two versions.
        locked.entry(name).or_default().extend(names);
    }
    let ours = shipped_crates();
    let mut found = BTreeSet::new();
    let mut open = vec![program.to_owned()];
    while let Some(name) = open.pop() {
        if !found.insert(name.clone()) {
            continue;
        }
        let own = name.strip_prefix("omr-").unwrap_or(&name);
        open.extend(match ours.iter().any(|ours| ours == own) && name.starts_with("omr") {
            true => dependencies(own),
            false => locked.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in Cargo.lock")).clone(),
        });
    }
    found
}

/// The daemon may write to all groups, and is locked in memory.
#[test]
fn the_daemons_program_has_the_daemons_crates_only() {
    let outside = [
        "clap",
        "crossterm",
        "futures-core",
        "httparse",
        "hyper",
        "indicatif",
        "omr-charts",
        "omr-fleet",
        "omr-picture",
        "omr-web",
        "parquet",
        "polyfuse-kernel",
        "ratatui",
        "tiny-skia",
        "tokio",
        "ttf-parser",
        "ureq",
        "zbus",
    ];
    let daemon = crates_of("omr-daemon");
    let found: Vec<&str> = outside.into_iter().filter(|name| daemon.contains(*name)).collect();
    assert!(found.is_empty(), "omr-daemon is built from {found:?}");
    assert!(["omr-engine", "omr-policy", "libc", "serde_json", "serde_core"].iter().all(|name| daemon.contains(*name)));
    // The control: omr is built from all of them.
    let omr = crates_of("omr");
    let missing: Vec<&str> = outside.into_iter().filter(|name| !omr.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not seen");
    assert!(!omr.contains("omr-daemon") && !daemon.contains("omr"), "neither program contains the other");
}

/// The other crates cannot name the Actuator, so they cannot write.
#[test]
fn three_crates_can_write_to_the_kernel() {
    let can_write = |name: &String| dependencies(name).iter().any(|name| name == "omr-actuate");
    let names: Vec<String> = shipped_crates().into_iter().filter(can_write).collect();
    assert_eq!(names, ["daemon", "engine", "omr"]);
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert!(names_a_kernel_path("let x = dir.open(\"/proc/stat\");"));
    assert!(!names_a_kernel_path("bail!(\"no line in /proc/stat\")"));
    let text = "//! a\nlet a = 1; // b\n    /// c\n#[cfg(test)]\nmod tests {\nlet b = \"/proc\";\n}";
    assert_eq!(code(text).map(|(number, _)| number).collect::<Vec<_>>(), [2]);
}
