//! The probes of groups whose ages cannot be known, although omr should learn which of their memory
//! is cold.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use omr_policy::probe::{ABSENCE, Answer, Look, Probe, Why};
use omr_policy::threshold::Slo;
use omr_policy::{Class, ColdAmount, Group};
use omr_units::{Bytes, GroupId, Monotonic};

/// The most probes. Any user can make groups; the largest groups have one.
const MOST: usize = 500;

/// The probe of one group.
#[derive(Debug)]
struct Known {
    probe: Probe,
    /// The answer of the last look.
    answer: Answer,
    /// When that was.
    looked: Monotonic,
}

/// The probes of all groups.
#[derive(Debug, Default)]
pub struct Probes {
    known: HashMap<GroupId, Known>,
}

impl Probes {
    /// A look at each background group whose threshold would be learned, after a scan. `swap_in`:
    /// the time until a page is back; `None`: unknown, which counts as slow.
    pub fn look(&mut self, now: Monotonic, slo: &Slo, swap_in: Option<Duration>, groups: &[Group]) {
        let is_probed = |group: &&Group| group.cold_only.as_ref().is_some_and(|cold_only| cold_only.learned);
        let mut chosen: Vec<&Group> =
            groups.iter().filter(|group| group.class == Class::Background).filter(is_probed).collect();
        if chosen.len() > MOST {
            chosen.sort_by_key(|group| (Reverse(group.current), group.id));
            chosen.truncate(MOST);
        }
        let new = chosen.iter().filter(|group| !self.known.contains_key(&group.id)).count();
        if self.known.len() + new > MOST {
            let ids: HashSet<GroupId> = chosen.iter().map(|group| group.id).collect();
            self.known.retain(|id, _| ids.contains(id));
        }
        for group in chosen {
            let first = || Known { probe: Probe::new(now), answer: Answer::Hold(Why::Unknown), looked: now };
            let known = self.known.entry(group.id).or_insert_with(first);
            let look = Look { now, size: group.current, refaults: group.refaults, swap_in };
            (known.answer, known.looked) = (known.probe.look(slo, &look), now);
        }
    }

    /// Withdraws offers that are too old, where a scan takes long.
    pub fn withdraw_old(&mut self, now: Monotonic) {
        for known in self.known.values_mut().filter(|known| now.since(known.looked) > ABSENCE) {
            known.answer = Answer::Hold(Why::Watching);
        }
    }

    /// What the policy is told instead of that ages cannot be known; `None`: the group has no
    /// probe.
    pub fn amount(&self, id: GroupId, why: &str) -> Option<ColdAmount> {
        let Known { probe, answer, .. } = self.known.get(&id)?;
        Some(ColdAmount::Probed { why: why.to_owned(), answer: *answer, out: probe.out() })
    }

    /// A sweep takes a step of this size. The offer is withdrawn.
    pub fn begin(&mut self, id: GroupId, now: Monotonic, asked: Bytes) {
        if let Some(known) = self.known.get_mut(&id) {
            known.probe.begin(now, asked);
            known.answer = Answer::Hold(Why::JustTaken { left: omr_policy::probe::EVERY });
        }
    }

    /// The step has ended, and took this much.
    pub fn took(&mut self, id: GroupId, asked: Bytes, taken: Bytes) {
        if let Some(known) = self.known.get_mut(&id) {
            known.probe.took(asked, taken);
        }
    }

    /// Memory of the group was brought back on purpose.
    pub fn discount_refaults(&mut self, id: GroupId, bytes: Bytes) {
        if let Some(known) = self.known.get_mut(&id) {
            known.probe.discount(bytes);
        }
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, is_there: impl Fn(GroupId) -> bool) {
        self.known.retain(|id, _| is_there(*id));
    }

    /// Forgets everything: ages are known.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use omr_policy::ColdOnly;

    use super::*;

    fn group(id: u64, mib: u64) -> Group {
        let cold_only =
            ColdOnly { min_age: Duration::from_secs(120), cold: ColdAmount::NotYet, learned: true, threshold: None };
        Group {
            id: GroupId(id),
            class: Class::Background,
            current: Some(Bytes::mib(mib)),
            swap_backed: Some(Bytes::mib(mib)),
            page_cache: Some(Bytes::ZERO),
            refaults: Some(Bytes::ZERO),
            unprotected: Some(Bytes::mib(mib)),
            keep: None,
            cold_only: Some(cold_only),
        }
    }

