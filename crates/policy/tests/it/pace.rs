//! Reclaim of one group, write by write.

use std::time::Duration;

use omr_policy::End;
use omr_policy::pace::{Job, Next, Pace, PaceSample, SMALLEST_STEP};
use omr_units::Bytes;

const MS: Duration = Duration::from_millis(1);

fn job(mib: u64) -> Job {
    Job {
        amount: Bytes::mib(mib),
        floor: Bytes::ZERO,
        swap_floor: Bytes::ZERO,
        swap_writes: Bytes::MAX,
        file_only: true,
        anon_first: false,
        step: Bytes::mib(4),
        write_time: 20 * MS,
    }
}

fn seen(mib: u64) -> PaceSample {
    PaceSample { current: Bytes::mib(mib), swap_free: Some(Bytes::mib(1 << 20)), ..PaceSample::default() }
}

#[track_caller]
fn write(pace: &mut Pace, seen: &PaceSample) -> (Bytes, bool) {
    match pace.next(seen) {
        Next::Write { bytes, file_only } => (bytes, file_only),
        other => panic!("{other:?}"),
    }
}

/// Asks and frees what was asked until the end; the sizes of the writes.
fn run(job: Job, mut seen: PaceSample, took: impl Fn(Bytes) -> Duration) -> (Vec<Bytes>, End) {
    let mut pace = Pace::new(job);
    let mut writes = Vec::new();
    loop {
        match pace.next(&seen) {
            Next::Write { bytes, .. } => {
                seen.current = seen.current - bytes;
                pace.wrote(bytes, took(bytes), false);
                writes.push(bytes);
            }
            Next::Wait(_) => panic!("there is no writeback"),
            Next::End(end) => return (writes, end),
        }
    }
}

#[test]
fn writes_begin_small_and_grow_to_the_largest_step() {
    let (writes, end) = run(job(100), seen(200), |_| MS);
    assert_eq!(writes[..4], [1, 2, 4, 4].map(Bytes::mib));
    assert_eq!(end, End::Complete);
    let sum = writes.into_iter().sum::<Bytes>();
    assert!(sum >= Bytes::mib(100) && sum < Bytes::mib(100) + SMALLEST_STEP, "{sum}");
}

#[test]
fn the_step_settles_where_a_write_takes_no_longer_than_allowed() {
    // 10 ms for a MiB: at most 2 MiB fit.
    let took = |bytes: Bytes| Duration::from_nanos(bytes.0 * 10_000_000 / (1 << 20));
    let (writes, _) = run(job(100), seen(200), took);
    assert!(writes.iter().skip(1).all(|&bytes| took(bytes) <= 20 * MS), "{writes:?}");
    let settled = &writes[10..60];
    assert!(settled.iter().all(|bytes| bytes == &settled[0]), "{settled:?}");
}

#[test]
fn a_slow_write_is_judged_by_its_own_size() {
    let mut pace = Pace::new(job(8));
    for _ in 0..3 {
        let (bytes, _) = write(&mut pace, &seen(100));
        pace.wrote(bytes, MS, false);
    }
    // A step of 4 MiB is allowed, but only 1 MiB is left: 40 ms for that is 256 KiB in 10 ms.
    assert_eq!(write(&mut pace, &seen(100)).0, Bytes::mib(1));
    pace.wrote(Bytes::kib(256), 40 * MS, false);
    assert_eq!(write(&mut pace, &seen(100)).0, Bytes::kib(256));
}

#[test]
fn a_quick_small_write_says_nothing_of_large_ones() {
    let mut pace = Pace::new(Job { floor: Bytes::mib(50), ..job(100) });
    let (bytes, _) = write(&mut pace, &PaceSample { current: Bytes::mib(51), ..seen(0) });
    assert_eq!(bytes, Bytes::kib(512));
    pace.wrote(bytes, Duration::ZERO, false);
    assert_eq!(write(&mut pace, &seen(200)).0, Bytes::mib(1));
}

