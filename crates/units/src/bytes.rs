use alloc::format;
use alloc::string::String;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};
use core::str::FromStr;
use core::time::Duration;

use crate::{ParseError, Permyriad, split_number};

/// A number of bytes.
///
/// Text form: a number and a power of 1024, such as `512M`, `64MiB`, `1.5G` or `4096B`. Only `0`
/// needs no unit. `MB` and the like are refused, because many people read them as powers of 1000.
/// Arithmetic saturates: the difference to a counter that went back is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// The largest number; stands for "no limit".
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Bytes(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Bytes(n << 20)
    }

    /// A share of these bytes, rounded down.
    pub fn share(self, of: Permyriad) -> Self {
        Bytes(u64::try_from(u128::from(self.0) * u128::from(of.0) / 10_000).unwrap_or(u64::MAX))
    }

    /// These bytes as a share of `whole`; `None`: `whole` is zero.
    pub fn share_of(self, whole: Bytes) -> Option<Permyriad> {
        let permyriad = (u128::from(self.0) * 10_000).checked_div(u128::from(whole.0))?;
        Some(Permyriad(u32::try_from(permyriad).unwrap_or(u32::MAX)))
    }

    /// Bytes per second, where these bytes took `time`; `None`: no time passed.
    pub fn per_second(self, time: Duration) -> Option<Bytes> {
        let rate = (u128::from(self.0) * 1_000_000_000).checked_div(time.as_nanos())?;
        Some(Bytes(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// The time that these bytes take at a rate; `None`: the rate is zero, or the time does not fit
    /// into 64 bits of nanoseconds.
    pub fn time_at(self, per_second: Bytes) -> Option<Duration> {
        let nanos = (u128::from(self.0) * 1_000_000_000).checked_div(u128::from(per_second.0))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// The text form in the largest unit that loses nothing, such as `64MiB` or `1536KiB`. It
    /// parses back to the same number.
    pub fn exact(self) -> String {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return format!("{}{unit}", self.0 >> shift);
            }
        }
        if self == Bytes::ZERO { "0".into() } else { format!("{}B", self.0) }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

/// Three significant digits and a binary unit: `1.43 GiB`, `12.0 MiB`, `312 KiB`, `17 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LARGER: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut name = "B";
        // In hundredths of the current unit, rounded half up.
        let mut hundredths = u128::from(self.0) * 100;
        for (unit, larger) in (1u32..).zip(LARGER) {
            // From 999.5 on, which would print as "1000", the next unit is used.
            if hundredths < 99_950 {
                break;
            }
            name = larger;
            hundredths = (u128::from(self.0) * 100 + (1u128 << (10 * unit - 1))) >> (10 * unit);
        }
        let text = if name == "B" {
            format!("{} {name}", self.0)
        } else if hundredths >= 9_995 {
            format!("{} {name}", (hundredths + 50) / 100)
        } else if hundredths >= 1_000 {
            let tenths = (hundredths + 5) / 10;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        } else {
            format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let expected = "a size: a number and K, M, G or T (powers of 1024), such as \"64MiB\" or \"512M\"";
        let err = || ParseError::new(text, expected);
        let (value, scale, unit) = split_number(text.trim()).ok_or_else(err)?;
        let shift = match unit {
            "" if value == 0 => 0,
            "B" => 0,
            "k" | "K" | "Ki" | "KiB" => 10,
            "m" | "M" | "Mi" | "MiB" => 20,
            "g" | "G" | "Gi" | "GiB" => 30,
            "t" | "T" | "Ti" | "TiB" => 40,
            _ => return Err(err()),
        };
        let bytes = (u128::from(value) << shift) / u128::from(10u64.pow(scale));
        u64::try_from(bytes).map(Bytes).map_err(|_| err())
    }
}

/// The size of a page, as `sysconf(_SC_PAGESIZE)` gives it. It is passed in, as not every machine
/// has pages of 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct PageSize(u32);

impl PageSize {
    /// A page size in bytes; `None`: it is not a power of two of at least 512.
    pub fn new(bytes: u32) -> Option<Self> {
        (bytes.is_power_of_two() && bytes >= 512).then_some(PageSize(bytes))
    }

    /// The size of one page.
    pub fn bytes(self) -> Bytes {
        Bytes(u64::from(self.0))
    }
}

/// A number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Pages(pub u64);

impl Pages {
    /// These pages in bytes, saturating.
    pub fn bytes(self, page: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(u64::from(page.0)))
    }
}

impl Sub for Pages {
    type Output = Pages;
    fn sub(self, other: Pages) -> Pages {
        Pages(self.0.saturating_sub(other.0))
    }
}

impl Add for Pages {
    type Output = Pages;
    fn add(self, other: Pages) -> Pages {
        Pages(self.0.saturating_add(other.0))
    }
}

/// An amount to reclaim: `512M`, `25%` of the memory of a group, or `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Amount {
    /// This many bytes.
    Bytes(Bytes),
    /// This share of the memory that the target has when the work begins.
    Share(Permyriad),
    /// As much as possible.
    Max,
}

impl Amount {
    /// The amount in bytes for a target with `current` bytes of memory.
    pub fn of(self, current: Bytes) -> Bytes {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Share(share) => current.share(share),
            Amount::Max => current,
        }
    }

    /// The text form, with nothing rounded. It parses back to the same amount.
    pub fn exact(self) -> String {
        match self {
            Amount::Bytes(bytes) => bytes.exact(),
            Amount::Share(share) => share.exact(),
            Amount::Max => "max".into(),
        }
    }
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "max" {
            return Ok(Amount::Max);
        }
        let err = |_| ParseError::new(text, "an amount: \"512M\", \"25%\" or \"max\"");
        if text.ends_with('%') {
            let share: Permyriad = text.parse().map_err(err)?;
            if share > Permyriad::ONE {
                return Err(ParseError::new(text, "an amount: a share cannot be above 100%"));
            }
            return Ok(Amount::Share(share));
        }
        text.parse().map(Amount::Bytes).map_err(err)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => bytes.fmt(f),
            Amount::Share(share) => share.fmt(f),
            Amount::Max => f.pad("max"),
        }
    }
}

