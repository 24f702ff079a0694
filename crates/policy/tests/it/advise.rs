//! Advice about limits, from samples over days.

use std::time::Duration;

use omr_policy::advise::{LEAST_COVERED, LEAST_SAMPLES, Percentiles, Sample, advise};
use omr_policy::age::Bounds;
use omr_policy::trial::Guard;
use omr_units::{Bytes, Permyriad};
use proptest::prelude::*;

const STEP: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86_400);
const GUARD: Guard = Guard { stall: Permyriad(10), refaults: Permyriad(20) };

/// A group of 1000 MiB, of which 100 are page cache and 50 the kernel's, at a time when so much was
/// used.
fn sample(used: u64) -> Sample {
    Sample {
        over: Some(STEP),
        current: Bytes::mib(1000),
        peak: Bytes::mib(1000),
        cache: Bytes::mib(100),
        memory: Bytes::mib(850),
        used: Some(Bounds { least: Bytes::mib(used - 10), most: Bytes::mib(used) }),
        refaults: Some(Bytes::ZERO),
        stalled: Some(Duration::ZERO),
    }
}

fn day(of: impl Fn(u64) -> Sample) -> Vec<Sample> {
    (0..144).map(of).collect()
}

#[test]
fn limits_follow_the_used_memory_and_not_the_size() {
    // For an hour a day it uses twice as much.
    let advice = advise(&day(|n| sample(if n < 6 { 400 } else { 200 })), DAY, &GUARD).expect("advice");
    let mib = |p50, p95, max| Percentiles { p50: Bytes::mib(p50), p95: Bytes::mib(p95), max: Bytes::mib(max) };
    assert_eq!(advice.working_set, mib(350, 350, 550));
    assert_eq!(advice.least, mib(190, 190, 390));
    // 350 and 550 MiB, 15 % more, and rounded up; 1000 MiB and a quarter.
    assert_eq!([advice.request, advice.high, advice.max], [403, 633, 1250].map(Bytes::mib));
    assert_eq!((advice.saved, advice.weak, advice.unaged, advice.short), (Bytes::mib(367), false, 0, 0));
    assert_eq!(advice.evidence, None, "it was never as small as that");
}

#[test]
fn unknown_memory_counts_as_used() {
    let unaged = advise(&day(|_| Sample { used: None, ..sample(200) }), DAY, &GUARD).expect("advice");
    assert_eq!((unaged.working_set.p50, unaged.unaged), (Bytes::mib(1000), 144));
    assert_eq!((unaged.least.max, unaged.saved), (Bytes::ZERO, Bytes::ZERO));
    // Memory that came and went between two samples was used.
    let spike = day(|n| Sample { peak: Bytes::mib(if n == 7 { 1500 } else { 1000 }), ..sample(200) });
    let advice = advise(&spike, DAY, &GUARD).expect("advice");
    assert_eq!((advice.working_set.p95, advice.working_set.max), (Bytes::mib(350), Bytes::mib(850)));
    assert_eq!((advice.peak, advice.max), (Bytes::mib(1500), Bytes::mib(1875)));
}

#[test]
fn a_group_that_lacked_memory_is_not_advised_to_have_less() {
    // 0.1 % of ten minutes is 600 ms; 0.2 % of 1000 MiB in each of ten minutes is 20 MiB.
    for (stalled, refaults, short) in [(600, 20, 0), (601, 0, 144), (0, 21, 144)] {
        let samples = day(|_| Sample {
            stalled: Some(Duration::from_millis(stalled)),
            refaults: Some(Bytes::mib(refaults)),
            ..sample(200)
        });
        let advice = advise(&samples, DAY, &GUARD).expect("advice");
        assert_eq!(advice.short, short, "{stalled} {refaults}");
        assert_eq!(advice.working_set.p50, Bytes::mib(if short > 0 { 1000 } else { 350 }));
    }
}

