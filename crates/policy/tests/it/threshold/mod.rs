//! The threshold of a group: cases, laws, its saved form, and simulated days.

mod agings;
mod cases;
mod laws;
mod model;
mod saved;
mod simulation;

use std::time::Duration;

use omr_policy::age::Bounds;
use omr_policy::threshold::{Interval, Promoted, STEPS, Slo, Step, Threshold};
use omr_units::{Bytes, Permyriad};

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn exactly(bytes: Bytes) -> Bounds {
    Bounds { least: bytes, most: bytes }
}

/// A minute of a group of 1 GiB with a working set of 500 MiB, in which this much was promoted at
/// 2 min, and at no longer age. 1 MiB is allowed.
fn minute(promoted: Bytes) -> Interval {
    interval(minutes(1), &[(0, promoted)])
}

/// As [`minute`], with these promotions from these steps of the grid on; zero at 8 h.
fn interval(length: Duration, promoted: &[(usize, Bytes)]) -> Interval {
    let at = |index: usize| Step::all().nth(index).expect("a step").age();
    let mut all: Vec<Promoted> =
        promoted.iter().map(|&(index, bytes)| Promoted { age: at(index), bytes: exactly(bytes) }).collect();
    let last = promoted.last().map_or(0, |&(index, _)| index + 1);
    if last < STEPS {
        all.push(Promoted { age: at(last), bytes: exactly(Bytes::ZERO) });
    }
    Interval {
        length,
        size: Bytes::mib(1024),
        promoted: all,
        swapped_in: Bytes::ZERO,
        working_set: Some(Bytes::mib(500)),
        stalled: Some(Permyriad::ZERO),
        write_budget_used: false,
        swap_at_floor: false,
    }
}

/// A threshold that has come down to the shortest age without a breach.
fn settled(slo: &Slo) -> Threshold {
    let mut threshold = Threshold::new(slo);
    for _ in 0..30 {
        threshold.observe(slo, &minute(Bytes::ZERO));
    }
    assert_eq!(threshold.step(), slo.least);
    threshold
}
