//! Exit codes, the same for every command.

use std::fmt;
use std::process::ExitCode;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did all that was asked.
    Done,
    /// The command failed.
    Failed,
    /// The command line or a configuration file has a mistake.
    Usage,
    /// This kernel or machine cannot do what was asked.
    Unsupported,
    /// Less was done than asked: interrupted, timed out, or no more memory could be reclaimed.
    Partial,
    /// The exit code of the command that `omr run` started; 125 and more: it did not start.
    Command(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unsupported => 3,
            Exit::Partial => 4,
            Exit::Command(code) => code,
        })
    }
}

/// An error that ends with an exit code other than 1.
#[derive(Debug)]
pub struct Coded {
    /// The exit code.
    pub exit: Exit,
    /// The text that is printed.
    pub message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

impl Exit {
    /// Makes an error that ends the program with this exit code.
    pub fn error(self, message: impl Into<String>) -> anyhow::Error {
        Coded { exit: self, message: message.into() }.into()
    }

    /// Returns the code for an error: its own, 3 if the kernel lacks cgroup v2, or 1.
    pub fn of(err: &anyhow::Error) -> Exit {
        for cause in err.chain() {
            if let Some(coded) = cause.downcast_ref::<Coded>() {
                return coded.exit;
            }
            if let Some(omr_kernel::Error::NoCgroup2 { .. }) = cause.downcast_ref() {
                return Exit::Unsupported;
            }
        }
        Exit::Failed
    }
}
