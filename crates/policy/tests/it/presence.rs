//! Who is there, and what may leave memory meanwhile with `goal = "auto"`.

use std::time::Duration;

use omr_policy::presence::{Facts, Place, Presence, Sessions, Sign};
use omr_policy::{ColdAmount, ColdOnly, Decision, Goal, Group, Reason, judge};
use omr_units::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::{Desk, group, seconds};

const MINUTE: u64 = 60;

fn session(idle: Option<u64>) -> Sessions {
    Sessions { active: 1, idle: idle.map(seconds) }
}

fn remote(idle: u64) -> Option<Facts> {
    Some(Facts { remote: session(Some(idle)), ..Facts::default() })
}

fn local(idle: Option<u64>) -> Option<Facts> {
    Some(Facts { local: session(idle), ..Facts::default() })
}

fn nobody() -> Option<Facts> {
    Some(Facts::default())
}

fn inhibited() -> Option<Facts> {
    Some(Facts { inhibited: true, ..Facts::default() })
}

/// A machine of 8 GiB of which 1 GiB is available, and these groups.
fn auto(groups: impl Into<Vec<Group>>) -> Desk {
    let mut desk = Desk::new(groups);
    desk.config.goal = Goal::Auto;
    desk
}

/// Ticks with these facts.
fn with(desk: &mut Desk, facts: Option<Facts>, ticks: u32) -> Presence {
    desk.machine.presence = facts;
    desk.ticks(ticks);
    desk.state.presence().clone()
}

/// A machine whose people have gone away.
fn deserted(groups: impl Into<Vec<Group>>) -> Desk {
    let mut desk = auto([]);
    assert!(matches!(with(&mut desk, nobody(), 601), Presence::Away { .. }));
    desk.groups = groups.into();
    desk
}

fn cold(min_age: u64) -> Option<ColdOnly> {
    Some(ColdOnly {
        min_age: seconds(min_age),
        cold: ColdAmount::Known { bytes: Bytes::mib(500) },
        learned: false,
        threshold: None,
    })
}

fn judged(desk: &Desk) -> Result<Bytes, String> {
    let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    judged.map(|(job, _)| job.amount).map_err(|why| why.to_string())
}

#[test]
fn nobody_is_away_before_ten_minutes_without_any_sign() {
    let mut desk = auto([]);
    let used = |ago| Presence::Present { why: Sign::Used { place: Place::Remote, ago: seconds(ago) } };
    assert_eq!(with(&mut desk, remote(0), 1), used(0));
    assert_eq!(with(&mut desk, remote(120), 120), used(120));
    assert_eq!(desk.state.presence().to_string(), "a remote session was used 2 min ago");
    assert_eq!(with(&mut desk, remote(599), 479), used(599));
    assert_eq!(with(&mut desk, remote(600), 1), Presence::Away { away: seconds(600) });
    assert_eq!(desk.state.presence().to_string(), "nobody has been there for 10 min");
    // The session ends, and nobody comes.
    assert_eq!(with(&mut desk, nobody(), 60), Presence::Away { away: seconds(660) });
    // Any sign ends it at once.
    for facts in [remote(1), local(Some(0)), local(None), inhibited(), None] {
        assert!(!with(&mut desk.clone(), facts.clone(), 1).is_absence(), "{facts:?}");
    }
    desk.slept = true;
    assert_eq!(with(&mut desk, nobody(), 1), Presence::Present { why: Sign::Lately { ago: Duration::ZERO } });
}

#[test]
fn a_session_whose_use_is_unknown_is_in_use() {
    let mut desk = auto([]);
    let presence = with(&mut desk, local(None), 7200);
    assert_eq!(presence, Presence::Present { why: Sign::Active { place: Place::Local } });
    // The control: the same session, used at the beginning.
    assert!(with(&mut auto([]), local(Some(7200)), 7200).is_absence());
    // Of two sessions the one that was used last counts.
    let both = Facts { local: session(Some(5)), remote: session(Some(4000)), ..Facts::default() };
    let used = Presence::Present { why: Sign::Used { place: Place::Local, ago: seconds(5) } };
    assert_eq!(with(&mut desk, Some(both), 1), used);
}

