//! Writes a week of history and a ledger below a directory, to try and to measure `omr top`:
//!
//! ```text
//! cargo run -p omr-charts --example week -- DIR [GROUPS] [machine] [hostile] [end=SECONDS]
//! omr --root DIR top
//! ```
//!
//! With `machine` the directory also gets what the daemon reads of a machine with these groups, so
//! `omr daemon --foreground --root DIR` runs there. With `hostile` some groups have names that a
//! reader could take for HTML or for commands of a terminal, and one has a path of 4,000 characters.
//! With `end` the week ends at this time since 1970, instead of now.
//!
//! The figures are made up: groups that are busy by day, each with an own amount of cold memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::paths;
use omr_history::ledger::{Entry, Ledger, Swept};
use omr_history::{AGES, Compressed, Cost, Idle, Machine, Sample, Since, Store};
use omr_kernel::clock;
use omr_policy::End;
use omr_policy::age::{Bounds, Promotions};
use omr_testkit::Release;
use omr_units::{Bytes, GroupId};

const EVERY: u64 = 600;
const ROUNDS: u64 = 7 * 24 * 6;

fn main() {
    let mut words = std::env::args().skip(1);
    let root = PathBuf::from(words.next().expect("a directory"));
    let mut words = words.peekable();
    let groups: u64 =
        words.next_if(|word| word.parse::<u64>().is_ok()).map_or(200, |groups| groups.parse().expect("a number"));
    let words: Vec<String> = words.collect();
    let has = |word: &str| words.iter().any(|of| of == word);
    let end = words.iter().find_map(|word| word.strip_prefix("end="));
    let end = end.map_or_else(|| clock::read_wall().as_secs(), |end| end.parse().expect("seconds"));
    let mut store = Store::new(&paths::history(&root), "example", Bytes::mib(96));
    std::fs::create_dir_all(paths::state_dir(&root)).expect("the state directory");
    let mut ledger = Ledger::open(&paths::state_dir(&root));
    let mut names: Vec<PathBuf> = (0..groups).map(name).collect();
    if has("hostile") {
        names.splice(3..3, hostile());
    }
    if has("machine") {
        write_machine(&root, &names);
    }
    let mut swept = names.iter().cycle();
    for round in 0..ROUNDS {
        let time = end - EVERY * (ROUNDS - 1 - round);
        // Nobody took samples in a part of the third day.
        if (300..360).contains(&round) {
            continue;
        }
        let samples: Vec<Sample> =
            names.iter().enumerate().map(|(number, name)| sample(time, round, number as u64, name)).collect();
        store.add(Duration::from_secs(time), &samples);
        if round.is_multiple_of(5) {
            ledger.add(&Entry::Sweep(sweep(time - 90, round, swept.next().expect("a group"))));
        }
    }
}

fn name(number: u64) -> PathBuf {
    match number {
        0 => PathBuf::new(),
        1 => "system.slice".into(),
        2 => "user.slice".into(),
        number if number.is_multiple_of(2) => format!("user.slice/app-{number}.scope").into(),
        number => format!("system.slice/service-{number}.service").into(),
    }
}

/// Names that the kernel allows.
fn hostile() -> Vec<PathBuf> {
    let part = "n".repeat(249);
    [
        "<img src=x onerror=alert(1)>".into(),
        "<b>bold<!-- & \"quoted\" 'name'".into(),
        "bell\u{7}\u{1b}[31mred\ttab".into(),
        "turned\u{202e}eciov\u{200b}".into(),
        [part.as_str(); 16].join("/"),
    ]
    .map(PathBuf::from)
    .into()
}

/// Writes the files of a machine, and of a group for each name.
fn write_machine(root: &Path, names: &[PathBuf]) {
    let write = |path: PathBuf, bytes: &[u8]| {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, bytes).expect("a file");
    };
    for top in ["proc", "sys"] {
        Release::V6_12.files(top).for_each(|(path, bytes)| write(root.join(top).join(path), bytes));
    }
    for (number, name) in names.iter().enumerate().skip(1) {
        let dir = root.join("sys/fs/cgroup").join(name);
        Release::V6_12.files("group").for_each(|(path, bytes)| write(dir.join(path), bytes));
        let memory = sample(0, 0, number as u64, name).current.0;
        write(dir.join("memory.current"), format!("{memory}\n").as_bytes());
    }
}

