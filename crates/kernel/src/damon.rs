//! DAMON, the kernel's monitor of accesses: whether it is there and free.

use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Dir, Kernel};

/// State of `/sys/kernel/mm/damon/admin` (Linux 5.18, `CONFIG_DAMON_SYSFS`), from
/// `kdamonds/nr_kdamonds`. Sample line: `0`. Source: mm/damon/sysfs.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damon {
    /// Not in this kernel.
    NotBuilt,
    /// There, but not for this process: the files belong to root and are closed to others.
    Denied,
    /// There, and nobody has set it up.
    Free,
    /// There, and somebody else has set up this many monitors.
    InUse(u32),
    /// There, in a form that this program does not know.
    Unknown,
}

impl Damon {
    /// Reads it.
    pub fn read(kernel: &Kernel) -> Self {
        match kernel.sys.sub("kernel/mm/damon/admin") {
            Ok(admin) => Damon::of(&admin),
            Err(err) if err.is_denied() => Damon::Denied,
            Err(_) => Damon::NotBuilt,
        }
    }

    fn of(admin: &Dir) -> Self {
        match admin.read_string("kdamonds/nr_kdamonds") {
            Ok(text) => match parse_u64(text.as_bytes()).map(u32::try_from) {
                Some(Ok(0)) => Damon::Free,
                Some(Ok(n)) => Damon::InUse(n),
                _ => Damon::Unknown,
            },
            Err(err) if err.is_denied() => Damon::Denied,
            Err(_) => Damon::Unknown,
        }
    }
}
