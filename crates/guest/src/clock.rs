//! Clocks in nanoseconds, and spans on the command line.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::thread::{NanosleepRelativeResult, clock_nanosleep_absolute, clock_nanosleep_relative};
use rustix::time::{ClockId, Timespec, clock_gettime};

const NANOS: i64 = 1_000_000_000;

/// `CLOCK_MONOTONIC`, the clock of omr's ledger. It stands still during hibernation.
pub(crate) fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

pub(crate) fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec * NANOS + now.tv_nsec).unwrap_or(0)
}

/// Sleeps until this time of `CLOCK_MONOTONIC`.
pub(crate) fn sleep_until(nanos: u64) {
    let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
    let until = Timespec { tv_sec: nanos / NANOS, tv_nsec: nanos % NANOS };
    // An error is EINTR, for example from a freeze for hibernation: sleep on.
    while clock_nanosleep_absolute(ClockId::Monotonic, &until).is_err() {}
}

pub(crate) fn sleep(span: Duration) {
    let mut left = Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    while let NanosleepRelativeResult::Interrupted(rest) = clock_nanosleep_relative(ClockId::Monotonic, &left) {
        left = rest;
    }
}

/// Parses a span of time: `10ms`, `250us`, `3s`, `2m`.
pub(crate) fn parse_span(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().with_context(|| format!("{text:?} is no span of time"))?;
    Ok(match &text[digits.len()..] {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(60 * number),
        unit => bail!("unknown unit {unit:?} in {text:?}"),
    })
}
