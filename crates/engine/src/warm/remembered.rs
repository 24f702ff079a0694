//! The pages that groups had in memory before they lost some of them, so that just those pages can
//! be given back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_config::Loaded;
use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_kernel::meminfo::Meminfo;
use omr_kernel::{Kernel, process};
use omr_machine::groups::tree::Tree;
use omr_machine::inventory::read_groups;
use omr_policy::Class;
use omr_units::{Amount, Bytes, GroupId};

use super::record::{Packed, Record, RecordedGroup, RecordedProcess, read_process};
use super::{BACKGROUND, Bounds, FLOOR, Job, Report, Subject};
use crate::Host;

/// The most groups that are remembered. Any user can make groups.
pub const MOST_GROUPS: usize = 500;
/// The most ranges of pages of all groups together. A range takes 16 bytes, which are locked in
/// memory.
const MOST_RANGES: usize = 100_000;
/// The most foreground work during which memory is given back; it waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// Groups of people who log in. systemd starts them here.
const SESSIONS: &str = "user.slice";

/// The pages of groups. It is bounded, because any user can make groups and mappings.
#[derive(Debug, Default)]
pub struct Remembered {
    absence: u64,
    groups: Vec<KnownGroup>,
    ranges: usize,
}

/// The pages of a group.
#[derive(Debug)]
struct KnownGroup {
    id: GroupId,
    path: PathBuf,
    processes: Vec<RecordedProcess>,
}

impl Remembered {
    /// Keeps what the processes of a group, and of those below it, have in memory now. A group that
    /// is known stays as it is; groups of another `absence` are forgotten. Fails if that is not
    /// known as a whole.
    pub fn add(&mut self, kernel: &Kernel, absence: u64, id: GroupId, path: &Path, cancel: &Flag) -> Result<()> {
        if self.absence != absence {
            *self = Remembered { absence, ..Remembered::default() };
        }
        if self.groups.iter().any(|known| known.id == id) {
            return Ok(());
        }
        if self.groups.len() >= MOST_GROUPS {
            bail!("its memory could not be given back: {MOST_GROUPS} groups are remembered already");
        }
        let mut processes = Vec::new();
        let mut ranges = self.ranges;
        for pid in read_pids(kernel, id, path)? {
            if cancel.is_set() {
                bail!("it was ended before its memory was recorded");
            }
            let (starttime, used, rest) = match read_process(kernel, pid, cancel) {
                Ok(read) => read,
                Err(err) if err.is_gone() => continue,
                Err(err) => return Err(err.into()),
            };
            let (used, rest) = (Packed::new(&used, kernel.page()), Packed::new(&rest, kernel.page()));
            ranges += used.len() + rest.len();
            if ranges > MOST_RANGES {
                bail!("its memory could not be given back: it has more than {MOST_RANGES} ranges of pages");
            }
            if used.len() + rest.len() > 0 {
                processes.push(RecordedProcess { pid, starttime, used, rest });
            }
        }
        self.ranges = ranges;
        self.groups.push(KnownGroup { id, path: path.into(), processes });
        Ok(())
    }

    /// Brings these groups back, and forgets all groups. Calls `progress` with the bytes requested
    /// so far.
    pub fn give_back(
        &mut self,
        host: Host<'_>,
        loaded: &Loaded,
        groups: &[GroupId],
        actuator: &mut dyn Actuator,
        stop: &Flag,
        progress: &mut dyn FnMut(Bytes),
    ) -> Result<Report> {
        let Host { kernel, root } = host;
        let (tree, _) = read_groups(kernel, root, loaded, false)?;
        let (record, subjects) = self.take(kernel, &tree, groups)?;
        let memory = Meminfo::read(kernel, &mut Vec::new())?;
        let floor: Amount = FLOOR.parse().context("the floor")?;
        let floor = floor.of(memory.mem_total.unwrap_or_default());
        let bounds = Bounds { rate: None, floor, patience: Some(PATIENCE) };
        let job = Job { kernel, root, loaded, tree: &tree, subjects: &subjects, only: Some(&record), bounds };
        job.run(actuator, stop, progress)
    }

