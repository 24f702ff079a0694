//! The aging thread: ages groups, reads their counters, and adds samples to the history. It is a
//! thread of its own because nothing interrupts an aging, and a disk may be slow. Neither may delay
//! the loop or a sweep.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Actuator;
use omr_base::cancel::Flag;
use omr_base::paths;
use omr_engine::aging;
use omr_engine::aging::observe::{Node, ObservedGroup, Observer};
use omr_engine::prepare::image;
use omr_history::{AGES, Compressed, Cost, Idle, Machine, OnNode, Sample, Since, Store};
use omr_kernel::memcg::Group;
use omr_kernel::meminfo::Meminfo;
use omr_kernel::numa::{self, Nodes};
use omr_kernel::process::{Process, ProcessMemory};
use omr_kernel::psi::{self, Resource};
use omr_kernel::swap::{self, SwapDevice};
use omr_kernel::{Kernel, clock};
use omr_machine::processes;
use omr_machine::sample::snapshot::SwapSpace;
use omr_policy::age::{Bounds, Promotions};
use omr_policy::rank::ProcessId;
use omr_policy::schedule::Due;
use omr_units::{Bytes, GroupId, Monotonic, Pages};

use super::host::Host;
use super::own_reclaim::{OwnReclaim, Reclaimed};
use super::thread::Thread;
use super::thresholds::{self, Learned, Seen, Terms, Thresholds};

/// A group to age or to sample.
#[derive(Debug)]
pub struct Wanted {
    /// Its identity.
    pub id: GroupId,
    /// Its path at the last scan; empty: the machine.
    pub path: PathBuf,
    /// Its largest size since the last sample.
    pub peak: Bytes,
    /// The age that its rule asks for. It is then aged for its rule, and not with the others.
    pub older_than: Option<Duration>,
    /// Memory charged to it at the last scan, without that of groups below it.
    pub own: Bytes,
    /// Its threshold is learned.
    pub learns: bool,
    /// The age from which on its memory may be taken; `None`: any age, or none of its memory.
    pub threshold: Option<Duration>,
    /// Memory younger than its threshold was taken up to this moment; `None`: it was not.
    pub disturbed: Option<Monotonic>,
}

/// An order to the thread.
pub struct Order {
    /// Age the groups without a rule, take a sample of all groups, or both.
    pub due: Due,
    /// Age the groups whose rules ask for one of these ages.
    pub ages: Vec<Duration>,
    /// The groups.
    pub groups: Vec<Wanted>,
    /// The processes whose unused memory is wanted, and the groups to which their memory is
    /// charged.
    pub processes: Vec<(ProcessId, PathBuf)>,
    /// Memory that the daemon reclaimed since the last order.
    pub reclaimed: Vec<Reclaimed>,
    /// What learned thresholds must keep.
    pub terms: Terms,
    /// The largest size of the history; zero: samples are not kept.
    pub size: Bytes,
}

/// Memory that a process had not used when its group was aged.
#[derive(Clone, Copy, Debug)]
pub struct Cold {
    /// The time of the aging.
    pub at: Monotonic,
    /// The anonymous memory of the process then, less the amount that it had locked.
    pub memory: Bytes,
    /// The part of it that was not used for each age of [`AGES`].
    pub bounds: [Bounds; AGES.len()],
}

/// The result of an order.
#[derive(Debug)]
pub struct Report {
    /// As in the order.
    pub due: Due,
    /// As in the order.
    pub ages: Vec<Duration>,
    /// For each group that was aged for its rule, the memory that is as old as the rule says;
    /// `None`: unknown. The error is the reason why it can never be known.
    pub old: Result<Vec<(GroupId, Option<Bytes>)>, String>,
    /// CPU time of this thread since its last report, or since it began.
    pub cost: Duration,
    /// The number of generations made in that time.
    pub agings: u64,
    /// The processes whose unused memory is known.
    pub cold: Vec<(ProcessId, Cold)>,
    /// The learned thresholds.
    pub learned: Vec<Learned>,
}

/// The thread.
pub type AgingThread = Thread<Order, Report>;

