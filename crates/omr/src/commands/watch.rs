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

use crate::watch::{Desk, Due, Watch};

/// Follows the interruption notices of EC2, Google Compute Engine or Azure, and has the daemon prepare
/// the machine for what they announce.
///
/// The provider is told by the firmware, or by provider = "ec2", "gcp" or "azure" in the table [cloud] of
/// the configuration. What is asked of its metadata server, and what follows from the answers, is in
/// docs/use/spot.md. It needs no privileges but to ask the daemon: root, or the user omr-watch in the
/// group omr, as which omr-watch.service runs it.
///
/// Exit codes: 0 done, or told to end; 1 the metadata server or, with --once, the daemon could not be asked;
/// 2 a mistake in the configuration; 3 this is no machine of a provider that is known.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look once, ask the daemon if there is something to ask, and end
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

/// The daemon at its socket.
struct Daemon(PathBuf);

impl Desk for Daemon {
    fn prepare(&self, due: &Due) -> Result<()> {
        ask(&self.0, &request(due))?;
        log::info!("{}: the daemon prepares ({})", words(due), due.purpose.name());
        Ok(())
    }

    fn stand_down(&self) -> Result<()> {
        ask(&self.0, &Request::StandDown).map(|_| ())
    }
}

/// Standard output.
struct Printer {
    json: bool,
}

impl Desk for Printer {
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

/// `omr watch`.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    logging::start(args.foreground || args.once || args.dry_run);
    let loaded = config::load_or_refuse(root, args.config.as_deref())?;
    let mut watch = Watch::new(root, &loaded.cloud)?;
    let desk: Box<dyn Desk> = match args.dry_run {
        true => Box::new(Printer { json: args.json }),
        false => Box::new(Daemon(paths::socket(root))),
    };
    if args.once {
        if watch.once(&*desk)? == 0 && !args.json {
            outln!("{}: nothing to prepare for", watch.names());
        }
        return Ok(Exit::Done);
    }
    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT])?;
    log::info!("omr {} watches {} at {}", env!("CARGO_PKG_VERSION"), watch.names(), loaded.cloud.endpoint);
    let thread = std::thread::Builder::new().name("omr-watch".into());
    thread.spawn(move || watch.follow(&*desk)).context("start a thread")?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // Whatever a thread waits for: the process ends when this one does.
    while signals.read().is_none() {
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}
