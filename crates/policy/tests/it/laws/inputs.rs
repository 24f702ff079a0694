//! Inputs of the laws: machines, groups, and policies after some events.

use std::time::Duration;

use omr_policy::cost::{CostFacts, Disk, Medium, Power};
use omr_policy::need::HibernatesBy;
use omr_policy::presence::{Facts, Sessions};
use omr_policy::probe::{Answer, Why};
use omr_policy::{
    Class, ColdAmount, ColdOnly, Config, CpuIdle, Decision, End, Finished, Goal, Group, IdleRule, Machine, Memory,
    Swap, judge,
};
use omr_units::{Amount, Budget, Bytes, GroupId, Permyriad};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::{Desk, group, millis, quiet, seconds};

pub fn cold_only() -> impl Strategy<Value = Option<ColdOnly>> {
    let cold = prop_oneof![
        3 => (0u64..400).prop_map(|mib| ColdAmount::Known { bytes: Bytes::mib(mib) }),
        1 => Just(ColdAmount::NotYet),
        1 => Just(ColdAmount::Never { why: "MGLRU off".into() }),
        2 => answer().prop_map(|answer| ColdAmount::Probed { why: "MGLRU off".into(), answer, out: Bytes::mib(3) }),
    ];
    option::of((1u64..1000, cold, any::<bool>()).prop_map(|(time, cold, learned)| ColdOnly {
        min_age: seconds(time),
        cold,
        learned,
        threshold: None,
    }))
}

/// The answer of a probe: mostly an offer, often below `sweep.smallest`.
fn answer() -> impl Strategy<Value = Answer> {
    let offer = (select(vec![128u64, 600, 5000, 100_000]), 0u64..1000).prop_map(|(kib, back)| Answer::Take {
        bytes: Bytes::kib(kib),
        back: Bytes::kib(back),
        allowed: Bytes::kib(2000),
    });
    prop_oneof![3 => offer, 1 => Just(Answer::Hold(Why::Watching))]
}

prop_compose! {
    /// Often idle, often just above or below a threshold.
    pub fn machine()(
        cpus in 1u32..=4,
        idle in select(vec![10_000u32, 9_900, 9_500, 9_499, 5_000, 0]),
        load in select(vec![0u64, 10, 200, 249, 251, 500, 501, 1000, 4000]),
        foreground in select(vec![0u64, 0, 50, 99, 101, 1000]),
        stalls in [select(vec![0u64, 0, 199, 201, 1000]), select(vec![0u64, 0, 199, 201, 1000]), select(vec![0u64, 0, 49, 51, 1000])],
        swap in swap(),
        image in option::of(0u64..6000),
        file_only: bool,
    ) -> Machine {
        Machine {
            dt: seconds(1),
            cpus,
            least_idle: Some(CpuIdle { cpu: 0, idle: Permyriad(idle) }),
            load: Some(millis(load)),
            foreground: Some(millis(foreground)),
            stall_cpu: Some(millis(stalls[0])),
            stall_io: Some(millis(stalls[1])),
            stall_memory: Some(millis(stalls[2])),
            swap: Some(swap),
            memory: None,
            image: image.map(Bytes::mib),
            file_only,
            ..Machine::default()
        }
    }
}

prop_compose! {
    pub fn swap()(total in select(vec![0u64, 1, 500, 4000]), free in 0u64..=100, on_disk: bool, free_outside_image in select(vec![0u64, 0, 300])) -> Swap {
        Swap { total: Bytes::mib(total), free: Bytes::mib(total * free / 100), on_disk, free_outside_image: Bytes::mib(free_outside_image) }
    }
}

prop_compose! {
    pub fn any_group()(
        id in 1u64..=5,
        anon in 0u64..2000,
        file in 0u64..2000,
        class in select(vec![Class::Background, Class::Background, Class::Foreground, Class::Protected]),
        unprotected in 0u64..=100,
        keep in option::of(prop_oneof![
            (0u64..3000).prop_map(|mib| Amount::Bytes(Bytes::mib(mib))),
            (0u32..=100).prop_map(|share| Amount::Share(Permyriad::percent(share))),
            Just(Amount::Max),
        ]),
        cold_only in cold_only(),
    ) -> Group {
        Group { class, unprotected: Some(Bytes::mib((anon + file) * unprotected / 100)), keep, cold_only, ..group(id, anon, file) }
    }
}

pub fn groups() -> impl Strategy<Value = Vec<Group>> {
    vec(any_group(), 0..5).prop_map(|mut groups| {
        groups.sort_by_key(|group| group.id);
        groups.dedup_by_key(|group| group.id);
        groups
    })
}

