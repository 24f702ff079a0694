//! Runs a program under ptrace(2), and kills it or fails a system call at its n-th change of a file.
//!
//! Calls that would change the machine that runs the tests, swapon and swapoff, are not carried out:
//! a closure of the test stands in for the kernel.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::mem;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A fault, at a change that is counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// None.
    #[default]
    None,
    /// The program is killed before the change.
    Kill(usize),
    /// The call returns this error and does nothing.
    Fail {
        /// The change.
        at: usize,
        /// The error, such as `libc::EIO`.
        errno: i32,
    },
    /// The disk is full: a write puts half of its bytes to the file, and calls after that which need
    /// room fail. Others work.
    Full {
        /// The change.
        at: usize,
        /// The number of changes after which there is room again.
        changes: usize,
    },
}

/// A swap call of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapCall {
    /// `swapoff(2)`.
    Off(PathBuf),
    /// `swapon(2)` with its flags.
    On(PathBuf, u64),
}

/// Calls can be failed, and kept from the kernel, on this architecture.
pub const CAN_REPLACE: bool = cfg!(target_arch = "x86_64");

/// How to run a program. Processes that it forks are traced as well, and their changes do not count.
#[derive(Default)]
pub struct Trace<'a> {
    /// The fault.
    pub fault: Fault,
    /// Its forked processes live on when it ends, and are waited for.
    pub children_live: bool,
    /// Stands in for the kernel's swap.
    pub swap: Option<&'a dyn Fn(SwapCall)>,
}

/// The end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The number of changes that it made, or tried to make.
    pub changes: usize,
    /// Its wait status, as of waitpid(2).
    pub status: i32,
}

impl Ended {
    /// The code that it ended with; `None`: a signal ended it.
    pub fn code(self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }
}

impl Trace<'_> {
    /// Runs it to its end. `started` gets its pid.
    ///
    /// # Panics
    /// If it cannot be traced.
    #[expect(clippy::zombie_processes, reason = "wait() below waits for it")]
    pub fn run(&self, command: &mut Command, started: impl FnOnce(u32)) -> Ended {
        // SAFETY: one call of ptrace(2) between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        let main = i32::try_from(child.id()).expect("a pid");
        let (stopped, _) = wait().expect("a child");
        assert_eq!(stopped, main, "at exec");
        let options = libc::PTRACE_O_EXITKILL
            | libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK;
        // SAFETY: the process is stopped, and this thread traces it.
        unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, main, 0, options) };
        resume(main, 0);
        started(child.id());
        let mut tracer = Tracer { trace: self, main, forked: HashSet::new(), results: HashMap::new(), changes: 0 };
        let mut ended = None;
        while let Some((task, status)) = wait() {
            if libc::WIFSTOPPED(status) {
                tracer.stopped(task, status);
            } else if task == main {
                ended = Some(status);
                if !self.children_live {
                    tracer.kill_forked();
                }
            }
        }
        Ended { changes: tracer.changes, status: ended.expect("it was waited for") }
    }
}

/// A program that is being traced.
struct Tracer<'a> {
    trace: &'a Trace<'a>,
    main: i32,
    /// Processes that it forked.
    forked: HashSet<i32>,
    /// The results of calls that are not carried out, by task.
    results: HashMap<i32, i64>,
    changes: usize,
}

impl Tracer<'_> {
    fn stopped(&mut self, task: i32, status: i32) {
        let signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            self.called(task);
            resume(task, 0);
            return;
        }
        let event = status >> 16;
        if event == libc::PTRACE_EVENT_FORK || event == libc::PTRACE_EVENT_VFORK {
            let mut pid: libc::c_ulong = 0;
            // SAFETY: the task is stopped, and the kernel writes one number.
            unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, task, 0, &raw mut pid) };
            self.forked.insert(i32::try_from(pid).expect("a pid"));
        }
        // A thread or process that has just begun is stopped, too.
        let is_tracing = signal == libc::SIGTRAP || signal == libc::SIGSTOP;
        resume(task, if is_tracing { 0 } else { signal });
    }

    /// A task is at the beginning or the end of a system call.
    fn called(&mut self, task: i32) {
        // SAFETY: all bytes zero are a valid struct of numbers.
        let mut call: libc::ptrace_syscall_info = unsafe { mem::zeroed() };
        let size = mem::size_of_val(&call);
        // SAFETY: the kernel writes at most `size` bytes to the struct.
        if unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, task, size, &raw mut call) } <= 0 {
            return;
        }
        if call.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            if let Some(result) = self.results.remove(&task) {
                registers::set_result(task, result);
            }
            return;
        }
        if call.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return;
        }
        // SAFETY: the kernel has filled in this member of the union, as `op` says.
        let (number, args) = unsafe { (call.u.entry.nr, call.u.entry.args) };
        let number = i64::try_from(number).expect("a number");
        let swap = matches!(number, libc::SYS_swapon | libc::SYS_swapoff);
        // Whether it is killed before or after it waits for the disk makes no difference here.
        let syncs = matches!(number, libc::SYS_fsync | libc::SYS_fdatasync);
        let counts = !(syncs && matches!(self.trace.fault, Fault::Kill(_)));
        if counts && !self.forked.contains(&process_of(task)) && (swap || is_change(task, number, &args)) {
            let this = self.changes;
            self.changes += 1;
            match self.trace.fault {
                Fault::Kill(at) if at == this => {
                    self.changes = this;
                    if !self.trace.children_live {
                        // First: one that waits for the program's end would still act after it.
                        self.kill_forked();
                    }
                    // SAFETY: the process has not been waited for. The call is not carried out any
                    // more.
                    unsafe { libc::kill(self.main, libc::SIGKILL) };
                    return;
                }
                Fault::Fail { at, errno } if at == this => {
                    self.replace(task, -i64::from(errno));
                    return;
                }
                Fault::Full { at, changes }
                    if (at..at.saturating_add(changes)).contains(&this) && needs_room(task, number, &args) =>
                {
                    if this == at && number == libc::SYS_write && args[2] > 1 {
                        registers::set_length(task, args[2] / 2);
                    } else {
                        self.replace(task, -i64::from(libc::ENOSPC));
                        return;
                    }
                }
                _ => {}
            }
        }
        if swap {
            let path = read_path(task, args[0]);
            let kernel = self.trace.swap.expect("a program that switches swap needs a stand-in for the kernel");
            kernel(if number == libc::SYS_swapoff { SwapCall::Off(path) } else { SwapCall::On(path, args[1]) });
            self.replace(task, 0);
        }
    }

    /// The call that a task has begun is not carried out, and returns this.
    fn replace(&mut self, task: i32, result: i64) {
        registers::skip_call(task);
        self.results.insert(task, result);
    }

    fn kill_forked(&self) {
        for pid in &self.forked {
            // SAFETY: this thread traces the process, so the pid is its own until it is waited for;
            // one that has been is gone, and its number is not given again so soon.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
    }
}

