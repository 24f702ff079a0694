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

mod built_in;
mod origin;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use omr_config::{GroupRule, parse_class, parts};
use omr_policy::statement::Presence;
use omr_policy::{Class, MinAge, short};
use omr_units::{Amount, Monotonic};

use self::built_in::BACKGROUND;
pub use self::built_in::BUILT_IN;
pub use self::origin::{Ignored, Origin};
use crate::groups::xattrs::{self, Attributes, Focus};

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
    /// The class is from a rule with `enforce`, of this group or of one above it.
    enforced: bool,
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
            enforced: false,
            unfocused: None,
            above: 0,
        }
    }
}

impl Assignment {
    /// Returns the minimum age of memory that sweeps may reclaim; `None`: no rule says one.
    pub fn age_rule(&self) -> Option<MinAge> {
        self.age_rule.as_ref()?.older_than
    }

    /// Returns the minimum age that a rule asks for; `None`: any age.
    pub fn older_than(&self) -> Option<MinAge> {
        self.age_rule().filter(|age| *age != MinAge::Any)
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
            let time = match age {
                MinAge::Time(time) => short(time).to_string(),
                MinAge::Any | MinAge::Learned => "a learned time".into(),
            };
            text += &format!("; only memory unused for {time} is reclaimed: matched {rule}");
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
        if let Some(origin) = self.built_in(path, &path_parts).filter(|origin| assignment.may_be(origin)) {
            assignment.set_class(Class::Protected, origin);
        } else if built_in::is_background(&path_parts) && !assignment.explicit {
            assignment.set_class(Class::Background, Origin::BuiltIn(BACKGROUND, ""));
        }
        if let Some(oom_preference) = attributes.oom_preference
            && oom_preference.class() > assignment.class
            && !assignment.enforced
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
            assignment.enforced = rule.enforce;
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
        built_in::protecting(name).map(|(start, end)| Origin::BuiltIn(start, end))
    }
}

impl Assignment {
    fn set_class(&mut self, class: Class, origin: Origin) {
        self.class = class;
        self.explicit = true;
        self.origin = origin;
        self.above = 0;
    }

    /// Returns true if the group may be protected for this: a rule with `enforce` for a group above it
    /// wins over a name that any user can give to a group.
    fn may_be(&self, origin: &Origin) -> bool {
        !self.enforced || *origin == Origin::Own
    }

    /// Returns true if a rule that matches may replace the current class.
    ///
    /// Built-in protection, and that by systemd-oomd's preference, yields to a rule that names the
    /// protected group or one below it. A blanket rule such as `system.slice/**` is meant for the
    /// services that the user thinks of, hardly for the bus.
    fn yields_to(&self, rule: &GroupRule, path: &[Cow<'_, str>]) -> bool {
        let is_default = matches!(self.origin, Origin::BuiltIn(..) | Origin::Own | Origin::OomPreference(_));
        if rule.enforce && self.origin != Origin::Own {
            return true;
        }
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
        if owner != 0 && self.enforced {
            self.ignored = Some(Ignored::Enforced);
        } else if owner == 0 || more_care {
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
        if self.class < Class::Foreground && !self.enforced {
            self.set_class(Class::Foreground, origin);
        }
    }
}

#[cfg(test)]
mod tests;
