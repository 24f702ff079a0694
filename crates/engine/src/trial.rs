//! Carrying out a trial ([`omr_policy::trial`]): the group is brought down by paced reclaim first, and
//! limited by `memory.high` then, so that no task of it has to reclaim the difference.
//!
//! Where MGLRU is on, the group is aged twice in each look: reclaim that knows nothing of what is used
//! takes what is used with what is not (a first step of a fifth of a group of which three fifths were
//! cold: 22 % of it came back within a minute, against none).
//!
//! What `memory.high` held is in the journal of limits before it is touched, and put back in the end,
//! however that comes: after kill -9 by a process that waits for that.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_actuate::Outcome;
use omr_base::cancel::{Alarm, Flag};
use omr_base::exit::Exit;
use omr_kernel::memcg::Group;
use omr_kernel::psi::{self, Resource};
use omr_kernel::{Kernel, clock};
use omr_policy::trial::{Next, Plan, Trial, TrialSample};
use omr_policy::{Config, End, swap_floor};
use omr_units::{Bytes, Limit, Monotonic};

use crate::aging;
use crate::aging::observe::Observer;
use crate::reclaim::backend::Backend;
use crate::reclaim::generations::{swap_left, with_swap_limit};
use crate::reclaim::limit_journal::{Borrowed, Guard};
use crate::reclaim::{Method, job, swap_context};
use crate::session::Session;

/// How often the guard is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long a write to `memory.high` may reclaim what has come back since.
const WRITE_TIME: Duration = Duration::from_millis(50);
const HIGH: &str = "memory.high";

/// Why a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It came to its end.
    Over,
    /// A signal.
    Stopped,
    /// The group is gone.
    Gone,
    /// No process is in it any more: nobody is there who could miss anything.
    Empty,
    /// Somebody else has set `memory.high` meanwhile; that stands.
    Theirs(Limit),
}

/// Carries out one trial of one group.
pub struct TrialRunner<'a> {
    session: Session<'a>,
    group: &'a Group,
    config: &'a Config,
    backend: Backend,
    /// `memory.high` as the user has set it.
    own: Borrowed<'a>,
    /// `memory.high` as this trial has set it.
    stands: Limit,
    _guard: Guard,
    alarm: Alarm,
    ages: Option<Observer<'a>>,
    aged: Monotonic,
}

/// The group now.
pub fn read(kernel: &Kernel, group: &Group) -> Result<TrialSample> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let refaults = group.read_stat(&mut buffer)?.refaults_with_swap_ins().map(|pages| pages.bytes(kernel.page()));
    let stall = psi::read_group_some_total(group.dir(), Resource::Memory, &mut buffer);
    Ok(TrialSample { at: clock::read_monotonic(), current, stall, refaults })
}

/// What of a group cannot leave memory: all but page cache, and as much of the rest as swap has room for.
pub fn read_fixed(kernel: &Kernel, group: &Group, config: &Config) -> Result<Bytes> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let stat = group.read_stat(&mut buffer)?;
    let known = |field: Option<Bytes>| field.context("memory.stat lacks what the group's memory consists of");
    let cache = known(stat.page_cache())?;
    let swap_backed = known(stat.swap_backed())? - stat.unevictable.unwrap_or_default();
    let context = swap_context(kernel);
    let free = context.swap.map_or(Bytes::ZERO, |swap| swap.free - swap_floor(config, context, swap_backed));
    let room = free.min(swap_left(&with_swap_limit(kernel, group)?, &mut buffer)?);
    Ok(current - cache - swap_backed.min(room))
}

impl<'a> TrialRunner<'a> {
    /// Prepares a trial: nothing is changed but for the note in the session's journal. To be called while
    /// this process has one thread: see [`guard`](crate::reclaim::limit_journal::guard).
    pub fn new(session: Session<'a>, group: &'a Group, config: &'a Config, backend: Backend) -> Result<Self> {
        let kernel = session.host.kernel;
        let journal = session.journal.context("memory.high is changed only with a journal")?;
        let before = group.read_limit(HIGH, &mut Vec::new())?;
        let Some(own) = journal.borrow(group, HIGH, before)? else {
            bail!("another omr is changing the limits of this group; nothing was tried");
        };
        let guard = journal.guard(kernel, group.id(), session.actuator)?;
        Ok(TrialRunner {
            session,
            group,
            config,
            backend,
            own,
            stands: before,
            _guard: guard,
            alarm: Alarm::new(),
            ages: aging::require(kernel).is_ok().then(|| Observer::new(kernel)),
            aged: Monotonic::default(),
        })
    }

    /// What `memory.high` holds by the user's will.
    pub fn own(&self) -> Limit {
        self.own.before()
    }

    /// Carries it out, and gives the group back what it had. `step` is called with it as it goes.
    pub fn run(&mut self, plan: Plan, step: &mut dyn FnMut(&Trial)) -> Result<(Trial, Ended)> {
        let mut trial = Trial::new(plan, read(self.session.host.kernel, self.group)?);
        let ended = self.steps(&mut trial, step);
        let ended = match ended {
            Err(err) if crate::reclaim::is_gone(&err) => Ok(Ended::Gone),
            ended => ended,
        };
        if !matches!(ended, Ok(Ended::Theirs(_))) {
            self.give_back()?;
        }
        self.own.leave();
        Ok((trial, ended?))
    }