/// Starts the thread. It writes samples and thresholds, and ages groups through `actuator`.
pub fn start(host: &Host, actuator: Box<dyn Actuator>) -> Result<AgingThread> {
    let (kernel, memory) = (Arc::clone(&host.kernel), Memory::load(host)?);
    Thread::start("omr-age", move |inbox| {
        let mut ager = Ager::new(&kernel, memory, actuator);
        inbox.each(|order, stop| ager.carry_out(order, stop));
        ager.end();
    })
}

/// Counters of a group at its last sample.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Monotonic,
    refaults_anon: Option<Pages>,
    refaults_file: Option<Pages>,
    swapped_in: Option<Pages>,
    stalled: psi::Totals,
}

/// What was learned before.
pub struct Memory {
    store: Store,
    thresholds: Thresholds,
    boot: String,
    /// The root of the file system.
    root: PathBuf,
}

impl Memory {
    /// Reads it.
    pub fn load(host: &Host) -> Result<Self> {
        Ok(Memory {
            store: Store::new(&paths::history(&host.root), &host.boot, Bytes::ZERO),
            thresholds: Thresholds::load(&host.state_dir, host.now())?,
            boot: host.boot.clone(),
            root: host.root.clone(),
        })
    }
}

/// Carries out orders, and remembers ages.
pub struct Ager<'a> {
    kernel: &'a Kernel,
    actuator: Box<dyn Actuator>,
    observer: Observer<'a>,
    store: Store,
    boot: std::rc::Rc<str>,
    root: PathBuf,
    counters: HashMap<GroupId, Counters>,
    own_reclaim: OwnReclaim,
    thresholds: Thresholds,
    /// The total cost at the last samples.
    sampled: Cost,
    /// The total cost at the last report.
    reported: Cost,
    /// The machine has several NUMA nodes with memory.
    has_nodes: bool,
    /// The reason in the log why ages are not known.
    obstacle: Option<String>,
    buffer: Vec<u8>,
}

impl<'a> Ager<'a> {
    /// Keeps what was learned.
    pub fn end(&mut self) {
        self.thresholds.save(clock::read_wall().as_secs());
    }

    /// Remembers no ages yet.
    pub fn new(kernel: &'a Kernel, memory: Memory, actuator: Box<dyn Actuator>) -> Self {
        let Memory { store, thresholds, boot, root } = memory;
        let observer = Observer::new(kernel);
        Ager {
            kernel,
            actuator,
            observer,
            store,
            boot: boot.into(),
            root,
            counters: HashMap::new(),
            own_reclaim: OwnReclaim::default(),
            thresholds,
            sampled: Cost::default(),
            reported: Cost::default(),
            has_nodes: false,
            obstacle: None,
            buffer: Vec::new(),
        }
    }

    /// All learned thresholds, for a test.
    #[cfg(test)]
    pub fn thresholds(&self) -> std::collections::BTreeMap<String, omr_policy::threshold::Threshold> {
        self.thresholds.all()
    }

    /// Carries out one order.
    pub fn carry_out(&mut self, mut order: Order, stop: &Flag) -> Report {
        let reclaimed = std::mem::take(&mut order.reclaimed);
        self.prepare_to_learn(&order, &reclaimed);
        self.own_reclaim.add(reclaimed, |group| last_agings(&self.observer, group));
        let (mut old, mut cold) = (Ok(Vec::new()), Vec::new());
        if order.due.aging || !order.ages.is_empty() {
            let before: Vec<_> = order.processes.iter().map(|(id, _)| self.unlocked(*id)).collect();
            old = self.age(&order, stop).map_err(|err| format!("{err:#}"));
            if let Err(why) = &old {
                // Earlier ages may be wrong now.
                self.observer.observe_only(std::iter::empty());
                if self.obstacle.as_ref() != Some(why) {
                    log::info!("ages of memory are not known: {why}");
                }
            }
            self.obstacle = old.as_ref().err().cloned();
            // A group with a rule was not aged just now.
            let by_rule = |group: &Path| order.groups.iter().any(|of| of.older_than.is_some() && of.path == group);
            let processes = order.processes.iter().zip(before).filter(|((_, group), _)| !by_rule(group));
            cold.extend(processes.filter_map(|((id, group), before)| Some((*id, self.cold(*id, group, before?)?))));
        }
        if order.due.sample {
            let samples = self.take_samples(&order.groups);
            if order.size > Bytes::ZERO {
                self.store.resize(order.size);
                self.store.add(clock::read_wall(), &samples);
            }
        }
        self.thresholds.save_if_due(clock::read_monotonic(), clock::read_wall().as_secs());
        let learned = self.thresholds.learned(&order.terms.slo, clock::read_monotonic());
        let total = self.total_cost();
        let Cost { agings, cpu: cost } = cost_since(&mut self.reported, total);
        Report { due: order.due, ages: order.ages, old, cost, agings, cold, learned }
    }

