//! The history of what groups hold and use: which groups, when, and what that may cost.

use std::collections::HashMap;
use std::time::Duration;

use omr_base::text::printable;
use omr_control::status::HistoryView;
use omr_history::ledger::Entry;
use omr_history::{MOST_GROUPS, SMALLEST};
use omr_kernel::clock;
use omr_machine::groups::tree::Tree;
use omr_policy::schedule::{Due, RuleSchedule, Schedule};
use omr_policy::{Class, ColdAmount, Decision, Mode, Reason, Signals};
use omr_units::{Bytes, GroupId, Monotonic, millis};

use super::looker::{Looker, Order, Wanted};
use crate::daemon::Daemon;

/// What the loop knows of it.
pub struct History {
    looker: Looker,
    schedule: Schedule,
    /// It looks.
    is_looking: bool,
    /// The largest sizes since the last sample, of groups that were in it.
    peaks: HashMap<GroupId, Bytes>,
    agings: u64,
    cost: Duration,
    /// When groups were aged last.
    aged: Option<Monotonic>,
    /// When those are aged of which rules take only what is old.
    beats: RuleSchedule,
    /// How much of them is that old.
    old: HashMap<GroupId, Bytes>,
    /// Why that is never known.
    never: Option<String>,
}

impl History {
    /// Looks with this.
    pub fn new(config: &omr_policy::History, looker: Looker) -> Self {
        History {
            looker,
            schedule: Schedule::new(config, clock::read_monotonic()),
            is_looking: false,
            peaks: HashMap::new(),
            agings: 0,
            cost: Duration::ZERO,
            aged: None,
            beats: RuleSchedule::default(),
            old: HashMap::new(),
            never: None,
        }
    }

    /// Other times and another budget.
    pub fn reconfigure(&mut self, config: &omr_policy::History) {
        self.schedule = Schedule::new(config, clock::read_monotonic());
        // Rules may ask for another age now.
        self.old.clear();
    }

    /// After a scan.
    pub fn note_peaks(&mut self, tree: &Tree) {
        for node in tree.nodes() {
            if let (Some(peak), Some(current)) = (self.peaks.get_mut(&node.id), node.current) {
                *peak = (*peak).max(current);
            }
        }
    }

    /// How much of a group is as old as its rule says.
    pub fn old(&self, id: GroupId) -> ColdAmount {
        match (&self.never, self.old.get(&id)) {
            (Some(why), _) => ColdAmount::Never { why: why.clone() },
            (None, Some(bytes)) => ColdAmount::Known { bytes: *bytes },
            (None, None) => ColdAmount::NotYet,
        }
    }

    /// After a sweep of that group: what it took is there no more, and the rest only if it was cut short.
    pub fn swept(&mut self, id: GroupId, freed: Bytes, is_cut_short: bool) {
        if let Some(old) = self.old.get_mut(&id) {
            *old = if is_cut_short { *old - freed } else { Bytes::ZERO };
        }
    }

    /// Forgets groups that are gone.
    pub fn retain(&mut self, is_there: impl Fn(GroupId) -> bool) {
        self.old.retain(|id, _| is_there(*id));
    }

    /// Has groups left in peace, at once.
    pub fn stop(&self) {
        self.looker.stop();
    }

    /// The end.
    pub fn close(&mut self) {
        self.looker.close();
    }
}

impl Daemon {
    /// Once a second.
    pub(super) fn look_at_groups(&mut self, now: Monotonic) {
        if let Some(report) = self.aging.looker.report() {
            let history = &mut self.aging;
            history.is_looking = false;
            match report.ages.is_empty() {
                true => history.schedule.spent(report.due, report.cost),
                false => history.beats.spent(now, report.cost),
            }
            history.agings += report.agings;
            history.cost += report.cost;
            if report.due.aging {
                self.processes.learn(report.cold);
            }
            if report.agings > 0 {
                history.aged = Some(now);
            }
            log::debug!("looked at groups: {} agings, CPU {} us", report.agings, report.cost.as_micros());
            if !report.ages.is_empty() {
                self.take_old(report.old);
            }
        }
        let may_age = self.may_age();
        if !may_age {
            self.aging.stop();
        }
        if self.aging.is_looking {
            return;
        }
        let ages = self.world.groups.iter().filter_map(|group| Some(group.cold_only.as_ref()?.min_age));
        let ages = if may_age { self.aging.beats.due(now, ages) } else { Vec::new() };
        if !ages.is_empty() {
            return self.order_look(Due::default(), ages);
        }
        let due = self.aging.schedule.due(&self.settings.config.history, now, may_age);
        let is_kept = self.settings.config.history.size > Bytes::ZERO;
        if due.aging || due.sample && is_kept {
            self.order_look(Due { sample: due.sample && is_kept, ..due }, Vec::new());
        }
    }

