//! `omr advise`: memory limits that groups can live with.

mod args;
mod numa;
mod past;
mod unit;
mod verify;

use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_base::exit::Exit;

pub use self::args::Args;

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    if args.numa {
        return numa::run(root, args);
    }
    match args.verify {
        true => verify::run(root, args, single_group(&args.groups)?),
        false => past::run(root, args),
    }
}

fn single_group(groups: &[PathBuf]) -> Result<&Path> {
    match groups {
        [group] => Ok(group),
        _ => Err(Exit::Usage.error("--verify tries one group; name it")),
    }
}
