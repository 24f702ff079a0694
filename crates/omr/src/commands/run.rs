//! `omr run`: a command in a new group of a class.
//!
//! The command is a child that waits at a pipe until its group is there, so that it never runs
//! outside of the group. Where systemd runs, the group is a scope that systemd makes and removes;
//! elsewhere this module does.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use omr_actuate::{Actuator, Live, Outcome, groups};
use omr_base::exit::Exit;
use omr_config as config;
use omr_kernel::memcg::Group;
use omr_kernel::{Dir, Kernel, clock, process};
use omr_machine::groups::xattrs;
use omr_policy::Class;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::bus::{Scope, Systemd};

/// omr itself failed. The three codes are those of env(1), nohup(1) and timeout(1).
const FAILED: u8 = 125;
/// The command cannot be run.
const CANNOT_RUN: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// The signals that are forwarded to the command. The terminal sends its own signals to the command
/// itself.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The beginning of a group's name; the id of its first process follows.
const PREFIX: &str = "omr-run-";

/// systemd's slice for background work, of the machine and of each user.
const BACKGROUND_SLICE: &str = "background.slice";

/// The longest time until systemd has moved a process. It does so within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs COMMAND in a new group of a class, removes the group afterwards, and ends with the
/// command's exit code (128 and its number, when a signal ended it).
///
/// Where systemd runs, the group is a scope: background.slice/omr-run-PID.scope. As root the class
/// is written to the group (extended attribute user.omr.class), and the load of a background
/// command does not keep sweeps from running. As a user it is a scope of your own service manager,
/// and only the classes foreground and protected are written: a user may ask omr for more care, not
/// for less. A user's background command goes to the user's background.slice. Like any group
/// without a rule, it is swept when the machine is idle. To make it background, root adds a rule:
/// match = "**/background.slice/**".
///
/// Without systemd the group is created directly below the root of the hierarchy. For a user it is
/// created next to or in the user's own group, if that is delegated. Processes that the command
/// leaves behind stay in the group, which is removed when the last of them ends.
///
/// Exit codes besides the command's: 125 omr failed, 126 the command cannot be run, 127 there is no
/// such command.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The class of the group: foreground, background or protected
    #[arg(long, value_parser = parse_class, default_value = "background", value_name = "CLASS")]
    class: Class,

    /// Without systemd: make the group below this one
    #[arg(long, value_name = "GROUP")]
    below: Option<PathBuf>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_class(text: &str) -> Result<Class, String> {
    config::parse_class(text).ok_or_else(|| "expected foreground, background or protected".into())
}

/// Runs the command to its end.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    run_command(root, args).map_err(|err| match err.is::<omr_base::exit::Coded>() {
        true => err,
        false => Exit::Command(FAILED).error(format!("{err:#}")),
    })
}

fn run_command(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let signals = Signals::block();
    let child = Child::start(&args.command, &signals)?;
    let user = !rustix::process::geteuid().is_root();
    let place = if root.join("run/systemd/system").is_dir() {
        in_scope(&kernel, args, child.pid, user).map(|()| None)
    } else {
        directly(&kernel, args, child.pid, user).map(Some)
    };
    let made = match place {
        Ok(made) => made,
        Err(err) => {
            child.give_up();
            return Err(err);
        }
    };
    let code = child.go().and_then(|child| child.wait(&signals));
    if let Some(group) = made {
        group.remove();
    }
    code.map(Exit::Command)
}

/// The name of a command's group.
fn unit(pid: u32) -> String {
    format!("{PREFIX}{pid}.scope")
}

// With systemd

