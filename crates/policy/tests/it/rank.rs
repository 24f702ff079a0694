//! Hints about background processes: which process gets one, which hint, and when.

use std::time::Duration;

use crate::desk::{free, millis, quiet, seconds};
use omr_policy::cost::Power;
use omr_policy::rank::{
    HintEnd, HintKind, HintReport, Process, ProcessId, ProcessRecords, Ranked, Score, Verdict, lacking, may_prefetch,
    rank,
};
use omr_policy::{Class, Config, Goal, Machine, Memory, Reason, Signals, State, Swap};
use omr_units::{Amount, Bytes, Monotonic, Permyriad};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start: 1 }
}

/// A background process with this many MiB of anonymous memory.
fn process(pid: u32, anon: u64) -> Process {
    Process {
        id: id(pid),
        class: Class::Background,
        stated: true,
        oom_score_adj: Some(0),
        cpu: Some(Duration::ZERO),
        anon: Some(Bytes::mib(anon)),
        swapped: Some(Bytes::ZERO),
        unfocused: None,
        room: Some(Bytes::MAX),
    }
}

/// A quiet machine and its processes, sampled every second.
#[derive(Clone, Debug)]
struct Desk {
    config: Config,
    state: State,
    records: ProcessRecords,
    now: Monotonic,
    machine: Machine,
    processes: Vec<Process>,
}

impl Desk {
    fn new(processes: impl Into<Vec<Process>>) -> Self {
        let now = Monotonic(0) + seconds(3600);
        let mut desk = Desk {
            config: free(),
            state: State::default(),
            records: ProcessRecords::default(),
            now,
            machine: quiet(),
            processes: processes.into(),
        };
        desk.sample(0);
        desk
    }

    /// Ranks the processes this many seconds later.
    fn sample(&mut self, later: u64) -> Vec<Ranked> {
        self.now = self.now + seconds(later);
        let signals = Signals { now: self.now, hour: 1, slept: false, machine: self.machine.clone() };
        rank(&self.config, &self.state, &mut self.records, &signals, &self.processes)
    }

    /// The verdict about the first process.
    fn verdict(&mut self, later: u64) -> Verdict {
        let first = self.processes[0].id;
        self.sample(later).into_iter().find(|ranked| ranked.id == first).expect("it is in the list").verdict
    }

    #[track_caller]
    fn reason_to_hold(&mut self, later: u64) -> String {
        match self.verdict(later) {
            Verdict::Hold { reason } => reason.to_string(),
            hint => panic!("{hint:?}"),
        }
    }

    #[track_caller]
    fn due(&mut self, later: u64) -> HintKind {
        match self.verdict(later) {
            Verdict::Hint { kind, .. } => kind,
            hold => panic!("{hold:?}"),
        }
    }

    /// The hint is given and leaves this many MiB of anonymous memory.
    fn hinted(&mut self, step: HintKind, left: u64) {
        self.end(step, left, HintEnd::Complete);
    }

    fn end(&mut self, step: HintKind, left: u64, end: HintEnd) {
        self.processes[0].anon = Some(Bytes::mib(left));
        let hinted = HintReport { kind: step, anon: Bytes::mib(left), swap_writes: Bytes::ZERO, end };
        let id = self.processes[0].id;
        self.records.hinted(&mut self.state, self.now, 1, id, &hinted);
    }

    fn works(&mut self, time: Duration) {
        self.processes[0].cpu = self.processes[0].cpu.map(|cpu| cpu + time);
    }
}

#[test]
fn an_unused_process_is_marked_cold_after_ten_seconds_and_paged_out_after_forty_five() {
    let mut desk = Desk::new([process(1, 100)]);
    assert_eq!(desk.reason_to_hold(9), "used or in the foreground 9.0 s ago, 10 s is needed");
    let verdict = desk.verdict(1);
    assert_eq!(
        verdict,
        Verdict::Hint {
            kind: HintKind::Deactivate,
            reason: Reason::Unused { unused: seconds(10), needed: seconds(10) }
        }
    );
    assert_eq!(verdict.reason().to_string(), "in the background and unused for 10 s, 10 s is needed");
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.reason_to_hold(34), "marked cold; unused for 44 s, at 45 s it is paged out");
    assert_eq!(desk.due(1), HintKind::PageOut);
    desk.hinted(HintKind::PageOut, 1);
    assert_eq!(desk.reason_to_hold(60), "1.00 MiB of anonymous memory, 12.0 MiB is worth a hint");
}

