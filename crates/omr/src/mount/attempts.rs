//! Attempts to reclaim: one thread for each write to `memory.swap.reclaim`.

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
use omr_machine::groups::{below, targets};
use omr_machine::inventory;
use omr_policy::pace::Job;
use omr_policy::{End, SwapContext, swap_floor};
use omr_units::{Bytes, GroupId};
use rustix::io::Errno;

use super::request::Request;

/// The most attempts at a time, as each is a thread. Further ones are refused (`EAGAIN`).
const MOST: usize = 64;
/// The most attempts of one user, so that nobody takes the places of all others.
const MOST_OF_A_USER: usize = 8;
/// The number of counts at which those of removed groups are dropped.
const KEPT: usize = 1024;
/// The time between two checks for an interrupt or for an end, while a thread waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The longest wait for attempts to end when the file system is unmounted.
const END_TIME: Duration = Duration::from_secs(1);

/// A write that asks for an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The number of the request.
    pub unique: u64,
    /// The user who writes.
    pub uid: u32,
}

/// The environment of an attempt.
pub struct Reclaimer {
    /// The machine.
    pub kernel: Arc<Kernel>,
    /// The root of the machine's files.
    pub root: PathBuf,
    /// The configuration: swap floor, step, write time, and classes of groups.
    pub loaded: Loaded,
    /// The kernel file by which groups are reclaimed.
    pub backend: Backend,
}

/// The state of one group's file.
#[derive(Debug, Default)]
struct File {
    /// The memory in bytes that the last attempt freed, or that the running one has freed so far.
    freed: AtomicU64,
    /// The lock of the running attempt: attempts on one file take turns.
    turn: Mutex<()>,
}

/// A running attempt.
#[derive(Debug)]
struct Running {
    uid: u32,
    stop: Arc<Flag>,
}

/// All running attempts, and the counts of all files.
pub struct Attempts {
    reclaimer: Arc<Reclaimer>,
    files: HashMap<GroupId, (PathBuf, Arc<File>)>,
    running: Arc<Mutex<HashMap<u64, Running>>>,
}

impl Attempts {
    pub fn new(reclaimer: Reclaimer) -> Self {
        Attempts { reclaimer: Arc::new(reclaimer), files: HashMap::new(), running: Arc::default() }
    }

    /// Returns the memory that the last attempt on a group's file freed.
    pub fn freed(&self, id: GroupId) -> Bytes {
        Bytes(self.files.get(&id).map_or(0, |(_, file)| file.freed.load(Ordering::Relaxed)))
    }

    /// Begins an attempt, and calls `done` with its result.
    pub fn begin(
        &mut self,
        Asked { unique, uid }: Asked,
        group: Group,
        request: Request,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Result<(), Errno> {
        let mut running = lock(&self.running);
        let of_user = running.values().filter(|running| running.uid == uid).count();
        if running.len() >= MOST || (uid != 0 && of_user >= MOST_OF_A_USER) {
            return Err(Errno::AGAIN);
        }
        if self.files.len() >= KEPT
            && let Ok(root) = self.reclaimer.kernel.cgroup()
        {
            self.files.retain(|_, (path, file)| Arc::strong_count(file) > 1 || Group::open(root, path).is_ok());
        }
        let (_, file) = self.files.entry(group.id()).or_insert_with(|| (group.path().into(), Arc::default()));
        let (file, stop) = (Arc::clone(file), Arc::new(Flag::default()));
        running.insert(unique, Running { uid, stop: Arc::clone(&stop) });
        drop(running);
        let (reclaimer, all) = (Arc::clone(&self.reclaimer), Arc::clone(&self.running));
        let thread = std::thread::Builder::new().name("omr-mount-write".into()).spawn(move || {
            done(reclaimer.attempt(&group, request, &file, &stop));
            // The answer comes first, so an attempt that is not in the list has its answer.
            lock(&all).remove(&unique);
        });
        if thread.is_err() {
            lock(&self.running).remove(&unique);
            return Err(Errno::AGAIN);
        }
        Ok(())
    }

    /// Cancels the attempt of this request. Does nothing if the attempt has ended.
    pub fn interrupt(&self, unique: u64) {
        if let Some(running) = lock(&self.running).get(&unique) {
            running.stop.set();
        }
    }

    /// Cancels all attempts and waits for them.
    pub fn end(&self) {
        let began = clock::read_monotonic();
        loop {
            let running = lock(&self.running);
            running.values().for_each(|running| running.stop.set());
            if running.is_empty() || clock::read_monotonic().since(began) > END_TIME {
                return;
            }
            drop(running);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Locks, also after a panic: no code under these locks leaves data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reclaimer {
    /// Reclaims. Also succeeds if less was reclaimed, or a signal ended the attempt.
    fn attempt(&self, group: &Group, request: Request, file: &File, stop: &Flag) -> Result<(), Errno> {
        let _turn = loop {
            if let Ok(turn) = file.turn.try_lock() {
                break turn;
            }
            if stop.is_set() {
                // This attempt did nothing, and the count is that of another one.
                return Err(Errno::INTR);
            }
            stop.sleep(POLL_INTERVAL);
        };
        file.freed.store(0, Ordering::Relaxed);
        let page = self.kernel.page().bytes().0;
        let request = Request { amount: Bytes(request.amount.0 - request.amount.0 % page), ..request };
        if request.amount.0 == 0 {
            return Ok(());
        }
        if group.is_root() || request.older_than.is_some() {
            return self.reclaim_below(group, request, file, stop);
        }
        let mut method = Method::KernelFile(self.backend);
        // The kernel reclaims memory under `memory.low`, too, once nothing else can be reclaimed.
        let read = below::floor_below(&self.kernel, group, |time| {
            stop.sleep(time);
            !stop.is_set()
        });
        let (current, floor) = read.map_err(|err| errno(&err))?;
        let amount = (current - floor).min(request.amount);
        if amount.0 == 0 {
            return Ok(());
        }
        let job = self.job(swap_context(&self.kernel), method.file_only(), amount, floor);
        result_of(&self.reclaim_group(&mut method, group.into(), job, file, stop))
    }

    /// Reclaims from the groups at and below this one that may be reclaimed, one after another. The
    /// root's own file respects no protection, and generations belong to single groups.
    fn reclaim_below(&self, group: &Group, request: Request, file: &File, stop: &Flag) -> Result<(), Errno> {
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
            let report = self.reclaim_group(&mut method, target, job, file, stop);
            if !matches!(report.end, End::Gone) {
                result_of(&report)?;
            }
            left = left - report.freed;
        }
        Ok(())
    }

    /// Does a job on one group, and counts the freed memory.
    fn reclaim_group(
        &self,
        method: &mut Method<'_>,
        target: Target<'_>,
        job: Job,
        file: &File,
        cancel: &Flag,
    ) -> Report {
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

    /// Returns a job that frees up to `amount` of a group and leaves `floor`.
    fn job(&self, context: SwapContext, file_only: bool, amount: Bytes, floor: Bytes) -> Job {
        let config = &self.loaded.policy;
        job(config, swap_floor(config, context, amount), file_only, amount, floor)
    }
}

/// Returns the result that a write to a real kernel file would have.
fn result_of(report: &Report) -> Result<(), Errno> {
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
