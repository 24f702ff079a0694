//! Text as real kernels print it, one directory for each release under `captured/`.
//!
//! The lab captures the files: `python3 -m omrlab capture`. `proc/` and `sys/` are the machine's
//! files, and `group/` has the files of one busy cgroup.

use std::path::{Component, Path};

const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/captured.rs"));

/// A kernel release with captured files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12's 6.1: memory.reclaim without keys, MGLRU built but off.
    V6_1,
    /// Debian 12's 6.12: memory.reclaim with `swappiness=`, MGLRU on.
    V6_12,
    /// The newest 7.x of Debian 13's backports: `pgscan_proactive` and similar counters,
    /// `swappiness=max`.
    V7,
}

impl Release {
    /// Every release, oldest first.
    pub const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7];

    /// Name of the release's directory under `captured/`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7 => "7",
        }
    }

    /// Every captured file below `prefix`, with its path relative to `prefix`.
    pub fn files(self, prefix: &str) -> impl Iterator<Item = (&'static Path, &'static [u8])> {
        let prefix = Path::new(self.name()).join(prefix);
        FILES.iter().filter_map(move |&(path, bytes)| {
            let path = Path::new(path).strip_prefix(&prefix).ok()?;
            matches!(path.components().next(), Some(Component::Normal(_))).then_some((path, bytes))
        })
    }
}

/// The text of one captured file, e.g. `captured(Release::V6_12, "proc/meminfo")` or
/// `"group/memory.stat"`.
///
/// # Panics
/// Panics if no file was captured under this path: the test is wrong.
pub fn captured(release: Release, path: &str) -> &'static str {
    let wanted = Path::new(release.name()).join(path);
    let (_, bytes) = FILES
        .iter()
        .find(|(path, _)| Path::new(path) == wanted)
        .unwrap_or_else(|| panic!("nothing captured as {}", wanted.display()));
    std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{}: {error}", wanted.display()))
}
