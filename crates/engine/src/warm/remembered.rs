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
    use std::ops::Range;

    use omr_actuate::Outcome;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Hints, PAGE, anon, set_line, set_mappings, set_process};

    /// A machine with a process in each of these groups, with this memory.
    fn machine(groups: &[(&str, &str)]) -> (FakeRoot, Kernel) {
        let mut root = FakeRoot::in_memory(Release::V6_12).group("", &[("cgroup.procs", "")]);
        for (pid, (group, pages)) in (1..).zip(groups) {
            root = root.group(group, &[("memory.current", "0\n")]);
            set_process(&root, pid, group, &[anon(0x10_0000, pages)]);
        }
        let kernel = Kernel::open(root.path()).expect("a kernel");
        (root, kernel)
    }

    fn id(kernel: &Kernel, path: &str) -> GroupId {
        Group::open(kernel.cgroup().expect("groups"), Path::new(path)).expect("a group").id()
    }

    fn add(remembered: &mut Remembered, kernel: &Kernel, absence: u64, path: &str) -> Result<()> {
        remembered.add(kernel, absence, id(kernel, path), Path::new(path), &Flag::default())
    }

    /// Gives these groups back. Returns the report, and the process and pages of each range.
    fn given_back(
        remembered: &mut Remembered,
        root: &FakeRoot,
        kernel: &Kernel,
        groups: &[&str],
    ) -> (Report, Vec<(u32, Range<u64>)>) {
        let ids: Vec<GroupId> = groups.iter().map(|path| id(kernel, path)).collect();
        let mut calls = Vec::new();
        let mut kernel_side = Hints(|pid, ranges: &[Range<u64>]| {
            calls.extend(ranges.iter().map(|range| (pid, range.start / PAGE..range.end / PAGE)));
            Outcome::Done
        });
        let mut loaded = Loaded::built_in();
        loaded.groups = omr_config::rules("[[group]]\nmatch = 'a.slice'\nclass = 'foreground'\n");
        let host = Host { kernel, root: root.path() };
        let report = remembered.give_back(host, &loaded, &ids, &mut kernel_side, &Flag::default(), &mut |_| {});
        (report.expect("a report"), calls)
    }

    #[test]
    fn just_the_pages_that_groups_had_come_back_the_foreground_first() {
        let (root, kernel) =
            machine(&[("system.slice", "p"), ("user.slice", "pp"), ("a.slice", "ppp-"), ("b.slice", "p")]);
        let mut remembered = Remembered::default();
        for path in ["system.slice", "user.slice", "a.slice", "b.slice"] {
            add(&mut remembered, &kernel, 1, path).expect("remembered");
        }
        for pid in 1..5 {
            set_mappings(&root, pid, &[anon(0x10_0000, "ssss")]);
        }
        // Adding a group again does not change what it had.
        add(&mut remembered, &kernel, 1, "a.slice").expect("remembered");
        let (report, calls) = given_back(&mut remembered, &root, &kernel, &["system.slice", "user.slice", "a.slice"]);
        assert_eq!(calls, [(3, 0x100..0x103), (2, 0x100..0x102), (1, 0x100..0x101)]);
        assert_eq!((report.swap, report.end), (Bytes(6 * PAGE), crate::warm::End::Complete));
        assert_eq!(given_back(&mut remembered, &root, &kernel, &["b.slice"]).1, [], "all is forgotten then");
    }

    #[test]
    fn groups_of_another_absence_are_forgotten() {
        let (root, kernel) = machine(&[("a.slice", "p"), ("b.slice", "p")]);
        let mut remembered = Remembered::default();
        add(&mut remembered, &kernel, 1, "a.slice").expect("remembered");
        add(&mut remembered, &kernel, 2, "b.slice").expect("remembered");
        for pid in [1, 2] {
            set_mappings(&root, pid, &[anon(0x10_0000, "s")]);
        }
        assert_eq!(given_back(&mut remembered, &root, &kernel, &["a.slice", "b.slice"]).1, [(2, 0x100..0x101)]);
    }

    #[test]
    fn memory_of_the_machine_stays_available_when_groups_come_back() {
        let (root, kernel) = machine(&[("a.slice", "p")]);
        set_line(&root, "proc/meminfo", "MemTotal:", "1024000 kB");
        for (available, end) in [("102403 kB", crate::warm::End::Headroom), ("102404 kB", crate::warm::End::Complete)] {
            let mut remembered = Remembered::default();
            set_mappings(&root, 1, &[anon(0x10_0000, "p")]);
            add(&mut remembered, &kernel, 1, "a.slice").expect("remembered");
            set_mappings(&root, 1, &[anon(0x10_0000, "s")]);
            set_line(&root, "proc/meminfo", "MemAvailable:", available);
            assert_eq!(given_back(&mut remembered, &root, &kernel, &["a.slice"]).0.end, end, "{available}");
        }
    }

    #[test]
    fn a_group_is_remembered_as_a_whole_or_not_at_all() {
        let (root, kernel) = machine(&[("a.slice", "p"), ("b.slice", "p")]);
        let mut remembered = Remembered::default();
        let set = Flag::default();
        set.set();
        let path = Path::new("a.slice");
        let ended = remembered.add(&kernel, 1, id(&kernel, "a.slice"), path, &set);
        assert_eq!(ended.expect_err("ended").to_string(), "it was ended before its memory was recorded");
        // A process that ends meanwhile is no obstacle. One that cannot be read is.
        set_process(&root, 9, "a.slice", &[anon(0x10_0000, "p")]);
        root.write("proc/9/smaps", "no smaps\n");
        add(&mut remembered, &kernel, 1, "a.slice").expect_err("unknown");
        root.remove("proc/9");
        add(&mut remembered, &kernel, 1, "a.slice").expect("remembered");
    }

    #[test]
    fn a_limited_number_of_ranges_is_remembered() {
        let (root, kernel) = machine(&[("a.slice", "p"), ("b.slice", "p")]);
        let mut remembered = Remembered::default();
        add(&mut remembered, &kernel, 1, "a.slice").expect("remembered");
        // One range in each 18 pages: they are too far apart to be one.
        set_mappings(&root, 2, &[]);
        let entries: Vec<u64> = [[1 << 63].as_slice(), &[0; 17]].concat().repeat(MOST_RANGES);
        let head = format!("0-{:x} rw-p 00000000 00:00 0\n", entries.len() as u64 * PAGE);
        root.write("proc/2/maps", &head);
        root.write("proc/2/smaps", head + "Referenced: 4 kB\n");
        root.write("proc/2/pagemap", entries.iter().flat_map(|entry| entry.to_ne_bytes()).collect::<Vec<u8>>());
        let err = add(&mut remembered, &kernel, 1, "b.slice").expect_err("one more with the first group");
        assert!(err.to_string().contains("more than 100000 ranges"), "{err}");
        add(&mut remembered, &kernel, 2, "b.slice").expect("just as many");
    }

    #[test]
    fn a_limited_number_of_groups_is_remembered() {
        let (_root, kernel) = machine(&[("a.slice", "p"), ("b.slice", "p")]);
        let known = |at: usize| KnownGroup { id: GroupId(u64::MAX - at as u64), path: "x".into(), processes: vec![] };
        for (count, fits) in [(MOST_GROUPS - 1, true), (MOST_GROUPS, false)] {
            let mut remembered = Remembered { absence: 1, groups: (0..count).map(known).collect(), ranges: 0 };
            assert_eq!(add(&mut remembered, &kernel, 1, "a.slice").is_ok(), fits, "{count}");
            assert_eq!(remembered.groups.len(), MOST_GROUPS);
        }
    }

    #[test]
    fn the_processes_of_a_group_are_its_own_and_those_below_it() {
        let root = FakeRoot::in_memory(Release::V6_12)
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
