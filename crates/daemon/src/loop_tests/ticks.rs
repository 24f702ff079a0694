//! How often the daemon looks at the machine.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use omr_base::paths;
use omr_control::protocol::{NEWS, PATIENCE};

use super::*;
use crate::event_loop::{serve, tell_watchers};
use crate::news::News;
use crate::server::Server;

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

/// A client that watches, and one that asked once and is silent.
struct Watched {
    machine: Machine,
    server: Server,
    news: News,
    clients: [UnixStream; 2],
}

impl Watched {
    fn new() -> Self {
        let mut machine = Machine::new();
        let path = paths::socket(machine.root.path());
        let mut server = Server::listen(machine.root.path()).expect("listening");
        let requests = ["watch", "status"].map(|word| format!("{{\"do\":\"{word}\"}}\n"));
        let clients = requests.map(|request| {
            let mut client = UnixStream::connect(&path).expect("connected");
            client.set_nonblocking(true).expect("a flag");
            client.write_all(request.as_bytes()).expect("sent");
            client
        });
        server.accept(machine.daemon.host.now());
        (0..2).for_each(|index| serve(&mut machine.daemon, &mut server, index));
        let mut watched = Watched { machine, server, news: News::default(), clients };
        assert_eq!(watched.told(), [1, 1]);
        watched
    }

    /// The number of statuses that each has got.
    fn told(&mut self) -> [usize; 2] {
        self.clients.each_mut().map(|client| {
            let mut text = Vec::new();
            let _ = client.read_to_end(&mut text);
            let lines = String::from_utf8(text).expect("UTF-8");
            for line in lines.lines() {
                let answer: Value = line.parse().expect("JSON");
                assert!(answer["ok"]["pid"].is_u64(), "{line}");
            }
            lines.lines().count()
        })
    }

    /// The number of statuses that the first one has got at each of these ticks.
    fn pass(&mut self, seconds: u64) -> Vec<usize> {
        let tick = |_| {
            self.machine.pass(1, 0);
            tell_watchers(&self.machine.daemon, &mut self.server, &mut self.news);
            let told = self.told();
            assert_eq!(told[1], 0, "it does not watch");
            told[0]
        };
        (0..seconds).map(tick).collect()
    }
}

#[test]
fn who_watches_is_told_seldom_at_rest_and_each_second_while_something_runs() {
    let mut watched = Watched::new();
    let told = watched.pass(30);
    let longest = told.split(|told| *told > 0).map(<[usize]>::len).max().unwrap_or_default();
    assert!((longest as u64) < NEWS.as_secs(), "{told:?}");
    assert!((4..=10).contains(&told.iter().sum::<usize>()), "{told:?}");
    watched.machine.begin_sweep();
    assert_eq!(watched.pass(5), [1; 5]);
}

/// The reason of the decision does not tell of everything that runs.
#[test]
fn who_watches_is_told_in_the_next_tick_that_something_has_ended() {
    let mut watched = Watched::new();
    watched.pass(5);
    let mut at_rest = 0;
    // At each second between two readings of the groups.
    for _ in 0..6 {
        watched.machine.daemon.work.order(Order::HandBack);
        assert_eq!(watched.pass(5), [1; 5]);
        watched.machine.worker.report(Outcome::HandedBack(Ok(None)));
        watched.machine.daemon.collect_outcomes();
        assert_eq!(watched.pass(1), [1], "it has ended");
        at_rest += watched.pass(1)[0];
    }
    assert!(at_rest < 6, "the control");
}

#[test]
fn who_watches_and_does_not_read_is_told_no_more_and_closed() {
    let mut watched = Watched::new();
    watched.machine.begin_sweep();
    let began = watched.machine.daemon.host.now();
    let mut ticks = 0;
    while !watched.server.watchers().is_empty() {
        watched.machine.pass(1, 0);
        tell_watchers(&watched.machine.daemon, &mut watched.server, &mut watched.news);
        ticks += 1;
        assert!(ticks < 10_000, "the socket takes it all");
    }
    let now = watched.machine.daemon.host.now();
    assert!(now.since(began) > PATIENCE, "the control");
    // Only the other one is dropped here: it has been silent for longer.
    watched.server.close_silent(now);
    watched.server.drop_closed();
    assert_eq!(watched.server.count(), 1);
    watched.server.close_silent(now + PATIENCE);
    watched.server.drop_closed();
    assert_eq!(watched.server.count(), 0);
}
