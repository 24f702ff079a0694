//! The companion: a process that has the rights to give memory back, which the daemon does not need
//! to have then (`omr-give-back.socket`). It lives as long as the daemon's connection to it, and
//! keeps the pages of groups for that long.
//!
//! A line of JSON in, a line of JSON out, one request at a time. Anything that comes while a
//! request is carried out, and the end of the connection, ends it. An answer has sums only: no
//! addresses, and nothing of what is in memory.

mod client;
mod service;

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use omr_engine::warm::{End, Report, Use};
use omr_units::{Bytes, GroupId, millis};
use serde::{Deserialize, Serialize};

pub use self::client::Companion;
pub use self::service::serve;

/// The group of the companion, below the mount: the slice of its unit.
pub const GROUP: &str = "system.slice/system-omr.slice";

/// A line is shorter: there is room for the longest path, and for all groups that are remembered.
const LONGEST_LINE: usize = 64 << 10;
/// A line is written within this time.
const WRITE_TIME: Duration = Duration::from_secs(1);

/// What the daemon asks for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Keep which pages of a group are in memory. What is known of another absence is forgotten.
    Remember { absence: u64, id: GroupId, path: PathBuf },
    /// Bring these groups back, and forget all.
    GiveBack { groups: Vec<GroupId> },
}

/// What the companion answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Reply {
    /// The group is known.
    Remembered,
    /// So much was asked for so far; more follows.
    Asked(Bytes),
    /// The end of bringing back.
    GivenBack(Sums),
    /// It was not done, for this reason.
    Error(String),
}

/// The sums of a [`Report`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sums {
    swap: Bytes,
    file: Bytes,
    swapped_in: Bytes,
    cpu_ms: u64,
    wall_ms: u64,
    end: End,
    reason: Option<String>,
}

impl From<Report> for Sums {
    fn from(report: Report) -> Self {
        Sums {
            swap: report.swap,
            file: report.file,
            swapped_in: report.swapped_in,
            cpu_ms: millis(report.cpu),
            wall_ms: millis(report.wall),
            end: report.end,
            reason: report.reason,
        }
    }
}

impl From<Sums> for Report {
    fn from(sums: Sums) -> Self {
        Report {
            swap: sums.swap,
            file: sums.file,
            swapped_in: sums.swapped_in,
            cpu: Duration::from_millis(sums.cpu_ms),
            wall: Duration::from_millis(sums.wall_ms),
            end: sums.end,
            reason: sums.reason,
            ..Report::nothing(Use::Used)
        }
    }
}

/// One end of the connection.
#[derive(Debug)]
struct Lines {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Lines {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIME))?;
        Ok(Lines { stream, input: Vec::new() })
    }

    /// Reads a line. `None`: none came within the read timeout of the stream.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut chunk = [0u8; 1024];
        loop {
            if let Some(end) = self.input.iter().position(|&c| c == b'\n') {
                let mut line: Vec<u8> = self.input.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.input.len() > LONGEST_LINE {
                return Err(io::Error::new(ErrorKind::InvalidData, "a line is too long"));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.input.extend(chunk.iter().take(read)),
                Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
    }

    /// Returns true if more came than the lines that were read.
    fn has_more(&self) -> bool {
        !self.input.is_empty()
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        if line.len() > LONGEST_LINE {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the line would be too long"));
        }
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Ends what the other end does.
    fn write_stop(&mut self) -> io::Result<()> {
        self.stream.write_all(b"\n")
    }
}
