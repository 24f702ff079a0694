//! What holds for every input.
#![allow(missing_docs)]

mod common;

use std::time::Duration;

use common::{Desk, group, millis, quiet, seconds};
use omr_policy::pace::{Job, Next, Pace, SMALLEST_STEP, Seen};
use omr_policy::stop::Watch;
use omr_policy::{
    ByAge, Class, Config, CpuIdle, Decision, End, Finished, Group, IdleRule, Machine, Old, Reason, Stop, Swap, Writes,
    decide, judge, next, swap_floor,
};
use omr_units::{Amount, Budget, Bytes, GroupId, Monotonic, Permyriad};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn by_age() -> impl Strategy<Value = Option<ByAge>> {
    let old = prop_oneof![
        3 => (0u64..400).prop_map(|mib| Old::Known { bytes: Bytes::mib(mib) }),
        1 => Just(Old::NotYet),
        1 => Just(Old::Never { why: "MGLRU off".into() }),
    ];
    option::of((1u64..1000, old).prop_map(|(time, old)| ByAge { older_than: seconds(time), old }))
}

prop_compose! {
    /// Often idle, often just above or below a threshold.
    fn machine()(
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
        }
    }
}

prop_compose! {
    fn swap()(total in select(vec![0u64, 1, 500, 4000]), free in 0u64..=100, on_disk: bool, beside in select(vec![0u64, 0, 300])) -> Swap {
        Swap { total: Bytes::mib(total), free: Bytes::mib(total * free / 100), on_disk, beside: Bytes::mib(beside) }
    }
}

prop_compose! {
    fn any_group()(
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
        by_age in by_age(),
    ) -> Group {
        Group { class, unprotected: Some(Bytes::mib((anon + file) * unprotected / 100)), keep, by_age, ..group(id, anon, file) }
    }
}

fn groups() -> impl Strategy<Value = Vec<Group>> {
    vec(any_group(), 0..5).prop_map(|mut groups| {
        groups.sort_by_key(|group| group.id);
        groups.dedup_by_key(|group| group.id);
        groups
    })
}

/// What happens from one tick to the next.
#[derive(Clone, Debug)]
struct Event {
    machine: Machine,
    /// How the sweep ends that runs, if one does.
    end: Option<(End, u64, u64)>,
    refaults: u64,
    slept: bool,
    hours: u64,
}

prop_compose! {
    fn event()(
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

const ENDS: [End; 11] = [
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

/// A policy that has seen something already. Waits are short, so that more happens.
fn desk() -> impl Strategy<Value = Desk> {
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

fn happen(desk: &mut Desk, event: &Event) -> Decision {
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

/// Whether memory is being taken.
fn reclaims(decision: &Decision) -> bool {
    matches!(decision, Decision::Sweep { .. } | Decision::Continue { .. })
}

fn decided(desk: &Desk, machine: &Machine) -> Decision {
    let mut desk = desk.clone();
    desk.machine = machine.clone();
    desk.tick()
}

/// What would be taken from each group.
fn amounts(desk: &Desk, machine: &Machine, groups: &[Group]) -> Vec<Bytes> {
    let mut desk = desk.clone();
    desk.machine = machine.clone();
    let signals = desk.signals();
    let amount = |group| judge(&desk.config, &desk.state, &signals, group).map_or(Bytes::ZERO, |(job, _)| job.amount);
    groups.iter().map(amount).collect()
}

fn wild_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        (0u64..20_000).prop_map(millis),
        any::<u64>().prop_map(Duration::from_nanos),
        Just(Duration::MAX),
    ]
}

fn wild_bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just(0), 0u64..1 << 22, any::<u64>(), Just(u64::MAX)].prop_map(Bytes)
}

prop_compose! {
    fn wild_machine()(
        dt in wild_duration(),
        cpus in select(vec![0u32, 1, 2, 64, u32::MAX]),
        idle in option::of(any::<u32>()),
        times in proptest::array::uniform5(option::of(wild_duration())),
        swap in option::of((wild_bytes(), wild_bytes(), any::<bool>(), wild_bytes())),
        image in option::of(wild_bytes()),
        file_only: bool,
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
            swap: swap.map(|(total, free, on_disk, beside)| Swap { total, free, on_disk, beside }),
            memory: None,
            image,
            file_only,
        }
    }
}

prop_compose! {
    fn wild_group()(
        id in 0u64..4,
        bytes in proptest::array::uniform5(option::of(wild_bytes())),
        keep in option::of(prop_oneof![wild_bytes().prop_map(Amount::Bytes), (0u32..20_000).prop_map(|n| Amount::Share(Permyriad(n))), Just(Amount::Max)]),
        class in select(vec![Class::Background, Class::Background, Class::Foreground]),
        by_age in by_age(),
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
            by_age,
        }
    }
}

