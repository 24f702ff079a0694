//! How one group is reclaimed: small writes, a pause until what went to disk has arrived there, and
//! an end when nothing comes of it.
//!
//! Why small: nothing stops the kernel inside a write (`memory.reclaim` looks for signals between
//! batches only), and removing a group waits for the write that is running in it. Why pauses: pages
//! on their way to disk do not count as reclaimed, so one large write sends out everything it finds
//! (a request of 64 MiB wrote 220 MiB to a 20 MB/s disk).

use core::time::Duration;

use omr_units::{Bytes, Monotonic};
use serde::{Deserialize, Serialize};

use crate::signals::End;

/// 32 pages of 4 KiB, the kernel's `SWAP_CLUSTER_MAX`: it does not work in smaller portions.
pub const SMALLEST_STEP: Bytes = Bytes::kib(128);
/// The first write, before anything is known of how long one takes.
const FIRST_STEP: Bytes = Bytes::mib(1);
/// Writeback below this is over: other programs always write a little, and the counter is a few
/// pages per CPU behind.
const WRITEBACK_OVER: Bytes = Bytes::kib(256);
/// Writeback that does not fall for this long is somebody else's: go on in spite of it, at this slow
/// beat.
const WRITEBACK_PATIENCE: Duration = Duration::from_secs(2);
/// Writeback falls when it is lower by this much.
const WRITEBACK_FALL: Bytes = Bytes::kib(64);
/// Falling or not, no pause between two writes is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A write that frees less than this part of what it asked for is in vain: the kernel went through
/// many pages for each that it freed.
const IN_VAIN: u64 = 16;
/// Six writes in vain end a job; the kernel itself gives up after 16 rounds in each. A write that
/// frees something takes one of them back. One that sent pages to the disk, where they cannot be
/// freed yet, is a quarter of one in vain: they should be there when the next looks.
const FUTILE: u32 = 6 * VAIN;
const VAIN: u32 = 4;
const VAIN_IN_FLIGHT: u32 = 1;
/// One write may send this many times what it asks for to swap on disk (measured: 1.2 for 1 MiB, 1.5
/// for 4 MiB, all of the group for 64 MiB).
const OVERSHOOT: u64 = 4;
/// A job may send a quarter more to swap than it is to free, or this much more where that is little.
const LEAST_EXCESS: Bytes = Bytes::mib(4);

/// A write ends between two of the kernel's batches only, and a batch that meets a full disk queue
/// lasts until the disk has taken it. So no write asks for more than the disk takes in this time: with
/// 40 ms until work is noticed it leaves the 100 ms whole. (Steps of 4 MiB to a 12.5 MB/s disk were
/// seen to take 123 ms.)
const DISK_TIME: Duration = Duration::from_millis(60);
/// Less than this, sent to the disk, tells nothing of its speed: what is below [`WRITEBACK_OVER`] is not
/// waited for.
const TELLING: Bytes = Bytes::kib(512);

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
    /// When.
    pub at: Monotonic,
    /// Charged to the group.
    pub current: Bytes,
    /// Of it, swapped out but not freed yet.
    pub swapcached: Bytes,
    /// Under writeback on the whole machine. Zero where no swap is on disk: what other programs write
    /// is nothing to wait for.
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
    /// Up to here the step doubles; beyond, where a write has once taken too long, it creeps.
    known_good: Bytes,
    /// No more than the disk takes in [`DISK_TIME`].
    disk: Bytes,
    /// Before the last write.
    before: Seen,
    /// What the last write asked for.
    asked: Bytes,
    freed: Bytes,
    /// Moved to slower nodes so far, and the size of the group at the first look.
    demoted: Bytes,
    size: Option<Bytes>,
    futile: u32,
    /// Since the last write: how long in all, since writeback last fell, and to what.
    paused: Duration,
    stuck: Duration,
    lowest: Bytes,
    /// Why nothing may go to swap.
    file_only: Option<End>,
}

impl Pace {
    /// Begins a job.
    pub fn new(job: Job) -> Self {
        let step = FIRST_STEP.min(job.step).max(SMALLEST_STEP);
        Pace {
            known_good: job.step,
            job,
            step,
            disk: Bytes::MAX,
            before: Seen { swap_written: Bytes::MAX, ..Seen::default() },
            asked: Bytes::ZERO,
            freed: Bytes::ZERO,
            demoted: Bytes::ZERO,
            size: None,
            futile: 0,
            paused: Duration::ZERO,
            stuck: Duration::ZERO,
            lowest: Bytes::MAX,
            file_only: None,
        }
    }

    /// Freed so far.
    pub fn freed(&self) -> Bytes {
        self.freed
    }

    /// What to do now.
    pub fn next(&mut self, seen: &Seen) -> Next {
        self.size.get_or_insert(seen.current);
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
        // Linux 6.1 frees up to twice what it is asked for: half of the way to a floor is all of it.
        let above_floor = if self.job.floor.0 > 0 { Bytes(above_floor.0 / 2) } else { above_floor };
        // What is swapped out but not freed comes first; what is not sent out yet is sent in smaller
        // portions towards the end, so that little is left over there.
        let unsent = Bytes((left - seen.swapcached).0 / OVERSHOOT).max(FIRST_STEP);
        let bytes = self.step.min(self.disk).min(left).min(above_floor).min(unsent);
        let (room, limit) = self.swap_room(seen, left);
        self.file_only = (room < SMALLEST_STEP).then_some(limit);
        let bytes = match self.file_only {
            None => bytes.min(room),
            // Without any swap the kernel leaves anonymous memory alone by itself.
            Some(_) if self.job.file_only || seen.swap_free.is_none() => bytes,
            Some(end) => return Next::End(end),
        };
        self.asked = bytes.max(SMALLEST_STEP);
        self.before = *seen;
        Next::Write { bytes: self.asked, file_only: self.file_only.is_some() && self.job.file_only }
    }

