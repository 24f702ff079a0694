//! The one thread that reclaims, because a write to the kernel blocks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_config::{BackendChoice, Loaded};
use omr_engine::prepare::free_page_reporting::{self, Blocks};
use omr_engine::prepare::{Done, Goal, Preparation};
use omr_engine::reclaim::limit_journal::Journal;
use omr_engine::reclaim::{self, Method, Progress, Report, Target, Wish};
use omr_engine::warm::{self, Remembered};
use omr_engine::{Host, Session};
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_policy::End;
use omr_policy::pace::Job;
use omr_units::{Bytes, GroupId, Limit};

use super::companion::Companion;
use super::hint_job;
use super::thread::Thread;

/// One thing for the worker to do.
pub enum Order {
    /// Reclaim one group.
    Sweep(Sweep),
    /// Reclaim from one group after the other until a goal is reached, by this configuration.
    Prepare(Goal, Arc<Loaded>),
    /// Hint one process.
    Hint(hint_job::Order),
    /// Bring back what groups had in memory before.
    GiveBack(GiveBack),
    /// Tell this machine's host which memory is free.
    HandBack,
}

/// The outcome of an order.
pub enum Outcome {
    /// This group was swept.
    Swept(GroupId, Report),
    /// A preparation has ended.
    Prepared(Result<Done>),
    /// A process was hinted, and the machine has written this much to swap meanwhile.
    Hinted(hint_job::Given, Bytes),
    /// Memory was given back.
    GivenBack(Result<warm::Report>),
    /// The host was told; `None`: there is no host that could be told.
    HandedBack(Result<Option<Blocks>>),
}

/// One group to reclaim.
pub struct Sweep {
    /// Its identity.
    pub id: GroupId,
    /// Its path at the last scan.
    pub path: PathBuf,
    /// The amount to free, and its limits.
    pub job: Job,
    /// See [`Target::inner`].
    pub inner: Option<Bytes>,
    /// Only memory that surely was not used for this long; `None`: any memory.
    pub older_than: Option<Duration>,
    /// Its pages in memory are to be known before the sweep; `None`: they need not be.
    pub remember: Option<Remember>,
}

/// Keeps which pages of a group are in memory.
#[derive(Clone, Debug)]
pub struct Remember {
    /// The number of the absence: what is known of another one is forgotten.
    pub absence: u64,
    /// Who keeps them; `None`: the worker itself.
    pub companion: Option<Arc<Companion>>,
}

/// Groups that memory is given back to.
pub struct GiveBack {
    /// Their identities.
    pub groups: Vec<GroupId>,
    /// The configuration, which says which of them come first.
    pub loaded: Arc<Loaded>,
    /// Who has kept their pages; `None`: the worker itself.
    pub companion: Option<Arc<Companion>>,
}

/// The parts of the thread.
pub struct Setup {
    /// The machine.
    pub kernel: Arc<Kernel>,
    /// The root of its files.
    pub root: PathBuf,
    /// Every write goes through it.
    pub actuator: Box<dyn Actuator>,
    /// Makes one more, for a thread of its own.
    pub new_actuator: Box<dyn Fn() -> Box<dyn Actuator> + Send>,
    /// The configured file of the kernel.
    pub choice: BackendChoice,
    /// The journal of changed limits; `None`: no limit may be changed.
    pub journal: Option<Journal>,
    /// The progress of its order.
    pub progress: Arc<Mutex<Progress>>,
}

/// The thread that reclaims.
pub type Worker = Thread<Order, Outcome>;

/// Starts the thread.
pub fn start(setup: Setup) -> Result<Worker> {
    let mut reclaimer = Reclaimer::new(setup);
    Thread::start("omr-reclaim", move |inbox| inbox.each(|order, stop| reclaimer.carry_out(order, stop)))
}

/// Carries out orders.
pub struct Reclaimer {
    setup: Setup,
    remembered: Remembered,
}

impl Reclaimer {
    /// It has carried out no order yet.
    pub fn new(setup: Setup) -> Self {
        Reclaimer { setup, remembered: Remembered::default() }
    }

    /// Carries out one order.
    pub fn carry_out(&mut self, order: Order, stop: &Flag) -> Outcome {
        let Reclaimer { setup, remembered } = self;
        show(&setup.progress, |progress| *progress = Progress::default());
        match order {
            Order::Sweep(sweep) => Outcome::Swept(sweep.id, carry_out(setup, remembered, &sweep, stop)),
            Order::Prepare(goal, loaded) => Outcome::Prepared(prepare(setup, &goal, &loaded, stop)),
            Order::Hint(order) => {
                let (given, swapped_out) = setup.session(stop, &mut |_| {}, |session| hint_job::give(session, &order));
                Outcome::Hinted(given, swapped_out)
            }
            Order::GiveBack(order) => Outcome::GivenBack(give_back(setup, remembered, &order, stop)),
            Order::HandBack => {
                Outcome::HandedBack(free_page_reporting::run(&setup.kernel, &setup.root, &*setup.new_actuator, stop))
            }
        }
    }
}