    fn steps(&mut self, trial: &mut Trial, step: &mut dyn FnMut(&Trial)) -> Result<Ended> {
        let mut next = trial.next(&read(self.session.host.kernel, self.group)?);
        loop {
            step(trial);
            let arrived = match next {
                Next::Limit(size) => Some(self.limit(size, trial)?),
                Next::Wait => {
                    self.age(trial.plan().watch / 2);
                    self.session.cancel.sleep(LOOK);
                    None
                }
                Next::GiveBack => {
                    self.give_back()?;
                    None
                }
                Next::End => return Ok(Ended::Over),
            };
            if self.session.cancel.is_set() {
                return Ok(Ended::Stopped);
            }
            if !self.group.read_populated(&mut Vec::new())? {
                return Ok(Ended::Empty);
            }
            let high = self.group.read_limit(HIGH, &mut Vec::new())?;
            if high != self.stands {
                return Ok(Ended::Theirs(high));
            }
            let seen = read(self.session.host.kernel, self.group)?;
            next = match arrived {
                Some(reached) => trial.arrived(reached, &seen),
                None => trial.next(&seen),
            };
        }
    }

    /// Whether the kernel is told what is used, before it is asked for what is not.
    pub fn knows_ages(&self) -> bool {
        self.ages.is_some()
    }

    /// Has the kernel look at what is used, unless it did so just now.
    fn age(&mut self, every: Duration) {
        let Some(ages) = &mut self.ages else { return };
        if clock::read_monotonic().since(self.aged) < every {
            return;
        }
        let aged = ages.add_tree(self.group).and_then(|()| ages.pass(&mut *self.session.actuator, self.session.cancel));
        if aged.is_err() {
            // Switched off meanwhile, or the group is gone, which the next look says.
            self.ages = None;
        }
        self.aged = clock::read_monotonic();
    }

    /// Brings the group below `size` and limits it to that. False when that much cannot leave, or the
    /// guard was broken on the way.
    fn limit(&mut self, size: Bytes, trial: &Trial) -> Result<bool> {
        // Room for what comes and goes, so that the first page does not meet the limit.
        let slack = Bytes(size.0 / 64).max(Bytes::kib(256)).min(Bytes::mib(4));
        let low = size - slack;
        let current = self.group.read_current(&mut Vec::new())?;
        if current > low
            && let end = self.reclaim(current - low, low, trial)
            && end.is_failure()
        {
            bail!("{}: {}", self.backend, end.words());
        }
        if self.session.cancel.is_set() || self.group.read_current(&mut Vec::new())? > size {
            return Ok(false);
        }
        // The kernel rounds down to pages, and what it holds is compared.
        let page = self.session.host.kernel.page().bytes().0;
        self.write(Limit::Bytes(Bytes(size.0 / page * page)))?;
        Ok(true)
    }

    /// Reclaims in a thread of its own, and stops that when the guard is broken meanwhile.
    fn reclaim(&mut self, amount: Bytes, floor: Bytes, trial: &Trial) -> End {
        let (host, group, cancel) = (self.session.host, self.group, Flag::default());
        let swap_floor = swap_floor(self.config, swap_context(host.kernel), amount);
        let job = job(self.config, swap_floor, self.backend.file_only(), amount, floor);
        let (actuator, mut method) = (&mut *self.session.actuator, Method::KernelFile(self.backend));
        thread::scope(|scope| {
            let cancel = &cancel;
            let report = scope.spawn(move || {
                let mut session = Session { host, actuator, journal: None, cancel, progress: &mut |_| {} };
                session.reclaim(&mut method, group.into(), job)
            });
            let mut looked = clock::read_monotonic();
            while !report.is_finished() {
                thread::sleep(Duration::from_millis(10));
                if clock::read_monotonic().since(looked) >= LOOK {
                    looked = clock::read_monotonic();
                    if read(host.kernel, group).map_or(true, |seen| trial.breach(&seen).is_some()) {
                        cancel.set();
                    }
                }
            }
            report.join().map_or(End::Failed, |report| report.end)
        })
    }

    fn give_back(&mut self) -> Result<()> {
        let own = self.own();
        if self.stands == own {
            return Ok(());
        }
        match self.write(own) {
            Err(err) if !crate::reclaim::is_gone(&err) => {
                Err(err.context(format!("{HIGH} could not be set back to {own}; the next start of omr tries again")))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, limit: Limit) -> Result<()> {
        let (actuator, dir) = (&mut *self.session.actuator, self.group.dir());
        match self.alarm.limit(WRITE_TIME, || actuator.write(dir, HIGH, &limit.to_string()))? {
            // Gone: the next look says so.
            Outcome::Done | Outcome::Partial | Outcome::Interrupted | Outcome::Gone => {}
            Outcome::Denied => return Err(Exit::Failed.error(format!("no permission to write to {HIGH}"))),
            Outcome::Unsupported => {
                return Err(Exit::Unsupported.error(format!("this kernel refuses {limit} in {HIGH}")));
            }
        }
        self.stands = limit;
        Ok(())
    }
}
