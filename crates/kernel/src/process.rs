//! `/proc/PID/*`: processes, and this process's own group and privileges. Also `cgroup.procs` of a
//! group, and `pidfd_open(2)`.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use omr_units::{Bytes, Pages};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Serialize, Serializer};

use crate::root::os;
use crate::stat::TICK;
use crate::text::{parse_mask, parse_u64, split_once};
use crate::{Dir, Error, Kernel, Result};

/// The capabilities that omr uses, with their numbers (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Write to files of other users.
    DacOverride = 1,
    /// Read the memory maps of other processes.
    SysPtrace = 19,
    /// Administer the machine: swap devices, mounts, page frames in `pagemap`.
    SysAdmin = 21,
    /// Give hints about other processes: `process_madvise`.
    SysNice = 23,
    /// PSI triggers with any window; `mlockall` beyond the limit.
    SysResource = 24,
}

impl Capability {
    /// All capabilities of this type.
    pub const ALL: [Capability; 5] = [
        Capability::DacOverride,
        Capability::SysPtrace,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysResource,
    ];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::SysResource => "CAP_SYS_RESOURCE",
        }
    }
}

/// A set of capabilities: the kernel's bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// True if a capability is in the set.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }
}

/// Serialized as a list of names, with the capabilities of [`Capability`] only.
impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(Capability::ALL.into_iter().filter(|&c| self.has(c)).map(Capability::name))
    }
}

/// The privileges in `/proc/PID/status`. A field is `None` when its line is missing or malformed.
///
/// Sample lines: `Uid: 0 0 0 0` (real, effective, saved, file system), `CapEff: 000001ffffffffff`,
/// with tabs. Source: fs/proc/array.c, proc_pid_status(). The name of a process cannot fake a line,
/// because the kernel escapes newlines in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Effective user id.
    pub uid: Option<u32>,
    /// Effective capabilities. They hold in the process's own user namespace.
    pub capabilities: Option<Capabilities>,
}

impl Status {
    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let mut status = Status::default();
        for line in text.split(|&c| c == b'\n') {
            if let Some(ids) = line.strip_prefix(b"Uid:") {
                let effective = ids.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).nth(1);
                status.uid = effective.and_then(parse_u64).and_then(|id| u32::try_from(id).ok());
            } else if let Some(mask) = line.strip_prefix(b"CapEff:") {
                status.capabilities = parse_mask(mask.trim_ascii()).map(Capabilities);
            }
        }
        status
    }

    /// Reads `status` in a process's directory below `/proc`.
    pub fn read(process: &Dir) -> Result<Self> {
        let mut buffer = Vec::new();
        process.read("status", &mut buffer)?;
        Ok(Status::parse(&buffer))
    }

    /// Reads `/proc/self/status`.
    pub fn read_own(kernel: &Kernel) -> Result<Self> {
        let mut buffer = Vec::new();
        kernel.proc.read("self/status", &mut buffer)?;
        Ok(Status::parse(&buffer))
    }
}

/// Parses `/proc/PID/uid_map` (3.5): whether the process is in the first user namespace. Only there
/// do `CAP_SYS_NICE` and `CAP_SYS_PTRACE` reach all processes. Sample line:
/// `         0          0 4294967295`. `None`: the text is empty or in another form.
pub fn parse_is_first_user_namespace(uid_map: &[u8]) -> Option<bool> {
    let fields: Vec<&[u8]> = uid_map.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    match fields.as_slice() {
        [] => None,
        fields if fields.iter().any(|field| parse_u64(field).is_none()) => None,
        [inside, outside, count] => Some((*inside, *outside, *count) == (b"0", b"0", b"4294967295")),
        _ => Some(false),
    }
}

/// Reads `/proc/self/uid_map`, see [`parse_is_first_user_namespace`].
pub fn read_is_first_user_namespace(kernel: &Kernel) -> Option<bool> {
    parse_is_first_user_namespace(kernel.proc.read_string("self/uid_map").ok()?.as_bytes())
}

