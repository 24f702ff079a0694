//! Quantities with a unit. A number that means bytes is a [`Bytes`], a share is a [`Permyriad`]:
//! no function of omr takes a bare `u64` where a unit belongs.
//!
//! Everything here is a pure value: no I/O, no clock, no floating point.
#![no_std]
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
pub use time::Monotonic;

use core::fmt;

/// Identity of a control group: the inode number of its directory.
///
/// Unlike the 16-bit memory-cgroup id of 6.x kernels, an inode number is not handed out again
/// right after a group is removed (cgroup2 gives out 64-bit ids in sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not a quantity; the message says what to write instead.
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

/// Splits a decimal number ("1.5", "64") from what follows it, as an integer and a power of ten.
/// `None` when there is no digit in front or the number does not fit 64 bits.
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
