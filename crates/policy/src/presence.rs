//! Who is there: does somebody use the machine, or has everybody been away for long enough?
//!
//! With `goal = "auto"` memory of any age is reclaimed only while nobody is there. Nobody is away
//! because of one reading: absence is a time in which every reading was there and none showed
//! somebody. An unknown reading counts as somebody, and so does time in which nobody looked.

use core::fmt;
use core::time::Duration;

use omr_units::Monotonic;
use serde::{Deserialize, Serialize};

use crate::away;
use crate::config::{Config, Goal};
use crate::reason::{Reason, short};
use crate::signals::Group;
use crate::state::State;

/// Facts that are older than this say nothing any more. `omr follow` asks logind every 10 s.
pub const STALE: Duration = Duration::from_secs(30);
/// After a longer time between two ticks it is unknown what happened in between.
const LONGEST_TICK: Duration = Duration::from_secs(30);
/// In this time after boot only a session counts as somebody, and missing facts do not: `omr
/// follow` starts a moment after logind, without which nobody can log in.
const EARLY: Monotonic = Monotonic(300_000_000_000);
/// While an idle inhibitor is held, only memory that was unused for at least this long may leave.
const INHIBITED_AGE: Duration = Duration::from_secs(3600);

/// The settings of presence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Nobody is there after this time without any sign of somebody.
    pub away_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { away_after: Duration::from_secs(600) }
    }
}

/// Facts about sessions at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The time since that moment.
    pub age: Duration,
    /// Active sessions of people at the machine.
    pub local: Sessions,
    /// Active sessions of people elsewhere, over ssh mostly.
    pub remote: Sessions,
    /// A program holds an idle inhibitor: a video, a call, a presentation.
    pub inhibited: bool,
}

/// Active sessions of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    /// Their number.
    pub active: u32,
    /// The time since the last input to any of them; `None`: unknown for one of them at least.
    pub idle: Option<Duration>,
}

impl Sessions {
    /// The time since somebody used one of them; zero where that is unknown. `None`: there are no
    /// sessions.
    fn used(self) -> Option<Duration> {
        (self.active > 0).then(|| self.idle.unwrap_or_default())
    }

    /// The sessions of both.
    #[must_use]
    fn merge(self, other: Sessions) -> Sessions {
        let idle = match (self.active, other.active) {
            (_, 0) => self.idle,
            (0, _) => other.idle,
            // `None`, unknown, is less than any time.
            _ => self.idle.min(other.idle),
        };
        Sessions { active: self.active.max(other.active), idle }
    }
}

impl Facts {
    /// What follows from two statements about the same moment: each sign of somebody counts,
    /// whoever states it. So a statement can add presence to another one and never take it away.
    #[must_use]
    pub fn merge(&self, other: &Facts) -> Facts {
        Facts {
            age: self.age,
            local: self.local.merge(other.local),
            remote: self.remote.merge(other.remote),
            inhibited: self.inhibited || other.inhibited,
        }
    }

    /// Returns true if the facts still say something.
    pub fn is_fresh(&self) -> bool {
        self.age <= STALE
    }
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// At the machine.
    Local,
    /// Elsewhere.
    Remote,
}

/// Whether somebody is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Presence {
    /// Somebody is there, or was a moment ago.
    Present {
        /// The sign of it.
        why: Sign,
    },
    /// Somebody is there and looks or listens without any input.
    Inhibited,
    /// Nobody has been there for long enough.
    Away {
        /// For how long.
        #[serde(rename = "for")]
        away: Duration,
    },
    /// Nobody has been there since boot.
    Nobody,
    /// Not known, which counts as present.
    #[default]
    Unknown,
}

/// A sign of somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "sign")]
pub enum Sign {
    /// A session was used.
    Used {
        /// Where the session is.
        place: Place,
        /// The time since then.
        ago: Duration,
    },
    /// A session is active, and it is unknown when it was last used.
    Active {
        /// Where the session is.
        place: Place,
    },
    /// There is no sign now, and there was one, or nobody looked, a moment ago.
    Lately {
        /// The time since then.
        ago: Duration,
    },
}

impl Presence {
    /// Returns true if it is known that nobody is there.
    pub fn is_absence(&self) -> bool {
        matches!(self, Presence::Away { .. } | Presence::Nobody)
    }
}

