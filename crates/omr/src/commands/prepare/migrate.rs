//! `omr prepare migrate`: reclaims in a virtual machine and reports its free memory before it is
//! moved.

use std::path::Path;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use omr_actuate::{Live, Outcome};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_config as config;
use omr_engine::prepare::free_page_reporting::{self, Blocks};
use omr_engine::prepare::{Done, Goal, Reached};
use omr_kernel::{Kernel, clock, page_reporting, zoneinfo};
use omr_policy::{End, short};
use omr_units::{Bytes, Pages, millis};
use serde::Serialize;

use super::{Common, bar_target, exit, prepare, print_done, refuse};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
}

/// The summary that is printed at the end.
#[derive(Debug, Serialize)]
struct Summary {
    prepared: &'static str,
    #[serde(flatten)]
    done: Done,
    /// The size of the smallest block that is reported.
    block: Bytes,
    /// True if compaction was completed.
    compacted: bool,
    /// The time from the end of compaction to the last report.
    reporting_ms: u64,
    /// The memory of the machine, as the host counts it.
    memory: Bytes,
    before: Blocks,
    after: Blocks,
    notes: Vec<String>,
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<Exit> {
    let common = &args.common;
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    let Some(order) = page_reporting::read_order(&kernel)? else {
        return refuse(
            common,
            "migrate",
            "this machine has no free page reporting, so a migration sends free memory, too; it needs a virtual machine \
             with free page reporting (QEMU: -device virtio-balloon-pci,free-page-reporting=on; libvirt: <memballoon \
             freePageReporting='on'>) and Linux 5.14",
        );
    };
    let stop = Flag::with_timeout(common.deadline);
    let before = Blocks::read(&kernel, order)?;
    let reclaiming = common.deadline.map(|time| time - free_page_reporting::reserve(time));
    let mut summary = Summary {
        prepared: "migrate",
        done: prepare(&kernel, root, &loaded, &Goal::All, common, reclaiming)?,
        block: free_page_reporting::block_size(&kernel, order),
        compacted: false,
        reporting_ms: 0,
        memory: read_present(&kernel)?,
        before,
        after: before,
        notes: Vec::new(),
        dry_run: common.output.dry_run,
    };
    if !common.output.dry_run && cancel::signal().is_none() {
        hand_back(&kernel, root, order, common, &stop, &mut summary)?;
    }
    print(common, &summary)?;
    Ok(exit(common, &summary.done))
}

/// Compacts free memory, and waits until it is reported to the host.
fn hand_back(
    kernel: &Kernel,
    root: &Path,
    order: u32,
    common: &Common,
    stop: &Flag,
    summary: &mut Summary,
) -> Result<()> {
    match free_page_reporting::compact_fully(kernel, root, order, &|| Box::new(Live), stop)? {
        Some(Outcome::Done) => summary.compacted = true,
        Some(Outcome::Gone) => summary.notes.push("this kernel cannot compact memory (CONFIG_COMPACTION)".into()),
        Some(_) => {
            summary.notes.push("memory was not compacted: /proc/sys/vm/compact_memory may not be written".into())
        }
        None => {}
    }
    let began = clock::read_monotonic();
    let bar = ProgressBar::with_draw_target(None, bar_target(common));
    if let Ok(style) = ProgressStyle::with_template("{bar:28}  {pos} of {len} free blocks reported   ^C stops") {
        bar.set_style(style.progress_chars("█░"));
    }
    let (after, end) = free_page_reporting::wait_for_reports(kernel, order, stop, &mut |blocks| {
        bar.set_length(blocks.blocks);
        bar.set_position(blocks.reported.unwrap_or_default());
    })?;
    bar.finish_and_clear();
    summary.after = after;
    let waited = clock::read_monotonic().since(began);
    summary.reporting_ms = millis(waited);
    match (after.reported, end) {
        (None, _) => summary.notes.push(format!(
            "this kernel does not show which blocks were reported (/proc/kpageflags); waited {} for reports",
            short(waited)
        )),
        (Some(0), End::Futile) => {
            summary.notes.push("no report was seen: it is unknown if the host received any".into())
        }
        _ => {}
    }
    if end != End::Complete && summary.done.end == Reached::Reached {
        (summary.done.end, summary.done.why) = (Reached::Partly, end);
    }
    Ok(())
}

fn read_present(kernel: &Kernel) -> Result<Bytes> {
    let zones = zoneinfo::read(kernel, &mut Vec::new())?;
    Ok(zones.iter().fold(Pages(0), |sum, zone| sum + zone.present).bytes(kernel.page()))
}

fn print(common: &Common, summary: &Summary) -> Result<()> {
    if common.output.json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let (done, before, after) = (&summary.done, &summary.before, &summary.after);
    if summary.dry_run {
        outln!(
            "about {} to send; {} free in blocks of {} or more, which are not sent; would ask background groups for {}; nothing \
             was done (--dry-run)",
            summary.memory - before.in_blocks,
            before.in_blocks,
            summary.block,
            done.planned
        );
        return Ok(());
    }
    let ready = match done.end {
        Reached::Reached => "ready",
        Reached::Partly => "partly ready",
    };
    outln!(
        "{ready} to migrate: about {} to send (before: {})",
        summary.memory - after.in_blocks,
        summary.memory - before.in_blocks
    );
    let told = match after.reported {
        Some(reported) => format!("{reported} of {} reported to the host", after.blocks),
        None => "reports to the host cannot be seen".to_owned(),
    };
    outln!(
        "{} free, {} of it in {} blocks of {} or more; {told}.",
        after.free,
        after.in_blocks,
        after.blocks,
        summary.block
    );
    print_done(done, "to reclaim")?;
    for note in &summary.notes {
        outln!("note: {note}");
    }
    Ok(())
}
