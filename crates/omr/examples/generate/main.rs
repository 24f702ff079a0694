//! Makes manual pages and completions from the definition of the command line and the commented
//! defaults. `generate DIR` fills `DIR/man` and `DIR/completions`. This is an example, so that the
//! shipped program does not contain the libraries for it.

mod config_page;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

const DEFAULTS: &str = include_str!("../../../../packaging/usr-lib-omr.toml");
/// The parts that the definition of the command line lacks: files, exit codes, privileges.
const MORE: &str = include_str!("../../../../packaging/man/omr.1.in");

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).context("usage: generate DIR")?;
    let man = dir.join("man");
    let completions = dir.join("completions");
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    let pages = pages(&omr::command())?.into_iter().chain([("omr.toml.5".into(), config_page::render(DEFAULTS)?)]);
    for (name, page) in pages {
        write(&man.join(name), &page)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut omr::command(), "omr", &completions)?;
    }
    Ok(())
}

fn write(path: &Path, data: &[u8]) -> Result<()> {
    fs::write(path, data).with_context(|| format!("write {}", path.display()))
}

/// File name and text of omr(1) and of a page for each command.
fn pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>> {
    // omr help has no page of its own.
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![("omr.1".into(), page(&command, |out| Ok(out.write_all(MORE.as_bytes())?))?)];
    add_subcommands(&command, &mut pages)?;
    Ok(pages)
}

fn add_subcommands(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = sub.get_display_name().unwrap_or_else(|| sub.get_name()).to_owned();
        let text = page(sub, |out| {
            writeln!(
                out,
                ".SH \"EXIT STATUS\"\nAs in \\fBomr\\fR(1).\n.SH \"SEE ALSO\"\n\\fBomr\\fR(1), \\fBomr.toml\\fR(5)"
            )?;
            Ok(())
        })?;
        pages.push((format!("{name}.1"), text));
        add_subcommands(sub, pages)?;
    }
    Ok(())
}

fn page(command: &Command, end: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Vec<u8>> {
    let source = concat!("omr ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("omr");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    end(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_command() {
        let pages = pages(&omr::command()).expect("pages");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["omr.1", "omr-daemon.1", "omr-config.1", "omr-config-check.1"] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        for (name, text) in &pages {
            let text = String::from_utf8(text.clone()).expect("text");
            assert!(text.contains(".SH NAME") && text.contains("SEE ALSO"), "{name}: {text}");
        }
    }

    #[test]
    fn a_page_has_the_long_help() {
        let pages = pages(&omr::command()).expect("pages");
        for name in ["omr-web.1", "omr-watch.1"] {
            let (_, text) = pages.iter().find(|(of, _)| of == name).expect("a page");
            let text = String::from_utf8(text.clone()).expect("text");
            assert!(text.contains("Exit codes: 0 done"), "{text}");
        }
    }

    #[test]
    fn the_exit_codes_of_the_page_are_those_of_the_program() {
        let source = include_str!("../../../base/src/exit.rs");
        let codes: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_suffix(',')?.split_once(" => "))
            .map(|(_, n)| n)
            // omr run passes on what its command ended with.
            .filter(|n| n.parse::<u8>().is_ok())
            .collect();
        assert!(codes.len() >= 5, "{codes:?}");
        let status = MORE.split(".SH ").find(|section| section.starts_with("\"EXIT STATUS\"")).expect("a section");
        let listed: Vec<&str> = status.lines().filter_map(|line| line.strip_prefix(".B ")).collect();
        assert_eq!(listed, codes);
    }
}