fn sample(time: u64, round: u64, number: u64, group: &Path) -> Sample {
    let is_day = (round / 72).is_multiple_of(2);
    let memory = Bytes::mib(if number == 0 { 6000 } else { 4 + (number * 37) % 400 });
    let busy = if is_day { 3 + number % 4 } else { 1 };
    let used_within = |age: u64| Bytes(memory.0 * (busy * u64::from(age.ilog2().max(1))).min(20) / 24);
    let bounds = AGES.map(|age| {
        let used = used_within(age.as_secs() + 2);
        Some(Bounds { least: memory - used - Bytes(used.0 / 8), most: memory - used })
    });
    let promoted = Bytes(memory.0 / 10_000 * (1 + round % 7 + busy));
    Sample {
        time: Duration::from_secs(time),
        boot: "example".into(),
        group: group.into(),
        id: GroupId(number + 10),
        current: memory + Bytes::mib(number % 50),
        peak: memory + Bytes::mib(60),
        anon: memory,
        file: Bytes::mib(number % 50),
        shmem: Bytes::ZERO,
        swap: Some(Bytes(memory.0 / (3 + round % 5))),
        idle: Some(Idle { ago: Duration::from_secs(5), memory, bounds }),
        since: Some(Since {
            over: Duration::from_secs(EVERY),
            refaults_anon: Some(Bytes(promoted.0 * (round % 3))),
            refaults_file: Some(Bytes::kib(64 * busy)),
            swapped_in: None,
            stalled: Some(Duration::from_millis(3 * busy * (round % 11))),
            stalled_full: Some(Duration::from_millis(busy * (round % 11))),
            reclaimed: Some(Bytes::ZERO),
        }),
        promotions: Some(Promotions {
            over: Duration::from_secs(EVERY),
            bounds: AGES.map(|age| {
                let most = Bytes(promoted.0 * 60 / (age.as_secs() + 60));
                Bounds { least: Bytes(most.0 / 2), most }
            }),
        }),
        nodes: Vec::new(),
        threshold: Some(Duration::from_secs(if (round / 100).is_multiple_of(2) { 600 } else { 1800 })),
        machine: (number == 0).then(|| machine(round, memory)),
        cost: Some(Cost { agings: 40, cpu: Duration::from_millis(70 + round % 30) }),
    }
}

fn machine(round: u64, memory: Bytes) -> Machine {
    let zram =
        Compressed { stored: Bytes(memory.0 / (3 + round % 5)), occupied: Bytes(memory.0 / (9 + 3 * (round % 5))) };
    Machine {
        free: Some(Bytes::mib(500 + 10 * (round % 90))),
        zram: Some(zram),
        zswap: None,
        disk: Some(Bytes::mib(200 + round % 300)),
        image: Some(Bytes::mib(300 + 5 * (round % 150))),
    }
}

fn sweep(time: u64, number: u64, group: &Path) -> Swept {
    let freed = Bytes::mib(4 + number % 90);
    let stopped = number.is_multiple_of(4);
    Swept {
        time,
        sweep: number,
        group: group.to_string_lossy().into_owned(),
        id: GroupId(number),
        observed: false,
        asked: freed,
        freed,
        freed_anon: Bytes(freed.0 / 4 * 3),
        freed_file: Bytes(freed.0 / 4),
        swapped_out: Bytes(freed.0 / 4 * 3),
        demoted: Bytes::ZERO,
        cpu_ms: 20 + number % 50,
        wall_ms: 2000,
        writes: 9,
        longest_write_ms: 12 + number % 8,
        stop_ms: stopped.then_some(9 + number % 20),
        method: Some("memory.reclaim".into()),
        last_write_end_ns: 1,
        start_reason: "idle for 61 s".into(),
        stop_reason: if stopped { "foreground work began".into() } else { "complete".into() },
        end: if stopped { End::Stopped } else { End::Complete },
        error: None,
    }
}
