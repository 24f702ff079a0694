//! Faults of the daemon's calls to the kernel, drawn from the seed. [`calls`](super::calls) asks here
//! before each call. A call gets only an error that it can have on Linux for a file of its kind; a
//! signal (EINTR) and EAGAIN meet only writes that reclaim, see [`OfWrite`].
//!
//! Single faults are rare: one in many calls. A [`Burst`] lasts: no free descriptors, a full disk.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use libc::{EIO, EMFILE, ENAMETOOLONG, ENFILE, ENOMEM, ENOSPC};

/// Calls that can have the same errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Opens what is there.
    Open,
    /// Opens what may have to be made.
    Create,
    Read,
    Write,
    /// Looks at a name, an attribute or a lock.
    Look,
    /// Makes a name.
    Name,
    Unlink,
    /// Changes a mode.
    Change,
    Sync,
}

/// Files that can have the same errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// procfs, sysfs, debugfs.
    Kernel,
    /// cgroupfs.
    Group,
    /// The daemon's state, on a disk.
    State,
    /// `/run`, in memory.
    Run,
    /// The configuration, on a disk.
    Settings,
}

const PLACES: [Place; 5] = [Place::Kernel, Place::Group, Place::State, Place::Run, Place::Settings];

/// The calls between two faults of a place, on average.
const BETWEEN: [u64; PLACES.len()] = [10_000, 20_000, 100, 1000, 200];

/// The outcome of a call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Error(c_int),
    /// Half of what was asked for, or less.
    Short,
}

/// A fault that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// Nothing can be opened.
    NoDescriptors,
    /// One call in eight that needs memory of the kernel gets none.
    LittleMemory,
    /// The disk of the state is full, or `/run`.
    DiskFull,
    RunFull,
    /// Every other call to the disk of the state fails.
    DiskFails,
    /// Every other write that reclaims moves nothing.
    SwapFails,
}

/// The outcome of a write to the kernel that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfWrite {
    /// EMFILE, ENFILE or ENOMEM: the file could not be opened.
    Closed(c_int),
    /// EAGAIN: nothing was moved.
    Nothing,
    /// EINTR: a signal came after the write had its effect.
    Interrupted,
}

/// The faults of one run.
struct Faults {
    random: fastrand::Rng,
    root: Vec<u8>,
    /// The calls until the next fault of each place.
    left: [u64; PLACES.len()],
    burst: Option<Burst>,
    /// A short write has found the disk full, and the next one fails.
    was_short: bool,
    count: u64,
    /// The disk has not given back what the state had.
    lost_state: bool,
}

thread_local! {
    static FAULTS: RefCell<Option<Faults>> = const { RefCell::new(None) };
    /// The daemon runs now.
    static IS_DAEMON: Cell<bool> = const { Cell::new(false) };
}

/// The places of open files, by descriptor: 1 + the index in [`PLACES`].
static FILES: [AtomicU8; 1024] = [const { AtomicU8::new(0) }; 1024];

/// Who runs, until this is dropped.
pub struct Turn(bool);

impl Drop for Turn {
    fn drop(&mut self) {
        IS_DAEMON.set(self.0);
    }
}

/// The daemon runs from now on: its calls may fail.
pub fn daemon() -> Turn {
    Turn(IS_DAEMON.replace(FAULTS.with_borrow(Option::is_some)))
}

/// The model machine runs from now on: its calls do not fail.
pub fn model() -> Turn {
    Turn(IS_DAEMON.replace(false))
}

/// Begins the faults of a run, below this root; `None`: ends them.
pub fn begin(run: Option<(fastrand::Rng, &Path)>) {
    FAULTS.set(run.map(|(mut random, root)| {
        let left = BETWEEN.map(|mean| random.u64(0..2 * mean));
        Faults {
            random,
            root: root.as_os_str().as_bytes().into(),
            left,
            burst: None,
            was_short: false,
            count: 0,
            lost_state: false,
        }
    }));
}

/// From now on calls fail in bursts only.
pub fn allow_only_bursts() {
    FAULTS.with_borrow_mut(|faults| faults.iter_mut().for_each(|faults| faults.left = [u64::MAX; PLACES.len()]));
}

/// A daemon starts, with few calls that matter much: in one start of four some of them fails.
pub fn hasten() {
    FAULTS.with_borrow_mut(|faults| {
        let Some(faults) = faults else { return };
        if faults.random.u32(0..4) == 0 {
            for place in [Place::State, Place::Run] {
                faults.left[place as usize] = faults.random.u64(1..10);
            }
        }
    });
}

