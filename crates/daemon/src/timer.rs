//! A timer as a descriptor to wait for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
