//! Bad input and faults: whatever is unknown, wrong or gone, no more memory is taken than without
//! it.

use omr_control::protocol::Right;
use omr_machine::statements::Statements;
use omr_policy::statement::Statement;

use super::*;
use crate::aging_thread;
use crate::books::Books;
use crate::server::Peer;
use crate::simulation::faults::{self, Burst};

/// A session that was used so many seconds ago.
fn used(seconds: u64) -> Option<Facts> {
    let idle = Some(Duration::from_secs(seconds));
    Some(Facts { local: Sessions { active: 1, idle }, ..Facts::default() })
}

/// A machine that lacks memory, where nobody is away before two minutes.
fn short(config: &str) -> Machine {
    let machine = Machine::with_config(&format!("{config}\n[presence]\naway_after = '2m'"));
    machine.set_available(200_000);
    machine
}

impl Machine {
    /// Lets a second pass on an idle machine. Returns whether the worker got an order.
    fn second(&mut self) -> Option<Order> {
        self.pass(1, 0);
        self.worker.try_next()
    }

    /// The worker has ended the sweep, and has written this much to swap.
    fn end_written(&mut self, sweep: &Sweep, end: End, written: Bytes) {
        let mut report = Report::nothing(&sweep.job, end, None);
        (report.freed, report.freed_anon, report.swapped_out) = (written, written, written);
        report.size = Bytes::mib(64);
        self.worker.report(Outcome::Swept(sweep.id, report));
        self.daemon.collect_outcomes();
    }

    fn set_swap(&self, lines: &str) {
        self.root.write("proc/swaps", format!("Filename Type Size Used Priority\n{lines}"));
    }

    /// What was written to swap on a disk, of the budget.
    fn written(&mut self) -> Value {
        self.ask(Request::Status)["swap"]["written"].clone()
    }

    /// The group is removed, and made again under its name.
    fn make_anew(&self, number: u64) {
        let group = self.root.resolve(format!("sys/fs/cgroup/{GROUP}"));
        // Kept aside, as the file system would give its number to the next directory.
        let aside = self.root.resolve(format!("aside/{number}"));
        std::fs::create_dir_all(aside.parent().expect("a directory")).expect("made");
        let copy = |from: &std::path::Path, to: &std::path::Path| {
            std::fs::create_dir(to).expect("made");
            for file in std::fs::read_dir(from).expect("a directory") {
                let file = file.expect("a file");
                std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
            }
        };
        std::fs::rename(&group, &aside).expect("aside");
        copy(&aside, &group);
    }
}

const DISK: &str = "/dev/vda partition 524284 0 -2\n";

#[test]
fn presence_that_flaps_every_second_takes_nothing_of_any_age_and_gives_nothing_back() {
    let signs: [Option<Facts>; 4] = [
        used(0),
        None,
        Some(Facts { inhibited: true, ..Facts::default() }),
        Some(Facts { age: Duration::MAX, ..Facts::default() }),
    ];
    for sign in signs {
        let mut machine = short(AUTO_ANY_AGE);
        machine.daemon.giving_back.set_possible(true);
        for _ in 0..130 {
            machine.daemon.readings.presence = sign.clone();
            assert!(machine.second().is_none(), "{sign:?}: {:?}", machine.reason());
            machine.daemon.readings.presence = used(10_000);
            assert!(machine.second().is_none(), "{sign:?}: {:?}", machine.reason());
        }
        // The control: it stays like that.
        machine.pass(118, 0);
        machine.begin_sweep();
    }
}

#[test]
fn a_follower_that_lies_takes_nothing_from_a_machine_in_use_and_soon_loses_the_group() {
    let lie = used(36_000);
    // It says that nobody is there, while a person works.
    let mut machine = short(AUTO_ANY_AGE);
    machine.daemon.readings.presence = lie.clone();
    machine.pass(300, 60);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    // In the first pause a sweep begins, and ends at the second sample of work.
    let sweep = machine.begin_sweep();
    assert!(!machine.samples(10, 0).1, "the control");
    assert!(machine.samples(2, 2).1);
    machine.end_sweep(&sweep, End::Stopped);
    // What comes back keeps the next sweeps away: the person misses it.
    let run = |back: u64| {
        let mut machine = short(AUTO_ANY_AGE);
        machine.daemon.readings.presence = lie.clone();
        let (mut sweeps, mut refaults) = (0, 0);
        for _ in 0..2400 {
            if let Some(Order::Sweep(sweep)) = machine.second() {
                sweeps += 1;
                machine.end_sweep(&sweep, End::Stopped);
                refaults += back;
                machine.set_group(Bytes::mib(64), refaults);
            }
        }
        sweeps
    };
    let (unmissed, missed) = (run(0), run(8 << 8));
    assert!(missed <= 10 && unmissed >= 10 * missed, "{missed} {unmissed}");
}

