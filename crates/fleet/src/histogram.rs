//! Counts by size, in buckets of fixed borders: eight for each doubling, so that a bucket is at
//! most an eighth wide. Histograms are added bucket by bucket.

use serde::{Deserialize, Serialize};

/// Buckets for each doubling.
const PARTS: u64 = 8;

/// Counts by bucket, up to the last one with a count. Its text form has only buckets with a count,
/// in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u16, u64)>", into = "Vec<(u16, u64)>")]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.add_to(Bucket::of(value), 1);
    }

    /// Counts values in a bucket.
    pub fn add_to(&mut self, Bucket(bucket): Bucket, count: u64) {
        let bucket = usize::from(bucket);
        if bucket >= self.0.len() {
            self.0.resize(bucket + 1, 0);
        }
        if let Some(sum) = self.0.get_mut(bucket) {
            *sum += count;
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The buckets with a count, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (Bucket, u64)> + '_ {
        (0..).map(Bucket).zip(self.0.iter().copied()).filter(|&(_, count)| count > 0)
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The value that this share of the values does not exceed, as if the values in its bucket were
    /// spread evenly; `None`: there are no values. `per_myriad`: `9_800` is p98.
    pub fn quantile(&self, per_myriad: u32) -> Option<u64> {
        let rank = (u128::from(self.count()) * u128::from(per_myriad)).div_ceil(10_000).max(1);
        let mut below = 0;
        self.buckets().find_map(|(bucket, count)| {
            let (smallest, largest) = (bucket.smallest(), bucket.largest());
            let within = rank - below;
            below += u128::from(count);
            let part = u128::from(largest - smallest) * within.min(u128::from(count)) / u128::from(count.max(1));
            (below >= rank).then(|| smallest + u64::try_from(part).unwrap_or(u64::MAX))
        })
    }
}

impl FromIterator<(Bucket, u64)> for Histogram {
    fn from_iter<I: IntoIterator<Item = (Bucket, u64)>>(buckets: I) -> Self {
        let mut all = Histogram::default();
        let counted = buckets.into_iter().filter(|&(_, count)| count > 0);
        counted.for_each(|(bucket, count)| all.add_to(bucket, count));
        all
    }
}

impl From<Histogram> for Vec<(u16, u64)> {
    fn from(histogram: Histogram) -> Self {
        histogram.buckets().map(|(Bucket(bucket), count)| (bucket, count)).collect()
    }
}

impl TryFrom<Vec<(u16, u64)>> for Histogram {
    type Error = &'static str;

    fn try_from(buckets: Vec<(u16, u64)>) -> Result<Self, Self::Error> {
        let is_known = |&(bucket, _): &(u16, u64)| bucket <= Bucket::of(u64::MAX).0;
        if !buckets.iter().all(is_known) {
            return Err("a histogram with a bucket that no number is in");
        }
        Ok(buckets.into_iter().map(|(bucket, count)| (Bucket(bucket), count)).collect())
    }
}

/// The values that are counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u16);

impl Bucket {
    /// The one that a value is in.
    pub fn of(value: u64) -> Self {
        let bucket = match value.checked_ilog2() {
            None | Some(0..3) => value,
            // The three bits after the first one.
            Some(doublings) => PARTS * u64::from(doublings - 2) + ((value >> (doublings - 3)) & (PARTS - 1)),
        };
        Bucket(u16::try_from(bucket).unwrap_or(u16::MAX))
    }

    fn smallest(self) -> u64 {
        self.0.checked_sub(1).map_or(0, |before| Bucket(before).largest() + 1)
    }

    fn largest(self) -> u64 {
        let (doublings, part) = (u64::from(self.0) / PARTS, u64::from(self.0) % PARTS);
        match doublings {
            0 => part,
            // Below 16 each bucket has one value.
            _ => ((PARTS + part + 1) << (doublings - 1)).wrapping_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_one_bucket_that_is_at_most_an_eighth_wide() {
        let mut last = 0;
        for value in 0..100_000_u64 {
            let of = Bucket::of(value);
            assert!(of.0 == last || of.0 == last + 1, "{value}");
            last = of.0;
            let largest = of.largest();
            assert!(of.smallest() <= value && largest >= value && largest - value <= value / 8, "{value}: {largest}");
        }
        assert_eq!(Bucket::of(u64::MAX).largest(), u64::MAX);
        assert!(Bucket::of(u64::MAX).0 < u16::MAX);
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
        assert_eq!(one.quantile(9_800), Some(Bucket::of(1_000_000).largest()));
        assert_eq!((Histogram::default().quantile(5_000), Histogram::default().count()), (None, 0));
        (0..2).for_each(|_| merged.merge(&all));
        assert_eq!(merged.count(), 3000);
    }

    #[test]
    fn the_text_form_has_the_buckets_with_a_count() {
        let mut some = Histogram::default();
        [3, 3, 1_000, u64::MAX].into_iter().for_each(|value| some.add(value));
        let text = serde_json::to_string(&some).expect("text");
        assert_eq!(text, format!("[[3,2],[{},1],[{},1]]", Bucket::of(1_000).0, Bucket::of(u64::MAX).0));
        assert_eq!(serde_json::from_str::<Histogram>(&text).expect("a histogram"), some);
        assert_eq!(serde_json::from_str::<Histogram>("[]").expect("none"), Histogram::default());
        // Nobody makes it ask for memory of its choice.
        let refused = serde_json::from_str::<Histogram>("[[65535,1]]").expect_err("refused");
        assert!(refused.to_string().contains("bucket"), "{refused}");
    }
}
