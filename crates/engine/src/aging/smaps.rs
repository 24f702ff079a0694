//! Looking at processes by `/proc/PID/clear_refs` and `smaps`: the last resort, as it disturbs.

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

use super::resident::{self, Mapped, is_counted};
use super::tracker::{Look, OfGroup};
use crate::hint::{Rules, name};

/// Looks at the processes of a group and of all below it for this long. Refused where one of them is in the foreground or
/// protected.
pub fn look(
    kernel: &Kernel,
    rules: &Rules<'_>,
    actuator: &mut dyn Actuator,
    top: &Group,
    window: Duration,
    stop: &Flag,
) -> Result<Look> {
    let (found, mut left_out) = resident::find(kernel, top)?;
    for mapped in &found {
        let ProcessAssignment { class, origin, .. } =
            processes::classify(rules.processes, &rules.tree, &rules.statements, &mapped.process);
        if class != Class::Background {
            return Err(Exit::Failed.error(format!(
                "{} is {} ({origin}), and looking by smaps holds up the processes it looks at; nothing was done",
                name(mapped.process.stat()),
                class.name()
            )));
        }
    }
    let mut looked = Vec::new();
    for mapped in found {
        match clear_refs::clear_referenced(actuator, mapped.process.dir())? {
            Outcome::Done => looked.push(mapped),
            Outcome::Gone => {}
            _ => left_out += 1,
        }
    }
    stop.sleep(window);
    let mut sums = Sums::default();
    let mut processes = 0;
    for mapped in &looked {
        match maps::read_smaps(mapped.process.dir()) {
            Ok(details) if !details.is_empty() => {
                processes += 1;
                details.iter().for_each(|detail| sums.add(mapped, detail));
            }
            // It has ended.
            _ => left_out += 1,
        }
    }
    let groups = sums.end().into_iter();
    let groups = groups.map(|(path, (memory, bounds))| OfGroup { path, memory, idle: vec![(window, bounds)] });
    Ok(Look { groups: groups.collect(), looks: 1, region: None, processes, left_out, cpu: Duration::ZERO })
}

/// Memory that no file backs, and what of it was not used. Pages that other processes have as well since `fork(2)` count with this
/// process's share; which of them were used, and by whom, is not told.
fn of_private(detail: &Detail, resident: Bytes, used: Bytes) -> (Bytes, Bounds) {
    let private = detail.private.unwrap_or(resident);
    let together = detail.proportional.map_or(Bytes::ZERO, |proportional| proportional - private);
    let unused = resident - used;
    (private + together, Bounds { least: private - used, most: private.min(unused) + together.min(unused) })
}

/// Shared memory of one file, by process: what it has of it in memory, and what of that it has used.
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
            let (memory, bounds) = of_private(detail, resident, used);
            return self.of(&mapped.group, memory, bounds);
        };
        let shared = self.shared.entry((file.device, file.inode));
        let shared = shared.or_insert_with(|| Shared { group: mapped.group.clone(), by_process: HashMap::new() });
        let of_process = shared.by_process.entry(mapped.process.stat().pid).or_default();
        of_process.0 += resident;
        of_process.1 += used;
    }

    fn of(&mut self, group: &Path, memory: Bytes, idle: Bounds) {
        let (sum, bounds) = self.groups.entry(group.into()).or_default();
        *sum += memory;
        *bounds += idle;
    }

    /// Which pages of a file two processes have used is not told: all the same, or each others.
    fn end(mut self) -> BTreeMap<PathBuf, (Bytes, Bounds)> {
        for (_, Shared { group, by_process }) in std::mem::take(&mut self.shared) {
            let resident = by_process.values().map(|of| of.0).max().unwrap_or_default();
            let used_by_one = by_process.values().map(|of| of.1).max().unwrap_or_default();
            let used_by_all: Bytes = by_process.values().map(|of| of.1).sum();
            self.of(&group, resident, Bounds { least: resident - used_by_all, most: resident - used_by_one });
        }
        self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_since_a_fork_counts_by_share_and_is_surely_unused_by_nobody() {
        let of = |text: &str| {
            let mut all = Vec::new();
            let text = format!("1000-41000 rw-p 00000000 00:00 0\n{text}");
            maps::parse_smaps(text.as_bytes(), |detail| all.push(detail));
            let detail = &all[0];
            of_private(detail, detail.resident.unwrap_or_default(), detail.referenced.unwrap_or_default())
        };
        let kib =
            |memory, least, most| (Bytes::kib(memory), Bounds { least: Bytes::kib(least), most: Bytes::kib(most) });
        // One process alone.
        let alone = "Rss: 80 kB\nPss: 80 kB\nPrivate_Clean: 16 kB\nPrivate_Dirty: 64 kB\nReferenced: 20 kB\n";
        assert_eq!(of(alone), kib(80, 60, 60));
        // 64 of 80 with three others: what was used of the 16 of its own is 0 to 16.
        let forked = "Rss: 80 kB\nPss: 32 kB\nPrivate_Clean: 0 kB\nPrivate_Dirty: 16 kB\nReferenced: 12 kB\n";
        assert_eq!(of(forked), kib(32, 4, 32));
        assert_eq!(of(&forked.replace("12 kB", "76 kB")), kib(32, 0, 8));
    }
}
