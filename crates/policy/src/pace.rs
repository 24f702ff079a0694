//! How one group is reclaimed: small writes, a pause until what went to disk has arrived there, and
//! an end when nothing comes of it.
//!
//! Why small: nothing stops the kernel inside a write (`memory.reclaim` looks for signals between
//! batches only), and removing a group waits for the write that is running in it. Why pauses: pages
//! on their way to disk do not count as reclaimed, so one large write sends out everything it finds
//! (a request of 64 MiB wrote 220 MiB to a 20 MB/s disk).

use core::time::Duration;

use omr_units::Bytes;
use serde::{Deserialize, Serialize};

use crate::signals::End;

/// 32 pages of 4 KiB, the kernel's `SWAP_CLUSTER_MAX`: it does not work in smaller portions.
pub const SMALLEST_STEP: Bytes = Bytes::kib(128);
/// The first write, before anything is known of how long one takes.
const FIRST_STEP: Bytes = Bytes::mib(1);
/// Writeback below this is over: other programs always write a little, and the counter is a few
/// pages per CPU behind.
const WRITEBACK_OVER: Bytes = Bytes::kib(256);
/// Somebody else keeps the disk busy: go on in spite of it, at this slow beat.
const WRITEBACK_PATIENCE: Duration = Duration::from_secs(2);
/// Writes in a row that free nothing. The kernel itself gives up after 16 rounds in each.
const FUTILE_WRITES: u32 = 6;

/// What is asked of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Free this much.
    pub amount: Bytes,
    /// Never take the group below this.
    pub floor: Bytes,
    /// Swap that must stay free.
    pub swap_floor: Bytes,
    /// May be written to swap on disk.
    pub swap_writes: Bytes,
    /// Whether the kernel can be told to take file memory only.
    pub file_only: bool,
    /// The largest step.
    pub step: Bytes,
    /// How long one write may take.
    pub write_time: Duration,
}

/// What there is to see between two writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Charged to the group.
    pub current: Bytes,
    /// Of it, swapped out but not freed yet.
    pub swapcached: Bytes,
    /// Under writeback on the whole machine.
    pub writeback: Bytes,
    /// Free swap; `None` where there is no swap at all.
    pub swap_free: Option<Bytes>,
    /// Written to swap on disk by this job so far.
    pub swap_written: Bytes,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Ask the kernel for this much.
    Write {
        /// How much.
        bytes: Bytes,
        /// Take nothing that would go to swap.
        file_only: bool,
    },
    /// Look again after this time.
    Wait(Duration),
    /// It is over.
    End(End),
}

/// The pace of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    job: Job,
    step: Bytes,
    freed: Bytes,
    futile: u32,
    waited: Duration,
    file_only: bool,
}

impl Pace {
    /// Begins a job.
    pub fn new(job: Job) -> Self {
        let step = FIRST_STEP.min(job.step).max(SMALLEST_STEP);
        Pace { job, step, freed: Bytes::ZERO, futile: 0, waited: Duration::ZERO, file_only: false }
    }

    /// Freed so far.
    pub fn freed(&self) -> Bytes {
        self.freed
    }

    /// What to do now.
    pub fn next(&mut self, seen: &Seen) -> Next {
        let left = self.job.amount - self.freed;
        if left.0 == 0 {
            return Next::End(End::Complete);
        }
        let above_floor = seen.current - self.job.floor;
        if above_floor < SMALLEST_STEP && self.job.floor.0 > 0 || above_floor.0 == 0 {
            return Next::End(End::Floor);
        }
        if self.futile >= FUTILE_WRITES {
            return Next::End(if self.file_only { self.why_file_only(seen) } else { End::Futile });
        }
        if seen.writeback > WRITEBACK_OVER && self.waited < WRITEBACK_PATIENCE {
            // A tenth of what a 25 MB/s disk needs for the rest, so that the disk never runs dry
            // for long and the machine is not woken a thousand times a second.
            let wait = Duration::from_millis((seen.writeback.0 / 250_000).clamp(2, 50));
            self.waited += wait;
            return Next::Wait(wait);
        }
        self.waited = Duration::ZERO;
        let mut bytes = self.step.min(left).min(above_floor);
        // What is swapped out but not freed comes first. Once that covers the rest, small writes
        // collect it without sending out more.
        if seen.swapcached >= left {
            bytes = bytes.min(FIRST_STEP);
        }
        let swap_room = seen.swap_free.unwrap_or_default() - self.job.swap_floor;
        let writes_left = self.job.swap_writes - seen.swap_written;
        self.file_only = swap_room < bytes || writes_left < bytes;
        if self.file_only && !self.job.file_only && seen.swap_free.is_some() {
            return Next::End(self.why_file_only(seen));
        }
        // Without any swap the kernel leaves anonymous memory alone by itself.
        Next::Write { bytes: bytes.max(SMALLEST_STEP), file_only: self.file_only && self.job.file_only }
    }

    fn why_file_only(&self, seen: &Seen) -> End {
        match seen.swap_free {
            None => End::Futile,
            Some(free) if free - self.job.swap_floor < self.step => End::SwapFloor,
            Some(_) => End::WriteBudget,
        }
    }

    /// Takes in what a write brought: the group's size fell by `freed`, the write took `took`.
    /// `in_flight` tells whether pages went out that will only be freed later.
    pub fn wrote(&mut self, freed: Bytes, took: Duration, in_flight: bool) {
        self.freed += freed;
        if freed.0 > 0 || in_flight {
            self.futile = 0;
        } else {
            self.futile += 1;
        }
        if took > self.job.write_time {
            // Straight to a size that would have taken half the time allowed.
            let fit = u128::from(self.step.0) * self.job.write_time.as_nanos() / (2 * took.as_nanos()).max(1);
            self.step = Bytes(u64::try_from(fit).unwrap_or(u64::MAX)).max(SMALLEST_STEP);
        } else if took < self.job.write_time / 4 {
            self.step = Bytes(self.step.0.saturating_mul(2)).min(self.job.step);
        }
    }
}
