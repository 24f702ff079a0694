//! The announced events, and those that must still be sent to the daemon.

use std::time::{Duration, SystemTime};

use omr_policy::Purpose;

/// An event is sent to the daemon at most this long before it: preparing for an event of next week
/// would only slow the machine down. EC2 gives its spot instances this much.
const LEAD: Duration = Duration::from_secs(120);
/// The pause before a daemon that did not answer is asked again. It doubles each time.
const RETRY: Duration = Duration::from_secs(1);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// One event that a provider announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The identity of the event, which stays the same.
    pub id: String,
    /// The provider's words for it.
    pub what: String,
    /// The purpose of the preparation; `None`: the event is worth a line in the log only.
    pub purpose: Option<Purpose>,
    /// The time of the event; `None`: at once.
    pub at: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The event must still be sent to the daemon, not before that moment (`None`: now).
    Waiting {
        not_before: Option<SystemTime>,
        retry: Duration,
    },
    Told,
    /// The event passed before it was sent, or it is not for the daemon.
    Done,
}

/// All events that are announced now.
#[derive(Debug, Default)]
pub struct Announced(Vec<Event>);

#[derive(Debug)]
struct Event {
    /// The number of the source that announces it.
    source: usize,
    notice: Notice,
    state: State,
    /// The event was sent to the daemon, perhaps with another deadline.
    told: bool,
}

/// A difference between two polls.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// An event that was not there, or that was different.
    New(Notice),
    /// An event is not announced any more.
    Withdrawn(Notice),
}

/// A preparation that the daemon is to be asked for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The identity of the event.
    pub id: String,
    /// The purpose of the preparation.
    pub purpose: Purpose,
    /// The time until the event; `None`: unknown.
    pub left: Option<Duration>,
    /// The reason, in the provider's words.
    pub why: String,
}

impl Announced {
    /// Takes in the notices that a source announces now, and returns the differences.
    pub fn update(&mut self, source: usize, seen: Vec<Notice>) -> Vec<Change> {
        let mut changes = Vec::new();
        self.0.retain(|event| {
            let stays = event.source != source || seen.iter().any(|seen| seen.id == event.notice.id);
            if !stays {
                changes.push(Change::Withdrawn(event.notice.clone()));
            }
            stays
        });
        for notice in seen {
            let known = self.0.iter_mut().find(|event| event.source == source && event.notice.id == notice.id);
            if known.as_ref().is_some_and(|event| event.notice == notice) {
                continue;
            }
            let state = match notice.purpose {
                Some(_) => State::Waiting { not_before: notice.at.and_then(|at| at.checked_sub(LEAD)), retry: RETRY },
                None => State::Done,
            };
            changes.push(Change::New(notice.clone()));
            match known {
                Some(event) => *event = Event { notice, state, ..*event },
                None => self.0.push(Event { source, notice, state, told: false }),
            }
        }
        changes
    }

    /// Returns an event that must be sent to the daemon now. Afterwards, call [`Announced::told`]
    /// or [`Announced::refused`].
    pub fn due(&mut self, now: SystemTime) -> Option<Due> {
        for Event { notice, state, .. } in &mut self.0 {
            let (State::Waiting { not_before, .. }, Some(purpose)) = (*state, notice.purpose) else { continue };
            if not_before.is_some_and(|moment| now < moment) {
                continue;
            }
            let left = match notice.at.map(|at| at.duration_since(now)) {
                None => None,
                Some(Ok(left)) if !left.is_zero() => Some(left),
                Some(_) => {
                    log::warn!("{}: its time has passed; nothing is prepared", notice.what);
                    *state = State::Done;
                    continue;
                }
            };
            return Some(Due { id: notice.id.clone(), purpose, left, why: notice.what.clone() });
        }
        None
    }

    /// The time until an event is due; `None`: not before a new one is announced.
    pub fn next(&self, now: SystemTime) -> Option<Duration> {
        let moments = self.0.iter().filter_map(|event| match event.state {
            State::Waiting { not_before, .. } => Some(not_before.unwrap_or(now)),
            _ => None,
        });
        moments.min().map(|moment| moment.duration_since(now).unwrap_or_default())
    }

