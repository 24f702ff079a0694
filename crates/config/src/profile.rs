//! Profiles: named sets of values.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use omr_policy::{Class, Goal, IdleRule};
use omr_units::{Bytes, Permyriad};

use crate::glob::Glob;
use crate::loaded::Loaded;
use crate::rules::{GroupRule, Place, Selector};

/// A profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Like the original patch's daemon: once every CPU was 95 % idle for 30 s, reclaim as much as
    /// possible.
    Seed,
}

impl Profile {
    /// Replaces loaded values with those of the profile. `target`: only this group is reclaimed,
    /// whatever the rules say.
    pub fn apply(self, target: Option<&Path>, loaded: &mut Loaded) -> Result<(), String> {
        let Profile::Seed = self;
        let policy = &mut loaded.policy;
        policy.goal = Goal::Free;
        policy.idle.rule = IdleRule::Strict;
        policy.idle.strict = Permyriad::percent(95);
        // That daemon took samples of one second, and waited after work as long as at first.
        policy.idle.window = Duration::from_secs(1);
        policy.idle.hold = Duration::from_secs(30);
        policy.idle.again = policy.idle.hold;
        policy.sweep.after_boot = Duration::ZERO;
        policy.sweep.after_resume = Duration::ZERO;
        // That daemon asked again every second.
        policy.sweep.growth = policy.sweep.smallest;
        policy.guard.refaults_per_minute = Bytes::MAX;
        policy.guard.max_swap_writes = None;
        if let Some(path) = target.map(escaped).transpose()?.filter(|path| !path.is_empty()) {
            let below = format!("{path}/**");
            let rules = [("**", Class::Protected), (&*path, Class::Background), (&*below, Class::Background)];
            loaded.groups = rules.into_iter().map(|(text, class)| rule(text, class)).collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

fn rule(text: &str, class: Class) -> Result<GroupRule, String> {
    let place = Place { file: Arc::from(Path::new("--profile")), line: 1 };
    Ok(GroupRule {
        selector: Selector::Match(Glob::path(text)?),
        class: Some(class),
        enforce: false,
        keep: None,
        older_than: None,
        place,
    })
}

/// Returns a pattern that matches only this group.
fn escaped(path: &Path) -> Result<String, String> {
    let text = path.to_str().ok_or_else(|| format!("{}: a group's path in UTF-8 is expected", path.display()))?;
    Ok(glob::Pattern::escape(text.trim_matches('/')))
}
