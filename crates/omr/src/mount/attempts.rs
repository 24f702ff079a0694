//! Writes to `memory.swap.reclaim`: each an attempt to reclaim, in a thread of its own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use omr_actuate::Live;
use omr_base::cancel::Flag;
use omr_config::Loaded;
use omr_engine::reclaim::backend::Backend;
use omr_engine::reclaim::{Method, Report, Target, job, swap_context};
use omr_engine::{Host, Session};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::targets;
use omr_machine::inventory;
use omr_policy::pace::Job;
use omr_policy::{End, SwapContext, swap_floor};
use omr_units::{Bytes, GroupId};
use rustix::io::Errno;

use super::request::Request;

/// More at a time are refused (`EAGAIN`): each is a thread.
const MOST: usize = 64;
/// So many counts are kept before those of groups that are gone are looked for.
const KEPT: usize = 1024;
/// Who waits for a turn looks so often whether it was interrupted.
const LOOK: Duration = Duration::from_millis(10);
/// How long attempts have to end when the file system is unmounted.
const END_TIME: Duration = Duration::from_secs(1);

/// What reclaiming takes.
pub struct Reclaimer {
    /// The machine.
    pub kernel: Arc<Kernel>,
    /// The root of its files.
    pub root: PathBuf,
    /// Swap floor, step and write time; the classes of groups.
    pub loaded: Loaded,
    /// The way to the kernel.
    pub backend: Backend,
}

/// A group's file.
#[derive(Debug, Default)]
struct File {
    /// Freed by the last attempt, or so far by the one that runs.
    freed: AtomicU64,
    /// Who reclaims holds it: attempts on one file take turns.
    turn: Mutex<()>,
}

/// All attempts.
pub struct Attempts {
    reclaimer: Arc<Reclaimer>,
    files: HashMap<GroupId, (PathBuf, Arc<File>)>,
    running: Arc<Mutex<HashMap<u64, Arc<Flag>>>>,
}

impl Attempts {
    pub fn new(reclaimer: Reclaimer) -> Self {
        Attempts { reclaimer: Arc::new(reclaimer), files: HashMap::new(), running: Arc::default() }
    }

    /// Freed by the last attempt on a group's file.
    pub fn freed(&self, id: GroupId) -> Bytes {
        Bytes(self.files.get(&id).map_or(0, |(_, file)| file.freed.load(Ordering::Relaxed)))
    }

    /// Begins one. `done` is told how it ended.
    pub fn begin(
        &mut self,
        unique: u64,
        group: Group,
        request: Request,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Result<(), Errno> {
        let mut running = lock(&self.running);
        if running.len() >= MOST {
            return Err(Errno::AGAIN);
        }
        if self.files.len() >= KEPT
            && let Ok(root) = self.reclaimer.kernel.cgroup()
        {
            self.files.retain(|_, (path, file)| Arc::strong_count(file) > 1 || Group::open(root, path).is_ok());
        }
        let (_, file) = self.files.entry(group.id()).or_insert_with(|| (group.path().into(), Arc::default()));
        let (file, stop) = (Arc::clone(file), Arc::new(Flag::default()));
        running.insert(unique, Arc::clone(&stop));
        drop(running);
        let (reclaimer, all) = (Arc::clone(&self.reclaimer), Arc::clone(&self.running));
        let thread = std::thread::Builder::new().name("omr-mount-write".into()).spawn(move || {
            done(reclaimer.attempt(&group, request, &file, &stop));
            // Answered first: at the end, all that is not in the list has its answer.
            lock(&all).remove(&unique);
        });
        if thread.is_err() {
            lock(&self.running).remove(&unique);
            return Err(Errno::AGAIN);
        }
        Ok(())
    }

    /// A signal came for who waits for this one. One that has ended meanwhile is no concern.
    pub fn interrupt(&self, unique: u64) {
        if let Some(stop) = lock(&self.running).get(&unique) {
            stop.set();
        }
    }

    /// Interrupts all and waits for them.
    pub fn end(&self) {
        let began = clock::read_monotonic();
        loop {
            let running = lock(&self.running);
            running.values().for_each(|stop| stop.set());
            if running.is_empty() || clock::read_monotonic().since(began) > END_TIME {
                return;
            }
            drop(running);
            std::thread::sleep(LOOK);
        }
    }
}

/// Nothing that is done under these locks can leave things half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reclaimer {
    /// Reclaims; success also when there was less, or when a signal ended it.
    fn attempt(&self, group: &Group, request: Request, file: &File, stop: &Flag) -> Result<(), Errno> {
        let _turn = loop {
            if let Ok(turn) = file.turn.try_lock() {
                break turn;
            }
            if stop.is_set() {
                // Nothing was done, and the count is another's.
                return Err(Errno::INTR);
            }
            stop.sleep(LOOK);
        };
        file.freed.store(0, Ordering::Relaxed);
        let page = self.kernel.page().bytes().0;
        let request = Request { amount: Bytes(request.amount.0 - request.amount.0 % page), ..request };
        if request.amount.0 == 0 {
            return Ok(());
        }
        if group.is_root() || request.older_than.is_some() {
            return self.walk(group, request, file, stop);
        }
        let current = group.read_current(&mut Vec::new()).map_err(|err| errno(&err))?;
        let mut method = Method::KernelFile(self.backend);
        let amount = current.min(request.amount);
        let job = self.job(swap_context(&self.kernel), method.file_only(), amount, Bytes::ZERO);
        ended(&self.one(&mut method, group.into(), job, file, stop))
    }

