//! What a sweep may cost: budgets by medium, the battery, the swap floor; and laws for every input.

use omr_policy::cost::{Cost, CostFacts, Disk, Limit, Medium, OnBattery, Power, disk_writes, limit, must_end};
use omr_policy::{Config, Decision, End, Goal, Machine, Reason, Swap, Writes, judge};
use omr_units::{Amount, Budget, Bytes, Permyriad};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::desk::{Desk, disk, group, on_mains, quiet, seconds};
use crate::laws::inputs::{any_disk, cost_facts, swap};

const GIB: u64 = 1 << 30;
const HOUR: u64 = 500_000;

fn day(bytes: u64) -> Option<Budget> {
    Some(Budget { bytes: Bytes(bytes), hours: 24 })
}

/// `goal = "auto"`, and no file says `guard.max_swap_writes`.
fn auto() -> Config {
    let mut config = Config { goal: Goal::Auto, ..Config::default() };
    config.guard.max_swap_writes = None;
    // Nobody is there.
    config.presence.away_after = std::time::Duration::ZERO;
    config
}

fn machine(disks: &[(Medium, u64)], power: Power) -> Machine {
    let disks = disks.iter().map(|(medium, size)| Disk { medium: *medium, size: Some(Bytes(*size)) }).collect();
    Machine { cost: CostFacts { disks, power, memory_first: Bytes::ZERO }, swap: disk(8000, 8000), ..quiet() }
}

/// What may be written in a day, in MiB.
fn a_day(disks: &[(Medium, u64)]) -> Option<u64> {
    let left = disk_writes(&auto(), &machine(disks, Power::Mains), &Writes::default(), HOUR).expect("on mains");
    (left != Bytes::MAX).then_some(left.0 >> 20)
}

/// A machine with one group of 4 GiB on this swap.
fn desk(cost: CostFacts, swap: Option<Swap>) -> Desk {
    let mut desk = Desk::new([]);
    (desk.config, desk.machine) = (auto(), Machine { cost, swap, ..quiet() });
    desk.tick();
    desk.groups = vec![group(1, 3000, 1000)];
    desk
}

fn judged(desk: &Desk) -> Result<u64, String> {
    let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    judged.map(|(job, _)| job.amount.0 >> 20).map_err(|why| why.to_string())
}

#[test]
fn each_medium_has_its_budget() {
    for (medium, size, expected) in [
        (Medium::Memory, 4 * GIB, None),
        (Medium::Ssd, 2000 * GIB, Some(20 << 10)),
        // 2 % of 500 and of 64 GiB.
        (Medium::Ssd, 500 * GIB, Some(10 << 10)),
        (Medium::Ssd, 64 * GIB, Some(1310)),
        (Medium::Rotational, 8 * GIB, Some(4 << 10)),
        (Medium::Card, 64 * GIB, Some(512)),
        (Medium::Card, 16 * GIB, Some(327)),
        (Medium::Unknown, 2000 * GIB, Some(512)),
        (Medium::Unknown, 16 * GIB, Some(327)),
    ] {
        assert_eq!(a_day(&[(medium, size)]), expected, "{medium:?} {size}");
    }
    assert_eq!(a_day(&[(Medium::Ssd, 2000 * GIB), (Medium::Rotational, 2000 * GIB)]), Some(4 << 10));
    assert_eq!(a_day(&[(Medium::Memory, GIB), (Medium::Card, 64 * GIB)]), Some(512));
    // Swap on a disk, and the disk is not known; and a disk of unknown size.
    assert_eq!(a_day(&[]), Some(512));
    for (medium, expected) in [(Medium::Ssd, 512), (Medium::Card, 512), (Medium::Rotational, 4096)] {
        let mut machine = machine(&[(medium, GIB)], Power::Mains);
        machine.cost.disks[0].size = None;
        let left = disk_writes(&auto(), &machine, &Writes::default(), HOUR);
        assert_eq!(left, Ok(Bytes::mib(expected)), "{medium:?}");
    }
}

#[test]
fn the_limit_of_the_administrator_holds_as_well() {
    let ssd = machine(&[(Medium::Ssd, 2000 * GIB)], Power::Mains);
    let mut config = auto();
    let mut writes = Writes::default();
    let limit_of = |config: &Config, writes: &Writes| limit(config, &ssd, writes, HOUR).expect("a limit");
    let of_ssd = Limit { budget: day(20 * GIB).expect("a budget"), medium: Some(Medium::Ssd) };
    assert_eq!(limit_of(&config, &writes), of_ssd);
    config.guard.max_swap_writes = day(50 * GIB);
    assert_eq!(limit_of(&config, &writes), of_ssd);
    config.guard.max_swap_writes = Some(Budget { bytes: Bytes(GIB), hours: 1 });
    assert_eq!(limit_of(&config, &writes).medium, None);
    // 20 GiB were written before this hour: the budget of the day is the nearer one.
    writes.add(HOUR - 1, Bytes(20 * GIB));
    assert_eq!(limit_of(&config, &writes), of_ssd);
    // The control: another goal has no budgets by medium.
    config.goal = Goal::Free;
    assert_eq!(limit_of(&config, &writes).medium, None);
}

