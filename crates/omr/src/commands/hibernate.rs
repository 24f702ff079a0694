//! `omr hibernate`: prepares, hibernates, and warms after resume.

use std::io::ErrorKind;
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

/// The time between two questions to logind whether the sleep is over.
const LOOK: Duration = Duration::from_millis(200);
/// The longest time of recording memory before the machine sleeps.
const RECORD: Duration = Duration::from_secs(10);
/// The shortest time that counts as sleep: the clock that runs on while the machine is off counts
/// in seconds.
const ASLEEP: Duration = Duration::from_millis(500);

/// The longest wait for omr-warm.service, which begins at the same moment.
const OTHERS: Duration = Duration::from_secs(300);

/// Prepares as "omr prepare hibernate" does, hibernates, waits until the machine is back, and
/// brings back the memory that was reclaimed. It asks logind to hibernate, so that inhibitors and
/// hooks apply; where logind does not run, it asks the kernel. With --json, each part prints an
/// object of its own.
#[derive(Debug, clap::Args)]
#[command(long_about)]
pub struct Args {
    #[command(flatten)]
    prepare: prepare::Hibernate,

    /// Ask the kernel and not logind; inhibitors and hooks do not apply
    #[arg(long)]
    direct: bool,

    /// Do not bring memory back after resume
    #[arg(long)]
    no_warm: bool,
}

/// The summary that is printed at the end. The image does not contain the kernel's log of writing
/// it, so that writing, the time without power and loading cannot be told apart from inside.
#[derive(Debug, Serialize)]
struct Summary {
    hibernated: &'static str,
    /// The time of recording and reclaiming.
    prepare_ms: u64,
    /// The time from the request to the snapshot, and from resume until this program went on: by
    /// `CLOCK_MONOTONIC`, which stands still in between.
    awake_ms: u64,
    /// The time from the snapshot until the machine was back: by the real-time clock, in whole
    /// seconds.
    asleep_ms: u64,
    /// The size of the image, by the kernel's log; `None`: the log does not say.
    image: Option<Bytes>,
    /// The value that this program raised `image_size` to meanwhile; `None` where systemd
    /// hibernates, as its hook does so.
    image_size: Option<Bytes>,
    /// The time of freeing memory and making room for the copies, by the kernel's log; `None`: the
    /// log does not say.
    allocate_ms: Option<u64>,
    /// The time of bringing memory back; `None`: it was not asked for, failed, or another process
    /// still does it.
    warm_ms: Option<u64>,
}

/// Runs the command to its end.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let began = clock::read_monotonic();
    if !args.no_warm && !args.prepare.is_dry_run() {
        tell("record", warm::run(root, &warm::Args::plain(Some(RECORD), args.prepare.is_json())?));
    }
    // A machine that cannot hibernate is an error. If less memory was reclaimed than wished, the
    // machine hibernates all the same.
    match prepare::hibernate(root, &args.prepare)? {
        Exit::Done | Exit::Partial => {}
        _ => eprintln!("omr: some groups could not be reclaimed from; hibernating anyway"),
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
    let slept = match logind(root, args) {
        Some(systemd) => through_logind(systemd).map(|hibernated| (hibernated, None)),
        None => straight(&kernel, root),
    };
    let asleep = clock::read_asleep().saturating_sub(asleep);
    let back = clock::read_monotonic();
    let slept = slept.and_then(|slept| match asleep < ASLEEP {
        true => bail!("the machine did not hibernate; journalctl -b -u systemd-hibernate and dmesg say why"),
        false => Ok(slept),
    });
    let (hibernated, image_size) = match slept {
        Ok(slept) => slept,
        Err(err) => {
            // The machine stays in use, so it gets back what it gave up for nothing.
            if !args.no_warm {
                tell("warm", warm::run(root, &warm::Args::plain(None, args.prepare.is_json())?));
            }
            return Err(err);
        }
    };
    if let Err(err) = omr_engine::prepare::hibernated::record(&kernel, root) {
        eprintln!("omr: {err:#}");
    }

    let warmed = !args.no_warm && {
        omr_engine::warm::wait(&paths::warm_lock(root), &Flag::with_timeout(Some(OTHERS)));
        // The rest, or all where that service did not run.
        tell("warm", warm::run(root, &warm::Args::plain(None, args.prepare.is_json())?))
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

/// Prints the error of a part that the machine hibernates without. True: the part was done.
fn tell(part: &str, result: Result<Exit>) -> bool {
    match result {
        Ok(exit) => matches!(exit, Exit::Done | Exit::Partial),
        Err(err) => {
            eprintln!("omr: {part}: {err:#}");
            false
        }
    }
}

/// Opens a connection to logind; `None`: logind does not run, or must not be used.
fn logind(root: &Path, args: &Args) -> Option<Systemd> {
    // Another root is another machine, whose logind cannot be asked.
    if args.direct || root != Path::new("/") {
        return None;
    }
    Systemd::connect(false).ok().filter(Systemd::is_bus)
}

fn through_logind(mut systemd: Systemd) -> Result<&'static str> {
    systemd.hibernate().context("\"omr hibernate --direct\" goes past logind")?;
    // The machine is frozen, written, read and thawed in one of these pauses.
    while systemd.is_going_to_sleep()? {
        std::thread::sleep(LOOK);
    }
    Ok("logind")
}

/// Hibernates without logind. Raises `image_size` meanwhile, as the hook does where systemd
/// hibernates, and returns its value.
fn straight(kernel: &Kernel, root: &Path) -> Result<(&'static str, Option<Bytes>)> {
    let tell = |err: &anyhow::Error| eprintln!("omr: {err:#}");
    let config = config::load_or_refuse(root, None)?.policy;
    let raised = image_size::raise(kernel, root, &config, &mut Live).inspect_err(tell).unwrap_or_default();
    let outcome = omr_actuate::hibernate::hibernate(kernel, &mut Live);
    let _ = image_size::restore(kernel, root, &mut Live).inspect_err(tell);
    let outcome = match outcome {
        Err(omr_kernel::Error::Write { err, .. }) if err.kind() == ErrorKind::OutOfMemory => bail!(
            "hibernate: the kernel found no room in memory for the copy that becomes the image; about half of the \
             memory has to be free or able to leave, so close programs, or free memory that is locked"
        ),
        Err(omr_kernel::Error::Write { err, .. }) if err.kind() == ErrorKind::StorageFull => {
            bail!("hibernate: the image does not fit into swap; make the swap larger, or close programs")
        }
        outcome => outcome?,
    };
    let why = match outcome {
        Outcome::Done => return Ok(("kernel", raised)),
        Outcome::Partial => "another sleep is under way, or /dev/snapshot is in use",
        Outcome::Interrupted => "a process could not be frozen",
        Outcome::Gone => "no device to resume from is set (resume=)",
        Outcome::Denied => "permission denied; run as root, on a kernel that is not locked down",
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
