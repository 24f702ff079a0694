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

/// Tells the daemon that processes or groups are in use, or not in use. Made for programs that know
/// this: a compositor, a terminal multiplexer, a script around a game.
///
/// Background memory gets hints once it is unused: it is marked cold after 10 s and paged out after
/// 45 s ([hints] in omr.toml). Foreground processes get no hints from that moment on, and their
/// groups are not reclaimed.
///
/// The statement holds until the process ends, the group is removed, the opposite is stated, or
/// --clear. It does not apply to a later process with the same id. "background" does not change a
/// group or process that a rule, or a built-in one, makes foreground or protected.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Process ids, and control groups (one whose name is a number: ./N)
    #[arg(required = true, value_name = "PID|GROUP")]
    targets: Vec<PathBuf>,

    /// Withdraw the statement
    #[arg(long)]
    clear: bool,
}

/// Runs the command. An error for one target does not keep the others from being stated.
pub fn run(root: &Path, presence: Presence, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let mut exit = Exit::Done;
    for target in &args.targets {
        if let Err(err) = state(root, &kernel, (!args.clear).then_some(presence), target) {
            eprintln!("omr: {err:#}");
            exit = Exit::Failed;
        }
    }
    Ok(exit)
}

fn state(root: &Path, kernel: &Kernel, presence: Option<Presence>, target: &Path) -> Result<()> {
    let of = match processes::pid(target) {
        Some(pid) => Subject::Process(identity(kernel, pid?)?),
        None => Subject::Group(statements::group_name(target)),
    };
    ask(&paths::socket(root), &Request::Say { presence, subject: of })?;
    Ok(())
}

/// Reads the identity here, and not a moment later in the daemon: the user means this process.
fn identity(kernel: &Kernel, pid: u32) -> Result<ProcessId> {
    match Process::open(kernel, pid) {
        Ok(process) => Ok(processes::id(&process)),
        Err(err) if err.is_gone() => Err(processes::no_process(&pid.to_string())),
        Err(err) => Err(err).context("read the process"),
    }
}
