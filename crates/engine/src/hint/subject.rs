//! The process that is hinted: its identity, the check that it may be hinted, and the group that
//! accounts for its memory.

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

/// Protections that the user ignores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore {
    /// Foreground and protected classes, the first process, and keep rules.
    pub class: bool,
    /// `memory.min` and `memory.low`.
    pub low: bool,
}

/// The rules by which a process may be hinted.
#[derive(Debug)]
pub struct Rules<'a> {
    /// All groups, with their classes and memory.
    pub tree: Tree,
    /// The statements about groups and processes.
    pub statements: StatementStore,
    /// The configuration's rules for processes.
    pub processes: &'a [ProcessRule],
}

impl<'a> Rules<'a> {
    /// Reads the groups and the statements.
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
    /// The group that accounts for its memory; `None`: the root group, or the group is not needed.
    pub account: Option<Account>,
}

/// A group that accounts for memory.
#[derive(Debug)]
pub struct Account {
    /// The group.
    pub group: Group,
    /// The memory that may be reclaimed from the group; all: [`Bytes::MAX`].
    pub gain: Bytes,
}

/// Returns the name of a process for people: `4711 (firefox)`.
pub fn name(stat: &ProcessStat) -> String {
    format!("{} ({})", stat.pid, printable(&stat.comm.to_string_lossy()))
}

/// Opens the process with this pid. Fails if it cannot be hinted.
pub fn open(kernel: &Kernel, pid: u32) -> Result<Process> {
    if pid == std::process::id() {
        return Err(Exit::Failed.error(format!("{pid} is omr itself; nothing was done")));
    }
    let process = Process::open(kernel, pid).map_err(|err| match err.is_gone() {
        true => Exit::Failed.error(format!("there is no process {pid}")),
        false => err.into(),
    })?;
    match obstacle(process.stat()) {
        Some(why) => Err(Exit::Failed.error(format!("{} {why}; nothing was done", name(process.stat())))),
        None => Ok(process),
    }
}

/// Returns the reason why a process has no memory to hint.
fn obstacle(stat: &ProcessStat) -> Option<&'static str> {
    if stat.is_kernel_thread() {
        return Some("is a kernel thread and has no memory of its own");
    }
    stat.is_zombie().then_some("has ended and has no memory any more (a zombie: its parent has not waited for it)")
}

/// Returns the process and all its descendants that can be hinted.
pub fn descendants(kernel: &Kernel, pid: u32) -> Result<Vec<Process>> {
    let first = open(kernel, pid)?;
    let children = read_children(kernel)?;
    Ok(collect_descendants(kernel, first, children))
}

/// Returns all processes by the pid of their parent.
fn read_children(kernel: &Kernel) -> Result<HashMap<u32, Vec<ProcessId>>> {
    let mut children: HashMap<u32, Vec<ProcessId>> = HashMap::new();
    for pid in read_all(kernel)? {
        // A process that has ended is skipped. Keeping all processes open would take too many
        // descriptors.
        let Ok(process) = Process::open(kernel, pid) else { continue };
        children.entry(process.stat().ppid).or_default().push(processes::id(&process));
    }
    Ok(children)
}

/// Returns `first`, which was opened before `children` were read, and its descendants. A parent
/// that still exists has had its pid all the time, so the children with that parent pid are its
/// own. If the parent has ended, they may belong to another process.
fn collect_descendants(kernel: &Kernel, first: Process, mut children: HashMap<u32, Vec<ProcessId>>) -> Vec<Process> {
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
        // The named process is always in the result.
        if all.is_empty() || (process.stat().pid != own && obstacle(process.stat()).is_none()) {
            all.push(process);
        }
        next = std::iter::from_fn(|| ids.pop_front())
            .find_map(|id| Process::open(kernel, id.pid).ok().filter(|process| processes::id(process) == id));
    }
    all
}

impl Subject {
    /// Returns a process for a prefetch, which needs no check.
    pub fn any(process: Process) -> Result<Self> {
        let group = process.read_group()?.unwrap_or_default();
        Ok(Subject { process, group, account: None })
    }

    /// Returns a process whose memory may be reclaimed. Fails if its class forbids it, or if all
    /// memory of the group that accounts for it is protected or kept.
    pub fn permitted(kernel: &Kernel, rules: &Rules<'_>, process: Process, ignore: Ignore) -> Result<Self> {
        let tree = &rules.tree;
        let ProcessAssignment { class, origin, .. } =
            processes::classify(rules.processes, tree, &rules.statements, &process);
        // An unknown process is protected: unknown is never cold.
        if class != Class::Background && !ignore.class {
            let (name, class) = (name(process.stat()), class.name());
            let text = format!("{name} is {class} ({origin}); nothing was reclaimed. --ignore-class allows it.");
            return Err(Exit::Failed.error(text));
        }
        let group = process.read_group()?.unwrap_or_default();
        // The nearest group at or above it with a memory controller accounts for its memory.
        for path in group.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            let Some(node) = tree.find(path).filter(|node| node.current.is_some()) else { continue };
            let opened = Group::open(kernel.cgroup()?, path)?;
            let candidate = targets::find_named(tree, node, &opened, ignore.class, ignore.low)?;
            // Without protected or kept memory there is no bound.
            let gain = if candidate.gain < candidate.current { candidate.gain } else { Bytes::MAX };
            let account = (opened.id() == candidate.id).then_some(Account { group: opened, gain });
            return Ok(Subject { process, group, account });
        }
        Ok(Subject { process, group, account: None })
    }
}

