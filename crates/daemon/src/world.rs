//! The groups of the machine, as the last scan found them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use omr_kernel::memcg::Group;
use omr_machine::groups::class::Classifier;
use omr_machine::groups::tree::{Node, Tree};
use omr_machine::sample::cpu::CpuByClass;
use omr_policy::{Class, Goal, MinAge};
use omr_units::{Bytes, GroupId, Monotonic};

use crate::companion;
use crate::effects::SparedGroup;
use crate::host::Host;
use crate::settings::Settings;

/// Groups are scanned this often, or so seldom that a scan takes no more than 1/`SCAN_SHARE` of a
/// CPU.
const SCAN: Duration = Duration::from_secs(5);
const SCAN_SHARE: u32 = 333;
/// Foreground work must be noticed in time during a sweep. A scan that takes longer than this, of
/// thousands of groups, waits until the sweep has ended; the swept group is read each second.
const LONGEST_SCAN: Duration = Duration::from_millis(10);
/// CPU time that each tick adds for changed attributes. Any user can change attributes without end.
const COLLECTING: Duration = Duration::from_millis(2);
/// As much may be owed before changes wait for the next ticks: a switch between applications is no
/// storm.
const COLLECTING_BURST: Duration = Duration::from_millis(12);
/// Costs beyond this are forgiven: nobody's change waits for more than six ticks.
const MOST_COLLECTING: Duration = Duration::from_millis(22);

/// CPU time that changed attributes have cost, as far as no tick has made up for it.
#[derive(Debug, Default)]
pub struct Collecting(Duration);

impl Collecting {
    /// A new tick: there is CPU time again, unless one look has cost more than its share.
    pub fn tick(&mut self) {
        self.0 = self.0.min(MOST_COLLECTING).saturating_sub(COLLECTING);
    }

    /// Returns true if there is CPU time left in this tick.
    pub fn may_go_on(&self) -> bool {
        self.0 < COLLECTING_BURST
    }

    /// Adds the CPU time of one look.
    pub fn add(&mut self, took: Duration) {
        self.0 += took;
    }
}

/// All groups, their classes, and the CPU time of each class.
pub struct World {
    /// All groups.
    pub tree: Tree,
    /// The classes by configuration.
    pub classifier: Classifier,
    /// The groups as the policy sees them.
    pub groups: Vec<omr_policy::Group>,
    /// CPU time by class.
    pub cpu: CpuByClass,
    /// When the next scan is due.
    pub next_scan: Monotonic,
    /// The minimum age of memory in groups for which no rule says one.
    without_rule: MinAge,
    scan_took: Duration,
    /// CPU time for changed attributes.
    pub collecting: Collecting,
}

impl World {
    /// No group yet; changes of attributes are noticed from now on.
    pub fn new(host: &Host, settings: &Settings) -> Self {
        let mut tree = Tree::default();
        tree.watch_attributes();
        World {
            tree,
            classifier: Classifier::new(&settings.loaded.groups, &host.own_group),
            groups: Vec::new(),
            cpu: CpuByClass::default(),
            next_scan: Monotonic(0),
            without_rule: without_rule(settings),
            scan_took: Duration::ZERO,
            collecting: Collecting::default(),
        }
    }

    /// Other rules: every group is classified anew with the next scan.
    pub fn reconfigure(&mut self, host: &Host, settings: &Settings) {
        self.classifier = Classifier::new(&settings.loaded.groups, &host.own_group);
        self.tree.reclassify();
        self.without_rule = without_rule(settings);
    }

    /// Returns true if a scan would take so long that foreground work is noticed too late.
    pub fn is_slow_to_scan(&self) -> bool {
        self.scan_took > LONGEST_SCAN
    }

    /// Reads all groups. Returns their identities, sorted; `None`: they cannot be read.
    pub fn scan(&mut self, host: &Host) -> Option<Vec<GroupId>> {
        let began = host.now();
        let cpu = host.kernel.clock.thread_cpu();
        if let Err(err) = self.tree.scan(&host.kernel, &self.classifier, true) {
            log::warn!("{err}");
            self.groups.clear();
            self.next_scan = began + SCAN;
            return None;
        }
        self.refresh_groups(host);
        let mut ids: Vec<GroupId> = self.tree.nodes().iter().map(|node| node.id).collect();
        ids.sort_unstable();
        // CPU time, not time by the clock: on a busy machine that would put the next scan off for
        // minutes.
        let took = host.kernel.clock.thread_cpu().saturating_sub(cpu);
        self.next_scan = began + SCAN.max(took * SCAN_SHARE);
        self.scan_took = host.now().since(began);
        Some(ids)
    }

