//! `omr`: opportunistic memory reclaim for Linux. The program is `main`; a library so that what is
//! generated from the command line (manual pages, completions) needs no part in it.

mod age;
mod attributes;
mod backend;
mod bus;
mod candidates;
mod classes;
mod cli;
mod commands;
mod config;
mod cpu;
mod daemon;
mod disk_rate;
mod exit;
mod follow;
mod handback;
mod hint;
mod history;
mod image;
mod image_size;
mod limits;
mod lint;
mod logging;
mod mount;
mod paths;
mod prepare;
mod processes;
mod reclaim;
mod said;
mod signal_fd;
mod signals;
mod snapshot;
#[cfg(test)]
mod stand_in;
mod stop;
mod storage;
mod text;
mod tree;
mod trial;
mod warm;
mod watch;
mod when;
mod zram;

use std::process::ExitCode;

pub use cli::command;

/// The program.
pub fn main() -> ExitCode {
    // A closed pipe (`omr status | head`) ends the program quietly, as every Unix tool does.
    // SAFETY: called before any thread exists; SIG_DFL is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(err) => {
            // --help and --version come here too, and are no failure.
            let code = if err.use_stderr() { exit::Exit::Usage } else { exit::Exit::Done };
            let _ = err.print();
            return code.into();
        }
    };
    match commands::run(cli) {
        Ok(code) => code.into(),
        Err(err) => {
            eprintln!("omr: {err:#}");
            exit::Exit::of(&err).into()
        }
    }
}
