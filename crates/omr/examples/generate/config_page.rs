//! omr.toml(5), from the commented defaults.
//!
//! The file is its own explanation: comments, then the key with its default behind a "#" without a
//! space. Here the comments become paragraphs, and keys the terms that they explain.

use anyhow::Result;
use clap_mangen::roff::{Roff, bold, roman};

const SYNOPSIS: [&str; 4] =
    ["/usr/lib/omr/omr.toml", "/etc/omr/omr.toml", "/etc/omr/conf.d/*.toml", "/run/omr-root/conf.d/*.toml"];

/// The page for the text of the file.
pub fn render(defaults: &str) -> Result<Vec<u8>> {
    let mut page = Roff::new();
    let source = concat!("omr ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["omr.toml", "5", "", source, "omr"]);
    page.control("SH", ["NAME"]).text([roman("omr.toml - configuration of omr")]);
    page.control("SH", ["SYNOPSIS"]);
    for file in SYNOPSIS {
        page.text([roman(file)]).control("br", []);
    }
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman("The first of these files holds the defaults and explains them. This page is made from it.")]);

    // The first line names the file.
    let lines: Vec<&str> = defaults.lines().skip(1).collect();
    for block in lines.split(|line| line.is_empty()).filter(|block| !block.is_empty()) {
        add_block(&mut page, block);
    }

    page.control("SH", ["SEE ALSO"]).text([bold("omr"), roman("(1), "), bold("omr-config"), roman("(1)")]);
    Ok(page.render().into_bytes())
}

/// A paragraph between two blank lines: text, then keys, a table's name or an example.
fn add_block(page: &mut Roff, block: &[&str]) {
    let text_ends = block.iter().position(|line| !is_text(line)).unwrap_or(block.len());
    let (text, rest) = block.split_at(text_ends);
    let text: Vec<&str> = text.iter().map(|line| line.trim_start_matches('#')).collect();
    match rest.first() {
        None => {
            add_heading(page, &text);
            add_text(page, &text);
        }
        Some(table) if table.starts_with('[') => {
            page.control("SH", [*table]);
            add_text(page, &text);
            // A key may follow the name at once.
            if rest.len() > 1 {
                add_block(page, &rest[1..]);
            }
        }
        Some(example) if example.starts_with("#[[") => {
            add_text(page, &text);
            page.control("PP", []).control("EX", []);
            for line in rest {
                page.text([roman(line.trim_start_matches('#'))]);
            }
            page.control("EE", []);
        }
        Some(_) => {
            for (n, key) in rest.iter().enumerate() {
                page.control(if n == 0 { "TP" } else { "TQ" }, []);
                let (name, value) = key[1..].split_once(" = ").unwrap_or_else(|| (&key[1..], ""));
                page.text([bold(name), roman(format!(" = {value}"))]);
            }
            // Paragraphs would end the term's indentation.
            page.text([roman(text.join(" ").split_whitespace().collect::<Vec<_>>().join(" "))]);
        }
    }
}

fn is_text(line: &str) -> bool {
    line == "#" || line.starts_with("# ")
}

/// "Rules for groups (cgroups)." over an empty line is the heading of what has no table's name.
fn add_heading(page: &mut Roff, text: &[&str]) {
    if let [first, "", ..] = text {
        for (words, heading) in [("Rules for groups", "[[group]]"), ("Rules for processes", "[[process]]")] {
            if first.contains(words) {
                page.control("SH", [heading]);
            }
        }
    }
}

/// Paragraphs; a line that begins with spaces, "word  explanation", is a term of a list.
fn add_text(page: &mut Roff, text: &[&str]) {
    page.control("PP", []);
    let mut in_term = false;
    for line in text {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        let term = line.split_once("  ").filter(|_| indent == 2);
        match term {
            _ if line.is_empty() => {
                in_term = false;
                page.control("PP", []);
            }
            Some((word, explanation)) => {
                in_term = true;
                page.control("TP", []).text([bold(word)]).text([roman(explanation.trim_start())]);
            }
            None => {
                if in_term && indent == 0 {
                    in_term = false;
                    page.control("PP", []);
                } else if in_term && line.starts_with('"') {
                    // One of several values, each on a line of its own.
                    page.control("br", []);
                }
                page.text([roman(line)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_key_of_the_program_and_no_other() {
        // What "omr config show" prints without any file; another test compares the two.
        let known = include_str!("../../tests/config/built-in.toml");
        let key = |line: &str| line.split_once(" = ").map(|(name, _)| name.to_owned());
        let mut known: Vec<String> = known.lines().filter_map(key).collect();
        let page = String::from_utf8(render(crate::DEFAULTS).expect("a page")).expect("text");
        let terms =
            page.lines().filter_map(|line| Some(line.strip_prefix("\\fB")?.split_once("\\fR = ")?.0.to_owned()));
        let mut terms: Vec<String> = terms.collect();
        known.sort();
        terms.sort();
        assert!(known.len() > 20, "{known:?}");
        assert_eq!(terms, known);
    }

    #[test]
    fn every_table_has_a_section_and_every_rules_key_a_term() {
        let page = String::from_utf8(render(crate::DEFAULTS).expect("a page")).expect("text");
        for table in crate::DEFAULTS.lines().filter(|line| line.starts_with('[')).chain(["[[group]]", "[[process]]"]) {
            assert!(page.contains(&format!(".SH {table}\n")), "{table} is missing: {page}");
        }
        for key in ["match", "unit", "class", "keep", "exe", "command", "group", "uid", "oom_score_adj"] {
            assert!(page.contains(&format!("\\fB{key}\\fR\n")), "{key} is missing: {page}");
        }
    }
}