    /// Updates the groups for the policy, and the CPU counters, from the groups' classes.
    pub fn refresh_groups(&mut self, host: &Host) {
        self.groups.clear();
        self.groups.extend(self.tree.groups(self.without_rule));
        let companion = self.tree.find(Path::new(companion::GROUP)).map(|node| node.id);
        let own: Vec<GroupId> = host.own_id.into_iter().chain(companion).collect();
        if let Err(err) = self.cpu.update(&host.kernel, &self.tree, &own) {
            log::warn!("{err}");
        }
    }

    /// Reads changed attributes. Returns the groups whose class changed.
    pub fn collect_changes(&mut self, host: &Host) -> Vec<GroupId> {
        self.tree.collect_changes(&host.kernel, &self.classifier).unwrap_or_else(|err| {
            log::warn!("{err}");
            Vec::new()
        })
    }

    /// Reads the refaults of one group between two scans.
    pub fn read_refaults(&mut self, host: &Host, id: GroupId, path: &Path, buffer: &mut Vec<u8>) {
        let (Ok(root), Some(known)) = (host.kernel.cgroup(), self.groups.iter_mut().find(|group| group.id == id))
        else {
            return;
        };
        if let Ok(group) = Group::open(root, path)
            && group.id() == id
            && let Ok(stat) = group.read_stat(&host.kernel, buffer)
        {
            known.refaults = stat.refaults().map(|pages| pages.bytes(host.kernel.page()));
        }
    }

    /// The refaults of each group at the last scan, if known.
    pub fn refaults(&self) -> HashMap<GroupId, Bytes> {
        let refaults = |node: &Node| node.refaults.map(|refaults| (node.id, refaults));
        self.tree.nodes().iter().filter_map(refaults).collect()
    }

    /// The topmost groups of these that are not in the background. What is below them is spared with
    /// them.
    pub fn not_background(&self, ids: &[GroupId]) -> Vec<SparedGroup> {
        let ids: HashSet<GroupId> = ids.iter().copied().collect();
        let mut spared = HashSet::new();
        let mut topmost = Vec::new();
        for (index, node) in self.tree.nodes().iter().enumerate().filter(|(_, node)| ids.contains(&node.id)) {
            let Some(assignment) = self.tree.assignment(node).filter(|it| it.class != Class::Background) else {
                continue;
            };
            let is_below_one = spared.contains(&(node.parent as usize));
            spared.insert(index);
            if !is_below_one {
                topmost.extend(SparedGroup::new(self.tree.path_at(index), assignment));
            }
        }
        topmost
    }

    /// After a sweep of a group: its size and refaults as they are now.
    pub fn swept(&mut self, id: GroupId, size: Bytes, refaults: Option<Bytes>) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.id == id) {
            group.current = Some(size);
            group.refaults = refaults.or(group.refaults);
        }
    }

    /// The node of a group.
    pub fn node(&self, id: GroupId) -> Option<&Node> {
        self.tree.nodes().iter().find(|node| node.id == id)
    }

    /// The groups in which a rule asks for a minimum age.
    pub fn with_age_rule(&self) -> HashSet<GroupId> {
        let has_rule = |node: &&Node| self.tree.assignment(node).is_some_and(|of| of.older_than().is_some());
        self.tree.nodes().iter().filter(has_rule).map(|node| node.id).collect()
    }

    /// A group as the policy sees it.
    pub fn group(&self, id: GroupId) -> Option<&omr_policy::Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// Opens any background group, to ask the kernel what it supports. The request reclaims
    /// nothing, but other groups are spared even that.
    pub fn open_background(&self, host: &Host) -> Option<Group> {
        let some = self.groups.iter().find(|group| group.class == Class::Background)?;
        Group::open(host.kernel.cgroup().ok()?, &self.tree.path(some.id)?).ok()
    }
}

/// With the goal "auto" only cold memory is reclaimed, unless a rule allows any age.
fn without_rule(settings: &Settings) -> MinAge {
    match settings.config.goal {
        Goal::Auto => MinAge::Learned,
        Goal::Free | Goal::Hibernate => MinAge::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_attributes_that_took_long_is_paid_for_by_the_next_ticks() {
        let mut collecting = Collecting::default();
        let ms = Duration::from_millis;
        collecting.add(ms(11));
        assert!(collecting.may_go_on());
        collecting.add(ms(2));
        assert!(!collecting.may_go_on());
        collecting.tick();
        assert!(collecting.may_go_on());
        // A look takes 12 ms, so there is one in six ticks.
        let mut looks = 0;
        for _ in 0..500 {
            collecting.tick();
            if collecting.may_go_on() {
                collecting.add(ms(12));
                looks += 1;
            }
        }
        assert!((83..=85).contains(&looks), "{looks}");
        // Nobody waits for long after the longest.
        collecting.add(ms(10_000));
        let waits = (1..).find(|_| {
            collecting.tick();
            collecting.may_go_on()
        });
        assert_eq!(waits, Some(6));
    }
}
