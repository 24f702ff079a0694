//! A burst of CPU work that prints the time when it began. It measures how soon other work makes
//! room.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::amount::Amount;
use crate::clock;
use crate::pattern;
use crate::place;
use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Threads that burn CPU
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Length of each burst
    #[arg(long, value_parser = clock::parse_span, default_value = "1s")]
    burst: Duration,
    /// Number of bursts at random moments, instead of one for each SIGUSR1
    #[arg(long)]
    times: Option<u64>,
    /// Shortest time between two of these bursts
    #[arg(long, value_parser = clock::parse_span, default_value = "4s")]
    gap_min: Duration,
    /// Longest time between two of these bursts
    #[arg(long, value_parser = clock::parse_span, default_value = "9s")]
    gap_max: Duration,
    /// One burst, as soon as this group has memory in swap, instead of one for each SIGUSR1
    #[arg(long, value_name = "GROUP", conflicts_with = "times")]
    when_swapped: Option<PathBuf>,
    /// The amount of it
    #[arg(long, default_value = "8M", value_name = "AMOUNT")]
    swapped: Amount,
}

/// How often the group's swap is read. Each time is work, too.
const LOOK: Duration = Duration::from_millis(20);

/// Makes one burst after another. The process runs already, so no fork or exec is measured.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    println!("{}", json!({"ready": true}));
    if let Some(times) = args.times {
        for _ in 0..times {
            clock::sleep(random_between(args.gap_min, args.gap_max));
            spin(args)?;
        }
        return Ok(());
    }
    if let Some(group) = &args.when_swapped {
        let (path, amount) = (place::directory(group).join("memory.swap.current"), args.swapped.bytes()?);
        while fs::read_to_string(&path)?.trim().parse::<u64>()? < amount {
            clock::sleep(LOOK);
        }
        return spin(args);
    }
    loop {
        match signals.wait(None)? {
            Some(libc::SIGUSR1) => spin(args)?,
            Some(_) => return Ok(()),
            None => {}
        }
    }
}

fn random_between(min: Duration, max: Duration) -> Duration {
    let share = pattern::mix(clock::monotonic()) % 1000;
    min + max.saturating_sub(min) * u32::try_from(share).unwrap_or(0) / 1000
}

fn spin(args: &Args) -> Result<()> {
    let first_ran = clock::monotonic();
    let end = first_ran + u64::try_from(args.burst.as_nanos())?;
    thread::scope(|scope| {
        for _ in 1..args.threads {
            scope.spawn(move || spin_until(end));
        }
        spin_until(end);
    });
    println!("{}", json!({"first_ran_ns": first_ran, "ended_ns": clock::monotonic()}));
    Ok(())
}

fn spin_until(end: u64) {
    while clock::monotonic() < end {
        black_box((0..1000).fold(end, |value, step| pattern::mix(value ^ step)));
    }
}
