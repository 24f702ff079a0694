//! The one thread that reclaims, because a write to the kernel blocks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_config::{BackendChoice, Loaded};
use omr_engine::aging;
use omr_engine::prepare::free_page_reporting::{self, Blocks};
use omr_engine::prepare::{Done, Goal, Preparation};
use omr_engine::reclaim::backend::Backend;
use omr_engine::reclaim::generations::Evictor;
use omr_engine::reclaim::limit_journal::Journal;
use omr_engine::reclaim::{self, Progress, Report};
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Bytes, GroupId, Limit};

use super::hinting;
use super::thread::Thread;

/// What it is to do.
pub enum Order {
    /// Reclaim one group.
    Sweep(Sweep),
    /// Reclaim from one group after the other until a goal is reached, by this configuration.
    Prepare(Goal, Arc<Loaded>),
    /// Hint a process away.
    Hint(hinting::Order),
    /// Tell this machine's host what is free.
    HandBack,
}

/// How that went.
pub enum Outcome {
    /// Of a sweep of that group.
    Swept(GroupId, Report),
    /// Of a preparation.
    Prepared(Result<Done>),
    /// Of a hint.
    Hinted(hinting::Given),
    /// Of handing back; `None`: there is no host that could be told.
    HandedBack(Result<Option<Blocks>>),
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
    /// Only what was surely not used for so long.
    pub older_than: Option<Duration>,
}

/// What the thread needs to know.
pub struct Setup {
    /// The machine.
    pub kernel: Arc<Kernel>,
    /// The root of its files.
    pub root: PathBuf,
    /// Where writes go.
    pub actuator: Box<dyn Actuator>,
    /// Which way to ask for memory.
    pub choice: BackendChoice,
    /// For limits that are changed.
    pub journal: Option<Journal>,
    /// Told how far it is.
    pub progress: Arc<Mutex<Progress>>,
}

/// The thread.
pub type Worker = Thread<Order, Outcome>;

/// Starts it.
pub fn start(mut setup: Setup) -> Result<Worker> {
    Thread::start("omr-reclaim", move |inbox| {
        inbox.each(|order, stop| {
            show(&setup.progress, |progress| *progress = Progress::default());
            match order {
                Order::Sweep(sweep) => Outcome::Swept(sweep.id, carry_out(&mut setup, &sweep, stop)),
                Order::Prepare(goal, loaded) => Outcome::Prepared(prepare(&mut setup, &goal, &loaded, stop)),
                Order::Hint(order) => Outcome::Hinted(hinting::give(
                    &setup.kernel,
                    &mut *setup.actuator,
                    setup.journal.as_ref(),
                    &order,
                    stop,
                )),
                Order::HandBack => Outcome::HandedBack(free_page_reporting::run(&setup.kernel, &setup.root, stop)),
            }
        });
    })
}

/// How memory is taken from a group.
enum Way {
    /// By a file of the group.
    File(Backend),
    /// By generations.
    Ages { older_than: Duration },
}

fn show(progress: &Mutex<Progress>, change: impl FnOnce(&mut Progress)) {
    if let Ok(mut progress) = progress.lock() {
        change(&mut progress);
    }
}

fn prepare(setup: &mut Setup, goal: &Goal, loaded: &Loaded, stop: &Flag) -> Result<Done> {
    let mut preparation = Preparation {
        kernel: &setup.kernel,
        root: &setup.root,
        config: loaded,
        actuator: &mut *setup.actuator,
        journal: setup.journal.as_ref(),
        stop,
    };
    preparation.run(goal, &mut |freed| show(&setup.progress, |progress| progress.freed = freed))
}

fn carry_out(setup: &mut Setup, order: &Sweep, stop: &Flag) -> Report {
    let ready = setup.kernel.cgroup().map_err(anyhow::Error::from).and_then(|root| {
        let group = Group::open(root, &order.path)?;
        let way = match order.older_than {
            Some(older_than) => aging::require(&setup.kernel).map(|()| Way::Ages { older_than })?,
            None => Way::File(Backend::probe(setup.choice, &group, &mut *setup.actuator)?),
        };
        Ok((group, way))
    });
    let (group, way) = match ready {
        Ok((group, _)) if group.id() != order.id => return Report::nothing(&order.job, End::Gone, None),
        Ok(ready) => ready,
        Err(err) if reclaim::is_gone(&err) => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Unsupported, Some(format!("{err:#}"))),
    };
    let charged_to_children = match order.inner {
        // What the children hold counts towards the protection of the group above them.
        Some(own) => group.read_current(&mut Vec::new()).unwrap_or_default() - own,
        None => Bytes::ZERO,
    };
    let mut job = order.job.clone();
    // The scan's word on what is protected is up to half a minute old.
    match group.read_protection(&mut Vec::new()) {
        Ok(Limit::Bytes(protected)) => job.floor = job.floor.max(protected - charged_to_children),
        Ok(Limit::Max) => job.floor = Bytes::MAX,
        Err(err) if err.is_gone() => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Failed, Some(err.to_string())),
    }
    let Setup { kernel, actuator, journal, progress, .. } = setup;
    let mut tell = |now| show(progress, |progress| *progress = now);
    match way {
        Way::Ages { older_than } => Evictor::new(kernel, &mut **actuator, stop).without_aging().run(
            &group,
            job,
            order.inner,
            older_than,
            &mut tell,
        ),
        Way::File(backend) => {
            let (actuator, journal) = (&mut **actuator, journal.as_ref());
            reclaim::Worker { kernel, actuator, backend, journal, stop }.run(&group, job, order.inner, &mut tell)
        }
    }
}
