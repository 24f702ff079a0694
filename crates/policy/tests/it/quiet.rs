//! Sweeps of cold memory on a machine that is quiet and not idle, with `goal = "auto"`.

use std::time::Duration;

use omr_policy::presence::Facts;
use omr_policy::{Class, ColdAmount, ColdOnly, CpuIdle, Decision, End, Goal, IdleRule, Machine, Reason};
use omr_units::{Bytes, Permyriad};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::desk::{Desk, group, millis, quiet, seconds};
use crate::laws::inputs::reclaims;
use crate::simulation::model::Chance;

/// FNV-1a of the decisions of some hours: machines that are often idle, and sweeps that end
/// somehow.
fn digest(goal: Goal, seed: u64) -> (u64, u64) {
    let mut chance = Chance::new(seed);
    let mut desk = Desk::new([group(1, 300, 100), group(2, 200, 400), group(3, 50, 0)]);
    desk.config.goal = goal;
    // As the refault guard was then.
    desk.config.guard.refaults_share = Permyriad(0);
    desk.config.hibernate.image = Bytes::mib(1000);
    desk.group(3).class = Class::Foreground;
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    let (mut busy, mut sweeps) = (false, 0);
    for _ in 0..4000 {
        if chance.once_in(100) {
            busy = chance.once_in(3);
        }
        desk.machine = quiet();
        desk.machine.image = Some(Bytes::mib(chance.between(100, 3000)));
        let load = if busy { chance.below(2000) } else { chance.below(200) };
        desk.machine.load = (!chance.once_in(600)).then_some(millis(load));
        desk.machine.stall_io = (!chance.once_in(600)).then_some(millis(chance.below(if busy { 500 } else { 120 })));
        desk.machine.stall_memory = Some(millis(chance.below(if busy { 200 } else { 40 })));
        desk.slept = chance.once_in(1000);
        for id in [1, 2] {
            let mib = chance.between(50, 900);
            desk.hold(id, mib);
            let cold = match chance.below(4) {
                0 => ColdAmount::NotYet,
                _ => ColdAmount::Known { bytes: Bytes::mib(chance.below(mib)) },
            };
            desk.group(id).cold_only =
                (id == 1).then_some(ColdOnly { min_age: seconds(600), cold, learned: false, threshold: None });
            if chance.once_in(2000) {
                desk.refault(id, 5);
            }
        }
        let decision = desk.tick();
        if desk.state.sweeping().is_some() && chance.once_in(3) {
            let end = [End::Complete, End::Stopped, End::Floor, End::NoMoreCold]
                [usize::try_from(chance.below(4)).expect("small")];
            match end {
                End::Stopped => desk.interrupt(chance.below(50)),
                end => desk.finish(end, chance.below(50)),
            }
        }
        sweeps += u64::from(matches!(decision, Decision::Sweep { .. }));
        let words = format!("{decision:?}");
        digest = words.bytes().fold(digest, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }
    (sweeps, digest)
}

/// The digests are those of the policy before there was anything like a quiet machine.
#[test]
fn without_the_goal_auto_all_decisions_are_as_before() {
    for (seed, free, hibernate) in [
        (0, (32, 0xf581_e2ff_e45c_933b), (35, 0x82d6_df68_3929_6c00)),
        (1, (81, 0xd3ea_2ee9_5981_634b), (106, 0x2abe_3a60_090f_9fec)),
        (2, (72, 0x5a81_529e_9f6f_0641), (89, 0x6733_0874_debd_fb65)),
        (3, (49, 0x007c_5d93_0c3d_ce43), (72, 0x152f_a2fc_5ddb_fa10)),
    ] {
        assert_eq!((digest(Goal::Free, seed), digest(Goal::Hibernate, seed)), (free, hibernate), "seed {seed}");
    }
    // The control.
    assert_ne!(digest(Goal::Free, 0).1, digest(Goal::Auto, 0).1);
}

/// A server: four CPUs, of which 40 % are used, nobody logged in, too little memory available. 500
/// MiB of group 1 are cold.
fn server() -> Desk {
    let mut desk = Desk::new([group(1, 1000, 500)]);
    desk.config.goal = Goal::Auto;
    desk.config.guard.max_swap_writes = None;
    desk.machine.cpus = 4;
    desk.machine.load = Some(millis(1600));
    desk.machine.foreground = Some(millis(800));
    desk.machine.stall_cpu = Some(millis(100));
    desk.machine.stall_io = Some(millis(30));
    desk.machine.stall_memory = Some(millis(5));
    set_cold(&mut desk, 500);
    desk
}

fn set_cold(desk: &mut Desk, mib: u64) {
    let cold = ColdAmount::Known { bytes: Bytes::mib(mib) };
    desk.group(1).cold_only = Some(ColdOnly { min_age: seconds(600), cold, learned: true, threshold: None });
}

#[test]
fn cold_memory_leaves_a_server_that_is_never_idle() {
    let mut desk = server();
    let (ticks, _) = desk.until_sweep(60);
    assert_eq!(ticks, 10);
    assert_eq!(desk.tick().reason().to_string(), "quiet for 11 s, 240 % of a CPU free");
    // For as long as the load stays as it is.
    (0..600).for_each(|_| assert!(matches!(desk.tick(), Decision::Continue { .. })));
    // The controls: memory of any age, and other goals.
    for change in [
        (|desk| desk.group(1).cold_only = None) as fn(&mut Desk),
        |desk| desk.config.goal = Goal::Free,
        |desk| desk.config.goal = Goal::Hibernate,
    ] {
        let mut desk = server();
        desk.machine.image = Some(Bytes::mib(2000));
        desk.machine.presence = Some(Facts::default());
        change(&mut desk);
        let why = desk.no_sweep(3000).to_string();
        assert!(why.starts_with("not idle: 60 % of CPU time is free"), "{why}");
        // On an idle machine they do sweep.
        (desk.machine.load, desk.machine.foreground) = (Some(millis(10)), Some(millis(0)));
        desk.until_sweep(60);
    }
}

#[test]
fn memory_of_any_age_ends_its_sweep_when_the_machine_is_only_quiet() {
    for (cold, ends) in [(true, false), (false, true)] {
        let mut desk = server();
        desk.machine.load = Some(millis(10));
        desk.machine.foreground = Some(millis(0));
        if !cold {
            desk.group(1).cold_only = None;
        }
        desk.until_sweep(700);
        desk.machine.load = Some(millis(1600));
        assert_eq!(matches!(desk.ticks(9), Decision::Stop { .. }), ends);
    }
}

#[test]
fn a_machine_on_which_tasks_wait_is_not_quiet() {
    for (change, why) in [
        (
            (|desk| desk.machine.load = Some(millis(3100))) as fn(&mut Desk),
            "not quiet: 90 % of a CPU was free in the last 10 s, 100 % is needed",
        ),
        (
            |desk| (desk.machine.cpus, desk.machine.load) = (1, Some(millis(600))),
            "not quiet: 40 % of a CPU was free in the last 10 s, 50 % is needed",
        ),
        (
            |desk| desk.machine.stall_io = Some(millis(70)),
            "not quiet: 7 % of the last 10 s some task waited for I/O, 5 % is allowed",
        ),
        (
            |desk| desk.machine.stall_memory = Some(millis(20)),
            "not quiet: 2 % of the last 10 s some task waited for memory, 1.25 % is allowed",
        ),
        (
            |desk| desk.machine.stall_cpu = Some(millis(250)),
            "not quiet: 25 % of the last 10 s some task waited for a CPU, 20 % is allowed",
        ),
    ] {
        let mut desk = server();
        change(&mut desk);
        assert_eq!(desk.no_sweep(600).to_string(), why);
        // A moment of quiet is not enough.
        desk.machine = server().machine;
        assert!(matches!(
            desk.no_sweep(9),
            Reason::QuietFor { .. } | Reason::NotQuiet { .. } | Reason::LittleFree { .. }
        ));
        desk.until_sweep(30);
    }
    // While the sweep runs, its own waits for the disk are allowed; those of an idle machine are
    // not exceeded.
    let mut desk = server();
    desk.until_sweep(60);
    desk.machine.stall_io = Some(millis(190));
    (0..60).for_each(|_| assert!(matches!(desk.tick(), Decision::Continue { .. })));
    desk.machine.stall_io = Some(millis(500));
    assert!(matches!(desk.ticks(9), Decision::Stop { reason: Reason::NotQuiet { .. } }));
}

/// Ticks of a day, in which each sweep takes `cpu` and ends like this. Returns how many there were.
fn sweeps_in(desk: &mut Desk, hours: u32, cpu: Duration, end: End, left: u64) -> u32 {
    let mut sweeps = 0;
    for _ in 0..hours * 3600 {
        if let Decision::Sweep { job, .. } = desk.tick() {
            assert!(job.amount <= Bytes::mib(128) || desk.machine.load < Some(millis(100)), "{}", job.amount);
            sweeps += 1;
            desk.state.spent(desk.now, cpu);
            match end {
                End::Stopped => desk.interrupt(left),
                end => desk.finish(end, left),
            }
            *desk.group(1) = server().groups.remove(0);
        }
    }
    sweeps
}

#[test]
fn sweeps_take_half_a_percent_of_a_cpu_in_the_long_run() {
    let mut desk = server();
    let sweeps = sweeps_in(&mut desk, 24, millis(2500), End::Complete, 1372);
    // 2.5 s each 502.5 s.
    assert!((165..=174).contains(&sweeps), "{sweeps}");
    // A short one: what the group needs to rest is more.
    let sweeps = sweeps_in(&mut server(), 24, millis(10), End::Complete, 1372);
    assert!((1300..=1440).contains(&sweeps), "{sweeps}");
    let mut desk = server();
    desk.until_sweep(20);
    desk.state.spent(desk.now, millis(400));
    desk.finish(End::Complete, 1372);
    set_cold(&mut desk, 500);
    desk.groups.push(group(2, 700, 0));
    desk.groups[1].cold_only = desk.groups[0].cold_only.clone();
    let words = "the last sweep of cold memory took 0.4 s of CPU time, the next one begins in 79 s";
    assert_eq!(desk.tick().reason().to_string(), words);
    // An idle machine has CPU time to spare.
    (desk.machine.load, desk.machine.foreground) = (Some(millis(10)), Some(millis(0)));
    assert!(desk.until_sweep(60).0 < 50);
}

#[test]
fn sweeps_that_work_cuts_short_stay_away() {
    let mut desk = server();
    // A tenth of the job each time: that is less than a quarter and than 16 MiB.
    let sweeps = sweeps_in(&mut desk, 24, millis(10), End::Stopped, 1490);
    assert!((20..=35).contains(&sweeps), "{sweeps}");
    let why = desk.no_sweep(1).to_string();
    assert!(why.starts_with("work cut short the last ") && why.contains("sweeps of cold memory"), "{why}");
    // On an idle machine as well.
    (desk.machine.load, desk.machine.foreground) = (Some(millis(10)), Some(millis(0)));
    let sweeps = sweeps_in(&mut desk, 24, millis(10), End::Stopped, 1490);
    assert!(sweeps <= 26, "{sweeps}");
    // Sweeps that get on go on.
    let mut desk = server();
    let sweeps = sweeps_in(&mut desk, 24, millis(10), End::Stopped, 1450);
    assert!(sweeps > 5000, "{sweeps}");
}

#[test]
fn a_small_sweep_that_got_a_quarter_on_was_not_cut_short() {
    let after = |freed: u64| {
        let mut desk = server();
        set_cold(&mut desk, 20);
        desk.until_sweep(20);
        desk.interrupt(1500 - freed);
        *desk.group(1) = server().groups.remove(0);
        matches!(desk.tick(), Decision::Hold { reason: Reason::CutShort { .. } })
    };
    assert!(after(4), "less than 5 of 20 MiB");
    assert!(!after(6));
}

#[test]
fn after_work_in_the_middle_of_a_tick_the_machine_must_be_quiet_anew() {
    let mut desk = server();
    desk.until_sweep(20);
    desk.interrupt(1000);
    *desk.group(1) = server().groups.remove(0);
    // A window of ten seconds.
    assert!(matches!(desk.no_sweep(5), Reason::QuietFor { .. }));
    desk.until_sweep(10);
}

#[test]
fn who_is_there_counts_as_before() {
    let mut desk = server();
    desk.machine.presence = Some(Facts { inhibited: true, ..Facts::default() });
    assert!(matches!(desk.no_sweep(600), Reason::SomebodyThere { .. }));
    desk.machine.presence = None;
    desk.until_sweep(2);
}

prop_compose! {
    /// A machine near the bounds of the rule.
    fn near()(
        load in select(vec![0u64, 1000, 1600, 2990, 3010, 3600]),
        foreground in select(vec![0u64, 500]),
        cpu in select(vec![0u64, 190, 210, 900]),
        io in select(vec![0u64, 49, 51, 190, 210]),
        memory in select(vec![0u64, 12, 13, 49, 51]),
        lost in select(vec![0u32, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32]),
        calm in proptest::bool::weighted(0.6),
    ) -> Machine {
        let mut machine = server().machine;
        if !calm {
            machine.load = Some(millis(load));
            machine.foreground = Some(millis(foreground));
            machine.stall_cpu = Some(millis(cpu));
            machine.stall_io = Some(millis(io));
            machine.stall_memory = Some(millis(memory));
        }
        for (bit, forget) in [
            (|m: &mut Machine| m.load = None) as fn(&mut Machine),
            |m| m.foreground = None,
            |m| m.stall_cpu = None,
            |m| m.stall_io = None,
            |m| m.stall_memory = None,
            |m| m.cpus = 0,
        ].into_iter().enumerate() {
            if lost & 1 << bit != 0 {
                forget(&mut machine);
            }
        }
        machine
    }
}

fn sum(ticks: &[Machine], of: fn(&Machine) -> Option<Duration>) -> Option<Duration> {
    ticks.iter().map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// No sweep of cold memory begins unless the machine is idle, or every signal was known and
    /// within its bound for the last window.
    #[test]
    fn unknown_is_not_quiet_and_no_bound_is_exceeded(
        machines in vec(near(), 1..120),
        repeat in 1usize..12,
        strict: bool,
        cold in vec(any::<bool>(), 2),
    ) {
        let mut desk = server();
        desk.config.idle.rule = if strict { IdleRule::Strict } else { IdleRule::Headroom };
        desk.machine.least_idle = None;
        desk.groups.push(group(2, 800, 0));
        desk.groups[1].cold_only = desk.groups[0].cold_only.clone();
        for (group, cold) in desk.groups.iter_mut().zip(cold) {
            group.cold_only = group.cold_only.take().filter(|_| cold);
        }
        let mut seen: Vec<Machine> = Vec::new();
        for machine in machines.iter().flat_map(|machine| std::iter::repeat_n(machine, repeat)) {
            desk.machine = Machine { least_idle: strict.then_some(CpuIdle { cpu: 0, idle: Permyriad::percent(40) }), ..machine.clone() };
            seen.push(desk.machine.clone());
            let Decision::Sweep { id, reason, .. } = desk.tick() else { continue };
            let is_cold = desk.group(id.0).cold_only.is_some();
            match reason {
                Reason::Idle { .. } => prop_assert!(!strict),
                Reason::Quiet { .. } => {
                    prop_assert!(is_cold);
                    let window = &seen[seen.len() - 10..];
                    let within = |of, most| sum(window, of).is_some_and(|sum| sum <= millis(most));
                    prop_assert!(window.iter().all(|machine| machine.cpus == 4 && machine.foreground.is_some()));
                    prop_assert!(within(|machine| machine.load, 30_000));
                    prop_assert!(within(|machine| machine.stall_cpu, 2000));
                    prop_assert!(within(|machine| machine.stall_io, 501));
                    prop_assert!(within(|machine| machine.stall_memory, 125));
                }
                other => prop_assert!(false, "{other:?}"),
            }
            desk.finish(End::Complete, 500);
            for id in [1, 2] {
                let cold_only = desk.group(id).cold_only.take();
                *desk.group(id) = group(id, 1000, 0);
                desk.group(id).cold_only = cold_only;
            }
        }
    }

    /// Memory of any age decides by the idle rule alone, as if there were no cold memory.
    #[test]
    fn memory_of_any_age_needs_an_idle_machine_as_before(machines in vec(near(), 1..60), repeat in 1usize..30) {
        let mut auto = server();
        auto.group(1).cold_only = None;
        auto.config.presence.away_after = Duration::ZERO;
        let mut free = auto.clone();
        free.config.goal = Goal::Free;
        for machine in machines.iter().flat_map(|machine| std::iter::repeat_n(machine, repeat)) {
            (auto.machine, free.machine) = (machine.clone(), machine.clone());
            let (one, two) = (auto.tick(), free.tick());
            prop_assert_eq!(reclaims(&one), reclaims(&two), "{:?} {:?}", one, two);
        }
    }

    /// Whatever is reported about sweeps, within 0.5 % of a CPU and one sweep.
    #[test]
    fn sweeps_stay_within_their_share_of_a_cpu(cpus in vec(0u64..3000, 1..60), ends in vec(select(vec![End::Complete, End::Stopped, End::NoMoreCold]), 1..8)) {
        let mut desk = server();
        let mut used = Duration::ZERO;
        let began = desk.now;
        for tick in 0..3000usize {
            if let Decision::Sweep { .. } = desk.tick() {
                prop_assert!(used * 200 <= desk.now.since(began), "{used:?} in {:?}", desk.now.since(began));
                let cpu = millis(cpus[tick % cpus.len()]);
                used += cpu;
                desk.state.spent(desk.now, cpu);
                match ends[tick % ends.len()] {
                    End::Stopped => desk.interrupt(1000),
                    end => desk.finish(end, 1000),
                }
                *desk.group(1) = server().groups.remove(0);
            }
        }
    }
}
