//! The thread that looks at groups: makes the kernel note what they use, reads what they hold, and writes
//! samples of that to the history. A thread of its own, because nothing interrupts an aging, and a
//! disk may be slow: neither is to delay the loop or a sweep.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_engine::aging;
use omr_engine::aging::observe::{Observer, Watched};
use omr_history::{AGES, Cost, Idle, OnNode, Sample, Since, Store};
use omr_kernel::memcg::Group;
use omr_kernel::numa::{self, Nodes};
use omr_kernel::process::{Process, ProcessMemory};
use omr_kernel::psi::{self, Resource};
use omr_kernel::{Kernel, clock};
use omr_machine::processes;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::age::Bounds;
use omr_policy::rank::ProcessId;
use omr_policy::schedule::Due;
use omr_units::{Bytes, GroupId, Monotonic, Pages};

use super::thread::Thread;

/// A group to look at.
#[derive(Debug)]
pub struct Wanted {
    /// Its identity.
    pub id: GroupId,
    /// Where it was at the last scan; empty: the machine.
    pub path: PathBuf,
    /// The largest size that was seen since the last sample.
    pub peak: Bytes,
    /// It is aged for its rule and not with the others.
    pub older_than: Option<Duration>,
}

/// What is to be done.
pub struct Order {
    /// Ages those without a rule, takes a sample of all, or both.
    pub due: Due,
    /// Ages those whose rules say so.
    pub ages: Vec<Duration>,
    /// Of these groups.
    pub groups: Vec<Wanted>,
    /// Processes of which is wanted what they have not used, and the groups that account for them.
    pub processes: Vec<(ProcessId, PathBuf)>,
    /// As large as the history may be; zero: no sample is kept.
    pub size: Bytes,
}

/// What a process had not used when its group was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Cold {
    /// When.
    pub at: Monotonic,
    /// Its anonymous memory then, without as much as it had locked.
    pub memory: Bytes,
    /// How much of it was not used for as long as [`AGES`] say.
    pub bounds: [Bounds; AGES.len()],
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// What was to be done.
    pub due: Due,
    /// The same.
    pub ages: Vec<Duration>,
    /// How much of the groups that were aged for their rules is as old as those say, as far as that is known; or why
    /// it never is.
    pub old: Result<Vec<(GroupId, Option<Bytes>)>, String>,
    /// CPU time of this thread.
    pub cost: Duration,
    /// Generations made.
    pub agings: u64,
    /// The processes of which is known what they have not used.
    pub cold: Vec<(ProcessId, Cold)>,
}

/// The thread.
pub type Looker = Thread<Order, Report>;

/// Starts the thread. Samples go to this directory, agings through this actuator.
pub fn start(kernel: Arc<Kernel>, dir: PathBuf, actuator: Box<dyn Actuator>) -> Result<Looker> {
    Thread::start("omr-look", move |inbox| {
        let boot = kernel.read_boot_id().unwrap_or_default();
        let mut eye = Eye::new(&kernel, Store::new(&dir, &boot, Bytes::ZERO), boot.into(), actuator);
        inbox.each(|order, stop| eye.look(order, stop));
    })
}

/// Counters of a group at its last sample.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Monotonic,
    refaults_anon: Option<Pages>,
    refaults_file: Option<Pages>,
    swapped_in: Option<Pages>,
    stalled: Option<Duration>,
}

/// What the thread knows.
struct Eye<'a> {
    kernel: &'a Kernel,
    actuator: Box<dyn Actuator>,
    observer: Observer<'a>,
    store: Store,
    boot: std::rc::Rc<str>,
    counters: HashMap<GroupId, Counters>,
    /// What everything had cost at the samples before.
    noted: Cost,
    /// The machine has several nodes with memory.
    has_nodes: bool,
    /// What was said last of why ages are not known.
    missing: Option<String>,
    buffer: Vec<u8>,
}