#[test]
fn evidence_is_from_times_at_that_size() {
    let small = |n: u64| Sample {
        current: Bytes::mib(400),
        peak: Bytes::mib(400),
        memory: Bytes::mib(250),
        stalled: Some(Duration::from_millis(if n == 20 { 700 } else { 10 })),
        refaults: Some(Bytes::mib(1)),
        ..sample(200)
    };
    let advice = advise(&day(|n| if n < 100 { small(n) } else { sample(200) }), DAY, &GUARD).expect("advice");
    assert_eq!(advice.high, Bytes::mib(460));
    let evidence = advice.evidence.expect("evidence");
    assert_eq!((evidence.samples, evidence.short, evidence.time), (100, 1, 100 * STEP));
    assert_eq!((evidence.stalled, evidence.refaults), (Duration::from_millis(99 * 10 + 700), Bytes::mib(100)));
}

#[test]
fn a_time_of_which_a_counter_is_unknown_is_no_evidence() {
    let small = Sample { current: Bytes::mib(400), peak: Bytes::mib(400), memory: Bytes::mib(250), ..sample(200) };
    for unknown in
        [Sample { stalled: None, ..small }, Sample { refaults: None, ..small }, Sample { over: None, ..small }]
    {
        let advice = advise(&day(|n| if n < 100 { unknown } else { sample(200) }), DAY, &GUARD).expect("advice");
        assert_eq!(advice.evidence, None, "{unknown:?}");
    }
}

#[test]
fn too_little_history_gives_no_advice_and_little_history_is_marked() {
    for (samples, over, known) in [
        (LEAST_SAMPLES, Some(LEAST_COVERED / 6), true),
        (LEAST_SAMPLES - 1, Some(LEAST_COVERED), false),
        (LEAST_SAMPLES, Some(LEAST_COVERED / 7), false),
        (1000, None, false),
        (0, None, false),
    ] {
        let samples = vec![Sample { over, ..sample(200) }; samples];
        assert_eq!(advise(&samples, DAY, &GUARD).is_ok(), known, "{} of {over:?}", samples.len());
    }
    for (samples, weak) in [(71, true), (72, false)] {
        assert_eq!(advise(&vec![sample(200); samples], DAY, &GUARD).map(|advice| advice.weak), Ok(weak));
    }
}

prop_compose! {
    fn any()(
        over in proptest::option::of(0u64..4000),
        mib in proptest::array::uniform4(0u64..3000),
        used in proptest::option::of((0u64..3000, 0u64..3000)),
        refaults in proptest::option::of(0u64..100),
        stalled in proptest::option::of(0u64..5000),
    ) -> Sample {
        Sample {
            over: over.map(Duration::from_secs),
            current: Bytes::mib(mib[0]),
            peak: Bytes::mib(mib[1]),
            cache: Bytes::mib(mib[2]),
            memory: Bytes::mib(mib[3]),
            used: used.map(|(a, b)| Bounds { least: Bytes::mib(a.min(b)), most: Bytes::mib(a.max(b)) }),
            refaults: refaults.map(Bytes::mib),
            stalled: stalled.map(Duration::from_millis),
        }
    }
}

proptest! {
    /// However the samples are, nothing is advised below what surely was used, and the order is
    /// kept.
    #[test]
    fn limits_are_in_order_and_above_the_memory_certainly_used(samples in proptest::collection::vec(any(), 0..60)) {
        let Ok(advice) = advise(&samples, DAY, &GUARD) else { return Ok(()) };
        prop_assert!(advice.request <= advice.high && advice.high <= advice.max);
        prop_assert!(advice.least.max <= advice.high && advice.least.p95 <= advice.request);
        prop_assert!(advice.working_set.p50 <= advice.working_set.p95 && advice.working_set.p95 <= advice.working_set.max);
        prop_assert!(advice.max > advice.peak || advice.peak == Bytes::ZERO);
        prop_assert!(advice.saved <= advice.current);
        // One more sample at which more was used never lowers a limit.
        let mut more = samples.clone();
        more.push(Sample { current: advice.peak + Bytes::mib(1), used: None, ..samples[0] });
        let larger = advise(&more, DAY, &GUARD).expect("advice");
        prop_assert!(larger.high >= advice.high && larger.max >= advice.max);
    }
}
