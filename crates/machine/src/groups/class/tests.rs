//! Tests of the classes of groups.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use omr_config::{Loaded, Profile, rules};
use proptest::prelude::*;

use super::*;
use crate::groups::xattrs::OomPreference;

const OWN: &str = "system.slice/omr.service";

/// Assigns each group down to `path`; the last one has the attribute.
fn walk(classifier: &Classifier, path: &Path, attribute: Option<&str>, owner: u32) -> Assignment {
    let mut assignment = classifier.assign(Path::new(""), &Assignment::default(), &Attributes::none(0));
    let depth = path.iter().count();
    for n in 1..=depth {
        let group: std::path::PathBuf = path.iter().take(n).collect();
        let class = attribute.filter(|_| n == depth).map(|value| value.as_bytes().to_vec());
        assignment = classifier.assign(&group, &assignment, &Attributes { class, ..Attributes::none(owner) });
    }
    assignment
}

fn assigned(config: &str, path: &str) -> Assignment {
    walk(&Classifier::new(&rules(config), Path::new(OWN)), Path::new(path), None, 0)
}

#[test]
fn without_a_rule_a_group_is_background_and_its_work_is_load() {
    let assignment = assigned("", "user.slice/a.scope");
    assert_eq!((assignment.class, assignment.explicit, assignment.keep), (Class::Background, false, None));
    assert_eq!(assignment, Assignment { above: 2, ..Assignment::default() });
    assert_eq!(
        assignment.explain(Path::new("user.slice/a.scope")),
        "no rule matched: background, and swept only when the machine is idle"
    );
}

#[test]
fn essential_services_are_protected_without_a_rule() {
    for (path, expected) in [
        ("init.scope", true),
        (OWN, true),
        ("system.slice/dbus.service", true),
        ("system.slice/dbus-broker.service", true),
        ("system.slice/systemd-journald.service", true),
        ("system.slice/system-systemd\\x2djournald.slice/systemd-journald@x.service", true),
        ("system.slice/systemd-udevd.service/udev", true),
        ("system.slice/systemd-logind.service", true),
        ("system.slice/ssh.service", true),
        ("system.slice/gdm.service", true),
        ("user.slice/user-1000.slice/user@1000.service/session.slice", true),
        ("user.slice/user-1000.slice/user@1000.service/session.slice/pipewire.service", true),
        ("user.slice/user-1000.slice/user@1000.service/app.slice/org.gnome.Shell@wayland.service", true),
        ("user.slice/user-1000.slice/user@1000.service/session.slice/plasma-kwin_wayland.service", true),
        ("user.slice/user-1000.slice/user@1000.service/app.slice/a.scope", false),
        ("system.slice/docker.service", false),
        ("system.slice/sshd@1-10.0.0.1.service", false),
        ("system.slice", false),
        ("", false),
    ] {
        let assignment = assigned("", path);
        assert_eq!(assignment.class == Class::Protected, expected, "{path}");
        assert_eq!(assignment.explicit, expected, "{path}");
    }
    assert_eq!(
        assigned("", "a/session.slice/b").explain(Path::new("a/session.slice/b")),
        "built in for \"session.slice\", inherited from a/session.slice"
    );
    assert_eq!(assigned("", OWN).origin.to_string(), "omr itself runs in it");
    assert_eq!(assigned("", "x/plasma-kwin_x11.service").origin.to_string(), "built in for \"plasma-kwin_*.service\"");
}

#[test]
fn in_the_root_group_omr_protects_nothing_by_being_there() {
    let classifier = Classifier::new(&[], Path::new(""));
    assert_eq!(walk(&classifier, Path::new("a"), None, 0).class, Class::Background);
}

