//! The readings between two commands, and the groups whose `memory.swap.max` counts.

use anyhow::{Context as _, Result};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::vmstat::Vmstat;
use omr_kernel::{Kernel, clock};
use omr_policy::pace::PaceSample;
use omr_units::{Bytes, Limit, Monotonic};

use crate::reclaim::errors::of_machine;
use crate::reclaim::report::Moved;

/// Reads the group and the machine between two commands.
pub(super) struct Gauge<'a> {
    pub kernel: &'a Kernel,
    pub group: &'a Group,
    /// Groups whose limit of swap counts.
    pub above: Vec<Group>,
    pub on_disk: bool,
    pub swap_floor: Bytes,
    /// The amount of the last eviction, until its effect has been read.
    pub unread: Bytes,
    pub buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
pub(super) struct Readings {
    pub at: Monotonic,
    pub current: Bytes,
    pub swapcached: Bytes,
    pub writeback: Bytes,
    pub swap_free: Bytes,
    pub moved: Moved,
}

impl Gauge<'_> {
    pub fn read(&mut self) -> Result<Readings> {
        let Gauge { kernel, group, on_disk, buffer, .. } = self;
        let memory = Meminfo::read(kernel, buffer).map_err(of_machine)?;
        let known = |field: Option<Bytes>, name| field.with_context(|| format!("no {name} in meminfo"));
        // The floor is of the machine's swap, not of what a group may have of it.
        let allowed = swap_left(&self.above, buffer)? + self.swap_floor;
        let current = group.read_current(buffer)?;
        let swapcached = match *on_disk {
            true => group.read_stat(kernel, buffer)?.swapcached.unwrap_or_default(),
            false => Bytes::ZERO,
        };
        let readings = Readings {
            at: clock::read_monotonic(),
            current,
            swapcached,
            writeback: if *on_disk { known(memory.writeback, "Writeback")? } else { Bytes::ZERO },
            swap_free: known(memory.swap_free, "SwapFree")?.min(allowed),
            moved: self.read_moved()?,
        };
        self.unread = Bytes::ZERO;
        Ok(readings)
    }

    pub fn read_moved(&mut self) -> Result<Moved> {
        let vmstat = Vmstat::read(self.kernel, &mut self.buffer).map_err(of_machine)?;
        let to_swap = vmstat.pswpout.context("no pswpout in vmstat")?;
        Ok(Moved { to_swap, demoted: vmstat.pgdemote.unwrap_or_default() })
    }
}

impl Readings {
    pub fn seen(&self, swap_written: Bytes) -> PaceSample {
        PaceSample {
            at: self.at,
            current: self.current,
            swapcached: self.swapcached,
            writeback: self.writeback,
            swap_free: Some(self.swap_free),
            swap_written,
        }
    }
}

/// Returns the group and those above it that have a limit of swap. At such a limit cold pages
/// cannot leave, and the kernel makes them young instead.
pub fn with_swap_limit(kernel: &Kernel, group: &Group) -> Result<Vec<Group>> {
    let root = kernel.cgroup()?;
    let paths = group.path().ancestors().filter(|path| !path.as_os_str().is_empty());
    let groups = paths.map(|path| Group::open(root, path));
    let limited = groups.filter(|group| group.as_ref().map_or(true, |group| group.dir().has("memory.swap.max")));
    Ok(limited.collect::<Result<_, _>>()?)
}

/// Returns the amount by which these groups' swap may grow.
pub fn swap_left(groups: &[Group], buffer: &mut Vec<u8>) -> Result<Bytes> {
    let mut left = Bytes::MAX;
    for group in groups {
        if let Limit::Bytes(most) = group.read_limit("memory.swap.max", buffer)? {
            left = left.min(most - group.read_swap_current(buffer)?);
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use omr_testkit::{FakeRoot, Release};

    use super::*;
    use crate::stand_in::{GROUPS, add_group, set_line, set_swap};

    #[test]
    fn swap_may_grow_by_the_least_that_a_limit_above_leaves() {
        let root = FakeRoot::captured(Release::V6_12);
        set_swap(&root, "vda2", 64);
        set_line(&root, "proc/meminfo", "Writeback:", "12 kB");
        add_group(&root, "a", 1, 0);
        add_group(&root, "a/without/b", 1, 0);
        let kernel = Kernel::open(root.path()).expect("a kernel");
        let group = Group::open(kernel.cgroup().expect("groups"), Path::new("a/without/b")).expect("a group");
        let above = || with_swap_limit(&kernel, &group).expect("groups");
        let paths: Vec<_> = above().iter().map(|group| group.path().to_owned()).collect();
        assert_eq!(paths, [Path::new("a/without/b"), Path::new("a")]);
        let left = || swap_left(&above(), &mut Vec::new()).expect("readable");
        assert_eq!(left(), Bytes::MAX);
        root.write(format!("{GROUPS}/a/memory.swap.max"), (9u64 << 20).to_string());
        root.write(format!("{GROUPS}/a/memory.swap.current"), (2u64 << 20).to_string());
        root.write(format!("{GROUPS}/a/without/b/memory.swap.max"), (8u64 << 20).to_string());
        assert_eq!(left(), Bytes::mib(7));
        let stat = root.read(format!("{GROUPS}/a/without/b/memory.stat"));
        root.write(format!("{GROUPS}/a/without/b/memory.stat"), stat.replace("swapcached 0", "swapcached 8192"));
        let read = |on_disk, swap_floor| {
            let above = above();
            let mut gauge = Gauge {
                kernel: &kernel,
                group: &group,
                above,
                on_disk,
                swap_floor,
                unread: Bytes::ZERO,
                buffer: Vec::new(),
            };
            let seen = gauge.read().expect("readable").seen(Bytes::mib(3));
            assert_eq!((seen.current, seen.swap_written), (Bytes::mib(1), Bytes::mib(3)));
            (seen.swap_free, seen.swapcached, seen.writeback)
        };
        // The floor is of the machine's swap.
        assert_eq!(read(true, Bytes::mib(5)), (Some(Bytes::mib(12)), Bytes(8192), Bytes::kib(12)));
        assert_eq!(read(false, Bytes::mib(60)), (Some(Bytes::mib(64)), Bytes::ZERO, Bytes::ZERO));
    }
}
