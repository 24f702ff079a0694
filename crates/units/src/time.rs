use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment on `CLOCK_MONOTONIC`, in nanoseconds. The clock never goes back. It stands still while
/// the machine is asleep, so that sleep is never mistaken for idle time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time since an earlier moment; zero where `earlier` is in fact later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Monotonic;
    fn add(self, time: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Monotonic {
    type Output = Monotonic;
    fn sub(self, time: Duration) -> Monotonic {
        Monotonic(self.0.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Whole milliseconds of a time, saturating.
pub fn millis(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_is_no_time_ago() {
        let (early, late) = (Monotonic(5), Monotonic(9));
        assert_eq!(late.since(early), Duration::from_nanos(4));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(early + Duration::MAX, Monotonic(u64::MAX));
        assert_eq!(early - Duration::MAX, Monotonic(0));
    }

    #[test]
    fn milliseconds_are_whole_and_saturate() {
        assert_eq!(millis(Duration::from_micros(2_999)), 2);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