/// The number of faults so far.
pub fn count() -> u64 {
    FAULTS.with_borrow(|faults| faults.as_ref().map_or(0, |faults| faults.count))
}

/// Returns true while many calls fail.
pub fn is_bursting() -> bool {
    FAULTS.with_borrow(|faults| faults.as_ref().is_some_and(|faults| faults.burst.is_some()))
}

/// Returns true if the disk could not read the state since the last call.
pub fn take_lost_state() -> bool {
    FAULTS.with_borrow_mut(|faults| faults.as_mut().is_some_and(|faults| std::mem::take(&mut faults.lost_state)))
}

pub fn set_burst(burst: Option<Burst>) {
    FAULTS.with_borrow_mut(|faults| faults.iter_mut().for_each(|faults| faults.burst = burst));
}

/// The fault of a call by path, if it fails.
pub fn of_path(call: Call, dir: c_int, path: &[u8]) -> Option<Fault> {
    if !IS_DAEMON.get() {
        return None;
    }
    let place = place_of(dir, path)?;
    let is_deep = call == Call::Open && place == Place::Group && path.contains(&b'/');
    let fault = decide(call, place, is_deep)?;
    trace(call, fault, || String::from_utf8_lossy(path).into_owned());
    Some(fault)
}

/// The fault of a call by descriptor, if it fails.
pub fn of_file(call: Call, fd: c_int) -> Option<Fault> {
    if !IS_DAEMON.get() {
        return None;
    }
    let fault = decide(call, place_of_file(fd)?, false)?;
    trace(call, fault, || match std::fs::read_link(format!("/proc/self/fd/{fd}")) {
        Ok(path) => path.display().to_string(),
        Err(_) => fd.to_string(),
    });
    Some(fault)
}

/// The fault of a write to the kernel. `reclaims`: it takes memory.
pub fn of_write(reclaims: bool) -> Option<OfWrite> {
    FAULTS.with_borrow_mut(|faults| {
        let faults = faults.as_mut()?;
        let is_single = faults.random.u32(0..2000) == 0;
        let fails = match faults.burst {
            Some(Burst::SwapFails) if reclaims => faults.random.bool().then_some(OfWrite::Nothing),
            Some(Burst::NoDescriptors) => Some(OfWrite::Closed(EMFILE)),
            _ if is_single => match faults.random.u32(0..4) {
                0 if reclaims => Some(OfWrite::Nothing),
                1 if reclaims => Some(OfWrite::Interrupted),
                2 => Some(OfWrite::Closed(ENOMEM)),
                _ => Some(OfWrite::Closed(ENFILE)),
            },
            _ => None,
        };
        faults.count += u64::from(fails.is_some());
        fails
    })
}

/// A file was opened.
pub fn opened(fd: c_int, dir: c_int, path: &[u8]) {
    // A copy for a list of names is closed by the C library, and not by `close`.
    if !IS_DAEMON.get() || path == b"." {
        return;
    }
    if let Some(entry) = entry(fd) {
        entry.store(place_of(dir, path).map_or(0, |place| place as u8 + 1), Relaxed);
    }
}

/// A file is closed.
pub fn closed(fd: c_int) {
    if let Some(entry) = entry(fd) {
        entry.store(0, Relaxed);
    }
}

fn entry(fd: c_int) -> Option<&'static AtomicU8> {
    FILES.get(usize::try_from(fd).ok()?)
}

fn place_of_file(fd: c_int) -> Option<Place> {
    PLACES.get(usize::from(entry(fd)?.load(Relaxed)).checked_sub(1)?).copied()
}

fn place_of(dir: c_int, path: &[u8]) -> Option<Place> {
    if path.first() != Some(&b'/') {
        let place = place_of_file(dir)?;
        return Some(if path == b"fs/cgroup" { Place::Group } else { place });
    }
    FAULTS.with_borrow(|faults| {
        let below = path.strip_prefix(faults.as_ref()?.root.as_slice())?;
        let places: [(&[u8], Place); 5] = [
            (b"/sys/fs/cgroup", Place::Group),
            (b"/var/lib", Place::State),
            (b"/run", Place::Run),
            (b"/etc", Place::Settings),
            (b"/usr", Place::Settings),
        ];
        let found = places.iter().find(|(prefix, _)| below.starts_with(prefix));
        Some(found.map_or(Place::Kernel, |(_, place)| *place))
    })
}