/// Has systemd make a scope around the process, and writes the class to the scope's group.
fn in_scope(kernel: &Kernel, args: &Args, pid: u32, user: bool) -> Result<()> {
    if args.below.is_some() {
        bail!("--below is for machines without systemd, which alone makes groups here");
    }
    let name = unit(pid);
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let description = format!("omr run: {}", words.join(" "));
    let slice = (args.class == Class::Background).then_some(BACKGROUND_SLICE);
    Systemd::connect(user)?.start_scope(&Scope { name: &name, description: &description, pid, slice })?;
    let began = clock::read_monotonic();
    let path = loop {
        match process::read_group(kernel, pid)? {
            Some(path) if path.file_name().is_some_and(|last| *last == *name) => break path,
            _ if clock::read_monotonic().since(began) > PATIENCE => {
                bail!("systemd did not move process {pid} into {name}; journalctl -u {name} may say why")
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if user && args.class == Class::Background {
        // The daemon ignores it: see `Assignment::apply_attribute`.
        return Ok(());
    }
    let group = Group::open(kernel.cgroup()?, &path)?;
    write_class(group.dir(), args.class)
}

fn write_class(dir: &Dir, class: Class) -> Result<()> {
    groups::set_xattr(dir, xattrs::CLASS, class.name()).context("write the class to the group (Linux 5.7)")
}

// Without systemd

/// A group that this process has made.
struct Made {
    parent: Dir,
    name: String,
}

/// Makes a group for the process and moves it there.
fn directly(kernel: &Kernel, args: &Args, pid: u32, user: bool) -> Result<Made> {
    let root = kernel.cgroup()?;
    let own = process::read_own_group(kernel)?.unwrap_or_default();
    let parents = match &args.below {
        Some(below) => vec![kernel.group_path(below).to_path_buf()],
        None if !user => vec![PathBuf::new()],
        // First as a sibling of the own group: a group with processes has no memory controller
        // below it.
        None => own.parent().map(Path::to_path_buf).into_iter().chain([own.clone()]).collect(),
    };
    let mut first = None;
    for parent in &parents {
        match make(root, parent, args.class, pid, user) {
            Ok(made) => return Ok(made),
            Err(err) => drop(first.get_or_insert(err)),
        }
    }
    let err = first.unwrap_or_else(|| anyhow!("no group to make one in"));
    let help = match user {
        true => "; run it as root, or in a group that is delegated to you",
        false => "",
    };
    Err(err.context(format!("cannot make a group for the command{help}")))
}

fn make(root: &Dir, parent: &Path, class: Class, pid: u32, user: bool) -> Result<Made> {
    let parent = Group::open(root, parent)?.into_dir();
    remove_stale(&parent);
    let name = unit(pid);
    let dir = groups::make(&parent, &name)?;
    let made = Made { parent, name };
    let ready = || -> Result<()> {
        if !(user && class == Class::Background) {
            write_class(&dir, class)?;
        }
        match Live.write(&dir, "cgroup.procs", &pid.to_string())? {
            Outcome::Done => Ok(()),
            Outcome::Denied => bail!("{}: no permission to move a process there", dir.path().display()),
            outcome => bail!("{}: the process could not be moved there ({outcome:?})", dir.path().display()),
        }
    };
    if let Err(err) = ready() {
        made.try_remove();
        return Err(err);
    }
    if !dir.has("memory.current") {
        eprintln!(
            "omr: {}: no memory controller, so omr cannot reclaim from this command alone; \
             enable it in {}/cgroup.subtree_control",
            dir.path().display(),
            made.parent.path().display()
        );
    }
    Ok(made)
}

/// Removes the groups that an omr left behind when it was killed: those whose process id is free
/// and which are empty.
fn remove_stale(parent: &Dir) {
    let Ok(entries) = std::fs::read_dir(parent.path()) else { return };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(".scope"));
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw) else { continue };
        if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
            // A group that is not empty stays.
            let _ = groups::remove(parent, &name);
        }
    }
}

impl Made {
    /// Removes the group if it is empty. True: the group is gone.
    fn try_remove(&self) -> bool {
        match groups::remove(&self.parent, &self.name) {
            Ok(()) => true,
            Err(err) => err.raw_os_error() == Some(libc::ENOENT),
        }
    }

    /// Removes the group, now or after the end of its last process.
    fn remove(self) {
        // A process that was killed needs a moment to leave.
        for _ in 0..10 {
            if self.try_remove() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: this process has one thread, so its child may do anything; it ends with _exit.
        if unsafe { libc::fork() } == 0 {
            self.remove_later();
            // SAFETY: ends the process; nothing is to be cleaned up.
            unsafe { libc::_exit(0) };
        }
    }

    /// Waits and removes the group, in a process of its own that holds no terminal and no pipe of
    /// the caller's.
    fn remove_later(&self) {
        // SAFETY: plain system calls on numbers; /dev/null takes the place of the three standard
        // files. Nothing uses a descriptor from before, and this process ends without dropping any.
        unsafe {
            libc::setsid();
            libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
            libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            libc::dup2(0, 1);
            libc::dup2(0, 2);
        }
        let group = self.parent.path().join(&self.name);
        loop {
            let Ok(file) = std::fs::File::open(group.join("cgroup.events")) else { return };
            // Poll reports a change since the last read.
            let _ = io::read_to_string(&file);
            if std::fs::remove_dir(&group).is_ok() {
                return;
            }
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&minute));
        }
    }
}

// The command

/// The signals that are waited for instead of being acted on.
struct Signals {
    set: libc::sigset_t,
    /// The signals that were blocked before.
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> Signals {
        // SAFETY: both sets are locals that the calls fill in; SIG_DFL is a valid disposition. An
        // inherited SIG_IGN of SIGCHLD would lose the exit code.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut signals: Signals = std::mem::zeroed();
            libc::sigemptyset(&mut signals.set);
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut signals.set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &signals.set, &mut signals.before);
            signals
        }
    }

    /// The next signal, and whether the kernel sent it (for a terminal, to its foreground
    /// processes).
    fn wait(&self) -> Option<(libc::c_int, bool)> {
        // SAFETY: the set was filled in by `block`, `info` is plain data that the call fills in.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&self.set, &mut info);
            (signal > 0).then_some((signal, info.si_code == libc::SI_KERNEL))
        }
    }
}

