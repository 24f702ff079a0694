//! The origin of a class, and the reason why an extended attribute gives none.

use std::fmt;
use std::sync::Arc;

use omr_config::GroupRule;
use omr_policy::statement::Presence;

use crate::groups::xattrs::{self, OomPreference};

/// The origin of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// No source gives a class.
    #[default]
    Default,
    /// A line of [`BUILT_IN`](super::BUILT_IN).
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
    /// A rule with `enforce` gives the class.
    Enforced,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extended attribute {} ignored: ", xattrs::CLASS)?;
        match self {
            Ignored::Unknown => f.write_str("no class of that name"),
            Ignored::NotRoot => f.write_str("in a user's group it can only ask for more care"),
            Ignored::Enforced => f.write_str("the rule has enforce = true"),
        }
    }
}
