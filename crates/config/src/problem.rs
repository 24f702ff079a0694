//! Mistakes in configuration files, with file and line.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use omr_base::text::printable;

use crate::rules::Place;

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) file: Arc<Path>,
    pub(crate) line: Option<u32>,
    pub(crate) text: String,
}

impl Problem {
    /// Makes a mistake that concerns a whole file.
    pub fn of_file(file: &Path, text: impl Into<String>) -> Problem {
        Problem { file: file.into(), line: None, text: text.into() }
    }

    /// Makes a mistake in the line at `place`.
    pub fn at(place: &Place, text: impl Into<String>) -> Problem {
        Problem { file: place.file.clone(), line: Some(place.line), text: text.into() }
    }
}

/// `/etc/omr/conf.d/desktop.toml:14: group.clas: unknown key; did you mean "class"?`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file.to_string_lossy()))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// All mistakes of all files, in the order of the files and their lines. At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub(crate) Vec<Problem>);

impl Errors {
    /// What is wrong, without the places.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|problem| problem.text.as_str())
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
