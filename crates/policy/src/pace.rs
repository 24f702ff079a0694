//! The pace of one job: how much each write to the kernel asks for, how long to wait for the disk
//! between two writes, and when the job ends.
//!
//! A [`Pace`] decides from samples of the group, swap and writeback; the engine writes to
//! `memory.reclaim` and reports how long that took.
//!
//! Writes are small because nothing stops the kernel inside a write (`memory.reclaim` looks for
//! signals between batches only), and because removing a group waits for the write that is running
//! in it. The pauses are there because pages on their way to disk do not count as reclaimed, so one
//! large write sends out everything it finds: a request of 64 MiB wrote 220 MiB to a 20 MB/s disk.

use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::config::Sweep;
use crate::signals::End;

/// 32 pages of 4 KiB, the kernel's `SWAP_CLUSTER_MAX`: the kernel does not reclaim smaller
/// portions.
pub const SMALLEST_STEP: Bytes = Bytes::kib(128);
/// The size of the first write, while it is unknown how long a write takes.
const FIRST_STEP: Bytes = Bytes::mib(1);
/// Writeback down to this amount counts as done: other programs always write a little, and the
/// counter is a few pages per CPU behind.
pub const WRITEBACK_OVER: Bytes = Bytes::kib(256);
/// Writeback that does not fall for this long belongs to other programs: the job goes on all the
/// same, with pauses of this length.
const WRITEBACK_PATIENCE: Duration = Duration::from_secs(2);
/// Writeback counts as falling when it is lower by this much.
const WRITEBACK_FALL: Bytes = Bytes::kib(64);
/// The longest pause between two writes, even while writeback falls.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A write that frees less than a 16th of the amount it asked for is in vain: the kernel went
/// through many pages for each page that it freed.
const IN_VAIN: u64 = 16;
/// Six writes in vain end a job; the kernel itself gives up after 16 rounds in each write. A useful
/// write makes up for one write in vain. A write that only sent pages to the disk counts as a
/// quarter of a write in vain: those pages should have arrived, and can be freed, at the next
/// write.
const FUTILE: u32 = 6 * VAIN;
const VAIN: u32 = 4;
const VAIN_UNFINISHED: u32 = 1;
/// A write in vain in which the kernel looked at less than this got nowhere.
const PASSED: Bytes = Bytes::mib(1);
/// One write may send up to this many times the amount it asks for to swap on disk (measured: 1.2
/// times for 1 MiB, 1.5 times for 4 MiB, all of the group for 64 MiB).
const OVERSHOOT: u64 = 4;
/// A job may send a quarter more to swap than it should free; this much more where a quarter is
/// less.
const LEAST_EXCESS: Bytes = Bytes::mib(4);

/// No write asks for more than the disk takes in this time. A write ends only between two of the
/// kernel's batches, and a batch that meets a full disk queue lasts until the disk has taken it.
/// Together with the 40 ms until work is noticed, 60 ms stay within the 100 ms in which a sweep
/// must stop. (Writes of 4 MiB to a 12.5 MB/s disk took 123 ms.)
const DISK_TIME: Duration = Duration::from_millis(60);
/// Less than this, sent to the disk, says nothing about its speed: the job does not wait for
/// writeback below [`WRITEBACK_OVER`].
const TELLING: Bytes = Bytes::kib(512);

/// A request to reclaim from one group, with its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The amount to free.
    pub amount: Bytes,
    /// The size below which the group must not be reclaimed.
    pub floor: Bytes,
    /// Swap that must stay free.
    pub swap_floor: Bytes,
    /// Bytes that may be written to swap on disk.
    pub swap_writes: Bytes,
    /// True if the kernel can reclaim page cache only.
    pub file_only: bool,
    /// Whether the kernel is told to reclaim anonymous and shared memory first.
    #[serde(default)]
    pub anon_first: bool,
    /// The most that one write may ask for.
    pub step: Bytes,
    /// The time that one write should take at most.
    pub write_time: Duration,
}

impl Job {
    /// A job at the configured pace that frees `amount`. Its only limit is the amount: the floors
    /// are zero, swap writes are unlimited, and the kernel reclaims any kind of memory.
    pub fn new(config: &Sweep, amount: Bytes) -> Self {
        Job {
            amount,
            floor: Bytes::ZERO,
            swap_floor: Bytes::ZERO,
            swap_writes: Bytes::MAX,
            file_only: false,
            anon_first: false,
            step: config.step,
            write_time: config.write_time,
        }
    }
}

/// The group and the machine between two writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceSample {
    /// When the sample was taken.
    pub at: Monotonic,
    /// Memory charged to the group.
    pub current: Bytes,
    /// The part of it that is in swap already but not freed yet.
    pub swapcached: Bytes,
    /// Memory under writeback on the whole machine. Zero where no swap is on disk: the job does not
    /// wait for what other programs write.
    pub writeback: Bytes,
    /// Free swap; `None`: there is no swap.
    pub swap_free: Option<Bytes>,
    /// Bytes that this job has written to swap on disk so far.
    pub swap_written: Bytes,
}

