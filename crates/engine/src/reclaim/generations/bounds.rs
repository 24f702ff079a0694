//! The bounds of a run: the number of agings, the time of a command, and the end if page cache is
//! evicted instead.

use std::time::Duration;

use omr_kernel::lru_gen::Lists;
use omr_units::Pages;

/// This many commands that evicted page cache and no anonymous memory end a run.
const STRIKES: u32 = 2;
/// The time for the first portion to a swap disk: pages on their way there do not end a command, so
/// only time does.
const FIRST_TIME: Duration = Duration::from_millis(1);

/// Agings so far, by node.
#[derive(Default)]
pub(super) struct Merges(Vec<(u32, u32)>);

impl Merges {
    pub fn count(&mut self, node: u32) {
        match self.0.iter_mut().find(|(of, _)| *of == node) {
            Some((_, count)) => *count += 1,
            None => self.0.push((node, 1)),
        }
    }

    pub fn count_of(&self, node: u32) -> u32 {
        self.0.iter().find(|(of, _)| *of == node).map_or(0, |(_, count)| *count)
    }
}

/// The longest time of a command, so that it sends at most a number of pages to a disk.
#[derive(Default)]
pub(super) struct DiskPortion {
    per_page: Option<Duration>,
}

impl DiskPortion {
    pub fn time(&self, pages: Pages) -> Duration {
        match self.per_page {
            None => FIRST_TIME,
            Some(per_page) => per_page.saturating_mul(u32::try_from(pages.0).unwrap_or(u32::MAX)).max(FIRST_TIME / 4),
        }
    }

    pub fn learn(&mut self, sent: Pages, took: Duration) {
        if let Ok(sent @ 1..) = u32::try_from(sent.0) {
            self.per_page = Some(took / sent);
        }
    }
}

/// Notices that page cache goes where anonymous memory should, because that cannot leave: for
/// example, zswap is full and may not write to its disk.
#[derive(Default)]
pub(super) struct Evicted {
    /// The list before the last command, where the kernel goes on with page cache.
    pub before: Option<Lists>,
    strikes: u32,
}

impl Evicted {
    pub fn cache_instead(&mut self, lists: &[Lists]) -> bool {
        let now = |before: Lists| lists.iter().find(|now| now.node == before.node).map(|now| (before, now));
        if let Some((before, now)) = self.before.take().and_then(now) {
            let oldest = |list: &Lists| list.generations().first().map_or(Pages(0), |oldest| oldest.anon);
            let moved_on = now.generations().first().map(|first| first.number)
                != before.generations().first().map(|first| first.number);
            let cache = before.file() - now.file();
            let anon = if moved_on { Pages(u64::MAX) } else { oldest(&before) - oldest(now) };
            self.strikes = if cache > anon { self.strikes + 1 } else { 0 };
        }
        self.strikes >= STRIKES
    }
}

#[cfg(test)]
mod tests {
    use super::super::lists::tests::list;
    use super::*;

    #[test]
    fn agings_are_counted_by_node() {
        let mut merges = Merges::default();
        merges.count(0);
        merges.count(1);
        merges.count(0);
        assert_eq!([0, 1, 2].map(|node| merges.count_of(node)), [2, 1, 0]);
    }

    #[test]
    fn page_cache_that_goes_instead_is_noticed() {
        let before = list(&[(400, 1000, 500), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let anon_went = list(&[(400, 900, 490), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let cache_went = list(&[(400, 1000, 400), (180, 0, 0), (60, 0, 0), (1, 0, 0)]);
        let write = |evicted: &mut Evicted, now: &Lists| {
            evicted.before = Some(before);
            evicted.cache_instead(&[*now])
        };
        let mut evicted = Evicted::default();
        assert!(!write(&mut evicted, &cache_went), "once may be the work of another program");
        assert!(!write(&mut evicted, &anon_went));
        assert!(!write(&mut evicted, &cache_went));
        assert!(write(&mut evicted, &cache_went));
        // If the command excluded page cache, another program has evicted it.
        assert!(!Evicted::default().cache_instead(&[cache_went]));
    }

    #[test]
    fn a_portion_for_a_disk_is_as_long_as_the_pages_before_took() {
        let mut disk = DiskPortion::default();
        assert_eq!(disk.time(Pages(1024)), FIRST_TIME);
        disk.learn(Pages(0), Duration::from_secs(1));
        assert_eq!(disk.time(Pages(1024)), FIRST_TIME, "nothing was sent, nothing is learnt");
        disk.learn(Pages(100), Duration::from_millis(1));
        assert_eq!(disk.time(Pages(1024)), Duration::from_micros(10_240));
        assert_eq!(disk.time(Pages(1)), FIRST_TIME / 4);
    }
}