#[test]
fn the_times_are_configurable() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.config.hints.cold_after = seconds(2);
    desk.config.hints.pageout_after = seconds(4);
    assert_eq!(desk.due(2), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.due(2), HintKind::PageOut);
}

#[test]
fn without_a_rule_or_a_statement_nothing_is_hinted() {
    let mut desk = Desk::new([Process { stated: false, ..process(1, 100) }]);
    assert_eq!(desk.reason_to_hold(3600), "no rule or statement says that it is in the background");
    // The control: with a statement it is hinted.
    desk.processes[0].stated = true;
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 0 ms ago, 10 s is needed");
    assert_eq!(desk.due(10), HintKind::Deactivate);
}

#[test]
fn foreground_and_protected_processes_are_never_hinted() {
    for class in [Class::Foreground, Class::Protected] {
        let mut desk = Desk::new([Process { class, ..process(1, 100) }]);
        assert_eq!(desk.reason_to_hold(3600), format!("class {}: loses no memory", class.name()));
        assert_eq!(desk.sample(0)[0].score, None);
    }
}

#[test]
fn an_unknown_value_prevents_hints_and_is_named() {
    let whole = process(1, 100);
    for (process, what) in [
        (Process { cpu: None, ..whole.clone() }, "its CPU time"),
        (Process { anon: None, ..whole.clone() }, "its anonymous memory"),
        (Process { swapped: None, ..whole.clone() }, "its memory in swap"),
        (Process { oom_score_adj: None, ..whole.clone() }, "its oom_score_adj"),
    ] {
        let mut desk = Desk::new([process]);
        assert_eq!(desk.reason_to_hold(3600), format!("{what} cannot be read, which counts as busy"));
        desk.processes = vec![whole.clone()];
        desk.sample(1);
        assert_eq!(desk.due(60), HintKind::PageOut);
    }
    let mut desk = Desk::new([Process { room: None, ..whole }]);
    assert_eq!(desk.due(60), HintKind::Deactivate, "nothing is taken by that");
}

