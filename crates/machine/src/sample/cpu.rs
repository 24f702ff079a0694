//! CPU time by side: explicit background groups on one, everything else on the other.
//!
//! CPU time of groups (`cpu.stat`) is exact, unlike that of `/proc/stat`, which comes in ticks: that
//! is what makes two samples of 20 ms enough to tell work from noise.

use std::collections::HashMap;
use std::time::Duration;

use omr_kernel::memcg::{Group, read_cpu};
use omr_kernel::{Dir, Kernel, Result};
use omr_policy::Class;
use omr_units::GroupId;

use crate::groups::tree::Tree;

/// Descriptors for everything else.
const RESERVED: usize = 64;

/// A sum of the CPU time of groups, some of them taken off.
#[derive(Debug, Default)]
pub struct CpuSum {
    counters: Vec<Counter>,
    /// Some group could not be opened: the sum is not known.
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
    /// CPU time used since the last call. `None` the first time, and when a file could not be read.
    /// A group that is gone has used nothing since.
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

/// The two cpu, and the foreground groups.
#[derive(Debug, Default)]
pub struct CpuByClass {
    /// Explicit background groups.
    pub background: CpuSum,
    /// Foreground groups.
    pub foreground: CpuSum,
    /// All groups but explicit background ones and omr's own.
    pub non_background: CpuSum,
}

impl CpuByClass {
    /// Opens what has to be looked at, for the tree as it is. `own`: the group in which nothing runs
    /// but omr, which is on neither side.
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
        // Whether all of a subtree is on one side. Children come after their parents.
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
        // One side can be had directly, or as everything less the other: whichever is fewer files.
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
        // A descriptor stays open for each; some are left for clients, files and a sweep.
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(RESERVED);
        let needed: usize = lists.iter().map(|(_, list)| list.len()).sum();
        for (sum, list) in lists {
            if needed > most {
                // Work that nobody sees must not pass for idleness.
                if !sum.incomplete {
                    log::warn!("{needed} groups have to be looked at, and {most} files may be open (LimitNOFILE=)");
                }
                *sum = CpuSum { incomplete: true, ..CpuSum::default() };
                continue;
            }
            let wanted = list.iter().map(|&(index, plus)| (nodes[index].id, plus));
            if !sum.incomplete && sum.ids().eq(wanted) {
                continue;
            }
            let old = std::mem::take(sum);
            // What is open stays open, with its last reading, so that a change of the list does not make
            // the next sample unknown; a new group is counted from now.
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
                    // Gone since the scan, or made anew under its name: the next scan will tell.
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