/// The command's process, which waits until [`Child::go`].
struct Child {
    pid: u32,
    program: String,
    gate: OwnedFd,
    /// Has an error number when the command could not be run; a successful start closes it.
    error: OwnedFd,
}

struct Running {
    pid: libc::pid_t,
}

impl Child {
    fn start(command: &[OsString], signals: &Signals) -> Result<Child> {
        let words: Vec<CString> = command
            .iter()
            .map(|word| CString::new(word.clone().into_vec()))
            .collect::<Result<_, _>>()
            .context("a word of the command has a NUL in it")?;
        let (Some(name), Some(program)) = (command.first(), words.first()) else { bail!("no command") };
        let program = program.as_ptr();
        let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let (gate_out, gate) = pipe_with(PipeFlags::CLOEXEC).context("pipe")?;
        let (error, error_in) = pipe_with(PipeFlags::CLOEXEC).context("pipe")?;
        // SAFETY: this process has one thread, so its child may do anything. `argv` ends with a
        // null pointer and points to strings that live in `words`.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    // With this end open, the gate would not show the end of the parent.
                    libc::close(gate.as_raw_fd());
                    let mut byte = 0u8;
                    if libc::read(gate_out.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                        libc::_exit(FAILED.into());
                    }
                    libc::sigprocmask(libc::SIG_SETMASK, &signals.before, std::ptr::null_mut());
                    libc::execvp(program, argv.as_ptr());
                    let errno = *libc::__errno_location();
                    libc::write(error_in.as_raw_fd(), (&raw const errno).cast(), size_of_val(&errno));
                    libc::_exit(CANNOT_RUN.into());
                }
                pid => pid,
            }
        };
        let pid = u32::try_from(pid).map_err(|_| io::Error::last_os_error()).context("fork")?;
        Ok(Child { pid, program: name.to_string_lossy().into_owned(), gate, error })
    }

    /// Ends the process before the command begins.
    fn give_up(self) {
        drop(self.gate);
        Running { pid: self.pid.cast_signed() }.reap();
    }

    /// Lets the command begin.
    fn go(self) -> Result<Running> {
        let running = Running { pid: self.pid.cast_signed() };
        rustix::io::write(&self.gate, &[1]).context("start the command")?;
        let mut errno = [0u8; 4];
        if let Ok(4) = rustix::io::read(&self.error, &mut errno) {
            running.reap();
            let err = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            let code = if err.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
            return Err(Exit::Command(code).error(format!("{}: {err}", self.program)));
        }
        Ok(running)
    }
}

impl Running {
    /// Forwards signals until the command ends. Returns its exit code.
    fn wait(&self, signals: &Signals) -> Result<u8> {
        loop {
            match signals.wait() {
                Some((libc::SIGCHLD, _)) => {
                    if let Some(code) = self.ended(libc::WNOHANG) {
                        return Ok(code);
                    }
                }
                // The terminal has sent the signal to the command, too.
                Some((_, true)) | None => {}
                Some((signal, false)) => {
                    // SAFETY: a system call on numbers. The child is not reaped yet, so its number
                    // is its own.
                    unsafe { libc::kill(self.pid, signal) };
                }
            }
        }
    }

    fn reap(&self) {
        let _ = self.ended(0);
    }

    /// The exit code; `None`: the command runs still.
    fn ended(&self, flags: libc::c_int) -> Option<u8> {
        let mut status = 0;
        // SAFETY: `status` is a local that the call fills in.
        let found = unsafe { libc::waitpid(self.pid, &mut status, flags) };
        if found != self.pid {
            return None;
        }
        exit_code(status)
    }
}

/// The exit code that a shell shows for a status of waitpid.
fn exit_code(status: libc::c_int) -> Option<u8> {
    if libc::WIFEXITED(status) {
        u8::try_from(libc::WEXITSTATUS(status)).ok()
    } else if libc::WIFSIGNALED(status) {
        u8::try_from(128 + libc::WTERMSIG(status)).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from([&["run"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn the_words_after_the_command_are_the_commands() {
        let args = parse(&["--class", "background", "--", "ls", "-l", "--class", "x"]).expect("a command line");
        assert_eq!(args.command, ["ls", "-l", "--class", "x"]);
        let args = parse(&["ls", "-l"]).expect("a command line");
        assert_eq!((args.class, args.command), (Class::Background, vec!["ls".into(), "-l".into()]));
    }

    #[test]
    fn without_a_command_or_with_a_class_that_is_none_it_does_not_start() {
        assert!(parse(&[]).is_err());
        let err = parse(&["--class", "back", "ls"]).expect_err("no such class").to_string();
        assert!(err.contains("expected foreground, background or protected"), "{err}");
    }

    #[test]
    fn a_signal_is_told_as_a_shell_tells_it() {
        assert_eq!(exit_code(3 << 8), Some(3));
        assert_eq!(exit_code(libc::SIGKILL), Some(137));
        assert_eq!(exit_code(0x7f | libc::SIGSTOP << 8), None);
    }
}
