//! The probes of groups without ages.

use omr_policy::probe::{LARGEST_STEP, STEP};

use super::*;

/// Ages cannot be known: the aging thread says so when it is asked for the first time.
fn without_ages(machine: &mut Machine) {
    machine.pass(301, 0);
    let order = machine.aging.try_next().expect("an order to age groups");
    machine.aging.report(crate::aging_thread::Report {
        due: order.due,
        ages: order.ages,
        old: Err("MGLRU is off".into()),
        cost: Duration::ZERO,
        agings: 0,
        cold: Vec::new(),
        learned: Vec::new(),
    });
}

/// Lets this many seconds pass on an idle machine, of which each step of the probe is carried out
/// at once. Returns when the steps were. `back`: the pages of a step that come back at once.
fn probe(machine: &mut Machine, seconds: u64, back: u64, size: &mut Bytes, refaults: &mut u64) -> Vec<u64> {
    let mut steps = Vec::new();
    for second in 0..seconds {
        machine.pass(1, 0);
        let Some(order) = machine.worker.try_next() else { continue };
        let Order::Sweep(sweep) = order else { panic!("another order") };
        assert_eq!(sweep.older_than, None, "the ordinary backend");
        let whole = Bytes::mib(64);
        assert!(sweep.job.amount >= size.share(STEP) && sweep.job.amount <= whole.share(LARGEST_STEP));
        steps.push(second);
        *refaults += back;
        *size = *size - sweep.job.amount + Bytes::kib(4 * back);
        machine.set_group(*size, *refaults);
        let mut report = Report::nothing(&sweep.job, End::Complete, None);
        (report.freed, report.size) = (sweep.job.amount, *size);
        machine.worker.report(Outcome::Swept(sweep.id, report));
        machine.daemon.collect_outcomes();
    }
    steps
}

#[test]
fn without_ages_a_probe_takes_a_little_and_stops_when_it_comes_back() {
    let run = |back| {
        let mut machine = Machine::with_config("goal = 'auto'");
        machine.set_available(200_000);
        without_ages(&mut machine);
        let (mut size, mut refaults) = (Bytes::mib(64), 0);
        assert_eq!(probe(&mut machine, 590, back, &mut size, &mut refaults), Vec::<u64>::new(), "the warm-up");
        let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
        assert_eq!(explained["reason"]["kind"], "probing", "{explained}");
        assert!(explained["guards"].to_string().contains("ages are not known: MGLRU is off"), "{explained}");
        let steps = probe(&mut machine, 900, back, &mut size, &mut refaults);
        let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
        (steps, size, explained["verdict"].to_string())
    };
    let (steps, size, verdict) = run(0);
    assert!((25..=30).contains(&steps.len()), "{steps:?}");
    assert!(steps.windows(2).all(|pair| pair[1] - pair[0] >= 30), "{steps:?}");
    // The first steps are smaller than the others.
    assert!(size < Bytes::mib(38) && size > Bytes::mib(30), "{size}");
    assert!(verdict.contains("the next step is in") && verdict.contains("MiB is out"), "{verdict}");
    // The control: of each step 80 KiB come back. P is 45 KiB a minute. The waits double.
    let (steps, size, verdict) = run(20);
    assert!((2..=4).contains(&steps.len()) && steps[1] - steps[0] >= 120, "{steps:?}");
    assert!(size > Bytes::mib(63), "{size}");
    assert!(verdict.contains("too much came back, so it waits for another"), "{verdict}");
}