impl<'a> Eye<'a> {
    fn new(kernel: &'a Kernel, store: Store, boot: std::rc::Rc<str>, actuator: Box<dyn Actuator>) -> Self {
        let observer = Observer::new(kernel);
        let (counters, noted) = (HashMap::new(), Cost::default());
        Eye {
            kernel,
            actuator,
            observer,
            store,
            boot,
            counters,
            noted,
            has_nodes: false,
            missing: None,
            buffer: Vec::new(),
        }
    }

    fn look(&mut self, order: Order, stop: &Flag) -> Report {
        let cpu = clock::read_thread_cpu();
        let agings = self.observer.cost().agings;
        let (mut old, mut cold) = (Ok(Vec::new()), Vec::new());
        if order.due.aging || !order.ages.is_empty() {
            let held: Vec<_> = order.processes.iter().map(|(id, _)| self.held(*id)).collect();
            old = self.age(&order, stop).map_err(|err| format!("{err:#}"));
            if let Err(why) = &old {
                // What was known may not hold any more.
                self.observer.look_at(std::iter::empty());
                if self.missing.as_ref() != Some(why) {
                    log::info!("how long memory was not used is not known: {why}");
                }
            }
            self.missing = old.as_ref().err().cloned();
            // A group with a rule was not looked at just now.
            let by_rule = |group: &Path| order.groups.iter().any(|of| of.older_than.is_some() && of.path == group);
            let processes = order.processes.iter().zip(held).filter(|((_, group), _)| !by_rule(group));
            cold.extend(processes.filter_map(|((id, group), held)| Some((*id, self.cold(*id, group, held?)?))));
        }
        if order.due.sample {
            let samples = self.samples(&order.groups);
            if order.size > Bytes::ZERO {
                self.store.resize(order.size);
                self.store.add(clock::read_wall(), &samples);
            }
        }
        let cost = clock::read_thread_cpu().saturating_sub(cpu);
        let agings = self.observer.cost().agings - agings;
        Report { due: order.due, ages: order.ages, old, cost, agings, cold }
    }

    /// Anonymous memory of a process that is on the kernel's lists: surely all that is not locked.
    fn held(&mut self, id: ProcessId) -> Option<Bytes> {
        let process = Process::open(self.kernel, id.pid).ok().filter(|process| processes::id(process) == id)?;
        let holds = ProcessMemory::read(process.dir(), &mut self.buffer).ok()?;
        Some(holds.anon? - holds.locked?)
    }

    /// What a process had not used, of what its group had not. `before`: what it held before the group was looked at.
    fn cold(&mut self, id: ProcessId, group: &Path, before: Bytes) -> Option<Cold> {
        let memory = self.held(id)?.min(before);
        let watched = self.observer.groups().iter().find(|watched| watched.path == group)?;
        let nodes = watched.nodes().map(|node| (node.at(), node.memory(), AGES.map(|age| node.idle(age))));
        let now = clock::read_monotonic();
        let idle = sum(nodes, now)?;
        let bounds = idle.bounds.map(|bounds| bounds.of_part(idle.memory, memory));
        Some(Cold { at: now - idle.ago, memory, bounds })
    }

    /// What is old of the groups that are aged for their rules.
    fn age(&mut self, order: &Order, stop: &Flag) -> Result<Vec<(GroupId, Option<Bytes>)>> {
        if let Some(missing) = aging::missing(self.kernel)? {
            anyhow::bail!(missing.says());
        }
        self.observer.look_at(order.groups.iter().map(|group| (group.id, group.path.as_path())));
        let by_rule = |wanted: &&Wanted| wanted.older_than.is_some_and(|age| order.ages.contains(&age));
        let by_rule: HashMap<GroupId, Option<Duration>> =
            order.groups.iter().filter(by_rule).map(|wanted| (wanted.id, wanted.older_than)).collect();
        let of_others: HashSet<GroupId> = match order.due.aging {
            true => order.groups.iter().filter(|wanted| wanted.older_than.is_none()).map(|wanted| wanted.id).collect(),
            false => HashSet::new(),
        };
        let is_chosen = |id| by_rule.contains_key(&id) || of_others.contains(&id);
        self.observer.pass_over(&mut *self.actuator, stop, is_chosen)?;
        // Else that is 9 KiB of a group, and all of it locked in memory.
        self.observer.keep(AGES[AGES.len() - 1]);
        let page = self.kernel.page();
        let old = |group: &Watched| Some((group.id, group.old((*by_rule.get(&group.id)?)?, page)));
        Ok(self.observer.groups().iter().filter_map(old).collect())
    }

