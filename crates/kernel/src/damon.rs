//! DAMON, the kernel's monitor of memory accesses: the state of `/sys/kernel/mm/damon/admin` (Linux
//! 5.18, `CONFIG_DAMON_SYSFS`). A monitor of omr's own is in `omr_actuate::damon`. Source:
//! mm/damon/sysfs.c.

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::parse_u64;
use crate::{Dir, Error, Kernel, Result, clock};

/// Upper bound on retries after `EBUSY`. One lock protects all of these files, and the kernel
/// returns `EBUSY` while its own thread or another reader holds the lock (mm/damon/sysfs.c,
/// `damon_sysfs_lock`). After this time `EBUSY` is the result of the request itself.
pub const BUSY: Duration = Duration::from_secs(1);
/// Time between two attempts.
pub const AGAIN: Duration = Duration::from_millis(10);

/// The state of DAMON's sysfs interface, from `kdamonds/nr_kdamonds`. Sample line: `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damon {
    /// This kernel does not have the interface.
    NotBuilt,
    /// The files are for root only, and this process is not root.
    Denied,
    /// The interface exists, and no monitor is set up.
    Free,
    /// This many monitors are set up.
    InUse(u32),
    /// The interface exists in a form that this program does not know.
    Unknown,
}

impl Damon {
    /// Reads the state.
    pub fn read(kernel: &Kernel) -> Self {
        match kernel.sys.sub("kernel/mm/damon/admin") {
            Ok(admin) => Damon::of(&admin),
            Err(err) if err.is_denied() => Damon::Denied,
            Err(_) => Damon::NotBuilt,
        }
    }

    fn of(admin: &Dir) -> Self {
        match read(admin, "kdamonds/nr_kdamonds") {
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

/// The kernel's own users of DAMON. Each monitors all memory of the machine.
const MODULES: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

/// The kernel's own users of DAMON that are on: `/sys/module/NAME/parameters/enabled` of damon_stat
/// (6.17), damon_reclaim (5.16) and damon_lru_sort (6.0). Sample line: `Y`.
///
/// A monitor clears accessed bits, and MGLRU's agings do not look where it keeps them (PG_young,
/// mm/damon/ops-common.c). Reclaim does (folio_referenced(), mm/rmap.c).
pub fn read_modules(kernel: &Kernel) -> Vec<&'static str> {
    let is_on = |name: &&str| {
        kernel.sys.read_string(format!("module/{name}/parameters/enabled")).is_ok_and(|text| text.trim() == "Y")
    };
    MODULES.into_iter().filter(is_on).collect()
}

/// Reads a file, and tries again while another program holds the lock.
pub fn read(dir: &Dir, name: &str) -> Result<String> {
    let began = clock::read_monotonic();
    loop {
        match dir.read_string(name) {
            Err(err) if err.is_busy() && clock::read_monotonic().since(began) < BUSY => thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Reads a file with one number, and tries again while another program holds the lock.
pub fn read_number(dir: &Dir, name: &str) -> Result<u64> {
    let text = read(dir, name)?;
    parse_u64(text.as_bytes()).ok_or_else(|| Error::parse(dir.path().join(name), "not a number"))
}