    /// Notes which groups' thresholds are learned, and what was reclaimed from them.
    fn prepare_to_learn(&mut self, order: &Order, reclaimed: &[Reclaimed]) {
        let learning = || order.groups.iter().filter(|wanted| wanted.learns);
        let groups = learning().map(|wanted| (wanted.id, wanted.path.as_path()));
        self.thresholds.retain(groups, &order.terms.slo, clock::read_wall().as_secs());
        learning().for_each(|wanted| self.thresholds.note_reclaimed(wanted.id, &wanted.path, reclaimed));
    }

    /// Moves the thresholds of groups that were aged just now.
    fn learn(&mut self, order: &Order, is_chosen: impl Fn(GroupId) -> bool) {
        for wanted in order.groups.iter().filter(|wanted| wanted.learns && is_chosen(wanted.id)) {
            let Some(counters) = self.read_counters(wanted) else { continue };
            let group = self.observer.groups().iter().find(|group| group.id == wanted.id);
            let Some(seen) = group.and_then(|group| Seen::new(group.nodes())) else { continue };
            self.thresholds.observe(wanted.id, &wanted.path, &seen, counters, &order.terms, wanted.disturbed);
        }
    }

    fn read_counters(&mut self, wanted: &Wanted) -> Option<thresholds::Counters> {
        let group = Group::open(self.kernel.cgroup().ok()?, &wanted.path).ok()?;
        if group.id() != wanted.id {
            return None;
        }
        let stat = group.read_stat(self.kernel, &mut self.buffer).ok()?;
        let swapped_in = stat.pswpin.or(stat.workingset_refault_anon);
        Some(thresholds::Counters {
            size: wanted.own,
            swapped_in: swapped_in.map(|pages| pages.bytes(self.kernel.page())),
            stalled: psi::Totals::read_group(group.dir(), Resource::Memory, &mut self.buffer).some,
        })
    }

    /// Anonymous memory of a process, less the amount that it has locked. All of it is on the
    /// kernel's lists.
    fn unlocked(&mut self, id: ProcessId) -> Option<Bytes> {
        let process = Process::open(self.kernel, id.pid).ok().filter(|process| processes::id(process) == id)?;
        let memory = ProcessMemory::read(process.dir(), &mut self.buffer).ok()?;
        Some(memory.anon? - memory.locked?)
    }

    /// The part of its group's unused memory that belongs to the process. `before`: memory of the
    /// process before the group was aged.
    fn cold(&mut self, id: ProcessId, group: &Path, before: Bytes) -> Option<Cold> {
        let memory = self.unlocked(id)?.min(before);
        let watched = self.observer.groups().iter().find(|watched| watched.path == group)?;
        let nodes = watched.nodes().map(|node| (node.at(), node.memory(), AGES.map(|age| node.idle(age))));
        let now = clock::read_monotonic();
        let idle = sum(nodes, now)?;
        let bounds = idle.bounds.map(|bounds| bounds.of_part(idle.memory, memory));
        Some(Cold { at: now - idle.ago, memory, bounds })
    }

