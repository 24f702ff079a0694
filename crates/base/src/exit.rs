//! Exit codes, the same for every command.

use std::fmt;
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// Failed.
    Failed,
    /// Wrong words on the command line or in a configuration file.
    Usage,
    /// This kernel or machine cannot do it.
    Unsupported,
    /// Less was done than asked: interrupted, timed out, or nothing more to be had.
    Partial,
    /// `omr run`: what the command ended with, or 125 and more where it did not even start.
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
    /// The code.
    pub exit: Exit,
    /// What is printed.
    pub message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

impl Exit {
    /// An error with this exit code.
    pub fn error(self, message: impl Into<String>) -> anyhow::Error {
        Coded { exit: self, message: message.into() }.into()
    }

    /// The code for an error: its own, or 3 where the kernel lacks cgroup v2, or 1.
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
