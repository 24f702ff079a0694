//! What a group says of itself: extended attributes of its directory.
//!
//! A user may write what begins with `user.` to groups of his own, so only what makes omr more careful is taken at its
//! word there. `trusted.` ones, which only root may write, are not looked at: reading them takes `CAP_SYS_ADMIN`, and
//! systemd writes its own as `user.` since 249.

use std::fmt;
use std::time::Duration;

use omr_kernel::{Dir, clock};
use omr_policy::Class;
use omr_units::Monotonic;

/// The class of a group, in omr's words.
pub const CLASS: &str = "user.omr.class";
/// Since when an application has not had the focus: a moment of `CLOCK_MONOTONIC` in microseconds, in decimal digits;
/// `-1`: it has it now. GNOME's compositor writes it to the groups of the applications of its session.
pub const FOCUS: &str = "user.xdg.inactive-since";

/// Whether an application has the focus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// It has.
    Here,
    /// It has not, since that moment.
    Lost(Monotonic),
    /// What the attribute holds is neither of them: it may have.
    Unknown,
}

/// systemd's `ManagedOOMPreference=`, as the kernel's attributes hold it: what systemd-oomd is to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomPreference {
    /// `omit`: never to be killed.
    Omit,
    /// `avoid`: only if there is no other.
    Avoid,
}

impl OomPreference {
    fn attribute(self) -> &'static str {
        match self {
            OomPreference::Omit => "user.oomd_omit",
            OomPreference::Avoid => "user.oomd_avoid",
        }
    }

    /// What omr makes of it, unless a rule names the group.
    pub fn class(self) -> Class {
        match self {
            OomPreference::Omit => Class::Protected,
            OomPreference::Avoid => Class::Foreground,
        }
    }
}

/// `extended attribute user.oomd_avoid (ManagedOOMPreference=avoid)`
impl fmt::Display for OomPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            OomPreference::Omit => "omit",
            OomPreference::Avoid => "avoid",
        };
        write!(f, "extended attribute {} (ManagedOOMPreference={word})", self.attribute())
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Who owns the group; nobody, `u32::MAX`, when that cannot be told.
    pub owner: u32,
    /// What [`CLASS`] holds.
    pub class: Option<Vec<u8>>,
    /// Whether it has the focus; `None`: nobody says.
    pub focus: Option<Focus>,
    /// Whether systemd-oomd is to spare it.
    pub oom_preference: Option<OomPreference>,
}

impl Attributes {
    /// Of a group that says nothing and belongs to this user.
    pub fn none(owner: u32) -> Attributes {
        Attributes { owner, class: None, focus: None, oom_preference: None }
    }

    /// Of this group.
    pub fn read(dir: &Dir) -> Attributes {
        let is_set =
            |oom_preference: &OomPreference| dir.xattr(oom_preference.attribute()).is_some_and(|value| !is_no(&value));
        Attributes {
            owner: dir.owner().unwrap_or(u32::MAX),
            class: dir.xattr(CLASS),
            focus: dir.xattr(FOCUS).map(|value| parse_focus(&value, clock::read_monotonic())),
            oom_preference: [OomPreference::Omit, OomPreference::Avoid].into_iter().find(is_set),
        }
    }
}

/// The value without what some tools write behind it: an end of line, a NUL.
pub fn trim(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\0").unwrap_or(value).trim_ascii()
}

/// A moment that is still to come is no moment at which the focus was lost.
fn parse_focus(value: &[u8], now: Monotonic) -> Focus {
    let value = trim(value);
    if value == b"-1" {
        return Focus::Here;
    }
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()));
    let moment = digits.and_then(|text| text.parse().ok()).map(|micros| Monotonic(0) + Duration::from_micros(micros));
    moment.filter(|moment| *moment <= now).map_or(Focus::Unknown, Focus::Lost)
}

/// systemd's words for no. What is neither yes nor no spares.
fn is_no(value: &[u8]) -> bool {
    [b"0".as_slice(), b"no", b"n", b"false", b"f", b"off"].contains(&trim(value).to_ascii_lowercase().as_slice())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn minus_one_is_the_focus_and_a_moment_is_when_it_was_lost() {
        let now = Monotonic(5_000_000);
        for (value, expected) in [
            ("-1", Focus::Here),
            ("-1\n", Focus::Here),
            ("-1\0", Focus::Here),
            ("0", Focus::Lost(Monotonic(0))),
            ("4321", Focus::Lost(Monotonic(4_321_000))),
            ("5000", Focus::Lost(now)),
            ("5001", Focus::Unknown),
            ("18446744073709551615", Focus::Unknown),
            ("99999999999999999999999", Focus::Unknown),
            ("-2", Focus::Unknown),
            ("+1", Focus::Unknown),
            ("1.5", Focus::Unknown),
            ("0x10", Focus::Unknown),
            ("1 2", Focus::Unknown),
            ("", Focus::Unknown),
            ("focused", Focus::Unknown),
        ] {
            assert_eq!(parse_focus(value.as_bytes(), now), expected, "{value:?}");
        }
        assert_eq!(parse_focus(b"\xff", now), Focus::Unknown);
    }

    #[test]
    fn only_a_clear_no_spares_nothing() {
        for (value, no) in [("1", false), ("0", true), ("no\n", true), ("FALSE", true), ("", false), ("maybe", false)] {
            assert_eq!(is_no(value.as_bytes()), no, "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_is_a_moment_to_come(value in proptest::collection::vec(any::<u8>(), 0..64), now: u64) {
            if let Focus::Lost(moment) = parse_focus(&value, Monotonic(now)) {
                prop_assert!(moment <= Monotonic(now));
            }
        }
    }
}
