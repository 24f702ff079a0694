//! Processes: their class and where it comes from, and those that may be hinted away.

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
use omr_kernel::{Kernel, Result, clock};
use omr_policy::Class;
use omr_policy::rank::{self, ProcessId};
use omr_policy::statement::Presence;
use omr_units::{Bytes, Monotonic};

use crate::groups::class::{self, Assignment};
use crate::groups::tree::{Node, Tree};
use crate::statements::StatementStore;

/// Whether a rule fits a process is looked at again after this time: it may run another program by then, or be in
/// another group.
const RULE_LIFETIME: Duration = Duration::from_secs(30);

/// The process that a user names by a number, which may be larger than any process's; anything else names a group, as
/// does `./7`.
pub fn pid(target: &Path) -> Option<anyhow::Result<u32>> {
    let digits = target.to_str().filter(|text| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()))?;
    Some(digits.parse().map_err(|_| no_process(digits)))
}

/// Where a number may be a process or a group.
pub fn no_process(digits: &str) -> anyhow::Error {
    Exit::Failed.error(format!("there is no process {digits}; a group of that name is ./{digits}"))
}

/// The identity of a process.
pub fn id(process: &Process) -> ProcessId {
    ProcessId { pid: process.stat().pid, start: process.stat().starttime }
}

/// Where the class of a process comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From its group.
    Group(String),
    /// Its group is not known, or it is in none.
    Unknown,
    /// A rule for processes.
    Rule(Arc<ProcessRule>),
    /// Somebody said so.
    Stated(Presence),
    /// It is the first process, or omr itself.
    Vital,
}

/// `matched exe "/usr/bin/cat" in /etc/omr/omr.toml:14`
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Group(why) => f.write_str(why),
            Origin::Unknown => f.write_str("nothing is known of its group"),
            Origin::Rule(rule) => write!(f, "matched {rule}"),
            Origin::Stated(word) => write!(f, "omr {}", word.class().name()),
            Origin::Vital => f.write_str("the first process and omr itself are always protected"),
        }
    }
}

/// Class of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAssignment {
    /// Its class.
    pub class: Class,
    /// It may be hinted away: a rule for processes says so, or somebody.
    pub may_hint: bool,
    /// Where that comes from.
    pub origin: Origin,
}

impl ProcessAssignment {
    /// From what is said of its group (`None`: unknown), the rule that fits, and what is said of itself. More care
    /// counts always; less only where neither the group nor a rule protects.
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
        // Of a user who is at the machine it is not known which application is in use.
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

    /// Of the process with this identity: the first one and omr itself are always protected.
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

/// A process, as the policy sees it, and what people want to know besides.
#[derive(Clone, Debug)]
pub struct ProcessSample {
    /// For the policy.
    pub process: rank::Process,
    /// Its name, chosen by itself.
    pub name: String,
    /// Its group, below the mount.
    pub group: PathBuf,
    /// The group that accounts for its memory; `None`: the root, or unknown.
    pub account: Option<PathBuf>,
    /// Resident.
    pub resident: Option<Bytes>,
    /// Where its class comes from.
    pub origin: Origin,
}

/// A process that rules were compared with.
#[derive(Debug)]
struct Examined {
    start: u64,
    rule: Option<Arc<ProcessRule>>,
    examined: Monotonic,
    seen: u32,
}

/// Finds processes by the rules and by what was said.
#[derive(Debug, Default)]
pub struct Finder {
    rules: Vec<Arc<ProcessRule>>,
    known: HashMap<u32, Examined>,
    scans: u32,
    buffer: Vec<u8>,
}

/// Which processes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All but kernel threads.
    All,
    /// Those that a rule fits, or of which somebody said something, or of whose group.
    Relevant,
}

impl Finder {
    /// By these rules.
    pub fn new(rules: &[ProcessRule]) -> Finder {
        Finder { rules: rules.iter().cloned().map(Arc::new).collect(), ..Finder::default() }
    }

    /// Whether any process can be concerned; when not, there is nothing to look for.
    pub fn may_find_any(&self, statements: &StatementStore) -> bool {
        !self.rules.is_empty() || !statements.processes().is_empty() || !statements.groups().is_empty()
    }

    /// Looks at the processes that there are. Those that end meanwhile are left out.
    pub fn find(
        &mut self,
        kernel: &Kernel,
        tree: &Tree,
        statements: &StatementStore,
        wanted: Wanted,
    ) -> Result<Vec<ProcessSample>> {
        self.scans = self.scans.wrapping_add(1);
        let now = clock::read_monotonic();
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
                // It has ended, or may not be looked at.
                _ => {}
            }
        }
        let this_scan = self.scans;
        self.known.retain(|_, known| known.seen == this_scan);
        Ok(found)
    }

    /// Whether no rule fitted the process of this id a short time ago.
    fn matched_no_rule_lately(&mut self, pid: u32, now: Monotonic) -> bool {
        match self.known.get_mut(&pid) {
            Some(known) if known.rule.is_none() && now.since(known.examined) < RULE_LIFETIME => {
                known.seen = self.scans;
                true
            }
            _ => false,
        }
    }

    /// The process, and the rule that fits it: the last of several.
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

/// The rule that fits a process: the last of several.
fn matching_rule<'r, R: Borrow<ProcessRule>>(rules: &'r [R], process: &Process) -> Option<&'r R> {
    let facts = Facts::new(process);
    // What cannot be told is no leave to take anything, and no reason not to protect.
    let fits = |rule: &ProcessRule| facts.fit(rule).unwrap_or(rule.class != Class::Background);
    rules.iter().rev().find(|&rule| fits(rule.borrow()))
}

/// What rules ask of a process, read when the first one asks.
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

    /// Whether a rule fits; `None`: that cannot be told.
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

/// The class of one process, by these rules and by what was said, and where it comes from.
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

/// All processes in groups of which somebody said that they are in the background.
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

/// Reads the rest; `None`: the process has ended, or has no memory of its own, as a kernel thread.
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
            room: account.and_then(|index| room(tree, &tree.nodes()[index])),
        },
        name: stat.comm.to_string_lossy().into_owned(),
        group: group.unwrap_or_default(),
        account: account.filter(|&index| index != 0).map(|index| tree.path_at(index)),
        resident: holds.resident,
        origin: assignment.origin,
    })
}

/// The group that accounts for the memory of processes in this one: a group without a memory controller leaves that to
/// the one above it. 0 is the root, which nobody accounts for.
fn accounting(tree: &Tree, mut index: usize) -> usize {
    while index != 0 && tree.nodes()[index].current.is_none() {
        index = tree.nodes()[index].parent as usize;
    }
    index
}

/// What protection and keep rule of a group leave to be taken; `None`: unknown.
fn room(tree: &Tree, node: &Node) -> Option<Bytes> {
    let Some(current) = node.current else { return Some(Bytes::MAX) };
    let keep = tree.assignment(node)?.keep.map_or(Bytes::ZERO, |keep| keep.of(current));
    Some((current - keep).min(node.unprotected?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::class::Classifier;
    use crate::groups::xattrs::Attributes;
    use omr_config::{process_rules, rules};

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
        // A user who is there may use anything, but not each process at every moment.
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
        // A group that was made since the last scan.
        assert_eq!(ProcessAssignment::of(None, Some(&away), back).class, Protected);
    }
}