#[test]
fn the_deepest_group_that_says_something_wins() {
    let config = r#"
        [[group]]
        match = "app.slice"
        class = "foreground"
        [[group]]
        match = "app.slice/jobs/**"
        class = "background"
        [[group]]
        unit = "precious.service"
        class = "protected"
    "#;
    for (path, class, explicit) in [
        ("app.slice", Class::Foreground, true),
        ("app.slice/a", Class::Foreground, true),
        ("app.slice/jobs", Class::Foreground, true),
        ("app.slice/jobs/1", Class::Background, true),
        ("app.slice/jobs/precious.service", Class::Protected, true),
        ("app.slice/jobs/precious.service/x", Class::Protected, true),
        ("app.slice/jobs/1/2/3", Class::Background, true),
        ("precious.service/x", Class::Protected, true),
        ("other", Class::Background, false),
    ] {
        let assignment = assigned(config, path);
        assert_eq!((assignment.class, assignment.explicit), (class, explicit), "{path}");
    }
    assert_eq!(
        assigned(config, "app.slice/jobs/1").explain(Path::new("app.slice/jobs/1")),
        "matched \"app.slice/jobs/**\" in /etc/omr/omr.toml:6"
    );
    assert_eq!(
        assigned(config, "app.slice/jobs/1/2").explain(Path::new("app.slice/jobs/1/2")),
        "matched \"app.slice/jobs/**\" in /etc/omr/omr.toml:6, inherited from app.slice/jobs/1"
    );
    assert_eq!(
        assigned(config, "app.slice/a/b").explain(Path::new("app.slice/a/b")),
        "matched \"app.slice\" in /etc/omr/omr.toml:3, inherited from app.slice"
    );
    assert_eq!(
        assigned(config, "precious.service").origin.to_string(),
        "matched unit \"precious.service\" in /etc/omr/omr.toml:9"
    );
}

#[test]
fn of_two_rules_the_one_with_more_literal_characters_wins_and_of_equals_the_later() {
    let config = "
        [[group]]\nmatch = 'app-firefox-*'\nclass = 'foreground'
        [[group]]\nmatch = 'app-*'\nclass = 'background'
        [[group]]\nmatch = 'a?b'\nclass = 'foreground'
        [[group]]\nmatch = 'ab?'\nclass = 'protected'
    ";
    assert_eq!(assigned(config, "app-firefox-1").class, Class::Foreground);
    assert_eq!(assigned(config, "app-other").class, Class::Background);
    assert_eq!(assigned(config, "abb").class, Class::Protected);
    assert_eq!(assigned(config, "axb").class, Class::Foreground);
}

/// A group, whose parent says nothing, with these attributes.
fn with(config: &str, path: &str, attributes: &Attributes) -> Assignment {
    let classifier = Classifier::new(&rules(config), Path::new(OWN));
    classifier.assign(Path::new(path), &Assignment::default(), attributes)
}

#[test]
fn the_focus_makes_a_group_foreground_and_losing_it_makes_it_nothing() {
    let config = "
        [[group]]\nmatch = 'fg'\nclass = 'foreground'
        [[group]]\nmatch = 'bg'\nclass = 'background'
    ";
    let lost = Focus::Lost(Monotonic(7));
    for (path, focus, class, explicit, unfocused) in [
        ("bg", Focus::Here, Class::Foreground, true, None),
        ("x", Focus::Here, Class::Foreground, true, None),
        ("x", Focus::Unknown, Class::Foreground, true, None),
        ("init.scope", Focus::Here, Class::Protected, true, None),
        ("x", lost, Class::Background, false, Some(Monotonic(7))),
        ("bg", lost, Class::Background, true, Some(Monotonic(7))),
        ("fg", lost, Class::Foreground, true, Some(Monotonic(7))),
    ] {
        for owner in [0, 1000] {
            let attributes = Attributes { focus: Some(focus), ..Attributes::none(owner) };
            let found = with(config, path, &attributes);
            let is = (found.class, found.explicit, found.unfocused);
            assert_eq!(is, (class, explicit, unfocused), "{path} {focus:?}");
            // A group below it that says nothing.
            let below = found.inherited();
            assert_eq!((below.class, below.unfocused), (class, unfocused), "{path} {focus:?}");
        }
    }
    let focused = |focus| with(config, "bg", &Attributes { focus: Some(focus), ..Attributes::none(1000) });
    assert_eq!(
        focused(Focus::Here).explain(Path::new("bg")),
        "it has the focus (extended attribute user.xdg.inactive-since)"
    );
    assert_eq!(
        focused(Focus::Unknown).explain(Path::new("bg")),
        "it may have the focus: extended attribute user.xdg.inactive-since is neither -1 nor a time"
    );
    // Not even omr's own attribute, written by root, and not what somebody says, take it away.
    let attributes =
        Attributes { class: Some(b"background".to_vec()), focus: Some(Focus::Here), ..Attributes::none(0) };
    let mut found = with("", "x", &attributes);
    assert!(!found.apply_statement(Presence::Background, None));
    assert_eq!(found.class, Class::Foreground);
}

