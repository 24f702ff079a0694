//! Charts as pictures, without a browser: SVG, and PNG from the same drawing.
//!
//! * [`draw`] lays out a chart as a [`Drawing`]: rectangles, lines and texts, in whole numbers.
//! * [`Drawing::svg`] and [`Drawing::png`] write it. They know nothing of charts.
//! * What is not known is hatched, never zero. Times are UTC.

#![deny(clippy::indexing_slicing)]

mod drawing;
mod font;
mod page;
mod plot;
mod png;
mod scale;
mod svg;

pub use drawing::{Anchor, Area, Colour, Drawing, Fill, Item, Stroke};
pub use page::draw;

/// The width of the plot of a picture, in tenths of a pixel. More columns cannot be told apart.
pub const PLOT: i32 = page::RIGHT - page::LEFT;

/// The most columns of a chart that a picture shows well.
const MOST_COLUMNS: u64 = 240;

/// Returns the number of columns for a chart of this many seconds: columns of a length that people
/// know, such as ten seconds, ten minutes or an hour.
pub fn columns(seconds: u64) -> usize {
    // Samples are at least ten seconds apart.
    const LENGTHS: [u64; 11] = [10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21_600];
    let seconds = seconds.max(1);
    let length = LENGTHS.into_iter().find(|length| seconds.div_ceil(*length) <= MOST_COLUMNS);
    let columns = length.map_or(MOST_COLUMNS, |length| seconds.div_ceil(length));
    usize::try_from(columns).unwrap_or(1)
}

#[cfg(test)]
mod tests;
