//! `omr hint` and `omr reclaim PID` on fake roots: what they would hint, and what they refuse. What
//! the kernel makes of it is tested in the VM (lab/tests/test_hint.py).

use crate::common::{GROUPS, add_group, machine, omr, set_line, swaps, text};
use omr_testkit::FakeRoot;
use serde_json::Value;

const PAGE: u64 = 4096;

/// Mappings of a process: a heap, a file, shared memory, locked memory, the kernel's own; 16 pages
/// each, of which the first 8 are in memory, and of the heap 4 more in swap.
const SMAPS: &str = "\
10000-20000 rw-p 00000000 00:00 0                          [heap]
Rss:                  32 kB
VmFlags: rd wr mr mw me ac
40000-50000 r--p 00000000 fe:01 77                         /usr/lib/libc.so
Rss:                  32 kB
VmFlags: rd mr mw me
80000-90000 rw-s 00000000 00:01 78                         /dev/zero (deleted)
Rss:                  32 kB
VmFlags: rd wr sh mr mw me ms
c0000-d0000 rw-p 00000000 00:00 0
Rss:                  32 kB
VmFlags: rd wr mr mw me lo ac
100000-101000 r-xp 00000000 00:00 0                        [vdso]
Rss:                   4 kB
VmFlags: rd ex mr mw me de
";

/// A process in a group; `flags` as the kernel has them.
fn add_process(root: &FakeRoot, pid: u32, ppid: u32, state: char, flags: u32, group: &str) {
    let dir = format!("proc/{pid}");
    root.write(
        format!("{dir}/stat"),
        format!("{pid} (a b) {state} {ppid} 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 9 0\n"),
    );
    root.write(format!("{dir}/cgroup"), format!("0::/{group}\n"));
    let head = |line: &&str| line.contains('-');
    let maps: Vec<&str> = SMAPS.lines().filter(head).collect();
    root.write(format!("{dir}/maps"), maps.join("\n") + "\n");
    root.write(format!("{dir}/smaps"), SMAPS);
    let entry = |page: u64| match page {
        0x10..0x18 | 0x40..0x48 | 0x80..0x88 | 0xc0..0xc8 | 0x100 => 1u64 << 63,
        0x18..0x1c => 1u64 << 62,
        _ => 0,
    };
    root.write(format!("{dir}/pagemap"), (0..0x101).flat_map(|page| entry(page).to_ne_bytes()).collect::<Vec<u8>>());
    let procs = format!("{GROUPS}/{group}/cgroup.procs");
    root.write(&procs, root.read(&procs) + &format!("{pid}\n"));
}

/// A machine with a group of each kind, and a process in each: 101 `bg`, 102 `fg`, 103 `low`.
fn with_processes() -> FakeRoot {
    let root = machine();
    root.write(
        "etc/omr/omr.toml",
        "[[group]]\nmatch = 'fg'\nclass = 'foreground'\n[[group]]\nmatch = 'bg'\nkeep = '1MiB'\n",
    );
    for (group, pid) in [("bg", 101), ("fg", 102), ("low", 103)] {
        add_group(&root, group, 4096, 0);
        add_process(&root, pid, 1, 'S', 0, group);
    }
    root.write(format!("{GROUPS}/low/memory.low"), "max\n");
    root
}

fn dry(root: &FakeRoot, args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = text(&omr(root, &[args, &["--dry-run", "--json"]].concat()));
    (code, stdout.parse().unwrap_or_else(|err| panic!("{err}: {stdout} {stderr}")))
}

