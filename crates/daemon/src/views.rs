//! The answers to `omr status`, and to `omr explain` of a group or the machine.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use omr_control::counters::Counters;
use omr_control::status::{
    Explanation, GoalView, GroupView, ImageView, MOST_GROUPS, PolicyView, RegretView, Status, SwapView, SweepView,
};
use omr_engine::prepare::{disk_rate, image};
use omr_machine::groups::tree::{Node, no_group};
use omr_policy::need::need;
use omr_policy::presence::Presence;
use omr_policy::probe::Answer;
use omr_policy::{ColdAmount, ColdOnly, Decision, Goal, cost, judge, quiet, short};
use omr_units::{Amount, Bytes, GroupId, Monotonic, millis};
use serde::{Serialize, Serializer};

use crate::daemon::Daemon;
use crate::statements;

/// With `goal = "auto"`, where memory cannot be given back.
const NO_WAY_BACK: &str = "thresholds hold while everybody is away, too: giving memory back needs omr-give-back.socket";

fn swap_view(daemon: &Daemon) -> Option<SwapView> {
    let signals = daemon.readings.signals.as_ref()?;
    let swap = signals.machine.swap?;
    let (config, writes) = (&daemon.settings.config, &daemon.mind.state.writes);
    let limit = cost::limit(config, &signals.machine, writes, signals.hour).filter(|_| swap.on_disk);
    let budget = limit.map(|limit| limit.budget);
    Some(SwapView {
        total: swap.total,
        free: swap.free,
        floor: cost::swap_floor(config, signals.machine.swap_context(), Bytes::MAX),
        on_disk: swap.on_disk,
        written: writes.within(signals.hour, budget.map_or(24, |budget| budget.hours)),
        budget,
        medium: limit.and_then(|limit| limit.medium),
        no_writes: cost::must_end(config, &signals.machine).map(|reason| reason.to_string()),
    })
}

/// The hibernation image, for which some ten files are read.
pub fn image_view(daemon: &Daemon) -> ImageView {
    let forecast = image::forecast(&daemon.host.kernel);
    let place = image::place(&daemon.host.kernel, &daemon.host.root);
    let disk_rate = place.as_ref().ok().and_then(|place| disk_rate::load(&daemon.host.root, &place.device.path));
    let time = forecast.zip(disk_rate).and_then(|(forecast, rate)| forecast.most_written().time_at(rate));
    ImageView {
        forecast,
        device: place.as_ref().ok().map(image::Place::name),
        obstacle: place.err().map(|obstacle| obstacle.to_string()),
        disk_rate,
        write_ms_at_most: time.map(millis),
        is_goal: daemon.settings.config.goal == Goal::Hibernate,
    }
}

fn goal_view(daemon: &Daemon) -> GoalView {
    let config = &daemon.settings.config;
    let signals = daemon.readings.signals.as_ref().filter(|_| config.goal == Goal::Auto);
    let need = signals.map(|signals| need(config, &signals.machine));
    let words = need.as_ref().map(|need| match need {
        Ok(need) => need.to_string(),
        Err(reason) => reason.to_string(),
    });
    let presence = (config.goal == Goal::Auto).then(|| daemon.mind.state.presence());
    let presence_words = presence.map(Presence::to_string);
    GoalView { goal: config.goal, need: need.and_then(Result::ok), words, presence: presence.cloned(), presence_words }
}

/// The status, with this image.
pub fn status(daemon: &Daemon, now: Monotonic, image: ImageView) -> Status<LargestGroups<'_>> {
    let sweep = daemon.sweeps.running.as_ref().map(|running| {
        let progress = daemon.work.progress();
        SweepView {
            number: running.number,
            group: running.path.to_string_lossy().into_owned(),
            asked: running.asked,
            freed: progress.freed,
            swapped_out: progress.swapped_out,
        }
    });
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        mode: daemon.settings.config.mode,
        backend: daemon.settings.backend.name().to_owned(),
        config: daemon.settings.loaded.files.clone(),
        decision: daemon.mind.decision.clone(),
        reason: daemon.mind.decision.as_ref().map_or_else(|| "just started".into(), |d| d.reason().to_string()),
        goal: Some(goal_view(daemon)),
        sweep,
        preparing: daemon.preparation.view(now, daemon.work.progress().freed),
        giving_back: daemon.giving_back.view(daemon.work.progress().hinted),
        today: daemon.books.tally.today.clone(),
        held_out_bytes: daemon.regrets.regrets.held_of_all(),
        swap: swap_view(daemon),
        image: Some(image),
        hinting: daemon.processes.hints().running().map(|hint| daemon.processes.name(hint.id)),
        statements: statements::views(&daemon.world, &daemon.statements, &daemon.processes),
        history: Some(daemon.aging.view(now, &daemon.settings.config.history)),
        counters: Some(Counters {
            cpu: daemon.host.kernel.clock.own_cpu(),
            ..daemon.books.counting.with(daemon.mind.in_force(now))
        }),
        policy: Some(PolicyView {
            hash: format!("{:08x}", daemon.settings.hash),
            promotions: daemon.terms().slo.promotions,
        }),
        groups_total: daemon.world.tree.nodes().len(),
        groups: LargestGroups::new(daemon, now),
    }
}

