//! A configuration while its files are read, and the checks that concern several keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_policy::Goal;

use crate::loaded::Loaded;
use crate::problem::Problem;
use crate::process::ProcessRule;
use crate::rules::{GroupRule, Place};
use crate::schema::{self, KEYS, Settings};

/// The values of the files that were read so far.
pub(crate) struct Draft {
    pub(crate) settings: Settings,
    pub(crate) origins: Vec<Option<Place>>,
    pub(crate) groups: Vec<GroupRule>,
    pub(crate) processes: Vec<ProcessRule>,
}

impl Default for Draft {
    fn default() -> Self {
        Draft {
            settings: Settings::default(),
            origins: vec![None; KEYS.len()],
            groups: Vec::new(),
            processes: Vec::new(),
        }
    }
}

impl Draft {
    /// Checks values that depend on each other. A built-in value yields to a written one: with
    /// `idle.for = "3s"`, the built-in `idle.again` of 5 s is lowered.
    pub(crate) fn check_combinations(&mut self, order: &dyn Fn(&Path) -> Option<usize>, problems: &mut Vec<Problem>) {
        let is_built_in = |key| place(&self.origins, key).is_none();
        let policy = &mut self.settings.policy;
        if is_built_in("idle.again") {
            policy.idle.again = policy.idle.again.min(policy.idle.hold);
        }
        if is_built_in("guard.backoff_max") {
            policy.guard.backoff_max = policy.guard.backoff_max.max(policy.guard.backoff);
        } else if is_built_in("guard.backoff") {
            policy.guard.backoff = policy.guard.backoff.min(policy.guard.backoff_max);
        }
        if is_built_in("hints.pageout_after") {
            policy.hints.pageout_after = policy.hints.pageout_after.max(policy.hints.cold_after);
        } else if is_built_in("hints.cold_after") {
            policy.hints.cold_after = policy.hints.cold_after.min(policy.hints.pageout_after);
        }
        // With this goal each medium has a budget of its own.
        if policy.goal == Goal::Auto && is_built_in("guard.max_swap_writes") {
            policy.guard.max_swap_writes = None;
        }
        let policy = self.settings.policy.clone();
        for (short, long, contradiction) in [
            ("idle.again", "idle.for", policy.idle.again > policy.idle.hold),
            ("stop.stall", "stop.window", policy.stop.stall > policy.stop.window),
            ("guard.backoff", "guard.backoff_max", policy.guard.backoff > policy.guard.backoff_max),
            ("slo.shortest", "slo.longest", policy.slo.shortest > policy.slo.longest),
            ("hints.cold_after", "hints.pageout_after", policy.hints.cold_after > policy.hints.pageout_after),
        ] {
            if contradiction {
                let wrong = [(short, "must not be longer than"), (long, "must not be shorter than")];
                problems.extend(self.contradiction(order, wrong, ""));
            }
        }
        if policy.stop.sample * 2 + policy.sweep.write_time > Duration::from_millis(100) {
            let wrong = [("stop.sample", "two of these and one"), ("sweep.write_time", "one of these and two")];
            problems.extend(self.contradiction(order, wrong, ", must fit into the 100ms in which a sweep stops"));
        }
    }

    /// Returns a problem about two keys that contradict each other, at the key that is written
    /// last. The text is the words of that key, the other key, and `end`.
    fn contradiction(
        &self,
        order: &dyn Fn(&Path) -> Option<usize>,
        mut wrong: [(&str, &str); 2],
        end: &str,
    ) -> Option<Problem> {
        let place = |key| place(&self.origins, key);
        wrong.sort_by_key(|(key, _)| place(key).map(|place| (order(&place.file), place.line)));
        let [(other, _), (key, words)] = wrong;
        let text = |key| KEYS.get(at(key)).map(|key| key.text(&self.settings)).unwrap_or_default();
        let elsewhere = place(other).map_or_else(|| "built in".to_owned(), Place::to_string);
        let (value, other_value) = (text(key), text(other));
        let text = format!("{key} = \"{value}\": {words} {other}, which is \"{other_value}\" ({elsewhere}){end}");
        Some(Problem::at(place(key)?, text))
    }

    pub(crate) fn finish(self, files: Vec<PathBuf>) -> Loaded {
        let Draft { settings: Settings { policy, backend, cloud }, origins, mut groups, mut processes } = self;
        groups.shrink_to_fit();
        processes.shrink_to_fit();
        Loaded { policy, backend, cloud, groups, processes, files, origins }
    }
}

/// Returns the place of the value of a key that exists; `None`: built in.
fn place<'a>(origins: &'a [Option<Place>], key: &str) -> Option<&'a Place> {
    origins.get(at(key))?.as_ref()
}

/// Returns the index in [`KEYS`] of a key that exists.
fn at(key: &str) -> usize {
    schema::index(key).unwrap_or_else(|| unreachable!("{key} is in the schema"))
}