    /// What the last write sent to the disk has arrived there: how fast was that? Where it was too
    /// little to tell, as on a disk that is allowed little because it was slow once, a little more is
    /// tried with each write.
    fn learn_disk(&mut self, seen: &Seen) {
        let (sent, time) = (seen.swap_written - self.before.swap_written, seen.at.since(self.before.at));
        if sent >= TELLING && !time.is_zero() {
            let arrived = u128::from((self.before.writeback + sent - seen.writeback).0);
            self.disk = Bytes(u64::try_from(arrived * DISK_TIME.as_nanos() / time.as_nanos()).unwrap_or(u64::MAX));
        } else {
            self.disk += Bytes(self.disk.0 / 16);
        }
    }

    /// How much one write may ask for without filling swap beyond its floor, the allowance or what the
    /// job is worth, and which of them is nearest.
    fn swap_room(&self, seen: &Seen, left: Bytes) -> (Bytes, End) {
        let Some(free) = seen.swap_free else { return (Bytes::ZERO, End::Futile) };
        let mut nearest = (free - self.job.swap_floor, End::SwapFloor);
        let writes = self.job.swap_writes - seen.swap_written;
        if writes < nearest.0 {
            nearest = (writes, End::WriteBudget);
        }
        // Pages that are used again while they are on their way out are written and not freed. What has
        // been sent out already may be collected all the same.
        let worth = self.job.amount + Bytes(self.job.amount.0 / 4).max(LEAST_EXCESS);
        let worth = worth - seen.swap_written;
        if worth < nearest.0 && seen.swapcached < left {
            nearest = (worth, End::Futile);
        }
        (Bytes(nearest.0.0 / OVERSHOOT), nearest.1)
    }

    /// How long to wait for the disk, if at all.
    fn pause(&mut self, writeback: Bytes) -> Option<Duration> {
        if writeback + WRITEBACK_FALL <= self.lowest {
            self.lowest = writeback;
            self.stuck = Duration::ZERO;
        }
        if writeback <= WRITEBACK_OVER || self.stuck >= WRITEBACK_PATIENCE || self.paused >= LONGEST_PAUSE {
            return None;
        }
        // A tenth of what a 25 MB/s disk needs for the rest, so that the disk never runs dry for long
        // and the machine is not woken a thousand times a second.
        let pause = Duration::from_millis((writeback.0 / 250_000).clamp(2, 50));
        self.stuck += pause;
        self.paused += pause;
        Some(pause)
    }

    /// Takes in what a write brought: the group's size fell by `freed`, the write took `took`.
    /// `in_flight` tells whether pages went out that will only be freed later.
    pub fn wrote(&mut self, freed: Bytes, took: Duration, in_flight: bool) {
        (self.paused, self.stuck, self.lowest) = (Duration::ZERO, Duration::ZERO, Bytes::MAX);
        self.freed += freed;
        if freed.0 > 0 && freed.0 >= self.asked.0 / IN_VAIN {
            self.futile = self.futile.saturating_sub(VAIN);
        } else {
            self.futile = self.futile.saturating_add(if in_flight { VAIN_IN_FLIGHT } else { VAIN });
        }
        self.adapt(took);
    }

    /// The write before moved so much to slower nodes, which the kernel counts as reclaimed: nothing is freed by that, and
    /// it was not in vain either. No longer than until all of the group could be there: what is used may be promoted
    /// meanwhile, and demoted again.
    pub fn demoted(&mut self, bytes: Bytes) {
        self.demoted += bytes;
        if bytes.0 > 0 && self.size.is_some_and(|size| self.demoted <= size) {
            self.futile = self.futile.saturating_sub(VAIN);
        }
    }

    /// Makes the next step as large as it may be after one that took so long.
    fn adapt(&mut self, took: Duration) {
        if took > self.job.write_time {
            // Straight to a size that would have taken half the time allowed.
            let fit =
                u128::from(self.asked.0).saturating_mul(self.job.write_time.as_nanos()) / (2 * took.as_nanos()).max(1);
            self.step = Bytes(u64::try_from(fit).unwrap_or(u64::MAX)).min(self.step).max(SMALLEST_STEP);
            // A disk's queue takes the first MiB at once and makes the rest wait: doubling again would
            // run into that with every third write (200 ms for 4 MiB at 20 MB/s).
            self.known_good = self.step;
        } else if took < self.job.write_time / 4 && self.asked >= self.step {
            let creep = Bytes(self.step.0 / 16);
            let next = Bytes(self.step.0.saturating_mul(2)).min(self.known_good.max(self.step + creep));
            self.step = next.min(self.job.step).max(SMALLEST_STEP);
        }
    }
}
