//! When groups are aged and samples of them are taken, and what is known of their memory by age.
//! The aging thread does the work ([`aging_thread`](crate::aging_thread)).

use std::collections::HashMap;
use std::time::Duration;

use omr_base::text::printable;
use omr_control::status::HistoryView;
use omr_history::ledger::Entry;
use omr_history::{MOST_GROUPS, SMALLEST};
use omr_machine::groups::tree::{Node, Tree};
use omr_policy::away;
use omr_policy::schedule::{Due, RuleSchedule, Schedule};
use omr_policy::threshold::Slo;
use omr_policy::{Class, ColdAmount, Config, Decision, Machine, Mode, Reason};
use omr_units::{Bytes, GroupId, Monotonic, millis};

use crate::aging_thread::{AgingThread, Order, Report, Wanted};
use crate::effects::Effect;
use crate::own_reclaim::{self, Reclaimed};
use crate::probes::Probes;
use crate::processes::Processes;
use crate::thresholds::{Learned, MEASURED_AT, Terms};
use crate::world::World;

/// Memory younger than the threshold is still being taken.
const DISTURBED: Monotonic = Monotonic(u64::MAX);
/// People who come back have used most of what they need after this time.
const RETURN: Duration = Duration::from_secs(600);
/// The longest time between two agings of a group: half of the longest threshold.
const LONGEST_INTERVAL: Duration = Duration::from_secs(4 * 3600);

/// The schedule of the aging thread, and its results.
pub struct Aging {
    thread: AgingThread,
    schedule: Schedule,
    /// The schedule of groups whose rules ask for an age.
    rule_schedule: RuleSchedule,
    is_running: bool,
    /// The largest sizes since the last sample, of groups that were in it.
    peaks: HashMap<GroupId, Bytes>,
    agings: u64,
    cost: Duration,
    last_aging: Option<Monotonic>,
    /// Memory of groups that was unused for an age, and that age.
    cold: HashMap<GroupId, (Duration, Bytes)>,
    /// The ages of the last order, by group.
    ordered: HashMap<GroupId, Duration>,
    /// Groups of which memory younger than the threshold was taken, up to this moment.
    disturbed: HashMap<GroupId, Monotonic>,
    /// The age that is in force while everybody is away, where a threshold is longer.
    away: Option<Duration>,
    /// The age that may be in force soon.
    ahead: Option<Duration>,
    /// The reason why that can never be known.
    obstacle: Option<String>,
    /// Memory that the daemon reclaimed since the last order.
    reclaimed: Vec<Reclaimed>,
    /// The learned thresholds.
    learned: HashMap<GroupId, Learned>,
    /// The probes of groups whose thresholds cannot be learned.
    pub probes: Probes,
}

impl Aging {
    /// Nothing is known yet.
    pub fn new(config: &omr_policy::History, thread: AgingThread, now: Monotonic) -> Self {
        Aging {
            thread,
            schedule: Schedule::new(config, now),
            rule_schedule: RuleSchedule::default(),
            is_running: false,
            peaks: HashMap::new(),
            agings: 0,
            cost: Duration::ZERO,
            last_aging: None,
            cold: HashMap::new(),
            ordered: HashMap::new(),
            disturbed: HashMap::new(),
            away: None,
            ahead: None,
            obstacle: None,
            reclaimed: Vec::new(),
            learned: HashMap::new(),
            probes: Probes::default(),
        }
    }

    /// The configuration has other times and another budget.
    pub fn reconfigure(&mut self, config: &omr_policy::History, now: Monotonic) {
        self.schedule = Schedule::new(config, now);
        // Rules may ask for another age now.
        self.cold.clear();
    }

    /// After a scan: keeps the largest sizes.
    pub fn note_peaks(&mut self, tree: &Tree) {
        for node in tree.nodes() {
            if let (Some(peak), Some(current)) = (self.peaks.get_mut(&node.id), node.current) {
                *peak = (*peak).max(current);
            }
        }
    }

    /// Takes in the thread's report, if there is one.
    pub fn collect_report(&mut self, now: Monotonic, world: &mut World) -> Option<Collected> {
        let report = self.thread.report()?;
        self.is_running = false;
        let Report { due, ages, old, cost, agings, cold, learned } = report;
        self.learned = learned.into_iter().map(|learned| (learned.id, learned)).collect();
        match ages.is_empty() {
            true => self.schedule.spent(due, cost),
            false => self.rule_schedule.spent(now, cost),
        }
        self.agings += agings;
        self.cost += cost;
        if agings > 0 {
            self.last_aging = Some(now);
        }
        log::debug!("{agings} agings, CPU {} us", cost.as_micros());
        let has_aged = due.aging || !ages.is_empty();
        let obstacle = if has_aged { self.set_cold(old) } else { None };
        self.tell_policy(world);
        Some(Collected { processes: due.aging.then_some(cold), obstacle })
    }

