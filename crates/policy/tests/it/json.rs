//! Names in JSON: clients of the control socket and files on disk know them, so a name in the code
//! may change while the name in JSON stays.

use omr_policy::cost::{Medium, OnBattery};
use omr_policy::rank::{HintEnd, HintKind, HintReport, Verdict};
use omr_policy::{ColdAmount, ColdOnly, End, Goal, Purpose, Reason, Swap};
use omr_units::Bytes;
use serde::Serialize;

use crate::desk::seconds;

fn json(value: impl Serialize) -> String {
    serde_json::to_string(&value).expect("plain data")
}

#[test]
fn names_of_cold_memory_stay() {
    let cold =
        ColdOnly { min_age: seconds(2), cold: ColdAmount::Known { bytes: Bytes(1) }, learned: false, threshold: None };
    assert_eq!(json(cold), r#"{"older_than":{"secs":2,"nanos":0},"old":{"is":"known","bytes":1}}"#);
    let reason = Reason::LittleCold { cold: Bytes(1), min_age: seconds(2), smallest: Bytes(3) };
    assert_eq!(json(reason), r#"{"kind":"young","old":1,"older_than":{"secs":2,"nanos":0},"smallest":3}"#);
    assert_eq!(json(End::NoMoreCold), r#""young""#);
}

#[test]
fn names_of_idle_time_and_statements_stay() {
    assert_eq!(json(Reason::Idle { idle: seconds(1) }), r#"{"kind":"idle","for":{"secs":1,"nanos":0}}"#);
    let settling = Reason::Settling { idle: seconds(1), needed: seconds(2) };
    assert_eq!(json(settling), r#"{"kind":"settling","held":{"secs":1,"nanos":0},"needed":{"secs":2,"nanos":0}}"#);
    assert_eq!(json(Reason::NotStated), r#"{"kind":"not-asked"}"#);
}

#[test]
fn names_of_swap_stay() {
    let swap = Swap { total: Bytes(3), free: Bytes(2), on_disk: true, free_outside_image: Bytes(1) };
    assert_eq!(json(swap), r#"{"total":3,"free":2,"on_disk":true,"beside":1}"#);
}

#[test]
fn names_of_hints_stay() {
    let kinds = [HintKind::Deactivate, HintKind::PageOut, HintKind::Prefetch];
    assert_eq!(json(kinds), r#"["cold","pageout","willneed"]"#);
    assert_eq!(kinds.map(HintKind::name), ["cold", "pageout", "willneed"]);
    let verdict = Verdict::Hint { kind: HintKind::PageOut, reason: Reason::CameBack };
    assert_eq!(json(verdict), r#"{"do":"hint","step":"pageout","reason":{"kind":"came-back"}}"#);
    let report =
        HintReport { kind: HintKind::Deactivate, anon: Bytes(1), swap_writes: Bytes(2), end: HintEnd::Complete };
    assert_eq!(json(report), r#"{"step":"cold","anon":1,"swap_writes":2,"end":"complete"}"#);
}

#[test]
fn names_in_the_configuration_are_found_and_are_the_same_in_json() {
    for (goal, name) in [(Goal::Auto, "auto"), (Goal::Free, "free"), (Goal::Hibernate, "hibernate")] {
        assert_eq!((goal.name(), Goal::from_name(name), json(goal)), (name, Some(goal), format!("\"{name}\"")));
    }
    for (value, name) in [(OnBattery::Memory, "memory"), (OnBattery::Disk, "disk")] {
        let found = (value.name(), OnBattery::from_name(name), json(value));
        assert_eq!(found, (name, Some(value), format!("\"{name}\"")));
    }
    assert_eq!((Goal::from_name("Auto"), OnBattery::from_name("")), (None, None));
}

#[test]
fn a_medium_is_named_as_people_name_it() {
    let media = [Medium::Memory, Medium::Ssd, Medium::Rotational, Medium::Card, Medium::Unknown];
    let names = media.map(|medium| medium.to_string());
    assert_eq!(names, ["memory", "SSD", "rotating disk", "memory card", "unknown medium"]);
}

#[test]
fn names_of_purposes_stay() {
    for (purpose, name) in
        [(Purpose::Hibernate, "hibernate"), (Purpose::Migrate, "migrate"), (Purpose::Preempt, "preempt")]
    {
        assert_eq!((purpose.name(), json(purpose)), (name, format!("\"{name}\"")));
    }
}
