//! Processes: their class and its origin, and the search for processes that may get hints.

use std::borrow::Borrow;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use omr_base::exit::Exit;
use omr_config::{ProcessRule, parts};
use omr_kernel::memcg::Group;
use omr_kernel::process::{self, Process, ProcessMemory, Status};
use omr_kernel::{Kernel, Result};
use omr_policy::Class;
use omr_policy::rank::{self, ProcessId};
use omr_policy::statement::Presence;
use omr_units::{Bytes, Monotonic};

use crate::groups::class::{self, Assignment};
use crate::groups::tree::Tree;
use crate::statements::StatementStore;

/// A process is compared with the rules again after this time: it may run another program by then,
/// or be in another group.
const RULE_LIFETIME: Duration = Duration::from_secs(30);

/// Returns the process that a user names by a number. The number may be larger than any process id.
/// Anything else, also `./7`, names a group.
pub fn pid(target: &Path) -> Option<anyhow::Result<u32>> {
    let digits = target.to_str().filter(|text| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()))?;
    Some(digits.parse().map_err(|_| no_process(digits)))
}

/// Error for a number that is no process.
pub fn no_process(digits: &str) -> anyhow::Error {
    Exit::Failed.error(format!("there is no process {digits}; a group of that name is ./{digits}"))
}

/// Returns the identity of a process.
pub fn id(process: &Process) -> ProcessId {
    ProcessId { pid: process.stat().pid, start: process.stat().starttime }
}

/// The origin of the class of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The group of the process.
    Group(String),
    /// The group is unknown, or the process is in none.
    Unknown,
    /// A rule for processes.
    Rule(Arc<ProcessRule>),
    /// A statement about the process.
    Stated(Presence),
    /// The process is the first one, or omr itself.
    Vital,
}

/// `matched exe "/usr/bin/cat" in /etc/omr/omr.toml:14`
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Group(why) => f.write_str(why),
            Origin::Unknown => f.write_str("its group is unknown"),
            Origin::Rule(rule) => write!(f, "matched {rule}"),
            Origin::Stated(word) => write!(f, "omr {}", word.class().name()),
            Origin::Vital => f.write_str("the first process and omr itself are always protected"),
        }
    }
}

/// The class of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAssignment {
    /// Its class.
    pub class: Class,
    /// The process may get hints: a rule for processes or a statement makes it background.
    pub may_hint: bool,
    /// The origin of the class.
    pub origin: Origin,
}

impl ProcessAssignment {
    /// Combines the assignment of the group (`None`: unknown), the matching rule, and the statement
    /// about the process. More care always counts; less care counts only if neither the group nor a
    /// rule protects.
    fn of(
        of_group: Option<(&Assignment, &Path)>,
        rule: Option<&Arc<ProcessRule>>,
        statements: Option<Presence>,
    ) -> ProcessAssignment {
        let Some((group, path)) = of_group else {
            return ProcessAssignment { class: Class::Protected, may_hint: false, origin: Origin::Unknown };
        };
        let mut assignment = ProcessAssignment {
            class: group.class,
            may_hint: matches!(group.origin, class::Origin::Stated(Presence::Background, _)),
            origin: Origin::Group(group.explain(path)),
        };
        // If only the user is present, the application in use is unknown.
        let mut open = matches!(group.origin, class::Origin::Stated(Presence::Present, _));
        let mut apply = |class: Class, origin: Origin| {
            if class > assignment.class || (class == Class::Background && (open || assignment.class == class)) {
                assignment = ProcessAssignment { class, may_hint: class == Class::Background, origin };
                open = false;
            }
        };
        if let Some(rule) = rule {
            apply(rule.class, Origin::Rule(rule.clone()));
        }
        if let Some(word) = statements {
            apply(word.class(), Origin::Stated(word));
        }
        assignment
    }

    /// Returns the assignment of a process. The first process and omr itself are always protected.
    fn of_process(
        id: ProcessId,
        group: Option<(&Assignment, &Path)>,
        rule: Option<&Arc<ProcessRule>>,
        statements: &StatementStore,
    ) -> ProcessAssignment {
        if id.pid == 1 || id.pid == std::process::id() {
            return ProcessAssignment { class: Class::Protected, may_hint: false, origin: Origin::Vital };
        }
        ProcessAssignment::of(group, rule, statements.processes().get(&id).copied())
    }
}

