//! Hints to background processes, one at a time: the one that the worker gives, and the results of
//! earlier ones.

use std::collections::HashMap;

use omr_base::text::printable;
use omr_control::status::LastHint;
use omr_engine::hint::Report;
use omr_history::ledger::{Entry, HintLine};
use omr_kernel::process::ProcessMemory;
use omr_kernel::ranges::Ranges;
use omr_machine::processes::ProcessSample;
use omr_policy::rank::{HintEnd, HintKind, HintReport, ProcessId, Score};
use omr_policy::{End, Mode, Reason, Signals, cost};
use omr_units::{Bytes, Monotonic, millis};

use crate::daemon::Daemon;
use crate::effects::Effect;
use crate::processes::has_ended;

/// The places of a process that was paged out are kept up to this number of address ranges, at
/// least 1 MiB apart: 16 KiB of the daemon's memory. Memory of a process with more is not
/// prefetched.
const MAX_PLACES: usize = 1024;

/// A hint that the worker gives.
#[derive(Debug)]
pub struct Hint {
    /// The process.
    pub id: ProcessId,
    /// The kind of hint.
    pub kind: HintKind,
    /// The amount to page out; `None`: all.
    pub amount: Option<Bytes>,
    /// The reason for it.
    pub start: Reason,
    /// The reason to stop it.
    stop: Option<String>,
}

impl Hint {
    /// A hint that nobody has stopped.
    pub fn new(id: ProcessId, kind: HintKind, amount: Option<Bytes>, start: Reason) -> Self {
        Hint { id, kind, amount, start, stop: None }
    }

    /// Returns the end of this hint as the policy sees it.
    pub fn end(&self, end: End, mode: Mode) -> HintEnd {
        policy_end(end, self.amount, mode)
    }

    /// The result for the policy. `swap_writes`: written to swap on disk meanwhile.
    pub fn report(&self, end: HintEnd, memory: ProcessMemory, swap_writes: Bytes) -> HintReport {
        HintReport { kind: self.kind, anon: memory.anon.unwrap_or_default(), swap_writes, end }
    }
}

/// The last hint to a process that gave up memory.
#[derive(Clone, Debug)]
struct Last {
    kind: HintKind,
    at: Monotonic,
    freed: Bytes,
    /// Memory in swap when it ended.
    swapped: Bytes,
}

/// The hints.
#[derive(Debug, Default)]
pub struct Hints {
    running: Option<Hint>,
    /// By process, as long as the process is there.
    last: HashMap<ProcessId, Last>,
    /// The memory that was paged out of processes that have not come back since.
    paged_out: HashMap<ProcessId, Ranges>,
}

impl Hints {
    /// The hint that the worker gives.
    pub fn running(&self) -> Option<&Hint> {
        self.running.as_ref()
    }

    /// A hint begins.
    pub fn begin(&mut self, hint: Hint) {
        self.running = Some(hint);
    }

    /// Returns true if a hint runs that makes a process give up memory, and `is_concerned` accepts
    /// the process.
    pub fn is_reclaiming(&self, is_concerned: impl FnOnce(ProcessId) -> bool) -> bool {
        self.running.as_ref().is_some_and(|hint| hint.kind != HintKind::Prefetch && is_concerned(hint.id))
    }

    /// Ends the running hint, if there is one.
    pub fn stop(&mut self, reason: &str) -> Option<Effect> {
        let hint = self.running.as_mut()?;
        hint.stop.get_or_insert_with(|| reason.to_owned());
        Some(Effect::StopWork)
    }

    /// The worker has ended the hint.
    pub fn end(&mut self) -> Option<Hint> {
        self.running.take()
    }

    /// Keeps the result of a hint.
    pub fn add_result(&mut self, now: Monotonic, hint: &Hint, report: &Report, memory: ProcessMemory) {
        // After a prefetch, the result of the page-out before is still of interest.
        if hint.kind != HintKind::Prefetch {
            let swapped = memory.swapped.unwrap_or_default();
            self.last.insert(hint.id, Last { kind: hint.kind, at: now, freed: report.freed, swapped });
        }
    }

    /// Keeps where memory was paged out of a process.
    pub fn add_places(&mut self, id: ProcessId, places: &Ranges) {
        if places.as_slice().len() <= MAX_PLACES {
            let all = self.paged_out.get(&id).map_or_else(|| places.clone(), |before| before.union(places));
            self.paged_out.insert(id, all);
        }
    }