prop_compose! {
    fn wild_config()(times in vec(wild_duration(), 8), bytes in vec(wild_bytes(), 5), strict: bool, share in 0u32..20_000) -> Config {
        let mut config = Config::default();
        config.idle.rule = if strict { IdleRule::Strict } else { IdleRule::Headroom };
        config.idle.strict = Permyriad(share);
        (config.idle.hold, config.idle.again, config.idle.window) = (times[0], times[1], times[2]);
        (config.sweep.after_boot, config.sweep.after_resume, config.sweep.write_time) = (times[3], times[4], times[5]);
        (config.guard.backoff, config.guard.backoff_max) = (times[6], times[7]);
        (config.sweep.smallest, config.sweep.growth, config.sweep.step) = (bytes[0], bytes[1], bytes[2]);
        config.guard.refaults_per_minute = bytes[3];
        config.guard.swap_floor = Amount::Share(Permyriad(share));
        config.guard.max_swap_writes = Some(Budget { bytes: bytes[4], hours: 24 });
        config
    }
}

prop_compose! {
    fn a_job()(amount in 0u64..8192, floor in 0u64..8192, swap_floor in 0u64..8192, writes in option::of(0u64..8192), file_only: bool, step in 0u64..8192, time in 0u64..40) -> Job {
        Job {
            amount: Bytes::kib(amount),
            floor: Bytes::kib(floor),
            swap_floor: Bytes::kib(swap_floor),
            swap_writes: writes.map_or(Bytes::MAX, Bytes::kib),
            file_only,
            step: Bytes::kib(step),
            write_time: millis(time),
        }
    }
}

/// A group of which a kernel frees what it is asked for, or more, or less.
#[derive(Debug)]
struct Kernel {
    seen: Seen,
    anon: Bytes,
    file: Bytes,
}

impl Kernel {
    /// Frees `percent` of what is asked, files last.
    fn reclaim(&mut self, bytes: Bytes, percent: u64, file_only: bool) -> Bytes {
        let bytes = Bytes(bytes.0 * percent / 100);
        let anon =
            if file_only { Bytes::ZERO } else { bytes.min(self.anon).min(self.seen.swap_free.unwrap_or_default()) };
        let file = (bytes - anon).min(self.file);
        (self.anon, self.file) = (self.anon - anon, self.file - file);
        self.seen.swap_free = self.seen.swap_free.map(|free| free - anon);
        self.seen.swap_written += anon;
        self.seen.current = self.anon + self.file;
        anon + file
    }
}

