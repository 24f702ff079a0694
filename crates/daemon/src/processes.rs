//! Processes in the background: looks at them every few seconds, has the worker hint them away one by one, and
//! takes note of what somebody says of processes and groups.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use omr_base::text::printable;
use omr_control::status::{ColdView, Explanation, LastHint, ProcessView, StatementView};
use omr_engine::hint::Report;
use omr_history::AGES;
use omr_history::ledger::{Entry, HintLine};
use omr_kernel::memcg::Group;
use omr_kernel::process::{Capability, Process, ProcessMemory, Status};
use omr_kernel::ranges::Ranges;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::class;
use omr_machine::groups::tree::no_group;
use omr_machine::inventory::apply_statements;
use omr_machine::processes::{self, Finder, ProcessSample, Wanted};
use omr_machine::statements::{StatementStore, Statements};
use omr_policy::rank::{
    HintEnd, HintKind, HintReport, ProcessId, ProcessRecords, Ranked, Verdict, lacking, may_prefetch, rank,
};
use omr_policy::statement::{Presence, Statement, Subject};
use omr_policy::{Class, End, Mode, Reason};
use omr_units::{Bytes, GroupId, Monotonic, millis};

use super::hinting::{self, Given};
use super::looker::Cold;
use super::server::Peer;
use super::worker::Order;
use crate::daemon::Daemon;

/// Processes are looked at this often, or so seldom that it takes no more than half a percent of a CPU.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_SHARE: u32 = 200;

/// Of a process whose memory is in more pieces, 1 MiB apart, nothing is brought back: 16 KiB of the daemon's own.
const MOST_PLACES: usize = 1024;

/// What the daemon knows of processes.
#[derive(Debug)]
pub struct Processes {
    finder: Finder,
    pub statements: StatementStore,
    seen: HashMap<ProcessId, ProcessSample>,
    /// What the policy remembers of them between two samples.
    records: ProcessRecords,
    ranked: Vec<Ranked>,
    next_look: Monotonic,
    /// CPU time that the last look took.
    look_took: Duration,
    /// The hint that the worker is at.
    hinting: Option<Hinting>,
    /// What was done to processes that are still there.
    done: HashMap<ProcessId, Done>,
    /// Where that was which was paged out of processes that did not come back since.
    away: HashMap<ProcessId, Ranges>,
    /// What they have not used.
    cold: HashMap<ProcessId, Cold>,
    /// What was done to them before this is not known.
    began: Monotonic,
}

#[derive(Debug)]
struct Hinting {
    id: ProcessId,
    step: HintKind,
    /// So much of it only.
    amount: Option<Bytes>,
    start: Reason,
    stop: Option<String>,
}

#[derive(Clone, Debug)]
struct Done {
    step: HintKind,
    at: Monotonic,
    freed: Bytes,
    /// In swap when it ended.
    swapped: Bytes,
}

impl Processes {
    pub fn new(finder: Finder, statements: StatementStore) -> Self {
        Processes {
            finder,
            statements,
            seen: HashMap::new(),
            ranked: Vec::new(),
            records: ProcessRecords::default(),
            next_look: Monotonic(0),
            look_took: Duration::ZERO,
            hinting: None,
            done: HashMap::new(),
            away: HashMap::new(),
            cold: HashMap::new(),
            began: clock::read_monotonic(),
        }
    }

    /// A hint is being given that gives up memory of such a process, and does not bring it back.
    fn is_taking_from(&self, of: impl FnOnce(ProcessId) -> bool) -> bool {
        self.hinting.as_ref().is_some_and(|hinting| hinting.step != HintKind::Prefetch && of(hinting.id))
    }

    /// All that may be hinted, and the groups that account for them.
    pub fn accounted(&self) -> Vec<(ProcessId, PathBuf)> {
        let may_be_hinted = self.seen.values().filter(|seen| seen.process.class == Class::Background);
        may_be_hinted.filter_map(|seen| Some((seen.process.id, seen.account.clone()?))).collect()
    }

