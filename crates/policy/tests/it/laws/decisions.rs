//! Laws of what is decided.

use std::time::Duration;

use omr_policy::pace::SMALLEST_STEP;
use omr_policy::{
    Class, ColdAmount, CpuIdle, Decision, End, Finished, Group, Machine, Reason, decide, next, swap_floor,
};
use omr_units::{Bytes, GroupId, Monotonic, Permyriad};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::inputs::{
    ENDS, amounts, decided, desk, event, happen, machine, reclaims, wild_bytes, wild_config, wild_group, wild_machine,
};
use crate::desk::{Desk, millis, quiet};

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
            let cold = group.cold_only.as_ref().map(|cold_only| &cold_only.cold);
            let (least, most) = match cold {
                None => (desk.config.sweep.smallest, Bytes::MAX),
                Some(ColdAmount::Known { bytes }) => (desk.config.sweep.smallest, *bytes),
                Some(ColdAmount::Probed { answer, .. }) => (SMALLEST_STEP, answer.bytes()),
                Some(ColdAmount::NotYet | ColdAmount::Never { .. }) => (Bytes::MAX, Bytes::ZERO),
            };
            prop_assert!(job.amount >= least && job.amount <= most);
            prop_assert!(job.amount + job.floor <= current);
            prop_assert!(job.floor + group.unprotected.expect("known") >= current);
            prop_assert!(group.keep.is_none_or(|keep| job.floor >= keep.of(current)));
            let swap = desk.machine.swap.expect("known");
            let out = job.amount - group.page_cache.expect("known");
            prop_assert!(out <= swap.free - desk.config.guard.swap_floor.of(swap.total));
            prop_assert!(out == Bytes::ZERO || job.swap_floor >= swap_floor(&desk.config, desk.machine.swap_context(), current));
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
        // More load does not cause a sweep later either, when the load is over. (The swap stays: a
        // change of it would end the sweep of the calm machine, and nothing that has not begun.)
        let mut both = [desk.clone(), desk];
        let later = Machine { swap: machine.swap, ..quiet() };
        for (desk, machine) in both.iter_mut().zip([machine, busier]) {
            desk.machine = machine;
            desk.tick();
            desk.machine = later.clone();
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
    fn unknown_signals_never_lead_to_more_reclaim_than_known_ones(desk in desk(), machine in machine(), lose in 0u32..1 << 9, of_groups in 0u32..1 << 5) {
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
                // Not because of the machine's users, or said already.
                Decision::Stop {
                    reason: Reason::Refaults { .. }
                        | Reason::SwapChanged
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
        configs in vec(wild_config().boxed(), 1..3),
        events in vec((any::<u64>(), any::<u64>(), any::<bool>(), wild_machine(), vec(wild_group().boxed(), 0..4), 0usize..20, wild_bytes()).boxed(), 1..40).boxed(),
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
}
