//! Runs trials ([`omr_policy::trial`]). Paced reclaim first brings the group down to a size, and
//! `memory.high` then limits it to that size. So no task of the group has to reclaim the
//! difference.
//!
//! If MGLRU is on, the group is aged twice at each size. Without ages, reclaim takes used memory
//! with unused memory. (Measured: a first step of a fifth, in a group of which three fifths were
//! cold. 22 % of the reclaimed memory came back within a minute without ages, and none with them.)
//!
//! The old `memory.high` is in the journal of limits before the limit is changed, and it is
//! restored at the end in any case. After kill -9 a helper process restores it.

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

/// The time between two checks of the guard.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time that a write to `memory.high` may reclaim memory that came back.
const WRITE_TIME: Duration = Duration::from_millis(50);
const HIGH: &str = "memory.high";

/// The reason why a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The trial was completed.
    Over,
    /// A signal came.
    Stopped,
    /// The group is gone.
    Gone,
    /// The group has no process any more, so a trial would show nothing.
    Empty,
    /// Another program set `memory.high` meanwhile; its value stays.
    Theirs(Limit),
}

/// Runs one trial of one group.
pub struct TrialRunner<'a> {
    session: Session<'a>,
    group: &'a Group,
    config: &'a Config,
    backend: Backend,
    /// The user's own `memory.high`.
    user_limit: Borrowed<'a>,
    /// The `memory.high` that this trial has set.
    trial_limit: Limit,
    _guard: Guard,
    alarm: Alarm,
    ages: Option<Observer<'a>>,
    aged: Monotonic,
}

/// Reads the group's present state.
pub fn read(kernel: &Kernel, group: &Group) -> Result<TrialSample> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let refaults = group.read_stat(&mut buffer)?.refaults_with_swap_ins().map(|pages| pages.bytes(kernel.page()));
    let stall = psi::read_group_some_total(group.dir(), Resource::Memory, &mut buffer);
    Ok(TrialSample { at: clock::read_monotonic(), current, stall, refaults })
}

/// Returns the memory of a group that cannot leave: all except page cache and the part that fits
/// into swap.
pub fn read_fixed(kernel: &Kernel, group: &Group, config: &Config) -> Result<Bytes> {
    let mut buffer = Vec::with_capacity(8192);
    let current = group.read_current(&mut buffer)?;
    let stat = group.read_stat(&mut buffer)?;
    let known = |field: Option<Bytes>| field.context("memory.stat lacks the parts of the group's memory");
    let cache = known(stat.page_cache())?;
    let swap_backed = known(stat.swap_backed())? - stat.unevictable.unwrap_or_default();
    let context = swap_context(kernel);
    let free = context.swap.map_or(Bytes::ZERO, |swap| swap.free - swap_floor(config, context, swap_backed));
    let room = free.min(swap_left(&with_swap_limit(kernel, group)?, &mut buffer)?);
    Ok(current - cache - swap_backed.min(room))
}

impl<'a> TrialRunner<'a> {
    /// Prepares a trial. Only adds an entry to the session's journal. Call this while the process
    /// has one thread: see [`guard`](crate::reclaim::limit_journal::guard).
    pub fn new(session: Session<'a>, group: &'a Group, config: &'a Config, backend: Backend) -> Result<Self> {
        let kernel = session.host.kernel;
        let journal = session.journal.context("memory.high is changed only with a journal")?;
        let before = group.read_limit(HIGH, &mut Vec::new())?;
        let Some(user_limit) = journal.borrow(group, HIGH, before)? else {
            bail!("another omr is changing the limits of this group; nothing was tried");
        };
        let guard = journal.guard(kernel, group.id(), session.actuator)?;
        Ok(TrialRunner {
            session,
            group,
            config,
            backend,
            user_limit,
            trial_limit: before,
            _guard: guard,
            alarm: Alarm::new(),
            ages: aging::require_mglru(kernel).is_ok().then(|| Observer::new(kernel)),
            aged: Monotonic::default(),
        })
    }

    /// Returns the user's own `memory.high`.
    pub fn user_limit(&self) -> Limit {
        self.user_limit.before()
    }

