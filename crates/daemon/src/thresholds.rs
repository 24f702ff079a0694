//! The thresholds that the aging thread learns for groups with `older_than = "auto"`, and their
//! file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use omr_base::folder::read_file;
use omr_base::storage::write_atomically;
use omr_base::text::printable;
use omr_engine::aging::observe::Node;
use omr_kernel::is_passing;
use omr_policy::age::{Bounds, Promotions};
use omr_policy::threshold::{ABSENCE, IN_USE, Interval, Move, Promoted, Slo, Step, Threshold};
use omr_units::{Bytes, GroupId, Monotonic, Permyriad};
use serde::{Deserialize, Serialize};

use crate::own_reclaim::{self, Reclaimed};

/// The file in the state directory.
const FILE: &str = "thresholds.json";
/// The version of its form.
const VERSION: u32 = 2;
/// The file is written this often, if anything changed.
const WRITE: Duration = Duration::from_secs(600);
/// The most groups in memory and in the file. Any user can make groups; those that were not seen
/// for the longest time are forgotten first.
const MOST: usize = 500;
/// W, the memory in use within [`IN_USE`], is known after an interval that is no longer, but for the
/// slack of agings.
const IN_USE_AT_MOST: Duration = Duration::from_secs(123);
/// W is measured again after this time, and after [`STALE_THRESHOLDS`] times the threshold, as two
/// agings in a row delay reclaim by up to the threshold.
const STALE: Duration = Duration::from_secs(3600);
const STALE_THRESHOLDS: u32 = 4;
/// A group that is observed at this age is aged every 2 min, so that W is measured.
pub const MEASURED_AT: Duration = Duration::from_secs(240);

/// A threshold, for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The group.
    pub id: GroupId,
    /// The threshold.
    pub step: Step,
    /// The age at which the group is to be observed now: aged every half of it. At the threshold
    /// its cold memory is known, below the threshold it is not.
    pub observed_at: Duration,
    /// When it was last aged; `None`: not since the daemon started.
    pub aged: Option<Monotonic>,
    /// True once the group was observed for the warm-up, so that the threshold means something.
    pub is_observed: bool,
    /// Why the threshold is where it is.
    pub why: String,
}

/// The counters of a group at an aging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Memory charged to it.
    pub size: Bytes,
    /// Memory that came back from swap; `None`: unknown.
    pub swapped_in: Option<Bytes>,
    /// Time in which some task waited for memory; `None`: unknown.
    pub stalled: Option<Duration>,
}

/// What thresholds must keep on this machine now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// The objective.
    pub slo: Slo,
    /// The write budget is used up.
    pub write_budget_used: bool,
    /// Free swap is at its floor.
    pub swap_at_floor: bool,
}

/// One group.
#[derive(Debug)]
struct Known {
    name: String,
    threshold: Threshold,
    is_observed: bool,
    why: String,
    /// The working set when it was last measured.
    in_use: Option<(Monotonic, Bytes)>,
    /// The last aging, and the counters then; `None`: not aged since the daemon started.
    last: Option<(Monotonic, Counters)>,
    /// What was reclaimed since then.
    reclaimed: Vec<Reclaimed>,
}

/// A threshold in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// When the group was last observed, in seconds since 1970.
    seen: u64,
    threshold: Threshold,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    groups: HashMap<String, Saved>,
}

/// All thresholds.
#[derive(Debug)]
pub struct Thresholds {
    known: HashMap<GroupId, Known>,
    /// Those of groups that are not there, by name.
    absent: HashMap<String, Saved>,
    file: PathBuf,
    written: Monotonic,
    is_changed: bool,
    /// Writing it failed the last time.
    is_unsaved: bool,
}

impl Thresholds {
    /// Reads the thresholds of earlier runs. A file that is wrong is left out as a whole: then each
    /// group begins with the longest threshold. An error that passes is one: the file is good, and
    /// must not be replaced.
    pub fn load(state_dir: &Path, now: Monotonic) -> Result<Self> {
        let file = state_dir.join(FILE);
        let absent = match read(&file) {
            Ok(absent) => absent,
            Err(err) if err.downcast_ref().is_some_and(is_passing) => {
                return Err(err).with_context(|| format!("read {}", file.display()));
            }
            Err(err) => {
                log::warn!("{}: {err}; thresholds are learned anew", printable(&file.to_string_lossy()));
                HashMap::new()
            }
        };
        Ok(Thresholds { known: HashMap::new(), absent, file, written: now, is_changed: false, is_unsaved: false })
    }

