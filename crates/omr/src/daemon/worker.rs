//! The one thread that reclaims, because a write to the kernel blocks. The loop gives it a job, may
//! stop it, and hears from it through an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use omr_kernel::Kernel;
use omr_kernel::actuate::Actuator;
use omr_kernel::memcg::Group;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Bytes, GroupId, Limit};
use rustix::event::{EventfdFlags, eventfd};

use crate::backend::Backend;
use crate::config::{BackendChoice, Loaded};
use crate::limits::Journal;
use crate::prepare::{Done, Goal, Preparation};
use crate::reclaim::{self, Progress, Report};
use crate::stop::Flag;

/// Deep enough for reading files and printing numbers; all of it may become resident.
const STACK: usize = 128 << 10;

/// What it is to do.
pub enum Order {
    /// Reclaim one group.
    Sweep(Sweep),
    /// Reclaim from one group after the other until a goal is reached, by this configuration.
    Prepare(Goal, Arc<Loaded>),
}

/// How that went.
pub enum Outcome {
    /// Of a sweep of that group.
    Swept(GroupId, Report),
    /// Of a preparation.
    Prepared(Result<Done>),
}

/// One group to reclaim.
pub struct Sweep {
    /// Which.
    pub id: GroupId,
    /// Where it was at the last scan.
    pub path: PathBuf,
    /// How.
    pub job: Job,
    /// See [`reclaim::Worker::run`].
    pub inner: Option<Bytes>,
}

/// The thread and what goes to and fro.
pub struct Worker {
    orders: Option<Sender<Order>>,
    reports: Receiver<Outcome>,
    stop: Arc<Flag>,
    progress: Arc<Mutex<Progress>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread needs to know.
pub struct Setup {
    /// The machine.
    pub kernel: Arc<Kernel>,
    /// Where writes go.
    pub actuator: Box<dyn Actuator>,
    /// Which way to ask for memory.
    pub choice: BackendChoice,
    /// For limits that are changed.
    pub journal: Option<Journal>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(setup: Setup) -> Result<Self> {
        let (orders, inbox) = channel::<Order>();
        let (outbox, reports) = channel();
        let stop = Arc::new(Flag::default());
        let progress = Arc::new(Mutex::new(Progress::default()));
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?);
        let thread = {
            let (stop, progress, wake) = (Arc::clone(&stop), Arc::clone(&progress), Arc::clone(&wake));
            let mut setup = setup;
            std::thread::Builder::new()
                .name("omr-reclaim".into())
                .stack_size(STACK)
                .spawn(move || {
                    while let Ok(order) = inbox.recv() {
                        let outcome = match order {
                            Order::Sweep(sweep) => {
                                Outcome::Swept(sweep.id, carry_out(&mut setup, &sweep, &stop, &progress))
                            }
                            Order::Prepare(goal, loaded) => {
                                Outcome::Prepared(prepare(&mut setup, &goal, &loaded, &stop, &progress))
                            }
                        };
                        if outbox.send(outcome).is_err() {
                            break;
                        }
                        let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
                    }
                })
                .context("start the reclaim thread")?
        };
        Ok(Worker { orders: Some(orders), reports, stop, progress, wake, thread: Some(thread) })
    }

    /// Gives it a job.
    pub fn order(&self, order: Order) {
        self.stop.clear();
        if let Ok(mut progress) = self.progress.lock() {
            *progress = Progress::default();
        }
        if let Some(orders) = &self.orders {
            // The receiver lives as long as the thread, and the thread as long as this sender.
            let _ = orders.send(order);
        }
    }

    /// Tells it to end what it does; its report follows.
    pub fn stop(&self) {
        self.stop.set();
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress.lock().map(|progress| *progress).unwrap_or_default()
    }

    /// The next report, if there is one.
    pub fn report(&self) -> Option<Outcome> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.reports.try_recv().ok()
    }

    /// Stops it and waits for its end; the report of a job that was running can still be had.
    pub fn close(&mut self) {
        self.stop.set();
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl AsFd for Worker {
    /// Readable when there is a report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn prepare(setup: &mut Setup, goal: &Goal, loaded: &Loaded, stop: &Flag, progress: &Mutex<Progress>) -> Result<Done> {
    let mut preparation = Preparation {
        kernel: &setup.kernel,
        config: loaded,
        actuator: &mut *setup.actuator,
        journal: setup.journal.as_ref(),
        stop,
    };
    preparation.run(goal, &mut |freed| {
        if let Ok(mut progress) = progress.lock() {
            progress.freed = freed;
        }
    })
}

fn carry_out(setup: &mut Setup, order: &Sweep, stop: &Flag, progress: &Mutex<Progress>) -> Report {
    let ready = setup.kernel.cgroup().map_err(anyhow::Error::from).and_then(|root| {
        let group = Group::open(root, &order.path)?;
        let backend = Backend::probe(setup.choice, &group, &mut *setup.actuator)?;
        Ok((group, backend))
    });
    let (group, backend) = match ready {
        Ok((group, _)) if group.id() != order.id => return Report::nothing(&order.job, End::Gone, None),
        Ok(ready) => ready,
        Err(err) if reclaim::is_gone(&err) => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Unsupported, Some(format!("{err:#}"))),
    };
    let in_children = match order.inner {
        // What the children hold counts towards the protection of the group above them.
        Some(own) => group.read_current(&mut Vec::new()).unwrap_or_default() - own,
        None => Bytes::ZERO,
    };
    let mut worker = reclaim::Worker {
        kernel: &setup.kernel,
        actuator: &mut *setup.actuator,
        backend,
        journal: setup.journal.as_ref(),
        stop,
    };
    let mut job = order.job.clone();
    // The scan's word on what is protected is up to half a minute old.
    match group.read_protection(&mut Vec::new()) {
        Ok(Limit::Bytes(protected)) => job.floor = job.floor.max(protected - in_children),
        Ok(Limit::Max) => job.floor = Bytes::MAX,
        Err(err) if err.is_gone() => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Failed, Some(err.to_string())),
    }
    worker.run(&group, job, order.inner, &mut |now| {
        if let Ok(mut progress) = progress.lock() {
            *progress = now;
        }
    })
}