fn decide(call: Call, place: Place, is_deep: bool) -> Option<Fault> {
    FAULTS.with_borrow_mut(|faults| {
        let faults = faults.as_mut()?;
        let fault = faults.lasting(call, place).or_else(|| faults.single(call, place, is_deep));
        faults.count += u64::from(fault.is_some());
        let reads = matches!(call, Call::Open | Call::Read);
        faults.lost_state |= fault == Some(Fault::Error(EIO)) && place == Place::State && reads;
        fault
    })
}

fn trace(call: Call, fault: Fault, path: impl FnOnce() -> String) {
    let _model = model();
    if let Some(simulation) = super::current() {
        simulation.trace(|| match fault {
            Fault::Error(error) => format!("{call:?} of {}: {}", path(), std::io::Error::from_raw_os_error(error)),
            Fault::Short => format!("{call:?} of {}: short", path()),
        });
    }
}

impl Faults {
    /// The fault of a call during a burst, or after a short write.
    fn lasting(&mut self, call: Call, place: Place) -> Option<Fault> {
        let writes = matches!(call, Call::Create | Call::Write | Call::Sync | Call::Name);
        if call == Call::Write && std::mem::take(&mut self.was_short) {
            return Some(Fault::Error(ENOSPC));
        }
        let error = match (self.burst?, place) {
            (Burst::NoDescriptors, _) if matches!(call, Call::Open | Call::Create) => EMFILE,
            (Burst::LittleMemory, _) if errors(call, place).contains(&Fault::Error(ENOMEM)) => {
                (self.random.u32(0..8) == 0).then_some(ENOMEM)?
            }
            (Burst::DiskFull, Place::State) | (Burst::RunFull, Place::Run) if writes => ENOSPC,
            (Burst::DiskFails, Place::State) if errors(call, place).contains(&Fault::Error(EIO)) => {
                self.random.bool().then_some(EIO)?
            }
            _ => return None,
        };
        Some(Fault::Error(error))
    }

    fn single(&mut self, call: Call, place: Place, is_deep: bool) -> Option<Fault> {
        let place_index = place as usize;
        self.left[place_index] = self.left[place_index].saturating_sub(1);
        let errors = errors(call, place);
        if self.left[place_index] > 0 || errors.is_empty() {
            return None;
        }
        self.left[place_index] = self.random.u64(1..2 * BETWEEN[place_index]);
        if is_deep && self.random.u32(0..4) == 0 {
            return Some(Fault::Error(ENAMETOOLONG));
        }
        let fault = errors[self.random.usize(0..errors.len())];
        self.was_short = fault == Fault::Short && call == Call::Write;
        Some(fault)
    }
}

/// The faults that a call can have.
fn errors(call: Call, place: Place) -> &'static [Fault] {
    const FILE: Fault = Fault::Error(EMFILE);
    const TABLE: Fault = Fault::Error(ENFILE);
    const MEMORY: Fault = Fault::Error(ENOMEM);
    const SPACE: Fault = Fault::Error(ENOSPC);
    const DISK: Fault = Fault::Error(EIO);
    let is_on_disk = matches!(place, Place::State | Place::Settings);
    match (call, place) {
        (Call::Open, _) if is_on_disk => &[FILE, TABLE, MEMORY, DISK],
        (Call::Open, _) => &[FILE, TABLE, MEMORY],
        (Call::Create, Place::State) => &[FILE, TABLE, MEMORY, SPACE, DISK],
        (Call::Create, _) => &[FILE, TABLE, MEMORY, SPACE],
        // The kernel shows these in parts, and each file of a group in one.
        (Call::Read, Place::Kernel) => &[MEMORY, Fault::Short],
        (Call::Read, _) if is_on_disk => &[DISK],
        (Call::Look | Call::Unlink, _) if is_on_disk => &[MEMORY, DISK],
        (Call::Read | Call::Look | Call::Unlink, _) => &[MEMORY],
        (Call::Name, Place::State) => &[MEMORY, SPACE, DISK],
        (Call::Name, _) => &[MEMORY, SPACE],
        (Call::Write | Call::Sync, Place::Kernel | Place::Group) => &[],
        (Call::Write, Place::State) => &[SPACE, DISK, Fault::Short],
        (Call::Write, _) => &[SPACE, Fault::Short],
        (Call::Sync, Place::State) => &[SPACE, DISK],
        (Call::Change, Place::State) => &[DISK],
        (Call::Sync | Call::Change, _) => &[],
    }
}
