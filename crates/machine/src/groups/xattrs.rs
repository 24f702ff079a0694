//! Extended attributes of a group's directory: class, focus, systemd-oomd preference.
//!
//! Users may write attributes with the prefix `user.` to their own groups. There, omr obeys only a
//! value that asks for more care. omr does not read `trusted.` attributes, which only root may
//! write: that takes `CAP_SYS_ADMIN`, and systemd writes its own as `user.` since 249.

use std::fmt;
use std::time::Duration;

use omr_kernel::{Dir, clock};
use omr_policy::Class;
use omr_units::Monotonic;

/// The attribute that holds the class of a group.
pub const CLASS: &str = "user.omr.class";
/// The attribute that says when an application lost the focus: `CLOCK_MONOTONIC` in microseconds,
/// in decimal digits; `-1`: it has the focus. GNOME's compositor writes it to the groups of
/// applications in its session.
pub const FOCUS: &str = "user.xdg.inactive-since";

/// The focus state of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The application has the focus.
    Here,
    /// The application lost the focus at that moment.
    Lost(Monotonic),
    /// The attribute holds something else, so the application may have the focus.
    Unknown,
}

/// systemd's `ManagedOOMPreference=`: groups that systemd-oomd must not kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomPreference {
    /// `omit`: systemd-oomd never kills the group.
    Omit,
    /// `avoid`: systemd-oomd kills the group only if there is no other one.
    Avoid,
}

impl OomPreference {
    fn attribute(self) -> &'static str {
        match self {
            OomPreference::Omit => "user.oomd_omit",
            OomPreference::Avoid => "user.oomd_avoid",
        }
    }

    /// Returns the class that the preference gives, unless a rule names the group.
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

/// The attributes of a group that omr reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The owner of the group; `u32::MAX`: unknown.
    pub owner: u32,
    /// The value of [`CLASS`]; `None`: not set.
    pub class: Option<Vec<u8>>,
    /// The focus state; `None`: not set.
    pub focus: Option<Focus>,
    /// The systemd-oomd preference; `None`: not set.
    pub oom_preference: Option<OomPreference>,
}

impl Attributes {
    /// Returns the attributes of a group of this user that has none set.
    pub fn none(owner: u32) -> Attributes {
        Attributes { owner, class: None, focus: None, oom_preference: None }
    }

    /// Reads the attributes of a group.
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

/// Removes a trailing end of line or NUL, which some tools write.
pub fn trim(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\0").unwrap_or(value).trim_ascii()
}

/// Parses the value of [`FOCUS`]. A moment in the future is not valid.
fn parse_focus(value: &[u8], now: Monotonic) -> Focus {
    let value = trim(value);
    if value == b"-1" {
        return Focus::Here;
    }
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()));
    let moment = digits.and_then(|text| text.parse().ok()).map(|micros| Monotonic(0) + Duration::from_micros(micros));
    moment.filter(|moment| *moment <= now).map_or(Focus::Unknown, Focus::Lost)
}

/// Returns true for systemd's words for no. A value that is neither yes nor no counts as yes.
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

    #[test]
    fn no_value_makes_it_panic() {
        omr_testkit::fuzz::feed(&["-1", "123456789", "foreground\n", "yes\0"], |value| {
            let _ = (parse_focus(value, Monotonic(1 << 40)), is_no(value));
            assert!(trim(value).len() <= value.len());
        });
    }
}