    /// Processes of which memory was paged out.
    pub fn paged_out(&self) -> impl Iterator<Item = ProcessId> {
        self.paged_out.keys().copied()
    }

    /// The paged-out memory of a process, which is forgotten.
    pub fn take_places(&mut self, id: ProcessId) -> Option<Ranges> {
        self.paged_out.remove(&id)
    }

    /// Forgets processes that have ended.
    pub fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.last.retain(|id, _| is_there(*id));
        self.paged_out.retain(|id, _| is_there(*id));
    }

    /// When the last hint to a process ended.
    pub fn last_at(&self, id: ProcessId) -> Option<Monotonic> {
        self.last.get(&id).map(|last| last.at)
    }

    /// The last hint to a process. `swapped`: the memory of the process that is in swap now.
    pub fn last_view(&self, now: Monotonic, id: ProcessId, swapped: Option<Bytes>) -> Option<LastHint> {
        let last = self.last.get(&id)?;
        Some(LastHint {
            step: last.kind,
            ago: now.since(last.at),
            freed: last.freed,
            came_back: swapped.map(|swapped| last.swapped - swapped).unwrap_or_default(),
        })
    }
}

/// The ledger's line about a hint. The log gets it, too.
pub fn line(
    time: u64,
    mode: Mode,
    process: &ProcessSample,
    score: Option<Score>,
    hint: Hint,
    result: Result<&Report, String>,
) -> Entry {
    let mut line = HintLine {
        time,
        id: hint.id,
        name: process.name.clone(),
        group: process.group.to_string_lossy().into_owned(),
        step: hint.kind,
        observed: mode != Mode::Act,
        advised: Bytes::ZERO,
        freed: Bytes::ZERO,
        swapped_out: Bytes::ZERO,
        cpu_ms: 0,
        wall_ms: 0,
        start_reason: hint.start.to_string(),
        score: score.map(|score| score.to_string()).unwrap_or_default(),
        stop_reason: "refused".into(),
        error: None,
    };
    match result {
        Ok(report) => {
            line.advised = report.hinted;
            line.freed = report.freed;
            line.swapped_out = report.swapped_out;
            line.cpu_ms = millis(report.cpu);
            line.wall_ms = millis(report.wall);
            line.stop_reason = match (report.end, hint.stop) {
                (End::Stopped, Some(reason)) => reason,
                (end, _) => end.words().to_owned(),
            };
        }
        Err(error) => line.error = Some(error),
    }
    let process = format!("{} ({})", line.id.pid, printable(&line.name));
    match &line.error {
        Some(error) => log::warn!("{process}: {error}"),
        None => log::info!("{process}: {} hint, {} freed, {}", line.step.name(), line.freed, line.stop_reason),
    }
    Entry::Hint(line)
}

/// Returns the end of a hint as the policy sees it. `amount`: the requested amount; `None`: all.
fn policy_end(end: End, amount: Option<Bytes>, mode: Mode) -> HintEnd {
    match end {
        // A dry run changes nothing, so there is nothing more to gain.
        End::Complete if amount.is_some() && mode == Mode::Act => HintEnd::Enough,
        // The process keeps the rest.
        End::Complete | End::Futile => HintEnd::Complete,
        // There is more, and the limit may change.
        End::Floor | End::SwapFloor | End::WriteBudget => HintEnd::Enough,
        End::Stopped | End::Timeout => HintEnd::Stopped,
        End::Denied | End::Unsupported | End::Failed => HintEnd::Failed,
        // The process has ended. The others do not occur: no hint goes by age.
        End::Gone | End::NoMoreCold | End::NotAged | End::NotSeen => HintEnd::Complete,
    }
}

impl Daemon {
    /// Once a second: scans the processes when it is time, and begins the next hint.
    pub(crate) fn check_processes(&mut self) {
        let began = self.host.now();
        let is_slow = self.sweeps.running.is_some() && self.world.is_slow_to_scan();
        if is_slow || !self.processes.is_scan_due(began, &self.statements) {
            return;
        }
        let cpu = self.host.kernel.clock.thread_cpu();
        self.scan_processes();
        self.processes.scanned(began, self.host.kernel.clock.thread_cpu().saturating_sub(cpu));
        self.begin_hint();
    }

