//! A latency-sensitive task: it wakes every period, touches its working set, and does a fixed piece
//! of work.
//!
//! A sample is the delay of a wake-up and the time of the work. A raw sample has 16 bytes, little
//! endian: time at which the task was due (u64), delay (u32), working time (u32), all in
//! nanoseconds.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::amount::Amount;
use crate::pattern::Pattern;
use crate::{clock, load, pattern};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time between two wake-ups
    #[arg(long, value_parser = clock::parse_span, default_value = "10ms")]
    period: Duration,
    /// Time in all
    #[arg(long, value_parser = clock::parse_span, default_value = "30s")]
    duration: Duration,
    /// Memory touched in each period
    #[arg(long, default_value = "16M")]
    working_set: Amount,
    /// Steps of fixed work in each period
    #[arg(long, default_value_t = 20_000)]
    work: u64,
    /// File for the raw samples
    #[arg(long)]
    raw: Option<PathBuf>,
}

struct Sample {
    due: u64,
    late: u32,
    busy: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut words = Pattern::new(2, 0).fill(usize::try_from(args.working_set.bytes()? / 8)?);
    let period = u64::try_from(args.period.as_nanos())?;
    let start = clock::monotonic() + period;
    let end = start + u64::try_from(args.duration.as_nanos())?;
    let mut samples = Vec::with_capacity(usize::try_from(args.duration.as_nanos() / u128::from(period))? + 1);
    println!("{}", json!({"ready": true, "start_ns": start}));

    let mut due = start;
    let mut missed = 0;
    while due < end {
        clock::sleep_until(due);
        let woke = clock::monotonic();
        load::touch(&mut words);
        black_box((0..args.work).fold(due, |value, step| pattern::mix(value ^ step)));
        let done = clock::monotonic();
        samples.push(Sample { due, late: saturate(woke - due), busy: saturate(done - woke) });
        // A period that passed meanwhile is lost, like a frame of a video. Its cost is in the
        // sample before.
        let passed = (done - due) / period;
        missed += passed;
        due += period * (passed + 1);
    }

    if let Some(path) = &args.raw {
        let bytes: Vec<u8> = samples
            .iter()
            .flat_map(|s| [s.due.to_le_bytes().as_slice(), &s.late.to_le_bytes(), &s.busy.to_le_bytes()].concat())
            .collect();
        fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    let mut response: Vec<u64> = samples.iter().map(|s| u64::from(s.late) + u64::from(s.busy)).collect();
    response.sort_unstable();
    println!(
        "{}",
        json!({
            "samples": response.len(), "missed": missed,
            "p50_ns": quantile(&response, 500), "p99_ns": quantile(&response, 990),
            "p999_ns": quantile(&response, 999), "max_ns": response.last(),
        })
    );
    Ok(())
}

pub(crate) fn saturate(nanos: u64) -> u32 {
    u32::try_from(nanos).unwrap_or(u32::MAX)
}

/// The smallest sample that `permille` of the sorted samples do not exceed.
pub(crate) fn quantile(sorted: &[u64], permille: usize) -> Option<u64> {
    sorted.get((sorted.len() * permille).div_ceil(1000).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let sorted: Vec<u64> = (1..=1000).collect();
        assert_eq!(quantile(&sorted, 500), Some(500));
        assert_eq!(quantile(&sorted, 999), Some(999));
        assert_eq!(quantile(&sorted[..1], 999), Some(1));
        assert_eq!(quantile(&[], 999), None);
    }
}