/// Such as `a remote session was used 2 min ago`.
impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = |place: &Place| match place {
            Place::Local => "a local session",
            Place::Remote => "a remote session",
        };
        match self {
            Presence::Present { why: Sign::Used { place, ago } } => {
                write!(f, "{} was used {} ago", session(place), short(*ago))
            }
            Presence::Present { why: Sign::Active { place } } => {
                write!(f, "{} is active, and the time of its last use is not known", session(place))
            }
            Presence::Present { why: Sign::Lately { ago } } => {
                write!(f, "the last sign of somebody was {} ago", short(*ago))
            }
            Presence::Inhibited => f.write_str("a program shows or plays something (it holds an idle inhibitor)"),
            Presence::Away { away } => write!(f, "nobody has been there for {}", short(*away)),
            Presence::Nobody => f.write_str("nobody has logged in since boot"),
            Presence::Unknown => f.write_str("no program tells omr who is there (omr follow presence)"),
        }
    }
}

/// The state of presence, which is kept from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PresenceState {
    /// The presence at the last tick.
    now: Presence,
    /// The last tick; `None`: there was none.
    ticked: Option<Monotonic>,
    /// The last moment at which somebody may have been there; `None`: nobody since boot.
    last: Option<Monotonic>,
}

impl PresenceState {
    /// Takes in the facts of a tick. `slept`: the machine was asleep since the last one.
    pub(crate) fn tick(&mut self, config: &Settings, now: Monotonic, slept: bool, facts: Option<&Facts>) {
        let facts = facts.filter(|facts| facts.is_fresh());
        let watched = self.ticked.is_some_and(|ticked| ticked <= now && now.since(ticked) <= LONGEST_TICK);
        // Whoever wakes a machine is there.
        if slept || ((facts.is_none() || !watched) && now > EARLY) {
            self.last = Some(now);
        }
        self.ticked = Some(now);
        self.now = facts.map_or(Presence::Unknown, |facts| self.judge(config, now, facts));
    }

    fn judge(&mut self, config: &Settings, now: Monotonic, facts: &Facts) -> Presence {
        if facts.inhibited {
            self.last = Some(now);
            return Presence::Inhibited;
        }
        let used = |place, sessions: Sessions| Some((sessions.used()?, place, sessions.idle));
        let both = [used(Place::Local, facts.local), used(Place::Remote, facts.remote)];
        let latest = both.into_iter().flatten().min_by_key(|(used, ..)| *used);
        if let Some((used, ..)) = latest {
            self.last = self.last.max(Some(now - used));
        }
        let Some(last) = self.last else { return Presence::Nobody };
        let away = now.since(last);
        if away >= config.away_after {
            return Presence::Away { away };
        }
        let why = match latest {
            Some((_, place, None)) => Sign::Active { place },
            Some((used, place, Some(_))) if used < config.away_after => Sign::Used { place, ago: used },
            _ => Sign::Lately { ago: away },
        };
        Presence::Present { why }
    }
}

impl State {
    /// Whether somebody is there, as of the last tick.
    pub fn presence(&self) -> &Presence {
        &self.presence.now
    }
}

/// With `goal = "auto"`: `Err` if somebody may be there, and so no memory of any age may leave.
pub(crate) fn nobody(config: &Config, state: &State) -> Result<(), Reason> {
    let presence = state.presence();
    match config.goal {
        Goal::Auto if !presence.is_absence() => Err(Reason::SomebodyThere { presence: presence.clone() }),
        Goal::Auto | Goal::Free | Goal::Hibernate => Ok(()),
    }
}

/// `Err`: the group must not be swept, because somebody may be there. Cold memory may leave while
/// somebody is there, and so may the little that a probe takes. A probe does not know how old that
/// is, so a video or a call prevents it.
pub(crate) fn permits(config: &Config, state: &State, group: &Group) -> Result<(), Reason> {
    let least = if *state.presence() == Presence::Inhibited { INHIBITED_AGE } else { Duration::ZERO };
    match &group.cold_only {
        Some(cold_only) if cold_only.is_probed() && least > Duration::ZERO => nobody(config, state),
        Some(cold_only) if cold_only.min_age >= least => away::permits(config, state, cold_only),
        _ => nobody(config, state),
    }
}

/// The reason for which only some memory is reclaimed while somebody is there.
pub(crate) fn explain(presence: &Presence, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (who, what) = match presence {
        Presence::Unknown | Presence::Present { why: Sign::Lately { .. } } => {
            ("somebody may be there", "unused for long enough")
        }
        Presence::Inhibited => ("somebody is there", "unused for an hour"),
        _ => ("somebody is there", "unused for long enough"),
    };
    write!(f, "{who}: {presence}; only memory {what} is reclaimed")
}