    /// Learns for these groups from now on, and for no others.
    pub fn retain<'g>(&mut self, groups: impl Iterator<Item = (GroupId, &'g Path)>, slo: &Slo, wall: u64) {
        let groups: HashMap<GroupId, String> = groups.map(|(id, path)| (id, name_of(path))).collect();
        // A group that was made anew goes on where the one before has ended.
        let gone = self.known.extract_if(|id, known| groups.get(id) != Some(&known.name));
        for (_, known) in gone {
            self.absent.insert(known.name, Saved { seen: wall, threshold: known.threshold });
        }
        for (id, name) in groups {
            if !self.known.contains_key(&id) {
                let known = self.begin(name, slo, wall);
                self.known.insert(id, known);
            }
        }
        self.forget_oldest();
    }

    /// Forgets the groups that were not seen for the longest time, where there are too many.
    fn forget_oldest(&mut self) {
        let excess = (self.absent.len() + self.known.len()).saturating_sub(MOST);
        if excess == 0 {
            return;
        }
        let mut names: Vec<(u64, String)> =
            self.absent.iter().map(|(name, saved)| (saved.seen, name.clone())).collect();
        names.sort_unstable();
        for (_, name) in names.into_iter().take(excess) {
            self.absent.remove(&name);
        }
    }

    /// The group that had this name has left its threshold.
    fn begin(&mut self, name: String, slo: &Slo, wall: u64) -> Known {
        let threshold = match self.absent.remove(&name) {
            Some(Saved { seen, mut threshold }) => {
                // Nobody knows how long it was absent if the clock was set back.
                let time = wall.checked_sub(seen).map_or(ABSENCE, Duration::from_secs);
                threshold.absent(time.max(Duration::from_secs(1)));
                threshold
            }
            None => Threshold::new(slo),
        };
        let why = "not observed yet".to_owned();
        Known { name, threshold, is_observed: false, why, in_use: None, last: None, reclaimed: Vec::new() }
    }

    /// Memory that the daemon reclaimed from the group, or a group above it, is no promotion.
    pub fn note_reclaimed(&mut self, id: GroupId, path: &Path, all: &[Reclaimed]) {
        let Some(known) = self.known.get_mut(&id) else { return };
        let concerns = |reclaimed: &&Reclaimed| path.starts_with(&reclaimed.path);
        all.iter().filter(concerns).for_each(|new| own_reclaim::note(&mut known.reclaimed, new.clone()));
    }

    /// A group was aged. Moves its threshold. `disturbed`: memory younger than the threshold was
    /// taken up to this moment, and what came back says nothing about the threshold.
    pub fn observe(
        &mut self,
        id: GroupId,
        path: &Path,
        seen: &Seen,
        counters: Counters,
        terms: &Terms,
        disturbed: Option<Monotonic>,
    ) {
        let Some(known) = self.known.get_mut(&id) else { return };
        // An aging that made no generation shows nothing new.
        if known.last.is_some_and(|(last, _)| seen.at <= last) {
            return;
        }
        let reclaimed = std::mem::take(&mut known.reclaimed);
        let Some((last, before)) = known.last.replace((seen.at, counters)) else { return };
        if disturbed.is_some_and(|until| last < until) {
            return;
        }
        let length = seen.at.since(last);
        let swapped_in = counters.swapped_in.zip(before.swapped_in).map(|(now, before)| now - before);
        let promoted = seen.promotions.filter(|_| swapped_in.is_some());
        let promoted = promoted.and_then(|promoted| without_reclaim(promoted, path, &reclaimed, last));
        let stalled = counters.stalled.zip(before.stalled);
        let interval = Interval {
            length,
            size: counters.size,
            promoted: promoted.as_ref().map(Promoted::at_each_age).unwrap_or_default(),
            swapped_in: swapped_in.unwrap_or_default(),
            working_set: known.working_set(seen, length),
            stalled: stalled.map(|(now, before)| Permyriad::of_time(now.saturating_sub(before), length)),
            write_budget_used: terms.write_budget_used,
            swap_at_floor: terms.swap_at_floor,
        };
        known.observe(&terms.slo, &interval);
        self.is_changed = true;
    }

    /// All of them, by name: a test compares them with the file.
    #[cfg(test)]
    pub fn all(&self) -> std::collections::BTreeMap<String, Threshold> {
        let absent = self.absent.iter().map(|(name, saved)| (name.clone(), saved.threshold.clone()));
        absent.chain(self.known.values().map(|known| (known.name.clone(), known.threshold.clone()))).collect()
    }

    /// All thresholds in force.
    pub fn learned(&self, slo: &Slo, now: Monotonic) -> Vec<Learned> {
        let learned = |(id, known): (&GroupId, &Known)| Learned {
            id: *id,
            step: known.threshold.step(),
            observed_at: known.observed_at(slo, now),
            aged: known.last.map(|(at, _)| at),
            is_observed: known.is_observed,
            why: known.why.clone(),
        };
        self.known.iter().map(learned).collect()
    }

    /// Writes the file when it is time.
    pub fn save_if_due(&mut self, now: Monotonic, wall: u64) {
        if self.is_changed && now.since(self.written) >= WRITE {
            self.written = now;
            self.save(wall);
        }
    }

    /// Writes the file, if anything changed.
    pub fn save(&mut self, wall: u64) {
        if !self.is_changed {
            return;
        }
        let mut groups = self.absent.clone();
        for known in self.known.values() {
            groups.insert(known.name.clone(), Saved { seen: wall, threshold: known.threshold.clone() });
        }
        let text = serde_json::to_vec(&File { version: VERSION, groups }).unwrap_or_default();
        match write_atomically(&self.file, &text) {
            Ok(()) => (self.is_changed, self.is_unsaved) = (false, false),
            Err(_) if self.is_unsaved => {}
            Err(err) => {
                log::warn!("{err:#}; a restart will not know what was learned since the last time");
                self.is_unsaved = true;
            }
        }
    }
}

