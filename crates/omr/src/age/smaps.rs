//! Looking at processes by `/proc/PID/clear_refs` and `smaps`: the last resort, as it disturbs.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use omr_kernel::Kernel;
use omr_kernel::actuate::{Actuator, Outcome};
use omr_kernel::maps::{self, Detail};
use omr_kernel::memcg::Group;
use omr_policy::Class;
use omr_policy::age::Bounds;
use omr_units::Bytes;

use super::mapped::{self, Mapped, is_counted};
use super::tracker::{Look, OfGroup};
use crate::exit::Exit;
use crate::hint::{Rules, name};
use crate::processes::{self, Standing};
use crate::stop::Flag;

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
    let (found, mut left_out) = mapped::find(kernel, top)?;
    for mapped in &found {
        let Standing { class, origin, .. } =
            processes::standing(rules.processes, &rules.tree, &rules.said, &mapped.process);
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
        match maps::clear_referenced(actuator, mapped.process.dir())? {
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
            return self.of(&mapped.group, resident, Bounds { least: resident - used, most: resident - used });
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
