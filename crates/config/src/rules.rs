//! The values that a configuration gives: rules for groups, choices, and the places they come from.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use omr_base::text::printable;
use omr_policy::Class;
use omr_units::Amount;

use crate::glob::Glob;

/// By which file of the kernel groups are reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// `memory.swap.reclaim` where it may be written, else `memory.reclaim`; never `memory.high`.
    #[default]
    Auto,
    /// `memory.reclaim` (Linux 5.19).
    Reclaim,
    /// `memory.swap.reclaim` (a patch).
    SwapReclaim,
    /// A `memory.high` that is lowered for moments: for kernels that have neither.
    High,
}

impl BackendChoice {
    const ALL: [BackendChoice; 4] =
        [BackendChoice::Auto, BackendChoice::Reclaim, BackendChoice::SwapReclaim, BackendChoice::High];

    /// The word for it: the kernel's file, or `auto`.
    pub fn name(self) -> &'static str {
        match self {
            BackendChoice::Auto => "auto",
            BackendChoice::Reclaim => "memory.reclaim",
            BackendChoice::SwapReclaim => "memory.swap.reclaim",
            BackendChoice::High => "memory.high",
        }
    }

    /// The choice of that name.
    pub fn from_name(name: &str) -> Option<BackendChoice> {
        BackendChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// Whose interruption notices `omr watch` follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// The one that the firmware names.
    #[default]
    Auto,
    /// Amazon.
    Ec2,
    /// Google Compute Engine.
    Gcp,
    /// Microsoft.
    Azure,
}

impl Provider {
    const ALL: [Provider; 4] = [Provider::Auto, Provider::Ec2, Provider::Gcp, Provider::Azure];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Auto => "auto",
            Provider::Ec2 => "ec2",
            Provider::Gcp => "gcp",
            Provider::Azure => "azure",
        }
    }

    /// The provider of that name.
    pub fn from_name(name: &str) -> Option<Provider> {
        Provider::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// What `omr watch` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// Whose notices.
    pub provider: Provider,
    /// Where its metadata server is.
    pub endpoint: SocketAddr,
}

impl Default for Cloud {
    fn default() -> Self {
        // All three use this one.
        Cloud { provider: Provider::Auto, endpoint: SocketAddr::from(([169, 254, 169, 254], 80)) }
    }
}

/// Where something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// The line in it, from 1.
    pub line: u32,
}

/// `/etc/omr/omr.toml:14`
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", printable(&self.file.to_string_lossy()), self.line)
    }
}

/// Which groups a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// By path below the mount.
    Match(Glob),
    /// By name of the systemd unit: the last part of the path.
    Unit(Glob),
}

impl Selector {
    /// Its pattern.
    pub fn glob(&self) -> &Glob {
        match self {
            Selector::Match(glob) | Selector::Unit(glob) => glob,
        }
    }

    /// Whether it is about the group at `path`, given as its [`parts`].
    pub fn matches(&self, path: &[std::borrow::Cow<'_, str>]) -> bool {
        match self {
            Selector::Match(glob) => glob.matches(path),
            Selector::Unit(glob) => path.len().checked_sub(1).is_some_and(|last| glob.matches(&path[last..])),
        }
    }
}

/// One `[[group]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// Which groups.
    pub selector: Selector,
    /// What omr may do to them.
    pub class: Option<Class>,
    /// What they always keep.
    pub keep: Option<Amount>,
    /// Sweeps take only what was surely not used for so long; zero: whatever its age.
    pub older_than: Option<Duration>,
    /// Where `match` or `unit` is written.
    pub place: Place,
}

impl GroupRule {
    /// Whether sweeps are to take only what is old.
    pub fn has_min_age(&self) -> bool {
        self.older_than.is_some_and(|age| !age.is_zero())
    }
}

/// `"app.slice/**" in /etc/omr/omr.toml:14`
impl fmt::Display for GroupRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.selector {
            Selector::Match(glob) => write!(f, "\"{}\" in {}", printable(glob.as_str()), self.place),
            Selector::Unit(glob) => write!(f, "unit \"{}\" in {}", printable(glob.as_str()), self.place),
        }
    }
}
