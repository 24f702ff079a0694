//! `goal = "auto"`: what is needed, from which groups, and that nothing else is reclaimed.

use std::time::Duration;

use omr_policy::need::{HibernatesBy, Need, NeedPurpose, need};
use omr_policy::{
    Class, ColdAmount, ColdOnly, Config, Decision, End, Goal, Group, Machine, Memory, Reason, judge, nobody_gains,
};
use omr_units::{Bytes, GroupId, Permyriad};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::{Desk, disk, group, quiet, seconds};

const DAY: u64 = 86_400;

/// A machine of 8 GiB.
fn available(mib: u64) -> Machine {
    Machine { memory: Some(Memory { total: Bytes::mib(8192), available: Bytes::mib(mib) }), ..quiet() }
}

/// It hibernated a day ago, its image would hold 6,000 MiB, and its disk writes 500 MiB in 5 s.
fn hibernating(mib: u64) -> Machine {
    let (image, disk_rate) = (Some(Bytes::mib(6000)), Some(Bytes::mib(100)));
    Machine { hibernated: Some(seconds(DAY)), image, disk_rate, ..available(mib) }
}

fn reporting(mib: u64) -> Machine {
    Machine { free_page_reporting: Some(true), ..available(mib) }
}

/// On this machine nobody is there.
fn auto(machine: Machine, groups: impl Into<Vec<Group>>) -> Desk {
    let mut desk = Desk::new([]);
    desk.config.goal = Goal::Auto;
    desk.config.presence.away_after = Duration::ZERO;
    desk.machine = machine;
    desk.tick();
    desk.groups = groups.into();
    desk
}

/// The need in MiB and in words, or why there is none.
fn needed(machine: &Machine) -> Result<(u64, String), String> {
    let need = need(&Config::default(), machine).map_err(|reason| reason.to_string())?;
    Ok((need.bytes.0 >> 20, need.to_string()))
}

fn judged(desk: &Desk) -> Result<u64, String> {
    let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    judged.map(|(job, _)| job.amount.0 >> 20).map_err(|why| why.to_string())
}

fn cold(mib: u64) -> Option<ColdOnly> {
    Some(ColdOnly {
        min_age: seconds(120),
        cold: ColdAmount::Known { bytes: Bytes::mib(mib) },
        learned: false,
        threshold: None,
    })
}

#[test]
fn half_of_the_memory_should_be_available() {
    let words = "1.60 GiB more should be available: 30 % of memory is (auto wants 50 %)".to_owned();
    assert_eq!(needed(&available(2458)), Ok((1638, words)));
    let enough = |share| Err(format!("nothing to gain: {share} % of memory is available (auto wants 50 %)"));
    assert_eq!(needed(&available(5000)), enough(61));
    assert_eq!(needed(&available(4096)), enough(50));
    // What goes up and down by itself is worth no sweep.
    let little = "little to gain: 15.0 MiB more should be available: 49 % of memory is (auto wants 50 %); \
                  16.0 MiB is worth a sweep";
    assert_eq!(needed(&available(4081)), Err(little.to_owned()));
    assert_eq!(needed(&available(4080)).map(|(mib, _)| mib), Ok(16));
    // More than there is.
    assert_eq!(needed(&available(16_384)), enough(200));
}

#[test]
fn a_machine_is_looked_at_less_often_only_where_nobody_gains() {
    let auto = Config { goal: Goal::Auto, ..Config::default() };
    assert!(nobody_gains(&auto, &available(5000)), "enough is available");
    assert!(nobody_gains(&auto, &available(4081)), "too little for a sweep");
    for (why, machine) in [
        ("little is available", available(1000)),
        ("it hibernates", hibernating(5000)),
        ("a need may be there that is not known", Machine { memory: None, ..available(5000) }),
    ] {
        assert!(!nobody_gains(&auto, &machine), "{why}");
    }
    for goal in [Goal::Free, Goal::Hibernate] {
        assert!(!nobody_gains(&Config { goal, ..Config::default() }, &available(5000)), "{goal:?}");
    }
}

#[test]
fn page_cache_that_is_available_already_is_said_to_be_only_where_there_is_enough_of_it() {
    let judged = |anon, file| {
        let desk = auto(available(1000), [group(1, anon, file)]);
        judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job.amount)
    };
    assert!(matches!(judged(1, 100), Err(Reason::AvailableAlready { .. })), "{:?}", judged(1, 100));
    assert!(matches!(judged(1, 1), Err(Reason::TooSmall { .. })), "{:?}", judged(1, 1));
}

