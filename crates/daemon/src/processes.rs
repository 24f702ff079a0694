//! Background processes: finds them every few seconds, has the policy rank them, and says which
//! hint comes next.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::text::printable;
use omr_kernel::Kernel;
use omr_kernel::process::{Capability, Process, ProcessMemory, Status};
use omr_machine::groups::tree::Tree;
use omr_machine::processes::{self, Finder, ProcessSample, Wanted};
use omr_machine::statements::StatementStore;
use omr_policy::rank::{HintEnd, HintKind, ProcessId, ProcessRecords, Ranked, Verdict, lacking, may_prefetch, rank};
use omr_policy::{Class, Config, Reason, Signals, State, cost};
use omr_units::{Bytes, Monotonic};

use crate::aging_thread::Cold;
use crate::effects::Effect;
use crate::hint_job::{self, Given};
use crate::hints::{self, Hint, Hints};
use crate::host::Host;
use crate::settings::Settings;
use crate::worker::Order;

/// Processes are scanned this often, or so seldom that a scan takes no more than 1/`SCAN_SHARE` of
/// a CPU.
const SCAN: Duration = Duration::from_secs(2);
const SCAN_SHARE: u32 = 200;

/// The background processes, and what the policy remembers of them.
#[derive(Debug)]
pub struct Processes {
    finder: Finder,
    found: HashMap<ProcessId, ProcessSample>,
    records: ProcessRecords,
    ranked: Vec<Ranked>,
    next_scan: Monotonic,
    /// CPU time of the last scan.
    scan_cpu: Duration,
    hints: Hints,
    /// The memory that they have not used.
    cold: HashMap<ProcessId, Cold>,
    /// Earlier hints are not known.
    started: Monotonic,
}

impl Processes {
    /// No process was found yet.
    pub fn new(finder: Finder, now: Monotonic) -> Self {
        Processes {
            finder,
            found: HashMap::new(),
            records: ProcessRecords::default(),
            ranked: Vec::new(),
            next_scan: Monotonic(0),
            scan_cpu: Duration::ZERO,
            hints: Hints::default(),
            cold: HashMap::new(),
            started: now,
        }
    }

    /// The rules have changed.
    pub fn reconfigure(&mut self, finder: Finder) {
        self.finder = finder;
        self.scan_soon();
    }

    /// The next scan is due at once.
    pub fn scan_soon(&mut self) {
        self.next_scan = Monotonic(0);
    }

    /// Returns true if a scan is due.
    pub fn is_scan_due(&self, now: Monotonic, statements: &StatementStore) -> bool {
        now >= self.next_scan && (self.finder.may_find_any(statements) || !self.found.is_empty())
    }

    /// A scan by the clock has ended. It began at `began` and took this CPU time.
    pub fn scanned(&mut self, began: Monotonic, cpu: Duration) {
        // Of two scans the cheaper one counts: in a guest whose host is busy, one scan can seem a
        // hundred times as expensive.
        let usual = cpu.min(std::mem::replace(&mut self.scan_cpu, cpu));
        self.next_scan = began + SCAN.max(usual * SCAN_SHARE);
    }

    /// Finds the processes, and forgets those that have ended.
    pub fn scan(&mut self, kernel: &Kernel, tree: &Tree, statements: &StatementStore) {
        match self.finder.find(kernel, tree, statements, Wanted::Relevant) {
            Ok(found) => self.found = found.into_iter().map(|found| (found.process.id, found)).collect(),
            Err(err) => {
                log::warn!("{err}");
                self.found.clear();
            }
        }
        self.hints.retain(|id| self.found.contains_key(&id));
    }

    /// Ranks the processes. The running hint ends if its process is used or has another class now.
    pub fn rank(&mut self, config: &Config, state: &State, signals: &Signals) -> Option<Effect> {
        let mut list: Vec<_> = self.found.values().map(|found| found.process.clone()).collect();
        list.sort_unstable_by_key(|process| process.id);
        self.ranked = rank(config, state, &mut self.records, signals, &list);
        let reason = obsolete(self.hints.running()?, &self.ranked)?;
        self.hints.stop(&reason)
    }

