//! Pressure stall information: `/proc/pressure/*` and the `*.pressure` files of a group (Linux
//! 4.20; triggers 5.2). Unit: microseconds. Source: kernel/sched/psi.c.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Dir, Error, Result};

/// A resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// A CPU.
    Cpu,
    /// A block device.
    Io,
    /// Memory: reclaim, refaults, swap-in.
    Memory,
}

impl Resource {
    /// All three.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Io, Resource::Memory];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Io => "io",
            Resource::Memory => "memory",
        }
    }

    /// Name of the resource's file in a group.
    pub fn group_file(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu.pressure",
            Resource::Io => "io.pressure",
            Resource::Memory => "memory.pressure",
        }
    }
}

/// Times since boot, or since the group was made: `total=` of both lines. The averages on the same
/// lines are up to 2 s old, so omr uses differences of these totals. `None`: no such line.
///
/// Sample line: `some avg10=0.12 avg60=0.02 avg300=0.00 total=1893023`, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// At least one task was stalled.
    pub some: Option<Duration>,
    /// All tasks were stalled that did not sleep. (For CPU since 5.13.)
    pub full: Option<Duration>,
}

impl Totals {
    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let total = |name: &[u8]| {
            let line = text.split(|&c| c == b'\n').find(|line| line.starts_with(name))?;
            let total = line.split(|&c| c == b' ').find_map(|field| field.strip_prefix(b"total="))?;
            parse_u64(total).map(Duration::from_micros)
        };
        Totals { some: total(b"some "), full: total(b"full ") }
    }

    /// Reads those of the machine. Both are unknown without PSI (`CONFIG_PSI`, `psi=0`).
    pub fn read(proc: &Dir, resource: Resource, buffer: &mut Vec<u8>) -> Self {
        let path = match resource {
            Resource::Cpu => "pressure/cpu",
            Resource::Io => "pressure/io",
            Resource::Memory => "pressure/memory",
        };
        proc.read(path, buffer).map_or_else(|_| Totals::default(), |()| Totals::parse(buffer))
    }

    /// Reads those of a group.
    pub fn read_group(group: &Dir, resource: Resource, buffer: &mut Vec<u8>) -> Self {
        group.read(resource.group_file(), buffer).map_or_else(|_| Totals::default(), |()| Totals::parse(buffer))
    }
}

/// A PSI trigger: an open file that polls `POLLPRI` when tasks were stalled for `stall` within a
/// `window`. There is at most one event per window. `POLLERR` means that the group is gone.
///
/// A window is 500 ms to 10 s up to 6.1, and at least 1 us in 6.12. A window that is no multiple of
/// 2 s takes `CAP_SYS_RESOURCE`.
#[derive(Debug)]
pub struct Trigger(OwnedFd);

impl Trigger {
    /// Arms a trigger on `file` in `dir`.
    pub fn arm(dir: &Dir, file: &str, stall: Duration, window: Duration) -> Result<Self> {
        let path = || dir.path().join(file);
        let fd = rustix::fs::openat(dir, file, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::read(path(), e))?;
        // The kernel expects the terminating NUL.
        let text = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        rustix::io::write(&fd, text.as_bytes()).map_err(|e| Error::Write {
            path: path(),
            data: text.trim_end_matches('\0').into(),
            err: e.into(),
        })?;
        Ok(Trigger(fd))
    }
}

impl AsFd for Trigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