    fn at(second: u64) -> Monotonic {
        Monotonic(0) + Duration::from_secs(second)
    }

    /// Looks every 5 s, from `from` until `to`.
    fn watch(probes: &mut Probes, from: u64, to: u64, groups: &[Group]) {
        let slo = Slo { warm_up: Duration::from_secs(100), ..Slo::default() };
        (from..=to).step_by(5).for_each(|second| probes.look(at(second), &slo, Some(Duration::ZERO), groups));
    }

    fn answer(probes: &Probes, id: u64) -> Option<Answer> {
        match probes.amount(GroupId(id), "no ages")? {
            ColdAmount::Probed { answer, .. } => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_background_groups_whose_threshold_would_be_learned_have_a_probe() {
        let mut groups = vec![group(1, 1000), group(2, 1000), group(3, 1000), group(4, 1000)];
        groups[1].class = Class::Foreground;
        groups[2].cold_only.as_mut().expect("a rule").learned = false;
        groups[3].cold_only = None;
        let mut probes = Probes::default();
        watch(&mut probes, 0, 100, &groups);
        let offers = |probes: &Probes| (1..=4).map(|id| answer(probes, id).map(Answer::bytes)).collect::<Vec<_>>();
        assert_eq!(offers(&probes), [Some(Bytes::mib(5)), None, None, None]);
        // A group that is in the foreground for a while keeps its probe, and is watched anew.
        groups[0].class = Class::Foreground;
        watch(&mut probes, 105, 300, &groups);
        groups[0].class = Class::Background;
        watch(&mut probes, 305, 305, &groups);
        assert_eq!(answer(&probes, 1), Some(Answer::Hold(Why::Watching)));
        watch(&mut probes, 310, 365, &groups);
        assert_eq!(offers(&probes)[0], Some(Bytes::mib(5)));
        // It ends with the group.
        probes.retain(|_| false);
        assert_eq!(offers(&probes)[0], None);
    }

    #[test]
    fn probes_have_a_limit_and_the_largest_groups_have_one() {
        let groups: Vec<Group> = (0..2000).map(|id| group(id, id)).collect();
        let mut probes = Probes::default();
        watch(&mut probes, 0, 5, &groups);
        assert_eq!(probes.known.len(), MOST);
        assert!(probes.known.contains_key(&GroupId(1500)) && !probes.known.contains_key(&GroupId(1499)));
        // Others that are there push them out, but only as far as they are larger.
        let others: Vec<Group> = (3000..3200).map(|id| group(id, 5000)).collect();
        let all: Vec<Group> = groups.iter().chain(&others).cloned().collect();
        watch(&mut probes, 10, 10, &all);
        assert_eq!(probes.known.len(), MOST);
        assert!(probes.known.contains_key(&GroupId(3000)) && probes.known.contains_key(&GroupId(1999)));
        assert!(!probes.known.contains_key(&GroupId(1600)));
    }

    #[test]
    fn an_offer_ends_when_it_is_taken_or_too_old() {
        let groups = [group(1, 1000)];
        let mut probes = Probes::default();
        watch(&mut probes, 0, 100, &groups);
        probes.withdraw_old(at(190));
        assert!(answer(&probes, 1).expect("a probe").bytes() > Bytes::ZERO, "the control");
        let mut old = Probes::default();
        watch(&mut old, 0, 100, &groups);
        old.withdraw_old(at(191));
        assert_eq!(answer(&old, 1), Some(Answer::Hold(Why::Watching)));
        probes.begin(GroupId(1), at(190), Bytes::mib(5));
        assert_eq!(answer(&probes, 1).map(Answer::bytes), Some(Bytes::ZERO));
        probes.took(GroupId(1), Bytes::mib(5), Bytes::mib(2));
        let amount = probes.amount(GroupId(1), "no ages");
        assert!(matches!(amount, Some(ColdAmount::Probed { out, .. }) if out == Bytes::mib(2)), "{amount:?}");
    }
}