    /// A process whose memory was paged out, and that is in the foreground now.
    pub fn returning(&self, config: &Config, state: &State, now: Monotonic) -> Option<ProcessId> {
        let is_back = |id: &ProcessId| self.found.get(id).is_some_and(|found| found.process.class == Class::Foreground);
        let id = self.hints.paged_out().find(is_back)?;
        may_prefetch(config, state, now).then_some(id)
    }

    /// Returns true if memory of any process was paged out, so that the process may come back.
    pub fn may_return(&self) -> bool {
        self.hints.paged_out().next().is_some()
    }

    /// Begins the next hint: to a process that came back, else to the first in the ranking for
    /// which one is due. The worker must be free.
    pub fn begin_hint(
        &mut self,
        settings: &Settings,
        state: &mut State,
        signals: Option<&Signals>,
        now: Monotonic,
    ) -> Option<Effect> {
        let due = self.ranked.iter().find_map(|ranked| match &ranked.verdict {
            Verdict::Hint { kind, reason } => Some((ranked.id, *kind, reason.clone())),
            Verdict::Hold { .. } => None,
        });
        let returning = self.returning(&settings.config, state, now);
        let back = returning.map(|id| (id, HintKind::Prefetch, Reason::CameBack));
        let (id, kind, start) = back.or(due)?;
        let within = if kind == HintKind::Prefetch { self.hints.take_places(id) } else { None };
        let found = self.found.get(&id)?;
        let lacking = signals.map(|signals| lacking(&settings.config, &signals.machine));
        let amount = lacking.filter(|amount| kind == HintKind::PageOut && found.process.anon > Some(*amount));
        let context = signals.map(|signals| signals.machine.swap_context()).unwrap_or_default();
        let anon = found.process.anon.unwrap_or_default();
        let swap_floor = cost::swap_floor(&settings.config, context, anon);
        log::debug!("{} ({}): {} hint: {start}", id.pid, printable(&found.name), kind.name());
        let order = hint_job::Order {
            id,
            step: kind,
            within,
            account: found.account.clone(),
            room: found.process.room.unwrap_or_default(),
            anon,
            amount,
            swap_floor,
            loaded: settings.loaded.clone(),
        };
        self.hints.begin(Hint::new(id, kind, amount, start));
        state.set_hinting(true);
        Some(Effect::Order(Order::Hint(order)))
    }

    /// The worker has ended the hint. `swap_writes`: written to swap on disk meanwhile.
    pub fn end_hint(
        &mut self,
        host: &Host,
        settings: &Settings,
        state: &mut State,
        swap_writes: Bytes,
        given: Given,
    ) -> Vec<Effect> {
        state.set_hinting(false);
        let Some(hint) = self.hints.end() else { return Vec::new() };
        let mut effects = Vec::new();
        let result = match given {
            Given::Gone => {
                // Else it would be the first again until the next scan.
                self.found.remove(&hint.id);
                // What went to swap of it was written all the same.
                state.writes.add(host.hour(), swap_writes);
                return vec![Effect::SaveWrites];
            }
            Given::Hinted(report, memory) => Ok((report, memory)),
            Given::Failed(error) => Err(error),
        };
        if hint.kind != HintKind::Prefetch {
            let report = match &result {
                Ok((report, memory)) => {
                    let end = hint.end(report.end, settings.config.mode);
                    hint.report(end, *memory, swap_writes)
                }
                Err(_) => hint.report(HintEnd::Failed, ProcessMemory::default(), swap_writes),
            };
            self.records.hinted(state, host.now(), host.hour(), hint.id, &report);
            effects.push(Effect::SaveWrites);
        }
        if let Ok((report, _)) = &result
            && hint.kind == HintKind::PageOut
            && settings.config.hints.prefetch
        {
            self.hints.add_places(hint.id, &report.places);
        }
        let Some(found) = self.found.get_mut(&hint.id) else { return effects };
        if let Ok((report, memory)) = &result {
            found.process.anon = memory.anon.or(found.process.anon);
            found.process.swapped = memory.swapped.or(found.process.swapped);
            self.hints.add_result(host.now(), &hint, report, *memory);
        }
        let score = self.ranked.iter().find(|ranked| ranked.id == hint.id).and_then(|ranked| ranked.score);
        let result = result.as_ref().map(|(report, _)| &**report).map_err(Clone::clone);
        let line = hints::line(host.wall(), settings.config.mode, found, score, hint, result);
        effects.push(Effect::Record(line));
        effects
    }

