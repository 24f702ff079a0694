//! The worker thread, as the loop sees it: one order at a time, its progress, and its outcome.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use omr_config::BackendChoice;
use omr_engine::reclaim::Progress;
use omr_engine::reclaim::backend;
use omr_engine::reclaim::limit_journal::Journal;
use omr_kernel::Kernel;
use omr_policy::Mode;

use crate::host::Host;
use crate::settings::{Settings, actuator};
use crate::worker::{self, Order, Outcome, Setup, Worker};

/// The worker and its state.
pub struct Work {
    thread: Worker,
    progress: Arc<Mutex<Progress>>,
    journal: Option<Journal>,
    is_busy: bool,
}

impl Work {
    /// Restores limits that an earlier run has left behind, and starts the thread.
    pub fn start(host: &Host, settings: &Settings) -> Result<Self> {
        let setup = setup(host, settings)?;
        let (progress, journal) = (Arc::clone(&setup.progress), setup.journal.clone());
        Ok(Work::new(worker::start(setup)?, progress, journal))
    }

    /// A worker that is free.
    pub fn new(thread: Worker, progress: Arc<Mutex<Progress>>, journal: Option<Journal>) -> Self {
        Work { thread, progress, journal, is_busy: false }
    }

    /// Restores limits that the worker could not restore when it was done with them.
    pub fn restore_left_limits(&self, kernel: &Kernel) {
        if !self.is_busy
            && let Some(journal) = &self.journal
        {
            journal.restore_left(kernel, &mut *actuator(Mode::Act));
        }
    }

    /// Gives it an order.
    pub fn order(&mut self, order: Order) {
        self.is_busy = true;
        self.thread.order(order);
    }

    /// Holds its order before the next write, or lets it go on.
    pub fn hold(&self, held: bool) {
        self.thread.hold(held);
    }

    /// Tells it to end its order; the outcome follows.
    pub fn stop(&self) {
        self.thread.stop();
    }

    /// The next outcome, if there is one. The worker is free then.
    pub fn outcome(&mut self) -> Option<Outcome> {
        let outcome = self.thread.report();
        self.is_busy &= outcome.is_none();
        outcome
    }

    /// Returns true while the outcome of an order is still to come.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// The progress of the current order, or of the last one.
    pub fn progress(&self) -> Progress {
        self.progress.lock().map(|progress| *progress).unwrap_or_default()
    }

    /// Stops the thread and waits for its end. The outcome of its last order is still there.
    pub fn close(&mut self) {
        self.thread.close();
    }
}

impl AsFd for Work {
    /// Readable when there is an outcome.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

/// The parts of the thread, after limits that an earlier run has left behind were restored.
pub fn setup(host: &Host, settings: &Settings) -> Result<Setup> {
    let mode = settings.config.mode;
    Ok(Setup {
        kernel: Arc::clone(&host.kernel),
        root: host.root.clone(),
        actuator: settings.actuator(),
        new_actuator: Box::new(move || actuator(mode)),
        choice: settings.backend,
        journal: open_journal(host, settings.backend)?,
        progress: Arc::default(),
    })
}

/// The journal of changed limits, after left-over limits were restored. `None`: limits cannot be
/// changed; sweeps go on without memory.high. Restoring is the one write of mode "observe": it
/// undoes what an earlier omr has changed, and a group must not stay squeezed.
fn open_journal(host: &Host, backend: BackendChoice) -> Result<Option<Journal>> {
    match backend::journal(&host.kernel, &host.state_dir, &mut *actuator(Mode::Act)) {
        Ok(journal) => Ok(Some(journal)),
        Err(err) if backend == BackendChoice::High => Err(err.context("memory.high needs a journal")),
        Err(err) => {
            log::warn!("{err:#}");
            Ok(None)
        }
    }
}
