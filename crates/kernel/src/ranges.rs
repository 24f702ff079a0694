//! Sorted lists of address ranges with set operations. No kernel interface.

use std::ops::Range;

use omr_units::Bytes;

/// Address ranges of one process, on page boundaries: sorted, none empty, with a gap between any
/// two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

/// Bytes in a range. A range that ends before it begins has none.
pub fn length(range: &Range<u64>) -> Bytes {
    Bytes(range.end.saturating_sub(range.start))
}

impl Ranges {
    /// The empty list.
    pub const fn new() -> Self {
        Ranges(Vec::new())
    }

    /// Adds a range after the others, and joins it with the last one where they touch. If the range
    /// begins before the last one ends, only the part after that end is added: mappings that change
    /// while they are read may come out of order.
    pub fn push(&mut self, range: Range<u64>) {
        let last = self.0.last_mut();
        let start = last.as_ref().map_or(range.start, |last| range.start.max(last.end));
        if start >= range.end {
            return;
        }
        match last {
            Some(last) if last.end == start => last.end = range.end,
            _ => self.0.push(start..range.end),
        }
    }

    /// As [`Ranges::push`], and joins it with the last range over a gap of at most this size.
    pub fn push_bridged(&mut self, range: Range<u64>, gap: Bytes) {
        let near = self.0.last().filter(|last| range.start.saturating_sub(last.end) <= gap.0);
        let start = near.map_or(range.start, |last| last.end.min(range.start));
        self.push(start..range.end);
    }

    /// Adds ranges after the others, see [`Ranges::push`].
    pub fn append(&mut self, others: &Ranges) {
        others.0.iter().for_each(|range| self.push(range.clone()));
    }

    /// Adds a range anywhere. This is quick after the last range.
    pub fn insert(&mut self, range: Range<u64>) {
        if self.0.last().is_none_or(|last| last.end <= range.start) {
            self.push(range);
        } else {
            *self = self.union(&Ranges::from_iter([range]));
        }
    }

    /// Bytes in all ranges together.
    pub fn bytes(&self) -> Bytes {
        self.0.iter().map(length).sum()
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, lowest first.
    pub fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// The intersection with one range. A binary search finds the start, so calls for many small
    /// ranges in turn are cheap.
    pub fn within(&self, range: &Range<u64>) -> Ranges {
        let first = self.0.partition_point(|other| other.end <= range.start);
        let rest = self.0.iter().skip(first).take_while(|other| other.start < range.end);
        rest.map(|other| other.start.max(range.start)..other.end.min(range.end)).collect()
    }

    /// The intersection of two lists.
    pub fn intersection(&self, other: &Ranges) -> Ranges {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Ranges::new();
        while let (Some(first), Some(second)) = (a.peek(), b.peek()) {
            both.push(first.start.max(second.start)..first.end.min(second.end));
            if first.end <= second.end {
                a.next()
            } else {
                b.next()
            };
        }
        both
    }

    /// The addresses of this list that are not in the other.
    pub fn without(&self, other: &Ranges) -> Ranges {
        let mut rest = Ranges::new();
        let mut others = other.0.iter().peekable();
        for range in &self.0 {
            let mut start = range.start;
            while let Some(taken) = others.peek() {
                if taken.start >= range.end {
                    break;
                }
                rest.push(start..taken.start);
                start = start.max(taken.end);
                if taken.end > range.end {
                    break;
                }
                others.next();
            }
            rest.push(start..range.end);
        }
        rest
    }

    /// The union of two lists.
    pub fn union(&self, other: &Ranges) -> Ranges {
        let mut all: Vec<Range<u64>> = self.0.iter().chain(&other.0).cloned().collect();
        all.sort_unstable_by_key(|range| (range.start, range.end));
        all.into_iter().collect()
    }

    /// The same list with gaps of up to `gap` bytes filled: fewer and longer ranges.
    pub fn bridged(&self, gap: Bytes) -> Ranges {
        let mut bridged: Vec<Range<u64>> = Vec::new();
        for range in &self.0 {
            match bridged.last_mut() {
                Some(last) if range.start - last.end <= gap.0 => last.end = range.end,
                _ => bridged.push(range.clone()),
            }
        }
        Ranges(bridged)
    }
}

impl FromIterator<Range<u64>> for Ranges {
    /// The ranges must come lowest first, see [`Ranges::push`].
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut all = Ranges::new();
        ranges.into_iter().for_each(|range| all.push(range));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn lists() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0u64..6, 1u64..6), 0..12).prop_map(|steps| {
            let mut at = 0;
            let mut ranges = Ranges::new();
            for (gap, length) in steps {
                ranges.push(at + gap..at + gap + length);
                at += gap + length;
            }
            ranges
        })
    }

    fn set(ranges: &Ranges) -> BTreeSet<u64> {
        ranges.as_slice().iter().cloned().flatten().collect()
    }

    fn is_well_formed(ranges: &Ranges) -> bool {
        let all = ranges.as_slice();
        all.iter().all(|range| range.start < range.end) && all.windows(2).all(|two| two[0].end < two[1].start)
    }

    proptest! {
        #[test]
        fn they_are_sets(a in lists(), b in lists(), gap in 0u64..4) {
            let (set_a, set_b) = (set(&a), set(&b));
            prop_assert_eq!(set(&a.intersection(&b)), &set_a & &set_b);
            prop_assert_eq!(set(&a.without(&b)), &set_a - &set_b);
            prop_assert_eq!(set(&a.union(&b)), &set_a | &set_b);
            for range in b.as_slice() {
                prop_assert_eq!(a.within(range), a.intersection(&std::iter::once(range.clone()).collect()));
            }
            let mut inserted = a.clone();
            b.as_slice().iter().for_each(|range| inserted.insert(range.clone()));
            prop_assert_eq!(&inserted, &a.union(&b));
            prop_assert_eq!(a.bytes(), Bytes(set_a.len() as u64));
            let bridged = a.bridged(Bytes(gap));
            prop_assert!(set(&bridged).is_superset(&set_a));
            prop_assert!(bridged.as_slice().windows(2).all(|two| two[1].start - two[0].end > gap));
            for ranges in [&a, &a.intersection(&b), &a.without(&b), &a.union(&b), &bridged] {
                prop_assert!(is_well_formed(ranges), "{:?}", ranges);
            }
        }

        #[test]
        fn ranges_stay_well_formed_after_any_operations(pushed in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20)) {
            let ranges: Ranges = pushed.into_iter().map(|(start, end)| start..end).collect();
            prop_assert!(is_well_formed(&ranges));
        }
    }
}
