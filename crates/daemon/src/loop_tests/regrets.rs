//! What sweeps have cost.

use super::*;

/// Tasks of the group have waited this long, and so much came back.
fn set_harm(machine: &Machine, waited_us: u64, refaults: u64, swapped: u64) {
    let group = format!("sys/fs/cgroup/{GROUP}");
    let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}\n");
    machine.root.write(format!("{group}/memory.pressure"), text);
    machine.root.write(format!("{group}/memory.swap.current"), format!("{swapped}\n"));
    let stat = MEMORY_STAT.replace("refault_anon 0", &format!("refault_anon {}", refaults / 4096));
    machine.root.write(format!("{group}/memory.stat"), stat);
}

fn today_and_held(machine: &mut Machine) -> (Value, Value, Value) {
    let status = machine.ask(Request::Status);
    let today = &status["today"];
    (today["waited_ms"].clone(), today["regret_incomplete"].clone(), status["held_out_bytes"].clone())
}

#[test]
fn the_time_that_tasks_of_a_swept_group_wait_is_shown_and_survives_a_restart() {
    let mut machine = Machine::new();
    // 20 ms in each minute before the sweep.
    for minute in 0..12 {
        set_harm(&machine, minute * 20_000, 0, 0);
        machine.pass(60, 60);
    }
    let sweep = machine.begin_sweep();
    set_harm(&machine, 220_000, 0, 8 << 20);
    machine.end_sweep(&sweep, End::Complete);
    machine.pass(60, 60);
    assert_eq!(today_and_held(&mut machine), (0.into(), false.into(), (8 << 20).into()), "nobody misses it");

    set_harm(&machine, 220_000 + 300_000, 3 << 20, 5 << 20);
    machine.pass(60, 60);
    let (waited, incomplete, held) = today_and_held(&mut machine);
    let waited_ms = waited.as_u64().expect("a number");
    assert!((240..300).contains(&waited_ms), "{waited_ms}");
    assert_eq!((incomplete, held), (false.into(), (5 << 20).into()));
    assert_eq!(machine.ask(Request::Status)["today"]["refaulted_bytes"], 3 << 20);
    let regret = machine.ask(Request::Explain { group: Some(GROUP.into()) })["regret"].clone();
    assert_eq!((&regret["waited_ms"], &regret["refaulted_bytes"]), (&waited, &(3 << 20).into()), "{regret}");
    assert_eq!((&regret["held_out_bytes"], &regret["incomplete"]), (&(5 << 20).into(), &false.into()));
    assert!(machine.ask(Request::Explain { group: None })["regret"].is_null());

    // Ten minutes later it is in the ledger, where the next daemon finds it.
    let lines =
        |machine: &Machine| machine.ledger().into_iter().filter(|line| line["kind"] == "regret").collect::<Vec<_>>();
    assert!(lines(&machine).is_empty());
    machine.pass(600, 60);
    let found = lines(&machine);
    assert_eq!((found.len(), &found[0]["waited_ms"], &found[0]["group"]), (1, &waited, &GROUP.into()), "{found:?}");
    assert_eq!(found[0]["refaulted_bytes"], 3 << 20);
    let tally = crate::tally::Tally::load(&machine.daemon.host.state_dir, machine.daemon.host.wall());
    assert_eq!((tally.today.waited_ms, tally.regret(GROUP).refaults), (waited_ms, Bytes::mib(3)));
    let tomorrow = crate::tally::Tally::load(&machine.daemon.host.state_dir, machine.daemon.host.wall() + 86_400);
    assert_eq!((tomorrow.today.waited_ms, tomorrow.regret(GROUP).refaults), (0, Bytes::ZERO));
    // The sums begin anew with the day.
    machine.clock.0.fetch_add(86_400_000_000_000, Relaxed);
    machine.pass(1, 60);
    assert_eq!(today_and_held(&mut machine).0, 0);
}

#[test]
fn an_observed_sweep_costs_nothing_and_a_counter_that_is_missing_is_not_zero() {
    let mut machine = Machine::with_config("mode = 'observe'\ngoal = 'free'");
    let sweep = machine.begin_sweep();
    machine.end_sweep(&sweep, End::Complete);
    set_harm(&machine, 0, 0, 8 << 20);
    machine.pass(10, 60);
    set_harm(&machine, 500_000, 0, 8 << 20);
    machine.pass(10, 60);
    assert_eq!(today_and_held(&mut machine), (0.into(), false.into(), 0.into()));

    // The group has no memory.pressure.
    let mut machine = Machine::new();
    let sweep = machine.begin_sweep();
    machine.end_sweep(&sweep, End::Complete);
    machine.pass(10, 60);
    assert_eq!(today_and_held(&mut machine), (0.into(), true.into(), 0.into()));
    machine.pass(900, 60);
    assert!(machine.ledger().iter().all(|line| line["kind"] != "regret"), "nothing is known to have been lost");
}

