//! Younger memory while everybody is away, and giving it back.

use omr_engine::warm;
use omr_policy::threshold::Step;

use super::*;
use crate::giving_back::GivingBack;
use crate::thresholds::{Learned, MEASURED_AT};

/// A session that was used so many seconds ago.
fn used(seconds: u64) -> Option<Facts> {
    let idle = Some(Duration::from_secs(seconds));
    Some(Facts { remote: Sessions { active: 1, idle }, ..Facts::default() })
}

/// A machine that lacks memory, whose people went away two minutes ago.
fn deserted(config: &str) -> Machine {
    let mut machine = Machine::with_config(&format!("{config}\n[presence]\naway_after = '2m'"));
    machine.daemon.giving_back.set_possible(true);
    machine.set_available(400_000);
    machine.daemon.readings.presence = used(0);
    machine.pass(1, 0);
    machine.daemon.readings.presence = used(120);
    machine.pass(120, 0);
    machine.set_available(200_000);
    machine
}

impl Machine {
    /// The order to give back, if there is one.
    fn given_back(&mut self) -> Option<crate::worker::GiveBack> {
        match self.worker.try_next() {
            Some(Order::GiveBack(order)) => Some(order),
            Some(_) => panic!("another order"),
            None => None,
        }
    }

    /// A sweep begins and meets the need.
    fn sweep_once(&mut self) -> Sweep {
        let sweep = self.begin_sweep();
        self.set_available(400_000);
        self.end_sweep(&sweep, End::Complete);
        sweep
    }

    /// The worker has given memory back like this.
    fn end_giving_back(&mut self, end: warm::End) {
        let mut report = warm::Report::nothing(warm::Use::Used);
        (report.swap, report.end) = (Bytes::mib(6), end);
        self.worker.report(Outcome::GivenBack(Ok(report)));
        self.daemon.collect_outcomes();
    }
}

#[test]
fn memory_that_left_while_everybody_was_away_is_given_back() {
    for end in [End::Complete, End::Stopped] {
        let mut machine = deserted(AUTO_ANY_AGE);
        let sweep = machine.begin_sweep();
        assert!(sweep.remember.is_some(), "pages that are known");
        if end == End::Complete {
            machine.set_available(400_000);
            machine.end_sweep(&sweep, end);
            machine.pass(60, 0);
            assert!(machine.given_back().is_none(), "the control: nobody has come");
        }
        machine.daemon.readings.presence = if end == End::Complete { None } else { used(0) };
        machine.pass(1, 50);
        if end == End::Stopped {
            assert!(machine.worker.is_stopped());
            machine.end_sweep(&sweep, end);
        }
        let order = machine.given_back().expect("an order");
        assert_eq!(order.groups, [sweep.id]);
        machine.pass(5, 0);
        assert_eq!(machine.reason(), &Reason::Warming);
        let status = machine.ask(Request::Status);
        assert_eq!(status["giving_back"]["taken"], 8 << 20, "{status}");
        assert!(!machine.worker.is_stopped());
        machine.end_giving_back(warm::End::Headroom);
        let line = machine.ledger().pop().expect("a line");
        let expected = (&"give-back".into(), &(6 << 20).into(), &"no more fits into memory".into());
        assert_eq!((&line["kind"], &line["asked"], &line["stop_reason"]), expected, "{line}");
        machine.pass(60, 0);
        assert!(machine.given_back().is_none(), "once");
        assert!(machine.ask(Request::Status)["giving_back"].is_null());
    }
}

#[test]
fn nothing_is_given_back_that_left_for_another_reason() {
    let absent = |machine: &mut Machine| {
        let sweep = machine.sweep_once();
        machine.daemon.readings.presence = used(0);
        machine.pass(60, 50);
        (sweep.remember.is_some(), machine.given_back().is_some())
    };
    assert_eq!(absent(&mut deserted(AUTO_ANY_AGE)), (true, true), "the control");
    let mut without_rights = deserted(AUTO_ANY_AGE);
    without_rights.daemon.giving_back.set_possible(false);
    assert_eq!(absent(&mut without_rights), (false, false));
    assert_eq!(absent(&mut deserted("goal = 'free'")), (false, false));
    let observe = AUTO_ANY_AGE.replace("goal", "mode = 'observe'\ngoal");
    assert_eq!(absent(&mut deserted(&observe)), (false, false));
    // Nobody has ever been there.
    let mut server = Machine::with_config(AUTO_ANY_AGE);
    server.daemon.giving_back.set_possible(true);
    server.set_available(200_000);
    server.clock.0.store(10_000_000_000, Relaxed);
    server.daemon.readings.presence = Some(Facts::default());
    assert_eq!(absent(&mut server), (false, false));
}