#[test]
fn an_image_should_be_small_where_the_machine_hibernates_in_practice() {
    let machine = hibernating(5000);
    let words = "a hibernation image should hold 5.37 GiB less: it would hold 5.86 GiB, and the disk writes 500 MiB \
                 in 5 s; ";
    let because = |why: &str| Ok((5500, format!("{words}{why}")));
    assert_eq!(needed(&machine), because("the machine hibernated in the last 30 days"));
    for (by, why) in [
        (HibernatesBy::Lid, "the lid's action is hibernation"),
        (HibernatesBy::Idle, "the action of the idle machine is hibernation"),
        (HibernatesBy::CriticalBattery, "the action with a critical battery is hibernation"),
    ] {
        let machine = Machine { hibernated: None, hibernates_by: Some(by), ..machine.clone() };
        assert_eq!(needed(&machine), because(why));
        let long_ago = Machine { hibernated: Some(seconds(31 * DAY)), ..machine.clone() };
        assert_eq!(needed(&long_ago), because(why));
        // What it did says more than what it is set to.
        let lately = Machine { hibernated: Some(seconds(DAY)), ..machine.clone() };
        assert_eq!(needed(&lately), because("the machine hibernated in the last 30 days"));
        // It cannot, or its disk was not measured.
        for other in [Machine { image: None, ..machine.clone() }, Machine { disk_rate: None, ..machine }] {
            assert!(matches!(need(&Config::default(), &other), Err(Reason::NoNeed { .. })));
        }
    }
    // The controls: each signal that is missing is no need.
    for other in [
        Machine { hibernated: None, ..machine.clone() },
        Machine { hibernated: Some(seconds(30 * DAY + 1)), ..machine.clone() },
        Machine { image: None, ..machine.clone() },
        Machine { image: Some(Bytes::mib(500)), ..machine.clone() },
        Machine { disk_rate: None, ..machine.clone() },
        Machine { disk_rate: Some(Bytes::mib(1200)), ..machine.clone() },
        Machine { disk_rate: Some(Bytes::MAX), ..machine.clone() },
    ] {
        let reason = need(&Config::default(), &other);
        assert!(matches!(reason, Err(Reason::NoNeed { .. })), "{reason:?}");
    }
    let month = Machine { hibernated: Some(seconds(30 * DAY)), ..machine };
    assert_eq!(needed(&month).map(|(mib, _)| mib), Ok(5500));
}

#[test]
fn all_cold_memory_is_for_a_host_that_gains_from_it() {
    let words = "all cold memory should go back to the host of this machine".to_owned();
    assert_eq!(needed(&reporting(5000)), Ok((8192, words)));
    for reports in [None, Some(false)] {
        let machine = Machine { free_page_reporting: reports, ..available(5000) };
        assert!(matches!(need(&Config::default(), &machine), Err(Reason::NoNeed { .. })));
    }
}

#[test]
fn of_several_needs_the_largest_counts() {
    let purpose = |machine: &Machine| need(&Config::default(), machine).map(|need| need.purpose);
    let small = Machine { image: Some(Bytes::mib(600)), ..hibernating(1000) };
    assert!(matches!(purpose(&small), Ok(NeedPurpose::Available { .. })));
    assert!(matches!(purpose(&hibernating(1000)), Ok(NeedPurpose::Hibernate { .. })));
    let all = Machine { free_page_reporting: Some(true), ..hibernating(1000) };
    assert_eq!(purpose(&all), Ok(NeedPurpose::Footprint));
}

#[test]
fn where_available_memory_is_unknown_nothing_is_wanted() {
    for machine in [
        Machine { memory: None, free_page_reporting: Some(true), ..hibernating(100) },
        Machine { memory: Some(Memory { total: Bytes::ZERO, available: Bytes::ZERO }), ..reporting(100) },
    ] {
        let unknown = "the available memory cannot be read, which counts as busy".to_owned();
        assert_eq!(needed(&machine), Err(unknown));
        assert!(matches!(auto(machine, [group(1, 1000, 1000)]).no_sweep(60), Reason::Unknown { .. }));
    }
}