#[test]
fn a_budget_that_is_used_up_is_named() {
    let mut desk = desk(on_mains(Medium::Ssd), disk(8000, 8000));
    desk.config.cost.ssd_writes = day(2 * GIB);
    desk.machine.file_only = false;
    assert_eq!(judged(&desk), Ok(2048));
    desk.state.writes.add(desk.hour, Bytes::mib(1948));
    assert_eq!(judged(&desk), Ok(100));
    desk.state.writes.add(desk.hour, Bytes::mib(99));
    let why = "the write budget for an SSD is used up: 2.00 GiB of 2.00 GiB/day";
    assert_eq!(judged(&desk), Err(why.to_owned()));
    desk.hour += 24;
    assert_eq!(judged(&desk), Ok(2048));
}

#[test]
fn nothing_is_written_to_a_disk_on_battery() {
    let on_battery = "on battery: nothing is written to swap on disk";
    let mut desk = desk(on_mains(Medium::Ssd), disk(8000, 8000));
    assert_eq!(judged(&desk), Ok(3000));
    desk.machine.cost.power = Power::Battery;
    assert_eq!(judged(&desk), Err(on_battery.to_owned()));
    desk.machine.cost.power = Power::Unknown;
    let unknown = format!("the power source is not known, which counts as {on_battery}");
    assert_eq!(judged(&desk), Err(unknown));
    // The controls: zram, a volume on zram, the setting, and another goal.
    let zram = Swap { on_disk: false, ..desk.machine.swap.expect("known") };
    let other = |change: &dyn Fn(&mut Desk)| {
        let mut desk = desk.clone();
        change(&mut desk);
        judged(&desk)
    };
    assert_eq!(other(&|desk| desk.machine.swap = Some(zram)), Ok(3000));
    assert_eq!(other(&|desk| desk.machine.cost.disks[0].medium = Medium::Memory), Ok(3000));
    assert_eq!(other(&|desk| desk.config.cost.on_battery = OnBattery::Disk), Ok(3000));
    assert_eq!(other(&|desk| desk.config.goal = Goal::Free), Ok(4000));
}

#[test]
fn page_cache_still_leaves_on_battery() {
    let mut desk = desk(on_mains(Medium::Ssd), disk(8000, 8000));
    desk.machine.cost.power = Power::Battery;
    // An image gains from page cache.
    desk.machine.hibernated = Some(seconds(86_400));
    (desk.machine.image, desk.machine.disk_rate) = (Some(Bytes::mib(6000)), Some(Bytes::mib(1)));
    desk.machine.swap = disk(32_000, 32_000);
    let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
    assert_eq!((job.amount, job.swap_floor, job.swap_writes), (Bytes::mib(1000), Bytes::MAX, Bytes::ZERO));
    assert!(job.file_only);
}

#[test]
fn zram_before_a_disk_is_filled_no_further_on_battery() {
    let mut desk = desk(on_mains(Medium::Ssd), disk(8000, 8000));
    desk.machine.cost.power = Power::Battery;
    desk.machine.cost.memory_first = Bytes::mib(700);
    let (job, _) = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth a sweep");
    assert_eq!((job.amount, job.swap_floor), (Bytes::mib(700), Bytes::mib(7300)));
    // The swap floor counts all swap.
    desk.config.cost.swap_floor = Amount::Bytes(Bytes::mib(7500));
    assert_eq!(judged(&desk), Ok(500));
    desk.machine.cost.memory_first = Bytes::mib(1);
    assert!(judged(&desk).is_err());
}

#[test]
fn a_sweep_to_disk_ends_when_the_cord_is_pulled() {
    let mut desk = desk(on_mains(Medium::Ssd), disk(8000, 8000));
    desk.until_sweep(60);
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    let mut other = desk.clone();
    desk.machine.cost.power = Power::Battery;
    assert_eq!(desk.tick(), Decision::Stop { reason: Reason::OnBattery { power: Power::Battery } });
    desk.finish(End::Stopped, 3500);
    desk.no_sweep(60);
    desk.machine.cost.power = Power::Mains;
    desk.until_sweep(60);
    // The controls: another goal, and a sweep that fits into zram before the disk.
    other.config.goal = Goal::Free;
    other.machine.cost.power = Power::Battery;
    assert!(matches!(other.tick(), Decision::Continue { .. }));
    desk.finish(End::Stopped, 3500);
    desk.machine.cost.memory_first = Bytes::mib(700);
    desk.machine.cost.power = Power::Battery;
    desk.until_sweep(60);
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    assert!(must_end(&desk.config, &desk.machine).is_some());
}

