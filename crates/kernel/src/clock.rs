//! Clocks, by `clock_gettime(2)`: `CLOCK_MONOTONIC` for intervals, `CLOCK_BOOTTIME` (Linux 2.6.39)
//! to detect sleep, the wall clock for people, and CPU time. Unit: nanoseconds. Source:
//! kernel/time.

use std::time::Duration;

use omr_units::Monotonic;
use rustix::time::{ClockId, Timespec, clock_gettime};

#[cfg(feature = "simulation")]
pub mod simulated;

fn nanos(t: Timespec) -> u64 {
    u64::try_from(i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)).unwrap_or(0)
}

/// The current time of `CLOCK_MONOTONIC`. The clock stands still while the machine sleeps.
pub fn read_monotonic() -> Monotonic {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.monotonic();
    }
    Monotonic(nanos(clock_gettime(ClockId::Monotonic)))
}

/// The time that the machine has spent asleep since boot: suspended or hibernated.
pub fn read_asleep() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.asleep();
    }
    let boot = nanos(clock_gettime(ClockId::Boottime));
    Duration::from_nanos(boot.saturating_sub(read_monotonic().0))
}

/// CPU time of this process since its start, all threads together.
pub fn read_own_cpu() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.own_cpu();
    }
    Duration::from_nanos(nanos(clock_gettime(ClockId::ProcessCPUTime)))
}

/// CPU time of the calling thread since its start.
pub fn read_thread_cpu() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.thread_cpu();
    }
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Time since 1970. It jumps when the clock is set.
pub fn read_wall() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.wall();
    }
    Duration::from_nanos(nanos(clock_gettime(ClockId::Realtime)))
}

/// Lets the calling thread sleep. A signal does not end it early.
pub fn sleep(time: Duration) {
    #[cfg(feature = "simulation")]
    if let Some(clock) = simulated::clock() {
        return clock.sleep(time);
    }
    std::thread::sleep(time);
}

/// Returns true if the calling thread is in a simulation, where no time passes by itself.
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    return simulated::clock().is_some();
    #[cfg(not(feature = "simulation"))]
    false
}

/// The clocks that [`Kernel::clock`](crate::Kernel) gives: those of this machine, or those of a
/// test.
pub trait Clock: std::fmt::Debug + Send + Sync {
    /// See [`read_monotonic`].
    fn monotonic(&self) -> Monotonic;
    /// See [`read_wall`].
    fn wall(&self) -> Duration;
    /// See [`read_asleep`].
    fn asleep(&self) -> Duration;
    /// See [`read_own_cpu`].
    fn own_cpu(&self) -> Duration;
    /// See [`read_thread_cpu`].
    fn thread_cpu(&self) -> Duration;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Monotonic {
        read_monotonic()
    }

    fn wall(&self) -> Duration {
        read_wall()
    }

    fn asleep(&self) -> Duration {
        read_asleep()
    }

    fn own_cpu(&self) -> Duration {
        read_own_cpu()
    }

    fn thread_cpu(&self) -> Duration {
        read_thread_cpu()
    }
}
