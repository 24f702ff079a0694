//! A thread that carries out orders, one after the other, can be told to end one early, and is
//! heard from through an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use omr_base::cancel::Flag;
use rustix::event::{EventfdFlags, eventfd};

/// Deep enough for reading files and printing numbers; all of it may become resident.
const STACK: usize = 128 << 10;

/// A thread, and the channels to and from it.
pub struct Thread<O, R> {
    orders: Option<Sender<O>>,
    reports: Receiver<R>,
    stop: Arc<Flag>,
    wake: Arc<OwnedFd>,
    handle: Option<JoinHandle<()>>,
}

/// The thread's end of the channels.
pub struct Inbox<O, R> {
    orders: Receiver<O>,
    reports: Sender<R>,
    stop: Arc<Flag>,
    wake: Arc<OwnedFd>,
}

impl<O: Send + 'static, R: Send + 'static> Thread<O, R> {
    /// Starts it.
    pub fn start(name: &str, work: impl FnOnce(Inbox<O, R>) + Send + 'static) -> Result<Self> {
        let (mut thread, inbox) = Thread::pair()?;
        let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
        let handle = builder.spawn(move || work(inbox)).with_context(|| format!("start the thread {name}"))?;
        thread.handle = Some(handle);
        Ok(thread)
    }

    /// Both ends, without a thread. A test carries out the orders itself.
    pub fn pair() -> Result<(Self, Inbox<O, R>)> {
        let (orders, inbox) = channel();
        let (outbox, reports) = channel();
        let stop = Arc::new(Flag::default());
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?);
        let inbox = Inbox { orders: inbox, reports: outbox, stop: Arc::clone(&stop), wake: Arc::clone(&wake) };
        Ok((Thread { orders: Some(orders), reports, stop, wake, handle: None }, inbox))
    }

    /// Gives it an order.
    pub fn order(&self, order: O) {
        self.stop.clear();
        if let Some(orders) = &self.orders {
            // The receiver lives as long as the thread, and the thread as long as this sender.
            let _ = orders.send(order);
        }
    }

    /// Holds its order before the next write, or lets it go on.
    pub fn hold(&self, held: bool) {
        self.stop.hold(held);
    }

    /// Tells it to end its order; its report follows.
    pub fn stop(&self) {
        self.stop.set();
    }

    /// The next report, if there is one.
    pub fn report(&self) -> Option<R> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.reports.try_recv().ok()
    }

    /// Stops it and waits for its end. The report of its last order is still there.
    pub fn close(&mut self) {
        self.stop.set();
        self.orders = None;
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

impl<O, R> AsFd for Thread<O, R> {
    /// Readable when there is a report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl<O, R> Inbox<O, R> {
    /// The next order, if there is one, for a test that plays the thread.
    #[cfg(test)]
    pub fn try_next(&self) -> Option<O> {
        self.orders.try_recv().ok()
    }

    /// Reports the result of an order, for a test that plays the thread.
    #[cfg(test)]
    pub fn report(&self, report: R) {
        self.reports.send(report).expect("the loop is there");
    }

    /// The flag that ends an order, for a test that plays the thread.
    #[cfg(test)]
    pub fn flag(&self) -> Arc<Flag> {
        Arc::clone(&self.stop)
    }

    /// Returns true if the order is to end, for a test that plays the thread.
    #[cfg(test)]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// Returns true if the order is held, for a test that plays the thread.
    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        self.stop.is_held()
    }

    /// Carries out orders until there will be no more.
    pub fn each(self, mut work: impl FnMut(O, &Flag) -> R) {
        while let Ok(order) = self.orders.recv() {
            if self.reports.send(work(order, &self.stop)).is_err() {
                break;
            }
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}
