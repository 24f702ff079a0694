//! The process that is hinted: who it is, whether it may be, and which group accounts for its memory.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::Result;
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_config::{Loaded, ProcessRule};
use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_kernel::process::{Capability, Process, ProcessStat, Status, read_all, read_is_first_user_namespace};
use omr_machine::groups::targets;
use omr_machine::groups::tree::Tree;
use omr_machine::inventory;
use omr_machine::processes::{self, ProcessAssignment};
use omr_machine::statements::StatementStore;
use omr_policy::Class;
use omr_policy::rank::ProcessId;
use omr_units::Bytes;

/// Which rules somebody has set aside.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore {
    /// That foreground and protected groups, and the first process, lose nothing.
    pub class: bool,
    /// That `memory.min` and `memory.low` protect.
    pub low: bool,
}

/// What decides whether a process may be hinted.
#[derive(Debug)]
pub struct Rules<'a> {
    /// All groups, with their classes and what they hold.
    pub tree: Tree,
    /// What somebody has said of groups and processes.
    pub statements: StatementStore,
    /// The configuration's rules for processes.
    pub processes: &'a [ProcessRule],
}

impl<'a> Rules<'a> {
    /// Reads them.
    pub fn read(kernel: &Kernel, root: &Path, loaded: &'a Loaded) -> Result<Self> {
        let (tree, statements) = inventory::read_groups(kernel, root, loaded, true)?;
        Ok(Rules { tree, statements, processes: &loaded.processes })
    }
}

/// A process that may be hinted.
#[derive(Debug)]
pub struct Subject {
    /// The process.
    pub process: Process,
    /// Its group, below the mount.
    pub group: PathBuf,
    /// The group that accounts for its memory; `None`: the root, which nobody accounts for, or nobody asked.
    pub account: Option<Account>,
}

/// A group that accounts for memory.
#[derive(Debug)]
pub struct Account {
    /// The group.
    pub group: Group,
    /// What may be taken from it; all: [`Bytes::MAX`].
    pub gain: Bytes,
}

/// A process as people are told of it: `4711 (firefox)`.
pub fn name(stat: &ProcessStat) -> String {
    format!("{} ({})", stat.pid, printable(&stat.comm.to_string_lossy()))
}

/// Opens the process with this pid, or says why it is none that could be hinted.
pub fn open(kernel: &Kernel, pid: u32) -> Result<Process> {
    if pid == std::process::id() {
        return Err(Exit::Failed.error(format!("{pid} is omr itself; nothing was done")));
    }
    let process = Process::open(kernel, pid).map_err(|err| match err.is_gone() {
        true => Exit::Failed.error(format!("there is no process {pid}")),
        false => err.into(),
    })?;
    match why_not(process.stat()) {
        Some(why) => Err(Exit::Failed.error(format!("{} {why}; nothing was done", name(process.stat())))),
        None => Ok(process),
    }
}

/// Why a process has no memory to be hinted.
fn why_not(stat: &ProcessStat) -> Option<&'static str> {
    if stat.is_kernel_thread() {
        return Some("is a kernel thread and has no memory of its own");
    }
    stat.is_zombie().then_some("has ended and has no memory any more: its parent has not taken notice (a zombie)")
}

/// The process and all that it has started, and they, and so on, those that could be hinted.
pub fn descendants(kernel: &Kernel, pid: u32) -> Result<Vec<Process>> {
    let first = open(kernel, pid)?;
    let children = read_children(kernel)?;
    Ok(below(kernel, first, children))
}

/// All processes by the pid of their parent.
fn read_children(kernel: &Kernel) -> Result<HashMap<u32, Vec<ProcessId>>> {
    let mut children: HashMap<u32, Vec<ProcessId>> = HashMap::new();
    for pid in read_all(kernel)? {
        // One that has ended meanwhile is nobody's child any more. All of a machine would be too many to keep open.
        let Ok(process) = Process::open(kernel, pid) else { continue };
        children.entry(process.stat().ppid).or_default().push(processes::id(&process));
    }
    Ok(children)
}

/// `first`, which was opened before `children` were read, and those below it. A parent that is still there has had its pid all
/// the time, so the children that were found by it are its own; those of one that is not may be another's.
fn below(kernel: &Kernel, first: Process, mut children: HashMap<u32, Vec<ProcessId>>) -> Vec<Process> {
    let own = std::process::id();
    let mut ids = VecDeque::new();
    let mut all: Vec<Process> = Vec::new();
    let mut next = Some(first);
    while let Some(process) = next {
        if process.exists() {
            let mut found = children.remove(&process.stat().pid).unwrap_or_default();
            found.sort_unstable();
            ids.extend(found);
        }
        // The one that was named is told of in any case.
        if all.is_empty() || (process.stat().pid != own && why_not(process.stat()).is_none()) {
            all.push(process);
        }
        next = std::iter::from_fn(|| ids.pop_front())
            .find_map(|id| Process::open(kernel, id.pid).ok().filter(|process| processes::id(process) == id));
    }
    all
}

