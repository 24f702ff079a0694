//! Brings memory back before it is needed. A record lists the pages that were in memory before they
//! left. `process_madvise(MADV_WILLNEED)` reads them back in large requests, foreground first.
//!
//! Pages come back to the swap cache: a page that is used is mapped by a minor fault, and an unused
//! page is the first to leave again. Two kinds of pages do not come back: shared memory in swap
//! that is in no record (the page table does not show it), and changed pages of privately mapped
//! files (the kernel reads the file for this hint, not the swap).

mod busy;
mod lock;
mod record;
mod remembered;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use omr_actuate::madvise::{Batch, Hint};
use omr_actuate::{Actuator, Advice, Outcome, probe};
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::storage::make_root_state_dir;
use omr_config::Loaded;
use omr_kernel::block::SwapDisks;
use omr_kernel::maps::{self, Backing, Detail, Layout};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::pagemap::{NEAR, Pagemap, Residency};
use omr_kernel::probe::Support;
use omr_kernel::process::{self, Capability, Process, Status};
use omr_kernel::ranges::Ranges;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::tree::Tree;
use omr_policy::Class;
use omr_units::{Bytes, Limit, Monotonic, Pages, Rate};

use self::busy::BusyMonitor;
use self::record::{Record, RecordedProcess};

pub use self::lock::{Notice, lock, may_lock, wait};
pub use self::record::{Recorded, record};
pub use self::remembered::{MOST_GROUPS, Remembered};
pub use self::report::{End, GroupReport, Report, Use};

/// Bytes in one call: enough for a disk to be fast, and few enough that a page fault of a user who
/// comes back does not wait long behind it.
const CHUNK: Bytes = Bytes::mib(4);
/// The next call waits until the disks have at most this number of reads in flight.
const IN_FLIGHT: u64 = 8;
/// The longest such wait: the queue may hold other programs' reads.
const QUEUE_TIME: Duration = Duration::from_secs(1);
/// The time between two readings of the disks' queues.
const QUEUE_INTERVAL: Duration = Duration::from_millis(2);
/// The time between two checks for foreground work during a pause.
const PAUSE: Duration = Duration::from_millis(20);

/// Processes of one group, which are of the same importance.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The group, below the mount.
    pub group: PathBuf,
    /// The group's class.
    pub class: Class,
    /// The order, lowest first: foreground, protected, background by default, explicit background.
    pub rank: u8,
    /// The processes.
    pub pids: Vec<u32>,
}

/// The rank of explicit background groups.
const BACKGROUND: u8 = 3;

/// Returns all groups with processes at or below `top`, most important first. `top` is `None`: all
/// groups of the machine except explicit background groups.
pub fn subjects(kernel: &Kernel, tree: &Tree, top: Option<&Path>) -> Result<Vec<Subject>> {
    let root = kernel.cgroup()?;
    let mut all = Vec::new();
    for (index, node) in tree.nodes().iter().enumerate() {
        let path = tree.path_at(index);
        let Some(assignment) = tree.assignment(node) else { continue };
        let rank = match assignment.class {
            Class::Foreground => 0,
            Class::Protected => 1,
            Class::Background if !assignment.explicit => 2,
            Class::Background => BACKGROUND,
        };
        if !top.map_or(rank != BACKGROUND, |top| path.starts_with(top)) {
            continue;
        }
        let pids = Group::open(root, &path).and_then(|group| process::read_pids(group.dir()));
        match pids {
            Ok(mut pids) => {
                // This process itself is left out.
                pids.retain(|&pid| pid != std::process::id());
                all.push(Subject { group: path, class: assignment.class, rank, pids });
            }
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err.into()),
        }
    }
    all.retain(|subject| !subject.pids.is_empty());
    all.sort_by_key(|subject| subject.rank);
    Ok(all)
}

/// Replaces the record, and returns its size.
pub fn write(root: &Path, record: &Record) -> Result<Bytes> {
    make_root_state_dir(root)?;
    record.write(&paths::warm_record(root)).map(Bytes)
}

