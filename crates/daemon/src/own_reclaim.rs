//! Memory that the daemon itself reclaimed. It leaves the generations without being used, so it is
//! no promotion.

use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_policy::age::Promotions;
use omr_units::{Bytes, Monotonic};

/// Memory that the daemon reclaimed from a group and those below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// The group; empty: the machine.
    pub path: PathBuf,
    /// Anonymous and shared memory.
    pub bytes: Bytes,
    /// All of it was unused for at least this time when it was reclaimed.
    pub unused_for: Duration,
    /// When it began.
    pub began: Monotonic,
    /// When it ended.
    pub ended: Monotonic,
}

/// The most entries that are kept. With more, nothing is known until the next samples.
const MOST: usize = 512;

impl Reclaimed {
    /// Adds what was reclaimed from the same group.
    fn add(&mut self, other: &Reclaimed) {
        self.bytes += other.bytes;
        self.unused_for = self.unused_for.min(other.unused_for);
        self.began = self.began.min(other.began);
        self.ended = self.ended.max(other.ended);
    }
}

/// Adds to a list that has one entry for each group. Of too many groups only the sum is kept, as
/// reclaimed from the machine.
pub fn note(list: &mut Vec<Reclaimed>, new: Reclaimed) {
    let length = list.len();
    match list.iter_mut().find(|known| known.path == new.path) {
        Some(known) => known.add(&new),
        None if length < MOST => list.push(new),
        None => {
            let mut all = Reclaimed { path: PathBuf::new(), ..new };
            list.drain(..).for_each(|known| all.add(&known));
            list.push(all);
        }
    }
}

/// Memory that was reclaimed, until an aging has shown that it is gone.
#[derive(Debug, Default)]
pub struct OwnReclaim {
    entries: Vec<Entry>,
    /// There were too many entries.
    is_lost: bool,
}

#[derive(Debug)]
struct Entry {
    reclaimed: Reclaimed,
    /// An earlier sample has it.
    is_counted: bool,
}

impl OwnReclaim {
    /// Adds what was reclaimed since the last order. `agings`: the times of the last aging of each
    /// part of a group.
    pub fn add<A: Iterator<Item = Monotonic>>(&mut self, all: Vec<Reclaimed>, agings: impl Fn(&Path) -> A) {
        for mut reclaimed in all {
            // The age at the last aging counts. If some of it was reclaimed before that aging,
            // nothing is known.
            let age = |at: Monotonic| match at > reclaimed.began {
                true => Duration::ZERO,
                false => reclaimed.unused_for.saturating_sub(reclaimed.ended.since(at)),
            };
            reclaimed.unused_for = agings(&reclaimed.path).map(age).min().unwrap_or_default();
            match self.entries.len() < MOST {
                true => self.entries.push(Entry { reclaimed, is_counted: false }),
                false => self.is_lost = true,
            }
        }
    }

    /// Takes out of a group's promotions what was reclaimed and is seen to be gone. Returns how
    /// much was reclaimed since the last sample; `None`: unknown, as a group above lost memory.
    pub fn subtract<A: Iterator<Item = Monotonic>>(
        &self,
        group: &Path,
        promotions: &mut Option<Promotions>,
        agings: impl Fn(&Path) -> A,
    ) -> Option<Bytes> {
        if self.is_lost {
            *promotions = None;
            return None;
        }
        let mut sum = Some(Bytes::ZERO);
        for Entry { reclaimed, is_counted } in &self.entries {
            let is_above = group != reclaimed.path && group.starts_with(&reclaimed.path);
            if !is_above && !reclaimed.path.starts_with(group) {
                continue;
            }
            if !is_counted {
                sum = sum.filter(|_| !is_above).map(|sum| sum + reclaimed.bytes);
            }
            let is_seen = |at: Monotonic| at > reclaimed.ended;
            let path = if is_above { group } else { &reclaimed.path };
            if let Some(promotions) = promotions.as_mut().filter(|_| agings(path).any(is_seen)) {
                let is_all = !is_above && agings(path).all(is_seen);
                let unused_for = if is_all { reclaimed.unused_for } else { Duration::ZERO };
                promotions.subtract_reclaimed(reclaimed.bytes, unused_for);
            }
        }
        sum
    }