    /// Notes that an event was sent to the daemon.
    pub fn told(&mut self, id: &str) {
        for event in self.0.iter_mut().filter(|event| event.notice.id == id) {
            (event.state, event.told) = (State::Told, true);
        }
    }

    /// Notes that an event could not be sent to the daemon.
    pub fn refused(&mut self, id: &str, now: SystemTime) {
        for event in self.0.iter_mut().filter(|event| event.notice.id == id) {
            if let State::Waiting { not_before, retry } = &mut event.state {
                *not_before = Some(now + *retry);
                *retry = (*retry * 2).min(RETRY_MAX);
            }
        }
    }

    /// Returns true if the daemon prepares for an event that is still announced.
    pub fn any_told(&self) -> bool {
        self.0.iter().any(|event| event.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        NOW + Duration::from_secs(1_000_000 + seconds)
    }

    fn notice(id: &str, seconds: Option<u64>) -> Notice {
        Notice { id: id.into(), what: format!("event {id}"), purpose: Some(Purpose::Preempt), at: seconds.map(at) }
    }

    #[test]
    fn the_daemon_is_told_once_however_often_an_event_is_seen() {
        let mut announced = Announced::default();
        assert_eq!(announced.update(0, vec![notice("a", Some(60))]).len(), 1);
        let due = announced.due(at(0)).expect("due");
        assert_eq!((due.left, due.why.as_str()), (Some(Duration::from_secs(60)), "event a"));
        announced.told("a");
        for second in 0..100 {
            assert_eq!(announced.update(0, vec![notice("a", Some(60))]), []);
            assert_eq!((announced.due(at(second)), announced.next(at(second))), (None, None));
        }
        assert!(announced.any_told());
    }

    #[test]
    fn another_deadline_is_told_again() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", Some(60))]);
        announced.told("a");
        assert_eq!(announced.update(0, vec![notice("a", Some(30))]), [Change::New(notice("a", Some(30)))]);
        assert!(announced.any_told(), "of the first one it was told");
        assert_eq!(announced.due(at(0)).and_then(|due| due.left), Some(Duration::from_secs(30)));
    }

    #[test]
    fn an_event_of_next_week_waits_until_it_is_near() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", Some(600_000))]);
        assert_eq!(announced.due(at(0)), None);
        assert_eq!(announced.next(at(0)), Some(Duration::from_secs(600_000) - LEAD));
        assert_eq!(announced.due(at(599_900)).and_then(|due| due.left), Some(Duration::from_secs(100)));
    }

    #[test]
    fn an_event_that_has_passed_is_not_sent() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", Some(0))]);
        assert_eq!(announced.due(at(0)), None);
        assert_eq!(announced.next(at(0)), None);
    }

    #[test]
    fn an_immediate_event_has_no_deadline() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", None)]);
        assert_eq!(announced.due(at(0)).map(|due| due.left), Some(None));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_asked_again_less_and_less_often() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", Some(100))]);
        let mut second = 0;
        let mut waits = Vec::new();
        while announced.due(at(second)).is_some() {
            announced.refused("a", at(second));
            let wait = announced.next(at(second)).expect("another try").as_secs();
            assert_eq!(announced.due(at(second)), None, "not at once");
            waits.push(wait);
            second += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 15, 15, 15, 15, 15, 15]);
    }

    #[test]
    fn a_source_withdraws_what_is_its_own() {
        let mut announced = Announced::default();
        announced.update(0, vec![notice("a", Some(60))]);
        announced.update(1, vec![notice("b", Some(60))]);
        announced.told("a");
        assert_eq!(announced.update(1, Vec::new()), [Change::Withdrawn(notice("b", Some(60)))]);
        assert!(announced.any_told());
        assert_eq!(announced.update(0, Vec::new()), [Change::Withdrawn(notice("a", Some(60)))]);
        assert!(!announced.any_told());
    }

    #[test]
    fn an_event_that_is_only_logged_is_never_due() {
        let mut announced = Announced::default();
        let only = Notice { purpose: None, ..notice("a", None) };
        assert_eq!(announced.update(0, vec![only.clone()]), [Change::New(only)]);
        assert_eq!((announced.due(at(0)), announced.next(at(0))), (None, None));
    }
}
