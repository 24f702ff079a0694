//! Waiting for events. Sources are registered with their event, in the order in which events are
//! handled.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is time to look whether somebody has begun to work.
    Sample,
    /// A task waits for memory.
    Stall,
    /// The worker has something to report.
    Worker,
    /// Groups say something else of themselves.
    Attributes,
    /// A second has passed.
    Tick,
    /// The client of that number is ready.
    Client(usize),
    /// Somebody wants to connect.
    Connect,
    /// A signal came.
    Signal,
}

/// The sources that are waited for.
#[derive(Default)]
pub struct Sources<'a> {
    fds: Vec<PollFd<'a>>,
    events: Vec<Event>,
}

impl<'a> Sources<'a> {
    /// Registers a source that is ready when it can be read.
    pub fn add(&mut self, event: Event, source: &'a impl AsFd) {
        self.add_fd(event, source.as_fd(), PollFlags::IN);
    }

    /// Registers a descriptor, and what to wait for.
    pub fn add_fd(&mut self, event: Event, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
        self.events.push(event);
    }

    /// Waits until something happens, or not at all where `is_waiting` is false. Returns what
    /// happened, in the order in which the sources were registered; nothing when a signal
    /// interrupted it.
    pub fn wait(mut self, is_waiting: bool) -> Result<Vec<Event>> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut self.fds, (!is_waiting).then_some(&none)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(err) => return Err(err).context("poll"),
        }
        // A pressure file has an error when its trigger is gone: that is no stall.
        let is_ready = |fd: &PollFd<'_>, event: Event| match event {
            Event::Stall => fd.revents().contains(PollFlags::PRI),
            _ => !fd.revents().is_empty(),
        };
        let ready = self.fds.iter().zip(self.events).filter(|(fd, event)| is_ready(fd, *event));
        Ok(ready.map(|(_, event)| event).collect())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn events_come_in_the_order_in_which_their_sources_were_registered() {
        let source = |count| eventfd(count, EventfdFlags::NONBLOCK).expect("an eventfd");
        let (tick, worker, signal) = (source(1), source(0), source(1));
        let mut sources = Sources::default();
        sources.add(Event::Signal, &signal);
        sources.add(Event::Worker, &worker);
        sources.add(Event::Tick, &tick);
        assert_eq!(sources.wait(true).expect("waited"), [Event::Signal, Event::Tick]);
        // Without waiting, and with nothing ready: nothing.
        let mut sources = Sources::default();
        sources.add(Event::Worker, &worker);
        assert_eq!(sources.wait(false).expect("polled"), []);
    }
}