prop_compose! {
    fn kernel()(anon in 0u64..8192, file in 0u64..8192, swap in option::of(0u64..16384)) -> Kernel {
        let (anon, file) = (Bytes::kib(anon), Bytes::kib(file));
        let seen = Seen { current: anon + file, swap_free: swap.map(Bytes::kib), ..Seen::default() };
        Kernel { seen, anon, file }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_background_is_chosen_and_never_below_a_floor_or_beyond_swap_and_budget(desk in desk(), last in machine()) {
        let mut desk = desk;
        desk.machine = Machine { swap: last.swap, image: last.image, file_only: last.file_only, ..quiet() };
        for _ in 0..40 {
            let decision = desk.tick();
            let Decision::Sweep { id, job, .. } = decision else { continue };
            let group = desk.groups.iter().find(|group| group.id == id).expect("a group of the list");
            let current = group.current.expect("known");
            prop_assert_eq!(group.class, Class::Background);
            prop_assert!(job.amount >= desk.config.sweep.smallest);
            prop_assert!(job.amount + job.floor <= current);
            let old = group.by_age.as_ref().map(|by_age| &by_age.old);
            let is_old = old.is_none_or(|old| matches!(old, Old::Known { bytes } if job.amount <= *bytes));
            prop_assert!(is_old);
            prop_assert!(job.floor + group.unprotected.expect("known") >= current);
            prop_assert!(group.keep.is_none_or(|keep| job.floor >= keep.of(current)));
            let swap = desk.machine.swap.expect("known");
            let out = job.amount - group.page_cache.expect("known");
            prop_assert!(out <= swap.free - desk.config.guard.swap_floor.of(swap.total));
            prop_assert!(out == Bytes::ZERO || job.swap_floor >= swap_floor(&desk.config, &desk.machine, current));
            let left = desk.state.writes.left(desk.hour, desk.config.guard.max_swap_writes);
            prop_assert!(!swap.on_disk || out <= left && job.swap_writes <= left);
            // Again, from another group.
            let finished = Finished { id, size: current - job.amount, refaults: None, swap_writes: out, end: End::Complete };
            desk.state.finished(&desk.config, desk.now, desk.hour, &finished);
        }
    }

    #[test]
    fn more_load_or_pressure_never_leads_to_more_reclaim(
        desk in desk(),
        machine in machine(),
        more in proptest::array::uniform5(select(vec![0u64, 0, 1, 100, 5000])),
        less_idle in select(vec![0u32, 0, 1, 500, 10_000]),
    ) {
        let plus = |time: Option<Duration>, more| time.map(|time| time + millis(more));
        let busier = Machine {
            least_idle: machine.least_idle.map(|cpu| CpuIdle { idle: Permyriad(cpu.idle.0.saturating_sub(less_idle)), ..cpu }),
            load: plus(machine.load, more[0]),
            foreground: plus(machine.foreground, more[1]),
            stall_cpu: plus(machine.stall_cpu, more[2]),
            stall_io: plus(machine.stall_io, more[3]),
            stall_memory: plus(machine.stall_memory, more[4]),
            ..machine.clone()
        };
        prop_assert!(reclaims(&decided(&desk, &machine)) || !reclaims(&decided(&desk, &busier)));
        // Nor later, when it is over.
        let mut both = [desk.clone(), desk];
        for (desk, machine) in both.iter_mut().zip([machine, busier]) {
            desk.machine = machine;
            desk.tick();
            desk.machine = quiet();
        }
        let [mut calm, mut busy] = both;
        for _ in 0..12 {
            let (calm, busy) = (calm.tick(), busy.tick());
            if reclaims(&calm) {
                break;
            }
            prop_assert!(!reclaims(&busy));
        }
    }

    #[test]
    fn what_is_unknown_never_leads_to_more_than_what_is_known(desk in desk(), machine in machine(), lose in 0u32..1 << 9, of_groups in 0u32..1 << 5) {
        let gone = |bit: u32| lose & 1 << bit != 0;
        let mut less = machine.clone();
        for (bit, forget) in [
            (|m: &mut Machine| m.dt = Duration::ZERO) as fn(&mut Machine),
            |m| m.cpus = 0,
            |m| m.least_idle = None,
            |m| m.load = None,
            |m| m.foreground = None,
            |m| m.stall_cpu = None,
            |m| m.stall_io = None,
            |m| m.stall_memory = None,
            |m| m.swap = None,
        ].into_iter().enumerate() {
            if gone(u32::try_from(bit).expect("nine bits")) {
                forget(&mut less);
            }
        }
        let mut fewer = desk.groups.clone();
        for group in &mut fewer {
            for (bit, forget) in [
                (|g: &mut Group| g.current = None) as fn(&mut Group),
                |g| g.swap_backed = None,
                |g| g.page_cache = None,
                |g| g.refaults = None,
                |g| g.unprotected = None,
            ].into_iter().enumerate() {
                if of_groups & 1 << bit != 0 {
                    forget(group);
                }
            }
        }
        let known = amounts(&desk, &machine, &desk.groups);
        for (known, unknown) in known.iter().zip(amounts(&desk, &less, &fewer)) {
            prop_assert!(unknown <= *known);
        }
        let mut lost = desk.clone();
        lost.groups = fewer;
        prop_assert!(reclaims(&decided(&desk, &machine)) || !reclaims(&decided(&lost, &less)));
    }

    #[test]
    fn the_same_input_gives_the_same_decision(desk in desk(), machine in machine()) {
        let (mut one, mut two) = (desk.clone(), desk);
        (one.machine, two.machine) = (machine.clone(), machine);
        two.groups.reverse();
        prop_assert_eq!(one.tick(), two.tick());
        prop_assert_eq!(one.state, two.state);
    }

    #[test]
    fn after_a_stop_there_is_no_sweep_before_the_machine_was_idle_again(desk in desk(), events in vec(event(), 1..120), by_watch in any::<u64>()) {
        let mut desk = desk;
        let mut stopped = None;
        for (n, event) in events.iter().enumerate() {
            let decision = happen(&mut desk, event);
            match &decision {
                // Not because of the machine, or said already.
                Decision::Stop {
                    reason: Reason::Refaults { .. }
                        | Reason::Class { .. }
                        | Reason::Keep { .. }
                        | Reason::KernelProtection
                        | Reason::Settling { .. },
                } => {}
                Decision::Stop { .. } => stopped = Some(desk.now),
                Decision::Sweep { .. } => {
                    let waited = stopped.map(|stopped| desk.now.since(stopped));
                    prop_assert!(waited.is_none_or(|waited| waited >= desk.config.idle.again), "{waited:?}");
                }
                Decision::Hold { .. } | Decision::Continue { .. } => {}
            }
            if desk.state.sweeping().is_some() && by_watch & 1 << (n % 64) != 0 {
                desk.state.interrupt(desk.now);
                stopped = Some(desk.now);
            }
        }
    }

    #[test]
    fn clocks_that_jump_and_numbers_without_sense_never_panic(
        configs in vec(wild_config(), 1..3),
        events in vec((any::<u64>(), any::<u64>(), any::<bool>(), wild_machine(), vec(wild_group(), 0..4), 0usize..20, wild_bytes()), 1..40),
    ) {
        let mut desk = Desk::new([]);
        for (n, (now, hour, slept, machine, groups, what, bytes)) in events.into_iter().enumerate() {
            desk.config = configs[n % configs.len()].clone();
            (desk.now, desk.hour, desk.slept) = (Monotonic(now), hour, slept);
            (desk.machine, desk.groups) = (machine, groups);
            let signals = desk.signals();
            decide(&desk.config, &mut desk.state, &signals, &desk.groups).reason().to_string();
            if let Some(&end) = ENDS.get(what) {
                let id = desk.state.sweeping().unwrap_or(GroupId(now % 4));
                let finished = Finished { id, size: bytes, refaults: Some(bytes), swap_writes: bytes, end };
                desk.state.finished(&desk.config, desk.now, hour, &finished);
                next(&desk.config, &mut desk.state, &signals, &desk.groups).reason().to_string();
            }
            match what {
                15 => desk.state.pause(desk.now, Some(Duration::from_nanos(bytes.0))),
                16 => desk.state.pause(desk.now, None),
                17 => desk.state.resume(),
                18 => desk.state.interrupt(desk.now),
                19 => desk.state.reconfigured(),
                _ => {}
            }
            desk.state.steady_load();
            desk.state.backing_off(desk.now);
        }
    }

    #[test]
    fn a_pace_and_a_watch_never_panic(
        bytes in vec(wild_bytes(), 11),
        times in vec(wild_duration(), 8),
        flags in any::<u8>(),
    ) {
        let flag = |bit: u8| flags & 1 << bit != 0;
        let job = Job {
            amount: bytes[0], floor: bytes[1], swap_floor: bytes[2], swap_writes: bytes[3],
            file_only: flag(0), step: bytes[4], write_time: times[0],
        };
        let mut seen = Seen { at: Monotonic(bytes[10].0), current: bytes[5], swapcached: bytes[6], writeback: bytes[7], swap_free: flag(1).then_some(bytes[8]), swap_written: bytes[9] };
        let mut pace = Pace::new(job);
        let mut watch = Watch::new(&Stop::default(), Permyriad(u32::from(flags) << 24));
        for time in &times {
            pace.next(&seen);
            pace.wrote(bytes[0], *time, flag(2));
            seen.at = Monotonic(seen.at.0.wrapping_add(bytes[1].0));
            seen.swap_written = seen.swap_written.max(bytes[2]);
            watch.sample(*time, flag(3).then_some(times[0]));
        }
    }

    #[test]
    fn more_work_stops_a_sweep_no_later(samples in vec((0u64..40, 0u64..40), 2..50), more in 0u64..40) {
        let mut watch = Watch::new(&Stop::default(), Permyriad::percent(20));
        let mut stops = false;
        for (dt, used) in samples {
            let mut busier = watch.clone();
            stops |= watch.sample(millis(dt), Some(millis(used))).is_some();
            if stops {
                prop_assert!(busier.sample(millis(dt), Some(millis(used + more))).is_some());
                break;
            }
        }
    }

    #[test]
    fn no_day_sees_more_than_its_budget(steps in vec((0u64..30, 0u64..200), 1..60)) {
        let budget = Some(Budget { bytes: Bytes::mib(300), hours: 24 });
        let (mut writes, mut hour, mut log) = (Writes::default(), 1000, Vec::new());
        for (hours, wish) in steps {
            hour += hours;
            let written = Bytes::mib(wish).min(writes.left(hour, budget));
            writes.add(hour, written);
            log.push((hour, written));
            let day = log.iter().filter(|(then, _)| then + 24 > hour).map(|(_, bytes)| *bytes).sum::<Bytes>();
            prop_assert!(day <= Bytes::mib(300));
            prop_assert!(writes.within(hour, 24) == day);
        }
    }

    #[test]
    fn a_clock_that_goes_back_and_stays_there_never_refills_the_budget(steps in vec((0u64..3000, 0u64..100), 1..40)) {
        let budget = Some(Budget { bytes: Bytes::mib(5000), hours: 24 });
        let (mut writes, mut hour, mut all) = (Writes::default(), 200_000, Bytes::ZERO);
        for (back, mib) in steps {
            hour -= back;
            writes.add(hour, Bytes::mib(mib));
            all += Bytes::mib(mib);
            prop_assert_eq!(writes.left(hour, budget), Bytes::mib(5000) - all);
        }
    }

    #[test]
    fn a_pace_ends_whatever_it_is_told(
        job in a_job(),
        replies in vec((0u64..9000, 0u64..3000, 0u64..400_000, option::of(0u64..20_000), 0u64..500, any::<bool>(), 0u64..50), 1..12),
    ) {
        // A useful write frees at least a sixteenth of the smallest step and pays for four that are not.
        let most = 5 * (job.amount.0 / (SMALLEST_STEP.0 / 16) + 1) + 24;
        let mut pace = Pace::new(job);
        let (mut writes, mut waited) = (0, Duration::ZERO);
        for (current, swapcached, writeback, swap_free, freed, in_flight, took) in replies.iter().cycle() {
            let seen = Seen {
                at: Monotonic(0),
                current: Bytes::kib(*current),
                swapcached: Bytes::kib(*swapcached),
                writeback: Bytes::kib(*writeback),
                swap_free: swap_free.map(Bytes::kib),
                swap_written: Bytes::ZERO,
            };
            match pace.next(&seen) {
                Next::End(_) => break,
                Next::Wait(time) => {
                    prop_assert!(time > Duration::ZERO);
                    waited += time;
                    prop_assert!(waited <= seconds(10) + millis(50), "{waited:?} between two writes");
                }
                Next::Write { .. } => {
                    (writes, waited) = (writes + 1, Duration::ZERO);
                    prop_assert!(writes <= most, "more than {most} writes");
                    pace.wrote(Bytes(*freed * *freed), millis(*took), *in_flight);
                }
            }
        }
    }

    #[test]
    fn a_pace_never_asks_for_more_than_is_left_and_its_largest_step(job in a_job(), kernel in kernel(), percents in vec(select(vec![0u64, 10, 90, 100, 100, 200]), 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let (mut asked, mut exact) = (Bytes::ZERO, true);
        for percent in percents.iter().cycle() {
            match pace.next(&kernel.seen) {
                Next::End(_) => break,
                Next::Wait(_) => prop_assert!(false, "there is no writeback"),
                Next::Write { bytes, file_only } => {
                    prop_assert!(bytes >= SMALLEST_STEP && bytes <= job.step.max(SMALLEST_STEP));
                    prop_assert!(bytes <= (job.amount - pace.freed()).max(SMALLEST_STEP));
                    prop_assert!(job.file_only || !file_only);
                    let freed = kernel.reclaim(bytes, *percent, file_only);
                    exact &= freed == bytes;
                    asked += bytes;
                    prop_assert!(!exact || asked <= job.amount + SMALLEST_STEP);
                    pace.wrote(freed, millis(1), false);
                }
            }
        }
        prop_assert!(pace.freed() <= job.amount + job.step.max(SMALLEST_STEP) + job.step.max(SMALLEST_STEP));
    }

    #[test]
    fn a_pace_goes_below_no_floor_by_more_than_the_smallest_step(job in a_job(), kernel in kernel(), percents in vec(1u64..=200, 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let lowest = job.floor.min(kernel.seen.current);
        for percent in percents.iter().cycle() {
            let Next::Write { bytes, file_only } = pace.next(&kernel.seen) else { break };
            let freed = kernel.reclaim(bytes, *percent, file_only);
            pace.wrote(freed, millis(1), false);
            prop_assert!(kernel.seen.current + SMALLEST_STEP >= lowest, "{} left of {lowest}", kernel.seen.current);
        }
    }

    #[test]
    fn a_pace_fills_swap_beyond_no_floor_and_no_allowance(job in a_job(), kernel in kernel(), percents in vec(1u64..=400, 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let lowest = kernel.seen.swap_free.map(|free| free.min(job.swap_floor));
        for percent in percents.iter().cycle() {
            let Next::Write { bytes, file_only } = pace.next(&kernel.seen) else { break };
            let freed = kernel.reclaim(bytes, *percent, file_only);
            pace.wrote(freed, millis(1), false);
            prop_assert!(kernel.seen.swap_free >= lowest, "{:?} left of {lowest:?}", kernel.seen.swap_free);
            prop_assert!(kernel.seen.swap_written <= job.swap_writes);
        }
    }
}