#[test]
fn a_wall_clock_that_is_set_gives_no_other_write_budget() {
    let budget = "[guard]\nmax_swap_writes = '16 MiB/day'\n";
    let run = |set: &dyn Fn(&Machine)| {
        let mut machine = Machine::with_config(&format!("goal = 'free'\n{budget}"));
        let sweep = machine.begin_sweep();
        machine.end_written(&sweep, End::WriteBudget, Bytes::mib(16));
        set(&machine);
        machine.pass(400, 0);
        (machine.written(), machine.worker.try_next().is_some())
    };
    let used_up = ((16u64 << 20).into(), false);
    let days = |days: i64| {
        move |machine: &Machine| {
            machine.clock.2.store(BOOT.saturating_add_signed(86_400 * days), Relaxed);
        }
    };
    for set in [0, 1, 2, 400, -1, -400] {
        assert_eq!(run(&days(set)), used_up, "{set} days");
    }
    // The control: a day passes, on a machine that sleeps.
    let asleep = |hours: u64| move |machine: &Machine| machine.clock.3.store(3600 * hours, Relaxed);
    assert_eq!(run(&asleep(20)), used_up);
    assert_eq!(run(&asleep(26)), (0.into(), true));
}

#[test]
fn a_budget_of_the_future_is_used_up_for_a_day_and_not_for_ever() {
    let machine = Machine::with_config("goal = 'free'\n[guard]\nmax_swap_writes = '16 MiB/day'\n");
    // The clock was a year ahead when the last daemon wrote.
    let hour = (BOOT + 365 * 86_400) / 3600;
    machine.root.write("var/lib/omr/swap-writes.json", format!("[[{hour},{}]]", 16 << 20));
    let mut machine = machine.restart();
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    machine.clock.3.store(26 * 3600, Relaxed);
    machine.pass(400, 0);
    assert!(machine.worker.try_next().is_some(), "{:?}", machine.reason());
}

#[test]
fn what_a_client_keeps_up_is_about_a_group_that_was_just_made_anew() {
    let mut machine = Machine::new();
    machine.make_anew(1);
    let subject = Subject::Group(GROUP.into());
    let statement = Statement { presence: Presence::Foreground, subject };
    let (kept, refused) =
        machine.daemon.allowed_statements(&[statement], Peer::new(990, Right::Follow)).expect("statements");
    assert_eq!(refused, 0);
    machine.daemon.set_client_statements(kept);
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    // The control.
    machine.daemon.set_client_statements(Statements::default());
    machine.begin_sweep();
}

#[test]
fn a_statement_right_after_a_group_was_made_anew_is_about_the_new_one() {
    let mut machine = Machine::new();
    let before = machine.daemon.world.tree.find(GROUP.as_ref()).map(|node| node.id);
    machine.make_anew(1);
    let say = |presence| Request::Say { presence, subject: Subject::Group(GROUP.into()) };
    machine.ask(say(Some(Presence::Foreground)));
    let said: Vec<_> = machine.daemon.statements.groups().keys().copied().collect();
    assert!(said.len() == 1 && Some(said[0]) != before, "{said:?} {before:?}");
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    // The control.
    machine.ask(say(None));
    machine.begin_sweep();
}

