//! Counts by size, in buckets of fixed borders: eight for each doubling, so that a bucket is at
//! most an eighth wide. Histograms are added bucket by bucket.

use serde::{Deserialize, Serialize};

/// Buckets for each doubling.
const PARTS: u64 = 8;

/// Counts by bucket; only buckets with a count, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(Vec<(u16, u64)>);

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.add_to(bucket(value), 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        other.buckets().for_each(|(bucket, count)| self.add_to(bucket, count));
    }

    fn add_to(&mut self, bucket: u16, count: u64) {
        match self.0.binary_search_by_key(&bucket, |&(bucket, _)| bucket) {
            Ok(at) => {
                if let Some((_, sum)) = self.0.get_mut(at) {
                    *sum += count;
                }
            }
            Err(at) => self.0.insert(at, (bucket, count)),
        }
    }

    /// The buckets with a count, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.0.iter().copied()
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The value that this share of the values does not exceed, as if the values in its bucket were
    /// spread evenly; `None`: there are no values. `per_myriad`: `9_800` is p98.
    pub fn quantile(&self, per_myriad: u32) -> Option<u64> {
        let rank = (u128::from(self.count()) * u128::from(per_myriad)).div_ceil(10_000).max(1);
        let mut below = 0;
        self.0.iter().find_map(|&(bucket, count)| {
            let (smallest, largest) = (bucket.checked_sub(1).map_or(0, |before| largest(before) + 1), largest(bucket));
            let within = rank - below;
            below += u128::from(count);
            let part = u128::from(largest - smallest) * within.min(u128::from(count)) / u128::from(count.max(1));
            (below >= rank).then(|| smallest + u64::try_from(part).unwrap_or(u64::MAX))
        })
    }
}

/// From buckets in order.
impl FromIterator<(u16, u64)> for Histogram {
    fn from_iter<I: IntoIterator<Item = (u16, u64)>>(buckets: I) -> Self {
        Histogram(buckets.into_iter().filter(|&(_, count)| count > 0).collect())
    }
}

fn bucket(value: u64) -> u16 {
    let bucket = match value.checked_ilog2() {
        None | Some(0..3) => value,
        // The three bits after the first one.
        Some(doublings) => PARTS * u64::from(doublings - 2) + ((value >> (doublings - 3)) & (PARTS - 1)),
    };
    u16::try_from(bucket).unwrap_or(u16::MAX)
}

/// The largest value in a bucket.
fn largest(bucket: u16) -> u64 {
    let (doublings, part) = (u64::from(bucket) / PARTS, u64::from(bucket) % PARTS);
    match doublings {
        0 => part,
        // Below 16 each bucket has one value.
        _ => ((PARTS + part + 1) << (doublings - 1)).wrapping_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_one_bucket_that_is_at_most_an_eighth_wide() {
        let mut last = 0;
        for value in 0..100_000_u64 {
            let of = bucket(value);
            assert!(of == last || of == last + 1, "{value}");
            last = of;
            assert!(largest(of) >= value && largest(of) - value <= value / 8, "{value}: {}", largest(of));
        }
        assert_eq!(largest(bucket(u64::MAX)), u64::MAX);
        assert!(bucket(u64::MAX) < u16::MAX);
    }

    #[test]
    fn quantiles_are_those_of_the_values_and_merging_is_adding() {
        let (mut even, mut odd, mut all) = (Histogram::default(), Histogram::default(), Histogram::default());
        for value in 0..1000_u64 {
            if value.is_multiple_of(2) {
                even.add(value)
            } else {
                odd.add(value)
            }
            all.add(value);
        }
        let (mut merged, mut other) = (even.clone(), odd.clone());
        merged.merge(&odd);
        other.merge(&even);
        assert_eq!((&merged, &other), (&all, &all));
        for share in [1, 5_000, 9_800, 10_000] {
            let exact = (1000 * u64::from(share)).div_ceil(10_000).max(1) - 1;
            let found = all.quantile(share).expect("values");
            assert!(found.abs_diff(exact) <= exact / 16 + 1, "{share}: {found}, not {exact}");
        }
        // Of one value nobody knows where in its bucket it is.
        let mut one = Histogram::default();
        one.add(1_000_000);
        assert_eq!(one.quantile(9_800), Some(largest(bucket(1_000_000))));
        assert_eq!((Histogram::default().quantile(5_000), Histogram::default().count()), (None, 0));
        (0..2).for_each(|_| merged.merge(&all));
        assert_eq!(merged.count(), 3000);
    }
}