    /// Ages the groups. Returns how much memory is as old as their rules say.
    fn age(&mut self, order: &Order, stop: &Flag) -> Result<Vec<(GroupId, Option<Bytes>)>> {
        if let Some(missing) = aging::missing(self.kernel)? {
            anyhow::bail!(missing.describe());
        }
        self.observer.observe_only(order.groups.iter().map(|group| (group.id, group.path.as_path())));
        let by_rule = |wanted: &&Wanted| wanted.older_than.is_some_and(|age| order.ages.contains(&age));
        let by_rule: HashMap<GroupId, Option<Duration>> =
            order.groups.iter().filter(by_rule).map(|wanted| (wanted.id, wanted.older_than)).collect();
        let of_others: HashSet<GroupId> = match order.due.aging {
            true => order.groups.iter().filter(|wanted| wanted.older_than.is_none()).map(|wanted| wanted.id).collect(),
            false => HashSet::new(),
        };
        let is_chosen = |id| by_rule.contains_key(&id) || of_others.contains(&id);
        self.observer.age_chosen(&mut *self.actuator, stop, is_chosen)?;
        self.learn(order, is_chosen);
        // All of it is locked in memory: up to 1.9 KiB of each group and node.
        let [.., longest] = AGES;
        self.observer.keep(longest);
        let page = self.kernel.page();
        let old = |group: &ObservedGroup| Some((group.id, group.cold((*by_rule.get(&group.id)?)?, page)));
        Ok(self.observer.groups().iter().filter_map(old).collect())
    }

    fn take_samples(&mut self, groups: &[Wanted]) -> Vec<Sample> {
        let time = Duration::from_secs(clock::read_wall().as_secs());
        // Memory may be added to a running machine.
        self.has_nodes = Nodes::read(self.kernel).is_ok_and(|nodes| nodes.with_memory.len() > 1);
        let mut samples: Vec<Sample> = groups.iter().filter_map(|group| self.sample(time, group)).collect();
        let total = self.total_cost();
        let cost = cost_since(&mut self.sampled, total);
        samples.iter_mut().for_each(|sample| sample.cost = Some(cost));
        let mut ids: Vec<GroupId> = groups.iter().map(|group| group.id).collect();
        ids.sort_unstable();
        self.own_reclaim.forget_seen(|group| last_agings(&self.observer, group));
        self.observer.forget_promotions();
        self.counters.retain(|id, _| ids.binary_search(id).is_ok());
        samples
    }

    /// The cost since the thread began.
    fn total_cost(&self) -> Cost {
        Cost { agings: self.observer.cost().agings, cpu: clock::read_thread_cpu() }
    }