    fn samples(&mut self, groups: &[Wanted]) -> Vec<Sample> {
        let time = Duration::from_secs(clock::read_wall().as_secs());
        // One may be added to a machine that runs.
        self.has_nodes = Nodes::read(self.kernel).is_ok_and(|nodes| nodes.with_memory.len() > 1);
        let mut samples: Vec<Sample> = groups.iter().filter_map(|group| self.sample(time, group)).collect();
        let cost = self.cost();
        samples.iter_mut().for_each(|sample| sample.cost = Some(cost));
        let mut ids: Vec<GroupId> = groups.iter().map(|group| group.id).collect();
        ids.sort_unstable();
        self.counters.retain(|id, _| ids.binary_search(id).is_ok());
        samples
    }

    /// Since the samples before.
    fn cost(&mut self) -> Cost {
        let now = Cost { agings: self.observer.cost().agings, cpu: clock::read_thread_cpu() };
        let before = std::mem::replace(&mut self.noted, now);
        Cost { agings: now.agings - before.agings, cpu: now.cpu.saturating_sub(before.cpu) }
    }

    /// `None`: the group is gone.
    fn sample(&mut self, time: Duration, wanted: &Wanted) -> Option<Sample> {
        let group = Group::open(self.kernel.cgroup().ok()?, &wanted.path).ok()?;
        if group.id() != wanted.id {
            return None;
        }
        let stat = group.read_stat(&mut self.buffer).ok()?;
        let (anon, file) = (stat.anon?, stat.file?);
        let (current, swap, stalled) = if group.is_root() {
            let swap = SwapSpace::read(self.kernel).map(|swap| swap.total - swap.free);
            let stalled = psi::read_some_total(&self.kernel.proc, Resource::Memory, &mut self.buffer);
            (anon + file, swap, stalled)
        } else {
            let swap = group.read_swap_current(&mut self.buffer).ok();
            let stalled = psi::read_group_some_total(group.dir(), Resource::Memory, &mut self.buffer);
            (group.read_current(&mut self.buffer).ok()?, swap, stalled)
        };
        let counters = Counters {
            at: clock::read_monotonic(),
            refaults_anon: stat.workingset_refault_anon,
            refaults_file: stat.workingset_refault_file,
            swapped_in: stat.pswpin,
            stalled,
        };
        let before = self.counters.insert(wanted.id, counters);
        Some(Sample {
            time,
            boot: std::rc::Rc::clone(&self.boot),
            group: wanted.path.as_path().into(),
            id: wanted.id,
            current,
            peak: wanted.peak.max(current),
            anon,
            file,
            shmem: stat.shmem.unwrap_or_default(),
            swap,
            idle: self.idle(wanted, None, stat.swap_backed().unwrap_or_default(), counters.at),
            since: before.map(|before| self.since(before, counters)),
            nodes: self.nodes(wanted, &group, counters.at),
            cost: None,
        })
    }

    /// What is known of the group and those below it on each node where they hold something, where there are several.
    fn nodes(&self, wanted: &Wanted, group: &Group, now: Monotonic) -> Vec<OnNode> {
        if !self.has_nodes {
            return Vec::new();
        }
        let nodes = numa::read_group(group).unwrap_or_default();
        let holds_something = nodes.into_iter().filter(|held| held.anon + held.file > Bytes::ZERO);
        let idle = |held: &numa::OnNode| self.idle(wanted, Some(held.node), held.anon + held.shmem, now);
        holds_something.map(|held| OnNode { idle: idle(&held), held }).collect()
    }

