//! `omr follow`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::signals::SignalFd;
use omr_base::{logging, paths};
use omr_policy::statement::Statement;
use rustix::event::{PollFd, PollFlags, poll};

use crate::follow::{self, Daemon, Desk, Source};

/// Tells the daemon who is in the foreground, by what others know: logind, GameMode, sway.
///
/// logind (on the bus of the machine): while a session is active, neither idle nor locked, nothing is taken from the
/// groups of its user. Of processes there a rule or somebody may still say that they are in the background. gamemode (on
/// the bus of the session) and sway (by SWAYSOCK): registered games, and the window with the focus, are in the
/// foreground, and so is the whole group that they are in.
///
/// It needs no privileges but to ask the daemon. The user omr-follow, as which omr-follow.service runs it, may speak for
/// everybody; any member of the group omr for what is its own. What it has said is forgotten when it ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whom to ask
    #[arg(required = true, value_name = "SOURCE", value_enum)]
    sources: Vec<Source>,

    /// Print what the daemon would be told, a line of JSON for each change, and do not tell it
    #[arg(long)]
    dry_run: bool,

    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,
}

/// Standard output.
#[derive(Default)]
struct Printer(Option<BTreeSet<Statement>>);

impl Desk for Printer {
    fn hold(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
        if self.0.as_ref() != Some(statements) {
            outln!("{}", serde_json::to_string(statements)?);
            self.0 = Some(statements.clone());
        }
        Ok(())
    }
}

/// `omr follow`.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    logging::start(args.foreground || args.dry_run);
    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT])?;
    let mut desk: Box<dyn Desk> = match args.dry_run {
        true => Box::new(Printer::default()),
        false => Box::new(Daemon::new(paths::socket(root))),
    };
    let (root, mut sources) = (root.to_path_buf(), args.sources.clone());
    sources.sort_unstable();
    sources.dedup();
    let thread = std::thread::Builder::new().name("omr-follow".into());
    thread.spawn(move || follow::follow(&root, &sources, &mut *desk)).context("start a thread")?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // Whatever a thread waits for: the process ends when this one does.
    while signals.read().is_none() {
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}