/// A number of bytes per day or per hour: `20GiB/day`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Budget {
    /// The bytes that may be used in that time.
    pub bytes: Bytes,
    /// The time in hours: 1 or 24.
    pub hours: u32,
}

impl Budget {
    /// The text form, with nothing rounded. It parses back to the same budget.
    pub fn exact(self) -> String {
        format!("{}/{}", self.bytes.exact(), self.period())
    }

    fn period(self) -> &'static str {
        if self.hours == 24 { "day" } else { "hour" }
    }
}

impl FromStr for Budget {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let err = || ParseError::new(text, "an allowance, such as \"20GiB/day\" or \"1GiB/hour\"");
        let (bytes, period) = text.split_once('/').ok_or_else(err)?;
        let hours = match period.trim() {
            "day" => 24,
            "hour" => 1,
            _ => return Err(err()),
        };
        Ok(Budget { bytes: bytes.parse().map_err(|_| err())?, hours })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bytes, self.period())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("1B", 1),
            ("4K", 4096),
            ("4 KiB", 4096),
            ("64MiB", 64 << 20),
            ("512m", 512 << 20),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("0.001M", 1048),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn a_number_without_unit_is_refused_with_an_example() {
        for text in ["64", "", "M", "64MB", "64 mb", "-1M", "1..5G", "1.G", ".5G", "1e3", "99999999999T", "1 M x", "٣M"]
        {
            let err = text.parse::<Bytes>().expect_err(text);
            assert!(err.to_string().contains("64MiB"), "{err}");
        }
    }

    #[test]
    fn three_digits_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (17, "17 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1024, "1.00 KiB"),
            (1536 << 20, "1.50 GiB"),
            (312 << 20, "312 MiB"),
            (12 << 20, "12.0 MiB"),
            (1023 << 20, "1.00 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn amounts() {
        assert_eq!("max".parse(), Ok(Amount::Max));
        assert_eq!("25%".parse(), Ok(Amount::Share(Permyriad(2500))));
        assert_eq!("512M".parse(), Ok(Amount::Bytes(Bytes::mib(512))));
        assert_eq!(Amount::Share(Permyriad(2500)).of(Bytes(1000)), Bytes(250));
        for text in ["", "all", "512", "101%", "-5%", "%", "Max"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
    }

    #[test]
    fn budgets() {
        assert_eq!("20GiB/day".parse(), Ok(Budget { bytes: Bytes(20 << 30), hours: 24 }));
        assert_eq!("1G/hour".parse::<Budget>().map(|b| b.to_string()), Ok("1.00 GiB/hour".into()));
        for text in ["20GiB", "20/day", "20GiB/week", "/day"] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_gives_a_time_and_a_time_a_rate() {
        assert_eq!(Bytes::mib(50).time_at(Bytes::mib(25)), Some(Duration::from_secs(2)));
        assert_eq!(Bytes::mib(50).per_second(Duration::from_secs(2)), Some(Bytes::mib(25)));
        assert_eq!((Bytes(1).time_at(Bytes::ZERO), Bytes::MAX.time_at(Bytes(1))), (None, None));
    }

    #[test]
    fn exact_text_uses_the_largest_unit_that_loses_nothing() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1B"),
            (1 << 10, "1KiB"),
            (1536 << 10, "1536KiB"),
            (64 << 20, "64MiB"),
            (3 << 40, "3TiB"),
            ((1 << 20) + 1, "1048577B"),
        ] {
            assert_eq!(Bytes(bytes).exact(), text);
        }
        assert_eq!(Budget { bytes: Bytes(20 << 30), hours: 24 }.exact(), "20GiB/day");
        assert_eq!(Budget { bytes: Bytes::mib(1), hours: 1 }.exact(), "1MiB/hour");
        assert_eq!((Amount::Max.exact(), Amount::Share(Permyriad(1250)).exact()), ("max".into(), "12.5%".into()));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Amount>();
            let _ = text.parse::<Budget>();
        }

        /// Display keeps three digits, so what it prints parses to within half a percent.
        #[test]
        fn display_parses_back_to_within_half_a_percent(n in 1024u64..1 << 50) {
            let Ok(Bytes(back)) = Bytes(n).to_string().replace(' ', "").parse() else {
                // "0.98 KiB" and PiB have no short form worth testing here.
                return Ok(());
            };
            prop_assert!(back.abs_diff(n) <= n / 200 + 6, "{n} -> {back}");
        }

        #[test]
        fn exact_text_parses_back_to_the_same(bytes: u64, share in 0u32..=10_000, more: u32, day: bool) {
            prop_assert_eq!(Bytes(bytes).exact().parse(), Ok(Bytes(bytes)));
            prop_assert_eq!(Permyriad(more).exact().parse(), Ok(Permyriad(more)));
            for amount in [Amount::Bytes(Bytes(bytes)), Amount::Share(Permyriad(share)), Amount::Max] {
                prop_assert_eq!(amount.exact().parse(), Ok(amount));
            }
            let budget = Budget { bytes: Bytes(bytes), hours: if day { 24 } else { 1 } };
            prop_assert_eq!(budget.exact().parse(), Ok(budget));
        }

        #[test]
        fn a_share_is_never_more_than_the_whole(n: u64, share in 0u32..=10_000) {
            prop_assert!(Bytes(n).share(Permyriad(share)) <= Bytes(n));
        }
    }
}