    /// What is known of the groups that were aged for their rules.
    fn take_old(&mut self, old: Result<Vec<(GroupId, Option<Bytes>)>, String>) {
        let history = &mut self.aging;
        match old {
            Ok(old) => {
                history.never = None;
                for (id, bytes) in old {
                    match bytes {
                        Some(bytes) => history.old.insert(id, bytes),
                        None => history.old.remove(&id),
                    };
                }
            }
            Err(why) if history.never.as_ref() != Some(&why) => self.never_old(why),
            Err(_) => {}
        }
        self.note_old();
    }

    /// Groups that lose only what is old lose nothing, and it is said once why.
    pub(super) fn never_old(&mut self, why: String) {
        self.aging.old.clear();
        let reason = Reason::NoAges { why: why.clone() }.to_string();
        self.aging.never = Some(why);
        let time = clock::read_wall().as_secs();
        for group in self.world.groups.iter().filter(|group| group.cold_only.is_some()) {
            if let Some(path) = self.world.tree.path(group.id) {
                let group = path.to_string_lossy().into_owned();
                log::warn!("{}: left alone: {reason}", printable(&group));
                self.books.record(&Entry::LeftAlone { time, group, reason: reason.clone() });
            }
        }
    }

    /// Tells the policy.
    pub(super) fn note_old(&mut self) {
        for group in &mut self.world.groups {
            if let Some(cold_only) = &mut group.cold_only {
                cold_only.cold = self.aging.old(group.id);
            }
        }
    }

    fn order_look(&mut self, due: Due, ages: Vec<Duration>) {
        let by_age = self.world.groups.iter().filter(|group| group.class == Class::Background);
        let by_age = by_age.filter_map(|group| Some((group.id, group.cold_only.as_ref()?.min_age))).collect();
        let mut groups = choose(&self.world.tree, &by_age);
        if due.sample {
            let before = std::mem::take(&mut self.aging.peaks);
            for group in &mut groups {
                group.peak = before.get(&group.id).copied().unwrap_or_default();
                self.aging.peaks.insert(group.id, Bytes::ZERO);
            }
        }
        let processes = if due.aging { self.processes.accounted() } else { Vec::new() };
        self.aging.is_looking = true;
        self.aging.looker.order(Order { due, ages, groups, processes, size: self.settings.config.history.size });
    }

    /// Whether groups may be aged now. It need not be idle: what is used while somebody works is what one
    /// wants to know. But nothing is done to a machine that is short of memory, that is told to hold still,
    /// or that takes memory from groups or brings it back just now.
    fn may_age(&self) -> bool {
        let Some(Decision::Hold { reason }) = &self.mind.decision else { return false };
        let is_quiet = matches!(
            reason,
            Reason::Preparing { .. } | Reason::Paused { .. } | Reason::Warming | Reason::GoingToSleep { .. }
        );
        let is_at_ease = |signals: &Signals| {
            let allowed = self.settings.config.idle.pressure_memory;
            let stalled = signals.machine.stall_memory.map(|stalled| stalled * 10_000);
            stalled.is_some_and(|stalled| stalled <= signals.machine.dt * allowed.0)
        };
        self.settings.config.mode == Mode::Act
            && !is_quiet
            && !self.work.is_busy()
            && self.readings.signals.as_ref().is_some_and(is_at_ease)
    }

    pub(super) fn history_view(&self, now: Monotonic) -> HistoryView {
        let history = &self.aging;
        HistoryView {
            agings: history.agings,
            cpu_ms: millis(history.cost),
            aged_ms_ago: history.aged.map(|aged| millis(now.since(aged))),
            wait_ms: millis(history.schedule.wait(&self.settings.config.history)),
        }
    }
}

/// The groups that are looked at: the machine and the largest, with at least so much that it is worth it; and the
/// largest of those that lose only what is old, with how old that is.
fn choose(tree: &Tree, by_age: &HashMap<GroupId, Duration>) -> Vec<Wanted> {
    let nodes = tree.nodes();
    let size = |index: usize| nodes[index].current.unwrap_or_default();
    let mut chosen: Vec<usize> = (1..nodes.len()).filter(|&index| size(index) >= SMALLEST).collect();
    chosen.sort_by_key(|&index| (std::cmp::Reverse(size(index)), index));
    let rest = chosen.split_off(chosen.len().min(MOST_GROUPS));
    let room = MOST_GROUPS - chosen.iter().filter(|&&index| by_age.contains_key(&nodes[index].id)).count();
    chosen.extend(rest.into_iter().filter(|&index| by_age.contains_key(&nodes[index].id)).take(room));
    if !nodes.is_empty() {
        chosen.push(0);
    }
    chosen.sort_unstable();
    let wanted = |index: usize| Wanted {
        id: nodes[index].id,
        path: tree.path_at(index),
        peak: Bytes::ZERO,
        older_than: by_age.get(&nodes[index].id).copied(),
    };
    chosen.into_iter().map(wanted).collect()
}
