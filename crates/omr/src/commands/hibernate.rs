//! `omr hibernate`: the whole round.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_actuate::{Live, Outcome};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_config as config;
use omr_engine::prepare::image_size;
use omr_kernel::hibernate::HibernationLog;
use omr_kernel::kmsg::Log;
use omr_kernel::{Kernel, clock};
use omr_policy::short;
use omr_units::{Bytes, millis};
use serde::Serialize;

use crate::bus::Systemd;
use crate::commands::{prepare, warm};

/// How often logind is asked whether it is over.
const LOOK: Duration = Duration::from_millis(200);
/// The clock that runs on while the machine is off counts in seconds: less was no sleep.
const ASLEEP: Duration = Duration::from_millis(500);

/// So long it waits for omr-warm.service, which begins at the same moment and takes no longer.
const OTHERS: Duration = Duration::from_secs(300);

/// Prepares as "omr prepare hibernate" does, hibernates, waits until the machine is back, and brings
/// back what was in memory. Through logind where it runs, so that inhibitors and hooks are heard; else
/// straight through the kernel. With --json, each part prints an object of its own.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    prepare: prepare::Hibernate,

    /// Straight through the kernel, past logind, its inhibitors and all hooks
    #[arg(long)]
    direct: bool,

    /// Leave in swap what is there after resume
    #[arg(long)]
    no_warm: bool,
}

/// What is printed at the end. The kernel's log of the image having been written is not in the image,
/// so writing, the time without power and loading cannot be told apart from inside.
#[derive(Debug, Serialize)]
struct Summary {
    hibernated: &'static str,
    /// Recording, reclaiming.
    prepare_ms: u64,
    /// From asking until the snapshot, and from the snapshot until this program went on: by
    /// `CLOCK_MONOTONIC`, which stands still in between.
    awake_ms: u64,
    /// From the snapshot until the machine was back: by the real-time clock, in whole seconds.
    asleep_ms: u64,
    /// By the kernel's log; `None`: it does not say.
    image: Option<Bytes>,
    /// What `image_size` was raised to meanwhile, by this program: where systemd hibernates that is for the hook.
    image_size: Option<Bytes>,
    /// By the kernel's log: freeing memory and making room for the copies.
    allocate_ms: Option<u64>,
    /// Bringing memory back; `None`: that was not to be, or failed, or somebody else is still at it.
    warm_ms: Option<u64>,
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let began = clock::read_monotonic();
    if !args.no_warm && !args.prepare.is_dry_run() {
        tell("record", warm::run(root, &warm::Args::plain(true, args.prepare.is_json())?));
    }
    // That the machine cannot hibernate is an error. Less than wished is no reason to stay awake, nor is a
    // group that cannot be reclaimed from.
    match prepare::hibernate(root, &args.prepare)? {
        Exit::Done | Exit::Partial => {}
        _ => eprintln!("omr: not every group could be reclaimed from; hibernating all the same"),
    }
    if cancel::signal().is_some() {
        return Err(Exit::Partial.error("interrupted, so the machine stays awake"));
    }
    if args.prepare.is_dry_run() {
        return Ok(Exit::Done);
    }
    let prepared = clock::read_monotonic();

    let mut log = Log::from_now(root).ok();
    let asleep = clock::read_asleep();
    let (hibernated, image_size) = match logind(root, args) {
        Some(systemd) => (through_logind(systemd)?, None),
        None => straight(&kernel, root)?,
    };
    let asleep = clock::read_asleep().saturating_sub(asleep);
    let back = clock::read_monotonic();
    if asleep < ASLEEP {
        bail!("the machine did not hibernate; journalctl -b -u systemd-hibernate and dmesg say why");
    }

    let warmed = !args.no_warm && {
        omr_engine::warm::wait(&paths::warm_lock(root), &Flag::with_timeout(Some(OTHERS)));
        // What that has left, or all where there was none.
        tell("warm", warm::run(root, &warm::Args::plain(false, args.prepare.is_json())?))
    };
    let logged = log.as_mut().map(|log| HibernationLog::parse(&log.read())).unwrap_or_default();
    let summary = Summary {
        hibernated,
        prepare_ms: millis(prepared.since(began)),
        awake_ms: millis(back.since(prepared)),
        asleep_ms: millis(asleep),
        image_size,
        image: logged.image.map(|pages| pages.bytes(kernel.page())),
        allocate_ms: logged.allocated_in.map(millis),
        warm_ms: warmed.then(|| millis(clock::read_monotonic().since(back))),
    };
    print(args, &summary)?;
    Ok(Exit::Done)
}

/// The machine hibernates with or without this part; whether it was done.
fn tell(part: &str, result: Result<Exit>) -> bool {
    match result {
        Ok(exit) => matches!(exit, Exit::Done | Exit::Partial),
        Err(err) => {
            eprintln!("omr: {part}: {err:#}");
            false
        }
    }
}

/// The way to logind, where there is one.
fn logind(root: &Path, args: &Args) -> Option<Systemd> {
    // Another root is another machine, whose logind nobody can ask.
    if args.direct || root != Path::new("/") {
        return None;
    }
    Systemd::connect(false).ok().filter(Systemd::is_bus)
}

fn through_logind(mut systemd: Systemd) -> Result<&'static str> {
    systemd.hibernate().context("\"omr hibernate --direct\" goes past logind")?;
    // Frozen, written, read and thawed in one of these sleeps.
    while systemd.is_going_to_sleep()? {
        std::thread::sleep(LOOK);
    }
    Ok("logind")
}

/// Also what `image_size` was raised to, as the hook does where systemd hibernates.
fn straight(kernel: &Kernel, root: &Path) -> Result<(&'static str, Option<Bytes>)> {
    let tell = |err: &anyhow::Error| eprintln!("omr: {err:#}");
    let config = config::load_or_refuse(root, None)?.policy;
    let raised = image_size::raise(kernel, root, &config, &mut Live).inspect_err(tell).unwrap_or_default();
    let outcome = omr_actuate::hibernate::hibernate(kernel, &mut Live);
    let _ = image_size::restore(kernel, root, &mut Live).inspect_err(tell);
    let why = match outcome? {
        Outcome::Done => return Ok(("kernel", raised)),
        Outcome::Partial => "another sleep is under way, or /dev/snapshot is in use",
        Outcome::Interrupted => "a process could not be frozen",
        Outcome::Gone => "no device to resume from is set (resume=)",
        Outcome::Denied => "permission denied; it takes root, and a kernel that is not locked down",
        Outcome::Unsupported => "the kernel cannot",
    };
    bail!("hibernate: {why}")
}

fn print(args: &Args, summary: &Summary) -> Result<()> {
    if args.prepare.is_json() {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let time = |ms: u64| short(Duration::from_millis(ms));
    let mut line = format!("hibernated through {}: prepared in {}", summary.hibernated, time(summary.prepare_ms));
    if let Some(image) = summary.image {
        line += &format!(", image {image}");
    }
    if let Some(ms) = summary.allocate_ms {
        line += &format!(" made room for in {}", time(ms));
    }
    line += &format!(
        ", {} before and after the snapshot, away for {} (writing, power off and on, loading)",
        time(summary.awake_ms),
        time(summary.asleep_ms)
    );
    if let Some(ms) = summary.warm_ms {
        line += &format!(", warm after {}", time(ms));
    }
    outln!("{line}.");
    Ok(())
}
