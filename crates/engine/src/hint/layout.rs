//! The identity of a layout, by which a hint is cancelled when the process has changed its mappings
//! since a dry run.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;

use omr_kernel::maps::{Layout, Mapping};
use omr_kernel::process::Process;
use omr_kernel::ranges::Ranges;
use serde::{Serialize, Serializer};

/// A hash of the process and of what it has mapped at some addresses. Only the same program makes
/// the same hash again. It is not for use across versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutId(u64);

impl LayoutId {
    /// Returns the identity of a layout at these addresses; `None`: at all addresses. What is mapped
    /// elsewhere does not count, nor where the mappings go on beyond these addresses.
    pub fn of(process: &Process, layout: &Layout, within: Option<&Ranges>) -> Self {
        let mut hasher = DefaultHasher::new();
        // Another process may get the pid, and a copy of a process has the same mappings.
        (process.stat().pid, process.stat().starttime).hash(&mut hasher);
        for mapping in layout.mappings() {
            let mut add = |part: &Range<u64>| hash_part(mapping, part, &mut hasher);
            match within {
                Some(within) => within.within(&mapping.range).as_slice().iter().for_each(add),
                None => add(&mapping.range),
            }
        }
        LayoutId(hasher.finish())
    }
}

fn hash_part(mapping: &Mapping, part: &Range<u64>, hasher: &mut DefaultHasher) {
    (part.start, part.end, mapping.shared).hash(hasher);
    std::mem::discriminant(&mapping.backing).hash(hasher);
    let place = mapping.file.map(|file| (file.device, file.inode, file.offset.wrapping_sub(mapping.range.start)));
    place.hash(hasher);
}

impl fmt::Display for LayoutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for LayoutId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(LayoutId).ok_or("expected the 16 digits that a dry run of the same command prints as its layout")
    }
}

impl Serialize for LayoutId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The layout that a process must have.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The addresses that count; `None`: all.
    pub within: Option<Ranges>,
    /// Their layout; `None`: any.
    pub layout: Option<LayoutId>,
}

impl Expected {
    /// Returns true if the process has changed its mappings. Reads them only if a layout is
    /// expected. A process that is gone has not changed them: the next call tells.
    pub fn is_changed(&self, process: &Process) -> omr_kernel::Result<bool> {
        let Some(expected) = self.layout else { return Ok(false) };
        match Layout::read(process.dir()) {
            Ok(layout) => Ok(LayoutId::of(process, &layout, self.within.as_ref()) != expected),
            Err(err) if err.is_gone() => Ok(false),
            Err(err) => Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_read_as_it_is_printed_and_in_no_other_form() {
        let id = LayoutId(0x00ab_cdef_0123_4567);
        assert_eq!((id.to_string().as_str(), "00abcdef01234567".parse()), ("00abcdef01234567", Ok(id)));
        assert_eq!(serde_json::to_value(id).expect("JSON"), "00abcdef01234567");
        for text in ["", "abcdef01234567", "000abcdef01234567", "00abcdef0123456g", "+0abcdef01234567"] {
            text.parse::<LayoutId>().expect_err(text);
        }
    }
}
