//! The last input to the terminals of a session: the kernel notes it as the time at which the
//! terminal's device was last read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use omr_kernel::Kernel;
use omr_kernel::process::{Process, read_pids};

/// A session with more processes is not looked through.
const MOST: usize = 4096;

/// The last input, as time since 1970, to any terminal of a session's processes. `None`: they have
/// none. `scope`: the session's unit.
pub fn last_input(kernel: &Kernel, root: &Path, uid: u32, scope: &str) -> Result<Option<Duration>> {
    if scope.is_empty() || scope.contains('/') {
        bail!("{scope:?} is no unit of a session");
    }
    let group = kernel.cgroup()?.sub(format!("user.slice/user-{uid}.slice/{scope}"))?;
    let pids = read_pids(&group)?;
    if pids.len() > MOST {
        bail!("{scope} has {} processes", pids.len());
    }
    // A process that cannot be opened has ended, or is hidden; its session then has no terminal.
    let processes = pids.into_iter().filter_map(|pid| Process::open(kernel, pid).ok());
    let terminals: BTreeSet<u32> =
        processes.map(|process| process.stat().terminal).filter(|&device| device != 0).collect();
    let mut last = None;
    for device in terminals {
        let path = root.join(device_file(device).with_context(|| format!("terminal {device:#x} is of no known kind"))?);
        let read = std::fs::metadata(&path).and_then(|data| data.accessed());
        let read = read.with_context(|| format!("read the times of {}", path.display()))?;
        last = last.max(Some(read.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()));
    }
    Ok(last)
}

/// The file of a terminal, by its number as the kernel encodes it (include/linux/kdev_t.h,
/// new_encode_dev()); `None`: of another driver.
fn device_file(device: u32) -> Option<PathBuf> {
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
    match (major, minor) {
        (4, 0..64) => Some(format!("dev/tty{minor}").into()),
        (4, _) => Some(format!("dev/ttyS{}", minor - 64).into()),
        // Devices of remote terminals and terminal windows.
        (136, _) => Some(format!("dev/pts/{minor}").into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn devices_have_files() {
        for (device, file) in [
            (0x0402, Some("dev/tty2")),
            (0x0440, Some("dev/ttyS0")),
            (0x8800, Some("dev/pts/0")),
            (0x88ff, Some("dev/pts/255")),
            (0x0010_8800, Some("dev/pts/256")),
            (0x0501, None),
            (u32::MAX, None),
        ] {
            assert_eq!(device_file(device), file.map(PathBuf::from), "{device:#x}");
        }
    }

    /// A session of processes with these terminals, which were last used at these times.
    fn session(root: &Path, terminals: &[(u32, Option<u64>)]) {
        let group = root.join("sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope");
        fs::create_dir_all(&group).expect("made");
        for directory in ["dev/pts", "proc"] {
            fs::create_dir_all(root.join(directory)).expect("made");
        }
        let mut pids = String::from("999\n");
        for (pid, (device, used)) in (1000..).zip(terminals) {
            let process = root.join(format!("proc/{pid}"));
            fs::create_dir_all(&process).expect("made");
            let stat = format!("{pid} (sh) S 1 {pid} {pid} {device} -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0");
            fs::write(process.join("stat"), stat).expect("written");
            pids.push_str(&format!("{pid}\n"));
            if let (Some(path), Some(used)) = (device_file(*device), used) {
                let file = fs::File::create(root.join(path)).expect("made");
                let used = SystemTime::UNIX_EPOCH + Duration::from_secs(*used);
                file.set_times(fs::FileTimes::new().set_accessed(used)).expect("set");
            }
        }
        fs::write(group.join("cgroup.procs"), pids).expect("written");
    }

    fn last(terminals: &[(u32, Option<u64>)]) -> Result<Option<u64>> {
        let root = tempfile::tempdir().expect("a directory");
        session(root.path(), terminals);
        let kernel = Kernel::open(root.path())?;
        Ok(last_input(&kernel, root.path(), 1000, "session-3.scope")?.map(|last| last.as_secs()))
    }

    #[test]
    fn the_terminal_that_was_used_last_counts() {
        assert_eq!(
            last(&[(0, None), (0x8801, Some(500)), (0x8802, Some(700)), (0x8801, None)]).expect("read"),
            Some(700)
        );
        assert_eq!(last(&[(0, None)]).expect("read"), None);
        assert_eq!(last(&[]).expect("read"), None, "all processes have ended");
        // The times of one are not known.
        last(&[(0x8801, Some(500)), (0x8802, None)]).expect_err("no device");
        last(&[(0x8801, Some(500)), (0x0501, None)]).expect_err("another driver");
    }

    #[test]
    fn only_the_group_of_a_session_is_read() {
        let root = tempfile::tempdir().expect("a directory");
        session(root.path(), &[(0x8801, Some(500))]);
        let kernel = Kernel::open(root.path()).expect("opened");
        for scope in ["", "session-4.scope", "../user-1000.slice/session-3.scope", "/"] {
            last_input(&kernel, root.path(), 1000, scope).expect_err(scope);
        }
        last_input(&kernel, root.path(), 1001, "session-3.scope").expect_err("another user");
    }
}