#[test]
fn a_process_that_was_in_the_foreground_begins_anew() {
    let mut desk = Desk::new([process(1, 100)]);
    assert_eq!(desk.due(44), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    desk.processes[0].class = Class::Foreground;
    desk.reason_to_hold(1);
    desk.processes[0].class = Class::Background;
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 0 ms ago, 10 s is needed");
    assert_eq!(desk.due(10), HintKind::Deactivate);
    // A process that came to the foreground between two samples begins anew as well.
    desk.hinted(HintKind::Deactivate, 100);
    desk.records.came_back(desk.now, id(1));
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 0 ms ago, 10 s is needed");
}

#[test]
fn the_focus_counts_from_when_it_was_lost_and_not_from_before_the_process_was_in_the_foreground() {
    // It has not used the CPU for 44 s; before that nothing is known.
    let mut desk = Desk::new([Process { class: Class::Foreground, ..process(1, 100) }]);
    desk.reason_to_hold(30);
    let lost = desk.now;
    desk.sample(0);
    desk.processes[0] = Process { unfocused: Some(lost), ..process(1, 100) };
    assert_eq!(desk.due(14), HintKind::Deactivate, "14 s ago, though this is the first look since");
    // Somebody had it in between.
    desk.processes[0].unfocused = Some(desk.now);
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 1.0 s ago, 10 s is needed");
    // A focus lost before the process was last in the foreground does not count.
    desk.processes[0].class = Class::Foreground;
    desk.reason_to_hold(60);
    desk.processes[0] = Process { unfocused: Some(lost), ..process(1, 100) };
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 1.0 s ago, 10 s is needed");
    desk.records.came_back(desk.now, id(1));
    assert_eq!(desk.reason_to_hold(2), "used or in the foreground 2.0 s ago, 10 s is needed");
    // A focus lost before the first sample does not count either.
    let mut desk = Desk::new([Process { unfocused: Some(Monotonic(0)), ..process(1, 100) }]);
    assert_eq!(desk.reason_to_hold(9), "used or in the foreground 9.0 s ago, 10 s is needed");
    // Without a rule it says nothing.
    let mut desk = Desk::new([Process { unfocused: Some(Monotonic(0)), stated: false, ..process(1, 100) }]);
    assert_eq!(desk.reason_to_hold(600), Reason::NotStated.to_string());
}

#[test]
fn a_process_that_works_is_in_use_and_one_with_timers_is_not() {
    let mut desk = Desk::new([process(1, 100)]);
    for _ in 0..60 {
        desk.works(millis(20));
        assert_eq!(desk.reason_to_hold(1), "used or in the foreground 0 ms ago, 10 s is needed");
    }
    for _ in 0..9 {
        desk.works(millis(10));
        desk.reason_to_hold(1);
    }
    desk.works(millis(10));
    assert_eq!(desk.due(1), HintKind::Deactivate);
}

#[test]
fn a_short_burst_counts_after_a_long_time_between_two_samples() {
    let mut desk = Desk::new([process(1, 100)]);
    // 0.03 % of an hour.
    desk.works(seconds(1));
    assert_eq!(desk.reason_to_hold(3600), "used or in the foreground 0 ms ago, 10 s is needed");
    desk.works(millis(90));
    assert_eq!(desk.due(3600), HintKind::PageOut);
}

#[test]
fn a_process_of_the_same_id_that_started_later_is_another_one() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.due(10);
    desk.processes[0].id.start = 2;
    assert_eq!(desk.reason_to_hold(1), "used or in the foreground 0 ms ago, 10 s is needed");
}

#[test]
fn nothing_is_remembered_of_a_process_that_is_gone() {
    let mut desk = Desk::new([process(7, 100), process(8, 100)]);
    desk.sample(1);
    assert!(format!("{:?}", desk.records).contains("pid: 7,"));
    desk.processes.remove(0);
    desk.sample(1);
    let known = format!("{:?}", desk.records);
    assert!(known.contains("pid: 8,") && !known.contains("pid: 7,"), "{known}");
}

#[test]
fn small_processes_are_left_alone() {
    let mut desk = Desk::new([process(1, 11)]);
    assert_eq!(desk.reason_to_hold(3600), "11.0 MiB of anonymous memory, 12.0 MiB is worth a hint");
    desk.processes[0].anon = Some(Bytes::mib(12));
    assert_eq!(desk.due(1), HintKind::PageOut);
}

#[test]
fn a_process_is_paged_out_again_when_enough_has_changed() {
    let mut desk = Desk::new([process(1, 100)]);
    assert_eq!(desk.due(45), HintKind::PageOut);
    desk.hinted(HintKind::PageOut, 20);
    assert_eq!(desk.reason_to_hold(60), "paged out before and changed by 0 B since, 8.00 MiB is worth another time");
    desk.processes[0].anon = Some(Bytes::mib(28));
    assert_eq!(desk.due(1), HintKind::PageOut);
}

#[test]
fn between_two_hints_there_is_androids_time() {
    for (last, next, millis_between) in [
        (HintKind::Deactivate, HintKind::Deactivate, 5000),
        (HintKind::Deactivate, HintKind::PageOut, 500),
        (HintKind::PageOut, HintKind::Deactivate, 10_000),
        (HintKind::PageOut, HintKind::PageOut, 10_000),
    ] {
        let mut desk = Desk::new([process(1, 100)]);
        desk.config.hints.cold_after = Duration::ZERO;
        desk.config.hints.pageout_after = if next == HintKind::Deactivate { seconds(3600) } else { Duration::ZERO };
        desk.end(last, 100, HintEnd::Stopped);
        let given = desk.now;
        desk.now = given + millis(millis_between - 1);
        assert_eq!(desk.reason_to_hold(0), "hinted a moment ago, no hint for another 1 ms", "{last:?} {next:?}");
        desk.now = given + millis(millis_between);
        assert_eq!(desk.due(0), next);
    }
}

