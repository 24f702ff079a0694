//! Probes: ask the running kernel what it supports, in ways that change nothing (amounts of 0,
//! empty ranges, this process's own files). Only for a [`Kernel`] opened at `/`: below the root of
//! a test no kernel answers.
//!
//! Source: kernel/sched/psi.c, fs/proc/task_mmu.c. Probes that go through an actuator are in
//! `omr_actuate::probe`.
//! fs/proc/task_mmu.c.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::ioctl;
use serde::{Deserialize, Serialize};

use crate::maps;
use crate::pagemap::{PagemapScan, ScanIoctl};
use crate::psi::Trigger;
use crate::{Dir, Error, Kernel, Result};

/// The kernel's support of an interface, as a probe found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// The interface works.
    Works,
    /// This kernel does not have the interface.
    Missing,
    /// This kernel may have the interface, but does not allow it to this process.
    Denied,
    /// The kernel was not asked.
    NotProbed,
}

impl Support {
    /// The meaning of a probe's result: permission denied is `Denied`, any other error is
    /// `Missing`.
    pub fn of<T>(result: Result<T, std::io::Error>) -> Self {
        match result {
            Ok(_) => Support::Works,
            Err(err) => match err.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Support::Denied,
                _ => Support::Missing,
            },
        }
    }
}

/// The root of the cgroup v2 hierarchy, or the reason why there is none. For a root other than `/`,
/// whose file system has no magic number, this checks more than [`Kernel::cgroup`] does.
pub fn hierarchy(kernel: &Kernel) -> Result<&Dir> {
    let root = kernel.cgroup()?;
    let why = if root.has("cgroup.controllers") {
        return Ok(root);
    } else if root.has("memory") || root.has("unified") {
        "this machine runs cgroup v1; start it with systemd.unified_cgroup_hierarchy=1 on the kernel command line"
    } else {
        "no control groups are mounted; mount -t cgroup2 none /sys/fs/cgroup"
    };
    Err(Error::NoCgroup2 { path: kernel.cgroup_path().into(), why })
}

/// The windows that [`psi_window`] tries, shortest first: 1 ms (works on 6.12), 100 ms, 500 ms (the
/// shortest on 6.1 and before), and 2 s (the only one without `CAP_SYS_RESOURCE`).
pub const PSI_WINDOWS: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

/// The shortest window for which the kernel arms a trigger on the machine's memory pressure (Linux
/// 5.2). Each trigger is disarmed at once. `None`: no window works. An error: the file cannot be
/// opened.
pub fn psi_window(kernel: &Kernel) -> Result<Option<Duration>> {
    for window in PSI_WINDOWS {
        // A stall as long as the window: the trigger that is least likely to fire meanwhile.
        match Trigger::arm(&kernel.proc, "pressure/memory", window, window) {
            Ok(_) => return Ok(Some(window)),
            Err(Error::Write { err, .. }) if err.raw_os_error() == Some(libc::EINVAL) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(None)
}

/// Probes `PROCMAP_QUERY` of `/proc/PID/maps` (Linux 6.11): asks for this process's first mapping.
pub fn procmap_query(kernel: &Kernel) -> Support {
    let result = rustix::fs::openat(&kernel.proc, "self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|maps| maps::procmap_query(maps.as_fd(), 0, maps::COVERING_OR_NEXT, &mut []));
    Support::of(result.map_err(Into::into))
}

/// Probes `PAGEMAP_SCAN` of `/proc/PID/pagemap` (Linux 6.7): asks about an empty range of this
/// process.
pub fn pagemap_scan(kernel: &Kernel) -> Support {
    let mut scan = PagemapScan { size: size_of::<PagemapScan>() as u64, ..PagemapScan::default() };
    let result = rustix::fs::openat(&kernel.proc, "self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|fd| {
            // SAFETY: the opcode is PAGEMAP_SCAN, and its argument is this struct. The range is
            // empty, and there is no room for regions, so the kernel writes to nothing else.
            unsafe { ioctl(fd, ScanIoctl::new(&mut scan)) }
        });
    Support::of(result.map_err(Into::into))
}

#[cfg(test)]
mod tests {
    use rustix::ioctl::opcode;

    use super::*;

    #[test]
    fn the_opcode_is_that_of_the_header() {
        assert_eq!(size_of::<PagemapScan>(), 96);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(opcode::read_write::<PagemapScan>(b'f', 16), 0xc060_6610);
    }
}
