//! A timer and signals, as descriptors to wait for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A periodic timer.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, flags).context("timerfd_create")?))
    }

    /// Readable each time this passes.
    pub fn every(&self, period: Duration) -> Result<()> {
        self.set(period)
    }

    /// Never readable again.
    pub fn stop(&self) -> Result<()> {
        self.set(Duration::ZERO)
    }

    /// Takes note that it was readable.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }

    fn set(&self, period: Duration) -> Result<()> {
        let time = Timespec { tv_sec: i64::try_from(period.as_secs())?, tv_nsec: period.subsec_nanos().into() };
        let spec = Itimerspec { it_interval: time, it_value: time };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec).context("timerfd_settime")?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Signals, to read instead of being interrupted.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks the signals in this thread and those it will start.
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

    /// The next signal.
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
