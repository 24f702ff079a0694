//! Ages of process memory from `/proc/PID/clear_refs` and `smaps`: the last resort, as it disturbs
//! processes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_actuate::{Actuator, Outcome, clear_refs};
use omr_base::cancel::Flag;
use omr_base::exit::Exit;
use omr_kernel::Kernel;
use omr_kernel::maps::{self, Detail};
use omr_kernel::memcg::Group;
use omr_machine::processes::{self, ProcessAssignment};
use omr_policy::Class;
use omr_policy::age::Bounds;
use omr_units::Bytes;

use super::measurement::{GroupAges, Measurement};
use super::resident::{self, Mapped, is_counted};
use crate::hint::{Rules, name};

/// Measures the processes of a group and of the groups below it for this time. Fails if one of them
/// is foreground or protected.
pub fn measure(
    kernel: &Kernel,
    rules: &Rules<'_>,
    actuator: &mut dyn Actuator,
    top: &Group,
    window: Duration,
    stop: &Flag,
) -> Result<Measurement> {
    let (found, mut left_out) = resident::find_processes(kernel, top)?;
    for mapped in &found {
        let ProcessAssignment { class, origin, .. } =
            processes::classify(rules.processes, &rules.tree, &rules.statements, &mapped.process);
        if class != Class::Background {
            return Err(Exit::Failed.error(format!(
                "{} is {} ({origin}), and measuring with smaps delays processes; nothing was done",
                name(mapped.process.stat()),
                class.name()
            )));
        }
    }
    let mut cleared = Vec::new();
    for mapped in found {
        match clear_refs::clear_referenced(actuator, mapped.process.dir())? {
            Outcome::Done => cleared.push(mapped),
            Outcome::Gone => {}
            _ => left_out += 1,
        }
    }
    stop.sleep(window);
    let mut sums = Sums::default();
    let mut processes = 0;
    for mapped in &cleared {
        match maps::read_smaps(mapped.process.dir()) {
            Ok(details) if !details.is_empty() => {
                processes += 1;
                details.iter().for_each(|detail| sums.add(mapped, detail));
            }
            // The process has ended.
            _ => left_out += 1,
        }
    }
    let groups = sums.finish().into_iter();
    let groups = groups.map(|(path, (memory, bounds))| GroupAges { path, memory, idle: vec![(window, bounds)] });
    Ok(Measurement { groups: groups.collect(), samples: 1, region: None, processes, left_out, cpu: Duration::ZERO })
}

/// Returns anonymous memory and the bounds of its unused part. Pages that other processes share
/// since `fork(2)` count with this process's share; smaps does not say which of them were used, or
/// by whom.
fn private_ages(detail: &Detail, resident: Bytes, used: Bytes) -> (Bytes, Bounds) {
    let private = detail.private.unwrap_or(resident);
    let together = detail.proportional.map_or(Bytes::ZERO, |proportional| proportional - private);
    let unused = resident - used;
    (private + together, Bounds { least: private - used, most: private.min(unused) + together.min(unused) })
}

/// Shared memory of one file: for each process, the resident memory and the used part of it.
struct Shared {
    group: PathBuf,
    by_process: HashMap<u32, (Bytes, Bytes)>,
}

#[derive(Default)]
struct Sums {
    groups: BTreeMap<PathBuf, (Bytes, Bounds)>,
    shared: HashMap<((u32, u32), u64), Shared>,
}

impl Sums {
    fn add(&mut self, mapped: &Mapped, detail: &Detail) {
        let (Some(resident), Some(used)) = (detail.resident, detail.referenced) else { return };
        if resident.0 == 0 || !is_counted(&mapped.process, &detail.mapping) {
            return;
        }
        let Some(file) = detail.mapping.file.filter(|_| detail.mapping.shared) else {
            let (memory, bounds) = private_ages(detail, resident, used);
            return self.add_to_group(&mapped.group, memory, bounds);
        };
        let shared = self.shared.entry((file.device, file.inode));
        let shared = shared.or_insert_with(|| Shared { group: mapped.group.clone(), by_process: HashMap::new() });
        let of_process = shared.by_process.entry(mapped.process.stat().pid).or_default();
        of_process.0 += resident;
        of_process.1 += used;
    }

    fn add_to_group(&mut self, group: &Path, memory: Bytes, idle: Bounds) {
        let (sum, bounds) = self.groups.entry(group.into()).or_default();
        *sum += memory;
        *bounds += idle;
    }

    /// Returns the sums. smaps does not say which pages of a file each process used: all the same,
    /// or all different ones.
    fn finish(mut self) -> BTreeMap<PathBuf, (Bytes, Bounds)> {
        for (_, Shared { group, by_process }) in std::mem::take(&mut self.shared) {
            let resident = by_process.values().map(|of| of.0).max().unwrap_or_default();
            let used_by_one = by_process.values().map(|of| of.1).max().unwrap_or_default();
            let used_by_all: Bytes = by_process.values().map(|of| of.1).sum();
            self.add_to_group(&group, resident, Bounds { least: resident - used_by_all, most: resident - used_by_one });
        }
        self.groups
    }
}

#[cfg(test)]
mod tests {
    use omr_config::Loaded;
    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{Area, PAGE, Writes, anon, set_mappings, set_process, set_shared_file, stop_clocks};

