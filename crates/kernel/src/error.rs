use std::io;
use std::path::{Path, PathBuf};

/// True if the machine had no descriptor or no memory for the call, or a signal ended it: that says
/// nothing about the file.
pub fn is_passing(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR))
}

/// A failed access to a kernel interface, with the absolute path and what was read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening or reading failed.
    #[error("read {}: {err}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        err: io::Error,
    },
    /// Writing failed in a way that is not an `omr_actuate::Outcome`.
    #[error("write \"{}\" to {}: {err}", data.escape_debug(), path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The text that was not written.
        data: String,
        /// The kernel's error.
        err: io::Error,
    },
    /// A cgroup could not be made.
    #[error("make {}: {err}", path.display())]
    Make {
        /// The group's directory.
        path: PathBuf,
        /// The kernel's error.
        err: io::Error,
    },
    /// The text is not in a form that this program knows.
    #[error("{}: {what}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The text that was found, and the form that was expected.
        what: String,
    },
    /// There is no cgroup v2 hierarchy where one is needed.
    #[error("{} is not a cgroup v2 mount: {why}", path.display())]
    NoCgroup2 {
        /// The directory where a mount was expected.
        path: PathBuf,
        /// The reason, and what to do about it.
        why: &'static str,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn read(path: impl AsRef<Path>, err: impl Into<io::Error>) -> Self {
        Error::Read { path: path.as_ref().into(), err: err.into() }
    }

    pub(crate) fn parse(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Parse { path: path.as_ref().into(), what: what.into() }
    }

    /// True if the file, group or process does not exist, or no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            // ENODEV: a cgroup file kept open whose group was removed. ESRCH: a process that
            // exited.
            Error::Read { err, .. } | Error::Write { err, .. } => {
                matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH))
            }
            _ => false,
        }
    }

    /// True if the error says nothing about the file, and a later attempt may succeed. See
    /// [`is_passing`].
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Read { err, .. } | Error::Write { err, .. } if is_passing(err))
    }

    /// True if who asked for it wanted no more (`ECANCELED`).
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Read { err, .. } if err.raw_os_error() == Some(libc::ECANCELED))
    }

    /// True if another process holds the interface (`EBUSY`); a later attempt may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Read { err, .. } | Error::Write { err, .. } if err.raw_os_error() == Some(libc::EBUSY))
    }

    /// True if this process lacks the permission (`EACCES`, `EPERM`, `EROFS`).
    pub fn is_denied(&self) -> bool {
        match self {
            Error::Read { err, .. } | Error::Write { err, .. } | Error::Make { err, .. } => {
                matches!(err.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
            }
            _ => false,
        }
    }
}