/// The next step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Write to `memory.reclaim`.
    Write {
        /// The amount to ask for.
        bytes: Bytes,
        /// Reclaim nothing that would go to swap.
        file_only: bool,
    },
    /// Wait for this time and take another sample.
    Wait(Duration),
    /// The job is over.
    End(End),
}

/// The pace of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    job: Job,
    step: Bytes,
    /// Up to this size the step doubles; above, where a write has once taken too long, it grows
    /// slowly.
    known_good: Bytes,
    /// The amount that the disk writes in [`DISK_TIME`].
    disk: Bytes,
    /// The sample before the last write.
    before: PaceSample,
    /// The amount that the last write asked for.
    asked: Bytes,
    freed: Bytes,
    /// The amount that was moved to slower nodes so far.
    demoted: Bytes,
    /// The amount that the kernel looked at in writes in vain.
    passed: Bytes,
    /// The size of the group at the first sample; `None`: there was none yet.
    size: Option<Bytes>,
    /// There was swap at some sample.
    had_swap: bool,
    /// Writes in vain, in units of `1 / VAIN`.
    futile: u32,
    /// The time that the job has waited since the last write.
    paused: Duration,
    /// The time that the job has waited since writeback last fell.
    stuck: Duration,
    /// The lowest writeback since the last write.
    lowest: Bytes,
    /// Why nothing more may go to swap; `None`: it may.
    file_only: Option<End>,
}

impl Pace {
    /// The pace of a job that begins.
    pub fn new(job: Job) -> Self {
        let step = FIRST_STEP.min(job.step).max(SMALLEST_STEP);
        Pace {
            known_good: job.step,
            job,
            step,
            disk: Bytes::MAX,
            before: PaceSample { swap_written: Bytes::MAX, ..PaceSample::default() },
            asked: Bytes::ZERO,
            freed: Bytes::ZERO,
            demoted: Bytes::ZERO,
            passed: Bytes::ZERO,
            size: None,
            had_swap: false,
            futile: 0,
            paused: Duration::ZERO,
            stuck: Duration::ZERO,
            lowest: Bytes::MAX,
            file_only: None,
        }
    }

    /// The amount that was freed so far.
    pub fn freed(&self) -> Bytes {
        self.freed
    }

    /// The next step, from a new sample.
    pub fn next(&mut self, seen: &PaceSample) -> Next {
        self.size.get_or_insert(seen.current);
        self.had_swap |= seen.swap_free.is_some();
        let left = self.job.amount - self.freed;
        if left.0 == 0 {
            return Next::End(End::Complete);
        }
        let above_floor = seen.current - self.job.floor;
        if above_floor < SMALLEST_STEP && self.job.floor.0 > 0 || above_floor.0 == 0 {
            return Next::End(End::Floor);
        }
        if self.futile >= FUTILE {
            return Next::End(self.file_only.unwrap_or(End::Futile));
        }
        if let Some(pause) = self.pause(seen.writeback) {
            return Next::Wait(pause);
        }
        self.learn_disk(seen);
        // Linux 6.1 frees up to twice the amount: half of the distance to the floor may be all of
        // it.
        let above_floor = if self.job.floor.0 > 0 { Bytes(above_floor.0 / 2) } else { above_floor };
        // Pages that are in swap but not freed come first. Towards the end the rest is sent out in
        // smaller portions, so that few pages are sent out and not freed.
        let unsent = Bytes((left - seen.swapcached).0 / OVERSHOOT).max(FIRST_STEP);
        let bytes = self.step.min(self.disk).min(left).min(above_floor).min(unsent);
        let (room, limit) = self.swap_room(seen, left);
        self.file_only = (room < SMALLEST_STEP).then_some(limit);
        let bytes = match self.file_only {
            None => bytes.min(room),
            // Without any swap the kernel never reclaims anonymous memory. Where swap was taken
            // away the job may have been for nothing else.
            Some(_) if self.job.file_only || !self.had_swap => bytes,
            Some(end) => return Next::End(end),
        };
        self.asked = bytes.max(SMALLEST_STEP);
        self.before = *seen;
        Next::Write { bytes: self.asked, file_only: self.file_only.is_some() && self.job.file_only }
    }

    /// Learns the speed of the disk, now that the pages of the last write have arrived there. If
    /// there were too few of them to tell, as after the disk was slow once, each write tries a
    /// little more.
    fn learn_disk(&mut self, seen: &PaceSample) {
        let (sent, time) = (seen.swap_written - self.before.swap_written, seen.at.since(self.before.at));
        if sent >= TELLING && !time.is_zero() {
            let arrived = u128::from((self.before.writeback + sent - seen.writeback).0);
            self.disk = Bytes(u64::try_from(arrived * DISK_TIME.as_nanos() / time.as_nanos()).unwrap_or(u64::MAX));
        } else {
            self.disk += Bytes(self.disk.0 / 16);
        }
    }