/// Parses the cgroup v2 group in `/proc/PID/cgroup`: its path below the mount, without a leading
/// slash, and empty for the root. `None`: there is no line `0::`, the group was removed, or it lies
/// outside of this process's cgroup namespace.
///
/// Sample line: `0::/system.slice/omr.service`. Source: kernel/cgroup/cgroup.c, proc_cgroup_show().
/// The kernel does not escape the path; a group's name has no newline (cgroup_mkdir() refuses it).
pub fn parse_group(text: &[u8]) -> Option<PathBuf> {
    let path = text.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    if path.ends_with(b" (deleted)") || path == b".." || path.starts_with(b"../") {
        return None;
    }
    Some(PathBuf::from(os(path)))
}

/// This process's own group. `None`: see [`parse_group`].
pub fn read_own_group(kernel: &Kernel) -> Result<Option<PathBuf>> {
    let mut buffer = Vec::new();
    kernel.proc.read("self/cgroup", &mut buffer)?;
    Ok(parse_group(&buffer))
}

/// The number of threads of the calling process, which may fork while it is 1. From
/// `/proc/self/status`: a list of `/proc/self/task` that is read while threads end can miss others.
pub fn count_own_threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok());
    threads.unwrap_or_default()
}

/// The group of a process. `None`: see [`parse_group`].
pub fn read_group(kernel: &Kernel, pid: u32) -> Result<Option<PathBuf>> {
    let mut buffer = Vec::new();
    kernel.proc.read(format!("{pid}/cgroup"), &mut buffer)?;
    Ok(parse_group(&buffer))
}

/// Fields of `/proc/PID/stat`. Times are in ticks of 10 ms (`USER_HZ`).
///
/// Sample line:
/// `5413 (cat) R 5406 5406 3721 0 -1 4194304 116 0 0 0 0 0 0 0 20 0 1 0 59936 3133440 390 ...`.
/// Source: fs/proc/array.c, do_task_stat().
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Process id: for printing.
    pub pid: u32,
    /// The name: up to 15 bytes that the process chooses itself, possibly with `)` and blanks. The
    /// kernel escapes newlines and backslashes.
    pub comm: OsString,
    /// State: `R`, `S`, `D`, `Z`, `T`, ...
    pub state: u8,
    /// Process id of the parent.
    pub ppid: u32,
    /// Device number of the controlling terminal, as new_encode_dev() of include/linux/kdev_t.h
    /// makes it; 0: there is none.
    pub terminal: u32,
    /// `PF_*` of include/linux/sched.h.
    pub flags: u64,
    /// CPU time in user mode, all threads, in ticks.
    pub utime: u64,
    /// CPU time in kernel mode, all threads, in ticks.
    pub stime: u64,
    /// Start time, in ticks since boot. Together with the pid it identifies the process.
    pub starttime: u64,
    /// Resident pages, approximately.
    pub rss: Pages,
}

/// `PF_KTHREAD`, include/linux/sched.h.
const IS_KERNEL_THREAD: u64 = 0x0020_0000;

impl ProcessStat {
    /// CPU time of all threads since the process started.
    pub fn cpu(&self) -> Duration {
        let ticks = self.utime.saturating_add(self.stime);
        TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// True if it is a kernel thread, which has no address space.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & IS_KERNEL_THREAD != 0
    }

    /// True if it has ended, but its parent has not waited for it. It has no memory any more.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Parses the text. `None`: the text is in another form.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (pid, rest) = split_once(text, b'(')?;
        // No field after the name has a bracket, so the last bracket ends the name.
        let mut parts = rest.rsplitn(2, |&c| c == b')');
        let (after, comm) = (parts.next()?, parts.next()?);
        let number = |field: Option<&[u8]>| parse_u64(field?);
        // The state, the third field in proc(5), is the first after the name.
        let fields: Vec<&[u8]> = after.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
        let field = |number_in_proc5: usize| fields.get(number_in_proc5 - 3).copied();
        let &[state] = field(3)? else { return None };
        Some(ProcessStat {
            pid: u32::try_from(parse_u64(pid)?).ok()?,
            comm: OsString::from_vec(comm.to_vec()),
            state,
            ppid: u32::try_from(number(field(4))?).ok()?,
            terminal: u32::try_from(number(field(7))?).ok()?,
            flags: number(field(9))?,
            utime: number(field(14))?,
            stime: number(field(15))?,
            starttime: number(field(22))?,
            rss: Pages(number(field(24))?),
        })
    }

    /// Reads `stat` in a process's directory below `/proc`.
    pub fn read(process: &Dir) -> Result<Self> {
        let mut buffer = Vec::new();
        process.read("stat", &mut buffer)?;
        ProcessStat::parse(&buffer)
            .ok_or_else(|| Error::parse(process.path().join("stat"), "not \"PID (NAME) STATE PPID ...\""))
    }
}

