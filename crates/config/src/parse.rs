//! Parses the text of one file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use omr_base::text::printable;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::draft::Draft;
use crate::glob::Glob;
use crate::problem::Problem;
use crate::process::{self, PROCESS_KEYS, ProcessRule};
use crate::rules::{GroupRule, Place, Selector};
use crate::schema::{self, GROUP_KEYS, KEYS, TABLES};

/// The limit for rules. More are a mistake, and would cost memory and time.
const RULES_LIMIT: usize = 1000;

/// The number of characters of a wrong value that are shown.
const SHOWN: usize = 60;

/// Adds the values of a file to the draft, and its mistakes to the problems.
pub(super) fn parse(file: &Arc<Path>, text: &str, draft: &mut Draft, problems: &mut Vec<Problem>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { file, text, draft, problems: Vec::new() };
    let mut structure = true;
    let mut wrong_lines = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or_default();
        let here = reader.place(span.start);
        wrong_lines.push(here.line);
        let raw = shown(text.get(span.clone()).unwrap_or_default());
        let message = match error.message() {
            m if m.starts_with("string values must be quoted") && raw.is_empty() => "a value is missing".to_owned(),
            m if m.starts_with("string values must be quoted") => {
                format!("{raw}: text must be in quotes: \"{}\"", raw.trim_matches('"'))
            }
            "duplicate key" => format!("{raw}: occurs twice in this file"),
            m => {
                structure = false;
                format!("not TOML: {}", printable(m))
            }
        };
        reader.problems.push(Problem::at(&here, message));
    }
    // After an unclosed bracket the structure is unknown, so further errors would mislead.
    if structure {
        let before = reader.problems.len();
        reader.top(table.get_ref());
        let mut rest = reader.problems.split_off(before);
        rest.retain(|problem| !problem.line.is_some_and(|line| wrong_lines.contains(&line)));
        reader.problems.append(&mut rest);
    }
    problems.append(&mut reader.problems);
}