/// Returns the error if the kernel refuses to read a process (`CAP_SYS_PTRACE`) or to hint it
/// (`CAP_SYS_NICE`). Yama's `ptrace_scope` matters for neither: it is about attaching.
pub fn denied(kernel: &Kernel, name: &str, needed: Capability) -> anyhow::Error {
    let what = match needed {
        Capability::SysNice => "cannot hint",
        _ => "cannot read",
    };
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    let has = own.is_some_and(|own| own.has(needed));
    let needed = needed.name();
    let why = if read_is_first_user_namespace(kernel) == Some(false) {
        format!("needs {needed} in the first user namespace, and omr runs in another")
    } else if has {
        format!("forbidden in spite of {needed}, perhaps by a security module")
    } else {
        format!("needs {needed}, so run it as root")
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
    fn a_process_without_memory_of_its_own_is_not_hinted() {
        let root = FakeRoot::new();
        let own = std::process::id();
        for (pid, state, flags) in [(20, 'S', 0), (21, 'Z', 0), (22, 'S', 0x20_0000), (own, 'S', 0)] {
            let parent = if pid == 20 { 1 } else { 20 };
            let stat = format!("{pid} (a\nb) {state} {parent} 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 9 0\n");
            root.write(format!("proc/{pid}/stat"), stat);
        }
        let kernel = Kernel::open(root.path()).expect("a root");
        let failed = |pid| open(&kernel, pid).map(drop).expect_err("no memory").to_string();
        assert_eq!(failed(own), format!("{own} is omr itself; nothing was done"));
        assert_eq!(failed(23), "there is no process 23");
        assert!(failed(21).starts_with("21 (a\\nb) has ended"), "{}", failed(21));
        assert!(failed(22).starts_with("22 (a\\nb) is a kernel thread"), "{}", failed(22));
        // All of them are children of the first.
        let pids: Vec<_> = descendants(&kernel, 20).expect("processes").iter().map(|of| of.stat().pid).collect();
        assert_eq!(pids, [20]);
    }

    #[test]
    fn a_process_may_be_hinted_within_the_rules_of_its_group() {
        let root = FakeRoot::new();
        crate::stand_in::add_group(&root, "a", 8, 0);
        let root = root.group("a/part", &[("cgroup.procs", "")]);
        crate::stand_in::set_process(&root, 20, "a/part", &[]);
        let kernel = Kernel::open(root.path()).expect("a root");
        let permitted = |rules: &str, ignore: Ignore| {
            let mut loaded = Loaded::built_in();
            loaded.groups = omr_config::rules(rules);
            let rules = Rules::read(&kernel, root.path(), &loaded).expect("groups");
            let process = open(&kernel, 20).expect("a process");
            let subject = Subject::permitted(&kernel, &rules, process, ignore).map_err(|err| err.to_string())?;
            assert_eq!(subject.group, Path::new("a/part"));
            Ok::<_, String>(subject.account.map(|account| (account.group.path().to_owned(), account.gain)))
        };
        let group = |gain| Ok(Some((PathBuf::from("a"), gain)));
        let none = Ignore::default();
        assert_eq!(permitted("", none), group(Bytes::MAX), "the group above accounts for it");
        let foreground = "[[group]]\nmatch = 'a/part'\nclass = 'foreground'\n";
        let err = permitted(foreground, none).expect_err("foreground");
        assert!(err.starts_with("20 (a) is foreground (") && err.ends_with("--ignore-class allows it."), "{err}");
        assert_eq!(permitted(foreground, Ignore { class: true, ..none }), group(Bytes::MAX));
        root.write("sys/fs/cgroup/a/memory.low", (3u64 << 20).to_string());
        assert_eq!(permitted("", none), group(Bytes::mib(5)));
        assert_eq!(permitted("", Ignore { low: true, ..none }), group(Bytes::MAX));
        root.write("sys/fs/cgroup/a/memory.low", "max\n");
        let err = permitted("", none).expect_err("protected");
        assert!(err.contains("--ignore-low allows it."), "{err}");
        // Nobody accounts for a process of the root.
        crate::stand_in::set_process(&root, 20, "a/part", &[]);
        root.remove("sys/fs/cgroup/a/memory.current");
        root.write("sys/fs/cgroup/a/memory.low", "0\n");
        assert_eq!(permitted("", none), Ok(None));
        let any = Subject::any(open(&kernel, 20).expect("a process")).expect("a group");
        assert!(any.group == Path::new("a/part") && any.account.is_none());
    }

    #[test]
    fn a_process_with_a_reused_pid_and_its_children_are_no_descendants() {
        let root = FakeRoot::new();
        for (pid, ppid) in [(10, 1), (11, 10), (12, 10), (13, 11), (14, 12), (20, 1)] {
            add(&root, pid, ppid, 500);
        }
        let kernel = Kernel::open(root.path()).expect("a root");
        // Returns the descendants if `change` happens after all processes were read.
        let found = |change: &dyn Fn()| {
            let first = open(&kernel, 10).expect("a process");
            let children = read_children(&kernel).expect("processes");
            change();
            let all = collect_descendants(&kernel, first, children);
            all.iter().map(|process| process.stat().pid).collect::<Vec<_>>()
        };
        assert_eq!(found(&|| ()), [10, 11, 12, 13, 14]);
        assert_eq!(found(&|| add(&root, 14, 20, 900)), [10, 11, 12, 13]);
        assert_eq!(found(&|| add(&root, 11, 20, 900)), [10, 12], "13 may be a child of the new 11");
        assert_eq!(found(&|| add(&root, 10, 20, 900)), [10], "the process is gone, so it is not hinted");
    }
}
