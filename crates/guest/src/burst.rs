//! A program that needs a lot of memory at once: it allocates and touches memory on SIGUSR1, and
//! prints the time that this took.
//!
//! The latency is the latency of faults. With huge pages most touches find memory that an earlier
//! fault has brought in. So the slowest touches count as the faults: as many as the kernel has
//! counted.

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::amount::Amount;
use crate::clock;
use crate::latency::quantile;
use crate::pattern::{PAGE, Pattern};
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Memory of the burst, e.g. 512M or 40% of MemTotal
    amount: Amount,
    /// Memory in use before the burst
    #[arg(long, default_value = "16M")]
    working_set: Amount,
}

/// The counters of /proc/vmstat whose differences are printed, all zones together.
const EVENTS: [&str; 8] = [
    "allocstall",
    "compact_stall",
    "pgscan_direct",
    "pgscan_kswapd",
    "pgfault",
    "pswpin",
    "pswpout",
    "thp_fault_alloc",
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let working_set = Pattern::new(2, 0).fill(usize::try_from(args.working_set.bytes()? / 8)?);
    let words = usize::try_from(args.amount.bytes()? / 8)?;
    // Touched now, so that the measurement itself causes no faults.
    let mut nanos = vec![1_u64; words.div_ceil(PAGE)];
    println!("{}", json!({"ready": true, "bytes": words * 8}));

    if signals.wait(None)? != Some(libc::SIGUSR1) {
        return Ok(());
    }
    let before = (events()?, faults()?);
    let began = clock::monotonic();
    // Zeroed memory is only mapped here, and not touched.
    let mut burst = vec![0_u64; words];
    let mut last = began;
    for (page, took) in burst.chunks_mut(PAGE).zip(&mut nanos) {
        page[0] = 1;
        let now = clock::monotonic();
        *took = now - last;
        last = now;
    }
    let faults = faults()?.saturating_sub(before.1);
    println!("{}", report(began, last, &before.0, &events()?, &mut nanos, faults));
    black_box((working_set, burst));
    Ok(())
}

fn report(began: u64, ended: u64, before: &Counts, after: &Counts, nanos: &mut [u64], faults: usize) -> Value {
    let events: BTreeMap<_, _> = after.iter().map(|(name, count)| (name, count - before[name])).collect();
    // Seconds from the start until each percent of the memory was touched.
    let percent = nanos.len().div_ceil(100).max(1);
    let progress: Vec<f64> = nanos
        .chunks(percent)
        .scan(0, |sum, chunk| {
            *sum += chunk.iter().sum::<u64>();
            Some(*sum as f64 / 1e9)
        })
        .collect();
    nanos.sort_unstable();
    let slowest = &nanos[nanos.len().saturating_sub(faults.max(1))..];
    json!({
        "began_ns": began, "ended_ns": ended, "events": events, "progress_s": progress, "faults": faults,
        "p50_ns": quantile(slowest, 500), "p99_ns": quantile(slowest, 990), "max_ns": slowest.last(),
    })
}

/// Page faults of this process, minor and major.
fn faults() -> Result<usize> {
    parse_faults(&fs::read_to_string("/proc/self/stat")?).context("/proc/self/stat")
}

fn parse_faults(stat: &str) -> Option<usize> {
    // The name may hold anything. In the fields after it (state, ppid, ...), minflt is the 8th and
    // majflt the 10th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(7).step_by(2).map(str::parse::<usize>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

pub(crate) type Counts = BTreeMap<&'static str, u64>;

pub(crate) fn events() -> Result<Counts> {
    Ok(count(&fs::read_to_string("/proc/vmstat").context("/proc/vmstat")?))
}

/// Some counters have a line for each zone: `allocstall_normal 3`.
fn count(vmstat: &str) -> Counts {
    let mut counts: Counts = EVENTS.into_iter().map(|event| (event, 0)).collect();
    for (name, value) in vmstat.lines().filter_map(|line| line.split_once(' ')) {
        let event = if name.starts_with("allocstall_") { "allocstall" } else { name };
        if let Some(count) = counts.get_mut(event) {
            *count += value.parse().unwrap_or(0);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_of_all_zones_are_counted_together() {
        let counts = count(
            "allocstall_dma 0\nallocstall_normal 3\nallocstall_movable 4\npgscan_direct 9\npgscan_direct_throttle 8\n",
        );
        assert_eq!(counts["allocstall"], 7);
        assert_eq!(counts["pgscan_direct"], 9);
        assert_eq!(counts["pswpout"], 0);
    }

    #[test]
    fn progress_ends_when_the_burst_does() {
        let mut nanos = vec![1_000_000_000; 250];
        let report = report(0, 250, &count(""), &count("pswpout 5\n"), &mut nanos, 250);
        let progress = report["progress_s"].as_array().unwrap();
        assert_eq!(progress.last().unwrap(), 250.0);
        assert!(progress.len() <= 100);
        assert_eq!(report["events"]["pswpout"], 5);
    }

    #[test]
    fn latency_is_that_of_the_faults() {
        let mut nanos = vec![1; 1000];
        (nanos[3], nanos[500]) = (900, 700);
        let report = report(0, 1, &count(""), &count(""), &mut nanos, 2);
        assert_eq!((&report["p50_ns"], &report["p99_ns"], &report["max_ns"]), (&700.into(), &900.into(), &900.into()));
    }

    #[test]
    fn faults_are_the_two_kinds_together() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 120 3000 4 50 1 2 0 0 20 0 1 0 9 1000 100\n";
        assert_eq!(parse_faults(stat), Some(124));
        assert_eq!(parse_faults(""), None);
    }
}
