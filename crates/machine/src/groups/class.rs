//! Classes of groups: which class a group has, why, and how much memory it keeps.
//!
//! The sources of a class, strongest first: the focus; the extended attribute `user.omr.class`; a
//! rule of the configuration; built-in protection and systemd-oomd's preference. A group without
//! any of these inherits from its parent. Of several rules that match a group, the one with the
//! most literal characters wins; if equal, the later one.
//!
//! A blanket rule such as `system.slice/**` applies to the topmost groups that it matches; the
//! groups below inherit. So it does not reach into a group with another class: everything inside a
//! protected service stays protected.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use omr_config::{GroupRule, parse_class, parts};
use omr_policy::statement::Presence;
use omr_policy::{Class, short};
use omr_units::{Amount, Monotonic};

use crate::groups::xattrs::{self, Attributes, Focus, OomPreference};

/// Groups that are protected unless a rule names them: the beginning and the end of the last part
/// of the path. The list is short on purpose. It holds the services without which a machine looks
/// dead while they are read back from a slow disk.
pub const BUILT_IN: [(&str, &str); 33] = [
    // omr itself, for the command line; the daemon knows its own group under any name.
    ("omr.service", ""),
    ("omr-mount.service", ""),
    // The first process, and a user's service manager.
    ("init.scope", ""),
    // Everything waits for the bus.
    ("dbus.service", ""),
    ("dbus-broker.service", ""),
    ("systemd-journald.service", ""),
    ("systemd-journald@", ".service"),
    ("systemd-udevd.service", ""),
    ("systemd-logind.service", ""),
    // Logins. The group holds the listener, some MiB; sessions have their own groups (pam_systemd).
    // An administrator who repairs a machine that swaps must not wait for the listener.
    ("ssh.service", ""),
    ("sshd.service", ""),
    ("getty@", ".service"),
    ("serial-getty@", ".service"),
    // Display managers and servers.
    ("display-manager.service", ""),
    ("gdm.service", ""),
    ("gdm3.service", ""),
    ("greetd.service", ""),
    ("lightdm.service", ""),
    ("lxdm.service", ""),
    ("ly.service", ""),
    ("ly@", ".service"),
    ("plasmalogin.service", ""),
    ("sddm.service", ""),
    ("xdm.service", ""),
    // The essential part of a user's session by systemd's rules: compositor, shell, sound.
    ("session.slice", ""),
    // Compositors where they are not in session.slice.
    ("org.gnome.Shell@", ".service"),
    ("gnome-shell-wayland.service", ""),
    ("gnome-shell-x11.service", ""),
    ("plasma-kwin_", ".service"),
    ("plasma-plasmashell.service", ""),
    ("wayland-wm@", ".service"),
    ("niri.service", ""),
    ("weston.service", ""),
];

/// The low-priority part of a user's session by systemd's rules. It is background unless it, or a
/// group above it, has another class.
const BUILT_IN_BACKGROUND: &str = "background.slice";

/// The origin of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// No source gives a class.
    #[default]
    Default,
    /// A line of [`BUILT_IN`].
    BuiltIn(&'static str, &'static str),
    /// omr itself runs in the group.
    Own,
    /// A rule of the configuration.
    Rule(Arc<GroupRule>),
    /// The extended attribute [`xattrs::CLASS`].
    Attribute,
    /// The systemd-oomd preference.
    OomPreference(OomPreference),
    /// The application has the focus.
    Focus,
    /// The application may have the focus: the attribute is not understood.
    FocusUnknown,
    /// A statement about the group, or about this process in it.
    Stated(Presence, Option<u32>),
}

/// `matched "app.slice/**" in /etc/omr/omr.toml:14`
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("no rule matched"),
            Origin::BuiltIn(start, "") => write!(f, "built in for \"{start}\""),
            Origin::BuiltIn(start, end) => write!(f, "built in for \"{start}*{end}\""),
            Origin::Own => f.write_str("omr itself runs in it"),
            Origin::Rule(rule) => write!(f, "matched {rule}"),
            Origin::Attribute => write!(f, "extended attribute {}", xattrs::CLASS),
            Origin::OomPreference(oom_preference) => write!(f, "{oom_preference}"),
            Origin::FocusUnknown => {
                write!(f, "it may have the focus: extended attribute {} is neither -1 nor a time", xattrs::FOCUS)
            }
            Origin::Focus => write!(f, "it has the focus (extended attribute {})", xattrs::FOCUS),
            Origin::Stated(Presence::Present, _) => f.write_str("its user is at the machine (omr follow)"),
            Origin::Stated(word, None) => write!(f, "omr {}", word.class().name()),
            Origin::Stated(word, Some(pid)) => write!(f, "omr {} {pid}, a process in it", word.class().name()),
        }
    }
}

/// The reason why a group's extended attribute is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The attribute holds no class.
    Unknown,
    /// The attribute asks for less care, and the group belongs to a user.
    NotRoot,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extended attribute {} ignored: ", xattrs::CLASS)?;
        match self {
            Ignored::Unknown => f.write_str("no class of that name"),
            Ignored::NotRoot => f.write_str("in a user's group it can only ask for more care"),
        }
    }
}