/// Waits for a task that this thread traces; `None`: there is none any more.
fn wait() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status is a live integer. Children of other threads are not waited for.
    let task = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    if task > 0 {
        return Some((task, status));
    }
    let err = std::io::Error::last_os_error();
    assert_eq!(err.raw_os_error(), Some(libc::ECHILD), "waitpid: {err}");
    None
}

fn resume(task: i32, signal: i32) {
    // SAFETY: the task is stopped, and this thread traces it. One that was killed meanwhile is gone.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, task, 0, signal) };
}

/// The process of a task; itself where that is unknown.
fn process_of(task: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(task)
}

/// Returns true for a call that changes a file.
fn is_change(task: i32, number: i64, args: &[u64; 6]) -> bool {
    let is_file = || {
        let name = fs::read_link(format!("/proc/{task}/fd/{}", args[0])).unwrap_or_default();
        name.is_absolute() && !name.starts_with("/dev/null")
    };
    match number {
        libc::SYS_openat => args[2] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0,
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => is_file(),
        libc::SYS_fsync | libc::SYS_fdatasync => is_file(),
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => true,
        libc::SYS_unlinkat | libc::SYS_mkdirat => true,
        libc::SYS_ftruncate | libc::SYS_fchmod | libc::SYS_fchmodat => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link | libc::SYS_unlink | libc::SYS_rmdir | libc::SYS_mkdir => true,
        _ => false,
    }
}

/// Returns true for a call that fails on a full disk. Files of the kernel need none.
fn needs_room(task: i32, number: i64, args: &[u64; 6]) -> bool {
    match number {
        libc::SYS_openat => args[2] & libc::O_CREAT as u64 != 0,
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev => {
            let name = fs::read_link(format!("/proc/{task}/fd/{}", args[0])).unwrap_or_default();
            !name.components().any(|part| part.as_os_str() == "sys")
        }
        libc::SYS_linkat | libc::SYS_mkdirat => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link | libc::SYS_mkdir => true,
        _ => false,
    }
}

/// The text at this address of a task, up to its NUL.
fn read_path(task: i32, address: u64) -> PathBuf {
    let memory = File::open(format!("/proc/{task}/mem")).expect("its memory");
    let mut text = vec![0; libc::PATH_MAX as usize];
    // The text may be at the end of a mapping.
    let read = memory.read_at(&mut text, address).expect("a path");
    text.truncate(text[..read].iter().position(|byte| *byte == 0).expect("an end"));
    PathBuf::from(std::ffi::OsString::from_vec(text))
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::mem;

    fn change(task: i32, change: impl FnOnce(&mut libc::user_regs_struct)) {
        // SAFETY: all bytes zero are a valid struct of numbers, which the kernel fills in; the task is
        // stopped, and this thread traces it.
        unsafe {
            let mut registers: libc::user_regs_struct = mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, task, 0, &raw mut registers), 0);
            change(&mut registers);
            assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, task, 0, &raw const registers), 0);
        }
    }

    /// A call that does not exist takes the place of the one that begins.
    pub fn skip_call(task: i32) {
        change(task, |registers| registers.orig_rax = u64::MAX);
    }

    /// Sets the third argument of the call that begins.
    pub fn set_length(task: i32, length: u64) {
        change(task, |registers| registers.rdx = length);
    }

    pub fn set_result(task: i32, result: i64) {
        change(task, |registers| registers.rax = result.cast_unsigned());
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    pub fn skip_call(_: i32) {
        panic!("results can only be replaced on x86-64");
    }

    pub fn set_length(_: i32, _: u64) {}

    pub fn set_result(_: i32, _: i64) {}
}
