//! Exit codes, the same for every command.

use std::fmt;
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// Wrong words on the command line or in a configuration file.
    Usage = 2,
    /// This kernel or machine cannot do it.
    Unsupported = 3,
    /// Less was done than asked: interrupted, timed out, or nothing more to be had.
    Partial = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
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