#[test]
fn each_mapping_and_what_is_passed_over() {
    let root = with_processes();
    let (code, summary) = dry(&root, &["hint", "101", "--pageout"]);
    assert_eq!((code, &summary["hinted"]), (0, &(16 * PAGE).into()), "{summary}");
    assert_eq!(summary["skipped"]["shared"], 8 * PAGE);
    assert_eq!(summary["skipped"]["locked"], 8 * PAGE);
    let lines = summary["processes"][0]["mappings"].as_array().expect("mappings");
    let shown: Vec<_> = lines.iter().map(|line| (line["range"].as_str(), line["skip"].as_str())).collect();
    let expected = [
        ("10000-20000", None),
        ("40000-50000", None),
        ("80000-90000", Some("shared")),
        ("c0000-d0000", Some("locked")),
    ];
    assert_eq!(shown, expected.map(|(range, skip)| (Some(range), skip)), "the kernel's own are not listed");
    assert_eq!((&lines[1]["name"], &lines[1]["kind"]), (&"/usr/lib/libc.so".into(), &"file".into()));

    let (code, stdout, _) = text(&omr(&root, &["hint", "101", "--cold", "--dry-run"]));
    assert_eq!(code, 0);
    assert!(stdout.contains("skipped: shared  /dev/zero (deleted)"), "{stdout}");
    assert!(stdout.contains("101 (a b): 64.0 KiB would be marked as cold; nothing was done (--dry-run)."), "{stdout}");
    assert!(stdout.contains("Skipped: 32.0 KiB shared, 32.0 KiB locked."), "{stdout}");
}

#[test]
fn a_part_of_it() {
    let root = with_processes();
    for (args, hinted) in [
        (&["--pageout", "--anon"][..], 8),
        (&["--pageout", "--file"], 8),
        // What is in swap of the heap and the locked memory, and what is not in memory of the two
        // files.
        (&["--willneed"], 4 + 2 * 8),
        (&["--willneed", "--anon"], 4),
        (&["--cold", "--range", "12000-14000"], 2),
        (&["--cold", "--range", "0x16000-0x42000"], 2 + 2),
        (&["--cold", "--range", "40000-41000", "--range", "10000-11000"], 2),
        (&["--cold", "--range", "1a000-1c000"], 0),
    ] {
        let (code, summary) = dry(&root, &[&["hint", "101"], args].concat());
        assert_eq!(summary["hinted"], hinted * PAGE, "{args:?} {summary}");
        let is_mapped = !args.contains(&"0x16000-0x42000");
        assert_eq!((code, summary["processes"][0]["not_mapped"] == 0), (if is_mapped { 0 } else { 4 }, is_mapped));
    }
    let (code, summary) = dry(&root, &["reclaim", "101", "16KiB"]);
    assert_eq!((code, &summary["hinted"], &summary["asked"]), (0, &(4 * PAGE).into(), &(4 * PAGE).into()));
    let (_, summary) = dry(&root, &["reclaim", "101", "50%"]);
    assert_eq!((&summary["hinted"], &summary["asked"]), (&(8 * PAGE).into(), &(8 * PAGE).into()));
}

#[test]
fn each_range_may_have_a_hint_of_its_own() {
    let root = with_processes();
    let ranges = ["--range", "10000-14000=pageout", "--range", "40000-42000=cold", "--range", "18000-1a000=willneed"];
    let (code, summary) = dry(&root, &[&["hint", "101"], &ranges[..]].concat());
    assert_eq!((code, &summary["advice"]), (0, &"pageout+cold+willneed".into()), "{summary}");
    let reports = summary["processes"].as_array().expect("reports");
    let told: Vec<_> = reports.iter().map(|report| (report["advice"].as_str(), report["hinted"].as_u64())).collect();
    assert_eq!(
        told,
        [(Some("pageout"), Some(4 * PAGE)), (Some("cold"), Some(2 * PAGE)), (Some("willneed"), Some(2 * PAGE))]
    );
    let layouts: Vec<_> = reports.iter().map(|report| report["layout"].as_str()).collect();
    assert!(layouts[0].is_some() && layouts.iter().all(|layout| *layout == layouts[0]), "one for all: {layouts:?}");

    // The hint for the others, and the layout of the same addresses.
    let ranges = ["--cold", "--range", "10000-14000=pageout", "--range", "40000-42000"];
    let (code, stdout, _) = text(&omr(&root, &[&["hint", "101", "--dry-run"], &ranges[..]].concat()));
    let (pageout, cold) = stdout.split_once("paged out").expect("two reports");
    assert!(
        code == 0 && cold.contains("8.00 KiB would be marked as cold") && pageout.contains("16.0 KiB would be"),
        "{stdout}"
    );
    // All prefetches together are a prefetch, which no protection refuses; with one page-out it is
    // none.
    let prefetch = ["hint", "102", "--range", "18000-1a000=willneed"];
    assert_eq!(dry(&root, &prefetch).0, 0);
    let (code, _, stderr) =
        text(&omr(&root, &[&prefetch[..], &["--range", "10000-14000=pageout", "--dry-run"]].concat()));
    assert!(code == 1 && stderr.contains("102 (a b) is foreground"), "{stderr}");
}

