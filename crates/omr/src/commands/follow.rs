//! `omr follow`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::signals::SignalFd;
use omr_base::{logging, paths};
use omr_policy::need::HibernatesBy;
use omr_policy::presence::Facts;
use omr_policy::statement::Statement;
use rustix::event::{PollFd, PollFlags, poll};

use crate::follow::{self, DaemonReceiver, Source, StatementReceiver};

/// Tells the daemon which groups and processes are in the foreground, by logind, GameMode or sway.
///
/// logind (on the bus of the machine): while a session is active, and neither idle nor locked,
/// nothing is reclaimed from the groups of its user. A rule or a statement may still put processes
/// there in the background. gamemode (on the bus of the session) and sway (by SWAYSOCK): registered
/// games and the window with the focus are in the foreground, and so is the whole group that they
/// are in. presence (on the bus of the machine) tells who is there: the active sessions of people,
/// since when there was no input to them, and whether a program holds an idle inhibitor; and
/// whether the machine hibernates when its lid closes, when it is idle, or when its battery is
/// critical (by UPower, where that runs). With goal = "auto", only cold memory is reclaimed while
/// somebody is there, and without this source somebody may always be there.
///
/// It needs no privilege but to ask the daemon. The user omr-follow, as which omr-follow.service
/// runs it, may make statements about everybody; a member of the group omr about its own processes
/// and groups. The daemon forgets the statements when omr follow ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The programs to ask
    #[arg(required = true, value_name = "SOURCE", value_enum)]
    sources: Vec<Source>,

    /// Print the statements, one line of JSON for each change, and do not send them to the daemon
    #[arg(long)]
    dry_run: bool,

    /// Log to standard error instead of the journal
    #[arg(long)]
    foreground: bool,
}

/// Prints statements on standard output.
#[derive(Default)]
struct Printer {
    statements: Option<BTreeSet<Statement>>,
    presence: Option<(Option<Facts>, Option<HibernatesBy>)>,
}

impl StatementReceiver for Printer {
    fn replace(&mut self, statements: &BTreeSet<Statement>) -> Result<()> {
        if self.statements.as_ref() != Some(statements) {
            outln!("{}", serde_json::to_string(statements)?);
            self.statements = Some(statements.clone());
        }
        Ok(())
    }

    fn replace_presence(&mut self, facts: Option<Facts>, hibernates: Option<HibernatesBy>) -> Result<()> {
        // They are printed as they are found.
        let told = (facts.map(|facts| Facts { age: Duration::ZERO, ..facts }), hibernates);
        if self.presence.as_ref() != Some(&told) {
            outln!("{}", serde_json::json!({ "presence": &told.0, "hibernates": told.1 }));
            self.presence = Some(told);
        }
        Ok(())
    }
}

/// Runs the command until a signal ends it.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    logging::start(args.foreground || args.dry_run);
    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT])?;
    let mut receiver: Box<dyn StatementReceiver> = match args.dry_run {
        true => Box::new(Printer::default()),
        false => Box::new(DaemonReceiver::new(paths::socket(root))),
    };
    let (root, mut sources) = (root.to_path_buf(), args.sources.clone());
    sources.sort_unstable();
    sources.dedup();
    let thread = std::thread::Builder::new().name("omr-follow".into());
    thread.spawn(move || follow::follow(&root, &sources, &mut *receiver)).context("start a thread")?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // The process ends with this thread, even if others still wait.
    while signals.read().is_none() {
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}