    /// Where that was which was paged out of a process.
    fn note_places(&mut self, id: ProcessId, places: &Ranges) {
        if places.as_slice().len() <= MOST_PLACES {
            let all = self.away.get(&id).map_or_else(|| places.clone(), |before| before.union(places));
            self.away.insert(id, all);
        }
    }

    /// What they have not used.
    pub fn learn(&mut self, cold: Vec<(ProcessId, Cold)>) {
        self.cold = cold.into_iter().collect();
    }

    /// The rules have changed.
    pub fn reconfigure(&mut self, finder: Finder) {
        self.finder = finder;
        self.next_look = Monotonic(0);
    }

    /// A process is being paged out: to a disk, nobody who waits for memory must wait for that as well.
    pub fn pages_out(&self) -> bool {
        self.hinting.as_ref().is_some_and(|hinting| hinting.step == HintKind::PageOut)
    }
}

/// The capabilities that hints take and that this process has not, named once and not with each hint.
pub fn warn_of_missing_rights(kernel: &Kernel) {
    let own = Status::read_own(kernel).ok().and_then(|status| status.capabilities);
    let has = |needed: &Capability| own.is_none_or(|own| own.has(*needed));
    let missing = [Capability::SysPtrace, Capability::SysNice].into_iter().filter(|needed| !has(needed));
    let missing: Vec<&str> = missing.map(Capability::name).collect();
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        log::warn!("[[process]] rules: processes of others cannot be hinted away without {missing}; see omr.toml(5)");
    }
}

/// `None`: that it was not looked at, or by now was hinted. A hint moves memory in the kernel's lists, so these say
/// nothing of a time in which there was one.
fn cold_view(now: Monotonic, cold: &Cold, hinted: Monotonic) -> Option<ColdView> {
    let known = |age: &Duration| hinted <= cold.at && cold.at.since(hinted) >= *age;
    let ages = AGES.into_iter().zip(cold.bounds).filter(|(age, _)| known(age));
    let unused: Vec<_> = ages.collect();
    let view = ColdView { ago: now.since(cold.at), memory: cold.memory, unused };
    (!view.unused.is_empty()).then_some(view)
}

impl Daemon {
    /// Once a second, after the groups: is it time to look, and is a hint due?
    pub(super) fn look_at_processes(&mut self) {
        let began = clock::read_monotonic();
        let busy = self.sweeps.running.is_some() && self.world.is_slow_to_scan();
        if began < self.processes.next_look || busy {
            return;
        }
        if !self.processes.finder.may_find_any(&self.processes.statements) && self.processes.seen.is_empty() {
            return;
        }
        let cpu = clock::read_thread_cpu();
        self.look();
        let took = clock::read_thread_cpu().saturating_sub(cpu);
        // Of two looks the cheaper: in a guest whose host is busy one can seem a hundred times as dear.
        let usual = took.min(std::mem::replace(&mut self.processes.look_took, took));
        self.processes.next_look = began + LOOK.max(usual * LOOK_SHARE);
        self.hint_next();
    }

    fn look(&mut self) {
        self.processes.statements.retain_processes(|id| is_there(&self.host.kernel, id));
        self.apply_statements();
        let processes = &mut self.processes;
        match processes.finder.find(&self.host.kernel, &self.world.tree, &processes.statements, Wanted::Relevant) {
            Ok(seen) => processes.seen = seen.into_iter().map(|seen| (seen.process.id, seen)).collect(),
            Err(err) => {
                log::warn!("{err}");
                processes.seen.clear();
            }
        }
        let seen = &processes.seen;
        processes.done.retain(|id, _| seen.contains_key(id));
        processes.away.retain(|id, _| seen.contains_key(id));
        self.rank();
        if self.returning().is_some() {
            // Somebody waits for it, and for nothing that is taken meanwhile.
            if self.processes.is_taking_from(|_| true) {
                self.stop_hint("another process came back");
            }
            self.hint_next();
        }
    }