#[test]
fn a_range_that_is_not_mapped_is_named() {
    let root = with_processes();
    let args = ["hint", "101", "--cold", "--range", "1c000-24000", "--range", "60000-61000"];
    let (code, summary) = dry(&root, &args);
    let named = summary["processes"][0]["ranges"].as_array().expect("ranges");
    let named: Vec<_> = named.iter().map(|named| (named["range"].as_str(), named["why"].as_str())).collect();
    assert_eq!(named, ["20000-24000", "60000-61000"].map(|range| (Some(range), Some("not_mapped"))), "{summary}");
    let (also, stdout, _) = text(&omr(&root, &[&args[..], &["--dry-run"]].concat()));
    assert!(stdout.contains(" 20.0 KiB of the ranges are not mapped: 20000-24000, 60000-61000."), "{stdout}");
    assert_eq!((code, also), (4, 4));
}

#[test]
fn the_layout_is_that_of_the_named_addresses() {
    let root = with_processes();
    let layout = |args: &[&str]| {
        let (_, summary) = dry(&root, &[&["hint", "101", "--cold"], args].concat());
        summary["processes"][0]["layout"].as_str().expect("a layout").to_owned()
    };
    let (heap, whole) = (layout(&["--range", "12000-14000"]), layout(&[]));
    assert_ne!(heap, whole);
    // The file is another. The heap has grown.
    let maps = root.read("proc/101/maps");
    let grown = maps.replace("fe:01 77", "fe:01 99").replace("10000-20000", "10000-28000");
    root.write("proc/101/maps", &grown);
    assert_eq!(layout(&["--range", "12000-14000"]), heap);
    assert_ne!(layout(&[]), whole);
    // A file is where the heap was.
    root.write("proc/101/maps", maps.replace("10000-20000 rw-p 00000000 00:00 0", "10000-20000 rw-p 00000000 fe:01 5"));
    assert_ne!(layout(&["--range", "12000-14000"]), heap);
    let (_, stdout, _) = text(&omr(&root, &["hint", "101", "--cold", "--range", "12000-14000", "--dry-run"]));
    assert!(stdout.contains(&format!(" Layout: {}.", layout(&["--range", "12000-14000"]))), "{stdout}");
}

#[test]
fn protected_processes_may_be_prefetched_but_not_paged_out() {
    let root = with_processes();
    add_group(&root, "init.scope", 4096, 0);
    add_process(&root, 1, 0, 'S', 0, "init.scope");
    for (pid, says) in [
        ("102", "102 (a b) is foreground (matched"),
        ("103", "low is protected (memory.low = max"),
        ("1", "first process"),
    ] {
        for words in [&["hint", pid, "--cold"][..], &["hint", pid, "--pageout"], &["reclaim", pid, "max"]] {
            let (code, _, stderr) = text(&omr(&root, &[words, &["--dry-run"]].concat()));
            assert!(code == 1 && stderr.contains(says), "{words:?}: {code} {stderr}");
        }
        let option = if pid == "103" { "--ignore-low" } else { "--ignore-class" };
        assert_eq!(dry(&root, &["hint", pid, "--cold", option]).0, 0);
        assert_eq!(dry(&root, &["hint", pid, "--willneed"]).0, 0);
    }
    // What a rule keeps of a group is kept of its processes.
    add_group(&root, "bg", 1024 + 16, 0);
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "101", "max", "--dry-run"]));
    assert!(code == 1 && stderr.contains("keeps 1.00 MiB"), "{stderr}");
}

