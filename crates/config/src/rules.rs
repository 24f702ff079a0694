//! The values that a configuration gives: rules for groups, choices, and the places they come from.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use omr_base::text::printable;
use omr_policy::{Class, MinAge};
use omr_units::Amount;

use crate::glob::Glob;

/// The kernel file by which groups are reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// `memory.swap.reclaim` if it may be written, else `memory.reclaim`; never `memory.high`.
    #[default]
    Auto,
    /// `memory.reclaim` (Linux 5.19).
    Reclaim,
    /// `memory.swap.reclaim` (a patch).
    SwapReclaim,
    /// `memory.high`, lowered for moments: for kernels that have neither file.
    High,
}

impl BackendChoice {
    const ALL: [BackendChoice; 4] =
        [BackendChoice::Auto, BackendChoice::Reclaim, BackendChoice::SwapReclaim, BackendChoice::High];

    /// Returns the name: the kernel's file, or `auto`.
    pub fn name(self) -> &'static str {
        match self {
            BackendChoice::Auto => "auto",
            BackendChoice::Reclaim => "memory.reclaim",
            BackendChoice::SwapReclaim => "memory.swap.reclaim",
            BackendChoice::High => "memory.high",
        }
    }

    /// Returns the choice with this name.
    pub fn from_name(name: &str) -> Option<BackendChoice> {
        BackendChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// The cloud provider whose interruption notices `omr watch` follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// The provider that the firmware names.
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

    /// Returns the name of the provider.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Auto => "auto",
            Provider::Ec2 => "ec2",
            Provider::Gcp => "gcp",
            Provider::Azure => "azure",
        }
    }

    /// Returns the provider with this name.
    pub fn from_name(name: &str) -> Option<Provider> {
        Provider::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// The settings of `omr watch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// The provider.
    pub provider: Provider,
    /// The address of its metadata server.
    pub endpoint: SocketAddr,
}

impl Default for Cloud {
    fn default() -> Self {
        // All three providers use this address.
        Cloud { provider: Provider::Auto, endpoint: SocketAddr::from(([169, 254, 169, 254], 80)) }
    }
}

/// The place where a value is written.
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

/// The groups that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Groups by path below the mount.
    Match(Glob),
    /// Groups by the name of the systemd unit, which is the last part of the path.
    Unit(Glob),
}

impl Selector {
    /// Returns the pattern.
    pub fn glob(&self) -> &Glob {
        match self {
            Selector::Match(glob) | Selector::Unit(glob) => glob,
        }
    }

    /// Returns true if it matches the group at `path`, given as its [`parts`](crate::parts).
    pub fn matches(&self, path: &[std::borrow::Cow<'_, str>]) -> bool {
        match self {
            Selector::Match(glob) => glob.matches(path),
            Selector::Unit(glob) => path.last().is_some_and(|last| glob.matches(std::slice::from_ref(last))),
        }
    }
}

/// A `[[group]]` rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// The groups that the rule is for.
    pub selector: Selector,
    /// The class of the groups; `None`: the rule gives none.
    pub class: Option<Class>,
    /// The class wins over what the group is called, and over the attributes that its user sets.
    pub enforce: bool,
    /// The amount that is never reclaimed; `None`: the rule gives none.
    pub keep: Option<Amount>,
    /// The memory that sweeps may reclaim, by age; `None`: the rule does not say.
    pub older_than: Option<MinAge>,
    /// The place of `match` or `unit`.
    pub place: Place,
}

impl GroupRule {
    /// Returns true if sweeps must reclaim only memory of a minimum age.
    pub fn has_min_age(&self) -> bool {
        self.older_than.is_some_and(|age| age != MinAge::Any)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_and_each_provider_is_found_by_its_name() {
        let backends = ["auto", "memory.reclaim", "memory.swap.reclaim", "memory.high"];
        assert_eq!(backends.map(BackendChoice::from_name), BackendChoice::ALL.map(Some));
        let providers = ["auto", "ec2", "gcp", "azure"];
        assert_eq!(providers.map(Provider::from_name), Provider::ALL.map(Some));
        assert_eq!((BackendChoice::from_name("memory"), Provider::from_name("EC2")), (None, None));
    }
}
