//! `/proc/PID/*`: processes, and this one's own group and rights.

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
use crate::text::{parse_mask, parse_u64};
use crate::{Dir, Error, Kernel, Result};

/// The capabilities omr asks about, with their numbers (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Write to files that belong to others.
    DacOverride = 1,
    /// Look into other processes.
    SysPtrace = 19,
    /// Open everything there is.
    SysAdmin = 21,
    /// Change how other processes are treated: `process_madvise`.
    SysNice = 23,
    /// PSI triggers with any window; `mlockall` beyond the limit.
    SysResource = 24,
}

impl Capability {
    /// All of them.
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

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Whether it is in the set.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }
}

/// A list of names: only those omr asks about.
impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(Capability::ALL.into_iter().filter(|&c| self.has(c)).map(Capability::name))
    }
}

/// What omr needs of `/proc/PID/status`. A field is `None` when its line is missing or malformed.
///
/// Sample lines: `Uid: 0 0 0 0` (real, effective, saved, file system), `CapEff: 000001ffffffffff`, with tabs.
/// Source: fs/proc/array.c, proc_pid_status(). A name cannot fake a line: newlines in it are escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Effective user id.
    pub uid: Option<u32>,
    /// Effective capabilities, which count in the process's own user namespace.
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

    /// Of the process whose directory below `/proc` this is.
    pub fn read(process: &Dir) -> Result<Self> {
        let mut buffer = Vec::new();
        process.read("status", &mut buffer)?;
        Ok(Status::parse(&buffer))
    }

    /// This process's own.
    pub fn read_own(kernel: &Kernel) -> Result<Self> {
        let mut buffer = Vec::new();
        kernel.proc.read("self/status", &mut buffer)?;
        Ok(Status::parse(&buffer))
    }
}

/// Whether this process is in the first user namespace: only there do `CAP_SYS_NICE` and
/// `CAP_SYS_PTRACE` reach beyond the namespace. `/proc/PID/uid_map`, since 3.5; sample line:
/// `         0          0 4294967295`. `None` when it cannot be told.
pub fn parse_is_first_user_namespace(uid_map: &[u8]) -> Option<bool> {
    let fields: Vec<&[u8]> = uid_map.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
    match fields.as_slice() {
        [] => None,
        fields if fields.iter().any(|field| parse_u64(field).is_none()) => None,
        [inside, outside, count] => Some((*inside, *outside, *count) == (b"0", b"0", b"4294967295")),
        _ => Some(false),
    }
}

/// See [`parse_is_first_user_namespace`].
pub fn read_is_first_user_namespace(kernel: &Kernel) -> Option<bool> {
    parse_is_first_user_namespace(kernel.proc.read_string("self/uid_map").ok()?.as_bytes())
}

/// The cgroup v2 group in `/proc/PID/cgroup`: the path below the mount without its leading slash,
/// empty for the root; `None` when there is no line `0::`, or the group was removed, or it lies
/// outside of this process's cgroup namespace.
///
/// Sample line: `0::/system.slice/omr.service`. Source: kernel/cgroup/cgroup.c, proc_cgroup_show().
/// A group's name has no newline in it (cgroup_mkdir() refuses it) and is not escaped.
pub fn parse_group(text: &[u8]) -> Option<PathBuf> {
    let path = text.split(|&c| c == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    if path.ends_with(b" (deleted)") || path == b".." || path.starts_with(b"../") {
        return None;
    }
    Some(PathBuf::from(os(path)))
}

/// This process's own group; `None`: see [`parse_group`].
pub fn read_own_group(kernel: &Kernel) -> Result<Option<PathBuf>> {
    let mut buffer = Vec::new();
    kernel.proc.read("self/cgroup", &mut buffer)?;
    Ok(parse_group(&buffer))
}

/// The group of a process; `None`: see [`parse_group`].
pub fn read_group(kernel: &Kernel, pid: u32) -> Result<Option<PathBuf>> {
    let mut buffer = Vec::new();
    kernel.proc.read(format!("{pid}/cgroup"), &mut buffer)?;
    Ok(parse_group(&buffer))
}

/// What omr needs of `/proc/PID/stat`. Times in ticks of 10 ms (`USER_HZ`).
///
/// Sample line: `5413 (cat) R 5406 5406 3721 0 -1 4194304 116 0 0 0 0 0 0 0 20 0 1 0 59936 3133440 390 ...`.
/// Source: fs/proc/array.c, do_task_stat().
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Process id: for printing.
    pub pid: u32,
    /// The name, up to 15 bytes that the process chose itself, `)` and spaces included; newlines and
    /// backslashes are escaped.
    pub comm: OsString,
    /// `R`, `S`, `D`, `Z`, `T`, ...
    pub state: u8,
    /// The parent's id.
    pub ppid: u32,
    /// `PF_*` of include/linux/sched.h.
    pub flags: u64,
    /// CPU time in user mode, all threads.
    pub utime: u64,
    /// CPU time in kernel mode.
    pub stime: u64,
    /// When it started, in ticks since boot: with the pid, an identity.
    pub starttime: u64,
    /// Resident pages, approximately.
    pub rss: Pages,
}