/// Returns the age of the record, by the real-time clock; `None`: there is no record of this boot.
pub fn record_age(kernel: &Kernel, root: &Path) -> Option<Duration> {
    let record = Record::read(&paths::warm_record(root)).ok()??;
    let boot = kernel.read_boot_id().ok()?;
    let age = clock::read_wall().as_secs().checked_sub(record.time)?;
    record.is_of(&boot, kernel).then_some(Duration::from_secs(age))
}

/// The default share of memory that stays available.
pub const FLOOR: &str = "10%";

/// One run of `omr warm`, from the lock to the report.
pub struct Job<'a> {
    /// The machine.
    pub kernel: &'a Kernel,
    /// The root directory of omr's own files.
    pub root: &'a Path,
    /// The configuration.
    pub loaded: &'a Loaded,
    /// All groups.
    pub tree: &'a Tree,
    /// The processes whose memory comes back.
    pub subjects: &'a [Subject],
    /// Only the memory in this record comes back; `None`: the memory in the record on disk, and
    /// then all that is in swap.
    pub only: Option<&'a Record>,
    /// The limits of the run.
    pub bounds: Bounds,
}

/// Returns true if this process surely may bring memory back, and the kernel can.
pub fn is_possible(kernel: &Kernel, root: &Path) -> bool {
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    let has_rights = own.is_some_and(|own| own.has(Capability::SysNice) && own.has(Capability::SysPtrace));
    has_rights
        && may_lock(root)
        && (root != Path::new("/") || probe::process_madvise(Advice::WillNeed) == Support::Works)
}

impl Job<'_> {
    /// Runs the job.
    pub fn run(&self, actuator: &mut dyn Actuator, stop: &Flag, progress: &mut dyn FnMut(Bytes)) -> Result<Report> {
        let live = actuator.is_live();
        if live && !may_advise(self.kernel) {
            return Err(Exit::Failed.error(End::Denied.words()));
        }
        let on_disk = match self.only {
            Some(_) => None,
            None => Record::read(&paths::warm_record(self.root))?,
        };
        let boot = self.kernel.read_boot_id()?;
        let is_of_this_boot = |record: &Record| record.is_of(&boot, self.kernel);
        let is_old = on_disk.as_ref().is_some_and(|record| !is_of_this_boot(record));
        let on_disk = on_disk.filter(is_of_this_boot);
        if live && self.root == Path::new("/") && probe::process_madvise(Advice::WillNeed) == Support::Missing {
            return Err(Exit::Unsupported.error(End::Unsupported.words()));
        }
        let _lock = if live { Some(lock(&paths::warm_lock(self.root))?) } else { None };
        let work = if live && self.bounds.patience.is_some() {
            Some(BusyMonitor::start(self.kernel, &self.loaded.policy, self.tree, self.subjects)?)
        } else {
            None
        };
        let parts: &[Part] = match self.only {
            Some(_) => &[Part::Used, Part::Rest],
            None => &[Part::Used, Part::Rest, Part::Swapped],
        };
        let mut warmer = Warmer { kernel: self.kernel, actuator, stop, bounds: self.bounds.clone(), work, parts };
        let mut report = warmer.run(self.subjects, self.only.or(on_disk.as_ref()), progress)?;
        if is_old {
            report.record = Use::OfAnotherBoot;
        }
        Ok(report)
    }
}

/// Returns true if this process has the needed capabilities, or if they are unknown: the kernel
/// checks them anyway.
fn may_advise(kernel: &Kernel) -> bool {
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    own.is_none_or(|own| own.has(Capability::SysNice) && own.has(Capability::SysPtrace))
}

/// The limits of a run.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The highest rate; `None`: any.
    pub rate: Option<Rate>,
    /// Memory of the machine that stays available.
    pub floor: Bytes,
    /// The run waits during foreground work, and ends after this time of it; `None`: it ignores
    /// work.
    pub patience: Option<Duration>,
}

