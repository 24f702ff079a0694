//! How often the daemon looks at the machine.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(5);

fn roomy(config: &str) -> Machine {
    let mut machine = Machine::with_config(config);
    machine.set_available(400_000);
    machine.pass(3, 0);
    machine
}

#[test]
fn a_machine_of_which_nobody_gains_is_looked_at_every_five_seconds() {
    let mut machine = roomy("goal = 'auto'");
    assert_eq!(machine.daemon.next_tick(), SLOW);
    machine.set_available(200_000);
    machine.pass(1, 0);
    assert_eq!(machine.daemon.next_tick(), SECOND, "a need");
    machine.set_available(400_000);
    machine.pass(1, 0);
    assert_eq!(machine.daemon.next_tick(), SLOW);
    machine.ask(Request::Prepare { purpose: Purpose::Preempt, deadline_ms: None, why: "a notice".into() });
    assert_eq!(machine.daemon.next_tick(), SECOND, "a preparation");
    // Other goals always have something to gain.
    assert_eq!(roomy("goal = 'free'").daemon.next_tick(), SECOND);
    // Nothing was read yet.
    assert_eq!(Machine::with_config("goal = 'auto'").daemon.next_tick(), SECOND);
}

#[test]
fn while_something_could_be_given_back_each_second_counts() {
    let mut machine = roomy("goal = 'auto'");
    let id = machine.daemon.world.tree.find(std::path::Path::new(GROUP)).expect("the group").id;
    machine.daemon.giving_back.note(id, Bytes::mib(1));
    assert_eq!(machine.daemon.next_tick(), SECOND);
}

/// The kernel's generations tell ages exactly only where agings come in time.
#[test]
fn agings_come_in_time_all_the_same() {
    let mut machine = roomy("goal = 'auto'");
    let (mut agings, mut ticks) = (Vec::new(), 0);
    let end = machine.daemon.host.now() + 700 * SECOND;
    while machine.daemon.host.now() < end {
        let step = machine.daemon.next_tick();
        machine.clock.0.fetch_add(u64::try_from(step.as_nanos()).expect("seconds"), Relaxed);
        machine.use_cpus(0, 100 * step.as_secs());
        machine.daemon.tick();
        ticks += 1;
        if let Some(order) = machine.aging.try_next() {
            agings.extend((!order.ages.is_empty()).then(|| machine.daemon.host.now()));
            machine.aging.report(aged(order));
        }
    }
    // The first one was ordered before.
    let between: Vec<_> = agings[1..].windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(between.len() >= 4, "{between:?}");
    assert!(between.iter().all(|time| (120 * SECOND..=122 * SECOND).contains(time)), "{between:?}");
    assert!(ticks < 200, "{ticks}");
}