/// `PF_KTHREAD`, include/linux/sched.h.
const IS_KERNEL_THREAD: u64 = 0x0020_0000;

impl ProcessStat {
    /// CPU time used by all threads, ever.
    pub fn cpu(&self) -> Duration {
        let ticks = self.utime.saturating_add(self.stime);
        TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// Whether it is the kernel's own, and has no memory to itself.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & IS_KERNEL_THREAD != 0
    }

    /// Whether it has ended, and its parent has not asked how yet: it has no memory any more.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Parses the text; `None` when it is not in this form.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|&c| c == b'(')?;
        // Nothing after the name has a bracket in it, so the last one ends the name.
        let close = text.iter().rposition(|&c| c == b')').filter(|&close| close > open)?;
        let number = |field: Option<&[u8]>| parse_u64(field?);
        // The third field of proc(5), the state, is the first after the name.
        let fields: Vec<&[u8]> =
            text[close + 1..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
        let field = |number_in_proc5: usize| fields.get(number_in_proc5 - 3).copied();
        let &[state] = field(3)? else { return None };
        Some(ProcessStat {
            pid: u32::try_from(parse_u64(&text[..open])?).ok()?,
            comm: OsString::from_vec(text[open + 1..close].to_vec()),
            state,
            ppid: u32::try_from(number(field(4))?).ok()?,
            flags: number(field(9))?,
            utime: number(field(14))?,
            stime: number(field(15))?,
            starttime: number(field(22))?,
            rss: Pages(number(field(24))?),
        })
    }

    /// Reads it in a process's directory below `/proc`.
    pub fn read(process: &Dir) -> Result<Self> {
        let mut buffer = Vec::new();
        process.read("stat", &mut buffer)?;
        ProcessStat::parse(&buffer)
            .ok_or_else(|| Error::parse(process.path().join("stat"), "not \"PID (NAME) STATE PPID ...\""))
    }
}

/// What a process holds, as `/proc/PID/status` has it: exact to some dozen pages for each CPU, and without a
/// walk over its page tables. A field is `None` when its line is missing, as all are for a kernel thread.
///
/// Sample lines: `VmLck:\t       0 kB`, `VmRSS:\t    1892 kB`, `RssAnon:\t     120 kB` (Linux 4.5), `VmSwap:\t       0 kB`.
/// Source: fs/proc/task_mmu.c, task_mem().
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holds {
    /// Resident.
    pub resident: Option<Bytes>,
    /// Of it, anonymous memory.
    pub anon: Option<Bytes>,
    /// In swap; shared memory is not counted.
    pub swapped: Option<Bytes>,
    /// Addresses that are locked, anonymous memory or not, in memory or not yet.
    pub locked: Option<Bytes>,
}

impl Holds {
    /// Of the process whose directory below `/proc` this is.
    pub fn read(process: &Dir, buffer: &mut Vec<u8>) -> Result<Self> {
        process.read("status", buffer)?;
        Ok(Holds::parse(buffer))
    }

    /// Parses the text.
    pub fn parse(text: &[u8]) -> Self {
        let mut holds = Holds::default();
        for line in text.split(|&c| c == b'\n') {
            let Some(colon) = line.iter().position(|&c| c == b':') else { continue };
            let field = match &line[..colon] {
                b"VmRSS" => &mut holds.resident,
                b"RssAnon" => &mut holds.anon,
                b"VmSwap" => &mut holds.swapped,
                b"VmLck" => &mut holds.locked,
                _ => continue,
            };
            let kib = line[colon + 1..].trim_ascii().strip_suffix(b" kB").and_then(parse_u64);
            *field = kib.map(|kib| Bytes(kib.saturating_mul(1024)));
        }
        holds
    }
}

/// `/proc/PID/oom_score_adj`: how expendable a process is, -1000 (never killed) to 1000. Since 2.6.36; sample
/// line: `-900`. Source: fs/proc/base.c, oom_score_adj_read().
pub fn read_oom_score_adj(process: &Dir) -> Result<i16> {
    let text = process.read_string("oom_score_adj")?;
    let adj = text.trim().parse().ok().filter(|adj| (-1000..=1000).contains(adj));
    adj.ok_or_else(|| Error::parse(process.path().join("oom_score_adj"), "no number from -1000 to 1000"))
}

