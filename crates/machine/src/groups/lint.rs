//! Warnings: valid configuration that is probably not what the user meant.

use std::path::{Path, PathBuf};

use omr_base::text::printable;
use omr_config::{Glob, GroupRule, Loaded, Problem, ProcessRule, Selector};
use omr_policy::Class;
use omr_units::{Amount, Permyriad};

use crate::groups::class::{Assignment, BUILT_IN, Classifier};
use crate::groups::xattrs::Attributes;

/// Returns all warnings, in the order of the rules.
pub fn warnings(loaded: &Loaded) -> Vec<Problem> {
    let mut found = Vec::new();
    for (n, rule) in loaded.groups.iter().enumerate() {
        let later = loaded.groups.get(n + 1..).unwrap_or_default();
        found.extend(repeated(rule, later));
        found.extend(removes_protection(rule));
        found.extend(overlaps(rule, later));
        found.extend(useless_age(rule));
    }
    found.extend(nothing_reclaimable(&loaded.groups));
    for (n, rule) in loaded.processes.iter().enumerate() {
        let later = loaded.processes.get(n + 1..).unwrap_or_default();
        found.extend(never_wins(rule, later).or_else(|| without_effect(rule, &loaded.groups)));
    }
    found
}

/// Warns if a later rule matches every process that this rule matches, as the last one wins.
fn never_wins(rule: &ProcessRule, later: &[ProcessRule]) -> Option<Problem> {
    let winner = later.iter().find(|later| later.covers(rule))?;
    Some(Problem::at(
        &rule.place,
        format!("process {}: never wins: every process that it matches also matches {winner}", rule.description()),
    ))
}

/// Warns if a rule makes processes background whose group is never background.
fn without_effect(rule: &ProcessRule, groups: &[GroupRule]) -> Option<Problem> {
    let group = rule.group.as_ref().filter(|glob| rule.class == Class::Background && glob.is_literal())?;
    let classifier = Classifier::new(groups, Path::new(""));
    let (mut path, mut assignment) = (PathBuf::new(), Assignment::default());
    for part in Path::new(group.as_str()) {
        path.push(part);
        assignment = classifier.assign(&path, &assignment, &Attributes::none(0));
    }
    if assignment.class == Class::Background {
        return None;
    }
    let (class, why) = (assignment.class.name(), assignment.explain(&path));
    Some(Problem::at(
        &rule.place,
        format!("process {}: has no effect: the group is {class}: {why}", rule.description()),
    ))
}

/// Warns if later rules for the same groups replace every key of this rule.
fn repeated(rule: &GroupRule, later: &[GroupRule]) -> Option<Problem> {
    let same = |other: &&GroupRule| other.selector == rule.selector;
    let mut winner = None;
    let words: [fn(&GroupRule) -> bool; 3] =
        [|rule| rule.class.is_some(), |rule| rule.keep.is_some(), |rule| rule.older_than.is_some()];
    for says in words.into_iter().filter(|says| says(rule)) {
        winner = winner.or(Some(later.iter().filter(same).find(|other| says(other))?));
    }
    let winner = winner?;
    let text = format!("group {}: never wins: {} is for the same groups", quoted(rule), winner.place);
    Some(Problem::at(&rule.place, text))
}

/// Warns if a rule removes built-in protection.
fn removes_protection(rule: &GroupRule) -> Option<Problem> {
    if rule.class != Some(Class::Background) {
        return None;
    }
    let name = rule.selector.glob().naming_part()?;
    let glob = Glob::unit(name).ok()?;
    let (start, end) = BUILT_IN.iter().find(|(start, end)| match *end {
        "" => glob.matches(&[(*start).into()]),
        // Compared with an example: "*-agent.service" is not meant for "getty@x-agent.service".
        end => name.starts_with(start) || glob.matches(&[format!("{start}1{end}").into()]),
    })?;
    let star = if end.is_empty() { "" } else { "*" };
    let text = format!("group {}: removes the built-in protection from \"{start}{star}{end}\"", quoted(rule));
    Some(Problem::at(&rule.place, text))
}