/// Memory of a process, from `/proc/PID/status`: exact to some dozen pages for each CPU, and
/// without a walk over its page tables. In the file the unit is kB (1024 bytes). A field is `None`
/// when its line is missing; a kernel thread has none of the lines.
///
/// Sample lines: `VmLck:\t       0 kB`, `VmRSS:\t    1892 kB`, `RssAnon:\t     120 kB` (Linux 4.5),
/// `VmSwap:\t       0 kB`. Source: fs/proc/task_mmu.c, task_mem().
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// `VmRSS`: in memory, and mapped.
    pub resident: Option<Bytes>,
    /// `RssAnon`: anonymous memory; part of `resident`.
    pub anon: Option<Bytes>,
    /// `VmSwap`: in swap, without shared memory.
    pub swapped: Option<Bytes>,
    /// `VmLck`: locked address space. It may be anonymous memory or a file, in memory or not yet.
    pub locked: Option<Bytes>,
}

impl ProcessMemory {
    /// Reads `status` in a process's directory below `/proc`.
    pub fn read(process: &Dir, buffer: &mut Vec<u8>) -> Result<Self> {
        process.read("status", buffer)?;
        Ok(ProcessMemory::parse(buffer))
    }

    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let mut memory = ProcessMemory::default();
        for line in text.split(|&c| c == b'\n') {
            let Some((key, rest)) = split_once(line, b':') else { continue };
            let field = match key {
                b"VmRSS" => &mut memory.resident,
                b"RssAnon" => &mut memory.anon,
                b"VmSwap" => &mut memory.swapped,
                b"VmLck" => &mut memory.locked,
                _ => continue,
            };
            let kib = rest.trim_ascii().strip_suffix(b" kB").and_then(parse_u64);
            *field = kib.map(|kib| Bytes(kib.saturating_mul(1024)));
        }
        memory
    }
}

/// Reads `/proc/PID/oom_score_adj` (2.6.36): how expendable a process is, from -1000 (never killed)
/// to 1000. Sample line: `-900`. Source: fs/proc/base.c, oom_score_adj_read().
pub fn read_oom_score_adj(process: &Dir) -> Result<i16> {
    let text = process.read_string("oom_score_adj")?;
    let adj = text.trim().parse().ok().filter(|adj| (-1000..=1000).contains(adj));
    adj.ok_or_else(|| Error::parse(process.path().join("oom_score_adj"), "no number from -1000 to 1000"))
}

/// Reads the path of the program that a process runs (`/proc/PID/exe`). For another user's process
/// this takes `CAP_SYS_PTRACE`. A program whose file was replaced or removed keeps its old path:
/// the kernel appends ` (deleted)`, which this function removes. `None`: a kernel thread. Source:
/// fs/proc/base.c, proc_exe_link().
pub fn read_program(process: &Dir) -> Result<Option<PathBuf>> {
    let path = match rustix::fs::readlinkat(process, "exe", Vec::new()) {
        Ok(path) => path.into_bytes(),
        Err(Errno::NOENT) => return Ok(None),
        Err(err) => return Err(Error::read(process.path().join("exe"), err)),
    };
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    Ok(Some(PathBuf::from(os(path))))
}