/// The largest groups, the largest one first. They are written one by one, so that the status needs
/// little memory: the daemon keeps what it once had.
pub struct LargestGroups<'a> {
    daemon: &'a Daemon,
    now: Monotonic,
    /// Each with its place in the tree.
    largest: Vec<(&'a omr_policy::Group, Option<(usize, &'a Node)>)>,
}

impl<'a> LargestGroups<'a> {
    fn new(daemon: &'a Daemon, now: Monotonic) -> Self {
        let by_size = |(at, group): &(usize, &omr_policy::Group)| (Reverse(group.current), *at);
        let mut largest: Vec<(usize, &omr_policy::Group)> = daemon.world.groups.iter().enumerate().collect();
        if largest.len() > MOST_GROUPS {
            largest.select_nth_unstable_by_key(MOST_GROUPS, by_size);
            largest.truncate(MOST_GROUPS);
        }
        largest.sort_unstable_by_key(by_size);
        // One walk over all groups finds the places of these in the tree.
        let wanted: HashMap<GroupId, usize> =
            largest.iter().zip(0..).map(|((_, group), place)| (group.id, place)).collect();
        let mut largest: Vec<_> = largest.into_iter().map(|(_, group)| (group, None)).collect();
        for (index, node) in daemon.world.tree.nodes().iter().enumerate() {
            if let Some((_, place)) = wanted.get(&node.id).and_then(|at| largest.get_mut(*at)) {
                *place = Some((index, node));
            }
        }
        LargestGroups { daemon, now, largest }
    }
}

impl Serialize for LargestGroups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let views = self.largest.iter().filter_map(|(group, place)| {
            let place = (*place)?;
            Some(group_view(self.daemon, self.now, group, place))
        });
        serializer.collect_seq(views)
    }
}

fn group_view(daemon: &Daemon, now: Monotonic, group: &omr_policy::Group, (index, node): (usize, &Node)) -> GroupView {
    let tally = daemon.books.tally.group(group.id);
    GroupView {
        group: daemon.world.tree.path_at(index).to_string_lossy().into_owned(),
        class: group.class,
        explicit: daemon.world.tree.assignment(node).is_some_and(|assignment| assignment.explicit),
        current: group.current,
        freed: tally.map(|tally| tally.freed).unwrap_or_default(),
        came_back: tally.and_then(|tally| Some(group.refaults? - tally.first_refaults?)).unwrap_or_default(),
        last: tally.map(|tally| now.since(tally.last)),
        last_end: tally.and_then(|tally| tally.end),
        sweeping: daemon.mind.state.sweeping() == Some(group.id),
        by_age: group.cold_only.clone(),
    }
}

fn regret_view(daemon: &Daemon, id: GroupId, path: &str) -> RegretView {
    let regret = daemon.books.tally.regret(path);
    RegretView {
        held_out_bytes: daemon.regrets.regrets.held(id),
        held_out_average_bytes: daemon.books.tally.held(path),
        waited_ms: millis(regret.waited),
        refaulted_bytes: regret.refaults,
        incomplete: regret.is_incomplete,
    }
}