#[test]
fn with_little_free_swap_it_is_marked_cold_and_stays() {
    let mut desk = Desk::new([process(1, 100)]);
    let swap = |free| {
        Some(Swap { total: Bytes::mib(1000), free: Bytes::mib(free), on_disk: false, free_outside_image: Bytes::ZERO })
    };
    desk.machine.swap = swap(199);
    assert_eq!(desk.due(60), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.reason_to_hold(10), "199 MiB of swap is free, 200 MiB stays free");
    desk.machine.swap = swap(200);
    assert_eq!(desk.due(1), HintKind::PageOut);
    // The swap floor of sweeps holds for hints as well.
    desk.processes[0].anon = Some(Bytes::mib(150));
    assert_eq!(desk.reason_to_hold(0), "50.0 MiB of swap is free, 100 MiB stays free");
}

#[test]
fn no_more_is_paged_out_than_lacks_and_the_rest_when_that_lacks_too() {
    let mut desk = Desk::new([process(1, 100)]);
    let memory = |available| Some(Memory { total: Bytes::mib(1000), available: Bytes::mib(available) });
    desk.machine.memory = memory(470);
    assert_eq!(desk.due(60), HintKind::PageOut);
    assert_eq!(lacking(&desk.config, &desk.machine), Bytes::mib(30));
    desk.end(HintKind::PageOut, 70, HintEnd::Enough);
    desk.machine.memory = memory(501);
    assert_eq!(
        desk.reason_to_hold(10),
        "501 MiB of memory is available, 500 MiB is enough",
        "and it is not marked once more"
    );
    desk.machine.memory = memory(500);
    assert_eq!(desk.due(1), HintKind::PageOut);
    assert_eq!(lacking(&desk.config, &desk.machine), desk.config.hints.smallest);
    // The hint was given for all memory: until that changes, no hint is due.
    desk.hinted(HintKind::PageOut, 70);
    assert_eq!(desk.reason_to_hold(20), "paged out before and changed by 0 B since, 8.00 MiB is worth another time");
}

#[test]
fn with_much_memory_available_it_is_marked_cold_and_stays() {
    let mut desk = Desk::new([process(1, 100)]);
    let memory = |available| Some(Memory { total: Bytes::mib(1000), available: Bytes::mib(available) });
    desk.machine.memory = memory(501);
    assert_eq!(desk.due(60), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.reason_to_hold(10), "501 MiB of memory is available, 500 MiB is enough");
    desk.machine.memory = None;
    assert_eq!(desk.reason_to_hold(1), "the available memory cannot be read, which counts as busy");
    desk.machine.memory = memory(500);
    assert_eq!(desk.due(1), HintKind::PageOut);
    desk.config.hints.available = Permyriad::percent(100);
    desk.machine.memory = memory(1000);
    assert_eq!(desk.due(0), HintKind::PageOut);
}

#[test]
fn without_swap_it_is_marked_cold() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.machine.swap =
        Some(Swap { total: Bytes::ZERO, free: Bytes::ZERO, on_disk: false, free_outside_image: Bytes::ZERO });
    assert_eq!(desk.due(60), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.reason_to_hold(10), "there is no swap, and hardly any page cache to reclaim");
}

#[test]
fn while_somebody_waits_for_memory_or_the_disk_nothing_is_written_to_a_disk() {
    let disk =
        Some(Swap { total: Bytes::mib(4096), free: Bytes::mib(4096), on_disk: true, free_outside_image: Bytes::ZERO });
    for (machine, why) in [
        (
            Machine { stall_memory: Some(millis(60)), ..quiet() },
            "not idle: tasks wait for memory 6 % of the time, 5 % is allowed",
        ),
        (
            Machine { stall_io: Some(millis(210)), ..quiet() },
            "not idle: tasks wait for io 21 % of the time, 20 % is allowed",
        ),
        (Machine { stall_io: None, ..quiet() }, "pressure (io) cannot be read, which counts as busy"),
    ] {
        let mut desk = Desk::new([process(1, 100)]);
        desk.machine = Machine { swap: disk, ..machine };
        assert_eq!(desk.due(60), HintKind::Deactivate);
        desk.hinted(HintKind::Deactivate, 100);
        assert_eq!(desk.reason_to_hold(10), why);
        desk.machine = Machine { swap: disk, ..quiet() };
        assert_eq!(desk.due(1), HintKind::PageOut);
    }
}

