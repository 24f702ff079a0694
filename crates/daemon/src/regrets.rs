//! Reads the counters that tell what sweeps have cost.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_kernel::Kernel;
use omr_kernel::memcg::Group;
use omr_kernel::psi::{self, Resource};
use omr_policy::regret::{Counters, Regret, Regrets};
use omr_policy::{Class, Mode};
use omr_units::{Bytes, GroupId, Monotonic};

use crate::daemon::Daemon;
use crate::host::Host;
use crate::readings::Returns;
use crate::world::World;

/// Groups whose waiting counts are read this often.
const EVERY: Duration = Duration::from_secs(5);
/// All others are read this often: those that were swept earlier, and those that may be swept next.
const OTHERS_EVERY: Duration = Duration::from_secs(60);
/// The most groups that may be swept next: the largest.
const MOST_NEXT: usize = 64;

/// What sweeps have cost since the daemon started, and when it is read again.
#[derive(Default)]
pub struct RegretReader {
    /// The cost and the memory that is out.
    pub regrets: Regrets,
    next: Monotonic,
    next_of_others: Monotonic,
    /// What comes back now does so on purpose.
    on_purpose: bool,
    buffer: Vec<u8>,
}

impl RegretReader {
    /// Takes in whether memory comes back that nobody uses, which is no cost.
    pub fn note_returns(&mut self, returns: Returns) {
        self.on_purpose = returns != Returns::No;
        if returns == Returns::JustEnded {
            self.next = Monotonic(0);
        }
    }

    /// Reads the counters. Returns the groups with a cost since the last reading.
    fn read_all(&mut self, host: &Host, world: &World, now: Monotonic) -> Vec<(PathBuf, Regret)> {
        self.next = now + EVERY;
        let mut wanted: HashSet<GroupId> = self.regrets.swept().collect();
        if now >= self.next_of_others {
            self.next_of_others = now + OTHERS_EVERY;
            wanted.extend(candidates(world));
        } else {
            wanted.retain(|id| self.regrets.counts(now, *id));
        }
        let nodes = world.tree.nodes().iter().enumerate().filter(|(_, node)| wanted.contains(&node.id));
        let groups: Vec<(GroupId, PathBuf)> = nodes.map(|(index, node)| (node.id, world.tree.path_at(index))).collect();
        let mut found = Vec::new();
        for (id, path) in groups {
            let regret = self.read(host, id, &path);
            if !regret.is_none() {
                found.push((path, regret));
            }
        }
        found
    }

    /// The memory that sweeps took to swap and that is still out, by group.
    fn held(&self, world: &World) -> Vec<(String, Bytes)> {
        let held = self.regrets.swept().map(|id| (id, self.regrets.held(id)));
        held.filter(|(_, bytes)| *bytes > Bytes::ZERO)
            .filter_map(|(id, bytes)| Some((world.tree.path(id)?.to_string_lossy().into_owned(), bytes)))
            .collect()
    }

    /// A sweep of a group begins. Returns its cost until now, of earlier sweeps.
    fn begin(&mut self, host: &Host, id: GroupId, path: &Path) -> Regret {
        let mut regret = self.read(host, id, path);
        regret.is_incomplete |= !self.regrets.begin(host.now(), id);
        regret
    }

    /// The sweep has ended and took this much to swap. Returns the cost meanwhile.
    fn end(&mut self, host: &Host, id: GroupId, path: &Path, to_swap: Bytes) -> Regret {
        let regret = self.read(host, id, path);
        self.regrets.end(host.now(), id, to_swap);
        regret
    }

    fn read(&mut self, host: &Host, id: GroupId, path: &Path) -> Regret {
        let group = host.kernel.cgroup().ok().and_then(|root| Group::open(root, path).ok());
        // A group that is gone will be forgotten at the next scan.
        let Some(group) = group.filter(|group| group.id() == id) else { return Regret::default() };
        let counters = read_counters(&host.kernel, &group, &mut self.buffer);
        self.regrets.read(host.now(), id, counters, self.on_purpose)
    }
}

/// Once a second: reads what sweeps have cost, when it is time.
pub fn read(daemon: &mut Daemon, now: Monotonic, time: u64) {
    if now < daemon.regrets.next {
        return;
    }
    for (path, regret) in daemon.regrets.read_all(&daemon.host, &daemon.world, now) {
        daemon.books.tally.add_regret(now, time, &path.to_string_lossy(), regret);
    }
    let held = daemon.regrets.held(&daemon.world);
    daemon.books.tally.add_held(now, time, held.iter().map(|(group, bytes)| (group.as_str(), *bytes)));
}

/// Reads what sweeps of a group have cost until now: its sweep begins, or has ended and took this
/// much to swap.
pub fn note_sweep(daemon: &mut Daemon, id: GroupId, to_swap: Option<Bytes>) {
    let Some(running) = daemon.sweeps.running.as_ref().filter(|_| daemon.settings.config.mode == Mode::Act) else {
        return;
    };
    let regret = match to_swap {
        None => daemon.regrets.begin(&daemon.host, id, &running.path),
        Some(to_swap) => daemon.regrets.end(&daemon.host, id, &running.path, to_swap),
    };
    let (now, time) = (daemon.host.now(), daemon.host.wall());
    daemon.books.tally.add_regret(now, time, &running.path.to_string_lossy(), regret);
}

/// The groups that may be swept next.
fn candidates(world: &World) -> impl Iterator<Item = GroupId> + '_ {
    let mut groups: Vec<_> = world.groups.iter().filter(|group| group.class == Class::Background).collect();
    groups.sort_unstable_by_key(|group| Reverse(group.current));
    groups.into_iter().take(MOST_NEXT).map(|group| group.id)
}

fn read_counters(kernel: &Kernel, group: &Group, buffer: &mut Vec<u8>) -> Counters {
    let stat = group.read_stat(kernel, buffer).unwrap_or_default();
    let bytes = |pages: omr_units::Pages| pages.bytes(kernel.page());
    Counters {
        waited: psi::Totals::read_group(group.dir(), Resource::Memory, buffer).some,
        refaults: stat.refaults().map(bytes),
        refaults_anon: stat.workingset_refault_anon.map(bytes),
        // A page that was read from swap may keep its place there.
        swapped: group.read_swap_current(buffer).ok().map(|swapped| swapped - stat.swapcached.unwrap_or_default()),
    }
}
