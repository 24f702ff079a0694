//! What clients told about who is there.

use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_units::Monotonic;

use crate::server::Peer;

/// Facts that a client told.
#[derive(Clone, Debug)]
pub struct Told {
    /// The facts as they were then.
    pub facts: Facts,
    /// The setting by which the machine hibernates; `None`: there is none, or unknown.
    pub hibernates: Option<HibernatesBy>,
    /// When it told them.
    pub at: Monotonic,
}

impl Told {
    /// The facts as old as they are now; `None`: too old.
    fn now(&self, now: Monotonic) -> Option<Facts> {
        let age = self.facts.age.saturating_add(now.since(self.at));
        Some(Facts { age, ..self.facts.clone() }).filter(Facts::is_fresh)
    }
}

/// The facts of all clients together; `None`: unknown. Every client may add a sign of somebody.
/// That there is none follows only from a client that may speak for everybody.
pub fn combine<'a>(told: impl Iterator<Item = (&'a Told, Peer)>, now: Monotonic) -> Option<Facts> {
    let fresh = told.filter_map(|(told, peer)| Some((told.now(now)?, peer)));
    let (trusted, others): (Vec<_>, Vec<_>) = fresh.partition(|(_, peer)| peer.speaks_for_all());
    let trusted = trusted.into_iter().map(|(facts, _)| facts).reduce(|all, facts| all.merge(&facts))?;
    Some(others.into_iter().fold(trusted, |all, (facts, _)| all.merge(&facts)))
}

/// The setting by which the machine hibernates, by a client that may speak for everybody and has
/// looked lately.
pub fn hibernates<'a>(told: impl Iterator<Item = (&'a Told, Peer)>, now: Monotonic) -> Option<HibernatesBy> {
    let mut trusted = told.filter(|(told, peer)| peer.speaks_for_all() && told.now(now).is_some());
    trusted.find_map(|(told, _)| told.hibernates)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use omr_control::protocol::Right;
    use omr_policy::presence::Sessions;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn told(idle: Option<Duration>, at: u64) -> Told {
        let facts = Facts { local: Sessions { active: 1, idle }, ..Facts::default() };
        Told { facts, hibernates: None, at: Monotonic(0) + Duration::from_secs(at) }
    }

    /// The time without input by all these clients, a minute after boot.
    fn idle(told: &[(&Told, Right)]) -> Option<Option<Duration>> {
        let told = told.iter().map(|(told, right)| (*told, Peer::new(1000, *right)));
        combine(told, Monotonic(0) + MINUTE).map(|facts| facts.local.idle)
    }

    #[test]
    fn only_who_speaks_for_all_can_say_that_nobody_is_there() {
        let (idle_long, idle_little) = (told(Some(100 * MINUTE), 60), told(Some(MINUTE), 60));
        for right in [Right::Follow, Right::Control] {
            assert_eq!(idle(&[(&idle_long, right)]), Some(Some(100 * MINUTE)));
        }
        for right in [Right::Read, Right::Prepare] {
            assert_eq!(idle(&[(&idle_long, right)]), None);
            assert_eq!(idle(&[(&idle_little, right)]), None);
            // It can add a sign of somebody, and not take one away.
            assert_eq!(idle(&[(&idle_long, Right::Follow), (&idle_little, right)]), Some(Some(MINUTE)));
            assert_eq!(idle(&[(&idle_little, Right::Follow), (&idle_long, right)]), Some(Some(MINUTE)));
        }
        assert_eq!(idle(&[]), None);
    }

    #[test]
    fn of_followers_that_contradict_each_other_the_sign_of_somebody_counts() {
        let absent = Facts { local: Sessions { active: 1, idle: Some(100 * MINUTE) }, ..Facts::default() };
        let nobody = Facts::default();
        let signs = [
            Facts { local: Sessions { active: 1, idle: Some(Duration::ZERO) }, ..Facts::default() },
            Facts { remote: Sessions { active: 1, idle: None }, ..Facts::default() },
            Facts { inhibited: true, ..Facts::default() },
        ];
        let now = Monotonic(0) + MINUTE;
        let told = |facts: &Facts| Told { facts: facts.clone(), hibernates: None, at: now };
        let is_somebody = |facts: &Facts| {
            let is_used = |of: Sessions| of.active > 0 && of.idle.is_none_or(|idle| idle < MINUTE);
            facts.inhibited || is_used(facts.local) || is_used(facts.remote)
        };
        for sign in &signs {
            for other in [&absent, &nobody] {
                for (first, second) in [(sign, other), (other, sign)] {
                    let both = [(told(first), Right::Follow), (told(second), Right::Control)];
                    let both = both.iter().map(|(told, right)| (told, Peer::new(1000, *right)));
                    let facts = combine(both, now).expect("facts");
                    assert!(is_somebody(&facts), "{first:?} {second:?}");
                }
            }
        }
        assert!(!is_somebody(&absent.merge(&nobody)), "the control");
    }

    #[test]
    fn facts_grow_old() {
        let (old, new) = (told(Some(MINUTE), 29), told(Some(100 * MINUTE), 30));
        assert_eq!(idle(&[(&old, Right::Follow)]), None);
        assert_eq!(idle(&[(&old, Right::Read), (&new, Right::Follow)]), Some(Some(100 * MINUTE)));
        // They were 29 s old when they were told, or older than any clock.
        for (age, is_known) in [(29, true), (31, false), (u64::MAX, false)] {
            let mut aged = told(Some(MINUTE), 60);
            aged.facts.age = Duration::from_secs(age);
            assert_eq!(idle(&[(&aged, Right::Follow)]).is_some(), is_known, "{age}");
        }
    }

    #[test]
    fn only_who_speaks_for_all_can_say_that_the_machine_hibernates() {
        let lid = Told { hibernates: Some(HibernatesBy::Lid), ..told(None, 60) };
        let old = Told { at: Monotonic(0) + Duration::from_secs(29), ..lid.clone() };
        let by = |told: &[(&Told, Right)]| {
            let told = told.iter().map(|(told, right)| (*told, Peer::new(1000, *right)));
            hibernates(told, Monotonic(0) + MINUTE)
        };
        for right in [Right::Follow, Right::Control] {
            assert_eq!(by(&[(&lid, right)]), Some(HibernatesBy::Lid));
            assert_eq!(by(&[(&told(None, 60), right), (&lid, right)]), Some(HibernatesBy::Lid));
            assert_eq!(by(&[(&old, right)]), None, "it looked too long ago");
        }
        for right in [Right::Read, Right::Prepare] {
            assert_eq!(by(&[(&lid, right), (&told(None, 60), Right::Follow)]), None);
        }
        assert_eq!(by(&[]), None);
    }
}