    /// Returns the amount that one write may ask for within the swap floor, the write budget and
    /// the worth of the job, and the end of the job if the nearest of these limits is reached.
    fn swap_room(&self, seen: &PaceSample, left: Bytes) -> (Bytes, End) {
        let Some(free) = seen.swap_free else {
            return (Bytes::ZERO, if self.had_swap { End::SwapFloor } else { End::Futile });
        };
        let mut nearest = (free - self.job.swap_floor, End::SwapFloor);
        let writes = self.job.swap_writes - seen.swap_written;
        if writes < nearest.0 {
            nearest = (writes, End::WriteBudget);
        }
        // Pages that are used again on their way out are written but not freed, so a job must not
        // write much more than it should free. Pages that are in swap already may still be freed.
        let worth = self.job.amount + Bytes(self.job.amount.0 / 4).max(LEAST_EXCESS);
        let worth = worth - seen.swap_written;
        if worth < nearest.0 && seen.swapcached < left {
            nearest = (worth, End::Futile);
        }
        (Bytes(nearest.0.0 / OVERSHOOT), nearest.1)
    }

    /// Returns the time to wait for the disk; `None`: no wait.
    fn pause(&mut self, writeback: Bytes) -> Option<Duration> {
        if writeback + WRITEBACK_FALL <= self.lowest {
            self.lowest = writeback;
            self.stuck = Duration::ZERO;
        }
        if writeback <= WRITEBACK_OVER || self.stuck >= WRITEBACK_PATIENCE || self.paused >= LONGEST_PAUSE {
            return None;
        }
        // A tenth of the time that a 25 MB/s disk needs for the rest: the disk never idles for
        // long, and the machine does not wake up a thousand times a second.
        let pause = Duration::from_millis((writeback.0 / 250_000).clamp(2, 50));
        self.stuck += pause;
        self.paused += pause;
        Some(pause)
    }

    /// Takes in the result of a write: it freed `freed` and took `took`. `unfinished`: pages are on
    /// their way to the disk and will be freed later.
    pub fn wrote(&mut self, freed: Bytes, took: Duration, unfinished: bool) {
        (self.paused, self.stuck, self.lowest) = (Duration::ZERO, Duration::ZERO, Bytes::MAX);
        self.freed += freed;
        if self.is_in_vain(freed) {
            self.futile = self.futile.saturating_add(if unfinished { VAIN_UNFINISHED } else { VAIN });
        } else {
            self.futile = self.futile.saturating_sub(VAIN);
        }
        self.adapt(took);
    }

    /// Takes in how much the last write moved to slower nodes. The kernel counts that as reclaimed.
    /// It frees nothing, but the write was not in vain either, until all of the group could be
    /// there: pages that are used may be promoted and demoted again and again.
    pub fn demoted(&mut self, bytes: Bytes) {
        self.demoted += bytes;
        if bytes.0 > 0 && self.size.is_some_and(|size| self.demoted <= size) {
            self.futile = self.futile.saturating_sub(VAIN);
        }
    }

    /// Whether the last write was in vain, given how much it freed.
    pub fn is_in_vain(&self, freed: Bytes) -> bool {
        freed.0 == 0 || freed.0 < self.asked.0 / IN_VAIN
    }

    /// Takes in how much the kernel looked at in a write in vain. Pages that were in use when it last
    /// looked lie among those that it can free, and it has to pass them first. That frees nothing,
    /// but the write was not in vain either, until all of the group could have been passed: pages
    /// that stay in use are passed again and again.
    pub fn passed(&mut self, bytes: Bytes) {
        self.passed += bytes;
        if bytes >= PASSED && self.size.is_some_and(|size| self.passed <= size) {
            self.futile = self.futile.saturating_sub(VAIN);
        }
    }

    /// Adapts the size of the next write to the time that the last one took.
    fn adapt(&mut self, took: Duration) {
        if took > self.job.write_time {
            // To a size that would have taken half of the allowed time.
            let fit =
                u128::from(self.asked.0).saturating_mul(self.job.write_time.as_nanos()) / (2 * took.as_nanos()).max(1);
            self.step = Bytes(u64::try_from(fit).unwrap_or(u64::MAX)).min(self.step).max(SMALLEST_STEP);
            // The queue of a disk takes the first MiB at once and makes the rest wait. If the step
            // doubled again, every third write would wait (200 ms for 4 MiB at 20 MB/s).
            self.known_good = self.step;
        } else if took < self.job.write_time / 4 && self.asked >= self.step {
            let creep = Bytes(self.step.0 / 16);
            let next = Bytes(self.step.0.saturating_mul(2)).min(self.known_good.max(self.step + creep));
            self.step = next.min(self.job.step).max(SMALLEST_STEP);
        }
    }
}