/// Warns if two rules of equal weight give different classes to a group that both match.
fn overlaps(rule: &GroupRule, later: &[GroupRule]) -> Option<Problem> {
    let class = rule.class?;
    let other = later.iter().find(|other| {
        other.class.is_some_and(|other| other != class)
            && other.selector != rule.selector
            && other.selector.glob().literals() == rule.selector.glob().literals()
            && match (&rule.selector, &other.selector) {
                (Selector::Match(a), Selector::Match(b)) | (Selector::Unit(a), Selector::Unit(b)) => a.meets(b),
                (Selector::Match(path), Selector::Unit(unit)) | (Selector::Unit(unit), Selector::Match(path)) => {
                    path.meets_unit(unit)
                }
            }
    })?;
    let text = format!(
        "group {}: as specific as {} in {}; for groups that match both, the later one wins",
        quoted(rule),
        quoted(other),
        other.place
    );
    Some(Problem::at(&rule.place, text))
}

/// Warns if a rule gives a minimum age for groups that are never reclaimed.
fn useless_age(rule: &GroupRule) -> Option<Problem> {
    let class = rule.class.filter(|class| *class != Class::Background)?;
    if !rule.has_min_age() {
        return None;
    }
    let text = format!("group {}: older_than has no effect: a {} group is never reclaimed", quoted(rule), class.name());
    Some(Problem::at(&rule.place, text))
}

/// Warns if no group is left that omr may reclaim.
fn nothing_reclaimable(rules: &[GroupRule]) -> Option<Problem> {
    let everything = |rule: &&GroupRule| match &rule.selector {
        // "*" by inheritance.
        Selector::Match(glob) => matches!(glob.as_str(), "**" | "*"),
        Selector::Unit(glob) => glob.as_str() == "*",
    };
    let all = rules.iter().rev().filter(everything);
    let class = all.clone().find(|rule| rule.class.is_some());
    if let Some(rule) = class
        && rule.class != Some(Class::Background)
        && !rules.iter().any(|rule| rule.class == Some(Class::Background) && !everything(&rule))
    {
        let class = rule.class.map_or("", Class::name);
        let text =
            format!("group {}: every group is {class} and none background, so nothing is ever swept", quoted(rule));
        return Some(Problem::at(&rule.place, text));
    }
    let keep = all.clone().find(|rule| rule.keep.is_some())?;
    let whole = |rule: &GroupRule| rule.keep == Some(Amount::Share(Permyriad::ONE));
    if whole(keep) && !rules.iter().any(|rule| rule.keep.is_some() && !whole(rule)) {
        let text = format!("group {}: every group keeps all its memory, so nothing is ever swept", quoted(keep));
        return Some(Problem::at(&keep.place, text));
    }
    None
}