    /// Keeps how much memory is as old as the rules say. Returns the reason why that is unknown,
    /// when it is a new one.
    fn set_cold(&mut self, cold: Result<Vec<(GroupId, Option<Bytes>)>, String>) -> Option<String> {
        match cold {
            Ok(cold) => {
                self.obstacle = None;
                self.probes.clear();
                for (id, bytes) in cold {
                    match bytes.zip(self.ordered.get(&id)) {
                        Some((bytes, age)) => self.cold.insert(id, (*age, bytes)),
                        None => self.cold.remove(&id),
                    };
                }
                None
            }
            Err(why) => (self.obstacle.as_ref() != Some(&why)).then_some(why),
        }
    }

    /// Ages cannot be known for this reason. Groups whose rules ask for an age lose nothing, which
    /// the log and the ledger say once. `may_probe`: groups whose ages would be learned are probed.
    pub fn set_obstacle(&mut self, why: String, may_probe: bool, time: u64, world: &mut World) -> Vec<Effect> {
        self.cold.clear();
        let reason = Reason::NoAges { why: why.clone() }.to_string();
        let is_probed = |group: &&omr_policy::Group| may_probe && group.cold_only.as_ref().is_some_and(|of| of.learned);
        let (probed, not_swept): (Vec<_>, Vec<_>) =
            world.groups.iter().filter(|group| group.cold_only.is_some()).partition(is_probed);
        if !probed.is_empty() {
            log::warn!("ages are not known, so groups are probed: {why}");
        }
        if !not_swept.is_empty() {
            log::warn!("groups of which only cold memory is reclaimed are not swept: {reason}");
        }
        let with_rule = world.with_age_rule();
        let by_age = not_swept.into_iter().filter(|group| with_rule.contains(&group.id));
        let paths = by_age.filter_map(|group| world.tree.path(group.id));
        let record = |path: std::path::PathBuf| {
            let group = path.to_string_lossy().into_owned();
            log::warn!("{}: not swept: {reason}", printable(&group));
            Effect::Record(Entry::LeftAlone { time, group, reason: reason.clone() })
        };
        let effects = paths.map(record).collect();
        self.obstacle = Some(why);
        self.tell_policy(world);
        effects
    }

    /// A look at the groups whose thresholds cannot be learned, after a scan. See [`Probes::look`].
    pub fn probe(&mut self, now: Monotonic, slo: &Slo, swap_in: Option<Duration>, world: &World) {
        if self.obstacle.is_some() {
            self.probes.look(now, slo, swap_in, &world.groups);
        }
    }

    /// Tells the policy how much memory of each group is as old as its rule says.
    pub fn tell_policy(&self, world: &mut World) {
        for group in &mut world.groups {
            if let Some(cold_only) = &mut group.cold_only {
                if let Some(learned) = self.learned.get(&group.id).filter(|_| cold_only.learned) {
                    let threshold = learned.step.age();
                    cold_only.threshold = learned.is_observed.then_some(threshold);
                    cold_only.min_age =
                        cold_only.threshold.map_or(threshold, |threshold| away::age(self.away, threshold));
                }
                let probed = |why| self.probes.amount(group.id, why).filter(|_| cold_only.learned);
                cold_only.cold = match (&self.obstacle, self.cold.get(&group.id)) {
                    (Some(why), _) => probed(why).unwrap_or_else(|| ColdAmount::Never { why: why.clone() }),
                    // Memory that is older is this old as well.
                    (None, Some((age, bytes))) if *age >= cold_only.min_age => ColdAmount::Known { bytes: *bytes },
                    (None, _) => ColdAmount::NotYet,
                };
            }
        }
    }

    /// Once a second: takes in the age that is in force while everybody is away, and the one that
    /// may be soon.
    pub fn set_away(&mut self, away: Option<Duration>, ahead: Option<Duration>, world: &mut World) {
        self.ahead = ahead;
        if std::mem::replace(&mut self.away, away) != away {
            log::debug!("away age {:?}", away.map(|age| age.as_secs()));
            self.tell_policy(world);
        }
    }

    /// Once a second: has the thread age groups and take samples when it is time. `may_age`: see
    /// [`may_age`].
    pub fn order_if_due(
        &mut self,
        config: &Config,
        now: Monotonic,
        may_age: bool,
        terms: Terms,
        world: &World,
        of: &Processes,
    ) {
        if !may_age {
            self.thread.stop();
        }
        if self.is_running {
            return;
        }
        let last = |group: &omr_policy::Group| self.learned.get(&group.id)?.aged;
        let groups = world.groups.iter().filter_map(|group| Some((self.aged_by(group)?, last(group))));
        let groups: Vec<_> = groups.collect();
        let ages = if may_age { self.rule_schedule.due(now, groups.into_iter()) } else { Vec::new() };
        let size = config.history.size;
        if !ages.is_empty() {
            return self.order(Due::default(), ages, size, terms, world, of);
        }
        let due = self.schedule.due(&config.history, now, may_age);
        let sample = due.sample && size > Bytes::ZERO;
        if due.aging || sample {
            self.order(Due { sample, ..due }, Vec::new(), size, terms, world, of);
        }
    }