    fn since(&self, before: Counters, now: Counters) -> Since {
        let page = self.kernel.page();
        let pages =
            |before: Option<Pages>, now: Option<Pages>| Some(Pages(now?.0.saturating_sub(before?.0)).bytes(page));
        Since {
            over: now.at.since(before.at),
            refaults_anon: pages(before.refaults_anon, now.refaults_anon),
            refaults_file: pages(before.refaults_file, now.refaults_file),
            swapped_in: pages(before.swapped_in, now.swapped_in),
            stalled: now.stalled.zip(before.stalled).map(|(now, before)| now.saturating_sub(before)),
        }
    }

    /// What is known of the group and those below it, which hold so much: on this node, or on all.
    fn idle(&self, wanted: &Wanted, node: Option<u32>, held: Bytes, now: Monotonic) -> Option<Idle> {
        let is_part = |group: &&Watched| group.path.starts_with(&wanted.path);
        let parts = self.observer.groups().iter().filter(is_part).flat_map(Watched::nodes);
        let parts = parts.filter(|part| node.is_none_or(|node| node == part.node));
        sum(parts.map(|part| (part.at(), part.memory(), AGES.map(|age| part.idle(age)))), now)
            .map(|idle| of_all(idle, held))
    }
}

/// Of what generations had, the same of all that a group and those below it hold. Of the rest nothing is known: it is
/// locked, was allocated after the aging, or is in groups that are too small or too many and were not looked at.
fn of_all(mut idle: Idle, held: Bytes) -> Idle {
    let unseen = held - idle.memory;
    idle.memory += unseen;
    idle.bounds.iter_mut().for_each(|bounds| bounds.most += unseen);
    idle
}

/// Of several groups or nodes together; `None` when none of them was ever aged.
fn sum(parts: impl Iterator<Item = (Option<Monotonic>, Bytes, [Bounds; AGES.len()])>, now: Monotonic) -> Option<Idle> {
    let mut idle: Option<Idle> = None;
    for (at, memory, bounds) in parts {
        let Some(at) = at else { continue };
        let all = idle.get_or_insert_with(|| Idle {
            ago: Duration::ZERO,
            memory: Bytes::ZERO,
            bounds: [Bounds::default(); AGES.len()],
        });
        all.ago = all.ago.max(now.since(at));
        all.memory += memory;
        for (sum, bounds) in all.bounds.iter_mut().zip(bounds) {
            *sum += bounds;
        }
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_aged_is_unknown_and_the_oldest_look_counts() {
        let bounds = |least, most| [Bounds { least: Bytes(least), most: Bytes(most) }; AGES.len()];
        let now = Monotonic(9_000_000_000);
        assert_eq!(sum([(None, Bytes(5), bounds(1, 2))].into_iter(), now), None);
        let parts = [
            (Some(Monotonic(8_000_000_000)), Bytes(10), bounds(1, 2)),
            (None, Bytes(5), bounds(1, 2)),
            (Some(Monotonic(4_000_000_000)), Bytes(20), bounds(3, 5)),
        ];
        let idle = sum(parts.into_iter(), now).expect("ages");
        assert_eq!(idle, Idle { ago: Duration::from_secs(5), memory: Bytes(30), bounds: bounds(4, 7) });
    }

    #[test]
    fn what_a_group_holds_beyond_its_generations_may_be_used() {
        let bounds = |least, most| [Bounds { least: Bytes(least), most: Bytes(most) }; AGES.len()];
        let idle = |memory, bounds| Idle { ago: Duration::ZERO, memory: Bytes(memory), bounds };
        assert_eq!(of_all(idle(30, bounds(4, 7)), Bytes(50)), idle(50, bounds(4, 27)));
        // Freed since the aging, or in swap cache without a process that has it mapped.
        assert_eq!(of_all(idle(30, bounds(4, 7)), Bytes(20)), idle(30, bounds(4, 7)));
    }
}