#[test]
fn a_clock_that_is_set_between_two_daemons_gives_no_new_budget() {
    let mut machine = Machine::with_config("goal = 'free'\n[guard]\nmax_swap_writes = '16 MiB/day'\n");
    let sweep = machine.begin_sweep();
    machine.end_written(&sweep, End::Complete, Bytes::mib(16));
    let set = |machine: &Machine, days: u64| machine.clock.2.store(BOOT + days * 86_400, Relaxed);
    set(&machine, 2);
    let mut machine = machine.restart();
    machine.pass(400, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    // In another boot it is set before anything is written.
    set(&machine, 0);
    machine.root.write("proc/sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000002\n");
    let machine = machine.restart();
    set(&machine, 2);
    let mut machine = machine.restart();
    machine.pass(400, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    // The control: two days pass, on a machine that sleeps.
    machine.clock.3.store(2 * 86_400, Relaxed);
    machine.pass(400, 0);
    assert!(machine.worker.try_next().is_some(), "{:?}", machine.reason());
}

#[test]
fn whoever_wakes_the_machine_is_there_whatever_the_clocks_say() {
    let mut machine = short(AUTO_ANY_AGE);
    machine.daemon.readings.presence = used(10_000);
    machine.pass(60, 0);
    for asleep in [2, 86_400] {
        machine.clock.3.fetch_add(asleep, Relaxed);
        for _ in 0..119 {
            machine.pass(1, 0);
            assert!(!machine.daemon.mind.state.presence().is_absence(), "{:?}", machine.reason());
        }
        machine.pass(2, 0);
        assert!(machine.daemon.mind.state.presence().is_absence(), "the control");
    }
    // The wall clock alone wakes nobody.
    for time in [0, BOOT, 2 * BOOT] {
        machine.clock.2.store(time, Relaxed);
        machine.pass(1, 0);
        assert!(machine.daemon.mind.state.presence().is_absence(), "{time}");
    }
}

#[test]
fn swap_that_is_removed_ends_its_sweep_and_what_was_written_counts() {
    let zram = DISK.replace("vda", "zram0");
    for (after, why) in [("", "no swap"), (DISK, "the same"), (&*DISK.replace("524284", "4096"), "less")] {
        let mut machine = short(AUTO_ANY_AGE);
        machine.pass(70, 0);
        let sweep = machine.begin_sweep();
        machine.set_swap(after);
        machine.pass(1, 0);
        let is_changed = after != DISK;
        assert_eq!(machine.worker.is_stopped(), is_changed, "{why}");
        machine.end_written(&sweep, End::Stopped, Bytes::mib(8));
        if is_changed {
            let words = "swap devices were added or removed since the sweep began";
            assert_eq!(machine.ledger()[0]["stop_reason"], words, "{why}");
            machine.pass(100, 0);
            assert!(!after.is_empty() || machine.worker.try_next().is_none(), "{why}: {:?}", machine.reason());
            machine.set_swap(DISK);
            machine.pass(2, 0);
        }
        assert_eq!(machine.written(), 8 << 20, "{why}");
    }
    // Memory goes to zram, which is removed before a disk.
    let mut machine = short(AUTO_ANY_AGE);
    machine.set_swap(&zram);
    machine.pass(70, 0);
    let sweep = machine.begin_sweep();
    machine.set_swap(DISK);
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped(), "its limits are not those of a disk");
    machine.end_written(&sweep, End::Stopped, Bytes::mib(8));
    assert_eq!(machine.written(), 8 << 20);
    // The list of swap cannot be read.
    let mut machine = short(AUTO_ANY_AGE);
    machine.pass(70, 0);
    machine.begin_sweep();
    machine.root.remove("proc/swaps");
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped());
}

#[test]
fn a_battery_that_reports_nonsense_counts_as_a_battery() {
    for (file, text) in [
        ("BAT0/status", ""),
        ("BAT0/status", "charged 100 %\n"),
        ("BAT0/status", "Unknown\n"),
        ("BAT0/capacity", "-40\n"),
        ("BAT0/capacity", "much\n"),
        ("BAT0/present", "-1\n"),
        ("BAT0/type", "\n"),
        ("AC/online", ""),
        ("AC/online", "-1\n"),
        // A second battery.
        ("BAT1/type", "Battery\n"),
    ] {
        let mut machine = short(AUTO_ANY_AGE);
        set_mains(&machine, true);
        // A headset, and a laptop whose battery rests: the cord alone does not say it all.
        machine.root.write("sys/class/power_supply/headset/type", "Battery\n");
        machine.root.write("sys/class/power_supply/headset/scope", "Device\n");
        machine.root.write("sys/class/power_supply/headset/status", "Discharging\n");
        machine.root.write("sys/class/power_supply/AC/online", "0\n");
        machine.pass(70, 0);
        let sweep = machine.begin_sweep();
        machine.pass(1, 0);
        assert!(!machine.worker.is_stopped(), "the control");
        machine.root.write(format!("sys/class/power_supply/{file}"), text);
        machine.pass(11, 0);
        assert!(machine.worker.is_stopped(), "{file} {text:?}");
        machine.end_sweep(&sweep, End::Stopped);
        machine.pass(100, 0);
        assert!(machine.worker.try_next().is_none(), "{file} {text:?}: {:?}", machine.reason());
        let why = machine.ask(Request::Status)["swap"]["no_writes"].clone();
        assert!(why.as_str().is_some_and(|why| why.contains("battery")), "{file} {text:?}: {why}");
    }
}