#[test]
fn writes_to_a_swap_disk_are_within_the_allowance() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.machine.swap =
        Some(Swap { total: Bytes::mib(4096), free: Bytes::mib(4096), on_disk: true, free_outside_image: Bytes::ZERO });
    desk.config.guard.max_swap_writes = Some("150MiB/day".parse().expect("a budget"));
    assert_eq!(desk.due(60), HintKind::PageOut);
    let hinted =
        HintReport { kind: HintKind::PageOut, anon: Bytes::ZERO, swap_writes: Bytes::mib(100), end: HintEnd::Complete };
    desk.records.hinted(&mut desk.state, desk.now, 1, id(1), &hinted);
    assert_eq!(desk.reason_to_hold(20), "100 MiB was written to swap, the write budget is 150 MiB/day");
}

#[test]
fn with_the_goal_auto_nothing_is_paged_out_to_a_disk_on_battery_or_beyond_the_budget_of_its_medium() {
    let desk = |change: fn(&mut Desk)| {
        let mut desk = Desk::new([process(1, 100)]);
        desk.machine.swap = Some(Swap {
            total: Bytes::mib(4096),
            free: Bytes::mib(4096),
            on_disk: true,
            free_outside_image: Bytes::ZERO,
        });
        desk.config.goal = Goal::Auto;
        desk.config.guard.max_swap_writes = None;
        change(&mut desk);
        desk
    };
    assert_eq!(desk(|_| ()).due(60), HintKind::PageOut);
    let on_battery = |desk: &mut Desk| desk.machine.cost.power = Power::Battery;
    let budget = |desk: &mut Desk| desk.config.cost.ssd_writes = Some("99MiB/day".parse().expect("a budget"));
    let floor = |desk: &mut Desk| desk.config.cost.swap_floor = Amount::Bytes(Bytes::mib(4000));
    for (change, why) in [
        (on_battery as fn(&mut Desk), "on battery: nothing is written to swap on disk"),
        (budget, "the write budget for an SSD is used up: 0 B of 99.0 MiB/day"),
        (floor, "3.90 GiB of swap is free, 3.91 GiB stays free"),
    ] {
        let mut held = desk(change);
        assert_eq!(held.due(60), HintKind::Deactivate, "{why}");
        held.hinted(HintKind::Deactivate, 100);
        assert_eq!(held.reason_to_hold(10), why);
        // The control: the same with another goal.
        let mut control = desk(change);
        control.config.goal = Goal::Free;
        assert_eq!(control.due(60), HintKind::PageOut, "{why}");
    }
    // Zram before the disk has room.
    let mut zram = desk(on_battery);
    zram.machine.cost.memory_first = Bytes::mib(100);
    assert_eq!(zram.due(60), HintKind::PageOut);
}

#[test]
fn a_group_that_keeps_its_memory_keeps_that_of_its_processes() {
    let mut desk = Desk::new([Process { room: Some(Bytes::mib(99)), ..process(1, 100) }]);
    assert_eq!(desk.due(60), HintKind::Deactivate);
    desk.hinted(HintKind::Deactivate, 100);
    assert_eq!(desk.reason_to_hold(10), "its group may lose 99.0 MiB, and the process has 100 MiB");
}

#[test]
fn a_pause_of_sweeps_is_a_pause_of_hints() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.state.pause(desk.now, None);
    assert_eq!(desk.reason_to_hold(60), "paused until omr resume");
    desk.state.resume();
    desk.state.prepare(Some("hibernate".into()));
    assert_eq!(desk.reason_to_hold(0), "preparing for hibernate");
    desk.state.prepare(None);
    assert_eq!(desk.due(0), HintKind::PageOut);
}

