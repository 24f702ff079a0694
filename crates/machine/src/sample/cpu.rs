//! CPU time by class: explicit background groups, foreground groups, and all that is not
//! background.
//!
//! CPU time of groups (`cpu.stat`) is exact, while `/proc/stat` counts ticks. So two samples of 20
//! ms are enough to tell work from noise.

use std::collections::HashMap;
use std::time::Duration;

use omr_kernel::memcg::{Group, read_cpu};
use omr_kernel::{Dir, Kernel, Result};
use omr_policy::Class;
use omr_units::GroupId;

use crate::groups::tree::Tree;

/// Descriptors that stay free for clients, files and a sweep.
const RESERVED: usize = 64;

/// The CPU time of some groups, minus that of others.
#[derive(Debug, Default)]
pub struct CpuSum {
    counters: Vec<Counter>,
    /// A group could not be opened, so the sum is unknown.
    incomplete: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Counter {
    dir: Dir,
    id: GroupId,
    plus: bool,
    last: Option<Duration>,
}

impl CpuSum {
    /// Returns the CPU time since the last call; `None`: first call, or a file could not be read. A
    /// group that is gone used no time.
    pub fn sample(&mut self) -> Option<Duration> {
        let mut known = !self.incomplete;
        let (mut plus, mut minus) = (Duration::ZERO, Duration::ZERO);
        for counter in &mut self.counters {
            match read_cpu(&counter.dir, &mut self.buffer) {
                Ok(now) => {
                    match counter.last.replace(now) {
                        Some(last) if counter.plus => plus += now.saturating_sub(last),
                        Some(last) => minus += now.saturating_sub(last),
                        None => known = false,
                    };
                }
                Err(err) if err.is_gone() => counter.last = Some(Duration::ZERO),
                Err(_) => known = false,
            }
        }
        known.then(|| plus.saturating_sub(minus))
    }

    fn ids(&self) -> impl Iterator<Item = (GroupId, bool)> + '_ {
        self.counters.iter().map(|counter| (counter.id, counter.plus))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Background,
    NonBackground,
    Own,
}

/// CPU time by class.
#[derive(Debug, Default)]
pub struct CpuByClass {
    /// Groups that are explicitly background.
    pub background: CpuSum,
    /// Foreground groups.
    pub foreground: CpuSum,
    /// All groups except explicit background groups and omr's own.
    pub non_background: CpuSum,
}

impl CpuByClass {
    /// Opens the files of the groups of this tree. `own`: the group in which only omr runs; it
    /// counts on neither side.
    pub fn update(&mut self, kernel: &Kernel, tree: &Tree, own: Option<GroupId>) -> Result<()> {
        let root = kernel.cgroup()?;
        let nodes = tree.nodes();
        let side_of = |index: usize| {
            let node = &nodes[index];
            match tree.assignment(node) {
                _ if Some(node.id) == own => Side::Own,
                Some(assignment) if assignment.class == Class::Background && assignment.explicit => Side::Background,
                _ => Side::NonBackground,
            }
        };
        // True for a subtree that is all on one side. Children come after their parents.
        let mut pure: Vec<bool> = vec![true; nodes.len()];
        for index in (1..nodes.len()).rev() {
            let parent = nodes[index].parent as usize;
            if parent != 0 {
                pure[parent] &= pure[index] && side_of(index) == side_of(parent);
            }
        }
        let is_child = |index: usize| index != 0;
        let top_groups = |side: Side| -> Vec<usize> {
            let top = |&index: &usize| {
                let parent = nodes[index].parent as usize;
                is_child(index) && pure[index] && (parent == 0 || !pure[parent]) && side_of(index) == side
            };
            (0..nodes.len()).filter(top).collect()
        };
        let all = 0..nodes.len();
        let first_level: Vec<usize> =
            all.clone().filter(|&index| is_child(index) && nodes[index].parent == 0).collect();
        let (background_tops, non_background_tops, own_tops) =
            (top_groups(Side::Background), top_groups(Side::NonBackground), top_groups(Side::Own));
        let foreground_tops: Vec<usize> = all
            .filter(|&index| {
                let class = |index: usize| tree.assignment(&nodes[index]).map(|assignment| assignment.class);
                is_child(index)
                    && class(index) == Some(Class::Foreground)
                    && class(nodes[index].parent as usize) != Some(Class::Foreground)
            })
            .collect();
        // A side is counted directly, or as everything minus the other side, whichever needs fewer
        // files.
        let side = |direct: &[usize], other: &[usize]| -> Vec<(usize, bool)> {
            let rest = [other, &own_tops].concat();
            if direct.len() <= first_level.len() + rest.len() {
                direct.iter().map(|&index| (index, true)).collect()
            } else {
                first_level.iter().map(|&index| (index, true)).chain(rest.iter().map(|&index| (index, false))).collect()
            }
        };
        let lists = [
            (&mut self.background, side(&background_tops, &non_background_tops)),
            (&mut self.non_background, side(&non_background_tops, &background_tops)),
            (&mut self.foreground, foreground_tops.iter().map(|&index| (index, true)).collect()),
        ];
        // Each file needs an open descriptor.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(RESERVED);
        let needed: usize = lists.iter().map(|(_, list)| list.len()).sum();
        for (sum, list) in lists {
            if needed > most {
                // Work that is not seen must not count as idleness.
                if !sum.incomplete {
                    log::warn!(
                        "the CPU time of {needed} groups must be read, and only {most} files may be open (LimitNOFILE=)"
                    );
                }
                *sum = CpuSum { incomplete: true, ..CpuSum::default() };
                continue;
            }
            let wanted = list.iter().map(|&(index, plus)| (nodes[index].id, plus));
            if !sum.incomplete && sum.ids().eq(wanted) {
                continue;
            }
            let old = std::mem::take(sum);
            // Open files stay open with their last reading. So a change of the list does not make
            // the next sample unknown. A new group is counted from now on.
            let mut open: HashMap<GroupId, Counter> =
                old.counters.into_iter().map(|counter| (counter.id, counter)).collect();
            for (index, plus) in list {
                let id = nodes[index].id;
                if let Some(counter) = open.remove(&id) {
                    sum.counters.push(Counter { plus, ..counter });
                    continue;
                }
                match Group::open(root, &tree.path_at(index)) {
                    Ok(group) if group.id() == id => {
                        let last = group.read_cpu(&mut sum.buffer).ok();
                        sum.counters.push(Counter { dir: group.into_dir(), id, plus, last });
                    }
                    // The group is gone, or replaced by one of the same name; the next scan finds
                    // that.
                    Ok(_) => {}
                    Err(err) if err.is_gone() => {}
                    Err(err) => {
                        if !old.incomplete && !sum.incomplete {
                            log::warn!("{err}; the machine counts as busy");
                        }
                        sum.incomplete = true;
                    }
                }
            }
        }
        Ok(())
    }
}
