//! `omr warm` on fake roots: what it would ask for, in which order, and what it refuses. What the
//! kernel makes of it is tested in the VM (lab/tests/test_warm.py).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::{GROUPS, add_group, command, machine, omr, set_line, text, write_lock};
use omr_testkit::FakeRoot;
use serde_json::Value;

const PAGE: u64 = 4096;

/// A process with mappings of 16 pages at 0x10000, 0x40000 (not used lately) and 0x80000 (a file),
/// and its pages from address 0 on: `p` present, `s` swapped.
fn add_process(root: &FakeRoot, pid: u32, starttime: u64, group: &str, pages: &str) {
    let dir = format!("proc/{pid}");
    root.write(
        format!("{dir}/stat"),
        format!("{pid} (a b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {starttime} 0 9 0\n"),
    );
    root.write(format!("{dir}/cgroup"), format!("0::/{group}\n"));
    let heads = [
        "10000-20000 rw-p 00000000 00:00 0                          [heap]",
        "40000-50000 rw-p 00000000 00:00 0",
        "80000-90000 r--p 00000000 fe:01 77                         /usr/lib/libc.so",
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]",
    ];
    root.write(format!("{dir}/maps"), heads.join("\n") + "\n");
    let used = ["Referenced:  64 kB\n", "Referenced:  0 kB\n", "Referenced:  4 kB\n", "Referenced:  0 kB\n"];
    let smaps: String = heads.iter().zip(used).map(|(head, used)| format!("{head}\n{used}VmFlags: rd\n")).collect();
    root.write(format!("{dir}/smaps"), smaps);
    let entry = |c| match c {
        'p' => 1u64 << 63,
        's' => 1u64 << 62,
        _ => 0,
    };
    root.write(format!("{dir}/pagemap"), pages.chars().flat_map(|c| entry(c).to_ne_bytes()).collect::<Vec<u8>>());
    let procs = format!("{GROUPS}/{group}/cgroup.procs");
    root.write(&procs, root.read(&procs) + &format!("{pid}\n"));
}

/// Pages of [`add_process`]: those of each of its mappings.
fn pages(heap: &str, idle: &str, file: &str) -> String {
    format!("{:16}{heap:16}{:32}{idle:16}{:48}{file:16}", "", "", "").replace(' ', "-")
}

/// A machine with a foreground group, a background group and one without a rule.
fn with_groups() -> FakeRoot {
    let root = machine();
    root.write(
        "etc/omr/omr.toml",
        "[[group]]\nmatch = 'fg'\nclass = 'foreground'\n[[group]]\nmatch = 'bg'\nclass = 'background'\n",
    );
    for group in ["bg", "fg", "other"] {
        add_group(&root, group, 1024, 0);
    }
    root
}

fn json(output: &str) -> Value {
    output.parse().unwrap_or_else(|err| panic!("{err}: {output}"))
}

/// A dry run: exit code and summary.
fn dry(root: &FakeRoot, args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = text(&omr(root, &[&["warm", "--dry-run", "--json"], args].concat()));
    assert!(!stdout.is_empty(), "{stderr}");
    (code, json(&stdout))
}

/// Group and bytes from swap, in order.
fn order(summary: &Value) -> Vec<(String, u64)> {
    let groups = summary["groups"].as_array().expect("groups");
    groups
        .iter()
        .map(|group| (group["group"].as_str().unwrap_or("?").into(), group["swap"].as_u64().unwrap_or(0)))
        .collect()
}

fn three_processes() -> FakeRoot {
    let root = with_groups();
    add_process(&root, 101, 1, "bg", &pages("ssss", "", ""));
    add_process(&root, 102, 2, "other", &pages("ss", "", ""));
    add_process(&root, 103, 3, "fg", &pages("pps", "ss", ""));
    root
}

#[test]
fn foreground_comes_first_and_background_only_when_named() {
    let root = three_processes();
    let (code, summary) = dry(&root, &[]);
    assert_eq!(code, 0, "{summary}");
    assert_eq!(order(&summary), [("fg".into(), 3 * PAGE), ("other".into(), 2 * PAGE)]);
    assert_eq!((&summary["swap"], &summary["record"]), (&(5 * PAGE).into(), &"none".into()));
    let (_, summary) = dry(&root, &["/"]);
    assert_eq!(order(&summary), [("fg".into(), 3 * PAGE), ("other".into(), 2 * PAGE), ("bg".into(), 4 * PAGE)]);
    let (_, summary) = dry(&root, &["bg", "102"]);
    // Who names a process wants it first.
    assert_eq!(order(&summary), [("other".into(), 2 * PAGE), ("bg".into(), 4 * PAGE)]);
    let (_, summary) = dry(&root, &["/sys/fs/cgroup/bg", "bg", "101"]);
    assert_eq!(order(&summary), [("bg".into(), 4 * PAGE)], "no process comes twice");
}

