//! The worker thread, as the loop sees it: one order at a time, its progress, and its outcome.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use omr_engine::reclaim::Progress;

use crate::worker::{Order, Outcome, Setup, Worker, start};

/// The worker and what it is doing.
pub struct Work {
    thread: Worker,
    progress: Arc<Mutex<Progress>>,
    is_busy: bool,
}

impl Work {
    /// Starts the thread. `setup` is told where the thread shows its progress.
    pub fn start(setup: impl FnOnce(Arc<Mutex<Progress>>) -> Setup) -> Result<Self> {
        let progress = Arc::new(Mutex::new(Progress::default()));
        Ok(Work { thread: start(setup(Arc::clone(&progress)))?, progress, is_busy: false })
    }

    /// Gives it something to do.
    pub fn order(&mut self, order: Order) {
        self.is_busy = true;
        self.thread.order(order);
    }

    /// Tells it to end what it does; the outcome follows.
    pub fn stop(&self) {
        self.thread.stop();
    }

    /// The next outcome, if there is one. The worker is free then.
    pub fn outcome(&mut self) -> Option<Outcome> {
        let outcome = self.thread.report();
        self.is_busy &= outcome.is_none();
        outcome
    }

    /// Whether it has an order whose outcome is still to come.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// How far it is with what it does, or did last.
    pub fn progress(&self) -> Progress {
        self.progress.lock().map(|progress| *progress).unwrap_or_default()
    }

    /// Stops the thread and waits for its end. The outcome of its last order can still be had.
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
