//! Quantities with a unit, how they are read from text, and how they are printed. A number of bytes
//! is a [`Bytes`], a share is a [`Permyriad`]: no function of omr takes a bare `u64` where a unit
//! belongs.
//!
//! Everything here is a pure value: no I/O, no clock, no floating point.
#![no_std]
#![deny(clippy::indexing_slicing)]
extern crate alloc;

mod bytes;
mod limit;
mod rate;
mod share;
mod time;

pub use bytes::{Amount, Budget, Bytes, PageSize, Pages};
pub use limit::{Limit, Swappiness};
pub use rate::Rate;
pub use share::Permyriad;
pub use time::{Monotonic, millis};

use core::fmt;

/// Identity of a group: the inode number of its directory.
///
/// A new group does not get the inode number of a group that was just removed, as cgroup2 gives out
/// 64-bit ids in sequence. The 16-bit memory-cgroup id of 6.x kernels is reused sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text is not a quantity. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    text: alloc::string::String,
    expected: &'static str,
}

impl ParseError {
    fn new(text: &str, expected: &'static str) -> Self {
        ParseError { text: text.into(), expected }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not {}", self.text.escape_debug(), self.expected)
    }
}

impl core::error::Error for ParseError {}

/// Splits a text into a decimal number ("1.5", "64") and the unit after it. The number is given as
/// an integer and a power of ten to divide it by. `None`: the text does not begin with a number, or
/// the number does not fit into 64 bits.
fn split_number(text: &str) -> Option<(u64, u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let scale = u32::try_from(fraction.len()).ok().filter(|&n| n <= 6)?;
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let value = whole.checked_mul(10u64.pow(scale))?.checked_add(fraction)?;
    Some((value, scale, rest.trim_start()))
}
