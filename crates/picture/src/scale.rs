//! Ticks of axes: round numbers of a unit, and times that people know.

use std::time::Duration;

use omr_base::when;
use omr_charts::{Unit, Window};

/// The most steps of an axis of values.
const MOST_STEPS: u64 = 5;

/// An axis of values from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    unit: Unit,
    step: u64,
    /// The value at the end.
    pub top: u64,
}

impl Axis {
    /// An axis that reaches this value, in at most so many steps.
    pub fn new(unit: Unit, largest: u64, most_steps: u64) -> Self {
        let most_steps = most_steps.clamp(1, MOST_STEPS);
        let largest = largest.max(1);
        let fits = |step: &u64| *step > 0 && largest.div_ceil(*step) <= most_steps;
        let step = match unit {
            Unit::Bytes => (0..64).map(|bit| 1u64 << bit).find(fits),
            Unit::Milliseconds => MILLISECONDS.into_iter().chain(decimal().map(days)).find(fits),
            Unit::Permyriad | Unit::PromotionRate => decimal().find(fits),
        };
        let step = step.unwrap_or(largest);
        Axis { unit, step, top: largest.div_ceil(step).saturating_mul(step) }
    }

    /// The ticks, from zero.
    pub fn ticks(self) -> impl Iterator<Item = u64> {
        (0..=self.top.div_ceil(self.step)).map(move |number| number.saturating_mul(self.step).min(self.top))
    }

    /// The text of a tick.
    pub fn text(self, value: u64) -> String {
        match self.unit {
            _ if value == 0 => "0".to_owned(),
            Unit::Bytes => bytes(value),
            Unit::Milliseconds => milliseconds(value),
            unit => unit.text(value).trim_end_matches("/min").to_owned(),
        }
    }

    /// The distance of a value from zero, on an axis of this length. A little is a pixel.
    pub fn length(self, value: u64, length: i32) -> i32 {
        const LITTLE: i32 = 10;
        if value == 0 || self.top == 0 {
            return 0;
        }
        let most = length.max(LITTLE);
        let part = u128::from(value.min(self.top)) * u128::from(most.unsigned_abs()) / u128::from(self.top);
        i32::try_from(part).unwrap_or(most).clamp(LITTLE, most)
    }
}

/// Steps of time.
const MILLISECONDS: [u64; 25] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    1_200_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000,
];

fn days(days: u64) -> u64 {
    days.saturating_mul(86_400_000)
}

/// 1, 2, 5, 10, 20, 50 and so on.
fn decimal() -> impl Iterator<Item = u64> {
    (0..19).map(|power| 10u64.pow(power)).flat_map(|power| [1, 2, 5].map(|of| power.saturating_mul(of)))
}

/// A size with as few digits as it needs: `1.25 GiB`.
fn bytes(value: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = value.max(1).ilog2() / 10;
    let name = usize::try_from(power).ok().and_then(|power| UNITS.get(power)).copied().unwrap_or("B");
    let hundredths = (u128::from(value) * 100) >> (10 * power);
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn milliseconds(value: u64) -> String {
    const LARGER: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")];
    let exact = LARGER.into_iter().find(|(of, _)| value.is_multiple_of(*of));
    match exact {
        Some((of, name)) => format!("{} {name}", value / of),
        None if value < 1000 => format!("{value} ms"),
        None => format!("{}.{} s", value / 1000, value % 1000 / 100),
    }
}

/// The ticks of the axis of time: second, and text.
pub fn times(window: Window, most: u64) -> Vec<(u64, String)> {
    const STEPS: [u64; 20] = [
        1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
        1_209_600, 2_419_200,
    ];
    let seconds = window.seconds();
    let fits = |step: &u64| seconds / step <= most.max(1);
    let step = STEPS.into_iter().find(fits).unwrap_or_else(|| (seconds / most.max(1)).max(1));
    let first = window.from.div_ceil(step);
    let ticks = (first..).map(|number| number.saturating_mul(step)).take_while(|time| *time < window.to);
    let text = |time: u64| {
        let text = when::text(Duration::from_secs(time));
        let (day, clock) = (text.get(5..10).unwrap_or_default(), text.get(11..).unwrap_or_default());
        let clock = clock.get(..if step < 60 { 8 } else { 5 }).unwrap_or_default();
        match time.is_multiple_of(86_400) {
            true => day.to_owned(),
            false => clock.to_owned(),
        }
    };
    // A window has as many ticks as fit, whatever its times are.
    let most = usize::try_from(most.saturating_add(1)).unwrap_or(usize::MAX);
    ticks.take(most).map(|time| (time, text(time))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_that_reach_the_largest_value() {
        let texts = |unit, largest| {
            let axis = Axis::new(unit, largest, 5);
            assert!(axis.top >= largest);
            axis.ticks().map(|tick| axis.text(tick)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts(Unit::Bytes, 1 << 30), "0 256 MiB 512 MiB 768 MiB 1 GiB");
        assert_eq!(texts(Unit::Bytes, 1_300_000_000), "0 256 MiB 512 MiB 768 MiB 1 GiB 1.25 GiB");
        assert_eq!(texts(Unit::Bytes, 3), "0 1 B 2 B 3 B");
        assert_eq!(texts(Unit::Milliseconds, 90), "0 20 ms 40 ms 60 ms 80 ms 100 ms");
        assert_eq!(texts(Unit::Milliseconds, 2200), "0 500 ms 1 s 1.5 s 2 s 2.5 s");
        assert_eq!(texts(Unit::Milliseconds, 7_000_000), "0 30 min 1 h 90 min 2 h");
        assert_eq!(texts(Unit::PromotionRate, 4000), "0 0.1 % 0.2 % 0.3 % 0.4 %");
        for unit in [Unit::Bytes, Unit::Milliseconds, Unit::Permyriad, Unit::PromotionRate] {
            for largest in [0, 1, u64::MAX / 2 + 1, u64::MAX] {
                let axis = Axis::new(unit, largest, 5);
                assert!(axis.ticks().count() <= 7 && axis.top >= largest, "{axis:?}");
                assert_eq!(axis.length(axis.top, 1000), 1000);
            }
        }
        let axis = Axis::new(Unit::Bytes, 1 << 40, 5);
        assert_eq!((axis.length(0, 1000), axis.length(1, 1000)), (0, 10), "a little is seen, and nothing is not");
    }

    #[test]
    fn times_are_those_that_people_know() {
        let of = |from: u64, seconds: u64| {
            let ticks = times(Window { from, to: from + seconds, columns: 9 }, 8);
            ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
        };
        // 2026-11-17 00:26:40
        let from = 1_794_875_200;
        assert_eq!(of(from, 7200), "00:30 00:45 01:00 01:15 01:30 01:45 02:00 02:15");
        assert_eq!(of(from, 604_800), "11-18 11-19 11-20 11-21 11-22 11-23 11-24");
        assert_eq!(of(from, 86_400), "03:00 06:00 09:00 12:00 15:00 18:00 21:00 11-18");
        assert_eq!(of(from, 5), "00:26:40 00:26:41 00:26:42 00:26:43 00:26:44");
        assert!(times(Window { from: 0, to: u64::MAX, columns: 1 }, 8).len() <= 9, "no number is too large");
    }
}