    /// Takes a sample of a group; `None`: the group is gone.
    fn sample(&mut self, time: Duration, wanted: &Wanted) -> Option<Sample> {
        let group = Group::open(self.kernel.cgroup().ok()?, &wanted.path).ok()?;
        if group.id() != wanted.id {
            return None;
        }
        let stat = group.read_stat(self.kernel, &mut self.buffer).ok()?;
        let (anon, file) = (stat.anon?, stat.file?);
        let (current, swap, stalled) = if group.is_root() {
            let swap = SwapSpace::read(self.kernel).map(|swap| swap.total - swap.free);
            (anon + file, swap, psi::Totals::read(&self.kernel.proc, Resource::Memory, &mut self.buffer))
        } else {
            let swap = group.read_swap_current(&mut self.buffer).ok();
            let stalled = psi::Totals::read_group(group.dir(), Resource::Memory, &mut self.buffer);
            (group.read_current(&mut self.buffer).ok()?, swap, stalled)
        };
        let machine = group.is_root().then(|| self.machine());
        let counters = Counters {
            at: clock::read_monotonic(),
            refaults_anon: stat.workingset_refault_anon,
            refaults_file: stat.workingset_refault_file,
            swapped_in: stat.pswpin,
            stalled,
        };
        let before = self.counters.insert(wanted.id, counters);
        let over = before.map(|before| counters.at.since(before.at));
        let parts = parts_of(&self.observer, &wanted.path);
        let mut promotions = sum_promotions(parts.filter_map(Node::promotions), over);
        let agings = |group: &Path| last_agings(&self.observer, group);
        let reclaimed = self.own_reclaim.subtract(&wanted.path, &mut promotions, agings);
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
            since: before.map(|before| Since { reclaimed, ..self.since(before, counters) }),
            promotions,
            nodes: self.nodes(wanted, &group, counters.at),
            threshold: wanted.threshold,
            machine,
            cost: None,
        })
    }

    /// The figures that only the machine has.
    fn machine(&mut self) -> Machine {
        let memory = Meminfo::read(self.kernel, &mut self.buffer).unwrap_or_default();
        let devices = swap::read(self.kernel).ok();
        let zram = |devices: &Vec<SwapDevice>| {
            let zram: Vec<_> = devices.iter().filter(|device| !device.kind.is_disk()).collect();
            let stored = zram.iter().map(|device| device.used).sum();
            let occupied =
                zram.iter().map(|device| swap::read_zram_pool(self.kernel, device)).sum::<Option<Bytes>>()?;
            (!zram.is_empty()).then_some(Compressed { stored, occupied })
        };
        let on_disk = |devices: &Vec<SwapDevice>| {
            devices.iter().filter(|device| device.kind.is_disk()).map(|device| device.used).sum()
        };
        let can_hibernate = image::place(self.kernel, &self.root).is_ok();
        Machine {
            free: memory.mem_free,
            zram: devices.as_ref().and_then(zram),
            zswap: memory.zswapped.zip(memory.zswap).map(|(stored, occupied)| Compressed { stored, occupied }),
            disk: devices.as_ref().map(on_disk),
            image: image::forecast(self.kernel).filter(|_| can_hibernate).map(|forecast| forecast.image),
        }
    }

    /// The memory of the group and those below it on each NUMA node, if there are several.
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
        let time = |before: Option<Duration>, now: Option<Duration>| Some(now?.saturating_sub(before?));
        let pages =
            |before: Option<Pages>, now: Option<Pages>| Some(Pages(now?.0.saturating_sub(before?.0)).bytes(page));
        Since {
            over: now.at.since(before.at),
            refaults_anon: pages(before.refaults_anon, now.refaults_anon),
            refaults_file: pages(before.refaults_file, now.refaults_file),
            swapped_in: pages(before.swapped_in, now.swapped_in),
            stalled: time(before.stalled.some, now.stalled.some),
            stalled_full: time(before.stalled.full, now.stalled.full),
            reclaimed: None,
        }
    }

    /// The ages of the memory of the group and those below it, on one NUMA node or on all. `held`:
    /// its size.
    fn idle(&self, wanted: &Wanted, node: Option<u32>, held: Bytes, now: Monotonic) -> Option<Idle> {
        let parts = parts_of(&self.observer, &wanted.path).filter(|part| node.is_none_or(|node| node == part.node));
        sum(parts.map(|part| (part.at(), part.memory(), AGES.map(|age| part.idle(age)))), now)
            .map(|aged| of_all(aged, held).into())
    }
}

/// The ages of memory, of one group or several.
#[derive(Debug, PartialEq, Eq)]
struct Aged {
    ago: Duration,
    memory: Bytes,
    bounds: [Bounds; AGES.len()],
}

impl From<Aged> for Idle {
    fn from(Aged { ago, memory, bounds }: Aged) -> Self {
        Idle { ago, memory, bounds: bounds.map(Some) }
    }
}

/// Returns what was observed of the group and those below it, for each group and node.
fn parts_of<'o>(observer: &'o Observer<'_>, path: &Path) -> impl Iterator<Item = &'o Node> {
    let is_part = move |group: &&ObservedGroup| group.path.starts_with(path);
    observer.groups().iter().filter(is_part).flat_map(ObservedGroup::nodes)
}

/// Returns when each part of the group was aged.
fn last_agings<'o>(observer: &'o Observer<'_>, path: &Path) -> impl Iterator<Item = Monotonic> + use<'o> {
    let agings: Vec<Monotonic> = parts_of(observer, path).filter_map(Node::at).collect();
    agings.into_iter()
}

/// Adds up the promotions of several groups or nodes; `None`: they are unknown of all of them.
/// `since`: the time since the last sample.
///
/// Parts may have been aged at different times: a new group for a shorter time, and one that has a
/// rule for a longer time. Where the times differ, the sum is not spread over a longer time than
/// that between the samples. So a rate is not too low.
fn sum_promotions<'p>(parts: impl Iterator<Item = &'p Promotions>, since: Option<Duration>) -> Option<Promotions> {
    let mut all: Option<Promotions> = None;
    let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
    for part in parts {
        (shortest, longest) = (shortest.min(part.over), longest.max(part.over));
        match &mut all {
            Some(all) => all.add_bounds(part),
            None => all = Some(*part),
        }
    }
    all.map(|all| Promotions { over: longest.min(since.unwrap_or(longest).max(shortest)), ..all })
}