    /// After a sample of all groups: forgets what is seen to be gone.
    pub fn forget_seen<A: Iterator<Item = Monotonic>>(&mut self, agings: impl Fn(&Path) -> A) {
        self.is_lost = false;
        self.entries.retain_mut(|Entry { reclaimed, is_counted }| {
            *is_counted = true;
            let (mut some, mut all) = (false, true);
            for at in agings(&reclaimed.path) {
                (some, all) = (some || at > reclaimed.ended, all && at > reclaimed.ended);
            }
            if some {
                // A part of it was taken out of the promotions: nobody knows how much.
                reclaimed.unused_for = Duration::ZERO;
            }
            !all
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use omr_policy::age::{AGES, Bounds};

    use super::*;

    /// Any user can make groups, which are swept one by one while no group is aged.
    #[test]
    fn the_list_of_reclaimed_groups_is_limited() {
        let one = |path: String| Reclaimed {
            path: path.into(),
            bytes: Bytes::mib(1),
            unused_for: Duration::from_secs(60),
            began: Monotonic(5),
            ended: Monotonic(9),
        };
        let mut list = Vec::new();
        for number in 0..MOST {
            note(&mut list, one(format!("group-{number}")));
        }
        assert_eq!(list.len(), MOST);
        note(&mut list, one("group-7".into()));
        assert_eq!((list.len(), list[7].bytes), (MOST, Bytes::mib(2)));
        note(&mut list, one("one-more".into()));
        let all = Bytes::mib(u64::try_from(MOST).expect("a small number") + 2);
        assert_eq!(list, [Reclaimed { bytes: all, ..one(String::new()) }]);
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn reclaimed(path: &str, bytes: u64, unused_for: u64, ended: u64) -> Reclaimed {
        let (began, ended) = (at(ended - 1), at(ended));
        Reclaimed { path: path.into(), bytes: Bytes(bytes), unused_for: seconds(unused_for), began, ended }
    }

    /// The last agings of groups.
    struct Agings(HashMap<&'static str, u64>);

    impl Agings {
        fn below<'a>(&'a self, path: &Path) -> impl Iterator<Item = Monotonic> + use<'a> {
            let path = path.to_path_buf();
            self.0.iter().filter(move |(group, _)| Path::new(group).starts_with(&path)).map(|(_, second)| at(*second))
        }
    }

    fn all(bytes: u64) -> Option<Promotions> {
        let bounds = [Bounds { least: Bytes(bytes), most: Bytes(bytes) }; AGES.len()];
        Some(Promotions { over: seconds(600), bounds })
    }

    /// Least and most at two minutes and at an hour, and the sum.
    fn left(own: &OwnReclaim, group: &str, agings: &Agings) -> ([(u64, u64); 2], Option<u64>) {
        let mut promotions = all(100);
        let sum = own.subtract(Path::new(group), &mut promotions, |path| agings.below(path));
        let promotions = promotions.expect("known");
        let of = |age| promotions.at(seconds(age)).map(|bounds| (bounds.least.0, bounds.most.0)).expect("an age");
        ([of(120), of(3600)], sum.map(|sum| sum.0))
    }

    #[test]
    fn what_was_reclaimed_is_no_promotion_of_its_group_and_those_above() {
        let mut agings = Agings(HashMap::from([("a", 1000), ("a/b", 1000), ("c", 1000)]));
        let mut own = OwnReclaim::default();
        own.add(vec![reclaimed("a", 30, 600, 1010)], |path| agings.below(path));
        // No aging has shown yet that it is gone.
        assert_eq!(left(&own, "a", &agings), ([(100, 100), (100, 100)], Some(30)));
        agings.0.extend([("a", 1200), ("a/b", 1200), ("c", 1200)]);
        // It was ten minutes old, or older: of those who are an hour old it may be all or nothing.
        for group in ["a", ""] {
            assert_eq!(left(&own, group, &agings), ([(70, 70), (70, 70)], Some(30)), "{group}");
        }
        // Nobody knows what this one lost of it.
        assert_eq!(left(&own, "a/b", &agings), ([(70, 100), (70, 100)], None));
        assert_eq!(left(&own, "c", &agings), ([(100, 100), (100, 100)], Some(0)));
        own.forget_seen(|path| agings.below(path));
        assert_eq!(left(&own, "a", &agings), ([(100, 100), (100, 100)], Some(0)));
    }

    #[test]
    fn reclaim_without_an_age_hides_no_promotion() {
        let mut agings = Agings(HashMap::from([("a", 1000)]));
        for (unused_for, ended) in [
            (0, 1010),
            // Ninety seconds later it was two minutes old, and half a minute at the last aging.
            (120, 1090),
            // It had begun before the last aging.
            (600, 1000),
        ] {
            let mut own = OwnReclaim::default();
            own.add(vec![reclaimed("a", 30, unused_for, ended)], |path| agings.below(path));
            agings.0.insert("a", 1200);
            let mut promotions = all(100);
            // All were promoted at one age, and a fifth of those at longer ages.
            let fifth = Bounds { least: Bytes(20), most: Bytes(20) };
            promotions.as_mut().expect("known").bounds[2..].fill(fifth);
            let _ = own.subtract(Path::new("a"), &mut promotions, |path| agings.below(path));
            let at = promotions.expect("known").at(seconds(120)).expect("an age");
            assert_eq!(at, Bounds { least: Bytes::ZERO, most: Bytes(20) }, "{unused_for}");
            agings.0.insert("a", 1000);
        }
    }

    #[test]
    fn what_only_some_agings_have_shown_stays_until_the_last() {
        let mut agings = Agings(HashMap::from([("a", 1000), ("a/b", 1000)]));
        let mut own = OwnReclaim::default();
        own.add(vec![reclaimed("a", 30, 600, 1010)], |path| agings.below(path));
        agings.0.insert("a", 1200);
        assert_eq!(left(&own, "a", &agings), ([(70, 100), (70, 100)], Some(30)));
        own.forget_seen(|path| agings.below(path));
        agings.0.insert("a/b", 1300);
        assert_eq!(left(&own, "a", &agings), ([(70, 100), (70, 100)], Some(0)), "and counted once");
        own.forget_seen(|path| agings.below(path));
        assert!(own.entries.is_empty());
    }

    #[test]
    fn entries_have_a_limit_beyond_which_all_is_unknown() {
        let agings = Agings(HashMap::new());
        let mut own = OwnReclaim::default();
        for _ in 0..=MOST {
            own.add(vec![reclaimed("a", 30, 600, 1010)], |path| agings.below(path));
        }
        let mut promotions = all(100);
        assert_eq!(own.subtract(Path::new("b"), &mut promotions, |path| agings.below(path)), None);
        assert_eq!(promotions, None);
        own.forget_seen(|path| agings.below(path));
        assert_eq!(left(&own, "b", &agings).1, Some(0));
        let mut list = Vec::new();
        (0..10).for_each(|n| note(&mut list, reclaimed("a", 1, 600 - n, 1010 + n)));
        let [one] = list.as_slice() else { panic!("one group") };
        assert_eq!((one.bytes, one.unused_for, one.began, one.ended), (Bytes(10), seconds(591), at(1009), at(1019)));
    }
}
