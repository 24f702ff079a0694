//! The history of what groups hold and use: which groups, when, and what that may cost.

use std::collections::HashMap;
use std::time::Duration;

use omr_kernel::clock;
use omr_policy::schedule::{Due, Schedule};
use omr_policy::{Decision, Mode, Reason, Signals};
use omr_units::{Bytes, GroupId, Monotonic};
use serde::{Deserialize, Serialize};

use super::Daemon;
use super::looker::{Looker, Order, Wanted};
use crate::history::{MOST_GROUPS, SMALLEST};
use crate::tree::Tree;

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
}

/// The same for `omr status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryView {
    /// Generations that were made.
    pub agings: u64,
    /// CPU time that all of it has cost.
    pub cpu_ms: u64,
    /// Since groups were aged last.
    pub aged_ms_ago: Option<u64>,
    /// Groups are not aged for so long, because the budget is spent.
    pub wait_ms: u64,
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
        }
    }

    /// Other times and another budget.
    pub fn reconfigure(&mut self, config: &omr_policy::History) {
        self.schedule = Schedule::new(config, clock::read_monotonic());
    }

    /// After a scan.
    pub fn note_peaks(&mut self, tree: &Tree) {
        for node in tree.nodes() {
            if let (Some(peak), Some(current)) = (self.peaks.get_mut(&node.id), node.current) {
                *peak = (*peak).max(current);
            }
        }
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
        if let Some(report) = self.history.looker.report() {
            let history = &mut self.history;
            history.is_looking = false;
            history.schedule.spent(report.due, report.cost);
            history.agings += report.agings;
            history.cost += report.cost;
            if report.due.aging {
                self.processes.learn(report.cold);
            }
            if report.agings > 0 {
                history.aged = Some(now);
            }
            log::debug!("looked at groups: {} agings, CPU {} us", report.agings, report.cost.as_micros());
        }
        let may_age = self.may_age();
        if !may_age {
            self.history.stop();
        }
        if self.history.is_looking {
            return;
        }
        let due = self.history.schedule.due(&self.config.history, now, may_age);
        let is_kept = self.config.history.size > Bytes::ZERO;
        if due.aging || due.sample && is_kept {
            self.order_look(Due { sample: due.sample && is_kept, ..due });
        }
    }

    fn order_look(&mut self, due: Due) {
        let mut groups = choose(&self.tree);
        if due.sample {
            let before = std::mem::take(&mut self.history.peaks);
            for group in &mut groups {
                group.peak = before.get(&group.id).copied().unwrap_or_default();
                self.history.peaks.insert(group.id, Bytes::ZERO);
            }
        }
        let processes = if due.aging { self.processes.accounted() } else { Vec::new() };
        self.history.is_looking = true;
        self.history.looker.order(Order { due, groups, processes, size: self.config.history.size });
    }

    /// Whether groups may be aged now. It need not be idle: what is used while somebody works is what one
    /// wants to know. But nothing is done to a machine that is short of memory, that is told to hold still,
    /// or that takes memory from groups or brings it back just now.
    fn may_age(&self) -> bool {
        let Some(Decision::Hold { reason }) = &self.decision else { return false };
        let is_quiet = matches!(
            reason,
            Reason::Preparing { .. } | Reason::Paused { .. } | Reason::Warming | Reason::GoingToSleep { .. }
        );
        let is_at_ease = |signals: &Signals| {
            let allowed = self.config.idle.pressure_memory;
            let stalled = signals.machine.stall_memory.map(|stalled| stalled * 10_000);
            stalled.is_some_and(|stalled| stalled <= signals.machine.dt * allowed.0)
        };
        self.config.mode == Mode::Act && !is_quiet && !self.is_working && self.signals.as_ref().is_some_and(is_at_ease)
    }

    pub(super) fn history_view(&self, now: Monotonic) -> HistoryView {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let history = &self.history;
        HistoryView {
            agings: history.agings,
            cpu_ms: ms(history.cost),
            aged_ms_ago: history.aged.map(|aged| ms(now.since(aged))),
            wait_ms: ms(history.schedule.wait(&self.config.history)),
        }
    }
}

/// The groups that are looked at: the machine and the largest, with at least so much that it is worth it.
fn choose(tree: &Tree) -> Vec<Wanted> {
    let nodes = tree.nodes();
    let size = |index: usize| nodes[index].current.unwrap_or_default();
    let mut chosen: Vec<usize> = (1..nodes.len()).filter(|&index| size(index) >= SMALLEST).collect();
    chosen.sort_by_key(|&index| (std::cmp::Reverse(size(index)), index));
    chosen.truncate(MOST_GROUPS);
    if !nodes.is_empty() {
        chosen.push(0);
    }
    chosen.sort_unstable();
    let mut whole = vec![true; nodes.len()];
    // Children come after their parents.
    for index in (1..nodes.len()).rev() {
        let is_left_out = size(index) > Bytes::ZERO && chosen.binary_search(&index).is_err();
        if is_left_out || !whole[index] {
            whole[nodes[index].parent as usize] = false;
        }
    }
    let wanted = |index: usize| Wanted {
        id: nodes[index].id,
        path: tree.path_at(index),
        peak: Bytes::ZERO,
        whole: whole[index],
    };
    chosen.into_iter().map(wanted).collect()
}
