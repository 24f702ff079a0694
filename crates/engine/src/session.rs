//! The session: the environment of every run of the engine, for all methods.

use std::path::Path;

use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_kernel::Kernel;
use omr_policy::End;
use omr_units::Bytes;

use crate::reclaim::limit_journal::Journal;

/// The machine that the engine works on.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The interfaces of its kernel.
    pub kernel: &'a Kernel,
    /// The directory below which omr's own files are: `/`, except in tests.
    pub root: &'a Path,
}

/// Makes actuators, for a thread or a monitor that outlives the call: only the caller knows if
/// writes may reach the kernel.
pub type NewActuator<'a> = &'a dyn Fn() -> Box<dyn Actuator>;

/// One run of the engine: where it works, how it writes, and how it is cancelled.
///
/// Every write goes through `actuator`. The engine makes no actuator of its own, so a session with
/// [`DryRun`](omr_actuate::DryRun) writes nothing to the kernel.
pub struct Session<'a> {
    /// The machine.
    pub host: Host<'a>,
    /// Every write goes through it.
    pub actuator: &'a mut dyn Actuator,
    /// The journal of changed limits; `None`: no limit may be changed.
    pub journal: Option<&'a Journal>,
    /// The flag that ends the run.
    pub cancel: &'a Flag,
    /// A function that is called with the progress.
    pub progress: &'a mut dyn FnMut(Progress),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Freed so far.
    pub freed: Bytes,
    /// Written to swap so far, by the whole machine.
    pub swapped_out: Bytes,
    /// Hinted so far, if processes are hinted.
    pub hinted: Bytes,
}

impl Session<'_> {
    /// Returns the end of a run that is cancelled now; `None`: the run continues.
    pub fn cancelled(&self) -> Option<End> {
        cancelled(self.cancel)
    }

    /// As [`cancelled`](Session::cancelled), before the next write: waits while the run is held.
    pub fn cancelled_after_hold(&self) -> Option<End> {
        self.cancel.wait_while_held();
        self.cancelled()
    }

    /// Returns the same session with another function for the progress.
    pub fn with_progress<'b>(&'b mut self, progress: &'b mut dyn FnMut(Progress)) -> Session<'b> {
        let Session { host, actuator, journal, cancel, .. } = self;
        Session { host: *host, actuator: &mut **actuator, journal: *journal, cancel, progress }
    }

    /// Runs one part of a run. Its progress is added to that of the earlier parts, `before`.
    pub fn run_part<R>(&mut self, before: Progress, work: impl FnOnce(&mut Session<'_>) -> R) -> R {
        let Session { host, actuator, journal, cancel, progress } = self;
        let mut sum = |now: Progress| {
            progress(Progress { freed: before.freed + now.freed, hinted: before.hinted + now.hinted, ..now });
        };
        let mut part =
            Session { host: *host, actuator: &mut **actuator, journal: *journal, cancel, progress: &mut sum };
        work(&mut part)
    }
}

/// Returns the end of a run with this flag; `None`: the flag is not set.
pub fn cancelled(flag: &Flag) -> Option<End> {
    flag.is_set().then(|| if flag.timed_out() { End::Timeout } else { End::Stopped })
}

#[cfg(test)]
mod tests {
    use omr_actuate::DryRun;
    use omr_testkit::FakeRoot;

    use super::*;

    #[test]
    fn the_progress_of_a_part_is_added_to_that_of_the_parts_before_it() {
        let root = FakeRoot::new();
        let kernel = Kernel::open(root.path()).expect("a root");
        let (cancel, mut seen) = (Flag::default(), Vec::new());
        let mut session = Session {
            host: Host { kernel: &kernel, root: root.path() },
            actuator: &mut DryRun,
            journal: None,
            cancel: &cancel,
            progress: &mut |now| seen.push((now.freed, now.hinted, now.swapped_out)),
        };
        let amounts = |freed, hinted, swapped_out| Progress {
            freed: Bytes(freed),
            hinted: Bytes(hinted),
            swapped_out: Bytes(swapped_out),
        };
        let result = session.run_part(amounts(10, 20, 30), |part| {
            (part.progress)(amounts(1, 2, 3));
            part.cancelled()
        });
        assert_eq!(result, None);
        // What the machine wrote to swap is counted as a whole already.
        assert_eq!(seen, [(Bytes(11), Bytes(22), Bytes(3))]);
    }

    #[test]
    fn a_run_that_was_held_is_cancelled_before_its_next_write() {
        let root = FakeRoot::new();
        let kernel = Kernel::open(root.path()).expect("a root");
        let cancel = Flag::default();
        let session = Session {
            host: Host { kernel: &kernel, root: root.path() },
            actuator: &mut DryRun,
            journal: None,
            cancel: &cancel,
            progress: &mut |_| {},
        };
        assert_eq!((session.cancelled(), session.cancelled_after_hold()), (None, None));
        cancel.set();
        assert_eq!((session.cancelled(), session.cancelled_after_hold()), (Some(End::Stopped), Some(End::Stopped)));
    }
}