    /// What is said of groups, and of those in which a process is in the foreground, counts from now on.
    fn apply_statements(&mut self) {
        match apply_statements(
            &self.host.kernel,
            &self.world.classifier,
            &mut self.world.tree,
            &self.processes.statements,
        ) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => self.reclassified(&changed),
            Err(err) => log::warn!("{err}"),
        }
    }

    /// Takes note of the statements that clients of the control socket keep up.
    pub fn note_client_statements(&mut self) {
        if self.processes.statements.set_client_statements(self.server.statements()) {
            self.apply_statements();
        }
    }

    /// Those of a client's statements that it may make, and how many were refused. A statement about a
    /// process or group that is gone is left out; one about what is not the client's own is refused,
    /// unless the client may speak for everybody.
    pub fn own_statements(&self, statements: &[Statement], peer: Peer) -> Result<(Statements, usize)> {
        if statements.iter().any(|statement| statement.presence == Presence::Background) {
            bail!("what is in the background cannot be held: say it once, as root");
        }
        let mut own = Statements::default();
        let mut refused = 0;
        for Statement { presence, subject } in statements {
            let Some((id, owner)) = self.owner(subject) else { continue };
            if !peer.owns(owner) {
                refused += 1;
                continue;
            }
            match id {
                Either::Process(id) => own.processes.insert(id, *presence),
                Either::Group(id) => own.groups.insert(id, *presence),
            };
        }
        Ok((own, refused))
    }

    /// Whose it is, if it is there.
    fn owner(&self, of: &Subject) -> Option<(Either, u32)> {
        match of {
            Subject::Process(id) => {
                let process =
                    Process::open(&self.host.kernel, id.pid).ok().filter(|process| processes::id(process) == *id)?;
                Some((Either::Process(*id), Status::read(process.dir()).ok()?.uid?))
            }
            Subject::Group(path) => {
                let path = self.host.kernel.group_path(Path::new(path)).to_path_buf();
                let id = self.world.tree.find(&path)?.id;
                let group =
                    Group::open(self.host.kernel.cgroup().ok()?, &path).ok().filter(|group| group.id() == id)?;
                Some((Either::Group(id), group.dir().owner().ok()?))
            }
        }
    }

    fn rank(&mut self) {
        // The last hint has changed the free memory.
        let Some(signals) = self.readings.read_memory(&self.host) else { return };
        let mut list: Vec<_> = self.processes.seen.values().map(|seen| seen.process.clone()).collect();
        list.sort_unstable_by_key(|process| process.id);
        self.processes.ranked =
            rank(&self.settings.config, &self.mind.state, &mut self.processes.records, &signals, &list);
        // The one that is being hinted is not to be used, nor to be in the foreground.
        let Some(hinting) = &self.processes.hinting else { return };
        let now = self.processes.ranked.iter().find(|ranked| ranked.id == hinting.id);
        let reason = match now.map(|ranked| ranked.verdict.reason()) {
            Some(Reason::Class { class: Class::Foreground }) if hinting.step == HintKind::Prefetch => return,
            Some(_) if hinting.step == HintKind::Prefetch => "it left the foreground".to_owned(),
            Some(reason @ (Reason::InUse { .. } | Reason::Class { .. } | Reason::NotStated)) => reason.to_string(),
            Some(_) => return,
            None => "it has ended".to_owned(),
        };
        self.stop_hint(&reason);
    }

    /// Ends the hint that is being given, if one is.
    pub(super) fn stop_hint(&mut self, reason: &str) {
        if let Some(hinting) = &mut self.processes.hinting {
            hinting.stop.get_or_insert_with(|| reason.to_owned());
            self.work.stop();
        }
    }

    /// Groups have another class now: not with the next look, but at once.
    pub(super) fn look_for_returning(&mut self) {
        if !self.processes.away.is_empty() {
            self.look();
        }
    }

    /// A process that was paged out and is in the foreground.
    fn returning(&mut self) -> Option<ProcessId> {
        let processes = &self.processes;
        let is_back =
            |id: &&ProcessId| processes.seen.get(id).is_some_and(|seen| seen.process.class == Class::Foreground);
        let id = *processes.away.keys().find(is_back)?;
        may_prefetch(&self.settings.config, &self.mind.state, clock::read_monotonic()).then_some(id)
    }

    /// One that came back, else the first process of the ranking for which a hint is due.
    fn hint_next(&mut self) {
        if self.work.is_busy() || self.preparation.is_wanted() {
            return;
        }
        let due = self.processes.ranked.iter().find_map(|ranked| match &ranked.verdict {
            Verdict::Hint { kind, reason } => Some((ranked.id, *kind, reason.clone())),
            Verdict::Hold { .. } => None,
        });
        let back = self.returning().map(|id| (id, HintKind::Prefetch, Reason::CameBack));
        let Some((id, step, start)) = back.or(due) else { return };
        let within = if step == HintKind::Prefetch { self.processes.away.remove(&id) } else { None };
        let Some(seen) = self.processes.seen.get(&id) else { return };
        let lacking = self.readings.signals.as_ref().map(|signals| lacking(&self.settings.config, &signals.machine));
        let amount = lacking.filter(|_| step == HintKind::PageOut).filter(|amount| seen.process.anon > Some(*amount));
        let order = hinting::Order {
            id,
            step,
            within,
            account: seen.account.clone(),
            room: seen.process.room.unwrap_or_default(),
            amount,
            loaded: self.settings.loaded.clone(),
        };
        log::debug!("{} ({}): {} hint: {start}", id.pid, printable(&seen.name), step.name());
        self.processes.hinting = Some(Hinting { id, step, amount, start, stop: None });
        self.mind.state.set_hinting(true);
        self.sweeps.clear_trigger();
        self.work.order(Order::Hint(order));
    }

    /// The worker is done with it.
    pub(super) fn hinted(&mut self, given: Given) {
        self.mind.state.set_hinting(false);
        let Some(hinting) = self.processes.hinting.take() else { return };
        match given {
            // Until the next look it would be the first again.
            Given::Gone => drop(self.processes.seen.remove(&hinting.id)),
            Given::Hinted(report, holds) => {
                let end = remembered(report.end, hinting.amount, self.settings.config.mode);
                if hinting.step == HintKind::PageOut && self.settings.config.hints.prefetch {
                    self.processes.note_places(hinting.id, &report.places);
                }
                self.note_hint(&hinting, end, holds, report.swapped_out);
                self.record(hinting, Ok((&report, holds)));
            }
            Given::Failed(error) => {
                self.note_hint(&hinting, HintEnd::Failed, ProcessMemory::default(), Bytes::ZERO);
                self.record(hinting, Err(error));
            }
        }
        self.rank();
        self.hint_next();
    }

    fn note_hint(&mut self, hinting: &Hinting, end: HintEnd, holds: ProcessMemory, swapped_out: Bytes) {
        if hinting.step == HintKind::Prefetch {
            return;
        }
        let on_disk = self.readings.swap_is_on_disk().unwrap_or(false);
        let hinted = HintReport {
            kind: hinting.step,
            anon: holds.anon.unwrap_or_default(),
            swap_writes: if on_disk { swapped_out } else { Bytes::ZERO },
            end,
        };
        let hour = clock::read_wall().as_secs() / 3600;
        self.processes.records.hinted(&mut self.mind.state, clock::read_monotonic(), hour, hinting.id, &hinted);
        self.books.save(&self.mind.state.writes);
    }

    /// A line in the ledger and one in the log.
    fn record(&mut self, hinting: Hinting, result: Result<(&Report, ProcessMemory), String>) {
        let ranked = self.processes.ranked.iter().find(|ranked| ranked.id == hinting.id);
        let score = ranked.and_then(|ranked| ranked.score);
        let Some(seen) = self.processes.seen.get_mut(&hinting.id) else { return };
        let mut line = HintLine {
            time: clock::read_wall().as_secs(),
            id: hinting.id,
            name: seen.name.clone(),
            group: seen.group.to_string_lossy().into_owned(),
            step: hinting.step,
            observed: self.settings.config.mode == Mode::Observe,
            advised: Bytes::ZERO,
            freed: Bytes::ZERO,
            swapped_out: Bytes::ZERO,
            cpu_ms: 0,
            wall_ms: 0,
            start_reason: hinting.start.to_string(),
            score: score.map(|score| score.to_string()).unwrap_or_default(),
            stop_reason: "refused".into(),
            error: None,
        };
        match result {
            Ok((report, holds)) => {
                seen.process.anon = holds.anon.or(seen.process.anon);
                seen.process.swapped = holds.swapped.or(seen.process.swapped);
                line.advised = report.hinted;
                line.freed = report.freed;
                line.swapped_out = report.swapped_out;
                line.cpu_ms = millis(report.cpu);
                line.wall_ms = millis(report.wall);
                line.stop_reason = match (report.end, hinting.stop) {
                    (End::Stopped, Some(reason)) => reason,
                    (end, _) => end.words().to_owned(),
                };
                let swapped = holds.swapped.unwrap_or_default();
                // What came back since the last one was taken out is still to be seen.
                if hinting.step != HintKind::Prefetch {
                    let done = Done { step: hinting.step, at: clock::read_monotonic(), freed: report.freed, swapped };
                    self.processes.done.insert(hinting.id, done);
                }
            }
            Err(error) => line.error = Some(error),
        }
        let what = format!("{} ({})", line.id.pid, printable(&line.name));
        match &line.error {
            Some(error) => log::warn!("{what}: {error}"),
            None => log::info!("{what}: {} hint, {} freed, {}", line.step.name(), line.freed, line.stop_reason),
        }
        self.books.record(&Entry::Hint(line));
    }

    /// Takes note of a statement that root makes; `None`: nothing is stated any more.
    pub fn say(&mut self, word: Option<Presence>, of: &Subject) -> Result<()> {
        match of {
            Subject::Process(id) => self.say_of_process(word, *id)?,
            Subject::Group(path) => self.say_of_group(word, path)?,
        }
        let what = match word {
            Some(word) => format!("omr {}", word.class().name()),
            None => "nothing is said any more".into(),
        };
        log::info!("{}: {what}", self.of_whom(of));
        Ok(())
    }

    fn say_of_process(&mut self, word: Option<Presence>, id: ProcessId) -> Result<()> {
        if !is_there(&self.host.kernel, id) {
            bail!("process {} has ended", id.pid);
        }
        let before = self.processes.statements.processes().get(&id).copied();
        self.processes.statements.set_process(id, word)?;
        if word == Some(Presence::Foreground) {
            // At once, and not with the next look.
            self.processes.records.came_back(clock::read_monotonic(), id);
            if self.processes.is_taking_from(|hinted| hinted == id) {
                self.stop_hint("omr foreground");
            }
            self.leave_group_of(id);
        }
        self.look_anew();
        let seen = self.processes.seen.get(&id);
        if word == Some(Presence::Background)
            && let Some(seen) = seen.filter(|seen| seen.process.class != Class::Background)
        {
            let (class, origin) = (seen.process.class.name(), seen.origin.to_string());
            self.processes.statements.set_process(id, before)?;
            bail!("process {} is {class}, which omr background does not take away: {origin}", id.pid);
        }
        Ok(())
    }

    fn say_of_group(&mut self, word: Option<Presence>, path: &str) -> Result<()> {
        let path = PathBuf::from(path);
        let path = self.host.kernel.group_path(&path).to_path_buf();
        if self.world.tree.find(&path).is_none() {
            // It may have come since the last scan.
            self.scan();
        }
        let Some(node) = self.world.tree.find(&path) else { return Err(no_group(&path)) };
        let id = node.id;
        if let (Some(word), Some(assignment)) = (word, self.world.tree.assignment(node)) {
            let mut assignment = assignment.clone();
            if !assignment.apply_statement(word, None) && word == Presence::Background {
                let (class, why) = (assignment.class.name(), assignment.explain(&path));
                let shown = printable(&path.to_string_lossy());
                bail!("{shown} is {class}, which omr background does not take away: {why}");
            }
        }
        self.processes.statements.set_group(id, word)?;
        if let Some(word @ Presence::Foreground) = word {
            self.leave(&path, word.class(), &class::Origin::Stated(word, None));
        }
        self.look_anew();
        Ok(())
    }

    /// These groups have another class now: ends what is being done to those that are not in the background.
    pub(super) fn reclassified(&mut self, changed: &[GroupId]) {
        self.world.refresh_groups(&self.host);
        self.note_old();
        for id in changed {
            let node = self.world.tree.nodes().iter().find(|node| node.id == *id);
            let assignment = node.and_then(|node| self.world.tree.assignment(node));
            let assignment = assignment.filter(|assignment| assignment.class != Class::Background);
            if let (Some(assignment), Some(path)) = (assignment.cloned(), self.world.tree.path(*id)) {
                self.leave(&path, assignment.class, &assignment.origin);
            }
        }
        self.processes.next_look = Monotonic(0);
    }

    /// Ends what is being done to a group, and to processes in it. A sweep of a group above it takes from it as well.
    fn leave(&mut self, path: &Path, class: Class, origin: &class::Origin) {
        let is_on_the_way = |running: &Path| running.starts_with(path) || path.starts_with(running);
        if self.sweeps.running.as_ref().is_some_and(|running| is_on_the_way(&running.path)) {
            self.stop(Reason::Class { class });
        }
        let now = clock::read_monotonic();
        let inside = self.processes.seen.values().filter(|seen| seen.group.starts_with(path));
        let inside: Vec<ProcessId> = inside.map(|seen| seen.process.id).collect();
        for id in &inside {
            self.processes.records.came_back(now, *id);
        }
        if self.processes.is_taking_from(|hinted| inside.contains(&hinted)) {
            self.stop_hint(&origin.to_string());
        }
    }

    /// With groups as they are now, unless that takes too long beside a sweep.
    fn look_anew(&mut self) {
        self.apply_statements();
        if self.sweeps.running.is_none() || !self.world.is_slow_to_scan() {
            self.scan();
        }
        self.look();
    }

    /// Ends a sweep of the group that this process is in.
    fn leave_group_of(&mut self, id: ProcessId) {
        let group =
            Process::open(&self.host.kernel, id.pid).ok().and_then(|process| process.read_group().ok().flatten());
        if self.sweeps.running.as_ref().is_some_and(|running| Some(&running.path) == group.as_ref()) {
            self.stop(Reason::Class { class: Class::Foreground });
        }
    }

    fn of_whom(&self, of: &Subject) -> String {
        match of {
            Subject::Process(id) => match self.processes.seen.get(id) {
                Some(seen) => format!("{} ({})", id.pid, printable(&seen.name)),
                None => id.pid.to_string(),
            },
            Subject::Group(path) if path.is_empty() => "/".into(),
            Subject::Group(path) => printable(path),
        }
    }

    /// The process that is being hinted away.
    pub(super) fn hinting_view(&self) -> Option<String> {
        let id = self.processes.hinting.as_ref()?.id;
        Some(self.of_whom(&Subject::Process(id)))
    }

    pub(super) fn statement_views(&self) -> Vec<StatementView> {
        let statements = &self.processes.statements;
        let groups = statements.groups().iter().filter_map(|(id, word)| {
            let path = self.world.tree.path(*id)?.to_string_lossy().into_owned();
            Some(StatementView { word: *word, what: self.of_whom(&Subject::Group(path)) })
        });
        let processes = statements.processes().iter();
        let processes =
            processes.map(|(id, word)| StatementView { word: *word, what: self.of_whom(&Subject::Process(*id)) });
        let mut all: Vec<StatementView> = groups.chain(processes).collect();
        all.sort_by(|a, b| (a.word.class().name(), &a.what).cmp(&(b.word.class().name(), &b.what)));
        all
    }

    pub(super) fn process_views(&self, now: Monotonic) -> Vec<ProcessView> {
        self.processes.ranked.iter().map(|ranked| self.process_view(now, ranked)).collect()
    }

    fn process_view(&self, now: Monotonic, ranked: &Ranked) -> ProcessView {
        let seen = self.processes.seen.get(&ranked.id);
        let last = self.processes.done.get(&ranked.id).map(|done| LastHint {
            step: done.step,
            ago: now.since(done.at),
            freed: done.freed,
            came_back: seen.and_then(|seen| Some(done.swapped - seen.process.swapped?)).unwrap_or_default(),
        });
        let done = self.processes.done.get(&ranked.id).map_or(self.processes.began, |done| done.at);
        let cold = self.processes.cold.get(&ranked.id).and_then(|cold| cold_view(now, cold, done));
        ProcessView {
            id: ranked.id,
            score: ranked.score,
            verdict: ranked.verdict.clone(),
            last,
            cold,
            hinting: self.processes.hinting.as_ref().is_some_and(|hinting| hinting.id == ranked.id),
        }
    }

    /// Why a process is, or is not, hinted away.
    pub(super) fn explain_process(&mut self, now: Monotonic, pid: u32) -> Result<Explanation> {
        self.look();
        let Some(seen) = self.processes.seen.values().find(|seen| seen.process.id.pid == pid) else {
            if Process::open(&self.host.kernel, pid).is_err() {
                return Err(processes::no_process(&pid.to_string()));
            }
            bail!("no rule for processes fits process {pid}, and nobody has said that it is in the background");
        };
        let mut explanation = Explanation {
            group: Some(seen.group.to_string_lossy().into_owned()),
            verdict: "just started".into(),
            reason: None,
            next: None,
            class: Some(format!("{}: {}", seen.process.class.name(), seen.origin)),
            guards: seen.process.unfocused.map(|since| unfocused(now, since)).into_iter().collect(),
        };
        let Some(ranked) = self.processes.ranked.iter().find(|ranked| ranked.id == seen.process.id) else {
            return Ok(explanation);
        };
        let view = self.process_view(now, ranked);
        explanation.verdict = match &ranked.verdict {
            _ if view.hinting => "being hinted away now".to_owned(),
            Verdict::Hint { kind, reason } => format!("{} hint due: {reason}", kind.name()),
            Verdict::Hold { reason } => format!("held: {reason}"),
        };
        explanation.reason = Some(ranked.verdict.reason().clone());
        explanation.next = ranked.score.map(|score| format!("ranked by {score}"));
        if let Some(last) = view.last {
            let (step, ago) = (last.step.name(), omr_policy::short(last.ago));
            explanation
                .guards
                .push(format!("{step} hint {ago} ago: {} freed, {} came back", last.freed, last.came_back));
        }
        Ok(explanation)
    }
}