#[test]
fn what_is_held_out_on_average_is_shown_and_recorded_each_hour_and_at_the_end_of_the_day() {
    let mut machine = Machine::new();
    // The first day would end within two hours.
    machine.clock.0.fetch_add(7_200_000_000_000, Relaxed);
    let sweep = machine.begin_sweep();
    set_harm(&machine, 0, 0, 8 << 20);
    machine.end_sweep(&sweep, End::Complete);
    let average = |machine: &mut Machine| machine.ask(Request::Status)["today"]["held_out_average_bytes"].clone();
    let lines =
        |machine: &Machine| machine.ledger().into_iter().filter(|line| line["kind"] == "held-out").collect::<Vec<_>>();
    let before = machine.daemon.books.tally.today.held_out_average_bytes;
    assert_eq!(before, Bytes::ZERO, "no time has passed");
    machine.pass(1800, 60);
    let half = average(&mut machine);
    assert!(half.as_u64().is_some_and(|bytes| (7 << 20..=8 << 20).contains(&bytes)), "{half}");
    assert!(lines(&machine).is_empty(), "the hour is not over");
    // All of it comes back.
    set_harm(&machine, 0, 8 << 20, 0);
    machine.pass(2400, 60);
    let found = lines(&machine);
    assert_eq!((found.len(), &found[0]["groups"][0]["group"]), (1, &GROUP.into()), "{found:?}");
    let quarter = found[0]["groups"][0]["bytes"].as_u64().expect("a number");
    assert!((3 << 20..5 << 20).contains(&quarter), "of an hour, half an hour: {found:?}");
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) })["regret"].clone();
    assert_eq!(
        (&explained["held_out_bytes"], &explained["held_out_average_bytes"]),
        (&0.into(), &average(&mut machine))
    );

    machine.clock.0.fetch_add(86_400_000_000_000, Relaxed);
    machine.pass(60, 60);
    assert_eq!(average(&mut machine), 0, "a new day");
    let found = lines(&machine);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[1]["groups"], serde_json::json!([]), "nothing was out in the last minutes of the day");
    let days = omr_history::days::Days::read(&machine.daemon.host.state_dir).expect("the ledger");
    let day = found[1]["time"].as_u64().expect("a number") / 86_400;
    assert!(days.of(day, GROUP).is_some_and(|of| of.held > Bytes::mib(3) && of.held < Bytes(quarter)), "{days:?}");
    assert_eq!(days.of(day + 1, GROUP), None);
}

/// The size of all swap as meminfo has it, and that of the device in /proc/swaps.
fn set_swap(machine: &Machine, total_kib: u64, device_kib: Option<u64>) {
    machine.set_memory("SwapTotal:", total_kib);
    let line = device_kib.map(|kib| format!("/dev/vda partition {kib} 0 -2\n")).unwrap_or_default();
    machine.root.write("proc/swaps", format!("Filename Type Size Used Priority\n{line}"));
}

#[test]
fn what_comes_back_because_swap_is_switched_off_is_no_cost_and_nothing_is_reclaimed_meanwhile() {
    const ALL: u64 = 524_284;
    for is_off in [true, false] {
        let mut machine = Machine::new();
        set_swap(&machine, ALL, Some(ALL));
        let sweep = machine.begin_sweep();
        machine.end_sweep(&sweep, End::Complete);
        set_harm(&machine, 0, 0, 40 << 20);
        machine.pass(10, 60);
        // The kernel takes the free space first, and the device goes when everything is back.
        for (left, device) in [(40, Some(ALL)), (20, Some(ALL)), (20, Some(ALL)), (0, None)] {
            set_harm(&machine, 0, (40 - left) << 20, left << 20);
            if is_off {
                set_swap(&machine, left << 10, device);
            }
            machine.pass(7, 60);
            let reason = machine.reason();
            assert_eq!(reason == &Reason::SwapOff, is_off && device.is_some(), "{left} {reason:?}");
        }
        set_swap(&machine, ALL, Some(ALL));
        machine.pass(70, 0);
        let back = machine.ask(Request::Status)["today"]["refaulted_bytes"].clone();
        let verdict = machine.ask(Request::Explain { group: Some(GROUP.into()) })["verdict"].to_string();
        assert_eq!(back, if is_off { 0 } else { 40 << 20 });
        assert_eq!(verdict.contains("backing off"), !is_off, "{verdict}");
        assert_eq!(machine.worker.try_next().is_some(), is_off, "{:?}", machine.reason());
    }
}
