use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::{Bytes, ParseError};

/// Bytes per second, never zero. Text form: a size and `/s`, such as `100MiB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(Bytes);

impl Rate {
    /// This many bytes in each second; `None`: zero bytes.
    pub fn per_second(bytes: Bytes) -> Option<Self> {
        (bytes > Bytes::ZERO).then_some(Rate(bytes))
    }

    /// The time that these bytes take; the longest duration of 64 bits of nanoseconds where it is
    /// longer.
    pub fn time_for(self, bytes: Bytes) -> Duration {
        let nanos = u128::from(bytes.0) * 1_000_000_000 / u128::from(self.0.0.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let size = text.trim().strip_suffix("/s").and_then(|size| size.parse().ok());
        let expected = "a rate: a size and /s (powers of 1024), such as \"100MiB/s\" or \"50M/s\"";
        size.and_then(Rate::per_second).ok_or_else(|| ParseError::new(text, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_size_per_second() {
        assert_eq!("100MiB/s".parse::<Rate>().ok(), Rate::per_second(Bytes::mib(100)));
        assert_eq!("1.5K/s".parse::<Rate>().ok(), Rate::per_second(Bytes(1536)));
        for text in ["", "/s", "0/s", "100", "100M", "100MB/s", "M/s", "-1M/s", "1M/m"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn time_is_bytes_by_rate() {
        let rate: Rate = "4M/s".parse().expect("a rate");
        assert_eq!(rate.time_for(Bytes::mib(1)), Duration::from_millis(250));
        assert_eq!(rate.time_for(Bytes::ZERO), Duration::ZERO);
        assert_eq!("1B/s".parse::<Rate>().expect("a rate").time_for(Bytes::MAX), Duration::from_nanos(u64::MAX));
    }
}