#[test]
fn the_oomd_preference_counts_unless_a_rule_names_the_group() {
    let oom_preference = |config: &str, oom_preference| {
        with(
            config,
            "a.slice/x.service",
            &Attributes { oom_preference: Some(oom_preference), ..Attributes::none(1000) },
        )
    };
    assert_eq!(oom_preference("", OomPreference::Avoid).class, Class::Foreground);
    assert_eq!(oom_preference("", OomPreference::Omit).class, Class::Protected);
    assert_eq!(
        oom_preference("", OomPreference::Omit).explain(Path::new("a.slice/x.service")),
        "extended attribute user.oomd_omit (ManagedOOMPreference=omit)"
    );
    let rule = |glob: &str| format!("[[group]]\nmatch = '{glob}'\nclass = 'background'");
    assert_eq!(oom_preference(&rule("a.slice/**"), OomPreference::Omit).class, Class::Protected);
    assert_eq!(oom_preference(&rule("a.slice/x.service"), OomPreference::Omit).class, Class::Background);
    let protect = "[[group]]\nmatch = 'a.slice/**'\nclass = 'protected'";
    assert_eq!(oom_preference(protect, OomPreference::Avoid).class, Class::Protected);
}

#[test]
fn background_slice_is_background_where_nothing_else_is_said() {
    let path = "user.slice/user-1000.slice/user@1000.service/background.slice";
    let found = assigned("", path);
    assert_eq!((found.class, found.explicit), (Class::Background, true));
    assert_eq!(found.explain(Path::new(path)), "built in for \"background.slice\"");
    for glob in ["user.slice/**", "**/background.slice", "user.slice"] {
        let rule = format!("[[group]]\nmatch = '{glob}'\nclass = 'foreground'");
        assert_eq!(assigned(&rule, path).class, Class::Foreground, "{glob}");
    }
    assert!(assigned("", "background.slice").explicit, "for omr run of root");
    for elsewhere in [
        "user.slice/user-1000.slice/user@1000.service/app.slice/background.slice",
        "user.slice/user-1000.slice/background.slice",
        "system.slice/a.service/background.slice",
        "a/user-1000.slice/user@1000.service/background.slice",
    ] {
        assert!(!assigned("", elsewhere).explicit, "{elsewhere}: any user can make it");
    }
}

#[test]
fn a_rule_with_enforce_wins_over_what_a_user_says_and_over_names() {
    let classified = |enforce: bool, path: &str, attributes: &Attributes| {
        let enforce = if enforce { "\nenforce = true" } else { "" };
        let config = format!("[[group]]\nmatch = 'users.slice/*'\nclass = 'background'{enforce}");
        let classifier = Classifier::new(&rules(&config), Path::new(OWN));
        let mut assignment = Assignment::default();
        let mut above: Vec<_> = Path::new(path).ancestors().collect();
        above.reverse();
        for group in above {
            let none = Attributes::none(1000);
            let attributes = if group == Path::new(path) { attributes } else { &none };
            assignment = classifier.assign(group, &assignment, attributes);
        }
        assignment
    };
    let class = |value: &str, owner| Attributes { class: Some(value.into()), ..Attributes::none(owner) };
    let focus = Attributes { focus: Some(Focus::Here), ..Attributes::none(1000) };
    let omit = Attributes { oom_preference: Some(OomPreference::Omit), ..Attributes::none(1000) };
    for path in ["users.slice/a", "users.slice/a/b/c"] {
        for attributes in [&class("protected", 1000), &focus, &omit] {
            let found = classified(true, path, attributes);
            assert_eq!(found.class, Class::Background, "{path} {attributes:?}");
        }
        for attributes in [&class("protected", 1000), &focus] {
            assert_ne!(classified(false, path, attributes).class, Class::Background, "the control: {path}");
        }
        assert_eq!(classified(true, path, &class("foreground", 0)).class, Class::Foreground, "of root");
    }
    let explained = classified(true, "users.slice/a", &class("protected", 1000)).explain(Path::new("users.slice/a"));
    assert!(
        explained.ends_with("extended attribute user.omr.class ignored: the rule has enforce = true"),
        "{explained}"
    );
    let none = Attributes::none(1000);
    for name in ["users.slice/init.scope", "users.slice/a/session.slice"] {
        assert_eq!(classified(true, name, &none).class, Class::Background, "{name}");
        assert_eq!(classified(false, name, &none).class, Class::Protected, "the control: {name}");
    }
    let own = Classifier::new(&rules("[[group]]\nmatch = '**'\nclass = 'background'\nenforce = true"), Path::new(OWN));
    assert_eq!(walk(&own, Path::new(OWN), None, 0).class, Class::Protected, "omr itself");
}