/// How the policy sees the end of a hint, of which so much was asked for; `None`: all.
fn remembered(end: End, amount: Option<Bytes>, mode: Mode) -> HintEnd {
    match end {
        // In a dry run nothing has changed, and nothing will.
        End::Complete if amount.is_some() && mode == Mode::Act => HintEnd::Enough,
        // Of what is left none will go.
        End::Complete | End::Futile => HintEnd::Complete,
        // There is more, and what was in the way may change.
        End::Floor | End::SwapFloor | End::WriteBudget => HintEnd::Enough,
        End::Stopped | End::Timeout => HintEnd::Stopped,
        End::Denied | End::Unsupported | End::Failed => HintEnd::Failed,
        // Nobody will ask for it again; and no hint goes by age.
        End::Gone | End::NoMoreCold | End::NotAged | End::NotSeen => HintEnd::Complete,
    }
}

/// A process or a group.
enum Either {
    Process(ProcessId),
    Group(GroupId),
}

/// `without the focus for 22 min`
pub(super) fn unfocused(now: Monotonic, since: Monotonic) -> String {
    format!("without the focus for {}", omr_policy::short(now.since(since)))
}

fn is_there(kernel: &Kernel, id: ProcessId) -> bool {
    Process::open(kernel, id.pid).is_ok_and(|process| processes::id(&process) == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_could_not_take_all_of_it_is_given_again() {
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
            assert_eq!(remembered(end, amount, mode), is, "{end:?} {amount:?} {mode:?}");
        }
        // How much was asked for, and whether it was only looked at, is nothing to these.
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
                assert_eq!(remembered(end, amount, mode), is, "{end:?} {amount:?} {mode:?}");
            }
        }
    }
}