#[test]
fn a_roomy_machine_is_left_alone_and_a_short_one_loses_what_lacks() {
    let mut desk = auto(available(5000), [group(1, 3000, 1000)]);
    let reason = Reason::NoNeed { available: Permyriad(6103), wanted: Permyriad::percent(50) };
    assert_eq!(desk.no_sweep(600), reason);
    // The control: the other goal does not ask.
    let mut free = desk.clone();
    free.config.goal = Goal::Free;
    free.until_sweep(1);

    desk.machine = available(4000);
    match desk.tick() {
        Decision::Sweep { id, job, .. } => {
            assert_eq!((id, job.amount), (GroupId(1), Bytes::mib(96)));
            assert!(job.anon_first && !job.file_only);
            assert!(job.floor >= Bytes::mib(1000), "the rest is page cache");
        }
        other => panic!("{other:?}"),
    }
    desk.finish(End::Complete, 3904);
    // What was spared is swept once more lacks, though the group has not grown.
    desk.machine = available(4096);
    desk.no_sweep(10);
    desk.machine = available(3000);
    desk.until_sweep(1);
}

#[test]
fn page_cache_is_available_already_and_no_gain() {
    // 1,000 MiB lack, and the group has 3,000 MiB of page cache.
    let mut desk = auto(available(3096), [group(1, 100, 3000)]);
    assert_eq!(judged(&desk), Ok(100));
    desk.groups = vec![group(1, 1, 3000)];
    let why = "1.00 MiB to gain, 2.00 MiB is worth a sweep; its page cache, 2.93 GiB, is available already";
    assert_eq!(judged(&desk), Err(why.to_owned()));
    assert_eq!(desk.no_sweep(60), Reason::NothingToGain);
    // Without swap nothing can be gained.
    desk.groups = vec![group(1, 500, 3000)];
    desk.machine.swap = disk(0, 0);
    let why = "0 B to gain, 2.00 MiB is worth a sweep; its page cache, 2.93 GiB, is available already";
    assert_eq!(judged(&desk), Err(why.to_owned()));
    // With swap at its floor neither, though the kernel could be told to reclaim files only.
    desk.machine.swap = disk(1000, 100);
    assert!(judged(&desk).is_err_and(|why| why.contains("stays free")));

    // The control: it is in an image, and the usual goal counts it.
    let mut desk = auto(hibernating(5000), [group(1, 100, 3000)]);
    desk.machine.swap = disk(16_000, 16_000);
    assert_eq!(judged(&desk), Ok(3100));
    desk.config.goal = Goal::Free;
    assert_eq!(judged(&desk), Ok(3100));
}

#[test]
fn a_kernel_that_cannot_be_told_is_not_told() {
    let mut desk = auto(available(3096), [group(1, 100, 3000)]);
    desk.machine.file_only = false;
    let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
    assert_eq!((job.amount, job.anon_first, job.file_only), (Bytes::mib(100), false, false));
}

