//! The daemon on a fake root, without the socket, with a clock that a test moves on, and with a
//! test in the place of both threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use omr_control::protocol::Request;
use omr_engine::reclaim::{Progress, Report};
use omr_kernel::Kernel;
use omr_kernel::clock::Clock;
use omr_policy::need::HibernatesBy;
use omr_policy::presence::{Facts, Sessions};
use omr_policy::rank::ProcessId;
use omr_policy::statement::{Presence, Subject};
use omr_policy::{Decision, End, Purpose, Reason};
use omr_testkit::{FakeRoot, Release};
use omr_units::{Bytes, Monotonic};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::disk::Disk;
use crate::host::Host;
use crate::requests;
use crate::settings::{Args, Settings, load};
use crate::thread::{Inbox, Thread};
use crate::work::Work;
use crate::worker::{Order, Outcome, Sweep};

mod faults;
mod fuzz;
mod giving_back;
mod probes;
mod regrets;
mod ticks;

/// Nanoseconds since boot, and the daemon's CPU time. Then what the wall clock was set to beyond
/// the time since boot, and seconds asleep.
#[derive(Debug, Default)]
struct TestClock(AtomicU64, AtomicU64, AtomicU64, AtomicU64);

impl Clock for TestClock {
    fn monotonic(&self) -> Monotonic {
        Monotonic(self.0.load(Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(self.2.load(Relaxed)) + Duration::from_nanos(self.0.load(Relaxed)) + self.asleep()
    }

    fn asleep(&self) -> Duration {
        Duration::from_secs(self.3.load(Relaxed))
    }

    fn own_cpu(&self) -> Duration {
        Duration::from_nanos(self.1.load(Relaxed))
    }

    fn thread_cpu(&self) -> Duration {
        Duration::ZERO
    }
}

/// A machine of two CPUs, with a group of 64 MiB and without sessions. All CPU time is used in
/// another group, which is too small to sweep.
struct Machine {
    root: FakeRoot,
    clock: Arc<TestClock>,
    daemon: Daemon,
    worker: Inbox<Order, Outcome>,
    aging: Inbox<crate::aging_thread::Order, crate::aging_thread::Report>,
    /// Ticks of 10 ms that each CPU was busy, and idle.
    ticks: (u64, u64),
}

const GROUP: &str = "app.scope";
/// The wall clock at boot, in seconds since 1970.
const BOOT: u64 = 1_700_000_000;
const AUTO_ANY_AGE: &str = "goal = 'auto'\n[[group]]\nmatch = '*'\nolder_than = '0s'\n";
const OLDER_THAN: &str = "[[group]]\nmatch = 'app.scope'\nolder_than = '2m'\n";
const MEMORY_STAT: &str = "anon 67108864\nfile 0\nshmem 0\nfile_dirty 0\nswapcached 0\n\
    workingset_refault_anon 0\nworkingset_refault_file 0\n";

/// The aging thread has carried out the order, and nothing is known of any age.
fn aged(order: crate::aging_thread::Order) -> crate::aging_thread::Report {
    crate::aging_thread::Report {
        due: order.due,
        ages: order.ages,
        old: Ok(Vec::new()),
        cost: Duration::ZERO,
        agings: 1,
        cold: Vec::new(),
        learned: Vec::new(),
    }
}

impl Machine {
    fn new() -> Self {
        Self::with_config("goal = 'free'")
    }

    /// The same with this configuration.
    fn with_config(config: &str) -> Self {
        let mut root = FakeRoot::captured(Release::V6_12)
            .proc("self/cgroup", "0::/system.slice/omr.service\n")
            .proc("sys/kernel/random/boot_id", "7d0c9ad0-0000-4000-8000-000000000001\n")
            .file("run/omr/lock", "")
            .file("var/lib/omr/ledger.jsonl", "")
            .file("etc/omr/omr.toml", format!("{config}\n[sweep]\nafter_boot = '0s'\n"))
            .group(
                GROUP,
                &[
                    ("memory.current", "67108864\n"),
                    ("memory.stat", MEMORY_STAT),
                    ("memory.reclaim", ""),
                    ("memory.min", "0\n"),
                    ("memory.low", "0\n"),
                    ("cpu.stat", "usage_usec 1000\n"),
                    ("cgroup.procs", ""),
                ],
            );
        root = root.group("busy.scope", &[("memory.current", "0\n"), ("cpu.stat", "usage_usec 0\n")]);
        root = root.proc("swaps", "Filename Type Size Used Priority\n/dev/vda partition 524284 0 -2\n");
        for resource in ["cpu", "io", "memory"] {
            let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
            root = root.proc(format!("pressure/{resource}"), text);
        }
        root.remove("sys/power");
        let clock = Arc::new(TestClock::default());
        clock.0.store(3_600_000_000_000, Relaxed);
        clock.2.store(BOOT, Relaxed);
        Self::start(root, clock)
    }

    /// The daemon starts on this machine.
    fn start(root: FakeRoot, clock: Arc<TestClock>) -> Self {
        let kernel = Kernel::open(root.path()).expect("a kernel").with_clock(Arc::<TestClock>::clone(&clock));
        let kernel = Arc::new(kernel);
        let args = Args::default();
        let settings = Settings::new(args.clone(), load(root.path(), &args, &kernel).expect("a configuration"));
        let (thread, worker) = Thread::pair().expect("channels");
        let work = Work::new(thread, Arc::new(Mutex::new(Progress::default())), None);
        let (to_aging, aging) = Thread::pair().expect("channels");
        let host = Host::new(root.path(), kernel).expect("a host");
        let disk = Disk::at_once(&host.state_dir);
        let daemon = Daemon::new(host, settings, work, to_aging, disk).expect("a daemon");
        let mut machine = Machine { root, clock, daemon, worker, aging, ticks: (0, 0) };
        machine.use_cpus(0, 0);
        machine.daemon.readings.presence = Some(Facts::default());
        machine
    }

    /// The daemon ends, and starts again.
    fn restart(self) -> Self {
        let Machine { root, clock, daemon, .. } = self;
        daemon.end();
        Self::start(root, clock)
    }

    /// This much memory of 473,136 kB is available.
    fn set_available(&self, kb: u64) {
        self.set_memory("MemAvailable:", kb);
    }

    fn set_memory(&self, key: &str, kb: u64) {
        let text = self.root.read("proc/meminfo");
        let line = text.lines().find(|line| line.starts_with(key)).expect("a line");
        self.root.write("proc/meminfo", text.replace(line, &format!("{key} {kb} kB")));
    }

    /// The memory that the group has, and the pages that were refaulted.
    fn set_group(&self, size: Bytes, refaults: u64) {
        let file = |name: &str| format!("sys/fs/cgroup/{GROUP}/{name}");
        self.root.write(file("memory.current"), format!("{}\n", size.0));
        let stat = MEMORY_STAT.replace("anon 67108864", &format!("anon {}", size.0));
        let stat = stat.replace("workingset_refault_anon 0", &format!("workingset_refault_anon {refaults}"));
        self.root.write(file("memory.stat"), stat);
    }

    /// Both CPUs were busy and idle for so many ticks of 10 ms.
    fn use_cpus(&mut self, busy: u64, idle: u64) {
        self.ticks.0 += busy;
        self.ticks.1 += idle;
        let (busy, idle) = self.ticks;
        let line = |name: &str| format!("{name} {busy} 0 0 {idle} 0 0 0 0 0 0\n");
        self.root.write("proc/stat", [line("cpu "), line("cpu0"), line("cpu1")].concat());
        self.root.write("sys/fs/cgroup/busy.scope/cpu.stat", format!("usage_usec {}\n", busy * 20_000));
    }

    /// Lets this many seconds pass, in which the CPUs are busy for `percent` of the time.
    fn pass(&mut self, seconds: u64, percent: u64) {
        for _ in 0..seconds {
            self.clock.0.fetch_add(1_000_000_000, Relaxed);
            self.use_cpus(percent, 100 - percent);
            self.daemon.tick();
        }
    }

    /// Lets an idle minute pass, after which the sweep has begun.
    fn begin_sweep(&mut self) -> Sweep {
        self.pass(60, 0);
        match self.worker.try_next() {
            Some(Order::Sweep(sweep)) => sweep,
            _ => panic!("no sweep: {}", self.ask(Request::Explain { group: Some(GROUP.into()) })),
        }
    }

    /// The group was aged: this many MiB of it are cold.
    fn report_cold(&mut self, mib: u64) {
        let order = self.aging.try_next().expect("an order to age the group");
        let id = order.groups.iter().find(|group| group.path.as_os_str() == GROUP).expect("the group").id;
        self.aging.report(crate::aging_thread::Report { old: Ok(vec![(id, Some(Bytes::mib(mib)))]), ..aged(order) });
    }

    /// Takes samples of 20 ms, in which each CPU is busy for this many ticks of two. Returns
    /// whether the sweep is held, and whether it was stopped.
    fn samples(&mut self, times: u64, busy: u64) -> (bool, bool) {
        for _ in 0..times {
            self.clock.0.fetch_add(20_000_000, Relaxed);
            self.use_cpus(busy, 2 - busy);
            self.daemon.sample();
        }
        (self.worker.is_held(), self.worker.is_stopped())
    }

    /// The worker has ended the sweep like this.
    fn end_sweep(&mut self, sweep: &Sweep, end: End) {
        let mut report = Report::nothing(&sweep.job, end, None);
        report.freed = Bytes::mib(8);
        report.freed_anon = Bytes::mib(8);
        report.size = Bytes::mib(56);
        self.worker.report(Outcome::Swept(sweep.id, report));
        self.daemon.collect_outcomes();
    }

    fn ask(&mut self, request: Request) -> Value {
        requests::answer(&mut self.daemon, request).expect("an answer")
    }

    /// The lines of the ledger about why nothing was done, and all others.
    fn holds_and_others(&self) -> (Vec<Value>, Vec<Value>) {
        let text = std::fs::read_to_string(self.root.resolve("var/lib/omr/ledger.jsonl")).unwrap_or_default();
        let lines = text.lines().map(|line| line.parse::<Value>().expect("JSON"));
        lines.partition(|line| line["kind"] == "holds")
    }

    fn ledger(&self) -> Vec<Value> {
        self.holds_and_others().1
    }

    fn reason(&self) -> &Reason {
        self.daemon.mind.decision.as_ref().map(Decision::reason).expect("a decision")
    }
}

#[test]
fn an_idle_machine_is_swept_and_a_busy_one_is_not() {
    let mut machine = Machine::new();
    machine.pass(605, 60);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    let (holds, _) = machine.holds_and_others();
    let [line] = holds.as_slice() else { panic!("one line in ten minutes: {holds:?}") };
    assert_eq!(line["over_ms"], 600_000, "{line}");
    let held: u64 = line["reasons"].as_array().expect("reasons").iter().filter_map(|of| of["ms"].as_u64()).sum();
    assert!(held >= 590_000, "{line}");
    assert!(line["reasons"][0]["reason"].as_str().is_some_and(|reason| reason.contains("idle")), "{line}");
    let sweep = machine.begin_sweep();
    assert_eq!(sweep.path.to_str(), Some(GROUP));
    machine.end_sweep(&sweep, End::Complete);
    let ledger = machine.ledger();
    assert_eq!((ledger.len(), &ledger[0]["end"], &ledger[0]["group"]), (1, &"complete".into(), &GROUP.into()));
    let status = machine.ask(Request::Status);
    assert_eq!(status["today"]["freed"], 8 << 20, "{status}");
}

#[test]
fn with_the_goal_auto_an_idle_machine_is_swept_only_where_memory_lacks() {
    let mut machine = Machine::with_config(AUTO_ANY_AGE);
    machine.set_available(288_700);
    machine.pass(600, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    let why = "nothing to gain: 61 % of memory is available (auto wants 50 %)";
    assert_eq!(machine.reason().to_string(), why);
    let status = machine.ask(Request::Status);
    assert_eq!(
        (&status["goal"]["goal"], &status["goal"]["need"], &status["goal"]["words"]),
        (&"auto".into(), &Value::Null, &why.into())
    );

    // 35.7 MiB less than half.
    machine.set_available(200_000);
    let sweep = machine.begin_sweep();
    assert_eq!(sweep.job.amount, Bytes::kib(473_136 / 2 - 200_000));
    assert!(!sweep.job.file_only, "files are available already");
    let words = "35.7 MiB more should be available: 42 % of memory is (auto wants 50 %)";
    let status = machine.ask(Request::Status);
    assert_eq!((&status["goal"]["need"]["for"], &status["goal"]["words"]), (&Value::Null, &words.into()));
    assert_eq!(status["goal"]["need"]["purpose"]["for"], "available");
    let explained = machine.ask(Request::Explain { group: None });
    assert_eq!(explained["goal"], format!("auto: {words}"));

    // What the sweep has gained counts at once, also for the next group of the sweep.
    machine.set_available(240_000);
    machine.end_sweep(&sweep, End::Complete);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    assert!(matches!(machine.reason(), Reason::NoNeed { .. }), "{:?}", machine.reason());
    // Unknown is no need.
    machine.root.remove("proc/meminfo");
    machine.pass(600, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    assert!(matches!(machine.reason(), Reason::Unknown { .. }), "{:?}", machine.reason());
}

#[test]
fn with_the_goal_auto_only_memory_that_is_known_to_be_cold_is_reclaimed() {
    let mut machine = Machine::with_config("goal = 'auto'");
    machine.set_available(200_000);
    machine.pass(600, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
    assert_eq!(explained["reason"]["kind"], "learning", "{explained}");
    // The control is the test above: a rule allows memory of any age.
}

#[test]
fn with_the_goal_auto_a_host_gets_cold_memory_and_hibernation_counts_once_it_happened() {
    // The kernel reports free memory to a host, and the rule is for memory of any age.
    let mut machine = Machine::with_config(AUTO_ANY_AGE);
    machine.set_available(288_700);
    machine.root.write("sys/module/page_reporting/parameters/page_reporting_order", "9\n");
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    assert_eq!(machine.ask(Request::Status)["goal"]["need"]["purpose"]["for"], "footprint");
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
    assert!(explained["verdict"].as_str().is_some_and(|text| text.contains("only the host would gain")), "{explained}");

    for by in [None, Some(HibernatesBy::Lid)] {
        hibernation_is_a_need(by);
    }
}

/// A machine that can hibernate, with a disk that writes 4 MiB in a second.
fn able_to_hibernate(config: &str) -> Machine {
    let machine = Machine::with_config(config);
    machine.set_available(288_700);
    for (file, text) in [
        ("sys/power/state", "freeze mem disk\n"),
        ("sys/power/disk", "[platform] shutdown\n"),
        ("sys/power/resume", "254:0\n"),
        ("sys/power/resume_offset", "0\n"),
        ("sys/power/image_size", "188059648\n"),
        ("sys/class/block/vda/dev", "254:0\n"),
        ("var/lib/omr/disk-rate.json", r#"{"bytes_per_second":4194304,"device":"/dev/vda"}"#),
    ] {
        machine.root.write(file, text);
    }
    machine
}

/// By the record of a hibernation, or by a setting.
fn hibernation_is_a_need(by: Option<HibernatesBy>) {
    let mut machine = able_to_hibernate(AUTO_ANY_AGE);
    machine.pass(600, 0);
    assert!(matches!(machine.reason(), Reason::NoNeed { .. }), "it never did: {:?}", machine.reason());
    machine.daemon.readings.hibernates = by;
    if by.is_none() {
        machine.root.write("var/lib/omr-root/hibernated.json", r#"{"time":1700000000}"#);
    }
    machine.pass(60, 0);
    let Some(Order::Sweep(sweep)) = machine.worker.try_next() else { panic!("{:?}", machine.reason()) };
    let need = machine.ask(Request::Status)["goal"]["need"].clone();
    assert_eq!(
        (&need["purpose"]["for"], &need["purpose"]["small"]),
        (&"hibernate".into(), &(20 << 20).into()),
        "{need}"
    );
    assert_eq!(need["purpose"]["by"], serde_json::to_value(by).expect("a value"));
    assert_eq!(sweep.job.amount, Bytes::mib(64), "all that the group has");
}

/// Plugs the cord in, or pulls it.
fn set_mains(machine: &Machine, online: bool) {
    for (file, text) in [
        ("AC/type", "Mains\n"),
        ("AC/online", if online { "1\n" } else { "0\n" }),
        ("BAT0/type", "Battery\n"),
        ("BAT0/status", if online { "Charging\n" } else { "Discharging\n" }),
    ] {
        machine.root.write(format!("sys/class/power_supply/{file}"), text);
    }
}

#[test]
fn with_the_goal_auto_the_medium_has_a_budget_and_a_battery_writes_nothing() {
    let mut machine = Machine::with_config(&format!("{AUTO_ANY_AGE}[presence]\naway_after = '1m'"));
    for (file, text) in [("queue/rotational", "0\n"), ("removable", "0\n"), ("size", "41943040\n")] {
        machine.root.write(format!("sys/class/block/vda/{file}"), text);
    }
    set_mains(&machine, true);
    machine.set_available(400_000);
    machine.pass(61, 0);
    machine.set_available(200_000);
    let sweep = machine.begin_sweep();
    let swap = machine.ask(Request::Status)["swap"].clone();
    // 2 % of 20 GiB, and 30 % of the swap.
    assert_eq!((&swap["medium"], &swap["budget"]["bytes"]), (&"ssd".into(), &429_496_729.into()), "{swap}");
    assert_eq!((&swap["floor"], &swap["no_writes"]), (&(524_284 * 1024 * 3 / 10).into(), &Value::Null), "{swap}");
    let guards = machine.ask(Request::Explain { group: None })["guards"].to_string();
    assert!(guards.contains("(30 %) stays free") && guards.contains("allowance 410 MiB/day (SSD)"), "{guards}");

    // The control: a second on mains.
    machine.pass(1, 0);
    assert!(!machine.worker.is_stopped());
    set_mains(&machine, false);
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped(), "{:?}", machine.reason());
    machine.end_sweep(&sweep, End::Stopped);
    let words = "on battery: nothing is written to swap on disk";
    assert_eq!(machine.ledger()[0]["stop_reason"], words);
    assert_eq!(machine.ask(Request::Status)["swap"]["no_writes"], words);
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
    assert_eq!(explained["verdict"], format!("not swept: {words}"), "{explained}");
    machine.pass(120, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    set_mains(&machine, true);
    machine.begin_sweep();
}

#[test]
fn without_the_goal_auto_the_medium_and_the_battery_do_not_count() {
    let mut machine = Machine::new();
    set_mains(&machine, false);
    machine.begin_sweep();
    let swap = machine.ask(Request::Status)["swap"].clone();
    assert_eq!((&swap["medium"], &swap["no_writes"]), (&Value::Null, &Value::Null), "{swap}");
    assert_eq!((&swap["budget"]["bytes"], &swap["floor"]), (&(20u64 << 30).into(), &(52_428 * 1024 + 409).into()));
    machine.pass(10, 0);
    assert!(!machine.worker.is_stopped());
}

#[test]
fn with_the_goal_auto_a_sweep_begins_when_nobody_is_there_and_ends_when_somebody_comes() {
    let used = |seconds| {
        let idle = Some(Duration::from_secs(seconds));
        Some(Facts { remote: Sessions { active: 1, idle }, ..Facts::default() })
    };
    let mut machine = Machine::with_config(&format!("{AUTO_ANY_AGE}[presence]\naway_after = '2m'"));
    machine.set_available(200_000);
    // Nothing tells omr who is there.
    machine.daemon.readings.presence = None;
    machine.pass(600, 0);
    let status = machine.ask(Request::Status);
    assert_eq!(status["goal"]["presence"]["is"], "unknown", "{status}");
    machine.daemon.readings.presence = used(60);
    machine.pass(60, 0);
    assert!(machine.worker.try_next().is_none(), "{:?}", machine.reason());
    let why = "somebody is there: a remote session was used 60 s ago; only memory unused for long enough is reclaimed";
    assert_eq!(machine.reason().to_string(), why);
    let explained = machine.ask(Request::Explain { group: Some(GROUP.into()) });
    let expected = (&format!("not swept: {why}").into(), &"a remote session was used 60 s ago".into());
    assert_eq!((&explained["verdict"], &explained["presence"]), expected);

    machine.daemon.readings.presence = used(120);
    let sweep = machine.begin_sweep();
    machine.pass(1, 0);
    assert!(!machine.worker.is_stopped(), "the control");
    assert_eq!(machine.ask(Request::Status)["goal"]["presence"]["is"], "away");
    machine.daemon.readings.presence = used(0);
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped());
    machine.end_sweep(&sweep, End::Stopped);
    let stop_reason = machine.ledger()[0]["stop_reason"].to_string();
    assert!(stop_reason.contains("somebody is there"), "{stop_reason}");
    // Another goal does not ask.
    let mut machine = Machine::new();
    machine.daemon.readings.presence = used(0);
    machine.begin_sweep();
    assert!(machine.ask(Request::Status)["goal"]["presence"].is_null());
}

#[test]
fn foreground_work_ends_a_sweep_at_its_second_sample() {
    let mut machine = Machine::new();
    let sweep = machine.begin_sweep();
    let sample = |machine: &mut Machine, busy| {
        machine.clock.0.fetch_add(20_000_000, Relaxed);
        machine.use_cpus(busy, 2 - busy);
        machine.daemon.sample();
    };
    // The control: an idle machine.
    for _ in 0..50 {
        sample(&mut machine, 0);
        assert!(!machine.worker.is_stopped());
    }
    sample(&mut machine, 2);
    sample(&mut machine, 2);
    assert!(machine.worker.is_stopped());
    machine.clock.0.fetch_add(12_000_000, Relaxed);
    machine.end_sweep(&sweep, End::Stopped);
    let line = &machine.ledger()[0];
    let stop_reason = line["stop_reason"].to_string();
    assert!(stop_reason.contains("work began"), "{stop_reason}");
    assert_eq!(line["stop_ms"], 32, "since the first of the two busy samples");
    let stops = &machine.ask(Request::Status)["counters"]["stops"];
    assert_eq!(
        (&stops["count"], &stops["within"][2], &stops["within"][3]),
        (&1.into(), &0.into(), &1.into()),
        "{stops}"
    );
    assert!(machine.worker.try_next().is_none(), "no group follows");
}

#[test]
fn a_sweep_of_cold_memory_waits_for_a_tick_and_ends_for_work_that_lasts() {
    let mut machine = Machine::with_config(&format!("goal = 'free'\n{OLDER_THAN}"));
    machine.pass(60, 0);
    machine.report_cold(32);
    let sweep = machine.begin_sweep();
    assert_eq!((sweep.older_than, sweep.job.amount), (Some(Duration::from_secs(120)), Bytes::mib(32)));
    assert_eq!(machine.samples(10, 0), (false, false));
    assert_eq!(machine.samples(3, 2), (true, false), "a tick");
    assert_eq!(machine.samples(9, 0), (true, false), "not yet");
    assert_eq!(machine.samples(3, 0), (false, false), "it is over");
    assert!(machine.samples(60, 2).1, "work that lasts");
}

#[test]
fn with_the_goal_auto_cold_memory_leaves_a_machine_that_is_never_idle() {
    for (config, is_swept) in [
        (format!("goal = 'auto'\n{OLDER_THAN}"), true),
        (format!("goal = 'free'\n{OLDER_THAN}"), false),
        (AUTO_ANY_AGE.to_owned(), false),
    ] {
        let is_cold = config.contains("2m");
        let mut machine = Machine::with_config(&config);
        machine.set_available(200_000);
        // Both CPUs are used for 40 % of the time.
        machine.pass(60, 40);
        if is_cold {
            machine.report_cold(32);
        }
        machine.pass(660, 40);
        assert!(!machine.worker.is_held());
        let Some(Order::Sweep(sweep)) = machine.worker.try_next() else {
            assert!(!is_swept, "{config}: {:?}", machine.reason());
            assert_eq!(
                machine.reason().to_string(),
                "not idle: 60 % of CPU time is free, 75 % is needed (headroom rule)"
            );
            continue;
        };
        assert!(is_swept, "{config}");
        // The load goes on, and so does the sweep.
        for _ in 0..20 {
            assert!(!machine.samples(1, 1).1);
            assert!(!machine.samples(4, 1).1);
            assert_eq!(machine.samples(5, 0), (false, false));
        }
        machine.clock.1.fetch_add(400_000_000, Relaxed);
        machine.end_sweep(&sweep, End::Complete);
        let start_reason = machine.ledger()[0]["start_reason"].to_string();
        assert!(start_reason.contains("quiet for") && start_reason.contains("120 % of a CPU free"), "{start_reason}");
        // 200 times as long.
        machine.pass(5, 40);
        // Of before the sweep, and after it.
        machine.report_cold(32);
        machine.pass(66, 40);
        machine.report_cold(32);
        machine.pass(4, 40);
        assert!(machine.worker.try_next().is_none());
        assert!(matches!(machine.reason(), Reason::Resting { .. }), "{:?}", machine.reason());
        machine.pass(10, 40);
        assert!(matches!(machine.worker.try_next(), Some(Order::Sweep(_))), "{:?}", machine.reason());
        // Both CPUs in full: held by the second sample of that, and ended.
        machine.samples(1, 1);
        assert!(machine.samples(2, 2).0);
        assert!(machine.samples(100, 2).1);
    }
}

#[test]
fn a_statement_a_pause_and_a_waiting_task_end_a_sweep() {
    let foreground = Request::Say { presence: Some(Presence::Foreground), subject: Subject::Group(GROUP.into()) };
    let other = Request::Say { presence: None, subject: Subject::Group(GROUP.into()) };
    for (request, stops) in [
        (foreground, true),
        (other, false),
        (Request::Pause { seconds: None }, true),
        (Request::FallAsleep, true),
        (Request::Resume, false),
        (Request::Status, false),
    ] {
        let mut machine = Machine::new();
        machine.begin_sweep();
        machine.ask(request.clone());
        assert_eq!(machine.worker.is_stopped(), stops, "{request:?}");
    }
    let mut machine = Machine::new();
    machine.begin_sweep();
    machine.daemon.stalled();
    assert!(machine.worker.is_stopped());
}

#[test]
fn a_preparation_begins_after_the_sweep_that_it_stops_and_ends_at_its_deadline() {
    let mut machine = Machine::new();
    let sweep = machine.begin_sweep();
    machine.ask(Request::Prepare { purpose: Purpose::Preempt, deadline_ms: Some(60_000), why: "a notice".into() });
    assert!(machine.worker.is_stopped() && machine.worker.try_next().is_none(), "the sweep is still there");
    machine.end_sweep(&sweep, End::Stopped);
    assert!(matches!(machine.worker.try_next(), Some(Order::Prepare(..))));
    assert!(!machine.worker.is_stopped());
    machine.pass(58, 0);
    assert!(!machine.worker.is_stopped());
    machine.pass(1, 0);
    assert!(machine.worker.is_stopped(), "a second before the deadline");
}

#[test]
fn a_statement_about_a_process_that_has_ended_is_an_error() {
    let mut machine = Machine::new();
    let subject = Subject::Process(ProcessId { pid: 4711, start: 1 });
    let request = Request::Say { presence: Some(Presence::Foreground), subject };
    let err = requests::answer(&mut machine.daemon, request).expect_err("no such process");
    assert_eq!(err.to_string(), "process 4711 has ended");
    assert!(machine.daemon.statements.processes().is_empty());
}