#[test]
fn a_statement_of_nobody_does_not_make_the_use_of_a_session_unknown() {
    // One who sees only remote sessions, of which there are none, knows no idle time of local ones.
    let (seen, other) = (Facts { local: session(Some(300)), ..Facts::default() }, Facts::default());
    assert_eq!(seen.merge(&other), seen);
    assert_eq!(other.merge(&seen).local, seen.local);
    let mut desk = auto([]);
    let used = with(&mut desk, Some(seen.merge(&other)), 1);
    assert!(matches!(used, Presence::Present { why: Sign::Used { ago, .. } } if ago == seconds(300)), "{used:?}");
    // Two who see a session each know when the later one was used.
    let both = seen.merge(&Facts { local: session(Some(100)), ..Facts::default() });
    assert_eq!(both.local.idle, Some(seconds(100)));
    assert_eq!(seen.merge(&Facts { local: session(None), ..Facts::default() }).local.idle, None);
}

#[test]
fn a_session_that_was_used_long_ago_is_no_sign_of_use() {
    // Somebody woke the machine, so somebody is there, though the session was not used for an hour.
    let mut desk = auto([]);
    with(&mut desk, local(Some(3600)), 1);
    desk.slept = true;
    let presence = with(&mut desk, local(Some(3600)), 1);
    assert!(matches!(presence, Presence::Present { why: Sign::Lately { .. } }), "{presence:?}");
}

#[test]
fn a_machine_where_nobody_ever_logged_in_waits_for_nobody() {
    let mut desk = auto([]);
    desk.now = omr_units::Monotonic(0) + seconds(10);
    assert_eq!(with(&mut desk, None, 20), Presence::Unknown);
    assert_eq!(with(&mut desk, nobody(), 1), Presence::Nobody);
    assert_eq!(with(&mut desk, nobody(), 1000), Presence::Nobody);
    // The control: somebody did.
    with(&mut desk, remote(0), 1);
    assert_eq!(with(&mut desk, nobody(), 5), Presence::Present { why: Sign::Lately { ago: seconds(5) } });
    // Of the time before the first facts nothing is known.
    let mut later = auto([]);
    assert!(!with(&mut later, nobody(), 600).is_absence() && with(&mut later, nobody(), 1).is_absence());
}

#[test]
fn facts_that_are_missing_or_old_are_unknown() {
    let aged = |age| Some(Facts { age: seconds(age), ..Facts::default() });
    let desk = deserted([]);
    assert!(with(&mut desk.clone(), aged(30), 1).is_absence(), "the control");
    for facts in [None, aged(31)] {
        let mut desk = desk.clone();
        assert_eq!(with(&mut desk, facts, 1), Presence::Unknown);
        // Nobody looked: the ten minutes begin anew.
        assert!(!with(&mut desk, nobody(), 599).is_absence() && with(&mut desk, nobody(), 1).is_absence());
    }
    // Neither did anybody while the ticks stood still, or while the clock was wrong.
    for jump in [31, 10_000] {
        let mut late = desk.clone();
        late.now = late.now + seconds(jump);
        assert!(!with(&mut late, nobody(), 1).is_absence());
    }
    let mut back = desk.clone();
    with(&mut back, nobody(), 1000);
    back.now = back.now - seconds(300);
    assert!(!with(&mut back, nobody(), 1).is_absence());
    let mut soon = desk;
    soon.now = soon.now + seconds(29);
    assert!(with(&mut soon, nobody(), 1).is_absence(), "the control");
}

#[test]
fn while_somebody_is_there_only_cold_memory_leaves() {
    let mut desk = deserted([group(1, 2000, 1000)]);
    assert_eq!(judged(&desk), Ok(Bytes::mib(2000)), "the control");
    for (facts, words) in [
        (remote(120), "somebody is there: a remote session was used 2 min ago"),
        (local(None), "somebody is there: a local session is active, and the time of its last use is not known"),
        (None, "somebody may be there: no program tells omr who is there (omr follow presence)"),
    ] {
        with(&mut desk, facts, 1);
        let why = format!("{words}; only memory unused for long enough is reclaimed");
        assert_eq!(judged(&desk), Err(why.clone()));
        assert_eq!(desk.tick().reason().to_string(), why);
        desk.group(1).cold_only = cold(120);
        assert_eq!(judged(&desk), Ok(Bytes::mib(500)));
        desk.group(1).cold_only = None;
    }
    // Other goals do not ask.
    for goal in [Goal::Free, Goal::Hibernate] {
        desk.config.goal = goal;
        desk.machine.image = Some(Bytes::mib(4000));
        assert!(judged(&desk).is_ok());
    }
}