    /// One group after the other, of those at and below this one that may be touched: the root's own file knows no
    /// protection, and neither do the kernel's generations, which are each group's own.
    fn walk(&self, group: &Group, request: Request, file: &File, stop: &Flag) -> Result<(), Errno> {
        let mut method = match request.older_than {
            Some(age) => Method::by_age(&self.kernel, age, true).map_err(|_| Errno::OPNOTSUPP)?,
            None => Method::KernelFile(self.backend),
        };
        let read = inventory::read_groups(&self.kernel, &self.root, &self.loaded, false);
        let (tree, _) = read.map_err(|err| err.downcast_ref().map_or(Errno::IO, errno))?;
        let mut groups = targets::find_below(&tree, Some(group.id()), false);
        targets::sort_by_gain(&mut groups);
        let context = swap_context(&self.kernel);
        let mut left = request.amount;
        for candidate in groups {
            if left.0 == 0 || stop.is_set() {
                break;
            }
            let Some(group) = candidate.open(&self.kernel).map_err(|err| errno(&err))? else { continue };
            let floor = candidate.current - candidate.gain;
            let job = self.job(context, method.file_only(), candidate.gain.min(left), floor);
            let target = Target { group: &group, inner: candidate.beyond_children };
            let report = self.one(&mut method, target, job, file, stop);
            if !matches!(report.end, End::Gone) {
                ended(&report)?;
            }
            left = left - report.freed;
        }
        Ok(())
    }

    /// Does a job on one group, and counts what it frees.
    fn one(&self, method: &mut Method<'_>, target: Target<'_>, job: Job, file: &File, cancel: &Flag) -> Report {
        let before = file.freed.load(Ordering::Relaxed);
        let count = |freed: Bytes| file.freed.store(before + freed.0, Ordering::Relaxed);
        let mut session = Session {
            host: Host { kernel: &self.kernel, root: &self.root },
            actuator: &mut Live,
            journal: None,
            cancel,
            progress: &mut |progress| count(progress.freed),
        };
        let report = session.reclaim(method, target, job);
        count(report.freed);
        report
    }

    /// A job that frees up to `amount` of a group and leaves `floor`.
    fn job(&self, context: SwapContext, file_only: bool, amount: Bytes, floor: Bytes) -> Job {
        let config = &self.loaded.policy;
        job(config, swap_floor(config, context, amount), file_only, amount, floor)
    }
}

/// What a write to a real file would say.
fn ended(report: &Report) -> Result<(), Errno> {
    match report.end {
        End::Gone => Err(Errno::NODEV),
        End::Denied => Err(Errno::PERM),
        End::Unsupported => Err(Errno::OPNOTSUPP),
        End::Failed => {
            log::warn!("{}", report.error.as_deref().unwrap_or("reclaiming failed"));
            Err(Errno::IO)
        }
        _ => Ok(()),
    }
}

fn errno(err: &omr_kernel::Error) -> Errno {
    if err.is_gone() { Errno::NODEV } else { Errno::IO }
}
