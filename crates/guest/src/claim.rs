//! A user's program that tells omr's daemon what is in the foreground, as `omr follow` does in a
//! session.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The group that is in the foreground, below the mount
    group: PathBuf,
    /// Socket of omr's daemon
    #[arg(long, default_value = "/run/omr/omr.sock")]
    socket: PathBuf,
}

/// A client that is silent for 10 s is dropped.
const AGAIN: Duration = Duration::from_secs(2);

/// Says it again every 2 s over one connection, until SIGTERM, and prints `{"claimed": TIMES}` each
/// time. Fails if the daemon refuses it, or closes the connection.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM])?;
    let mut stream = UnixStream::connect(&args.socket).with_context(|| args.socket.display().to_string())?;
    let mut answers = BufReader::new(stream.try_clone()?);
    for times in 1_u64.. {
        let statements = [json!({"word": "foreground", "of": {"group": args.group}})];
        writeln!(stream, "{}", json!({"do": "hold", "statements": statements}))?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        anyhow::ensure!(answer.trim() == r#"{"ok":0}"#, "{answer:?}");
        println!("{}", json!({"claimed": times}));
        if signals.wait(Some(AGAIN))?.is_some() {
            break;
        }
    }
    Ok(())
}
