//! The daemon's memory of what groups held and used: one [`Sample`] for each of the larger groups, every
//! ten minutes as configured, over weeks.
//!
//! ```text
//! for sample in history::read(&paths::history(root), from..to, |group| group.starts_with("app.slice"))? { ... }
//! ```
//!
//! What a reader may rely on:
//!
//! * A sample is of a group **with all below it**, as the kernel's own figures are. The empty path is
//!   the machine. A group is its path and its id: one that was made anew under its name has another.
//! * Samples come in the order in which they were written. Their times are the wall clock's, so they may go
//!   back or leap where somebody set it; `over` counts time awake.
//! * There is none of a time when the daemon did not run, nor of groups with less than [`SMALLEST`], nor
//!   of more than the [`MOST_GROUPS`] largest. No sample is not "no memory".
//! * `None` is unknown, never zero.
//! * What is damaged is left out, and [`Samples::skipped`] says so once all was read.

pub mod ledger;
mod segment;
mod store;

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use omr_kernel::numa;
use omr_policy::age::Bounds;
use omr_units::{Bytes, GroupId};

use self::segment::Segment;
pub use self::segment::Skipped;
pub use self::store::Store;

/// Groups with less memory are left out.
pub const SMALLEST: Bytes = Bytes::mib(1);
/// So many groups at most, the largest.
pub const MOST_GROUPS: usize = 200;

/// The ages of which a sample says how much memory reached them.
pub const AGES: [Duration; 7] = [
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(300),
    Duration::from_secs(600),
    Duration::from_secs(1800),
    Duration::from_secs(3600),
];

/// A group with all below it at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Wall clock, since 1970; whole seconds.
    pub time: Duration,
    /// The kernel's boot id.
    pub boot: Rc<str>,
    /// Its path below the mount; empty: the machine.
    pub group: Rc<Path>,
    /// Its identity.
    pub id: GroupId,
    /// `memory.current`; of the machine, `anon` and `file` together.
    pub current: Bytes,
    /// The largest `memory.current` that was seen since the last sample, some seconds apart.
    pub peak: Bytes,
    /// `anon` of `memory.stat`.
    pub anon: Bytes,
    /// `file` of `memory.stat`: page cache, files in tmpfs and swap cache.
    pub file: Bytes,
    /// `shmem` of `memory.stat`: files in tmpfs and shared memory, part of `file`.
    pub shmem: Bytes,
    /// `memory.swap.current`.
    pub swap: Option<Bytes>,
    /// How long its memory was not used.
    pub idle: Option<Idle>,
    /// What has happened since the last sample; `None` of the first.
    pub since: Option<Since>,
    /// The same of each NUMA node on which it holds something; none where the machine has one node.
    pub nodes: Vec<OnNode>,
    /// What all samples of this time have cost together; `None`: written by an omr that did not keep it.
    pub cost: Option<Cost>,
}

/// A group with all below it on one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnNode {
    /// What it holds there, by `memory.numa_stat`.
    pub held: numa::OnNode,
    /// How long that was not used.
    pub idle: Option<Idle>,
}

/// What looking at groups has cost since the samples before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Generations made, of any group on any node.
    pub agings: u64,
    /// CPU time of the thread that looks, reading and writing included.
    pub cpu: Duration,
}

/// How long anonymous and shared memory was not used. Page cache is no part of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// So long before the sample this held.
    pub ago: Duration,
    /// Anonymous and shared memory then.
    pub memory: Bytes,
    /// How much of it was not used for as long as [`AGES`] say. Never more for a longer one. What was not
    /// looked at for so long is in no `least` and in every `most`.
    pub bounds: [Bounds; AGES.len()],
}

impl Idle {
    /// How much was not used for this long, which is one of [`AGES`].
    pub fn of(&self, age: Duration) -> Option<Bounds> {
        AGES.iter().position(|&known| known == age).map(|index| self.bounds[index])
    }
}

/// What has happened to a group between two samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// In this time, sleep not counted.
    pub over: Duration,
    /// `workingset_refault_anon`: came back from swap.
    pub refaults_anon: Option<Bytes>,
    /// `workingset_refault_file`: page cache that was read again.
    pub refaults_file: Option<Bytes>,
    /// `pswpin` (Linux 7.2): read from swap, what was read ahead included.
    pub swapped_in: Option<Bytes>,
    /// Some task of the group waited for memory (PSI, `some`) so long.
    pub stalled: Option<Duration>,
}

/// Reads the history in this directory: samples of these times (wall clock, since 1970), of groups for
/// whose path `wanted` says so. No history is an empty one.
pub fn read(dir: &Path, times: Range<Duration>, wanted: impl Fn(&Path) -> bool + 'static) -> Result<Samples> {
    let mut segments = match segment::list(dir) {
        Ok(segments) => segments,
        Err(err) if err.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            bail!("read {}: permission denied; root and members of the group omr may", dir.display())
        }
        Err(err) => return Err(err).with_context(|| format!("read {}", dir.display())),
    };
    // A file that was last written before these times has nothing of them. File systems take their times from a clock that is
    // some milliseconds behind.
    segments.retain(|path| last_written(path).is_none_or(|time| time + Duration::from_secs(1) >= times.start));
    segments.reverse();
    Ok(Samples { segments, times, wanted: Box::new(wanted), now: None, ready: Vec::new(), skipped: Vec::new() })
}

/// Wall clock, since 1970.
fn last_written(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()
}

/// See [`read`].
pub struct Samples {
    /// Files still to be read, the last first.
    segments: Vec<PathBuf>,
    times: Range<Duration>,
    wanted: Box<dyn Fn(&Path) -> bool>,
    now: Option<Segment>,
    /// Of one moment, the last first.
    ready: Vec<Sample>,
    skipped: Vec<Skipped>,
}

impl Samples {
    /// What could not be read so far.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The next file; `None` after the last.
    fn open(&mut self) -> Option<Segment> {
        loop {
            let path = self.segments.pop()?;
            match fs::read(&path) {
                Ok(bytes) => match Segment::new(&path, bytes) {
                    Ok(segment) => return Some(segment),
                    Err(skipped) => self.skipped.push(skipped),
                },
                // The daemon has dropped it meanwhile.
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
