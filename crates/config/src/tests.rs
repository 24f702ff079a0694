//! Tests of files in layers, and of values that depend on each other.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use omr_policy::Class;
use omr_testkit::FakeRoot;

use crate::{Loaded, Profile, load};

/// What is wrong with the files below a root; empty: nothing.
fn problems(root: &FakeRoot) -> String {
    load(root.path(), None).map_or_else(|errors| errors.to_string(), |_| String::new())
}

/// The configuration of one file in /etc.
fn loaded(text: &str) -> Result<Loaded, String> {
    let root = FakeRoot::new().file("etc/omr/omr.toml", text);
    load(root.path(), None).map_err(|errors| errors.to_string())
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_later_layer_wins_and_a_drop_in_in_run_replaces_one_of_the_same_name() {
    let hold = |seconds: u64| format!("idle.for = '{seconds}s'");
    let layers = [
        ("usr/lib/omr/omr.toml", 10),
        ("etc/omr/omr.toml", 20),
        ("etc/omr/conf.d/10-a.toml", 30),
        ("etc/omr/conf.d/20-b.toml", 40),
        ("run/omr-root/conf.d/20-b.toml", 50),
    ];
    for count in 0..=layers.len() {
        let mut root = FakeRoot::new();
        for (path, value) in &layers[..count] {
            root = root.file(path, hold(*value));
        }
        let loaded = load(root.path(), None).expect("sound files");
        let expected = layers[..count].last().map_or(30, |(_, value)| *value);
        assert_eq!(loaded.policy.idle.hold, seconds(expected), "{count} layers");
        let last = layers[..count].last().map(|(path, _)| root.resolve(path));
        assert_eq!(loaded.origin("idle.for").map(|place| place.file.to_path_buf()), last);
        // The drop-in that is replaced is not read.
        assert_eq!(loaded.files.len(), count.min(4));
    }
}

#[test]
fn hidden_files_and_files_of_another_kind_are_no_drop_ins() {
    let root = FakeRoot::new()
        .file("etc/omr/conf.d/.hidden.toml", "nonsense")
        .file("etc/omr/conf.d/a.toml.bak", "nonsense")
        .file("etc/omr/conf.d/a.conf", "nonsense");
    assert_eq!(problems(&root), "");
    assert!(problems(&root.file("etc/omr/conf.d/a.toml", "nonsense")).contains("a.toml:1"));
}

#[test]
fn a_link_to_nowhere_turns_a_drop_in_off_and_another_broken_link_is_a_mistake() {
    let root = FakeRoot::new().file("etc/omr/conf.d/a.toml", "idle.for = '40s'").file("run/omr-root/conf.d/x", "");
    let link = root.resolve("run/omr-root/conf.d/a.toml");
    symlink("/dev/null", &link).expect("a link");
    assert_eq!(load(root.path(), None).expect("sound files").policy.idle.hold, seconds(30));
    std::fs::remove_file(&link).expect("removed");
    symlink("/no/such/file", &link).expect("a link");
    assert!(problems(&root).ends_with("a link to /no/such/file, which does not exist"), "{}", problems(&root));
}

#[test]
fn a_file_that_is_missing_is_a_mistake_only_where_it_is_asked_for() {
    let root = FakeRoot::new();
    assert_eq!(problems(&root), "");
    let missing = root.resolve("my.toml");
    let err = load(root.path(), Some(&missing)).map(|_| ()).expect_err("no such file").to_string();
    assert!(err.ends_with("cannot be read: No such file or directory"), "{err}");
    // Of one file alone, the files of the system are not read.
    let root = root.file("my.toml", "idle.for = '40s'").file("etc/omr/omr.toml", "nonsense");
    let loaded = load(root.path(), Some(&missing)).expect("a sound file");
    assert_eq!((loaded.policy.idle.hold, loaded.files), (seconds(40), vec![missing]));
}

#[test]
fn what_is_no_text_file_of_an_administrator_is_refused() {
    let with = |contents: &[u8]| FakeRoot::new().file("etc/omr/omr.toml", contents);
    let directory = FakeRoot::new().file("etc/omr/omr.toml/x", "");
    assert!(problems(&directory).ends_with("a directory, but a file is expected"), "{}", problems(&directory));
    let listed = FakeRoot::new().file("etc/omr/conf.d", "");
    assert!(problems(&listed).ends_with("cannot be listed: Not a directory"), "{}", problems(&listed));
    let open = with(b"");
    let permit = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(open.resolve("etc/omr/omr.toml"), permissions).expect("changed");
        problems(&open)
    };
    assert_eq!(permit(0o664), "");
    assert!(permit(0o666).contains("all users may write to it"), "{}", permit(0o666));
    // A MiB of comment.
    assert_eq!(problems(&with(&[b'#'; 1 << 20])), "");
    let large = problems(&with(&[b'#'; (1 << 20) + 1]));
    assert!(large.ends_with("larger than 1 MiB, too large for a configuration"), "{large}");
    let bytes = problems(&with(b"# one\n# two\n# \xff"));
    assert!(bytes.ends_with("omr.toml:3: not UTF-8 text: there is a byte 0xff"), "{bytes}");
}