#[test]
fn a_sweep_to_swap_in_memory_goes_on_when_the_cord_is_pulled() {
    let in_memory = disk(8000, 8000).map(|swap| Swap { on_disk: false, ..swap });
    // No disk is listed where no swap is on one.
    let mut desk = desk(CostFacts { power: Power::Mains, ..CostFacts::default() }, in_memory);
    desk.until_sweep(60);
    desk.machine.cost.power = Power::Battery;
    assert!(matches!(desk.tick(), Decision::Continue { .. }), "{:?}", desk.tick());
}

#[test]
fn more_swap_stays_free() {
    let mut desk = desk(CostFacts::default(), Some(Swap { on_disk: false, ..disk(1000, 1000).expect("swap") }));
    let floor = |desk: &Desk| judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).expect("worth it").0;
    assert_eq!(floor(&desk).swap_floor, Bytes::mib(300));
    desk.config.guard.swap_floor = Amount::Share(Permyriad::percent(50));
    assert_eq!(floor(&desk).swap_floor, Bytes::mib(500));
    desk.config.guard.swap_floor = Amount::Share(Permyriad::percent(10));
    desk.config.goal = Goal::Free;
    assert_eq!(floor(&desk).swap_floor, Bytes::mib(100));
}

/// Machines, settings and what was written before.
fn any_case() -> impl Strategy<Value = (Config, Machine, u64)> {
    let budget = || option::of((0u64..64, prop_oneof![Just(1u32), Just(24)]));
    let rules = (budget(), budget(), budget(), 1u32..=10_000, any::<bool>(), budget());
    (rules, cost_facts(), 0u64..80).prop_map(|((ssd, rotational, card, share, stays, guard), cost, written)| {
        let budget = |budget: Option<(u64, u32)>| budget.map(|(gib, hours)| Budget { bytes: Bytes(gib * GIB), hours });
        let mut config = auto();
        config.guard.max_swap_writes = budget(guard);
        config.cost = Cost {
            ssd_writes: budget(ssd),
            rotational_writes: budget(rotational),
            card_writes: budget(card),
            device_share: Permyriad(share),
            on_battery: if stays { OnBattery::Disk } else { OnBattery::Memory },
            ..Cost::default()
        };
        (config, Machine { cost, swap: disk(8000, 8000), ..quiet() }, written * GIB)
    })
}

/// Bytes that may be written to disk after this many were.
type Left = fn(&Config, &Machine, u64) -> Bytes;

fn left(config: &Config, machine: &Machine, written: u64) -> Bytes {
    let mut writes = Writes::default();
    writes.add(HOUR, Bytes(written));
    disk_writes(config, machine, &writes, HOUR).unwrap_or(Bytes::ZERO)
}

fn with(machine: &Machine, change: impl FnOnce(&mut CostFacts)) -> Machine {
    let mut machine = machine.clone();
    change(&mut machine.cost);
    machine
}

/// `Err`: a case that breaks the law. A law that is broken in one of a hundred cases is found out
/// in each run of the tests.
fn run<S: Strategy>(cases: S, law: impl Fn(S::Value) -> bool) -> Result<(), String> {
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&cases, |case| {
            prop_assert!(law(case));
            Ok(())
        })
        .map_err(|err| err.to_string())
}

