//! Laws of the pace of one job.

use std::time::Duration;

use omr_policy::Stop;
use omr_policy::busy::BusyWatch;
use omr_policy::pace::{Job, Next, Pace, PaceSample, SMALLEST_STEP};
use omr_units::{Bytes, Monotonic, Permyriad};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::inputs::{wild_bytes, wild_duration};
use crate::desk::{millis, seconds};

prop_compose! {
    fn a_job()(amount in 0u64..8192, floor in 0u64..8192, swap_floor in 0u64..8192, writes in option::of(0u64..8192), file_only: bool, step in 0u64..8192, time in 0u64..40) -> Job {
        Job {
            amount: Bytes::kib(amount),
            floor: Bytes::kib(floor),
            swap_floor: Bytes::kib(swap_floor),
            swap_writes: writes.map_or(Bytes::MAX, Bytes::kib),
            file_only,
            anon_first: false,
            step: Bytes::kib(step),
            write_time: millis(time),
        }
    }
}

/// A group whose kernel frees as much as it is asked for, or more, or less.
#[derive(Debug)]
struct Kernel {
    seen: PaceSample,
    anon: Bytes,
    file: Bytes,
}

impl Kernel {
    /// Frees `percent` of what is asked, files last.
    fn reclaim(&mut self, bytes: Bytes, percent: u64, file_only: bool) -> Bytes {
        let bytes = Bytes(bytes.0 * percent / 100);
        let anon =
            if file_only { Bytes::ZERO } else { bytes.min(self.anon).min(self.seen.swap_free.unwrap_or_default()) };
        let file = (bytes - anon).min(self.file);
        (self.anon, self.file) = (self.anon - anon, self.file - file);
        self.seen.swap_free = self.seen.swap_free.map(|free| free - anon);
        self.seen.swap_written += anon;
        self.seen.current = self.anon + self.file;
        anon + file
    }
}

prop_compose! {
    fn kernel()(anon in 0u64..8192, file in 0u64..8192, swap in option::of(0u64..16384)) -> Kernel {
        let (anon, file) = (Bytes::kib(anon), Bytes::kib(file));
        let seen = PaceSample { current: anon + file, swap_free: swap.map(Bytes::kib), ..PaceSample::default() };
        Kernel { seen, anon, file }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pace_and_a_watch_never_panic(
        bytes in vec(wild_bytes(), 11),
        times in vec(wild_duration(), 8),
        flags in any::<u8>(),
    ) {
        let flag = |bit: u8| flags & 1 << bit != 0;
        let job = Job {
            amount: bytes[0], floor: bytes[1], swap_floor: bytes[2], swap_writes: bytes[3],
            file_only: flag(0), anon_first: flag(4), step: bytes[4], write_time: times[0],
        };
        let mut seen = PaceSample { at: Monotonic(bytes[10].0), current: bytes[5], swapcached: bytes[6], writeback: bytes[7], swap_free: flag(1).then_some(bytes[8]), swap_written: bytes[9] };
        let mut pace = Pace::new(job);
        let mut watch = BusyWatch::new(&Stop::default(), Permyriad(u32::from(flags) << 24));
        for time in &times {
            pace.next(&seen);
            pace.wrote(bytes[0], *time, flag(2));
            seen.at = Monotonic(seen.at.0.wrapping_add(bytes[1].0));
            seen.swap_written = seen.swap_written.max(bytes[2]);
            watch.sample(*time, flag(3).then_some(times[0]));
        }
    }

    #[test]
    fn a_pace_ends_with_any_samples(
        job in a_job(),
        replies in vec((0u64..9000, 0u64..3000, 0u64..400_000, option::of(0u64..20_000), 0u64..500, any::<bool>(), 0u64..50), 1..12),
    ) {
        // A useful write frees at least a sixteenth of the smallest step and pays for four that are
        // not.
        let most = 5 * (job.amount.0 / (SMALLEST_STEP.0 / 16) + 1) + 24;
        let mut pace = Pace::new(job);
        let (mut writes, mut waited) = (0, Duration::ZERO);
        for (current, swapcached, writeback, swap_free, freed, in_flight, took) in replies.iter().cycle() {
            let seen = PaceSample {
                at: Monotonic(0),
                current: Bytes::kib(*current),
                swapcached: Bytes::kib(*swapcached),
                writeback: Bytes::kib(*writeback),
                swap_free: swap_free.map(Bytes::kib),
                swap_written: Bytes::ZERO,
            };
            match pace.next(&seen) {
                Next::End(_) => break,
                Next::Wait(time) => {
                    prop_assert!(time > Duration::ZERO);
                    waited += time;
                    prop_assert!(waited <= seconds(10) + millis(50), "{waited:?} between two writes");
                }
                Next::Write { .. } => {
                    (writes, waited) = (writes + 1, Duration::ZERO);
                    prop_assert!(writes <= most, "more than {most} writes");
                    pace.wrote(Bytes(*freed * *freed), millis(*took), *in_flight);
                }
            }
        }
    }

    #[test]
    fn a_pace_never_asks_for_more_than_is_left_and_its_largest_step(job in a_job(), kernel in kernel(), percents in vec(select(vec![0u64, 10, 90, 100, 100, 200]), 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let (mut asked, mut exact) = (Bytes::ZERO, true);
        for percent in percents.iter().cycle() {
            match pace.next(&kernel.seen) {
                Next::End(_) => break,
                Next::Wait(_) => prop_assert!(false, "there is no writeback"),
                Next::Write { bytes, file_only } => {
                    prop_assert!(bytes >= SMALLEST_STEP && bytes <= job.step.max(SMALLEST_STEP));
                    prop_assert!(bytes <= (job.amount - pace.freed()).max(SMALLEST_STEP));
                    prop_assert!(job.file_only || !file_only);
                    let freed = kernel.reclaim(bytes, *percent, file_only);
                    exact &= freed == bytes;
                    asked += bytes;
                    prop_assert!(!exact || asked <= job.amount + SMALLEST_STEP);
                    pace.wrote(freed, millis(1), false);
                }
            }
        }
        prop_assert!(pace.freed() <= job.amount + job.step.max(SMALLEST_STEP) + job.step.max(SMALLEST_STEP));
    }

    #[test]
    fn a_pace_goes_below_no_floor_by_more_than_the_smallest_step(job in a_job(), kernel in kernel(), percents in vec(1u64..=200, 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let lowest = job.floor.min(kernel.seen.current);
        for percent in percents.iter().cycle() {
            let Next::Write { bytes, file_only } = pace.next(&kernel.seen) else { break };
            let freed = kernel.reclaim(bytes, *percent, file_only);
            pace.wrote(freed, millis(1), false);
            prop_assert!(kernel.seen.current + SMALLEST_STEP >= lowest, "{} left of {lowest}", kernel.seen.current);
        }
    }

    #[test]
    fn a_pace_fills_swap_beyond_no_floor_and_no_allowance(job in a_job(), kernel in kernel(), percents in vec(1u64..=400, 1..8)) {
        let (mut kernel, mut pace) = (kernel, Pace::new(job.clone()));
        let lowest = kernel.seen.swap_free.map(|free| free.min(job.swap_floor));
        for percent in percents.iter().cycle() {
            let Next::Write { bytes, file_only } = pace.next(&kernel.seen) else { break };
            let freed = kernel.reclaim(bytes, *percent, file_only);
            pace.wrote(freed, millis(1), false);
            prop_assert!(kernel.seen.swap_free >= lowest, "{:?} left of {lowest:?}", kernel.seen.swap_free);
            prop_assert!(kernel.seen.swap_written <= job.swap_writes);
        }
    }
}