#[test]
fn a_pause_sleep_and_a_preparation_end_giving_back() {
    let giving = || {
        let mut machine = deserted(AUTO_ANY_AGE);
        machine.sweep_once();
        machine.daemon.readings.presence = used(0);
        machine.pass(1, 0);
        machine.given_back().expect("an order");
        machine
    };
    for request in [
        Request::Pause { seconds: None },
        Request::FallAsleep,
        Request::Prepare { purpose: Purpose::Preempt, deadline_ms: None, why: "a notice".into() },
    ] {
        let mut machine = giving();
        assert!(!machine.worker.is_stopped(), "the control");
        machine.ask(request.clone());
        assert!(machine.worker.is_stopped(), "{request:?}");
        machine.end_giving_back(warm::End::Stopped);
        let prepares = matches!(machine.worker.try_next(), Some(Order::Prepare(..)));
        assert_eq!(prepares, matches!(request, Request::Prepare { .. }), "{request:?}");
    }
    let mut machine = giving();
    machine.pass(299, 0);
    assert!(!machine.worker.is_stopped());
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped(), "five minutes");
}

const OBSERVED_AT: Duration = Duration::from_secs(960);

impl Machine {
    /// The aging thread has aged the group. Its threshold is 30 min, it is observed at 16 min, and
    /// this much of it is as old as was asked. Returns the age that was asked for.
    fn age(&mut self, old: Bytes) -> Option<Duration> {
        let order = self.aging.try_next()?;
        let group = order.groups.iter().find(|group| group.path.as_os_str() == GROUP).expect("the group");
        let (id, older_than) = (group.id, group.older_than);
        let step = Step::not_below(Duration::from_secs(1800));
        let learned =
            Learned { id, step, observed_at: OBSERVED_AT, aged: None, is_observed: true, why: "a test".into() };
        self.aging.report(crate::aging_thread::Report {
            old: Ok(older_than.map(|_| (id, Some(old))).into_iter().collect()),
            learned: vec![learned],
            ..aged(order)
        });
        older_than
    }

    fn min_age(&self) -> u64 {
        let world = &self.daemon.world;
        let node = world.tree.find(std::path::Path::new(GROUP)).expect("the group");
        world
            .group(node.id)
            .expect("the group")
            .cold_only
            .as_ref()
            .map_or(0, |cold_only| cold_only.min_age.as_secs() / 60)
    }
}

#[test]
fn while_everybody_is_away_younger_memory_leaves_and_the_threshold_is_back_at_once() {
    let mut machine = deserted("goal = 'auto'");
    machine.set_available(400_000);
    let mut ages = Vec::new();
    let mut pass = |machine: &mut Machine, seconds: u64| {
        for _ in 0..seconds {
            machine.pass(1, 0);
            let is_old = machine.min_age() <= 8;
            let asked = machine.age(if is_old { Bytes::mib(32) } else { Bytes::ZERO });
            ages.extend(asked.map(|age| age.as_secs() / 60));
        }
    };
    pass(&mut machine, 600);
    assert_eq!(machine.min_age(), 30, "the control: nothing lacks");
    machine.set_available(200_000);
    pass(&mut machine, 302);
    ages.dedup();
    assert_eq!((ages.as_slice(), machine.min_age()), (&[4, 16, 15, 8][..], 8), "first to measure its working set");
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) })["guards"].to_string();
    assert!(explained.contains("away: memory unused for 8 min, its threshold is 30 min"), "{explained}");
    let sweep = machine.begin_sweep();
    assert_eq!((sweep.older_than, sweep.remember.is_some()), (Some(Duration::from_secs(480)), true));
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
    let (verdict, guards) = (explained["verdict"].to_string(), explained["guards"].to_string());
    assert!(verdict.contains("being swept now") && guards.contains("away: memory unused for 8 min"), "{explained}");
    machine.pass(1, 0);
    assert!(!machine.worker.is_stopped(), "the control");
    machine.daemon.readings.presence = used(0);
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped());
    assert_eq!(machine.min_age(), 30);
    machine.end_sweep(&sweep, End::Stopped);
    assert!(machine.given_back().is_some());
    machine.end_giving_back(warm::End::Complete);
    // What comes back says nothing about the threshold until ten minutes later.
    machine.daemon.readings.presence = used(0);
    let ended = machine.daemon.host.now();
    machine.pass(600, 0);
    let order = machine.aging.try_next().expect("an order");
    let group = order.groups.iter().find(|group| group.path.as_os_str() == GROUP).expect("the group");
    assert_eq!(group.disturbed, Some(ended + Duration::from_secs(600)));
}

#[test]
fn for_a_hibernation_image_groups_are_aged_before_everybody_counts_as_away() {
    for by in [None, Some(HibernatesBy::Lid)] {
        let mut machine = able_to_hibernate("goal = 'auto'");
        machine.daemon.giving_back.set_possible(true);
        machine.daemon.readings.hibernates = by;
        machine.pass(2, 0);
        assert_eq!(machine.age(Bytes::ZERO), Some(MEASURED_AT));
        // The ages that the group is aged for, in minutes, but for the one at which it is observed.
        let mut unseen = |seconds| {
            machine.daemon.readings.presence = used(seconds);
            let mut ages = Vec::new();
            for _ in 0..600 {
                machine.pass(1, 0);
                ages.extend(machine.age(Bytes::mib(32)).map(|age| age.as_secs() / 60));
            }
            ages.retain(|age| age * 60 != OBSERVED_AT.as_secs());
            ages.dedup();
            (ages, machine.min_age())
        };
        assert_eq!(unseen(239), (vec![], 30));
        if by.is_none() {
            // The control: no need.
            assert_eq!(unseen(590), (vec![], 30));
            continue;
        }
        assert_eq!(unseen(241), (vec![4], 30), "nothing leaves yet");
        // Somebody was seen 241 s ago.
        machine.daemon.readings.presence = used(600);
        for _ in 241..599 {
            machine.pass(1, 0);
            machine.age(Bytes::mib(32));
        }
        assert_eq!(machine.min_age(), 30);
        machine.pass(3, 0);
        assert_eq!(machine.min_age(), 4);
        assert_eq!(machine.begin_sweep().older_than, Some(Duration::from_secs(240)), "known at once");
    }
}

