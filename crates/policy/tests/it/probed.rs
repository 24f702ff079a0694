//! Groups without ages, of which a probe says how much may be reclaimed.

use omr_policy::presence::Facts;
use omr_policy::probe::{Answer, Why};
use omr_policy::{
    Class, ColdAmount, ColdOnly, Decision, End, Goal, Memory, Reason, Swap, SwapContext, judge, swap_floor,
};
use omr_units::{Amount, Bytes, GroupId};
use proptest::prelude::*;

use crate::desk::{Desk, group, seconds};

const STEP: Bytes = Bytes::mib(1);
const OUT: Bytes = Bytes::mib(20);

fn take(bytes: Bytes) -> Answer {
    Answer::Take { bytes, back: Bytes::ZERO, allowed: Bytes::kib(400) }
}

fn probed(answer: Answer) -> Option<ColdOnly> {
    let cold = ColdAmount::Probed { why: "MGLRU off".into(), answer, out: OUT };
    Some(ColdOnly { min_age: seconds(28_800), cold, learned: true, threshold: None })
}

/// A group of 150 MiB of anonymous memory and 50 MiB of page cache, and a machine that lacks
/// memory.
fn desk(answer: Answer) -> Desk {
    let mut desk = Desk::new([group(1, 150, 50)]);
    desk.config.goal = Goal::Auto;
    desk.group(1).cold_only = probed(answer);
    desk
}

fn judged(desk: &Desk) -> Result<Bytes, String> {
    let judged = judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]);
    judged.map(|(job, _)| job.amount).map_err(|why| why.to_string())
}

#[test]
fn a_probe_takes_its_step_although_a_sweep_would_not_be_worth_it() {
    let offered = desk(take(STEP));
    assert!(STEP < offered.config.sweep.smallest);
    assert_eq!(judged(&offered), Ok(STEP));
    let why = "ages are not known here, so a probe reclaims a little at a time (20.0 MiB is out): \
               what comes back was not watched for a minute yet";
    assert_eq!(judged(&desk(Answer::Hold(Why::Watching))), Err(why.into()));
    // The controls: without a probe, nothing; with less to gain than the step, only that.
    let mut never = desk(take(STEP));
    never.group(1).cold_only = Some(ColdOnly {
        min_age: seconds(120),
        cold: ColdAmount::Never { why: "MGLRU off".into() },
        learned: true,
        threshold: None,
    });
    let no_ages = "only its cold memory is reclaimed, and ages are not known here: MGLRU off";
    assert_eq!(judged(&never), Err(no_ages.into()));
    let mut little = desk(take(STEP));
    little.group(1).unprotected = Some(Bytes::kib(300));
    assert_eq!(judged(&little), Ok(Bytes::kib(300)));
    little.group(1).unprotected = Some(Bytes::kib(100));
    assert_eq!(
        judged(&little),
        Err("100 KiB to gain, 128 KiB is worth a sweep; its page cache, 50.0 MiB, is available already".into())
    );
}

#[test]
fn all_that_holds_a_sweep_holds_a_probe() {
    type Change = fn(&mut Desk);
    let cases: [(Change, &str); 7] = [
        (|desk| desk.group(1).class = Class::Foreground, "class foreground"),
        (|desk| desk.group(1).keep = Some(Amount::Max), "its rule keeps"),
        (|desk| desk.group(1).unprotected = Some(Bytes::ZERO), "memory.min or memory.low"),
        (|desk| desk.group(1).refaults = None, "the refaults"),
        (|desk| desk.machine.swap = None, "the free swap space"),
        (|desk| desk.machine.memory = None, "the available memory"),
        (
            |desk| desk.machine.memory = Some(Memory { total: Bytes::mib(8192), available: Bytes::mib(5000) }),
            "nothing to gain",
        ),
    ];
    for (change, why) in cases {
        let mut desk = desk(take(STEP));
        change(&mut desk);
        let reason = judged(&desk).expect_err(why);
        assert!(reason.contains(why), "{reason}");
    }
    // At its floor, swap takes nothing more.
    let mut full = desk(take(STEP));
    full.machine.swap =
        Some(Swap { total: Bytes::mib(100), free: Bytes::mib(31), on_disk: false, free_outside_image: Bytes::ZERO });
    assert!(judged(&full).expect_err("swap").contains("of swap is free"));
    // Too much came back a moment ago.
    let mut harmed = desk(take(STEP));
    harmed.until_sweep(100);
    harmed.finish(End::Complete, 199);
    harmed.group(1).refaults = Some(Bytes::mib(100));
    harmed.tick();
    assert!(judged(&harmed).expect_err("back-off").starts_with("backing off"));
}