impl Setup {
    /// Begins a run of the engine. `tell` changes the progress that the loop sees.
    fn session<R>(
        &mut self,
        cancel: &Flag,
        tell: &mut dyn FnMut(Progress),
        work: impl FnOnce(&mut Session<'_>) -> R,
    ) -> R {
        work(&mut Session {
            host: Host { kernel: &self.kernel, root: &self.root },
            actuator: &mut *self.actuator,
            journal: self.journal.as_ref(),
            cancel,
            progress: tell,
        })
    }
}

fn show(progress: &Mutex<Progress>, change: impl FnOnce(&mut Progress)) {
    if let Ok(mut progress) = progress.lock() {
        change(&mut progress);
    }
}

fn prepare(setup: &mut Setup, goal: &Goal, loaded: &Loaded, cancel: &Flag) -> Result<Done> {
    let progress = Arc::clone(&setup.progress);
    let mut tell = |now: Progress| show(&progress, |progress| progress.freed = now.freed);
    setup.session(cancel, &mut tell, |session| Preparation { session, config: loaded, after_zram: false }.run(goal))
}

fn give_back(setup: &mut Setup, remembered: &mut Remembered, order: &GiveBack, stop: &Flag) -> Result<warm::Report> {
    let progress = Arc::clone(&setup.progress);
    let mut tell = |asked| show(&progress, |progress| progress.hinted = asked);
    if let Some(companion) = &order.companion {
        return companion.give_back(&order.groups, stop, &mut tell);
    }
    let host = Host { kernel: &setup.kernel, root: &setup.root };
    remembered.give_back(host, &order.loaded, &order.groups, &mut *setup.actuator, stop, &mut tell)
}

fn remember(setup: &Setup, remembered: &mut Remembered, how: &Remember, order: &Sweep, cancel: &Flag) -> Result<()> {
    match &how.companion {
        Some(companion) => companion.remember(how.absence, order.id, &order.path, cancel),
        None => remembered.add(&setup.kernel, how.absence, order.id, &order.path, cancel),
    }
}

fn carry_out(setup: &mut Setup, remembered: &mut Remembered, order: &Sweep, cancel: &Flag) -> Report {
    let wish = match order.older_than {
        // An aging cannot be interrupted; the daemon ages groups by a thread of its own.
        Some(older_than) => Wish::Cold { older_than, may_age: false },
        None => Wish::Any(setup.choice),
    };
    let ready = setup.kernel.cgroup().map_err(anyhow::Error::from).and_then(|root| {
        let group = Group::open(root, &order.path)?;
        let method = Method::choose(&setup.kernel, wish, &group, &mut *setup.actuator)?;
        Ok((group, method))
    });
    let (group, mut method) = match ready {
        Ok((group, _)) if group.id() != order.id => return Report::nothing(&order.job, End::Gone, None),
        Ok(ready) => ready,
        Err(err) if reclaim::is_gone(&err) => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Unsupported, Some(format!("{err:#}"))),
    };
    let charged_to_children = match order.inner {
        // The memory of the children counts towards the protection of the group above them.
        Some(own) => group.read_current(&mut Vec::new()).unwrap_or_default() - own,
        None => Bytes::ZERO,
    };
    if let Some(how) = &order.remember
        && let Err(err) = remember(setup, remembered, how, order, cancel)
    {
        let end = if cancel.is_set() { End::Stopped } else { End::Failed };
        return Report::nothing(&order.job, end, Some(format!("{err:#}")));
    }
    let mut job = order.job.clone();
    // The scan is up to half a minute old, and protection may have changed since.
    match group.read_protection(&mut Vec::new()) {
        Ok(Limit::Bytes(protected)) => job.floor = job.floor.max(protected - charged_to_children),
        Ok(Limit::Max) => job.floor = Bytes::MAX,
        Err(err) if err.is_gone() => return Report::nothing(&order.job, End::Gone, None),
        Err(err) => return Report::nothing(&order.job, End::Failed, Some(err.to_string())),
    }
    let progress = Arc::clone(&setup.progress);
    let mut tell = |now| show(&progress, |progress| *progress = now);
    let target = Target { group: &group, inner: order.inner };
    setup.session(cancel, &mut tell, |session| session.reclaim(&mut method, target, job))
}