/// The process has 64 TiB of addresses more, of which this much is in memory and in swap, as smaps
/// says. There is no PAGEMAP_SCAN on a fake root, as on Linux before 6.7.
fn reserve(root: &FakeRoot, pid: u32, resident: &str, swapped: &str) {
    let head = "100000000000-500000000000 rw-p 00000000 00:00 0\n";
    for (file, text) in
        [("maps", String::new()), ("smaps", format!("Rss: {resident}\nSwap: {swapped}\nReferenced: 0 kB\n"))]
    {
        let path = format!("proc/{pid}/{file}");
        let (before, rest) =
            root.read(&path).split_once("ffffffffff").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("vsyscall");
        root.write(&path, format!("{before}{head}{text}ffffffffff{rest}"));
    }
    let pagemap = fs::OpenOptions::new().write(true).open(root.resolve(format!("proc/{pid}/pagemap"))).expect("a file");
    pagemap.set_len(0x5000_0000_0000 / PAGE * 8).expect("a hole");
}

#[test]
fn addresses_without_memory_cost_nothing_and_a_process_of_holes_only_itself() {
    let root = with_groups();
    add_process(&root, 103, 3, "fg", &pages("pppp", "ss", ""));
    reserve(&root, 103, "0 kB", "0 kB");
    let record = |root: &FakeRoot| json(&text(&omr(root, &["warm", "--record", "--json"])).1);
    let written = record(&root);
    assert_eq!(
        (&written["processes"], &written["unread"], &written["used"]),
        (&1.into(), &0.into(), &(4 * PAGE).into())
    );
    let (code, summary) = dry(&root, &[]);
    assert_eq!((code, &summary["unread"], &summary["swap"]), (0, &0.into(), &(2 * PAGE).into()), "{summary}");
    // A page somewhere in them: the others are recorded and come back all the same.
    add_process(&root, 104, 4, "fg", &pages("pppp", "ss", ""));
    reserve(&root, 104, "4 kB", "4 kB");
    let written = record(&root);
    assert_eq!((&written["processes"], &written["unread"], &written["cut"]), (&1.into(), &1.into(), &false.into()));
    let (code, summary) = dry(&root, &[]);
    assert_eq!((code, &summary["unread"], &summary["swap"]), (0, &1.into(), &(2 * PAGE).into()), "{summary}");
    // The time of the whole command.
    let written = json(&text(&omr(&root, &["warm", "--record", "--json", "--timeout", "100ms"])).1);
    assert!(written["cut"] == true && written["unread"] == 0, "{written}");
    assert_eq!(dry(&root, &["--timeout", "100ms"]).1["end"], "timeout");
}

#[test]
fn a_file_that_is_too_long_keeps_nobody_else_out() {
    let root = with_groups();
    add_process(&root, 103, 3, "fg", &pages("pppp", "ss", ""));
    add_process(&root, 104, 4, "fg", &pages("pppp", "ss", ""));
    let smaps = root.resolve("proc/104/smaps");
    fs::OpenOptions::new().write(true).open(smaps).and_then(|file| file.set_len(65 << 20)).expect("a long file");
    let (code, stdout, _) = text(&omr(&root, &["warm", "--record", "--json"]));
    let written = json(&stdout);
    assert_eq!((code, &written["processes"], &written["unread"]), (0, &1.into(), &1.into()), "{written}");
}