#[test]
fn only_cold_memory_goes_to_a_host() {
    let mut desk = auto(reporting(5000), [group(1, 3000, 1000)]);
    let why = "only the host would gain, from cold memory, and no rule (older_than) says what is cold";
    assert_eq!(judged(&desk), Err(why.to_owned()));
    assert_eq!(desk.no_sweep(60), Reason::NothingToGain);
    desk.group(1).cold_only = cold(700);
    assert_eq!(judged(&desk), Ok(700));
    // A need of the machine itself counts for every group.
    desk.machine = reporting(3096);
    desk.group(1).cold_only = None;
    match desk.tick() {
        Decision::Sweep { job, .. } => assert_eq!(job.amount, Bytes::mib(1000)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_group_that_is_not_in_the_background_loses_nothing_however_much_lacks() {
    let mut desk = auto(available(10), [group(1, 3000, 0)]);
    desk.group(1).class = Class::Foreground;
    assert_eq!(desk.no_sweep(60), Reason::NothingToGain);
}

#[test]
fn names_in_json() {
    let json = |value: &Reason| serde_json::to_string(value).expect("plain data");
    let reason = Reason::NoNeed { available: Permyriad(6100), wanted: Permyriad(5000) };
    assert_eq!(json(&reason), r#"{"kind":"no-need","available":6100,"wanted":5000}"#);
    let purpose = NeedPurpose::Hibernate { image: Bytes(3), small: Bytes(1), by: None };
    let reason = Reason::LittleNeed { need: Need { bytes: Bytes(2), purpose }, smallest: Bytes(4) };
    assert_eq!(
        json(&reason),
        r#"{"kind":"little-need","need":{"bytes":2,"purpose":{"for":"hibernate","image":3,"small":1}},"smallest":4}"#
    );
}

prop_compose! {
    fn any_machine()(
        total in select(vec![0u64, 100, 8192, 1 << 20]),
        available in 0u64..=120,
        hibernated in option::of(select(vec![0, 29 * DAY, 31 * DAY])),
        hibernates_by in option::of(select(vec![HibernatesBy::Lid, HibernatesBy::Idle, HibernatesBy::CriticalBattery])),
        image in option::of(0u64..10_000),
        disk_rate in option::of(0u64..2000),
        free_page_reporting in option::of(any::<bool>()),
        file_only: bool,
    ) -> Machine {
        let memory = Memory { total: Bytes::mib(total), available: Bytes::mib(total * available / 100) };
        Machine {
            memory: Some(memory),
            hibernated: hibernated.map(Duration::from_secs),
            hibernates_by,
            image: image.map(Bytes::mib),
            disk_rate: disk_rate.map(Bytes::mib),
            free_page_reporting,
            file_only,
            ..quiet()
        }
    }
}

prop_compose! {
    fn any_group()(
        id in 1u64..=5,
        anon in 0u64..2000,
        file in 0u64..2000,
        class in select(vec![Class::Background, Class::Background, Class::Foreground]),
        cold in option::of(0u64..2000),
    ) -> Group {
        let cold_only = cold.map(|mib| ColdOnly { min_age: seconds(120), cold: ColdAmount::Known { bytes: Bytes::mib(mib) }, learned: false, threshold: None });
        Group { class, cold_only, ..group(id, anon, file) }
    }
}

fn bytes(machine: &Machine) -> Bytes {
    need(&Config::default(), machine).map_or(Bytes::ZERO, |need| need.bytes)
}

/// How much would be reclaimed from each group.
fn amounts(machine: &Machine, groups: &[Group]) -> Vec<Bytes> {
    let desk = auto(machine.clone(), groups);
    let signals = desk.signals();
    let amount = |group| judge(&desk.config, &desk.state, &signals, group).map_or(Bytes::ZERO, |(job, _)| job.amount);
    groups.iter().map(amount).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn less_available_memory_never_wants_less(machine in any_machine(), less in 0u64..10_000) {
        let memory = machine.memory.expect("known");
        let less = Memory { available: memory.available - Bytes::mib(less), ..memory };
        let less = Machine { memory: Some(less), ..machine.clone() };
        prop_assert!(bytes(&less) >= bytes(&machine));
    }

    #[test]
    fn unknown_signals_never_want_more(machine in any_machine(), lose in 0u32..1 << 6, groups in vec(any_group(), 0..4)) {
        let mut less = machine.clone();
        for (bit, forget) in [
            (|m: &mut Machine| m.memory = None) as fn(&mut Machine),
            |m| m.hibernated = None,
            |m| m.hibernates_by = None,
            |m| m.disk_rate = None,
            |m| m.free_page_reporting = None,
            |m| m.swap = None,
        ].into_iter().enumerate() {
            if lose & 1 << bit != 0 {
                forget(&mut less);
            }
        }
        prop_assert!(bytes(&less) <= bytes(&machine));
        prop_assert!(less.memory.is_some() || bytes(&less) == Bytes::ZERO);
        if less.memory.is_none() {
            prop_assert!(amounts(&less, &groups).iter().all(|amount| *amount == Bytes::ZERO));
        }
    }

    #[test]
    fn a_need_is_never_more_than_there_is(machine in any_machine()) {
        let memory = machine.memory.expect("known");
        match need(&Config::default(), &machine) {
            Ok(Need { bytes, purpose: NeedPurpose::Available { .. } }) => {
                prop_assert!(bytes + memory.available <= memory.total);
            }
            Ok(Need { bytes, .. }) => prop_assert!(bytes <= memory.total),
            Err(_) => {}
        }
    }

    #[test]
    fn a_sweep_is_of_no_more_than_the_need_and_only_of_what_gains(machine in any_machine(), groups in vec(any_group(), 1..4)) {
        let mut groups = groups;
        groups.sort_by_key(|group| group.id);
        groups.dedup_by_key(|group| group.id);
        let (need, mut desk) = (need(&Config::default(), &machine), auto(machine, groups));
        for _ in 0..40 {
            let Decision::Sweep { id, job, .. } = desk.tick() else { continue };
            let need = need.clone().expect("somebody gains");
            prop_assert!(job.amount <= need.bytes);
            let group = desk.groups.iter().find(|group| group.id == id).expect("a group of the list");
            if matches!(need.purpose, NeedPurpose::Available { .. }) {
                prop_assert!(job.amount <= group.swap_backed.expect("known") && !job.file_only);
            }
            return Ok(());
        }
    }
}