    /// Finds and ranks the processes.
    pub fn scan_processes(&mut self) {
        let kernel = &self.host.kernel;
        self.statements.retain_processes(|id| !has_ended(kernel, id));
        self.apply_statements();
        self.processes.scan(&self.host.kernel, &self.world.tree, &self.statements);
        self.rank_processes();
        if self.processes.returning(&self.settings.config, &self.mind.state, self.host.now()).is_some() {
            let effect = self.processes.stop_reclaiming("another process came back");
            self.carry_out(effect);
            self.begin_hint();
        }
    }

    pub(crate) fn rank_processes(&mut self) {
        // The last hint has changed free memory.
        let Some(signals) = self.readings.read_memory(&self.host) else { return };
        let effect = self.processes.rank(&self.settings.config, &self.mind.state, &signals);
        self.carry_out(effect);
    }

    pub(crate) fn begin_hint(&mut self) {
        if self.work.is_busy() || self.preparation.is_wanted() {
            return;
        }
        let (now, signals) = (self.host.now(), self.readings.signals.as_ref());
        let effect = self.processes.begin_hint(&self.settings, &mut self.mind.state, signals, now);
        self.carry_out(effect);
    }

    pub(crate) fn stop_hint(&mut self, why: &str) {
        let effect = self.processes.stop_hint(why);
        self.carry_out(effect);
    }

    /// Ends a page-out that runs when the machine goes on battery.
    pub(crate) fn stop_hint_to_disk(&mut self, signals: &Signals) {
        let must_end = |signals: &Signals| cost::must_end(&self.settings.config, &signals.machine);
        let did_before = self.readings.signals.as_ref().is_some_and(|before| must_end(before).is_some());
        if let Some(reason) = must_end(signals).filter(|_| !did_before && self.processes.is_paging_out()) {
            self.stop_hint(&reason.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_gives_a_hint_again_that_was_for_a_part_only() {
        let some = Some(Bytes::mib(1));
        for (end, amount, mode, is) in [
            (End::Complete, None, Mode::Act, HintEnd::Complete),
            (End::Complete, some, Mode::Act, HintEnd::Enough),
            (End::Complete, None, Mode::Observe, HintEnd::Complete),
            (End::Complete, some, Mode::Observe, HintEnd::Complete),
            (End::Futile, None, Mode::Act, HintEnd::Complete),
            (End::Futile, some, Mode::Act, HintEnd::Complete),
            (End::Gone, None, Mode::Act, HintEnd::Complete),
        ] {
            assert_eq!(policy_end(end, amount, mode), is, "{end:?} {amount:?} {mode:?}");
        }
        // The amount and the mode do not matter to these.
        for (end, is) in [
            (End::Floor, HintEnd::Enough),
            (End::SwapFloor, HintEnd::Enough),
            (End::Stopped, HintEnd::Stopped),
            (End::Timeout, HintEnd::Stopped),
            (End::Denied, HintEnd::Failed),
            (End::Unsupported, HintEnd::Failed),
            (End::Failed, HintEnd::Failed),
        ] {
            for (amount, mode) in [(None, Mode::Act), (some, Mode::Act), (None, Mode::Observe), (some, Mode::Observe)] {
                assert_eq!(policy_end(end, amount, mode), is, "{end:?} {amount:?} {mode:?}");
            }
        }
    }

    /// Memory comes back to a process in the foreground, and nobody stops that for its sake.
    #[test]
    fn a_prefetch_makes_no_process_give_up_memory() {
        let id = ProcessId { pid: 7, start: 1 };
        for (kind, is) in [(HintKind::PageOut, true), (HintKind::Deactivate, true), (HintKind::Prefetch, false)] {
            let mut hints = Hints::default();
            assert!(hints.stop("nothing runs").is_none() && !hints.is_reclaiming(|_| true));
            hints.begin(Hint::new(id, kind, None, Reason::CameBack));
            assert_eq!(hints.is_reclaiming(|hinted| hinted == id), is, "{kind:?}");
            assert!(!hints.is_reclaiming(|hinted| hinted != id), "{kind:?}");
            assert!(matches!(hints.stop("somebody waits"), Some(Effect::StopWork)));
        }
    }
}
