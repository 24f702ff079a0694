//! Waiting for the disk: for dirty page cache, and for memory on its way to swap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use omr_base::cancel::Flag;
use omr_kernel::clock;
use omr_policy::pace::WRITEBACK_OVER;
use omr_units::Bytes;

/// Dirty page cache below this is not worth a sync.
pub const DIRTY: Bytes = Bytes::mib(1);
/// The longest wait for a sync; page cache that is dirty after that stays.
const SYNC_TIME: Duration = Duration::from_secs(30);

/// The limits of a wait for writeback.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest wait.
    pub longest: Duration,
    /// Writeback that does not fall for this long is of other programs, and ends the wait.
    pub patience: Duration,
}

/// Waits until `read`, which says how much is on its way to the disk, is down to little. False when
/// the limits or the flag ended the wait before.
pub fn wait(cancel: &Flag, limits: Limits, mut read: impl FnMut() -> Result<Bytes>) -> Result<bool> {
    let began = clock::read_monotonic();
    let (mut lowest, mut fell) = (Bytes::MAX, began);
    loop {
        let writeback = read()?;
        if writeback <= WRITEBACK_OVER {
            return Ok(true);
        }
        let now = clock::read_monotonic();
        if writeback < lowest {
            (lowest, fell) = (writeback, now);
        }
        if now.since(fell) >= limits.patience || now.since(began) >= limits.longest || cancel.is_set() {
            return Ok(false);
        }
        cancel.sleep(Duration::from_millis((writeback.0 / 250_000).clamp(2, 50)));
    }
}

/// Writes out dirty page cache, which reclaim passes over, and waits while `is_dirty`. Nothing
/// interrupts sync(2), so it runs in a thread of its own, which is left behind when the run must
/// end before it is done.
pub fn flush(cancel: &Flag, mut is_dirty: impl FnMut() -> bool) {
    // A sync that hangs, on a dead network file system, is not joined by another with each job.
    static RUNNING: AtomicBool = AtomicBool::new(false);
    if RUNNING.swap(true, Ordering::AcqRel) {
        return;
    }
    let thread = std::thread::Builder::new().name("omr-sync".into()).stack_size(64 << 10).spawn(|| {
        rustix::fs::sync();
        RUNNING.store(false, Ordering::Release);
    });
    if let Err(err) = thread {
        RUNNING.store(false, Ordering::Release);
        log::warn!("no thread for a sync, dirty page cache stays: {err}");
        return;
    }
    let began = clock::read_monotonic();
    while RUNNING.load(Ordering::Acquire)
        && !cancel.is_set()
        && clock::read_monotonic().since(began) < SYNC_TIME
        && is_dirty()
    {
        cancel.sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_ends_although_writeback_falls() {
        let clocks = crate::stand_in::stop_clocks();
        let limits = Limits { longest: Duration::from_secs(3), patience: Duration::from_secs(1) };
        let mut left = Bytes::mib(900);
        let falling = wait(&Flag::default(), limits, || {
            left = left - Bytes::mib(1);
            Ok(left)
        });
        assert!(!falling.expect("no error"));
        assert_eq!(clocks.passed(), Duration::from_secs(3));
        assert!(!wait(&Flag::default(), limits, || Ok(Bytes::mib(9))).expect("no error"));
        let waited = clocks.passed();
        assert!(waited >= Duration::from_secs(4) && waited < Duration::from_millis(4050), "{waited:?}");
    }

    #[test]
    fn a_sync_is_waited_for_while_much_is_dirty_and_none_is_begun_beside_another() {
        let mut looks = 0;
        flush(&Flag::default(), || {
            looks += 1;
            false
        });
        assert!(looks <= 1);
        let set = Flag::default();
        set.set();
        flush(&set, || unreachable!("a run that is cancelled does not look"));
    }

    #[test]
    fn the_wait_ends_when_little_is_left_or_nothing_falls_any_more() {
        let limits = Limits { longest: Duration::from_secs(60), patience: Duration::from_millis(20) };
        let wait_for = |cancel: &Flag, mut amounts: Vec<Bytes>| {
            let mut reads = 0;
            let read = || {
                reads += 1;
                Ok(if amounts.len() > 1 { amounts.remove(0) } else { amounts[0] })
            };
            (wait(cancel, limits, read).expect("no error"), reads)
        };
        let (large, little) = (Bytes::mib(2), WRITEBACK_OVER);
        assert_eq!(wait_for(&Flag::default(), vec![little]), (true, 1));
        assert_eq!(wait_for(&Flag::default(), vec![large, Bytes::mib(1), little]), (true, 3));
        assert!(!wait_for(&Flag::default(), vec![large]).0, "other programs write");
        let cancelled = Flag::default();
        cancelled.set();
        assert_eq!(wait_for(&cancelled, vec![large]), (false, 1));
        assert!(wait(&Flag::default(), limits, || anyhow::bail!("no Writeback")).is_err());
    }
}