#[test]
fn a_record_brings_back_what_was_there_and_what_was_used_first() {
    let root = with_groups();
    add_process(&root, 103, 3, "fg", &pages("pppp", "pp", "ppp"));
    let (code, stdout, stderr) = text(&omr(&root, &["warm", "--record", "--json"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let written = json(&stdout);
    assert_eq!((&written["used"], &written["rest"]), (&(7 * PAGE).into(), &(2 * PAGE).into()), "{written}");
    assert_eq!((&written["processes"], &written["groups"]), (&1.into(), &1.into()));
    let file = root.resolve("var/lib/omr-root/warm");
    let meta = fs::metadata(&file).expect("a record");
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(written["size"], meta.len());

    // It left, and more than was there: the file's pages are not in the page table.
    root.write("proc/103/pagemap", "");
    fs::remove_dir_all(root.resolve("proc/103")).expect("removed");
    root.write(format!("{GROUPS}/fg/cgroup.procs"), "");
    add_process(&root, 103, 3, "fg", &pages("ssps--ss", "ss", "-p"));
    let (code, summary) = dry(&root, &[]);
    assert_eq!((code, &summary["record"]), (0, &"used".into()));
    // 3 recorded in the heap, 2 in the other mapping, then 2 of which no record knows.
    assert_eq!((&summary["swap"], &summary["file"]), (&(7 * PAGE).into(), &(2 * PAGE).into()), "{summary}");
    assert_eq!((&summary["gone"], &summary["unmapped"]), (&0.into(), &0.into()));
}

#[test]
fn a_record_of_processes_that_are_gone_or_changed_does_no_harm() {
    let root = three_processes();
    add_process(&root, 104, 4, "fg", &pages("pppp", "", ""));
    add_process(&root, 105, 5, "fg", &pages("pp", "pp", ""));
    assert_eq!(text(&omr(&root, &["warm", "--record"])).0, 0);
    // 102 is gone, another process has the pid 104, and 105 has unmapped something.
    fs::remove_dir_all(root.resolve("proc/102")).expect("removed");
    root.write("proc/104/stat", root.read("proc/104/stat").replace("0 4 0 9", "0 400 0 9"));
    let maps = root.read("proc/105/maps");
    root.write(
        "proc/105/maps",
        maps.lines().filter(|line| !line.starts_with("40000")).collect::<Vec<_>>().join("\n") + "\n",
    );
    let (code, summary) = dry(&root, &["/"]);
    assert_eq!((code, &summary["gone"]), (0, &1.into()), "{summary}");
    assert_eq!(summary["unmapped"], 2 * PAGE, "{summary}");
}

#[test]
fn a_record_of_another_boot_is_left_out() {
    let root = three_processes();
    assert_eq!(text(&omr(&root, &["warm", "--record"])).0, 0);
    root.write("proc/sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000002\n");
    let (code, stdout, stderr) = text(&omr(&root, &["warm", "--dry-run"]));
    assert_eq!(code, 0);
    assert!(stderr.contains("another boot"), "{stderr}");
    assert!(stdout.contains("fg (foreground): would ask for 12.0 KiB from swap"), "{stdout}");
}

#[test]
fn a_record_that_was_just_made_is_kept_where_that_is_asked_for() {
    let root = three_processes();
    let keep = ["warm", "--record", "--unless-newer", "10m"];
    // A fresh record of other processes, as that of "omr hibernate" is when the groups are empty.
    assert_eq!(text(&omr(&root, &keep)).0, 0);
    let record = root.read("var/lib/omr-root/warm");
    fs::remove_dir_all(root.resolve("proc/103")).expect("removed");
    let (code, stdout, stderr) = text(&omr(&root, &keep));
    assert!(code == 0 && stdout.contains("is kept"), "{stdout}{stderr}");
    assert_eq!(root.read("var/lib/omr-root/warm"), record);
    let (_, stdout, _) = text(&omr(&root, &[&keep[..], &["--json"]].concat()));
    assert!(json(&stdout)["age_seconds"].as_u64().is_some_and(|age| age < 600), "{stdout}");
    // The controls: one that is older, of a time to come, of another boot, broken; and who does not
    // ask.
    let time = json(&record)["time"].as_u64().expect("a time");
    let other = |from: String, to: String| {
        assert_ne!(record.replace(&from, &to), record);
        record.replace(&from, &to)
    };
    let dated = |at: u64| other(format!("\"time\":{time}"), format!("\"time\":{at}"));
    for (text_before, args) in [
        (dated(time - 601), &keep[..]),
        (dated(time + 3600), &keep),
        (other("000000000001".into(), "000000000002".into()), &keep),
        (record[..record.len() / 2].to_owned(), &keep),
        (record.clone(), &keep[..2]),
    ] {
        let file = root.resolve("var/lib/omr-root/warm");
        fs::write(&file, &text_before).expect("written");
        let (code, stdout, stderr) = text(&omr(&root, args));
        assert!(code == 0 && stdout.contains("Written to"), "{stdout}{stderr}");
        assert_ne!(root.read("var/lib/omr-root/warm"), text_before);
    }
    assert_eq!(text(&omr(&root, &["warm", "--unless-newer", "10m"])).0, 2);
}

#[test]
fn a_broken_record_is_refused_with_a_sentence() {
    let root = three_processes();
    root.write("var/lib/omr-root/warm", "{\"version\":1,");
    let (code, _, stderr) = text(&omr(&root, &["warm", "--dry-run"]));
    assert!(code == 1 && stderr.contains("var/lib/omr-root/warm") && stderr.contains("omr warm --record"), "{stderr}");
}

#[test]
fn no_more_than_fits() {
    let root = three_processes();
    set_line(&root, "proc/meminfo", "MemTotal:", "1024000 kB");
    for (available, floor, fits) in [("102408 kB", "10%", false), ("102412 kB", "10%", true), ("16 kB", "0", true)] {
        set_line(&root, "proc/meminfo", "MemAvailable:", available);
        let (code, summary) = dry(&root, &["--free-floor", floor, "fg"]);
        let expected = if fits { (0, "complete") } else { (4, "headroom") };
        assert_eq!((code, summary["end"].as_str()), (expected.0, Some(expected.1)), "{available}: {summary}");
    }
    let text_without: String = root
        .read("proc/meminfo")
        .lines()
        .filter(|line| !line.starts_with("MemAvailable"))
        .fold(String::new(), |text, line| text + line + "\n");
    root.write("proc/meminfo", text_without);
    let (code, _, stderr) = text(&omr(&root, &["warm", "--dry-run"]));
    assert!(code == 1 && stderr.contains("MemAvailable"), "unknown is no leave: {stderr}");
}

#[test]
fn a_group_at_its_limit_is_passed_over_and_others_are_not() {
    for (file, above) in [("memory.max", false), ("memory.high", false), ("memory.max", true)] {
        let root = three_processes();
        add_group(&root, "top", 0, 0);
        add_group(&root, "top/inner", 0, 0);
        add_process(&root, 106, 6, "top/inner", &pages("ssss", "", ""));
        let group = if above { "top" } else { "top/inner" };
        root.write(format!("{GROUPS}/{group}/{file}"), "12288\n");
        root.write(format!("{GROUPS}/{group}/memory.current"), "4096\n");
        let (code, summary) = dry(&root, &[]);
        assert_eq!((code, &summary["end"]), (4, &"headroom".into()), "{summary}");
        let full = summary["groups"].as_array().expect("groups").iter().find(|group| group["full"] == true);
        assert_eq!(full.expect("a full group")["group"], "top/inner");
        assert_eq!(summary["swap"], 5 * PAGE, "{summary}");
    }
}

#[test]
fn words_that_are_none() {
    let root = with_groups();
    for (args, code, expected) in [
        (vec!["nosuch"], 1, "no group nosuch"),
        (vec!["4711"], 1, "no process 4711"),
        (vec!["0"], 1, "there is no group and no process 0\n"),
        (vec!["-1"], 1, "there is no group -1"),
        (vec!["99999999999"], 1, "there is no group and no process 99999999999\n"),
        (vec!["--rate", "100MB/s"], 2, "100MiB/s"),
        (vec!["--rate", "100M"], 2, "100MiB/s"),
        (vec!["--rate", "0/s"], 2, "100MiB/s"),
        (vec!["--free-floor", "10"], 2, "512M"),
        (vec!["--timeout", "5"], 2, "time unit needed"),
        (vec!["--record", "--unless-newer", "-5"], 2, "'-5' for '--unless-newer <TIME>': expected a time such as 30s"),
        (vec!["--record", "--unless-newer", "-5m"], 2, "'-5m' for '--unless-newer <TIME>': expected a time"),
        (vec!["--record", "--unless-newer"], 2, "--unless-newer"),
        (vec!["--unless-newer", "10m"], 2, "--record"),
        (vec!["--record", "--rate", "1M/s"], 2, "--record"),
        (vec!["../../etc"], 1, ".."),
    ] {
        let (actual, _, stderr) = text(&omr(&root, &[&["warm", "--dry-run"], args.as_slice()].concat()));
        assert!(actual == code && stderr.contains(expected), "{args:?}: {actual} {stderr}");
    }
    // Nothing is in swap: nothing to do is done.
    let (code, stdout, _) = text(&omr(&root, &["warm", "--dry-run"]));
    assert!(code == 0 && stdout.contains("0 B from swap"), "{stdout}");
}

#[test]
fn a_dry_run_leaves_nothing_behind() {
    let root = three_processes();
    for args in [["warm", "--dry-run"].as_slice(), &["warm", "--dry-run", "--record"]] {
        assert_eq!(text(&omr(&root, args)).0, 0);
    }
    assert!(!root.resolve("var/lib/omr-root/warm").exists() && !root.resolve("run/omr").exists());
}

#[test]
fn there_is_one_at_a_time() {
    let root = with_groups();
    let held = write_lock(&root, "run/omr-root/warm.lock", "77\n");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
    let (code, _, stderr) = text(&omr(&root, &["warm", "--ignore-busy"]));
    assert!(code == 4 && stderr.contains("running already (pid 77)"), "{stderr}");
    drop(held);
    let output = command(root.path(), &["warm", "--ignore-busy"]).output().expect("omr runs");
    assert_eq!(text(&output).0, 0, "{output:?}");
}