/// A process as the policy needs it, with more facts for people.
#[derive(Clone, Debug)]
pub struct ProcessSample {
    /// The values for the policy.
    pub process: rank::Process,
    /// The name, which the process chooses itself.
    pub name: String,
    /// The path of its group below the mount.
    pub group: PathBuf,
    /// The group to which its memory is charged; `None`: the root, or unknown.
    pub account: Option<PathBuf>,
    /// Resident memory; `None`: unknown.
    pub resident: Option<Bytes>,
    /// The origin of the class.
    pub origin: Origin,
}

/// A process that was compared with the rules.
#[derive(Debug)]
struct Examined {
    start: u64,
    rule: Option<Arc<ProcessRule>>,
    examined: Monotonic,
    seen: u32,
}

/// Finds processes by rules and by statements.
#[derive(Debug, Default)]
pub struct Finder {
    rules: Vec<Arc<ProcessRule>>,
    known: HashMap<u32, Examined>,
    scans: u32,
    buffer: Vec<u8>,
}

/// The processes that a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All processes except kernel threads.
    All,
    /// Processes that match a rule, and those with a statement about them or their group.
    Relevant,
}

impl Finder {
    /// Makes a finder with these rules.
    pub fn new(rules: &[ProcessRule]) -> Finder {
        Finder { rules: rules.iter().cloned().map(Arc::new).collect(), ..Finder::default() }
    }

    /// Returns false if no process can be relevant, so that a search is not needed.
    pub fn may_find_any(&self, statements: &StatementStore) -> bool {
        !self.rules.is_empty() || !statements.processes().is_empty() || !statements.groups().is_empty()
    }

    /// Finds the wanted processes. A process that ends meanwhile is left out.
    pub fn find(
        &mut self,
        kernel: &Kernel,
        tree: &Tree,
        statements: &StatementStore,
        wanted: Wanted,
    ) -> Result<Vec<ProcessSample>> {
        self.scans = self.scans.wrapping_add(1);
        let now = kernel.clock.monotonic();
        let groups: HashMap<PathBuf, usize> =
            (0..tree.nodes().len()).map(|index| (tree.path_at(index), index)).collect();
        let mut relevant = pids_in_background_groups(kernel, tree)?;
        relevant.extend(statements.processes().keys().map(|id| id.pid));
        let pids: Vec<u32> = match wanted {
            Wanted::Relevant if self.rules.is_empty() => relevant.iter().copied().collect(),
            _ => process::read_all(kernel)?,
        };
        let mut found = Vec::new();
        for pid in pids {
            let is_relevant = wanted == Wanted::All || relevant.contains(&pid);
            if !is_relevant && self.matched_no_rule_lately(pid, now) {
                continue;
            }
            match self.find_rule(kernel, pid, now) {
                Ok((process, rule)) if is_relevant || rule.is_some() => {
                    found.extend(sample(tree, &groups, statements, &process, rule.as_ref(), &mut self.buffer));
                }
                // The process has ended, or may not be read.
                _ => {}
            }
        }
        let this_scan = self.scans;
        self.known.retain(|_, known| known.seen == this_scan);
        Ok(found)
    }

    /// Returns true if the process with this id matched no rule a short time ago.
    fn matched_no_rule_lately(&mut self, pid: u32, now: Monotonic) -> bool {
        match self.known.get_mut(&pid) {
            Some(known) if known.rule.is_none() && now.since(known.examined) < RULE_LIFETIME => {
                known.seen = self.scans;
                true
            }
            _ => false,
        }
    }

    /// Opens the process and returns the rule that it matches: the last of several.
    fn find_rule(&mut self, kernel: &Kernel, pid: u32, now: Monotonic) -> Result<(Process, Option<Arc<ProcessRule>>)> {
        let process = Process::open(kernel, pid)?;
        let start = process.stat().starttime;
        if let Some(known) = self.known.get_mut(&pid)
            && known.start == start
            && now.since(known.examined) < RULE_LIFETIME
        {
            known.seen = self.scans;
            return Ok((process, known.rule.clone()));
        }
        let rule = matching_rule(&self.rules, &process).cloned();
        self.known.insert(pid, Examined { start, rule: rule.clone(), examined: now, seen: self.scans });
        Ok((process, rule))
    }
}