#[test]
fn memory_is_prefetched_only_where_it_is_configured_and_nothing_is_paused() {
    let mut desk = Desk::new([]);
    assert!(!may_prefetch(&desk.config, &desk.state, desk.now), "not by default");
    desk.config.hints.prefetch = true;
    assert!(may_prefetch(&desk.config, &desk.state, desk.now));
    desk.state.pause(desk.now, None);
    assert!(!may_prefetch(&desk.config, &desk.state, desk.now));
}

#[test]
fn a_hint_that_is_refused_is_not_given_again_for_ten_minutes() {
    let mut desk = Desk::new([process(1, 100)]);
    desk.due(45);
    desk.end(HintKind::PageOut, 100, HintEnd::Failed);
    assert_eq!(desk.reason_to_hold(599), "the last hint was refused, no hint for another 1.0 s");
    assert_eq!(desk.due(1), HintKind::PageOut);
}

#[test]
fn the_most_expendable_comes_first_and_its_score_says_why() {
    let mut desk = Desk::new([
        process(1, 100),
        Process { oom_score_adj: Some(300), ..process(2, 100) },
        process(3, 500),
        Process { swapped: Some(Bytes::mib(400)), ..process(4, 100) },
        Process { class: Class::Foreground, ..process(5, 100) },
        process(6, 100),
    ]);
    desk.sample(5);
    desk.processes[0].cpu = Some(seconds(1));
    desk.sample(25);
    let ranked = desk.sample(30);
    let order: Vec<u32> = ranked.iter().map(|ranked| ranked.id.pid).collect();
    assert_eq!(order, [2, 3, 6, 1, 4, 5], "expendable, size, equal, used lately, cost, no candidate");
    let score = ranked[0].score.expect("a score");
    assert_eq!(
        score.to_string(),
        "1300: oom_score_adj 300 (650), unused for 60 s (500), 100 MiB anonymous (150), 0 B in swap (-0)"
    );
    assert_eq!(score.total(), 1300);
    assert_eq!(ranked[4].score.expect("a score").cost(), 200);
}

// Laws.

prop_compose! {
    fn any_process()(
        pid in 1u32..6,
        class in select(vec![Class::Background, Class::Background, Class::Background, Class::Foreground, Class::Protected]),
        stated in proptest::bool::weighted(0.8),
        oom_score_adj in option::weighted(0.9, -1000i16..=1000),
        cpu in option::weighted(0.9, select(vec![0u64, 0, 0, 5, 1000])),
        anon in option::weighted(0.9, 0u64..2000),
        swapped in option::weighted(0.9, 0u64..2000),
        room in option::weighted(0.9, 0u64..4000),
        unfocused in option::of(0u64..7200),
    ) -> Process {
        Process {
            class,
            stated,
            oom_score_adj,
            cpu: cpu.map(millis),
            anon: anon.map(Bytes::mib),
            swapped: swapped.map(Bytes::mib),
            room: room.map(Bytes::mib),
            unfocused: unfocused.map(|second| Monotonic(0) + seconds(second)),
            ..process(pid, 0)
        }
    }
}

prop_compose! {
    fn any_machine()(
        total in select(vec![0u64, 500, 4000]),
        free in 0u64..=100,
        on_disk: bool,
        known in proptest::bool::weighted(0.9),
        stall in select(vec![0u64, 0, 0, 100, 500]),
        available in option::of(0u64..=8192),
    ) -> Machine {
        let swap = Swap { total: Bytes::mib(total), free: Bytes::mib(total * free / 100), on_disk, free_outside_image: Bytes::ZERO };
        let memory = available.map(|mib| Memory { total: Bytes::mib(8192), available: Bytes::mib(mib) });
        Machine { swap: known.then_some(swap), stall_memory: Some(millis(stall)), memory, ..quiet() }
    }
}

fn processes() -> impl Strategy<Value = Vec<Process>> {
    proptest::collection::vec(any_process(), 0..6).prop_map(|mut processes| {
        processes.sort_by_key(|process| process.id);
        processes.dedup_by_key(|process| process.id);
        processes
    })
}

