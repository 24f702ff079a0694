//! The effective configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process::ProcessRule;
use crate::rules::{BackendChoice, Cloud, GroupRule, Place};
use crate::schema::{self, Settings};

/// The effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What the policy decides by.
    pub policy: omr_policy::Config,
    /// How groups are reclaimed.
    pub backend: BackendChoice,
    /// What `omr watch` follows.
    pub cloud: Cloud,
    /// The rules for groups, in the order of the files.
    pub groups: Vec<GroupRule>,
    /// The rules for processes, in the order of the files.
    pub processes: Vec<ProcessRule>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// For each of [`KEYS`] where its value is written, if anywhere.
    pub(crate) origins: Vec<Option<Place>>,
    /// Files that anybody may write to.
    pub(crate) world_writable: Vec<Arc<Path>>,
}

impl Loaded {
    /// Where the value of a key (`"idle.for"`) is written; `None` when it is built in.
    pub fn origin(&self, key: &str) -> Option<&Place> {
        self.origins.get(schema::index(key)?)?.as_ref()
    }

    /// The value of one of [`KEYS`] as one writes it.
    pub fn text(&self, key: &schema::Key) -> String {
        key.text(&Settings { policy: self.policy.clone(), backend: self.backend, cloud: self.cloud.clone() })
    }

    /// Files that anybody may write to.
    pub fn world_writable(&self) -> &[Arc<Path>] {
        &self.world_writable
    }
}