/// A part of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Recorded pages in mappings that were used.
    Used,
    /// Recorded pages in other mappings.
    Rest,
    /// All other pages in swap.
    Swapped,
}

/// One process to bring back.
struct Task<'a> {
    pid: u32,
    starttime: Option<u64>,
    group: usize,
    recorded: Option<&'a RecordedProcess>,
    /// The ranges that were requested already.
    asked: Ranges,
    /// It could not be read, and is not tried again.
    is_unread: bool,
}

/// The state that is the same for all processes.
struct Warmer<'a> {
    kernel: &'a Kernel,
    actuator: &'a mut dyn Actuator,
    stop: &'a Flag,
    bounds: Bounds,
    work: Option<BusyMonitor>,
    /// The parts that come back, in this order.
    parts: &'a [Part],
}

impl Warmer<'_> {
    /// Brings back the swapped memory of these processes, in their order: first the recorded pages,
    /// then the rest. Calls `progress` with the bytes requested so far.
    fn run(
        &mut self,
        subjects: &[Subject],
        record: Option<&Record>,
        progress: &mut dyn FnMut(Bytes),
    ) -> Result<Report> {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        let before = self.swapped_in();
        let mut report = Report::nothing(if record.is_some() { Use::Used } else { Use::None });
        let mut run = Run {
            disks: SwapDisks::find(self.kernel)?,
            warmer: self,
            due: began,
            buffer: Vec::with_capacity(4096),
            report: &mut report,
            progress,
        };
        if let Err(end) = run.bring_back(subjects, record)? {
            report.end = end;
        } else if report.calls == 0 && report.denied > 0 {
            report.end = End::Denied;
        } else if report.groups.iter().any(|group| group.full) {
            report.end = End::Headroom;
        }
        report.groups.retain(|group| group.processes > 0 || group.full);
        report.swapped_in = (self.swapped_in() - before).bytes(self.kernel.page());
        report.wall = clock::read_monotonic().since(began);
        report.cpu = clock::read_thread_cpu().saturating_sub(cpu);
        Ok(report)
    }

    fn swapped_in(&self) -> Pages {
        let read = Vmstat::read(self.kernel, &mut Vec::new());
        read.ok().and_then(|vmstat| vmstat.pswpin).unwrap_or_default()
    }
}

/// One run. The inner `Err` of its functions is the reason for an early end.
struct Run<'a, 'b> {
    warmer: &'a mut Warmer<'b>,
    disks: SwapDisks,
    /// The time of the next call.
    due: Monotonic,
    buffer: Vec<u8>,
    report: &'a mut Report,
    progress: &'a mut dyn FnMut(Bytes),
}

/// The result of requests for one process.
enum Asked {
    Done,
    /// No more fits under a limit of the group.
    Full,
    /// The process is gone.
    Gone,
}

impl Run<'_, '_> {
    fn bring_back(&mut self, subjects: &[Subject], record: Option<&Record>) -> Result<Result<(), End>> {
        let mut recorded: HashMap<u32, &RecordedProcess> =
            record.into_iter().flat_map(Record::processes).map(|process| (process.pid, process)).collect();
        // For each rank: the used parts of all its processes, then the other parts.
        let mut ranks: BTreeMap<u8, Vec<Task>> = BTreeMap::new();
        for subject in subjects {
            self.report.groups.push(GroupReport {
                group: subject.group.to_string_lossy().into_owned(),
                class: subject.class,
                processes: 0,
                swap: Bytes::ZERO,
                file: Bytes::ZERO,
                full: false,
            });
            let group = self.report.groups.len() - 1;
            ranks.entry(subject.rank).or_default().extend(subject.pids.iter().map(|&pid| Task {
                pid,
                starttime: None,
                group,
                recorded: recorded.remove(&pid),
                asked: Ranges::new(),
                is_unread: false,
            }));
        }
        // The other recorded processes are gone, or are targets of another run.
        self.report.gone = recorded.keys().filter(|pid| !self.is_there(**pid)).count();
        for mut tasks in ranks.into_values() {
            for &part in self.warmer.parts {
                for task in &mut tasks {
                    let asked = match self.bring_back_part(task, part, &subjects[task.group]) {
                        Ok(asked) => asked,
                        Err(err) if is_gone(&err) => Ok(Asked::Gone),
                        Err(err) if is_denied(&err) => {
                            self.report.denied += usize::from(Some(&part) == self.warmer.parts.last());
                            continue;
                        }
                        Err(err) => return Err(err),
                    };
                    match asked {
                        Ok(Asked::Done | Asked::Gone) => {}
                        Ok(Asked::Full) => self.report.groups[task.group].full = true,
                        Err(end) => return Ok(Err(end)),
                    }
                }
            }
        }
        self.wait_for_disks(0);
        Ok(Ok(()))
    }

