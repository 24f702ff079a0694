//! The client's end of the control socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::protocol::{Answer, PATIENCE, Request};

/// Sends one request to the daemon; for the command line.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value> {
    Link::open(path)?.ask(request)
}

/// A connection to the daemon that is kept.
#[derive(Debug)]
pub struct Link(UnixStream);

impl Link {
    /// Connects to the daemon.
    pub fn open(path: &Path) -> Result<Link> {
        let stream = connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Link(stream))
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<serde_json::Value> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.0.write_all(&line).context("ask the daemon")?;
        let mut reply = Vec::new();
        let mut chunk = [0u8; 16 << 10];
        while !reply.ends_with(b"\n") {
            match self.0.read(&mut chunk).context("no answer from the daemon")? {
                0 => bail!("the daemon closed the connection without an answer"),
                n => reply.extend(chunk.iter().take(n)),
            }
        }
        match serde_json::from_slice(&reply).context("the daemon's answer")? {
            Answer::Ok(value) => Ok(value),
            Answer::Error(error) => bail!("{error}"),
        }
    }
}

fn connect(path: &Path) -> Result<UnixStream> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("the daemon is not running (no answer on {}); systemctl start omr", path.display())
        }
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{}: permission denied; only root and members of the group omr may ask", path.display())
        }
        Err(err) => return Err(err).with_context(|| format!("connect to {}", path.display())),
    };
    Ok(stream)
}