#[test]
fn a_step_of_a_probe_yields_to_a_tick_and_ends_for_a_pause_or_an_inhibitor() {
    let begin = || {
        let mut machine = Machine::with_config("goal = 'auto'\n[slo]\nwarm_up = '0s'");
        machine.set_available(200_000);
        without_ages(&mut machine);
        machine.daemon.readings.presence = None;
        machine.pass(10, 0);
        machine.begin_sweep();
        machine
    };
    let mut machine = begin();
    let mut busy = |times: u64, busy| {
        for _ in 0..times {
            machine.clock.0.fetch_add(20_000_000, Relaxed);
            machine.use_cpus(busy, 2 - busy);
            machine.daemon.sample();
        }
        (machine.worker.is_held(), machine.worker.is_stopped())
    };
    assert_eq!((busy(3, 2), busy(13, 0)), ((true, false), (false, false)), "a tick");
    assert!(busy(60, 2).1, "work that lasts");
    let mut machine = begin();
    machine.pass(1, 0);
    assert!(!machine.worker.is_stopped(), "the control");
    machine.daemon.readings.presence = Some(Facts { inhibited: true, ..Facts::default() });
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped());
    let mut machine = begin();
    machine.ask(Request::Pause { seconds: None });
    assert!(machine.worker.is_stopped());
}

#[test]
fn nothing_is_probed_in_mode_observe_or_under_a_rule_with_a_time_or_when_ages_are_known() {
    let rule = "goal = 'auto'\n[[group]]\nmatch = '*'\nolder_than = '10m'\n[slo]\nwarm_up = '0s'";
    for (config, expected) in [
        ("mode = 'observe'\ngoal = 'auto'\n[slo]\nwarm_up = '0s'", "no-ages"),
        (rule, "no-ages"),
        ("goal = 'auto'\n[slo]\nwarm_up = '0s'", "probing"),
    ] {
        let mut machine = Machine::with_config(config);
        machine.set_available(200_000);
        if !config.starts_with("mode") {
            without_ages(&mut machine);
        }
        machine.pass(20, 0);
        let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
        assert_eq!(explained["reason"]["kind"], expected, "{config}: {explained}");
        machine.pass(600, 0);
        assert_eq!(machine.worker.try_next().is_some(), expected == "probing", "{config}");
    }
    // MGLRU was switched on.
    let mut machine = Machine::with_config("goal = 'auto'");
    machine.set_available(200_000);
    without_ages(&mut machine);
    machine.pass(300, 0);
    let order = machine.aging.try_next().expect("another order");
    assert_eq!(order.ages, [Duration::from_secs(240)]);
    machine.aging.report(aged(order));
    machine.pass(300, 0);
    assert!(machine.worker.try_next().is_none());
    let explain = |machine: &mut Machine| machine.ask(Request::Explain { group: Some(GROUP.into()) });
    assert_eq!(explain(&mut machine)["reason"]["kind"], "learning");
    // And off again: the group is watched anew.
    without_ages(&mut machine);
    machine.pass(10, 0);
    assert!(explain(&mut machine)["verdict"].to_string().contains("only watched for another 9 min"));
}

#[test]
fn memory_that_omr_warm_brings_back_does_not_stop_a_probe_and_other_memory_does() {
    let run = |warms: bool| {
        let mut machine = Machine::with_config("goal = 'auto'\n[slo]\nwarm_up = '0s'");
        machine.set_available(200_000);
        without_ages(&mut machine);
        let (mut size, mut refaults) = (Bytes::mib(64), 0);
        let steps = probe(&mut machine, 90, 0, &mut size, &mut refaults);
        assert!(!steps.is_empty());
        let lock = warms.then(|| {
            let path = omr_base::paths::warm_lock(machine.root.path());
            omr_engine::warm::lock(&path).expect("the lock")
        });
        machine.pass(3, 0);
        machine.set_group(Bytes::mib(64), 100);
        machine.pass(6, 0);
        drop(lock);
        machine.pass(40, 0);
        let goes_on = machine.worker.try_next().is_some();
        let world = &machine.daemon.world;
        let cold_only =
            world.groups.iter().find(|group| group.current > Some(Bytes::ZERO)).map(|group| &group.cold_only);
        (goes_on, format!("{cold_only:?}"))
    };
    let (goes_on, out) = run(true);
    // The step that has just begun is all that is out.
    assert!(goes_on && out.contains("out: Bytes(335544)"), "{out}");
    let (goes_on, out) = run(false);
    assert!(!goes_on && out.contains("Waiting"), "the control: {out}");
}
