//! `/proc/crypto` (since 2.6): the algorithms that are registered with the kernel. Source:
//! crypto/proc.c.

use serde::Serialize;

use crate::Kernel;

/// Where an algorithm comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It is built into the kernel.
    BuiltIn,
    /// It is in a module, which is loaded now.
    Module,
    /// It is not registered: not built, or in a module that nobody has needed yet.
    NotLoaded,
}

/// Finds an algorithm by its name in the text of `/proc/crypto`. A built-in one counts before a
/// module of the same name.
///
/// Sample entry, one of many with an empty line after each: `name         : lz4`, `driver       :
/// lz4-generic`, `module       : kernel`, and further lines.
pub fn parse(text: &str, algorithm: &str) -> Origin {
    let mut found = Origin::NotLoaded;
    let mut is_it = false;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        match (key.trim(), value.trim()) {
            ("name", name) => is_it = name == algorithm,
            ("module", "kernel") if is_it => return Origin::BuiltIn,
            ("module", _) if is_it => found = Origin::Module,
            _ => {}
        }
    }
    found
}

/// Reads the origin of an algorithm. `None`: the file cannot be read.
pub fn read(kernel: &Kernel, algorithm: &str) -> Option<Origin> {
    Some(parse(&kernel.proc.read_string("crypto").ok()?, algorithm))
}