    /// When groups are aged or sampled next.
    pub fn next(&self, config: &Config) -> Monotonic {
        let next = self.schedule.next(&config.history);
        self.rule_schedule.next().map_or(next, |by_age| by_age.min(next))
    }

    /// The age at which the group is observed: it is aged on a schedule of its own, every half of
    /// that age. `None`: it is aged with the others.
    fn aged_by(&self, group: &omr_policy::Group) -> Option<Duration> {
        let cold_only = group.cold_only.as_ref()?;
        // Also a group that is still observed in its warm-up: that may end while everybody is away.
        let ahead = self.ahead.filter(|ahead| cold_only.learned && *ahead < cold_only.min_age);
        if ahead.is_some() {
            return ahead;
        }
        if !cold_only.learned || cold_only.is_younger() {
            return Some(cold_only.min_age);
        }
        Some(self.learned.get(&group.id).map_or(MEASURED_AT, |learned| learned.observed_at))
    }

    fn order(&mut self, due: Due, ages: Vec<Duration>, size: Bytes, terms: Terms, world: &World, of: &Processes) {
        let background = || world.groups.iter().filter(|group| group.class == Class::Background);
        let by_age: HashMap<_, _> = background().filter_map(|group| Some((group.id, self.aged_by(group)?))).collect();
        let mut groups = choose(&world.tree, &by_age);
        let learning = background().filter(|group| group.cold_only.as_ref().is_some_and(|cold_only| cold_only.learned));
        let learning: HashMap<GroupId, Bytes> = learning.filter_map(|group| Some((group.id, group.current?))).collect();
        let threshold = |group: &omr_policy::Group| Some((group.id, group.cold_only.as_ref()?.min_age));
        let thresholds: HashMap<GroupId, Duration> = background().filter_map(threshold).collect();
        for group in &mut groups {
            group.learns = learning.contains_key(&group.id);
            group.threshold = thresholds.get(&group.id).copied();
            group.disturbed = self.disturbed.get(&group.id).copied();
            group.own = learning.get(&group.id).copied().unwrap_or_default();
        }
        self.ordered = by_age;
        if due.sample {
            let before = std::mem::take(&mut self.peaks);
            for group in &mut groups {
                group.peak = before.get(&group.id).copied().unwrap_or_default();
                self.peaks.insert(group.id, Bytes::ZERO);
            }
        }
        let processes = if due.aging { of.accounted() } else { Vec::new() };
        self.is_running = true;
        let reclaimed = std::mem::take(&mut self.reclaimed);
        self.thread.order(Order { due, ages, groups, processes, reclaimed, terms, size });
    }

    /// Memory younger than the threshold of a group is being taken. What comes back of it says
    /// nothing about the threshold, until [`calm`](Aging::calm).
    pub fn disturb(&mut self, id: GroupId) {
        self.disturbed.insert(id, DISTURBED);
    }

    /// No memory younger than thresholds is taken any more, and what could be given back was. What
    /// is still missing comes back within [`RETURN`].
    pub fn calm(&mut self, now: Monotonic) {
        let until = now + RETURN;
        self.disturbed.values_mut().for_each(|moment| *moment = (*moment).min(until));
        // No interval is longer.
        self.disturbed.retain(|_, moment| now.since(*moment) < LONGEST_INTERVAL);
    }

    /// Keeps what the daemon reclaimed for the next order.
    pub fn note_reclaimed(&mut self, reclaimed: Reclaimed) {
        own_reclaim::note(&mut self.reclaimed, reclaimed);
    }

    /// After a sweep of the group: what was freed is not there any more. A sweep that was not cut
    /// short has left nothing that is old.
    pub fn swept(&mut self, id: GroupId, freed: Bytes, is_cut_short: bool) {
        if let Some((_, cold)) = self.cold.get_mut(&id) {
            *cold = if is_cut_short { *cold - freed } else { Bytes::ZERO };
        }
    }

    /// Why the threshold of a group is where it is; `None`: it is not learned.
    pub fn why(&self, id: GroupId) -> Option<&Learned> {
        self.learned.get(&id)
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, is_there: impl Fn(GroupId) -> bool) {
        self.cold.retain(|id, _| is_there(*id));
        self.disturbed.retain(|id, _| is_there(*id));
        self.probes.retain(is_there);
    }