/// The reason why a group is, or is not, swept; without a group, the last decision.
pub fn explain(daemon: &Daemon, now: Monotonic, group: Option<&Path>) -> Result<Explanation> {
    let goal = goal_view(daemon);
    let mut explanation = Explanation {
        group: None,
        verdict: String::new(),
        reason: daemon.mind.decision.as_ref().map(|decision| decision.reason().clone()),
        next: None,
        class: None,
        goal: goal.words.map(|words| format!("{}: {words}", Goal::Auto.name())),
        presence: goal.presence_words,
        regret: None,
        guards: Vec::new(),
    };
    let age = omr_policy::short(now.since(daemon.mind.decided)).to_string();
    explanation.verdict = match &daemon.mind.decision {
        None => "just started".into(),
        Some(Decision::Hold { reason }) => format!("not sweeping: {reason} ({age} ago)"),
        Some(Decision::Sweep { reason, .. } | Decision::Continue { reason }) => format!("sweeping: {reason}"),
        Some(Decision::Stop { reason }) => format!("stopped: {reason} ({age} ago)"),
    };
    if let Some(swap) = swap_view(daemon) {
        let config = &daemon.settings.config;
        let by_cost = config.goal == Goal::Auto && config.cost.swap_floor.of(swap.total) == swap.floor;
        let share = match if by_cost { config.cost.swap_floor } else { config.guard.swap_floor } {
            Amount::Share(share) => format!(" ({share})"),
            _ => String::new(),
        };
        explanation.guards.push(format!("free swap {} of {}, {}{share} stays free", swap.free, swap.total, swap.floor));
        if let Some(budget) = swap.budget {
            let medium = swap.medium.map(|medium| format!(" ({medium})")).unwrap_or_default();
            explanation.guards.push(format!("swap writes {}, allowance {budget}{medium}", swap.written));
        }
        explanation.guards.extend(swap.no_writes);
    }
    if daemon.settings.config.goal == Goal::Auto && !daemon.giving_back.is_possible() {
        explanation.guards.push(NO_WAY_BACK.to_owned());
    }
    let Some(path) = group else { return Ok(explanation) };
    let path = daemon.host.kernel.group_path(path);
    let Some(node) = daemon.world.tree.find(path) else { return Err(no_group(path)) };
    explanation.group = Some(path.to_string_lossy().into_owned());
    explanation.regret = Some(regret_view(daemon, node.id, &path.to_string_lossy()));
    if let Some(assignment) = daemon.world.tree.assignment(node) {
        explanation.class = Some(format!("{}: {}", assignment.class.name(), assignment.explain(path)));
        explanation.guards.extend(assignment.unfocused.map(|since| unfocused(now, since)));
    }
    let (Some(seen), Some(signals)) =
        (daemon.world.groups.iter().find(|group| group.id == node.id), &daemon.readings.signals)
    else {
        explanation.verdict = match node.current {
            None => "not swept: it has no memory controller; its memory is charged to the group above it".into(),
            Some(_) => "not swept: some groups below it are not in the background, so each is judged by itself".into(),
        };
        return Ok(explanation);
    };
    if daemon.mind.state.sweeping() == Some(node.id) {
        explanation.verdict = "being swept now".into();
    } else {
        match judge(&daemon.settings.config, &daemon.mind.state, signals, seen) {
            Err(reason) => {
                explanation.verdict = format!("not swept: {reason}");
                explanation.reason = Some(reason);
            }
            Ok((job, _)) => {
                let old = match &seen.cold_only {
                    None => String::new(),
                    Some(by_age) if by_age.is_probed() => ", memory of any age by a probe,".into(),
                    Some(by_age) => format!(", not used for {}", short(by_age.min_age)),
                };
                let when = if quiet::suffices(&daemon.settings.config, seen) { "quiet" } else { "idle" };
                explanation.next = Some(format!("a sweep of up to {}{old} once the machine is {when}", job.amount))
            }
        }
    }
    if let Some(ColdOnly { min_age, threshold: Some(threshold), .. }) =
        seen.cold_only.as_ref().filter(|cold_only| cold_only.is_younger())
    {
        let (age, threshold) = (short(*min_age), short(*threshold));
        explanation.guards.push(format!("away: memory unused for {age}, its threshold is {threshold}"));
    }
    if let Some(ColdAmount::Probed { why, answer, out }) = seen.cold_only.as_ref().map(|by_age| &by_age.cold) {
        let back = match answer {
            Answer::Take { back, allowed, .. } => format!("{back} came back in a minute, {allowed} may; "),
            Answer::Hold(_) => String::new(),
        };
        explanation.guards.push(format!("probe: {out} is out; {back}ages are not known: {why}"));
    } else if let Some(learned) = daemon.aging.why(node.id) {
        let threshold = learned.step.age();
        let observed = match learned.observed_at < threshold {
            true => format!(", observed at {}", short(learned.observed_at)),
            false => String::new(),
        };
        explanation.guards.push(format!("threshold {}{observed}: {}", short(threshold), learned.why));
    }
    if let Some(refaults) = daemon.mind.state.refaults_this_minute(seen) {
        let on_disk = daemon.readings.swap_is_on_disk().unwrap_or(true);
        let allowed = daemon.settings.config.guard.allowed(seen.current.unwrap_or_default(), on_disk);
        explanation.guards.push(format!("{refaults} came back this minute, {allowed} is allowed"));
    }
    Ok(explanation)
}

/// The time without the focus, for messages: `without the focus for 22 min`.
pub fn unfocused(now: Monotonic, since: Monotonic) -> String {
    format!("without the focus for {}", short(now.since(since)))
}