#[test]
fn while_somebody_looks_on_nothing_of_the_last_hour_leaves() {
    let mut desk = deserted([group(1, 3000, 1000)]);
    with(&mut desk, inhibited(), 1);
    let why = "somebody is there: a program shows or plays something (it holds an idle inhibitor); only memory \
               unused for an hour is reclaimed";
    for (min_age, gain) in [(None, None), (Some(120), None), (Some(3599), None), (Some(3600), Some(500))] {
        desk.group(1).cold_only = min_age.and_then(cold);
        assert_eq!(judged(&desk), gain.map(Bytes::mib).ok_or_else(|| why.to_owned()), "{min_age:?}");
    }
}

#[test]
fn a_sweep_ends_when_somebody_comes() {
    for (cold_only, facts, ends) in [
        (None, remote(0), true),
        (None, None, true),
        (None, inhibited(), true),
        (None, nobody(), false),
        (cold(120), remote(0), false),
        (cold(120), None, false),
        (cold(120), inhibited(), true),
        (cold(3600), inhibited(), false),
    ] {
        let mut desk = deserted([Group { cold_only, ..group(1, 3000, 1000) }]);
        desk.until_sweep(2);
        desk.machine.presence = facts;
        let case = format!("{:?} {:?}", desk.groups[0].cold_only, desk.machine.presence);
        match desk.tick() {
            Decision::Stop { reason: Reason::SomebodyThere { .. } } => assert!(ends, "{case}"),
            Decision::Continue { .. } => assert!(!ends, "{case}"),
            other => panic!("{case}: {other:?}"),
        }
    }
}

#[test]
fn names_in_json() {
    let presence = Presence::Present { why: Sign::Used { place: Place::Remote, ago: seconds(2) } };
    let json = serde_json::to_string(&Reason::SomebodyThere { presence }).expect("plain data");
    let expected = r#"{"kind":"somebody-there","presence":{"is":"present","why":{"sign":"used","place":"remote","ago":{"secs":2,"nanos":0}}}}"#;
    assert_eq!(json, expected);
    let facts = serde_json::to_string(&remote(2)).expect("plain data");
    let expected = r#"{"age":{"secs":0,"nanos":0},"local":{"active":0,"idle":null},"remote":{"active":1,"idle":{"secs":2,"nanos":0}},"inhibited":false}"#;
    assert_eq!(facts, expected);
}

/// One tick of a story: facts, and the time since the tick before.
#[derive(Clone, Debug)]
struct Moment {
    facts: Option<Facts>,
    after: u64,
    slept: bool,
}

fn sessions() -> impl Strategy<Value = Sessions> {
    let idle = option::of(select(vec![0, 1, 60, 9 * MINUTE, 11 * MINUTE, 100 * MINUTE]).prop_map(seconds));
    (select(vec![0u32, 0, 0, 1, 2]), idle).prop_map(|(active, idle)| Sessions { active, idle })
}

fn facts() -> impl Strategy<Value = Facts> {
    let inhibited = proptest::bool::weighted(0.1);
    (select(vec![0, 0, 0, 10, 30, 31, 1000]), sessions(), sessions(), inhibited)
        .prop_map(|(age, local, remote, inhibited)| Facts { age: seconds(age), local, remote, inhibited })
}

fn moment() -> impl Strategy<Value = Moment> {
    let facts = prop_oneof![3 => Just(nobody()), 3 => facts().prop_map(Some), 1 => Just(None)];
    let after = select(vec![1, 1, 1, 20, 30, 31, 700]);
    (facts, after, proptest::bool::weighted(0.03)).prop_map(|(facts, after, slept)| Moment { facts, after, slept })
}

/// Stories with long quiet times.
fn story() -> impl Strategy<Value = Vec<Moment>> {
    let quiet = Moment { facts: nobody(), after: 30, slept: false };
    let part = prop_oneof![
        2 => moment().prop_map(|moment| vec![moment]),
        1 => (1usize..40).prop_map(move |n| vec![quiet.clone(); n]),
    ];
    vec(part, 1..25).prop_map(|parts| parts.concat())
}

/// The presence at each moment.
fn told(story: &[Moment]) -> Vec<Presence> {
    let mut desk = auto([]);
    let tick = |moment: &Moment| {
        desk.machine.dt = seconds(moment.after);
        desk.slept = moment.slept;
        with(&mut desk, moment.facts.clone(), 1)
    };
    story.iter().map(tick).collect()
}

fn changed(story: &[Moment], at: usize, change: impl Fn(&mut Moment)) -> Vec<Moment> {
    let mut story = story.to_vec();
    let at = at % story.len();
    change(&mut story[at]);
    story
}