/// Returns the rule that a process matches: the last of several.
fn matching_rule<'r, R: Borrow<ProcessRule>>(rules: &'r [R], process: &Process) -> Option<&'r R> {
    let facts = Facts::new(process);
    // If the match is unknown, a background rule does not count, and any other rule does.
    let fits = |rule: &ProcessRule| facts.fit(rule).unwrap_or(rule.class != Class::Background);
    rules.iter().rev().find(|&rule| fits(rule.borrow()))
}

/// The facts that rules compare. Each is read when the first rule needs it.
struct Facts<'a> {
    process: &'a Process,
    exe: OnceCell<Option<PathBuf>>,
    command: OnceCell<Option<String>>,
    group: OnceCell<Option<PathBuf>>,
    uid: OnceCell<Option<u32>>,
    adj: OnceCell<Option<i16>>,
}

impl<'a> Facts<'a> {
    fn new(process: &'a Process) -> Self {
        Facts {
            process,
            exe: OnceCell::new(),
            command: OnceCell::new(),
            group: OnceCell::new(),
            uid: OnceCell::new(),
            adj: OnceCell::new(),
        }
    }

    /// Returns true if the rule matches; `None`: unknown.
    fn fit(&self, rule: &ProcessRule) -> Option<bool> {
        let dir = self.process.dir();
        let mut known = true;
        let mut all = true;
        let mut ask = |fits: Option<bool>| match fits {
            Some(fits) => all &= fits,
            None => known = false,
        };
        if let Some(range) = &rule.oom_score_adj {
            ask(self.adj.get_or_init(|| process::read_oom_score_adj(dir).ok()).map(|adj| range.contains(&adj)));
        }
        if let Some(uid) = rule.uid {
            let read = || Status::read(dir).ok().and_then(|status| status.uid);
            ask(self.uid.get_or_init(read).map(|own| own == uid));
        }
        if let Some(glob) = &rule.group {
            let group = self.group.get_or_init(|| self.process.read_group().ok().flatten());
            ask(group.as_deref().map(|path| glob.matches(&parts(path))));
        }
        if let Some(glob) = &rule.exe {
            let exe = self.exe.get_or_init(|| process::read_program(dir).ok().flatten());
            ask(exe.as_deref().map(|path| glob.matches(&parts(path))));
        }
        if rule.command.is_some() {
            let command = self.command.get_or_init(|| process::read_command(dir).ok());
            ask(command.as_deref().map(|command| rule.fits_command(command)));
        }
        match (all, known) {
            (false, _) => Some(false),
            (true, true) => Some(true),
            (true, false) => None,
        }
    }
}

/// Returns the class of one process by these rules and statements, and its origin.
pub fn classify(
    rules: &[ProcessRule],
    tree: &Tree,
    statements: &StatementStore,
    process: &Process,
) -> ProcessAssignment {
    let rule = matching_rule(rules, process).cloned().map(Arc::new);
    let group = process.read_group().ok().flatten();
    let node = group.as_deref().and_then(|group| tree.find(group));
    let of_group = node.and_then(|node| tree.assignment(node)).zip(group.as_deref());
    ProcessAssignment::of_process(id(process), of_group, rule.as_ref(), statements)
}

/// Returns all processes in groups that a statement makes background.
fn pids_in_background_groups(kernel: &Kernel, tree: &Tree) -> Result<HashSet<u32>> {
    let root = kernel.cgroup()?;
    let mut pids = HashSet::new();
    for (index, node) in tree.nodes().iter().enumerate() {
        let is_background =
            |assignment: &Assignment| assignment.origin == class::Origin::Stated(Presence::Background, None);
        if !tree.assignment(node).is_some_and(is_background) {
            continue;
        }
        match Group::open(root, &tree.path_at(index)).and_then(|group| process::read_pids(group.dir())) {
            Ok(found) => pids.extend(found),
            Err(err) if err.is_gone() => {}
            Err(err) => return Err(err),
        }
    }
    Ok(pids)
}

