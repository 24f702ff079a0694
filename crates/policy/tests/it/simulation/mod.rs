//! The whole loop (`decide`, then `Pace` under a `Watch`, then `State::finished`) against a model
//! of a kernel and of the people who use the machine, for thousands of machine-hours, with faults.
//!
//! Everything follows from a seed. Each law is checked where it could be broken, and each check has
//! a test in which the loop is broken on purpose and the check must see it.

pub mod model;
mod run;

use omr_policy::End;

use model::MIB;
use run::{Broken, Kind, Loop, Report};

/// Simulates these machines for this many hours each.
fn simulate(kind: Kind, machines: std::ops::Range<u64>, hours: u64, broken: Broken) -> Report {
    let mut all = Report::default();
    for seed in machines {
        all.add(Loop::new(seed, broken, kind).run(hours));
    }
    let useful = all.freed / all.hours >= 20 * MIB;
    let freed = all.freed / all.hours / MIB;
    all.violate("something is reclaimed", useful, || format!("{freed} MiB an hour"));
    all
}

#[test]
fn thousands_of_machine_hours() {
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| simulate(Kind::AnyAge, 0..42, 24, Broken::No));
        [simulate(Kind::AnyAge, 42..84, 24, Broken::No), other.join().expect("no panic")]
    });
    let mut all = Report::default();
    halves.into_iter().for_each(|half| all.add(half));
    println!(
        "{} machine-hours, {} sweeps, {} stops, {} faults, {} GiB freed, {} GiB swapped out",
        all.hours,
        all.sweeps,
        all.stops,
        all.faults,
        all.freed >> 30,
        all.swapped >> 30
    );
    println!("sweeps ended: {:?}", all.ends);
    assert!(all.violations.is_empty(), "{:#?}", all.violations);
    for end in [End::Complete, End::Floor, End::Futile, End::Stopped, End::SwapFloor, End::WriteBudget, End::Gone] {
        assert!(all.ends.contains_key(end.words()), "no sweep ended with: {}", end.words());
    }
}

#[test]
fn the_same_seed_gives_the_same_hours() {
    let run = || simulate(Kind::AnyAge, 7..9, 6, Broken::No);
    let (one, two) = (run(), run());
    assert_eq!((one.sweeps, one.stops, one.digest), (two.sweeps, two.stops, two.digest));
    assert_ne!(one.digest, simulate(Kind::AnyAge, 8..10, 6, Broken::No).digest);
}

/// The negative controls.
#[test]
fn each_check_sees_the_loop_that_is_broken_for_it() {
    for (broken, law) in [
        (Broken::EverythingIsBackground, "only background is touched"),
        (Broken::NothingIsProtected, "floors hold"),
        (Broken::TheWatchIsDeaf, "work stops a sweep"),
        (Broken::WritesAreForgotten, "the write budget holds"),
        (Broken::SwapLooksFree, "swap keeps its floor"),
        (Broken::NothingIsEverDone, "no storm"),
        (Broken::UnknownIsZero, "no sweep while a signal is missing"),
        (Broken::SleepIsNotNoticed, "quiet after sleep"),
        (Broken::RefaultsAreNotSeen, "harm makes a group back off"),
        (Broken::OneLargeWrite, "no more than 1.25 times the amount is swapped out"),
        (Broken::EndsAreIgnored, "every job ends"),
        (Broken::Paused, "something is reclaimed"),
    ] {
        // There is a machine on which it shows, and only because of that.
        let violates = |seed, broken| simulate(Kind::AnyAge, seed..seed + 1, 12, broken).violations.contains_key(law);
        let seen = (0..12).any(|seed| violates(seed, broken) && !violates(seed, Broken::No));
        assert!(seen, "{broken:?} goes unnoticed");
    }
}

#[test]
fn hundreds_of_hours_of_sweeps_of_cold_memory_on_machines_that_are_not_idle() {
    let all = simulate(Kind::Cold, 0..16, 6, Broken::No);
    println!("{} sweeps, {} stops, {} GiB freed: {:?}", all.sweeps, all.stops, all.freed >> 30, all.ends);
    assert!(all.violations.is_empty(), "{:#?}", all.violations);
    for (broken, law) in [
        (Broken::TheWatchIsDeaf, "work stops a sweep"),
        (Broken::UnknownIsZero, "no sweep while a signal is missing"),
        (Broken::CpuTimeIsForgotten, "sweeps take half a percent of a CPU"),
        (Broken::EverythingIsBackground, "only background is touched"),
        (Broken::Paused, "something is reclaimed"),
    ] {
        let seen = (0..12).any(|seed| simulate(Kind::Cold, seed..seed + 1, 6, broken).violations.contains_key(law));
        assert!(seen, "{broken:?} goes unnoticed");
    }
}
