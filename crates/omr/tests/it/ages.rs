//! `omr wss` and `omr reclaim --older-than` as far as files go: what is refused and why, and what
//! would be taken.

use crate::common::{GROUPS, add_group, machine, omr, stat, text};
use omr_testkit::FakeRoot;
use serde_json::Value;

const LRU_GEN: &str = "sys/kernel/debug/lru_gen";
const ENABLED: &str = "sys/kernel/mm/lru_gen/enabled";

/// A group of 40 MiB with these generations: number, age in seconds, anonymous pages, file pages.
fn with_generations(generations: &[(u64, u64, u64, u64)]) -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 40 << 10, 0);
    root.write(format!("{GROUPS}/app.scope/memory.stat"), stat(40 << 20, 0) + "file_mapped 0\n");
    let rows: String = generations
        .iter()
        .map(|(number, age, anon, file)| format!(" {number:10} {:10} {anon:10}  {file:10} \n", age * 1000))
        .collect();
    root.write(LRU_GEN, format!("memcg     1 /\n node     0\n{rows}memcg     7 /app.scope\n node     0\n{rows}"));
    root
}

/// Generations of which the oldest was not used for three minutes, and the next for one.
fn aged() -> FakeRoot {
    with_generations(&[(3, 400, 2560, 99), (4, 180, 1024, 0), (5, 60, 5120, 0), (6, 1, 1, 0)])
}

/// The amount that a dry run would reclaim, and its end.
fn would_take(root: &FakeRoot, amount: &str, options: &[&str]) -> (u64, String, i32) {
    let args = [&["reclaim", "app.scope", amount, "--dry-run", "--json"], options].concat();
    let (code, stdout, stderr) = text(&omr(root, &args));
    let summary: Value = serde_json::from_str(&stdout).unwrap_or_else(|err| panic!("{err}: {stdout}{stderr}"));
    let group = &summary["groups"][0];
    (group["asked"].as_u64().expect("bytes"), group["end"].as_str().expect("an end").to_owned(), code)
}

#[test]
fn memory_that_is_surely_old_enough_would_be_reclaimed() {
    for (age, pages) in [("2m", 2560), ("3m", 2560), ("1m", 2560 + 1024), ("30s", 2560 + 1024)] {
        let (asked, end, code) = would_take(&aged(), "max", &["--older-than", age]);
        assert_eq!((asked, end.as_str(), code), (pages * 4096, "complete", 0), "{age}");
    }
    assert_eq!(would_take(&aged(), "1M", &["--older-than", "2m"]).0, 1 << 20);
    // The control: without an age all of it.
    assert_eq!(would_take(&aged(), "max", &[]).0, 40 << 20);
}

