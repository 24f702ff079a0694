//! The process that has changed something and changes it back, as a note on disk names it.

use std::process;

use omr_kernel::Kernel;
use omr_kernel::process::ProcessStat;
use serde::{Deserialize, Serialize};

/// The names of omr's programs, as `/proc/PID/comm` has them.
const PROGRAMS: [&str; 2] = ["omr", "omr-daemon"];

/// A process. Its pid may belong to another program later, so its start counts as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pid: u32,
    /// When it started, in ticks since boot; `None`: unknown, as in notes of earlier versions.
    #[serde(default)]
    start: Option<u64>,
}

impl Holder {
    /// This process.
    pub fn this(kernel: &Kernel) -> Self {
        Holder { pid: process::id(), start: stat(kernel, process::id()).map(|stat| stat.starttime) }
    }

    /// Returns true if it is another process, and runs.
    pub fn is_other(self, kernel: &Kernel) -> bool {
        let Some(stat) = stat(kernel, self.pid).filter(|_| self.pid != process::id()) else { return false };
        self.start.map_or_else(|| is_omr(kernel, self.pid, None), |start| stat.starttime == start)
    }
}

/// Returns true if this process runs under a name of omr's and belongs to root, to the user of this
/// process, or to `daemon`. Anybody can have such a name.
pub fn is_omr(kernel: &Kernel, pid: u32, daemon: Option<u32>) -> bool {
    let Ok(process) = kernel.proc.sub(pid.to_string()) else { return false };
    let own = rustix::process::geteuid().as_raw();
    process.owner().is_ok_and(|owner| owner == 0 || owner == own || Some(owner) == daemon)
        && stat(kernel, pid).is_some()
        && process.read_string("comm").is_ok_and(|comm| PROGRAMS.contains(&comm.trim()))
}

/// The facts of a process; `None`: it has ended.
fn stat(kernel: &Kernel, pid: u32) -> Option<ProcessStat> {
    let stat = kernel.proc.sub(pid.to_string()).and_then(|process| ProcessStat::read(&process)).ok()?;
    (!stat.is_zombie()).then_some(stat)
}

#[cfg(test)]
mod tests {
    use omr_testkit::FakeRoot;

    use super::*;

    fn machine(start: u64, comm: &str, state: char) -> FakeRoot {
        let stat = format!("7 ({comm}) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 1 0");
        FakeRoot::new().proc("7/stat", stat).proc("7/comm", format!("{comm}\n"))
    }

    fn is_other(start: Option<u64>, root: &FakeRoot) -> bool {
        Holder { pid: 7, start }.is_other(&Kernel::open(root.path()).expect("a kernel"))
    }

    #[test]
    fn a_process_is_known_by_its_start_not_by_its_name() {
        assert!(is_other(Some(500), &machine(500, "omr", 'S')));
        assert!(is_other(Some(500), &machine(500, "renamed", 'S')));
        assert!(!is_other(Some(500), &machine(501, "omr", 'S')), "another process has the pid");
        assert!(!is_other(Some(500), &machine(500, "omr", 'Z')));
        assert!(!is_other(Some(500), &FakeRoot::new()));
        // A note of an earlier version.
        assert!(is_other(None, &machine(500, "omr-daemon", 'S')));
        assert!(!is_other(None, &machine(500, "sh", 'S')));
        let kernel = Kernel::open(machine(500, "omr", 'S').path()).expect("a kernel");
        assert!(!Holder::this(&kernel).is_other(&kernel));
    }

    #[test]
    fn a_users_process_is_not_omr_whatever_its_name() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not root: a process cannot be given to a user");
            return;
        }
        let root = machine(500, "omr", 'S');
        assert!(is_other(None, &root), "the control");
        std::os::unix::fs::chown(root.resolve("proc/7"), Some(1000), None).expect("chown");
        assert!(!is_other(None, &root));
        let kernel = Kernel::open(root.path()).expect("a kernel");
        assert!(is_omr(&kernel, 7, Some(1000)) && !is_omr(&kernel, 7, Some(1001)), "the daemon may be a user");
    }
}
