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
const SCAN_SHARE: u32 = 200;
/// Foreground work must be noticed in time during a sweep. A scan that takes longer than this, of
/// thousands of groups, waits until the sweep has ended; the swept group is read each second.
const LONGEST_SCAN: Duration = Duration::from_millis(10);
/// CPU time in each tick for changed attributes. Any user can change attributes without end; the
/// rest waits for the next tick.
const LONGEST_COLLECTING: Duration = Duration::from_millis(5);

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
    collecting_took: Duration,
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
            collecting_took: Duration::ZERO,
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

    /// A new tick: there is CPU time again for changed attributes.
    pub fn allow_collecting(&mut self) {
        self.collecting_took = Duration::ZERO;
    }

    /// Returns true if there is CPU time left in this tick for changed attributes.
    pub fn may_collect(&self) -> bool {
        self.collecting_took < LONGEST_COLLECTING
    }

    /// Adds CPU time that changed attributes have cost.
    pub fn collected(&mut self, took: Duration) {
        self.collecting_took += took;
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
            && let Ok(stat) = group.read_stat(buffer)
        {
            known.refaults = stat.refaults().map(|pages| pages.bytes(host.kernel.page()));
        }
    }

    /// The refaults of each group at the last scan, if known.
    pub fn refaults(&self) -> HashMap<GroupId, Bytes> {
        let refaults = |node: &Node| node.refaults.map(|refaults| (node.id, refaults));
        self.tree.nodes().iter().filter_map(refaults).collect()
    }

    /// The groups of these that are not in the background.
    pub fn not_background(&self, ids: &[GroupId]) -> Vec<SparedGroup> {
        let spared = |id: &GroupId| {
            let assignment = self.tree.assignment(self.node(*id)?)?;
            SparedGroup::new(self.tree.path(*id)?, assignment)
        };
        ids.iter().filter_map(spared).collect()
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