/// Reads the other facts of a process; `None`: it has ended, or is a kernel thread without memory.
fn sample(
    tree: &Tree,
    groups: &HashMap<PathBuf, usize>,
    statements: &StatementStore,
    process: &Process,
    rule: Option<&Arc<ProcessRule>>,
    buffer: &mut Vec<u8>,
) -> Option<ProcessSample> {
    let holds = ProcessMemory::read(process.dir(), buffer).ok()?;
    holds.resident?;
    let (id, stat) = (id(process), process.stat());
    let group = process.read_group().ok().flatten();
    let index = group.as_ref().and_then(|group| groups.get(group)).copied();
    let node = index.map(|index| &tree.nodes()[index]);
    let account = index.map(|index| accounting(tree, index));
    let of_group = node.and_then(|node| tree.assignment(node)).zip(group.as_deref());
    let assignment = ProcessAssignment::of_process(id, of_group, rule, statements);
    Some(ProcessSample {
        process: rank::Process {
            id,
            class: assignment.class,
            stated: assignment.may_hint,
            oom_score_adj: process::read_oom_score_adj(process.dir()).ok(),
            cpu: Some(stat.cpu()),
            anon: holds.anon,
            swapped: holds.swapped,
            unfocused: of_group.and_then(|(assignment, _)| assignment.unfocused),
            room: index.and_then(|index| room(tree, index)),
        },
        name: stat.comm.to_string_lossy().into_owned(),
        group: group.unwrap_or_default(),
        account: account.filter(|&index| index != 0).map(|index| tree.path_at(index)),
        resident: holds.resident,
        origin: assignment.origin,
    })
}

/// Returns the group to which memory of this group's processes is charged. Without a memory
/// controller that is the group above. 0 is the root, which has no account.
fn accounting(tree: &Tree, mut index: usize) -> usize {
    while index != 0 && tree.nodes()[index].current.is_none() {
        index = tree.nodes()[index].parent as usize;
    }
    index
}

