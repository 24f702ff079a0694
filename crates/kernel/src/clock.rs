//! The clocks: `CLOCK_MONOTONIC` for intervals, `CLOCK_BOOTTIME` beside it to notice sleep, the
//! wall clock for what people read.

use std::time::Duration;

use omr_units::Monotonic;
use rustix::time::{ClockId, Timespec, clock_gettime};

fn nanos(t: Timespec) -> u64 {
    u64::try_from(i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)).unwrap_or(0)
}

/// The current moment.
pub fn read_monotonic() -> Monotonic {
    Monotonic(nanos(clock_gettime(ClockId::Monotonic)))
}

/// How long the machine has been asleep since boot. It grows across suspend and hibernation.
pub fn read_asleep() -> Duration {
    let boot = nanos(clock_gettime(ClockId::Boottime));
    Duration::from_nanos(boot.saturating_sub(read_monotonic().0))
}

/// CPU time of this process, all threads, since its start.
pub fn read_own_cpu() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ProcessCPUTime)))
}

/// CPU time of the calling thread since its start.
pub fn read_thread_cpu() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Seconds since 1970; may jump when somebody sets the clock.
pub fn read_wall() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::Realtime)))
}