#[test]
fn a_group_that_is_made_anew_again_and_again_is_watched_anew_and_forgotten() {
    let without_ages = |machine: &mut Machine| {
        let order = machine.aging.try_next().expect("an order to age groups");
        machine.aging.report(aging_thread::Report {
            due: order.due,
            ages: order.ages,
            old: Err("MGLRU is off".into()),
            cost: Duration::ZERO,
            agings: 0,
            cold: Vec::new(),
            learned: Vec::new(),
        });
    };
    let run = |every: u64| {
        let mut machine = Machine::with_config("goal = 'auto'");
        machine.set_available(200_000);
        machine.pass(301, 0);
        without_ages(&mut machine);
        let mut sweeps = 0;
        for second in 0..900 {
            if second % every == 0 {
                machine.make_anew(second);
            }
            if let Some(Order::Sweep(sweep)) = machine.second() {
                sweeps += 1;
                machine.end_sweep(&sweep, End::Complete);
            }
        }
        let state = &machine.daemon.mind.state;
        assert!(serde_json::to_string(state).expect("plain data").len() < 4000);
        assert!(machine.daemon.aging.known_groups() <= 4, "{}", machine.daemon.aging.known_groups());
        sweeps
    };
    // Each minute, and before it was watched for ten.
    assert_eq!((run(60), run(300)), (0, 0));
    assert!(run(900) > 0, "the control");
}

#[test]
fn a_group_of_one_mib_loses_nothing_and_one_of_100_gib_no_more_than_lacks() {
    let begin = |size| {
        let mut machine = short(AUTO_ANY_AGE);
        machine.set_group(size, 0);
        machine.pass(300, 0);
        match machine.worker.try_next() {
            Some(Order::Sweep(sweep)) => Some(sweep.job.amount),
            _ => None,
        }
    };
    assert_eq!(begin(Bytes::mib(1)), None);
    let lacks = Bytes::kib(473_136 / 2 - 200_000);
    assert_eq!(begin(Bytes::mib(64)), Some(lacks), "the control");
    for size in [Bytes::mib(100 << 10), Bytes(u64::MAX)] {
        assert_eq!(begin(size), Some(lacks), "{size}");
    }
}

/// The machine of a daemon that was started again, and whose calls to the kernel may be made to fail.
fn failing(machine: Machine) -> Machine {
    faults::begin(Some((fastrand::Rng::with_seed(1), machine.root.path())));
    faults::allow_only_bursts();
    let _daemon = faults::daemon();
    machine.restart()
}

/// Carries out `work` while no file can be opened.
fn without_descriptors<T>(machine: &mut Machine, work: impl FnOnce(&mut Machine) -> T) -> T {
    faults::set_burst(Some(Burst::NoDescriptors));
    let daemon = faults::daemon();
    let done = work(machine);
    drop(daemon);
    faults::set_burst(None);
    done
}

#[test]
fn a_start_without_descriptors_fails_and_takes_nothing_for_lost() {
    let mut machine = failing(Machine::new());
    let kernel = Arc::clone(&machine.daemon.host.kernel);
    let start = |machine: &mut Machine| {
        let host = &mut machine.daemon.host;
        let root = host.root.clone();
        let disk = Disk::at_once(&host.state_dir);
        [
            Host::new(&root, Arc::clone(&kernel)).is_ok(),
            host.load_statements().is_ok(),
            aging_thread::Memory::load(host).is_ok(),
            Books::open(host, disk).is_ok(),
        ]
    };
    assert_eq!(start(&mut machine), [true; 4], "the control");
    assert_eq!(without_descriptors(&mut machine, start), [false; 4]);
}

#[test]
fn a_scan_without_descriptors_forgets_no_statement() {
    let mut machine = failing(Machine::new());
    let say = Request::Say { presence: Some(Presence::Foreground), subject: Subject::Group(GROUP.into()) };
    machine.ask(say);
    without_descriptors(&mut machine, |machine| machine.daemon.scan());
    assert_eq!(machine.daemon.statements.groups().len(), 1);
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
}

#[test]
fn a_client_is_not_told_that_a_group_is_kept_which_could_not_be_opened() {
    let mut machine = failing(Machine::new());
    let subject = Subject::Group(GROUP.into());
    let statement = [Statement { presence: Presence::Foreground, subject }];
    let keep = |machine: &mut Machine| machine.daemon.allowed_statements(&statement, Peer::new(990, Right::Follow));
    assert_eq!(keep(&mut machine).expect("an answer").0.groups.len(), 1, "the control");
    assert!(without_descriptors(&mut machine, keep).is_err());
}