#[test]
fn a_statement_counts_unless_a_rule_protects() {
    let config = "
        [[group]]\nmatch = 'fg'\nclass = 'foreground'
        [[group]]\nmatch = 'bg'\nclass = 'background'
    ";
    for (path, word, counts, class) in [
        ("x", Presence::Background, true, Class::Background),
        ("x", Presence::Foreground, true, Class::Foreground),
        ("bg", Presence::Background, true, Class::Background),
        ("bg", Presence::Foreground, true, Class::Foreground),
        ("fg", Presence::Background, false, Class::Foreground),
        // Its rule says so already, and explains more.
        ("fg", Presence::Foreground, false, Class::Foreground),
        ("init.scope", Presence::Background, false, Class::Protected),
        ("init.scope", Presence::Foreground, false, Class::Protected),
    ] {
        let mut assignment = assigned(config, path);
        assert_eq!(assignment.apply_statement(word, None), counts, "{path} {word:?}");
        assert_eq!(assignment.class, class, "{path} {word:?}");
        assert_eq!(assignment.explain(Path::new(path)).contains("omr "), counts, "{path} {word:?}");
    }
    // A later statement replaces an earlier one, and a group below can have its own.
    let mut assignment = assigned(config, "x");
    assert!(assignment.apply_statement(Presence::Foreground, Some(7)));
    assert_eq!(assignment.explain(Path::new("x")), "omr foreground 7, a process in it");
    let mut below = assignment.inherited();
    assert!(
        assignment.apply_statement(Presence::Background, None) && below.apply_statement(Presence::Background, None)
    );
    assert_eq!((assignment.class, below.class), (Class::Background, Class::Background));
}

#[test]
fn an_age_is_inherited_until_a_rule_says_another_or_none() {
    let config = "
        [[group]]\nmatch = 'jobs.slice'\nolder_than = '2m'
        [[group]]\nmatch = 'jobs.slice/long'\nolder_than = '1h'
        [[group]]\nmatch = 'jobs.slice/any'\nolder_than = '0s'
        [[group]]\nmatch = 'jobs.slice/learns'\nolder_than = 'auto'
    ";
    let minutes = |minutes: u64| Some(MinAge::Time(std::time::Duration::from_secs(minutes * 60)));
    for (path, age) in [
        ("jobs.slice/a", minutes(2)),
        ("jobs.slice/long", minutes(60)),
        ("jobs.slice/long/a", minutes(60)),
        ("jobs.slice/any", None),
        ("jobs.slice/any/a", None),
        ("jobs.slice/learns/a", Some(MinAge::Learned)),
        ("other", None),
    ] {
        assert_eq!(assigned(config, path).older_than(), age, "{path}");
    }
    assert_eq!(
        assigned(config, "jobs.slice/a").explain(Path::new("jobs.slice/a")),
        "no rule matched: background, and swept only when the machine is idle; \
         only memory unused for 2 min is reclaimed: matched \"jobs.slice\" in /etc/omr/omr.toml:3"
    );
    let explained = assigned(config, "jobs.slice/learns").explain(Path::new("jobs.slice/learns"));
    assert!(explained.contains("only memory unused for a learned time is reclaimed"), "{explained}");
}

#[test]
fn keep_and_class_are_found_each_by_itself() {
    let config = "
        [[group]]\nmatch = 'db.slice/**'\nkeep = '20%'
        [[group]]\nmatch = 'db.slice'\nclass = 'background'
        [[group]]\nunit = 'big.service'\nkeep = '1GiB'
    ";
    let assignment = assigned(config, "db.slice/a.service");
    assert_eq!((assignment.class, assignment.explicit), (Class::Background, true));
    assert_eq!(assignment.keep, "20%".parse().ok());
    assert_eq!(
        assignment.explain(Path::new("db.slice/a.service")),
        "matched \"db.slice\" in /etc/omr/omr.toml:6, inherited from db.slice; keeps 20%: matched \"db.slice/**\" in /etc/omr/omr.toml:3"
    );
    assert_eq!(assigned(config, "db.slice/big.service").keep, "1G".parse().ok());
    assert_eq!(assigned(config, "db.slice/big.service/x").keep, "1G".parse().ok());
    assert_eq!(assigned(config, "big.service/x").keep, "1G".parse().ok());
    assert_eq!(assigned(config, "db.slice").keep, None);
}