    /// Ends the running hint, if there is one.
    pub fn stop_hint(&mut self, reason: &str) -> Option<Effect> {
        self.hints.stop(reason)
    }

    /// Ends the running hint if it makes a process give up memory: another process needs that
    /// memory.
    pub fn stop_reclaiming(&mut self, reason: &str) -> Option<Effect> {
        if self.hints.is_reclaiming(|_| true) { self.hints.stop(reason) } else { None }
    }

    /// The process is in the foreground. A hint that makes it give up memory ends.
    pub fn spare(&mut self, now: Monotonic, id: ProcessId, reason: &str) -> Option<Effect> {
        self.records.came_back(now, id);
        if self.hints.is_reclaiming(|hinted| hinted == id) { self.hints.stop(reason) } else { None }
    }

    /// The group at this path is not in the background any more, nor are the processes in it.
    pub fn spare_group(&mut self, now: Monotonic, path: &Path, reason: &str) -> Option<Effect> {
        let inside = self.found.values().filter(|found| found.group.starts_with(path));
        let inside: Vec<ProcessId> = inside.map(|found| found.process.id).collect();
        for id in &inside {
            self.records.came_back(now, *id);
        }
        if self.hints.is_reclaiming(|hinted| inside.contains(&hinted)) { self.hints.stop(reason) } else { None }
    }

    /// Returns true while memory of a process is paged out. If that goes to a disk, nobody who
    /// waits for memory may wait for it, too.
    pub fn is_paging_out(&self) -> bool {
        self.hints.running().is_some_and(|hint| hint.kind == HintKind::PageOut)
    }

    /// The processes that may get a hint, and the groups to which their memory is charged.
    pub fn accounted(&self) -> Vec<(ProcessId, PathBuf)> {
        let background = self.found.values().filter(|found| found.process.class == Class::Background);
        background.filter_map(|found| Some((found.process.id, found.account.clone()?))).collect()
    }

    /// Keeps how much memory the processes have not used.
    pub fn set_cold(&mut self, cold: Vec<(ProcessId, Cold)>) {
        self.cold = cold.into_iter().collect();
    }

    /// The processes in the order in which they get hints.
    pub fn ranked(&self) -> &[Ranked] {
        &self.ranked
    }

    /// A process, as the last scan found it.
    pub fn find(&self, id: ProcessId) -> Option<&ProcessSample> {
        self.found.get(&id)
    }

    /// A process by its number, as the last scan found it.
    pub fn find_by_pid(&self, pid: u32) -> Option<&ProcessSample> {
        self.found.values().find(|found| found.process.id.pid == pid)
    }

    /// The hints.
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// The memory that a process has not used, and since when no hint has changed it.
    pub fn cold(&self, id: ProcessId) -> Option<(&Cold, Monotonic)> {
        Some((self.cold.get(&id)?, self.hints.last_at(id).unwrap_or(self.started)))
    }

    /// The process for messages: `4711 (bash)`.
    pub fn name(&self, id: ProcessId) -> String {
        match self.found.get(&id) {
            Some(found) => format!("{} ({})", id.pid, printable(&found.name)),
            None => id.pid.to_string(),
        }
    }
}

/// The reason why a running hint is obsolete by this ranking; `None`: it goes on.
fn obsolete(hint: &Hint, ranked: &[Ranked]) -> Option<String> {
    let verdict = ranked.iter().find(|ranked| ranked.id == hint.id).map(|ranked| ranked.verdict.reason());
    match verdict {
        Some(Reason::Class { class: Class::Foreground }) if hint.kind == HintKind::Prefetch => None,
        Some(_) if hint.kind == HintKind::Prefetch => Some("it left the foreground".to_owned()),
        Some(reason @ (Reason::InUse { .. } | Reason::Class { .. } | Reason::NotStated)) => Some(reason.to_string()),
        Some(_) => None,
        None => Some("it has ended".to_owned()),
    }
}

