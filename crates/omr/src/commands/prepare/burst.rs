//! `omr prepare burst`: frees memory before a program allocates much of it at once.

use std::path::Path;

use anyhow::Result;
use omr_base::exit::Exit;
use omr_config as config;
use omr_engine::prepare::{Done, Goal, Reached, read_free};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::{Kernel, zoneinfo};
use omr_units::{Amount, Bytes, Pages};
use serde::Serialize;

use super::{Common, exit, prepare, print_done};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The amount that will be allocated: 4G, or 40% of memory
    #[arg(value_parser = parse_size, value_name = "SIZE")]
    size: Amount,

    #[command(flatten)]
    common: Common,
}

fn parse_size(text: &str) -> Result<Amount, String> {
    match text.parse() {
        Ok(Amount::Max) | Err(_) => Err("expected a size such as \"4G\" or \"40%\"".into()),
        Ok(size) => Ok(size),
    }
}

/// The summary that is printed at the end.
#[derive(Debug, Serialize)]
struct Summary {
    prepared: &'static str,
    #[serde(flatten)]
    done: Done,
    size: Bytes,
    free_before: Bytes,
    free_after: Bytes,
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<Exit> {
    let common = &args.common;
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    let memory = Meminfo::read(&kernel, &mut Vec::new())?.mem_total.unwrap_or_default();
    let size = args.size.of(memory);
    let most = read_most(&kernel)?;
    if size > most {
        let text = format!("{size} is more than this machine can ever have free: {most} is the most");
        return Err(Exit::Usage.error(text));
    }
    let free_before = read_free(&kernel)?;
    let goal = Goal::Free { at_least: size };
    let done = prepare(&kernel, root, &loaded, &goal, common, common.deadline)?;
    let free_after = read_free(&kernel)?;
    let summary = Summary { prepared: "burst", size, free_before, free_after, dry_run: common.output.dry_run, done };
    print(common, &summary)?;
    Ok(exit(common, &summary.done))
}

/// Returns the memory that would be free above the watermarks if none were in use.
fn read_most(kernel: &Kernel) -> Result<Bytes> {
    let zones = zoneinfo::read(kernel, &mut Vec::new())?;
    let most = zones.iter().map(|zone| zone.managed - zone.high - zone.protection);
    Ok(most.fold(Pages(0), |sum, pages| sum + pages).bytes(kernel.page()))
}

fn print(common: &Common, summary: &Summary) -> Result<()> {
    if common.output.json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let (done, size) = (&summary.done, summary.size);
    if summary.dry_run {
        outln!(
            "{} free above the watermarks, {size} wanted; would ask background groups for {}; nothing was done (--dry-run)",
            summary.free_before,
            done.planned
        );
        return Ok(());
    }
    let ready = match done.end {
        Reached::Reached => "ready",
        Reached::Partly => "partly ready",
    };
    outln!(
        "{ready} for a burst of {size}: {} free above the watermarks (before: {})",
        summary.free_after,
        summary.free_before
    );
    print_done(done, "to be freed")?;
    Ok(())
}
