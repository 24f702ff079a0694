//! `omr foreground` and `omr background`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_control::client::ask;
use omr_control::protocol::Request;
use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_machine::{processes, statements};
use omr_policy::rank::ProcessId;
use omr_policy::statement::{Presence, Subject};

/// Tells the daemon which processes or groups somebody works with, or does not. For whoever knows: a compositor, a
/// terminal multiplexer, a script around a game.
///
/// What is in the background is hinted away once it is unused: marked cold after 10 s, paged out after 45 s ([hints]
/// in omr.toml). What is in the foreground is not, from that moment on, and nothing is taken from its group.
///
/// It is true until the process ends or the group is removed, the opposite is said, or --clear. A process is known by
/// when it started as well: another one that gets its id later is not meant. "background" takes nothing away from
/// what a rule, or what is built in, makes foreground or protected.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Process ids, and control groups (one whose name is a number: ./N)
    #[arg(required = true, value_name = "PID|GROUP")]
    targets: Vec<PathBuf>,

    /// Say nothing about them any more
    #[arg(long)]
    clear: bool,
}

/// Says `word` of all that are named; those behind one of which it cannot be said are still told.
pub fn run(root: &Path, word: Presence, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let mut exit = Exit::Done;
    for target in &args.targets {
        if let Err(err) = say(root, &kernel, (!args.clear).then_some(word), target) {
            eprintln!("omr: {err:#}");
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

fn say(root: &Path, kernel: &Kernel, word: Option<Presence>, target: &Path) -> Result<()> {
    let of = match processes::pid(target) {
        Some(pid) => Subject::Process(identity(kernel, pid?)?),
        None => Subject::Group(statements::group_name(target)),
    };
    ask(&paths::socket(root), &Request::Say { presence: word, subject: of })?;
    Ok(())
}

/// Read here, and not by the daemon a moment later: the process that the user has seen.
fn identity(kernel: &Kernel, pid: u32) -> Result<ProcessId> {
    match Process::open(kernel, pid) {
        Ok(process) => Ok(processes::id(&process)),
        Err(err) if err.is_gone() => Err(processes::no_process(&pid.to_string())),
        Err(err) => Err(err).context("look at the process"),
    }
}
