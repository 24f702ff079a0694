//! The configuration: plain values from files in layers, each with the place where it is written.
//!
//! Without any file omr uses the built-in defaults. Every mistake in every file is reported, with
//! file and line, before any value is used.

#![deny(clippy::indexing_slicing)]

mod draft;
mod glob;
mod layers;
mod loaded;
mod parse;
mod problem;
mod process;
mod profile;
mod rules;
mod schema;

use std::path::Path;
use std::sync::Arc;

use omr_base::exit::Exit;

use self::draft::Draft;
pub use self::glob::{Glob, parts};
pub use self::loaded::Loaded;
pub use self::problem::{Errors, Problem};
pub use self::process::ProcessRule;
pub use self::profile::Profile;
pub use self::rules::{BackendChoice, Cloud, GroupRule, Place, Provider, Selector};
pub use self::schema::{KEYS, TABLES, age_text, parse_class, time_text};

/// Loads the configuration of the system whose root directory is `root`, or of one `file` alone.
pub fn load(root: &Path, file: Option<&Path>) -> Result<Loaded, Errors> {
    let mut problems = Vec::new();
    let sources = match file {
        Some(file) => vec![Arc::from(file)],
        None => layers::find(root, &mut problems),
    };
    let mut draft = Draft::default();
    let mut files = Vec::new();
    for source in &sources {
        match layers::read(source, file.is_some()) {
            Ok(Some(text)) => {
                parse::parse(source, &text, &mut draft, &mut problems);
                files.push(source.to_path_buf());
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let order = |file: &Path| sources.iter().position(|source| **source == *file);
    draft.check_combinations(&order, &mut problems);
    if problems.is_empty() {
        return Ok(draft.finish(files));
    }
    // A directory that cannot be listed is no source, so its problem comes first.
    problems.sort_by_key(|problem| (order(&problem.file), problem.line));
    Err(Errors(problems))
}

/// Reads a text as the only file of a configuration. `source`: its name, for mistakes.
pub fn read_text(source: &Path, text: &str) -> Result<Loaded, Errors> {
    let (mut draft, mut problems) = (Draft::default(), Vec::new());
    parse::parse(&Arc::from(source), text, &mut draft, &mut problems);
    draft.check_combinations(&|_| Some(0), &mut problems);
    if problems.is_empty() { Ok(draft.finish(Vec::new())) } else { Err(Errors(problems)) }
}

/// As [`load`], for a command: mistakes give an error with exit code 2.
pub fn load_or_refuse(root: &Path, file: Option<&Path>) -> anyhow::Result<Loaded> {
    load(root, file).map_err(|errors| Exit::Usage.error(errors.to_string()))
}

/// Returns the rules for groups in a text; for tests.
#[cfg(any(test, feature = "testing"))]
pub fn rules(text: &str) -> Vec<GroupRule> {
    draft(text).groups
}

/// Returns the rules for processes in a text; for tests.
#[cfg(any(test, feature = "testing"))]
pub fn process_rules(text: &str) -> Vec<ProcessRule> {
    draft(text).processes
}

#[cfg(any(test, feature = "testing"))]
fn draft(text: &str) -> Draft {
    let mut draft = Draft::default();
    let mut problems = Vec::new();
    parse::parse(&Arc::from(Path::new("/etc/omr/omr.toml")), text, &mut draft, &mut problems);
    assert_eq!(problems, []);
    draft
}

#[cfg(any(test, feature = "testing"))]
impl Loaded {
    /// Returns the configuration without any file.
    pub fn built_in() -> Loaded {
        Draft::default().finish(Vec::new())
    }
}

#[cfg(test)]
mod tests;