    /// A machine with a group and one below it. Each has a process with private memory and a shared
    /// region of two pages.
    fn machine() -> FakeRoot {
        let files = [("memory.stat", ""), ("cgroup.procs", ""), ("memory.current", "0\n")];
        let root = FakeRoot::in_memory(Release::V6_12).group("a", &files).group("a/b", &files);
        for (pid, group, pages) in [(11, "a", "pppp"), (12, "a/b", "ppp")] {
            let shared = Area { file: 7, shared: true, ..anon(0x20_0000, "pp") };
            set_process(&root, pid, group, &[anon(0x10_0000, pages), shared, Area { file: 9, ..anon(0x30_0000, "p") }]);
            set_shared_file(&root, pid, &shared, 2);
        }
        root
    }

    fn measured(root: &FakeRoot, rules: &str, actuator: &mut dyn Actuator) -> Result<Measurement> {
        let kernel = Kernel::open(root.path())?;
        let mut loaded = Loaded::built_in();
        loaded.groups = omr_config::rules(rules);
        let rules = Rules::read(&kernel, root.path(), &loaded)?;
        let top = Group::open(kernel.cgroup()?, Path::new("a"))?;
        measure(&kernel, &rules, actuator, &top, Duration::from_secs(30), &Flag::default())
    }

    #[test]
    fn memory_that_was_used_in_the_window_is_not_idle_and_shared_memory_counts_once() {
        let clocks = stop_clocks();
        let root = machine();
        // The second process used none of its memory, and the first one no shared memory.
        let shared = Area { file: 7, shared: true, used: false, ..anon(0x20_0000, "pp") };
        set_mappings(&root, 11, &[anon(0x10_0000, "pppp"), shared]);
        set_mappings(&root, 12, &[Area { used: false, ..anon(0x10_0000, "ppp") }, shared]);
        let mut written = Vec::new();
        let mut kernel_side = Writes(|data: &str| {
            written.push(data.to_owned());
            Outcome::Done
        });
        let found = measured(&root, "", &mut kernel_side).expect("a measurement");
        assert_eq!(written, ["1", "1"]);
        assert_eq!(clocks.passed(), Duration::from_secs(30));
        assert_eq!((found.processes, found.left_out, found.samples, found.region), (2, 0, 1, None));
        let of = |path: &str, memory, least, most| GroupAges {
            path: path.into(),
            memory: Bytes(memory * PAGE),
            idle: vec![(Duration::from_secs(30), Bounds { least: Bytes(least * PAGE), most: Bytes(most * PAGE) })],
        };
        assert_eq!(found.groups, [of("a", 4 + 2, 2, 2), of("a/b", 3, 3, 3)]);
        // Each used a page of the region: the same one, or two.
        for pid in [11, 12] {
            let smaps = root.read(format!("proc/{pid}/smaps"));
            let (private, rest) = smaps.split_at(smaps.find("200000-").expect("the region"));
            root.write(
                format!("proc/{pid}/smaps"),
                private.to_owned() + &rest.replace("Referenced: 0 kB", "Referenced: 4 kB"),
            );
        }
        let found = measured(&root, "", &mut Writes(|_: &str| Outcome::Done)).expect("a measurement");
        assert_eq!(found.groups[0], of("a", 4 + 2, 0, 1));
    }

    #[test]
    fn processes_that_cannot_be_measured_are_counted() {
        let _clocks = stop_clocks();
        let root = machine();
        let mut answers = [Outcome::Denied, Outcome::Done].into_iter();
        let found = measured(&root, "", &mut Writes(|_: &str| answers.next().expect("two"))).expect("a measurement");
        assert_eq!((found.processes, found.left_out), (1, 1));
        let mut answers = [Outcome::Gone, Outcome::Done].into_iter();
        let found = measured(&root, "", &mut Writes(|_: &str| answers.next().expect("two"))).expect("a measurement");
        assert_eq!((found.processes, found.left_out), (1, 0), "it ended before");
        // One ends in the window.
        root.write("proc/12/smaps", "");
        let found = measured(&root, "", &mut Writes(|_: &str| Outcome::Done)).expect("a measurement");
        assert_eq!((found.processes, found.left_out), (1, 1));
    }

    #[test]
    fn a_process_in_the_foreground_is_not_disturbed() {
        let root = machine();
        let rules = "[[group]]\nmatch = 'a/b'\nclass = 'foreground'\n";
        let err =
            measured(&root, rules, &mut Writes(|_: &str| unreachable!("nothing is written"))).expect_err("refused");
        assert!(err.to_string().starts_with("12 (a) is foreground ("), "{err}");
        assert!(err.to_string().ends_with("delays processes; nothing was done"), "{err}");
    }

    #[test]
    fn memory_shared_since_a_fork_counts_by_share_and_only_in_the_most() {
        let of = |text: &str| {
            let mut all = Vec::new();
            let text = format!("1000-41000 rw-p 00000000 00:00 0\n{text}");
            maps::parse_smaps(text.as_bytes(), |detail| all.push(detail));
            let detail = &all[0];
            private_ages(detail, detail.resident.unwrap_or_default(), detail.referenced.unwrap_or_default())
        };
        let kib =
            |memory, least, most| (Bytes::kib(memory), Bounds { least: Bytes::kib(least), most: Bytes::kib(most) });
        // One process alone.
        let alone = "Rss: 80 kB\nPss: 80 kB\nPrivate_Clean: 16 kB\nPrivate_Dirty: 64 kB\nReferenced: 20 kB\n";
        assert_eq!(of(alone), kib(80, 60, 60));
        // 64 of 80 KiB are shared with three others. Of its own 16 KiB, 0 to 16 were used.
        let forked = "Rss: 80 kB\nPss: 32 kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: 16 kB\nReferenced: 12 kB\n";
        assert_eq!(of(forked), kib(32, 4, 32));
        assert_eq!(of(&forked.replace("12 kB", "76 kB")), kib(32, 0, 8));
    }
}
