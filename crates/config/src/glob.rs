//! Patterns for control groups.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The limit for wildcards in one part of a pattern (between two slashes).
const WILDCARDS: usize = 16;

/// A pattern for a group's path below the mount: `app.slice/**`, `user.slice/**/app-*.scope`.
///
/// `*`, `?` and `[a-z]` stay within one part of the path. `**` stands for any number of parts; at
/// the end, for at least one. So `app.slice/**` means all groups below `app.slice`, but not
/// `app.slice` itself.
///
/// Bytes that are not UTF-8 are compared as U+FFFD, so `*` and `?` match them. Each part is matched
/// by itself, so the cost is the length of the pattern times the length of the path. Users choose
/// names, and must not be able to keep a root process busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    parts: Box<[Part]>,
    literals: u32,
    /// The number of parts up to the last one that names something; see [`Glob::names`].
    stem: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`
    AnyDepth,
    /// A part without wildcards. A `glob::Pattern` needs 32 bytes for each character.
    Literal(Box<str>),
    Wild(glob::Pattern),
}

impl Part {
    fn matches(&self, name: &str) -> bool {
        match self {
            Part::AnyDepth => true,
            Part::Literal(text) => **text == *name,
            Part::Wild(pattern) => pattern.matches(name),
        }
    }
}

impl Glob {
    /// Parses a pattern for paths. A leading slash and the usual mount point are removed.
    pub fn path(text: &str) -> Result<Glob, String> {
        let text = text.trim_start_matches('/');
        let text = text.strip_prefix("sys/fs/cgroup/").unwrap_or(text).trim_end_matches('/');
        if text.is_empty() {
            return Err("expected a pattern for groups, such as \"app.slice/**\"; for all groups write \"**\"".into());
        }
        Glob::new(text)
    }

    /// Parses a pattern for the last part of a path: the name of a systemd unit.
    pub fn unit(text: &str) -> Result<Glob, String> {
        if text.is_empty() {
            return Err("expected the name of a unit, such as \"firefox.service\" or \"app-firefox-*.scope\"".into());
        }
        if text.contains('/') {
            return Err("a unit's name has no \"/\" in it; for a path write it as \"match\"".into());
        }
        if text == "**" {
            return Err("expected the name of a unit; \"*\" matches all units".into());
        }
        Glob::new(text)
    }

    /// Parses a pattern for the absolute path of a program: `/opt/**`.
    pub fn program(text: &str) -> Result<Glob, String> {
        match text.strip_prefix('/') {
            Some(path) if !path.is_empty() => Glob::new(path).map(|glob| Glob { text: text.into(), ..glob }),
            _ => Err("expected the path of a program, such as \"/usr/bin/gimp\" or \"/usr/lib/firefox/**\"".into()),
        }
    }

    fn new(text: &str) -> Result<Glob, String> {
        let mut parts = Vec::new();
        let mut stem = 0;
        for part in text.split('/') {
            match part {
                "" => return Err("there is nothing between two slashes".into()),
                "." | ".." => return Err(format!("a path must not contain \"{part}\"")),
                "**" if parts.last() == Some(&Part::AnyDepth) => {}
                "**" => parts.push(Part::AnyDepth),
                _ if part.contains(['*', '?', '[']) => {
                    if part.matches(['*', '?', '[']).count() > WILDCARDS {
                        return Err(format!("more than {WILDCARDS} wildcards between two slashes"));
                    }
                    parts.push(Part::Wild(glob::Pattern::new(part).map_err(|err| reason(part, &err))?));
                    if names_something(part) {
                        stem = parts.len();
                    }
                }
                _ => {
                    parts.push(Part::Literal(part.into()));
                    stem = parts.len();
                }
            }
        }
        Ok(Glob { text: text.into(), parts: parts.into(), literals: literals(text), stem })
    }

    /// Returns the pattern as the user wrote it, without the removed prefix.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns how specific the pattern is: the number of characters that are not wildcards.
    pub fn literals(&self) -> u32 {
        self.literals
    }

    /// Returns true if the pattern matches a path, given as its parts.
    pub fn matches(&self, path: &[Cow<'_, str>]) -> bool {
        matches(&self.parts, path)
    }

    /// Returns true if the pattern has no wildcard, so that it matches one path.
    pub fn is_literal(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// Returns true for a blanket pattern, which names no group: its last part is `*`, `**`, or
    /// only the kind of a unit, such as `*.service`.
    pub fn is_blanket(&self) -> bool {
        self.stem < self.parts.len()
    }

    /// Returns the last part that names something: `session.slice` in `**/session.slice/*`.
    pub fn naming_part(&self) -> Option<&str> {
        match self.parts.get(self.stem.checked_sub(1)?)? {
            Part::AnyDepth => None,
            Part::Literal(text) => Some(text),
            Part::Wild(pattern) => Some(pattern.as_str()),
        }
    }

    /// Returns true if the pattern names the group `path`, or a group above it with at least
    /// `depth` parts: the pattern without its blanket end matches that group.
    pub fn names(&self, path: &[Cow<'_, str>], depth: usize) -> bool {
        let stem = self.parts.get(..self.stem).unwrap_or_default();
        !stem.is_empty() && (depth..=path.len()).any(|n| path.get(..n).is_some_and(|path| matches(stem, path)))
    }

    /// Returns true if a path can match both patterns. Two `[...]` count as having a common
    /// character.
    pub fn meets(&self, other: &Glob) -> bool {
        meet(&self.items(), &other.items(), &|a, b| part_meets(a, b))
    }

    /// Returns true if a unit name that matches `unit` can be the last part of a path that matches
    /// this pattern.
    pub fn meets_unit(&self, unit: &Glob) -> bool {
        match (self.parts.last(), unit.parts.first()) {
            (Some(last), Some(unit)) => part_meets(last, unit),
            _ => false,
        }
    }

    fn items(&self) -> Vec<Item<&Part>> {
        let mut items = Vec::new();
        for (n, part) in self.parts.iter().enumerate() {
            if *part == Part::AnyDepth {
                if n + 1 == self.parts.len() {
                    items.push(Item::One(part));
                }
                items.push(Item::Many);
            } else {
                items.push(Item::One(part));
            }
        }
        items
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Returns the parts of a path, for [`Glob::matches`].
pub fn parts(path: &Path) -> Vec<Cow<'_, str>> {
    path.iter().filter(|part| *part != "/").map(|part| part.to_string_lossy()).collect()
}

/// Matches parts with a path. The first match is the best for everything before a `**`, so only the
/// last `**` is tried again.
fn matches(parts: &[Part], path: &[Cow<'_, str>]) -> bool {
    let (mut p, mut c) = (0, 0);
    let mut again = None;
    loop {
        match parts.get(p) {
            Some(Part::AnyDepth) if p + 1 == parts.len() => return c < path.len(),
            Some(Part::AnyDepth) => {
                p += 1;
                again = Some((p, c));
                continue;
            }
            Some(part) if path.get(c).is_some_and(|name| part.matches(name)) => {
                (p, c) = (p + 1, c + 1);
                continue;
            }
            None if c == path.len() => return true,
            _ => {}
        }
        match again {
            Some((after, from)) if from < path.len() => {
                (p, c) = (after, from + 1);
                again = Some((after, c));
            }
            _ => return false,
        }
    }
}

fn reason(part: &str, err: &glob::PatternError) -> String {
    if part.contains("**") {
        return format!("\"**\" must stand alone between slashes, but is in \"{}\"", part.escape_debug());
    }
    // The only other error is an unclosed bracket.
    let at = err.pos;
    format!("\"[\" without \"]\" at character {} of \"{}\"", at + 1, part.escape_debug())
}

/// An element of one part of a pattern.
enum Token<'a> {
    Char(char),
    One,
    Many,
    /// A character class, with its brackets.
    Class(&'a str),
}

fn tokens(part: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = part;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        tokens.push(match c {
            '*' => Token::Many,
            '?' => Token::One,
            '[' => {
                // A "]" right after the opening bracket stands for itself.
                let negated = rest[1..].starts_with('!');
                let first = 1 + usize::from(negated);
                let skip = rest[first..].chars().next().map_or(0, char::len_utf8);
                length = rest[first + skip..].find(']').map_or(rest.len(), |n| first + skip + n + 1);
                let class = &rest[..length];
                match class.strip_prefix('[').and_then(|c| c.strip_suffix(']')) {
                    // "[*]" stands for the character "*".
                    Some(inner) if !negated && inner.chars().count() == 1 => {
                        inner.chars().next().map_or(Token::One, Token::Char)
                    }
                    _ => Token::Class(class),
                }
            }
            _ => Token::Char(c),
        });
        rest = &rest[length..];
    }
    tokens
}

fn literals(text: &str) -> u32 {
    let count = tokens(text).iter().filter(|token| matches!(token, Token::Char(_))).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn names_something(part: &str) -> bool {
    const KINDS: [&str; 4] = [".service", ".scope", ".slice", ".*"];
    let part = KINDS.iter().find_map(|kind| part.strip_suffix(kind)).unwrap_or(part);
    literals(part) > 0
}

/// An element of a pattern: one `T`, or any number of anything.
enum Item<T> {
    One(T),
    Many,
}

/// Returns true if two patterns have a common sequence: reachability in their grid.
#[expect(clippy::indexing_slicing, reason = "both numbers are of a place in the grid")]
fn meet<T>(a: &[Item<T>], b: &[Item<T>], both: &dyn Fn(&T, &T) -> bool) -> bool {
    let width = b.len() + 1;
    let mut reached = vec![false; (a.len() + 1) * width];
    reached[0] = true;
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if !reached[i * width + j] {
                continue;
            }
            let (x, y) = (a.get(i), b.get(j));
            // "Many" stands for nothing, or for one element of the other pattern and itself again.
            if matches!(x, Some(Item::Many)) || matches!(y, Some(Item::Many)) {
                if x.is_some() {
                    reached[(i + 1) * width + j] = true;
                }
                if y.is_some() {
                    reached[i * width + j + 1] = true;
                }
            }
            if let (Some(Item::One(x)), Some(Item::One(y))) = (x, y)
                && both(x, y)
            {
                reached[(i + 1) * width + j + 1] = true;
            }
        }
    }
    reached.last() == Some(&true)
}

fn part_meets(a: &Part, b: &Part) -> bool {
    match (a, b) {
        (Part::AnyDepth, _) | (_, Part::AnyDepth) => true,
        (Part::Literal(text), part) | (part, Part::Literal(text)) => part.matches(text),
        (Part::Wild(a), Part::Wild(b)) => {
            let items = |pattern| -> Vec<Item<_>> {
                let one = |token| if matches!(token, Token::Many) { Item::Many } else { Item::One(token) };
                tokens(pattern).into_iter().map(one).collect()
            };
            meet(&items(a.as_str()), &items(b.as_str()), &|a, b| match (a, b) {
                (Token::Char(a), Token::Char(b)) => a == b,
                (Token::Class(class), Token::Char(c)) | (Token::Char(c), Token::Class(class)) => {
                    glob::Pattern::new(class).is_ok_and(|class| class.matches(c.encode_utf8(&mut [0; 4])))
                }
                _ => true,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matched(pattern: &str, path: &str) -> bool {
        Glob::path(pattern).expect(pattern).matches(&parts(Path::new(path)))
    }

    #[test]
    fn a_pattern_stays_within_its_part_and_two_stars_do_not() {
        for (pattern, path, expected) in [
            ("app.slice", "app.slice", true),
            ("/app.slice/", "app.slice", true),
            ("/sys/fs/cgroup/app.slice", "app.slice", true),
            ("app.slice", "app.slice/a.scope", false),
            ("app.slice/**", "app.slice", false),
            ("app.slice/**", "app.slice/a", true),
            ("app.slice/**", "app.slice/a/b/c", true),
            ("app.slice/*", "app.slice/a/b", false),
            ("**", "a", true),
            ("**", "a/b/c", true),
            ("**", "", false),
            ("**/**", "a", true),
            ("**/session.slice", "session.slice", true),
            ("user.slice/**/session.slice", "user.slice/user-0.slice/user@0.service/session.slice", true),
            ("user.slice/**/session.slice", "user.slice/a/session.slice/b", false),
            ("**/a/**/b/*", "a/x/a/y/b/b/z", true),
            ("**/a/**/b/*", "a/x/a/y/b", false),
            ("app-*.scope", "app-firefox-3121.scope", true),
            ("app-[0-9]?.scope", "app-12.scope", true),
            ("a b", "a b", true),
            ("a*b", "a\nb", true),
            (r"app-org.mozilla\x2dfirefox.scope", r"app-org.mozilla\x2dfirefox.scope", true),
        ] {
            assert_eq!(matched(pattern, path), expected, "{pattern} {path:?}");
        }
    }

    #[test]
    fn names_that_are_not_utf_8_are_matched_by_wildcards() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"a\xff b/c"));
        for pattern in ["a? b/c", "a*/c", "**", "a* b/*"] {
            assert!(Glob::path(pattern).expect(pattern).matches(&parts(path)), "{pattern}");
        }
        assert!(!Glob::path("a b/c").expect("a pattern").matches(&parts(path)));
    }

    #[test]
    fn invalid_patterns_are_refused_with_the_reason() {
        for (pattern, reason) in [
            ("", "for all groups"),
            ("/", "for all groups"),
            ("a//b", "between two slashes"),
            ("a/../b", "\"..\""),
            ("a**/b", "must stand alone"),
            ("***", "must stand alone"),
            ("a[b", "without \"]\" at character 2"),
            ("a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", "more than 16 wildcards"),
        ] {
            let err = Glob::path(pattern).expect_err(pattern);
            assert!(err.contains(reason), "{pattern}: {err}");
        }
        for (pattern, reason) in [("", "firefox.service"), ("a/b", "\"match\""), ("**", "\"*\"")] {
            let err = Glob::unit(pattern).expect_err(pattern);
            assert!(err.contains(reason), "{pattern}: {err}");
        }
    }

    #[test]
    fn the_pattern_of_a_program_begins_with_a_slash_and_keeps_it() {
        let glob = Glob::program("/opt/*/gimp").expect("a pattern");
        assert_eq!((glob.as_str(), format!("{glob:>13}").as_str()), ("/opt/*/gimp", "  /opt/*/gimp"));
        assert!(glob.matches(&parts(Path::new("/opt/a/gimp"))));
        let expected = "expected the path of a program, such as \"/usr/bin/gimp\" or \"/usr/lib/firefox/**\"";
        for text in ["/", "", "gimp"] {
            assert_eq!(Glob::program(text).map(|_| ()), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_pattern_without_wildcards_is_literal_and_its_last_named_part_is_known() {
        for (text, is_literal, naming) in [
            ("system.slice/cron.service", true, Some("cron.service")),
            ("system.slice/*", false, Some("system.slice")),
            ("**/session.slice/**", false, Some("session.slice")),
            ("app-*.scope", false, Some("app-*.scope")),
            ("**", false, None),
            ("*", false, None),
        ] {
            let glob = Glob::path(text).expect(text);
            assert_eq!((glob.is_literal(), glob.naming_part()), (is_literal, naming), "{text}");
        }
    }

    #[test]
    fn a_pattern_that_names_nothing_names_no_group() {
        let names = |pattern: &str| Glob::path(pattern).expect(pattern).names(&parts(Path::new("a/b")), 0);
        assert!(names("a/*") && names("a/b"));
        assert!(!names("*") && !names("**"));
    }

    #[test]
    fn a_bracket_right_after_the_opening_of_a_class_stands_for_itself() {
        for (text, letters) in [("[]a]x", 1), ("[!]a]xy", 2), ("[*]x", 2), ("[!*]x", 1)] {
            assert_eq!(literals(text), letters, "{text}");
        }
    }

    #[test]
    fn a_class_meets_its_own_characters_only() {
        let meet = |a: &str, b: &str| Glob::path(a).expect(a).meets(&Glob::path(b).expect(b));
        assert!(meet("[ab]*", "b*") && meet("b*", "[ab]*"));
        assert!(!meet("[ab]*", "c*") && !meet("c*", "[ab]*"));
    }

    #[test]
    fn literal_characters_count() {
        for (pattern, literals) in [("**", 0), ("a/**", 2), ("a[0-9]b?c*", 3), ("[*]", 1), ("[]]x", 2), ("[!a]", 0)] {
            assert_eq!(Glob::path(pattern).map(|glob| glob.literals()), Ok(literals), "{pattern}");
        }
    }

    #[test]
    fn a_blanket_pattern_names_nothing_in_its_last_part() {
        for (pattern, blanket) in [
            ("**", true),
            ("a/*", true),
            ("a/*.service", true),
            ("a/dbus*.service", false),
            ("a", false),
            ("*/a", false),
        ] {
            assert_eq!(Glob::path(pattern).map(|glob| glob.is_blanket()), Ok(blanket), "{pattern}");
        }
        let path = Path::new("user.slice/session.slice/x.service");
        for (pattern, names) in [
            ("user.slice/**", false),
            ("**", false),
            ("user.slice/session.slice/**", true),
            ("**/session.slice/*", true),
            ("**/x.service", true),
        ] {
            let glob = Glob::path(pattern).expect(pattern);
            assert!(glob.matches(&parts(path)), "{pattern}");
            assert_eq!(glob.names(&parts(path), 2), names, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_have_a_path_in_common_meet() {
        for (a, b, expected) in [
            ("a/*", "*/b", true),
            ("a/*", "b/*", false),
            ("a/**", "a", false),
            ("a/**", "**/b", true),
            ("**/a", "**/b", false),
            ("app-*.scope", "*-firefox.scope", true),
            ("app-*.scope", "*.service", false),
            ("a[0-4]*", "a[0-4]?", true),
            ("a[0-4]", "a7", false),
            ("a?c", "a*", true),
            ("x/**/y", "x/y", true),
        ] {
            let (a, b) = (Glob::path(a).expect(a), Glob::path(b).expect(b));
            assert_eq!(a.meets(&b), expected, "{a} {b}");
            assert_eq!(b.meets(&a), expected, "{b} {a}");
        }
        let unit = Glob::unit("app-*.scope").expect("a pattern");
        assert!(Glob::path("user.slice/**").expect("a pattern").meets_unit(&unit));
        assert!(!Glob::path("user.slice/*.service").expect("a pattern").meets_unit(&unit));
    }

    #[test]
    fn a_long_name_does_not_keep_the_matcher_busy() {
        let name = "a".repeat(255);
        let pattern = format!("{}b/x", "*a".repeat(14));
        let path = format!("{name}/x");
        let start = std::time::Instant::now();
        assert!(!matched(&pattern, &path));
        assert!(start.elapsed().as_secs() < 5);
    }

    proptest! {
        #[test]
        fn any_text_is_a_pattern_or_an_error(text in "[ab*?\\[\\]!/.-]{0,16}|\\PC{0,20}", path in "[ab/.]{0,16}") {
            if let Ok(glob) = Glob::path(&text) {
                let path = parts(Path::new(&path));
                let _ = (glob.matches(&path), glob.names(&path, 0), glob.meets(&glob), glob.is_blanket());
            }
            let _ = Glob::unit(&text);
        }

        /// The matcher by parts against the obvious one.
        #[test]
        fn two_stars_match_as_by_trying_everything(
            pattern in prop::collection::vec("a|b|\\*|\\*\\*", 1..6),
            path in prop::collection::vec("a|b", 0..7),
        ) {
            fn slow(pattern: &[String], path: &[String]) -> bool {
                match pattern.split_first() {
                    None => path.is_empty(),
                    Some((head, [])) if head == "**" => !path.is_empty(),
                    Some((head, [next, ..])) if head == "**" && next == "**" => slow(&pattern[1..], path),
                    Some((head, rest)) if head == "**" => (0..=path.len()).any(|n| slow(rest, &path[n..])),
                    Some((head, rest)) => {
                        path.split_first().is_some_and(|(name, path)| (head == "*" || head == name) && slow(rest, path))
                    }
                }
            }
            prop_assert_eq!(matched(&pattern.join("/"), &path.join("/")), slow(&pattern, &path));
        }

        #[test]
        fn globs_that_match_one_path_overlap(a in "[ab*?/]{1,6}", b in "[ab*?/]{1,6}", path in "[ab]{1,2}(/[ab]{1,2}){0,2}") {
            if let (Ok(a), Ok(b)) = (Glob::path(&a), Glob::path(&b)) {
                let path = parts(Path::new(&path));
                if a.matches(&path) && b.matches(&path) {
                    prop_assert!(a.meets(&b), "{} {}", a, b);
                }
            }
        }
    }
}