/// Returns the bytes that protection and keep rule leave for reclaim of the group to which memory of
/// this group's processes is charged; `None`: unknown.
fn room(tree: &Tree, index: usize) -> Option<Bytes> {
    let account = accounting(tree, index);
    let mut below = index;
    while below != account {
        // It may have a memory controller.
        if !tree.is_readable(&tree.nodes()[below]) {
            return None;
        }
        below = tree.nodes()[below].parent as usize;
    }
    let node = &tree.nodes()[account];
    let Some(current) = node.current else { return Some(Bytes::MAX) };
    let keep = tree.assignment(node)?.keep.map_or(Bytes::ZERO, |keep| keep.of(current));
    Some((current - keep).min(node.unprotected?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{TestClock, add_group, add_process, classifier, kernel, node, scan, set};
    use crate::groups::class::Classifier;
    use crate::groups::xattrs::Attributes;
    use omr_config::{process_rules, rules};
    use omr_testkit::FakeRoot;

    /// A group whose `memory.current` cannot be read has a memory controller all the same, and protection.
    #[test]
    fn a_group_that_cannot_be_read_leaves_no_room() {
        let read = |text: &[(&str, &str)]| {
            let root = FakeRoot::new().group("a", &[("memory.current", "8192\n")]).group("a/b", text);
            if text.is_empty() {
                std::fs::create_dir(root.resolve("sys/fs/cgroup/a/b/memory.current")).expect("no file");
            }
            let kernel = Kernel::open(root.path()).expect("a kernel");
            let mut tree = Tree::default();
            tree.scan(&kernel, &Classifier::new(&rules(""), Path::new("omr")), false).expect("a scan");
            let index = (0..tree.nodes().len()).find(|index| tree.path_at(*index) == Path::new("a/b"));
            room(&tree, index.expect("the group"))
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("memory.current", "4096\n"), ("memory.low", "4096\n")]), Some(Bytes::ZERO));
        // The control: without a memory controller the group above decides.
        assert_eq!(read(&[("cgroup.procs", "")]), Some(Bytes(8192)));
    }

    #[test]
    fn more_care_always_counts_and_less_only_where_nothing_protects() {
        let groups =
            rules("[[group]]\nmatch = 'fg'\nclass = 'foreground'\n[[group]]\nmatch = 'bg'\nclass = 'background'");
        let classifier = Classifier::new(&groups, Path::new("omr"));
        let rule = |class: &str| process_rules(&format!("[[process]]\nexe = '/a'\nclass = '{class}'")).remove(0);
        let (away, stays) = (Arc::new(rule("background")), Arc::new(rule("protected")));
        let (back, fore) = (Some(Presence::Background), Some(Presence::Foreground));
        use Class::{Background, Foreground, Protected};
        for (group, rule, statements, class, asked) in [
            ("bg", None, None, Background, false),
            ("other", None, None, Background, false),
            ("bg", Some(&away), None, Background, true),
            ("other", None, back, Background, true),
            ("other", Some(&away), fore, Foreground, false),
            ("other", Some(&stays), back, Protected, false),
            ("other", Some(&stays), fore, Protected, false),
            ("fg", Some(&away), back, Foreground, false),
            ("fg", Some(&stays), None, Protected, false),
            ("init.scope", Some(&away), back, Protected, false),
        ] {
            let path = Path::new(group);
            let assignment = classifier.assign(path, &Assignment::default(), &Attributes::none(0));
            let of_process = ProcessAssignment::of(Some((&assignment, path)), rule, statements);
            assert_eq!((of_process.class, of_process.may_hint), (class, asked), "{group} {rule:?} {statements:?}");
        }
        // A present user may use any process, but not each process at every moment.
        let path = Path::new("user-1000.slice");
        let mut assignment = classifier.assign(path, &Assignment::default(), &Attributes::none(0));
        assert!(assignment.apply_statement(Presence::Present, None));
        for (rule, statements, class, asked) in [
            (None, None, Foreground, false),
            (Some(&away), None, Background, true),
            (Some(&away), fore, Foreground, false),
            (None, back, Background, true),
            (Some(&stays), back, Protected, false),
        ] {
            let of_process = ProcessAssignment::of(Some((&assignment, path)), rule, statements);
            assert_eq!((of_process.class, of_process.may_hint), (class, asked), "{rule:?} {statements:?}");
        }
        // The group was made after the last scan.
        assert_eq!(ProcessAssignment::of(None, Some(&away), back).class, Protected);
    }

    #[test]
    fn a_number_is_a_process_and_everything_else_a_group() {
        let named = |text: &str| pid(Path::new(text)).map(|pid| pid.map_err(|err| err.to_string()));
        assert_eq!(named("4242"), Some(Ok(4242)));
        for group in ["./7", "7a", "", "-1", "user.slice"] {
            assert_eq!(named(group), None, "{group:?}");
        }
        let error = "there is no process 99999999999; a group of that name is ./99999999999";
        assert_eq!(named("99999999999"), Some(Err(error.into())));
    }

    /// A browser and an editor in one group, a job in another, and a kernel thread.
    fn machine() -> FakeRoot {
        let root = FakeRoot::new();
        add_group(&root, "app.scope", Bytes::mib(8));
        add_group(&root, "jobs", Bytes::mib(4));
        add_process(&root, 101, "browser", "app.scope");
        add_process(&root, 102, "editor", "app.scope");
        add_process(&root, 103, "job", "jobs");
        root.write("proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 0 0 0 1\n");
        root.write("proc/2/status", "Name:\tkthreadd\n");
        root
    }

    fn pids(found: &[ProcessSample]) -> Vec<u32> {
        let mut pids: Vec<u32> = found.iter().map(|sample| sample.process.id.pid).collect();
        pids.sort_unstable();
        pids
    }

    fn no_statements(root: &FakeRoot) -> StatementStore {
        StatementStore::load(&root.resolve("statements.json"), "boot").expect("statements")
    }

    const EDITOR: &str = "[[process]]\nexe = '/usr/bin/editor'\nclass = 'background'";

    #[test]
    fn all_processes_are_those_with_memory_and_the_relevant_ones_have_a_rule_or_a_statement() {
        let root = machine();
        let (kernel, tree, mut statements) = (kernel(&root), scan(&root, ""), no_statements(&root));
        let mut finder = Finder::new(&process_rules(EDITOR));
        let find = |finder: &mut Finder, statements: &StatementStore, wanted| {
            pids(&finder.find(&kernel, &tree, statements, wanted).expect("processes"))
        };
        assert_eq!(find(&mut finder, &statements, Wanted::All), [101, 102, 103]);
        assert_eq!(find(&mut finder, &statements, Wanted::Relevant), [102]);
        let mut without_rules = Finder::new(&[]);
        assert!(!without_rules.may_find_any(&statements) && finder.may_find_any(&statements));
        assert_eq!(find(&mut without_rules, &statements, Wanted::Relevant), [0; 0]);
        let job = ProcessId { pid: 103, start: 1103 };
        statements.set_process(job, Some(Presence::Background)).expect("saved");
        assert!(without_rules.may_find_any(&statements));
        assert_eq!(find(&mut without_rules, &statements, Wanted::Relevant), [103]);
        assert_eq!(find(&mut finder, &statements, Wanted::Relevant), [102, 103]);
    }

    #[test]
    fn a_statement_about_a_group_makes_its_processes_relevant() {
        let root = machine();
        set(&root, "app.scope", "cgroup.procs", "101\n102\n");
        set(&root, "jobs", "cgroup.procs", "103\n");
        let (kernel, classifier) = (kernel(&root), classifier(""));
        let (mut tree, mut statements) = (scan(&root, ""), no_statements(&root));
        let id = node(&tree, "app.scope").id;
        statements.set_group(id, Some(Presence::Background)).expect("saved");
        crate::inventory::apply_statements(&kernel, &classifier, &mut tree, &statements).expect("applied");
        let mut finder = Finder::new(&[]);
        assert!(finder.may_find_any(&statements));
        let found = finder.find(&kernel, &tree, &statements, Wanted::Relevant).expect("processes");
        assert_eq!(pids(&found), [101, 102]);
        assert!(found.iter().all(|sample| sample.process.stated && sample.process.class == Class::Background));
        // The group has gone since the scan.
        root.remove("sys/fs/cgroup/app.scope");
        assert_eq!(pids(&finder.find(&kernel, &tree, &statements, Wanted::Relevant).expect("processes")), [0; 0]);
    }

    #[test]
    fn a_process_is_compared_with_the_rules_again_after_half_a_minute() {
        let root = machine();
        let (clock, tree, statements) = (TestClock::default(), scan(&root, ""), no_statements(&root));
        let kernel = clock.kernel(&root);
        let mut finder = Finder::new(&process_rules(EDITOR));
        let mut find = || pids(&finder.find(&kernel, &tree, &statements, Wanted::Relevant).expect("processes"));
        let run = |pid: u32, program: &str| {
            root.remove(format!("proc/{pid}/exe"));
            add_process(&root, pid, program, "app.scope");
        };
        assert_eq!(find(), [102]);
        // Both run another program now. Their identity is the same.
        run(102, "browser");
        run(101, "editor");
        clock.pass(RULE_LIFETIME - Duration::from_nanos(1));
        assert_eq!(find(), [102]);
        clock.pass(Duration::from_nanos(1));
        assert_eq!(find(), [101]);
        // A new process of the same number is compared at once.
        run(101, "browser");
        root.write("proc/101/stat", "101 (b) S 1 1 1 0 -1 4194304 0 0 0 0 11 12 0 0 20 0 1 0 7777 0 390 1\n");
        assert_eq!(find(), [0; 0]);
    }

    #[test]
    fn a_rule_matches_when_each_of_its_keys_does() {
        let root = machine();
        let (kernel, tree, statements) = (kernel(&root), scan(&root, ""), no_statements(&root));
        let process = Process::open(&kernel, 101).expect("a process");
        let class = |keys: &str, class: &str| {
            let rules = process_rules(&format!("[[process]]\n{keys}\nclass = '{class}'"));
            classify(&rules, &tree, &statements, &process)
        };
        let all = "exe = '/usr/bin/*'\nuid = 1000\ngroup = 'app.scope'\ncommand = '*quiet'\noom_score_adj = '100..300'";
        assert!(class(all, "background").may_hint);
        assert_eq!(class(all, "protected").class, Class::Protected);
        for (one, other) in [
            ("/usr/bin/*", "/opt/*"),
            ("1000", "1001"),
            ("app.scope", "jobs"),
            ("*quiet", "*loud"),
            ("100..300", "201..300"),
        ] {
            let changed = class(&all.replace(one, other), "protected");
            assert_eq!((changed.class, changed.may_hint), (Class::Background, false), "{other}");
        }
        // What cannot be read matches a rule for more care, and none for less.
        root.remove("proc/101/oom_score_adj");
        assert!(!class(all, "background").may_hint);
        assert_eq!(class(all, "protected").class, Class::Protected);
        assert_eq!(class(&all.replace("1000", "1001"), "protected").class, Class::Background);
    }

    #[test]
    fn the_last_of_several_rules_counts_and_omr_itself_is_always_protected() {
        let root = machine();
        let own = std::process::id();
        add_process(&root, own, "omr", "app.scope");
        let (kernel, tree, statements) = (kernel(&root), scan(&root, ""), no_statements(&root));
        let rules = process_rules(
            "[[process]]\nexe = '/usr/bin/*'\nclass = 'protected'\n[[process]]\nexe = '/usr/bin/**'\nclass = 'background'",
        );
        let of = |pid: u32| {
            let process = Process::open(&kernel, pid).expect("a process");
            classify(&rules, &tree, &statements, &process)
        };
        assert_eq!((of(101).class, of(101).may_hint), (Class::Background, true));
        assert_eq!((of(own).class, of(own).origin), (Class::Protected, Origin::Vital));
    }

    #[test]
    fn memory_is_charged_to_the_next_group_with_a_controller_and_has_the_room_that_it_leaves() {
        let root = machine();
        root.write("sys/fs/cgroup/jobs/one/cgroup.procs", "");
        root.write("sys/fs/cgroup/bare/cgroup.procs", "");
        add_process(&root, 104, "nested", "jobs/one");
        add_process(&root, 105, "bare", "bare");
        add_process(&root, 106, "new", "made/after/the/scan");
        set(&root, "app.scope", "memory.low", "2097152\n");
        let rules = "[[group]]\nmatch = 'jobs'\nkeep = '1M'\n[[group]]\nmatch = 'app.scope'\nkeep = '1M'";
        let (kernel, tree, statements) = (kernel(&root), scan(&root, rules), no_statements(&root));
        let found = Finder::new(&[]).find(&kernel, &tree, &statements, Wanted::All).expect("processes");
        let of = |pid: u32| {
            let sample = found.iter().find(|sample| sample.process.id.pid == pid).expect("found");
            (sample.account.as_deref().and_then(Path::to_str), sample.process.room)
        };
        // Of 8 MiB, 2 are protected and 1 is kept: protection counts first.
        assert_eq!(of(101), (Some("app.scope"), Some(Bytes::mib(6))));
        assert_eq!(of(103), (Some("jobs"), Some(Bytes::mib(3))));
        assert_eq!(of(104), (Some("jobs"), Some(Bytes::mib(3))));
        assert_eq!(of(105), (None, Some(Bytes::MAX)));
        assert_eq!(of(106), (None, None));
        let sample = found.iter().find(|sample| sample.process.id.pid == 101).expect("found");
        let process = &sample.process;
        assert_eq!((sample.name.as_str(), sample.resident), ("browser", Some(Bytes::mib(2))));
        assert_eq!((process.anon, process.swapped), (Some(Bytes::mib(1)), Some(Bytes::kib(512))));
        assert_eq!((process.oom_score_adj, process.cpu), (Some(200), Some(Duration::from_millis(230))));
        // A group that is unknown is protected.
        let new = found.iter().find(|sample| sample.process.id.pid == 106).expect("found");
        assert_eq!((new.process.class, &new.origin), (Class::Protected, &Origin::Unknown));
    }
}