fn quoted(rule: &GroupRule) -> String {
    format!("\"{}\"", printable(rule.selector.glob().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omr_config as config;

    fn found(groups: &str) -> Vec<String> {
        let mut loaded = Loaded::built_in();
        loaded.groups = config::rules(groups);
        warnings(&loaded).iter().map(ToString::to_string).collect()
    }

    fn rule(pattern: &str, rest: &str) -> String {
        format!("[[group]]\n{pattern}\n{rest}\n")
    }

    #[test]
    fn an_age_for_groups_that_lose_nothing_says_nothing() {
        let warned = |keys: &str| found(&rule("match = 'a'", keys));
        assert_eq!(
            warned("class = 'foreground'\nolder_than = '2m'"),
            ["/etc/omr/omr.toml:2: group \"a\": older_than has no effect: a foreground group is never reclaimed"]
        );
        assert_eq!(warned("class = 'background'\nolder_than = '2m'"), [""; 0]);
        assert_eq!(warned("class = 'protected'\nolder_than = '0s'"), [""; 0]);
        let again = |keys: &str| found(&(rule("match = 'a'", "older_than = '2m'") + &rule("match = 'a'", keys)));
        assert_eq!(again("older_than = '1h'").len(), 1, "said again");
        assert_eq!(again("keep = '1M'"), [""; 0]);
    }

    #[test]
    fn a_sound_configuration_has_no_warning() {
        let text = rule("match = 'user.slice/**'", "class = 'background'")
            + &rule("match = 'system.slice/**'", "class = 'background'")
            + &rule("unit = 'app-firefox-*.scope'", "class = 'foreground'\nkeep = '20%'")
            + &rule("unit = '*-agent.service'", "class = 'background'")
            + &rule("match = '**'", "class = 'protected'")
            + &rule("match = 'there/is/no/such/group'", "class = 'background'");
        assert_eq!(found(&text), [""; 0]);
    }

    #[test]
    fn a_configuration_that_protects_everything_is_pointed_out() {
        for (pattern, class) in
            [("match = '**'", "protected"), ("match = '*'", "foreground"), ("unit = '*'", "protected")]
        {
            let found = found(&rule(pattern, &format!("class = '{class}'")));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("nothing is ever swept"), "{found:?}");
        }
        let found = found(&rule("match = '**'", "keep = '100%'"));
        assert_eq!(
            found,
            ["/etc/omr/omr.toml:2: group \"**\": every group keeps all its memory, so nothing is ever swept"]
        );
    }

    #[test]
    fn a_rule_for_other_groups_that_lose_nothing_either_changes_no_warning() {
        let all = rule("match = '**'", "class = 'protected'");
        for (pattern, class, warned) in [("match = 'a'", "foreground", true), ("match = 'a'", "background", false)] {
            let found = found(&(all.clone() + &rule(pattern, &format!("class = '{class}'"))));
            let pointed_out = found.iter().any(|warning| warning.contains("nothing is ever swept"));
            assert_eq!(pointed_out, warned, "{class}: {found:?}");
        }
        let all = rule("match = '**'", "keep = '100%'");
        for (rest, warned) in [("class = 'background'", true), ("keep = '100%'", true), ("keep = '1M'", false)] {
            let found = found(&(all.clone() + &rule("match = 'a'", rest)));
            let pointed_out = found.iter().any(|warning| warning.contains("nothing is ever swept"));
            assert_eq!(pointed_out, warned, "{rest}: {found:?}");
        }
    }

    #[test]
    fn a_rule_that_takes_protection_away_is_pointed_out() {
        for (pattern, what) in [
            ("unit = 'dbus.service'", "dbus.service"),
            ("match = 'system.slice/dbus*'", "dbus.service"),
            ("match = 'init.scope'", "init.scope"),
            ("unit = 'systemd-*.service'", "systemd-journald.service"),
            ("unit = 'plasma-*.service'", "plasma-kwin_*.service"),
            ("unit = 'getty@tty1.service'", "getty@*.service"),
            ("match = '**/session.slice/**'", "session.slice"),
        ] {
            let found = found(&rule(pattern, "class = 'background'"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with(&format!("removes the built-in protection from \"{what}\"")), "{found:?}");
        }
        assert_eq!(found(&rule("match = '**'", "class = 'background'")), [""; 0]);
    }

    #[test]
    fn a_rule_that_never_wins_is_pointed_out() {
        let text = rule("match = 'a'", "class = 'background'") + &rule("match = 'a'", "class = 'foreground'");
        assert_eq!(
            found(&text),
            ["/etc/omr/omr.toml:2: group \"a\": never wins: /etc/omr/omr.toml:5 is for the same groups"]
        );
        let text =
            rule("match = 'a'", "class = 'background'\nkeep = '1M'") + &rule("match = 'a'", "class = 'foreground'");
        assert_eq!(found(&text), [""; 0]);
    }

    fn found_of_processes(groups: &str, rules: &[&str]) -> Vec<String> {
        let text: String = rules.iter().map(|rule| format!("[[process]]\n{}\n", rule.replace(", ", "\n"))).collect();
        let mut loaded = Loaded::built_in();
        loaded.groups = config::rules(groups);
        loaded.processes = config::process_rules(&text);
        warnings(&loaded).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_process_rule_that_a_later_one_covers_is_pointed_out() {
        let cat = "exe = '/usr/bin/cat', uid = 1000, class = 'protected'";
        for (later, is_the_same) in [
            ("exe = '/usr/bin/cat', uid = 1000, class = 'background'", true),
            ("exe = '/usr/bin/*', class = 'background'", false),
            ("exe = '/usr/**', class = 'protected'", false),
            ("uid = 1000, class = 'background'", false),
        ] {
            let found = found_of_processes("", &[cat, later]);
            assert_eq!(found.len(), 1, "{later}: {found:?}");
            let begin = "/etc/omr/omr.toml:1: process exe \"/usr/bin/cat\", uid 1000: never wins: every process that it matches also matches ";
            assert!(found[0].starts_with(begin) && found[0].contains(" in /etc/omr/omr.toml:"), "{found:?}");
            // The other way round is how one makes an exception.
            assert_eq!(found_of_processes("", &[later, cat]).len(), usize::from(is_the_same), "{later}");
        }
        for other in [
            "exe = '/usr/bin/cat', uid = 1001, class = 'background'",
            "exe = '/usr/bin/cat', uid = 1000, command = '*x*', class = 'background'",
            "exe = '/opt/**', class = 'background'",
        ] {
            assert_eq!(found_of_processes("", &[cat, other]), [""; 0], "{other}");
        }
        let adj = |range: &str| format!("oom_score_adj = '{range}', class = 'background'");
        assert_eq!(found_of_processes("", &[&adj("200..300"), &adj("100..")]).len(), 1);
        assert_eq!(found_of_processes("", &[&adj("200..300"), &adj("250..")]), [""; 0]);
        let command = |pattern: &str| format!("command = '{pattern}', class = 'background'");
        assert_eq!(found_of_processes("", &[&command("a b"), &command("a*")]).len(), 1);
        assert_eq!(found_of_processes("", &[&command("a*b"), &command("a*")]), [""; 0], "too clever by half");
    }

    #[test]
    fn a_process_rule_about_a_group_that_is_kept_is_pointed_out() {
        let groups = rule("match = 'work/**'", "class = 'foreground'");
        let of = |group: &str, class: &str| format!("group = '{group}', class = '{class}'");
        assert_eq!(
            found_of_processes(&groups, &[&of("work/a", "background")]),
            ["/etc/omr/omr.toml:1: process group \"work/a\": has no effect: the group is foreground: \
                 matched \"work/**\" in /etc/omr/omr.toml:2"]
        );
        assert_eq!(found_of_processes(&groups, &[&of("system.slice/dbus.service", "background")]).len(), 1);
        for (group, class) in [("work/a", "protected"), ("rest", "background"), ("work*", "background")] {
            assert_eq!(found_of_processes(&groups, &[&of(group, class)]), [""; 0], "{group}");
        }
    }

    #[test]
    fn globs_that_overlap_with_equal_weight_are_pointed_out() {
        let text =
            rule("match = 'app-?b*'", "class = 'background'") + &rule("match = 'app-c*'", "class = 'foreground'");
        assert_eq!(
            found(&text),
            [concat!(
                "/etc/omr/omr.toml:2: group \"app-?b*\": as specific as \"app-c*\" in /etc/omr/omr.toml:5; ",
                "for groups that match both, the later one wins"
            )]
        );
        let same =
            rule("match = 'app-?b*'", "class = 'background'") + &rule("match = 'app-c*'", "class = 'background'");
        assert_eq!(found(&same), [""; 0]);
        let apart =
            rule("match = 'app-b*'", "class = 'background'") + &rule("match = 'app-c*'", "class = 'foreground'");
        assert_eq!(found(&apart), [""; 0]);
        let unit =
            rule("match = 'a.slice/*'", "class = 'background'") + &rule("unit = 'xx.scope'", "class = 'foreground'");
        assert_eq!(found(&unit).len(), 1);
    }
}
