//! The effective configuration.

use std::path::PathBuf;

use crate::process::ProcessRule;
use crate::rules::{BackendChoice, Cloud, GroupRule, Place};
use crate::schema::{self, Settings};

/// The effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The settings of the policy.
    pub policy: omr_policy::Config,
    /// The backend.
    pub backend: BackendChoice,
    /// The settings of `omr watch`.
    pub cloud: Cloud,
    /// The rules for groups, in the order of the files.
    pub groups: Vec<GroupRule>,
    /// The rules for processes, in the order of the files.
    pub processes: Vec<ProcessRule>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// For each of [`KEYS`](crate::KEYS) the place of its value; `None`: built in.
    pub(crate) origins: Vec<Option<Place>>,
}

impl Loaded {
    /// Returns the place of the value of a key such as `"idle.for"`; `None`: built in.
    pub fn origin(&self, key: &str) -> Option<&Place> {
        self.origins.get(schema::index(key)?)?.as_ref()
    }

    /// Returns the value of one of [`KEYS`](crate::KEYS) as it is written in a file.
    pub fn text(&self, key: &schema::Key) -> String {
        key.text(&Settings { policy: self.policy.clone(), backend: self.backend, cloud: self.cloud.clone() })
    }
}