#[test]
fn only_a_rule_that_names_the_group_removes_built_in_protection() {
    for (pattern, path, class) in [
        ("match = 'system.slice/**'", "system.slice/dbus.service", Class::Protected),
        ("match = '**'", "init.scope", Class::Protected),
        ("match = 'system.slice/*.service'", "system.slice/dbus.service", Class::Protected),
        ("unit = '*.service'", "system.slice/dbus.service", Class::Protected),
        ("match = '**'", "user.slice/session.slice/pipewire.service", Class::Protected),
        ("match = '**'", OWN, Class::Protected),
        ("match = 'system.slice/**'", "system.slice/docker.service", Class::Background),
        ("match = 'system.slice/dbus*'", "system.slice/dbus.service", Class::Background),
        ("unit = 'dbus.service'", "system.slice/dbus.service", Class::Background),
        ("match = '**/session.slice/**'", "user.slice/session.slice/pipewire.service", Class::Background),
        ("match = '**/session.slice/**'", "user.slice/session.slice", Class::Protected),
        ("unit = 'pipewire.service'", "user.slice/session.slice/pipewire.service", Class::Background),
        ("unit = 'pipewire.service'", "user.slice/session.slice/pipewire.service/x", Class::Background),
        ("match = 'user.slice/**'", "user.slice/session.slice/a/b/c", Class::Protected),
    ] {
        let assignment = assigned(&format!("[[group]]\n{pattern}\nclass = 'background'"), path);
        assert_eq!(assignment.class, class, "{pattern} {path}: {}", assignment.origin);
    }
}

#[test]
fn the_attribute_says_more_than_rules_and_less_when_a_user_sets_it() {
    let config = "
        [[group]]\nmatch = 'bg'\nclass = 'background'
        [[group]]\nmatch = 'fg'\nclass = 'foreground'
    ";
    let classifier = Classifier::new(&rules(config), Path::new(OWN));
    use Class::{Background, Foreground, Protected};
    use Ignored::{NotRoot, Unknown};
    for (path, value, owner, class, explicit, ignored) in [
        ("x", "foreground", 0, Foreground, true, None),
        ("x", "background", 0, Background, true, None),
        ("fg", "background", 0, Background, true, None),
        ("fg", "background\n", 0, Background, true, None),
        ("fg", "background\0", 0, Background, true, None),
        ("init.scope", "background", 0, Background, true, None),
        ("fg", "Background", 0, Foreground, true, Some(Unknown)),
        ("fg", "", 0, Foreground, true, Some(Unknown)),
        ("x", "foreground", 1000, Foreground, true, None),
        ("x", "protected", 1000, Protected, true, None),
        ("bg", "protected", 1000, Protected, true, None),
        ("x", "background", 1000, Background, false, Some(NotRoot)),
        ("bg", "background", 1000, Background, true, None),
        ("fg", "background", 1000, Foreground, true, Some(NotRoot)),
        ("init.scope", "background", 1000, Protected, true, Some(NotRoot)),
        ("init.scope", "foreground", 1000, Protected, true, Some(NotRoot)),
    ] {
        let found = walk(&classifier, Path::new(path), Some(value), owner);
        assert_eq!(
            (found.class, found.explicit, found.ignored),
            (class, explicit, ignored),
            "{path} {value:?} {owner}"
        );
    }
    let found = classifier.assign(
        Path::new("x"),
        &Assignment::default(),
        &Attributes { class: Some(vec![0xff]), ..Attributes::none(0) },
    );
    assert_eq!(
        found.explain(Path::new("x")),
        "no rule matched: background, and swept only when the machine is idle; \
         extended attribute user.omr.class ignored: no class of that name"
    );
    let child = classifier.assign(Path::new("x/y"), &found, &Attributes::none(0));
    assert_eq!(child.ignored, None);
}

