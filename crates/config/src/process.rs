//! Rules for processes: `[[process]]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use omr_base::text::printable;
use omr_policy::Class;
use toml::de::DeValue;

use crate::glob::{Glob, parts};
use crate::rules::Place;

/// The keys that a `[[process]]` may have.
pub const PROCESS_KEYS: [&str; 6] = ["exe", "command", "group", "uid", "oom_score_adj", "class"];

/// The limit for wildcards in a pattern for a command line, which is compared as a whole.
const WILDCARDS: usize = 4;
/// The part of a command line that is compared. A command line can have megabytes, and any user can
/// choose it.
const COMPARED: usize = 4096;

/// A `[[process]]` rule. All keys that it has must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRule {
    /// The path of the program.
    pub exe: Option<Glob>,
    /// The command line: arguments with a blank between them.
    pub command: Option<glob::Pattern>,
    /// The path of its group below the mount.
    pub group: Option<Glob>,
    /// The effective user.
    pub uid: Option<u32>,
    /// The kernel's value for how expendable the process is.
    pub oom_score_adj: Option<RangeInclusive<i16>>,
    /// The class. `background` also allows hints while the process is unused.
    pub class: Class,
    /// The place of the rule.
    pub place: Place,
}

impl ProcessRule {
    /// Returns the keys of the rule with their values.
    pub fn fields(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut fields: Vec<(&'static str, serde_json::Value)> = Vec::new();
        fields.extend(self.exe.iter().map(|glob| ("exe", glob.as_str().into())));
        fields.extend(self.command.iter().map(|pattern| ("command", pattern.as_str().into())));
        fields.extend(self.group.iter().map(|glob| ("group", glob.as_str().into())));
        fields.extend(self.uid.iter().map(|uid| ("uid", (*uid).into())));
        fields.extend(self.oom_score_adj.iter().map(|range| ("oom_score_adj", adj_text(range).into())));
        fields.push(("class", self.class.name().into()));
        fields
    }

    /// Returns true if every process that matches the other rule surely matches this one. For two
    /// patterns with wildcards this is known only if they are equal.
    pub fn covers(&self, other: &ProcessRule) -> bool {
        fn all<T>(own: Option<&T>, other: Option<&T>, covers: impl Fn(&T, &T) -> bool) -> bool {
            own.is_none_or(|own| other.is_some_and(|other| covers(own, other)))
        }
        let glob = |own: &Glob, other: &Glob| {
            own == other || (other.is_literal() && own.matches(&parts(Path::new(other.as_str()))))
        };
        let command = |own: &glob::Pattern, other: &glob::Pattern| {
            own == other || (!other.as_str().contains(['*', '?', '[']) && own.matches(other.as_str()))
        };
        all(self.exe.as_ref(), other.exe.as_ref(), glob)
            && all(self.group.as_ref(), other.group.as_ref(), glob)
            && all(self.command.as_ref(), other.command.as_ref(), command)
            && all(self.uid.as_ref(), other.uid.as_ref(), |own, other| own == other)
            && all(self.oom_score_adj.as_ref(), other.oom_score_adj.as_ref(), |own, other| {
                own.contains(other.start()) && own.contains(other.end())
            })
    }

    /// `exe "/usr/bin/cat", uid 1000`
    pub fn description(&self) -> String {
        let fields = self.fields().into_iter().filter(|(name, _)| *name != "class");
        let fields: Vec<String> =
            fields.map(|(name, value)| format!("{name} {}", printable(&value.to_string()))).collect();
        fields.join(", ")
    }

    /// Returns true if a command line matches, or if the rule names none.
    pub fn fits_command(&self, command: &str) -> bool {
        let end = command.char_indices().nth(COMPARED).map_or(command.len(), |(end, _)| end);
        self.command.as_ref().is_none_or(|pattern| pattern.matches(&command[..end]))
    }
}

/// `exe "/usr/bin/cat", uid 1000 in /etc/omr/omr.toml:14`
impl fmt::Display for ProcessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.description(), self.place)
    }
}

/// Parses a pattern for the path of a program.
pub fn parse_exe(value: &DeValue<'_>) -> Result<Glob, String> {
    Glob::program(text(value))
}

/// Parses a pattern for a command line: `*` is any text, blanks and slashes included.
pub fn parse_command(value: &DeValue<'_>) -> Result<glob::Pattern, String> {
    let text = text(value);
    if text.is_empty() {
        return Err("a pattern for the whole command line is needed, e.g. \"*--type=renderer*\"".into());
    }
    if text.matches(['*', '?', '[']).count() > WILDCARDS {
        return Err(format!("more than {WILDCARDS} wildcards"));
    }
    glob::Pattern::new(text).map_err(|err| format!("{} at character {}", err.msg, err.pos + 1))
}

/// Parses a pattern for groups.
pub fn parse_group(value: &DeValue<'_>) -> Result<Glob, String> {
    Glob::path(text(value))
}

/// Parses a user's number. Names are not allowed: their lookup is not safe.
pub fn parse_uid(value: &DeValue<'_>) -> Result<u32, String> {
    match value {
        DeValue::Integer(number) => number.as_str().parse().ok().filter(|&uid| uid != u32::MAX),
        _ => None,
    }
    .ok_or_else(|| "the number of a user is needed, e.g. 1000".into())
}

/// Parses `200..1000`, `200..`, `..0`, or one number. Both ends are included.
pub fn parse_adj(value: &DeValue<'_>) -> Result<RangeInclusive<i16>, String> {
    let number = |text: &str, open: i16| match text {
        "" => Some(open),
        text => text.parse().ok().filter(|adj| (-1000..=1000).contains(adj)),
    };
    let range = match value {
        DeValue::Integer(one) => number(one.as_str(), i16::MAX).map(|adj| adj..=adj),
        DeValue::String(text) => match text.split_once("..") {
            Some(("", "")) => None,
            Some((low, high)) => number(low, -1000).zip(number(high, 1000)).map(|(low, high)| low..=high),
            None => number(text, i16::MAX).map(|adj| adj..=adj),
        },
        _ => None,
    };
    let range = range.filter(|range| *range.end() <= 1000);
    let range =
        range.ok_or_else(|| "numbers from -1000 to 1000 are needed, e.g. \"200..1000\" or \"300..\"".to_owned())?;
    if range.is_empty() {
        return Err("the lower number comes first".into());
    }
    Ok(range)
}

/// Formats a range as in a file.
fn adj_text(range: &RangeInclusive<i16>) -> String {
    match (*range.start(), *range.end()) {
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low}..{high}"),
    }
}

fn text<'a>(value: &'a DeValue<'_>) -> &'a str {
    match value {
        DeValue::String(text) => text,
        _ => "",
    }
}