impl Subject {
    /// A process whose memory may come back: nobody is asked.
    pub fn any(process: Process) -> Result<Self> {
        let group = process.read_group()?.unwrap_or_default();
        Ok(Subject { process, group, account: None })
    }

    /// A process whose memory may be taken; an error says why it may not. Its class counts, and of the group
    /// that accounts for its memory what is protected and kept.
    pub fn permitted(kernel: &Kernel, rules: &Rules<'_>, process: Process, ignore: Ignore) -> Result<Self> {
        let tree = &rules.tree;
        let ProcessAssignment { class, origin, .. } =
            processes::classify(rules.processes, tree, &rules.statements, &process);
        // Of what nothing is known is protected: unknown is never cold.
        if class != Class::Background && !ignore.class {
            let (name, class) = (name(process.stat()), class.name());
            let text = format!(
                "{name} is {class} ({origin}); nothing was reclaimed. --ignore-class reclaims it all the same."
            );
            return Err(Exit::Failed.error(text));
        }
        let group = process.read_group()?.unwrap_or_default();
        // Where a group has no memory controller, the nearest above it that has one accounts for it.
        for path in group.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            let Some(node) = tree.find(path).filter(|node| node.current.is_some()) else { continue };
            let opened = Group::open(kernel.cgroup()?, path)?;
            let candidate = targets::find_named(tree, node, &opened, ignore.class, ignore.low)?;
            // Where nothing is kept and protected, what the group held a moment ago is no bound.
            let gain = if candidate.gain < candidate.current { candidate.gain } else { Bytes::MAX };
            let account = (opened.id() == candidate.id).then_some(Account { group: opened, gain });
            return Ok(Subject { process, group, account });
        }
        Ok(Subject { process, group, account: None })
    }
}

/// What is missing when the kernel refuses to look into a process (`CAP_SYS_PTRACE`) or to take a hint
/// about it (`CAP_SYS_NICE`). Yama's `ptrace_scope` has no say in either: it is about attaching.
pub fn denied(kernel: &Kernel, name: &str, needed: Capability) -> anyhow::Error {
    let what = match needed {
        Capability::SysNice => "no hint may be given about",
        _ => "may not look into",
    };
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    let has = own.is_some_and(|own| own.has(needed));
    let needed = needed.name();
    let why = if read_is_first_user_namespace(kernel) == Some(false) {
        format!("it takes {needed} in the first user namespace, and omr runs in another")
    } else if has {
        format!("in spite of {needed}: a security module may forbid it")
    } else {
        format!("it takes {needed}, so run it as root")
    };
    Exit::Failed.error(format!("{what} {name}: {why}"))
}

#[cfg(test)]
mod tests {
    use omr_testkit::FakeRoot;

    use super::*;

    fn add(root: &FakeRoot, pid: u32, ppid: u32, start: u64) {
        let stat = format!("{pid} (a) S {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 9 0\n");
        root.write(format!("proc/{pid}/stat"), stat);
    }

    #[test]
    fn who_got_a_pid_since_is_no_descendant_nor_are_its_children() {
        let root = FakeRoot::new();
        for (pid, ppid) in [(10, 1), (11, 10), (12, 10), (13, 11), (14, 12), (20, 1)] {
            add(&root, pid, ppid, 500);
        }
        let kernel = Kernel::open(root.path()).expect("a root");
        // What is below it, when `change` happens after all processes were looked at.
        let found = |change: &dyn Fn()| {
            let first = open(&kernel, 10).expect("a process");
            let children = read_children(&kernel).expect("processes");
            change();
            let all = below(&kernel, first, children);
            all.iter().map(|process| process.stat().pid).collect::<Vec<_>>()
        };
        assert_eq!(found(&|| ()), [10, 11, 12, 13, 14]);
        assert_eq!(found(&|| add(&root, 14, 20, 900)), [10, 11, 12, 13]);
        assert_eq!(found(&|| add(&root, 11, 20, 900)), [10, 12], "13 may be a child of the new 11");
        assert_eq!(found(&|| add(&root, 10, 20, 900)), [10], "which nobody hints any more: it is gone");
    }
}