    /// Forgets all groups. Returns a record of these, and their processes: groups in the foreground
    /// first, then those of people who log in, then the others.
    fn take(&mut self, kernel: &Kernel, tree: &Tree, ids: &[GroupId]) -> Result<(Record, Vec<Subject>)> {
        let mut record = Record::new(kernel.read_boot_id()?, kernel.page(), 0);
        let mut subjects = Vec::new();
        let known = std::mem::take(self).groups;
        for KnownGroup { id, path, processes } in known.into_iter().filter(|known| ids.contains(&known.id)) {
            let assignment = tree.find(&path).filter(|node| node.id == id).and_then(|node| tree.assignment(node));
            let class = assignment.map_or(Class::Background, |assignment| assignment.class);
            let is_explicit = assignment.is_some_and(|assignment| assignment.explicit);
            let pids = processes.iter().map(|process| process.pid).collect();
            let rank = rank(class, is_explicit, &path);
            record.groups.push(RecordedGroup { path: path.to_string_lossy().into_owned(), class, processes });
            subjects.push(Subject { group: path, class, rank, pids });
        }
        subjects.sort_by_key(|subject| subject.rank);
        Ok((record, subjects))
    }
}

/// Returns the processes of a group and of those below it. Fails unless all of them can be read.
fn read_pids(kernel: &Kernel, id: GroupId, path: &Path) -> Result<Vec<u32>> {
    let group = Group::open(kernel.cgroup()?, path)?;
    if group.is_root() || group.id() != id {
        bail!("another group is there");
    }
    let mut pids = Pids { found: Vec::new(), is_whole: true };
    memcg::walk(group.dir(), &mut pids)?;
    if !pids.is_whole {
        bail!("its memory could not be given back: not all of its processes can be read");
    }
    Ok(pids.found)
}

struct Pids {
    found: Vec<u32>,
    is_whole: bool,
}

impl Visit for Pids {
    fn enter(&mut self, found: Found<'_>) -> Option<usize> {
        match process::read_pids(found.dir) {
            Ok(pids) => self.found.extend(pids),
            Err(err) => self.is_whole &= err.is_gone(),
        }
        Some(0)
    }

    fn unknown(&mut self, _: usize) {
        self.is_whole = false;
    }
}

/// The order in which memory is given back, lowest first.
fn rank(class: Class, is_explicit: bool, path: &Path) -> u8 {
    match class {
        Class::Foreground => 0,
        Class::Background if is_explicit => BACKGROUND,
        _ if path.starts_with(SESSIONS) => 1,
        Class::Protected | Class::Background => 2,
    }
}

#[cfg(test)]
mod tests {
    use omr_testkit::{FakeRoot, Release};

    use super::*;

    #[test]
    fn the_processes_of_a_group_are_its_own_and_those_below_it() {
        let root = FakeRoot::captured(Release::V6_12)
            .group("a.slice", &[("cgroup.procs", "5\n")])
            .group("a.slice/b/c", &[("cgroup.procs", "7\n9\n")])
            .group("d.slice", &[("cgroup.procs", "11\n")]);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let cgroup = kernel.cgroup().expect("groups");
        let id = Group::open(cgroup, Path::new("a.slice")).expect("a group").id();
        assert_eq!(read_pids(&kernel, id, Path::new("a.slice")).expect("processes"), [5, 7, 9]);
        let top = cgroup.id().expect("an inode");
        for (id, path) in [(id, "d.slice"), (id, "nowhere"), (id, "a.slice/../d.slice"), (top, "")] {
            read_pids(&kernel, id, Path::new(path)).expect_err(path);
        }
        // Unknown is not "no process".
        root.write("sys/fs/cgroup/a.slice/b/cgroup.procs/is-a-directory", "");
        read_pids(&kernel, id, Path::new("a.slice")).expect_err("a list that cannot be read");
    }

    #[test]
    fn the_session_comes_back_before_services() {
        let rank = |class, is_explicit, path| rank(class, is_explicit, Path::new(path));
        let order = [
            rank(Class::Foreground, true, "a.slice/b.service"),
            rank(Class::Background, false, "user.slice/user-1000.slice/session-1.scope"),
            rank(Class::Background, false, "system.slice/b.service"),
            rank(Class::Background, true, "user.slice/user-1000.slice/batch.scope"),
        ];
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