#[test]
fn a_new_group_is_aged_at_once_and_its_threshold_is_the_longest() {
    let mut machine = able_to_hibernate("goal = 'auto'");
    machine.pass(2, 0);
    assert_eq!(machine.min_age(), 480);
    assert_eq!(machine.aging.try_next().map(|order| order.ages), Some(vec![MEASURED_AT]));
}

#[test]
fn without_the_rights_to_give_back_no_younger_memory_leaves() {
    let mut machine = deserted("goal = 'auto'");
    machine.daemon.giving_back.set_possible(false);
    for _ in 0..1200 {
        machine.pass(1, 0);
        machine.age(Bytes::mib(32));
        assert!(machine.min_age() >= 30);
    }
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
}

#[test]
fn memory_is_not_brought_back_twice_after_hibernation() {
    for is_warmed in [false, true] {
        let mut machine = deserted(AUTO_ANY_AGE);
        machine.sweep_once();
        machine.daemon.giving_back.slept(machine.daemon.host.now());
        machine.daemon.readings.presence = used(0);
        machine.pass(10, 0);
        assert!(machine.given_back().is_none(), "omr-warm.service is about to begin");
        let lock = is_warmed.then(|| warm::lock(&machine.root.resolve("run/omr-root/warm.lock")).expect("a lock"));
        machine.pass(30, 0);
        drop(lock);
        machine.pass(30, 0);
        assert_eq!(machine.given_back().is_some(), !is_warmed);
    }
}

#[test]
fn what_is_in_other_swap_is_given_back_after_one_device_was_switched_off() {
    let mut machine = deserted(AUTO_ANY_AGE);
    machine.sweep_once();
    machine.set_memory("SwapTotal:", 400_000);
    machine.pass(3, 0);
    assert_eq!(machine.reason(), &Reason::SwapOff);
    machine.daemon.readings.presence = used(0);
    machine.pass(30, 0);
    assert!(machine.given_back().is_none(), "it would go through swap that is read at the same time");
    machine.root.write("proc/swaps", "Filename Type Size Used Priority\n/dev/vda partition 400000 0 -2\n");
    machine.pass(30, 0);
    assert!(machine.given_back().is_some());
}

#[test]
fn cpu_time_of_the_companion_is_not_somebodys_work() {
    let is_stopped = |slice: &str| {
        let mut machine = Machine::new();
        let groups = ["system.slice".to_owned(), slice.to_owned(), format!("{slice}/omr-give-back@0.service")];
        for group in &groups {
            machine.root.write(format!("sys/fs/cgroup/{group}/cpu.stat"), "usage_usec 0\n");
        }
        machine.daemon.scan();
        machine.begin_sweep();
        for sample in 1..20 {
            for group in &groups {
                machine
                    .root
                    .write(format!("sys/fs/cgroup/{group}/cpu.stat"), format!("usage_usec {}\n", sample * 20_000));
            }
            machine.samples(1, 0);
        }
        machine.worker.is_stopped()
    };
    assert!(!is_stopped(crate::companion::GROUP));
    assert!(is_stopped("system.slice/other.slice"), "the control");
}

#[test]
fn a_companion_is_asked_where_the_daemon_lacks_the_rights_and_systemd_listens() {
    let lacking = || {
        let mut machine = deserted(AUTO_ANY_AGE);
        machine.root.write("proc/self/status", "CapEff:\t0000000001000002\n");
        machine.daemon.giving_back = GivingBack::new(&machine.daemon.host);
        machine
    };
    let mut machine = lacking();
    let explained = machine.ask(Request::Explain { group: None })["guards"].to_string();
    assert!(explained.contains("needs omr-give-back.socket"), "{explained}");
    assert!(machine.begin_sweep().remember.is_none(), "the control: nobody listens");

    let mut machine = lacking();
    machine.root.write("run/omr-root/give-back.sock", "");
    let explained = machine.ask(Request::Explain { group: None })["guards"].to_string();
    assert!(!explained.contains("omr-give-back"), "{explained}");
    let sweep = machine.begin_sweep();
    assert!(sweep.remember.as_ref().is_some_and(|remember| remember.companion.is_some()));
    machine.set_available(400_000);
    machine.end_sweep(&sweep, End::Complete);
    machine.daemon.readings.presence = used(0);
    machine.pass(1, 0);
    assert!(machine.given_back().is_some_and(|order| order.companion.is_some()));
}
