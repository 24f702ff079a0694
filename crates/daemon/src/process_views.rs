//! The answers to `omr ps`, and to `omr explain` of a process.

use anyhow::{Result, bail};
use omr_control::status::{ColdView, Explanation, ProcessView};
use omr_history::AGES;
use omr_kernel::Kernel;
use omr_kernel::process::Process;
use omr_machine::processes::no_process;
use omr_policy::rank::{Ranked, Verdict};
use omr_units::Monotonic;

use crate::aging_thread::Cold;
use crate::processes::Processes;
use crate::views::unfocused;

/// All background processes, in the order in which they get hints.
pub fn all(processes: &Processes, now: Monotonic) -> Vec<ProcessView> {
    processes.ranked().iter().map(|ranked| view(processes, now, ranked)).collect()
}

fn view(processes: &Processes, now: Monotonic, ranked: &Ranked) -> ProcessView {
    let swapped = processes.find(ranked.id).and_then(|found| found.process.swapped);
    let cold = processes.cold(ranked.id).and_then(|(cold, hinted)| cold_view(now, cold, hinted));
    ProcessView {
        id: ranked.id,
        score: ranked.score,
        verdict: ranked.verdict.clone(),
        last: processes.hints().last_view(now, ranked.id, swapped),
        cold,
        hinting: processes.hints().running().is_some_and(|hint| hint.id == ranked.id),
    }
}

/// `hinted`: the time of the last hint. It moved memory in the kernel's lists, so ages that reach
/// further back are unknown. `None`: all of them are.
fn cold_view(now: Monotonic, cold: &Cold, hinted: Monotonic) -> Option<ColdView> {
    let is_known = |age: &std::time::Duration| hinted <= cold.at && cold.at.since(hinted) >= *age;
    let ages = AGES.into_iter().zip(cold.bounds).filter(|(age, _)| is_known(age));
    let unused: Vec<_> = ages.collect();
    let view = ColdView { ago: now.since(cold.at), memory: cold.memory, unused };
    (!view.unused.is_empty()).then_some(view)
}

/// The reason why a process gets, or does not get, a hint.
pub fn explain(processes: &Processes, kernel: &Kernel, now: Monotonic, pid: u32) -> Result<Explanation> {
    let Some(found) = processes.find_by_pid(pid) else {
        if Process::open(kernel, pid).is_err() {
            return Err(no_process(&pid.to_string()));
        }
        bail!("process {pid} matches no rule for processes, and there is no statement that it is in the background");
    };
    let mut explanation = Explanation {
        group: Some(found.group.to_string_lossy().into_owned()),
        verdict: "just started".into(),
        reason: None,
        next: None,
        goal: None,
        presence: None,
        class: Some(format!("{}: {}", found.process.class.name(), found.origin)),
        regret: None,
        guards: found.process.unfocused.map(|since| unfocused(now, since)).into_iter().collect(),
    };
    let Some(ranked) = processes.ranked().iter().find(|ranked| ranked.id == found.process.id) else {
        return Ok(explanation);
    };
    let view = view(processes, now, ranked);
    explanation.verdict = match &ranked.verdict {
        _ if view.hinting => "gets a hint now".to_owned(),
        Verdict::Hint { kind, reason } => format!("{} hint due: {reason}", kind.name()),
        Verdict::Hold { reason } => format!("no hint: {reason}"),
    };
    explanation.reason = Some(ranked.verdict.reason().clone());
    explanation.next = ranked.score.map(|score| format!("ranked by {score}"));
    if let Some(last) = view.last {
        let (kind, ago) = (last.step.name(), omr_policy::short(last.ago));
        explanation.guards.push(format!("{kind} hint {ago} ago: {} freed, {} came back", last.freed, last.came_back));
    }
    Ok(explanation)
}
