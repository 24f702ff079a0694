//! The promise that a threshold keeps: how many promotions a group may have.

use core::fmt;
use core::time::Duration;

use omr_units::{Bytes, Permyriad};
use serde::{Deserialize, Serialize};

use super::grid::Step;

/// A page of zswap is back after this time (half of all pages, ASPLOS'19).
const FAST: Duration = Duration::from_micros(6);

/// Promotions per minute, in millionths of the working set: `2_000` is 0.2 % per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromotionRate(pub u32);

impl PromotionRate {
    /// 0.2 % of the working set per minute: Google's objective for memory that is back in 6 us.
    pub const FAST: PromotionRate = PromotionRate(2_000);
    /// 0.02 % of the working set per minute: no device is so slow that less is allowed.
    pub const FLOOR: PromotionRate = PromotionRate(200);

    /// This rate for a device on which one page is back after `swap_in`: lower by the same factor
    /// by which the device is slower than 6 us, but not below [`PromotionRate::FLOOR`]. A faster
    /// device does not raise it. `None`: the time is unknown, which counts as slow.
    pub fn for_device(self, swap_in: Option<Duration>) -> PromotionRate {
        let floor = PromotionRate::FLOOR.min(self);
        let Some(swap_in) = swap_in else { return floor };
        let scaled = u128::from(self.0) * FAST.as_nanos() / swap_in.max(FAST).as_nanos();
        PromotionRate(u32::try_from(scaled).unwrap_or(u32::MAX)).max(floor)
    }
}

/// Such as `0.2 %/min`, with nothing rounded.
impl fmt::Display for PromotionRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut rest, mut digits) = (self.0 / 10_000, self.0 % 10_000, 4);
        if rest == 0 {
            return write!(f, "{whole} %/min");
        }
        while rest.is_multiple_of(10) {
            (rest, digits) = (rest / 10, digits - 1);
        }
        write!(f, "{whole}.{rest:0digits$} %/min")
    }
}

/// The service level objective of one group, and the bounds of its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slo {
    /// P: the promotions that are allowed. Scaled by device, see [`PromotionRate::for_device`].
    pub promotions: PromotionRate,
    /// K: the share of time in which a shorter threshold must have kept P before it is used.
    pub kept: Permyriad,
    /// How long a group is only observed at first.
    pub warm_up: Duration,
    /// The shortest threshold.
    pub least: Step,
    /// The longest threshold, at which a group begins.
    pub most: Step,
    /// The size of a page.
    pub page: Bytes,
}

impl Slo {
    /// The promotions that are allowed, in whole KiB, where the working set in KiB times the
    /// milliseconds is `work`.
    pub fn allowed(&self, work: u128) -> u64 {
        // A minute in milliseconds, times the millionths of a rate.
        const MILLION_MINUTES: u64 = 60_000 * 1_000_000;
        let product = work.saturating_mul(u128::from(self.promotions.0));
        match u64::try_from(product) {
            // Nearly always: a division of 128 bits took 4 % of the time of a replay.
            Ok(product) => product / MILLION_MINUTES,
            Err(_) => u64::try_from(product / u128::from(MILLION_MINUTES)).unwrap_or(u64::MAX),
        }
    }
}

impl Default for Slo {
    /// 0.2 %/min in 98 % of the time, after a warm-up of 10 min, between 2 min and 8 h, with pages
    /// of 4 KiB.
    fn default() -> Self {
        Slo {
            promotions: PromotionRate::FAST,
            kept: Permyriad::percent(98),
            warm_up: Duration::from_secs(600),
            least: Step::LEAST,
            most: Step::MOST,
            page: Bytes::kib(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_goes_on_where_the_product_leaves_64_bits() {
        let slo = Slo { promotions: PromotionRate(1_000_000), ..Slo::default() };
        // 100 % of the working set in a minute: the last work whose product has 64 bits, and the next.
        let last = u128::from(u64::MAX / 1_000_000);
        for work in [0, 59_999, 60_000, last, last + 1, 60_000 * last] {
            assert_eq!(u128::from(slo.allowed(work)), work / 60_000, "{work}");
        }
        assert_eq!(slo.allowed(u128::MAX), u64::MAX);
    }
}
