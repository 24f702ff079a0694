use core::fmt;
use core::str::FromStr;

use crate::{Bytes, PageSize, ParseError};

/// A limit of a group: a number of bytes, or `max` for no limit (`memory.high`, `memory.max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Limit {
    /// At most this many bytes.
    Bytes(Bytes),
    /// No limit.
    Max,
}

impl Limit {
    /// The limit as the kernel keeps it: in whole pages, rounded down.
    pub fn in_whole_pages(self, page: PageSize) -> Limit {
        match self {
            Limit::Bytes(bytes) => Limit::Bytes(Bytes(bytes.0 - bytes.0 % page.bytes().0)),
            Limit::Max => Limit::Max,
        }
    }
}

/// The kernel's form: digits or `max`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Bytes(bytes) => bytes.0.fmt(f),
            Limit::Max => f.pad("max"),
        }
    }
}

/// The kernel's form: digits or `max`, no unit.
impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.trim() {
            "max" => Ok(Limit::Max),
            digits => digits
                .parse()
                .map(|n| Limit::Bytes(Bytes(n)))
                .map_err(|_| ParseError::new(text, "a limit as the kernel writes it, bytes or \"max\"")),
        }
    }
}

/// The balance between anonymous and file memory in a reclaim request (`swappiness=` of
/// `memory.reclaim`): 0 means files only, 200 means anonymous memory first, `max` means anonymous
/// memory only (Linux 6.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Swappiness {
    /// 0 to 200.
    Value(u8),
    /// Anonymous memory only.
    Max,
}

impl Swappiness {
    /// File memory only: nothing is swapped out.
    pub const FILE_ONLY: Swappiness = Swappiness::Value(0);
    /// Anonymous memory as long as there is some: the largest number.
    pub const ANON_FIRST: Swappiness = Swappiness::Value(200);
}

impl fmt::Display for Swappiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Swappiness::Value(n) => n.fmt(f),
            Swappiness::Max => f.pad("max"),
        }
    }
}

impl FromStr for Swappiness {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "max" => Ok(Swappiness::Max),
            _ => match text.parse() {
                Ok(n @ 0..=200) => Ok(Swappiness::Value(n)),
                _ => Err(ParseError::new(text, "a swappiness: 0 to 200, or \"max\"")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_text() {
        assert_eq!("max\n".parse(), Ok(Limit::Max));
        assert_eq!("4096\n".parse(), Ok(Limit::Bytes(Bytes(4096))));
        assert!("".parse::<Limit>().is_err());
        assert!("-1".parse::<Limit>().is_err());
        assert!(Limit::Bytes(Bytes::MAX) < Limit::Max);
        assert_eq!("200".parse(), Ok(Swappiness::Value(200)));
        assert_eq!("max".parse(), Ok(Swappiness::Max));
        assert!("201".parse::<Swappiness>().is_err());
    }
}
