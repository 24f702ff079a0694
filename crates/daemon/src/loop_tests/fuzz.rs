//! Files and requests that are changed at random: the daemon reads them all, goes on, and answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use omr_control::protocol::Right;
use omr_control::status::{Explanation, Status};

use super::*;
use crate::presence::{self, Told};
use crate::server::Peer;

/// All files below a directory, with their contents.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.append(&mut files(&path));
        } else {
            found.insert(path.clone(), fs::read(path).expect("a file"));
        }
    }
    found
}

/// Inputs: the number of the file, and its text.
fn numbered(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<Vec<u8>> {
    let number = |at| u8::try_from(at).expect("fewer than 256 files");
    files.values().enumerate().map(|(at, text)| [&[number(at)], text.as_slice()].concat()).collect()
}

impl Machine {
    /// The daemon answers whatever it can be asked, in a form that its client knows.
    fn answer_all(&mut self) {
        let status = self.ask(Request::Status);
        serde_json::from_value::<Status>(status).expect("a status");
        for group in [None, Some(GROUP.into())] {
            // A group that is gone is an error.
            if let Ok(explanation) = requests::answer(&mut self.daemon, Request::Explain { group }) {
                serde_json::from_value::<Explanation>(explanation).expect("an explanation");
            }
        }
        self.ask(Request::Processes);
        let _ = requests::answer(&mut self.daemon, Request::ExplainProcess { pid: 7 });
    }

    /// A second passes. Sweeps and agings end at once.
    fn second_of_work(&mut self) {
        self.clock.0.fetch_add(1_000_000_000, Relaxed);
        self.daemon.tick();
        self.daemon.sample();
        if let Some(Order::Sweep(sweep)) = self.worker.try_next() {
            self.end_sweep(&sweep, End::Complete);
        }
        if let Some(order) = self.aging.try_next() {
            self.aging.report(aged(order));
        }
    }
}

/// Fake roots are in memory from now on, where that is possible: there are many writes.
fn in_memory() {
    let memory = Path::new("/dev/shm");
    if tempfile::tempdir_in(memory).is_ok() {
        let _ = tempfile::env::override_temp_dir(memory);
    }
}

/// A machine on which all goals and hints are looked at.
fn busy_machine() -> Machine {
    in_memory();
    let config =
        "goal = 'auto'\nguard.max_swap_writes = '1G/day'\n[[process]]\nexe = '/usr/bin/*'\nclass = 'background'";
    let mut machine = Machine::with_config(config);
    for (path, text) in [
        ("proc/7/stat", "7 (app) S 1 7 7 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 500 0 1 0"),
        ("proc/7/comm", "app\n"),
        ("proc/7/cmdline", "/usr/bin/app\0"),
        ("proc/7/cgroup", "0::/app.scope\n"),
        ("proc/7/oom_score_adj", "0\n"),
        ("proc/7/statm", "2000 1000 100 1 0 500 0\n"),
    ] {
        machine.root.write(path, text);
    }
    machine.root.write("proc/7/status", omr_testkit::captured(Release::V6_12, "proc/self/status"));
    machine.root.write("proc/7/smaps_rollup", omr_testkit::captured(Release::V6_12, "proc/self/smaps_rollup"));
    machine.root.write(format!("sys/fs/cgroup/{GROUP}/cgroup.procs"), "7\n");
    std::os::unix::fs::symlink("/usr/bin/app", machine.root.resolve("proc/7/exe")).expect("a link");
    machine.pass(5, 0);
    assert_eq!(machine.ask(Request::Processes)[0]["id"]["pid"], 7, "{}", machine.ask(Request::Processes));
    machine
}

/// The first byte of an input is the number of the file.
#[test]
fn no_change_of_a_kernels_file_makes_the_daemon_panic() {
    let machine = busy_machine();
    let mut all = files(&machine.root.resolve("proc"));
    all.append(&mut files(&machine.root.resolve("sys")));
    assert!((60..=256).contains(&all.len()), "{} files", all.len());
    let ticks = RefCell::new(0);
    let (inputs, paths) = (numbered(&all), all.keys().collect::<Vec<_>>());
    let machine = RefCell::new(machine);
    omr_testkit::fuzz::feed(&inputs, |input| {
        let Some((which, text)) = input.split_first() else { return };
        let path = paths[usize::from(*which) % paths.len()];
        let mut machine = machine.borrow_mut();
        fs::write(path, text).expect("written");
        machine.second_of_work();
        machine.answer_all();
        fs::write(path, &all[path]).expect("written");
        *ticks.borrow_mut() += 1;
    });
    assert!(ticks.into_inner() > all.len(), "the control");
}

/// What the daemon itself wrote, as a fault of a disk or another program may have left it.
#[test]
fn no_change_of_its_own_files_keeps_the_daemon_from_starting() {
    in_memory();
    let mut machine = Machine::new();
    let sweep = machine.begin_sweep();
    let mut report = Report::nothing(&sweep.job, End::Complete, None);
    (report.freed, report.freed_anon, report.swapped_out) = (Bytes::mib(8), Bytes::mib(8), Bytes::mib(8));
    machine.worker.report(Outcome::Swept(sweep.id, report));
    machine.daemon.collect_outcomes();
    machine.pass(400, 60);
    let subject = Subject::Group(GROUP.into());
    machine.ask(Request::Say { presence: Some(Presence::Background), subject });
    omr_engine::prepare::hibernated::record(&machine.daemon.host.kernel, machine.root.path()).expect("recorded");
    let machine = machine.restart();
    let mut all = files(&machine.root.resolve("var/lib/omr"));
    for dir in ["var/lib/omr-root", "run/omr"] {
        all.append(&mut files(&machine.root.resolve(dir)));
    }
    all.retain(|path, _| !path.ends_with("lock"));
    let names: Vec<_> = all.keys().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["statements.json", "ledger.jsonl", "swap-writes.json", "hibernated.json"]);
    let zram =
        r#"{"boot":"7d0c9ad0-0000-4000-8000-000000000001","pid":7,"devices":[{"path":"/dev/zram0","priority":5}]}"#;
    all.insert(machine.root.resolve("var/lib/omr-root/zram.json"), zram.into());
    all.insert(machine.root.resolve("etc/group"), b"root:x:0:\nomr:x:992:\n".into());
    let (inputs, paths) = (numbered(&all), all.keys().collect::<Vec<_>>());
    let machine = RefCell::new(Some(machine));
    omr_testkit::fuzz::feed(&inputs, |input| {
        let Some((which, text)) = input.split_first() else { return };
        let Machine { root, clock, daemon, .. } = machine.take().expect("a machine");
        daemon.end();
        for path in &paths {
            fs::write(path, &all[*path]).expect("written");
        }
        fs::write(paths[usize::from(*which) % paths.len()], text).expect("written");
        let mut started = Machine::start(root, clock);
        started.second_of_work();
        started.answer_all();
        machine.replace(Some(started));
    });
}

