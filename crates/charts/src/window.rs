//! The times of a chart, cut into columns.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

/// The times of a chart, in seconds since 1970, cut into columns of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The first second.
    pub from: u64,
    /// The second after the last one.
    pub to: u64,
    /// The number of columns, at least one.
    pub columns: usize,
}

/// A sample after the window tells about the time before it, which may be in the window.
const LATER: u64 = 3600;

impl Window {
    /// A window of this length that ends at `to`. There is never a column of less than a second.
    pub fn ending(to: Duration, length: Duration, columns: usize) -> Self {
        let (to, length) = (to.as_secs().saturating_add(1), length.as_secs().max(1));
        let most = usize::try_from(length).unwrap_or(usize::MAX);
        Window { from: to.saturating_sub(length), to, columns: columns.clamp(1, most) }
    }

    /// The seconds of the window.
    pub fn seconds(&self) -> u64 {
        self.to.saturating_sub(self.from).max(1)
    }

    /// The times of samples that tell about the window.
    pub fn times(&self) -> Range<Duration> {
        Duration::from_secs(self.from)..Duration::from_secs(self.to.saturating_add(LATER))
    }

    /// The column of a time; `None`: the time is outside of the window.
    pub fn column(&self, time: u64) -> Option<usize> {
        if time < self.from || time >= self.to {
            return None;
        }
        let column = u128::from(time - self.from) * self.columns as u128 / u128::from(self.seconds());
        usize::try_from(column).ok().filter(|column| *column < self.columns)
    }

    /// The first second of a column; of the column after the last one, the end of the window.
    pub fn start(&self, column: usize) -> u64 {
        let (columns, column) = (self.columns.max(1) as u128, column.min(self.columns) as u128);
        // Rounded up, so that this second is in the column.
        let into = (u128::from(self.seconds()) * column).div_ceil(columns);
        self.from.saturating_add(u64::try_from(into).unwrap_or(u64::MAX))
    }

    /// The columns of the time before `time`, each with the seconds of it that come before the
    /// column's part and with those until the part's end.
    pub(crate) fn parts(&self, time: u64, over: u64) -> impl Iterator<Item = (usize, u64, u64)> + use<> {
        let window = *self;
        // The seconds after `begin`, up to `time`.
        let begin = time.saturating_sub(over);
        let first = begin.saturating_add(1).max(window.from);
        let columns = match (window.column(first), window.column(time.min(window.to.saturating_sub(1)))) {
            (Some(first), Some(last)) if begin < time && first <= last => first..last + 1,
            _ => 0..0,
        };
        columns.filter_map(move |column| {
            let from = window.start(column).max(first).saturating_sub(1).saturating_sub(begin);
            let to = (window.start(column + 1) - 1).min(time).checked_sub(begin)?;
            (from < to).then_some((column, from, to))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_is_in_one_column_and_columns_begin_where_they_say() {
        for (seconds, columns) in [(10, 10), (10, 3), (7200, 77), (604_800, 200), (5, 9)] {
            let window = Window::ending(Duration::from_secs(999_999), Duration::from_secs(seconds), columns);
            assert_eq!(window.column(window.from), Some(0));
            assert_eq!(window.column(window.to - 1), Some(window.columns - 1));
            assert_eq!((window.column(window.to), window.column(window.from - 1)), (None, None));
            for column in 0..window.columns {
                assert_eq!(window.column(window.start(column)), Some(column), "{seconds} {columns}");
                assert_ne!(window.column(window.start(column) - 1), Some(column), "{seconds} {columns}");
            }
            assert_eq!(window.start(window.columns), window.to);
        }
    }

    #[test]
    fn the_parts_of_a_time_add_up_to_what_of_it_is_in_the_window() {
        let window = Window { from: 1000, to: 1100, columns: 7 };
        for (time, over, inside) in [
            (1050, 20, 20),
            (1010, 60, 11),
            (1150, 100, 49),
            (1150, 400, 100),
            (900, 50, 0),
            (1200, 50, 0),
            (1050, 0, 0),
        ] {
            let parts: Vec<_> = window.parts(time, over).collect();
            assert_eq!(parts.iter().map(|(_, from, to)| to - from).sum::<u64>(), inside, "{time} {over}: {parts:?}");
            assert!(parts.windows(2).all(|two| two[0].2 == two[1].1 && two[0].0 + 1 == two[1].0), "{parts:?}");
        }
        assert_eq!(window.parts(u64::MAX, u64::MAX).count(), 7, "no number makes it panic");
    }
}
