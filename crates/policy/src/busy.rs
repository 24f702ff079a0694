//! Notices foreground work during a sweep.
//!
//! The daemon samples the CPU time of everything outside the background groups some fifty times a
//! second. A load above the one under which the sweep began, by more than `stop.cpu`, ends the
//! sweep.

use alloc::borrow::ToOwned;
use core::time::Duration;

use omr_units::{Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::config::Stop;
use crate::reason::Reason;

/// A held sweep goes on when no work was seen for this time.
const QUIET: Duration = Duration::from_millis(200);
/// Work that goes on for this time is no tick: it ends the sweep.
const LASTING: Duration = Duration::from_secs(1);

/// A sweep that waits for a load to become even again waits for this time at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// A load that goes on all day is uneven: as much as its least may be added to it, up to this share
/// of a CPU, so that a program that begins to use one CPU is always noticed.
const MOST_UNEVEN: Permyriad = Permyriad::percent(50);

/// The steady load is measured anew over this time: long enough for a load that comes in bursts.
const STEADY: Duration = Duration::from_secs(1);

/// Samples the CPU time used outside the background groups while a sweep runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyWatch {
    /// The share of a CPU that is allowed in addition to the steady load.
    above: Permyriad,
    /// The steady load, as a share of one CPU.
    steady: Permyriad,
    /// The steady load follows a lower one down to this much above it, as uneven loads go down by
    /// themselves.
    #[serde(default)]
    slack: Permyriad,
    /// The load of the last whole second, as a share of one CPU.
    #[serde(default)]
    second: Permyriad,
    /// The sample before this one.
    previous: Sample,
    /// The sum of all samples since the steady load was last measured.
    since: Sample,
    /// CPU time of samples in which no time passed: it counts in the next one.
    owed: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sample {
    dt: Duration,
    used: Duration,
}

impl Sample {
    fn with(self, other: Sample) -> Sample {
        Sample { dt: self.dt.saturating_add(other.dt), used: self.used.saturating_add(other.used) }
    }

    fn share(self) -> Permyriad {
        Permyriad::of_time(self.used, self.dt)
    }
}

impl BusyWatch {
    /// A watch for a sweep that began under a `steady` load, as a share of one CPU.
    pub fn new(config: &Stop, steady: Permyriad) -> Self {
        let none = Sample::default();
        BusyWatch {
            above: config.cpu,
            steady,
            slack: Permyriad::ZERO,
            second: Permyriad::ZERO,
            previous: none,
            since: none,
            owed: Duration::ZERO,
        }
    }

    /// A watch for a sweep of cold memory on a machine with this load at least, as a share of one
    /// CPU. It allows for the unevenness of a load that goes on all day.
    pub fn of_cold(config: &Stop, least: Permyriad) -> Self {
        let above = least.min(MOST_UNEVEN).max(config.cpu);
        BusyWatch { above, slack: Permyriad(above.0.saturating_sub(config.cpu.0) / 3), ..BusyWatch::new(config, least) }
    }

    /// Whether the load of the last whole second, and not only that of some samples, is more than
    /// is allowed.
    pub fn is_work_lasting(&self) -> bool {
        self.second > self.allowed()
    }

    fn allowed(&self) -> Permyriad {
        Permyriad(self.steady.0.saturating_add(self.above.0))
    }

    /// Takes in a sample: CPU time `used` outside background groups within `dt`; `None`: unknown,
    /// which ends the sweep. Two samples count together, so that a timer tick that falls into one
    /// of them is not mistaken for work. Returns why the sweep must end, or `None`.
    pub fn sample(&mut self, dt: Duration, used: Option<Duration>) -> Option<Reason> {
        let Some(used) = used else {
            return Some(Reason::Unknown { signal: "the CPU time of foreground work".to_owned() });
        };
        let used = used.saturating_add(core::mem::take(&mut self.owed));
        if dt.is_zero() {
            self.owed = used;
            return None;
        }
        let sample = Sample { dt, used };
        let previous = core::mem::replace(&mut self.previous, sample);
        let allowed = self.allowed();
        // A load that has gone must not hide a new one.
        self.since = self.since.with(sample);
        if self.since.dt >= STEADY {
            self.second = core::mem::take(&mut self.since).share();
            self.steady = self.steady.min(Permyriad(self.second.0.saturating_add(self.slack.0)));
        }
        if previous.dt.is_zero() {
            return None;
        }
        let used = previous.with(sample).share();
        (used > allowed).then_some(Reason::WorkBegan { used, allowed })
    }
}

/// What a sweep does after a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes on.
    Go,
    /// It writes nothing until it may go on.
    Hold,
    /// It ends.
    End(Reason),
}

/// Lets a sweep of cold memory yield to a tick of some program: a JVM, Redis or a browser in the
/// background works for a moment many times a minute. Only work that lasts ends the sweep. With a
/// patient one, an uneven load alone does not: the sweep waits for a gap in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Yielding {
    /// When the sweep was held, and when work was last seen; `None`: it is not held.
    held: Option<(Monotonic, Monotonic)>,
    /// Samples with work end the sweep only if the load of a whole second was too much, too.
    #[serde(default)]
    is_patient: bool,
}

impl Yielding {
    /// For a watch made by [`BusyWatch::of_cold`].
    pub fn patient() -> Self {
        Yielding { held: None, is_patient: true }
    }

    /// Takes a sample, and returns what follows from [`BusyWatch::sample`].
    pub fn watch(&mut self, now: Monotonic, watch: &mut BusyWatch, dt: Duration, used: Option<Duration>) -> Step {
        let busy = watch.sample(dt, used);
        self.sample(now, busy, watch.is_work_lasting())
    }

    /// Takes in what [`BusyWatch::sample`] and [`BusyWatch::is_work_lasting`] returned.
    pub fn sample(&mut self, now: Monotonic, busy: Option<Reason>, is_lasting: bool) -> Step {
        let longest = if self.is_patient && !is_lasting { PATIENCE } else { LASTING };
        match (busy, self.held) {
            (Some(reason @ Reason::WorkBegan { .. }), Some((since, _))) if now.since(since) >= longest => {
                Step::End(reason)
            }
            (Some(Reason::WorkBegan { .. }), held) => {
                self.held = Some((held.map_or(now, |(since, _)| since), now));
                Step::Hold
            }
            (Some(reason), _) => Step::End(reason),
            (None, Some((_, seen))) if now.since(seen) < QUIET => Step::Hold,
            (None, _) => {
                self.held = None;
                Step::Go
            }
        }
    }
}
