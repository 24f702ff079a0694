//! `in GROUP -- COMMAND`: moves this process into the group, and executes the command.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

const CGROUP: &str = "/sys/fs/cgroup";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The cgroup, e.g. bg/job
    group: PathBuf,
    /// Run as this user, without privileges
    #[arg(long)]
    uid: Option<u32>,
    /// The group of that user
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

pub(crate) fn exec(args: &Args) -> Result<ExitCode> {
    enter(&args.group)?;
    let (program, rest) = args.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(uid) = args.uid {
        command.uid(uid).gid(args.gid.unwrap_or(uid));
    }
    Err(command.exec()).with_context(|| program.clone())
}

/// Moves this process into the group.
pub(crate) fn enter(group: &Path) -> Result<()> {
    let directory = directory(group);
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    fs::write(directory.join("cgroup.procs"), "0").with_context(|| directory.display().to_string())
}

/// The directory of a group. `/` is the root.
pub(crate) fn directory(group: &Path) -> PathBuf {
    Path::new(CGROUP).join(group.strip_prefix("/").unwrap_or(group))
}