    /// Runs the trial, and restores the limit. Calls `step` before each step.
    pub fn run(&mut self, plan: Plan, step: &mut dyn FnMut(&Trial)) -> Result<(Trial, Ended)> {
        let mut trial = Trial::new(plan, read(self.session.host.kernel, self.group)?);
        let ended = self.run_steps(&mut trial, step);
        let ended = match ended {
            Err(err) if crate::reclaim::is_gone(&err) => Ok(Ended::Gone),
            ended => ended,
        };
        if !matches!(ended, Ok(Ended::Theirs(_))) {
            self.restore_limit()?;
        }
        self.user_limit.release();
        Ok((trial, ended?))
    }

    fn run_steps(&mut self, trial: &mut Trial, step: &mut dyn FnMut(&Trial)) -> Result<Ended> {
        let mut next = trial.next(&read(self.session.host.kernel, self.group)?);
        loop {
            step(trial);
            let arrived = match next {
                Next::Limit(size) => Some(self.limit(size, trial)?),
                Next::Wait => {
                    self.age(trial.plan().watch / 2);
                    self.session.cancel.sleep(CHECK_INTERVAL);
                    None
                }
                Next::GiveBack => {
                    self.restore_limit()?;
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
            if high != self.trial_limit {
                return Ok(Ended::Theirs(high));
            }
            let seen = read(self.session.host.kernel, self.group)?;
            next = match arrived {
                Some(reached) => trial.arrived(reached, &seen),
                None => trial.next(&seen),
            };
        }
    }

    /// Returns true if ages are known, so that reclaim finds unused memory.
    pub fn knows_ages(&self) -> bool {
        self.ages.is_some()
    }

    /// Ages the group, unless the last aging was less than `every` ago.
    fn age(&mut self, every: Duration) {
        let Some(ages) = &mut self.ages else { return };
        if clock::read_monotonic().since(self.aged) < every {
            return;
        }
        let aged =
            ages.add_tree(self.group).and_then(|()| ages.age_all(&mut *self.session.actuator, self.session.cancel));
        if aged.is_err() {
            // MGLRU was switched off, or the group is gone, which the next check notices.
            self.ages = None;
        }
        self.aged = clock::read_monotonic();
    }

    /// Brings the group below `size` and limits it to that. Returns false if this much memory
    /// cannot leave, or if the guard was broken meanwhile.
    fn limit(&mut self, size: Bytes, trial: &Trial) -> Result<bool> {
        // Some room, so that the first new page does not reach the limit.
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
        // The kernel rounds down to pages, and the value is compared later.
        let page = self.session.host.kernel.page().bytes().0;
        self.write(Limit::Bytes(Bytes(size.0 / page * page)))?;
        Ok(true)
    }

    /// Reclaims in a thread, and cancels it if the guard is broken meanwhile.
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
            let mut checked = clock::read_monotonic();
            while !report.is_finished() {
                thread::sleep(Duration::from_millis(10));
                if clock::read_monotonic().since(checked) >= CHECK_INTERVAL {
                    checked = clock::read_monotonic();
                    if read(host.kernel, group).map_or(true, |seen| trial.breach(&seen).is_some()) {
                        cancel.set();
                    }
                }
            }
            report.join().map_or(End::Failed, |report| report.end)
        })
    }

    fn restore_limit(&mut self) -> Result<()> {
        let own = self.user_limit();
        if self.trial_limit == own {
            return Ok(());
        }
        match self.write(own) {
            Err(err) if !crate::reclaim::is_gone(&err) => {
                Err(err.context(format!("{HIGH} could not be restored to {own}; the next start of omr tries again")))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, limit: Limit) -> Result<()> {
        let (actuator, dir) = (&mut *self.session.actuator, self.group.dir());
        self.user_limit.announce(limit);
        match self.alarm.limit(WRITE_TIME, || actuator.write(dir, HIGH, &limit.to_string()))? {
            // The next check notices a removed group.
            Outcome::Done | Outcome::Partial | Outcome::Interrupted | Outcome::Gone => {}
            Outcome::Denied => return Err(Exit::Failed.error(format!("no permission to write to {HIGH}"))),
            Outcome::Unsupported => {
                return Err(Exit::Unsupported.error(format!("this kernel refuses {limit} in {HIGH}")));
            }
        }
        self.trial_limit = limit;
        Ok(())
    }
}
