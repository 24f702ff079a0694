//! One module for each command.

pub mod config;
pub mod doctor;

use anyhow::Result;

use crate::cli::{Cli, Command};
use crate::exit::Exit;

/// Runs the command.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Doctor(args) => doctor::run(&cli.root, &args),
        Command::Config(args) => config::run(&cli.root, &args),
    }
}