/// Each law, for a function that may be broken on purpose.
fn laws(left: Left) -> [(&'static str, Result<(), String>); 5] {
    let unknown = run((any_case(), any::<prop::sample::Index>()), |((config, machine, written), index)| {
        let known = left(&config, &machine, written);
        let forgotten = with(&machine, |cost| {
            if !cost.disks.is_empty() {
                let index = index.index(cost.disks.len());
                cost.disks[index].medium = Medium::Unknown;
            }
        });
        let sources = [Power::Mains, Power::Battery]
            .map(|power| left(&config, &with(&machine, |cost| cost.power = power), written));
        let dark = left(&config, &with(&machine, |cost| cost.power = Power::Unknown), written);
        // The share of a size counts only where the size is known. Without any budget there is
        // nothing else.
        let Cost { ssd_writes, rotational_writes, card_writes, .. } = config.cost;
        let is_set = ssd_writes.or(rotational_writes).or(card_writes).is_some();
        let large = with(&machine, |cost| cost.disks.iter_mut().for_each(|disk| disk.size = Some(Bytes::MAX)));
        let nothing = left(&config, &with(&machine, |cost| cost.disks.clear()), written);
        left(&config, &forgotten, written) <= known
            && (!is_set || nothing <= left(&config, &large, written))
            && sources.iter().all(|known| dark <= *known)
    });
    let battery = run(any_case(), |(config, machine, written)| {
        let machine = with(&machine, |cost| cost.power = Power::Battery);
        let is_memory =
            !machine.cost.disks.is_empty() && machine.cost.disks.iter().all(|disk| disk.medium == Medium::Memory);
        is_memory || config.cost.on_battery == OnBattery::Disk || left(&config, &machine, written) == Bytes::ZERO
    });
    let written = run((any_case(), 0u64..80), |((config, machine, written), more)| {
        left(&config, &machine, written + more * GIB) <= left(&config, &machine, written)
    });
    let added = run((any_case(), any_disk()), |((config, machine, written), disk)| {
        // Without any disk nothing was known.
        let more = with(&machine, |cost| cost.disks.push(disk));
        machine.cost.disks.is_empty() || left(&config, &more, written) <= left(&config, &machine, written)
    });
    let guard = run(any_case(), |(config, machine, written)| {
        let most = config.guard.max_swap_writes.map_or(Bytes::MAX, |budget| budget.bytes - Bytes(written));
        left(&config, &machine, written) <= most
    });
    [
        ("unknown is never more", unknown),
        ("a battery writes nothing", battery),
        ("more written is never more left", written),
        ("one disk more is never more", added),
        ("never more than the administrator says", guard),
    ]
}

#[test]
fn the_laws_hold() {
    for (law, holds) in laws(left) {
        assert_eq!(holds, Ok(()), "{law}");
    }
}

/// The negative controls: each function breaks its law.
#[test]
fn what_is_broken_on_purpose_breaks_its_law() {
    let broken: [(&str, Left); 6] = [
        ("unknown is never more", |config, machine, written| {
            let guess = with(machine, |cost| {
                cost.disks
                    .iter_mut()
                    .filter(|disk| disk.medium == Medium::Unknown)
                    .for_each(|d| d.medium = Medium::Ssd);
            });
            left(config, &guess, written)
        }),
        ("unknown is never more", |config, machine, written| {
            let guess = |cost: &mut CostFacts| {
                cost.power = if cost.power == Power::Unknown { Power::Mains } else { cost.power }
            };
            left(config, &with(machine, guess), written)
        }),
        ("a battery writes nothing", |config, machine, written| {
            left(config, &with(machine, |cost| cost.power = Power::Mains), written)
        }),
        ("more written is never more left", |config, machine, written| left(config, machine, written % (10 * GIB))),
        ("one disk more is never more", |config, machine, written| {
            let best = |disk: &Disk| left(config, &with(machine, |cost| cost.disks = vec![*disk]), written);
            machine.cost.disks.iter().map(best).max().unwrap_or_default()
        }),
        ("never more than the administrator says", |config, machine, written| {
            let mut config = config.clone();
            config.guard.max_swap_writes = None;
            left(&config, machine, written)
        }),
    ];
    for (law, broken) in broken {
        let holds = laws(broken).into_iter().find(|(name, _)| *name == law).expect("a law").1;
        assert!(holds.is_err(), "{law}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every job, whatever the machine: what it may write to a disk is within the budgets, and zero
    /// on battery; and the swap floor stays free.
    #[test]
    fn no_job_writes_more_than_is_allowed(cost in cost_facts(), swap in swap(), image in option::of(0u64..6000), anon in 0u64..2000, file in 0u64..2000, written in 0u64..30) {
        let mut desk = desk(cost, Some(swap));
        desk.groups = vec![group(1, anon, file)];
        (desk.machine.image, desk.machine.hibernated) = (image.map(Bytes::mib), image.map(seconds));
        desk.machine.disk_rate = Some(Bytes::mib(1));
        desk.state.writes.add(desk.hour, Bytes(written * GIB));
        let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
        if let Ok((job, _)) = judged {
            prop_assert!(job.swap_writes == Bytes::ZERO || job.swap_floor >= desk.config.cost.swap_floor.of(swap.total));
            let to_disk = swap.on_disk && job.swap_floor < swap.free - desk.machine.cost.memory_first;
            let left = disk_writes(&desk.config, &desk.machine, &desk.state.writes, desk.hour).unwrap_or(Bytes::ZERO);
            prop_assert!(!to_disk || job.swap_writes <= left);
        }
    }
}
