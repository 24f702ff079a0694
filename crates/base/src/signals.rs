//! Signals as a descriptor to wait for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// Blocked signals that are read from a descriptor.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks the signals in this thread and in all threads that it starts later.
    pub fn block(signals: &[libc::c_int]) -> Result<Self> {
        // SAFETY: the set is a local that the calls fill in and read; signalfd returns a descriptor
        // that nobody else owns, or -1.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for &signal in signals {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("signalfd");
        }
        // SAFETY: signalfd returned it just now.
        Ok(SignalFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the next signal, or `None` if no signal is pending.
    pub fn read(&self) -> Option<libc::c_int> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            // The number is the first field, 32 bits.
            Ok(read) if read == info.len() => {
                let number = [info[0], info[1], info[2], info[3]];
                Some(libc::c_int::from_ne_bytes(number))
            }
            _ => None,
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SignalFd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}