#[test]
fn memory_of_unknown_age_stays_and_the_message_says_so() {
    // The oldest generation is 400 s old, but that was merged: sure is the birth of the next.
    let (asked, end, code) = would_take(&aged(), "max", &["--older-than", "5m"]);
    assert_eq!((asked, end.as_str(), code), (0, "not-aged", 4));
    let (_, _, stderr) = text(&omr(&aged(), &["reclaim", "app.scope", "max", "--dry-run", "--older-than", "5m"]));
    for part in
        ["known for the last 3 min only", "not for 5 min", "--wait ages it first", "omr wss app.scope --window 5m"]
    {
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn when_nothing_is_left_that_is_old_it_is_done() {
    let root = with_generations(&[(3, 400, 9, 99), (4, 180, 0, 0), (5, 60, 5120, 0), (6, 1, 1, 0)]);
    assert_eq!(would_take(&root, "max", &["--older-than", "2m"]), (0, "young".into(), 0));
    assert_eq!(would_take(&root, "1M", &["--older-than", "2m"]), (0, "young".into(), 4));
}

#[test]
fn files_in_tmpfs_are_not_taken_for_cold() {
    for (shared, mapped, end) in [(20, 0, "not-seen"), (20, 18, "complete"), (3, 0, "complete")] {
        let root = aged();
        let text = format!("{}shmem {}\nfile_mapped {}\n", stat(40 << 20, 0), shared << 20, mapped << 20);
        root.write(format!("{GROUPS}/app.scope/memory.stat"), text.replacen("shmem 0\n", "", 1));
        assert_eq!(would_take(&root, "max", &["--older-than", "2m"]).1, end, "{shared} {mapped}");
    }
    // Nor where it is not known how much there is.
    let root = aged();
    root.write(format!("{GROUPS}/app.scope/memory.stat"), stat(40 << 20, 0));
    assert_eq!(would_take(&root, "max", &["--older-than", "2m"]).1, "not-seen");
}

#[test]
fn a_full_swap_allowance_of_a_group_is_seen() {
    for (most, used, end) in
        [("max", 50 << 20, "complete"), ("52428800", 0, "complete"), ("52428800", 50 << 20, "swap-floor")]
    {
        let root = aged();
        root.write(format!("{GROUPS}/app.scope/memory.swap.max"), format!("{most}\n"));
        root.write(format!("{GROUPS}/app.scope/memory.swap.current"), format!("{used}\n"));
        assert_eq!(would_take(&root, "max", &["--older-than", "2m"]).1, end, "{most} {used}");
    }
}

#[test]
fn where_ages_are_not_to_be_had_both_refuse_and_say_what_brings_them() {
    let without = |change: &dyn Fn(&FakeRoot)| {
        let root = aged();
        change(&root);
        root
    };
    let unmounted = |root: &FakeRoot| {
        root.remove(LRU_GEN);
        root.write("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    };
    for (root, parts) in [
        (without(&|root| root.remove(ENABLED)), ["not in this kernel", "needs Linux 6.1"]),
        (
            without(&|root| root.write(ENABLED, "0x0000\n")),
            ["off (0x0000)", "write \"y\" to /sys/kernel/mm/lru_gen/enabled"],
        ),
        (without(&|root| root.write(ENABLED, "0x0001\n")), ["without page-table walks", "write \"y\" to"]),
        (without(&unmounted), ["debugfs not mounted", "mount -t debugfs none /sys/kernel/debug"]),
        (without(&|root| root.remove(LRU_GEN)), ["no lru_gen in debugfs", "CONFIG_DEBUG_FS"]),
    ] {
        for args in [
            &["wss", "app.scope"][..],
            &["wss", "app.scope", "--tracker", "lru-gen"],
            &["wss", "app.scope", "--watch"],
            &["reclaim", "app.scope", "max", "--older-than", "2m"],
            &["reclaim", "app.scope", "max", "--older-than", "2m", "--wait"],
        ] {
            let (code, stdout, stderr) = text(&omr(&root, args));
            assert_eq!((code, stdout.as_str()), (3, ""), "{stderr}");
            assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
        }
        // What disturbs is named, and not chosen.
        let (_, _, stderr) = text(&omr(&root, &["wss", "app.scope"]));
        assert!(stderr.contains("DAMON is not in this kernel") && stderr.contains("--tracker smaps"), "{stderr}");
    }
    let root = aged();
    root.write("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    let (code, _, stderr) = text(&omr(&root, &["reclaim", "app.scope", "max", "--older-than", "2m"]));
    assert!(code == 3 && stderr.contains("there is no swap"), "{stderr}");
}

#[test]
fn damon_is_used_if_free_and_the_set_up_of_another_program_stays() {
    const DAMON: &str = "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    let reclaim = ["reclaim", "app.scope", "max", "--older-than", "2m"];
    for (state, code, part) in [
        // DAMON has not measured yet, so any reclaim would be a guess.
        ("0\n", 4, "nothing was reclaimed. --wait first measures ages with DAMON"),
        ("1\n", 3, "DAMON is in use: another program has set up a monitor, which omr does not change"),
        ("3\n", 3, "another program has set up 3 monitors"),
        ("soon\n", 3, "has an interface here that omr does not know"),
    ] {
        let root = aged();
        root.write(ENABLED, "0x0000\n");
        root.write(DAMON, state);
        let (exit, _, stderr) = text(&omr(&root, &reclaim));
        assert!(exit == code && stderr.contains(part), "{state}: {exit} {stderr}");
        if code == 3 {
            for args in [&["wss", "app.scope"][..], &["wss", "app.scope", "--tracker", "damon"]] {
                let (exit, _, stderr) = text(&omr(&root, args));
                assert!(exit == code && stderr.contains(part), "{args:?}: {exit} {stderr}");
            }
        }
        assert_eq!(root.read(DAMON), state, "nothing was written");
    }
}

#[test]
fn wrong_words_and_wrong_text_are_named() {
    for (args, code, part) in [
        (
            &["wss", "app.scope", "--window", "10ms"][..],
            2,
            "expected 1s or more, as ages are not exact enough for less",
        ),
        (&["wss", "app.scope", "--window", "8days"], 2, "expected 7days or less"),
        (&["reclaim", "app.scope", "max", "--older-than", "8days"], 2, "expected 7days or less"),
        (
            &["reclaim", "app.scope", "max", "--older-than", "-2m"],
            2,
            "'-2m' for '--older-than <TIME>': expected a time",
        ),
        (&["reclaim", "app.scope", "max", "--older-than", "0s"], 2, "expected 1s or more"),
        (&["reclaim", "app.scope", "max", "--older-than", "1ms"], 2, "expected 1s or more"),
        (&["wss", "app.scope", "--window", "soon"], 2, "expected a time such as 2m"),
        (&["wss", "gone.scope"], 1, "there is no group gone.scope"),
        (&["wss", "app.scope", "--tracker", "guess"], 2, "[possible values: auto, lru-gen, damon, smaps]"),
        (&["wss", "app.scope", "--tracker", "smaps", "--per-node"], 2, "need MGLRU's generations: --tracker lru-gen"),
        (&["wss", "app.scope", "--tracker", "damon", "--watch"], 2, "need MGLRU's generations: --tracker lru-gen"),
        (&["reclaim", "app.scope", "max", "--wait"], 2, "--older-than"),
        (&["reclaim", "app.scope", "max", "--older-than", "2m", "--backend", "memory.high"], 2, "cannot be used with"),
    ] {
        let (exit, _, stderr) = text(&omr(&aged(), args));
        assert_eq!(exit, code, "{args:?} {stderr}");
        assert!(stderr.contains(part), "{args:?} {stderr}");
    }
    let root = aged();
    root.write(LRU_GEN, "memcg     1 /\n node     0\n 1 2 3\n");
    let (code, _, stderr) = text(&omr(&root, &["wss", "/", "--window", "1s"]));
    assert!(code == 1 && stderr.contains("lru_gen: line \" 1 2 3\" is not"), "{stderr}");
}
