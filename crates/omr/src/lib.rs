//! `omr`: opportunistic memory reclaim for Linux. This is a library so that the generator of manual
//! pages and completions can read the command line.

#![deny(clippy::indexing_slicing)]

mod bus;
mod cli;
mod commands;
mod follow;
mod mount;
mod watch;

use std::process::ExitCode;

use omr_base::exit::Exit;

pub use cli::command;

/// Runs the program.
pub fn main() -> ExitCode {
    // A closed pipe (`omr status | head`) ends the program quietly, as every Unix tool does.
    // SAFETY: called before any thread exists; SIG_DFL is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(err) => {
            // --help and --version come here, too, and are no failure.
            let code = if err.use_stderr() { Exit::Usage } else { Exit::Done };
            let _ = err.print();
            return code.into();
        }
    };
    match commands::run(cli) {
        Ok(code) => code.into(),
        Err(err) => {
            eprintln!("omr: {err:#}");
            Exit::of(&err).into()
        }
    }
}