/// Returns true if the process has not ended.
pub fn is_there(kernel: &Kernel, id: ProcessId) -> bool {
    Process::open(kernel, id.pid).is_ok_and(|process| processes::id(&process) == id)
}

/// Returns true if the process has surely ended. One that cannot be read now may still be there.
pub fn has_ended(kernel: &Kernel, id: ProcessId) -> bool {
    match Process::open(kernel, id.pid) {
        Ok(process) => processes::id(&process) != id,
        Err(err) => err.is_gone(),
    }
}

/// Names the capabilities that hints need and that this process lacks, once and not with each hint.
pub fn warn_of_missing_rights(kernel: &Kernel) {
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    let has = |needed: &Capability| own.is_none_or(|own| own.has(*needed));
    let missing = [Capability::SysPtrace, Capability::SysNice].into_iter().filter(|needed| !has(needed));
    let missing: Vec<&str> = missing.map(Capability::name).collect();
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        log::warn!("[[process]] rules: hints to processes of other users need {missing}; see omr.toml(5)");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omr_testkit::FakeRoot;

    use super::*;
    use crate::settings::{Args, load};

    fn ranked(id: ProcessId, reason: Reason) -> Ranked {
        Ranked { id, score: None, verdict: Verdict::Hold { reason } }
    }

    #[test]
    fn what_went_to_swap_of_a_process_that_has_ended_counts() {
        let root = FakeRoot::new().proc("self/cgroup", "0::/omr.service\n").group("a", &[("memory.current", "0\n")]);
        let kernel = Arc::new(Kernel::open(root.path()).expect("a kernel"));
        let args = Args::default();
        let settings = Settings::new(args.clone(), load(root.path(), &args, &kernel).expect("a configuration"));
        let host = Host::new(root.path(), kernel).expect("a host");
        let budget = "10MiB/day".parse().ok();
        for (swap_writes, left) in [(Bytes::ZERO, Bytes::mib(10)), (Bytes::mib(4), Bytes::mib(6))] {
            let (mut processes, mut state) = (Processes::new(Finder::default(), host.now()), State::default());
            let id = ProcessId { pid: 7, start: 1 };
            processes.hints.begin(Hint::new(id, HintKind::PageOut, None, Reason::CameBack));
            let effects = processes.end_hint(&host, &settings, &mut state, swap_writes, Given::Gone);
            assert!(matches!(effects.as_slice(), [Effect::SaveWrites]));
            assert_eq!(state.writes.left(host.hour(), budget), left);
        }
    }

    /// The statements about it are kept then.
    #[test]
    fn a_process_that_cannot_be_read_now_has_not_ended() {
        let root = FakeRoot::new()
            .proc("8/stat/none", "")
            .proc("9/stat", "9 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n");
        let kernel = Kernel::open(root.path()).expect("a kernel");
        for (pid, start, ended) in [(7, 5, true), (8, 5, false), (9, 5, false), (9, 4, true)] {
            assert_eq!(has_ended(&kernel, ProcessId { pid, start }), ended, "{pid} {start}");
        }
    }

    #[test]
    fn a_hint_ends_once_its_process_has_ended_or_left_the_class_it_was_given_for() {
        let id = ProcessId { pid: 7, start: 1 };
        let foreground = ranked(id, Reason::Class { class: Class::Foreground });
        let unknown = ranked(id, Reason::NotStated);
        let quiet = ranked(id, Reason::Warming);
        let (out, back) = (HintKind::PageOut, HintKind::Prefetch);
        for (kind, now, ends) in [
            (out, Some(&foreground), true),
            (out, Some(&unknown), true),
            (out, Some(&quiet), false),
            (out, None, true),
            (back, Some(&foreground), false),
            (back, Some(&unknown), true),
            (back, None, true),
        ] {
            let hint = Hint::new(id, kind, None, Reason::CameBack);
            let list: Vec<Ranked> = now.into_iter().cloned().collect();
            assert_eq!(obsolete(&hint, &list).is_some(), ends, "{kind:?} {now:?}");
        }
    }
}