impl Known {
    /// The memory in use within [`IN_USE`], at least; `None`: it was never measured. After a longer
    /// interval nobody knows how much of what was used in it is still in use: no more than was last
    /// measured.
    fn working_set(&mut self, seen: &Seen, length: Duration) -> Option<Bytes> {
        if length <= IN_USE_AT_MOST {
            self.in_use = Some((seen.at, seen.in_use.least));
        }
        self.in_use.map(|(_, bytes)| bytes.min(seen.in_use.most))
    }

    /// The age at which the group is to be observed.
    fn observed_at(&self, slo: &Slo, now: Monotonic) -> Duration {
        let stale = STALE.max(self.threshold.step().age() * STALE_THRESHOLDS);
        match self.in_use {
            Some((at, _)) if now.since(at) < stale => self.threshold.observed_at(slo).observed(),
            _ => MEASURED_AT,
        }
    }

    fn observe(&mut self, slo: &Slo, interval: &Interval) {
        let Move { from, to, reason } = self.threshold.observe(slo, interval);
        if from != to {
            log::debug!("{}: threshold {} -> {}: {reason}", printable(&self.name), minutes(from), minutes(to));
        }
        self.why = reason.to_string();
        self.is_observed = reason.is_observed(self.is_observed);
    }
}

fn minutes(step: Step) -> impl std::fmt::Display {
    omr_policy::short(step.age())
}

/// What an aging of a group showed.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    at: Monotonic,
    /// Since the aging before; `None`: unknown.
    promotions: Option<Promotions>,
    /// W: memory that was used within [`IN_USE`].
    in_use: Bounds,
}

impl Seen {
    /// Adds up all NUMA nodes; `None`: the group was not aged.
    pub fn new<'n>(nodes: impl Iterator<Item = &'n Node>) -> Option<Self> {
        let mut all: Option<Seen> = None;
        for node in nodes {
            let (idle, memory) = (node.idle(IN_USE), node.memory());
            let in_use = Bounds { least: memory - idle.most, most: memory - idle.least };
            let seen = Seen { at: node.at()?, promotions: node.latest().copied(), in_use };
            match &mut all {
                Some(all) => all.add(&seen),
                None => all = Some(seen),
            }
        }
        all
    }

    fn add(&mut self, other: &Seen) {
        self.at = self.at.max(other.at);
        self.in_use += other.in_use;
        self.promotions = self.promotions.zip(other.promotions).map(|(mut all, other)| {
            all.add_bounds(&other);
            all
        });
    }
}

/// Takes out what was reclaimed since the last aging; `None`: nobody knows how much of that was
/// this group's, or whether it was before that aging.
fn without_reclaim(
    mut promoted: Promotions,
    path: &Path,
    reclaimed: &[Reclaimed],
    last: Monotonic,
) -> Option<Promotions> {
    for Reclaimed { path: from, bytes, unused_for, began, ended } in reclaimed {
        if from != path || *began < last {
            return None;
        }
        // The age at the last aging counts.
        promoted.subtract_reclaimed(*bytes, unused_for.saturating_sub(ended.since(last)));
    }
    Some(promoted)
}

/// The name under which the threshold of a group is kept: its path, without what changes from one
/// start of an application to the next (`app-firefox-1234.scope`, `app-foot@1f3a.service`).
fn name_of(path: &Path) -> String {
    let mut path = path.to_path_buf();
    let last = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some((stem, kind)) = last.rsplit_once('.') else { return path.to_string_lossy().into_owned() };
    let stem = match kind {
        "scope" => stem.trim_end_matches(|c: char| c.is_ascii_hexdigit()).strip_suffix('-').unwrap_or(stem),
        "service" if stem.starts_with("app-") => stem.split_once('@').map_or(stem, |(name, _)| name),
        _ => stem,
    };
    path.set_file_name(format!("{stem}.{kind}"));
    path.to_string_lossy().into_owned()
}

fn read(file: &Path) -> Result<HashMap<String, Saved>> {
    let text = match read_file(file) {
        Ok(text) => text,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(HashMap::new()),
        Err(err) => return Err(err.into()),
    };
    let File { version, groups } = serde_json::from_slice(&text)?;
    if version != VERSION {
        bail!("version {version}; this program knows {VERSION}");
    }
    Ok(groups.into_iter().take(MOST).collect())
}

#[cfg(test)]
mod tests;
