//! The groups that have metrics of their own: as many as the reader allows.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use omr_base::text::printable;
use omr_history::Sample;

/// The label of the machine.
pub const MACHINE: &str = "/";
/// The label of all groups without metrics of their own.
pub const OTHER: &str = "other";
/// The most characters of a label. A path may have 4,095.
const LONGEST: usize = 120;

/// The samples of one moment, by label.
#[derive(Debug, Default)]
pub struct Groups<'s> {
    /// The machine, then the largest groups.
    pub shown: Vec<(String, &'s Sample)>,
    /// The groups without metrics of their own that are below no other such group: each is counted
    /// once.
    pub others: Vec<&'s Sample>,
}

impl<'s> Groups<'s> {
    /// Chooses the largest groups of these samples, `most` at most.
    pub fn new(samples: &'s [Sample], most: usize) -> Self {
        let mut labels: BTreeSet<String> = [MACHINE, OTHER].map(str::to_owned).into();
        let mut groups = Groups::default();
        let mut by_size: Vec<&Sample> = samples.iter().collect();
        // A group is no smaller than those below it.
        by_size.sort_by_key(|sample| (Reverse(sample.current), sample.group.components().count()));
        let mut left = most;
        let mut others: Vec<&Sample> = Vec::new();
        for sample in by_size {
            if sample.group.as_os_str().is_empty() {
                groups.shown.insert(0, (MACHINE.to_owned(), sample));
                continue;
            }
            let label = label(&sample.group.to_string_lossy());
            // Two groups with one label would make the whole text wrong.
            if left > 0 && labels.insert(label.clone()) {
                left -= 1;
                groups.shown.push((label, sample));
            } else {
                others.push(sample);
            }
        }
        let paths: BTreeSet<_> = others.iter().map(|of| &*of.group).collect();
        let is_topmost = |of: &&Sample| !of.group.ancestors().skip(1).any(|above| paths.contains(above));
        groups.others = others.iter().copied().filter(is_topmost).collect();
        groups
    }
}

/// The path, printable, and cut where it is too long.
pub fn label(path: &str) -> String {
    let text = printable(path);
    if text.chars().count() <= LONGEST {
        return text;
    }
    let begin: String = text.chars().take(LONGEST - 9).collect();
    format!("{begin}~{:08x}", crc32fast::hash(path.as_bytes()))
}