/// The class of a group and the amount that it keeps. The default is for a group without any
/// source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The class.
    pub class: Class,
    /// The class has a source. A group that is background by default is swept when the machine is
    /// idle, and its CPU time counts as load.
    pub explicit: bool,
    /// The amount that is never reclaimed.
    pub keep: Option<Amount>,
    /// The origin of the class.
    pub origin: Origin,
    /// The rule that gives `keep`.
    pub keep_rule: Option<Arc<GroupRule>>,
    /// The rule that gives the minimum age for reclaim.
    pub age_rule: Option<Arc<GroupRule>>,
    /// The reason why the extended attribute is ignored; `None`: it is not set, or it counts.
    pub ignored: Option<Ignored>,
    /// The moment when the focus was lost; `None`: it has the focus, or this is unknown.
    pub unfocused: Option<Monotonic>,
    /// The number of levels between the group and the group with the source; 0: the group itself.
    above: u8,
}

impl Default for Assignment {
    fn default() -> Self {
        Assignment {
            class: Class::Background,
            explicit: false,
            keep: None,
            origin: Origin::Default,
            keep_rule: None,
            age_rule: None,
            ignored: None,
            unfocused: None,
            above: 0,
        }
    }
}

impl Assignment {
    /// Returns the minimum age: sweeps reclaim only memory that was surely not used for this time.
    /// Never zero.
    pub fn older_than(&self) -> Option<Duration> {
        self.age_rule.as_ref()?.older_than.filter(|age| !age.is_zero())
    }

    /// Returns the assignment that a child inherits.
    fn inherited(&self) -> Assignment {
        Assignment { ignored: None, above: self.above.saturating_add(1), ..self.clone() }
    }

    /// Returns the text for `omr explain`: `matched "app.slice" in /etc/omr/omr.toml:14, inherited
    /// from app.slice`.
    pub fn explain(&self, path: &Path) -> String {
        let mut text = match &self.origin {
            Origin::Default => "no rule matched: background, and swept only when the machine is idle".into(),
            origin => origin.to_string(),
        };
        if self.above > 0
            && self.origin != Origin::Default
            && let Some(above) = path.ancestors().nth(self.above.into())
        {
            text += &format!(", inherited from {}", omr_base::text::printable(&above.to_string_lossy()));
        }
        if let (Some(keep), Some(rule)) = (self.keep, &self.keep_rule) {
            text += &format!("; keeps {}: matched {rule}", keep.exact());
        }
        if let (Some(age), Some(rule)) = (self.older_than(), &self.age_rule) {
            text += &format!("; only memory unused for {} is reclaimed: matched {rule}", short(age));
        }
        if let Some(ignored) = self.ignored {
            text += &format!("; {ignored}");
        }
        text
    }
}

/// Assigns classes to groups.
#[derive(Debug)]
pub struct Classifier {
    rules: Vec<Arc<GroupRule>>,
    own: Box<Path>,
}

impl Classifier {
    /// Makes a classifier with these rules, for a daemon in the group `own` (below the mount). If
    /// `own` is the root, it protects nothing: then omr has no group of its own.
    pub fn new(rules: &[GroupRule], own: &Path) -> Classifier {
        Classifier { rules: rules.iter().cloned().map(Arc::new).collect(), own: own.into() }
    }

    /// Returns the assignment of the group at `path` below the mount. `parent` is the assignment of
    /// its parent. For the root, pass the empty path and `&Assignment::default()`.
    ///
    /// This compares the group with each rule, so call it for new groups, not at each tick.
    pub fn assign(&self, path: &Path, parent: &Assignment, attributes: &Attributes) -> Assignment {
        let path_parts = parts(path);
        let mut assignment = if path_parts.is_empty() { parent.clone() } else { parent.inherited() };
        if let Some(origin) = self.built_in(path, &path_parts) {
            assignment.set_class(Class::Protected, origin);
        } else if path_parts.last().is_some_and(|name| name == BUILT_IN_BACKGROUND) && !assignment.explicit {
            assignment.set_class(Class::Background, Origin::BuiltIn(BUILT_IN_BACKGROUND, ""));
        }
        if let Some(oom_preference) = attributes.oom_preference
            && oom_preference.class() > assignment.class
        {
            assignment.set_class(oom_preference.class(), Origin::OomPreference(oom_preference));
        }
        let above = path_parts.len().saturating_sub(1);
        let says = |rule: &&Arc<GroupRule>| {
            let selector = &rule.selector;
            selector.matches(&path_parts) && !(selector.glob().is_blanket() && selector.matches(&path_parts[..above]))
        };
        let matching = || self.rules.iter().filter(says);
        let specific = |rule: &&Arc<GroupRule>| rule.selector.glob().literals();
        // max_by_key returns the last of equal items.
        let rule = matching().filter(|rule| rule.class.is_some());
        let rule = rule.filter(|rule| assignment.yields_to(rule, &path_parts)).max_by_key(specific);
        if let Some(rule) = rule
            && let Some(class) = rule.class
        {
            assignment.set_class(class, Origin::Rule(rule.clone()));
        }
        if let Some(rule) = matching().filter(|rule| rule.keep.is_some()).max_by_key(specific) {
            assignment.keep = rule.keep;
            assignment.keep_rule = Some(rule.clone());
        }
        if let Some(rule) = matching().filter(|rule| rule.older_than.is_some()).max_by_key(specific) {
            assignment.age_rule = Some(rule.clone());
        }
        if let Some(value) = &attributes.class {
            assignment.apply_class(value, attributes.owner);
        }
        if let Some(focus) = attributes.focus {
            assignment.apply_focus(focus);
        }
        assignment
    }

