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
    use super::*;

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