struct Reader<'a> {
    file: &'a Arc<Path>,
    text: &'a str,
    draft: &'a mut Draft,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn place(&self, offset: usize) -> Place {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|&&c| c == b'\n').count();
        Place { file: self.file.clone(), line: u32::try_from(line).unwrap_or(u32::MAX) }
    }

    fn problem(&mut self, span: Range<usize>, text: impl Into<String>) {
        let place = self.place(span.start);
        self.problems.push(Problem::at(&place, text));
    }

    /// `idle.for = 30: a duration needs a unit, e.g. "30s"`
    fn wrong_value(&mut self, name: &str, key: Range<usize>, value: &Spanned<DeValue<'_>>, expected: &str) {
        // The span of a table is its header, which does not help here.
        let raw = if value.get_ref().is_table() { "" } else { self.text.get(value.span()).unwrap_or_default() };
        let equals = if raw.is_empty() { String::new() } else { format!(" = {}", shown(raw)) };
        self.problem(key, format!("{name}{equals}: {expected}"));
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = &**key.get_ref();
            if name == "group" {
                let expected = "group: write [[group]], and \"match\" and \"class\" in the lines below";
                self.rules(name, key.span(), value, expected, Reader::group, |draft| &mut draft.groups);
            } else if name == "process" {
                let expected = "process: write [[process]], and \"exe\" and \"class\" in the lines below";
                self.rules(name, key.span(), value, expected, Reader::process, |draft| &mut draft.processes);
            } else if TABLES.contains(&name) {
                match value.get_ref() {
                    DeValue::Table(table) => self.table(name, table),
                    _ => {
                        let expected = format!("this is a table: write [{name}], and its keys in the lines below");
                        self.wrong_value(name, key.span(), value, &expected);
                    }
                }
            } else {
                self.scalar("", name, key.span(), value);
            }
        }
    }

    fn table(&mut self, table: &str, content: &DeTable<'_>) {
        for (key, value) in content {
            self.scalar(table, key.get_ref(), key.span(), value);
        }
    }

    fn scalar(&mut self, table: &str, name: &str, span: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let full = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
        let place = self.place(span.start);
        let mut keys = KEYS.iter().zip(&mut self.draft.origins);
        let Some((key, origin)) = keys.find(|(key, _)| key.table == table && key.name == name) else {
            let hint = hint(table, name);
            self.problem(span, format!("{}: unknown key{hint}", shown(&full)));
            return;
        };
        match key.set(&mut self.draft.settings, value.get_ref()) {
            Ok(()) => *origin = Some(place),
            Err(expected) => self.wrong_value(&full, span, value, &expected),
        }
    }

    fn rules<T>(
        &mut self,
        name: &str,
        span: Range<usize>,
        value: &Spanned<DeValue<'_>>,
        expected: &str,
        read: fn(&mut Self, Range<usize>, &DeTable<'_>) -> Option<T>,
        list: fn(&mut Draft) -> &mut Vec<T>,
    ) {
        let DeValue::Array(rules) = value.get_ref() else {
            self.problem(span, format!("{name}: write [[{name}]], with two brackets on each side"));
            return;
        };
        for rule in rules {
            let DeValue::Table(table) = rule.get_ref() else {
                self.problem(rule.span(), expected);
                continue;
            };
            if list(self.draft).len() >= RULES_LIMIT {
                self.problem(rule.span(), format!("{name}: there are more than {RULES_LIMIT} of them"));
                return;
            }
            let before = self.problems.len();
            let read = read(self, rule.span(), table);
            if self.problems.len() == before {
                list(self.draft).extend(read);
            }
        }
    }

    /// Gives each key of a rule to `read`, which returns `None` for an unknown one. Returns true if
    /// all keys are known and all values right.
    fn keys(
        &mut self,
        rule: &str,
        keys: &[&'static str],
        table: &DeTable<'_>,
        mut read: impl FnMut(&str, Range<usize>, &DeValue<'_>) -> Option<Result<(), String>>,
    ) -> bool {
        let mut sound = true;
        for (key, value) in table {
            let name = &**key.get_ref();
            let full = format!("{rule}.{name}");
            match read(name, key.span(), value.get_ref()) {
                Some(Ok(())) => continue,
                Some(Err(expected)) => self.wrong_value(&full, key.span(), value, &expected),
                None => self.unknown_key(key.span(), &full, name, keys),
            }
            sound = false;
        }
        sound
    }

    fn process(&mut self, span: Range<usize>, table: &DeTable<'_>) -> Option<ProcessRule> {
        let mut class = None;
        let (mut exe, mut command, mut group, mut uid, mut oom_score_adj) = (None, None, None, None, None);
        let sound = self.keys("process", &PROCESS_KEYS, table, |name, _, value| {
            Some(match name {
                "exe" => process::parse_exe(value).map(|glob| exe = Some(glob)),
                "command" => process::parse_command(value).map(|pattern| command = Some(pattern)),
                "group" => process::parse_group(value).map(|glob| group = Some(glob)),
                "uid" => process::parse_uid(value).map(|number| uid = Some(number)),
                "oom_score_adj" => process::parse_adj(value).map(|range| oom_score_adj = Some(range)),
                "class" => schema::word(value, &schema::CLASSES).map(|word| class = schema::parse_class(word)),
                _ => return None,
            })
        });
        // The missing key may be the misspelt one.
        if !sound {
            return None;
        }
        let names = exe.is_some() || command.is_some() || group.is_some() || uid.is_some() || oom_score_adj.is_some();
        if !names {
            let needs = "\"exe\", \"command\", \"group\", \"uid\" or \"oom_score_adj\"";
            self.problem(span.clone(), format!("process: needs {needs}, to name the processes"));
        }
        let Some(class) = class else {
            self.problem(span, "process: needs \"class\", to say what omr may do");
            return None;
        };
        Some(ProcessRule { exe, command, group, uid, oom_score_adj, class, place: self.place(span.start) })
    }

    /// Adds a problem for an unknown key, with the key that was probably meant, or all keys.
    fn unknown_key(&mut self, span: Range<usize>, full: &str, name: &str, keys: &[&'static str]) {
        let hint = match (schema::meant(name, keys.iter().copied()), keys.split_last()) {
            (Some(meant), _) => format!("; did you mean \"{meant}\"?"),
            (None, Some((last, others))) => format!("; there are {} and {last}", others.join(", ")),
            (None, None) => String::new(),
        };
        self.problem(span, format!("{}: unknown key{hint}", shown(full)));
    }

    fn group(&mut self, span: Range<usize>, table: &DeTable<'_>) -> Option<GroupRule> {
        let mut selectors = Vec::new();
        let (mut class, mut enforce, mut keep, mut older_than) = (None, false, None, None);
        let sound = self.keys("group", &GROUP_KEYS, table, |name, span, value| {
            Some(match name {
                "match" | "unit" => selector(name, value).map(|selector| selectors.push((selector, span.start))),
                "class" => schema::word(value, &schema::CLASSES).map(|word| class = schema::parse_class(word)),
                "enforce" => schema::parse_switch(value).map(|on| enforce = on),
                "keep" => schema::parse_amount(value, "20%").map(|amount| keep = Some(amount)),
                "older_than" => schema::parse_age(value).map(|age| older_than = Some(age)),
                _ => return None,
            })
        });
        // The missing key may be the misspelt one.
        if !sound {
            return None;
        }
        selectors.sort_by_key(|(_, offset)| *offset);
        let mut selectors = selectors.into_iter();
        let Some((selector, offset)) = selectors.next() else {
            self.problem(span, "group: needs \"match\" or \"unit\", to name the groups");
            return None;
        };
        if let Some((_, offset)) = selectors.next() {
            self.problem(offset..offset, "group: has \"match\" and \"unit\"; make two rules of it");
        }
        if class.is_none() && enforce {
            self.problem(span, "group: \"enforce\" is about \"class\", which is missing");
        } else if class.is_none() && keep.is_none() && older_than.is_none() {
            self.problem(span, "group: needs \"class\", \"keep\" or \"older_than\", to say what omr must do");
        }
        Some(GroupRule { selector, class, enforce, keep, older_than, place: self.place(offset) })
    }
}

fn selector(name: &str, value: &DeValue<'_>) -> Result<Selector, String> {
    let text = match value {
        DeValue::String(text) => &**text,
        _ => "",
    };
    if name == "unit" { Glob::unit(text).map(Selector::Unit) } else { Glob::path(text).map(Selector::Match) }
}

/// Returns `; did you mean "class"?`, or an empty text.
fn hint(table: &str, name: &str) -> String {
    let here = KEYS.iter().filter(|key| key.table == table).map(|key| key.name);
    let tables = TABLES.into_iter().chain(["group", "process"]).filter(|_| table.is_empty());
    if let Some(meant) = schema::meant(name, here.chain(tables)) {
        return format!("; did you mean \"{meant}\"?");
    }
    let elsewhere: Vec<_> = KEYS.iter().filter(|key| key.name == name).collect();
    if elsewhere.iter().any(|key| key.table.is_empty()) {
        return format!("; \"{name}\" belongs above the first [table]");
    }
    if elsewhere.is_empty() {
        return String::new();
    }
    let names: Vec<String> = elsewhere.iter().map(|key| format!("\"{}\"", key.full_name())).collect();
    format!("; did you mean {}?", names.join(" or "))
}

/// Returns the text shortened and safe to print.
fn shown(raw: &str) -> String {
    let raw = raw.trim();
    match raw.char_indices().nth(SHOWN) {
        Some((end, _)) => printable(&raw[..end]) + "...",
        None => printable(raw),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        parse(&Arc::from(Path::new("f")), text, &mut Draft::default(), &mut problems);
        problems.sort_by_key(|problem| problem.line);
        problems.iter().map(ToString::to_string).collect()
    }

    fn assert_errors<const N: usize>(cases: [(&str, &str); N]) {
        for (text, expected) in cases {
            let found = errors(text);
            assert_eq!(found, [expected], "{text:?}");
            assert!(!found[0].contains(char::is_control), "{found:?}");
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line_and_what_to_write() {
        assert_errors([
            ("[idle]\nfor = 30", "f:2: idle.for = 30: a duration needs a unit, e.g. \"30s\""),
            ("idle.for = '30'", "f:1: idle.for = '30': a duration needs a unit, e.g. \"30s\""),
            ("idle.for = 0", "f:1: idle.for = 0: a duration needs a unit, e.g. \"30s\""),
            ("idle.for = true", "f:1: idle.for = true: a duration is needed, e.g. \"30s\""),
            (
                "idle.for = 'soon'",
                "f:1: idle.for = 'soon': not a duration; write numbers with ms, s, m, h or d, e.g. \"30s\"",
            ),
            ("\ngoal = 'all'", "f:2: goal = 'all': must be \"auto\", \"free\" or \"hibernate\""),
            ("idle.for = '2d'", "f:1: idle.for = '2d': must be between \"1s\" and \"1day\""),
            ("idle.free = 75", "f:1: idle.free = 75: a share needs a percent sign, e.g. \"75%\""),
            ("idle.free = '175%'", "f:1: idle.free = '175%': must be between \"5%\" and \"100%\""),
            ("sweep.step = 4", "f:1: sweep.step = 4: a size needs a unit, e.g. \"4MiB\""),
            (
                "sweep.step = '4MB'",
                "f:1: sweep.step = '4MB': not a size: units are powers of 1024, so write \"MiB\" for \"MB\"",
            ),
            (
                "sweep.step = '4 apples'",
                "f:1: sweep.step = '4 apples': not a size; write a number with KiB, MiB, GiB or TiB, e.g. \"4MiB\"",
            ),
            ("sweep.step = '64K'", "f:1: sweep.step = '64K': must be between \"128KiB\" and \"64MiB\""),
            ("stop.sample = '1s'", "f:1: stop.sample = '1s': must be between \"5ms\" and \"50ms\""),
            ("guard.swap_floor = 10", "f:1: guard.swap_floor = 10: a size or share needs a unit, e.g. \"10%\""),
            ("guard.swap_floor = '101%'", "f:1: guard.swap_floor = '101%': a share cannot be above \"100%\""),
            (
                "guard.swap_floor = 'max'",
                "f:1: guard.swap_floor = 'max': a size or a share is needed; for all memory write \"100%\"",
            ),
            (
                "guard.max_swap_writes = '20GiB'",
                "f:1: guard.max_swap_writes = '20GiB': an allowance is needed, e.g. \"20GiB/day\" or \"1GiB/hour\", or \"unlimited\"",
            ),
            ("mode = 'atc'", "f:1: mode = 'atc': must be \"act\", \"observe\" or \"record\""),
            (
                "backend = 'high'",
                "f:1: backend = 'high': must be \"auto\", \"memory.reclaim\", \"memory.swap.reclaim\" or \"memory.high\"",
            ),
        ]);
    }

    #[test]
    fn an_unknown_key_is_named_with_the_one_that_was_meant() {
        assert_errors([
            ("\n\nidel = 1", "f:3: idel: unknown key; did you mean \"idle\"?"),
            ("[sweeps]\nx = 1", "f:1: sweeps: unknown key; did you mean \"sweep\"?"),
            ("[sweep]\nafter-boot = '1m'", "f:2: sweep.after-boot: unknown key; did you mean \"after_boot\"?"),
            ("[idle]\nmode = 'act'", "f:2: idle.mode: unknown key; \"mode\" belongs above the first [table]"),
            ("window = '1s'", "f:1: window: unknown key; did you mean \"idle.window\" or \"stop.window\"?"),
            ("[idle]\nbanana = 1", "f:2: idle.banana: unknown key"),
        ]);
    }

    #[test]
    fn a_table_in_the_place_of_a_key_is_named() {
        assert_errors([
            ("idle = 3", "f:1: idle = 3: this is a table: write [idle], and its keys in the lines below"),
            ("[idle.for]", "f:1: idle.for: a duration is needed, e.g. \"30s\""),
        ]);
    }

    #[test]
    fn mistakes_in_a_rule_for_groups_are_named() {
        assert_errors([
            ("[group]\nmatch = 'a'", "f:1: group: write [[group]], with two brackets on each side"),
            ("group = [1]", "f:1: group: write [[group]], and \"match\" and \"class\" in the lines below"),
            ("[[group]]\nmatch = 'a'\nclas = 'foreground'", "f:3: group.clas: unknown key; did you mean \"class\"?"),
            (
                "[[group]]\nfoo = 1",
                "f:2: group.foo: unknown key; there are match, unit, class, enforce, keep and older_than",
            ),
            ("\n[[group]]\nclass = 'background'", "f:2: group: needs \"match\" or \"unit\", to name the groups"),
            (
                "[[group]]\nmatch = 'a'",
                "f:1: group: needs \"class\", \"keep\" or \"older_than\", to say what omr must do",
            ),
            (
                "[[group]]\nmatch = 'a'\nolder_than = 120",
                "f:3: group.older_than = 120: a duration needs a unit, e.g. \"2m\", or \"auto\"",
            ),
            (
                "[[group]]\nmatch = 'a'\nolder_than = 'old'",
                "f:3: group.older_than = 'old': not a duration; write numbers with ms, s, m, h or d, e.g. \"2m\", or \"auto\"",
            ),
            (
                "[[group]]\nmatch = 'a'\nolder_than = '3s'",
                "f:3: group.older_than = '3s': must be between \"4s\" and \"1day\", or \"0s\" for memory of any age, or \"auto\"",
            ),
            (
                "[[group]]\nmatch = 'a'\nolder_then = '2m'",
                "f:3: group.older_then: unknown key; did you mean \"older_than\"?",
            ),
            (
                "[[group]]\nunit = 'a'\nkeep = '1M'\nmatch = 'b'",
                "f:4: group: has \"match\" and \"unit\"; make two rules of it",
            ),
            (
                "[[group]]\nmatch = 'a'\nclass = 'fore'",
                "f:3: group.class = 'fore': must be \"foreground\", \"background\" or \"protected\"",
            ),
            (
                "[[group]]\nmatch = 'a'\nclass = 'background'\nenforce = 'true'",
                "f:4: group.enforce = 'true': must be true or false, without quotes",
            ),
            (
                "[[group]]\nmatch = 'a'\nkeep = '1M'\nenforce = true",
                "f:1: group: \"enforce\" is about \"class\", which is missing",
            ),
            ("[[group]]\nmatch = 'a'\nkeep = 64", "f:3: group.keep = 64: a size or share needs a unit, e.g. \"20%\""),
            (
                "[[group]]\nmatch = 'a[b'\nkeep = '64M'",
                "f:2: group.match = 'a[b': \"[\" without \"]\" at character 2 of \"a[b\"",
            ),
            (
                "[[group]]\nunit = 'a/b'\nkeep = '64M'",
                "f:2: group.unit = 'a/b': a unit's name has no \"/\" in it; for a path write it as \"match\"",
            ),
        ]);
    }

    #[test]
    fn mistakes_in_a_rule_for_processes_are_named() {
        assert_errors([
            ("[process]\nexe = '/a'", "f:1: process: write [[process]], with two brackets on each side"),
            ("process = [1]", "f:1: process: write [[process]], and \"exe\" and \"class\" in the lines below"),
            (
                "[[process]]\nclass = 'background'",
                "f:1: process: needs \"exe\", \"command\", \"group\", \"uid\" or \"oom_score_adj\", to name the processes",
            ),
            ("[[process]]\nexe = '/a'", "f:1: process: needs \"class\", to say what omr may do"),
            ("[[process]]\nexec = '/a'", "f:2: process.exec: unknown key; did you mean \"exe\"?"),
            (
                "[[process]]\nbanana = '/a'",
                "f:2: process.banana: unknown key; there are exe, command, group, uid, oom_score_adj and class",
            ),
            (
                "[[process]]\nexe = 'firefox'\nclass = 'background'",
                "f:2: process.exe = 'firefox': expected the path of a program, such as \"/usr/bin/gimp\" or \"/usr/lib/firefox/**\"",
            ),
            (
                "[[process]]\nexe = '/a/../b'\nclass = 'background'",
                "f:2: process.exe = '/a/../b': a path must not contain \"..\"",
            ),
            (
                "[[process]]\ncommand = ''\nclass = 'background'",
                "f:2: process.command = '': a pattern for the whole command line is needed, e.g. \"*--type=renderer*\"",
            ),
            (
                "[[process]]\ncommand = '*a*b*c*d*'\nclass = 'background'",
                "f:2: process.command = '*a*b*c*d*': more than 4 wildcards",
            ),
            (
                "[[process]]\nuid = 'me'\nclass = 'background'",
                "f:2: process.uid = 'me': the number of a user is needed, e.g. 1000",
            ),
            (
                "[[process]]\nuid = -1\nclass = 'background'",
                "f:2: process.uid = -1: the number of a user is needed, e.g. 1000",
            ),
            (
                "[[process]]\noom_score_adj = '0..1001'\nclass = 'background'",
                "f:2: process.oom_score_adj = '0..1001': numbers from -1000 to 1000 are needed, e.g. \"200..1000\" or \"300..\"",
            ),
            (
                "[[process]]\noom_score_adj = '5..2'\nclass = 'background'",
                "f:2: process.oom_score_adj = '5..2': the lower number comes first",
            ),
            (
                "[[process]]\nexe = '/a'\nclass = 'back'",
                "f:3: process.class = 'back': must be \"foreground\", \"background\" or \"protected\"",
            ),
        ]);
    }

    #[test]
    fn text_that_is_not_toml_is_named_with_its_line() {
        assert_errors([
            ("mode = 'act'\nmode = 'act'", "f:2: mode: occurs twice in this file"),
            ("[idle]\nfree = 75%", "f:2: 75%: text must be in quotes: \"75%\""),
            ("[idle]\nfree =", "f:2: a value is missing"),
            ("[idle\nfree = '75%'", "f:1: not TOML: unclosed table, expected `]`"),
        ]);
        // The parser has more to say about this text.
        let found = errors("a\u{1b}[31m = 1");
        assert!(found.iter().any(|error| error.starts_with("f:1: not TOML")), "{found:#?}");
        assert!(found.iter().all(|error| !error.contains(char::is_control)), "{found:?}");
    }

    #[test]
    fn all_mistakes_of_a_file_are_found() {
        let found = errors("mode = 1\n[idle]\nfor = 30\nfree = 75%\n[[group]]\nclass = 'x'\n[sweep]\nstpe = 1\n");
        let lines: Vec<&str> = found.iter().filter_map(|error| error.split(':').nth(1)).collect();
        assert_eq!(lines, ["1", "3", "4", "6", "8"], "{found:#?}");
    }

    #[test]
    fn line_ends_of_other_systems_and_a_byte_order_mark_are_fine() {
        assert_eq!(errors("\u{feff}mode = 'act'\r\n[idle]\r\nfor = '1m'\r\n"), [""; 0]);
        assert_eq!(errors("\u{feff}\r\nmode = 'no'\r\n")[0].split(':').nth(1), Some("2"));
    }

    #[test]
    fn a_long_wrong_value_is_cut() {
        assert!(errors(&format!("mode = '{}'", "x".repeat(10_000)))[0].len() < 200);
        assert!(errors(&format!("{} = 1", "x".repeat(10_000)))[0].len() < 200);
    }

    #[test]
    fn too_many_rules_are_one_mistake() {
        let text = "[[group]]\nmatch = 'a'\nclass = 'background'\n".repeat(RULES_LIMIT + 5);
        assert_eq!(errors(&text), ["f:3001: group: there are more than 1000 of them"]);
    }

    #[test]
    fn each_key_of_a_process_names_processes_by_itself() {
        for key in [
            "exe = '/usr/bin/gimp'",
            "command = '*--type=renderer*'",
            "group = 'app.slice/**'",
            "uid = 1000",
            "oom_score_adj = 300",
            "oom_score_adj = '..0'",
            "oom_score_adj = '-1000..1000'",
        ] {
            assert_eq!(errors(&format!("[[process]]\n{key}\nclass = 'background'")), [""; 0], "{key}");
        }
        let none = errors("[[process]]\nclass = 'background'");
        assert!(none.len() == 1 && none[0].contains("to name the processes"), "{none:?}");
    }

    #[test]
    fn numbers_that_no_user_and_no_process_has_are_refused() {
        for key in [
            // The kernel's word for nobody at all.
            "uid = 4294967295",
            "uid = -1",
            "uid = '1000'",
            "oom_score_adj = 1001",
            "oom_score_adj = '..'",
            "oom_score_adj = '300..200'",
            "oom_score_adj = '0..1001'",
        ] {
            assert_eq!(errors(&format!("[[process]]\n{key}\nclass = 'background'")).len(), 1, "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}|[a-z\\[\\]=\"'.#\n0-9 {},%]{0,120}") {
            errors(&text);
        }

        #[test]
        fn no_value_makes_it_panic(
            table in "|idle|stop|sweep|guard|hints|group|process",
            key in "for|mode|step|match|unit|keep|older_than|class|max_swap_writes|exe|command|uid|oom_score_adj|\\PC{0,6}",
            value in "[0-9a-z\"'\\[\\]{}=.%-]{0,20}",
        ) {
            errors(&format!("[{table}]\n{key} = {value}\n"));
            errors(&format!("[[{table}]]\n{key} = {value}\n"));
            errors(&format!("{table}.{key} = \"{value}\"\n"));
        }
    }

    #[test]
    fn no_change_of_a_configuration_makes_it_panic() {
        let files = [
            include_str!("../../omr/tests/config/built-in.toml"),
            include_str!("../../../packaging/usr-lib-omr.toml"),
            "[[group]]\nmatch = 'a/*'\nclass = 'foreground'\nolder_than = 'auto'\nkeep = '10%'\nenforce = true\n\
             [[process]]\nexe = '/usr/bin/*'\nuid = 1000\nclass = 'background'\noom_score_adj = '>300'\n",
        ];
        omr_testkit::fuzz::feed(&files, |text| drop(errors(&String::from_utf8_lossy(text))));
    }
}