/// The events between two ticks.
#[derive(Clone, Debug)]
pub struct Event {
    pub machine: Machine,
    /// The end of the running sweep, if one runs.
    pub end: Option<(End, u64, u64)>,
    pub refaults: u64,
    pub slept: bool,
    pub hours: u64,
}

prop_compose! {
    pub fn event()(
        calm in 0u32..4,
        machine in machine(),
        end in option::of((select(ENDS.to_vec()), 0u64..2000, 0u64..300)),
        refaults in select(vec![0u64, 0, 0, 1, 5]),
        slept in proptest::bool::weighted(0.02),
        hours in select(vec![0u64, 0, 0, 0, 1]),
    ) -> Event {
        let machine = if calm > 0 { Machine { swap: machine.swap, image: machine.image, ..quiet() } } else { machine };
        Event { machine, end, refaults, slept, hours }
    }
}

pub const ENDS: [End; 11] = [
    End::Complete,
    End::Floor,
    End::Futile,
    End::Stopped,
    End::Timeout,
    End::SwapFloor,
    End::WriteBudget,
    End::Gone,
    End::Denied,
    End::Unsupported,
    End::Failed,
];

/// A policy after some events. Waits are short, so that more happens.
pub fn desk() -> impl Strategy<Value = Desk> {
    let rule = select(vec![IdleRule::Headroom, IdleRule::Strict]);
    (groups(), vec(event(), 0..60), rule).prop_map(|(groups, events, rule)| {
        let mut desk = Desk::new(groups);
        desk.config.idle.rule = rule;
        desk.config.idle.hold = seconds(6);
        desk.config.idle.again = seconds(2);
        desk.config.idle.window = seconds(3);
        desk.config.guard.backoff = seconds(10);
        desk.config.guard.max_swap_writes = Some(Budget { bytes: Bytes::mib(600), hours: 24 });
        desk.config.sweep.after_resume = seconds(5);
        for event in events {
            happen(&mut desk, &event);
        }
        desk
    })
}

pub fn happen(desk: &mut Desk, event: &Event) -> Decision {
    desk.machine = event.machine.clone();
    desk.slept = event.slept;
    desk.hour += event.hours;
    if let (Some(id), Some((end, left, written))) = (desk.state.sweeping(), event.end) {
        let size = Bytes::mib(left);
        if let Some(group) = desk.groups.iter_mut().find(|group| group.id == id) {
            group.refaults = group.refaults.map(|refaults| refaults + Bytes::mib(event.refaults));
        }
        let finished = Finished { id, size, refaults: None, swap_writes: Bytes::mib(written), end };
        desk.state.finished(&desk.config, desk.now, desk.hour, &finished);
    }
    desk.tick()
}

/// True while memory is reclaimed.
pub fn reclaims(decision: &Decision) -> bool {
    matches!(decision, Decision::Sweep { .. } | Decision::Continue { .. })
}

pub fn decided(desk: &Desk, machine: &Machine) -> Decision {
    let mut desk = desk.clone();
    desk.machine = machine.clone();
    desk.tick()
}

/// The amounts that would be reclaimed from each group.
pub fn amounts(desk: &Desk, machine: &Machine, groups: &[Group]) -> Vec<Bytes> {
    let mut desk = desk.clone();
    desk.machine = machine.clone();
    let signals = desk.signals();
    let amount = |group| judge(&desk.config, &desk.state, &signals, group).map_or(Bytes::ZERO, |(job, _)| job.amount);
    groups.iter().map(amount).collect()
}

pub fn wild_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        (0u64..20_000).prop_map(millis),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

pub fn wild_bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just(0), 0u64..1 << 22, any::<u64>(), Just(u64::MAX)].prop_map(Bytes)
}

pub fn any_disk() -> impl Strategy<Value = Disk> {
    let media = vec![Medium::Memory, Medium::Ssd, Medium::Rotational, Medium::Card, Medium::Unknown];
    let size = prop_oneof![Just(Bytes::ZERO), (0u64..2000).prop_map(|gib| Bytes(gib << 30)), wild_bytes()];
    (select(media), option::weighted(0.8, size)).prop_map(|(medium, size)| Disk { medium, size })
}

pub fn cost_facts() -> impl Strategy<Value = CostFacts> {
    let power = select(vec![Power::Mains, Power::Mains, Power::Battery, Power::Unknown]);
    let memory_first = prop_oneof![Just(Bytes::ZERO), wild_bytes()];
    let facts = (vec(any_disk(), 0..4), power, memory_first);
    facts.prop_map(|(disks, power, memory_first)| CostFacts { disks, power, memory_first })
}

