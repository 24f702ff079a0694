//! Tells omr's daemon of a person with a session, who leaves and comes back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::signals::Signals;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket of omr's daemon
    #[arg(long, default_value = "/run/omr/omr.sock")]
    socket: PathBuf,
}

/// The daemon forgets what it was told half a minute ago.
const AGAIN: Duration = Duration::from_secs(2);

/// Each SIGUSR1 makes the person leave, or come back, and prints `{"present": BOOL}`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let signals = Signals::block(&[libc::SIGUSR1, libc::SIGTERM])?;
    let mut stream = UnixStream::connect(&args.socket).with_context(|| args.socket.display().to_string())?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut left: Option<Instant> = None;
    loop {
        let idle = left.map_or(0, |left| left.elapsed().as_secs());
        let facts = json!({
            "age": {"secs": 0, "nanos": 0}, "inhibited": false,
            "local": {"active": 1, "idle": {"secs": idle, "nanos": 0}}, "remote": {"active": 0, "idle": null},
        });
        writeln!(stream, "{}", json!({"do": "presence", "facts": facts}))?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        anyhow::ensure!(answer.trim() == r#"{"ok":true}"#, "{answer}");
        match signals.wait(Some(AGAIN))? {
            Some(libc::SIGUSR1) => {
                left = if left.is_some() { None } else { Some(Instant::now()) };
                println!("{}", json!({"present": left.is_none()}));
            }
            Some(_) => return Ok(()),
            None => {}
        }
    }
}
