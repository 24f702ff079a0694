//! Measures how fast the generations of many groups are read:
//! `cargo run --release -p omr-kernel --example lru_gen [GROUPS [NODES]]`.
//!
//! The daemon's reader reads a file in memory, so the kernel's time to print the text is not
//! included.

use std::ops::ControlFlow;
use std::time::Instant;

use omr_kernel::Kernel;
use omr_kernel::lru_gen::Reader;
use omr_testkit::FakeRoot;

const ROUNDS: usize = 51;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |place| std::env::args().nth(place).and_then(|number| number.parse::<usize>().ok());
    let (groups, nodes) = (number(1).unwrap_or(10_000), number(2).unwrap_or(2));
    let root = FakeRoot::new().scaled_generations(groups, nodes);
    let size = std::fs::metadata(root.resolve("sys/kernel/debug/lru_gen"))?.len();
    let kernel = Kernel::open(root.path())?;
    let mut reader = Reader::default();
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let (mut lists, mut pages) = (0, 0);
        let began = Instant::now();
        reader.for_each(&kernel, |_, _, found| {
            lists += 1;
            pages += found.anon().0 + found.file().0;
            ControlFlow::Continue(())
        })?;
        let took = began.elapsed();
        assert_eq!(lists, (groups + 1) * nodes);
        assert!(pages > 0);
        rates.push(size as f64 / 1e6 / took.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "{groups} groups on {nodes} nodes, {size} bytes: {:.0} MB/s [{:.0} .. {:.0}] in {ROUNDS} rounds, {:.1} ms each",
        rates[ROUNDS / 2],
        rates[0],
        rates[ROUNDS - 1],
        size as f64 / 1e3 / rates[ROUNDS / 2],
    );
    Ok(())
}