    fn is_there(&self, pid: u32) -> bool {
        self.warmer.kernel.proc.has(pid.to_string())
    }

    /// Brings back one part of one process.
    fn bring_back_part(&mut self, task: &mut Task<'_>, part: Part, subject: &Subject) -> Result<Result<Asked, End>> {
        let page = self.warmer.kernel.page();
        let packed = match part {
            Part::Used => task.recorded.map(|recorded| &recorded.used),
            Part::Rest => task.recorded.map(|recorded| &recorded.rest),
            Part::Swapped => None,
        };
        let wanted = packed.and_then(|packed| packed.ranges(page));
        // Most groups have no memory in swap.
        if task.is_unread
            || part != Part::Swapped && wanted.as_ref().is_none_or(Ranges::is_empty)
            || self.report.groups[task.group].full
        {
            return Ok(Ok(Asked::Done));
        }
        let process = Process::open(self.warmer.kernel, task.pid)?;
        let starttime = process.stat().starttime;
        if task.starttime.is_some_and(|seen| seen != starttime) {
            return Ok(Ok(Asked::Gone));
        }
        task.starttime = Some(starttime);
        if let Some(recorded) = task.recorded.filter(|recorded| recorded.starttime != starttime) {
            // The recorded process is gone, and another process has its pid.
            log::debug!("{} is not the process that was recorded", recorded.pid);
            self.report.gone += 1;
            task.recorded = None;
            return Ok(Ok(Asked::Done));
        }
        let stop = self.warmer.stop;
        let mut found = match find_absent(&process, page, wanted.as_ref(), stop) {
            Err(_) if stop.is_set() => return Ok(Err(end_of(stop))),
            // One process must not end the run for all.
            Err(err) if !is_gone(&err) && !is_denied(&err) => {
                log::info!("process {}: {err:#}", task.pid);
                self.report.unread += 1;
                task.is_unread = true;
                return Ok(Ok(Asked::Done));
            }
            found => found?,
        };
        self.report.unmapped += found.unmapped;
        self.report.uncovered += found.uncovered;
        let mut first = task.asked.is_empty();
        for (ranges, is_file) in [(found.swapped, false), (found.file, true)] {
            let ranges = ranges.without(&task.asked);
            let hints = ranges.as_slice().iter().map(|range| Hint { range: range.clone(), advice: Advice::WillNeed });
            let mut batch = Batch::new(&process, &mut found.layout, hints.collect(), CHUNK);
            let mut left = ranges.bytes();
            while let Some(bytes) = batch.next_call()? {
                match self.wait_for_turn(bytes, subject, task.group)? {
                    Ok(true) => {}
                    Ok(false) => return Ok(Ok(Asked::Full)),
                    Err(end) => return Ok(Err(end)),
                }
                let done = batch.call(self.warmer.actuator)?;
                left = left - done;
                self.report.calls += 1;
                self.report.last_call_end_ns = clock::read_monotonic().0;
                let group = &mut self.report.groups[task.group];
                group.processes += usize::from(std::mem::take(&mut first));
                if is_file {
                    group.file += done;
                    self.report.file += done;
                } else {
                    group.swap += done;
                    self.report.swap += done;
                }
                (self.progress)(self.report.swap + self.report.file);
            }
            match batch.ended() {
                Some(Outcome::Gone) => return Ok(Ok(Asked::Gone)),
                Some(Outcome::Denied) => return Ok(Err(End::Denied)),
                _ => {}
            }
            self.report.skipped += left;
            task.asked = task.asked.union(&ranges);
        }
        Ok(Ok(Asked::Done))
    }

