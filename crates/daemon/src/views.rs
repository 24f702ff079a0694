//! What the daemon tells about itself: the answers to `omr status` and `omr explain`.

use std::path::Path;

use anyhow::Result;
use omr_control::status::{Explanation, GroupView, ImageView, Status, SwapView, SweepView};
use omr_engine::prepare::{disk_rate, image};
use omr_machine::groups::tree::no_group;
use omr_policy::{Decision, Goal, judge, short, swap_floor};
use omr_units::{Amount, Bytes, GroupId, Monotonic, millis};

use super::processes::unfocused;
use crate::daemon::Daemon;

/// Groups shown by `omr status`; the largest.
const MOST_GROUPS: usize = 100;

impl Daemon {
    fn swap_view(&self) -> Option<SwapView> {
        let signals = self.readings.signals.as_ref()?;
        let swap = signals.machine.swap?;
        let budget = self.settings.config.guard.max_swap_writes.filter(|_| swap.on_disk);
        Some(SwapView {
            total: swap.total,
            free: swap.free,
            floor: swap_floor(&self.settings.config, signals.machine.swap_context(), Bytes::MAX),
            on_disk: swap.on_disk,
            written: self.mind.state.writes.within(signals.hour, budget.map_or(24, |budget| budget.hours)),
            budget,
        })
    }

    fn image_view(&self) -> ImageView {
        let forecast = image::forecast(&self.host.kernel);
        let place = image::place(&self.host.kernel, &self.host.root);
        let disk_rate = place.as_ref().ok().and_then(|place| disk_rate::load(&self.host.root, &place.device.path));
        let time = forecast.zip(disk_rate).and_then(|(forecast, rate)| forecast.most_written().time_at(rate));
        ImageView {
            forecast,
            device: place.as_ref().ok().map(image::Place::name),
            obstacle: place.err().map(|obstacle| obstacle.to_string()),
            disk_rate,
            write_ms_at_most: time.map(millis),
            is_goal: self.settings.config.goal == Goal::Hibernate,
        }
    }

    pub(super) fn status(&self, now: Monotonic) -> Status {
        let mut groups: Vec<&omr_policy::Group> = self.world.groups.iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.current));
        let sweeping = self.mind.state.sweeping();
        let sweep = self.sweeps.running.as_ref().map(|running| {
            let progress = self.work.progress();
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
            mode: self.settings.config.mode,
            backend: self.settings.backend.name().to_owned(),
            config: self.settings.loaded.files.clone(),
            decision: self.mind.decision.clone(),
            reason: self.mind.decision.as_ref().map_or_else(|| "just started".into(), |d| d.reason().to_string()),
            sweep,
            preparing: self.preparation.view(now, self.work.progress().freed),
            today: self.books.tally.today.clone(),
            swap: self.swap_view(),
            image: Some(self.image_view()),
            hinting: self.hinting_view(),
            statements: self.statement_views(),
            history: Some(self.history_view(now)),
            groups_total: self.world.tree.nodes().len(),
            groups: groups
                .into_iter()
                .take(MOST_GROUPS)
                .filter_map(|group| self.group_view(now, group, sweeping))
                .collect(),
        }
    }

    fn group_view(&self, now: Monotonic, group: &omr_policy::Group, sweeping: Option<GroupId>) -> Option<GroupView> {
        let tally = self.books.tally.group(group.id);
        let node = self.world.tree.nodes().iter().find(|node| node.id == group.id)?;
        Some(GroupView {
            group: self.world.tree.path(group.id)?.to_string_lossy().into_owned(),
            class: group.class,
            explicit: self.world.tree.assignment(node).is_some_and(|assignment| assignment.explicit),
            current: group.current,
            freed: tally.map(|tally| tally.freed).unwrap_or_default(),
            came_back: tally.and_then(|tally| Some(group.refaults? - tally.first_refaults?)).unwrap_or_default(),
            last: tally.map(|tally| now.since(tally.last)),
            sweeping: sweeping == Some(group.id),
            by_age: group.cold_only.clone(),
        })
    }

    pub(super) fn explain(&self, now: Monotonic, group: Option<&Path>) -> Result<Explanation> {
        let mut explanation = Explanation {
            group: None,
            verdict: String::new(),
            reason: self.mind.decision.as_ref().map(|decision| decision.reason().clone()),
            next: None,
            class: None,
            guards: Vec::new(),
        };
        let age = omr_policy::short(now.since(self.mind.decided)).to_string();
        explanation.verdict = match &self.mind.decision {
            None => "just started".into(),
            Some(Decision::Hold { reason }) => format!("held: {reason} ({age} ago)"),
            Some(Decision::Sweep { reason, .. } | Decision::Continue { reason }) => format!("sweeping: {reason}"),
            Some(Decision::Stop { reason }) => format!("stopped: {reason} ({age} ago)"),
        };
        if let Some(swap) = self.swap_view() {
            let share = match self.settings.config.guard.swap_floor {
                Amount::Share(share) => format!(" ({share})"),
                _ => String::new(),
            };
            explanation
                .guards
                .push(format!("free swap {} of {}, {}{share} stays free", swap.free, swap.total, swap.floor));
            if let Some(budget) = swap.budget {
                explanation.guards.push(format!("swap writes {}, allowance {budget}", swap.written));
            }
        }
        let Some(path) = group else { return Ok(explanation) };
        let path = self.host.kernel.group_path(path);
        let Some(node) = self.world.tree.find(path) else { return Err(no_group(path)) };
        explanation.group = Some(path.to_string_lossy().into_owned());
        if let Some(assignment) = self.world.tree.assignment(node) {
            explanation.class = Some(format!("{}: {}", assignment.class.name(), assignment.explain(path)));
            explanation.guards.extend(assignment.unfocused.map(|since| unfocused(now, since)));
        }
        let (Some(seen), Some(signals)) =
            (self.world.groups.iter().find(|group| group.id == node.id), &self.readings.signals)
        else {
            explanation.verdict = match node.current {
                None => "held: it has no memory controller; the group above it accounts for its memory".into(),
                Some(_) => "held: not all groups below it may be touched, so each is looked at by itself".into(),
            };
            return Ok(explanation);
        };
        if self.mind.state.sweeping() == Some(node.id) {
            explanation.verdict = "being swept now".into();
            return Ok(explanation);
        }
        match judge(&self.settings.config, &self.mind.state, signals, seen) {
            Err(reason) => {
                explanation.verdict = format!("held: {reason}");
                explanation.reason = Some(reason);
            }
            Ok((job, _)) => {
                let old = seen.cold_only.as_ref().map(|by_age| format!(", not used for {}", short(by_age.min_age)));
                let old = old.unwrap_or_default();
                explanation.next = Some(format!("a sweep of up to {}{old} once the machine is idle", job.amount))
            }
        }
        if let Some(refaults) = self.mind.state.refaults_this_minute(seen) {
            let allowed = self.settings.config.guard.refaults_per_minute;
            explanation.guards.push(format!("{refaults} came back this minute, {allowed} is allowed"));
        }
        Ok(explanation)
    }
}