/// Reads the command line of a process (`/proc/PID/cmdline`), with a blank between two arguments.
/// The process may change it. Empty for a kernel thread. Source: fs/proc/base.c, get_mm_cmdline().
pub fn read_command(process: &Dir) -> Result<String> {
    let mut buffer = Vec::new();
    process.read("cmdline", &mut buffer)?;
    while buffer.last() == Some(&0) {
        buffer.pop();
    }
    buffer.iter_mut().filter(|c| **c == 0).for_each(|c| *c = b' ');
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// The pids of all processes, including kernel threads, in no order.
pub fn read_all(kernel: &Kernel) -> Result<Vec<u32>> {
    let names = kernel.proc.names()?;
    let pids = names.iter().filter_map(|name| parse_u64(name.as_encoded_bytes()));
    Ok(pids.filter_map(|pid| u32::try_from(pid).ok()).collect())
}

/// A process: its open directory below `/proc`. Once the process is gone, nothing can be read in
/// that directory (`ESRCH`), even if another process gets the pid. Its start time identifies it
/// later.
#[derive(Debug)]
pub struct Process {
    dir: Dir,
    stat: ProcessStat,
    pidfd: OnceLock<OwnedFd>,
}

impl Process {
    /// Opens the process that has this pid now.
    pub fn open(kernel: &Kernel, pid: u32) -> Result<Self> {
        let dir = kernel.proc.sub(pid.to_string())?;
        let stat = ProcessStat::read(&dir)?;
        Ok(Process { dir, stat, pidfd: OnceLock::new() })
    }

    /// The process's directory below `/proc`.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// `/proc/PID/stat` as it was when the process was opened.
    pub fn stat(&self) -> &ProcessStat {
        &self.stat
    }

    /// A pidfd (`pidfd_open(2)`, Linux 5.3) for this process and no other. `ESRCH`: the process is
    /// gone, or `/proc` shows another pid namespace than this program's, so that the pid means
    /// another process.
    pub fn pidfd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.pidfd.get().is_none() {
            let pid = i32::try_from(self.stat.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
            let opened = pidfd_open(pid, PidfdFlags::empty())?;
            if read_pid_of(&self.dir, opened.as_fd()) != Some(self.stat.pid) {
                return Err(Errno::SRCH);
            }
            // Another process may have got the pid before pidfd_open(). If this process can still
            // be read now, the pid was its own.
            if !self.exists() {
                return Err(Errno::SRCH);
            }
            drop(self.pidfd.set(opened));
        }
        self.pidfd.get().map(AsFd::as_fd).ok_or(Errno::SRCH)
    }

    /// True if `/proc` shows another pid namespace than this program's: the process exists, but has
    /// no pidfd, because its pid means another process here, or none. A zombie, and a process after
    /// `exec`, has a pidfd.
    pub fn is_in_other_pid_namespace(&self) -> bool {
        self.pidfd().is_err_and(|err| err == Errno::SRCH) && self.exists()
    }

    /// True if the process still exists. A zombie does.
    pub fn exists(&self) -> bool {
        ProcessStat::read(&self.dir).is_ok_and(|stat| stat.starttime == self.stat.starttime)
    }

    /// The group that the process is in now. `None`: see [`parse_group`].
    pub fn read_group(&self) -> Result<Option<PathBuf>> {
        let mut buffer = Vec::new();
        self.dir.read("cgroup", &mut buffer)?;
        Ok(parse_group(&buffer))
    }
}

/// The pid of a pidfd's process, as numbered by the `/proc` that has the directory `process`. Reads
/// `/proc/self/fdinfo/FD` (5.2). Sample line: `Pid:`, a tab and `5413`; 0: the process has no pid
/// in that namespace; -1: the process is gone. Source: kernel/fork.c, pidfd_show_fdinfo() (6.12:
/// fs/pidfs.c).
fn read_pid_of(process: &Dir, pidfd: BorrowedFd<'_>) -> Option<u32> {
    let text = process.read_string(format!("../self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    parse_u64(pid.as_bytes()).and_then(|pid| u32::try_from(pid).ok())
}

/// Reads `cgroup.procs` (4.5): the processes of a group, without those of groups below it. Sample
/// line: `5413`. The line `0` is a process of another pid namespace; it has no pid here, and is
/// left out. Source: kernel/cgroup/cgroup.c, cgroup_procs_show().
pub fn read_pids(group: &Dir) -> Result<Vec<u32>> {
    let mut buffer = Vec::new();
    match group.read("cgroup.procs", &mut buffer) {
        Ok(()) => {}
        // A threaded group (`EOPNOTSUPP`): the group above lists its processes.
        Err(Error::Read { err, .. }) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        Err(err) => return Err(err),
    }
    let lines = buffer.split(|&c| c == b'\n').filter_map(parse_u64);
    Ok(lines.filter_map(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0).collect())
}
