//! The history of groups: a [`Sample`] of each larger group, by default every ten minutes, over
//! weeks.
//!
//! ```text
//! for sample in history::read(&paths::history(root), from..to, |group| group.starts_with("app.slice"))? { ... }
//! ```
//!
//! A reader may rely on this:
//!
//! * A sample is of a group **with all below it**, as the kernel's own figures are. The empty path
//!   is the machine. A group is its path and its id: one that was made anew under its name has
//!   another.
//! * Samples come in the order in which they were written. Their times are the wall clock's, so
//!   they may go back or leap where somebody set it; `over` counts time awake.
//! * There is none of a time when the daemon did not run, nor of groups with less than
//!   [`SMALLEST`], nor of more than the [`MOST_GROUPS`] largest. A missing sample does not mean "no
//!   memory".
//! * `None` is unknown, never zero.
//! * What is damaged is left out, and [`Samples::skipped`] says so once all was read.

#![deny(clippy::indexing_slicing)]

pub mod days;
pub mod held_out;
pub mod ledger;
mod segment;
mod store;

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use omr_base::folder::Folder;
use omr_kernel::numa;
use omr_policy::age::{Bounds, Promotions};
use omr_units::{Bytes, GroupId};

pub use omr_policy::age::AGES;

use self::segment::Segment;
pub use self::segment::Skipped;
#[cfg(any(test, feature = "testing"))]
pub use self::segment::mend_checksums;
pub use self::store::Store;

/// Groups with less memory get no samples.
pub const SMALLEST: Bytes = Bytes::mib(1);
/// The largest number of groups in one round; the largest groups are kept.
pub const MOST_GROUPS: usize = 200;

/// A group, with all groups below it, at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The wall clock, since 1970, in whole seconds.
    pub time: Duration,
    /// The kernel's boot id.
    pub boot: Rc<str>,
    /// The path below the mount; empty: the machine.
    pub group: Rc<Path>,
    /// The identity of the group.
    pub id: GroupId,
    /// `memory.current`; of the machine, `anon` and `file` together.
    pub current: Bytes,
    /// The largest `memory.current` since the last sample, read some seconds apart.
    pub peak: Bytes,
    /// `anon` of `memory.stat`.
    pub anon: Bytes,
    /// `file` of `memory.stat`: page cache, files in tmpfs and swap cache.
    pub file: Bytes,
    /// `shmem` of `memory.stat`: files in tmpfs and shared memory, part of `file`.
    pub shmem: Bytes,
    /// `memory.swap.current`.
    pub swap: Option<Bytes>,
    /// The idle time of its memory; `None`: unknown.
    pub idle: Option<Idle>,
    /// Counters since the last sample; `None`: the first sample.
    pub since: Option<Since>,
    /// The promotions of its memory since the agings of the last sample, without memory that omr
    /// reclaimed; `None`: unknown.
    pub promotions: Option<Promotions>,
    /// The same for each NUMA node on which it has memory; empty on a machine with one node.
    pub nodes: Vec<OnNode>,
    /// The age from which on its memory could be taken; `None`: any age, no sweep may touch it, or
    /// an older omr wrote the sample.
    pub threshold: Option<Duration>,
    /// Figures that only the machine has; `None`: a group, or an older omr wrote the sample.
    pub machine: Option<Machine>,
    /// The cost of all samples of this time together; `None`: an older omr wrote the sample.
    pub cost: Option<Cost>,
}

impl Sample {
    /// A group with this anonymous memory and no other, of which nothing more is known.
    pub fn of_anon(group: impl AsRef<Path>, id: GroupId, anon: Bytes) -> Self {
        Sample {
            time: Duration::ZERO,
            boot: "".into(),
            group: group.as_ref().into(),
            id,
            current: anon,
            peak: anon,
            anon,
            file: Bytes::ZERO,
            shmem: Bytes::ZERO,
            swap: None,
            idle: None,
            since: None,
            promotions: None,
            nodes: Vec::new(),
            threshold: None,
            machine: None,
            cost: None,
        }
    }
}

/// A group, with all groups below it, on one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnNode {
    /// Its memory there, by `memory.numa_stat`.
    pub held: numa::OnNode,
    /// The idle time of that memory; `None`: unknown.
    pub idle: Option<Idle>,
}

/// Figures of the machine at the time of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// `MemFree`.
    pub free: Option<Bytes>,
    /// Swapped out to zram; `None`: there is no zram.
    pub zram: Option<Compressed>,
    /// Swapped out to zswap, part of `disk` as well; `None`: the kernel has no zswap.
    pub zswap: Option<Compressed>,
    /// Space in use on swap devices other than zram.
    pub disk: Option<Bytes>,
    /// The forecast of the hibernation image, at most; `None`: the machine cannot hibernate, or the
    /// size is unknown.
    pub image: Option<Bytes>,
}

/// Compressed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compressed {
    /// Its size without compression.
    pub stored: Bytes,
    /// The memory that it occupies.
    pub occupied: Bytes,
}

