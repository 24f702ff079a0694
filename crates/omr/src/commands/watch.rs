//! `omr watch`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::signals::SignalFd;
use omr_base::{logging, paths};
use omr_config as config;
use omr_control::client::ask;
use omr_control::protocol::Request;
use omr_policy::short;
use omr_units::millis;
use rustix::event::{PollFd, PollFlags, poll};

use crate::watch::{Due, EventReceiver, Watch};

/// Follows the interruption notices of EC2, Google Compute Engine or Azure, and has the daemon
/// prepare the machine for the announced event.
///
/// The firmware tells the provider, or provider = "ec2", "gcp" or "azure" in the table [cloud] of
/// the configuration does. docs/use/spot.md lists the requests to the metadata server and the
/// reactions to its answers. omr watch needs no privilege but to ask the daemon: it runs as root,
/// or as the user omr-watch in the group omr (omr-watch.service).
///
/// Exit codes: 0 done, or ended by a signal; 1 the metadata server or, with --once, the daemon did
/// not answer; 2 a mistake in the configuration; 3 the provider of this machine is not known.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Ask the metadata server once, have the daemon prepare if something is announced, and end
    #[arg(long)]
    once: bool,

    /// Print what the daemon would be asked, and do not ask it
    #[arg(long)]
    dry_run: bool,

    /// With --dry-run: print each request as a line of JSON
    #[arg(long, requires = "dry_run")]
    json: bool,

    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,

    /// Read this file instead of the configuration of the system
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Sends requests to the daemon at this socket.
struct Daemon(PathBuf);

impl EventReceiver for Daemon {
    fn prepare(&self, due: &Due) -> Result<()> {
        ask(&self.0, &request(due))?;
        log::info!("{}: the daemon prepares ({})", words(due), due.purpose.name());
        Ok(())
    }

    fn stand_down(&self) -> Result<()> {
        ask(&self.0, &Request::StandDown).map(|_| ())
    }
}

/// Prints requests on standard output.
struct Printer {
    json: bool,
}

impl EventReceiver for Printer {
    fn prepare(&self, due: &Due) -> Result<()> {
        match self.json {
            true => outln!("{}", serde_json::to_string(&request(due))?),
            false => outln!("{}: the daemon would prepare ({})", words(due), due.purpose.name()),
        }
        Ok(())
    }

    fn stand_down(&self) -> Result<()> {
        match self.json {
            true => outln!("{}", serde_json::to_string(&Request::StandDown)?),
            false => outln!("nothing is announced any more: the daemon would stop preparing"),
        }
        Ok(())
    }
}

fn request(due: &Due) -> Request {
    let deadline_ms = due.left.map(millis);
    Request::Prepare { purpose: due.purpose, deadline_ms, why: due.why.clone() }
}

/// `spot interruption: terminate, in 118 s`
fn words(due: &Due) -> String {
    match due.left {
        Some(left) => format!("{}, in {}", due.why, short(left)),
        None => due.why.clone(),
    }
}

/// Runs the command, with --once to its end and else until a signal ends it.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    logging::start(args.foreground || args.once || args.dry_run);
    let loaded = config::load_or_refuse(root, args.config.as_deref())?;
    let mut watch = Watch::new(root, &loaded.cloud)?;
    let receiver: Box<dyn EventReceiver> = match args.dry_run {
        true => Box::new(Printer { json: args.json }),
        false => Box::new(Daemon(paths::socket(root))),
    };
    if args.once {
        if watch.once(&*receiver)? == 0 && !args.json {
            outln!("{}: nothing to prepare for", watch.names());
        }
        return Ok(Exit::Done);
    }
    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT])?;
    log::info!("omr {} watches {} at {}", env!("CARGO_PKG_VERSION"), watch.names(), loaded.cloud.endpoint);
    let thread = std::thread::Builder::new().name("omr-watch".into());
    thread.spawn(move || watch.follow(&*receiver)).context("start a thread")?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // The process ends with this thread, even if others still wait.
    while signals.read().is_none() {
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}