#[test]
fn a_size_that_once_took_too_long_is_approached_slowly() {
    let mut pace = Pace::new(job(1000));
    for took in [1, 1, 200, 1] {
        let (bytes, _) = write(&mut pace, &seen(2000));
        pace.wrote(bytes, took * MS, false);
    }
    // 200 ms for 4 MiB: 204.8 KiB in half of 20 ms, and a sixteenth more after a write that was
    // quick.
    assert_eq!(write(&mut pace, &seen(2000)).0, Bytes(209_715 + 209_715 / 16));
    let quick = (0..).take_while(|_| {
        let (bytes, _) = write(&mut pace, &seen(2000));
        pace.wrote(bytes, MS, false);
        bytes < Bytes::mib(4)
    });
    assert!((40..60).contains(&quick.count()));
}

#[test]
fn writes_that_free_nothing_end_the_job() {
    let mut pace = Pace::new(job(100));
    for _ in 0..6 {
        write(&mut pace, &seen(200));
        pace.wrote(Bytes::ZERO, MS, false);
    }
    assert_eq!(pace.next(&seen(200)), Next::End(End::Futile));
}

#[test]
fn writes_that_hardly_free_anything_end_the_job_as_well() {
    let mut pace = Pace::new(job(1000));
    let ends = (0..20).any(|_| {
        if let Next::Write { bytes, .. } = pace.next(&seen(2000)) {
            pace.wrote(Bytes(bytes.0 / 20), MS, false);
            return false;
        }
        true
    });
    assert!(ends);
}

#[test]
fn pages_on_their_way_to_the_disk_are_given_time_but_not_for_ever() {
    let mut pace = Pace::new(job(1000));
    let writes = (0..1000).take_while(|_| {
        let goes_on = matches!(pace.next(&seen(2000)), Next::Write { .. });
        pace.wrote(Bytes::ZERO, MS, true);
        goes_on
    });
    assert_eq!(writes.count(), 24);
}

#[test]
fn a_useful_write_now_and_then_keeps_a_job_going() {
    let mut pace = Pace::new(job(1000));
    for n in 0..200 {
        let (bytes, _) = write(&mut pace, &seen(2000));
        pace.wrote(if n % 2 == 0 { Bytes::ZERO } else { bytes }, MS, n % 2 == 0);
    }
}

#[test]
fn one_useful_write_among_many_in_vain_does_not() {
    let mut pace = Pace::new(job(1000));
    let writes = (0..1000).take_while(|n| match pace.next(&seen(2000)) {
        Next::Write { bytes, .. } => {
            pace.wrote(if n % 5 == 4 { bytes } else { Bytes::ZERO }, MS, false);
            true
        }
        _ => false,
    });
    assert_eq!(writes.count(), 8);
}

