//! Bounds for each age, in a file of the history. Amounts are in blocks.

use std::time::Duration;

use omr_policy::age::Bounds;
use serde::{Deserialize, Serialize};

use super::{AGES, BoundsFormat, blocks, bytes};

/// Bounds for each of [`AGES`]. A bit in a mask is the index of an age.
#[derive(Debug, Serialize, Deserialize)]
pub struct BoundsRecord {
    /// Ages that are not known.
    unknown: u16,
    /// Ages whose lower bound is greater than that of the next longer age.
    risen: u16,
    /// Ages whose upper bound is another than that of the next longer age.
    other: u16,
    /// From the longest age to the shortest: the rise of the lower bound, if there is one, and the
    /// difference between upper and lower bound, if the upper bound is another one.
    numbers: Vec<u64>,
}

const _: () = assert!(AGES.len() <= 16, "an age for each bit");

impl BoundsRecord {
    pub fn new(all: &[Option<Bounds>; AGES.len()]) -> Self {
        let mut record = BoundsRecord { unknown: 0, risen: 0, other: 0, numbers: Vec::new() };
        let (mut least, mut most) = (0, 0);
        for (index, bounds) in all.iter().enumerate().rev() {
            let Some(bounds) = bounds else {
                record.unknown |= 1 << index;
                continue;
            };
            // Memory that was not used for a longer age was not used for this age, too.
            let rise = blocks(bounds.least).saturating_sub(least);
            least += rise;
            if rise > 0 {
                record.risen |= 1 << index;
                record.numbers.push(rise);
            }
            let upper = blocks(bounds.most).max(least);
            if upper != most {
                record.other |= 1 << index;
                record.numbers.push(upper - least);
            }
            most = upper;
        }
        record
    }
}

impl BoundsFormat for BoundsRecord {
    fn bounds(&self) -> [Option<Bounds>; AGES.len()] {
        let mut all = [None; AGES.len()];
        let mut numbers = self.numbers.iter().copied();
        let mut next = |mask: u16, index: usize| (mask >> index & 1 == 1).then(|| numbers.next().unwrap_or_default());
        let (mut least, mut most) = (0u64, 0u64);
        for (index, bounds) in all.iter_mut().enumerate().rev() {
            if self.unknown >> index & 1 == 1 {
                continue;
            }
            least = least.saturating_add(next(self.risen, index).unwrap_or_default());
            most = next(self.other, index).map_or(most, |spread| least.saturating_add(spread)).max(least);
            *bounds = Some(Bounds { least: bytes(least), most: bytes(most) });
        }
        all
    }
}

/// The ages in files of versions 1 and 2.
const OLD_AGES: [Duration; 7] = [
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(300),
    Duration::from_secs(600),
    Duration::from_secs(1800),
    Duration::from_secs(3600),
];

/// Bounds in files of versions 1 and 2.
#[derive(Debug, Serialize, Deserialize)]
pub struct OldBounds {
    /// The lower bound for the longest age, and for each shorter age the difference to the next
    /// longer one.
    least: [u64; OLD_AGES.len()],
    /// The differences between upper and lower bounds.
    spread: [u64; OLD_AGES.len()],
}

impl BoundsFormat for OldBounds {
    fn bounds(&self) -> [Option<Bounds>; AGES.len()] {
        let mut all = [None; AGES.len()];
        let mut least = 0u64;
        for ((age, rise), spread) in OLD_AGES.iter().zip(self.least).zip(self.spread).rev() {
            least = least.saturating_add(rise);
            let bounds = Bounds { least: bytes(least), most: bytes(least.saturating_add(spread)) };
            if let Some((_, place)) = AGES.iter().zip(&mut all).find(|&(known, _)| known == age) {
                *place = Some(bounds);
            }
        }
        all
    }
}
