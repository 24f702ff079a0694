//! The receiver of a call, the time that an answer may take, and the error that it may be.

use std::fmt;
use std::time::Duration;

/// The longest time from a question to its answer, and from connecting to being let in. systemd
/// answers in milliseconds, unless the machine is in trouble.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The receiver of a call.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The name on the bus.
    pub destination: &'a str,
    /// The path of the object.
    pub path: &'a str,
    /// The interface of the object.
    pub interface: &'a str,
}

/// An error that the other side answered with.
#[derive(Debug)]
pub struct Refused {
    /// The name of the error, such as `org.freedesktop.DBus.Error.UnknownObject`.
    pub name: String,
    /// The words of the other side.
    pub words: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.words {
            Some(words) => write!(f, "{words} ({})", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl std::error::Error for Refused {}