#[test]
fn processes_that_have_no_memory() {
    let root = with_processes();
    add_group(&root, "system", 1024, 0);
    add_process(&root, 201, 2, 'S', 0x0020_8040, "system");
    add_process(&root, 202, 1, 'Z', 0, "system");
    for (pid, says) in [
        ("201", "201 (a b) is a kernel thread"),
        ("202", "202 (a b) has ended"),
        ("999", "there is no process 999"),
        ("4294967296", ""),
    ] {
        for words in [&["hint", pid, "--willneed"][..], &["reclaim", pid, "max"]] {
            let (code, _, stderr) = text(&omr(&root, words));
            assert!(matches!(code, 1 | 2) && stderr.contains(says), "{words:?}: {code} {stderr}");
        }
    }
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "99999999999", "max"]));
    assert!(code == 1 && stderr == "omr: there is no process 99999999999; a group of that name is ./99999999999\n");
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "-1", "max"]));
    assert!(code == 1 && stderr == "omr: there is no group -1; systemd-cgls lists the groups\n", "{stderr}");
}

#[test]
fn a_tree_of_processes() {
    let root = with_processes();
    for (pid, ppid, group) in [(301, 101, "bg"), (302, 301, "bg"), (303, 301, "fg"), (304, 1, "bg")] {
        add_process(&root, pid, ppid, 'S', 0, group);
    }
    add_process(&root, 305, 302, 'Z', 0, "bg");
    let (code, summary) = dry(&root, &["hint", "101", "--cold", "--tree"]);
    let pids: Vec<_> = summary["processes"].as_array().expect("processes").iter().map(|one| &one["pid"]).collect();
    assert_eq!(pids, [101, 301, 302]);
    assert_eq!((code, &summary["hinted"]), (4, &(3 * 16 * PAGE).into()), "one was left out");
    assert!(summary["left_out"][0].as_str().is_some_and(|text| text.contains("303 (a b) is foreground")), "{summary}");
}

#[test]
fn one_of_a_tree_that_cannot_be_hinted_takes_no_report_from_the_others() {
    let root = with_processes();
    for (pid, ppid) in [(301, 101), (302, 301)] {
        add_process(&root, pid, ppid, 'S', 0, "bg");
    }
    root.write("proc/301/maps", "no mapping\n");
    let (code, summary) = dry(&root, &["hint", "101", "--cold", "--tree"]);
    let pids: Vec<_> = summary["processes"].as_array().expect("processes").iter().map(|one| &one["pid"]).collect();
    assert_eq!(pids, [101, 302], "{summary}");
    assert_eq!(code, 4);
    let left_out = summary["left_out"][0].as_str().unwrap_or_default();
    assert!(left_out.starts_with("301 (a b): ") && left_out.contains("301/maps"), "{summary}");
    // The one that was named is what it is about.
    root.write("proc/101/maps", "no mapping\n");
    let (code, stdout, stderr) = text(&omr(&root, &["hint", "101", "--cold", "--tree", "--dry-run"]));
    assert!(code == 1 && stdout.is_empty() && stderr.contains("101/maps"), "{code} {stdout} {stderr}");
}

#[test]
fn without_swap_only_files_can_leave() {
    let root = with_processes();
    root.write("proc/swaps", swaps(0, 0).lines().next().expect("a head").to_owned() + "\n");
    set_line(&root, "proc/meminfo", "SwapTotal:", "0 kB");
    set_line(&root, "proc/meminfo", "SwapFree:", "0 kB");
    let (code, summary) = dry(&root, &["hint", "101", "--pageout"]);
    assert_eq!((code, &summary["hinted"]), (4, &(8 * PAGE).into()), "{summary}");
    assert_eq!(summary["skipped"]["no_swap"], 16 * PAGE, "not known to be locked, as it is not checked twice");
    let (code, stdout, stderr) = text(&omr(&root, &["hint", "101", "--pageout", "--anon", "--dry-run"]));
    assert!(code == 3 && stderr.contains("no swap") && stdout.contains("without swap"), "{stdout} {stderr}");
    assert_eq!(dry(&root, &["hint", "101", "--cold"]).1["hinted"], 16 * PAGE);
}