    fn built_in(&self, path: &Path, parts: &[Cow<'_, str>]) -> Option<Origin> {
        let name = parts.last()?;
        if *path == *self.own {
            return Some(Origin::Own);
        }
        BUILT_IN.iter().find(|entry| is_built_in(entry, name)).map(|(start, end)| Origin::BuiltIn(start, end))
    }
}

fn is_built_in((start, end): &(&str, &str), name: &str) -> bool {
    match *end {
        "" => name == *start,
        end => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    }
}

impl Assignment {
    fn set_class(&mut self, class: Class, origin: Origin) {
        self.class = class;
        self.explicit = true;
        self.origin = origin;
        self.above = 0;
    }

    /// Returns true if a rule that matches may replace the current class.
    ///
    /// Built-in protection, and that by systemd-oomd's preference, yields to a rule that names the
    /// protected group or one below it. A blanket rule such as `system.slice/**` is meant for the
    /// services that the user thinks of, hardly for the bus.
    fn yields_to(&self, rule: &GroupRule, path: &[Cow<'_, str>]) -> bool {
        let is_default = matches!(self.origin, Origin::BuiltIn(..) | Origin::Own | Origin::OomPreference(_));
        if !is_default || self.class == Class::Background || rule.class > Some(self.class) {
            return true;
        }
        let depth = path.len().saturating_sub(self.above.into());
        match &rule.selector {
            omr_config::Selector::Match(glob) => glob.names(path, depth),
            omr_config::Selector::Unit(glob) => !glob.is_blanket(),
        }
    }

    /// Applies a statement about the group, or about the process `of` in it. A statement for more
    /// care always counts; one for less care counts only if no rule protects the group. Returns
    /// true if it counts.
    pub fn apply_statement(&mut self, word: Presence, of: Option<u32>) -> bool {
        let class = word.class();
        let counts = class > self.class || self.class == Class::Background || matches!(self.origin, Origin::Stated(..));
        if counts {
            self.set_class(class, Origin::Stated(word, of));
        }
        counts
    }

    fn apply_class(&mut self, value: &[u8], owner: u32) {
        let Some(class) = std::str::from_utf8(xattrs::trim(value)).ok().and_then(parse_class) else {
            self.ignored = Some(Ignored::Unknown);
            return;
        };
        let more_care = class > self.class || (class == self.class && self.explicit);
        if owner == 0 || more_care {
            self.set_class(class, Origin::Attribute);
        } else {
            self.ignored = Some(Ignored::NotRoot);
        }
    }

    /// Applies the focus. The focus makes a group foreground. A lost focus does not change the
    /// class.
    fn apply_focus(&mut self, focus: Focus) {
        let origin = match focus {
            Focus::Here => Origin::Focus,
            Focus::Unknown => Origin::FocusUnknown,
            Focus::Lost(moment) => {
                self.unfocused = Some(moment);
                return;
            }
        };
        self.unfocused = None;
        if self.class < Class::Foreground {
            self.set_class(Class::Foreground, origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use proptest::prelude::*;

    use super::*;
    use omr_config::{Loaded, Profile, rules};

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
        assert_eq!(
            assigned("", "x/plasma-kwin_x11.service").origin.to_string(),
            "built in for \"plasma-kwin_*.service\""
        );
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
        ";
        let minutes = |minutes: u64| Some(Duration::from_secs(minutes * 60));
        for (path, age) in [
            ("jobs.slice/a", minutes(2)),
            ("jobs.slice/long", minutes(60)),
            ("jobs.slice/long/a", minutes(60)),
            ("jobs.slice/any", None),
            ("jobs.slice/any/a", None),
            ("other", None),
        ] {
            assert_eq!(assigned(config, path).older_than(), age, "{path}");
        }
        assert_eq!(
            assigned(config, "jobs.slice/a").explain(Path::new("jobs.slice/a")),
            "no rule matched: background, and swept only when the machine is idle; \
             only memory unused for 2 min is reclaimed: matched \"jobs.slice\" in /etc/omr/omr.toml:3"
        );
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
        let pattern =
            prop::sample::select(vec!["**", "a", "a/**", "*/b", "a/b", "a*", "dbus.service", "**/dbus*", "?"]);
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
}
