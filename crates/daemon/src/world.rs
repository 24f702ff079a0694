//! The groups of the machine, as the last scan found them.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use omr_kernel::clock;
use omr_kernel::memcg::Group;
use omr_machine::groups::class::Classifier;
use omr_machine::groups::tree::{Node, Tree};
use omr_machine::sample::cpu::CpuByClass;
use omr_policy::Class;
use omr_units::{Bytes, GroupId, Monotonic};

use crate::host::Host;
use crate::settings::Settings;

/// Groups are scanned this often, or so seldom that a scan takes no more than 1/`SCAN_SHARE` of a CPU.
const SCAN: Duration = Duration::from_secs(5);
const SCAN_SHARE: u32 = 200;
/// Nothing may keep the loop from noticing work while a sweep runs. A scan of thousands of groups that
/// takes longer than this waits until the sweep is over; the group being swept is read each second.
const LONGEST_SCAN: Duration = Duration::from_millis(10);
/// CPU time in each tick for changes of attributes, which any user can make without end. The rest
/// waits for the next tick.
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
            scan_took: Duration::ZERO,
            collecting_took: Duration::ZERO,
        }
    }

    /// Other rules: every group is classified anew with the next scan.
    pub fn reconfigure(&mut self, host: &Host, settings: &Settings) {
        self.classifier = Classifier::new(&settings.loaded.groups, &host.own_group);
        self.tree.reclassify();
    }

    /// Whether a scan would keep the loop from noticing work beside a sweep.
    pub fn is_slow_to_scan(&self) -> bool {
        self.scan_took > LONGEST_SCAN
    }

    /// Reads all groups. Returns their identities, sorted; `None` where they cannot be read.
    pub fn scan(&mut self, host: &Host) -> Option<Vec<GroupId>> {
        let began = clock::read_monotonic();
        let cpu = clock::read_thread_cpu();
        if let Err(err) = self.tree.scan(&host.kernel, &self.classifier, true) {
            log::warn!("{err}");
            self.groups.clear();
            self.next_scan = began + SCAN;
            return None;
        }
        self.refresh_groups(host);
        let mut ids: Vec<GroupId> = self.tree.nodes().iter().map(|node| node.id).collect();
        ids.sort_unstable();
        // CPU time, not time by the clock: on a busy machine that would put the next scan off for minutes.
        let took = clock::read_thread_cpu().saturating_sub(cpu);
        self.next_scan = began + SCAN.max(took * SCAN_SHARE);
        self.scan_took = clock::read_monotonic().since(began);
        Some(ids)
    }

    /// Draws the consequences of the groups' classes.
    pub fn refresh_groups(&mut self, host: &Host) {
        self.groups.clear();
        self.groups.extend(self.tree.groups());
        if let Err(err) = self.cpu.update(&host.kernel, &self.tree, host.own_id) {
            log::warn!("{err}");
        }
    }

    /// A new tick: there is CPU time again for changes of attributes.
    pub fn allow_collecting(&mut self) {
        self.collecting_took = Duration::ZERO;
    }

    /// Whether there is CPU time left in this tick for changes of attributes.
    pub fn may_collect(&self) -> bool {
        self.collecting_took < LONGEST_COLLECTING
    }

    /// Counts CPU time that changes of attributes have cost.
    pub fn collected(&mut self, took: Duration) {
        self.collecting_took += took;
    }

    /// Reads changed attributes. Returns the groups whose class is another one now.
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

    /// The refaults of each group at the last scan, where they are known.
    pub fn refaults(&self) -> HashMap<GroupId, Bytes> {
        let refaults = |node: &Node| node.refaults.map(|refaults| (node.id, refaults));
        self.tree.nodes().iter().filter_map(refaults).collect()
    }

    /// The node of a group.
    pub fn node(&self, id: GroupId) -> Option<&Node> {
        self.tree.nodes().iter().find(|node| node.id == id)
    }

    /// A group as the policy sees it.
    pub fn group(&self, id: GroupId) -> Option<&omr_policy::Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// Opens any background group: for asking the kernel what it can do, and not of a group that is
    /// nobody's business, though the request is for nothing.
    pub fn open_background(&self, host: &Host) -> Option<Group> {
        let some = self.groups.iter().find(|group| group.class == Class::Background)?;
        Group::open(host.kernel.cgroup().ok()?, &self.tree.path(some.id)?).ok()
    }
}