    /// The number of entries about groups.
    #[cfg(test)]
    pub fn known_groups(&self) -> usize {
        self.peaks.len() + self.cold.len() + self.ordered.len() + self.disturbed.len() + self.learned.len()
    }

    /// Stops the thread and waits for its end.
    pub fn close(&mut self) {
        self.thread.close();
    }

    /// The figures for `omr status`.
    pub fn view(&self, now: Monotonic, config: &omr_policy::History) -> HistoryView {
        HistoryView {
            agings: self.agings,
            cpu_ms: millis(self.cost),
            aged_ms_ago: self.last_aging.map(|last| millis(now.since(last))),
            wait_ms: millis(self.schedule.wait(config)),
        }
    }
}

/// Results for the other parts.
#[derive(Debug)]
pub struct Collected {
    /// The memory that processes have not used; `None`: it was not asked for.
    pub processes: Option<Vec<(omr_policy::rank::ProcessId, crate::aging_thread::Cold)>>,
    /// Ages cannot be known for this reason, which is new.
    pub obstacle: Option<String>,
}

/// Returns true if groups may be aged now. The machine need not be idle: memory that is used while
/// somebody works is of interest. But groups are not aged while the machine is short of memory, is
/// paused, frees memory for an event, or brings memory back.
pub fn may_age(config: &Config, decision: Option<&Decision>, machine: Option<&Machine>) -> bool {
    let Some(Decision::Hold { reason }) = decision else { return false };
    let is_occupied = matches!(
        reason,
        Reason::Preparing { .. }
            | Reason::Paused { .. }
            | Reason::Warming
            | Reason::SwapOff
            | Reason::GoingToSleep { .. }
    );
    let has_memory = |machine: &Machine| {
        let allowed = config.idle.pressure_memory;
        let stalled = machine.stall_memory.map(|stalled| stalled * 10_000);
        stalled.is_some_and(|stalled| stalled <= machine.dt * allowed.0)
    };
    config.mode != Mode::Observe && !is_occupied && machine.is_some_and(has_memory)
}

/// The groups to age: the machine; the largest groups, above the smallest size that is sampled; and
/// the largest of those whose rules ask for an age, with that age.
fn choose(tree: &Tree, by_age: &HashMap<GroupId, Duration>) -> Vec<Wanted> {
    let size = |node: &Node| node.current.unwrap_or_default();
    let mut nodes = tree.nodes().iter().enumerate();
    let machine = nodes.next();
    let mut chosen: Vec<(usize, &Node)> = nodes.filter(|(_, node)| size(node) >= SMALLEST).collect();
    chosen.sort_by_key(|&(index, node)| (std::cmp::Reverse(size(node)), index));
    let rest = chosen.split_off(chosen.len().min(MOST_GROUPS));
    let room = MOST_GROUPS - chosen.iter().filter(|(_, node)| by_age.contains_key(&node.id)).count();
    chosen.extend(rest.into_iter().filter(|(_, node)| by_age.contains_key(&node.id)).take(room));
    chosen.extend(machine);
    chosen.sort_unstable_by_key(|&(index, _)| index);
    let wanted = |(index, node): (usize, &Node)| Wanted {
        id: node.id,
        path: tree.path_at(index),
        peak: Bytes::ZERO,
        older_than: by_age.get(&node.id).copied(),
        own: Bytes::ZERO,
        learns: false,
        threshold: None,
        disturbed: None,
    };
    chosen.into_iter().map(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_aged_only_in_mode_act_and_while_there_is_memory() {
        let mut machine =
            Machine { dt: Duration::from_secs(1), stall_memory: Some(Duration::ZERO), ..Machine::default() };
        let mut config = Config::default();
        let hold = |reason| Decision::Hold { reason };
        let idle = hold(Reason::NothingToGain);
        assert!(may_age(&config, Some(&idle), Some(&machine)));
        for occupied in [
            Reason::Warming,
            Reason::SwapOff,
            Reason::Preparing { what: "a move".into() },
            Reason::Paused { left: None },
        ] {
            assert!(!may_age(&config, Some(&hold(occupied)), Some(&machine)));
        }
        assert!(!may_age(&config, None, Some(&machine)));
        assert!(!may_age(&config, Some(&idle), None));
        machine.stall_memory = None;
        assert!(!may_age(&config, Some(&idle), Some(&machine)), "unknown pressure is not low pressure");
        machine.stall_memory = Some(Duration::from_millis(900));
        assert!(!may_age(&config, Some(&idle), Some(&machine)));
        machine.stall_memory = Some(Duration::ZERO);
        config.mode = Mode::Observe;
        assert!(!may_age(&config, Some(&idle), Some(&machine)));
        config.mode = Mode::Record;
        assert!(may_age(&config, Some(&idle), Some(&machine)));
    }
}