/// Whether somebody is away in the second story wherever in the first.
fn away_wherever(first: &[Moment], second: &[Moment]) -> bool {
    told(first).iter().zip(told(second)).all(|(first, second)| !first.is_absence() || second.is_absence())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn unknown_is_never_away(story in story()) {
        for (moment, presence) in story.iter().zip(told(&story)) {
            let fresh = moment.facts.as_ref().is_some_and(Facts::is_fresh);
            prop_assert_eq!(fresh, presence != Presence::Unknown);
        }
    }

    #[test]
    fn more_idle_is_never_less_away(story in story(), at: usize, more in select(vec![1u64, 60, 600, 100_000])) {
        let idler = changed(&story, at, |moment| {
            let Some(facts) = &mut moment.facts else { return };
            for sessions in [&mut facts.local, &mut facts.remote] {
                sessions.idle = Some(sessions.idle.unwrap_or_default() + seconds(more));
            }
        });
        prop_assert!(away_wherever(&story, &idler));
    }

    #[test]
    fn a_sign_of_somebody_or_a_missing_fact_is_never_more_away(story in story(), at: usize, sign in facts(), which in 0u32..4) {
        let more = changed(&story, at, |moment| match which {
            0 => moment.facts = None,
            1 => moment.slept = true,
            2 => moment.facts = moment.facts.as_ref().map(|facts| facts.merge(&sign)),
            _ => moment.facts = moment.facts.clone().map(|facts| Facts { age: seconds(31), ..facts }),
        });
        prop_assert!(away_wherever(&more, &story));
    }

    /// The least time of absence holds for every story: no sign within ten minutes.
    #[test]
    fn who_is_away_gave_no_sign_for_ten_minutes(story in story()) {
        let mut now = 0;
        let mut last = 0;
        for (moment, presence) in story.iter().zip(told(&story)) {
            now += moment.after;
            let fresh = moment.facts.as_ref().filter(|facts| facts.is_fresh());
            let is_used = |sessions: Sessions| sessions.active > 0 && sessions.idle.is_none_or(|idle| idle < seconds(600));
            let sign = fresh.is_none_or(|facts| facts.inhibited || is_used(facts.local) || is_used(facts.remote));
            if sign || moment.slept || moment.after > 30 {
                // A sign of up to ten minutes ago.
                let ago = fresh.filter(|facts| !facts.inhibited && !moment.slept && moment.after <= 30).map_or(0, |facts| {
                    let idle = |sessions: Sessions| if sessions.active > 0 { sessions.idle.map_or(0, |idle| idle.as_secs()) } else { u64::MAX };
                    idle(facts.local).min(idle(facts.remote))
                });
                last = last.max(now.saturating_sub(ago));
            }
            if let Presence::Away { away } = presence {
                prop_assert!(now - last >= 600 && away >= seconds(600));
            }
        }
    }

    /// However often it happens: the signs need not last.
    #[test]
    fn flapping_is_never_away(sign in prop_oneof![Just(None), facts().prop_map(Some)], quiet in 1usize..590, times in 1usize..6) {
        let sign = sign.filter(|facts| !facts.is_fresh() || facts.inhibited || [facts.local, facts.remote].iter().any(|of| {
            of.active > 0 && of.idle.is_none_or(|idle| idle <= seconds(1))
        }));
        let one = |facts| Moment { facts, after: 1, slept: false };
        let mut story = vec![one(sign)];
        story.resize(quiet, one(nobody()));
        let story = vec![story; times].concat();
        prop_assert!(told(&story).iter().all(|presence| !presence.is_absence()));
        // The control: the same, once more than ten minutes apart.
        let story = [story, vec![one(nobody()); 602]].concat();
        prop_assert!(told(&story).last().is_some_and(Presence::is_absence));
    }

    #[test]
    fn absence_begins_in_time(story in story()) {
        let quiet = vec![Moment { facts: nobody(), after: 1, slept: false }; 601];
        let story = [story, quiet].concat();
        prop_assert!(told(&story).last().is_some_and(Presence::is_absence));
    }

    #[test]
    fn a_statement_adds_presence_and_takes_none_away(first in facts(), second in facts()) {
        let merged = first.merge(&second);
        for (of, one, other) in [(merged.local, first.local, second.local), (merged.remote, first.remote, second.remote)] {
            prop_assert_eq!(of.active, one.active.max(other.active));
            for part in [one, other].into_iter().filter(|part| part.active > 0) {
                prop_assert!(of.idle <= part.idle);
            }
        }
        prop_assert_eq!(merged.inhibited, first.inhibited || second.inhibited);
        prop_assert_eq!(merged.age, first.age);
    }
}