#[test]
fn values_that_contradict_each_other_are_refused_and_equal_ones_are_not() {
    for (short, long, equal, more) in [
        ("idle.again", "idle.for", "20s", "21s"),
        ("stop.stall", "stop.window", "500ms", "501ms"),
        ("guard.backoff", "guard.backoff_max", "1h", "61m"),
        ("slo.shortest", "slo.longest", "1h", "61m"),
        ("hints.cold_after", "hints.pageout_after", "60s", "61s"),
    ] {
        let both = |short_value| loaded(&format!("{short} = '{short_value}'\n{long} = '{equal}'")).map(|_| ());
        assert_eq!(both(equal), Ok(()), "{short}");
        let err = both(more).expect_err(short);
        assert!(err.contains(&format!("omr.toml:2: {long} = ")) && err.contains("must not be shorter than"), "{err}");
        let turned = loaded(&format!("{long} = '{equal}'\n{short} = '{more}'")).map(|_| ()).expect_err(short);
        assert!(turned.contains(&format!("omr.toml:2: {short} = ")), "{turned}");
    }
}

#[test]
fn two_samples_and_a_write_fit_into_the_time_in_which_a_sweep_stops() {
    let with =
        |sample, write| loaded(&format!("stop.sample = '{sample}ms'\nsweep.write_time = '{write}ms'")).map(|_| ());
    assert_eq!(with(40, 20), Ok(()));
    let err = with(41, 20).expect_err("102 ms");
    assert!(err.contains("must fit into the 100ms in which a sweep stops"), "{err}");
    assert!(with(40, 21).is_err());
}

#[test]
fn a_built_in_value_yields_to_a_written_one() {
    let policy = |text: &str| loaded(text).expect(text).policy;
    assert_eq!(policy("idle.for = '3s'").idle.again, seconds(3));
    assert_eq!(policy("guard.backoff = '2days'").guard.backoff_max, seconds(2 * 86_400));
    assert_eq!(policy("guard.backoff_max = '5m'").guard.backoff, seconds(300));
    assert_eq!(policy("hints.cold_after = '2m'").hints.pageout_after, seconds(120));
    assert_eq!(policy("hints.pageout_after = '6s'").hints.cold_after, seconds(6));
    // With the goal auto, each medium has a budget of its own.
    assert_eq!(policy("").guard.max_swap_writes, None);
    assert!(policy("goal = 'free'").guard.max_swap_writes.is_some());
    assert!(policy("guard.max_swap_writes = '1GiB/day'").guard.max_swap_writes.is_some());
}

#[test]
fn the_profile_of_one_group_reclaims_it_and_all_below_it_only() {
    let classes = |target: &str, path: &str| -> Vec<Option<Class>> {
        let mut loaded = Loaded::built_in();
        Profile::Seed.apply(Some(Path::new(target)), &mut loaded).expect("a path");
        let parts = crate::glob::parts(Path::new(path));
        let matching = loaded.groups.iter().filter(|rule| rule.selector.matches(&parts));
        matching.map(|rule| rule.class).collect()
    };
    let (protected, background) = (Some(Class::Protected), Some(Class::Background));
    assert_eq!(classes("/a.slice/[x]/", "a.slice/[x]"), [protected, background]);
    assert_eq!(classes("a.slice/[x]", "a.slice/[x]/below"), [protected, background]);
    assert_eq!(classes("a.slice/[x]", "a.slice/x"), [protected]);
    // The root: all that rules allow.
    assert_eq!(classes("/", "a.slice"), []);
}
