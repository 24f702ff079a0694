//! One write to a kernel file, and how soon a signal ends it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::clock;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file
    file: PathBuf,
    /// Text to write, in one write(2)
    text: String,
    /// Send the writer a signal after this time
    #[arg(long, value_parser = clock::parse_span)]
    stop_after: Option<Duration>,
}

/// Prints when the write began and ended, its result, and when the signal was sent, if one was.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(&args.file).with_context(|| args.file.display().to_string())?;
    let stopped = Arc::new(AtomicU64::new(0));
    if let Some(span) = args.stop_after {
        interruptible()?;
        // SAFETY: pthread_self has no preconditions.
        let writer = unsafe { libc::pthread_self() };
        let stopped = Arc::clone(&stopped);
        std::thread::spawn(move || {
            clock::sleep(span);
            stopped.store(clock::monotonic(), Ordering::Relaxed);
            // SAFETY: the main thread lives until the process ends.
            unsafe { libc::pthread_kill(writer, libc::SIGUSR1) };
        });
    }
    let began = clock::monotonic();
    let result = file.write(args.text.as_bytes());
    let ended = clock::monotonic();
    let stopped = Some(stopped.load(Ordering::Relaxed)).filter(|&at| at != 0);
    let (written, error) = match result {
        Ok(bytes) => (bytes, None),
        Err(err) => (0, err.raw_os_error()),
    };
    println!(
        "{}",
        json!({"began_ns": began, "ended_ns": ended, "stopped_ns": stopped, "written": written, "errno": error})
    );
    Ok(())
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Makes SIGUSR1 end a system call instead of the process.
fn interruptible() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction: no flags, so no restart, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the action is initialised. Its handler does nothing, which is safe in a signal
    // handler.
    match unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