/// Extends the ages of the memory in generations to all memory of a group and those below it. The
/// age of the rest is unknown: that memory is locked, was allocated after the aging, or is in
/// groups that were not aged.
fn of_all(mut aged: Aged, held: Bytes) -> Aged {
    let unseen = held - aged.memory;
    aged.memory += unseen;
    aged.bounds.iter_mut().for_each(|bounds| bounds.most += unseen);
    aged
}

/// Adds up the ages of several groups or nodes; `None`: none of them was ever aged.
fn sum(parts: impl Iterator<Item = (Option<Monotonic>, Bytes, [Bounds; AGES.len()])>, now: Monotonic) -> Option<Aged> {
    let mut aged: Option<Aged> = None;
    for (at, memory, bounds) in parts {
        let Some(at) = at else { continue };
        let all = aged.get_or_insert_with(|| Aged {
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
    aged
}

/// The cost between `mark` and `now`; the mark moves to now. So no cost is left out or counted twice.
fn cost_since(mark: &mut Cost, now: Cost) -> Cost {
    let before = std::mem::replace(mark, now);
    Cost { agings: now.agings - before.agings, cpu: now.cpu.saturating_sub(before.cpu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_never_aged_is_unknown_and_the_oldest_aging_counts() {
        let bounds = |least, most| [Bounds { least: Bytes(least), most: Bytes(most) }; AGES.len()];
        let now = Monotonic(9_000_000_000);
        assert_eq!(sum([(None, Bytes(5), bounds(1, 2))].into_iter(), now), None);
        let parts = [
            (Some(Monotonic(8_000_000_000)), Bytes(10), bounds(1, 2)),
            (None, Bytes(5), bounds(1, 2)),
            (Some(Monotonic(4_000_000_000)), Bytes(20), bounds(3, 5)),
        ];
        let idle = sum(parts.into_iter(), now).expect("ages");
        assert_eq!(idle, Aged { ago: Duration::from_secs(5), memory: Bytes(30), bounds: bounds(4, 7) });
    }

    #[test]
    fn memory_beyond_the_generations_may_be_in_use() {
        let bounds = |least, most| [Bounds { least: Bytes(least), most: Bytes(most) }; AGES.len()];
        let idle = |memory, bounds| Aged { ago: Duration::ZERO, memory: Bytes(memory), bounds };
        assert_eq!(of_all(idle(30, bounds(4, 7)), Bytes(50)), idle(50, bounds(4, 27)));
        // Freed since the aging, or in swap cache without a process that has it mapped.
        assert_eq!(of_all(idle(30, bounds(4, 7)), Bytes(20)), idle(30, bounds(4, 7)));
    }

    #[test]
    fn promotions_of_parts_are_summed_and_their_rate_is_not_too_low() {
        let part = |over, bytes| Promotions {
            over: Duration::from_secs(over),
            bounds: [Bounds { least: Bytes(bytes), most: Bytes(2 * bytes) }; AGES.len()],
        };
        let since = Some(Duration::from_secs(600));
        for (parts, since, over) in [
            (vec![part(600, 5)], since, 600),
            // A rule with a long age: it was aged long ago.
            (vec![part(14_400, 5)], since, 14_400),
            (vec![part(14_400, 3), part(600, 2)], since, 600),
            // A new group.
            (vec![part(30, 1), part(600, 4)], since, 600),
            (vec![part(30, 1), part(300, 4)], since, 300),
            (vec![part(600, 5)], None, 600),
        ] {
            assert_eq!(sum_promotions(parts.iter(), since), Some(part(over, 5)));
        }
        assert_eq!(sum_promotions([].into_iter(), since), None);
    }

    #[test]
    fn a_cost_is_in_one_report_and_none_is_left_out() {
        let at = |agings, ms| Cost { agings, cpu: Duration::from_millis(ms) };
        let mut mark = Cost::default();
        // The first report has what the thread did before its first order.
        assert_eq!(cost_since(&mut mark, at(2, 50)), at(2, 50));
        assert_eq!(cost_since(&mut mark, at(5, 80)), at(3, 30));
        assert_eq!(cost_since(&mut mark, at(5, 80)), at(0, 0));
    }
}