/// Any user may send requests, and carrying them out must not end the daemon either.
#[test]
fn no_request_makes_the_daemon_panic() {
    let lines = [
        r#"{"do":"status"}"#,
        r#"{"do":"watch"}"#,
        r#"{"do":"explain","group":"app.scope"}"#,
        r#"{"do":"explain-process","pid":7}"#,
        r#"{"do":"processes"}"#,
        r#"{"do":"say","word":"foreground","of":{"group":"app.scope"}}"#,
        r#"{"do":"say","word":null,"of":{"process":{"pid":7,"start":500}}}"#,
        r#"{"do":"hold","statements":[{"group":"app.scope"},{"process":{"pid":7,"start":500}},{"user":1000}]}"#,
        r#"{"do":"presence","facts":{"age":{"secs":1,"nanos":2},"local":{"active":1,"idle":null},"remote":{"active":0,"idle":{"secs":0,"nanos":0}},"inhibited":false},"hibernates":null}"#,
        r#"{"do":"pause","seconds":18446744073709551615}"#,
        r#"{"do":"fall-asleep"}"#,
        r#"{"do":"resume"}"#,
        r#"{"do":"prepare","for":"preempt","deadline_ms":120000,"why":"a notice"}"#,
        r#"{"do":"stand-down"}"#,
    ];
    let machine = RefCell::new(busy_machine());
    let (valid, carried_out) = (RefCell::new(0), RefCell::new(0));
    omr_testkit::fuzz::feed(&lines, |line| {
        let Ok(request) = serde_json::from_slice::<Request>(line) else { return };
        *valid.borrow_mut() += 1;
        let machine = &mut *machine.borrow_mut();
        let now = machine.daemon.host.now();
        let peer = Peer::new(1000, Right::Follow);
        // As the loop does.
        let done = match request {
            Request::Hold { statements } => machine.daemon.allowed_statements(&statements, peer).is_ok(),
            Request::Presence { facts: Some(facts), hibernates } => {
                let told = Told { facts, hibernates, at: now };
                machine.daemon.readings.presence = presence::combine([(&told, peer)].into_iter(), now);
                true
            }
            Request::Presence { .. } => true,
            request => requests::answer(&mut machine.daemon, request).is_ok(),
        };
        *carried_out.borrow_mut() += usize::from(done);
        machine.second_of_work();
    });
    assert!(carried_out.into_inner() >= 10 && valid.into_inner() >= lines.len(), "the control");
}