#[test]
fn words_that_are_none() {
    let root = with_processes();
    for (args, says) in [
        (&["hint", "101"][..], "--cold"),
        (&["hint", "101", "--cold", "--pageout"], "--pageout"),
        (&["hint", "101", "--cold", "--anon", "--file"], "--file"),
        (&["hint", "firefox", "--cold"], "firefox"),
        (&["hint", "-1", "--cold"], "invalid value '-1' for '<PID>': expected a process id"),
        (&["hint", "+101", "--cold"], "expected a process id; omr ps shows"),
        (&["hint", "99999999999", "--cold"], "invalid value '99999999999' for '<PID>': there is no such process"),
        (&["hint", "101", "--cold", "--timeout", "-5s"], "'--timeout <TIME>': expected a time such as 30s, 10m or 2h"),
        (&["hint", "101", "--cold", "--timeout", "5"], "time unit needed"),
        (&["hint", "101", "--range", "10000-20000"], "--range 10000-20000 has no hint; give it one, as in A-B=cold"),
        (&["hint", "101", "--range", "10000-20000=cold", "--range", "40000-50000"], "--range 40000-50000 has no hint"),
        (
            &["hint", "101", "--range", "10000-20000=collapse"],
            "'10000-20000=collapse' for '--range <A-B[=HINT]>': \"collapse\" is no hint",
        ),
        (&["hint", "101", "--range", "10000-20000=cold", "--pageout"], "--pageout is for no range"),
        (
            &["hint", "101", "--range", "18000-20000=cold", "--range", "10000-19000=pageout"],
            "--range 10000-19000=pageout and --range 18000-20000=cold overlap",
        ),
        (&["hint", "101", "--cold", "--range", "10000-20000", "--range", "10000-11000=willneed"], "overlap"),
        (&["hint", "101", "--cold", "--layout", "12"], "'12' for '--layout <LAYOUT>': expected the 16 digits"),
        (&["hint", "101", "--cold", "--layout", "00000000000000aa", "--dry-run"], "cannot be used with"),
        (&["hint", "101", "--cold", "--all-ranges"], "--json"),
        (
            &["hint", "101", "--cold", "--range", "10001-20000"],
            "--range 10001-20000: both addresses have to be multiples of a page",
        ),
        (&["hint", "101", "--cold", "--range", "10000-1fff8"], "multiples of a page"),
        (&["hint", "101", "--cold", "--range", "20000-10000"], "ends before it begins"),
        (&["hint", "101", "--cold", "--range", "fffffffffffff000-1000"], "wraps around"),
        (&["reclaim", "101", "64"], "64"),
        (&["reclaim", "101", "1M", "--watch", "1s"], "--watch is for groups"),
        (&["reclaim", "101", "1M", "--older-than", "2m"], "--older-than is for groups"),
        (&["reclaim", "101", "1M", "--backend", "memory.high"], "./101"),
    ] {
        let (code, _, stderr) = text(&omr(&root, args));
        assert!(code == 2 && stderr.contains(says), "{args:?}: {code} {stderr}");
    }
}

#[test]
fn a_group_whose_name_is_a_number_is_still_to_be_had() {
    let root = with_processes();
    add_group(&root, "4711", 4096, 0);
    for named in ["./4711", "/4711", "/sys/fs/cgroup/4711"] {
        let (code, stdout, stderr) = text(&omr(&root, &["reclaim", named, "1M", "--dry-run"]));
        assert!(code == 0 && stdout.contains("4711: would ask for 1.00 MiB"), "{named}: {stdout} {stderr}");
    }
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "4711", "1M", "--dry-run"]));
    assert!(code == 1 && stderr.contains("no process 4711"), "{stderr}");
}
