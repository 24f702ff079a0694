//! Hibernates the machine, and prints the clocks from before and after.

use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use rustix::time::ClockId;
use serde_json::{Value, json};

use crate::clock;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Text for /sys/power/disk: the step after the image is written
    #[arg(long, default_value = "shutdown")]
    mode: String,
}

/// The device was written to /sys/power/resume at boot. The kernel looked for an image there as
/// well.
pub(crate) fn run(args: &Args) -> Result<()> {
    put("/sys/power/disk", &args.mode)?;
    let before = clocks();
    put("/sys/power/state", "disk")?;
    println!("{}", json!({"before": before, "after": clocks()}));
    Ok(())
}

fn clocks() -> Value {
    json!({"monotonic_ns": clock::monotonic(), "realtime_ns": clock::nanos(ClockId::Realtime)})
}

fn put(path: &str, value: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(path).context(path.to_owned())?;
    file.write(value.as_bytes()).with_context(|| format!("write {value:?} to {path}"))?;
    Ok(())
}