/// The program that a process runs (`/proc/PID/exe`), which one of another user needs `CAP_SYS_PTRACE` for;
/// `None` for a kernel thread. One whose file was replaced or removed is still named by its old path:
/// the kernel appends ` (deleted)`, which is taken off. Source: fs/proc/base.c, proc_exe_link().
pub fn read_program(process: &Dir) -> Result<Option<PathBuf>> {
    let path = match rustix::fs::readlinkat(process, "exe", Vec::new()) {
        Ok(path) => path.into_bytes(),
        Err(Errno::NOENT) => return Ok(None),
        Err(err) => return Err(Error::read(process.path().join("exe"), err)),
    };
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    Ok(Some(PathBuf::from(os(path))))
}

/// The command line of a process, its arguments with a blank between them: `/proc/PID/cmdline`, which a
/// process may change. Empty for a kernel thread. Source: fs/proc/base.c, get_mm_cmdline().
pub fn read_command(process: &Dir) -> Result<String> {
    let mut buffer = Vec::new();
    process.read("cmdline", &mut buffer)?;
    while buffer.last() == Some(&0) {
        buffer.pop();
    }
    buffer.iter_mut().filter(|c| **c == 0).for_each(|c| *c = b' ');
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// All processes there are, kernel threads among them, in no order.
pub fn read_all(kernel: &Kernel) -> Result<Vec<u32>> {
    let names = kernel.proc.names()?;
    let pids = names.iter().filter_map(|name| parse_u64(name.as_encoded_bytes()));
    Ok(pids.filter_map(|pid| u32::try_from(pid).ok()).collect())
}

/// A process: its open directory below `/proc`. Whoever gets its pid next, nothing can be read in that
/// directory any more once the process is gone (`ESRCH`). With the time it started it can be known again.
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

    /// Its directory below `/proc`.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// What `/proc/PID/stat` said when it was opened.
    pub fn stat(&self) -> &ProcessStat {
        &self.stat
    }

    /// A pidfd (`pidfd_open(2)`, Linux 5.3) for this process and no other. `ESRCH`: it is gone, or `/proc`
    /// shows another pid namespace than the one this process is in, where the pid is somebody else's.
    pub fn pidfd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.pidfd.get().is_none() {
            let pid = i32::try_from(self.stat.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
            let opened = pidfd_open(pid, PidfdFlags::empty())?;
            if read_pid_of(&self.dir, opened.as_fd()) != Some(self.stat.pid) {
                return Err(Errno::SRCH);
            }
            // The pid may have been another's by then; if this process can still be read now, it was not.
            if !self.is_there() {
                return Err(Errno::SRCH);
            }
            drop(self.pidfd.set(opened));
        }
        self.pidfd.get().map(AsFd::as_fd).ok_or(Errno::SRCH)
    }

    /// Whether `/proc` shows another pid namespace than the one this program is in: it is there, and no pidfd of it is to be had,
    /// as its pid is another's here or nobody's. A zombie, or one that runs another program by now, has one.
    pub fn is_elsewhere(&self) -> bool {
        self.pidfd().is_err_and(|err| err == Errno::SRCH) && self.is_there()
    }

    /// Whether it has not ended, a zombie included.
    pub fn is_there(&self) -> bool {
        ProcessStat::read(&self.dir).is_ok_and(|stat| stat.starttime == self.stat.starttime)
    }

    /// The group it is in now; `None`: see [`parse_group`].
    pub fn read_group(&self) -> Result<Option<PathBuf>> {
        let mut buffer = Vec::new();
        self.dir.read("cgroup", &mut buffer)?;
        Ok(parse_group(&buffer))
    }
}

/// The pid of a pidfd's process, as the `/proc` in which `process` is a directory numbers them:
/// `/proc/self/fdinfo/FD`, since 5.2. Sample line: `Pid:` and, behind a tab, `5413`; 0: it has none there; -1: it is gone.
/// Source: kernel/fork.c, pidfd_show_fdinfo() (6.12: fs/pidfs.c).
fn read_pid_of(process: &Dir, pidfd: BorrowedFd<'_>) -> Option<u32> {
    let text = process.read_string(format!("../self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    parse_u64(pid.as_bytes()).and_then(|pid| u32::try_from(pid).ok())
}

/// The processes of a group, without those of groups below it: `cgroup.procs`, since 4.5. Sample line:
/// `5413`; `0` is a process of another pid namespace, which cannot be named here, and is left out.
/// Source: kernel/cgroup/cgroup.c, cgroup_procs_show().
pub fn read_pids(group: &Dir) -> Result<Vec<u32>> {
    let mut buffer = Vec::new();
    match group.read("cgroup.procs", &mut buffer) {
        Ok(()) => {}
        // A threaded group (`EOPNOTSUPP`): its processes are listed by the group it is a part of.
        Err(Error::Read { err, .. }) if err.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        Err(err) => return Err(err),
    }
    let lines = buffer.split(|&c| c == b'\n').filter_map(parse_u64);
    Ok(lines.filter_map(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0).collect())
}