#[test]
fn a_disk_that_makes_progress_is_waited_for() {
    // 4 MiB on a disk of 1 MB/s: four seconds.
    let mut pace = Pace::new(job(1000));
    let (mut writeback, mut waited) = (4_000_000, Duration::ZERO);
    while let Next::Wait(time) = pace.next(&PaceSample { writeback: Bytes(writeback), ..seen(2000) }) {
        waited += time;
        writeback -= u64::try_from(time.as_micros()).expect("a short time");
    }
    assert!(writeback <= 256 << 10, "{writeback} still to write");
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

/// A disk that takes `rate` bytes a second and sends out a fifth more than it is asked for: the
/// sizes of the writes of a job.
fn run_on_disk(rate: impl Fn(usize) -> u64) -> Vec<Bytes> {
    let mut pace = Pace::new(job(200));
    let mut seen = seen(2000);
    let mut writes = Vec::new();
    loop {
        let pass = |seen: &mut PaceSample, time: Duration| {
            seen.at = seen.at + time;
            seen.writeback = seen.writeback
                - Bytes(rate(writes.len()) * u64::try_from(time.as_micros()).expect("short") / 1_000_000);
        };
        match pace.next(&seen) {
            Next::Wait(time) => pass(&mut seen, time),
            Next::Write { bytes, .. } => {
                let sent = Bytes(bytes.0 + bytes.0 / 5);
                (seen.writeback, seen.swap_written) = (seen.writeback + sent, seen.swap_written + sent);
                seen.current = seen.current - bytes;
                pass(&mut seen, MS);
                writes.push(bytes);
                pace.wrote(bytes, MS, true);
            }
            Next::End(End::Complete) => return writes,
            Next::End(end) => panic!("{end:?} after {} writes", writes.len()),
        }
    }
}

#[test]
fn a_write_asks_for_no_more_than_the_disk_takes_in_60_ms() {
    for (rate, most) in [(12_500_000, 760 << 10), (25_000_000, 1500 << 10)] {
        let writes = run_on_disk(|_| rate);
        assert!(writes[1..].iter().all(|bytes| bytes.0 <= most), "{rate}: {writes:?}");
        assert!(writes[1..writes.len() / 2].iter().all(|bytes| bytes.0 >= most / 2), "{rate}: {writes:?}");
    }
    assert!(run_on_disk(|_| 400_000_000).contains(&Bytes::mib(4)));
}

#[test]
fn a_disk_that_was_slow_for_a_while_is_tried_again() {
    let writes = run_on_disk(|number| if number < 3 { 1_000_000 } else { 400_000_000 });
    assert!(writes[3] <= Bytes::kib(256), "{writes:?}");
    assert!(writes.contains(&Bytes::mib(4)), "{writes:?}");
}

#[test]
fn foreign_writeback_slows_a_job_down_but_does_not_stop_it() {
    for fall in [0, 1, 300_000] {
        let mut pace = Pace::new(job(1000));
        let (mut writeback, mut waited) = (1_000_000_000, Duration::ZERO);
        while let Next::Wait(time) = pace.next(&PaceSample { writeback: Bytes(writeback), ..seen(2000) }) {
            waited += time;
            writeback -= fall;
        }
        let most = if fall < 1000 { 2000 } else { 10_000 };
        assert!(waited >= 2000 * MS && waited <= (most + 50) * MS, "{fall}: {waited:?}");
    }
}

#[test]
fn a_job_ends_at_the_floor_even_if_the_kernel_frees_twice_the_amount() {
    for (floor, over) in [(50, 1), (50, 2), (0, 1)] {
        let mut seen = seen(200);
        let mut pace = Pace::new(Job { floor: Bytes::mib(floor), ..job(500) });
        let end = loop {
            match pace.next(&seen) {
                Next::Write { bytes, .. } => {
                    let freed = Bytes(bytes.0 * over);
                    seen.current = seen.current - freed;
                    pace.wrote(freed, MS, false);
                }
                Next::Wait(_) => unreachable!("there is no writeback"),
                Next::End(end) => break end,
            }
        };
        assert_eq!(end, End::Floor);
        assert!(seen.current + SMALLEST_STEP >= Bytes::mib(floor), "{}", seen.current);
        assert!(seen.current < Bytes::mib(floor) + SMALLEST_STEP, "{}", seen.current);
    }
}

#[test]
fn towards_the_swap_floor_and_the_allowance_writes_get_smaller() {
    let grown = |job: Job| {
        let mut pace = Pace::new(job);
        for _ in 0..3 {
            let (bytes, _) = write(&mut pace, &seen(2000));
            pace.wrote(bytes, MS, false);
        }
        pace
    };
    for (left, asked) in [(100, Bytes::mib(4)), (8, Bytes::mib(2)), (1, Bytes::kib(256))] {
        let mut pace = grown(Job { swap_floor: Bytes::mib(500), ..job(1000) });
        let near = PaceSample { swap_free: Some(Bytes::mib(500 + left)), ..seen(2000) };
        assert_eq!(write(&mut pace, &near), (asked, false), "{left} MiB above the floor");
        let mut pace = grown(Job { swap_writes: Bytes::mib(500), ..job(1000) });
        let near = PaceSample { swap_written: Bytes::mib(500 - left), ..seen(2000) };
        assert_eq!(write(&mut pace, &near), (asked, false), "{left} MiB of the allowance");
    }
}

#[test]
fn at_the_swap_floor_only_files_go_on() {
    let at_floor = PaceSample { swap_free: Some(Bytes::mib(500)), ..seen(2000) };
    let at_budget = PaceSample { swap_written: Bytes::mib(100), ..seen(2000) };
    for (seen, end) in [(at_floor, End::SwapFloor), (at_budget, End::WriteBudget)] {
        let limits = Job { swap_floor: Bytes::mib(500), swap_writes: Bytes::mib(100), ..job(1000) };
        let mut pace = Pace::new(limits.clone());
        for _ in 0..6 {
            assert!(write(&mut pace, &seen).1);
            pace.wrote(Bytes::ZERO, MS, false);
        }
        assert_eq!(pace.next(&seen), Next::End(end));
        // Where the kernel cannot be told, the job ends there.
        let mut pace = Pace::new(Job { file_only: false, ..limits });
        assert_eq!(pace.next(&seen), Next::End(end));
    }
}

#[test]
fn the_allowance_is_not_called_the_swap_floor() {
    let mut pace = Pace::new(Job { swap_writes: Bytes::kib(64), file_only: false, ..job(1000) });
    let little_swap = PaceSample { swap_free: Some(Bytes::kib(900)), ..seen(2000) };
    assert_eq!(pace.next(&little_swap), Next::End(End::WriteBudget));
}

#[test]
fn without_swap_the_kernel_takes_files_by_itself() {
    for file_only in [true, false] {
        let mut pace = Pace::new(Job { file_only, ..job(100) });
        let none = PaceSample { swap_free: None, ..seen(2000) };
        assert_eq!(write(&mut pace, &none), (Bytes::mib(1), file_only));
        (0..6).for_each(|_| pace.wrote(Bytes::ZERO, MS, false));
        assert_eq!(pace.next(&none), Next::End(End::Futile));
    }
}

#[test]
fn a_job_ends_when_swap_is_taken_away() {
    for file_only in [true, false] {
        let mut pace = Pace::new(Job { file_only, ..job(100) });
        let (bytes, _) = write(&mut pace, &seen(2000));
        pace.wrote(bytes, MS, false);
        let none = PaceSample { swap_free: None, ..seen(2000) };
        // A kernel that can be told so goes on with page cache, as at the floor of swap.
        let expected = match file_only {
            true => Next::Write { bytes: Bytes::mib(2), file_only: true },
            false => Next::End(End::SwapFloor),
        };
        assert_eq!(pace.next(&none), expected);
    }
}

#[test]
fn pages_in_swap_are_freed_before_more_are_sent_out() {
    let mut pace = Pace::new(job(100));
    for _ in 0..3 {
        let (bytes, _) = write(&mut pace, &seen(2000));
        pace.wrote(bytes, MS, false);
    }
    // 93 MiB are left.
    for (swapcached, asked) in [(0, 4), (77, 4), (85, 2), (89, 1), (93, 1), (500, 1)] {
        let seen = PaceSample { swapcached: Bytes::mib(swapcached), ..seen(2000) };
        assert_eq!(write(&mut pace.clone(), &seen).0, Bytes::mib(asked), "{swapcached}");
    }
}

#[test]
fn pages_that_come_back_while_they_are_on_their_way_out_end_a_job() {
    for (amount, most) in [(100, 125), (8, 12)] {
        let mut pace = Pace::new(job(amount));
        let mut churning = seen(2000);
        let end = loop {
            match pace.next(&churning) {
                Next::Write { bytes, file_only: false } => {
                    churning.swap_written += bytes;
                    // A part of it is freed.
                    pace.wrote(Bytes(bytes.0 / 3), MS, true);
                }
                Next::Write { file_only: true, .. } => pace.wrote(Bytes::ZERO, MS, false),
                Next::Wait(_) => unreachable!("there is no writeback"),
                Next::End(end) => break end,
            }
        };
        assert_eq!(end, End::Futile);
        assert!(churning.swap_written <= Bytes::mib(most), "{} for {amount} MiB", churning.swap_written);
        // Pages that are in swap already are freed.
        let mut pace = Pace::new(job(amount));
        let sent = PaceSample { swapcached: Bytes::mib(amount), swap_written: Bytes::mib(2 * amount), ..seen(2000) };
        assert_eq!(write(&mut pace, &sent), (Bytes::mib(1), false));
    }
}

#[test]
fn nothing_asked_is_nothing_done() {
    assert_eq!(Pace::new(job(0)).next(&seen(100)), Next::End(End::Complete));
    assert_eq!(Pace::new(job(5)).next(&seen(0)), Next::End(End::Floor));
    let mut pace = Pace::new(Job { floor: Bytes::mib(100), ..job(5) });
    assert_eq!(pace.next(&seen(100)), Next::End(End::Floor));
}

#[test]
fn a_write_that_moves_memory_to_a_slower_node_is_not_in_vain() {
    // The last is moved there and back: it could all have been there after 128 MiB.
    for (moves, ends) in [(1, false), (0, true), (64, true)] {
        let mut pace = Pace::new(job(64));
        let mut ended = false;
        for _ in 0..20 {
            match pace.next(&seen(128)) {
                Next::Write { .. } => pace.wrote(Bytes::ZERO, MS, false),
                other => {
                    ended = matches!(other, Next::End(End::Futile));
                    break;
                }
            }
            pace.demoted(Bytes::mib(moves));
        }
        assert_eq!(ended, ends, "moves {moves} MiB at a time");
        assert_eq!(pace.freed(), Bytes::ZERO);
    }
}

#[test]
fn a_write_that_only_passes_used_pages_is_not_in_vain_until_all_of_the_group_was_passed() {
    // The writes until the job ends. Each passes this much of a group of 1024 MiB.
    let writes = |passed: Bytes| {
        let mut pace = Pace::new(job(64));
        let writes = (0..1000).take_while(|_| {
            let Next::Write { .. } = pace.next(&seen(1024)) else { return false };
            pace.wrote(Bytes::ZERO, 20 * MS, false);
            assert!(pace.is_in_vain(Bytes::ZERO));
            pace.passed(passed);
            true
        });
        writes.count()
    };
    assert_eq!(writes(Bytes::mib(64)), 16 + 6);
    assert_eq!(writes(Bytes::mib(2)), 512 + 6);
    // The controls: so little is no progress, and this is more than there is.
    assert_eq!(writes(Bytes::kib(64)), 6);
    assert_eq!(writes(Bytes::mib(2048)), 6);
}

#[test]
fn a_group_without_a_floor_is_asked_for_all_of_it_at_once() {
    let small = |kib| PaceSample { current: Bytes::kib(kib), ..seen(0) };
    assert_eq!(write(&mut Pace::new(job(100)), &small(1024)).0, Bytes::mib(1));
    // Less than the smallest write is asked for, too.
    assert_eq!(write(&mut Pace::new(job(100)), &small(32)).0, SMALLEST_STEP);
    assert_eq!(Pace::new(job(100)).next(&small(0)), Next::End(End::Floor));
}

#[test]
fn a_wait_for_the_disk_is_a_tenth_of_the_time_that_a_slow_disk_needs_for_the_rest() {
    let wait = |writeback| Pace::new(job(100)).next(&PaceSample { writeback: Bytes(writeback), ..seen(200) });
    // At 25 MB/s.
    assert_eq!(wait(5_100_000), Next::Wait(20 * MS));
    assert_eq!(wait(10_000_000), Next::Wait(40 * MS));
    assert_eq!(wait(1_000_000_000), Next::Wait(50 * MS), "and no more than 50 ms");
}

#[test]
fn each_end_has_words_of_its_own_and_some_are_failures() {
    let ends = [
        End::Complete,
        End::Floor,
        End::Futile,
        End::Stopped,
        End::Timeout,
        End::SwapFloor,
        End::WriteBudget,
        End::NoMoreCold,
        End::NotAged,
        End::NotSeen,
        End::Gone,
        End::Denied,
        End::Unsupported,
        End::Failed,
    ];
    let words: std::collections::BTreeSet<&str> = ends.map(End::words).into();
    assert!(words.len() == ends.len() && words.iter().all(|words| words.len() > 3), "{words:?}");
    // An administrator can do something about these.
    let failures: Vec<End> = ends.into_iter().filter(|end| end.is_failure()).collect();
    assert_eq!(failures, [End::Denied, End::Unsupported, End::Failed]);
}

#[test]
fn a_job_knows_how_much_it_has_freed() {
    let mut pace = Pace::new(job(100));
    assert_eq!(pace.freed(), Bytes::ZERO);
    for freed in [1, 2] {
        write(&mut pace, &seen(200));
        pace.wrote(Bytes::mib(freed), MS, false);
    }
    assert_eq!(pace.freed(), Bytes::mib(3));
}
