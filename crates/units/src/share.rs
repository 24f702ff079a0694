use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::{ParseError, split_number};

/// A share in hundredths of a percent: `10_000` is the whole. A share may exceed the whole: two
/// busy CPUs are 200 % of one CPU. Text form: `12.5%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Permyriad(pub u32);

impl Permyriad {
    /// Nothing.
    pub const ZERO: Permyriad = Permyriad(0);
    /// The whole, 100 %.
    pub const ONE: Permyriad = Permyriad(10_000);

    /// `n` percent.
    pub const fn percent(n: u32) -> Self {
        Permyriad(n * 100)
    }

    /// `part / whole`, saturating; `None`: `whole` is zero.
    pub fn ratio(part: u64, whole: u64) -> Option<Self> {
        let share = (u128::from(part) * 10_000).checked_div(u128::from(whole))?;
        Some(Permyriad(u32::try_from(share).unwrap_or(u32::MAX)))
    }

    /// `part / whole` of two times, saturating; zero where `whole` is zero.
    pub fn of_time(part: Duration, whole: Duration) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Permyriad::ratio(nanos(part), nanos(whole)).unwrap_or(Permyriad::ZERO)
    }

    /// The difference to the whole, never below zero.
    pub fn rest(self) -> Self {
        Permyriad(10_000u32.saturating_sub(self.0))
    }

    /// The text form, with nothing rounded, such as `12.5%`. It parses back to the same share.
    pub fn exact(self) -> String {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        match rest {
            0 => format!("{whole}%"),
            _ if rest.is_multiple_of(10) => format!("{whole}.{}%", rest / 10),
            _ => format!("{whole}.{rest:02}%"),
        }
    }
}

/// Such as `71 %`, `0.4 %`, `12.5 %`: at most three digits, no zeros at the end.
impl fmt::Display for Permyriad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        if rest == 0 {
            write!(f, "{whole} %")
        } else if rest.is_multiple_of(10) || whole >= 10 {
            // Rounded to tenths, which may carry into the whole number.
            let tenths = self.0.saturating_add(5) / 10;
            if tenths.is_multiple_of(10) {
                write!(f, "{} %", tenths / 10)
            } else {
                write!(f, "{}.{} %", tenths / 10, tenths % 10)
            }
        } else {
            write!(f, "{whole}.{rest:02} %")
        }
    }
}

impl FromStr for Permyriad {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let err = || ParseError::new(text, "a share in percent, such as \"5%\" or \"0.1%\"");
        let (value, scale, unit) = split_number(text.trim()).ok_or_else(err)?;
        if unit != "%" {
            return Err(err());
        }
        let permyriad = u128::from(value) * 100 / u128::from(10u64.pow(scale));
        u32::try_from(permyriad).map(Permyriad).map_err(|_| err())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn percent_in_and_out() {
        for (text, value, shown) in [
            ("5%", 500, "5 %"),
            ("0.1%", 10, "0.1 %"),
            ("12.5 %", 1250, "12.5 %"),
            ("0.04%", 4, "0.04 %"),
            ("99.97%", 9997, "100 %"),
            ("200%", 20_000, "200 %"),
            // The value that a ratio saturates to.
            ("42949672.95%", u32::MAX, "42949672.9 %"),
        ] {
            assert_eq!(text.parse(), Ok(Permyriad(value)), "{text}");
            assert_eq!(Permyriad(value).to_string(), shown);
        }
        for text in ["5", "%", "", "five%", "-1%", "99999999999%"] {
            assert!(text.parse::<Permyriad>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_ratio_to_nothing_is_unknown() {
        assert_eq!(Permyriad::ratio(1, 0), None);
        assert_eq!(Permyriad::ratio(u64::MAX, 1), Some(Permyriad(u32::MAX)));
        assert_eq!(Permyriad(7_100).rest(), Permyriad(2_900));
        assert_eq!(Permyriad(17_100).rest(), Permyriad::ZERO);
    }

    #[test]
    fn a_share_of_time() {
        let second = Duration::from_secs(1);
        assert_eq!(Permyriad::of_time(Duration::from_millis(125), second), Permyriad(1250));
        assert_eq!(Permyriad::of_time(second, Duration::ZERO), Permyriad::ZERO);
        assert_eq!(Permyriad::of_time(Duration::MAX, Duration::from_nanos(1)), Permyriad(u32::MAX));
    }
}
