//! `omr advise` as far as files go: what is refused, and why; and that nothing was touched then.

use crate::common::{GROUPS, add_group, add_program, machine, omr, stat, text, write_limit_note};
use omr_testkit::FakeRoot;

const DIR: &str = "sys/fs/cgroup/app.scope";

fn pressure() -> &'static str {
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
}

/// A group of 40 MiB that could be tried.
fn with_group() -> FakeRoot {
    let root = machine();
    add_group(&root, "app.scope", 32 << 10, 8 << 10);
    root.write(format!("{DIR}/memory.pressure"), pressure());
    root.write(format!("{DIR}/cgroup.events"), "populated 1\nfrozen 0\n");
    root
}

/// The output of `omr advise --verify app.scope`; the group must be unchanged.
#[track_caller]
fn refused(root: &FakeRoot, words: &[&str]) -> (i32, String) {
    let before = root.resolve(DIR).exists().then(|| root.read(format!("{DIR}/memory.high")));
    let (code, stdout, stderr) = text(&omr(root, &[&["advise", "--verify"], words].concat()));
    assert_eq!(stdout, "");
    assert_eq!(root.resolve(DIR).exists().then(|| root.read(format!("{DIR}/memory.high"))), before);
    // A request for nothing asks what the kernel knows.
    assert!(["", "0 swappiness=0"].contains(&root.read(format!("{GROUPS}/app.scope/memory.reclaim")).as_str()));
    (code, stderr)
}

#[test]
fn words_that_mean_nothing_are_named() {
    let root = with_group();
    for (words, part) in [
        (&["app.scope", "--size", "0"][..], "no group can live with nothing"),
        (&["app.scope", "--size", "512"], "512M"),
        (&["app.scope", "--for", "1s"], "shorter than 5s"),
        (&["app.scope", "--for", "soon"], "expected a time such as 10m"),
        (&["app.scope", "--step", "0%"], "smaller than 1%"),
        (&["app.scope", "--step", "60%"], "larger than 50%"),
        (&["app.scope", "--psi", "0.1"], "a share in percent"),
        (&["app.scope", "--refaults", "101%"], "more than 100%"),
        (&["app.scope", "--window", "7d"], "cannot be used with"),
        (&["app.scope", "other.scope"], "--verify tries one group"),
        (&[], "--verify tries one group"),
        (&["/"], "name a group"),
    ] {
        let (code, stderr) = refused(&root, words);
        assert_eq!(code, 2, "{words:?} {stderr}");
        assert!(stderr.contains(part), "{words:?} {stderr}");
    }
    for (words, part) in [
        (&["--window", "5m"][..], "shorter than 1h"),
        (&["--window", "7 fortnights"], "expected a time such as 7d"),
        (&["--window", "1y"], "longer than 90days"),
        (&["--size", "1G"], "--verify"),
        (&["--kubernetes", "A_b", "app.scope"], "the name of a container"),
    ] {
        let (code, _, stderr) = text(&omr(&root, &[&["advise"], words].concat()));
        assert_eq!(code, 2, "{words:?} {stderr}");
        assert!(stderr.contains(part), "{words:?} {stderr}");
    }
}

#[test]
fn a_trial_that_is_impossible_or_forbidden_changes_nothing() {
    let changed = |change: &dyn Fn(&FakeRoot)| {
        let root = with_group();
        change(&root);
        root
    };
    let rule = |class: &str| {
        changed(&|root| root.write("etc/omr/omr.toml", format!("[[group]]\nmatch = 'app.scope'\nclass = '{class}'\n")))
    };
    for (root, code, parts) in [
        (rule("foreground"), 1, ["app.scope is foreground (matched", "--ignore-class"]),
        (rule("protected"), 1, ["app.scope is protected (matched", "nothing was tried"]),
        (changed(&|root| root.remove(format!("{DIR}/memory.pressure"))), 3, ["no memory.pressure", "PSI"]),
        (
            changed(&|root| root.write(format!("{DIR}/memory.stat"), "anon 1\nfile 1\n")),
            3,
            ["memory.stat of app.scope", "Linux 5.9"],
        ),
        (
            changed(&|root| root.write(format!("{DIR}/cgroup.events"), "populated 0\n")),
            1,
            ["no process is in", "app.scope"],
        ),
        (
            changed(&|root| root.write(format!("{DIR}/memory.low"), "max\n")),
            1,
            ["nothing can be tried, 40.0 MiB of 40.0 MiB", "memory.low"],
        ),
        (
            changed(&|root| {
                root.write("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
                root.write(format!("{DIR}/memory.stat"), stat(40 << 20, 0));
            }),
            1,
            ["cannot leave memory", "no free swap"],
        ),
        (
            changed(&|root| {
                root.write(format!("{DIR}/memory.swap.max"), "0\n");
                root.write(format!("{DIR}/memory.swap.current"), "0\n");
                root.write(format!("{DIR}/memory.stat"), stat(40 << 20, 0));
            }),
            1,
            ["cannot leave memory", "no free swap"],
        ),
        (changed(&|root| root.remove(format!("{DIR}/cgroup.events"))), 1, ["cgroup.events", "No such file"]),
    ] {
        let (exit, stderr) = refused(&root, &["app.scope", "--for", "5s"]);
        assert_eq!(exit, code, "{stderr}");
        assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
    }
    let (code, stderr) = refused(&with_group(), &["gone.scope"]);
    assert!(code == 1 && stderr.contains("there is no group gone.scope"), "{stderr}");
    let root = changed(&|root| root.write(format!("{DIR}/memory.low"), "16777216\n"));
    let (code, stderr) = refused(&root, &["app.scope", "--size", "10M"]);
    assert!(code == 1 && stderr.contains("10.0 MiB cannot be tried, 16.0 MiB of 40.0 MiB is protected"), "{stderr}");
}

#[test]
fn a_group_that_another_omr_is_at_is_left_to_it() {
    use std::os::unix::fs::MetadataExt as _;

    let root = with_group();
    let id = std::fs::metadata(root.resolve(DIR)).expect("the group").ino();
    add_program(&root, 4242, "omr");
    write_limit_note(&root, id, "memory.high");
    let (code, stderr) = refused(&root, &["app.scope"]);
    assert!(code == 1 && stderr.contains("another omr is changing the limits"), "{stderr}");
}

#[test]
fn without_a_history_it_says_what_writes_one() {
    let root = with_group();
    for (words, part) in
        [(&[][..], "the daemon writes it"), (&["app.scope"], "no samples of app.scope in the last 7days")]
    {
        let (code, stdout, stderr) = text(&omr(&root, &[&["advise"], words].concat()));
        assert_eq!((code, stdout.as_str()), (4, ""), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
}