#[test]
fn only_memory_that_leaves_to_swap_is_a_gain_where_available_memory_is_the_need() {
    let mut desk = desk(take(STEP));
    let job = |desk: &Desk| judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job);
    let asked = job(&desk).expect("a job");
    assert!(asked.anon_first && !asked.file_only);
    // An old kernel cannot be asked for a kind of memory.
    desk.machine.file_only = false;
    assert!(!job(&desk).expect("a job").anon_first);
    // A group with nothing but page cache gains nothing.
    let cold_only = desk.group(1).cold_only.clone();
    desk.groups = vec![group(1, 0, 200)];
    desk.group(1).cold_only = cold_only;
    assert!(matches!(job(&desk), Err(Reason::AvailableAlready { .. })));
    // The control: with another goal, page cache is a gain.
    desk.config.goal = Goal::Free;
    assert_eq!(job(&desk).map(|job| job.amount), Ok(STEP));
}

#[test]
fn a_host_gets_only_memory_that_is_known_to_be_cold() {
    let mut desk = desk(take(STEP));
    desk.machine.memory = Some(Memory { total: Bytes::mib(8192), available: Bytes::mib(5000) });
    desk.machine.free_page_reporting = Some(true);
    let why = "only its cold memory is reclaimed, and ages are not known here: MGLRU off";
    assert_eq!(judged(&desk), Err(why.into()));
    desk.group(1).cold_only = Some(ColdOnly {
        min_age: seconds(120),
        cold: ColdAmount::Known { bytes: OUT },
        learned: true,
        threshold: None,
    });
    assert_eq!(judged(&desk), Ok(OUT), "the control");
}

#[test]
fn a_probe_runs_while_somebody_is_there_and_not_while_a_program_inhibits() {
    let inhibited = Some(Facts { inhibited: true, ..Facts::default() });
    let mut desk = desk(take(STEP));
    desk.machine.presence = None;
    desk.until_sweep(100);
    assert!(matches!(desk.tick(), Decision::Continue { .. }));
    desk.machine.presence.clone_from(&inhibited);
    let Decision::Stop { reason } = desk.tick() else { panic!("it went on") };
    assert!(reason.to_string().starts_with("somebody is there: "), "{reason}");
    desk.finish(End::Stopped, 200);
    desk.no_sweep(100);
    // Another goal does not ask.
    desk.config.goal = Goal::Free;
    desk.until_sweep(2);
}

#[test]
fn a_probe_has_its_own_interval() {
    let mut desk = desk(take(STEP));
    desk.until_sweep(100);
    desk.finish(End::Complete, 199);
    assert_eq!(desk.until_sweep(2).1, GroupId(1));
}

proptest! {
    #[test]
    fn a_job_is_never_above_the_answer_of_the_probe(
        anon in 0u64..400, file in 0u64..400, step in 128u64..5000, free in 0u64..2000, old: bool, goal in 0u8..3,
    ) {
        let mut desk = desk(take(Bytes::kib(step)));
        let cold_only = desk.group(1).cold_only.clone();
        desk.groups = vec![group(1, anon, file)];
        desk.group(1).cold_only = cold_only;
        desk.machine.file_only = !old;
        desk.machine.image = Some(Bytes::mib(5000));
        desk.config.goal = [Goal::Auto, Goal::Free, Goal::Hibernate][usize::from(goal)];
        desk.machine.swap = Some(Swap {
            total: Bytes::mib(2000), free: Bytes::mib(free), on_disk: false, free_outside_image: Bytes::ZERO,
        });
        let job = |desk: &Desk| judge(&desk.config, &desk.state, &desk.signals(), &desk.groups[0]).map(|(job, _)| job);
        let taken = job(&desk);
        if let Ok(job) = &taken {
            prop_assert!(job.amount <= Bytes::kib(step) && job.amount >= Bytes::kib(128));
            let context = SwapContext { swap: desk.machine.swap, image: desk.machine.image };
            prop_assert!(job.swap_writes == Bytes::ZERO || job.swap_floor >= swap_floor(&desk.config, context, job.amount));
        }
        // Nor is it more than what memory of any age would give.
        desk.group(1).cold_only = None;
        desk.config.sweep.smallest = Bytes::kib(128);
        let any = job(&desk).map_or(Bytes::ZERO, |job| job.amount);
        prop_assert!(taken.map_or(Bytes::ZERO, |job| job.amount) <= any);
        // A probe that holds takes nothing.
        desk.group(1).cold_only = probed(Answer::Hold(Why::Unknown));
        prop_assert!(job(&desk).is_err());
    }
}