    /// Waits until this number of bytes may be requested. Returns false if the group has no room
    /// for them.
    fn wait_for_turn(&mut self, bytes: Bytes, subject: &Subject, group: usize) -> Result<Result<bool, End>> {
        let stop = self.warmer.stop;
        let live = self.warmer.actuator.is_live();
        if live {
            self.wait_for_disks(IN_FLIGHT);
        }
        loop {
            if stop.is_set() {
                return Ok(Err(end_of(stop)));
            }
            if let Some(reason) = self.check_busy().filter(|_| live) {
                self.report.reason = Some(reason);
                return Ok(Err(End::Busy));
            }
            let left = self.due.since(clock::read_monotonic());
            if left.is_zero() && !self.is_busy() {
                break;
            }
            stop.sleep(if left.is_zero() { PAUSE } else { left.min(PAUSE) });
        }
        // The time of a wait is not made up for by a burst.
        if let Some(rate) = self.warmer.bounds.rate.filter(|_| live) {
            self.due = clock::read_monotonic() + rate.time_for(bytes);
        }
        let memory = Meminfo::read(self.warmer.kernel, &mut self.buffer)?;
        // Unknown room is no permission to continue.
        let available = memory.mem_available.context("no MemAvailable in meminfo")?;
        // A dry run must count the memory that would have come back by now.
        let planned = if live { Bytes::ZERO } else { self.report.swap + self.report.file };
        if available - planned < self.warmer.bounds.floor + bytes {
            return Ok(Err(End::Headroom));
        }
        let planned = if live { Bytes::ZERO } else { self.report.groups[group].swap };
        Ok(Ok(read_room(self.warmer.kernel, &subject.group, &mut self.buffer)? >= planned + bytes))
    }

    /// Waits until the disks have at most this number of reads in flight.
    fn wait_for_disks(&mut self, in_flight: u64) {
        let began = clock::read_monotonic();
        while self.warmer.actuator.is_live()
            && self.disks.read_in_flight(self.warmer.kernel, &mut self.buffer).is_some_and(|reads| reads > in_flight)
            && !self.warmer.stop.is_set()
            && clock::read_monotonic().since(began) < QUEUE_TIME
        {
            clock::sleep(QUEUE_INTERVAL);
            let _ = self.check_busy();
        }
    }

    /// Samples foreground work. Returns the reason to end if work has lasted too long.
    fn check_busy(&mut self) -> Option<String> {
        let patience = self.warmer.bounds.patience?;
        self.warmer.work.as_mut()?.sample(patience)
    }

    fn is_busy(&self) -> bool {
        self.warmer.actuator.is_live() && self.warmer.work.as_ref().is_some_and(|work| work.is_busy())
    }
}

/// The reason for which a set flag ends a run.
fn end_of(stop: &Flag) -> End {
    if stop.timed_out() { End::Timeout } else { End::Stopped }
}

fn is_gone(err: &anyhow::Error) -> bool {
    err.downcast_ref::<omr_kernel::Error>().is_some_and(omr_kernel::Error::is_gone)
}

fn is_denied(err: &anyhow::Error) -> bool {
    err.downcast_ref::<omr_kernel::Error>().is_some_and(omr_kernel::Error::is_denied)
}