/// The cost of samples and agings since the previous samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The number of agings, of any group on any node.
    pub agings: u64,
    /// CPU time of the sampling thread, reading and writing included.
    pub cpu: Duration,
}

/// The idle time of anonymous and shared memory, without page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The time between these figures and the sample.
    pub ago: Duration,
    /// Anonymous and shared memory at that time.
    pub memory: Bytes,
    /// The memory that was not used for each of [`AGES`]; `None`: an older omr wrote the sample and
    /// did not record this age. Never more for a longer age. Memory that was not observed for this
    /// long is in no `least` and in every `most`.
    pub bounds: [Option<Bounds>; AGES.len()],
}

impl Idle {
    /// Returns the memory that was not used for this age, one of [`AGES`]; `None`: not recorded.
    pub fn of(&self, age: Duration) -> Option<Bounds> {
        AGES.iter().zip(self.bounds).find(|&(&known, _)| known == age).and_then(|(_, bounds)| bounds)
    }

    /// Returns the recorded ages, with the memory that was not used for each.
    pub fn ages(&self) -> impl Iterator<Item = (Duration, Bounds)> {
        AGES.into_iter().zip(self.bounds).filter_map(|(age, bounds)| Some((age, bounds?)))
    }
}

/// Counters of a group between two samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The time between the samples, without sleep.
    pub over: Duration,
    /// `workingset_refault_anon`: refaults from swap.
    pub refaults_anon: Option<Bytes>,
    /// `workingset_refault_file`: refaults of page cache.
    pub refaults_file: Option<Bytes>,
    /// `pswpin` (Linux 7.2): read from swap, readahead included.
    pub swapped_in: Option<Bytes>,
    /// The time that some task of the group waited for memory (PSI, `some`).
    pub stalled: Option<Duration>,
    /// The time that all its tasks waited for memory (PSI, `full`), in whole milliseconds; `None`: unknown, or an older omr
    /// wrote the sample.
    pub stalled_full: Option<Duration>,
    /// Anonymous and shared memory that the daemon's own sweeps reclaimed; `None`: unknown, as a
    /// group above was swept, or an older omr wrote the sample.
    pub reclaimed: Option<Bytes>,
}

/// Reads samples from the history in this directory: those of these times (wall clock, since 1970)
/// and of groups whose path is `wanted`. A missing history counts as empty.
pub fn read(dir: &Path, times: Range<Duration>, wanted: impl Fn(&Path) -> bool + 'static) -> Result<Samples> {
    let listed = Folder::open(dir).and_then(|folder| Ok((segment::list(&folder)?, Some(folder))));
    let (mut segments, folder) = match listed {
        Ok(listed) => listed,
        Err(err) if err.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            bail!("read {}: permission denied; only root and members of the group omr may read it", dir.display())
        }
        Err(err) => return Err(err).with_context(|| format!("read {}", dir.display())),
    };
    // A file that was last written before these times has no samples of them. The clock of file
    // systems is some milliseconds behind.
    let last_written = |name: &OsString| Some(folder.as_ref()?.look(name).ok()?.1);
    segments.retain(|name| last_written(name).is_none_or(|time| time + Duration::from_secs(1) >= times.start));
    segments.reverse();
    Ok(Samples {
        dir: dir.into(),
        folder,
        segments,
        times,
        wanted: Box::new(wanted),
        now: None,
        ready: Vec::new(),
        skipped: Vec::new(),
    })
}

/// See [`read`].
pub struct Samples {
    dir: PathBuf,
    /// `None`: there is no history.
    folder: Option<Folder>,
    /// Files that are still to be read, the last one first.
    segments: Vec<OsString>,
    times: Range<Duration>,
    wanted: Box<dyn Fn(&Path) -> bool>,
    now: Option<Segment>,
    /// Samples of one moment, the last one first.
    ready: Vec<Sample>,
    skipped: Vec<Skipped>,
}

impl Samples {
    /// Returns the parts that could not be read so far.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Opens the next file; `None`: there is no other.
    fn open(&mut self) -> Option<Segment> {
        loop {
            let name = self.segments.pop()?;
            let path = self.dir.join(&name);
            match self.folder.as_ref()?.read(&name) {
                Ok(bytes) => match Segment::new(&path, bytes) {
                    Ok(segment) => return Some(segment),
                    Err(skipped) => self.skipped.push(skipped),
                },
                // The daemon has dropped the file meanwhile.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => self.skipped.push(Skipped { file: path, bytes: 0, why: err.to_string() }),
            }
        }
    }
}

impl Iterator for Samples {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        loop {
            if let Some(sample) = self.ready.pop() {
                return Some(sample);
            }
            let mut segment = match self.now.take() {
                Some(segment) => segment,
                None => self.open()?,
            };
            match segment.next(&self.times, &*self.wanted, &mut self.ready) {
                Ok(true) => {
                    self.ready.reverse();
                    self.now = Some(segment);
                }
                Ok(false) => {}
                Err(skipped) => self.skipped.push(skipped),
            }
        }
    }
}