/// A policy after some samples, with the hints given that were due.
fn desk() -> impl Strategy<Value = Desk> {
    let samples = proptest::collection::vec((processes(), any_machine(), 0u64..40), 1..20);
    samples.prop_map(|samples| {
        let mut desk = Desk::new([]);
        for (processes, machine, later) in samples {
            desk.processes = processes;
            desk.machine = machine;
            for ranked in desk.sample(later) {
                if let Verdict::Hint { kind, .. } = ranked.verdict {
                    let hinted =
                        HintReport { kind, anon: Bytes::ZERO, swap_writes: Bytes::ZERO, end: HintEnd::Complete };
                    desk.records.hinted(&mut desk.state, desk.now, 1, ranked.id, &hinted);
                }
            }
        }
        desk
    })
}

fn is_hint(ranked: &Ranked) -> bool {
    matches!(ranked.verdict, Verdict::Hint { .. })
}

proptest! {
    #[test]
    fn only_background_processes_that_are_known_in_full_are_hinted(mut desk in desk(), later in 0u64..100) {
        let processes = desk.processes.clone();
        for ranked in desk.sample(later).iter().filter(|ranked| is_hint(ranked)) {
            let process = processes.iter().find(|process| process.id == ranked.id).expect("it is in the list");
            prop_assert_eq!(process.class, Class::Background);
            prop_assert!(process.stated);
            prop_assert!(process.cpu.is_some() && process.anon.is_some() && process.swapped.is_some());
            prop_assert!(process.oom_score_adj.is_some());
            if let Verdict::Hint { kind: HintKind::PageOut, .. } = ranked.verdict {
                prop_assert!(process.room >= process.anon, "{:?}", process);
                prop_assert!(desk.machine.swap.is_some_and(|swap| swap.free >= swap.total.share(Permyriad::percent(20))));
            }
        }
    }

    #[test]
    fn the_same_input_twice_never_flaps(mut desk in desk(), later in 0u64..100) {
        let once = desk.sample(later);
        prop_assert_eq!(&desk.sample(0), &once);
        // The order in which processes are listed does not matter.
        desk.processes.reverse();
        prop_assert_eq!(&desk.sample(0), &once);
    }

    #[test]
    fn more_recent_use_never_ranks_a_process_colder(desk in desk(), later in 1u64..100, which in 0usize..5) {
        let place = |desk: &Desk, id: ProcessId| {
            let ranked = desk.clone().sample(later);
            let place = ranked.iter().position(|ranked| ranked.id == id).expect("it is in the list");
            (ranked[place].clone(), place)
        };
        let Some(process) = desk.processes.get(which).cloned() else { return Ok(()) };
        let mut used = desk.clone();
        used.processes[which].cpu = process.cpu.map(|cpu| cpu + seconds(3600));
        let ((rests, before), (works, after)) = (place(&desk, process.id), place(&used, process.id));
        prop_assert!(after >= before, "{rests:?} {works:?}");
        prop_assert!(!is_hint(&works), "{works:?}");
        let total = |ranked: &Ranked| ranked.score.as_ref().map(Score::total);
        prop_assert!(total(&works) <= total(&rests));
    }

    #[test]
    fn wild_numbers_do_no_harm(
        anon: u64, swapped: u64, adj: i16, nanos: u64, total: u64, free: u64, dt: u64,
    ) {
        let mut desk = Desk::new([Process {
            oom_score_adj: Some(adj),
            anon: Some(Bytes(anon)),
            swapped: Some(Bytes(swapped)),
            cpu: Some(Duration::from_nanos(nanos)),
            ..process(1, 0)
        }]);
        desk.machine.swap = Some(Swap { total: Bytes(total), free: Bytes(free), on_disk: true, free_outside_image: Bytes::ZERO });
        desk.machine.dt = Duration::from_nanos(dt);
        for later in [0, 10, u64::from(u32::MAX)] {
            let _ = desk.sample(later)[0].score.map(|score| score.to_string());
        }
    }
}