/// The absent memory of a process.
struct Absent {
    /// Anonymous memory in swap.
    swapped: Ranges,
    /// Pages of files and shared memory that are not in the page table.
    file: Ranges,
    unmapped: Bytes,
    uncovered: Bytes,
    /// The mappings in which the ranges are.
    layout: Layout,
}

/// Finds the absent part of `wanted` in the process's present mappings; `None`: all pages in swap.
/// Fails when the flag is set, or after [`record::until`].
fn find_absent(process: &Process, page: omr_units::PageSize, wanted: Option<&Ranges>, stop: &Flag) -> Result<Absent> {
    let is_over = record::until(stop);
    let mut pagemap = Pagemap::open(process.dir(), page)?.until(&is_over);
    // Without PAGEMAP_SCAN, reading addresses that are only reserved takes as long as if there were
    // memory.
    let with_swap = match wanted {
        None if !pagemap.can_scan() => Some(find_with_swap(process)?),
        _ => None,
    };
    let (mut swapped, mut file, mut mapped) = (Ranges::new(), Ranges::new(), Ranges::new());
    let mut uncovered = Bytes::ZERO;
    let layout = Layout::read(process.dir())?;
    for mapping in layout.mappings() {
        mapped.push(mapping.range.clone());
        let wanted = wanted.map(|wanted| wanted.within(&mapping.range));
        let looked_at = match (&wanted, &with_swap) {
            (Some(wanted), _) => wanted.bridged(NEAR),
            (None, Some(with_swap)) => with_swap.within(&mapping.range),
            (None, None) => Ranges::from_iter([mapping.range.clone()]),
        };
        if mapping.backing == Backing::Kernel || looked_at.is_empty() {
            continue;
        }
        let (mut present, mut in_swap) = (Ranges::new(), Ranges::new());
        for span in looked_at.as_slice() {
            pagemap.for_each(span.clone(), |range, residency| match residency {
                Residency::Present => present.push(range),
                Residency::Swapped => in_swap.push(range),
            })?;
        }
        match (mapping.backing, wanted) {
            (Backing::Anonymous, None) => swapped.append(&in_swap),
            (Backing::Anonymous, Some(wanted)) => swapped.append(&wanted.intersection(&in_swap)),
            (Backing::File, None) => uncovered += in_swap.bytes(),
            (Backing::File, Some(wanted)) => file.append(&wanted.without(&present)),
            (Backing::Kernel, _) => {}
        }
    }
    let unmapped = wanted.map_or(Bytes::ZERO, |wanted| wanted.without(&mapped).bytes());
    Ok(Absent { swapped, file, unmapped, uncovered, layout })
}

/// The mappings of a process that have pages in swap, or may have some.
fn find_with_swap(process: &Process) -> Result<Ranges> {
    let details = maps::read_smaps(process.dir())?;
    let has_swap = |detail: &&Detail| detail.swapped != Some(Bytes::ZERO);
    Ok(details.iter().filter(has_swap).map(|detail| detail.mapping.range.clone()).collect())
}

/// Returns the memory that fits into a group: the least that `memory.max` and `memory.high` of the
/// group and of those above it leave. Pages that come back are charged to the group, and at its
/// limit other pages would leave.
pub fn read_room(kernel: &Kernel, group: &Path, buffer: &mut Vec<u8>) -> Result<Bytes> {
    let mut room = Bytes::MAX;
    for path in group.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let opened = match Group::open(kernel.cgroup()?, path) {
            Ok(opened) => opened,
            Err(err) if err.is_gone() => return Ok(Bytes::ZERO),
            Err(err) => return Err(err.into()),
        };
        for limit in ["memory.max", "memory.high"] {
            // No such file: no memory controller, so the group above it counts.
            match opened.read_limit(limit, buffer) {
                Ok(Limit::Bytes(most)) => room = room.min(most - opened.read_current(buffer)?),
                Ok(Limit::Max) => {}
                Err(err) if err.is_gone() => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
    Ok(room)
}

#[cfg(test)]
mod tests;
