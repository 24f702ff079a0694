//! Two ways to reclaim without omr, for comparison.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::amount::{Amount, meminfo};
use crate::{clock, place};

#[derive(clap::Args)]
pub(crate) struct SeedArgs {
    /// The cgroup; / is the root
    group: PathBuf,
    /// Memory to reclaim
    amount: Amount,
}

#[derive(clap::Args)]
pub(crate) struct ByHandArgs {
    /// The cgroup
    group: PathBuf,
    /// Memory to reclaim
    amount: Amount,
    /// Memory of each write
    #[arg(long, default_value = "4M")]
    step: Amount,
    /// The next write waits until at most this much is under writeback
    #[arg(long, default_value = "256K")]
    writeback: Amount,
}

/// Number of failed writes in a row after which nothing is left to reclaim.
const FUTILE: u32 = 4;

pub(crate) fn in_one_write(args: &SeedArgs) -> Result<()> {
    let mut file = open(&args.group)?;
    let began = clock::monotonic();
    let whole = write(&mut file, args.amount.bytes()?)?;
    let ended = clock::monotonic();
    println!("{}", json!({"began_ns": began, "ended_ns": ended, "whole": whole}));
    Ok(())
}

pub(crate) fn by_hand(args: &ByHandArgs) -> Result<()> {
    let mut file = open(&args.group)?;
    let (mut left, step, writeback) = (args.amount.bytes()?, args.step.bytes()?, args.writeback.bytes()?);
    let start = Instant::now();
    let (mut steps, mut futile) = (0_u32, 0_u32);
    while left > 0 && futile < FUTILE {
        steps += 1;
        if write(&mut file, step.min(left))? {
            left -= step.min(left);
            futile = 0;
        } else {
            futile += 1;
        }
        while meminfo("Writeback")? > writeback {
            clock::sleep(Duration::from_millis(10));
        }
    }
    println!("{}", json!({"steps": steps, "left": left, "seconds": start.elapsed().as_secs_f64()}));
    Ok(())
}

fn open(group: &std::path::Path) -> Result<File> {
    let path = place::directory(group).join("memory.reclaim");
    OpenOptions::new().write(true).open(&path).with_context(|| path.display().to_string())
}

/// Makes one write(2). False: the kernel could not reclaim this much.
fn write(file: &mut File, bytes: u64) -> Result<bool> {
    match file.write(bytes.to_string().as_bytes()) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error).context("memory.reclaim"),
    }
}