/// Boxed, as the stack of a test has little room for the strategy of a whole machine.
pub fn wild_machine() -> BoxedStrategy<Machine> {
    unboxed_machine().boxed()
}

fn hibernates_by() -> impl Strategy<Value = HibernatesBy> {
    select(vec![HibernatesBy::Lid, HibernatesBy::Idle, HibernatesBy::CriticalBattery])
}

fn sessions() -> impl Strategy<Value = Sessions> {
    (0u32..3, option::of(wild_duration())).prop_map(|(active, idle)| Sessions { active, idle })
}

/// Any facts, often stale ones.
pub fn facts() -> impl Strategy<Value = Facts> {
    let age = prop_oneof![4 => (0u64..30).prop_map(seconds), 1 => wild_duration()];
    let inhibited = proptest::bool::weighted(0.1);
    (age, sessions(), sessions(), inhibited).prop_map(|(age, local, remote, inhibited)| Facts {
        age,
        local,
        remote,
        inhibited,
    })
}

prop_compose! {
    fn unboxed_machine()(
        dt in wild_duration(),
        cpus in select(vec![0u32, 1, 2, 64, u32::MAX]),
        idle in option::of(any::<u32>()),
        times in proptest::array::uniform5(option::of(wild_duration())).boxed(),
        swap in option::of((wild_bytes(), wild_bytes(), any::<bool>(), wild_bytes())).boxed(),
        image in option::of(wild_bytes()),
        memory in option::of((wild_bytes(), wild_bytes())).boxed(),
        hibernation in (option::of(wild_duration()), option::of(wild_bytes()), option::of(hibernates_by())).boxed(),
        free_page_reporting in option::of(any::<bool>()),
        presence in option::of(facts().boxed()),
        flags in any::<(bool, bool)>(),
        cost in cost_facts().boxed(),
    ) -> Machine {
        Machine {
            dt,
            cpus,
            least_idle: idle.map(|idle| CpuIdle { cpu: 0, idle: Permyriad(idle) }),
            load: times[0],
            foreground: times[1],
            stall_cpu: times[2],
            stall_io: times[3],
            stall_memory: times[4],
            swap: swap.map(|(total, free, on_disk, free_outside_image)| Swap { total, free, on_disk, free_outside_image }),
            memory: memory.map(|(total, available)| Memory { total, available }),
            image,
            hibernated: hibernation.0,
            hibernates_by: hibernation.2,
            disk_rate: hibernation.1,
            free_page_reporting,
            presence,
            gives_back: flags.0,
            file_only: flags.1,
            cost,
        }
    }
}

prop_compose! {
    pub fn wild_group()(
        id in 0u64..4,
        bytes in proptest::array::uniform5(option::of(wild_bytes())),
        keep in option::of(prop_oneof![wild_bytes().prop_map(Amount::Bytes), (0u32..20_000).prop_map(|n| Amount::Share(Permyriad(n))), Just(Amount::Max)]),
        class in select(vec![Class::Background, Class::Background, Class::Foreground]),
        cold_only in cold_only(),
    ) -> Group {
        Group {
            id: GroupId(id),
            class,
            current: bytes[0],
            swap_backed: bytes[1],
            page_cache: bytes[2],
            refaults: bytes[3],
            unprotected: bytes[4],
            keep,
            cold_only,
        }
    }
}

prop_compose! {
    pub fn wild_config()(times in vec(wild_duration(), 8), bytes in vec(wild_bytes(), 5), strict: bool, share in 0u32..20_000, goal in select(vec![Goal::Auto, Goal::Free, Goal::Hibernate])) -> Config {
        let mut config = Config { goal, ..Config::default() };
        config.idle.rule = if strict { IdleRule::Strict } else { IdleRule::Headroom };
        config.idle.strict = Permyriad(share);
        (config.idle.hold, config.idle.again, config.idle.window) = (times[0], times[1], times[2]);
        (config.sweep.after_boot, config.sweep.after_resume, config.sweep.write_time) = (times[3], times[4], times[5]);
        (config.guard.backoff, config.guard.backoff_max) = (times[6], times[7]);
        (config.sweep.smallest, config.sweep.growth, config.sweep.step) = (bytes[0], bytes[1], bytes[2]);
        config.guard.refaults_per_minute = bytes[3];
        config.guard.refaults_share = Permyriad(share);
        config.guard.swap_floor = Amount::Share(Permyriad(share));
        config.guard.max_swap_writes = Some(Budget { bytes: bytes[4], hours: 24 });
        config
    }
}