#[test]
fn names_with_any_bytes_are_classified() {
    let config = r#"
        [[group]]
        match = "a b/**"
        class = "foreground"
        [[group]]
        match = "line\nbreak"
        class = "foreground"
        [[group]]
        unit = "app-*.scope"
        class = "foreground"
    "#;
    let classifier = Classifier::new(&rules(config), Path::new(OWN));
    for name in [&b"a b/c"[..], b"line\nbreak", b"app-\xff\xfe.scope", b"x/app-a b\n.scope", b"a b/\xff/\n"] {
        let path = Path::new(OsStr::from_bytes(name));
        assert_eq!(walk(&classifier, path, None, 0).class, Class::Foreground, "{path:?}");
    }
    let found = walk(&classifier, Path::new("line\nbreak"), None, 0);
    assert_eq!(found.origin.to_string(), "matched \"line\\nbreak\" in /etc/omr/omr.toml:6");
}

#[test]
fn an_assignment_stays_small() {
    // There is one for each of 10,000 groups.
    assert!(size_of::<Assignment>() <= 96, "{}", size_of::<Assignment>());
}

fn any_rule() -> impl Strategy<Value = String> {
    let pattern = prop::sample::select(vec!["**", "a", "a/**", "*/b", "a/b", "a*", "dbus.service", "**/dbus*", "?"]);
    let class = prop::sample::select(vec!["foreground", "background", "protected"]);
    (pattern, class, any::<bool>()).prop_map(|(pattern, class, keep)| {
        let keep = if keep { "keep = '1M'\n" } else { "" };
        format!("[[group]]\nmatch = '{pattern}'\nclass = '{class}'\n{keep}")
    })
}

proptest! {
    #[test]
    fn rules_for_other_groups_change_nothing(
        mut config in prop::collection::vec(any_rule(), 0..6),
        at in 0usize..6,
        path in "(a|b|dbus\\.service|x\n)(/(a|b|dbus\\.service)){0,3}",
    ) {
        let before = Classifier::new(&rules(&config.concat()), Path::new(OWN));
        config.insert(at.min(config.len()), "[[group]]\nmatch = 'other/**'\nclass = 'protected'\nkeep = '9M'\n".into());
        let after = Classifier::new(&rules(&config.concat()), Path::new(OWN));
        let path = Path::new(&path);
        let (before, after) = (walk(&before, path, None, 0), walk(&after, path, None, 0));
        prop_assert_eq!((before.class, before.explicit, before.keep), (after.class, after.explicit, after.keep));
    }

    #[test]
    fn a_users_attribute_never_allows_more(
        config in prop::collection::vec(any_rule(), 0..6),
        path in "(a|b|dbus\\.service)(/(a|b|dbus\\.service)){0,3}",
        value in "foreground|background|protected|\\PC{0,12}",
    ) {
        let classifier = Classifier::new(&rules(&config.concat()), Path::new(OWN));
        let path = Path::new(&path);
        let without = walk(&classifier, path, None, 1000);
        let with = walk(&classifier, path, Some(&value), 1000);
        prop_assert!(with.class >= without.class);
        prop_assert_eq!(with.keep, without.keep);
        if with.class == Class::Background {
            prop_assert_eq!(with.explicit, without.explicit);
        }
    }
}

fn class_by_profile(group: &str, target: Option<&str>) -> Class {
    let mut loaded = Loaded::built_in();
    loaded.groups = rules("[[group]]\nmatch = \"work/**\"\nclass = \"foreground\"\n");
    Profile::Seed.apply(target.map(Path::new), &mut loaded).expect("a path");
    let classifier = Classifier::new(&loaded.groups, Path::new(""));
    let mut assignment = Assignment::default();
    let mut path = std::path::PathBuf::new();
    for part in group.split('/') {
        path.push(part);
        assignment = classifier.assign(&path, &assignment, &Attributes::none(0));
    }
    assignment.class
}

#[test]
fn by_a_profile_one_group_is_touched_with_all_below_it_and_no_other() {
    for target in ["a[b]*c/d", "/a[b]*c/d", "a[b]*c/d/"] {
        assert_eq!(class_by_profile("a[b]*c/d", Some(target)), Class::Background, "{target}");
        assert_eq!(class_by_profile("a[b]*c/d/e/f", Some(target)), Class::Background, "{target}");
        for other in ["a[b]*c", "abc/d", "a[b]*c/de", "work/x", "system.slice"] {
            assert_eq!(class_by_profile(other, Some(target)), Class::Protected, "{target}: {other}");
        }
    }
}

#[test]
fn by_a_profile_the_root_is_all_that_may_be_touched() {
    for target in [None, Some("/"), Some("")] {
        assert_eq!(class_by_profile("system.slice", target), Class::Background);
        assert_eq!(class_by_profile("work/x", target), Class::Foreground);
    }
}
