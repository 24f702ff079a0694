//! Measures the time of ranking: `cargo run --release -p omr-policy --example rank [PROCESSES]`.

use std::time::{Duration, Instant};

use omr_policy::rank::{HintKind, Process, ProcessId, ProcessRecords, Verdict, rank};
use omr_policy::{Class, Config, Machine, Memory, Signals, State, Swap};
use omr_units::{Bytes, Monotonic};

fn main() {
    let count: u32 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(5000);
    let config = Config::default();
    let state = State::default();
    let mut records = ProcessRecords::default();
    let swap =
        Swap { total: Bytes::mib(1 << 20), free: Bytes::mib(1 << 20), on_disk: true, free_outside_image: Bytes::ZERO };
    // Less than half of it is available, and nobody waits: who is unused for long enough is to be
    // paged out.
    let memory = Memory { total: Bytes::mib(1 << 20), available: Bytes::mib(1 << 18) };
    let machine = Machine {
        dt: Duration::from_secs(1),
        memory: Some(memory),
        swap: Some(swap),
        stall_memory: Some(Duration::ZERO),
        stall_io: Some(Duration::ZERO),
        ..Machine::default()
    };
    let mut processes: Vec<Process> = (0..count).map(process).collect();
    let (mut times, mut due) = (Vec::new(), 0);
    for look in 0..50u64 {
        let now = Monotonic(0) + Duration::from_secs(3600 + look * 5);
        let signals = Signals { now, hour: 1, slept: false, machine: machine.clone() };
        // A third of them works a little.
        for process in processes.iter_mut().step_by(3) {
            process.cpu = process.cpu.map(|cpu| cpu + Duration::from_millis(look * 10));
        }
        let began = Instant::now();
        let ranked = rank(&config, &state, &mut records, &signals, &processes);
        times.push(began.elapsed());
        assert_eq!(ranked.len(), processes.len());
        let is_pageout = |verdict: &Verdict| matches!(verdict, Verdict::Hint { kind: HintKind::PageOut, .. });
        due = ranked.iter().filter(|ranked| is_pageout(&ranked.verdict)).count();
    }
    times.sort();
    assert!(due > 0, "the longest way to a verdict is taken");
    println!(
        "{count} processes: median {:?}, longest {:?} of {} looks; {due} to be paged out",
        times[25],
        times[49],
        times.len()
    );
}

fn process(n: u32) -> Process {
    Process {
        id: ProcessId { pid: n, start: u64::from(n) },
        class: if n.is_multiple_of(7) { Class::Foreground } else { Class::Background },
        stated: true,
        oom_score_adj: i16::try_from(n % 1000).ok(),
        cpu: Some(Duration::ZERO),
        anon: Some(Bytes::mib(u64::from(n % 900))),
        swapped: Some(Bytes::mib(u64::from(n % 40))),
        unfocused: None,
        room: Some(Bytes::MAX),
    }
}
